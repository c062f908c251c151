// SPDX-License-Identifier: GPL-2.0-only
/*
 * Models with recurrent state: a hit ends where a checkpoint of the state is, and nowhere else;
 * a state that stands in the middle of a block, or behind what a truncation left, is never
 * served; at most the two newest uncommitted states of a sequence take memory.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sequence.h"
#include "tests/harness/kv_world.h"

#define T	16u

static struct kv_world world;
static struct kv_story story;

static int setup(void **state)
{
	(void)state;
	kv_world_open(&world, KV_SHAPE_HYBRID, T, 64);
	for (uint32_t i = 0; i < 400; i++)
		kv_story_add(&story, i);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	kv_story_free(&story);
	kv_world_close(&world);
	return 0;
}

static void grow(struct omnikv_seq *seq, uint64_t nr_tokens)
{
	uint64_t old = omnikv_seq_tokens(seq);

	assert_int_equal(omnikv_seq_append(seq, nr_tokens), 0);
	/* Until it is stored over, the state at the old end can be loaded. */
	if (old)
		assert_true(kv_state_is_right(&world, seq, &story, old));
	kv_store(&world, seq, &story, old, old + nr_tokens);
	assert_true(kv_state_is_right(&world, seq, &story, old + nr_tokens));
}

static uint64_t hit(uint64_t nr_tokens)
{
	struct omnikv_seq *seq;
	struct kv_story part;
	uint64_t nr;

	kv_story_copy(&part, &story, nr_tokens);
	seq = kv_open(&world, &part, true);
	nr = omnikv_seq_tokens(seq);
	assert_null(kv_compare(&world, seq, &story, 0, nr));
	if (nr)
		assert_true(kv_state_is_right(&world, seq, &story, nr));
	omnikv_seq_close(seq);
	kv_story_free(&part);
	return nr;
}

static uint64_t private_states(void)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	uint64_t blocks = omnikv_plan_block_bytes(&world.plan);

	/* Of 4096 bytes a block: 2 pieces of 3000 bytes make a checkpoint of 8192. */
	assert_int_equal(blocks, 4096);
	assert_int_equal(omnikv_plan_checkpoint_bytes(&world.plan), 8192);
	assert_int_equal(omnikv_pool_info(world.pool, &info), 0);
	return info.usable_bytes - info.free_bytes;
}

static void hit_ends_at_a_checkpoint(void **state)
{
	struct omnikv_seq *seq;

	(void)state;
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	grow(seq, 2 * T);
	assert_int_equal(kv_commit(&world, seq, &story, true), 2);
	grow(seq, 5 * T);
	assert_int_equal(kv_commit(&world, seq, &story, true), 5);
	grow(seq, T + 3);
	assert_int_equal(kv_commit(&world, seq, &story, true), 2);
	omnikv_seq_close(seq);

	assert_int_equal(hit(T), 0);
	assert_int_equal(hit(2 * T), 2 * T);
	assert_int_equal(hit(6 * T), 2 * T);
	assert_int_equal(hit(7 * T), 7 * T);
	assert_int_equal(hit(8 * T), 7 * T);
	assert_int_equal(hit(8 * T + 3), 8 * T + 3);
	assert_int_equal(hit(8 * T + 4), 7 * T);
	assert_int_equal(omnikv_manager_reset(world.manager), 9);
}

/* A fork that grows past a checkpoint which the other sequence has published leaves it to the cache. */
static void growing_fork_leaves_a_published_state_alone(void **state)
{
	struct omnikv_seq *seq, *fork;

	(void)state;
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	grow(seq, 2 * T);
	assert_int_equal(omnikv_seq_fork(seq, &fork), 0);
	assert_int_equal(kv_commit(&world, seq, &story, true), 2);
	omnikv_seq_close(seq);
	for (uint32_t i = 0; i < 4; i++) {
		grow(fork, T);
		kv_world_check(&world);
		assert_int_equal(hit(2 * T), 2 * T);
	}
	omnikv_seq_close(fork);
	kv_world_check(&world);
	assert_int_equal(hit(2 * T), 2 * T);
	assert_int_equal(omnikv_manager_reset(world.manager), 2);
}

static void state_inside_a_block_is_not_published(void **state)
{
	struct omnikv_seq *seq, *fork;
	struct kv_story part;

	(void)state;
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	grow(seq, T + 5);
	grow(seq, T);
	/* Block 1 has the state at its token 5, block 2 the one at the end. */
	assert_int_equal(omnikv_seq_fork(seq, &fork), 0);
	assert_int_equal(kv_commit(&world, seq, &story, false), 2);
	kv_world_check(&world);
	assert_int_equal(hit(2 * T), 0);
	assert_true(kv_state_is_right(&world, fork, &story, T + 5));
	assert_true(kv_state_is_right(&world, fork, &story, 2 * T + 5));
	assert_int_equal(kv_commit(&world, seq, &story, true), 1);
	assert_int_equal(hit(2 * T + 5), 2 * T + 5);

	/* The fork goes back to that state, and from there to the end of the block: a checkpoint for the cached block. */
	assert_int_equal(omnikv_seq_truncate(fork, T + 5), 0);
	assert_true(kv_state_is_right(&world, fork, &story, T + 5));
	grow(fork, T - 5);
	assert_int_equal(kv_commit(&world, fork, &story, true), 0);
	assert_int_equal(hit(2 * T), 2 * T);
	kv_world_check(&world);

	/* Extended from the cached tail: its state comes along. */
	omnikv_seq_close(fork);
	kv_story_copy(&part, &story, 2 * T + 5);
	fork = kv_open(&world, &part, true);
	assert_int_equal(omnikv_seq_tokens(fork), 2 * T + 5);
	grow(fork, 1);
	grow(fork, 1);
	assert_int_equal(kv_commit(&world, fork, &story, true), 1);
	assert_int_equal(hit(2 * T + 7), 2 * T + 7);
	assert_int_equal(hit(2 * T + 5), 2 * T + 5);
	omnikv_seq_close(fork);
	omnikv_seq_close(seq);
	kv_story_free(&part);
	assert_int_equal(omnikv_manager_reset(world.manager), 4);
}

static void state_behind_a_truncation_is_gone(void **state)
{
	struct omnikv_seq *seq, *other;
	struct omnikv_piece piece;

	(void)state;
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_pieces(seq, 1, 0, 0, 0, 0, 0, &piece, 1), -ENODATA);
	grow(seq, T);
	assert_int_equal(omnikv_seq_pieces(seq, 1, 0, 0, 0, T, 0, &piece, 0), -ENOSPC);
	assert_int_equal(omnikv_seq_pieces(seq, 1, 0, 0, 0, T, 77, &piece, 1), 1);
	assert_int_equal(piece.bytes, 3000);
	assert_int_equal(piece.device_off, 77);
	assert_int_equal(omnikv_seq_truncate(seq, 10), 0);
	assert_int_equal(omnikv_seq_pieces(seq, 1, 0, 0, 0, 10, 0, &piece, 1), -ENODATA);

	/* The block is filled up with other tokens, by an append that ends behind it. */
	assert_int_equal(omnikv_seq_append(seq, T), 0);
	kv_store(&world, seq, &story, 10, T + 10);
	assert_int_equal(omnikv_seq_pieces(seq, 1, 0, 0, 0, T, 0, &piece, 1), -ENODATA);
	assert_int_equal(kv_commit(&world, seq, &story, true), 2);
	assert_int_equal(hit(T), 0);
	assert_int_equal(hit(T + 10), T + 10);

	/* Shared, truncated and committed as a tail by one fork: without a state no hit ends there. */
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &other), 0);
	omnikv_seq_close(seq);
	assert_int_equal(omnikv_seq_append(other, T), 0);
	kv_store(&world, other, &story, 0, T);
	assert_int_equal(omnikv_seq_fork(other, &seq), 0);
	assert_int_equal(omnikv_seq_truncate(seq, 4), 0);
	assert_int_equal(kv_commit(&world, seq, &story, true), 1);
	assert_int_equal(hit(4), 0);
	assert_true(kv_state_is_right(&world, other, &story, T));
	omnikv_seq_close(other);
	omnikv_seq_close(seq);
	assert_int_equal(omnikv_manager_reset(world.manager), 3);
}

/* After a loss it goes on at a state that was stored whole, never in a block without one. */
static void going_on_after_a_loss_begins_at_a_checkpoint(void **state)
{
	struct omnikv_seq *seq, *again;
	struct kv_story part;

	(void)state;
	assert_int_equal(omnikv_seq_checkpoint(NULL, 5), 0);
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_checkpoint(seq, 5), 0);
	grow(seq, 2 * T);
	assert_int_equal(kv_commit(&world, seq, &story, true), 2);
	grow(seq, 5 * T);
	assert_int_equal(kv_commit(&world, seq, &story, true), 5);
	omnikv_seq_close(seq);

	kv_story_copy(&part, &story, 7 * T);
	again = kv_open(&world, &part, true);
	kv_story_free(&part);
	assert_int_equal(omnikv_seq_tokens(again), 7 * T);
	assert_int_equal(omnikv_seq_append(again, T + 5), 0);
	assert_int_equal(omnikv_seq_checkpoint(again, 7 * T + 1), 7 * T);
	assert_int_equal(omnikv_seq_checkpoint(again, 7 * T), 7 * T);
	assert_int_equal(omnikv_seq_checkpoint(again, 7 * T - 1), 2 * T);
	assert_int_equal(omnikv_seq_checkpoint(again, 5 * T), 2 * T);
	assert_int_equal(omnikv_seq_checkpoint(again, 2 * T), 2 * T);
	assert_int_equal(omnikv_seq_checkpoint(again, 2 * T - 1), 0);
	assert_int_equal(omnikv_seq_checkpoint(again, 0), 0);
	/* What it says can be done. */
	assert_int_equal(omnikv_seq_truncate(again, 2 * T), 0);
	grow(again, 6 * T + 5);
	/* The state within the block is stored over by a step that grows it: lost with that step. */
	assert_int_equal(omnikv_seq_append(again, 3), 0);
	assert_int_equal(omnikv_seq_checkpoint(again, 8 * T + 5), 8 * T + 5);
	okv_seq_mark_lost(again, 8 * T + 5);
	assert_int_equal(omnikv_seq_checkpoint(again, 8 * T + 8), 2 * T);
	omnikv_seq_close(again);
	assert_int_equal(omnikv_manager_reset(world.manager), 7);
}

/* Without state each place between entries will do; here two groups have 1 and 4 tokens an entry. */
static void without_state_it_goes_on_between_entries(void **state)
{
	struct kv_world mixed;
	struct omnikv_seq *seq;

	(void)state;
	kv_world_open(&mixed, KV_SHAPE_MIXED, T, 64);
	assert_int_equal(omnikv_seq_open(mixed.space, NULL, 0, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_append(seq, 3 * T + 7), 0);
	assert_int_equal(omnikv_seq_checkpoint(seq, UINT64_MAX), 3 * T + 4);
	assert_int_equal(omnikv_seq_checkpoint(seq, T + 4), T + 4);
	assert_int_equal(omnikv_seq_checkpoint(seq, T + 3), T);
	assert_int_equal(omnikv_seq_checkpoint(seq, 3), 0);
	okv_seq_mark_lost(seq, 2 * T + 2);
	assert_int_equal(omnikv_seq_checkpoint(seq, 3 * T), 2 * T);
	omnikv_seq_close(seq);
	kv_world_close(&mixed);
}

static void old_states_are_given_up(void **state)
{
	struct omnikv_seq *seq, *fork;

	(void)state;
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	/* A token at a time through ten blocks: ten blocks and two states. */
	for (uint32_t i = 0; i < 10 * T; i++)
		grow(seq, 1);
	assert_int_equal(private_states(), 10 * 4096 + 2 * 8192);
	assert_true(kv_state_is_right(&world, seq, &story, 9 * T));
	/* Back to the one before and on again: it is what the next step loads. */
	assert_int_equal(omnikv_seq_truncate(seq, 9 * T), 0);
	for (uint32_t i = 0; i < 4; i++)
		grow(seq, 2 * T);
	assert_int_equal(private_states(), 17 * 4096 + 2 * 8192);
	assert_int_equal(omnikv_seq_fork(seq, &fork), 0);
	grow(seq, 2);
	grow(fork, 3);
	assert_true(kv_state_is_right(&world, fork, &story, 17 * T));
	kv_world_check(&world);
	omnikv_seq_close(seq);
	omnikv_seq_close(fork);
	assert_int_equal(private_states(), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(hit_ends_at_a_checkpoint),
		cmocka_unit_test(growing_fork_leaves_a_published_state_alone),
		cmocka_unit_test(state_inside_a_block_is_not_published),
		cmocka_unit_test(state_behind_a_truncation_is_gone),
		cmocka_unit_test(going_on_after_a_loss_begins_at_a_checkpoint),
		cmocka_unit_test(without_state_it_goes_on_between_entries),
		cmocka_unit_test(old_states_are_given_up),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}

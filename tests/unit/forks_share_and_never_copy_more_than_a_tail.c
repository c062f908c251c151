// SPDX-License-Identifier: GPL-2.0-only
/*
 * Forks: a thousand of a long sequence cost what a thousand of a short one do; they share all
 * memory until one writes, and then one block at most is copied. What one fork publishes the
 * others may still hold, and truncating within a shared block leaves the others' rows alone.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "tests/harness/kv_world.h"

#define T		16u
#define NR_FORKS	1000u

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ull + ts.tv_nsec;
}

static uint64_t used_blocks(struct kv_world *world)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_pool_info(world->pool, &info), 0);
	return (info.usable_bytes - info.free_bytes) / omnikv_plan_block_bytes(&world->plan);
}

static void must_hold(struct kv_world *world, const struct omnikv_seq *seq, const struct kv_story *story)
{
	const char *wrong = kv_compare(world, seq, story, 0, omnikv_seq_tokens(seq));

	if (wrong)
		fail_msg("%s", wrong);
}

static void cost_does_not_depend_on_length(void **state)
{
	static struct omnikv_seq *forks[NR_FORKS];
	struct omnikv_piece piece;
	struct omnikv_seq *seq;
	struct kv_world world;
	uint64_t best = UINT64_MAX;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 6400);
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_append(seq, 100003), 0);
	assert_int_equal(used_blocks(&world), 6251);
	for (uint32_t round = 0; round < 3; round++) {
		uint64_t begin = now_ns(), ns;

		for (uint32_t i = 0; i < NR_FORKS; i++)
			assert_int_equal(omnikv_seq_fork(seq, &forks[i]), 0);
		ns = now_ns() - begin;
		best = ns < best ? ns : best;
		assert_int_equal(used_blocks(&world), 6251);
		/* The first to go on copies its tail; the rest of the round does too. */
		for (uint32_t i = 0; i < 20; i++) {
			assert_int_equal(omnikv_seq_append(forks[i], 1), 0);
			assert_int_equal(omnikv_seq_tokens(forks[i]), 100004);
			assert_int_equal(used_blocks(&world), 6252 + i);
		}
		assert_int_equal(omnikv_seq_tokens(seq), 100003);
		assert_int_equal(omnikv_seq_pieces(forks[3], 0, 0, 0, 0, 16, 0, &piece, 1), 1);
		kv_world_check(&world);
		for (uint32_t i = 0; i < NR_FORKS; i++)
			omnikv_seq_close(forks[i]);
		assert_int_equal(used_blocks(&world), 6251);
	}
	print_message("# %u forks of 100,003 tokens: %.0f us\n", NR_FORKS, best / 1e3);
	/* Well under a millisecond on a quiet machine without sanitizers; here only the order is held. */
	assert_true(best < 20000000);
	omnikv_seq_close(seq);
	kv_world_close(&world);
}

static void last_holder_writes_in_place(void **state)
{
	struct kv_story story = { 0 }, other;
	struct omnikv_seq *seq, *fork;
	struct kv_world world;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 64);
	for (uint32_t i = 0; i < 3 * T + 4; i++)
		kv_story_add(&story, i);
	kv_story_copy(&other, &story, story.nr_tokens);
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_append(seq, 3 * T + 4), 0);
	kv_store(&world, seq, &story, 0, 3 * T + 4);
	assert_int_equal(omnikv_seq_fork(seq, &fork), 0);

	/* Both go on differently: one copy in all. */
	for (uint32_t i = 0; i < 3; i++) {
		kv_story_add(&story, 100 + i);
		kv_story_add(&other, 200 + i);
		assert_int_equal(omnikv_seq_append(seq, 1), 0);
		kv_store(&world, seq, &story, 3 * T + 4 + i, 3 * T + 5 + i);
		assert_int_equal(omnikv_seq_append(fork, 1), 0);
		kv_store(&world, fork, &other, 3 * T + 4 + i, 3 * T + 5 + i);
	}
	assert_int_equal(used_blocks(&world), 5);
	must_hold(&world, seq, &story);
	must_hold(&world, fork, &other);
	omnikv_seq_close(seq);
	assert_int_equal(used_blocks(&world), 4);
	must_hold(&world, fork, &other);

	/* Truncated and grown again: nothing was copied, and nothing is left over. */
	assert_int_equal(omnikv_seq_truncate(fork, T + 1), 0);
	assert_int_equal(used_blocks(&world), 2);
	assert_int_equal(omnikv_seq_truncate(fork, T + 2), -EINVAL);
	assert_int_equal(omnikv_seq_append(fork, T), 0);
	assert_int_equal(used_blocks(&world), 3);
	omnikv_seq_close(fork);
	kv_story_free(&story);
	kv_story_free(&other);
	kv_world_close(&world);
}

/* Published by one, held by the others; and a shorter tail of a shared block under a key of its own. */
static void forks_publish_the_same_block(void **state)
{
	struct kv_story story = { 0 }, cut;
	struct omnikv_seq *seq, *fork, *third, *hit;
	struct omnikv_key wrong;
	struct kv_world world;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 64);
	for (uint32_t i = 0; i < 2 * T; i++)
		kv_story_add(&story, i);
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_append(seq, 2 * T), 0);
	kv_store(&world, seq, &story, 0, 2 * T);
	assert_int_equal(omnikv_seq_fork(seq, &fork), 0);
	assert_int_equal(omnikv_seq_fork(seq, &third), 0);

	/* A shorter tail of the shared second block: a copy of it is published. */
	kv_story_copy(&cut, &story, T + 6);
	assert_int_equal(omnikv_seq_truncate(third, T + 6), 0);
	assert_int_equal(kv_commit(&world, third, &cut, true), 2);
	assert_int_equal(used_blocks(&world), 3);
	kv_world_check(&world);

	assert_int_equal(kv_commit(&world, seq, &story, true), 1);
	omnikv_seq_close(seq);
	kv_world_check(&world);
	/* The fork still has it: it may not go, nor can it come under another key. */
	assert_int_equal(omnikv_manager_reset(world.manager), 0);
	must_hold(&world, fork, &story);
	wrong = kv_key(&world, &story, 1, 9);
	{
		struct omnikv_key keys[2] = { kv_key(&world, &story, 0, T), wrong };

		assert_int_equal(omnikv_seq_commit(fork, keys, 2, NULL), -EINVAL);
	}
	assert_int_equal(omnikv_seq_cached_tokens(fork), T);
	assert_int_equal(kv_commit(&world, fork, &story, true), 0);
	assert_int_equal(omnikv_seq_cached_tokens(fork), 2 * T);
	kv_world_check(&world);

	/* Truncated within a cached block and committed as a tail: a copy again. */
	kv_story_free(&cut);
	kv_story_copy(&cut, &story, T + 9);
	assert_int_equal(omnikv_seq_truncate(fork, T + 9), 0);
	assert_int_equal(omnikv_seq_cached_tokens(fork), T + 9);
	assert_int_equal(kv_commit(&world, fork, &cut, true), 1);
	hit = kv_open(&world, &cut, true);
	assert_int_equal(omnikv_seq_tokens(hit), T + 9);
	must_hold(&world, hit, &story);
	omnikv_seq_close(hit);
	hit = kv_open(&world, &story, true);
	assert_int_equal(omnikv_seq_tokens(hit), 2 * T);
	must_hold(&world, hit, &story);
	omnikv_seq_close(hit);

	/* Back to nothing, step by step, through what is cached. */
	assert_int_equal(omnikv_seq_truncate(fork, T), 0);
	assert_int_equal(omnikv_seq_truncate(fork, 3), 0);
	must_hold(&world, fork, &story);
	assert_int_equal(omnikv_seq_append(fork, 1), 0);
	assert_int_equal(omnikv_seq_cached_tokens(fork), 0);
	assert_int_equal(omnikv_seq_truncate(fork, 0), 0);
	assert_int_equal(omnikv_seq_tokens(fork), 0);
	omnikv_seq_close(third);
	omnikv_seq_close(fork);
	kv_story_free(&story);
	kv_story_free(&cut);
	kv_world_close(&world);
}

static void what_is_outside_is_refused(void **state)
{
	struct omnikv_piece pieces[4];
	struct omnikv_seq *seq;
	struct kv_world world;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 16);
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	assert_ptr_equal(omnikv_seq_space(seq), world.space);
	assert_int_equal(omnikv_seq_append(seq, 0), 0);
	assert_int_equal(omnikv_seq_append(seq, 3 * T), 0);
	assert_int_equal(omnikv_seq_pieces(seq, 0, 0, 0, 0, 3 * T + 1, 0, pieces, 4), -EINVAL);
	assert_int_equal(omnikv_seq_pieces(seq, 0, 0, 0, 5, 4, 0, pieces, 4), -EINVAL);
	assert_int_equal(omnikv_seq_pieces(seq, 1, 0, 0, 0, 1, 0, pieces, 4), -EINVAL);
	assert_int_equal(omnikv_seq_pieces(seq, 0, 2, 0, 0, 1, 0, pieces, 4), -EINVAL);
	assert_int_equal(omnikv_seq_pieces(seq, 0, 0, 2, 0, 1, 0, pieces, 4), -EINVAL);
	assert_int_equal(omnikv_seq_pieces(NULL, 0, 0, 0, 0, 1, 0, pieces, 4), -EINVAL);
	assert_int_equal(omnikv_seq_pieces(seq, 0, 0, 0, 0, 1, 0, NULL, 4), -EINVAL);
	assert_int_equal(omnikv_seq_pieces(seq, 0, 0, 0, 0, 3 * T, 0, pieces, 2), -ENOSPC);
	assert_int_equal(omnikv_seq_pieces(seq, 0, 0, 0, 3, 3, 0, NULL, 0), 0);
	/* From the middle of one block into the middle of another. */
	assert_int_equal(omnikv_seq_pieces(seq, 0, 1, 1, 10, 2 * T + 3, 1000, pieces, 4), 3);
	assert_int_equal(pieces[0].bytes, 6 * 40);
	assert_int_equal(pieces[0].extent_off,
			 world.plan.groups[0].piece_bytes + world.plan.groups[0].plane_off[1] + 10 * 40);
	assert_int_equal(pieces[1].bytes, 16 * 40);
	assert_int_equal(pieces[1].device_off, 1000 + 6 * 40);
	assert_int_equal(pieces[2].bytes, 3 * 40);
	/* One after another in the pool. */
	assert_int_equal(pieces[1].extent.granule, pieces[0].extent.granule + 1);
	assert_int_equal(omnikv_seq_append(NULL, 1), -EINVAL);
	assert_int_equal(omnikv_seq_truncate(NULL, 1), -EINVAL);
	assert_int_equal(omnikv_seq_fork(NULL, &seq), -EINVAL);
	assert_int_equal(omnikv_seq_commit(NULL, NULL, 0, NULL), -EINVAL);
	omnikv_seq_close(seq);
	kv_world_close(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(cost_does_not_depend_on_length),
		cmocka_unit_test(last_holder_writes_in_place),
		cmocka_unit_test(forks_publish_the_same_block),
		cmocka_unit_test(what_is_outside_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

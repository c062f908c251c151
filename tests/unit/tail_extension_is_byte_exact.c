// SPDX-License-Identifier: GPL-2.0-only
/*
 * Partial tails: with blocks of 256 tokens, each prompt length against each prefix that is
 * there already. What is opened, extended and committed has every byte right, rows and guard
 * bands around them included; what was committed before is never overwritten, and is hit again.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/harness/kv_world.h"

#define T	256u
#define GUARD	512u

static const uint64_t lengths[] = { 1, 255, 256, 257, 511, 512, 513, 4096, 4097 };

#define NR_LENGTHS (sizeof(lengths) / sizeof(lengths[0]))

/* What a caller has around the rows that it asks for must stay as it is: gather them with guards. */
static void gather_between_guards(const struct kv_world *world, const struct omnikv_seq *seq,
				  const struct kv_story *story)
{
	uint64_t nr_tokens = omnikv_seq_tokens(seq);
	uint64_t bytes = nr_tokens * world->plan.groups[0].row_bytes[1];
	uint8_t *dest = malloc(bytes + 2 * GUARD);
	struct omnikv_piece pieces[32];
	int64_t nr;

	(void)story;
	assert_non_null(dest);
	memset(dest, 0xa5, bytes + 2 * GUARD);
	nr = omnikv_seq_pieces(seq, 0, 1, 1, 0, nr_tokens, GUARD, pieces, 32);
	assert_int_equal(nr, (nr_tokens + world->plan.block_tokens - 1) / world->plan.block_tokens);
	for (int64_t i = 0; i < nr; i++) {
		assert_in_range(pieces[i].device_off, GUARD, GUARD + bytes - pieces[i].bytes);
		memcpy(dest + pieces[i].device_off,
		       (uint8_t *)omnikv_pool_addr(world->pool, &pieces[i].extent) + pieces[i].extent_off,
		       pieces[i].bytes);
	}
	for (uint32_t i = 0; i < GUARD; i++) {
		assert_int_equal(dest[i], 0xa5);
		assert_int_equal(dest[GUARD + bytes + i], 0xa5);
	}
	free(dest);
}

/* Everything in the extent but the rows that count: padding, and the unused rows of the tail. */
static uint32_t sum_outside(const struct kv_world *world, const struct omnikv_seq *seq, uint64_t token)
{
	const struct omnikv_group_plan *gp = &world->plan.groups[0];
	struct omnikv_piece piece;
	const uint8_t *base;
	uint32_t sum = 0;

	assert_int_equal(omnikv_seq_pieces(seq, 0, 0, 0, token, token + 1, 0, &piece, 1), 1);
	base = omnikv_pool_addr(world->pool, &piece.extent);
	for (uint64_t off = 0; off < gp->extent_bytes; off++) {
		uint64_t in_piece = off % gp->piece_bytes;
		bool counts = false;

		for (uint32_t p = 0; p < 2; p++)
			counts |= off < gp->piece_bytes * gp->nr_stored && in_piece >= gp->plane_off[p] &&
				  in_piece < gp->plane_off[p] + (token % T + 1) * gp->row_bytes[p];
		if (!counts)
			sum = sum * 31 + base[off];
	}
	return sum;
}

static void must_hold(const struct kv_world *world, const struct omnikv_seq *seq, const struct kv_story *story)
{
	const char *wrong = kv_compare(world, seq, story, 0, omnikv_seq_tokens(seq));

	if (wrong)
		fail_msg("%s", wrong);
	if (omnikv_seq_tokens(seq))
		gather_between_guards(world, seq, story);
}

static void one(struct kv_world *world, uint64_t length, uint64_t prefix, uint32_t salt)
{
	struct omnikv_seq *first, *second, *again;
	struct kv_story story = { 0 }, there;
	uint32_t outside;
	uint64_t hit;

	for (uint64_t i = 0; i < length; i++)
		kv_story_add(&story, salt + i);
	kv_story_copy(&there, &story, prefix);

	/* The prefix is there, by somebody else. */
	first = kv_open(world, &there, false);
	assert_int_equal(omnikv_seq_tokens(first), 0);
	assert_int_equal(omnikv_seq_append(first, prefix), 0);
	kv_store(world, first, &there, 0, prefix);
	assert_int_equal(kv_commit(world, first, &there, true), (prefix + T - 1) / T);

	/* The prompt: found up to the prefix, exactly; nothing below that is written again. */
	second = kv_open(world, &there, true);
	hit = omnikv_seq_tokens(second);
	assert_int_equal(hit, prefix);
	must_hold(world, second, &story);
	outside = prefix ? sum_outside(world, first, prefix - 1) : 0;
	assert_int_equal(omnikv_seq_append(second, length - hit), 0);
	kv_store(world, second, &story, hit, length);
	must_hold(world, second, &story);
	assert_int_equal(kv_commit(world, second, &story, true),
			 (length + T - 1) / T - hit / T - (length == prefix && length % T));
	must_hold(world, second, &story);

	/* The first one's copy is untouched, unused rows included, and both lengths hit. */
	must_hold(world, first, &there);
	if (prefix)
		assert_int_equal(sum_outside(world, first, prefix - 1), outside);
	again = kv_open(world, &story, true);
	assert_int_equal(omnikv_seq_tokens(again), length);
	must_hold(world, again, &story);
	omnikv_seq_close(again);
	again = kv_open(world, &there, true);
	assert_int_equal(omnikv_seq_tokens(again), prefix);
	must_hold(world, again, &story);

	omnikv_seq_close(again);
	omnikv_seq_close(second);
	omnikv_seq_close(first);
	kv_world_check(world);
	kv_story_free(&there);
	kv_story_free(&story);
}

static void every_length_over_every_prefix(void **state)
{
	struct kv_world world;
	uint32_t nr = 0;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 64);
	for (uint32_t i = 0; i < NR_LENGTHS; i++) {
		uint64_t prefixes[] = { 0, 16, 240, 256, 272, lengths[i] - 1, lengths[i] };

		for (uint32_t k = 0; k < 7; k++) {
			bool is_new = true;

			for (uint32_t j = 0; j < k; j++)
				is_new &= prefixes[j] != prefixes[k];
			if (prefixes[k] > lengths[i] || !is_new)
				continue;
			one(&world, lengths[i], prefixes[k], 1000000 * ++nr);
			assert_true(omnikv_manager_reset(world.manager) >= 0);
		}
	}
	/* Nine lengths times seven prefixes, less what is longer than its prompt or comes twice. */
	assert_int_equal(nr, 52);
	kv_world_close(&world);
}

/* Not stored exactly, then not at all: a tail ends with an entry, and says so. */
static void tail_within_an_entry_is_refused(void **state)
{
	struct kv_story story = { 0 };
	struct omnikv_seq *seq;
	struct kv_world world;

	(void)state;
	kv_world_open(&world, KV_SHAPE_MIXED, 16, 64);
	for (uint32_t i = 0; i < 40; i++)
		kv_story_add(&story, i);
	seq = kv_open(&world, &story, true);
	assert_int_equal(omnikv_seq_append(seq, 38), 0);
	kv_store(&world, seq, &story, 0, 38);
	assert_int_equal(kv_commit(&world, seq, &story, true), -EINVAL);
	assert_int_equal(omnikv_seq_cached_tokens(seq), 0);
	assert_int_equal(omnikv_seq_append(seq, 2), 0);
	kv_store(&world, seq, &story, 38, 40);
	assert_int_equal(kv_commit(&world, seq, &story, true), 3);
	omnikv_seq_close(seq);
	seq = kv_open(&world, &story, true);
	assert_int_equal(omnikv_seq_tokens(seq), 40);
	must_hold(&world, seq, &story);
	omnikv_seq_close(seq);
	kv_story_free(&story);
	kv_world_close(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_length_over_every_prefix),
		cmocka_unit_test(tail_within_an_entry_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

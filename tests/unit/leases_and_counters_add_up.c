// SPDX-License-Identifier: GPL-2.0-only
/*
 * Leases end with the handle that took them, whatever the caller did with the hit; each token
 * of a query counts once, as hit or as missed; what has no length is never put and never hit.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "manager/manager.h"
#include "tests/harness/kv_world.h"

#define T	16u

static struct omnikv_manager_stats stats_of(struct kv_world *world)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	assert_int_equal(omnikv_manager_stats(world->manager, &stats), 0);
	return stats;
}

static void put(struct kv_world *world, const struct kv_story *story, uint64_t nr_tokens)
{
	struct kv_story part;
	struct omnikv_seq *seq;
	uint64_t old;

	kv_story_copy(&part, story, nr_tokens);
	seq = kv_open(world, &part, false);
	old = omnikv_seq_tokens(seq);
	assert_int_equal(omnikv_seq_append(seq, nr_tokens - old), 0);
	kv_store(world, seq, &part, old, nr_tokens);
	assert_true(kv_commit(world, seq, &part, true) >= 0);
	omnikv_seq_close(seq);
	kv_story_free(&part);
}

/* Ten thousand lookups of which nothing is needed, then everything must be evictable. */
static void lookups_that_load_nothing_leave_nothing_pinned(void **state)
{
	struct kv_story story = { 0 };
	struct omnikv_match *kept[8];
	struct omnikv_key *keys;
	struct kv_world world;
	struct omnikv_seq *seq;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 80);
	for (uint32_t i = 0; i < 1000; i++)
		kv_story_add(&story, i);
	put(&world, &story, 1000);
	keys = kv_keys(&world, &story, 62);
	for (uint32_t i = 0; i < 10000; i++) {
		struct omnikv_match *match;

		assert_int_equal(omnikv_match(world.space, keys, 62, NULL, &match), 0);
		assert_int_equal(omnikv_match_blocks(match), 62);
		assert_int_equal(omnikv_match_tokens(match), 992);
		assert_int_equal(omnikv_match_tail_tokens(match), 0);
		if (i < 8)
			kept[i] = match;
		else
			omnikv_match_put(match);
	}
	assert_int_equal(stats_of(&world).nr_leased_blocks, 62);
	for (uint32_t i = 0; i < 8; i++)
		omnikv_match_put(kept[i]);
	omnikv_match_put(NULL);
	assert_int_equal(stats_of(&world).nr_leased_blocks, 0);

	/* The whole pool is to be had. */
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_append(seq, 80 * T), 0);
	assert_int_equal(stats_of(&world).nr_blocks, 0);
	assert_int_equal(stats_of(&world).peak_used_bytes, 80 * 4096);
	omnikv_seq_close(seq);
	free(keys);
	kv_story_free(&story);
	kv_world_close(&world);
}

/* A prompt of 1,000 tokens of which 800 are there: 800 hit, 192 missed in whole blocks; again after a retry. */
static void each_token_counts_once(void **state)
{
	struct kv_story story = { 0 };
	struct omnikv_match *match;
	struct omnikv_manager_stats stats, before;
	struct omnikv_key *keys, tail;
	struct kv_world world;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, 8, 200);
	for (uint32_t i = 0; i < 1000; i++)
		kv_story_add(&story, i);
	put(&world, &story, 800);
	keys = kv_keys(&world, &story, 125);

	before = stats_of(&world);
	for (uint32_t i = 1; i <= 2; i++) {
		assert_int_equal(omnikv_match(world.space, keys, 125, NULL, &match), 0);
		omnikv_match_put(match);
		stats = stats_of(&world);
		assert_int_equal(stats.nr_queries - before.nr_queries, i);
		assert_int_equal(stats.tokens_queried - before.tokens_queried, i * 1000);
		assert_int_equal(stats.tokens_hit - before.tokens_hit, i * 800);
		assert_int_equal(stats.blocks_queried - before.blocks_queried, i * 125);
		assert_int_equal(stats.blocks_hit - before.blocks_hit, i * 100);
	}
	/* Only looking counts nothing. */
	assert_int_equal(omnikv_lookup(world.space, keys, 125), 100);
	assert_int_equal(stats_of(&world).nr_queries, stats.nr_queries);

	/* A tail counts with its own tokens, once. */
	put(&world, &story, 805);
	before = stats_of(&world);
	tail = kv_key(&world, &story, 100, 5);
	assert_int_equal(omnikv_match(world.space, keys, 100, &tail, &match), 0);
	assert_int_equal(omnikv_match_blocks(match), 101);
	assert_int_equal(omnikv_match_tokens(match), 805);
	assert_int_equal(omnikv_match_tail_tokens(match), 5);
	omnikv_match_put(match);
	/* Not behind an incomplete hit, and not as a full block. */
	assert_int_equal(omnikv_match(world.space, keys, 101, &tail, &match), 0);
	assert_int_equal(omnikv_match_tokens(match), 800);
	omnikv_match_put(match);
	assert_int_equal(omnikv_match(world.space, keys, 99, &keys[99], &match), 0);
	assert_int_equal(omnikv_match_tokens(match), 792);
	omnikv_match_put(match);
	stats = stats_of(&world);
	assert_int_equal(stats.tokens_queried - before.tokens_queried, 805 + 808 + 792);
	assert_int_equal(stats.tokens_hit - before.tokens_hit, 805 + 800 + 792);
	assert_int_equal(stats.blocks_committed, 101);
	assert_int_equal(stats.cached_bytes, 101 * 4096);
	free(keys);
	kv_story_free(&story);
	kv_world_close(&world);
}

static void nothing_of_no_length_exists(void **state)
{
	struct omnikv_key keys[3], none = { .len = 0 }, long_key = { .len = OMNIKV_KEY_BYTES_MAX + 1 };
	struct omnikv_key dirty = { .bytes = { 1, 2 }, .len = 1 };
	const struct omnikv_key *bad[] = { &none, &long_key, &dirty };
	struct kv_story story = { 0 };
	struct omnikv_match *match;
	struct omnikv_seq *seq, *other;
	struct kv_world world;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 16);
	for (uint32_t i = 0; i < 3 * T + 5; i++)
		kv_story_add(&story, i);
	for (uint32_t i = 0; i < 3; i++)
		keys[i] = kv_key(&world, &story, i, T);
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_append(seq, 3 * T + 5), 0);
	kv_store(&world, seq, &story, 0, 3 * T + 5);

	/* A bad key first, in the middle, last, or as the tail: nothing has happened. */
	for (uint32_t b = 0; b < 3; b++) {
		for (uint32_t at = 0; at < 3; at++) {
			struct omnikv_key list[3] = { keys[0], keys[1], keys[2] };

			list[at] = *bad[b];
			assert_int_equal(omnikv_seq_commit(seq, list, 3, NULL), -EINVAL);
			assert_int_equal(omnikv_match(world.space, list, 3, NULL, &match), -EINVAL);
			assert_int_equal(omnikv_lookup(world.space, list, 3), -EINVAL);
			assert_int_equal(omnikv_seq_open(world.space, list, 3, NULL, &other), -EINVAL);
		}
		assert_int_equal(omnikv_seq_commit(seq, keys, 3, bad[b]), -EINVAL);
		assert_int_equal(omnikv_match(world.space, keys, 3, bad[b], &match), -EINVAL);
		assert_int_equal(omnikv_seq_open(world.space, keys, 3, bad[b], &other), -EINVAL);
	}
	assert_int_equal(omnikv_seq_commit(seq, NULL, 1, NULL), -EINVAL);
	assert_int_equal(omnikv_match(world.space, NULL, 1, NULL, &match), -EINVAL);
	assert_int_equal(omnikv_match(world.space, keys, 3, NULL, NULL), -EINVAL);
	assert_int_equal(omnikv_match(NULL, keys, 3, NULL, &match), -EINVAL);
	assert_int_equal(omnikv_lookup(NULL, keys, 3), -EINVAL);
	assert_int_equal(stats_of(&world).nr_blocks, 0);

	/* No tail of no tokens, none without what is before it, no more blocks than there are. */
	assert_int_equal(omnikv_seq_commit(seq, keys, 2, &keys[2]), -EINVAL);
	assert_int_equal(omnikv_seq_truncate(seq, 3 * T), 0);
	assert_int_equal(omnikv_seq_commit(seq, keys, 3, &keys[0]), -EINVAL);
	assert_int_equal(omnikv_seq_truncate(seq, 2 * T), 0);
	assert_int_equal(omnikv_seq_commit(seq, keys, 3, NULL), -EINVAL);
	assert_int_equal(stats_of(&world).nr_blocks, 0);

	/* Nothing put is nothing, and an empty list hits nothing. */
	assert_int_equal(omnikv_seq_commit(seq, NULL, 0, NULL), 0);
	assert_int_equal(omnikv_match(world.space, NULL, 0, NULL, &match), 0);
	assert_int_equal(omnikv_match_blocks(match), 0);
	omnikv_match_put(match);

	/* One key for two different blocks: the second is refused. */
	assert_int_equal(omnikv_seq_commit(seq, keys, 2, NULL), 2);
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &other), 0);
	assert_int_equal(omnikv_seq_append(other, T), 0);
	assert_int_equal(omnikv_seq_commit(other, &keys[1], 1, NULL), -EINVAL);
	assert_int_equal(omnikv_seq_cached_tokens(other), 0);
	omnikv_seq_close(other);
	omnikv_seq_close(seq);
	omnikv_seq_close(NULL);
	kv_story_free(&story);
	kv_world_close(&world);
}

/* 100,000 blocks under a hash of 16 bits: collisions are counted, and nobody gets another's block. */
static void weak_hash_counts_and_misses(void **state)
{
	struct omnikv_space *space;
	struct omnikv_namespace ns;
	struct omnikv_seq *seq;
	struct kv_world world;
	uint64_t nr_hits = 0;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 4096);
	/* A shelf of its own, so that it gets the weak hash. */
	omnikv_space_close(world.space);
	world.manager->shelves->nr_groups += 100;
	world.manager->hash_bits = 16;
	ns = world.ns;
	ns.epoch = 9;
	assert_int_equal(omnikv_space_open(world.manager, &ns, &world.plan, &space, NULL), 0);
	world.space = space;
	for (uint32_t i = 0; i < 4000; i++) {
		uint64_t bytes = i * 0x9e3779b97f4a7c15ull;
		struct omnikv_key key;

		assert_int_equal(omnikv_key_init(&key, &bytes, 8), 0);
		assert_int_equal(omnikv_seq_open(space, &key, 1, NULL, &seq), 0);
		assert_int_equal(omnikv_seq_tokens(seq), 0);
		assert_int_equal(omnikv_seq_append(seq, T), 0);
		assert_int_equal(omnikv_seq_commit(seq, &key, 1, NULL), 1);
		omnikv_seq_close(seq);
	}
	for (uint32_t i = 0; i < 100000; i++) {
		uint64_t bytes = i * 0x9e3779b97f4a7c15ull;
		struct omnikv_key key;

		assert_int_equal(omnikv_key_init(&key, &bytes, 8), 0);
		nr_hits += omnikv_lookup(space, &key, 1);
	}
	assert_int_equal(nr_hits, 4000);
	assert_true(stats_of(&world).hash_collisions > 0);
	world.manager->shelves->next->nr_groups -= 100;
	kv_world_close(&world);
}

/* Opaque keys need not chain: the same content behind another prefix is another block. */
static void keys_that_do_not_chain_hit_their_own_prefix_alone(void **state)
{
	struct omnikv_key a, b, c, list[2];
	struct omnikv_seq *seq;
	struct kv_world world;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 16);
	assert_int_equal(omnikv_key_init(&a, "a", 1), 0);
	assert_int_equal(omnikv_key_init(&b, "b", 1), 0);
	assert_int_equal(omnikv_key_init(&c, "c", 1), 0);
	list[0] = a;
	list[1] = c;
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_append(seq, 2 * T), 0);
	assert_int_equal(omnikv_seq_commit(seq, list, 2, NULL), 2);
	omnikv_seq_close(seq);
	assert_int_equal(omnikv_lookup(world.space, list, 2), 2);
	list[0] = b;
	assert_int_equal(omnikv_lookup(world.space, list, 2), 0);
	assert_int_equal(omnikv_lookup(world.space, &c, 1), 0);
	kv_world_close(&world);
}

/* 65,535 leases may end at one block; what would need one more is refused and changes nothing. */
static void too_many_leases_on_one_block_are_refused(void **state)
{
	struct omnikv_match **matches = calloc(65536, sizeof(*matches)), *match;
	struct omnikv_seq *fork, *longer, *with_tail, *at_two, *other;
	struct kv_story story = { 0 }, two, tail;
	struct omnikv_key *keys;
	struct kv_world world;
	uint32_t nr;

	(void)state;
	assert_non_null(matches);
	kv_world_open(&world, KV_SHAPE_FULL, T, 32);
	for (uint32_t i = 0; i < 3 * T; i++)
		kv_story_add(&story, i);
	kv_story_copy(&two, &story, 2 * T);
	kv_story_copy(&tail, &story, 2 * T + 5);
	put(&world, &story, 3 * T);
	put(&world, &tail, 2 * T + 5);
	keys = kv_keys(&world, &story, 3);
	longer = kv_open(&world, &story, false);
	with_tail = kv_open(&world, &tail, true);
	at_two = kv_open(&world, &two, false);
	assert_int_equal(omnikv_seq_tokens(with_tail), 2 * T + 5);
	for (nr = 0; nr < 65534; nr++)
		assert_int_equal(omnikv_match(world.space, keys, 2, NULL, &matches[nr]), 0);

	assert_int_equal(omnikv_match(world.space, keys, 2, NULL, &match), -EOVERFLOW);
	assert_int_equal(omnikv_seq_open(world.space, keys, 2, NULL, &other), -EOVERFLOW);
	assert_int_equal(omnikv_seq_fork(at_two, &fork), -EOVERFLOW);
	assert_int_equal(omnikv_seq_truncate(longer, 2 * T), -EOVERFLOW);
	assert_int_equal(omnikv_seq_tokens(longer), 3 * T);
	assert_int_equal(omnikv_seq_append(with_tail, 1), -EOVERFLOW);
	assert_int_equal(omnikv_seq_tokens(with_tail), 2 * T + 5);
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &other), 0);
	assert_int_equal(omnikv_seq_append(other, 2 * T), 0);
	kv_store(&world, other, &story, 0, 2 * T);
	assert_int_equal(omnikv_seq_commit(other, keys, 2, NULL), -EOVERFLOW);
	assert_int_equal(omnikv_seq_cached_tokens(other), T);
	assert_null(kv_compare(&world, other, &story, 0, 2 * T));
	kv_world_check(&world);

	omnikv_match_put(matches[--nr]);
	assert_int_equal(omnikv_seq_commit(other, keys, 2, NULL), 0);
	omnikv_seq_close(other);
	assert_int_equal(omnikv_seq_append(with_tail, 1), 0);
	omnikv_seq_close(with_tail);
	assert_int_equal(omnikv_seq_truncate(longer, 2 * T), 0);
	while (nr)
		omnikv_match_put(matches[--nr]);
	omnikv_seq_close(longer);
	omnikv_seq_close(at_two);
	free(matches);
	free(keys);
	kv_story_free(&story);
	kv_story_free(&two);
	kv_story_free(&tail);
	kv_world_close(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(lookups_that_load_nothing_leave_nothing_pinned),
		cmocka_unit_test(each_token_counts_once),
		cmocka_unit_test(nothing_of_no_length_exists),
		cmocka_unit_test(keys_that_do_not_chain_hit_their_own_prefix_alone),
		cmocka_unit_test(too_many_leases_on_one_block_are_refused),
		cmocka_unit_test(weak_hash_counts_and_misses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

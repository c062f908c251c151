// SPDX-License-Identifier: GPL-2.0-only
/*
 * What each call of the prefix index promises, one case after another, with answers worked out
 * by hand: refusals, runs, partial tails, optional groups, pins, drops, heat.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "manager/index.h"
#include "manager/index_shared.h"

#define T 16u

static struct omnikv_key key_of(uint32_t n)
{
	struct omnikv_key key = { .len = 16 };

	memcpy(key.bytes, &n, sizeof(n));
	return key;
}

static struct okv_index *index_new(uint32_t nr_groups, uint32_t optional_groups)
{
	struct okv_index_config config = { .nr_groups = nr_groups, .optional_groups = optional_groups,
		.block_tokens = T, .seed = "index_keeps_paths" };
	struct okv_index *ix;

	assert_int_equal(okv_index_create(&config, &ix), 0);
	return ix;
}

static void index_done(struct okv_index *ix)
{
	const char *reason = "";

	if (okv_index_check(ix, &reason))
		fail_msg("%s", reason);
	okv_index_destroy(ix);
}

/* One group, granule @at of length 2, generation and sum from the key. */
static int add(struct okv_index *ix, uint32_t parent, uint32_t position, uint32_t key_nr, uint32_t nr_tokens,
	       uint64_t at, uint32_t *id)
{
	struct omnikv_key key = key_of(key_nr);
	struct omnikv_extent extent = { .granule = at, .generation = key_nr, .nr_granules = 2 };
	uint32_t crc = key_nr * 3;
	struct okv_index_block block = { .ns = 7, .parent = parent, .position = position, .nr_tokens = nr_tokens,
		.key = &key, .extents = &extent, .crc32c = &crc };

	return okv_index_insert(ix, &block, id);
}

/* Keys 100, 101, ... one behind the other. */
static void add_path(struct okv_index *ix, uint32_t nr, uint32_t *ids)
{
	uint32_t i;

	for (i = 0; i < nr; i++)
		assert_int_equal(add(ix, i ? ids[i - 1] : OKV_ENTRY_NONE, i, 100 + i, T, 2 * i, &ids[i]), 0);
}

static uint64_t hits(struct okv_index *ix, uint32_t ns, uint32_t first_key, size_t nr, uint32_t *entry)
{
	struct omnikv_key keys[64];
	struct okv_index_hit hit;
	size_t i;

	for (i = 0; i < nr; i++)
		keys[i] = key_of(first_key + (uint32_t)i);
	okv_index_match(ix, ns, keys, nr, 0, &hit);
	if (entry)
		*entry = hit.entry;
	return hit.nr_blocks;
}

static void config_is_checked(void **state)
{
	static const struct {
		uint32_t	nr_groups, optional_groups, block_tokens, hash_bits;
		uint64_t	hint;
		int		ret;
	} cases[] = {
		{ 0, 0, 16, 0, 0, -EINVAL },
		{ 33, 0, 16, 0, 0, -EINVAL },
		{ 1, 2, 16, 0, 0, -EINVAL },
		{ 1, 0, 0, 0, 0, -EINVAL },
		{ 1, 0, 65536, 0, 0, -EINVAL },
		{ 1, 0, 16, 33, 0, -EINVAL },
		{ 1, 0, 16, 0, 1ull << 32, -EINVAL },
		{ 1, 1, 65535, 32, 100, 0 },
		{ 32, ~0u, 1, 1, 0, 0 },
	};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct okv_index_config config = { .nr_groups = cases[i].nr_groups,
			.optional_groups = cases[i].optional_groups, .block_tokens = cases[i].block_tokens,
			.hash_bits = cases[i].hash_bits, .nr_entries_hint = cases[i].hint };
		struct okv_index *ix = (void *)1;

		assert_int_equal(okv_index_create(&config, &ix), cases[i].ret);
		if (cases[i].ret)
			assert_ptr_equal(ix, (void *)1);
		else
			index_done(ix);
	}
	okv_index_destroy(NULL);
}

static void insert_refuses(void **state)
{
	struct okv_index *ix = index_new(1, 0);
	struct omnikv_key key = key_of(500);
	struct omnikv_extent extent = { .granule = 4, .nr_granules = 1 };
	uint32_t crc = 0, ids[3], id = 99, tail;
	struct okv_index_block good = { .ns = 7, .parent = OKV_ENTRY_NONE, .position = 0, .nr_tokens = T,
		.key = &key, .extents = &extent, .crc32c = &crc };
	struct okv_index_block bad;

	(void)state;
	add_path(ix, 3, ids);
	assert_int_equal(add(ix, ids[2], 3, 400, 5, 50, &tail), 0);

	bad = good;
	bad.ns = OKV_INDEX_NS_MAX;
	assert_int_equal(okv_index_insert(ix, &bad, &id), -EINVAL);
	bad = good;
	bad.nr_tokens = 0;
	assert_int_equal(okv_index_insert(ix, &bad, &id), -EINVAL);
	bad.nr_tokens = T + 1;
	assert_int_equal(okv_index_insert(ix, &bad, &id), -EINVAL);
	bad = good;
	bad.position = 1;
	assert_int_equal(okv_index_insert(ix, &bad, &id), -EINVAL);
	bad.parent = ids[1];
	assert_int_equal(okv_index_insert(ix, &bad, &id), -EINVAL);	/* would be 2 */
	bad.position = 2;
	bad.ns = 8;
	assert_int_equal(okv_index_insert(ix, &bad, &id), -EINVAL);	/* another namespace's parent */
	bad = good;
	bad.parent = tail;
	bad.position = 4;
	assert_int_equal(okv_index_insert(ix, &bad, &id), -EINVAL);	/* nothing behind a tail */
	bad.parent = 12345;
	assert_int_equal(okv_index_insert(ix, &bad, &id), -ESTALE);
	extent.nr_granules = 0;
	assert_int_equal(okv_index_insert(ix, &good, &id), -EINVAL);
	extent.nr_granules = 1;
	extent.granule = OKV_INDEX_GRANULES_MAX;
	assert_int_equal(okv_index_insert(ix, &good, &id), -EINVAL);
	extent.granule = 4;
	key.len = 0;
	assert_int_equal(okv_index_insert(ix, &good, &id), -EINVAL);
	key.len = 33;
	assert_int_equal(okv_index_insert(ix, &good, &id), -EINVAL);
	key.len = 16;
	key.bytes[16] = 1;
	assert_int_equal(okv_index_insert(ix, &good, &id), -EINVAL);	/* not zero behind its length */
	assert_int_equal(id, 99);

	/* The same key again: the entry that is there. Elsewhere: these keys do not chain. */
	assert_int_equal(add(ix, ids[0], 1, 101, T, 0, &id), -EEXIST);
	assert_int_equal(id, ids[1]);
	id = 99;
	assert_int_equal(add(ix, ids[1], 2, 101, T, 0, &id), -EINVAL);
	assert_int_equal(add(ix, OKV_ENTRY_NONE, 0, 101, T, 0, &id), -EINVAL);
	assert_int_equal(add(ix, ids[0], 1, 101, 3, 0, &id), -EINVAL);
	assert_int_equal(id, 99);
	/* The same key in another namespace is another block. */
	good.ns = 8;
	key = key_of(100);
	assert_int_equal(okv_index_insert(ix, &good, &id), 0);
	assert_int_not_equal(id, ids[0]);
	assert_int_equal(hits(ix, 8, 100, 3, NULL), 1);
	assert_int_equal(hits(ix, 7, 100, 4, NULL), 3);
	assert_int_equal(hits(ix, 6, 100, 3, NULL), 0);
	index_done(ix);
}

/* A length is part of a key: the same bytes, one shorter by a zero, differ. */
static void key_length_counts(void **state)
{
	struct okv_index *ix = index_new(1, 0);
	struct omnikv_key key = key_of(100);
	uint32_t id;

	(void)state;
	assert_int_equal(add(ix, OKV_ENTRY_NONE, 0, 100, T, 0, &id), 0);
	assert_int_equal(okv_index_find(ix, 7, &key), id);
	key.len = 15;
	assert_int_equal(okv_index_find(ix, 7, &key), OKV_ENTRY_NONE);
	index_done(ix);
}

static void hit_is_the_longest_prefix(void **state)
{
	struct okv_index *ix = index_new(1, 0);
	uint32_t ids[50], entry, n;

	(void)state;
	assert_int_equal(hits(ix, 7, 100, 5, &entry), 0);
	assert_int_equal(entry, OKV_ENTRY_NONE);
	add_path(ix, 50, ids);
	for (n = 0; n <= 60; n++) {
		assert_int_equal(hits(ix, 7, 100, n, &entry), n < 50 ? n : 50);
		assert_int_equal(entry, n == 0 ? OKV_ENTRY_NONE : ids[(n < 50 ? n : 50) - 1]);
	}
	/* Keys that are there, but not from position 0. */
	assert_int_equal(hits(ix, 7, 101, 10, NULL), 0);
	index_done(ix);
}

/*
 * Extents of two granules: blocks 0-2 at 10, 12, 14; block 3 at 40; blocks 4-5 at 42, 44; block 6
 * before them, at 38.
 */
static void runs_follow_the_extents(void **state)
{
	static const uint64_t at[] = { 10, 12, 14, 40, 42, 44, 38 };
	struct okv_index *ix = index_new(1, 0);
	struct okv_index_run runs[8];
	uint32_t ids[7], blocks[7], i, crc;
	struct omnikv_extent extent;

	(void)state;
	for (i = 0; i < 7; i++)
		assert_int_equal(add(ix, i ? ids[i - 1] : OKV_ENTRY_NONE, i, 100 + i, T, at[i], &ids[i]), 0);
	assert_int_equal(okv_index_runs(ix, ids[6], 0, 0, runs, 8), 3);
	assert_int_equal(runs[0].position, 0);
	assert_int_equal(runs[0].nr_blocks, 3);
	assert_int_equal(runs[0].granule, 10);
	assert_int_equal(runs[0].nr_granules, 2);
	assert_int_equal(runs[0].entry, ids[2]);
	assert_int_equal(runs[1].position, 3);
	assert_int_equal(runs[1].nr_blocks, 3);
	assert_int_equal(runs[1].granule, 40);
	assert_int_equal(runs[2].position, 6);
	assert_int_equal(runs[2].nr_blocks, 1);
	assert_int_equal(runs[2].granule, 38);
	assert_int_equal(okv_index_runs(ix, ids[6], 0, 0, runs, 2), -ENOSPC);
	/* From the middle of a run to the middle of another. */
	assert_int_equal(okv_index_runs(ix, ids[4], 0, 1, runs, 8), 2);
	assert_int_equal(runs[0].position, 1);
	assert_int_equal(runs[0].nr_blocks, 2);
	assert_int_equal(runs[0].granule, 12);
	assert_int_equal(runs[1].position, 3);
	assert_int_equal(runs[1].nr_blocks, 2);
	assert_int_equal(okv_index_runs(ix, ids[4], 0, 5, runs, 8), 0);

	okv_index_blocks(ix, ids[6], 2, blocks);
	assert_memory_equal(blocks, ids + 2, 5 * sizeof(*ids));
	okv_index_extent(ix, ids[3], 0, &extent, &crc);
	assert_int_equal(extent.granule, 40);
	assert_int_equal(extent.generation, 103);
	assert_int_equal(extent.nr_granules, 2);
	assert_int_equal(crc, 309);
	index_done(ix);
}

static void tails_are_leaves_of_their_own(void **state)
{
	struct okv_index *ix = index_new(1, 0);
	struct okv_index_tail tails[4];
	struct omnikv_extent extents[2];
	struct okv_index_info info;
	uint32_t ids[3], t5, t9, first, other;
	struct omnikv_key key;

	(void)state;
	assert_int_equal(okv_index_tails(ix, 7, OKV_ENTRY_NONE, tails, 4), 0);
	add_path(ix, 3, ids);
	assert_int_equal(add(ix, ids[2], 3, 405, 5, 50, &t5), 0);
	assert_int_equal(add(ix, ids[2], 3, 409, 9, 52, &t9), 0);
	assert_int_equal(add(ix, OKV_ENTRY_NONE, 0, 300, 1, 54, &first), 0);
	assert_int_equal(okv_index_tails(ix, 7, ids[2], tails, 4), 2);
	assert_int_equal(tails[0].entry, t9);
	assert_int_equal(tails[0].nr_tokens, 9);
	assert_int_equal(tails[1].entry, t5);
	assert_int_equal(tails[1].nr_tokens, 5);
	assert_int_equal(okv_index_tails(ix, 7, ids[2], tails, 0), 2);
	assert_int_equal(okv_index_tails(ix, 7, ids[1], tails, 4), 0);
	assert_int_equal(okv_index_tails(ix, 7, t5, tails, 4), 0);
	assert_int_equal(okv_index_tails(ix, 7, OKV_ENTRY_NONE, tails, 4), 1);
	assert_int_equal(tails[0].entry, first);
	assert_int_equal(okv_index_tails(ix, 6, OKV_ENTRY_NONE, tails, 4), 0);
	assert_int_equal(okv_index_tails(ix, 70000, OKV_ENTRY_NONE, tails, 4), 0);

	/* Its key finds it, but it is no full block of a prefix. */
	key = key_of(405);
	assert_int_equal(okv_index_find(ix, 7, &key), t5);
	assert_int_equal(hits(ix, 7, 300, 1, NULL), 0);
	assert_int_equal(okv_index_get(ix, t5, &info), 0);
	assert_true(info.is_partial);
	assert_int_equal(info.nr_tokens, 5);
	assert_int_equal(info.nr_children, 0);
	assert_int_equal(okv_index_get(ix, ids[2], &info), 0);
	assert_int_equal(info.nr_children, 2);

	/* A path behind the tails' block, then the tails in another order than they came. */
	assert_int_equal(add(ix, ids[2], 3, 103, T, 60, &other), 0);
	assert_int_equal(okv_index_remove(ix, ids[2], extents), -EBUSY);
	assert_int_equal(okv_index_remove(ix, t5, extents), 0);
	assert_int_equal(extents[0].granule, 50);
	assert_int_equal(okv_index_remove(ix, t9, extents), 0);
	assert_int_equal(okv_index_tails(ix, 7, ids[2], tails, 4), 0);
	assert_int_equal(okv_index_remove(ix, first, extents), 0);
	assert_int_equal(okv_index_remove(ix, first, extents), -ESTALE);
	assert_int_equal(okv_index_tails(ix, 7, OKV_ENTRY_NONE, tails, 4), 0);
	assert_int_equal(okv_index_get(ix, first, &info), -ESTALE);
	index_done(ix);
}

static int add2(struct okv_index *ix, uint32_t parent, uint32_t position, bool with_state, uint32_t *id)
{
	struct omnikv_key key = key_of(100 + position);
	struct omnikv_extent extents[2] = {
		{ .granule = 2 * position, .generation = 1, .nr_granules = 2 },
		{ .granule = 1000 + position, .generation = 1, .nr_granules = with_state ? 1 : 0 },
	};
	uint32_t crc[2] = { 1, 2 };
	struct okv_index_block block = { .ns = 0, .parent = parent, .position = position, .nr_tokens = T,
		.key = &key, .extents = extents, .crc32c = crc };

	return okv_index_insert(ix, &block, id);
}

/* A state group has a checkpoint in blocks 3 and 7 of 10. */
static void hit_ends_where_the_state_is(void **state)
{
	struct okv_index *ix = index_new(2, 2);
	struct omnikv_extent extent = { .granule = 1008, .generation = 9, .nr_granules = 1 };
	struct okv_index_run runs[4];
	struct okv_index_hit hit;
	uint32_t ids[10], i;

	(void)state;
	for (i = 0; i < 10; i++)
		assert_int_equal(add2(ix, i ? ids[i - 1] : OKV_ENTRY_NONE, i, i == 3 || i == 7, &ids[i]), 0);
	hit = (struct okv_index_hit){ .nr_blocks = 10, .entry = ids[9] };
	okv_index_usable(ix, 1, &hit);
	assert_int_equal(hit.nr_blocks, 10);
	okv_index_usable(ix, 2, &hit);
	assert_int_equal(hit.nr_blocks, 8);
	assert_int_equal(hit.entry, ids[7]);
	hit = (struct okv_index_hit){ .nr_blocks = 7, .entry = ids[6] };
	okv_index_usable(ix, 3, &hit);
	assert_int_equal(hit.nr_blocks, 4);
	hit = (struct okv_index_hit){ .nr_blocks = 3, .entry = ids[2] };
	okv_index_usable(ix, 3, &hit);
	assert_int_equal(hit.nr_blocks, 0);
	assert_int_equal(hit.entry, OKV_ENTRY_NONE);
	assert_int_equal(okv_index_runs(ix, ids[9], 1, 0, runs, 4), 2);
	assert_int_equal(runs[0].position, 3);
	assert_int_equal(runs[1].position, 7);

	/* A checkpoint that comes later counts at once, and joins the run before it. */
	assert_int_equal(okv_index_attach(ix, ids[8], 2, &extent, 5), -EINVAL);
	assert_int_equal(okv_index_attach(ix, ids[7], 1, &extent, 5), -EEXIST);
	assert_int_equal(okv_index_attach(ix, 12345, 1, &extent, 5), -ESTALE);
	assert_int_equal(okv_index_attach(ix, ids[8], 1, &extent, 5), 0);
	hit = (struct okv_index_hit){ .nr_blocks = 10, .entry = ids[9] };
	okv_index_usable(ix, 2, &hit);
	assert_int_equal(hit.nr_blocks, 9);
	assert_int_equal(okv_index_runs(ix, ids[9], 1, 0, runs, 4), 2);
	assert_int_equal(runs[1].position, 7);
	assert_int_equal(runs[1].nr_blocks, 2);
	extent.nr_granules = 0;
	assert_int_equal(okv_index_attach(ix, ids[9], 1, &extent, 5), -EINVAL);
	index_done(ix);
}

/*
 * Paths A = 0..4 and B, which leaves A behind block 2. Uses: A, then B, then A's block 3. So B's
 * own blocks leave first, then A's 4, 3 and so on to the root.
 */
static void oldest_path_leaves_first_deepest_first(void **state)
{
	static const uint32_t order[] = { 201, 200, 104, 103, 102, 101, 100 };
	struct okv_index *ix = index_new(1, 0);
	struct okv_index_victim victims[10];
	struct omnikv_extent extents[10];
	uint32_t ids[5], b[2], i;

	(void)state;
	add_path(ix, 5, ids);
	assert_int_equal(add(ix, ids[2], 3, 200, T, 80, &b[0]), 0);
	assert_int_equal(add(ix, b[0], 4, 201, T, 82, &b[1]), 0);
	okv_index_touch(ix, ids[4]);
	okv_index_touch(ix, b[1]);
	okv_index_touch(ix, ids[3]);
	/* Block 4 itself was last used before B. */
	assert_int_equal(okv_index_evict(ix, 1, extents, victims), 1);
	assert_int_equal(extents[0].generation, 104);
	assert_int_equal(add(ix, ids[3], 4, 104, T, 8, &ids[4]), 0);
	assert_int_equal(okv_index_evict(ix, 10, extents, victims), 7);
	for (i = 0; i < 7; i++) {
		struct omnikv_key key = key_of(order[i]);

		assert_int_equal(extents[i].generation, order[i]);
		assert_memory_equal(&victims[i].key, &key, sizeof(key));
	}
	assert_int_equal(victims[6].ns, 7);
	assert_int_equal(victims[6].position, 0);
	assert_int_equal(victims[6].nr_tokens, T);
	/* Touches of a block and of all behind it: the root saw three. */
	assert_int_equal(victims[6].heat, 3);
	assert_int_equal(okv_index_evict(ix, 10, extents, NULL), 0);
	index_done(ix);
}

static void pins_keep_a_path(void **state)
{
	struct okv_index *ix = index_new(1, 0);
	struct omnikv_extent extents[10];
	struct okv_index_stats stats;
	uint32_t ids[5], other, i;

	(void)state;
	add_path(ix, 5, ids);
	assert_int_equal(add(ix, OKV_ENTRY_NONE, 0, 300, T, 90, &other), 0);
	assert_int_equal(okv_index_pin(ix, ids[2]), 0);
	assert_int_equal(okv_index_pin(ix, ids[2]), 0);
	assert_int_equal(okv_index_pin(ix, 12345), -ESTALE);
	assert_int_equal(okv_index_evict(ix, 10, extents, NULL), 3);
	assert_int_equal(extents[0].generation, 104);
	assert_int_equal(extents[1].generation, 103);
	assert_int_equal(extents[2].generation, 300);
	assert_int_equal(okv_index_remove(ix, ids[2], extents), -EBUSY);
	okv_index_unpin(ix, ids[2]);
	assert_int_equal(okv_index_evict(ix, 10, extents, NULL), 0);
	okv_index_unpin(ix, ids[2]);
	/* Back in its place: older than what came meanwhile. */
	assert_int_equal(add(ix, OKV_ENTRY_NONE, 0, 301, T, 92, &other), 0);
	assert_int_equal(okv_index_evict(ix, 1, extents, NULL), 1);
	assert_int_equal(extents[0].generation, 102);
	okv_index_stats(ix, &stats);
	assert_int_equal(stats.nr_pins, 0);
	assert_int_equal(stats.nr_entries, 3);

	for (i = 0; i < 65535; i++)
		assert_int_equal(okv_index_pin(ix, other), 0);
	assert_int_equal(okv_index_pin(ix, other), -EOVERFLOW);
	for (i = 0; i < 65535; i++)
		okv_index_unpin(ix, other);
	assert_int_equal(okv_index_evict(ix, 10, extents, NULL), 3);
	index_done(ix);
}

static void dropped_blocks_are_not_hit(void **state)
{
	struct okv_index *ix = index_new(1, 0);
	struct omnikv_extent extents[10];
	struct okv_index_stats stats;
	struct okv_index_tail tails[2];
	struct okv_index_info info;
	uint32_t ids[6], tail, id, again;

	(void)state;
	add_path(ix, 6, ids);
	assert_int_equal(add(ix, ids[3], 4, 400, 3, 60, &tail), 0);
	assert_int_equal(okv_index_pin(ix, ids[4]), 0);
	assert_int_equal(okv_index_drop(ix, ids[3]), 4);	/* 3, 4, 5 and the tail */
	assert_int_equal(okv_index_drop(ix, ids[3]), -ESTALE);
	assert_int_equal(okv_index_drop(ix, ids[4]), -ESTALE);
	assert_int_equal(okv_index_drop(ix, 12345), -ESTALE);
	assert_int_equal(hits(ix, 7, 100, 6, NULL), 3);
	assert_int_equal(okv_index_tails(ix, 7, ids[3], tails, 2), 0);
	assert_int_equal(add(ix, ids[4], 5, 900, T, 70, &id), -ESTALE);
	assert_int_equal(okv_index_get(ix, ids[4], &info), 0);
	assert_true(info.is_dropped);
	/* The key may come again, with better bytes, while a reader still holds the old block. */
	assert_int_equal(add(ix, ids[2], 3, 103, T, 62, &again), 0);
	assert_int_equal(hits(ix, 7, 100, 6, NULL), 4);
	okv_index_stats(ix, &stats);
	assert_int_equal(stats.nr_dropped, 4);
	assert_int_equal(stats.nr_entries, 8);
	/* Dropped ones leave first, the pinned one and what it stands on after the reader is done. */
	okv_index_touch(ix, ids[4]);
	assert_int_equal(okv_index_evict(ix, 2, extents, NULL), 2);
	assert_true((extents[0].generation == 105 && extents[1].generation == 400) ||
		    (extents[0].generation == 400 && extents[1].generation == 105));
	assert_int_equal(okv_index_evict(ix, 1, extents, NULL), 1);
	assert_int_equal(extents[0].granule, 62);
	okv_index_unpin(ix, ids[4]);
	assert_int_equal(okv_index_evict(ix, 10, extents, NULL), 5);
	assert_int_equal(extents[0].generation, 104);
	assert_int_equal(extents[1].generation, 103);
	assert_int_equal(extents[2].generation, 102);
	index_done(ix);
}

static void heat_counts_uses_of_blocks(void **state)
{
	struct okv_index *ix = index_new(1, 0);
	struct omnikv_extent extents[2];
	uint32_t ids[4], i;
	uint64_t heat[4];

	(void)state;
	add_path(ix, 4, ids);
	assert_int_equal(okv_index_nr_ids(ix), 4);
	okv_index_touch(ix, ids[3]);
	okv_index_touch(ix, ids[3]);
	okv_index_touch(ix, ids[1]);
	okv_index_heat(ix, heat);
	for (i = 0; i < 4; i++)
		assert_int_equal(heat[ids[i]], i < 2 ? 3 : 2);
	/* What was used stays counted where it remains. */
	assert_int_equal(okv_index_remove(ix, ids[3], extents), 0);
	okv_index_heat(ix, heat);
	assert_int_equal(heat[ids[3]], 0);
	for (i = 0; i < 3; i++)
		assert_int_equal(heat[ids[i]], i < 2 ? 3 : 2);
	index_done(ix);
}

static void path_stops_at_the_first_refusal(void **state)
{
	struct okv_index *ix = index_new(1, 0);
	struct omnikv_extent extents[4] = { { 0, 1, 2 }, { 2, 1, 2 }, { 4, 1, 0 }, { 6, 1, 2 } };
	struct omnikv_key keys[4] = { key_of(1), key_of(2), key_of(3), key_of(4) };
	struct okv_index_block block = { .ns = 0, .parent = OKV_ENTRY_NONE, .key = keys, .extents = extents,
		.crc32c = (uint32_t[4]){ 0 } };
	size_t nr_done = 77;

	(void)state;
	assert_int_equal(okv_index_insert_path(ix, &block, 4, &nr_done, NULL, NULL), -EINVAL);
	assert_int_equal(nr_done, 2);
	extents[2].nr_granules = 2;
	assert_int_equal(okv_index_insert_path(ix, &block, 4, &nr_done, NULL, NULL), 0);
	assert_int_equal(nr_done, 4);
	index_done(ix);
}

/* Memory of a pool that is full: each allocation takes room from the index that asks. */
struct full_pool {
	struct okv_index	*ix;		/* NULL: there is room */
	unsigned char		*base;
	size_t			used;
	uint32_t		nr_evicted;
};

static void *evicting_alloc(void *opaque, size_t bytes)
{
	struct full_pool *pool = opaque;
	struct omnikv_extent extent;
	void *mem = pool->base + pool->used;

	if (pool->ix)
		pool->nr_evicted += (uint32_t)okv_index_evict(pool->ix, 1, &extent, NULL);
	pool->used += (bytes + 63) & ~(size_t)63;
	assert_true(pool->used <= 1 << 20);
	return mem;
}

static void keep_mem(void *opaque, void *mem, size_t bytes)
{
	(void)opaque;
	(void)mem;
	(void)bytes;
}

static void *claim_nothing(void *opaque, uint64_t off, size_t bytes)
{
	(void)opaque;
	(void)off;
	(void)bytes;
	return NULL;
}

/* Whatever is evicted while room is made stays gone. */
static void growth_may_evict_from_the_index(void **state)
{
	struct full_pool pool = { .base = aligned_alloc(64, 1 << 20), .used = 64 };
	struct okv_index_allocator mem = { .alloc = evicting_alloc, .free = keep_mem, .opaque = &pool, .base = pool.base,
					   .claim = claim_nothing };
	struct okv_index_config config = { .nr_groups = 1, .block_tokens = T, .seed = "growth", .allocator = &mem };
	const char *reason = "";
	uint32_t ids[32], nr_live = 0, i;
	struct okv_index_info info;
	struct okv_index *ix;

	(void)state;
	assert_non_null(pool.base);
	assert_int_equal(okv_index_create(&config, &ix), 0);
	assert_int_equal(okv_index_reserve(ix, 32), 0);
	add_path(ix, 32, ids);
	pool.ix = ix;
	assert_int_equal(okv_index_reserve(ix, 64), 0);
	pool.ix = NULL;
	assert_true(pool.nr_evicted > 1);
	for (i = 0; i < 32; i++)
		nr_live += okv_index_get(ix, ids[i], &info) == 0;
	assert_int_equal(nr_live, 32 - pool.nr_evicted);
	assert_int_equal(hits(ix, 7, 100, 32, NULL), 32 - pool.nr_evicted);
	if (okv_index_check(ix, &reason))
		fail_msg("%s", reason);
	okv_index_destroy(ix);
	free(pool.base);
}

static struct okv_entry *shared_entry(const struct full_pool *pool, const struct okv_index *ix, uint32_t id)
{
	const struct okv_index_head *head = (const void *)(pool->base + okv_index_off(ix));
	const struct okv_index_dir *dir = (const void *)(pool->base + head->dir_off);

	return (struct okv_entry *)(pool->base + dir->chunks[0].entries_off) + id;
}

/* Others may write to a pool's memory: ids there lead nowhere, or round in a circle. */
static void overwritten_ids_end_a_walk(void **state)
{
	struct full_pool pool = { .base = aligned_alloc(64, 1 << 20), .used = 64 };
	struct okv_index_allocator mem = { .alloc = evicting_alloc, .free = keep_mem, .opaque = &pool, .base = pool.base,
					   .claim = claim_nothing };
	struct okv_index_config config = { .nr_groups = 2, .optional_groups = 2, .block_tokens = T, .seed = "overwritten",
					   .allocator = &mem };
	struct omnikv_extent extents[2] = { { 0, 1, 2 } }, out[2];
	struct okv_index_block block = { .ns = 7, .parent = OKV_ENTRY_NONE, .nr_tokens = T, .extents = extents,
					 .crc32c = (uint32_t[2]){ 0 } };
	struct okv_index_head *head;
	struct okv_bucket *buckets;
	struct okv_index_hit hit;
	struct omnikv_key key;
	uint32_t ids[6], i, k;
	struct okv_index *ix;

	(void)state;
	assert_non_null(pool.base);
	assert_int_equal(okv_index_create(&config, &ix), 0);
	assert_int_equal(okv_index_reserve(ix, 32), 0);
	for (i = 0; i < 6; i++) {
		key = key_of(100 + i);
		block.key = &key;
		block.position = i;
		assert_int_equal(okv_index_insert(ix, &block, &ids[i]), 0);
		block.parent = ids[i];
	}

	/* The free list leads out of the index. */
	assert_int_equal(okv_index_remove(ix, ids[5], out), 0);
	shared_entry(&pool, ix, ids[5])->parent = 0x7fffff00;
	block.parent = OKV_ENTRY_NONE;
	block.position = 0;
	for (i = 0; i < 2; i++) {
		key = key_of(200 + i);
		assert_int_equal(okv_index_insert(ix, &block, &ids[5]), 0);
	}

	/* A block is its own parent. */
	shared_entry(&pool, ix, ids[4])->parent = ids[4];
	hit = (struct okv_index_hit){ .nr_blocks = 5, .entry = ids[4] };
	alarm(20);
	okv_index_usable(ix, 2, &hit);
	assert_int_equal(hit.nr_blocks, 0);
	assert_int_equal(hit.entry, OKV_ENTRY_NONE);
	assert_true(okv_index_drop(ix, ids[2]) > 0);
	alarm(0);

	/* So does the path, and every slot of the table. */
	shared_entry(&pool, ix, ids[1])->parent = 0x7fffff00;
	assert_int_equal(hits(ix, 7, 100, 2, NULL), 1);
	head = (struct okv_index_head *)(pool.base + okv_index_off(ix));
	buckets = (struct okv_bucket *)(pool.base + head->tab.off);
	for (i = 0; i < 1u << head->tab.log2_buckets; i++)
		for (k = 0; k < OKV_BUCKET_SLOTS; k++)
			if (buckets[i].ids[k])
				buckets[i].ids[k] = 0x7fffff00;
	key = key_of(100);
	assert_int_equal(okv_index_find(ix, 7, &key), OKV_ENTRY_NONE);
	okv_index_leave(ix);
	free(pool.base);
}

/* A word that ids, counts and links could be. */
static uint32_t scribble(uint32_t *seed)
{
	uint32_t word;

	*seed = *seed * 1664525u + 1013904223u;
	word = *seed >> 8;
	switch (word & 7) {
	case 0:
		return UINT32_MAX;
	case 1:
		return *seed;
	case 2:
		return 0;
	default:
		return word >> 3 & 63;
	}
}

/* Words of the index, anywhere but in its head: what another process of the pool can write at any time. */
static void overwrite(const struct full_pool *pool, const struct okv_index *ix, uint32_t nr, uint32_t *seed)
{
	size_t from = okv_index_off(ix) + sizeof(struct okv_index_head), to = pool->used;

	for (uint32_t i = 0; i < nr; i++) {
		uint32_t word = scribble(seed);
		size_t at = from + (((uint64_t)scribble(seed) << 20 ^ (*seed >> 4)) % (to - from)) / 4 * 4;

		memcpy(pool->base + at, &word, sizeof(word));
	}
}

/* Every operation of the writer once more. Answers may be wrong; they come, and from within the index. */
static void use_everything(struct okv_index *ix, uint32_t round)
{
	struct omnikv_extent extents[2] = { { 8 * round, 1, 2 } }, out[8 * 2], extent;
	struct okv_index_victim victims[8];
	struct okv_index_run runs[64];
	struct okv_index_tail tails[4];
	struct okv_index_block block = { .ns = 7, .parent = OKV_ENTRY_NONE, .nr_tokens = T, .extents = extents,
					 .crc32c = (uint32_t[2]){ 0 } };
	struct okv_index_info info;
	struct okv_index_stats stats;
	struct omnikv_key keys[8];
	struct okv_index_hit hit;
	uint64_t heat[128];
	uint32_t id, crc;

	for (uint32_t i = 0; i < 8; i++)
		keys[i] = key_of(100 + (round % 3) * 10 + i);
	okv_index_match(ix, 7, keys, 8, round & 1 ? OKV_INDEX_MATCH_F_CHAINED : 0, &hit);
	if (hit.nr_blocks) {
		okv_index_hit_runs(ix, &hit, 0, 0, runs, 64);
		okv_index_runs(ix, hit.entry, 1, 0, runs, 64);
		okv_index_touch(ix, hit.entry);
		okv_index_extent(ix, hit.entry, 0, &extent, &crc);
		if (!okv_index_pin(ix, hit.entry)) {
			okv_index_evict(ix, 2, out, victims);
			okv_index_unpin(ix, hit.entry);
		}
		okv_index_attach(ix, hit.entry, 1, &(struct omnikv_extent){ 8 * round + 2, 1, 2 }, 1);
		block.parent = hit.entry;
		block.position = (uint32_t)hit.nr_blocks;
		okv_index_usable(ix, 2, &hit);
	}
	for (uint32_t i = 0; i < 4; i++) {
		keys[0] = key_of(1000 + 4 * round + i);
		block.key = keys;
		block.nr_tokens = i & 1 ? T / 2 : T;
		if (!okv_index_insert(ix, &block, &id) && !okv_index_get(ix, id, &info))
			assert_true(info.parent == OKV_ENTRY_NONE || info.parent < okv_index_nr_ids(ix));
	}
	okv_index_tails(ix, 7, block.parent, tails, 4);
	okv_index_tails(ix, 7, OKV_ENTRY_NONE, tails, 4);
	id = round % okv_index_nr_ids(ix);
	okv_index_remove(ix, id, out);
	if (round % 5 == 0)
		okv_index_drop(ix, (id + 3) % okv_index_nr_ids(ix));
	if (okv_index_nr_ids(ix) <= 128)
		okv_index_heat(ix, heat);
	okv_index_evict(ix, 8, out, victims);
	okv_index_stats(ix, &stats);
}

/* One that scribbles over a pool's index spoils the cache, and not the process of the manager. */
static void overwritten_index_ends_no_writer(void **state)
{
	struct omnikv_extent extents[2] = { { 0, 1, 2 } };
	struct okv_index_config config = { .nr_groups = 2, .optional_groups = 2, .block_tokens = T, .seed = "scribbled" };
	uint32_t seed = 1, id;

	(void)state;
	alarm(100);
	for (uint32_t world = 0; world < 400; world++) {
		struct full_pool pool = { .base = aligned_alloc(64, 1 << 20), .used = 64 };
		struct okv_index_allocator mem = { .alloc = evicting_alloc, .free = keep_mem, .opaque = &pool,
						   .base = pool.base, .claim = claim_nothing };
		struct okv_index *ix;

		assert_non_null(pool.base);
		config.allocator = &mem;
		assert_int_equal(okv_index_create(&config, &ix), 0);
		assert_int_equal(okv_index_reserve(ix, 96), 0);
		for (uint32_t path = 0; path < 3; path++) {
			struct okv_index_block block = { .ns = 7, .parent = OKV_ENTRY_NONE, .nr_tokens = T, .extents = extents,
							 .crc32c = (uint32_t[2]){ 0 } };

			for (uint32_t i = 0; i < 8; i++) {
				struct omnikv_key key = key_of(100 + path * 10 + i);

				extents[0].granule += 2;
				block.key = &key;
				block.position = i;
				assert_int_equal(okv_index_insert(ix, &block, &id), 0);
				block.parent = id;
			}
		}
		for (uint32_t round = 0; round < 20; round++) {
			overwrite(&pool, ix, 1 + world % 200, &seed);
			use_everything(ix, round);
		}
		okv_index_leave(ix);
		free(pool.base);
	}
	alarm(0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(config_is_checked),
		cmocka_unit_test(insert_refuses),
		cmocka_unit_test(key_length_counts),
		cmocka_unit_test(hit_is_the_longest_prefix),
		cmocka_unit_test(runs_follow_the_extents),
		cmocka_unit_test(tails_are_leaves_of_their_own),
		cmocka_unit_test(hit_ends_where_the_state_is),
		cmocka_unit_test(oldest_path_leaves_first_deepest_first),
		cmocka_unit_test(pins_keep_a_path),
		cmocka_unit_test(dropped_blocks_are_not_hit),
		cmocka_unit_test(heat_counts_uses_of_blocks),
		cmocka_unit_test(path_stops_at_the_first_refusal),
		cmocka_unit_test(growth_may_evict_from_the_index),
		cmocka_unit_test(overwritten_ids_end_a_walk),
		cmocka_unit_test(overwritten_index_ends_no_writer),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

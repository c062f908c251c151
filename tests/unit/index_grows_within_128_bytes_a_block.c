// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory of the prefix index: at most 128 bytes a block with its slot of the table, growth while
 * lookups go on, and every allocation failing once, with nothing changed by it.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "manager/index.h"

/* Sanitizers take their time: there less is inserted, and the bound is not at stake. */
#define NR_BLOCKS 1000000u
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define NR_INSERTED 100000u
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define NR_INSERTED 100000u
#endif
#endif
#ifndef NR_INSERTED
#define NR_INSERTED NR_BLOCKS
#endif

/* Fails the @fail_at-th call; counts what is held. */
struct counting {
	uint64_t	nr_calls;
	uint64_t	fail_at;
	uint64_t	held_bytes;
};

static void *counting_alloc(void *opaque, size_t bytes)
{
	struct counting *c = opaque;
	void *mem;

	if (++c->nr_calls == c->fail_at)
		return NULL;
	mem = aligned_alloc(64, (bytes + 63) / 64 * 64);
	assert_non_null(mem);
	c->held_bytes += bytes;
	return mem;
}

static void counting_free(void *opaque, void *mem, size_t bytes)
{
	struct counting *c = opaque;

	c->held_bytes -= bytes;
	free(mem);
}

static struct omnikv_key key_of(uint64_t n)
{
	struct omnikv_key key = { .len = 32 };

	memcpy(key.bytes, &n, sizeof(n));
	return key;
}

static int add(struct okv_index *ix, uint32_t ns, uint32_t parent, uint32_t position, uint64_t n, uint32_t nr_tokens,
	       uint32_t *id)
{
	struct omnikv_key key = key_of(n);
	struct omnikv_extent extent = { .granule = n, .generation = 1, .nr_granules = 1 };
	uint32_t crc = 0;
	struct okv_index_block block = { .ns = ns, .parent = parent, .position = position, .nr_tokens = nr_tokens,
		.key = &key, .extents = &extent, .crc32c = &crc };

	return okv_index_insert(ix, &block, id);
}

/*
 * Without a hint, paths of 1,000 blocks. On the way a chunk that is being filled and a table that
 * is being left come on top: at most 160 bytes from 200,000 blocks on.
 */
static void bytes_a_block(void **state)
{
	struct okv_index_config config = { .nr_groups = 1, .block_tokens = 16, .seed = "bytes a block" };
	struct okv_index_stats stats;
	uint64_t worst = 0;
	const char *reason = "";
	struct okv_index *ix;
	uint32_t i, id = 0;

	(void)state;
	assert_int_equal(okv_index_create(&config, &ix), 0);
	for (i = 0; i < NR_INSERTED; i++) {
		assert_int_equal(add(ix, 0, i % 1000 ? id : OKV_ENTRY_NONE, i % 1000, i, 16, &id), 0);
		if (i % 1024 || i < 200000)
			continue;
		okv_index_stats(ix, &stats);
		if (stats.bytes / (i + 1) > worst)
			worst = stats.bytes / (i + 1);
	}
	okv_index_stats(ix, &stats);
	print_message("# %.1f bytes a block in the end, at most %llu on the way there, moves included\n",
		      (double)stats.bytes / NR_INSERTED, (unsigned long long)worst);
	if (NR_INSERTED == NR_BLOCKS)
		assert_true(stats.bytes <= 128ull * NR_BLOCKS);
	assert_true(worst <= 160);
	assert_int_equal(stats.nr_entries, NR_INSERTED);
	for (i = 0; i < NR_INSERTED; i += 7) {
		struct omnikv_key key = key_of(i);

		assert_int_not_equal(okv_index_find(ix, 0, &key), OKV_ENTRY_NONE);
	}
	if (okv_index_check(ix, &reason))
		fail_msg("%s", reason);
	okv_index_destroy(ix);

	/* With room made at once for as many as will come. */
	config.nr_entries_hint = NR_BLOCKS;
	assert_int_equal(okv_index_create(&config, &ix), 0);
	okv_index_stats(ix, &stats);
	assert_true(stats.bytes <= 128ull * NR_BLOCKS);
	okv_index_destroy(ix);
}

/* Nothing moves while the table doubles: every key is found after every insertion. */
static void lookups_while_growing(void **state)
{
	struct okv_index_config config = { .nr_groups = 1, .block_tokens = 16, .seed = "growing" };
	struct omnikv_extent extent;
	const char *reason = "";
	struct okv_index *ix;
	uint32_t i, k, id;

	(void)state;
	assert_int_equal(okv_index_create(&config, &ix), 0);
	for (i = 0; i < NR_INSERTED / 700; i++) {
		assert_int_equal(add(ix, i % 5, OKV_ENTRY_NONE, 0, i, 16, &id), 0);
		for (k = i % 3; k <= i; k += 3) {
			struct omnikv_key key = key_of(k);

			assert_int_not_equal(okv_index_find(ix, k % 5, &key), OKV_ENTRY_NONE);
		}
		/* Some leave in the middle of a move. */
		if (i % 4 == 3) {
			assert_int_equal(okv_index_remove(ix, id, &extent), 0);
			assert_int_equal(add(ix, i % 5, OKV_ENTRY_NONE, 0, i, 16, &id), 0);
		}
		if (okv_index_check(ix, &reason))
			fail_msg("%s", reason);
	}
	okv_index_destroy(ix);
}

/*
 * 40,000 blocks and tails of growing namespaces, for each allocation of such a run failing in
 * turn. A refused insertion changes nothing and succeeds when tried again.
 */
static void each_allocation_fails_once(void **state)
{
	struct counting c = { 0 };
	struct okv_index_allocator mem = { .alloc = counting_alloc, .free = counting_free, .opaque = &c };
	struct okv_index_config config = { .nr_groups = 1, .block_tokens = 16, .allocator = &mem };
	uint64_t fail_at, nr_refused = 0;
	bool was_reached = true;

	(void)state;
	for (fail_at = 1; was_reached; fail_at++) {
		struct okv_index_stats stats;
		struct okv_index *ix = NULL;
		const char *reason = "";
		uint32_t i, id;
		int ret;

		config.nr_entries_hint = fail_at % 2 ? 0 : 10;
		c.nr_calls = 0;
		c.fail_at = fail_at;
		ret = okv_index_create(&config, &ix);
		if (ret) {
			assert_int_equal(ret, -ENOMEM);
			assert_null(ix);
			assert_int_equal(c.held_bytes, 0);
			nr_refused++;
			continue;
		}
		for (i = 0; i < 40000; i++) {
			bool is_tail = i % 400 == 399;
			uint32_t ns = is_tail ? i / 400 : 0;

			ret = add(ix, ns, OKV_ENTRY_NONE, 0, i, is_tail ? 3 : 16, &id);
			if (ret) {
				struct omnikv_key key = key_of(i);

				assert_int_equal(ret, -ENOMEM);
				nr_refused++;
				assert_int_equal(okv_index_find(ix, ns, &key), OKV_ENTRY_NONE);
				okv_index_stats(ix, &stats);
				assert_int_equal(stats.nr_entries, i);
				if (okv_index_check(ix, &reason))
					fail_msg("%s", reason);
				assert_int_equal(add(ix, ns, OKV_ENTRY_NONE, 0, i, is_tail ? 3 : 16, &id), 0);
			}
		}
		okv_index_stats(ix, &stats);
		assert_int_equal(stats.nr_entries, 40000);
		assert_int_equal(stats.mem_bytes, c.held_bytes);
		was_reached = c.nr_calls >= fail_at;
		okv_index_destroy(ix);
		assert_int_equal(c.held_bytes, 0);
	}
	print_message("# %llu allocations refused\n", (unsigned long long)nr_refused);
	/* Head, table and directory; two pieces for each of two chunks; 11 doublings. */
	assert_true(nr_refused >= 15);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bytes_a_block),
		cmocka_unit_test(lookups_while_growing),
		cmocka_unit_test(each_allocation_fails_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

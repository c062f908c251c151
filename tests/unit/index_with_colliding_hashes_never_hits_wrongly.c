// SPDX-License-Identifier: GPL-2.0-only
/*
 * 100,000 blocks in a table whose hash keeps 16 bits: every lookup still compares the full key,
 * and what only looked alike is counted.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "manager/index.h"

#define NR 100000u

static struct omnikv_key key_of(uint64_t n)
{
	struct omnikv_key key = { .len = 32 };

	/* Engines' keys are hashes; these differ in few bits, which is harder. */
	memcpy(key.bytes + 11, &n, sizeof(n));
	return key;
}

static void full_key_decides(void **state)
{
	struct okv_index_config config = { .nr_groups = 1, .block_tokens = 16, .hash_bits = 16, .seed = "16 bits" };
	struct okv_index_stats stats;
	struct okv_index_info info;
	const char *reason = "";
	struct okv_index *ix;
	uint32_t i, id, crc;

	(void)state;
	assert_int_equal(okv_index_create(&config, &ix), 0);
	for (i = 0; i < NR; i++) {
		struct omnikv_key key = key_of(i);
		struct omnikv_extent extent = { .granule = i, .generation = 1, .nr_granules = 1 };
		struct okv_index_block block = { .parent = OKV_ENTRY_NONE, .nr_tokens = 16, .key = &key,
			.extents = &extent, .crc32c = &i };

		assert_int_equal(okv_index_insert(ix, &block, &id), 0);
	}
	for (i = 0; i < 2 * NR; i++) {
		struct omnikv_key key = key_of(i);
		struct omnikv_extent extent;
		struct okv_index_hit hit;

		id = okv_index_find(ix, 0, &key);
		okv_index_match(ix, 0, &key, 1, 0, &hit);
		assert_int_equal(hit.entry, id);
		if (i >= NR) {
			assert_int_equal(id, OKV_ENTRY_NONE);
			continue;
		}
		assert_int_equal(okv_index_get(ix, id, &info), 0);
		assert_memory_equal(&info.key, &key, sizeof(key));
		okv_index_extent(ix, id, 0, &extent, &crc);
		assert_int_equal(extent.granule, i);
		assert_int_equal(crc, i);
	}
	okv_index_stats(ix, &stats);
	print_message("# %llu collisions\n", (unsigned long long)stats.nr_collisions);
	assert_true(stats.nr_collisions > 0);
	if (okv_index_check(ix, &reason))
		fail_msg("%s", reason);
	okv_index_destroy(ix);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(full_key_decides) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}

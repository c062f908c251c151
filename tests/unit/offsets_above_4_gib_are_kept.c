// SPDX-License-Identifier: GPL-2.0-only
/*
 * Blocks around 2 and 4 GiB of a sparse pool and of a window of that size read back their own number.
 *
 * Only the pages of those blocks are ever touched.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include <omnikv/pool.h>
#include <omnikv/window.h>

#define GIB	(1ull << 30)
#define BLOCK	16384ull

static void fill(uint64_t *word, uint64_t id)
{
	uint64_t i;

	for (i = 0; i < BLOCK / 8; i++)
		word[i] = id << 32 | i;
}

static void is_filled(const uint64_t *word, uint64_t id)
{
	uint64_t i;

	for (i = 0; i < BLOCK / 8; i++)
		if (word[i] != (id << 32 | i))
			fail_msg("block %d reads word %d of block %d", (int)id, (int)(word[i] & 0xffffffff),
				 (int)(word[i] >> 32));
}

static void blocks_read_back_their_own_number(uint32_t granule_bytes, const uint64_t *at, uint32_t nr)
{
	struct omnikv_pool_config config = {
		.size = sizeof(config), .flags = OMNIKV_POOL_F_NO_POPULATE | OMNIKV_POOL_F_NO_HUGETLB,
		.granule_bytes = granule_bytes,
	};
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_extent blocks[8], filler, *last = NULL;
	struct omnikv_client *client;
	struct omnikv_window *window;
	struct omnikv_pool *pool;
	unsigned char *base;
	uint64_t next = 0;
	uint32_t i;

	assert_int_equal(omnikv_pool_open("6G", &config, &pool, NULL), 0);
	assert_int_equal(omnikv_client_open(pool, 0, &client), 0);
	for (i = 0; i < nr; i++) {
		if (at[i] > next) {
			assert_int_equal(omnikv_extent_alloc(client, (at[i] - next) / granule_bytes, 1, last,
							     OMNIKV_ALLOC_F_NO_ZERO, &filler), 0);
			assert_int_equal(filler.granule * granule_bytes, next);
			last = &filler;
		}
		assert_int_equal(omnikv_extent_alloc(client, BLOCK / granule_bytes, 1, last, 0, &blocks[i]), 0);
		last = &blocks[i];
		assert_int_equal(blocks[i].granule * granule_bytes, at[i]);
		next = at[i] + BLOCK;
	}
	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	assert_int_equal(info.free_bytes, 6 * GIB - next);

	base = omnikv_pool_base(pool);
	for (i = 0; i < nr; i++)
		fill(omnikv_pool_addr(pool, &blocks[i]), i + 1);
	for (i = 0; i < nr; i++)
		is_filled((uint64_t *)(base + at[i]), i + 1);

	/* The same blocks in reverse order through a window, at the same awkward offsets. */
	assert_int_equal(omnikv_window_create(client, 6 * GIB, OMNIKV_WINDOW_F_RW, &window), 0);
	for (i = 0; i < nr; i++) {
		struct omnikv_bind bind = { blocks[nr - 1 - i], 0, at[i], BLOCK };

		assert_int_equal(omnikv_window_bind(window, &bind, 1, NULL), 0);
	}
	base = omnikv_window_base(window);
	for (i = 0; i < nr; i++) {
		is_filled((uint64_t *)(base + at[i]), nr - i);
		fill((uint64_t *)(base + at[i]), 100 + i);
	}
	for (i = 0; i < nr; i++)
		is_filled(omnikv_pool_addr(pool, &blocks[i]), 100 + nr - 1 - i);
	assert_int_equal(omnikv_window_unbind(window, 4 * GIB - BLOCK, 2 * GIB + BLOCK), 0);
	is_filled((uint64_t *)(base + at[0]), 100);
	omnikv_window_destroy(window);
	omnikv_client_close(client);
	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	assert_int_equal(info.free_bytes, 6 * GIB);
	omnikv_pool_close(pool);
}

static void straddling_blocks(void **state)
{
	static const uint64_t at[] = {
		2 * GIB - BLOCK / 2, 2 * GIB + BLOCK / 2, 4 * GIB - BLOCK / 2, 4 * GIB + BLOCK / 2, 6 * GIB - BLOCK,
	};

	(void)state;
	blocks_read_back_their_own_number(4096, at, 5);
}

static void index_times_stride(void **state)
{
	static const uint64_t at[] = {
		2 * GIB - BLOCK, 2 * GIB, 2 * GIB + BLOCK, 4 * GIB - BLOCK, 4 * GIB, 4 * GIB + BLOCK,
	};

	(void)state;
	blocks_read_back_their_own_number(16384, at, 6);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(straddling_blocks),
		cmocka_unit_test(index_times_stride),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

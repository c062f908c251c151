// SPDX-License-Identifier: GPL-2.0-only
/*
 * The private reserve of a daemon's client: what it asks for, keeps and hands out, within its limit.
 *
 * Values follow from stock.h: a limit in granules, shared by the lengths in use. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "stock.h"

static struct omnikv_extent extent(uint64_t granule, uint32_t nr)
{
	return (struct omnikv_extent){ .granule = granule, .generation = 5, .nr_granules = nr };
}

static void it_fills_up_to_its_limit(void **state)
{
	struct okv_stock stock = { .limit_granules = 100 };
	struct omnikv_extent ext, out[64];
	uint32_t i;

	(void)state;
	assert_false(okv_stock_take(&stock, 1, 1, out));
	assert_int_equal(okv_stock_want(&stock, 1), OKV_STOCK_STEP);
	for (i = 0; i < 64; i++) {
		ext = extent(i, 1);
		assert_true(okv_stock_put(&stock, &ext, false));
	}
	assert_int_equal(okv_stock_want(&stock, 1), 36);
	/* A second length gets its half, as far as there is room. */
	assert_int_equal(okv_stock_want(&stock, 4), 9);
	assert_int_equal(okv_stock_want(&stock, 1), 0);
	for (i = 0; i < 9; i++) {
		ext = extent(1000 + 4 * i, 4);
		assert_true(okv_stock_put(&stock, &ext, false));
	}
	ext = extent(2000, 4);
	assert_false(okv_stock_put(&stock, &ext, false));
	assert_int_equal(okv_stock_want(&stock, 4), 0);
	assert_true(okv_stock_has(&stock, &(struct omnikv_extent){ .granule = 1004, .generation = 5, .nr_granules = 4 }));
	assert_false(okv_stock_has(&stock, &(struct omnikv_extent){ .granule = 1004, .generation = 9, .nr_granules = 4 }));
	assert_false(okv_stock_has(&stock, &ext));

	assert_false(okv_stock_take(&stock, 4, 10, out));
	assert_true(okv_stock_take(&stock, 4, 9, out));
	assert_int_equal(out[0].granule, 1000);
	assert_int_equal(out[8].granule, 1032);
	assert_int_equal(stock.nr_granules, 64);
	assert_false(okv_stock_take(&stock, 0, 1, out));
	okv_stock_fini(&stock);
	assert_int_equal(stock.nr_granules, 0);
}

static void without_a_limit_it_keeps_only_what_is_urgent(void **state)
{
	struct okv_stock stock = { 0 };
	struct omnikv_extent ext = extent(7, 2), out;

	(void)state;
	assert_int_equal(okv_stock_want(&stock, 2), 0);
	assert_false(okv_stock_put(&stock, &ext, false));
	/* The daemon is away: where else should it go? */
	assert_true(okv_stock_put(&stock, &ext, true));
	assert_true(okv_stock_take(&stock, 2, 1, &out));
	assert_int_equal(out.granule, 7);
	okv_stock_fini(&stock);
}

static void lengths_beyond_its_shelves_are_not_kept(void **state)
{
	struct okv_stock stock = { .limit_granules = 1 << 20 };
	struct omnikv_extent ext;
	uint32_t i;

	(void)state;
	for (i = 1; i <= OKV_STOCK_LENGTHS; i++)
		assert_int_equal(okv_stock_want(&stock, i), OKV_STOCK_STEP);
	assert_int_equal(okv_stock_want(&stock, i), 0);
	ext = extent(1, i);
	assert_false(okv_stock_put(&stock, &ext, true));
	assert_false(okv_stock_has(&stock, &ext));
	okv_stock_fini(&stock);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(it_fills_up_to_its_limit),
		cmocka_unit_test(without_a_limit_it_keeps_only_what_is_urgent),
		cmocka_unit_test(lengths_beyond_its_shelves_are_not_kept),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

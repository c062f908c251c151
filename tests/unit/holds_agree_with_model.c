// SPDX-License-Identifier: GPL-2.0-only
/*
 * The table of what a client holds against a plain array, with keys that collide.
 *
 * Entries come and go at random, which moves others; each one must still be found, with its
 * counts. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "hold.h"

#define NR_KEYS	300u

static void random_steps_agree(void **state)
{
	uint32_t leases[NR_KEYS] = { 0 }, nr = 0, i, step;
	struct okv_holds holds = { 0 };
	struct okv_hold *hold;
	uint64_t seed = 1;

	(void)state;
	assert_null(okv_holds_find(&holds, 1));
	for (step = 0; step < 20000; step++) {
		uint32_t key, granule;

		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		key = (uint32_t)(seed >> 33) % NR_KEYS;
		granule = key * 4;
		if ((seed >> 60) % 2) {
			assert_int_equal(okv_holds_reserve(&holds, 1), 0);
			hold = okv_holds_get(&holds, granule, key + 1);
			assert_int_equal(hold->generation, key + 1);
			nr += !leases[key];
			leases[key]++;
			hold->nr_leases++;
		} else if (leases[key]) {
			hold = okv_holds_find(&holds, granule);
			assert_non_null(hold);
			hold->nr_leases--;
			nr -= !--leases[key];
			okv_holds_drop(&holds, hold);
		}
		assert_int_equal(holds.nr, nr);
		if (step % 50)
			continue;
		for (i = 0; i < NR_KEYS; i++) {
			hold = okv_holds_find(&holds, i * 4);
			assert_int_equal(hold ? hold->nr_leases : 0, leases[i]);
		}
	}
	okv_holds_fini(&holds);
	assert_null(okv_holds_find(&holds, 4));
}

static void an_entry_stays_while_it_counts_anything(void **state)
{
	struct okv_holds holds = { 0 };
	struct okv_hold *hold;

	(void)state;
	assert_int_equal(okv_holds_reserve(&holds, 1), 0);
	hold = okv_holds_get(&holds, 0, 1);
	hold->nr_ios = 1;
	okv_holds_drop(&holds, hold);
	hold = okv_holds_find(&holds, 0);
	assert_non_null(hold);
	hold->nr_ios = 0;
	hold->nr_binds = 1;
	okv_holds_drop(&holds, hold);
	hold = okv_holds_find(&holds, 0);
	assert_non_null(hold);
	hold->nr_binds = 0;
	okv_holds_drop(&holds, hold);
	assert_null(okv_holds_find(&holds, 0));
	okv_holds_fini(&holds);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_steps_agree),
		cmocka_unit_test(an_entry_stays_while_it_counts_anything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

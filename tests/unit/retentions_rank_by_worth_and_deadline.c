// SPDX-License-Identifier: GPL-2.0-only
/*
 * The table of retentions beside a plain list: which of them is worth least, which is over first, and which
 * one a name means.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "manager/ranks.h"

#define NR	200u

static struct okv_rank records[NR];
static bool is_in[NR];
static bool is_aside[NR];

static uint64_t next_random(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
	return *seed >> 33;
}

#define ALL	UINT64_MAX

/* By the words of ranks.h, one after the other; of all, or of one owner. */
static struct okv_rank *least_of(uint64_t owner)
{
	struct okv_rank *least = NULL;

	for (uint32_t i = 0; i < NR; i++) {
		struct okv_rank *one = &records[i];

		if (!is_in[i] || one->is_pin || (owner != ALL && one->owner != owner))
			continue;
		if (!least || one->priority < least->priority ||
		    (one->priority == least->priority &&
		     (one->next_ns > least->next_ns || (one->next_ns == least->next_ns && one->number < least->number))))
			least = one;
	}
	return least;
}

static void sums_are_right(const struct okv_ranks *ranks, uint64_t owner)
{
	uint64_t sums[2] = { 0 }, told;
	uint32_t nr = 0;

	for (uint32_t i = 0; i < NR; i++) {
		if (!is_in[i] || records[i].owner != owner)
			continue;
		sums[records[i].is_pin] += records[i].weight;
		nr++;
	}
	for (int is_pin = 0; is_pin < 2; is_pin++) {
		assert_int_equal(okv_ranks_sum_of(ranks, owner, is_pin, &told), nr);
		assert_int_equal(told, sums[is_pin]);
	}
	assert_ptr_equal(okv_ranks_least_of(ranks, owner), least_of(owner));
}

static uint64_t first_deadline(void)
{
	uint64_t first = UINT64_MAX;

	for (uint32_t i = 0; i < NR; i++)
		if (is_in[i] && records[i].until_ns < first)
			first = records[i].until_ns;
	return first;
}

static void the_table_agrees_with_a_list(void **state)
{
	struct okv_ranks *ranks;
	uint32_t nr = 0;

	(void)state;
	for (uint64_t seed = 1; seed <= 20; seed++) {
		uint64_t random = seed;

		memset(is_in, 0, sizeof(is_in));
		memset(is_aside, 0, sizeof(is_aside));
		nr = 0;
		assert_int_equal(okv_ranks_create(&ranks), 0);
		for (uint32_t step = 0; step < 3000; step++) {
			uint32_t i = next_random(&random) % NR;
			struct okv_rank *first;

			if (is_aside[i]) {
				if (next_random(&random) % 2) {
					okv_ranks_take_back(ranks, &records[i]);
					is_in[i] = true;
				} else {
					okv_ranks_del(ranks, &records[i]);
				}
				nr += is_in[i];
				is_aside[i] = false;
			} else if (is_in[i]) {
				assert_ptr_equal(okv_ranks_find(ranks, records[i].owner, &records[i % 3], i), &records[i]);
				is_aside[i] = next_random(&random) % 2;
				if (is_aside[i])
					okv_ranks_set_aside(ranks, &records[i]);
				else
					okv_ranks_del(ranks, &records[i]);
				is_in[i] = false;
				nr--;
			} else {
				records[i] = (struct okv_rank){
					.owner = i % 5, .session = i, .space = &records[i % 3],
					.is_pin = next_random(&random) % 4 == 0, .priority = next_random(&random) % 3,
					.next_ns = next_random(&random) % 3 ? next_random(&random) % 50 : OKV_RANKS_UNKNOWN,
					.until_ns = next_random(&random) % 1000, .weight = next_random(&random) % 100,
				};
				assert_null(okv_ranks_find(ranks, records[i].owner, records[i].space, i));
				assert_int_equal(okv_ranks_add(ranks, &records[i]), 0);
				nr++;
				is_in[i] = true;
			}
			assert_int_equal(okv_ranks_count(ranks), nr);
			assert_ptr_equal(okv_ranks_least(ranks), least_of(ALL));
			sums_are_right(ranks, i % 5);
			first = okv_ranks_first(ranks);
			assert_int_equal(first ? first->until_ns : UINT64_MAX, first_deadline());
		}
		okv_ranks_destroy(ranks);
	}
}

static void a_name_is_an_owner_a_space_and_a_session(void **state)
{
	struct okv_rank a = { .owner = 1, .session = 7, .space = &a }, b = { .owner = 2, .session = 7, .space = &a };
	struct okv_rank c = { .owner = 1, .session = 7, .space = &b };
	struct okv_ranks *ranks;

	(void)state;
	assert_int_equal(okv_ranks_create(&ranks), 0);
	assert_int_equal(okv_ranks_add(ranks, &a), 0);
	assert_null(okv_ranks_find(ranks, 2, &a, 7));
	assert_int_equal(okv_ranks_add(ranks, &b), 0);
	assert_int_equal(okv_ranks_add(ranks, &c), 0);
	assert_ptr_equal(okv_ranks_find(ranks, 1, &a, 7), &a);
	assert_ptr_equal(okv_ranks_find(ranks, 2, &a, 7), &b);
	assert_ptr_equal(okv_ranks_find(ranks, 1, &b, 7), &c);
	okv_ranks_destroy(ranks);
}

static void there_are_so_many_and_no_more(void **state)
{
	static struct okv_rank many[OKV_RANKS_MAX + 1];
	struct okv_ranks *ranks;

	(void)state;
	assert_int_equal(okv_ranks_create(&ranks), 0);
	for (uint32_t i = 0; i <= OKV_RANKS_MAX; i++) {
		many[i].session = i + 1;
		assert_int_equal(okv_ranks_add(ranks, &many[i]), i < OKV_RANKS_MAX ? 0 : -EDQUOT);
	}
	okv_ranks_del(ranks, &many[5]);
	assert_int_equal(okv_ranks_add(ranks, &many[OKV_RANKS_MAX]), 0);
	okv_ranks_destroy(ranks);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_table_agrees_with_a_list),
		cmocka_unit_test(a_name_is_an_owner_a_space_and_a_session),
		cmocka_unit_test(there_are_so_many_and_no_more),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

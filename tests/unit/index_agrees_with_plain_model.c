// SPDX-License-Identifier: GPL-2.0-only
/*
 * The prefix index against a plain model, operation by operation: hit lengths for chained and
 * for arbitrary keys, victims and their order, runs, tails, pins, drops.
 *
 * A million operations; 50 million, in 50 universes of each kind, where OMNIKV_FULL is 1.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "manager/index_shared.h"
#include "tests/harness/index_model.h"
#include "tests/harness/kill_campaign.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SHORTER 20
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SHORTER 20
#endif
#endif
#ifndef SHORTER
#define SHORTER 1
#endif

/* About four bytes an operation. */
static void run(struct index_model_config config, size_t nr_ops)
{
	size_t nr = nr_ops * 4 / (nr_ops < 10000 ? 1 : SHORTER), i;
	struct index_model_counts counts;
	uint64_t x = config.seed + 1;
	uint8_t *ops = malloc(nr);
	const char *why;

	assert_non_null(ops);
	for (i = 0; i < nr; i++) {
		x = x * 6364136223846793005ull + 1442695040888963407ull;
		ops[i] = (uint8_t)(x >> 56);
	}
	why = index_model_run(&config, ops, nr, &counts);
	if (why)
		print_message("# seed %llu: %s\n", (unsigned long long)config.seed, why);
	if (nr_ops >= 10000)
		print_message("# %llu operations, %llu inserted, %llu evicted, %llu blocks hit, %llu collisions\n",
			      (unsigned long long)counts.nr_ops, (unsigned long long)counts.nr_inserted,
			      (unsigned long long)counts.nr_evicted, (unsigned long long)counts.nr_blocks_hit,
			      (unsigned long long)counts.nr_collisions);
	free(ops);
	assert_null(why);
	assert_true(counts.nr_inserted > 0 && counts.nr_evicted > 0 && counts.nr_blocks_hit > 0);
}

static void many_small_universes(void **state)
{
	struct index_model_config config = { .nr_nodes = 40, .nr_groups = 1, .check_every = 1 };
	uint64_t seed;

	(void)state;
	for (seed = 1; seed <= 40; seed++) {
		config.seed = seed;
		run(config, 2500);
	}
}

/* One universe; of the full run fifty. */
static void run_all(struct index_model_config config, size_t nr_ops)
{
	for (uint32_t i = 0; i < campaign_scale(1, 50); i++) {
		run(config, nr_ops);
		config.seed += 1000;
	}
}

static void one_group(void **state)
{
	(void)state;
	run_all((struct index_model_config){ .seed = 100, .nr_nodes = 200, .nr_groups = 1, .check_every = 997 }, 1400000);
}

static void optional_groups(void **state)
{
	(void)state;
	run_all((struct index_model_config){ .seed = 101, .nr_nodes = 200, .nr_groups = 3, .optional_groups = 6,
					     .check_every = 997 }, 200000);
}

/* The first group may be absent too. */
static void first_group_optional(void **state)
{
	(void)state;
	run_all((struct index_model_config){ .seed = 103, .nr_nodes = 120, .nr_groups = 2, .optional_groups = 1,
					     .check_every = 101 }, 50000);
}

static void deep_paths(void **state)
{
	(void)state;
	run_all((struct index_model_config){ .seed = 104, .nr_nodes = 1500, .nr_groups = 1, .check_every = 499 }, 30000);
}

/* Four bits of hash: everything collides with a sixteenth of the rest; and with its own key in the other namespace. */
static void colliding_hashes(void **state)
{
	uint32_t twin = 1;

	(void)state;
	while ((okv_ns_mix(0) ^ okv_ns_mix(twin)) >> 60)
		twin++;
	run_all((struct index_model_config){ .seed = 102, .nr_nodes = 300, .nr_groups = 1, .hash_bits = 4, .second_ns = twin,
					     .check_every = 997 }, 100000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(many_small_universes),
		cmocka_unit_test(one_group),
		cmocka_unit_test(optional_groups),
		cmocka_unit_test(first_group_optional),
		cmocka_unit_test(deep_paths),
		cmocka_unit_test(colliding_hashes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

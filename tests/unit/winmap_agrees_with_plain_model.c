// SPDX-License-Identifier: GPL-2.0-only
/*
 * The module's map of a window against a plain array: random binds, unbinds and questions, runs,
 * far offsets, and memory that runs out. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kmod/winmap.c"

#define PAGES	1500ull
#define OWNERS	7

static unsigned int nr_blocks;
static unsigned int blocks_left = ~0u;

static void *block_alloc(void)
{
	if (!blocks_left)
		return NULL;
	blocks_left--;
	nr_blocks++;
	return calloc(1, 4096);
}

static void block_free(void *block)
{
	nr_blocks--;
	free(block);
}

struct model {
	uintptr_t	owner[PAGES];
	uint64_t	page[PAGES];
	uint64_t	dropped[OWNERS + 1];
};

static void count_drop(void *opaque, uintptr_t owner, uint64_t first, uint64_t nr)
{
	struct model *model = opaque;
	uint64_t i;

	for (i = first; i < first + nr; i++)
		assert_int_equal(model->owner[i], owner);
	model->dropped[owner] += nr;
}

static bool wants_odd(void *opaque, uintptr_t owner)
{
	(void)opaque;
	return owner & 1;
}

static void random_operations(void **state)
{
	static struct model model;
	void *tops[1] = { NULL };
	struct okv_winmap map;
	unsigned int seed = 3;
	int step;

	(void)state;
	okv_winmap_init(&map, PAGES, tops);
	for (step = 0; step < 20000; step++) {
		uint64_t first = (uint64_t)rand_r(&seed) % PAGES, nr = 1 + (uint64_t)rand_r(&seed) % 300, i;
		uint64_t cleared = 0, page = 0, run, expected[OWNERS + 1] = { 0 }, next;
		bool is_odd = rand_r(&seed) % 3 == 0, any = false, any_odd = false;
		uintptr_t owner = 1 + (uintptr_t)rand_r(&seed) % OWNERS;
		uint64_t from = (uint64_t)rand_r(&seed) << 20;

		if (nr > PAGES - first)
			nr = PAGES - first;
		for (i = first; i < first + nr; i++) {
			any |= model.owner[i] != 0;
			any_odd |= model.owner[i] & 1;
		}
		assert_int_equal(okv_winmap_any(&map, first, nr, NULL, NULL), any);
		assert_int_equal(okv_winmap_any(&map, first, nr, wants_odd, NULL), any_odd);
		for (next = first; next < PAGES && !model.owner[next];)
			next++;
		assert_int_equal(okv_winmap_next(&map, first), next);
		for (i = first; i < PAGES && i - first < nr && model.owner[i] && model.page[i] == model.page[first] + i - first;)
			i++;
		run = okv_winmap_run(&map, first, nr, &page);
		assert_int_equal(run, i - first);
		if (run)
			assert_int_equal(page, model.page[first]);

		/* Clear, all or odd owners; then bind in two of three steps. */
		for (i = first; i < first + nr; i++) {
			if (model.owner[i] && (!is_odd || model.owner[i] & 1)) {
				expected[model.owner[i]]++;
				cleared++;
			}
		}
		memset(model.dropped, 0, sizeof(model.dropped));
		assert_int_equal(okv_winmap_clear(&map, first, nr, is_odd ? wants_odd : NULL, count_drop, &model), cleared);
		assert_memory_equal(model.dropped, expected, sizeof(expected));
		for (i = first; i < first + nr; i++)
			if (!is_odd || model.owner[i] & 1)
				model.owner[i] = model.page[i] = 0;
		if (!is_odd && rand_r(&seed) % 3) {
			assert_int_equal(okv_winmap_prepare(&map, first, nr, block_alloc), 0);
			okv_winmap_set(&map, first, nr, owner, from);
			for (i = 0; i < nr; i++) {
				model.owner[first + i] = owner;
				model.page[first + i] = from + i;
			}
		}
		if (step % 500 == 0)
			assert_null(okv_winmap_check(&map));
	}
	okv_winmap_fini(&map, block_free);
	assert_int_equal(nr_blocks, 0);
}

static void ignore_drop(void *opaque, uintptr_t owner, uint64_t first, uint64_t nr)
{
	(void)opaque;
	(void)owner;
	(void)first;
	(void)nr;
}

static void far_offsets_reach_their_own_entry(void **state)
{
	static const uint64_t at[] = { 0, (1ull << 19) - 1, 1ull << 19, (1ull << 20) - 1, 1ull << 20, (1ull << 34) - 1 };
	uint64_t nr_tops = okv_winmap_nr_tops(OKV_WINMAP_PAGES_MAX), page = 0, i;
	void **tops = calloc(nr_tops, sizeof(*tops));
	struct okv_winmap map;

	(void)state;
	/* 2^34 pages, 2^17 to a top: worked out by hand. */
	assert_int_equal(nr_tops, 131072);
	assert_int_equal(okv_winmap_nr_tops(1), 1);
	assert_int_equal(okv_winmap_nr_tops((1ull << 17) + 1), 2);
	okv_winmap_init(&map, OKV_WINMAP_PAGES_MAX, tops);
	assert_int_equal(okv_winmap_next(&map, 0), OKV_WINMAP_PAGES_MAX);
	for (i = 0; i < 6; i++) {
		assert_int_equal(okv_winmap_prepare(&map, at[i], 1, block_alloc), 0);
		okv_winmap_set(&map, at[i], 1, i + 1, 1000 * i);
	}
	for (i = 0; i < 6; i++) {
		assert_int_equal(okv_winmap_run(&map, at[i], 1, &page), 1);
		assert_int_equal(page, 1000 * i);
	}
	assert_int_equal(okv_winmap_next(&map, (1ull << 20) + 1), (1ull << 34) - 1);
	assert_int_equal(okv_winmap_run(&map, 5, 100, &page), 0);
	assert_int_equal(okv_winmap_clear(&map, 0, OKV_WINMAP_PAGES_MAX, NULL, ignore_drop, NULL), 6);
	assert_null(okv_winmap_check(&map));
	okv_winmap_fini(&map, block_free);
	assert_int_equal(nr_blocks, 0);
	free(tops);
}

static void memory_that_runs_out_leaves_the_map_whole(void **state)
{
	void *tops[1] = { NULL };
	struct okv_winmap map;
	unsigned int left;

	(void)state;
	okv_winmap_init(&map, PAGES, tops);
	/* A middle and two leaves are needed. */
	for (left = 0; left < 3; left++) {
		okv_winmap_fini(&map, block_free);
		blocks_left = left;
		assert_int_equal(okv_winmap_prepare(&map, 200, 100, block_alloc), -ENOMEM);
		assert_null(okv_winmap_check(&map));
	}
	blocks_left = ~0u;
	assert_int_equal(okv_winmap_prepare(&map, 200, 100, block_alloc), 0);
	okv_winmap_fini(&map, block_free);
	assert_int_equal(nr_blocks, 0);
}

static void the_walker_sees_what_is_broken(void **state)
{
	void *tops[1] = { NULL };
	struct okv_winmap map;

	(void)state;
	okv_winmap_init(&map, PAGES, tops);
	assert_int_equal(okv_winmap_prepare(&map, 0, 1, block_alloc), 0);
	okv_winmap_set(&map, 0, 1, 1, 5);
	map.nr_bound++;
	assert_non_null(okv_winmap_check(&map));
	map.nr_bound--;
	assert_null(okv_winmap_check(&map));
	find(&map, 0)->owner = 0;
	assert_non_null(okv_winmap_check(&map));
	okv_winmap_fini(&map, block_free);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_operations),
		cmocka_unit_test(far_offsets_reach_their_own_entry),
		cmocka_unit_test(memory_that_runs_out_leaves_the_map_whole),
		cmocka_unit_test(the_walker_sees_what_is_broken),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

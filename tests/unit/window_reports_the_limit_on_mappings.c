// SPDX-License-Identifier: GPL-2.0-only
/*
 * More binds than the host allows mappings: -ENOMEM, the right count, and a window that still works.
 *
 * Needs a limit (vm.max_map_count) of at most 70,000 and skips where it is higher. One thread.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include <omnikv/window.h>

#define PAGE	4096ull
#define NR	70000u

static void binds_beyond_the_limit_are_refused(void **state)
{
	struct omnikv_pool_config config = {
		.size = sizeof(config), .flags = OMNIKV_POOL_F_NO_POPULATE | OMNIKV_POOL_F_NO_HUGETLB,
	};
	struct omnikv_extent_info info = { .size = sizeof(info) };
	struct omnikv_pool_info whole = { .size = sizeof(whole) };
	struct omnikv_bind *binds = calloc(NR, sizeof(*binds));
	uint32_t nr_bound = 0, limit = 0, i;
	struct omnikv_client *client;
	struct omnikv_window *window;
	struct omnikv_pool *pool;
	struct omnikv_extent ext;
	FILE *file;

	(void)state;
	assert_non_null(binds);
	file = fopen("/proc/sys/vm/max_map_count", "r");
	if (!file || fscanf(file, "%u", &limit) != 1 || limit > NR) {
		free(binds);
		print_message("vm.max_map_count is over %u, or not to be read\n", NR);
		skip();
	}
	fclose(file);
	assert_int_equal(omnikv_pool_open("300M", &config, &pool, NULL), 0);
	assert_int_equal(omnikv_client_open(pool, 0, &client), 0);
	assert_int_equal(omnikv_extent_alloc(client, NR, 1, NULL, OMNIKV_ALLOC_F_NO_ZERO, &ext), 0);
	assert_int_equal(omnikv_window_create(client, NR * PAGE, OMNIKV_WINDOW_F_RW, &window), 0);
	/* Backwards, so that no two are neighbours in the file as they are in the window. */
	for (i = 0; i < NR; i++)
		binds[i] = (struct omnikv_bind){ ext, (NR - 1 - i) * PAGE, i * PAGE, PAGE };
	assert_int_equal(omnikv_window_bind(window, binds, NR, &nr_bound), -ENOMEM);
	assert_true(nr_bound > limit / 2 && nr_bound < limit);
	assert_int_equal(omnikv_extent_query(client, &ext, &info), 0);
	assert_int_equal(info.nr_refs, nr_bound);

	/* Room is made by unbinding, and what is bound still shows the right page. */
	((unsigned char *)omnikv_pool_base(pool))[(NR - 1) * PAGE] = 0x42;
	assert_int_equal(*(unsigned char *)omnikv_window_base(window), 0x42);
	assert_int_equal(omnikv_window_unbind(window, PAGE, (nr_bound - 1) * PAGE), 0);
	assert_int_equal(omnikv_extent_query(client, &ext, &info), 0);
	assert_int_equal(info.nr_refs, 1);
	assert_int_equal(omnikv_window_bind(window, binds + nr_bound, 1, NULL), 0);
	omnikv_client_close(client);
	assert_int_equal(omnikv_pool_info(pool, &whole), 0);
	assert_int_equal(whole.free_bytes, whole.usable_bytes);
	omnikv_pool_close(pool);
	free(binds);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(binds_beyond_the_limit_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sizes that are no whole number of anything, options, limits, and that a pool leaves nothing behind.
 *
 * What is left behind is read from /proc/self: mappings, descriptors, resident shared memory.
 */
#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <omnikv/pool.h>
#include <omnikv/window.h>

#include "embedded.h"

#define MIB	(1ull << 20)

static struct omnikv_pool_info info_of(struct omnikv_pool *pool)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	return info;
}

static void sizes_that_are_no_whole_pages(void **state)
{
	/* asked, granule, granules; and the mapping: 2-MiB units of records (a page, 16 bytes a granule) and of data */
	static const struct { const char *spec; uint64_t asked; uint32_t granule; uint64_t nr, mapped; } cases[] = {
		{ "2097151", 2 * MIB - 1, 4096, 511, 4 * MIB },
		{ "2M", 2 * MIB, 4096, 512, 4 * MIB },
		{ "4096", 4096, 4096, 1, 4 * MIB },
		{ "129.5M", 135790592, 4096, 33152, 2 * MIB + 130 * MIB },
		{ "129.5M", 135790592, 65536, 2072, 2 * MIB + 130 * MIB },
		{ "129.5M", 135790592, 12288, 11050, 2 * MIB + 130 * MIB },
		/* 3 GiB + 2 MiB: 786944 granules, 12.58 MB of records */
		{ "3074M", 3074 * MIB, 4096, 786944, 14 * MIB + 3074 * MIB },
	};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct omnikv_pool_config config = {
			.size = sizeof(config), .flags = OMNIKV_POOL_F_NO_POPULATE | OMNIKV_POOL_F_NO_HUGETLB,
			.granule_bytes = cases[i].granule,
		};
		struct omnikv_pool_info info;
		struct omnikv_client *client;
		struct omnikv_extent ext;
		struct omnikv_pool *pool;
		uint64_t bitmap = ((cases[i].nr + 63) / 64 * 8 + 4095) / 4096 * 4096;

		assert_int_equal(omnikv_pool_open(cases[i].spec, &config, &pool, NULL), 0);
		info = info_of(pool);
		assert_int_equal(info.asked_bytes, cases[i].asked);
		assert_int_equal(info.nr_granules, cases[i].nr);
		assert_int_equal(info.usable_bytes, cases[i].nr * cases[i].granule);
		assert_int_equal(info.asked_bytes - info.usable_bytes, cases[i].asked % cases[i].granule);
		assert_int_equal(info.usable_bytes + info.overhead_bytes, cases[i].mapped + bitmap);
		assert_int_equal(info.free_bytes, info.usable_bytes);
		assert_int_equal(info.largest_free_bytes, info.usable_bytes);
		assert_int_equal(info.nr_extents[OMNIKV_EXTENT_FREE], 1);
		assert_int_equal(info.granule_bytes, cases[i].granule);

		/* All of it can be allocated, not a granule more, and the last byte is there. */
		assert_int_equal(omnikv_client_open(pool, 0, &client), 0);
		assert_int_equal(omnikv_extent_alloc(client, cases[i].nr + 1, 1, NULL, OMNIKV_ALLOC_F_NO_ZERO, &ext),
				 -ENOSPC);
		assert_int_equal(omnikv_extent_alloc(client, cases[i].nr, 1, NULL, OMNIKV_ALLOC_F_NO_ZERO, &ext), 0);
		((unsigned char *)omnikv_pool_base(pool))[info.usable_bytes - 1] = 1;
		info = info_of(pool);
		assert_int_equal(info.free_bytes, 0);
		assert_int_equal(info.largest_free_bytes, 0);
		assert_int_equal(info.nr_extents[OMNIKV_EXTENT_FREE], 0);
		assert_int_equal(info.state_bytes[OMNIKV_EXTENT_PRIVATE], info.usable_bytes);
		omnikv_client_close(client);
		assert_int_equal(info_of(pool).free_bytes, info.usable_bytes);
		omnikv_pool_close(pool);
	}
}

static uint32_t nr_mappings(void)
{
	char line[512];
	uint32_t nr = 0;
	FILE *file = fopen("/proc/self/maps", "r");

	assert_non_null(file);
	while (fgets(line, sizeof(line), file))
		nr += strstr(line, "omnikv") || strstr(line, "---p") || strstr(line, "rw-s");
	fclose(file);
	return nr;
}

static uint32_t nr_descriptors(void)
{
	struct dirent *entry;
	uint32_t nr = 0;
	DIR *dir = opendir("/proc/self/fd");

	assert_non_null(dir);
	while ((entry = readdir(dir)))
		nr++;
	closedir(dir);
	return nr;
}

/* A pool, clients, extents, windows, all left to their owners' ends. */
static void use_and_leave(const char *spec)
{
	/* One thread, since the C library keeps the stacks of others. */
	struct omnikv_pool_config config = {
		.size = sizeof(config), .flags = OMNIKV_POOL_F_NO_HUGETLB, .nr_threads = 1,
	};
	struct omnikv_client *manager, *engine;
	struct omnikv_window *window;
	struct omnikv_extent ext[8];
	struct omnikv_bind bind;
	struct omnikv_pool *pool;

	assert_int_equal(omnikv_pool_open(spec, &config, &pool, NULL), 0);
	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &manager), 0);
	assert_int_equal(omnikv_client_open(pool, 0, &engine), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 4, 8, NULL, 0, ext), 0);
	assert_int_equal(omnikv_window_create(engine, MIB, OMNIKV_WINDOW_F_RW, &window), 0);
	bind = (struct omnikv_bind){ ext[0], 0, 8192, 8192 };
	assert_int_equal(omnikv_window_bind(window, &bind, 1, NULL), 0);
	assert_int_equal(omnikv_extent_seal(engine, &ext[4], 4), 0);
	assert_int_equal(omnikv_extent_lease(engine, &ext[4], 4), 0);
	assert_int_equal(omnikv_extent_io_get(engine, &ext[1], 1), 0);
	omnikv_client_close(engine);
	assert_int_equal(info_of(pool).nr_extents[OMNIKV_EXTENT_QUARANTINED], 1);
	assert_int_equal(info_of(pool).nr_extents[OMNIKV_EXTENT_SEALED], 4);
	omnikv_pool_close(pool);	/* with the manager open and a transfer never ended */
}

static void nothing_is_left_behind(void **state)
{
	uint32_t mappings, descriptors;
	int i;

	(void)state;
	use_and_leave("4M");
	mappings = nr_mappings();
	descriptors = nr_descriptors();
	for (i = 0; i < 20; i++) {
		use_and_leave("4M");
		use_and_leave("embedded:1M:pool_left_behind.tmp");
		assert_int_equal(unlink("pool_left_behind.tmp"), 0);
	}
	assert_int_equal(nr_mappings(), mappings);
	assert_int_equal(nr_descriptors(), descriptors);
}

struct heard {
	uint32_t	nr_progress;
	uint64_t	done;
	uint64_t	total;
	uint32_t	nr_notice;
	char		line[512];
};

static void on_progress(void *opaque, uint64_t done, uint64_t total)
{
	struct heard *heard = opaque;

	heard->nr_progress++;
	heard->done = done;
	heard->total = total;
}

static void on_notice(void *opaque, const char *line)
{
	struct heard *heard = opaque;

	heard->nr_notice++;
	snprintf(heard->line, sizeof(heard->line), "%s", line);
}

static void opening_populates_reports_and_says_when_pages_are_small(void **state)
{
	struct heard heard = { 0 };
	struct omnikv_pool_config config = {
		.size = sizeof(config), .nr_threads = 3, .progress = on_progress, .notice = on_notice, .opaque = &heard,
	};
	struct omnikv_pool_info info;
	struct omnikv_pool *pool;
	uint32_t node;
	uint64_t resident = 0;

	(void)state;
	assert_int_equal(omnikv_pool_open("40M", &config, &pool, NULL), 0);
	info = info_of(pool);
	assert_true(heard.nr_progress >= 2);
	assert_int_equal(heard.done, heard.total);
	assert_true(heard.total >= 40 * MIB);
	assert_int_equal(heard.nr_notice, info.page_kind == OMNIKV_PAGES_SMALL);
	if (heard.nr_notice) {
		assert_non_null(strstr(heard.line, "4-KiB pages"));
		assert_non_null(strstr(heard.line, "nr_hugepages"));
		assert_null(strchr(heard.line, '\n'));
	}
	assert_true(info.nr_nodes >= 1);
	for (node = 0; node < info.nr_nodes; node++)
		resident += info.node_bytes[node];
	assert_true(resident >= 40 * MIB);
	omnikv_pool_close(pool);

	memset(&heard, 0, sizeof(heard));
	config.flags = OMNIKV_POOL_F_NO_POPULATE | OMNIKV_POOL_F_NO_HUGETLB;
	assert_int_equal(omnikv_pool_open("40M", &config, &pool, NULL), 0);
	assert_int_equal(heard.nr_progress, 0);
	info = info_of(pool);
	for (node = 0, resident = 0; node < info.nr_nodes; node++)
		resident += info.node_bytes[node];
	assert_true(resident <= 4 * MIB);
	omnikv_pool_close(pool);
}

static void options_are_checked(void **state)
{
	struct { struct omnikv_pool_config config; uint64_t tail; } longer = { .config = { .size = sizeof(longer) } };
	struct omnikv_pool_config config = { .size = sizeof(config) };
	struct { size_t size; uint64_t asked_bytes; uint64_t guard; } small = { 16, 0, 99 };
	struct omnikv_pool *pool;
	struct omnikv_error err;

	(void)state;
#define REFUSED(ret, field, value, word) do {					\
		config = (struct omnikv_pool_config){ .size = sizeof(config) };	\
		config.field = value;						\
		assert_int_equal(omnikv_pool_open("4M", &config, &pool, &err), ret); \
		if (!strstr(err.text, word))					\
			fail_msg("%s", err.text);				\
	} while (0)
	REFUSED(-EINVAL, flags, 0x80000000u, "flag");
	REFUSED(-EINVAL, reserved, 1, "reserved");
	REFUSED(-EINVAL, granule_bytes, 4095, "4096");
	REFUSED(-EINVAL, granule_bytes, 6144, "4096");
	REFUSED(-EINVAL, granule_bytes, 8 << 20, "granule");
	REFUSED(-EINVAL, size, 0, "size");
	REFUSED(-ENOENT, flags, OMNIKV_POOL_F_OPEN_ONLY, "no file");
	REFUSED(-EINVAL, numa, "0", "bind:");
	REFUSED(-EINVAL, numa, "bind", "bind:");
	REFUSED(-EINVAL, numa, "local:0", "bind:");
	longer.tail = 1;
	assert_int_equal(omnikv_pool_open("4M", &longer.config, &pool, &err), -E2BIG);
	longer.tail = 0;
	assert_int_equal(omnikv_pool_open("4M", &longer.config, &pool, &err), 0);
	assert_int_equal(omnikv_pool_info(pool, (struct omnikv_pool_info *)&small), 0);
	assert_int_equal(small.asked_bytes, 4 * MIB);
	assert_int_equal(small.guard, 99);
	small.size = 0;
	assert_int_equal(omnikv_pool_info(pool, (struct omnikv_pool_info *)&small), -EINVAL);
	omnikv_pool_close(pool);
	assert_int_equal(omnikv_pool_open("4M", NULL, NULL, &err), -EINVAL);
	assert_int_equal(omnikv_pool_open("kmod:none-of-this-name", NULL, &pool, &err) < 0, 1);
	assert_int_not_equal(err.text[0], '\0');
	/* More than any host has. */
	assert_int_equal(omnikv_pool_open("8000T", NULL, &pool, &err), -EINVAL);
	assert_non_null(strstr(err.text, "larger granules"));
	assert_int_equal(omnikv_pool_open("4T", NULL, &pool, &err), -ENOMEM);
	assert_true(strstr(err.text, "available") || strstr(err.text, "cannot map"));
	omnikv_pool_close(NULL);
	omnikv_client_close(NULL);
	omnikv_window_destroy(NULL);
}

/* Under a limit, in a child: the errno, and a word that the text must have. */
static void refused_under(int resource, rlim_t limit, int want, const char *word)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		struct rlimit rlimit = { limit, limit };
		struct omnikv_pool_config config = { .size = sizeof(config), .flags = OMNIKV_POOL_F_NO_HUGETLB };
		struct omnikv_pool *pool;
		struct omnikv_error err;

		setrlimit(resource, &rlimit);
		_exit(omnikv_pool_open("1G", &config, &pool, &err) != want || !strstr(err.text, word));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void limits_of_the_process_are_named(void **state)
{
	(void)state;
	refused_under(RLIMIT_FSIZE, 1 << 20, -ENOMEM, "RLIMIT_FSIZE");
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	refused_under(RLIMIT_AS, 512 << 20, -ENOMEM, "RLIMIT_AS");
#endif
}

static void huge_pages_are_refused_where_there_are_none(void **state)
{
	struct omnikv_pool_config config = { .size = sizeof(config), .flags = OMNIKV_POOL_F_REQUIRE_HUGE };
	struct omnikv_pool *pool;
	struct omnikv_error err;
	int ret;

	(void)state;
	ret = omnikv_pool_open("4M", &config, &pool, &err);
	if (!ret) {
		assert_int_not_equal(info_of(pool).page_kind, OMNIKV_PAGES_SMALL);
		omnikv_pool_close(pool);
		return;
	}
	assert_int_equal(ret, -ENOMEM);
	assert_non_null(strstr(err.text, "nr_hugepages"));
}

static void a_numa_policy_is_applied(void **state)
{
	static const char *const bad[] = {
		"bind:", "bind:all", "bind:!0", "bind:0,", "bind:,0", "bind:0-", "bind:-1", "prefer:1023",
		"interleave:0-1023", "bind:0x", "bind:99999999999999999999",
	};
	struct omnikv_pool_config config = { .size = sizeof(config), .numa = "bind:0" };
	size_t i;
	struct omnikv_pool *pool;
	struct omnikv_error err;
	int ret;

	(void)state;
	ret = omnikv_pool_open("4M", &config, &pool, &err);
	if (ret == -EOPNOTSUPP) {
		assert_non_null(strstr(err.text, "NUMA"));
		return;
	}
	assert_int_equal(ret, 0);
	assert_true(info_of(pool).node_bytes[0] >= 4 * MIB);
	omnikv_pool_close(pool);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		config.numa = bad[i];
		assert_int_equal(omnikv_pool_open("4M", &config, &pool, &err), -EINVAL);
		assert_non_null(strstr(err.text, "nodes"));
	}
	config.numa = "interleave:0-0,0";
	assert_int_equal(omnikv_pool_open("4M", &config, &pool, &err), 0);
	omnikv_pool_close(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_that_are_no_whole_pages),
		cmocka_unit_test(nothing_is_left_behind),
		cmocka_unit_test(opening_populates_reports_and_says_when_pages_are_small),
		cmocka_unit_test(options_are_checked),
		cmocka_unit_test(limits_of_the_process_are_named),
		cmocka_unit_test(huge_pages_are_refused_where_there_are_none),
		cmocka_unit_test(a_numa_policy_is_applied),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

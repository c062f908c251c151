// SPDX-License-Identifier: GPL-2.0-only
/*
 * Every malloc, mmap and madvise of open, alloc, lease, bind and seal fails once: an errno, no crash,
 * and nothing left behind.
 *
 * The allocation calls are replaced in this program, which a sanitizer would not stand: it skips there.
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
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

#include <omnikv/pool.h>
#include <omnikv/window.h>

#include "failpoint.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED 1
#endif
#endif

static int64_t countdown = -1;	/* the call that brings it to 0 fails */
static int64_t nr_live;		/* blocks allocated and not freed, while counting */
static bool is_counting;

#ifndef IS_SANITIZED
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t nr, size_t size);
void *__libc_realloc(void *old, size_t size);
void __libc_free(void *block);

static bool fails_now(void)
{
	if (!is_counting || countdown < 0 || countdown-- != 0)
		return false;
	errno = ENOMEM;
	return true;
}

void *malloc(size_t size)
{
	if (fails_now())
		return NULL;
	nr_live += is_counting;
	return __libc_malloc(size);
}

void *calloc(size_t nr, size_t size)
{
	if (fails_now())
		return NULL;
	nr_live += is_counting;
	return __libc_calloc(nr, size);
}

void *realloc(void *old, size_t size)
{
	if (fails_now())
		return NULL;
	nr_live += is_counting && !old;
	return __libc_realloc(old, size);
}

void free(void *block)
{
	nr_live -= is_counting && block;
	__libc_free(block);
}

void *mmap(void *at, size_t bytes, int prot, int flags, int fd, off_t off)
{
	if (fails_now())
		return MAP_FAILED;
	return (void *)syscall(SYS_mmap, at, bytes, prot, flags, fd, off);
}

int madvise(void *at, size_t bytes, int advice)
{
	if (fails_now())
		return -1;
	return (int)syscall(SYS_madvise, at, bytes, advice);
}
#endif

#define NR	70u

/* One way through everything that allocates; ends at the first error. */
static int run(const char *spec, uint32_t flags)
{
	struct omnikv_pool_config config = {
		.size = sizeof(config), .flags = OMNIKV_POOL_F_NO_HUGETLB | flags, .nr_threads = 1,
	};
	static struct omnikv_extent ext[NR];
	static struct omnikv_bind binds[NR];
	struct omnikv_client *manager = NULL, *engine = NULL;
	struct omnikv_window *rw = NULL, *ro = NULL;
	struct omnikv_pool *pool = NULL;
	uint32_t i;
	int ret;

	ret = omnikv_pool_open(spec, &config, &pool, NULL);
	if (ret)
		return ret;
	ret = omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &manager);
	if (!ret)
		ret = omnikv_client_open(pool, 0, &engine);
	if (!ret)
		ret = omnikv_extent_alloc(engine, 2, NR, NULL, 0, ext);
	if (!ret)
		ret = omnikv_window_create(engine, 1 << 20, OMNIKV_WINDOW_F_RW, &rw);
	/* Reversed, so that no two merge, and most in a second call, so that the records grow. */
	for (i = 0; i < NR; i++)
		binds[i] = (struct omnikv_bind){ ext[i], 0, (NR - i) * 8192ull, 4096 };
	if (!ret)
		ret = omnikv_window_bind(rw, binds, 3, NULL);
	if (!ret)
		ret = omnikv_window_bind(rw, binds + 3, NR - 3, NULL);
	if (!ret)
		ret = omnikv_window_unbind(rw, 8192, 65536);
	if (!ret)
		ret = omnikv_extent_io_get(engine, ext, 1);
	if (!ret)
		omnikv_extent_io_put(engine, ext, 1);
	if (!ret)
		ret = omnikv_extent_seal(engine, ext, NR);
	if (!ret)
		ret = omnikv_extent_lease(manager, ext, 1);
	if (!ret)
		ret = omnikv_extent_lease(manager, ext, NR);
	if (!ret)
		ret = omnikv_window_create(manager, 4 << 20, 0, &ro);
	if (!ret)
		ret = omnikv_window_bind(ro, binds, NR, NULL);
	omnikv_window_destroy(ro);
	omnikv_client_close(engine);
	omnikv_client_close(manager);
	omnikv_pool_close(pool);
	return ret;
}

static uint32_t nr_lines(const char *path)
{
	FILE *file = fopen(path, "r");
	uint32_t nr = 0;
	int c;

	while ((c = fgetc(file)) != EOF)
		nr += c == '\n';
	fclose(file);
	return nr;
}

static uint32_t nr_descriptors(void)
{
	DIR *dir = opendir("/proc/self/fd");
	uint32_t nr = 0;

	while (readdir(dir))
		nr++;
	closedir(dir);
	return nr;
}

static uint32_t fail_each(const char *spec, const char *file)
{
	uint32_t mappings, descriptors, nr_failed = 0;
	int64_t nth;
	int ret;

	assert_int_equal(run(spec, OMNIKV_POOL_F_NO_POPULATE), 0);
	mappings = nr_lines("/proc/self/maps");
	descriptors = nr_descriptors();
	for (nth = 0;; nth++) {
		if (file)
			unlink(file);
		countdown = nth;
		nr_live = 0;
		is_counting = true;
		ret = run(spec, OMNIKV_POOL_F_NO_POPULATE);
		is_counting = false;
		assert_int_equal(nr_live, 0);
		assert_int_equal(nr_descriptors(), descriptors);
		assert_int_equal(nr_lines("/proc/self/maps"), mappings);
		if (countdown >= 0)
			break;
		/* A few failures are harmless: an advice, a name that only serves an error line. */
		if (ret)
			nr_failed++;
		assert_true(ret == 0 || ret == -ENOMEM);
	}
	assert_int_equal(ret, 0);
	if (file)
		unlink(file);
	return nr_failed;
}

static void each_failed_allocation(void **state)
{
	(void)state;
#ifdef IS_SANITIZED
	print_message("this test replaces malloc, and so does a sanitizer\n");
	skip();
#endif
	/* Pool, clients, windows with their slots, two records arrays, the hold tables, and a mapping a bind. */
	assert_true(fail_each("2M", NULL) > 2 * NR);
	/* Where there is a file system in memory: on a disk each close would write back. */
	if (!access("/dev/shm", W_OK)) {
		char file[64], spec[96];

		snprintf(file, sizeof(file), "/dev/shm/pool_failed_allocation.%d", getpid());
		snprintf(spec, sizeof(spec), "embedded:2M:%s", file);
		assert_true(fail_each(spec, file) > 2 * NR);
	}
}

static void a_host_without_memory_says_so_while_populating(void **state)
{
	static const char *const points[] = { "pool.populate", "pool.alloc", "pool.io_get", "window.create", "window.map" };
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
		struct okv_failpoint point = { .name = points[i], .error = ENOMEM };

		assert_int_equal(okv_failpoint_arm(&point), 0);
		assert_int_equal(run("2M", 0), -ENOMEM);
		okv_failpoint_disarm_all();
	}
	assert_int_equal(run("2M", 0), 0);
}

static void a_seal_that_cannot_unbind_seals_nothing(void **state)
{
	struct okv_failpoint point = { .name = "window.unmap", .error = ENOMEM, .nth = 2 };
	struct omnikv_extent_info info = { .size = sizeof(info) };
	struct omnikv_pool_config config = { .size = sizeof(config), .flags = OMNIKV_POOL_F_NO_HUGETLB };
	struct omnikv_client *client;
	struct omnikv_window *window;
	struct omnikv_extent ext[3];
	struct omnikv_bind binds[3];
	struct omnikv_pool *pool;
	int i;

	(void)state;
	assert_int_equal(omnikv_pool_open("2M", &config, &pool, NULL), 0);
	assert_int_equal(omnikv_client_open(pool, 0, &client), 0);
	assert_int_equal(omnikv_extent_alloc(client, 1, 3, NULL, 0, ext), 0);
	assert_int_equal(omnikv_window_create(client, 65536, OMNIKV_WINDOW_F_RW, &window), 0);
	for (i = 0; i < 3; i++)
		binds[i] = (struct omnikv_bind){ ext[i], 0, i * 8192ull, 4096 };
	assert_int_equal(omnikv_window_bind(window, binds, 3, NULL), 0);
	assert_int_equal(okv_failpoint_arm(&point), 0);
	assert_int_equal(omnikv_extent_seal(client, ext, 3), -ENOMEM);
	assert_int_equal(omnikv_window_unbind(window, 0, 65536), -ENOMEM);
	okv_failpoint_disarm_all();
	for (i = 0; i < 3; i++) {
		assert_int_equal(omnikv_extent_query(client, &ext[i], &info), 0);
		assert_int_equal(info.state, OMNIKV_EXTENT_PRIVATE);
	}
	assert_int_equal(omnikv_extent_seal(client, ext, 3), 0);
	assert_int_equal(omnikv_extent_query(client, &ext[2], &info), 0);
	assert_int_equal(info.nr_refs, 0);
	omnikv_client_close(client);
	omnikv_pool_close(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_failed_allocation),
		cmocka_unit_test(a_host_without_memory_says_so_while_populating),
		cmocka_unit_test(a_seal_that_cannot_unbind_seals_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

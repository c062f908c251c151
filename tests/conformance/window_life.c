// SPDX-License-Identifier: GPL-2.0-only
/*
 * Windows of a pool: binding, replacing, unbinding, sealing, destroying.
 *
 * Whether memory can be touched is asked of the kernel (process_vm_readv of ourselves), so that
 * no test has to die for it. One thread.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <omnikv/window.h>

#include "tests/harness/any_pool.h"

#define PAGE	4096ull

struct fixture {
	struct omnikv_pool	*pool;
	struct omnikv_client	*manager;
	struct omnikv_client	*engine;
};

static int set_up(void **state)
{
	static struct fixture fix;
	struct omnikv_pool_config config = { .size = sizeof(config), .flags = OMNIKV_POOL_F_NO_HUGETLB };

	memset(&fix, 0, sizeof(fix));
	*state = &fix;
	return any_pool_open("4M", &config, &fix.pool) ||
	       omnikv_client_open(fix.pool, OMNIKV_CLIENT_F_MANAGER, &fix.manager) ||
	       omnikv_client_open(fix.pool, 0, &fix.engine);
}

static int tear_down(void **state)
{
	struct fixture *fix = *state;

	omnikv_client_close(fix->engine);
	omnikv_client_close(fix->manager);
	omnikv_pool_close(fix->pool);
	return 0;
}

static bool can_read(const void *at)
{
	char byte;
	struct iovec to = { &byte, 1 }, from = { (void *)at, 1 };

	return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

static bool can_write(void *at)
{
	char byte = 0;
	struct iovec to = { at, 1 }, from = { &byte, 1 };

	return process_vm_writev(getpid(), &from, 1, &to, 1, 0) == 1;
}

static unsigned int refs_of(struct fixture *fix, const struct omnikv_extent *ext)
{
	struct omnikv_extent_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_extent_query(fix->engine, ext, &info), 0);
	return info.nr_refs;
}

static uint64_t quarantined(struct fixture *fix)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_pool_info(fix->pool, &info), 0);
	return info.nr_extents[OMNIKV_EXTENT_QUARANTINED];
}

static void windows_show_the_bytes_of_what_is_bound(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent ext[3];
	struct omnikv_window *rw;
	struct omnikv_bind binds[3];
	unsigned char *base;
	uint32_t nr_bound;
	int i;

	assert_int_equal(omnikv_extent_alloc(fix->engine, 4, 3, NULL, 0, ext), 0);
	for (i = 0; i < 3; i++) {
		memset(omnikv_pool_addr(fix->pool, &ext[i]), 10 + i, 4 * PAGE);
		*((unsigned char *)omnikv_pool_addr(fix->pool, &ext[i]) + PAGE) = 20 + i;
	}
	assert_int_equal(omnikv_window_create(fix->engine, 64 * PAGE, OMNIKV_WINDOW_F_RW, &rw), 0);
	base = omnikv_window_base(rw);
	assert_false(can_read(base));

	/* The second half of each extent, in reverse, with a hole behind the second. */
	binds[0] = (struct omnikv_bind){ ext[2], PAGE, 0, 2 * PAGE };
	binds[1] = (struct omnikv_bind){ ext[1], PAGE, 2 * PAGE, 2 * PAGE };
	binds[2] = (struct omnikv_bind){ ext[0], PAGE, 5 * PAGE, 2 * PAGE };
	assert_int_equal(omnikv_window_bind(rw, binds, 3, &nr_bound), 0);
	assert_int_equal(nr_bound, 3);
	assert_int_equal(base[0], 22);
	assert_int_equal(base[1], 12);
	assert_int_equal(base[2 * PAGE], 21);
	assert_int_equal(base[5 * PAGE], 20);
	assert_false(can_read(base + 4 * PAGE));
	assert_false(can_read(base + 7 * PAGE));
	base[2 * PAGE + 5] = 99;
	assert_int_equal(*((unsigned char *)omnikv_pool_addr(fix->pool, &ext[1]) + PAGE + 5), 99);
	assert_int_equal(refs_of(fix, &ext[0]), 1);

	/* Half of the first bind goes: it still counts. Then the rest: it does not. */
	assert_int_equal(omnikv_window_unbind(rw, 0, PAGE), 0);
	assert_false(can_read(base));
	assert_true(can_read(base + PAGE));
	assert_int_equal(refs_of(fix, &ext[2]), 1);
	assert_int_equal(omnikv_window_unbind(rw, 0, 2 * PAGE), 0);
	assert_int_equal(refs_of(fix, &ext[2]), 0);

	/* Binding over replaces. */
	binds[0] = (struct omnikv_bind){ ext[2], 0, 2 * PAGE, 4 * PAGE };
	assert_int_equal(omnikv_window_bind(rw, binds, 1, NULL), 0);
	assert_int_equal(refs_of(fix, &ext[1]), 0);
	assert_int_equal(refs_of(fix, &ext[0]), 1);
	assert_int_equal(base[2 * PAGE], 12);
	assert_int_equal(base[6 * PAGE], 10);
	omnikv_window_destroy(rw);
	assert_int_equal(refs_of(fix, &ext[0]), 0);
	assert_int_equal(refs_of(fix, &ext[2]), 0);
}

static void sealing_takes_the_extent_out_of_writable_windows(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent ext[2];
	struct omnikv_window *rw, *ro;
	struct omnikv_bind binds[2];
	unsigned char *base;

	assert_int_equal(omnikv_extent_alloc(fix->engine, 1, 2, NULL, 0, ext), 0);
	memset(omnikv_pool_addr(fix->pool, &ext[0]), 7, PAGE);
	assert_int_equal(omnikv_window_create(fix->engine, 4 * PAGE, OMNIKV_WINDOW_F_RW, &rw), 0);
	assert_int_equal(omnikv_window_create(fix->engine, 4 * PAGE, 0, &ro), 0);
	binds[0] = (struct omnikv_bind){ ext[0], 0, 0, PAGE };
	binds[1] = (struct omnikv_bind){ ext[1], 0, PAGE, PAGE };
	assert_int_equal(omnikv_window_bind(ro, binds, 1, NULL), -EPERM);
	assert_int_equal(omnikv_window_bind(rw, binds, 2, NULL), 0);
	base = omnikv_window_base(rw);
	assert_true(can_write(base));
	assert_int_equal(omnikv_extent_seal(fix->engine, ext, 1), 0);
	assert_false(can_read(base));
	assert_true(can_write(base + PAGE));
	assert_int_equal(refs_of(fix, &ext[0]), 0);
	assert_int_equal(omnikv_window_bind(rw, binds, 1, NULL), -EPERM);

	/* Read-only with a lease, without any way to make it writable. */
	base = omnikv_window_base(ro);
	assert_int_equal(omnikv_window_bind(ro, binds, 1, NULL), -EPERM);
	assert_int_equal(omnikv_extent_lease(fix->engine, ext, 1), 0);
	assert_int_equal(omnikv_window_bind(ro, binds, 1, NULL), 0);
	assert_int_equal(base[5], 7);
	assert_false(can_write(base));
	assert_int_equal(mprotect(base, PAGE, PROT_READ | PROT_WRITE), -1);

	/* A bind keeps the extent from re-use, also without the lease. */
	assert_int_equal(omnikv_extent_release(fix->engine, ext, 1), 0);
	assert_int_equal(omnikv_extent_free(fix->manager, ext, 1), 0);
	assert_int_equal(quarantined(fix), 1);
	assert_int_equal(base[5], 7);
	assert_int_equal(omnikv_window_unbind(ro, 0, 4 * PAGE), 0);
	assert_int_equal(quarantined(fix), 0);
	/* The two windows are left to the client's end. */
}

static void binds_outside_of_anything_are_refused(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent ext, stale;
	struct omnikv_window *rw;
	uint32_t nr_bound = 9;
	struct omnikv_bind good, bad;
	static const struct { uint64_t extent_off, window_off, bytes; } cases[] = {
		{ 0, 0, 0 }, { 0, 0, PAGE + 1 }, { 1, 0, PAGE }, { 0, 1, PAGE }, { 0, 0, 3 * PAGE },
		{ 2 * PAGE, 0, PAGE }, { 0, 8 * PAGE, PAGE }, { 0, 7 * PAGE, 2 * PAGE },
		{ UINT64_MAX - PAGE + 1, 0, PAGE }, { 0, UINT64_MAX - PAGE + 1, PAGE },
		{ PAGE, 0, UINT64_MAX - PAGE + 1 },
	};
	size_t i;

	assert_int_equal(omnikv_extent_alloc(fix->engine, 2, 1, NULL, 0, &ext), 0);
	assert_int_equal(omnikv_window_create(fix->engine, 0, 0, &rw), -EINVAL);
	assert_int_equal(omnikv_window_create(fix->engine, 1, 0, &rw), -EINVAL);
	assert_int_equal(omnikv_window_create(fix->engine, PAGE, 2, &rw), -EINVAL);
	assert_int_equal(omnikv_window_create(fix->engine, 8 * PAGE, OMNIKV_WINDOW_F_RW, &rw), 0);
	good = (struct omnikv_bind){ ext, 0, 0, PAGE };
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct omnikv_bind list[2];

		bad = (struct omnikv_bind){ ext, cases[i].extent_off, cases[i].window_off, cases[i].bytes };
		list[0] = good;
		list[1] = bad;
		assert_int_equal(omnikv_window_bind(rw, list, 2, &nr_bound), -EINVAL);
		assert_int_equal(nr_bound, 1);
		assert_int_equal(omnikv_window_bind(rw, &bad, 1, &nr_bound), -EINVAL);
		assert_int_equal(nr_bound, 0);
	}
	assert_int_equal(omnikv_window_unbind(rw, 0, 0), -EINVAL);
	assert_int_equal(omnikv_window_unbind(rw, 0, 9 * PAGE), -EINVAL);
	assert_int_equal(omnikv_window_unbind(rw, PAGE, UINT64_MAX - PAGE + 1), -EINVAL);
	assert_int_equal(omnikv_window_unbind(rw, 0, 8 * PAGE), 0);
	assert_int_equal(refs_of(fix, &ext), 0);
	stale = ext;
	stale.generation += 4;
	bad = (struct omnikv_bind){ stale, 0, 0, PAGE };
	assert_int_equal(omnikv_window_bind(rw, &bad, 1, NULL), -ESTALE);
}

static void sealing_unbinds_what_is_left_of_a_bind(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent ext[2];
	struct omnikv_window *rw[2];
	struct omnikv_bind bind;
	unsigned char *base;

	assert_int_equal(omnikv_extent_alloc(fix->engine, 8, 2, NULL, 0, ext), 0);
	assert_int_equal(omnikv_window_create(fix->engine, 16 * PAGE, OMNIKV_WINDOW_F_RW, &rw[0]), 0);
	assert_int_equal(omnikv_window_create(fix->engine, 16 * PAGE, OMNIKV_WINDOW_F_RW, &rw[1]), 0);
	bind = (struct omnikv_bind){ ext[0], 0, PAGE, 8 * PAGE };
	assert_int_equal(omnikv_window_bind(rw[0], &bind, 1, NULL), 0);
	assert_int_equal(omnikv_window_bind(rw[1], &bind, 1, NULL), 0);
	/* Of the bind at pages 1 to 8: page 1 goes, 3 and 4 show the other extent, 6 goes. */
	assert_int_equal(omnikv_window_unbind(rw[0], PAGE, PAGE), 0);
	bind = (struct omnikv_bind){ ext[1], 0, 3 * PAGE, 2 * PAGE };
	assert_int_equal(omnikv_window_bind(rw[0], &bind, 1, NULL), 0);
	assert_int_equal(omnikv_window_unbind(rw[0], 6 * PAGE, PAGE), 0);
	assert_int_equal(refs_of(fix, &ext[0]), 2);
	assert_int_equal(refs_of(fix, &ext[1]), 1);
	base = omnikv_window_base(rw[0]);
	assert_true(can_read(base + 5 * PAGE));
	assert_int_equal(omnikv_extent_seal(fix->engine, ext, 1), 0);
	assert_int_equal(refs_of(fix, &ext[0]), 0);
	assert_false(can_read(base + 2 * PAGE));
	assert_true(can_write(base + 3 * PAGE));
	assert_true(can_write(base + 4 * PAGE));
	assert_false(can_read(base + 5 * PAGE));
	assert_false(can_read(base + 7 * PAGE));
	assert_false(can_read((char *)omnikv_window_base(rw[1]) + PAGE));
	/* Not in the order in which they came. */
	omnikv_window_destroy(rw[0]);
	assert_int_equal(refs_of(fix, &ext[1]), 0);
	assert_ptr_equal(omnikv_client_pool(fix->engine), fix->pool);
}

static void a_forked_child_sees_neither_pool_nor_windows(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent ext;
	struct omnikv_window *rw;
	struct omnikv_bind bind;
	int status;
	pid_t pid;

	assert_int_equal(omnikv_extent_alloc(fix->engine, 1, 1, NULL, 0, &ext), 0);
	assert_int_equal(omnikv_window_create(fix->engine, PAGE, OMNIKV_WINDOW_F_RW, &rw), 0);
	bind = (struct omnikv_bind){ ext, 0, 0, PAGE };
	assert_int_equal(omnikv_window_bind(rw, &bind, 1, NULL), 0);
	assert_true(can_read(omnikv_window_base(rw)));
	pid = fork();
	if (!pid)
		_exit(can_read(omnikv_pool_base(fix->pool)) || can_read(omnikv_window_base(rw)));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		TEST(windows_show_the_bytes_of_what_is_bound),
		TEST(sealing_takes_the_extent_out_of_writable_windows),
		TEST(binds_outside_of_anything_are_refused),
		TEST(sealing_unbinds_what_is_left_of_a_bind),
		TEST(a_forked_child_sees_neither_pool_nor_windows),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

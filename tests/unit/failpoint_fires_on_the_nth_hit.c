// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fail-points: which hit fires, what it yields, and that threads may hit while others arm.
 *
 * Expected values follow from the contract in failpoint.h. Each test disarms all at its end.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "failpoint.h"

static int disarm(void **state)
{
	(void)state;
	okv_failpoint_disarm_all();
	return 0;
}

static void fires_from_nth_for_times(void **state)
{
	static const int expected[] = { 0, 0, ENOSPC, ENOSPC, 0, 0 };
	struct okv_failpoint point = { .name = "t.a", .nth = 3, .times = 2, .error = ENOSPC };

	(void)state;
	assert_int_equal(okv_failpoint_arm(&point), 0);
	for (unsigned int i = 0; i < 6; i++) {
		assert_int_equal(OKV_FAILPOINT("t.b"), 0);
		assert_int_equal(OKV_FAILPOINT("t.a"), expected[i]);
	}
	assert_int_equal(okv_failpoint_hits("t.a"), 6);
	assert_int_equal(okv_failpoint_hits("t.b"), 0);

	okv_failpoint_disarm("t.a");
	assert_int_equal(okv_failpoint_hits("t.a"), 0);
	assert_int_equal(OKV_FAILPOINT("t.a"), 0);
}

static void fires_always_by_default(void **state)
{
	struct okv_failpoint point = { .name = "t.a", .error = EIO };

	(void)state;
	assert_int_equal(okv_failpoint_arm(&point), 0);
	for (unsigned int i = 0; i < 5; i++)
		assert_int_equal(OKV_FAILPOINT("t.a"), EIO);

	/* Arming anew replaces, and counts from the start. */
	point.nth = 2;
	assert_int_equal(okv_failpoint_arm(&point), 0);
	assert_int_equal(OKV_FAILPOINT("t.a"), 0);
	assert_int_equal(OKV_FAILPOINT("t.a"), EIO);
}

static void refuses_bad_names_and_too_many(void **state)
{
	char name[65];
	struct okv_failpoint point = { .name = NULL };

	(void)state;
	assert_int_equal(okv_failpoint_arm(&point), -EINVAL);
	point.name = "";
	assert_int_equal(okv_failpoint_arm(&point), -EINVAL);
	memset(name, 'x', 64);
	name[64] = '\0';
	point.name = name;
	assert_int_equal(okv_failpoint_arm(&point), -EINVAL);
	name[63] = '\0';
	assert_int_equal(okv_failpoint_arm(&point), 0);
	for (unsigned int i = 1; i < 32; i++) {
		snprintf(name, sizeof(name), "t.%u", i);
		assert_int_equal(okv_failpoint_arm(&point), 0);
	}
	point.name = "one.more";
	assert_int_equal(okv_failpoint_arm(&point), -ENOSPC);
	okv_failpoint_disarm("t.7");
	assert_int_equal(okv_failpoint_arm(&point), 0);
}

static void text_arms_points(void **state)
{
	static const char *const bad[] = {
		"t.a:nth", "t.a:nth=", "t.a:nth=x", "t.a:nth=1x", "t.a:nth=-1", "t.a:nth=4294967296", "t.a:what=1",
		"t.a:error=4096", "t.a:kill=2", ":",
	};

	(void)state;
	assert_int_equal(okv_failpoint_arm_text("t.a:nth=2:times=1:error=5;t.b:error=28"), 0);
	assert_int_equal(OKV_FAILPOINT("t.a"), 0);
	assert_int_equal(OKV_FAILPOINT("t.a"), EIO);
	assert_int_equal(OKV_FAILPOINT("t.a"), 0);
	assert_int_equal(OKV_FAILPOINT("t.b"), ENOSPC);
	for (unsigned int i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(okv_failpoint_arm_text(bad[i]), -EINVAL);
}

static int count_and_fail(void *opaque, const char *name)
{
	int *count = opaque;

	assert_string_equal(name, "t.a");
	/* No lock is held here. */
	okv_failpoint_disarm("t.other");
	return ++*count == 2 ? EBUSY : 0;
}

static void callback_decides(void **state)
{
	int count = 0;
	struct okv_failpoint point = { .name = "t.a", .error = EIO, .fn = count_and_fail, .opaque = &count };

	(void)state;
	assert_int_equal(okv_failpoint_arm(&point), 0);
	assert_int_equal(OKV_FAILPOINT("t.a"), 0);
	assert_int_equal(OKV_FAILPOINT("t.a"), EBUSY);
	assert_int_equal(count, 2);
}

static void delay_sleeps_and_keeps_errno(void **state)
{
	struct okv_failpoint point = { .name = "t.a", .delay_ms = 20 };
	struct timespec a, b;
	int64_t ns;

	(void)state;
	assert_int_equal(okv_failpoint_arm(&point), 0);
	clock_gettime(CLOCK_MONOTONIC, &a);
	errno = EXDEV;
	assert_int_equal(OKV_FAILPOINT("t.a"), 0);
	assert_int_equal(errno, EXDEV);
	clock_gettime(CLOCK_MONOTONIC, &b);
	ns = (b.tv_sec - a.tv_sec) * INT64_C(1000000000) + (b.tv_nsec - a.tv_nsec);
	assert_true(ns >= 20000000);
}

static void kill_ends_the_process(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		okv_failpoint_arm_text("t.a:nth=2:kill=1");
		_exit(OKV_FAILPOINT("t.a") + OKV_FAILPOINT("t.a"));
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGKILL);
}

static void *hit_many(void *opaque)
{
	uintptr_t fired = 0;

	(void)opaque;
	for (unsigned int i = 0; i < 2000; i++)
		fired += OKV_FAILPOINT("t.a") == EIO;
	return (void *)fired;
}

static void threads_share_one_count(void **state)
{
	struct okv_failpoint point = { .name = "t.a", .nth = 100, .times = 1500, .error = EIO };
	struct okv_failpoint noise = { .name = "t.noise", .error = EIO };
	pthread_t threads[3];
	uintptr_t fired = 0;

	(void)state;
	assert_int_equal(okv_failpoint_arm(&point), 0);
	for (unsigned int i = 0; i < 3; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, hit_many, NULL), 0);
	for (unsigned int i = 0; i < 200; i++) {
		assert_int_equal(okv_failpoint_arm(&noise), 0);
		okv_failpoint_disarm("t.noise");
	}
	for (unsigned int i = 0; i < 3; i++) {
		void *result;

		assert_int_equal(pthread_join(threads[i], &result), 0);
		fired += (uintptr_t)result;
	}
	assert_int_equal(fired, 1500);
	assert_int_equal(okv_failpoint_hits("t.a"), 6000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(fires_from_nth_for_times, disarm),
		cmocka_unit_test_teardown(fires_always_by_default, disarm),
		cmocka_unit_test_teardown(refuses_bad_names_and_too_many, disarm),
		cmocka_unit_test_teardown(text_arms_points, disarm),
		cmocka_unit_test_teardown(callback_decides, disarm),
		cmocka_unit_test_teardown(delay_sleeps_and_keeps_errno, disarm),
		cmocka_unit_test_teardown(kill_ends_the_process, disarm),
		cmocka_unit_test_teardown(threads_share_one_count, disarm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

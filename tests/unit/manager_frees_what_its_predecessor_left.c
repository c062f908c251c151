// SPDX-License-Identifier: GPL-2.0-only
/*
 * A pool on a file whose process was killed holds sealed blocks that no index knows: the next
 * manager frees them, or the pool would fill up with what nobody can find.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <omnikv.h>

static void open_pool(const char *spec, struct omnikv_pool **pool, struct omnikv_client **client)
{
	struct omnikv_error err = { "" };

	if (omnikv_pool_open(spec, NULL, pool, &err))
		fail_msg("%s", err.text);
	assert_int_equal(omnikv_client_open(*pool, OMNIKV_CLIENT_F_MANAGER, client), 0);
}

/* 300 sealed extents of 2 granules, 5 META, 7 PRIVATE; then death. */
static void leave_and_die(const char *spec)
{
	struct omnikv_extent exts[300];
	struct omnikv_client *client;
	struct omnikv_pool *pool;

	open_pool(spec, &pool, &client);
	if (omnikv_extent_alloc(client, 2, 300, NULL, 0, exts) || omnikv_extent_seal(client, exts, 300) ||
	    omnikv_extent_alloc(client, 1, 5, NULL, OMNIKV_ALLOC_F_META, exts) ||
	    omnikv_extent_alloc(client, 3, 7, NULL, 0, exts))
		_exit(1);
	kill(getpid(), SIGKILL);
}

static void leftovers_are_free_again(void **state)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	char spec[64], path[] = "/dev/shm/omnikv-takeover-XXXXXX";
	struct omnikv_extent exts[512];
	struct omnikv_manager *manager;
	struct omnikv_client *client;
	struct omnikv_pool *pool;
	uint64_t from = 0;
	int status;
	pid_t pid;

	(void)state;
	assert_true(close(mkstemp(path)) == 0);
	unlink(path);
	snprintf(spec, sizeof(spec), "embedded:8M:%s", path);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		leave_and_die(spec);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));

	open_pool(spec, &pool, &client);
	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	assert_int_equal(info.nr_extents[OMNIKV_EXTENT_SEALED], 300);
	assert_int_equal(info.nr_extents[OMNIKV_EXTENT_META], 5);
	assert_int_equal(info.nr_extents[OMNIKV_EXTENT_PRIVATE], 0);

	assert_int_equal(omnikv_manager_create(client, NULL, &manager, NULL), 0);
	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	assert_int_equal(info.free_bytes, info.usable_bytes);
	assert_int_equal(omnikv_extent_list(client, 1u << OMNIKV_EXTENT_SEALED, &from, exts, 512), 0);
	assert_true(from == UINT64_MAX);
	assert_int_equal(omnikv_manager_destroy(manager), 0);
	omnikv_client_close(client);
	omnikv_pool_close(pool);
	unlink(path);
}

/* Two managers on one client: the second must not take the first one's blocks for leftovers. */
static void a_second_manager_is_refused(void **state)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_manager *manager, *second = NULL;
	struct omnikv_error err = { "" };
	struct omnikv_client *client;
	struct omnikv_extent cached;
	struct omnikv_pool *pool;

	(void)state;
	open_pool("8M", &pool, &client);
	assert_int_equal(omnikv_manager_create(client, NULL, &manager, NULL), 0);
	assert_int_equal(omnikv_extent_alloc(client, 1, 1, NULL, 0, &cached), 0);
	assert_int_equal(omnikv_extent_seal(client, &cached, 1), 0);
	assert_int_equal(omnikv_manager_create(client, NULL, &second, &err), -EBUSY);
	assert_null(second);
	assert_true(err.text[0] != '\0');
	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	assert_int_equal(info.nr_extents[OMNIKV_EXTENT_SEALED], 1);
	/* One after the other is as it was. */
	assert_int_equal(omnikv_manager_destroy(manager), 0);
	assert_int_equal(omnikv_manager_create(client, NULL, &second, NULL), 0);
	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	assert_int_equal(info.nr_extents[OMNIKV_EXTENT_SEALED], 0);
	assert_int_equal(omnikv_manager_destroy(second), 0);
	omnikv_client_close(client);
	omnikv_pool_close(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(leftovers_are_free_again),
		cmocka_unit_test(a_second_manager_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * In a process whose standard streams are closed, what the library keeps open is above them: or
 * text that the program prints would land in a pool.
 */
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <omnikv.h>

#include "fd.h"

static char dir[] = "/tmp/omnikv-fds-XXXXXX";
static char pool_path[64], store_path[64], store_file[96];

/* Which of 0 to 2 is open, as bits. */
static int low_fds(void)
{
	int bits = 0;

	for (int fd = 0; fd < 3; fd++)
		if (fcntl(fd, F_GETFD) >= 0)
			bits |= 1 << fd;
	return bits;
}

/* In a child without standard streams: exit status 0 when a pool and a store leave them closed. */
static int open_all(const char *spec)
{
	struct omnikv_spill_config config = { .size = sizeof(config), .capacity_bytes = 64 << 20 };
	struct omnikv_spill *spill;
	struct omnikv_client *client;
	struct omnikv_pool *pool;

	for (int fd = 0; fd < 3; fd++)
		close(fd);
	if (omnikv_pool_open(spec, NULL, &pool, NULL) || omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &client))
		return 8;
	if (low_fds())
		return low_fds();
	config.pool = pool;
	if (omnikv_spill_open(store_path, &config, &spill, NULL))
		return 9;
	if (low_fds())
		return low_fds();
	omnikv_spill_close(spill);
	omnikv_client_close(client);
	omnikv_pool_close(pool);
	return 0;
}

static void check(const char *spec)
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid)
		_exit(open_all(spec));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

static void pools_and_stores_leave_closed_streams_closed(void **state)
{
	char spec[96];

	(void)state;
	check("8M");
	snprintf(spec, sizeof(spec), "embedded:8M:%s", pool_path);
	check(spec);
	check(spec);
}

static void a_low_descriptor_is_moved_and_closed_on_exec(void **state)
{
	int saved = fcntl(0, F_DUPFD_CLOEXEC, 10), low, fd, flags;
	bool is_gone;

	(void)state;
	assert_true(saved >= 10);
	close(0);
	low = open("/dev/null", O_RDONLY);
	fd = okv_fd_high(low);
	flags = fcntl(fd, F_GETFD);
	is_gone = fcntl(0, F_GETFD) < 0;
	dup2(saved, 0);
	assert_int_equal(low, 0);
	assert_true(fd > 2);
	assert_int_equal(flags, FD_CLOEXEC);
	assert_true(is_gone);
	assert_int_equal(okv_fd_high(fd), fd);
	assert_int_equal(okv_fd_high(-1), -1);
	close(fd);
	close(saved);
}

static int set_up(void **state)
{
	(void)state;
	if (!mkdtemp(dir))
		return -1;
	snprintf(pool_path, sizeof(pool_path), "%s/pool", dir);
	snprintf(store_path, sizeof(store_path), "%s/store", dir);
	snprintf(store_file, sizeof(store_file), "%s/omnikv.spill", store_path);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	unlink(pool_path);
	unlink(store_file);
	rmdir(store_path);
	return rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pools_and_stores_leave_closed_streams_closed),
		cmocka_unit_test(a_low_descriptor_is_moved_and_closed_on_exec),
	};

	return cmocka_run_group_tests(tests, set_up, tear_down);
}

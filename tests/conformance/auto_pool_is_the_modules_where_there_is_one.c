// SPDX-License-Identifier: GPL-2.0-only
/*
 * "auto:SIZE[:NAME]" is a pool of the kernel module where that is loaded and lets this user make
 * one, and memory of the process, with a notice that says why, where not. The guests of the kmod
 * lane show the one side, machines without it the other. One thread, and forks.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "provider.h"

#define NAMED	"auto:8M:auto-test"

struct told {
	int		nr_notices;
	char		notice[512];
	uint64_t	done, total;
};

static void on_notice(void *opaque, const char *line)
{
	struct told *told = opaque;

	told->nr_notices++;
	snprintf(told->notice, sizeof(told->notice), "%s", line);
}

static void on_progress(void *opaque, uint64_t done_bytes, uint64_t total_bytes)
{
	struct told *told = opaque;

	assert_true(done_bytes >= told->done && done_bytes <= total_bytes);
	told->done = done_bytes;
	told->total = total_bytes;
}

static int open_told(const char *spec, struct omnikv_pool_config *config, struct told *told, struct omnikv_pool **pool,
		     struct omnikv_error *err)
{
	memset(told, 0, sizeof(*told));
	config->size = sizeof(*config);
	config->notice = on_notice;
	config->progress = on_progress;
	config->opaque = told;
	return omnikv_pool_open(spec, config, pool, err);
}

static bool is_kmod(const struct omnikv_pool *pool)
{
	return pool->provider == &okv_provider_kmod;
}

static bool has_module(void)
{
	return !access("/dev/omnikv", R_OK | W_OK) && !geteuid();
}

static void skip_module(void)
{
	printf("the module is not loaded here; the kmod lane runs this in a guest\n");
	fflush(stdout);
	skip();
}

/* The module's pool of that name, ended; 0, or -errno. */
static int destroy(const char *name)
{
	struct omnikv_ioc_pool_open open_req = { 0 };
	struct omnikv_ioc_pool_destroy req = { .flags = OMNIKV_DESTROY_F_FORCE };
	int dev = open("/dev/omnikv", O_RDWR | O_CLOEXEC), ret = 0;

	if (dev < 0)
		return -errno;
	strcpy((char *)open_req.name, name);
	if (ioctl(dev, OMNIKV_IOC_POOL_OPEN, &open_req) < 0)
		ret = -errno;
	req.pool_fd = open_req.pool_fd;
	if (!ret && ioctl(dev, OMNIKV_IOC_POOL_DESTROY, &req) < 0)
		ret = -errno;
	if (!ret)
		close(open_req.pool_fd);
	close(dev);
	return ret;
}

static void without_a_name_it_ends_with_its_user(void **state)
{
	struct omnikv_pool_config config = { .granule_bytes = 65536 };
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_client *client;
	struct omnikv_error err = { "" };
	struct omnikv_extent ext;
	struct omnikv_pool *pool;
	struct told told;

	(void)state;
	if (open_told("auto:5M", &config, &told, &pool, &err))
		fail_msg("%s", err.text);
	assert_int_equal(is_kmod(pool), has_module());
	assert_int_equal(told.done, told.total);
	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	assert_int_equal(info.granule_bytes, 65536);
	/* The module's come in 2-MiB units. */
	assert_int_equal(info.usable_bytes, has_module() ? 6u << 20 : 5u << 20);
	if (is_kmod(pool)) {
		assert_int_equal(told.nr_notices, 0);
		assert_int_equal(told.total, 6u << 20);
	} else {
		assert_int_equal(told.nr_notices, 1);
		assert_non_null(strstr(told.notice, "memory of this process"));
		assert_non_null(strstr(told.notice, "modprobe omnikv"));
	}
	assert_int_equal(omnikv_client_open(pool, 0, &client), 0);
	assert_int_equal(omnikv_extent_alloc(client, 2, 1, NULL, OMNIKV_ALLOC_F_NO_ZERO, &ext), 0);
	memset(omnikv_pool_addr(pool, &ext), 0x5a, 131072);
	omnikv_client_close(client);
	omnikv_pool_close(pool);
	if (has_module())
		assert_int_not_equal(system("ls /sys/class/misc/omnikv/pools | grep -q ^auto-"), 0);
}

static void with_a_name_the_second_user_finds_the_first_ones(void **state)
{
	struct omnikv_pool_config config = { .granule_bytes = 0 };
	struct omnikv_error err = { "" };
	struct omnikv_pool_info a = { .size = sizeof(a) }, b = { .size = sizeof(b) };
	struct omnikv_pool *one, *two, *three;
	struct told told;

	(void)state;
	if (open_told(NAMED, &config, &told, &one, &err))
		fail_msg("%s", err.text);
	assert_int_equal(open_told(NAMED, &config, &told, &two, &err), 0);
	assert_int_equal(omnikv_pool_info(one, &a), 0);
	assert_int_equal(omnikv_pool_info(two, &b), 0);
	assert_int_equal(!memcmp(a.instance, b.instance, sizeof(a.instance)), has_module());
	omnikv_pool_close(one);
	omnikv_pool_close(two);
	if (!has_module())
		return;
	/* It has stayed, and its size is a fact. */
	assert_int_equal(open_told("auto:16M:auto-test", &config, &told, &three, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "8388608"));
	assert_int_equal(open_told("kmod:auto-test", &config, &told, &three, &err), 0);
	assert_int_equal(omnikv_pool_info(three, &b), 0);
	assert_memory_equal(a.instance, b.instance, sizeof(a.instance));
	omnikv_pool_close(three);
	assert_int_equal(destroy("auto-test"), 0);
}

static void open_only_makes_none(void **state)
{
	struct omnikv_pool_config config = { .flags = OMNIKV_POOL_F_OPEN_ONLY };
	struct omnikv_error err = { "" };
	struct omnikv_pool *pool;
	struct told told;

	(void)state;
	assert_int_equal(open_told(NAMED, &config, &told, &pool, &err), -ENOENT);
	assert_int_equal(open_told("auto:8M", &config, &told, &pool, &err), -ENOENT);
	assert_string_not_equal(err.text, "");
}

static void numa_policy_is_its_makers(void **state)
{
	struct omnikv_pool_config config = { .numa = "bind:0" };
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_error err = { "" };
	struct omnikv_pool *pool;
	struct told told;

	(void)state;
	if (open_told("auto:4M", &config, &told, &pool, &err))
		fail_msg("%s", err.text);
	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	assert_true(info.node_bytes[0] >= 4u << 20);
	assert_int_equal(info.nr_nodes, 1);
	omnikv_pool_close(pool);
	config.numa = "bind:63";
	assert_int_equal(open_told("auto:4M", &config, &told, &pool, &err), -EINVAL);
	config.numa = "bound:0";
	assert_int_equal(open_told("auto:4M", &config, &told, &pool, &err), -EINVAL);
}

static void limits_are_errors_and_no_way_around(void **state)
{
	struct omnikv_pool_config config = { .size = 0 };
	struct omnikv_error err = { "" };
	struct omnikv_pool *pool;
	struct told told;

	(void)state;
	if (!has_module())
		skip_module();
	assert_int_equal(open_told("auto:64T", &config, &told, &pool, &err), -EDQUOT);
	assert_non_null(strstr(err.text, "70368744177664"));
	assert_int_equal(open_told("auto:64T:auto-test", &config, &told, &pool, &err), -EDQUOT);
}

static void who_may_make_none_gets_memory_of_the_process(void **state)
{
	int status;
	pid_t pid;

	(void)state;
	if (!has_module())
		skip_module();
	pid = fork();
	if (!pid) {
		struct omnikv_pool_config config = { .size = 0 };
		struct omnikv_error err = { "" };
		struct omnikv_pool *pool;
		struct told told;

		if (setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
			_exit(1);
		if (open_told("auto:4M", &config, &told, &pool, &err))
			_exit(2);
		if (is_kmod(pool) || told.nr_notices != 1 || !strstr(told.notice, "CAP_SYS_ADMIN"))
			_exit(3);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void users_that_begin_together_get_one_pool(void **state)
{
	uint8_t instances[4][16];
	int fds[2], status, i;

	(void)state;
	if (!has_module())
		skip_module();
	assert_int_equal(pipe(fds), 0);
	for (i = 0; i < 4; i++) {
		if (fork())
			continue;
		struct omnikv_pool_info info = { .size = sizeof(info) };
		struct omnikv_pool *pool;

		if (omnikv_pool_open("auto:32M:auto-test", NULL, &pool, NULL) || omnikv_pool_info(pool, &info))
			_exit(1);
		_exit(write(fds[1], info.instance, 16) != 16);
	}
	for (i = 0; i < 4; i++) {
		assert_true(wait(&status) > 0);
		assert_int_equal(status, 0);
	}
	assert_int_equal(read(fds[0], instances, sizeof(instances)), sizeof(instances));
	for (i = 1; i < 4; i++)
		assert_memory_equal(instances[i], instances[0], 16);
	close(fds[0]);
	close(fds[1]);
	assert_int_equal(destroy("auto-test"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(without_a_name_it_ends_with_its_user),
		cmocka_unit_test(with_a_name_the_second_user_finds_the_first_ones),
		cmocka_unit_test(open_only_makes_none),
		cmocka_unit_test(numa_policy_is_its_makers),
		cmocka_unit_test(limits_are_errors_and_no_way_around),
		cmocka_unit_test(who_may_make_none_gets_memory_of_the_process),
		cmocka_unit_test(users_that_begin_together_get_one_pool),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

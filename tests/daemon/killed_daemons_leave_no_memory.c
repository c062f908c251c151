// SPDX-License-Identifier: GPL-2.0-only
/*
 * Daemons are killed one after another, with an engine that has their pool mapped: the host has
 * the memory again each time the last of both is gone, no name is left over that was not there
 * after the first, and the next one starts on the same places.
 */
#include <dirent.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <omnikv/pool.h>

#include "tests/harness/daemon_case.h"

#define NR_KILLS	6u
#define POOL_MIB	512l
/* What else the machine does meanwhile; one pool that stays is twice that. */
#define SLACK_MIB	256l

/* KiB, or a number of pages. */
static long meminfo(const char *name)
{
	FILE *file = fopen("/proc/meminfo", "r");
	char line[128];
	long value = -1;

	assert_non_null(file);
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':')
			value = atol(line + strlen(name) + 1);
	assert_int_equal(fclose(file), 0);
	assert_true(value >= 0);
	return value;
}

/* Memory of pools: of tmpfs, and of reserved huge pages. */
static long shared_mib(void)
{
	return (meminfo("Shmem") +
		(meminfo("HugePages_Total") - meminfo("HugePages_Free")) * meminfo("Hugepagesize")) / 1024;
}

static int nr_names(const char *path)
{
	DIR *dir = opendir(path);
	int nr = 0;

	assert_non_null(dir);
	while (readdir(dir))
		nr++;
	closedir(dir);
	return nr;
}

/* A process that has mapped the whole pool and read all of it. */
static pid_t engine_start(const struct daemon_case *daemon)
{
	int ready[2];
	char spec[128], byte;
	pid_t pid;

	assert_int_equal(pipe(ready), 0);
	snprintf(spec, sizeof(spec), "daemon:%s", daemon->socket);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		struct omnikv_pool *pool;

		if (omnikv_pool_open(spec, NULL, &pool, NULL) || write(ready[1], "", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(ready[1]);
	assert_int_equal(read(ready[0], &byte, 1), 1);
	close(ready[0]);
	return pid;
}

static void engine_kill(pid_t pid)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void killed_daemons_leave_no_memory(void **state)
{
	const char *const options[] = { "--pool", "512M", "--manager", "no", NULL };
	struct daemon_case daemon;
	long before;
	int names = 0;

	(void)state;
	daemon_case_init(&daemon);
	before = shared_mib();
	for (uint32_t n = 0; n < NR_KILLS; n++) {
		uint64_t end;
		pid_t engine;

		daemon_start(&daemon, options);
		engine = engine_start(&daemon);
		assert_true(shared_mib() > before + POOL_MIB - SLACK_MIB);
		/* Whoever goes first: the other still has it all. */
		if (n % 2) {
			engine_kill(engine);
			daemon_kill(&daemon);
		} else {
			daemon_kill(&daemon);
			engine_kill(engine);
		}
		end = now_ms() + 10000;
		while (shared_mib() > before + SLACK_MIB && now_ms() < end)
			sleep_ms(20);
		assert_true(shared_mib() <= before + SLACK_MIB);
		if (!n)
			names = nr_names(daemon.dir);
		assert_int_equal(nr_names(daemon.dir), names);
	}
	daemon_case_fini(&daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed_daemons_leave_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

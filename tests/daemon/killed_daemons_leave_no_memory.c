// SPDX-License-Identifier: GPL-2.0-only
/*
 * Owners of pools are killed one after another, at whatever they do: daemons, with three engines that work in
 * their pool, in any order, and processes with a pool of their own. The host has the memory again each time the
 * last of them is gone, no name is left over that was not there after the first, and the next one starts on the
 * same places.
 *
 * Six of each, fifty with OMNIKV_FULL.
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
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <omnikv/pool.h>
#include <omnikv/window.h>

#include "tests/harness/daemon_case.h"
#include "tests/harness/kill_campaign.h"
#include "tests/harness/kv_world.h"

#define NR_KILLS	campaign_scale(6, 50)
#define NR_ENGINES	3u
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

/* Transfers, leases and windows, until it is killed. */
static void work(struct omnikv_pool *pool)
{
	struct omnikv_window *window;
	struct omnikv_client *client;
	struct omnikv_extent exts[16];

	if (omnikv_client_open(pool, 0, &client) || omnikv_window_create(client, 4096, OMNIKV_WINDOW_F_RW, &window))
		_exit(2);
	for (uint32_t i = 0;; i++) {
		struct omnikv_bind bind = { .bytes = 4096 };

		if (omnikv_extent_alloc(client, 1, 16, NULL, 0, exts))
			continue;
		bind.extent = exts[0];
		memset(omnikv_pool_addr(pool, &exts[1]), 7, 4096);
		/* The daemon may be away: what is not done then is not done. */
		(void)omnikv_window_bind(window, &bind, 1, NULL);
		(void)omnikv_extent_io_get(client, exts + 2, 8);
		(void)(i % 2 ? omnikv_extent_seal(client, exts + 1, 15) : omnikv_extent_free(client, exts, 16));
	}
}

/* A process that has the whole pool mapped, and works in it. @ready: it has. */
static pid_t engine_start(const char *spec, int ready)
{
	struct omnikv_pool *pool;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (omnikv_pool_open(spec, NULL, &pool, NULL) || write(ready, "", 1) != 1)
		_exit(1);
	work(pool);
	return 0;
}

static void end_by_force(pid_t pid)
{
	assert_int_equal(kill(pid, SIGKILL), 0);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
}

static void wait_for_memory(long before)
{
	uint64_t end = now_ms() + 10000;

	while (shared_mib() > before + SLACK_MIB && now_ms() < end)
		sleep_ms(20);
	assert_true(shared_mib() <= before + SLACK_MIB);
}

static void killed_daemons_leave_no_memory(void **state)
{
	const char *const options[] = { "--pool", "512M", "--manager", "no", NULL };
	uint64_t seed = 20261130;
	struct daemon_case daemon;
	long before;
	char spec[128];
	int names = 0;

	(void)state;
	daemon_case_init(&daemon);
	snprintf(spec, sizeof(spec), "daemon:%s", daemon.socket);
	before = shared_mib();
	for (uint32_t n = 0; n < NR_KILLS; n++) {
		uint32_t turn = kv_random(&seed) % (NR_ENGINES + 1);
		pid_t engines[NR_ENGINES];
		char bytes[NR_ENGINES];
		int ready[2];

		/* Another one that does not come as far as to serve. */
		daemon_spawn(&daemon, options);
		sleep_ms(kv_random(&seed) % 60);
		daemon_kill(&daemon);

		daemon_start(&daemon, options);
		assert_int_equal(pipe(ready), 0);
		for (uint32_t i = 0; i < NR_ENGINES; i++)
			engines[i] = engine_start(spec, ready[1]);
		close(ready[1]);
		for (uint32_t i = 0; i < NR_ENGINES; i++)
			assert_int_equal(read(ready[0], &bytes[i], 1), 1);
		close(ready[0]);
		assert_true(shared_mib() > before + POOL_MIB - SLACK_MIB);
		sleep_ms(kv_random(&seed) % 30);
		/* Whoever goes first: the last one still has it all. */
		for (uint32_t i = 0, k = 0; i <= NR_ENGINES; i++) {
			assert_true(shared_mib() > before + POOL_MIB - SLACK_MIB);
			if (i == turn)
				daemon_kill(&daemon);
			else
				end_by_force(engines[k++]);
		}
		wait_for_memory(before);
		if (!n)
			names = nr_names(daemon.dir);
		assert_int_equal(nr_names(daemon.dir), names);
	}
	daemon_case_fini(&daemon);
}

static void killed_owners_leave_no_memory(void **state)
{
	char specs[2][96] = { "512M", "" };
	uint64_t seed = 20261201;
	struct daemon_case place;
	long before;

	(void)state;
	/* Without a name, and with one that all of them have. */
	daemon_case_init(&place);
	snprintf(specs[1], sizeof(specs[1]), "embedded:64M:%s/pool", place.dir);
	before = shared_mib();
	for (uint32_t n = 0; n < 2 * NR_KILLS; n++) {
		bool is_whole = n % 4 < 2;
		int ready[2];
		char byte;
		pid_t pid;

		assert_int_equal(pipe(ready), 0);
		pid = engine_start(specs[n % 2], ready[1]);
		close(ready[1]);
		if (is_whole)
			assert_int_equal(read(ready[0], &byte, 1), 1);
		close(ready[0]);
		sleep_ms(kv_random(&seed) % 40);
		end_by_force(pid);
		wait_for_memory(before);
		assert_in_range(nr_names(place.dir), 2, 3);
	}
	daemon_case_fini(&place);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed_daemons_leave_no_memory),
		cmocka_unit_test(killed_owners_leave_no_memory),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

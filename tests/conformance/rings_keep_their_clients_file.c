// SPDX-License-Identifier: GPL-2.0-only
/*
 * The ring of a spill store has its manager's client of the kernel module, or its hold on a daemon's
 * memory, as a fixed file: neither sees that client's end before the ring's last request is over, and gives
 * nobody the bytes that such a request may still write. Looked up in what the kernel says of the ring.
 * Not over a pool of this process, and where the kernel has io_uring. One thread.
 */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include <omnikv/manager.h>
#include <omnikv/pool.h>
#include <omnikv/spill.h>

#include "tests/harness/any_pool.h"

static const char *store_path(void)
{
	static char path[64];

	snprintf(path, sizeof(path), any_pool_is_kmod() ? "/rings.store" : "/tmp/omnikv-rings-%d", getpid());
	return path;
}

/* Is it a line of fdinfo that names the device, or a daemon's memory? Kernels print the path or its last part. */
static bool is_clients(const char *line)
{
	size_t len = strlen(line);

	if (!any_pool_is_kmod())
		return strstr(line, "omnikv-pool");
	return len > 8 && !strcmp(line + len - 7, "omnikv\n") && (line[len - 8] == ' ' || line[len - 8] == '/');
}

/* How often rings of this process have it as a fixed file. */
static int fixed_clients(void)
{
	char path[300], line[512], to[64];
	DIR *dir = opendir("/proc/self/fd");
	struct dirent *entry;
	int nr = 0;

	assert_non_null(dir);
	while ((entry = readdir(dir))) {
		bool is_files = false;
		ssize_t len;
		FILE *info;

		snprintf(path, sizeof(path), "/proc/self/fd/%s", entry->d_name);
		len = readlink(path, to, sizeof(to) - 1);
		if (len <= 0 || (to[len] = '\0', !strstr(to, "[io_uring]")))
			continue;
		snprintf(path, sizeof(path), "/proc/self/fdinfo/%s", entry->d_name);
		info = fopen(path, "r");
		while (info && fgets(line, sizeof(line), info)) {
			if (!strncmp(line, "UserFiles:", 10))
				is_files = true;
			else if (line[0] != ' ')
				is_files = false;
			else
				nr += is_files && is_clients(line);
		}
		if (info)
			fclose(info);
	}
	closedir(dir);
	return nr;
}

static void the_managers_client_is_a_fixed_file_while_it_manages(void **state)
{
	struct omnikv_spill_config store = {
		.size = sizeof(store), .capacity_bytes = 16 << 20,
	};
	const char *provider = getenv("OMNIKV_TEST_PROVIDER");
	struct omnikv_manager_config config = { .size = sizeof(config) };
	char command[100];
	struct omnikv_spill_stats stats = { .size = sizeof(stats) };
	struct omnikv_error err = { "" };
	struct omnikv_manager *manager;
	struct omnikv_client *client;
	struct omnikv_spill *spill;
	struct omnikv_pool *pool;

	(void)state;
	if (!any_pool_is_kmod() && (!provider || strcmp(provider, "daemon"))) {
		printf("the pool is this process's own; the kmod lane runs this over the module's in a guest\n");
		fflush(stdout);
		skip();
	}
	assert_int_equal(any_pool_open("32M", NULL, &pool), 0);
	store.pool = pool;
	if (omnikv_spill_open(store_path(), &store, &spill, &err))
		fail_msg("%s", err.text);
	assert_int_equal(omnikv_spill_stats(spill, &stats), 0);
	assert_true(stats.is_uring);
	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &client), 0);
	assert_int_equal(fixed_clients(), 0);
	config.spill = spill;
	if (omnikv_manager_create(client, &config, &manager, &err))
		fail_msg("%s", err.text);
	assert_int_equal(fixed_clients(), 1);
	assert_int_equal(omnikv_manager_destroy(manager), 0);
	assert_int_equal(fixed_clients(), 0);
	omnikv_client_close(client);
	omnikv_spill_close(spill);
	omnikv_pool_close(pool);
	snprintf(command, sizeof(command), "rm -rf %s", store_path());
	assert_int_equal(system(command), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_managers_client_is_a_fixed_file_while_it_manages),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * A daemon whose service manager keeps its descriptors is started anew, in order and killed: clients go
 * on with the connections, the leases and the bytes that they had.
 *
 * The test plays the service manager. One client thread beside it where the text says so.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include <omnikv/pool.h>

#include "tests/harness/service_manager.h"

#define NR_GRANULES	4096u

static const char *const options[] = { "--pool", "16M", "--manager", "no", "--reserve", "0", NULL };

static struct service_manager manager;
static struct omnikv_pool *pool;

static int set_up(void **state)
{
	struct omnikv_error err = { "" };
	char spec[128];

	(void)state;
	service_manager_init(&manager);
	service_manager_start(&manager, options);
	snprintf(spec, sizeof(spec), "daemon:%s", manager.daemon.socket);
	if (omnikv_pool_open(spec, NULL, &pool, &err))
		fail_msg("%s", err.text);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	omnikv_pool_close(pool);
	service_manager_fini(&manager);
	return 0;
}

static struct omnikv_pool_info info_of(void)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	return info;
}

static void restart(bool is_crash)
{
	if (is_crash)
		daemon_kill(&manager.daemon);
	else
		assert_int_equal(daemon_stop(&manager.daemon, NULL), 0);
	service_manager_start(&manager, options);
}

static void everything_goes_on(bool is_crash)
{
	struct omnikv_extent mine, sealed, given_up, more;
	struct omnikv_client *boss, *engine;
	unsigned char *bytes;
	uint64_t free_bytes;

	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &boss), 0);
	assert_int_equal(omnikv_client_open(pool, 0, &engine), 0);
	assert_int_equal(service_manager_stored(&manager, "pool"), 1);
	assert_int_equal(service_manager_stored(&manager, "peer."), 3);
	assert_int_equal(service_manager_stored(&manager, "leases."), 2);

	assert_int_equal(omnikv_extent_alloc(engine, 4, 1, NULL, 0, &mine), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 4, 1, NULL, 0, &sealed), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 4, 1, NULL, 0, &given_up), 0);
	bytes = omnikv_pool_addr(pool, &given_up);
	memset(bytes, 0x5a, 4 * 4096);
	assert_int_equal(omnikv_extent_seal(engine, &sealed, 1), 0);
	assert_int_equal(omnikv_extent_seal(engine, &given_up, 1), 0);
	assert_int_equal(omnikv_extent_lease(engine, &sealed, 1), 0);
	assert_int_equal(omnikv_extent_lease(engine, &given_up, 1), 0);
	assert_int_equal(omnikv_extent_free(boss, &given_up, 1), 0);
	free_bytes = info_of().free_bytes;

	restart(is_crash);
	assert_int_equal(info_of().free_bytes, free_bytes);
	assert_int_equal(info_of().nr_clients, 2);
	/* What is leased is not given out again, although it was given up before. */
	assert_int_equal(omnikv_extent_alloc(boss, NR_GRANULES - 12, 1, &mine, 0, &more), 0);
	memset(omnikv_pool_addr(pool, &more), 0xa5, (NR_GRANULES - 12) * 4096ull);
	assert_int_equal(omnikv_extent_alloc(boss, 4, 1, NULL, 0, &more), -ENOSPC);
	assert_int_equal(bytes[0], 0x5a);
	assert_int_equal(bytes[4 * 4096 - 1], 0x5a);
	/* A private extent is still its owner's, and the manager still the manager. */
	assert_int_equal(omnikv_extent_seal(boss, &mine, 1), -EPERM);
	assert_int_equal(omnikv_extent_seal(engine, &mine, 1), 0);
	assert_int_equal(omnikv_extent_free(boss, &mine, 1), 0);
	assert_int_equal(omnikv_extent_release(engine, &given_up, 1), 0);
	assert_int_equal(omnikv_extent_alloc(boss, 4, 2, NULL, 0, (struct omnikv_extent[2]){ { 0 } }), 0);
	omnikv_client_close(engine);
	omnikv_client_close(boss);
	assert_int_equal(info_of().free_bytes, (NR_GRANULES - 4) * 4096ull);
}

static void a_restart_in_order_is_not_noticed(void **state)
{
	(void)state;
	everything_goes_on(false);
	service_manager_wait(&manager, &manager.nr_stopping, 1);
}

static void a_killed_daemon_is_not_noticed(void **state)
{
	(void)state;
	everything_goes_on(true);
	assert_int_equal(manager.nr_stopping, 0);
}

static void what_ended_meanwhile_is_freed(void **state)
{
	struct omnikv_client *engine;
	struct omnikv_extent ext;
	int i;

	(void)state;
	assert_int_equal(omnikv_client_open(pool, 0, &engine), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 4, 1, NULL, 0, &ext), 0);
	daemon_kill(&manager.daemon);
	/* Nobody hears that it ends. */
	omnikv_client_close(engine);
	service_manager_start(&manager, options);
	for (i = 0; i < 200 && info_of().nr_clients; i++)
		sleep_ms(10);
	assert_int_equal(info_of().nr_clients, 0);
	assert_int_equal(info_of().free_bytes, NR_GRANULES * 4096ull);
	/* Its table is not kept for ever: nobody's connection is there for it. */
	for (i = 0; i < 200 && service_manager_stored(&manager, "leases."); i++)
		sleep_ms(10);
	assert_int_equal(service_manager_stored(&manager, "leases."), 0);
	assert_int_equal(service_manager_stored(&manager, "pool"), 1);
}

/* Memory of an earlier setting would stay taken until the unit is stopped. */
static void a_pool_that_is_not_used_any_more_is_given_up(void **state)
{
	char pool_file[128];
	const char *const with_file[] = { "--pool", pool_file, "--reserve", "0", NULL };

	(void)state;
	snprintf(pool_file, sizeof(pool_file), "embedded:16M:%s/pool", manager.daemon.dir);
	assert_int_equal(service_manager_stored(&manager, "pool"), 1);
	assert_int_equal(daemon_stop(&manager.daemon, NULL), 0);
	service_manager_start(&manager, with_file);
	for (int i = 0; i < 200 && service_manager_stored(&manager, "pool"); i++)
		sleep_ms(10);
	assert_int_equal(service_manager_stored(&manager, "pool"), 0);
}

/* The service manager would start it a few times more, and then give the memory up all the same. */
static void a_pool_of_another_size_starts_empty(void **state)
{
	static const char *const larger[] = { "--pool", "32M", "--manager", "no", "--reserve", "0", NULL };
	struct omnikv_error err = { "" };
	struct omnikv_client *engine;
	struct omnikv_extent ext, more;
	char spec[128];

	(void)state;
	assert_int_equal(omnikv_client_open(pool, 0, &engine), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 4, 1, NULL, 0, &ext), 0);
	memset(omnikv_pool_addr(pool, &ext), 0x5a, 4 * 4096);
	assert_int_equal(daemon_stop(&manager.daemon, NULL), 0);
	service_manager_start(&manager, larger);
	assert_int_equal(service_manager_stored(&manager, "pool"), 1);
	/* Who had the old memory is told, and keeps what it mapped. */
	assert_int_equal(omnikv_extent_alloc(engine, 4, 1, NULL, 0, &more), -ENOTCONN);
	assert_int_equal(*(unsigned char *)omnikv_pool_addr(pool, &ext), 0x5a);
	omnikv_client_close(engine);
	omnikv_pool_close(pool);
	snprintf(spec, sizeof(spec), "daemon:%s", manager.daemon.socket);
	if (omnikv_pool_open(spec, NULL, &pool, &err))
		fail_msg("%s", err.text);
	assert_int_equal(info_of().free_bytes, 32u << 20);
	/* The next start finds the new one. */
	assert_int_equal(daemon_stop(&manager.daemon, NULL), 0);
	service_manager_start(&manager, larger);
	assert_int_equal(info_of().free_bytes, 32u << 20);
	assert_int_equal(service_manager_stored(&manager, "leases."), 0);
}

static atomic_bool is_over;
static atomic_int nr_rounds, first_error;

/* Allocates, seals and frees as fast as the daemon does it; every answer must be the right one. */
static void *worker(void *arg)
{
	struct omnikv_client *client = arg;
	struct omnikv_extent ext;
	int ret;

	while (!atomic_load(&is_over)) {
		ret = omnikv_extent_alloc(client, 2, 1, NULL, 0, &ext);
		if (!ret)
			ret = omnikv_extent_free(client, &ext, 1);
		if (ret && !atomic_load(&first_error))
			atomic_store(&first_error, ret);
		atomic_fetch_add(&nr_rounds, 1);
	}
	return NULL;
}

static void requests_are_answered_through_restarts(void **state)
{
	struct omnikv_client *client;
	pthread_t thread;
	int i, before;

	(void)state;
	assert_int_equal(omnikv_client_open(pool, 0, &client), 0);
	assert_int_equal(pthread_create(&thread, NULL, worker, client), 0);
	for (i = 0; i < 10; i++) {
		before = atomic_load(&nr_rounds);
		restart(false);
		while (atomic_load(&nr_rounds) == before)
			sleep_ms(1);
	}
	atomic_store(&is_over, true);
	pthread_join(thread, NULL);
	assert_int_equal(atomic_load(&first_error), 0);
	omnikv_client_close(client);
	assert_int_equal(info_of().free_bytes, NR_GRANULES * 4096ull);
}

static void the_watchdog_is_fed_and_a_reload_ends(void **state)
{
	(void)state;
	assert_int_equal(daemon_stop(&manager.daemon, NULL), 0);
	snprintf(manager.watchdog_usec, sizeof(manager.watchdog_usec), "200000");
	service_manager_start(&manager, options);
	service_manager_wait(&manager, &manager.nr_watchdog, 3);
	/* Also where there is no file to read again: the service manager waits for both lines. */
	kill(manager.daemon.pid, SIGHUP);
	service_manager_wait(&manager, &manager.nr_reloading, 1);
	service_manager_wait(&manager, &manager.nr_ready, 3);
}

/* The unit's socket is not where the settings have it: nobody has changed anything. */
static void reload_under_the_units_socket_warns_of_no_change(void **state)
{
	char path[] = "/tmp/omnikvd-settings-XXXXXX";
	const char *const elsewhere[] = { "--config", path, NULL };
	int fd = mkstemp(path);

	(void)state;
	assert_true(fd >= 0);
	assert_true(dprintf(fd, "[daemon]\npool = 16M\nmanager = no\nreserve = 0\nsocket = /nowhere/omnikvd.sock\n") > 0);
	close(fd);
	assert_int_equal(daemon_stop(&manager.daemon, NULL), 0);
	service_manager_start(&manager, elsewhere);
	kill(manager.daemon.pid, SIGHUP);
	service_manager_wait(&manager, &manager.nr_ready, 3);
	assert_true(daemon_said(&manager.daemon, "settings read again"));
	assert_false(daemon_said(&manager.daemon, "cannot change"));
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		TEST(a_restart_in_order_is_not_noticed),
		TEST(a_killed_daemon_is_not_noticed),
		TEST(what_ended_meanwhile_is_freed),
		TEST(a_pool_that_is_not_used_any_more_is_given_up),
		TEST(a_pool_of_another_size_starts_empty),
		TEST(requests_are_answered_through_restarts),
		TEST(the_watchdog_is_fed_and_a_reload_ends),
		TEST(reload_under_the_units_socket_warns_of_no_change),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

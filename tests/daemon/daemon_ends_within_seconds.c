// SPDX-License-Identifier: GPL-2.0-only
/*
 * SIGTERM ends the daemon in order, within seconds, whatever its peers do at that moment: ten times in each
 * of five states, fifty with OMNIKV_FULL. A second signal ends it at once.
 *
 * Against a real daemon; peers are sockets of the test and children that it starts.
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
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <omnikv/pool.h>

#include "tests/harness/daemon_case.h"
#include "tests/harness/kill_campaign.h"
#include "wire.h"

#define ROUNDS	campaign_scale(10, 50)
#define NR_TRANSFERS	1000u
#define LIMIT_MS	3000u	/* a loaded machine included; the daemon's own bound is 8 s */

static struct daemon_case the_daemon;
static char spec[128];

static int set_up(void **state)
{
	(void)state;
	daemon_case_init(&the_daemon);
	snprintf(spec, sizeof(spec), "daemon:%s", the_daemon.socket);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	daemon_case_fini(&the_daemon);
	return 0;
}

static void start(void)
{
	const char *const options[] = { "--pool", "16M", NULL };

	daemon_start(&the_daemon, options);
}

static void ends_in_time(void)
{
	uint32_t ms = 0;

	assert_int_equal(daemon_stop(&the_daemon, &ms), 0);
	assert_in_range(ms, 0, LIMIT_MS);
	/* In order: the socket's name is gone. */
	assert_int_equal(access(the_daemon.socket, F_OK), -1);
}

static void while_nobody_is_there(void **state)
{
	uint32_t i;

	(void)state;
	for (i = 0; i < ROUNDS; i++) {
		start();
		ends_in_time();
	}
}

/* D5: a thousand transfers under way, and leases. */
static void while_clients_hold_leases_and_transfers(void **state)
{
	struct omnikv_extent exts[NR_TRANSFERS], ext;
	struct omnikv_client *client;
	struct omnikv_pool *pool;
	uint32_t i, k;

	(void)state;
	for (i = 0; i < ROUNDS; i++) {
		start();
		assert_int_equal(omnikv_pool_open(spec, NULL, &pool, NULL), 0);
		assert_int_equal(omnikv_client_open(pool, 0, &client), 0);
		assert_int_equal(omnikv_extent_alloc(client, 4, 1, NULL, 0, &ext), 0);
		assert_int_equal(omnikv_extent_seal(client, &ext, 1), 0);
		assert_int_equal(omnikv_extent_lease(client, &ext, 1), 0);
		assert_int_equal(omnikv_extent_alloc(client, 1, NR_TRANSFERS, NULL, 0, exts), 0);
		assert_int_equal(omnikv_extent_io_get(client, exts, NR_TRANSFERS), 0);
		ends_in_time();
		/* They write still, into memory that is theirs. */
		for (k = 0; k < NR_TRANSFERS; k++)
			memset(omnikv_pool_addr(pool, &exts[k]), (int)k, 4096);
		for (k = 0; k < NR_TRANSFERS; k++)
			assert_int_equal(*(uint8_t *)omnikv_pool_addr(pool, &exts[k]), (uint8_t)k);
		omnikv_extent_io_put(client, exts, NR_TRANSFERS);
		omnikv_client_close(client);
		omnikv_pool_close(pool);
	}
}

static void while_peers_say_nothing_or_half_a_word(void **state)
{
	uint32_t i, k;
	int peers[20];

	(void)state;
	for (i = 0; i < ROUNDS; i++) {
		start();
		for (k = 0; k < 20; k++) {
			peers[k] = daemon_connect(&the_daemon);
			if (k % 2)
				shutdown(peers[k], SHUT_WR);
		}
		ends_in_time();
		for (k = 0; k < 20; k++)
			close(peers[k]);
	}
}

static void while_a_peer_does_not_read(void **state)
{
	struct {
		struct okv_wire_header	header;
		struct okv_wire_hello	hello;
	} frame = {
		{ .magic = OKV_WIRE_MAGIC, .version = OKV_WIRE_VERSION, .type = OKV_WIRE_HELLO, .length = sizeof(frame.hello) },
		{ .version = OKV_WIRE_VERSION, .version_oldest = OKV_WIRE_VERSION, .program = "idle" },
	};
	uint32_t i;
	int fd;

	(void)state;
	for (i = 0; i < ROUNDS; i++) {
		start();
		fd = daemon_connect(&the_daemon);
		frame.header.type = OKV_WIRE_HELLO;
		frame.header.length = sizeof(frame.hello);
		assert_true(send(fd, &frame, sizeof(frame), MSG_NOSIGNAL) > 0);
		frame.header.type = OKV_WIRE_INFO;
		frame.header.length = 0;
		while (send(fd, &frame, sizeof(frame.header), MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
			;
		sleep_ms(5);
		ends_in_time();
		close(fd);
	}
}

static atomic_bool is_over;

static void *worker(void *arg)
{
	struct omnikv_client *client = arg;
	struct omnikv_extent ext[64];

	while (!atomic_load(&is_over))
		if (!omnikv_extent_alloc(client, 1, 64, NULL, OMNIKV_ALLOC_F_NO_ZERO, ext))
			omnikv_extent_free(client, ext, 64);
	return NULL;
}

static void while_requests_come_in(void **state)
{
	struct omnikv_client *clients[4];
	struct omnikv_pool *pool;
	pthread_t threads[4];
	uint32_t i, k;

	(void)state;
	for (i = 0; i < ROUNDS; i++) {
		start();
		assert_int_equal(omnikv_pool_open(spec, NULL, &pool, NULL), 0);
		atomic_store(&is_over, false);
		for (k = 0; k < 4; k++) {
			assert_int_equal(omnikv_client_open(pool, 0, &clients[k]), 0);
			assert_int_equal(pthread_create(&threads[k], NULL, worker, clients[k]), 0);
		}
		sleep_ms(20);
		ends_in_time();
		atomic_store(&is_over, true);
		for (k = 0; k < 4; k++) {
			pthread_join(threads[k], NULL);
			omnikv_client_close(clients[k]);
		}
		omnikv_pool_close(pool);
	}
}

/* Both come before its loop has seen the first. */
static void the_second_signal_ends_it_at_once(void **state)
{
	struct omnikv_pool *pool;
	int status;

	(void)state;
	start();
	/* It serves. */
	assert_int_equal(omnikv_pool_open(spec, NULL, &pool, NULL), 0);
	assert_int_equal(kill(the_daemon.pid, SIGSTOP), 0);
	assert_int_equal(kill(the_daemon.pid, SIGINT), 0);
	assert_int_equal(kill(the_daemon.pid, SIGTERM), 0);
	assert_int_equal(kill(the_daemon.pid, SIGCONT), 0);
	assert_int_equal(waitpid(the_daemon.pid, &status, 0), the_daemon.pid);
	the_daemon.pid = 0;
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 1);
	omnikv_pool_close(pool);
	/* The next one takes its place all the same. */
	start();
	ends_in_time();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		TEST(while_nobody_is_there),
		TEST(while_clients_hold_leases_and_transfers),
		TEST(while_peers_say_nothing_or_half_a_word),
		TEST(while_a_peer_does_not_read),
		TEST(while_requests_come_in),
		TEST(the_second_signal_ends_it_at_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

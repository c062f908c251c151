// SPDX-License-Identifier: GPL-2.0-only
/*
 * A daemon whose connections or descriptors are all taken: who comes then waits a little, and is told what to raise;
 * the log has it once. A limit that is too low is said at the start.
 *
 * One thread, against the real program.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <omnikv/manager.h>
#include <omnikv/pool.h>

#include "conn.h"
#include "tests/harness/daemon_case.h"

/* Of one client, and those for omnikv status and its like. */
#define NR_CONNS	(3u + 8u)

static struct daemon_case the_daemon;
static struct okv_conn *conns[NR_CONNS];

static int set_up(void **state)
{
	(void)state;
	daemon_case_init(&the_daemon);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < NR_CONNS; i++) {
		okv_conn_close(conns[i]);
		conns[i] = NULL;
	}
	daemon_case_fini(&the_daemon);
	return 0;
}

static uint32_t times_said(const char *text)
{
	static char log[1 << 16];
	int fd = open(the_daemon.log, O_RDONLY);
	ssize_t n = fd < 0 ? 0 : read(fd, log, sizeof(log) - 1);
	uint32_t nr = 0;

	if (fd >= 0)
		close(fd);
	log[n > 0 ? n : 0] = '\0';
	for (const char *at = log; (at = strstr(at, text)); at += strlen(text))
		nr++;
	return nr;
}

/* Connections until none is left. */
static void take_all(void)
{
	struct omnikv_error err = { "" };

	for (uint32_t i = 0; i < NR_CONNS; i++)
		if (okv_conn_open(the_daemon.socket, NULL, &conns[i], &err))
			fail_msg("connection %u: %s", i, err.text);
}

static void start_with_one_client(void)
{
	daemon_start(&the_daemon, (const char *const []){ "--pool", "16M", "--clients", "1", NULL });
}

static void one_engine_and_a_look_at_it_fit_into_one_client(void **state)
{
	struct omnikv_error err = { "" };
	struct omnikv_manager *manager;
	struct okv_conn *look;

	(void)state;
	start_with_one_client();
	if (omnikv_manager_attach(the_daemon.socket, NULL, &manager, &err))
		fail_msg("%s", err.text);
	assert_int_equal(okv_conn_open(the_daemon.socket, NULL, &look, &err), 0);
	okv_conn_close(look);
	assert_int_equal(omnikv_manager_destroy(manager), 0);
}

static void one_more_is_told_that_all_are_taken_and_what_to_raise(void **state)
{
	struct omnikv_manager *manager;
	struct omnikv_client *client;
	struct omnikv_error err;
	struct omnikv_pool *pool;
	uint64_t begin;
	char spec[128];

	(void)state;
	start_with_one_client();
	take_all();
	for (int i = 0; i < 3; i++) {
		begin = now_ms();
		err.text[0] = '\0';
		assert_int_equal(omnikv_manager_attach(the_daemon.socket, NULL, &manager, &err), -EDQUOT);
		assert_in_range(now_ms() - begin, 0, 4500);
		assert_non_null(strstr(err.text, "all 11 connections of the daemon at "));
		assert_non_null(strstr(err.text, "(clients = 1); end a client, or raise clients in omnikvd's settings and restart it"));
	}
	assert_int_equal(times_said("a client is refused: all 11 connections"), 1);
	assert_int_equal(times_said("accepted again"), 0);

	/* The second of its connections finds none: told as well. */
	okv_conn_close(conns[0]);
	conns[0] = NULL;
	assert_int_equal(omnikv_manager_attach(the_daemon.socket, NULL, &manager, &err), -EDQUOT);
	assert_non_null(strstr(err.text, "all 11 connections"));
	snprintf(spec, sizeof(spec), "daemon:%s", the_daemon.socket);
	assert_int_equal(omnikv_pool_open(spec, NULL, &pool, NULL), 0);
	assert_int_equal(omnikv_client_open(pool, 0, &client), -EDQUOT);
	omnikv_pool_close(pool);

	for (int i = 1; i < 4; i++) {
		okv_conn_close(conns[i]);
		conns[i] = NULL;
	}
	assert_int_equal(omnikv_manager_attach(the_daemon.socket, NULL, &manager, &err), 0);
	assert_int_equal(times_said("accepted again"), times_said("a client is refused"));
	assert_int_equal(omnikv_manager_destroy(manager), 0);
}

/* Connections are left; they are for those who only ask. */
static void a_second_engine_is_refused_where_one_is_served(void **state)
{
	struct omnikv_manager *manager, *other;
	struct omnikv_error err = { "" };
	struct omnikv_client *client;
	struct omnikv_pool *pool;
	struct okv_conn *look;
	char spec[128];

	(void)state;
	start_with_one_client();
	snprintf(spec, sizeof(spec), "daemon:%s", the_daemon.socket);
	for (int i = 0; i < 3; i++) {
		if (omnikv_manager_attach(the_daemon.socket, NULL, &manager, &err))
			fail_msg("engine %d: %s", i, err.text);
		assert_int_equal(omnikv_manager_attach(the_daemon.socket, NULL, &other, &err), -EDQUOT);
		assert_non_null(strstr(err.text, "all 1 places for clients of the daemon at "));
		assert_non_null(strstr(err.text, "(clients = 1); end a client, or raise clients in omnikvd's settings and restart it"));
		assert_int_equal(omnikv_pool_open(spec, NULL, &pool, NULL), 0);
		assert_int_equal(omnikv_client_open(pool, 0, &client), -EDQUOT);
		omnikv_pool_close(pool);
		assert_int_equal(okv_conn_open(the_daemon.socket, NULL, &look, &err), 0);
		okv_conn_close(look);
		/* Its place is free at once. */
		assert_int_equal(omnikv_manager_destroy(manager), 0);
	}
}

/* The other is forked before, so that it has none of the connections. */
static void who_waits_gets_the_place_that_becomes_free(void **state)
{
	struct okv_conn *conn;
	int go[2], status;
	char byte = 0;
	pid_t pid;

	(void)state;
	start_with_one_client();
	assert_int_equal(pipe(go), 0);
	pid = fork();
	if (!pid && read(go[0], &byte, 1) == 1)
		_exit(okv_conn_open(the_daemon.socket, NULL, &conn, NULL) ? 1 : 0);
	take_all();
	assert_int_equal(write(go[1], &byte, 1), 1);
	sleep_ms(300);
	assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
	okv_conn_close(conns[0]);
	conns[0] = NULL;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(times_said("refused"), 0);
	close(go[0]);
	close(go[1]);
}

/* Closed and made again at once, over and over: the place that was left is there. */
static void who_comes_back_at_once_finds_its_own_place(void **state)
{
	(void)state;
	start_with_one_client();
	take_all();
	for (int i = 0; i < 2000; i++) {
		struct okv_conn **conn = &conns[i % NR_CONNS];

		okv_conn_close(*conn);
		*conn = NULL;
		assert_int_equal(okv_conn_open(the_daemon.socket, NULL, conn, NULL), 0);
	}
	assert_int_equal(times_said("refused"), 0);
}

/* Right behind a refusal, many times where refusals are quick. */
static void who_comes_when_another_leaves_is_not_refused_with_who_came_before(void **state)
{
	uint64_t begin = now_ms();
	struct omnikv_error err;
	struct okv_conn *more;

	(void)state;
	start_with_one_client();
	take_all();
	while (now_ms() - begin < 5000) {
		uint64_t at = now_ms();

		assert_int_equal(okv_conn_open(the_daemon.socket, NULL, &more, &err), -EDQUOT);
		assert_in_range(now_ms() - at, 1500, 4500);
		okv_conn_close(conns[0]);
		conns[0] = NULL;
		assert_int_equal(okv_conn_open(the_daemon.socket, NULL, &conns[0], &err), 0);
	}
}

static void a_daemon_short_of_descriptors_says_so_once_and_to_whom_it_meets(void **state)
{
	struct rlimit few;
	struct okv_conn *conn, *in[16] = { NULL };
	struct omnikv_error err = { "" };
	int i, ret = 0;

	(void)state;
	daemon_start(&the_daemon, (const char *const []){ "--pool", "16M", NULL });
	/* Whatever it has inherited. */
	few.rlim_cur = few.rlim_max = (rlim_t)process_fds(the_daemon.pid) + 6;
	assert_int_equal(prlimit(the_daemon.pid, RLIMIT_NOFILE, &few, NULL), 0);
	for (i = 0; i < 16 && !ret; i++)
		ret = okv_conn_open(the_daemon.socket, NULL, &in[i], &err);
	assert_int_equal(ret, -EDQUOT);
	assert_in_range(i, 2, 15);
	assert_non_null(strstr(err.text, "cannot accept clients now: Too many open files; raise its limit of open files"));
	for (int again = 0; again < 2; again++) {
		uint64_t begin = now_ms();

		assert_int_equal(okv_conn_open(the_daemon.socket, NULL, &conn, &err), -EDQUOT);
		assert_in_range(now_ms() - begin, 1500, 4500);
	}
	assert_int_equal(times_said("cannot accept clients now"), 1);
	assert_int_equal(times_said("clients are accepted again"), 0);
	okv_conn_close(in[0]);
	in[0] = NULL;
	assert_int_equal(okv_conn_open(the_daemon.socket, NULL, &conn, &err), 0);
	assert_int_equal(times_said("cannot accept clients now"), 1);
	assert_int_equal(times_said("clients are accepted again"), 1);
	okv_conn_close(conn);
	while (i--)
		okv_conn_close(in[i]);
}

static void what_a_client_sends_and_no_file_is_left_for_is_said(void **state)
{
	static const int fds[] = { 0, 1 };
	const struct rlimit few = { 3, 3 };
	const struct okv_wire_reattach again = { .client_id = 1 };
	struct okv_wire_attached attached;
	struct okv_call call = {
		.type = OKV_WIRE_REATTACH, .req = &again, .req_bytes = sizeof(again), .fds_in = fds, .nr_fds_in = 2,
		.reply = &attached, .reply_max = sizeof(attached),
	};

	(void)state;
	start_with_one_client();
	assert_int_equal(okv_conn_open(the_daemon.socket, NULL, &conns[0], NULL), 0);
	assert_int_equal(prlimit(the_daemon.pid, RLIMIT_NOFILE, &few, NULL), 0);
	assert_int_equal(okv_conn_call(conns[0], &call), -EPIPE);
	assert_int_equal(times_said("no open files are left for what client "), 1);
	assert_int_equal(times_said("a frame that is none"), 0);
}

static void a_limit_too_low_for_one_client_is_refused_at_the_start(void **state)
{
	(void)state;
	the_daemon.fds_max = 72;
	assert_int_equal(daemon_run(&the_daemon, (const char *const []){ "--pool", "16M", NULL }), 1);
	assert_int_equal(times_said("72 open files are allowed, and the first client needs 73, 512 clients 4672: raise the limit "
				    "(ulimit -n, or LimitNOFILE= of the unit)"), 1);
	assert_int_equal(times_said("\n"), 1);
	assert_int_equal(access(the_daemon.socket, F_OK), -1);
}

static void a_limit_too_low_for_all_clients_is_said_and_so_are_those_that_fit(void **state)
{
	struct omnikv_manager *manager;
	struct omnikv_error err;

	(void)state;
	the_daemon.fds_max = 40 + 3 * (int)NR_CONNS;
	daemon_start(&the_daemon, (const char *const []){ "--pool", "16M", "--clients", "64", NULL });
	assert_int_equal(times_said("73 open files are allowed, which is enough for 1 of 64 clients: raise the limit to 640"), 1);
	take_all();
	assert_int_equal(omnikv_manager_attach(the_daemon.socket, NULL, &manager, &err), -EDQUOT);
	assert_non_null(strstr(err.text, "raise the daemon's limit of open files (LimitNOFILE=, ulimit -n)"));
	assert_int_equal(times_said("Too many open files"), 0);
}

static void one_file_too_few_is_one_client_less(void **state)
{
	(void)state;
	the_daemon.fds_max = 64 + 2 * 9 - 1;
	daemon_start(&the_daemon, (const char *const []){ "--pool", "16M", "--clients", "2", NULL });
	assert_int_equal(times_said("81 open files are allowed, which is enough for 1 of 2 clients: raise the limit to 82"), 1);
}

static int lower_soft_limit(void *opaque)
{
	struct rlimit limit;

	(void)opaque;
	if (getrlimit(RLIMIT_NOFILE, &limit))
		return -errno;
	limit.rlim_cur = 30;
	return setrlimit(RLIMIT_NOFILE, &limit);
}

static void a_soft_limit_is_raised_to_the_hard_one(void **state)
{
	struct rlimit limit, own;

	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &own), 0);
	if (own.rlim_max < 256)
		skip();
	the_daemon.before_exec = lower_soft_limit;
	daemon_start(&the_daemon, (const char *const []){ "--pool", "16M", "--clients", "4", NULL });
	assert_int_equal(prlimit(the_daemon.pid, RLIMIT_NOFILE, NULL, &limit), 0);
	assert_int_equal(limit.rlim_cur, own.rlim_max);
	assert_int_equal(times_said("open files"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		TEST(one_engine_and_a_look_at_it_fit_into_one_client),
		TEST(one_more_is_told_that_all_are_taken_and_what_to_raise),
		TEST(a_second_engine_is_refused_where_one_is_served),
		TEST(who_waits_gets_the_place_that_becomes_free),
		TEST(who_comes_back_at_once_finds_its_own_place),
		TEST(who_comes_when_another_leaves_is_not_refused_with_who_came_before),
		TEST(a_daemon_short_of_descriptors_says_so_once_and_to_whom_it_meets),
		TEST(what_a_client_sends_and_no_file_is_left_for_is_said),
		TEST(a_limit_too_low_for_one_client_is_refused_at_the_start),
		TEST(a_limit_too_low_for_all_clients_is_said_and_so_are_those_that_fit),
		TEST(one_file_too_few_is_one_client_less),
		TEST(a_soft_limit_is_raised_to_the_hard_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

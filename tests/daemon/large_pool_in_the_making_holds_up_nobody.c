// SPDX-License-Identifier: GPL-2.0-only
/*
 * Making a large pool takes long. Meanwhile other clients' calls are answered, and whoever asks is told how far it
 * is: by progress, and by a daemon that is starting.
 *
 * Over embedded pools, and in a guest over the module's.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/sysinfo.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "conn.h"
#include "failpoint.h"
#include "tests/harness/any_pool.h"
#include "tests/harness/daemon_case.h"
#include "tests/harness/kv_world.h"
#include "tests/harness/service_manager.h"

/* A fifth of what is free, and as much as operators' small pools have where there is that much. */
static uint64_t large_bytes(void)
{
	struct sysinfo info;
	uint64_t bytes;

	assert_int_equal(sysinfo(&info), 0);
	bytes = (uint64_t)info.freeram * info.mem_unit / 5 & ~((UINT64_C(2) << 20) - 1);
	return bytes < UINT64_C(2) << 30 ? bytes : UINT64_C(2) << 30;
}

/* ---- other clients -------------------------------------------------------------------------- */

struct other {
	struct omnikv_pool	*pool;
	struct omnikv_client	*client;
	const char		*spec;
	uint64_t		done_bytes;
	uint32_t		nr_reports;
	uint32_t		nr_rounds;	/* made */
	uint32_t		nr_answered;	/* of them: before the large pool was there */
};

/* What clients do: of their own, by asking, and coming and going. */
static void call_all(struct other *other)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_extent extents[64];
	struct omnikv_client *client;
	struct omnikv_pool *pool;

	KV_MUST(!omnikv_extent_alloc(other->client, 4, 64, NULL, 0, extents));
	memset(omnikv_pool_addr(other->pool, &extents[0]), 1, 4096);
	KV_MUST(!omnikv_extent_io_get(other->client, extents, 64));
	omnikv_extent_io_put(other->client, extents, 64);
	KV_MUST(!omnikv_extent_free(other->client, extents, 64));
	KV_MUST(!omnikv_pool_info(other->pool, &info) && info.free_bytes);
	KV_MUST(!omnikv_pool_open(other->spec, NULL, &pool, NULL));
	KV_MUST(!omnikv_client_open(pool, 0, &client));
	omnikv_client_close(client);
	omnikv_pool_close(pool);
}

/* A round counts when some of the pool was there before it, and not all of it at the next report. */
static void report(void *opaque, uint64_t done_bytes, uint64_t total_bytes)
{
	struct other *other = opaque;

	KV_MUST(done_bytes >= other->done_bytes && done_bytes <= total_bytes);
	other->done_bytes = done_bytes;
	other->nr_reports++;
	if (!done_bytes || done_bytes == total_bytes)
		return;
	other->nr_answered = other->nr_rounds;
	call_all(other);
	other->nr_rounds++;
}

static void others_are_answered(void **state)
{
	const char *options[] = { "--pool", NULL, "--manager", "no", "--reserve", "0", NULL };
	struct omnikv_pool_config config = { .size = sizeof(config), .nr_threads = 2, .progress = report };
	/* Every chunk takes a while, whoever takes it. */
	struct okv_failpoint point = { .name = "pool.populate", .delay_ms = 5 };
	struct omnikv_error err = { "" };
	uint64_t bytes = large_bytes();
	struct omnikv_pool *large;
	struct other other = { 0 };
	struct daemon_case daemon;
	char spec[128], large_spec[32];

	(void)state;
	daemon_case_init(&daemon);
	options[1] = any_pool_of_daemons("32M", daemon.dir);
	if (!any_pool_is_kmod())
		daemon_start(&daemon, options);
	snprintf(spec, sizeof(spec), any_pool_is_kmod() ? "%s" : "daemon:%s", any_pool_is_kmod() ? options[1] : daemon.socket);
	assert_int_equal(omnikv_pool_open(spec, NULL, &other.pool, NULL), 0);
	assert_int_equal(omnikv_client_open(other.pool, 0, &other.client), 0);
	other.spec = spec;
	config.opaque = &other;
	assert_int_equal(okv_failpoint_arm(&point), 0);
	snprintf(large_spec, sizeof(large_spec), "auto:%llu", (unsigned long long)bytes);
	if (omnikv_pool_open(large_spec, &config, &large, &err))
		fail_msg("%s", err.text);
	okv_failpoint_disarm(point.name);
	print_message("# %llu MiB: %u reports, %u of %u rounds of another client's calls before it was there\n",
		      (unsigned long long)bytes >> 20, other.nr_reports, other.nr_answered, other.nr_rounds);
	assert_true(other.nr_answered >= 1);
	assert_true(other.nr_reports >= 2);
	call_all(&other);
	omnikv_pool_close(large);
	omnikv_client_close(other.client);
	omnikv_pool_close(other.pool);
	assert_int_equal(any_pool_is_kmod() ? 0 : daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* ---- who asks a daemon that is starting ----------------------------------------------------- */

struct asker {
	const char	*socket;
	atomic_bool	is_asking;
	char		first[sizeof(struct omnikv_error)];
	uint32_t	nr_told;
	int		ret;
};

/* Again and again, until it is let in. */
static void *ask(void *opaque)
{
	const struct okv_conn_hooks hooks = { .is_told_starts = true, .open_ms = 20000 };
	struct asker *asker = opaque;
	struct okv_conn *conn;
	struct omnikv_error err;

	atomic_store(&asker->is_asking, true);
	do {
		err.text[0] = '\0';
		asker->ret = okv_conn_open(asker->socket, &hooks, &conn, &err);
		if (asker->ret == -EAGAIN && !asker->nr_told++)
			snprintf(asker->first, sizeof(asker->first), "%s", err.text);
	} while (asker->ret == -EAGAIN);
	if (!asker->ret)
		okv_conn_close(conn);
	return NULL;
}

static void a_starting_daemon_says_how_far_it_is(void **state)
{
	struct service_manager manager;
	struct asker asker = { 0 };
	struct pollfd pfd;
	pthread_t thread;
	char size[32];

	(void)state;
	service_manager_init(&manager);
	asker.socket = manager.daemon.socket;
	assert_int_equal(pthread_create(&thread, NULL, ask, &asker), 0);
	/* It waits in the socket's queue before the daemon begins. */
	pfd = (struct pollfd){ .fd = manager.listen_fd, .events = POLLIN };
	assert_int_equal(poll(&pfd, 1, 20000), 1);
	snprintf(size, sizeof(size), "%llu", (unsigned long long)large_bytes());
	service_manager_start(&manager, (const char *const []){ "--pool", size, NULL });
	pthread_join(thread, NULL);
	print_message("# told %u times, first: %s\n", asker.nr_told, asker.first);
	assert_int_equal(asker.ret, 0);
	assert_true(asker.nr_told >= 1);
	assert_non_null(strstr(asker.first, "populating the pool, "));
	service_manager_fini(&manager);
}

/* ---- who waits for it ----------------------------------------------------------------------- */

/* A daemon that is starting as long as @nr_refused connections say hello, then is there. */
struct starting {
	int		listen_fd;
	uint32_t	nr_refused;
	atomic_bool	is_over;
};

static void *play_starting(void *opaque)
{
	static const char how[] = "populating the pool, 43 %";
	struct starting *starting = opaque;

	for (uint32_t nr = 0; !atomic_load(&starting->is_over);) {
		struct pollfd pfd = { .fd = starting->listen_fd, .events = POLLIN };
		unsigned char frame[sizeof(struct okv_wire_header) + 256];
		struct okv_wire_header *header = (void *)frame;
		ssize_t len;
		int fd;

		if (poll(&pfd, 1, 20) <= 0)
			continue;
		fd = accept(starting->listen_fd, NULL, NULL);
		len = recv(fd, frame, sizeof(frame), 0);
		header->flags = OKV_WIRE_F_REPLY;
		if (len > 0 && nr++ < starting->nr_refused) {
			header->status = -EAGAIN;
			header->length = sizeof(how) - 1;
			memcpy(header + 1, how, sizeof(how) - 1);
			len = sizeof(*header) + sizeof(how) - 1;
		}
		if (len > 0)
			send(fd, frame, (size_t)len, MSG_NOSIGNAL);
		close(fd);
	}
	return NULL;
}

/* By @hooks, to a daemon that refuses so often. */
static int open_to(uint32_t nr_refused, const struct okv_conn_hooks *hooks, const char *run, struct omnikv_error *err)
{
	struct starting starting = { .nr_refused = nr_refused };
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct okv_conn *conn;
	char command[256];
	pthread_t thread;
	int ret;

	snprintf(addr.sun_path, sizeof(addr.sun_path), "/tmp/omnikvd-test-%d", getpid());
	unlink(addr.sun_path);
	starting.listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(starting.listen_fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(starting.listen_fd, 8), 0);
	assert_int_equal(pthread_create(&thread, NULL, play_starting, &starting), 0);
	if (run) {
		snprintf(command, sizeof(command), "%s --socket %s", run, addr.sun_path);
		ret = system(command);
	} else {
		ret = okv_conn_open(addr.sun_path, hooks, &conn, err);
		if (!ret)
			okv_conn_close(conn);
	}
	atomic_store(&starting.is_over, true);
	pthread_join(thread, NULL);
	close(starting.listen_fd);
	unlink(addr.sun_path);
	return ret;
}

static void who_wants_in_waits_or_is_told(void **state)
{
	const struct okv_conn_hooks patient = { .open_ms = 20000 }, short_of_time = { .open_ms = 1000 };
	const struct okv_conn_hooks told = { .is_told_starts = true };
	struct omnikv_error err = { "" };

	(void)state;
	assert_int_equal(open_to(3, &patient, NULL, &err), 0);
	assert_int_equal(open_to(UINT32_MAX, &short_of_time, NULL, &err), -ETIME);
	assert_non_null(strstr(err.text, "is starting: populating the pool, 43 %; try again"));
	assert_int_equal(open_to(UINT32_MAX, &told, NULL, &err), -EAGAIN);
	assert_string_equal(err.text, "populating the pool, 43 %");
}

static void status_shows_it(void **state)
{
	char run[512], exe[256];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

	(void)state;
	assert_true(n > 0);
	exe[n] = '\0';
	/* build/tests/daemon/NAME, beside build/bin */
	for (int i = 0; i < 3; i++)
		*strrchr(exe, '/') = '\0';
	snprintf(run, sizeof(run), "f() { o=$(%s/bin/omnikv status \"$@\") || return 1; echo \"# $o\"; case $o in *'starting: populating the pool, 43 %%') ;; "
		 "*) return 2 ;; esac; }; f", exe);
	assert_int_equal(open_to(UINT32_MAX, NULL, run, NULL), 0);
	snprintf(run, sizeof(run), "f() { %s/bin/omnikv status --json \"$@\" | grep -q '\"starting\": \"populating the pool, 43 %%\"'; }; f", exe);
	assert_int_equal(open_to(UINT32_MAX, NULL, run, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(others_are_answered),
		cmocka_unit_test(a_starting_daemon_says_how_far_it_is),
		cmocka_unit_test(who_wants_in_waits_or_is_told),
		cmocka_unit_test(status_shows_it),
	};
	const struct CMUnitTest of_the_module[] = {
		cmocka_unit_test(others_are_answered),
	};

	return any_pool_is_kmod() ? cmocka_run_group_tests(of_the_module, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}

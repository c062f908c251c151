// SPDX-License-Identifier: GPL-2.0-only
/*
 * Peers that break the protocol, do not read, do not speak, come in crowds or are somebody else's: the daemon
 * goes on serving the others, and has afterwards what it had before.
 *
 * Against a real daemon. Random frames are seeded; OMNIKV_TEST_SEED takes another seed.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <omnikv/pool.h>

#include "tests/harness/daemon_case.h"
#include "tests/harness/kill_campaign.h"
#include "wire.h"

#define NR_GRANULES	4096u
#define NR_FRAMES	campaign_scale(20000, 1000000)

static const char *const options[] = { "--pool", "16M", "--reserve", "0", "--clients", "83", NULL };

static struct daemon_case the_daemon;
static struct omnikv_pool *pool;
static struct omnikv_client *engine;

static int set_up(void **state)
{
	struct omnikv_error err = { "" };
	char spec[128];

	(void)state;
	daemon_case_init(&the_daemon);
	daemon_start(&the_daemon, options);
	snprintf(spec, sizeof(spec), "daemon:%s", the_daemon.socket);
	if (omnikv_pool_open(spec, NULL, &pool, &err) || omnikv_client_open(pool, 0, &engine))
		fail_msg("%s", err.text);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	omnikv_client_close(engine);
	omnikv_pool_close(pool);
	daemon_case_fini(&the_daemon);
	return 0;
}

/* One round of a well-behaved client; the time that it takes. */
static uint64_t serves_others(void)
{
	uint64_t begin = now_ms();
	struct omnikv_extent ext;

	assert_int_equal(omnikv_extent_alloc(engine, 4, 1, NULL, 0, &ext), 0);
	assert_int_equal(omnikv_extent_seal(engine, &ext, 1), 0);
	assert_int_equal(omnikv_extent_lease(engine, &ext, 1), 0);
	assert_int_equal(omnikv_extent_release(engine, &ext, 1), 0);
	return now_ms() - begin;
}

/* Once the connection that tried whether the daemon is there has gone. */
static int fds_at_rest(void)
{
	sleep_ms(100);
	serves_others();
	return process_fds(the_daemon.pid);
}

static uint64_t rng = 88172645463325252ull;

static uint32_t random_below(uint32_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)((rng >> 16) % n);
}

static int greet(int fd)
{
	struct {
		struct okv_wire_header	header;
		struct okv_wire_hello	hello;
	} frame = {
		{ .magic = OKV_WIRE_MAGIC, .version = OKV_WIRE_VERSION, .type = OKV_WIRE_HELLO, .length = sizeof(frame.hello) },
		{ .version = OKV_WIRE_VERSION, .version_oldest = OKV_WIRE_VERSION, .program = "hostile" },
	};

	return send(fd, &frame, sizeof(frame), MSG_NOSIGNAL) < 0 || recv(fd, &frame, sizeof(frame), 0) <= 0 ? -1 : 0;
}

/* A frame that is valid in most respects, with up to three descriptors that mean nothing. */
static int send_random(int fd)
{
	static const uint32_t sizes[] = { 0, 4, 8, 16, 24, 32, 40, 48, 64, 1024, 65504 };
	static unsigned char buf[OKV_WIRE_FRAME_MAX + 64];
	union {
		struct cmsghdr	align;
		char		room[CMSG_SPACE(3 * sizeof(int))];
	} control = { 0 };
	uint32_t len = sizes[random_below(11)] + (random_below(8) ? 0 : random_below(40)), i;
	struct okv_wire_header header = {
		.magic = OKV_WIRE_MAGIC, .version = OKV_WIRE_VERSION, .type = (uint16_t)(random_below(2) ? 1 + random_below(14) : 64 + random_below(24)),
		.length = len, .id = rng, .flags = random_below(16) ? 0 : random_below(4),
	};
	struct iovec iov = { buf, sizeof(header) + len };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	int fds[3] = { 0, 1, 2 };

	for (i = 0; i < len; i += 4) {
		uint32_t word = random_below(3) ? random_below(6) : (uint32_t)rng;

		memcpy(buf + sizeof(header) + i, &word, 4);
	}
	memcpy(buf, &header, sizeof(header));
	if (!random_below(50))
		buf[random_below(sizeof(header))] ^= (unsigned char)(1 + random_below(255));
	if (!random_below(6)) {
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(sizeof(fds));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(sizeof(fds));
		memcpy(CMSG_DATA(&control.align), fds, sizeof(fds));
	}
	return sendmsg(fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? -1 : 0;
}

/* Take what came, with its descriptors, and throw it away. */
static void swallow(int fd)
{
	static unsigned char buf[OKV_WIRE_FRAME_MAX];
	union {
		struct cmsghdr	align;
		char		room[CMSG_SPACE(OKV_WIRE_FDS_MAX * sizeof(int))];
	} control;
	struct pollfd pfd = { .fd = fd, .events = POLLIN };

	while (poll(&pfd, 1, 0) > 0) {
		struct iovec iov = { buf, sizeof(buf) };
		struct msghdr msg = {
			.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control),
		};
		struct cmsghdr *cmsg;

		if (recvmsg(fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) <= 0)
			return;
		for (cmsg = CMSG_FIRSTHDR(&msg); cmsg; cmsg = CMSG_NXTHDR(&msg, cmsg)) {
			int fds[OKV_WIRE_FDS_MAX];
			size_t n = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int), i;

			memcpy(fds, CMSG_DATA(cmsg), n * sizeof(int));
			for (i = 0; i < n; i++)
				close(fds[i]);
		}
	}
}

/* Descriptors and mappings are as before, once the last peers are gone. */
static void is_as_before(int fds, int maps)
{
	uint64_t end = now_ms() + 10000;

	while ((process_fds(the_daemon.pid) != fds || process_maps(the_daemon.pid) > maps) && now_ms() < end)
		sleep_ms(5);
	assert_int_equal(process_fds(the_daemon.pid), fds);
	assert_in_range(process_maps(the_daemon.pid), 0, maps);
}

static void random_frames_break_nothing(void **state)
{
	const char *seed = getenv("OMNIKV_TEST_SEED");
	int fds = fds_at_rest(), maps = process_maps(the_daemon.pid) + 16, fd = -1;
	uint32_t i;
	long kib;
	struct omnikv_pool_info info = { .size = sizeof(info) };

	(void)state;
	if (seed)
		rng ^= strtoull(seed, NULL, 10) * 0x9e3779b97f4a7c15ull;
	serves_others();
	kib = process_private_kib(the_daemon.pid);
	for (i = 0; i < NR_FRAMES; i++) {
		if (fd < 0) {
			fd = daemon_connect(&the_daemon);
			assert_true(fd >= 0);
			if (greet(fd)) {
				close(fd);
				fd = -1;
				continue;
			}
		}
		if (send_random(fd) && errno != EAGAIN) {
			swallow(fd);
			close(fd);
			fd = -1;
			continue;
		}
		swallow(fd);
		if (i % 1000 == 0)
			assert_true(serves_others() < 1000);
	}
	close(fd);
	is_as_before(fds, maps);
	assert_in_range(process_private_kib(the_daemon.pid), 0, kib + 4096);
	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	assert_int_equal(info.state_bytes[OMNIKV_EXTENT_PRIVATE], 0);
	assert_int_equal(info.nr_clients, 2);
}

static void a_peer_that_does_not_read_is_closed(void **state)
{
	struct okv_wire_header header = {
		.magic = OKV_WIRE_MAGIC, .version = OKV_WIRE_VERSION, .type = OKV_WIRE_INFO,
	};
	int fds = fds_at_rest(), maps = process_maps(the_daemon.pid) + 16, fd, nr = 0;
	uint64_t begin = now_ms();

	(void)state;
	fd = daemon_connect(&the_daemon);
	assert_int_equal(greet(fd), 0);
	/* Until the daemon reads no more either, and then until it has had enough. */
	while (now_ms() - begin < 12000) {
		if (send(fd, &header, sizeof(header), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) {
			nr++;
			continue;
		}
		if (errno != EAGAIN)
			break;
		assert_true(serves_others() < 1000);
		sleep_ms(100);
	}
	assert_true(nr > 10);
	assert_in_range(now_ms() - begin, 1000, 11000);
	close(fd);
	assert_true(daemon_said(&the_daemon, "took no replies"));
	is_as_before(fds, maps);
}

static void peers_that_say_nothing_are_closed(void **state)
{
	int fds = fds_at_rest(), maps = process_maps(the_daemon.pid) + 16, peers[50], i;
	uint64_t begin = now_ms();

	(void)state;
	for (i = 0; i < 50; i++) {
		peers[i] = daemon_connect(&the_daemon);
		assert_true(peers[i] >= 0);
	}
	assert_true(serves_others() < 1000);
	for (i = 0; i < 50; i++) {
		struct pollfd pfd = { .fd = peers[i], .events = POLLIN };

		assert_int_equal(poll(&pfd, 1, 9000), 1);
		close(peers[i]);
	}
	assert_in_range(now_ms() - begin, 4000, 9000);
	is_as_before(fds, maps);
}

static void a_thousand_connections_are_served_in_turn(void **state)
{
	int fds = fds_at_rest(), maps = process_maps(the_daemon.pid) + 16, peers[1000], i;

	(void)state;
	/* 257 at once have a place, 3 for each client and a few; the others wait, and hold up nobody who is in. */
	for (i = 0; i < 1000; i++) {
		peers[i] = daemon_connect(&the_daemon);
		assert_true(peers[i] >= 0);
		if (i % 100 == 0)
			assert_true(serves_others() < 1000);
	}
	for (i = 0; i < 1000; i++) {
		assert_int_equal(greet(peers[i]), 0);
		close(peers[i]);
	}
	is_as_before(fds, maps);
}

static void a_daemon_without_descriptors_left_says_so_and_goes_on(void **state)
{
	const struct rlimit few = { 40, 40 };
	struct omnikv_client *client;
	int peers[100], i;
	char spec[128];

	(void)state;
	omnikv_client_close(engine);
	omnikv_pool_close(pool);
	assert_int_equal(daemon_stop(&the_daemon, NULL), 0);
	daemon_start(&the_daemon, options);
	assert_int_equal(prlimit(the_daemon.pid, RLIMIT_NOFILE, &few, NULL), 0);
	snprintf(spec, sizeof(spec), "daemon:%s", the_daemon.socket);
	assert_int_equal(omnikv_pool_open(spec, NULL, &pool, NULL), 0);
	assert_int_equal(omnikv_client_open(pool, 0, &engine), 0);
	for (i = 0; i < 100; i++)
		peers[i] = daemon_connect(&the_daemon);
	for (i = 0; i < 20; i++) {
		assert_true(serves_others() < 1000);
		sleep_ms(10);
	}
	assert_true(daemon_said(&the_daemon, "cannot accept clients now"));
	for (i = 0; i < 100; i++)
		close(peers[i]);
	for (i = 0; i < 300 && omnikv_client_open(pool, 0, &client); i++)
		sleep_ms(10);
	assert_in_range(i, 0, 299);
	omnikv_client_close(client);
}

/* In a child with another user: what connecting comes to, and that the line about it has @said. */
static int connect_as(uid_t uid, const char *said)
{
	struct omnikv_error err = { "" };
	struct omnikv_pool *other;
	char spec[128];
	int status;
	pid_t pid = fork();

	if (!pid) {
		int ret;

		snprintf(spec, sizeof(spec), "daemon:%s", the_daemon.socket);
		if (setgid(uid) || setuid(uid))
			_exit(99);
		ret = omnikv_pool_open(spec, NULL, &other, &err);
		_exit(strstr(err.text, said) ? -ret : 98);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	return WEXITSTATUS(status);
}

static void other_users_are_refused(void **state)
{
	(void)state;
	if (geteuid())
		skip();
	assert_int_equal(chmod(the_daemon.dir, 0755), 0);
	assert_int_equal(connect_as(65534, "Permission denied: it serves root and user 0, not user 65534; give omnikvd a group"), EACCES);
	assert_int_equal(chmod(the_daemon.socket, 0660), 0);
	assert_int_equal(chown(the_daemon.socket, (uid_t)-1, 54321), 0);
	assert_int_equal(connect_as(65534, "Permission denied: user 65534 is not in its group 54321; join that"), EACCES);
	assert_int_equal(chmod(the_daemon.dir, 0700), 0);
	assert_int_equal(connect_as(65534, "Permission denied: user 65534 may not enter each directory above it"), EACCES);
	assert_int_equal(chmod(the_daemon.dir, 0755), 0);
	/* Should the mode ever let one in, the daemon asks the kernel who it is. */
	assert_int_equal(chmod(the_daemon.socket, 0666), 0);
	assert_int_equal(connect_as(65534, "refuses user 65534: it serves root and user 0"), EPERM);
	assert_true(daemon_said(&the_daemon, "of user 65534"));
	assert_true(serves_others() < 1000);
}

static void a_child_keeps_nothing_of_a_client_that_ended(void **state)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	int pipes[2], i;
	pid_t pid;
	char byte;

	(void)state;
	assert_int_equal(pipe(pipes), 0);
	pid = fork();
	if (!pid) {
		struct omnikv_client *client;
		struct omnikv_extent ext;
		struct omnikv_pool *mine;
		char spec[128];

		snprintf(spec, sizeof(spec), "daemon:%s", the_daemon.socket);
		if (omnikv_pool_open(spec, NULL, &mine, NULL) || omnikv_client_open(mine, 0, &client) ||
		    omnikv_extent_alloc(client, 100, 1, NULL, 0, &ext))
			_exit(1);
		/* The grandchild has all descriptors, and lives on until the pipe ends. */
		if (!fork()) {
			close(pipes[1]);
			if (omnikv_extent_free(client, &ext, 1) != -EPERM || read(pipes[0], &byte, 1))
				_exit(1);
			_exit(0);
		}
		_exit(0);
	}
	close(pipes[0]);
	waitpid(pid, NULL, 0);
	for (i = 0; i < 300; i++) {
		assert_int_equal(omnikv_pool_info(pool, &info), 0);
		if (info.nr_clients == 2 && !info.state_bytes[OMNIKV_EXTENT_PRIVATE])
			break;
		sleep_ms(10);
	}
	assert_in_range(i, 0, 299);
	close(pipes[1]);
}

/* In a child: all calls of what it inherited. 0, or the number of the first that does not say whose it is. */
static int call_as_a_child(const struct omnikv_extent *sealed, const struct omnikv_extent *private,
			   struct omnikv_window *window)
{
	const struct omnikv_bind bind = { .extent = *private, .window_off = 4096, .bytes = 4096 };
	struct omnikv_extent_info info = { .size = sizeof(info) };
	struct omnikv_window *another;
	struct omnikv_extent other;
	uint64_t from = 0;
	const int64_t rets[] = {
		omnikv_extent_lease(engine, sealed, 1), omnikv_extent_release(engine, sealed, 1),
		omnikv_extent_alloc(engine, 4, 1, NULL, 0, &other), omnikv_extent_free(engine, private, 1),
		omnikv_extent_seal(engine, private, 1), omnikv_extent_query(engine, private, &info),
		omnikv_extent_query(engine, sealed, &info), omnikv_extent_io_get(engine, private, 1),
		omnikv_extent_list(engine, 1u << OMNIKV_EXTENT_PRIVATE, &from, &other, 1),
		omnikv_window_create(engine, 4096, 0, &another), omnikv_window_bind(window, &bind, 1, NULL),
		omnikv_window_unbind(window, 0, 4096),
	};

	omnikv_extent_io_put(engine, private, 1);
	omnikv_window_destroy(window);
	for (int i = 0; i < (int)(sizeof(rets) / sizeof(rets[0])); i++)
		if (rets[i] != -EPERM)
			return i + 1;
	return 0;
}

static void a_child_may_close_what_it_inherited(void **state)
{
	struct omnikv_extent ext, private;
	struct omnikv_window *window;
	struct omnikv_bind bind;
	int status;
	pid_t pid;

	(void)state;
	assert_int_equal(omnikv_extent_alloc(engine, 4, 1, NULL, 0, &ext), 0);
	assert_int_equal(omnikv_extent_seal(engine, &ext, 1), 0);
	assert_int_equal(omnikv_extent_lease(engine, &ext, 1), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 4, 1, NULL, 0, &private), 0);
	assert_int_equal(omnikv_window_create(engine, 8192, OMNIKV_WINDOW_F_RW, &window), 0);
	bind = (struct omnikv_bind){ .extent = private, .bytes = 4096 };
	assert_int_equal(omnikv_window_bind(window, &bind, 1, NULL), 0);
	pid = fork();
	if (!pid) {
		status = call_as_a_child(&ext, &private, window);
		omnikv_client_close(engine);
		omnikv_pool_close(pool);
		_exit(status);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	/* What the parent has is as it was. */
	memset(omnikv_window_base(window), 0x77, 4096);
	assert_int_equal(*(unsigned char *)omnikv_pool_addr(pool, &private), 0x77);
	omnikv_window_destroy(window);
	assert_int_equal(omnikv_extent_release(engine, &ext, 1), 0);
	assert_int_equal(omnikv_extent_release(engine, &ext, 1), -EPERM);
}

/* In a child: a client with a lease, that cuts all tables beside the pool's file off. It lives until @pipe ends. */
static void cut_tables(const char *spec, const char *file, int said, int until)
{
	struct omnikv_client *client;
	struct omnikv_pool *mine;
	struct omnikv_extent ext;
	char path[128], byte = 0;
	uint32_t nr = 0;

	if (omnikv_pool_open(spec, NULL, &mine, NULL) || omnikv_client_open(mine, 0, &client) ||
	    omnikv_extent_alloc(client, 4, 1, NULL, 0, &ext) || omnikv_extent_seal(client, &ext, 1) ||
	    omnikv_extent_lease(client, &ext, 1))
		_exit(1);
	for (uint32_t id = 1; id < 64; id++) {
		snprintf(path, sizeof(path), "%s.leases.%u", file, id);
		nr += !truncate(path, 0);
	}
	if (!nr || write(said, &byte, 1) != 1 || read(until, &byte, 1))
		_exit(1);
	_exit(0);
}

static void a_table_that_is_cut_off_does_not_end_the_daemon(void **state)
{
	struct omnikv_extent exts[256];
	char file[96], own[128], spec[128], byte;
	const char *const with_file[] = { "--pool", own, "--reserve", "0", "--hugetlb", "no", "--manager", "no", NULL };
	int said[2], until[2], fd, status;
	pid_t pid;

	(void)state;
	omnikv_client_close(engine);
	omnikv_pool_close(pool);
	engine = NULL;
	pool = NULL;
	assert_int_equal(daemon_stop(&the_daemon, NULL), 0);
	snprintf(file, sizeof(file), "%s/pool", the_daemon.dir);
	snprintf(own, sizeof(own), "embedded:16M:%s", file);
	daemon_start(&the_daemon, with_file);
	snprintf(spec, sizeof(spec), "daemon:%s", the_daemon.socket);
	assert_int_equal(pipe(said), 0);
	assert_int_equal(pipe(until), 0);
	pid = fork();
	if (!pid) {
		close(until[1]);
		cut_tables(spec, file, said[1], until[0]);
	}
	close(said[1]);
	assert_int_equal(read(said[0], &byte, 1), 1);
	/* Everything that makes the daemon count what is leased. */
	assert_int_equal(omnikv_pool_open(spec, NULL, &pool, NULL), 0);
	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &engine), 0);
	for (int i = 0; i < 20; i++) {
		serves_others();
		assert_int_equal(omnikv_extent_alloc(engine, 4, 64, NULL, 0, exts), 0);
		assert_int_equal(omnikv_extent_seal(engine, exts, 64), 0);
		assert_int_equal(omnikv_extent_free(engine, exts, 64), 0);
		fd = daemon_connect(&the_daemon);
		assert_int_equal(greet(fd), 0);
		close(fd);
	}
	assert_false(daemon_is_dead(&the_daemon));
	close(until[1]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	serves_others();
	assert_false(daemon_is_dead(&the_daemon));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		TEST(random_frames_break_nothing),
		TEST(a_peer_that_does_not_read_is_closed),
		TEST(peers_that_say_nothing_are_closed),
		TEST(a_thousand_connections_are_served_in_turn),
		TEST(a_daemon_without_descriptors_left_says_so_and_goes_on),
		TEST(other_users_are_refused),
		TEST(a_child_may_close_what_it_inherited),
		TEST(a_child_keeps_nothing_of_a_client_that_ended),
		TEST(a_table_that_is_cut_off_does_not_end_the_daemon),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * What omnikvd says to each kind of frame, good and bad, of a peer that has not attached yet.
 *
 * A frame that is none closes the connection; a request that cannot be done gets a status. One thread,
 * against a real daemon.
 */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "conn.h"
#include "lease.h"
#include "tests/harness/daemon_case.h"

static struct daemon_case the_daemon;

static int set_up(void **state)
{
	const char *const options[] = { "--pool", "16M", NULL };

	(void)state;
	daemon_case_init(&the_daemon);
	daemon_start(&the_daemon, options);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	daemon_case_fini(&the_daemon);
	return 0;
}

/* Send a frame and take the answer: its status, 1 where the peer was closed instead, 2 where nothing comes. */
static int exchange(int fd, struct okv_wire_header header, const void *payload, size_t len)
{
	unsigned char buf[OKV_WIRE_FRAME_MAX];
	struct pollfd pfd = { .fd = fd, .events = POLLIN };
	struct okv_wire_header answer;
	ssize_t n;

	memcpy(buf, &header, sizeof(header));
	if (len)
		memcpy(buf + sizeof(header), payload, len);
	if (send(fd, buf, sizeof(header) + len, MSG_NOSIGNAL) < 0)
		return 1;
	if (poll(&pfd, 1, 3000) <= 0)
		return 2;
	n = recv(fd, buf, sizeof(buf), 0);
	if (n <= 0)
		return 1;
	assert_int_equal(okv_wire_header_check(buf, (size_t)n, OKV_WIRE_VERSION, true, &answer), 0);
	assert_int_equal(answer.id, header.id);
	assert_int_equal(answer.type, header.type);
	return answer.status;
}

static struct okv_wire_header header_of(uint16_t type, size_t len)
{
	static uint64_t id;

	return (struct okv_wire_header) {
		.magic = OKV_WIRE_MAGIC, .version = OKV_WIRE_VERSION, .type = type, .length = (uint32_t)len, .id = ++id,
	};
}

static int hello(int fd, uint32_t version, uint32_t oldest)
{
	struct okv_wire_hello hello = { .version = version, .version_oldest = oldest, .program = "test" };

	return exchange(fd, header_of(OKV_WIRE_HELLO, sizeof(hello)), &hello, sizeof(hello));
}

static void versions_are_agreed_or_refused(void **state)
{
	int fd = daemon_connect(&the_daemon);

	(void)state;
	assert_int_equal(hello(fd, OKV_WIRE_VERSION, OKV_WIRE_VERSION), 0);
	/* Once is enough. */
	assert_int_equal(hello(fd, OKV_WIRE_VERSION, OKV_WIRE_VERSION), -EPROTO);
	close(fd);
	/* A later client that still speaks ours. */
	fd = daemon_connect(&the_daemon);
	assert_int_equal(hello(fd, OKV_WIRE_VERSION + 1, OKV_WIRE_VERSION), 0);
	close(fd);
	fd = daemon_connect(&the_daemon);
	assert_int_equal(hello(fd, OKV_WIRE_VERSION + 2, OKV_WIRE_VERSION + 1), -EPROTONOSUPPORT);
	assert_int_equal(hello(fd, OKV_WIRE_VERSION, OKV_WIRE_VERSION), 1);
	close(fd);
	fd = daemon_connect(&the_daemon);
	assert_int_equal(hello(fd, OKV_WIRE_VERSION_OLDEST - 1, OKV_WIRE_VERSION_OLDEST - 1), -EPROTONOSUPPORT);
	close(fd);
}

static void broken_frames_close_the_connection(void **state)
{
	struct okv_wire_header good = header_of(OKV_WIRE_INFO, 0), bad;
	int fd, i;

	(void)state;
	for (i = 0; i < 11; i++) {
		bad = good;
		switch (i) {
		case 0: bad.magic++; break;
		case 1: bad.version++; break;
		case 2: bad.type = 0; break;
		case 3: bad.type = OKV_WIRE_NR; break;
		case 4: bad.flags = 4; break;
		case 5: bad.flags = OKV_WIRE_F_REPLY; break;
		case 6: bad.length = 1; break;
		case 7: bad.status = -1; break;
		case 8: bad.reserved = 1; break;
		case 9: bad.length = UINT32_MAX; break;
		case 10: bad.length = OKV_WIRE_PAYLOAD_MAX + 1; break;
		}
		fd = daemon_connect(&the_daemon);
		assert_int_equal(hello(fd, OKV_WIRE_VERSION, OKV_WIRE_VERSION), 0);
		assert_int_equal(exchange(fd, good, NULL, 0), 0);
		assert_int_equal(exchange(fd, bad, NULL, 0), 1);
		close(fd);
	}
	/* Before HELLO nothing else may come. */
	fd = daemon_connect(&the_daemon);
	assert_int_equal(exchange(fd, good, NULL, 0), 1);
	close(fd);
}

static void requests_that_mean_nothing_are_refused(void **state)
{
	struct okv_wire_attach attach = { .flags = 4 };
	struct okv_wire_alloc alloc = { .nr_granules = 1, .count = 1 };
	int fd = daemon_connect(&the_daemon);

	(void)state;
	assert_int_equal(hello(fd, OKV_WIRE_VERSION, OKV_WIRE_VERSION), 0);
	assert_int_equal(exchange(fd, header_of(OKV_WIRE_NR - 1, 0), NULL, 0), -EOPNOTSUPP);
	assert_int_equal(exchange(fd, header_of(OKV_WIRE_ATTACH, 4), &attach, 4), -EPROTO);
	assert_int_equal(exchange(fd, header_of(OKV_WIRE_ATTACH, 8), &attach, 8), -EINVAL);
	attach = (struct okv_wire_attach){ .reserved = 1 };
	assert_int_equal(exchange(fd, header_of(OKV_WIRE_ATTACH, 8), &attach, 8), -EINVAL);
	assert_int_equal(exchange(fd, header_of(OKV_WIRE_ALLOC, sizeof(alloc)), &alloc, sizeof(alloc)), -EBUSY);
	attach = (struct okv_wire_attach){ .flags = OKV_WIRE_ATTACH_F_MANAGER };
	assert_int_equal(exchange(fd, header_of(OKV_WIRE_ATTACH, 8), &attach, 8), -EALREADY);
	attach = (struct okv_wire_attach){ .flags = OKV_WIRE_ATTACH_F_LOOK };
	assert_int_equal(exchange(fd, header_of(OKV_WIRE_ATTACH, 8), &attach, 8), 0);
	assert_int_equal(exchange(fd, header_of(OKV_WIRE_ATTACH, 8), &attach, 8), -EBUSY);
	close(fd);
}

static void attaching_hands_over_memory_and_table(void **state)
{
	struct okv_wire_attach attach = { 0 };
	struct okv_wire_attached attached;
	struct okv_wire_info info;
	struct okv_call call = {
		.type = OKV_WIRE_ATTACH, .req = &attach, .req_bytes = sizeof(attach), .reply = &attached,
		.reply_max = sizeof(attached),
	}, ask = { .type = OKV_WIRE_INFO, .reply = &info, .reply_max = sizeof(info) };
	struct omnikv_error err = { "" };
	struct okv_conn *conn;
	struct stat st;
	int i;

	(void)state;
	assert_int_equal(okv_conn_open(the_daemon.socket, NULL, &conn, &err), 0);
	assert_int_equal(okv_conn_call(conn, &call), 0);
	assert_int_equal(attached.kind, OKV_WIRE_POOL_SHARED);
	assert_int_equal(attached.granule_bytes, 4096);
	assert_int_equal(attached.nr_granules, 4096);
	assert_int_equal(attached.map_bytes, (2 + 16) << 20);
	assert_int_equal(fstat(call.fds_out[0], &st), 0);
	assert_int_equal(st.st_size, attached.map_bytes);
	/* Nobody can cut it off under the daemon. */
	assert_int_equal(ftruncate(call.fds_out[0], 0), -1);
	assert_int_equal(fstat(call.fds_out[1], &st), 0);
	assert_int_equal(st.st_size, okv_lease_bytes(4096));
	assert_int_equal(ftruncate(call.fds_out[1], 0), -1);
	assert_int_equal(call.fds_out[2], -1);
	for (i = 0; i < 2; i++)
		close(call.fds_out[i]);
	assert_int_equal(okv_conn_call(conn, &ask), 0);
	assert_int_equal(info.usable_bytes, 16 << 20);
	/* The manager and this one. */
	assert_int_equal(info.nr_clients, 2);
	okv_conn_close(conn);
	assert_int_equal(daemon_stop(&the_daemon, NULL), 0);
	assert_int_equal(access(the_daemon.socket, F_OK), -1);
	assert_int_equal(okv_conn_open(the_daemon.socket, NULL, &conn, &err), -ENOENT);
	assert_non_null(strstr(err.text, "is omnikvd running?"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		TEST(versions_are_agreed_or_refused),
		TEST(broken_frames_close_the_connection),
		TEST(requests_that_mean_nothing_are_refused),
		TEST(attaching_hands_over_memory_and_table),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * The client's end of the connection against a daemon that answers wrongly, late, twice or not at all.
 *
 * A thread plays the daemon by a script: for each request that comes, one way to answer.
 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

#include "conn.h"
#include "failpoint.h"
#include "tests/harness/daemon_case.h"
#include "manager/frames.h"

#define FLOOD_MS	6000u

enum answer {
	GOOD,		/* an INFO */
	REFUSED,	/* -ENOSPC and a line of text */
	BROKEN_PIPE,	/* a status that would say that the connection failed */
	MAGIC, VERSION, TYPE, LENGTH, NO_REPLY_FLAG,
	SHORT,		/* a payload that no INFO has */
	SILENT,
	LATE_FIRST,	/* the reply to the request before, then this one's */
	WITH_FDS,	/* descriptors that nobody asked for */
	CLOSE,
	SCRIPTED,	/* the daemon's @status, with as much payload as its @payload_bytes */
	HELD,		/* an INFO, when the test says so */
	FLOOD,		/* replies to a request before this one, for FLOOD_MS or until nobody takes them */
	OLD_HELLO,	/* of HELLO: a version that is none of ours */
};

struct daemon {
	char			path[64];
	int			listen_fd;
	pthread_t		thread;
	const enum answer	*script;
	int			nr;
	int			nr_accepted;
	int32_t			status;
	unsigned char		payload[2048];
	uint32_t		payload_bytes;
};

static bool send_frame(int fd, const struct okv_wire_header *header, const void *payload, size_t len, bool with_fds)
{
	union {
		struct cmsghdr	align;
		char		room[CMSG_SPACE(2 * sizeof(int))];
	} control = { 0 };
	struct iovec iov[2] = {
		{ (void *)(uintptr_t)header, sizeof(*header) }, { (void *)(uintptr_t)payload, len },
	};
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };
	const int fds[2] = { 0, 1 };

	if (with_fds) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(sizeof(fds));
		memcpy(CMSG_DATA(&control.align), fds, sizeof(fds));
	}
	return sendmsg(fd, &msg, MSG_NOSIGNAL) >= 0;
}

static atomic_bool is_held, may_answer;

/* false: the connection is to be closed. */
static bool answer(const struct daemon *daemon, int fd, const struct okv_wire_header *ask, enum answer how)
{
	struct okv_wire_header header = *ask;
	struct okv_wire_info info = { .nr_granules = ask->id };
	const void *payload = &info;
	uint64_t begun = now_ms();

	header.flags = OKV_WIRE_F_REPLY;
	header.length = sizeof(info);
	switch (how) {
	case REFUSED:
		header.status = -ENOSPC;
		payload = "the pool is full";
		header.length = 16;
		break;
	case BROKEN_PIPE:	header.status = -EPIPE; header.length = 0; break;
	case MAGIC:		header.magic++; break;
	case VERSION:		header.version++; break;
	case TYPE:		header.type = OKV_WIRE_ROOM; header.length = 0; break;
	case LENGTH:		send_frame(fd, &header, payload, sizeof(info) - 8, false); return true;
	case NO_REPLY_FLAG:	header.flags = 0; break;
	case SHORT:		header.length = 8; break;
	case SILENT:		return true;
	case LATE_FIRST:
		header.id--;
		send_frame(fd, &header, payload, header.length, true);
		header.id++;
		break;
	case FLOOD:
		header.id--;
		while (now_ms() - begun < FLOOD_MS && send_frame(fd, &header, payload, header.length, false))
			;
		return false;
	case CLOSE:		return false;
	case SCRIPTED:
		header.status = daemon->status;
		payload = daemon->payload;
		header.length = daemon->payload_bytes;
		break;
	case HELD:
		is_held = true;
		while (!may_answer)
			usleep(1000);
		break;
	default:		break;
	}
	send_frame(fd, &header, payload, header.length, how == WITH_FDS);
	return true;
}

static void *play(void *arg)
{
	struct daemon *daemon = arg;
	unsigned char buf[4096];
	int at = 0;

	while (at < daemon->nr) {
		int fd = accept(daemon->listen_fd, NULL, NULL);
		bool is_open = true;

		if (fd < 0)
			break;
		daemon->nr_accepted++;
		while (is_open && recv(fd, buf, sizeof(buf), 0) >= (ssize_t)sizeof(struct okv_wire_header)) {
			struct okv_wire_header header;
			struct okv_wire_hello hello = { .version = OKV_WIRE_VERSION, .version_oldest = 1 };

			memcpy(&header, buf, sizeof(header));
			if (header.type == OKV_WIRE_HELLO) {
				if (daemon->script[at] == OLD_HELLO) {
					hello.version = OKV_WIRE_VERSION + 7;
					at++;
				}
				header.flags = OKV_WIRE_F_REPLY;
				header.length = sizeof(hello);
				send_frame(fd, &header, &hello, sizeof(hello), false);
				continue;
			}
			is_open = at < daemon->nr && answer(daemon, fd, &header, daemon->script[at]);
			at++;
		}
		close(fd);
	}
	return NULL;
}

static void start(struct daemon *daemon, const enum answer *script, int nr)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	snprintf(daemon->path, sizeof(daemon->path), "/tmp/omnikv-conn-%d", getpid());
	unlink(daemon->path);
	memcpy(addr.sun_path, daemon->path, strlen(daemon->path));
	daemon->script = script;
	daemon->nr = nr;
	daemon->nr_accepted = 0;
	daemon->listen_fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	assert_int_equal(bind(daemon->listen_fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(daemon->listen_fd, 8), 0);
	assert_int_equal(pthread_create(&daemon->thread, NULL, play, daemon), 0);
}

static void stop(struct daemon *daemon)
{
	shutdown(daemon->listen_fd, SHUT_RDWR);
	pthread_join(daemon->thread, NULL);
	close(daemon->listen_fd);
	unlink(daemon->path);
}

static int ask(struct okv_conn *conn, uint32_t type, struct omnikv_error *err, uint64_t *id)
{
	struct okv_wire_info info = { 0 };
	struct okv_call call = {
		.type = type, .timeout_ms = 300, .reply = &info, .reply_max = sizeof(info), .err = err,
	};
	int ret = okv_conn_call(conn, &call), i;

	for (i = 0; i < (int)OKV_WIRE_FDS_MAX; i++)
		if (call.fds_out[i] >= 0)
			close(call.fds_out[i]);
	if (id)
		*id = info.nr_granules;
	return ret;
}

static int open_fds(void)
{
	DIR *dir = opendir("/proc/self/fd");
	int nr = 0;

	while (readdir(dir))
		nr++;
	closedir(dir);
	return nr;
}

static void wrong_replies_close_the_connection_and_the_next_call_makes_it_anew(void **state)
{
	static const enum answer bad[] = { MAGIC, VERSION, TYPE, LENGTH, NO_REPLY_FLAG, SHORT };
	uint32_t i;

	(void)state;
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		const enum answer script[] = { GOOD, bad[i], GOOD };
		struct omnikv_error err = { "" };
		struct daemon daemon;
		struct okv_conn *conn;

		start(&daemon, script, 3);
		assert_int_equal(okv_conn_open(daemon.path, NULL, &conn, &err), 0);
		assert_int_equal(ask(conn, OKV_WIRE_INFO, NULL, NULL), 0);
		assert_int_equal(ask(conn, OKV_WIRE_INFO, NULL, NULL), -EPROTO);
		assert_false(okv_conn_is_up(conn));
		assert_int_equal(ask(conn, OKV_WIRE_INFO, NULL, NULL), 0);
		assert_int_equal(okv_conn_epoch(conn), 2);
		okv_conn_close(conn);
		stop(&daemon);
	}
}

static void a_refusal_is_an_answer(void **state)
{
	const enum answer script[] = { REFUSED, BROKEN_PIPE, GOOD };
	struct omnikv_error err = { "" };
	struct daemon daemon;
	struct okv_conn *conn;

	(void)state;
	start(&daemon, script, 3);
	assert_int_equal(okv_conn_open(daemon.path, NULL, &conn, &err), 0);
	assert_int_equal(ask(conn, OKV_WIRE_INFO, &err, NULL), -ENOSPC);
	assert_string_equal(err.text, "the pool is full");
	/* The connection is as good as before, whatever the status says. */
	assert_int_equal(ask(conn, OKV_WIRE_INFO, NULL, NULL), -EIO);
	assert_int_equal(ask(conn, OKV_WIRE_INFO, NULL, NULL), 0);
	assert_int_equal(okv_conn_epoch(conn), 1);
	okv_conn_close(conn);
	stop(&daemon);
}

/* All that are answered, each with a payload that it may have, and the largest status where that is a number. */
static const struct {
	uint32_t	type, payload_bytes;
	int32_t		max;
} requests[] = {
	{ OKV_WIRE_ATTACH, sizeof(struct okv_wire_attached), 0 },
	{ OKV_WIRE_REATTACH, sizeof(struct okv_wire_attached), 0 },
	{ OKV_WIRE_INFO, sizeof(struct okv_wire_info), 0 },
	{ OKV_WIRE_ALLOC, sizeof(struct okv_wire_extents), 0 },
	{ OKV_WIRE_FREE, 0, 0 },
	{ OKV_WIRE_SEAL, 0, 0 },
	{ OKV_WIRE_QUERY, sizeof(struct okv_wire_queried), 0 },
	{ OKV_WIRE_LIST, sizeof(struct okv_wire_extents), 0 },
	{ OKV_WIRE_STATUS, sizeof(struct okv_wire_clients), 0 },
	{ OKV_WIRE_ROOM, 0, 0 },
	{ OKV_WIRE_END, 0, 0 },
	{ OKV_WIRE_SPACE_OPEN, sizeof(struct okv_wire_space_opened), 0 },
	{ OKV_WIRE_FIND, sizeof(struct okv_wire_found), 0 },
	{ OKV_WIRE_PUBLISH, sizeof(struct okv_wire_published), 0 },
	{ OKV_WIRE_STATE, 0, 0 },
	{ OKV_WIRE_ADMIT, 0, 1 },
	{ OKV_WIRE_RESET, 0, 1000 },
	{ OKV_WIRE_EPOCH, sizeof(struct okv_wire_epoch), 0 },
	{ OKV_WIRE_STATS, 64, 0 },
	{ OKV_WIRE_PROMISE, 0, 0 },
	{ OKV_WIRE_WAIT, 0, 1 },
	{ OKV_WIRE_JOIN, 0, 0 },
	{ OKV_WIRE_PREFETCH, 0, 1800 },
	{ OKV_WIRE_RETAIN, 0, 1 },
	{ OKV_WIRE_GIVE, sizeof(struct omnikv_ticket), 0 },
	{ OKV_WIRE_TAKE, sizeof(struct okv_wire_taken), 0 },
	{ OKV_WIRE_TAKE_END, 0, 0 },
	{ OKV_WIRE_TOKENS, 0, 0 },
};

#define NR_REQUESTS	(sizeof(requests) / sizeof(requests[0]))

/* These have no reply, or one of their own above. */
static bool is_not_asked(uint32_t type)
{
	return type == OKV_WIRE_HELLO || type == OKV_WIRE_SPACE_CLOSE || type == OKV_WIRE_USE || type == OKV_WIRE_DISTRUST ||
	       (type > OKV_WIRE_END && type < OKV_WIRE_MANAGER);
}

/* One connection, one request, and the reply that has this status. */
static int asked(uint32_t at, int32_t status, size_t *bytes)
{
	const enum answer script[] = { SCRIPTED };
	struct daemon daemon = { .status = status, .payload_bytes = requests[at].payload_bytes };
	struct okv_wire_attached attached = { .kind = OKV_WIRE_POOL_KMOD, .name = "a" };
	unsigned char room[2048];
	struct okv_call call = {
		.type = requests[at].type, .timeout_ms = 3000, .status_max = requests[at].max, .reply = room,
		.reply_max = sizeof(room),
	};
	struct okv_conn *conn;
	bool is_up;
	int ret;

	if (call.type == OKV_WIRE_ATTACH || call.type == OKV_WIRE_REATTACH)
		memcpy(daemon.payload, &attached, sizeof(attached));
	start(&daemon, script, 1);
	assert_int_equal(okv_conn_open(daemon.path, NULL, &conn, NULL), 0);
	ret = okv_conn_call(conn, &call);
	is_up = okv_conn_is_up(conn);
	*bytes = call.reply_bytes;
	okv_conn_close(conn);
	stop(&daemon);
	/* A reply that is none ends the connection, and nothing else does. */
	assert_int_equal(is_up, ret != -EPROTO);
	return ret;
}

static void a_status_above_what_the_request_can_have_is_no_success(void **state)
{
	uint32_t nr_types = 0, i;
	size_t bytes;

	(void)state;
	for (i = 1; i < OKV_WIRE_FRAMES_END; i++)
		nr_types += !is_not_asked(i);
	assert_int_equal(NR_REQUESTS, nr_types);
	for (i = 0; i < NR_REQUESTS; i++) {
		assert_int_equal(asked(i, 0, &bytes), 0);
		assert_int_equal(bytes, requests[i].payload_bytes);
		assert_int_equal(asked(i, requests[i].max, &bytes), requests[i].max);
		assert_int_equal(asked(i, requests[i].max + 1, &bytes), -EPROTO);
		assert_int_equal(bytes, 0);
		assert_int_equal(asked(i, INT32_MAX, &bytes), -EPROTO);
	}
}

static void a_status_that_is_no_errno_is_no_refusal(void **state)
{
	size_t bytes;
	uint32_t i;

	(void)state;
	for (i = 0; i < NR_REQUESTS; i++) {
		assert_int_equal(asked(i, -ENOMEM, &bytes), -ENOMEM);
		assert_int_equal(asked(i, -4095, &bytes), -4095);
		assert_int_equal(asked(i, -4096, &bytes), -EPROTO);
		assert_int_equal(asked(i, INT32_MIN, &bytes), -EPROTO);
	}
}

static int nr_late;

static int count_late(void *opaque, const char *name)
{
	(void)opaque;
	(void)name;
	nr_late++;
	return 0;
}

static void late_replies_are_nobody_elses(void **state)
{
	const enum answer script[] = { SILENT, LATE_FIRST, WITH_FDS, GOOD };
	struct daemon daemon;
	struct okv_conn *conn;
	uint64_t first, second;
	int fds;

	(void)state;
	start(&daemon, script, 4);
	assert_int_equal(okv_conn_open(daemon.path, NULL, &conn, NULL), 0);
	okv_failpoint_arm(&(struct okv_failpoint){ .name = "conn.late", .fn = count_late });
	assert_int_equal(ask(conn, OKV_WIRE_INFO, NULL, NULL), -ETIME);
	/* One that was silent just now is not asked again at once. */
	assert_int_equal(ask(conn, OKV_WIRE_INFO, NULL, NULL), -ETIME);
	sleep_ms(150);
	fds = open_fds();
	assert_int_equal(ask(conn, OKV_WIRE_INFO, NULL, &first), 0);
	assert_int_equal(nr_late, 1);
	assert_int_equal(ask(conn, OKV_WIRE_INFO, NULL, NULL), 0);
	assert_int_equal(ask(conn, OKV_WIRE_INFO, NULL, &second), 0);
	assert_int_equal(second, first + 2);
	/* Descriptors of a late reply are closed here, others by who asked. */
	assert_int_equal(open_fds(), fds);
	okv_failpoint_disarm_all();
	okv_conn_close(conn);
	stop(&daemon);
}

static void what_changes_something_is_not_asked_twice(void **state)
{
	const enum answer script[] = { GOOD, CLOSE, GOOD, CLOSE, GOOD };
	struct okv_call end = { .type = OKV_WIRE_END, .timeout_ms = 300 };
	struct daemon daemon;
	struct okv_conn *conn;

	(void)state;
	start(&daemon, script, 5);
	assert_int_equal(okv_conn_open(daemon.path, NULL, &conn, NULL), 0);
	assert_int_equal(ask(conn, OKV_WIRE_INFO, NULL, NULL), 0);
	/* A question is. */
	assert_int_equal(ask(conn, OKV_WIRE_INFO, NULL, NULL), 0);
	assert_int_equal(okv_conn_epoch(conn), 2);
	assert_int_equal(okv_conn_call(conn, &end), -EPIPE);
	assert_int_equal(ask(conn, OKV_WIRE_INFO, NULL, NULL), 0);
	okv_conn_close(conn);
	stop(&daemon);
}

struct patient {
	struct okv_conn	*conn;
	int		ret;
};

static void *ask_patiently(void *opaque)
{
	struct patient *patient = opaque;
	struct okv_wire_info info;
	struct okv_call call = { .type = OKV_WIRE_INFO, .timeout_ms = 30000, .reply = &info, .reply_max = sizeof(info) };

	patient->ret = okv_conn_call(patient->conn, &call);
	return NULL;
}

/* The other one has its answer only after this one has given up. */
static void a_call_gives_up_while_anothers_goes_on(void **state)
{
	const enum answer script[] = { HELD };
	struct patient patient = { .ret = -1 };
	struct daemon daemon;
	pthread_t thread;

	(void)state;
	start(&daemon, script, 1);
	assert_int_equal(okv_conn_open(daemon.path, NULL, &patient.conn, NULL), 0);
	assert_int_equal(pthread_create(&thread, NULL, ask_patiently, &patient), 0);
	while (!is_held)
		usleep(1000);
	assert_int_equal(ask(patient.conn, OKV_WIRE_INFO, NULL, NULL), -ETIME);
	may_answer = true;
	pthread_join(thread, NULL);
	assert_int_equal(patient.ret, 0);
	okv_conn_close(patient.conn);
	stop(&daemon);
}

/* A use is told by the way, and waits for nobody. */
static void features_are_known_while_a_call_goes_on(void **state)
{
	const enum answer script[] = { HELD };
	struct patient patient = { .ret = -1 };
	struct daemon daemon;
	pthread_t thread;
	uint64_t begun;

	(void)state;
	is_held = may_answer = false;
	start(&daemon, script, 1);
	assert_int_equal(okv_conn_open(daemon.path, NULL, &patient.conn, NULL), 0);
	assert_int_equal(pthread_create(&thread, NULL, ask_patiently, &patient), 0);
	while (!is_held)
		usleep(1000);
	begun = now_ms();
	okv_conn_features(patient.conn);
	assert_in_range(now_ms() - begun, 0, 10000);
	may_answer = true;
	pthread_join(thread, NULL);
	okv_conn_close(patient.conn);
	stop(&daemon);
}

static void a_call_ends_however_many_late_replies_come(void **state)
{
	const enum answer script[] = { FLOOD };
	struct daemon daemon;
	struct okv_conn *conn;
	uint64_t begun;

	(void)state;
	start(&daemon, script, 1);
	assert_int_equal(okv_conn_open(daemon.path, NULL, &conn, NULL), 0);
	/* There is always another one by then. */
	okv_failpoint_arm(&(struct okv_failpoint){ .name = "conn.late", .delay_ms = 5 });
	begun = now_ms();
	assert_int_equal(ask(conn, OKV_WIRE_INFO, NULL, NULL), -ETIME);
	assert_in_range(now_ms() - begun, 0, FLOOD_MS / 2);
	okv_failpoint_disarm_all();
	okv_conn_close(conn);
	stop(&daemon);
}

static int ask_in_vain(struct okv_conn *conn, void *opaque, bool is_first, struct omnikv_error *err)
{
	struct okv_call call = { .type = OKV_WIRE_INFO };
	uint32_t i;
	int ret;

	(void)opaque;
	(void)is_first;
	(void)err;
	okv_failpoint_arm(&(struct okv_failpoint){ .name = "conn.send", .error = ENOMEM });
	ret = okv_conn_call_locked(conn, &call);
	okv_failpoint_disarm_all();
	for (i = 0; i < OKV_WIRE_FDS_MAX; i++)
		assert_int_equal(call.fds_out[i], -1);
	return ret;
}

/* What a caller closes then are not descriptors 0. */
static void a_request_that_does_not_go_out_brings_no_descriptors(void **state)
{
	const struct okv_conn_hooks hooks = { .connected = ask_in_vain };
	const enum answer script[] = { GOOD };
	struct daemon daemon;
	struct okv_conn *conn;

	(void)state;
	start(&daemon, script, 1);
	assert_int_equal(okv_conn_open(daemon.path, &hooks, &conn, NULL), -ENOMEM);
	stop(&daemon);
}

/* The limit is of new ones alone; @nr_free: how many there can be, of the two that come. */
static void ask_with_few_files(struct okv_conn *conn, int nr_free, struct omnikv_error *err, int expected)
{
	struct rlimit own, few;
	int spare = dup(0);

	assert_int_equal(getrlimit(RLIMIT_NOFILE, &own), 0);
	few = own;
	few.rlim_cur = (rlim_t)(spare + nr_free);
	close(spare);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	err->text[0] = '\0';
	assert_int_equal(ask(conn, OKV_WIRE_INFO, err, NULL), expected);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &own), 0);
}

/* "Protocol error" said nothing of it. */
static void descriptors_that_this_process_cannot_have_are_said(void **state)
{
	const enum answer script[] = { GOOD, WITH_FDS, WITH_FDS, WITH_FDS, WITH_FDS };
	struct omnikv_error err = { "" };
	struct okv_conn *conn, *other;
	struct daemon daemon;
	struct rlimit own;
	int before;

	(void)state;
	start(&daemon, script, 5);
	assert_int_equal(okv_conn_open(daemon.path, NULL, &conn, &err), 0);
	assert_int_equal(ask(conn, OKV_WIRE_INFO, NULL, NULL), 0);
	before = open_fds();
	for (int nr_free = 0; nr_free < 2; nr_free++) {
		ask_with_few_files(conn, nr_free, &err, -EMFILE);
		assert_non_null(strstr(err.text, "this process cannot have more open files, which it needs for the daemon at /tmp/omnikv-conn-"));
		assert_non_null(strstr(err.text, "raise its limit (ulimit -n)"));
		/* The connection is made anew. */
		assert_int_equal(ask(conn, OKV_WIRE_INFO, &err, NULL), 0);
	}
	assert_int_equal(open_fds(), before);
	/* Nor a connection. */
	before = dup(0);
	close(before);
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &own), 0);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &(struct rlimit){ (rlim_t)before, own.rlim_max }), 0);
	assert_int_equal(okv_conn_open(daemon.path, NULL, &other, &err), -EMFILE);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &own), 0);
	assert_non_null(strstr(err.text, "this process cannot have more open files"));
	okv_conn_close(conn);
	stop(&daemon);
}

static void another_version_is_one_clear_refusal(void **state)
{
	const enum answer script[] = { OLD_HELLO };
	struct omnikv_error err = { "" };
	struct daemon daemon;
	struct okv_conn *conn;

	(void)state;
	start(&daemon, script, 1);
	assert_int_equal(okv_conn_open(daemon.path, NULL, &conn, &err), -EPROTONOSUPPORT);
	assert_non_null(strstr(err.text, "update this program"));
	stop(&daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(wrong_replies_close_the_connection_and_the_next_call_makes_it_anew),
		cmocka_unit_test(a_refusal_is_an_answer),
		cmocka_unit_test(a_status_above_what_the_request_can_have_is_no_success),
		cmocka_unit_test(a_status_that_is_no_errno_is_no_refusal),
		cmocka_unit_test(late_replies_are_nobody_elses),
		cmocka_unit_test(what_changes_something_is_not_asked_twice),
		cmocka_unit_test(a_call_gives_up_while_anothers_goes_on),
		cmocka_unit_test(features_are_known_while_a_call_goes_on),
		cmocka_unit_test(a_call_ends_however_many_late_replies_come),
		cmocka_unit_test(a_request_that_does_not_go_out_brings_no_descriptors),
		cmocka_unit_test(descriptors_that_this_process_cannot_have_are_said),
		cmocka_unit_test(another_version_is_one_clear_refusal),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

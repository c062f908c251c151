// SPDX-License-Identifier: MIT
/*
 * The client's end of the socket. See conn.h.
 *
 * The lock is held from a request to its reply. A call waits for it within its own deadline, which also bounds
 * connecting anew and all that the hook asks then. After a request without reply the daemon is silent: requests
 * wait shortly, and most of them not at all, until something comes in. A reply that comes after its request gave
 * up is known by its id, and nobody's.
 */
#include "conn.h"

#include <errno.h>
#include <grp.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "failpoint.h"
#include "fd.h"
#include "mutex.h"

#define SLOW_TIMEOUT_MS	100u
#define GROUPS_MAX	1024
#define PAUSE_MIN_NS	(10ull * 1000 * 1000)
#define PAUSE_MAX_NS	(1000ull * 1000 * 1000)
#define START_PAUSE_NS	(20ull * 1000 * 1000)

struct okv_conn {
	/* Fixed after creation. */
	struct sockaddr_un	addr;
	struct okv_conn_hooks	hooks;
	uint32_t		timeout_ms;
	pid_t			pid;

	/* Written under lock, read by anybody. */
	_Atomic bool		is_up;		/* connected, and the hook has had its say */
	_Atomic uint64_t	epoch;
	_Atomic uint64_t	features;

	pthread_mutex_t		lock;
	/* Guarded by lock. */
	int			fd;		/* -1: not connected */
	uint32_t		version;	/* 0 before HELLO */
	uint64_t		last_id;
	uint64_t		pause_ns;
	uint64_t		not_before_ns;	/* no attempt to connect before */
	bool			is_sent;	/* the last request left this process */
	bool			is_declined;	/* the last reply: the daemon ends, and has not begun it */
	bool			is_slow;	/* the last request got no reply in time */
	uint64_t		ask_again_ns;	/* while it is slow: not before, but where something came in */
	uint64_t		until_ns;	/* of the call that goes on now */
	unsigned char		*buf;		/* [OKV_WIRE_FRAME_MAX] */
};

/* A connection that breaks may be made again at once: its daemon was started anew, as far as can be known. */
static void drop_locked(struct okv_conn *conn)
{
	if (conn->fd >= 0)
		close(conn->fd);
	conn->fd = -1;
	conn->version = 0;
	atomic_store(&conn->is_up, false);
}

/* Nobody there: not before a pause. */
static void rest_locked(struct okv_conn *conn)
{
	conn->not_before_ns = okv_monotonic_ns() + conn->pause_ns;
	conn->pause_ns = conn->pause_ns * 2 < PAUSE_MAX_NS ? conn->pause_ns * 2 : PAUSE_MAX_NS;
}

static uint64_t earlier(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* 0, or -ETIME: another thread's request takes longer than this one may. */
static int lock_until(struct okv_conn *conn, uint64_t until_ns)
{
	int ret = okv_mutex_lock_until(&conn->lock, until_ns);

	if (!ret)
		conn->until_ns = until_ns;
	return ret;
}

static uint64_t until_of(const struct okv_conn *conn, uint32_t timeout_ms)
{
	return okv_monotonic_ns() + (timeout_ms ? timeout_ms : conn->timeout_ms) * 1000000ull;
}

/* It was silent a moment ago, and still is. */
static bool is_silent_locked(const struct okv_conn *conn)
{
	struct pollfd pfd = { .fd = conn->fd, .events = POLLIN };

	return conn->is_slow && okv_monotonic_ns() < conn->ask_again_ns && poll(&pfd, 1, 0) <= 0;
}

/* 0, or -ETIME. */
static int wait_for(int fd, short events, uint64_t deadline_ns)
{
	struct pollfd pfd = { .fd = fd, .events = events };

	for (;;) {
		uint64_t now = okv_monotonic_ns();
		int ret;

		if (now >= deadline_ns)
			return -ETIME;
		ret = poll(&pfd, 1, (int)((deadline_ns - now) / 1000000 + 1));
		if (ret > 0)
			return 0;
		if (ret < 0 && errno != EINTR)
			return -errno;
	}
}

static void close_fds(int fds[OKV_WIRE_FDS_MAX])
{
	uint32_t i;

	for (i = 0; i < OKV_WIRE_FDS_MAX; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
		fds[i] = -1;
	}
}

/* One packet goes out whole or not at all. */
static int send_frame(struct okv_conn *conn, const struct okv_wire_header *header, const struct okv_call *call,
		      uint64_t deadline_ns)
{
	union {
		struct cmsghdr	align;
		char		room[CMSG_SPACE(OKV_WIRE_FDS_MAX * sizeof(int))];
	} control = { 0 };
	struct iovec iov[3] = {
		{ (void *)(uintptr_t)header, sizeof(*header) },
		{ (void *)(uintptr_t)call->req, call->req_bytes },
		{ (void *)(uintptr_t)call->items, call->items_bytes },
	};
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 3 };
	int ret;

	if (call->nr_fds_in) {
		struct cmsghdr *cmsg = &control.align;

		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(call->nr_fds_in * sizeof(int));
		cmsg->cmsg_level = SOL_SOCKET;
		cmsg->cmsg_type = SCM_RIGHTS;
		cmsg->cmsg_len = CMSG_LEN(call->nr_fds_in * sizeof(int));
		memcpy(CMSG_DATA(cmsg), call->fds_in, call->nr_fds_in * sizeof(int));
	}
	for (;;) {
		if (sendmsg(conn->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
			return 0;
		if (errno == EINTR)
			continue;
		if (errno != EAGAIN)
			return errno == EMSGSIZE ? -EMSGSIZE : -EPIPE;
		if (!deadline_ns)
			return -EAGAIN;
		ret = wait_for(conn->fd, POLLOUT, deadline_ns);
		if (ret)
			return ret;
	}
}

/*
 * One packet into conn->buf. Its descriptors, moved above 2, go to @fds. Length, or a negative errno; -EMFILE: there was room
 * for its descriptors, and this process cannot have them.
 */
static ssize_t receive_frame(struct okv_conn *conn, int fds[OKV_WIRE_FDS_MAX], uint64_t deadline_ns)
{
	union {
		struct cmsghdr	align;
		char		room[CMSG_SPACE(OKV_WIRE_FDS_MAX * sizeof(int))];
	} control;
	struct iovec iov = { conn->buf, OKV_WIRE_FRAME_MAX };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	struct cmsghdr *cmsg;
	bool is_short = false;
	uint32_t i, nr = 0;
	ssize_t len;
	int ret;

	for (i = 0; i < OKV_WIRE_FDS_MAX; i++)
		fds[i] = -1;
	for (;;) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		len = recvmsg(conn->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
		if (len >= 0 || (errno != EAGAIN && errno != EINTR))
			break;
		ret = wait_for(conn->fd, POLLIN, deadline_ns);
		if (ret)
			return ret;
	}
	if (len <= 0)
		return -EPIPE;
	for (cmsg = CMSG_FIRSTHDR(&msg); cmsg; cmsg = CMSG_NXTHDR(&msg, cmsg)) {
		const unsigned char *data = CMSG_DATA(cmsg);
		size_t bytes = cmsg->cmsg_len - CMSG_LEN(0);

		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		for (; bytes >= sizeof(int) && nr < OKV_WIRE_FDS_MAX; bytes -= sizeof(int), data += sizeof(int)) {
			memcpy(&fds[nr], data, sizeof(int));
			fds[nr] = okv_fd_high(fds[nr]);
			is_short |= fds[nr] < 0;
			nr++;
		}
	}
	is_short |= (msg.msg_flags & MSG_CTRUNC) && nr < OKV_WIRE_FDS_MAX;
	if (is_short || (msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC))) {
		close_fds(fds);
		return is_short ? -EMFILE : -EPROTO;
	}
	return len;
}

#define REPLY_IS_LATE	INT_MIN	/* of a request that has given up */
#define REPLY_IS_NONE	(INT_MIN + 1)

/* The status of what came where it is the reply to @id, or one of the above. */
static int take_reply(struct okv_conn *conn, size_t len, uint64_t id, struct okv_call *call)
{
	const unsigned char *payload = conn->buf + sizeof(struct okv_wire_header);
	struct okv_wire_header header;

	if (okv_wire_header_check(conn->buf, len, conn->version, true, &header))
		return REPLY_IS_NONE;
	if (header.status >= 0 && header.type < OKV_WIRE_MANAGER &&
	    okv_wire_reply_check(header.type, payload, header.length))
		return REPLY_IS_NONE;
	/* No request has the id 0: it is this end that is refused. */
	if (header.id != id && (header.id || header.type != OKV_WIRE_HELLO || header.status >= 0)) {
		(void)OKV_FAILPOINT("conn.late");
		return REPLY_IS_LATE;
	}
	if (header.type != call->type || header.status > call->status_max)
		return REPLY_IS_NONE;
	if (header.status < 0) {
		if (header.length && call->err)
			okv_error_set(call->err, 0, "%.*s", (int)header.length, payload);
		conn->is_declined = header.status == -ENOTCONN;
		/* These would say that the connection failed. */
		return header.status == -EPIPE || header.status == -ENOTCONN ? -EIO : header.status;
	}
	if (header.length > call->reply_max)
		return REPLY_IS_NONE;
	if (header.length)
		memcpy(call->reply, payload, header.length);
	call->reply_bytes = header.length;
	return header.status;
}

static void went_silent_locked(struct okv_conn *conn)
{
	conn->is_slow = true;
	conn->ask_again_ns = until_of(conn, SLOW_TIMEOUT_MS);
}

static int exchange_locked(struct okv_conn *conn, struct okv_call *call)
{
	uint64_t bytes = (uint64_t)call->req_bytes + call->items_bytes;
	uint64_t deadline_ns = conn->is_slow ? earlier(conn->until_ns, until_of(conn, SLOW_TIMEOUT_MS)) : conn->until_ns;
	struct okv_wire_header header = {
		.magic	 = OKV_WIRE_MAGIC,
		.version = (uint16_t)(call->type == OKV_WIRE_HELLO ? OKV_WIRE_VERSION : conn->version),
		.type	 = (uint16_t)call->type,
		.length	 = (uint32_t)bytes,
		.id	 = ++conn->last_id,
	};
	ssize_t len;
	uint32_t i;
	int ret;

	for (i = 0; i < OKV_WIRE_FDS_MAX; i++)
		call->fds_out[i] = -1;
	call->reply_bytes = 0;
	conn->is_declined = false;
	if (bytes > OKV_WIRE_PAYLOAD_MAX)
		return -EMSGSIZE;
	ret = -OKV_FAILPOINT("conn.send");
	if (!ret)
		ret = send_frame(conn, &header, call, deadline_ns);
	conn->is_sent = !ret;
	/* A packet that was not taken at all leaves the connection as it was. */
	if (ret == -ETIME || ret == -EMSGSIZE) {
		if (ret == -ETIME)
			went_silent_locked(conn);
		return ret;
	}
	/* A daemon that is gone may have said why. */
	if (ret && ret != -EPIPE)
		goto err_drop;
	do {
		len = receive_frame(conn, call->fds_out, deadline_ns);
		conn->is_slow = false;
		if (len == -ETIME) {
			went_silent_locked(conn);
			return -ETIME;
		}
		ret = len < 0 ? (int)len : take_reply(conn, (size_t)len, header.id, call);
		if (ret < 0)
			close_fds(call->fds_out);
		/* There is always one more of those where the other end likes. */
		if (ret == REPLY_IS_LATE && okv_monotonic_ns() >= deadline_ns) {
			went_silent_locked(conn);
			return -ETIME;
		}
	} while (ret == REPLY_IS_LATE);
	if (len >= 0 && ret != REPLY_IS_NONE)
		return ret;
	if (ret == REPLY_IS_NONE)
		ret = -EPROTO;
	if (ret == -EMFILE)
		okv_conn_say_why(conn->addr.sun_path, ret, 0, call->err);
err_drop:
	drop_locked(conn);
	return ret;
}

static int hello_locked(struct okv_conn *conn, struct omnikv_error *err)
{
	struct okv_wire_hello mine = {
		.version = OKV_WIRE_VERSION, .version_oldest = OKV_WIRE_VERSION_OLDEST,
		.features = OKV_FAILPOINT("conn.plain") ? 0 : OKV_WIRE_FEATURES,
	}, theirs;
	struct okv_call call = {
		.type = OKV_WIRE_HELLO, .req = &mine, .req_bytes = sizeof(mine), .reply = &theirs,
		.reply_max = sizeof(theirs), .err = err,
	};
	int ret;

	strncpy(mine.program, program_invocation_short_name, sizeof(mine.program) - 1);
	ret = exchange_locked(conn, &call);
	if (ret < 0)
		return ret;
	close_fds(call.fds_out);
	if (theirs.version > OKV_WIRE_VERSION || theirs.version < OKV_WIRE_VERSION_OLDEST)
		return okv_error_set(err, -EPROTONOSUPPORT, "the daemon chose version %u of the protocol; update this program",
				     theirs.version);
	conn->version = theirs.version;
	atomic_store(&conn->features, theirs.features & mine.features);
	return 0;
}

int okv_conn_say_why(const char *path, int ret, uint32_t timeout_ms, struct omnikv_error *err)
{
	if (!path)
		path = OKV_CONN_SOCKET;
	if (ret == -ETIME)
		return okv_error_set(err, ret, "the daemon at %.108s does not answer within %g s; is it stopped, or still starting? Try "
				     "again, or restart it", path, (timeout_ms ? timeout_ms : OKV_CONN_TIMEOUT_MS) / 1e3);
	if (ret == -EPIPE || ret == -ENOTCONN)
		return okv_error_set(err, ret, "the daemon at %.108s ended while it was asked; see its log for why, start it again, and try "
				     "again", path);
	if (ret == -EMFILE)
		return okv_error_set(err, ret, "this process cannot have more open files, which it needs for the daemon at %.108s; raise its "
				     "limit (ulimit -n)", path);
	return okv_error_set(err, ret, "the daemon at %.108s: %s", path, strerror(-ret));
}

static bool is_in_group(gid_t gid)
{
	gid_t groups[GROUPS_MAX];
	int nr = getgroups(GROUPS_MAX, groups);

	for (int i = 0; i < nr; i++)
		if (groups[i] == gid)
			return true;
	return getegid() == gid;
}

/* The kernel refused: whom the socket is for, as far as its mode tells. */
static int say_whom(const char *path, struct omnikv_error *err)
{
	struct group group, *found = NULL;
	char room[1024], name[40];
	struct stat st;

	if (stat(path, &st))
		return okv_error_set(err, -EACCES, "%.108s: Permission denied: user %u may not enter each directory above it, so whether a "
				     "daemon is there is not known; have them opened (chmod a+x)", path, geteuid());
	if (st.st_mode & S_IWGRP && is_in_group(st.st_gid))
		return okv_error_set(err, -EACCES, "the daemon at %.108s: Permission denied, although its mode lets user %u in: see what else "
				     "forbids it (SELinux, AppArmor)", path, geteuid());
	if (!(st.st_mode & S_IWGRP))
		return okv_error_set(err, -EACCES, "the daemon at %.108s: Permission denied: it serves root and user %u, not user %u; give omnikvd "
				     "a group to serve (--group)", path, st.st_uid, geteuid());
	if (getgrgid_r(st.st_gid, &group, room, sizeof(room), &found) || !found)
		snprintf(name, sizeof(name), "%u", st.st_gid);
	else
		snprintf(name, sizeof(name), "%s", group.gr_name);
	return okv_error_set(err, -EACCES, "the daemon at %.108s: Permission denied: user %u is not in its group %s; join that "
			     "(usermod -a -G %s USER) and log in again", path, geteuid(), name, name);
}

static int say_no_connection(const struct okv_conn *conn, int ret, struct omnikv_error *err)
{
	const char *path = conn->addr.sun_path;

	/* Its queue of connections is full: it takes none. */
	if (ret == -EAGAIN)
		return okv_error_set(err, -ETIME, "the daemon at %.108s takes no connection: too many wait; is it stopped? Try again, or "
				     "restart it", path);
	/* Names are looked up for people, and not at each attempt of one that was there before. */
	if (ret == -EACCES && !atomic_load(&conn->epoch))
		return say_whom(path, err);
	return okv_error_set(err, ret, "no daemon at %.108s: %s; is omnikvd running?", path, strerror(-ret));
}

/* -EAGAIN: it is starting, and @err says how far it is. */
static int connect_once_locked(struct okv_conn *conn, struct omnikv_error *err)
{
	const char *path = conn->addr.sun_path;
	int ret;

	if (conn->fd >= 0)
		return 0;
	if (okv_monotonic_ns() < conn->not_before_ns)
		return -ENOTCONN;
	conn->fd = okv_fd_high(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	if (conn->fd < 0)
		return errno == EMFILE ? okv_conn_say_why(path, -EMFILE, 0, err) :
		       okv_error_set(err, -errno, "socket: %s", strerror(errno));
	if (connect(conn->fd, (const struct sockaddr *)&conn->addr, sizeof(conn->addr))) {
		ret = say_no_connection(conn, -errno, err);
		goto err_drop;
	}
	ret = hello_locked(conn, err);
	if (ret == -EAGAIN) {
		drop_locked(conn);
		return ret;
	}
	if (ret) {
		if (ret == -EPIPE || ret == -ENOTCONN || ret == -ETIME)
			okv_conn_say_why(path, ret, conn->hooks.open_ms, err);
		goto err_drop;
	}
	atomic_fetch_add(&conn->epoch, 1);
	if (conn->hooks.connected) {
		ret = conn->hooks.connected(conn, conn->hooks.opaque, atomic_load(&conn->epoch) == 1, err);
		if (ret)
			goto err_drop;
		if (conn->fd < 0)
			return -ENOTCONN;
	}
	conn->pause_ns = PAUSE_MIN_NS;
	atomic_store(&conn->is_up, true);
	return 0;

err_drop:
	drop_locked(conn);
	rest_locked(conn);
	return ret;
}

static int connect_locked(struct okv_conn *conn, struct omnikv_error *err)
{
	const struct timespec pause = { .tv_nsec = START_PAUSE_NS };
	struct omnikv_error why = { "" }, how = { "" };
	int ret;

	while ((ret = connect_once_locked(conn, &why)) == -EAGAIN && !conn->hooks.is_told_starts) {
		how = why;
		why.text[0] = '\0';
		if (okv_monotonic_ns() + START_PAUSE_NS >= conn->until_ns) {
			ret = -ETIME;
			rest_locked(conn);
			break;
		}
		nanosleep(&pause, NULL);
	}
	if (ret == -ETIME && how.text[0])
		return okv_error_set(err, ret, "the daemon at %.108s is starting: %.100s; try again when it serves",
				     conn->addr.sun_path, how.text);
	return why.text[0] ? okv_error_set(err, ret, "%s", why.text) : ret;
}

int okv_conn_open(const char *path, const struct okv_conn_hooks *hooks, struct okv_conn **out,
		  struct omnikv_error *err)
{
	struct okv_conn *conn;
	int ret;

	if (!path)
		path = OKV_CONN_SOCKET;
	if (!*path || strlen(path) >= sizeof(conn->addr.sun_path))
		return okv_error_set(err, -EINVAL, "socket \"%.64s\": a path has 1 to %zu characters", path,
				     sizeof(conn->addr.sun_path) - 1);
	conn = calloc(1, sizeof(*conn));
	if (!conn)
		return -ENOMEM;
	conn->buf = malloc(OKV_WIRE_FRAME_MAX);
	if (!conn->buf) {
		free(conn);
		return -ENOMEM;
	}
	conn->fd = -1;
	conn->pid = getpid();
	conn->pause_ns = PAUSE_MIN_NS;
	conn->addr.sun_family = AF_UNIX;
	memcpy(conn->addr.sun_path, path, strlen(path));
	if (hooks)
		conn->hooks = *hooks;
	conn->timeout_ms = conn->hooks.timeout_ms ? conn->hooks.timeout_ms : OKV_CONN_TIMEOUT_MS;
	pthread_mutex_init(&conn->lock, NULL);

	pthread_mutex_lock(&conn->lock);
	conn->until_ns = until_of(conn, conn->hooks.open_ms ? conn->hooks.open_ms : OKV_CONN_TIMEOUT_MS);
	ret = connect_locked(conn, err);
	pthread_mutex_unlock(&conn->lock);
	if (ret) {
		okv_conn_close(conn);
		return ret;
	}
	*out = conn;
	return 0;
}

void okv_conn_close(struct okv_conn *conn)
{
	if (!conn)
		return;
	if (conn->fd >= 0)
		close(conn->fd);
	pthread_mutex_destroy(&conn->lock);
	free(conn->buf);
	free(conn);
}

int okv_conn_call_locked(struct okv_conn *conn, struct okv_call *call)
{
	return conn->fd < 0 ? -ENOTCONN : exchange_locked(conn, call);
}

/* A request that changes nothing. */
static bool is_question(uint32_t type)
{
	return type == OKV_WIRE_INFO || type == OKV_WIRE_QUERY || type == OKV_WIRE_LIST || type == OKV_WIRE_STATUS ||
	       type == OKV_WIRE_ROOM;
}

int okv_conn_call(struct okv_conn *conn, struct okv_call *call)
{
	bool is_anew = false, is_declined = false, is_again;
	uint32_t i;
	int ret;

	for (i = 0; i < OKV_WIRE_FDS_MAX; i++)
		call->fds_out[i] = -1;
	if (getpid() != conn->pid)
		return -EPERM;
	ret = lock_until(conn, until_of(conn, call->timeout_ms));
	if (ret)
		return ret;
	do {
		bool was_up = conn->fd >= 0;

		is_again = false;
		ret = connect_locked(conn, call->err);
		if (ret) {
			ret = ret == -EPROTONOSUPPORT ? ret : -ENOTCONN;
			break;
		}
		ret = is_silent_locked(conn) ? -ETIME : exchange_locked(conn, call);
		/* A daemon that was started anew meanwhile is asked once more, where asking twice does no harm. */
		if (ret == -EPIPE && was_up && !is_anew && (!conn->is_sent || is_question(call->type)))
			is_again = is_anew = true;
		/* One that ends and has done nothing of it leaves it to the next one. */
		else if (ret == -EIO && conn->is_declined && !is_declined)
			is_again = is_declined = true;
	} while (is_again);
	pthread_mutex_unlock(&conn->lock);
	return ret;
}

int okv_conn_send(struct okv_conn *conn, uint32_t type, const void *payload, size_t len)
{
	struct okv_call call = { .req = payload, .req_bytes = len };
	struct okv_wire_header header = {
		.magic = OKV_WIRE_MAGIC, .type = (uint16_t)type, .flags = OKV_WIRE_F_ONE_WAY, .length = (uint32_t)len,
	};
	bool is_again = false;
	int ret;

	if (getpid() != conn->pid)
		return -EPERM;
	if (len > OKV_WIRE_PAYLOAD_MAX)
		return -EMSGSIZE;
	if (lock_until(conn, until_of(conn, SLOW_TIMEOUT_MS)))
		return -EAGAIN;
	do {
		ret = connect_locked(conn, NULL);
		if (ret)
			break;
		header.version = (uint16_t)conn->version;
		header.id = ++conn->last_id;
		ret = send_frame(conn, &header, &call, 0);
		if (ret == -EPIPE)
			drop_locked(conn);
		is_again = ret == -EPIPE && !is_again;
	} while (is_again);
	pthread_mutex_unlock(&conn->lock);
	return ret == -EAGAIN ? ret : ret ? -ENOTCONN : 0;
}

bool okv_conn_is_up(struct okv_conn *conn)
{
	return atomic_load(&conn->is_up);
}

uint64_t okv_conn_epoch(struct okv_conn *conn)
{
	return atomic_load(&conn->epoch);
}

uint64_t okv_conn_features(struct okv_conn *conn)
{
	return atomic_load(&conn->features);
}

const char *okv_conn_path(const struct okv_conn *conn)
{
	return conn->addr.sun_path;
}

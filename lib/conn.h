/* SPDX-License-Identifier: MIT */
/*
 * A client's connection to omnikvd: requests with a deadline each, and getting back in touch.
 *
 * Owns the socket, HELLO, the match of replies to requests. What frames mean is their callers'. A
 * connection that broke is made anew by the first call after a pause that grows from 10 ms to 1 s;
 * until then calls fail at once with -ENOTCONN. Behind a request that got no reply in time the next ones wait only for a
 * tenth of a second each, until the daemon says something again. Calls from any thread; one request at a time, so
 * what waits long in the daemon deserves a connection of its own.
 */
#ifndef OKV_CONN_H
#define OKV_CONN_H

#include "wire.h"

#define OKV_CONN_SOCKET		"/run/omnikv/omnikvd.sock"
/** Time for a reply where the caller does not say, and for connecting. */
#define OKV_CONN_TIMEOUT_MS	5000u

struct okv_conn;

/**
 * struct okv_call - one request and its reply
 * @type:        enum okv_wire_type, or one of the manager's
 * @timeout_ms:  of all of it: waiting for other threads' requests, connecting, sending, the reply; 0: the connection's
 * @req, @items: payload, in two parts that follow each other; either may be NULL with 0 bytes
 * @fds_in:      descriptors that go along; they stay the caller's
 * @status_max:  largest status that the reply may have: 0, but for the few whose status is a number
 * @reply:       [@reply_max] payload of a reply that succeeded
 * @reply_bytes: out: how much came
 * @fds_out:     out: descriptors that came along, the caller's from then on; -1 where none
 * @err:         why, where the daemon says so; may be NULL
 */
struct okv_call {
	uint32_t		type;
	uint32_t		timeout_ms;
	const void		*req;
	size_t			req_bytes;
	const void		*items;
	size_t			items_bytes;
	const int		*fds_in;
	uint32_t		nr_fds_in;
	int32_t			status_max;
	void			*reply;
	size_t			reply_max;
	size_t			reply_bytes;
	int			fds_out[OKV_WIRE_FDS_MAX];
	struct omnikv_error	*err;
};

/**
 * struct okv_conn_hooks - what the connection tells its user, called with it locked, and how long it may take
 * @connected: HELLO is over, of the first connection too; ends with 0, or the connection is given up. Its
 *             requests go by okv_conn_call_locked()
 * @timeout_ms: of each request that has none of its own; 0: OKV_CONN_TIMEOUT_MS
 * @open_ms:   of okv_conn_open() with all that @connected asks; 0: OKV_CONN_TIMEOUT_MS
 * @is_told_starts: a daemon that is starting is not waited for: okv_conn_open() is -EAGAIN, and @err how far it is
 */
struct okv_conn_hooks {
	int	(*connected)(struct okv_conn *conn, void *opaque, bool is_first, struct omnikv_error *err);
	void	*opaque;
	uint32_t timeout_ms;
	uint32_t open_ms;
	bool	is_told_starts;
};

/**
 * okv_conn_open() - connect and agree on a version
 * @path:  of the socket; NULL: OKV_CONN_SOCKET
 * @hooks: may be NULL; copied
 *
 * Return: 0, -ENOENT or -ECONNREFUSED (nobody listens there), -EACCES (the socket's mode), -EPERM (the daemon does not
 * serve this user), -EDQUOT (its connections are all taken), -EPIPE (it ended meanwhile), -EPROTONOSUPPORT, -ETIME, -ENOMEM,
 * -EMFILE; @err says which and why.
 */
int okv_conn_open(const char *path, const struct okv_conn_hooks *hooks, struct okv_conn **conn,
		  struct omnikv_error *err);
/**
 * Say in @err why a request to the daemon at @path (NULL: OKV_CONN_SOCKET) failed with @ret: it is silent for so long
 * (0: OKV_CONN_TIMEOUT_MS), it ended, this process cannot have more open files
 * (-EMFILE), or what the errno says. Returns @ret.
 */
int okv_conn_say_why(const char *path, int ret, uint32_t timeout_ms, struct omnikv_error *err);
/** NULL is nothing. */
void okv_conn_close(struct okv_conn *conn);

/**
 * okv_conn_call() - send a request and wait for its reply
 *
 * Where the daemon was started anew since, the call connects again, and sends again what was not sent or changes nothing.
 * What a daemon that ends answers with -ENOTCONN it has not begun: it is sent again, once, for the next one to read.
 *
 * Return: the reply's status (0 to @call->status_max), or the daemon's negative errno, or
 *   -ENOTCONN    there is no daemon now; nothing was sent
 *   -EPIPE       the connection broke meanwhile: whether the request was done is not known
 *   -ETIME       no reply within the deadline, or none to the request before it and nothing since: likewise
 *   -EPROTO      a reply that is none; the connection is closed
 *   -EPERM       in a forked child
 */
int okv_conn_call(struct okv_conn *conn, struct okv_call *call);
/** The same from within a hook. */
int okv_conn_call_locked(struct okv_conn *conn, struct okv_call *call);
/** A request without a reply: OKV_WIRE_F_ONE_WAY. Hardly waits: -EAGAIN where the socket is full or long in use, -ENOTCONN. */
int okv_conn_send(struct okv_conn *conn, uint32_t type, const void *payload, size_t len);

/* These two never wait for a request that is under way. */
bool okv_conn_is_up(struct okv_conn *conn);
/** How often it was connected. Raised by each reconnect. */
uint64_t okv_conn_epoch(struct okv_conn *conn);
/** Features of both ends. */
uint64_t okv_conn_features(struct okv_conn *conn);
const char *okv_conn_path(const struct okv_conn *conn);

#endif /* OKV_CONN_H */

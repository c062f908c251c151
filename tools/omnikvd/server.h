/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The daemon's loop: sockets, peers, frames in and out, time.
 *
 * Owns connections and their output; leaves what frames mean to services, each a table of frames
 * in a file of its own. One thread enters everything here; no call waits for a peer: a peer whose
 * output does not drain within a deadline is closed, and one that is not read from is not served
 * either, so that its output stays bounded.
 *
 * Life of a peer:
 *
 *	NEW ----> GREETED ----> GONE
 *	  \____________________^
 *
 * NEW      accepted; only HELLO, within OKV_HELLO_MS
 * GREETED  any frame of the services
 * GONE     its socket is closed; freed at the end of the turn
 */
#ifndef OKV_SERVER_H
#define OKV_SERVER_H

#include <sys/socket.h>
#include <sys/types.h>

#include "wire.h"

#define OKV_HELLO_MS		5000u
/** Time for a place to become free, for whoever comes when there is none. */
#define OKV_PLACE_MS		2000u
/** Time for a peer to take its replies. */
#define OKV_DRAIN_MS		5000u
/** Time for all peers together to take what is theirs when the daemon ends. */
#define OKV_STOP_MS		1000u
/** Frames that wait for a peer to take them; one more closes it. */
#define OKV_QUEUE_MAX		64u
#define OKV_SERVICES_MAX	8u

struct okv_server;
struct okv_peer;

/**
 * struct okv_request - one frame that came in
 * @fds: [nr_fds] descriptors that came along; closed behind the handler, except those that it set to -1
 *
 * @payload is aligned to 8 bytes, and the peer's no more: it cannot change meanwhile.
 */
struct okv_request {
	struct okv_peer			*peer;
	const struct okv_wire_header	*header;
	const void			*payload;
	uint32_t			length;
	int				fds[OKV_WIRE_FDS_MAX];
	uint32_t			nr_fds;
};

/**
 * struct okv_reply - what a handler answers
 * @payload: [OKV_WIRE_PAYLOAD_MAX], aligned to 8 bytes; the handler writes and sets @length
 * @fds:     [nr_fds] sent along; the first @nr_owned are closed then, the others stay the handler's
 * @err:     for the peer, where the status is negative
 */
struct okv_reply {
	void			*payload;
	uint32_t		length;
	int			fds[OKV_WIRE_FDS_MAX];
	uint32_t		nr_fds;
	uint32_t		nr_owned;
	struct omnikv_error	err;
};

/** A handler's status: no reply now; okv_peer_reply() follows. */
#define OKV_REPLY_LATER		(1 << 30)

/**
 * struct okv_frame - one kind of request
 * @min, @max: bounds of the payload's length; frames outside are refused with -EPROTO
 * @handle:    returns the reply's status: 0 or more, a negative errno, or OKV_REPLY_LATER
 */
struct okv_frame {
	uint16_t	type;
	uint32_t	min;
	uint32_t	max;
	int		(*handle)(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply);
};

enum okv_peer_end {
	OKV_END_CLOSED,		/* by either side; the process may live */
	OKV_END_DIED,		/* its process ended, whoever still has its descriptors */
	OKV_END_STOP,		/* the daemon stops; the next one may go on with it */
};

/**
 * struct okv_service - frames, and what else a part of the daemon wants to know; each function may be NULL
 * @peer_end: the peer's connection is over, and why
 * @stop:     the loop has ended: what is owed is answered now, before it goes out
 * @tick:     at the time that it returned last, or that okv_server_wake() set; returns the next time in ns of
 *            okv_monotonic_ns(), or UINT64_MAX
 */
struct okv_service {
	const struct okv_frame	*frames;
	uint32_t		nr_frames;
	void			(*peer_end)(struct okv_server *server, struct okv_peer *peer, enum okv_peer_end why);
	void			(*stop)(struct okv_server *server);
	uint64_t		(*tick)(struct okv_server *server, uint64_t now_ns);
};

enum okv_peer_state {
	OKV_PEER_NEW,
	OKV_PEER_GREETED,
	OKV_PEER_GONE,
};

struct okv_packet;
struct okv_source;

/**
 * struct okv_peer - one connection
 * @number:   never used again while the daemon lives
 * @data:     the services' own; [i] is that of the service that okv_server_add() gave number i
 */
struct okv_peer {
	/* Fixed after creation. */
	struct okv_server	*server;
	uint64_t		number;
	struct ucred		cred;
	uint64_t		since_ns;

	enum okv_peer_state	state;
	int			fd;
	uint32_t		version;
	uint64_t		features;
	char			program[32];
	uint64_t		deadline_ns;	/* of HELLO, or of its output; UINT64_MAX: none */
	struct okv_packet	*out, **out_tail;
	uint32_t		nr_out;
	int			pid_fd;		/* of its process; -1: not to be had */
	struct okv_source	*source, *pid_source;
	uint32_t		events;		/* that epoll watches */
	void			*data[OKV_SERVICES_MAX];
	struct okv_peer		*next;
};

/**
 * struct okv_server_config
 * @peers_max: connections at once; further ones wait in the socket's queue, and are refused after OKV_PLACE_MS
 * @full:      why they are
 * @path:      of the socket, for people; both stay the caller's
 * @may_enter: may this peer stay? NULL: all; @why tells the peer
 * @log:       one line for the operator; may be NULL
 * @opaque:    handed to both, and for services
 */
struct okv_server_config {
	uint32_t	peers_max;
	const char	*full;
	const char	*path;
	bool		(*may_enter)(void *opaque, int fd, const struct ucred *cred, struct omnikv_error *why);
	void		(*log)(void *opaque, int priority, const char *line);
	void		*opaque;
};

int okv_server_create(const struct okv_server_config *config, struct okv_server **server);
/** Closes all peers, for their services too. Listening sockets are the caller's. */
void okv_server_destroy(struct okv_server *server);
/** Number of the service, for peer->data. At most OKV_SERVICES_MAX. */
uint32_t okv_server_add(struct okv_server *server, const struct okv_service *service);
/** Accept from @fd, which stays the caller's. */
int okv_server_listen(struct okv_server *server, int fd);
/** Call @ready whenever @fd is readable. */
int okv_server_watch(struct okv_server *server, int fd, void (*ready)(struct okv_server *server, int fd, void *opaque),
		     void *opaque);
void okv_server_unwatch(struct okv_server *server, int fd);
/** A connection from an earlier life of the daemon, past HELLO, under its old number. @fd is the server's then. NULL: no memory. */
struct okv_peer *okv_server_adopt(struct okv_server *server, int fd, uint32_t version, uint64_t features,
				  uint64_t number);
/**
 * okv_server_starting() - nobody is let in yet, and who asks is told @how far it is; NULL: from now on they are
 *
 * A few turns, so that it is told now. Without services.
 */
void okv_server_starting(struct okv_server *server, const char *how);
/** Serve until okv_server_stop(). */
int okv_server_run(struct okv_server *server);
/** From a handler or a watch: the loop ends after this turn. */
void okv_server_stop(struct okv_server *server);
/** One turn of at most @timeout_ms. */
int okv_server_turn(struct okv_server *server, int timeout_ms);
/** All ticks are called at @at_ns at the latest. Any thread; what another one sets is seen at the next turn. */
void okv_server_wake(struct okv_server *server, uint64_t at_ns);
void *okv_server_opaque(struct okv_server *server);
struct okv_peer *okv_server_peers(struct okv_server *server);
/** The peer of this number, or NULL. */
struct okv_peer *okv_server_peer(struct okv_server *server, uint64_t number);
void okv_server_log(struct okv_server *server, int priority, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/**
 * okv_peer_reply() - answer a request, at once or later
 * @type, @id: of the request
 * @fds:       stay the caller's
 *
 * Whoever answers later keeps the peer's number, not the peer.
 */
void okv_peer_reply(struct okv_peer *peer, uint16_t type, uint64_t id, int32_t status, const void *payload,
		    uint32_t length, const int *fds, uint32_t nr_fds);
/** Close it now; it is freed at the end of the turn. */
void okv_peer_close(struct okv_peer *peer);

#endif /* OKV_SERVER_H */

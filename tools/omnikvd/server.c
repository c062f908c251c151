// SPDX-License-Identifier: GPL-2.0-only
/*
 * The loop of the daemon. See server.h.
 *
 * A turn waits for events, takes a bounded number of frames of each ready peer, writes what peers
 * take, closes those whose time is over, and frees those that are gone. Level-triggered, so nothing
 * is lost where a bound ends a turn early.
 */
#include "server.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "fd.h"

#define EVENTS_MAX	64
#define FRAMES_A_TURN	16	/* of one peer */
#define ACCEPTS_A_TURN	16
#define SHORT_OF_FDS_NS	(100ull * 1000 * 1000)

/* One frame that a peer has not taken yet. */
struct okv_packet {
	struct okv_packet	*next;
	int			fds[OKV_WIRE_FDS_MAX];
	uint32_t		nr_fds;
	uint32_t		length;
	unsigned char		bytes[];
};

enum okv_source_kind {
	OKV_SOURCE_LISTEN,
	OKV_SOURCE_WATCH,
	OKV_SOURCE_PEER,
	OKV_SOURCE_PID,		/* a peer's process */
};

/* What epoll's pointer points to: the first member of each. */
struct okv_source {
	enum okv_source_kind	kind;
	int			fd;
	struct okv_peer		*peer;
	void			(*ready)(struct okv_server *server, int fd, void *opaque);
	void			*opaque;
	bool			is_gone;
	struct okv_source	*next;
};

struct okv_server {
	struct okv_server_config	config;
	int				epoll_fd;
	const struct okv_service	*services[OKV_SERVICES_MAX];
	uint32_t			nr_services;
	const struct okv_frame		*frames[OKV_WIRE_NR];
	struct okv_source		*sources;
	struct okv_peer			*peers;
	uint32_t			nr_peers;
	uint64_t			last_number;
	_Atomic uint64_t		wake_ns;
	uint64_t			accept_again_ns;	/* accepting rests until then, or until a place is free */
	uint64_t			refuse_ns;		/* who waits for a place has waited long enough; 0: nobody waits */
	int				spare_fd;		/* for refusing where there is no other; -1: none */
	bool				is_resting;
	bool				is_short;		/* of descriptors, and the log has it */
	bool				is_refusing;		/* for want of a place, and the log has it */
	bool				is_stopping;
	bool				has_gone;
	char				starting[80];		/* HELLO waits for it to be empty */
	unsigned char			*in, *out;		/* [OKV_WIRE_FRAME_MAX] */
};

void okv_server_log(struct okv_server *server, int priority, const char *format, ...)
{
	char line[512];
	va_list args;

	if (!server->config.log)
		return;
	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	server->config.log(server->config.opaque, priority, line);
}

int okv_server_create(const struct okv_server_config *config, struct okv_server **out)
{
	struct okv_server *server;

	server = calloc(1, sizeof(*server));
	if (!server)
		return -ENOMEM;
	server->config = *config;
	server->wake_ns = UINT64_MAX;
	server->in = aligned_alloc(64, OKV_WIRE_FRAME_MAX);
	server->out = aligned_alloc(64, OKV_WIRE_FRAME_MAX);
	server->epoll_fd = okv_fd_high(epoll_create1(EPOLL_CLOEXEC));
	server->spare_fd = okv_fd_high(eventfd(0, EFD_CLOEXEC));
	if (!server->in || !server->out || server->epoll_fd < 0) {
		okv_server_destroy(server);
		return -ENOMEM;
	}
	*out = server;
	return 0;
}

void okv_server_starting(struct okv_server *server, const char *how)
{
	snprintf(server->starting, sizeof(server->starting), "%s", how ? how : "");
	/* One turn lets in who waits, another one answers them. */
	for (int i = 0; how && i < 2; i++)
		okv_server_turn(server, 0);
}

uint32_t okv_server_add(struct okv_server *server, const struct okv_service *service)
{
	uint32_t i;

	for (i = 0; i < service->nr_frames; i++)
		server->frames[service->frames[i].type] = &service->frames[i];
	server->services[server->nr_services] = service;
	return server->nr_services++;
}

/* ---- sources ---------------------------------------------------------------------------- */

static struct okv_source *source_add(struct okv_server *server, enum okv_source_kind kind, int fd, uint32_t events)
{
	struct epoll_event event = { .events = events };
	struct okv_source *source;

	source = calloc(1, sizeof(*source));
	if (!source)
		return NULL;
	source->kind = kind;
	source->fd = fd;
	event.data.ptr = source;
	if (epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, fd, &event)) {
		free(source);
		return NULL;
	}
	source->next = server->sources;
	server->sources = source;
	return source;
}

/* Its memory stays until the end of the turn: events of it may be waiting. */
static void source_del(struct okv_server *server, struct okv_source *source)
{
	epoll_ctl(server->epoll_fd, EPOLL_CTL_DEL, source->fd, NULL);
	source->is_gone = true;
	server->has_gone = true;
}

int okv_server_listen(struct okv_server *server, int fd)
{
	int flags = fcntl(fd, F_GETFL);

	/* Else a client that gives up between poll and accept stops the daemon. */
	if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK))
		return -errno;
	return source_add(server, OKV_SOURCE_LISTEN, fd, EPOLLIN) ? 0 : -ENOMEM;
}

int okv_server_watch(struct okv_server *server, int fd, void (*ready)(struct okv_server *, int, void *), void *opaque)
{
	struct okv_source *source = source_add(server, OKV_SOURCE_WATCH, fd, EPOLLIN);

	if (!source)
		return -ENOMEM;
	source->ready = ready;
	source->opaque = opaque;
	return 0;
}

void okv_server_unwatch(struct okv_server *server, int fd)
{
	struct okv_source *source;

	for (source = server->sources; source; source = source->next)
		if (source->fd == fd && !source->is_gone && source->kind == OKV_SOURCE_WATCH)
			source_del(server, source);
}

/* While no place or no descriptor is free, connections wait in the socket's queue without waking anybody. */
static void listen_rest(struct okv_server *server, bool is_resting)
{
	struct okv_source *source;

	if (server->is_resting == is_resting)
		return;
	server->is_resting = is_resting;
	for (source = server->sources; source; source = source->next) {
		struct epoll_event event = { .events = is_resting ? 0 : EPOLLIN, .data.ptr = source };

		if (source->kind == OKV_SOURCE_LISTEN && !source->is_gone)
			epoll_ctl(server->epoll_fd, EPOLL_CTL_MOD, source->fd, &event);
	}
}

/* ---- peers ------------------------------------------------------------------------------ */

static void packets_free(struct okv_peer *peer)
{
	struct okv_packet *packet;
	uint32_t i;

	while ((packet = peer->out)) {
		peer->out = packet->next;
		for (i = 0; i < packet->nr_fds; i++)
			close(packet->fds[i]);
		free(packet);
	}
	peer->out_tail = &peer->out;
	peer->nr_out = 0;
}

static void peer_end(struct okv_peer *peer, enum okv_peer_end why)
{
	struct okv_server *server = peer->server;
	uint32_t i;

	if (peer->state == OKV_PEER_GONE)
		return;
	peer->state = OKV_PEER_GONE;
	source_del(server, peer->source);
	packets_free(peer);
	for (i = 0; i < server->nr_services; i++)
		if (server->services[i]->peer_end)
			server->services[i]->peer_end(server, peer, why);
	close(peer->fd);
	if (peer->pid_source)
		source_del(server, peer->pid_source);
	if (peer->pid_fd >= 0)
		close(peer->pid_fd);
	peer->pid_fd = -1;
	peer->fd = -1;
	server->nr_peers--;
	server->has_gone = true;
}

void okv_peer_close(struct okv_peer *peer)
{
	peer_end(peer, OKV_END_CLOSED);
}

static struct okv_peer *peer_new(struct okv_server *server, int fd)
{
	socklen_t len = sizeof(struct ucred);
	struct okv_source *source;
	struct okv_peer *peer;

	peer = calloc(1, sizeof(*peer));
	if (!peer)
		return NULL;
	peer->server = server;
	peer->fd = fd;
	peer->out_tail = &peer->out;
	peer->since_ns = okv_monotonic_ns();
	peer->deadline_ns = peer->since_ns + OKV_HELLO_MS * 1000000ull;
	peer->events = EPOLLIN;
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer->cred, &len)) {
		free(peer);
		return NULL;
	}
	source = source_add(server, OKV_SOURCE_PEER, fd, EPOLLIN);
	if (!source) {
		free(peer);
		return NULL;
	}
	source->peer = peer;
	peer->source = source;
	/* A forked child keeps the socket of a process that ended; this tells. */
	peer->pid_fd = okv_fd_high((int)syscall(SYS_pidfd_open, peer->cred.pid, 0));
	if (peer->pid_fd >= 0)
		peer->pid_source = source_add(server, OKV_SOURCE_PID, peer->pid_fd, EPOLLIN);
	if (peer->pid_source)
		peer->pid_source->peer = peer;
	peer->number = ++server->last_number;
	peer->next = server->peers;
	server->peers = peer;
	server->nr_peers++;
	return peer;
}

struct okv_peer *okv_server_adopt(struct okv_server *server, int fd, uint32_t version, uint64_t features,
				  uint64_t number)
{
	struct okv_peer *peer;
	char path[32];
	ssize_t n = -1;
	int comm;

	/* As accept4() left it; the descriptor came from outside. */
	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK))
		return NULL;
	peer = peer_new(server, fd);
	if (!peer)
		return NULL;
	peer->state = OKV_PEER_GREETED;
	peer->version = version;
	peer->features = features;
	peer->number = number;
	if (number > server->last_number)
		server->last_number = number;
	peer->deadline_ns = UINT64_MAX;
	snprintf(path, sizeof(path), "/proc/%d/comm", peer->cred.pid);
	comm = open(path, O_RDONLY | O_CLOEXEC);
	if (comm >= 0) {
		n = read(comm, peer->program, sizeof(peer->program) - 1);
		close(comm);
	}
	peer->program[n > 0 ? n : 0] = '\0';
	peer->program[strcspn(peer->program, "\n")] = '\0';
	return peer;
}

static void peer_watch(struct okv_peer *peer, uint32_t events)
{
	struct epoll_event event = { .events = events, .data.ptr = peer->source };

	if (peer->events == events || peer->state == OKV_PEER_GONE)
		return;
	epoll_ctl(peer->server->epoll_fd, EPOLL_CTL_MOD, peer->fd, &event);
	peer->events = events;
}

/* ---- output ----------------------------------------------------------------------------- */

/* 0, -EAGAIN, or the peer is closed. */
static int packet_send(struct okv_peer *peer, const void *bytes, uint32_t length, const int *fds, uint32_t nr_fds)
{
	union {
		struct cmsghdr	align;
		char		room[CMSG_SPACE(OKV_WIRE_FDS_MAX * sizeof(int))];
	} control = { 0 };
	struct iovec iov = { (void *)(uintptr_t)bytes, length };
	struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1 };
	ssize_t ret;

	if (nr_fds) {
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(nr_fds * sizeof(int));
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(nr_fds * sizeof(int));
		memcpy(CMSG_DATA(&control.align), fds, nr_fds * sizeof(int));
	}
	do {
		ret = sendmsg(peer->fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	} while (ret < 0 && errno == EINTR);
	if (ret >= 0)
		return 0;
	/* Too many descriptors on their way, or no memory: as full as a full socket. */
	if (errno == EAGAIN || errno == ETOOMANYREFS || errno == ENOBUFS || errno == ENOMEM)
		return -EAGAIN;
	peer_end(peer, OKV_END_CLOSED);
	return -EPIPE;
}

static void peer_drain(struct okv_peer *peer)
{
	while (peer->out) {
		struct okv_packet *packet = peer->out;
		uint32_t i;

		if (packet_send(peer, packet->bytes, packet->length, packet->fds, packet->nr_fds))
			return;
		peer->out = packet->next;
		if (!peer->out)
			peer->out_tail = &peer->out;
		peer->nr_out--;
		for (i = 0; i < packet->nr_fds; i++)
			close(packet->fds[i]);
		free(packet);
		peer->deadline_ns = okv_monotonic_ns() + OKV_DRAIN_MS * 1000000ull;
	}
	if (peer->state == OKV_PEER_GREETED)
		peer->deadline_ns = UINT64_MAX;
	peer_watch(peer, EPOLLIN);
}

/* What the peer does not take now waits; meanwhile it is not read from. */
static void packet_queue(struct okv_peer *peer, const void *bytes, uint32_t length, const int *fds, uint32_t nr_fds)
{
	struct okv_packet *packet = NULL;

	if (peer->nr_out < OKV_QUEUE_MAX)
		packet = malloc(sizeof(*packet) + length);
	if (!packet) {
		okv_server_log(peer->server, LOG_WARNING, "client %d does not read its replies; closed", peer->cred.pid);
		peer_end(peer, OKV_END_CLOSED);
		return;
	}
	packet->next = NULL;
	packet->length = length;
	memcpy(packet->bytes, bytes, length);
	for (packet->nr_fds = 0; packet->nr_fds < nr_fds; packet->nr_fds++) {
		packet->fds[packet->nr_fds] = fcntl(fds[packet->nr_fds], F_DUPFD_CLOEXEC, 3);
		if (packet->fds[packet->nr_fds] < 0) {
			while (packet->nr_fds)
				close(packet->fds[--packet->nr_fds]);
			free(packet);
			peer_end(peer, OKV_END_CLOSED);
			return;
		}
	}
	if (!peer->out)
		peer->deadline_ns = okv_monotonic_ns() + OKV_DRAIN_MS * 1000000ull;
	*peer->out_tail = packet;
	peer->out_tail = &packet->next;
	peer->nr_out++;
	peer_watch(peer, EPOLLOUT);
}

static void frame_send(struct okv_peer *peer, const struct okv_wire_header *header, unsigned char *frame,
		       const int *fds, uint32_t nr_fds)
{
	uint32_t length = (uint32_t)sizeof(*header) + header->length;

	memcpy(frame, header, sizeof(*header));
	if (peer->state == OKV_PEER_GONE)
		return;
	if (peer->out || packet_send(peer, frame, length, fds, nr_fds) == -EAGAIN)
		packet_queue(peer, frame, length, fds, nr_fds);
}

static struct okv_wire_header reply_header(const struct okv_peer *peer, uint16_t type, uint64_t id, int32_t status,
					   uint32_t length)
{
	return (struct okv_wire_header) {
		.magic	 = OKV_WIRE_MAGIC,
		.version = (uint16_t)(peer->version ? peer->version : OKV_WIRE_VERSION),
		.type	 = type,
		.flags	 = OKV_WIRE_F_REPLY,
		.length	 = length,
		.id	 = id,
		.status	 = status,
	};
}

void okv_peer_reply(struct okv_peer *peer, uint16_t type, uint64_t id, int32_t status, const void *payload,
		    uint32_t length, const int *fds, uint32_t nr_fds)
{
	struct okv_wire_header header = reply_header(peer, type, id, status, length);
	unsigned char *frame;

	if (peer->state == OKV_PEER_GONE || length > OKV_WIRE_PAYLOAD_MAX)
		return;
	frame = malloc(sizeof(header) + length);
	if (!frame) {
		peer_end(peer, OKV_END_CLOSED);
		return;
	}
	if (length)
		memcpy(frame + sizeof(header), payload, length);
	frame_send(peer, &header, frame, fds, nr_fds);
	free(frame);
}

/* ---- input ------------------------------------------------------------------------------ */

static int hello(struct okv_peer *peer, const struct okv_wire_header *header, const void *payload,
		 struct okv_reply *reply)
{
	const struct okv_wire_hello *theirs = payload;
	struct okv_wire_hello *mine = reply->payload;
	int version;

	if (peer->version || okv_wire_request_check(OKV_WIRE_HELLO, payload, header->length))
		return -EPROTO;
	if (peer->server->starting[0])
		return okv_error_set(&reply->err, -EAGAIN, "%s", peer->server->starting);
	version = okv_wire_agree(theirs, &reply->err);
	if (version < 0)
		return version;
	*mine = (struct okv_wire_hello) {
		.version = (uint32_t)version, .version_oldest = OKV_WIRE_VERSION_OLDEST,
		.features = theirs->features & OKV_WIRE_FEATURES, .program = "omnikvd",
	};
	reply->length = sizeof(*mine);
	peer->version = (uint32_t)version;
	peer->features = mine->features;
	memcpy(peer->program, theirs->program, sizeof(peer->program));
	peer->state = OKV_PEER_GREETED;
	peer->deadline_ns = UINT64_MAX;
	return 0;
}

static void request_handle(struct okv_peer *peer, const struct okv_request *req)
{
	struct okv_server *server = peer->server;
	const struct okv_wire_header *header = req->header;
	const struct okv_frame *frame = server->frames[header->type];
	struct okv_reply reply = { .payload = server->out + sizeof(*header) };
	struct okv_wire_header answer;
	uint32_t i;
	int status;

	if (header->type == OKV_WIRE_HELLO)
		status = hello(peer, header, req->payload, &reply);
	else if (!frame)
		status = okv_error_set(&reply.err, -EOPNOTSUPP, "this daemon does not know requests of type %u", header->type);
	else if (req->length < frame->min || req->length > frame->max)
		status = -EPROTO;
	else
		status = frame->handle(server, req, &reply);
	if (status < 0) {
		reply.length = (uint32_t)strnlen(reply.err.text, sizeof(reply.err.text));
		memcpy(reply.payload, reply.err.text, reply.length);
		reply.nr_fds = 0;
	}
	answer = reply_header(peer, header->type, header->id, status, reply.length);
	if (status != OKV_REPLY_LATER && !(header->flags & OKV_WIRE_F_ONE_WAY))
		frame_send(peer, &answer, server->out, reply.fds, reply.nr_fds);
	for (i = 0; i < reply.nr_owned; i++)
		close(reply.fds[i]);
	/* A peer that cannot speak to us has nothing more to say. */
	if (header->type == OKV_WIRE_HELLO && status < 0 && !peer->out)
		peer_end(peer, OKV_END_CLOSED);
}

/* Descriptors of a packet, above 2; those that are too many are closed. */
static void take_fds(struct msghdr *msg, struct okv_request *req)
{
	struct cmsghdr *cmsg;

	for (cmsg = CMSG_FIRSTHDR(msg); cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {
		const unsigned char *data = CMSG_DATA(cmsg);
		size_t bytes = cmsg->cmsg_len - CMSG_LEN(0);

		if (cmsg->cmsg_level != SOL_SOCKET || cmsg->cmsg_type != SCM_RIGHTS)
			continue;
		for (; bytes >= sizeof(int); bytes -= sizeof(int), data += sizeof(int)) {
			int fd;

			memcpy(&fd, data, sizeof(fd));
			fd = okv_fd_high(fd);
			if (req->nr_fds < OKV_WIRE_FDS_MAX)
				req->fds[req->nr_fds++] = fd;
			else
				close(fd);
		}
	}
}

/* One frame of a peer; false when there is none, or no peer any more. */
static bool peer_read(struct okv_peer *peer)
{
	struct okv_server *server = peer->server;
	union {
		struct cmsghdr	align;
		char		room[CMSG_SPACE(OKV_WIRE_FDS_MAX * sizeof(int))];
	} control;
	struct iovec iov = { server->in, OKV_WIRE_FRAME_MAX };
	struct msghdr msg = {
		.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control),
	};
	struct okv_request req = { .peer = peer };
	struct okv_wire_header header;
	ssize_t len;
	uint32_t i;
	int ret;

	len = recvmsg(peer->fd, &msg, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (len < 0 && (errno == EAGAIN || errno == EINTR))
		return false;
	if (len <= 0) {
		peer_end(peer, OKV_END_CLOSED);
		return false;
	}
	take_fds(&msg, &req);
	ret = msg.msg_flags & (MSG_TRUNC | MSG_CTRUNC) ? -EPROTO :
	      okv_wire_header_check(server->in, (size_t)len, peer->version, false, &header);
	if (ret && (msg.msg_flags & MSG_CTRUNC) && req.nr_fds < OKV_WIRE_FDS_MAX) {
		okv_server_log(server, LOG_WARNING, "no open files are left for what client %d sent; closed", peer->cred.pid);
		peer_end(peer, OKV_END_CLOSED);
	} else if (ret) {
		okv_server_log(server, LOG_WARNING, "client %d sent a frame that is none; closed", peer->cred.pid);
		peer_end(peer, OKV_END_CLOSED);
	} else {
		req.header = &header;
		req.payload = server->in + sizeof(header);
		req.length = header.length;
		request_handle(peer, &req);
	}
	for (i = 0; i < req.nr_fds; i++)
		if (req.fds[i] >= 0)
			close(req.fds[i]);
	return peer->state != OKV_PEER_GONE;
}

static void peer_ready(struct okv_peer *peer, uint32_t events)
{
	int i;

	if (events & EPOLLOUT)
		peer_drain(peer);
	/* A peer that hung up cannot take what waits for it. */
	if (peer->state != OKV_PEER_GONE && peer->out && (events & (EPOLLHUP | EPOLLERR)))
		peer_end(peer, OKV_END_CLOSED);
	for (i = 0; i < FRAMES_A_TURN && peer->state != OKV_PEER_GONE && !peer->out; i++)
		if (!peer_read(peer))
			break;
}

/* The last word to a peer that may not stay. What it has sent is taken first: unread, it would overtake the answer. */
static void refuse(int fd, int status, const char *why)
{
	const struct okv_wire_header header = {
		.magic = OKV_WIRE_MAGIC, .version = OKV_WIRE_VERSION, .type = OKV_WIRE_HELLO, .flags = OKV_WIRE_F_REPLY,
		.length = (uint32_t)strlen(why), .status = status,
	};
	struct iovec iov[2] = { { (void *)(uintptr_t)&header, sizeof(header) }, { (void *)(uintptr_t)why, header.length } };
	const struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };

	shutdown(fd, SHUT_RD);
	while (recv(fd, NULL, 0, MSG_DONTWAIT | MSG_TRUNC) > 0)
		;
	sendmsg(fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	close(fd);
}

static bool is_shortage(int error)
{
	return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

/* Whoever comes while there is no place gets OKV_PLACE_MS, in the socket's queue; true: that is over. */
static bool is_wait_over(struct okv_server *server, uint64_t now)
{
	const uint64_t wait_ns = OKV_PLACE_MS * 1000000ull;

	/* Those who waited last may have given up since. */
	if (!server->refuse_ns || now >= server->refuse_ns + wait_ns)
		server->refuse_ns = now + wait_ns;
	return now >= server->refuse_ns;
}

static void rest_until(struct okv_server *server, uint64_t at_ns)
{
	server->accept_again_ns = at_ns < server->refuse_ns ? at_ns : server->refuse_ns;
	listen_rest(server, true);
}

/* One connection with the last descriptor there is, which then has to be refused. */
static int accept_spare(struct okv_server *server, int listen_fd)
{
	if (server->spare_fd >= 0)
		close(server->spare_fd);
	server->spare_fd = -1;
	return okv_fd_high(accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

/* The log hears of a state when it begins, and when it is over. */
static void note_short(struct okv_server *server, int error)
{
	if (!server->is_short)
		okv_server_log(server, LOG_WARNING, "cannot accept clients now: %s; they wait for %u s, and are refused then",
			       strerror(error), OKV_PLACE_MS / 1000);
	server->is_short = true;
}

static void note_full(struct okv_server *server)
{
	if (!server->is_refusing)
		okv_server_log(server, LOG_WARNING, "a client is refused: %s", server->config.full);
	server->is_refusing = true;
}

static void note_place(struct okv_server *server)
{
	if (server->is_short || server->is_refusing)
		okv_server_log(server, LOG_NOTICE, "clients are accepted again");
	server->is_short = false;
	server->is_refusing = false;
	server->refuse_ns = 0;
}

/* The spare descriptor is there again, where one can be had. */
static void keep_spare(struct okv_server *server)
{
	if (server->spare_fd < 0)
		server->spare_fd = okv_fd_high(eventfd(0, EFD_CLOEXEC));
}

/* A shortage is told before anybody is looked for. */
static bool is_anybody_there(int listen_fd)
{
	struct pollfd pfd = { .fd = listen_fd, .events = POLLIN };

	return poll(&pfd, 1, 0) > 0;
}

/*
 * Whoever waited is told why it was in vain. No more than one in a turn: who has left meanwhile makes a place for the next one,
 * and that is seen first.
 */
static bool end_wait(struct okv_server *server, int listen_fd, int fd, const char *why)
{
	/* Who comes because of the refusal has not waited yet. */
	if (!is_anybody_there(listen_fd))
		server->refuse_ns = 0;
	refuse(fd, -EDQUOT, why);
	keep_spare(server);
	return false;
}

/* True: there is more to do. */
static bool accept_one(struct okv_server *server, int listen_fd)
{
	bool is_full = server->nr_peers >= server->config.peers_max;
	uint64_t now = okv_monotonic_ns();
	struct omnikv_error why = { "" };
	socklen_t len = sizeof(struct ucred);
	struct ucred cred;
	int fd, error = 0;

	if (is_full && !is_wait_over(server, now)) {
		rest_until(server, server->refuse_ns);
		return false;
	}
	fd = okv_fd_high(accept4(listen_fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK));
	if (fd < 0 && is_shortage(errno)) {
		error = errno;
		if (!is_anybody_there(listen_fd))
			return false;
		note_short(server, error);
		fd = is_wait_over(server, now) ? accept_spare(server, listen_fd) : -1;
		if (fd < 0) {
			keep_spare(server);
			rest_until(server, now + SHORT_OF_FDS_NS);
			return false;
		}
	}
	if (fd < 0) {
		/* Everyone who waited has been told. */
		if (is_full || server->is_short)
			server->refuse_ns = 0;
		return false;
	}
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) ||
	    (server->config.may_enter && !server->config.may_enter(server->config.opaque, fd, &cred, &why))) {
		okv_server_log(server, LOG_WARNING, "refused process %d of user %u", cred.pid, cred.uid);
		refuse(fd, -EPERM, why.text);
	} else if (error) {
		okv_error_set(&why, 0, "the daemon at %.108s cannot accept clients now: %s; raise its limit of open files "
			      "(LimitNOFILE=, ulimit -n)", server->config.path, strerror(error));
		return end_wait(server, listen_fd, fd, why.text);
	} else if (is_full) {
		note_full(server);
		return end_wait(server, listen_fd, fd, server->config.full);
	} else if (peer_new(server, fd)) {
		note_place(server);
	} else {
		close(fd);
	}
	keep_spare(server);
	return true;
}

static void accept_ready(struct okv_server *server, int listen_fd)
{
	int i;

	for (i = 0; i < ACCEPTS_A_TURN; i++)
		if (!accept_one(server, listen_fd))
			return;
}

/* ---- the loop --------------------------------------------------------------------------- */

static void reap(struct okv_server *server)
{
	struct okv_source **source_link = &server->sources, *source;
	struct okv_peer **link = &server->peers, *peer;

	if (!server->has_gone)
		return;
	server->has_gone = false;
	while ((source = *source_link)) {
		if (source->is_gone) {
			*source_link = source->next;
			free(source);
		} else {
			source_link = &source->next;
		}
	}
	while ((peer = *link)) {
		if (peer->state == OKV_PEER_GONE) {
			*link = peer->next;
			free(peer);
		} else {
			link = &peer->next;
		}
	}
	if (server->is_resting && server->nr_peers < server->config.peers_max)
		listen_rest(server, false);
}

/* Ends what is over and returns when the next thing is. */
static uint64_t look_at_clock(struct okv_server *server)
{
	uint64_t now = okv_monotonic_ns(), next = UINT64_MAX, at;
	struct okv_peer *peer;
	uint32_t i;

	for (peer = server->peers; peer; peer = peer->next) {
		if (peer->state == OKV_PEER_GONE)
			continue;
		if (peer->deadline_ns <= now) {
			okv_server_log(server, LOG_WARNING, "client %d %s within %u s; closed", peer->cred.pid,
				       peer->state == OKV_PEER_NEW ? "did not introduce itself" : "took no replies",
				       OKV_HELLO_MS / 1000);
			peer_end(peer, OKV_END_CLOSED);
		} else if (peer->deadline_ns < next) {
			next = peer->deadline_ns;
		}
	}
	if (server->wake_ns <= now) {
		atomic_store(&server->wake_ns, UINT64_MAX);
		for (i = 0; i < server->nr_services; i++) {
			if (!server->services[i]->tick)
				continue;
			at = server->services[i]->tick(server, now);
			okv_server_wake(server, at);
		}
	}
	if (server->is_resting && server->accept_again_ns <= now)
		listen_rest(server, false);
	else if (server->is_resting && server->accept_again_ns < next)
		next = server->accept_again_ns;
	at = atomic_load(&server->wake_ns);
	return at < next ? at : next;
}

int okv_server_turn(struct okv_server *server, int timeout_ms)
{
	struct epoll_event events[EVENTS_MAX];
	uint64_t next = look_at_clock(server), now = okv_monotonic_ns();
	struct okv_source *listening = NULL;
	int nr, i;

	reap(server);
	if (next != UINT64_MAX) {
		uint64_t ms = next > now ? (next - now) / 1000000 + 1 : 0;

		if (timeout_ms < 0 || ms < (uint64_t)timeout_ms)
			timeout_ms = ms < 60000 ? (int)ms : 60000;
	}
	nr = epoll_wait(server->epoll_fd, events, EVENTS_MAX, timeout_ms);
	if (nr < 0)
		return errno == EINTR ? 0 : -errno;
	for (i = 0; i < nr; i++) {
		struct okv_source *source = events[i].data.ptr;

		if (source->is_gone)
			continue;
		/* Last: who leaves now makes the place. */
		if (source->kind == OKV_SOURCE_LISTEN)
			listening = source;
		else if (source->kind == OKV_SOURCE_WATCH)
			source->ready(server, source->fd, source->opaque);
		else if (source->kind == OKV_SOURCE_PID)
			peer_end(source->peer, OKV_END_DIED);
		else
			peer_ready(source->peer, events[i].events);
	}
	reap(server);
	if (listening)
		accept_ready(server, listening->fd);
	return 0;
}

/* What peers are owed by now; nothing new is read. */
static void drain(struct okv_server *server, uint32_t ms)
{
	uint64_t end = okv_monotonic_ns() + ms * 1000000ull;
	struct timespec pause = { 0, 5000000 };
	struct okv_peer *peer;
	bool is_owed;

	do {
		is_owed = false;
		for (peer = server->peers; peer; peer = peer->next) {
			if (peer->state == OKV_PEER_GONE || !peer->out)
				continue;
			peer_drain(peer);
			is_owed |= peer->state != OKV_PEER_GONE && peer->out;
		}
		if (is_owed)
			nanosleep(&pause, NULL);
	} while (is_owed && okv_monotonic_ns() < end);
}

int okv_server_run(struct okv_server *server)
{
	uint32_t i;
	int ret = 0;

	while (!server->is_stopping && !ret)
		ret = okv_server_turn(server, -1);
	for (i = 0; i < server->nr_services; i++)
		if (server->services[i]->stop)
			server->services[i]->stop(server);
	drain(server, OKV_STOP_MS);
	return ret;
}

void okv_server_stop(struct okv_server *server)
{
	server->is_stopping = true;
}

void okv_server_wake(struct okv_server *server, uint64_t at_ns)
{
	uint64_t before = atomic_load(&server->wake_ns);

	while (at_ns < before && !atomic_compare_exchange_weak(&server->wake_ns, &before, at_ns))
		;
}

void *okv_server_opaque(struct okv_server *server)
{
	return server->config.opaque;
}

struct okv_peer *okv_server_peers(struct okv_server *server)
{
	return server->peers;
}

struct okv_peer *okv_server_peer(struct okv_server *server, uint64_t number)
{
	struct okv_peer *peer;

	for (peer = server->peers; peer; peer = peer->next)
		if (peer->number == number && peer->state != OKV_PEER_GONE)
			return peer;
	return NULL;
}

void okv_server_destroy(struct okv_server *server)
{
	struct okv_source *source;
	struct okv_peer *peer;

	if (!server)
		return;
	for (peer = server->peers; peer; peer = peer->next)
		peer_end(peer, OKV_END_STOP);
	while ((peer = server->peers)) {
		server->peers = peer->next;
		free(peer);
	}
	while ((source = server->sources)) {
		server->sources = source->next;
		free(source);
	}
	if (server->epoll_fd >= 0)
		close(server->epoll_fd);
	if (server->spare_fd >= 0)
		close(server->spare_fd);
	free(server->in);
	free(server->out);
	free(server);
}

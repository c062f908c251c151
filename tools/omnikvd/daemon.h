/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * omnikvd's state: its pool, its manager, and the services that serve clients with them.
 *
 * Owns the order of starting and ending. The loop is server.c's; what requests mean is a service's
 * (service_pool.c: pools and extents). One thread, but for what waits for a disk (errands.h).
 */
#ifndef OKV_DAEMON_H
#define OKV_DAEMON_H

#include <sys/un.h>

#include <omnikv/manager.h>
#include <omnikv/spill.h>

#include "config.h"
#include "errands.h"
#include "events.h"
#include "notify.h"
#include "provider.h"
#include "server.h"

/**
 * struct okv_daemon
 * @manager, @client: NULL where another process manages the pool
 * @pool_service, @manager_service: numbers of the services, for peer->data
 * @errands:          NULL where there is no disk to wait for
 * @nr_clients:       attached at once
 * @nr_conns:         connections at once, of all clients together, and some more
 * @full:             what one more connection is told
 * @listen_fd:        -1 at first, or as the service manager passed it
 */
struct okv_daemon {
	struct okv_daemon_config	config;
	struct okv_pool_spec		spec;
	struct omnikv_pool		*pool;
	struct omnikv_client		*client;
	struct omnikv_manager		*manager;
	struct omnikv_spill		*spill;
	struct okv_server		*server;
	struct okv_errands		*errands;
	struct okv_events		*events;	/* NULL: none are published */
	uint64_t			since_ns;
	uint64_t			told_ns;	/* progress, last */
	uint32_t			pool_service;
	uint32_t			manager_service;
	uint32_t			nr_clients;
	uint32_t			nr_conns;
	struct omnikv_error		full;
	gid_t				gid;
	bool				has_gid;
	bool				owns_socket;
	int				listen_fd;
	int				lock_fd;
	char				lock_path[sizeof(((struct sockaddr_un *)0)->sun_path) + sizeof(".lock")];
};

/** daemon.c: each with its reason in @err. */
int okv_daemon_find_group(struct okv_daemon *daemon, struct omnikv_error *err);
/** -EDQUOT: all @nr of @what, connections or places for clients, are taken; @err says what to raise. */
int okv_daemon_say_full(const struct okv_daemon *daemon, uint32_t nr, const char *what, struct omnikv_error *err);
/**
 * May a socket be made at @path? Nothing stands there, or a socket of this user's that nobody listens at, which may be replaced;
 * @is_locked: the place's lock is held, so nobody does.
 */
int okv_daemon_check_place(const char *path, bool is_locked, struct omnikv_error *err);
/** Has the socket, as many connections as open files allow, and a server that tells who asks how far the start is. */
int okv_daemon_listen(struct okv_daemon *daemon, void (*log)(void *opaque, int priority, const char *line),
		      struct omnikv_error *err);
/** @kept_fd: memory of an earlier life, or -1; stays the caller's. */
int okv_daemon_open_pool(struct okv_daemon *daemon, int kept_fd, omnikv_notice_fn notice, struct omnikv_error *err);
int okv_daemon_serve(struct okv_daemon *daemon, struct omnikv_error *err);
/** Take away what this daemon has made of names: its socket's, and that of the lock, which it still holds. Of a signal's handler too. */
void okv_daemon_unlink(const struct okv_daemon *daemon);
/** Clients notice that the connection is gone, and nothing else: what they have outlives the daemon. */
void okv_daemon_close(struct okv_daemon *daemon);
/**
 * okv_daemon_close_store() - the spill store, where there is one, behind okv_daemon_close(), also of a start that failed
 * @is_flushed: what is in memory goes there first, as far as the time for ending allows
 *
 * The store is durable then, and found again wherever it was cut off; its lock is free. The manager ends with it.
 */
void okv_daemon_close_store(struct okv_daemon *daemon, bool is_flushed);

/**
 * okv_pool_adopt() - service_pool.c: go on with a peer of an earlier daemon
 * @kept:      its connection, the server's where this succeeds
 * @leases_fd: its lease table, or -1; stays the caller's
 */
int okv_pool_adopt(struct okv_daemon *daemon, const struct okv_kept *kept, int leases_fd);
/** service_pool.c */
extern const struct okv_service okv_pool_service;
/** Bytes that each client keeps ahead of need: as the settings say, or what the pool is too small for more than. */
uint64_t okv_pool_reserve(const struct okv_daemon *daemon);
/** The client of the pool that this connection stands for, in this process; NULL: none, or the pool is the module's. */
struct omnikv_client *okv_peer_client(const struct okv_daemon *daemon, const struct okv_peer *peer);
/** Has it attached to the module's pool, of which it is a client by itself? */
bool okv_peer_is_of_module(const struct okv_daemon *daemon, const struct okv_peer *peer);

/** service_manager.c; begun before the first peer, ended after the last. */
extern const struct okv_service okv_manager_service;
int okv_manager_service_begin(struct okv_server *server);
void okv_manager_service_end(void);

#endif /* OKV_DAEMON_H */

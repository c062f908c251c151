/* SPDX-License-Identifier: MIT */
/*
 * A daemon's client, as the rest of the library sees it beside the calls of its provider.
 *
 * For attached managers, whose requests go over the same connection, so that the daemon knows whose
 * extents they name. Any thread.
 */
#ifndef OKV_PROVIDER_DAEMON_H
#define OKV_PROVIDER_DAEMON_H

#include "conn.h"
#include "provider.h"

/**
 * omnikv_client_open() with the reason in @err, where the daemon or its socket has one; @err may be NULL. Pools of other
 * providers have none.
 */
int okv_daemon_client_open(struct omnikv_pool *pool, uint32_t flags, struct omnikv_client **client, struct omnikv_error *err);
/** The connection that stands for @client, for requests of the manager; NULL: not a daemon's client. */
struct okv_conn *okv_daemon_client_conn(struct omnikv_client *client);
/** Granules of @client's private reserve: PRIVATE in the pool, and nobody's yet. 0: not a daemon's client. */
uint64_t okv_daemon_client_reserve(struct omnikv_client *client);
/**
 * okv_daemon_client_offer() - a request of the manager that seals these, or takes them over, is about to be sent
 *
 * Whatever becomes of the request: should they be freed while no daemon is there, they are not used again before one
 * has said whose they are. Extents of length 0 are passed over.
 */
void okv_daemon_client_offer(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count);
/**
 * okv_daemon_client_sealed() - the daemon has sealed these, or taken them over, by a request of the manager
 *
 * They are the client's PRIVATE ones no more.
 */
void okv_daemon_client_sealed(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count);

#endif /* OKV_PROVIDER_DAEMON_H */

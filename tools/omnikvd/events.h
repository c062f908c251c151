/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * KV events of the daemon's pool, as vLLM publishes its own: for routers and whoever wants to know what is cached.
 *
 * Owns the sockets of ZeroMQ, the numbers of batches, and the last of them for replay. What is told is the manager's
 * (lib/manager/watch.h); the bytes are event_batch.c's. No call waits for a subscriber: what one does not take in time it
 * misses, sees the gap in the numbers, and asks for. The daemon's loop enters; changes come from any thread.
 *
 *	PUB     [topic, number, batch]                            number: 8 bytes, big endian, from 0 with each start
 *	ROUTER  ["", number] ---> ["", topic, number, batch]... ["", "", -1, ""]    those from that number on that are still there
 */
#ifndef OKV_EVENTS_H
#define OKV_EVENTS_H

#include <omnikv/manager.h>

#include "event_batch.h"
#include "server.h"

/** Batches that are kept for replay, and bytes of them: whichever is less. */
#define OKV_EVENTS_KEPT_MAX	10000u
#define OKV_EVENTS_KEPT_BYTES	(64u << 20)
/** Batches that wait for a slow subscriber, of at most OKV_BATCH_BYTES each. */
#define OKV_EVENTS_HWM		1000
/** Replays under way at once; more are not answered. */
#define OKV_REPLAYS_MAX		16u

struct okv_events;

/**
 * struct okv_events_config
 * @endpoint: to publish at; bound
 * @replay:   where to ask for what was missed; NULL: nowhere
 */
struct okv_events_config {
	const char		*endpoint;
	const char		*replay;
	const char		*topic;
	enum okv_batch_encoding	encoding;
};

/**
 * okv_events_create() - publish what comes and goes in @manager from now on
 *
 * Begins with AllBlocksCleared and what is there, so that the batches from 0 on are all that there is to know.
 * -EINVAL, -EADDRINUSE and others of the sockets, -ENOMEM, -EOPNOTSUPP (built without), with the reason in @err.
 */
int okv_events_create(const struct okv_events_config *config, struct okv_server *server, struct omnikv_manager *manager,
		      struct okv_events **events, struct omnikv_error *err);
/** What subscribers have not taken within a second is lost. NULL is ignored. */
void okv_events_destroy(struct okv_events *events);
/** From the server's tick: send what has been gathered, go on with replays. When to come back, or UINT64_MAX. */
uint64_t okv_events_tick(struct okv_events *events, uint64_t now_ns);

#endif /* OKV_EVENTS_H */

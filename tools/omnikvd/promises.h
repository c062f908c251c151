/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Who computes what: keys that a connection has promised to commit, and who waits for them.
 *
 * A promise ends when its block is published, when it is withdrawn, with its connection, or at its time.
 * A wait ends when the block is there or when nobody promises it any more. Nothing depends on a promise but
 * how long others wait. Pure but for memory; one thread.
 */
#ifndef OKV_PROMISES_H
#define OKV_PROMISES_H

#include <stdbool.h>
#include <stdint.h>

#include <omnikv/key.h>

/** Promises of one connection; more are not noted, so nobody waits for them. */
#define OKV_PROMISES_MAX	65536u
#define OKV_WAITS_MAX		1024u

/** In place of a connection: a block that several contribute to. */
#define OKV_PROMISE_OF_JOIN	UINT64_MAX

/** What a key is of. */
struct okv_promise_name {
	uint8_t			identity[32];
	struct omnikv_key	key;
};

/** A wait that ended: answer the request @id of connection @peer. */
typedef void (*okv_wait_end_fn)(void *opaque, uint64_t peer, uint64_t id, int32_t status);

struct okv_promises;

int okv_promises_create(okv_wait_end_fn end, void *opaque, struct okv_promises **promises);
/** Waits are forgotten unanswered. */
void okv_promises_destroy(struct okv_promises *promises);
/** @until_ns: when it ends by itself. A promise that is there already is prolonged. -ENOSPC, -ENOMEM. */
int okv_promises_add(struct okv_promises *promises, const struct okv_promise_name *name, uint64_t peer,
		     uint64_t until_ns);
/** @peer does not compute it any more. */
void okv_promises_withdraw(struct okv_promises *promises, const struct okv_promise_name *name, uint64_t peer);
/** Its block is there: every promise of it ends, and every wait, with status 1. */
void okv_promises_keep(struct okv_promises *promises, const struct okv_promise_name *name);
/** All promises and waits of a connection. */
void okv_promises_end_peer(struct okv_promises *promises, uint64_t peer);
bool okv_promises_has(const struct okv_promises *promises, const struct okv_promise_name *name);
/** Wait until @until_ns, then -ETIME; with status 0 where (or as soon as) nobody promises it. -ENOSPC, -ENOMEM. */
int okv_promises_wait(struct okv_promises *promises, const struct okv_promise_name *name, uint64_t peer, uint64_t id,
		      uint64_t until_ns);
/** End what is over at @now_ns; returns the next time, or UINT64_MAX. */
uint64_t okv_promises_tick(struct okv_promises *promises, uint64_t now_ns);

#endif /* OKV_PROMISES_H */

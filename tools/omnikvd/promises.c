// SPDX-License-Identifier: GPL-2.0-only
/*
 * Promises and waits; see promises.h. A table of chains by key, and one list of who waits: both are short,
 * since they live for as long as a prefill. One thread.
 */
#include "promises.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define BUCKETS	4096u

struct promise {
	struct promise		*next;
	struct okv_promise_name	name;
	uint64_t		peer;
	uint64_t		until_ns;
};

struct wait {
	struct wait		*next;
	struct okv_promise_name	name;
	uint64_t		peer;
	uint64_t		id;
	uint64_t		until_ns;
};

struct okv_promises {
	struct promise	*buckets[BUCKETS];
	struct wait	*waits;
	uint64_t	nr_promises;
	uint32_t	nr_waits;
	uint64_t	next_ns;	/* when something may be over; never too late */
	okv_wait_end_fn	end;
	void		*opaque;
};

int okv_promises_create(okv_wait_end_fn end, void *opaque, struct okv_promises **promises)
{
	*promises = calloc(1, sizeof(**promises));
	if (!*promises)
		return -ENOMEM;
	(*promises)->end = end;
	(*promises)->opaque = opaque;
	(*promises)->next_ns = UINT64_MAX;
	return 0;
}

void okv_promises_destroy(struct okv_promises *promises)
{
	struct promise *promise;
	struct wait *wait;

	if (!promises)
		return;
	for (uint32_t i = 0; i < BUCKETS; i++) {
		while ((promise = promises->buckets[i])) {
			promises->buckets[i] = promise->next;
			free(promise);
		}
	}
	while ((wait = promises->waits)) {
		promises->waits = wait->next;
		free(wait);
	}
	free(promises);
}

static bool is_same(const struct okv_promise_name *a, const struct okv_promise_name *b)
{
	return !memcmp(a->identity, b->identity, sizeof(a->identity)) && a->key.len == b->key.len &&
	       !memcmp(a->key.bytes, b->key.bytes, sizeof(a->key.bytes));
}

/* Keys may be chosen so that they share a bucket; what a client promises is bounded, and costs its own daemon alone. */
static struct promise **bucket_of(struct okv_promises *promises, const struct okv_promise_name *name)
{
	uint64_t hash = 0, word;

	for (uint32_t i = 0; i < sizeof(name->key.bytes); i += sizeof(word)) {
		memcpy(&word, name->key.bytes + i, sizeof(word));
		hash = (hash ^ word) * 0x9e3779b97f4a7c15ull;
		hash ^= hash >> 29;
	}
	return &promises->buckets[hash % BUCKETS];
}

bool okv_promises_has(const struct okv_promises *promises, const struct okv_promise_name *name)
{
	const struct promise *promise = *bucket_of((struct okv_promises *)promises, name);

	while (promise && !is_same(&promise->name, name))
		promise = promise->next;
	return promise != NULL;
}

static void end_waits(struct okv_promises *promises, const struct okv_promise_name *name, int32_t status)
{
	struct wait **link = &promises->waits, *wait;

	while ((wait = *link)) {
		if (!is_same(&wait->name, name)) {
			link = &wait->next;
			continue;
		}
		*link = wait->next;
		promises->nr_waits--;
		promises->end(promises->opaque, wait->peer, wait->id, status);
		free(wait);
	}
}

static void note_time(struct okv_promises *promises, uint64_t until_ns)
{
	if (until_ns < promises->next_ns)
		promises->next_ns = until_ns;
}

int okv_promises_add(struct okv_promises *promises, const struct okv_promise_name *name, uint64_t peer,
		     uint64_t until_ns)
{
	struct promise **bucket = bucket_of(promises, name), *promise;

	for (promise = *bucket; promise; promise = promise->next) {
		if (promise->peer == peer && is_same(&promise->name, name)) {
			promise->until_ns = until_ns;
			note_time(promises, until_ns);
			return 0;
		}
	}
	if (promises->nr_promises >= OKV_PROMISES_MAX)
		return -ENOSPC;
	promise = malloc(sizeof(*promise));
	if (!promise)
		return -ENOMEM;
	*promise = (struct promise){ .next = *bucket, .name = *name, .peer = peer, .until_ns = until_ns };
	*bucket = promise;
	promises->nr_promises++;
	note_time(promises, until_ns);
	return 0;
}

static void drop(struct okv_promises *promises, struct promise **link)
{
	struct promise *promise = *link;

	*link = promise->next;
	promises->nr_promises--;
	free(promise);
}

void okv_promises_withdraw(struct okv_promises *promises, const struct okv_promise_name *name, uint64_t peer)
{
	struct promise **link = bucket_of(promises, name);

	for (; *link; link = &(*link)->next) {
		if ((*link)->peer == peer && is_same(&(*link)->name, name)) {
			drop(promises, link);
			break;
		}
	}
	if (!okv_promises_has(promises, name))
		end_waits(promises, name, 0);
}

void okv_promises_keep(struct okv_promises *promises, const struct okv_promise_name *name)
{
	struct promise **link = bucket_of(promises, name);

	while (*link) {
		if (is_same(&(*link)->name, name))
			drop(promises, link);
		else
			link = &(*link)->next;
	}
	end_waits(promises, name, 1);
}

/* Drop the promises for which @is_over, and end the waits for what nobody promises then. */
static void sweep(struct okv_promises *promises, bool (*is_over)(const struct promise *promise, uint64_t arg),
		  uint64_t arg)
{
	struct wait **link = &promises->waits, *wait;

	for (uint32_t i = 0; i < BUCKETS; i++) {
		for (struct promise **at = &promises->buckets[i]; *at;) {
			if (is_over(*at, arg))
				drop(promises, at);
			else
				at = &(*at)->next;
		}
	}
	while ((wait = *link)) {
		if (okv_promises_has(promises, &wait->name)) {
			link = &wait->next;
			continue;
		}
		*link = wait->next;
		promises->nr_waits--;
		promises->end(promises->opaque, wait->peer, wait->id, 0);
		free(wait);
	}
}

static bool is_of_peer(const struct promise *promise, uint64_t peer)
{
	return promise->peer == peer;
}

static bool is_past(const struct promise *promise, uint64_t now_ns)
{
	return promise->until_ns <= now_ns;
}

void okv_promises_end_peer(struct okv_promises *promises, uint64_t peer)
{
	struct wait **link = &promises->waits, *wait;

	while ((wait = *link)) {
		if (wait->peer != peer) {
			link = &wait->next;
			continue;
		}
		*link = wait->next;
		promises->nr_waits--;
		free(wait);
	}
	sweep(promises, is_of_peer, peer);
}

int okv_promises_wait(struct okv_promises *promises, const struct okv_promise_name *name, uint64_t peer, uint64_t id,
		      uint64_t until_ns)
{
	struct wait *wait;

	if (promises->nr_waits >= OKV_WAITS_MAX)
		return -ENOSPC;
	wait = malloc(sizeof(*wait));
	if (!wait)
		return -ENOMEM;
	*wait = (struct wait){ promises->waits, *name, peer, id, until_ns };
	promises->waits = wait;
	promises->nr_waits++;
	note_time(promises, until_ns);
	return 0;
}

uint64_t okv_promises_tick(struct okv_promises *promises, uint64_t now_ns)
{
	struct wait **link = &promises->waits, *wait;
	uint64_t next_ns = UINT64_MAX;

	if (now_ns < promises->next_ns)
		return promises->next_ns;
	sweep(promises, is_past, now_ns);
	while ((wait = *link)) {
		if (wait->until_ns > now_ns) {
			next_ns = wait->until_ns < next_ns ? wait->until_ns : next_ns;
			link = &wait->next;
			continue;
		}
		*link = wait->next;
		promises->nr_waits--;
		promises->end(promises->opaque, wait->peer, wait->id, -ETIME);
		free(wait);
	}
	for (uint32_t i = 0; i < BUCKETS; i++)
		for (const struct promise *promise = promises->buckets[i]; promise; promise = promise->next)
			next_ns = promise->until_ns < next_ns ? promise->until_ns : next_ns;
	promises->next_ns = next_ns;
	return next_ns;
}

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the processes of one replay share: whose lookup is next, what each has done, what it found.
 *
 * Memory made before they are forked. Lookups happen in the order of the trace, whoever makes
 * them; everything behind a lookup runs side by side. A process may be killed at any instruction: the
 * one that forked it then passes its turn on.
 */
#ifndef OKV_TURNS_H
#define OKV_TURNS_H

#include <stdatomic.h>

#include "replay.h"

/** Processes that a replay ever has, those that took the place of killed ones included. */
#define OKV_CLIENTS_EVER	4096u
#define OKV_CLIENTS_MAX		64u

/**
 * struct okv_client_slot - one place among the clients
 * @next_request: that it begins (or began) with; the next client in this place begins behind it
 * @is_begun:     it has waited for its turn: what becomes of that request is its affair
 */
struct okv_client_slot {
	_Atomic uint64_t	next_request;
	_Atomic uint32_t	is_begun;
};

struct okv_turns {
	uint64_t		bytes;
	uint64_t		nr_requests;
	uint32_t		nr_clients;
	_Atomic uint32_t	turn;		/* futex: request whose lookup is next */
	_Atomic uint64_t	nr_done;
	_Atomic uint64_t	nr_waits;	/* lookups that waited for another's block */
	_Atomic uint64_t	nr_late;	/* of these, that gave up */
	_Atomic uint64_t	nr_away;	/* requests that found no daemon when they needed memory */
	struct okv_client_slot	slots[OKV_CLIENTS_MAX];
	struct okv_replay_result results[OKV_CLIENTS_EVER];
	uint64_t		lookup_ns[];	/* [nr_requests] */
};

/** NULL: no memory. */
struct okv_turns *okv_turns_create(uint64_t nr_requests, uint32_t nr_clients);
void okv_turns_destroy(struct okv_turns *turns);
/** Wait for the turn of @request. -ETIME. */
int okv_turns_wait(struct okv_turns *turns, uint64_t request, uint64_t timeout_ns);
/** The lookup of @request is over; no effect where it was already. */
void okv_turns_pass(struct okv_turns *turns, uint64_t request);

#endif /* OKV_TURNS_H */

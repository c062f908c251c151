/* SPDX-License-Identifier: MIT */
/*
 * Which retentions there are, which of them is worth least, and which are over.
 *
 * Owns the names (owner, space, session), the order of worth, of all and of each owner, and the order of deadlines, and
 * what each owner has in sum. What a retention protects is retain.c's. Pure: no clock, no index, no memory but its own tables; the records are the
 * caller's, who has a lock.
 */
#ifndef OKV_RANKS_H
#define OKV_RANKS_H

#include <stdbool.h>
#include <stdint.h>

/** Of all owners. Counts of what retentions protect have 16 bits. */
#define OKV_RANKS_MAX		60000u
#define OKV_RANKS_UNKNOWN	UINT64_MAX

/**
 * struct okv_rank - begins each retention
 * @owner, @space, @session: its name
 * @is_pin:   is never worth least
 * @priority: the lower, the less it is worth
 * @next_ns:  when it is used next; the later, the less it is worth; OKV_RANKS_UNKNOWN: later than any
 * @until_ns: when it is over
 * @weight:   what its owner is charged with; fixed while it is in
 */
struct okv_rank {
	uint64_t	owner;
	uint64_t	session;
	const void	*space;
	bool		is_pin;
	uint32_t	priority;
	uint64_t	next_ns;
	uint64_t	until_ns;
	uint64_t	weight;
	/* the table's */
	uint64_t	number;		/* of two that are worth the same the older one goes */
	uint32_t	at[3];
	bool		is_aside;
	struct okv_rank	*chain;
	struct okv_rank_owner *of;
};

struct okv_ranks;

/** -ENOMEM. */
int okv_ranks_create(struct okv_ranks **ranks);
/** Records that are in it are the caller's affair. NULL is ignored. */
void okv_ranks_destroy(struct okv_ranks *ranks);
uint32_t okv_ranks_count(const struct okv_ranks *ranks);
/** NULL: none of this name. */
struct okv_rank *okv_ranks_find(const struct okv_ranks *ranks, uint64_t owner, const void *space, uint64_t session);
/** Its name is not there yet. -EDQUOT (OKV_RANKS_MAX), -ENOMEM. */
int okv_ranks_add(struct okv_ranks *ranks, struct okv_rank *rank);
/** @rank is there, or set aside. */
void okv_ranks_del(struct okv_ranks *ranks, struct okv_rank *rank);
/** As if it were not there, until it is taken back, as old as it was: its place is kept. */
void okv_ranks_set_aside(struct okv_ranks *ranks, struct okv_rank *rank);
void okv_ranks_take_back(struct okv_ranks *ranks, struct okv_rank *rank);
/** The one that is worth least; NULL: there are pins alone. */
struct okv_rank *okv_ranks_least(const struct okv_ranks *ranks);
/** The same of those of @owner. */
struct okv_rank *okv_ranks_least_of(const struct okv_ranks *ranks, uint64_t owner);
/** How many @owner has, and the weights of its pins, or of the others, in sum. */
uint32_t okv_ranks_sum_of(const struct okv_ranks *ranks, uint64_t owner, bool is_pin, uint64_t *weight);
/** The one that is over first; NULL: there is none. */
struct okv_rank *okv_ranks_first(const struct okv_ranks *ranks);
/** Is @a worth less than @b? */
bool okv_rank_is_less(const struct okv_rank *a, const struct okv_rank *b);
/** Each of them, @i from 0 to their count, in no order; any change makes another one of it. */
struct okv_rank *okv_ranks_at(const struct okv_ranks *ranks, uint32_t i);

#endif /* OKV_RANKS_H */

/* SPDX-License-Identifier: MIT */
/*
 * Blocks whose bytes come from several ranks: parts wait here until all of them are there.
 *
 * A part is sealed when it comes, and the manager's from then on. With the last one the block is inserted,
 * whole; where a contributor ends, the deadline passes, or the parts do not fit one another, all that
 * came is given up. So nobody ever sees half a block: not in the index, and after a crash not either,
 * since what is sealed and in no block is freed by the next recovery.
 *
 * The authority's; one thread. Time is the caller's, in ns.
 */
#ifndef OKV_JOIN_H
#define OKV_JOIN_H

#include "manager/manager.h"

/** Blocks that are waited for at once. */
#define OKV_JOINS_MAX	4096u

struct okv_joins;

/** How a block ended: published, or dropped. Called outside of visits. */
typedef void (*okv_join_end_fn)(void *opaque, const struct omnikv_space *space, const struct omnikv_key *key,
				bool is_published);

/**
 * struct okv_join_part
 * @owner:   whose end drops the block; not 0
 * @client:  whose PRIVATE extents these are; NULL: their owner sealed them already, which only a module's pool has
 * @parent:  key; NULL at position 0
 * @groups:  bit per group that it brings
 * @extents, @crcs: [bits of @groups], by rising group
 * @until_ns: of the block: that of its first part counts
 * @epoch:   in which it was computed; its low 32 bits count
 */
struct okv_join_part {
	uint64_t			owner;
	struct omnikv_client		*client;
	const struct omnikv_key		*key;
	const struct omnikv_key		*parent;
	uint32_t			position;
	uint32_t			nr_tokens;
	uint32_t			part;
	uint32_t			nr_parts;
	uint32_t			groups;
	const struct omnikv_extent	*extents;
	const uint32_t			*crcs;
	uint64_t			until_ns;
	uint32_t			epoch;
};

int okv_joins_create(struct omnikv_manager *manager, okv_join_end_fn end, void *opaque, struct okv_joins **joins);
/** Drops what waits. NULL is ignored. */
void okv_joins_destroy(struct okv_joins *joins);
/**
 * okv_joins_ask() - may this part come, as things are?
 *
 * For owners who seal before it does, since nothing goes back to them from then on. Changes nothing.
 *
 * Return: 0; -EEXIST (the block is cached already), -EINVAL (malformed), -ENOSPC; -ESTALE (the epoch is over)
 */
int okv_joins_ask(struct okv_joins *joins, struct omnikv_space *space, const struct okv_join_part *part);
/**
 * okv_joins_add() - one part is there
 *
 * Return: 1 (the block is published), 0 (others are still to come); -EEXIST (it is cached already), -EINVAL (malformed),
 * -EBUSY (a transfer is on it), -ENOSPC, -ENOMEM: the extents are the caller's as before; -ESTALE (the parent is not
 * there, or the epoch is over), -ECANCELED (it contradicts the parts before): the whole block is dropped, this part
 * with it. Where its owner sealed it this part is dropped in any case, and what is neither 1, 0 nor -ESTALE is -ECANCELED.
 */
int okv_joins_add(struct okv_joins *joins, struct omnikv_space *space, const struct okv_join_part *part);
/** A contributor ends: what it contributed to is dropped. */
void okv_joins_end_owner(struct okv_joins *joins, uint64_t owner);
/** Drop what is over at @now_ns; the next time, or UINT64_MAX. */
uint64_t okv_joins_tick(struct okv_joins *joins, uint64_t now_ns);

#endif /* OKV_JOIN_H */

/* SPDX-License-Identifier: MIT */
/*
 * The order in which cached blocks leave: leaf first, least recently used first.
 *
 * A touch of a block is a use of its whole path, so every ancestor is as recent as its most
 * recent descendant, and a parent never leaves before its child. Only the deepest block of a
 * use is recorded; an ancestor takes a victim's place in the order when the victim leaves.
 * That makes a touch O(1) whatever the length of the path, and an eviction O(1) amortised.
 *
 * Owns the two lists and the clock of touches. The nodes lie in the index's entries and are
 * named by entry id; keys, tables and extents are the index's. The index's one writer enters.
 * Others may write to that memory where it is a pool's: overwritten nodes spoil the order, and
 * nothing else is written or waited for on their word.
 */
#ifndef OKV_EVICT_H
#define OKV_EVICT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OKV_EVICT_NONE		UINT32_MAX
#define OKV_EVICT_PINS_MAX	0xffffu
#define OKV_EVICT_CHUNK_SHIFT	15	/* log2 of the nodes of one chunk of memory */

/*
 * Where a node stands:
 *
 *	OFF <----> LISTED <----> PARKED
 *
 * OFF     a descendant is at least as recent and stands for it
 * LISTED  in the order; every leaf is LISTED or PARKED
 * PARKED  was pinned when its turn came, and waits out of the way for its last unpin
 */
enum okv_evict_state {
	OKV_EVICT_OFF,
	OKV_EVICT_LISTED,
	OKV_EVICT_PARKED,
};

/**
 * struct okv_evict_node - one entry's links; begins the entry's record
 * @tick: when it was last recorded; kept while it is OFF
 */
struct okv_evict_node {
	uint64_t	tick : 46;
	uint64_t	state : 2;	/* enum okv_evict_state */
	uint64_t	nr_pins : 16;
	uint32_t	prev;
	uint32_t	next;
};

struct okv_evict_list {
	uint32_t	head;		/* oldest */
	uint32_t	tail;
	uint64_t	nr_nodes;
};

/**
 * struct okv_evict - the order
 * @chunks: the owner's records, 1 << OKV_EVICT_CHUNK_SHIFT in each chunk
 * @stride: bytes from one record to the next
 * @nr_ids: records below have been initialised: no link leads anywhere else
 * @listed: ticks never fall from head to tail
 * @parked: every node has a pin
 * @tick:   the last one given out
 */
struct okv_evict {
	unsigned char		**chunks;
	uint32_t		stride;
	uint32_t		nr_ids;
	struct okv_evict_list	listed;
	struct okv_evict_list	parked;
	uint64_t		tick;
};

static inline struct okv_evict_node *okv_evict_node(const struct okv_evict *ev, uint32_t id)
{
	return (struct okv_evict_node *)(ev->chunks[id >> OKV_EVICT_CHUNK_SHIFT] +
		(size_t)(id & ((1u << OKV_EVICT_CHUNK_SHIFT) - 1)) * ev->stride);
}

void okv_evict_init(struct okv_evict *ev, uint32_t stride);
/** A fresh node: OFF, no pins. */
void okv_evict_node_init(struct okv_evict *ev, uint32_t id);

/**
 * okv_evict_restore() - a node that an earlier order left
 *
 * Called once for each node, the least recently used one first, on an order that is otherwise empty. Pins are gone.
 */
void okv_evict_restore(struct okv_evict *ev, uint32_t id, bool is_leaf);

/** Record a use of @id, the newest of all. @parent, when it is OKV_EVICT_LISTED, goes OFF. */
void okv_evict_touch(struct okv_evict *ev, uint32_t id, uint32_t parent);
/** @id is at least as recent as @tick: what it inherits from a descendant that stops counting. */
void okv_evict_inherit(struct okv_evict *ev, uint32_t id, uint64_t tick);
/** Forget every use of @id: a leaf is the next to leave, any other node goes OFF. */
void okv_evict_demote(struct okv_evict *ev, uint32_t id, bool is_leaf);
/**
 * okv_evict_del() - @id leaves the index
 * @parent: takes its place, unless it is recorded as more recent; may be OKV_EVICT_NONE
 */
void okv_evict_del(struct okv_evict *ev, uint32_t id, uint32_t parent);

/*
 * The same in two steps, for a chain of victims of which each is the parent of the last: take
 * the first, go up while okv_evict_is_next(), then okv_evict_succeed() for the parent that stays.
 */

/** Out of the order; returns its tick. */
uint64_t okv_evict_take(struct okv_evict *ev, uint32_t id);
/** Would @id, whose last descendant of @tick was at the head and has gone, now be there, and may it go? */
static inline bool okv_evict_is_next(const struct okv_evict *ev, uint32_t id, uint64_t tick)
{
	const struct okv_evict_node *node = okv_evict_node(ev, id);

	return node->state == OKV_EVICT_OFF && node->tick <= tick && node->nr_pins == 0;
}

/** @id is as recent as @tick, and listed, looking forward from @next. */
void okv_evict_succeed(struct okv_evict *ev, uint32_t id, uint64_t tick, uint32_t next);

/** The oldest listed node, or OKV_EVICT_NONE. The caller takes it, or passes over it by one of the two below. */
static inline uint32_t okv_evict_oldest(const struct okv_evict *ev)
{
	return ev->listed.head;
}

/** @id has descendants: they stand for it. */
void okv_evict_pass_inner(struct okv_evict *ev, uint32_t id);
/** @id is pinned: park it. */
void okv_evict_pass_pinned(struct okv_evict *ev, uint32_t id);

/** -EOVERFLOW at OKV_EVICT_PINS_MAX. */
int okv_evict_pin(struct okv_evict *ev, uint32_t id);
/** @id has a pin. At the last one a parked node returns to its place in the order. */
void okv_evict_unpin(struct okv_evict *ev, uint32_t id);

/** Links, ticks, states and counts of both lists; 0 or -EUCLEAN with the reason. */
int okv_evict_check(const struct okv_evict *ev, const char **reason);

#endif /* OKV_EVICT_H */

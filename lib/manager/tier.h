/* SPDX-License-Identifier: MIT */
/*
 * Between memory and the spill store: demoting what leaves, promoting what is asked for.
 *
 * The disk is waited for outside of visits only. Before an allocation room is made for it, so
 * that blocks are written before their memory is given up; what an allocation has to evict all
 * the same is lost to the store, never to correctness. Before a lookup what it may hit on NVMe
 * is brought back. A block on its way is in neither place: it is a miss.
 */
#ifndef OKV_TIER_H
#define OKV_TIER_H

#include "manager/manager.h"

/** -EINVAL: unknown @admit. @epoch: the manager's, as the store knows it. */
int okv_tier_create(struct omnikv_spill *spill, uint32_t admit, const struct omnikv_client *client,
		    struct okv_tier **tier, uint64_t *epoch);
/**
 * okv_tier_era_begin() - what the store has is not to be found by any later manager
 *
 * Outside of visits. 0, when it is on the disk, or the error of the disk.
 */
int okv_tier_era_begin(struct omnikv_manager *manager, uint64_t epoch);
/**
 * Nor by this one from now on, nor what is on its way there or back. Inside of the visit in which memory has nothing of
 * the old epoch any more: what leaves memory before is stored in the old era. Without a store nothing is done.
 */
void okv_tier_era_enter(struct omnikv_manager *manager);
/** The manager's; NULL is ignored. Memory that a stuck disk still uses is waited for, then left behind. */
void okv_tier_destroy(struct omnikv_manager *manager);

/**
 * okv_tier_alloc() - okv_private_reserve() of @nr_privates and okv_manager_alloc(), demoting what it takes
 *
 * Where there is a store the visit is left and entered again; it is inside at the return.
 */
int okv_tier_alloc(struct okv_visit *visit, struct okv_want *wants, uint32_t nr_wants, uint64_t nr_privates);

/** Demote until so many granules are free, as far as that goes. Outside of visits; without a store nothing is done. */
void okv_tier_make_room(struct omnikv_manager *manager, uint64_t nr_granules);

/** struct okv_promoted - what a lookup found on NVMe: blocks [first, first + nr), of which @nr_recovered are old */
struct okv_promoted {
	uint64_t	first;
	uint64_t	nr;
	uint64_t	nr_recovered;
};

/**
 * okv_tier_promote() - bring back what follows the blocks in memory
 *
 * Whatever fails makes the hit shorter. Outside of visits.
 */
void okv_tier_promote(struct omnikv_space *space, const struct omnikv_prefix *prefix, struct okv_promoted *promoted);
/** Has the store what comes next behind the blocks in memory? Never waits for the disk. */
bool okv_tier_has_more(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys,
		       const struct omnikv_key *tail);

/*
 * For the manager's watcher (watch.h), inside of visits; without a watcher or a store nothing is done.
 */

/** The watcher has come or gone. */
void okv_tier_watch(struct omnikv_manager *manager);
/** What the store has of @space, which is found from now on or not any more. -ENOMEM: not all was told. */
int okv_tier_tell_space(struct omnikv_space *space, bool is_there);

/** Count what of it the lookup then hit, and return how much. Inside a visit. */
uint64_t okv_tier_settle(struct okv_visit *visit, const struct okv_promoted *promoted, uint64_t nr_hit);

#endif /* OKV_TIER_H */

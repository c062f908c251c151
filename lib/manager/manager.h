/* SPDX-License-Identifier: MIT */
/*
 * The inside of the memory manager, for its own files and for sequences.
 *
 * Owns: one lock, the shelves (an index for each shape of block), the namespaces, the private
 * blocks of sequences, the counters. Leaves to the pool: granules, states, references of
 * transfers; to the index: keys, order of eviction.
 *
 * Accounting, which omnikv_manager_check() walks (granules):
 *
 *	private  = sum over private blocks of sequences, each once
 *	cached   = sum over entries of all shelves (imported ones apart: another manager owns those)
 *	used     = private + cached + tier
 *	pool's PRIVATE and SEALED = used, where this is the pool's only client
 *	pool's META        = the catalog's
 *	pins of an index = pins in its shelf's list, and retentions that are no pins (retain.h)
 *
 * Locks: manager > pool. Nothing here sleeps under the lock but for memory of its own.
 */
#ifndef OKV_MANAGER_H
#define OKV_MANAGER_H

#include <pthread.h>

#include <omnikv/manager.h>

#include "table.h"
#include "manager/pin.h"
#include "manager/index.h"

/** What an index calls a full block, whatever the T of its namespace. */
#define OKV_BLOCK_FULL		OKV_INDEX_TOKENS_MAX
#define OKV_SPACE_BUCKETS	256u
#define OKV_VISIT_EXTENTS	128u
#define OKV_PRIVATE_SLAB	1024u

/**
 * struct okv_shelf - blocks of all namespaces whose layouts have the same groups
 * @nr_groups, @optional_groups: fixed; see struct okv_index_config
 * @slot:           of the catalog
 * @block_granules: most that one block of any of its namespaces takes
 * @nr_granules:    of all entries that are this manager's own
 * @owned:         attached managers: bit per entry id; its extents are PRIVATE of this client, not yet published
 * @held:          held by a count of transfers (struct okv_authority): owned, or published since
 * @pins:          head of the list of active pins
 * @pin_blocks:    sum of their path lengths: at least the number of blocks that they protect
 * @nr_kept:       per kind of retention and entry id, [nr_kept_ids]: whose path goes through it (retain.h)
 */
struct okv_shelf {
	struct okv_shelf	*next;
	struct omnikv_manager	*manager;
	struct okv_index	*index;
	uint32_t		slot;
	uint32_t		nr_groups;
	uint32_t		optional_groups;
	uint64_t		block_granules;
	uint64_t		nr_granules;
	struct okv_pin		pins;
	uint64_t		pin_blocks;
	uint64_t		nr_unpins;	/* that ever were */
	uint64_t		*owned;
	uint64_t		*held;
	uint32_t		nr_owned_ids;
	uint32_t		nr_kept_ids;
	uint16_t		*nr_kept[2];
};

/** A block of @shelf left; it says itself how large it was, also where others have written to it. */
static inline void okv_shelf_less(struct okv_shelf *shelf, uint64_t nr_granules)
{
	shelf->nr_granules -= nr_granules < shelf->nr_granules ? nr_granules : shelf->nr_granules;
}

/** A plan that spaces share; equal plans are one. */
struct okv_space_plan {
	struct okv_space_plan	*next;
	uint64_t		nr_spaces;
	uint64_t		catalog_off;	/* 0: not there */
	struct omnikv_plan	plan;
};

/**
 * struct omnikv_space - one namespace
 * @id:           its number in the shelf's index
 * @needed_state: groups that the last block of a hit must have
 * @match_flags:  OKV_INDEX_MATCH_F_*: keys of a declared chain name their whole prefix;
 *                opaque ones are compared one by one
 * @nr_opens:     omnikv_space_open() less omnikv_space_close(), and its sequences and matches
 * @remote:       attached managers: what the authority calls it
 */
struct omnikv_space {
	struct omnikv_manager	*manager;
	struct omnikv_space	*next;
	struct okv_shelf	*shelf;
	struct okv_space_plan	*plan;
	uint32_t		id;
	uint32_t		needed_state;
	uint32_t		match_flags;
	uint64_t		nr_opens;
	void			*remote;
	uint8_t			identity[32];
	uint8_t			kin[32];	/* identity of all its fields but those of the layout */
};

struct omnikv_match {
	struct omnikv_space	*space;
	struct okv_pin		pin;
	uint64_t		nr_blocks;
	uint64_t		nr_tokens;
	uint32_t		tail_tokens;
};

struct okv_private_slab {
	struct okv_private_slab	*next;
	struct okv_private	privates[OKV_PRIVATE_SLAB];
};

struct okv_seq_link {
	struct okv_seq_link	*prev;
	struct okv_seq_link	*next;
};

struct okv_tier;
struct okv_tokens;
struct okv_watch;
struct okv_imports;
struct okv_pool_catalog;
struct okv_retentions;

struct omnikv_manager {
	/* fixed after creation */
	struct omnikv_client	*client;
	struct omnikv_pool	*pool;
	unsigned char		*base;
	uint64_t		granule_bytes;
	uint64_t		nr_granules;
	uint32_t		hash_bits;	/* tests: see struct okv_index_config */
	uint32_t		*taken;		/* [nr_granules]; NULL: owners seal through us. See okv_manager_take() */
	uint32_t		*suspects;	/* likewise: generations that the last sweep found with nobody */
	bool			is_fenced;	/* META is reached by a window that a takeover ends */
	bool			asks_victims;	/* other processes lease from a pool that has to be asked: the module's */

	struct okv_tier		*tier;		/* NULL: no spill store */
	struct okv_pool_catalog	*catalog;	/* NULL: the index ends with this process */
	struct okv_tokens	*tokens;	/* NULL: token ids are not kept */
	struct okv_watch	*watch;		/* NULL: nobody wants to know what comes and goes; under @lock */
	uint64_t		staging_granules;	/* stay free but for what comes back from the spill store */
	uint64_t		staging_wait_ns;
	uint64_t		pin_granules;	/* that pins can have; see retain.h */
	struct okv_imports	*imports;	/* NULL: this manager decides itself; see import.h */

	pthread_mutex_t		epoch_lock;	/* one at a time raises the epoch; outside of @lock */
	pthread_mutex_t		lock;
	pthread_cond_t		room;		/* memory may have become free */
	/* guarded by @lock */
	uint32_t		nr_waiting;	/* for @room */
	uint64_t		nr_given;	/* extents that went back to the pool */
	uint64_t		tier_granules;	/* on their way to or from the spill store */
	struct okv_shelf	*shelves;
	struct okv_space_plan	*plans;
	struct omnikv_space	*spaces[OKV_SPACE_BUCKETS];
	struct omnikv_space	**space_of_id;
	uint32_t		nr_ids;
	uint32_t		nr_spaces;
	uint32_t		sweep_at;	/* spaces at which unused ones are looked for */
	struct okv_private_slab	*slabs;
	struct okv_private	*free_privates;
	uint64_t		nr_free_privates;
	struct okv_seq_link	seqs;
	uint64_t		nr_seqs_ever;
	uint64_t		nr_matches;	/* that are open */
	uint64_t		private_granules;
	uint64_t		peak_granules;
	uint64_t		nr_placed;	/* blocks ever allocated */
	uint64_t		nr_runs;	/* of these, not right behind the one before */
	uint64_t		seen;		/* number of the last walk */
	uint64_t		epoch;		/* where there is no catalog to keep it */
	struct okv_retentions	*retentions;	/* NULL: there were none */
	struct omnikv_manager_stats stats;
};

/*
 * A visit is one stay under the manager's lock. Extents given up during it go back to the pool
 * in batches, the last one when it ends.
 */
struct okv_visit {
	struct omnikv_manager	*manager;
	bool			is_inside;
	bool			is_saving;	/* nothing is evicted that was not written: -EAGAIN instead */
	bool			is_staging;	/* may take the staging reserve */
	uint32_t		nr_extents;
	struct omnikv_extent	extents[OKV_VISIT_EXTENTS];
};

static inline void okv_visit_init(struct okv_visit *visit, struct omnikv_manager *manager)
{
	visit->manager = manager;
	visit->is_inside = false;
	visit->is_saving = false;
	visit->is_staging = false;
	visit->nr_extents = 0;
}

/** No effect when inside already. */
void okv_visit_enter(struct okv_visit *visit);
/** No effect when outside. */
void okv_visit_leave(struct okv_visit *visit);
/** Inside: wait (outside meanwhile) until somebody has given up memory or a lease. False: it is @until_ns of CLOCK_MONOTONIC. */
bool okv_visit_wait(struct okv_visit *visit, uint64_t until_ns);
void okv_visit_flush(struct okv_visit *visit);
/** @extent is no longer used; nr_granules 0 is nothing. Inside. */
void okv_visit_give(struct okv_visit *visit, const struct omnikv_extent *extent);

/*
 * The functions below are called inside a visit.
 */

/** -ESTALE, -EOVERFLOW as okv_index_pin(). @pin is not active. */
int okv_pin_take(struct okv_shelf *shelf, struct okv_pin *pin, uint32_t entry, uint32_t nr_blocks);
/** No effect on one that is not active. */
void okv_pin_drop(struct okv_pin *pin);
/** @pin, which is not active, takes the place of @from. */
void okv_pin_adopt(struct okv_pin *pin, struct okv_pin *from);
/** Move @pin to another entry of @shelf, or (OKV_ENTRY_NONE) drop it. On an error it stays where it was. */
int okv_pin_move(struct okv_shelf *shelf, struct okv_pin *pin, uint32_t entry, uint32_t nr_blocks);

/** A fresh private block with one count; NULL when okv_private_reserve() has not seen to it. */
struct okv_private *okv_private_alloc(struct omnikv_manager *manager);
/** Room for @nr of them. -ENOMEM. */
int okv_private_reserve(struct omnikv_manager *manager, uint64_t nr);
void okv_private_free(struct omnikv_manager *manager, struct okv_private *private);
/** okv_table_drop_fn; @opaque is the visit, which is entered. The manager's client owns the extents. */
void okv_private_drop(void *opaque, struct okv_leaf *leaf, uint32_t slot);

/**
 * struct okv_want - extents that a request needs
 * @after: where they should go, behind; may point to a result of an earlier want; NULL
 * @out:   [count]
 */
struct okv_want {
	uint32_t			nr_granules;
	uint32_t			count;
	const struct omnikv_extent	*after;
	struct omnikv_extent		*out;
};

/**
 * okv_manager_alloc() - all of @wants or nothing, evicting what it takes
 *
 * Refuses before it evicts when even evicting everything would not do. The staging reserve stays free, unless the
 * visit may take it.
 *
 * Return: 0; -ENOSPC, or -EAGAIN (see struct okv_visit), with each @out cleared.
 */
int okv_manager_alloc(struct okv_visit *visit, struct okv_want *wants, uint32_t nr_wants);

/**
 * okv_manager_room_for() - evict until @count extents of @nr_granules each can be had
 *
 * For a client of the pool that allocates by itself; outside of any visit. Nothing is kept for it. What leaves is
 * written to the spill store first, where there is one: the disk is waited for.
 *
 * Return: 0, -ENOSPC (never, or leases are in the way), -ENOMEM.
 */
int okv_manager_room_for(struct omnikv_manager *manager, uint32_t nr_granules, uint32_t count);

/**
 * Entries for @nr more blocks, evicting blocks of this shelf where its index could not get as much memory as it
 * would like; as far as that goes.
 */
void okv_shelf_spare(struct okv_visit *visit, struct okv_shelf *shelf, uint64_t nr);
/** Evict all of @shelf that nothing holds; is it empty then? A visit is inside. */
bool okv_shelf_empty(struct okv_visit *visit, struct okv_shelf *shelf);
/** Evict until so many granules are given up, or nothing is left that can be. Returns how many were. */
uint64_t okv_manager_evict(struct omnikv_manager *manager, uint64_t nr_granules);
/** Granules of the pool that blocks can have: all but those of the catalog. */
uint64_t okv_manager_granules(const struct omnikv_manager *manager);
/** Would evicting everything that nothing protects make room for so many? */
bool okv_can_make_room(struct omnikv_manager *manager, uint64_t nr_granules);
/** The same before an eviction: what others lease is counted only where much would leave in vain. */
bool okv_may_make_room(struct omnikv_manager *manager, uint64_t nr_granules);
/** Granules of the entry @id. */
uint64_t okv_shelf_entry_granules(const struct okv_shelf *shelf, uint32_t id);
/** The shelf that is to give, of those whose bit in @done is not set; NULL: none. */
struct okv_shelf *okv_evict_shelf(const struct omnikv_manager *manager, uint64_t done);

/** What omnikv_manager_create() and an attached manager have in common: nothing in it yet. -ENOMEM. */
int okv_manager_new(struct omnikv_client *client, struct omnikv_manager **manager);
/** A manager with nothing in it. */
void okv_manager_free(struct omnikv_manager *manager);
/** Evict until @nr_granules are free, to a spill store where there is one. Outside of visits. false: no more can leave. */
bool okv_manager_have_free(struct omnikv_manager *manager, uint64_t nr_granules);

/** See omnikv_manager_raise_epoch(), of a manager that decides itself. */
int64_t okv_manager_epoch_up(struct omnikv_manager *manager);
/** The epoch as it is. Inside a visit. */
uint64_t okv_manager_epoch(const struct omnikv_manager *manager);
/** Nothing that is in @shelf now is found again; returns how many roots there were. Inside a visit. */
uint32_t okv_shelf_drop_all(struct okv_shelf *shelf);
/** Does another process use this extent of the manager's? @manager is one; for struct okv_index_config. */
/**
 * okv_manager_take() - extents that their owner sealed are the manager's from now on
 * @client: who seals them here and now; NULL: who has them sealed them already, which only a module's pool has
 *
 * Inside a visit. Return: 0, -ESTALE, -EINVAL (they were taken in this life already), -EPERM (not SEALED), all or nothing.
 */
int okv_manager_take(struct omnikv_manager *manager, struct omnikv_client *client, const struct omnikv_extent *exts,
		     uint32_t nr);
/** Notes what this manager sealed or found by itself. */
void okv_manager_note_taken(struct omnikv_manager *manager, const struct omnikv_extent *exts, uint64_t nr);
/**
 * okv_manager_sweep() - free what was sealed for a publication that never came: its process ended meanwhile
 *
 * What nobody has, twice in a row. Return: how many there are to look at again.
 */
uint64_t okv_manager_sweep(struct omnikv_manager *manager);
bool okv_victim_is_held(void *manager, const struct omnikv_extent *extent);

/** The most that was ever in use may be now. Inside a visit. */
void okv_note_peak(struct omnikv_manager *manager);

/** Granules that a block takes; of state groups only where @with_state. */
uint64_t okv_plan_granules(const struct omnikv_plan *plan, bool with_state);

/** Are these keys, each of 1 to OMNIKV_KEY_BYTES_MAX bytes with zeroes behind? @tail may be NULL. */
bool okv_keys_are_valid(const struct omnikv_key *keys, size_t nr_keys, const struct omnikv_key *tail);

static inline bool okv_prefix_is_valid(const struct omnikv_prefix *prefix)
{
	return okv_keys_are_valid(prefix->keys, prefix->nr_keys, prefix->tail);
}

/** The longest path whose last block has all of @groups; nothing is pinned, touched or counted. */
void okv_match_find(const struct omnikv_space *space, uint32_t groups, const struct omnikv_prefix *prefix,
		    struct okv_index_hit *hit, uint32_t *tail_tokens);

/** struct okv_path - how far a prefix hit; OKV_ENTRY_NONE and 0 blocks: nowhere */
struct okv_path {
	uint64_t	nr_blocks;
	uint32_t	entry;
	uint32_t	tail_tokens;
};

struct okv_imported;

/**
 * okv_match_locked() - find, pin, touch and count
 * @imported: of the same prefix, in the same visit; its pin may become @pin
 * @path:     where it is not nowhere @pin is active
 */
int okv_match_locked(struct omnikv_space *space, const struct omnikv_prefix *prefix, struct okv_imported *imported,
		     struct okv_pin *pin, struct okv_path *path);

#endif /* OKV_MANAGER_H */

/* SPDX-License-Identifier: MIT */
/*
 * Who decides for an attached manager: the thin table between it and the manager of the pool.
 *
 * The authority alone has the index of all that is cached, the order in which it leaves, and the
 * right to free what is sealed. An attached manager asks it by these operations and holds what
 * it got by leases of its own client. Implemented over another manager in the same process
 * (authority_local.c) and over the connection to omnikvd.
 *
 * Operations are called from any thread, outside of visits but for @attach, and end by their deadline
 * whatever the other side does. -ENOTCONN: nobody is there now; the caller goes on without.
 */
#ifndef OKV_AUTHORITY_H
#define OKV_AUTHORITY_H

#include <omnikv/sequence.h>

/** Most blocks of one request: a leaf of a block table. */
#define OKV_AUTHORITY_BLOCKS	64u

/** Most blocks that one answer describes. */
#define OKV_FOUND_BLOCKS	256u

/** Most prefixes that are asked for at once. */
#define OKV_ASKS_MAX		32u

struct okv_authority;

/**
 * struct okv_ask - a prefix that the authority is asked for, and its answer
 * @first:       block from which on what it has is to be described
 * @res:         0, or an error: nothing of it is described
 * @nr_hit:      blocks of the whole hit, a tail included; where it has state groups it ends at a checkpoint
 * @tail_tokens: of the tail, where the hit ends with it; else 0
 * @at, @nr:     blocks of struct okv_found that describe it, from @first on
 * @has_more:    there may be more, for which the authority is to be asked again once these are here
 */
struct okv_ask {
	const struct omnikv_prefix *prefix;
	uint64_t		first;
	int			res;
	uint32_t		tail_tokens;
	uint64_t		nr_hit;
	uint32_t		at;
	uint32_t		nr;
	bool			has_more;
};

/**
 * struct okv_found - blocks that the authority has, of all that was asked for
 * @nr:          blocks that are described
 * @extents, @crcs: [nr][groups]; nr_granules 0 where a block lacks a state group
 */
struct okv_found {
	uint32_t		nr;
	struct omnikv_extent	extents[OKV_FOUND_BLOCKS * OMNIKV_GROUPS_MAX];
	uint32_t		crcs[OKV_FOUND_BLOCKS * OMNIKV_GROUPS_MAX];
};

/** Also where a hit could not end, for want of a state: what a commit need not bring. */
#define OKV_FIND_F_ANY	(1u << 0)

/** What became of a block that was to be published. */
enum okv_published {
	OKV_PUBLISHED_NOT,	/* it is as it was: an earlier one failed */
	OKV_PUBLISHED_NEW,	/* its extents are SEALED, the authority's, and held once by the client */
	OKV_PUBLISHED_THERE,	/* the authority has this block already; the extents are as they were */
	OKV_PUBLISHED_ADRIFT,	/* held as if NEW, but not to be found: it goes with the hold */
};

/**
 * struct okv_publication - blocks of one path, each the parent of the next
 * @parent:    key of the block before the first; NULL at position 0
 * @position:  of the first
 * @nr:        1 to OKV_AUTHORITY_BLOCKS
 * @tail_tokens: 0: full blocks; else the one block is a partial tail
 * @epoch:     in which they were committed; of another one they are refused with -ESTALE. Its low 32 bits count
 * @keys:      [nr]
 * @extents, @crcs: [nr][groups]; PRIVATE of the client
 * @published: [nr] results, also on errors
 */
struct okv_publication {
	const struct omnikv_key		*parent;
	uint32_t			position;
	uint32_t			nr;
	uint32_t			tail_tokens;
	uint32_t			epoch;
	const struct omnikv_key		*keys;
	const struct omnikv_extent	*extents;
	const uint32_t			*crcs;
	enum okv_published		*published;
};

/** Keys of one answer to a take. */
#define OKV_HANDED_KEYS		1024u

/**
 * struct okv_handed - what the authority tells of a sequence that is handed over
 * @nr_blocks: of all of it, a tail included
 * @nr:        keys that are told here
 */
struct okv_handed {
	uint64_t		nr_blocks;
	bool			has_tail;
	uint32_t		nr;
	struct omnikv_key	keys[OKV_HANDED_KEYS];
};

/** What a lookup of the attached manager was, for the authority's order of eviction and its counters. */
struct okv_use {
	const struct omnikv_key	*last;		/* key of the last block hit; NULL: none was */
	uint64_t		blocks_queried;
	uint64_t		blocks_hit;
	uint64_t		tokens_queried;
	uint64_t		tokens_hit;
};

/**
 * struct okv_authority_ops
 * @space_open: @remote stands for the namespace in later calls. -EINVAL and others of omnikv_space_open()
 * @space_close: ends it; never fails
 * @lookup:     length of the hit in blocks, nothing leased
 * @find:       what it has of @nr prefixes, of which no two ask for the same blocks; all that @found describes is leased by
 *              the client, once. What finds no room in @found has_more. @nr: 1 to OKV_ASKS_MAX; @flags: OKV_FIND_F_*
 * @publish:    seal and insert. 0 where every block is NEW or THERE. -EBUSY: a transfer is on the next one.
 *              -ESTALE: the parent is not there (any more). -EINVAL, -ENOMEM
 * @attach:     add the state of @group (PRIVATE) to a block that lacks it: SEALED, the authority's and leased
 *              afterwards. -ENODATA: the extent is no longer the caller's, and not leased. -EEXIST: there is one,
 *              this and other errors leave the extent as it was. -ESTALE: also where @epoch is over. -EDQUOT: the block is
 *              pinned, and pins have reached their bound. Inside a visit
 * @is_idle:    no transfer of this client is on an extent of its own. Inside a visit
 * @use:        tell of lookups, in order; may be dropped
 * @distrust:   the bytes of the block @key are not those that were committed
 * @make_room:  have @nr_granules free in the pool. -ENOSPC: what could leave would not do
 * @can_room:   1: it could, 0: not now
 * @reset:      drop all that nothing holds; how many blocks
 * @stats:      of the authority; @stats is of the library's own size
 * @promise:    these blocks are being computed here, for so long; 0: not any more. NULL: -EOPNOTSUPP
 * @prefetch:   bring back from the spill store what it has of a prefix; how many of its blocks are in memory then
 * @note_tokens: token ids of blocks that are going to come, where it keeps such. NULL: nothing is kept
 * @join:       one part of a block; -ESTALE: also where its epoch is over. NULL: -EOPNOTSUPP
 * @epoch:      everything that is cached is of an older one from now on; the new one. NULL: -EOPNOTSUPP
 * @epoch_now:  the epoch as it is; @known where nobody can tell. No request
 * @retain:     see omnikv_space_retain(); the path down to the block @key at @position. -ESTALE: it is not there. Without
 *              a key what the session retained ends: 1, or 0 where there was nothing. @how is checked
 * @give, @take, @take_end: see handover.h
 * @wait:       1: the block is cached; 0: nobody computes it; -ETIME. NULL: -EOPNOTSUPP
 */
struct okv_authority_ops {
	int (*space_open)(struct okv_authority *auth, const struct omnikv_namespace *ns, const struct omnikv_plan *plan,
			  void **remote, struct omnikv_error *notice);
	void (*space_close)(struct okv_authority *auth, void *remote);
	int64_t (*lookup)(struct okv_authority *auth, void *remote, const struct omnikv_key *keys, size_t nr_keys);
	void (*find)(struct okv_authority *auth, void *remote, struct okv_ask *asks, uint32_t nr, uint32_t flags,
		     struct okv_found *found);
	int (*publish)(struct okv_authority *auth, void *remote, const struct okv_publication *pub);
	int (*attach)(struct okv_authority *auth, void *remote, const struct omnikv_key *key, uint32_t group,
		      const struct omnikv_extent *extent, uint32_t crc, uint32_t epoch);
	bool (*is_idle)(struct okv_authority *auth, const struct omnikv_extent *extent);
	void (*use)(struct okv_authority *auth, void *remote, const struct okv_use *uses, uint32_t nr);
	void (*distrust)(struct okv_authority *auth, void *remote, const struct omnikv_key *key);
	int (*make_room)(struct okv_authority *auth, uint64_t nr_granules);
	int (*can_room)(struct okv_authority *auth, uint64_t nr_granules);
	int64_t (*reset)(struct okv_authority *auth);
	int (*stats)(struct okv_authority *auth, struct omnikv_manager_stats *stats);
	int (*promise)(struct okv_authority *auth, void *remote, const struct omnikv_key *keys, size_t nr_keys,
		       uint32_t timeout_ms);
	int (*wait)(struct okv_authority *auth, void *remote, const struct omnikv_key *key, uint32_t timeout_ms);
	int64_t (*prefetch)(struct okv_authority *auth, void *remote, const struct omnikv_key *keys, size_t nr_keys);
	int (*note_tokens)(struct okv_authority *auth, void *remote, const struct omnikv_key *keys, size_t nr_keys,
			   uint32_t block_tokens, const uint32_t *tokens);
	int (*join)(struct okv_authority *auth, void *remote, const struct omnikv_join *join);
	int (*retain)(struct okv_authority *auth, void *remote, const struct omnikv_key *key, uint32_t position,
		      const struct omnikv_retention *how);
	int (*give)(struct okv_authority *auth, void *remote, const struct omnikv_key *key, uint32_t position,
		    uint32_t timeout_ms, struct omnikv_ticket *ticket);
	int (*take)(struct okv_authority *auth, void *remote, const struct omnikv_ticket *ticket, uint64_t first,
		    struct okv_handed *handed);
	int (*take_end)(struct okv_authority *auth, void *remote, const struct omnikv_ticket *ticket);
	int64_t (*epoch)(struct okv_authority *auth);
	uint64_t (*epoch_now)(struct okv_authority *auth, void *remote, uint64_t known);
	void (*destroy)(struct okv_authority *auth);
};

/**
 * struct okv_authority - begins each implementation's own struct
 * @client:    whose leases and PRIVATE extents these are
 * @holds_ios: whoever publishes holds the extents by omnikv_extent_io_get() before and for as long as it uses
 *             them, instead of getting a lease: so they stay whatever becomes of the authority meanwhile
 */
struct okv_authority {
	const struct okv_authority_ops	*ops;
	struct omnikv_client		*client;
	bool				holds_ios;
};

/**
 * okv_authority_local() - @manager, of this process, decides for managers over other clients of its pool
 *
 * @manager outlives it. -ENOMEM.
 */
int okv_authority_local(struct omnikv_manager *manager, struct omnikv_client *client, struct okv_authority **auth);
/** Tests: nobody answers any more (or again). */
void okv_authority_local_set_gone(struct okv_authority *auth, bool is_gone);

/** A manager that asks @auth, whose it becomes, also on an error. -EBUSY: the client has a manager. -ENOMEM. */
int okv_manager_attach_to(struct okv_authority *auth, struct omnikv_manager **manager);

#endif /* OKV_AUTHORITY_H */

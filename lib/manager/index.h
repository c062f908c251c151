/* SPDX-License-Identifier: MIT */
/*
 * The prefix index: which blocks are cached, under which keys, in which extents, and which of
 * them leave first.
 *
 * Entries form a forest. Invariants, which okv_index_check() walks:
 *
 *	parent of an entry is in the index, in the same namespace, at position - 1, not partial
 *	nr_children(e)  = entries whose parent is e
 *	occupied slots  = entries - dropped entries, each found from its key
 *	run(e, group)   = run(parent) and e when its extent directly follows the parent's, else e alone
 *	leaf            = in the eviction order (listed or parked)
 *	nr_entries      = entry ids ever used - free ids
 *
 * A pure structure: no pool, no clock, no I/O. Memory is taken at creation and when it grows,
 * never in a lookup, an eviction or a removal. One thread at a time enters; the manager's lock
 * sees to that. Entries are named by 32-bit ids, and nothing in them is a pointer.
 */
#ifndef OKV_INDEX_H
#define OKV_INDEX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <omnikv/key.h>

#define OKV_ENTRY_NONE		UINT32_MAX
#define OKV_INDEX_GROUPS_MAX	32u
#define OKV_INDEX_NS_MAX	(1u << 20)	/* namespace ids are dense, from 0 */
#define OKV_INDEX_TOKENS_MAX	65535u		/* tokens of a block */
#define OKV_INDEX_SEED_BYTES	32u
#define OKV_INDEX_GRANULES_MAX	(1ull << 40)

struct okv_index;

/**
 * struct okv_index_allocator - memory of the index, but for what only its writer needs
 * @alloc: aligned to 64; NULL: none
 * @free:  @bytes is the same as at the call before
 * @base:  offsets that readers and later writers follow count from here
 * @claim: memory that an earlier index got and that no one has claimed yet, by offset; NULL: no such memory.
 *         Set where memory outlives the writer; such an index grows by okv_index_reserve() alone
 * @peek:  the same without claiming it
 */
struct okv_index_allocator {
	void		*(*alloc)(void *opaque, size_t bytes);
	void		(*free)(void *opaque, void *mem, size_t bytes);
	void		*opaque;
	unsigned char	*base;
	void		*(*claim)(void *opaque, uint64_t off, size_t bytes);
	const void	*(*peek)(void *opaque, uint64_t off, size_t bytes);
};

/**
 * struct okv_index_config
 * @nr_groups:       extents of a block, 1 to OKV_INDEX_GROUPS_MAX
 * @optional_groups: bit per group that a block may lack (state groups without a checkpoint there)
 * @block_tokens:    T, tokens of a full block
 * @nr_entries_hint: room for so many blocks is made at once; may be 0
 * @seed:            secret and random; keys the table's hash
 * @hash_bits:       0, or how many bits of the hash to keep (tests of collisions)
 * @allocator:       NULL: aligned to 2 MiB and huge pages asked for where it pays
 * @is_held:         does anybody beside the index use this extent? Its block is passed over when blocks leave.
 *                   May be NULL
 * @changed:         told of each block when it is found from now on, and (@is_there false) when it is not any more:
 *                   the entry can be read at both times. It changes nothing in the index. May be NULL
 */
struct okv_index_config {
	uint32_t				nr_groups;
	uint32_t				optional_groups;
	uint32_t				block_tokens;
	uint32_t				hash_bits;
	uint64_t				nr_entries_hint;
	uint8_t					seed[OKV_INDEX_SEED_BYTES];
	const struct okv_index_allocator	*allocator;
	bool					(*is_held)(void *opaque, const struct omnikv_extent *extent);
	void					(*changed)(void *opaque, uint32_t ns, uint32_t id, bool is_there);
	void					*opaque;
};

/** -EINVAL (groups, tokens, hash bits out of range), -ENOMEM. */
int okv_index_create(const struct okv_index_config *config, struct okv_index **ix);
/** NULL is ignored. Extents of entries still inside are the caller's affair. */
void okv_index_destroy(struct okv_index *ix);
/** Leave memory that outlives the writer as it is, for okv_index_recover(). NULL is ignored. */
void okv_index_leave(struct okv_index *ix);
/** Where its head lies, from the allocator's base on. */
uint64_t okv_index_off(const struct okv_index *ix);
/** Room for @nr blocks in all. -ENOMEM: nothing is lost; there may be room for some more than before. */
int okv_index_reserve(struct okv_index *ix, uint64_t nr);
/** Blocks that there is room for now. */
uint64_t okv_index_room(const struct okv_index *ix);
/** Blocks that can come without any leaving; UINT64_MAX where the index grows by itself. */
uint64_t okv_index_spare(const struct okv_index *ix);

/**
 * struct okv_index_recovery - what okv_index_recover() asks, and what it found
 * @keep:       is this namespace known, and are these extents [nr_groups] what they should be, and
 *              nobody else's? Then they are this block's from now on
 * @nr_kept:    result: blocks that are there again
 * @nr_dropped: result: blocks that failed a check, or whose ancestors did
 */
struct okv_index_recovery {
	bool		(*keep)(void *opaque, uint32_t ns, const struct omnikv_extent *extents);
	void		*opaque;
	uint64_t	nr_kept;
	uint64_t	nr_dropped;
};

/**
 * okv_index_recover() - take over an index whose writer is gone
 * @config:   groups and tokens that it must have, and the allocator; the rest is ignored
 * @head_off: okv_index_off() of it
 *
 * Each entry is judged by its own check, by @recovery, and by its ancestors; no byte of KV is looked at.
 * The order of eviction is what it was. Can be killed and begun again at any point. On an error what was
 * claimed is given back, and nothing of the index is to be used.
 *
 * Return: 0, or -EBADMSG (no index, another shape, or a part of its memory is not the allocator's), -ENOMEM.
 */
int okv_index_recover(const struct okv_index_config *config, uint64_t head_off, struct okv_index_recovery *recovery,
		      struct okv_index **ix);

/**
 * struct okv_index_block - what one entry says
 * @parent:   entry of the block before it, OKV_ENTRY_NONE at position 0
 * @position: blocks before it
 * @nr_tokens: T, or fewer for a partial tail: a leaf under a key of its own
 * @extents:  [nr_groups]; nr_granules 0 where an optional group has none; granules below
 *            OKV_INDEX_GRANULES_MAX
 * @crc32c:   [nr_groups]
 */
struct okv_index_block {
	uint32_t			ns;
	uint32_t			parent;
	uint32_t			position;
	uint32_t			nr_tokens;
	const struct omnikv_key		*key;
	const struct omnikv_extent	*extents;
	const uint32_t			*crc32c;
};

/**
 * okv_index_insert() - publish a block
 * @id: result; also set with -EEXIST, to the entry that has the key
 *
 * Counts as a use of its path. A growing table is moved along by a few slots an insertion, so
 * that no insertion stalls for more than one allocation.
 *
 * Return: 0, or
 *   -EEXIST  the key is there already, under the same parent; nothing changed
 *   -EINVAL  malformed; parent of another namespace, partial or not at @position - 1; the key is
 *            there under another parent (keys do not chain)
 *   -ESTALE  the parent is gone or dropped
 *   -ENOMEM  nothing changed
 */
int okv_index_insert(struct okv_index *ix, const struct okv_index_block *block, uint32_t *id);
/**
 * okv_index_insert_path() - insert full blocks, each the parent of the next
 * @block:   the first one's ns, parent and position; keys, extents ([nr][nr_groups]) and crc32c
 *           ([nr][nr_groups]) are arrays; nr_tokens is ignored
 * @nr_done: blocks now in the index; also set on an error, of which the next one is the cause
 * @ids:     [nr], may be NULL; those of blocks that were there already included
 * @is_new:  [nr], may be NULL; false: the block was there already and its extents remain the caller's
 *
 * Return: 0, or an error of okv_index_insert() other than -EEXIST.
 */
int okv_index_insert_path(struct okv_index *ix, const struct okv_index_block *block, size_t nr, size_t *nr_done,
			  uint32_t *ids, bool *is_new);

/** The entry of a key, full or partial, or OKV_ENTRY_NONE. */
uint32_t okv_index_find(struct okv_index *ix, uint32_t ns, const struct omnikv_key *key);

/** The caller vouches that each key names the whole prefix before it (okv_index_match()). */
#define OKV_INDEX_MATCH_F_CHAINED	(1u << 0)

#define OKV_INDEX_ANCHORS	16u

/**
 * struct okv_index_hit - how far a match went
 * @entry:     the last one hit; OKV_ENTRY_NONE for none
 * @nr_anchors: 0 where none are known
 * @anchors:   entries of the path that the search came by, in order of position: where walks of the
 *             path can begin side by side
 */
struct okv_index_hit {
	uint64_t	nr_blocks;
	uint32_t	entry;
	uint32_t	nr_anchors;
	uint32_t	anchors[OKV_INDEX_ANCHORS];
	uint32_t	positions[OKV_INDEX_ANCHORS];
};

/**
 * okv_index_match() - the longest cached prefix
 * @keys: [nr_keys] of full blocks, in order from position 0
 * @hit:  result
 *
 * Found by search over positions, which is right because an entry's parent is always there.
 * Without flags the answer is exact for any keys whatever: the stored path is compared with
 * all of them. With OKV_INDEX_MATCH_F_CHAINED only this is promised: keys[nr_blocks - 1] is there
 * at its position, keys[nr_blocks] is not at its own, and what the hit leads to is the path
 * that was stored with that last key; for keys that do chain that is the same answer. Nothing
 * is touched or pinned.
 */
void okv_index_match(struct okv_index *ix, uint32_t ns, const struct omnikv_key *keys, size_t nr_keys,
		     uint32_t flags, struct okv_index_hit *hit);
/** Fetch what okv_index_match() of each of @prefixes, [nr], is about to read, with the waits for it side by side. */
void okv_index_prefetch(const struct okv_index *ix, uint32_t ns, const struct omnikv_prefix *prefixes, uint32_t nr);
/** Shorten a hit to its deepest block that has every group of @groups itself. */
void okv_index_usable(const struct okv_index *ix, uint32_t groups, struct okv_index_hit *hit);

/**
 * struct okv_index_tail - a partial tail behind a path
 * okv_index_tails() lists those of @parent (OKV_ENTRY_NONE: those at position 0 of @ns).
 */
struct okv_index_tail {
	uint32_t	entry;
	uint32_t	nr_tokens;
};

/** Returns how many there are; the first @max of them are written, newest first. */
size_t okv_index_tails(const struct okv_index *ix, uint32_t ns, uint32_t parent, struct okv_index_tail *tails,
		       size_t max);

/** Blocks of one path whose extents of a group lie one after another. */
struct okv_index_run {
	uint64_t	granule;		/* first of the first block */
	uint32_t	position;		/* of the first block */
	uint32_t	nr_blocks;
	uint32_t	nr_granules;		/* of each block */
	uint32_t	entry;			/* of the last block */
};

/**
 * okv_index_runs() - the extents of a path, as runs
 * @id:   its last block
 * @from: first position wanted
 * @runs: [max], in order of position; blocks that lack the group are left out
 *
 * Costs one step a run (one a block where the group is absent).
 *
 * Return: the number of runs, or -ENOSPC, with @runs undefined.
 */
int64_t okv_index_runs(const struct okv_index *ix, uint32_t id, uint32_t group, uint32_t from,
		       struct okv_index_run *runs, size_t max);
/** The same for a hit that was just made, with its waits for memory side by side. */
int64_t okv_index_hit_runs(const struct okv_index *ix, const struct okv_index_hit *hit, uint32_t group, uint32_t from,
			   struct okv_index_run *runs, size_t max);

/**
 * okv_index_blocks() - entries of a path, block by block
 * @ids: [position of @id + 1 - from], in order of position
 */
void okv_index_blocks(const struct okv_index *ix, uint32_t id, uint32_t from, uint32_t *ids);

/** What okv_index_get() tells of an entry. */
struct okv_index_info {
	struct omnikv_key	key;
	uint32_t		ns;
	uint32_t		parent;
	uint32_t		position;
	uint32_t		nr_tokens;
	uint32_t		nr_children;
	uint32_t		nr_pins;
	uint32_t		heat;		/* uses that ended here, or at descendants since evicted */
	bool			is_partial;
	bool			is_dropped;
};

/** -ESTALE when no entry has this id. */
int okv_index_get(const struct okv_index *ix, uint32_t id, struct okv_index_info *info);
/** The entry before it; OKV_ENTRY_NONE: it is the first, or no entry has this id. */
uint32_t okv_index_parent(const struct okv_index *ix, uint32_t id);
/** Is this an entry that has not been dropped? */
bool okv_index_is_found(const struct okv_index *ix, uint32_t id);
/** Name and checksum of one extent; nr_granules 0 when the block lacks the group. @id is live. */
void okv_index_extent(const struct okv_index *ix, uint32_t id, uint32_t group, struct omnikv_extent *extent,
		      uint32_t *crc32c);
/** Add the extent of an optional group that the block lacked. -EEXIST when it has it, -EINVAL, -ESTALE. */
int okv_index_attach(struct okv_index *ix, uint32_t id, uint32_t group, const struct omnikv_extent *extent,
		     uint32_t crc32c);

/** A use of the path down to @id. @id is live. */
void okv_index_touch(struct okv_index *ix, uint32_t id);
/** The path down to @id, a leaf, is not going to be used again: it leaves next, up to where others use it too. @id is live. */
void okv_index_demote(struct okv_index *ix, uint32_t id);
/** Keep the path down to @id; counted. -ESTALE, -EOVERFLOW (65,535 pins on one entry). */
int okv_index_pin(struct okv_index *ix, uint32_t id);
/** @id has a pin. Not a use: the place in the order is that of the last touch. */
void okv_index_unpin(struct okv_index *ix, uint32_t id);

/**
 * struct okv_index_victim - what left; its extents are handed over separately
 * @parent: key of the block before it; len 0: none
 * @crc32c: [nr_groups]
 */
struct okv_index_victim {
	struct omnikv_key	key;
	struct omnikv_key	parent;
	uint32_t		ns;
	uint32_t		position;
	uint32_t		nr_tokens;
	uint32_t		heat;
	bool			is_dropped;
	uint32_t		crc32c[OKV_INDEX_GROUPS_MAX];
};

/**
 * okv_index_evict() - remove the blocks that are next in the order
 * @nr:      blocks wanted
 * @extents: [nr][nr_groups], now the caller's to free
 * @victims: [nr], may be NULL
 *
 * Return: how many left; fewer than @nr when all the rest is pinned.
 */
size_t okv_index_evict(struct okv_index *ix, size_t nr, struct omnikv_extent *extents,
		       struct okv_index_victim *victims);
/** Remove one leaf. @extents: [nr_groups]. -ESTALE, -EBUSY (children or pins). */
int okv_index_remove(struct okv_index *ix, uint32_t id, struct omnikv_extent *extents);
/**
 * okv_index_drop() - @id and all behind it are not to be hit again (a wrong checksum)
 *
 * They are no longer found, at once; they are the next to be evicted, those pinned after their
 * last unpin. Costs a walk over all leaves.
 *
 * Return: the number of entries that are newly unreachable, or -ESTALE.
 */
int64_t okv_index_drop(struct okv_index *ix, uint32_t id);

/** Uses of each block, its descendants' included, by entry id: [okv_index_nr_ids()]; 0 for free ids. */
void okv_index_heat(const struct okv_index *ix, uint64_t *heat);
/** Entry ids are below this. */
uint32_t okv_index_nr_ids(const struct okv_index *ix);

struct okv_index_stats {
	uint64_t	nr_entries;		/* dropped ones included */
	uint64_t	nr_dropped;
	uint64_t	nr_partial;
	uint64_t	nr_pins;		/* counted */
	uint64_t	nr_collisions;		/* slots whose hash agreed and whose key did not, ever */
	uint64_t	nr_slots;		/* of the table, the one being left included */
	uint64_t	bytes;			/* memory held */
	uint64_t	mem_bytes;		/* of it, from the allocator */
};

void okv_index_stats(const struct okv_index *ix, struct okv_index_stats *stats);
/** Walks all invariants; 0, -ENOMEM, or -EUCLEAN with the first broken one. For tests and debug builds. */
int okv_index_check(const struct okv_index *ix, const char **reason);

#endif /* OKV_INDEX_H */

/* SPDX-License-Identifier: MIT */
/*
 * The block table of a sequence: which extents hold block i, shared between forks.
 *
 * A table is a directory of leaves, each of 64 blocks; the last one has room for no more than it
 * needed so far, since most tables are short. Directory and leaves are counted and shared when a sequence is forked, so a fork costs one count; whoever changes a shared node
 * copies that node first (never KV). What is copied then is bounded: one directory (8 bytes
 * for 64 blocks) and one leaf.
 *
 * A block is either cached (no okv_private: its extents belong to an index entry that the
 * sequence keeps pinned) or private: named by one count of its okv_private for each leaf that
 * has it.
 *
 * Counts of nodes and blocks may be taken by any thread that has a table with them. The last
 * count of a private block is given up through okv_table_drop_fn, which the owner of the
 * memory provides; everything else here is pure. A table is used by one thread at a time.
 */
#ifndef OKV_TABLE_H
#define OKV_TABLE_H

#include <stdatomic.h>

#include <omnikv/layout.h>

#include "manager/pin.h"

#define OKV_TABLE_LEAF_SHIFT	6
#define OKV_TABLE_LEAF_BLOCKS	(1u << OKV_TABLE_LEAF_SHIFT)

/** No store may reach the block any more; it is not (or not by this entry) in the index. */
#define OKV_PRIVATE_F_SEALED	(1u << 0)

/**
 * struct okv_private - a block that its holders have outside the index
 * @nr_refs: one for each leaf that names it
 * @flags:   OKV_PRIVATE_F_*, under the manager's lock
 * @pin:    under the manager's lock; active when another holder has published the block: the
 *           extents then belong to that entry, which this keeps pinned
 * @seen:    number of the last walk that counted it
 * @next:    in the manager's list of free ones
 */
struct okv_private {
	_Atomic uint32_t	nr_refs;
	uint32_t		flags;
	struct okv_pin		pin;
	union {
		uint64_t		seen;
		struct okv_private	*next;
	};
};

/**
 * struct okv_leaf - up to 64 blocks
 * @nr_refs:  directories that name it
 * @nr_used:  slots from here on are empty
 * @nr_slots: that it has room for
 * @private:  NULL: cached, or no block
 * @state_lo, @state_hi: tokens of the block at which the bytes of its state groups stand:
 *            @state_hi once the current step has stored them, @state_lo before; 0 is none
 * @extents:  [block][group]; nr_granules 0 where the group has none
 * @crc:      [block][group], of cached blocks
 */
struct okv_leaf {
	_Atomic uint32_t	nr_refs;
	uint32_t		nr_used;
	uint32_t		nr_groups;
	uint32_t		nr_slots;
	struct okv_private	**private;
	uint32_t		*state_lo;
	uint32_t		*state_hi;
	uint32_t		*crc;
	struct omnikv_extent	extents[];
};

struct okv_dir {
	_Atomic uint32_t	nr_refs;
	uint32_t		nr_leaves;
	uint32_t		capacity;
	struct okv_leaf		*leaves[];
};

/**
 * struct okv_table - one table
 * @dir:       NULL while one leaf was enough
 * @leaf:      where there is no directory: the leaf, NULL while nothing was ever in it
 * @nr_blocks: blocks that count; slots behind them are free or wait to be dropped
 */
struct okv_table {
	struct okv_dir	*dir;
	struct okv_leaf	*leaf;
	uint64_t	nr_blocks;
	uint32_t	nr_groups;
};

/** One count of the private block in @slot of @leaf ends, and with the last the block. The slot is cleared after. */
typedef void (*okv_table_drop_fn)(void *opaque, struct okv_leaf *leaf, uint32_t slot);

void okv_table_init(struct okv_table *table, uint32_t nr_groups);
/** @copy has everything that @table has. O(1). */
void okv_table_share(const struct okv_table *table, struct okv_table *copy);

/**
 * okv_table_prepare() - make blocks [@from, @to) writable
 *
 * Nodes are copied where they are shared, added where they are missing. Slots of these nodes
 * from nr_blocks on are empty afterwards. nr_blocks stays as it is. -ENOMEM leaves the contents as they were.
 */
int okv_table_prepare(struct okv_table *table, uint64_t from, uint64_t to, okv_table_drop_fn drop, void *opaque);
/**
 * okv_table_cut() - keep the first @nr_blocks blocks
 *
 * Never fails: where memory for a copy is short, shared nodes stay until the next change.
 */
void okv_table_cut(struct okv_table *table, uint64_t nr_blocks, okv_table_drop_fn drop, void *opaque);

/** Drop everything, also what was prepared and never filled. */
void okv_table_fini(struct okv_table *table, okv_table_drop_fn drop, void *opaque);

static inline struct okv_leaf *okv_table_leaf(const struct okv_table *table, uint64_t block_idx)
{
	return table->dir ? table->dir->leaves[block_idx >> OKV_TABLE_LEAF_SHIFT] : table->leaf;
}

static inline uint32_t okv_table_slot(uint64_t block_idx)
{
	return block_idx & (OKV_TABLE_LEAF_BLOCKS - 1);
}

/** Does nobody else see the block? Then nobody can begin to, but through this table. */
bool okv_table_is_exclusive(const struct okv_table *table, uint64_t block_idx);

#endif /* OKV_TABLE_H */

// SPDX-License-Identifier: MIT
/*
 * Block tables: see table.h.
 *
 * A count may fall to zero in any thread, so the decrement that ends a node is acquire and
 * release: what other holders did with the node happened before it is freed. That a count is
 * one, seen with acquire, makes the node the caller's alone: only a holder can raise it.
 */
#include "table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static uint32_t okv_ref_get(_Atomic uint32_t *nr_refs)
{
	return atomic_fetch_add_explicit(nr_refs, 1, memory_order_relaxed);
}

/* Was it the last? */
static bool okv_ref_put(_Atomic uint32_t *nr_refs)
{
	return atomic_fetch_sub_explicit(nr_refs, 1, memory_order_acq_rel) == 1;
}

static bool okv_ref_is_one(_Atomic uint32_t *nr_refs)
{
	return atomic_load_explicit(nr_refs, memory_order_acquire) == 1;
}

/* Room for at least @nr_blocks blocks, at most a whole leaf of them. */
static struct okv_leaf *okv_leaf_create(uint32_t nr_groups, uint32_t nr_blocks)
{
	struct okv_leaf *leaf;
	uint32_t nr_slots = 1;
	size_t nr;

	while (nr_slots < nr_blocks)
		nr_slots *= 2;
	nr = (size_t)nr_slots * nr_groups;
	leaf = calloc(1, sizeof(*leaf) + nr * (sizeof(leaf->extents[0]) + sizeof(*leaf->crc)) +
			 nr_slots * (sizeof(*leaf->private) + sizeof(*leaf->state_lo) + sizeof(*leaf->state_hi)));
	if (!leaf)
		return NULL;
	atomic_init(&leaf->nr_refs, 1);
	leaf->nr_groups = nr_groups;
	leaf->nr_slots = nr_slots;
	leaf->private = (struct okv_private **)&leaf->extents[nr];
	leaf->state_lo = (uint32_t *)&leaf->private[nr_slots];
	leaf->state_hi = &leaf->state_lo[nr_slots];
	leaf->crc = &leaf->state_hi[nr_slots];
	return leaf;
}

static void okv_leaf_clear(struct okv_leaf *leaf, uint32_t slot, okv_table_drop_fn drop, void *opaque)
{
	uint32_t nr_groups = leaf->nr_groups;

	if (leaf->private[slot])
		drop(opaque, leaf, slot);
	leaf->private[slot] = NULL;
	leaf->state_lo[slot] = 0;
	leaf->state_hi[slot] = 0;
	memset(&leaf->extents[slot * nr_groups], 0, nr_groups * sizeof(leaf->extents[0]));
	memset(&leaf->crc[slot * nr_groups], 0, nr_groups * sizeof(leaf->crc[0]));
}

static void okv_leaf_put(struct okv_leaf *leaf, okv_table_drop_fn drop, void *opaque)
{
	if (!okv_ref_put(&leaf->nr_refs))
		return;
	for (uint32_t slot = 0; slot < leaf->nr_used; slot++)
		if (leaf->private[slot])
			drop(opaque, leaf, slot);
	free(leaf);
}

/* The first @nr slots of a leaf, as a leaf of one's own with room for @nr_blocks; counts of its blocks stay as they are. */
static struct okv_leaf *okv_leaf_copy(const struct okv_leaf *leaf, uint32_t nr, uint32_t nr_blocks)
{
	uint32_t nr_groups = leaf->nr_groups;
	struct okv_leaf *copy = okv_leaf_create(nr_groups, nr > nr_blocks ? nr : nr_blocks);

	if (!copy)
		return NULL;
	copy->nr_used = nr;
	memcpy(copy->private, leaf->private, nr * sizeof(leaf->private[0]));
	memcpy(copy->state_lo, leaf->state_lo, nr * sizeof(leaf->state_lo[0]));
	memcpy(copy->state_hi, leaf->state_hi, nr * sizeof(leaf->state_hi[0]));
	memcpy(copy->extents, leaf->extents, (size_t)nr * nr_groups * sizeof(leaf->extents[0]));
	memcpy(copy->crc, leaf->crc, (size_t)nr * nr_groups * sizeof(leaf->crc[0]));
	return copy;
}

static void okv_dir_put(struct okv_dir *dir, okv_table_drop_fn drop, void *opaque)
{
	if (!dir || !okv_ref_put(&dir->nr_refs))
		return;
	for (uint32_t i = 0; i < dir->nr_leaves; i++)
		okv_leaf_put(dir->leaves[i], drop, opaque);
	free(dir);
}

/* A directory of one's own with the first @nr_leaves leaves and room for @capacity. */
static int okv_dir_own(struct okv_table *table, uint32_t nr_leaves, uint32_t capacity, okv_table_drop_fn drop,
		       void *opaque)
{
	struct okv_dir *old = table->dir;
	struct okv_dir *dir;

	if (old && okv_ref_is_one(&old->nr_refs)) {
		while (old->nr_leaves > nr_leaves)
			okv_leaf_put(old->leaves[--old->nr_leaves], drop, opaque);
		if (old->capacity >= capacity)
			return 0;
		if (capacity < 2 * old->capacity)
			capacity = 2 * old->capacity;
		dir = realloc(old, sizeof(*dir) + capacity * sizeof(dir->leaves[0]));
		if (!dir)
			return -ENOMEM;
		dir->capacity = capacity;
		table->dir = dir;
		return 0;
	}

	if (capacity < 4)
		capacity = 4;
	dir = malloc(sizeof(*dir) + capacity * sizeof(dir->leaves[0]));
	if (!dir)
		return -ENOMEM;
	atomic_init(&dir->nr_refs, 1);
	dir->nr_leaves = nr_leaves;
	dir->capacity = capacity;
	/* The one leaf that there was without a directory. */
	if (!old && nr_leaves)
		dir->leaves[0] = table->leaf;
	else if (!old && table->leaf)
		okv_leaf_put(table->leaf, drop, opaque);
	table->leaf = NULL;
	for (uint32_t i = 0; old && i < nr_leaves; i++) {
		dir->leaves[i] = old->leaves[i];
		okv_ref_get(&dir->leaves[i]->nr_refs);
	}
	okv_dir_put(old, drop, opaque);
	table->dir = dir;
	return 0;
}

static uint64_t okv_table_leaves(uint64_t nr_blocks)
{
	return (nr_blocks + OKV_TABLE_LEAF_BLOCKS - 1) >> OKV_TABLE_LEAF_SHIFT;
}

/*
 * Make a leaf, of which the table uses the first @nr slots, the caller's alone, with the rest empty and room for
 * @nr_blocks blocks.
 */
static int okv_leaf_own(struct okv_leaf **at, uint32_t nr, uint32_t nr_blocks, okv_table_drop_fn drop, void *opaque)
{
	struct okv_leaf *leaf = *at;
	bool is_own = okv_ref_is_one(&leaf->nr_refs);
	struct okv_leaf *copy;

	if (is_own && leaf->nr_slots >= nr_blocks) {
		while (leaf->nr_used > nr)
			okv_leaf_clear(leaf, --leaf->nr_used, drop, opaque);
		return 0;
	}
	copy = okv_leaf_copy(leaf, nr, nr_blocks);
	if (!copy)
		return -ENOMEM;
	if (is_own) {
		/* Its counts are the copy's. */
		while (leaf->nr_used > nr)
			okv_leaf_clear(leaf, --leaf->nr_used, drop, opaque);
		free(leaf);
	} else {
		for (uint32_t slot = 0; slot < nr; slot++)
			if (copy->private[slot])
				okv_ref_get(&copy->private[slot]->nr_refs);
		okv_leaf_put(leaf, drop, opaque);
	}
	*at = copy;
	return 0;
}

/* Slots of leaf @i that hold one of the first @nr_blocks blocks. */
static uint32_t okv_leaf_used(uint64_t nr_blocks, uint64_t i)
{
	uint64_t first = i << OKV_TABLE_LEAF_SHIFT;

	if (nr_blocks <= first)
		return 0;
	return nr_blocks - first < OKV_TABLE_LEAF_BLOCKS ? nr_blocks - first : OKV_TABLE_LEAF_BLOCKS;
}

void okv_table_init(struct okv_table *table, uint32_t nr_groups)
{
	*table = (struct okv_table){ .nr_groups = nr_groups };
}

void okv_table_share(const struct okv_table *table, struct okv_table *copy)
{
	*copy = *table;
	if (table->dir)
		okv_ref_get(&table->dir->nr_refs);
	else if (table->leaf)
		okv_ref_get(&table->leaf->nr_refs);
}

/* Leaf @i with blocks up to @to of the table writable. */
static int okv_leaf_prepare(struct okv_table *table, struct okv_leaf **at, uint64_t i, uint64_t to,
			    okv_table_drop_fn drop, void *opaque)
{
	uint32_t nr = okv_leaf_used(to, i);

	if (*at)
		return okv_leaf_own(at, okv_leaf_used(table->nr_blocks, i), nr, drop, opaque);
	*at = okv_leaf_create(table->nr_groups, nr);
	return *at ? 0 : -ENOMEM;
}

int okv_table_prepare(struct okv_table *table, uint64_t from, uint64_t to, okv_table_drop_fn drop, void *opaque)
{
	uint64_t nr_kept = okv_table_leaves(table->nr_blocks);
	uint64_t first = from >> OKV_TABLE_LEAF_SHIFT;
	uint64_t nr_leaves = okv_table_leaves(to);
	struct okv_leaf **leaves = &table->leaf;
	int ret;

	if (from >= to)
		return 0;
	if (table->dir || nr_leaves > 1) {
		ret = okv_dir_own(table, nr_kept, nr_leaves > nr_kept ? nr_leaves : nr_kept, drop, opaque);
		if (ret)
			return ret;
		leaves = table->dir->leaves;
	}
	for (uint64_t i = first; i < nr_leaves; i++) {
		bool is_new = table->dir && i >= table->dir->nr_leaves;

		if (is_new)
			leaves[i] = NULL;
		ret = okv_leaf_prepare(table, &leaves[i], i, to, drop, opaque);
		if (ret)
			return ret;
		if (is_new)
			table->dir->nr_leaves++;
	}
	/* The caller fills what it asked for; what it does not fill is cleared again by the next change. */
	for (uint64_t i = first; i < nr_leaves; i++) {
		uint32_t nr = okv_leaf_used(to, i);

		if (leaves[i]->nr_used < nr)
			leaves[i]->nr_used = nr;
	}
	return 0;
}

void okv_table_fini(struct okv_table *table, okv_table_drop_fn drop, void *opaque)
{
	okv_dir_put(table->dir, drop, opaque);
	if (table->leaf)
		okv_leaf_put(table->leaf, drop, opaque);
	table->dir = NULL;
	table->leaf = NULL;
	table->nr_blocks = 0;
}

void okv_table_cut(struct okv_table *table, uint64_t nr_blocks, okv_table_drop_fn drop, void *opaque)
{
	uint64_t nr_leaves = okv_table_leaves(nr_blocks);
	struct okv_leaf **last = &table->leaf;
	uint32_t nr_used;

	if (nr_blocks >= table->nr_blocks)
		return;
	table->nr_blocks = nr_blocks;
	if (nr_blocks == 0) {
		okv_table_fini(table, drop, opaque);
		return;
	}
	if (table->dir) {
		if (okv_dir_own(table, nr_leaves, nr_leaves, drop, opaque))
			return;
		last = &table->dir->leaves[nr_leaves - 1];
	}
	nr_used = okv_leaf_used(nr_blocks, nr_leaves - 1);
	if (okv_table_slot(nr_blocks))
		okv_leaf_own(last, nr_used, nr_used, drop, opaque);
}

bool okv_table_is_exclusive(const struct okv_table *table, uint64_t block_idx)
{
	struct okv_leaf *leaf;
	struct okv_private *private;

	if (table->dir && !okv_ref_is_one(&table->dir->nr_refs))
		return false;
	leaf = okv_table_leaf(table, block_idx);
	if (!okv_ref_is_one(&leaf->nr_refs))
		return false;
	private = leaf->private[okv_table_slot(block_idx)];
	return private && okv_ref_is_one(&private->nr_refs);
}

// SPDX-License-Identifier: MIT
/*
 * Committing: how blocks of a sequence become findable.
 *
 *	adopt	what is cached under its key already is used, and the sequence's own copy given up
 *	seal	the rest is closed to stores (fails while a transfer into it is in flight)
 *	sum	checksums are taken over what nothing can change any more
 *	insert	the entry appears in the index, whole; from here on the cache owns the extents
 *
 * In an attached manager what others have published is imported first, the entry is one that this
 * process owns, and the authority seals it when it is published (import.h).
 *
 * Leaf by leaf of the block table, so that the lock is taken twice for 64 blocks and never
 * held while bytes are summed. Whatever fails, a block is an entry or it is the sequence's:
 * one that was sealed and not inserted stays private, and the next commit goes on from there.
 * The thread that uses the sequence enters.
 */
#include "sequence.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#include "block.h"
#include "failpoint.h"
#include "manager/import.h"
#include "manager/retain.h"

/* One leaf's worth of blocks under way. */
struct okv_commit {
	struct omnikv_seq	*seq;
	struct okv_visit	visit;
	struct okv_leaf		*leaf;
	uint64_t		first;		/* block */
	uint32_t		slot;		/* of it */
	uint32_t		nr;
	uint32_t		nr_tokens;	/* of each */
	const struct omnikv_key	*keys;		/* [nr] */
	const struct omnikv_key	*all_keys;	/* of the full blocks from the sequence's start */
	int64_t			nr_published;
};

static struct omnikv_extent *okv_commit_extents(const struct okv_commit *commit, uint32_t slot)
{
	return &commit->leaf->extents[slot * commit->leaf->nr_groups];
}

static void *okv_commit_addr(const struct okv_commit *commit, const struct omnikv_extent *extent)
{
	const struct omnikv_manager *manager = commit->visit.manager;

	return manager->base + extent->granule * manager->granule_bytes;
}

static uint32_t okv_commit_sum(const struct okv_commit *commit, uint32_t slot, uint32_t group)
{
	const struct omnikv_plan *plan = &commit->seq->space->plan->plan;

	return okv_block_crc(plan, group, okv_block_entries(plan, group, commit->nr_tokens),
			     okv_commit_addr(commit, &okv_commit_extents(commit, slot)[group]));
}

/* The same by the authority, which then owns the state. */
static void okv_commit_attach_there(struct okv_commit *commit, uint32_t slot, uint32_t entry, uint32_t group)
{
	struct omnikv_extent *extent = &okv_commit_extents(commit, slot)[group];
	int ret;

	if (!okv_import_is_idle(commit->visit.manager, extent))
		return;
	ret = okv_import_attach(commit->seq->space, entry, group, extent, okv_commit_sum(commit, slot, group));
	if (ret && ret != -ENODATA)
		return;
	commit->visit.manager->private_granules -= extent->nr_granules;
	memset(extent, 0, sizeof(*extent));
}

/* The cached block lacks the state that ours has: add it. Nothing is lost where that fails. */
static void okv_commit_attach(struct okv_commit *commit, uint32_t slot, uint32_t entry)
{
	struct omnikv_seq *seq = commit->seq;
	struct okv_private *private = commit->leaf->private[slot];
	struct okv_index *index = seq->space->shelf->index;

	if (!seq->space->needed_state || commit->leaf->state_hi[slot] != commit->nr_tokens ||
	    !okv_table_is_exclusive(&seq->table, commit->first - commit->slot + slot) ||
	    (private->flags & OKV_PRIVATE_F_SEALED))
		return;
	for (uint32_t g = 0; g < commit->leaf->nr_groups; g++) {
		struct omnikv_extent *extent = &okv_commit_extents(commit, slot)[g];
		struct omnikv_extent theirs;
		uint32_t crc;

		if (!(seq->space->needed_state >> g & 1) || !extent->nr_granules)
			continue;
		okv_index_extent(index, entry, g, &theirs, &crc);
		if (theirs.nr_granules)
			continue;
		if (okv_is_attached(commit->visit.manager)) {
			okv_commit_attach_there(commit, slot, entry, g);
			continue;
		}
		if (okv_retain_may_grow(seq->space->shelf, entry, extent->nr_granules) ||
		    omnikv_extent_seal(commit->visit.manager->client, extent, 1))
			continue;
		if (okv_index_attach(index, entry, g, extent, okv_commit_sum(commit, slot, g)))
			continue;
		commit->visit.manager->private_granules -= extent->nr_granules;
		seq->space->shelf->nr_granules += extent->nr_granules;
		okv_retain_grew(seq->space->shelf, entry, extent->nr_granules);
		memset(extent, 0, sizeof(*extent));
	}
}

/* Block @slot is @entry from now on; the sequence's own copy is given up. */
static void okv_commit_adopt(struct okv_commit *commit, uint32_t slot, uint32_t entry)
{
	okv_commit_attach(commit, slot, entry);
	okv_private_drop(&commit->visit, commit->leaf, slot);
	okv_seq_fill_cached(commit->seq, commit->first - commit->slot + slot, entry, commit->nr_tokens);
	commit->visit.manager->stats.blocks_deduplicated++;
}

/* The sequence's deepest cached block moves to @entry. */
static int okv_commit_advance(struct okv_commit *commit, uint64_t nr_cached, uint32_t entry)
{
	struct omnikv_seq *seq = commit->seq;
	int ret = okv_pin_move(seq->space->shelf, &seq->pin, entry, nr_cached);

	if (ret)
		return ret;
	seq->nr_cached = nr_cached;
	seq->last_cached_tokens = commit->nr_tokens;
	return 0;
}

/* Take over what others have cached meanwhile: the blocks from the first one on, up to the first that is not there. */
static int okv_commit_adopt_cached(struct okv_commit *commit)
{
	struct omnikv_seq *seq = commit->seq;
	struct okv_index *index = seq->space->shelf->index;
	bool is_partial = commit->nr_tokens < seq->space->plan->plan.block_tokens;

	while (commit->nr) {
		uint32_t parent = okv_pin_is_active(&seq->pin) ? seq->pin.entry : OKV_ENTRY_NONE;
		uint32_t entry = okv_index_find(index, seq->space->id, commit->keys);
		struct okv_index_info info;
		int ret;

		if (entry == OKV_ENTRY_NONE)
			return 0;
		ret = okv_index_get(index, entry, &info);
		if (ret)
			return ret;
		/* The same key for another block: keys that do not name their whole prefix. */
		if (info.parent != parent || info.position != commit->first || info.is_partial != is_partial ||
		    (is_partial && info.nr_tokens != commit->nr_tokens))
			return -EINVAL;
		ret = okv_commit_advance(commit, commit->first + 1, entry);
		if (ret)
			return ret;
		okv_index_touch(index, entry);
		okv_commit_adopt(commit, commit->slot, entry);
		commit->first++;
		commit->slot++;
		commit->keys++;
		commit->nr--;
	}
	return 0;
}

/* A state that stands in the middle of its block is no checkpoint, and stays out of the cache. */
static bool okv_commit_has_odd_state(const struct okv_commit *commit, uint32_t slot)
{
	uint32_t at = commit->leaf->state_hi[slot];

	return at && at != commit->nr_tokens;
}

/* Where a fork may need that state still, this sequence commits a copy of the block. */
static int okv_commit_own_odd(struct okv_commit *commit)
{
	struct omnikv_seq *seq = commit->seq;
	int ret;

	if (!seq->space->needed_state)
		return 0;
	for (uint32_t slot = commit->slot; slot < commit->slot + commit->nr; slot++) {
		uint64_t block_idx = commit->first + slot - commit->slot;

		if (!okv_commit_has_odd_state(commit, slot) || okv_table_is_exclusive(&seq->table, block_idx))
			continue;
		ret = okv_seq_own_block(seq, block_idx);
		if (ret)
			return ret;
	}
	return 0;
}

static void okv_commit_drop_states(struct okv_commit *commit)
{
	struct omnikv_seq *seq = commit->seq;

	if (!seq->space->needed_state)
		return;
	for (uint32_t slot = commit->slot; slot < commit->slot + commit->nr; slot++)
		if (okv_commit_has_odd_state(commit, slot))
			okv_seq_drop_state(seq, commit->first + slot - commit->slot, &commit->visit);
}

static int okv_commit_seal(struct okv_commit *commit)
{
	struct omnikv_extent extents[OKV_TABLE_LEAF_BLOCKS * OMNIKV_GROUPS_MAX];
	uint32_t nr_extents = 0;
	int ret;

	for (uint32_t slot = commit->slot; slot < commit->slot + commit->nr; slot++) {
		struct okv_private *private = commit->leaf->private[slot];

		/* A fork published it under another key: one block cannot have two. */
		if (okv_pin_is_active(&private->pin))
			return -EINVAL;
		if (private->flags & OKV_PRIVATE_F_SEALED)
			continue;
		for (uint32_t g = 0; g < commit->leaf->nr_groups; g++)
			if (okv_commit_extents(commit, slot)[g].nr_granules)
				extents[nr_extents++] = okv_commit_extents(commit, slot)[g];
	}
	ret = -OKV_FAILPOINT("commit.seal");
	if (okv_is_attached(commit->visit.manager)) {
		for (uint32_t i = 0; i < nr_extents && !ret; i++)
			ret = okv_import_is_idle(commit->visit.manager, &extents[i]) ? 0 : -EBUSY;
	} else if (!ret && nr_extents)
		ret = omnikv_extent_seal(commit->visit.manager->client, extents, nr_extents);
	if (ret)
		return ret;
	for (uint32_t slot = commit->slot; slot < commit->slot + commit->nr; slot++)
		commit->leaf->private[slot]->flags |= OKV_PRIVATE_F_SEALED;
	return 0;
}

/* The cache owns the extents of @slot from now on. Other holders of the block keep its entry pinned. */
static void okv_commit_publish(struct okv_commit *commit, uint32_t slot, uint32_t entry)
{
	struct okv_private *private = commit->leaf->private[slot];
	struct omnikv_manager *manager = commit->visit.manager;
	struct okv_shelf *shelf = commit->seq->space->shelf;
	uint32_t nr_blocks = commit->first - commit->slot + slot + 1;
	int ret;

	if (okv_is_attached(manager))
		okv_import_own(shelf, entry);
	for (uint32_t g = 0; g < commit->leaf->nr_groups; g++) {
		manager->private_granules -= okv_commit_extents(commit, slot)[g].nr_granules;
		shelf->nr_granules += okv_commit_extents(commit, slot)[g].nr_granules;
	}
	/* Counts fall under the lock only, so this one does not become the last meanwhile. */
	if (atomic_load_explicit(&private->nr_refs, memory_order_acquire) == 1) {
		okv_private_free(manager, private);
	} else {
		/* A fresh entry has no pins, so that this cannot be one too many. */
		ret = okv_pin_take(shelf, &private->pin, entry, nr_blocks);
		assert(!ret);
		(void)ret;
		atomic_fetch_sub_explicit(&private->nr_refs, 1, memory_order_acq_rel);
	}
	commit->leaf->private[slot] = NULL;
	if (commit->leaf->state_hi[slot] != commit->nr_tokens)
		commit->leaf->state_hi[slot] = 0;
	commit->leaf->state_lo[slot] = commit->leaf->state_hi[slot];
	commit->nr_published++;
	manager->stats.blocks_committed++;
}

/* What is new here is to be published, by runs. */
static void okv_commit_queue(struct okv_commit *commit, const uint32_t *entries, const bool *is_new, size_t nr)
{
	uint32_t nr_run = 0;

	for (size_t i = 0; i < nr; i++) {
		nr_run = is_new[i] ? nr_run + 1 : 0;
		if (nr_run && (i + 1 == nr || !is_new[i + 1]))
			okv_import_queue(commit->seq->space, entries[i], commit->first + i + 1, nr_run);
	}
}

static int okv_commit_insert(struct okv_commit *commit)
{
	struct omnikv_seq *seq = commit->seq;
	struct okv_index *index = seq->space->shelf->index;
	uint32_t nr_groups = commit->leaf->nr_groups;
	bool is_partial = commit->nr_tokens < seq->space->plan->plan.block_tokens;
	struct okv_index_block block = {
		.ns = seq->space->id,
		.parent = okv_pin_is_active(&seq->pin) ? seq->pin.entry : OKV_ENTRY_NONE,
		.position = commit->first,
		.nr_tokens = is_partial ? commit->nr_tokens : OKV_BLOCK_FULL,
		.key = commit->keys,
		.extents = okv_commit_extents(commit, commit->slot),
		.crc32c = &commit->leaf->crc[commit->slot * nr_groups],
	};
	uint32_t entries[OKV_TABLE_LEAF_BLOCKS];
	bool is_new[OKV_TABLE_LEAF_BLOCKS];
	size_t nr_done = 0;
	int error, ret;

	error = -OKV_FAILPOINT("commit.insert");
	if (!error && okv_is_attached(commit->visit.manager))
		error = okv_import_prepare(seq->space->shelf, commit->nr);
	if (error)
		return error;
	okv_shelf_spare(&commit->visit, seq->space->shelf, commit->nr);
	if (is_partial) {
		error = okv_index_insert(index, &block, &entries[0]);
		is_new[0] = error == 0;
		if (error == -EEXIST)
			error = 0;
		nr_done = error == 0;
	} else {
		error = okv_index_insert_path(index, &block, commit->nr, &nr_done, entries, is_new);
	}
	if (!nr_done)
		return error;
	/* Fails only where the last one has too many pins: it was there before, and so were its ancestors. */
	ret = okv_commit_advance(commit, commit->first + nr_done, entries[nr_done - 1]);
	if (ret)
		return ret;
	for (size_t i = 0; i < nr_done; i++) {
		if (is_new[i])
			okv_commit_publish(commit, commit->slot + i, entries[i]);
		else
			okv_commit_adopt(commit, commit->slot + i, entries[i]);
	}
	if (okv_is_attached(commit->visit.manager))
		okv_commit_queue(commit, entries, is_new, nr_done);
	return error;
}

/*
 * While sums were taken a fork may have published some of these blocks. What has an entry already
 * gets no second one: the blocks before the first such one go on, -EINVAL when there is none.
 * One that is still found under the key it has here is adopted like any other.
 */
static int okv_commit_stop_at_published(struct okv_commit *commit)
{
	struct omnikv_space *space = commit->seq->space;

	for (uint32_t i = 0; i < commit->nr; i++) {
		const struct okv_pin *pin = &commit->leaf->private[commit->slot + i]->pin;

		if (!okv_pin_is_active(pin) || okv_index_find(space->shelf->index, space->id, &commit->keys[i]) == pin->entry)
			continue;
		commit->nr = i;
		return i ? 0 : -EINVAL;
	}
	return 0;
}

/* What was computed in an older epoch is of older weights, whether any of it was cached then or not. */
static bool okv_commit_is_over(const struct okv_commit *commit)
{
	return commit->seq->epoch != okv_import_epoch(commit->visit.manager);
}

/* Publish the blocks of @commit: private ones that stand in one leaf, which is the sequence's alone. */
static int okv_commit_run(struct okv_commit *commit)
{
	bool is_tail = commit->nr_tokens < commit->seq->space->plan->plan.block_tokens;
	const struct omnikv_prefix prefix = {
		.keys = commit->all_keys, .nr_keys = commit->first + (is_tail ? 0 : commit->nr),
		.tail = is_tail ? commit->keys : NULL,
	};
	struct okv_imported imported;
	int ret;

	ret = okv_commit_own_odd(commit);
	if (ret)
		return ret;
	okv_import(&commit->visit, commit->seq->space, &prefix, 1, OKV_FIND_F_ANY, &imported);
	ret = okv_commit_is_over(commit) ? -ESTALE : okv_commit_adopt_cached(commit);
	okv_import_end(&imported);
	if (ret || !commit->nr)
		goto out;
	okv_commit_drop_states(commit);
	ret = okv_commit_seal(commit);
	if (ret)
		goto out;

	okv_visit_leave(&commit->visit);
	for (uint32_t slot = commit->slot; slot < commit->slot + commit->nr; slot++)
		for (uint32_t g = 0; g < commit->leaf->nr_groups; g++)
			if (okv_commit_extents(commit, slot)[g].nr_granules)
				commit->leaf->crc[slot * commit->leaf->nr_groups + g] = okv_commit_sum(commit, slot, g);
	ret = -OKV_FAILPOINT("commit.publish");
	if (ret)
		return ret;

	okv_visit_enter(&commit->visit);
	ret = okv_commit_is_over(commit) ? -ESTALE : okv_commit_stop_at_published(commit);
	if (!ret)
		ret = okv_commit_insert(commit);
out:
	okv_visit_leave(&commit->visit);
	okv_imports_flush(commit->visit.manager);
	return ret;
}

static int okv_commit_full(struct okv_commit *commit, const struct omnikv_key *keys, size_t nr_keys)
{
	struct omnikv_seq *seq = commit->seq;
	int ret = 0;

	commit->nr_tokens = seq->space->plan->plan.block_tokens;
	for (uint64_t first = seq->nr_cached; first < nr_keys && !ret; first = seq->nr_cached) {
		commit->first = first;
		commit->slot = okv_table_slot(first);
		commit->nr = OKV_TABLE_LEAF_BLOCKS - commit->slot;
		if (commit->nr > nr_keys - first)
			commit->nr = nr_keys - first;
		commit->keys = keys + first;
		ret = okv_table_prepare(&seq->table, first, first + commit->nr, okv_private_drop, &commit->visit);
		okv_visit_leave(&commit->visit);
		if (ret)
			break;
		commit->leaf = okv_table_leaf(&seq->table, first);
		ret = okv_commit_run(commit);
	}
	return ret;
}

/*
 * Must the tail be copied before it can be published? A fork that shares the block may have more
 * rows in it, for which the block will need another key.
 */
static bool okv_commit_tail_is_taken(const struct okv_commit *commit)
{
	const struct omnikv_seq *seq = commit->seq;

	if (seq->nr_cached > commit->first || !okv_table_is_exclusive(&seq->table, commit->first))
		return true;
	/* Nobody else has the block, so nobody else publishes it. */
	return okv_pin_is_active(&commit->leaf->private[commit->slot]->pin);
}

/* Is the tail cached under this very key, with these tokens? */
static bool okv_commit_tail_is_done(struct okv_commit *commit)
{
	const struct omnikv_seq *seq = commit->seq;
	bool is_done = false;

	if (seq->nr_cached > commit->first && seq->last_cached_tokens == commit->nr_tokens) {
		okv_visit_enter(&commit->visit);
		is_done = okv_index_find(seq->space->shelf->index, seq->space->id, commit->keys) == seq->pin.entry;
		okv_visit_leave(&commit->visit);
	}
	return is_done;
}

static int okv_commit_tail(struct okv_commit *commit, const struct omnikv_key *tail)
{
	struct omnikv_seq *seq = commit->seq;
	int ret;

	commit->first = seq->table.nr_blocks - 1;
	commit->slot = okv_table_slot(commit->first);
	commit->nr = 1;
	commit->nr_tokens = okv_seq_block_tokens(seq, commit->first);
	commit->keys = tail;
	if (okv_commit_tail_is_done(commit))
		return 0;
	ret = okv_table_prepare(&seq->table, commit->first, commit->first + 1, okv_private_drop, &commit->visit);
	okv_visit_leave(&commit->visit);
	if (ret)
		return ret;
	commit->leaf = okv_table_leaf(&seq->table, commit->first);
	if (okv_commit_tail_is_taken(commit)) {
		ret = okv_seq_own_block(seq, commit->first);
		if (ret)
			return ret;
		commit->leaf = okv_table_leaf(&seq->table, commit->first);
	}
	return okv_commit_run(commit);
}

int64_t omnikv_seq_commit(struct omnikv_seq *seq, const struct omnikv_key *keys, size_t nr_keys,
			  const struct omnikv_key *tail)
{
	struct okv_commit commit = { .seq = seq, .all_keys = keys };
	const struct omnikv_plan *plan;
	uint64_t nr_full;
	uint32_t nr_rest;
	int ret;

	if (!seq || !okv_keys_are_valid(keys, nr_keys, tail))
		return -EINVAL;
	plan = &seq->space->plan->plan;
	nr_full = seq->nr_tokens / plan->block_tokens;
	nr_rest = seq->nr_tokens % plan->block_tokens;
	if (nr_keys > nr_full)
		return -EINVAL;
	if (tail && (nr_keys != nr_full || !nr_rest || !okv_block_ends_entries(plan, nr_rest)))
		return -EINVAL;
	if ((tail ? seq->nr_tokens : nr_keys * plan->block_tokens) > seq->lost_from)
		return -EIO;

	okv_visit_init(&commit.visit, seq->space->manager);
	ret = okv_commit_full(&commit, keys, nr_keys);
	if (!ret && tail)
		ret = okv_commit_tail(&commit, tail);
	return ret ? ret : commit.nr_published;
}

// SPDX-License-Identifier: MIT
/*
 * Sequences: open by prefix, append, truncate, fork, close, and where their rows lie.
 *
 * Publishing is manager/commit.c's, the block table table.c's. One thread uses a sequence at a
 * time. Bytes of KV are touched in one place only: when a partial tail that others may see is
 * copied so that it can be extended.
 */
#include "sequence.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "failpoint.h"
#include "manager/import.h"
#include "manager/retain.h"
#include "manager/space.h"
#include "manager/tier.h"

/* Extents of a request that need no memory of their own. */
#define OKV_APPEND_EXTENTS	256u
/* Sequences that are closed in one stay under the manager's lock. */
#define OKV_CLOSE_MAX		64u

static const struct omnikv_plan *okv_seq_plan(const struct omnikv_seq *seq)
{
	return &seq->space->plan->plan;
}

static struct omnikv_extent *okv_seq_extents(const struct omnikv_seq *seq, uint64_t block_idx)
{
	return &okv_table_leaf(&seq->table, block_idx)->extents[okv_table_slot(block_idx) * seq->table.nr_groups];
}

static void *okv_seq_addr(const struct omnikv_seq *seq, const struct omnikv_extent *extent)
{
	const struct omnikv_manager *manager = seq->space->manager;

	return manager->base + extent->granule * manager->granule_bytes;
}

static struct omnikv_seq *okv_seq_create(struct omnikv_space *space)
{
	struct omnikv_seq *seq = calloc(1, sizeof(*seq));

	if (!seq)
		return NULL;
	seq->space = space;
	seq->lost_from = UINT64_MAX;
	seq->state_last = OKV_BLOCK_NONE;
	seq->state_before = OKV_BLOCK_NONE;
	okv_table_init(&seq->table, space->plan->plan.layout.nr_groups);
	return seq;
}

static void okv_seq_link_locked(struct omnikv_seq *seq)
{
	struct omnikv_manager *manager = seq->space->manager;

	seq->serial = ++manager->nr_seqs_ever;
	seq->link.prev = manager->seqs.prev;
	seq->link.next = &manager->seqs;
	seq->link.prev->next = &seq->link;
	seq->link.next->prev = &seq->link;
	okv_space_get_locked(seq->space);
}

void okv_seq_fill_cached(struct omnikv_seq *seq, uint64_t block_idx, uint32_t entry, uint32_t nr_tokens)
{
	struct okv_leaf *leaf = okv_table_leaf(&seq->table, block_idx);
	uint32_t slot = okv_table_slot(block_idx);
	uint32_t nr_groups = seq->table.nr_groups;
	bool has_state = seq->space->needed_state != 0;

	for (uint32_t g = 0; g < nr_groups; g++) {
		struct omnikv_extent *extent = &leaf->extents[slot * nr_groups + g];

		okv_index_extent(seq->space->shelf->index, entry, g, extent, &leaf->crc[slot * nr_groups + g]);
		has_state &= extent->nr_granules || !(seq->space->needed_state >> g & 1);
	}
	leaf->private[slot] = NULL;
	leaf->state_lo[slot] = has_state ? nr_tokens : 0;
	leaf->state_hi[slot] = has_state ? nr_tokens : 0;
}

/* Inside the visit: @path is pinned; left and entered again where it is long. */
static int okv_seq_fill(struct omnikv_seq *seq, const struct okv_path *path, struct okv_visit *visit)
{
	uint32_t few_entries[256], *entries = few_entries;
	uint32_t block_tokens = okv_seq_plan(seq)->block_tokens;
	uint64_t nr_blocks = path->nr_blocks;
	int ret;

	if (!nr_blocks)
		return 0;
	/* What is pinned stays, so memory can be had outside: all but a little. */
	if (nr_blocks > OKV_TABLE_LEAF_BLOCKS)
		okv_visit_leave(visit);
	ret = okv_table_prepare(&seq->table, 0, nr_blocks, okv_private_drop, visit);
	if (!ret && nr_blocks > sizeof(few_entries) / sizeof(few_entries[0])) {
		entries = malloc(nr_blocks * sizeof(*entries));
		if (!entries)
			ret = -ENOMEM;
	}
	okv_visit_enter(visit);
	if (ret)
		return ret;
	okv_index_blocks(seq->space->shelf->index, path->entry, 0, entries);
	for (uint64_t i = 0; i < nr_blocks; i++)
		okv_seq_fill_cached(seq, i, entries[i],
				    path->tail_tokens && i == nr_blocks - 1 ? path->tail_tokens : block_tokens);
	if (entries != few_entries)
		free(entries);
	seq->table.nr_blocks = nr_blocks;
	seq->nr_cached = nr_blocks;
	seq->last_cached_tokens = path->tail_tokens ? path->tail_tokens : block_tokens;
	seq->nr_tokens = (nr_blocks - 1) * block_tokens + seq->last_cached_tokens;
	return 0;
}

/* All of one manager, none NULL. */
static void okv_seq_close_some(struct omnikv_seq *const *seqs, size_t nr)
{
	struct okv_visit visit;

	okv_visit_init(&visit, seqs[0]->space->manager);
	for (size_t i = 0; i < nr; i++)
		okv_table_fini(&seqs[i]->table, okv_private_drop, &visit);
	okv_visit_enter(&visit);
	for (size_t i = 0; i < nr; i++) {
		struct omnikv_seq *seq = seqs[i];

		okv_pin_drop(&seq->pin);
		seq->link.prev->next = seq->link.next;
		seq->link.next->prev = seq->link.prev;
		okv_space_put_locked(seq->space);
	}
	okv_visit_leave(&visit);
	for (size_t i = 0; i < nr; i++)
		free(seqs[i]);
}

/* Up to OKV_ASKS_MAX lookups, one after another in one visit. Where there is a store to bring back from, @nr is 1. */
static int okv_seq_open_some(struct omnikv_space *space, const struct omnikv_prefix *prefixes, uint32_t nr,
			     struct omnikv_seq **seqs)
{
	struct okv_imported imported[OKV_ASKS_MAX];
	struct okv_path paths[OKV_ASKS_MAX];
	uint32_t nr_created, nr_open = 0, i;
	struct okv_promoted promoted;
	struct okv_visit visit;
	int ret = 0;

	for (nr_created = 0; nr_created < nr; nr_created++) {
		seqs[nr_created] = okv_seq_create(space);
		if (!seqs[nr_created]) {
			ret = -ENOMEM;
			goto err_free;
		}
	}
	okv_tier_promote(space, prefixes, &promoted);
	okv_visit_init(&visit, space->manager);
	okv_import(&visit, space, prefixes, nr, 0, imported);
	while (nr_open < nr) {
		struct omnikv_seq *seq = seqs[nr_open];

		ret = okv_match_locked(space, &prefixes[nr_open], &imported[nr_open], &seq->pin, &paths[nr_open]);
		if (ret)
			break;
		seq->epoch = okv_import_epoch(space->manager);
		okv_seq_link_locked(seq);
		nr_open++;
	}
	seqs[0]->nvme_blocks = okv_tier_settle(&visit, &promoted, nr_open ? paths[0].nr_blocks : 0);
	for (i = 0; i < nr; i++)
		okv_import_end(&imported[i]);
	for (i = 0; i < nr && !ret; i++)
		ret = okv_seq_fill(seqs[i], &paths[i], &visit);
	okv_visit_leave(&visit);
	okv_import_use(space, prefixes, paths, nr_open);
	if (!ret)
		return 0;
	if (nr_open)
		okv_seq_close_some(seqs, nr_open);

err_free:
	for (i = nr_open; i < nr_created; i++)
		free(seqs[i]);
	return ret;
}

int omnikv_seq_open_batch(struct omnikv_space *space, const struct omnikv_prefix *prefixes, size_t nr,
			  struct omnikv_seq **out)
{
	struct omnikv_seq *few[OKV_ASKS_MAX], **seqs = few;
	/* What comes back from a store may take the place of what the next lookup would hit. */
	uint32_t max = space && space->manager->tier ? 1 : OKV_ASKS_MAX;
	size_t nr_open, n;
	int ret = 0;

	if (!space || nr > OMNIKV_SEQ_BATCH_MAX || (nr && (!prefixes || !out)))
		return -EINVAL;
	for (size_t i = 0; i < nr; i++)
		if (!okv_prefix_is_valid(&prefixes[i]))
			return -EINVAL;
	if (nr > OKV_ASKS_MAX)
		seqs = malloc(nr * sizeof(*seqs));
	if (!seqs)
		return -ENOMEM;
	for (nr_open = 0; nr_open < nr && !ret; nr_open += ret ? 0 : n) {
		n = nr - nr_open < max ? nr - nr_open : max;
		ret = okv_seq_open_some(space, &prefixes[nr_open], n, &seqs[nr_open]);
	}
	if (ret)
		omnikv_seq_close_batch(seqs, nr_open);
	else if (nr)
		memcpy(out, seqs, nr * sizeof(*seqs));
	if (seqs != few)
		free(seqs);
	return ret;
}

int omnikv_seq_open(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys,
		    const struct omnikv_key *tail, struct omnikv_seq **out)
{
	const struct omnikv_prefix prefix = { .keys = keys, .nr_keys = nr_keys, .tail = tail };

	return omnikv_seq_open_batch(space, &prefix, 1, out);
}

void omnikv_seq_close_batch(struct omnikv_seq *const *seqs, size_t nr)
{
	size_t i = 0, n;

	while (seqs && i < nr) {
		for (n = 0; n < OKV_CLOSE_MAX && i + n < nr && seqs[i + n]; n++)
			if (seqs[i + n]->space->manager != seqs[i]->space->manager)
				break;
		if (n)
			okv_seq_close_some(&seqs[i], n);
		i += n ? n : 1;
	}
}

void omnikv_seq_close(struct omnikv_seq *seq)
{
	omnikv_seq_close_batch(&seq, 1);
}

bool okv_seq_is_open(struct omnikv_manager *manager, const struct omnikv_seq *seq, uint64_t serial)
{
	struct okv_seq_link *link;
	struct okv_visit visit;

	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	for (link = manager->seqs.next; link != &manager->seqs && okv_seq_of_link(link) != seq;)
		link = link->next;
	if (link != &manager->seqs && okv_seq_of_link(link)->serial != serial)
		link = &manager->seqs;
	okv_visit_leave(&visit);
	return link != &manager->seqs;
}

struct omnikv_space *omnikv_seq_space(const struct omnikv_seq *seq)
{
	return seq->space;
}

uint64_t omnikv_seq_tokens(const struct omnikv_seq *seq)
{
	return seq->nr_tokens;
}

uint64_t omnikv_seq_nvme_blocks(const struct omnikv_seq *seq)
{
	return seq->nvme_blocks;
}

uint64_t omnikv_seq_cached_tokens(const struct omnikv_seq *seq)
{
	uint64_t nr_tokens;

	if (!seq->nr_cached)
		return 0;
	nr_tokens = (seq->nr_cached - 1) * okv_seq_plan(seq)->block_tokens + seq->last_cached_tokens;
	return nr_tokens < seq->nr_tokens ? nr_tokens : seq->nr_tokens;
}

void okv_seq_mark_lost(struct omnikv_seq *seq, uint64_t first_token)
{
	if (first_token < seq->lost_from)
		seq->lost_from = first_token;
}

void okv_seq_mark_stored(struct omnikv_seq *seq, uint64_t from, uint64_t to)
{
	if (from <= seq->lost_from && seq->lost_from < to)
		seq->lost_from = to < seq->nr_tokens ? to : UINT64_MAX;
}

void okv_seq_distrust(struct omnikv_seq *seq, uint64_t block_idx)
{
	uint32_t entry = seq->pin.entry;
	struct omnikv_key key = { .len = 0 };
	struct okv_index_info info;
	struct okv_visit visit;

	if (block_idx >= seq->nr_cached)
		return;
	okv_visit_init(&visit, seq->space->manager);
	okv_visit_enter(&visit);
	for (uint64_t i = seq->nr_cached - 1; i > block_idx; i--)
		entry = okv_index_get(seq->pin.shelf->index, entry, &info) ? OKV_ENTRY_NONE : info.parent;
	if (entry != OKV_ENTRY_NONE && !okv_index_get(seq->pin.shelf->index, entry, &info))
		key = info.key;
	/* Dropped before by somebody else is as good. */
	okv_index_drop(seq->pin.shelf->index, entry);
	okv_retain_prune(seq->space->manager);
	okv_visit_leave(&visit);
	if (key.len)
		okv_import_distrust(seq->space, &key);
}

/* ---- the partial tail ----------------------------------------------------------------------- */

/* May the last block's unused rows be written in place? */
static bool okv_seq_tail_is_own(const struct omnikv_seq *seq)
{
	uint64_t last = seq->table.nr_blocks - 1;

	if (last < seq->nr_cached || !okv_table_is_exclusive(&seq->table, last))
		return false;
	/* Nobody else has the block, so nobody else changes its flags. */
	return !(okv_table_leaf(&seq->table, last)->private[okv_table_slot(last)]->flags & OKV_PRIVATE_F_SEALED);
}

/* The entry before the one that @seq pins, and a pin on it; none at position 0. */
static int okv_seq_pin_parent(const struct omnikv_seq *seq, struct okv_pin *pin)
{
	struct okv_index_info info;
	int ret;

	pin->prev = NULL;
	ret = okv_index_get(seq->pin.shelf->index, seq->pin.entry, &info);
	if (ret || info.parent == OKV_ENTRY_NONE)
		return ret;
	return okv_pin_take(seq->pin.shelf, pin, info.parent, info.position);
}

int okv_seq_own_block(struct omnikv_seq *seq, uint64_t block_idx)
{
	const struct omnikv_plan *plan = okv_seq_plan(seq);
	uint32_t nr_groups = seq->table.nr_groups;
	uint32_t slot = okv_table_slot(block_idx);
	uint32_t nr_tokens = okv_seq_block_tokens(seq, block_idx);
	struct omnikv_extent extents[OMNIKV_GROUPS_MAX] = { 0 };
	struct okv_want wants[OMNIKV_GROUPS_MAX];
	bool is_cached = block_idx < seq->nr_cached;
	struct okv_pin parent = { .prev = NULL };
	struct okv_private *private = NULL;
	struct okv_visit visit;
	struct okv_leaf *leaf;
	uint32_t nr_wants = 0;
	bool has_state;
	int ret;

	okv_visit_init(&visit, seq->space->manager);
	ret = okv_table_prepare(&seq->table, block_idx, block_idx + 1, okv_private_drop, &visit);
	if (ret)
		goto out;
	leaf = okv_table_leaf(&seq->table, block_idx);
	has_state = seq->space->needed_state && leaf->state_hi[slot] == nr_tokens;

	for (uint32_t g = 0; g < nr_groups; g++) {
		if (okv_group_is_state(plan, g) && !has_state)
			continue;
		wants[nr_wants++] = (struct okv_want){
			.nr_granules = plan->groups[g].nr_granules,
			.count = 1,
			.after = block_idx ? okv_seq_extents(seq, block_idx - 1) + g : NULL,
			.out = &extents[g],
		};
	}
	okv_visit_enter(&visit);
	ret = okv_private_reserve(visit.manager, 1);
	if (ret)
		goto out;
	if (is_cached) {
		ret = okv_seq_pin_parent(seq, &parent);
		if (ret)
			goto out;
	}
	ret = -OKV_FAILPOINT("sequence.own_block");
	if (!ret)
		ret = okv_tier_alloc(&visit, wants, nr_wants, 1);
	if (ret) {
		okv_pin_drop(&parent);
		goto out;
	}
	private = okv_private_alloc(visit.manager);
	okv_visit_leave(&visit);

	for (uint32_t g = 0; g < nr_groups; g++)
		if (extents[g].nr_granules)
			okv_block_copy(plan, g, okv_block_entries(plan, g, nr_tokens), okv_seq_addr(seq, &extents[g]),
				       okv_seq_addr(seq, &leaf->extents[slot * nr_groups + g]));

	okv_visit_enter(&visit);
	if (is_cached) {
		okv_pin_drop(&seq->pin);
		okv_pin_adopt(&seq->pin, &parent);
		seq->nr_cached = block_idx;
		seq->last_cached_tokens = plan->block_tokens;
	} else {
		okv_private_drop(&visit, leaf, slot);
	}
	leaf->private[slot] = private;
	memcpy(&leaf->extents[slot * nr_groups], extents, nr_groups * sizeof(extents[0]));
	leaf->state_lo[slot] = has_state ? nr_tokens : 0;
	leaf->state_hi[slot] = leaf->state_lo[slot];
	if (has_state)
		seq->state_last = block_idx;
out:
	okv_visit_leave(&visit);
	return ret;
}

/* ---- append --------------------------------------------------------------------------------- */

/*
 * Old states of this sequence alone are of no more use: a step reads the one at the end of the
 * last append and writes the one at the end of this. Those of committed blocks are the cache's.
 * Called under the manager's lock.
 */
void okv_seq_drop_state(struct omnikv_seq *seq, uint64_t block_idx, struct okv_visit *visit)
{
	struct okv_leaf *leaf;
	uint32_t slot = okv_table_slot(block_idx);

	if (block_idx >= seq->table.nr_blocks || block_idx < seq->nr_cached ||
	    !okv_table_is_exclusive(&seq->table, block_idx))
		return;
	leaf = okv_table_leaf(&seq->table, block_idx);
	/* Published by a fork: the cache's as well, although this sequence has committed nothing. */
	if (okv_pin_is_active(&leaf->private[slot]->pin))
		return;
	for (uint32_t g = 0; g < seq->table.nr_groups; g++) {
		struct omnikv_extent *extent = &leaf->extents[slot * seq->table.nr_groups + g];

		if (!(seq->space->needed_state >> g & 1) || !extent->nr_granules)
			continue;
		visit->manager->private_granules -= extent->nr_granules;
		okv_visit_give(visit, extent);
		memset(extent, 0, sizeof(*extent));
	}
	leaf->state_lo[slot] = 0;
	leaf->state_hi[slot] = 0;
}

static void okv_seq_drop_odd_state(struct omnikv_seq *seq, uint64_t block_idx, struct okv_visit *visit)
{
	const struct okv_leaf *leaf = okv_table_leaf(&seq->table, block_idx);

	if (leaf->state_hi[okv_table_slot(block_idx)] != okv_seq_block_tokens(seq, block_idx))
		okv_seq_drop_state(seq, block_idx, visit);
}

/* Wants of an append: for each group that grows one for all blocks, for each state group one. */
struct okv_growth {
	uint64_t		nr_old;
	uint64_t		nr_new;
	struct omnikv_extent	*extents;	/* [group][nr_new - nr_old] */
	struct omnikv_extent	state[OMNIKV_GROUPS_MAX];
	struct okv_want		wants[OMNIKV_GROUPS_MAX];
	uint32_t		nr_wants;
};

static void okv_growth_plan(const struct omnikv_seq *seq, struct okv_growth *growth)
{
	const struct omnikv_plan *plan = okv_seq_plan(seq);
	uint64_t nr = growth->nr_new - growth->nr_old;
	bool is_in_place = nr == 0;

	for (uint32_t g = 0; g < seq->table.nr_groups; g++) {
		const struct omnikv_extent *last = NULL;

		if (growth->nr_old)
			last = okv_seq_extents(seq, growth->nr_old - 1) + g;
		if (okv_group_is_state(plan, g)) {
			if (is_in_place && last->nr_granules)
				continue;
			growth->wants[growth->nr_wants++] = (struct okv_want){
				.nr_granules = plan->groups[g].nr_granules,
				.count = 1,
				.out = &growth->state[g],
			};
		} else if (nr) {
			growth->wants[growth->nr_wants++] = (struct okv_want){
				.nr_granules = plan->groups[g].nr_granules,
				.count = nr,
				.after = last,
				.out = &growth->extents[g * nr],
			};
		}
	}
}

static void okv_growth_fill(struct omnikv_seq *seq, const struct okv_growth *growth, struct omnikv_manager *manager)
{
	uint64_t nr = growth->nr_new - growth->nr_old;
	uint32_t nr_groups = seq->table.nr_groups;
	struct omnikv_extent last = { 0 };

	if (growth->nr_old)
		last = *okv_seq_extents(seq, growth->nr_old - 1);
	for (uint64_t i = 0; i < nr; i++) {
		struct okv_leaf *leaf = okv_table_leaf(&seq->table, growth->nr_old + i);
		uint32_t slot = okv_table_slot(growth->nr_old + i);
		struct omnikv_extent *extents = &leaf->extents[slot * nr_groups];

		for (uint32_t g = 0; g < nr_groups; g++)
			if (!(seq->space->needed_state >> g & 1))
				extents[g] = growth->extents[g * nr + i];
		leaf->private[slot] = okv_private_alloc(manager);
		manager->nr_placed++;
		/* The first block of a sequence is behind nothing, also at the pool's first granule. */
		manager->nr_runs += !last.nr_granules || last.granule + last.nr_granules != extents[0].granule;
		last = extents[0];
	}
	seq->table.nr_blocks = growth->nr_new;
}

/* The state of the sequence's end stands in its last block. */
static void okv_growth_fill_state(struct omnikv_seq *seq, const struct okv_growth *growth, uint64_t nr_tokens,
				  struct okv_visit *visit)
{
	uint64_t target = growth->nr_new - 1;
	struct okv_leaf *leaf = okv_table_leaf(&seq->table, target);
	uint32_t slot = okv_table_slot(target);
	uint32_t before = seq->nr_tokens - target * okv_seq_plan(seq)->block_tokens;

	for (uint32_t g = 0; g < seq->table.nr_groups; g++)
		if (growth->state[g].nr_granules)
			leaf->extents[slot * seq->table.nr_groups + g] = growth->state[g];
	leaf->state_lo[slot] = growth->nr_new == growth->nr_old && leaf->state_hi[slot] == before ? before : 0;
	leaf->state_hi[slot] = nr_tokens - target * okv_seq_plan(seq)->block_tokens;
	seq->is_state_lo_gone = false;

	if (seq->state_last == target)
		return;
	if (seq->state_before != OKV_BLOCK_NONE && seq->state_before != target)
		okv_seq_drop_state(seq, seq->state_before, visit);
	seq->state_before = seq->state_last;
	seq->state_last = target;
}

int omnikv_seq_append(struct omnikv_seq *seq, uint64_t nr_tokens)
{
	struct omnikv_extent few_extents[OKV_APPEND_EXTENTS];
	struct okv_growth growth = { .extents = few_extents };
	const struct omnikv_plan *plan;
	struct okv_visit visit;
	uint64_t total, nr;
	bool has_state;
	int ret;

	if (!seq)
		return -EINVAL;
	if (!nr_tokens)
		return 0;
	plan = okv_seq_plan(seq);
	if (__builtin_add_overflow(seq->nr_tokens, nr_tokens, &total))
		return -ENOSPC;
	growth.nr_old = seq->table.nr_blocks;
	growth.nr_new = total / plan->block_tokens + (total % plan->block_tokens != 0);
	nr = growth.nr_new - growth.nr_old;
	if (nr > seq->space->manager->nr_granules || growth.nr_new > UINT32_MAX - 1)
		return -ENOSPC;
	has_state = seq->space->needed_state != 0;

	if (seq->nr_tokens % plan->block_tokens && !okv_seq_tail_is_own(seq)) {
		ret = okv_seq_own_block(seq, growth.nr_old - 1);
		if (ret)
			return ret;
	}
	/* The usual step of decoding: room is there, and nobody else sees the block. */
	if (!nr && !has_state) {
		seq->nr_tokens = total;
		return 0;
	}

	okv_visit_init(&visit, seq->space->manager);
	ret = okv_table_prepare(&seq->table, nr ? growth.nr_old : growth.nr_old - 1, growth.nr_new, okv_private_drop,
				&visit);
	if (ret)
		goto out;
	if (nr * seq->table.nr_groups > OKV_APPEND_EXTENTS) {
		growth.extents = malloc(nr * seq->table.nr_groups * sizeof(growth.extents[0]));
		if (!growth.extents) {
			ret = -ENOMEM;
			goto out;
		}
	}
	okv_growth_plan(seq, &growth);
	okv_visit_enter(&visit);
	ret = okv_private_reserve(visit.manager, nr);
	if (!ret)
		ret = -OKV_FAILPOINT("sequence.append");
	if (!ret && growth.nr_wants)
		ret = okv_tier_alloc(&visit, growth.wants, growth.nr_wants, nr);
	if (ret)
		goto out;
	/* After a truncation the block's state stands behind the tokens that are left. */
	if (has_state && nr && growth.nr_old)
		okv_seq_drop_odd_state(seq, growth.nr_old - 1, &visit);
	okv_growth_fill(seq, &growth, visit.manager);
	if (has_state)
		okv_growth_fill_state(seq, &growth, total, &visit);
	seq->nr_tokens = total;
out:
	okv_visit_leave(&visit);
	if (growth.extents != few_extents)
		free(growth.extents);
	return ret;
}

/* Where the state of a block stands before the step that writes the next one in its place; 0: nowhere any more. */
static uint32_t okv_seq_state_lo(const struct omnikv_seq *seq, uint64_t block_idx)
{
	if (block_idx != seq->state_last || seq->is_state_lo_gone)
		return 0;
	return okv_table_leaf(&seq->table, block_idx)->state_lo[okv_table_slot(block_idx)];
}

/* ---- checkpoint, truncate, fork ------------------------------------------------------------------------- */

/* @nr_tokens without those behind the last place where no group is within an entry. */
static uint64_t okv_seq_whole_entries(const struct omnikv_seq *seq, uint64_t nr_tokens)
{
	const struct omnikv_layout *layout = &okv_seq_plan(seq)->layout;
	uint64_t before;

	do {
		before = nr_tokens;
		for (uint32_t g = 0; g < layout->nr_groups; g++)
			if (layout->groups[g].tokens_per_entry)
				nr_tokens -= nr_tokens % layout->groups[g].tokens_per_entry;
	} while (nr_tokens != before);
	return nr_tokens;
}

uint64_t omnikv_seq_checkpoint(const struct omnikv_seq *seq, uint64_t at_most)
{
	uint64_t block_tokens, nr_blocks;

	if (!seq)
		return 0;
	if (at_most > seq->nr_tokens)
		at_most = seq->nr_tokens;
	if (at_most > seq->lost_from)
		at_most = seq->lost_from;
	if (!seq->space->needed_state)
		return okv_seq_whole_entries(seq, at_most);

	block_tokens = okv_seq_plan(seq)->block_tokens;
	nr_blocks = at_most / block_tokens + (at_most % block_tokens != 0);
	for (uint64_t b = nr_blocks; b-- > 0;) {
		const struct okv_leaf *leaf = okv_table_leaf(&seq->table, b);
		uint32_t hi = leaf->state_hi[okv_table_slot(b)], lo = okv_seq_state_lo(seq, b);
		uint64_t first = b * block_tokens;

		if (hi && first + hi <= at_most && okv_seq_whole_entries(seq, first + hi) == first + hi)
			return first + hi;
		/* A step that failed may have stored the later state over this one. */
		if (lo && first + lo <= at_most && first + lo < seq->lost_from &&
		    okv_seq_whole_entries(seq, first + lo) == first + lo)
			return first + lo;
	}
	return 0;
}

/* The entry of the block that will be the last cached one when @nr_blocks stay. */
static int okv_seq_cut_pin(struct omnikv_seq *seq, uint64_t nr_blocks)
{
	uint32_t entry = seq->pin.entry;
	struct okv_index_info info;
	int ret;

	if (!nr_blocks) {
		okv_pin_drop(&seq->pin);
		return 0;
	}
	for (uint64_t i = seq->nr_cached; i > nr_blocks; i--) {
		ret = okv_index_get(seq->pin.shelf->index, entry, &info);
		if (ret)
			return ret;
		entry = info.parent;
	}
	return okv_pin_move(seq->pin.shelf, &seq->pin, entry, nr_blocks);
}

int omnikv_seq_truncate(struct omnikv_seq *seq, uint64_t nr_tokens)
{
	struct okv_visit visit;
	uint64_t nr_blocks;
	int ret = 0;

	if (!seq || nr_tokens > seq->nr_tokens)
		return -EINVAL;
	nr_blocks = nr_tokens / okv_seq_plan(seq)->block_tokens + (nr_tokens % okv_seq_plan(seq)->block_tokens != 0);

	okv_visit_init(&visit, seq->space->manager);
	if (nr_blocks < seq->nr_cached) {
		okv_visit_enter(&visit);
		ret = okv_seq_cut_pin(seq, nr_blocks);
		if (ret)
			goto out;
		seq->nr_cached = nr_blocks;
		seq->last_cached_tokens = okv_seq_plan(seq)->block_tokens;
	}
	okv_table_cut(&seq->table, nr_blocks, okv_private_drop, &visit);
	/* Who stores without a pipe has not said whether the state behind has been stored over the one before. */
	if (nr_tokens < seq->nr_tokens)
		seq->is_state_lo_gone = true;
	seq->nr_tokens = nr_tokens;
	if (seq->state_last != OKV_BLOCK_NONE && seq->state_last >= nr_blocks) {
		seq->state_last = seq->state_before < nr_blocks ? seq->state_before : OKV_BLOCK_NONE;
		seq->state_before = OKV_BLOCK_NONE;
	}
	if (nr_tokens <= seq->lost_from)
		seq->lost_from = UINT64_MAX;
out:
	okv_visit_leave(&visit);
	return ret;
}

void okv_seq_revive_state(struct omnikv_seq *seq)
{
	struct okv_leaf *leaf;
	uint64_t block_idx;
	uint32_t slot, at;

	if (!seq->space->needed_state || !seq->nr_tokens)
		return;
	block_idx = (seq->nr_tokens - 1) / okv_seq_plan(seq)->block_tokens;
	if (block_idx < seq->nr_cached || !okv_table_is_exclusive(&seq->table, block_idx))
		return;
	leaf = okv_table_leaf(&seq->table, block_idx);
	slot = okv_table_slot(block_idx);
	at = okv_seq_block_tokens(seq, block_idx);
	if (leaf->state_lo[slot] != at)
		return;
	leaf->state_hi[slot] = at;
	leaf->state_lo[slot] = 0;
	seq->is_state_lo_gone = false;
}

int omnikv_seq_fork(struct omnikv_seq *seq, struct omnikv_seq **out)
{
	struct okv_visit visit;
	struct omnikv_seq *fork;
	int ret = 0;

	if (!seq || !out)
		return -EINVAL;
	fork = okv_seq_create(seq->space);
	if (!fork)
		return -ENOMEM;
	fork->epoch = seq->epoch;
	fork->nr_tokens = seq->nr_tokens;
	fork->nr_cached = seq->nr_cached;
	fork->last_cached_tokens = seq->last_cached_tokens;
	fork->lost_from = seq->lost_from;
	fork->state_last = seq->state_last;
	fork->state_before = seq->state_before;
	fork->is_state_lo_gone = seq->is_state_lo_gone;

	okv_visit_init(&visit, seq->space->manager);
	okv_visit_enter(&visit);
	if (okv_pin_is_active(&seq->pin))
		ret = okv_pin_take(seq->pin.shelf, &fork->pin, seq->pin.entry, seq->pin.nr_blocks);
	if (!ret) {
		okv_table_share(&seq->table, &fork->table);
		okv_seq_link_locked(fork);
	}
	okv_visit_leave(&visit);
	if (ret) {
		free(fork);
		return ret;
	}
	*out = fork;
	return 0;
}

/* ---- where rows lie ------------------------------------------------------------------------- */

static int64_t okv_seq_state_piece(const struct omnikv_seq *seq, uint32_t group, uint64_t off, uint64_t bytes,
				   uint64_t to, uint64_t device_off, struct omnikv_piece *pieces, size_t max)
{
	const struct okv_leaf *leaf;
	const struct omnikv_extent *extent;
	uint64_t block_idx;
	uint32_t slot, at;

	if (!to)
		return -ENODATA;
	block_idx = (to - 1) / okv_seq_plan(seq)->block_tokens;
	at = to - block_idx * okv_seq_plan(seq)->block_tokens;
	leaf = okv_table_leaf(&seq->table, block_idx);
	slot = okv_table_slot(block_idx);
	extent = &leaf->extents[slot * seq->table.nr_groups + group];
	if (!extent->nr_granules || (at != leaf->state_hi[slot] && at != okv_seq_state_lo(seq, block_idx)))
		return -ENODATA;
	if (!max)
		return -ENOSPC;
	*pieces = (struct omnikv_piece){
		.extent = *extent, .extent_off = off, .device_off = device_off, .bytes = bytes,
	};
	return 1;
}

int64_t omnikv_seq_pieces(const struct omnikv_seq *seq, uint32_t group, uint32_t layer_idx, uint32_t plane,
			  uint64_t from, uint64_t to, uint64_t device_off, struct omnikv_piece *pieces, size_t max)
{
	const struct omnikv_group_plan *gp;
	const struct omnikv_plan *plan;
	uint64_t block_idx, row, rows, off, row_bytes;
	uint32_t tokens_per_entry;
	size_t nr = 0;

	if (!seq || group >= seq->table.nr_groups || from > to || to > seq->nr_tokens || (max && !pieces))
		return -EINVAL;
	plan = okv_seq_plan(seq);
	gp = &plan->groups[group];
	if (layer_idx >= gp->nr_stored || plane >= plan->layout.groups[group].nr_planes)
		return -EINVAL;
	off = layer_idx * gp->piece_bytes + gp->plane_off[plane];
	row_bytes = gp->row_bytes[plane];
	if (okv_group_is_state(plan, group))
		return okv_seq_state_piece(seq, group, off, row_bytes, to, device_off, pieces, max);

	tokens_per_entry = plan->layout.groups[group].tokens_per_entry;
	row = from / tokens_per_entry;
	rows = to / tokens_per_entry - row;
	block_idx = row / gp->entries;
	row %= gp->entries;
	if ((rows + row + gp->entries - 1) / gp->entries > max && rows)
		return -ENOSPC;
	/* A piece has one extent's name, so it ends where its block does; nothing can be merged across. */
	while (rows) {
		const struct okv_leaf *leaf = okv_table_leaf(&seq->table, block_idx);
		const struct omnikv_extent *extent =
			&leaf->extents[okv_table_slot(block_idx) * seq->table.nr_groups + group];
		uint32_t slot = okv_table_slot(block_idx);

		for (; slot < OKV_TABLE_LEAF_BLOCKS && rows; slot++, extent += seq->table.nr_groups) {
			uint64_t n = gp->entries - row < rows ? gp->entries - row : rows;

			pieces[nr++] = (struct omnikv_piece){
				.extent = *extent,
				.extent_off = off + row * row_bytes,
				.device_off = device_off,
				.bytes = n * row_bytes,
			};
			device_off += n * row_bytes;
			rows -= n;
			row = 0;
			block_idx++;
		}
	}
	return nr;
}

int omnikv_seq_block_crc(const struct omnikv_seq *seq, uint64_t block_idx, uint32_t group, uint32_t *crc)
{
	const struct okv_leaf *leaf;
	uint32_t i;

	if (!seq || !crc || group >= seq->table.nr_groups || block_idx >= seq->table.nr_blocks)
		return -EINVAL;
	if (block_idx >= seq->nr_cached)
		return -ENODATA;
	if (block_idx == seq->nr_cached - 1 && okv_seq_block_tokens(seq, block_idx) != seq->last_cached_tokens)
		return -ENODATA;
	leaf = okv_table_leaf(&seq->table, block_idx);
	i = okv_table_slot(block_idx) * seq->table.nr_groups + group;
	if (!leaf->extents[i].nr_granules)
		return -ENODATA;
	*crc = leaf->crc[i];
	return 0;
}

/* SPDX-License-Identifier: MIT */
/*
 * The inside of a sequence, for sequence.c, for commit.c, and for pipelines that must say that
 * a store failed.
 *
 * Blocks [0, nr_cached) are cached: their extents belong to index entries, of which the last one
 * is pinned. The rest is private. One thread uses a sequence at a time; forks share blocks and
 * nodes of their tables, and may be used by different threads.
 */
#ifndef OKV_SEQUENCE_H
#define OKV_SEQUENCE_H

#include <omnikv/sequence.h>

#include "manager/manager.h"

#define OKV_BLOCK_NONE	UINT64_MAX

/**
 * struct omnikv_seq
 * @link:        in the manager's list, under its lock
 * @serial:      of no other sequence of this manager, ever
 * @epoch:       in which it was opened, as okv_import_epoch(); what it holds is not published in a later one
 * @nr_cached:   blocks; the last of them may be a partial tail, or a block of which only some rows still count
 * @last_cached_tokens: tokens of the last cached block, as it was committed
 * @pin:         on the entry of block nr_cached - 1; active when there is one
 * @nvme_blocks: blocks that were brought back from NVMe to open it
 * @lost_from:   a store from this token on failed; UINT64_MAX: none
 * @state_last, @state_before: blocks that got a state extent by the last append and by the one before
 * @is_state_lo_gone: what stood at the last block's state_lo has been written over, or may have been
 */
struct omnikv_seq {
	struct okv_seq_link	link;
	uint64_t		serial;
	uint64_t		epoch;
	struct omnikv_space	*space;
	struct okv_table	table;
	uint64_t		nr_tokens;
	uint64_t		nr_cached;
	uint32_t		last_cached_tokens;
	struct okv_pin		pin;
	uint64_t		nvme_blocks;
	uint64_t		lost_from;
	uint64_t		state_last;
	uint64_t		state_before;
	bool			is_state_lo_gone;
};

static inline struct omnikv_seq *okv_seq_of_link(struct okv_seq_link *link)
{
	return (struct omnikv_seq *)((char *)link - offsetof(struct omnikv_seq, link));
}

/** Is @seq, which may be gone, still the open sequence of this number? */
bool okv_seq_is_open(struct omnikv_manager *manager, const struct omnikv_seq *seq, uint64_t serial);

/** Tokens of block @block_idx that count. */
static inline uint32_t okv_seq_block_tokens(const struct omnikv_seq *seq, uint64_t block_idx)
{
	uint64_t block_tokens = seq->space->plan->plan.block_tokens;
	uint64_t rest = seq->nr_tokens - block_idx * block_tokens;

	return rest < block_tokens ? rest : block_tokens;
}

/** Bytes from token @first_token on were not stored: they cannot be committed before they are truncated or stored. */
void okv_seq_mark_lost(struct omnikv_seq *seq, uint64_t first_token);
/** Tokens [@from, @to) are stored (again). */
void okv_seq_mark_stored(struct omnikv_seq *seq, uint64_t from, uint64_t to);
/** A step has begun to store the state at the sequence's end, in the place of the one before it. */
static inline void okv_seq_mark_state_written(struct omnikv_seq *seq)
{
	seq->is_state_lo_gone = true;
}

/**
 * After truncation to where a state stood before an append of which nothing has been stored: that state is there
 * as it was. No effect where there is none.
 */
void okv_seq_revive_state(struct omnikv_seq *seq);
/**
 * okv_seq_distrust() - the bytes of a cached block are not those that were committed
 *
 * It and all behind it are not hit again, by anybody; who has them already keeps them until it lets go.
 * No effect on a block that is not cached.
 */
void okv_seq_distrust(struct omnikv_seq *seq, uint64_t block_idx);

/**
 * okv_seq_own_block() - a private block becomes this sequence's alone, by a copy of its rows
 * @block_idx: private, or the last cached one
 *
 * A state that does not stand at the end of the block's tokens stays behind. Outside of a visit.
 */
int okv_seq_own_block(struct omnikv_seq *seq, uint64_t block_idx);
/** Give up the states of a private block that is this sequence's alone; no effect on others. Inside a visit. */
void okv_seq_drop_state(struct omnikv_seq *seq, uint64_t block_idx, struct okv_visit *visit);

/** Fill a slot from an index entry and its tokens; the slot has nothing private. Inside a visit. */
void okv_seq_fill_cached(struct omnikv_seq *seq, uint64_t block_idx, uint32_t entry, uint32_t nr_tokens);

#endif /* OKV_SEQUENCE_H */

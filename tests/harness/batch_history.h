/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * One random history in two worlds: what one does by single calls the other does by batches, and all that either sees
 * must be the same.
 *
 * Prompts begin alike, are cut anywhere, end with tails or without, come twice in one batch, and are cached by and by;
 * some sequences stay open over several steps. Every byte that hits is compared. One thread.
 */
#ifndef TESTS_BATCH_HISTORY_H
#define TESTS_BATCH_HISTORY_H

#include "tests/harness/kv_world.h"

/** Sequences of one history, alike in both worlds. */
struct batch_history {
	struct kv_world		*single;
	struct kv_world		*batch;
	uint64_t		seed;
	uint64_t		nr_opened;
	uint64_t		nr_hit;		/* blocks */
};

/** @nr_steps batches of up to @nr_max prompts of up to @nr_blocks blocks. Everything is closed again. Asserts. */
void batch_history_run(struct batch_history *history, uint32_t nr_steps, uint32_t nr_max, uint32_t nr_blocks);
/** All that managers count of themselves, but for what depends on secrets. Asserts. */
void batch_history_compare_stats(struct omnikv_manager *single, struct omnikv_manager *batch);

#endif /* TESTS_BATCH_HISTORY_H */

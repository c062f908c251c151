// SPDX-License-Identifier: GPL-2.0-only
/*
 * Random histories by single calls and by batches: see batch_history.h. One thread.
 *
 * The worlds have pools of their own, of one size, so that what leaves either is the same.
 */
#include "tests/harness/batch_history.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define PROMPTS_MAX	80u
#define HELD_MAX	64u

/* A prompt, and its sequence in either world. */
struct asked {
	struct kv_story		story;
	struct omnikv_key	*keys;
	struct omnikv_key	tail;
	struct omnikv_prefix	prefix;
	struct omnikv_seq	*single;
	struct omnikv_seq	*batch;
};

void batch_history_compare_stats(struct omnikv_manager *single, struct omnikv_manager *batch)
{
	struct omnikv_manager_stats a = { .size = sizeof(a) }, b = { .size = sizeof(b) };

	assert_int_equal(omnikv_manager_stats(single, &a), 0);
	assert_int_equal(omnikv_manager_stats(batch, &b), 0);
	a.hash_collisions = b.hash_collisions = 0;
	for (size_t at = 0; at < sizeof(a); at += sizeof(uint64_t))
		if (memcmp((char *)&a + at, (char *)&b + at, sizeof(uint64_t)))
			fail_msg("statistics differ at byte %zu: %llu by single calls, %llu by batches", at,
				 (unsigned long long)*(uint64_t *)((char *)&a + at),
				 (unsigned long long)*(uint64_t *)((char *)&b + at));
}

/* Few first blocks, so that paths fork at each depth; some prompts were never asked for before. */
static void make(struct batch_history *history, struct asked *ask, uint32_t nr_blocks)
{
	uint32_t block_tokens = history->single->plan.block_tokens;
	uint64_t nr = kv_random(&history->seed) % (nr_blocks * block_tokens + 1);
	bool with_tail = kv_random(&history->seed) & 1;
	uint32_t token = 0;

	memset(ask, 0, sizeof(*ask));
	for (uint64_t i = 0; i < nr; i++) {
		if (i % block_tokens == 0)
			token = 10 * token + (uint32_t)(kv_random(&history->seed) % (kv_random(&history->seed) % 8 ? 2 : 50)) + 1;
		kv_story_add(&ask->story, token);
	}
	ask->keys = kv_keys(history->single, &ask->story, nr / block_tokens);
	ask->prefix = (struct omnikv_prefix){ .keys = ask->keys, .nr_keys = nr / block_tokens };
	if (with_tail && nr % block_tokens) {
		ask->tail = kv_key(history->single, &ask->story, nr / block_tokens, (uint32_t)(nr % block_tokens));
		ask->prefix.tail = &ask->tail;
	}
}

static void forget(struct asked *ask)
{
	kv_story_free(&ask->story);
	free(ask->keys);
}

static void compare(const struct batch_history *history, const struct asked *ask)
{
	uint64_t hit = omnikv_seq_tokens(ask->single);
	const char *why = NULL;

	assert_int_equal(omnikv_seq_tokens(ask->batch), hit);
	assert_int_equal(omnikv_seq_cached_tokens(ask->batch), omnikv_seq_cached_tokens(ask->single));
	assert_int_equal(omnikv_seq_nvme_blocks(ask->batch), omnikv_seq_nvme_blocks(ask->single));
	assert_ptr_equal(omnikv_seq_space(ask->batch), history->batch->space);
	if (hit)
		why = kv_compare(history->single, ask->single, &ask->story, 0, hit);
	if (hit && !why)
		why = kv_compare(history->batch, ask->batch, &ask->story, 0, hit);
	if (why)
		fail_msg("%s", why);
}

/* What did not hit is computed, in one world as in the other. */
static void compute(const struct kv_world *world, struct omnikv_seq *seq, const struct asked *ask, int64_t *res)
{
	uint64_t hit = omnikv_seq_tokens(seq);

	*res = hit < ask->story.nr_tokens ? omnikv_seq_append(seq, ask->story.nr_tokens - hit) : 0;
	if (*res || hit == ask->story.nr_tokens)
		return;
	kv_store(world, seq, &ask->story, hit, ask->story.nr_tokens);
	*res = kv_commit(world, seq, &ask->story, ask->prefix.tail != NULL);
}

static void step(struct batch_history *history, struct asked *asks, uint32_t nr)
{
	struct omnikv_prefix prefixes[PROMPTS_MAX];
	struct omnikv_seq *seqs[PROMPTS_MAX];

	for (uint32_t i = 0; i < nr; i++) {
		const struct omnikv_prefix *prefix = &asks[i].prefix;

		prefixes[i] = *prefix;
		assert_int_equal(omnikv_seq_open(history->single->space, prefix->keys, prefix->nr_keys, prefix->tail, &asks[i].single), 0);
	}
	assert_int_equal(omnikv_seq_open_batch(history->batch->space, prefixes, nr, seqs), 0);
	for (uint32_t i = 0; i < nr; i++) {
		asks[i].batch = seqs[i];
		compare(history, &asks[i]);
		history->nr_hit += omnikv_seq_tokens(seqs[i]) / history->single->plan.block_tokens;
	}
	history->nr_opened += nr;
	batch_history_compare_stats(history->single->manager, history->batch->manager);
	for (uint32_t i = 0; i < nr; i++) {
		int64_t a, b;

		compute(history->single, asks[i].single, &asks[i], &a);
		compute(history->batch, asks[i].batch, &asks[i], &b);
		assert_int_equal(a, b);
	}
}

static void close_all(struct asked *asks, uint32_t nr)
{
	struct omnikv_seq *seqs[2 * PROMPTS_MAX];

	for (uint32_t i = 0; i < nr; i++) {
		omnikv_seq_close(asks[i].single);
		seqs[2 * i] = asks[i].batch;
		seqs[2 * i + 1] = NULL;
		forget(&asks[i]);
	}
	omnikv_seq_close_batch(seqs, 2 * nr);
}

void batch_history_run(struct batch_history *history, uint32_t nr_steps, uint32_t nr_max, uint32_t nr_blocks)
{
	struct asked asks[PROMPTS_MAX], held[HELD_MAX];
	uint32_t nr_held = 0;

	assert_true(nr_max <= PROMPTS_MAX);
	for (uint32_t n = 0; n < nr_steps; n++) {
		uint32_t nr = (uint32_t)(kv_random(&history->seed) % (nr_max + 1)), nr_kept = 0;

		for (uint32_t i = 0; i < nr; i++)
			make(history, &asks[i], nr_blocks);
		/* One prompt twice, its key in another place of memory. */
		if (nr > 2) {
			forget(&asks[nr - 1]);
			asks[nr - 1] = asks[kv_random(&history->seed) % (nr - 1)];
			asks[nr - 1].story = (struct kv_story){ 0 };
			for (uint32_t i = 0; i < nr - 1; i++)
				if (asks[i].keys == asks[nr - 1].keys)
					kv_story_copy(&asks[nr - 1].story, &asks[i].story, asks[i].story.nr_tokens);
			asks[nr - 1].keys = kv_keys(history->single, &asks[nr - 1].story, asks[nr - 1].prefix.nr_keys);
			asks[nr - 1].prefix.keys = asks[nr - 1].keys;
			asks[nr - 1].prefix.tail = asks[nr - 1].prefix.tail ? &asks[nr - 1].tail : NULL;
		}
		step(history, asks, nr);
		for (uint32_t i = 0; i < nr; i++) {
			if (nr_held < HELD_MAX && kv_random(&history->seed) % 8 == 0) {
				held[nr_held] = asks[i];
				held[nr_held++].prefix.tail = NULL;
			} else {
				asks[nr_kept++] = asks[i];
			}
		}
		close_all(asks, nr_kept);
		if (nr_held > HELD_MAX / 2 || kv_random(&history->seed) % 16 == 0) {
			close_all(held, nr_held);
			nr_held = 0;
		}
		batch_history_compare_stats(history->single->manager, history->batch->manager);
		if (n % 16 == 0) {
			kv_world_check(history->single);
			kv_world_check(history->batch);
		}
	}
	close_all(held, nr_held);
	batch_history_compare_stats(history->single->manager, history->batch->manager);
}

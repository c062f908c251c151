// SPDX-License-Identifier: GPL-2.0-only
/*
 * A trained model and seeded random ones through the whole stack: whatever way the KV takes, text and
 * logits are those of plain arrays, to the bit.
 *
 * Each case runs on both devices (the simulated one delivers late and in random order and poisons what
 * must not be read) with rings of one and two layer buffers.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/harness/llm_case.h"

static struct llm_case cases[LLM_NR_CASES];

static uint64_t next_random(uint64_t *seed)
{
	uint64_t z = *seed += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

/* Compute the next @nr tokens of the case in one step and compare. */
static void advance(struct llm_engine *e, const struct llm_case *c, struct llm_seq *s, uint32_t nr)
{
	s->nr_new = nr;
	assert_true(s->nr_done + nr <= c->nr_tokens);
	memcpy(s->tokens, c->tokens, (s->nr_done + nr) * sizeof(*s->tokens));
	assert_int_equal(llm_step(e, s, 1, NULL, NULL, NULL), 0);
	llm_case_compare(c, s, nr);
}

static void one_prefill(struct llm_case *c, const struct llm_config *config)
{
	static const uint32_t chunks[] = { 200, 37 };
	struct llm_engine e;
	struct llm_seq s;
	uint32_t i;

	llm_engine_open(&e, config);
	for (i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
		llm_seq_open(&e, &s, c->tokens, 0, c->nr_tokens, 200);
		while (s.nr_done < c->nr_tokens) {
			uint64_t left = c->nr_tokens - s.nr_done;

			advance(&e, c, &s, left < chunks[i] ? (uint32_t)left : chunks[i]);
		}
		llm_seq_close(&s);
	}
	llm_engine_close(&e);
}

static void chunked_prefill_gives_the_logits_of_plain_arrays(void **state)
{
	(void)state;
	llm_over_everything(cases, one_prefill);
}

/* Prompt by the ring, then token by token from the host, choosing each from the logits: as an engine does. */
static void one_decode(struct llm_case *c, const struct llm_config *config)
{
	struct llm_engine e;
	struct llm_seq s;

	llm_engine_open(&e, config);
	llm_seq_open(&e, &s, c->tokens, c->nr_prompt, c->nr_tokens, (uint32_t)c->nr_prompt);
	s.nr_new = (uint32_t)c->nr_prompt;
	s.lane = OMNIKV_LANE_PREFILL;
	for (;;) {
		assert_int_equal(llm_step(&e, &s, 1, NULL, NULL, NULL), 0);
		llm_case_compare(c, &s, s.nr_new);
		if (s.nr_done == c->nr_tokens)
			break;
		s.tokens[s.nr_done] = llm_argmax(s.logits + (size_t)(s.nr_new - 1) * c->model.shape.vocab,
						 c->model.shape.vocab);
		assert_int_equal(s.tokens[s.nr_done], c->tokens[s.nr_done]);
		s.nr_new = 1;
		s.lane = OMNIKV_LANE_DECODE;
	}
	llm_seq_close(&s);
	llm_engine_close(&e);
}

static void greedy_decode_from_the_host_writes_the_same_text(void **state)
{
	(void)state;
	llm_over_everything(cases, one_decode);
}

/* A second request finds what the first committed, at every length, tails included. */
static void one_reuse(struct llm_case *c, const struct llm_config *config)
{
	struct llm_engine e;
	struct llm_seq s;
	uint64_t n, hit;

	llm_engine_open(&e, config);
	llm_seq_open(&e, &s, c->tokens, 0, c->nr_tokens, 200);
	for (n = 16; n <= 96; n += 16) {
		advance(&e, c, &s, 16);
		assert_int_equal(llm_seq_commit(&e, &s, false), 1);
	}
	advance(&e, c, &s, 7);
	assert_int_equal(llm_seq_commit(&e, &s, true), 1);
	llm_seq_close(&s);
	for (n = 1; n < 120; n += 9) {
		llm_seq_open(&e, &s, c->tokens, n, c->nr_tokens, 200);
		hit = n / 16 < 6 ? n / 16 * 16 : n == 103 ? 103 : 96;
		assert_int_equal(s.nr_done, hit);
		advance(&e, c, &s, (uint32_t)(n - hit) + 3);
		llm_seq_close(&s);
	}
	llm_seq_open(&e, &s, c->tokens, 103, c->nr_tokens, 200);
	assert_int_equal(s.nr_done, 103);
	advance(&e, c, &s, 5);
	llm_seq_close(&s);
	llm_engine_close(&e);
}

static void a_prefix_hit_gives_the_logits_of_plain_arrays(void **state)
{
	(void)state;
	llm_over_everything(cases, one_reuse);
}

/* Batches of requests at different places, prefill and decode mixed; some other request's tokens differ. */
static void one_batch(struct llm_case *c, const struct llm_config *config)
{
	struct llm_engine e;
	struct llm_seq s[3];
	uint32_t round, i;

	llm_engine_open(&e, config);
	for (i = 0; i < 3; i++)
		llm_seq_open(&e, &s[i], c->tokens, 0, c->nr_tokens, 40);
	for (round = 0; round < 6; round++) {
		for (i = 0; i < 3; i++) {
			static const uint32_t news[3] = { 1, 17, 10 };

			s[i].nr_new = round == 0 && i == 0 ? 33 : news[i];
			s[i].lane = s[i].nr_new == 1 ? OMNIKV_LANE_DECODE : OMNIKV_LANE_PREFILL;
			memcpy(s[i].tokens, c->tokens, c->nr_tokens * sizeof(*c->tokens));
		}
		assert_int_equal(llm_step(&e, s, 3, NULL, NULL, NULL), 0);
		for (i = 0; i < 3; i++)
			llm_case_compare(c, &s[i], s[i].nr_new);
	}
	for (i = 0; i < 3; i++)
		llm_seq_close(&s[i]);
	llm_engine_close(&e);
}

static void mixed_batches_give_the_logits_of_plain_arrays(void **state)
{
	(void)state;
	llm_over_everything(cases, one_batch);
}

/*
 * A slot that holds a part of the history only: it comes in tiles, some of them of two requests, and new rows
 * in the last. Slots of 96 rows: a tile is 64, or 64 and the beginning of the next request.
 */
static void one_tiled(struct llm_case *c, const struct llm_config *config)
{
	struct llm_config tiled = *config;
	uint32_t most = 0, round, i;
	struct llm_engine e;
	struct llm_seq s[2];

	tiled.slot_tokens = 96;
	tiled.step_flags = OMNIKV_STEP_F_TILES;
	llm_engine_open(&e, &tiled);
	for (i = 0; i < 2; i++)
		llm_seq_open(&e, &s[i], c->tokens, 0, c->nr_tokens, 40);
	for (round = 0; round < 7; round++) {
		for (i = 0; i < 2; i++) {
			uint64_t left = c->nr_tokens - s[i].nr_done;

			s[i].nr_new = i == 0 ? 20 : 1 + round;
			if (s[i].nr_new > left)
				s[i].nr_new = (uint32_t)left;
			memcpy(s[i].tokens, c->tokens, c->nr_tokens * sizeof(*c->tokens));
		}
		assert_int_equal(llm_step(&e, s, s[0].nr_new ? 2 : 1, NULL, NULL, NULL), 0);
		for (i = 0; i < 2; i++)
			llm_case_compare(c, &s[i], s[i].nr_new);
		if (e.nr_tiles > most)
			most = e.nr_tiles;
		assert_true(llm_seq_commit(&e, &s[0], false) >= 0);
	}
	assert_true(most >= 3);
	for (i = 0; i < 2; i++)
		llm_seq_close(&s[i]);
	/* What tiles read is checked block by block as ever. */
	llm_seq_open(&e, &s[0], c->tokens, 128, c->nr_tokens, 40);
	/* A state is there only where a step ended with a block. */
	assert_int_equal(s[0].nr_done, c == &cases[LLM_CASE_HYBRID] ? 80 : 128);
	advance(&e, c, &s[0], 10);
	llm_seq_close(&s[0]);
	llm_engine_close(&e);
}

static void history_in_tiles_gives_the_logits_of_plain_arrays(void **state)
{
	(void)state;
	llm_over_everything(cases, one_tiled);
}

struct abort_at {
	struct llm_seq	*seq;
	uint32_t	layer;
};

static void abort_hook(void *arg, struct omnikv_step *step, uint32_t layer)
{
	struct abort_at *at = arg;

	if (layer != at->layer)
		return;
	assert_int_equal(omnikv_seq_abort(step, at->seq->seq), 0);
	omnikv_seq_close(at->seq->seq);
	at->seq->seq = NULL;
}

/*
 * Preemption and abort at random steps: a request is closed, with or without what it had being committed,
 * and comes back by its prefix; or it is aborted in the middle of a step, its memory going to others while
 * copies are late, and starts again.
 */
static void one_preemption(struct llm_case *c, const struct llm_config *config)
{
	struct llm_config small = *config;
	uint64_t seed = 42, nr_aborts = 0, nr_preempted = 0;
	struct llm_engine e;
	struct llm_seq s[2];
	uint32_t i, round;

	/* Little more than two requests need, so that what is given up is used again at once. */
	small.pool_spec = c->model.shape.nr_layers > 4 ? "900K" : "400K";
	llm_engine_open(&e, &small);
	for (i = 0; i < 2; i++)
		llm_seq_open(&e, &s[i], c->tokens, 0, c->nr_tokens, 40);
	for (round = 0; round < 40; round++) {
		struct abort_at at = { .seq = &s[next_random(&seed) % 2], .layer = UINT32_MAX };

		for (i = 0; i < 2; i++) {
			uint64_t left = c->nr_tokens - s[i].nr_done;

			if (left == 0 || next_random(&seed) % 6 == 0) {
				nr_preempted++;
				if (next_random(&seed) % 2)
					assert_true(llm_seq_commit(&e, &s[i], next_random(&seed) % 2) >= 0);
				llm_seq_close(&s[i]);
				llm_seq_open(&e, &s[i], c->tokens, next_random(&seed) % c->nr_tokens, c->nr_tokens, 40);
				left = c->nr_tokens - s[i].nr_done;
			}
			s[i].nr_new = 1 + (uint32_t)(next_random(&seed) % 30);
			if (s[i].nr_new > left)
				s[i].nr_new = (uint32_t)left;
			memcpy(s[i].tokens, c->tokens, c->nr_tokens * sizeof(*c->tokens));
		}
		if (next_random(&seed) % 3 == 0)
			at.layer = (uint32_t)(next_random(&seed) % c->model.shape.nr_layers);
		assert_int_equal(llm_step(&e, s, 2, NULL, abort_hook, &at), 0);
		for (i = 0; i < 2; i++) {
			if (s[i].seq) {
				llm_case_compare(c, &s[i], s[i].nr_new);
				continue;
			}
			nr_aborts++;
			llm_seq_close(&s[i]);
			llm_seq_open(&e, &s[i], c->tokens, next_random(&seed) % c->nr_tokens, c->nr_tokens, 40);
		}
	}
	assert_true(nr_aborts > 3 && nr_preempted > 3);
	for (i = 0; i < 2; i++)
		llm_seq_close(&s[i]);
	llm_engine_close(&e);
}

static void preemption_and_abort_change_no_logits(void **state)
{
	(void)state;
	llm_over_everything(cases, one_preemption);
}

/* What is wrong must be seen: one bit of KV in the pool changes the logits. */
static void one_flipped_bit(struct llm_case *c, const struct llm_config *config)
{
	struct llm_config blind = *config;
	struct omnikv_piece piece[16];
	uint32_t vocab = c->model.shape.vocab;
	struct llm_engine e;
	struct llm_seq s;
	uint8_t *at;

	blind.verify = false;
	llm_engine_open(&e, &blind);
	llm_seq_open(&e, &s, c->tokens, 0, c->nr_tokens, 64);
	advance(&e, c, &s, 64);
	assert_true(omnikv_seq_pieces(s.seq, llm_group(&c->model, c->model.shape.nr_layers - 1), 0, 0, 48, 64, 0, piece, 16) > 0);
	at = (uint8_t *)omnikv_pool_addr(e.pool, &piece[0].extent) + piece[0].extent_off;
	at[2] ^= 0x40;
	s.nr_new = 1;
	s.tokens[64] = c->tokens[64];
	assert_int_equal(llm_step(&e, &s, 1, NULL, NULL, NULL), 0);
	assert_true(memcmp(s.logits, c->logits + 64 * vocab, vocab * sizeof(float)) != 0);
	llm_seq_close(&s);
	llm_engine_close(&e);
}

static void one_flipped_bit_of_history_changes_the_logits(void **state)
{
	(void)state;
	llm_over_everything(cases, one_flipped_bit);
}

static void the_trained_model_is_there(void **state)
{
	(void)state;
	if (cases[LLM_CASE_STORIES].is_absent)
		skip();
}

static int make(void **state)
{
	(void)state;
	llm_cases_make(cases);
	return 0;
}

static int drop(void **state)
{
	(void)state;
	llm_cases_free(cases);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_trained_model_is_there),
		cmocka_unit_test(chunked_prefill_gives_the_logits_of_plain_arrays),
		cmocka_unit_test(greedy_decode_from_the_host_writes_the_same_text),
		cmocka_unit_test(a_prefix_hit_gives_the_logits_of_plain_arrays),
		cmocka_unit_test(mixed_batches_give_the_logits_of_plain_arrays),
		cmocka_unit_test(history_in_tiles_gives_the_logits_of_plain_arrays),
		cmocka_unit_test(preemption_and_abort_change_no_logits),
		cmocka_unit_test(one_flipped_bit_of_history_changes_the_logits),
	};

	return cmocka_run_group_tests(tests, make, drop);
}

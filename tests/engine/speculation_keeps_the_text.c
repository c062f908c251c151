// SPDX-License-Identifier: GPL-2.0-only
/*
 * Speculative decoding with a draft model: what is accepted has the logits of plain arrays, to the bit.
 *
 * The draft model is the target's first layers; its KV lives in a pool of its own and is rolled back with
 * the target's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/harness/llm_case.h"

#define NR_DRAFTS 4u

static struct llm_case cases[LLM_NR_CASES];
static uint64_t nr_accepted, nr_drafted;

/* @nr tokens behind those of @s, by the draft model. */
static void draft(struct llm_engine *e, struct llm_seq *s, uint32_t nr)
{
	uint32_t vocab = e->config.model->shape.vocab, i;
	uint64_t known = s->nr_done + s->nr_new;

	for (i = 0; i < nr; i++) {
		assert_int_equal(llm_step(e, s, 1, NULL, NULL, NULL), 0);
		s->tokens[known + i] = llm_argmax(s->logits + (size_t)(s->nr_new - 1) * vocab, vocab);
		s->nr_new = 1;
	}
}

/* Drafts that the target would have chosen itself. */
static uint32_t accept(const struct llm_seq *s, const uint32_t *drafts, uint32_t nr, uint32_t vocab)
{
	uint32_t i;

	for (i = 0; i < nr && llm_argmax(s->logits + (size_t)i * vocab, vocab) == drafts[i]; i++)
		;
	return i;
}

/*
 * Drafts are verified on a fork. All accepted: the fork goes on. Else it is cut back, or, where a state cannot
 * be, dropped, and the original computes what was accepted.
 */
static void one_fork(struct llm_case *c, const struct llm_config *config)
{
	bool has_state = c == &cases[LLM_CASE_HYBRID];
	struct llm_config draft_config = *config;
	uint32_t vocab = c->model.shape.vocab, i, n;
	struct llm_engine target, drafter;
	struct llm_model small;
	struct llm_seq t, d, f;
	uint64_t at;

	llm_model_cut(&small, &c->model, c->model.shape.nr_layers - 1);
	draft_config.model = &small;
	llm_engine_open(&target, config);
	llm_engine_open(&drafter, &draft_config);
	llm_seq_open(&target, &t, c->tokens, 0, c->nr_tokens + NR_DRAFTS + 1, 80);
	llm_seq_open(&drafter, &d, c->tokens, 0, c->nr_tokens + NR_DRAFTS + 1, 80);
	memcpy(t.tokens, c->tokens, c->nr_prompt * sizeof(*c->tokens));
	if (c->nr_prompt > 1) {
		t.nr_new = (uint32_t)c->nr_prompt - 1;
		assert_int_equal(llm_step(&target, &t, 1, NULL, NULL, NULL), 0);
	}
	/* Token @at is known and has not been through the target. */
	for (at = c->nr_prompt - 1; at + NR_DRAFTS < c->nr_tokens; at += n + 1) {
		memcpy(d.tokens, t.tokens, (at + 1) * sizeof(*t.tokens));
		if (d.nr_done > at)
			llm_seq_truncate(&d, has_state ? 0 : at);
		d.nr_new = (uint32_t)(at + 1 - d.nr_done);
		while (d.nr_new > 80) {
			uint32_t all = d.nr_new;

			d.nr_new = 80;
			assert_int_equal(llm_step(&drafter, &d, 1, NULL, NULL, NULL), 0);
			d.nr_new = all - 80;
		}
		draft(&drafter, &d, NR_DRAFTS);

		llm_seq_fork(&target, &f, &t, 80);
		memcpy(f.tokens + at + 1, d.tokens + at + 1, NR_DRAFTS * sizeof(*d.tokens));
		f.nr_new = NR_DRAFTS + 1;
		f.lane = OMNIKV_LANE_VERIFY;
		assert_int_equal(llm_step(&target, &f, 1, NULL, NULL, NULL), 0);
		n = accept(&f, f.tokens + at + 1, NR_DRAFTS, vocab);
		nr_drafted += NR_DRAFTS;
		nr_accepted += n;
		/* Logits after the accepted ones are the reference's; the last of them names the next token. */
		for (i = 0; i <= n; i++) {
			if (memcmp(f.logits + (size_t)i * vocab, c->logits + (at + i) * vocab, vocab * sizeof(float)))
				fail_msg("%s: logits after token %llu differ", c->name, (unsigned long long)(at + i));
		}
		f.tokens[at + n + 1] = llm_argmax(f.logits + (size_t)n * vocab, vocab);
		if (has_state && n < NR_DRAFTS) {
			memcpy(t.tokens, f.tokens, (at + n + 2) * sizeof(*f.tokens));
			llm_seq_close(&f);
			t.nr_new = n + 1;
			assert_int_equal(llm_step(&target, &t, 1, NULL, NULL, NULL), 0);
			llm_case_compare(c, &t, n + 1);
		} else {
			llm_seq_truncate(&f, at + n + 1);
			llm_seq_close(&t);
			t = f;
		}
		assert_int_equal(t.nr_done, at + n + 1);
		assert_memory_equal(t.tokens, c->tokens,
				    (at + n + 2 < c->nr_tokens ? at + n + 2 : c->nr_tokens) * sizeof(*c->tokens));
		assert_true(llm_seq_commit(&target, &t, false) >= 0);
	}
	llm_seq_close(&t);
	llm_seq_close(&d);
	llm_engine_close(&target);
	llm_engine_close(&drafter);
}

static void forked_and_rolled_back_drafts_keep_the_text(void **state)
{
	(void)state;
	nr_accepted = nr_drafted = 0;
	llm_over_everything(cases, one_fork);
	print_message("# %llu of %llu drafts accepted\n", (unsigned long long)nr_accepted, (unsigned long long)nr_drafted);
	assert_true(nr_accepted > 0 && nr_accepted < nr_drafted);
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
		cmocka_unit_test(forked_and_rolled_back_drafts_keep_the_text),
	};

	return cmocka_run_group_tests(tests, make, drop);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Speculative decoding: what is accepted has the logits of plain arrays, to the bit.
 *
 * Drafts on a fork come from a draft model, the target's first layers, whose KV lives in a pool of its own
 * and is rolled back with the target's. Drafts that the pipe keeps in HBM are right or wrong by chance, in
 * chains and in trees, so that every count of accepted ones occurs.
 */
#include <errno.h>
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

static uint64_t next_random(uint64_t *seed)
{
	uint64_t z = *seed += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

/* Nodes of a tree of drafts: the pending token, then @width at each of @depth levels; some are what will follow. */
static uint32_t tree_make(const struct llm_case *c, uint64_t at, uint32_t width, uint32_t depth, uint64_t *seed,
			  uint32_t *tokens, uint32_t *parent)
{
	uint32_t nr = 1, d, w;

	tokens[0] = c->tokens[at];
	parent[0] = LLM_TREE_ROOT;
	for (d = 1; d <= depth; d++) {
		for (w = 0; w < width; w++, nr++) {
			tokens[nr] = next_random(seed) % 3 ? c->tokens[at + d] :
				     (uint32_t)(next_random(seed) % c->model.shape.vocab);
			parent[nr] = d == 1 ? 0 : nr - w - 1 - (uint32_t)(next_random(seed) % width);
		}
	}
	return nr;
}

/* Nodes from the root on that the target would have chosen. */
static uint32_t tree_walk(const struct llm_seq *s, uint32_t vocab, uint32_t *path)
{
	uint32_t nr = 1, i;

	path[0] = 0;
	for (i = 1; i < s->nr_new; i++) {
		uint32_t want = llm_argmax(s->logits + (size_t)path[nr - 1] * vocab, vocab);

		if (s->parent[i] == path[nr - 1] && s->tokens[s->nr_done + i] == want)
			path[nr++] = i;
	}
	return nr;
}

struct on_device {
	struct llm_engine	*engine;
	struct llm_seq		*seq;
	uint32_t		*counts;	/* [2] of the device */
	bool			is_wanted;
};

/* The "kernel" that samples: how many of the chain are what it would choose. */
static void count_run(void *arg)
{
	struct on_device *d = arg;
	uint32_t vocab = d->engine->config.model->shape.vocab, i;
	float *logits = calloc(vocab, sizeof(*logits));

	for (i = 0; i < d->seq->nr_new - 1; i++) {
		llm_logits(d->engine->config.model, &d->seq->act, i, logits);
		if (llm_argmax(logits, vocab) != d->seq->tokens[d->seq->nr_done + i + 1])
			break;
	}
	free(logits);
	d->counts[0] = i + 1;
	d->counts[1] = 77;
}

static void count_hook(void *arg, struct omnikv_step *step, uint32_t layer)
{
	struct on_device *d = arg;

	if (!d->is_wanted || layer != d->engine->layout.nr_layers - 1)
		return;
	assert_int_equal(omnikv_stream_launch(d->engine->stream, 0, count_run, d), 0);
	assert_int_equal(omnikv_drafts_accept_on_device(step, d->counts, d->engine->stream), 0);
}

static void one_kept(struct llm_case *c, const struct llm_config *config)
{
	struct omnikv_device_info before = { .size = sizeof(before) }, after = { .size = sizeof(after) };
	struct llm_config kept = *config;
	uint32_t vocab = c->model.shape.vocab, parent[16], path[16], n, i, round = 0;
	struct on_device on_device = { 0 };
	struct omnikv_hbm *count_hbm;
	uint64_t seed = 7, counts[16] = { 0 };
	struct llm_engine e;
	struct llm_seq s[2];

	kept.draft_tokens = 16;
	llm_engine_open(&e, &kept);
	llm_seq_open(&e, &s[0], c->tokens, 0, c->nr_tokens + 16, 80);
	llm_seq_open(&e, &s[1], c->tokens, 0, c->nr_tokens + 16, 80);
	if (c->nr_prompt > 1) {
		memcpy(s[0].tokens, c->tokens, c->nr_prompt * sizeof(*c->tokens));
		s[0].nr_new = (uint32_t)c->nr_prompt - 1;
		assert_int_equal(llm_step(&e, s, 1, NULL, NULL, NULL), 0);
	}
	on_device.engine = &e;
	on_device.seq = &s[0];
	assert_int_equal(omnikv_hbm_create(e.dev, 2 * sizeof(*on_device.counts), &count_hbm), 0);
	on_device.counts = omnikv_hbm_ptr(count_hbm);
	while (s[0].nr_done + 5 < c->nr_tokens) {
		uint64_t at = s[0].nr_done;
		bool is_tree = round % 3 == 1;

		on_device.is_wanted = round++ % 3 == 2;
		s[0].nr_new = tree_make(c, at, is_tree ? 3 : 1, 4, &seed, s[0].tokens + at, parent);
		s[0].parent = parent;
		s[0].lane = OMNIKV_LANE_VERIFY;
		/* Another request's rows are stored in the same step. */
		memcpy(s[1].tokens, c->tokens, c->nr_tokens * sizeof(*c->tokens));
		s[1].nr_new = s[1].nr_done < c->nr_tokens ? 1 : 0;
		assert_int_equal(omnikv_device_info(e.dev, &before), 0);
		assert_int_equal(llm_step(&e, s, round % 2 && s[1].nr_new ? 2 : 1, NULL, count_hook, &on_device), 0);
		assert_int_equal(omnikv_device_info(e.dev, &after), 0);
		if (round % 2 && s[1].nr_new)
			llm_case_compare(c, &s[1], 1);
		else
			assert_int_equal(after.d2h_bytes, before.d2h_bytes);
		/* Nothing of a draft is published. */
		s[0].nr_done += s[0].nr_new;
		if (s[0].nr_done / 16 > at / 16)
			assert_int_equal(llm_seq_commit(&e, &s[0], false), -EIO);
		s[0].nr_done = at;

		n = tree_walk(&s[0], vocab, path);
		counts[n]++;
		for (i = 0; i < n; i++) {
			if (memcmp(s[0].logits + (size_t)path[i] * vocab, c->logits + (at + i) * vocab, vocab * sizeof(float)))
				fail_msg("%s: logits after token %llu differ", c->name, (unsigned long long)(at + i));
		}
		if (on_device.is_wanted) {
			uint32_t results[2] = { 0 };

			assert_int_equal(omnikv_drafts_reconcile(e.pipe, results), 0);
			assert_int_equal(results[0], n);
			assert_int_equal(results[1], 0);
		} else {
			uint32_t twice[2] = { 1, 1 }, beyond = s[0].nr_new;

			assert_int_equal(omnikv_drafts_commit(e.pipe, s[0].seq, twice, 2), -EINVAL);
			assert_int_equal(omnikv_drafts_commit(e.pipe, s[0].seq, &beyond, 1), -EINVAL);
			assert_int_equal(omnikv_drafts_commit(e.pipe, s[0].seq, path, n), 0);
		}
		assert_int_equal(omnikv_drafts_commit(e.pipe, s[0].seq, path, n), -ENOENT);
		s[0].nr_done += n;
		assert_int_equal(omnikv_seq_tokens(s[0].seq), s[0].nr_done);
		for (i = 0; i < n; i++)
			s[0].tokens[at + i] = c->tokens[at + i];
		assert_true(llm_seq_commit(&e, &s[0], false) >= 0);
	}
	for (n = 1; n <= 4; n++)
		assert_true(counts[n] > 0);
	s[0].parent = NULL;
	s[0].lane = OMNIKV_LANE_DECODE;
	s[0].nr_new = 1;
	s[0].tokens[s[0].nr_done] = c->tokens[s[0].nr_done];
	assert_int_equal(llm_step(&e, s, 1, NULL, NULL, NULL), 0);
	llm_case_compare(c, &s[0], 1);
	llm_seq_close(&s[0]);
	llm_seq_close(&s[1]);
	assert_int_equal(omnikv_hbm_destroy(count_hbm), 0);
	llm_engine_close(&e);
}

static void drafts_kept_in_hbm_keep_the_text_and_reach_the_host_when_accepted(void **state)
{
	(void)state;
	llm_over_everything(cases, one_kept);
}

/* A copy of drafts that fails fails its step, and a gather that fails its commit; nothing else is lost. */
static void one_failure(struct llm_case *c, const struct llm_config *config)
{
	static const uint32_t chain[] = { 0, 1, 2 };
	struct llm_config kept = *config;
	uint32_t nth, nr_failed = 0, nr_ops = 2 * c->model.shape.nr_layers;
	struct omnikv_step_error error = { 0 };
	struct llm_engine e;
	struct llm_seq s;
	int ret;

	if (strncmp(config->device, "sim", 3))
		return;
	kept.draft_tokens = 3;
	llm_engine_open(&e, &kept);
	llm_seq_open(&e, &s, c->tokens, 0, c->nr_tokens, 70);
	memcpy(s.tokens, c->tokens, c->nr_tokens * sizeof(*c->tokens));
	s.nr_new = 50;
	assert_int_equal(llm_step(&e, &s, 1, NULL, NULL, NULL), 0);
	/* None accepted, twice: what was there, a state in the same block too, is as it was. */
	for (nth = 0; nth < 2; nth++) {
		s.lane = OMNIKV_LANE_VERIFY;
		s.nr_new = 3;
		assert_int_equal(llm_step(&e, &s, 1, NULL, NULL, NULL), 0);
		s.nr_done = 53;
		llm_case_compare(c, &s, 3);
		s.nr_done = 50;
		assert_int_equal(omnikv_drafts_commit(e.pipe, s.seq, chain, 0), 0);
	}
	s.lane = OMNIKV_LANE_PREFILL;
	s.nr_new = 12;
	assert_int_equal(llm_step(&e, &s, 1, NULL, NULL, NULL), 0);
	llm_case_compare(c, &s, 12);
	s.lane = OMNIKV_LANE_VERIFY;
	s.nr_new = 3;
	for (nth = 1; nth <= nr_ops; nth++) {
		assert_int_equal(omnikv_device_fail_next(e.dev, nth, -EIO), 0);
		ret = llm_step(&e, &s, 1, &error, NULL, NULL);
		/* A transfer that failed after all of its pieces had arrived costs nothing. */
		assert_true(ret == 0 || (ret == -EIO && error.first_lost_token <= 62));
		nr_failed += ret == -EIO;
		assert_int_equal(omnikv_drafts_commit(e.pipe, s.seq, chain, ret ? 3 : 0), ret ? -ENOENT : 0);
		assert_int_equal(omnikv_seq_tokens(s.seq), 62);
	}
	assert_true(nr_failed >= 2);
	assert_int_equal(llm_step(&e, &s, 1, NULL, NULL, NULL), 0);
	assert_int_equal(omnikv_device_fail_next(e.dev, 1, -EIO), 0);
	/* As above, but that the whole commit counts. */
	assert_int_equal(omnikv_drafts_commit(e.pipe, s.seq, chain, 3), -EIO);
	assert_int_equal(omnikv_seq_tokens(s.seq), 62);
	/* More drafts than there is room for. */
	s.nr_new = 4;
	assert_int_equal(llm_step(&e, &s, 1, NULL, NULL, NULL), -ENOSPC);
	s.nr_new = 3;
	assert_int_equal(llm_step(&e, &s, 1, NULL, NULL, NULL), 0);
	s.nr_done = 65;
	llm_case_compare(c, &s, 3);
	assert_int_equal(omnikv_drafts_commit(e.pipe, s.seq, chain, 2), 0);
	s.nr_done = 64;
	assert_true(llm_seq_commit(&e, &s, false) == 4);
	s.lane = OMNIKV_LANE_DECODE;
	s.nr_new = 1;
	assert_int_equal(llm_step(&e, &s, 1, NULL, NULL, NULL), 0);
	llm_case_compare(c, &s, 1);
	llm_seq_close(&s);
	llm_engine_close(&e);
}

static void a_failed_transfer_of_drafts_costs_no_more_than_the_drafts(void **state)
{
	(void)state;
	llm_over_everything(cases, one_failure);
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
		cmocka_unit_test(drafts_kept_in_hbm_keep_the_text_and_reach_the_host_when_accepted),
		cmocka_unit_test(a_failed_transfer_of_drafts_costs_no_more_than_the_drafts),
		cmocka_unit_test(forked_and_rolled_back_drafts_keep_the_text),
	};

	return cmocka_run_group_tests(tests, make, drop);
}

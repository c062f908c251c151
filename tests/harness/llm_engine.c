/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The engine around the small transformer: set-up, requests and their keys, kernels, one step.
 *
 * What it promises stands in llm_engine.h. Kernels run when the stream gets to them, on the simulated
 * device inside a poll; what they need lives until the step's end. One thread.
 */
#include "llm_engine.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ring_fixture.h"

void llm_engine_open(struct llm_engine *e, const struct llm_config *config)
{
	struct omnikv_plan_config pc = { .size = sizeof(pc), .block_tokens = config->block_tokens, .granule_bytes = 4096 };
	struct omnikv_pool_config poc = { .size = sizeof(poc), .flags = OMNIKV_POOL_F_NO_POPULATE };
	struct omnikv_namespace ns = { .size = sizeof(ns), .tenant = "llm", .weights = "llm", .layout = &e->layout };
	struct omnikv_pipe_config pic = { .size = sizeof(pic), .nr_slots = config->nr_slots,
					  .slot_tokens = config->slot_tokens, .verify = config->verify,
					  .page_rows = config->page_rows, .draft_tokens = config->draft_tokens,
					  .flags = config->pipe_flags };
	struct omnikv_ring_config rc = { .size = sizeof(rc), .entries = 256, .cq_entries = 1024 };
	struct omnikv_manager_config mc = { .size = sizeof(mc), .spill = config->spill };
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_error err = { "" };

	memset(e, 0, sizeof(*e));
	e->config = *config;
	e->config.device_config.size = sizeof(e->config.device_config);
	llm_layout(config->model, "llm", &e->layout);
	assert_int_equal(omnikv_plan_make(&e->layout, &pc, &e->plan, &err), 0);
	ns.block_tokens = e->plan.block_tokens;
	assert_int_equal(omnikv_pool_open(config->pool_spec, &poc, &e->pool, &err), 0);
	assert_int_equal(omnikv_client_open(e->pool, OMNIKV_CLIENT_F_MANAGER, &e->client), 0);
	assert_int_equal(omnikv_manager_create(e->client, &mc, &e->manager, &err), 0);
	assert_int_equal(omnikv_space_open(e->manager, &ns, &e->plan, &e->space, &err), 0);
	fixture_device(config->device);
	assert_int_equal(omnikv_device_open(config->device, &e->config.device_config, &e->dev, &err), 0);
	assert_int_equal(omnikv_stream_create(e->dev, &e->stream), 0);
	assert_int_equal(omnikv_ring_init(e->client, e->dev, &rc, &e->ring, &err), 0);
	assert_int_equal(omnikv_hbm_create(e->dev, omnikv_pipe_hbm_bytes(&e->plan, &pic), &e->hbm), 0);
	assert_int_equal(omnikv_pipe_create(e->space, e->ring, e->hbm, &pic, &e->pipe, &err), 0);
	assert_int_equal(omnikv_pool_info(e->pool, &info), 0);
	e->free_bytes = info.free_bytes;
}

void llm_engine_close(struct llm_engine *e)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_error err = { "" };

	omnikv_pipe_destroy(e->pipe);
	assert_int_equal(omnikv_hbm_destroy(e->hbm), 0);
	omnikv_ring_exit(e->ring);
	omnikv_stream_destroy(e->stream);
	assert_int_equal(omnikv_device_close(e->dev), 0);
	assert_int_equal(omnikv_manager_check(e->manager, &err), 0);
	omnikv_space_close(e->space);
	assert_int_equal(omnikv_manager_destroy(e->manager), 0);
	assert_int_equal(omnikv_pool_info(e->pool, &info), 0);
	assert_int_equal(info.free_bytes, e->free_bytes);
	omnikv_client_close(e->client);
	omnikv_pool_close(e->pool);
}

/* ---- sequences ------------------------------------------------------------------------------ */

/* Keys of the full blocks of @tokens and, in [*nr_keys], of the tail behind them: each names its whole prefix. */
static struct omnikv_key *keys_of(const struct llm_engine *e, const uint32_t *tokens, uint64_t nr_tokens, size_t *nr_keys)
{
	uint64_t hash[2] = { 0x243f6a8885a308d3ull, 0x13198a2e03707344ull }, raw[3], t;
	struct omnikv_key *keys;

	*nr_keys = nr_tokens / e->plan.block_tokens;
	keys = calloc(*nr_keys + 1, sizeof(*keys));
	assert_non_null(keys);
	for (t = 0; t < nr_tokens; t++) {
		hash[0] = (hash[0] ^ tokens[t]) * 0x100000001b3ull;
		hash[1] = (hash[1] + tokens[t] + 1) * 0x9e3779b97f4a7c15ull;
		hash[1] ^= hash[1] >> 29;
		memcpy(raw, hash, sizeof(hash));
		raw[2] = t + 1;
		if ((t + 1) % e->plan.block_tokens == 0 || t + 1 == nr_tokens)
			assert_int_equal(omnikv_key_init(&keys[t / e->plan.block_tokens], raw, sizeof(raw)), 0);
	}
	return keys;
}

static void seq_init(struct llm_engine *e, struct llm_seq *seq, const uint32_t *tokens, uint64_t nr_tokens, uint64_t max,
		     uint32_t max_new)
{
	memset(seq, 0, sizeof(*seq));
	seq->max = max;
	seq->tokens = calloc(max, sizeof(*seq->tokens));
	seq->logits = calloc((size_t)max_new * e->config.model->shape.vocab, sizeof(float));
	assert_non_null(seq->tokens);
	assert_non_null(seq->logits);
	memcpy(seq->tokens, tokens, nr_tokens * sizeof(*tokens));
	llm_act_init(&seq->act, e->config.model, max_new);
}

void llm_seq_open(struct llm_engine *e, struct llm_seq *seq, const uint32_t *tokens, uint64_t nr_tokens, uint64_t max,
		  uint32_t max_new)
{
	struct omnikv_key *keys;
	size_t nr_keys;

	seq_init(e, seq, tokens, nr_tokens, max, max_new);
	keys = keys_of(e, tokens, nr_tokens, &nr_keys);
	assert_int_equal(omnikv_seq_open(e->space, keys, nr_keys, nr_tokens % e->plan.block_tokens ? &keys[nr_keys] : NULL,
					 &seq->seq), 0);
	free(keys);
	seq->nr_done = omnikv_seq_tokens(seq->seq);
}

void llm_seq_fork(struct llm_engine *e, struct llm_seq *seq, struct llm_seq *from, uint32_t max_new)
{
	seq_init(e, seq, from->tokens, from->max, from->max, max_new);
	seq->nr_done = from->nr_done;
	assert_int_equal(omnikv_seq_fork(from->seq, &seq->seq), 0);
}

void llm_seq_close(struct llm_seq *seq)
{
	omnikv_seq_close(seq->seq);
	free(seq->tokens);
	free(seq->logits);
	llm_act_free(&seq->act);
	memset(seq, 0, sizeof(*seq));
}

int64_t llm_seq_commit(struct llm_engine *e, struct llm_seq *seq, bool with_tail)
{
	struct omnikv_key *keys;
	size_t nr_keys;
	int64_t ret;

	keys = keys_of(e, seq->tokens, seq->nr_done, &nr_keys);
	ret = omnikv_seq_commit(seq->seq, keys, nr_keys,
				with_tail && seq->nr_done % e->plan.block_tokens ? &keys[nr_keys] : NULL);
	free(keys);
	return ret;
}

void llm_seq_truncate(struct llm_seq *seq, uint64_t nr_tokens)
{
	assert_int_equal(omnikv_seq_truncate(seq->seq, nr_tokens), 0);
	seq->nr_done = nr_tokens;
}

/* ---- a step --------------------------------------------------------------------------------- */

/* What the kernel of one tile of one layer needs when its stream gets there. */
struct kernel {
	struct kernel		*next;
	struct llm_engine	*engine;
	struct llm_seq		*seqs;
	struct omnikv_view	view;
};

static void kernel_state(const struct llm_model *model, struct llm_seq *s, uint32_t layer,
			 const struct omnikv_group_view *gv, uint32_t i)
{
	uint8_t *rows = gv->planes[0].rows;
	uint64_t n = gv->planes[0].row_bytes;
	void **out;

	if (gv->new_row[i] == OMNIKV_ROW_NONE)
		return;
	out = calloc(s->nr_new, sizeof(*out));
	assert_non_null(out);
	/* One row: the state at the end. One more than there are new tokens: the state after each. */
	out[s->nr_new - 1] = rows + gv->new_row[i] * n;
	for (uint32_t t = 0; gv->nr_rows[i] > 1 && t < s->nr_new; t++)
		out[t] = rows + (gv->new_row[i] + t) * n;
	llm_layer_state(model, layer, &s->act, rows + gv->cu_kv[i] * n, out);
	free(out);
}

static void kernel_attend(const struct llm_model *model, struct llm_seq *s, uint32_t layer,
			  const struct omnikv_group_view *gv, uint32_t i)
{
	const void *rows[2] = { NULL, NULL };
	uint32_t p;

	if (!gv->nr_rows[i])
		return;
	for (p = 0; p < gv->nr_planes; p++) {
		uint64_t n = gv->planes[p].row_bytes;

		if (gv->new_row[i] != OMNIKV_ROW_NONE)
			memcpy((uint8_t *)gv->planes[p].rows + gv->new_row[i] * n, s->act.rows[p], s->nr_new * n);
		rows[p] = (uint8_t *)gv->planes[p].rows + gv->cu_kv[i] * n;
	}
	llm_layer_attend(model, layer, &s->act, rows, gv->first[i], gv->nr_rows[i]);
}

static void kernel_run(void *arg)
{
	struct kernel *k = arg;
	const struct llm_model *model = k->engine->config.model;
	uint32_t layer = k->view.layer;

	/* Each layer is in one group. */
	for (uint32_t i = 0; i < k->view.nr_seqs; i++) {
		struct llm_seq *s = &k->seqs[i];

		if (!s->seq)
			continue;
		if (layer == 0 && k->view.tile == 0)
			llm_embed(model, &s->act, s->tokens + s->nr_done, s->nr_new, s->nr_done);
		if (k->view.tile == 0)
			llm_layer_begin(model, layer, &s->act);
		if (model->shape.kinds[layer] == LLM_STATE)
			kernel_state(model, s, layer, &k->view.groups[0], i);
		else
			kernel_attend(model, s, layer, &k->view.groups[0], i);
		if (k->view.tile == k->view.nr_tiles - 1)
			llm_layer_finish(model, layer, &s->act);
	}
}

/* Room for the new tokens of all sequences, or of none. */
static int step_append(struct llm_seq *seqs, uint32_t nr_seqs)
{
	uint32_t i;
	int ret = 0;

	for (i = 0; i < nr_seqs && !ret; i++)
		ret = omnikv_seq_append(seqs[i].seq, seqs[i].nr_new);
	if (ret) {
		for (i--; i--; )
			assert_int_equal(omnikv_seq_truncate(seqs[i].seq, seqs[i].nr_done), 0);
	}
	return ret;
}

static struct kernel *kernel_add(struct llm_engine *e, struct llm_seq *seqs, struct kernel **list)
{
	struct kernel *k = calloc(1, sizeof(*k));

	assert_non_null(k);
	k->next = *list;
	k->engine = e;
	k->seqs = seqs;
	*list = k;
	return k;
}

static int step_layers(struct llm_engine *e, struct llm_seq *seqs, struct omnikv_step *step, struct kernel **list,
		       llm_hook hook, void *arg)
{
	struct omnikv_view view;
	int ret = 0;

	for (uint32_t l = 0; l < e->layout.nr_layers && !ret; l++) {
		ret = omnikv_layer_acquire(step, l, e->stream, &view);
		e->nr_tiles = view.nr_tiles;
		while (!ret) {
			struct kernel *k = kernel_add(e, seqs, list);

			k->view = view;
			ret = omnikv_stream_launch(e->stream, e->config.layer_ns, kernel_run, k);
			if (ret || view.tile == view.nr_tiles - 1)
				break;
			ret = omnikv_view_next_tile(step, e->stream, &view);
			ret = ret == 1 ? 0 : ret ? ret : -ECANCELED;
		}
		if (!ret)
			ret = omnikv_layer_release(step, l, e->stream);
		if (!ret && hook)
			hook(arg, step, l);
	}
	return ret;
}

int llm_step(struct llm_engine *e, struct llm_seq *seqs, uint32_t nr_seqs, struct omnikv_step_error *error,
	     llm_hook hook, void *arg)
{
	const struct llm_model *model = e->config.model;
	struct omnikv_step_seq *ss;
	struct omnikv_step *step;
	struct kernel *kernels = NULL;
	uint32_t i, t;
	int ret, end;

	ret = step_append(seqs, nr_seqs);
	if (ret)
		return ret;
	ss = calloc(nr_seqs, sizeof(*ss));
	assert_non_null(ss);
	for (i = 0; i < nr_seqs; i++) {
		ss[i] = (struct omnikv_step_seq){ .seq = seqs[i].seq, .hist_tokens = seqs[i].nr_done,
						  .new_tokens = seqs[i].nr_new, .lane = seqs[i].lane };
		seqs[i].act.parent = seqs[i].parent;
	}
	ret = omnikv_step_begin(e->pipe, ss, nr_seqs, e->config.step_flags, &step);
	if (!ret) {
		ret = step_layers(e, seqs, step, &kernels, hook, arg);
		end = omnikv_step_end(step, error);
		ret = end ? end : ret;
	}
	free(ss);
	while (kernels) {
		struct kernel *next = kernels->next;

		free(kernels);
		kernels = next;
	}
	for (i = 0; i < nr_seqs; i++) {
		if (!seqs[i].seq)
			continue;
		if (ret) {
			assert_int_equal(omnikv_seq_truncate(seqs[i].seq, seqs[i].nr_done), 0);
			continue;
		}
		if (!e->config.draft_tokens || seqs[i].lane != OMNIKV_LANE_VERIFY)
			seqs[i].nr_done += seqs[i].nr_new;
		for (t = 0; t < seqs[i].nr_new; t++)
			llm_logits(model, &seqs[i].act, t, seqs[i].logits + (size_t)t * model->shape.vocab);
	}
	return ret;
}

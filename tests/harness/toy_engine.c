/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The toy engine: set-up, known content, and one step through the layer pipeline.
 *
 * What it promises to a test stands in toy_engine.h. One engine is one thread's.
 */
#include "toy_engine.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "ring_fixture.h"

static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static uint8_t content(uint64_t row_seed, uint64_t byte)
{
	return (uint8_t)(mix(row_seed + byte / 8) >> byte % 8 * 8);
}

static uint64_t row_seed(uint64_t stream, uint32_t group, uint32_t layer, uint32_t plane, uint64_t entry)
{
	return mix(mix(mix(stream + 1) + ((uint64_t)group << 40 | (uint64_t)layer << 20 | plane)) + entry) * 0x9e3779b97f4a7c15ull;
}

void toy_engine_open(struct toy_engine *e, const struct toy_config *config)
{
	struct omnikv_plan_config pc = { .size = sizeof(pc), .block_tokens = config->block_tokens, .granule_bytes = 4096 };
	struct omnikv_pool_config poc = { .size = sizeof(poc), .flags = OMNIKV_POOL_F_NO_POPULATE };
	struct omnikv_namespace ns = { .size = sizeof(ns), .tenant = "toy", .weights = "toy", .layout = config->layout };
	struct omnikv_pipe_config pic = { .size = sizeof(pic), .nr_slots = config->nr_slots,
					  .slot_tokens = config->slot_tokens, .verify = config->verify,
					  .draft_tokens = config->draft_tokens, .deadline_ns = config->deadline_ns };
	struct omnikv_ring_config rc = { .size = sizeof(rc), .entries = 256, .cq_entries = 1024 };
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_error err = { "" };

	memset(e, 0, sizeof(*e));
	e->config = *config;
	e->config.device_config.size = sizeof(e->config.device_config);
	assert_int_equal(omnikv_plan_make(config->layout, &pc, &e->plan, &err), 0);
	ns.block_tokens = e->plan.block_tokens;
	assert_int_equal(omnikv_pool_open(config->pool_spec, &poc, &e->pool, &err), 0);
	assert_int_equal(omnikv_client_open(e->pool, OMNIKV_CLIENT_F_MANAGER, &e->client), 0);
	assert_int_equal(omnikv_manager_create(e->client, NULL, &e->manager, &err), 0);
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

void toy_engine_close(struct toy_engine *e)
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

struct omnikv_key toy_key(uint64_t stream, uint64_t nr_tokens)
{
	uint64_t raw[2] = { stream, nr_tokens };
	struct omnikv_key key;

	assert_int_equal(omnikv_key_init(&key, raw, sizeof(raw)), 0);
	return key;
}

static struct omnikv_key *full_keys(const struct toy_engine *e, uint64_t stream, uint64_t nr_tokens, size_t *nr_keys)
{
	struct omnikv_key *keys;
	size_t i;

	*nr_keys = nr_tokens / e->plan.block_tokens;
	keys = calloc(*nr_keys + 1, sizeof(*keys));
	assert_non_null(keys);
	for (i = 0; i < *nr_keys; i++)
		keys[i] = toy_key(stream, (i + 1) * e->plan.block_tokens);
	return keys;
}

void toy_seq_open(struct toy_engine *e, struct toy_seq *seq, uint64_t stream, uint64_t nr_tokens)
{
	struct omnikv_key tail = toy_key(stream, nr_tokens), *keys;
	size_t nr_keys;

	keys = full_keys(e, stream, nr_tokens, &nr_keys);
	memset(seq, 0, sizeof(*seq));
	seq->stream = stream;
	assert_int_equal(omnikv_seq_open(e->space, keys, nr_keys,
					 nr_tokens % e->plan.block_tokens ? &tail : NULL, &seq->seq), 0);
	free(keys);
}

int64_t toy_seq_commit(struct toy_engine *e, struct toy_seq *seq, bool with_tail)
{
	uint64_t nr_tokens = omnikv_seq_tokens(seq->seq);
	struct omnikv_key tail = toy_key(seq->stream, nr_tokens), *keys;
	size_t nr_keys;
	int64_t ret;

	keys = full_keys(e, seq->stream, nr_tokens, &nr_keys);
	ret = omnikv_seq_commit(seq->seq, keys, nr_keys,
				with_tail && nr_tokens % e->plan.block_tokens ? &tail : NULL);
	free(keys);
	return ret;
}

/* What one layer's "kernel" needs when its stream gets there. */
struct toy_kernel {
	struct toy_engine	*engine;
	struct toy_seq		*seqs;
	struct omnikv_view	view;
};

static uint64_t entries(const struct omnikv_group *group, uint64_t tokens)
{
	return group->tokens_per_entry ? tokens / group->tokens_per_entry : tokens > 0;
}

static void kernel_rows(struct toy_seq *seq, const struct omnikv_group_view *gv, uint32_t plane, uint32_t layer,
			uint64_t row, uint64_t entry, bool is_new)
{
	uint64_t seed = row_seed(seq->stream, gv->group, layer, plane, entry);
	uint64_t n = gv->planes[plane].row_bytes, i;
	uint8_t *p = (uint8_t *)gv->planes[plane].rows + row * n;

	for (i = 0; i < n; i++) {
		if (is_new)
			p[i] = content(seed, i);
		else
			seq->wrong_bytes += p[i] != content(seed, i);
	}
}

static void kernel_run(void *arg)
{
	struct toy_kernel *k = arg;
	uint32_t g, i, p;
	uint64_t r;

	for (g = 0; g < k->view.nr_groups; g++) {
		const struct omnikv_group_view *gv = &k->view.groups[g];
		const struct omnikv_group *group = &k->engine->config.layout->groups[gv->group];
		uint32_t layer = k->view.layer, a;
		bool is_alias = false;

		for (a = 0; a < group->nr_layers; a++) {
			if (group->layers[a] == k->view.layer && group->alias_of[a] >= 0) {
				layer = (uint32_t)group->alias_of[a];
				is_alias = true;
			}
		}
		for (i = 0; i < k->view.nr_seqs; i++) {
			struct toy_seq *s = &k->seqs[i];
			uint64_t hist = entries(group, s->hist_tokens);
			uint64_t all = entries(group, s->hist_tokens + s->new_tokens);
			uint64_t row = gv->cu_kv[i];

			/* The test may have aborted it: on "cuda" this is another thread. */
			if (!__atomic_load_n(&s->seq, __ATOMIC_ACQUIRE))
				continue;
			for (p = 0; p < gv->nr_planes; p++) {
				if (group->tokens_per_entry == 0) {
					/* The state is known by the number of tokens that made it. */
					if (hist)
						kernel_rows(s, gv, p, layer, row, s->hist_tokens, false);
					kernel_rows(s, gv, p, layer, row, s->hist_tokens + s->new_tokens, true);
					continue;
				}
				for (r = 0; r < all; r++)
					kernel_rows(s, gv, p, layer, row + r, r, r >= hist && !is_alias);
			}
		}
	}
}

int toy_step_hooked(struct toy_engine *e, struct toy_seq *seqs, uint32_t nr_seqs, struct omnikv_step_error *error,
		    void (*at_layer)(void *arg, struct omnikv_step *step, uint32_t layer), void *arg)
{
	struct omnikv_step_seq *ss = calloc(nr_seqs, sizeof(*ss));
	struct toy_kernel *kernels = calloc(e->config.layout->nr_layers, sizeof(*kernels));
	struct omnikv_step *step;
	uint32_t l, i;
	int ret, end;

	assert_non_null(ss);
	assert_non_null(kernels);
	for (i = 0; i < nr_seqs; i++)
		ss[i] = (struct omnikv_step_seq){ .seq = seqs[i].seq, .hist_tokens = seqs[i].hist_tokens,
						  .new_tokens = seqs[i].new_tokens, .lane = seqs[i].lane };
	ret = omnikv_step_begin(e->pipe, ss, nr_seqs, 0, &step);
	free(ss);
	if (ret) {
		free(kernels);
		return ret;
	}
	for (l = 0; l < e->config.layout->nr_layers && !ret; l++) {
		kernels[l].engine = e;
		kernels[l].seqs = seqs;
		ret = omnikv_layer_acquire(step, l, e->stream, &kernels[l].view);
		if (!ret)
			ret = omnikv_stream_launch(e->stream, e->config.layer_ns, kernel_run, &kernels[l]);
		if (!ret)
			ret = omnikv_layer_release(step, l, e->stream);
		if (!ret && at_layer)
			at_layer(arg, step, l);
	}
	/* No wait for the stream here: the end of a step is the end of its kernels, which the array below belongs to. */
	end = omnikv_step_end(step, error);
	free(kernels);
	return end ? end : ret;
}

int toy_step(struct toy_engine *e, struct toy_seq *seqs, uint32_t nr_seqs, struct omnikv_step_error *error)
{
	return toy_step_hooked(e, seqs, nr_seqs, error, NULL, NULL);
}

/* ---- graphs ------------------------------------------------------------------------------- */

static bool is_cuda(const struct toy_engine *e)
{
	return !strncmp(e->config.device, "cuda", 4);
}

/* What a replay does, in order; in a capture these become its nodes. */
static void graph_issue(struct toy_engine *e, struct toy_graph *g)
{
	struct omnikv_view view;
	uint32_t l, k, p;

	for (l = 0; l < e->config.layout->nr_layers; l++) {
		assert_int_equal(omnikv_layer_capture(e->pipe, l, g->graph, e->stream, &view), 0);
		/* A graph's addresses are those of every step. */
		for (k = 0; g->kernels[l].view.nr_groups && k < view.nr_groups; k++) {
			for (p = 0; p < view.groups[k].nr_planes; p++)
				assert_ptr_equal(view.groups[k].planes[p].rows, g->kernels[l].view.groups[k].planes[p].rows);
		}
		assert_int_equal(omnikv_stream_launch(e->stream, e->config.layer_ns, kernel_run, &g->kernels[l]), 0);
		assert_int_equal(omnikv_layer_captured(e->pipe, l, g->graph, e->stream), 0);
	}
}

/* As an engine's framework does it, by the driver. */
static void graph_capture(struct toy_engine *e, struct toy_graph *g)
{
	int (*retain)(void **, int) = (int (*)(void **, int))fixture_cuda_function("cuDevicePrimaryCtxRetain", 7000);
	int (*push)(void *) = (int (*)(void *))fixture_cuda_function("cuCtxPushCurrent", 4000);
	int (*begin)(void *, int) = (int (*)(void *, int))fixture_cuda_function("cuStreamBeginCapture", 10010);
	int (*end)(void *, void **) = (int (*)(void *, void **))fixture_cuda_function("cuStreamEndCapture", 10000);
	int (*make)(void **, void *, unsigned long long) =
		(int (*)(void **, void *, unsigned long long))fixture_cuda_function("cuGraphInstantiateWithFlags", 11040);
	int (*destroy)(void *) = (int (*)(void *))fixture_cuda_function("cuGraphDestroy", 10000);
	void *stream = omnikv_stream_native(e->stream), *context, *graph;

	assert_int_equal(retain(&context, 0), 0);
	assert_int_equal(push(context), 0);
	/* The strictest of modes: whatever another thread asks of the driver meanwhile must not spoil it. */
	assert_int_equal(begin(stream, 0), 0);
	graph_issue(e, g);
	assert_int_equal(end(stream, &graph), 0);
	assert_int_equal(make(&g->exec, graph, 0), 0);
	assert_int_equal(destroy(graph), 0);
}

void toy_graph_open(struct toy_engine *e, struct toy_graph *g)
{
	uint32_t l;

	memset(g, 0, sizeof(*g));
	g->kernels = calloc(e->config.layout->nr_layers, sizeof(*g->kernels));
	assert_non_null(g->kernels);
	for (l = 0; l < e->config.layout->nr_layers; l++)
		g->kernels[l].engine = e;
	assert_int_equal(omnikv_graph_create(e->dev, UINT64_C(5000000000), &g->graph), 0);
	if (is_cuda(e))
		graph_capture(e, g);
}

void toy_graph_close(struct toy_engine *e, struct toy_graph *g)
{
	if (is_cuda(e)) {
		int (*destroy)(void *) = (int (*)(void *))fixture_cuda_function("cuGraphExecDestroy", 10000);
		int (*pop)(void **) = (int (*)(void **))fixture_cuda_function("cuCtxPopCurrent", 4000);
		int (*release)(int) = (int (*)(int))fixture_cuda_function("cuDevicePrimaryCtxRelease", 11000);
		void *context;

		assert_int_equal(destroy(g->exec), 0);
		assert_int_equal(pop(&context), 0);
		assert_int_equal(release(0), 0);
	}
	omnikv_graph_destroy(g->graph);
	free(g->kernels);
}

int toy_graph_step(struct toy_engine *e, struct toy_graph *g, struct toy_seq *seqs, uint32_t nr_seqs,
		   bool (*at_launch)(void *arg, struct omnikv_step *step), void *arg, bool *late)
{
	struct omnikv_step_seq *ss = calloc(nr_seqs, sizeof(*ss));
	struct omnikv_step *step;
	uint32_t l, i;
	int ret;

	assert_non_null(ss);
	for (i = 0; i < nr_seqs; i++)
		ss[i] = (struct omnikv_step_seq){ .seq = seqs[i].seq, .hist_tokens = seqs[i].hist_tokens,
						  .new_tokens = seqs[i].new_tokens, .lane = seqs[i].lane };
	ret = omnikv_step_begin(e->pipe, ss, nr_seqs, OMNIKV_STEP_F_GRAPH, &step);
	free(ss);
	*late = false;
	if (ret)
		return ret;
	for (l = 0; l < e->config.layout->nr_layers; l++) {
		g->kernels[l].seqs = seqs;
		assert_int_equal(omnikv_step_view(step, l, &g->kernels[l].view), 0);
	}
	if (at_launch && !at_launch(arg, step)) {
		assert_int_equal(omnikv_step_cancel(step), 0);
		return omnikv_step_end(step, NULL);
	}
	assert_int_equal(omnikv_graph_begin(g->graph, e->stream), 0);
	if (is_cuda(e)) {
		int (*launch)(void *, void *) = (int (*)(void *, void *))fixture_cuda_function("cuGraphLaunch", 10000);

		assert_int_equal(launch(g->exec, omnikv_stream_native(e->stream)), 0);
		/* A second launch in the same life would show what this one was given. */
		assert_int_equal(omnikv_graph_begin(g->graph, e->stream), -EINVAL);
	} else {
		graph_issue(e, g);
	}
	ret = omnikv_step_end(step, NULL);
	*late = omnikv_graph_status(g->graph);
	return ret;
}

/* SPDX-License-Identifier: MIT */
/*
 * The layer pipeline: order of loads, kernels and stores over a ring of R layer buffers.
 *
 * Owns the division of HBM into slots and the dependencies between operations; rows come from
 * sequences, bytes are moved by the ring. One thread.
 *
 * A stage is one tile of one layer (without tiles, a layer). Stage s uses slot s % R. What waits for
 * what, all on the device, nothing on the host:
 *
 *     load(s)   after  freed(s - R)                 the slot's previous stage is done with it
 *     kernel(s) after  load(s), or freed(s - R)     when there is no history to load
 *     store(s)  after  kernel(s)                    and so the copy of draft rows
 *     freed(s)  =      store(s), or kernel(s)       when there is nothing to store
 *
 * All operations of a step are kept until its end, so that a failed one can be traced to the
 * first token that was lost, and checksums be folded in layer order whatever order they came in.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pipeline.h"

#include "crc32c.h"
#include "device.h"
#include "sequence.h"

/* Planes begin at multiples of this, so that kernels may use their widest loads. */
#define PLANE_ALIGN 256u
/* Attention is folded in tiles of so many tokens: nothing is cut within one. */
#define TILE_TOKENS 64u
#define DEADLINE_NS (600ull * 1000 * 1000 * 1000)

/* Rows that a slot must hold for a group. */
static uint64_t group_slot_rows(const struct omnikv_group *group, const struct omnikv_pipe_config *c)
{
	if (group->tokens_per_entry == 0)
		return (uint64_t)c->max_seqs + c->draft_tokens;
	return c->slot_tokens / group->tokens_per_entry;
}

/* Bytes of @rows rows up to where the next plane may begin; false when a product wraps. */
static bool plane_place(uint64_t rows, uint64_t row_bytes, uint64_t guard, uint64_t *off, uint64_t *size)
{
	uint64_t bytes;

	if (__builtin_mul_overflow(rows, row_bytes, size) || __builtin_add_overflow(*size, PLANE_ALIGN - 1 + guard, &bytes))
		return false;
	bytes &= ~(uint64_t)(PLANE_ALIGN - 1);
	return !__builtin_add_overflow(*off, bytes, off);
}

/* Place the planes of all groups of one layer; false when a product wraps. */
static bool layer_bytes(const struct omnikv_plan *plan, uint32_t layer, const struct omnikv_pipe_config *c,
			struct okv_pipe_layer *out, uint64_t *bytes)
{
	uint64_t guard = c->flags & OMNIKV_PIPE_F_DEBUG_VIEWS ? PLANE_ALIGN : 0;
	uint64_t off = guard, size;
	uint32_t g, i, p;

	if (out)
		out->nr_groups = 0;
	for (g = 0; g < plan->layout.nr_groups; g++) {
		const struct omnikv_group *group = &plan->layout.groups[g];
		struct okv_pipe_group *lg = NULL;
		uint32_t stored = 0;

		for (i = 0; i < group->nr_layers && group->layers[i] != layer; i++)
			stored += group->alias_of[i] < 0;
		if (i == group->nr_layers)
			continue;
		if (out) {
			lg = &out->groups[out->nr_groups++];
			lg->group = g;
			lg->alias_of = group->alias_of[i];
			lg->layer_idx = stored;
			if (lg->alias_of >= 0) {
				uint32_t k;

				for (k = 0, stored = 0; group->layers[k] != (uint32_t)lg->alias_of; k++)
					stored += group->alias_of[k] < 0;
				lg->layer_idx = stored;
			}
		}
		for (p = 0; p < group->nr_planes; p++) {
			if (lg)
				lg->plane_off[p] = off;
			if (!plane_place(group_slot_rows(group, c), plan->groups[g].row_bytes[p], guard, &off, &size))
				return false;
			if (lg)
				lg->plane_bytes[p] = size;
		}
	}
	*bytes = off;
	return true;
}

static uint64_t slot_bytes(const struct omnikv_plan *plan, const struct omnikv_pipe_config *c)
{
	uint64_t most = 0, bytes;
	uint32_t l;

	for (l = 0; l < plan->layout.nr_layers; l++) {
		if (!layer_bytes(plan, l, c, NULL, &bytes))
			return 0;
		if (bytes > most)
			most = bytes;
	}
	return most;
}

/* Place the draft rows of all layers from @off on; returns where they end, 0 when a product wraps. */
static uint64_t drafts_place(const struct omnikv_plan *plan, const struct omnikv_pipe_config *c, uint64_t off,
			     struct okv_pipe_layer *layers)
{
	uint64_t size;
	uint32_t g, i, k, p;

	for (g = 0; g < plan->layout.nr_groups && c->draft_tokens; g++) {
		const struct omnikv_group *group = &plan->layout.groups[g];

		for (i = 0; i < group->nr_layers; i++) {
			for (p = 0; p < group->nr_planes; p++) {
				for (k = 0; layers && k < layers[group->layers[i]].nr_groups; k++) {
					if (layers[group->layers[i]].groups[k].group == g)
						layers[group->layers[i]].groups[k].draft_off[p] = off;
				}
				if (!plane_place(c->draft_tokens, plan->groups[g].row_bytes[p], 0, &off, &size))
					return 0;
			}
		}
	}
	return off;
}

static bool config_read(const struct omnikv_pipe_config *config, struct omnikv_pipe_config *out)
{
	if (!config || config->size != sizeof(*config) || config->slot_tokens == 0 ||
	    config->nr_slots > OMNIKV_LAYERS_MAX || config->max_seqs > (1u << 20) ||
	    config->draft_tokens > (1u << 20) || config->flags & ~OMNIKV_PIPE_F_ALL ||
	    (config->page_rows && config->slot_tokens % config->page_rows))
		return false;
	*out = *config;
	if (out->nr_slots == 0)
		out->nr_slots = 2;
	if (out->max_seqs == 0)
		out->max_seqs = 64;
	if (out->deadline_ns == 0)
		out->deadline_ns = DEADLINE_NS;
	if (okv_pipe_debug_is_wanted())
		out->flags |= OMNIKV_PIPE_F_DEBUG_VIEWS;
	return true;
}

uint64_t omnikv_pipe_hbm_bytes(const struct omnikv_plan *plan, const struct omnikv_pipe_config *config)
{
	struct omnikv_pipe_config c;
	uint64_t bytes;

	if (!config_read(config, &c) || __builtin_mul_overflow(slot_bytes(plan, &c), c.nr_slots, &bytes))
		return 0;
	return drafts_place(plan, &c, bytes, NULL);
}

static void stage_free(struct okv_pipe_stage *stage)
{
	struct omnikv_event *events[] = { stage->loaded, stage->computed, stage->stored, stage->kept,
					  stage->joined, stage->released, stage->poisoned };
	uint32_t i;

	for (i = 0; i < sizeof(events) / sizeof(events[0]); i++) {
		if (events[i])
			omnikv_event_destroy(events[i]);
	}
}

static void pipe_free(struct omnikv_pipe *pipe)
{
	size_t s;

	for (s = 0; s < pipe->nr_made; s++)
		stage_free(&pipe->stages[s]);
	if (pipe->accepted_event)
		omnikv_event_destroy(pipe->accepted_event);
	if (pipe->accepted_copy)
		pipe->dev->ops->pinned_free(pipe->dev, pipe->accepted_copy);
	if (pipe->aux)
		omnikv_stream_destroy(pipe->aux);
	free(pipe->step.seqs);
	free(pipe->step.lanes);
	free(pipe->step.draft_base);
	free(pipe->drafts);
	free(pipe->layers);
	free(pipe->stages);
	free(pipe->tiles);
	free(pipe->tile_words);
	free(pipe->pieces);
	free(pipe->valid);
	free(pipe->crc);
	free(pipe->runs);
	okv_hbm_put(pipe->hbm);
	free(pipe);
}

static void error_set(struct omnikv_error *err, const char *text)
{
	if (err)
		snprintf(err->text, sizeof(err->text), "%s", text);
}

static bool layout_has_alias(const struct omnikv_layout *layout)
{
	uint32_t g, i;

	for (g = 0; g < layout->nr_groups; g++) {
		for (i = 0; i < layout->groups[g].nr_layers; i++) {
			if (layout->groups[g].alias_of[i] >= 0)
				return true;
		}
	}
	return false;
}

bool okv_pipe_has_alias(const struct omnikv_pipe *pipe)
{
	return layout_has_alias(&pipe->plan->layout);
}

static int stages_grow(struct omnikv_pipe *pipe, size_t need);
static uint64_t padded(const struct omnikv_pipe *pipe, uint64_t tokens);
static uint64_t tile_align(const struct omnikv_pipe *pipe);

/* Divide the HBM into slots of so many tokens, with the drafts behind them: they fit. */
static void slots_place(struct omnikv_pipe *pipe, uint64_t slot_tokens)
{
	uint64_t unused;
	uint32_t l;

	pipe->config.slot_tokens = slot_tokens;
	pipe->slot_tokens = slot_tokens;
	pipe->slot_bytes = slot_bytes(pipe->plan, &pipe->config);
	for (l = 0; l < pipe->nr_layers; l++)
		layer_bytes(pipe->plan, l, &pipe->config, &pipe->layers[l], &unused);
	drafts_place(pipe->plan, &pipe->config, pipe->slot_bytes * pipe->nr_slots, pipe->layers);
}

/* Most tokens, whole pages of them, that a slot holds in so much HBM; 0 when there is room for none. */
static uint64_t tokens_in(const struct omnikv_pipe *pipe, uint64_t hbm_bytes)
{
	struct omnikv_pipe_config c = pipe->config;
	uint64_t unit = c.page_rows ? c.page_rows : 1, lo = 0, hi, mid, need;

	/* Where no group grows with the tokens, they are no more than bytes. */
	hi = (hbm_bytes > c.slot_tokens ? hbm_bytes : c.slot_tokens) / unit;
	while (lo < hi) {
		mid = lo + (hi - lo + 1) / 2;
		c.slot_tokens = mid * unit;
		need = omnikv_pipe_hbm_bytes(pipe->plan, &c);
		if (need && need <= hbm_bytes)
			lo = mid;
		else
			hi = mid - 1;
	}
	return lo * unit;
}

void omnikv_pipe_on_resize(struct omnikv_pipe *pipe, omnikv_pipe_resized_fn fn, void *arg)
{
	pipe->resized = fn;
	pipe->resized_arg = arg;
}

int omnikv_pipe_resize(struct omnikv_pipe *pipe, uint64_t hbm_bytes)
{
	uint64_t tokens;
	int ret;

	if (pipe->step.is_open || okv_pipe_has_drafts(pipe))
		return -EBUSY;
	if (!hbm_bytes || hbm_bytes > INT64_MAX)
		return -EINVAL;
	tokens = tokens_in(pipe, hbm_bytes);
	if (tokens < pipe->fewest_tokens)
		return -ENOSPC;
	ret = okv_hbm_resize(pipe->hbm, 1, hbm_bytes);
	if (ret)
		return ret;
	slots_place(pipe, tokens);
	pipe->is_graph_stale = pipe->is_graph_stale || pipe->is_captured;
	if (pipe->is_debug)
		okv_pipe_debug_fill(pipe);
	if (pipe->resized)
		pipe->resized(pipe->resized_arg, hbm_bytes, tokens);
	return 0;
}

int omnikv_pipe_create(struct omnikv_space *space, struct omnikv_ring *ring, struct omnikv_hbm *hbm,
		       const struct omnikv_pipe_config *config, struct omnikv_pipe **out,
		       struct omnikv_error *err)
{
	const struct omnikv_plan *plan = omnikv_space_plan(space);
	struct omnikv_pipe_config c;
	struct omnikv_pipe *pipe;
	uint64_t need;
	int ret = -ENOMEM;

	if (!config_read(config, &c)) {
		error_set(err, "pipe: slot_tokens is 0 or no multiple of page_rows, an unknown flag, or nr_slots, max_seqs or draft_tokens out of range");
		return -EINVAL;
	}
	ret = okv_pipe_debug_check(err);
	if (ret)
		return ret;
	ret = -ENOMEM;
	/* On another pool the names of this one's extents would be those of other bytes. */
	if (!omnikv_ring_client(ring) ||
	    omnikv_client_pool(omnikv_ring_client(ring)) !=
		    omnikv_client_pool(omnikv_manager_client(omnikv_space_manager(space)))) {
		error_set(err, "pipe: the ring's client is not of the pool in which the space is; give omnikv_ring_init() one that is");
		return -EINVAL;
	}
	if (c.draft_tokens && layout_has_alias(&plan->layout)) {
		error_set(err, "pipe: drafts cannot be kept in HBM where a layer reads another one's KV; give draft_tokens 0");
		return -EOPNOTSUPP;
	}
	if (c.flags & OMNIKV_PIPE_F_DEBUG_VIEWS && !omnikv_ring_device(ring)->ops->is_cpu_readable) {
		error_set(err, "pipe: debug views need a device whose memory the CPU reads; unset OMNIKV_DEBUG, or use host or sim");
		return -EOPNOTSUPP;
	}
	need = omnikv_pipe_hbm_bytes(plan, &c);
	if (need == 0) {
		error_set(err, "pipe: a slot of this many tokens exceeds 64-bit sizes; give fewer slot_tokens");
		return -EINVAL;
	}
	if (okv_hbm_get(hbm)) {
		error_set(err, "pipe: another thread gives the HBM another length just now; create the pipe before or behind that");
		return -EBUSY;
	}
	if (need > omnikv_hbm_bytes(hbm)) {
		okv_hbm_put(hbm);
		error_set(err, "pipe: the HBM given is smaller than nr_slots layer buffers and the drafts; see omnikv_pipe_hbm_bytes()");
		return -ENOSPC;
	}

	pipe = calloc(1, sizeof(*pipe));
	if (!pipe) {
		okv_hbm_put(hbm);
		return -ENOMEM;
	}
	pipe->space = space;
	pipe->ring = ring;
	pipe->dev = omnikv_ring_device(ring);
	pipe->hbm = hbm;
	pipe->config = c;
	pipe->plan = plan;
	pipe->nr_slots = c.nr_slots;
	pipe->max_seqs = c.max_seqs;
	pipe->page_rows = c.page_rows;
	pipe->draft_tokens = c.draft_tokens;
	pipe->verify = c.verify;
	pipe->is_debug = c.flags & OMNIKV_PIPE_F_DEBUG_VIEWS;
	pipe->deadline_ns = c.deadline_ns;
	pipe->nr_layers = plan->layout.nr_layers;
	pipe->stats.size = sizeof(pipe->stats);
	pipe->step.pipe = pipe;

	pipe->layers = calloc(pipe->nr_layers, sizeof(*pipe->layers));
	pipe->step.seqs = calloc(pipe->max_seqs, sizeof(*pipe->step.seqs));
	pipe->step.lanes = calloc(pipe->max_seqs, sizeof(*pipe->step.lanes));
	pipe->step.draft_base = calloc(pipe->max_seqs, sizeof(*pipe->step.draft_base));
	pipe->drafts = calloc(pipe->max_seqs, sizeof(*pipe->drafts));
	if (!pipe->layers || !pipe->step.seqs || !pipe->step.lanes || !pipe->step.draft_base || !pipe->drafts)
		goto err_free;
	slots_place(pipe, c.slot_tokens);
	pipe->fewest_tokens = padded(pipe, tile_align(pipe));
	if (pipe->fewest_tokens > c.slot_tokens)
		pipe->fewest_tokens = c.slot_tokens;
	ret = stages_grow(pipe, pipe->nr_layers);
	if (!ret)
		ret = omnikv_event_create(pipe->dev, &pipe->accepted_event);
	if (!ret && pipe->draft_tokens && !pipe->dev->ops->is_cpu_readable) {
		void *copy;

		ret = pipe->dev->ops->pinned_alloc(pipe->dev, pipe->max_seqs * sizeof(*pipe->accepted_copy), &copy);
		if (!ret)
			pipe->accepted_copy = copy;
	}
	if (!ret)
		ret = omnikv_stream_create(pipe->dev, &pipe->aux);
	if (ret)
		goto err_free;
	if (pipe->is_debug)
		okv_pipe_debug_fill(pipe);
	*out = pipe;
	return 0;

err_free:
	pipe_free(pipe);
	return ret;
}

/* One result of the ring: which operation it ends. */
static void reap_one(struct omnikv_step *step, const struct omnikv_cqe *cqe)
{
	struct okv_pipe_op *op = (struct okv_pipe_op *)(uintptr_t)cqe->user_data;

	/* What was taken back before the ring had it. */
	if (!op)
		return;
	if (!(cqe->flags & OMNIKV_CQE_F_NOTIF))
		op->res = cqe->res;
	if ((cqe->flags & OMNIKV_CQE_F_MORE) || !op->is_pending)
		return;
	op->is_pending = false;
	step->nr_pending--;
}

int okv_pipe_reap(struct omnikv_step *step)
{
	struct omnikv_cqe *cqe;
	int ret;

	while (step->nr_pending) {
		ret = omnikv_wait_cqe(step->pipe->ring, &cqe, OKV_REAP_TIMEOUT_NS);
		if (ret)
			return ret;
		reap_one(step, cqe);
		omnikv_cqe_seen(step->pipe->ring, cqe);
	}
	return 0;
}

int okv_pipe_event_wait(struct omnikv_pipe *pipe, struct omnikv_event *event)
{
	uint64_t start_ns = okv_monotonic_ns();

	while (omnikv_event_query(event) == 0) {
		if (omnikv_device_poll(pipe->dev) == 0 || okv_monotonic_ns() - start_ns > OKV_REAP_TIMEOUT_NS)
			return -ETIME;
	}
	return 0;
}

/*
 * Kernels of released stages read and write the slots until their events fire. What the auxiliary stream
 * records must have fired too, before the events serve again.
 */
static int kernels_wait(struct omnikv_step *step)
{
	struct omnikv_pipe *pipe = step->pipe;
	uint32_t s;
	int ret = 0;

	for (s = 0; s < step->next_release && !ret; s++) {
		struct okv_pipe_stage *stage = &pipe->stages[s];

		/* Nothing is left that could run, and the event has not fired: the stream is stuck. */
		ret = okv_pipe_event_wait(pipe, stage->computed);
		if (!ret && stage->freed)
			ret = okv_pipe_event_wait(pipe, stage->freed);
	}
	return ret;
}

void omnikv_pipe_destroy(struct omnikv_pipe *pipe)
{
	if (!pipe)
		return;
	/* What a transfer still uses is leaked rather than handed to someone else. */
	if (pipe->step.is_open && (okv_pipe_reap(&pipe->step) || kernels_wait(&pipe->step)))
		return;
	pipe_free(pipe);
}

/* Grow *@array to hold @need elements; contents are not kept. */
static int grow(void *array, size_t *max, size_t need, size_t elem_bytes)
{
	void **p = array;
	void *bigger;

	if (need <= *max)
		return 0;
	bigger = reallocarray(NULL, need, elem_bytes);
	if (!bigger)
		return -ENOMEM;
	free(*p);
	*p = bigger;
	*max = need;
	return 0;
}

/* Stages are kept for their events, which need memory. Between steps. */
static int stages_grow(struct omnikv_pipe *pipe, size_t need)
{
	struct okv_pipe_stage *bigger;
	int ret = 0;

	if (need > pipe->max_stages) {
		bigger = reallocarray(pipe->stages, need, sizeof(*bigger));
		if (!bigger)
			return -ENOMEM;
		pipe->stages = bigger;
		pipe->max_stages = need;
	}
	while (pipe->nr_made < need && !ret) {
		struct okv_pipe_stage *stage = &pipe->stages[pipe->nr_made];
		struct omnikv_event **events[] = { &stage->loaded, &stage->computed, &stage->stored, &stage->kept,
						   &stage->joined, &stage->released, &stage->poisoned };
		uint32_t i;

		memset(stage, 0, sizeof(*stage));
		for (i = 0; i < sizeof(events) / sizeof(events[0]) && !ret; i++)
			ret = omnikv_event_create(pipe->dev, events[i]);
		if (ret)
			stage_free(stage);
		else
			pipe->nr_made++;
	}
	return ret;
}

static uint64_t blocks_touched(const struct omnikv_pipe *pipe, uint64_t from, uint64_t to)
{
	uint32_t t = pipe->plan->block_tokens;

	return to > from ? (to - 1) / t - from / t + 1 : 0;
}

int okv_pipe_reserve(struct omnikv_pipe *pipe, size_t nr_pieces, size_t nr_runs, size_t nr_ops)
{
	int ret;

	ret = grow(&pipe->valid, &pipe->max_valid, nr_pieces / 64 + nr_ops, sizeof(uint64_t));
	if (!ret)
		ret = grow(&pipe->runs, &pipe->max_runs, nr_runs, sizeof(struct okv_pipe_run));
	if (!ret && (pipe->verify || pipe->is_debug))
		ret = grow(&pipe->crc, &pipe->max_crc, nr_pieces, sizeof(uint32_t));
	if (!ret)
		ret = grow(&pipe->pieces, &pipe->max_pieces, nr_pieces, sizeof(struct omnikv_piece));
	pipe->nr_pieces = 0;
	pipe->nr_valid = 0;
	pipe->nr_runs = 0;
	return ret;
}

/* Room for every operation of a step: none is allocated later. */
static int step_reserve(struct omnikv_step *step)
{
	struct omnikv_pipe *pipe = step->pipe;
	size_t nr_pieces = 0, nr_runs = 0, planes = 0;
	uint32_t l, i, g, t;

	for (l = 0; l < pipe->nr_layers; l++) {
		for (g = 0; g < pipe->layers[l].nr_groups; g++)
			planes += pipe->plan->layout.groups[pipe->layers[l].groups[g].group].nr_planes;
	}
	for (t = 0; t < step->nr_tiles; t++) {
		for (i = 0; i < step->nr_seqs; i++) {
			uint64_t blocks = blocks_touched(pipe, pipe->tiles[t].from[i], pipe->tiles[t].to[i]);

			/* An alias loads everything, others load history and store or keep the rest. */
			if (blocks) {
				nr_pieces += planes * (blocks + 2);
				nr_runs += planes * 3;
			}
		}
	}
	if (nr_pieces > OMNIKV_PIECES_MAX * (size_t)step->nr_stages)
		return -ENOSPC;
	return okv_pipe_reserve(pipe, nr_pieces, nr_runs, 3 * (size_t)step->nr_stages);
}

/* Where checksums are folded no piece spans two blocks. */
int okv_pipe_add(struct omnikv_pipe *pipe, struct okv_pipe_op *op, struct omnikv_seq *seq, uint32_t seq_idx,
		 const struct okv_pipe_group *lg, uint32_t plane, uint64_t from, uint64_t to, uint64_t device_off)
{
	const struct omnikv_group *group = &pipe->plan->layout.groups[lg->group];
	uint64_t row_bytes = pipe->plan->groups[lg->group].row_bytes[plane];
	uint64_t t = pipe->plan->block_tokens, at, end;
	struct okv_pipe_run *run = &pipe->runs[pipe->nr_runs];
	size_t first = pipe->nr_pieces;
	int64_t n;

	for (at = from; at < to; at = end) {
		end = to;
		if (op->crc && group->tokens_per_entry && (at / t + 1) * t < to)
			end = (at / t + 1) * t;
		n = omnikv_seq_pieces(seq, lg->group, lg->layer_idx, plane, at, end, device_off,
				      pipe->pieces + pipe->nr_pieces, pipe->max_pieces - pipe->nr_pieces);
		if (n < 0)
			return (int)n;
		pipe->nr_pieces += (size_t)n;
		device_off += (okv_pipe_tokens_to_rows(group, end) - okv_pipe_tokens_to_rows(group, at)) * row_bytes;
	}
	*run = (struct okv_pipe_run){
		.seq_idx = seq_idx, .layer_idx = lg->layer_idx, .group = lg->group, .plane = plane,
		.first_piece = op->nr_pieces, .nr_pieces = (uint32_t)(pipe->nr_pieces - first),
		.from = from, .to = to,
	};
	if (run->nr_pieces == 0)
		return 0;
	pipe->nr_runs++;
	op->nr_pieces += run->nr_pieces;
	op->nr_runs++;
	return 0;
}

void okv_pipe_op_begin(struct omnikv_pipe *pipe, struct okv_pipe_op *op, uint32_t layer, enum okv_pipe_op_kind kind)
{
	*op = (struct okv_pipe_op){
		.pieces = pipe->pieces + pipe->nr_pieces,
		.crc = kind == OKV_PIPE_LOAD && (pipe->verify || pipe->is_debug) ? pipe->crc + pipe->nr_pieces : NULL,
		.runs = pipe->runs + pipe->nr_runs,
		.layer = layer,
		.kind = kind,
	};
}

void okv_pipe_op_finish(struct omnikv_pipe *pipe, struct okv_pipe_op *op)
{
	op->valid = pipe->valid + pipe->nr_valid;
	pipe->nr_valid += (op->nr_pieces + 63) / 64;
	memset(op->valid, 0, (op->nr_pieces + 63) / 64 * sizeof(*op->valid));
}

/* The new rows of one plane, from the slot to where drafts are kept: one piece. */
static void keep_add(struct omnikv_pipe *pipe, struct okv_pipe_op *op, uint32_t i, const struct okv_pipe_group *lg,
		     uint32_t plane, uint64_t slot_off, uint64_t new_row)
{
	const struct omnikv_step_seq *s = &pipe->step.seqs[i];
	const struct omnikv_group *group = &pipe->plan->layout.groups[lg->group];
	uint64_t row_bytes = pipe->plan->groups[lg->group].row_bytes[plane];
	uint64_t rows = s->new_tokens;

	if (group->tokens_per_entry)
		rows = okv_pipe_tokens_to_rows(group, s->hist_tokens + s->new_tokens) -
		       okv_pipe_tokens_to_rows(group, s->hist_tokens);
	if (rows == 0)
		return;
	pipe->pieces[pipe->nr_pieces++] = (struct omnikv_piece){
		.extent_off = slot_off + lg->plane_off[plane] + new_row * row_bytes,
		.device_off = lg->draft_off[plane] + pipe->step.draft_base[i] * row_bytes,
		.bytes = rows * row_bytes,
	};
	pipe->runs[pipe->nr_runs++] = (struct okv_pipe_run){
		.seq_idx = i, .layer_idx = lg->layer_idx, .group = lg->group, .plane = plane,
		.first_piece = op->nr_pieces++, .nr_pieces = 1, .from = s->hist_tokens,
		.to = s->hist_tokens + s->new_tokens,
	};
	op->nr_runs++;
}

/* What one group of a stage loads, stores or keeps of one sequence. */
static int group_build(struct okv_pipe_stage *stage, struct okv_pipe_op *op, const struct okv_pipe_group *lg, uint32_t i)
{
	struct omnikv_pipe *pipe = stage->pipe;
	const struct okv_pipe_tile *tile = &pipe->tiles[stage->tile];
	const struct omnikv_group *group = &pipe->plan->layout.groups[lg->group];
	const struct okv_pipe_rows *rows = &tile->rows[lg->group];
	const struct omnikv_step_seq *s = &pipe->step.seqs[i];
	uint64_t slot_off = stage->slot * pipe->slot_bytes, from = tile->from[i], to = tile->to[i];
	uint64_t row = rows->cu_kv[i];
	bool has_new = rows->new_row[i] != OMNIKV_ROW_NONE;
	uint32_t p;
	int ret = 0;

	if (op->kind == OKV_PIPE_LOAD) {
		if (group->tokens_per_entry == 0)
			from = 0;
		if (group->tokens_per_entry == 0 && !has_new)
			return 0;
		if (lg->alias_of < 0 && to > s->hist_tokens)
			to = s->hist_tokens;
	} else {
		if (!has_new || lg->alias_of >= 0 || okv_pipe_is_kept(pipe, s) != (op->kind == OKV_PIPE_KEEP))
			return 0;
		from = s->hist_tokens;
		row = rows->new_row[i];
	}
	/* Entries that are not whole yet stay with the engine. */
	if (group->tokens_per_entry) {
		from -= from % group->tokens_per_entry;
		to -= to % group->tokens_per_entry;
	}
	if (from >= to)
		return 0;
	for (p = 0; p < group->nr_planes && !ret; p++) {
		if (op->kind == OKV_PIPE_KEEP)
			keep_add(pipe, op, i, lg, p, slot_off, row);
		else
			ret = okv_pipe_add(pipe, op, s->seq, i, lg, p, from, to, slot_off + lg->plane_off[p] +
					   row * pipe->plan->groups[lg->group].row_bytes[p]);
	}
	return ret;
}

/* Collect what a stage loads (history), stores (new rows), or keeps (drafts). */
static int op_build(struct okv_pipe_stage *stage, struct okv_pipe_op *op, enum okv_pipe_op_kind kind)
{
	struct omnikv_pipe *pipe = stage->pipe;
	const struct okv_pipe_layer *layer = &pipe->layers[stage->layer];
	uint32_t i, g;
	int ret = 0;

	okv_pipe_op_begin(pipe, op, stage->layer, kind);
	for (g = 0; g < layer->nr_groups; g++) {
		for (i = 0; i < pipe->step.nr_seqs && !ret; i++) {
			if (pipe->step.seqs[i].seq)
				ret = group_build(stage, op, &layer->groups[g], i);
		}
	}
	okv_pipe_op_finish(pipe, op);
	return ret;
}

int okv_pipe_submit(struct omnikv_step *step, struct okv_pipe_op *op, struct omnikv_event *wait,
		    struct omnikv_event *signal)
{
	struct omnikv_pipe *pipe = step->pipe;
	struct omnikv_sqe *sqe;
	int ret;

	sqe = omnikv_get_sqe(pipe->ring);
	if (!sqe)
		return -EAGAIN;
	if (op->nr_pieces == 0)
		omnikv_prep_nop(sqe);
	else if (op->kind == OKV_PIPE_LOAD)
		omnikv_prep_load(sqe, pipe->hbm, op->pieces, op->nr_pieces);
	else if (op->kind == OKV_PIPE_STORE)
		omnikv_prep_store(sqe, pipe->hbm, op->pieces, op->nr_pieces);
	else
		omnikv_prep_copy(sqe, pipe->hbm, op->pieces, op->nr_pieces);
	sqe->user_data = (uintptr_t)op;
	sqe->valid = op->valid;
	sqe->crc = op->crc;
	sqe->wait = wait;
	sqe->signal = signal;
	sqe->deadline_ns = pipe->deadline_ns;
	while ((ret = omnikv_submit(pipe->ring)) == -EAGAIN && step->nr_pending) {
		/* A ring smaller than the step: the one case in which the host waits. */
		struct omnikv_cqe *cqe;

		ret = omnikv_wait_cqe(pipe->ring, &cqe, OKV_REAP_TIMEOUT_NS);
		if (ret)
			break;
		reap_one(step, cqe);
		omnikv_cqe_seen(pipe->ring, cqe);
	}
	if (ret < 0) {
		/* The slot stays filled, and the next submission takes it along: with nothing to do. */
		memset(sqe, 0, sizeof(*sqe));
		omnikv_prep_nop(sqe);
		return ret;
	}
	op->is_pending = true;
	step->nr_pending++;
	return 0;
}

static struct okv_pipe_stage *stage_of_source(struct omnikv_step *step, int32_t layer, uint32_t tile)
{
	return &step->pipe->stages[(uint32_t)layer * step->nr_tiles + tile];
}

/* What the load of a stage, or its kernel when nothing is loaded, has to wait for. */
static int slot_wait(struct omnikv_step *step, uint32_t s, struct omnikv_event **wait)
{
	struct omnikv_pipe *pipe = step->pipe;
	struct okv_pipe_stage *stage = &pipe->stages[s];
	const struct okv_pipe_layer *layer = &pipe->layers[stage->layer];
	bool is_joined = false;
	uint32_t g;
	int ret = 0;

	*wait = s >= pipe->nr_slots ? pipe->stages[s - pipe->nr_slots].freed : NULL;
	for (g = 0; g < layer->nr_groups && !ret; g++) {
		int32_t src = layer->groups[g].alias_of;
		struct omnikv_event *source = src >= 0 ? stage_of_source(step, src, stage->tile)->freed : NULL;

		if (!source || source == *wait)
			continue;
		if (!*wait) {
			*wait = source;
			continue;
		}
		/* A transfer waits for one event: a stream joins two. */
		if (!is_joined)
			ret = omnikv_stream_wait(pipe->aux, *wait);
		if (!ret)
			ret = omnikv_stream_wait(pipe->aux, source);
		is_joined = true;
	}
	if (is_joined && !ret)
		ret = omnikv_stream_record(pipe->aux, stage->joined);
	if (is_joined)
		*wait = stage->joined;
	return ret;
}

/* Stage @s - R has been released, so its slot has a next user. */
static int load_submit(struct omnikv_step *step, uint32_t s)
{
	struct okv_pipe_stage *stage = &step->pipe->stages[s];
	struct omnikv_event *wait;
	int ret;

	ret = op_build(stage, &stage->load, OKV_PIPE_LOAD);
	if (!ret)
		ret = slot_wait(step, s, &wait);
	if (ret)
		return ret;
	stage->ready = wait;
	/* In a graph the kernel's wait is always for the load: a no-op where there is none. */
	if (stage->load.nr_pieces == 0 && !step->is_graph)
		return 0;
	ret = okv_pipe_submit(step, &stage->load, wait, stage->loaded);
	if (!ret)
		stage->ready = stage->loaded;
	return ret;
}

/* Its slot has been released, and so have the stages that it is an alias of. */
static bool load_is_possible(const struct omnikv_step *step, uint32_t s)
{
	const struct okv_pipe_stage *stage = &step->pipe->stages[s];
	const struct okv_pipe_layer *layer = &step->pipe->layers[stage->layer];
	uint32_t g;

	if (s >= step->next_release + step->pipe->nr_slots)
		return false;
	for (g = 0; g < layer->nr_groups; g++) {
		int32_t src = layer->groups[g].alias_of;

		if (src >= 0 && (uint32_t)src * step->nr_tiles + stage->tile >= step->next_release)
			return false;
	}
	return true;
}

/* Queue every load whose slot and sources are released. */
static int load_ahead(struct omnikv_step *step)
{
	int ret = 0;

	while (step->next_load < step->nr_stages && load_is_possible(step, step->next_load) && !ret) {
		ret = load_submit(step, step->next_load);
		if (!ret)
			step->next_load++;
	}
	return ret;
}

static int step_check(const struct omnikv_pipe *pipe, const struct omnikv_step_seq *seqs, uint32_t nr_seqs)
{
	uint64_t tokens, drafts = 0;
	uint32_t i, k;

	if (nr_seqs == 0)
		return -EINVAL;
	if (nr_seqs > pipe->max_seqs)
		return -ENOSPC;
	for (i = 0; i < nr_seqs; i++) {
		if (!seqs[i].seq || (unsigned int)seqs[i].lane > OMNIKV_LANE_VERIFY ||
		    omnikv_seq_space(seqs[i].seq) != pipe->space ||
		    __builtin_add_overflow(seqs[i].hist_tokens, seqs[i].new_tokens, &tokens) ||
		    tokens > omnikv_seq_tokens(seqs[i].seq) || tokens == 0)
			return -EINVAL;
		for (k = 0; k < i; k++) {
			if (seqs[k].seq == seqs[i].seq)
				return -EINVAL;
		}
		if (okv_pipe_is_kept(pipe, &seqs[i]) &&
		    (__builtin_add_overflow(drafts, seqs[i].new_tokens, &drafts) || drafts > pipe->draft_tokens))
			return -ENOSPC;
	}
	return 0;
}

/* Rows that @tokens tokens of a sequence take in a tile. */
static uint64_t padded(const struct omnikv_pipe *pipe, uint64_t tokens)
{
	if (!pipe->page_rows || tokens == 0)
		return tokens;
	return (tokens + pipe->page_rows - 1) / pipe->page_rows * pipe->page_rows;
}

static uint64_t tile_align(const struct omnikv_pipe *pipe)
{
	uint64_t a = TILE_TOKENS, b = pipe->plan->block_tokens, r;

	while ((r = a % b) != 0) {
		a = b;
		b = r;
	}
	return TILE_TOKENS / b * pipe->plan->block_tokens;
}

/*
 * Which tokens go into which tile, sequence after sequence; @tiles NULL only counts. A cut is at a multiple of
 * tile_align(), and none is behind the history's last one, so that new rows lie behind what is before them.
 */
static int64_t tiles_cut(const struct omnikv_pipe *pipe, const struct omnikv_step_seq *seqs, uint32_t nr_seqs,
			 uint32_t flags, struct okv_pipe_tile *tiles)
{
	uint64_t align = tile_align(pipe), room = pipe->slot_tokens, pos, all, last, take;
	int64_t nr = 1;
	uint32_t i;

	for (i = 0; i < nr_seqs; i++) {
		all = seqs[i].hist_tokens + seqs[i].new_tokens;
		last = seqs[i].hist_tokens - seqs[i].hist_tokens % align;
		for (pos = 0; pos < all; pos += take) {
			take = all - pos;
			/* Padding cannot wrap: what fits is small, and what does not is not padded. */
			if (take > room || padded(pipe, take) > room)
				take = room - room % align < last - pos ? room - room % align : last - pos;
			if (take == 0) {
				if (room == pipe->slot_tokens || !(flags & OMNIKV_STEP_F_TILES))
					return -ENOSPC;
				nr++;
				room = pipe->slot_tokens;
				continue;
			}
			if (take < all - pos && !(flags & OMNIKV_STEP_F_TILES))
				return -ENOSPC;
			if (tiles) {
				tiles[nr - 1].from[i] = pos;
				tiles[nr - 1].to[i] = pos + take;
			}
			room -= padded(pipe, take);
		}
	}
	return nr <= UINT32_MAX / OMNIKV_LAYERS_MAX ? nr : -ENOSPC;
}

/* Where every sequence's rows lie in each group's planes. */
static void rows_place(struct omnikv_step *step, struct okv_pipe_tile *tile)
{
	struct omnikv_pipe *pipe = step->pipe;
	uint32_t g, i;

	for (g = 0; g < pipe->plan->layout.nr_groups; g++) {
		const struct omnikv_group *group = &pipe->plan->layout.groups[g];
		struct okv_pipe_rows *rows = &tile->rows[g];
		uint64_t at = 0;

		for (i = 0; i < step->nr_seqs; i++) {
			const struct omnikv_step_seq *s = &step->seqs[i];
			bool has_new = tile->from[i] < tile->to[i] && tile->to[i] == s->hist_tokens + s->new_tokens;
			bool is_kept = okv_pipe_is_kept(pipe, s);
			uint64_t first = okv_pipe_tokens_to_rows(group, tile->from[i]);

			rows->cu_kv[i] = at;
			rows->first[i] = group->tokens_per_entry ? first : 0;
			if (group->tokens_per_entry) {
				rows->nr_rows[i] = okv_pipe_tokens_to_rows(group, tile->to[i]) - first;
				rows->new_row[i] = at + okv_pipe_tokens_to_rows(group, s->hist_tokens) - first;
			} else {
				/* State: the new value takes the place of the old one, but for drafts. */
				rows->nr_rows[i] = has_new ? 1 + (is_kept ? s->new_tokens : 0) : 0;
				rows->new_row[i] = at + is_kept;
			}
			if (!has_new)
				rows->new_row[i] = OMNIKV_ROW_NONE;
			at += group->tokens_per_entry == 1 ? padded(pipe, rows->nr_rows[i]) : rows->nr_rows[i];
		}
		rows->cu_kv[step->nr_seqs] = at;
	}
}

/* Cut the step into tiles and place them; memory for them and for all stages. */
static int tiles_make(struct omnikv_step *step, uint32_t flags)
{
	struct omnikv_pipe *pipe = step->pipe;
	uint32_t n = step->nr_seqs, nr_groups = pipe->plan->layout.nr_groups, t, g;
	size_t words = 2 * (size_t)n + nr_groups * (4 * (size_t)n + 1);
	int64_t nr = tiles_cut(pipe, step->seqs, n, flags, NULL);
	uint64_t *at;
	int ret;

	if (nr < 0)
		return (int)nr;
	step->nr_tiles = (uint32_t)nr;
	step->nr_stages = step->nr_tiles * pipe->nr_layers;
	ret = grow(&pipe->tiles, &pipe->max_tiles, step->nr_tiles, sizeof(*pipe->tiles));
	if (!ret)
		ret = grow(&pipe->tile_words, &pipe->max_tile_words, step->nr_tiles * words, sizeof(uint64_t));
	if (!ret)
		ret = stages_grow(pipe, step->nr_stages);
	if (ret)
		return ret;
	memset(pipe->tile_words, 0, step->nr_tiles * words * sizeof(uint64_t));
	for (t = 0, at = pipe->tile_words; t < step->nr_tiles; t++) {
		struct okv_pipe_tile *tile = &pipe->tiles[t];

		tile->from = at;
		tile->to = at + n;
		at += 2 * (size_t)n;
		for (g = 0; g < nr_groups; g++) {
			tile->rows[g] = (struct okv_pipe_rows){ at, at + n + 1, at + 2 * (size_t)n + 1, at + 3 * (size_t)n + 1 };
			at += 4 * (size_t)n + 1;
		}
	}
	tiles_cut(pipe, step->seqs, n, flags, pipe->tiles);
	for (t = 0; t < step->nr_tiles; t++)
		rows_place(step, &pipe->tiles[t]);
	return 0;
}

static void stages_reset(struct omnikv_step *step)
{
	struct omnikv_pipe *pipe = step->pipe;
	uint32_t s;

	for (s = 0; s < step->nr_stages; s++) {
		struct okv_pipe_stage *stage = &pipe->stages[s];

		omnikv_event_reset(stage->loaded);
		omnikv_event_reset(stage->computed);
		omnikv_event_reset(stage->stored);
		omnikv_event_reset(stage->kept);
		omnikv_event_reset(stage->joined);
		omnikv_event_reset(stage->released);
		omnikv_event_reset(stage->poisoned);
		stage->ready = NULL;
		stage->freed = NULL;
		stage->pipe = pipe;
		stage->layer = s / step->nr_tiles;
		stage->tile = s % step->nr_tiles;
		stage->slot = s % pipe->nr_slots;
		memset(&stage->load, 0, sizeof(stage->load));
		memset(&stage->store, 0, sizeof(stage->store));
		memset(&stage->keep, 0, sizeof(stage->keep));
	}
}

int omnikv_step_begin(struct omnikv_pipe *pipe, const struct omnikv_step_seq *seqs, uint32_t nr_seqs,
		      uint32_t flags, struct omnikv_step **out)
{
	struct omnikv_step *step = &pipe->step;
	uint32_t i, base = 0;
	int ret;

	if (flags & ~OMNIKV_STEP_F_ALL)
		return -EINVAL;
	if (step->is_open)
		return -EAGAIN;
	ret = step_check(pipe, seqs, nr_seqs);
	if (ret)
		return ret;

	memcpy(step->seqs, seqs, nr_seqs * sizeof(*seqs));
	for (i = 0; i < nr_seqs; i++) {
		step->lanes[i] = (uint8_t)seqs[i].lane;
		step->draft_base[i] = base;
		if (okv_pipe_is_kept(pipe, &seqs[i]))
			base += (uint32_t)seqs[i].new_tokens;
	}
	step->nr_seqs = nr_seqs;
	step->next_load = 0;
	step->next_acquire = 0;
	step->next_release = 0;
	step->nr_pending = 0;
	step->error = 0;
	step->is_graph = flags & OMNIKV_STEP_F_GRAPH;
	pipe->report.text[0] = '\0';
	ret = tiles_make(step, flags);
	if (!ret && step->is_graph)
		ret = okv_pipe_graph_check(step);
	if (!ret)
		ret = step_reserve(step);
	if (ret)
		return ret;
	/* Their rows in HBM are written over. */
	okv_pipe_drafts_note(step, false);
	stages_reset(step);
	step->is_open = true;
	ret = load_ahead(step);
	if (!ret && step->is_graph)
		ret = okv_pipe_graph_queue(step);
	if (ret) {
		/* Nothing has been computed: what was queued is harmless, but must end first. */
		if (step->is_graph)
			okv_pipe_graph_cancel(step);
		if (!okv_pipe_reap(step))
			step->is_open = false;
		return ret;
	}
	pipe->stats.nr_steps++;
	*out = step;
	return 0;
}

void okv_pipe_view_place(const struct omnikv_pipe *pipe, uint32_t layer_nr, uint32_t slot_nr, struct omnikv_view *view)
{
	const struct okv_pipe_layer *layer = &pipe->layers[layer_nr];
	uint8_t *slot = (uint8_t *)omnikv_hbm_ptr(pipe->hbm) + slot_nr * pipe->slot_bytes;
	uint32_t g, p;

	*view = (struct omnikv_view){
		.layer = layer_nr, .nr_groups = layer->nr_groups, .nr_tiles = 1, .page_rows = pipe->page_rows,
	};
	for (g = 0; g < layer->nr_groups; g++) {
		const struct okv_pipe_group *lg = &layer->groups[g];
		struct omnikv_group_view *gv = &view->groups[g];

		gv->group = lg->group;
		gv->nr_planes = pipe->plan->layout.groups[lg->group].nr_planes;
		for (p = 0; p < gv->nr_planes; p++) {
			gv->planes[p].rows = slot + lg->plane_off[p];
			gv->planes[p].row_bytes = pipe->plan->groups[lg->group].row_bytes[p];
		}
	}
}

void okv_pipe_view_fill(const struct omnikv_step *step, const struct okv_pipe_stage *stage, struct omnikv_view *view)
{
	const struct omnikv_pipe *pipe = step->pipe;
	uint32_t g;

	okv_pipe_view_place(pipe, stage->layer, stage->slot, view);
	view->nr_seqs = step->nr_seqs;
	view->tile = stage->tile;
	view->nr_tiles = step->nr_tiles;
	view->lanes = step->lanes;
	for (g = 0; g < view->nr_groups; g++) {
		struct omnikv_group_view *gv = &view->groups[g];
		const struct okv_pipe_rows *rows = &pipe->tiles[stage->tile].rows[gv->group];

		gv->cu_kv = rows->cu_kv;
		gv->nr_rows = rows->nr_rows;
		gv->new_row = rows->new_row;
		gv->first = rows->first;
	}
}

static int stage_acquire(struct omnikv_step *step, uint32_t s, struct omnikv_stream *stream, struct omnikv_view *view)
{
	struct omnikv_pipe *pipe = step->pipe;
	struct okv_pipe_stage *stage = &pipe->stages[s];
	int ret = 0;

	if (stage->ready)
		ret = omnikv_stream_wait(stream, stage->ready);
	if (!ret && pipe->is_debug)
		ret = okv_pipe_debug_before(stage, stream);
	if (ret)
		return ret;
	okv_pipe_view_fill(step, stage, view);
	step->next_acquire++;
	return 0;
}

int omnikv_layer_acquire(struct omnikv_step *step, uint32_t layer_nr, struct omnikv_stream *stream,
			 struct omnikv_view *view)
{
	if (!step->is_open || step->is_graph || step->next_acquire >= step->next_load || step->next_acquire % step->nr_tiles ||
	    layer_nr != step->next_acquire / step->nr_tiles)
		return step->error ? step->error : -EINVAL;
	return stage_acquire(step, step->next_acquire, stream, view);
}

/* When is the slot free? Two operations that read it are joined; debug views poison it first. */
static int stage_freed(struct okv_pipe_stage *stage)
{
	struct omnikv_pipe *pipe = stage->pipe;
	int ret = 0;

	stage->freed = stage->store.nr_pieces ? stage->stored : stage->keep.nr_pieces ? stage->kept : stage->computed;
	if (stage->store.nr_pieces && stage->keep.nr_pieces) {
		ret = omnikv_stream_wait(pipe->aux, stage->stored);
		if (!ret)
			ret = omnikv_stream_wait(pipe->aux, stage->kept);
		if (!ret)
			ret = omnikv_stream_record(pipe->aux, stage->released);
		stage->freed = stage->released;
	}
	if (!ret && pipe->is_debug) {
		ret = okv_pipe_debug_poison(stage);
		stage->freed = stage->poisoned;
	}
	return ret;
}

int okv_pipe_stage_release(struct omnikv_step *step, struct omnikv_stream *stream)
{
	struct okv_pipe_stage *stage = &step->pipe->stages[step->next_release];
	int ret = 0;

	if (step->pipe->is_debug)
		ret = okv_pipe_debug_after(stage, stream);
	/* In a graph the replay does it. */
	if (!ret && stream)
		ret = omnikv_stream_record(stream, stage->computed);
	if (!ret)
		ret = op_build(stage, &stage->store, OKV_PIPE_STORE);
	if (!ret && step->pipe->draft_tokens)
		ret = op_build(stage, &stage->keep, OKV_PIPE_KEEP);
	if (!ret && stage->store.nr_pieces)
		ret = okv_pipe_submit(step, &stage->store, stage->computed, stage->stored);
	if (!ret && stage->keep.nr_pieces)
		ret = okv_pipe_submit(step, &stage->keep, stage->computed, stage->kept);
	if (!ret)
		ret = stage_freed(stage);
	if (ret)
		goto err_step;
	step->next_release++;
	ret = load_ahead(step);
	if (ret)
		goto err_step;
	return 0;

err_step:
	/* The step cannot go on; its end reports this. */
	step->error = ret;
	step->error_layer = stage->layer;
	return ret;
}

int omnikv_view_next_tile(struct omnikv_step *step, struct omnikv_stream *stream, struct omnikv_view *view)
{
	int ret;

	if (!step->is_open || step->error || step->next_release >= step->next_acquire)
		return step->error ? step->error : -EINVAL;
	if (step->next_acquire % step->nr_tiles == 0)
		return 0;
	ret = okv_pipe_stage_release(step, stream);
	if (!ret)
		ret = stage_acquire(step, step->next_acquire, stream, view);
	return ret ? ret : 1;
}

int omnikv_layer_release(struct omnikv_step *step, uint32_t layer_nr, struct omnikv_stream *stream)
{
	/* A second attempt would add to what the first one has collected. */
	if (step->is_open && step->error)
		return step->error;
	/* The last tile is under way. */
	if (!step->is_open || step->is_graph || step->next_release >= step->next_acquire ||
	    step->next_acquire % step->nr_tiles || layer_nr != step->next_release / step->nr_tiles)
		return -EINVAL;
	return okv_pipe_stage_release(step, stream);
}

/* Has anything been stored, or been on its way? */
static bool step_has_stored(const struct omnikv_step *step)
{
	return step->next_release || step->error;
}

int omnikv_seq_abort(struct omnikv_step *step, struct omnikv_seq *seq)
{
	uint32_t i;

	for (i = 0; i < step->nr_seqs; i++) {
		if (seq && step->seqs[i].seq == seq) {
			/* Some layers of its new rows are stored, others never will be. */
			if (step->seqs[i].new_tokens)
				okv_seq_mark_lost(seq, step->seqs[i].hist_tokens);
			if (step->seqs[i].new_tokens && step_has_stored(step))
				okv_seq_mark_state_written(seq);
			step->seqs[i].seq = NULL;
			return 0;
		}
	}
	return -ENOENT;
}

/* First token that a failed operation lost, of sequences that still matter; false when none does. */
static bool op_first_lost(const struct omnikv_step *step, const struct okv_pipe_op *op, struct omnikv_step_error *error)
{
	const struct omnikv_pipe *pipe = step->pipe;
	uint32_t r, i;

	for (r = 0; r < op->nr_runs; r++) {
		const struct okv_pipe_run *run = &op->runs[r];
		const struct omnikv_group *group = &pipe->plan->layout.groups[run->group];
		uint64_t bytes = 0, per = group->tokens_per_entry ? group->tokens_per_entry : 1;

		if (!step->seqs[run->seq_idx].seq)
			continue;
		for (i = 0; i < run->nr_pieces; i++) {
			uint32_t piece = run->first_piece + i;

			if (!(op->valid[piece / 64] >> (piece % 64) & 1))
				break;
			bytes += op->pieces[piece].bytes;
		}
		if (i == run->nr_pieces)
			continue;
		error->layer = op->layer;
		error->seq_idx = run->seq_idx;
		error->first_lost_token = run->from + bytes / pipe->plan->groups[run->group].row_bytes[run->plane] * per;
		return true;
	}
	return false;
}

/* The first operation, in layer order, that failed for a sequence that was not aborted. */
static int step_first_error(const struct omnikv_step *step, struct omnikv_step_error *error)
{
	uint32_t s, k;

	for (s = 0; s < step->nr_stages; s++) {
		const struct okv_pipe_stage *stage = &step->pipe->stages[s];
		const struct okv_pipe_op *ops[] = { &stage->load, &stage->store, &stage->keep };

		for (k = 0; k < 3; k++) {
			if (ops[k]->nr_pieces == 0 || ops[k]->res >= 0 || !op_first_lost(step, ops[k], error))
				continue;
			return ops[k]->res == -ESTALE ? -ENODATA : (int)ops[k]->res;
		}
	}
	return 0;
}

/* Fold the sums of one plane's pieces, one piece a block, into the sums of their blocks. */
static void run_fold(const struct okv_pipe_op *op, const struct okv_pipe_run *run, uint32_t *sums)
{
	struct okv_crc32c_shift shift = { .len = 0 };
	uint32_t i;

	for (i = 0; i < run->nr_pieces; i++) {
		const struct omnikv_piece *piece = &op->pieces[run->first_piece + i];

		if (shift.len != piece->bytes)
			okv_crc32c_shift_init(&shift, piece->bytes);
		sums[i] = okv_crc32c_combine(&shift, sums[i], op->crc[run->first_piece + i]);
	}
}

/* Compare one sequence's loaded blocks of one group with what was committed. */
static int seq_verify(struct omnikv_step *step, uint32_t seq_idx, uint32_t g, uint32_t *sums,
		      struct omnikv_step_error *error)
{
	struct omnikv_pipe *pipe = step->pipe;
	const struct omnikv_step_seq *s = &step->seqs[seq_idx];
	const struct omnikv_group *group = &pipe->plan->layout.groups[g];
	uint64_t t = pipe->plan->block_tokens;
	uint64_t cached = omnikv_seq_cached_tokens(s->seq);
	uint64_t first = group->tokens_per_entry ? 0 : (s->hist_tokens - 1) / t;
	uint64_t nr = (s->hist_tokens - 1) / t + 1 - first, b;
	uint32_t l, r, want;

	/* A block lies in one tile, so that layers, planes and rows come in the order of the sum. */
	memset(sums, 0, nr * sizeof(*sums));
	for (l = 0; l < step->nr_stages; l++) {
		const struct okv_pipe_op *load = &pipe->stages[l].load;

		for (r = 0; r < load->nr_runs; r++) {
			const struct okv_pipe_run *run = &load->runs[r];
			const struct okv_pipe_layer *layer = &pipe->layers[pipe->stages[l].layer];
			bool is_alias = false;
			uint32_t k;

			for (k = 0; k < layer->nr_groups; k++)
				is_alias |= layer->groups[k].group == g && layer->groups[k].alias_of >= 0;
			if (run->seq_idx == seq_idx && run->group == g && !is_alias)
				run_fold(load, run, sums + (group->tokens_per_entry ? run->from / t : 0));
		}
	}
	for (b = first; b < first + nr; b++) {
		uint64_t in_cache = cached > b * t ? cached - b * t : 0;
		uint64_t loaded = s->hist_tokens - b * t;

		/* A block of which only a part was loaded has no sum to compare with. */
		if ((in_cache < t ? in_cache : t) != (loaded < t ? loaded : t) ||
		    omnikv_seq_block_crc(s->seq, b, g, &want))
			continue;
		if (want == sums[b - first])
			continue;
		pipe->stats.checksum_errors++;
		if (error->first_lost_token > b * t) {
			error->first_lost_token = b * t;
			error->seq_idx = seq_idx;
			error->layer = 0;
		}
		return -EBADMSG;
	}
	return 0;
}

static int step_verify(struct omnikv_step *step, struct omnikv_step_error *error)
{
	struct omnikv_pipe *pipe = step->pipe;
	uint32_t *sums;
	uint64_t most = 0;
	uint32_t i, g;
	int ret = 0;

	for (i = 0; i < step->nr_seqs; i++) {
		if (step->seqs[i].seq && blocks_touched(pipe, 0, step->seqs[i].hist_tokens) > most)
			most = blocks_touched(pipe, 0, step->seqs[i].hist_tokens);
	}
	if (most == 0)
		return 0;
	sums = calloc(most, sizeof(*sums));
	if (!sums)
		return -ENOMEM;
	for (i = 0; i < step->nr_seqs && !ret; i++) {
		if (!step->seqs[i].seq || step->seqs[i].hist_tokens == 0)
			continue;
		/* The earliest loss of a sequence counts, whichever group it is in. */
		error->first_lost_token = UINT64_MAX;
		for (g = 0; g < pipe->plan->layout.nr_groups; g++) {
			int one = seq_verify(step, i, g, sums, error);

			ret = ret ? ret : one;
		}
	}
	free(sums);
	return ret;
}

static void stats_add(struct omnikv_pipe *pipe)
{
	uint32_t s;

	for (s = 0; s < pipe->step.nr_stages; s++) {
		const struct okv_pipe_op *load = &pipe->stages[s].load, *store = &pipe->stages[s].store;

		if (load->nr_pieces && load->res > 0) {
			pipe->stats.bytes_loaded += (uint64_t)load->res;
			pipe->stats.pieces_loaded += load->nr_pieces;
		}
		if (store->nr_pieces && store->res > 0) {
			pipe->stats.bytes_stored += (uint64_t)store->res;
			pipe->stats.pieces_stored += store->nr_pieces;
		}
	}
}

/*
 * What a failed step computed must not be published, whichever of its sequences failed; a
 * block that is not what was committed must not be hit again.
 */
static void step_settle(struct omnikv_step *step, int ret, const struct omnikv_step_error *error)
{
	uint32_t i;

	for (i = 0; i < step->nr_seqs; i++) {
		const struct omnikv_step_seq *s = &step->seqs[i];

		if (!s->seq || s->new_tokens == 0)
			continue;
		/* Drafts are not stored before some are accepted. */
		if (ret || okv_pipe_is_kept(step->pipe, s))
			okv_seq_mark_lost(s->seq, s->hist_tokens);
		else
			okv_seq_mark_stored(s->seq, s->hist_tokens, s->hist_tokens + s->new_tokens);
		if (step_has_stored(step) && !okv_pipe_is_kept(step->pipe, s))
			okv_seq_mark_state_written(s->seq);
	}
	if (ret == -EBADMSG && step->seqs[error->seq_idx].seq)
		okv_seq_distrust(step->seqs[error->seq_idx].seq, error->first_lost_token / step->pipe->plan->block_tokens);
}

int omnikv_step_end(struct omnikv_step *step, struct omnikv_step_error *out)
{
	struct omnikv_step_error error = { 0 };
	uint32_t i;
	int ret;

	if (!step->is_open)
		return -EINVAL;
	ret = okv_pipe_reap(step);
	if (!ret)
		ret = kernels_wait(step);
	if (ret) {
		/*
		 * What outlived its deadline cannot be recalled: the pipe stays busy with it. The
		 * sequences are the caller's again, and what was not stored stays out of the cache.
		 */
		step_settle(step, ret, &error);
		for (i = 0; i < step->nr_seqs; i++)
			step->seqs[i].seq = NULL;
		return ret;
	}
	step->is_open = false;
	stats_add(step->pipe);
	ret = step_first_error(step, &error);
	if (!ret && step->error) {
		ret = step->error;
		error.layer = step->error_layer;
	}
	if (!ret && step->next_release != step->nr_stages) {
		ret = -ECANCELED;
		error.layer = step->next_release / step->nr_tiles;
	}
	if (!ret && step->pipe->verify)
		ret = step_verify(step, &error);
	if (!ret && step->pipe->report.text[0])
		ret = -EUCLEAN;
	step_settle(step, ret, &error);
	okv_pipe_drafts_note(step, !ret);
	if (ret && out)
		*out = error;
	return ret;
}

int omnikv_pipe_stats(const struct omnikv_pipe *pipe, struct omnikv_pipe_stats *stats)
{
	if (stats->size != sizeof(*stats))
		return -EINVAL;
	*stats = pipe->stats;
	return 0;
}

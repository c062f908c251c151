/* SPDX-License-Identifier: MIT */
/*
 * The layer pipeline: order of loads, kernels and stores over a ring of R layer buffers.
 *
 * Owns the division of HBM into slots and the dependencies between operations; rows come from
 * sequences, bytes are moved by the ring. One thread.
 *
 * Layer l uses slot l % R. What waits for what, all on the device, nothing on the host:
 *
 *     load(l)   after  freed(l - R)                 the slot's previous layer is done with it
 *     kernel(l) after  load(l), or freed(l - R)     when there is no history to load
 *     store(l)  after  kernel(l)
 *     freed(l)  =      store(l), or kernel(l)       when there is nothing to store
 *
 * All operations of a step are kept until its end, so that a failed one can be traced to the
 * first token that was lost, and checksums be folded in layer order whatever order they came in.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <omnikv/pipeline.h>

#include "crc32c.h"
#include "sequence.h"

/* Planes begin at multiples of this, so that kernels may use their widest loads. */
#define PLANE_ALIGN 256u
#define DEADLINE_NS (600ull * 1000 * 1000 * 1000)
#define REAP_TIMEOUT_NS (120ull * 1000 * 1000 * 1000)

/* Pieces of one plane of one sequence inside one operation. */
struct run {
	uint32_t	seq_idx;
	uint32_t	layer_idx;
	uint32_t	group;
	uint32_t	plane;
	uint32_t	first_piece;
	uint32_t	nr_pieces;
	uint64_t	from;		/* first token */
	uint64_t	to;
};

/* The load or the store of one layer. */
struct op {
	struct omnikv_piece	*pieces;
	uint64_t		*valid;
	uint32_t		*crc;
	struct run		*runs;
	uint32_t		nr_pieces;
	uint32_t		nr_runs;
	uint32_t		layer;
	bool			is_store;
	bool			is_pending;	/* its last completion has not been seen */
	int64_t			res;
};

/* One group of one layer: where it is stored, and where in a slot its planes lie. */
struct layer_group {
	uint32_t		group;
	uint32_t		layer_idx;	/* among the group's stored layers */
	int32_t			alias_of;	/* source layer, or -1 */
	uint64_t		plane_off[OMNIKV_PLANES_MAX];
};

struct layer {
	uint32_t		nr_groups;
	struct layer_group	groups[OMNIKV_GROUPS_MAX];
	struct op		load;
	struct op		store;
	struct omnikv_event	*loaded;
	struct omnikv_event	*computed;
	struct omnikv_event	*stored;
	struct omnikv_event	*joined;	/* only where an alias needs two events at once */
	/* Of this step; NULL where there is nothing to wait for. */
	struct omnikv_event	*ready;		/* the kernel may run: loaded, or what the load would wait for */
	struct omnikv_event	*freed;		/* the slot may be re-used: computed or stored */
};

/* Rows of every sequence in one group's planes, the same for all its layers. */
struct rows {
	uint64_t		*cu_kv;		/* [max_seqs + 1] */
	uint64_t		*new_row;	/* [max_seqs] */
};

struct omnikv_step {
	struct omnikv_pipe	*pipe;
	struct omnikv_step_seq	*seqs;		/* [max_seqs]; seq is NULL once aborted */
	uint32_t		nr_seqs;
	uint32_t		next_load;
	uint32_t		next_acquire;
	uint32_t		next_release;
	uint32_t		nr_pending;
	bool			is_open;
	int			error;		/* submission failed in the middle */
	uint32_t		error_layer;
};

struct omnikv_pipe {
	struct omnikv_space	*space;
	struct omnikv_ring	*ring;
	struct omnikv_device	*dev;
	struct omnikv_hbm	*hbm;
	const struct omnikv_plan *plan;
	uint32_t		nr_slots;
	uint32_t		max_seqs;
	uint64_t		slot_tokens;
	uint64_t		slot_bytes;
	uint64_t		deadline_ns;
	bool			verify;
	uint32_t		nr_layers;
	struct layer		*layers;
	struct rows		rows[OMNIKV_GROUPS_MAX];
	struct omnikv_stream	*aux;		/* joins two events where an alias needs both */
	struct omnikv_step	step;
	struct omnikv_pipe_stats stats;
	/* Storage of all operations, grown at step begin. */
	struct omnikv_piece	*pieces;
	uint64_t		*valid;
	uint32_t		*crc;
	struct run		*runs;
	size_t			max_pieces;
	size_t			max_valid;
	size_t			max_runs;
	size_t			nr_pieces;
	size_t			nr_valid;
	size_t			nr_runs;
};

/* Rows that tokens [0, tokens) fill in a group's plane. */
static uint64_t tokens_to_rows(const struct omnikv_group *group, uint64_t tokens)
{
	if (group->tokens_per_entry == 0)
		return tokens ? 1 : 0;
	return tokens / group->tokens_per_entry;
}

/* Rows that a slot must hold for a group. */
static uint64_t group_slot_rows(const struct omnikv_group *group, uint64_t slot_tokens, uint32_t max_seqs)
{
	if (group->tokens_per_entry == 0)
		return max_seqs;
	return slot_tokens / group->tokens_per_entry;
}

/* Place the planes of all groups of one layer; false when a product wraps. */
static bool layer_bytes(const struct omnikv_plan *plan, uint32_t layer, uint64_t slot_tokens, uint32_t max_seqs,
			struct layer *out, uint64_t *bytes)
{
	uint64_t off = 0;
	uint32_t g, i, p;

	if (out)
		out->nr_groups = 0;
	for (g = 0; g < plan->layout.nr_groups; g++) {
		const struct omnikv_group *group = &plan->layout.groups[g];
		uint64_t rows = group_slot_rows(group, slot_tokens, max_seqs);
		struct layer_group *lg = NULL;
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
			uint64_t size;

			if (lg)
				lg->plane_off[p] = off;
			if (__builtin_mul_overflow(rows, plan->groups[g].row_bytes[p], &size) ||
			    __builtin_add_overflow(size, PLANE_ALIGN - 1, &size))
				return false;
			size &= ~(uint64_t)(PLANE_ALIGN - 1);
			if (__builtin_add_overflow(off, size, &off))
				return false;
		}
	}
	*bytes = off;
	return true;
}

static uint64_t slot_bytes(const struct omnikv_plan *plan, uint64_t slot_tokens, uint32_t max_seqs)
{
	uint64_t most = 0, bytes;
	uint32_t l;

	for (l = 0; l < plan->layout.nr_layers; l++) {
		if (!layer_bytes(plan, l, slot_tokens, max_seqs, NULL, &bytes))
			return 0;
		if (bytes > most)
			most = bytes;
	}
	return most;
}

static bool config_read(const struct omnikv_pipe_config *config, struct omnikv_pipe_config *out)
{
	if (!config || config->size != sizeof(*config) || config->slot_tokens == 0 ||
	    config->nr_slots > OMNIKV_LAYERS_MAX || config->max_seqs > (1u << 20))
		return false;
	*out = *config;
	if (out->nr_slots == 0)
		out->nr_slots = 2;
	if (out->max_seqs == 0)
		out->max_seqs = 64;
	if (out->deadline_ns == 0)
		out->deadline_ns = DEADLINE_NS;
	return true;
}

uint64_t omnikv_pipe_hbm_bytes(const struct omnikv_plan *plan, const struct omnikv_pipe_config *config)
{
	struct omnikv_pipe_config c;
	uint64_t bytes;

	if (!config_read(config, &c) ||
	    __builtin_mul_overflow(slot_bytes(plan, c.slot_tokens, c.max_seqs), c.nr_slots, &bytes))
		return 0;
	return bytes;
}

static void pipe_free(struct omnikv_pipe *pipe)
{
	uint32_t g, l;

	for (l = 0; pipe->layers && l < pipe->nr_layers; l++) {
		if (pipe->layers[l].loaded)
			omnikv_event_destroy(pipe->layers[l].loaded);
		if (pipe->layers[l].computed)
			omnikv_event_destroy(pipe->layers[l].computed);
		if (pipe->layers[l].stored)
			omnikv_event_destroy(pipe->layers[l].stored);
		if (pipe->layers[l].joined)
			omnikv_event_destroy(pipe->layers[l].joined);
	}
	if (pipe->aux)
		omnikv_stream_destroy(pipe->aux);
	for (g = 0; g < OMNIKV_GROUPS_MAX; g++) {
		free(pipe->rows[g].cu_kv);
		free(pipe->rows[g].new_row);
	}
	free(pipe->step.seqs);
	free(pipe->layers);
	free(pipe->pieces);
	free(pipe->valid);
	free(pipe->crc);
	free(pipe->runs);
	free(pipe);
}

static void error_set(struct omnikv_error *err, const char *text)
{
	if (err)
		snprintf(err->text, sizeof(err->text), "%s", text);
}

int omnikv_pipe_create(struct omnikv_space *space, struct omnikv_ring *ring, struct omnikv_hbm *hbm,
		       const struct omnikv_pipe_config *config, struct omnikv_pipe **out,
		       struct omnikv_error *err)
{
	const struct omnikv_plan *plan = omnikv_space_plan(space);
	struct omnikv_pipe_config c;
	struct omnikv_pipe *pipe;
	uint64_t need, unused;
	uint32_t g, l;
	int ret = -ENOMEM;

	if (!config_read(config, &c)) {
		error_set(err, "pipe: slot_tokens is 0, or nr_slots or max_seqs out of range");
		return -EINVAL;
	}
	need = omnikv_pipe_hbm_bytes(plan, &c);
	if (need == 0) {
		error_set(err, "pipe: a slot of this many tokens exceeds 64-bit sizes; give fewer slot_tokens");
		return -EINVAL;
	}
	if (need > omnikv_hbm_bytes(hbm)) {
		error_set(err, "pipe: the HBM given is smaller than nr_slots layer buffers; see omnikv_pipe_hbm_bytes()");
		return -ENOSPC;
	}

	pipe = calloc(1, sizeof(*pipe));
	if (!pipe)
		return -ENOMEM;
	pipe->space = space;
	pipe->ring = ring;
	pipe->dev = omnikv_ring_device(ring);
	pipe->hbm = hbm;
	pipe->plan = plan;
	pipe->nr_slots = c.nr_slots;
	pipe->max_seqs = c.max_seqs;
	pipe->slot_tokens = c.slot_tokens;
	pipe->slot_bytes = slot_bytes(plan, c.slot_tokens, c.max_seqs);
	pipe->verify = c.verify;
	pipe->deadline_ns = c.deadline_ns;
	pipe->nr_layers = plan->layout.nr_layers;
	pipe->stats.size = sizeof(pipe->stats);

	pipe->layers = calloc(pipe->nr_layers, sizeof(*pipe->layers));
	pipe->step.seqs = calloc(pipe->max_seqs, sizeof(*pipe->step.seqs));
	if (!pipe->layers || !pipe->step.seqs)
		goto err_free;
	for (g = 0; g < plan->layout.nr_groups; g++) {
		pipe->rows[g].cu_kv = calloc((size_t)pipe->max_seqs + 1, sizeof(uint64_t));
		pipe->rows[g].new_row = calloc(pipe->max_seqs, sizeof(uint64_t));
		if (!pipe->rows[g].cu_kv || !pipe->rows[g].new_row)
			goto err_free;
	}
	for (l = 0; l < pipe->nr_layers; l++) {
		struct layer *layer = &pipe->layers[l];

		layer_bytes(plan, l, c.slot_tokens, c.max_seqs, layer, &unused);
		ret = omnikv_event_create(pipe->dev, &layer->loaded);
		if (!ret)
			ret = omnikv_event_create(pipe->dev, &layer->computed);
		if (!ret)
			ret = omnikv_event_create(pipe->dev, &layer->stored);
		for (g = 0; g < layer->nr_groups && !ret && !layer->joined; g++) {
			if (layer->groups[g].alias_of >= 0)
				ret = omnikv_event_create(pipe->dev, &layer->joined);
		}
		if (ret)
			goto err_free;
	}
	ret = omnikv_stream_create(pipe->dev, &pipe->aux);
	if (ret)
		goto err_free;
	*out = pipe;
	return 0;

err_free:
	pipe_free(pipe);
	return ret;
}

/* One result of the ring: which operation it ends. */
static void reap_one(struct omnikv_step *step, const struct omnikv_cqe *cqe)
{
	struct op *op = (struct op *)(uintptr_t)cqe->user_data;

	if (!(cqe->flags & OMNIKV_CQE_F_NOTIF))
		op->res = cqe->res;
	if ((cqe->flags & OMNIKV_CQE_F_MORE) || !op->is_pending)
		return;
	op->is_pending = false;
	step->nr_pending--;
}

static int reap_all(struct omnikv_step *step)
{
	struct omnikv_cqe *cqe;
	int ret;

	while (step->nr_pending) {
		ret = omnikv_wait_cqe(step->pipe->ring, &cqe, REAP_TIMEOUT_NS);
		if (ret)
			return ret;
		reap_one(step, cqe);
		omnikv_cqe_seen(step->pipe->ring, cqe);
	}
	return 0;
}

/* Kernels of released layers read and write the slots until their events fire. */
static int kernels_wait(struct omnikv_step *step)
{
	struct omnikv_pipe *pipe = step->pipe;
	uint32_t l;

	for (l = 0; l < step->next_release; l++) {
		while (omnikv_event_query(pipe->layers[l].computed) == 0) {
			/* Nothing is left that could run, and the event has not fired: the stream is stuck. */
			if (omnikv_device_poll(pipe->dev) == 0)
				return -ETIME;
		}
	}
	return 0;
}

void omnikv_pipe_destroy(struct omnikv_pipe *pipe)
{
	if (!pipe)
		return;
	/* What a transfer still uses is leaked rather than handed to someone else. */
	if (pipe->step.is_open && (reap_all(&pipe->step) || kernels_wait(&pipe->step)))
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

static uint64_t blocks_touched(const struct omnikv_pipe *pipe, uint64_t from, uint64_t to)
{
	uint32_t t = pipe->plan->block_tokens;

	return to > from ? (to - 1) / t - from / t + 1 : 0;
}

/* Room for every operation of a step: none is allocated later. */
static int step_reserve(struct omnikv_pipe *pipe, const struct omnikv_step_seq *seqs, uint32_t nr_seqs)
{
	size_t nr_pieces = 0, nr_runs = 0, max_crc = pipe->verify ? pipe->max_pieces : 0;
	uint32_t l, i, g;
	int ret;

	for (l = 0; l < pipe->nr_layers; l++) {
		const struct layer *layer = &pipe->layers[l];

		for (g = 0; g < layer->nr_groups; g++) {
			size_t planes = pipe->plan->layout.groups[layer->groups[g].group].nr_planes;

			for (i = 0; i < nr_seqs; i++) {
				uint64_t hist = seqs[i].hist_tokens, all = hist + seqs[i].new_tokens;

				/* An alias loads everything, others load history and store the rest. */
				nr_pieces += planes * (blocks_touched(pipe, 0, all) + 1);
				nr_runs += planes * 2;
			}
		}
	}
	if (nr_pieces > OMNIKV_PIECES_MAX * (size_t)pipe->nr_layers)
		return -ENOSPC;
	ret = grow(&pipe->valid, &pipe->max_valid, nr_pieces / 64 + 2 * (size_t)pipe->nr_layers, sizeof(uint64_t));
	if (!ret)
		ret = grow(&pipe->runs, &pipe->max_runs, nr_runs, sizeof(struct run));
	if (!ret && pipe->verify)
		ret = grow(&pipe->crc, &max_crc, nr_pieces, sizeof(uint32_t));
	if (!ret)
		ret = grow(&pipe->pieces, &pipe->max_pieces, nr_pieces, sizeof(struct omnikv_piece));
	pipe->nr_pieces = 0;
	pipe->nr_valid = 0;
	pipe->nr_runs = 0;
	return ret;
}

/*
 * Append the pieces of tokens [from, to) of one plane. Where checksums are folded no piece
 * spans two blocks.
 */
static int op_add(struct omnikv_pipe *pipe, struct op *op, uint32_t seq_idx, const struct layer_group *lg,
		  uint32_t plane, uint64_t from, uint64_t to, uint64_t device_off)
{
	const struct omnikv_group *group = &pipe->plan->layout.groups[lg->group];
	uint64_t row_bytes = pipe->plan->groups[lg->group].row_bytes[plane];
	uint64_t t = pipe->plan->block_tokens, at, end;
	struct run *run = &pipe->runs[pipe->nr_runs];
	size_t first = pipe->nr_pieces;
	int64_t n;

	for (at = from; at < to; at = end) {
		end = to;
		if (op->crc && group->tokens_per_entry && (at / t + 1) * t < to)
			end = (at / t + 1) * t;
		n = omnikv_seq_pieces(pipe->step.seqs[seq_idx].seq, lg->group, lg->layer_idx, plane, at, end,
				      device_off, pipe->pieces + pipe->nr_pieces, pipe->max_pieces - pipe->nr_pieces);
		if (n < 0)
			return (int)n;
		pipe->nr_pieces += (size_t)n;
		device_off += (tokens_to_rows(group, end) - tokens_to_rows(group, at)) * row_bytes;
	}
	*run = (struct run){
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

static void op_init(struct omnikv_pipe *pipe, struct op *op, uint32_t layer, bool is_store)
{
	*op = (struct op){
		.pieces = pipe->pieces + pipe->nr_pieces,
		.crc = pipe->verify && !is_store ? pipe->crc + pipe->nr_pieces : NULL,
		.runs = pipe->runs + pipe->nr_runs,
		.layer = layer,
		.is_store = is_store,
	};
}

/* Collect what layer @l loads (history) or stores (new rows). */
static int op_build(struct omnikv_step *step, struct op *op, uint32_t l, bool is_store)
{
	struct omnikv_pipe *pipe = step->pipe;
	const struct layer *layer = &pipe->layers[l];
	uint64_t slot_off = (uint64_t)(l % pipe->nr_slots) * pipe->slot_bytes;
	uint32_t i, g, p;
	int ret;

	op_init(pipe, op, l, is_store);
	for (g = 0; g < layer->nr_groups; g++) {
		const struct layer_group *lg = &layer->groups[g];
		const struct omnikv_group *group = &pipe->plan->layout.groups[lg->group];
		const struct rows *rows = &pipe->rows[lg->group];

		if (is_store && lg->alias_of >= 0)
			continue;
		for (i = 0; i < step->nr_seqs; i++) {
			const struct omnikv_step_seq *s = &step->seqs[i];
			uint64_t from = is_store ? s->hist_tokens : 0;
			uint64_t to = is_store || lg->alias_of >= 0 ? s->hist_tokens + s->new_tokens : s->hist_tokens;
			uint64_t row = is_store ? rows->new_row[i] : rows->cu_kv[i];

			/* Entries that are not whole yet stay with the engine. */
			if (group->tokens_per_entry) {
				from -= from % group->tokens_per_entry;
				to -= to % group->tokens_per_entry;
			}
			if (!s->seq || from == to)
				continue;
			for (p = 0; p < group->nr_planes; p++) {
				ret = op_add(pipe, op, i, lg, p, from, to,
					     slot_off + lg->plane_off[p] + row * pipe->plan->groups[lg->group].row_bytes[p]);
				if (ret)
					return ret;
			}
		}
	}
	op->valid = pipe->valid + pipe->nr_valid;
	pipe->nr_valid += (op->nr_pieces + 63) / 64;
	memset(op->valid, 0, (op->nr_pieces + 63) / 64 * sizeof(*op->valid));
	return 0;
}

static int op_submit(struct omnikv_step *step, struct op *op, struct omnikv_event *wait, struct omnikv_event *signal)
{
	struct omnikv_pipe *pipe = step->pipe;
	struct omnikv_sqe *sqe;
	int ret;

	sqe = omnikv_get_sqe(pipe->ring);
	if (!sqe)
		return -EAGAIN;
	if (op->is_store)
		omnikv_prep_store(sqe, pipe->hbm, op->pieces, op->nr_pieces);
	else
		omnikv_prep_load(sqe, pipe->hbm, op->pieces, op->nr_pieces);
	sqe->user_data = (uintptr_t)op;
	sqe->valid = op->valid;
	sqe->crc = op->crc;
	sqe->wait = wait;
	sqe->signal = signal;
	sqe->deadline_ns = pipe->deadline_ns;
	while ((ret = omnikv_submit(pipe->ring)) == -EAGAIN && step->nr_pending) {
		/* A ring smaller than the step: the one case in which the host waits. */
		struct omnikv_cqe *cqe;

		ret = omnikv_wait_cqe(pipe->ring, &cqe, REAP_TIMEOUT_NS);
		if (ret)
			return ret;
		reap_one(step, cqe);
		omnikv_cqe_seen(pipe->ring, cqe);
	}
	if (ret < 0)
		return ret;
	op->is_pending = true;
	step->nr_pending++;
	return 0;
}

/* What the load of layer @l, or its kernel when nothing is loaded, has to wait for. */
static int slot_wait(struct omnikv_step *step, uint32_t l, struct omnikv_event **wait)
{
	struct omnikv_pipe *pipe = step->pipe;
	struct layer *layer = &pipe->layers[l];
	bool is_joined = false;
	uint32_t g;
	int ret = 0;

	*wait = l >= pipe->nr_slots ? pipe->layers[l - pipe->nr_slots].freed : NULL;
	for (g = 0; g < layer->nr_groups && !ret; g++) {
		int32_t src = layer->groups[g].alias_of;
		struct omnikv_event *source = src >= 0 ? pipe->layers[src].freed : NULL;

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
		ret = omnikv_stream_record(pipe->aux, layer->joined);
	if (is_joined)
		*wait = layer->joined;
	return ret;
}

/* Layer @l - R has been released, so its slot has a next user. */
static int load_submit(struct omnikv_step *step, uint32_t l)
{
	struct layer *layer = &step->pipe->layers[l];
	struct omnikv_event *wait;
	int ret;

	ret = op_build(step, &layer->load, l, false);
	if (!ret)
		ret = slot_wait(step, l, &wait);
	if (ret)
		return ret;
	layer->ready = wait;
	if (layer->load.nr_pieces == 0)
		return 0;
	ret = op_submit(step, &layer->load, wait, layer->loaded);
	if (!ret)
		layer->ready = layer->loaded;
	return ret;
}

/* Its slot has been released, and so have the layers that it is an alias of. */
static bool load_is_possible(const struct omnikv_step *step, uint32_t l)
{
	const struct layer *layer = &step->pipe->layers[l];
	uint32_t g;

	if (l >= step->next_release + step->pipe->nr_slots)
		return false;
	for (g = 0; g < layer->nr_groups; g++) {
		if (layer->groups[g].alias_of >= (int32_t)step->next_release)
			return false;
	}
	return true;
}

/* Queue every load whose slot and sources are released. */
static int load_ahead(struct omnikv_step *step)
{
	int ret = 0;

	while (step->next_load < step->pipe->nr_layers && load_is_possible(step, step->next_load) && !ret) {
		ret = load_submit(step, step->next_load);
		if (!ret)
			step->next_load++;
	}
	return ret;
}

static int step_check(const struct omnikv_pipe *pipe, const struct omnikv_step_seq *seqs, uint32_t nr_seqs)
{
	uint64_t total = 0, tokens;
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
		if (__builtin_add_overflow(total, tokens, &total) || total > pipe->slot_tokens)
			return -ENOSPC;
	}
	return 0;
}

/* Where every sequence's rows lie in each group's planes. */
static void rows_place(struct omnikv_pipe *pipe, const struct omnikv_step_seq *seqs, uint32_t nr_seqs)
{
	uint32_t g, i;

	for (g = 0; g < pipe->plan->layout.nr_groups; g++) {
		const struct omnikv_group *group = &pipe->plan->layout.groups[g];
		struct rows *rows = &pipe->rows[g];
		uint64_t at = 0;

		for (i = 0; i < nr_seqs; i++) {
			uint64_t hist = tokens_to_rows(group, seqs[i].hist_tokens);
			uint64_t all = tokens_to_rows(group, seqs[i].hist_tokens + seqs[i].new_tokens);

			rows->cu_kv[i] = at;
			/* State: the new value takes the place of the old one. */
			rows->new_row[i] = group->tokens_per_entry ? at + hist : at;
			at += all;
		}
		rows->cu_kv[nr_seqs] = at;
	}
}

int omnikv_step_begin(struct omnikv_pipe *pipe, const struct omnikv_step_seq *seqs, uint32_t nr_seqs,
		      uint32_t flags, struct omnikv_step **out)
{
	struct omnikv_step *step = &pipe->step;
	uint32_t l;
	int ret;

	if (flags)
		return -EINVAL;
	if (step->is_open)
		return -EAGAIN;
	ret = step_check(pipe, seqs, nr_seqs);
	if (!ret)
		ret = step_reserve(pipe, seqs, nr_seqs);
	if (ret)
		return ret;

	memcpy(step->seqs, seqs, nr_seqs * sizeof(*seqs));
	step->pipe = pipe;
	step->nr_seqs = nr_seqs;
	step->next_load = 0;
	step->next_acquire = 0;
	step->next_release = 0;
	step->nr_pending = 0;
	step->error = 0;
	rows_place(pipe, seqs, nr_seqs);
	for (l = 0; l < pipe->nr_layers; l++) {
		struct layer *layer = &pipe->layers[l];

		omnikv_event_reset(layer->loaded);
		omnikv_event_reset(layer->computed);
		omnikv_event_reset(layer->stored);
		if (layer->joined)
			omnikv_event_reset(layer->joined);
		layer->ready = NULL;
		layer->freed = NULL;
		memset(&layer->load, 0, sizeof(layer->load));
		memset(&layer->store, 0, sizeof(layer->store));
	}
	step->is_open = true;
	ret = load_ahead(step);
	if (ret) {
		/* Nothing has been computed: what was queued is harmless, but must end first. */
		reap_all(step);
		step->is_open = false;
		return ret;
	}
	pipe->stats.nr_steps++;
	*out = step;
	return 0;
}

int omnikv_layer_acquire(struct omnikv_step *step, uint32_t layer_nr, struct omnikv_stream *stream,
			 struct omnikv_view *view)
{
	struct omnikv_pipe *pipe = step->pipe;
	struct layer *layer;
	uint8_t *slot;
	uint32_t g, p;
	int ret = 0;

	if (!step->is_open || layer_nr != step->next_acquire || layer_nr >= step->next_load)
		return step->error ? step->error : -EINVAL;
	layer = &pipe->layers[layer_nr];
	if (layer->ready)
		ret = omnikv_stream_wait(stream, layer->ready);
	if (ret)
		return ret;

	slot = (uint8_t *)omnikv_hbm_ptr(pipe->hbm) + (uint64_t)(layer_nr % pipe->nr_slots) * pipe->slot_bytes;
	*view = (struct omnikv_view){ .layer = layer_nr, .nr_seqs = step->nr_seqs, .nr_groups = layer->nr_groups };
	for (g = 0; g < layer->nr_groups; g++) {
		const struct layer_group *lg = &layer->groups[g];
		struct omnikv_group_view *gv = &view->groups[g];

		gv->group = lg->group;
		gv->nr_planes = pipe->plan->layout.groups[lg->group].nr_planes;
		gv->cu_kv = pipe->rows[lg->group].cu_kv;
		gv->new_row = pipe->rows[lg->group].new_row;
		for (p = 0; p < gv->nr_planes; p++) {
			gv->planes[p].rows = slot + lg->plane_off[p];
			gv->planes[p].row_bytes = pipe->plan->groups[lg->group].row_bytes[p];
		}
	}
	step->next_acquire++;
	return 0;
}

int omnikv_layer_release(struct omnikv_step *step, uint32_t layer_nr, struct omnikv_stream *stream)
{
	struct omnikv_pipe *pipe = step->pipe;
	struct layer *layer;
	int ret;

	if (!step->is_open || layer_nr != step->next_release || layer_nr >= step->next_acquire)
		return -EINVAL;
	layer = &pipe->layers[layer_nr];
	ret = omnikv_stream_record(stream, layer->computed);
	if (!ret)
		ret = op_build(step, &layer->store, layer_nr, true);
	if (!ret && layer->store.nr_pieces)
		ret = op_submit(step, &layer->store, layer->computed, layer->stored);
	if (ret)
		goto err_step;
	layer->freed = layer->store.nr_pieces ? layer->stored : layer->computed;
	step->next_release++;
	ret = load_ahead(step);
	if (ret)
		goto err_step;
	return 0;

err_step:
	/* The step cannot go on; its end reports this. */
	step->error = ret;
	step->error_layer = layer_nr;
	return ret;
}

int omnikv_seq_abort(struct omnikv_step *step, struct omnikv_seq *seq)
{
	uint32_t i;

	for (i = 0; i < step->nr_seqs; i++) {
		if (seq && step->seqs[i].seq == seq) {
			step->seqs[i].seq = NULL;
			return 0;
		}
	}
	return -ENOENT;
}

/* First token that a failed operation lost, of sequences that still matter; false when none does. */
static bool op_first_lost(const struct omnikv_step *step, const struct op *op, struct omnikv_step_error *error)
{
	const struct omnikv_pipe *pipe = step->pipe;
	uint32_t r, i;

	for (r = 0; r < op->nr_runs; r++) {
		const struct run *run = &op->runs[r];
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
	uint32_t l, k;

	for (l = 0; l < step->pipe->nr_layers; l++) {
		const struct op *ops[2] = { &step->pipe->layers[l].load, &step->pipe->layers[l].store };

		for (k = 0; k < 2; k++) {
			if (ops[k]->nr_pieces == 0 || ops[k]->res >= 0 || !op_first_lost(step, ops[k], error))
				continue;
			return ops[k]->res == -ESTALE ? -ENODATA : (int)ops[k]->res;
		}
	}
	return 0;
}

/* Fold the sums of one plane's pieces, one piece a block, into the sums of their blocks. */
static void run_fold(const struct op *op, const struct run *run, uint32_t *sums)
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

	memset(sums, 0, nr * sizeof(*sums));
	for (l = 0; l < pipe->nr_layers; l++) {
		const struct op *load = &pipe->layers[l].load;

		for (r = 0; r < load->nr_runs; r++) {
			const struct run *run = &load->runs[r];
			const struct layer *layer = &pipe->layers[l];
			bool is_alias = false;
			uint32_t k;

			for (k = 0; k < layer->nr_groups; k++)
				is_alias |= layer->groups[k].group == g && layer->groups[k].alias_of >= 0;
			if (run->seq_idx == seq_idx && run->group == g && !is_alias)
				run_fold(load, run, sums);
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
	uint32_t l;

	for (l = 0; l < pipe->nr_layers; l++) {
		const struct op *load = &pipe->layers[l].load, *store = &pipe->layers[l].store;

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
		if (ret)
			okv_seq_mark_lost(s->seq, s->hist_tokens);
		else
			okv_seq_mark_stored(s->seq, s->hist_tokens, s->hist_tokens + s->new_tokens);
	}
	if (ret == -EBADMSG && step->seqs[error->seq_idx].seq)
		okv_seq_distrust(step->seqs[error->seq_idx].seq, error->first_lost_token / step->pipe->plan->block_tokens);
}

int omnikv_step_end(struct omnikv_step *step, struct omnikv_step_error *out)
{
	struct omnikv_step_error error = { 0 };
	int ret;

	if (!step->is_open)
		return -EINVAL;
	ret = reap_all(step);
	if (!ret)
		ret = kernels_wait(step);
	if (ret) {
		/* What outlived its deadline cannot be recalled: the pipe stays busy with it. */
		return ret;
	}
	step->is_open = false;
	stats_add(step->pipe);
	ret = step_first_error(step, &error);
	if (!ret && step->error) {
		ret = step->error;
		error.layer = step->error_layer;
	}
	if (!ret && step->next_release != step->pipe->nr_layers) {
		ret = -ECANCELED;
		error.layer = step->next_release;
	}
	if (!ret && step->pipe->verify)
		ret = step_verify(step, &error);
	step_settle(step, ret, &error);
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

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A toy engine: the whole stack under a "model" whose KV bytes are a known function.
 *
 * Every row of KV is f(stream of tokens, group, layer, plane, entry); kernels check all history
 * that they are shown and write new rows. So a byte that is wrong anywhere between store and
 * load is counted. One thread. Asserts on set-up failure.
 */
#ifndef TOY_ENGINE_H
#define TOY_ENGINE_H

#include <omnikv.h>

struct toy_config {
	const char			*device;	/* "host", "sim", "sim:kernels" or "cuda" */
	struct omnikv_device_config	device_config;
	const struct omnikv_layout	*layout;
	uint32_t			block_tokens;
	const char			*pool_spec;
	uint32_t			nr_slots;
	uint64_t			slot_tokens;
	uint64_t			layer_ns;	/* duration of a layer's kernel */
	bool				verify;
	uint32_t			draft_tokens;
	uint64_t			deadline_ns;	/* of the pipe */
};

struct toy_engine {
	struct toy_config		config;
	struct omnikv_plan		plan;
	struct omnikv_pool		*pool;
	struct omnikv_client		*client;
	struct omnikv_manager		*manager;
	struct omnikv_space		*space;
	struct omnikv_device		*dev;
	struct omnikv_stream		*stream;
	struct omnikv_ring		*ring;
	struct omnikv_hbm		*hbm;
	struct omnikv_pipe		*pipe;
	uint64_t			free_bytes;	/* of the pool, before anything was cached */
};

/** One sequence and the stream of tokens that it stands for. */
struct toy_seq {
	struct omnikv_seq	*seq;
	uint64_t		stream;
	enum omnikv_lane	lane;
	uint64_t		hist_tokens;
	uint64_t		new_tokens;
	uint64_t		wrong_bytes;	/* of history, as the kernels saw it */
};

void toy_engine_open(struct toy_engine *engine, const struct toy_config *config);
/** Checks the manager's invariants and that nothing is left allocated. */
void toy_engine_close(struct toy_engine *engine);

/** Key of the first @nr_tokens tokens of a stream. */
struct omnikv_key toy_key(uint64_t stream, uint64_t nr_tokens);
/** Open on the longest cached prefix of @nr_tokens tokens of @stream (full blocks and, if there is one, the tail). */
void toy_seq_open(struct toy_engine *engine, struct toy_seq *seq, uint64_t stream, uint64_t nr_tokens);
/** Publish all full blocks and, with @with_tail, the partial tail. Returns the blocks published. */
int64_t toy_seq_commit(struct toy_engine *engine, struct toy_seq *seq, bool with_tail);
/** One step over @seqs through all layers; the result of omnikv_step_end() or of what failed before it. */
int toy_step(struct toy_engine *engine, struct toy_seq *seqs, uint32_t nr_seqs, struct omnikv_step_error *error);
/** As toy_step(), calling @at_layer(@arg, step, layer) after each release. */
int toy_step_hooked(struct toy_engine *engine, struct toy_seq *seqs, uint32_t nr_seqs, struct omnikv_step_error *error,
		    void (*at_layer)(void *arg, struct omnikv_step *step, uint32_t layer), void *arg);

/** The kernels of all layers, captured once: on "cuda" a graph of the driver, elsewhere their launches one by one. */
struct toy_graph {
	struct omnikv_graph	*graph;
	struct toy_kernel	*kernels;
	void			*exec;		/* of the driver */
};

void toy_graph_open(struct toy_engine *engine, struct toy_graph *graph);
void toy_graph_close(struct toy_engine *engine, struct toy_graph *graph);
/**
 * One step by a replay. @at_launch(@arg, step) comes after the step's begin: what it returns says whether the graph is
 * launched (the step is cancelled else); may be NULL. *@late: whether a captured wait gave up.
 */
int toy_graph_step(struct toy_engine *engine, struct toy_graph *graph, struct toy_seq *seqs, uint32_t nr_seqs,
		   bool (*at_launch)(void *arg, struct omnikv_step *step), void *arg, bool *late);

#endif /* TOY_ENGINE_H */

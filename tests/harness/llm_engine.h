/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * An engine around the small transformer: its KV lives in a pool and passes through the layer pipeline.
 *
 * llm_step() is what an engine's step is: room for new tokens, layers in order, kernels on a stream,
 * logits at the end. One thread. Asserts on set-up failure.
 */
#ifndef LLM_ENGINE_H
#define LLM_ENGINE_H

#include <omnikv.h>

#include "llm_model.h"

struct llm_config {
	const char			*device;	/* "host", "sim", "sim:kernels" or "cuda" */
	struct omnikv_device_config	device_config;
	const struct llm_model		*model;
	uint32_t			block_tokens;
	const char			*pool_spec;
	uint32_t			nr_slots;
	uint64_t			slot_tokens;
	uint64_t			layer_ns;
	bool				verify;
	uint32_t			page_rows;
	uint32_t			draft_tokens;
	uint32_t			pipe_flags;
	uint32_t			step_flags;	/* of omnikv_step_begin() */
	struct omnikv_spill		*spill;		/* of the manager; NULL: none */
};

struct llm_engine {
	struct llm_config		config;
	struct omnikv_layout		layout;
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
	uint64_t			free_bytes;
	uint32_t			nr_tiles;	/* of the last step */
};

/**
 * struct llm_seq - one request
 * @tokens:  [max] all that is known of it, drafts included
 * @nr_done: of these, whose KV is in the sequence
 * @nr_new:  tokens that the next step computes, behind @nr_done
 * @parent:  as in struct llm_act
 * @logits:  [nr_new][vocab] after each token of the last step
 */
struct llm_seq {
	struct omnikv_seq	*seq;
	uint32_t		*tokens;
	uint64_t		max;
	uint64_t		nr_done;
	uint32_t		nr_new;
	const uint32_t		*parent;
	enum omnikv_lane	lane;
	struct llm_act		act;
	float			*logits;
};

void llm_engine_open(struct llm_engine *engine, const struct llm_config *config);
/** Checks the manager's invariants and that nothing is left allocated. */
void llm_engine_close(struct llm_engine *engine);

/** Open on the longest cached prefix of @tokens; @max_new: most tokens of one step. */
void llm_seq_open(struct llm_engine *engine, struct llm_seq *seq, const uint32_t *tokens, uint64_t nr_tokens,
		  uint64_t max, uint32_t max_new);
/** A fork of @from, with its tokens. */
void llm_seq_fork(struct llm_engine *engine, struct llm_seq *seq, struct llm_seq *from, uint32_t max_new);
void llm_seq_close(struct llm_seq *seq);
/** Publish what is stored; with @with_tail the partial block too. */
int64_t llm_seq_commit(struct llm_engine *engine, struct llm_seq *seq, bool with_tail);
/** Back to @nr_tokens. */
void llm_seq_truncate(struct llm_seq *seq, uint64_t nr_tokens);

/** Called after each layer's release. */
typedef void (*llm_hook)(void *arg, struct omnikv_step *step, uint32_t layer);
/**
 * One step over @seqs. 0: logits are there and nr_done has grown. Else the result of what failed, with the sequences
 * as they were.
 */
int llm_step(struct llm_engine *engine, struct llm_seq *seqs, uint32_t nr_seqs, struct omnikv_step_error *error,
	     llm_hook hook, void *arg);

#endif /* LLM_ENGINE_H */

/* SPDX-License-Identifier: MIT */
/*
 * The inside of a pipe, for pipeline.c, for drafts (pipeline_drafts.c) and for debug views
 * (pipeline_debug.c).
 *
 * A step is a list of stages: one for each tile of each layer, in order. Stage s uses slot s % R.
 * One thread; what debug views run as kernels runs inside a poll of that thread.
 */
#ifndef OKV_PIPELINE_H
#define OKV_PIPELINE_H

#include <omnikv/pipeline.h>

#define OKV_REAP_TIMEOUT_NS	(120ull * 1000 * 1000 * 1000)
#define OKV_POISON_BYTE		0xdb

/** Pieces of one plane of one sequence inside one operation. */
struct okv_pipe_run {
	uint32_t	seq_idx;
	uint32_t	layer_idx;
	uint32_t	group;
	uint32_t	plane;
	uint32_t	first_piece;
	uint32_t	nr_pieces;
	uint64_t	from;		/* first token */
	uint64_t	to;
};

enum okv_pipe_op_kind { OKV_PIPE_LOAD, OKV_PIPE_STORE, OKV_PIPE_KEEP };

/** The load or the store of one stage, or the copy of its draft rows. */
struct okv_pipe_op {
	struct omnikv_piece	*pieces;
	uint64_t		*valid;
	uint32_t		*crc;
	struct okv_pipe_run	*runs;
	uint32_t		nr_pieces;
	uint32_t		nr_runs;
	uint32_t		layer;
	enum okv_pipe_op_kind	kind;
	bool			is_pending;	/* its last completion has not been seen */
	int64_t			res;
};

/** One group of one layer: where it is stored, and where in a slot and among the drafts its planes lie. */
struct okv_pipe_group {
	uint32_t		group;
	uint32_t		layer_idx;	/* among the group's stored layers */
	int32_t			alias_of;	/* source layer, or -1 */
	uint64_t		plane_off[OMNIKV_PLANES_MAX];
	uint64_t		plane_bytes[OMNIKV_PLANES_MAX];
	uint64_t		draft_off[OMNIKV_PLANES_MAX];	/* from the start of the HBM */
};

struct okv_pipe_layer {
	uint32_t		nr_groups;
	struct okv_pipe_group	groups[OMNIKV_GROUPS_MAX];
};

/** Rows of every sequence in one group's planes in one tile, the same for all its layers. */
struct okv_pipe_rows {
	uint64_t		*cu_kv;		/* [nr_seqs + 1] */
	uint64_t		*nr_rows;	/* [nr_seqs] */
	uint64_t		*new_row;	/* [nr_seqs] */
	uint64_t		*first;		/* [nr_seqs] */
};

/** Which tokens of each sequence are in it. */
struct okv_pipe_tile {
	uint64_t		*from;		/* [nr_seqs] */
	uint64_t		*to;
	struct okv_pipe_rows	rows[OMNIKV_GROUPS_MAX];
};

/** One tile of one layer. Events are kept from step to step. */
struct okv_pipe_stage {
	struct omnikv_pipe	*pipe;
	uint32_t		layer;
	uint32_t		tile;
	uint32_t		slot;
	struct okv_pipe_op	load;
	struct okv_pipe_op	store;
	struct okv_pipe_op	keep;
	struct omnikv_event	*loaded;
	struct omnikv_event	*computed;
	struct omnikv_event	*stored;
	struct omnikv_event	*kept;
	struct omnikv_event	*joined;	/* where a load needs two events at once */
	struct omnikv_event	*released;	/* ... and where two operations read the slot */
	struct omnikv_event	*poisoned;
	/* Of this step; NULL where there is nothing to wait for. */
	struct omnikv_event	*ready;		/* the kernel may run: loaded, or what the load would wait for */
	struct omnikv_event	*freed;		/* the slot may be re-used: computed, stored, kept, both, or poisoned */
};

struct omnikv_step {
	struct omnikv_pipe	*pipe;
	struct omnikv_step_seq	*seqs;		/* [max_seqs]; seq is NULL once aborted */
	uint8_t			*lanes;		/* [max_seqs] */
	uint32_t		*draft_base;	/* [max_seqs] first draft row of a sequence in lane VERIFY */
	uint32_t		nr_seqs;
	uint32_t		nr_tiles;
	uint32_t		nr_stages;
	uint32_t		next_load;
	uint32_t		next_acquire;	/* stages */
	uint32_t		next_release;
	uint32_t		nr_pending;
	bool			is_open;
	bool			is_graph;	/* OMNIKV_STEP_F_GRAPH */
	int			error;		/* submission failed in the middle */
	uint32_t		error_layer;
};

/** Draft rows of one sequence that are kept since the last step. */
struct okv_pipe_draft {
	struct omnikv_seq	*seq;		/* NULL: none; may have been closed since */
	uint64_t		serial;
	uint64_t		hist_tokens;
	uint32_t		nr_tokens;
	uint32_t		base;
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
	uint32_t		page_rows;
	uint32_t		draft_tokens;
	bool			verify;
	bool			is_debug;
	uint32_t		nr_layers;
	struct okv_pipe_layer	*layers;
	struct omnikv_stream	*aux;		/* joins two events where one is wanted; poisons */
	struct omnikv_step	step;
	struct omnikv_pipe_stats stats;
	/* Drafts of the last step. */
	struct okv_pipe_draft	*drafts;	/* [max_seqs] */
	uint32_t		nr_drafts;	/* sequences of that step */
	struct omnikv_event	*accepted_event;
	const uint32_t		*accepted;	/* where the CPU reads it; NULL: not decided on the device */
	uint32_t		*accepted_copy;	/* [max_seqs]; NULL where the CPU reads device memory */
	struct okv_pipe_op	gather;		/* of omnikv_drafts_commit() */
	/* Storage of all operations, grown at step begin. */
	struct okv_pipe_stage	*stages;
	struct okv_pipe_tile	*tiles;
	uint64_t		*tile_words;
	struct omnikv_piece	*pieces;
	uint64_t		*valid;
	uint32_t		*crc;
	struct okv_pipe_run	*runs;
	size_t			nr_made;	/* stages whose events exist */
	size_t			max_stages;
	size_t			max_tiles;
	size_t			max_tile_words;
	size_t			max_pieces;
	size_t			max_valid;
	size_t			max_crc;
	size_t			max_runs;
	size_t			nr_pieces;
	size_t			nr_valid;
	size_t			nr_runs;
	/* Another size: the configuration that places everything, and who is told. */
	struct omnikv_pipe_config config;
	uint64_t		fewest_tokens;	/* of a slot */
	omnikv_pipe_resized_fn	resized;
	void			*resized_arg;
	bool			is_captured;	/* a graph has addresses of the slots */
	bool			is_graph_stale;	/* ... that are no longer so */
	/* Debug views. */
	struct omnikv_error	report;		/* the first thing that was wrong in the last step */
};

/** Rows that tokens [0, @tokens) fill in a group's plane. */
static inline uint64_t okv_pipe_tokens_to_rows(const struct omnikv_group *group, uint64_t tokens)
{
	if (group->tokens_per_entry == 0)
		return tokens ? 1 : 0;
	return tokens / group->tokens_per_entry;
}

static inline bool okv_pipe_is_kept(const struct omnikv_pipe *pipe, const struct omnikv_step_seq *seq)
{
	return pipe->draft_tokens && seq->lane == OMNIKV_LANE_VERIFY;
}

/** Append the pieces of tokens [@from, @to) of one plane to @op, whose run is added. */
int okv_pipe_add(struct omnikv_pipe *pipe, struct okv_pipe_op *op, struct omnikv_seq *seq, uint32_t seq_idx,
		 const struct okv_pipe_group *group, uint32_t plane, uint64_t from, uint64_t to, uint64_t device_off);
/** Storage for operations with so many pieces and runs in all; what was there is gone. */
int okv_pipe_reserve(struct omnikv_pipe *pipe, size_t nr_pieces, size_t nr_runs, size_t nr_ops);
void okv_pipe_op_begin(struct omnikv_pipe *pipe, struct okv_pipe_op *op, uint32_t layer, enum okv_pipe_op_kind kind);
void okv_pipe_op_finish(struct omnikv_pipe *pipe, struct okv_pipe_op *op);
int okv_pipe_submit(struct omnikv_step *step, struct okv_pipe_op *op, struct omnikv_event *wait,
		    struct omnikv_event *signal);
int okv_pipe_reap(struct omnikv_step *step);
/** Fired or poisoned; -ETIME when nothing is left that could run. */
int okv_pipe_event_wait(struct omnikv_pipe *pipe, struct omnikv_event *event);

/** Drafts of the last step are still to be committed or dropped. */
bool okv_pipe_has_drafts(const struct omnikv_pipe *pipe);
/** Keep a note of the drafts of a step that ended well; none of one that did not. */
void okv_pipe_drafts_note(struct omnikv_step *step, bool is_good);

/* Debug views: as kernels on @stream, in order with the engine's own. No effect without them. */
bool okv_pipe_debug_is_wanted(void);
/** Words of OMNIKV_DEBUG, with commas between them. 0, or -EINVAL: @err names one that nothing knows. */
int okv_pipe_debug_check(struct omnikv_error *err);
void okv_pipe_debug_fill(struct omnikv_pipe *pipe);
int okv_pipe_debug_before(struct okv_pipe_stage *stage, struct omnikv_stream *stream);
int okv_pipe_debug_after(struct okv_pipe_stage *stage, struct omnikv_stream *stream);
int okv_pipe_debug_poison(struct okv_pipe_stage *stage);

/** The addresses of a layer in a slot; what is there is not known. */
void okv_pipe_view_place(const struct omnikv_pipe *pipe, uint32_t layer, uint32_t slot, struct omnikv_view *view);
void okv_pipe_view_fill(const struct omnikv_step *step, const struct okv_pipe_stage *stage, struct omnikv_view *view);
/** Some layer reads another layer's KV. */
bool okv_pipe_has_alias(const struct omnikv_pipe *pipe);
/** Queue what follows the kernel of the next stage; @stream NULL: its end is recorded by a graph. */
int okv_pipe_stage_release(struct omnikv_step *step, struct omnikv_stream *stream);

/* ---- pipeline_graph.c --------------------------------------------------------------------- */

/** Can the step be one of a graph? */
int okv_pipe_graph_check(const struct omnikv_step *step);
/** Queue all transfers of the step. */
int okv_pipe_graph_queue(struct omnikv_step *step);
/** No replay will end the step's kernels. */
void okv_pipe_graph_cancel(struct omnikv_step *step);

#endif /* OKV_PIPELINE_H */

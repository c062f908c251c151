/* SPDX-License-Identifier: MIT */
/*
 * The layer pipeline: a ring of per-layer buffers in HBM between the pool and the kernels.
 *
 * While layer l computes, later layers load and earlier ones drain, so HBM holds R layers,
 * whatever the model's depth. All sizing and errors arise in omnikv_step_begin(); the host
 * never blocks per layer.
 *
 *     omnikv_step_begin(pipe, seqs, n, 0, &step);
 *     for (l = 0; l < nr_layers; l++) {
 *             omnikv_layer_acquire(step, l, stream, &view);
 *             ... launch the kernels of layer l on stream; they read history, write new rows ...
 *             omnikv_layer_release(step, l, stream);
 *     }
 *     omnikv_step_end(step);
 *
 * One thread uses a pipe. The pipe is the only user of its ring while it exists; with a ring of at
 * least 4 x nr_layers completion slots no call between begin and end waits for a transfer.
 */
#ifndef OMNIKV_PIPELINE_H
#define OMNIKV_PIPELINE_H

#include <omnikv/sequence.h>

#ifdef __cplusplus
extern "C" {
#endif

struct omnikv_pipe;
struct omnikv_step;

enum omnikv_lane { OMNIKV_LANE_PREFILL, OMNIKV_LANE_DECODE, OMNIKV_LANE_VERIFY };

/**
 * struct omnikv_pipe_config
 * @nr_slots:    layer buffers in HBM, R >= 1; 0 is 2
 * @slot_tokens: most tokens (history and new, all sequences of a step) that one buffer holds
 * @max_seqs:    most sequences in a step; 0 is 64
 * @deadline_ns: of each transfer, from its submission, waits for kernels included; 0 is 600 s
 * @verify:      compare every loaded block with its CRC32C; a mismatch fails the step with -EBADMSG
 */
struct omnikv_pipe_config {
	size_t		size;
	uint32_t	nr_slots;
	uint32_t	max_seqs;
	uint64_t	slot_tokens;
	uint64_t	deadline_ns;
	bool		verify;
};

/** HBM that a pipe of this configuration needs, in bytes; 0 when the configuration is impossible. */
OMNIKV_API uint64_t omnikv_pipe_hbm_bytes(const struct omnikv_plan *plan, const struct omnikv_pipe_config *config);
/** The pipe uses the whole of @hbm, which must have at least omnikv_pipe_hbm_bytes() (-ENOSPC). */
OMNIKV_API int omnikv_pipe_create(struct omnikv_space *space, struct omnikv_ring *ring, struct omnikv_hbm *hbm,
				  const struct omnikv_pipe_config *config, struct omnikv_pipe **pipe,
				  struct omnikv_error *err);
/** Waits for its transfers. */
OMNIKV_API void omnikv_pipe_destroy(struct omnikv_pipe *pipe);

/**
 * struct omnikv_step_seq - one sequence of a step
 * @hist_tokens: leading tokens that the step loads; they must be stored already
 * @new_tokens:  tokens that the step computes, behind the history; omnikv_seq_append() has made room
 */
struct omnikv_step_seq {
	struct omnikv_seq	*seq;
	uint64_t		hist_tokens;
	uint64_t		new_tokens;
	enum omnikv_lane	lane;
};

/**
 * struct omnikv_plane_view - one plane of one layer in HBM
 * @rows: device address of packed rows [cu_kv[nr_seqs]][row_bytes]
 */
struct omnikv_plane_view {
	void		*rows;
	uint64_t	row_bytes;
};

/**
 * struct omnikv_group_view - one layer's rows of one group
 * @group:   index of the group in the layout
 * @cu_kv:   [nr_seqs + 1] first row of each sequence; its history begins there
 * @new_row: [nr_seqs] row at which its new tokens begin
 * @planes:  [nr_planes] as in the group
 *
 * Rows are entries: with several tokens an entry only whole entries count. State groups have
 * one row a sequence, which holds the state at the end of the history (undefined where there is
 * none) and which the kernel overwrites with the state at the end of the new tokens.
 */
struct omnikv_group_view {
	uint32_t		group;
	uint32_t		nr_planes;
	const uint64_t		*cu_kv;
	const uint64_t		*new_row;
	struct omnikv_plane_view planes[OMNIKV_PLANES_MAX];
};

/**
 * struct omnikv_view - one layer, ready to be attended
 * @groups: [nr_groups] the groups that this layer belongs to, in the layout's order
 */
struct omnikv_view {
	uint32_t		layer;
	uint32_t		nr_seqs;
	uint32_t		nr_groups;
	struct omnikv_group_view groups[OMNIKV_GROUPS_MAX];
};

/**
 * omnikv_step_begin() - queue the first loads of a step
 *
 * Return: 0, or -EAGAIN (ring full, or a step is under way), -ENOSPC (more tokens or sequences
 * than the pipe has room for), -ENODATA (live KV lost), -EINVAL (tokens outside the sequence).
 */
OMNIKV_API int omnikv_step_begin(struct omnikv_pipe *pipe, const struct omnikv_step_seq *seqs, uint32_t nr_seqs,
				 uint32_t flags, struct omnikv_step **step);
/** Order @stream after the layer's load. Layers come in order (-EINVAL). An alias views its source's rows, new ones included. */
OMNIKV_API int omnikv_layer_acquire(struct omnikv_step *step, uint32_t layer, struct omnikv_stream *stream,
				    struct omnikv_view *view);
/** After the layer's attention kernel: its new rows are stored, its buffer may be loaded for a later layer. */
OMNIKV_API int omnikv_layer_release(struct omnikv_step *step, uint32_t layer, struct omnikv_stream *stream);

/** What a failed step could not do. */
struct omnikv_step_error {
	uint32_t	layer;
	uint32_t	seq_idx;
	uint64_t	first_lost_token;
};

/**
 * omnikv_step_end() - wait for the step's transfers and kernels, and end it
 * @error: what failed first; may be NULL
 *
 * Return: 0: every load was right and every store is in the pool. -ENODATA, -EIO, -EBADMSG, -ETIME:
 * the results of this step must not be used; the engine recomputes from first_lost_token.
 * Kernels of a layer that was acquired but not released are the caller's to wait for.
 * The step is gone in any case.
 */
OMNIKV_API int omnikv_step_end(struct omnikv_step *step, struct omnikv_step_error *error);
/** Withdraw @seq from its step: its transfers are cancelled, its memory is given up when they are over. Returns at once. */
OMNIKV_API int omnikv_seq_abort(struct omnikv_step *step, struct omnikv_seq *seq);

/** Since creation. */
struct omnikv_pipe_stats {
	size_t		size;
	uint64_t	nr_steps;
	uint64_t	bytes_loaded;
	uint64_t	bytes_stored;
	uint64_t	pieces_loaded;
	uint64_t	pieces_stored;
	uint64_t	checksum_errors;
};

OMNIKV_API int omnikv_pipe_stats(const struct omnikv_pipe *pipe, struct omnikv_pipe_stats *stats);

#ifdef __cplusplus
}
#endif

#endif /* OMNIKV_PIPELINE_H */

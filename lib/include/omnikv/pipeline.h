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
 * least 6 x nr_layers completion slots (times the tiles of a step) no call between begin and end waits
 * for a transfer.
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
 * Watch what kernels do with views (also by OMNIKV_DEBUG=views in the environment, of which any other word is refused with
 * -EINVAL when a pipe is created): buffers are poisoned when they
 * are free, and what a kernel may not write is compared before and after it, guards between planes included. Devices
 * whose memory the CPU reads. Slow, and takes a little more HBM.
 */
#define OMNIKV_PIPE_F_DEBUG_VIEWS	(1u << 0)
#define OMNIKV_PIPE_F_ALL		0x1u

/**
 * struct omnikv_pipe_config
 * @nr_slots:    layer buffers in HBM, R >= 1; 0 is 2
 * @slot_tokens: most tokens (history and new, all sequences of a step) that one buffer holds
 * @max_seqs:    most sequences in a step; 0 is 64
 * @deadline_ns: of each transfer, from its submission, waits for kernels included; 0 is 600 s
 * @verify:      compare every loaded block with its CRC32C; a mismatch fails the step with -EBADMSG
 * @page_rows:   sequences begin at multiples of this many rows, so that omnikv_view_block_table() can describe
 *               them as pages; 0: they follow densely. Groups with one token an entry; divides @slot_tokens
 * @flags:       OMNIKV_PIPE_F_*
 * @draft_tokens: most new tokens of a step in lane VERIFY, all sequences: their rows are kept in HBM, for every layer,
 *               until omnikv_drafts_commit(), and nothing of them reaches the host before. 0: they are stored as others
 */
struct omnikv_pipe_config {
	size_t		size;
	uint32_t	nr_slots;
	uint32_t	max_seqs;
	uint64_t	slot_tokens;
	uint64_t	deadline_ns;
	bool		verify;
	uint32_t	page_rows;
	uint32_t	flags;
	uint32_t	draft_tokens;
};

/** HBM that a pipe of this configuration needs, in bytes; 0 when the configuration is impossible. */
OMNIKV_API uint64_t omnikv_pipe_hbm_bytes(const struct omnikv_plan *plan, const struct omnikv_pipe_config *config);
/**
 * The pipe uses the whole of @hbm, which must have at least omnikv_pipe_hbm_bytes() (-ENOSPC), and is not resized by another
 * thread just now (-EBUSY).
 */
OMNIKV_API int omnikv_pipe_create(struct omnikv_space *space, struct omnikv_ring *ring, struct omnikv_hbm *hbm,
				  const struct omnikv_pipe_config *config, struct omnikv_pipe **pipe,
				  struct omnikv_error *err);
/**
 * Called when the pipe has another size, on the thread that resized it, before omnikv_pipe_resize() returns.
 * @slot_tokens: what one buffer holds from now on: more, or fewer, than at creation
 */
typedef void (*omnikv_pipe_resized_fn)(void *arg, uint64_t hbm_bytes, uint64_t slot_tokens);

/** Who is told of another size: the scheduler that sizes steps. @fn may be NULL: nobody. */
OMNIKV_API void omnikv_pipe_on_resize(struct omnikv_pipe *pipe, omnikv_pipe_resized_fn fn, void *arg);
/**
 * omnikv_pipe_resize() - between steps, give a part of the HBM back to the engine, or take it again
 * @hbm_bytes: as of omnikv_hbm_resize(); the pipe's nr_slots buffers fill it from now on, and hold as many tokens as fit
 *
 * With fewer tokens a history comes in more tiles. Addresses of views change: kernels are captured again
 * (omnikv_layer_capture()), and until then on "cuda" a step with OMNIKV_STEP_F_GRAPH is refused with -ESTALE.
 *
 * Return: 0, or -EBUSY (a step is open, drafts are not committed yet, a transfer or another pipe uses the HBM), -ENOSPC (a
 * buffer would hold less than a tile may have: 64 tokens and whole blocks and pages, or what it was created with), or as
 * of omnikv_hbm_resize(): the pipe is as it was, and nobody is told.
 */
OMNIKV_API int omnikv_pipe_resize(struct omnikv_pipe *pipe, uint64_t hbm_bytes);
/** Waits for its transfers. */
OMNIKV_API void omnikv_pipe_destroy(struct omnikv_pipe *pipe);

/**
 * struct omnikv_step_seq - one sequence of a step
 * @hist_tokens: leading tokens that the step loads; they must be stored already
 * @new_tokens:  tokens that the step computes, behind the history; omnikv_seq_append() has made room
 * @lane:        what the tokens are for: omnikv_view_lane() selects by it. VERIFY also keeps them as drafts, where the
 *               pipe has draft_tokens; nothing else depends on it
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

/** new_row of a sequence whose new rows are not in this tile. */
#define OMNIKV_ROW_NONE		UINT64_MAX

/**
 * struct omnikv_group_view - one layer's rows of one group
 * @group:   index of the group in the layout
 * @cu_kv:   [nr_seqs + 1] first row of each sequence; its history (in a tile: the part that is here) begins there
 * @nr_rows: [nr_seqs] rows of each sequence; without pages cu_kv[i] + nr_rows[i] is cu_kv[i + 1]
 * @new_row: [nr_seqs] row at which its new tokens begin; OMNIKV_ROW_NONE where they are in a later tile
 * @first:   [nr_seqs] entry of the sequence that its first row here holds; 0 but in tiles
 * @planes:  [nr_planes] as in the group
 *
 * Rows are entries: with several tokens an entry only whole entries count. State groups have
 * one row a sequence, which holds the state at the end of the history (undefined where there is
 * none) and which the kernel overwrites with the state at the end of the new tokens. In tiles it is with the new
 * rows. Where drafts are kept in HBM, a state group has 1 + new_tokens rows for a sequence in lane VERIFY: the first
 * is the history's, and the kernel writes the state after new token i into row new_row + i.
 */
struct omnikv_group_view {
	uint32_t		group;
	uint32_t		nr_planes;
	const uint64_t		*cu_kv;
	const uint64_t		*nr_rows;
	const uint64_t		*new_row;
	const uint64_t		*first;
	struct omnikv_plane_view planes[OMNIKV_PLANES_MAX];
};

/**
 * struct omnikv_view - one layer, or one tile of it, ready to be attended
 * @first_seq: index in the step of the view's first sequence; 0 but in views of a lane
 * @lanes:     [nr_seqs] enum omnikv_lane of each
 * @page_rows: of the pipe
 * @groups:    [nr_groups] the groups that this layer belongs to, in the layout's order
 */
struct omnikv_view {
	uint32_t		layer;
	uint32_t		nr_seqs;
	uint32_t		nr_groups;
	uint32_t		first_seq;
	uint32_t		tile;
	uint32_t		nr_tiles;
	uint32_t		page_rows;
	const uint8_t		*lanes;
	struct omnikv_group_view groups[OMNIKV_GROUPS_MAX];
};

/**
 * omnikv_view_lane() - the sequences of one lane, as a view of their own
 *
 * Same rows, other offsets: cu_kv[0] need not be 0. Return: their number (0: there are none, @out is
 * not written), or -EINVAL where they do not stand side by side in the step.
 */
OMNIKV_API int omnikv_view_lane(const struct omnikv_view *view, enum omnikv_lane lane, struct omnikv_view *out);
/**
 * omnikv_view_block_table() - sequence @seq_idx of the view as pages of page_rows rows
 * @group_idx: index in the view
 * @pages:     [max] results; page p begins at row p * page_rows of every plane
 *
 * The identity: pages follow one another, so that a paged kernel runs on a view as it is. Return: their number, or
 * -EINVAL (no page_rows, or several tokens an entry), -ENOSPC.
 */
OMNIKV_API int64_t omnikv_view_block_table(const struct omnikv_view *view, uint32_t group_idx, uint32_t seq_idx,
					   uint32_t *pages, size_t max);
/**
 * omnikv_view_expect() - what a kernel takes a plane for
 * @plan: omnikv_space_plan() of the pipe's space
 *
 * Return: 0, or -EINVAL with one line in @err that names layer, group, plane and both values. Cheap: meant for
 * every debug build's launcher.
 */
OMNIKV_API int omnikv_view_expect(const struct omnikv_plan *plan, const struct omnikv_view *view, uint32_t group_idx,
				  uint32_t plane, enum omnikv_dtype dtype, uint32_t heads, uint32_t elems,
				  uint64_t row_stride_bytes, struct omnikv_error *err);

/**
 * The caller walks tiles (omnikv_view_next_tile()): history may be longer than a slot. Tiles are cut at multiples of 64
 * tokens and of blocks, so a slot must hold that much, and a sequence's new tokens with what is before them since.
 */
#define OMNIKV_STEP_F_TILES	(1u << 0)
/**
 * The kernels are in a graph that was captured (omnikv_layer_capture()): all transfers of the step are queued at once,
 * and the caller launches the graph between begin and end. One tile; a ring of at least 3 x nr_layers submission and
 * 6 x nr_layers completion slots (-ENOSPC); no debug views, and on "host" neither
 * aliases nor drafts (-EOPNOTSUPP).
 */
#define OMNIKV_STEP_F_GRAPH	(1u << 1)
#define OMNIKV_STEP_F_ALL	0x3u

/**
 * omnikv_step_begin() - queue the first loads of a step
 * @seqs:  [nr_seqs] each sequence once, of the pipe's space, with at least one token; copied
 * @flags: OMNIKV_STEP_F_*, or 0
 *
 * Return: 0, or -EAGAIN (ring full, or a step is under way), -ESTALE (omnikv_pipe_resize()), -ENOSPC (more tokens or sequences
 * than the pipe has room for), -ENODATA (live KV lost), -EINVAL (tokens outside the sequence, an unknown lane
 * or flag, a sequence twice or of another space, none at all).
 */
OMNIKV_API int omnikv_step_begin(struct omnikv_pipe *pipe, const struct omnikv_step_seq *seqs, uint32_t nr_seqs,
				 uint32_t flags, struct omnikv_step **step);
/** Order @stream after the layer's load. Layers come in order (-EINVAL). An alias views its source's rows, new ones included. */
OMNIKV_API int omnikv_layer_acquire(struct omnikv_step *step, uint32_t layer, struct omnikv_stream *stream,
				    struct omnikv_view *view);
/**
 * omnikv_view_next_tile() - go on to the next tile of the layer under way
 *
 * After the kernel of the tile before: its buffer may be loaded for a later one. A sequence's tiles come from left
 * to right, its new rows in its last. The last tile of a layer ends by omnikv_layer_release().
 *
 * Return: 1 with @view, 0 when that was the last tile (@view is not written), or an error as of acquire and release.
 */
OMNIKV_API int omnikv_view_next_tile(struct omnikv_step *step, struct omnikv_stream *stream, struct omnikv_view *view);
/**
 * After the layer's attention kernel: its new rows are stored, its buffer may be loaded for a later layer.
 *
 * Return: 0, or -EINVAL (not the layer that was acquired last, or not its last tile), or the error that the step has
 * had already: end it.
 */
OMNIKV_API int omnikv_layer_release(struct omnikv_step *step, uint32_t layer, struct omnikv_stream *stream);

/**
 * omnikv_layer_capture() - the beginning of a layer in a graph
 * @view: addresses only: planes' rows and row_bytes. What is in them differs from step to step: omnikv_step_view()
 *
 * While @stream is captured, before the layer's attention kernel; layers in order, each once. Behind the kernel
 * omnikv_layer_captured().
 * The pipe outlives the graph. Return: 0, or -EINVAL (no such layer), or what omnikv_graph_wait() returned.
 */
OMNIKV_API int omnikv_layer_capture(struct omnikv_pipe *pipe, uint32_t layer, struct omnikv_graph *graph,
				    struct omnikv_stream *stream, struct omnikv_view *view);
OMNIKV_API int omnikv_layer_captured(struct omnikv_pipe *pipe, uint32_t layer, struct omnikv_graph *graph,
				     struct omnikv_stream *stream);
/** Of a step with OMNIKV_STEP_F_GRAPH: what the kernels will find, for the device tables that they read. -EINVAL. */
OMNIKV_API int omnikv_step_view(struct omnikv_step *step, uint32_t layer, struct omnikv_view *view);
/** A step with OMNIKV_STEP_F_GRAPH that will not be launched: end it after this, which returns -ECANCELED then. -EINVAL. */
OMNIKV_API int omnikv_step_cancel(struct omnikv_step *step);

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
 * Return: 0: every load was right and every store is in the pool. -EUCLEAN: a kernel wrote what it must not (debug
 * views; omnikv_pipe_report() says where). -ENODATA, -EIO, -EBADMSG, -ETIME:
 * the results of this step must not be used; the engine recomputes from omnikv_seq_checkpoint(first_lost_token),
 * the other sequences of the step from omnikv_seq_checkpoint(hist_tokens). -ECANCELED: ended before its last layer
 * was released (@error names the first that was not); likewise.
 * Kernels of a layer that was acquired but not released are the caller's to wait for.
 * The step is gone in any case, but for -ETIME where something cannot be recalled: then its sequences are the
 * caller's again, and the pipe is busy (-EAGAIN at begin) until another omnikv_step_end() returns otherwise.
 */
OMNIKV_API int omnikv_step_end(struct omnikv_step *step, struct omnikv_step_error *error);
/**
 * Withdraw @seq from its step: its transfers are cancelled, its memory is given up when they are over. Returns at once.
 * Its new tokens count as lost until they are stored again. -ENOENT: not in the step, or withdrawn already.
 */
OMNIKV_API int omnikv_seq_abort(struct omnikv_step *step, struct omnikv_seq *seq);

/**
 * omnikv_drafts_commit() - keep some of the draft rows of the last step
 * @seq:      was in lane VERIFY of a pipe with draft_tokens
 * @accepted: [nr] which of its new tokens, in the order in which they become tokens of the sequence: 0, 1, 2 for a
 *            chain, a path for a tree. The same token may not be named twice; groups with several tokens an entry
 *            take chains only
 * @nr:       0 drops all of them
 *
 * After the step's end and before the next one begins; sequences with drafts are not closed before (or their drafts
 * are dropped first). The sequence ends behind the accepted tokens, whose rows go to
 * the host by one gather for all layers, with the state after the last of them; waits for it.
 *
 * Return: 0, or -ENOENT (no drafts of @seq are kept), -EINVAL, -ENOSPC, -ENOMEM (the sequence is back at its history),
 * -EIO, -ETIME (as of step_end; likewise).
 */
OMNIKV_API int omnikv_drafts_commit(struct omnikv_pipe *pipe, struct omnikv_seq *seq, const uint32_t *accepted,
				    uint32_t nr);
/**
 * omnikv_drafts_accept_on_device() - how many of each chain are accepted is decided on the device
 * @accepted: [nr_seqs] device memory, one number for each sequence of the step (of other lanes ignored), written by
 *            work that @stream has been given
 *
 * Before the step's end, which does not wait for it. omnikv_drafts_reconcile() does, one step later.
 */
OMNIKV_API int omnikv_drafts_accept_on_device(struct omnikv_step *step, const uint32_t *accepted,
					      struct omnikv_stream *stream);
/** Commit what the device accepted, and drop the rest. @accepted: [nr_seqs of that step] results, 0 for other lanes; may be NULL. */
OMNIKV_API int omnikv_drafts_reconcile(struct omnikv_pipe *pipe, uint32_t *accepted);

/** What debug views saw first in the last step, in one line that names layer and sequence; "" where nothing was wrong. */
OMNIKV_API const char *omnikv_pipe_report(const struct omnikv_pipe *pipe);

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

/* SPDX-License-Identifier: MIT */
/*
 * Rings: queues of transfers in the style of io_uring.
 *
 * One thread fills and submits; one thread (the same or another) reaps. Every submitted
 * operation posts exactly one result within its deadline. When the memory is then still in
 * use (a copy under way cannot be recalled) the result carries OMNIKV_CQE_F_MORE, and one
 * notification with OMNIKV_CQE_F_NOTIF and the same user_data follows when it is free, as in
 * io_uring's zero-copy send; until then the extents stay referenced and HBM must not be re-used.
 *
 * An operation needs one completion slot, a transfer (LOAD, STORE, COPY, SPILL, FETCH) two, for its
 * notification: they are promised at submission, so nothing is ever lost, and an unneeded one
 * is free again with the result.
 *
 * On "sim" submitting, reaping and everything else of the device are one thread's.
 */
#ifndef OMNIKV_RING_H
#define OMNIKV_RING_H

#include <omnikv/device.h>
#include <omnikv/key.h>
#include <omnikv/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OMNIKV_RING_ENTRIES_MAX		32768u
#define OMNIKV_PIECES_MAX		(1u << 20)

enum omnikv_op {
	OMNIKV_OP_NOP,
	OMNIKV_OP_LOAD,		/* pool to device */
	OMNIKV_OP_STORE,	/* device to pool (own PRIVATE extents) */
	OMNIKV_OP_COPY,		/* device to device, extent_off is the source offset */
	OMNIKV_OP_BARRIER,	/* completes when all before it have */
	OMNIKV_OP_CANCEL,	/* withdraws the oldest operation whose user_data is @target; its result comes first */
	OMNIKV_OP_SPILL,	/* pool to NVMe: blocks into a spill store */
	OMNIKV_OP_FETCH,	/* NVMe to pool (own PRIVATE extents), verified */
	OMNIKV_OP_PULL,		/* remote to pool: -EOPNOTSUPP so far */
	OMNIKV_OP_NR,
};

/**
 * The next operation starts after this one succeeded; when it fails (or is withdrawn) the rest of
 * the chain is -ECANCELED. The next one is whatever is submitted next, in the same call or later.
 */
#define OMNIKV_SQE_F_LINK	(1u << 0)
/**
 * Starts after all earlier operations have posted their results; later ones start after this one
 * has, but for a CANCEL without flags, which never waits.
 */
#define OMNIKV_SQE_F_DRAIN	(1u << 1)
#define OMNIKV_SQE_F_ALL	0x3u

/**
 * struct omnikv_piece - one contiguous run of a transfer
 * @extent:     host side: leased, or PRIVATE of the ring's client (checked when the operation starts)
 * @extent_off: bytes from the start of the extent
 * @device_off: bytes from the start of the sqe's HBM
 * @bytes:      not 0
 */
struct omnikv_piece {
	struct omnikv_extent	extent;
	uint64_t		extent_off;
	uint64_t		device_off;
	uint64_t		bytes;
};

#define OMNIKV_ROWS_MAX		4096u	/* of one piece */

/**
 * struct omnikv_rows - a piece that is a slice of each of several rows
 * @slice_bytes:      bytes of a row that move; 0, with all others 0: the piece is one run
 * @host_row_bytes:   from a row to the next in the pool (COPY: at the source), at least @slice_bytes
 * @device_row_bytes: from a row to the next in HBM (COPY: at the destination), at least @slice_bytes
 *
 * The piece's offsets are those of the first slice, its bytes those of all slices, and its checksum is over them as they
 * follow one another. So a shard of one degree of tensor parallelism is read at another: see omnikv/reshard.h.
 */
struct omnikv_rows {
	uint32_t	slice_bytes;
	uint32_t	host_row_bytes;
	uint32_t	device_row_bytes;
	uint32_t	reserved;
};

#define OMNIKV_SPILL_BLOCKS_MAX		4096u	/* of one SPILL or FETCH */

/**
 * struct omnikv_spill_block - one block between pool and NVMe
 * @key:       not empty
 * @parent:    key of the block before it; empty for the first
 * @position:  index in its prefix
 * @nr_tokens: not 0
 * @nr_parts:  pieces that it is made of (one a group): those that follow the pieces of the block before in the operation's list
 *
 * A FETCH brings only the very block that all of this describes.
 */
struct omnikv_spill_block {
	struct omnikv_key	key;
	struct omnikv_key	parent;
	uint64_t		position;
	uint32_t		nr_tokens;
	uint32_t		nr_parts;
};

struct omnikv_spill;	/* see omnikv/spill.h */

/**
 * struct omnikv_spill_io - what a SPILL or FETCH is about
 * @spill:  the store; outlives the ring
 * @ns:     [32] identity of the namespace (omnikv_namespace_identity())
 * @blocks: [nr_blocks]
 *
 * Must stay as it is until the last completion, as the pieces must.
 */
struct omnikv_spill_io {
	struct omnikv_spill			*spill;
	const uint8_t				*ns;
	const struct omnikv_spill_block		*blocks;
	uint32_t				nr_blocks;
	uint32_t				reserved;
};

/**
 * struct omnikv_sqe - one operation
 * @deadline_ns: nanoseconds from submission (device time on "sim"); 0 is none but the ring's default
 * @pieces:      [nr_pieces], must stay as it is until the last completion; the bytes of no two overlap at the destination
 * @valid:       result, bitmap of nr_pieces bits in whole 64-bit words: bit i set <=> piece i arrived whole; may be NULL.
 *               Written with the result, not after it
 * @crc:         result, [nr_pieces] CRC32C of each valid piece's bytes; NULL: not computed
 * @wait:        device event that the operation starts after, fired or poisoned; may be NULL
 * @signal:      device event that fires when the bytes have arrived (is poisoned with the result when they do not), before
 *               the result is posted; may be NULL
 * @target:      CANCEL: user_data of the operation
 * @spill_io:    SPILL, FETCH: blocks and store. A block is valid with all of its pieces or with none; pieces begin and end at
 *               multiples of 4096 bytes and have no device_off. @crc is what a manager keeps of each part, the CRC32C of its rows
 *               (omnikv_seq_block_crc()): SPILL takes it and needs it, FETCH gives it. No two pieces of a FETCH overlap
 * @rows:        LOAD, STORE, COPY: [nr_pieces], must stay as the pieces must; NULL: each piece is one run
 */
struct omnikv_sqe {
	uint8_t			opcode;
	uint8_t			flags;
	uint16_t		reserved;
	uint32_t		nr_pieces;
	uint64_t		user_data;
	uint64_t		deadline_ns;
	const struct omnikv_piece *pieces;
	struct omnikv_hbm	*hbm;
	uint64_t		*valid;
	uint32_t		*crc;
	struct omnikv_event	*wait;
	struct omnikv_event	*signal;
	uint64_t		target;
	const struct omnikv_spill_io *spill_io;
	const struct omnikv_rows *rows;
};

/** The memory is still in use: a notification follows. */
#define OMNIKV_CQE_F_MORE	(1u << 0)
/** This is that notification; res is 0. */
#define OMNIKV_CQE_F_NOTIF	(1u << 1)

/**
 * struct omnikv_cqe - one result
 * @res:      bytes moved, or -ESTALE (an extent is gone), -EPERM, -EINVAL, -EIO, -ETIME (deadline),
 *            -ECANCELED, -EOPNOTSUPP; CANCEL: 0 found, -ENOENT not found; FETCH of a block that is not there -ENOENT, of one
 *            that is damaged -EBADMSG; SPILL -ENOSPC, -EDQUOT, -EFBIG; either -ETIME where the disk does not answer
 * @nr_valid: pieces that arrived whole; with an error the valid bitmap says which
 */
struct omnikv_cqe {
	uint64_t	user_data;
	int64_t		res;
	uint32_t	flags;
	uint32_t	nr_valid;
};

struct omnikv_ring;

/**
 * struct omnikv_ring_config - sizes and patience
 * @entries:     submission slots, a power of two up to OMNIKV_RING_ENTRIES_MAX; 0 is 256
 * @cq_entries:  completion slots, a power of two, at least @entries (and 2); 0 is 2 x entries
 * @spin_ns:     how long worker and waiter spin before they sleep; 0 is adaptive
 * @deadline_ns: default deadline of operations that have none; 0 is 60 s
 */
struct omnikv_ring_config {
	size_t		size;
	uint32_t	entries;
	uint32_t	cq_entries;
	uint64_t	spin_ns;
	uint64_t	deadline_ns;
};

/**
 * @client owns what is moved; @dev runs it. On "host" one worker thread is started. @client may be
 * NULL for a ring without a pool: what moves the pool's memory is -EPERM then. The first SPILL or FETCH starts one more thread,
 * which waits for the disk.
 */
OMNIKV_API int omnikv_ring_init(struct omnikv_client *client, struct omnikv_device *dev,
				const struct omnikv_ring_config *config, struct omnikv_ring **ring,
				struct omnikv_error *err);
/** Cancels what has not started, waits for what cannot be recalled, frees the ring. Unreaped results are lost. */
OMNIKV_API void omnikv_ring_exit(struct omnikv_ring *ring);
OMNIKV_API struct omnikv_device *omnikv_ring_device(const struct omnikv_ring *ring);
OMNIKV_API struct omnikv_client *omnikv_ring_client(const struct omnikv_ring *ring);

/**
 * CRC32C of A followed by B, from the sums of both and the length of B: what a submission's sums of pieces make
 * together. Costs about a microsecond, whatever the length. Pure.
 */
OMNIKV_API uint32_t omnikv_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b);

/** Next free submission slot, cleared; NULL when there is none: submit, reap, try again. */
OMNIKV_API struct omnikv_sqe *omnikv_get_sqe(struct omnikv_ring *ring);
/**
 * omnikv_submit() - hand over all filled slots
 *
 * Return: how many were taken (the rest stay filled, for the next call), or -EAGAIN when none
 * could be because completion slots are not guaranteed: reap first.
 */
OMNIKV_API int omnikv_submit(struct omnikv_ring *ring);
/** 0 and the oldest unseen result in @cqe (valid until omnikv_cqe_seen), or -EAGAIN after one omnikv_device_poll(). */
OMNIKV_API int omnikv_peek_cqe(struct omnikv_ring *ring, struct omnikv_cqe **cqe);
/**
 * As peek, but waits; -ETIME after @timeout_ns of real time (UINT64_MAX: never); -ENODATA when nothing
 * is in flight. A simulated device runs meanwhile, and its clock moves to deadlines too.
 */
OMNIKV_API int omnikv_wait_cqe(struct omnikv_ring *ring, struct omnikv_cqe **cqe, uint64_t timeout_ns);
OMNIKV_API void omnikv_cqe_seen(struct omnikv_ring *ring, struct omnikv_cqe *cqe);

static inline void omnikv_prep_nop(struct omnikv_sqe *sqe)
{
	sqe->opcode = OMNIKV_OP_NOP;
}

static inline void omnikv_prep_barrier(struct omnikv_sqe *sqe)
{
	sqe->opcode = OMNIKV_OP_BARRIER;
}

static inline void omnikv_prep_load(struct omnikv_sqe *sqe, struct omnikv_hbm *hbm,
				    const struct omnikv_piece *pieces, uint32_t nr_pieces)
{
	sqe->opcode = OMNIKV_OP_LOAD;
	sqe->hbm = hbm;
	sqe->pieces = pieces;
	sqe->nr_pieces = nr_pieces;
}

static inline void omnikv_prep_store(struct omnikv_sqe *sqe, struct omnikv_hbm *hbm,
				     const struct omnikv_piece *pieces, uint32_t nr_pieces)
{
	omnikv_prep_load(sqe, hbm, pieces, nr_pieces);
	sqe->opcode = OMNIKV_OP_STORE;
}

static inline void omnikv_prep_copy(struct omnikv_sqe *sqe, struct omnikv_hbm *hbm,
				    const struct omnikv_piece *pieces, uint32_t nr_pieces)
{
	omnikv_prep_load(sqe, hbm, pieces, nr_pieces);
	sqe->opcode = OMNIKV_OP_COPY;
}

static inline void omnikv_prep_cancel(struct omnikv_sqe *sqe, uint64_t target)
{
	sqe->opcode = OMNIKV_OP_CANCEL;
	sqe->target = target;
}

/** @crc: [nr_pieces], see struct omnikv_sqe. */
static inline void omnikv_prep_spill(struct omnikv_sqe *sqe, const struct omnikv_spill_io *io,
				     const struct omnikv_piece *pieces, uint32_t nr_pieces, uint32_t *crc)
{
	omnikv_prep_load(sqe, NULL, pieces, nr_pieces);
	sqe->opcode = OMNIKV_OP_SPILL;
	sqe->spill_io = io;
	sqe->crc = crc;
}

/** @crc may be NULL. */
static inline void omnikv_prep_fetch(struct omnikv_sqe *sqe, const struct omnikv_spill_io *io,
				     const struct omnikv_piece *pieces, uint32_t nr_pieces, uint32_t *crc)
{
	omnikv_prep_spill(sqe, io, pieces, nr_pieces, crc);
	sqe->opcode = OMNIKV_OP_FETCH;
}

static inline void omnikv_prep_pull(struct omnikv_sqe *sqe)
{
	sqe->opcode = OMNIKV_OP_PULL;
}

#ifdef __cplusplus
}
#endif

#endif /* OMNIKV_RING_H */

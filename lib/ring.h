/* SPDX-License-Identifier: MIT */
/*
 * A ring as its device sees it.
 *
 * ring.c owns the life of every operation: order, events, deadlines, extents, results. A
 * device calls okv_ring_run() from the one thread that runs the ring (the worker on "host",
 * whoever polls on "sim"), moves the bytes of what it was told to start, and reports the end.
 */
#ifndef OKV_RING_H
#define OKV_RING_H

#include "device.h"
#include "ring_queue.h"

#define OKV_RING_BATCH	64

struct okv_ring_spill;

struct omnikv_ring {
	struct okv_sq		sq;
	struct okv_cq		cq;

	/* fixed after creation */
	struct omnikv_client	*client;
	struct omnikv_pool	*pool;
	struct omnikv_device	*dev;
	unsigned char		*base;
	uint64_t		granule_bytes;
	uint64_t		deadline_ns;
	uint64_t		spin_ns;
	struct omnikv_ring	*next;		/* of dev->rings, under dev->lock */
	void			*priv;		/* the device's */
	_Atomic uint32_t	reaper_sleeps;	/* see futex.h */
	_Atomic uint32_t	has_spill_news;	/* ring_spill.c's thread has something to tell */

	/* owned by the thread that runs the ring */
	struct okv_opq		q __attribute__((aligned(OKV_CACHELINE)));
	struct okv_op_list	waiting;	/* OKV_OP_WAITING: event not fired */
	struct okv_op_list	queued;		/* OKV_OP_QUEUED, where the device keeps them here */
	uint64_t		seen_event_seq;
	struct okv_ring_spill	*spill;		/* NULL before the first SPILL or FETCH */
	struct omnikv_extent	names[OKV_RING_BATCH];
	uint32_t		run_first[OKV_RING_BATCH];
	uint32_t		run_nr[OKV_RING_BATCH];
};

/** Take over what was submitted, start what may start, expire what is late. True when anything was done. */
bool okv_ring_run(struct omnikv_ring *ring);
/** Show what has been posted and wake the reaper. okv_ring_run() does so itself. */
void okv_ring_show(struct omnikv_ring *ring);
/** Withdraw all whose result is not posted, with -ECANCELED. */
void okv_ring_cancel_all(struct omnikv_ring *ring);
/** As okv_ring_has_news(), but for spinning: may miss what was submitted just now. */
static inline bool okv_ring_has_quick_news(struct omnikv_ring *ring)
{
	return okv_sq_peek(&ring->sq, atomic_load_explicit(&ring->sq.head, memory_order_relaxed)) ||
	       atomic_load_explicit(&ring->has_spill_news, memory_order_relaxed) ||
	       (ring->waiting.first != OKV_OP_NONE &&
		atomic_load_explicit(&ring->dev->event_seq, memory_order_relaxed) != ring->seen_event_seq);
}
/** Anything submitted that has not been taken over, or an event since the last run for which something waits. */
bool okv_ring_has_news(struct omnikv_ring *ring);

/** The transfer begins: reference its extents. Returns how many pieces may move; 0 with op->error set ends it at once. */
uint32_t okv_op_begin(struct okv_op *op);
/** Fill @run from byte @off of what piece @idx moves on, to the end of the piece or, where it has rows, of that slice. */
struct okv_run;
void okv_op_piece_run(const struct okv_op *op, uint32_t idx, uint64_t off, struct okv_run *run);
/** Piece @idx has arrived whole; @crc is stored when the caller of the ring asked for it. */
void okv_op_piece_moved(struct okv_op *op, uint32_t idx, uint32_t crc);
/** No byte moves any more: post the result, or the notification when the result is out already. */
void okv_op_end(struct okv_op *op);

/** Bytes still move, and will for long: the result is @error with F_MORE. No effect when it is out already. */
void okv_op_post_more(struct okv_op *op, int error);
/** At the end of a ring: bytes may move for ever. Extents stay referenced, there is no notification. */
void okv_op_abandon(struct okv_op *op);

/* ---- SPILL and FETCH, ring_spill.c --------------------------------------------------------- */

/** As the device's op_start and op_recall. */
void okv_spill_op_start(struct okv_op *op);
bool okv_spill_op_recall(struct okv_op *op);
/** End what the thread is done with. True when there was anything. By the thread that runs the ring. */
bool okv_ring_spill_reap(struct omnikv_ring *ring);
/**
 * The ring ends, and all is withdrawn: what is under way is waited for, but not for ever. By the thread that runs the ring,
 * before the device ends its own.
 */
void okv_ring_spill_exit(struct omnikv_ring *ring);

static inline bool okv_op_is_held(const struct okv_op *op, uint32_t idx)
{
	return op->held[idx / 64] >> (idx % 64) & 1;
}

/** Runs that piece @idx is made of. */
static inline uint32_t okv_op_piece_rows(const struct okv_op *op, uint32_t idx)
{
	const struct omnikv_rows *rows = op->sqe.rows ? &op->sqe.rows[idx] : NULL;

	return rows && rows->slice_bytes ? (uint32_t)(op->sqe.pieces[idx].bytes / rows->slice_bytes) : 1;
}

static inline bool okv_op_is_moved(const struct okv_op *op, uint32_t idx)
{
	return op->moved[idx / 64] >> (idx % 64) & 1;
}

/** The result may still be written: it is not posted. */
static inline bool okv_op_wants_crc(const struct okv_op *op)
{
	return op->sqe.crc && op->state != OKV_OP_POSTED;
}

#endif /* OKV_RING_H */

/* SPDX-License-Identifier: MIT */
/*
 * The bookkeeping of a ring, without threads, devices or clocks.
 *
 * Owns the submission queue, the completion queue with its credits, and the table of
 * operations: in which order they may start (links, drains, barriers), which deadline comes
 * first, and which one a cancellation means. ring.c decides what starting and finishing do;
 * waiting for events, extents and copies are not known here.
 *
 * Submission and completion queue have one thread on each side (named at each field); the
 * operation table belongs to the thread that runs the ring.
 */
#ifndef OKV_RING_QUEUE_H
#define OKV_RING_QUEUE_H

#include <stdatomic.h>

#include <omnikv/ring.h>

#define OKV_CACHELINE	64
#define OKV_OP_NONE	UINT32_MAX

/*
 * What crosses from one thread to the other for each operation: a quarter of a cache line. A
 * plain no-op is all in here; of others the worker reads the sqe at the same position.
 * @seq is position + 1 once the rest of the entry is valid.
 */
struct okv_sq_desc {
	uint64_t		user_data;
	uint32_t		is_nop;
	_Atomic uint32_t	seq;
};

/*
 * Submission queue. Slots [head, tail) are the worker's, [tail, filled) the submitter's, the
 * rest is free. All three only grow; a slot is position & mask. The worker looks at the next
 * descriptor, which costs one transfer of a cache line, and at tail only before it sleeps.
 */
struct okv_sq {
	/* fixed after creation */
	struct omnikv_sqe	*sqes;
	struct okv_sq_desc	*descs;
	uint32_t		nr;
	uint32_t		mask;
	/* owned by the submitting thread */
	uint32_t		filled __attribute__((aligned(OKV_CACHELINE)));
	uint32_t		taken;		/* = tail */
	uint32_t		seen_head;	/* last value of head that the submitter read */
	/* written by the submitter, read by the worker before it sleeps */
	_Atomic uint32_t	tail __attribute__((aligned(OKV_CACHELINE)));
	/* written by the worker, read by the submitter */
	_Atomic uint32_t	head __attribute__((aligned(OKV_CACHELINE)));
};

/* @seq is position + 1 once the result is valid: the reaper looks at nothing else. */
struct okv_cq_entry {
	struct omnikv_cqe	cqe;
	_Atomic uint64_t	seq;
};

/*
 * Completion queue and the promise that no result is ever lost: an operation takes all slots
 * that it may need before it is submitted.
 *
 *	0 <= reserved - spare - head <= nr		slots promised or filled
 *	tail - head <= reserved - spare - head		filled of these
 *
 * Each counter has one writer and only grows.
 */
struct okv_cq {
	/* fixed after creation */
	struct okv_cq_entry	*entries;
	uint32_t		nr;
	uint32_t		mask;
	/* owned by the submitting thread, read by the reaper */
	_Atomic uint64_t	reserved __attribute__((aligned(OKV_CACHELINE)));
	uint64_t		seen_free;	/* head + spare as the submitter last read them */
	/* owned by the worker */
	uint64_t		filled __attribute__((aligned(OKV_CACHELINE)));	/* >= tail: not yet shown */
	_Atomic uint64_t	tail;		/* read by the reaper before it sleeps */
	_Atomic uint64_t	spare;		/* slots promised that turned out not to be needed */
	/* owned by the reaping thread, read by the submitter */
	_Atomic uint64_t	head __attribute__((aligned(OKV_CACHELINE)));
};

/*
 * Life of an operation:
 *
 *	FREE -> HELD -> READY -> (ring.c: WAITING -> QUEUED -> RUNNING) -> POSTED -> FREE
 *
 * HELD     an earlier operation must complete first (link, drain, barrier)
 * READY    in the ready list
 * WAITING  taken by the ring; its event has not fired
 * QUEUED   handed to the device, which has not begun
 * RUNNING  bytes may move at any time
 * POSTED   the result is out, but a copy is still under way (F_MORE was set)
 *
 * Every state before POSTED goes to FREE directly when the result is the last completion.
 */
enum okv_op_state {
	OKV_OP_FREE,
	OKV_OP_HELD,
	OKV_OP_READY,
	OKV_OP_WAITING,
	OKV_OP_QUEUED,
	OKV_OP_RUNNING,
	OKV_OP_POSTED,
};

struct okv_op {
	struct omnikv_sqe	sqe;
	uint64_t		deadline;	/* absolute, of the device's clock */
	uint64_t		seq;		/* order of submission */
	uint32_t		prev, next;	/* submission order, until the result is posted */
	uint32_t		list_prev, list_next;	/* ready or held list; ring.c and devices use them in later states */
	uint32_t		link_next;	/* the operation that waits for this one's success */
	uint32_t		heap_pos;
	uint8_t			state;
	bool			is_linked;	/* waits for its predecessor in a chain */
	bool			in_list;	/* of the held list */
	bool			is_doomed;	/* its chain has failed */

	/* owned by ring.c and the device, see there */
	struct omnikv_ring	*ring;
	uint64_t		*held;		/* [nr_pieces] bits: extent referenced */
	uint64_t		*moved;		/* [nr_pieces] bits: bytes have been moved */
	uint64_t		*bits;		/* allocation behind both when it is not bits_small */
	uint64_t		bits_small[2];
	uint64_t		moved_bytes;
	uint32_t		nr_moved;
	int			error;		/* of the first piece that could not be referenced, or of the device */
	int			fail;		/* sim: what the transfer will end with */
};

struct okv_op_list {
	uint32_t	first, last;
};

struct okv_opq {
	struct okv_op		*ops;
	uint32_t		nr;
	uint32_t		nr_live;	/* result not yet posted */
	uint32_t		nr_used;	/* slot not yet free */
	uint32_t		free;		/* singly linked through .next */
	struct okv_op_list	live;		/* submission order */
	struct okv_op_list	ready;
	struct okv_op_list	held;		/* behind a drain, in submission order; includes that drain when it is not first */
	uint32_t		chain;		/* last submitted, when it has F_LINK and is live */
	bool			chain_open;	/* the last submitted has F_LINK */
	bool			chain_failed;	/* ... and was posted with an error */
	uint32_t		*heap;		/* by deadline */
	uint32_t		nr_heap;
	uint32_t		nr_drains;	/* live operations with F_DRAIN */
	uint64_t		seq;		/* of the next one */
};

/* ---- submission queue --------------------------------------------------------------------- */

int okv_sq_init(struct okv_sq *sq, uint32_t nr);
void okv_sq_fini(struct okv_sq *sq);
/** Submitter: next free slot, or NULL. */
struct omnikv_sqe *okv_sq_get(struct okv_sq *sq);
/** Submitter: hand over the next @nr filled slots. Sequentially consistent, so that a sleeping worker is seen after it. */
void okv_sq_publish(struct okv_sq *sq, uint32_t nr);

/** Worker: the descriptor at @pos, or NULL while there is none. */
static inline const struct okv_sq_desc *okv_sq_peek(struct okv_sq *sq, uint32_t pos)
{
	const struct okv_sq_desc *desc = &sq->descs[pos & sq->mask];

	/* Pairs with the releases in okv_sq_publish(). */
	return atomic_load_explicit(&desc->seq, memory_order_acquire) == pos + 1 ? desc : NULL;
}

/* ---- completion queue --------------------------------------------------------------------- */

/** @nr >= 2, a power of two. */
int okv_cq_init(struct okv_cq *cq, uint32_t nr);
void okv_cq_fini(struct okv_cq *cq);

static inline bool okv_op_moves(uint8_t opcode)
{
	return opcode == OMNIKV_OP_LOAD || opcode == OMNIKV_OP_STORE || opcode == OMNIKV_OP_COPY ||
	       opcode == OMNIKV_OP_SPILL || opcode == OMNIKV_OP_FETCH;
}

/** Between pool and NVMe: run by ring_spill.c, not by the device. */
static inline bool okv_op_spills(uint8_t opcode)
{
	return opcode == OMNIKV_OP_SPILL || opcode == OMNIKV_OP_FETCH;
}

/** Slots that an operation may need: a transfer's result may be followed by a notification. */
static inline uint32_t okv_op_slots(uint8_t opcode)
{
	return okv_op_moves(opcode) ? 2 : 1;
}

/** Submitter: promise @nr slots; false when there are not that many. */
static inline bool okv_cq_reserve(struct okv_cq *cq, uint32_t nr)
{
	uint64_t reserved = atomic_load_explicit(&cq->reserved, memory_order_relaxed);

	if (reserved + nr - cq->seen_free > cq->nr) {
		/* head and spare: pair with the releases in okv_cq_seen() and okv_cq_spare(). */
		cq->seen_free = atomic_load_explicit(&cq->head, memory_order_acquire) +
				atomic_load_explicit(&cq->spare, memory_order_acquire);
		if (reserved + nr - cq->seen_free > cq->nr)
			return false;
	}
	atomic_store_explicit(&cq->reserved, reserved + nr, memory_order_relaxed);
	return true;
}

/** Worker: fill the next slot. It is promised, so there is one. Shown by okv_cq_show(). */
static inline void okv_cq_fill(struct okv_cq *cq, uint64_t user_data, int64_t res, uint32_t flags,
			       uint32_t nr_valid)
{
	struct omnikv_cqe *cqe = &cq->entries[cq->filled & cq->mask].cqe;

	cqe->user_data = user_data;
	cqe->res = res;
	cqe->flags = flags;
	cqe->nr_valid = nr_valid;
	cq->filled++;
}

/** Worker: give back a promised slot. Before the last completion of its operation is shown. */
static inline void okv_cq_spare(struct okv_cq *cq)
{
	uint64_t spare = atomic_load_explicit(&cq->spare, memory_order_relaxed);

	atomic_store_explicit(&cq->spare, spare + 1, memory_order_release);
}

/**
 * okv_cq_show() - worker: let the reaper see what has been filled
 *
 * Return: true when there was something. Sequentially consistent, so that a sleeping reaper is seen after it.
 */
bool okv_cq_show(struct okv_cq *cq);

/** Reaper: the oldest unseen result, or NULL. */
static inline struct omnikv_cqe *okv_cq_peek(struct okv_cq *cq)
{
	uint64_t head = atomic_load_explicit(&cq->head, memory_order_relaxed);
	struct okv_cq_entry *entry = &cq->entries[head & cq->mask];

	/* Pairs with the releases in okv_cq_show(). */
	return atomic_load_explicit(&entry->seq, memory_order_acquire) == head + 1 ? &entry->cqe : NULL;
}

/** Reaper, after it has said that it sleeps: is there a result after all? */
static inline bool okv_cq_is_shown(struct okv_cq *cq)
{
	return atomic_load(&cq->tail) != atomic_load_explicit(&cq->head, memory_order_relaxed);
}

/** Reaper: the slot may be filled again. */
static inline void okv_cq_seen(struct okv_cq *cq)
{
	uint64_t head = atomic_load_explicit(&cq->head, memory_order_relaxed);

	atomic_store_explicit(&cq->head, head + 1, memory_order_release);
}

/** Reaper: completions still to come or to be seen. */
static inline uint64_t okv_cq_pending(struct okv_cq *cq)
{
	uint64_t spare = atomic_load_explicit(&cq->spare, memory_order_acquire);
	uint64_t head = atomic_load_explicit(&cq->head, memory_order_relaxed);

	return atomic_load_explicit(&cq->reserved, memory_order_relaxed) - spare - head;
}

/* ---- operations --------------------------------------------------------------------------- */

/**
 * okv_sqe_check() - can this request ever be right
 * @granule_bytes: of the ring's pool; 0 when the ring has none
 * @hbm_bytes:     of @sqe->hbm; ignored when that is NULL
 *
 * Looks at nothing outside the sqe, its pieces and blocks. Return: 0, -EINVAL, -EOPNOTSUPP (an
 * operation that this build cannot do), -EPERM (moves pool memory and there is no pool).
 */
int okv_sqe_check(const struct omnikv_sqe *sqe, uint64_t granule_bytes, uint64_t hbm_bytes);

int okv_opq_init(struct okv_opq *q, uint32_t nr);
void okv_opq_fini(struct okv_opq *q);
/** Take over a submitted operation; it is HELD or READY after. There is a free slot: the caller has reserved completions. */
struct okv_op *okv_opq_add(struct okv_opq *q, const struct omnikv_sqe *sqe, uint64_t deadline);
/** Nothing orders operations now: what brings no order itself may be completed without a slot. */
static inline bool okv_opq_is_free_of_order(const struct okv_opq *q)
{
	return !q->chain_open && !q->nr_drains;
}
/** Take the next operation that may start, or whose chain has failed (is_doomed); NULL when there is none. */
struct okv_op *okv_opq_next(struct okv_opq *q);
/** The result is posted: followers are released, or doomed when it @failed. The slot stays until okv_opq_put(). */
void okv_opq_post(struct okv_opq *q, struct okv_op *op, bool failed);
void okv_opq_put(struct okv_opq *q, struct okv_op *op);
/** The oldest operation with this user_data whose result is not posted, other than @self; NULL when there is none. */
struct okv_op *okv_opq_find(struct okv_opq *q, uint64_t user_data, const struct okv_op *self);
/** The operation with the earliest deadline when that is <= @now, else NULL. */
struct okv_op *okv_opq_expired(struct okv_opq *q, uint64_t now);
/** UINT64_MAX when nothing is live. */
uint64_t okv_opq_next_deadline(const struct okv_opq *q);
/** Every invariant of the table; false when one is broken. For tests and debug builds. */
bool okv_opq_check(const struct okv_opq *q);

void okv_op_list_add(struct okv_opq *q, struct okv_op_list *list, struct okv_op *op);
void okv_op_list_del(struct okv_opq *q, struct okv_op_list *list, struct okv_op *op);

static inline struct okv_op *okv_op_list_first(struct okv_opq *q, const struct okv_op_list *list)
{
	return list->first == OKV_OP_NONE ? NULL : &q->ops[list->first];
}

static inline struct okv_op *okv_op_list_next(struct okv_opq *q, const struct okv_op *op)
{
	return op->list_next == OKV_OP_NONE ? NULL : &q->ops[op->list_next];
}

static inline uint32_t okv_op_idx(const struct okv_opq *q, const struct okv_op *op)
{
	return (uint32_t)(op - q->ops);
}

#endif /* OKV_RING_QUEUE_H */

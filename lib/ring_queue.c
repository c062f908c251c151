// SPDX-License-Identifier: MIT
/*
 * The bookkeeping of a ring, see ring_queue.h.
 *
 * Order between operations is three conditions, kept apart: is_linked (a predecessor in the
 * chain has not succeeded), in_list (a drain stands before it, or it is one and is not first),
 * and, for a barrier, not being first. An operation is READY when none holds it. Whatever
 * comes first in submission order is held by nothing but its chain.
 *
 * Entered by the thread that runs the ring; okv_sq_get() by the one that submits.
 */
#include "ring_queue.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool is_power_of_two(uint32_t n)
{
	return n && !(n & (n - 1));
}

static void *alloc_lines(size_t nr, size_t bytes)
{
	size_t total = (nr * bytes + OKV_CACHELINE - 1) & ~(size_t)(OKV_CACHELINE - 1);
	void *ptr = aligned_alloc(OKV_CACHELINE, total);

	if (ptr)
		memset(ptr, 0, total);
	return ptr;
}

int okv_sq_init(struct okv_sq *sq, uint32_t nr)
{
	if (!is_power_of_two(nr))
		return -EINVAL;
	memset(sq, 0, sizeof(*sq));
	sq->sqes = alloc_lines(nr, sizeof(*sq->sqes));
	sq->descs = alloc_lines(nr, sizeof(*sq->descs));
	if (!sq->sqes || !sq->descs) {
		okv_sq_fini(sq);
		return -ENOMEM;
	}
	sq->nr = nr;
	sq->mask = nr - 1;
	return 0;
}

void okv_sq_fini(struct okv_sq *sq)
{
	free(sq->sqes);
	free(sq->descs);
}

struct omnikv_sqe *okv_sq_get(struct okv_sq *sq)
{
	struct omnikv_sqe *sqe;

	if (sq->filled - sq->seen_head == sq->nr) {
		/* Pairs with the release when the ring takes operations over. */
		sq->seen_head = atomic_load_explicit(&sq->head, memory_order_acquire);
		if (sq->filled - sq->seen_head == sq->nr)
			return NULL;
	}
	sqe = &sq->sqes[sq->filled++ & sq->mask];
	memset(sqe, 0, sizeof(*sqe));
	return sqe;
}

static bool is_plain_nop(const struct omnikv_sqe *sqe)
{
	return sqe->opcode == OMNIKV_OP_NOP && !sqe->flags && !sqe->reserved && !sqe->wait && !sqe->signal;
}

/*
 * Within a cache line the first entry is shown last: the worker waits for it, and would take the
 * line away in the middle otherwise.
 */
void okv_sq_publish(struct okv_sq *sq, uint32_t nr)
{
	const uint32_t per_line = OKV_CACHELINE / sizeof(struct okv_sq_desc);
	uint32_t end = sq->taken + nr;

	while (sq->taken != end) {
		uint32_t line_end = (sq->taken & ~(per_line - 1)) + per_line, pos;

		if (end - sq->taken < line_end - sq->taken)
			line_end = end;
		for (pos = line_end; pos-- != sq->taken;) {
			const struct omnikv_sqe *sqe = &sq->sqes[pos & sq->mask];
			struct okv_sq_desc *desc = &sq->descs[pos & sq->mask];

			desc->user_data = sqe->user_data;
			desc->is_nop = is_plain_nop(sqe);
			atomic_store_explicit(&desc->seq, pos + 1, memory_order_release);
		}
		sq->taken = line_end;
	}
	atomic_store(&sq->tail, end);
}

int okv_cq_init(struct okv_cq *cq, uint32_t nr)
{
	if (!is_power_of_two(nr) || nr < 2)
		return -EINVAL;
	memset(cq, 0, sizeof(*cq));
	cq->entries = alloc_lines(nr, sizeof(*cq->entries));
	if (!cq->entries)
		return -ENOMEM;
	cq->nr = nr;
	cq->mask = nr - 1;
	return 0;
}

void okv_cq_fini(struct okv_cq *cq)
{
	free(cq->entries);
}

/* The first of a cache line last, as in okv_sq_publish(). */
bool okv_cq_show(struct okv_cq *cq)
{
	const uint64_t per_line = OKV_CACHELINE / sizeof(struct okv_cq_entry);
	uint64_t shown = atomic_load_explicit(&cq->tail, memory_order_relaxed);

	if (shown == cq->filled)
		return false;
	while (shown != cq->filled) {
		uint64_t line_end = (shown & ~(per_line - 1)) + per_line, pos;

		if (line_end > cq->filled)
			line_end = cq->filled;
		for (pos = line_end; pos-- != shown;)
			atomic_store_explicit(&cq->entries[pos & cq->mask].seq, pos + 1, memory_order_release);
		shown = line_end;
	}
	atomic_store(&cq->tail, shown);
	return true;
}

/* ---- checking ----------------------------------------------------------------------------- */

static bool is_within(uint64_t off, uint64_t bytes, uint64_t limit)
{
	uint64_t end;

	return !__builtin_add_overflow(off, bytes, &end) && end <= limit;
}

/* Bytes from the first to behind the last one of @nr slices. */
static bool rows_span(uint64_t nr, uint64_t row_bytes, uint64_t slice_bytes, uint64_t *span)
{
	*span = (nr - 1) * row_bytes + slice_bytes;
	return row_bytes >= slice_bytes;
}

/* What the piece takes up on either side: nothing overflows, since rows are counted and 32 bits wide. */
static bool piece_spans(const struct omnikv_piece *p, const struct omnikv_rows *rows, uint64_t *host, uint64_t *device)
{
	uint64_t nr;

	*host = *device = p->bytes;
	if (!rows)
		return true;
	if (!rows->slice_bytes || rows->reserved)
		return !rows->slice_bytes && !rows->host_row_bytes && !rows->device_row_bytes && !rows->reserved;
	nr = p->bytes / rows->slice_bytes;
	return nr <= OMNIKV_ROWS_MAX && p->bytes % rows->slice_bytes == 0 &&
	       rows_span(nr, rows->host_row_bytes, rows->slice_bytes, host) &&
	       rows_span(nr, rows->device_row_bytes, rows->slice_bytes, device);
}

static bool is_piece_valid(const struct omnikv_piece *p, const struct omnikv_rows *rows, uint8_t opcode,
			   uint64_t granule_bytes, uint64_t hbm_bytes)
{
	uint64_t extent_bytes, host, device;

	if (!p->bytes || !piece_spans(p, rows, &host, &device) ||
	    (!okv_op_spills(opcode) && !is_within(p->device_off, device, hbm_bytes)))
		return false;
	if (opcode == OMNIKV_OP_COPY) {
		/* Source and destination of one piece do not overlap, nor what is between its rows. */
		return is_within(p->extent_off, host, hbm_bytes) &&
		       (p->extent_off + host <= p->device_off || p->device_off + device <= p->extent_off);
	}
	return p->extent.nr_granules &&
	       !__builtin_mul_overflow(granule_bytes, p->extent.nr_granules, &extent_bytes) &&
	       is_within(p->extent_off, host, extent_bytes);
}

#define SPILL_PAGE	4096u
#define SPILL_PARTS_MAX	32u

static bool is_block_valid(const struct omnikv_spill_block *block)
{
	return block->key.len && block->key.len <= OMNIKV_KEY_BYTES_MAX && block->parent.len <= OMNIKV_KEY_BYTES_MAX &&
	       block->nr_tokens && block->nr_parts && block->nr_parts <= SPILL_PARTS_MAX;
}

/* What a SPILL or FETCH has beside its pieces. */
static int check_spill(const struct omnikv_sqe *sqe)
{
	const struct omnikv_spill_io *io = sqe->spill_io;
	uint64_t nr_parts = 0;

	if (!io || !io->spill)
		return -EOPNOTSUPP;
	if (sqe->hbm || sqe->rows || !io->ns || !io->blocks || !io->nr_blocks || io->nr_blocks > OMNIKV_SPILL_BLOCKS_MAX || io->reserved ||
	    !sqe->pieces || (sqe->opcode == OMNIKV_OP_SPILL && !sqe->crc))
		return -EINVAL;
	for (uint32_t i = 0; i < io->nr_blocks; i++) {
		if (!is_block_valid(&io->blocks[i]))
			return -EINVAL;
		nr_parts += io->blocks[i].nr_parts;
	}
	if (nr_parts != sqe->nr_pieces)
		return -EINVAL;
	for (uint32_t i = 0; i < sqe->nr_pieces; i++)
		if (sqe->pieces[i].device_off || sqe->pieces[i].bytes % SPILL_PAGE || sqe->pieces[i].extent_off % SPILL_PAGE)
			return -EINVAL;
	return 0;
}

int okv_sqe_check(const struct omnikv_sqe *sqe, uint64_t granule_bytes, uint64_t hbm_bytes)
{
	uint64_t total_bytes = 0;
	uint32_t i;
	int ret;

	if (sqe->opcode >= OMNIKV_OP_NR || (sqe->flags & ~OMNIKV_SQE_F_ALL) || sqe->reserved)
		return -EINVAL;
	switch (sqe->opcode) {
	case OMNIKV_OP_PULL:
		return -EOPNOTSUPP;
	case OMNIKV_OP_SPILL:
	case OMNIKV_OP_FETCH:
		ret = check_spill(sqe);
		if (ret)
			return ret;
		break;
	case OMNIKV_OP_LOAD:
	case OMNIKV_OP_STORE:
	case OMNIKV_OP_COPY:
		break;
	default:
		return 0;
	}
	if (!sqe->pieces || !sqe->nr_pieces || sqe->nr_pieces > OMNIKV_PIECES_MAX ||
	    (!sqe->hbm && !okv_op_spills(sqe->opcode)))
		return -EINVAL;
	if (sqe->opcode != OMNIKV_OP_COPY && !granule_bytes)
		return -EPERM;
	for (i = 0; i < sqe->nr_pieces; i++) {
		if (!is_piece_valid(&sqe->pieces[i], sqe->rows ? &sqe->rows[i] : NULL, sqe->opcode, granule_bytes, hbm_bytes))
			return -EINVAL;
		/* The result is the sum as a signed number. */
		if (__builtin_add_overflow(total_bytes, sqe->pieces[i].bytes, &total_bytes) ||
		    total_bytes > INT64_MAX)
			return -EINVAL;
	}
	return 0;
}

/* ---- lists -------------------------------------------------------------------------------- */

void okv_op_list_add(struct okv_opq *q, struct okv_op_list *list, struct okv_op *op)
{
	uint32_t idx = okv_op_idx(q, op);

	op->list_next = OKV_OP_NONE;
	op->list_prev = list->last;
	if (list->last == OKV_OP_NONE)
		list->first = idx;
	else
		q->ops[list->last].list_next = idx;
	list->last = idx;
}

void okv_op_list_del(struct okv_opq *q, struct okv_op_list *list, struct okv_op *op)
{
	if (op->list_prev == OKV_OP_NONE)
		list->first = op->list_next;
	else
		q->ops[op->list_prev].list_next = op->list_next;
	if (op->list_next == OKV_OP_NONE)
		list->last = op->list_prev;
	else
		q->ops[op->list_next].list_prev = op->list_prev;
	op->list_prev = OKV_OP_NONE;
	op->list_next = OKV_OP_NONE;
}

static void live_add(struct okv_opq *q, struct okv_op *op)
{
	uint32_t idx = okv_op_idx(q, op);

	op->next = OKV_OP_NONE;
	op->prev = q->live.last;
	if (q->live.last == OKV_OP_NONE)
		q->live.first = idx;
	else
		q->ops[q->live.last].next = idx;
	q->live.last = idx;
	q->nr_live++;
}

static void live_del(struct okv_opq *q, struct okv_op *op)
{
	if (op->prev == OKV_OP_NONE)
		q->live.first = op->next;
	else
		q->ops[op->prev].next = op->next;
	if (op->next == OKV_OP_NONE)
		q->live.last = op->prev;
	else
		q->ops[op->next].prev = op->prev;
	q->nr_live--;
}

/* ---- deadlines: a binary heap of op indices ----------------------------------------------- */

static bool is_earlier(const struct okv_opq *q, uint32_t a, uint32_t b)
{
	return q->ops[a].deadline < q->ops[b].deadline;
}

static void heap_set(struct okv_opq *q, uint32_t pos, uint32_t idx)
{
	q->heap[pos] = idx;
	q->ops[idx].heap_pos = pos;
}

static void heap_up(struct okv_opq *q, uint32_t pos, uint32_t idx)
{
	while (pos && is_earlier(q, idx, q->heap[(pos - 1) / 2])) {
		heap_set(q, pos, q->heap[(pos - 1) / 2]);
		pos = (pos - 1) / 2;
	}
	heap_set(q, pos, idx);
}

static void heap_down(struct okv_opq *q, uint32_t pos, uint32_t idx)
{
	for (;;) {
		uint32_t child = 2 * pos + 1;

		if (child >= q->nr_heap)
			break;
		if (child + 1 < q->nr_heap && is_earlier(q, q->heap[child + 1], q->heap[child]))
			child++;
		if (!is_earlier(q, q->heap[child], idx))
			break;
		heap_set(q, pos, q->heap[child]);
		pos = child;
	}
	heap_set(q, pos, idx);
}

static void heap_del(struct okv_opq *q, struct okv_op *op)
{
	uint32_t pos = op->heap_pos;
	uint32_t last = q->heap[--q->nr_heap];

	if (pos == q->nr_heap)
		return;
	if (pos && is_earlier(q, last, q->heap[(pos - 1) / 2]))
		heap_up(q, pos, last);
	else
		heap_down(q, pos, last);
}

uint64_t okv_opq_next_deadline(const struct okv_opq *q)
{
	return q->nr_heap ? q->ops[q->heap[0]].deadline : UINT64_MAX;
}

struct okv_op *okv_opq_expired(struct okv_opq *q, uint64_t now)
{
	if (!q->nr_heap || q->ops[q->heap[0]].deadline > now)
		return NULL;
	return &q->ops[q->heap[0]];
}

/* ---- order -------------------------------------------------------------------------------- */

static bool is_drain(const struct okv_op *op)
{
	return op->sqe.flags & OMNIKV_SQE_F_DRAIN;
}

static void try_ready(struct okv_opq *q, struct okv_op *op)
{
	if (op->state != OKV_OP_HELD)
		return;
	if (!op->is_doomed) {
		if (op->is_linked || op->in_list)
			return;
		if (op->sqe.opcode == OMNIKV_OP_BARRIER && q->live.first != okv_op_idx(q, op))
			return;
	}
	op->state = OKV_OP_READY;
	okv_op_list_add(q, &q->ready, op);
}

static void held_del(struct okv_opq *q, struct okv_op *op)
{
	if (!op->in_list)
		return;
	okv_op_list_del(q, &q->held, op);
	op->in_list = false;
}

/* Called whenever the first live operation or the set of drains may have changed. */
static void release_held(struct okv_opq *q)
{
	struct okv_op *op;

	if (q->live.first != OKV_OP_NONE) {
		op = &q->ops[q->live.first];
		held_del(q, op);
		try_ready(q, op);
	}
	while (q->held.first != OKV_OP_NONE) {
		op = &q->ops[q->held.first];
		if (is_drain(op))
			return;
		if (q->nr_drains) {
			const struct okv_op *d = &q->ops[q->live.first];

			while (!is_drain(d))
				d = &q->ops[d->next];
			if (d->seq < op->seq)
				return;
		}
		held_del(q, op);
		try_ready(q, op);
	}
}

int okv_opq_init(struct okv_opq *q, uint32_t nr)
{
	uint32_t i;

	memset(q, 0, sizeof(*q));
	q->ops = calloc(nr, sizeof(*q->ops));
	q->heap = calloc(nr, sizeof(*q->heap));
	if (!q->ops || !q->heap) {
		okv_opq_fini(q);
		return -ENOMEM;
	}
	q->nr = nr;
	for (i = 0; i < nr; i++)
		q->ops[i].next = i + 1 < nr ? i + 1 : OKV_OP_NONE;
	q->free = 0;
	q->live = q->ready = q->held = (struct okv_op_list) { OKV_OP_NONE, OKV_OP_NONE };
	q->chain = OKV_OP_NONE;
	return 0;
}

void okv_opq_fini(struct okv_opq *q)
{
	free(q->ops);
	free(q->heap);
	q->ops = NULL;
	q->heap = NULL;
}

struct okv_op *okv_opq_add(struct okv_opq *q, const struct omnikv_sqe *sqe, uint64_t deadline)
{
	struct okv_op *op;
	bool was_empty = q->live.first == OKV_OP_NONE;
	bool bypasses;
	uint32_t idx;

	assert(q->free != OKV_OP_NONE);
	idx = q->free;
	op = &q->ops[idx];
	q->free = op->next;
	q->nr_used++;

	op->sqe = *sqe;
	op->deadline = deadline;
	op->seq = q->seq++;
	op->list_prev = op->list_next = OKV_OP_NONE;
	op->link_next = OKV_OP_NONE;
	op->state = OKV_OP_HELD;
	op->is_linked = false;
	op->in_list = false;
	op->is_doomed = false;

	/* A cancellation on its own waits for nothing: it may be what ends the wait. */
	bypasses = sqe->opcode == OMNIKV_OP_CANCEL && !sqe->flags && !q->chain_open;

	if (q->chain_open) {
		if (q->chain != OKV_OP_NONE) {
			op->is_linked = true;
			q->ops[q->chain].link_next = idx;
		} else {
			op->is_doomed = q->chain_failed;
		}
	}
	q->chain_open = sqe->flags & OMNIKV_SQE_F_LINK;
	q->chain = q->chain_open ? idx : OKV_OP_NONE;
	q->chain_failed = false;

	if (!op->is_doomed && !was_empty && !bypasses && (is_drain(op) || q->nr_drains)) {
		op->in_list = true;
		okv_op_list_add(q, &q->held, op);
	}
	if (is_drain(op))
		q->nr_drains++;
	live_add(q, op);
	heap_up(q, q->nr_heap++, idx);
	try_ready(q, op);
	return op;
}

struct okv_op *okv_opq_next(struct okv_opq *q)
{
	struct okv_op *op = okv_op_list_first(q, &q->ready);

	if (op) {
		okv_op_list_del(q, &q->ready, op);
		op->state = OKV_OP_WAITING;
	}
	return op;
}

void okv_opq_post(struct okv_opq *q, struct okv_op *op, bool failed)
{
	uint32_t idx = okv_op_idx(q, op);
	struct okv_op *follower = NULL;

	if (op->state == OKV_OP_READY)
		okv_op_list_del(q, &q->ready, op);
	held_del(q, op);
	/* The chain's members are neighbours in submission order as long as they are live. */
	if (op->is_linked)
		q->ops[op->prev].link_next = OKV_OP_NONE;
	if (op->link_next != OKV_OP_NONE)
		follower = &q->ops[op->link_next];
	if (q->chain == idx) {
		q->chain = OKV_OP_NONE;
		q->chain_failed = failed;
	}
	if (is_drain(op))
		q->nr_drains--;
	live_del(q, op);
	heap_del(q, op);
	op->state = OKV_OP_POSTED;

	if (follower) {
		follower->is_linked = false;
		if (failed) {
			follower->is_doomed = true;
			held_del(q, follower);
		}
		try_ready(q, follower);
	}
	release_held(q);
}

void okv_opq_put(struct okv_opq *q, struct okv_op *op)
{
	assert(op->state == OKV_OP_POSTED);
	op->state = OKV_OP_FREE;
	op->next = q->free;
	q->free = okv_op_idx(q, op);
	q->nr_used--;
}

struct okv_op *okv_opq_find(struct okv_opq *q, uint64_t user_data, const struct okv_op *self)
{
	uint32_t idx;

	for (idx = q->live.first; idx != OKV_OP_NONE; idx = q->ops[idx].next) {
		if (q->ops[idx].sqe.user_data == user_data && &q->ops[idx] != self)
			return &q->ops[idx];
	}
	return NULL;
}

bool okv_opq_check(const struct okv_opq *q)
{
	uint32_t idx, nr_live = 0, nr_free = 0, nr_drains = 0, nr_ready = 0, i;
	bool is_behind_drain = false;

	for (idx = q->live.first; idx != OKV_OP_NONE; idx = q->ops[idx].next) {
		const struct okv_op *op = &q->ops[idx];
		bool bypasses = op->sqe.opcode == OMNIKV_OP_CANCEL && !op->sqe.flags;

		if (op->state == OKV_OP_FREE || op->state == OKV_OP_POSTED || q->heap[op->heap_pos] != idx)
			return false;
		if (op->is_linked && (op->prev == OKV_OP_NONE || q->ops[op->prev].link_next != idx))
			return false;
		/* Nothing behind a live drain has started, but what is doomed or cancels. */
		if (is_behind_drain && op->state != OKV_OP_HELD && !op->is_doomed && !bypasses)
			return false;
		if (is_drain(op) && op->state > OKV_OP_HELD && q->live.first != idx && !op->is_doomed)
			return false;
		is_behind_drain |= is_drain(op);
		nr_drains += is_drain(op);
		nr_ready += op->state == OKV_OP_READY;
		nr_live++;
	}
	/* The first one is held by nothing. */
	if (q->live.first != OKV_OP_NONE && q->ops[q->live.first].state == OKV_OP_HELD)
		return false;
	for (idx = q->ready.first; idx != OKV_OP_NONE; idx = q->ops[idx].list_next)
		nr_ready--;
	for (idx = q->free; idx != OKV_OP_NONE; idx = q->ops[idx].next)
		nr_free++;
	for (i = 1; i < q->nr_heap; i++) {
		if (is_earlier(q, q->heap[i], q->heap[(i - 1) / 2]))
			return false;
	}
	return nr_live == q->nr_live && nr_live == q->nr_heap && nr_drains == q->nr_drains && !nr_ready &&
	       nr_free == q->nr - q->nr_used;
}

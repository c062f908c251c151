// SPDX-License-Identifier: MIT
/*
 * Rings: the life of every operation from submission to its last completion.
 *
 * Owns starting (order, events, extents), ending (results, signals, notifications),
 * withdrawing (cancellation, deadlines) and the public calls. The tables are ring_queue.c's;
 * threads, clocks and the moving of bytes are the device's. One thread submits, one reaps, and
 * one (the device decides which) runs the ring; who enters is said in ring.h.
 *
 * An extent is referenced from the moment its transfer begins until no byte of that can move
 * any more, which is before the last completion is posted: what is freed meanwhile waits in
 * QUARANTINED.
 */
#include "ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "futex.h"

#define DEFAULT_ENTRIES		256
#define DEFAULT_DEADLINE_NS	(UINT64_C(60) * 1000000000)

static bool is_power_of_two(uint32_t n)
{
	return n && !(n & (n - 1));
}

static bool is_same_extent(const struct omnikv_extent *a, const struct omnikv_extent *b)
{
	return a->granule == b->granule && a->generation == b->generation && a->nr_granules == b->nr_granules;
}

static void bit_set(uint64_t *bits, uint32_t idx)
{
	bits[idx / 64] |= UINT64_C(1) << (idx % 64);
}

/* ---- extents ------------------------------------------------------------------------------ */

static bool uses_extents(const struct okv_op *op)
{
	return okv_op_moves(op->sqe.opcode) && op->sqe.opcode != OMNIKV_OP_COPY;
}

/* Must these be the client's own, and not published? */
static bool writes_extents(const struct okv_op *op)
{
	return op->sqe.opcode == OMNIKV_OP_STORE || op->sqe.opcode == OMNIKV_OP_FETCH;
}

/* Neighbouring pieces of one extent share a reference: the end of the run that begins at @first. */
static uint32_t run_end(const struct okv_op *op, uint32_t first)
{
	const struct omnikv_piece *pieces = op->sqe.pieces;
	uint32_t i = first + 1;

	while (i < op->sqe.nr_pieces && is_same_extent(&pieces[i].extent, &pieces[first].extent))
		i++;
	return i;
}

static int run_check(struct omnikv_ring *ring, const struct okv_op *op, const struct omnikv_extent *name)
{
	struct omnikv_extent_info info = { .size = sizeof(info) };
	int ret;

	if (!writes_extents(op))
		return 0;
	/* Referenced, so it can no longer be sealed; freed is seen as -ESTALE. */
	ret = omnikv_extent_query(ring->client, name, &info);
	if (ret)
		return ret;
	return info.is_mine && info.state == OMNIKV_EXTENT_PRIVATE ? 0 : -EPERM;
}

static void run_hold(struct omnikv_ring *ring, struct okv_op *op, uint32_t i, bool is_got)
{
	uint32_t piece;
	int ret = 0;

	if (!is_got)
		ret = omnikv_extent_io_get(ring->client, &ring->names[i], 1);
	if (!ret) {
		ret = run_check(ring, op, &ring->names[i]);
		if (ret)
			omnikv_extent_io_put(ring->client, &ring->names[i], 1);
	}
	if (ret) {
		if (!op->error)
			op->error = ret;
		return;
	}
	for (piece = ring->run_first[i]; piece < ring->run_first[i] + ring->run_nr[i]; piece++)
		bit_set(op->held, piece);
}

/* One call for many runs; where that is refused, one by one, so that each piece stands for itself. */
static void acquire(struct omnikv_ring *ring, struct okv_op *op)
{
	uint32_t first = 0, nr, i;
	bool is_got;

	while (first < op->sqe.nr_pieces) {
		for (nr = 0; nr < OKV_RING_BATCH && first < op->sqe.nr_pieces; nr++) {
			uint32_t end = run_end(op, first);

			ring->names[nr] = op->sqe.pieces[first].extent;
			ring->run_first[nr] = first;
			ring->run_nr[nr] = end - first;
			first = end;
		}
		is_got = !omnikv_extent_io_get(ring->client, ring->names, nr);
		for (i = 0; i < nr; i++)
			run_hold(ring, op, i, is_got);
	}
}

static void unacquire(struct omnikv_ring *ring, struct okv_op *op)
{
	uint32_t first = 0, nr = 0;

	while (first < op->sqe.nr_pieces) {
		if (okv_op_is_held(op, first))
			ring->names[nr++] = op->sqe.pieces[first].extent;
		first = run_end(op, first);
		if (nr == OKV_RING_BATCH) {
			omnikv_extent_io_put(ring->client, ring->names, nr);
			nr = 0;
		}
	}
	if (nr)
		omnikv_extent_io_put(ring->client, ring->names, nr);
}

/* No byte of @op moves any more: give back what it holds. */
static void release(struct okv_op *op)
{
	if (op->held) {
		if (uses_extents(op))
			unacquire(op->ring, op);
		if (op->held != op->bits_small)
			free(op->held);
		op->held = NULL;
		op->moved = NULL;
	}
	/* Pairs with the acquire in omnikv_hbm_destroy(). */
	if (okv_op_moves(op->sqe.opcode) && op->sqe.hbm)
		atomic_fetch_sub_explicit(&op->sqe.hbm->nr_io, 1, memory_order_release);
}

uint32_t okv_op_begin(struct okv_op *op)
{
	uint32_t nr_words = (op->sqe.nr_pieces + 63) / 64;
	uint32_t nr_held = 0, i;

	op->state = OKV_OP_RUNNING;
	op->held = op->bits_small;
	if (nr_words > 1)
		op->held = malloc(2 * nr_words * sizeof(*op->held));
	if (!op->held) {
		op->error = -ENOMEM;
		return 0;
	}
	op->moved = op->held + nr_words;
	memset(op->moved, 0, nr_words * sizeof(*op->moved));
	if (!uses_extents(op)) {
		memset(op->held, 0xff, nr_words * sizeof(*op->held));
		return op->sqe.nr_pieces;
	}
	memset(op->held, 0, nr_words * sizeof(*op->held));
	acquire(op->ring, op);
	for (i = 0; i < nr_words; i++)
		nr_held += (uint32_t)__builtin_popcountll(op->held[i]);
	return nr_held;
}

void okv_op_piece_run(const struct okv_op *op, uint32_t idx, uint64_t off, struct okv_run *run)
{
	const struct omnikv_rows *rows = op->sqe.rows ? &op->sqe.rows[idx] : NULL;
	const struct omnikv_piece *p = &op->sqe.pieces[idx];
	unsigned char *hbm = omnikv_hbm_ptr(op->sqe.hbm);
	unsigned char *there = hbm + p->device_off;
	unsigned char *here = op->sqe.opcode == OMNIKV_OP_COPY ? hbm + p->extent_off :
			      op->ring->base + p->extent.granule * op->ring->granule_bytes + p->extent_off;

	if (rows && rows->slice_bytes) {
		uint64_t row = off / rows->slice_bytes, in = off % rows->slice_bytes;

		here += row * rows->host_row_bytes + in;
		there += row * rows->device_row_bytes + in;
		run->bytes = rows->slice_bytes - in;
	} else {
		here += off;
		there += off;
		run->bytes = p->bytes - off;
	}
	run->src = op->sqe.opcode == OMNIKV_OP_STORE ? there : here;
	run->dst = op->sqe.opcode == OMNIKV_OP_STORE ? here : there;
}

void okv_op_piece_moved(struct okv_op *op, uint32_t idx, uint32_t crc)
{
	struct omnikv_device *dev = op->ring->dev;
	uint64_t bytes = op->sqe.pieces[idx].bytes;

	bit_set(op->moved, idx);
	if (op->sqe.opcode == OMNIKV_OP_LOAD)
		atomic_fetch_add_explicit(&dev->h2d_bytes, bytes, memory_order_relaxed);
	if (op->sqe.opcode == OMNIKV_OP_STORE)
		atomic_fetch_add_explicit(&dev->d2h_bytes, bytes, memory_order_relaxed);
	/* After the result the caller's arrays are no longer ours. */
	if (op->state == OKV_OP_POSTED)
		return;
	op->nr_moved++;
	op->moved_bytes += bytes;
	if (op->sqe.crc && op->sqe.opcode != OMNIKV_OP_SPILL)
		op->sqe.crc[idx] = crc;
}

/* ---- ending ------------------------------------------------------------------------------- */

/*
 * The result of @op. With @more a copy is under way: extents and HBM stay referenced until
 * okv_op_end(), and the second promised slot waits for the notification.
 */
static void post(struct okv_op *op, int64_t res, bool more)
{
	struct omnikv_ring *ring = op->ring;
	bool moves = okv_op_moves(op->sqe.opcode);
	uint64_t user_data = op->sqe.user_data;
	uint32_t nr_valid = moves ? op->nr_moved : 0;

	if (moves && op->sqe.valid && op->sqe.nr_pieces <= OMNIKV_PIECES_MAX) {
		uint32_t nr_words = (op->sqe.nr_pieces + 63) / 64;

		if (op->moved)
			memcpy(op->sqe.valid, op->moved, nr_words * sizeof(*op->moved));
		else
			memset(op->sqe.valid, 0, nr_words * sizeof(*op->sqe.valid));
	}
	if (!more)
		release(op);
	if (op->sqe.signal)
		okv_event_fire(op->sqe.signal, res < 0 ? (int)res : 1);
	if (!more && moves)
		okv_cq_spare(&ring->cq);
	okv_cq_fill(&ring->cq, user_data, res, more ? OMNIKV_CQE_F_MORE : 0, nr_valid);
	okv_opq_post(&ring->q, op, res < 0);
	if (!more)
		okv_opq_put(&ring->q, op);
}

void okv_op_end(struct okv_op *op)
{
	struct omnikv_ring *ring = op->ring;

	if (op->state != OKV_OP_POSTED) {
		post(op, op->error ? op->error : (int64_t)op->moved_bytes, false);
		return;
	}
	release(op);
	okv_cq_fill(&ring->cq, op->sqe.user_data, 0, OMNIKV_CQE_F_NOTIF, 0);
	okv_opq_put(&ring->q, op);
}

void okv_op_post_more(struct okv_op *op, int error)
{
	if (op->state != OKV_OP_POSTED)
		post(op, error, true);
}

void okv_op_abandon(struct okv_op *op)
{
	struct omnikv_ring *ring = op->ring;

	if (op->state != OKV_OP_POSTED)
		post(op, -ETIME, true);
	if (op->held && op->held != op->bits_small)
		free(op->held);
	op->held = NULL;
	op->moved = NULL;
	okv_opq_put(&ring->q, op);
}

static void withdraw(struct okv_op *op, int error)
{
	struct omnikv_ring *ring = op->ring;
	bool more = false;

	switch (op->state) {
	case OKV_OP_WAITING:
		okv_op_list_del(&ring->q, &ring->waiting, op);
		break;
	case OKV_OP_QUEUED:
	case OKV_OP_RUNNING:
		more = okv_op_spills(op->sqe.opcode) ? !okv_spill_op_recall(op) : !ring->dev->ops->op_recall(op);
		break;
	default:
		break;
	}
	post(op, error, more);
}

void okv_ring_cancel_all(struct omnikv_ring *ring)
{
	/* The youngest first, so that nothing is released on the way. */
	while (ring->q.live.last != OKV_OP_NONE)
		withdraw(&ring->q.ops[ring->q.live.last], -ECANCELED);
}

/* ---- starting ----------------------------------------------------------------------------- */

static int check(struct omnikv_ring *ring, const struct okv_op *op)
{
	const struct omnikv_sqe *sqe = &op->sqe;

	if ((sqe->wait && sqe->wait->dev != ring->dev) || (sqe->signal && sqe->signal->dev != ring->dev) ||
	    (okv_op_moves(sqe->opcode) && sqe->hbm && sqe->hbm->dev != ring->dev))
		return -EINVAL;
	return okv_sqe_check(sqe, ring->granule_bytes, sqe->hbm ? sqe->hbm->bytes : 0);
}

static void cancel(struct omnikv_ring *ring, struct okv_op *op)
{
	struct okv_op *target = okv_opq_find(&ring->q, op->sqe.target, op);

	if (target)
		withdraw(target, -ECANCELED);
	post(op, target ? 0 : -ENOENT, false);
}

static void start(struct omnikv_ring *ring, struct okv_op *op)
{
	switch (op->sqe.opcode) {
	case OMNIKV_OP_CANCEL:
		cancel(ring, op);
		break;
	case OMNIKV_OP_LOAD:
	case OMNIKV_OP_STORE:
	case OMNIKV_OP_COPY:
		op->state = OKV_OP_QUEUED;
		ring->dev->ops->op_start(op);
		break;
	case OMNIKV_OP_SPILL:
	case OMNIKV_OP_FETCH:
		op->state = OKV_OP_QUEUED;
		okv_spill_op_start(op);
		break;
	default:
		post(op, 0, false);
		break;
	}
}

/* Nothing before @op holds it any more. */
static void dispatch(struct omnikv_ring *ring, struct okv_op *op)
{
	int ret;

	if (op->is_doomed) {
		post(op, -ECANCELED, false);
		return;
	}
	ret = check(ring, op);
	if (ret) {
		post(op, ret, false);
		return;
	}
	if (op->sqe.wait && !omnikv_event_query(op->sqe.wait)) {
		okv_op_list_add(&ring->q, &ring->waiting, op);
		return;
	}
	start(ring, op);
}

/* Results of many no-ops are shown on the way, so that the reaper need not wait for the last. */
#define SHOW_EVERY	32

static bool take_over(struct omnikv_ring *ring)
{
	uint32_t head = atomic_load_explicit(&ring->sq.head, memory_order_relaxed);
	uint32_t limit = head + ring->sq.nr;
	const struct okv_sq_desc *desc = okv_sq_peek(&ring->sq, head);
	uint64_t now = 0;

	if (!desc)
		return false;
	for (; desc && head != limit; desc = okv_sq_peek(&ring->sq, ++head)) {
		const struct omnikv_sqe *sqe;
		struct okv_op *op;

		if (desc->is_nop && okv_opq_is_free_of_order(&ring->q)) {
			okv_cq_fill(&ring->cq, desc->user_data, 0, 0, 0);
			if (head % SHOW_EVERY == SHOW_EVERY - 1)
				okv_ring_show(ring);
			continue;
		}
		sqe = &ring->sq.sqes[head & ring->sq.mask];
		if (!now)
			now = ring->dev->ops->clock(ring->dev);
		op = okv_opq_add(&ring->q, sqe,
				 okv_add_sat(now, sqe->deadline_ns ? sqe->deadline_ns : ring->deadline_ns));
		op->ring = ring;
		op->held = NULL;
		op->moved = NULL;
		op->moved_bytes = 0;
		op->nr_moved = 0;
		op->error = 0;
		op->fail = 0;
	}
	/* Pairs with the acquire in okv_sq_get(). */
	atomic_store_explicit(&ring->sq.head, head, memory_order_release);
	return true;
}

static bool start_fired(struct omnikv_ring *ring)
{
	struct okv_op *op, *next;
	bool did = false;
	uint64_t seq;

	if (ring->waiting.first == OKV_OP_NONE)
		return false;
	seq = atomic_load(&ring->dev->event_seq);
	if (seq == ring->seen_event_seq)
		return false;
	ring->seen_event_seq = seq;
	for (op = okv_op_list_first(&ring->q, &ring->waiting); op; op = next) {
		next = okv_op_list_next(&ring->q, op);
		if (!omnikv_event_query(op->sqe.wait))
			continue;
		okv_op_list_del(&ring->q, &ring->waiting, op);
		start(ring, op);
		did = true;
		/* A cancellation may have taken the next one away. */
		if (op->sqe.opcode == OMNIKV_OP_CANCEL)
			next = okv_op_list_first(&ring->q, &ring->waiting);
	}
	return did;
}

static bool expire(struct omnikv_ring *ring)
{
	struct okv_op *op;
	uint64_t now;
	bool did = false;

	if (!ring->q.nr_live)
		return false;
	now = ring->dev->ops->clock(ring->dev);
	while ((op = okv_opq_expired(&ring->q, now))) {
		withdraw(op, -ETIME);
		did = true;
	}
	return did;
}

bool okv_ring_run(struct omnikv_ring *ring)
{
	struct okv_op *op;
	bool did_any = false, did;

	do {
		did = take_over(ring);
		did |= okv_ring_spill_reap(ring);
		did |= expire(ring);
		did |= start_fired(ring);
		while ((op = okv_opq_next(&ring->q))) {
			dispatch(ring, op);
			did = true;
		}
		did_any |= did;
	} while (did && ring->q.nr_live);
	okv_ring_show(ring);
	return did_any;
}

void okv_ring_show(struct omnikv_ring *ring)
{
	if (okv_cq_show(&ring->cq))
		okv_sleeper_wake(&ring->reaper_sleeps);
}

bool okv_ring_has_news(struct omnikv_ring *ring)
{
	return atomic_load(&ring->sq.tail) != atomic_load_explicit(&ring->sq.head, memory_order_relaxed) ||
	       atomic_load(&ring->has_spill_news) ||
	       (ring->waiting.first != OKV_OP_NONE && atomic_load(&ring->dev->event_seq) != ring->seen_event_seq);
}

/* ---- public calls ------------------------------------------------------------------------- */

static void set_error(struct omnikv_error *err, const char *text)
{
	if (err)
		strncpy(err->text, text, sizeof(err->text) - 1);
}

static int copy_config(struct omnikv_ring_config *to, const struct omnikv_ring_config *from,
		       struct omnikv_error *err)
{
	const unsigned char *bytes = (const unsigned char *)from;
	size_t i;

	memset(to, 0, sizeof(*to));
	if (from) {
		if (from->size < offsetof(struct omnikv_ring_config, spin_ns)) {
			set_error(err, "ring configuration: size is too small; set it to sizeof(struct omnikv_ring_config)");
			return -EINVAL;
		}
		for (i = sizeof(*to); i < from->size; i++) {
			if (bytes[i]) {
				set_error(err, "ring configuration: asks for what this library does not know");
				return -E2BIG;
			}
		}
		memcpy(to, from, from->size < sizeof(*to) ? from->size : sizeof(*to));
	}
	if (!to->entries)
		to->entries = DEFAULT_ENTRIES;
	if (!is_power_of_two(to->entries) || to->entries > OMNIKV_RING_ENTRIES_MAX) {
		set_error(err, "ring entries: not a power of two of at most 32768");
		return -EINVAL;
	}
	if (!to->cq_entries)
		to->cq_entries = 2 * to->entries;
	if (!is_power_of_two(to->cq_entries) || to->cq_entries < to->entries ||
	    to->cq_entries > 2 * OMNIKV_RING_ENTRIES_MAX) {
		set_error(err, "ring cq_entries: not a power of two from entries to 65536");
		return -EINVAL;
	}
	/* A transfer needs two. */
	if (to->cq_entries < 2)
		to->cq_entries = 2;
	if (!to->deadline_ns)
		to->deadline_ns = DEFAULT_DEADLINE_NS;
	return 0;
}

static void ring_unlist(struct omnikv_ring *ring)
{
	struct omnikv_device *dev = ring->dev;
	struct omnikv_ring **link;

	pthread_mutex_lock(&dev->lock);
	for (link = &dev->rings; *link != ring; link = &(*link)->next)
		;
	*link = ring->next;
	pthread_mutex_unlock(&dev->lock);
}

int omnikv_ring_init(struct omnikv_client *client, struct omnikv_device *dev,
		     const struct omnikv_ring_config *config, struct omnikv_ring **out,
		     struct omnikv_error *err)
{
	struct omnikv_ring_config c;
	struct omnikv_ring *ring;
	int ret;

	ret = copy_config(&c, config, err);
	if (ret)
		return ret;
	ring = aligned_alloc(OKV_CACHELINE, (sizeof(*ring) + OKV_CACHELINE - 1) & ~(size_t)(OKV_CACHELINE - 1));
	if (!ring)
		return -ENOMEM;
	memset(ring, 0, sizeof(*ring));
	ret = okv_sq_init(&ring->sq, c.entries);
	if (ret)
		goto err_free;
	ret = okv_cq_init(&ring->cq, c.cq_entries);
	if (ret)
		goto err_sq;
	ret = okv_opq_init(&ring->q, c.cq_entries);
	if (ret)
		goto err_cq;
	ring->client = client;
	ring->dev = dev;
	if (client) {
		ring->pool = omnikv_client_pool(client);
		ring->base = omnikv_pool_base(ring->pool);
		ring->granule_bytes = omnikv_pool_granule_bytes(ring->pool);
	}
	ring->deadline_ns = c.deadline_ns;
	ring->spin_ns = c.spin_ns;
	ring->waiting = ring->queued = (struct okv_op_list) { OKV_OP_NONE, OKV_OP_NONE };

	pthread_mutex_lock(&dev->lock);
	ring->next = dev->rings;
	dev->rings = ring;
	pthread_mutex_unlock(&dev->lock);
	ret = dev->ops->ring_init(ring);
	if (ret)
		goto err_list;

	*out = ring;
	return 0;

err_list:
	ring_unlist(ring);
	okv_opq_fini(&ring->q);
err_cq:
	okv_cq_fini(&ring->cq);
err_sq:
	okv_sq_fini(&ring->sq);
err_free:
	free(ring);
	return ret;
}

void omnikv_ring_exit(struct omnikv_ring *ring)
{
	if (!ring)
		return;
	ring->dev->ops->ring_exit(ring);
	ring_unlist(ring);
	/* A copy that the device never ends: what it may still touch is leaked rather than handed to someone else. */
	if (ring->q.nr_used)
		return;
	okv_opq_fini(&ring->q);
	okv_cq_fini(&ring->cq);
	okv_sq_fini(&ring->sq);
	free(ring);
}

struct omnikv_device *omnikv_ring_device(const struct omnikv_ring *ring)
{
	return ring->dev;
}

struct omnikv_client *omnikv_ring_client(const struct omnikv_ring *ring)
{
	return ring->client;
}

struct omnikv_sqe *omnikv_get_sqe(struct omnikv_ring *ring)
{
	return okv_sq_get(&ring->sq);
}

int omnikv_submit(struct omnikv_ring *ring)
{
	struct okv_sq *sq = &ring->sq;
	uint32_t nr = 0;

	while (sq->taken + nr != sq->filled) {
		const struct omnikv_sqe *sqe = &sq->sqes[(sq->taken + nr) & sq->mask];

		if (!okv_cq_reserve(&ring->cq, okv_op_slots(sqe->opcode)))
			break;
		if (okv_op_moves(sqe->opcode) && sqe->hbm)
			atomic_fetch_add_explicit(&sqe->hbm->nr_io, 1, memory_order_relaxed);
		nr++;
	}
	if (!nr)
		return sq->taken == sq->filled ? 0 : -EAGAIN;
	okv_sq_publish(sq, nr);
	ring->dev->ops->ring_submitted(ring);
	return (int)nr;
}

int omnikv_peek_cqe(struct omnikv_ring *ring, struct omnikv_cqe **cqe)
{
	struct omnikv_cqe *found = okv_cq_peek(&ring->cq);

	if (!found) {
		ring->dev->ops->ring_poll(ring);
		found = okv_cq_peek(&ring->cq);
		if (!found)
			return -EAGAIN;
	}
	*cqe = found;
	return 0;
}

int omnikv_wait_cqe(struct omnikv_ring *ring, struct omnikv_cqe **cqe, uint64_t timeout_ns)
{
	struct omnikv_cqe *found = okv_cq_peek(&ring->cq);
	int ret;

	if (!found) {
		ret = ring->dev->ops->ring_wait(ring, timeout_ns);
		if (ret)
			return ret;
		found = okv_cq_peek(&ring->cq);
	}
	*cqe = found;
	return 0;
}

void omnikv_cqe_seen(struct omnikv_ring *ring, struct omnikv_cqe *cqe)
{
	(void)cqe;
	okv_cq_seen(&ring->cq);
}

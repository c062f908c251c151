// SPDX-License-Identifier: MIT
/*
 * Transfers of the "cuda" device: the rings' side of the copy engines.
 *
 * A ring has one lane a direction: a stream of the driver, in which transfers are queued in parts as far as room for
 * lists and bounce buffer goes, and a word that the stream raises behind each part. The worker feeds lanes and watches
 * their words; it never waits for the device. Parts end in order. A part that was handed over cannot be recalled:
 * what is withdrawn then is fed no further, and its notification follows when its last part has ended.
 *
 * The event that a transfer signals is raised by the lane itself, behind the last part, so that a kernel that waits
 * for it starts without this thread; where anything has failed it is poisoned from here instead.
 *
 * Everything here is the worker's, but for ring_init and ring_exit.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "copy.h"
#include "crc32c.h"
#include "device_cuda.h"
#include "device_worker.h"
#include "failpoint.h"

#define NR_PARTS	8u
#define MAX_RUNS	4096u
#define BOUNCE_BYTES	(UINT64_C(8) << 20)
/* Of one part, so that copying in and moving on overlap. */
#define BOUNCE_PART	(UINT64_C(2) << 20)

#define NAP_MIN_NS	5000
#define NAP_MAX_NS	50000
#define NAP_WAIT_NS	200000
/* How often a lane that does not move is asked whether it has failed. */
#define CHECK_NS	1000000
/* What has not ended then never will. */
#define STUCK_NS	(UINT64_C(60) * 1000000000)

/* Bytes of the pool that a part moves by way of the bounce buffer: copied in before, or out after. */
struct cuda_part {
	struct okv_op		*op;
	uint64_t		seq;		/* the lane's word when it has ended */
	uint32_t		first_piece;	/* pieces that end in it: [first_piece, end_piece) */
	uint32_t		end_piece;
	uint64_t		bounce_end;	/* of the lane, when this part has ended */
	uint32_t		nr_outs;
	bool			has_failed;
	bool			has_crc;
	struct okv_cuda_word	*signal;	/* raised behind it; held */
	/* room of its own */
	struct okv_cuda_list	list;
	struct okv_run		*outs;		/* [MAX_RUNS] */
	struct okv_kernel_span	*spans;		/* [MAX_RUNS], pinned; the sums behind them */
	uint64_t		spans_ptr;
	uint32_t		*sums;
	uint64_t		sums_ptr;
};

struct cuda_lane {
	enum okv_cuda_direction	dir;
	void			*stream;
	struct okv_cuda_word	*word;
	uint64_t		base;		/* value of the word before the first part */
	uint64_t		seq;		/* of the last part handed over */
	bool			is_unmarked;	/* ... whose end the stream has not been told to show */
	uint64_t		checked_ns;
	struct cuda_part	parts[NR_PARTS];
	uint64_t		head, tail;	/* parts [head, tail) are under way */
	unsigned char		*bounce;	/* BOUNCE_BYTES, pinned; NULL: none */
	uint64_t		bounce_ptr;
	uint64_t		bounce_head, bounce_tail;
	/* what is being fed */
	struct okv_op		*op;
	uint32_t		piece;
	uint64_t		off;
};

struct cuda_op {
	uint32_t	nr_parts;	/* under way */
	bool		is_fed;		/* no part follows */
};

struct cuda_ring {
	struct okv_worker	worker;
	struct okv_cuda_map	*map;
	struct cuda_lane	lanes[OKV_NR_DIRECTIONS];
	struct cuda_op		*ops;		/* by index in the ring's table */
	uint64_t		nap_ns;
};

static struct cuda_ring *ring_of(struct omnikv_ring *ring)
{
	return ring->priv;
}

static enum okv_cuda_direction direction(const struct okv_op *op)
{
	switch (op->sqe.opcode) {
	case OMNIKV_OP_LOAD:
		return OKV_H2D;
	case OMNIKV_OP_STORE:
		return OKV_D2H;
	default:
		return OKV_D2D;
	}
}

static struct cuda_op *state_of(struct okv_op *op)
{
	return &ring_of(op->ring)->ops[okv_op_idx(&op->ring->q, op)];
}

/* ---- ending ------------------------------------------------------------------------------- */

static void op_fail(struct okv_op *op, int error)
{
	if (!op->error)
		op->error = error;
}

static void op_end_if_over(struct okv_op *op)
{
	struct cuda_op *state = state_of(op);

	if (!state->is_fed || state->nr_parts)
		return;
	okv_op_end(op);
	okv_ring_show(op->ring);
}

static void op_stop(struct cuda_lane *lane, struct okv_op *op)
{
	lane->op = NULL;
	state_of(op)->is_fed = true;
	op_end_if_over(op);
}

static void signal_put(struct omnikv_device *dev, struct okv_cuda_word *word)
{
	pthread_mutex_lock(&dev->lock);
	if (--word->nr_writers == 0 && word->is_orphan)
		okv_cuda_word_put_locked(dev, word);
	pthread_mutex_unlock(&dev->lock);
}

static uint32_t host_sum(const struct okv_op *op, uint32_t idx)
{
	struct okv_run run;
	uint32_t crc = 0;
	uint64_t off;

	for (off = 0; off < op->sqe.pieces[idx].bytes; off += run.bytes) {
		okv_op_piece_run(op, idx, off, &run);
		crc = okv_crc32c_extend(crc, op->sqe.opcode == OMNIKV_OP_STORE ? run.dst : run.src, run.bytes);
	}
	return crc;
}

/* The sum of piece @idx from those of its runs, the next of which is number @k of the part. */
static uint32_t device_sum(const struct cuda_part *part, uint32_t idx, uint32_t *k)
{
	uint32_t rest = okv_op_piece_rows(part->op, idx), crc = part->sums[*k];
	struct okv_crc32c_shift shift;

	if (rest > 1)
		okv_crc32c_shift_init(&shift, part->op->sqe.rows[idx].slice_bytes);
	for ((*k)++; --rest; (*k)++)
		crc = okv_crc32c_combine(&shift, crc, part->sums[*k]);
	return crc;
}

static void part_moved(struct cuda_part *part)
{
	struct okv_op *op = part->op;
	uint32_t i, k = 0, crc;

	/* Nobody waits for the bytes of what was withdrawn. */
	if (op->state == OKV_OP_POSTED)
		return;
	if (part->nr_outs)
		okv_copy_runs(part->outs, part->nr_outs, NULL);
	for (i = part->first_piece; i < part->end_piece; i++) {
		if (!okv_op_is_held(op, i))
			continue;
		crc = 0;
		if (part->has_crc)
			crc = device_sum(part, i, &k);
		else if (op->sqe.crc)
			crc = host_sum(op, i);
		okv_op_piece_moved(op, i, crc);
	}
}

static void part_end(struct omnikv_ring *ring, struct cuda_lane *lane, bool is_lost)
{
	struct cuda_part *part = &lane->parts[lane->head % NR_PARTS];
	struct okv_op *op = part->op;

	lane->head++;
	lane->bounce_head = part->bounce_end;
	if (is_lost)
		op_fail(op, -EIO);
	else if (!part->has_failed)
		part_moved(part);
	if (part->signal)
		signal_put(ring->dev, part->signal);
	state_of(op)->nr_parts--;
	op_end_if_over(op);
}

static bool lane_is_over(const struct cuda_lane *lane)
{
	return lane->head != lane->tail &&
	       /* Pairs with the write of the lane's stream: what came before that is visible after this. */
	       atomic_load_explicit(lane->word->host, memory_order_acquire) >= lane->parts[lane->head % NR_PARTS].seq;
}

/* The context is gone, and with it whatever was under way: no byte moves any more. */
static void lane_lost(struct omnikv_ring *ring, struct cuda_lane *lane)
{
	while (lane->head != lane->tail)
		part_end(ring, lane, true);
	if (lane->op) {
		op_fail(lane->op, -EIO);
		op_stop(lane, lane->op);
	}
}

/* Show the end of what has been handed over. What the driver refuses now is asked of it again: bytes are under way. */
static void lane_mark(struct omnikv_device *dev, struct cuda_lane *lane)
{
	int error = okv_cuda_of(dev)->drv.cuStreamWriteValue64(lane->stream, lane->word->ptr, lane->seq,
							       OKV_CU_STREAM_WRITE_VALUE_DEFAULT);

	okv_cuda_check(dev, error);
	lane->is_unmarked = error;
}

static bool lane_reap(struct omnikv_ring *ring, struct cuda_lane *lane)
{
	struct omnikv_device *dev = ring->dev;
	struct okv_cuda *cuda = okv_cuda_of(dev);
	bool did = false;
	uint64_t now;
	int error;

	while (lane_is_over(lane)) {
		part_end(ring, lane, false);
		did = true;
	}
	if (lane->head == lane->tail)
		return did;
	if (lane->is_unmarked)
		lane_mark(dev, lane);
	now = okv_monotonic_ns();
	if (did)
		lane->checked_ns = now;
	if (!atomic_load_explicit(&cuda->is_lost, memory_order_relaxed)) {
		if (now - lane->checked_ns < CHECK_NS)
			return did;
		lane->checked_ns = now;
		error = cuda->drv.cuStreamQuery(lane->stream);
		if (!error || error == OKV_CUDA_ERROR_NOT_READY)
			return did;
		/* What a stream has met it does not get over, whatever it is. */
		atomic_store(&cuda->is_lost, 1);
	} else if (cuda->drv.cuStreamQuery(lane->stream) == OKV_CUDA_ERROR_NOT_READY) {
		/* Somebody says that the device is lost, and its copies go on: what they use is not free yet. */
		return did;
	}
	atomic_fetch_add_explicit(&dev->nr_failed, lane->tail - lane->head, memory_order_relaxed);
	lane_lost(ring, lane);
	return true;
}

/* ---- feeding ------------------------------------------------------------------------------ */

/* Room in the bounce buffer in one run, of at most @want bytes. */
static uint64_t bounce_room(struct cuda_lane *lane, uint64_t want)
{
	uint64_t used = lane->bounce_tail - lane->bounce_head, to_end = BOUNCE_BYTES - lane->bounce_tail % BOUNCE_BYTES;
	uint64_t room = BOUNCE_BYTES - used;

	if (!lane->bounce)
		return 0;
	if (room > to_end)
		room = to_end;
	return room < want ? room : want;
}

/* Add the bytes of @run. Returns how many were added: fewer where a chunk of the pool ends, or none where there is no room. */
static uint64_t add_host(struct cuda_ring *cr, struct cuda_lane *lane, struct cuda_part *part, const struct okv_run *run,
			 uint64_t *bounced)
{
	bool is_load = lane->dir == OKV_H2D;
	unsigned char *host = (unsigned char *)(uintptr_t)(is_load ? run->src : run->dst);
	uint64_t there = (uintptr_t)(is_load ? run->dst : run->src);
	uint64_t len = run->bytes, ptr, at;
	/* Neighbours of one registration join: the first byte of a chunk never follows the last of another. */
	bool may_join = (uint64_t)(host - cr->map->base) % cr->map->chunk_bytes;

	ptr = okv_cuda_map_find(cr->map, host, &len);
	if (!ptr) {
		len = bounce_room(lane, len);
		if (len > BOUNCE_PART - *bounced)
			len = BOUNCE_PART - *bounced;
		if (!len || part->nr_outs == MAX_RUNS)
			return 0;
		at = lane->bounce_tail % BOUNCE_BYTES;
		lane->bounce_tail += len;
		*bounced += len;
		if (is_load)
			memcpy(lane->bounce + at, host, len);
		else
			part->outs[part->nr_outs++] = (struct okv_run) { lane->bounce + at, host, len };
		host = lane->bounce + at;
		ptr = lane->bounce_ptr + at;
		may_join = at != 0;
	}
	if (is_load)
		okv_cuda_list_add(&part->list, may_join, there, (uintptr_t)host, len, there, ptr);
	else
		okv_cuda_list_add(&part->list, may_join, (uintptr_t)host, there, len, ptr, there);
	return len;
}

/* Collect what the next part moves; false where there is no room for any of it. */
static bool part_collect(struct omnikv_ring *ring, struct cuda_lane *lane, struct cuda_part *part)
{
	struct cuda_ring *cr = ring_of(ring);
	struct okv_op *op = lane->op;
	uint64_t bounced = 0, len;
	uint32_t nr_rows = 0;
	struct okv_run run;

	part->op = op;
	part->first_piece = lane->piece;
	part->nr_outs = 0;
	part->has_failed = part->has_crc = false;
	part->signal = NULL;
	part->list.nr = 0;
	part->list.bytes = part->list.max_bytes = 0;
	while (lane->piece < op->sqe.nr_pieces && part->list.nr < part->list.max &&
	       lane->piece - part->first_piece < MAX_RUNS) {
		if (!okv_op_is_held(op, lane->piece)) {
			lane->piece++;
			continue;
		}
		/* Each row of a piece that ends here is summed by itself. */
		if (!lane->off || !nr_rows)
			nr_rows += okv_op_piece_rows(op, lane->piece);
		if (nr_rows > MAX_RUNS)
			break;
		okv_op_piece_run(op, lane->piece, lane->off, &run);
		if (lane->dir == OKV_D2D) {
			len = run.bytes;
			okv_cuda_list_add(&part->list, true, (uintptr_t)run.dst, (uintptr_t)run.src, len, (uintptr_t)run.dst,
					  (uintptr_t)run.src);
		} else {
			len = add_host(cr, lane, part, &run, &bounced);
			if (!len)
				break;
		}
		lane->off += len;
		if (lane->off == op->sqe.pieces[lane->piece].bytes) {
			lane->off = 0;
			lane->piece++;
		}
	}
	part->end_piece = lane->piece;
	part->bounce_end = lane->bounce_tail;
	if (bounced)
		atomic_fetch_add_explicit(&okv_cuda_of(ring->dev)->nr_bounced_bytes, bounced, memory_order_relaxed);
	/* The rest of the operation may be pieces that nobody holds: nothing to move, and nothing is left. */
	return part->list.nr || lane->piece == op->sqe.nr_pieces;
}

/* Sums of the pieces that end in the part, on the device, where they have arrived or still are. */
static int part_sum(struct omnikv_ring *ring, struct cuda_lane *lane, struct cuda_part *part)
{
	struct okv_cuda *cuda = okv_cuda_of(ring->dev);
	struct okv_op *op = part->op;
	uint32_t i, nr = 0;
	struct okv_run run;
	uint64_t off;

	if (!op->sqe.crc || !cuda->kernels[OKV_KERNEL_CRC32C])
		return 0;
	for (i = part->first_piece; i < part->end_piece; i++) {
		if (!okv_op_is_held(op, i))
			continue;
		for (off = 0; off < op->sqe.pieces[i].bytes; off += run.bytes) {
			okv_op_piece_run(op, i, off, &run);
			part->spans[nr].addr = lane->dir == OKV_D2H ? (uintptr_t)run.src : (uintptr_t)run.dst;
			part->spans[nr++].bytes = run.bytes;
		}
	}
	if (!nr)
		return 0;
	part->has_crc = true;
	return okv_cuda_crc32c(cuda, lane->stream, part->spans_ptr, part->sums_ptr, nr);
}

/* Let the lane itself raise the event that the operation signals. Where that cannot be, okv_op_end() does. */
static int part_signal(struct omnikv_ring *ring, struct cuda_lane *lane, struct cuda_part *part)
{
	struct omnikv_device *dev = ring->dev;
	struct okv_cuda_event *event = (struct okv_cuda_event *)part->op->sqe.signal;
	struct okv_cuda_word *word, *more;
	uint64_t value = 0;

	if (!event || part->op->error || part->op->state == OKV_OP_POSTED)
		return 0;
	pthread_mutex_lock(&dev->lock);
	/* A reset may come before this write does: there must be a word to go on with. */
	if (!event->spare) {
		pthread_mutex_unlock(&dev->lock);
		more = okv_cuda_word_get(dev);
		pthread_mutex_lock(&dev->lock);
		/* Another transfer that signals it may have been first. */
		if (event->spare && more)
			okv_cuda_word_put_locked(dev, more);
		else if (!event->spare)
			event->spare = more;
	}
	word = event->spare ? event->word : NULL;
	if (word) {
		word->nr_writers++;
		value = 2 * word->gen;
	}
	pthread_mutex_unlock(&dev->lock);
	if (!word)
		return 0;
	part->signal = word;
	return okv_cuda_of(dev)->drv.cuStreamWriteValue64(lane->stream, word->ptr, value, OKV_CU_STREAM_WRITE_VALUE_DEFAULT);
}

/* Hand over one part. False: nothing could be done now. */
static bool part_submit(struct omnikv_ring *ring, struct cuda_lane *lane)
{
	struct omnikv_device *dev = ring->dev;
	struct okv_cuda *cuda = okv_cuda_of(dev);
	struct cuda_part *part = &lane->parts[lane->tail % NR_PARTS];
	struct okv_op *op = lane->op;
	enum okv_cuda_path path;
	bool is_last;
	int error;

	if (lane->tail - lane->head == NR_PARTS || !part_collect(ring, lane, part))
		return false;
	is_last = lane->piece == op->sqe.nr_pieces;
	error = OKV_FAILPOINT("ring.copy");
	if (error) {
		/* Nothing of the part is under way, so nothing of it need be waited for. */
		atomic_fetch_add_explicit(&dev->nr_failed, 1, memory_order_relaxed);
		op_fail(op, -error);
		lane->bounce_tail = lane->tail == lane->head ? lane->bounce_head :
				    lane->parts[(lane->tail - 1) % NR_PARTS].bounce_end;
		op_stop(lane, op);
		return true;
	}
	error = 0;
	if (part->list.nr) {
		path = okv_cuda_path_choose(cuda, lane->dir, part->list.nr, part->list.bytes);
		error = okv_cuda_submit(cuda, path, lane->dir, lane->stream, &part->list);
		if (!error)
			atomic_fetch_add_explicit(&cuda->path_bytes[path], part->list.bytes, memory_order_relaxed);
	}
	if (!error)
		error = part_sum(ring, lane, part);
	/* Behind the sums: who waits for the event may write over what they are of. */
	if (!error && is_last)
		error = part_signal(ring, lane, part);
	if (error) {
		/* Some of it may be under way: it ends as a part like others, of which no piece counts. */
		atomic_fetch_add_explicit(&dev->nr_failed, 1, memory_order_relaxed);
		okv_cuda_check(dev, error);
		op_fail(op, -EIO);
		part->has_failed = true;
	}
	part->seq = ++lane->seq;
	state_of(op)->nr_parts++;
	if (lane->head == lane->tail)
		lane->checked_ns = okv_monotonic_ns();
	lane->tail++;
	lane_mark(dev, lane);
	if (is_last || part->has_failed)
		op_stop(lane, op);
	return true;
}

/* The next operation of the lane's direction. */
static bool lane_begin(struct omnikv_ring *ring, struct cuda_lane *lane)
{
	struct okv_op *op;

	for (op = okv_op_list_first(&ring->q, &ring->queued); op; op = okv_op_list_next(&ring->q, op)) {
		if (direction(op) == lane->dir)
			break;
	}
	if (!op)
		return false;
	okv_op_list_del(&ring->q, &ring->queued, op);
	*state_of(op) = (struct cuda_op) { 0 };
	lane->op = op;
	lane->piece = 0;
	lane->off = 0;
	if (lane->dir == OKV_D2D && op->sqe.crc && !okv_cuda_of(ring->dev)->kernels[OKV_KERNEL_CRC32C])
		op_fail(op, -EOPNOTSUPP);
	else if (atomic_load_explicit(&okv_cuda_of(ring->dev)->is_lost, memory_order_relaxed))
		op_fail(op, -EIO);
	else if (okv_op_begin(op))
		return true;
	op_stop(lane, op);
	return true;
}

static bool lane_feed(struct omnikv_ring *ring, struct cuda_lane *lane)
{
	if (!lane->op)
		return lane_begin(ring, lane);
	return part_submit(ring, lane);
}

/* ---- the worker --------------------------------------------------------------------------- */

static void ring_begin(struct omnikv_ring *ring)
{
	struct okv_cuda *cuda = okv_cuda_of(ring->dev);

	/* Naps of some microseconds are meant. */
	prctl(PR_SET_TIMERSLACK, 1000, 0, 0, 0);
	if (cuda->drv.cuCtxSetCurrent(cuda->context))
		atomic_store(&cuda->is_lost, 1);
	okv_cuda_thread_relax(&cuda->drv);
}

/* Events that the device has fired meanwhile: only looking at them tells the ring. */
static void look_at_events(struct omnikv_ring *ring)
{
	struct okv_op *op;

	for (op = okv_op_list_first(&ring->q, &ring->waiting); op; op = okv_op_list_next(&ring->q, op))
		omnikv_event_query(op->sqe.wait);
}

static bool ring_run(struct omnikv_ring *ring)
{
	struct cuda_ring *cr = ring_of(ring);
	bool did = false;
	int i;

	for (i = 0; i < OKV_NR_DIRECTIONS; i++) {
		did |= lane_reap(ring, &cr->lanes[i]);
		did |= lane_feed(ring, &cr->lanes[i]);
	}
	look_at_events(ring);
	did |= okv_ring_has_news(ring);
	if (did)
		cr->nap_ns = NAP_MIN_NS;
	return did;
}

static bool ring_has_news(struct omnikv_ring *ring)
{
	struct cuda_ring *cr = ring_of(ring);
	int i;

	for (i = 0; i < OKV_NR_DIRECTIONS; i++) {
		if (lane_is_over(&cr->lanes[i]))
			return true;
	}
	look_at_events(ring);
	return okv_ring_has_news(ring);
}

static uint64_t ring_nap_ns(struct omnikv_ring *ring)
{
	struct cuda_ring *cr = ring_of(ring);
	uint64_t most = ring->waiting.first == OKV_OP_NONE ? 0 : NAP_WAIT_NS, nap_ns;
	int i;

	for (i = 0; i < OKV_NR_DIRECTIONS; i++) {
		if (cr->lanes[i].head != cr->lanes[i].tail)
			most = NAP_MAX_NS;
	}
	if (!most)
		return UINT64_MAX;
	nap_ns = cr->nap_ns < most ? cr->nap_ns : most;
	cr->nap_ns = 2 * nap_ns;
	return nap_ns;
}

static void ring_end(struct omnikv_ring *ring)
{
	struct cuda_ring *cr = ring_of(ring);
	uint64_t start_ns = okv_monotonic_ns();
	int i;

	/* All is withdrawn: what was not handed over is gone, the rest ends by itself. */
	while (ring->q.nr_used && okv_monotonic_ns() - start_ns < STUCK_NS) {
		for (i = 0; i < OKV_NR_DIRECTIONS; i++)
			lane_reap(ring, &cr->lanes[i]);
		if (ring->q.nr_used) {
			struct timespec ts = { .tv_nsec = NAP_MIN_NS };

			nanosleep(&ts, NULL);
		}
	}
	okv_cuda_of(ring->dev)->drv.cuCtxSetCurrent(NULL);
}

static const struct okv_worker_ops cuda_worker = {
	.begin = ring_begin,
	.run = ring_run,
	.has_news = ring_has_news,
	.nap_ns = ring_nap_ns,
	.end = ring_end,
};

/* ---- rings -------------------------------------------------------------------------------- */

static int pinned_alloc(struct okv_cuda *cuda, uint64_t bytes, void **host, uint64_t *ptr)
{
	int ret = cuda->drv.cuMemHostAlloc(host, bytes, OKV_CU_MEMHOSTALLOC_PORTABLE | OKV_CU_MEMHOSTALLOC_DEVICEMAP);

	if (ret) {
		*host = NULL;
		return ret;
	}
	ret = cuda->drv.cuMemHostGetDevicePointer(ptr, *host, 0);
	if (ret) {
		cuda->drv.cuMemFreeHost(*host);
		*host = NULL;
	}
	return ret;
}

static void part_fini(struct okv_cuda *cuda, struct cuda_part *part)
{
	okv_cuda_list_fini(cuda, &part->list);
	free(part->outs);
	if (part->spans)
		cuda->drv.cuMemFreeHost(part->spans);
}

static int part_init(struct okv_cuda *cuda, struct cuda_part *part)
{
	void *spans;
	int ret = okv_cuda_list_init(cuda, &part->list, MAX_RUNS);

	if (ret)
		return ret;
	part->outs = malloc(MAX_RUNS * sizeof(*part->outs));
	ret = part->outs ? pinned_alloc(cuda, MAX_RUNS * (sizeof(*part->spans) + sizeof(*part->sums)), &spans, &part->spans_ptr) :
			   OKV_CUDA_ERROR_OUT_OF_MEMORY;
	if (ret)
		return ret;
	part->spans = spans;
	part->sums = (uint32_t *)(part->spans + MAX_RUNS);
	part->sums_ptr = part->spans_ptr + MAX_RUNS * sizeof(*part->spans);
	return 0;
}

static void lane_fini(struct omnikv_device *dev, struct cuda_lane *lane)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);
	uint32_t i;

	for (i = 0; i < NR_PARTS; i++)
		part_fini(cuda, &lane->parts[i]);
	if (lane->bounce)
		cuda->drv.cuMemFreeHost(lane->bounce);
	if (lane->word) {
		pthread_mutex_lock(&dev->lock);
		/* Its generation goes on behind what the lane has written. */
		lane->word->gen = lane->seq;
		okv_cuda_word_put_locked(dev, lane->word);
		pthread_mutex_unlock(&dev->lock);
	}
	if (lane->stream)
		cuda->drv.cuStreamDestroy(lane->stream);
}

static int lane_init(struct omnikv_device *dev, struct cuda_lane *lane, enum okv_cuda_direction dir, bool has_pool)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);
	void *bounce;
	uint32_t i;
	int ret;

	lane->dir = dir;
	/* Streams of the highest priority share no queue of the hardware with an engine's streams that wait for them. */
	ret = cuda->drv.cuStreamCreateWithPriority(&lane->stream, OKV_CU_STREAM_NON_BLOCKING, cuda->priority);
	if (ret) {
		lane->stream = NULL;
		return ret;
	}
	lane->word = okv_cuda_word_get(dev);
	if (!lane->word)
		return OKV_CUDA_ERROR_OUT_OF_MEMORY;
	lane->seq = atomic_load(lane->word->host) + 2 * lane->word->gen;
	for (i = 0; i < NR_PARTS; i++) {
		ret = part_init(cuda, &lane->parts[i]);
		if (ret)
			return ret;
	}
	if (has_pool && dir != OKV_D2D) {
		ret = pinned_alloc(cuda, BOUNCE_BYTES, &bounce, &lane->bounce_ptr);
		lane->bounce = bounce;
	}
	return ret;
}

void okv_cuda_rings_count(struct omnikv_device *dev, uint64_t *all, uint64_t *mapped, uint64_t *refused)
{
	const struct omnikv_ring *ring, *other;
	uint64_t m, r;

	*all = *mapped = *refused = 0;
	pthread_mutex_lock(&dev->lock);
	for (ring = dev->rings; ring; ring = ring->next) {
		const struct cuda_ring *cr = ring->priv;

		/* A pool counts once, with the last ring that uses it. */
		for (other = cr && cr->map ? ring->next : NULL; other; other = other->next) {
			if (other->priv && ((const struct cuda_ring *)other->priv)->map == cr->map)
				break;
		}
		if (!cr || !cr->map || other)
			continue;
		okv_cuda_map_count(cr->map, &m, &r);
		*all += cr->map->bytes;
		*mapped += m;
		*refused += r;
	}
	pthread_mutex_unlock(&dev->lock);
}

int okv_cuda_ring_init(struct omnikv_ring *ring)
{
	struct omnikv_device *dev = ring->dev;
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct cuda_ring *cr;
	int ret, i;

	ret = okv_cuda_enter(dev);
	if (ret)
		return ret;
	cr = aligned_alloc(OKV_CACHELINE, sizeof(*cr));
	if (!cr) {
		okv_cuda_leave(dev);
		return -ENOMEM;
	}
	memset(cr, 0, sizeof(*cr));
	cr->nap_ns = NAP_MIN_NS;
	cr->ops = calloc(ring->q.nr, sizeof(*cr->ops));
	ret = cr->ops ? 0 : -ENOMEM;
	for (i = 0; !ret && i < OKV_NR_DIRECTIONS; i++)
		ret = okv_cuda_check(dev, lane_init(dev, &cr->lanes[i], (enum okv_cuda_direction)i, ring->pool));
	if (!ret && ring->pool) {
		ret = omnikv_pool_info(ring->pool, &info);
		if (!ret)
			ret = okv_cuda_map_get(dev, ring->base, info.nr_granules * info.granule_bytes, &cr->map);
	}
	if (!ret)
		ret = okv_worker_start(ring, &cr->worker, &cuda_worker);
	if (ret) {
		if (cr->map)
			okv_cuda_map_put(cr->map);
		for (i = 0; i < OKV_NR_DIRECTIONS; i++)
			lane_fini(dev, &cr->lanes[i]);
		free(cr->ops);
		free(cr);
	}
	okv_cuda_leave(dev);
	return ret;
}

void okv_cuda_ring_exit(struct omnikv_ring *ring)
{
	struct omnikv_device *dev = ring->dev;
	struct okv_cuda *cuda = okv_cuda_of(dev);
	struct cuda_ring *cr = ring_of(ring);
	void *context;
	int i;

	okv_worker_stop(ring);
	/* What outlived every deadline may still write: it is leaked rather than handed to someone else. */
	if (ring->q.nr_used) {
		atomic_store(&cuda->has_leaks, 1);
		if (cr->map)
			okv_cuda_map_abandon(cr->map);
		return;
	}
	if (cr->map)
		okv_cuda_map_put(cr->map);
	/* Also of a lost context. */
	cuda->drv.cuCtxPushCurrent(cuda->context);
	for (i = 0; i < OKV_NR_DIRECTIONS; i++)
		lane_fini(dev, &cr->lanes[i]);
	cuda->drv.cuCtxPopCurrent(&context);
	free(cr->ops);
	free(cr);
}

void okv_cuda_op_start(struct okv_op *op)
{
	okv_op_list_add(&op->ring->q, &op->ring->queued, op);
}

bool okv_cuda_op_recall(struct okv_op *op)
{
	struct cuda_ring *cr = ring_of(op->ring);
	struct cuda_lane *lane = &cr->lanes[direction(op)];
	struct cuda_op *state = state_of(op);

	if (op->state == OKV_OP_QUEUED) {
		okv_op_list_del(&op->ring->q, &op->ring->queued, op);
		return true;
	}
	/* What was not handed over never is. */
	if (lane->op == op)
		lane->op = NULL;
	state->is_fed = true;
	return !state->nr_parts;
}

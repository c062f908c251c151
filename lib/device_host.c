// SPDX-License-Identifier: MIT
/*
 * The "host" device: this machine's memory, with one worker thread a ring that copies.
 *
 * Owns the order of copies (first come, first served); threads and sleeping are device_worker.c's. A copy
 * is made in steps of some tens of microseconds; between steps the worker looks for cancellations and
 * deadlines, so a copy can always be recalled and F_MORE never arises.
 * Streams are the calling thread. Events may be fired and waited for by any thread.
 */
#include "device_worker.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "copy.h"
#include "failpoint.h"
#include "futex.h"

/* What is copied between two looks at the rest of the world. */
#define STEP_BYTES	(UINT64_C(512) << 10)
#define STEP_RUNS	1024

/* Before a stream sleeps on an event. */
#define SPIN_NS		20000

struct host_device {
	uint64_t	opened_ns;
};

struct host_ring {
	struct okv_worker	worker;
	/* owned by the worker */
	struct okv_op		*running;
};

/* ---- device ------------------------------------------------------------------------------- */

static int host_open(struct omnikv_device *dev, const char *unit, struct omnikv_error *err)
{
	struct host_device *host = calloc(1, sizeof(*host));

	(void)unit;
	(void)err;
	if (!host)
		return -ENOMEM;
	host->opened_ns = okv_monotonic_ns();
	dev->priv = host;
	return 0;
}

static void host_close(struct omnikv_device *dev)
{
	free(dev->priv);
}

static uint64_t host_clock(struct omnikv_device *dev)
{
	const struct host_device *host = dev->priv;

	return okv_monotonic_ns() - host->opened_ns;
}

static void host_info(struct omnikv_device *dev, struct omnikv_device_info *info)
{
	info->clock_ns = host_clock(dev);
}

static void host_hbm_freed(struct omnikv_device *dev, void *ptr, uint64_t mapped_bytes, uint64_t bytes)
{
	(void)dev;
	(void)bytes;
	munmap(ptr, mapped_bytes);
}

static int host_poll(struct omnikv_device *dev)
{
	(void)dev;
	return 0;
}

static int host_advance(struct omnikv_device *dev, uint64_t clock_ns)
{
	(void)dev;
	(void)clock_ns;
	return -EOPNOTSUPP;
}

static int host_fail_next(struct omnikv_device *dev, uint32_t nth, int error)
{
	(void)dev;
	(void)nth;
	(void)error;
	return -EOPNOTSUPP;
}

/* ---- streams: the calling thread ---------------------------------------------------------- */

static int host_stream_create(struct omnikv_device *dev, struct omnikv_stream **out)
{
	struct omnikv_stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return -ENOMEM;
	stream->dev = dev;
	*out = stream;
	return 0;
}

static void host_stream_destroy(struct omnikv_stream *stream)
{
	free(stream);
}

static int host_stream_launch(struct omnikv_stream *stream, uint64_t duration_ns, void (*fn)(void *arg), void *arg)
{
	if (fn)
		fn(arg);
	atomic_fetch_add_explicit(&stream->dev->compute_ns, duration_ns, memory_order_relaxed);
	return 0;
}

static int host_stream_wait(struct omnikv_stream *stream, struct omnikv_event *event)
{
	uint64_t start_ns;

	(void)stream;
	if (atomic_load(&event->state))
		return 0;
	start_ns = okv_monotonic_ns();
	do {
		okv_cpu_relax();
		if (atomic_load(&event->state))
			return 0;
	} while (okv_monotonic_ns() - start_ns < SPIN_NS);

	/* Pairs with the look at nr_sleepers in host_event_fired(). */
	atomic_fetch_add(&event->nr_sleepers, 1);
	while (!atomic_load(&event->state))
		okv_futex_wait((_Atomic uint32_t *)&event->state, 0, UINT64_MAX);
	/* Who fires holds the lock until it no longer touches the event. */
	atomic_fetch_sub(&event->nr_sleepers, 1);
	return 0;
}

static int host_stream_record(struct omnikv_stream *stream, struct omnikv_event *event)
{
	(void)stream;
	okv_event_fire(event, 1);
	return 0;
}

static int host_stream_sync(struct omnikv_stream *stream, uint64_t timeout_ns)
{
	(void)stream;
	(void)timeout_ns;
	return 0;
}

/* Ranks are queued for by one thread, in turn: what is waited for has been recorded before. */
static int host_peer_copy(struct omnikv_stream *stream, struct omnikv_device *to, void *dst, const void *src, uint64_t bytes)
{
	(void)stream;
	(void)to;
	memcpy(dst, src, bytes);
	return 0;
}

static int host_peer_wait(struct omnikv_stream *stream, struct omnikv_event *event)
{
	int ret = host_stream_wait(stream, event);

	return ret ? ret : atomic_load(&event->state) < 0 ? atomic_load(&event->state) : 0;
}

/* ---- the worker --------------------------------------------------------------------------- */

/* Between two steps of a copy. False: @op was withdrawn and is gone. */
static bool look_around(struct omnikv_ring *ring, struct okv_op *op)
{
	struct host_ring *host = ring->priv;

	okv_ring_run(ring);
	if (okv_worker_is_stopping(ring))
		okv_ring_cancel_all(ring);
	return host->running == op;
}

/* One piece larger than a step, or in rows. */
static bool copy_large(struct omnikv_ring *ring, struct okv_op *op, uint32_t idx)
{
	uint64_t bytes = op->sqe.pieces[idx].bytes, off = 0, step = 0;
	struct okv_run run;
	uint32_t crc = 0;

	while (off < bytes) {
		if (step >= STEP_BYTES) {
			step = 0;
			if (!look_around(ring, op))
				return false;
		}
		okv_op_piece_run(op, idx, off, &run);
		if (run.bytes > STEP_BYTES)
			run.bytes = STEP_BYTES;
		okv_copy_run_extend(&run, op->sqe.crc ? &crc : NULL);
		off += run.bytes;
		step += run.bytes;
	}
	okv_op_piece_moved(op, idx, crc);
	return true;
}

static void execute(struct omnikv_ring *ring, struct okv_op *op)
{
	struct host_ring *host = ring->priv;
	struct okv_run runs[STEP_RUNS];
	uint32_t idx[STEP_RUNS], crc[STEP_RUNS];
	uint32_t next = 0, nr, i;
	int error;

	okv_op_list_del(&ring->q, &ring->queued, op);
	host->running = op;
	if (!okv_op_begin(op))
		next = op->sqe.nr_pieces;
	while (next < op->sqe.nr_pieces) {
		uint64_t bytes = 0;

		error = OKV_FAILPOINT("ring.copy");
		if (error) {
			atomic_fetch_add_explicit(&ring->dev->nr_failed, 1, memory_order_relaxed);
			op->error = -error;
			break;
		}
		for (nr = 0; nr < STEP_RUNS && bytes < STEP_BYTES && next < op->sqe.nr_pieces; next++) {
			if (!okv_op_is_held(op, next))
				continue;
			okv_op_piece_run(op, next, 0, &runs[nr]);
			if (runs[nr].bytes > STEP_BYTES || runs[nr].bytes < op->sqe.pieces[next].bytes)
				break;
			bytes += runs[nr].bytes;
			idx[nr++] = next;
		}
		okv_copy_runs(runs, nr, op->sqe.crc ? crc : NULL);
		for (i = 0; i < nr; i++)
			okv_op_piece_moved(op, idx[i], op->sqe.crc ? crc[i] : 0);
		if (!nr && next < op->sqe.nr_pieces) {
			if (!copy_large(ring, op, next))
				return;
			next++;
		}
		if (next < op->sqe.nr_pieces && !look_around(ring, op))
			return;
	}
	host->running = NULL;
	okv_op_end(op);
	okv_ring_show(ring);
}

static bool host_run(struct omnikv_ring *ring)
{
	struct okv_op *op = okv_op_list_first(&ring->q, &ring->queued);

	if (op)
		execute(ring, op);
	return op;
}

static const struct okv_worker_ops host_worker = {
	.run = host_run,
};

static int host_ring_init(struct omnikv_ring *ring)
{
	struct host_ring *host = aligned_alloc(OKV_CACHELINE, sizeof(*host));
	int ret;

	if (!host)
		return -ENOMEM;
	*host = (struct host_ring) { 0 };
	ret = okv_worker_start(ring, &host->worker, &host_worker);
	if (ret)
		free(host);
	return ret;
}

static void host_ring_exit(struct omnikv_ring *ring)
{
	struct host_ring *host = ring->priv;

	okv_worker_stop(ring);
	free(host);
}

static void host_ring_poll(struct omnikv_ring *ring)
{
	(void)ring;
}

static void host_op_start(struct okv_op *op)
{
	okv_op_list_add(&op->ring->q, &op->ring->queued, op);
}

static bool host_op_recall(struct okv_op *op)
{
	struct host_ring *host = op->ring->priv;

	/* RUNNING: the worker is between two steps, and this is the worker. */
	if (op->state == OKV_OP_RUNNING)
		host->running = NULL;
	else
		okv_op_list_del(&op->ring->q, &op->ring->queued, op);
	return true;
}

const struct okv_device_ops okv_device_host = {
	.name = "host",
	.is_cpu_readable = true,
	.has_caller_streams = true,
	.open = host_open,
	.close = host_close,
	.clock = host_clock,
	.info = host_info,
	.stream_create = host_stream_create,
	.stream_destroy = host_stream_destroy,
	.stream_launch = host_stream_launch,
	.stream_wait = host_stream_wait,
	.stream_record = host_stream_record,
	.stream_sync = host_stream_sync,
	.peer_copy = host_peer_copy,
	.peer_wait = host_peer_wait,
	.event_fired = okv_worker_event_fired,
	.hbm_freed = host_hbm_freed,
	.poll = host_poll,
	.advance = host_advance,
	.fail_next = host_fail_next,
	.ring_init = host_ring_init,
	.ring_exit = host_ring_exit,
	.ring_submitted = okv_worker_ring_submitted,
	.ring_poll = host_ring_poll,
	.ring_wait = okv_worker_ring_wait,
	.op_start = host_op_start,
	.op_recall = host_op_recall,
};

// SPDX-License-Identifier: MIT
/*
 * The "sim" device: a simulated accelerator with real memory and a clock of its own.
 *
 * A discrete-event simulation: nothing happens between two events, and time passes only when
 * somebody polls or waits. One engine a direction moves transfers one after another; with
 * F_SHUFFLE they are taken in random order, end late, and their bytes arrive in parts. The bytes
 * really move when they are said to, not before, so that whoever looks too early or re-uses
 * memory too early is caught. The same seed and the same calls give the same run.
 *
 * With F_KERNELS bytes are moved and summed by the kernels of kernels/, run on the CPU, a batch of pieces a launch, as a
 * GPU would be given them.
 *
 * One thread at a time. Callbacks of streams run inside a poll and may submit and launch.
 */
#include "device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "copy.h"
#include "kernels/kernels.h"
#include "ring.h"

#define POISON_BYTE		0xdb
/* Freed memory that is kept, poisoned and read-only, until the device is closed. */
#define GRAVEYARD_BYTES_MAX	(UINT64_C(256) << 20)
/* Device memory to device memory, and to that of another device; bytes a second. */
#define D2D_BYTES_S		1e12
#define PEER_BYTES_S		400e9

/* What F_KERNELS launches: runs at once, and CTAs, fewer than there is work for. */
#define BATCH_RUNS		256
#define BATCH_CTAS		2

enum sim_engine_id { ENGINE_H2D, ENGINE_D2H, ENGINE_D2D, NR_ENGINES };

enum sim_event_kind {
	SIM_STREAM,		/* the stream may go on */
	SIM_PART,		/* some bytes of a transfer arrive */
	SIM_END,		/* a transfer ends */
	SIM_ENGINE,		/* an engine is free */
};

struct sim_event {
	uint64_t		t_ns;
	uint64_t		seq;		/* of equal times the older first */
	enum sim_event_kind	kind;
	void			*ptr;
};

struct sim_engine {
	bool			is_busy;
	struct okv_op		**queue;
	size_t			nr;
	size_t			nr_alloc;
};

struct sim_grave {
	struct sim_grave	*next;
	void			*ptr;
	uint64_t		bytes;
};

/* Runs of one transfer that the next launch moves; a piece in rows may be in several launches. */
struct sim_batch {
	const struct okv_kernel_ops *ops;
	uint32_t		nr;
	uint32_t		idx[BATCH_RUNS];
	bool			is_last[BATCH_RUNS];	/* of its piece */
	uint32_t		crc[BATCH_RUNS];
	struct okv_kernel_run	runs[BATCH_RUNS];
	struct okv_kernel_span	spans[BATCH_RUNS];
	/* of a piece whose last run is still to come */
	uint32_t		sum;
	bool			is_torn;
};

struct sim_device {
	uint64_t		now_ns;
	uint64_t		seq;
	uint64_t		random;
	uint64_t		stall_ns;
	struct sim_event	*heap;
	size_t			nr_heap;
	size_t			nr_heap_alloc;
	size_t			nr_promised;	/* events that streams and transfers may still add or have added */
	struct sim_engine	engines[NR_ENGINES];
	struct sim_stream	*streams;
	bool			is_dirty;	/* an event has fired: rings may have something to start */
	uint32_t		fail_nth;
	int			fail_error;
	struct sim_grave	*graveyard;
	uint64_t		graveyard_bytes;
	struct sim_batch	*batch;		/* with F_KERNELS; else NULL */
};

enum sim_item_kind { ITEM_LAUNCH, ITEM_WAIT, ITEM_RECORD, ITEM_PEER_COPY, ITEM_PEER_WAIT };

struct sim_item {
	enum sim_item_kind	kind;
	struct omnikv_event	*event;
	uint64_t		duration_ns;
	void			(*fn)(void *arg);
	void			*arg;
	struct okv_run		run;		/* ITEM_PEER_COPY */
};

struct sim_stream {
	struct omnikv_stream	base;
	struct sim_stream	*next;
	struct sim_item		*items;
	size_t			head;
	size_t			nr;
	size_t			nr_alloc;	/* a power of two */
	bool			is_busy;	/* a launch or a copy is running */
	bool			is_due;		/* a SIM_STREAM is on its way */
	struct okv_run		copy;		/* what arrives when it is over; no bytes: a launch */
	int			error;		/* of a copy to a peer, or from there: what is recorded is poisoned until it is told */
	struct omnikv_event	*blocked;	/* the first item waits for this */
	bool			is_stalled;	/* ... with work behind it, since: */
	uint64_t		stalled_ns;
};

static struct sim_device *sim_of(struct omnikv_device *dev)
{
	return dev->priv;
}

/* splitmix64 */
static uint64_t sim_random(struct sim_device *sim)
{
	uint64_t z = sim->random += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

/* 0 to @limit - 1; 0 when @limit is 0. */
static uint64_t sim_random_below(struct sim_device *sim, uint64_t limit)
{
	return limit ? sim_random(sim) % limit : 0;
}

/* ---- the queue of events ------------------------------------------------------------------ */

static bool is_sooner(const struct sim_event *a, const struct sim_event *b)
{
	return a->t_ns < b->t_ns || (a->t_ns == b->t_ns && a->seq < b->seq);
}

#define STREAM_EVENTS		1	/* a stream has one event at a time */
#define TRANSFER_EVENTS		3	/* its part, its end, its engine's */

/* Promise room for @nr events, so that adding them cannot fail. */
static int heap_promise(struct sim_device *sim, size_t nr)
{
	size_t nr_alloc = sim->nr_heap_alloc ? sim->nr_heap_alloc : 64;
	struct sim_event *heap;

	while (nr_alloc < sim->nr_promised + nr)
		nr_alloc *= 2;
	if (nr_alloc != sim->nr_heap_alloc) {
		heap = realloc(sim->heap, nr_alloc * sizeof(*heap));
		if (!heap)
			return -ENOMEM;
		sim->heap = heap;
		sim->nr_heap_alloc = nr_alloc;
	}
	sim->nr_promised += nr;
	return 0;
}

static void heap_up(struct sim_device *sim, size_t pos)
{
	struct sim_event event = sim->heap[pos];

	while (pos && is_sooner(&event, &sim->heap[(pos - 1) / 2])) {
		sim->heap[pos] = sim->heap[(pos - 1) / 2];
		pos = (pos - 1) / 2;
	}
	sim->heap[pos] = event;
}

static void heap_down(struct sim_device *sim, size_t pos)
{
	struct sim_event event = sim->heap[pos];

	for (;;) {
		size_t child = 2 * pos + 1;

		if (child >= sim->nr_heap)
			break;
		if (child + 1 < sim->nr_heap && is_sooner(&sim->heap[child + 1], &sim->heap[child]))
			child++;
		if (!is_sooner(&sim->heap[child], &event))
			break;
		sim->heap[pos] = sim->heap[child];
		pos = child;
	}
	sim->heap[pos] = event;
}

/* There is room: it was promised when the stream or transfer came to be. */
static void heap_add(struct sim_device *sim, uint64_t t_ns, enum sim_event_kind kind, void *ptr)
{
	sim->heap[sim->nr_heap] = (struct sim_event) { t_ns, sim->seq++, kind, ptr };
	heap_up(sim, sim->nr_heap++);
}

static struct sim_event heap_take(struct sim_device *sim)
{
	struct sim_event first = sim->heap[0];

	sim->heap[0] = sim->heap[--sim->nr_heap];
	heap_down(sim, 0);
	return first;
}

static void heap_forget(struct sim_device *sim, const void *ptr)
{
	size_t from, to = 0;

	for (from = 0; from < sim->nr_heap; from++) {
		if (sim->heap[from].ptr != ptr)
			sim->heap[to++] = sim->heap[from];
	}
	sim->nr_heap = to;
	for (from = to / 2; from-- > 0;)
		heap_down(sim, from);
}

/* ---- device ------------------------------------------------------------------------------- */

static int sim_open(struct omnikv_device *dev, const char *unit, struct omnikv_error *err)
{
	struct omnikv_device_config *c = &dev->config;
	struct sim_device *sim;

	if (unit && strcmp(unit, "kernels")) {
		if (err)
			snprintf(err->text, sizeof(err->text), "device \"sim:%.32s\": unknown; there are sim and sim:kernels", unit);
		return -ENODEV;
	}
	if (unit)
		c->flags |= OMNIKV_DEVICE_F_KERNELS;
	sim = calloc(1, sizeof(*sim));
	if (!sim)
		return -ENOMEM;
	if (c->flags & OMNIKV_DEVICE_F_KERNELS) {
		sim->batch = calloc(1, sizeof(*sim->batch));
		if (!sim->batch) {
			free(sim);
			return -ENOMEM;
		}
		sim->batch->ops = okv_kernels_shim ? okv_kernels_shim : &okv_kernels_ref;
	}
	if (c->h2d_bytes_s == 0)
		c->h2d_bytes_s = 50e9;
	if (c->d2h_bytes_s == 0)
		c->d2h_bytes_s = 50e9;
	if (!c->transfer_ns)
		c->transfer_ns = 2000;
	sim->random = c->seed;
	dev->priv = sim;
	return 0;
}

static void sim_close(struct omnikv_device *dev)
{
	struct sim_device *sim = sim_of(dev);
	int i;

	while (sim->graveyard) {
		struct sim_grave *grave = sim->graveyard;

		sim->graveyard = grave->next;
		munmap(grave->ptr, grave->bytes);
		free(grave);
	}
	for (i = 0; i < NR_ENGINES; i++)
		free(sim->engines[i].queue);
	free(sim->heap);
	free(sim->batch);
	free(sim);
}

static uint64_t sim_clock(struct omnikv_device *dev)
{
	return sim_of(dev)->now_ns;
}

static void sim_info(struct omnikv_device *dev, struct omnikv_device_info *info)
{
	info->clock_ns = sim_of(dev)->now_ns;
	info->stall_ns = sim_of(dev)->stall_ns;
}

static void sim_hbm_freed(struct omnikv_device *dev, void *ptr, uint64_t mapped_bytes, uint64_t bytes)
{
	struct sim_device *sim = sim_of(dev);
	struct sim_grave *grave;

	if (!(dev->config.flags & OMNIKV_DEVICE_F_POISON) || mapped_bytes > GRAVEYARD_BYTES_MAX - sim->graveyard_bytes)
		goto out_unmap;
	grave = malloc(sizeof(*grave));
	if (!grave)
		goto out_unmap;
	memset(ptr, POISON_BYTE, bytes);
	mprotect(ptr, bytes, PROT_READ);
	*grave = (struct sim_grave) { sim->graveyard, ptr, mapped_bytes };
	sim->graveyard = grave;
	sim->graveyard_bytes += mapped_bytes;
	return;

out_unmap:
	munmap(ptr, mapped_bytes);
}

static int sim_fail_next(struct omnikv_device *dev, uint32_t nth, int error)
{
	sim_of(dev)->fail_nth = nth;
	sim_of(dev)->fail_error = error;
	return 0;
}

/* ---- streams ------------------------------------------------------------------------------ */

static void stream_due(struct sim_device *sim, struct sim_stream *stream, uint64_t t_ns)
{
	if (stream->is_due)
		return;
	stream->is_due = true;
	heap_add(sim, t_ns, SIM_STREAM, stream);
}

static int sim_stream_create(struct omnikv_device *dev, struct omnikv_stream **out)
{
	struct sim_device *sim = sim_of(dev);
	struct sim_stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return -ENOMEM;
	if (heap_promise(sim, STREAM_EVENTS)) {
		free(stream);
		return -ENOMEM;
	}
	stream->base.dev = dev;
	stream->next = sim->streams;
	sim->streams = stream;
	*out = &stream->base;
	return 0;
}

static void sim_stream_destroy(struct omnikv_stream *base)
{
	struct sim_stream *stream = (struct sim_stream *)base;
	struct sim_device *sim = sim_of(base->dev);
	struct sim_stream **link;

	for (link = &sim->streams; *link != stream; link = &(*link)->next)
		;
	*link = stream->next;
	heap_forget(sim, stream);
	sim->nr_promised -= STREAM_EVENTS;
	free(stream->items);
	free(stream);
}

static int stream_add(struct omnikv_stream *base, struct sim_item item)
{
	struct sim_stream *stream = (struct sim_stream *)base;
	struct sim_device *sim = sim_of(base->dev);

	if (stream->nr == stream->nr_alloc) {
		size_t nr_alloc = stream->nr_alloc ? 2 * stream->nr_alloc : 16;
		struct sim_item *items = malloc(nr_alloc * sizeof(*items));
		size_t i;

		if (!items)
			return -ENOMEM;
		for (i = 0; i < stream->nr; i++)
			items[i] = stream->items[(stream->head + i) & (stream->nr_alloc - 1)];
		free(stream->items);
		stream->items = items;
		stream->nr_alloc = nr_alloc;
		stream->head = 0;
	}
	stream->items[(stream->head + stream->nr++) & (stream->nr_alloc - 1)] = item;
	if (stream->blocked) {
		if (!stream->is_stalled) {
			stream->is_stalled = true;
			stream->stalled_ns = sim->now_ns;
		}
	} else if (!stream->is_busy) {
		stream_due(sim, stream, sim->now_ns);
	}
	return 0;
}

static int sim_stream_launch(struct omnikv_stream *stream, uint64_t duration_ns, void (*fn)(void *arg), void *arg)
{
	return stream_add(stream, (struct sim_item) { .kind = ITEM_LAUNCH, .duration_ns = duration_ns, .fn = fn, .arg = arg });
}

static int sim_stream_wait(struct omnikv_stream *stream, struct omnikv_event *event)
{
	return stream_add(stream, (struct sim_item) { .kind = ITEM_WAIT, .event = event });
}

static int sim_stream_record(struct omnikv_stream *stream, struct omnikv_event *event)
{
	return stream_add(stream, (struct sim_item) { .kind = ITEM_RECORD, .event = event });
}

static int sim_peer_copy(struct omnikv_stream *stream, struct omnikv_device *to, void *dst, const void *src, uint64_t bytes)
{
	(void)to;
	return stream_add(stream, (struct sim_item) { .kind = ITEM_PEER_COPY, .run = { src, dst, bytes } });
}

static int sim_peer_wait(struct omnikv_stream *stream, struct omnikv_event *event)
{
	return stream_add(stream, (struct sim_item) { .kind = ITEM_PEER_WAIT, .event = event });
}

static void stream_unblock(struct sim_device *sim, struct sim_stream *stream)
{
	stream->blocked = NULL;
	if (stream->is_stalled)
		sim->stall_ns += sim->now_ns - stream->stalled_ns;
	stream->is_stalled = false;
}

static int next_failure(struct omnikv_device *dev)
{
	struct sim_device *sim = sim_of(dev);

	if (sim->fail_nth && !--sim->fail_nth)
		return sim->fail_error;
	if (dev->config.fail_ppm && sim_random_below(sim, 1000000) < dev->config.fail_ppm)
		return -EIO;
	return 0;
}

/* Its bytes arrive when it ends, or some of them where it fails. */
static void peer_copy_begin(struct omnikv_device *dev, struct sim_stream *stream, const struct okv_run *run)
{
	const struct omnikv_device_config *c = &dev->config;
	struct sim_device *sim = sim_of(dev);
	uint64_t duration_ns = c->transfer_ns + (uint64_t)((double)run->bytes / PEER_BYTES_S * 1e9 + 0.5);
	int error = next_failure(dev);

	if (c->flags & OMNIKV_DEVICE_F_SHUFFLE)
		duration_ns += sim_random_below(sim, c->late_ns + 1);
	if (c->flags & OMNIKV_DEVICE_F_POISON)
		memset(run->dst, POISON_BYTE, run->bytes);
	stream->copy = *run;
	if (error) {
		atomic_fetch_add(&dev->nr_failed, 1);
		stream->copy.bytes = sim_random_below(sim, run->bytes);
		stream->error = stream->error ? stream->error : error;
	}
	stream->is_busy = true;
	stream_due(sim, stream, okv_add_sat(sim->now_ns, duration_ns));
}

/* What ran in the stream is over. */
static void stream_idle(struct sim_stream *stream)
{
	stream->is_busy = false;
	if (stream->copy.bytes)
		memcpy(stream->copy.dst, stream->copy.src, stream->copy.bytes);
	stream->copy.bytes = 0;
}

/* Until the stream is busy, blocked or empty. */
static void stream_run(struct omnikv_device *dev, struct sim_stream *stream)
{
	struct sim_device *sim = sim_of(dev);
	struct sim_item item;
	int state;

	while (!stream->is_busy && stream->nr) {
		item = stream->items[stream->head & (stream->nr_alloc - 1)];
		if (item.kind == ITEM_WAIT || item.kind == ITEM_PEER_WAIT) {
			state = omnikv_event_query(item.event);
			if (!state) {
				stream->blocked = item.event;
				stream->is_stalled = stream->nr > 1;
				stream->stalled_ns = sim->now_ns;
				return;
			}
			/* What a peer could not send is not here. */
			if (item.kind == ITEM_PEER_WAIT && state < 0 && !stream->error)
				stream->error = state;
		}
		stream->head++;
		stream->nr--;
		switch (item.kind) {
		case ITEM_RECORD:
			okv_event_fire(item.event, stream->error ? stream->error : 1);
			break;
		case ITEM_PEER_COPY:
			peer_copy_begin(dev, stream, &item.run);
			break;
		case ITEM_LAUNCH:
			stream->is_busy = true;
			atomic_fetch_add(&dev->compute_ns, item.duration_ns);
			stream_due(sim, stream, okv_add_sat(sim->now_ns, item.duration_ns));
			if (item.fn)
				item.fn(item.arg);
			break;
		default:
			break;
		}
	}
}

/* Events of other devices tell nothing here when they fire. True: some stream may go on. */
static bool peers_look(struct omnikv_device *dev)
{
	struct sim_device *sim = sim_of(dev);
	struct sim_stream *stream;
	bool did = false;

	for (stream = sim->streams; stream; stream = stream->next) {
		if (!stream->blocked || stream->blocked->dev == dev || !omnikv_event_query(stream->blocked))
			continue;
		stream_unblock(sim, stream);
		stream_due(sim, stream, sim->now_ns);
		did = true;
	}
	return did;
}

static void sim_event_fired(struct omnikv_device *dev, struct omnikv_event *event)
{
	struct sim_device *sim = sim_of(dev);
	struct sim_stream *stream;

	sim->is_dirty = true;
	for (stream = sim->streams; stream; stream = stream->next) {
		if (stream->blocked != event)
			continue;
		stream_unblock(sim, stream);
		stream_due(sim, stream, sim->now_ns);
	}
}

/* ---- transfers ---------------------------------------------------------------------------- */

static struct sim_engine *engine_of(const struct okv_op *op)
{
	struct sim_device *sim = sim_of(op->ring->dev);

	switch (op->sqe.opcode) {
	case OMNIKV_OP_LOAD:
		return &sim->engines[ENGINE_H2D];
	case OMNIKV_OP_STORE:
		return &sim->engines[ENGINE_D2H];
	default:
		return &sim->engines[ENGINE_D2D];
	}
}

static void sim_op_start(struct okv_op *op)
{
	struct sim_device *sim = sim_of(op->ring->dev);
	struct sim_engine *engine = engine_of(op);

	if (engine->nr == engine->nr_alloc) {
		size_t nr_alloc = engine->nr_alloc ? 2 * engine->nr_alloc : 64;
		struct okv_op **queue = realloc(engine->queue, nr_alloc * sizeof(*queue));

		if (!queue)
			goto err_nomem;
		engine->queue = queue;
		engine->nr_alloc = nr_alloc;
	}
	if (heap_promise(sim, TRANSFER_EVENTS))
		goto err_nomem;
	engine->queue[engine->nr++] = op;
	return;

err_nomem:
	op->error = -ENOMEM;
	okv_op_end(op);
}

static void engine_remove(struct sim_engine *engine, size_t pos)
{
	engine->nr--;
	memmove(&engine->queue[pos], &engine->queue[pos + 1], (engine->nr - pos) * sizeof(*engine->queue));
}

static bool sim_op_recall(struct okv_op *op)
{
	struct sim_engine *engine = engine_of(op);
	size_t i;

	if (op->state != OKV_OP_QUEUED)
		return false;
	for (i = 0; engine->queue[i] != op; i++)
		;
	engine_remove(engine, i);
	sim_of(op->ring->dev)->nr_promised -= TRANSFER_EVENTS;
	return true;
}

/* Launch what the batch holds of @op. What a launch fails with is the transfer's error. */
static void batch_launch(struct okv_op *op)
{
	struct sim_batch *batch = sim_of(op->ring->dev)->batch;
	struct okv_copy_args copy = { .align_dst = op->sqe.opcode == OMNIKV_OP_STORE };
	struct okv_crc32c_args sum = { .crc = (uintptr_t)batch->crc };
	bool has_crc = okv_op_wants_crc(op);
	uint32_t nr = batch->nr, i;
	int ret;

	batch->nr = 0;
	copy.list = (uintptr_t)batch->runs;
	copy.nr = sum.nr = nr;
	sum.list = (uintptr_t)batch->spans;
	for (i = 0; i < nr; i++) {
		batch->spans[i] = (struct okv_kernel_span) { batch->runs[i].dst, batch->runs[i].bytes };
		if (batch->runs[i].bytes > copy.max_bytes)
			copy.max_bytes = batch->runs[i].bytes;
	}
	ret = okv_launch_copy(batch->ops, NULL, BATCH_CTAS, &copy);
	if (!ret && has_crc)
		ret = okv_launch_crc32c(batch->ops, NULL, BATCH_CTAS, &sum);
	if (ret && !op->error)
		op->error = ret;
	for (i = 0; i < nr; i++) {
		batch->is_torn |= ret != 0;
		if (has_crc)
			batch->sum = omnikv_crc32c_combine(batch->sum, batch->crc[i], batch->runs[i].bytes);
		if (!batch->is_last[i])
			continue;
		if (!batch->is_torn)
			okv_op_piece_moved(op, batch->idx[i], batch->sum);
		batch->is_torn = false;
		batch->sum = 0;
	}
}

/* Followed by pieces_moved() before anything else happens to @op. */
static void move_piece(struct okv_op *op, uint32_t idx)
{
	struct sim_batch *batch = sim_of(op->ring->dev)->batch;
	uint64_t bytes = op->sqe.pieces[idx].bytes, off = 0;
	struct okv_run run;
	uint32_t crc = 0;

	while (off < bytes) {
		okv_op_piece_run(op, idx, off, &run);
		off += run.bytes;
		if (!batch) {
			okv_copy_run_extend(&run, okv_op_wants_crc(op) ? &crc : NULL);
			continue;
		}
		batch->idx[batch->nr] = idx;
		batch->is_last[batch->nr] = off == bytes;
		batch->runs[batch->nr++] = (struct okv_kernel_run) { (uintptr_t)run.src, (uintptr_t)run.dst, run.bytes };
		if (batch->nr == BATCH_RUNS)
			batch_launch(op);
	}
	if (!batch)
		okv_op_piece_moved(op, idx, crc);
}

static void pieces_moved(struct okv_op *op)
{
	const struct sim_batch *batch = sim_of(op->ring->dev)->batch;

	if (batch && batch->nr)
		batch_launch(op);
}

/* Of what has not arrived yet: each piece with one chance in two, and the first bytes of one that does not. */
static void move_some(struct okv_op *op)
{
	struct sim_device *sim = sim_of(op->ring->dev);
	bool is_torn = false;
	uint32_t i;

	for (i = 0; i < op->sqe.nr_pieces; i++) {
		if (!okv_op_is_held(op, i) || okv_op_is_moved(op, i))
			continue;
		if (sim_random(sim) & 1) {
			move_piece(op, i);
		} else if (!is_torn) {
			struct okv_run run;

			okv_op_piece_run(op, i, 0, &run);
			memcpy(run.dst, run.src, sim_random_below(sim, run.bytes));
			is_torn = true;
		}
	}
	pieces_moved(op);
}

static void poison_destination(struct okv_op *op)
{
	struct okv_run run;
	uint64_t off;
	uint32_t i;

	for (i = 0; i < op->sqe.nr_pieces; i++) {
		if (!okv_op_is_held(op, i))
			continue;
		for (off = 0; off < op->sqe.pieces[i].bytes; off += run.bytes) {
			okv_op_piece_run(op, i, off, &run);
			memset(run.dst, POISON_BYTE, run.bytes);
		}
	}
}

static void transfer_begin(struct omnikv_device *dev, struct sim_engine *engine, struct okv_op *op)
{
	const struct omnikv_device_config *c = &dev->config;
	struct sim_device *sim = sim_of(dev);
	uint64_t duration_ns, end_ns;
	double bytes = 0, speed;
	uint32_t i;

	if (!okv_op_begin(op)) {
		sim->nr_promised -= TRANSFER_EVENTS;
		okv_op_end(op);
		return;
	}
	op->fail = next_failure(dev);
	if ((c->flags & OMNIKV_DEVICE_F_POISON) && op->sqe.opcode == OMNIKV_OP_LOAD)
		poison_destination(op);

	for (i = 0; i < op->sqe.nr_pieces; i++) {
		if (okv_op_is_held(op, i))
			bytes += (double)op->sqe.pieces[i].bytes;
	}
	speed = op->sqe.opcode == OMNIKV_OP_LOAD ? c->h2d_bytes_s :
		op->sqe.opcode == OMNIKV_OP_STORE ? c->d2h_bytes_s : D2D_BYTES_S;
	duration_ns = c->transfer_ns + op->sqe.nr_pieces * c->piece_ns + (uint64_t)(bytes / speed * 1e9 + 0.5);
	end_ns = sim->now_ns + duration_ns;

	engine->is_busy = true;
	heap_add(sim, end_ns, SIM_ENGINE, engine);
	if (c->flags & OMNIKV_DEVICE_F_SHUFFLE) {
		end_ns += sim_random_below(sim, c->late_ns + 1);
		heap_add(sim, sim->now_ns + sim_random_below(sim, end_ns - sim->now_ns), SIM_PART, op);
	}
	heap_add(sim, end_ns, SIM_END, op);
}

static void transfer_end(struct omnikv_device *dev, struct okv_op *op)
{
	uint32_t i;

	if (op->fail) {
		atomic_fetch_add(&dev->nr_failed, 1);
		move_some(op);
		op->error = op->fail;
	} else {
		for (i = 0; i < op->sqe.nr_pieces; i++) {
			if (okv_op_is_held(op, i) && !okv_op_is_moved(op, i))
				move_piece(op, i);
		}
		pieces_moved(op);
	}
	sim_of(dev)->nr_promised -= TRANSFER_EVENTS;
	okv_op_end(op);
}

/* Give each free engine its next transfer. */
static bool engines_run(struct omnikv_device *dev)
{
	struct sim_device *sim = sim_of(dev);
	bool did = false;
	size_t pick;
	int i;

	for (i = 0; i < NR_ENGINES; i++) {
		struct sim_engine *engine = &sim->engines[i];

		while (!engine->is_busy && engine->nr) {
			struct okv_op *op;

			pick = dev->config.flags & OMNIKV_DEVICE_F_SHUFFLE ? sim_random_below(sim, engine->nr) : 0;
			op = engine->queue[pick];
			engine_remove(engine, pick);
			transfer_begin(dev, engine, op);
			did = true;
		}
	}
	return did;
}

/* ---- running ------------------------------------------------------------------------------ */

/* Let rings start and finish what they can without time passing. */
static void settle(struct omnikv_device *dev)
{
	struct sim_device *sim = sim_of(dev);
	struct omnikv_ring *ring;

	do {
		sim->is_dirty = false;
		for (ring = dev->rings; ring; ring = ring->next)
			okv_ring_run(ring);
	} while (sim->is_dirty);
}

static uint64_t next_deadline(struct omnikv_device *dev)
{
	uint64_t deadline = UINT64_MAX;
	struct omnikv_ring *ring;

	for (ring = dev->rings; ring; ring = ring->next) {
		if (okv_opq_next_deadline(&ring->q) < deadline)
			deadline = okv_opq_next_deadline(&ring->q);
	}
	return deadline;
}

/* What a disk that did not answer has given back. */
static bool spills_reap(struct omnikv_device *dev)
{
	bool did = false;

	for (struct omnikv_ring *ring = dev->rings; ring; ring = ring->next)
		did |= okv_ring_spill_reap(ring);
	return did;
}

/*
 * The next thing that is due no later than @limit_ns. Deadlines that nothing else reaches make
 * time pass only when @is_waiting: whoever merely polls may be about to give the device the
 * work that an operation waits for.
 */
static bool step(struct omnikv_device *dev, uint64_t limit_ns, bool is_waiting)
{
	struct sim_device *sim = sim_of(dev);
	uint64_t deadline;
	struct sim_event event;

	/* An event was fired from outside. */
	if (sim->is_dirty) {
		settle(dev);
		return true;
	}
	if (spills_reap(dev) || engines_run(dev) || peers_look(dev)) {
		settle(dev);
		return true;
	}
	deadline = next_deadline(dev);
	if (!sim->nr_heap || sim->heap[0].t_ns > deadline) {
		if ((!sim->nr_heap && !is_waiting) || deadline == UINT64_MAX || deadline > limit_ns)
			return false;
		if (deadline > sim->now_ns)
			sim->now_ns = deadline;
		settle(dev);
		return true;
	}
	if (sim->heap[0].t_ns > limit_ns)
		return false;

	event = heap_take(sim);
	sim->now_ns = event.t_ns;
	switch (event.kind) {
	case SIM_STREAM: {
		struct sim_stream *stream = event.ptr;

		stream->is_due = false;
		stream_idle(stream);
		stream_run(dev, stream);
		break;
	}
	case SIM_PART:
		move_some(event.ptr);
		break;
	case SIM_END:
		transfer_end(dev, event.ptr);
		break;
	case SIM_ENGINE:
		((struct sim_engine *)event.ptr)->is_busy = false;
		break;
	}
	settle(dev);
	return true;
}

static int sim_poll(struct omnikv_device *dev)
{
	return step(dev, UINT64_MAX, false);
}

static int sim_advance(struct omnikv_device *dev, uint64_t clock_ns)
{
	struct sim_device *sim = sim_of(dev);

	while (step(dev, clock_ns, true))
		;
	if (sim->now_ns < clock_ns)
		sim->now_ns = clock_ns;
	return 0;
}

static int sim_stream_sync(struct omnikv_stream *base, uint64_t timeout_ns)
{
	struct sim_stream *stream = (struct sim_stream *)base;
	uint64_t start_ns = okv_monotonic_ns();
	unsigned int nr = 0;
	int ret;

	while (stream->nr || stream->is_busy) {
		if (!step(base->dev, UINT64_MAX, true))
			return -ETIME;
		if (++nr % 64 == 0 && okv_monotonic_ns() - start_ns > timeout_ns)
			return -ETIME;
	}
	ret = stream->error;
	stream->error = 0;
	return ret;
}

/* ---- rings -------------------------------------------------------------------------------- */

static int sim_ring_init(struct omnikv_ring *ring)
{
	(void)ring;
	return 0;
}

static void sim_ring_exit(struct omnikv_ring *ring)
{
	okv_ring_run(ring);
	okv_ring_cancel_all(ring);
	okv_ring_spill_exit(ring);
	/* Copies under way cannot be recalled; their ends are on their way. */
	while (ring->q.nr_used && step(ring->dev, UINT64_MAX, true))
		;
}

static void sim_ring_submitted(struct omnikv_ring *ring)
{
	okv_ring_run(ring);
	settle(ring->dev);
}

static void sim_ring_poll(struct omnikv_ring *ring)
{
	step(ring->dev, UINT64_MAX, false);
}

static int sim_ring_wait(struct omnikv_ring *ring, uint64_t timeout_ns)
{
	uint64_t start_ns = okv_monotonic_ns();
	unsigned int nr = 0;

	while (!okv_cq_peek(&ring->cq)) {
		if (!okv_cq_pending(&ring->cq))
			return -ENODATA;
		if (!step(ring->dev, UINT64_MAX, true))
			return -ETIME;
		if (++nr % 64 == 0 && okv_monotonic_ns() - start_ns > timeout_ns)
			return -ETIME;
	}
	return 0;
}

const struct okv_device_ops okv_device_sim = {
	.name = "sim",
	.has_units = true,
	.is_cpu_readable = true,
	.open = sim_open,
	.close = sim_close,
	.clock = sim_clock,
	.info = sim_info,
	.stream_create = sim_stream_create,
	.stream_destroy = sim_stream_destroy,
	.stream_launch = sim_stream_launch,
	.stream_wait = sim_stream_wait,
	.stream_record = sim_stream_record,
	.stream_sync = sim_stream_sync,
	.peer_copy = sim_peer_copy,
	.peer_wait = sim_peer_wait,
	.event_fired = sim_event_fired,
	.hbm_freed = sim_hbm_freed,
	.poll = sim_poll,
	.advance = sim_advance,
	.fail_next = sim_fail_next,
	.ring_init = sim_ring_init,
	.ring_exit = sim_ring_exit,
	.ring_submitted = sim_ring_submitted,
	.ring_poll = sim_ring_poll,
	.ring_wait = sim_ring_wait,
	.op_start = sim_op_start,
	.op_recall = sim_op_recall,
};

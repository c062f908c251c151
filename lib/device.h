/* SPDX-License-Identifier: MIT */
/*
 * What every kind of device has in common, and the table of what each does its own way.
 *
 * device.c owns opening, HBM accounting and events; device_host.c, device_sim.c and device_cuda*.c
 * own clocks, streams and the moving of bytes; ring.c decides what to move and when, exchange.c what goes to
 * other devices. A new kind of device is one more table.
 *
 * On "host" and "cuda" any thread may enter; on "sim" one at a time.
 */
#ifndef OKV_DEVICE_H
#define OKV_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>

#include <omnikv/device.h>

#include "clock.h"

struct omnikv_ring;
struct okv_op;

struct okv_device_ops {
	const char *name;
	/* The name may have a unit behind it, as in "cuda:1". */
	bool has_units;
	/* The CPU reads and writes HBM at its address. */
	bool is_cpu_readable;
	/* A stream is the thread that calls: waiting blocks it. */
	bool has_caller_streams;
	/* @unit: what stood behind the colon, or NULL. config.hbm_bytes 0: take what there is, or leave it. */
	int (*open)(struct omnikv_device *dev, const char *unit, struct omnikv_error *err);
	void (*close)(struct omnikv_device *dev);
	uint64_t (*clock)(struct omnikv_device *dev);
	/* clock_ns and what only this kind counts */
	void (*info)(struct omnikv_device *dev, struct omnikv_device_info *info);

	/* Streams. Created and freed by these; struct omnikv_stream begins with its device. */
	int (*stream_create)(struct omnikv_device *dev, struct omnikv_stream **stream);
	void (*stream_destroy)(struct omnikv_stream *stream);
	int (*stream_launch)(struct omnikv_stream *stream, uint64_t duration_ns, void (*fn)(void *arg), void *arg);
	int (*stream_wait)(struct omnikv_stream *stream, struct omnikv_event *event);
	int (*stream_record)(struct omnikv_stream *stream, struct omnikv_event *event);
	int (*stream_sync)(struct omnikv_stream *stream, uint64_t timeout_ns);

	/* The state of @event has just changed from 0. Called with dev->lock held. */
	void (*event_fired)(struct omnikv_device *dev, struct omnikv_event *event);

	/* Memory of the device, zeroed or not; NULL: this machine's. @mapped_bytes: what hbm_freed() is told. */
	int (*hbm_alloc)(struct omnikv_device *dev, uint64_t bytes, void **ptr, uint64_t *mapped_bytes);
	/* May the engine's memory be attached? NULL: any may. */
	int (*hbm_check)(struct omnikv_device *dev, void *ptr, uint64_t bytes);
	/* A descriptor of the range for other devices; NULL: there is none. */
	int (*hbm_dmabuf)(struct omnikv_device *dev, void *ptr, uint64_t bytes, int *fd);
	/*
	 * Bind [0, @to_bytes) of the range, of which [0, @from_bytes) is bound, rounded up to what the device can; an error
	 * leaves it as it was. NULL: as the memory is this machine's.
	 */
	int (*hbm_bind)(struct omnikv_device *dev, void *ptr, uint64_t mapped_bytes, uint64_t from_bytes, uint64_t to_bytes);
	/* Memory that the device no longer owns; [0, @bytes) of it is bound. */
	void (*hbm_freed)(struct omnikv_device *dev, void *ptr, uint64_t mapped_bytes, uint64_t bytes);

	/* Events that are more than struct omnikv_event; NULL: they are not. Reset with dev->lock held. */
	int (*event_create)(struct omnikv_device *dev, struct omnikv_event **event);
	void (*event_destroy)(struct omnikv_event *event);
	void (*event_reset)(struct omnikv_event *event);
	/* The state is 0: has the device fired it meanwhile? It is fired then. */
	void (*event_look)(struct omnikv_event *event);

	/* Streams and graphs of the device's own driver; NULL: -EOPNOTSUPP. */
	int (*stream_attach)(struct omnikv_device *dev, void *native, struct omnikv_stream **stream);
	void *(*stream_native)(struct omnikv_stream *stream);

	/*
	 * Where the CPU does not read HBM: memory that a stream can write, and a copy from device memory into it, in the
	 * stream's order. NULL elsewhere.
	 */
	int (*pinned_alloc)(struct omnikv_device *dev, uint64_t bytes, void **ptr);
	void (*pinned_free)(struct omnikv_device *dev, void *ptr);
	int (*stream_read)(struct omnikv_stream *stream, void *pinned, const void *hbm, uint64_t bytes);

	/*
	 * Exchange with other devices of this kind. A copy that fails, now or later, is known to whoever waits behind it:
	 * peer_wait for an event that was poisoned poisons what is recorded after it, or ends in an error of the stream's
	 * sync. NULL: there is none.
	 */
	int (*peer_copy)(struct omnikv_stream *stream, struct omnikv_device *to, void *dst, const void *src, uint64_t bytes);
	int (*peer_wait)(struct omnikv_stream *stream, struct omnikv_event *event);
	/* Two devices are one piece of hardware; NULL: never. */
	bool (*is_same)(const struct omnikv_device *a, const struct omnikv_device *b);

	/* Captured work; all NULL: there is no capture, and a graph's waits and records are the stream's own. */
	int (*graph_create)(struct omnikv_device *dev, uint64_t timeout_ns, struct omnikv_graph **graph);
	void (*graph_destroy)(struct omnikv_graph *graph);
	int (*graph_add)(struct omnikv_graph *graph, struct omnikv_stream *stream, struct omnikv_event *event, bool is_wait);
	int (*graph_begin)(struct omnikv_graph *graph, struct omnikv_stream *stream);
	int (*graph_status)(struct omnikv_graph *graph);

	int (*poll)(struct omnikv_device *dev);
	int (*advance)(struct omnikv_device *dev, uint64_t clock_ns);
	int (*fail_next)(struct omnikv_device *dev, uint32_t nth, int error);

	/* Rings. ring_exit returns when nothing of the ring is under way. */
	int (*ring_init)(struct omnikv_ring *ring);
	void (*ring_exit)(struct omnikv_ring *ring);
	/* The submission queue has grown. */
	void (*ring_submitted)(struct omnikv_ring *ring);
	/* Something may have been posted: let the ring progress without waiting. */
	void (*ring_poll)(struct omnikv_ring *ring);
	/* Until a result can be peeked; -ETIME, -ENODATA as omnikv_wait_cqe(). */
	int (*ring_wait)(struct omnikv_ring *ring, uint64_t timeout_ns);

	/* Begin a transfer that nothing holds back any more; called by the thread that runs the ring. */
	void (*op_start)(struct okv_op *op);
	/*
	 * Withdraw a QUEUED or RUNNING transfer. True: no byte moves any more and okv_op_end() will
	 * not be called. False: bytes may still move, okv_op_end() follows.
	 */
	bool (*op_recall)(struct okv_op *op);
};

struct omnikv_device {
	/* fixed after open */
	const struct okv_device_ops	*ops;
	struct omnikv_device_config	config;
	void				*priv;

	pthread_mutex_t			lock;
	/* under lock */
	struct omnikv_ring		*rings;
	uint64_t			hbm_used_bytes;
	uint64_t			hbm_peak_bytes;

	/* any thread */
	_Atomic uint64_t		event_seq;	/* raised whenever an event fires */
	_Atomic uint64_t		h2d_bytes;
	_Atomic uint64_t		d2h_bytes;
	_Atomic uint64_t		compute_ns;
	_Atomic uint64_t		nr_failed;
};

#define OKV_HBM_RESIZED		UINT32_MAX

struct omnikv_hbm {
	struct omnikv_device	*dev;
	void			*ptr;
	uint64_t		bytes;
	uint64_t		mapped_bytes;	/* addresses; 0: attached, not ours */
	uint64_t		created_bytes;	/* the most that bytes may be; attached: no limit */
	_Atomic uint32_t	nr_pipes;	/* that use it; OKV_HBM_RESIZED while it gets another length or ends: then none begins to */
	_Atomic uint64_t	nr_io;		/* held by each submitted transfer until its last completion */
};

/* Waiting threads sleep on state; each kind of device begins its streams with the same field. */
struct omnikv_event {
	struct omnikv_device	*dev;
	_Atomic int32_t		state;		/* 0 not fired, 1 fired, negative errno poisoned */
	_Atomic uint32_t	nr_sleepers;
};

struct omnikv_stream {
	struct omnikv_device	*dev;
};

struct omnikv_graph {
	struct omnikv_device	*dev;
};

extern const struct okv_device_ops okv_device_host;
extern const struct okv_device_ops okv_device_sim;
extern const struct okv_device_ops okv_device_cuda;

/** A pipe uses it, and its length stays as it is until the last one puts it. -EBUSY: it is getting another one. */
int okv_hbm_get(struct omnikv_hbm *hbm);
void okv_hbm_put(struct omnikv_hbm *hbm);
/** omnikv_hbm_resize() for the @nr_own pipes that use it: 0, or 1 that asks. -EBUSY: there are others. */
int okv_hbm_resize(struct omnikv_hbm *hbm, uint32_t nr_own, uint64_t bytes);

/** @status: 1 or a negative errno. What has fired stays as it is until it is reset. */
void okv_event_fire(struct omnikv_event *event, int status);
/** As that, with the device's lock held. */
void okv_event_fire_locked(struct omnikv_event *event, int status);

/** @a + @b, or UINT64_MAX. */
static inline uint64_t okv_add_sat(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

#endif /* OKV_DEVICE_H */

/* SPDX-License-Identifier: MIT */
/*
 * Devices: where KV is computed on. Memory, streams, events, a clock.
 *
 * "host" is this machine's memory with a worker thread a ring; "sim" is a simulated
 * accelerator with real memory and its own clock, which moves bytes only when polled,
 * late and out of order on request. "cuda" (or "cuda:N") is an NVIDIA GPU by its driver, which is
 * looked for when the device is opened. All follow the same rules, so that everything that
 * runs on a GPU can be tried without one.
 *
 * A simulated device with all of its rings, streams and events belongs to one thread at a time.
 * Elsewhere a stream belongs to one thread; events may be recorded, waited for and queried by any.
 */
#ifndef OMNIKV_DEVICE_H
#define OMNIKV_DEVICE_H

#include <omnikv/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct omnikv_device;
struct omnikv_hbm;
struct omnikv_stream;
struct omnikv_event;
struct omnikv_graph;

/** sim: transfers finish late by up to @late_ns and in random order within what dependencies allow. */
#define OMNIKV_DEVICE_F_SHUFFLE		(1u << 0)
/**
 * sim: fill with 0xdb what must not be read: freed HBM (which stays mapped, read-only, until the device is
 * closed) and the destination of a load from its beginning until the bytes arrive.
 */
#define OMNIKV_DEVICE_F_POISON		(1u << 1)
/**
 * sim: transfers move their bytes, and sum them, by the code that runs on a GPU, compiled for the CPU: slow, and the way
 * to try all of it where there is no GPU. A library that was built without a C++ compiler takes its definitions in C.
 */
#define OMNIKV_DEVICE_F_KERNELS		(1u << 2)
#define OMNIKV_DEVICE_F_ALL		0x7u

/**
 * struct omnikv_device_config - the simulated device; ignored by the others but for @hbm_bytes and @max_sms
 * @hbm_bytes:   device memory that may be created; 0 is 16 GiB (backed only where touched), on "cuda" all of it
 * @h2d_bytes_s, @d2h_bytes_s: link speed, bytes a second of device time; 0 is 50e9
 * @transfer_ns: fixed cost of one transfer operation; 0 is 2000
 * @piece_ns:    cost of one piece within it; 0 is none
 * @late_ns:     with F_SHUFFLE
 * @fail_ppm:    transfers that fail with -EIO, in millionths
 * @seed:        of all that is random
 * @max_sms:     cuda: multiprocessors that copying kernels may use at once; 0 is 4
 */
struct omnikv_device_config {
	size_t		size;
	uint32_t	flags;
	uint32_t	fail_ppm;
	uint64_t	hbm_bytes;
	double		h2d_bytes_s;
	double		d2h_bytes_s;
	uint64_t	transfer_ns;
	uint64_t	piece_ns;
	uint64_t	late_ns;
	uint64_t	seed;
	uint32_t	max_sms;
	uint32_t	reserved;
};

/** cuda: HBM can be exported (omnikv_hbm_dmabuf()). */
#define OMNIKV_DEVICE_HAS_DMABUF	(1u << 0)
/** cuda: the nvidia-peermem module is loaded, so that network cards reach HBM by its address. */
#define OMNIKV_DEVICE_HAS_PEERMEM	(1u << 1)
/** cuda: the driver has cuMemcpyBatchAsync(). */
#define OMNIKV_DEVICE_HAS_BATCH		(1u << 2)
/** cuda: the copying kernels are in this build, and fit the GPU. */
#define OMNIKV_DEVICE_HAS_KERNELS	(1u << 3)

struct omnikv_device_info {
	size_t		size;
	uint64_t	hbm_bytes;		/* capacity */
	uint64_t	hbm_used_bytes;
	uint64_t	hbm_peak_bytes;		/* most ever used at once */
	uint64_t	clock_ns;		/* device time (sim) or CLOCK_MONOTONIC since open (host) */
	uint64_t	h2d_bytes;
	uint64_t	d2h_bytes;
	uint64_t	compute_ns;		/* sum of the durations launched */
	uint64_t	stall_ns;		/* time that streams waited for events with work behind them */
	uint64_t	nr_failed;		/* transfers that failed */
	uint32_t	features;		/* OMNIKV_DEVICE_HAS_* */
	uint32_t	nr_sms;			/* multiprocessors */
	uint64_t	host_bytes;		/* cuda: pools that rings use */
	uint64_t	host_mapped_bytes;	/* cuda: of these, registered with the driver so far */
	uint64_t	host_refused_bytes;	/* cuda: of these, refused by the driver: they go by the bounce buffer */
	uint64_t	bounced_bytes;		/* cuda: moved by way of the bounce buffer */
	uint64_t	engine_bytes;		/* cuda: moved by the copy engine, a call a run */
	uint64_t	batch_bytes;		/* cuda: by cuMemcpyBatchAsync() */
	uint64_t	kernel_bytes;		/* cuda: by a kernel */
};

/**
 * struct omnikv_device_entry - one GPU of this machine
 * @name: for omnikv_device_open()
 */
struct omnikv_device_entry {
	char		name[32];
	char		model[64];
	uint8_t		uuid[16];
	uint64_t	hbm_bytes;
	uint32_t	nr_sms;
	uint32_t	compute;		/* 90 is 9.0 */
};

/**
 * omnikv_device_list() - the GPUs that this process can use
 * @entries: [max]
 * @why:     where there is none: the reason, in one line; else empty, or that the driver is too old for the GPU code
 *
 * Return: how many there are, which may be more than @max; 0 also where there is no driver.
 */
OMNIKV_API int omnikv_device_list(struct omnikv_device_entry *entries, uint32_t max, struct omnikv_error *why);

/** One line: what the GPU code of this library was built with and for, or why it has none and what to do. */
OMNIKV_API const char *omnikv_device_code(void);

/**
 * omnikv_device_open() - open by name
 * @name: "host", "sim", "sim:kernels" (OMNIKV_DEVICE_F_KERNELS), "cuda" (the first GPU) or "cuda:N"
 *
 * Return: 0, or -ENODEV (unknown, or no such GPU; @err says why), -ENOSYS (a driver that is too old), -EINVAL,
 * -E2BIG, -ENOMEM. The first opening of a GPU measures its copy paths, which takes a second or two; the result is kept
 * in the user's cache folder.
 */
OMNIKV_API int omnikv_device_open(const char *name, const struct omnikv_device_config *config,
				  struct omnikv_device **dev, struct omnikv_error *err);
/** All rings, streams and memory of the device must be gone. -EBUSY while it has rings: nothing is closed. */
OMNIKV_API int omnikv_device_close(struct omnikv_device *dev);
OMNIKV_API int omnikv_device_info(struct omnikv_device *dev, struct omnikv_device_info *info);

/** Reserve and bind device memory; -ENOMEM over the capacity. omnikv allocates none after this. */
OMNIKV_API int omnikv_hbm_create(struct omnikv_device *dev, uint64_t bytes, struct omnikv_hbm **hbm);
/**
 * Use the engine's own device memory. On "cuda" -EINVAL unless all of it is plain memory of this GPU (managed
 * memory is not).
 */
OMNIKV_API int omnikv_hbm_attach(struct omnikv_device *dev, void *ptr, uint64_t bytes, struct omnikv_hbm **hbm);
/**
 * omnikv_hbm_resize() - give a part of it back, or take it again
 * @bytes: kept from the beginning; what is behind them belongs to nobody. Created: at most what it was created with, whose
 *         addresses stay reserved; memory goes back in pages, on "cuda" in units of 32 MiB. Attached: any length of the
 *         engine's memory from the same address on
 *
 * By the thread that submits: while nothing of it is in a ring, an exchange or a kernel. A pipe's HBM is resized by
 * omnikv_pipe_resize(). What is taken again has no contents that count. What omnikv_hbm_dmabuf() gave before covers the old
 * length: close it before.
 *
 * Return: 0, or -EBUSY (a transfer, an exchange or a pipe uses it), -EINVAL (0, more than it was created with, or as of attach),
 * -ENOMEM (over the capacity, or the device has none), -EIO (the device is lost): it is as it was.
 */
OMNIKV_API int omnikv_hbm_resize(struct omnikv_hbm *hbm, uint64_t bytes);
/** NULL is nothing. -EBUSY, and nothing has changed, while a transfer, an exchange or a pipe uses it. */
OMNIKV_API int omnikv_hbm_destroy(struct omnikv_hbm *hbm);
/** Device address; readable by the CPU on "host" and "sim". */
OMNIKV_API void *omnikv_hbm_ptr(const struct omnikv_hbm *hbm);
OMNIKV_API uint64_t omnikv_hbm_bytes(const struct omnikv_hbm *hbm);
/** cuda: a descriptor of a dma-buf over all of it, for network cards and disks; the caller closes it. -EOPNOTSUPP. */
OMNIKV_API int omnikv_hbm_dmabuf(const struct omnikv_hbm *hbm, int *fd);

/*
 * Streams run what they are given in order. On "host" a stream is the calling thread: waiting
 * blocks and launching calls. On "sim" work is queued and runs when the device is polled. On "cuda"
 * it is one of the driver's, and waits for events on the device, not on the host.
 */
OMNIKV_API int omnikv_stream_create(struct omnikv_device *dev, struct omnikv_stream **stream);
/** cuda: an engine's own stream (a CUstream), which stays its; the device's primary context made it. -EOPNOTSUPP elsewhere. */
OMNIKV_API int omnikv_stream_attach(struct omnikv_device *dev, void *native, struct omnikv_stream **stream);
/** cuda: the CUstream; NULL elsewhere. */
OMNIKV_API void *omnikv_stream_native(struct omnikv_stream *stream);
/** Its work must be done (omnikv_stream_sync()): what has not run is dropped, and its events never fire. */
OMNIKV_API void omnikv_stream_destroy(struct omnikv_stream *stream);
/**
 * A "kernel": @fn(@arg) runs when the stream gets there, then @duration_ns of device time pass. @fn may be
 * NULL; on "sim" it runs inside a poll: it may submit, launch and record, but neither wait nor destroy.
 * On "cuda" it runs on a thread of the driver, and may call nothing of the driver or of this device's streams;
 * engines launch their kernels themselves, on omnikv_stream_native().
 */
OMNIKV_API int omnikv_stream_launch(struct omnikv_stream *stream, uint64_t duration_ns,
				    void (*fn)(void *arg), void *arg);
/** Later work waits until @event fires. A poisoned event ends the wait too. */
OMNIKV_API int omnikv_stream_wait(struct omnikv_stream *stream, struct omnikv_event *event);
/** @event fires when all work given to @stream so far is done. */
OMNIKV_API int omnikv_stream_record(struct omnikv_stream *stream, struct omnikv_event *event);
/** Wait for all work given so far. -ETIME after @timeout_ns of real time (sim: when nothing can proceed). */
OMNIKV_API int omnikv_stream_sync(struct omnikv_stream *stream, uint64_t timeout_ns);

/*
 * Graphs: an engine captures its work once, by whatever its framework has for that, and launches it for every step.
 * In a capture these calls stand in the place of omnikv_stream_wait() and omnikv_stream_record(): each replay waits for
 * and fires the events' lives that are current when it is launched. Where nothing is being captured ("host", "sim", and
 * an engine that warms up) they are those calls. Transfers are submitted before a launch, never inside a capture.
 */

/**
 * omnikv_graph_create() - what one captured graph waits for and fires
 * @timeout_ns: a captured wait gives up after about this, so that no replay hangs for ever; more than the deadlines of
 *              the transfers that it waits for, which end it sooner
 *
 * Destroyed after the captured graph. Return: 0, or -EOPNOTSUPP (cuda: the kernels are not in this build), -ENOMEM.
 */
OMNIKV_API int omnikv_graph_create(struct omnikv_device *dev, uint64_t timeout_ns, struct omnikv_graph **graph);
OMNIKV_API void omnikv_graph_destroy(struct omnikv_graph *graph);
/** Events outlive the graph; they are reset only when no transfer is left that signals them. */
OMNIKV_API int omnikv_graph_wait(struct omnikv_graph *graph, struct omnikv_stream *stream, struct omnikv_event *event);
OMNIKV_API int omnikv_graph_record(struct omnikv_graph *graph, struct omnikv_stream *stream, struct omnikv_event *event);
/**
 * Before each launch, on its stream, after all of the graph's events have been reset: once, or any number of times that
 * is the same for all (-EINVAL, also where they have not been reset since the last launch).
 */
OMNIKV_API int omnikv_graph_begin(struct omnikv_graph *graph, struct omnikv_stream *stream);
/** After a replay: 0, or -ETIME where a wait gave up, since the last call; what was computed must not be used. */
OMNIKV_API int omnikv_graph_status(struct omnikv_graph *graph);

/** A new event has not fired. */
OMNIKV_API int omnikv_event_create(struct omnikv_device *dev, struct omnikv_event **event);
/** Nothing may still fire it or wait for it: no stream, no request of a ring. Not checked. */
OMNIKV_API void omnikv_event_destroy(struct omnikv_event *event);
/** Back to not fired; nothing may be waiting for it. */
OMNIKV_API void omnikv_event_reset(struct omnikv_event *event);
/** 1: fired; 0: not yet; negative errno: poisoned by the transfer that failed. */
OMNIKV_API int omnikv_event_query(struct omnikv_event *event);

/*
 * Exchange: planes that every rank needs whole (MLA under tensor parallelism) are fetched over the host's links once
 * between the ranks, each a part, and go from device to device from there. Ranks are devices of this process, all of one
 * kind; on "sim" all of them are one thread's, and each goes on when it is polled, or when the exchange is ended.
 */
#define OMNIKV_EXCHANGE_RANKS_MAX	64u

/** struct omnikv_exchange_part - @bytes at @off of rank @rank's HBM, for the same place in everybody else's */
struct omnikv_exchange_part {
	uint64_t	off;
	uint64_t	bytes;
	uint32_t	rank;
	uint32_t	reserved;
};

struct omnikv_exchange;

/** @devs: [nr], each another device. -EOPNOTSUPP (of several kinds), -EINVAL, -ENOMEM. The devices outlive it. */
OMNIKV_API int omnikv_exchange_create(struct omnikv_device *const *devs, uint32_t nr, struct omnikv_exchange **exchange);
/** Ended before. */
OMNIKV_API void omnikv_exchange_destroy(struct omnikv_exchange *exchange);
/**
 * omnikv_exchange_begin() - queue the copies of all ranks
 * @hbms:    [nr_ranks] one of each device
 * @parts:   [nr_parts], no two overlap; each has arrived at its rank: the result of its load has been reaped. Nobody uses
 *           those places of the others any more
 * @signals: [nr_ranks] events that fire when a rank has all parts; each may be NULL, and so may the array
 *
 * Nothing waits on the host. Return: 0, or -EBUSY (one is under way), -EINVAL, -ENOMEM: nothing has begun; else -EIO or another error
 * with the signals poisoned: end it. Until then no memory of @hbms is resized or destroyed.
 */
OMNIKV_API int omnikv_exchange_begin(struct omnikv_exchange *exchange, struct omnikv_hbm *const *hbms,
				     const struct omnikv_exchange_part *parts, uint32_t nr_parts,
				     struct omnikv_event *const *signals);
/**
 * Wait for all of them. -EIO where a rank was lost, -ETIME after @timeout_ns (copies are still under way: end it again, and the
 * first error is told then): what was not signalled is poisoned.
 */
OMNIKV_API int omnikv_exchange_end(struct omnikv_exchange *exchange, uint64_t timeout_ns);

/**
 * omnikv_device_poll() - let a simulated device run
 *
 * Runs the next thing that is due and moves the clock to it; nothing on "host"; on "cuda" it looks whether
 * events have fired, after a short sleep. The deadline of an
 * operation that nothing else in the queue precedes does not move the clock here, since the caller
 * may be about to give the device what that operation waits for; waiting calls move it there.
 * Return: 1 when something ran, 0 when nothing can.
 */
OMNIKV_API int omnikv_device_poll(struct omnikv_device *dev);
/** sim: let idle time pass up to @clock_ns (runs what is due before). -EOPNOTSUPP elsewhere. */
OMNIKV_API int omnikv_device_advance(struct omnikv_device *dev, uint64_t clock_ns);
/** sim: the @nth transfer from now (1 is the next) fails with @error (a negative errno). */
OMNIKV_API int omnikv_device_fail_next(struct omnikv_device *dev, uint32_t nth, int error);

#ifdef __cplusplus
}
#endif

#endif /* OMNIKV_DEVICE_H */

/* SPDX-License-Identifier: MIT */
/*
 * A thread a ring: how it spins and sleeps, and how the reaper waits for it.
 *
 * Devices whose rings are run by a thread of their own ("host", "cuda") begin their ring's private part with struct
 * okv_worker and say in its table what they do between two looks at the ring. The reaper's half is entered by the
 * reaping thread, okv_worker_event_fired() by any that holds the device's lock, the rest by the worker.
 */
#ifndef OKV_DEVICE_WORKER_H
#define OKV_DEVICE_WORKER_H

#include "ring.h"

struct okv_worker_ops {
	/* The thread begins; may be NULL. */
	void (*begin)(struct omnikv_ring *ring);
	/* What the device has to do for the ring. True when anything was done. */
	bool (*run)(struct omnikv_ring *ring);
	/* While spinning: would run() find anything? May be NULL. */
	bool (*has_news)(struct omnikv_ring *ring);
	/* Most that may be slept; UINT64_MAX while whoever makes work wakes the worker. May be NULL. */
	uint64_t (*nap_ns)(struct omnikv_ring *ring);
	/* All is withdrawn and the thread ends: wait for what cannot be recalled. May be NULL. */
	void (*end)(struct omnikv_ring *ring);
};

/*
 * Spinning: a wake-up across cores costs some 40 us where an idle processor must be woken by
 * a hypervisor, so that is about what it is worth to spin for work that comes soon. Work that
 * does not come soon lowers the budget.
 */
struct okv_spin {
	uint64_t	fixed_ns;	/* 0: adaptive */
	uint64_t	budget_ns;
};

struct okv_worker {
	const struct okv_worker_ops	*ops;
	pthread_t			thread;
	_Atomic uint32_t		is_stopping;
	_Atomic uint32_t		sleeps;
	/* owned by the worker */
	struct okv_spin			spin;
	/* owned by the reaping thread */
	struct okv_spin			reaper_spin __attribute__((aligned(OKV_CACHELINE)));
};

/** Start the thread; @worker becomes the ring's private part. 0 or a negative errno. */
int okv_worker_start(struct omnikv_ring *ring, struct okv_worker *worker, const struct okv_worker_ops *ops);
/** End the thread; the ring has no private part after. */
void okv_worker_stop(struct omnikv_ring *ring);
/** As the operations of struct okv_device_ops that have these names. */
void okv_worker_event_fired(struct omnikv_device *dev, struct omnikv_event *event);
void okv_worker_ring_submitted(struct omnikv_ring *ring);
int okv_worker_ring_wait(struct omnikv_ring *ring, uint64_t timeout_ns);

static inline bool okv_worker_is_stopping(struct omnikv_ring *ring)
{
	const struct okv_worker *worker = ring->priv;

	return atomic_load_explicit(&worker->is_stopping, memory_order_relaxed);
}

#endif /* OKV_DEVICE_WORKER_H */

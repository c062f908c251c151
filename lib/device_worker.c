// SPDX-License-Identifier: MIT
/*
 * A thread a ring, see device_worker.h.
 *
 * Owns spinning, sleeping and waking between the submitting thread, the worker and the reaper. What is moved and how
 * is the device's; what may start is ring.c's.
 */
#include "device_worker.h"

#include <errno.h>

#include "futex.h"

#define SPIN_START_NS	20000
#define SPIN_MIN_NS	1000
#define SPIN_MAX_NS	100000
#define SPIN_SOON_NS	200000
/* Before a nap, which is short anyway. */
#define SPIN_NAP_NS	4000

/* Values of sleeps. */
#define SLEEPS			1
#define SLEEPS_FOR_EVENT	2

static void spin_init(struct okv_spin *spin, uint64_t fixed_ns)
{
	spin->fixed_ns = fixed_ns;
	spin->budget_ns = fixed_ns ? fixed_ns : SPIN_START_NS;
}

/* After a sleep of @slept_ns: would spinning a little longer have caught it? */
static void spin_adapt(struct okv_spin *spin, uint64_t slept_ns)
{
	if (spin->fixed_ns)
		return;
	if (slept_ns < SPIN_SOON_NS)
		spin->budget_ns = spin->budget_ns < SPIN_MAX_NS / 2 ? spin->budget_ns * 2 : SPIN_MAX_NS;
	else
		spin->budget_ns = spin->budget_ns > SPIN_MIN_NS * 2 ? spin->budget_ns / 2 : SPIN_MIN_NS;
}

void okv_worker_event_fired(struct omnikv_device *dev, struct omnikv_event *event)
{
	struct omnikv_ring *ring;

	if (atomic_load(&event->nr_sleepers))
		okv_futex_wake((_Atomic uint32_t *)&event->state);
	for (ring = dev->rings; ring; ring = ring->next) {
		struct okv_worker *worker = ring->priv;

		if (worker && atomic_load(&worker->sleeps) == SLEEPS_FOR_EVENT)
			okv_sleeper_wake(&worker->sleeps);
	}
}

static bool has_work(struct omnikv_ring *ring)
{
	struct okv_worker *worker = ring->priv;

	return okv_ring_has_news(ring) || atomic_load(&worker->is_stopping) ||
	       (worker->ops->has_news && worker->ops->has_news(ring));
}

/* Until there is work, or a deadline passes. */
static void idle(struct omnikv_ring *ring)
{
	struct okv_worker *worker = ring->priv;
	uint64_t start_ns, deadline, now, wait_ns = worker->ops->nap_ns ? worker->ops->nap_ns(ring) : UINT64_MAX;
	uint64_t budget_ns = worker->spin.budget_ns;
	bool is_nap = wait_ns != UINT64_MAX;
	uint32_t word;
	unsigned int i;

	if (is_nap && budget_ns > SPIN_NAP_NS)
		budget_ns = SPIN_NAP_NS;
	/* The clock is read late: most often the next operation is here before that. */
	start_ns = now = 0;
	do {
		for (i = 0; i < 64; i++) {
			if (okv_ring_has_quick_news(ring) || atomic_load_explicit(&worker->is_stopping, memory_order_relaxed))
				return;
			okv_cpu_relax();
		}
		if (worker->ops->has_news && worker->ops->has_news(ring))
			return;
		now = okv_monotonic_ns();
		if (!start_ns)
			start_ns = now;
	} while (now - start_ns < budget_ns);

	deadline = okv_opq_next_deadline(&ring->q);
	if (deadline != UINT64_MAX) {
		uint64_t clock = ring->dev->ops->clock(ring->dev);

		if (clock >= deadline)
			return;
		if (deadline - clock < wait_ns)
			wait_ns = deadline - clock;
	}
	word = ring->waiting.first == OKV_OP_NONE ? SLEEPS : SLEEPS_FOR_EVENT;
	atomic_store(&worker->sleeps, word);
	if (!has_work(ring)) {
		okv_futex_wait(&worker->sleeps, word, wait_ns);
		if (!is_nap)
			spin_adapt(&worker->spin, okv_monotonic_ns() - now);
	}
	atomic_store(&worker->sleeps, 0);
}

static void *thread(void *arg)
{
	struct omnikv_ring *ring = arg;
	struct okv_worker *worker = ring->priv;

	if (worker->ops->begin)
		worker->ops->begin(ring);
	for (;;) {
		bool did = okv_ring_run(ring);

		if (atomic_load(&worker->is_stopping)) {
			/* Nothing is submitted any more; what is in flight is withdrawn. */
			okv_ring_run(ring);
			okv_ring_cancel_all(ring);
			okv_ring_spill_exit(ring);
			if (worker->ops->end)
				worker->ops->end(ring);
			okv_ring_show(ring);
			return NULL;
		}
		if (!worker->ops->run(ring) && !did)
			idle(ring);
	}
}

int okv_worker_start(struct omnikv_ring *ring, struct okv_worker *worker, const struct okv_worker_ops *ops)
{
	int ret;

	worker->ops = ops;
	spin_init(&worker->spin, ring->spin_ns);
	spin_init(&worker->reaper_spin, ring->spin_ns);
	/* Under the lock: whoever fires an event looks at it. */
	pthread_mutex_lock(&ring->dev->lock);
	ring->priv = worker;
	pthread_mutex_unlock(&ring->dev->lock);
	ret = pthread_create(&worker->thread, NULL, thread, ring);
	if (ret) {
		pthread_mutex_lock(&ring->dev->lock);
		ring->priv = NULL;
		pthread_mutex_unlock(&ring->dev->lock);
	}
	return -ret;
}

void okv_worker_stop(struct omnikv_ring *ring)
{
	struct okv_worker *worker = ring->priv;

	atomic_store(&worker->is_stopping, 1);
	okv_sleeper_wake(&worker->sleeps);
	pthread_join(worker->thread, NULL);
	pthread_mutex_lock(&ring->dev->lock);
	ring->priv = NULL;
	pthread_mutex_unlock(&ring->dev->lock);
}

void okv_worker_ring_submitted(struct omnikv_ring *ring)
{
	struct okv_worker *worker = ring->priv;

	okv_sleeper_wake(&worker->sleeps);
}

int okv_worker_ring_wait(struct omnikv_ring *ring, uint64_t timeout_ns)
{
	struct okv_worker *worker = ring->priv;
	uint64_t start_ns, now, slept_ns;
	unsigned int i;

	if (!okv_cq_pending(&ring->cq))
		return -ENODATA;
	start_ns = 0;
	do {
		for (i = 0; i < 64; i++) {
			if (okv_cq_peek(&ring->cq))
				return 0;
			okv_cpu_relax();
		}
		now = okv_monotonic_ns();
		if (!start_ns)
			start_ns = now;
		if (now - start_ns >= timeout_ns)
			return -ETIME;
	} while (now - start_ns < worker->reaper_spin.budget_ns);

	for (;;) {
		uint64_t rest_ns = timeout_ns == UINT64_MAX ? UINT64_MAX : timeout_ns - (now - start_ns);

		slept_ns = now;
		atomic_store(&ring->reaper_sleeps, 1);
		if (!okv_cq_is_shown(&ring->cq))
			okv_futex_wait(&ring->reaper_sleeps, 1, rest_ns);
		atomic_store(&ring->reaper_sleeps, 0);
		now = okv_monotonic_ns();
		spin_adapt(&worker->reaper_spin, now - slept_ns);
		if (okv_cq_peek(&ring->cq))
			return 0;
		if (now - start_ns >= timeout_ns)
			return -ETIME;
	}
}

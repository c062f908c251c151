// SPDX-License-Identifier: GPL-2.0-only
/*
 * Row M5: no-ops to the host backend's worker and back, against io_uring's no-op and the round
 * trip of a shared word between two threads; and what an idle ring costs.
 *
 * One JSON object a line on stdout. Wall time: two threads on two CPUs, so run it at one
 * priority on a quiet machine. Rounds are interleaved. Arguments: rounds (5), operations (200000).
 */
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <omnikv/ring.h>

#define ROUNDS_MAX	64

static double now_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(double *v, unsigned int n)
{
	qsort(v, n, sizeof(*v), by_value);
	return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

static double ring_nops(struct omnikv_ring *ring, unsigned int batch, unsigned int nr)
{
	double start = now_ns(CLOCK_MONOTONIC);
	unsigned int done, i;

	for (done = 0; done < nr; done += batch) {
		for (i = 0; i < batch; i++)
			omnikv_prep_nop(omnikv_get_sqe(ring));
		if (omnikv_submit(ring) != (int)batch)
			exit(1);
		for (i = 0; i < batch; i++) {
			struct omnikv_cqe *cqe;

			if (omnikv_wait_cqe(ring, &cqe, UINT64_MAX))
				exit(1);
			omnikv_cqe_seen(ring, cqe);
		}
	}
	return (now_ns(CLOCK_MONOTONIC) - start) / done;
}

static double uring_nops(struct io_uring *ring, unsigned int batch, unsigned int nr)
{
	double start = now_ns(CLOCK_MONOTONIC);
	unsigned int done, i;

	for (done = 0; done < nr; done += batch) {
		for (i = 0; i < batch; i++)
			io_uring_prep_nop(io_uring_get_sqe(ring));
		io_uring_submit(ring);
		for (i = 0; i < batch; i++) {
			struct io_uring_cqe *cqe;

			if (io_uring_wait_cqe(ring, &cqe))
				exit(1);
			io_uring_cqe_seen(ring, cqe);
		}
	}
	return (now_ns(CLOCK_MONOTONIC) - start) / done;
}

static struct {
	_Atomic uint64_t ping __attribute__((aligned(128)));
	_Atomic uint64_t pong __attribute__((aligned(128)));
	int		fds[2];
	unsigned int	nr;
} shared;

static void *word_echo(void *arg)
{
	uint64_t i;

	(void)arg;
	for (i = 1; i <= shared.nr; i++) {
		while (atomic_load_explicit(&shared.ping, memory_order_acquire) != i)
			__builtin_ia32_pause();
		atomic_store_explicit(&shared.pong, i, memory_order_release);
	}
	return NULL;
}

static double word_rtt(unsigned int nr)
{
	pthread_t thread;
	double start;
	uint64_t i;

	shared.nr = nr;
	atomic_store(&shared.ping, 0);
	atomic_store(&shared.pong, 0);
	pthread_create(&thread, NULL, word_echo, NULL);
	usleep(1000);
	start = now_ns(CLOCK_MONOTONIC);
	for (i = 1; i <= nr; i++) {
		atomic_store_explicit(&shared.ping, i, memory_order_release);
		while (atomic_load_explicit(&shared.pong, memory_order_acquire) != i)
			__builtin_ia32_pause();
	}
	start = now_ns(CLOCK_MONOTONIC) - start;
	pthread_join(thread, NULL);
	return start / nr;
}

static void *eventfd_echo(void *arg)
{
	uint64_t x;
	unsigned int i;

	(void)arg;
	for (i = 0; i < shared.nr; i++) {
		if (read(shared.fds[0], &x, 8) != 8 || write(shared.fds[1], &x, 8) != 8)
			exit(1);
	}
	return NULL;
}

/* Both sides have gone to sleep before each. */
static double eventfd_rtt(unsigned int nr)
{
	double sum = 0, start;
	pthread_t thread;
	uint64_t x = 1;
	unsigned int i;

	shared.nr = nr;
	shared.fds[0] = eventfd(0, 0);
	shared.fds[1] = eventfd(0, 0);
	pthread_create(&thread, NULL, eventfd_echo, NULL);
	for (i = 0; i < nr; i++) {
		usleep(1000);
		start = now_ns(CLOCK_MONOTONIC);
		if (write(shared.fds[0], &x, 8) != 8 || read(shared.fds[1], &x, 8) != 8)
			exit(1);
		sum += now_ns(CLOCK_MONOTONIC) - start;
	}
	pthread_join(thread, NULL);
	close(shared.fds[0]);
	close(shared.fds[1]);
	return sum / nr;
}

static double idle_rtt(struct omnikv_ring *ring, unsigned int nr)
{
	double sum = 0, start;
	unsigned int i;

	for (i = 0; i < nr; i++) {
		usleep(1000);
		start = now_ns(CLOCK_MONOTONIC);
		ring_nops(ring, 1, 1);
		sum += now_ns(CLOCK_MONOTONIC) - start;
	}
	return sum / nr;
}

/* CPU of the whole process in percent of one, while the ring has nothing to do. */
static double idle_cpu(void)
{
	double wall = now_ns(CLOCK_MONOTONIC), cpu = now_ns(CLOCK_PROCESS_CPUTIME_ID);

	usleep(300000);
	return 100 * (now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu) / (now_ns(CLOCK_MONOTONIC) - wall);
}

static void row(const char *name, const char *unit, double *v, double *limit, double *peer, unsigned int n,
		double target)
{
	double m = median(v, n), l = limit ? median(limit, n) : 0, p = peer ? median(peer, n) : 0;

	printf("{\"row\":\"M5\",\"name\":\"%s\",\"unit\":\"%s\",\"median\":%.2f,\"min\":%.2f,\"max\":%.2f,\"limit\":%.2f,"
	       "\"peer\":%.2f,\"ratio\":%.3f,\"target\":%.2f}\n",
	       name, unit, m, v[0], v[n - 1], l, p, l ? m / l : p ? m / p : 0, target);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static const unsigned int batches[] = { 1, 16, 256 };
	static double own[3][ROUNDS_MAX], peer[3][ROUNDS_MAX], word[ROUNDS_MAX], idle[ROUNDS_MAX], event[ROUNDS_MAX],
		cpu[ROUNDS_MAX];
	struct omnikv_ring_config c = { .size = sizeof(c), .entries = 256, .cq_entries = 512 };
	unsigned int n = argc > 1 ? (unsigned int)atoi(argv[1]) : 5, nr = argc > 2 ? (unsigned int)atoi(argv[2]) : 200000;
	struct omnikv_device *dev;
	struct omnikv_ring *ring;
	struct io_uring uring;
	unsigned int round, i;
	bool has_uring;

	if (!n || n > ROUNDS_MAX || nr < 256)
		return 2;
	if (omnikv_device_open("host", NULL, &dev, NULL) || omnikv_ring_init(NULL, dev, &c, &ring, NULL))
		return 1;
	has_uring = !io_uring_queue_init(256, &uring, 0);
	for (round = 0; round < n; round++) {
		word[round] = word_rtt(nr / 4);
		for (i = 0; i < 3; i++) {
			own[i][round] = ring_nops(ring, batches[i], batches[i] == 1 ? nr / 4 : nr);
			if (has_uring)
				peer[i][round] = uring_nops(&uring, batches[i], batches[i] == 1 ? nr / 4 : nr);
		}
		usleep(1000);
		event[round] = eventfd_rtt(100);
		idle[round] = idle_rtt(ring, 100);
		cpu[round] = idle_cpu();
	}
	row("no-op round trip, batch 1, spinning", "ns", own[0], word, has_uring ? peer[0] : NULL, n, 1.3);
	row("no-ops, batch 16", "ns/op", own[1], NULL, has_uring ? peer[1] : NULL, n, 0);
	row("no-ops, batch 256", "ns/op", own[2], NULL, has_uring ? peer[2] : NULL, n, 20);
	row("no-op round trip, both asleep", "ns", idle, event, NULL, n, 1.1);
	row("CPU of an idle ring", "percent", cpu, NULL, NULL, n, 1);
	if (has_uring)
		io_uring_queue_exit(&uring);
	omnikv_ring_exit(ring);
	omnikv_device_close(dev);
	return 0;
}

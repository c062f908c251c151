// SPDX-License-Identifier: GPL-2.0-only
/*
 * Row M5: no-ops to the host backend's worker and back, against a shared word between two threads
 * (the limit), io_uring's no-op and a socket (peers); and what an idle ring costs.
 *
 * Two threads on two CPUs and wall time, so it wants one priority and a quiet machine. Rounds are
 * interleaved. One thread, and the other side of each exchange.
 */
#include <liburing.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <omnikv/ring.h>

#include "bench.h"
#include "cmd.h"

#define NR_OPS_MAX	200000u	/* of a round, where the footprint is 1 GiB or more */
#define NR_SLEEPS	100u

uint64_t okv_bench_ring_need(uint64_t footprint_bytes)
{
	(void)footprint_bytes;
	return 256u << 20;
}

static double ring_nops(struct omnikv_ring *ring, unsigned int batch, unsigned int nr)
{
	double start = okv_bench_wall_ns();
	unsigned int done, i;

	for (done = 0; done < nr; done += batch) {
		for (i = 0; i < batch; i++) {
			struct omnikv_sqe *sqe;

			/* A slot may come free a little after its result. */
			while (!(sqe = omnikv_get_sqe(ring)))
				sched_yield();
			omnikv_prep_nop(sqe);
		}
		if (omnikv_submit(ring) != (int)batch)
			okv_die("the ring or a peer failed");
		for (i = 0; i < batch; i++) {
			struct omnikv_cqe *cqe;

			if (omnikv_wait_cqe(ring, &cqe, UINT64_MAX))
				okv_die("the ring or a peer failed");
			omnikv_cqe_seen(ring, cqe);
		}
	}
	return (okv_bench_wall_ns() - start) / done;
}

static double uring_nops(struct io_uring *ring, unsigned int batch, unsigned int nr)
{
	double start = okv_bench_wall_ns();
	unsigned int done, i;

	for (done = 0; done < nr; done += batch) {
		for (i = 0; i < batch; i++) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(ring);

			okv_bench_must(sqe != NULL, "io_uring has no free slot");
			io_uring_prep_nop(sqe);
		}
		io_uring_submit(ring);
		for (i = 0; i < batch; i++) {
			struct io_uring_cqe *cqe;

			if (io_uring_wait_cqe(ring, &cqe))
				okv_die("the ring or a peer failed");
			io_uring_cqe_seen(ring, cqe);
		}
	}
	return (okv_bench_wall_ns() - start) / done;
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
	okv_bench_must(!pthread_create(&thread, NULL, word_echo, NULL), "no second thread");
	usleep(1000);
	start = okv_bench_wall_ns();
	for (i = 1; i <= nr; i++) {
		atomic_store_explicit(&shared.ping, i, memory_order_release);
		while (atomic_load_explicit(&shared.pong, memory_order_acquire) != i)
			__builtin_ia32_pause();
	}
	start = okv_bench_wall_ns() - start;
	pthread_join(thread, NULL);
	return start / nr;
}

static void *socket_echo(void *arg)
{
	unsigned int i;
	uint64_t x;

	(void)arg;
	for (i = 0; i < shared.nr; i++) {
		if (read(shared.fds[1], &x, 8) != 8 || write(shared.fds[1], &x, 8) != 8)
			okv_die("a socket failed");
	}
	return NULL;
}

/* One request after another: what a client and a server without shared memory do. */
static double socket_rtt(unsigned int nr)
{
	pthread_t thread;
	uint64_t x = 1;
	double start;
	unsigned int i;

	shared.nr = nr;
	okv_bench_must(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, shared.fds), "no sockets");
	okv_bench_must(!pthread_create(&thread, NULL, socket_echo, NULL), "no second thread");
	start = okv_bench_wall_ns();
	for (i = 0; i < nr; i++)
		okv_bench_must(write(shared.fds[0], &x, 8) == 8 && read(shared.fds[0], &x, 8) == 8, "a socket failed");
	start = okv_bench_wall_ns() - start;
	pthread_join(thread, NULL);
	close(shared.fds[0]);
	close(shared.fds[1]);
	return start / nr;
}

static void *eventfd_echo(void *arg)
{
	uint64_t x;
	unsigned int i;

	(void)arg;
	for (i = 0; i < shared.nr; i++) {
		if (read(shared.fds[0], &x, 8) != 8 || write(shared.fds[1], &x, 8) != 8)
			okv_die("the ring or a peer failed");
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
	okv_bench_must(!pthread_create(&thread, NULL, eventfd_echo, NULL), "no second thread");
	for (i = 0; i < nr; i++) {
		usleep(1000);
		start = okv_bench_wall_ns();
		if (write(shared.fds[0], &x, 8) != 8 || read(shared.fds[1], &x, 8) != 8)
			okv_die("the ring or a peer failed");
		sum += okv_bench_wall_ns() - start;
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
		start = okv_bench_wall_ns();
		ring_nops(ring, 1, 1);
		sum += okv_bench_wall_ns() - start;
	}
	return sum / nr;
}

static double process_cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

/* CPU of the whole process in percent of one, while the ring has nothing to do. */
static double idle_cpu(void)
{
	double wall = okv_bench_wall_ns(), cpu = process_cpu_ns();

	usleep(300000);
	return 100 * (process_cpu_ns() - cpu) / (okv_bench_wall_ns() - wall);
}

void okv_bench_ring(struct okv_bench *bench)
{
	static const unsigned int batches[] = { 1, 16, 256 };
	static const char *const names[] = { "no-op and back, spinning", "no-ops in batches of 16", "no-ops in batches of 256" };
	struct omnikv_ring_config config = { .size = sizeof(config), .entries = 256, .cq_entries = 512 };
	struct okv_bench_row *own[3], *sock, *asleep, *idle;
	struct omnikv_device *dev;
	struct omnikv_ring *ring;
	struct io_uring uring;
	uint64_t scaled = NR_OPS_MAX * (bench->footprint_bytes >> 20) >> 10;
	unsigned int nr_ops = scaled < NR_OPS_MAX ? (unsigned int)scaled : NR_OPS_MAX, round, i;
	bool has_uring;

	okv_bench_must(!omnikv_device_open("host", NULL, &dev, NULL) && !omnikv_ring_init(NULL, dev, &config, &ring, NULL),
		       "no ring on the host backend");
	has_uring = !io_uring_queue_init(256, &uring, 0);
	for (i = 0; i < 3; i++) {
		own[i] = okv_bench_row(bench, &(struct okv_bench_desc) {
			.row = "M5", .workload = names[i], .unit = "ns/op", .clock = "wall", .is_lower_better = true,
			.limit = i ? NULL : "a shared word there and back, both spin", .peer = "no-op of io_uring",
			.target_of = i == 0 ? OKV_TARGET_RATIO : i == 2 ? OKV_TARGET_OURS : OKV_TARGET_NONE,
			.target = i ? 20 : 1.3,
		});
	}
	sock = okv_bench_row(bench, &(struct okv_bench_desc) {
		.row = "M5", .workload = "no-op and back, against a socket", .unit = "ns/op", .clock = "wall", .is_lower_better = true,
		.peer = "8 bytes over a unix stream and back",
	});
	asleep = okv_bench_row(bench, &(struct okv_bench_desc) {
		.row = "M5", .workload = "no-op and back, both asleep", .unit = "ns/op", .clock = "wall", .is_lower_better = true,
		.limit = "an eventfd there and back, both asleep", .target_of = OKV_TARGET_RATIO, .target = 1.1,
	});
	idle = okv_bench_row(bench, &(struct okv_bench_desc) {
		.row = "M5", .workload = "CPU of an idle ring", .unit = "%", .clock = "process CPU", .is_lower_better = true,
		.target_of = OKV_TARGET_OURS, .target = 1,
	});

	/* Round 0 warms up. */
	for (round = 0; round <= bench->nr_rounds; round++) {
		double word = word_rtt(nr_ops / 4), ours[3], peer[3], socket, event, sleeping, cpu;

		for (i = 0; i < 3; i++) {
			ours[i] = ring_nops(ring, batches[i], batches[i] == 1 ? nr_ops / 4 : nr_ops);
			peer[i] = has_uring ? uring_nops(&uring, batches[i], batches[i] == 1 ? nr_ops / 4 : nr_ops) : (double)NAN;
		}
		socket = socket_rtt(nr_ops / 100);
		usleep(1000);
		event = eventfd_rtt(NR_SLEEPS);
		sleeping = idle_rtt(ring, NR_SLEEPS);
		cpu = idle_cpu();
		if (!round)
			continue;
		for (i = 0; i < 3; i++)
			okv_bench_sample(own[i], ours[i], i ? (double)NAN : word, peer[i]);
		okv_bench_sample(sock, ours[0], (double)NAN, socket);
		okv_bench_sample(asleep, sleeping, event, (double)NAN);
		okv_bench_sample(idle, cpu, (double)NAN, (double)NAN);
	}
	if (has_uring)
		io_uring_queue_exit(&uring);
	omnikv_ring_exit(ring);
	omnikv_device_close(dev);
}

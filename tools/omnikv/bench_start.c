// SPDX-License-Identifier: GPL-2.0-only
/*
 * Row M8: a new pool until it is ready, by one thread and by two, and what another client sees of that.
 *
 * Ready is what can be clear: the limit is two threads clearing as much memory that is there. The other client has a
 * pool of its own in the same process, and makes a call each millisecond.
 */
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include <omnikv.h>

#include "bench.h"
#include "cmd.h"

#define THREADS		2u
#define CALLS_MAX	65536u
#define NONE		((double)NAN)

uint64_t okv_bench_start_need(uint64_t footprint_bytes)
{
	return footprint_bytes + footprint_bytes / 8 + (256u << 20);
}

/* ---- the other client ----------------------------------------------------------------------- */

struct other {
	struct omnikv_pool	*pool;
	struct omnikv_client	*client;
	atomic_bool		has_begun;
	atomic_bool		is_over;
	pthread_t		thread;
	uint32_t		nr_calls;
	double			ns[CALLS_MAX];
};

static void *call_on(void *opaque)
{
	const struct timespec pause = { .tv_nsec = 1000000 };
	struct omnikv_extent extents[16];
	struct other *other = opaque;

	other->nr_calls = 0;
	atomic_store(&other->has_begun, true);
	do {
		double begin = okv_bench_wall_ns();

		okv_bench_must(!omnikv_extent_alloc(other->client, 16, 16, NULL, 0, extents) &&
			       !omnikv_extent_free(other->client, extents, 16), "another client's call fails");
		other->ns[other->nr_calls++] = okv_bench_wall_ns() - begin;
		nanosleep(&pause, NULL);
	} while (!atomic_load(&other->is_over) && other->nr_calls < CALLS_MAX);
	return NULL;
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* ---- what is timed -------------------------------------------------------------------------- */

/* GB/s; the other client's calls meanwhile go to @p99_ns. */
static double make_pool(uint64_t bytes, uint32_t nr_threads, struct other *other, double *p99_ns)
{
	struct omnikv_pool_config config = { .size = sizeof(config), .nr_threads = nr_threads };
	struct omnikv_error err = { "" };
	struct omnikv_pool *pool;
	char spec[32];
	double begin;

	snprintf(spec, sizeof(spec), "%llu", (unsigned long long)bytes);
	atomic_store(&other->has_begun, false);
	atomic_store(&other->is_over, false);
	okv_bench_must(!pthread_create(&other->thread, NULL, call_on, other), "no thread");
	while (!atomic_load(&other->has_begun))
		sched_yield();
	begin = okv_bench_wall_ns();
	if (omnikv_pool_open(spec, &config, &pool, &err))
		okv_die("%s", err.text);
	begin = okv_bench_wall_ns() - begin;
	atomic_store(&other->is_over, true);
	pthread_join(other->thread, NULL);
	omnikv_pool_close(pool);
	qsort(other->ns, other->nr_calls, sizeof(other->ns[0]), compare);
	*p99_ns = other->ns[(uint64_t)other->nr_calls * 99 / 100];
	return (double)bytes / begin;
}

struct clearing {
	unsigned char	*mem;
	uint64_t	bytes;
};

static void *clear(void *opaque)
{
	const struct clearing *clearing = opaque;

	memset(clearing->mem, 0, clearing->bytes);
	__asm__ volatile("" : : "r"(clearing->mem) : "memory");
	return NULL;
}

static double clear_all(struct okv_bench *bench, uint64_t bytes)
{
	unsigned char *mem = okv_bench_alloc(bench, bytes);
	struct clearing clearings[THREADS];
	pthread_t threads[THREADS];
	double begin;

	okv_bench_note_pages(bench);
	begin = okv_bench_wall_ns();
	for (uint32_t i = 0; i < THREADS; i++) {
		clearings[i] = (struct clearing){ mem + i * (bytes / THREADS), bytes / THREADS };
		okv_bench_must(!pthread_create(&threads[i], NULL, clear, &clearings[i]), "no thread");
	}
	for (uint32_t i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	begin = okv_bench_wall_ns() - begin;
	okv_bench_free(bench, mem);
	return (double)bytes / begin;
}

static double map_populated(uint64_t bytes)
{
	double begin = okv_bench_wall_ns();
	void *mem = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	begin = okv_bench_wall_ns() - begin;
	okv_bench_must(mem != MAP_FAILED, "no memory to map");
	munmap(mem, bytes);
	return (double)bytes / begin;
}

void okv_bench_start(struct okv_bench *bench)
{
	struct okv_bench_row *ready, *faster, *meanwhile;
	uint64_t bytes = bench->footprint_bytes >> 21 << 21;
	static struct other other;
	char text[80], size[24];

	if (omnikv_pool_open("64M", NULL, &other.pool, NULL) || omnikv_client_open(other.pool, 0, &other.client))
		okv_die("no pool for another client");
	snprintf(text, sizeof(text), "new pool of %s until it is ready, by two threads", okv_bytes_text(bytes, size));
	ready = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M8", .unit = "GB/s", .clock = "wall", .workload = text,
		.limit = "two threads clearing as much memory that is mapped", .peer = "mmap() with MAP_POPULATE, one thread",
		.target_of = OKV_TARGET_RATIO, .target = 0.95 });
	faster = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M8", .unit = "x", .clock = "wall",
		.workload = "of it: two threads over one", .target_of = OKV_TARGET_OURS, .target = 1.5 });
	meanwhile = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M8", .unit = "ms", .clock = "wall", .is_lower_better = true,
		.workload = "another client's alloc and free of 16 extents meanwhile, p99", .target_of = OKV_TARGET_OURS, .target = 50 });
	/* Round 0 warms up. */
	for (unsigned int round = 0; round <= bench->nr_rounds; round++) {
		double p99_ns, one = make_pool(bytes, 1, &other, &p99_ns), two = make_pool(bytes, THREADS, &other, &p99_ns);
		double limit = clear_all(bench, bytes), peer = map_populated(bytes);

		if (!round)
			continue;
		okv_bench_sample(ready, two, limit, peer);
		okv_bench_sample(faster, two / one, NONE, NONE);
		okv_bench_sample(meanwhile, p99_ns / 1e6, NONE, NONE);
	}
	omnikv_client_close(other.client);
	omnikv_pool_close(other.pool);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Rows M1, M2 and M10: gather and scatter of pieces against one memcpy() of the same bytes (the
 * limit) and one memcpy() a piece (the peer, what staging by a CPU does), without and with
 * checksums, by one thread and by two.
 *
 * Pieces lie 64-byte aligned in random order in the whole footprint; a quarter of it is moved a
 * time. One thread, and a second one for rows of two.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "copy.h"
#include "crc32c.h"

#define SMALLEST	576u

enum arm { ARM_LIMIT, ARM_PEER, ARM_PLAIN, ARM_SUMMED };

struct sides {
	unsigned char	*pool;
	unsigned char	*flat;
	uint64_t	side_bytes;
	uint64_t	moved_bytes;
	uint64_t	*order;		/* slots of pieces, shuffled */
	struct okv_run	*runs;
	uint32_t	*crc;
	size_t		nr;
	bool		is_scatter;
};

/* A part of the work, for one thread. */
struct part {
	const struct sides	*sides;
	enum arm		arm;
	size_t			first;
	size_t			nr;
	pthread_barrier_t	*gate;
};

uint64_t okv_bench_copy_need(uint64_t footprint_bytes)
{
	return 2 * footprint_bytes + footprint_bytes / SMALLEST * (sizeof(uint64_t) + sizeof(struct okv_run) + 4) + (64u << 20);
}

/* Pieces of @piece_bytes in random slots on one side, one after another on the other. */
static void prepare(struct okv_bench *bench, struct sides *s, size_t piece_bytes)
{
	size_t stride = (piece_bytes + 63) & ~(size_t)63, nr_slots = s->side_bytes / stride, i;

	s->nr = s->moved_bytes / stride;
	for (i = 0; i < nr_slots; i++)
		s->order[i] = i;
	for (i = nr_slots - 1; i > 0; i--) {
		size_t j = okv_bench_random(bench) % (i + 1);
		uint64_t kept = s->order[i];

		s->order[i] = s->order[j];
		s->order[j] = kept;
	}
	for (i = 0; i < s->nr; i++) {
		unsigned char *piece = s->pool + s->order[i] * stride, *flat = s->flat + i * stride;

		s->runs[i] = (struct okv_run) {
			.src = s->is_scatter ? flat : piece, .dst = s->is_scatter ? piece : flat, .bytes = piece_bytes,
		};
	}
}

static void move(const struct part *p)
{
	const struct sides *s = p->sides;
	size_t bytes = s->runs[0].bytes, i;

	switch (p->arm) {
	case ARM_LIMIT:
		memcpy((s->is_scatter ? s->pool : s->flat) + p->first * bytes, (s->is_scatter ? s->flat : s->pool) + p->first * bytes,
		       p->nr * bytes);
		break;
	case ARM_PEER:
		for (i = p->first; i < p->first + p->nr; i++)
			memcpy(s->runs[i].dst, s->runs[i].src, s->runs[i].bytes);
		break;
	case ARM_PLAIN:
	case ARM_SUMMED:
		okv_copy_runs(s->runs + p->first, p->nr, p->arm == ARM_SUMMED ? s->crc + p->first : NULL);
		break;
	}
}

/* GB/s by one thread, of its CPU time. */
static double alone(const struct sides *s, enum arm arm)
{
	struct part all = { .sides = s, .arm = arm, .nr = s->nr };
	double start = okv_bench_cpu_ns();

	move(&all);
	return (double)(s->nr * s->runs[0].bytes) / (okv_bench_cpu_ns() - start);
}

static void *second(void *arg)
{
	struct part *p = arg;

	pthread_barrier_wait(p->gate);
	move(p);
	return NULL;
}

/* GB/s by two threads, wall time from the start of both to the end of the later. */
static double together(const struct sides *s, enum arm arm)
{
	pthread_barrier_t gate;
	struct part a = { .sides = s, .arm = arm, .nr = s->nr / 2 };
	struct part b = { .sides = s, .arm = arm, .first = s->nr / 2, .nr = s->nr - s->nr / 2, .gate = &gate };
	pthread_t thread;
	double start;

	okv_bench_must(!pthread_barrier_init(&gate, NULL, 2), "no barrier");
	okv_bench_must(!pthread_create(&thread, NULL, second, &b), "no second thread");
	pthread_barrier_wait(&gate);
	start = okv_bench_wall_ns();
	move(&a);
	pthread_join(thread, NULL);
	start = okv_bench_wall_ns() - start;
	pthread_barrier_destroy(&gate);
	return (double)(s->nr * s->runs[0].bytes) / start;
}

/* After an arm that gave sums: every piece arrived, and some sums against the plain way. */
static void check(const struct sides *s)
{
	size_t i;

	for (i = 0; i < s->nr; i++)
		okv_bench_must(!memcmp(s->runs[i].dst, s->runs[i].src, s->runs[i].bytes), "a piece has wrong bytes");
	for (i = 0; i < s->nr; i += 97)
		okv_bench_must(s->crc[i] == okv_crc32c(s->runs[i].src, s->runs[i].bytes), "a piece has a wrong checksum");
}

/* All rows of one size of pieces. */
static void pieces(struct okv_bench *bench, struct sides *s, size_t piece_bytes, double target)
{
	const char *verb = s->is_scatter ? "scatter" : "gather", *name = s->is_scatter ? "M2" : "M1";
	struct okv_bench_row *one, *two, *summed;
	struct okv_bench_desc desc = {
		.row = name, .unit = "GB/s", .clock = "thread CPU", .limit = "one memcpy of the same bytes",
		.peer = "one memcpy a piece", .target_of = OKV_TARGET_RATIO, .target = target,
	};
	char text[80];
	unsigned int round;

	desc.workload = text;
	snprintf(text, sizeof(text), "%s %zu B", verb, piece_bytes);
	one = okv_bench_row(bench, &desc);
	desc.clock = "wall";
	desc.limit = "one memcpy of the same bytes, half by each thread";
	snprintf(text, sizeof(text), "%s %zu B, two threads", verb, piece_bytes);
	two = okv_bench_row(bench, &desc);
	desc = (struct okv_bench_desc) {
		.row = "M10", .workload = text, .unit = "GB/s", .clock = "thread CPU", .limit = "ours without CRC32C",
		.target_of = OKV_TARGET_RATIO, .target = 0.97,
	};
	snprintf(text, sizeof(text), "%s %zu B with CRC32C", verb, piece_bytes);
	summed = okv_bench_row(bench, &desc);

	prepare(bench, s, piece_bytes);
	/* Round 0 warms up. */
	for (round = 0; round <= bench->nr_rounds; round++) {
		double limit = alone(s, ARM_LIMIT), peer = alone(s, ARM_PEER), ours = alone(s, ARM_PLAIN);
		double sums = alone(s, ARM_SUMMED), limit2, peer2, ours2;

		limit2 = together(s, ARM_LIMIT);
		peer2 = together(s, ARM_PEER);
		ours2 = together(s, ARM_PLAIN);
		if (!round)
			continue;
		okv_bench_sample(one, ours, limit, peer);
		okv_bench_sample(two, ours2, limit2, peer2);
		okv_bench_sample(summed, sums, ours, (double)NAN);
	}
	/* The limit's copies went over the same memory: only what the last arms wrote counts. */
	memset(s->is_scatter ? s->pool : s->flat, 0x5a, s->moved_bytes);
	alone(s, ARM_SUMMED);
	check(s);
}

static void both(struct okv_bench *bench, bool is_scatter, const double targets[4])
{
	static const size_t sizes[] = { 576, 1152, 4096, 65536 };
	struct sides s = {
		.side_bytes = bench->footprint_bytes, .moved_bytes = bench->footprint_bytes / 4, .is_scatter = is_scatter,
	};
	size_t i;

	s.pool = okv_bench_alloc(bench, s.side_bytes);
	s.flat = okv_bench_alloc(bench, s.side_bytes);
	s.order = okv_bench_alloc(bench, s.side_bytes / SMALLEST * sizeof(*s.order));
	s.runs = okv_bench_alloc(bench, s.moved_bytes / SMALLEST * sizeof(*s.runs));
	s.crc = okv_bench_alloc(bench, s.moved_bytes / SMALLEST * sizeof(*s.crc));
	for (i = 0; i < s.side_bytes / 8; i++) {
		((uint64_t *)s.pool)[i] = okv_bench_random(bench);
		((uint64_t *)s.flat)[i] = ~okv_bench_random(bench);
	}
	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
		pieces(bench, &s, sizes[i], targets[i]);
}

void okv_bench_gather(struct okv_bench *bench)
{
	static const double targets[] = { 0.88, 0.82, 0.97, 1.02 };

	both(bench, false, targets);
}

void okv_bench_scatter(struct okv_bench *bench)
{
	static const double targets[] = { 0.86, 0.86, 0.86, 0.86 };

	both(bench, true, targets);
}

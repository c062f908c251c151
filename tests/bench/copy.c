// SPDX-License-Identifier: GPL-2.0-only
/*
 * Rows M1, M2 and M10: gather and scatter of pieces against one memcpy() of the same bytes (the
 * limit) and one memcpy() a piece (the peer), without and with checksums.
 *
 * One JSON object a line on stdout. Thread CPU time, rounds interleaved, contents checked
 * outside the timed part, 1 GiB on each side, pieces 64-byte aligned in random order.
 * Arguments: rounds (5), MiB a side (1024), MiB moved a round (256), path (the best).
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "copy.h"
#include "crc32c.h"

#define ROUNDS_MAX	64
#define HUGE_BYTES	((size_t)2 << 20)

enum arm { LIMIT, PEER, PLAIN, SUMMED, NR_ARMS };

struct bench {
	enum okv_copy_path	path;
	unsigned char		*pool;
	unsigned char		*flat;
	size_t			side_bytes;
	size_t			moved_bytes;
	uint64_t		*order;		/* piece numbers, shuffled */
	struct okv_run		*runs;
	uint32_t		*crc;
	unsigned int		nr_rounds;
};

static double cpu_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

static void *map(size_t bytes)
{
	unsigned char *p = mmap(NULL, bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		exit(1);
	p = (unsigned char *)(((uintptr_t)p + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1));
	madvise(p, bytes, MADV_HUGEPAGE);
	return p;
}

/* Part of this process's memory that stands on huge pages, in percent. */
static int huge_percent(void)
{
	FILE *file = fopen("/proc/self/smaps_rollup", "r");
	unsigned long long rss = 0, huge = 0;
	char line[256];

	while (file && fgets(line, sizeof(line), file)) {
		sscanf(line, "Rss: %llu", &rss);
		sscanf(line, "AnonHugePages: %llu", &huge);
	}
	if (file)
		fclose(file);
	return rss ? (int)(huge * 100 / rss) : 0;
}

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	return *state ^= *state << 17;
}

static size_t prepare(struct bench *b, size_t piece_bytes, int is_scatter)
{
	size_t stride = (piece_bytes + 63) & ~(size_t)63;
	size_t nr_slots = b->side_bytes / stride, nr = b->moved_bytes / piece_bytes, i;
	uint64_t random = 88172645463325252u;

	for (i = 0; i < nr_slots; i++)
		b->order[i] = i;
	for (i = nr_slots - 1; i > 0; i--) {
		size_t j = next_random(&random) % (i + 1);
		uint64_t kept = b->order[i];

		b->order[i] = b->order[j];
		b->order[j] = kept;
	}
	for (i = 0; i < nr; i++) {
		unsigned char *scattered = b->pool + b->order[i] * stride, *flat = b->flat + i * stride;

		b->runs[i] = (struct okv_run) { is_scatter ? flat : scattered, is_scatter ? scattered : flat, piece_bytes };
	}
	return nr;
}

static double measure(struct bench *b, enum arm arm, size_t nr, int is_scatter)
{
	double start = cpu_s();
	size_t i;

	switch (arm) {
	case LIMIT:
		memcpy(is_scatter ? b->pool : b->flat, is_scatter ? b->flat : b->pool, nr * b->runs[0].bytes);
		break;
	case PEER:
		for (i = 0; i < nr; i++)
			memcpy(b->runs[i].dst, b->runs[i].src, b->runs[i].bytes);
		break;
	default:
		okv_copy_runs_by(b->path, b->runs, nr, arm == SUMMED ? b->crc : NULL);
		break;
	}
	return (double)(nr * b->runs[0].bytes) / (cpu_s() - start) * 1e-9;
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

static void check(const struct bench *b, size_t nr)
{
	size_t i;

	for (i = 0; i < nr; i += 997) {
		if (memcmp(b->runs[i].dst, b->runs[i].src, b->runs[i].bytes) ||
		    b->crc[i] != okv_crc32c(b->runs[i].src, b->runs[i].bytes)) {
			fprintf(stderr, "piece %zu is wrong\n", i);
			exit(1);
		}
	}
}

static void row(struct bench *b, size_t piece_bytes, int is_scatter, double target)
{
	double gbs[NR_ARMS][ROUNDS_MAX], ratio[ROUNDS_MAX], summed_ratio[ROUNDS_MAX], m[NR_ARMS];
	const char *name = is_scatter ? "scatter" : "gather", *row = is_scatter ? "M2" : "M1";
	const char *path = okv_copy_path_name(b->path);
	size_t nr = prepare(b, piece_bytes, is_scatter);
	unsigned int round;
	int arm;

	/* Random contents, and every page touched. */
	for (round = 0; round <= b->nr_rounds; round++) {
		for (arm = 0; arm < NR_ARMS; arm++) {
			double x = measure(b, (enum arm)arm, nr, is_scatter);

			/* The first round warms up. */
			if (round)
				gbs[arm][round - 1] = x;
		}
		if (round) {
			ratio[round - 1] = gbs[PLAIN][round - 1] / gbs[LIMIT][round - 1];
			summed_ratio[round - 1] = gbs[SUMMED][round - 1] / gbs[PLAIN][round - 1];
		}
	}
	check(b, nr);
	for (arm = 0; arm < NR_ARMS; arm++)
		m[arm] = median(gbs[arm], b->nr_rounds);
	printf("{\"row\":\"%s\",\"name\":\"%s %zu B\",\"path\":\"%s\",\"unit\":\"GB/s\",\"median\":%.2f,\"min\":%.2f,\"max\":%.2f,"
	       "\"limit\":%.2f,\"peer\":%.2f,\"ratio\":%.3f,\"target\":%.2f,\"times_peer\":%.2f,\"huge_percent\":%d}\n",
	       row, name, piece_bytes, path, m[PLAIN], gbs[PLAIN][0], gbs[PLAIN][b->nr_rounds - 1], m[LIMIT], m[PEER],
	       median(ratio, b->nr_rounds), target, m[PLAIN] / m[PEER], huge_percent());
	printf("{\"row\":\"M10\",\"name\":\"%s %zu B with CRC32C\",\"path\":\"%s\",\"unit\":\"GB/s\",\"median\":%.2f,\"min\":%.2f,"
	       "\"max\":%.2f,\"limit\":%.2f,\"ratio\":%.3f,\"target\":0.97}\n",
	       name, piece_bytes, path, m[SUMMED], gbs[SUMMED][0], gbs[SUMMED][b->nr_rounds - 1], m[PLAIN],
	       median(summed_ratio, b->nr_rounds));
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static const size_t pieces[] = { 576, 1152, 4096, 65536 };
	static const double gather_targets[] = { 0.88, 0.82, 0.97, 1.02 };
	struct bench b = { .path = okv_copy_path_chosen(), .nr_rounds = 5 };
	uint64_t random = 42;
	size_t i;
	int p;

	if (argc > 1)
		b.nr_rounds = (unsigned int)atoi(argv[1]);
	b.side_bytes = (size_t)(argc > 2 ? atoi(argv[2]) : 1024) << 20;
	b.moved_bytes = (size_t)(argc > 3 ? atoi(argv[3]) : 256) << 20;
	for (p = 0; argc > 4 && p < OKV_COPY_NR_PATHS; p++) {
		if (!strcmp(argv[4], okv_copy_path_name((enum okv_copy_path)p)) && okv_copy_path_is_usable((enum okv_copy_path)p))
			b.path = (enum okv_copy_path)p;
	}
	if (!b.nr_rounds || b.nr_rounds > ROUNDS_MAX || b.moved_bytes > b.side_bytes)
		return 2;
	b.pool = map(b.side_bytes);
	b.flat = map(b.side_bytes);
	b.order = map(b.side_bytes / 576 * sizeof(*b.order));
	b.runs = map(b.side_bytes / 576 * sizeof(*b.runs));
	b.crc = map(b.side_bytes / 576 * sizeof(*b.crc));
	for (i = 0; i < b.side_bytes / 8; i++) {
		((uint64_t *)b.pool)[i] = next_random(&random);
		((uint64_t *)b.flat)[i] = i;
	}
	for (i = 0; i < 4; i++)
		row(&b, pieces[i], 0, gather_targets[i]);
	for (i = 0; i < 4; i++)
		row(&b, pieces[i], 1, 0.86);
	return 0;
}

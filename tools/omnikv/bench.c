// SPDX-License-Identifier: GPL-2.0-only
/*
 * Rows and samples, memory on known pages, clocks, the machine: what all benchmarks share.
 *
 * How results look is left to bench_print.c, huge pages of the system to bench_huge.c.
 * One thread.
 */
#include <errno.h>
#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <omnikv/version.h>

#include "bench.h"
#include "cmd.h"

#define HUGE_BYTES	((size_t)2 << 20)
#define SMALL_KIB	(48u << 10)	/* so little memory that pages do not matter */

enum { OURS, LIMIT, PEER, RATIO, NR_SERIES };

struct okv_bench_row {
	char		row[8];
	char		workload[80];
	char		unit[16];
	char		clock[16];
	char		limit[80];	/* empty: none */
	char		peer[80];
	char		pages[48];
	bool		is_lower_better;
	enum okv_bench_target target_of;
	double		target;
	unsigned int	nr[NR_SERIES];
	double		samples[NR_SERIES][OKV_BENCH_ROUNDS_MAX];
};

struct okv_bench_mem {
	struct okv_bench_mem	*next;
	void			*mem;
	void			*map;
	size_t			map_bytes;
};

void okv_bench_must(bool is_right, const char *what)
{
	if (!is_right)
		okv_die("%s", what);
}

static void okv_copy_text(char *to, size_t size, const char *from)
{
	snprintf(to, size, "%s", from ? from : "");
}

struct okv_bench_row *okv_bench_row(struct okv_bench *bench, const struct okv_bench_desc *desc)
{
	struct okv_bench_row *row;

	if (!bench->rows)
		bench->rows = calloc(OKV_BENCH_ROWS_MAX, sizeof(*bench->rows));
	okv_bench_must(bench->rows && bench->nr_rows < OKV_BENCH_ROWS_MAX, "no memory for a row");
	row = &bench->rows[bench->nr_rows++];
	okv_copy_text(row->row, sizeof(row->row), desc->row);
	okv_copy_text(row->workload, sizeof(row->workload), desc->workload);
	okv_copy_text(row->unit, sizeof(row->unit), desc->unit);
	okv_copy_text(row->clock, sizeof(row->clock), desc->clock);
	okv_copy_text(row->limit, sizeof(row->limit), desc->limit);
	okv_copy_text(row->peer, sizeof(row->peer), desc->peer);
	row->is_lower_better = desc->is_lower_better;
	row->target_of = desc->target_of;
	row->target = desc->target;
	return row;
}

static void okv_add(struct okv_bench_row *row, int series, double value)
{
	if (!isnan(value) && row->nr[series] < OKV_BENCH_ROUNDS_MAX)
		row->samples[series][row->nr[series]++] = value;
}

void okv_bench_sample(struct okv_bench_row *row, double ours, double limit, double peer)
{
	okv_add(row, OURS, ours);
	okv_add(row, LIMIT, limit);
	okv_add(row, PEER, peer);
	okv_add(row, RATIO, limit > 0 ? ours / limit : (double)NAN);
}

/* Memory --------------------------------------------------------------------------------------- */

static void *okv_map(struct okv_bench *bench, size_t bytes, int sharing, struct okv_bench_mem *m)
{
	size_t whole = (bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);

	if (bench->nr_huge_pages && bytes >= HUGE_BYTES / 2) {
		m->map_bytes = whole;
		m->map = mmap(NULL, whole, PROT_READ | PROT_WRITE,
			      sharing | MAP_ANONYMOUS | MAP_HUGETLB | MAP_POPULATE, -1, 0);
		if (m->map != MAP_FAILED)
			return m->map;
	}
	m->map_bytes = whole + HUGE_BYTES;
	m->map = mmap(NULL, m->map_bytes, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (m->map == MAP_FAILED)
		return NULL;
	m->mem = (void *)(((uintptr_t)m->map + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1));
	madvise(m->mem, whole, MADV_HUGEPAGE);
	return m->mem;
}

static void *okv_alloc(struct okv_bench *bench, size_t bytes, int sharing)
{
	struct okv_bench_mem *m = calloc(1, sizeof(*m));

	okv_bench_must(m != NULL, "no memory");
	m->mem = okv_map(bench, bytes, sharing, m);
	okv_bench_must(m->mem != NULL, "no memory for a working set");
	memset(m->mem, 0, bytes);
	m->next = bench->mems;
	bench->mems = m;
	return m->mem;
}

void *okv_bench_alloc(struct okv_bench *bench, size_t bytes)
{
	return okv_alloc(bench, bytes, MAP_PRIVATE);
}

void *okv_bench_alloc_shared(struct okv_bench *bench, size_t bytes)
{
	return okv_alloc(bench, bytes, MAP_SHARED);
}

void okv_bench_free(struct okv_bench *bench, void *mem)
{
	struct okv_bench_mem **at = &bench->mems, *m;

	while (*at && (*at)->mem != mem)
		at = &(*at)->next;
	m = *at;
	if (!mem || !m)
		return;
	*at = m->next;
	munmap(m->map, m->map_bytes);
	free(m);
}

/* A figure in KiB of a file of "NAME: N kB" lines. */
static unsigned long long okv_kib(const char *path, const char *name)
{
	FILE *file = fopen(path, "re");
	unsigned long long kib = 0;
	size_t len = strlen(name);
	char line[256];

	while (file && fgets(line, sizeof(line), file)) {
		if (!strncmp(line, name, len) && line[len] == ':')
			sscanf(line + len + 1, "%llu", &kib);
	}
	if (file)
		fclose(file);
	return kib;
}

/* Which pages the memory of this process stands on; reserved ones are not counted as resident. */
static void okv_pages_text(char *text, size_t size)
{
	unsigned long long rss = okv_kib("/proc/self/smaps_rollup", "Rss");
	unsigned long long huge = okv_kib("/proc/self/smaps_rollup", "AnonHugePages");
	unsigned long long shared = okv_kib("/proc/self/smaps_rollup", "ShmemPmdMapped");
	unsigned long long reserved = okv_kib("/proc/self/status", "HugetlbPages"), all = rss + reserved;

	if (all < SMALL_KIB)
		okv_copy_text(text, size, "any");
	else if (reserved)
		snprintf(text, size, "2M reserved %llu %%", reserved * 100 / all);
	else
		snprintf(text, size, "2M transparent %llu %%", (huge + shared) * 100 / all);
}

void okv_bench_note_pages(struct okv_bench *bench)
{
	char text[48];
	unsigned int i;

	okv_pages_text(text, sizeof(text));
	for (i = bench->first_row; i < bench->nr_rows; i++) {
		if (!bench->rows[i].pages[0])
			okv_copy_text(bench->rows[i].pages, sizeof(bench->rows[i].pages), text);
	}
}

void okv_bench_begin(struct okv_bench *bench)
{
	bench->first_row = bench->nr_rows;
	bench->random = 88172645463325252ull;
}

void okv_bench_end(struct okv_bench *bench)
{
	okv_bench_note_pages(bench);
	while (bench->mems)
		okv_bench_free(bench, bench->mems->mem);
}

void okv_bench_fini(struct okv_bench *bench)
{
	while (bench->mems)
		okv_bench_free(bench, bench->mems->mem);
	free(bench->rows);
	bench->rows = NULL;
	bench->nr_rows = 0;
}

uint64_t okv_memory_available(void)
{
	return (uint64_t)okv_kib("/proc/meminfo", "MemAvailable") << 10;
}

/* Clocks --------------------------------------------------------------------------------------- */

static double okv_clock_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

double okv_bench_cpu_ns(void)
{
	return okv_clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

double okv_bench_wall_ns(void)
{
	return okv_clock_ns(CLOCK_MONOTONIC);
}

uint64_t okv_bench_random(struct okv_bench *bench)
{
	bench->random ^= bench->random << 13;
	bench->random ^= bench->random >> 7;
	bench->random ^= bench->random << 17;
	return bench->random * 0x2545f4914f6cdd1dull;
}

struct omnikv_key okv_bench_key(struct okv_bench *bench)
{
	uint64_t words[2] = { okv_bench_random(bench), okv_bench_random(bench) };
	struct omnikv_key key = { .len = sizeof(words) };

	memcpy(key.bytes, words, sizeof(words));
	return key;
}

/* JSON ----------------------------------------------------------------------------------------- */

static int okv_by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Enough digits for any figure, and few enough to read. */
static json_t *okv_figure(double x)
{
	char text[32];

	snprintf(text, sizeof(text), "%.5g", x);
	return json_real(strtod(text, NULL));
}

static json_t *okv_series(const struct okv_bench_row *row, int series, const char *name)
{
	unsigned int n = row->nr[series];
	double v[OKV_BENCH_ROUNDS_MAX], median;
	json_t *object;

	if (!n)
		return json_null();
	memcpy(v, row->samples[series], n * sizeof(v[0]));
	qsort(v, n, sizeof(v[0]), okv_by_value);
	median = n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
	object = json_pack("{s:o, s:o, s:o}", "median", okv_figure(median), "min", okv_figure(v[0]), "max",
			   okv_figure(v[n - 1]));
	if (object && name)
		json_object_set_new(object, "name", json_string(name));
	return object;
}

static json_t *okv_row_json(const struct okv_bench_row *row)
{
	static const char *const targets[] = { NULL, "ratio", "ours" };
	json_t *object = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:i, s:o, s:o, s:o, s:o}",
		"row", row->row, "workload", row->workload, "unit", row->unit, "clock", row->clock,
		"better", row->is_lower_better ? "lower" : "higher", "pages", row->pages, "rounds", (int)row->nr[OURS],
		"ours", okv_series(row, OURS, NULL), "limit", okv_series(row, LIMIT, row->limit),
		"peer", okv_series(row, PEER, row->peer), "ratio", okv_series(row, RATIO, NULL));

	if (object && row->target_of != OKV_TARGET_NONE) {
		json_object_set_new(object, "target", json_real(row->target));
		json_object_set_new(object, "target_of", json_string(targets[row->target_of]));
	}
	return object;
}

/* The value of the first "NAME : VALUE" in /proc/cpuinfo. */
static void okv_cpu_name(char *text, size_t size)
{
	FILE *file = fopen("/proc/cpuinfo", "re");
	char line[256];

	okv_copy_text(text, size, "unknown CPU");
	while (file && fgets(line, sizeof(line), file)) {
		char *colon = strchr(line, ':');

		if (strncmp(line, "model name", 10) || !colon)
			continue;
		line[strcspn(line, "\n")] = '\0';
		okv_copy_text(text, size, colon + 2);
		break;
	}
	if (file)
		fclose(file);
}

static json_t *okv_machine_json(void)
{
	uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	int policy = sched_getscheduler(0) & ~SCHED_RESET_ON_FORK;
	struct utsname uts = { .release = "" };
	double load[1] = { 0 };
	char cpu[160];

	uname(&uts);
	uts.release[strcspn(uts.release, "-")] = '\0';
	if (getloadavg(load, 1) != 1)
		load[0] = 0;
	okv_cpu_name(cpu, sizeof(cpu));
	return json_pack("{s:s, s:i, s:I, s:s, s:o, s:i, s:s}", "cpu", cpu, "cpus", (int)sysconf(_SC_NPROCESSORS_ONLN), "memory_bytes",
			 (json_int_t)bytes, "kernel", uts.release, "load", okv_figure(load[0]), "nice",
			 getpriority(PRIO_PROCESS, 0), "scheduling",
			 policy == SCHED_RR || policy == SCHED_FIFO ? "real-time" : "time-sharing");
}

json_t *okv_bench_json(const struct okv_bench *bench)
{
	json_t *rows = json_array();
	time_t now = time(NULL);
	struct tm tm = { 0 };
	char date[16];
	unsigned int i;

	gmtime_r(&now, &tm);
	strftime(date, sizeof(date), "%Y-%m-%d", &tm);
	for (i = 0; i < bench->nr_rows; i++)
		json_array_append_new(rows, okv_row_json(&bench->rows[i]));
	return json_pack("{s:s, s:s, s:o, s:I, s:I, s:o}", "omnikv", OMNIKV_VERSION, "date", date, "machine",
			 okv_machine_json(), "footprint_bytes", (json_int_t)bench->footprint_bytes, "huge_pages_reserved",
			 (json_int_t)bench->nr_huge_pages, "rows", rows);
}

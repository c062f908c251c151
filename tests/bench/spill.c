// SPDX-License-Identifier: GPL-2.0-only
/*
 * Row M9: blocks to the spill store and back, against fio at several queue depths and against
 * pread of one file a key, interleaved in one run.
 *
 * One JSON object a line on stdout: GB/s (median, least, most), the ratio to the best fio, and CPU
 * microseconds an operation of the thread that does it; reads also without their checksums. Contents are
 * compared outside of the timed part. The footprint is 1 GiB. Arguments: DIR [rounds (5)].
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <jansson.h>

#include "spill/spill.h"

#define FOOTPRINT	(1ull << 30)
#define ROUNDS_MAX	32
#define BATCH		512u

static uint64_t seed = 1;

struct row {
	double gb_s[ROUNDS_MAX];
	double cpu_us[ROUNDS_MAX];
};

static uint64_t random64(void)
{
	uint64_t z = seed += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static void __attribute__((noreturn)) die(const char *what)
{
	fprintf(stderr, "spill bench: %s\n", what);
	exit(1);
}

static double seconds(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static double median(const double *values, int n, double *least, double *most)
{
	double sorted[ROUNDS_MAX];

	memcpy(sorted, values, n * sizeof(*values));
	qsort(sorted, n, sizeof(*sorted), by_value);
	*least = sorted[0];
	*most = sorted[n - 1];
	return n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

static void key_of(struct okv_record *rec, uint64_t id, uint64_t bytes)
{
	memset(rec, 0, sizeof(*rec));
	rec->key.len = 16;
	memcpy(rec->key.bytes, &id, sizeof(id));
	rec->nr_tokens = 16;
	rec->nr_parts = 1;
	rec->parts[0].bytes = bytes;
}

static void put_all(struct omnikv_spill *spill, const uint8_t *mem, uint64_t bytes, uint32_t batch)
{
	static struct okv_store_put puts[BATCH];

	for (uint64_t id = 0; id < FOOTPRINT / bytes; id += batch) {
		for (uint32_t i = 0; i < batch; i++) {
			key_of(&puts[i].rec, id + i, bytes);
			puts[i].bufs[0] = mem + (id + i) * bytes % (512 << 20);
		}
		if (okv_store_put(spill->store, puts, batch))
			die("put");
		for (uint32_t i = 0; i < batch; i++)
			if (puts[i].res)
				die("a put failed");
	}
}

/* As fio's file the store's has been written before: what is timed is writing it again. */
static void forget_all(struct okv_store *store)
{
	store->active = OKV_CATALOG_NONE;
	for (uint32_t i = 0; i < store->nr_segments; i++)
		okv_segment_clear(store, i);
}

/* Every block is written once, in batches; then read once in random order, in batches. */
static void ours(const char *dir, uint8_t *mem, struct omnikv_pool *pool, uint64_t bytes, struct row *wr, struct row *rd,
		 struct row *raw, int round)
{
	struct omnikv_spill_config config = {
		.size = sizeof(config), .capacity_bytes = FOOTPRINT + (FOOTPRINT >> 2), .segment_bytes = 32 << 20, .floor_bytes = 1,
		.pool = pool,
	};
	static struct okv_store_get gets[BATCH];
	uint64_t nr = FOOTPRINT / bytes, *order = malloc(nr * sizeof(*order));
	struct omnikv_spill *spill;
	struct omnikv_error err;
	uint32_t batch = (64u << 20) / bytes < BATCH ? (64u << 20) / bytes : BATCH;
	double wall, cpu;
	char path[256];

	snprintf(path, sizeof(path), "%s/store", dir);
	if (!order || omnikv_spill_open(path, &config, &spill, &err))
		die(err.text);
	put_all(spill, mem, bytes, batch);
	omnikv_spill_sync(spill);
	forget_all(spill->store);
	wall = seconds(CLOCK_MONOTONIC);
	cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
	put_all(spill, mem, bytes, batch);
	wr->gb_s[round] = FOOTPRINT / (seconds(CLOCK_MONOTONIC) - wall) / 1e9;
	wr->cpu_us[round] = (seconds(CLOCK_THREAD_CPUTIME_ID) - cpu) / nr * 1e6;
	omnikv_spill_sync(spill);
	omnikv_spill_close(spill);
	config.queue_depth = 0;
	if (omnikv_spill_open(path, &config, &spill, &err))
		die(err.text);

	for (uint64_t i = 0; i < nr; i++)
		order[i] = i;
	for (uint64_t i = nr; i > 1; i--) {
		uint64_t k = random64() % i, t = order[i - 1];

		order[i - 1] = order[k];
		order[k] = t;
	}
	wall = seconds(CLOCK_MONOTONIC);
	cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
	for (uint64_t at = 0; at < nr; at += batch) {
		for (uint32_t i = 0; i < batch; i++) {
			struct okv_record rec;

			key_of(&rec, order[at + i], bytes);
			if (!okv_store_find(spill->store, rec.ns, &rec.key, &gets[i].rec))
				die("a block is not found");
			gets[i].bufs[0] = mem + (512 << 20) + i * bytes;
		}
		if (okv_store_get(spill->store, gets, batch))
			die("get");
		for (uint32_t i = 0; i < batch; i++)
			if (gets[i].res)
				die("a get failed");
	}
	rd->gb_s[round] = FOOTPRINT / (seconds(CLOCK_MONOTONIC) - wall) / 1e9;
	rd->cpu_us[round] = (seconds(CLOCK_THREAD_CPUTIME_ID) - cpu) / nr * 1e6;
	/* What was read last is what was written. */
	for (uint32_t i = 0; i < batch; i++)
		if (memcmp(gets[i].bufs[0], mem + order[nr - batch + i] * bytes % (512 << 20), bytes))
			die("a wrong byte");
	/* The same blocks in the same order, without looking at their sums. */
	wall = seconds(CLOCK_MONOTONIC);
	cpu = seconds(CLOCK_THREAD_CPUTIME_ID);
	for (uint64_t at = 0; at < nr; at += batch) {
		static struct okv_disk_io ios[BATCH];

		for (uint32_t i = 0; i < batch; i++) {
			struct okv_record rec;
			uint32_t entry;

			key_of(&rec, order[at + i], bytes);
			entry = okv_catalog_find(spill->store, rec.ns, &rec.key);
			okv_catalog_record(spill->store, entry, &rec);
			ios[i] = (struct okv_disk_io){
				.off = okv_segment_off(spill->store, spill->store->catalog.entries[entry].segment) + rec.off,
				.buf = mem + (512 << 20) + i * bytes, .bytes = bytes,
			};
		}
		if (spill->disk->ops->run(spill->disk, ios, batch, UINT64_MAX / 4))
			die("a plain read failed");
	}
	raw->gb_s[round] = FOOTPRINT / (seconds(CLOCK_MONOTONIC) - wall) / 1e9;
	raw->cpu_us[round] = (seconds(CLOCK_THREAD_CPUTIME_ID) - cpu) / nr * 1e6;
	omnikv_spill_close(spill);
	snprintf(path, sizeof(path), "%s/store/omnikv.spill", dir);
	unlink(path);
	snprintf(path, sizeof(path), "%s/store", dir);
	rmdir(path);
	free(order);
}

/* GB/s that fio reads or writes with so many under way; 0 where it does not run. */
static double fio(const char *dir, uint64_t bytes, const char *rw, int depth)
{
	char command[512];
	json_t *root, *job;
	double bw = 0;
	FILE *pipe;

	snprintf(command, sizeof(command), "fio --name=m9 --filename=%s/fio --size=1g --bs=%llu --rw=%s --direct=1 "
		 "--ioengine=io_uring --fixedbufs=1 --registerfiles=1 --iodepth=%d --output-format=json --end_fsync=0 "
		 "--randrepeat=0 2>/dev/null", dir, (unsigned long long)bytes, rw, depth);
	pipe = popen(command, "r");
	if (!pipe)
		return 0;
	root = json_loadf(pipe, JSON_DISABLE_EOF_CHECK, NULL);
	pclose(pipe);
	job = json_array_get(json_object_get(root, "jobs"), 0);
	bw = json_number_value(json_object_get(json_object_get(job, strstr(rw, "read") ? "read" : "write"), "bw_bytes")) / 1e9;
	json_decref(root);
	return bw;
}

/* One file a key, as simple backends do: open, read, close. The first 256 of them, again and again. */
static double files(const char *dir, uint8_t *mem, uint64_t bytes)
{
	uint32_t nr = 256, rounds = FOOTPRINT / 4 / bytes / nr;
	char path[256];
	double wall;

	for (uint32_t i = 0; i < nr; i++) {
		int fd;

		snprintf(path, sizeof(path), "%s/key-%u", dir, i);
		fd = open(path, O_CREAT | O_WRONLY | O_DIRECT, 0600);
		if (fd < 0 || pwrite(fd, mem, bytes, 0) != (ssize_t)bytes)
			die("pwrite");
		close(fd);
	}
	rounds = rounds ? rounds : 1;
	wall = seconds(CLOCK_MONOTONIC);
	for (uint32_t k = 0; k < rounds * nr; k++) {
		int fd;

		snprintf(path, sizeof(path), "%s/key-%llu", dir, (unsigned long long)(random64() % nr));
		fd = open(path, O_RDONLY | O_DIRECT);
		if (fd < 0 || pread(fd, mem + (512 << 20), bytes, 0) != (ssize_t)bytes)
			die("pread");
		close(fd);
	}
	wall = seconds(CLOCK_MONOTONIC) - wall;
	for (uint32_t i = 0; i < nr; i++) {
		snprintf(path, sizeof(path), "%s/key-%u", dir, i);
		unlink(path);
	}
	return (double)rounds * nr * bytes / wall / 1e9;
}

static void print(const char *what, uint64_t bytes, const struct row *row, const double *best, int rounds)
{
	double least, most, mid = median(row->gb_s, rounds, &least, &most), ratios[ROUNDS_MAX], a, b, cpu;

	for (int i = 0; i < rounds; i++)
		ratios[i] = best && best[i] > 0 ? row->gb_s[i] / best[i] : 0;
	printf("{\"row\": \"M9\", \"what\": \"%s\", \"bytes\": %llu, \"gb_s\": %.3f, \"gb_s_least\": %.3f, \"gb_s_most\": %.3f",
	       what, (unsigned long long)bytes, mid, least, most);
	if (best) {
		mid = median(ratios, rounds, &least, &most);
		printf(", \"over_best_fio\": %.3f, \"over_best_fio_least\": %.3f, \"over_best_fio_most\": %.3f", mid, least, most);
	}
	if (row->cpu_us[0] > 0) {
		cpu = median(row->cpu_us, rounds, &a, &b);
		printf(", \"cpu_us\": %.2f, \"cpu_us_least\": %.2f, \"cpu_us_most\": %.2f", cpu, a, b);
	}
	printf("}\n");
	fflush(stdout);
}

int main(int argc, char **argv)
{
	static const uint64_t sizes[] = { 64 << 10, 256 << 10, 1 << 20 };
	static const int depths[] = { 1, 4, 16, 64 };
	int rounds = argc > 2 ? atoi(argv[2]) : 5;
	struct omnikv_pool *pool;
	char path[256];
	uint8_t *mem;

	if (argc < 2 || rounds < 1 || rounds > ROUNDS_MAX) {
		fprintf(stderr, "usage: spill DIR [ROUNDS]\n");
		return 2;
	}
	if (omnikv_pool_open("640M", NULL, &pool, NULL))
		die("no pool");
	mem = omnikv_pool_base(pool);
	for (uint64_t i = 0; i < 640 << 20; i += 8) {
		uint64_t word = random64();

		memcpy(mem + i, &word, 8);
	}
	for (unsigned int s = 0; s < 3; s++) {
		static struct row wr, rd, raw, fio_rd, fio_wr, file;

		memset(&fio_rd, 0, sizeof(fio_rd));
		memset(&fio_wr, 0, sizeof(fio_wr));
		for (int round = 0; round < rounds; round++) {
			for (int d = 0; d < 4; d++) {
				double bw = fio(argv[1], sizes[s], "write", depths[d]);

				if (bw > fio_wr.gb_s[round])
					fio_wr.gb_s[round] = bw;
				if (d == 1)
					ours(argv[1], mem, pool, sizes[s], &wr, &rd, &raw, round);
				bw = fio(argv[1], sizes[s], "randread", depths[d]);
				if (bw > fio_rd.gb_s[round])
					fio_rd.gb_s[round] = bw;
			}
			file.gb_s[round] = files(argv[1], mem, sizes[s]);
		}
		print("read", sizes[s], &rd, fio_rd.gb_s, rounds);
		print("read, without checksums", sizes[s], &raw, fio_rd.gb_s, rounds);
		print("read, best fio of 1 to 64 under way", sizes[s], &fio_rd, NULL, rounds);
		print("read, one file a key", sizes[s], &file, NULL, rounds);
		print("write, with checksums and a sync for each segment", sizes[s], &wr, fio_wr.gb_s, rounds);
		print("write, best fio of 1 to 64 under way", sizes[s], &fio_wr, NULL, rounds);
	}
	snprintf(path, sizeof(path), "%s/fio", argv[1]);
	unlink(path);
	omnikv_pool_close(pool);
	return 0;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Row M9: blocks to a spill store and back, beside fio with 1, 4, 16 and 64 requests under way and
 * beside pread of one file a key.
 *
 * Each round writes every block once, in batches, and reads it once, in random order; fio does the
 * same to a file of its own, a sync for each segment included. What is read is compared outside of
 * what is timed. The store's file and fio's have no name any more once they are open, so that
 * nothing large is left behind however this ends. One thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <omnikv.h>

#include "bench.h"
#include "cmd.h"
#include "spill/spill.h"

#define BATCH_MAX	512u
#define BATCH_BYTES	(64ull << 20)
#define DEPTHS		"1 4 16 64"
#define NR_DEPTHS	4u
#define FILES_MAX	256u

struct world {
	struct okv_bench	*bench;
	struct omnikv_pool	*pool;
	uint8_t			*mem;		/* footprint / 2 of blocks to write, then what is read */
	uint8_t			*read;
	uint64_t		segment_bytes;
	char			dir[300];	/* of the peer's files */
	int			store_fd;
	int			fio_fd;
	char			store_path[32];
};

/* What one round found. Nothing where it was not measured. */
struct figures {
	double read_gb_s, read_us, raw_us, write_gb_s;
	double fio_read_gb_s, fio_read_us, fio_write_gb_s;
	double files_gb_s;
};

uint64_t okv_bench_spill_need(uint64_t footprint_bytes)
{
	return footprint_bytes / 2 + 2 * BATCH_BYTES;
}

static uint64_t segment_bytes_of(uint64_t footprint_bytes)
{
	uint64_t bytes = footprint_bytes / 32;

	return bytes < 8u << 20 ? 8u << 20 : bytes > 32u << 20 ? 32u << 20 : bytes;
}

static uint64_t capacity_of(uint64_t footprint_bytes)
{
	return footprint_bytes + footprint_bytes / 2 + 4 * segment_bytes_of(footprint_bytes);
}

uint64_t okv_bench_spill_disk_need(uint64_t footprint_bytes)
{
	return capacity_of(footprint_bytes) + footprint_bytes + BATCH_BYTES;
}

/* A file without a name in the directory of the run. */
static int open_file(const struct okv_bench *bench)
{
	char path[300];
	int fd;

	snprintf(path, sizeof(path), "%.250s/omnikv-bench-XXXXXX", bench->disk);
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		okv_die("spill: %s: %s; give --disk DIR", path, strerror(errno));
	unlink(path);
	return fd;
}

static void open_world(struct world *w, struct okv_bench *bench)
{
	char size[32];

	*w = (struct world){ .bench = bench, .segment_bytes = segment_bytes_of(bench->footprint_bytes) };
	snprintf(size, sizeof(size), "%lluM", (unsigned long long)(bench->footprint_bytes / 2 + BATCH_BYTES) >> 20);
	okv_bench_must(!omnikv_pool_open(size, NULL, &w->pool, NULL), "no pool");
	w->mem = omnikv_pool_base(w->pool);
	w->read = w->mem + bench->footprint_bytes / 2;
	for (uint64_t i = 0; i < bench->footprint_bytes / 2; i += sizeof(uint64_t)) {
		uint64_t word = okv_bench_random(bench);

		memcpy(w->mem + i, &word, sizeof(word));
	}
	snprintf(w->dir, sizeof(w->dir), "%.250s/omnikv-bench-XXXXXX", bench->disk);
	if (!mkdtemp(w->dir))
		okv_die("spill: %s: %s; give --disk DIR", w->dir, strerror(errno));
	w->store_fd = open_file(bench);
	w->fio_fd = open_file(bench);
	/* One that had to get longer fio would make anew, by its name. */
	okv_bench_must(!posix_fallocate(w->fio_fd, 0, bench->footprint_bytes), "no room for a file");
	snprintf(w->store_path, sizeof(w->store_path), "/proc/self/fd/%d", w->store_fd);
}

static void close_world(struct world *w)
{
	close(w->store_fd);
	close(w->fio_fd);
	rmdir(w->dir);
	omnikv_pool_close(w->pool);
}

/* ---- ours ----------------------------------------------------------------------------------- */

static struct omnikv_spill *open_store(const struct world *w)
{
	struct omnikv_spill_config config = {
		.size = sizeof(config), .capacity_bytes = capacity_of(w->bench->footprint_bytes),
		.segment_bytes = w->segment_bytes, .floor_bytes = 1, .pool = w->pool,
	};
	struct omnikv_spill *spill;
	struct omnikv_error err;

	if (omnikv_spill_open(w->store_path, &config, &spill, &err))
		okv_die("spill: %s", err.text);
	return spill;
}

static void describe(struct okv_record *rec, uint64_t id, uint64_t bytes)
{
	memset(rec, 0, offsetof(struct okv_record, parts));
	rec->key.len = sizeof(id) * 2;
	memcpy(rec->key.bytes, &id, sizeof(id));
	rec->nr_tokens = 16;
	rec->nr_parts = 1;
	rec->parts[0] = (struct okv_record_part){ .bytes = bytes };
}

static const uint8_t *contents(const struct world *w, uint64_t id, uint64_t bytes)
{
	return w->mem + id * bytes % (w->bench->footprint_bytes / 2);
}

static void put_all(struct world *w, struct omnikv_spill *spill, uint64_t bytes, uint32_t batch)
{
	static struct okv_store_put puts[BATCH_MAX];

	for (uint64_t id = 0; id < w->bench->footprint_bytes / bytes; id += batch) {
		for (uint32_t i = 0; i < batch; i++) {
			describe(&puts[i].rec, id + i, bytes);
			puts[i].bufs[0] = contents(w, id + i, bytes);
		}
		okv_bench_must(!okv_store_put(spill->store, puts, batch), "a store does not answer");
		for (uint32_t i = 0; i < batch; i++)
			okv_bench_must(!puts[i].res, "a block cannot be stored");
	}
}

/* As fio's file the store's has been written before: what is timed is writing it again. */
static void forget_all(struct okv_store *store)
{
	store->active = OKV_CATALOG_NONE;
	for (uint32_t i = 0; i < store->nr_segments; i++)
		okv_segment_clear(store, i);
}

static void get_all(struct world *w, struct omnikv_spill *spill, const uint64_t *order, uint64_t bytes, uint32_t batch)
{
	static struct okv_store_get gets[BATCH_MAX];

	for (uint64_t at = 0; at < w->bench->footprint_bytes / bytes; at += batch) {
		for (uint32_t i = 0; i < batch; i++) {
			struct okv_record rec;

			describe(&rec, order[at + i], bytes);
			okv_bench_must(okv_store_find(spill->store, rec.ns, &rec.key, &gets[i].rec), "a block is not found");
			gets[i].bufs[0] = w->read + i * bytes;
		}
		okv_bench_must(!okv_store_get(spill->store, gets, batch), "a store does not answer");
		for (uint32_t i = 0; i < batch; i++)
			okv_bench_must(!gets[i].res, "a block cannot be read");
	}
}

/* The same without a look at their sums. */
static void get_all_raw(struct world *w, struct omnikv_spill *spill, const uint64_t *order, uint64_t bytes, uint32_t batch)
{
	static struct okv_disk_io ios[BATCH_MAX];
	struct okv_store *store = spill->store;

	for (uint64_t at = 0; at < w->bench->footprint_bytes / bytes; at += batch) {
		for (uint32_t i = 0; i < batch; i++) {
			struct okv_record rec;
			uint32_t entry;

			describe(&rec, order[at + i], bytes);
			entry = okv_catalog_find(store, rec.ns, &rec.key);
			okv_catalog_record(store, entry, &rec);
			ios[i] = (struct okv_disk_io){
				.off = okv_segment_off(store, store->catalog.entries[entry].segment) + rec.off,
				.buf = w->read + i * bytes, .bytes = bytes,
			};
		}
		okv_bench_must(!spill->disk->ops->run(spill->disk, ios, batch, UINT64_MAX / 4), "a disk does not answer");
	}
}

static void check_last(const struct world *w, const uint64_t *order, uint64_t bytes, uint32_t batch)
{
	uint64_t nr = w->bench->footprint_bytes / bytes;

	for (uint32_t i = 0; i < batch; i++)
		okv_bench_must(!memcmp(w->read + i * bytes, contents(w, order[nr - batch + i], bytes), bytes), "a wrong byte");
}

static void ours(struct world *w, uint64_t bytes, struct figures *f)
{
	uint32_t batch = BATCH_BYTES / bytes < BATCH_MAX ? BATCH_BYTES / bytes : BATCH_MAX;
	uint64_t nr = w->bench->footprint_bytes / bytes, *order = malloc(nr * sizeof(*order));
	struct omnikv_spill *spill;
	double wall, cpu;

	okv_bench_must(order && !ftruncate(w->store_fd, 0), "no memory for an order");
	batch = batch < nr ? batch : nr;
	spill = open_store(w);
	put_all(w, spill, bytes, batch);
	omnikv_spill_sync(spill);
	forget_all(spill->store);
	wall = okv_bench_wall_ns();
	put_all(w, spill, bytes, batch);
	f->write_gb_s = w->bench->footprint_bytes / (okv_bench_wall_ns() - wall);
	/* Opened again: the depth is measured on what is there. */
	omnikv_spill_close(spill);
	spill = open_store(w);
	for (uint64_t i = 0; i < nr; i++) {
		uint64_t k = okv_bench_random(w->bench) % (i + 1);

		order[i] = order[k];
		order[k] = i;
	}
	wall = okv_bench_wall_ns();
	cpu = okv_bench_cpu_ns();
	get_all(w, spill, order, bytes, batch);
	f->read_us = (okv_bench_cpu_ns() - cpu) / nr / 1e3;
	f->read_gb_s = w->bench->footprint_bytes / (okv_bench_wall_ns() - wall);
	check_last(w, order, bytes, batch);
	memset(w->read, 0, batch * bytes);
	cpu = okv_bench_cpu_ns();
	get_all_raw(w, spill, order, bytes, batch);
	f->raw_us = (okv_bench_cpu_ns() - cpu) / nr / 1e3;
	check_last(w, order, bytes, batch);
	omnikv_spill_close(spill);
	free(order);
}

/* ---- others --------------------------------------------------------------------------------- */

/* GB/s of one of fio's jobs, and with @us CPU of each of its requests. NAN where it failed. */
static double fio_job(const json_t *job, const char *what, double *us)
{
	const json_t *io = json_object_get(job, what);
	double ios = json_number_value(json_object_get(io, "total_ios")), percent;

	if (!io || json_integer_value(json_object_get(job, "error")) || ios <= 0)
		return (double)NAN;
	percent = json_number_value(json_object_get(job, "usr_cpu")) + json_number_value(json_object_get(job, "sys_cpu"));
	*us = percent / 100 * json_number_value(json_object_get(job, "job_runtime")) * 1e3 / ios;
	return json_number_value(json_object_get(io, "bw_bytes")) / 1e9;
}

/* Best of all depths, one after another, to write and to read. All NAN where there is no fio. */
static void fio(const struct world *w, uint64_t bytes, struct figures *f)
{
	json_t *root, *jobs;
	char command[1024];
	FILE *pipe;

	f->fio_read_gb_s = f->fio_read_us = f->fio_write_gb_s = (double)NAN;
	snprintf(command, sizeof(command), "set -- --name=global --filename=/proc/%d/fd/%d --size=%llu --bs=%llu --direct=1 --thread "
		 "--ioengine=io_uring --fixedbufs=1 --registerfiles=1 --randrepeat=0 --stonewall; "
		 "for rw in write randread; do for d in " DEPTHS "; do "
		 "set -- \"$@\" --name=$rw$d --rw=$rw --iodepth=$d --fsync=$([ $rw = write ] && echo %llu || echo 0); "
		 "done; done; fio --output-format=json \"$@\" 2>/dev/null", getpid(), w->fio_fd,
		 (unsigned long long)w->bench->footprint_bytes, (unsigned long long)bytes,
		 (unsigned long long)(w->segment_bytes / bytes));
	pipe = popen(command, "r");
	if (!pipe)
		return;
	root = json_loadf(pipe, JSON_DISABLE_EOF_CHECK, NULL);
	pclose(pipe);
	jobs = json_object_get(root, "jobs");
	for (size_t i = 0; i < 2 * NR_DEPTHS && json_array_size(jobs) == 2 * NR_DEPTHS; i++) {
		bool is_read = i >= NR_DEPTHS;
		double us = 0, gb_s = fio_job(json_array_get(jobs, i), is_read ? "read" : "write", &us);

		/* fmax and fmin pass over what is no number. */
		if (!is_read)
			f->fio_write_gb_s = fmax(f->fio_write_gb_s, gb_s);
		if (is_read && !isnan(gb_s)) {
			f->fio_read_gb_s = fmax(f->fio_read_gb_s, gb_s);
			f->fio_read_us = fmin(f->fio_read_us, us);
		}
	}
	json_decref(root);
}

/* One file a key, as simple backends do: open, read, close; of some files again and again. */
static void files(const struct world *w, uint64_t bytes, struct figures *f)
{
	uint32_t nr = BATCH_BYTES / bytes < FILES_MAX ? BATCH_BYTES / bytes : FILES_MAX;
	uint64_t nr_reads = w->bench->footprint_bytes / 8 / bytes;
	int direct = O_DIRECT;
	char path[340];
	double wall;

	nr_reads = nr_reads ? nr_reads : 1;
	for (uint32_t i = 0; i < nr; i++) {
		int fd;

		snprintf(path, sizeof(path), "%s/%u", w->dir, i);
		fd = open(path, O_CREAT | O_WRONLY | direct, 0600);
		if (fd < 0 && direct) {
			direct = 0;
			fd = open(path, O_CREAT | O_WRONLY, 0600);
		}
		okv_bench_must(fd >= 0 && pwrite(fd, w->mem, bytes, 0) == (ssize_t)bytes, "a file cannot be written");
		close(fd);
	}
	wall = okv_bench_wall_ns();
	for (uint64_t k = 0; k < nr_reads; k++) {
		int fd;

		snprintf(path, sizeof(path), "%s/%u", w->dir, (unsigned int)(okv_bench_random(w->bench) % nr));
		fd = open(path, O_RDONLY | direct);
		okv_bench_must(fd >= 0 && pread(fd, w->read, bytes, 0) == (ssize_t)bytes, "a file cannot be read");
		close(fd);
	}
	f->files_gb_s = nr_reads * bytes / (okv_bench_wall_ns() - wall);
	for (uint32_t i = 0; i < nr; i++) {
		snprintf(path, sizeof(path), "%s/%u", w->dir, i);
		unlink(path);
	}
}

/* ---- rows ----------------------------------------------------------------------------------- */

enum { READ, RAW, SUMS, WRITE, NR_ROWS };

static void make_rows(struct okv_bench *bench, uint64_t bytes, bool has_fio, struct okv_bench_row *rows[NR_ROWS])
{
	unsigned int kib = bytes >> 10;
	char text[80];

	snprintf(text, sizeof(text), "read %u KiB from NVMe", kib);
	rows[READ] = okv_bench_row(bench, &(struct okv_bench_desc) {
		.row = "M9", .workload = text, .unit = "GB/s", .clock = "wall",
		.limit = has_fio ? "fio, best of " DEPTHS " under way" : NULL, .peer = "pread of one file a key",
		.target_of = has_fio ? OKV_TARGET_RATIO : OKV_TARGET_NONE, .target = bytes >= 256 << 10 ? 0.95 : 0.9,
	});
	snprintf(text, sizeof(text), "CPU of reading %u KiB, without checksum", kib);
	rows[RAW] = okv_bench_row(bench, &(struct okv_bench_desc) {
		.row = "M9", .workload = text, .unit = "us", .clock = "thread CPU", .is_lower_better = true,
		.peer = has_fio ? "fio, least of " DEPTHS " under way" : NULL,
		.target_of = bytes == 64 << 10 ? OKV_TARGET_OURS : OKV_TARGET_NONE, .target = 3.1,
	});
	snprintf(text, sizeof(text), "CPU of its checksum, %u KiB", kib);
	rows[SUMS] = okv_bench_row(bench, &(struct okv_bench_desc) {
		.row = "M9", .workload = text, .unit = "us", .clock = "thread CPU", .is_lower_better = true,
	});
	snprintf(text, sizeof(text), "write %u KiB to NVMe", kib);
	rows[WRITE] = okv_bench_row(bench, &(struct okv_bench_desc) {
		.row = "M9", .workload = text, .unit = "GB/s", .clock = "wall",
		.limit = has_fio ? "fio, best of " DEPTHS " under way, a sync a segment" : NULL,
		.target_of = has_fio ? OKV_TARGET_RATIO : OKV_TARGET_NONE, .target = bytes >= 256 << 10 ? 0.95 : 0.9,
	});
}

void okv_bench_spill(struct okv_bench *bench)
{
	static const uint64_t sizes[] = { 64 << 10, 256 << 10, 1 << 20 };
	struct world w;

	open_world(&w, bench);
	for (unsigned int s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		struct okv_bench_row *rows[NR_ROWS];

		/* Round 0 warms up, and tells whether there is fio. */
		for (unsigned int round = 0; round <= bench->nr_rounds; round++) {
			struct figures f;

			fio(&w, sizes[s], &f);
			ours(&w, sizes[s], &f);
			files(&w, sizes[s], &f);
			if (!round) {
				make_rows(bench, sizes[s], !isnan(f.fio_read_gb_s) && !isnan(f.fio_write_gb_s), rows);
				continue;
			}
			okv_bench_sample(rows[READ], f.read_gb_s, f.fio_read_gb_s, f.files_gb_s);
			okv_bench_sample(rows[RAW], f.raw_us, (double)NAN, f.fio_read_us);
			okv_bench_sample(rows[SUMS], f.read_us - f.raw_us, (double)NAN, (double)NAN);
			okv_bench_sample(rows[WRITE], f.write_gb_s, f.fio_write_gb_s, (double)NAN);
		}
	}
	okv_bench_note_pages(bench);
	close_world(&w);
}

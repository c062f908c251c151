// SPDX-License-Identifier: GPL-2.0-only
/*
 * How long a full spill store takes to open: after a clean end, and after its owner was killed
 * (the last segment has no table then); and a new one on a disk of 64 times the size, most of which was never written.
 * One JSON object a line on stdout.
 * Arguments: DIR, GiB (10), KiB a block (64). The store is removed afterwards.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spill/spill.h"

#define BATCH	64u

static void __attribute__((noreturn)) die(const char *what)
{
	fprintf(stderr, "spill_open bench: %s\n", what);
	exit(1);
}

static void fill(const char *path, const struct omnikv_spill_config *config, uint64_t bytes, uint64_t from, uint64_t to)
{
	static struct okv_store_put puts[BATCH];
	uint8_t *mem = aligned_alloc(4096, bytes);
	struct omnikv_spill *spill;
	struct omnikv_error err;

	if (!mem || omnikv_spill_open(path, config, &spill, &err))
		die(mem ? err.text : "no memory");
	memset(mem, 7, bytes);
	for (uint64_t id = from; id < to; id += BATCH) {
		memset(puts, 0, sizeof(puts));
		for (uint32_t i = 0; i < BATCH; i++) {
			uint64_t key = id + i;

			puts[i].rec.key.len = 32;
			memcpy(puts[i].rec.key.bytes, &key, sizeof(key));
			puts[i].rec.nr_parts = 1;
			puts[i].rec.parts[0].bytes = bytes;
			puts[i].bufs[0] = mem;
		}
		if (okv_store_put(spill->store, puts, BATCH) || puts[0].res)
			die("put");
	}
	if (!from)
		omnikv_spill_close(spill);
	else
		_exit(0);
}

static void measure(const char *path, const struct omnikv_spill_config *config, const char *after)
{
	struct omnikv_spill_stats stats = { .size = sizeof(stats) };
	struct omnikv_spill *spill;
	struct omnikv_error err;

	if (omnikv_spill_open(path, config, &spill, &err) || omnikv_spill_stats(spill, &stats))
		die(err.text);
	printf("{\"row\": \"spill_open\", \"after\": \"%s\", \"bytes\": %llu, \"blocks\": %llu, \"segments_scanned\": %llu, "
	       "\"open_s\": %.3f}\n", after, (unsigned long long)stats.live_bytes, (unsigned long long)stats.nr_records,
	       (unsigned long long)stats.recovered_scanned, stats.open_s);
	fflush(stdout);
	omnikv_spill_close(spill);
}

int main(int argc, char **argv)
{
	uint64_t bytes = (argc > 3 ? atoi(argv[3]) : 64) * UINT64_C(1024);
	uint64_t all = (argc > 2 ? atoi(argv[2]) : 10) * (UINT64_C(1) << 30), nr = all / bytes / BATCH * BATCH;
	struct omnikv_spill_config config = {
		.size = sizeof(config), .capacity_bytes = all + all / 16 + (UINT64_C(1) << 28), .floor_bytes = 1,
	};
	char path[256], file[300];
	pid_t pid;

	if (argc < 2 || !bytes || !nr) {
		fprintf(stderr, "usage: spill_open DIR [GIB [KIB]]\n");
		return 2;
	}
	snprintf(path, sizeof(path), "%s/open", argv[1]);
	fill(path, &config, bytes, 0, nr);
	for (int round = 0; round < 3; round++)
		measure(path, &config, "clean end");
	pid = fork();
	if (!pid)
		fill(path, &config, bytes, nr, nr + 8 * BATCH);
	waitpid(pid, NULL, 0);
	measure(path, &config, "killed owner");
	snprintf(file, sizeof(file), "%s/omnikv.spill", path);
	unlink(file);
	/* As long as a device is from the start. */
	config.capacity_bytes = 64 * all;
	config.segment_bytes = 1 << 20;
	if (creat(file, 0600) < 0 || truncate(file, (off_t)config.capacity_bytes))
		die("a sparse file");
	fill(path, &config, bytes, 0, BATCH);
	for (int round = 0; round < 3; round++)
		measure(path, &config, "first use of a large disk");
	unlink(file);
	rmdir(path);
	return 0;
}

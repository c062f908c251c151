// SPDX-License-Identifier: GPL-2.0-only
/*
 * Row M8: a manager, and a daemon, over a pool that an earlier one has left full of blocks.
 *
 * The pool is a file in memory. Blocks are of 4 KiB, so that there are many; what a start costs depends on their number
 * and not on their size. A start reads the catalog; that is the limit. That no KV is copied is seen from where
 * the blocks lie before and after. All are looked up after each start, and some compared, outside of what is timed.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <omnikv.h>

#include "bench.h"
#include "bench_kv.h"
#include "cmd.h"
#include "own_daemon.h"

#define BLOCK_BYTES	4096u
#define PROMPT_BLOCKS	256u
#define NONE		((double)NAN)

struct world {
	struct okv_own_daemon	daemon;
	struct omnikv_plan	plan;
	uint64_t		nr_blocks;
	struct omnikv_extent	*before;	/* [nr_blocks] by their place */
	struct omnikv_extent	*now;
	unsigned char		*own;		/* destination of the peer's copy */
	struct omnikv_pool	*pool;
	struct omnikv_client	*client;
	struct omnikv_manager	*manager;
};

/** What a start took, ns. */
struct took {
	double	cpu_ns;
	double	wall_ns;
};

uint64_t okv_bench_restart_need(uint64_t footprint_bytes)
{
	return footprint_bytes + footprint_bytes / 4 + (256u << 20);
}

static void fail(struct world *w, const char *what, const char *why)
{
	okv_own_daemon_stop(&w->daemon, SIGKILL);
	okv_own_daemon_fini(&w->daemon);
	okv_die("%s: %s", what, why);
}

static void must(struct world *w, bool is_right, const char *what)
{
	if (!is_right)
		fail(w, "a pool that was left", what);
}

static struct took open_pool(struct world *w)
{
	struct omnikv_error err = { "" };
	struct took took;
	int ret = omnikv_pool_open(w->daemon.pool, NULL, &w->pool, &err);

	if (!ret)
		ret = omnikv_client_open(w->pool, OMNIKV_CLIENT_F_MANAGER, &w->client);
	took.cpu_ns = okv_bench_cpu_ns();
	took.wall_ns = okv_bench_wall_ns();
	if (!ret)
		ret = omnikv_manager_create(w->client, NULL, &w->manager, &err);
	took.cpu_ns = okv_bench_cpu_ns() - took.cpu_ns;
	took.wall_ns = okv_bench_wall_ns() - took.wall_ns;
	if (ret)
		fail(w, w->daemon.pool, err.text[0] ? err.text : strerror(-ret));
	return took;
}

static void close_pool(struct world *w)
{
	omnikv_manager_destroy(w->manager);
	omnikv_client_close(w->client);
	omnikv_pool_close(w->pool);
}

/* Where the blocks lie. */
static void list_blocks(struct world *w, struct omnikv_extent *extents)
{
	uint64_t from = 0;

	must(w, omnikv_extent_list(w->client, 1u << OMNIKV_EXTENT_SEALED, &from, extents, (uint32_t)w->nr_blocks) == (int64_t)w->nr_blocks,
	     "blocks are missing");
}

static double moved_bytes(struct world *w)
{
	uint64_t nr = 0;

	list_blocks(w, w->now);
	for (uint64_t i = 0; i < w->nr_blocks; i++)
		nr += w->now[i].granule != w->before[i].granule || w->now[i].generation != w->before[i].generation;
	return (double)(nr * BLOCK_BYTES);
}

/* Every block hits; the first one of each prompt has its bytes. */
static void check(struct world *w, struct omnikv_manager *manager)
{
	struct omnikv_pool *pool = omnikv_client_pool(omnikv_manager_client(manager));
	struct omnikv_space *space = okv_bench_kv_open(manager, &w->plan);
	struct omnikv_key keys[PROMPT_BLOCKS];
	struct omnikv_piece piece;
	struct omnikv_seq *seq;

	for (uint64_t first = 0; first < w->nr_blocks; first += PROMPT_BLOCKS) {
		for (uint32_t i = 0; i < PROMPT_BLOCKS; i++)
			keys[i] = okv_bench_kv_key(first + i);
		must(w, omnikv_lookup(space, keys, PROMPT_BLOCKS) == PROMPT_BLOCKS, "blocks do not hit");
		must(w, !omnikv_seq_open(space, keys, 1, NULL, &seq), "no sequence");
		must(w, omnikv_seq_pieces(seq, 0, 0, 0, 0, OKV_BENCH_KV_TOKENS, 0, &piece, 1) == 1 &&
			okv_bench_kv_is_right((unsigned char *)omnikv_pool_addr(pool, &piece.extent) + piece.extent_off, first, BLOCK_BYTES),
		     "a block has wrong bytes");
		omnikv_seq_close(seq);
	}
	omnikv_space_close(space);
}

/* ns of CPU time to read what the catalog and its index lie in, once. */
static double read_catalog(struct world *w)
{
	struct omnikv_extent extents[64];
	uint64_t from = 0, sum = 0;
	double start = okv_bench_cpu_ns();
	int64_t nr;

	while ((nr = omnikv_extent_list(w->client, 1u << OMNIKV_EXTENT_META, &from, extents, 64)) > 0) {
		for (int64_t i = 0; i < nr; i++) {
			const uint64_t *words = omnikv_pool_addr(w->pool, &extents[i]);

			for (uint64_t k = 0; k < (uint64_t)extents[i].nr_granules * omnikv_pool_granule_bytes(w->pool) / sizeof(*words); k++)
				sum += words[k];
		}
	}
	start = okv_bench_cpu_ns() - start;
	__asm__ volatile("" : : "r"(sum));
	return start;
}

/* What bringing the KV itself would take. */
static double copy_blocks(struct world *w)
{
	double start = okv_bench_cpu_ns();

	for (uint64_t i = 0; i < w->nr_blocks; i++)
		memcpy(w->own + i % PROMPT_BLOCKS * BLOCK_BYTES, omnikv_pool_addr(w->pool, &w->before[i]), BLOCK_BYTES);
	return okv_bench_cpu_ns() - start;
}

/* A daemon over the pool, until it answers; killed when all was looked up. */
static struct took start_daemon(struct world *w)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };
	struct took took = { 0, okv_bench_wall_ns() };
	struct omnikv_error err = { "" };
	struct omnikv_manager *manager = NULL;
	struct timespec ts;
	clockid_t clock;

	if (okv_own_daemon_start(&w->daemon, &err) || omnikv_manager_attach(w->daemon.socket, NULL, &manager, &err))
		fail(w, "a daemon over the pool", err.text);
	took.wall_ns = okv_bench_wall_ns() - took.wall_ns;
	must(w, !clock_getcpuclockid(w->daemon.pid, &clock) && !clock_gettime(clock, &ts), "its daemon's time is not known");
	took.cpu_ns = (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
	must(w, !omnikv_manager_shared_stats(manager, &stats) && stats.blocks_recovered == w->nr_blocks && !stats.blocks_dropped,
	     "the daemon has not taken over all blocks");
	check(w, manager);
	omnikv_manager_destroy(manager);
	okv_own_daemon_stop(&w->daemon, SIGKILL);
	return took;
}

static void open_world(struct okv_bench *bench, struct world *w)
{
	struct omnikv_space *space;

	memset(w, 0, sizeof(*w));
	w->nr_blocks = bench->footprint_bytes / BLOCK_BYTES / PROMPT_BLOCKS * PROMPT_BLOCKS;
	w->before = okv_bench_alloc(bench, w->nr_blocks * sizeof(*w->before));
	w->now = okv_bench_alloc(bench, w->nr_blocks * sizeof(*w->now));
	w->own = okv_bench_alloc(bench, PROMPT_BLOCKS * BLOCK_BYTES);
	okv_bench_kv_plan(&w->plan, BLOCK_BYTES);
	if (okv_own_daemon_init(&w->daemon, "bench"))
		okv_die("no directory for a pool: %s", strerror(errno));
	snprintf(w->daemon.pool, sizeof(w->daemon.pool), "embedded:%llu:%s/pool",
		 (unsigned long long)(bench->footprint_bytes + bench->footprint_bytes / 8 + (64u << 20)) >> 21 << 21, w->daemon.dir);
	w->daemon.granule_bytes = BLOCK_BYTES;
	w->daemon.reserve_bytes = 8u << 20;
	open_pool(w);
	space = okv_bench_kv_open(w->manager, &w->plan);
	for (uint64_t first = 0; first < w->nr_blocks; first += PROMPT_BLOCKS)
		okv_bench_kv_store(space, first, PROMPT_BLOCKS);
	omnikv_space_close(space);
	list_blocks(w, w->before);
	close_pool(w);
}

void okv_bench_restart(struct okv_bench *bench)
{
	struct okv_bench_row *cpu, *wall, *daemon_cpu, *daemon_wall, *moved;
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };
	static struct world w;
	double a_million;
	char text[80];

	open_world(bench, &w);
	a_million = 1e6 / (double)w.nr_blocks / 1e6;	/* ns of all blocks to ms of a million */
	snprintf(text, sizeof(text), "manager over %llu blocks until it serves them, a million", (unsigned long long)w.nr_blocks);
	cpu = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M8", .unit = "ms", .clock = "thread CPU", .workload = text,
		.limit = "reading the catalog once", .peer = "copying the blocks, 4 KiB each", .is_lower_better = true });
	wall = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M8", .unit = "ms", .clock = "wall", .is_lower_better = true,
		.workload = "of it: on the wall" });
	daemon_cpu = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M8", .unit = "ms", .clock = "process CPU",
		.workload = "omnikvd after kill -9, from its start until it serves, a million", .is_lower_better = true });
	daemon_wall = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M8", .unit = "ms", .clock = "wall", .is_lower_better = true,
		.workload = "of it: on the wall, until an engine is attached" });
	moved = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M8", .unit = "bytes", .clock = "wall", .is_lower_better = true,
		.workload = "KV that starts have copied", .target_of = OKV_TARGET_OURS, .target = 0 });
	/* Round 0 warms up. */
	for (unsigned int round = 0; round <= bench->nr_rounds; round++) {
		struct took own = open_pool(&w), daemon;
		double limit, peer, bytes;

		must(&w, !omnikv_manager_stats(w.manager, &stats) && stats.blocks_recovered == w.nr_blocks && !stats.blocks_dropped,
		     "the manager has not taken over all blocks");
		limit = read_catalog(&w);
		peer = copy_blocks(&w);
		bytes = moved_bytes(&w);
		check(&w, w.manager);
		close_pool(&w);
		daemon = start_daemon(&w);
		if (!round)
			continue;
		okv_bench_sample(cpu, own.cpu_ns * a_million, limit * a_million, peer * a_million);
		okv_bench_sample(wall, own.wall_ns * a_million, NONE, NONE);
		okv_bench_sample(daemon_cpu, daemon.cpu_ns * a_million, NONE, NONE);
		okv_bench_sample(daemon_wall, daemon.wall_ns * a_million, NONE, NONE);
		okv_bench_sample(moved, bytes, NONE, NONE);
	}
	okv_bench_note_pages(bench);
	okv_own_daemon_fini(&w.daemon);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Row M3, readers: two processes look prompts up in an index that a third one changes by a million blocks a second.
 *
 * The index lies in shared memory as the manager's does in META. The prompts are pinned, so each lookup
 * must hit 30,000 of 32,768 tokens; every one is checked. Lookups are timed in turn by the thread's CPU time, which
 * other processes on the same core do not count in, and by the clock on the wall.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "crc32c.h"
#include "manager/catalog_shared.h"
#include "manager/index.h"
#include "manager/index_shared.h"
#include "manager/reader.h"

#define T		16u
#define PROMPT_BLOCKS	2048u
#define HIT_BLOCKS	(30000u / T)
#define PROMPTS_MAX	64u
#define NR_READERS	2u
#define RUN		64u	/* blocks that come and go at once */
#define BLOCKS_S	1e6
#define ROUND_NS	5e8
#define SAMPLES_MAX	(1u << 19)
#define GRANULE		4096u
#define ROOT_OFF	64u
#define NONE		((double)NAN)

/** What the processes share beside the index. */
struct shared {
	uint32_t	is_over;
	uint32_t	nr_ready;
	uint64_t	nr_again[NR_READERS];
	uint32_t	nr[NR_READERS][2];			/* samples: of CPU time, of the wall's */
	float		ns[NR_READERS][2][SAMPLES_MAX];
};

struct world {
	unsigned char		*arena;
	uint64_t		arena_bytes;
	uint64_t		used;
	struct okv_index	*ix;
	struct omnikv_key	*keys;			/* [nr_prompts][PROMPT_BLOCKS] */
	uint64_t		nr_prompts;
	uint64_t		next_granule;
	struct shared		*shared;
};

static void *take(void *opaque, size_t bytes)
{
	struct world *w = opaque;
	unsigned char *mem = w->arena + w->used;

	bytes = (bytes + 63) & ~(size_t)63;
	if (bytes > w->arena_bytes - w->used)
		return NULL;
	w->used += bytes;
	return mem;
}

static void give(void *opaque, void *mem, size_t bytes)
{
	(void)opaque;
	(void)mem;
	(void)bytes;
}

static void *claim(void *opaque, uint64_t off, size_t bytes)
{
	(void)opaque;
	(void)off;
	(void)bytes;
	return NULL;
}

static struct omnikv_key random_key(struct okv_bench *bench)
{
	uint64_t words[2] = { okv_bench_random(bench), okv_bench_random(bench) };
	struct omnikv_key key = { .len = sizeof(words) };

	memcpy(key.bytes, words, sizeof(words));
	return key;
}

/* Insert @nr blocks behind @parent. Returns the last one. */
static uint32_t insert(struct world *w, uint32_t parent, uint32_t position, const struct omnikv_key *keys, size_t nr)
{
	struct omnikv_extent extents[RUN];
	static uint32_t crc[RUN];
	uint32_t ids[RUN];

	while (nr) {
		size_t n = nr < RUN ? nr : RUN, done;
		struct okv_index_block block = { .parent = parent, .position = position, .extents = extents, .key = keys,
			.crc32c = crc };

		/* Within the pool that the root tells of. */
		for (size_t i = 0; i < n; i++)
			extents[i] = (struct omnikv_extent){ .granule = w->next_granule++ % (w->arena_bytes / GRANULE),
							     .generation = 1, .nr_granules = 1 };
		okv_bench_must(okv_index_insert_path(w->ix, &block, n, &done, ids, NULL) == 0, "insertion");
		parent = ids[n - 1];
		position += (uint32_t)n;
		keys += n;
		nr -= n;
	}
	return parent;
}

static void make_root(struct world *w)
{
	struct okv_catalog_root *root = (struct okv_catalog_root *)(w->arena + ROOT_OFF);
	struct okv_catalog_spaces *spaces = take(w, sizeof(*spaces) + sizeof(spaces->spaces[0]));

	spaces->nr = 1;
	spaces->spaces[0] = (struct okv_catalog_space){ .identity = "bench", .block_tokens = T, .nr_groups = 1,
							.match_flags = OKV_INDEX_MATCH_F_CHAINED, .is_used = 1 };
	spaces->spaces[0].crc = okv_crc32c(&spaces->spaces[0], offsetof(struct okv_catalog_space, crc));
	*root = (struct okv_catalog_root){ .magic = OKV_CATALOG_MAGIC, .version = OKV_CATALOG_VERSION,
		.granule_bytes = GRANULE, .nr_granules = w->arena_bytes / GRANULE };
	root->crc = okv_crc32c(root, offsetof(struct okv_catalog_root, crc));
	root->spaces_off = (uint64_t)((unsigned char *)spaces - w->arena);
	root->shelves[0] = okv_index_off(w->ix);
}

static void open_world(struct okv_bench *bench, struct world *w)
{
	uint64_t nr_blocks = bench->footprint_bytes / 128, nr_paths = nr_blocks / PROMPT_BLOCKS, i, k;
	struct okv_index_config config = { .nr_groups = 1, .block_tokens = T, .seed = "readers" };
	struct okv_index_allocator mem = { .alloc = take, .free = give, .opaque = w, .claim = claim };
	struct omnikv_key *keys = okv_bench_alloc(bench, PROMPT_BLOCKS * sizeof(*keys));

	memset(w, 0, sizeof(*w));
	okv_bench_must(nr_paths >= 2, "--footprint: readers need 512K at least");
	w->nr_prompts = nr_paths / 2 < PROMPTS_MAX ? nr_paths / 2 : PROMPTS_MAX;
	w->arena_bytes = (bench->footprint_bytes + bench->footprint_bytes / 8 + (4u << 20)) & ~(uint64_t)(GRANULE - 1);
	w->arena = mmap(NULL, w->arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	w->shared = mmap(NULL, sizeof(*w->shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	okv_bench_must(w->arena != MAP_FAILED && w->shared != MAP_FAILED, "no shared memory");
	madvise(w->arena, w->arena_bytes, MADV_HUGEPAGE);
	w->used = ROOT_OFF + 512;
	mem.base = w->arena;
	config.allocator = &mem;
	okv_bench_must(!okv_index_create(&config, &w->ix) && !okv_index_reserve(w->ix, nr_blocks), "no index");
	make_root(w);
	w->keys = okv_bench_alloc(bench, w->nr_prompts * PROMPT_BLOCKS * sizeof(*w->keys));
	for (i = 0; i < w->nr_prompts * PROMPT_BLOCKS; i++)
		w->keys[i] = random_key(bench);
	for (i = 0; i < nr_paths; i++) {
		uint64_t step = nr_paths / w->nr_prompts, prompt = i / step;

		if (i % step == 0 && prompt < w->nr_prompts) {
			uint32_t id = insert(w, OKV_ENTRY_NONE, 0, w->keys + prompt * PROMPT_BLOCKS, HIT_BLOCKS);

			okv_bench_must(okv_index_pin(w->ix, id) == 0, "a pin");
			continue;
		}
		for (k = 0; k < PROMPT_BLOCKS; k++)
			keys[k] = random_key(bench);
		insert(w, OKV_ENTRY_NONE, 0, keys, PROMPT_BLOCKS);
	}
	okv_bench_free(bench, keys);
}

static void read_on(const struct world *w, uint32_t me)
{
	struct shared *shared = w->shared;
	struct okv_reader_space space;
	struct okv_reader reader;
	uint8_t identity[32] = "bench";
	uint64_t seed = me + 1;

	if (okv_reader_init(&reader, w->arena, w->arena_bytes, ROOT_OFF) || okv_reader_space(&reader, identity, &space))
		_exit(1);
	__atomic_fetch_add(&shared->nr_ready, 1, __ATOMIC_RELEASE);
	for (uint32_t n = 0; !__atomic_load_n(&shared->is_over, __ATOMIC_ACQUIRE); n++) {
		const struct omnikv_key *keys = w->keys + (seed >> 32) % w->nr_prompts * PROMPT_BLOCKS;
		bool is_wall = n % 2;
		double begin = is_wall ? okv_bench_wall_ns() : okv_bench_cpu_ns();
		struct okv_reader_hit hit;
		int ret;

		while ((ret = okv_reader_match(&reader, &space, keys, PROMPT_BLOCKS, NULL, &hit)) == -EAGAIN)
			shared->nr_again[me]++;
		begin = (is_wall ? okv_bench_wall_ns() : okv_bench_cpu_ns()) - begin;
		if (ret || hit.nr_blocks != HIT_BLOCKS)
			_exit(2);
		if (shared->nr[me][is_wall] < SAMPLES_MAX)
			shared->ns[me][is_wall][shared->nr[me][is_wall]++] = (float)begin;
		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	}
	_exit(0);
}

/* Change the index at BLOCKS_S, or leave it alone, for a round. Returns blocks a second. */
static double write_on(struct okv_bench *bench, struct world *w, bool is_writing)
{
	struct omnikv_extent victims[RUN];
	double begin = okv_bench_wall_ns(), now = begin;
	uint32_t parent = OKV_ENTRY_NONE, position = 0;
	struct omnikv_key keys[RUN];
	uint64_t nr = 0;

	while (now - begin < ROUND_NS) {
		if (!is_writing) {
			usleep(10000);
			now = okv_bench_wall_ns();
			continue;
		}
		for (uint32_t i = 0; i < RUN; i++)
			keys[i] = random_key(bench);
		okv_bench_must(okv_index_evict(w->ix, RUN, victims, NULL) == RUN, "no victims");
		parent = insert(w, parent, position, keys, RUN);
		position += RUN;
		if (position == PROMPT_BLOCKS) {
			parent = OKV_ENTRY_NONE;
			position = 0;
		}
		nr += RUN;
		do
			now = okv_bench_wall_ns();
		while ((double)nr > (now - begin) * (BLOCKS_S / 1e9));
	}
	return (double)nr / (now - begin) * 1e9;
}

static int float_order(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

/** p50 and p99.9 of one kind of time, ns; of both readers together. */
struct quantiles {
	double	p50;
	double	p999;
};

static struct quantiles quantiles_of(struct shared *shared, uint32_t kind)
{
	struct quantiles q = { NONE, NONE };
	uint64_t nr = 0;
	float *all;

	for (uint32_t i = 0; i < NR_READERS; i++)
		nr += shared->nr[i][kind];
	all = malloc((nr + 1) * sizeof(*all));
	okv_bench_must(all != NULL && nr > 0, "no samples");
	nr = 0;
	for (uint32_t i = 0; i < NR_READERS; i++) {
		memcpy(all + nr, shared->ns[i][kind], shared->nr[i][kind] * sizeof(*all));
		nr += shared->nr[i][kind];
	}
	qsort(all, nr, sizeof(*all), float_order);
	q.p50 = all[nr / 2];
	q.p999 = all[nr - 1 - nr / 1000];
	free(all);
	return q;
}

static double round_of(struct okv_bench *bench, struct world *w, bool is_writing)
{
	struct shared *shared = w->shared;
	pid_t pids[NR_READERS];
	double blocks_s;
	int status;

	shared->is_over = 0;
	shared->nr_ready = 0;
	memset(shared->nr, 0, sizeof(shared->nr));
	for (uint32_t i = 0; i < NR_READERS; i++) {
		pids[i] = fork();
		okv_bench_must(pids[i] >= 0, "no process");
		if (!pids[i])
			read_on(w, i);
	}
	while (__atomic_load_n(&shared->nr_ready, __ATOMIC_ACQUIRE) < NR_READERS) {
		for (uint32_t i = 0; i < NR_READERS; i++)
			okv_bench_must(waitpid(pids[i], &status, WNOHANG) == 0, "a reader cannot read the index");
		usleep(1000);
	}
	blocks_s = write_on(bench, w, is_writing);
	__atomic_store_n(&shared->is_over, 1, __ATOMIC_RELEASE);
	for (uint32_t i = 0; i < NR_READERS; i++)
		okv_bench_must(waitpid(pids[i], &status, 0) == pids[i] && WIFEXITED(status) && WEXITSTATUS(status) == 0,
			       "a reader's hit has the wrong length");
	return blocks_s;
}

uint64_t okv_bench_readers_need(uint64_t footprint_bytes)
{
	return footprint_bytes + footprint_bytes / 8 + (64u << 20);
}

void okv_bench_readers(struct okv_bench *bench)
{
	static const char quiet[] = "the same without the writer";
	struct okv_bench_row *p50, *cpu, *wall, *writer;
	struct world w;

	p50 = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M3", .unit = "ns", .clock = "thread CPU",
		.workload = "2 reading processes beside a writer: one lookup, median", .limit = quiet, .is_lower_better = true });
	cpu = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M3", .unit = "times", .clock = "thread CPU",
		.workload = "of it: p99.9 over the median", .limit = quiet, .is_lower_better = true,
		.target_of = OKV_TARGET_OURS, .target = 2 });
	wall = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M3", .unit = "times", .clock = "wall",
		.workload = "of it: p99.9 over the median, with what the host does meanwhile", .limit = quiet, .is_lower_better = true });
	writer = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M3", .unit = "blocks/s", .clock = "wall",
		.workload = "of it: blocks that the writer evicts and inserts", .target_of = OKV_TARGET_OURS,
		.target = 0.99 * BLOCKS_S });

	open_world(bench, &w);
	/* Round 0 warms up. */
	for (unsigned int round = 0; round <= bench->nr_rounds; round++) {
		struct quantiles alone[2], beside[2];
		double blocks_s;

		round_of(bench, &w, false);
		for (uint32_t kind = 0; kind < 2; kind++)
			alone[kind] = quantiles_of(w.shared, kind);
		blocks_s = round_of(bench, &w, true);
		for (uint32_t kind = 0; kind < 2; kind++)
			beside[kind] = quantiles_of(w.shared, kind);
		if (!round)
			continue;
		okv_bench_sample(p50, beside[0].p50, alone[0].p50, NONE);
		okv_bench_sample(cpu, beside[0].p999 / beside[0].p50, alone[0].p999 / alone[0].p50, NONE);
		okv_bench_sample(wall, beside[1].p999 / beside[1].p50, alone[1].p999 / alone[1].p50, NONE);
		okv_bench_sample(writer, blocks_s, NONE, NONE);
	}
	okv_bench_note_pages(bench);
	okv_index_leave(w.ix);
	okv_bench_free(bench, w.keys);
	munmap(w.arena, w.arena_bytes);
	munmap(w.shared, sizeof(*w.shared));
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Row M3, readers: two processes look prompts up in an index that a third one changes by a million blocks a second.
 *
 * The index lies in shared memory as the manager's does in META. The prompts are pinned, so each lookup
 * must hit 30,000 of 32,768 tokens; every one is checked. A lookup is all of it: tokens in, the extents of each block
 * that is hit out; and, in turn, its search alone. It is timed by the thread's CPU time, which other processes on
 * the same core do not count in (where there are fewer than three processors, they are the tail of the other one), and
 * by the clock on the wall. Interrupts count in both.
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
#define PROMPT_TOKENS	32768u
#define PROMPT_BLOCKS	(PROMPT_TOKENS / T)
#define HIT_BLOCKS	(30000u / T)
#define PROMPTS_MAX	64u
#define NR_READERS	2u
#define RUN		64u	/* blocks that come and go at once */
#define BLOCKS_S	1e6
#define ROUND_NS	1e9
#define SAMPLES_MAX	(1u << 18)
#define GRANULE		4096u
#define ROOT_OFF	64u
#define NONE		((double)NAN)

/* What is timed, in turn. */
enum kind {
	LOOKUP_CPU,
	LOOKUP_WALL,
	SEARCH_CPU,
	NR_KINDS,
};

/** What the processes share beside the index. */
struct shared {
	uint32_t	is_over;
	uint32_t	nr_ready;
	uint64_t	nr_looks[NR_READERS];			/* more than samples where one was repeated */
	float		first_ns[NR_READERS][PROMPTS_MAX];	/* each prompt's first lookup */
	uint32_t	nr[NR_READERS][NR_KINDS];
	float		ns[NR_READERS][NR_KINDS][SAMPLES_MAX];
};

/** What a reader has for itself. */
struct found {
	struct omnikv_key	keys[PROMPT_BLOCKS];
	struct omnikv_extent	extents[HIT_BLOCKS];
	uint32_t		crcs[HIT_BLOCKS];
};

struct world {
	unsigned char		*arena;
	uint64_t		arena_bytes;
	uint64_t		used;
	struct okv_index	*ix;
	struct omnikv_chain_key	*chain_key;
	uint32_t		*tokens;		/* [nr_prompts][PROMPT_TOKENS] */
	struct omnikv_key	*keys;			/* [nr_prompts][PROMPT_BLOCKS], of these */
	struct found		*found;			/* [NR_READERS] */
	uint64_t		first_granules[PROMPTS_MAX];	/* of each prompt's blocks, one after another */
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
	uint64_t nr_granules;

	memset(w, 0, sizeof(*w));
	okv_bench_must(nr_paths >= 2, "--footprint: readers need 512K at least");
	w->nr_prompts = nr_paths / 2 < PROMPTS_MAX ? nr_paths / 2 : PROMPTS_MAX;
	w->arena_bytes = (bench->footprint_bytes + bench->footprint_bytes / 8 + (4u << 20)) & ~(uint64_t)(GRANULE - 1);
	nr_granules = w->arena_bytes / GRANULE;
	w->arena = okv_bench_alloc_shared(bench, w->arena_bytes);
	w->shared = okv_bench_alloc_shared(bench, sizeof(*w->shared));
	w->found = okv_bench_alloc_shared(bench, NR_READERS * sizeof(*w->found));
	w->used = ROOT_OFF + 512;
	mem.base = w->arena;
	config.allocator = &mem;
	okv_bench_must(!okv_index_create(&config, &w->ix) && !okv_index_reserve(w->ix, nr_blocks), "no index");
	make_root(w);
	w->keys = okv_bench_alloc(bench, w->nr_prompts * PROMPT_BLOCKS * sizeof(*w->keys));
	w->tokens = okv_bench_alloc(bench, w->nr_prompts * PROMPT_TOKENS * sizeof(*w->tokens));
	okv_bench_must(!omnikv_chain_key_create("a secret for the bench", 22, T, &w->chain_key), "no chain key");
	for (i = 0; i < w->nr_prompts * PROMPT_TOKENS; i++)
		w->tokens[i] = (uint32_t)(okv_bench_random(bench) >> 40) % 128256;
	for (i = 0; i < w->nr_prompts; i++)
		omnikv_chain_fast(w->chain_key, NULL, w->tokens + i * PROMPT_TOKENS, PROMPT_TOKENS, w->keys + i * PROMPT_BLOCKS);
	for (i = 0; i < nr_paths; i++) {
		uint64_t step = nr_paths / w->nr_prompts, prompt = i / step;

		if (i % step == 0 && prompt < w->nr_prompts) {
			uint32_t id;

			w->next_granule %= nr_granules - HIT_BLOCKS;
			w->first_granules[prompt] = w->next_granule;
			id = insert(w, OKV_ENTRY_NONE, 0, w->keys + prompt * PROMPT_BLOCKS, HIT_BLOCKS);
			okv_bench_must(okv_index_pin(w->ix, id) == 0, "a pin");
			continue;
		}
		for (k = 0; k < PROMPT_BLOCKS; k++)
			keys[k] = okv_bench_key(bench);
		insert(w, OKV_ENTRY_NONE, 0, keys, PROMPT_BLOCKS);
	}
	okv_bench_free(bench, keys);
}

/* A reader that was left behind by a change looks again: that is part of its time. */
static int lookup(const struct world *w, const struct okv_reader *reader, const struct okv_reader_space *space,
		  uint64_t prompt, struct found *found, uint64_t *nr_looks)
{
	struct okv_reader_hit hit;
	int ret;

	omnikv_chain_fast(w->chain_key, NULL, w->tokens + prompt * PROMPT_TOKENS, PROMPT_TOKENS, found->keys);
	do {
		++*nr_looks;
		ret = okv_reader_match(reader, space, found->keys, PROMPT_BLOCKS, NULL, &hit);
		if (!ret && hit.nr_blocks != HIT_BLOCKS)
			return -ENOENT;
		if (!ret)
			ret = okv_reader_blocks(reader, space, &hit, 0, NULL, found->extents, found->crcs);
	} while (ret == -EAGAIN || ret == -ESTALE);
	return ret;
}

static int search(const struct world *w, const struct okv_reader *reader, const struct okv_reader_space *space,
		  uint64_t prompt, uint64_t *nr_looks)
{
	struct okv_reader_hit hit;
	int ret;

	do {
		++*nr_looks;
		ret = okv_reader_match(reader, space, w->keys + prompt * PROMPT_BLOCKS, PROMPT_BLOCKS, NULL, &hit);
	} while (ret == -EAGAIN);
	return ret ? ret : hit.nr_blocks == HIT_BLOCKS ? 0 : -ENOENT;
}

static void read_on(const struct world *w, uint32_t me)
{
	struct shared *shared = w->shared;
	struct found *found = &w->found[me];
	struct okv_reader_space space;
	struct okv_reader reader;
	uint8_t identity[32] = "bench";
	uint64_t seed = me + 1, nr_looks = 0;

	if (okv_reader_init(&reader, w->arena, w->arena_bytes, ROOT_OFF) || okv_reader_space(&reader, identity, &space))
		_exit(1);
	/* A process's first touch of a page is a fault of the kernel's. */
	for (uint64_t prompt = 0; prompt < w->nr_prompts; prompt++) {
		double begin = okv_bench_cpu_ns();

		if (lookup(w, &reader, &space, prompt, found, &nr_looks))
			_exit(2);
		shared->first_ns[me][prompt] = (float)(okv_bench_cpu_ns() - begin);
		if (search(w, &reader, &space, prompt, &nr_looks))
			_exit(2);
	}
	nr_looks = 0;
	__atomic_fetch_add(&shared->nr_ready, 1, __ATOMIC_RELEASE);
	for (uint32_t n = 0; !__atomic_load_n(&shared->is_over, __ATOMIC_ACQUIRE); n++) {
		enum kind kind = n % NR_KINDS;
		bool is_wall = kind == LOOKUP_WALL;
		uint64_t prompt = (seed >> 32) % w->nr_prompts;
		double begin = is_wall ? okv_bench_wall_ns() : okv_bench_cpu_ns();
		int ret;

		ret = kind == SEARCH_CPU ? search(w, &reader, &space, prompt, &nr_looks) :
		      lookup(w, &reader, &space, prompt, found, &nr_looks);
		begin = (is_wall ? okv_bench_wall_ns() : okv_bench_cpu_ns()) - begin;
		if (ret || (kind != SEARCH_CPU &&
			    found->extents[HIT_BLOCKS - 1].granule != w->first_granules[prompt] + HIT_BLOCKS - 1))
			_exit(2);
		if (shared->nr[me][kind] < SAMPLES_MAX)
			shared->ns[me][kind][shared->nr[me][kind]++] = (float)begin;
		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		shared->nr_looks[me] = nr_looks;
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
			keys[i] = okv_bench_key(bench);
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

/* Of a million lookups and searches of the last round, those that were made again. */
static double repeated(const struct shared *shared)
{
	double nr = 0, nr_looks = 0;

	for (uint32_t i = 0; i < NR_READERS; i++) {
		nr_looks += (double)shared->nr_looks[i];
		for (uint32_t kind = 0; kind < NR_KINDS; kind++)
			nr += shared->nr[i][kind];
	}
	return (nr_looks - nr) / nr * 1e6;
}

static double first_of(const struct world *w)
{
	double sum = 0;

	for (uint32_t i = 0; i < NR_READERS; i++)
		for (uint64_t prompt = 0; prompt < w->nr_prompts; prompt++)
			sum += (double)w->shared->first_ns[i][prompt];
	return sum / NR_READERS / (double)w->nr_prompts / PROMPT_TOKENS;
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
	return footprint_bytes + footprint_bytes / 8 + (96u << 20);
}

static struct okv_bench_row *row(struct okv_bench *bench, const char *workload, const char *unit, bool is_wall, double target)
{
	return okv_bench_row(bench, &(struct okv_bench_desc) {
		.row = "M3", .workload = workload, .unit = unit, .clock = is_wall ? "wall" : "thread CPU",
		.limit = "the same without the writer", .is_lower_better = true,
		.target_of = target > 0 ? OKV_TARGET_OURS : OKV_TARGET_NONE, .target = target,
	});
}

void okv_bench_readers(struct okv_bench *bench)
{
	struct okv_bench_row *p50, *first, *search50, *tails[NR_KINDS], *again, *writer;
	struct world w;

	p50 = row(bench, "2 reading processes beside a writer: lookup, 30,000 of 32,768 hit", "ns/token", false, 0);
	tails[LOOKUP_CPU] = row(bench, "of it: p99.9 over the median", "times", false, 2);
	tails[LOOKUP_WALL] = row(bench, "of it: p99.9 over the median, with what the host does meanwhile", "times", true, 0);
	first = row(bench, "of it: the first of each prompt in a process, mean", "ns/token", false, 0);
	search50 = row(bench, "of it: search alone", "ns", false, 0);
	tails[SEARCH_CPU] = row(bench, "search alone: p99.9 over the median", "times", false, 0);
	again = row(bench, "of a million: looked again, because something changed", "lookups", false, 0);
	writer = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M3", .unit = "blocks/s", .clock = "wall",
		.workload = "of it: blocks that the writer evicts and inserts", .target_of = OKV_TARGET_OURS,
		.target = 0.99 * BLOCKS_S });

	open_world(bench, &w);
	/* Round 0 warms up. */
	for (unsigned int round = 0; round <= bench->nr_rounds; round++) {
		struct quantiles alone[NR_KINDS], beside[NR_KINDS];
		double blocks_s, first_alone, again_alone;

		round_of(bench, &w, false);
		for (uint32_t kind = 0; kind < NR_KINDS; kind++)
			alone[kind] = quantiles_of(w.shared, kind);
		first_alone = first_of(&w);
		again_alone = repeated(w.shared);
		blocks_s = round_of(bench, &w, true);
		for (uint32_t kind = 0; kind < NR_KINDS; kind++)
			beside[kind] = quantiles_of(w.shared, kind);
		if (!round)
			continue;
		okv_bench_sample(p50, beside[LOOKUP_CPU].p50 / PROMPT_TOKENS, alone[LOOKUP_CPU].p50 / PROMPT_TOKENS, NONE);
		okv_bench_sample(first, first_of(&w), first_alone, NONE);
		okv_bench_sample(again, repeated(w.shared), again_alone, NONE);
		okv_bench_sample(search50, beside[SEARCH_CPU].p50, alone[SEARCH_CPU].p50, NONE);
		for (uint32_t kind = 0; kind < NR_KINDS; kind++)
			okv_bench_sample(tails[kind], beside[kind].p999 / beside[kind].p50, alone[kind].p999 / alone[kind].p50, NONE);
		okv_bench_sample(writer, blocks_s, NONE, NONE);
	}
	okv_bench_note_pages(bench);
	okv_index_leave(w.ix);
	omnikv_chain_key_destroy(w.chain_key);
	okv_bench_free(bench, w.tokens);
	okv_bench_free(bench, w.keys);
	okv_bench_free(bench, w.found);
	okv_bench_free(bench, w.arena);
	okv_bench_free(bench, w.shared);
}

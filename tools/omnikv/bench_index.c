// SPDX-License-Identifier: GPL-2.0-only
/*
 * Rows M3 and M4: the prefix index and the block hash at size, 8 M blocks of 16 tokens (a 128th of
 * the footprint), prompts of 32,768 tokens of which 30,000 hit.
 *
 * Prompts are rotated over 8 MiB, so that each lies in the last-level cache and not nearer. What
 * is timed is also checked: hit lengths, runs, extents. One thread, thread CPU time.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <omnikv/key.h>

#include "bench.h"
#include "core/extent.h"
#include "manager/index.h"

#define T		16u
#define PROMPT_TOKENS	32768u
#define PROMPT_BLOCKS	(PROMPT_TOKENS / T)
#define HIT_BLOCKS	(30000u / T)
#define NR_PROMPTS	64u
#define RUN		64u	/* blocks of a run, and of a chunk of prefill */
#define CHURN		(64u * RUN)
#define NONE		((double)NAN)

static const char sha256_chain[] = "SHA-256 chain as SGLang's, hash alone";

static volatile uint64_t sink;

struct world {
	struct omnikv_chain_key	*chain_key;
	uint32_t		*tokens[NR_PROMPTS];	/* of all other paths there are keys alone */
	struct okv_index_allocator allocator;
	struct okv_index	*ix;
	struct okv_extent_map	map;
	bool			is_scattered;
	uint32_t		nr_paths;
	uint32_t		*last;		/* [nr_paths] deepest entry so far */
	struct omnikv_extent	*last_extent;
	struct omnikv_key	*keys[NR_PROMPTS];
	/* of a round: */
	struct omnikv_key	*scratch;	/* [CHURN], more than a prompt has */
	struct okv_index_run	*runs;		/* [PROMPT_BLOCKS] */
	struct okv_extent_rec	*recs;
	uint64_t		*used;
};

static void *index_alloc(void *opaque, size_t bytes)
{
	return okv_bench_alloc(opaque, bytes);
}

static void index_free(void *opaque, void *mem, size_t bytes)
{
	(void)bytes;
	okv_bench_free(opaque, mem);
}

/*
 * Fill the index as engines do: RUN blocks of a path, then some of another; or, scattered, one
 * block at a time from any of 4,096 paths, and its extent anywhere. Prompts stop at what hits.
 */
static void fill(struct okv_bench *bench, struct world *w, uint64_t nr_blocks)
{
	uint32_t chunk = w->is_scattered ? 1 : RUN, *done, *open, nr_open, next, i, k;
	struct omnikv_extent extents[RUN];
	struct omnikv_key keys[RUN];
	static uint32_t crc[RUN];
	uint32_t ids[RUN];
	uint64_t nr = 0;
	size_t nr_done;

	w->nr_paths = (uint32_t)(nr_blocks / PROMPT_BLOCKS) + 1;
	w->last = okv_bench_alloc(bench, w->nr_paths * sizeof(*w->last));
	done = okv_bench_alloc(bench, w->nr_paths * sizeof(*done));
	w->last_extent = okv_bench_alloc(bench, w->nr_paths * sizeof(*w->last_extent));
	nr_open = w->is_scattered ? w->nr_paths : 16;
	if (nr_open > w->nr_paths)
		nr_open = w->nr_paths;
	open = okv_bench_alloc(bench, nr_open * sizeof(*open));
	for (i = 0; i < nr_open; i++)
		open[i] = i;
	for (i = 0; i < w->nr_paths; i++)
		w->last[i] = OKV_ENTRY_NONE;
	next = nr_open;
	while (nr < nr_blocks && nr_open) {
		uint32_t at = (uint32_t)(okv_bench_random(bench) >> 32) % nr_open, path = open[at];
		/* The prompts are spread over the whole fill. */
		uint32_t step = w->nr_paths / NR_PROMPTS;
		bool is_prompt = path % step == 0 && path / step < NR_PROMPTS;
		uint32_t limit = is_prompt ? HIT_BLOCKS : PROMPT_BLOCKS, n = chunk;
		struct okv_index_block block = { .parent = w->last[path], .position = done[path], .extents = extents,
			.key = keys, .crc32c = crc };

		if (n > limit - done[path])
			n = limit - done[path];
		if (n > nr_blocks - nr)
			n = (uint32_t)(nr_blocks - nr);
		if (is_prompt) {
			block.key = w->keys[path / step] + done[path];
		} else {
			for (k = 0; k < n; k++)
				keys[k] = okv_bench_key(bench);
		}
		okv_bench_must(okv_extent_alloc(&w->map, 1, n, w->is_scattered || !done[path] ? NULL : &w->last_extent[path], 1,
				      extents) == 0, "the pool is full");
		for (k = 0; k < n; k++)
			okv_extent_seal(&w->map, extents[k].granule);
		w->last_extent[path] = extents[n - 1];
		okv_bench_must(okv_index_insert_path(w->ix, &block, n, &nr_done, ids, NULL) == 0, "insertion");
		w->last[path] = ids[n - 1];
		done[path] += n;
		nr += n;
		if (done[path] == limit) {
			if (next < w->nr_paths)
				open[at] = next++;
			else
				open[at] = open[--nr_open];
		}
	}
	okv_bench_free(bench, done);
	okv_bench_free(bench, open);
}

static void open_world(struct okv_bench *bench, struct world *w, bool is_scattered)
{
	uint64_t nr_blocks = bench->footprint_bytes / 128, nr_granules = nr_blocks + nr_blocks / 16;
	struct okv_index_config config = { .nr_groups = 1, .block_tokens = T, .nr_entries_hint = nr_blocks, .seed = "bench" };
	unsigned int i, t;

	memset(w, 0, sizeof(*w));
	w->is_scattered = is_scattered;
	w->allocator = (struct okv_index_allocator) { .alloc = index_alloc, .free = index_free, .opaque = bench };
	config.allocator = &w->allocator;
	okv_bench_must(!omnikv_chain_key_create("a secret for the bench", 22, T, &w->chain_key), "no chain key");
	w->recs = okv_bench_alloc(bench, nr_granules * sizeof(*w->recs));
	w->used = okv_bench_alloc(bench, okv_extent_used_words(nr_granules) * sizeof(*w->used));
	okv_bench_must(!okv_extent_map_init(&w->map, w->recs, w->used, nr_granules) && !okv_extent_map_add(&w->map, nr_granules),
		       "no extent map");
	okv_bench_must(!okv_index_create(&config, &w->ix), "no index");
	w->scratch = okv_bench_alloc(bench, CHURN * sizeof(*w->scratch));
	w->runs = okv_bench_alloc(bench, PROMPT_BLOCKS * sizeof(*w->runs));
	for (i = 0; i < NR_PROMPTS; i++) {
		w->tokens[i] = okv_bench_alloc(bench, PROMPT_TOKENS * sizeof(uint32_t));
		for (t = 0; t < PROMPT_TOKENS; t++)
			w->tokens[i][t] = (uint32_t)(okv_bench_random(bench) >> 40) % 128256;
		w->keys[i] = okv_bench_alloc(bench, PROMPT_BLOCKS * sizeof(*w->keys[i]));
		omnikv_chain_fast(w->chain_key, NULL, w->tokens[i], PROMPT_TOKENS, w->keys[i]);
	}
	fill(bench, w, nr_blocks);
}

static void close_world(struct okv_bench *bench, struct world *w)
{
	unsigned int i;

	okv_bench_note_pages(bench);
	okv_index_destroy(w->ix);
	omnikv_chain_key_destroy(w->chain_key);
	for (i = 0; i < NR_PROMPTS; i++) {
		okv_bench_free(bench, w->tokens[i]);
		okv_bench_free(bench, w->keys[i]);
	}
	okv_bench_free(bench, w->scratch);
	okv_bench_free(bench, w->runs);
	okv_bench_free(bench, w->recs);
	okv_bench_free(bench, w->used);
	okv_bench_free(bench, w->last);
	okv_bench_free(bench, w->last_extent);
}

uint64_t okv_bench_index_need(uint64_t footprint_bytes)
{
	/* Index, records of extents, keys; and what the index and the fill hold for a while. */
	return 2 * footprint_bytes + (256u << 20);
}

/* M3 ------------------------------------------------------------------------------------------- */

static double per_token(double ns)
{
	return ns / NR_PROMPTS / PROMPT_TOKENS;
}

static double hash_ns(struct world *w, bool is_hot)
{
	double start = okv_bench_cpu_ns();
	unsigned int i;

	for (i = 0; i < NR_PROMPTS; i++)
		omnikv_chain_fast(w->chain_key, NULL, w->tokens[is_hot ? 0 : i], PROMPT_TOKENS, w->scratch);
	return per_token(okv_bench_cpu_ns() - start);
}

/* The limit: the tokens are read once, by the fastest good hash there is. */
static double stream_ns(struct world *w)
{
	double start = okv_bench_cpu_ns();
	unsigned int i;

	for (i = 0; i < NR_PROMPTS; i++)
		sink += XXH3_128bits(w->tokens[i], 4 * PROMPT_TOKENS).low64;
	return per_token(okv_bench_cpu_ns() - start);
}

static double sha256_ns(struct world *w, unsigned int round)
{
	double start = okv_bench_cpu_ns();

	omnikv_chain_sglang(w->tokens[round % NR_PROMPTS], PROMPT_TOKENS, T, w->scratch);
	return (okv_bench_cpu_ns() - start) / PROMPT_TOKENS;
}

/* The whole lookup: tokens in, leased runs of extents out. */
static double lookup_ns(struct world *w, uint32_t flags, uint64_t *nr_runs)
{
	double start = okv_bench_cpu_ns();
	struct okv_index_hit hit;
	unsigned int i;

	for (i = 0; i < NR_PROMPTS; i++) {
		omnikv_chain_fast(w->chain_key, NULL, w->tokens[i], PROMPT_TOKENS, w->scratch);
		okv_index_match(w->ix, 0, w->scratch, PROMPT_BLOCKS, flags, &hit);
		*nr_runs += (uint64_t)okv_index_hit_runs(w->ix, &hit, 0, 0, w->runs, PROMPT_BLOCKS);
		okv_index_touch(w->ix, hit.entry);
		if (okv_index_pin(w->ix, hit.entry) || hit.nr_blocks != HIT_BLOCKS)
			okv_bench_must(false, "a hit of wrong length");
	}
	start = okv_bench_cpu_ns() - start;
	for (i = 0; i < NR_PROMPTS; i++) {
		okv_index_match(w->ix, 0, w->keys[i], PROMPT_BLOCKS, 0, &hit);
		okv_index_unpin(w->ix, hit.entry);
	}
	return per_token(start);
}

/* The same with keys at hand, and without a use. */
static double search_ns(struct world *w)
{
	double start = okv_bench_cpu_ns();
	struct okv_index_hit hit;
	unsigned int i;

	for (i = 0; i < NR_PROMPTS; i++) {
		okv_index_match(w->ix, 0, w->keys[i], PROMPT_BLOCKS, OKV_INDEX_MATCH_F_CHAINED, &hit);
		sink += (uint64_t)okv_index_hit_runs(w->ix, &hit, 0, 0, w->runs, PROMPT_BLOCKS);
	}
	return per_token(okv_bench_cpu_ns() - start);
}

/* Runs of each prompt, against the extents of its blocks one by one. */
static void check_runs(struct world *w)
{
	struct omnikv_extent extent;
	struct okv_index_hit hit;
	uint32_t *ids, i, at, crc;
	int64_t nr, r;

	ids = malloc(HIT_BLOCKS * sizeof(*ids));
	okv_bench_must(ids != NULL, "no memory");
	for (i = 0; i < NR_PROMPTS; i++) {
		okv_index_match(w->ix, 0, w->keys[i], PROMPT_BLOCKS, OKV_INDEX_MATCH_F_CHAINED, &hit);
		okv_bench_must(hit.nr_blocks == HIT_BLOCKS, "a hit of wrong length");
		okv_index_blocks(w->ix, hit.entry, 0, ids);
		nr = okv_index_hit_runs(w->ix, &hit, 0, 0, w->runs, PROMPT_BLOCKS);
		for (r = 0, at = 0; r < nr; r++) {
			uint32_t end = at + w->runs[r].nr_blocks, k;

			okv_bench_must(w->runs[r].position == at && end <= HIT_BLOCKS, "runs leave a gap");
			for (k = at; k < end; k++) {
				okv_index_extent(w->ix, ids[k], 0, &extent, &crc);
				okv_bench_must(extent.granule == w->runs[r].granule + k - at, "a run names a wrong extent");
			}
			at = end;
		}
		okv_bench_must(at == HIT_BLOCKS, "runs end early");
	}
	free(ids);
}

static struct okv_bench_row *m3_row(struct okv_bench *bench, const char *workload, bool has_peer, double target)
{
	return okv_bench_row(bench, &(struct okv_bench_desc) {
		.row = "M3", .workload = workload, .unit = "ns/token", .clock = "thread CPU", .is_lower_better = true,
		.limit = "xxh3-128 of the tokens as one stream", .peer = has_peer ? sha256_chain : NULL,
		.target_of = target > 0 ? OKV_TARGET_OURS : OKV_TARGET_NONE, .target = target,
	});
}

static void match_rows(struct okv_bench *bench, bool is_scattered)
{
	const char *where = is_scattered ? "scattered" : "in runs";
	struct okv_bench_row *chained, *any, *search, *hash, *hot = NULL, *run;
	struct world w;
	char text[80];
	unsigned int round;

	snprintf(text, sizeof(text), "lookup, 30,000 of 32,768 tokens hit, %s", where);
	chained = m3_row(bench, text, true, is_scattered ? 1.5 : 0.75);
	snprintf(text, sizeof(text), "the same where keys need not chain, %s", where);
	any = m3_row(bench, text, true, 0);
	snprintf(text, sizeof(text), "of it: search alone, %s", where);
	search = m3_row(bench, text, false, 0);
	snprintf(text, sizeof(text), "of it: hash alone, %s", where);
	hash = m3_row(bench, text, true, 0);
	if (!is_scattered)
		hot = m3_row(bench, "hash alone, prompt in the nearest cache", false, 0.45);
	snprintf(text, sizeof(text), "blocks of a run, %s", where);
	run = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M3", .workload = text, .unit = "blocks",
		.clock = "thread CPU" });

	open_world(bench, &w, is_scattered);
	check_runs(&w);
	/* Round 0 warms up. */
	for (round = 0; round <= bench->nr_rounds; round++) {
		double limit = stream_ns(&w), peer = sha256_ns(&w, round), ours, every, found, hashed, near;
		uint64_t nr_runs = 0, nr_ignored = 0;

		ours = lookup_ns(&w, OKV_INDEX_MATCH_F_CHAINED, &nr_runs);
		every = lookup_ns(&w, 0, &nr_ignored);
		found = search_ns(&w);
		hashed = hash_ns(&w, false);
		near = hash_ns(&w, true);
		if (!round)
			continue;
		okv_bench_sample(chained, ours, limit, peer);
		okv_bench_sample(any, every, limit, peer);
		okv_bench_sample(search, found, limit, NONE);
		okv_bench_sample(hash, hashed, limit, peer);
		if (hot)
			okv_bench_sample(hot, near, limit, NONE);
		okv_bench_sample(run, (double)HIT_BLOCKS * NR_PROMPTS / (double)nr_runs, NONE, NONE);
	}
	check_runs(&w);
	close_world(bench, &w);
}

void okv_bench_match(struct okv_bench *bench)
{
	match_rows(bench, false);
	match_rows(bench, true);
}

/* M4 ------------------------------------------------------------------------------------------- */

/* Parts of a block's life, ns a block; all of it in one piece, the parts with the clock's own cost. */
struct life {
	double	whole;
	double	evict;
	double	memory;
	double	insert;
};

/* New prompts come into a full pool: evict, free, allocate, seal, insert, RUN blocks at a time. */
static double churn(struct okv_bench *bench, struct world *w, struct life *parts)
{
	struct omnikv_extent victims[RUN], extents[RUN];
	uint32_t parent = OKV_ENTRY_NONE, position = 0, i, k, crc[RUN] = { 0 }, ids[RUN];
	double start, a = 0, b = 0, c = 0;
	size_t nr_done;

	for (i = 0; i < CHURN; i++)
		w->scratch[i] = okv_bench_key(bench);
	start = okv_bench_cpu_ns();
	for (i = 0; i < CHURN; i += RUN) {
		struct okv_index_block block = { .parent = parent, .position = position, .extents = extents,
			.key = w->scratch + i, .crc32c = crc };

		if (parts)
			a = okv_bench_cpu_ns();
		if (okv_index_evict(w->ix, RUN, victims, NULL) != RUN)
			okv_bench_must(false, "no victims");
		if (parts)
			b = okv_bench_cpu_ns();
		if (okv_extent_free_list(&w->map, victims, RUN, 0, true) ||
		    okv_extent_alloc(&w->map, 1, RUN, parent == OKV_ENTRY_NONE ? NULL : &extents[RUN - 1], 1, extents))
			okv_bench_must(false, "no room");
		for (k = 0; k < RUN; k++)
			okv_extent_seal(&w->map, extents[k].granule);
		if (parts)
			c = okv_bench_cpu_ns();
		if (okv_index_insert_path(w->ix, &block, RUN, &nr_done, ids, NULL))
			okv_bench_must(false, "no insertion");
		if (parts) {
			parts->evict += (b - a) / CHURN;
			parts->memory += (c - b) / CHURN;
			parts->insert += (okv_bench_cpu_ns() - c) / CHURN;
		}
		parent = ids[RUN - 1];
		position += RUN;
	}
	start = okv_bench_cpu_ns() - start;
	for (i = 0; i < CHURN; i += RUN - 1)
		okv_bench_must(okv_index_find(w->ix, 0, &w->scratch[i]) != OKV_ENTRY_NONE, "an inserted block is not found");
	return start / CHURN;
}

/*
 * The limit: as many insertions into a bare table of 16-byte keys in 2^n slots, linear probing, that holds nothing
 * else and never frees; each key's slot is fetched 16 insertions ahead.
 */
static double bare_ns(struct okv_bench *bench, uint64_t (*table)[2], uint64_t nr_slots)
{
	static uint64_t keys[CHURN][2];
	double start;
	uint32_t i;

	for (i = 0; i < CHURN; i++) {
		keys[i][0] = okv_bench_random(bench) | 1;
		keys[i][1] = okv_bench_random(bench);
	}
	start = okv_bench_cpu_ns();
	for (i = 0; i < CHURN; i++) {
		uint64_t at = keys[i][1] & (nr_slots - 1);

		if (i + 16 < CHURN)
			__builtin_prefetch(&table[keys[i + 16][1] & (nr_slots - 1)], 1);
		while (table[at][0])
			at = (at + 1) & (nr_slots - 1);
		table[at][0] = keys[i][0];
		table[at][1] = keys[i][1];
	}
	start = (okv_bench_cpu_ns() - start) / CHURN;
	/* Left as it was found; backwards, so that no search meets a hole. */
	for (i = CHURN; i-- > 0;) {
		uint64_t at = keys[i][1] & (nr_slots - 1);

		while (table[at][0] && table[at][0] != keys[i][0])
			at = (at + 1) & (nr_slots - 1);
		table[at][0] = 0;
	}
	return start;
}

void okv_bench_life(struct okv_bench *bench)
{
	static const char *const texts[] = { "of it: evict", "of it: free, allocate, seal", "of it: insert" };
	struct okv_bench_desc desc = {
		.row = "M4", .workload = "evict, free, allocate, seal, insert 4,096 blocks", .unit = "ns/block", .clock = "thread CPU",
		.limit = "insertion into a bare table of keys", .is_lower_better = true, .target_of = OKV_TARGET_OURS,
		.target = 45,
	};
	struct okv_bench_row *whole, *part[3];
	uint64_t (*table)[2], nr_slots = 1;
	struct world w;
	unsigned int round, i;

	whole = okv_bench_row(bench, &desc);
	desc.limit = NULL;
	desc.target_of = OKV_TARGET_NONE;
	for (i = 0; i < 3; i++) {
		desc.workload = texts[i];
		part[i] = okv_bench_row(bench, &desc);
	}
	while (nr_slots * 64 < bench->footprint_bytes)
		nr_slots *= 2;
	table = okv_bench_alloc(bench, nr_slots * sizeof(*table));
	open_world(bench, &w, false);
	/* Round 0 warms up. */
	for (round = 0; round <= bench->nr_rounds; round++) {
		double limit = bare_ns(bench, table, nr_slots), ours = churn(bench, &w, NULL);
		struct life parts = { 0 };

		churn(bench, &w, &parts);
		if (!round)
			continue;
		okv_bench_sample(whole, ours, limit, NONE);
		okv_bench_sample(part[0], parts.evict, NONE, NONE);
		okv_bench_sample(part[1], parts.memory, NONE, NONE);
		okv_bench_sample(part[2], parts.insert, NONE, NONE);
	}
	close_world(bench, &w);
	okv_bench_free(bench, table);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * The prefix index and the block hash at size: 8 M blocks of 16 tokens, prompts of 32,768 tokens
 * of which 30,000 hit.
 *
 *	index [--blocks N] [--rounds N] [--only hash|runs|life|scattered]
 *
 * Prints one JSON object a row: name, median, min, max, unit. Thread CPU time; within one index
 * all rows run once a round, so that what else the machine does falls on all of them. Prompts
 * are rotated over 8 MiB, so that each lies in the last-level cache and not nearer. What is
 * timed is also checked: hit lengths, runs, extents. One thread. Reports, never judges.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <omnikv/key.h>

#include "core/extent.h"
#include "manager/index.h"

#define T		16u
#define PROMPT_TOKENS	32768u
#define PROMPT_BLOCKS	(PROMPT_TOKENS / T)
#define HIT_BLOCKS	(30000u / T)
#define NR_PROMPTS	64u
#define ROUNDS_MAX	1000u
#define RUN		64u	/* blocks of a run, and of a chunk of prefill */
#define CHURN		(64u * RUN)

struct row {
	const char	*name;
	const char	*unit;
	double		samples[ROUNDS_MAX];
	unsigned int	nr;
};

static struct row rows[64];
static unsigned int nr_rows;
static uint64_t rng = 88172645463325252ull;
static volatile uint64_t sink;

static uint64_t draw(void)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return rng * 0x2545f4914f6cdd1dull;
}

static double now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static void must(bool ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "index: wrong: %s\n", what);
	exit(1);
}

static void report(const char *name, const char *unit, double value)
{
	unsigned int i;

	for (i = 0; i < nr_rows && strcmp(rows[i].name, name); i++)
		;
	if (i == nr_rows) {
		must(nr_rows < sizeof(rows) / sizeof(rows[0]), "too many rows");
		rows[nr_rows].name = name;
		rows[nr_rows].unit = unit;
		rows[nr_rows++].nr = 0;
	}
	if (rows[i].nr < ROUNDS_MAX)
		rows[i].samples[rows[i].nr++] = value;
}

static int compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

static void print_rows(void)
{
	unsigned int i;

	for (i = 0; i < nr_rows; i++) {
		struct row *r = &rows[i];

		qsort(r->samples, r->nr, sizeof(*r->samples), compare_doubles);
		printf("{\"name\": \"%s\", \"median\": %.4g, \"min\": %.4g, \"max\": %.4g, \"unit\": \"%s\", \"rounds\": %u}\n",
		       r->name, r->samples[r->nr / 2], r->samples[0], r->samples[r->nr - 1], r->unit, r->nr);
	}
	fflush(stdout);
	nr_rows = 0;
}

static void *must_alloc(size_t bytes)
{
	void *mem = aligned_alloc(64, (bytes + 63) & ~(size_t)63);

	must(mem != NULL, "no memory");
	memset(mem, 0, bytes);
	return mem;
}

/* The prompts whose tokens exist; all other paths are keys alone. */
static uint32_t *prompt_tokens[NR_PROMPTS];
static struct omnikv_chain_key *chain_key;

static struct omnikv_key random_key(void)
{
	struct omnikv_key key = { .len = 16 };
	uint64_t words[2] = { draw(), draw() };

	memcpy(key.bytes, words, sizeof(words));
	return key;
}

/* Hash rows ------------------------------------------------------------------------------------ */

static void hash_rows(unsigned int nr_rounds)
{
	struct omnikv_key *keys = must_alloc(PROMPT_BLOCKS * sizeof(*keys));
	static uint8_t secret[192];
	unsigned int round, i, b;
	double start;

	for (i = 0; i < sizeof(secret); i++)
		secret[i] = (uint8_t)draw();
	for (round = 0; round < nr_rounds; round++) {
		start = now_ns();
		for (i = 0; i < NR_PROMPTS; i++)
			omnikv_chain_fast(chain_key, NULL, prompt_tokens[i], PROMPT_TOKENS, keys);
		report("hash, prompt in L3", "ns/token", (now_ns() - start) / NR_PROMPTS / PROMPT_TOKENS);

		start = now_ns();
		for (i = 0; i < NR_PROMPTS; i++)
			omnikv_chain_fast(chain_key, NULL, prompt_tokens[0], PROMPT_TOKENS, keys);
		report("hash, prompt hot", "ns/token", (now_ns() - start) / NR_PROMPTS / PROMPT_TOKENS);

		/* The other candidate: keyed XXH3-128 of each block, and of each pair (chain, block). */
		start = now_ns();
		for (i = 0; i < NR_PROMPTS; i++) {
			XXH128_hash_t pair[2] = { { 0, 0 }, { 0, 0 } };

			for (b = 0; b < PROMPT_BLOCKS; b++) {
				pair[1] = XXH3_128bits_withSecret(prompt_tokens[i] + b * T, 4 * T, secret, sizeof(secret));
				pair[0] = XXH3_128bits_withSecret(pair, sizeof(pair), secret, sizeof(secret));
				memcpy(keys[b].bytes, pair, 16);
			}
			sink += pair[0].low64;
		}
		report("xxh3-128 of blocks and fold, prompt in L3", "ns/token",
		       (now_ns() - start) / NR_PROMPTS / PROMPT_TOKENS);

		start = now_ns();
		for (i = 0; i < NR_PROMPTS; i++)
			sink += XXH3_128bits_withSecret(prompt_tokens[i], 4 * PROMPT_TOKENS, secret, sizeof(secret)).low64;
		report("limit: xxh3-128 of the prompt as one stream, in L3", "ns/token",
		       (now_ns() - start) / NR_PROMPTS / PROMPT_TOKENS);

		start = now_ns();
		omnikv_chain_sglang(prompt_tokens[round % NR_PROMPTS], PROMPT_TOKENS, T, keys);
		report("peer: SHA-256 chain as SGLang's", "ns/token", (now_ns() - start) / PROMPT_TOKENS);
	}
	free(keys);
	print_rows();
}

/* Index rows ----------------------------------------------------------------------------------- */

struct world {
	struct okv_index	*ix;
	struct okv_extent_map	map;
	bool			is_scattered;
	uint32_t		nr_paths;
	uint32_t		*last;		/* [nr_paths] deepest entry so far */
	struct omnikv_extent	*last_extent;
	struct omnikv_key	*keys[NR_PROMPTS];
};

/*
 * Fill the index as engines do: RUN blocks of a path, then some of another; or, scattered, one
 * block at a time from any of 4,096 paths, and its extent anywhere. Prompts stop at what hits.
 */
static void fill(struct world *w, uint64_t nr_blocks)
{
	uint32_t chunk = w->is_scattered ? 1 : RUN, *done, *open, nr_open, next, i, k;
	struct omnikv_extent extents[RUN];
	struct omnikv_key keys[RUN];
	static uint32_t crc[RUN];
	uint64_t nr = 0;
	size_t nr_done;

	w->nr_paths = (uint32_t)(nr_blocks / PROMPT_BLOCKS) + 1;
	w->last = must_alloc(w->nr_paths * sizeof(*w->last));
	done = must_alloc(w->nr_paths * sizeof(*done));
	w->last_extent = must_alloc(w->nr_paths * sizeof(*w->last_extent));
	nr_open = w->is_scattered ? w->nr_paths : 16;
	if (nr_open > w->nr_paths)
		nr_open = w->nr_paths;
	open = must_alloc(nr_open * sizeof(*open));
	for (i = 0; i < nr_open; i++)
		open[i] = i;
	for (i = 0; i < w->nr_paths; i++)
		w->last[i] = OKV_ENTRY_NONE;
	next = nr_open;
	while (nr < nr_blocks && nr_open) {
		uint32_t at = (uint32_t)(draw() >> 32) % nr_open, path = open[at];
		/* The prompts are spread over the whole fill. */
		bool is_prompt = path % (w->nr_paths / NR_PROMPTS) == 0 && path / (w->nr_paths / NR_PROMPTS) < NR_PROMPTS;
		uint32_t limit = is_prompt ? HIT_BLOCKS : PROMPT_BLOCKS, n = chunk;
		struct okv_index_block block = { .parent = w->last[path], .position = done[path], .extents = extents,
			.key = keys, .crc32c = crc };

		if (n > limit - done[path])
			n = limit - done[path];
		if (n > nr_blocks - nr)
			n = (uint32_t)(nr_blocks - nr);
		if (is_prompt) {
			block.key = w->keys[path / (w->nr_paths / NR_PROMPTS)] + done[path];
		} else {
			for (k = 0; k < n; k++)
				keys[k] = random_key();
		}
		must(okv_extent_alloc(&w->map, 1, n, w->is_scattered || !done[path] ? NULL : &w->last_extent[path], 1,
				      extents) == 0, "the pool is full");
		for (k = 0; k < n; k++)
			okv_extent_seal(&w->map, extents[k].granule);
		w->last_extent[path] = extents[n - 1];
		uint32_t ids[RUN];

		must(okv_index_insert_path(w->ix, &block, n, &nr_done, ids, NULL) == 0, "insertion");
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
	free(done);
	free(open);
}

static void match_round(struct world *w, const char *const names[6])
{
	struct omnikv_key *keys = must_alloc(PROMPT_BLOCKS * sizeof(*keys));
	struct okv_index_run *runs = must_alloc(PROMPT_BLOCKS * sizeof(*runs));
	static struct okv_index_hit hits[NR_PROMPTS];
	struct okv_index_hit hit;
	uint64_t nr_runs = 0;
	double start;
	uint32_t i, pass;

	/* The whole lookup: tokens in, leased runs of extents out. */
	for (pass = 0; pass < 2; pass++) {
		uint32_t flags = pass ? OKV_INDEX_MATCH_F_CHAINED : 0;

		start = now_ns();
		for (i = 0; i < NR_PROMPTS; i++) {
			int64_t nr;

			omnikv_chain_fast(chain_key, NULL, prompt_tokens[i], PROMPT_TOKENS, keys);
			okv_index_match(w->ix, 0, keys, PROMPT_BLOCKS, flags, &hit);
			nr = okv_index_hit_runs(w->ix, &hit, 0, 0, runs, PROMPT_BLOCKS);
			okv_index_touch(w->ix, hit.entry);
			if (okv_index_pin(w->ix, hit.entry))
				must(false, "pin");
			nr_runs += (uint64_t)nr;
			if (hit.nr_blocks != HIT_BLOCKS)
				must(false, "hit length");
		}
		report(names[pass], "ns/token", (now_ns() - start) / NR_PROMPTS / PROMPT_TOKENS);
		for (i = 0; i < NR_PROMPTS; i++) {
			okv_index_match(w->ix, 0, w->keys[i], PROMPT_BLOCKS, 0, &hit);
			okv_index_unpin(w->ix, hit.entry);
		}
	}
	report(names[2], "blocks", (double)HIT_BLOCKS * 2 * NR_PROMPTS / (double)nr_runs);

	/* Its parts: the hash, then the rest with keys at hand. */
	start = now_ns();
	for (i = 0; i < NR_PROMPTS; i++)
		omnikv_chain_fast(chain_key, NULL, prompt_tokens[i], PROMPT_TOKENS, keys);
	report("hash alone, same round", "us/prompt", (now_ns() - start) / NR_PROMPTS / 1e3);
	start = now_ns();
	for (i = 0; i < NR_PROMPTS; i++)
		okv_index_touch(w->ix, w->last[i * (w->nr_paths / NR_PROMPTS)]);
	report("touch alone, same round", "us/prompt", (now_ns() - start) / NR_PROMPTS / 1e3);
	for (pass = 0; pass < 2; pass++) {
		start = now_ns();
		for (i = 0; i < NR_PROMPTS; i++) {
			okv_index_match(w->ix, 0, w->keys[i], PROMPT_BLOCKS, pass ? OKV_INDEX_MATCH_F_CHAINED : 0, &hit);
			sink += hit.nr_blocks;
		}
		report(names[3 + pass], "us/prompt", (now_ns() - start) / NR_PROMPTS / 1e3);
	}
	for (i = 0; i < NR_PROMPTS; i++)
		okv_index_match(w->ix, 0, w->keys[i], PROMPT_BLOCKS, 0, &hits[i]);
	start = now_ns();
	for (i = 0; i < NR_PROMPTS; i++)
		sink += (uint64_t)okv_index_hit_runs(w->ix, &hits[i], 0, 0, runs, PROMPT_BLOCKS);
	report(names[5], "us/prompt", (now_ns() - start) / NR_PROMPTS / 1e3);
	free(keys);
	free(runs);
}

/* New prompts come into a full pool: evict, free, allocate, seal, insert, RUN blocks at a time. */
static void churn_round(struct world *w)
{
	struct omnikv_key *keys = must_alloc(CHURN * sizeof(*keys));
	struct omnikv_extent victims[RUN], extents[RUN];
	uint32_t parent = OKV_ENTRY_NONE, position = 0, i, k, crc[RUN] = { 0 }, ids[RUN];
	double start, evict = 0, insert = 0, memory = 0, a, b, c, d;
	size_t nr_done;

	for (i = 0; i < CHURN; i++)
		keys[i] = random_key();
	start = now_ns();
	for (i = 0; i < CHURN; i += RUN) {
		struct okv_index_block block = { .parent = parent, .position = position, .extents = extents,
			.key = keys + i, .crc32c = crc };

		if (okv_index_evict(w->ix, RUN, victims, NULL) != RUN ||
		    okv_extent_free_list(&w->map, victims, RUN, 0, true) ||
		    okv_extent_alloc(&w->map, 1, RUN, parent == OKV_ENTRY_NONE ? NULL : &extents[RUN - 1], 1, extents))
			must(false, "making room");
		for (k = 0; k < RUN; k++)
			okv_extent_seal(&w->map, extents[k].granule);
		if (okv_index_insert_path(w->ix, &block, RUN, &nr_done, ids, NULL))
			must(false, "insertion");
		parent = ids[RUN - 1];
		position += RUN;
	}
	report("life of a block: evict, free, allocate, seal, insert", "ns/block", (now_ns() - start) / CHURN);

	parent = OKV_ENTRY_NONE;
	position = 0;
	for (i = 0; i < CHURN; i++)
		keys[i] = random_key();
	for (i = 0; i < CHURN; i += RUN) {
		struct okv_index_block block = { .parent = parent, .position = position, .extents = extents,
			.key = keys + i, .crc32c = crc };

		a = now_ns();
		okv_index_evict(w->ix, RUN, victims, NULL);
		b = now_ns();
		okv_extent_free_list(&w->map, victims, RUN, 0, true);
		okv_extent_alloc(&w->map, 1, RUN, parent == OKV_ENTRY_NONE ? NULL : &extents[RUN - 1], 1, extents);
		for (k = 0; k < RUN; k++)
			okv_extent_seal(&w->map, extents[k].granule);
		c = now_ns();
		okv_index_insert_path(w->ix, &block, RUN, &nr_done, ids, NULL);
		d = now_ns();
		evict += b - a;
		memory += c - b;
		insert += d - c;
		parent = ids[RUN - 1];
		position += RUN;
	}
	report("of it, with the clock's own cost: evict", "ns/block", evict / CHURN);
	report("of it, with the clock's own cost: free, allocate, seal", "ns/block", memory / CHURN);
	report("of it, with the clock's own cost: insert", "ns/block", insert / CHURN);
	free(keys);
}

static void index_rows(uint64_t nr_blocks, bool is_scattered, bool with_match, unsigned int nr_rounds)
{
	static const char *const names[2][6] = {
		{ "lookup of 32768 tokens, 30000 hit in runs, any keys", "lookup of 32768 tokens, 30000 hit in runs",
		  "mean run", "match alone, any keys, runs", "match alone, runs", "runs of extents alone, runs" },
		{ "lookup of 32768 tokens, 30000 hit scattered, any keys", "lookup of 32768 tokens, 30000 hit scattered",
		  "mean run, scattered", "match alone, any keys, scattered", "match alone, scattered",
		  "runs of extents alone, scattered" },
	};
	struct okv_index_config config = { .nr_groups = 1, .block_tokens = T, .nr_entries_hint = nr_blocks,
		.seed = "bench" };
	uint64_t nr_granules = nr_blocks + nr_blocks / 16, *used;
	struct world w = { .is_scattered = is_scattered };
	struct okv_extent_rec *recs;
	struct okv_index_stats stats;
	unsigned int round, i;
	double start;

	recs = must_alloc(nr_granules * sizeof(*recs));
	used = must_alloc(okv_extent_used_words(nr_granules) * sizeof(*used));
	must(okv_extent_map_init(&w.map, recs, used, nr_granules) == 0 &&
	     okv_extent_map_add(&w.map, nr_granules) == 0, "extent map");
	must(okv_index_create(&config, &w.ix) == 0, "index");
	for (i = 0; i < NR_PROMPTS; i++) {
		w.keys[i] = must_alloc(PROMPT_BLOCKS * sizeof(*w.keys[i]));
		omnikv_chain_fast(chain_key, NULL, prompt_tokens[i], PROMPT_TOKENS, w.keys[i]);
	}
	start = now_ns();
	fill(&w, nr_blocks);
	report(is_scattered ? "fill, scattered" : "fill, runs", "ns/block", (now_ns() - start) / (double)nr_blocks);
	okv_index_stats(w.ix, &stats);
	report("memory of index", "B/block", (double)stats.bytes / (double)stats.nr_entries);
	for (round = 0; round < nr_rounds; round++) {
		if (with_match)
			match_round(&w, names[is_scattered]);
		if (!is_scattered)
			churn_round(&w);
	}
	print_rows();
	okv_index_destroy(w.ix);
	for (i = 0; i < NR_PROMPTS; i++)
		free(w.keys[i]);
	free(w.last);
	free(w.last_extent);
	free(recs);
	free(used);
}

int main(int argc, char **argv)
{
	uint64_t nr_blocks = 8u << 20;
	unsigned int nr_rounds = 7, i, t;
	const char *only = "";
	int a;

	for (a = 1; a + 1 < argc; a += 2) {
		if (!strcmp(argv[a], "--blocks"))
			nr_blocks = strtoull(argv[a + 1], NULL, 10);
		else if (!strcmp(argv[a], "--rounds"))
			nr_rounds = (unsigned int)strtoul(argv[a + 1], NULL, 10);
		else if (!strcmp(argv[a], "--only"))
			only = argv[a + 1];
		else
			break;
	}
	if (a < argc || nr_rounds == 0 || nr_rounds > ROUNDS_MAX || nr_blocks < NR_PROMPTS * PROMPT_BLOCKS) {
		fprintf(stderr, "usage: index [--blocks N (at least %u)] [--rounds N (1 to %u)] [--only hash|runs|life|scattered]\n",
			NR_PROMPTS * PROMPT_BLOCKS, ROUNDS_MAX);
		return 2;
	}
	must(omnikv_chain_key_create("a secret for the bench", 22, T, &chain_key) == 0, "chain key");
	for (i = 0; i < NR_PROMPTS; i++) {
		prompt_tokens[i] = must_alloc(PROMPT_TOKENS * sizeof(uint32_t));
		for (t = 0; t < PROMPT_TOKENS; t++)
			prompt_tokens[i][t] = (uint32_t)(draw() >> 40) % 128256;
	}
	if (strstr("hash", only))
		hash_rows(nr_rounds);
	if (strstr("runs", only) || strstr("life", only))
		index_rows(nr_blocks, false, strstr("runs", only) != NULL, nr_rounds);
	if (strstr("scattered", only))
		index_rows(nr_blocks, true, true, nr_rounds);
	for (i = 0; i < NR_PROMPTS; i++)
		free(prompt_tokens[i]);
	omnikv_chain_key_destroy(chain_key);
	return 0;
}

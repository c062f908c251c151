// SPDX-License-Identifier: GPL-2.0-only
/*
 * The manager and sequences on a full pool: what a block costs from allocation to publication,
 * what a hit costs, and what a fork costs.
 *
 *	manager [--blocks N] [--request N] [--rounds N]
 *
 * Blocks have one row of one byte a token, so that checksums cost a call and a cache miss each and
 * no bandwidth. Each request is new, so each of its blocks evicts one. Prints one JSON object a
 * row: name, median, min, max, unit. Thread CPU time. One thread. Reports, never judges.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <omnikv.h>

#define T		16u
#define ROUNDS_MAX	101u
#define REQUESTS	256u	/* of a round */
#define FORKS		1000u

enum row { ROW_OPEN_MISS, ROW_APPEND, ROW_COMMIT, ROW_CLOSE, ROW_MATCH, ROW_OPEN_HIT, ROW_PIECES, ROW_FORK, NR_ROWS };

static const char *const names[NR_ROWS][2] = {
	[ROW_OPEN_MISS] = { "open, nothing cached", "ns/block" },
	[ROW_APPEND] = { "append, each block evicts one", "ns/block" },
	[ROW_COMMIT] = { "commit", "ns/block" },
	[ROW_CLOSE] = { "close", "ns/block" },
	[ROW_MATCH] = { "match and put, all cached", "ns/block" },
	[ROW_OPEN_HIT] = { "open and close, all cached", "ns/block" },
	[ROW_PIECES] = { "pieces of a layer", "ns/block" },
	[ROW_FORK] = { "fork", "ns" },
};

static double samples[NR_ROWS][ROUNDS_MAX];

static double now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (double)ts.tv_sec * 1e9 + (double)ts.tv_nsec;
}

static void must(bool is_true, const char *what)
{
	if (is_true)
		return;
	fprintf(stderr, "manager: wrong: %s\n", what);
	exit(1);
}

static struct omnikv_space *open_space(uint64_t nr_blocks, struct omnikv_manager **manager)
{
	struct omnikv_plan_config config = { .size = sizeof(config), .block_tokens = T, .granule_bytes = 4096 };
	struct omnikv_layout *layout = calloc(1, sizeof(*layout));
	struct omnikv_plan *plan = calloc(1, sizeof(*plan));
	struct omnikv_namespace ns = { .size = sizeof(ns), .block_tokens = T };
	struct omnikv_client *client;
	struct omnikv_space *space;
	struct omnikv_pool *pool;
	char spec[32];

	must(layout && plan, "memory");
	strcpy(layout->name, "bench");
	layout->nr_layers = 1;
	layout->nr_groups = 1;
	layout->groups[0].nr_layers = 1;
	memset(layout->groups[0].alias_of, 0xff, sizeof(layout->groups[0].alias_of));
	layout->groups[0].tokens_per_entry = 1;
	layout->groups[0].nr_planes = 1;
	layout->groups[0].planes[0] = (struct omnikv_plane){ .dtype = OMNIKV_DTYPE_U8, .heads = 1, .elems = 1 };
	must(!omnikv_plan_make(layout, &config, plan, NULL), "plan");
	snprintf(spec, sizeof(spec), "%llu", (unsigned long long)nr_blocks * 4096);
	must(!omnikv_pool_open(spec, NULL, &pool, NULL), "pool");
	must(!omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &client), "client");
	must(!omnikv_manager_create(client, NULL, manager, NULL), "manager");
	ns.layout = &plan->layout;
	must(!omnikv_space_open(*manager, &ns, plan, &space, NULL), "space");
	free(layout);
	return space;
}

/* A request that was never there: opened, appended, committed, closed. */
static void new_request(struct omnikv_space *space, struct omnikv_key *keys, uint64_t nr, double *times)
{
	static uint64_t last;
	struct omnikv_seq *seq;
	double at[5];

	for (uint64_t i = 0; i < nr; i++) {
		uint64_t words[2] = { last * 0x9e3779b97f4a7c15ull, last };

		last++;
		must(!omnikv_key_init(&keys[i], words, sizeof(words)), "key");
	}
	at[0] = now_ns();
	must(!omnikv_seq_open(space, keys, nr, NULL, &seq), "open");
	at[1] = now_ns();
	must(!omnikv_seq_append(seq, nr * T), "append");
	at[2] = now_ns();
	must(omnikv_seq_commit(seq, keys, nr, NULL) == (int64_t)nr, "commit");
	at[3] = now_ns();
	omnikv_seq_close(seq);
	at[4] = now_ns();
	for (uint32_t i = 0; i < 4; i++)
		times[ROW_OPEN_MISS + i] += at[i + 1] - at[i];
}

static void one_round(struct omnikv_space *space, struct omnikv_key *keys, struct omnikv_piece *pieces, uint64_t nr,
		      uint32_t round)
{
	static struct omnikv_seq *forks[FORKS];
	double times[NR_ROWS] = { 0 }, start;
	struct omnikv_match *match;
	struct omnikv_seq *seq;

	for (uint32_t i = 0; i < REQUESTS; i++)
		new_request(space, keys, nr, times);
	start = now_ns();
	for (uint32_t i = 0; i < REQUESTS; i++) {
		must(!omnikv_match(space, keys, nr, NULL, &match), "match");
		must(omnikv_match_blocks(match) == nr, "hit");
		omnikv_match_put(match);
	}
	times[ROW_MATCH] = now_ns() - start;
	start = now_ns();
	for (uint32_t i = 0; i < REQUESTS; i++) {
		must(!omnikv_seq_open(space, keys, nr, NULL, &seq), "open");
		omnikv_seq_close(seq);
	}
	times[ROW_OPEN_HIT] = now_ns() - start;
	must(!omnikv_seq_open(space, keys, nr, NULL, &seq), "open");
	start = now_ns();
	for (uint32_t i = 0; i < REQUESTS; i++)
		must(omnikv_seq_pieces(seq, 0, 0, 0, 0, nr * T, 0, pieces, nr) == (int64_t)nr, "pieces");
	times[ROW_PIECES] = now_ns() - start;
	start = now_ns();
	for (uint32_t i = 0; i < FORKS; i++)
		must(!omnikv_seq_fork(seq, &forks[i]), "fork");
	times[ROW_FORK] = now_ns() - start;
	for (uint32_t i = 0; i < FORKS; i++)
		omnikv_seq_close(forks[i]);
	omnikv_seq_close(seq);
	for (uint32_t i = 0; i < NR_ROWS; i++)
		samples[i][round] = times[i] / (i == ROW_FORK ? FORKS : (double)REQUESTS * (double)nr);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
	uint64_t nr_blocks = 65536, nr_request = 64, nr_rounds = 11;
	struct omnikv_manager *manager;
	struct omnikv_piece *pieces;
	struct omnikv_space *space;
	struct omnikv_key *keys;
	double unused[NR_ROWS] = { 0 };
	int a;

	for (a = 1; a + 1 < argc; a += 2) {
		if (!strcmp(argv[a], "--blocks"))
			nr_blocks = strtoull(argv[a + 1], NULL, 10);
		else if (!strcmp(argv[a], "--request"))
			nr_request = strtoull(argv[a + 1], NULL, 10);
		else if (!strcmp(argv[a], "--rounds"))
			nr_rounds = strtoull(argv[a + 1], NULL, 10);
		else
			break;
	}
	if (a < argc || !nr_request || nr_request > nr_blocks || !nr_rounds || nr_rounds > ROUNDS_MAX) {
		fprintf(stderr, "usage: manager [--blocks N] [--request N (at most --blocks)] [--rounds N (1 to %u)]\n",
			ROUNDS_MAX);
		return 2;
	}
	space = open_space(nr_blocks, &manager);
	keys = calloc(nr_request, sizeof(*keys));
	pieces = calloc(nr_request, sizeof(*pieces));
	must(keys && pieces, "memory");
	/* Until the pool is full and has been turned over once. */
	for (uint64_t i = 0; i < 2 * nr_blocks; i += nr_request)
		new_request(space, keys, nr_request, unused);
	for (uint32_t round = 0; round < nr_rounds; round++)
		one_round(space, keys, pieces, nr_request, round);
	must(!omnikv_manager_check(manager, NULL), "invariants");
	for (uint32_t i = 0; i < NR_ROWS; i++) {
		qsort(samples[i], nr_rounds, sizeof(samples[i][0]), by_value);
		printf("{\"name\": \"%s\", \"median\": %.4g, \"min\": %.4g, \"max\": %.4g, \"unit\": \"%s\", \"rounds\": %u}\n",
		       names[i][0], samples[i][nr_rounds / 2], samples[i][0], samples[i][nr_rounds - 1], names[i][1],
		       (unsigned int)nr_rounds);
	}
	free(keys);
	free(pieces);
	return 0;
}

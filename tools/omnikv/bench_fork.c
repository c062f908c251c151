// SPDX-License-Identifier: GPL-2.0-only
/*
 * Row fork: a thousand forks of a sequence of 100,000 tokens, and the first append of each, which
 * copies the partial tail and nothing else.
 *
 * A real layout (32 layers, K and V) with its bytes divided, by as little as fits: a tail of the
 * whole would be 1 MiB. What must hold is checked outside of what is timed: lengths, and how much
 * of the pool is in use. One thread.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <omnikv.h>

#include "bench.h"
#include "cmd.h"

#define NR_FORKS	1000u
#define NR_APPENDS	100u
#define T		16u
#define NR_TOKENS	100008ull	/* 6,250 blocks, and a tail of half a block */

struct world {
	struct omnikv_pool	*pool;
	struct omnikv_client	*client;
	struct omnikv_manager	*manager;
	struct omnikv_space	*space;
	struct omnikv_layout	layout;
	struct omnikv_plan	plan;
};

/* What the model's 128 KiB a token are divided by: 3.2 GiB of KV where a GiB is worked on. */
static uint32_t scale_of(uint64_t footprint_bytes)
{
	return footprint_bytes >= 1u << 30 ? 4 : 64;
}

uint64_t okv_bench_fork_need(uint64_t footprint_bytes)
{
	return (NR_TOKENS + 4 * NR_APPENDS * T) * (131072 / scale_of(footprint_bytes)) + (64u << 20);
}

static void open_world(struct world *w, uint32_t scale)
{
	struct omnikv_plan_config config = { .size = sizeof(config), .block_tokens = T, .granule_bytes = 4096,
		.scale = scale };
	struct omnikv_namespace ns = { .size = sizeof(ns), .tenant = "bench", .weights = "none", .layout = &w->plan.layout,
		.block_tokens = T };
	struct omnikv_error err = { "" };
	char spec[32];

	if (omnikv_layout_preset("llama-3-8b", &w->layout, &err) || omnikv_plan_make(&w->layout, &config, &w->plan, &err))
		okv_die("no plan: %s", err.text);
	snprintf(spec, sizeof(spec), "%llu",
		 (unsigned long long)((NR_TOKENS / T + 2 + NR_APPENDS) * omnikv_plan_block_bytes(&w->plan)));
	if (omnikv_pool_open(spec, NULL, &w->pool, &err) || omnikv_client_open(w->pool, OMNIKV_CLIENT_F_MANAGER, &w->client) ||
	    omnikv_manager_create(w->client, NULL, &w->manager, &err) ||
	    omnikv_space_open(w->manager, &ns, &w->plan, &w->space, &err))
		okv_die("no pool of %s bytes: %s", spec, err.text);
}

static void close_world(struct world *w)
{
	omnikv_space_close(w->space);
	omnikv_manager_destroy(w->manager);
	omnikv_client_close(w->client);
	omnikv_pool_close(w->pool);
}

static uint64_t used_bytes(struct world *w)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	okv_bench_must(!omnikv_pool_info(w->pool, &info), "no state of the pool");
	return info.usable_bytes - info.free_bytes;
}

/* What a tail costs to copy: all its rows, from where they lie to where a fresh block lies. */
static double copy_ns(struct world *w, struct omnikv_seq *seq, unsigned char *to, size_t stride)
{
	uint32_t planes = w->plan.layout.groups[0].nr_planes, layers = w->plan.groups[0].nr_stored, l, p, i;
	struct omnikv_piece piece;
	double start = okv_bench_cpu_ns();

	for (i = 0; i < NR_APPENDS; i++) {
		unsigned char *at = to + i * stride;

		for (l = 0; l < layers; l++) {
			for (p = 0; p < planes; p++) {
				okv_bench_must(omnikv_seq_pieces(seq, 0, l, p, NR_TOKENS / T * T, NR_TOKENS, 0, &piece, 1) == 1,
					       "no tail");
				memcpy(at, (unsigned char *)omnikv_pool_addr(w->pool, &piece.extent) + piece.extent_off,
				       piece.bytes);
				at += piece.bytes;
			}
		}
	}
	return (okv_bench_cpu_ns() - start) / NR_APPENDS;
}

void okv_bench_fork(struct okv_bench *bench)
{
	static struct omnikv_seq *forks[NR_FORKS];
	struct okv_bench_row *fork, *append;
	static struct world w;
	struct omnikv_seq *seq;
	unsigned char *to;
	uint64_t used, block;
	unsigned int round, i;
	char text[80];

	open_world(&w, scale_of(bench->footprint_bytes));
	block = omnikv_plan_block_bytes(&w.plan);
	to = okv_bench_alloc(bench, NR_APPENDS * block);
	okv_bench_must(!omnikv_seq_open(w.space, NULL, 0, NULL, &seq) && !omnikv_seq_append(seq, NR_TOKENS), "no sequence");
	used = used_bytes(&w);
	okv_bench_must(used == (NR_TOKENS / T + 1) * block, "a sequence of unexpected size");
	fork = okv_bench_row(bench, &(struct okv_bench_desc) {
		.row = "fork", .workload = "1,000 forks of 100,008 tokens", .unit = "us", .clock = "thread CPU", .is_lower_better = true,
		.target_of = OKV_TARGET_OURS, .target = 1000,
	});
	snprintf(text, sizeof(text), "first append of a fork, %llu KiB of tail", (unsigned long long)block / 2 >> 10);
	append = okv_bench_row(bench, &(struct okv_bench_desc) {
		.row = "fork", .workload = text, .unit = "us", .clock = "thread CPU", .is_lower_better = true,
		.limit = "one copy of the rows of the tail", .target_of = OKV_TARGET_RATIO, .target = 1.2,
	});
	/* Round 0 warms up. */
	for (round = 0; round <= bench->nr_rounds; round++) {
		double start = okv_bench_cpu_ns(), forks_ns, append_ns;

		for (i = 0; i < NR_FORKS; i++)
			okv_bench_must(!omnikv_seq_fork(seq, &forks[i]), "no fork");
		forks_ns = okv_bench_cpu_ns() - start;
		okv_bench_must(used_bytes(&w) == used, "forks took memory");
		start = okv_bench_cpu_ns();
		for (i = 0; i < NR_APPENDS; i++)
			okv_bench_must(!omnikv_seq_append(forks[i], 1), "no append");
		append_ns = (okv_bench_cpu_ns() - start) / NR_APPENDS;
		okv_bench_must(used_bytes(&w) == used + NR_APPENDS * block, "appends took more or less than a tail each");
		if (round) {
			okv_bench_sample(fork, forks_ns / 1e3, (double)NAN, (double)NAN);
			okv_bench_sample(append, append_ns / 1e3, copy_ns(&w, seq, to, block) / 1e3, (double)NAN);
		}
		for (i = 0; i < NR_FORKS; i++)
			omnikv_seq_close(forks[i]);
		okv_bench_must(used_bytes(&w) == used && omnikv_seq_tokens(seq) == NR_TOKENS, "forks left something behind");
	}
	omnikv_seq_close(seq);
	okv_bench_note_pages(bench);
	close_world(&w);
}

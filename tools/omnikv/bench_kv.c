// SPDX-License-Identifier: GPL-2.0-only
/*
 * Blocks whose key and bytes follow from their number; see bench_kv.h.
 *
 * Whoever looks a block up knows so what must lie there, in whatever process and after whatever restart,
 * without keeping it.
 */
#include "bench_kv.h"

#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cmd.h"

#define T	OKV_BENCH_KV_TOKENS

void okv_bench_kv_plan(struct omnikv_plan *plan, uint32_t block_bytes)
{
	struct omnikv_plan_config config = { .size = sizeof(config), .block_tokens = T, .granule_bytes = 4096 };
	struct omnikv_layout *layout = calloc(1, sizeof(*layout));
	struct omnikv_error err = { "" };

	okv_bench_must(layout != NULL, "no memory for a layout");
	strcpy(layout->name, "bench");
	layout->nr_layers = 1;
	layout->nr_groups = 1;
	layout->groups[0].nr_layers = 1;
	memset(layout->groups[0].alias_of, 0xff, sizeof(layout->groups[0].alias_of));
	layout->groups[0].tokens_per_entry = 1;
	layout->groups[0].nr_planes = 1;
	layout->groups[0].planes[0] = (struct omnikv_plane){ .dtype = OMNIKV_DTYPE_U8, .heads = 16, .elems = block_bytes / T / 16 };
	if (omnikv_plan_make(layout, &config, plan, &err))
		okv_die("no plan: %s", err.text);
	free(layout);
	okv_bench_must(omnikv_plan_block_bytes(plan) == block_bytes, "a plan with blocks of another size");
}

struct omnikv_space *okv_bench_kv_open(struct omnikv_manager *manager, const struct omnikv_plan *plan)
{
	struct omnikv_namespace ns = { .size = sizeof(ns), .tenant = "bench", .weights = "none", .layout = &plan->layout,
		.block_tokens = T };
	struct omnikv_error err = { "" };
	struct omnikv_space *space;

	if (omnikv_space_open(manager, &ns, plan, &space, &err))
		okv_die("no namespace: %s", err.text);
	return space;
}

struct omnikv_key okv_bench_kv_key(uint64_t number)
{
	uint64_t words[2] = { (number + 1) * 0x9e3779b97f4a7c15ull, number };
	struct omnikv_key key = { .len = 0 };

	okv_bench_must(!omnikv_key_init(&key, words, sizeof(words)), "no key");
	return key;
}

static uint64_t word_of(uint64_t number, uint64_t i)
{
	return (number << 32 | i) * 0x2545f4914f6cdd1dull;
}

bool okv_bench_kv_is_right(const void *block, uint64_t number, uint64_t bytes)
{
	const uint64_t *words = block;
	uint64_t i;

	for (i = 0; i < bytes / sizeof(*words) && words[i] == word_of(number, i); i++)
		;
	return i == bytes / sizeof(*words);
}

void okv_bench_kv_store(struct omnikv_space *space, uint64_t first, size_t nr_blocks)
{
	struct omnikv_pool *pool = omnikv_client_pool(omnikv_manager_client(omnikv_space_manager(space)));
	struct omnikv_key *keys = malloc(nr_blocks * sizeof(*keys));
	struct omnikv_seq *seq;
	struct omnikv_piece piece;

	okv_bench_must(keys != NULL, "no memory for keys");
	for (size_t i = 0; i < nr_blocks; i++)
		keys[i] = okv_bench_kv_key(first + i);
	okv_bench_must(!omnikv_seq_open(space, NULL, 0, NULL, &seq) && !omnikv_seq_append(seq, nr_blocks * T), "no sequence");
	for (size_t i = 0; i < nr_blocks; i++) {
		uint64_t *words;

		okv_bench_must(omnikv_seq_pieces(seq, 0, 0, 0, i * T, (i + 1) * T, 0, &piece, 1) == 1, "no block");
		words = (uint64_t *)((unsigned char *)omnikv_pool_addr(pool, &piece.extent) + piece.extent_off);
		for (uint64_t k = 0; k < piece.bytes / sizeof(*words); k++)
			words[k] = word_of(first + i, k);
	}
	okv_bench_must(omnikv_seq_commit(seq, keys, nr_blocks, NULL) == (int64_t)nr_blocks, "no commit");
	omnikv_seq_close(seq);
	free(keys);
}

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Cached blocks with known contents, for benchmarks: prompts of numbered blocks, and what lies in each.
 *
 * One thread.
 */
#ifndef OKV_BENCH_KV_H
#define OKV_BENCH_KV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <omnikv.h>

#define OKV_BENCH_KV_TOKENS	16u	/* T */

/** A plan of blocks of @block_bytes, a multiple of 4096 up to 1 MiB: one layer with one plane, nothing left over. */
void okv_bench_kv_plan(struct omnikv_plan *plan, uint32_t block_bytes);
struct omnikv_space *okv_bench_kv_open(struct omnikv_manager *manager, const struct omnikv_plan *plan);
/** The key of block @number; as one that names its whole prefix. */
struct omnikv_key okv_bench_kv_key(uint64_t number);
/** Write and commit a prompt of @nr_blocks blocks, @first and on. Ends the program where that fails. */
void okv_bench_kv_store(struct omnikv_space *space, uint64_t first, size_t nr_blocks);
/** Is it what okv_bench_kv_store() wrote into block @number? */
bool okv_bench_kv_is_right(const void *block, uint64_t number, uint64_t bytes);

#endif /* OKV_BENCH_KV_H */

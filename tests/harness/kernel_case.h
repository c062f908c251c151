/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Random cases for kernels: memory for both sides, filled and fenced, once for the definition and once for the code
 * under test, and a comparison of every byte of both.
 *
 * A case is made twice from one seed; everything in it has the same distances in both. Under the address sanitizer
 * what lies between the runs of a case may not be read.
 */
#ifndef OKV_TEST_KERNEL_CASE_H
#define OKV_TEST_KERNEL_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** splitmix64 */
uint64_t case_random(uint64_t *state);
/** 0 to @limit - 1. */
uint32_t case_below(uint64_t *state, uint32_t limit);
/** 0, 1, 2^k - 1, 2^k, 2^k + 1 or anything, up to @max. */
uint32_t case_size(uint64_t *state, uint32_t max);

/** One region of memory from which runs are taken one after another, with gaps between. */
struct case_arena {
	unsigned char	*base;
	size_t		bytes;
	size_t		used;
};

/** @fill: seed of the bytes, or 0 for 0xa5 everywhere. Nothing of it may be read before it is taken. */
void case_arena_init(struct case_arena *arena, size_t bytes, uint64_t fill);
void case_arena_fini(struct case_arena *arena);
/** @bytes that begin @skew bytes behind a multiple of 256. */
void *case_arena_take(struct case_arena *arena, size_t bytes, uint32_t skew);
/** Are the bytes of both the same, also between what was taken? -1, or the first that differs. */
int64_t case_arena_differ(struct case_arena *a, struct case_arena *b);

#endif /* OKV_TEST_KERNEL_CASE_H */

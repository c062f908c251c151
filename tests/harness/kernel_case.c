// SPDX-License-Identifier: GPL-2.0-only
/*
 * Random cases for kernels. See kernel_case.h.
 *
 * One thread.
 */
#include "kernel_case.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif
#ifdef HAS_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes)	((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes)	((void)(address), (void)(bytes))
#endif

#define ALIGN	256u
#define GAP	64u

uint64_t case_random(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

uint32_t case_below(uint64_t *state, uint32_t limit)
{
	return limit ? (uint32_t)(case_random(state) % limit) : 0;
}

uint32_t case_size(uint64_t *state, uint32_t max)
{
	uint32_t log2_max = 0, size;

	while (log2_max < 31 && (2u << log2_max) <= max)
		log2_max++;
	switch (case_below(state, 6)) {
	case 0:
		size = 0;
		break;
	case 1:
		size = 1;
		break;
	case 2:
		size = case_below(state, max + 1);
		break;
	default:
		size = (1u << case_below(state, log2_max + 1)) + case_below(state, 3) - 1;
		break;
	}
	return size < max ? size : max;
}

void case_arena_init(struct case_arena *arena, size_t bytes, uint64_t fill)
{
	size_t i;

	arena->bytes = (bytes + ALIGN - 1) / ALIGN * ALIGN;
	arena->used = 0;
	arena->base = aligned_alloc(ALIGN, arena->bytes);
	assert(arena->base);
	memset(arena->base, 0xa5, arena->bytes);
	for (i = 0; fill && i + 8 <= arena->bytes; i += 8) {
		uint64_t word = case_random(&fill);

		memcpy(arena->base + i, &word, 8);
	}
	ASAN_POISON_MEMORY_REGION(arena->base, arena->bytes);
}

void case_arena_fini(struct case_arena *arena)
{
	ASAN_UNPOISON_MEMORY_REGION(arena->base, arena->bytes);
	free(arena->base);
}

void *case_arena_take(struct case_arena *arena, size_t bytes, uint32_t skew)
{
	size_t begin = (arena->used + ALIGN - 1) / ALIGN * ALIGN + skew;

	assert(begin + bytes + GAP <= arena->bytes);
	arena->used = begin + bytes + GAP;
	ASAN_UNPOISON_MEMORY_REGION(arena->base + begin, bytes);
	return arena->base + begin;
}

int64_t case_arena_differ(struct case_arena *a, struct case_arena *b)
{
	size_t i;

	assert(a->bytes == b->bytes);
	ASAN_UNPOISON_MEMORY_REGION(a->base, a->bytes);
	ASAN_UNPOISON_MEMORY_REGION(b->base, b->bytes);
	if (!memcmp(a->base, b->base, a->bytes))
		return -1;
	for (i = 0; i < a->bytes; i++) {
		if (a->base[i] != b->base[i])
			return (int64_t)i;
	}
	return -1;
}

// SPDX-License-Identifier: MIT
/*
 * Copies by AVX2, with CRC32C by the crc32 instruction.
 *
 * Owns the inner loops only; copy.c says when they may run. Any thread enters. The instruction
 * takes three cycles but one can begin in each, so the sums of four runs side by side keep it
 * busy; a run on its own is summed at a third of that.
 */
#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define TARGET	__attribute__((target("avx2,sse4.2")))
#define LINE_MASK	31

#include "copy_groups.h"

/*
 * Each run goes on by so much before the next one's turn. Four streams of stores that change at every line run at a
 * third of the speed on Zen 3, where two stores make a line.
 */
#define STEP_BYTES	512

INLINE uint64_t crc_line(uint64_t crc, const unsigned char *p)
{
	unsigned int i;
	uint64_t word;

	UNROLL for (i = 0; i < 64; i += 8) {
		memcpy(&word, p + i, 8);
		crc = _mm_crc32_u64(crc, word);
	}
	return crc;
}

INLINE void copy_tail(const struct okv_run *r, uint64_t off, uint32_t *crc)
{
	uint64_t rest = r->bytes - off, word;
	const unsigned char *src = (const unsigned char *)r->src + off;

	memcpy((unsigned char *)r->dst + off, src, rest);
	if (!crc)
		return;
	for (; rest >= 8; rest -= 8, src += 8) {
		memcpy(&word, src, 8);
		*crc = (uint32_t)_mm_crc32_u64(*crc, word);
	}
	for (; rest; rest--, src++)
		*crc = _mm_crc32_u8(*crc, *src);
	*crc = ~*crc;
}

INLINE void copy_lines(const struct tuning *t, const struct okv_run *r, const struct okv_run *ahead, const unsigned int nr,
		       uint64_t bytes, uint64_t ahead_off, const bool sums, uint32_t *crc)
{
	const unsigned char *src[LANES_MAX], *next[LANES_MAX];
	uint64_t sum[LANES_MAX], from, to, off;
	unsigned char *dst[LANES_MAX];
	unsigned int i;

	UNROLL for (i = 0; i < nr; i++) {
		src[i] = r[i].src;
		dst[i] = r[i].dst;
		next[i] = (const unsigned char *)ahead[i].src + ahead_off;
		sum[i] = ~0u;
	}
	bytes &= ~UINT64_C(63);
	for (from = 0; from < bytes; from = to) {
		to = bytes - from < STEP_BYTES ? bytes : from + STEP_BYTES;
		UNROLL_OUTER for (i = 0; i < nr; i++) {
			for (off = from; off < to; off += 64) {
				__m256i a = _mm256_loadu_si256((const __m256i *)(src[i] + off));
				__m256i b = _mm256_loadu_si256((const __m256i *)(src[i] + off + 32));

				prefetch(t, next[i] + off);
				_mm256_stream_si256((__m256i *)(dst[i] + off), a);
				_mm256_stream_si256((__m256i *)(dst[i] + off + 32), b);
			}
		}
		/* From the nearest cache, all runs at once. */
		for (off = from; sums && off < to; off += 64) {
			UNROLL for (i = 0; i < nr; i++)
				sum[i] = crc_line(sum[i], src[i] + off);
		}
	}
	UNROLL for (i = 0; i < nr; i++) {
		if (sums)
			crc[i] = (uint32_t)sum[i];
	}
}

INLINE void copy_whole(const struct tuning *t, const struct okv_run *r, const struct okv_run *ahead,
		       const unsigned int lines, const bool sums, uint32_t *crc)
{
	const unsigned char *src = r->src, *next = ahead->src;
	__m256i half[2 * WHOLE_LINES_MAX];
	unsigned char *dst = r->dst;
	uint64_t sum = ~0u;
	unsigned int i;

	UNROLL_WHOLE for (i = 0; i < 2 * lines; i++)
		half[i] = _mm256_loadu_si256((const __m256i *)(src + 32 * i));
	UNROLL_WHOLE for (i = 0; i < lines; i++)
		prefetch(t, next + 64 * i);
	UNROLL_WHOLE for (i = 0; i < 2 * lines; i++)
		_mm256_stream_si256((__m256i *)(dst + 32 * i), half[i]);
	if (!sums)
		return;
	UNROLL_WHOLE for (i = 0; i < lines; i++)
		sum = crc_line(sum, src + 64 * i);
	*crc = (uint32_t)sum;
}

INLINE void copy_one(const struct tuning *t, const struct okv_run *r, const bool sums, uint32_t *crc)
{
	uint64_t lines = r->bytes & ~UINT64_C(63);

	if (((uintptr_t)r->dst & 31) || !lines) {
		lines = 0;
		if (sums)
			*crc = ~0u;
	} else {
		copy_lines(t, r, r, 1, r->bytes, t->alone_ahead, sums, crc);
	}
	copy_tail(r, lines, sums ? crc : NULL);
}

/* Four sums keep the crc32 instruction busy. */
static const struct tuning tuning = {
	.short_lanes = 1, .short_sum_lanes = 4, .medium_sum_lanes = 4,
	.short_ahead = 40960, .medium_ahead = 49152, .long_ahead = 8192, .alone_ahead = 8192,
};
static const struct tuning tuning_amd = {
	.is_near = true, .whole_lines = 9, .short_lanes = 2, .short_sum_lanes = 1, .medium_sum_lanes = 4,
	.short_ahead = 12288, .medium_ahead = 12288, .long_ahead = 8192,
};

TARGET void okv_copy_runs_avx2(const struct okv_run *runs, size_t nr, uint32_t *crc)
{
	copy_list(&tuning, runs, nr, crc);
}

TARGET void okv_copy_runs_avx2_amd(const struct okv_run *runs, size_t nr, uint32_t *crc)
{
	copy_list(&tuning_amd, runs, nr, crc);
}

#endif /* __x86_64__ */

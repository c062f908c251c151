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

INLINE void copy_lines(const struct okv_run *r, const struct okv_run *ahead, const unsigned int nr, uint64_t bytes,
		       uint64_t ahead_off, const bool sums, uint32_t *crc)
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

				_mm_prefetch((const char *)next[i] + off, _MM_HINT_T1);
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

INLINE void copy_one(const struct okv_run *r, const bool sums, uint32_t *crc)
{
	uint64_t lines = r->bytes & ~UINT64_C(63);

	if (((uintptr_t)r->dst & 31) || !lines) {
		lines = 0;
		if (sums)
			*crc = ~0u;
	} else {
		copy_lines(r, r, 1, r->bytes, LONG_AHEAD_BYTES, sums, crc);
	}
	copy_tail(r, lines, sums ? crc : NULL);
}

INLINE void copy_all(const struct okv_run *runs, size_t nr, const bool sums, uint32_t *crc)
{
	size_t i = 0;

	while (i < nr) {
		const struct okv_run *r = &runs[i];
		uint32_t *c = sums ? &crc[i] : NULL;

		if (r->bytes >= MEDIUM_BYTES || is_scatter(r, nr - i))
			i += copy_group(r, nr - i, 4, LONG_AHEAD_BYTES, sums, c);
		/* Four keep the crc32 instruction busy. */
		else if (sums)
			i += copy_group(r, nr - i, 4, SHORT_AHEAD_BYTES, sums, c);
		else if (r->bytes >= SHORT_BYTES)
			i += copy_group(r, nr - i, 2, MEDIUM_AHEAD_BYTES, sums, c);
		else
			i += copy_group(r, nr - i, 1, SHORT_AHEAD_BYTES, sums, c);
	}
	/* Streaming stores are weakly ordered. */
	_mm_sfence();
}

TARGET void okv_copy_runs_avx2(const struct okv_run *runs, size_t nr, uint32_t *crc)
{
	if (crc)
		copy_all(runs, nr, true, crc);
	else
		copy_all(runs, nr, false, NULL);
}

#endif /* __x86_64__ */

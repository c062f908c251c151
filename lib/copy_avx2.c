// SPDX-License-Identifier: MIT
/*
 * Copies by AVX2, with CRC32C by the crc32 instruction.
 *
 * Owns the inner loops only; copy.c says when they may run. Any thread enters. The instruction
 * takes three cycles but one can begin in each, so the sums of four runs side by side keep it
 * busy; a run on its own is summed at a third of that.
 */
#include "copy.h"

#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define TARGET	__attribute__((target("avx2,sse4.2")))
#define INLINE	TARGET static inline __attribute__((always_inline))

#if defined(__clang__)
#define UNROLL	_Pragma("unroll")
#else
#define UNROLL	_Pragma("GCC unroll 8")
#endif

/*
 * How many runs go side by side, and how far ahead in the list sources are prefetched, by the
 * length of a run (measured). Short ones gain nothing from company when they are gathered, since
 * what is prefetched for them is many places anyway, but for their sums: always four, for the
 * instruction's sake. Long ones are long enough for the hardware to foresee.
 */
#define LANES_MAX		4
#define SHORT_BYTES		2048	/* shorter: one by one, 40 KiB ahead */
#define SHORT_AHEAD_BYTES	40960
#define MEDIUM_BYTES		4096	/* shorter: two, 48 KiB ahead */
#define MEDIUM_AHEAD_BYTES	49152
#define LONG_AHEAD_BYTES	8192	/* others: four, 8 KiB ahead */
#define PREFETCH_BYTES_MAX	16384

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

/* What is left of a run behind @off; @crc is the register's value and becomes the sum. */
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

/* Whole lines of @nr runs of equal length, side by side; destinations are 32-byte aligned. */
INLINE void copy_lines(const struct okv_run *r, const struct okv_run *ahead, const unsigned int nr, uint64_t bytes,
		       uint64_t ahead_off, const bool sums, uint32_t *crc)
{
	const unsigned char *src[LANES_MAX], *next[LANES_MAX];
	unsigned char *dst[LANES_MAX];
	uint64_t sum[LANES_MAX], off;
	unsigned int i;

	UNROLL for (i = 0; i < nr; i++) {
		src[i] = r[i].src;
		dst[i] = r[i].dst;
		next[i] = (const unsigned char *)ahead[i].src + ahead_off;
		sum[i] = ~0u;
	}
	for (off = 0; off + 64 <= bytes; off += 64) {
		UNROLL for (i = 0; i < nr; i++) {
			__m256i a = _mm256_loadu_si256((const __m256i *)(src[i] + off));
			__m256i b = _mm256_loadu_si256((const __m256i *)(src[i] + off + 32));

			_mm_prefetch((const char *)next[i] + off, _MM_HINT_T1);
			_mm256_stream_si256((__m256i *)(dst[i] + off), a);
			_mm256_stream_si256((__m256i *)(dst[i] + off + 32), b);
		}
		UNROLL for (i = 0; i < nr; i++) {
			if (sums)
				sum[i] = crc_line(sum[i], src[i] + off);
		}
	}
	UNROLL for (i = 0; i < nr; i++) {
		if (sums)
			crc[i] = (uint32_t)sum[i];
	}
}

/* A run on its own: any length and alignment. */
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

INLINE bool is_group(const struct okv_run *r, const unsigned int lanes)
{
	uintptr_t dst = 0;
	uint64_t other = 0;
	unsigned int i;

	UNROLL for (i = 0; i < lanes; i++) {
		dst |= (uintptr_t)r[i].dst;
		other |= r[i].bytes ^ r[0].bytes;
	}
	return !(dst & 31) && !other && r[0].bytes >= 64;
}

/* The next @lanes of @nr runs, when they go together; returns how many were copied. */
INLINE size_t copy_group(const struct okv_run *r, size_t nr, const unsigned int lanes, uint64_t ahead_bytes,
			 const bool sums, uint32_t *crc)
{
	uint64_t bytes = r->bytes;
	size_t ahead = 0;
	unsigned int i;

	if (nr < lanes || !is_group(r, lanes)) {
		copy_one(r, sums, crc);
		return 1;
	}
	/* At the end of the list and in long runs none: what is being read anyway. */
	if (bytes <= PREFETCH_BYTES_MAX)
		ahead = ahead_bytes / bytes + lanes;
	if (ahead + lanes > nr)
		ahead = 0;
	copy_lines(r, r + ahead, lanes, bytes, 0, sums, crc);
	UNROLL for (i = 0; i < lanes; i++)
		copy_tail(&r[i], bytes & ~UINT64_C(63), sums ? &crc[i] : NULL);
	return lanes;
}

/* From one place to many: the sources are what the hardware foresees, the destinations want company. */
INLINE bool is_scatter(const struct okv_run *r, size_t nr)
{
	return nr > 1 && r[1].src == (const unsigned char *)r[0].src + r[0].bytes;
}

INLINE void copy_all(const struct okv_run *runs, size_t nr, const bool sums, uint32_t *crc)
{
	size_t i = 0;

	while (i < nr) {
		const struct okv_run *r = &runs[i];
		uint32_t *c = sums ? &crc[i] : NULL;

		if (r->bytes >= MEDIUM_BYTES || is_scatter(r, nr - i))
			i += copy_group(r, nr - i, 4, LONG_AHEAD_BYTES, sums, c);
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

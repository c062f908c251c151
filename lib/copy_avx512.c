// SPDX-License-Identifier: MIT
/*
 * Copies by AVX-512, with CRC32C folded by VPCLMULQDQ.
 *
 * Owns the inner loops only; copy.c says when they may run. Any thread enters. A sum is kept as a
 * 512-bit remainder that is multiplied 64 bytes onwards for each cache line, so it costs two
 * multiplications and one xor a line; at the end it is folded to 128 bits, and the crc32
 * instruction does the rest.
 */
#if defined(__x86_64__)

#include <immintrin.h>
#include <string.h>

#define TARGET	__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,vpclmulqdq,pclmul,sse4.2")))
#define LINE_MASK	63

#include "copy_groups.h"

/*
 * x^n modulo the Castagnoli polynomial, bits reversed, for a step of D bytes: the lower half of
 * the pair is n = 8 D + 31, the upper n = 8 D - 33.
 */
#define FOLD_64_LOW	0x740eef02
#define FOLD_64_HIGH	0x9e4addf8
#define FOLD_48_LOW	0x1c291d04
#define FOLD_48_HIGH	0xddc0152b
#define FOLD_32_LOW	0x3da6d0cb
#define FOLD_32_HIGH	0xba4fc28e
#define FOLD_16_LOW	0xf20c0dfe
#define FOLD_16_HIGH	0x493c7d27

INLINE __m512i fold(__m512i sum, __m512i line)
{
	const __m512i k = _mm512_broadcast_i32x4(_mm_set_epi64x(FOLD_64_HIGH, FOLD_64_LOW));

	return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(sum, k, 0x00),
					 _mm512_clmulepi64_epi128(sum, k, 0x11), line, 0x96);
}

/* The initial value, all ones, goes into the first four bytes: as if one line were before. */
INLINE __m512i first(__m512i line)
{
	return _mm512_xor_si512(line, _mm512_zextsi128_si512(_mm_cvtsi32_si128(-1)));
}

/* The sum of all lines as if it were preceded by nothing: 0 as the instruction's initial value. */
INLINE uint32_t reduce(__m512i sum)
{
	/* Lane i goes 48 - 16 i bytes onwards; the last stays. */
	const __m512i k = _mm512_set_epi64(0, 0, FOLD_16_HIGH, FOLD_16_LOW, FOLD_32_HIGH, FOLD_32_LOW,
					   FOLD_48_HIGH, FOLD_48_LOW);
	__m512i moved = _mm512_xor_si512(_mm512_clmulepi64_epi128(sum, k, 0x00), _mm512_clmulepi64_epi128(sum, k, 0x11));
	__m256i half;
	__m128i one;
	uint64_t crc;

	moved = _mm512_mask_mov_epi64(moved, 0xc0, sum);
	half = _mm256_xor_si256(_mm512_castsi512_si256(moved), _mm512_extracti64x4_epi64(moved, 1));
	one = _mm_xor_si128(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
	crc = _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(one));
	return (uint32_t)_mm_crc32_u64(crc, (uint64_t)_mm_extract_epi64(one, 1));
}

/* @crc is the register's value, not yet inverted. */
INLINE uint32_t crc_tail(uint32_t crc, const unsigned char *p, uint64_t bytes)
{
	uint64_t wide = crc, word;

	for (; bytes >= 8; bytes -= 8, p += 8) {
		memcpy(&word, p, 8);
		wide = _mm_crc32_u64(wide, word);
	}
	crc = (uint32_t)wide;
	for (; bytes; bytes--, p++)
		crc = _mm_crc32_u8(crc, *p);
	return crc;
}

INLINE void copy_lines(const struct tuning *t, const struct okv_run *r, const struct okv_run *ahead, const unsigned int nr,
		       uint64_t bytes, uint64_t ahead_off, const bool sums, uint32_t *crc)
{
	__m512i sum[LANES_MAX], line[LANES_MAX];
	const unsigned char *src[LANES_MAX], *next[LANES_MAX];
	unsigned char *dst[LANES_MAX];
	unsigned int i;
	uint64_t off;

	UNROLL for (i = 0; i < nr; i++) {
		src[i] = r[i].src;
		dst[i] = r[i].dst;
		next[i] = (const unsigned char *)ahead[i].src + ahead_off;
		sum[i] = _mm512_setzero_si512();
	}
	for (off = 0; off + 64 <= bytes; off += 64) {
		UNROLL for (i = 0; i < nr; i++)
			line[i] = _mm512_loadu_si512(src[i] + off);
		UNROLL for (i = 0; i < nr; i++)
			prefetch(t, next[i] + off);
		UNROLL for (i = 0; i < nr; i++)
			_mm512_stream_si512((__m512i *)(dst[i] + off), line[i]);
		if (!sums)
			continue;
		if (!off) {
			UNROLL for (i = 0; i < nr; i++)
				sum[i] = first(line[i]);
		} else {
			UNROLL for (i = 0; i < nr; i++)
				sum[i] = fold(sum[i], line[i]);
		}
	}
	UNROLL for (i = 0; i < nr; i++) {
		if (sums)
			crc[i] = reduce(sum[i]);
	}
}

INLINE void copy_whole(const struct tuning *t, const struct okv_run *r, const struct okv_run *ahead,
		       const unsigned int lines, const bool sums, uint32_t *crc)
{
	const unsigned char *src = r->src, *next = ahead->src;
	__m512i line[WHOLE_LINES_MAX], sum;
	unsigned char *dst = r->dst;
	unsigned int i;

	UNROLL_WHOLE for (i = 0; i < lines; i++)
		line[i] = _mm512_loadu_si512(src + 64 * i);
	UNROLL_WHOLE for (i = 0; i < lines; i++)
		prefetch(t, next + 64 * i);
	UNROLL_WHOLE for (i = 0; i < lines; i++)
		_mm512_stream_si512((__m512i *)(dst + 64 * i), line[i]);
	if (!sums)
		return;
	sum = first(line[0]);
	UNROLL_WHOLE for (i = 1; i < lines; i++)
		sum = fold(sum, line[i]);
	*crc = reduce(sum);
}

INLINE void copy_tail(const struct okv_run *r, uint64_t off, uint32_t *crc)
{
	uint64_t rest = r->bytes - off;
	const unsigned char *src = (const unsigned char *)r->src + off;
	__mmask64 mask;

	if (rest) {
		mask = (__mmask64)((UINT64_C(1) << rest) - 1);
		_mm512_mask_storeu_epi8((unsigned char *)r->dst + off, mask, _mm512_maskz_loadu_epi8(mask, src));
	}
	if (crc)
		*crc = ~crc_tail(*crc, src, rest);
}

INLINE void copy_one(const struct tuning *t, const struct okv_run *r, const bool sums, uint32_t *crc)
{
	uint64_t head = -(uintptr_t)r->dst & 63;
	struct okv_run rest;
	uint64_t off;

	if (r->bytes < 128 + head || sums) {
		/* Sums run from the first byte; stores are plain where lines are not aligned. */
		if (head || r->bytes < 64) {
			__m512i sum = _mm512_setzero_si512(), line;

			for (off = 0; off + 64 <= r->bytes; off += 64) {
				line = _mm512_loadu_si512((const unsigned char *)r->src + off);
				_mm512_storeu_si512((unsigned char *)r->dst + off, line);
				if (sums && !off)
					sum = first(line);
				else if (sums)
					sum = fold(sum, line);
			}
			if (sums)
				*crc = off ? reduce(sum) : ~0u;
			copy_tail(r, off, sums ? crc : NULL);
			return;
		}
		copy_lines(t, r, r, 1, r->bytes, t->alone_ahead, sums, crc);
		copy_tail(r, r->bytes & ~UINT64_C(63), sums ? crc : NULL);
		return;
	}
	if (head) {
		__mmask64 mask = (__mmask64)((UINT64_C(1) << head) - 1);

		_mm512_mask_storeu_epi8(r->dst, mask, _mm512_maskz_loadu_epi8(mask, r->src));
	}
	rest.src = (const unsigned char *)r->src + head;
	rest.dst = (unsigned char *)r->dst + head;
	rest.bytes = r->bytes - head;
	copy_lines(t, &rest, &rest, 1, rest.bytes, t->alone_ahead, false, NULL);
	copy_tail(&rest, rest.bytes & ~UINT64_C(63), NULL);
}

/* A sum alone would wait for itself. */
static const struct tuning tuning = {
	.short_lanes = 1, .short_sum_lanes = 2, .medium_sum_lanes = 2,
	.short_ahead = 40960, .medium_ahead = 49152, .long_ahead = 8192, .alone_ahead = 8192,
};
static const struct tuning tuning_amd = {
	.is_near = true, .whole_lines = WHOLE_LINES_MAX, .short_lanes = 2, .short_sum_lanes = 1, .medium_sum_lanes = 2,
	.short_ahead = 12288, .medium_ahead = 6144, .long_ahead = 6144,
};

TARGET void okv_copy_runs_avx512(const struct okv_run *runs, size_t nr, uint32_t *crc)
{
	copy_list(&tuning, runs, nr, crc);
}

TARGET void okv_copy_runs_avx512_amd(const struct okv_run *runs, size_t nr, uint32_t *crc)
{
	copy_list(&tuning_amd, runs, nr, crc);
}

#endif /* __x86_64__ */

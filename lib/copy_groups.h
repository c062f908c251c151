/* SPDX-License-Identifier: MIT */
/*
 * Lists of runs, cut into groups that are copied side by side: the same for every vector width.
 *
 * Included by one file a width, which defines TARGET (its instructions) and LINE_MASK (of the addresses that its
 * stores are aligned to) before, and the three functions that are declared here behind. All of it is inlined into that
 * file's one entry; the numbers of runs and whether there are sums are constants there. Any thread.
 */
#ifndef OKV_COPY_GROUPS_H
#define OKV_COPY_GROUPS_H

#include "copy.h"

#define INLINE	TARGET static inline __attribute__((always_inline))

#if defined(__clang__)
#define UNROLL	_Pragma("unroll")
/* Around a loop: clang takes that for a promise which it cannot keep. */
#define UNROLL_OUTER
#else
#define UNROLL	_Pragma("GCC unroll 8")
#define UNROLL_OUTER	UNROLL
#endif

/*
 * How many runs go side by side, and how far ahead in the list sources are prefetched, by the
 * length of a run (measured). Short ones gain nothing from company when they are gathered, since
 * what is prefetched for them is many places anyway, but for their sums; long ones are long enough
 * for the hardware to foresee.
 */
#define LANES_MAX		4
#define SHORT_BYTES		2048	/* shorter: one by one, 40 KiB ahead */
#define SHORT_AHEAD_BYTES	40960
#define MEDIUM_BYTES		4096	/* shorter: two, 48 KiB ahead */
#define MEDIUM_AHEAD_BYTES	49152
#define LONG_AHEAD_BYTES	8192	/* others: four, 8 KiB ahead */
#define PREFETCH_BYTES_MAX	16384

/* Whole lines of @nr runs of equal length, side by side, to destinations that are aligned. */
INLINE void copy_lines(const struct okv_run *r, const struct okv_run *ahead, const unsigned int nr, uint64_t bytes,
		       uint64_t ahead_off, const bool sums, uint32_t *crc);
/* What is left of a run behind @off; @crc is the register's value and becomes the sum. */
INLINE void copy_tail(const struct okv_run *r, uint64_t off, uint32_t *crc);
/* A run on its own: any length and alignment. */
INLINE void copy_one(const struct okv_run *r, const bool sums, uint32_t *crc);

INLINE bool is_group(const struct okv_run *r, const unsigned int lanes)
{
	uintptr_t dst = 0;
	uint64_t other = 0;
	unsigned int i;

	UNROLL for (i = 0; i < lanes; i++) {
		dst |= (uintptr_t)r[i].dst;
		other |= r[i].bytes ^ r[0].bytes;
	}
	return !(dst & LINE_MASK) && !other && r[0].bytes >= 64;
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

#endif /* OKV_COPY_GROUPS_H */

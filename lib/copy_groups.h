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
#define UNROLL_WHOLE	UNROLL
/* Around a loop: clang takes that for a promise which it cannot keep. */
#define UNROLL_OUTER
#else
#define UNROLL	_Pragma("GCC unroll 8")
#define UNROLL_OUTER	UNROLL
#define UNROLL_WHOLE	_Pragma("GCC unroll 32")
#endif

#define LANES_MAX		4
#define WHOLE_LINES_MAX		12
#define SHORT_BYTES		2048
#define MEDIUM_BYTES		4096
#define PREFETCH_BYTES_MAX	16384

/**
 * struct tuning - what is best on one maker's processors, measured there; constants where it is used
 * @is_near:       prefetch into L1, not into L2
 * @whole_lines:   runs of at most so many lines, up to WHOLE_LINES_MAX, go one by one, each read before any of it is written
 * @short_lanes, @short_sum_lanes: how many others shorter than SHORT_BYTES go side by side, without sums and with them
 * @medium_sum_lanes: how many shorter than MEDIUM_BYTES, with sums; without, two
 * @short_ahead, @medium_ahead, @long_ahead: how far ahead in the list sources are prefetched, bytes, by the length of a run;
 *                 runs over PREFETCH_BYTES_MAX are long enough for the hardware to foresee
 * @alone_ahead:   the same within a run on its own; 0: left to the hardware
 *
 * Runs from MEDIUM_BYTES on go by fours. Lists that scatter do too, whatever their length.
 */
struct tuning {
	bool		is_near;
	unsigned int	whole_lines;
	unsigned int	short_lanes;
	unsigned int	short_sum_lanes;
	unsigned int	medium_sum_lanes;
	uint64_t	short_ahead;
	uint64_t	medium_ahead;
	uint64_t	long_ahead;
	uint64_t	alone_ahead;
};

INLINE void prefetch(const struct tuning *t, const void *p)
{
	if (t->is_near)
		_mm_prefetch(p, _MM_HINT_T0);
	else
		_mm_prefetch(p, _MM_HINT_T1);
}

/* Whole lines of @nr runs of equal length, side by side, to destinations that are aligned. */
INLINE void copy_lines(const struct tuning *t, const struct okv_run *r, const struct okv_run *ahead, const unsigned int nr,
		       uint64_t bytes, uint64_t ahead_off, const bool sums, uint32_t *crc);
/* All @lines whole lines of a run, 1 to WHOLE_LINES_MAX, to a destination that is aligned. */
INLINE void copy_whole(const struct tuning *t, const struct okv_run *r, const struct okv_run *ahead,
		       const unsigned int lines, const bool sums, uint32_t *crc);
/* What is left of a run behind @off; @crc is the register's value and becomes the sum. */
INLINE void copy_tail(const struct okv_run *r, uint64_t off, uint32_t *crc);
/* A run on its own: any length and alignment. */
INLINE void copy_one(const struct tuning *t, const struct okv_run *r, const bool sums, uint32_t *crc);

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

INLINE bool is_whole(const struct tuning *t, uint64_t bytes)
{
	return bytes < (t->whole_lines + 1) * UINT64_C(64);
}

/* Registers have no indices: a branch for each number of lines. */
INLINE void copy_by_count(const struct tuning *t, const struct okv_run *r, const struct okv_run *ahead, const bool sums,
			  uint32_t *crc)
{
	switch (r->bytes / 64) {
#define WHOLE(lines) \
	case lines: \
		copy_whole(t, r, ahead, lines, sums, crc); \
		break
	WHOLE(1);
	WHOLE(2);
	WHOLE(3);
	WHOLE(4);
	WHOLE(5);
	WHOLE(6);
	WHOLE(7);
	WHOLE(8);
	WHOLE(9);
	WHOLE(10);
	WHOLE(11);
	WHOLE(WHOLE_LINES_MAX);
#undef WHOLE
	default:
		break;
	}
}

/* The next @lanes of @nr runs, when they go together; returns how many were copied. */
INLINE size_t copy_group(const struct tuning *t, const struct okv_run *r, size_t nr, const unsigned int lanes,
			 uint64_t ahead_bytes, const bool sums, uint32_t *crc)
{
	uint64_t bytes = r->bytes;
	size_t ahead = 0;
	unsigned int i;

	if (nr < lanes || !is_group(r, lanes)) {
		copy_one(t, r, sums, crc);
		return 1;
	}
	/* At the end of the list and in long runs none: what is being read anyway. */
	if (bytes <= PREFETCH_BYTES_MAX)
		ahead = ahead_bytes / bytes + lanes;
	if (ahead + lanes > nr)
		ahead = 0;
	if (lanes != 1 || !is_whole(t, bytes))
		copy_lines(t, r, r + ahead, lanes, bytes, 0, sums, crc);
	else
		copy_by_count(t, r, r + ahead, sums, crc);
	UNROLL for (i = 0; i < lanes; i++)
		copy_tail(&r[i], bytes & ~UINT64_C(63), sums ? &crc[i] : NULL);
	return lanes;
}

/* From one place to many: the sources are what the hardware foresees, the destinations want company. */
INLINE bool is_scatter(const struct okv_run *r, size_t nr)
{
	return nr > 1 && r[1].src == (const unsigned char *)r[0].src + r[0].bytes;
}

INLINE void copy_all(const struct tuning *t, const struct okv_run *runs, size_t nr, const bool sums, uint32_t *crc)
{
	size_t i = 0;

	while (i < nr) {
		const struct okv_run *r = &runs[i];
		uint32_t *c = sums ? &crc[i] : NULL;

		if (r->bytes >= MEDIUM_BYTES || is_scatter(r, nr - i))
			i += copy_group(t, r, nr - i, 4, t->long_ahead, sums, c);
		else if (r->bytes >= SHORT_BYTES)
			i += copy_group(t, r, nr - i, sums ? t->medium_sum_lanes : 2, t->medium_ahead, sums, c);
		else if (is_whole(t, r->bytes))
			i += copy_group(t, r, nr - i, 1, t->short_ahead, sums, c);
		else
			i += copy_group(t, r, nr - i, sums ? t->short_sum_lanes : t->short_lanes, t->short_ahead, sums, c);
	}
	/* Streaming stores are weakly ordered. */
	_mm_sfence();
}

INLINE void copy_list(const struct tuning *t, const struct okv_run *runs, size_t nr, uint32_t *crc)
{
	if (crc)
		copy_all(t, runs, nr, true, crc);
	else
		copy_all(t, runs, nr, false, NULL);
}

#endif /* OKV_COPY_GROUPS_H */

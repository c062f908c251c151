/* SPDX-License-Identifier: MIT */
/*
 * Copies of many runs by the CPU: gather, scatter, and their checksums in the same pass.
 *
 * Pure; any thread. Every path (portable, AVX2, AVX-512) gives the same bytes and sums.
 */
#ifndef OKV_COPY_H
#define OKV_COPY_H

#include <stddef.h>
#include <stdint.h>

/** One run; source and destination of no two runs overlap. */
struct okv_run {
	const void	*src;
	void		*dst;
	uint64_t	bytes;
};

/**
 * okv_copy_runs() - copy @nr runs
 * @crc: [nr] CRC32C of each run's bytes; NULL: not computed
 *
 * What was copied is visible to whoever synchronises with the caller afterwards, also where the
 * stores went around the caches.
 */
void okv_copy_runs(const struct okv_run *runs, size_t nr, uint32_t *crc);

/** Copy one run; @crc is the sum of what came before and is extended; NULL: not computed. */
void okv_copy_run_extend(const struct okv_run *run, uint32_t *crc);

#endif /* OKV_COPY_H */

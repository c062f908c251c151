/* SPDX-License-Identifier: MIT */
/*
 * Copies of many runs by the CPU: gather, scatter, and their checksums in the same pass.
 *
 * Pure; any thread. Every path gives the same bytes and sums. What the fast ones do, and why:
 *
 * - Four runs of one length are copied side by side, one or a few cache lines of each in turn: one core
 *   is bound by its own outstanding misses, and four places keep more of them busy than one.
 * - Sources some KiB ahead in the list are prefetched, since hardware does not foresee the next
 *   piece: into L2, for AMD into L1.
 * - For AMD short runs are read whole before they are written.
 * - Stores go around the caches, so that a destination is not read before it is written.
 * - The checksum is folded from the registers that the copy holds anyway.
 */
#ifndef OKV_COPY_H
#define OKV_COPY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/** One run; source and destination of no two runs overlap. */
struct okv_run {
	const void	*src;
	void		*dst;
	uint64_t	bytes;
};

enum okv_copy_path {
	OKV_COPY_PORTABLE,	/* libc and ISA-L */
	OKV_COPY_AVX2,		/* and the crc32 instruction */
	OKV_COPY_AVX2_AMD,	/* the same as AMD's caches want it */
	OKV_COPY_AVX512,	/* and VPCLMULQDQ */
	OKV_COPY_AVX512_AMD,
	OKV_COPY_NR_PATHS,
};

/** "portable", "avx2", "avx2-amd", "avx512", "avx512-amd". */
const char *okv_copy_path_name(enum okv_copy_path path);
/** This CPU, and this build, can. */
bool okv_copy_path_is_usable(enum okv_copy_path path);
/** The best usable one for this CPU's maker, or the one that the variable OMNIKV_COPY names where that is usable. */
enum okv_copy_path okv_copy_path_chosen(void);

/**
 * okv_copy_runs() - copy @nr runs
 * @crc: [nr] CRC32C of each run's bytes; NULL: not computed
 *
 * What was copied is visible to whoever synchronises with the caller afterwards, also where the
 * stores went around the caches.
 */
void okv_copy_runs(const struct okv_run *runs, size_t nr, uint32_t *crc);
/** The same by a given path, which is usable. */
void okv_copy_runs_by(enum okv_copy_path path, const struct okv_run *runs, size_t nr, uint32_t *crc);

/** Copy one run; *@crc is the sum of what came before and is extended; NULL: not computed. */
void okv_copy_run_extend(const struct okv_run *run, uint32_t *crc);

/* One file a path; copy.c chooses. */
void okv_copy_runs_portable(const struct okv_run *runs, size_t nr, uint32_t *crc);
void okv_copy_runs_avx2(const struct okv_run *runs, size_t nr, uint32_t *crc);
void okv_copy_runs_avx2_amd(const struct okv_run *runs, size_t nr, uint32_t *crc);
void okv_copy_runs_avx512(const struct okv_run *runs, size_t nr, uint32_t *crc);
void okv_copy_runs_avx512_amd(const struct okv_run *runs, size_t nr, uint32_t *crc);

#endif /* OKV_COPY_H */

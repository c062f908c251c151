// SPDX-License-Identifier: MIT
/*
 * Copies of many runs by the CPU, see copy.h: the portable path, and which path is taken.
 *
 * Owns nothing but the way bytes are moved; who may be copied where, and in which steps, is the
 * caller's. Any thread enters. The choice is the same for the whole process: it depends on the
 * CPU and on a variable that is read once.
 */
#include "copy.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"

static const char *const names[OKV_COPY_NR_PATHS] = { "portable", "avx2", "avx2-amd", "avx512", "avx512-amd" };

const char *okv_copy_path_name(enum okv_copy_path path)
{
	return names[path];
}

bool okv_copy_path_is_usable(enum okv_copy_path path)
{
#if defined(__x86_64__)
	switch (path) {
	case OKV_COPY_AVX512:
	case OKV_COPY_AVX512_AMD:
		return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		       __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
		       __builtin_cpu_supports("vpclmulqdq") && __builtin_cpu_supports("sse4.2");
	case OKV_COPY_AVX2:
	case OKV_COPY_AVX2_AMD:
		return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("sse4.2");
	default:
		return true;
	}
#else
	return path == OKV_COPY_PORTABLE;
#endif
}

static enum okv_copy_path best(void)
{
#if defined(__x86_64__)
	bool is_amd = __builtin_cpu_is("amd");

	if (okv_copy_path_is_usable(OKV_COPY_AVX512))
		return is_amd ? OKV_COPY_AVX512_AMD : OKV_COPY_AVX512;
	if (okv_copy_path_is_usable(OKV_COPY_AVX2))
		return is_amd ? OKV_COPY_AVX2_AMD : OKV_COPY_AVX2;
#endif
	return OKV_COPY_PORTABLE;
}

enum okv_copy_path okv_copy_path_chosen(void)
{
	static _Atomic int chosen = -1;
	int path = atomic_load_explicit(&chosen, memory_order_relaxed);
	const char *wanted;
	int i;

	if (path >= 0)
		return (enum okv_copy_path)path;
	path = best();
	wanted = getenv("OMNIKV_COPY");
	for (i = 0; wanted && i < OKV_COPY_NR_PATHS; i++) {
		if (!strcmp(wanted, names[i]) && okv_copy_path_is_usable((enum okv_copy_path)i))
			path = i;
	}
	atomic_store_explicit(&chosen, path, memory_order_relaxed);
	return (enum okv_copy_path)path;
}

void okv_copy_runs_portable(const struct okv_run *runs, size_t nr, uint32_t *crc)
{
	size_t i;

	for (i = 0; i < nr; i++) {
		memcpy(runs[i].dst, runs[i].src, runs[i].bytes);
		if (crc)
			crc[i] = okv_crc32c(runs[i].dst, runs[i].bytes);
	}
}

void okv_copy_runs_by(enum okv_copy_path path, const struct okv_run *runs, size_t nr, uint32_t *crc)
{
	switch (path) {
#if defined(__x86_64__)
	case OKV_COPY_AVX512:
		okv_copy_runs_avx512(runs, nr, crc);
		return;
	case OKV_COPY_AVX512_AMD:
		okv_copy_runs_avx512_amd(runs, nr, crc);
		return;
	case OKV_COPY_AVX2:
		okv_copy_runs_avx2(runs, nr, crc);
		return;
	case OKV_COPY_AVX2_AMD:
		okv_copy_runs_avx2_amd(runs, nr, crc);
		return;
#endif
	default:
		okv_copy_runs_portable(runs, nr, crc);
	}
}

void okv_copy_runs(const struct okv_run *runs, size_t nr, uint32_t *crc)
{
	okv_copy_runs_by(okv_copy_path_chosen(), runs, nr, crc);
}

/* Parts that fit L2 are summed where they are; a large one is a caller's step anyway. */
void okv_copy_run_extend(const struct okv_run *run, uint32_t *crc)
{
	const unsigned char *src = run->src;
	unsigned char *dst = run->dst;
	uint64_t rest = run->bytes;

	if (!crc) {
		memcpy(dst, src, rest);
		return;
	}
	while (rest) {
		uint64_t bytes = rest < 16384 ? rest : 16384;

		memcpy(dst, src, bytes);
		*crc = okv_crc32c_extend(*crc, dst, bytes);
		src += bytes;
		dst += bytes;
		rest -= bytes;
	}
}

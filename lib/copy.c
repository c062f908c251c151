// SPDX-License-Identifier: MIT
/*
 * Copies of many runs by the CPU, see copy.h.
 *
 * Owns nothing but the way bytes are moved; who may be copied where, and in which steps, is the
 * caller's. Any thread enters.
 */
#include "copy.h"

#include <string.h>

#include "crc32c.h"

void okv_copy_runs(const struct okv_run *runs, size_t nr, uint32_t *crc)
{
	size_t i;

	for (i = 0; i < nr; i++) {
		memcpy(runs[i].dst, runs[i].src, runs[i].bytes);
		if (crc)
			crc[i] = okv_crc32c(runs[i].dst, runs[i].bytes);
	}
}

void okv_copy_run_extend(const struct okv_run *run, uint32_t *crc)
{
	memcpy(run->dst, run->src, run->bytes);
	if (crc)
		*crc = okv_crc32c_extend(*crc, run->dst, run->bytes);
}

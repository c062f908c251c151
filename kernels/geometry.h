/* SPDX-License-Identifier: MIT */
/*
 * How work is cut, as launchers and kernels both must know it.
 *
 * Copying kernels work in groups of 8 lanes, each of which takes one slice of one entry at a time: 4 groups a warp
 * keep lanes busy where entries are short, and many groups share an entry that is long. A group has four steps of 128
 * bytes of two planes under way, so that a CTA keeps up to 64 KiB in flight: what a PCIe 5 link holds within one
 * round trip of 1.5 to 2 microseconds is some 100 KiB.
 */
#ifndef OKV_GEOMETRY_H
#define OKV_GEOMETRY_H

#include "kernels.h"

#define OKV_GROUP_LANES		8u
#define OKV_COPY_THREADS	512u
#define OKV_COPY_GROUPS		(OKV_COPY_THREADS / OKV_GROUP_LANES)
/* Steps of a group under way, and bytes of a slice: four rounds of them. */
#define OKV_COPY_UNROLL		4u
#define OKV_SLICE_BYTES		2048u
#define OKV_SLICES_MAX		65536u
#define OKV_CRC32C_THREADS	256u
#define OKV_EVENT_THREADS	32u
/* Between two looks at a word. */
#define OKV_POLL_NS		200u

#ifdef __CUDACC__
#define OKV_HD __host__ __device__
#else
#define OKV_HD
#endif

/* Slices of an entry of @bytes, at least one; the last takes whatever is left. So few that no product overflows. */
static inline OKV_HD uint64_t okv_copy_slices(uint64_t bytes)
{
	const uint64_t nr = bytes ? (bytes - 1) / OKV_SLICE_BYTES + 1 : 1;

	return nr < OKV_SLICES_MAX ? nr : OKV_SLICES_MAX;
}

#endif /* OKV_GEOMETRY_H */

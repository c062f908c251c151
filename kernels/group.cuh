/* SPDX-License-Identifier: MIT */
/*
 * What the copying kernels share: groups of lanes, the slices of their work, and loads and stores
 * that pass by the caches. Device code only.
 */
#ifndef OKV_GROUP_CUH
#define OKV_GROUP_CUH

#include "geometry.h"

/* A 64-bit address in the space of this kernel. */
template <typename T>
static __device__ __forceinline__ T *okv_at(uint64_t address)
{
	return reinterpret_cast<T *>(static_cast<uintptr_t>(address));
}

static __device__ __forceinline__ uint32_t okv_lane(void)
{
	return threadIdx.x % OKV_GROUP_LANES;
}

static __device__ __forceinline__ uint64_t okv_group(void)
{
	return ((uint64_t)blockIdx.x * blockDim.x + threadIdx.x) / OKV_GROUP_LANES;
}

static __device__ __forceinline__ uint64_t okv_nr_groups(void)
{
	return (uint64_t)gridDim.x * blockDim.x / OKV_GROUP_LANES;
}

/* Largest power of two of at most 16 that divides all of what was or-ed together into @bits. */
static __device__ __forceinline__ uint32_t okv_alignment(uint64_t bits)
{
	const uint32_t low = (uint32_t)bits & 15;

	return low ? low & (0u - low) : 16;
}

/* Every byte moves once, so none is worth a place in a cache. */
template <typename V>
static __device__ __forceinline__ V okv_load(uint64_t address)
{
	return __ldcs(okv_at<const V>(address));
}

template <typename V>
static __device__ __forceinline__ void okv_store(uint64_t address, V value)
{
	__stcs(okv_at<V>(address), value);
}

/* Where slice @slice of @nr_slices of @bytes ends: the last takes what is left, whatever the hint was. */
static __device__ __forceinline__ uint64_t okv_slice_end(uint64_t slice, uint64_t nr_slices, uint64_t bytes)
{
	return slice + 1 == nr_slices || (slice + 1) * OKV_SLICE_BYTES > bytes ? bytes : (slice + 1) * OKV_SLICE_BYTES;
}

#endif /* OKV_GROUP_CUH */

/* SPDX-License-Identifier: MIT */
/*
 * As much of CUDA C++ as the kernels use, for a host compiler: included before an unmodified .cu file.
 *
 * Grows with the kernels; what is not here does not compile, which is better than what runs differently.
 */
#ifndef OKV_SHIM_CUDA_H
#define OKV_SHIM_CUDA_H

#include <stdint.h>

#include "run.h"

#define __global__
#define __device__
#define __host__
#define __forceinline__		inline __attribute__((always_inline))
#define __launch_bounds__(...)
/* One CTA at a time; run.c fills the section before each. */
#define __shared__		static __attribute__((section("okv_shared")))

#define threadIdx		(okv_shim_place.thread)
#define blockIdx		(okv_shim_place.cta)
#define blockDim		(okv_shim_place.cta_threads)
#define gridDim			(okv_shim_place.nr_ctas)

struct alignas(16) uint4 {
	unsigned int	x, y, z, w;
};

struct alignas(8) uint2 {
	unsigned int	x, y;
};

/* Aligned as the device demands: a misaligned access is undefined here too, and the sanitizer says so. */
template <typename T>
static inline T __ldcs(const T *address)
{
	return *address;
}

template <typename T>
static inline void __stcs(T *address, T value)
{
	*address = value;
}

#define __syncthreads()		okv_shim_barrier(__FILE__, __LINE__)
#define __syncwarp()		((void)okv_shim_shuffle(__FILE__, __LINE__, 0xffffffffu, 0, 32))
#define __shfl_down_sync(mask, value, delta) \
	okv_shim_shuffle(__FILE__, __LINE__, mask, value, threadIdx.x % 32 + (delta))

#endif /* OKV_SHIM_CUDA_H */

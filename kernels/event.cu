// SPDX-License-Identifier: MIT
/*
 * Kernels wait and fire: the ends of a captured piece of work, for CUDA graphs.
 *
 * in      word   64 bits                      mapped host memory, written by copies, the host or other kernels
 * in      step   64 bits                      device memory, written in stream order before the graph is launched
 * out     late   64 bits, raised by one       mapped host memory
 *
 * Geometry: one CTA of one warp, of which one thread works. A captured stream memory operation has its value baked in;
 * these read it when they run, so that a graph waits for the loads of its own replay and for no other's.
 */
#include "group.cuh"

#ifdef __CUDA_ARCH__
/* What was written before the word is seen after it, whoever wrote it. */
static __device__ __forceinline__ uint64_t okv_word_read(uint64_t address)
{
	uint64_t value;

	asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(address) : "memory");
	return value;
}

static __device__ __forceinline__ void okv_word_write(uint64_t address, uint64_t value)
{
	asm volatile("st.release.sys.global.u64 [%0], %1;" : : "l"(address), "l"(value) : "memory");
}

static __device__ __forceinline__ void okv_pause(void)
{
	__nanosleep(OKV_POLL_NS);
}
#else
static __device__ __forceinline__ uint64_t okv_word_read(uint64_t address)
{
	return __atomic_load_n(okv_at<uint64_t>(address), __ATOMIC_ACQUIRE);
}

static __device__ __forceinline__ void okv_word_write(uint64_t address, uint64_t value)
{
	__atomic_store_n(okv_at<uint64_t>(address), value, __ATOMIC_RELEASE);
}

static __device__ __forceinline__ void okv_pause(void)
{
}
#endif

extern "C" __global__ void __launch_bounds__(OKV_EVENT_THREADS, 1)
okv_kernel_wait(const struct okv_event_args args)
{
	if (threadIdx.x)
		return;
	const uint64_t value = okv_event_value(args.base, okv_word_read(args.step));

	for (uint64_t i = 0; i < args.nr_polls; i++) {
		if ((int64_t)(okv_word_read(args.word) - value) >= 0)
			return;
		okv_pause();
	}
	okv_word_write(args.late, okv_word_read(args.late) + 1);
}

extern "C" __global__ void __launch_bounds__(OKV_EVENT_THREADS, 1)
okv_kernel_fire(const struct okv_event_args args)
{
	if (threadIdx.x == 0)
		okv_word_write(args.word, okv_event_value(args.base, okv_word_read(args.step)));
}

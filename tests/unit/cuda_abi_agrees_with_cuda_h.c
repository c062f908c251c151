// SPDX-License-Identifier: GPL-2.0-only
/*
 * The library's own declarations of the CUDA driver's interface are cuda.h's, number by number and field by field.
 *
 * Decided when this is compiled; where there is no cuda.h the test says so and is skipped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "cuda_abi.h"

#if __has_include(<cuda.h>)
#include <cuda.h>
#define HAS_CUDA_H 1
#elif __has_include("/usr/local/cuda/include/cuda.h")
#include "/usr/local/cuda/include/cuda.h"
#define HAS_CUDA_H 1
#endif

#ifdef HAS_CUDA_H
#define SAME(ours, theirs) _Static_assert((long long)(ours) == (long long)(theirs), #theirs)
#define SAME_ERROR(name) SAME(OKV_##name, name)
#define SAME_ATTRIBUTE(name) SAME(OKV_CU_ATTRIBUTE_##name, CU_DEVICE_ATTRIBUTE_##name)
#define SAME_CU(name) SAME(OKV_##name, name)
#define SAME_FIELD(ours, our_field, theirs, their_field) \
	_Static_assert(offsetof(ours, our_field) == offsetof(theirs, their_field) && \
		       sizeof(((ours *)0)->our_field) == sizeof(((theirs *)0)->their_field), #theirs "." #their_field)

SAME(OKV_CUDA_SUCCESS, CUDA_SUCCESS);
SAME_ERROR(CUDA_ERROR_INVALID_VALUE);
SAME_ERROR(CUDA_ERROR_OUT_OF_MEMORY);
SAME_ERROR(CUDA_ERROR_NOT_INITIALIZED);
SAME_ERROR(CUDA_ERROR_STUB_LIBRARY);
SAME_ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE);
SAME_ERROR(CUDA_ERROR_NO_DEVICE);
SAME_ERROR(CUDA_ERROR_INVALID_DEVICE);
SAME_ERROR(CUDA_ERROR_INVALID_CONTEXT);
SAME_ERROR(CUDA_ERROR_NO_BINARY_FOR_GPU);
SAME_ERROR(CUDA_ERROR_ECC_UNCORRECTABLE);
SAME_ERROR(CUDA_ERROR_INVALID_HANDLE);
SAME_ERROR(CUDA_ERROR_NOT_FOUND);
SAME_ERROR(CUDA_ERROR_NOT_READY);
SAME_ERROR(CUDA_ERROR_ILLEGAL_ADDRESS);
SAME_ERROR(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
SAME_ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME_ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME_ERROR(CUDA_ERROR_LAUNCH_FAILED);
SAME_ERROR(CUDA_ERROR_NOT_PERMITTED);
SAME_ERROR(CUDA_ERROR_NOT_SUPPORTED);
SAME_ERROR(CUDA_ERROR_SYSTEM_NOT_READY);
SAME_ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
SAME_ERROR(CUDA_ERROR_UNKNOWN);

SAME_ATTRIBUTE(MULTIPROCESSOR_COUNT);
SAME_ATTRIBUTE(PCI_BUS_ID);
SAME_ATTRIBUTE(PCI_DEVICE_ID);
SAME_ATTRIBUTE(PCI_DOMAIN_ID);
SAME_ATTRIBUTE(UNIFIED_ADDRESSING);
SAME_ATTRIBUTE(COMPUTE_CAPABILITY_MAJOR);
SAME_ATTRIBUTE(COMPUTE_CAPABILITY_MINOR);
SAME_ATTRIBUTE(VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
SAME_ATTRIBUTE(GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME_ATTRIBUTE(GPU_DIRECT_RDMA_SUPPORTED);
SAME_ATTRIBUTE(CAN_USE_64_BIT_STREAM_MEM_OPS);
SAME_ATTRIBUTE(DMA_BUF_SUPPORTED);

SAME_CU(CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME_CU(CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME_CU(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME_CU(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME_CU(CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME_CU(CU_MEMORYTYPE_DEVICE);
SAME_CU(CU_GET_PROC_ADDRESS_DEFAULT);
SAME_CU(CU_MEMHOSTREGISTER_PORTABLE);
SAME_CU(CU_MEMHOSTREGISTER_DEVICEMAP);
SAME_CU(CU_MEMHOSTALLOC_PORTABLE);
SAME_CU(CU_MEMHOSTALLOC_DEVICEMAP);
SAME_CU(CU_STREAM_NON_BLOCKING);
SAME_CU(CU_STREAM_WAIT_VALUE_GEQ);
SAME_CU(CU_STREAM_WRITE_VALUE_DEFAULT);
SAME_CU(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
SAME_CU(CU_STREAM_CAPTURE_MODE_RELAXED);
SAME_CU(CU_STREAM_CAPTURE_STATUS_NONE);
SAME_CU(CU_EVENT_DEFAULT);
SAME_CU(CU_MEM_ALLOCATION_TYPE_PINNED);
SAME_CU(CU_MEM_LOCATION_TYPE_DEVICE);
SAME_CU(CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
SAME_CU(CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
SAME_CU(CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
SAME_CU(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
SAME_CU(CU_MEMCPY_SRC_ACCESS_ORDER_ANY);
SAME_CU(CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE);

_Static_assert(sizeof(CUdeviceptr) == sizeof(uint64_t), "CUdeviceptr");
_Static_assert(sizeof(CUdevice) == sizeof(int), "CUdevice");
_Static_assert(sizeof(CUresult) == sizeof(int), "CUresult");
_Static_assert(sizeof(CUmemGenericAllocationHandle) == sizeof(unsigned long long), "CUmemGenericAllocationHandle");
_Static_assert(sizeof(struct okv_cu_uuid) == sizeof(CUuuid), "CUuuid");
_Static_assert(sizeof(struct okv_cu_mem_location) == sizeof(CUmemLocation), "CUmemLocation");
SAME_FIELD(struct okv_cu_mem_location, type, CUmemLocation, type);
SAME_FIELD(struct okv_cu_mem_location, id, CUmemLocation, id);
_Static_assert(sizeof(struct okv_cu_mem_allocation_prop) == sizeof(CUmemAllocationProp), "CUmemAllocationProp");
SAME_FIELD(struct okv_cu_mem_allocation_prop, type, CUmemAllocationProp, type);
SAME_FIELD(struct okv_cu_mem_allocation_prop, handle_types, CUmemAllocationProp, requestedHandleTypes);
SAME_FIELD(struct okv_cu_mem_allocation_prop, location, CUmemAllocationProp, location);
SAME_FIELD(struct okv_cu_mem_allocation_prop, win32, CUmemAllocationProp, win32HandleMetaData);
SAME_FIELD(struct okv_cu_mem_allocation_prop, compression, CUmemAllocationProp, allocFlags.compressionType);
SAME_FIELD(struct okv_cu_mem_allocation_prop, is_gpu_direct_rdma_capable, CUmemAllocationProp,
	   allocFlags.gpuDirectRDMACapable);
SAME_FIELD(struct okv_cu_mem_allocation_prop, usage, CUmemAllocationProp, allocFlags.usage);
_Static_assert(sizeof(struct okv_cu_mem_access_desc) == sizeof(CUmemAccessDesc), "CUmemAccessDesc");
SAME_FIELD(struct okv_cu_mem_access_desc, location, CUmemAccessDesc, location);
SAME_FIELD(struct okv_cu_mem_access_desc, flags, CUmemAccessDesc, flags);
#if CUDA_VERSION >= 12080
_Static_assert(sizeof(struct okv_cu_memcpy_attributes) == sizeof(CUmemcpyAttributes), "CUmemcpyAttributes");
SAME_FIELD(struct okv_cu_memcpy_attributes, src_access_order, CUmemcpyAttributes, srcAccessOrder);
SAME_FIELD(struct okv_cu_memcpy_attributes, src_hint, CUmemcpyAttributes, srcLocHint);
SAME_FIELD(struct okv_cu_memcpy_attributes, dst_hint, CUmemcpyAttributes, dstLocHint);
SAME_FIELD(struct okv_cu_memcpy_attributes, flags, CUmemcpyAttributes, flags);
#endif
#endif

static void own_declarations_are_those_of_cuda_h(void **state)
{
	(void)state;
#ifndef HAS_CUDA_H
	print_message("# no cuda.h here: nothing to compare with\n");
	skip();
#endif
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(own_declarations_are_those_of_cuda_h),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

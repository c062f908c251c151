/* SPDX-License-Identifier: MIT */
/*
 * The part of the CUDA driver's ABI that this library uses, so that it builds where CUDA's toolkit is not installed.
 *
 * Declarations only. Handles are void *, results are int (0 is success). A test compares every number and layout
 * with cuda.h where that is there. Names are cuda.h's with okv_ before them.
 */
#ifndef OKV_CUDA_ABI_H
#define OKV_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

/* CUdeviceptr: an address of the device, or of mapped host memory as the device sees it. */
#define OKV_CUDA_SUCCESS				0
#define OKV_CUDA_ERROR_INVALID_VALUE			1
#define OKV_CUDA_ERROR_OUT_OF_MEMORY			2
#define OKV_CUDA_ERROR_NOT_INITIALIZED			3
#define OKV_CUDA_ERROR_STUB_LIBRARY			34
#define OKV_CUDA_ERROR_INSUFFICIENT_DRIVER		35
#define OKV_CUDA_ERROR_DEVICE_UNAVAILABLE		46
#define OKV_CUDA_ERROR_NO_DEVICE			100
#define OKV_CUDA_ERROR_INVALID_DEVICE			101
#define OKV_CUDA_ERROR_INVALID_CONTEXT			201
#define OKV_CUDA_ERROR_NO_BINARY_FOR_GPU		209
#define OKV_CUDA_ERROR_ECC_UNCORRECTABLE		214
#define OKV_CUDA_ERROR_INVALID_HANDLE			400
#define OKV_CUDA_ERROR_NOT_FOUND			500
#define OKV_CUDA_ERROR_NOT_READY			600
#define OKV_CUDA_ERROR_ILLEGAL_ADDRESS			700
#define OKV_CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED	704
#define OKV_CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED	712
#define OKV_CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED	713
#define OKV_CUDA_ERROR_LAUNCH_FAILED			719
#define OKV_CUDA_ERROR_NOT_PERMITTED			800
#define OKV_CUDA_ERROR_NOT_SUPPORTED			801
#define OKV_CUDA_ERROR_SYSTEM_NOT_READY			802
#define OKV_CUDA_ERROR_SYSTEM_DRIVER_MISMATCH		803
#define OKV_CUDA_ERROR_UNKNOWN				999

#define OKV_CU_ATTRIBUTE_MULTIPROCESSOR_COUNT		16
#define OKV_CU_ATTRIBUTE_PCI_BUS_ID			33
#define OKV_CU_ATTRIBUTE_PCI_DEVICE_ID			34
#define OKV_CU_ATTRIBUTE_PCI_DOMAIN_ID			50
#define OKV_CU_ATTRIBUTE_UNIFIED_ADDRESSING		41
#define OKV_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR	75
#define OKV_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR	76
#define OKV_CU_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED	102
#define OKV_CU_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED	110
#define OKV_CU_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED	116
#define OKV_CU_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS	122
#define OKV_CU_ATTRIBUTE_DMA_BUF_SUPPORTED		124

#define OKV_CU_POINTER_ATTRIBUTE_MEMORY_TYPE		2
#define OKV_CU_POINTER_ATTRIBUTE_IS_MANAGED		8
#define OKV_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL		9
#define OKV_CU_POINTER_ATTRIBUTE_RANGE_START_ADDR	11
#define OKV_CU_POINTER_ATTRIBUTE_RANGE_SIZE		12
#define OKV_CU_MEMORYTYPE_DEVICE			2

#define OKV_CU_GET_PROC_ADDRESS_DEFAULT			0
#define OKV_CU_MEMHOSTREGISTER_PORTABLE			0x01u
#define OKV_CU_MEMHOSTREGISTER_DEVICEMAP		0x02u
#define OKV_CU_MEMHOSTALLOC_PORTABLE			0x01u
#define OKV_CU_MEMHOSTALLOC_DEVICEMAP			0x02u
#define OKV_CU_STREAM_NON_BLOCKING			0x1u
#define OKV_CU_STREAM_WAIT_VALUE_GEQ			0x0u
#define OKV_CU_STREAM_WRITE_VALUE_DEFAULT		0x0u
#define OKV_CU_STREAM_CAPTURE_MODE_THREAD_LOCAL		1
#define OKV_CU_STREAM_CAPTURE_MODE_RELAXED		2
#define OKV_CU_STREAM_CAPTURE_STATUS_NONE		0
#define OKV_CU_EVENT_DEFAULT				0x0u
#define OKV_CU_MEM_ALLOCATION_TYPE_PINNED		1
#define OKV_CU_MEM_LOCATION_TYPE_DEVICE			1
#define OKV_CU_MEM_ALLOC_GRANULARITY_RECOMMENDED	1
#define OKV_CU_MEM_ACCESS_FLAGS_PROT_READWRITE		3
#define OKV_CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD		1
#define OKV_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM		1
#define OKV_CU_MEMCPY_SRC_ACCESS_ORDER_ANY		3
#define OKV_CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE	1u

struct okv_cu_uuid {
	unsigned char	bytes[16];
};

struct okv_cu_mem_location {
	int	type;
	int	id;
};

struct okv_cu_mem_allocation_prop {
	int				type;
	int				handle_types;
	struct okv_cu_mem_location	location;
	void				*win32;
	unsigned char			compression;
	unsigned char			is_gpu_direct_rdma_capable;
	unsigned short			usage;
	unsigned char			reserved[4];
};

struct okv_cu_mem_access_desc {
	struct okv_cu_mem_location	location;
	int				flags;
};

struct okv_cu_memcpy_attributes {
	int				src_access_order;
	struct okv_cu_mem_location	src_hint;
	struct okv_cu_mem_location	dst_hint;
	unsigned int			flags;
};

/*
 * X(name, version whose ABI is meant, is needed, arguments). With cuGetProcAddress() the version selects the
 * signature: of cuMemcpyBatchAsync() that of 12.8, which later drivers serve too.
 */
#define OKV_CUDA_FUNCTIONS(X) \
	X(cuInit, 2000, 1, (unsigned int flags)) \
	X(cuDriverGetVersion, 2020, 1, (int *version)) \
	X(cuGetErrorName, 6000, 1, (int error, const char **text)) \
	X(cuGetErrorString, 6000, 1, (int error, const char **text)) \
	X(cuDeviceGetCount, 2000, 1, (int *count)) \
	X(cuDeviceGet, 2000, 1, (int *device, int ordinal)) \
	X(cuDeviceGetName, 2000, 1, (char *name, int len, int device)) \
	X(cuDeviceGetUuid, 11040, 1, (struct okv_cu_uuid *uuid, int device)) \
	X(cuDeviceTotalMem, 3020, 1, (size_t *bytes, int device)) \
	X(cuDeviceGetAttribute, 2000, 1, (int *value, int attribute, int device)) \
	X(cuDeviceCanAccessPeer, 4000, 0, (int *can, int device, int peer)) \
	X(cuDevicePrimaryCtxRetain, 7000, 1, (void **context, int device)) \
	X(cuDevicePrimaryCtxRelease, 11000, 1, (int device)) \
	X(cuCtxPushCurrent, 4000, 1, (void *context)) \
	X(cuCtxPopCurrent, 4000, 1, (void **context)) \
	X(cuCtxSetCurrent, 4000, 1, (void *context)) \
	X(cuCtxGetStreamPriorityRange, 5050, 1, (int *least, int *greatest)) \
	X(cuMemGetInfo, 3020, 1, (size_t *free_bytes, size_t *total_bytes)) \
	X(cuMemAlloc, 3020, 1, (uint64_t *ptr, size_t bytes)) \
	X(cuMemFree, 3020, 1, (uint64_t ptr)) \
	X(cuMemHostAlloc, 2020, 1, (void **ptr, size_t bytes, unsigned int flags)) \
	X(cuMemFreeHost, 2000, 1, (void *ptr)) \
	X(cuMemHostRegister, 6050, 1, (void *ptr, size_t bytes, unsigned int flags)) \
	X(cuMemHostUnregister, 4000, 1, (void *ptr)) \
	X(cuMemHostGetDevicePointer, 3020, 1, (uint64_t *ptr, void *host, unsigned int flags)) \
	X(cuPointerGetAttribute, 4000, 1, (void *value, int attribute, uint64_t ptr)) \
	X(cuMemAddressReserve, 10020, 1, (uint64_t *ptr, size_t bytes, size_t align, uint64_t at, unsigned long long flags)) \
	X(cuMemAddressFree, 10020, 1, (uint64_t ptr, size_t bytes)) \
	X(cuMemCreate, 10020, 1, (unsigned long long *handle, size_t bytes, const struct okv_cu_mem_allocation_prop *prop, \
				  unsigned long long flags)) \
	X(cuMemRelease, 10020, 1, (unsigned long long handle)) \
	X(cuMemMap, 10020, 1, (uint64_t ptr, size_t bytes, size_t off, unsigned long long handle, unsigned long long flags)) \
	X(cuMemUnmap, 10020, 1, (uint64_t ptr, size_t bytes)) \
	X(cuMemSetAccess, 10020, 1, (uint64_t ptr, size_t bytes, const struct okv_cu_mem_access_desc *desc, size_t nr)) \
	X(cuMemGetAllocationGranularity, 10020, 1, (size_t *bytes, const struct okv_cu_mem_allocation_prop *prop, int option)) \
	X(cuMemGetHandleForAddressRange, 11070, 0, (void *handle, uint64_t ptr, size_t bytes, int type, \
						    unsigned long long flags)) \
	X(cuMemcpyHtoDAsync, 3020, 1, (uint64_t dst, const void *src, size_t bytes, void *stream)) \
	X(cuMemcpyDtoHAsync, 3020, 1, (void *dst, uint64_t src, size_t bytes, void *stream)) \
	X(cuMemcpyDtoDAsync, 3020, 1, (uint64_t dst, uint64_t src, size_t bytes, void *stream)) \
	X(cuMemcpyPeerAsync, 4000, 1, (uint64_t dst, void *dst_context, uint64_t src, void *src_context, size_t bytes, \
				       void *stream)) \
	X(cuMemcpyBatchAsync, 12080, 0, (uint64_t *dsts, uint64_t *srcs, size_t *sizes, size_t nr, \
					 struct okv_cu_memcpy_attributes *attrs, size_t *attr_idx, size_t nr_attrs, \
					 size_t *fail_idx, void *stream)) \
	X(cuStreamCreateWithPriority, 5050, 1, (void **stream, unsigned int flags, int priority)) \
	X(cuStreamDestroy, 4000, 1, (void *stream)) \
	X(cuStreamQuery, 2000, 1, (void *stream)) \
	X(cuStreamSynchronize, 2000, 1, (void *stream)) \
	X(cuStreamWaitValue64, 11070, 1, (void *stream, uint64_t ptr, uint64_t value, unsigned int flags)) \
	X(cuStreamWriteValue64, 11070, 1, (void *stream, uint64_t ptr, uint64_t value, unsigned int flags)) \
	X(cuStreamBeginCapture, 10010, 1, (void *stream, int mode)) \
	X(cuThreadExchangeStreamCaptureMode, 10010, 1, (int *mode)) \
	X(cuStreamEndCapture, 10000, 1, (void *stream, void **graph)) \
	X(cuStreamIsCapturing, 10000, 1, (void *stream, int *status)) \
	X(cuGraphInstantiateWithFlags, 11040, 1, (void **exec, void *graph, unsigned long long flags)) \
	X(cuGraphLaunch, 10000, 1, (void *exec, void *stream)) \
	X(cuGraphExecDestroy, 10000, 1, (void *exec)) \
	X(cuGraphDestroy, 10000, 1, (void *graph)) \
	X(cuEventCreate, 2000, 1, (void **event, unsigned int flags)) \
	X(cuEventDestroy, 4000, 1, (void *event)) \
	X(cuEventRecord, 2000, 1, (void *event, void *stream)) \
	X(cuEventElapsedTime, 2000, 1, (float *ms, void *start, void *end)) \
	X(cuModuleLoadData, 2000, 1, (void **module, const void *image)) \
	X(cuModuleUnload, 2000, 1, (void *module)) \
	X(cuModuleGetFunction, 2000, 1, (void **function, void *module, const char *name)) \
	X(cuLaunchKernel, 4000, 1, (void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, \
				    unsigned int block_x, unsigned int block_y, unsigned int block_z, \
				    unsigned int shared_bytes, void *stream, void **params, void **extra)) \
	X(cuLaunchHostFunc, 10000, 1, (void *stream, void (*fn)(void *arg), void *arg))

#endif /* OKV_CUDA_ABI_H */

// SPDX-License-Identifier: MIT
/*
 * The device code, compiled for the CPU, as a way of running kernels.
 *
 * Its entry points are kernels.cu's, under the names that a GPU knows too.
 */
#include "../kernels.h"
#include "run.h"

#include <errno.h>

#ifdef OKV_HAS_SHIM

void okv_kernel_copy(struct okv_copy_args args);
void okv_kernel_gather(struct okv_gather_args args);
void okv_kernel_scatter(struct okv_gather_args args);
void okv_kernel_relayout(struct okv_relayout_args args);
void okv_kernel_crc32c(struct okv_crc32c_args args);
void okv_kernel_wait(struct okv_event_args args);
void okv_kernel_fire(struct okv_event_args args);

static void copy(const void *args)
{
	okv_kernel_copy(*(const struct okv_copy_args *)args);
}

static void gather(const void *args)
{
	okv_kernel_gather(*(const struct okv_gather_args *)args);
}

static void scatter(const void *args)
{
	okv_kernel_scatter(*(const struct okv_gather_args *)args);
}

static void relayout(const void *args)
{
	okv_kernel_relayout(*(const struct okv_relayout_args *)args);
}

static void crc32c(const void *args)
{
	okv_kernel_crc32c(*(const struct okv_crc32c_args *)args);
}

static void wait(const void *args)
{
	okv_kernel_wait(*(const struct okv_event_args *)args);
}

static void fire(const void *args)
{
	okv_kernel_fire(*(const struct okv_event_args *)args);
}

static void (*const entries[OKV_KERNEL_NR])(const void *args) = {
	[OKV_KERNEL_COPY] = copy,
	[OKV_KERNEL_GATHER] = gather,
	[OKV_KERNEL_SCATTER] = scatter,
	[OKV_KERNEL_RELAYOUT] = relayout,
	[OKV_KERNEL_CRC32C] = crc32c,
	[OKV_KERNEL_WAIT] = wait,
	[OKV_KERNEL_FIRE] = fire,
};

static int shim_launch(void *ctx, enum okv_kernel kernel, uint32_t nr_ctas, const void *args)
{
	if ((unsigned int)kernel >= OKV_KERNEL_NR)
		return -EINVAL;
	return okv_shim_run(ctx, nr_ctas, okv_kernels[kernel].cta_threads, entries[kernel], args);
}

static const struct okv_kernel_ops shim = { .name = "shim", .launch = shim_launch };

const struct okv_kernel_ops *const okv_kernels_shim = &shim;

#else

const struct okv_kernel_ops *const okv_kernels_shim;

#endif

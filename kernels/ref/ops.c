// SPDX-License-Identifier: MIT
/*
 * The definitions as a way of running kernels.
 *
 * On the calling thread, at once.
 */
#include "ref.h"

#include <errno.h>

static int ref_launch(void *ctx, enum okv_kernel kernel, uint32_t nr_ctas, const void *args)
{
	(void)ctx;
	(void)nr_ctas;
	switch (kernel) {
	case OKV_KERNEL_COPY:
		okv_ref_copy(args);
		return 0;
	case OKV_KERNEL_GATHER:
		okv_ref_gather(args);
		return 0;
	case OKV_KERNEL_SCATTER:
		okv_ref_scatter(args);
		return 0;
	case OKV_KERNEL_RELAYOUT:
		okv_ref_relayout(args);
		return 0;
	case OKV_KERNEL_CRC32C:
		okv_ref_crc32c(args);
		return 0;
	case OKV_KERNEL_WAIT:
		okv_ref_wait(args);
		return 0;
	case OKV_KERNEL_FIRE:
		okv_ref_fire(args);
		return 0;
	default:
		return -EINVAL;
	}
}

const struct okv_kernel_ops okv_kernels_ref = { .name = "ref", .launch = ref_launch };

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Accelerators by name and how long they compute: the clock of replays without a GPU.
 *
 * Pure; any thread.
 */
#ifndef OKV_GPU_H
#define OKV_GPU_H

#include <omnikv/layout.h>

/**
 * struct okv_gpu - published figures
 * @bf16_flops:   peak, a second
 * @mfu:          part of it that prefill reaches
 * @hbm_bytes_s:  peak
 * @link_bytes_s: host to device, each way
 */
struct okv_gpu {
	const char	*name;
	double		bf16_flops;
	double		mfu;
	double		hbm_bytes_s;
	double		link_bytes_s;
};

/** NULL for an unknown name. */
const struct okv_gpu *okv_gpu_find(const char *name);
/** "h20, h100, ..." */
const char *okv_gpu_names(void);

/**
 * okv_gpu_prefill_ns() - time of one layer's prefill of one sequence
 * @hist: tokens whose KV exists
 * @nr:   tokens to compute
 *
 * (2 W n + 4 h d n (P + n/2)) / (F mfu) with W active weights a layer, h query heads of d elements:
 * the dense part for each new token, and its attention over history and, causally, over new tokens.
 */
uint64_t okv_gpu_prefill_ns(const struct okv_gpu *gpu, const struct omnikv_layout *layout, uint64_t hist,
			    uint64_t nr);

#endif /* OKV_GPU_H */

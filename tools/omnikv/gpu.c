// SPDX-License-Identifier: GPL-2.0-only
/*
 * Figures of accelerators and the time that a layer takes on one. Owns the table of published
 * figures; that of models is the layout's. Pure.
 */
#include <string.h>

#include "gpu.h"

static const struct okv_gpu okv_gpus[] = {
	{ "h20",   148e12, 0.70, 4.00e12, 50e9 },
	{ "h100",  989e12, 0.50, 3.35e12, 50e9 },
	{ "h200",  989e12, 0.50, 4.80e12, 50e9 },
	{ "b200", 2250e12, 0.50, 8.00e12, 50e9 },
};

const char *okv_gpu_names(void)
{
	return "h20, h100, h200, b200";
}

const struct okv_gpu *okv_gpu_find(const char *name)
{
	size_t i;

	for (i = 0; i < sizeof(okv_gpus) / sizeof(okv_gpus[0]); i++) {
		if (!strcmp(name, okv_gpus[i].name))
			return &okv_gpus[i];
	}
	return NULL;
}

uint64_t okv_gpu_prefill_ns(const struct okv_gpu *gpu, const struct omnikv_layout *layout, uint64_t hist,
			    uint64_t nr)
{
	double n = (double)nr, p = (double)hist;
	double flops = 2 * layout->layer_params * n +
		       4.0 * layout->q_heads * layout->head_dim * n * (p + n / 2);

	return (uint64_t)(flops / (gpu->bf16_flops * gpu->mfu) * 1e9);
}

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A plan in words, or as one JSON object: what omnikv plan prints.
 *
 * Decides nothing: the figures are the library's. Writes to the given stream only.
 */
#ifndef OKV_PLAN_PRINT_H
#define OKV_PLAN_PRINT_H

#include <stdio.h>

#include <omnikv/layout.h>

/**
 * struct okv_plan_fit - what of a plan fits a pool
 * @blocks:      full blocks, if nothing else is in it
 * @tokens:      in them
 * @checkpoints: of state, if nothing else is in it; 0 where the model has no state
 */
struct okv_plan_fit {
	uint64_t	blocks;
	uint64_t	tokens;
	uint64_t	checkpoints;
};

void okv_plan_fit(const struct omnikv_plan *plan, uint64_t pool_bytes, struct okv_plan_fit *fit);

/* @pool_bytes 0: no pool was asked for. Return 0, -ENOMEM, or -EIO where @out cannot be written. */
int okv_plan_print(FILE *out, const struct omnikv_plan *plan, uint64_t pool_bytes);
int okv_plan_print_json(FILE *out, const struct omnikv_plan *plan, uint64_t pool_bytes);

#endif /* OKV_PLAN_PRINT_H */

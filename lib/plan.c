// SPDX-License-Identifier: MIT
/*
 * Plans: a layout cut into blocks of T tokens, pieces and extents of whole granules.
 *
 * Says how many bytes each thing takes and where rows stand; allocates nothing. Sums and
 * products are checked: a plan that does not fit 64 bits is refused, never wrapped.
 * Pure: no I/O, no global state, any thread.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "failpoint.h"
#include "layout.h"

#define GRANULE_BYTES_MIN	4096u
#define TOKENS_FIRST		16u
#define TOKENS_LAST		1024u
#define OVERHEAD_MAX		1.05
#define PADDING_MAX		1.02	/* of a granule larger than the least */

static bool align_up(uint64_t value, uint64_t unit, uint64_t *result)
{
	uint64_t up;

	if (__builtin_add_overflow(value, unit - 1, &up))
		return false;
	*result = up - up % unit;
	return true;
}

/* False where a figure does not fit. */
static bool plan_group(const struct omnikv_group *group, uint32_t block_tokens, uint32_t granule_bytes, uint32_t scale,
		       struct omnikv_group_plan *gp)
{
	uint64_t end = 0, raw = 0, pieces, nr_granules;

	memset(gp, 0, sizeof(*gp));
	gp->entries = omnikv_group_is_state(group) ? 1 : block_tokens / group->tokens_per_entry;
	gp->nr_stored = omnikv_group_stored_layers(group);
	for (uint32_t p = 0; p < group->nr_planes; p++) {
		const struct omnikv_plane *plane = &group->planes[p];
		uint64_t row = (uint64_t)plane->heads * plane->elems * omnikv_dtype_bytes(plane->dtype) / scale;
		uint64_t bytes;

		row = row ? row : 1;
		if (__builtin_mul_overflow(row, gp->entries, &bytes) || !align_up(end, OMNIKV_PLANE_ALIGN, &end))
			return false;
		gp->plane_off[p] = end;
		gp->row_bytes[p] = row;
		if (__builtin_add_overflow(end, bytes, &end))
			return false;
		raw += bytes;	/* no more than end */
	}
	if (!align_up(end, OMNIKV_PIECE_ALIGN, &gp->piece_bytes) ||
	    __builtin_mul_overflow(gp->piece_bytes, gp->nr_stored, &pieces) ||
	    !align_up(pieces, granule_bytes, &gp->extent_bytes))
		return false;
	nr_granules = gp->extent_bytes / granule_bytes;
	if (nr_granules > UINT32_MAX)
		return false;
	gp->needed_bytes = raw * gp->nr_stored;
	gp->nr_granules = (uint32_t)nr_granules;
	return true;
}

/* Index of the first group that does not fit, or -1. */
static int plan_groups(struct omnikv_plan *plan, uint32_t block_tokens, uint32_t granule_bytes, uint32_t scale)
{
	plan->block_tokens = block_tokens;
	plan->granule_bytes = granule_bytes;
	plan->scale = scale;
	for (uint32_t g = 0; g < plan->layout.nr_groups; g++)
		if (!plan_group(&plan->layout.groups[g], block_tokens, granule_bytes, scale, &plan->groups[g]))
			return (int)g;
	return -1;
}

/* Index of the first group of which T tokens are no whole number of entries, or -1. */
static int misfit(const struct omnikv_layout *layout, uint32_t block_tokens)
{
	for (uint32_t g = 0; g < layout->nr_groups; g++)
		if (!omnikv_group_is_state(&layout->groups[g]) && block_tokens % layout->groups[g].tokens_per_entry)
			return (int)g;
	return -1;
}

/* The smallest T within the bound, else the one that comes closest; 0 where no T is possible. */
static uint32_t choose_tokens(struct omnikv_plan *plan, uint32_t granule_bytes)
{
	uint32_t best = 0;
	double best_overhead = 0;

	for (uint32_t tokens = TOKENS_FIRST; tokens <= TOKENS_LAST; tokens *= 2) {
		double overhead;

		if (misfit(&plan->layout, tokens) >= 0 || plan_groups(plan, tokens, granule_bytes, 1) >= 0)
			continue;
		overhead = omnikv_plan_overhead(plan);
		if (overhead <= OVERHEAD_MAX)
			return tokens;
		if (!best || overhead < best_overhead) {
			best = tokens;
			best_overhead = overhead;
		}
	}
	return best;
}

static bool padding_is_small(const struct omnikv_plan *plan)
{
	double needed = 0;

	for (uint32_t g = 0; g < plan->layout.nr_groups; g++)
		if (omnikv_group_is_state(&plan->layout.groups[g]))
			needed += (double)plan->groups[g].needed_bytes;
	return omnikv_plan_overhead(plan) < PADDING_MAX &&
	       (double)omnikv_plan_checkpoint_bytes(plan) <= PADDING_MAX * needed;
}

/* Larger granules mean fewer of them; one is never larger than a piece, so that a tail wastes little. */
static uint32_t choose_granule(struct omnikv_plan *plan, uint32_t block_tokens, uint32_t scale)
{
	uint32_t granule_bytes = GRANULE_BYTES_MIN;
	uint64_t least = OMNIKV_GRANULE_BYTES_MAX;

	if (plan_groups(plan, block_tokens, granule_bytes, scale) >= 0)
		return granule_bytes;
	for (uint32_t g = 0; g < plan->layout.nr_groups; g++)
		if (plan->groups[g].piece_bytes < least)
			least = plan->groups[g].piece_bytes;
	for (uint32_t bytes = 2 * GRANULE_BYTES_MIN; bytes <= least; bytes *= 2)
		if (plan_groups(plan, block_tokens, bytes, scale) < 0 && padding_is_small(plan))
			granule_bytes = bytes;
	return granule_bytes;
}

static int check_config(const struct omnikv_plan_config *given, struct omnikv_plan_config *config,
			struct omnikv_error *err)
{
	memset(config, 0, sizeof(*config));
	if (given) {
		if (given->size < sizeof(*given))
			return okv_layout_fail(err, "config.size: %zu; allowed: %zu or more", given->size,
					       sizeof(*given));
		for (size_t i = sizeof(*given); i < given->size; i++) {
			if (((const char *)given)[i]) {
				okv_layout_fail(err, "config: byte %zu is not zero; this library knows %zu bytes", i,
						sizeof(*given));
				return -E2BIG;
			}
		}
		*config = *given;
	}
	if (config->reserved)
		return okv_layout_fail(err, "config.reserved: %u; allowed: 0", config->reserved);
	if (config->block_tokens > OMNIKV_BLOCK_TOKENS_MAX)
		return okv_layout_fail(err, "block_tokens: %u; allowed: 1 to %u, or 0 to choose",
				       config->block_tokens, OMNIKV_BLOCK_TOKENS_MAX);
	if (config->granule_bytes % GRANULE_BYTES_MIN || config->granule_bytes > OMNIKV_GRANULE_BYTES_MAX)
		return okv_layout_fail(err, "granule_bytes: %u; allowed: a multiple of %u up to %u, or 0 to choose",
				       config->granule_bytes, GRANULE_BYTES_MIN, OMNIKV_GRANULE_BYTES_MAX);
	if (config->scale > OMNIKV_SCALE_MAX)
		return okv_layout_fail(err, "scale: %u; allowed: 1 to %u", config->scale, OMNIKV_SCALE_MAX);
	return 0;
}

/* Of the widest plane, since its size is what to look at. */
static int fail_too_large(const struct omnikv_group *group, int g, uint32_t tokens, uint32_t granule_bytes,
			  struct omnikv_error *err)
{
	const struct omnikv_plane *planes = group->planes;
	uint32_t nr_stored = omnikv_group_stored_layers(group), widest = 0;
	uint64_t bytes;
	bool is_over;

	for (uint32_t p = 1; p < group->nr_planes; p++)
		if ((double)planes[p].heads * planes[p].elems * omnikv_dtype_bytes(planes[p].dtype) >
		    (double)planes[widest].heads * planes[widest].elems * omnikv_dtype_bytes(planes[widest].dtype))
			widest = p;
	is_over = __builtin_mul_overflow(omnikv_group_entry_bytes(group), (uint64_t)tokens * nr_stored, &bytes);
	return okv_layout_fail(err,
			       "groups[%d].planes[%u].elems: %u heads of %u elems; %u tokens over %u layers do not fit an extent%s; allowed: less than 2^32 granules of %u bytes",
			       g, widest, planes[widest].heads, planes[widest].elems, tokens, nr_stored,
			       is_over ? " (their bytes overflow 64 bits)" : "", granule_bytes);
}

int omnikv_plan_make(const struct omnikv_layout *layout, const struct omnikv_plan_config *given,
		     struct omnikv_plan *plan, struct omnikv_error *err)
{
	struct omnikv_plan_config config;
	struct omnikv_plan *made;
	uint32_t tokens, granule_bytes, scale;
	int ret, g;

	ret = omnikv_layout_check(layout, err);
	if (!ret)
		ret = check_config(given, &config, err);
	if (ret)
		return ret;
	made = OKV_FAILPOINT("plan.alloc") ? NULL : calloc(1, sizeof(*made));
	if (!made)
		return -ENOMEM;
	made->layout = *layout;
	scale = config.scale ? config.scale : 1;
	tokens = config.block_tokens ? config.block_tokens : layout->block_tokens;
	if (!tokens)
		tokens = choose_tokens(made, config.granule_bytes ? config.granule_bytes : GRANULE_BYTES_MIN);
	/* Where some T suits every group, what stands in the way is the size: said below, for the smallest such T. */
	for (uint32_t t = TOKENS_FIRST; !tokens && t <= TOKENS_LAST; t *= 2)
		if (misfit(layout, t) < 0)
			tokens = t;
	if (!tokens) {
		ret = okv_layout_fail(err,
				      "block_tokens: no power of two from %u to %u suits every group's tokens_per_entry; give one",
				      TOKENS_FIRST, TOKENS_LAST);
		goto out_free;
	}
	g = misfit(layout, tokens);
	if (g >= 0) {
		ret = okv_layout_fail(err, "block_tokens: %u; allowed: a multiple of groups[%d].tokens_per_entry %u",
				      tokens, g, layout->groups[g].tokens_per_entry);
		goto out_free;
	}
	granule_bytes = config.granule_bytes ? config.granule_bytes : choose_granule(made, tokens, scale);
	g = plan_groups(made, tokens, granule_bytes, scale);
	if (g >= 0) {
		ret = fail_too_large(&layout->groups[g], g, tokens, granule_bytes, err);
		goto out_free;
	}
	*plan = *made;
out_free:
	free(made);
	return ret;
}

double omnikv_plan_overhead(const struct omnikv_plan *plan)
{
	double allocated = 0, needed = 0;

	for (uint32_t g = 0; g < plan->layout.nr_groups; g++) {
		if (omnikv_group_is_state(&plan->layout.groups[g]))
			continue;
		allocated += (double)plan->groups[g].extent_bytes;
		needed += (double)plan->groups[g].needed_bytes;
	}
	return needed > 0 ? allocated / needed : 1;
}

static uint64_t sum_extents(const struct omnikv_plan *plan, bool is_state)
{
	uint64_t sum = 0;	/* 8 groups of less than 2^32 granules of 2 MiB: fits */

	for (uint32_t g = 0; g < plan->layout.nr_groups; g++)
		if (omnikv_group_is_state(&plan->layout.groups[g]) == is_state)
			sum += plan->groups[g].extent_bytes;
	return sum;
}

uint64_t omnikv_plan_block_bytes(const struct omnikv_plan *plan)
{
	return sum_extents(plan, false);
}

uint64_t omnikv_plan_checkpoint_bytes(const struct omnikv_plan *plan)
{
	return sum_extents(plan, true);
}

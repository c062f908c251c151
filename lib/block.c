// SPDX-License-Identifier: MIT
/*
 * Rows of a block: see block.h.
 *
 * Where planes and pieces touch without padding, runs are joined, so that a full block of
 * most layouts is one call of memcpy() or of the checksum.
 */
#include "block.h"

#include <errno.h>
#include <string.h>

#include "crc32c.h"

/* Position of the walk over the runs of a block. */
struct okv_block_walk {
	const struct omnikv_group_plan *gp;
	uint32_t	nr_planes;
	uint32_t	nr_entries;
	uint32_t	layer;
	uint32_t	plane;
};

/* The next run, as long as it can be made: false behind the last one. */
static bool okv_block_next(struct okv_block_walk *walk, uint64_t *off, uint64_t *bytes)
{
	const struct omnikv_group_plan *gp = walk->gp;

	*bytes = 0;
	while (walk->layer < gp->nr_stored) {
		uint64_t at = walk->layer * gp->piece_bytes + gp->plane_off[walk->plane];

		if (*bytes == 0)
			*off = at;
		else if (*off + *bytes != at)
			return true;
		*bytes += walk->nr_entries * gp->row_bytes[walk->plane];
		if (++walk->plane == walk->nr_planes) {
			walk->plane = 0;
			walk->layer++;
		}
	}
	return *bytes != 0;
}

static struct okv_block_walk okv_block_walk(const struct omnikv_plan *plan, uint32_t group, uint32_t nr_entries)
{
	return (struct okv_block_walk){
		.gp = &plan->groups[group],
		.nr_planes = plan->layout.groups[group].nr_planes,
		.nr_entries = nr_entries,
	};
}

void okv_block_copy(const struct omnikv_plan *plan, uint32_t group, uint32_t nr_entries, void *dst, const void *src)
{
	struct okv_block_walk walk = okv_block_walk(plan, group, nr_entries);
	uint64_t off, bytes;

	while (okv_block_next(&walk, &off, &bytes))
		memcpy((char *)dst + off, (const char *)src + off, bytes);
}

uint32_t okv_block_crc(const struct omnikv_plan *plan, uint32_t group, uint32_t nr_entries, const void *src)
{
	struct okv_block_walk walk = okv_block_walk(plan, group, nr_entries);
	uint32_t crc = 0;
	uint64_t off, bytes;

	while (okv_block_next(&walk, &off, &bytes))
		crc = okv_crc32c_extend(crc, (const char *)src + off, bytes);
	return crc;
}

int omnikv_plan_block_crc(const struct omnikv_plan *plan, uint32_t group, uint32_t nr_tokens, const void *block, uint32_t *crc)
{
	if (!plan || !block || !crc || group >= plan->layout.nr_groups || !nr_tokens || nr_tokens > plan->block_tokens)
		return -EINVAL;
	*crc = okv_block_crc(plan, group, okv_block_entries(plan, group, nr_tokens), block);
	return 0;
}

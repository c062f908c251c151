// SPDX-License-Identifier: MIT
/*
 * Resharding: layouts of shards, and the slice of a plane that two ranks have in common.
 *
 * Which units are common is okv_reshard()'s, which kernels use too; here they become bytes of pieces and tensors.
 * Pure; any thread.
 */
#include <omnikv/reshard.h>

#include <errno.h>
#include <string.h>

#include "kernels/kernels.h"
#include "layout.h"

/* What is shared out: heads, or elements of each head; NULL: nothing. */
static uint32_t *units_of(struct omnikv_plane *plane)
{
	switch (plane->shard_axis) {
	case OMNIKV_SHARD_HEADS:
		return &plane->heads;
	case OMNIKV_SHARD_ELEMS:
		return &plane->elems;
	default:
		return NULL;
	}
}

int omnikv_layout_shard(const struct omnikv_layout *whole, uint32_t nr_ranks, struct omnikv_layout *out,
			struct omnikv_error *err)
{
	struct omnikv_layout shard;
	int ret = omnikv_layout_check(whole, err);

	if (ret)
		return ret;
	if (!nr_ranks)
		return okv_layout_fail(err, "shards: among 0 ranks; allowed: 1 or more");
	shard = *whole;
	for (uint32_t g = 0; g < shard.nr_groups; g++) {
		for (uint32_t p = 0; p < shard.groups[g].nr_planes; p++) {
			struct omnikv_plane *plane = &shard.groups[g].planes[p];
			uint32_t *units = units_of(plane);

			if (!units)
				continue;
			if (*units % nr_ranks)
				return okv_layout_fail(err, "groups[%u].planes[%u].%s: %u cannot be shared out among %u ranks; "
						       "allowed: what divides it", g, p, omnikv_shard_axis_name(plane->shard_axis), *units,
						       nr_ranks);
			*units /= nr_ranks;
		}
	}
	*out = shard;
	return 0;
}

static int check(const struct omnikv_plan *plan, uint32_t group, uint32_t plane, const struct omnikv_rank *host,
		 const struct omnikv_rank *device, struct omnikv_error *err)
{
	if (plan->scale != 1)
		return okv_layout_fail(err, "scale: %u with shards; allowed: 1", plan->scale);
	if (group >= plan->layout.nr_groups || plane >= plan->layout.groups[group].nr_planes)
		return okv_layout_fail(err, "groups[%u].planes[%u]: there is none in layout \"%s\"", group, plane, plan->layout.name);
	if (host->rank >= host->nr_ranks || device->rank >= device->nr_ranks)
		return okv_layout_fail(err, "rank %u of %u and rank %u of %u: a rank is below the number of ranks", host->rank,
				       host->nr_ranks, device->rank, device->nr_ranks);
	return 0;
}

int omnikv_slice_find(const struct omnikv_plan *plan, uint32_t group, uint32_t plane_idx, const struct omnikv_rank *host,
		      const struct omnikv_rank *device, struct omnikv_slice *out, struct omnikv_error *err)
{
	uint64_t host_units, units, unit_bytes, host_row, device_row, slice_bytes;
	uint32_t host_first = 0, device_first = 0, nr_rows;
	struct omnikv_slice slice = { 0 };
	struct omnikv_plane plane;
	int nr, ret = check(plan, group, plane_idx, host, device, err);

	if (ret)
		return ret;
	plane = plan->layout.groups[group].planes[plane_idx];
	slice.host_off = plan->groups[group].plane_off[plane_idx];
	slice.host_bytes = plan->groups[group].row_bytes[plane_idx];
	if (!units_of(&plane)) {
		if (device->rank % host->nr_ranks != host->rank)
			return 0;
		slice.device_bytes = slice.bytes = slice.host_bytes;
		*out = slice;
		return 1;
	}
	host_units = *units_of(&plane);
	units = host_units * host->nr_ranks;
	nr_rows = plane.shard_axis == OMNIKV_SHARD_ELEMS ? plane.heads : 1;
	nr = units > INT32_MAX ? -EINVAL : okv_reshard((uint32_t)units, host->nr_ranks, host->rank, device->nr_ranks, device->rank,
						       &host_first, &device_first);
	if (nr < 0)
		return okv_layout_fail(err, "groups[%u].planes[%u].%s: %llu cannot be shared out among %u ranks; allowed: what "
				       "divides it", group, plane_idx, omnikv_shard_axis_name(plane.shard_axis),
				       (unsigned long long)units, device->nr_ranks);
	if (!nr)
		return 0;
	unit_bytes = slice.host_bytes / nr_rows / host_units;
	host_row = host_units * unit_bytes;
	device_row = units / device->nr_ranks * unit_bytes;
	slice_bytes = (uint32_t)nr * unit_bytes;
	if (host_row > UINT32_MAX || device_row > UINT32_MAX)
		return okv_layout_fail(err, "groups[%u].planes[%u]: rows of %llu and %llu bytes; allowed: below 4 GiB", group, plane_idx,
				       (unsigned long long)host_row, (unsigned long long)device_row);
	slice.host_off += host_first * unit_bytes;
	slice.device_off = device_first * unit_bytes;
	slice.device_bytes = nr_rows * device_row;
	slice.bytes = nr_rows * slice_bytes;
	/* Whole rows on both sides are one run. */
	if (slice_bytes != host_row || slice_bytes != device_row)
		slice.rows = (struct omnikv_rows) { (uint32_t)slice_bytes, (uint32_t)host_row, (uint32_t)device_row, 0 };
	*out = slice;
	return 1;
}

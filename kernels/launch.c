// SPDX-License-Identifier: MIT
/*
 * Launching: what every kernel is called, whether its arguments can be right, how many CTAs it is worth.
 *
 * Pure but for the launch itself; any thread. The device code is fatbin.S's, its definition is in ref/.
 */
#include "geometry.h"

#include <errno.h>

const struct okv_kernel_info okv_kernels[OKV_KERNEL_NR] = {
	[OKV_KERNEL_COPY] = { "okv_kernel_copy", sizeof(struct okv_copy_args), OKV_COPY_THREADS },
	[OKV_KERNEL_GATHER] = { "okv_kernel_gather", sizeof(struct okv_gather_args), OKV_COPY_THREADS },
	[OKV_KERNEL_SCATTER] = { "okv_kernel_scatter", sizeof(struct okv_gather_args), OKV_COPY_THREADS },
	[OKV_KERNEL_RELAYOUT] = { "okv_kernel_relayout", sizeof(struct okv_relayout_args), OKV_COPY_THREADS },
	[OKV_KERNEL_CRC32C] = { "okv_kernel_crc32c", sizeof(struct okv_crc32c_args), OKV_CRC32C_THREADS },
	[OKV_KERNEL_WAIT] = { "okv_kernel_wait", sizeof(struct okv_event_args), OKV_EVENT_THREADS },
	[OKV_KERNEL_FIRE] = { "okv_kernel_fire", sizeof(struct okv_event_args), OKV_EVENT_THREADS },
};

/* As many CTAs as have something to do when each takes @per_cta of @nr_items. */
static uint32_t ctas_for(uint64_t nr_items, uint32_t per_cta, uint32_t max_ctas)
{
	uint64_t nr = (nr_items + per_cta - 1) / per_cta;

	return nr < max_ctas ? (uint32_t)nr : max_ctas;
}

static int list_check(uint64_t list, uint32_t nr, uint32_t max_ctas)
{
	return !max_ctas || nr > OKV_KERNEL_LIST_MAX || (nr && (!list || list % 8)) ? -EINVAL : 0;
}

int okv_launch_copy(const struct okv_kernel_ops *ops, void *ctx, uint32_t max_ctas, const struct okv_copy_args *args)
{
	if (list_check(args->list, args->nr, max_ctas) || args->align_dst > 1 || args->max_bytes > INT64_MAX)
		return -EINVAL;
	if (!args->nr)
		return 0;
	return ops->launch(ctx, OKV_KERNEL_COPY,
			   ctas_for(okv_copy_slices(args->max_bytes) * args->nr, OKV_COPY_GROUPS, max_ctas), args);
}

static int launch_dense(const struct okv_kernel_ops *ops, void *ctx, uint32_t max_ctas, enum okv_kernel kernel,
			const struct okv_gather_args *args)
{
	uint32_t row_bytes = 0, i;

	if (list_check(args->list, args->nr, max_ctas) || args->reserved || !args->nr_planes ||
	    args->nr_planes > OKV_KERNEL_PLANES_MAX || args->max_rows > INT32_MAX)
		return -EINVAL;
	for (i = 0; i < args->nr_planes; i++) {
		const struct okv_dense_plane *plane = &args->planes[i];

		if (!plane->device || !plane->row_bytes || plane->row_bytes > INT32_MAX || plane->reserved)
			return -EINVAL;
		if (plane->row_bytes > row_bytes)
			row_bytes = plane->row_bytes;
	}
	if (!args->nr)
		return 0;
	return ops->launch(ctx, kernel, ctas_for(okv_copy_slices((uint64_t)row_bytes * args->max_rows) * args->nr,
						 OKV_COPY_GROUPS, max_ctas), args);
}

int okv_launch_gather(const struct okv_kernel_ops *ops, void *ctx, uint32_t max_ctas,
		      const struct okv_gather_args *args)
{
	return launch_dense(ops, ctx, max_ctas, OKV_KERNEL_GATHER, args);
}

int okv_launch_scatter(const struct okv_kernel_ops *ops, void *ctx, uint32_t max_ctas,
		       const struct okv_gather_args *args)
{
	return launch_dense(ops, ctx, max_ctas, OKV_KERNEL_SCATTER, args);
}

/* @slice bytes at @off lie within a row of @row bytes. */
static int is_within(uint32_t off, uint32_t slice, uint32_t row)
{
	return row <= INT32_MAX && off <= row && slice <= row - off;
}

int okv_launch_relayout(const struct okv_kernel_ops *ops, void *ctx, uint32_t max_ctas,
			const struct okv_relayout_args *args)
{
	uint64_t bytes = 0;
	uint32_t i;

	if (list_check(args->list, args->nr, max_ctas) || args->reserved || args->to_host > 1 || !args->nr_planes ||
	    args->nr_planes > OKV_KERNEL_PLANES_MAX || !args->nr_layers || args->nr_layers > UINT16_MAX ||
	    args->max_rows > INT32_MAX)
		return -EINVAL;
	for (i = 0; i < args->nr_planes; i++) {
		const struct okv_relayout_plane *plane = &args->planes[i];

		if (!plane->device || !plane->slice_bytes || !plane->rows_per_entry ||
		    plane->rows_per_entry > UINT16_MAX ||
		    !is_within(plane->device_off, plane->slice_bytes, plane->device_row_bytes) ||
		    !is_within(plane->host_slice_off, plane->slice_bytes, plane->host_row_bytes))
			return -EINVAL;
		if ((uint64_t)plane->slice_bytes * plane->rows_per_entry > bytes)
			bytes = (uint64_t)plane->slice_bytes * plane->rows_per_entry;
	}
	if (!args->nr)
		return 0;
	return ops->launch(ctx, OKV_KERNEL_RELAYOUT,
			   ctas_for(okv_copy_slices(bytes * args->max_rows) * args->nr * args->nr_layers, OKV_COPY_GROUPS,
				    max_ctas), args);
}

int okv_launch_crc32c(const struct okv_kernel_ops *ops, void *ctx, uint32_t max_ctas,
		      const struct okv_crc32c_args *args)
{
	if (list_check(args->list, args->nr, max_ctas) || args->reserved || args->crc % 4 || (args->nr && !args->crc))
		return -EINVAL;
	if (!args->nr)
		return 0;
	return ops->launch(ctx, OKV_KERNEL_CRC32C, ctas_for(args->nr, OKV_CRC32C_THREADS / 32, max_ctas), args);
}

static int event_check(const struct okv_event_args *args)
{
	return !args->word || args->word % 8 || !args->step || args->step % 8 ? -EINVAL : 0;
}

int okv_launch_wait(const struct okv_kernel_ops *ops, void *ctx, const struct okv_event_args *args)
{
	if (event_check(args) || !args->late || args->late % 8)
		return -EINVAL;
	return ops->launch(ctx, OKV_KERNEL_WAIT, 1, args);
}

int okv_launch_fire(const struct okv_kernel_ops *ops, void *ctx, const struct okv_event_args *args)
{
	if (event_check(args))
		return -EINVAL;
	return ops->launch(ctx, OKV_KERNEL_FIRE, 1, args);
}

int okv_reshard(uint32_t units, uint32_t nr_from, uint32_t from, uint32_t nr_to, uint32_t to,
		uint32_t *from_first, uint32_t *to_first)
{
	uint32_t per_from, per_to, first, end;

	if (!units || !nr_from || !nr_to || units > INT32_MAX || units % nr_from || units % nr_to || from >= nr_from ||
	    to >= nr_to)
		return -EINVAL;
	per_from = units / nr_from;
	per_to = units / nr_to;
	first = from * per_from > to * per_to ? from * per_from : to * per_to;
	end = (from + 1) * per_from < (to + 1) * per_to ? (from + 1) * per_from : (to + 1) * per_to;
	if (first >= end)
		return 0;
	*from_first = first - from * per_from;
	*to_first = first - to * per_to;
	return (int)(end - first);
}

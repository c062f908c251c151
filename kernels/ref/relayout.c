// SPDX-License-Identifier: MIT
/*
 * Definition of the kernel relayout.
 *
 * A row is an entry, or one head of an entry; of each the same slice moves.
 */
#include "ref.h"

#include <string.h>

static void move_plane(const struct okv_relayout_args *args, const struct okv_relayout_plane *plane,
		       const struct okv_kernel_piece *piece, uint32_t layer)
{
	uint64_t nr_rows = (uint64_t)piece->nr_rows * plane->rows_per_entry, r;

	for (r = 0; r < nr_rows; r++) {
		uint64_t host_row = (uint64_t)piece->entry * plane->rows_per_entry + r;
		uint64_t device_row = piece->row * plane->rows_per_entry + r;
		unsigned char *host = okv_ref_at(piece->host + layer * args->host_layer_bytes + plane->host_off +
						 host_row * plane->host_row_bytes + plane->host_slice_off);
		unsigned char *device = okv_ref_at(plane->device + layer * plane->device_layer_bytes +
						   device_row * plane->device_row_bytes + plane->device_off);

		memcpy(args->to_host ? host : device, args->to_host ? device : host, plane->slice_bytes);
	}
}

void okv_ref_relayout(const struct okv_relayout_args *args)
{
	const struct okv_kernel_piece *pieces = (const void *)okv_ref_at(args->list);
	uint32_t i, layer, p;

	for (i = 0; i < args->nr; i++) {
		for (layer = 0; layer < args->nr_layers; layer++) {
			for (p = 0; p < args->nr_planes; p++)
				move_plane(args, &args->planes[p], &pieces[i], layer);
		}
	}
}

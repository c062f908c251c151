// SPDX-License-Identifier: MIT
/*
 * Definition of the kernels copy, gather and scatter.
 *
 * A gather's rows go from pieces to the dense layer; a scatter's go back.
 */
#include "ref.h"

#include <string.h>

void okv_ref_copy(const struct okv_copy_args *args)
{
	const struct okv_kernel_run *runs = (const void *)okv_ref_at(args->list);
	uint32_t i;

	for (i = 0; i < args->nr; i++) {
		if (runs[i].bytes)
			memcpy(okv_ref_at(runs[i].dst), okv_ref_at(runs[i].src), runs[i].bytes);
	}
}

static void dense(const struct okv_gather_args *args, int to_host)
{
	const struct okv_kernel_piece *pieces = (const void *)okv_ref_at(args->list);
	uint32_t i, p;

	for (i = 0; i < args->nr; i++) {
		for (p = 0; p < args->nr_planes; p++) {
			const struct okv_dense_plane *plane = &args->planes[p];
			uint64_t row_bytes = plane->row_bytes;
			unsigned char *host = okv_ref_at(pieces[i].host + plane->host_off + pieces[i].entry * row_bytes);
			unsigned char *device = okv_ref_at(plane->device + pieces[i].row * row_bytes);

			if (pieces[i].nr_rows)
				memcpy(to_host ? host : device, to_host ? device : host, pieces[i].nr_rows * row_bytes);
		}
	}
}

void okv_ref_gather(const struct okv_gather_args *args)
{
	dense(args, 0);
}

void okv_ref_scatter(const struct okv_gather_args *args)
{
	dense(args, 1);
}

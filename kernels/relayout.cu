// SPDX-License-Identifier: MIT
/*
 * Kernel relayout: blocks as the host keeps them (all layers of a block together) and tensors as attention wants them
 * (all rows of a layer together), with a slice of each row where the two sides are sharded differently.
 *
 * in   list  [nr] struct okv_kernel_piece                          device or mapped host memory
 * in   the slices of each block, or of the tensors' rows           mapped host or device memory
 * out  the slices of the other side, no two of them overlapping    the other
 *
 * Geometry: any number of CTAs of OKV_COPY_THREADS threads. Work items are (block, layer, slice of 2 KiB of what moves
 * of a plane), grid-stride over groups of 8 lanes. What moves of a plane is numbered without its gaps; a division
 * finds the row. Two planes at a time, as in copy.cu. Bytes only.
 */
#include "group.cuh"

/* Where the bytes of one plane of one piece are. */
struct okv_rows {
	uint64_t	src;		/* the first slice */
	uint64_t	dst;
	uint32_t	src_row_bytes;
	uint32_t	dst_row_bytes;
	uint32_t	slice_bytes;
	uint32_t	width;		/* of vectors that everything here is a multiple of */
};

static __device__ __forceinline__ okv_rows okv_rows_of(const struct okv_relayout_args &args,
							 const struct okv_relayout_plane &plane,
							 const struct okv_kernel_piece &piece, uint32_t layer)
{
	const uint64_t host = piece.host + layer * args.host_layer_bytes + plane.host_off +
			      (uint64_t)piece.entry * plane.rows_per_entry * plane.host_row_bytes + plane.host_slice_off;
	const uint64_t device = plane.device + layer * plane.device_layer_bytes +
				piece.row * plane.rows_per_entry * plane.device_row_bytes + plane.device_off;
	const uint32_t width = okv_alignment(host | device | plane.host_row_bytes | plane.device_row_bytes |
					     plane.slice_bytes);

	if (args.to_host)
		return { device, host, plane.device_row_bytes, plane.host_row_bytes, plane.slice_bytes, width };
	return { host, device, plane.host_row_bytes, plane.device_row_bytes, plane.slice_bytes, width };
}

/* Up to OKV_SLICE_BYTES of what moves; the first byte is at @off0 of the slice of row @row0. */
struct okv_chunk {
	uint64_t	row0;
	uint32_t	off0;
	uint32_t	bytes;
};

static __device__ __forceinline__ okv_chunk okv_chunk_at(const okv_rows &rows, uint64_t begin, uint64_t end)
{
	const uint64_t left = end > begin ? end - begin : 0;
	const uint64_t row0 = begin / rows.slice_bytes;

	return {
		row0, (uint32_t)(begin - row0 * rows.slice_bytes),
		left < OKV_SLICE_BYTES ? (uint32_t)left : OKV_SLICE_BYTES,
	};
}

/* Where byte @at of the chunk is, on both sides. */
static __device__ __forceinline__ void okv_place(const okv_rows &rows, const okv_chunk &chunk, uint32_t at, uint64_t *src,
						   uint64_t *dst)
{
	const uint32_t pos = chunk.off0 + at, row = pos / rows.slice_bytes, off = pos - row * rows.slice_bytes;

	*src = rows.src + (chunk.row0 + row) * rows.src_row_bytes + off;
	*dst = rows.dst + (chunk.row0 + row) * rows.dst_row_bytes + off;
}

static __device__ __forceinline__ void okv_move_rows_wide(const okv_rows &a, const okv_chunk &chunk_a, const okv_rows &b,
							    const okv_chunk &chunk_b, uint32_t lane)
{
	constexpr uint32_t nr = OKV_COPY_UNROLL / 2, step = OKV_KERNEL_STEP_BYTES;
	const uint32_t end = chunk_a.bytes > chunk_b.bytes ? chunk_a.bytes : chunk_b.bytes;

#pragma unroll 1
	for (uint32_t at = lane * 16; at < end; at += nr * step) {
		uint4 va[nr], vb[nr];
		uint64_t src, dst_a[nr], dst_b[nr];

#pragma unroll
		for (uint32_t u = 0; u < nr; u++) {
			if (at + u * step < chunk_a.bytes) {
				okv_place(a, chunk_a, at + u * step, &src, &dst_a[u]);
				va[u] = okv_load<uint4>(src);
			}
			if (at + u * step < chunk_b.bytes) {
				okv_place(b, chunk_b, at + u * step, &src, &dst_b[u]);
				vb[u] = okv_load<uint4>(src);
			}
		}
#pragma unroll
		for (uint32_t u = 0; u < nr; u++) {
			if (at + u * step < chunk_a.bytes)
				okv_store<uint4>(dst_a[u], va[u]);
			if (at + u * step < chunk_b.bytes)
				okv_store<uint4>(dst_b[u], vb[u]);
		}
	}
}

template <typename V>
static __device__ __forceinline__ void okv_move_rows_narrow(const okv_rows &rows, const okv_chunk &chunk, uint32_t lane)
{
#pragma unroll 1
	for (uint32_t at = lane * sizeof(V); at < chunk.bytes; at += OKV_GROUP_LANES * sizeof(V)) {
		uint64_t src, dst;

		okv_place(rows, chunk, at, &src, &dst);
		okv_store<V>(dst, okv_load<V>(src));
	}
}

static __device__ __forceinline__ void okv_move_rows(const okv_rows &a, const okv_rows &b, uint64_t begin, uint64_t end_a,
						       uint64_t end_b, uint32_t lane)
{
	const uint32_t width = a.width < b.width ? a.width : b.width;

	if (width == 16) {
		okv_move_rows_wide(a, okv_chunk_at(a, begin, end_a), b, okv_chunk_at(b, begin, end_b), lane);
		return;
	}
#pragma unroll 1
	for (uint32_t i = 0; i < 2; i++) {
		const okv_rows rows = i ? b : a;
		const okv_chunk chunk = okv_chunk_at(rows, begin, i ? end_b : end_a);

		if (width == 8)
			okv_move_rows_narrow<uint2>(rows, chunk, lane);
		else if (width == 4)
			okv_move_rows_narrow<unsigned int>(rows, chunk, lane);
		else if (width == 2)
			okv_move_rows_narrow<unsigned short>(rows, chunk, lane);
		else
			okv_move_rows_narrow<unsigned char>(rows, chunk, lane);
	}
}

extern "C" __global__ void __launch_bounds__(OKV_COPY_THREADS, 1)
okv_kernel_relayout(const struct okv_relayout_args args)
{
	const struct okv_kernel_piece *list = okv_at<const struct okv_kernel_piece>(args.list);
	const uint32_t lane = okv_lane();
	uint64_t entry_bytes = 0;

	for (uint32_t p = 0; p < args.nr_planes; p++) {
		const uint64_t bytes = (uint64_t)args.planes[p].slice_bytes * args.planes[p].rows_per_entry;

		entry_bytes = bytes > entry_bytes ? bytes : entry_bytes;
	}

	const uint64_t nr_slices = okv_copy_slices(entry_bytes * args.max_rows);
	const uint64_t per_entry = nr_slices * args.nr_layers;

	for (uint64_t item = okv_group(); item < per_entry * args.nr; item += okv_nr_groups()) {
		const uint64_t entry = item / per_entry, rest = item - entry * per_entry;
		const uint32_t layer = (uint32_t)(rest / nr_slices);
		const uint64_t slice = rest - layer * nr_slices;
		const struct okv_kernel_piece piece = list[entry];

		for (uint32_t p = 0; p < args.nr_planes; p += 2) {
			const bool is_pair = p + 1 < args.nr_planes;
			const struct okv_relayout_plane &plane_a = args.planes[p];
			const struct okv_relayout_plane &plane_b = args.planes[is_pair ? p + 1 : p];
			const okv_rows a = okv_rows_of(args, plane_a, piece, layer), b = okv_rows_of(args, plane_b, piece, layer);
			const uint64_t rows = piece.nr_rows;
			const uint64_t end_a = okv_slice_end(slice, nr_slices,
							     rows * plane_a.rows_per_entry * plane_a.slice_bytes);
			const uint64_t end_b = is_pair ? okv_slice_end(slice, nr_slices, rows * plane_b.rows_per_entry *
									plane_b.slice_bytes) : 0;
			const uint64_t end = end_a > end_b ? end_a : end_b;

			for (uint64_t begin = slice * OKV_SLICE_BYTES; begin < end; begin += OKV_SLICE_BYTES)
				okv_move_rows(a, b, begin, end_a, end_b, lane);
		}
	}
}

// SPDX-License-Identifier: MIT
/*
 * Kernels copy, gather and scatter: contiguous runs between host and device.
 *
 * in   list  entries, see kernels.h     device or mapped host memory
 * in   the bytes of each entry          mapped host or device memory
 * out  the bytes of each entry          the other, no overlap with any source or other destination
 *
 * Geometry: any number of CTAs of OKV_COPY_THREADS threads. Work items are (entry, slice of 2 KiB); each group of 8
 * lanes takes one after another, grid-stride. Within a slice a step of a group is 128 bytes, aligned on the host, and
 * OKV_COPY_UNROLL steps of two runs are loaded before the first is stored. Bytes only: element types do not matter.
 */
#include "group.cuh"

/* Up to OKV_SLICE_BYTES of a run. */
struct okv_part {
	uint64_t	src;
	uint64_t	dst;
	uint32_t	bytes;
	uint32_t	mis;	/* bytes by which its first byte lies behind a boundary of a step */
};

/* The slice of @part's run that begins at @begin; nothing where the run ends before. */
static __device__ __forceinline__ okv_part okv_part_at(uint64_t src, uint64_t dst, uint64_t begin, uint64_t end,
							 bool align_dst)
{
	const uint64_t left = end > begin ? end - begin : 0;

	return {
		src + begin, dst + begin, left < OKV_SLICE_BYTES ? (uint32_t)left : OKV_SLICE_BYTES,
		(uint32_t)((align_dst ? dst : src) + begin) % OKV_KERNEL_STEP_BYTES,
	};
}

/* What no whole vector holds: fewer than @width bytes at the head, fewer at the tail. */
static __device__ __forceinline__ void okv_move_edges(const okv_part &part, uint32_t width, uint32_t lane)
{
	uint32_t head = (width - part.mis % width) % width, tail, i;

	head = head < part.bytes ? head : part.bytes;
	tail = head + (part.bytes - head) / width * width;
	for (i = lane; i < head; i += OKV_GROUP_LANES)
		okv_store<unsigned char>(part.dst + i, okv_load<unsigned char>(part.src + i));
	for (i = tail + lane; i < part.bytes; i += OKV_GROUP_LANES)
		okv_store<unsigned char>(part.dst + i, okv_load<unsigned char>(part.src + i));
}

/*
 * The whole vectors of both parts, 16 bytes each. A vector at @off is whole where 0 <= @off <= bytes - 16; as unsigned
 * numbers offsets before the part are large, so that one comparison tells both.
 */
static __device__ __forceinline__ void okv_move_wide(const okv_part &a, const okv_part &b, uint32_t lane)
{
	constexpr int step = OKV_KERNEL_STEP_BYTES;
	const int end_a = (int)(a.bytes + a.mis), end_b = (int)(b.bytes + b.mis), end = end_a > end_b ? end_a : end_b;
	const uint32_t nr_a = a.bytes < 16 ? 0 : a.bytes - 15, nr_b = b.bytes < 16 ? 0 : b.bytes - 15;
	int off_a = (int)(lane * 16) - (int)a.mis, off_b = (int)(lane * 16) - (int)b.mis;
	uint64_t src_a = a.src + (int64_t)off_a, dst_a = a.dst + (int64_t)off_a;
	uint64_t src_b = b.src + (int64_t)off_b, dst_b = b.dst + (int64_t)off_b;

#pragma unroll 1
	for (int at = 0; at < end; at += (int)OKV_COPY_UNROLL * step) {
		uint4 va[OKV_COPY_UNROLL], vb[OKV_COPY_UNROLL];

#pragma unroll
		for (int u = 0; u < (int)OKV_COPY_UNROLL; u++) {
			if ((uint32_t)(off_a + u * step) < nr_a)
				va[u] = okv_load<uint4>(src_a + u * step);
			if ((uint32_t)(off_b + u * step) < nr_b)
				vb[u] = okv_load<uint4>(src_b + u * step);
		}
#pragma unroll
		for (int u = 0; u < (int)OKV_COPY_UNROLL; u++) {
			if ((uint32_t)(off_a + u * step) < nr_a)
				okv_store<uint4>(dst_a + u * step, va[u]);
			if ((uint32_t)(off_b + u * step) < nr_b)
				okv_store<uint4>(dst_b + u * step, vb[u]);
		}
		off_a += (int)OKV_COPY_UNROLL * step;
		off_b += (int)OKV_COPY_UNROLL * step;
		src_a += OKV_COPY_UNROLL * step;
		dst_a += OKV_COPY_UNROLL * step;
		src_b += OKV_COPY_UNROLL * step;
		dst_b += OKV_COPY_UNROLL * step;
	}
}

/* The whole vectors of a part whose ends are not equal modulo 16. */
template <typename V>
static __device__ __forceinline__ void okv_move_narrow(const okv_part &part, uint32_t lane)
{
	constexpr uint32_t width = sizeof(V);
	const uint32_t head = (width - part.mis % width) % width;

#pragma unroll 2
	for (uint32_t off = head + lane * width; off + width <= part.bytes; off += OKV_GROUP_LANES * width)
		okv_store<V>(part.dst + off, okv_load<V>(part.src + off));
}

static __device__ __forceinline__ void okv_move(const okv_part &a, const okv_part &b, uint32_t lane)
{
	/* Vectors can be as wide as source and destination are equal modulo. */
	const uint32_t width = okv_alignment((a.src ^ a.dst) | (b.bytes ? b.src ^ b.dst : 0));

	if (width == 16)
		okv_move_wide(a, b, lane);
#pragma unroll 1
	for (uint32_t i = 0; i < 2; i++) {
		const okv_part part = i ? b : a;

		if (width == 8)
			okv_move_narrow<uint2>(part, lane);
		else if (width == 4)
			okv_move_narrow<unsigned int>(part, lane);
		else if (width == 2)
			okv_move_narrow<unsigned short>(part, lane);
		else if (width == 1)
			okv_move_narrow<unsigned char>(part, lane);
		if (width > 1)
			okv_move_edges(part, width, lane);
	}
}

extern "C" __global__ void __launch_bounds__(OKV_COPY_THREADS, 1)
okv_kernel_copy(const struct okv_copy_args args)
{
	const struct okv_kernel_run *list = okv_at<const struct okv_kernel_run>(args.list);
	const uint64_t nr_slices = okv_copy_slices(args.max_bytes);
	const uint32_t lane = okv_lane();

	for (uint64_t item = okv_group(); item < nr_slices * args.nr; item += okv_nr_groups()) {
		const uint64_t entry = nr_slices == 1 ? item : item / nr_slices;
		const uint64_t slice = item - entry * nr_slices;
		const struct okv_kernel_run run = list[entry];
		const uint64_t end = okv_slice_end(slice, nr_slices, run.bytes);

		for (uint64_t begin = slice * OKV_SLICE_BYTES; begin < end; begin += OKV_SLICE_BYTES)
			okv_move(okv_part_at(run.src, run.dst, begin, end, args.align_dst), { 0, 0, 0, 0 }, lane);
	}
}

/* One slice of two planes of a piece; @b may be @a: then there is one. */
static __device__ __forceinline__ void okv_move_planes(const struct okv_kernel_piece &piece,
							 const struct okv_dense_plane &a, const struct okv_dense_plane &b,
							 bool is_pair, bool to_host, uint64_t slice, uint64_t nr_slices,
							 uint32_t lane)
{
	const uint64_t host_a = piece.host + a.host_off + (uint64_t)piece.entry * a.row_bytes;
	const uint64_t host_b = piece.host + b.host_off + (uint64_t)piece.entry * b.row_bytes;
	const uint64_t device_a = a.device + piece.row * a.row_bytes, device_b = b.device + piece.row * b.row_bytes;
	const uint64_t end_a = okv_slice_end(slice, nr_slices, (uint64_t)piece.nr_rows * a.row_bytes);
	const uint64_t end_b = is_pair ? okv_slice_end(slice, nr_slices, (uint64_t)piece.nr_rows * b.row_bytes) : 0;
	const uint64_t end = end_a > end_b ? end_a : end_b;

	for (uint64_t begin = slice * OKV_SLICE_BYTES; begin < end; begin += OKV_SLICE_BYTES)
		okv_move(okv_part_at(to_host ? device_a : host_a, to_host ? host_a : device_a, begin, end_a, to_host),
			 okv_part_at(to_host ? device_b : host_b, to_host ? host_b : device_b, begin, end_b, to_host),
			 lane);
}

static __device__ __forceinline__ void okv_move_pieces(const struct okv_gather_args &args, bool to_host)
{
	const struct okv_kernel_piece *list = okv_at<const struct okv_kernel_piece>(args.list);
	uint32_t row_bytes = 0;

	for (uint32_t p = 0; p < args.nr_planes; p++)
		row_bytes = args.planes[p].row_bytes > row_bytes ? args.planes[p].row_bytes : row_bytes;

	const uint64_t nr_slices = okv_copy_slices((uint64_t)row_bytes * args.max_rows);
	const uint32_t lane = okv_lane();

	for (uint64_t item = okv_group(); item < nr_slices * args.nr; item += okv_nr_groups()) {
		const uint64_t entry = nr_slices == 1 ? item : item / nr_slices;
		const uint64_t slice = item - entry * nr_slices;
		const struct okv_kernel_piece piece = list[entry];

		for (uint32_t p = 0; p < args.nr_planes; p += 2) {
			const bool is_pair = p + 1 < args.nr_planes;

			okv_move_planes(piece, args.planes[p], args.planes[is_pair ? p + 1 : p], is_pair, to_host, slice,
					nr_slices, lane);
		}
	}
}

extern "C" __global__ void __launch_bounds__(OKV_COPY_THREADS, 1)
okv_kernel_gather(const struct okv_gather_args args)
{
	okv_move_pieces(args, false);
}

extern "C" __global__ void __launch_bounds__(OKV_COPY_THREADS, 1)
okv_kernel_scatter(const struct okv_gather_args args)
{
	okv_move_pieces(args, true);
}

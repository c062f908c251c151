/* SPDX-License-Identifier: MIT */
/*
 * Kernels: what moves and sums KV on a device, as plain C sees it.
 *
 * Owns the arguments, names and launch geometry of every kernel, and the checks before a launch. The code is in the
 * .cu files, its definition in ref/: a kernel is right when it leaves the bytes that its namesake there leaves.
 * Whoever has a device gives a table (struct okv_kernel_ops) that starts a kernel; "ref" and "shim" run on the CPU.
 *
 * Nothing here allocates, waits or keeps state; any thread. Addresses are device addresses as 64-bit numbers, of
 * device memory or of mapped host memory; sizes are bytes. Kernels never change an address that they are not given.
 */
#ifndef OKV_KERNELS_H
#define OKV_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

#include <stddef.h>
#include <stdint.h>

/** What one kernel moves or sums in a launch at most: entries of its list. */
#define OKV_KERNEL_LIST_MAX	(1u << 24)
#define OKV_KERNEL_PLANES_MAX	8u
/** A step of the copying kernels: one PCIe transaction, 8 lanes of 16 bytes. */
#define OKV_KERNEL_STEP_BYTES	128u

/** The order is that of okv_kernels[]. */
enum okv_kernel {
	OKV_KERNEL_COPY,
	OKV_KERNEL_GATHER,
	OKV_KERNEL_SCATTER,
	OKV_KERNEL_RELAYOUT,
	OKV_KERNEL_CRC32C,
	OKV_KERNEL_WAIT,
	OKV_KERNEL_FIRE,
	OKV_KERNEL_NR,
};

/**
 * struct okv_kernel_info - what a launch needs to know
 * @symbol:      name in the fatbin; its one parameter is the kernel's argument struct, by value
 * @args_bytes:  size of that struct
 * @cta_threads: threads a CTA (x; y and z are 1); no dynamic shared memory
 */
struct okv_kernel_info {
	const char	*symbol;
	uint32_t	args_bytes;
	uint32_t	cta_threads;
};

extern const struct okv_kernel_info okv_kernels[OKV_KERNEL_NR];

/**
 * struct okv_kernel_ops - a way of running kernels
 * @launch: start @nr_ctas CTAs of @kernel with @args, which are copied before it returns. 0 or a negative errno.
 *          On a device that is a launch in stream order; "ref" and "shim" return when the kernel has ended
 */
struct okv_kernel_ops {
	const char	*name;
	int (*launch)(void *ctx, enum okv_kernel kernel, uint32_t nr_ctas, const void *args);
};

/** The definitions in plain C, on the calling thread. @ctx is not used; nor is nr_ctas. */
extern const struct okv_kernel_ops okv_kernels_ref;
/**
 * The device code itself, compiled for the CPU: one fibre a thread, CTA after CTA, on the calling thread. @ctx is a
 * struct okv_shim (shim/run.h) or NULL. The table is NULL where the library was built without a C++ compiler, or for the
 * thread sanitizer. -EDEADLK: threads of a CTA wait at different barriers, or some have ended while others wait; the
 * bytes are then undefined. -ENOMEM.
 */
extern const struct okv_kernel_ops *const okv_kernels_shim;

/**
 * okv_kernels_fatbin() - the device code: one compressed fatbin for cuModuleLoadData()
 * @bytes: its size, 0 when there is none
 *
 * Return: NULL when the library was built without nvcc.
 */
const void *okv_kernels_fatbin(size_t *bytes);
/** One line: what the device code was built with and for, or why there is none and what to do. */
const char *okv_kernels_build(void);

/* ---- copy: runs as they come -------------------------------------------------------------- */

/** struct okv_kernel_run - @bytes bytes from @src to @dst; any alignment, also 0 bytes */
struct okv_kernel_run {
	uint64_t	src;
	uint64_t	dst;
	uint64_t	bytes;
};

/**
 * struct okv_copy_args - copy scattered runs, to anywhere
 * @list:      in, [nr] struct okv_kernel_run, 8-byte aligned; best in device memory, since each entry is read once by
 *             whoever copies it
 * @nr:        entries
 * @align_dst: transactions of 128 bytes are aligned at the source (0) or at the destination (1): say which of them is
 *             host memory
 * @max_bytes: bytes of the longest run, by which long runs are cut into slices; a hint: what it says too little costs
 *             balance, what it says too much costs time, neither costs bytes
 *
 * No destination overlaps another or any source. 16 bytes a lane where source and destination of a run are equal
 * modulo 16, down to 1 byte where they are odd to each other.
 */
struct okv_copy_args {
	uint64_t	list;
	uint32_t	nr;
	uint32_t	align_dst;
	uint64_t	max_bytes;
};

/* ---- gather, scatter: pieces of KV and dense layers ---------------------------------------- */

/**
 * struct okv_kernel_piece - rows of one layer of one block
 * @host:    address of the piece in the pool
 * @row:     row of the dense layer where its first entry stands
 * @entry:   first entry of the piece that moves
 * @nr_rows: entries that move; may be 0
 */
struct okv_kernel_piece {
	uint64_t	host;
	uint64_t	row;
	uint32_t	entry;
	uint32_t	nr_rows;
};

/**
 * struct okv_dense_plane - one plane of a dense layer
 * @device:    address of row 0: [rows][row_bytes]
 * @host_off:  bytes from the start of a piece to that plane: [entries][row_bytes]
 * @row_bytes: bytes of an entry, 1 to 2^31 - 1
 */
struct okv_dense_plane {
	uint64_t	device;
	uint64_t	host_off;
	uint32_t	row_bytes;
	uint32_t	reserved;
};

/**
 * struct okv_gather_args - scattered pieces to one dense layer (gather), or back (scatter)
 * @list:      in, [nr] struct okv_kernel_piece, as in struct okv_copy_args
 * @nr:        entries
 * @nr_planes: 1 to OKV_KERNEL_PLANES_MAX
 * @max_rows:  most rows of a piece, as max_bytes: a hint
 * @planes:    [nr_planes]
 *
 * Plane p of piece i: nr_rows x row_bytes bytes at host + host_off + entry x row_bytes, and at device + row x row_bytes.
 * Two planes at a time are loaded before either is stored, K and V together. Overlap and alignment as in
 * struct okv_copy_args; transactions are aligned on the host.
 */
struct okv_gather_args {
	uint64_t		list;
	uint32_t		nr;
	uint32_t		nr_planes;
	uint32_t		max_rows;
	uint32_t		reserved;
	struct okv_dense_plane	planes[OKV_KERNEL_PLANES_MAX];
};

/* ---- relayout: whole blocks and layer-first tensors, between shardings ---------------------- */

/**
 * struct okv_relayout_plane - one plane, of which a slice of each row moves
 * @device:             address of row 0 of the first layer
 * @device_layer_bytes: from a layer to the next
 * @device_row_bytes:   from a row to the next
 * @device_off:         bytes from the start of a device row to the slice
 * @host_off:           bytes from the start of a piece to its plane
 * @host_row_bytes:     from a row to the next
 * @host_slice_off:     bytes from the start of a host row to the slice
 * @slice_bytes:        bytes of a row that move, at least 1; within both rows
 * @rows_per_entry:     1, or heads where the slice is one of each head's elements; a row is then one head
 */
struct okv_relayout_plane {
	uint64_t	device;
	uint64_t	device_layer_bytes;
	uint64_t	host_off;
	uint32_t	device_row_bytes;
	uint32_t	device_off;
	uint32_t	host_row_bytes;
	uint32_t	host_slice_off;
	uint32_t	slice_bytes;
	uint32_t	rows_per_entry;
};

/**
 * struct okv_relayout_args - blocks on the host, all layers of each together, and layer-first tensors on the device
 * @list:             in, [nr] struct okv_kernel_piece: @host is the address of the first layer's piece, @row counts
 *                    entries
 * @nr, @nr_planes:   as in struct okv_gather_args
 * @nr_layers:        pieces of each block that move, one after another, 1 to 65535
 * @to_host:          0: host to device; 1: device to host
 * @max_rows:         most entries of a piece: a hint
 * @host_layer_bytes: from a piece of a block to the next
 *
 * A slice is all of a row where both sides are sharded alike. Reading what was written at another degree of tensor
 * parallelism is one launch a source shard, with the slices of okv_reshard(). Overlap and alignment as in struct
 * okv_copy_args: 16 bytes a lane where all of a plane's addresses, distances and its slice are multiples of 16.
 */
struct okv_relayout_args {
	uint64_t			list;
	uint32_t			nr;
	uint32_t			nr_planes;
	uint32_t			nr_layers;
	uint32_t			to_host;
	uint32_t			max_rows;
	uint32_t			reserved;
	uint64_t			host_layer_bytes;
	struct okv_relayout_plane	planes[OKV_KERNEL_PLANES_MAX];
};

/**
 * okv_reshard() - what shard @to of @nr_to needs of shard @from of @nr_from
 * @units:      heads (or elements) of all shards together; a multiple of both degrees, else -EINVAL
 * @from_first: first unit within the source shard
 * @to_first:   first unit within the destination shard
 *
 * Return: how many units there are, 0 where the shards have none in common (nothing is written then), or -EINVAL.
 */
int okv_reshard(uint32_t units, uint32_t nr_from, uint32_t from, uint32_t nr_to, uint32_t to,
		uint32_t *from_first, uint32_t *to_first);

/* ---- checksums ----------------------------------------------------------------------------- */

/** struct okv_kernel_span - @bytes bytes at @addr; any alignment, also 0 bytes */
struct okv_kernel_span {
	uint64_t	addr;
	uint64_t	bytes;
};

/**
 * struct okv_crc32c_args - CRC32C of each span, as lib/crc32c.h has it
 * @list: in, [nr] struct okv_kernel_span, 8-byte aligned
 * @crc:  out, [nr] uint32_t, 4-byte aligned
 * @nr:   entries
 */
struct okv_crc32c_args {
	uint64_t	list;
	uint64_t	crc;
	uint32_t	nr;
	uint32_t	reserved;
};

/* ---- events of captured work ---------------------------------------------------------------- */

/**
 * struct okv_event_args - wait until a word is reached, or reach it, in each replay of a graph anew
 * @word:     address of 64 bits, 8-byte aligned
 * @step:     address of 64 bits: which replay this is
 * @base:     what the word is compared with, or becomes, is okv_event_value(@base, the replay)
 * @late:     wait: address of 64 bits that are raised by one where the looks run out; the wait ends then
 * @nr_polls: wait: looks at the word, about a microsecond each
 */
struct okv_event_args {
	uint64_t	word;
	uint64_t	step;
	uint64_t	base;
	uint64_t	late;
	uint64_t	nr_polls;
};

/** Words count lives of their event by two; the value above is a life that ended with an error, and ends waits as well. */
#ifdef __CUDACC__
__host__ __device__
#endif
static inline uint64_t okv_event_value(uint64_t base, uint64_t step)
{
	return 2 * (base + step);
}

/* ---- launchers ----------------------------------------------------------------------------- */

/*
 * Check @args and start the kernel with as many CTAs as there is work for, at most @max_ctas: a CTA of the copying
 * kernels fills an SM, so that is the most SMs that they use. An empty list starts nothing.
 *
 * Return: 0, or
 *   -EINVAL  a null or misaligned address, a count or size out of range, a reserved word that is not 0, no CTAs
 *   or what ops->launch returned
 */
int okv_launch_copy(const struct okv_kernel_ops *ops, void *ctx, uint32_t max_ctas, const struct okv_copy_args *args);
int okv_launch_gather(const struct okv_kernel_ops *ops, void *ctx, uint32_t max_ctas,
		      const struct okv_gather_args *args);
int okv_launch_scatter(const struct okv_kernel_ops *ops, void *ctx, uint32_t max_ctas,
		       const struct okv_gather_args *args);
int okv_launch_relayout(const struct okv_kernel_ops *ops, void *ctx, uint32_t max_ctas,
			const struct okv_relayout_args *args);
int okv_launch_crc32c(const struct okv_kernel_ops *ops, void *ctx, uint32_t max_ctas,
		      const struct okv_crc32c_args *args);
/** One CTA each. */
int okv_launch_wait(const struct okv_kernel_ops *ops, void *ctx, const struct okv_event_args *args);
int okv_launch_fire(const struct okv_kernel_ops *ops, void *ctx, const struct okv_event_args *args);

#ifdef __cplusplus
}
#endif

#endif /* OKV_KERNELS_H */

/* SPDX-License-Identifier: MIT */
/*
 * Resharding: what one degree of tensor parallelism wrote is read, or written, at another.
 *
 * The pool holds a block as shards: one extent for each of the ranks that wrote it, each by a plan of
 * omnikv_layout_shard(). A rank of another degree moves of each shard the slice that both have of a plane, straight
 * between that shard's pieces and its own layer-first tensors, by LOAD, STORE and COPY with struct omnikv_rows.
 *
 * Pure: no I/O, no state, any thread.
 */
#ifndef OMNIKV_RESHARD_H
#define OMNIKV_RESHARD_H

#include <omnikv/layout.h>
#include <omnikv/ring.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * omnikv_layout_shard() - the layout of what one of @nr_ranks keeps
 * @whole: the model's; a plane with a shard axis keeps the @nr_ranks-th part of that, all others stay whole
 *
 * Return: 0, or -EINVAL with one line in @err: no valid layout, or what cannot be shared out among so many.
 */
OMNIKV_API int omnikv_layout_shard(const struct omnikv_layout *whole, uint32_t nr_ranks, struct omnikv_layout *shard,
				   struct omnikv_error *err);

/** struct omnikv_rank - @rank of @nr_ranks */
struct omnikv_rank {
	uint32_t	rank;
	uint32_t	nr_ranks;
};

/**
 * struct omnikv_slice - what two ranks have in common of an entry of a plane
 * @rows:           as the ring takes them: all 0 where whole entries move
 * @host_off:       bytes from the start of a piece to the slice of entry 0
 * @device_off:     bytes from the start of the device's plane to the slice of entry 0
 * @host_bytes:     from an entry to the next in the piece
 * @device_bytes:   from an entry to the next on the device: [entries][heads][elems] of that rank, dense
 * @bytes:          of an entry that move
 */
struct omnikv_slice {
	struct omnikv_rows	rows;
	uint64_t		host_off;
	uint64_t		device_off;
	uint64_t		host_bytes;
	uint64_t		device_bytes;
	uint64_t		bytes;
};

/**
 * omnikv_slice_find() - the slice of a plane that shard @host in the pool and rank @device have in common
 * @plan:  of a shard in the pool, at scale 1: its layout is what omnikv_layout_shard() gave for @host->nr_ranks
 * @group: index in the layout
 * @plane: index in the group
 *
 * A plane that is whole at every rank comes from the one shard whose rank is @device's modulo @host's degree.
 *
 * Return: 1, 0 where they have nothing in common (@slice is not written), or -EINVAL with one line in @err.
 */
OMNIKV_API int omnikv_slice_find(const struct omnikv_plan *plan, uint32_t group, uint32_t plane,
				 const struct omnikv_rank *host, const struct omnikv_rank *device,
				 struct omnikv_slice *slice, struct omnikv_error *err);

/**
 * omnikv_slice_piece() - one piece of a transfer: entries of one layer of one block
 * @extent:     the shard's extent of that block and group
 * @piece_off:  bytes from its start to the layer's piece: omnikv_group_piece_idx() x piece_bytes
 * @entry:      first entry of the piece
 * @plane_off:  bytes from the start of the HBM to the device's plane
 * @row:        entry of the plane where that goes, or comes from
 * @nr_entries: not 0; where the slice has rows, no more than make OMNIKV_ROWS_MAX of them
 */
static inline void omnikv_slice_piece(const struct omnikv_slice *slice, const struct omnikv_extent *extent, uint64_t piece_off,
				      uint64_t entry, uint64_t plane_off, uint64_t row, uint32_t nr_entries,
				      struct omnikv_piece *piece, struct omnikv_rows *rows)
{
	piece->extent = *extent;
	piece->extent_off = piece_off + slice->host_off + entry * slice->host_bytes;
	piece->device_off = plane_off + slice->device_off + row * slice->device_bytes;
	piece->bytes = nr_entries * slice->bytes;
	*rows = slice->rows;
}

#ifdef __cplusplus
}
#endif

#endif /* OMNIKV_RESHARD_H */

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Form of the operations of a batch. See batch_check.h.
 *
 * A table says for each opcode which words it reads; every other word must be 0, so that a
 * later version can give it a meaning.
 */
#include "batch_check.h"

enum {
	USES_EXTENT	= 1 << 0,	/* one extent, or a list where USES_LIST is set too */
	USES_LIST	= 1 << 1,
	USES_WINDOW	= 1 << 2,	/* window_fd, window_off, bytes */
	USES_EXTENT_OFF	= 1 << 3,
	USES_COOKIE	= 1 << 4,
	IS_ALLOC	= 1 << 5,	/* the extent is a wish, not a name */
};

static const struct {
	uint32_t uses;
	uint32_t flags;
} okv_op_forms[OMNIKV_BATCH_LAST + 1] = {
	[OMNIKV_BATCH_ALLOC]		= { USES_EXTENT | USES_LIST | USES_COOKIE | IS_ALLOC,
					    OMNIKV_BATCH_ALLOC_F_ALL },
	[OMNIKV_BATCH_FREE]		= { USES_EXTENT | USES_LIST, 0 },
	[OMNIKV_BATCH_SEAL]		= { USES_EXTENT | USES_LIST, 0 },
	[OMNIKV_BATCH_LEASE]		= { USES_EXTENT | USES_LIST, 0 },
	[OMNIKV_BATCH_RELEASE]		= { USES_EXTENT | USES_LIST, 0 },
	[OMNIKV_BATCH_IO_GET]		= { USES_EXTENT | USES_LIST, 0 },
	[OMNIKV_BATCH_IO_PUT]		= { USES_EXTENT | USES_LIST, 0 },
	[OMNIKV_BATCH_BIND]		= { USES_EXTENT | USES_WINDOW | USES_EXTENT_OFF, OMNIKV_BATCH_BIND_F_ALL },
	[OMNIKV_BATCH_UNBIND]		= { USES_WINDOW, 0 },
	[OMNIKV_BATCH_QUERY_EXTENT]	= { USES_EXTENT, 0 },
};

bool okv_range_fits(uint64_t off, uint64_t bytes, uint64_t limit)
{
	return bytes && !(off % OKV_PAGE_BYTES) && !(bytes % OKV_PAGE_BYTES) && bytes <= limit &&
	       off <= limit - bytes;
}

static bool is_extent_clear(const struct omnikv_extent *ext)
{
	return !ext->granule && !ext->generation && !ext->nr_granules;
}

static int check_extent(const struct omnikv_batch_op *op, uint32_t uses)
{
	if (uses & IS_ALLOC) {
		if (!op->extent.nr_granules || op->extent.generation)
			return -EINVAL;
		if (!(op->flags & OMNIKV_BATCH_ALLOC_F_AFTER) && op->extent.granule)
			return -EINVAL;
	} else if (uses & USES_EXTENT) {
		/* A list stands instead of the one extent. What is no extent's name is found later. */
		if (op->addr && !is_extent_clear(&op->extent))
			return -EINVAL;
	} else if (!is_extent_clear(&op->extent)) {
		return -EINVAL;
	}

	if (!op->addr)
		return op->count ? -EINVAL : 0;
	if (!(uses & USES_LIST) || !op->count || op->count > OMNIKV_LIST_MAX)
		return -EINVAL;
	return 0;
}

int okv_op_check(const struct omnikv_batch_op *op)
{
	uint32_t uses;

	if (op->opcode > OMNIKV_BATCH_LAST)
		return -EINVAL;
	uses = okv_op_forms[op->opcode].uses;
	if (op->flags & ~okv_op_forms[op->opcode].flags)
		return -EINVAL;
	if (check_extent(op, uses))
		return -EINVAL;

	if (uses & USES_WINDOW) {
		if (op->window_fd < 0 || !okv_range_fits(op->window_off, op->bytes, ~0ULL))
			return -EINVAL;
	} else if (op->window_fd || op->window_off || op->bytes) {
		return -EINVAL;
	}
	if (op->extent_off && (!(uses & USES_EXTENT_OFF) || op->extent_off % OKV_PAGE_BYTES))
		return -EINVAL;
	if (op->cookie && !(uses & USES_COOKIE))
		return -EINVAL;
	return op->res || op->state ? -EINVAL : 0;
}

int okv_bind_check(const struct omnikv_batch_op *op, uint64_t extent_bytes, uint64_t window_bytes)
{
	if (!okv_range_fits(op->window_off, op->bytes, window_bytes))
		return -EINVAL;
	return okv_range_fits(op->extent_off, op->bytes, extent_bytes) ? 0 : -EINVAL;
}

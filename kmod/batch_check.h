/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Is an operation of a batch well-formed? Everything that can be said of it without looking at
 * a pool, a window or a client. Pure: compiles into the module and into plain tests.
 */
#ifndef OKV_BATCH_CHECK_H
#define OKV_BATCH_CHECK_H

#include "core/types.h"

#define OKV_PAGE_BYTES	4096u

/** 0, or -EINVAL: unknown opcode or flag, a word set that it does not use, a missing or misaligned one. */
int okv_op_check(const struct omnikv_batch_op *op);

/** Extents that the operation is about: @count of a list, else 1. */
static inline uint32_t okv_op_count(const struct omnikv_batch_op *op)
{
	return op->addr ? op->count : 1;
}

/**
 * okv_bind_check() - does a well-formed BIND fit?
 * @extent_bytes: length of its extent
 * @window_bytes: length of its window
 *
 * Return: 0, or -EINVAL.
 */
int okv_bind_check(const struct omnikv_batch_op *op, uint64_t extent_bytes, uint64_t window_bytes);

/** Is [@off, @off + @bytes) a part of [0, @limit), page by page and not empty? */
bool okv_range_fits(uint64_t off, uint64_t bytes, uint64_t limit);

#endif /* OKV_BATCH_CHECK_H */

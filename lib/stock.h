/* SPDX-License-Identifier: MIT */
/*
 * The private reserve of a daemon's client: PRIVATE extents of its own that nobody uses yet.
 *
 * Sorted by length, since an extent is used whole. While the daemon is there the stock of each length
 * in use is filled up with what the pool has free; while it is away allocations live on it, and what
 * they free comes back to it. The caller locks.
 */
#ifndef OKV_STOCK_H
#define OKV_STOCK_H

#include <omnikv/types.h>

#define OKV_STOCK_LENGTHS	8u
/** Most extents to ask for at once. */
#define OKV_STOCK_STEP		64u

struct okv_stock_shelf {
	uint32_t		nr_granules;	/* 0: unused */
	uint32_t		nr;
	uint32_t		max;
	struct omnikv_extent	*extents;
};

/** @limit_granules: of all shelves together */
struct okv_stock {
	uint64_t		limit_granules;
	uint64_t		nr_granules;
	struct okv_stock_shelf	shelves[OKV_STOCK_LENGTHS];
};

void okv_stock_fini(struct okv_stock *stock);
/** Extents of this length that the stock would like to have, at most OKV_STOCK_STEP; a length is remembered. */
uint32_t okv_stock_want(struct okv_stock *stock, uint32_t nr_granules);
/** Put one in. false: no place for it. @is_urgent: also over the limit. */
bool okv_stock_put(struct okv_stock *stock, const struct omnikv_extent *ext, bool is_urgent);
/** Take @count of a length, all or none. */
bool okv_stock_take(struct okv_stock *stock, uint32_t nr_granules, uint32_t count, struct omnikv_extent *out);
/** Is this one in the stock? */
bool okv_stock_has(const struct okv_stock *stock, const struct omnikv_extent *ext);

#endif /* OKV_STOCK_H */

// SPDX-License-Identifier: MIT
/*
 * The private reserve of a daemon's client. See stock.h.
 *
 * A shelf for each of the first lengths that were asked for; what has none is not kept. Pure, but for
 * the memory of the shelves.
 */
#include "stock.h"

#include <stdlib.h>
#include <string.h>

void okv_stock_fini(struct okv_stock *stock)
{
	uint32_t i;

	for (i = 0; i < OKV_STOCK_LENGTHS; i++)
		free(stock->shelves[i].extents);
	memset(stock->shelves, 0, sizeof(stock->shelves));
	stock->nr_granules = 0;
}

/* The shelf of a length; with @is_new one that is not used yet. */
static struct okv_stock_shelf *shelf_of(const struct okv_stock *stock, uint32_t nr_granules, bool is_new)
{
	uint32_t i;

	for (i = 0; i < OKV_STOCK_LENGTHS; i++) {
		const struct okv_stock_shelf *shelf = &stock->shelves[i];

		if (shelf->nr_granules == nr_granules || (is_new && !shelf->nr_granules))
			return (struct okv_stock_shelf *)(uintptr_t)shelf;
	}
	return NULL;
}

uint32_t okv_stock_want(struct okv_stock *stock, uint32_t nr_granules)
{
	struct okv_stock_shelf *shelf = shelf_of(stock, nr_granules, true);
	uint64_t share = 0, room, want;
	uint32_t i;

	if (!shelf)
		return 0;
	shelf->nr_granules = nr_granules;
	for (i = 0; i < OKV_STOCK_LENGTHS; i++)
		share += stock->shelves[i].nr_granules != 0;
	share = stock->limit_granules / share / nr_granules;
	room = stock->limit_granules > stock->nr_granules ? (stock->limit_granules - stock->nr_granules) / nr_granules : 0;
	want = share > shelf->nr ? share - shelf->nr : 0;
	if (want > room)
		want = room;
	return want < OKV_STOCK_STEP ? (uint32_t)want : OKV_STOCK_STEP;
}

bool okv_stock_put(struct okv_stock *stock, const struct omnikv_extent *ext, bool is_urgent)
{
	struct okv_stock_shelf *shelf = shelf_of(stock, ext->nr_granules, is_urgent);

	if (!shelf || (!is_urgent && stock->nr_granules + ext->nr_granules > stock->limit_granules))
		return false;
	if (shelf->nr == shelf->max) {
		uint32_t max = shelf->max ? 2 * shelf->max : 64;
		struct omnikv_extent *extents = realloc(shelf->extents, max * sizeof(*extents));

		if (!extents)
			return false;
		shelf->extents = extents;
		shelf->max = max;
	}
	shelf->nr_granules = ext->nr_granules;
	shelf->extents[shelf->nr++] = *ext;
	stock->nr_granules += ext->nr_granules;
	return true;
}

bool okv_stock_take(struct okv_stock *stock, uint32_t nr_granules, uint32_t count, struct omnikv_extent *out)
{
	struct okv_stock_shelf *shelf = shelf_of(stock, nr_granules, false);

	if (!nr_granules || !shelf || shelf->nr < count)
		return false;
	shelf->nr -= count;
	memcpy(out, shelf->extents + shelf->nr, count * sizeof(*out));
	stock->nr_granules -= (uint64_t)count * nr_granules;
	return true;
}

bool okv_stock_has(const struct okv_stock *stock, const struct omnikv_extent *ext)
{
	const struct okv_stock_shelf *shelf = shelf_of(stock, ext->nr_granules, false);
	uint32_t i;

	for (i = 0; shelf && i < shelf->nr; i++)
		if (shelf->extents[i].granule == ext->granule && shelf->extents[i].generation == ext->generation)
			return true;
	return false;
}

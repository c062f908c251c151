/* SPDX-License-Identifier: MIT */
/*
 * Have places in one memory bytes in common? For lists of a caller's, which nothing keeps in order.
 *
 * Header only; any thread.
 */
#ifndef OKV_DISJOINT_H
#define OKV_DISJOINT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/** The bytes from @start to before @end, which is not below it. */
struct okv_place {
	uint64_t	start, end;
};

static inline int okv_place_compare(const void *a, const void *b)
{
	uint64_t x = ((const struct okv_place *)a)->start, y = ((const struct okv_place *)b)->start;

	return (x > y) - (x < y);
}

/** @places: [nr], none of them empty; sorted by this. */
static inline bool okv_places_are_disjoint(struct okv_place *places, uint32_t nr)
{
	qsort(places, nr, sizeof(*places), okv_place_compare);
	for (uint32_t i = 1; i < nr; i++)
		if (places[i].start < places[i - 1].end)
			return false;
	return true;
}

#endif /* OKV_DISJOINT_H */

// SPDX-License-Identifier: GPL-2.0-only
/*
 * The map of a window. See winmap.h.
 *
 * Blocks of the tree stay until the window ends: windows are re-used at the same places.
 */
#include "winmap.h"

#define LEAF_NR		(1ULL << OKV_WINMAP_LEAF_SHIFT)
#define MID_NR		(1ULL << OKV_WINMAP_MID_SHIFT)

static struct okv_winmap_entry *find_leaf(const struct okv_winmap *map, uint64_t at)
{
	struct okv_winmap_entry **mid = map->tops[at >> (OKV_WINMAP_LEAF_SHIFT + OKV_WINMAP_MID_SHIFT)];

	return mid ? mid[(at >> OKV_WINMAP_LEAF_SHIFT) & (MID_NR - 1)] : NULL;
}

static struct okv_winmap_entry *find(const struct okv_winmap *map, uint64_t at)
{
	struct okv_winmap_entry *leaf = find_leaf(map, at);

	return leaf ? &leaf[at & (LEAF_NR - 1)] : NULL;
}

/* First page behind @at that lies in another leaf, or in another middle where @at has none. */
static uint64_t next_block(const struct okv_winmap *map, uint64_t at)
{
	uint64_t span = LEAF_NR, next;

	if (!map->tops[at >> (OKV_WINMAP_LEAF_SHIFT + OKV_WINMAP_MID_SHIFT)])
		span = LEAF_NR * MID_NR;
	next = (at | (span - 1)) + 1;
	return next < map->nr_pages ? next : map->nr_pages;
}

void okv_winmap_init(struct okv_winmap *map, uint64_t nr_pages, void **tops)
{
	map->nr_pages = nr_pages;
	map->nr_bound = 0;
	map->tops = tops;
}

void okv_winmap_fini(struct okv_winmap *map, okv_winmap_free_fn free)
{
	uint64_t top, i;

	for (top = 0; top < okv_winmap_nr_tops(map->nr_pages); top++) {
		void **mid = map->tops[top];

		if (!mid)
			continue;
		for (i = 0; i < MID_NR; i++)
			if (mid[i])
				free(mid[i]);
		free(mid);
		map->tops[top] = NULL;
	}
	map->nr_bound = 0;
}

int okv_winmap_prepare(struct okv_winmap *map, uint64_t first, uint64_t nr, okv_winmap_alloc_fn alloc)
{
	uint64_t at, end = first + nr;

	for (at = first; at < end; at = (at | (LEAF_NR - 1)) + 1) {
		void **top = &map->tops[at >> (OKV_WINMAP_LEAF_SHIFT + OKV_WINMAP_MID_SHIFT)];
		void **mid;

		if (!*top) {
			*top = alloc();
			if (!*top)
				return -ENOMEM;
		}
		mid = *top;
		mid += (at >> OKV_WINMAP_LEAF_SHIFT) & (MID_NR - 1);
		if (!*mid) {
			*mid = alloc();
			if (!*mid)
				return -ENOMEM;
		}
	}
	return 0;
}

void okv_winmap_set(struct okv_winmap *map, uint64_t first, uint64_t nr, uintptr_t owner, uint64_t page)
{
	uint64_t i;

	for (i = 0; i < nr; i++) {
		struct okv_winmap_entry *entry = find(map, first + i);

		entry->owner = owner;
		entry->page = page + i;
	}
	map->nr_bound += nr;
}

uint64_t okv_winmap_clear(struct okv_winmap *map, uint64_t first, uint64_t nr, okv_winmap_wants_fn wants,
			  okv_winmap_drop_fn drop, void *opaque)
{
	uint64_t at = first, end = first + nr, cleared = 0;

	while (at < end) {
		struct okv_winmap_entry *entry = find(map, at);
		uintptr_t owner;
		uint64_t from = at;

		if (!entry) {
			at = next_block(map, at);
			continue;
		}
		owner = entry->owner;
		if (!owner || (wants && !wants(opaque, owner))) {
			at++;
			continue;
		}
		while (at < end) {
			entry = find(map, at);
			if (!entry || entry->owner != owner)
				break;
			entry->owner = 0;
			entry->page = 0;
			at++;
		}
		map->nr_bound -= at - from;
		cleared += at - from;
		drop(opaque, owner, from, at - from);
	}
	return cleared;
}

uint64_t okv_winmap_next(const struct okv_winmap *map, uint64_t from)
{
	uint64_t at = from;

	while (at < map->nr_pages) {
		const struct okv_winmap_entry *entry = find(map, at);

		if (!entry)
			at = next_block(map, at);
		else if (entry->owner)
			return at;
		else
			at++;
	}
	return map->nr_pages;
}

bool okv_winmap_any(const struct okv_winmap *map, uint64_t first, uint64_t nr, okv_winmap_wants_fn wants,
		    void *opaque)
{
	uint64_t at = first, end = first + nr;

	while (at < end) {
		const struct okv_winmap_entry *entry = find(map, at);

		if (!entry) {
			at = next_block(map, at);
			continue;
		}
		if (entry->owner && (!wants || wants(opaque, entry->owner)))
			return true;
		at++;
	}
	return false;
}

uint64_t okv_winmap_run(const struct okv_winmap *map, uint64_t first, uint64_t max, uint64_t *page)
{
	const struct okv_winmap_entry *entry = NULL;
	uint64_t nr = 0, start = 0;

	if (max > map->nr_pages - first)
		max = map->nr_pages - first;
	while (nr < max) {
		entry = find(map, first + nr);
		if (!entry || !entry->owner || (nr && entry->page != start + nr))
			break;
		if (!nr)
			start = entry->page;
		nr++;
	}
	if (nr)
		*page = start;
	return nr;
}

const char *okv_winmap_check(const struct okv_winmap *map)
{
	uint64_t at, nr = 0;

	for (at = 0; at < map->nr_pages;) {
		const struct okv_winmap_entry *entry = find(map, at);

		if (!entry) {
			at = next_block(map, at);
			continue;
		}
		if (!entry->owner && entry->page)
			return "an entry without owner is all zero";
		nr += !!entry->owner;
		at++;
	}
	return nr == map->nr_bound ? NULL : "nr_bound counts the entries with an owner";
}

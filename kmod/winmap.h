/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The map of a window: what is bound at each of its pages.
 *
 * A tree of three levels, filled where something is bound: 2^17 tops of 512 middles of 256
 * entries cover 2^46 bytes. An entry is a page of the pool and its owner, an opaque pointer
 * that the caller counts pages on. Pure: memory comes from the caller's function, locking is
 * the caller's. Compiles into the module and into plain tests.
 *
 * Invariant (okv_winmap_check()): an entry without owner is all zero, nr_bound counts the others.
 */
#ifndef OKV_WINMAP_H
#define OKV_WINMAP_H

#include "core/types.h"

#define OKV_WINMAP_LEAF_SHIFT	8	/* entries of a leaf: 1 MiB of window */
#define OKV_WINMAP_MID_SHIFT	9	/* leaves of a middle: 512 MiB of window */
#define OKV_WINMAP_PAGES_MAX	(1ULL << 34)

/** struct okv_winmap_entry - one 4-KiB page of a window; all zero where nothing is bound */
struct okv_winmap_entry {
	uint64_t	page;		/* of the pool */
	uintptr_t	owner;
};

/** Zeroed 4-KiB blocks for the tree; NULL when there is no memory. */
typedef void *(*okv_winmap_alloc_fn)(void);
typedef void (*okv_winmap_free_fn)(void *block);
/** Shall a page of @owner go? */
typedef bool (*okv_winmap_wants_fn)(void *opaque, uintptr_t owner);
/** @nr pages of @owner, from page @first of the window on, are bound no more. */
typedef void (*okv_winmap_drop_fn)(void *opaque, uintptr_t owner, uint64_t first, uint64_t nr);

/**
 * struct okv_winmap - what is bound where
 * @tops: [okv_winmap_nr_tops(nr_pages)], the caller's, zeroed
 */
struct okv_winmap {
	uint64_t	nr_pages;
	uint64_t	nr_bound;
	void		**tops;
};

static inline uint64_t okv_winmap_nr_tops(uint64_t nr_pages)
{
	uint64_t shift = OKV_WINMAP_LEAF_SHIFT + OKV_WINMAP_MID_SHIFT;

	return (nr_pages + (1ULL << shift) - 1) >> shift;
}

void okv_winmap_init(struct okv_winmap *map, uint64_t nr_pages, void **tops);
/** Give back all blocks but @tops. */
void okv_winmap_fini(struct okv_winmap *map, okv_winmap_free_fn free);
/** Make room for binds in a range, so that okv_winmap_set() cannot fail there. 0 or -ENOMEM. */
int okv_winmap_prepare(struct okv_winmap *map, uint64_t first, uint64_t nr, okv_winmap_alloc_fn alloc);
/** Bind @nr pages; the range is prepared and nothing is bound in it. */
void okv_winmap_set(struct okv_winmap *map, uint64_t first, uint64_t nr, uintptr_t owner, uint64_t page);
/**
 * okv_winmap_clear() - unbind a range
 * @wants: pages for which it is false stay; NULL is true
 * @drop:  called once for each run of one owner
 *
 * Return: pages that were bound.
 */
uint64_t okv_winmap_clear(struct okv_winmap *map, uint64_t first, uint64_t nr, okv_winmap_wants_fn wants,
			  okv_winmap_drop_fn drop, void *opaque);
/** Is anything bound in a range for which @wants is true? NULL is true. */
bool okv_winmap_any(const struct okv_winmap *map, uint64_t first, uint64_t nr, okv_winmap_wants_fn wants,
		    void *opaque);
/**
 * okv_winmap_run() - how many pages from @first on are neighbours in the pool too
 * @max:  look no further
 * @page: pool page of the first one; written when the result is not 0
 */
uint64_t okv_winmap_run(const struct okv_winmap *map, uint64_t first, uint64_t max, uint64_t *page);
/** First bound page at or behind @from; nr_pages where there is none. */
uint64_t okv_winmap_next(const struct okv_winmap *map, uint64_t from);
/** Walk all invariants; NULL, or the broken one in words. */
const char *okv_winmap_check(const struct okv_winmap *map);

#endif /* OKV_WINMAP_H */

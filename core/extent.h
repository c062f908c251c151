/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * The extent map of a pool: which granules are free, which belong to which extent.
 *
 * It owns the arithmetic: allocation, freeing, states, generations, counts. The arrays are the
 * caller's, and so are locking (all calls on one map are serialised by the caller), the bytes
 * of the granules, and who holds which reference. No call allocates or sleeps. Alloc, free and
 * coalescing are O(1) an extent. Compiled into the module and into the library.
 *
 * Invariants (okv_extent_map_check() walks them):
 *	nr_granules = sum over states of state_granules
 *	a granule's bit in @used is 0 exactly when it lies in a free run
 *	no two free runs of one segment touch
 *	first.nr = last.nr = length for each free run, and it hangs in the list of its length's class
 *	generation & 3 is LIVE at the first granule of a live extent, GIVEN_UP at that of a
 *	quarantined or poisoned one, and NONE everywhere else
 */
#ifndef OKV_CORE_EXTENT_H
#define OKV_CORE_EXTENT_H

#include "state.h"

/*
 * A granule's generation counts lives of extents that begin there, in steps of 4. The low two
 * bits say what the granule is now, so that a record tells by itself whether an extent begins
 * there, and so that the last name of a quarantined extent (its generation less 1) still finds it.
 */
#define OKV_GENERATION_PHASE	3u
#define OKV_GENERATION_NONE	0u
#define OKV_GENERATION_LIVE	1u
#define OKV_GENERATION_GIVEN_UP	2u
#define OKV_GENERATION_STEP	4u
/** An extent of this life is poisoned when given up: its granule has no later name. */
#define OKV_GENERATION_LAST	0xfffffffcu

#define OKV_EXTENT_REFS_MAX	0x00ffffffu
#define OKV_EXTENT_SEGMENTS_MAX	64u
#define OKV_EXTENT_NONE		0xffffffffu
/** Most granules of a map; 16 TiB of 4-KiB granules, less what keeps walks by 64 from wrapping. */
#define OKV_EXTENT_GRANULES_MAX	0xffffff00u

/**
 * struct okv_extent_rec - one granule
 * @generation: see above; survives freeing
 * @nr:         first granule of an extent: its length; first and last of a free run: that one's
 * @a:          first of an extent: owner; first of a free run: next run of the class
 * @b:          first of an extent: state and references; first of a free run: previous run
 *
 * Elsewhere @nr, @a and @b mean nothing.
 */
struct okv_extent_rec {
	uint32_t	generation;
	uint32_t	nr;
	uint32_t	a;
	uint32_t	b;
};

#define OKV_RUN_SL_SHIFT	3
#define OKV_RUN_SL_NR		(1 << OKV_RUN_SL_SHIFT)
#define OKV_RUN_FL_NR		(32 - OKV_RUN_SL_SHIFT + 1)

/**
 * struct okv_extent_map - all extents of a pool
 * @recs:           [capacity], the caller's
 * @used:           [capacity / 64 rounded up], the caller's
 * @segment_first:  first granules of the segments; no run or extent crosses one
 * @nr_placed:      extents ever allocated
 * @nr_runs_begun:  of these, those that were not placed right behind the one before
 *                  (mean run length = nr_placed / nr_runs_begun)
 * @fl_bits, @sl_bits, @heads: free runs by class of their length
 */
struct okv_extent_map {
	struct okv_extent_rec	*recs;
	uint64_t		*used;
	uint32_t		capacity;
	uint32_t		nr_granules;
	uint32_t		nr_segments;
	uint32_t		segment_first[OKV_EXTENT_SEGMENTS_MAX];

	uint64_t		state_granules[OMNIKV_EXTENT_NR_STATES];
	uint64_t		nr_extents[OMNIKV_EXTENT_NR_STATES];	/* [FREE] counts runs */
	uint64_t		nr_placed;
	uint64_t		nr_runs_begun;

	uint32_t		fl_bits;
	uint8_t			sl_bits[OKV_RUN_FL_NR];
	uint32_t		heads[OKV_RUN_FL_NR][OKV_RUN_SL_NR];
};

/** One extent as the map sees it. */
struct okv_extent_view {
	struct omnikv_extent	name;
	uint32_t		state;
	uint32_t		owner;
	uint32_t		nr_refs;
};

/** Words that @used needs for @capacity granules. */
static inline uint64_t okv_extent_used_words(uint64_t capacity)
{
	return (capacity + 63) / 64;
}

/**
 * okv_extent_map_init() - an empty map over the caller's arrays
 * @recs: [capacity]; generations that it holds stay valid, all zero for a new pool
 * @used: [okv_extent_used_words(capacity)], all zero
 *
 * Return: 0, or -EINVAL (capacity 0 or over OKV_EXTENT_GRANULES_MAX).
 */
int okv_extent_map_init(struct okv_extent_map *map, struct okv_extent_rec *recs, uint64_t *used,
			uint64_t capacity);
/** Append a segment of @nr free granules. -EINVAL: @nr is 0 or too many; -ENOSPC: no segment left. */
int okv_extent_map_add(struct okv_extent_map *map, uint64_t nr);
/**
 * okv_extent_map_recover() - append a segment whose records an earlier owner left behind
 *
 * SEALED, META and POISONED extents are there again, without references; what was PRIVATE or
 * QUARANTINED, and whatever the records leave in doubt, is free under a raised generation.
 *
 * Return: as okv_extent_map_add().
 */
int okv_extent_map_recover(struct okv_extent_map *map, uint64_t nr);
/**
 * okv_extent_map_recover_shared() - the same where users of the pool outlived its owner
 * @is_alive: does this owner of PRIVATE extents live?
 *
 * PRIVATE extents of those who live are there again, and so is what was QUARANTINED, with one reference
 * that is the caller's to put.
 */
int okv_extent_map_recover_shared(struct okv_extent_map *map, uint64_t nr,
				  bool (*is_alive)(void *opaque, uint32_t owner), void *opaque);
/** Walk all invariants; NULL, or the broken one in words. O(capacity). */
const char *okv_extent_map_check(const struct okv_extent_map *map);
/** Length of the longest free run, exact. */
uint32_t okv_extent_map_largest(const struct okv_extent_map *map);
/**
 * okv_extent_map_next() - the first extent that begins at or behind *@cursor
 * @cursor: 0 at first; moved behind the extent
 *
 * Extents may come and go between calls; each one that stays is seen once.
 */
bool okv_extent_map_next(const struct okv_extent_map *map, uint32_t *cursor, struct okv_extent_view *view);

/**
 * okv_extent_alloc() - allocate @count PRIVATE extents of @nr granules each, all or none
 * @after: placed behind this one where that is free (a stale name is no error); may be NULL
 * @out:   [count] names; scratch when the call fails
 *
 * Each is placed behind the last where that is free, else at the start of a run of the
 * longest class, so that a sequence can go on growing there.
 *
 * Return: 0, -ENOSPC, or -EINVAL (@nr or @count 0).
 */
int okv_extent_alloc(struct okv_extent_map *map, uint32_t nr, uint32_t count,
		     const struct omnikv_extent *after, uint32_t owner, struct omnikv_extent *out);

/**
 * okv_extent_check() - may this client do @op to the extent of this name?
 *
 * Return: 0, or what okv_state_next() says, or -ESTALE (no extent of this name), -EINVAL
 * (its length differs), -EDQUOT (its references are used up).
 */
int okv_extent_check(const struct okv_extent_map *map, const struct omnikv_extent *ext, enum okv_op op,
		     uint32_t client, bool is_manager);
/**
 * okv_extent_check_list() - okv_extent_check() of each, and each at most once (-EINVAL)
 *
 * On success all are marked; okv_extent_unmark_list() must follow before anything else but the
 * functions below that take a granule.
 */
int okv_extent_check_list(struct okv_extent_map *map, const struct omnikv_extent *exts, uint32_t count,
			  enum okv_op op, uint32_t client, bool is_manager);
void okv_extent_unmark_list(struct okv_extent_map *map, const struct omnikv_extent *exts, uint32_t count);
bool okv_extent_is_marked(const struct okv_extent_map *map, uint64_t granule);

/** FREE of a list, all or nothing; errors as okv_extent_check_list(). */
int okv_extent_free_list(struct okv_extent_map *map, const struct omnikv_extent *exts, uint32_t count,
			 uint32_t client, bool is_manager);

/*
 * The functions below take the first granule of an extent for which the check has just
 * succeeded (or of which the caller holds a reference), and cannot fail.
 */

/** PRIVATE -> SEALED, and PRIVATE -> META. */
void okv_extent_seal(struct okv_extent_map *map, uint64_t granule);
void okv_extent_publish_meta(struct okv_extent_map *map, uint64_t granule);
/** The owner's end: the PRIVATE extent is given up. */
void okv_extent_end(struct okv_extent_map *map, uint64_t granule);
/** The bytes are bad: nobody gets them again. */
void okv_extent_poison(struct okv_extent_map *map, uint64_t granule);
/** Count @n references more or less. The last put of a quarantined extent frees it. */
void okv_extent_get(struct okv_extent_map *map, uint64_t granule, uint32_t n);
void okv_extent_put(struct okv_extent_map *map, uint64_t granule, uint32_t n);
/** What the map knows of the extent that begins at @granule. */
void okv_extent_view(const struct okv_extent_map *map, uint64_t granule, struct okv_extent_view *view);

#endif /* OKV_CORE_EXTENT_H */

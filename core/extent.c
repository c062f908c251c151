// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The extent map. See extent.h for what it owns and for its invariants.
 *
 * Free runs hang in doubly linked lists by class of their length: two levels, the power of two
 * and eight steps within it, with a bit for each list that is not empty. A run's first and last
 * granule carry its length, so that a freed neighbour finds and joins it in O(1).
 *
 * Order of stores: an extent exists from the store of its LIVE generation, which comes last when
 * it is allocated, until the store of another phase, which comes first when it is given up. So
 * the records of a pool on a file tell the truth whenever its process is killed.
 */
#include "extent.h"

#define REC_REFS	OKV_EXTENT_REFS_MAX
#define REC_STATE_SHIFT	24
#define REC_STATE	7u
#define REC_MARK	0x80000000u

static unsigned int rec_state(const struct okv_extent_rec *rec)
{
	return (rec->b >> REC_STATE_SHIFT) & REC_STATE;
}

static uint32_t rec_refs(const struct okv_extent_rec *rec)
{
	return rec->b & REC_REFS;
}

static uint32_t rec_phase(const struct okv_extent_rec *rec)
{
	return rec->generation & OKV_GENERATION_PHASE;
}

/* ---- bits ------------------------------------------------------------------------------- */

static bool bit_is_used(const struct okv_extent_map *map, uint32_t granule)
{
	return (map->used[granule / 64] >> (granule % 64)) & 1;
}

static void bits_change(struct okv_extent_map *map, uint32_t first, uint32_t nr, bool is_used)
{
	while (nr) {
		uint32_t at = first % 64;
		uint32_t n = nr < 64 - at ? nr : 64 - at;
		uint64_t mask = (n == 64 ? ~0ull : (1ull << n) - 1) << at;

		if (is_used)
			map->used[first / 64] |= mask;
		else
			map->used[first / 64] &= ~mask;
		first += n;
		nr -= n;
	}
}

/* First granule at or behind @from whose bit is @is_used, or nr_granules. */
static uint32_t bits_find(const struct okv_extent_map *map, uint32_t from, bool is_used)
{
	while (from < map->nr_granules) {
		uint64_t word = map->used[from / 64];
		uint32_t at = from % 64;

		if (!is_used)
			word = ~word;
		word >>= at;
		if (word) {
			from += (uint32_t)__builtin_ctzll(word);
			break;
		}
		from += 64 - at;
	}
	return from < map->nr_granules ? from : map->nr_granules;
}

/* ---- free runs -------------------------------------------------------------------------- */

static void run_class(uint32_t nr, unsigned int *fl, unsigned int *sl)
{
	unsigned int top;

	if (nr < OKV_RUN_SL_NR) {
		*fl = 0;
		*sl = nr;
		return;
	}
	top = 31 - (unsigned int)__builtin_clz(nr);
	*fl = top - OKV_RUN_SL_SHIFT + 1;
	*sl = (nr >> (top - OKV_RUN_SL_SHIFT)) & (OKV_RUN_SL_NR - 1);
}

/*
 * Records of a named pool lie in a file that others may write: a free run is believed where it can
 * be one, so that overwritten records end in -ENOSPC and not in a walk outside of the map.
 */
static bool run_is_sane(const struct okv_extent_map *map, uint32_t first)
{
	uint32_t nr;

	if (first >= map->nr_granules || bit_is_used(map, first))
		return false;
	nr = map->recs[first].nr;
	return nr && nr <= map->nr_granules - first && map->recs[first + nr - 1].nr == nr;
}

static void run_link(struct okv_extent_map *map, uint32_t first, uint32_t nr)
{
	struct okv_extent_rec *rec = &map->recs[first];
	unsigned int fl, sl;
	uint32_t next;

	run_class(nr, &fl, &sl);
	next = map->heads[fl][sl];
	rec->nr = nr;
	rec->a = next;
	rec->b = OKV_EXTENT_NONE;
	map->recs[first + nr - 1].nr = nr;
	if (next < map->nr_granules)
		map->recs[next].b = first;
	map->heads[fl][sl] = first;
	map->sl_bits[fl] |= 1u << sl;
	map->fl_bits |= 1u << fl;
	map->nr_extents[OMNIKV_EXTENT_FREE]++;
}

static void run_unlink(struct okv_extent_map *map, uint32_t first)
{
	struct okv_extent_rec *rec = &map->recs[first];
	unsigned int fl, sl;

	run_class(rec->nr, &fl, &sl);
	if (rec->a < map->nr_granules)
		map->recs[rec->a].b = rec->b;
	if (rec->b < map->nr_granules) {
		map->recs[rec->b].a = rec->a;
	} else {
		map->heads[fl][sl] = rec->a;
		if (rec->a == OKV_EXTENT_NONE) {
			map->sl_bits[fl] &= ~(1u << sl);
			if (!map->sl_bits[fl])
				map->fl_bits &= ~(1u << fl);
		}
	}
	map->nr_extents[OMNIKV_EXTENT_FREE]--;
}

/* Does a segment begin at @granule? Then the granule before it belongs to another one. */
static bool is_border(const struct okv_extent_map *map, uint32_t granule)
{
	uint32_t i;

	for (i = 0; i < map->nr_segments; i++)
		if (map->segment_first[i] == granule)
			return true;
	return false;
}

/* Granules whose bits are set become a free run, joined with its neighbours. */
static void run_free(struct okv_extent_map *map, uint32_t first, uint32_t nr)
{
	uint32_t end = first + nr;

	bits_change(map, first, nr, false);
	if (run_is_sane(map, end) && !is_border(map, end)) {
		uint32_t right = map->recs[end].nr;

		run_unlink(map, end);
		nr += right;
	}
	if (first && !bit_is_used(map, first - 1) && !is_border(map, first)) {
		uint32_t left = map->recs[first - 1].nr;

		if (left <= first && run_is_sane(map, first - left) && map->recs[first - left].nr == left) {
			run_unlink(map, first - left);
			first -= left;
			nr += left;
		}
	}
	run_link(map, first, nr);
}

/*
 * A run of the longest class that holds @nr granules. Only in that class can a longer run hide
 * behind a shorter one, so only there the list is searched.
 */
static uint32_t run_find(const struct okv_extent_map *map, uint32_t nr)
{
	unsigned int fl, sl;
	uint32_t run, steps = 0;

	if (!map->fl_bits)
		return OKV_EXTENT_NONE;
	fl = 31 - (unsigned int)__builtin_clz(map->fl_bits);
	sl = 31 - (unsigned int)__builtin_clz(map->sl_bits[fl]);
	for (run = map->heads[fl][sl]; run_is_sane(map, run) && steps++ < map->nr_granules; run = map->recs[run].a)
		if (map->recs[run].nr >= nr)
			return run;
	return OKV_EXTENT_NONE;
}

uint32_t okv_extent_map_largest(const struct okv_extent_map *map)
{
	unsigned int fl, sl;
	uint32_t run, steps = 0, largest = 0;

	if (!map->fl_bits)
		return 0;
	fl = 31 - (unsigned int)__builtin_clz(map->fl_bits);
	sl = 31 - (unsigned int)__builtin_clz(map->sl_bits[fl]);
	for (run = map->heads[fl][sl]; run_is_sane(map, run) && steps++ < map->nr_granules; run = map->recs[run].a)
		if (map->recs[run].nr > largest)
			largest = map->recs[run].nr;
	return largest;
}

/* ---- the map ---------------------------------------------------------------------------- */

int okv_extent_map_init(struct okv_extent_map *map, struct okv_extent_rec *recs, uint64_t *used,
			uint64_t capacity)
{
	unsigned int fl, sl;

	if (!capacity || capacity > OKV_EXTENT_GRANULES_MAX)
		return -EINVAL;

	memset(map, 0, sizeof(*map));
	map->recs = recs;
	map->used = used;
	map->capacity = (uint32_t)capacity;
	for (fl = 0; fl < OKV_RUN_FL_NR; fl++)
		for (sl = 0; sl < OKV_RUN_SL_NR; sl++)
			map->heads[fl][sl] = OKV_EXTENT_NONE;
	return 0;
}

static int segment_check(const struct okv_extent_map *map, uint64_t nr)
{
	if (!nr || nr > map->capacity - map->nr_granules)
		return -EINVAL;
	return map->nr_segments < OKV_EXTENT_SEGMENTS_MAX ? 0 : -ENOSPC;
}

int okv_extent_map_add(struct okv_extent_map *map, uint64_t nr)
{
	uint32_t first = map->nr_granules;
	int ret;

	ret = segment_check(map, nr);
	if (ret)
		return ret;

	map->segment_first[map->nr_segments++] = first;
	map->nr_granules += (uint32_t)nr;
	map->state_granules[OMNIKV_EXTENT_FREE] += nr;
	run_link(map, first, (uint32_t)nr);
	return 0;
}

/* Nobody may name the extent that began at this granule any more. */
static void rec_forget(struct okv_extent_rec *rec)
{
	if (rec_phase(rec) != OKV_GENERATION_NONE)
		rec->generation = (rec->generation & ~OKV_GENERATION_PHASE) + OKV_GENERATION_STEP;
}

/* Who of the users lives, where a pool has any beside its owner. */
struct survivors {
	bool	(*is_alive)(void *opaque, uint32_t owner);
	void	*opaque;
};

/* Its generation says first that it is given up, and its state may not any more: others may still use it. */
static unsigned int rec_state_left(const struct okv_extent_rec *rec, const struct survivors *survivors)
{
	unsigned int state = rec_state(rec);

	if (survivors && rec_phase(rec) == OKV_GENERATION_GIVEN_UP && rec->generation < OKV_GENERATION_LAST &&
	    (state == OMNIKV_EXTENT_PRIVATE || state == OMNIKV_EXTENT_SEALED || state == OMNIKV_EXTENT_META))
		return OMNIKV_EXTENT_QUARANTINED;
	return state;
}

/* Is the record at @granule that of an extent which outlives its process, and of nothing else? */
static bool rec_survives(const struct okv_extent_map *map, uint32_t granule, uint32_t end,
			 const struct survivors *survivors)
{
	const struct okv_extent_rec *rec = &map->recs[granule];
	uint32_t i, phase = rec_phase(rec), wanted = OKV_GENERATION_LIVE;

	switch (rec_state_left(rec, survivors)) {
	case OMNIKV_EXTENT_SEALED:
	case OMNIKV_EXTENT_META:
		break;
	case OMNIKV_EXTENT_POISONED:
		wanted = phase;
		break;
	case OMNIKV_EXTENT_PRIVATE:
		if (!survivors || !rec->a || !survivors->is_alive(survivors->opaque, rec->a))
			return false;
		break;
	case OMNIKV_EXTENT_QUARANTINED:
		if (!survivors || rec->generation >= OKV_GENERATION_LAST)
			return false;
		wanted = OKV_GENERATION_GIVEN_UP;
		break;
	default:
		return false;
	}
	if (phase == OKV_GENERATION_NONE || phase != wanted)
		return false;
	if (!rec->nr || rec->nr > end - granule)
		return false;
	for (i = 1; i < rec->nr; i++)
		if (rec_phase(&map->recs[granule + i]) != OKV_GENERATION_NONE)
			return false;
	return true;
}

static int map_recover(struct okv_extent_map *map, uint64_t nr, const struct survivors *survivors)
{
	uint32_t first = map->nr_granules, granule = first, end, i;
	int ret;

	ret = segment_check(map, nr);
	if (ret)
		return ret;

	end = first + (uint32_t)nr;
	map->segment_first[map->nr_segments++] = first;
	map->nr_granules = end;
	while (granule < end) {
		struct okv_extent_rec *rec = &map->recs[granule];
		unsigned int state = rec_state_left(rec, survivors);

		if (rec_phase(rec) == OKV_GENERATION_NONE) {
			granule++;
			continue;
		}
		if (!rec_survives(map, granule, end, survivors)) {
			uint32_t claimed = rec->nr;

			/*
			 * What it claims to cover is in doubt as well. A PRIVATE or QUARANTINED
			 * one covers no other, so this touches only what is broken.
			 */
			if (claimed > end - granule)
				claimed = end - granule;
			/* The last generation has no next: such a granule is never used again. */
			if (rec->generation >= OKV_GENERATION_LAST) {
				rec->nr = 1;
				rec->b = OMNIKV_EXTENT_POISONED << REC_STATE_SHIFT;
				rec->generation = OKV_GENERATION_LAST | OKV_GENERATION_GIVEN_UP;
				bits_change(map, granule, 1, true);
				map->state_granules[OMNIKV_EXTENT_POISONED]++;
				map->nr_extents[OMNIKV_EXTENT_POISONED]++;
			} else {
				rec_forget(rec);
			}
			for (i = 1; i < claimed; i++)
				if (map->recs[granule + i].generation < OKV_GENERATION_LAST)
					rec_forget(&map->recs[granule + i]);
			granule++;
			continue;
		}
		if (state == OMNIKV_EXTENT_POISONED)
			rec->generation = (rec->generation & ~OKV_GENERATION_PHASE) | OKV_GENERATION_GIVEN_UP;
		if (state != OMNIKV_EXTENT_PRIVATE)
			rec->a = 0;
		rec->b = state << REC_STATE_SHIFT | (state == OMNIKV_EXTENT_QUARANTINED);
		bits_change(map, granule, rec->nr, true);
		map->state_granules[state] += rec->nr;
		map->nr_extents[state]++;
		granule += rec->nr;
	}

	for (granule = bits_find(map, first, false); granule < end;) {
		uint32_t stop = bits_find(map, granule, true);

		run_link(map, granule, stop - granule);
		map->state_granules[OMNIKV_EXTENT_FREE] += stop - granule;
		granule = bits_find(map, stop, false);
	}
	return 0;
}

int okv_extent_map_recover(struct okv_extent_map *map, uint64_t nr)
{
	return map_recover(map, nr, NULL);
}

int okv_extent_map_recover_shared(struct okv_extent_map *map, uint64_t nr,
				  bool (*is_alive)(void *opaque, uint32_t owner), void *opaque)
{
	const struct survivors survivors = { is_alive, opaque };

	return map_recover(map, nr, &survivors);
}

bool okv_extent_map_next(const struct okv_extent_map *map, uint32_t *cursor, struct okv_extent_view *view)
{
	uint32_t granule = *cursor;

	for (;;) {
		granule = bits_find(map, granule, true);
		if (granule >= map->nr_granules) {
			*cursor = granule;
			return false;
		}
		if (rec_phase(&map->recs[granule]) != OKV_GENERATION_NONE)
			break;
		/* The cursor stood inside an extent that is younger than it. */
		granule++;
	}
	okv_extent_view(map, granule, view);
	*cursor = granule + view->name.nr_granules;
	return true;
}

/* ---- states ----------------------------------------------------------------------------- */

/* The only place where an extent's state changes. Its granules are counted where they are now. */
static void set_state(struct okv_extent_map *map, struct okv_extent_rec *rec, unsigned int next)
{
	unsigned int state = rec_state(rec);

	map->state_granules[state] -= rec->nr;
	map->nr_extents[state]--;
	map->state_granules[next] += rec->nr;
	if (next != OMNIKV_EXTENT_FREE)
		map->nr_extents[next]++;
	OKV_ORDERED_STORE(&rec->b, (rec->b & ~(REC_STATE << REC_STATE_SHIFT)) | next << REC_STATE_SHIFT);
}

/*
 * The extent has no name from here on. Without references its granules must then be freed:
 * true. A granule without a next generation stays out of use.
 */
static bool give_up(struct okv_extent_map *map, struct okv_extent_rec *rec)
{
	uint32_t life = rec->generation & ~OKV_GENERATION_PHASE;

	if (life == OKV_GENERATION_LAST) {
		OKV_ORDERED_STORE(&rec->generation, life | OKV_GENERATION_GIVEN_UP);
		set_state(map, rec, OMNIKV_EXTENT_POISONED);
		return false;
	}
	if (rec_refs(rec)) {
		OKV_ORDERED_STORE(&rec->generation, life | OKV_GENERATION_GIVEN_UP);
		set_state(map, rec, OMNIKV_EXTENT_QUARANTINED);
		return false;
	}
	OKV_ORDERED_STORE(&rec->generation, life + OKV_GENERATION_STEP);
	set_state(map, rec, OMNIKV_EXTENT_FREE);
	return true;
}

static int find(const struct okv_extent_map *map, const struct omnikv_extent *ext, struct okv_extent_rec **out)
{
	struct okv_extent_rec *rec;

	if (ext->granule >= map->nr_granules)
		return -ESTALE;
	rec = &map->recs[ext->granule];
	if ((ext->generation & OKV_GENERATION_PHASE) != OKV_GENERATION_LIVE)
		return -ESTALE;
	/* The next one is GIVEN_UP: an extent that waits for its last reference. */
	if (rec->generation != ext->generation && rec->generation != ext->generation + 1)
		return -ESTALE;
	if (rec->nr != ext->nr_granules)
		return -EINVAL;
	*out = rec;
	return 0;
}

static int check(const struct okv_extent_map *map, const struct omnikv_extent *ext, enum okv_op op,
		 uint32_t client, bool is_manager, struct okv_extent_rec **out)
{
	enum okv_actor actor = is_manager ? OKV_ACTOR_MANAGER : OKV_ACTOR_OTHER;
	struct okv_extent_rec *rec;
	int ret;

	ret = find(map, ext, &rec);
	if (ret)
		return ret;
	if (rec->a == client && rec_state(rec) == OMNIKV_EXTENT_PRIVATE)
		actor = OKV_ACTOR_OWNER;
	ret = okv_state_next(rec_state(rec), op, actor, rec_refs(rec));
	if (ret < 0)
		return ret;
	if ((op == OKV_OP_LEASE || op == OKV_OP_IO_GET || op == OKV_OP_BIND_RO || op == OKV_OP_BIND_RW) &&
	    rec_refs(rec) == OKV_EXTENT_REFS_MAX)
		return -EDQUOT;
	*out = rec;
	return 0;
}

int okv_extent_check(const struct okv_extent_map *map, const struct omnikv_extent *ext, enum okv_op op,
		     uint32_t client, bool is_manager)
{
	struct okv_extent_rec *rec;

	return check(map, ext, op, client, is_manager, &rec);
}

#define LOOK_AHEAD	8

static void look_ahead(const struct okv_extent_map *map, const struct omnikv_extent *exts, uint32_t i,
		       uint32_t count)
{
	if (i + LOOK_AHEAD < count && exts[i + LOOK_AHEAD].granule < map->nr_granules)
		OKV_PREFETCH_W(&map->recs[exts[i + LOOK_AHEAD].granule]);
}

int okv_extent_check_list(struct okv_extent_map *map, const struct omnikv_extent *exts, uint32_t count,
			  enum okv_op op, uint32_t client, bool is_manager)
{
	struct okv_extent_rec *rec;
	uint32_t i;
	int ret;

	for (i = 0; i < count; i++) {
		look_ahead(map, exts, i, count);
		ret = check(map, &exts[i], op, client, is_manager, &rec);
		if (!ret && (rec->b & REC_MARK))
			ret = -EINVAL;
		if (ret) {
			okv_extent_unmark_list(map, exts, i);
			return ret;
		}
		rec->b |= REC_MARK;
	}
	return 0;
}

void okv_extent_unmark_list(struct okv_extent_map *map, const struct omnikv_extent *exts, uint32_t count)
{
	uint32_t i;

	for (i = 0; i < count; i++)
		map->recs[exts[i].granule].b &= ~REC_MARK;
}

bool okv_extent_is_marked(const struct okv_extent_map *map, uint64_t granule)
{
	return map->recs[granule].b & REC_MARK;
}

void okv_extent_seal(struct okv_extent_map *map, uint64_t granule)
{
	set_state(map, &map->recs[granule], OMNIKV_EXTENT_SEALED);
}

void okv_extent_publish_meta(struct okv_extent_map *map, uint64_t granule)
{
	set_state(map, &map->recs[granule], OMNIKV_EXTENT_META);
}

void okv_extent_end(struct okv_extent_map *map, uint64_t granule)
{
	struct okv_extent_rec *rec = &map->recs[granule];

	if (give_up(map, rec))
		run_free(map, (uint32_t)granule, rec->nr);
}

void okv_extent_poison(struct okv_extent_map *map, uint64_t granule)
{
	struct okv_extent_rec *rec = &map->recs[granule];

	set_state(map, rec, OMNIKV_EXTENT_POISONED);
	OKV_ORDERED_STORE(&rec->generation,
			  (rec->generation & ~OKV_GENERATION_PHASE) | OKV_GENERATION_GIVEN_UP);
}

void okv_extent_get(struct okv_extent_map *map, uint64_t granule, uint32_t n)
{
	map->recs[granule].b += n;
}

void okv_extent_put(struct okv_extent_map *map, uint64_t granule, uint32_t n)
{
	struct okv_extent_rec *rec = &map->recs[granule];

	rec->b -= n;
	if (!rec_refs(rec) && rec_state(rec) == OMNIKV_EXTENT_QUARANTINED)
		okv_extent_end(map, granule);
}

void okv_extent_view(const struct okv_extent_map *map, uint64_t granule, struct okv_extent_view *view)
{
	const struct okv_extent_rec *rec = &map->recs[granule];

	view->name.granule = granule;
	view->name.generation = rec->generation;
	view->name.nr_granules = rec->nr;
	view->state = rec_state(rec);
	view->owner = rec->a;
	view->nr_refs = rec_refs(rec);
}

int okv_extent_free_list(struct okv_extent_map *map, const struct omnikv_extent *exts, uint32_t count,
			 uint32_t client, bool is_manager)
{
	uint32_t i, first = 0, nr = 0;
	int ret;

	ret = okv_extent_check_list(map, exts, count, OKV_OP_FREE, client, is_manager);
	if (ret)
		return ret;

	/* Neighbours in the list become one run before the run is joined with what is free around it. */
	for (i = 0; i < count; i++) {
		uint32_t granule = (uint32_t)exts[i].granule;
		struct okv_extent_rec *rec = &map->recs[granule];

		rec->b &= ~REC_MARK;
		if (!give_up(map, rec))
			continue;
		if (nr && granule == first + nr && !is_border(map, granule)) {
			nr += exts[i].nr_granules;
		} else if (nr && granule + exts[i].nr_granules == first && !is_border(map, first)) {
			first = granule;
			nr += exts[i].nr_granules;
		} else {
			if (nr)
				run_free(map, first, nr);
			first = granule;
			nr = exts[i].nr_granules;
		}
	}
	if (nr)
		run_free(map, first, nr);
	return 0;
}

/* ---- allocation ------------------------------------------------------------------------- */

/* A free run that begins at @granule and holds @nr? Behind a used granule a free one begins a run. */
static bool run_begins(const struct okv_extent_map *map, uint32_t granule, uint32_t nr)
{
	if (granule >= map->nr_granules || bit_is_used(map, granule))
		return false;
	if (granule && !bit_is_used(map, granule - 1) && !is_border(map, granule))
		return false;
	return map->recs[granule].nr >= nr && run_is_sane(map, granule);
}

int okv_extent_alloc(struct okv_extent_map *map, uint32_t nr, uint32_t count,
		     const struct omnikv_extent *after, uint32_t owner, struct omnikv_extent *out)
{
	uint32_t done = 0, runs = 0, at = OKV_EXTENT_NONE;
	uint64_t need;

	if (!nr || !count)
		return -EINVAL;
	need = (uint64_t)nr * count;
	if (need > map->state_granules[OMNIKV_EXTENT_FREE])
		return -ENOSPC;

	if (after && after->granule < map->nr_granules &&
	    after->nr_granules <= map->nr_granules - after->granule)
		at = (uint32_t)after->granule + after->nr_granules;
	while (done < count) {
		uint32_t run = at, len, fit, taken, i;

		if (!run_begins(map, run, nr)) {
			run = run_find(map, nr);
			if (run == OKV_EXTENT_NONE)
				goto err_free;
			runs++;
		}
		len = map->recs[run].nr;
		fit = len / nr < count - done ? len / nr : count - done;
		taken = fit * nr;
		if (map->recs[run].a < map->nr_granules)
			OKV_PREFETCH_W(&map->recs[map->recs[run].a]);
		run_unlink(map, run);
		if (taken < len)
			run_link(map, run + taken, len - taken);
		bits_change(map, run, taken, true);
		map->state_granules[OMNIKV_EXTENT_FREE] -= taken;
		map->state_granules[OMNIKV_EXTENT_PRIVATE] += taken;
		map->nr_extents[OMNIKV_EXTENT_PRIVATE] += fit;

		at = run + taken;
		for (i = 0; i < fit; i++, run += nr) {
			struct okv_extent_rec *rec = &map->recs[run];

			if (i + LOOK_AHEAD < fit)
				OKV_PREFETCH_W(rec + (uint64_t)LOOK_AHEAD * nr);
			rec->nr = nr;
			rec->a = owner;
			rec->b = OMNIKV_EXTENT_PRIVATE << REC_STATE_SHIFT;
			OKV_ORDERED_STORE(&rec->generation, rec->generation + OKV_GENERATION_LIVE);
			out[done].granule = run;
			out[done].generation = rec->generation;
			out[done++].nr_granules = nr;
		}
	}
	map->nr_placed += count;
	map->nr_runs_begun += runs;
	return 0;

err_free:
	while (done)
		okv_extent_end(map, out[--done].granule);
	return -ENOSPC;
}

/* ---- the walker ------------------------------------------------------------------------- */

static const char *check_lists(const struct okv_extent_map *map, uint64_t *nr_listed)
{
	unsigned int fl, sl, want_fl, want_sl;
	uint32_t run, prev;

	*nr_listed = 0;
	for (fl = 0; fl < OKV_RUN_FL_NR; fl++) {
		if (!(map->fl_bits >> fl & 1) != !map->sl_bits[fl])
			return "fl_bits tells which classes have runs";
		for (sl = 0; sl < OKV_RUN_SL_NR; sl++) {
			if (!(map->sl_bits[fl] >> sl & 1) != (map->heads[fl][sl] == OKV_EXTENT_NONE))
				return "sl_bits tells which lists have runs";
			prev = OKV_EXTENT_NONE;
			for (run = map->heads[fl][sl]; run != OKV_EXTENT_NONE; run = map->recs[run].a) {
				if (run >= map->nr_granules || bit_is_used(map, run))
					return "a listed run is free";
				run_class(map->recs[run].nr, &want_fl, &want_sl);
				if (want_fl != fl || want_sl != sl)
					return "a run is in the list of its length";
				if (map->recs[run].b != prev)
					return "a run knows the one before it";
				if (++*nr_listed > map->nr_granules)
					return "lists end";
				prev = run;
			}
		}
	}
	return NULL;
}

/* One free run from @first: its length, or 0 with the broken invariant in @broken. */
static uint32_t check_run(const struct okv_extent_map *map, uint32_t first, const char **broken)
{
	uint32_t nr = map->recs[first].nr, i;

	*broken = "a free run has the same length at both ends";
	if (!nr || nr > map->nr_granules - first || map->recs[first + nr - 1].nr != nr)
		return 0;
	for (i = 0; i < nr; i++) {
		*broken = "a free run has no used granule";
		if (bit_is_used(map, first + i))
			return 0;
		*broken = "no extent begins in a free run";
		if (rec_phase(&map->recs[first + i]) != OKV_GENERATION_NONE)
			return 0;
		*broken = "no run crosses a segment's border";
		if (i && is_border(map, first + i))
			return 0;
	}
	*broken = "free runs do not touch";
	if (first + nr < map->nr_granules && !bit_is_used(map, first + nr) && !is_border(map, first + nr))
		return 0;
	return nr;
}

/* One extent from @first: its length, or 0 with the broken invariant in @broken. */
static uint32_t check_extent(const struct okv_extent_map *map, uint32_t first, const char **broken)
{
	const struct okv_extent_rec *rec = &map->recs[first];
	unsigned int state = rec_state(rec);
	uint32_t i, phase = OKV_GENERATION_LIVE;

	*broken = "an extent has a length and lies in the map";
	if (!rec->nr || rec->nr > map->nr_granules - first)
		return 0;
	*broken = "a used extent has a state";
	if (state == OMNIKV_EXTENT_FREE || state >= OMNIKV_EXTENT_NR_STATES)
		return 0;
	if (state == OMNIKV_EXTENT_QUARANTINED || state == OMNIKV_EXTENT_POISONED)
		phase = OKV_GENERATION_GIVEN_UP;
	*broken = "an extent's generation has the phase of its state";
	if (rec_phase(rec) != phase)
		return 0;
	*broken = "a quarantined extent has references";
	if (state == OMNIKV_EXTENT_QUARANTINED && !rec_refs(rec))
		return 0;
	*broken = "no mark is left behind";
	if (rec->b & REC_MARK)
		return 0;
	for (i = 1; i < rec->nr; i++) {
		*broken = "an extent has no free granule";
		if (!bit_is_used(map, first + i))
			return 0;
		*broken = "extents do not overlap";
		if (rec_phase(&map->recs[first + i]) != OKV_GENERATION_NONE)
			return 0;
		*broken = "no extent crosses a segment's border";
		if (is_border(map, first + i))
			return 0;
	}
	return rec->nr;
}

const char *okv_extent_map_check(const struct okv_extent_map *map)
{
	uint64_t granules[OMNIKV_EXTENT_NR_STATES] = { 0 };
	uint64_t extents[OMNIKV_EXTENT_NR_STATES] = { 0 };
	uint64_t sum = 0, nr_listed;
	const char *broken;
	uint32_t at, nr;
	unsigned int state;

	broken = check_lists(map, &nr_listed);
	if (broken)
		return broken;
	for (at = 0; at < map->nr_granules; at += nr) {
		if (bit_is_used(map, at)) {
			nr = check_extent(map, at, &broken);
			state = rec_state(&map->recs[at]);
		} else {
			nr = check_run(map, at, &broken);
			state = OMNIKV_EXTENT_FREE;
		}
		if (!nr)
			return broken;
		granules[state] += nr;
		extents[state]++;
	}
	if (nr_listed != extents[OMNIKV_EXTENT_FREE])
		return "every free run is in a list";
	for (state = 0; state < OMNIKV_EXTENT_NR_STATES; state++) {
		if (granules[state] != map->state_granules[state])
			return "state_granules counts the granules of each state";
		if (extents[state] != map->nr_extents[state])
			return "nr_extents counts the extents of each state";
		sum += granules[state];
	}
	return sum == map->nr_granules ? NULL : "nr_granules is the sum over states";
}

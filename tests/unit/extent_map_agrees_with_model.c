// SPDX-License-Identifier: GPL-2.0-only
/*
 * The extent map against a model that knows nothing of runs, classes or tags: one entry a granule.
 *
 * Random allocations, frees, seals, references and ends; after each one the map's walker runs and
 * every name ever given out is asked for. Then each invariant is broken on purpose, and the
 * walker must say so. One thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "core/extent.h"

#define NR_GRANULES	190u	/* in segments of 64, 1 and 125 */
#define NR_NAMES	4096u
#define NR_OWNERS	3u

static uint64_t seed;

static uint32_t draw(uint32_t below)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)((seed >> 33) % below);
}

/* One extent that was ever allocated. */
struct entry {
	struct omnikv_extent	name;
	unsigned int		state;
	uint32_t		owner;
	uint32_t		nr_refs;
};

struct model {
	struct okv_extent_map	map;
	struct okv_extent_rec	recs[NR_GRANULES];
	uint64_t		used[(NR_GRANULES + 63) / 64];
	struct entry		entries[NR_NAMES];
	uint32_t		nr_entries;
	bool			is_taken[NR_GRANULES];
};

static void walk(const struct okv_extent_map *map)
{
	const char *broken = okv_extent_map_check(map);

	if (broken)
		fail_msg("not true: %s", broken);
}

static void model_init(struct model *m)
{
	memset(m, 0, sizeof(*m));
	assert_int_equal(okv_extent_map_init(&m->map, m->recs, m->used, NR_GRANULES), 0);
	walk(&m->map);
	assert_int_equal(okv_extent_map_add(&m->map, 64), 0);
	assert_int_equal(okv_extent_map_add(&m->map, 1), 0);
	assert_int_equal(okv_extent_map_add(&m->map, 125), 0);
	walk(&m->map);
}

static bool is_border(uint32_t granule)
{
	return granule == 0 || granule == 64 || granule == 65;
}

static uint32_t model_largest(const struct model *m)
{
	uint32_t i, run = 0, largest = 0;

	for (i = 0; i < NR_GRANULES; i++) {
		run = m->is_taken[i] ? 0 : is_border(i) ? 1 : run + 1;
		if (run > largest)
			largest = run;
	}
	return largest;
}

static void take(struct model *m, const struct omnikv_extent *name, bool is_taken)
{
	uint32_t i;

	for (i = 0; i < name->nr_granules; i++) {
		assert_int_equal(m->is_taken[name->granule + i], !is_taken);
		m->is_taken[name->granule + i] = is_taken;
	}
}

static void give_up(struct model *m, struct entry *e)
{
	e->state = e->nr_refs ? OMNIKV_EXTENT_QUARANTINED : OMNIKV_EXTENT_FREE;
	if (!e->nr_refs)
		take(m, &e->name, false);
}

static void step_alloc(struct model *m)
{
	uint32_t nr = 1 + draw(draw(4) ? 6 : 60), count = 1 + draw(5), i, j, nr_free = 0;
	const struct omnikv_extent *after = NULL;
	struct omnikv_extent out[5];
	uint32_t owner = 1 + draw(NR_OWNERS);
	bool is_behind = false;
	int ret;

	if (m->nr_entries + count > NR_NAMES)
		return;
	if (m->nr_entries && draw(2)) {
		uint32_t end, stop;

		after = &m->entries[draw(m->nr_entries)].name;
		end = (uint32_t)after->granule + after->nr_granules;
		/* Free, and a run begins there: what lies before is taken or another segment. */
		is_behind = end < NR_GRANULES && (is_border(end) || m->is_taken[end - 1]);
		for (stop = end; is_behind && stop < end + nr; stop++)
			if (stop >= NR_GRANULES || m->is_taken[stop] || (stop > end && is_border(stop)))
				is_behind = false;
	}
	for (i = 0; i < NR_GRANULES; i++)
		nr_free += !m->is_taken[i];
	ret = okv_extent_alloc(&m->map, nr, count, after, owner, out);
	if (ret) {
		assert_int_equal(ret, -ENOSPC);
		/* One extent that fits is never refused. */
		if (count == 1)
			assert_true(model_largest(m) < nr);
		return;
	}
	assert_true(nr_free >= nr * count);
	if (is_behind)
		assert_int_equal(out[0].granule, after->granule + after->nr_granules);
	for (i = 0; i < count; i++) {
		assert_int_equal(out[i].nr_granules, nr);
		for (j = 1; j < nr; j++)
			assert_false(is_border((uint32_t)out[i].granule + j));
		take(m, &out[i], true);
		m->entries[m->nr_entries++] = (struct entry){ out[i], OMNIKV_EXTENT_PRIVATE, owner, 0 };
	}
}

/* The next state, and whether it is allowed, as DESIGN's table has it for these few cases. */
static void step_free(struct model *m)
{
	struct entry *e[4];
	struct omnikv_extent names[4];
	uint32_t n = 1 + draw(4), i, j, owner = 1 + draw(NR_OWNERS);
	bool is_manager = draw(2), is_good = true;
	int ret;

	for (i = 0; i < n; i++) {
		/* Mostly young ones, some of which are neighbours. */
		uint32_t young = m->nr_entries < 40 ? m->nr_entries : 40;

		e[i] = &m->entries[draw(8) ? m->nr_entries - 1 - draw(young) : draw(m->nr_entries)];
		names[i] = e[i]->name;
		if (!(e[i]->state == OMNIKV_EXTENT_PRIVATE && e[i]->owner == owner) &&
		    !(is_manager && (e[i]->state == OMNIKV_EXTENT_SEALED || e[i]->state == OMNIKV_EXTENT_META)))
			is_good = false;
		for (j = 0; j < i; j++)
			if (e[j] == e[i])
				is_good = false;
	}
	ret = okv_extent_free_list(&m->map, names, n, owner, is_manager);
	assert_int_equal(!ret, is_good);
	for (i = 0; !ret && i < n; i++)
		give_up(m, e[i]);
}

static void step_other(struct model *m)
{
	struct entry *e = &m->entries[draw(m->nr_entries)];
	uint64_t granule = e->name.granule;
	int ret;

	switch (draw(6)) {
	case 0:
		ret = okv_extent_check(&m->map, &e->name, OKV_OP_SEAL, e->owner, false);
		assert_int_equal(ret, e->state == OMNIKV_EXTENT_PRIVATE ? 0 :
				 e->state == OMNIKV_EXTENT_SEALED ? -EBUSY :
				 e->state == OMNIKV_EXTENT_META ? -EPERM : -ESTALE);
		if (ret)
			break;
		okv_extent_seal(&m->map, granule);
		e->state = OMNIKV_EXTENT_SEALED;
		break;
	case 1:
		ret = okv_extent_check(&m->map, &e->name, OKV_OP_IO_GET, e->owner, true);
		assert_int_equal(ret, e->state == OMNIKV_EXTENT_PRIVATE || e->state == OMNIKV_EXTENT_SEALED ||
				 e->state == OMNIKV_EXTENT_META ? 0 : -ESTALE);
		if (ret)
			break;
		okv_extent_get(&m->map, granule, 2);
		e->nr_refs += 2;
		break;
	case 2:
	case 3:
		if (!e->nr_refs)
			break;
		assert_int_equal(okv_extent_check(&m->map, &e->name, OKV_OP_IO_PUT, e->owner, true), 0);
		okv_extent_put(&m->map, granule, 1);
		if (!--e->nr_refs && e->state == OMNIKV_EXTENT_QUARANTINED)
			give_up(m, e);
		break;
	case 4:
		if (e->state != OMNIKV_EXTENT_PRIVATE)
			break;
		okv_extent_end(&m->map, granule);
		give_up(m, e);
		break;
	default:
		if (e->state != OMNIKV_EXTENT_PRIVATE || draw(8))
			break;
		okv_extent_publish_meta(&m->map, granule);
		e->state = OMNIKV_EXTENT_META;
	}
}

static void compare(struct model *m)
{
	uint64_t granules[OMNIKV_EXTENT_NR_STATES] = { 0 }, extents[OMNIKV_EXTENT_NR_STATES] = { 0 };
	struct okv_extent_view view;
	uint32_t i, cursor = 0, seen = 0, live = 0;

	walk(&m->map);
	assert_int_equal(okv_extent_map_largest(&m->map), model_largest(m));
	for (i = 0; i < m->nr_entries; i++) {
		struct entry *e = &m->entries[i];
		bool is_named = e->state != OMNIKV_EXTENT_FREE && e->state != OMNIKV_EXTENT_QUARANTINED;

		assert_int_equal(okv_extent_check(&m->map, &e->name, OKV_OP_QUERY, 99, false), is_named ? 0 : -ESTALE);
		if (e->state == OMNIKV_EXTENT_FREE)
			continue;
		live++;
		granules[e->state] += e->name.nr_granules;
		extents[e->state]++;
		okv_extent_view(&m->map, e->name.granule, &view);
		assert_int_equal(view.state, e->state);
		assert_int_equal(view.nr_refs, e->nr_refs);
		assert_int_equal(view.owner, e->owner);
	}
	for (i = 1; i < OMNIKV_EXTENT_NR_STATES; i++) {
		assert_int_equal(m->map.state_granules[i], granules[i]);
		assert_int_equal(m->map.nr_extents[i], extents[i]);
	}
	while (okv_extent_map_next(&m->map, &cursor, &view))
		seen++;
	assert_int_equal(seen, live);
}

static void random_steps_agree(void **state)
{
	static struct model m;
	uint32_t round, i;

	(void)state;
	for (round = 0; round < 12; round++) {
		seed = round;
		model_init(&m);
		for (i = 0; i < 700; i++) {
			switch (draw(3)) {
			case 0:
				step_alloc(&m);
				break;
			case 1:
				if (m.nr_entries)
					step_free(&m);
				break;
			default:
				if (m.nr_entries)
					step_other(&m);
			}
			compare(&m);
		}
	}
}

static void a_generation_that_would_wrap_retires_its_granule(void **state)
{
	static struct model m;
	struct omnikv_extent ext;

	(void)state;
	model_init(&m);
	m.recs[65].generation = OKV_GENERATION_LAST - OKV_GENERATION_STEP;
	assert_int_equal(okv_extent_alloc(&m.map, 125, 1, NULL, 1, &ext), 0);
	assert_int_equal(ext.granule, 65);
	assert_int_equal(okv_extent_free_list(&m.map, &ext, 1, 1, false), 0);
	assert_int_equal(okv_extent_alloc(&m.map, 125, 1, NULL, 1, &ext), 0);
	assert_int_equal(ext.generation, OKV_GENERATION_LAST | OKV_GENERATION_LIVE);
	assert_int_equal(okv_extent_free_list(&m.map, &ext, 1, 1, false), 0);
	walk(&m.map);
	assert_int_equal(m.map.nr_extents[OMNIKV_EXTENT_POISONED], 1);
	assert_int_equal(okv_extent_alloc(&m.map, 125, 1, NULL, 1, &ext), -ENOSPC);
	assert_int_equal(okv_extent_check(&m.map, &ext, OKV_OP_QUERY, 1, false), -ESTALE);
}

static void poisoned_extents_stay_out_of_use_when_their_last_reference_goes(void **state)
{
	static struct model m;
	struct omnikv_extent ext;

	(void)state;
	model_init(&m);
	assert_int_equal(okv_extent_alloc(&m.map, 4, 1, NULL, 1, &ext), 0);
	okv_extent_get(&m.map, ext.granule, 1);
	okv_extent_poison(&m.map, ext.granule);
	walk(&m.map);
	assert_int_equal(okv_extent_check(&m.map, &ext, OKV_OP_FREE, 1, true), -ESTALE);
	assert_int_equal(okv_extent_check(&m.map, &ext, OKV_OP_IO_PUT, 1, true), 0);
	okv_extent_put(&m.map, ext.granule, 1);
	walk(&m.map);
	assert_int_equal(m.map.state_granules[OMNIKV_EXTENT_POISONED], 4);
}

static void references_do_not_overflow(void **state)
{
	static struct model m;
	struct omnikv_extent ext;

	(void)state;
	model_init(&m);
	assert_int_equal(okv_extent_alloc(&m.map, 4, 1, NULL, 1, &ext), 0);
	okv_extent_get(&m.map, ext.granule, OKV_EXTENT_REFS_MAX - 1);
	assert_int_equal(okv_extent_check(&m.map, &ext, OKV_OP_IO_GET, 1, false), 0);
	okv_extent_get(&m.map, ext.granule, 1);
	assert_int_equal(okv_extent_check(&m.map, &ext, OKV_OP_IO_GET, 1, false), -EDQUOT);
	assert_int_equal(okv_extent_check(&m.map, &ext, OKV_OP_IO_PUT, 1, false), 0);
	walk(&m.map);
}

static void forged_names_are_stale(void **state)
{
	static struct model m;
	struct omnikv_extent ext, forged;
	uint32_t i;

	(void)state;
	model_init(&m);
	assert_int_equal(okv_extent_alloc(&m.map, 8, 1, NULL, 1, &ext), 0);
	for (i = 0; i < 64; i++) {
		forged = ext;
		forged.generation = i;
		assert_int_equal(okv_extent_check(&m.map, &forged, OKV_OP_QUERY, 1, false),
				 i == ext.generation ? 0 : -ESTALE);
		forged.granule = ext.granule + 3;
		assert_int_equal(okv_extent_check(&m.map, &forged, OKV_OP_QUERY, 1, false), -ESTALE);
		forged.granule = NR_GRANULES + i;
		assert_int_equal(okv_extent_check(&m.map, &forged, OKV_OP_QUERY, 1, false), -ESTALE);
	}
	forged = ext;
	forged.granule = UINT64_MAX;
	assert_int_equal(okv_extent_check(&m.map, &forged, OKV_OP_QUERY, 1, false), -ESTALE);
	/* The same low 32 bits. */
	forged.granule = ext.granule + (1ull << 32);
	assert_int_equal(okv_extent_check(&m.map, &forged, OKV_OP_QUERY, 1, false), -ESTALE);
	forged = ext;
	forged.nr_granules = 7;
	assert_int_equal(okv_extent_check(&m.map, &forged, OKV_OP_QUERY, 1, false), -EINVAL);
	/* A hint that is nonsense is no error. */
	forged.granule = 10;
	forged.nr_granules = UINT32_MAX;
	assert_int_equal(okv_extent_alloc(&m.map, 1, 1, &forged, 1, &ext), 0);
	assert_int_equal(okv_extent_alloc(&m.map, 0, 1, NULL, 1, &ext), -EINVAL);
	assert_int_equal(okv_extent_alloc(&m.map, 1, 0, NULL, 1, &ext), -EINVAL);
	assert_int_equal(okv_extent_alloc(&m.map, UINT32_MAX, UINT32_MAX, NULL, 1, &ext), -ENOSPC);
	walk(&m.map);
}

static void a_failed_list_leaves_no_trace(void **state)
{
	static struct model m;
	struct omnikv_extent a[3], many[64];

	(void)state;
	model_init(&m);
	/* 64 + 1 + 125 granules hold 12 + 0 + 25 runs of 5, so 38 are too many though 190 are free. */
	assert_int_equal(okv_extent_alloc(&m.map, 5, 38, NULL, 1, many), -ENOSPC);
	walk(&m.map);
	assert_int_equal(m.map.state_granules[OMNIKV_EXTENT_FREE], NR_GRANULES);
	assert_int_equal(okv_extent_alloc(&m.map, 5, 37, NULL, 1, many), 0);
	walk(&m.map);
	assert_int_equal(m.map.nr_placed, 37);
	assert_int_equal(m.map.nr_runs_begun, 2);
	assert_int_equal(okv_extent_free_list(&m.map, many, 37, 1, false), 0);
	walk(&m.map);
	assert_int_equal(okv_extent_alloc(&m.map, 5, 3, NULL, 1, a), 0);
	a[2].generation += 4;
	assert_int_equal(okv_extent_check_list(&m.map, a, 3, OKV_OP_FREE, 1, false), -ESTALE);
	walk(&m.map);
	assert_int_equal(okv_extent_check_list(&m.map, a, 2, OKV_OP_FREE, 1, false), 0);
	assert_true(okv_extent_is_marked(&m.map, a[0].granule));
	assert_string_equal(okv_extent_map_check(&m.map), "no mark is left behind");
	okv_extent_unmark_list(&m.map, a, 2);
	assert_false(okv_extent_is_marked(&m.map, a[0].granule));
	walk(&m.map);
}

static void maps_and_segments_have_limits(void **state)
{
	static struct model m;
	static struct okv_extent_rec recs[80];
	static uint64_t used[2];
	struct okv_extent_map map;
	uint32_t i;

	(void)state;
	assert_int_equal(okv_extent_map_init(&m.map, m.recs, m.used, 0), -EINVAL);
	assert_int_equal(okv_extent_map_init(&m.map, m.recs, m.used, OKV_EXTENT_GRANULES_MAX + 1ull), -EINVAL);
	model_init(&m);
	assert_int_equal(okv_extent_map_add(&m.map, 1), -EINVAL);
	assert_int_equal(okv_extent_map_add(&m.map, 0), -EINVAL);
	assert_int_equal(okv_extent_map_init(&map, recs, used, 80), 0);
	assert_int_equal(okv_extent_map_largest(&map), 0);
	for (i = 0; i < OKV_EXTENT_SEGMENTS_MAX; i++)
		assert_int_equal(okv_extent_map_add(&map, 1), 0);
	assert_int_equal(okv_extent_map_add(&map, 1), -ENOSPC);
	assert_int_equal(okv_extent_map_recover(&map, 1), -ENOSPC);
	walk(&map);
	assert_int_equal(okv_extent_map_largest(&map), 1);
}

/* Neighbours in a list that lie in two segments stay two runs, whichever of them comes first. */
static void freeing_across_a_border_leaves_two_runs(void **state)
{
	static struct model m;
	struct omnikv_extent a[2], swapped[2], wide;
	uint32_t way;

	(void)state;
	for (way = 0; way < 2; way++) {
		model_init(&m);
		/* Granules 64 and 65: all of the second segment, and the first of the third. */
		while (okv_extent_alloc(&m.map, 1, 1, NULL, 1, &wide) == 0) {
			if (wide.granule == 64)
				a[0] = wide;
			if (wide.granule == 65)
				a[1] = wide;
		}
		swapped[0] = a[1];
		swapped[1] = a[0];
		assert_int_equal(okv_extent_free_list(&m.map, way ? swapped : a, 2, 1, false), 0);
		walk(&m.map);
		assert_int_equal(okv_extent_map_largest(&m.map), 1);
		assert_int_equal(okv_extent_alloc(&m.map, 2, 1, NULL, 1, &wide), -ENOSPC);
	}
}

static void the_walk_survives_changes_under_it(void **state)
{
	static struct model m;
	struct omnikv_extent a[2], b;
	struct okv_extent_view view;
	uint32_t cursor = 0;

	(void)state;
	model_init(&m);
	assert_int_equal(okv_extent_alloc(&m.map, 4, 2, NULL, 1, a), 0);
	assert_true(okv_extent_map_next(&m.map, &cursor, &view));
	assert_int_equal(view.name.granule, a[0].granule);
	/* The cursor now points into the middle of what comes next. */
	assert_int_equal(okv_extent_free_list(&m.map, a, 2, 1, false), 0);
	assert_int_equal(okv_extent_alloc(&m.map, 10, 1, NULL, 1, a), 0);
	assert_int_equal(okv_extent_alloc(&m.map, 2, 1, a, 1, &b), 0);
	assert_true(okv_extent_map_next(&m.map, &cursor, &view));
	assert_int_equal(view.name.granule, b.granule);
	assert_false(okv_extent_map_next(&m.map, &cursor, &view));
}

/* ---- recovery --------------------------------------------------------------------------- */

static void records_tell_what_survives_their_process(void **state)
{
	static struct model m;
	static struct okv_extent_map again;
	struct omnikv_extent priv, sealed, meta, waiting, bad, poisoned, old;
	struct okv_extent_view view;

	(void)state;
	model_init(&m);
	assert_int_equal(okv_extent_alloc(&m.map, 3, 1, NULL, 1, &priv), 0);
	assert_int_equal(okv_extent_alloc(&m.map, 4, 1, &priv, 1, &sealed), 0);
	assert_int_equal(okv_extent_alloc(&m.map, 5, 1, &sealed, 1, &meta), 0);
	assert_int_equal(okv_extent_alloc(&m.map, 6, 1, &meta, 1, &waiting), 0);
	assert_int_equal(okv_extent_alloc(&m.map, 7, 1, &waiting, 1, &bad), 0);
	assert_int_equal(okv_extent_alloc(&m.map, 2, 1, &bad, 1, &poisoned), 0);
	okv_extent_seal(&m.map, sealed.granule);
	okv_extent_get(&m.map, sealed.granule, 3);
	okv_extent_publish_meta(&m.map, meta.granule);
	okv_extent_get(&m.map, waiting.granule, 1);
	okv_extent_end(&m.map, waiting.granule);
	okv_extent_poison(&m.map, poisoned.granule);
	/* A record that claims more than there is, as no code writes it. */
	okv_extent_seal(&m.map, bad.granule);
	m.recs[bad.granule].nr = 4000;
	memset(m.used, 0, sizeof(m.used));

	assert_int_equal(okv_extent_map_init(&again, m.recs, m.used, NR_GRANULES), 0);
	assert_int_equal(okv_extent_map_recover(&again, NR_GRANULES), 0);
	walk(&again);
	assert_int_equal(okv_extent_check(&again, &sealed, OKV_OP_LEASE, 9, false), 0);
	assert_int_equal(okv_extent_check(&again, &meta, OKV_OP_FREE, 9, true), 0);
	okv_extent_view(&again, sealed.granule, &view);
	assert_int_equal(view.nr_refs, 0);
	assert_int_equal(okv_extent_check(&again, &priv, OKV_OP_QUERY, 1, true), -ESTALE);
	assert_int_equal(okv_extent_check(&again, &waiting, OKV_OP_QUERY, 1, true), -ESTALE);
	assert_int_equal(okv_extent_check(&again, &waiting, OKV_OP_IO_PUT, 1, true), -ESTALE);
	assert_int_equal(okv_extent_check(&again, &bad, OKV_OP_QUERY, 1, true), -ESTALE);
	assert_int_equal(again.nr_extents[OMNIKV_EXTENT_SEALED], 1);
	assert_int_equal(again.nr_extents[OMNIKV_EXTENT_META], 1);
	/* The record in doubt claimed the poisoned one's granules too, so that one is free as well. */
	assert_int_equal(again.nr_extents[OMNIKV_EXTENT_POISONED], 0);
	assert_int_equal(again.state_granules[OMNIKV_EXTENT_FREE], NR_GRANULES - 9);

	/* No later extent gets the name of an earlier one. */
	old = priv;
	assert_int_equal(okv_extent_alloc(&again, 113, 1, NULL, 1, &priv), 0);
	assert_int_equal(okv_extent_alloc(&again, 65, 1, NULL, 1, &priv), 0);
	assert_int_equal(okv_extent_alloc(&again, 3, 1, NULL, 1, &priv), 0);
	assert_int_equal(priv.granule, old.granule);
	assert_true(priv.generation > old.generation);
}

static void overlapping_records_are_both_given_up(void **state)
{
	static struct model m;
	static struct okv_extent_map again;
	struct omnikv_extent a, b;

	(void)state;
	model_init(&m);
	assert_int_equal(okv_extent_alloc(&m.map, 4, 1, NULL, 1, &a), 0);
	assert_int_equal(okv_extent_alloc(&m.map, 4, 1, &a, 1, &b), 0);
	okv_extent_seal(&m.map, a.granule);
	okv_extent_seal(&m.map, b.granule);
	m.recs[a.granule].nr = 5;
	memset(m.used, 0, sizeof(m.used));
	assert_int_equal(okv_extent_map_init(&again, m.recs, m.used, NR_GRANULES), 0);
	assert_int_equal(okv_extent_map_recover(&again, NR_GRANULES), 0);
	walk(&again);
	assert_int_equal(again.state_granules[OMNIKV_EXTENT_FREE], NR_GRANULES);
	assert_int_equal(okv_extent_check(&again, &a, OKV_OP_QUERY, 1, true), -ESTALE);
	assert_int_equal(okv_extent_check(&again, &b, OKV_OP_QUERY, 1, true), -ESTALE);
}

static void recovery_of_any_bytes_gives_a_sound_map(void **state)
{
	static struct model m;
	static struct okv_extent_map again;
	uint32_t round, i;

	(void)state;
	for (round = 0; round < 2000; round++) {
		seed = round;
		for (i = 0; i < NR_GRANULES; i++) {
			m.recs[i].generation = draw(3) ? 0xfffffff0u + draw(16) : draw(2) ? draw(64) & ~3u : draw(64);
			m.recs[i].nr = draw(8) ? draw(4) : draw(UINT32_MAX);
			m.recs[i].a = draw(UINT32_MAX);
			m.recs[i].b = draw(8) << 24 | draw(3) | (draw(2) ? 0x80000000u : 0);
		}
		memset(m.used, 0, sizeof(m.used));
		assert_int_equal(okv_extent_map_init(&again, m.recs, m.used, NR_GRANULES), 0);
		assert_int_equal(okv_extent_map_recover(&again, NR_GRANULES), 0);
		walk(&again);
	}
}

static void the_last_generation_is_not_recovered_as_free(void **state)
{
	static struct model m;
	static struct okv_extent_map again;
	struct omnikv_extent ext;

	(void)state;
	model_init(&m);
	m.recs[65].generation = OKV_GENERATION_LAST;
	assert_int_equal(okv_extent_alloc(&m.map, 125, 1, NULL, 1, &ext), 0);
	memset(m.used, 0, sizeof(m.used));
	assert_int_equal(okv_extent_map_init(&again, m.recs, m.used, NR_GRANULES), 0);
	assert_int_equal(okv_extent_map_recover(&again, NR_GRANULES), 0);
	walk(&again);
	assert_int_equal(again.state_granules[OMNIKV_EXTENT_POISONED], 1);
	/* And once more: what is poisoned stays so. */
	memset(m.used, 0, sizeof(m.used));
	assert_int_equal(okv_extent_map_init(&again, m.recs, m.used, NR_GRANULES), 0);
	assert_int_equal(okv_extent_map_recover(&again, NR_GRANULES), 0);
	walk(&again);
	assert_int_equal(again.state_granules[OMNIKV_EXTENT_POISONED], 1);
}

/* ---- the walker itself ------------------------------------------------------------------ */

/* Granules of a fresh map in use below: extents at 65..68 and 69..72, a run behind and before. */
static struct model broken;

static void broken_init(struct omnikv_extent *a)
{
	model_init(&broken);
	assert_int_equal(okv_extent_alloc(&broken.map, 4, 2, NULL, 1, a), 0);
	assert_int_equal(a[0].granule, 65);
	walk(&broken.map);
}

static void the_walker_sees_each_broken_invariant(void **state)
{
	struct omnikv_extent a[2];
	struct okv_extent_map *map = &broken.map;
	struct okv_extent_rec *recs = broken.recs;

	(void)state;
#define SEES(change, text) do {						\
		broken_init(a);						\
		change;							\
		assert_non_null(okv_extent_map_check(map));		\
		assert_string_equal(okv_extent_map_check(map), text);	\
	} while (0)
	SEES(map->fl_bits = 0, "fl_bits tells which classes have runs");
	SEES(map->sl_bits[0] |= 8, "sl_bits tells which lists have runs");
	SEES(recs[0].a = 65, "a listed run is free");
	SEES(recs[0].nr = 3, "a run is in the list of its length");
	SEES(recs[0].b = 5, "a run knows the one before it");
	SEES(recs[73].nr = 114, "a free run has the same length at both ends");
	SEES(map->used[0] |= 1ull << 30, "a free run has no used granule");
	SEES(recs[30].generation = 1, "no extent begins in a free run");
	SEES(map->segment_first[1] = 30, "no run crosses a segment's border");
	SEES(map->segment_first[1] = 0, "free runs do not touch");
	SEES(recs[65].nr = 0, "an extent has a length and lies in the map");
	SEES(recs[65].b = 0, "a used extent has a state");
	SEES(recs[65].generation++, "an extent's generation has the phase of its state");
	SEES((okv_extent_get(map, 65, 1), okv_extent_end(map, 65), recs[65].b--), "a quarantined extent has references");
	SEES(map->used[1] &= ~(1ull << 2), "an extent has no free granule");
	SEES(recs[67].generation = 1, "extents do not overlap");
	SEES(map->segment_first[2] = 66, "no extent crosses a segment's border");
	SEES((map->heads[0][1] = OKV_EXTENT_NONE, map->sl_bits[0] = 0, map->fl_bits &= ~1u), "every free run is in a list");
	SEES(map->state_granules[0]--, "state_granules counts the granules of each state");
	SEES(map->nr_extents[1]--, "nr_extents counts the extents of each state");
#undef SEES
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(random_steps_agree),
		cmocka_unit_test(a_generation_that_would_wrap_retires_its_granule),
		cmocka_unit_test(poisoned_extents_stay_out_of_use_when_their_last_reference_goes),
		cmocka_unit_test(references_do_not_overflow),
		cmocka_unit_test(forged_names_are_stale),
		cmocka_unit_test(a_failed_list_leaves_no_trace),
		cmocka_unit_test(maps_and_segments_have_limits),
		cmocka_unit_test(freeing_across_a_border_leaves_two_runs),
		cmocka_unit_test(the_walk_survives_changes_under_it),
		cmocka_unit_test(records_tell_what_survives_their_process),
		cmocka_unit_test(overlapping_records_are_both_given_up),
		cmocka_unit_test(recovery_of_any_bytes_gives_a_sound_map),
		cmocka_unit_test(the_last_generation_is_not_recovered_as_free),
		cmocka_unit_test(the_walker_sees_each_broken_invariant),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: MIT
/*
 * Parts that wait for one another; see join.h. A list, since a step of all ranks has few blocks under way
 * that are not whole. One thread.
 */
#include "manager/join.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "failpoint.h"
#include "manager/space.h"

struct joining {
	struct joining		*next;
	struct omnikv_space	*space;
	struct omnikv_key	key;
	struct omnikv_key	parent;		/* len 0: none */
	uint32_t		position;
	uint32_t		nr_tokens;
	uint32_t		nr_parts;
	uint32_t		parts;		/* bit per part that is there */
	uint32_t		groups;		/* bit per group that is there */
	uint64_t		until_ns;
	uint32_t		epoch;
	uint64_t		owners[OMNIKV_GROUPS_MAX];	/* of each part */
	struct omnikv_extent	extents[OMNIKV_GROUPS_MAX];
	uint32_t		crcs[OMNIKV_GROUPS_MAX];
};

struct okv_joins {
	struct omnikv_manager	*manager;
	okv_join_end_fn		end;
	void			*opaque;
	struct joining		*first;
	uint32_t		nr;
};

int okv_joins_create(struct omnikv_manager *manager, okv_join_end_fn end, void *opaque, struct okv_joins **joins)
{
	*joins = calloc(1, sizeof(**joins));
	if (!*joins)
		return -ENOMEM;
	(*joins)->manager = manager;
	(*joins)->end = end;
	(*joins)->opaque = opaque;
	return 0;
}

/* It is over. What of it the index did not take goes back to the pool. */
static void finish(struct okv_joins *joins, struct joining **link, bool is_published)
{
	struct joining *joining = *link;
	struct okv_visit visit;

	*link = joining->next;
	joins->nr--;
	okv_visit_init(&visit, joins->manager);
	okv_visit_enter(&visit);
	for (uint32_t g = 0; g < OMNIKV_GROUPS_MAX && !is_published; g++) {
		if (!(joining->groups >> g & 1))
			continue;
		joins->manager->tier_granules -= joining->extents[g].nr_granules;
		okv_visit_give(&visit, &joining->extents[g]);
	}
	okv_visit_leave(&visit);
	if (joins->end)
		joins->end(joins->opaque, joining->space, &joining->key, is_published);
	omnikv_space_close(joining->space);
	free(joining);
}

void okv_joins_destroy(struct okv_joins *joins)
{
	if (!joins)
		return;
	while (joins->first)
		finish(joins, &joins->first, false);
	free(joins);
}

static bool is_same_key(const struct omnikv_key *a, const struct omnikv_key *b)
{
	return a->len == b->len && !memcmp(a->bytes, b->bytes, sizeof(a->bytes));
}

static struct joining **find(struct okv_joins *joins, const struct omnikv_space *space, const struct omnikv_key *key)
{
	struct joining **link = &joins->first;

	while (*link && ((*link)->space != space || !is_same_key(&(*link)->key, key)))
		link = &(*link)->next;
	return link;
}

/* What can be wrong with a part by itself. */
static int check_part(const struct omnikv_space *space, const struct okv_join_part *part)
{
	const struct omnikv_plan *plan = &space->plan->plan;
	uint32_t i = 0;

	if (!okv_keys_are_valid(part->key, 1, part->parent) || !part->nr_parts || part->nr_parts > OMNIKV_GROUPS_MAX ||
	    part->part >= part->nr_parts || !part->groups || part->groups >> space->shelf->nr_groups || !part->nr_tokens ||
	    part->nr_tokens > plan->block_tokens || !okv_block_ends_entries(plan, part->nr_tokens) ||
	    (part->parent != NULL) != (part->position != 0))
		return -EINVAL;
	for (uint32_t g = 0; g < space->shelf->nr_groups; g++)
		if ((part->groups >> g & 1) && part->extents[i++].nr_granules != plan->groups[g].nr_granules)
			return -EINVAL;
	return 0;
}

static bool fits(const struct joining *joining, const struct okv_join_part *part)
{
	static const struct omnikv_key none;

	return joining->epoch == part->epoch && joining->nr_parts == part->nr_parts &&
	       joining->position == part->position && joining->nr_tokens == part->nr_tokens &&
	       is_same_key(&joining->parent, part->parent ? part->parent : &none) &&
	       !(joining->parts >> part->part & 1) && !(joining->groups & part->groups);
}

/* Inside a visit: the whole block into the index. */
static int insert(struct okv_visit *visit, struct joining *joining)
{
	struct omnikv_space *space = joining->space;
	struct okv_index_block block = {
		.ns = space->id,
		.parent = OKV_ENTRY_NONE,
		.position = joining->position,
		.nr_tokens = joining->nr_tokens < space->plan->plan.block_tokens ? joining->nr_tokens : OKV_BLOCK_FULL,
		.key = &joining->key,
		.extents = joining->extents,
		.crc32c = joining->crcs,
	};
	uint32_t entry;
	int ret;

	/* Groups that nobody brought: only states may be absent. */
	if (((1u << space->shelf->nr_groups) - 1) & ~joining->groups & ~space->needed_state)
		return -ECANCELED;
	okv_shelf_spare(visit, space->shelf, 1);
	if (joining->parent.len) {
		block.parent = okv_index_find(space->shelf->index, space->id, &joining->parent);
		if (block.parent == OKV_ENTRY_NONE)
			return -ESTALE;
	}
	ret = -OKV_FAILPOINT("join.insert");
	if (!ret)
		ret = okv_index_insert(space->shelf->index, &block, &entry);
	if (ret)
		return ret == -EEXIST ? -ECANCELED : ret;
	for (uint32_t g = 0; g < space->shelf->nr_groups; g++) {
		space->manager->tier_granules -= joining->extents[g].nr_granules;
		space->shelf->nr_granules += joining->extents[g].nr_granules;
	}
	space->manager->stats.blocks_committed++;
	okv_note_peak(space->manager);
	return 1;
}

static int start(struct okv_joins *joins, struct omnikv_space *space, const struct okv_join_part *part,
		 struct joining **link)
{
	struct joining *joining;

	joining = calloc(1, sizeof(*joining));
	if (!joining)
		return -ENOMEM;
	joining->space = space;
	joining->key = *part->key;
	if (part->parent)
		joining->parent = *part->parent;
	joining->position = part->position;
	joining->nr_tokens = part->nr_tokens;
	joining->nr_parts = part->nr_parts;
	joining->until_ns = part->until_ns;
	joining->epoch = part->epoch;
	*link = joining;
	joins->nr++;
	return 0;
}

int okv_joins_ask(struct okv_joins *joins, struct omnikv_space *space, const struct okv_join_part *part)
{
	bool is_cached, is_over;
	struct okv_visit visit;
	int ret;

	ret = check_part(space, part);
	if (ret)
		return ret;
	okv_visit_init(&visit, joins->manager);
	okv_visit_enter(&visit);
	is_cached = okv_index_find(space->shelf->index, space->id, part->key) != OKV_ENTRY_NONE;
	is_over = part->epoch != (uint32_t)okv_manager_epoch(joins->manager);
	okv_visit_leave(&visit);
	if (is_over)
		return -ESTALE;
	if (is_cached)
		return -EEXIST;
	return joins->nr < OKV_JOINS_MAX || *find(joins, space, part->key) ? 0 : -ENOSPC;
}

/* It comes to nothing, and goes back to nobody. */
static void drop_part(struct okv_joins *joins, const struct okv_join_part *part)
{
	uint32_t nr = __builtin_popcount(part->groups);
	struct okv_visit visit;

	if (part->client) {
		omnikv_extent_free(part->client, part->extents, nr);
		return;
	}
	okv_visit_init(&visit, joins->manager);
	okv_visit_enter(&visit);
	/* What is not sealed, or was taken already, is not ours to give. */
	if (!okv_manager_take(joins->manager, NULL, part->extents, nr))
		for (uint32_t i = 0; i < nr; i++)
			okv_visit_give(&visit, &part->extents[i]);
	okv_visit_leave(&visit);
}

static int add_part(struct okv_joins *joins, struct omnikv_space *space, const struct okv_join_part *part)
{
	struct joining **link = find(joins, space, part->key), *joining;
	uint32_t nr = __builtin_popcount(part->groups), i = 0;
	bool is_first = !*link;
	struct okv_visit visit;
	int ret;

	ret = okv_joins_ask(joins, space, part);
	if (ret == -ESTALE)
		drop_part(joins, part);
	if (ret)
		return ret;
	okv_visit_init(&visit, joins->manager);
	if (is_first) {
		ret = start(joins, space, part, link);
		if (ret)
			return ret;
		okv_visit_enter(&visit);
		okv_space_get_locked(space);
		okv_visit_leave(&visit);
	}
	joining = *link;
	ret = fits(joining, part) ? -OKV_FAILPOINT("join.seal") : -ECANCELED;
	if (!ret) {
		okv_visit_enter(&visit);
		ret = okv_manager_take(joins->manager, part->client, part->extents, nr);
		okv_visit_leave(&visit);
	}
	if (ret) {
		/* Contradicting parts are of steps that know nothing of each other: neither is believed. */
		if (ret == -ECANCELED)
			drop_part(joins, part);
		if (is_first || ret == -ECANCELED)
			finish(joins, link, false);
		return ret;
	}
	okv_visit_enter(&visit);
	for (uint32_t g = 0; g < OMNIKV_GROUPS_MAX; g++) {
		if (!(part->groups >> g & 1))
			continue;
		joining->extents[g] = part->extents[i];
		joining->crcs[g] = part->crcs[i++];
		joins->manager->tier_granules += joining->extents[g].nr_granules;
	}
	joining->groups |= part->groups;
	joining->parts |= 1u << part->part;
	joining->owners[part->part] = part->owner;
	if (joining->parts == (1u << joining->nr_parts) - 1)
		ret = insert(&visit, joining);
	okv_visit_leave(&visit);
	if (ret)
		finish(joins, link, ret == 1);
	return ret < 0 && ret != -ESTALE ? -ECANCELED : ret;
}

int okv_joins_add(struct okv_joins *joins, struct omnikv_space *space, const struct okv_join_part *part)
{
	int ret = add_part(joins, space, part);

	if (part->client || ret >= 0 || ret == -ESTALE || ret == -ECANCELED)
		return ret;
	drop_part(joins, part);
	return -ECANCELED;
}

void okv_joins_end_owner(struct okv_joins *joins, uint64_t owner)
{
	struct joining **link = &joins->first;

	while (*link) {
		bool is_theirs = false;

		for (uint32_t i = 0; i < (*link)->nr_parts; i++)
			is_theirs |= (*link)->owners[i] == owner;
		if (is_theirs)
			finish(joins, link, false);
		else
			link = &(*link)->next;
	}
}

uint64_t okv_joins_tick(struct okv_joins *joins, uint64_t now_ns)
{
	struct joining **link = &joins->first;
	uint64_t next_ns = UINT64_MAX;

	while (*link) {
		if ((*link)->until_ns <= now_ns) {
			finish(joins, link, false);
			continue;
		}
		next_ns = (*link)->until_ns < next_ns ? (*link)->until_ns : next_ns;
		link = &(*link)->next;
	}
	return next_ns;
}

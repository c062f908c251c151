// SPDX-License-Identifier: MIT
/*
 * Namespaces of a manager: opened by their fields, kept while anything is open or cached.
 *
 * Two namespaces never share a hit, since the number of the namespace is part of every key in
 * the index. Spaces whose layouts have the same groups share a shelf, so that their blocks
 * leave in one order. Any thread; the manager's lock guards the tables.
 */
#include "manager/space.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "error.h"
#include "manager/catalog.h"
#include "manager/catalog_shared.h"
#include "manager/import.h"
#include "manager/tier.h"
#include "manager/watch.h"
#include "option.h"

/* Unused spaces are looked for when there are this many; costs a walk over all entries. */
#define OKV_SPACE_SWEEP_MIN	64u

/* The same for all namespaces that differ in their layout and its block size alone. */
static int okv_space_kin(const struct omnikv_namespace *ns, uint8_t kin[32])
{
	struct omnikv_namespace plain = *ns;
	struct omnikv_layout *layout;
	int ret;

	layout = malloc(sizeof(*layout));
	if (!layout)
		return -ENOMEM;
	ret = omnikv_layout_preset("tiny", layout, NULL);
	if (!ret) {
		plain.layout = layout;
		plain.block_tokens = 1;
		ret = omnikv_namespace_identity(&plain, kin);
	}
	free(layout);
	return ret;
}

static uint32_t okv_space_bucket(const uint8_t identity[32])
{
	uint32_t word;

	memcpy(&word, identity, sizeof(word));
	return word % OKV_SPACE_BUCKETS;
}

uint64_t okv_plan_granules(const struct omnikv_plan *plan, bool with_state)
{
	uint64_t nr = 0;

	for (uint32_t g = 0; g < plan->layout.nr_groups; g++)
		if (with_state || !omnikv_group_is_state(&plan->layout.groups[g]))
			nr += plan->groups[g].nr_granules;
	return nr;
}

/* Groups that hold state: a block may lack them, and the last one of a hit may not. */
static uint32_t okv_plan_state_groups(const struct omnikv_plan *plan)
{
	uint32_t groups = 0;

	for (uint32_t g = 0; g < plan->layout.nr_groups; g++)
		if (omnikv_group_is_state(&plan->layout.groups[g]))
			groups |= 1u << g;
	return groups;
}

static struct okv_shelf *okv_shelf_new(const struct omnikv_plan *plan)
{
	struct okv_shelf *shelf = calloc(1, sizeof(*shelf));

	if (!shelf)
		return NULL;
	shelf->nr_groups = plan->layout.nr_groups;
	shelf->optional_groups = okv_plan_state_groups(plan);
	shelf->pins.next = &shelf->pins;
	shelf->pins.prev = &shelf->pins;
	return shelf;
}

static bool okv_shelf_is_for(const struct okv_shelf *shelf, const struct omnikv_plan *plan)
{
	return shelf->nr_groups == plan->layout.nr_groups && shelf->optional_groups == okv_plan_state_groups(plan);
}

void okv_shelf_free(struct okv_shelf *shelf)
{
	free(shelf->owned);
	free(shelf->held);
	free(shelf->nr_kept[0]);
	free(shelf->nr_kept[1]);
	free(shelf);
}

static void okv_shelf_add(struct omnikv_manager *manager, struct okv_shelf *shelf)
{
	shelf->manager = manager;
	shelf->next = manager->shelves;
	manager->shelves = shelf;
}

static void okv_space_sweep(struct omnikv_manager *manager);

/* Has it a namespace that is open, or any at all? */
static bool okv_shelf_is_used(const struct okv_shelf *shelf, bool is_any)
{
	for (uint32_t id = 0; id < shelf->manager->nr_ids; id++) {
		const struct omnikv_space *space = shelf->manager->space_of_id[id];

		if (space && space->shelf == shelf && (is_any || space->nr_opens))
			return true;
	}
	return false;
}

/* A catalog has so many shelves: one of which nothing is open ends, the emptiest first. false: there is none. */
static bool okv_shelf_reclaim(struct okv_visit *visit)
{
	struct omnikv_manager *manager = visit->manager;
	uint64_t tried = 0;

	okv_space_sweep(manager);
	for (;;) {
		struct okv_shelf **link, *shelf, *least = NULL;

		for (shelf = manager->shelves; shelf; shelf = shelf->next)
			if (!(tried >> shelf->slot & 1) && !okv_shelf_is_used(shelf, false) &&
			    (!least || shelf->nr_granules < least->nr_granules))
				least = shelf;
		if (!least)
			return false;
		tried |= 1ull << least->slot;
		/* What another process holds of it may be in use for long. */
		if (!okv_shelf_empty(visit, least))
			continue;
		okv_space_sweep(manager);
		if (okv_shelf_is_used(least, true))
			continue;
		for (link = &manager->shelves; *link != least; link = &(*link)->next)
			;
		*link = least->next;
		okv_pool_catalog_end_shelf(manager, least);
		okv_shelf_free(least);
		return true;
	}
}

/* The shelf for blocks of @plan, with an index that has room for them. */
static int okv_shelf_get(struct okv_visit *visit, const struct omnikv_plan *plan, struct okv_shelf **out)
{
	struct omnikv_manager *manager = visit->manager;
	struct okv_index_config config = {
		.nr_groups = plan->layout.nr_groups,
		.optional_groups = okv_plan_state_groups(plan),
		.block_tokens = OKV_BLOCK_FULL,
		.hash_bits = manager->hash_bits,
		.is_held = okv_victim_is_held,
		.changed = okv_block_changed,
		.opaque = manager,
	};
	struct okv_shelf *shelf;
	int ret;

	for (shelf = manager->shelves; shelf; shelf = shelf->next) {
		if (!okv_shelf_is_for(shelf, plan))
			continue;
		*out = shelf;
		return manager->catalog ? okv_pool_catalog_shelf(manager, shelf, plan, &config) : 0;
	}

	shelf = okv_shelf_new(plan);
	if (!shelf)
		return -ENOMEM;
	if (getrandom(config.seed, sizeof(config.seed), 0) != (ssize_t)sizeof(config.seed))
		ret = -EIO;
	else
		ret = manager->catalog ? okv_pool_catalog_shelf(manager, shelf, plan, &config) :
					 okv_index_create(&config, &shelf->index);
	while ((ret == -ENOSPC || ret == -ENOMEM) && manager->catalog && okv_shelf_reclaim(visit))
		ret = okv_pool_catalog_shelf(manager, shelf, plan, &config);
	if (ret) {
		free(shelf);
		return ret;
	}
	okv_shelf_add(manager, shelf);
	*out = shelf;
	return 0;
}

static bool okv_plan_is_equal(const struct omnikv_plan *a, const struct omnikv_plan *b)
{
	return a->block_tokens == b->block_tokens && a->granule_bytes == b->granule_bytes && a->scale == b->scale &&
	       omnikv_layout_diff(&a->layout, &b->layout, NULL) == -ENOENT;
}

static struct okv_space_plan *okv_space_plan_get(struct omnikv_manager *manager, const struct omnikv_plan *plan)
{
	struct okv_space_plan *sp;

	for (sp = manager->plans; sp; sp = sp->next) {
		if (okv_plan_is_equal(&sp->plan, plan)) {
			sp->nr_spaces++;
			return sp;
		}
	}
	sp = malloc(sizeof(*sp));
	if (!sp)
		return NULL;
	sp->plan = *plan;
	sp->nr_spaces = 1;
	sp->catalog_off = 0;
	sp->next = manager->plans;
	manager->plans = sp;
	return sp;
}

static void okv_space_plan_put(struct omnikv_manager *manager, struct okv_space_plan *sp)
{
	struct okv_space_plan **link;

	if (--sp->nr_spaces)
		return;
	for (link = &manager->plans; *link != sp; link = &(*link)->next)
		;
	*link = sp->next;
	okv_pool_catalog_del_plan(manager, sp);
	free(sp);
}

static void okv_space_free(struct omnikv_manager *manager, struct omnikv_space *space)
{
	struct omnikv_space **link = &manager->spaces[okv_space_bucket(space->identity)];

	/* Nobody is told of changes to it from here on. */
	okv_tier_tell_space(space, false);
	while (*link != space)
		link = &(*link)->next;
	*link = space->next;
	okv_import_space_end(space);
	okv_pool_catalog_del(manager, space);
	manager->space_of_id[space->id] = NULL;
	manager->nr_spaces--;
	okv_space_plan_put(manager, space->plan);
	free(space);
}

void okv_space_unload_shelf(struct omnikv_manager *manager, struct okv_shelf *shelf)
{
	struct okv_shelf **link = &manager->shelves;

	for (uint32_t id = 0; id < manager->nr_ids; id++)
		if (manager->space_of_id[id] && manager->space_of_id[id]->shelf == shelf)
			okv_space_free(manager, manager->space_of_id[id]);
	while (*link != shelf)
		link = &(*link)->next;
	*link = shelf->next;
	okv_shelf_free(shelf);
}

/* How many blocks each namespace has, by id: [nr_ids]. */
static void okv_space_count(const struct omnikv_manager *manager, uint64_t *nr_blocks)
{
	struct okv_index_info info;

	memset(nr_blocks, 0, manager->nr_ids * sizeof(*nr_blocks));
	for (struct okv_shelf *shelf = manager->shelves; shelf; shelf = shelf->next)
		for (uint32_t id = 0; id < okv_index_nr_ids(shelf->index); id++)
			if (!okv_index_get(shelf->index, id, &info) && info.ns < manager->nr_ids)
				nr_blocks[info.ns]++;
}

/* Forget spaces that nothing has open and that hold nothing. */
static void okv_space_sweep(struct omnikv_manager *manager)
{
	uint64_t *nr_blocks = malloc((manager->nr_ids + 1) * sizeof(*nr_blocks));

	if (!nr_blocks)
		return;
	okv_space_count(manager, nr_blocks);
	for (uint32_t id = 0; id < manager->nr_ids; id++) {
		struct omnikv_space *space = manager->space_of_id[id];

		if (space && !space->nr_opens && !nr_blocks[id])
			okv_space_free(manager, space);
	}
	free(nr_blocks);
	manager->sweep_at = 2 * manager->nr_spaces + OKV_SPACE_SWEEP_MIN;
}

/* Room for the number @id. */
static int okv_space_ids_grow(struct omnikv_manager *manager, uint32_t id)
{
	uint32_t nr_ids = manager->nr_ids ? manager->nr_ids : 16;
	struct omnikv_space **space_of_id;

	if (id < manager->nr_ids)
		return 0;
	while (nr_ids <= id)
		nr_ids *= 2;
	if (nr_ids > OKV_INDEX_NS_MAX)
		return -ENOSPC;
	space_of_id = realloc(manager->space_of_id, nr_ids * sizeof(*space_of_id));
	if (!space_of_id)
		return -ENOMEM;
	memset(space_of_id + manager->nr_ids, 0, (nr_ids - manager->nr_ids) * sizeof(*space_of_id));
	manager->space_of_id = space_of_id;
	manager->nr_ids = nr_ids;
	return 0;
}

static int okv_space_id(struct omnikv_manager *manager, uint32_t *id)
{
	uint32_t i;

	for (i = 0; i < manager->nr_ids; i++)
		if (!manager->space_of_id[i])
			break;
	*id = i;
	return okv_space_ids_grow(manager, i);
}

/* @space has its number, identity, shelf and plan: it can be found from now on. */
static void okv_space_list(struct omnikv_manager *manager, struct omnikv_space *space)
{
	const struct omnikv_plan *plan = &space->plan->plan;
	struct omnikv_space **bucket = &manager->spaces[okv_space_bucket(space->identity)];

	space->manager = manager;
	space->needed_state = okv_plan_state_groups(plan);
	if (space->shelf->block_granules < okv_plan_granules(plan, true))
		space->shelf->block_granules = okv_plan_granules(plan, true);
	space->next = *bucket;
	*bucket = space;
	manager->space_of_id[space->id] = space;
	manager->nr_spaces++;
	okv_tier_tell_space(space, true);
}

int okv_space_load(struct omnikv_manager *manager, const struct okv_space_record *record)
{
	struct omnikv_space *space;
	struct okv_shelf *shelf;
	int ret;

	for (space = manager->spaces[okv_space_bucket(record->identity)]; space; space = space->next)
		if (!memcmp(space->identity, record->identity, sizeof(space->identity)))
			return -EBADMSG;
	for (shelf = manager->shelves; shelf; shelf = shelf->next) {
		bool is_slot = shelf->slot == record->slot, is_shape = okv_shelf_is_for(shelf, record->plan);

		if (is_slot != is_shape)
			return -EBADMSG;
		if (is_slot)
			break;
	}
	ret = okv_space_ids_grow(manager, record->id);
	if (ret)
		return ret;
	space = calloc(1, sizeof(*space));
	if (!space)
		return -ENOMEM;
	ret = -ENOMEM;
	space->plan = okv_space_plan_get(manager, record->plan);
	if (!space->plan)
		goto err_free;
	if (!shelf) {
		shelf = okv_shelf_new(record->plan);
		if (!shelf)
			goto err_plan;
		shelf->slot = record->slot;
		okv_shelf_add(manager, shelf);
	}
	ret = -EBADMSG;
	if (space->plan->catalog_off && space->plan->catalog_off != record->catalog_off)
		goto err_plan;
	space->plan->catalog_off = record->catalog_off;
	space->id = record->id;
	space->shelf = shelf;
	space->match_flags = record->match_flags;
	memcpy(space->identity, record->identity, sizeof(space->identity));
	memcpy(space->kin, record->kin, sizeof(space->kin));
	okv_space_list(manager, space);
	return 0;

err_plan:
	okv_space_plan_put(manager, space->plan);
err_free:
	free(space);
	return ret;
}

/* Does a namespace that differs in its layout alone hold blocks? Then say how it differs. */
static void okv_space_notice(struct omnikv_manager *manager, const struct omnikv_space *space,
			     struct omnikv_error *notice)
{
	const struct omnikv_plan *plan = &space->plan->plan;
	struct omnikv_error diff;
	uint64_t *nr_blocks;
	bool has_kin = false;

	for (uint32_t id = 0; id < manager->nr_ids; id++) {
		const struct omnikv_space *other = manager->space_of_id[id];

		has_kin |= other && other != space && !memcmp(other->kin, space->kin, sizeof(space->kin));
	}
	nr_blocks = has_kin ? malloc(manager->nr_ids * sizeof(*nr_blocks)) : NULL;
	if (!nr_blocks)
		return;
	okv_space_count(manager, nr_blocks);
	for (uint32_t id = 0; id < manager->nr_ids; id++) {
		const struct omnikv_space *other = manager->space_of_id[id];
		const struct omnikv_plan *theirs;

		if (!other || other == space || !nr_blocks[id] || memcmp(other->kin, space->kin, sizeof(space->kin)))
			continue;
		theirs = &other->plan->plan;
		if (omnikv_layout_diff(&plan->layout, &theirs->layout, &diff))
			snprintf(diff.text, sizeof(diff.text), "block_tokens: %u and %u", plan->block_tokens,
				 theirs->block_tokens);
		okv_error_set(notice, 0,
			      "%llu cached blocks will not hit: same namespace but for its layout; first difference: %.160s",
			      (unsigned long long)nr_blocks[id], diff.text);
		break;
	}
	free(nr_blocks);
}

/* Everything about @ns and @plan that can be wrong, without a side effect. */
static int okv_space_check(const struct omnikv_manager *manager, const struct omnikv_namespace *ns,
			   const struct omnikv_plan *plan, struct omnikv_error *notice)
{
	uint64_t nr_granules = manager->nr_granules - manager->staging_granules;
	struct omnikv_error diff;
	int ret;

	if (plan->granule_bytes != manager->granule_bytes)
		return okv_error_set(notice, -EINVAL,
				     "granule: the plan has %u bytes, the pool %llu; plan with the pool's granule",
				     plan->granule_bytes, (unsigned long long)manager->granule_bytes);
	if (!plan->block_tokens || plan->block_tokens >= OKV_BLOCK_FULL)
		return okv_error_set(notice, -EINVAL, "block_tokens: %u; 1 to %u are possible", plan->block_tokens,
				     OKV_BLOCK_FULL - 1);
	if (ns->block_tokens != plan->block_tokens)
		return okv_error_set(notice, -EINVAL, "block_tokens: %u in the namespace, %u in the plan",
				     ns->block_tokens, plan->block_tokens);
	if (!ns->layout)
		return okv_error_set(notice, -EINVAL, "layout: the namespace has none");
	ret = omnikv_layout_diff(ns->layout, &plan->layout, &diff);
	if (ret != -ENOENT)
		return okv_error_set(notice, -EINVAL, "the layouts of namespace and plan differ: %.180s",
				     ret ? "one of them is not valid" : diff.text);
	if (okv_plan_granules(plan, true) > nr_granules)
		return okv_error_set(notice, -ENOSPC,
				     "pool: %llu bytes are less than one block of this layout, which takes %llu",
				     (unsigned long long)(nr_granules * manager->granule_bytes),
				     (unsigned long long)(okv_plan_granules(plan, true) * manager->granule_bytes));
	for (uint32_t g = 0; g < plan->layout.nr_groups; g++) {
		if (plan->layout.groups[g].reuse == OMNIKV_REUSE_NONE)
			return okv_error_set(notice, -EOPNOTSUPP,
					     "groups[%u].reuse: none; what is never used again has no place in a pool",
					     g);
		if (!plan->groups[g].nr_granules)
			return okv_error_set(notice, -EINVAL, "groups[%u]: stores nothing", g);
	}
	return 0;
}

struct omnikv_space *okv_space_find_locked(const struct omnikv_manager *manager, const uint8_t identity[32])
{
	struct omnikv_space *space = manager->spaces[okv_space_bucket(identity)];

	while (space && memcmp(space->identity, identity, sizeof(space->identity)))
		space = space->next;
	return space;
}

int omnikv_space_open(struct omnikv_manager *manager, const struct omnikv_namespace *ns,
		      const struct omnikv_plan *plan, struct omnikv_space **space, struct omnikv_error *notice)
{
	struct omnikv_namespace full;
	struct omnikv_space *new, *old;
	struct okv_visit visit;
	int ret;

	if (notice)
		notice->text[0] = '\0';
	if (!manager || !ns || !plan || !space)
		return -EINVAL;
	ret = okv_option_copy(&full, sizeof(full), ns);
	if (ret)
		return okv_error_set(notice, ret, "struct omnikv_namespace is of another size");
	ret = okv_space_check(manager, &full, plan, notice);
	if (ret)
		return ret;

	new = calloc(1, sizeof(*new));
	if (!new)
		return -ENOMEM;
	ret = omnikv_namespace_identity(&full, new->identity);
	if (!ret)
		ret = okv_space_kin(&full, new->kin);
	if (ret) {
		free(new);
		return okv_error_set(notice, ret, "the namespace's fields are not valid");
	}

	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	old = okv_space_find_locked(manager, new->identity);
	/* One that is empty by now has no say. */
	if (old && !old->nr_opens && !okv_plan_is_equal(&old->plan->plan, plan)) {
		okv_space_sweep(manager);
		old = okv_space_find_locked(manager, new->identity);
	}
	if (old) {
		free(new);
		if (!okv_plan_is_equal(&old->plan->plan, plan)) {
			ret = okv_error_set(notice, -EINVAL, "scale: blocks of this namespace are %s with scale %u, the plan has %u; "
					    "take scale %u or another tenant, or drop them (omnikv_manager_reset(), or remove the "
					    "pool's file)", old->nr_opens ? "in use" : "cached", old->plan->plan.scale,
					    plan->scale, old->plan->plan.scale);
			goto out;
		}
		okv_space_get_locked(old);
		okv_space_notice(manager, old, notice);
		*space = old;
		goto out;
	}

	if (manager->nr_spaces >= manager->sweep_at)
		okv_space_sweep(manager);
	ret = okv_space_id(manager, &new->id);
	if (ret)
		goto err_free;
	ret = okv_shelf_get(&visit, plan, &new->shelf);
	if (ret == -ENOSPC) {
		okv_error_set(notice, ret, "pool: namespaces of %u kinds of layout are open; close those of one", OKV_CATALOG_SHELVES_MAX);
		goto err_free;
	}
	if (ret) {
		okv_error_set(notice, ret, "pool: no room for an index of this layout's blocks; release leases, or take a larger pool");
		goto err_free;
	}
	ret = -ENOMEM;
	new->plan = okv_space_plan_get(manager, plan);
	if (!new->plan)
		goto err_free;
	if (full.hash_algorithm != OMNIKV_HASH_OPAQUE)
		new->match_flags = OKV_INDEX_MATCH_F_CHAINED;
	new->needed_state = okv_plan_state_groups(plan);
	ret = okv_pool_catalog_add(manager, new);
	if (ret)
		goto err_plan;
	new->nr_opens = 1;
	okv_space_list(manager, new);
	okv_space_notice(manager, new, notice);
	*space = new;
	ret = 0;
	goto out;

err_plan:
	okv_space_plan_put(manager, new->plan);
err_free:
	free(new);
out:
	okv_visit_leave(&visit);
	if (!ret && okv_is_attached(manager)) {
		ret = okv_import_space(*space, &full, notice);
		if (ret) {
			omnikv_space_close(*space);
			*space = NULL;
		}
	}
	return ret;
}

void omnikv_space_close(struct omnikv_space *space)
{
	struct okv_visit visit;

	if (!space)
		return;
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	okv_space_put_locked(space);
	okv_visit_leave(&visit);
}

const struct omnikv_plan *omnikv_space_plan(const struct omnikv_space *space)
{
	return &space->plan->plan;
}

struct omnikv_manager *omnikv_space_manager(const struct omnikv_space *space)
{
	return space->manager;
}

void okv_space_fini(struct omnikv_manager *manager)
{
	for (uint32_t id = 0; id < manager->nr_ids; id++)
		if (manager->space_of_id[id])
			okv_space_free(manager, manager->space_of_id[id]);
	free(manager->space_of_id);
	manager->space_of_id = NULL;
	manager->nr_ids = 0;
}

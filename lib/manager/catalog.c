// SPDX-License-Identifier: MIT
/*
 * The catalog in META extents; catalog.h has the contract, catalog_shared.h the layout.
 *
 * Every change is: fill what nobody can reach yet, then one store that makes it reachable; and the
 * other way round. A killed process leaves its stores in program order, so a manager that takes over
 * finds each thing whole or not at all. What it finds is checked all the same, since others can write in
 * the pool: what fails is dropped and counted.
 */
#include "manager/catalog.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/types.h"
#include "crc32c.h"
#include "error.h"
#include "failpoint.h"
#include "manager/catalog_shared.h"
#include "manager/index_shared.h"
#include "manager/meta.h"
#include "manager/space.h"
#include "manager/tokens.h"
#include "manager/watch.h"

#define LIST_BATCH	4096u
#define SPACES_MIN	8u

struct okv_pool_catalog {
	struct omnikv_manager		*manager;
	struct okv_meta			*meta;
	struct okv_index_allocator	mem;
	struct okv_catalog_root		*root;		/* NULL: not yet */
	struct okv_catalog_spaces	*spaces;	/* NULL: none yet */
	uint32_t			nr_spaces;	/* that @spaces has room for */
};

/* ---- memory --------------------------------------------------------------------------------- */

static void *index_alloc(void *opaque, size_t bytes)
{
	return okv_meta_alloc(opaque, bytes);
}

static void index_free(void *opaque, void *mem, size_t bytes)
{
	okv_meta_free(opaque, mem, bytes);
}

static void *index_claim(void *opaque, uint64_t off, size_t bytes)
{
	return okv_meta_claim(opaque, off, bytes);
}

static const void *index_peek(void *opaque, uint64_t off, size_t bytes)
{
	return okv_meta_peek(opaque, off, bytes);
}

static uint64_t make_room(void *opaque, uint64_t nr_granules)
{
	return okv_manager_evict(opaque, nr_granules);
}

static uint64_t off_of(const struct okv_pool_catalog *cat, const void *mem)
{
	return (uint64_t)((const unsigned char *)mem - okv_meta_base(cat->meta));
}

static size_t spaces_bytes(uint32_t nr)
{
	return sizeof(struct okv_catalog_spaces) + nr * sizeof(struct okv_catalog_space);
}

static size_t plan_bytes(const struct okv_catalog_plan *plan)
{
	return sizeof(*plan) + plan->nr_bytes;
}

static uint32_t root_crc(const struct okv_catalog_root *root)
{
	return okv_crc32c(root, offsetof(struct okv_catalog_root, crc));
}

static uint32_t plan_crc(const struct okv_catalog_plan *plan)
{
	return okv_crc32c(&plan->nr_bytes, plan_bytes(plan) - offsetof(struct okv_catalog_plan, nr_bytes));
}

/* ---- growing -------------------------------------------------------------------------------- */

static int root_make(struct okv_pool_catalog *cat)
{
	const struct omnikv_manager *manager = cat->manager;
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct okv_catalog_root *root;
	int ret;

	if (cat->root)
		return 0;
	ret = omnikv_pool_info(manager->pool, &info);
	if (ret)
		return ret;
	root = okv_meta_alloc(cat->meta, sizeof(*root));
	if (!root)
		return -ENOMEM;
	root->version = OKV_CATALOG_VERSION;
	root->granule_bytes = (uint32_t)manager->granule_bytes;
	root->granule = off_of(cat, root) / manager->granule_bytes;
	root->nr_granules = manager->nr_granules;
	memcpy(root->instance, info.instance, sizeof(root->instance));
	root->magic = OKV_CATALOG_MAGIC;
	root->crc = root_crc(root);
	root->magic = 0;
	(void)OKV_FAILPOINT("catalog.root_filled");
	OKV_ORDERED_STORE(&root->magic, OKV_CATALOG_MAGIC);
	(void)OKV_FAILPOINT("catalog.root_there");
	cat->root = root;
	return 0;
}

/* The list of namespaces with room for @nr. */
static int spaces_grow(struct okv_pool_catalog *cat, uint32_t nr)
{
	struct okv_catalog_spaces *spaces, *old = cat->spaces;
	uint32_t nr_old = cat->nr_spaces, more = old ? nr_old : SPACES_MIN;

	if (old && nr <= nr_old)
		return 0;
	while (more < nr)
		more *= 2;
	spaces = okv_meta_alloc(cat->meta, spaces_bytes(more));
	if (!spaces)
		return -ENOMEM;
	if (old)
		memcpy(spaces->spaces, old->spaces, nr_old * sizeof(old->spaces[0]));
	spaces->nr = more;
	(void)OKV_FAILPOINT("catalog.spaces_filled");
	OKV_ORDERED_STORE(&cat->root->spaces_off, off_of(cat, spaces));
	(void)OKV_FAILPOINT("catalog.spaces_there");
	cat->spaces = spaces;
	cat->nr_spaces = more;
	if (old)
		okv_meta_free(cat->meta, old, spaces_bytes(nr_old));
	return 0;
}

static int plan_add(struct okv_pool_catalog *cat, struct okv_space_plan *sp)
{
	struct okv_catalog_plan *plan;
	size_t nr_bytes;
	char *text;
	int ret;

	if (sp->catalog_off)
		return 0;
	ret = omnikv_layout_format(&sp->plan.layout, &text);
	if (ret)
		return ret;
	nr_bytes = strlen(text);
	plan = okv_meta_alloc(cat->meta, sizeof(*plan) + nr_bytes);
	if (!plan) {
		free(text);
		return -ENOMEM;
	}
	plan->nr_bytes = (uint32_t)nr_bytes;
	plan->block_tokens = sp->plan.block_tokens;
	plan->scale = sp->plan.scale;
	memcpy(plan->text, text, nr_bytes);
	plan->crc = plan_crc(plan);
	free(text);
	sp->catalog_off = off_of(cat, plan);
	return 0;
}

void okv_pool_catalog_del_plan(struct omnikv_manager *manager, struct okv_space_plan *sp)
{
	struct okv_catalog_plan *plan;

	if (!manager->catalog || !sp->catalog_off)
		return;
	plan = (struct okv_catalog_plan *)(okv_meta_base(manager->catalog->meta) + sp->catalog_off);
	okv_meta_free(manager->catalog->meta, plan, plan_bytes(plan));
	sp->catalog_off = 0;
}

int okv_pool_catalog_add(struct omnikv_manager *manager, const struct omnikv_space *space)
{
	struct okv_pool_catalog *cat = manager->catalog;
	struct okv_catalog_space *rec;
	int ret;

	if (!cat)
		return 0;
	ret = root_make(cat);
	if (!ret)
		ret = spaces_grow(cat, space->id + 1);
	if (!ret)
		ret = plan_add(cat, space->plan);
	if (ret)
		return ret;
	rec = &cat->spaces->spaces[space->id];
	*rec = (struct okv_catalog_space){
		.plan_off = space->plan->catalog_off,
		.shelf = space->shelf->slot,
		.block_tokens = space->plan->plan.block_tokens,
		.needed_state = space->needed_state,
		.match_flags = space->match_flags,
		.nr_groups = space->shelf->nr_groups,
	};
	memcpy(rec->identity, space->identity, sizeof(rec->identity));
	memcpy(rec->kin, space->kin, sizeof(rec->kin));
	rec->crc = okv_crc32c(rec, offsetof(struct okv_catalog_space, crc));
	(void)OKV_FAILPOINT("catalog.space_filled");
	OKV_ORDERED_STORE(&rec->is_used, 1);
	(void)OKV_FAILPOINT("catalog.space_there");
	return 0;
}

void okv_pool_catalog_del(struct omnikv_manager *manager, const struct omnikv_space *space)
{
	struct okv_pool_catalog *cat = manager->catalog;

	if (!cat || !cat->spaces || space->id >= cat->nr_spaces)
		return;
	if (manager->tokens)
		okv_tokens_end_space(manager->tokens, space);
	OKV_ORDERED_STORE(&cat->spaces->spaces[space->id].is_used, 0);
	(void)OKV_FAILPOINT("catalog.space_gone");
}

/* Most blocks of this plan that the pool can ever hold, each with its entry. */
static uint64_t room_for(const struct omnikv_manager *manager, const struct omnikv_plan *plan)
{
	uint64_t nr = okv_plan_granules(plan, false);
	uint64_t entry_bytes = sizeof(struct okv_entry) + sizeof(struct okv_entry_record) +
			       plan->layout.nr_groups * sizeof(struct okv_group);

	/* Layouts of state alone. */
	if (!nr)
		nr = 1;
	return manager->nr_granules * manager->granule_bytes / (nr * manager->granule_bytes + entry_bytes) + 1;
}

/* Room for @nr blocks, or for as many as the pool's memory can be had for. */
static int shelf_reserve(struct okv_shelf *shelf, uint64_t nr)
{
	int ret;

	do {
		ret = okv_index_reserve(shelf->index, nr);
		nr /= 2;
	} while (ret == -ENOMEM && nr > okv_index_room(shelf->index));
	return okv_index_room(shelf->index) ? 0 : ret;
}

int okv_pool_catalog_shelf(struct omnikv_manager *manager, struct okv_shelf *shelf, const struct omnikv_plan *plan,
		      const struct okv_index_config *config)
{
	struct okv_index_config full = *config;
	struct okv_pool_catalog *cat = manager->catalog;
	uint32_t slot;
	int ret;

	if (shelf->index)
		return shelf_reserve(shelf, room_for(manager, plan));
	ret = root_make(cat);
	if (ret)
		return ret;
	for (slot = 0; slot < OKV_CATALOG_SHELVES_MAX; slot++)
		if (!cat->root->shelves[slot])
			break;
	if (slot == OKV_CATALOG_SHELVES_MAX)
		return -ENOSPC;
	full.allocator = &cat->mem;
	ret = okv_index_create(&full, &shelf->index);
	if (ret)
		return ret;
	ret = shelf_reserve(shelf, room_for(manager, plan));
	if (ret) {
		okv_index_destroy(shelf->index);
		shelf->index = NULL;
		return ret;
	}
	shelf->slot = slot;
	(void)OKV_FAILPOINT("catalog.shelf_filled");
	OKV_ORDERED_STORE(&cat->root->shelves[slot], okv_index_off(shelf->index));
	(void)OKV_FAILPOINT("catalog.shelf_there");
	return 0;
}

void okv_pool_catalog_end_shelf(struct omnikv_manager *manager, struct okv_shelf *shelf)
{
	OKV_ORDERED_STORE(&manager->catalog->root->shelves[shelf->slot], 0);
	(void)OKV_FAILPOINT("catalog.shelf_ended");
	okv_index_destroy(shelf->index);
	shelf->index = NULL;
}

/* ---- recovery ------------------------------------------------------------------------------- */

/* What is SEALED in the pool, in order of place, and which of it a block has claimed. */
struct sealed {
	struct omnikv_extent	*extents;
	uint64_t		*claimed;
	uint64_t		nr;
	uint64_t		max;
};

/* What okv_index_recover() asks, for one shelf. */
struct keeper {
	struct omnikv_manager	*manager;
	struct okv_shelf	*shelf;
	struct sealed		*sealed;
};

static int sealed_list(struct omnikv_client *client, struct sealed *sealed)
{
	uint64_t from = 0;

	while (from != UINT64_MAX) {
		int64_t nr;

		if (sealed->nr + LIST_BATCH > sealed->max) {
			uint64_t max = 2 * sealed->max + LIST_BATCH;
			struct omnikv_extent *extents = realloc(sealed->extents, max * sizeof(*extents));

			if (!extents)
				return -ENOMEM;
			sealed->extents = extents;
			sealed->max = max;
		}
		nr = omnikv_extent_list(client, 1u << OMNIKV_EXTENT_SEALED, &from, sealed->extents + sealed->nr, LIST_BATCH);
		if (nr < 0)
			return (int)nr;
		sealed->nr += (uint64_t)nr;
	}
	sealed->claimed = calloc(sealed->nr / 64 + 1, sizeof(*sealed->claimed));
	return sealed->claimed ? 0 : -ENOMEM;
}

/* Its place in the list, or UINT64_MAX: nothing of this very name is SEALED. */
static uint64_t sealed_find(const struct sealed *sealed, const struct omnikv_extent *extent)
{
	uint64_t lo = 0, hi = sealed->nr;

	while (lo < hi) {
		uint64_t mid = lo + (hi - lo) / 2;

		if (sealed->extents[mid].granule < extent->granule)
			lo = mid + 1;
		else
			hi = mid;
	}
	if (lo == sealed->nr || sealed->extents[lo].granule != extent->granule ||
	    sealed->extents[lo].generation != extent->generation || sealed->extents[lo].nr_granules != extent->nr_granules ||
	    (sealed->claimed[lo / 64] >> (lo % 64) & 1))
		return UINT64_MAX;
	return lo;
}

static bool keep_block(void *opaque, uint32_t ns, const struct omnikv_extent *extents)
{
	struct keeper *keeper = opaque;
	const struct omnikv_manager *manager = keeper->manager;
	struct okv_shelf *shelf = keeper->shelf;
	const struct omnikv_space *space = ns < manager->nr_ids ? manager->space_of_id[ns] : NULL;
	uint64_t places[OMNIKV_GROUPS_MAX], nr_granules = 0;
	uint32_t g;

	if (!space || space->shelf != shelf)
		return false;
	for (g = 0; g < shelf->nr_groups; g++) {
		places[g] = UINT64_MAX;
		if (!extents[g].nr_granules)
			continue;
		if (extents[g].nr_granules != space->plan->plan.groups[g].nr_granules)
			return false;
		places[g] = sealed_find(keeper->sealed, &extents[g]);
		if (places[g] == UINT64_MAX)
			return false;
		for (uint32_t k = 0; k < g; k++)
			if (places[k] == places[g])
				return false;
		nr_granules += extents[g].nr_granules;
	}
	for (g = 0; g < shelf->nr_groups; g++)
		if (places[g] != UINT64_MAX)
			keeper->sealed->claimed[places[g] / 64] |= 1ull << (places[g] % 64);
	shelf->nr_granules += nr_granules;
	return true;
}

/* The layout of a namespace and how it is cut, made anew from its text. */
static int plan_load(const struct okv_pool_catalog *cat, uint64_t off, struct omnikv_plan *plan)
{
	struct omnikv_plan_config config = { .size = sizeof(config), .granule_bytes = cat->manager->granule_bytes };
	const struct okv_catalog_plan *shared = okv_meta_peek(cat->meta, off, sizeof(*shared));
	uint32_t nr_bytes = shared ? __atomic_load_n(&shared->nr_bytes, __ATOMIC_RELAXED) : 0;
	struct okv_catalog_plan *copy;
	struct omnikv_layout *layout;
	int ret = -EBADMSG;

	if (!shared || nr_bytes > OMNIKV_LAYOUT_JSON_MAX || !okv_meta_peek(cat->meta, off, sizeof(*shared) + nr_bytes))
		return -EBADMSG;
	/* What is checked is what is used, also where others may write to it. */
	layout = malloc(sizeof(*layout));
	copy = malloc(sizeof(*copy) + nr_bytes);
	if (!layout || !copy) {
		free(layout);
		free(copy);
		return -ENOMEM;
	}
	memcpy(copy, shared, sizeof(*copy) + nr_bytes);
	copy->nr_bytes = nr_bytes;
	if (copy->crc == plan_crc(copy)) {
		config.block_tokens = copy->block_tokens;
		config.scale = copy->scale;
		ret = omnikv_layout_parse(copy->text, nr_bytes, layout, NULL);
		if (!ret)
			ret = omnikv_plan_make(layout, &config, plan, NULL);
	}
	free(layout);
	free(copy);
	return !ret || ret == -ENOMEM ? ret : -EBADMSG;
}

/* A namespace is there again, closed. -EBADMSG: there is something wrong with it. */
static int space_load(struct okv_pool_catalog *cat, uint32_t id)
{
	const struct okv_catalog_space copy = cat->spaces->spaces[id], *rec = &copy;
	struct omnikv_manager *manager = cat->manager;
	struct okv_space_record load = { .id = id, .match_flags = rec->match_flags, .catalog_off = rec->plan_off };
	struct omnikv_plan *plan;
	int ret;

	if (rec->crc != okv_crc32c(rec, offsetof(struct okv_catalog_space, crc)) ||
	    rec->shelf >= OKV_CATALOG_SHELVES_MAX || (rec->match_flags & ~OKV_INDEX_MATCH_F_CHAINED))
		return -EBADMSG;
	plan = malloc(sizeof(*plan));
	if (!plan)
		return -ENOMEM;
	ret = plan_load(cat, rec->plan_off, plan);
	if (!ret) {
		memcpy(load.identity, rec->identity, sizeof(load.identity));
		memcpy(load.kin, rec->kin, sizeof(load.kin));
		load.slot = rec->shelf;
		load.plan = plan;
		ret = okv_space_load(manager, &load);
	}
	free(plan);
	return ret;
}

/* The memory of a plan that some namespace uses. */
static int plans_claim(struct okv_pool_catalog *cat)
{
	for (struct okv_space_plan *sp = cat->manager->plans; sp; sp = sp->next) {
		const struct okv_catalog_plan *plan = okv_meta_peek(cat->meta, sp->catalog_off, sizeof(*plan));

		if (!plan || !okv_meta_claim(cat->meta, sp->catalog_off, plan_bytes(plan)))
			return -EBADMSG;
	}
	return 0;
}

static int spaces_load(struct okv_pool_catalog *cat)
{
	uint64_t off = cat->root->spaces_off;
	const struct okv_catalog_spaces *spaces;
	uint32_t nr;
	int ret = 0;

	if (!off)
		return 0;
	spaces = okv_meta_peek(cat->meta, off, sizeof(*spaces));
	nr = spaces ? __atomic_load_n(&spaces->nr, __ATOMIC_RELAXED) : 0;
	if (!nr || nr > OKV_INDEX_NS_MAX)
		return -EBADMSG;
	cat->spaces = okv_meta_claim(cat->meta, off, spaces_bytes(nr));
	if (!cat->spaces)
		return -EBADMSG;
	cat->nr_spaces = nr;
	for (uint32_t id = 0; id < nr; id++) {
		if (!cat->spaces->spaces[id].is_used)
			continue;
		ret = space_load(cat, id);
		if (ret == -EBADMSG)
			OKV_ORDERED_STORE(&cat->spaces->spaces[id].is_used, 0);
		else if (ret)
			return ret;
	}
	return plans_claim(cat);
}

/* -EBADMSG: its index cannot be used; nothing of the pool is claimed for it then. */
static int shelf_load(struct okv_pool_catalog *cat, struct okv_shelf *shelf, struct sealed *sealed)
{
	struct keeper keeper = { .manager = cat->manager, .shelf = shelf, .sealed = sealed };
	struct okv_index_recovery recovery = { .keep = keep_block, .opaque = &keeper };
	struct okv_index_config config = {
		.nr_groups = shelf->nr_groups,
		.optional_groups = shelf->optional_groups,
		.block_tokens = OKV_BLOCK_FULL,
		.allocator = &cat->mem,
		.is_held = okv_victim_is_held,
		.changed = okv_block_changed,
		.opaque = cat->manager,
	};
	int ret;

	ret = okv_index_recover(&config, cat->root->shelves[shelf->slot], &recovery, &shelf->index);
	if (ret)
		return ret;
	cat->manager->stats.blocks_recovered += recovery.nr_kept;
	cat->manager->stats.blocks_dropped += recovery.nr_dropped;
	return 0;
}

/* Everything that the root leads to. -EBADMSG: nothing of it can be used. @why: set where blocks are lost without count. */
static int catalog_load(struct okv_pool_catalog *cat, struct sealed *sealed, const char **why)
{
	struct omnikv_manager *manager = cat->manager;
	struct okv_shelf *shelf, *next;
	int ret;

	ret = spaces_load(cat);
	if (ret == -EBADMSG)
		*why = "the list of its namespaces is damaged";
	if (ret)
		return ret;
	for (shelf = manager->shelves; shelf; shelf = next) {
		next = shelf->next;
		ret = shelf_load(cat, shelf, sealed);
		if (ret == -EBADMSG) {
			*why = "the index is damaged";
			okv_space_unload_shelf(manager, shelf);
		} else if (ret) {
			return ret;
		}
	}
	/* An index without a namespace holds nothing. */
	for (uint32_t slot = 0; slot < OKV_CATALOG_SHELVES_MAX; slot++) {
		for (shelf = manager->shelves; shelf && shelf->slot != slot;)
			shelf = shelf->next;
		if (!shelf)
			OKV_ORDERED_STORE(&cat->root->shelves[slot], 0);
	}
	return 0;
}

/* What no block has claimed is given up. What others lease or move stays until they are done. */
static int sealed_free(struct omnikv_manager *manager, const struct sealed *sealed)
{
	struct omnikv_extent batch[256];
	uint32_t nr = 0;
	int ret = 0;

	for (uint64_t i = 0; i < sealed->nr && !ret; i++) {
		if (sealed->claimed[i / 64] >> (i % 64) & 1) {
			okv_manager_note_taken(manager, &sealed->extents[i], 1);
			continue;
		}
		batch[nr++] = sealed->extents[i];
		manager->stats.extents_freed++;
		if (nr == sizeof(batch) / sizeof(batch[0])) {
			ret = omnikv_extent_free(manager->client, batch, nr);
			nr = 0;
		}
	}
	if (nr && !ret)
		ret = omnikv_extent_free(manager->client, batch, nr);
	return ret;
}

/* The root of this pool, of this version, where it says that it lies; NULL: none. */
static struct okv_catalog_root *root_find(struct okv_pool_catalog *cat, const uint8_t instance[16])
{
	const struct omnikv_manager *manager = cat->manager;
	uint64_t off;

	for (uint32_t i = 0; (off = okv_meta_extent(cat->meta, i)) != 0; i++) {
		const struct okv_catalog_root *root = okv_meta_peek(cat->meta, off, sizeof(*root));

		if (root && root->magic == OKV_CATALOG_MAGIC && root->version == OKV_CATALOG_VERSION &&
		    root->crc == root_crc(root) && root->granule == off / manager->granule_bytes &&
		    root->granule_bytes == manager->granule_bytes && root->nr_granules <= manager->nr_granules &&
		    !memcmp(root->instance, instance, sizeof(root->instance)))
			return okv_meta_claim(cat->meta, off, sizeof(*root));
	}
	return NULL;
}

/* It leads nowhere any more. */
static void root_clear(struct okv_catalog_root *root)
{
	OKV_ORDERED_STORE(&root->spaces_off, 0);
	OKV_ORDERED_STORE(&root->tokens_off, 0);
	for (uint32_t slot = 0; slot < OKV_CATALOG_SHELVES_MAX; slot++)
		OKV_ORDERED_STORE(&root->shelves[slot], 0);
}

static void catalog_free(struct okv_pool_catalog *cat)
{
	okv_meta_close(cat->meta);
	free(cat);
}

/* A catalog over the META that is there, of which nothing is claimed yet. */
static int catalog_new(struct omnikv_manager *manager, struct okv_pool_catalog **out)
{
	struct okv_pool_catalog *cat = calloc(1, sizeof(*cat));
	int ret;

	if (!cat)
		return -ENOMEM;
	cat->manager = manager;
	ret = okv_meta_open(manager->client, manager->is_fenced, make_room, manager, &cat->meta);
	if (ret) {
		free(cat);
		return ret;
	}
	cat->mem = (struct okv_index_allocator){ .alloc = index_alloc, .free = index_free, .opaque = cat->meta,
						 .base = okv_meta_base(cat->meta), .claim = index_claim, .peek = index_peek };
	*out = cat;
	return 0;
}

/* Forget shelves and spaces of this process; META is left alone. */
static void unload(struct omnikv_manager *manager)
{
	struct okv_shelf *shelf;

	manager->catalog = NULL;
	okv_space_fini(manager);
	while ((shelf = manager->shelves)) {
		manager->shelves = shelf->next;
		okv_index_leave(shelf->index);
		okv_shelf_free(shelf);
	}
}

/* One line where something that was cached is not there any more. */
static void tell_lost(const struct omnikv_manager *manager, const char *why, struct omnikv_error *notice)
{
	const struct omnikv_manager_stats *stats = &manager->stats;

	if (why)
		okv_error_set(notice, 0, "what was cached is not usable (%s) and was given up: %llu extents freed, %llu blocks kept",
			      why, (unsigned long long)stats->extents_freed, (unsigned long long)stats->blocks_recovered);
	else if (stats->blocks_dropped)
		okv_error_set(notice, 0, "%llu cached blocks failed a check and were given up: %llu extents freed, %llu blocks kept",
			      (unsigned long long)stats->blocks_dropped, (unsigned long long)stats->extents_freed,
			      (unsigned long long)stats->blocks_recovered);
}

int okv_pool_catalog_open(struct omnikv_manager *manager, struct omnikv_error *notice)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct sealed sealed = { 0 };
	struct okv_pool_catalog *cat;
	const char *why = NULL;
	int ret;

	ret = omnikv_pool_info(manager->pool, &info);
	if (ret)
		return ret;
	ret = catalog_new(manager, &cat);
	if (ret)
		return ret;
	ret = sealed_list(manager->client, &sealed);
	if (ret)
		goto err_free;
	manager->catalog = cat;
	cat->root = root_find(cat, info.instance);
	if (!cat->root && sealed.nr)
		why = "its root is not there, damaged, or of another version";
	if (cat->root) {
		ret = catalog_load(cat, &sealed, &why);
		if (ret == -EBADMSG) {
			/* Begin as if there had been none; but the root stays where it is, and with it the epoch. */
			unload(manager);
			catalog_free(cat);
			memset(sealed.claimed, 0, (sealed.nr / 64 + 1) * sizeof(*sealed.claimed));
			manager->stats.blocks_recovered = 0;
			ret = catalog_new(manager, &cat);
			if (ret)
				goto err_list;
			manager->catalog = cat;
			cat->root = root_find(cat, info.instance);
			if (cat->root)
				root_clear(cat->root);
			okv_meta_sweep(cat->meta);
			(void)OKV_FAILPOINT("catalog.renewed");
		}
		if (ret)
			goto err_unload;
	}
	/* Those that nobody asks for any more go with the sweep. */
	ret = manager->tokens ? okv_tokens_load(manager->tokens) : 0;
	if (ret)
		goto err_unload;
	if (cat->root && !manager->tokens)
		OKV_ORDERED_STORE(&cat->root->tokens_off, 0);
	(void)OKV_FAILPOINT("catalog.loaded");
	ret = sealed_free(manager, &sealed);
	if (ret)
		goto err_unload;
	(void)OKV_FAILPOINT("catalog.sealed_freed");
	okv_meta_sweep(cat->meta);
	tell_lost(manager, why, notice);
	free(sealed.extents);
	free(sealed.claimed);
	return 0;

err_unload:
	unload(manager);
err_free:
	catalog_free(cat);
err_list:
	free(sealed.extents);
	free(sealed.claimed);
	return ret;
}

void okv_pool_catalog_close(struct omnikv_manager *manager)
{
	struct okv_pool_catalog *cat = manager->catalog;
	struct okv_index_stats stats;
	struct okv_shelf *shelf;
	uint64_t nr_blocks = 0;

	if (!cat)
		return;
	for (shelf = manager->shelves; shelf; shelf = shelf->next) {
		okv_index_stats(shelf->index, &stats);
		nr_blocks += stats.nr_entries;
	}
	if (nr_blocks || (cat->root && cat->root->epoch)) {
		unload(manager);
	} else {
		if (cat->root)
			OKV_ORDERED_STORE(&cat->root->magic, 0);
		unload(manager);
		catalog_free(cat);
		/* None of it is claimed now. */
		if (catalog_new(manager, &cat))
			return;
		okv_meta_sweep(cat->meta);
	}
	catalog_free(cat);
}

/* ---- root ----------------------------------------------------------------------------------- */

uint64_t okv_pool_catalog_root_off(const struct omnikv_manager *manager)
{
	const struct okv_pool_catalog *cat = manager->catalog;

	return cat && cat->root ? off_of(cat, cat->root) : 0;
}

uint64_t okv_pool_catalog_epoch(const struct omnikv_manager *manager)
{
	const struct okv_pool_catalog *cat = manager->catalog;

	return cat && cat->root ? cat->root->epoch : 0;
}

int okv_pool_catalog_raise_epoch(struct omnikv_manager *manager, uint64_t epoch)
{
	struct okv_pool_catalog *cat = manager->catalog;
	int ret;

	if (!cat)
		return -EOPNOTSUPP;
	ret = root_make(cat);
	if (ret)
		return ret;
	if (epoch <= cat->root->epoch)
		return -EINVAL;
	OKV_ORDERED_STORE(&cat->root->epoch, epoch);
	return 0;
}

struct okv_meta *okv_pool_catalog_meta(struct omnikv_manager *manager)
{
	return manager->catalog ? manager->catalog->meta : NULL;
}

uint64_t *okv_pool_catalog_tokens_off(struct omnikv_manager *manager)
{
	struct okv_pool_catalog *cat = manager->catalog;

	return cat && cat->root ? &cat->root->tokens_off : NULL;
}

bool okv_pool_catalog_has(const struct omnikv_manager *manager, uint64_t granule)
{
	return manager->catalog && okv_meta_has(manager->catalog->meta, granule);
}

uint64_t okv_pool_catalog_granules(const struct omnikv_manager *manager)
{
	return manager->catalog ? okv_meta_granules(manager->catalog->meta) : 0;
}

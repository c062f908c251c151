// SPDX-License-Identifier: MIT
/*
 * The memory manager: lookups, allocation with eviction, admission, counters.
 *
 * Publishing is commit.c's, namespaces space.c's, sequences sequence.c's. Any thread; one lock,
 * never held across a transfer, a checksum or a copy of KV.
 */
#include "manager/manager.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "error.h"
#include "failpoint.h"
#include "manager/catalog.h"
#include "manager/import.h"
#include "manager/retain.h"
#include "manager/space.h"
#include "manager/tier.h"
#include "manager/tokens.h"
#include "option.h"
#include "provider.h"
#include "sequence.h"
#include "share.h"

#define OKV_EVICT_BATCH		64u
/* The staging reserve where none was asked for: this part of the pool, at most so much. */
#define OKV_STAGING_SHIFT	6
#define OKV_STAGING_MAX		(UINT64_C(1) << 30)

/* ---- visits, pins, private blocks ----------------------------------------------------------- */

void okv_visit_enter(struct okv_visit *visit)
{
	if (visit->is_inside)
		return;
	pthread_mutex_lock(&visit->manager->lock);
	visit->is_inside = true;
}

void okv_visit_flush(struct okv_visit *visit)
{
	struct omnikv_manager *manager = visit->manager;

	if (!visit->nr_extents)
		return;
	/*
	 * All were allocated by this client, which manages the pool: it may give up any of them. Where the pool
	 * refuses, its records were overwritten; what they no longer name is left alone, and counted.
	 */
	if (omnikv_extent_free(manager->client, visit->extents, visit->nr_extents)) {
		for (uint32_t i = 0; i < visit->nr_extents; i++)
			if (omnikv_extent_free(manager->client, &visit->extents[i], 1))
				manager->stats.extents_lost++;
	}
	manager->nr_given += visit->nr_extents;
	visit->nr_extents = 0;
}

void okv_visit_leave(struct okv_visit *visit)
{
	if (!visit->is_inside)
		return;
	okv_visit_flush(visit);
	if (visit->manager->nr_waiting)
		pthread_cond_broadcast(&visit->manager->room);
	okv_imports_settle(visit->manager);
	pthread_mutex_unlock(&visit->manager->lock);
	visit->is_inside = false;
}

/* Grows whenever memory or a lease is given up. */
static uint64_t okv_nr_given_up(const struct omnikv_manager *manager)
{
	uint64_t nr = manager->nr_given;

	for (const struct okv_shelf *shelf = manager->shelves; shelf; shelf = shelf->next)
		nr += shelf->nr_unpins;
	return nr;
}

bool okv_visit_wait(struct okv_visit *visit, uint64_t until_ns)
{
	struct omnikv_manager *manager = visit->manager;
	struct timespec until = { .tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000 };
	uint64_t seen;
	int ret;

	(void)OKV_FAILPOINT("manager.wait");
	okv_visit_flush(visit);
	seen = okv_nr_given_up(manager);
	manager->nr_waiting++;
	do
		ret = pthread_cond_timedwait(&manager->room, &manager->lock, &until);
	while (!ret && okv_nr_given_up(manager) == seen);
	manager->nr_waiting--;
	return !ret;
}

void okv_visit_give(struct okv_visit *visit, const struct omnikv_extent *extent)
{
	if (!extent->nr_granules)
		return;
	/* No block lies in the memory of the index: the entry that says so was overwritten. */
	if (okv_pool_catalog_has(visit->manager, extent->granule)) {
		visit->manager->stats.extents_lost++;
		return;
	}
	if (visit->nr_extents == OKV_VISIT_EXTENTS)
		okv_visit_flush(visit);
	visit->extents[visit->nr_extents++] = *extent;
}

int okv_pin_take(struct okv_shelf *shelf, struct okv_pin *pin, uint32_t entry, uint32_t nr_blocks)
{
	int ret = okv_index_pin(shelf->index, entry);

	if (ret)
		return ret;
	pin->shelf = shelf;
	pin->entry = entry;
	pin->nr_blocks = nr_blocks;
	pin->prev = &shelf->pins;
	pin->next = shelf->pins.next;
	pin->next->prev = pin;
	shelf->pins.next = pin;
	shelf->pin_blocks += nr_blocks;
	return 0;
}

void okv_pin_drop(struct okv_pin *pin)
{
	if (!okv_pin_is_active(pin))
		return;
	okv_index_unpin(pin->shelf->index, pin->entry);
	pin->shelf->nr_unpins++;
	pin->shelf->pin_blocks -= pin->nr_blocks;
	pin->prev->next = pin->next;
	pin->next->prev = pin->prev;
	pin->prev = NULL;
	pin->next = NULL;
	if (okv_is_attached(pin->shelf->manager))
		okv_import_trim(pin->shelf, pin->entry);
}

void okv_pin_adopt(struct okv_pin *pin, struct okv_pin *from)
{
	if (!okv_pin_is_active(from))
		return;
	*pin = *from;
	pin->prev->next = pin;
	pin->next->prev = pin;
	from->prev = NULL;
}

int okv_pin_move(struct okv_shelf *shelf, struct okv_pin *pin, uint32_t entry, uint32_t nr_blocks)
{
	uint32_t before;
	int ret;

	if (entry == OKV_ENTRY_NONE) {
		okv_pin_drop(pin);
		return 0;
	}
	if (!okv_pin_is_active(pin))
		return okv_pin_take(shelf, pin, entry, nr_blocks);
	if (pin->entry == entry)
		return 0;
	ret = okv_index_pin(shelf->index, entry);
	if (ret)
		return ret;
	before = pin->entry;
	okv_index_unpin(shelf->index, before);
	shelf->nr_unpins++;
	shelf->pin_blocks += (uint64_t)nr_blocks - pin->nr_blocks;
	pin->entry = entry;
	pin->nr_blocks = nr_blocks;
	if (okv_is_attached(shelf->manager))
		okv_import_trim(shelf, before);
	return 0;
}

int okv_private_reserve(struct omnikv_manager *manager, uint64_t nr)
{
	while (manager->nr_free_privates < nr) {
		struct okv_private_slab *slab = malloc(sizeof(*slab));

		if (!slab)
			return -ENOMEM;
		slab->next = manager->slabs;
		manager->slabs = slab;
		for (uint32_t i = OKV_PRIVATE_SLAB; i-- > 0;)
			okv_private_free(manager, &slab->privates[i]);
	}
	return 0;
}

struct okv_private *okv_private_alloc(struct omnikv_manager *manager)
{
	struct okv_private *private = manager->free_privates;

	if (!private)
		return NULL;
	manager->free_privates = private->next;
	manager->nr_free_privates--;
	atomic_init(&private->nr_refs, 1);
	private->flags = 0;
	private->pin.prev = NULL;
	private->seen = 0;
	return private;
}

void okv_private_free(struct omnikv_manager *manager, struct okv_private *private)
{
	private->next = manager->free_privates;
	manager->free_privates = private;
	manager->nr_free_privates++;
}

void okv_private_drop(void *opaque, struct okv_leaf *leaf, uint32_t slot)
{
	struct okv_private *private = leaf->private[slot];
	struct okv_visit *visit = opaque;
	struct omnikv_manager *manager = visit->manager;

	/* Inside, since whoever publishes the block decides by the count. */
	okv_visit_enter(visit);
	leaf->private[slot] = NULL;
	if (atomic_fetch_sub_explicit(&private->nr_refs, 1, memory_order_acq_rel) != 1)
		return;
	if (okv_pin_is_active(&private->pin)) {
		okv_pin_drop(&private->pin);
	} else {
		for (uint32_t g = 0; g < leaf->nr_groups; g++) {
			const struct omnikv_extent *extent = &leaf->extents[slot * leaf->nr_groups + g];

			manager->private_granules -= extent->nr_granules;
			okv_visit_give(visit, extent);
		}
	}
	okv_private_free(manager, private);
}

/* ---- what is evictable ---------------------------------------------------------------------- */

static uint64_t okv_cached_granules(const struct omnikv_manager *manager)
{
	uint64_t nr = 0;

	for (const struct okv_shelf *shelf = manager->shelves; shelf; shelf = shelf->next)
		nr += shelf->nr_granules;
	return nr;
}

static uint64_t okv_used_granules(const struct omnikv_manager *manager)
{
	return manager->private_granules + okv_cached_granules(manager) + manager->tier_granules;
}

void okv_note_peak(struct omnikv_manager *manager)
{
	uint64_t used = okv_used_granules(manager);

	if (used > manager->peak_granules)
		manager->peak_granules = used;
}

uint64_t okv_shelf_entry_granules(const struct okv_shelf *shelf, uint32_t id)
{
	struct omnikv_extent extent;
	uint64_t nr = 0;
	uint32_t crc;

	for (uint32_t g = 0; g < shelf->nr_groups; g++) {
		okv_index_extent(shelf->index, id, g, &extent, &crc);
		nr += extent.nr_granules;
	}
	return nr;
}

/* Is an extent of this entry leased by another process? It does not leave then. */
static bool okv_shelf_is_leased(const struct okv_shelf *shelf, uint32_t id)
{
	struct omnikv_extent extent;
	uint32_t crc;

	for (uint32_t g = 0; g < shelf->nr_groups; g++) {
		okv_index_extent(shelf->index, id, g, &extent, &crc);
		if (extent.nr_granules && okv_victim_is_held(shelf->manager, &extent))
			return true;
	}
	return false;
}

/* One path that does not leave; entries that are in @seen are counted already. */
static void okv_shelf_count(const struct okv_shelf *shelf, uint32_t id, uint64_t *seen, uint64_t *nr_blocks,
			    uint64_t *nr_granules)
{
	struct okv_index_info info;

	while (id != OKV_ENTRY_NONE && !(seen[id / 64] >> (id % 64) & 1)) {
		seen[id / 64] |= 1ull << (id % 64);
		++*nr_blocks;
		*nr_granules += okv_shelf_entry_granules(shelf, id);
		if (okv_index_get(shelf->index, id, &info))
			break;
		id = info.parent;
	}
}

/* What the pins of a shelf protect, exactly, and what others lease: a walk over the paths, each entry once. */
static int okv_shelf_protected(const struct okv_shelf *shelf, bool with_leases, uint64_t *nr_blocks, uint64_t *nr_granules)
{
	uint32_t nr_ids = okv_index_nr_ids(shelf->index);
	struct okv_index_info info;
	uint64_t *seen;

	seen = calloc(nr_ids / 64 + 1, sizeof(*seen));
	if (!seen)
		return -ENOMEM;
	for (const struct okv_pin *pin = shelf->pins.next; pin != &shelf->pins; pin = pin->next)
		okv_shelf_count(shelf, pin->entry, seen, nr_blocks, nr_granules);
	for (uint32_t id = 0; with_leases && id < nr_ids; id++)
		if (!(seen[id / 64] >> (id % 64) & 1) && !okv_index_get(shelf->index, id, &info) && okv_shelf_is_leased(shelf, id))
			okv_shelf_count(shelf, id, seen, nr_blocks, nr_granules);
	free(seen);
	return 0;
}

static int okv_protected(const struct omnikv_manager *manager, bool with_leases, uint64_t *nr_blocks, uint64_t *nr_granules)
{
	int ret = 0;

	*nr_blocks = 0;
	*nr_granules = 0;
	for (const struct okv_shelf *shelf = manager->shelves; shelf && !ret; shelf = shelf->next)
		ret = okv_shelf_protected(shelf, with_leases, nr_blocks, nr_granules);
	return ret;
}

/* At least what others lease of what is cached. */
static uint64_t okv_leased_bound(const struct omnikv_manager *manager, uint64_t cached)
{
	uint64_t nr_leases = okv_share_leases(manager->pool), most = 0;

	for (const struct okv_shelf *shelf = manager->shelves; shelf; shelf = shelf->next)
		most = shelf->block_granules > most ? shelf->block_granules : most;
	return nr_leases && most > cached / nr_leases ? cached : nr_leases * most;
}

/*
 * Would evicting everything that nothing protects make room for @nr_granules? The bound by
 * counting paths is tried first; only where it does not settle the matter are they walked.
 */
static bool okv_has_room_for(struct omnikv_manager *manager, uint64_t nr_granules, bool with_leases)
{
	uint64_t free_granules = okv_pool_free_granules(manager->pool);
	uint64_t cached = okv_cached_granules(manager);
	uint64_t bound = 0, nr_blocks, held;

	okv_retain_expire(manager);
	for (const struct okv_shelf *shelf = manager->shelves; shelf; shelf = shelf->next) {
		uint64_t most = shelf->pin_blocks * shelf->block_granules;

		bound += most < shelf->nr_granules ? most : shelf->nr_granules;
	}
	if (nr_granules > free_granules + cached)
		return false;
	if (with_leases)
		bound += okv_leased_bound(manager, cached);
	if (free_granules + cached - nr_granules >= bound)
		return true;
	if (okv_protected(manager, with_leases, &nr_blocks, &held))
		return false;
	return free_granules + cached - held >= nr_granules;
}

/* A module is asked for one lease after the other, which is too slow for all of them. */
bool okv_can_make_room(struct omnikv_manager *manager, uint64_t nr_granules)
{
	return okv_has_room_for(manager, nr_granules, !manager->asks_victims);
}

/* Of what is cached: leases are looked at only where more than that would leave in vain. */
#define OKV_IN_VAIN_SHARE	16u

bool okv_may_make_room(struct omnikv_manager *manager, uint64_t nr_granules)
{
	uint64_t free_granules = okv_pool_free_granules(manager->pool);
	uint64_t nr_leaving = nr_granules > free_granules ? nr_granules - free_granules : 0;

	return okv_has_room_for(manager, nr_granules,
				!manager->asks_victims && nr_leaving > okv_cached_granules(manager) / OKV_IN_VAIN_SHARE);
}

bool okv_victim_is_held(void *opaque, const struct omnikv_extent *extent)
{
	struct omnikv_extent_info info = { .size = sizeof(info) };
	struct omnikv_manager *manager = opaque;

	if (!manager->asks_victims)
		return okv_share_is_leased(manager->pool, extent);
	return !omnikv_extent_query(manager->client, extent, &info) && info.nr_refs;
}

/* ---- what its owner sealed ------------------------------------------------------------------ */

void okv_manager_note_taken(struct omnikv_manager *manager, const struct omnikv_extent *exts, uint64_t nr)
{
	for (uint64_t i = 0; i < nr && manager->taken; i++)
		if (exts[i].nr_granules)
			manager->taken[exts[i].granule] = exts[i].generation;
}

int okv_manager_take(struct omnikv_manager *manager, struct omnikv_client *client, const struct omnikv_extent *exts,
		     uint32_t nr)
{
	struct omnikv_extent_info info;
	int ret = 0;

	if (client)
		return omnikv_extent_seal(client, exts, nr);
	if (!manager->taken)
		return -EPERM;
	for (uint32_t i = 0; i < nr && !ret; i++) {
		memset(&info, 0, sizeof(info));
		info.size = sizeof(info);
		/* Generations never come back, so that one that was taken in this life is in the index, or given up. */
		if (exts[i].granule >= manager->nr_granules || manager->taken[exts[i].granule] == exts[i].generation)
			ret = -EINVAL;
		for (uint32_t k = 0; k < i && !ret; k++)
			ret = exts[k].granule == exts[i].granule ? -EINVAL : 0;
		if (!ret)
			ret = omnikv_extent_query(manager->client, &exts[i], &info);
		if (!ret && info.state != OMNIKV_EXTENT_SEALED)
			ret = -EPERM;
	}
	if (!ret)
		okv_manager_note_taken(manager, exts, nr);
	return ret;
}

/* One that nobody took and nobody holds, now and the last time: no publication of it is under way. */
static bool is_orphan(struct omnikv_manager *manager, const struct omnikv_extent *ext, uint64_t *nr_suspects)
{
	struct omnikv_extent_info info = { .size = sizeof(info) };

	if (manager->taken[ext->granule] == ext->generation)
		return false;
	if (omnikv_extent_query(manager->client, ext, &info))
		return false;
	if (!info.nr_refs && manager->suspects[ext->granule] == ext->generation)
		return true;
	manager->suspects[ext->granule] = info.nr_refs ? 0 : ext->generation;
	*nr_suspects += 1;
	return false;
}

uint64_t okv_manager_sweep(struct omnikv_manager *manager)
{
	struct omnikv_extent exts[64];
	uint64_t from = 0, nr_suspects = 0;
	struct okv_visit visit;

	if (!manager->taken)
		return 0;
	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	while (from != UINT64_MAX) {
		int64_t nr = omnikv_extent_list(manager->client, 1u << OMNIKV_EXTENT_SEALED, &from, exts,
						sizeof(exts) / sizeof(exts[0]));

		if (nr < 0)
			break;
		for (int64_t i = 0; i < nr; i++)
			if (is_orphan(manager, &exts[i], &nr_suspects))
				okv_visit_give(&visit, &exts[i]);
	}
	okv_visit_leave(&visit);
	return nr_suspects;
}

/* ---- allocation and eviction ---------------------------------------------------------------- */

/* The shelf that is to give: the one that holds most, of those not in @done. */
struct okv_shelf *okv_evict_shelf(const struct omnikv_manager *manager, uint64_t done)
{
	struct okv_shelf *most = NULL;
	uint32_t i = 0;

	for (struct okv_shelf *shelf = manager->shelves; shelf; shelf = shelf->next, i++)
		if (shelf->nr_granules && (i >= 64 || !(done >> i & 1)) &&
		    (!most || shelf->nr_granules > most->nr_granules))
			most = shelf;
	return most;
}

/* Up to OKV_EVICT_BATCH blocks of one shelf. Returns how many left; adds their granules to @freed. */
static size_t okv_shelf_evict(struct okv_visit *visit, struct okv_shelf *shelf, uint64_t nr, uint64_t *freed)
{
	struct omnikv_extent extents[OKV_EVICT_BATCH * OMNIKV_GROUPS_MAX];
	size_t nr_left = okv_index_evict(shelf->index, nr, extents, NULL);

	for (size_t i = 0; i < nr_left * shelf->nr_groups; i++) {
		*freed += extents[i].nr_granules;
		okv_shelf_less(shelf, extents[i].nr_granules);
		okv_visit_give(visit, &extents[i]);
	}
	return nr_left;
}

void okv_shelf_spare(struct okv_visit *visit, struct okv_shelf *shelf, uint64_t nr)
{
	struct omnikv_manager_stats *stats = &visit->manager->stats;
	uint64_t spare, freed = 0;

	while ((spare = okv_index_spare(shelf->index)) < nr) {
		uint64_t want = nr - spare < OKV_EVICT_BATCH ? nr - spare : OKV_EVICT_BATCH;
		size_t nr_left = okv_shelf_evict(visit, shelf, want, &freed);

		stats->blocks_evicted += nr_left;
		if (visit->manager->tier)
			stats->blocks_lost += nr_left;
		if (nr_left < want && !okv_retain_yield(visit->manager))
			break;
	}
}

bool okv_shelf_empty(struct okv_visit *visit, struct okv_shelf *shelf)
{
	struct omnikv_manager_stats *stats = &visit->manager->stats;
	struct okv_index_stats index;
	uint64_t freed = 0;
	size_t nr;

	okv_retain_end_shelf(visit->manager, shelf);
	while ((nr = okv_shelf_evict(visit, shelf, OKV_EVICT_BATCH, &freed))) {
		stats->blocks_evicted += nr;
		if (visit->manager->tier)
			stats->blocks_lost += nr;
	}
	okv_visit_flush(visit);
	okv_index_stats(shelf->index, &index);
	return !index.nr_entries;
}

/* Evict until @nr_granules are given up or nothing is left to evict. Returns blocks and granules that left. */
static uint64_t okv_evict(struct okv_visit *visit, uint64_t nr_granules, uint64_t *nr_freed)
{
	struct omnikv_manager *manager = visit->manager;
	uint64_t nr_blocks = 0, freed = 0, done = 0;
	struct okv_shelf *shelf;

	okv_retain_expire(manager);
	while (freed < nr_granules) {
		uint64_t nr;
		size_t nr_left;

		shelf = okv_evict_shelf(manager, done);
		/* What is retained comes last, and of that what is worth least first. */
		if (!shelf && okv_retain_yield(manager)) {
			done = 0;
			continue;
		}
		if (!shelf)
			break;
		nr = (nr_granules - freed) / shelf->block_granules;
		nr = nr < 1 ? 1 : nr > OKV_EVICT_BATCH ? OKV_EVICT_BATCH : nr;
		nr_left = okv_shelf_evict(visit, shelf, nr, &freed);
		nr_blocks += nr_left;
		if (nr_left < nr) {
			uint32_t i = 0;

			for (struct okv_shelf *s = manager->shelves; s != shelf; s = s->next)
				i++;
			if (i >= 64)
				break;
			done |= 1ull << i;
		}
	}
	okv_visit_flush(visit);
	if (nr_freed)
		*nr_freed = freed;
	return nr_blocks;
}

/* In an allocation that cannot wait for the disk: with a spill store these are lost to it. */
static void okv_evict_lost(struct okv_visit *visit, uint64_t nr_granules, uint64_t *nr_freed)
{
	uint64_t nr_blocks = okv_evict(visit, nr_granules, nr_freed);

	visit->manager->stats.blocks_evicted += nr_blocks;
	if (visit->manager->tier)
		visit->manager->stats.blocks_lost += nr_blocks;
}

uint64_t okv_manager_evict(struct omnikv_manager *manager, uint64_t nr_granules)
{
	struct okv_visit visit;
	uint64_t freed;

	okv_visit_init(&visit, manager);
	visit.is_inside = true;
	okv_evict_lost(&visit, nr_granules, &freed);
	return freed;
}

uint64_t okv_manager_granules(const struct omnikv_manager *manager)
{
	return manager->nr_granules - okv_pool_catalog_granules(manager);
}

static void okv_wants_undo(struct okv_visit *visit, struct okv_want *wants, uint32_t nr_wants)
{
	for (uint32_t i = 0; i < nr_wants; i++)
		for (uint32_t k = 0; k < wants[i].count; k++)
			okv_visit_give(visit, &wants[i].out[k]);
	okv_visit_flush(visit);
}

/* Returns how many of the wants were met; all, or what was met is given back. */
static uint32_t okv_wants_try(struct okv_visit *visit, struct okv_want *wants, uint32_t nr_wants, int *error)
{
	for (uint32_t i = 0; i < nr_wants; i++) {
		struct okv_want *want = &wants[i];
		const struct omnikv_extent *after = want->after && want->after->nr_granules ? want->after : NULL;

		*error = omnikv_extent_alloc(visit->manager->client, want->nr_granules, want->count, after,
					     OMNIKV_ALLOC_F_NO_ZERO, want->out);
		if (*error) {
			okv_wants_undo(visit, wants, i);
			return i;
		}
	}
	return nr_wants;
}

int okv_manager_alloc(struct okv_visit *visit, struct okv_want *wants, uint32_t nr_wants)
{
	struct omnikv_manager *manager = visit->manager;
	uint64_t keep = visit->is_staging ? 0 : manager->staging_granules;
	uint64_t need = 0, step = 0, free_granules;
	int ret;

	for (uint32_t i = 0; i < nr_wants; i++)
		need += (uint64_t)wants[i].count * wants[i].nr_granules;
	okv_visit_flush(visit);

	free_granules = okv_pool_free_granules(manager->pool);
	ret = -ENOSPC;
	if (need + keep > okv_manager_granules(manager))
		goto err;
	if (need && need + keep > free_granules) {
		if (!okv_may_make_room(manager, need + keep))
			goto err;
		ret = -EAGAIN;
		if (visit->is_saving)
			goto err;
		okv_evict_lost(visit, need + keep - free_granules, NULL);
	}
	/*
	 * What is free may be in the wrong places, or (a transfer is still on it) not free yet:
	 * evict more until it fits. Each round evicts or ends, so there are at most as many as
	 * blocks, and few, since they grow.
	 */
	for (;;) {
		uint32_t nr_met = okv_wants_try(visit, wants, nr_wants, &ret);
		uint64_t freed;

		if (nr_met == nr_wants)
			break;
		if (ret == -ENOSPC && visit->is_saving)
			ret = -EAGAIN;
		if (ret != -ENOSPC)
			goto err;
		step = step ? 2 * step : wants[nr_met].nr_granules;
		okv_evict_lost(visit, step < need ? step : need, &freed);
		if (!freed)
			goto err;
	}
	manager->private_granules += need;
	okv_note_peak(manager);
	return 0;

err:
	for (uint32_t i = 0; i < nr_wants; i++)
		memset(wants[i].out, 0, wants[i].count * sizeof(wants[i].out[0]));
	return ret;
}

int okv_manager_room_for(struct omnikv_manager *manager, uint32_t nr_granules, uint32_t count)
{
	struct okv_want want = { .nr_granules = nr_granules, .count = count };
	struct okv_visit visit;
	int ret;

	if ((uint64_t)nr_granules * count > manager->nr_granules)
		return -ENOSPC;
	want.out = malloc(count * sizeof(*want.out));
	if (!want.out)
		return -ENOMEM;
	okv_visit_init(&visit, manager);
	ret = okv_tier_alloc(&visit, &want, 1, 0);
	if (!ret) {
		for (uint32_t i = 0; i < count; i++)
			okv_visit_give(&visit, &want.out[i]);
		manager->private_granules -= (uint64_t)nr_granules * count;
	}
	okv_visit_leave(&visit);
	free(want.out);
	return ret;
}

/* ---- lookups -------------------------------------------------------------------------------- */

static bool okv_key_is_valid(const struct omnikv_key *key)
{
	static const uint8_t zeroes[OMNIKV_KEY_BYTES_MAX];

	if (!key->len || key->len > OMNIKV_KEY_BYTES_MAX)
		return false;
	return key->len == OMNIKV_KEY_BYTES_MAX || !memcmp(key->bytes + key->len, zeroes, OMNIKV_KEY_BYTES_MAX - key->len);
}

bool okv_keys_are_valid(const struct omnikv_key *keys, size_t nr_keys, const struct omnikv_key *tail)
{
	if (nr_keys && !keys)
		return false;
	for (size_t i = 0; i < nr_keys; i++)
		if (!okv_key_is_valid(&keys[i]))
			return false;
	return !tail || okv_key_is_valid(tail);
}

/* The partial tail @key behind @hit, when it is there. */
static void okv_match_tail(const struct omnikv_space *space, const struct omnikv_key *key, struct okv_index_hit *hit,
			   uint32_t *tail_tokens)
{
	struct okv_index *index = space->shelf->index;
	struct okv_index_info info;
	uint32_t id;

	id = okv_index_find(index, space->id, key);
	if (id == OKV_ENTRY_NONE || okv_index_get(index, id, &info))
		return;
	if (!info.is_partial || info.parent != hit->entry || info.position != hit->nr_blocks)
		return;
	*hit = (struct okv_index_hit){ .nr_blocks = hit->nr_blocks + 1, .entry = id };
	*tail_tokens = info.nr_tokens;
}

/* To its deepest block that has all of @groups; the tail is not there any more when it was not that. */
static void okv_match_shorten(const struct omnikv_space *space, uint32_t groups, struct okv_index_hit *hit,
			      uint32_t *tail_tokens)
{
	uint32_t entry = hit->entry;

	if (!groups || !hit->nr_blocks)
		return;
	okv_index_usable(space->shelf->index, groups, hit);
	if (hit->entry != entry)
		*tail_tokens = 0;
}

void okv_match_find(const struct omnikv_space *space, uint32_t groups, const struct omnikv_prefix *prefix,
		    struct okv_index_hit *hit, uint32_t *tail_tokens)
{
	*tail_tokens = 0;
	hit->nr_blocks = 0;
	hit->entry = OKV_ENTRY_NONE;
	hit->nr_anchors = 0;
	if (prefix->nr_keys)
		okv_index_match(space->shelf->index, space->id, prefix->keys, prefix->nr_keys, space->match_flags, hit);
	if (prefix->tail && hit->nr_blocks == prefix->nr_keys)
		okv_match_tail(space, prefix->tail, hit, tail_tokens);
	okv_match_shorten(space, groups, hit, tail_tokens);
}

/* What was imported is the path, unless something on it was dropped meanwhile. */
static bool okv_match_imported(const struct okv_imported *imported, struct okv_index_hit *hit, uint32_t *tail_tokens)
{
	if (!okv_pin_is_active(&imported->pin) || !okv_index_is_found(imported->pin.shelf->index, imported->pin.entry))
		return false;
	*hit = (struct okv_index_hit){ .nr_blocks = imported->pin.nr_blocks, .entry = imported->pin.entry };
	*tail_tokens = imported->tail_tokens;
	return true;
}

int okv_match_locked(struct omnikv_space *space, const struct omnikv_prefix *prefix, struct okv_imported *imported,
		     struct okv_pin *pin, struct okv_path *path)
{
	struct omnikv_manager_stats *stats = &space->manager->stats;
	uint64_t block_tokens = space->plan->plan.block_tokens;
	struct okv_index_hit hit;
	uint32_t tail_tokens;
	int ret;

	if (okv_match_imported(imported, &hit, &tail_tokens))
		okv_match_shorten(space, space->needed_state, &hit, &tail_tokens);
	else
		okv_match_find(space, space->needed_state, prefix, &hit, &tail_tokens);
	if (hit.entry != OKV_ENTRY_NONE) {
		if (okv_pin_is_active(&imported->pin) && imported->pin.entry == hit.entry) {
			okv_pin_adopt(pin, &imported->pin);
		} else {
			ret = okv_pin_take(space->shelf, pin, hit.entry, hit.nr_blocks);
			if (ret)
				return ret;
		}
		/* What an attached manager has leaves with its last pin, in whatever order. */
		if (!okv_is_attached(space->manager))
			okv_index_touch(space->shelf->index, hit.entry);
	}
	*path = (struct okv_path){ .nr_blocks = hit.nr_blocks, .entry = hit.entry, .tail_tokens = tail_tokens };
	stats->nr_queries++;
	stats->blocks_queried += prefix->nr_keys + (tail_tokens != 0);
	stats->tokens_queried += prefix->nr_keys * block_tokens + tail_tokens;
	stats->blocks_hit += hit.nr_blocks;
	stats->tokens_hit += (hit.nr_blocks - (tail_tokens != 0)) * block_tokens + tail_tokens;
	return 0;
}

int64_t omnikv_lookup(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys)
{
	const struct omnikv_prefix prefix = { .keys = keys, .nr_keys = nr_keys };
	struct okv_index_hit hit;
	struct okv_visit visit;
	uint32_t tail_tokens;
	int64_t nr_remote;

	if (!space || !okv_prefix_is_valid(&prefix))
		return -EINVAL;
	nr_remote = okv_import_lookup(space, keys, nr_keys);
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	okv_match_find(space, space->needed_state, &prefix, &hit, &tail_tokens);
	okv_visit_leave(&visit);
	return nr_remote > (int64_t)hit.nr_blocks ? nr_remote : (int64_t)hit.nr_blocks;
}

int omnikv_match(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys,
		 const struct omnikv_key *tail, struct omnikv_match **out)
{
	const struct omnikv_prefix prefix = { .keys = keys, .nr_keys = nr_keys, .tail = tail };
	struct okv_promoted promoted;
	struct okv_imported imported;
	struct omnikv_match *match;
	struct okv_visit visit;
	struct okv_path path;
	int ret;

	if (!space || !out || !okv_prefix_is_valid(&prefix))
		return -EINVAL;
	match = calloc(1, sizeof(*match));
	if (!match)
		return -ENOMEM;
	okv_tier_promote(space, &prefix, &promoted);
	okv_visit_init(&visit, space->manager);
	okv_import(&visit, space, &prefix, 1, 0, &imported);
	ret = okv_match_locked(space, &prefix, &imported, &match->pin, &path);
	if (!ret) {
		okv_space_get_locked(space);
		space->manager->nr_matches++;
	}
	okv_tier_settle(&visit, &promoted, ret ? 0 : path.nr_blocks);
	okv_import_end(&imported);
	okv_visit_leave(&visit);
	if (ret) {
		free(match);
		return ret;
	}
	okv_import_use(space, &prefix, &path, 1);
	match->space = space;
	match->nr_blocks = path.nr_blocks;
	match->tail_tokens = path.tail_tokens;
	match->nr_tokens = (path.nr_blocks - (path.tail_tokens != 0)) * space->plan->plan.block_tokens + path.tail_tokens;
	*out = match;
	return 0;
}

uint64_t omnikv_match_blocks(const struct omnikv_match *match)
{
	return match->nr_blocks;
}

uint64_t omnikv_match_tokens(const struct omnikv_match *match)
{
	return match->nr_tokens;
}

uint32_t omnikv_match_tail_tokens(const struct omnikv_match *match)
{
	return match->tail_tokens;
}

void omnikv_match_put(struct omnikv_match *match)
{
	struct okv_visit visit;

	if (!match)
		return;
	okv_visit_init(&visit, match->space->manager);
	okv_visit_enter(&visit);
	okv_pin_drop(&match->pin);
	match->space->manager->nr_matches--;
	okv_space_put_locked(match->space);
	okv_visit_leave(&visit);
	free(match);
}

/* ---- admission, reset, counters ------------------------------------------------------------- */

int omnikv_admit(struct omnikv_space *space, uint64_t nr_tokens)
{
	const struct omnikv_plan *plan;
	struct omnikv_manager *manager;
	uint64_t nr_blocks, need;
	struct okv_visit visit;
	int ret;

	if (!space)
		return -EINVAL;
	manager = space->manager;
	plan = &space->plan->plan;
	nr_blocks = nr_tokens / plan->block_tokens + (nr_tokens % plan->block_tokens != 0);
	if (!nr_blocks)
		return 1;
	if (__builtin_mul_overflow(nr_blocks, okv_plan_granules(plan, false), &need) ||
	    __builtin_add_overflow(need, okv_plan_granules(plan, true) - okv_plan_granules(plan, false), &need) ||
	    need > manager->nr_granules)
		return -ENOSPC;

	if (okv_is_attached(manager))
		return okv_import_can_room(manager, need);
	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	need += manager->staging_granules;
	ret = need > okv_manager_granules(manager) ? -ENOSPC : okv_can_make_room(manager, need);
	okv_visit_leave(&visit);
	return ret;
}

bool okv_manager_have_free(struct omnikv_manager *manager, uint64_t nr_granules)
{
	struct okv_visit visit;
	uint64_t nr_free, freed = 0;

	okv_tier_make_room(manager, nr_granules);
	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	/* What others lease is given up and not free before they are done: more leaves in its place. */
	while ((nr_free = okv_pool_free_granules(manager->pool)) < nr_granules) {
		if (!freed && !okv_may_make_room(manager, nr_granules))
			break;
		okv_evict_lost(&visit, nr_granules - nr_free, &freed);
		if (!freed)
			break;
	}
	okv_visit_leave(&visit);
	return nr_free >= nr_granules;
}

int64_t omnikv_manager_reset(struct omnikv_manager *manager)
{
	struct okv_visit visit;
	int64_t nr_blocks;

	if (!manager)
		return -EINVAL;
	if (okv_is_attached(manager))
		return okv_import_reset(manager);
	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	okv_retain_end_all(manager);
	nr_blocks = okv_evict(&visit, UINT64_MAX, NULL);
	okv_visit_leave(&visit);
	return nr_blocks;
}

uint32_t okv_shelf_drop_all(struct okv_shelf *shelf)
{
	struct okv_index_info info;
	uint32_t nr = 0;

	for (uint32_t id = 0; id < okv_index_nr_ids(shelf->index); id++) {
		if (okv_index_get(shelf->index, id, &info) || info.parent != OKV_ENTRY_NONE || info.is_dropped)
			continue;
		okv_index_drop(shelf->index, id);
		nr++;
	}
	return nr;
}

uint64_t okv_manager_epoch(const struct omnikv_manager *manager)
{
	uint64_t epoch = okv_pool_catalog_epoch(manager);

	return epoch > manager->epoch ? epoch : manager->epoch;
}

/* Nothing that is in memory is of @epoch (0: the next one). Inside a visit. */
static int64_t okv_epoch_begin(struct okv_visit *visit, uint64_t epoch)
{
	struct omnikv_manager *manager = visit->manager;
	int ret;

	/*
	 * What can leave leaves, so that few are left to be dropped one by one. The epoch is raised last: who is
	 * told of it finds nothing older, also after a crash of this process at any moment.
	 */
	okv_retain_end_all(manager);
	okv_evict(visit, UINT64_MAX, NULL);
	for (struct okv_shelf *shelf = manager->shelves; shelf; shelf = shelf->next)
		okv_shelf_drop_all(shelf);
	okv_tier_era_enter(manager);
	if (!epoch)
		epoch = okv_manager_epoch(manager) + 1;
	ret = okv_pool_catalog_raise_epoch(manager, epoch);
	if (!ret || ret == -EOPNOTSUPP)
		manager->epoch = epoch;
	return ret && ret != -EOPNOTSUPP ? ret : (int64_t)epoch;
}

int64_t okv_manager_epoch_up(struct omnikv_manager *manager)
{
	struct okv_visit visit;
	uint64_t epoch;
	int64_t ret = 0;

	okv_visit_init(&visit, manager);
	/* An era between one raise's beginning and its end would be that of both epochs. */
	pthread_mutex_lock(&manager->epoch_lock);
	/* The store first: should this process end in between, the next one ends what was begun (okv_epoch_settle()). */
	if (manager->tier) {
		okv_visit_enter(&visit);
		epoch = okv_manager_epoch(manager) + 1;
		okv_visit_leave(&visit);
		ret = okv_tier_era_begin(manager, epoch);
		(void)OKV_FAILPOINT("manager.era_begun");
	}
	if (!ret) {
		okv_visit_enter(&visit);
		ret = okv_epoch_begin(&visit, 0);
		okv_visit_leave(&visit);
	}
	pthread_mutex_unlock(&manager->epoch_lock);
	return ret;
}

/* Pool and store have each an epoch: what is of an older one is out of reach in both. */
static int okv_epoch_settle(struct omnikv_manager *manager, uint64_t store_epoch)
{
	uint64_t epoch = okv_manager_epoch(manager);
	struct okv_visit visit;
	int64_t ret = 0;

	if (store_epoch < epoch)
		ret = okv_tier_era_begin(manager, epoch);
	if (ret)
		return (int)ret;
	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	if (store_epoch > epoch)
		ret = okv_epoch_begin(&visit, store_epoch);
	else
		okv_tier_era_enter(manager);
	okv_visit_leave(&visit);
	return ret < 0 ? (int)ret : 0;
}

int omnikv_manager_stats(struct omnikv_manager *manager, struct omnikv_manager_stats *stats)
{
	struct omnikv_manager_stats full;
	struct okv_index_stats index;
	struct okv_visit visit;
	uint64_t held;
	int ret;

	if (!manager || !stats)
		return -EINVAL;
	ret = okv_option_check(stats, sizeof(full));
	if (ret)
		return ret;
	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	okv_retain_expire(manager);
	full = manager->stats;
	full.nr_blocks = 0;
	full.hash_collisions = 0;
	for (struct okv_shelf *shelf = manager->shelves; shelf; shelf = shelf->next) {
		okv_index_stats(shelf->index, &index);
		full.nr_blocks += index.nr_entries;
		full.hash_collisions += index.nr_collisions;
	}
	ret = okv_protected(manager, false, &full.nr_leased_blocks, &held);
	full.index_bytes = okv_pool_catalog_granules(manager) * manager->granule_bytes;
	full.cached_bytes = okv_cached_granules(manager) * manager->granule_bytes;
	full.peak_used_bytes = manager->peak_granules * manager->granule_bytes;
	full.blocks_queued = okv_imports_queued(manager);
	okv_retain_stats(manager, &full);
	full.mean_run_blocks = manager->nr_runs ? (double)manager->nr_placed / manager->nr_runs : 0;
	okv_visit_leave(&visit);
	if (ret)
		return ret;
	okv_option_return(stats, &full, sizeof(full));
	return 0;
}

/* ---- life ----------------------------------------------------------------------------------- */

/*
 * Without a catalog what an earlier manager of the pool left SEALED or META is in no index, and nobody could
 * find it again: it is given up. What others lease or move stays until they are done.
 */
static int okv_manager_clear(struct omnikv_client *client)
{
	const uint32_t states = 1u << OMNIKV_EXTENT_SEALED | 1u << OMNIKV_EXTENT_META;
	struct omnikv_extent extents[256];
	uint64_t from = 0;

	while (from != UINT64_MAX) {
		int64_t nr = omnikv_extent_list(client, states, &from, extents, sizeof(extents) / sizeof(extents[0]));
		int ret = nr > 0 ? omnikv_extent_free(client, extents, nr) : (int)nr;

		if (ret)
			return ret;
	}
	return 0;
}

static int okv_manager_sync_init(struct omnikv_manager *manager)
{
	pthread_condattr_t attr;
	int ret;

	ret = -pthread_condattr_init(&attr);
	if (ret)
		return ret;
	ret = -pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	if (!ret)
		ret = -pthread_cond_init(&manager->room, &attr);
	pthread_condattr_destroy(&attr);
	if (ret)
		return ret;
	ret = -pthread_mutex_init(&manager->lock, NULL);
	if (ret)
		goto err_room;
	ret = -pthread_mutex_init(&manager->epoch_lock, NULL);
	if (ret)
		goto err_lock;
	return 0;

err_lock:
	pthread_mutex_destroy(&manager->lock);
err_room:
	pthread_cond_destroy(&manager->room);
	return ret;
}

/* How much stays free for what comes back from the spill store. */
static int okv_staging_init(struct omnikv_manager *manager, const struct omnikv_manager_config *config,
			    struct omnikv_error *err)
{
	uint64_t pool_bytes = manager->nr_granules * manager->granule_bytes, bytes = config->staging_bytes;

	if (!bytes) {
		bytes = pool_bytes >> OKV_STAGING_SHIFT;
		if (bytes > OKV_STAGING_MAX)
			bytes = OKV_STAGING_MAX;
		manager->staging_granules = bytes / manager->granule_bytes;
	} else if (bytes != OMNIKV_STAGING_NONE) {
		if (bytes >= pool_bytes)
			return okv_error_set(err, -EINVAL, "staging_bytes: %llu leave nothing of a pool of %llu; give less",
					     (unsigned long long)bytes, (unsigned long long)pool_bytes);
		manager->staging_granules = (bytes + manager->granule_bytes - 1) / manager->granule_bytes;
	}
	manager->staging_wait_ns = config->staging_wait_ms * UINT64_C(1000000);
	return 0;
}

/* How much pins can have. */
static uint64_t okv_pin_granules(const struct omnikv_manager *manager, const struct omnikv_manager_config *config)
{
	if (config->pin_bytes == OMNIKV_PIN_NONE)
		return 0;
	return config->pin_bytes ? config->pin_bytes / manager->granule_bytes : manager->nr_granules / 4;
}

void okv_manager_free(struct omnikv_manager *manager)
{
	pthread_cond_destroy(&manager->room);
	pthread_mutex_destroy(&manager->lock);
	pthread_mutex_destroy(&manager->epoch_lock);
	free(manager->taken);
	free(manager->suspects);
	free(manager);
}

int okv_manager_new(struct omnikv_client *client, struct omnikv_manager **out)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_manager *manager;
	int ret;

	ret = omnikv_pool_info(omnikv_client_pool(client), &info);
	if (ret)
		return ret;
	manager = calloc(1, sizeof(*manager));
	if (!manager)
		return -ENOMEM;
	ret = okv_manager_sync_init(manager);
	if (ret) {
		free(manager);
		return ret;
	}
	manager->client = client;
	manager->pool = omnikv_client_pool(client);
	manager->base = omnikv_pool_base(manager->pool);
	manager->granule_bytes = info.granule_bytes;
	manager->nr_granules = info.nr_granules;
	manager->sweep_at = 64;
	manager->seqs.prev = &manager->seqs;
	manager->seqs.next = &manager->seqs;
	*out = manager;
	return 0;
}

static int okv_manager_begin(struct omnikv_client *client, const struct omnikv_manager_config *config,
			     struct omnikv_manager **out, struct omnikv_error *err)
{
	struct omnikv_manager *manager;
	struct omnikv_extent meta;
	struct omnikv_error why;
	uint64_t store_epoch;
	int ret;

	/* Only the pool's manager may have META: the client proves that it is. */
	ret = omnikv_extent_alloc(client, 1, 1, NULL, OMNIKV_ALLOC_F_META | OMNIKV_ALLOC_F_NO_ZERO, &meta);
	if (!ret)
		ret = omnikv_extent_free(client, &meta, 1);
	if (ret == -EPERM)
		return okv_error_set(err, ret, "the client does not manage its pool; open it with OMNIKV_CLIENT_F_MANAGER");
	if (ret && ret != -ENOSPC)
		return ret;
	ret = okv_manager_new(client, &manager);
	if (ret)
		return ret;
	manager->is_fenced = config->flags & OMNIKV_MANAGER_F_FENCED && manager->pool->provider->can_fence;
	if (manager->pool->provider->hand_over) {
		manager->taken = calloc(manager->nr_granules, sizeof(*manager->taken));
		manager->suspects = calloc(manager->nr_granules, sizeof(*manager->suspects));
		ret = manager->taken && manager->suspects ? 0 : -ENOMEM;
		if (ret)
			goto err_free;
	}
	manager->pin_granules = okv_pin_granules(manager, config);
	ret = okv_pins_check(manager->pin_granules * manager->granule_bytes, manager->nr_granules, manager->granule_bytes, &why);
	if (ret) {
		okv_error_set(err, ret, "pin_bytes: %.200s", why.text);
		goto err_free;
	}
	if (config->flags & OMNIKV_MANAGER_F_TOKENS) {
		ret = okv_tokens_create(manager, &manager->tokens);
		if (ret == -EOPNOTSUPP)
			okv_error_set(err, ret, "token ids are kept in a pool that lasts: a file, or one of omnikvd");
		if (ret)
			goto err_free;
	}
	ret = manager->pool->is_lasting ? okv_pool_catalog_open(manager, err) : okv_manager_clear(client);
	if (ret)
		goto err_tokens;
	if (config->spill) {
		ret = okv_staging_init(manager, config, err);
		if (!ret)
			ret = okv_tier_create(config->spill, config->spill_admit, client, &manager->tier, &store_epoch);
		if (ret)
			goto err_catalog;
		ret = okv_epoch_settle(manager, store_epoch);
		if (ret == -EROFS) {
			okv_error_set(err, ret, "spill: the store is of epoch %llu and the pool of %llu, so nothing in it may be found, and it is "
				      "open read-only: open it for writing, or go on without it", (unsigned long long)store_epoch,
				      (unsigned long long)okv_manager_epoch(manager));
			goto err_tier;
		}
		if (ret) {
			okv_error_set(err, ret, "spill: the epoch cannot be written (%s); see to the disk, or go on without it",
				      strerror(-ret));
			goto err_tier;
		}
	}
	manager->peak_granules = okv_used_granules(manager);
	*out = manager;
	return 0;

err_tier:
	okv_tier_destroy(manager);
err_catalog:
	okv_pool_catalog_close(manager);
err_tokens:
	okv_tokens_destroy(manager->tokens);
err_free:
	okv_manager_free(manager);
	return ret;
}

int omnikv_manager_create(struct omnikv_client *client, const struct omnikv_manager_config *config,
			  struct omnikv_manager **out, struct omnikv_error *err)
{
	struct omnikv_manager_config full;
	int ret;

	if (err)
		err->text[0] = '\0';
	if (!client || !out)
		return -EINVAL;
	ret = okv_option_copy(&full, sizeof(full), config);
	if (ret)
		return okv_error_set(err, ret, "struct omnikv_manager_config is of another size");
	if (full.eviction && strcmp(full.eviction, "lru"))
		return okv_error_set(err, -EINVAL, "eviction: \"%.64s\" is unknown; \"lru\" is possible", full.eviction);
	if (full.spill && full.spill_admit > OMNIKV_SPILL_ADMIT_SECOND)
		return okv_error_set(err, -EINVAL, "spill_admit: %u is unknown", full.spill_admit);
	if (full.flags & ~OMNIKV_MANAGER_F_ALL || full.reserved)
		return okv_error_set(err, -EINVAL, "struct omnikv_manager_config: flags 0x%x, of which 0x%x are known", full.flags,
				     OMNIKV_MANAGER_F_ALL);
	/* A second one would take over what the first one is using. */
	if (atomic_exchange(&client->is_managed, true))
		return okv_error_set(err, -EBUSY, "the client has a manager; destroy that first, or open spaces in it");
	ret = okv_manager_begin(client, &full, out, err);
	if (ret)
		atomic_store(&client->is_managed, false);
	return ret;
}

/* Sequences and matches refer to what would end. */
static bool okv_manager_is_used(struct omnikv_manager *manager)
{
	struct okv_visit visit;
	bool is_used;

	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	is_used = manager->seqs.next != &manager->seqs || manager->nr_matches;
	okv_visit_leave(&visit);
	return is_used;
}

int omnikv_manager_destroy(struct omnikv_manager *manager)
{
	struct okv_private_slab *slab;
	struct okv_shelf *shelf;

	if (!manager)
		return 0;
	if (okv_manager_is_used(manager))
		return -EBUSY;
	okv_retain_fini(manager);
	if (okv_is_attached(manager))
		okv_imports_end(manager);
	else if (!manager->catalog)
		omnikv_manager_reset(manager);
	okv_tier_destroy(manager);
	for (shelf = manager->shelves; shelf; shelf = shelf->next)
		assert(shelf->pins.next == &shelf->pins);
	okv_pool_catalog_close(manager);
	okv_tokens_destroy(manager->tokens);
	manager->tokens = NULL;
	okv_space_fini(manager);
	while ((shelf = manager->shelves)) {
		manager->shelves = shelf->next;
		okv_index_destroy(shelf->index);
		okv_shelf_free(shelf);
	}
	while ((slab = manager->slabs)) {
		manager->slabs = slab->next;
		free(slab);
	}
	atomic_store(&manager->client->is_managed, false);
	okv_imports_destroy(manager);
	okv_manager_free(manager);
	return 0;
}

struct omnikv_client *omnikv_manager_client(const struct omnikv_manager *manager)
{
	return manager->client;
}

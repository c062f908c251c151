// SPDX-License-Identifier: MIT
/*
 * Demotion and promotion; see tier.h. What is on its way belongs to this file.
 * Any thread.
 */
#include "manager/tier.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device.h"
#include "failpoint.h"
#include "manager/import.h"
#include "manager/retain.h"
#include "manager/space.h"
#include "manager/watch.h"
#include "provider.h"
#include "spill/spill.h"

#define TIER_BATCH	64u
/* How long the manager's end waits for a disk that does not answer. */
#define END_TRIES	100u
#define END_NS		10000000

/* Extents that a request which did not come back in time still uses. */
struct okv_stuck {
	struct okv_stuck	*next;
	uint32_t		nr_extents;
	struct omnikv_extent	extents[];
};

struct okv_tier {
	struct omnikv_spill	*spill;
	uint32_t		admit;
	/* under the manager's lock */
	uint64_t		era;		/* of the store; see okv_store_era() */
	bool			has_untold;	/* the watcher must hear everything again */
	struct okv_stuck	*stuck;
};

int okv_tier_create(struct omnikv_spill *spill, uint32_t admit, const struct omnikv_client *client,
		    struct okv_tier **tier, uint64_t *epoch)
{
	struct okv_disk *disk = spill->disk;
	struct okv_spill_era era;

	if (admit > OMNIKV_SPILL_ADMIT_SECOND)
		return -EINVAL;
	*tier = calloc(1, sizeof(**tier));
	if (!*tier)
		return -ENOMEM;
	(*tier)->spill = spill;
	(*tier)->admit = admit;
	okv_store_era(spill->store, &era);
	(*tier)->era = era.number;
	*epoch = era.epoch;
	/* Its extents are read into and written from for as long as a request is under way, whatever ends before. */
	if (disk->ops->keep)
		disk->ops->keep(disk, okv_client_fd(client));
	return 0;
}

int okv_tier_era_begin(struct omnikv_manager *manager, uint64_t epoch)
{
	return okv_store_era_begin(manager->tier->spill->store, epoch);
}

void okv_tier_era_enter(struct omnikv_manager *manager)
{
	struct okv_spill_era era;

	if (!manager->tier)
		return;
	okv_store_era(manager->tier->spill->store, &era);
	if (manager->watch && era.number != manager->tier->era)
		manager->watch->cleared(manager->watch);
	manager->tier->era = era.number;
}

/* From a namespace's identity to what the store calls it, in every era something else; and back. */
static void in_era(uint64_t era, uint8_t ns[32])
{
	for (uint32_t i = 0; i < sizeof(era); i++)
		ns[i] ^= (uint8_t)(era >> 8 * i);
}

static void name_in(uint64_t era, const struct omnikv_space *space, uint8_t ns[32])
{
	memcpy(ns, space->identity, 32);
	in_era(era, ns);
}

/* ---- telling the watcher -------------------------------------------------------------------- */

void okv_tier_watch(struct omnikv_manager *manager)
{
	if (!manager->tier)
		return;
	okv_store_watch(manager->tier->spill->store, manager->watch);
	manager->tier->has_untold = false;
}

struct telling {
	const struct omnikv_space	*space;
	bool				is_there;
};

static void tell_record(void *opaque, const struct okv_record *rec)
{
	const struct telling *telling = opaque;
	struct okv_watch *watch = telling->space->manager->watch;

	watch->spilled(watch, telling->space, &rec->key, &rec->parent, rec->nr_tokens, telling->is_there);
}

int okv_tier_tell_space(struct omnikv_space *space, bool is_there)
{
	struct telling telling = { .space = space, .is_there = is_there };
	struct omnikv_manager *manager = space->manager;
	uint8_t ns[32];
	int ret;

	if (!manager->watch || !manager->tier)
		return 0;
	name_in(manager->tier->era, space, ns);
	ret = okv_store_list(manager->tier->spill->store, ns, tell_record, &telling);
	manager->tier->has_untold |= ret != 0;
	return ret;
}

/* Inside a visit: what came to the store and left it meanwhile. That of an older era has been cleared. */
static void tell_changes(struct omnikv_manager *manager)
{
	struct okv_tier *tier = manager->tier;
	struct okv_store_change *changes;
	uint32_t nr;

	if (!manager->watch)
		return;
	tier->has_untold |= okv_store_changes(tier->spill->store, &changes, &nr) != 0;
	for (uint32_t i = 0; i < nr && !tier->has_untold; i++) {
		const struct okv_store_change *change = &changes[i];
		struct omnikv_space *space;
		uint8_t identity[32];

		memcpy(identity, change->ns, sizeof(identity));
		in_era(tier->era, identity);
		space = okv_space_find_locked(manager, identity);
		if (space)
			manager->watch->spilled(manager->watch, space, &change->key, &change->parent, change->nr_tokens,
						change->is_there);
	}
	free(changes);
	if (tier->has_untold)
		tier->has_untold = okv_watch_again(manager) != 0;
}

/* ---- memory on its way ---------------------------------------------------------------------- */

/* Inside a visit: what is no longer on its way is free. */
static void give_back(struct okv_visit *visit, const struct omnikv_extent *extents, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++) {
		visit->manager->tier_granules -= extents[i].nr_granules;
		okv_visit_give(visit, &extents[i]);
	}
}

/* The disk still uses these. Without memory to note them they are never given back, which is safe. */
static void keep_stuck(struct omnikv_manager *manager, const struct omnikv_extent *extents, uint32_t nr)
{
	struct okv_stuck *stuck = malloc(sizeof(*stuck) + nr * sizeof(*extents));
	struct okv_visit visit;

	if (!stuck)
		return;
	stuck->nr_extents = nr;
	memcpy(stuck->extents, extents, nr * sizeof(*extents));
	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	stuck->next = manager->tier->stuck;
	manager->tier->stuck = stuck;
	okv_visit_leave(&visit);
}

static bool has_stuck(struct omnikv_manager *manager)
{
	struct okv_visit visit;
	bool has;

	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	has = manager->tier->stuck != NULL;
	okv_visit_leave(&visit);
	return has;
}

/* Everything has come back: true. */
static bool release_stuck(struct omnikv_manager *manager)
{
	struct okv_stuck *stuck;
	struct okv_visit visit;

	if (!has_stuck(manager))
		return true;
	if (!okv_store_is_idle(manager->tier->spill->store))
		return false;
	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	while ((stuck = manager->tier->stuck)) {
		manager->tier->stuck = stuck->next;
		give_back(&visit, stuck->extents, stuck->nr_extents);
		free(stuck);
	}
	okv_visit_leave(&visit);
	return true;
}

void okv_tier_destroy(struct omnikv_manager *manager)
{
	struct timespec ts = { .tv_nsec = END_NS };
	struct okv_stuck *stuck;
	struct okv_disk *disk;

	if (!manager->tier)
		return;
	disk = manager->tier->spill->disk;
	for (uint32_t i = 0; i < END_TRIES && !release_stuck(manager); i++)
		nanosleep(&ts, NULL);
	while ((stuck = manager->tier->stuck)) {
		manager->tier->stuck = stuck->next;
		free(stuck);
	}
	if (disk->ops->keep)
		disk->ops->keep(disk, -1);
	free(manager->tier);
	manager->tier = NULL;
}

/* ---- demotion ------------------------------------------------------------------------------- */

/* Blocks that are leaving. */
struct okv_demotion {
	uint32_t		nr_blocks;
	uint32_t		nr_groups;
	uint32_t		nr_puts;
	struct omnikv_extent	extents[TIER_BATCH * OMNIKV_GROUPS_MAX];
	struct okv_index_victim	victims[TIER_BATCH];
	struct okv_store_put	puts[TIER_BATCH];
};

static bool is_admitted(const struct okv_tier *tier, const struct okv_index_victim *victim)
{
	return tier->admit == OMNIKV_SPILL_ADMIT_ALL || victim->heat >= 1;
}

/* Where others may write to the index a victim can claim to be anything: only a block of its namespace is written. */
static struct omnikv_space *space_of_victim(const struct omnikv_manager *manager, const struct okv_demotion *dem,
					    uint32_t i)
{
	uint32_t ns = dem->victims[i].ns;
	struct omnikv_space *space = ns < manager->nr_ids ? manager->space_of_id[ns] : NULL;

	if (!space || space->shelf->nr_groups != dem->nr_groups)
		return NULL;
	for (uint32_t g = 0; g < dem->nr_groups; g++) {
		const struct omnikv_extent *extent = &dem->extents[i * dem->nr_groups + g];
		uint64_t nr_granules = space->plan->plan.groups[g].nr_granules;

		if (extent->nr_granules && (extent->nr_granules != nr_granules || extent->granule >= manager->nr_granules ||
					    nr_granules > manager->nr_granules - extent->granule))
			return NULL;
	}
	return space;
}

/* Inside a visit: what is to be written of victim @i. */
static void prepare_put(struct omnikv_manager *manager, struct okv_demotion *dem, uint32_t i)
{
	const struct omnikv_space *space = space_of_victim(manager, dem, i);
	const struct okv_index_victim *victim = &dem->victims[i];
	struct okv_store_put *put = &dem->puts[dem->nr_puts];

	if (!space) {
		manager->stats.blocks_lost++;
		return;
	}
	if (victim->is_dropped || !is_admitted(manager->tier, victim)) {
		manager->stats.blocks_not_admitted += !victim->is_dropped;
		return;
	}
	memset(&put->rec, 0, sizeof(put->rec));
	name_in(manager->tier->era, space, put->rec.ns);
	put->rec.key = victim->key;
	put->rec.parent = victim->parent;
	put->rec.position = victim->position;
	put->rec.nr_tokens = victim->nr_tokens == OKV_BLOCK_FULL ? space->plan->plan.block_tokens : victim->nr_tokens;
	put->rec.nr_parts = dem->nr_groups;
	for (uint32_t g = 0; g < dem->nr_groups; g++) {
		const struct omnikv_extent *extent = &dem->extents[i * dem->nr_groups + g];

		put->rec.parts[g].bytes = extent->nr_granules * manager->granule_bytes;
		put->rec.parts[g].crc = victim->crc32c[g];
		put->bufs[g] = manager->base + extent->granule * manager->granule_bytes;
	}
	dem->nr_puts++;
}

/* Take up to a batch of blocks out of memory's index. Returns how many. */
static uint32_t demote_begin(struct omnikv_manager *manager, uint64_t nr_granules, struct okv_demotion *dem)
{
	struct okv_visit visit;
	struct okv_shelf *shelf;
	uint64_t done = 0, nr, free_granules;

	dem->nr_blocks = 0;
	dem->nr_puts = 0;
	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	free_granules = okv_pool_free_granules(manager->pool);
	okv_retain_expire(manager);
	while (free_granules < nr_granules && !dem->nr_blocks) {
		shelf = okv_evict_shelf(manager, done);
		if (!shelf && okv_retain_yield(manager)) {
			done = 0;
			continue;
		}
		if (!shelf)
			break;
		nr = nr_granules == UINT64_MAX ? TIER_BATCH : (nr_granules - free_granules) / shelf->block_granules + 1;
		if (nr > TIER_BATCH)
			nr = TIER_BATCH;
		dem->nr_groups = shelf->nr_groups;
		dem->nr_blocks = okv_index_evict(shelf->index, nr, dem->extents, dem->victims);
		for (uint32_t i = 0; i < dem->nr_blocks * dem->nr_groups; i++) {
			okv_shelf_less(shelf, dem->extents[i].nr_granules);
			manager->tier_granules += dem->extents[i].nr_granules;
		}
		if (!dem->nr_blocks) {
			uint32_t i = 0;

			for (struct okv_shelf *s = manager->shelves; s != shelf; s = s->next)
				i++;
			if (i >= 64)
				break;
			done |= 1ull << i;
		}
	}
	manager->stats.blocks_evicted += dem->nr_blocks;
	for (uint32_t i = 0; i < dem->nr_blocks; i++)
		prepare_put(manager, dem, i);
	okv_visit_leave(&visit);
	return dem->nr_blocks;
}

static void demote_end(struct omnikv_manager *manager, struct okv_demotion *dem, int ret, uint64_t stored_bytes)
{
	struct okv_visit visit;

	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	for (uint32_t i = 0; i < dem->nr_puts; i++) {
		manager->stats.blocks_spilled += !dem->puts[i].res;
		manager->stats.blocks_lost += dem->puts[i].res != 0;
	}
	manager->stats.bytes_spilled += stored_bytes;
	tell_changes(manager);
	if (ret != -ETIME)
		give_back(&visit, dem->extents, dem->nr_blocks * dem->nr_groups);
	okv_visit_leave(&visit);
	if (ret == -ETIME)
		keep_stuck(manager, dem->extents, dem->nr_blocks * dem->nr_groups);
}

/* Bytes of what a put has really written: a record that was there already keeps the caller's generation, 0. */
static uint64_t written_bytes(const struct okv_demotion *dem)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < dem->nr_puts; i++)
		if (!dem->puts[i].res && dem->puts[i].rec.generation)
			bytes += okv_record_payload(&dem->puts[i].rec);
	return bytes;
}

/* Demote one batch; how many blocks left memory. */
static uint32_t demote(struct omnikv_manager *manager, uint64_t nr_granules, struct okv_demotion *dem)
{
	int ret = 0;

	if (!demote_begin(manager, nr_granules, dem))
		return 0;
	(void)OKV_FAILPOINT("tier.demote");
	if (dem->nr_puts)
		ret = okv_store_put(manager->tier->spill->store, dem->puts, dem->nr_puts);
	demote_end(manager, dem, ret, ret ? 0 : written_bytes(dem));
	return dem->nr_blocks;
}

/* Demote until so many granules are free, beside the staging reserve or with it. false: nothing could be done for it. */
static bool make_room(struct omnikv_manager *manager, uint64_t nr_granules, bool is_staging)
{
	struct okv_demotion *dem;
	struct okv_visit visit;
	uint64_t nr_blocks = 0;
	bool has_room, can;
	uint32_t nr;

	if (!is_staging)
		nr_granules += manager->staging_granules;
	release_stuck(manager);
	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	has_room = okv_pool_free_granules(manager->pool) >= nr_granules;
	/* Nothing is written in vain. */
	can = has_room || okv_may_make_room(manager, nr_granules);
	okv_visit_leave(&visit);
	if (has_room || !can)
		return has_room;
	dem = malloc(sizeof(*dem));
	if (!dem)
		return false;
	while ((nr = demote(manager, nr_granules, dem)))
		nr_blocks += nr;
	free(dem);
	return nr_blocks != 0;
}

int okv_tier_alloc(struct okv_visit *visit, struct okv_want *wants, uint32_t nr_wants, uint64_t nr_privates)
{
	uint64_t nr_granules = 0, more = 0;
	int ret;

	if (okv_is_attached(visit->manager))
		return okv_import_alloc(visit, wants, nr_wants, nr_privates);
	visit->is_saving = visit->manager->tier != NULL;
	for (uint32_t i = 0; i < nr_wants; i++)
		nr_granules += (uint64_t)wants[i].count * wants[i].nr_granules;
	for (;;) {
		okv_visit_enter(visit);
		ret = okv_private_reserve(visit->manager, nr_privates);
		if (!ret)
			ret = okv_manager_alloc(visit, wants, nr_wants);
		if (ret != -EAGAIN)
			break;
		/* Room enough may be in the wrong places: more of it, twice as much each time. */
		okv_visit_leave(visit);
		visit->is_saving = make_room(visit->manager, nr_granules + more, visit->is_staging) && more < visit->manager->nr_granules;
		more = more ? 2 * more : nr_granules / 4 + 1;
	}
	visit->is_saving = false;
	return ret;
}

void okv_tier_make_room(struct omnikv_manager *manager, uint64_t nr_granules)
{
	if (manager->tier)
		make_room(manager, nr_granules, true);
}

int64_t omnikv_manager_flush(struct omnikv_manager *manager)
{
	struct okv_demotion *dem;
	struct okv_visit visit;
	int64_t nr_blocks = 0;
	uint32_t nr;

	if (!manager)
		return -EINVAL;
	if (!manager->tier)
		return -EOPNOTSUPP;
	dem = malloc(sizeof(*dem));
	if (!dem)
		return -ENOMEM;
	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	okv_retain_end_all(manager);
	okv_visit_leave(&visit);
	while ((nr = demote(manager, UINT64_MAX, dem)))
		nr_blocks += nr;
	free(dem);
	return nr_blocks;
}

/* ---- promotion ------------------------------------------------------------------------------ */

struct okv_promotion {
	struct omnikv_space	*space;
	const struct omnikv_key	*keys;
	size_t			nr_keys;
	const struct omnikv_key	*tail;
	uint64_t		until_ns;	/* memory is waited for so long */
	struct okv_pin		pin;		/* on the last block that is in memory; inactive: there is none */
	uint64_t		nr_blocks;	/* of the path down to it */
	uint64_t		era;		/* in which this began */
	uint8_t			ns[32];		/* the store's name of the namespace in it */
	bool			is_tail_done;
	uint32_t		nr_gets;
	struct okv_store_get	gets[TIER_BATCH];
	struct omnikv_extent	extents[TIER_BATCH * OMNIKV_GROUPS_MAX];	/* [get][group] */
};

/* Is this record the block that belongs at @position, in the shape of this namespace? */
static bool fits(const struct okv_promotion *pro, const struct okv_record *rec, uint64_t position, bool is_tail)
{
	const struct omnikv_plan *plan = &pro->space->plan->plan;
	static const struct omnikv_key none;
	const struct omnikv_key *parent = position ? &pro->keys[position - 1] : &none;

	if (rec->position != position || rec->parent.len != parent->len ||
	    memcmp(rec->parent.bytes, parent->bytes, sizeof(parent->bytes)) ||
	    rec->nr_parts != plan->layout.nr_groups ||
	    (is_tail ? !rec->nr_tokens || rec->nr_tokens >= plan->block_tokens : rec->nr_tokens != plan->block_tokens))
		return false;
	for (uint32_t g = 0; g < rec->nr_parts; g++) {
		uint64_t bytes = plan->groups[g].nr_granules * pro->space->manager->granule_bytes;

		if (rec->parts[g].bytes != bytes && (rec->parts[g].bytes || !(pro->space->needed_state >> g & 1)))
			return false;
	}
	return true;
}

/* What the store has of the blocks behind. */
static void promote_find(struct okv_promotion *pro)
{
	struct okv_store *store = pro->space->manager->tier->spill->store;

	pro->nr_gets = 0;
	while (pro->nr_gets < TIER_BATCH) {
		uint64_t position = pro->nr_blocks + pro->nr_gets;
		bool is_tail = position == pro->nr_keys;
		const struct omnikv_key *key = is_tail ? pro->tail : &pro->keys[position];
		struct okv_record *rec = &pro->gets[pro->nr_gets].rec;

		if (position > pro->nr_keys || !key || !okv_store_find(store, pro->ns, key, rec) ||
		    !fits(pro, rec, position, is_tail))
			break;
		pro->nr_gets++;
		if (is_tail)
			break;
	}
}

/* Memory for one block: of the pool; of the staging reserve, once that has nothing more. -ENOSPC where neither has. */
static int promote_alloc_one(struct okv_visit *visit, struct okv_want *wants, uint32_t nr_wants)
{
	int ret = okv_tier_alloc(visit, wants, nr_wants, 0);

	if (ret == -ENOSPC && !visit->is_staging && visit->manager->staging_granules) {
		visit->is_staging = true;
		ret = okv_tier_alloc(visit, wants, nr_wants, 0);
	}
	visit->manager->stats.blocks_staged += !ret && visit->is_staging;
	return ret;
}

/* Memory for what was found, as far as there is any; for the first block of it, it is waited for. */
static void promote_alloc(struct okv_promotion *pro)
{
	struct omnikv_manager *manager = pro->space->manager;
	uint32_t nr_groups = pro->space->plan->plan.layout.nr_groups;
	const struct omnikv_extent *after[OMNIKV_GROUPS_MAX] = { NULL };
	struct okv_want wants[OMNIKV_GROUPS_MAX];
	uint64_t nr_granules = 0;
	struct okv_visit visit;
	uint32_t i;
	int ret;

	memset(pro->extents, 0, sizeof(pro->extents));
	for (i = 0; i < pro->nr_gets; i++)
		nr_granules += okv_record_payload(&pro->gets[i].rec) / manager->granule_bytes;
	/* In one go, so that what leaves is written in large batches. */
	make_room(manager, nr_granules, false);
	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	for (i = 0; i < pro->nr_gets; i++) {
		struct omnikv_extent *extents = &pro->extents[i * nr_groups];
		uint32_t nr_wants = 0;

		for (uint32_t g = 0; g < nr_groups; g++) {
			pro->gets[i].bufs[g] = NULL;
			if (!pro->gets[i].rec.parts[g].bytes)
				continue;
			wants[nr_wants++] = (struct okv_want){
				.nr_granules = pro->gets[i].rec.parts[g].bytes / manager->granule_bytes,
				.count = 1,
				.after = after[g],
				.out = &extents[g],
			};
			after[g] = &extents[g];
		}
		ret = -OKV_FAILPOINT("tier.promote");
		if (!ret)
			ret = promote_alloc_one(&visit, wants, nr_wants);
		while (ret == -ENOSPC && !i && pro->until_ns && okv_visit_wait(&visit, pro->until_ns))
			ret = promote_alloc_one(&visit, wants, nr_wants);
		if (ret)
			break;
		for (uint32_t w = 0; w < nr_wants; w++) {
			manager->private_granules -= wants[w].nr_granules;
			manager->tier_granules += wants[w].nr_granules;
		}
		for (uint32_t g = 0; g < nr_groups; g++)
			if (extents[g].nr_granules)
				pro->gets[i].bufs[g] = manager->base + extents[g].granule * manager->granule_bytes;
	}
	manager->stats.lookups_without_room += i < pro->nr_gets;
	pro->nr_gets = i;
	okv_visit_leave(&visit);
}

/* Publish what was read, from the first on up to the first that was not. Returns how many; the rest is given back. */
static uint32_t promote_publish(struct okv_promotion *pro, uint32_t nr_good, struct okv_promoted *promoted)
{
	struct omnikv_manager *manager = pro->space->manager;
	uint32_t nr_groups = pro->space->plan->plan.layout.nr_groups, i;
	struct okv_shelf *shelf = pro->space->shelf;
	struct okv_visit visit;

	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	for (i = 0; i < nr_good && pro->era == manager->tier->era; i++) {
		const struct okv_record *rec = &pro->gets[i].rec;
		struct omnikv_extent *extents = &pro->extents[i * nr_groups];
		uint64_t position = pro->nr_blocks;
		bool is_tail = position == pro->nr_keys;
		struct omnikv_extent sealed[OMNIKV_GROUPS_MAX];
		uint32_t crcs[OMNIKV_GROUPS_MAX], nr_sealed = 0, entry;
		struct okv_index_block block = {
			.ns = pro->space->id,
			.parent = okv_pin_is_active(&pro->pin) ? pro->pin.entry : OKV_ENTRY_NONE,
			.position = position,
			.nr_tokens = is_tail ? rec->nr_tokens : OKV_BLOCK_FULL,
			.key = is_tail ? pro->tail : &pro->keys[position],
			.extents = extents,
			.crc32c = crcs,
		};
		int ret;

		for (uint32_t g = 0; g < nr_groups; g++) {
			crcs[g] = rec->parts[g].crc;
			if (extents[g].nr_granules)
				sealed[nr_sealed++] = extents[g];
		}
		okv_shelf_spare(&visit, shelf, 1);
		ret = omnikv_extent_seal(manager->client, sealed, nr_sealed);
		if (!ret)
			okv_manager_note_taken(manager, sealed, nr_sealed);
		if (!ret)
			ret = okv_index_insert(shelf->index, &block, &entry);
		if (ret && ret != -EEXIST)
			break;
		/* Somebody was faster: theirs is used, ours given back below. */
		if (!ret) {
			for (uint32_t g = 0; g < nr_groups; g++) {
				manager->tier_granules -= extents[g].nr_granules;
				shelf->nr_granules += extents[g].nr_granules;
				extents[g].nr_granules = 0;
			}
			manager->stats.blocks_fetched++;
			manager->stats.bytes_fetched += okv_record_payload(rec);
			promoted->nr_recovered += rec->generation < manager->tier->spill->store->first_generation;
		}
		if (is_tail) {
			pro->is_tail_done = true;
			promoted->nr++;
			i++;
			break;
		}
		if (okv_pin_move(shelf, &pro->pin, entry, position + 1))
			break;
		pro->nr_blocks++;
		promoted->nr++;
	}
	/* What was found bad has left the store. */
	tell_changes(manager);
	give_back(&visit, pro->extents, pro->nr_gets * nr_groups);
	okv_visit_leave(&visit);
	return i;
}

/* One batch. false: there is no more to be had. */
static bool promote(struct okv_promotion *pro, struct okv_promoted *promoted)
{
	struct omnikv_manager *manager = pro->space->manager;
	uint32_t nr_groups = pro->space->plan->plan.layout.nr_groups, nr_found, nr_good, nr_bad = 0;
	struct okv_visit visit;
	int ret;

	promote_find(pro);
	nr_found = pro->nr_gets;
	if (!nr_found)
		return false;
	promote_alloc(pro);
	if (!pro->nr_gets)
		return false;
	(void)OKV_FAILPOINT("tier.fetch");
	ret = okv_store_get(manager->tier->spill->store, pro->gets, pro->nr_gets);
	if (ret == -ETIME) {
		keep_stuck(manager, pro->extents, pro->nr_gets * nr_groups);
		return false;
	}
	for (nr_good = 0; nr_good < pro->nr_gets && !pro->gets[nr_good].res; nr_good++)
		;
	for (uint32_t i = 0; i < pro->nr_gets; i++)
		nr_bad += pro->gets[i].res && pro->gets[i].res != -ENOENT && pro->gets[i].res != -ETIME;
	if (nr_bad) {
		okv_visit_init(&visit, manager);
		okv_visit_enter(&visit);
		manager->stats.blocks_bad += nr_bad;
		okv_visit_leave(&visit);
	}
	return promote_publish(pro, nr_good, promoted) == nr_found && !pro->is_tail_done;
}

bool okv_tier_has_more(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys,
		       const struct omnikv_key *tail)
{
	struct okv_index_hit hit = { 0 };
	const struct omnikv_key *next;
	struct okv_visit visit;
	uint8_t ns[32];

	if (!space->manager->tier || !okv_keys_are_valid(keys, nr_keys, tail))
		return false;
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	name_in(space->manager->tier->era, space, ns);
	if (nr_keys)
		okv_index_match(space->shelf->index, space->id, keys, nr_keys, space->match_flags, &hit);
	next = hit.nr_blocks < nr_keys ? &keys[hit.nr_blocks] : tail;
	if (next == tail && tail && okv_index_find(space->shelf->index, space->id, tail) != OKV_ENTRY_NONE)
		next = NULL;
	okv_visit_leave(&visit);
	return next && okv_store_find(space->manager->tier->spill->store, ns, next, NULL);
}

void okv_tier_promote(struct omnikv_space *space, const struct omnikv_prefix *prefix, struct okv_promoted *promoted)
{
	const struct omnikv_key *tail = prefix->tail;
	size_t nr_keys = prefix->nr_keys;
	struct okv_promotion *pro;
	struct okv_index_hit hit;
	struct okv_visit visit;

	*promoted = (struct okv_promoted){ 0 };
	if (!space->manager->tier)
		return;
	pro = malloc(sizeof(*pro));
	if (!pro)
		return;
	release_stuck(space->manager);
	pro->space = space;
	pro->keys = prefix->keys;
	pro->nr_keys = nr_keys;
	pro->tail = tail;
	pro->pin.prev = NULL;
	pro->nr_blocks = 0;
	pro->is_tail_done = false;
	pro->until_ns = space->manager->staging_wait_ns ? okv_monotonic_ns() + space->manager->staging_wait_ns : 0;

	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	pro->era = space->manager->tier->era;
	name_in(pro->era, space, pro->ns);
	if (nr_keys)
		okv_index_match(space->shelf->index, space->id, prefix->keys, nr_keys, space->match_flags, &hit);
	if (nr_keys && hit.nr_blocks && !okv_pin_take(space->shelf, &pro->pin, hit.entry, hit.nr_blocks))
		pro->nr_blocks = hit.nr_blocks;
	/* The tail may be in memory already. */
	if (tail && pro->nr_blocks == nr_keys)
		pro->is_tail_done = okv_index_find(space->shelf->index, space->id, tail) != OKV_ENTRY_NONE;
	okv_visit_leave(&visit);

	promoted->first = pro->nr_blocks;
	if (!(nr_keys && hit.nr_blocks && !pro->nr_blocks) && !pro->is_tail_done)
		while (promote(pro, promoted))
			;

	okv_visit_enter(&visit);
	okv_pin_drop(&pro->pin);
	okv_visit_leave(&visit);
	free(pro);
}

uint64_t okv_tier_settle(struct okv_visit *visit, const struct okv_promoted *promoted, uint64_t nr_hit)
{
	uint64_t nr = nr_hit > promoted->first ? nr_hit - promoted->first : 0;

	if (nr > promoted->nr)
		nr = promoted->nr;
	visit->manager->stats.blocks_hit_nvme += nr;
	visit->manager->stats.blocks_hit_recovered += nr < promoted->nr_recovered ? nr : promoted->nr_recovered;
	return nr;
}

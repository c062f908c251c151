// SPDX-License-Identifier: MIT
/*
 * The walker over the manager's invariants (manager.h). For tests and debug builds: it takes
 * the lock for as long as it takes, and expects that no thread is inside a sequence's call.
 */
#include "manager/manager.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "manager/catalog.h"
#include "manager/import.h"
#include "manager/retain.h"
#include "option.h"
#include "provider_daemon.h"
#include "sequence.h"

#define BROKEN(...) okv_error_set(err, -EUCLEAN, __VA_ARGS__)

static int okv_check_extent(struct omnikv_manager *manager, const struct omnikv_extent *extent, uint32_t state,
			    const char *what, struct omnikv_error *err)
{
	struct omnikv_extent_info info = { .size = sizeof(info) };
	int ret;

	if (!extent->nr_granules)
		return 0;
	ret = omnikv_extent_query(manager->client, extent, &info);
	if (ret)
		return BROKEN("%s: extent at granule %llu of generation %u is gone (%d)", what,
			      (unsigned long long)extent->granule, extent->generation, ret);
	if (info.state != state)
		return BROKEN("%s: extent at granule %llu has state %u, not %u", what,
			      (unsigned long long)extent->granule, info.state, state);
	return 0;
}

/* An owned one is PRIVATE, or SEALED where the authority could not do more; an imported one is leased, also when given up. */
static int okv_check_attached(struct omnikv_manager *manager, const struct omnikv_extent *extent, bool is_owned,
			      struct omnikv_error *err)
{
	if (!extent->nr_granules)
		return 0;
	if (is_owned)
		return okv_check_extent(manager, extent, OMNIKV_EXTENT_PRIVATE, "owned entry", err);
	/* A generation is raised when it is given up: what is leased by us may be so, and is not re-used. */
	if (!omnikv_extent_lease(manager->client, extent, 1))
		return omnikv_extent_release(manager->client, extent, 1);
	return 0;
}

/* Nothing is here that nothing uses. */
static int okv_check_trimmed(const struct okv_shelf *shelf, struct omnikv_error *err)
{
	struct okv_index_info info;

	for (uint32_t id = 0; id < okv_index_nr_ids(shelf->index); id++)
		if (!okv_index_get(shelf->index, id, &info) && !info.nr_children && !info.nr_pins)
			return BROKEN("entry %u is held, and nothing uses it", id);
	return 0;
}

static int okv_check_shelf(struct omnikv_manager *manager, struct okv_shelf *shelf, struct omnikv_error *err)
{
	uint64_t nr_granules = 0, nr_pins = 0, pin_blocks = 0;
	struct okv_index_stats stats;
	struct okv_index_info info;
	const char *reason = "";
	int ret;

	ret = okv_index_check(shelf->index, &reason);
	if (ret)
		return ret == -EUCLEAN ? BROKEN("index: %s", reason) : ret;
	for (uint32_t id = 0; id < okv_index_nr_ids(shelf->index); id++) {
		if (okv_index_get(shelf->index, id, &info))
			continue;
		if (info.ns >= manager->nr_ids || !manager->space_of_id[info.ns])
			return BROKEN("entry %u: there is no namespace %u", id, info.ns);
		for (uint32_t g = 0; g < shelf->nr_groups; g++) {
			struct omnikv_extent extent;
			uint32_t crc;

			okv_index_extent(shelf->index, id, g, &extent, &crc);
			if (okv_is_attached(manager)) {
				ret = okv_check_attached(manager, &extent, okv_shelf_is_owned(shelf, id), err);
				nr_granules += okv_shelf_is_owned(shelf, id) ? extent.nr_granules : 0;
			} else {
				nr_granules += extent.nr_granules;
				ret = okv_check_extent(manager, &extent, OMNIKV_EXTENT_SEALED, "entry", err);
			}
			if (ret)
				return ret;
		}
	}
	if (nr_granules != shelf->nr_granules)
		return BROKEN("entries have %llu granules, %llu are counted", (unsigned long long)nr_granules,
			      (unsigned long long)shelf->nr_granules);
	for (const struct okv_pin *pin = shelf->pins.next; pin != &shelf->pins; pin = pin->next) {
		nr_pins++;
		pin_blocks += pin->nr_blocks;
		if (okv_index_get(shelf->index, pin->entry, &info) || info.position + 1 != pin->nr_blocks)
			return BROKEN("a pin on entry %u says %u blocks", pin->entry, pin->nr_blocks);
	}
	if (okv_is_attached(manager)) {
		ret = okv_check_trimmed(shelf, err);
		if (ret)
			return ret;
	}
	ret = okv_retain_check(manager, shelf, &nr_pins, &reason);
	if (ret)
		return ret == -EUCLEAN ? BROKEN("retentions: %s", reason) : ret;
	okv_index_stats(shelf->index, &stats);
	if (nr_pins != stats.nr_pins || pin_blocks != shelf->pin_blocks)
		return BROKEN("%llu pins are listed, the index counts %llu", (unsigned long long)nr_pins,
			      (unsigned long long)stats.nr_pins);
	return 0;
}

static int okv_check_seq(struct omnikv_manager *manager, struct omnikv_seq *seq, uint64_t *nr_privates,
			 uint64_t *nr_granules, struct omnikv_error *err)
{
	uint32_t nr_groups = seq->table.nr_groups;
	uint32_t *entries;
	int ret = 0;

	if (seq->nr_cached > seq->table.nr_blocks ||
	    (seq->nr_cached ? seq->pin.nr_blocks : 0) != seq->nr_cached ||
	    (seq->nr_cached != 0) != okv_pin_is_active(&seq->pin))
		return BROKEN("a sequence of %llu blocks has %llu cached and pins %u",
			      (unsigned long long)seq->table.nr_blocks, (unsigned long long)seq->nr_cached,
			      seq->pin.nr_blocks);
	entries = malloc((seq->nr_cached + 1) * sizeof(*entries));
	if (!entries)
		return -ENOMEM;
	if (seq->nr_cached)
		okv_index_blocks(seq->pin.shelf->index, seq->pin.entry, 0, entries);
	for (uint64_t i = 0; i < seq->table.nr_blocks && !ret; i++) {
		struct okv_leaf *leaf = okv_table_leaf(&seq->table, i);
		uint32_t slot = okv_table_slot(i);
		struct okv_private *private = leaf->private[slot];

		if ((private == NULL) != (i < seq->nr_cached)) {
			ret = BROKEN("block %llu of a sequence with %llu cached is %s", (unsigned long long)i,
				     (unsigned long long)seq->nr_cached, private ? "private" : "cached");
			break;
		}
		for (uint32_t g = 0; g < nr_groups && !private && !ret; g++) {
			struct omnikv_extent extent;
			uint32_t crc;

			okv_index_extent(seq->pin.shelf->index, entries[i], g, &extent, &crc);
			if (memcmp(&extent, &leaf->extents[slot * nr_groups + g], sizeof(extent)) &&
			    leaf->extents[slot * nr_groups + g].nr_granules)
				ret = BROKEN("block %llu: sequence and index name different extents",
					     (unsigned long long)i);
		}
		if (!private || private->seen == manager->seen)
			continue;
		private->seen = manager->seen;
		++*nr_privates;
		for (uint32_t g = 0; g < nr_groups && !okv_pin_is_active(&private->pin) && !ret; g++) {
			const struct omnikv_extent *extent = &leaf->extents[slot * nr_groups + g];

			*nr_granules += extent->nr_granules;
			ret = okv_check_extent(manager, extent,
					       private->flags & OKV_PRIVATE_F_SEALED && !okv_is_attached(manager) ?
					       OMNIKV_EXTENT_SEALED : OMNIKV_EXTENT_PRIVATE,
					       "private block", err);
		}
	}
	free(entries);
	return ret;
}

static int okv_check_pool(struct omnikv_manager *manager, uint64_t used, struct omnikv_error *err)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	uint64_t bytes;
	int ret;

	if (manager->stats.extents_lost && !okv_is_attached(manager))
		return BROKEN("the pool did not take %llu extents back: its records were overwritten",
			      (unsigned long long)manager->stats.extents_lost);
	/* Who else has what of the pool is the authority's to check. */
	if (okv_is_attached(manager))
		return 0;
	ret = omnikv_pool_info(manager->pool, &info);
	if (ret || info.nr_clients != 1)
		return ret;
	bytes = info.state_bytes[OMNIKV_EXTENT_PRIVATE] + info.state_bytes[OMNIKV_EXTENT_SEALED];
	if (manager->catalog && info.state_bytes[OMNIKV_EXTENT_META] !=
				okv_pool_catalog_granules(manager) * manager->granule_bytes)
		return BROKEN("the pool has %llu bytes of META, the catalog %llu",
			      (unsigned long long)info.state_bytes[OMNIKV_EXTENT_META],
			      (unsigned long long)(okv_pool_catalog_granules(manager) * manager->granule_bytes));
	used += okv_daemon_client_reserve(manager->client);
	if (bytes != used * manager->granule_bytes)
		return BROKEN("the pool has %llu bytes private and sealed, the manager knows of %llu",
			      (unsigned long long)bytes, (unsigned long long)(used * manager->granule_bytes));
	return 0;
}

static int okv_check_locked(struct omnikv_manager *manager, struct omnikv_error *err)
{
	uint64_t nr_privates = 0, nr_granules = 0, nr_slots = 0, used;
	int ret = 0;

	used = manager->private_granules + manager->tier_granules;
	for (struct okv_shelf *shelf = manager->shelves; shelf && !ret; shelf = shelf->next) {
		ret = okv_check_shelf(manager, shelf, err);
		used += shelf->nr_granules;
	}
	manager->seen++;
	for (struct okv_seq_link *link = manager->seqs.next; link != &manager->seqs && !ret; link = link->next)
		ret = okv_check_seq(manager, okv_seq_of_link(link), &nr_privates, &nr_granules, err);
	if (ret)
		return ret;
	for (const struct okv_private_slab *slab = manager->slabs; slab; slab = slab->next)
		nr_slots += OKV_PRIVATE_SLAB;
	if (nr_privates != nr_slots - manager->nr_free_privates)
		return BROKEN("%llu private blocks are in sequences, %llu are allocated",
			      (unsigned long long)nr_privates,
			      (unsigned long long)(nr_slots - manager->nr_free_privates));
	if (nr_granules != manager->private_granules)
		return BROKEN("private blocks have %llu granules, %llu are counted", (unsigned long long)nr_granules,
			      (unsigned long long)manager->private_granules);
	return okv_check_pool(manager, used, err);
}

int omnikv_manager_check(struct omnikv_manager *manager, struct omnikv_error *err)
{
	struct okv_visit visit;
	int ret;

	if (err)
		err->text[0] = '\0';
	if (!manager)
		return -EINVAL;
	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	ret = okv_check_locked(manager, err);
	okv_visit_leave(&visit);
	return ret;
}

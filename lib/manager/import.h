/* SPDX-License-Identifier: MIT */
/*
 * The attached manager's side of an authority (authority.h): what it holds of the shared cache.
 *
 * Its index has what its own sequences and matches use, and nothing else:
 *
 *	          okv_import(): leased                       last pin: lease released
 *	authority -----------------------> imported entry ---------------------------> (gone)
 *	    ^                                                last pin: memory given up
 *	    '-- okv_imports_flush(): published -- owned entry -------------------------> (gone)
 *	                                            ^
 *	                                            '-- commit: summed, closed to stores
 *
 * A commit makes owned entries, which are queued and published in order; while nobody answers they
 * wait. The queue keeps what is in it; it is bounded, and what falls out of it is only lost to others.
 *
 * Everything here is without effect on a manager that has no authority.
 */
#ifndef OKV_IMPORT_H
#define OKV_IMPORT_H

#include "manager/authority.h"
#include "manager/manager.h"

/** Takes over @auth. -ENOMEM. */
int okv_imports_create(struct okv_authority *auth, struct okv_imports **imports);
/** Publish what can be, and forget the rest of the queue; sequences and matches are closed. */
void okv_imports_end(struct omnikv_manager *manager);
/** After the namespaces; and the authority. */
void okv_imports_destroy(struct omnikv_manager *manager);

static inline bool okv_is_attached(const struct omnikv_manager *manager)
{
	return manager->imports != NULL;
}

/*
 * Outside of visits.
 */

/**
 * struct okv_imported - what an import keeps until the lookup has taken its own pin
 * @pin:         on the last block of the prefix that is here; not active: none is, or nobody had to import
 * @tail_tokens: of the tail, where that is the last one; else 0
 */
struct okv_imported {
	struct okv_pin		pin;
	uint32_t		tail_tokens;
};

/**
 * okv_import() - have here what the authority has of these prefixes, beyond what is here
 * @visit:    outside; inside after it, so that nothing leaves before the lookup
 * @nr:       1 to OKV_ASKS_MAX
 * @flags:    OKV_FIND_F_*
 * @imported: [nr] results, each to be ended by okv_import_end()
 *
 * Whatever fails makes the hit shorter.
 */
void okv_import(struct okv_visit *visit, struct omnikv_space *space, const struct omnikv_prefix *prefixes, uint32_t nr,
		uint32_t flags, struct okv_imported *imported);
/** After the lookup; inside its visit. */
static inline void okv_import_end(struct okv_imported *imported)
{
	okv_pin_drop(&imported->pin);
}
/** Publish what is queued, as far as it goes now. */
void okv_imports_flush(struct omnikv_manager *manager);
/** Tell the authority of lookups of @prefixes, [nr], and how far they hit. @nr: at most OKV_ASKS_MAX. */
void okv_import_use(struct omnikv_space *space, const struct omnikv_prefix *prefixes, const struct okv_path *paths,
		    uint32_t nr);
/** Of what the authority has; what is here of an older epoch is not found after it. */
int64_t okv_import_lookup(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys);
/** Open the namespace there. 0 without an authority. */
int okv_import_space(struct omnikv_space *space, const struct omnikv_namespace *ns, struct omnikv_error *notice);
/** The namespace is about to go. Also inside a visit. */
void okv_import_space_end(struct omnikv_space *space);
void okv_import_distrust(struct omnikv_space *space, const struct omnikv_key *key);
/** See omnikv_space_retain(), omnikv_space_unretain() (without keys). */
int64_t okv_import_retain(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys,
			  const struct omnikv_key *tail, const struct omnikv_retention *how);
/** See okv_authority_ops. */
int okv_import_give(struct omnikv_space *space, const struct omnikv_key *key, uint32_t position, uint32_t timeout_ms,
		    struct omnikv_ticket *ticket);
int okv_import_take(struct omnikv_space *space, const struct omnikv_ticket *ticket, uint64_t first,
		    struct okv_handed *handed);
int okv_import_take_end(struct omnikv_space *space, const struct omnikv_ticket *ticket);
int64_t okv_import_reset(struct omnikv_manager *manager);
int okv_import_can_room(struct omnikv_manager *manager, uint64_t nr_granules);

/** See okv_tier_alloc(). */
int okv_import_alloc(struct okv_visit *visit, struct okv_want *wants, uint32_t nr_wants, uint64_t nr_privates);

/*
 * Inside a visit.
 */

/** The epoch of what is here: the manager's own, or the authority's as it was when last asked. */
uint64_t okv_import_epoch(const struct omnikv_manager *manager);
/** @entry has lost a pin: it and its ancestors leave, up to the first that something needs. */
void okv_import_trim(struct okv_shelf *shelf, uint32_t entry);
/** Give back what trims have collected; the visit is about to end. */
void okv_imports_settle(struct omnikv_manager *manager);

/** Is the entry's memory this client's own still? */
static inline bool okv_shelf_is_owned(const struct okv_shelf *shelf, uint32_t entry)
{
	return entry < shelf->nr_owned_ids && (shelf->owned[entry / 64] >> (entry % 64) & 1);
}

/** Room to mark @nr entries that are not there yet. -ENOMEM. */
int okv_import_prepare(struct okv_shelf *shelf, uint32_t nr);
/** A fresh entry is owned. Cannot fail after okv_import_prepare(). */
void okv_import_own(struct okv_shelf *shelf, uint32_t entry);
/** Queue the last @nr blocks of the path down to @entry, all owned. What cannot be queued is counted, and stays private here. */
void okv_import_queue(struct omnikv_space *space, uint32_t entry, uint32_t nr_blocks, uint32_t nr);
/** Blocks that wait to be published. */
uint64_t okv_imports_queued(const struct omnikv_manager *manager);
/** No transfer is on this extent of the client's own. */
bool okv_import_is_idle(struct omnikv_manager *manager, const struct omnikv_extent *extent);
/** See okv_authority_ops.attach; the local entry has the state as well. -EBUSY: not now. */
int okv_import_attach(struct omnikv_space *space, uint32_t entry, uint32_t group, const struct omnikv_extent *extent,
		      uint32_t crc);

#endif /* OKV_IMPORT_H */

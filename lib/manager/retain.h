/* SPDX-License-Identifier: MIT */
/*
 * What is kept in memory on request: pins, priorities, and what sessions will use next.
 *
 * A retention protects a path of one index. A pin does so until it ends. Any other one gives way when nothing
 * without a retention can leave any more, the one that is worth least (ranks.h) first: so the order of
 * eviction (evict.h) stays what it is, leaf by leaf, for whatever is not retained.
 *
 * Accounting, which omnikv_manager_check() walks: each shelf counts, per entry, the retentions of each kind whose
 * path goes through it; granules of a kind = those of entries with a count. Both kinds are bounded.
 */
#ifndef OKV_RETAIN_H
#define OKV_RETAIN_H

#include "manager/manager.h"
#include "manager/ranks.h"

/** The manager's own process. Other owners are clients, which get at most a half of each bound. */
#define OKV_OWNER_SELF		0u
/** Sequences on their way from one process to another (handover.h). */
#define OKV_OWNER_TICKETS	UINT64_MAX

/** Retentions of one client. */
#define OKV_RETAIN_OF_OWNER	(OKV_RANKS_MAX / 4)

/** Kinds of retentions. */
enum { OKV_RETAIN_PIN, OKV_RETAIN_RANKED, OKV_RETAIN_KINDS };

/**
 * struct okv_retained - one retention
 * @rank:        begins it; its weight is the granules that nothing else of its kind protected as it came
 * @pin:         its entry and length; active where it is a pin, else the index alone counts it
 * @secret:      of a ticket
 * @told_from:   of a ticket: so many blocks of its path are before those that were told last, and end with @told_entry; 0: none
 * @aside:       the next of those that hold nothing, while one is looked for that may take their place
 */
struct okv_retained {
	struct okv_rank		rank;
	struct okv_pin		pin;
	uint64_t		secret;
	uint64_t		told_from;
	uint32_t		told_entry;
	struct okv_retained	*aside;
};

/** Pins can have a half of the pool; -EINVAL, with the reason in @err, for more. */
int okv_pins_check(uint64_t pin_bytes, uint64_t nr_granules, uint64_t granule_bytes, struct omnikv_error *err);
/** -EINVAL, -EOPNOTSUPP where it says nothing that could be done. No lock. */
int okv_retention_check(const struct omnikv_retention *how);

/*
 * The functions below are called inside a visit, of a manager that decides itself.
 */

/**
 * okv_retain_entry() - what @owner's session retained before ends, and the path down to @entry is retained instead
 * @how:   checked; @how->ttl_ms and @how->next_use_ms count from now
 * @entry: OKV_ENTRY_NONE: nothing is
 *
 * On an error all sessions retain what they did. -EDQUOT, -ENOMEM, -ESTALE, -EOVERFLOW (as okv_index_pin()).
 */
int okv_retain_entry(struct omnikv_space *space, uint64_t owner, const struct omnikv_retention *how, uint32_t entry);
/** NULL: none of this name. */
struct okv_retained *okv_retain_find(const struct omnikv_space *space, uint64_t owner, uint64_t session);
void okv_retain_end(struct omnikv_manager *manager, struct okv_retained *retained);
/** What is over ends. */
void okv_retain_expire(struct omnikv_manager *manager);
/** Nothing else can leave: the one that is worth least ends. false: there are pins alone. */
bool okv_retain_yield(struct omnikv_manager *manager);
/** Those on blocks that are not found any more end. */
void okv_retain_prune(struct omnikv_manager *manager);
void okv_retain_end_all(struct omnikv_manager *manager);
void okv_retain_end_shelf(struct omnikv_manager *manager, const struct okv_shelf *shelf);
void okv_retain_stats(const struct omnikv_manager *manager, struct omnikv_manager_stats *stats);
/** May the block @entry of @shelf become so much larger? 0, or -EDQUOT: it is pinned, and pins have reached their bound. */
int okv_retain_may_grow(const struct okv_shelf *shelf, uint32_t entry, uint64_t nr_granules);
/** It did. Of hints those that are worth least end where all of them protect too much now. */
void okv_retain_grew(struct okv_shelf *shelf, uint32_t entry, uint64_t nr_granules);
/** Pins of @shelf's index that are in no list of pins; -EUCLEAN (with the reason), -ENOMEM. */
int okv_retain_check(struct omnikv_manager *manager, struct okv_shelf *shelf, uint64_t *nr_pins, const char **reason);

/*
 * Outside of visits.
 */

/** Of a client that has ended. */
void okv_retain_end_owner(struct omnikv_manager *manager, uint64_t owner);
/** The manager ends. */
void okv_retain_fini(struct omnikv_manager *manager);

#endif /* OKV_RETAIN_H */

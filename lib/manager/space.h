/* SPDX-License-Identifier: MIT */
/*
 * Namespaces inside the manager: found by identity, numbered for the index.
 *
 * Everything here is called inside a visit but for the public calls of manager.h.
 */
#ifndef OKV_SPACE_H
#define OKV_SPACE_H

#include "manager/manager.h"

/**
 * struct okv_space_record - a namespace as the catalog knows it
 * @slot: of its shelf in the catalog
 */
struct okv_space_record {
	uint8_t				identity[32];
	uint8_t				kin[32];
	uint32_t			id;
	uint32_t			slot;
	uint32_t			match_flags;
	uint64_t			catalog_off;	/* of its plan */
	const struct omnikv_plan	*plan;
};

/** Make it again, with its shelf (whose index is still to come). -EBADMSG: it contradicts another; -ENOMEM. */
int okv_space_load(struct omnikv_manager *manager, const struct okv_space_record *record);
/** The index of a shelf that was loaded cannot be used: it goes, and all its namespaces with it. */
void okv_space_unload_shelf(struct omnikv_manager *manager, struct okv_shelf *shelf);

/** The struct, with what it has beside its index. */
void okv_shelf_free(struct okv_shelf *shelf);

/** Sequences and matches keep their space. */
static inline void okv_space_get_locked(struct omnikv_space *space)
{
	space->nr_opens++;
}

static inline void okv_space_put_locked(struct omnikv_space *space)
{
	space->nr_opens--;
}

/** The namespace of this identity, or NULL. */
struct omnikv_space *okv_space_find_locked(const struct omnikv_manager *manager, const uint8_t identity[32]);

/** Free the namespaces, their plans and the shelves' list; nothing is open. */
void okv_space_fini(struct omnikv_manager *manager);

#endif /* OKV_SPACE_H */

/* SPDX-License-Identifier: MIT */
/*
 * Namespaces inside the manager: found by identity, numbered for the index.
 *
 * Everything here is called inside a visit but for the public calls of manager.h.
 */
#ifndef OKV_SPACE_H
#define OKV_SPACE_H

#include "manager/manager.h"

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

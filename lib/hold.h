/* SPDX-License-Identifier: MIT */
/*
 * What one client holds of each extent: leases, binds, transfers.
 *
 * An open-addressed table by first granule. A granule with a reference is not re-used, so it
 * names its extent for as long as an entry counts any. The caller locks; only reserving allocates.
 */
#ifndef OKV_HOLD_H
#define OKV_HOLD_H

#include <stdbool.h>
#include <stdint.h>

#include <omnikv/pool.h>

/**
 * struct okv_hold - one extent's entry
 * @generation: of its name; 0 marks an unused slot
 * @is_private: it is the client's own; kept only where nothing else says so
 * @is_offered: a request that takes it from the client was sent: it may be another's already
 * @is_marked:  scratch of a walk over windows
 */
struct okv_hold {
	uint32_t	granule;
	uint32_t	generation;
	uint32_t	nr_leases;
	uint32_t	nr_binds;
	uint32_t	nr_ios;
	bool		is_private;
	bool		is_offered;
	bool		is_marked;
};

/** @slots: [mask + 1], NULL while nothing was ever held. */
struct okv_holds {
	struct okv_hold	*slots;
	uint32_t	mask;
	uint32_t	nr;
};

void okv_holds_fini(struct okv_holds *holds);
/** Room for @nr entries more, so that okv_holds_get() cannot fail for as many. -ENOMEM. */
int okv_holds_reserve(struct okv_holds *holds, uint32_t nr);
/** The entry of @granule, or NULL. Valid until the next get, drop or reserve. */
struct okv_hold *okv_holds_find(const struct okv_holds *holds, uint32_t granule);
/** The entry of @granule, new and empty where there was none, or none of @generation; room must have been reserved. */
struct okv_hold *okv_holds_get(struct okv_holds *holds, uint32_t granule, uint32_t generation);
/** Mark the entries of a list, where it has them, or take the marks away. */
void okv_holds_mark(struct okv_holds *holds, const struct omnikv_extent *exts, uint32_t count, bool is_marked);
/** Remove @hold when it counts nothing. Moves other entries. */
void okv_holds_drop(struct okv_holds *holds, struct okv_hold *hold);

#endif /* OKV_HOLD_H */

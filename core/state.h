/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * Life of an extent: which operation by whom leads from which state to which.
 *
 *	       ALLOC           SEAL
 *	FREE ---------> PRIVATE ----> SEALED
 *	 ^  ALLOC_META   |  |           |
 *	 |               |  | FREE,     | FREE         with references
 *	 | PUBLISH_META  |  | END       |           .----> QUARANTINED
 *	 |               v  '-----------+---------- +            |
 *	 |             META ---- FREE --'           |            | LAST_PUT
 *	 '------------------------------------------+------------'
 *	                                without     '---- any but FREE -- POISON --> POISONED
 *
 * FREE         in a free run, nobody may touch the bytes
 * PRIVATE      written by the client that allocated it
 * SEALED       immutable; leased for reading
 * META         written by the current manager; survives it
 * QUARANTINED  given up, but a lease, a bind or a transfer still counts
 * POISONED     lost until the pool ends
 *
 * The table is the contract; Documentation/uapi/states.md shows it and a test keeps both alike.
 * Pure: no side effects, any context.
 */
#ifndef OKV_CORE_STATE_H
#define OKV_CORE_STATE_H

#include "types.h"

enum okv_op {
	OKV_OP_ALLOC,		/* a new extent for the calling client */
	OKV_OP_ALLOC_META,	/* the same, to become META once it is zeroed */
	OKV_OP_PUBLISH_META,	/* it is zeroed */
	OKV_OP_SEAL,
	OKV_OP_FREE,
	OKV_OP_LEASE,
	OKV_OP_RELEASE,		/* of a lease that the caller holds */
	OKV_OP_BIND_RO,
	OKV_OP_BIND_RW,
	OKV_OP_UNBIND,		/* of a bind that the caller holds */
	OKV_OP_IO_GET,
	OKV_OP_IO_PUT,		/* of a transfer that the caller began */
	OKV_OP_QUERY,
	OKV_OP_END,		/* the owner has ended */
	OKV_OP_LAST_PUT,	/* the last reference of a given-up extent is gone */
	OKV_OP_POISON,		/* the memory is bad, or its generations are used up */
	OKV_OP_NR,
};

enum okv_actor {
	OKV_ACTOR_OWNER,	/* the client that allocated the PRIVATE extent, manager or not */
	OKV_ACTOR_OTHER,	/* any other client */
	OKV_ACTOR_MANAGER,	/* the current manager, where it is not the owner */
	OKV_ACTOR_MODULE,	/* the pool itself */
	OKV_ACTOR_NR,
};

/**
 * okv_state_next() - what an operation does to an extent
 * @has_refs: leases, binds or transfers are counted on it (after the operation, for IO_PUT and the like)
 *
 * FREE and END of an extent with references lead to QUARANTINED, without to FREE.
 *
 * Return: the next OMNIKV_EXTENT_* state (the same one where nothing changes), -EPERM (this
 * actor may never), -EBUSY (the state forbids it), -ESTALE (the name is no more), -EINVAL (no
 * such state, operation or actor).
 */
int okv_state_next(unsigned int state, unsigned int op, unsigned int actor, bool has_refs);

/** Lower-case name, as texts and tables show it; "?" when out of range. */
const char *okv_state_name(unsigned int state);
const char *okv_op_name(unsigned int op);
const char *okv_actor_name(unsigned int actor);

#endif /* OKV_CORE_STATE_H */

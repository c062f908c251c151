// SPDX-License-Identifier: GPL-2.0-only OR MIT
/*
 * The table of extent states. See state.h.
 *
 * One byte a case: a state, or an errno below. The order of the four columns is that of
 * enum okv_actor: owner, other client, manager, the pool itself.
 */
#include "state.h"

enum {
	FR = OMNIKV_EXTENT_FREE,
	PR = OMNIKV_EXTENT_PRIVATE,
	SE = OMNIKV_EXTENT_SEALED,
	ME = OMNIKV_EXTENT_META,
	QU = OMNIKV_EXTENT_QUARANTINED,
	PO = OMNIKV_EXTENT_POISONED,
	GU,		/* given up: FREE without references, else QUARANTINED */
	NO_PERM,
	NO_BUSY,
	NO_STALE,
};

static const unsigned char okv_state_table[OMNIKV_EXTENT_NR_STATES][OKV_OP_NR][OKV_ACTOR_NR] = {
	[OMNIKV_EXTENT_FREE] = {
		/* There is no owner yet: the caller is one of "other" and "manager". */
		[OKV_OP_ALLOC]		= { NO_STALE, PR, PR, NO_PERM },
		[OKV_OP_ALLOC_META]	= { NO_STALE, NO_PERM, PR, NO_PERM },
		[OKV_OP_PUBLISH_META]	= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_SEAL]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_FREE]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_LEASE]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_RELEASE]	= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_BIND_RO]	= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_BIND_RW]	= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_UNBIND]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_IO_GET]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_IO_PUT]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_QUERY]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_END]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_LAST_PUT]	= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_POISON]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
	},
	[OMNIKV_EXTENT_PRIVATE] = {
		[OKV_OP_ALLOC]		= { NO_BUSY, NO_BUSY, NO_BUSY, NO_BUSY },
		[OKV_OP_ALLOC_META]	= { NO_BUSY, NO_BUSY, NO_BUSY, NO_BUSY },
		[OKV_OP_PUBLISH_META]	= { NO_PERM, NO_PERM, NO_PERM, ME },
		[OKV_OP_SEAL]		= { SE, NO_PERM, NO_PERM, NO_PERM },
		[OKV_OP_FREE]		= { GU, NO_PERM, NO_PERM, NO_PERM },
		[OKV_OP_LEASE]		= { NO_BUSY, NO_PERM, NO_PERM, NO_PERM },
		[OKV_OP_RELEASE]	= { NO_BUSY, NO_PERM, NO_PERM, NO_PERM },
		[OKV_OP_BIND_RO]	= { NO_PERM, NO_PERM, NO_PERM, NO_PERM },
		[OKV_OP_BIND_RW]	= { PR, NO_PERM, NO_PERM, NO_PERM },
		[OKV_OP_UNBIND]		= { PR, NO_PERM, NO_PERM, PR },
		[OKV_OP_IO_GET]		= { PR, NO_PERM, NO_PERM, NO_PERM },
		[OKV_OP_IO_PUT]		= { PR, NO_PERM, NO_PERM, PR },
		[OKV_OP_QUERY]		= { PR, PR, PR, PR },
		[OKV_OP_END]		= { NO_PERM, NO_PERM, NO_PERM, GU },
		[OKV_OP_LAST_PUT]	= { NO_PERM, NO_PERM, NO_PERM, NO_BUSY },
		[OKV_OP_POISON]		= { NO_PERM, NO_PERM, NO_PERM, PO },
	},
	[OMNIKV_EXTENT_SEALED] = {
		/* It has no owner any more, so that column is only reached by mistake. */
		[OKV_OP_ALLOC]		= { NO_BUSY, NO_BUSY, NO_BUSY, NO_BUSY },
		[OKV_OP_ALLOC_META]	= { NO_BUSY, NO_BUSY, NO_BUSY, NO_BUSY },
		[OKV_OP_PUBLISH_META]	= { NO_PERM, NO_PERM, NO_PERM, NO_BUSY },
		[OKV_OP_SEAL]		= { NO_BUSY, NO_BUSY, NO_BUSY, NO_PERM },
		[OKV_OP_FREE]		= { NO_PERM, NO_PERM, GU, NO_PERM },
		[OKV_OP_LEASE]		= { SE, SE, SE, NO_PERM },
		[OKV_OP_RELEASE]	= { SE, SE, SE, SE },
		[OKV_OP_BIND_RO]	= { SE, SE, SE, NO_PERM },
		[OKV_OP_BIND_RW]	= { NO_PERM, NO_PERM, NO_PERM, NO_PERM },
		[OKV_OP_UNBIND]		= { SE, SE, SE, SE },
		[OKV_OP_IO_GET]		= { SE, SE, SE, NO_PERM },
		[OKV_OP_IO_PUT]		= { SE, SE, SE, SE },
		[OKV_OP_QUERY]		= { SE, SE, SE, SE },
		[OKV_OP_END]		= { NO_PERM, NO_PERM, NO_PERM, SE },
		[OKV_OP_LAST_PUT]	= { NO_PERM, NO_PERM, NO_PERM, NO_BUSY },
		[OKV_OP_POISON]		= { NO_PERM, NO_PERM, NO_PERM, PO },
	},
	[OMNIKV_EXTENT_META] = {
		[OKV_OP_ALLOC]		= { NO_BUSY, NO_BUSY, NO_BUSY, NO_BUSY },
		[OKV_OP_ALLOC_META]	= { NO_BUSY, NO_BUSY, NO_BUSY, NO_BUSY },
		[OKV_OP_PUBLISH_META]	= { NO_PERM, NO_PERM, NO_PERM, NO_BUSY },
		[OKV_OP_SEAL]		= { NO_PERM, NO_PERM, NO_BUSY, NO_PERM },
		[OKV_OP_FREE]		= { NO_PERM, NO_PERM, GU, NO_PERM },
		[OKV_OP_LEASE]		= { NO_PERM, NO_PERM, NO_BUSY, NO_PERM },
		[OKV_OP_RELEASE]	= { NO_PERM, NO_PERM, NO_BUSY, NO_PERM },
		[OKV_OP_BIND_RO]	= { NO_PERM, NO_PERM, ME, NO_PERM },
		[OKV_OP_BIND_RW]	= { NO_PERM, NO_PERM, ME, NO_PERM },
		[OKV_OP_UNBIND]		= { ME, ME, ME, ME },
		[OKV_OP_IO_GET]		= { NO_PERM, NO_PERM, ME, NO_PERM },
		[OKV_OP_IO_PUT]		= { ME, ME, ME, ME },
		[OKV_OP_QUERY]		= { ME, ME, ME, ME },
		[OKV_OP_END]		= { NO_PERM, NO_PERM, NO_PERM, ME },
		[OKV_OP_LAST_PUT]	= { NO_PERM, NO_PERM, NO_PERM, NO_BUSY },
		[OKV_OP_POISON]		= { NO_PERM, NO_PERM, NO_PERM, PO },
	},
	[OMNIKV_EXTENT_QUARANTINED] = {
		/* Its name is old; only who still holds a reference may name it, to drop that. */
		[OKV_OP_ALLOC]		= { NO_BUSY, NO_BUSY, NO_BUSY, NO_BUSY },
		[OKV_OP_ALLOC_META]	= { NO_BUSY, NO_BUSY, NO_BUSY, NO_BUSY },
		[OKV_OP_PUBLISH_META]	= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_SEAL]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_FREE]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_LEASE]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_RELEASE]	= { QU, QU, QU, QU },
		[OKV_OP_BIND_RO]	= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_BIND_RW]	= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_UNBIND]		= { QU, QU, QU, QU },
		[OKV_OP_IO_GET]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_IO_PUT]		= { QU, QU, QU, QU },
		[OKV_OP_QUERY]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_END]		= { NO_PERM, NO_PERM, NO_PERM, QU },
		[OKV_OP_LAST_PUT]	= { NO_PERM, NO_PERM, NO_PERM, GU },
		[OKV_OP_POISON]		= { NO_PERM, NO_PERM, NO_PERM, PO },
	},
	[OMNIKV_EXTENT_POISONED] = {
		[OKV_OP_ALLOC]		= { NO_BUSY, NO_BUSY, NO_BUSY, NO_BUSY },
		[OKV_OP_ALLOC_META]	= { NO_BUSY, NO_BUSY, NO_BUSY, NO_BUSY },
		[OKV_OP_PUBLISH_META]	= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_SEAL]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_FREE]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_LEASE]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_RELEASE]	= { PO, PO, PO, PO },
		[OKV_OP_BIND_RO]	= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_BIND_RW]	= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_UNBIND]		= { PO, PO, PO, PO },
		[OKV_OP_IO_GET]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_IO_PUT]		= { PO, PO, PO, PO },
		[OKV_OP_QUERY]		= { NO_STALE, NO_STALE, NO_STALE, NO_STALE },
		[OKV_OP_END]		= { NO_PERM, NO_PERM, NO_PERM, PO },
		[OKV_OP_LAST_PUT]	= { NO_PERM, NO_PERM, NO_PERM, PO },
		[OKV_OP_POISON]		= { NO_PERM, NO_PERM, NO_PERM, PO },
	},
};

int okv_state_next(unsigned int state, unsigned int op, unsigned int actor, bool has_refs)
{
	unsigned char next;

	if (state >= OMNIKV_EXTENT_NR_STATES || op >= OKV_OP_NR || actor >= OKV_ACTOR_NR)
		return -EINVAL;

	next = okv_state_table[state][op][actor];
	switch (next) {
	case GU:
		return has_refs ? OMNIKV_EXTENT_QUARANTINED : OMNIKV_EXTENT_FREE;
	case NO_PERM:
		return -EPERM;
	case NO_BUSY:
		return -EBUSY;
	case NO_STALE:
		return -ESTALE;
	default:
		return next;
	}
}

static const char *const okv_state_names[OMNIKV_EXTENT_NR_STATES] = {
	[OMNIKV_EXTENT_FREE]		= "free",
	[OMNIKV_EXTENT_PRIVATE]		= "private",
	[OMNIKV_EXTENT_SEALED]		= "sealed",
	[OMNIKV_EXTENT_META]		= "meta",
	[OMNIKV_EXTENT_QUARANTINED]	= "quarantined",
	[OMNIKV_EXTENT_POISONED]	= "poisoned",
};

static const char *const okv_op_names[OKV_OP_NR] = {
	[OKV_OP_ALLOC]		= "alloc",
	[OKV_OP_ALLOC_META]	= "alloc meta",
	[OKV_OP_PUBLISH_META]	= "publish meta",
	[OKV_OP_SEAL]		= "seal",
	[OKV_OP_FREE]		= "free",
	[OKV_OP_LEASE]		= "lease",
	[OKV_OP_RELEASE]	= "release",
	[OKV_OP_BIND_RO]	= "bind ro",
	[OKV_OP_BIND_RW]	= "bind rw",
	[OKV_OP_UNBIND]		= "unbind",
	[OKV_OP_IO_GET]		= "io get",
	[OKV_OP_IO_PUT]		= "io put",
	[OKV_OP_QUERY]		= "query",
	[OKV_OP_END]		= "owner's end",
	[OKV_OP_LAST_PUT]	= "last put",
	[OKV_OP_POISON]		= "poison",
};

static const char *const okv_actor_names[OKV_ACTOR_NR] = {
	[OKV_ACTOR_OWNER]	= "owner",
	[OKV_ACTOR_OTHER]	= "other client",
	[OKV_ACTOR_MANAGER]	= "manager",
	[OKV_ACTOR_MODULE]	= "pool itself",
};

const char *okv_state_name(unsigned int state)
{
	return state < OMNIKV_EXTENT_NR_STATES ? okv_state_names[state] : "?";
}

const char *okv_op_name(unsigned int op)
{
	return op < OKV_OP_NR ? okv_op_names[op] : "?";
}

const char *okv_actor_name(unsigned int actor)
{
	return actor < OKV_ACTOR_NR ? okv_actor_names[actor] : "?";
}

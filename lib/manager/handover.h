/* SPDX-License-Identifier: MIT */
/*
 * Sequences on their way from one process to another, as the authority has them: pins without an owner that could
 * die (retain.h), which end when they are taken, or by their deadline.
 *
 * Arguments come from another process, as in session.h. Any thread; outside of visits.
 */
#ifndef OKV_HANDOVER_H
#define OKV_HANDOVER_H

#include "manager/authority.h"

/** The path down to the block @key at @position. -ESTALE: it is not cached; -ENODATA, -EDQUOT, -ENOMEM as omnikv_seq_give(). */
int okv_handover_give(struct omnikv_space *space, const struct omnikv_key *key, uint32_t position, uint32_t timeout_ms,
		      struct omnikv_ticket *ticket);
/** Keys of its blocks from @first on. -ESTALE: there is no such ticket in this namespace (any more). */
int okv_handover_take(struct omnikv_space *space, const struct omnikv_ticket *ticket, uint64_t first,
		      struct okv_handed *handed);
/** Whoever took it holds it now. */
int okv_handover_end(struct omnikv_space *space, const struct omnikv_ticket *ticket);

#endif /* OKV_HANDOVER_H */

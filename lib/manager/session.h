/* SPDX-License-Identifier: MIT */
/*
 * The authority's side of an attached manager: its requests, carried out on the manager of the pool.
 *
 * Arguments come from another process: they are checked here as if by a public call, and extents are the
 * provider's to check (whose they are, which generation). Any thread.
 */
#ifndef OKV_SESSION_H
#define OKV_SESSION_H

#include "manager/authority.h"

/**
 * okv_session_find() - see okv_authority_ops; for one prefix, whose answer follows what @found has already
 * @client: leases what is found; NULL: nothing is leased
 *
 * Leased before the manager could let go of it, so there is no -ESTALE. Return: what is to be the @res of @ask.
 */
int okv_session_find(struct omnikv_space *space, struct omnikv_client *client, struct okv_ask *ask, uint32_t flags,
		     struct okv_found *found);
/**
 * okv_session_path() - all keys of a prompt of which the begin is cached
 * @parent: key of the block at @first - 1
 * @keys:   [nr_keys], those from @first on
 * @out:    [@first + @nr_keys]; free() it
 *
 * Return: 0, or -ESTALE (that block is not there), -ENOMEM.
 */
int okv_session_path(struct omnikv_space *space, const struct omnikv_key *parent, uint64_t first,
		     const struct omnikv_key *keys, size_t nr_keys, struct omnikv_key **out);
/** See okv_authority_ops. @client owns the extents, seals them, and leases them where it does not hold them already. */
int okv_session_publish(struct omnikv_space *space, struct omnikv_client *client, bool is_held,
			const struct okv_publication *pub);
int okv_session_attach(struct omnikv_space *space, struct omnikv_client *client, bool is_held,
		       const struct omnikv_key *key, uint32_t group, const struct omnikv_extent *extent, uint32_t crc,
		       uint32_t epoch);
void okv_session_use(struct omnikv_space *space, const struct okv_use *use);
/** See okv_authority_ops. Retained for @owner, which is not OKV_OWNER_SELF. */
int okv_session_retain(struct omnikv_space *space, uint64_t owner, const struct omnikv_key *key, uint32_t position,
		       const struct omnikv_retention *how);
void okv_session_distrust(struct omnikv_space *space, const struct omnikv_key *key);

#endif /* OKV_SESSION_H */

/* SPDX-License-Identifier: MIT */
/*
 * Token ids of blocks, kept beside the catalog where the manager was asked to.
 *
 * Owns slots in META extents, catalog_shared.h has their layout, and which block has which. Token ids come before
 * their block: they wait in a slot until it is committed, and the oldest that waits gives way. A slot's
 * checksum covers its block's key, so that a kill at any instruction leaves the right ids or none.
 *
 * All is called under the manager's lock, or before anybody else has the manager.
 */
#ifndef OKV_TOKENS_H
#define OKV_TOKENS_H

#include "manager/manager.h"

/** Blocks whose token ids are there before they are. */
#define OKV_TOKENS_PENDING_MAX	16384u
/** Bytes of slots that no block has: for what comes then the oldest that waits gives way. */
#define OKV_TOKENS_IDLE_BYTES	(16u << 20)
/** Token ids of a block; of larger blocks none are kept. */
#define OKV_TOKENS_BLOCK_MAX	8192u

/** -EOPNOTSUPP: the pool does not last. -ENOMEM. */
int okv_tokens_create(struct omnikv_manager *manager, struct okv_tokens **tokens);
/** What is in META stays. NULL is ignored. */
void okv_tokens_destroy(struct okv_tokens *tokens);
/** Take over what an earlier manager kept: the catalog's blocks are there, its memory is not swept yet. -ENOMEM. */
int okv_tokens_load(struct okv_tokens *tokens);

/** @ids: [nr_keys][T]. Blocks that are there get them at once. May evict. -ENOMEM: of the rest none are kept. */
int okv_tokens_note(struct okv_tokens *tokens, const struct omnikv_space *space, const struct omnikv_key *keys,
		    size_t nr_keys, const uint32_t *ids);
/** The block @entry is there now: what waits for it is its own. */
void okv_tokens_settle(struct okv_tokens *tokens, const struct omnikv_space *space, uint32_t entry);
/** The namespace is gone, without a block left: its number will be another's. */
void okv_tokens_end_space(struct okv_tokens *tokens, const struct omnikv_space *space);
/** It is gone. */
void okv_tokens_forget(struct okv_tokens *tokens, const struct omnikv_space *space, uint32_t entry);
/** Its token ids, to be read under this lock; how many there are: T, or 0 for none. */
uint32_t okv_tokens_of(const struct okv_tokens *tokens, const struct omnikv_space *space, uint32_t entry,
		       const uint32_t **ids);

#endif /* OKV_TOKENS_H */

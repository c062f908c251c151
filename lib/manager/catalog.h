/* SPDX-License-Identifier: MIT */
/*
 * The catalog: what of a manager outlives it, in META extents of its pool.
 *
 * Owns the META memory of a pool that lasts: the root, the namespaces, and the memory of the indexes. A manager
 * that begins on such a pool finds there what an earlier one had cached, however that one ended. The layout is
 * catalog_shared.h's, the checks of each block the index's. A manager of a pool that ends with it has none.
 *
 * All is called under the manager's lock, or before anybody else has the manager.
 */
#ifndef OKV_CATALOG_H
#define OKV_CATALOG_H

#include "manager/manager.h"

/**
 * okv_pool_catalog_open() - take over what an earlier manager left
 *
 * Blocks that pass every check are in shelves and spaces of @manager afterwards; each other extent that is
 * SEALED or META is given back to the pool. No byte of KV is copied or read. On an error the pool is as it was,
 * but for blocks that were dropped. @notice: without an error, a line where something of what was cached could not be used.
 */
int okv_pool_catalog_open(struct omnikv_manager *manager, struct omnikv_error *notice);
/**
 * okv_pool_catalog_close() - the manager ends
 *
 * Where something is cached it stays for the next one; else all META goes back to the pool. Indexes and spaces of
 * the manager are gone afterwards. NULL is ignored.
 */
void okv_pool_catalog_close(struct omnikv_manager *manager);

/**
 * okv_pool_catalog_shelf() - an index for @shelf, whose groups and block_granules are set
 * @plan: its first namespace's
 *
 * Evicts what it takes. -ENOMEM (the pool has no room that is not leased), -ENOSPC (no shelf is left).
 */
int okv_pool_catalog_shelf(struct omnikv_manager *manager, struct okv_shelf *shelf, const struct omnikv_plan *plan,
		      const struct okv_index_config *config);
/** @shelf is empty, and no namespace has it: its index ends, and its place is another's. */
void okv_pool_catalog_end_shelf(struct omnikv_manager *manager, struct okv_shelf *shelf);
/** @space, which has its number, shelf and plan, is to be found by the next manager. -ENOMEM. */
int okv_pool_catalog_add(struct omnikv_manager *manager, const struct omnikv_space *space);
void okv_pool_catalog_del(struct omnikv_manager *manager, const struct omnikv_space *space);
/** The last space with this plan is gone. */
void okv_pool_catalog_del_plan(struct omnikv_manager *manager, struct okv_space_plan *plan);

/** Where readers in other processes begin; 0: there is no root yet. */
uint64_t okv_pool_catalog_root_off(const struct omnikv_manager *manager);
/** The epoch; only ever raised, and kept for later managers. 0 where there is no catalog. */
uint64_t okv_pool_catalog_epoch(const struct omnikv_manager *manager);
/** -EOPNOTSUPP (no catalog), -ENOMEM, -EINVAL (not higher than it is). */
int okv_pool_catalog_raise_epoch(struct omnikv_manager *manager, uint64_t epoch);
/** Its memory, and where the root leads to token ids (tokens.h); NULL: there is no catalog, or no root yet. */
struct okv_meta *okv_pool_catalog_meta(struct omnikv_manager *manager);
uint64_t *okv_pool_catalog_tokens_off(struct omnikv_manager *manager);
/** Is @granule memory of the catalog or of an index? */
bool okv_pool_catalog_has(const struct omnikv_manager *manager, uint64_t granule);
/** META granules of the pool. */
uint64_t okv_pool_catalog_granules(const struct omnikv_manager *manager);

#endif /* OKV_CATALOG_H */

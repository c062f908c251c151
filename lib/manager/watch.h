/* SPDX-License-Identifier: MIT */
/*
 * Whoever wants to know which blocks come and go, in memory and on NVMe.
 *
 * Owns nothing: a place where the manager tells its owner of each block that can be found, or cannot any more.
 * All is called under the manager's lock, and some under the spill store's too.
 */
#ifndef OKV_WATCH_H
#define OKV_WATCH_H

#include "manager/manager.h"

/**
 * struct okv_watch - begins the watcher's own struct
 * @changed: the block @entry of @space, which can still be read, is found in memory from now on (@is_there), or not any
 *           more
 * @spilled: the same of a block on NVMe, of @nr_tokens; @parent->len 0: it is the first
 * @cleared: nothing is there any more, wherever it was; what is told from here on is
 *
 * Nothing of the manager is to be called, and nobody to be waited for. Without a spill store @changed alone is called.
 */
struct okv_watch {
	void (*changed)(struct okv_watch *watch, const struct omnikv_space *space, uint32_t entry, bool is_there);
	void (*spilled)(struct okv_watch *watch, const struct omnikv_space *space, const struct omnikv_key *key,
			const struct omnikv_key *parent, uint32_t nr_tokens, bool is_there);
	void (*cleared)(struct okv_watch *watch);
};

/**
 * okv_manager_watch() - tell @watch of what is there now, parents before their children, and then of each change
 * @watch: NULL: nobody any more
 *
 * Outside of visits. -ENOMEM: nobody is told then.
 */
int okv_manager_watch(struct omnikv_manager *manager, struct okv_watch *watch);
/** Tell the watcher of everything anew: what it was told may be wrong. Inside a visit. -ENOMEM. */
int okv_watch_again(const struct omnikv_manager *manager);

/** For struct okv_index_config; @manager is one. */
void okv_block_changed(void *manager, uint32_t ns, uint32_t entry, bool is_there);

#endif /* OKV_WATCH_H */

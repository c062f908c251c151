/* SPDX-License-Identifier: MIT */
/*
 * Whoever wants to know which blocks come and go.
 *
 * Owns nothing: a place where the manager tells its owner of each block that can be found, or cannot any more.
 * All is called under the manager's lock.
 */
#ifndef OKV_WATCH_H
#define OKV_WATCH_H

#include "manager/manager.h"

/**
 * struct okv_watch - begins the watcher's own struct
 * @changed: the block @entry of @space, which can still be read, is found from now on (@is_there), or not any more. The
 *           manager's lock is held: nothing of it is to be called, and nobody to be waited for
 */
struct okv_watch {
	void (*changed)(struct okv_watch *watch, const struct omnikv_space *space, uint32_t entry, bool is_there);
};

/**
 * okv_manager_watch() - tell @watch of what is there now, parents before their children, and then of each change
 * @watch: NULL: nobody any more
 *
 * Outside of visits. -ENOMEM: nobody is told then.
 */
int okv_manager_watch(struct omnikv_manager *manager, struct okv_watch *watch);

/** For struct okv_index_config; @manager is one. */
void okv_block_changed(void *manager, uint32_t ns, uint32_t entry, bool is_there);

#endif /* OKV_WATCH_H */

// SPDX-License-Identifier: MIT
/*
 * Telling a watcher of blocks that come and go, and the keeper of token ids before it. See watch.h.
 *
 * Owns nothing. All is called under the manager's lock but okv_manager_watch(), which takes it.
 */
#include "manager/watch.h"

#include <errno.h>
#include <stdlib.h>

#include "manager/tier.h"
#include "manager/tokens.h"

void okv_block_changed(void *opaque, uint32_t ns, uint32_t entry, bool is_there)
{
	struct omnikv_manager *manager = opaque;
	const struct omnikv_space *space = ns < manager->nr_ids ? manager->space_of_id[ns] : NULL;

	if (!space || (!manager->watch && !manager->tokens))
		return;
	/* Token ids are there before the watcher looks for them, and as long as it may. */
	if (manager->tokens && is_there)
		okv_tokens_settle(manager->tokens, space, entry);
	if (manager->watch)
		manager->watch->changed(manager->watch, space, entry, is_there);
	if (manager->tokens && !is_there)
		okv_tokens_forget(manager->tokens, space, entry);
}

struct placed {
	uint32_t	position;
	uint32_t	entry;
};

static int by_position(const void *a, const void *b)
{
	const struct placed *x = a, *y = b;

	return x->position < y->position ? -1 : x->position > y->position;
}

static int tell_shelf(const struct omnikv_manager *manager, const struct okv_shelf *shelf, struct okv_watch *watch)
{
	uint32_t nr_ids = okv_index_nr_ids(shelf->index), nr = 0;
	struct okv_index_info info;
	struct placed *placed;

	placed = malloc(((size_t)nr_ids + 1) * sizeof(*placed));
	if (!placed)
		return -ENOMEM;
	for (uint32_t id = 0; id < nr_ids; id++)
		if (!okv_index_get(shelf->index, id, &info) && !info.is_dropped)
			placed[nr++] = (struct placed){ info.position, id };
	qsort(placed, nr, sizeof(*placed), by_position);
	for (uint32_t i = 0; i < nr; i++)
		if (!okv_index_get(shelf->index, placed[i].entry, &info) && info.ns < manager->nr_ids &&
		    manager->space_of_id[info.ns])
			watch->changed(watch, manager->space_of_id[info.ns], placed[i].entry, true);
	free(placed);
	return 0;
}

static int tell_all(const struct omnikv_manager *manager)
{
	int ret = 0;

	for (const struct okv_shelf *shelf = manager->shelves; shelf && !ret; shelf = shelf->next)
		ret = tell_shelf(manager, shelf, manager->watch);
	for (uint32_t id = 0; id < manager->nr_ids && !ret; id++)
		if (manager->space_of_id[id])
			ret = okv_tier_tell_space(manager->space_of_id[id], true);
	return ret;
}

int okv_watch_again(const struct omnikv_manager *manager)
{
	manager->watch->cleared(manager->watch);
	return tell_all(manager);
}

int okv_manager_watch(struct omnikv_manager *manager, struct okv_watch *watch)
{
	struct okv_visit visit;
	int ret;

	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	manager->watch = watch;
	okv_tier_watch(manager);
	ret = watch ? tell_all(manager) : 0;
	if (ret) {
		manager->watch = NULL;
		okv_tier_watch(manager);
	}
	okv_visit_leave(&visit);
	return ret;
}

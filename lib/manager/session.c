// SPDX-License-Identifier: MIT
/*
 * Requests of attached managers; see session.h.
 *
 * Publishing keeps commit.c's order: sealed, then inserted whole; the sum was taken by the client, of
 * bytes that it no longer changes. What was sealed and could not be inserted is nobody's to find and
 * is given up at once: it goes with the client's lease.
 */
#include "manager/session.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "failpoint.h"
#include "manager/retain.h"

int okv_session_find(struct omnikv_space *space, struct omnikv_client *client, struct okv_ask *ask, uint32_t flags,
		     struct okv_found *found)
{
	const struct omnikv_prefix *prefix = ask->prefix;
	uint32_t nr_groups = space->shelf->nr_groups, nr_leases = 0;
	struct omnikv_extent leases[OKV_FOUND_BLOCKS * OMNIKV_GROUPS_MAX];
	struct okv_index *index = space->shelf->index;
	uint32_t ids[OKV_FOUND_BLOCKS];
	struct okv_index_info info;
	struct okv_index_hit hit;
	uint32_t max = OKV_FOUND_BLOCKS - found->nr, entry;
	uint64_t first = ask->first, position;
	struct okv_visit visit;
	int ret = 0;

	ask->nr = 0;
	ask->at = found->nr;
	if (!okv_prefix_is_valid(prefix))
		return -EINVAL;
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	okv_match_find(space, flags & OKV_FIND_F_ANY ? 0 : space->needed_state, prefix, &hit, &ask->tail_tokens);
	ask->nr_hit = hit.nr_blocks;
	ask->has_more = hit.nr_blocks > first && !max;
	if (hit.nr_blocks <= first || !max)
		goto out;

	/* Down from the last one: what lies behind the batch is passed over. */
	entry = hit.entry;
	for (position = hit.nr_blocks; position-- > first;) {
		if (position - first < max)
			ids[position - first] = entry;
		if (okv_index_get(index, entry, &info)) {
			ret = -ESTALE;
			goto out;
		}
		entry = info.parent;
	}
	ask->nr = hit.nr_blocks - first < max ? hit.nr_blocks - first : max;
	for (uint32_t i = 0; i < ask->nr; i++) {
		for (uint32_t g = 0; g < nr_groups; g++) {
			struct omnikv_extent *extent = &found->extents[(ask->at + i) * nr_groups + g];

			okv_index_extent(index, ids[i], g, extent, &found->crcs[(ask->at + i) * nr_groups + g]);
			if (extent->nr_granules)
				leases[nr_leases++] = *extent;
		}
	}
	if (client && nr_leases)
		ret = omnikv_extent_lease(client, leases, nr_leases);
	if (ret)
		ask->nr = 0;
	found->nr += ask->nr;
out:
	okv_visit_leave(&visit);
	return ret;
}

int okv_session_path(struct omnikv_space *space, const struct omnikv_key *parent, uint64_t first,
		     const struct omnikv_key *keys, size_t nr_keys, struct omnikv_key **out)
{
	struct okv_index *index = space->shelf->index;
	struct omnikv_key *all = NULL;
	struct okv_index_info info;
	struct okv_visit visit;
	uint64_t position;
	uint32_t entry;
	int ret = -ESTALE;

	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	entry = okv_index_find(index, space->id, parent);
	/* No path is longer than there are entries. */
	if (entry == OKV_ENTRY_NONE || !first || first > okv_index_nr_ids(index) || okv_index_get(index, entry, &info) ||
	    info.position != first - 1)
		goto out;
	(void)OKV_FAILPOINT("session.path");
	all = malloc((first + nr_keys) * sizeof(*all));
	ret = all ? 0 : -ENOMEM;
	for (position = first; position-- > 0 && !ret; entry = info.parent) {
		ret = okv_index_get(index, entry, &info);
		if (!ret)
			all[position] = info.key;
	}
out:
	okv_visit_leave(&visit);
	if (ret) {
		free(all);
		return ret;
	}
	memcpy(&all[first], keys, nr_keys * sizeof(*all));
	*out = all;
	return 0;
}

/* Where the blocks of @pub belong: the entry of their parent. */
static int find_parent(struct omnikv_space *space, const struct okv_publication *pub, uint32_t *parent)
{
	struct okv_index_info info;

	*parent = OKV_ENTRY_NONE;
	if (!pub->position)
		return pub->parent ? -EINVAL : 0;
	if (!pub->parent || !okv_keys_are_valid(pub->parent, 1, NULL))
		return -EINVAL;
	*parent = okv_index_find(space->shelf->index, space->id, pub->parent);
	if (*parent == OKV_ENTRY_NONE)
		return -ESTALE;
	if (okv_index_get(space->shelf->index, *parent, &info))
		return -ESTALE;
	return info.position + 1 == pub->position && !info.is_partial ? 0 : -EINVAL;
}

/* Has every extent the size that its group's have, and is none but a state missing? */
static bool has_right_sizes(const struct omnikv_space *space, const struct omnikv_extent *extents)
{
	const struct omnikv_plan *plan = &space->plan->plan;

	for (uint32_t g = 0; g < space->shelf->nr_groups; g++)
		if (extents[g].nr_granules != plan->groups[g].nr_granules &&
		    (extents[g].nr_granules || !(space->needed_state >> g & 1)))
			return false;
	return true;
}

static uint32_t list_extents(const struct omnikv_extent *extents, uint32_t nr_groups, struct omnikv_extent *list)
{
	uint32_t nr = 0;

	for (uint32_t g = 0; g < nr_groups; g++)
		if (extents[g].nr_granules)
			list[nr++] = extents[g];
	return nr;
}

/* Is it the very block that this client published before, and was not told so? */
static bool is_same_block(struct omnikv_space *space, uint32_t entry, const struct omnikv_extent *extents)
{
	struct omnikv_extent theirs;
	uint32_t crc;

	for (uint32_t g = 0; g < space->shelf->nr_groups; g++) {
		okv_index_extent(space->shelf->index, entry, g, &theirs, &crc);
		if (extents[g].nr_granules && memcmp(&theirs, &extents[g], sizeof(theirs)))
			return false;
	}
	return true;
}

/* One block: 0 with @published and its entry. Inside a visit. */
static int publish_one(struct okv_visit *visit, struct omnikv_space *space, struct omnikv_client *client,
		       const struct okv_publication *pub, bool is_held, uint32_t i, uint32_t parent, uint32_t *entry)
{
	uint32_t nr_groups = space->shelf->nr_groups, nr;
	struct omnikv_extent list[OMNIKV_GROUPS_MAX];
	struct okv_index_block block = {
		.ns = space->id,
		.parent = parent,
		.position = pub->position + i,
		.nr_tokens = pub->tail_tokens ? pub->tail_tokens : OKV_BLOCK_FULL,
		.key = &pub->keys[i],
		.extents = &pub->extents[i * nr_groups],
		.crc32c = &pub->crcs[i * nr_groups],
	};
	struct okv_index_info info;
	int ret;

	*entry = okv_index_find(space->shelf->index, space->id, &pub->keys[i]);
	if (*entry != OKV_ENTRY_NONE) {
		ret = okv_index_get(space->shelf->index, *entry, &info);
		if (ret)
			return ret;
		if (info.parent != parent || info.position != block.position || info.is_partial != (pub->tail_tokens != 0) ||
		    (info.is_partial && info.nr_tokens != pub->tail_tokens))
			return -EINVAL;
		pub->published[i] = is_held && is_same_block(space, *entry, block.extents) ? OKV_PUBLISHED_NEW :
											     OKV_PUBLISHED_THERE;
		okv_index_touch(space->shelf->index, *entry);
		visit->manager->stats.blocks_deduplicated++;
		return 0;
	}
	nr = list_extents(block.extents, nr_groups, list);
	ret = -OKV_FAILPOINT("session.seal");
	if (!ret)
		ret = okv_manager_take(visit->manager, client, list, nr);
	/* An authority that ended before it could answer sealed it, and the next one gave up what nobody could find. */
	if (ret == -ESTALE && is_held)
		pub->published[i] = OKV_PUBLISHED_ADRIFT;
	if (ret)
		return ret;
	/* Without memory to note the lease nothing may free the block: it stays SEALED until the next recovery. */
	ret = is_held ? 0 : -OKV_FAILPOINT("session.lease");
	if (!ret && !is_held)
		ret = omnikv_extent_lease(client, list, nr);
	if (ret)
		return ret;
	okv_shelf_spare(visit, space->shelf, 1);
	ret = -OKV_FAILPOINT("session.insert");
	if (!ret)
		ret = okv_index_insert(space->shelf->index, &block, entry);
	if (ret) {
		/* In no index, so given up; the client's lease keeps its bytes for as long as it needs them. */
		for (uint32_t k = 0; k < nr; k++)
			okv_visit_give(visit, &list[k]);
		okv_visit_flush(visit);
		pub->published[i] = OKV_PUBLISHED_ADRIFT;
		return ret;
	}
	for (uint32_t k = 0; k < nr; k++)
		space->shelf->nr_granules += list[k].nr_granules;
	pub->published[i] = OKV_PUBLISHED_NEW;
	visit->manager->stats.blocks_committed++;
	return 0;
}

/* Sealed by its owner, and not to be found: given up, and the owner's hold keeps its bytes for as long as it needs them. */
static void give_rest(struct okv_visit *visit, const struct omnikv_space *space, const struct okv_publication *pub)
{
	uint32_t nr_groups = space->shelf->nr_groups, nr;
	struct omnikv_extent list[OMNIKV_GROUPS_MAX];
	int ret;

	for (uint32_t i = 0; i < pub->nr; i++) {
		if (pub->published[i] != OKV_PUBLISHED_NOT && pub->published[i] != OKV_PUBLISHED_THERE)
			continue;
		nr = list_extents(&pub->extents[i * nr_groups], nr_groups, list);
		ret = okv_manager_take(visit->manager, NULL, list, nr);
		for (uint32_t k = 0; k < nr && !ret; k++)
			okv_visit_give(visit, &list[k]);
		if (!ret || ret == -ESTALE)
			pub->published[i] = OKV_PUBLISHED_ADRIFT;
	}
}

int okv_session_publish(struct omnikv_space *space, struct omnikv_client *client, bool is_held,
			const struct okv_publication *pub)
{
	uint32_t nr_groups = space->shelf->nr_groups, parent = OKV_ENTRY_NONE;
	struct okv_visit visit;
	int ret;

	if (!pub->nr || pub->nr > OKV_AUTHORITY_BLOCKS || !okv_keys_are_valid(pub->keys, pub->nr, NULL) ||
	    pub->position > UINT32_MAX - OKV_AUTHORITY_BLOCKS || pub->tail_tokens >= space->plan->plan.block_tokens ||
	    (pub->tail_tokens && pub->nr != 1) || !okv_block_ends_entries(&space->plan->plan, pub->tail_tokens))
		return -EINVAL;
	for (uint32_t i = 0; i < pub->nr; i++) {
		pub->published[i] = OKV_PUBLISHED_NOT;
		if (!has_right_sizes(space, &pub->extents[i * nr_groups]))
			return -EINVAL;
	}
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	ret = pub->epoch == (uint32_t)okv_manager_epoch(space->manager) ? find_parent(space, pub, &parent) : -ESTALE;
	for (uint32_t i = 0; i < pub->nr && !ret; i++)
		ret = publish_one(&visit, space, client, pub, is_held, i, parent, &parent);
	if (!client)
		give_rest(&visit, space, pub);
	okv_note_peak(space->manager);
	okv_visit_leave(&visit);
	return ret;
}

int okv_session_attach(struct omnikv_space *space, struct omnikv_client *client, bool is_held,
		       const struct omnikv_key *key, uint32_t group, const struct omnikv_extent *extent, uint32_t crc,
		       uint32_t epoch)
{
	struct okv_index *index = space->shelf->index;
	struct omnikv_extent theirs;
	struct okv_visit visit;
	uint32_t entry, sum;
	int ret;

	if (!okv_keys_are_valid(key, 1, NULL) || group >= space->shelf->nr_groups || !(space->needed_state >> group & 1) ||
	    extent->nr_granules != space->plan->plan.groups[group].nr_granules)
		return -EINVAL;
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	if (!client) {
		ret = okv_manager_take(visit.manager, NULL, extent, 1);
		if (ret) {
			okv_visit_leave(&visit);
			return -ENODATA;
		}
	}
	entry = okv_index_find(index, space->id, key);
	ret = entry == OKV_ENTRY_NONE || epoch != (uint32_t)okv_manager_epoch(space->manager) ? -ESTALE : 0;
	if (ret)
		goto out;
	okv_index_extent(index, entry, group, &theirs, &sum);
	ret = theirs.nr_granules ? -EEXIST : okv_retain_may_grow(space->shelf, entry, extent->nr_granules);
	if (ret)
		goto out;
	ret = client ? omnikv_extent_seal(client, extent, 1) : 0;
	if (ret)
		goto out;
	ret = okv_index_attach(index, entry, group, extent, crc);
	if (!ret) {
		space->shelf->nr_granules += extent->nr_granules;
		okv_retain_grew(space->shelf, entry, extent->nr_granules);
		okv_note_peak(space->manager);
		ret = !is_held && omnikv_extent_lease(client, extent, 1) ? -ENODATA : 0;
	} else {
		if (client)
			okv_visit_give(&visit, extent);
		ret = -ENODATA;
	}
out:
	/* What its owner sealed is nobody's own any more. */
	if (ret && !client) {
		okv_visit_give(&visit, extent);
		ret = -ENODATA;
	}
	okv_visit_leave(&visit);
	return ret;
}

void okv_session_use(struct omnikv_space *space, const struct okv_use *use)
{
	struct omnikv_manager_stats *stats = &space->manager->stats;
	struct okv_visit visit;
	uint32_t entry;

	if (use->last && !okv_keys_are_valid(use->last, 1, NULL))
		return;
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	entry = use->last ? okv_index_find(space->shelf->index, space->id, use->last) : OKV_ENTRY_NONE;
	if (entry != OKV_ENTRY_NONE)
		okv_index_touch(space->shelf->index, entry);
	/* Counters are a client's word: they are bounded so that they cannot wrap, and hits never exceed queries. */
	if (use->blocks_queried <= UINT32_MAX && use->tokens_queried <= UINT32_MAX &&
	    use->blocks_hit <= use->blocks_queried && use->tokens_hit <= use->tokens_queried) {
		stats->nr_queries++;
		stats->blocks_queried += use->blocks_queried;
		stats->blocks_hit += use->blocks_hit;
		stats->tokens_queried += use->tokens_queried;
		stats->tokens_hit += use->tokens_hit;
	}
	okv_visit_leave(&visit);
}

void okv_session_distrust(struct omnikv_space *space, const struct omnikv_key *key)
{
	struct okv_visit visit;
	uint32_t entry;

	if (!okv_keys_are_valid(key, 1, NULL))
		return;
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	entry = okv_index_find(space->shelf->index, space->id, key);
	if (entry != OKV_ENTRY_NONE) {
		okv_index_drop(space->shelf->index, entry);
		okv_retain_prune(space->manager);
	}
	okv_visit_leave(&visit);
}

int okv_session_retain(struct omnikv_space *space, uint64_t owner, const struct omnikv_key *key, uint32_t position,
		       const struct omnikv_retention *how)
{
	uint32_t entry = OKV_ENTRY_NONE;
	struct okv_index_info info;
	struct okv_visit visit;
	bool was_there;
	int ret;

	ret = okv_retention_check(how);
	if (ret || (key && !okv_keys_are_valid(key, 1, NULL)))
		return -EINVAL;
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	okv_retain_expire(space->manager);
	was_there = okv_retain_find(space, owner, how->session) != NULL;
	if (key) {
		entry = okv_index_find(space->shelf->index, space->id, key);
		ret = entry == OKV_ENTRY_NONE || okv_index_get(space->shelf->index, entry, &info) || info.position != position ?
		      -ESTALE : 0;
	}
	if (!ret)
		ret = okv_retain_entry(space, owner, how, entry);
	okv_visit_leave(&visit);
	return ret ? ret : !key && was_there;
}

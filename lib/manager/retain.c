// SPDX-License-Identifier: MIT
/*
 * Retentions of a manager: holding paths, counting what they protect, ending them; retain.h has the rules.
 * Any thread; the manager's lock guards all of it.
 */
#include "manager/retain.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "error.h"
#include "manager/import.h"
#include "option.h"

/** struct okv_retentions - of a manager; made with the first one */
struct okv_retentions {
	struct okv_ranks	*ranks;
	uint64_t		nr_granules[OKV_RETAIN_KINDS];
};

static struct okv_retained *retained_of(struct okv_rank *rank)
{
	return (struct okv_retained *)rank;
}

static int kind_of(const struct okv_retained *retained)
{
	return retained->rank.is_pin ? OKV_RETAIN_PIN : OKV_RETAIN_RANKED;
}

int okv_retention_check(const struct omnikv_retention *how)
{
	bool is_pin = how->flags & OMNIKV_RETAIN_F_PIN;

	if (how->flags & ~OMNIKV_RETAIN_F_ALL || !how->session || how->priority > OMNIKV_PRIORITY_MAX ||
	    how->ttl_ms > OMNIKV_RETAIN_MS_MAX)
		return -EINVAL;
	if (how->next_use_ms == OMNIKV_NEXT_USE_NEVER)
		return is_pin || how->priority || how->ttl_ms ? -EINVAL : 0;
	if (how->next_use_ms > OMNIKV_RETAIN_MS_MAX || (is_pin && how->priority))
		return -EINVAL;
	/* A pin without an end, and one that asks for nothing. */
	return how->ttl_ms || (how->next_use_ms && !is_pin) ? 0 : -EINVAL;
}

int okv_pins_check(uint64_t pin_bytes, uint64_t nr_granules, uint64_t granule_bytes, struct omnikv_error *err)
{
	if (pin_bytes / granule_bytes <= nr_granules / 2)
		return 0;
	return okv_error_set(err, -EINVAL, "%llu are more than a half of the pool of %llu; give less", (unsigned long long)pin_bytes,
			     (unsigned long long)(nr_granules * granule_bytes));
}

/* ---- what they protect ---------------------------------------------------------------------- */

static int counts_grow(struct okv_shelf *shelf)
{
	uint32_t nr_ids = okv_index_nr_ids(shelf->index), nr = (nr_ids + nr_ids / 2 + 64) / 64 * 64;

	if (nr_ids <= shelf->nr_kept_ids)
		return 0;
	for (int kind = 0; kind < OKV_RETAIN_KINDS; kind++) {
		uint16_t *bigger = realloc(shelf->nr_kept[kind], nr * sizeof(*bigger));

		if (!bigger)
			return -ENOMEM;
		memset(bigger + shelf->nr_kept_ids, 0, (nr - shelf->nr_kept_ids) * sizeof(*bigger));
		shelf->nr_kept[kind] = bigger;
	}
	shelf->nr_kept_ids = nr;
	return 0;
}

/* Count the path of @retained, up or down; granules of entries that nothing of its kind counted, or does any more. */
static uint64_t count_path(struct okv_retained *retained, int by)
{
	struct okv_shelf *shelf = retained->pin.shelf;
	uint16_t *counts = shelf->nr_kept[kind_of(retained)];
	uint32_t id = retained->pin.entry;
	struct okv_index_info info;
	uint64_t nr_granules = 0;

	for (uint32_t i = 0; i < retained->pin.nr_blocks && id < shelf->nr_kept_ids; i++) {
		if (by < 0 && !counts[id])
			break;
		if (!counts[id] || (by < 0 && counts[id] == 1))
			nr_granules += okv_shelf_entry_granules(shelf, id);
		counts[id] += by;
		if (okv_index_get(shelf->index, id, &info))
			break;
		id = info.parent;
	}
	return nr_granules;
}

/* Its entry is kept from now on; it is in no table yet. */
static int hold(struct omnikv_manager *manager, struct okv_retained *retained)
{
	struct okv_shelf *shelf = retained->pin.shelf;
	struct okv_index_info info;
	int ret = okv_index_get(shelf->index, retained->pin.entry, &info);

	/* No path is longer than there are entries, but where others have written to them. */
	if (!ret && info.position >= okv_index_nr_ids(shelf->index))
		ret = -ESTALE;
	if (!ret)
		ret = counts_grow(shelf);
	if (ret)
		return ret;
	retained->pin.prev = NULL;
	retained->pin.nr_blocks = info.position + 1;
	if (retained->rank.is_pin)
		ret = okv_pin_take(shelf, &retained->pin, retained->pin.entry, retained->pin.nr_blocks);
	else
		ret = okv_index_pin(shelf->index, retained->pin.entry);
	if (ret)
		return ret;
	retained->rank.weight = count_path(retained, 1);
	manager->retentions->nr_granules[kind_of(retained)] += retained->rank.weight;
	return 0;
}

static void let_go(struct omnikv_manager *manager, struct okv_retained *retained)
{
	manager->retentions->nr_granules[kind_of(retained)] -= count_path(retained, -1);
	if (retained->rank.is_pin)
		okv_pin_drop(&retained->pin);
	else
		okv_index_unpin(retained->pin.shelf->index, retained->pin.entry);
}

/* ---- how much there may be ------------------------------------------------------------------ */

static uint64_t bound_of(const struct omnikv_manager *manager, int kind)
{
	return kind == OKV_RETAIN_PIN ? manager->pin_granules : okv_manager_granules(manager) / 2;
}

static bool is_counted(const struct okv_shelf *shelf, int kind, uint32_t entry)
{
	return entry < shelf->nr_kept_ids && shelf->nr_kept[kind][entry];
}

int okv_retain_may_grow(const struct okv_shelf *shelf, uint32_t entry, uint64_t nr_granules)
{
	const struct omnikv_manager *manager = shelf->manager;

	return is_counted(shelf, OKV_RETAIN_PIN, entry) &&
	       manager->retentions->nr_granules[OKV_RETAIN_PIN] + nr_granules > bound_of(manager, OKV_RETAIN_PIN) ? -EDQUOT : 0;
}

void okv_retain_grew(struct okv_shelf *shelf, uint32_t entry, uint64_t nr_granules)
{
	struct omnikv_manager *manager = shelf->manager;

	for (int kind = 0; kind < OKV_RETAIN_KINDS; kind++)
		if (is_counted(shelf, kind, entry))
			manager->retentions->nr_granules[kind] += nr_granules;
	while (manager->retentions &&
	       manager->retentions->nr_granules[OKV_RETAIN_RANKED] > bound_of(manager, OKV_RETAIN_RANKED) &&
	       okv_retain_yield(manager))
		;
}

/* Within the bounds, of all and of its owner? It is counted already, and not listed. */
static bool is_within(const struct omnikv_manager *manager, const struct okv_retained *retained)
{
	uint64_t bound = bound_of(manager, kind_of(retained)), charged;
	uint32_t nr;

	if (manager->retentions->nr_granules[kind_of(retained)] > bound)
		return false;
	if (retained->rank.owner == OKV_OWNER_SELF)
		return true;
	nr = okv_ranks_sum_of(manager->retentions->ranks, retained->rank.owner, retained->rank.is_pin, &charged);
	return charged + retained->rank.weight <= bound / 2 && nr < OKV_RETAIN_OF_OWNER;
}

/* Of the same owner and worth no more than @retained; NULL: there is none. */
static struct okv_retained *least_beside(const struct omnikv_manager *manager, const struct okv_retained *retained)
{
	const struct okv_rank *mine = &retained->rank;
	struct okv_rank *least = okv_ranks_least_of(manager->retentions->ranks, mine->owner);

	if (!least || least->priority > mine->priority || (least->priority == mine->priority && least->next_ns < mine->next_ns))
		return NULL;
	return retained_of(least);
}

/* Out of the list, where its place is kept, so that it can come back as it was. */
static void set_aside(struct omnikv_manager *manager, struct okv_retained *retained, struct okv_retained **list)
{
	let_go(manager, retained);
	okv_ranks_set_aside(manager->retentions->ranks, &retained->rank);
	retained->aside = *list;
	*list = retained;
}

/* What held once, and nothing has changed since, can be held again. */
static void bring_back(struct omnikv_manager *manager, struct okv_retained *list)
{
	struct okv_retained *retained;

	while ((retained = list)) {
		uint64_t charged = retained->rank.weight;

		list = retained->aside;
		if (hold(manager, retained)) {
			okv_ranks_del(manager->retentions->ranks, &retained->rank);
			free(retained);
			continue;
		}
		retained->rank.weight = charged;
		okv_ranks_take_back(manager->retentions->ranks, &retained->rank);
	}
}

/* Hold @new where that stays within the bounds; of ranked ones the owner's lesser ones are set aside for it. */
static int hold_within(struct omnikv_manager *manager, struct okv_retained *new, struct okv_retained **list)
{
	struct okv_retained *lesser;
	int ret = hold(manager, new);

	if (ret)
		return ret;
	while (!is_within(manager, new)) {
		lesser = new->rank.is_pin ? NULL : least_beside(manager, new);
		if (!lesser) {
			let_go(manager, new);
			return -EDQUOT;
		}
		set_aside(manager, lesser, list);
	}
	return 0;
}

/* @new takes the place of @old and of what is worth less; either may be NULL. On an error all is as it was, but for @new. */
static int replace(struct omnikv_manager *manager, struct okv_retained *old, struct okv_retained *new)
{
	struct okv_retained *aside = NULL, *retained;
	int ret;

	/* Out of the way first: what both protect counts once. */
	if (old)
		set_aside(manager, old, &aside);
	ret = new ? hold_within(manager, new, &aside) : 0;
	if (!ret && new) {
		ret = okv_ranks_add(manager->retentions->ranks, &new->rank);
		if (ret)
			let_go(manager, new);
	}
	if (ret) {
		bring_back(manager, aside);
		return ret;
	}
	while ((retained = aside)) {
		aside = retained->aside;
		okv_ranks_del(manager->retentions->ranks, &retained->rank);
		manager->stats.retentions_yielded += retained != old;
		free(retained);
	}
	return 0;
}

/* ---- retaining ------------------------------------------------------------------------------ */

static int retentions_make(struct omnikv_manager *manager)
{
	int ret;

	if (manager->retentions)
		return 0;
	manager->retentions = calloc(1, sizeof(*manager->retentions));
	if (!manager->retentions)
		return -ENOMEM;
	ret = okv_ranks_create(&manager->retentions->ranks);
	if (ret) {
		free(manager->retentions);
		manager->retentions = NULL;
	}
	return ret;
}

/* A new retention of @entry, held by nothing yet. */
static struct okv_retained *retained_new(struct omnikv_space *space, uint64_t owner, const struct omnikv_retention *how,
					 uint32_t entry)
{
	struct okv_retained *retained = calloc(1, sizeof(*retained));
	uint64_t now = okv_monotonic_ns(), next_ms = how->next_use_ms;
	/* A hint alone ends by itself as well: when it has been late for as long as it said. */
	uint64_t ttl_ms = how->ttl_ms ? how->ttl_ms : 2 * next_ms;

	if (!retained)
		return NULL;
	retained->rank = (struct okv_rank){
		.owner = owner, .session = how->session, .space = space, .is_pin = how->flags & OMNIKV_RETAIN_F_PIN,
		.priority = how->priority, .until_ns = now + ttl_ms * UINT64_C(1000000),
		.next_ns = next_ms ? now + next_ms * UINT64_C(1000000) : OKV_RANKS_UNKNOWN,
	};
	retained->pin.shelf = space->shelf;
	retained->pin.entry = entry;
	return retained;
}

int okv_retain_entry(struct omnikv_space *space, uint64_t owner, const struct omnikv_retention *how, uint32_t entry)
{
	bool is_over = how->next_use_ms == OMNIKV_NEXT_USE_NEVER;
	struct omnikv_manager *manager = space->manager;
	struct okv_retained *old, *new = NULL;
	int ret;

	okv_retain_expire(manager);
	old = okv_retain_find(space, owner, how->session);
	if (entry != OKV_ENTRY_NONE && !is_over) {
		ret = retentions_make(manager);
		if (ret)
			return ret;
		new = retained_new(space, owner, how, entry);
		if (!new)
			return -ENOMEM;
	}
	ret = replace(manager, old, new);
	if (ret) {
		free(new);
		return ret;
	}
	if (entry != OKV_ENTRY_NONE && is_over)
		okv_index_demote(space->shelf->index, entry);
	return 0;
}

struct okv_retained *okv_retain_find(const struct omnikv_space *space, uint64_t owner, uint64_t session)
{
	const struct okv_retentions *all = space->manager->retentions;
	struct okv_rank *rank = all ? okv_ranks_find(all->ranks, owner, space, session) : NULL;

	return rank ? retained_of(rank) : NULL;
}

/* ---- ending --------------------------------------------------------------------------------- */

void okv_retain_end(struct omnikv_manager *manager, struct okv_retained *retained)
{
	okv_ranks_del(manager->retentions->ranks, &retained->rank);
	let_go(manager, retained);
	free(retained);
}

void okv_retain_expire(struct omnikv_manager *manager)
{
	struct okv_rank *first;
	uint64_t now;

	if (!manager->retentions || !okv_ranks_count(manager->retentions->ranks))
		return;
	now = okv_monotonic_ns();
	while ((first = okv_ranks_first(manager->retentions->ranks)) && first->until_ns <= now) {
		okv_retain_end(manager, retained_of(first));
		manager->stats.retentions_expired++;
	}
}

bool okv_retain_yield(struct omnikv_manager *manager)
{
	struct okv_rank *least = manager->retentions ? okv_ranks_least(manager->retentions->ranks) : NULL;

	if (!least)
		return false;
	okv_retain_end(manager, retained_of(least));
	manager->stats.retentions_yielded++;
	return true;
}

/* End those of which @is_one says so. Whichever ends, others change places: it is looked again until none did. */
static void end_if(struct omnikv_manager *manager, bool (*is_one)(const struct okv_retained *retained, uint64_t what),
		   uint64_t what)
{
	struct okv_ranks *ranks = manager->retentions ? manager->retentions->ranks : NULL;
	bool has_ended = ranks != NULL;

	while (has_ended) {
		has_ended = false;
		for (uint32_t i = okv_ranks_count(ranks); i-- > 0;) {
			struct okv_retained *retained;

			if (i >= okv_ranks_count(ranks))
				continue;
			retained = retained_of(okv_ranks_at(ranks, i));
			if (!is_one(retained, what))
				continue;
			okv_retain_end(manager, retained);
			has_ended = true;
		}
	}
}

static bool is_dropped(const struct okv_retained *retained, uint64_t what)
{
	struct okv_index_info info;

	(void)what;
	return okv_index_get(retained->pin.shelf->index, retained->pin.entry, &info) || info.is_dropped;
}

void okv_retain_prune(struct omnikv_manager *manager)
{
	end_if(manager, is_dropped, 0);
}

static bool is_any(const struct okv_retained *retained, uint64_t what)
{
	(void)retained;
	(void)what;
	return true;
}

void okv_retain_end_all(struct omnikv_manager *manager)
{
	end_if(manager, is_any, 0);
}

static bool is_on(const struct okv_retained *retained, uint64_t shelf)
{
	return retained->pin.shelf == (const struct okv_shelf *)(uintptr_t)shelf;
}

void okv_retain_end_shelf(struct omnikv_manager *manager, const struct okv_shelf *shelf)
{
	end_if(manager, is_on, (uintptr_t)shelf);
}

static bool is_of(const struct okv_retained *retained, uint64_t owner)
{
	return retained->rank.owner == owner;
}

void okv_retain_end_owner(struct omnikv_manager *manager, uint64_t owner)
{
	struct okv_visit visit;

	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	end_if(manager, is_of, owner);
	okv_visit_leave(&visit);
}

void okv_retain_fini(struct omnikv_manager *manager)
{
	struct okv_visit visit;

	if (!manager->retentions)
		return;
	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	okv_retain_end_all(manager);
	okv_visit_leave(&visit);
	okv_ranks_destroy(manager->retentions->ranks);
	free(manager->retentions);
	manager->retentions = NULL;
}

/* ---- looking -------------------------------------------------------------------------------- */

void okv_retain_stats(const struct omnikv_manager *manager, struct omnikv_manager_stats *stats)
{
	const struct okv_retentions *all = manager->retentions;

	stats->pin_limit_bytes = manager->pin_granules * manager->granule_bytes;
	stats->nr_retentions = all ? okv_ranks_count(all->ranks) : 0;
	stats->pinned_bytes = all ? all->nr_granules[OKV_RETAIN_PIN] * manager->granule_bytes : 0;
	stats->retained_bytes = all ? all->nr_granules[OKV_RETAIN_RANKED] * manager->granule_bytes : 0;
}

int okv_retain_check(struct omnikv_manager *manager, struct okv_shelf *shelf, uint64_t *nr_pins, const char **reason)
{
	const struct okv_ranks *ranks = manager->retentions ? manager->retentions->ranks : NULL;
	uint32_t *counts;
	int ret = 0;

	if (!ranks)
		return 0;
	counts = calloc((size_t)OKV_RETAIN_KINDS * shelf->nr_kept_ids + 1, sizeof(*counts));
	if (!counts)
		return -ENOMEM;
	for (uint32_t i = 0; i < okv_ranks_count(ranks); i++) {
		struct okv_retained *retained = retained_of(okv_ranks_at(ranks, i));
		uint32_t id = retained->pin.entry, nr = retained->pin.nr_blocks;
		struct okv_index_info info;

		if (retained->pin.shelf != shelf)
			continue;
		*nr_pins += !retained->rank.is_pin;
		while (nr-- && id < shelf->nr_kept_ids && !okv_index_get(shelf->index, id, &info)) {
			counts[kind_of(retained) * shelf->nr_kept_ids + id]++;
			id = info.parent;
		}
	}
	for (uint32_t id = 0; id < shelf->nr_kept_ids; id++)
		for (int kind = 0; kind < OKV_RETAIN_KINDS; kind++)
			if (counts[kind * shelf->nr_kept_ids + id] != shelf->nr_kept[kind][id])
				ret = -EUCLEAN;
	if (ret)
		*reason = "a block is retained more or less often than retentions say";
	free(counts);
	return ret;
}

/* ---- the calls ------------------------------------------------------------------------------ */

int64_t omnikv_space_retain(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys,
			    const struct omnikv_key *tail, const struct omnikv_retention *retention)
{
	const struct omnikv_prefix prefix = { .keys = keys, .nr_keys = nr_keys, .tail = tail };
	struct omnikv_retention how;
	struct okv_index_hit hit;
	struct okv_visit visit;
	uint32_t tail_tokens;
	int ret;

	if (!space || !retention || !okv_prefix_is_valid(&prefix))
		return -EINVAL;
	ret = okv_option_copy(&how, sizeof(how), retention);
	if (!ret)
		ret = okv_retention_check(&how);
	if (ret)
		return ret;
	if (okv_is_attached(space->manager))
		return okv_import_retain(space, keys, nr_keys, tail, &how);
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	okv_match_find(space, space->needed_state, &prefix, &hit, &tail_tokens);
	ret = okv_retain_entry(space, OKV_OWNER_SELF, &how, hit.entry);
	okv_visit_leave(&visit);
	return ret ? ret : (int64_t)hit.nr_blocks;
}

int omnikv_space_unretain(struct omnikv_space *space, uint64_t session)
{
	struct omnikv_retention over = { .session = session, .next_use_ms = OMNIKV_NEXT_USE_NEVER };
	struct okv_visit visit;
	int ret;

	if (!space || !session)
		return -EINVAL;
	if (okv_is_attached(space->manager))
		return (int)okv_import_retain(space, NULL, 0, NULL, &over);
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	okv_retain_expire(space->manager);
	ret = okv_retain_find(space, OKV_OWNER_SELF, session) ? 0 : -ENOENT;
	if (!ret)
		ret = okv_retain_entry(space, OKV_OWNER_SELF, &over, OKV_ENTRY_NONE);
	okv_visit_leave(&visit);
	return ret;
}

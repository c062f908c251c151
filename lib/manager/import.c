// SPDX-License-Identifier: MIT
/*
 * Importing, publishing and letting go; see import.h. Any thread.
 *
 * One lease stands for one imported entry, whoever uses it here: sequences and matches pin the
 * entry. One thread publishes at a time, so that a parent is always tried before its children.
 */
#include "manager/import.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "failpoint.h"
#include "manager/tier.h"
#include "manager/tokens.h"
#include "option.h"
#include "provider.h"

#define RELEASES_MAX	256u
#define FREE_BATCH	1024u
/* Commits that wait for an authority: beyond this the oldest are no longer published. */
#define QUEUE_BLOCKS_MAX	65536u
#define QUEUE_TRIES_MAX		16u
#define RETAIN_TRIES		3u

/**
 * struct okv_queued - blocks that wait to be published
 * @pin:       on the last one
 * @nr_blocks: the last so many of the path, at most OKV_AUTHORITY_BLOCKS
 * @nr_tries:  that came back although somebody answered
 */
struct okv_queued {
	struct okv_queued	*next;
	struct omnikv_space	*space;
	struct okv_pin		pin;
	uint32_t		nr_blocks;
	uint32_t		nr_tries;
	uint64_t		epoch;		/* in which they were committed */
};

/* All under the manager's lock. */
struct okv_imports {
	struct okv_authority	*auth;
	struct okv_queued	*first;
	struct okv_queued	**last;
	uint64_t		nr_queued_blocks;
	bool			is_flushing;
	uint64_t		epoch;		/* of what is here */
	bool			has_epoch;
	struct okv_importing	*spare;		/* of a lookup that is over, for the next one; NULL: none */
	/* Leases that trims gave up. */
	uint32_t		nr_releases;
	struct omnikv_extent	releases[RELEASES_MAX];
};

int okv_imports_create(struct okv_authority *auth, struct okv_imports **imports)
{
	*imports = calloc(1, sizeof(**imports));
	if (!*imports)
		return -ENOMEM;
	(*imports)->auth = auth;
	(*imports)->last = &(*imports)->first;
	return 0;
}

/* ---- letting go ----------------------------------------------------------------------------- */

void okv_imports_settle(struct omnikv_manager *manager)
{
	struct okv_imports *imports = manager->imports;

	if (!imports || !imports->nr_releases)
		return;
	/* All were leased by this client; where the pool refuses, its records were overwritten. */
	if (omnikv_extent_release(manager->client, imports->releases, imports->nr_releases)) {
		for (uint32_t i = 0; i < imports->nr_releases; i++)
			if (omnikv_extent_release(manager->client, &imports->releases[i], 1))
				manager->stats.extents_lost++;
	}
	imports->nr_releases = 0;
}

static void release(struct omnikv_manager *manager, const struct omnikv_extent *extents, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++) {
		if (!extents[i].nr_granules)
			continue;
		if (manager->imports->nr_releases == RELEASES_MAX)
			okv_imports_settle(manager);
		manager->imports->releases[manager->imports->nr_releases++] = extents[i];
	}
}

static void disown(struct okv_shelf *shelf, uint32_t entry)
{
	shelf->owned[entry / 64] &= ~(1ull << (entry % 64));
}

/* It was published, and is held by counts of transfers. True, and it is not any more. */
static bool take_held(struct okv_shelf *shelf, uint32_t entry)
{
	uint64_t bit = 1ull << (entry % 64);

	if (entry >= shelf->nr_owned_ids || !(shelf->held[entry / 64] & bit))
		return false;
	shelf->held[entry / 64] &= ~bit;
	return true;
}

void okv_import_trim(struct okv_shelf *shelf, uint32_t entry)
{
	struct omnikv_extent extents[OKV_INDEX_GROUPS_MAX];
	struct omnikv_manager *manager = shelf->manager;

	while (entry != OKV_ENTRY_NONE) {
		uint32_t parent = okv_index_parent(shelf->index, entry);
		bool is_owned = okv_shelf_is_owned(shelf, entry), is_held;

		if (okv_index_remove(shelf->index, entry, extents))
			return;
		is_held = take_held(shelf, entry);
		if (is_owned)
			disown(shelf, entry);
		for (uint32_t g = 0; g < shelf->nr_groups; g++) {
			if (!extents[g].nr_granules)
				continue;
			if (is_held)
				omnikv_extent_io_put(manager->client, &extents[g], 1);
			else if (!is_owned)
				release(manager, &extents[g], 1);
			if (!is_owned)
				continue;
			shelf->nr_granules -= extents[g].nr_granules;
			/* One that is held may be the authority's by now, which has not been able to say so. */
			if (omnikv_extent_free(manager->client, &extents[g], 1) && !is_held)
				manager->stats.extents_lost++;
		}
		entry = parent;
	}
}

/* ---- what commits make ---------------------------------------------------------------------- */

int okv_import_prepare(struct okv_shelf *shelf, uint32_t nr)
{
	uint64_t nr_ids = (uint64_t)okv_index_nr_ids(shelf->index) + nr;

	if (nr_ids > shelf->nr_owned_ids) {
		uint32_t nr_new = (nr_ids + nr_ids / 2 + 64) / 64 * 64;
		uint64_t *owned = realloc(shelf->owned, nr_new / 8), *held;

		if (!owned)
			return -ENOMEM;
		shelf->owned = owned;
		held = realloc(shelf->held, nr_new / 8);
		if (!held)
			return -ENOMEM;
		memset(owned + shelf->nr_owned_ids / 64, 0, (nr_new - shelf->nr_owned_ids) / 8);
		memset(held + shelf->nr_owned_ids / 64, 0, (nr_new - shelf->nr_owned_ids) / 8);
		shelf->held = held;
		shelf->nr_owned_ids = nr_new;
	}
	return 0;
}

void okv_import_own(struct okv_shelf *shelf, uint32_t entry)
{
	assert(entry < shelf->nr_owned_ids);
	shelf->owned[entry / 64] |= 1ull << (entry % 64);
}

static void unqueue(struct okv_imports *imports, struct okv_queued *queued)
{
	imports->first = queued->next;
	if (!imports->first)
		imports->last = &imports->first;
	imports->nr_queued_blocks -= queued->nr_blocks;
	queued->next = NULL;
}

static void enqueue(struct okv_imports *imports, struct okv_queued *queued)
{
	queued->next = NULL;
	*imports->last = queued;
	imports->last = &queued->next;
	imports->nr_queued_blocks += queued->nr_blocks;
}

/* It is not published (any more); its blocks stay as long as something here uses them. */
static void drop_queued(struct omnikv_manager *manager, struct okv_queued *queued)
{
	struct okv_shelf *shelf = queued->pin.shelf;
	uint32_t entry = queued->pin.entry;
	struct okv_index_info info;

	for (uint32_t i = 0; i < queued->nr_blocks && entry != OKV_ENTRY_NONE; i++) {
		manager->stats.blocks_unpublished += okv_shelf_is_owned(shelf, entry);
		entry = okv_index_get(shelf->index, entry, &info) ? OKV_ENTRY_NONE : info.parent;
	}
	okv_pin_drop(&queued->pin);
	free(queued);
}

void okv_import_queue(struct omnikv_space *space, uint32_t entry, uint32_t nr_blocks, uint32_t nr)
{
	struct omnikv_manager *manager = space->manager;
	struct okv_imports *imports = manager->imports;
	struct okv_queued *queued = calloc(1, sizeof(*queued));

	if (imports->nr_queued_blocks + nr > QUEUE_BLOCKS_MAX && imports->first && !imports->is_flushing) {
		struct okv_queued *oldest = imports->first;

		unqueue(imports, oldest);
		drop_queued(manager, oldest);
	}
	if (!queued || okv_pin_take(space->shelf, &queued->pin, entry, nr_blocks)) {
		manager->stats.blocks_unpublished += nr;
		free(queued);
		return;
	}
	queued->space = space;
	queued->epoch = imports->epoch;
	queued->nr_blocks = nr;
	enqueue(imports, queued);
}

int okv_import_attach(struct omnikv_space *space, uint32_t entry, uint32_t group, const struct omnikv_extent *extent,
		      uint32_t crc)
{
	struct okv_authority *auth = space->manager->imports->auth;
	struct okv_index_info info;
	int ret;

	/* An owned block may be on its way to the authority as it is. */
	if (!space->remote || okv_shelf_is_owned(space->shelf, entry))
		return -EBUSY;
	ret = okv_index_get(space->shelf->index, entry, &info);
	/* Of an older epoch: the authority's block of this key, where there is one, is another. */
	if (!ret && info.is_dropped)
		ret = -ESTALE;
	if (!ret)
		ret = auth->ops->attach(auth, space->remote, &info.key, group, extent, crc,
					(uint32_t)space->manager->imports->epoch);
	if (ret)
		return ret;
	ret = okv_index_attach(space->shelf->index, entry, group, extent, crc);
	if (ret) {
		release(space->manager, extent, 1);
		return -ENODATA;
	}
	return 0;
}

bool okv_import_is_idle(struct omnikv_manager *manager, const struct omnikv_extent *extent)
{
	return manager->imports->auth->ops->is_idle(manager->imports->auth, extent);
}

/* ---- publishing ----------------------------------------------------------------------------- */

/* A copy of what is to be published, since nothing is locked meanwhile; its pin keeps what it names. */
struct okv_publishing {
	uint32_t		nr_ids;
	uint32_t		ids[OKV_AUTHORITY_BLOCKS];
	struct omnikv_key	parent;
	struct omnikv_key	keys[OKV_AUTHORITY_BLOCKS];
	struct omnikv_extent	extents[OKV_AUTHORITY_BLOCKS * OMNIKV_GROUPS_MAX];
	uint32_t		crcs[OKV_AUTHORITY_BLOCKS * OMNIKV_GROUPS_MAX];
	enum okv_published	published[OKV_AUTHORITY_BLOCKS];
	struct okv_publication	pub;
};

/* Inside a visit: the blocks of @queued that are owned still, up to the first that is not behind the ones before. */
static void publishing_fill(const struct okv_queued *queued, struct okv_publishing *out)
{
	const struct okv_shelf *shelf = queued->pin.shelf;
	uint32_t nr_groups = shelf->nr_groups;
	uint32_t path[OKV_AUTHORITY_BLOCKS], nr = queued->nr_blocks;
	struct okv_index_info info;

	okv_index_blocks(shelf->index, queued->pin.entry, queued->pin.nr_blocks - nr, path);
	out->nr_ids = 0;
	for (uint32_t i = 0; i < nr; i++) {
		uint32_t at = out->nr_ids;

		if (!okv_shelf_is_owned(shelf, path[i])) {
			if (at)
				break;
			continue;
		}
		okv_index_get(shelf->index, path[i], &info);
		if (!at) {
			out->pub.position = info.position;
			out->pub.tail_tokens = info.is_partial ? info.nr_tokens : 0;
			out->pub.parent = NULL;
			if (info.parent != OKV_ENTRY_NONE) {
				struct okv_index_info parent;

				okv_index_get(shelf->index, info.parent, &parent);
				out->parent = parent.key;
				out->pub.parent = &out->parent;
			}
		}
		out->ids[at] = path[i];
		out->keys[at] = info.key;
		for (uint32_t g = 0; g < nr_groups; g++)
			okv_index_extent(shelf->index, path[i], g, &out->extents[at * nr_groups + g],
					 &out->crcs[at * nr_groups + g]);
		out->published[at] = OKV_PUBLISHED_NOT;
		out->nr_ids++;
	}
	out->pub.nr = out->nr_ids;
	out->pub.epoch = queued->epoch;
	out->pub.keys = out->keys;
	out->pub.extents = out->extents;
	out->pub.crcs = out->crcs;
	out->pub.published = out->published;
}

/* Inside a visit: hold what is to be published, where the authority asks for that. */
static int publishing_hold(struct okv_authority *auth, struct okv_shelf *shelf, const struct okv_publishing *pub)
{
	for (uint32_t i = 0; i < pub->nr_ids && auth->holds_ios; i++) {
		uint64_t bit = 1ull << (pub->ids[i] % 64);
		struct omnikv_extent list[OMNIKV_GROUPS_MAX];
		uint32_t nr = 0;
		int ret;

		if (shelf->held[pub->ids[i] / 64] & bit)
			continue;
		for (uint32_t g = 0; g < shelf->nr_groups; g++)
			if (pub->extents[i * shelf->nr_groups + g].nr_granules)
				list[nr++] = pub->extents[i * shelf->nr_groups + g];
		ret = omnikv_extent_io_get(auth->client, list, nr);
		if (ret)
			return ret;
		shelf->held[pub->ids[i] / 64] |= bit;
	}
	return 0;
}

/* Inside a visit: what came of it. Blocks that the authority has already stay ours for as long as they are used. */
static void publishing_apply(struct omnikv_manager *manager, struct okv_queued *queued,
			     const struct okv_publishing *done)
{
	struct okv_shelf *shelf = queued->pin.shelf;
	uint32_t nr_groups = shelf->nr_groups;

	for (uint32_t i = 0; i < done->nr_ids; i++) {
		if (done->published[i] == OKV_PUBLISHED_THERE) {
			manager->stats.blocks_deduplicated++;
			continue;
		}
		if (done->published[i] == OKV_PUBLISHED_NOT)
			continue;
		disown(shelf, done->ids[i]);
		for (uint32_t g = 0; g < nr_groups; g++)
			shelf->nr_granules -= done->extents[i * nr_groups + g].nr_granules;
		manager->stats.blocks_published += done->published[i] == OKV_PUBLISHED_NEW;
		manager->stats.blocks_unpublished += done->published[i] == OKV_PUBLISHED_ADRIFT;
	}
}

/* One request of the queue. false: no more to be done now. */
static bool flush_one(struct omnikv_manager *manager, struct okv_publishing *pub, uint64_t *nr_left)
{
	struct okv_imports *imports = manager->imports;
	struct okv_queued *queued;
	struct okv_visit visit;
	int ret = 0;

	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	queued = imports->first;
	if (queued) {
		publishing_fill(queued, pub);
		ret = publishing_hold(imports->auth, queued->pin.shelf, pub);
	}
	okv_visit_leave(&visit);
	if (!queued)
		return false;

	if (pub->nr_ids && !ret) {
		ret = -OKV_FAILPOINT("import.publish");
		if (!ret)
			ret = imports->auth->ops->publish(imports->auth, queued->space->remote, &pub->pub);
	}
	okv_visit_enter(&visit);
	publishing_apply(manager, queued, pub);
	if (ret != -ENOTCONN) {
		bool is_done = (ret != -EBUSY && ret != -ENOMEM) || ++queued->nr_tries > QUEUE_TRIES_MAX;

		unqueue(imports, queued);
		if (is_done)
			drop_queued(manager, queued);
		else
			enqueue(imports, queued);
	}
	okv_visit_leave(&visit);
	return ret != -ENOTCONN && --*nr_left;
}

void okv_imports_flush(struct omnikv_manager *manager)
{
	struct okv_imports *imports = manager->imports;
	struct okv_publishing *pub;
	struct okv_visit visit;
	uint64_t nr_left = 0;
	bool is_mine;

	if (!imports)
		return;
	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	is_mine = imports->first && !imports->is_flushing;
	if (is_mine)
		imports->is_flushing = true;
	for (const struct okv_queued *queued = imports->first; queued; queued = queued->next)
		nr_left++;
	okv_visit_leave(&visit);
	if (!is_mine)
		return;

	pub = malloc(sizeof(*pub));
	/* Once round the queue: what is busy waits for the next time. */
	while (pub && flush_one(manager, pub, &nr_left))
		;
	free(pub);
	okv_visit_enter(&visit);
	imports->is_flushing = false;
	okv_visit_leave(&visit);
}

/* ---- importing ------------------------------------------------------------------------------ */

/**
 * struct okv_importing - where an import works
 * @epoch:    in which it began
 * @flags:    OKV_FIND_F_*
 * @asks:     [nr_asks] of one round, of the prefix of the same place in @of
 * @lacks_state: bit per prefix: block @nr_hit - 1, which is here, may have a state there
 */
struct okv_importing {
	struct omnikv_space		*space;
	const struct omnikv_prefix	*prefixes;
	struct okv_imported		*imported;
	uint64_t			epoch;
	uint32_t			flags;
	uint32_t			lacks_state;
	uint32_t			nr_asks;
	uint32_t			of[OKV_ASKS_MAX];
	uint64_t			nr_hit[OKV_ASKS_MAX];
	struct okv_ask			asks[OKV_ASKS_MAX];
	struct okv_found		found;
};

static uint64_t imported_blocks(const struct okv_imported *imported)
{
	return okv_pin_is_active(&imported->pin) ? imported->pin.nr_blocks : 0;
}

uint64_t okv_import_epoch(const struct omnikv_manager *manager)
{
	return manager->imports ? manager->imports->epoch : okv_manager_epoch(manager);
}

/* Inside a visit: has another thread learnt of a new epoch since? Then what is older does not come in. */
static bool import_is_over(const struct okv_importing *imp)
{
	return imp->epoch != imp->space->manager->imports->epoch;
}

/* Is it an answer to what was asked, with extents as this namespace has? Who answered may be anybody. */
static bool ask_fits(const struct okv_importing *imp, const struct okv_ask *ask)
{
	const struct omnikv_plan *plan = &imp->space->plan->plan;
	uint32_t nr_groups = plan->layout.nr_groups;
	const struct omnikv_extent *extent = &imp->found.extents[ask->at * nr_groups];
	uint64_t nr_keys = ask->prefix->nr_keys;

	if (ask->nr_hit > nr_keys + (ask->prefix->tail != NULL) || (ask->nr && ask->nr + ask->first > ask->nr_hit) ||
	    (ask->tail_tokens != 0) != (ask->nr_hit > nr_keys) || ask->tail_tokens >= plan->block_tokens)
		return false;
	for (uint32_t i = 0; i < ask->nr; i++)
		for (uint32_t g = 0; g < nr_groups; g++, extent++)
			if (extent->nr_granules != plan->groups[g].nr_granules &&
			    (extent->nr_granules || !(imp->space->needed_state >> g & 1)))
				return false;
	return true;
}

/* Inside a visit: put what was found behind the path. Leases go to the entries, or back. false: it ends here. */
static bool import_insert(struct okv_importing *imp, const struct okv_ask *ask, struct okv_imported *imported)
{
	const struct omnikv_prefix *prefix = ask->prefix;
	struct omnikv_manager *manager = imp->space->manager;
	struct okv_shelf *shelf = imp->space->shelf;
	uint32_t nr_groups = shelf->nr_groups, i;
	const struct omnikv_extent *extents = &imp->found.extents[ask->at * nr_groups];
	const uint32_t *crcs = &imp->found.crcs[ask->at * nr_groups];
	bool is_over = import_is_over(imp) || !ask_fits(imp, ask);

	for (i = 0; i < ask->nr && !imported->tail_tokens && !is_over; i++) {
		uint64_t position = imported_blocks(imported);
		bool is_tail = ask->tail_tokens && position == ask->nr_hit - 1;
		struct okv_index_block block = {
			.ns = imp->space->id,
			.parent = okv_pin_is_active(&imported->pin) ? imported->pin.entry : OKV_ENTRY_NONE,
			.position = position,
			.nr_tokens = is_tail ? ask->tail_tokens : OKV_BLOCK_FULL,
			.key = is_tail ? prefix->tail : &prefix->keys[position],
			.extents = &extents[i * nr_groups],
			.crc32c = &crcs[i * nr_groups],
		};
		uint32_t entry;
		int ret = -OKV_FAILPOINT("import.insert");

		if (!ret)
			ret = okv_index_insert(shelf->index, &block, &entry);
		if (ret && ret != -EEXIST)
			break;
		/* Somebody was faster: the entry has its lease already. */
		if (ret)
			release(manager, block.extents, nr_groups);
		else
			manager->stats.blocks_imported++;
		if (okv_pin_move(shelf, &imported->pin, entry, position + 1)) {
			if (!ret)
				okv_import_trim(shelf, entry);
			i++;
			is_over = true;
			break;
		}
		imported->tail_tokens = is_tail ? ask->tail_tokens : 0;
	}
	release(manager, &extents[i * nr_groups], (ask->nr - i) * nr_groups);
	return !is_over && i == ask->nr && !imported->tail_tokens &&
	       (ask->has_more || (ask->nr && imported_blocks(imported) < ask->nr_hit));
}

/* Inside a visit: the block at @position is here without a state that the authority's has. */
static void import_states(struct okv_importing *imp, const struct okv_ask *ask, const struct okv_imported *imported)
{
	struct okv_shelf *shelf = imp->space->shelf;
	struct omnikv_manager *manager = imp->space->manager;
	struct okv_index_info info;
	uint32_t entry = okv_pin_is_active(&imported->pin) ? imported->pin.entry : OKV_ENTRY_NONE;

	if (import_is_over(imp))
		entry = OKV_ENTRY_NONE;
	while (entry != OKV_ENTRY_NONE && !okv_index_get(shelf->index, entry, &info) && info.position > ask->first)
		entry = info.parent;
	for (uint32_t g = 0; g < shelf->nr_groups; g++) {
		const struct omnikv_extent *extent = &imp->found.extents[g];

		if (entry == OKV_ENTRY_NONE || info.position != ask->first || info.is_partial != (ask->tail_tokens != 0) ||
		    okv_shelf_is_owned(shelf, entry) || !(imp->space->needed_state >> g & 1) || !extent->nr_granules ||
		    okv_index_attach(shelf->index, entry, g, extent, imp->found.crcs[g]))
			release(manager, extent, 1);
	}
}

/* Inside a visit: the longest path that is here already, whether a hit can end with it or not. */
static void import_begin(struct omnikv_space *space, const struct omnikv_prefix *prefix, struct okv_imported *imported)
{
	struct okv_index_hit hit;
	uint32_t tail_tokens;

	okv_match_find(space, 0, prefix, &hit, &tail_tokens);
	if (hit.entry != OKV_ENTRY_NONE && !okv_pin_move(space->shelf, &imported->pin, hit.entry, hit.nr_blocks))
		imported->tail_tokens = tail_tokens;
}

/* May the authority have more of it? */
static bool import_is_short(const struct omnikv_space *space, const struct omnikv_prefix *prefix,
			    const struct okv_imported *imported)
{
	return imported_blocks(imported) < prefix->nr_keys + (prefix->tail != NULL) || space->needed_state;
}

/* The key of the first block that is asked for; NULL: none. */
static const struct omnikv_key *ask_key(const struct okv_ask *ask)
{
	return ask->first < ask->prefix->nr_keys ? &ask->prefix->keys[ask->first] :
	       ask->first == ask->prefix->nr_keys ? ask->prefix->tail : NULL;
}

/* Is that block asked for already? Paths that differ in it have nothing in common behind it. */
static bool is_asked_for(const struct okv_importing *imp, const struct okv_ask *ask)
{
	const struct omnikv_key *key = ask_key(ask), *other;

	for (uint32_t i = 0; i < imp->nr_asks && key; i++) {
		other = ask_key(&imp->asks[i]);
		if (other && !memcmp(other, key, sizeof(*key)))
			return true;
	}
	return false;
}

/* Inside a visit: what is asked for in this round of the prefixes in @open. Those that wait for the next one stay there. */
static void import_collect(struct okv_importing *imp, uint32_t *open)
{
	imp->nr_asks = 0;
	for (uint32_t left = *open; left; left &= left - 1) {
		uint32_t i = (uint32_t)__builtin_ctz(left);
		struct okv_ask *ask = &imp->asks[imp->nr_asks];

		*ask = (struct okv_ask){ .prefix = &imp->prefixes[i], .first = imported_blocks(&imp->imported[i]) };
		if (is_asked_for(imp, ask))
			continue;
		imp->of[imp->nr_asks++] = i;
		*open &= ~(1u << i);
	}
}

/* Outside of visits: answers to all that is asked for. */
static void import_find(struct okv_importing *imp, void *remote)
{
	struct okv_authority *auth = imp->space->manager->imports->auth;
	uint32_t nr = 0;

	for (uint32_t k = 0; k < imp->nr_asks; k++) {
		if (OKV_FAILPOINT("import.find"))
			continue;
		imp->of[nr] = imp->of[k];
		imp->asks[nr++] = imp->asks[k];
	}
	imp->nr_asks = nr;
	imp->found.nr = 0;
	if (nr)
		auth->ops->find(auth, remote, imp->asks, nr, imp->flags, &imp->found);
	(void)OKV_FAILPOINT("import.found");
}

/* Inside a visit, left and entered again: prefixes that are @open, until the authority has no more of any. */
static void import_from(struct okv_visit *visit, struct okv_importing *imp, void *remote, uint32_t open)
{
	uint32_t waiting;

	while (open) {
		import_collect(imp, &open);
		waiting = open;
		okv_visit_leave(visit);
		import_find(imp, remote);
		okv_visit_enter(visit);
		for (uint32_t k = 0; k < imp->nr_asks; k++) {
			const struct okv_ask *ask = &imp->asks[k];
			struct okv_imported *imported = &imp->imported[imp->of[k]];

			if (ask->res)
				continue;
			/* The first one has all the room: where nothing of it is described, nothing more is to be had. */
			if (import_insert(imp, ask, imported) && (ask->nr || k))
				open |= 1u << imp->of[k];
			else if (imp->space->needed_state && ask->nr_hit && !ask->nr && ask->nr_hit <= imported_blocks(imported))
				imp->lacks_state |= 1u << imp->of[k];
			imp->nr_hit[imp->of[k]] = ask->nr_hit;
		}
		/* What was asked for is theirs as well. */
		for (; waiting; waiting &= waiting - 1) {
			uint32_t i = (uint32_t)__builtin_ctz(waiting);

			import_begin(imp->space, &imp->prefixes[i], &imp->imported[i]);
			if (!import_is_short(imp->space, &imp->prefixes[i], &imp->imported[i]))
				open &= ~(1u << i);
		}
	}
}

/* Inside a visit, left and entered again: the state of the last block of each that lacks one. */
static void import_states_of(struct okv_visit *visit, struct okv_importing *imp, void *remote)
{
	struct okv_authority *auth = imp->space->manager->imports->auth;
	struct okv_ask *ask = &imp->asks[0];

	for (; imp->lacks_state; imp->lacks_state &= imp->lacks_state - 1) {
		uint32_t i = (uint32_t)__builtin_ctz(imp->lacks_state);

		*ask = (struct okv_ask){ .prefix = &imp->prefixes[i], .first = imp->nr_hit[i] - 1 };
		imp->found.nr = 0;
		okv_visit_leave(visit);
		auth->ops->find(auth, remote, ask, 1, imp->flags, &imp->found);
		okv_visit_enter(visit);
		if (!ask->res && ask->nr == 1 && ask_fits(imp, ask))
			import_states(imp, ask, &imp->imported[i]);
		else if (!ask->res)
			release(imp->space->manager, imp->found.extents, ask->nr * imp->space->shelf->nr_groups);
	}
}

/*
 * What is here is of an older epoch: it is found no more, and not published either. Returns the epoch that counts
 * from here on; @is_queued: something waits to be published.
 */
static uint64_t import_renew(struct omnikv_space *space, bool *is_queued)
{
	struct omnikv_manager *manager = space->manager;
	struct okv_imports *imports = manager->imports;
	struct okv_queued *queued;
	struct okv_visit visit;
	uint64_t epoch, known;
	bool is_known;
	void *remote;

	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	remote = space->remote;
	known = imports->epoch;
	is_known = imports->has_epoch;
	*is_queued = imports->first != NULL;
	okv_visit_leave(&visit);
	if (!remote)
		return known;
	epoch = imports->auth->ops->epoch_now(imports->auth, remote, known);
	if (is_known && epoch == known)
		return known;
	okv_visit_enter(&visit);
	/* Somebody who publishes the first one now is not disturbed: the authority refuses what is older. */
	while (!imports->is_flushing && is_known && (queued = imports->first)) {
		unqueue(imports, queued);
		drop_queued(manager, queued);
	}
	for (struct okv_shelf *shelf = manager->shelves; is_known && shelf; shelf = shelf->next)
		okv_shelf_drop_all(shelf);
	imports->epoch = epoch;
	imports->has_epoch = true;
	okv_visit_leave(&visit);
	return epoch;
}

void okv_import(struct okv_visit *visit, struct omnikv_space *space, const struct omnikv_prefix *prefixes, uint32_t nr,
		uint32_t flags, struct okv_imported *imported)
{
	struct okv_imports *imports = space->manager->imports;
	struct okv_importing *imp;
	uint64_t epoch = 0;
	uint32_t open = 0;
	bool is_queued;

	for (uint32_t i = 0; i < nr; i++)
		imported[i] = (struct okv_imported){ .pin.prev = NULL };
	if (imports) {
		epoch = import_renew(space, &is_queued);
		if (is_queued)
			okv_imports_flush(space->manager);
	}
	okv_visit_enter(visit);
	if (!imports) {
		if (nr > 1)
			okv_index_prefetch(space->shelf->index, space->id, prefixes, nr);
		return;
	}
	for (uint32_t i = 0; i < nr; i++) {
		import_begin(space, &prefixes[i], &imported[i]);
		if (import_is_short(space, &prefixes[i], &imported[i]))
			open |= 1u << i;
	}
	if (!space->remote || !open)
		return;
	imp = imports->spare;
	imports->spare = NULL;
	if (!imp)
		imp = malloc(sizeof(*imp));
	if (!imp)
		return;
	/* Field by field: zeroing the room for what may be found would cost more than the lookup. */
	imp->space = space;
	imp->prefixes = prefixes;
	imp->imported = imported;
	imp->epoch = epoch;
	imp->flags = flags;
	imp->lacks_state = 0;
	import_from(visit, imp, space->remote, open);
	import_states_of(visit, imp, space->remote);
	if (imports->spare)
		free(imp);
	else
		imports->spare = imp;
}

/* ---- what is only passed on ----------------------------------------------------------------- */

void okv_import_use(struct omnikv_space *space, const struct omnikv_prefix *prefixes, const struct okv_path *paths,
		    uint32_t nr)
{
	struct okv_imports *imports = space->manager->imports;
	uint64_t block_tokens = space->plan->plan.block_tokens;
	struct okv_use uses[OKV_ASKS_MAX];

	if (!imports || !space->remote)
		return;
	for (uint32_t i = 0; i < nr; i++) {
		const struct omnikv_prefix *prefix = &prefixes[i];
		uint64_t nr_hit = paths[i].nr_blocks;
		uint32_t tail_tokens = paths[i].tail_tokens;

		uses[i] = (struct okv_use){
			.last = tail_tokens ? prefix->tail : nr_hit ? &prefix->keys[nr_hit - 1] : NULL,
			.blocks_queried = prefix->nr_keys + (tail_tokens != 0),
			.blocks_hit = nr_hit,
			.tokens_queried = prefix->nr_keys * block_tokens + tail_tokens,
			.tokens_hit = (nr_hit - (tail_tokens != 0)) * block_tokens + tail_tokens,
		};
	}
	imports->auth->ops->use(imports->auth, space->remote, uses, nr);
}

int64_t okv_import_lookup(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys)
{
	struct okv_imports *imports = space->manager->imports;
	bool is_queued;

	if (!imports)
		return 0;
	import_renew(space, &is_queued);
	if (!space->remote)
		return 0;
	return imports->auth->ops->lookup(imports->auth, space->remote, keys, nr_keys);
}

int okv_import_space(struct omnikv_space *space, const struct omnikv_namespace *ns, struct omnikv_error *notice)
{
	struct okv_imports *imports = space->manager->imports;
	struct okv_visit visit;
	void *remote = NULL;
	bool is_open;
	int ret;

	if (!imports)
		return 0;
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	is_open = space->remote != NULL;
	okv_visit_leave(&visit);
	if (is_open)
		return 0;
	ret = imports->auth->ops->space_open(imports->auth, ns, &space->plan->plan, &remote, notice);
	if (ret)
		return ret;
	okv_visit_enter(&visit);
	if (!space->remote) {
		space->remote = remote;
		remote = NULL;
	}
	okv_visit_leave(&visit);
	if (remote)
		imports->auth->ops->space_close(imports->auth, remote);
	return 0;
}

void okv_import_space_end(struct omnikv_space *space)
{
	struct okv_imports *imports = space->manager->imports;

	if (imports && space->remote)
		imports->auth->ops->space_close(imports->auth, space->remote);
	space->remote = NULL;
}

void okv_import_distrust(struct omnikv_space *space, const struct omnikv_key *key)
{
	struct okv_imports *imports = space->manager->imports;

	if (imports && space->remote)
		imports->auth->ops->distrust(imports->auth, space->remote, key);
}

int64_t okv_import_retain(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys,
			  const struct omnikv_key *tail, const struct omnikv_retention *how)
{
	struct okv_authority *auth = space->manager->imports->auth;
	bool is_end = !nr_keys && !tail;
	int ret = -ESTALE;
	int64_t nr = 0;

	if (!auth->ops->retain || !space->remote)
		return -EOPNOTSUPP;
	okv_imports_flush(space->manager);
	/* What is found may leave before it is retained: then it is looked for again. */
	for (uint32_t i = 0; i < RETAIN_TRIES && ret == -ESTALE; i++) {
		nr = nr_keys ? auth->ops->lookup(auth, space->remote, keys, nr_keys) : 0;
		if (nr < 0)
			return nr;
		if (tail && nr == (int64_t)nr_keys) {
			ret = auth->ops->retain(auth, space->remote, tail, nr_keys, how);
			if (ret != -ESTALE)
				return ret < 0 ? ret : nr + 1;
		}
		ret = auth->ops->retain(auth, space->remote, nr ? &keys[nr - 1] : NULL, nr ? nr - 1 : 0, how);
	}
	if (is_end && ret >= 0)
		return ret ? 0 : -ENOENT;
	return ret < 0 ? ret : nr;
}

int okv_import_give(struct omnikv_space *space, const struct omnikv_key *key, uint32_t position, uint32_t timeout_ms,
		    struct omnikv_ticket *ticket)
{
	struct okv_authority *auth = space->manager->imports->auth;

	if (!auth->ops->give || !space->remote)
		return -EOPNOTSUPP;
	return auth->ops->give(auth, space->remote, key, position, timeout_ms, ticket);
}

int okv_import_take(struct omnikv_space *space, const struct omnikv_ticket *ticket, uint64_t first,
		    struct okv_handed *handed)
{
	struct okv_authority *auth = space->manager->imports->auth;

	if (!auth->ops->take || !space->remote)
		return -EOPNOTSUPP;
	return auth->ops->take(auth, space->remote, ticket, first, handed);
}

int okv_import_take_end(struct omnikv_space *space, const struct omnikv_ticket *ticket)
{
	struct okv_authority *auth = space->manager->imports->auth;

	return auth->ops->take_end(auth, space->remote, ticket);
}

int64_t okv_import_reset(struct omnikv_manager *manager)
{
	return manager->imports->auth->ops->reset(manager->imports->auth);
}

int okv_import_can_room(struct omnikv_manager *manager, uint64_t nr_granules)
{
	return manager->imports->auth->ops->can_room(manager->imports->auth, nr_granules);
}

int omnikv_manager_shared_stats(struct omnikv_manager *manager, struct omnikv_manager_stats *stats)
{
	struct omnikv_manager_stats full = { .size = sizeof(full) };
	int ret;

	if (!manager || !stats)
		return -EINVAL;
	ret = okv_option_check(stats, sizeof(full));
	if (ret)
		return ret;
	if (!manager->imports)
		return -EOPNOTSUPP;
	ret = manager->imports->auth->ops->stats(manager->imports->auth, &full);
	if (!ret)
		okv_option_return(stats, &full, sizeof(full));
	return ret;
}

int omnikv_commit_join(struct omnikv_space *space, const struct omnikv_join *join)
{
	struct okv_authority *auth;
	struct omnikv_join full;
	int ret;

	if (!space || !join)
		return -EINVAL;
	ret = okv_option_copy(&full, sizeof(full), join);
	if (ret)
		return ret;
	if (!full.key || !okv_keys_are_valid(full.key, 1, full.parent) || !full.extents || !full.crcs ||
	    !full.groups || full.groups >> OMNIKV_GROUPS_MAX || !full.timeout_ms || full.timeout_ms > OMNIKV_PROMISE_MS_MAX ||
	    full.position > UINT32_MAX - 1)
		return -EINVAL;
	if (!space->manager->imports || !space->manager->imports->auth->ops->join)
		return -EOPNOTSUPP;
	auth = space->manager->imports->auth;
	for (int i = 0; i < __builtin_popcount(full.groups); i++)
		if (!auth->ops->is_idle(auth, &full.extents[i]))
			return -EBUSY;
	return auth->ops->join(auth, space->remote, &full);
}

int64_t omnikv_space_prefetch(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys)
{
	const struct omnikv_prefix prefix = { .keys = keys, .nr_keys = nr_keys };
	struct okv_promoted promoted;
	struct okv_authority *auth;
	struct okv_visit visit;

	if (!space || !okv_prefix_is_valid(&prefix))
		return -EINVAL;
	if (!nr_keys)
		return 0;
	if (space->manager->imports) {
		auth = space->manager->imports->auth;
		return auth->ops->prefetch(auth, space->remote, keys, nr_keys);
	}
	okv_tier_promote(space, &prefix, &promoted);
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	okv_tier_settle(&visit, &promoted, 0);
	okv_visit_leave(&visit);
	return omnikv_lookup(space, keys, nr_keys);
}

int64_t omnikv_manager_raise_epoch(struct omnikv_manager *manager)
{
	if (!manager)
		return -EINVAL;
	if (!manager->imports)
		return okv_manager_epoch_up(manager);
	if (!manager->imports->auth->ops->epoch)
		return -EOPNOTSUPP;
	return manager->imports->auth->ops->epoch(manager->imports->auth);
}

int64_t omnikv_space_epoch(struct omnikv_space *space)
{
	struct okv_visit visit;
	uint64_t epoch;
	bool is_queued;

	if (!space)
		return -EINVAL;
	if (space->manager->imports)
		return (int64_t)import_renew(space, &is_queued);
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	epoch = okv_manager_epoch(space->manager);
	okv_visit_leave(&visit);
	return (int64_t)epoch;
}

int omnikv_space_note_tokens(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys,
			     const uint32_t *tokens)
{
	struct okv_authority *auth;
	struct okv_visit visit;
	int ret = 0;

	if (!space || !tokens || !okv_keys_are_valid(keys, nr_keys, NULL))
		return -EINVAL;
	if (space->manager->imports) {
		auth = space->manager->imports->auth;
		return auth->ops->note_tokens ? auth->ops->note_tokens(auth, space->remote, keys, nr_keys,
								       space->plan->plan.block_tokens, tokens) : 0;
	}
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	if (space->manager->tokens)
		ret = okv_tokens_note(space->manager->tokens, space, keys, nr_keys, tokens);
	okv_visit_leave(&visit);
	return ret;
}

int omnikv_space_promise(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys, uint32_t timeout_ms)
{
	struct okv_authority *auth;

	if (!space || !okv_keys_are_valid(keys, nr_keys, NULL) || timeout_ms > OMNIKV_PROMISE_MS_MAX)
		return -EINVAL;
	if (!space->manager->imports || !space->manager->imports->auth->ops->promise)
		return -EOPNOTSUPP;
	auth = space->manager->imports->auth;
	return auth->ops->promise(auth, space->remote, keys, nr_keys, timeout_ms);
}

int omnikv_space_wait(struct omnikv_space *space, const struct omnikv_key *key, uint32_t timeout_ms)
{
	struct okv_authority *auth;

	if (!space || !okv_keys_are_valid(key, 1, NULL) || timeout_ms > OMNIKV_PROMISE_MS_MAX)
		return -EINVAL;
	if (!space->manager->imports || !space->manager->imports->auth->ops->wait)
		return -EOPNOTSUPP;
	auth = space->manager->imports->auth;
	return auth->ops->wait(auth, space->remote, key, timeout_ms);
}

/* ---- allocation ----------------------------------------------------------------------------- */

/* Commits that wait take memory that somebody needs now: the oldest is no longer published. false: there is none. */
static bool sacrifice(struct omnikv_manager *manager)
{
	struct okv_imports *imports = manager->imports;
	struct okv_queued *oldest;
	struct okv_visit visit;

	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	oldest = imports->is_flushing ? NULL : imports->first;
	if (oldest) {
		unqueue(imports, oldest);
		drop_queued(manager, oldest);
	}
	okv_visit_leave(&visit);
	return oldest != NULL;
}

static void free_wants(struct omnikv_manager *manager, struct okv_want *wants, uint32_t nr_wants)
{
	for (uint32_t i = 0; i < nr_wants; i++) {
		for (uint32_t k = 0; k < wants[i].count; k += FREE_BATCH)
			omnikv_extent_free(manager->client, &wants[i].out[k],
					   wants[i].count - k < FREE_BATCH ? wants[i].count - k : FREE_BATCH);
		memset(wants[i].out, 0, wants[i].count * sizeof(wants[i].out[0]));
	}
}

/* All of @wants or nothing; @nr_met tells how far it went. */
static int try_wants(struct omnikv_manager *manager, struct okv_want *wants, uint32_t nr_wants)
{
	for (uint32_t i = 0; i < nr_wants; i++) {
		const struct omnikv_extent *after = wants[i].after && wants[i].after->nr_granules ? wants[i].after : NULL;
		int ret = omnikv_extent_alloc(manager->client, wants[i].nr_granules, wants[i].count, after,
					      OMNIKV_ALLOC_F_NO_ZERO, wants[i].out);

		if (ret) {
			free_wants(manager, wants, i);
			return ret;
		}
	}
	return 0;
}

int okv_import_alloc(struct okv_visit *visit, struct okv_want *wants, uint32_t nr_wants, uint64_t nr_privates)
{
	struct omnikv_manager *manager = visit->manager;
	struct okv_authority *auth = manager->imports->auth;
	uint64_t need = 0, more = 0;
	int ret;

	for (uint32_t i = 0; i < nr_wants; i++)
		need += (uint64_t)wants[i].count * wants[i].nr_granules;
	okv_visit_leave(visit);
	for (;;) {
		ret = need > manager->nr_granules ? -ENOSPC : try_wants(manager, wants, nr_wants);
		if (ret != -ENOSPC || need > manager->nr_granules)
			break;
		/* What is free may be in the wrong places: more of it, twice as much each time. */
		if (more > manager->nr_granules || auth->ops->make_room(auth, need + more)) {
			if (!sacrifice(manager))
				break;
			continue;
		}
		more = more ? 2 * more : need / 4 + 1;
	}
	okv_visit_enter(visit);
	if (!ret) {
		ret = okv_private_reserve(manager, nr_privates);
		if (ret)
			free_wants(manager, wants, nr_wants);
	}
	if (ret) {
		for (uint32_t i = 0; i < nr_wants; i++)
			memset(wants[i].out, 0, wants[i].count * sizeof(wants[i].out[0]));
		return ret;
	}
	manager->private_granules += need;
	okv_note_peak(manager);
	return 0;
}

/* ---- end ------------------------------------------------------------------------------------ */

void okv_imports_end(struct omnikv_manager *manager)
{
	struct okv_imports *imports = manager->imports;
	struct okv_queued *queued;
	struct okv_visit visit;

	if (!imports)
		return;
	okv_imports_flush(manager);
	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	while ((queued = imports->first)) {
		unqueue(imports, queued);
		drop_queued(manager, queued);
	}
	okv_visit_leave(&visit);
}

void okv_imports_destroy(struct omnikv_manager *manager)
{
	if (!manager->imports)
		return;
	if (manager->imports->auth)
		manager->imports->auth->ops->destroy(manager->imports->auth);
	free(manager->imports->spare);
	free(manager->imports);
	manager->imports = NULL;
}

uint64_t okv_imports_queued(const struct omnikv_manager *manager)
{
	return manager->imports ? manager->imports->nr_queued_blocks : 0;
}

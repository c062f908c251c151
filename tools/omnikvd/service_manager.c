// SPDX-License-Identifier: GPL-2.0-only
/*
 * Requests of attached managers: namespaces, lookups, publishing, promises.
 *
 * What a request does to the manager is lib/manager/session.c's; here is which namespaces a connection
 * has open, and who waits for what. A connection publishes as the pool's client that it is (service_pool.c);
 * promises and waits may come over another connection of the same process. Everything is checked
 * before it reaches the manager. The daemon's loop enters; what waits for the disk is an errand (errands.h).
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "daemon.h"
#include "error.h"
#include "manager/catalog.h"
#include "manager/frames.h"
#include "manager/handover.h"
#include "manager/join.h"
#include "manager/manager.h"
#include "manager/retain.h"
#include "manager/session.h"
#include "manager/space.h"
#include "manager/tier.h"
#include "promises.h"

/* A connection's namespaces, by the index of its numbers. */
struct okv_tenancy {
	struct omnikv_space	**spaces;
	uint32_t		nr_spaces;
};

static struct okv_promises *promises;
static struct okv_joins *joins;
static struct okv_server *promises_server;

static struct okv_daemon *daemon_of(struct okv_server *server)
{
	return okv_server_opaque(server);
}

/* ---- namespaces ------------------------------------------------------------------------- */

static uint64_t space_number(const struct omnikv_space *space, uint32_t index)
{
	uint32_t tag;

	memcpy(&tag, space->identity, sizeof(tag));
	return (uint64_t)tag << 32 | index;
}

/* The namespace of this number, if this connection opened it. */
static struct omnikv_space *space_of(struct okv_server *server, const struct okv_peer *peer, uint64_t number)
{
	const struct okv_tenancy *tenancy = peer->data[daemon_of(server)->manager_service];
	struct omnikv_space *space;

	if (!tenancy || (uint32_t)number >= tenancy->nr_spaces)
		return NULL;
	space = tenancy->spaces[(uint32_t)number];
	return space && space_number(space, (uint32_t)number) == number ? space : NULL;
}

/* Of retentions: never the daemon itself. */
static uint64_t owner_of(const struct okv_peer *peer)
{
	return peer->number + 1;
}

/* A free place among the connection's namespaces. */
static int tenancy_place(struct okv_daemon *daemon, struct okv_peer *peer, uint32_t *index)
{
	struct okv_tenancy *tenancy = peer->data[daemon->manager_service];
	struct omnikv_space **spaces;
	uint32_t i;

	if (!tenancy) {
		tenancy = calloc(1, sizeof(*tenancy));
		if (!tenancy)
			return -ENOMEM;
		peer->data[daemon->manager_service] = tenancy;
	}
	for (i = 0; i < tenancy->nr_spaces && tenancy->spaces[i]; i++)
		;
	if (i == OKV_WIRE_SPACES_MAX)
		return -ENOSPC;
	if (i == tenancy->nr_spaces) {
		spaces = realloc(tenancy->spaces, (i + 16) * sizeof(*spaces));
		if (!spaces)
			return -ENOMEM;
		memset(spaces + i, 0, 16 * sizeof(*spaces));
		tenancy->spaces = spaces;
		tenancy->nr_spaces = i + 16;
	}
	*index = i;
	return 0;
}

/* The texts of an open request, each ended with a zero; free() them. */
struct okv_texts {
	char	*texts[5];
};

static void texts_free(struct okv_texts *texts)
{
	for (uint32_t i = 0; i < 5; i++)
		free(texts->texts[i]);
}

static int texts_read(const struct okv_wire_space_open *open, struct okv_texts *texts)
{
	const char *at = (const char *)(open + 1);

	memset(texts, 0, sizeof(*texts));
	for (uint32_t i = 0; i < 5; i++) {
		texts->texts[i] = malloc(open->lengths[i] + 1);
		if (!texts->texts[i]) {
			texts_free(texts);
			return -ENOMEM;
		}
		memcpy(texts->texts[i], at, open->lengths[i]);
		texts->texts[i][open->lengths[i]] = '\0';
		at += open->lengths[i];
		/* A name with a zero in it would be another name here. */
		if (i < 3 && strlen(texts->texts[i]) != open->lengths[i]) {
			texts_free(texts);
			return -EINVAL;
		}
	}
	return 0;
}

static int open_space(struct okv_daemon *daemon, const struct okv_wire_space_open *open, const struct okv_texts *texts,
		      struct omnikv_space **space, struct omnikv_error *err)
{
	struct omnikv_plan_config config = {
		.size = sizeof(config), .block_tokens = open->block_tokens, .granule_bytes = open->granule_bytes,
		.scale = open->scale,
	};
	struct omnikv_namespace ns = {
		.size = sizeof(ns), .tenant = texts->texts[0], .weights = texts->texts[1], .adapter = texts->texts[2],
		.block_tokens = open->block_tokens, .hash_algorithm = open->hash_algorithm, .salt = texts->texts[3],
		.salt_len = open->lengths[3], .epoch = open->epoch,
	};
	struct omnikv_layout *layout = calloc(1, sizeof(*layout));
	struct omnikv_plan *plan = calloc(1, sizeof(*plan));
	int ret = layout && plan ? 0 : -ENOMEM;

	if (!ret)
		ret = omnikv_layout_parse(texts->texts[4], open->lengths[4], layout, err);
	if (!ret && (!open->block_tokens || !open->granule_bytes || !open->scale))
		ret = okv_error_set(err, -EINVAL, "block_tokens, granule or scale is 0");
	if (!ret)
		ret = omnikv_plan_make(layout, &config, plan, err);
	if (!ret) {
		ns.layout = &plan->layout;
		ret = omnikv_space_open(daemon->manager, &ns, plan, space, err);
	}
	free(layout);
	free(plan);
	return ret;
}

static int handle_space_open(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	struct okv_daemon *daemon = daemon_of(server);
	struct okv_wire_space_opened *opened = reply->payload;
	struct okv_tenancy *tenancy;
	struct omnikv_space *space;
	struct okv_texts texts;
	uint32_t index = 0;
	int ret;

	ret = tenancy_place(daemon, req->peer, &index);
	if (ret == -ENOSPC)
		return okv_error_set(&reply->err, ret, "%u namespaces are open on this connection; close some",
				     OKV_WIRE_SPACES_MAX);
	if (!ret)
		ret = texts_read(req->payload, &texts);
	if (ret)
		return ret;
	ret = open_space(daemon, req->payload, &texts, &space, &reply->err);
	texts_free(&texts);
	if (ret)
		return ret;
	tenancy = req->peer->data[daemon->manager_service];
	tenancy->spaces[index] = space;
	memset(opened, 0, sizeof(*opened));
	opened->space = space_number(space, index);
	opened->nr_groups = space->shelf->nr_groups;
	opened->flags = (daemon->spill ? OKV_SPACE_OPENED_F_TIER : 0) |
			(daemon->manager->tokens ? OKV_SPACE_OPENED_F_TOKENS : 0);
	opened->root_off = okv_pool_catalog_root_off(space->manager);
	memcpy(opened->identity, space->identity, sizeof(opened->identity));
	memcpy(opened->notice, reply->err.text, sizeof(opened->notice));
	reply->length = sizeof(*opened);
	return 0;
}

static int handle_space_close(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_space *named = req->payload;
	struct okv_tenancy *tenancy = req->peer->data[daemon_of(server)->manager_service];
	struct omnikv_space *space = space_of(server, req->peer, named->space);

	(void)reply;
	if (!space)
		return -ENOENT;
	tenancy->spaces[(uint32_t)named->space] = NULL;
	omnikv_space_close(space);
	return 0;
}

static void name_of(const struct omnikv_space *space, const struct omnikv_key *key, struct okv_promise_name *name)
{
	memcpy(name->identity, space->identity, sizeof(name->identity));
	name->key = *key;
}

/* ---- lookups ---------------------------------------------------------------------------- */

/* What memory has of it by now. The client leases what it is told, and asks again where that is gone by then. */
static int find_now(struct omnikv_space *space, const struct okv_wire_find *find, const struct omnikv_key *keys,
		    const struct okv_promoted *promoted, void *payload, uint32_t *length)
{
	const struct omnikv_prefix prefix = {
		.keys = keys, .nr_keys = find->nr_keys, .tail = find->has_tail ? &keys[find->nr_keys] : NULL,
	};
	struct okv_ask ask = { .prefix = &prefix, .first = find->first };
	struct okv_wire_found *out = payload;
	struct okv_found *found;
	struct okv_visit visit;
	unsigned char *item;
	uint32_t nr;
	int ret;

	found = malloc(sizeof(*found));
	if (!found)
		return -ENOMEM;
	found->nr = 0;
	ret = okv_session_find(space, NULL, &ask, find->flags, found);
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	okv_tier_settle(&visit, promoted, ret ? 0 : ask.nr_hit);
	okv_visit_leave(&visit);
	if (!ret) {
		nr = found->nr * space->shelf->nr_groups;
		*out = (struct okv_wire_found){
			.nr_hit = ask.nr_hit, .tail_tokens = ask.tail_tokens, .nr = ask.nr,
		};
		item = (unsigned char *)(out + 1);
		memcpy(item, found->extents, nr * sizeof(found->extents[0]));
		memcpy(item + nr * sizeof(found->extents[0]), found->crcs, nr * sizeof(found->crcs[0]));
		*length = sizeof(*out) + nr * (sizeof(found->extents[0]) + sizeof(found->crcs[0]));
	}
	free(found);
	return ret;
}

/* What the spill store has of a prefix comes back: for FIND, which is then answered, and for PREFETCH. */
struct fetch_errand {
	struct okv_errand	errand;
	struct omnikv_space	*space;		/* open */
	struct okv_wire_find	find;
	struct okv_promoted	promoted;
	int64_t			ret;
	struct omnikv_key	keys[];		/* [find.nr_keys], and the tail */
};

static void fetch_run(struct okv_errand *errand)
{
	struct fetch_errand *fetch = (struct fetch_errand *)errand;
	const struct omnikv_prefix prefix = {
		.keys = fetch->keys, .nr_keys = fetch->find.nr_keys,
		.tail = fetch->find.has_tail ? &fetch->keys[fetch->find.nr_keys] : NULL,
	};

	if (errand->type == OKV_WIRE_PREFETCH)
		fetch->ret = omnikv_space_prefetch(fetch->space, fetch->keys, fetch->find.nr_keys);
	else
		okv_tier_promote(fetch->space, &prefix, &fetch->promoted);
}

static void fetch_done(struct okv_errand *errand, struct okv_peer *peer)
{
	struct fetch_errand *fetch = (struct fetch_errand *)errand;
	void *payload = NULL;
	uint32_t length = 0;

	if (peer && errand->type == OKV_WIRE_FIND) {
		payload = malloc(OKV_WIRE_PAYLOAD_MAX);
		fetch->ret = payload ? find_now(fetch->space, &fetch->find, fetch->keys, &fetch->promoted, payload, &length) :
				       -ENOMEM;
	}
	if (peer)
		okv_peer_reply(peer, errand->type, errand->id, (int32_t)fetch->ret, payload, length, NULL, 0);
	free(payload);
	omnikv_space_close(fetch->space);
	free(fetch);
}

/* OKV_REPLY_LATER; or an error, and what memory has is to do. */
static int fetch_later(struct okv_daemon *daemon, const struct okv_request *req, struct omnikv_space *space,
		       const struct okv_wire_find *find, const struct omnikv_key *keys)
{
	uint32_t nr_keys = find->nr_keys + (find->has_tail != 0);
	struct fetch_errand *fetch;
	struct okv_visit visit;
	int ret;

	fetch = calloc(1, sizeof(*fetch) + nr_keys * sizeof(*keys));
	if (!fetch)
		return -ENOMEM;
	okv_errand_init(&fetch->errand, req);
	fetch->errand.run = fetch_run;
	fetch->errand.done = fetch_done;
	fetch->errand.bytes = nr_keys * sizeof(*keys);
	fetch->space = space;
	fetch->find = *find;
	memcpy(fetch->keys, keys, nr_keys * sizeof(*keys));
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	okv_space_get_locked(space);
	okv_visit_leave(&visit);
	ret = okv_errands_add(daemon->errands, &fetch->errand);
	if (ret) {
		omnikv_space_close(space);
		free(fetch);
	}
	return ret ? ret : OKV_REPLY_LATER;
}

/* Has the disk's thread room for a prefix of so many keys? Asked before that is made. */
static int check_room(struct okv_daemon *daemon, const struct okv_request *req, uint64_t nr_keys)
{
	return daemon->errands ? okv_errands_check(daemon->errands, req->peer->number, nr_keys * sizeof(struct omnikv_key)) : 0;
}

/* With all keys, from the first block on. */
static int find_whole(struct okv_server *server, const struct okv_request *req, struct omnikv_space *space,
		      const struct okv_wire_find *find, const struct omnikv_key *keys, struct okv_reply *reply)
{
	const struct omnikv_key *tail = find->has_tail ? &keys[find->nr_keys] : NULL;
	const struct okv_promoted none = { 0 };

	if (daemon_of(server)->errands && okv_tier_has_more(space, keys, find->nr_keys, tail) &&
	    fetch_later(daemon_of(server), req, space, find, keys) == OKV_REPLY_LATER)
		return OKV_REPLY_LATER;
	return find_now(space, find, keys, &none, reply->payload, &reply->length);
}

static int handle_find(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	struct okv_wire_find find = *(const struct okv_wire_find *)req->payload;
	const struct omnikv_key *keys = (const void *)((const struct okv_wire_find *)req->payload + 1);
	struct omnikv_space *space = space_of(server, req->peer, find.space);
	struct omnikv_key *path;
	int ret;

	if (!space)
		return -ENOENT;
	if (!find.has_parent)
		return find_whole(server, req, space, &find, keys, reply);
	/* What memory has of it the client has found by itself. */
	ret = check_room(daemon_of(server), req, find.first + find.nr_keys + find.has_tail);
	if (ret)
		return ret;
	ret = okv_session_path(space, keys, find.first, keys + 1, find.nr_keys + find.has_tail, &path);
	if (ret)
		return ret;
	find.nr_keys += find.first;
	ret = find_whole(server, req, space, &find, path, reply);
	free(path);
	return ret;
}

static int handle_use(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_uses *uses = req->payload;
	const struct okv_wire_use *use = (const void *)(uses + 1);

	(void)reply;
	if (uses->count > OKV_WIRE_USES_SHORT && !(req->peer->features & OKV_WIRE_FEATURE_LONG_USES))
		return -EPROTO;
	for (uint32_t i = 0; i < uses->count; i++) {
		struct omnikv_space *space = space_of(server, req->peer, use[i].space);
		struct okv_use told = {
			.last = use[i].last.len ? &use[i].last : NULL,
			.blocks_queried = use[i].blocks_queried, .blocks_hit = use[i].blocks_hit,
			.tokens_queried = use[i].tokens_queried, .tokens_hit = use[i].tokens_hit,
		};

		if (space)
			okv_session_use(space, &told);
	}
	return 0;
}

static int handle_distrust(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_distrust *distrust = req->payload;
	struct omnikv_space *space = space_of(server, req->peer, distrust->space);

	(void)reply;
	if (space)
		okv_session_distrust(space, &distrust->key);
	return 0;
}

/* As a client of the shared pool; or attached to the module's, whose owners seal what they publish. */
static bool may_publish(struct okv_server *server, const struct okv_peer *peer)
{
	return okv_peer_client(daemon_of(server), peer) || okv_peer_is_of_module(daemon_of(server), peer);
}

/* ---- publishing ------------------------------------------------------------------------- */

static int handle_publish(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_publish *publish = req->payload;
	struct omnikv_client *client = okv_peer_client(daemon_of(server), req->peer);
	struct omnikv_space *space = space_of(server, req->peer, publish->space);
	const struct omnikv_key *keys = (const void *)(publish + 1);
	enum okv_published published[OKV_AUTHORITY_BLOCKS];
	struct okv_wire_published *out = reply->payload;
	struct okv_promise_name name;
	struct okv_publication pub = {
		.parent = publish->has_parent ? keys : NULL, .position = publish->position, .nr = publish->nr,
		.tail_tokens = publish->tail_tokens, .epoch = publish->epoch, .keys = keys + publish->has_parent, .published = published,
	};
	/* Keys are of 36 bytes each, so that lists behind them need be copied to where they can be read. */
	struct {
		struct omnikv_extent	extents[OKV_AUTHORITY_BLOCKS * OMNIKV_GROUPS_MAX];
		uint32_t		crcs[OKV_AUTHORITY_BLOCKS * OMNIKV_GROUPS_MAX];
	} lists;
	uint32_t nr = publish->nr * publish->nr_groups;
	const unsigned char *item = (const void *)(pub.keys + publish->nr);

	if (!space || !may_publish(server, req->peer))
		return -ENOENT;
	if (publish->nr_groups != space->shelf->nr_groups)
		return -EINVAL;
	memcpy(lists.extents, item, nr * sizeof(lists.extents[0]));
	memcpy(lists.crcs, item + nr * sizeof(lists.extents[0]), nr * sizeof(lists.crcs[0]));
	pub.extents = lists.extents;
	pub.crcs = lists.crcs;
	memset(out, 0, sizeof(*out));
	out->status = okv_session_publish(space, client, true, &pub);
	out->nr = pub.nr;
	for (uint32_t i = 0; i < pub.nr; i++) {
		out->published[i] = published[i];
		if (published[i] != OKV_PUBLISHED_NEW && published[i] != OKV_PUBLISHED_THERE)
			continue;
		name_of(space, &pub.keys[i], &name);
		okv_promises_keep(promises, &name);
	}
	reply->length = sizeof(*out);
	return 0;
}

static int handle_state(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_state *state = req->payload;
	struct omnikv_client *client = okv_peer_client(daemon_of(server), req->peer);
	struct omnikv_space *space = space_of(server, req->peer, state->space);

	(void)reply;
	if (!space || !may_publish(server, req->peer))
		return -ENOENT;
	return okv_session_attach(space, client, true, &state->key, state->group, &state->extent, state->crc,
				  state->epoch);
}

/* ---- who computes what ------------------------------------------------------------------ */

static void wait_is_over(void *opaque, uint64_t peer, uint64_t id, int32_t status)
{
	struct okv_peer *to = okv_server_peer(promises_server, peer);

	(void)opaque;
	if (to)
		okv_peer_reply(to, OKV_WIRE_WAIT, id, status, NULL, 0, NULL, 0);
}

static int handle_promise(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_promise *promise = req->payload;
	const struct omnikv_key *keys = (const void *)(promise + 1);
	uint64_t until_ns = okv_monotonic_ns() + promise->timeout_ms * UINT64_C(1000000);
	struct okv_promise_name name;
	int ret = 0;

	(void)reply;
	memcpy(name.identity, promise->identity, sizeof(name.identity));
	for (uint32_t i = 0; i < promise->nr_keys && !ret; i++) {
		name.key = keys[i];
		if (promise->timeout_ms)
			ret = okv_promises_add(promises, &name, req->peer->number, until_ns);
		else
			okv_promises_withdraw(promises, &name, req->peer->number);
	}
	okv_server_wake(server, until_ns);
	return ret;
}

static bool is_cached(struct okv_daemon *daemon, const struct okv_promise_name *name)
{
	struct omnikv_space *space;
	struct okv_visit visit;
	bool is;

	okv_visit_init(&visit, daemon->manager);
	okv_visit_enter(&visit);
	space = okv_space_find_locked(daemon->manager, name->identity);
	is = space && okv_index_find(space->shelf->index, space->id, &name->key) != OKV_ENTRY_NONE;
	okv_visit_leave(&visit);
	return is;
}

static int handle_wait(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_wait *wait = req->payload;
	uint64_t until_ns = okv_monotonic_ns() + wait->timeout_ms * UINT64_C(1000000);
	struct okv_promise_name name;
	int ret;

	(void)reply;
	memcpy(name.identity, wait->identity, sizeof(name.identity));
	name.key = wait->key;
	if (is_cached(daemon_of(server), &name))
		return 1;
	if (!wait->timeout_ms || !okv_promises_has(promises, &name))
		return 0;
	ret = okv_promises_wait(promises, &name, req->peer->number, req->header->id, until_ns);
	if (ret)
		return ret;
	okv_server_wake(server, until_ns);
	return OKV_REPLY_LATER;
}

/* ---- blocks of several ranks ------------------------------------------------------------ */

/* Who waits for the block is told how it ended. */
static void join_is_over(void *opaque, const struct omnikv_space *space, const struct omnikv_key *key, bool is_published)
{
	struct okv_promise_name name;

	(void)opaque;
	name_of(space, key, &name);
	if (is_published)
		okv_promises_keep(promises, &name);
	else
		okv_promises_withdraw(promises, &name, OKV_PROMISE_OF_JOIN);
}

static int handle_join(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_join *join = req->payload;
	struct omnikv_client *client = okv_peer_client(daemon_of(server), req->peer);
	struct omnikv_space *space = space_of(server, req->peer, join->space);
	uint64_t until_ns = okv_monotonic_ns() + join->timeout_ms * UINT64_C(1000000);
	uint32_t nr = __builtin_popcount(join->groups);
	struct omnikv_extent extents[OMNIKV_GROUPS_MAX];
	uint32_t crcs[OMNIKV_GROUPS_MAX];
	const unsigned char *items = (const void *)(join + 1);
	struct okv_join_part part = {
		.owner = req->peer->number, .client = client, .key = &join->key,
		.parent = join->parent.len ? &join->parent : NULL, .position = join->position,
		.nr_tokens = join->nr_tokens, .part = join->part, .nr_parts = join->nr_parts, .groups = join->groups,
		.extents = extents, .crcs = crcs, .until_ns = until_ns, .epoch = join->epoch,
	};
	struct okv_promise_name name;
	int ret;

	(void)reply;
	if (!space || !may_publish(server, req->peer))
		return -ENOENT;
	memcpy(extents, items, nr * sizeof(extents[0]));
	memcpy(crcs, items + nr * sizeof(extents[0]), nr * sizeof(crcs[0]));
	if (!joins) {
		ret = okv_joins_create(daemon_of(server)->manager, join_is_over, NULL, &joins);
		if (ret)
			return ret;
	}
	if (join->flags & OKV_WIRE_JOIN_F_ASK)
		return okv_joins_ask(joins, space, &part);
	ret = okv_joins_add(joins, space, &part);
	if (!ret) {
		name_of(space, &join->key, &name);
		okv_promises_add(promises, &name, OKV_PROMISE_OF_JOIN, until_ns);
		okv_server_wake(server, until_ns);
	}
	return ret;
}

/* Parts that wait are of the epoch that ends: what comes for the same blocks now is not theirs. */
static void end_joins(void)
{
	okv_joins_destroy(joins);
	joins = NULL;
}

/* The spill store notes the epoch before memory forgets what it has. */
struct epoch_errand {
	struct okv_errand	errand;
	struct omnikv_manager	*manager;
	int64_t			ret;
};

static void epoch_run(struct okv_errand *errand)
{
	struct epoch_errand *epoch = (struct epoch_errand *)errand;

	epoch->ret = omnikv_manager_raise_epoch(epoch->manager);
}

static void epoch_done(struct okv_errand *errand, struct okv_peer *peer)
{
	struct epoch_errand *epoch = (struct epoch_errand *)errand;
	const struct okv_wire_epoch out = { .epoch = (uint64_t)epoch->ret };

	end_joins();
	if (peer)
		okv_peer_reply(peer, errand->type, errand->id, epoch->ret < 0 ? (int32_t)epoch->ret : 0, &out,
			       epoch->ret < 0 ? 0 : sizeof(out), NULL, 0);
	free(epoch);
}

static int handle_epoch(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	struct okv_daemon *daemon = daemon_of(server);
	struct okv_wire_epoch *out = reply->payload;
	struct epoch_errand *epoch;
	int64_t ret;

	end_joins();
	if (!daemon->errands) {
		ret = omnikv_manager_raise_epoch(daemon->manager);
		if (ret < 0)
			return (int)ret;
		out->epoch = ret;
		reply->length = sizeof(*out);
		return 0;
	}
	epoch = calloc(1, sizeof(*epoch));
	if (!epoch)
		return -ENOMEM;
	okv_errand_init(&epoch->errand, req);
	epoch->errand.run = epoch_run;
	epoch->errand.done = epoch_done;
	epoch->manager = daemon->manager;
	ret = okv_errands_add(daemon->errands, &epoch->errand);
	if (ret)
		free(epoch);
	return ret ? (int)ret : OKV_REPLY_LATER;
}

/* What of this prefix lies in the spill store comes back, before anybody waits for it. */
static int handle_prefetch(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_prefetch *prefetch = req->payload;
	const struct omnikv_key *keys = (const void *)(prefetch + 1);
	struct omnikv_space *space = space_of(server, req->peer, prefetch->space);
	struct okv_wire_find find = { .nr_keys = prefetch->nr_keys };
	struct omnikv_key *path = NULL;
	int ret = 0;

	(void)reply;
	if (!space)
		return -ENOENT;
	if (prefetch->first) {
		ret = check_room(daemon_of(server), req, prefetch->first + prefetch->nr_keys);
		if (ret)
			return ret;
		ret = okv_session_path(space, keys, prefetch->first, keys + 1, prefetch->nr_keys, &path);
		if (ret)
			return ret;
		find.nr_keys += prefetch->first;
		keys = path;
	}
	if (!daemon_of(server)->errands)
		ret = (int)omnikv_space_prefetch(space, keys, find.nr_keys);
	else
		ret = fetch_later(daemon_of(server), req, space, &find, keys);
	free(path);
	return ret;
}

/* Before their blocks come: who publishes tells of the tokens first. */
static int handle_tokens(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_tokens *tokens = req->payload;
	const struct omnikv_key *keys = (const void *)(tokens + 1);
	struct omnikv_space *space = space_of(server, req->peer, tokens->space);

	(void)reply;
	if (!space)
		return -ENOENT;
	if (tokens->block_tokens != space->plan->plan.block_tokens)
		return -EINVAL;
	return omnikv_space_note_tokens(space, keys, tokens->nr_keys, (const uint32_t *)(keys + tokens->nr_keys));
}

/* ---- retentions, sequences on their way -------------------------------------------------- */

static int handle_retain(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_retain *retain = req->payload;
	const struct omnikv_retention how = {
		.flags = retain->flags, .priority = retain->priority, .session = retain->session, .ttl_ms = retain->ttl_ms,
		.next_use_ms = retain->next_use_ms,
	};
	struct omnikv_space *space = space_of(server, req->peer, retain->space);

	(void)reply;
	if (!space)
		return -ENOENT;
	return okv_session_retain(space, owner_of(req->peer), retain->key.len ? &retain->key : NULL, retain->position, &how);
}

static int handle_give(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_give *give = req->payload;
	struct omnikv_space *space = space_of(server, req->peer, give->space);
	int ret;

	if (!space)
		return -ENOENT;
	ret = okv_handover_give(space, &give->key, give->position, give->timeout_ms, reply->payload);
	if (!ret)
		reply->length = sizeof(struct omnikv_ticket);
	return ret;
}

static int handle_take(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_take *take = req->payload;
	struct omnikv_space *space = space_of(server, req->peer, take->space);
	struct okv_wire_taken *taken = reply->payload;
	struct okv_handed *handed;
	int ret;

	if (!space)
		return -ENOENT;
	handed = malloc(sizeof(*handed));
	if (!handed)
		return -ENOMEM;
	ret = okv_handover_take(space, &take->ticket, take->first, handed);
	if (!ret) {
		*taken = (struct okv_wire_taken){
			.nr_blocks = handed->nr_blocks, .nr = handed->nr, .has_tail = handed->has_tail,
		};
		memcpy(taken + 1, handed->keys, handed->nr * sizeof(handed->keys[0]));
		reply->length = sizeof(*taken) + handed->nr * sizeof(handed->keys[0]);
	}
	free(handed);
	return ret;
}

static int handle_take_end(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_take *take = req->payload;
	struct omnikv_space *space = space_of(server, req->peer, take->space);

	(void)reply;
	return space ? okv_handover_end(space, &take->ticket) : -ENOENT;
}

/* ---- the rest --------------------------------------------------------------------------- */

static int handle_admit(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_admit *admit = req->payload;
	struct okv_visit visit;
	bool can;

	(void)reply;
	okv_visit_init(&visit, daemon_of(server)->manager);
	okv_visit_enter(&visit);
	can = okv_can_make_room(visit.manager, admit->nr_granules);
	okv_visit_leave(&visit);
	return can;
}

static int handle_reset(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	int64_t nr = omnikv_manager_reset(daemon_of(server)->manager);

	(void)req;
	(void)reply;
	return nr > INT32_MAX / 2 ? INT32_MAX / 2 : (int)nr;
}

static int handle_stats(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	struct omnikv_manager_stats *stats = reply->payload;
	int ret;

	(void)req;
	memset(stats, 0, sizeof(*stats));
	stats->size = sizeof(*stats);
	ret = omnikv_manager_stats(daemon_of(server)->manager, stats);
	if (!ret)
		reply->length = sizeof(*stats);
	return ret;
}

static int (*const handlers[])(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply) = {
	[OKV_WIRE_SPACE_OPEN - OKV_WIRE_MANAGER]	= handle_space_open,
	[OKV_WIRE_SPACE_CLOSE - OKV_WIRE_MANAGER]	= handle_space_close,
	[OKV_WIRE_FIND - OKV_WIRE_MANAGER]		= handle_find,
	[OKV_WIRE_PUBLISH - OKV_WIRE_MANAGER]		= handle_publish,
	[OKV_WIRE_STATE - OKV_WIRE_MANAGER]		= handle_state,
	[OKV_WIRE_USE - OKV_WIRE_MANAGER]		= handle_use,
	[OKV_WIRE_DISTRUST - OKV_WIRE_MANAGER]		= handle_distrust,
	[OKV_WIRE_ADMIT - OKV_WIRE_MANAGER]		= handle_admit,
	[OKV_WIRE_RESET - OKV_WIRE_MANAGER]		= handle_reset,
	[OKV_WIRE_STATS - OKV_WIRE_MANAGER]		= handle_stats,
	[OKV_WIRE_PROMISE - OKV_WIRE_MANAGER]		= handle_promise,
	[OKV_WIRE_WAIT - OKV_WIRE_MANAGER]		= handle_wait,
	[OKV_WIRE_JOIN - OKV_WIRE_MANAGER]		= handle_join,
	[OKV_WIRE_EPOCH - OKV_WIRE_MANAGER]		= handle_epoch,
	[OKV_WIRE_PREFETCH - OKV_WIRE_MANAGER]		= handle_prefetch,
	[OKV_WIRE_RETAIN - OKV_WIRE_MANAGER]		= handle_retain,
	[OKV_WIRE_GIVE - OKV_WIRE_MANAGER]		= handle_give,
	[OKV_WIRE_TAKE - OKV_WIRE_MANAGER]		= handle_take,
	[OKV_WIRE_TAKE_END - OKV_WIRE_MANAGER]		= handle_take_end,
	[OKV_WIRE_TOKENS - OKV_WIRE_MANAGER]		= handle_tokens,
};

/* What all have in common: a manager, and a frame that is one. */
static int handle(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	uint32_t type = req->header->type - OKV_WIRE_MANAGER;
	int ret = okv_frame_check(req->header->type, req->payload, req->length);

	if (ret)
		return ret;
	if (!daemon_of(server)->manager)
		return okv_error_set(&reply->err, -EOPNOTSUPP, "this daemon does not manage the pool (--manager=no); manage it "
				     "yourself with --pool daemon:SOCKET");
	if (type >= sizeof(handlers) / sizeof(handlers[0]) || !handlers[type])
		return -EOPNOTSUPP;
	return handlers[type](server, req, reply);
}

static void peer_end(struct okv_server *server, struct okv_peer *peer, enum okv_peer_end why)
{
	struct okv_daemon *daemon = daemon_of(server);
	struct okv_tenancy *tenancy = peer->data[daemon->manager_service];

	(void)why;
	if (joins)
		okv_joins_end_owner(joins, peer->number);
	if (promises)
		okv_promises_end_peer(promises, peer->number);
	if (!tenancy)
		return;
	okv_retain_end_owner(daemon->manager, owner_of(peer));
	for (uint32_t i = 0; i < tenancy->nr_spaces; i++)
		omnikv_space_close(tenancy->spaces[i]);
	free(tenancy->spaces);
	free(tenancy);
	peer->data[daemon->manager_service] = NULL;
}

static uint64_t tick(struct okv_server *server, uint64_t now_ns)
{
	uint64_t next_ns = joins ? okv_joins_tick(joins, now_ns) : UINT64_MAX;
	uint64_t other_ns = promises ? okv_promises_tick(promises, now_ns) : UINT64_MAX;

	(void)server;
	return next_ns < other_ns ? next_ns : other_ns;
}

#define FRAME(type)	{ type, 0, OKV_WIRE_PAYLOAD_MAX, handle }

static const struct okv_frame frames[] = {
	FRAME(OKV_WIRE_SPACE_OPEN), FRAME(OKV_WIRE_SPACE_CLOSE), FRAME(OKV_WIRE_FIND), FRAME(OKV_WIRE_PUBLISH),
	FRAME(OKV_WIRE_STATE), FRAME(OKV_WIRE_USE), FRAME(OKV_WIRE_DISTRUST), FRAME(OKV_WIRE_ADMIT),
	FRAME(OKV_WIRE_RESET), FRAME(OKV_WIRE_EPOCH), FRAME(OKV_WIRE_STATS), FRAME(OKV_WIRE_PROMISE),
	FRAME(OKV_WIRE_WAIT), FRAME(OKV_WIRE_JOIN), FRAME(OKV_WIRE_PREFETCH), FRAME(OKV_WIRE_RETAIN),
	FRAME(OKV_WIRE_GIVE), FRAME(OKV_WIRE_TAKE), FRAME(OKV_WIRE_TAKE_END), FRAME(OKV_WIRE_TOKENS),
};

const struct okv_service okv_manager_service = {
	.frames		= frames,
	.nr_frames	= sizeof(frames) / sizeof(frames[0]),
	.peer_end	= peer_end,
	.tick		= tick,
};

int okv_manager_service_begin(struct okv_server *server)
{
	promises_server = server;
	return okv_promises_create(wait_is_over, NULL, &promises);
}

void okv_manager_service_end(void)
{
	okv_joins_destroy(joins);
	joins = NULL;
	okv_promises_destroy(promises);
	promises = NULL;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Requests of pools: attaching, allocating, sealing, freeing, questions.
 *
 * A connection becomes a client of the pool by ATTACH; what the client has ends when its process does
 * (share.h), for which a timer looks. Everything is checked here before it reaches the pool: frames
 * are a foreign process's. The daemon's one thread enters.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "daemon.h"
#include "error.h"
#include "manager/manager.h"
#include "share.h"

/* A process that ended takes its descriptors down one after another; so the first looks come soon. */
/* A client keeps at most this part of the pool ahead of need. */
#define RESERVE_SHARE	16u
/* How often an allocation whose room others took has it made again. */
#define ROOM_TRIES	8u
#define LOOK_MIN_NS	(1ull * 1000 * 1000)
#define LOOK_MAX_NS	(250ull * 1000 * 1000)

/* Who publishes holds what it sealed by the same call; the second look comes when that is long over. */
#define SWEEP_NS	(1000ull * 1000 * 1000)

static uint64_t look_ns = LOOK_MIN_NS;
static uint64_t sweep_ns = UINT64_MAX;	/* when to look for what was sealed for nobody */

/* What a connection has of the pool. */
struct okv_attachment {
	struct omnikv_client	*client;	/* NULL: the module's pool, or a look alone */
	uint32_t		flags;		/* OKV_WIRE_ATTACH_F_* */
};

#define IS_LOOK(attachment)	((attachment)->flags & OKV_WIRE_ATTACH_F_LOOK)

static struct okv_daemon *daemon_of(struct okv_server *server)
{
	return okv_server_opaque(server);
}

static struct okv_attachment *attachment_of(const struct okv_daemon *daemon, const struct okv_peer *peer)
{
	return peer->data[daemon->pool_service];
}

struct omnikv_client *okv_peer_client(const struct okv_daemon *daemon, const struct okv_peer *peer)
{
	const struct okv_attachment *attachment = attachment_of(daemon, peer);

	return attachment ? attachment->client : NULL;
}

bool okv_peer_is_of_module(const struct okv_daemon *daemon, const struct okv_peer *peer)
{
	const struct okv_attachment *attachment = attachment_of(daemon, peer);

	return daemon->spec.kind == OKV_PROVIDER_KMOD && attachment && !IS_LOOK(attachment);
}

/* The client for a request that needs one. */
static int need_client(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply,
		       struct omnikv_client **client)
{
	int ret = okv_wire_request_check(req->header->type, req->payload, req->length);

	if (ret)
		return ret;
	*client = okv_peer_client(daemon_of(server), req->peer);
	return *client ? 0 : okv_error_set(&reply->err, -EBUSY, "this connection has not attached to a shared pool");
}

/* ---- attaching -------------------------------------------------------------------------- */

uint64_t okv_pool_reserve(const struct okv_daemon *daemon)
{
	const struct okv_embedded_pool *pool;
	uint64_t most;

	if (daemon->spec.kind == OKV_PROVIDER_KMOD)
		return 0;
	/* Reserves of a few clients must not take a small pool. */
	pool = okv_embedded_pool(daemon->pool);
	most = pool->pool.granule_bytes * (uint64_t)pool->map.nr_granules / RESERVE_SHARE;
	return daemon->config.reserve_bytes < most ? daemon->config.reserve_bytes : most;
}

static void describe(const struct okv_daemon *daemon, const struct omnikv_client *client,
		     struct okv_wire_attached *attached)
{
	const struct okv_embedded_pool *pool;

	memset(attached, 0, sizeof(*attached));
	if (daemon->spec.kind == OKV_PROVIDER_KMOD) {
		attached->kind = OKV_WIRE_POOL_KMOD;
		strncpy(attached->name, daemon->spec.name, sizeof(attached->name) - 1);
		return;
	}
	pool = okv_embedded_pool(daemon->pool);
	attached->kind = OKV_WIRE_POOL_SHARED;
	attached->client_id = client ? ((const struct okv_embedded_client *)client)->id : 0;
	attached->granule_bytes = pool->pool.granule_bytes;
	attached->page_kind = pool->page_kind;
	attached->nr_granules = pool->map.nr_granules;
	attached->data_off = pool->data_off;
	attached->map_bytes = pool->map_bytes;
	attached->lease_bytes = okv_lease_bytes(pool->map.nr_granules);
	attached->reserve_bytes = okv_pool_reserve(daemon);
	memcpy(attached->instance, pool->instance, sizeof(attached->instance));
}

/* Clients that are attached, and no mere looks at the pool. */
static uint32_t count_clients(struct okv_daemon *daemon)
{
	const struct okv_attachment *attachment;
	struct okv_peer *peer;
	uint32_t nr = 0;

	for (peer = okv_server_peers(daemon->server); peer; peer = peer->next) {
		attachment = attachment_of(daemon, peer);
		if (attachment && !IS_LOOK(attachment))
			nr++;
	}
	return nr;
}

static int attachment_new(struct okv_daemon *daemon, struct okv_peer *peer, struct okv_attachment **out)
{
	if (attachment_of(daemon, peer))
		return -EBUSY;
	*out = calloc(1, sizeof(**out));
	return *out ? 0 : -ENOMEM;
}

static struct okv_kept kept_of(const struct okv_peer *peer, const struct okv_attachment *attachment)
{
	return (struct okv_kept) {
		.kind = OKV_KEPT_PEER, .fd = peer->fd, .version = peer->version, .features = peer->features,
		.client_id = attachment->client ? okv_embedded_client(attachment->client)->id : 0,
		.flags = attachment->flags, .number = peer->number,
	};
}

/* From now on the next daemon goes on with it. */
static void set_attachment(struct okv_daemon *daemon, struct okv_peer *peer, struct okv_attachment *attachment)
{
	struct okv_kept kept = kept_of(peer, attachment);

	peer->data[daemon->pool_service] = attachment;
	if (attachment->client) {
		struct okv_kept leases = {
			.kind = OKV_KEPT_LEASES, .fd = okv_share_leases_fd(attachment->client), .client_id = kept.client_id,
		};

		okv_notify_keep(&leases);
	}
	okv_notify_keep(&kept);
}

int okv_pool_adopt(struct okv_daemon *daemon, const struct okv_kept *kept, int leases_fd)
{
	struct okv_attachment *attachment;
	struct okv_peer *peer;
	int ret = 0, leases;

	attachment = calloc(1, sizeof(*attachment));
	if (!attachment)
		return -ENOMEM;
	attachment->flags = kept->flags & OKV_WIRE_ATTACH_F_ALL;
	if (kept->client_id) {
		leases = leases_fd < 0 ? -1 : fcntl(leases_fd, F_DUPFD_CLOEXEC, 3);
		ret = leases < 0 ? -ENOENT :
		      okv_share_reattach(daemon->pool, kept->client_id,
					 kept->flags & OKV_WIRE_ATTACH_F_MANAGER ? OMNIKV_CLIENT_F_MANAGER : 0, -1,
					 leases, &attachment->client);
		if (ret && leases >= 0)
			close(leases);
	}
	peer = ret ? NULL : okv_server_adopt(daemon->server, kept->fd, kept->version, kept->features, kept->number);
	if (!peer) {
		if (attachment->client)
			okv_share_detach(attachment->client, false);
		free(attachment);
		return ret ? ret : -ENOMEM;
	}
	peer->data[daemon->pool_service] = attachment;
	return 0;
}

/* Memory for who only looks: to read and write, and to read. */
static int look_fds(struct okv_daemon *daemon, struct okv_reply *reply)
{
	static const int flags[] = { O_RDWR, O_RDONLY };
	int fd;

	for (reply->nr_fds = 0; reply->nr_fds < 2; reply->nr_fds++) {
		fd = okv_share_memory(daemon->pool, flags[reply->nr_fds]);
		if (fd < 0)
			return fd;
		reply->fds[reply->nr_fds] = fd;
		reply->nr_owned++;
	}
	return 0;
}

static int handle_attach(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	struct okv_daemon *daemon = daemon_of(server);
	const struct okv_wire_attach *attach = req->payload;
	bool is_manager = attach->flags & OKV_WIRE_ATTACH_F_MANAGER, is_look = attach->flags & OKV_WIRE_ATTACH_F_LOOK;
	struct okv_share_fds fds = { -1, -1 };
	bool is_kmod = daemon->spec.kind == OKV_PROVIDER_KMOD;
	struct okv_attachment *attachment;
	int ret;

	ret = okv_wire_request_check(OKV_WIRE_ATTACH, req->payload, req->length);
	if (ret)
		return ret;
	ret = attachment_new(daemon, req->peer, &attachment);
	if (ret == -EBUSY)
		return okv_error_set(&reply->err, ret, "this connection has attached already");
	if (ret)
		return ret;
	/* Those that were there before stay, and come back: see handle_reattach(). */
	if (!is_look && count_clients(daemon) >= daemon->nr_clients) {
		free(attachment);
		return okv_daemon_say_full(daemon, daemon->nr_clients, "places for clients", &reply->err);
	}
	attachment->flags = attach->flags;
	if (is_kmod)
		ret = is_manager && daemon->manager ? -EBUSY : 0;
	else if (is_look)
		ret = look_fds(daemon, reply);
	else
		ret = okv_share_attach(daemon->pool, is_manager ? OMNIKV_CLIENT_F_MANAGER : 0, &attachment->client, &fds);
	if (ret) {
		free(attachment);
		if (ret == -EBUSY && daemon->manager)
			return okv_error_set(&reply->err, -EALREADY, "the daemon manages this pool; attach to its manager");
		if (ret == -EUSERS)
			return okv_error_set(&reply->err, ret, "no client number is free: a process that has the pool's memory locks all of them; "
					     "end it");
		return okv_error_set(&reply->err, ret, ret == -EBUSY ? "the pool has a manager already" :
				     "the daemon is short of memory or descriptors: %s", strerror(-ret));
	}
	set_attachment(daemon, req->peer, attachment);
	describe(daemon, attachment->client, reply->payload);
	reply->length = sizeof(struct okv_wire_attached);
	if (!attachment->client)
		return 0;
	reply->fds[0] = fds.memory;
	reply->fds[1] = fds.leases;
	reply->nr_fds = 2;
	reply->nr_owned = 1;
	return 0;
}

static int handle_end(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	struct omnikv_client *client;
	int ret = need_client(server, req, reply, &client);

	return ret ? ret : okv_share_end(client);
}

/* The client is back before the end of its old connection was seen. */
static void peer_replace(struct okv_daemon *daemon, const struct okv_wire_reattach *again, int memory)
{
	const struct omnikv_client *client;
	struct okv_peer *peer;

	if (!okv_share_is_proof(daemon->pool, memory, again->client_id))
		return;
	for (peer = okv_server_peers(daemon->server); peer; peer = peer->next) {
		client = okv_peer_client(daemon, peer);
		if (peer->state != OKV_PEER_GONE && client &&
		    ((const struct okv_embedded_client *)client)->id == again->client_id)
			okv_peer_close(peer);
	}
}

static int handle_reattach(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	struct okv_daemon *daemon = daemon_of(server);
	const struct okv_wire_reattach *again = req->payload;
	struct okv_attachment *attachment;
	int leases = -1, ret;

	ret = okv_wire_request_check(OKV_WIRE_REATTACH, req->payload, req->length);
	if (ret)
		return ret;
	if (daemon->spec.kind != OKV_PROVIDER_EMBEDDED || req->nr_fds != 2 ||
	    memcmp(again->instance, okv_embedded_pool(daemon->pool)->instance, sizeof(again->instance)))
		return okv_error_set(&reply->err, -ESTALE, "this daemon has another pool; close it and attach anew");
	ret = attachment_new(daemon, req->peer, &attachment);
	if (ret)
		return ret;
	peer_replace(daemon, again, req->fds[0]);
	leases = fcntl(req->fds[1], F_DUPFD_CLOEXEC, 3);
	ret = leases < 0 ? -errno :
	      okv_share_reattach(daemon->pool, again->client_id,
				 again->flags & OKV_WIRE_ATTACH_F_MANAGER ? OMNIKV_CLIENT_F_MANAGER : 0, req->fds[0],
				 leases, &attachment->client);
	if (ret) {
		if (leases >= 0)
			close(leases);
		free(attachment);
		return okv_error_set(&reply->err, ret, "client %u cannot go on: %s", again->client_id, strerror(-ret));
	}
	attachment->flags = again->flags;
	set_attachment(daemon, req->peer, attachment);
	describe(daemon, attachment->client, reply->payload);
	reply->length = sizeof(struct okv_wire_attached);
	return 0;
}

static void drop_kept(const struct okv_peer *peer, const struct okv_attachment *attachment)
{
	struct okv_kept kept = kept_of(peer, attachment);

	okv_notify_drop(&kept);
	kept.kind = OKV_KEPT_LEASES;
	if (attachment->client)
		okv_notify_drop(&kept);
}

/* The process may live on; the timer looks whether it does. */
static void peer_end(struct okv_server *server, struct okv_peer *peer, enum okv_peer_end why)
{
	struct okv_daemon *daemon = daemon_of(server);
	struct okv_attachment *attachment = attachment_of(daemon, peer);

	if (!attachment)
		return;
	/* At a shutdown both stay for the next daemon. */
	if (why != OKV_END_STOP)
		drop_kept(peer, attachment);
	if (attachment->client) {
		okv_share_detach(attachment->client, why == OKV_END_DIED);
		look_ns = LOOK_MIN_NS;
		okv_server_wake(server, 0);
	}
	if (okv_peer_is_of_module(daemon, peer))
		okv_server_wake(server, sweep_ns = okv_monotonic_ns() + SWEEP_NS);
	free(attachment);
	peer->data[daemon->pool_service] = NULL;
}

static uint64_t tick(struct okv_server *server, uint64_t now_ns)
{
	struct okv_daemon *daemon = daemon_of(server);

	if (daemon->spec.kind == OKV_PROVIDER_KMOD && daemon->manager && now_ns >= sweep_ns)
		sweep_ns = okv_manager_sweep(daemon->manager) ? now_ns + SWEEP_NS : UINT64_MAX;
	if (daemon->spec.kind == OKV_PROVIDER_KMOD)
		return sweep_ns;
	if (daemon->spec.kind != OKV_PROVIDER_EMBEDDED || !okv_share_settle(daemon->pool))
		return UINT64_MAX;
	look_ns = look_ns * 2 < LOOK_MAX_NS ? look_ns * 2 : LOOK_MAX_NS;
	return now_ns + look_ns;
}

/* ---- extents ---------------------------------------------------------------------------- */

/* What is free. */
static int alloc_now(struct omnikv_client *client, const struct okv_wire_alloc *alloc, struct okv_wire_extents *list)
{
	uint32_t flags = alloc->flags & OKV_WIRE_ALLOC_F_META ? OMNIKV_ALLOC_F_META : OMNIKV_ALLOC_F_NO_ZERO;
	const struct omnikv_extent *after = alloc->flags & OKV_WIRE_ALLOC_F_AFTER ? &alloc->after : NULL;
	int ret = omnikv_extent_alloc(client, alloc->nr_granules, alloc->count, after, flags, list->extents);

	if (ret)
		return ret;
	*list = (struct okv_wire_extents){ .count = alloc->count };
	/* What is there without anybody's loss. */
	if (alloc->nr_more && !omnikv_extent_alloc(client, alloc->nr_granules, alloc->nr_more, NULL, flags,
						   list->extents + list->count))
		list->count += alloc->nr_more;
	return 0;
}

static uint32_t list_bytes(const struct okv_wire_extents *list)
{
	return (uint32_t)(sizeof(*list) + list->count * sizeof(list->extents[0]));
}

/* Room is made by what leaves memory, which is written first: for ALLOC, which is then tried again, and for ROOM. */
struct room_errand {
	struct okv_errand	errand;
	struct okv_daemon	*daemon;
	struct okv_wire_alloc	alloc;
	uint32_t		nr_tries;
	int			ret;
};

static void room_run(struct okv_errand *errand)
{
	struct room_errand *room = (struct room_errand *)errand;

	room->ret = okv_manager_room_for(room->daemon->manager, room->alloc.nr_granules, room->alloc.count);
}

static void room_done(struct okv_errand *errand, struct okv_peer *peer)
{
	struct room_errand *room = (struct room_errand *)errand;
	struct omnikv_client *client = peer ? okv_peer_client(room->daemon, peer) : NULL;
	struct okv_wire_extents *list = NULL;
	int ret;

	if (!room->ret && client && errand->type == OKV_WIRE_ALLOC) {
		list = malloc(OKV_WIRE_PAYLOAD_MAX);
		room->ret = list ? alloc_now(client, &room->alloc, list) : -ENOMEM;
		/* Others were faster. */
		if (room->ret == -ENOSPC && room->nr_tries++ < ROOM_TRIES) {
			ret = okv_errands_add(room->daemon->errands, errand);
			if (!ret) {
				free(list);
				return;
			}
			if (ret == -ENOTCONN)
				room->ret = ret;
		}
	}
	if (peer)
		okv_peer_reply(peer, errand->type, errand->id, room->ret, list, room->ret || !list ? 0 : list_bytes(list), NULL, 0);
	free(list);
	free(room);
}

/* Without a disk at once; else OKV_REPLY_LATER. */
static int make_room(struct okv_daemon *daemon, const struct okv_request *req, const struct okv_wire_alloc *alloc)
{
	struct room_errand *room;
	int ret;

	if (!daemon->errands)
		return okv_manager_room_for(daemon->manager, alloc->nr_granules, alloc->count);
	room = calloc(1, sizeof(*room));
	if (!room)
		return -ENOMEM;
	okv_errand_init(&room->errand, req);
	room->errand.run = room_run;
	room->errand.done = room_done;
	room->daemon = daemon;
	room->alloc = *alloc;
	ret = okv_errands_add(daemon->errands, &room->errand);
	if (ret)
		free(room);
	return ret ? -ENOSPC : OKV_REPLY_LATER;
}

static int handle_alloc(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	struct okv_daemon *daemon = daemon_of(server);
	const struct okv_wire_alloc *alloc = req->payload;
	struct omnikv_client *client;
	int ret;

	ret = need_client(server, req, reply, &client);
	if (ret)
		return ret;
	ret = alloc_now(client, alloc, reply->payload);
	if (ret == -ENOSPC && daemon->manager) {
		ret = make_room(daemon, req, alloc);
		if (!ret)
			ret = alloc_now(client, alloc, reply->payload);
	}
	if (!ret)
		reply->length = list_bytes(reply->payload);
	return ret;
}

static int handle_list_of_extents(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_extents *list = req->payload;
	struct omnikv_client *client;
	int ret;

	ret = need_client(server, req, reply, &client);
	if (ret)
		return ret;
	if (req->header->type == OKV_WIRE_SEAL)
		return omnikv_extent_seal(client, list->extents, list->count);
	ret = omnikv_extent_free(client, list->extents, list->count);
	/* What somebody still leases is looked at again. */
	look_ns = LOOK_MIN_NS;
	okv_server_wake(server, okv_monotonic_ns() + LOOK_MAX_NS);
	return ret;
}

static int handle_query(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_query *query = req->payload;
	struct okv_wire_queried *queried = reply->payload;
	struct omnikv_extent_info info = { .size = sizeof(info) };
	struct omnikv_client *client;
	int ret;

	ret = need_client(server, req, reply, &client);
	if (!ret)
		ret = omnikv_extent_query(client, &query->extent, &info);
	if (ret)
		return ret;
	*queried = (struct okv_wire_queried) {
		.state = info.state, .nr_refs = info.nr_refs, .bytes = info.bytes, .is_mine = info.is_mine,
	};
	reply->length = sizeof(*queried);
	return 0;
}

static int handle_list(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	const struct okv_wire_list *ask = req->payload;
	struct okv_wire_extents *list = reply->payload;
	struct omnikv_client *client;
	uint64_t from = ask->from;
	int64_t nr;
	int ret;

	ret = need_client(server, req, reply, &client);
	if (ret)
		return ret;
	nr = omnikv_extent_list(client, ask->states, &from, list->extents, ask->max);
	if (nr < 0)
		return (int)nr;
	*list = (struct okv_wire_extents){ .count = (uint32_t)nr, .from = from };
	reply->length = (uint32_t)(sizeof(*list) + list->count * sizeof(list->extents[0]));
	return 0;
}

/* ---- questions -------------------------------------------------------------------------- */

static int handle_info(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	struct okv_daemon *daemon = daemon_of(server);
	struct okv_wire_info *out = reply->payload;
	struct omnikv_pool_info info = { .size = sizeof(info) };
	int ret;

	(void)req;
	if (daemon->spec.kind == OKV_PROVIDER_EMBEDDED)
		okv_share_settle(daemon->pool);
	ret = omnikv_pool_info(daemon->pool, &info);
	if (ret)
		return ret;
	*out = (struct okv_wire_info) {
		.asked_bytes = info.asked_bytes, .usable_bytes = info.usable_bytes,
		.overhead_bytes = info.overhead_bytes, .free_bytes = info.free_bytes,
		.largest_free_bytes = info.largest_free_bytes, .nr_granules = info.nr_granules,
		.nr_placed = info.nr_placed, .nr_runs_begun = info.nr_runs_begun,
		.granule_bytes = info.granule_bytes, .nr_clients = info.nr_clients, .page_kind = info.page_kind,
		.nr_nodes = info.nr_nodes,
	};
	memcpy(out->state_bytes, info.state_bytes, sizeof(out->state_bytes));
	memcpy(out->nr_extents, info.nr_extents, sizeof(out->nr_extents));
	memcpy(out->node_bytes, info.node_bytes, sizeof(out->node_bytes));
	memcpy(out->instance, info.instance, sizeof(out->instance));
	reply->length = sizeof(*out);
	return 0;
}

static int handle_room(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	struct okv_daemon *daemon = daemon_of(server);
	const struct okv_wire_room *room = req->payload;
	int ret;

	ret = okv_wire_request_check(OKV_WIRE_ROOM, req->payload, req->length);
	if (ret)
		return ret;
	if (!daemon->manager)
		return okv_error_set(&reply->err, -EOPNOTSUPP, "this daemon does not manage the pool");
	return make_room(daemon, req, &(struct okv_wire_alloc){ .nr_granules = room->nr_granules, .count = room->count });
}

/* Collects what okv_share_clients() shows. */
struct roll {
	struct okv_daemon	*daemon;
	struct okv_wire_clients	*out;
	uint32_t		from;
	uint32_t		seen;
};

static const struct okv_peer *peer_of(const struct okv_daemon *daemon, const struct omnikv_client *client)
{
	const struct okv_peer *peer;

	for (peer = okv_server_peers(daemon->server); peer; peer = peer->next)
		if (peer->state != OKV_PEER_GONE && okv_peer_client(daemon, peer) == client)
			return peer;
	return NULL;
}

static void roll_peer(struct okv_wire_client *out, const struct okv_peer *peer)
{
	out->pid = (uint32_t)peer->cred.pid;
	out->uid = (uint32_t)peer->cred.uid;
	out->seconds = (okv_monotonic_ns() - peer->since_ns) / 1000000000u;
	memcpy(out->name, peer->program, sizeof(out->name) - 1);
}

/* The next place in the reply; NULL: before those asked for, or none is left. */
static struct okv_wire_client *roll_next(struct roll *roll)
{
	struct okv_wire_client *out;

	if (roll->seen++ < roll->from)
		return NULL;
	if (roll->out->count == OKV_WIRE_CLIENTS_MAX) {
		if (!roll->out->next)
			roll->out->next = roll->seen - 1;
		return NULL;
	}
	out = &roll->out->clients[roll->out->count++];
	memset(out, 0, sizeof(*out));
	return out;
}

static void roll_client(void *opaque, const struct okv_embedded_client *client, uint64_t private_bytes,
			uint64_t nr_leases)
{
	struct roll *roll = opaque;
	struct okv_wire_client *out = roll_next(roll);
	const struct okv_peer *peer;

	if (!out)
		return;
	peer = client->is_absent ? NULL : peer_of(roll->daemon, &client->client);
	if (peer)
		roll_peer(out, peer);
	out->client_id = client->id;
	out->flags = (peer ? 0 : OKV_WIRE_CLIENT_F_ABSENT) | (client->is_manager ? OKV_WIRE_CLIENT_F_MANAGER : 0);
	out->private_bytes = private_bytes;
	out->nr_leases = nr_leases;
}

static int handle_status(struct okv_server *server, const struct okv_request *req, struct okv_reply *reply)
{
	struct okv_daemon *daemon = daemon_of(server);
	const struct okv_wire_status *ask = req->payload;
	struct okv_wire_clients *out = reply->payload;
	struct roll roll = { .daemon = daemon, .out = out, .from = ask->from };
	const struct okv_attachment *attachment;
	const struct okv_peer *peer;
	struct okv_wire_client *next;
	int ret;

	ret = okv_wire_request_check(OKV_WIRE_STATUS, req->payload, req->length);
	if (ret)
		return ret;
	*out = (struct okv_wire_clients) {
		.daemon_pid = (uint32_t)getpid(), .seconds = (okv_monotonic_ns() - daemon->since_ns) / 1000000000u,
	};
	if (daemon->spec.kind == OKV_PROVIDER_EMBEDDED) {
		okv_share_settle(daemon->pool);
		okv_share_clients(daemon->pool, roll_client, &roll);
	} else {
		/* What they hold of the module's pool is the module's to tell. */
		for (peer = okv_server_peers(server); peer; peer = peer->next) {
			attachment = attachment_of(daemon, peer);
			if (peer->state == OKV_PEER_GONE || !attachment || IS_LOOK(attachment))
				continue;
			next = roll_next(&roll);
			if (next)
				roll_peer(next, peer);
		}
	}
	reply->length = (uint32_t)(sizeof(*out) + out->count * sizeof(out->clients[0]));
	return 0;
}

#define ANY	0, OKV_WIRE_PAYLOAD_MAX	/* okv_wire_request_check() knows */

static const struct okv_frame frames[] = {
	{ OKV_WIRE_ATTACH,	ANY, handle_attach },
	{ OKV_WIRE_REATTACH,	ANY, handle_reattach },
	{ OKV_WIRE_INFO,	0, 0, handle_info },
	{ OKV_WIRE_ALLOC,	ANY, handle_alloc },
	{ OKV_WIRE_FREE,	ANY, handle_list_of_extents },
	{ OKV_WIRE_SEAL,	ANY, handle_list_of_extents },
	{ OKV_WIRE_QUERY,	ANY, handle_query },
	{ OKV_WIRE_LIST,	ANY, handle_list },
	{ OKV_WIRE_STATUS,	ANY, handle_status },
	{ OKV_WIRE_ROOM,	ANY, handle_room },
	{ OKV_WIRE_END,		ANY, handle_end },
};

const struct okv_service okv_pool_service = {
	.frames		= frames,
	.nr_frames	= sizeof(frames) / sizeof(frames[0]),
	.peer_end	= peer_end,
	.tick		= tick,
};

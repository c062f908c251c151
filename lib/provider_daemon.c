// SPDX-License-Identifier: MIT
/*
 * Pools of omnikvd, from a client process.
 *
 * Where the daemon's pool is the module's, opening it gives a pool of that provider, and this one has no
 * more to do. Else the daemon is the authority over memory that it shares (share.h): it allocates, seals
 * and frees on request; leases and transfers are counted in the client's own table without asking
 * (lease.h); windows map the memory here (window.c), over the same structs as an embedded pool's. A
 * client is one connection.
 *
 * While the daemon is away: allocation goes on from the stock, frees go to it, leases and windows
 * work, the rest is -ENOTCONN. When it is back, what it believes to be ours and is not is freed.
 *
 * Locks, outermost first: client->requests, client->windows_lock, then the connection's, then pool->lock.
 * Any thread.
 */
#include "provider_daemon.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "embedded.h"
#include "error.h"
#include "failpoint.h"
#include "fork_mark.h"
#include "pool_file.h"
#include "prefetch.h"
#include "stock.h"

struct daemon_pool {
	struct okv_embedded_pool	base;	/* its map: the records, only read */
	struct okv_conn			*conn;	/* for questions */
	uint64_t			reserve_bytes;
	uint32_t			timeout_ms;
	uint32_t			*mark;
};

struct daemon_client {
	struct okv_embedded_client	base;	/* is_remote is false: this is its own process */
	struct okv_conn			*conn;
	int				memory;	/* holds the lock that says that we live */

	/* Held from a request to what it changes here, so that what the daemon lists can be compared. */
	pthread_mutex_t			requests;
	bool				is_doubtful;	/* a request was left without reply */
	uint64_t			epoch;		/* of the connection, when last compared */
	struct okv_stock		stock;
};

static struct daemon_pool *daemon_pool(struct omnikv_pool *pool)
{
	return (struct daemon_pool *)pool;
}

static struct daemon_client *daemon_client(struct omnikv_client *client)
{
	return (struct daemon_client *)client;
}

/*
 * A forked child has neither the memory nor the tables, and whatever lies at their addresses is not ours. It may
 * close what it inherited, which frees memory of its own and closes descriptors.
 */
static bool is_child(const struct omnikv_pool *pool)
{
	return okv_is_forked(((const struct daemon_pool *)pool)->mark);
}

/* Nobody answers, or it is not known what became of the request. */
static bool is_away(int ret)
{
	return ret == -ENOTCONN || ret == -EPIPE || ret == -ETIME;
}

struct okv_conn *okv_daemon_client_conn(struct omnikv_client *client)
{
	return client->pool->provider == &okv_provider_daemon ? daemon_client(client)->conn : NULL;
}

uint64_t okv_daemon_client_reserve(struct omnikv_client *base)
{
	struct daemon_client *client = daemon_client(base);
	uint64_t nr;

	if (base->pool->provider != &okv_provider_daemon)
		return 0;
	pthread_mutex_lock(&client->requests);
	nr = client->stock.nr_granules;
	pthread_mutex_unlock(&client->requests);
	return nr;
}

/* ---- pools ------------------------------------------------------------------------------ */

static int look(struct okv_conn *conn, struct okv_wire_attached *attached, int fds[OKV_WIRE_FDS_MAX],
		struct omnikv_error *err, bool is_locked)
{
	struct okv_wire_attach attach = { .flags = OKV_WIRE_ATTACH_F_LOOK };
	struct okv_call call = {
		.type = OKV_WIRE_ATTACH, .req = &attach, .req_bytes = sizeof(attach), .reply = attached,
		.reply_max = sizeof(*attached), .err = err, .timeout_ms = OKV_CONN_TIMEOUT_MS,
	};
	int ret = is_locked ? okv_conn_call_locked(conn, &call) : okv_conn_call(conn, &call);

	memcpy(fds, call.fds_out, sizeof(call.fds_out));
	return ret;
}

static void close_fds(const int fds[OKV_WIRE_FDS_MAX])
{
	uint32_t i;

	for (i = 0; i < OKV_WIRE_FDS_MAX; i++)
		if (fds[i] >= 0)
			close(fds[i]);
}

/* The daemon that answers now must have the memory that is mapped here. */
static int pool_connected(struct okv_conn *conn, void *opaque, bool is_first, struct omnikv_error *err)
{
	struct daemon_pool *pool = opaque;
	struct okv_wire_attached attached;
	int fds[OKV_WIRE_FDS_MAX], ret;

	if (is_first)
		return 0;
	ret = look(conn, &attached, fds, err, true);
	if (ret < 0)
		return ret;
	close_fds(fds);
	if (memcmp(attached.instance, pool->base.instance, sizeof(attached.instance)))
		return okv_error_set(err, -ESTALE, "the daemon has another pool than before");
	return 0;
}

static const struct okv_ref_ops daemon_refs;

static int pool_map(struct daemon_pool *pool, const struct okv_wire_attached *attached, int fd,
		    struct omnikv_error *err)
{
	struct okv_embedded_pool *base = &pool->base;
	uint64_t records = OKV_POOL_HEADER_BYTES + attached->nr_granules * sizeof(struct okv_extent_rec);
	uint64_t bytes = attached->map_bytes;
	unsigned char *room, *at;
	struct stat st;
	int ret;

	if (attached->data_off < records || fstat(fd, &st) || (uint64_t)st.st_size < bytes)
		return okv_error_set(err, -EPROTO, "the daemon's memory is not what it says");
	room = mmap(NULL, bytes + OKV_HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED)
		return okv_error_set(err, -ENOMEM, "cannot map the daemon's %llu bytes", (unsigned long long)bytes);
	at = (unsigned char *)(((uintptr_t)room + OKV_HUGE_BYTES - 1) & ~(uintptr_t)(OKV_HUGE_BYTES - 1));
	/* Records are the daemon's: only read, so that an accident here ends here. */
	if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ||
	    mprotect(at, attached->data_off, PROT_READ) || madvise(at, bytes, MADV_DONTFORK)) {
		ret = -errno;
		munmap(room, bytes + OKV_HUGE_BYTES);
		return okv_error_set(err, ret, "cannot map the daemon's %llu bytes: %s", (unsigned long long)bytes,
				     strerror(-ret));
	}
	if (at > room)
		munmap(room, (size_t)(at - room));
	if (at + bytes < room + bytes + OKV_HUGE_BYTES)
		munmap(at + bytes, (size_t)(room + OKV_HUGE_BYTES - at));
	madvise(at, bytes, MADV_DONTDUMP);
	if (attached->page_kind == OMNIKV_PAGES_THP)
		madvise(at, bytes, MADV_HUGEPAGE);
	base->map_base = at;
	base->map_bytes = bytes;
	base->data_off = attached->data_off;
	base->page_kind = attached->page_kind;
	base->map.recs = (struct okv_extent_rec *)(at + OKV_POOL_HEADER_BYTES);
	base->map.capacity = base->map.nr_granules = (uint32_t)attached->nr_granules;
	base->pool.base = at + attached->data_off;
	base->pool.granule_bytes = attached->granule_bytes;
	memcpy(base->instance, attached->instance, sizeof(base->instance));
	return 0;
}

static int check_config(const struct omnikv_pool_config *config, const struct okv_wire_attached *attached,
			struct omnikv_error *err)
{
	if (config->numa)
		return okv_error_set(err, -EINVAL, "a daemon's pool has the NUMA policy of its creation");
	if (config->granule_bytes && config->granule_bytes != attached->granule_bytes)
		return okv_error_set(err, -EBADMSG, "the daemon's pool has granules of %u bytes, asked for %u",
				     attached->granule_bytes, config->granule_bytes);
	if (config->flags & OMNIKV_POOL_F_REQUIRE_HUGE && attached->page_kind == OMNIKV_PAGES_SMALL)
		return okv_error_set(err, -ENOMEM, "the daemon's pool has small pages");
	return 0;
}

static int daemon_open(const struct okv_pool_spec *spec, const struct omnikv_pool_config *config,
		       struct omnikv_pool **out, struct omnikv_error *err)
{
	struct okv_pool_spec kmod = { .kind = OKV_PROVIDER_KMOD };
	int fds[OKV_WIRE_FDS_MAX] = { -1, -1, -1, -1 };
	struct okv_conn_hooks hooks = { .connected = pool_connected, .timeout_ms = spec->timeout_ms };
	struct okv_wire_attached attached;
	struct daemon_pool *pool;
	int ret;

	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return -ENOMEM;
	hooks.opaque = pool;
	ret = okv_conn_open(spec->name, &hooks, &pool->conn, err);
	if (ret)
		goto err_free;
	ret = look(pool->conn, &attached, fds, err, false);
	if (ret < 0)
		goto err_conn;
	if (attached.kind == OKV_WIRE_POOL_KMOD) {
		kmod.name = attached.name;
		ret = okv_provider_kmod.open(&kmod, config, out, err);
		goto err_conn;	/* also where it succeeded: the rest is the module's */
	}
	ret = fds[0] < 0 || fds[1] < 0 ? okv_error_set(err, -EPROTO, "the daemon sent no memory") :
	      check_config(config, &attached, err);
	if (!ret)
		ret = pool_map(pool, &attached, fds[0], err);
	if (ret)
		goto err_fds;
	pool->mark = okv_fork_mark_new();
	if (!pool->mark) {
		ret = okv_error_set(err, -ENOMEM, "no memory for a page");
		goto err_unmap;
	}
	pool->base.fd = fds[0];
	pool->base.fd_ro = fds[1];
	pool->base.refs = &daemon_refs;
	pool->base.pool.provider = &okv_provider_daemon;
	pool->reserve_bytes = attached.reserve_bytes;
	pool->timeout_ms = spec->timeout_ms;
	pthread_mutex_init(&pool->base.lock, NULL);
	*out = &pool->base.pool;
	return 0;

err_unmap:
	munmap(pool->base.map_base, pool->base.map_bytes);
err_fds:
err_conn:
	close_fds(fds);
	okv_conn_close(pool->conn);
err_free:
	free(pool);
	return ret;
}

static void daemon_close(struct omnikv_pool *base)
{
	struct daemon_pool *pool = daemon_pool(base);

	okv_conn_close(pool->conn);
	if (!is_child(base))
		munmap(pool->base.map_base, pool->base.map_bytes);
	okv_fork_mark_free(pool->mark);
	close(pool->base.fd);
	close(pool->base.fd_ro);
	pthread_mutex_destroy(&pool->base.lock);
	free(pool);
}

static int ask_info(struct daemon_pool *pool, struct okv_wire_info *info)
{
	struct okv_call call = { .type = OKV_WIRE_INFO, .reply = info, .reply_max = sizeof(*info) };

	return okv_conn_call(pool->conn, &call);
}

static int daemon_info(struct omnikv_pool *base, struct omnikv_pool_info *info)
{
	struct okv_wire_info from;
	int ret = ask_info(daemon_pool(base), &from);

	if (ret)
		return ret;
	info->asked_bytes = from.asked_bytes;
	info->usable_bytes = from.usable_bytes;
	info->overhead_bytes = from.overhead_bytes;
	info->free_bytes = from.free_bytes;
	info->largest_free_bytes = from.largest_free_bytes;
	info->nr_granules = from.nr_granules;
	info->nr_placed = from.nr_placed;
	info->nr_runs_begun = from.nr_runs_begun;
	info->granule_bytes = from.granule_bytes;
	info->nr_clients = from.nr_clients;
	info->page_kind = from.page_kind;
	info->nr_nodes = from.nr_nodes <= OMNIKV_NODES_MAX ? from.nr_nodes : OMNIKV_NODES_MAX;
	memcpy(info->state_bytes, from.state_bytes, sizeof(info->state_bytes));
	memcpy(info->nr_extents, from.nr_extents, sizeof(info->nr_extents));
	memcpy(info->node_bytes, from.node_bytes, sizeof(info->node_bytes));
	memcpy(info->instance, from.instance, sizeof(info->instance));
	return 0;
}

static uint64_t daemon_free_granules(struct omnikv_pool *base)
{
	struct okv_wire_info info;

	return ask_info(daemon_pool(base), &info) ? 0 : info.free_bytes / base->granule_bytes;
}

/* ---- clients ---------------------------------------------------------------------------- */

/* A connection anew: we are still who we were. */
static int client_connected(struct okv_conn *conn, void *opaque, bool is_first, struct omnikv_error *err)
{
	struct daemon_client *client = opaque;
	struct okv_wire_reattach again = {
		.client_id = client->base.id, .flags = client->base.is_manager ? OKV_WIRE_ATTACH_F_MANAGER : 0,
	};
	const int fds[] = { client->memory, client->base.leases_fd };
	struct okv_wire_attached attached;
	struct okv_call call = {
		.type = OKV_WIRE_REATTACH, .req = &again, .req_bytes = sizeof(again), .fds_in = fds, .nr_fds_in = 2,
		.reply = &attached, .reply_max = sizeof(attached), .err = err,
	};

	if (is_first)
		return 0;
	memcpy(again.instance, okv_embedded_pool(client->base.client.pool)->instance, sizeof(again.instance));
	return okv_conn_call_locked(conn, &call);
}

/* Whoever has it has the lock, so that the daemon gives nobody what a ring still writes for us. */
static int daemon_client_fd(const struct omnikv_client *client)
{
	return ((const struct daemon_client *)client)->memory;
}

static void table_unmap(struct daemon_client *client)
{
	if (client->base.leases.touched && !is_child(client->base.client.pool))
		munmap((void *)client->base.leases.touched, okv_lease_bytes(client->base.leases.nr_granules));
	if (client->base.leases_fd >= 0)
		close(client->base.leases_fd);
}

static int attach(struct daemon_client *client, const struct daemon_pool *pool, struct omnikv_error *err)
{
	struct okv_wire_attach req = { .flags = client->base.is_manager ? OKV_WIRE_ATTACH_F_MANAGER : 0 };
	uint64_t bytes = okv_lease_bytes(pool->base.map.nr_granules);
	struct okv_wire_attached attached;
	struct okv_call call = {
		.type = OKV_WIRE_ATTACH, .req = &req, .req_bytes = sizeof(req), .reply = &attached,
		.reply_max = sizeof(attached), .timeout_ms = OKV_CONN_TIMEOUT_MS, .err = err,
	};
	struct stat st;
	void *base;
	int ret;

	ret = okv_conn_call(client->conn, &call);
	if (ret < 0)
		return ret;
	client->memory = call.fds_out[0];
	client->base.leases_fd = call.fds_out[1];
	if (client->memory < 0 || client->base.leases_fd < 0 || attached.kind != OKV_WIRE_POOL_SHARED ||
	    memcmp(attached.instance, pool->base.instance, sizeof(attached.instance)) ||
	    fstat(client->base.leases_fd, &st) || (uint64_t)st.st_size < bytes)
		return -EPROTO;
	base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, client->base.leases_fd, 0);
	if (base == MAP_FAILED)
		return -ENOMEM;
	if (madvise(base, bytes, MADV_DONTFORK)) {
		munmap(base, bytes);
		return -ENOMEM;
	}
	okv_lease_init(&client->base.leases, base, pool->base.map.nr_granules);
	client->base.id = attached.client_id;
	client->stock.limit_granules = attached.reserve_bytes / pool->base.pool.granule_bytes;
	client->epoch = okv_conn_epoch(client->conn);
	return 0;
}

static void client_free(struct daemon_client *client)
{
	table_unmap(client);
	if (client->memory >= 0)
		close(client->memory);
	okv_conn_close(client->conn);
	okv_stock_fini(&client->stock);
	okv_holds_fini(&client->base.holds);
	pthread_mutex_destroy(&client->base.windows_lock);
	pthread_mutex_destroy(&client->requests);
	free(client);
}

static int client_open(struct omnikv_pool *base, uint32_t flags, struct omnikv_client **out, struct omnikv_error *err)
{
	struct daemon_pool *pool = daemon_pool(base);
	struct okv_conn_hooks hooks = { .connected = client_connected, .timeout_ms = pool->timeout_ms };
	struct daemon_client *client;
	int ret;

	client = calloc(1, sizeof(*client));
	if (!client)
		return -ENOMEM;
	client->base.client.pool = base;
	client->base.is_manager = flags & OMNIKV_CLIENT_F_MANAGER;
	client->base.leases_fd = -1;
	client->memory = -1;
	pthread_mutex_init(&client->base.windows_lock, NULL);
	pthread_mutex_init(&client->requests, NULL);
	hooks.opaque = client;
	ret = okv_conn_open(okv_conn_path(pool->conn), &hooks, &client->conn, err);
	if (!ret)
		ret = attach(client, pool, err);
	if (ret) {
		client_free(client);
		return ret;
	}
	*out = &client->base.client;
	return 0;
}

static int daemon_client_open(struct omnikv_pool *base, uint32_t flags, struct omnikv_client **out)
{
	return client_open(base, flags, out, NULL);
}

int okv_daemon_client_open(struct omnikv_pool *pool, uint32_t flags, struct omnikv_client **client, struct omnikv_error *err)
{
	return pool->provider == &okv_provider_daemon ? client_open(pool, flags, client, err) :
	       omnikv_client_open(pool, flags, client);
}

static void daemon_client_close(struct omnikv_client *base)
{
	struct daemon_client *client = daemon_client(base);
	struct okv_embedded_pool *pool = okv_embedded_pool(base->pool);
	struct okv_call end = { .type = OKV_WIRE_END };
	bool is_over;
	uint32_t i;

	if (is_child(base->pool)) {
		client_free(client);
		return;
	}
	while (client->base.windows)
		okv_embedded_window_destroy((struct omnikv_window *)client->base.windows);
	okv_windows_fini(&client->base);
	pthread_mutex_lock(&pool->lock);
	for (i = 0; client->base.holds.slots && i <= client->base.holds.mask; i++) {
		struct okv_hold *hold = &client->base.holds.slots[i];

		for (; hold->generation && hold->nr_leases; hold->nr_leases--)
			okv_lease_sub(&client->base.leases, hold->granule);
	}
	pthread_mutex_unlock(&pool->lock);
	/* Where nobody answers, the connection's end says it. */
	okv_conn_call(client->conn, &end);
	pthread_mutex_lock(&pool->lock);
	client->base.is_closed = true;
	is_over = !client->base.nr_ios;
	pthread_mutex_unlock(&pool->lock);
	if (is_over)
		client_free(client);
}

/* ---- what is ours ----------------------------------------------------------------------- */

static int request_list(struct daemon_client *client, uint32_t type, const struct omnikv_extent *exts, uint32_t count)
{
	struct okv_wire_extents list = { .count = count };
	struct okv_call call = {
		.type = type, .req = &list, .req_bytes = sizeof(list), .items = exts,
		.items_bytes = count * sizeof(*exts),
	};
	int ret = okv_conn_call(client->conn, &call);

	if (ret == -EPIPE || ret == -ETIME)
		client->is_doubtful = true;
	return ret;
}

/* Is it an extent of @nr granules, in a pool of @nr_all? */
static bool can_be(const struct omnikv_extent *ext, uint32_t nr, uint32_t nr_all)
{
	return ext->nr_granules == nr && ext->granule < nr_all && nr <= nr_all - ext->granule &&
	       (ext->generation & OKV_GENERATION_PHASE) == OKV_GENERATION_LIVE;
}

static int request_page(struct daemon_client *client, uint32_t states, uint64_t *from, uint32_t max,
			struct okv_wire_extents *page)
{
	struct okv_wire_list ask = { .states = states, .max = max, .from = *from };
	struct okv_call call = {
		.type = OKV_WIRE_LIST, .req = &ask, .req_bytes = sizeof(ask), .reply = page,
		.reply_max = sizeof(*page) + max * sizeof(page->extents[0]),
	};
	uint32_t nr_granules = okv_embedded_pool(client->base.client.pool)->map.nr_granules, i;
	int ret = okv_conn_call(client->conn, &call);

	if (ret < 0)
		return ret;
	for (i = 0; i < page->count; i++)
		if (!page->extents[i].nr_granules || !can_be(&page->extents[i], page->extents[i].nr_granules, nr_granules))
			return -EPROTO;
	*from = page->from;
	return (int)page->count;
}

static bool is_ours(struct daemon_client *client, const struct omnikv_extent *ext)
{
	struct okv_embedded_pool *pool = okv_embedded_pool(client->base.client.pool);
	const struct okv_hold *hold;
	bool is_private;

	pthread_mutex_lock(&pool->lock);
	hold = okv_holds_find(&client->base.holds, (uint32_t)ext->granule);
	is_private = hold && hold->is_private && hold->generation == ext->generation;
	pthread_mutex_unlock(&pool->lock);
	return is_private || okv_stock_has(&client->stock, ext);
}

/*
 * After requests without a reply the daemon may hold extents for us that we know nothing of, or believe
 * to be freed. The caller holds @requests, so nothing becomes ours meanwhile.
 */
static void compare_locked(struct daemon_client *client)
{
	const uint32_t max = 1024;
	struct okv_wire_extents *page;
	uint64_t from = 0, epoch = okv_conn_epoch(client->conn);
	uint32_t i, nr;
	int ret = 0;

	if (!client->is_doubtful && epoch == client->epoch)
		return;
	page = malloc(sizeof(*page) + max * sizeof(page->extents[0]));
	if (!page)
		return;
	client->is_doubtful = false;
	while (ret >= 0 && from != UINT64_MAX) {
		ret = request_page(client, 1u << OMNIKV_EXTENT_PRIVATE, &from, max, page);
		for (i = nr = 0; ret > 0 && i < (uint32_t)ret; i++)
			if (!is_ours(client, &page->extents[i]))
				page->extents[nr++] = page->extents[i];
		if (ret > 0 && nr)
			ret = request_list(client, OKV_WIRE_FREE, page->extents, nr);
	}
	free(page);
	if (ret < 0)
		client->is_doubtful = true;
	else
		client->epoch = epoch;
}

/* Holds of what becomes or stops being our own. Room is reserved where @is_private. */
static void mark_private_locked(struct daemon_client *client, const struct omnikv_extent *exts, uint32_t count,
				bool is_private)
{
	struct okv_hold *hold;
	uint32_t i;

	for (i = 0; i < count; i++) {
		hold = is_private ? okv_holds_get(&client->base.holds, (uint32_t)exts[i].granule, exts[i].generation) :
				    okv_holds_find(&client->base.holds, (uint32_t)exts[i].granule);
		if (!hold || hold->generation != exts[i].generation)
			continue;
		hold->is_private = is_private;
		hold->is_offered = false;
		okv_holds_drop(&client->base.holds, hold);
	}
}

static void mark_private(struct daemon_client *client, const struct omnikv_extent *exts, uint32_t count,
			 bool is_private)
{
	struct okv_embedded_pool *pool = okv_embedded_pool(client->base.client.pool);

	pthread_mutex_lock(&pool->lock);
	mark_private_locked(client, exts, count, is_private);
	pthread_mutex_unlock(&pool->lock);
}

/* Not taken back by an error: an earlier daemon may have done what this one refuses to do again. */
static void offer_locked(struct daemon_client *client, const struct omnikv_extent *exts, uint32_t count)
{
	struct okv_hold *hold;
	uint32_t i;

	for (i = 0; i < count; i++) {
		hold = okv_holds_find(&client->base.holds, (uint32_t)exts[i].granule);
		if (hold && exts[i].nr_granules && hold->generation == exts[i].generation)
			hold->is_offered = true;
	}
}

void okv_daemon_client_offer(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count)
{
	struct okv_embedded_pool *pool;

	if (client->pool->provider != &okv_provider_daemon)
		return;
	pool = okv_embedded_pool(client->pool);
	pthread_mutex_lock(&pool->lock);
	offer_locked(daemon_client(client), exts, count);
	pthread_mutex_unlock(&pool->lock);
}

void okv_daemon_client_sealed(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count)
{
	if (client->pool->provider == &okv_provider_daemon)
		mark_private(daemon_client(client), exts, count, false);
}

/* One request for extents; what comes beyond them goes to the stock. */
static int request_alloc(struct daemon_client *client, const struct okv_wire_alloc *alloc, struct omnikv_extent *out)
{
	uint32_t max = alloc->count + alloc->nr_more, i;
	struct okv_wire_extents *list = malloc(sizeof(*list) + max * sizeof(list->extents[0]));
	struct okv_call call = {
		.type = OKV_WIRE_ALLOC, .req = alloc, .req_bytes = sizeof(*alloc), .reply = list,
		.reply_max = sizeof(*list) + max * sizeof(list->extents[0]),
	};
	uint32_t nr_granules = okv_embedded_pool(client->base.client.pool)->map.nr_granules;
	int ret;

	if (!list)
		return -ENOMEM;
	ret = okv_conn_call(client->conn, &call);
	if (ret == -EPIPE || ret == -ETIME)
		client->is_doubtful = true;
	if (ret >= 0)
		ret = list->count < alloc->count ? -EPROTO : 0;
	for (i = 0; !ret && i < list->count; i++)
		if (!can_be(&list->extents[i], alloc->nr_granules, nr_granules))
			ret = -EPROTO;
	if (!ret) {
		memcpy(out, list->extents, alloc->count * sizeof(*out));
		for (i = alloc->count; i < list->count; i++)
			if (!okv_stock_put(&client->stock, &list->extents[i], false))
				client->is_doubtful = true;
	}
	free(list);
	return ret;
}

/* The records say so too. They are there without the daemon. */
static bool is_private_there(const struct daemon_client *client, const struct omnikv_extent *ext)
{
	const struct okv_extent_map *map = &okv_embedded_pool(client->base.client.pool)->map;
	struct okv_extent_view view;

	if (okv_extent_check(map, ext, OKV_OP_QUERY, client->base.id, client->base.is_manager))
		return false;
	okv_extent_view(map, ext->granule, &view);
	return view.state == OMNIKV_EXTENT_PRIVATE && view.owner == client->base.id;
}

/* As okv_stock_take(), of those alone that are ours for certain. The others are left to the next comparison. */
static bool stock_take(struct daemon_client *client, uint32_t nr_granules, uint32_t count, struct omnikv_extent *out)
{
	uint32_t i, nr = 0;

	while (nr < count && okv_stock_take(&client->stock, nr_granules, count - nr, &out[nr])) {
		for (i = nr; i < count; i++) {
			if (is_private_there(client, &out[i]))
				out[nr++] = out[i];
			else
				client->is_doubtful = true;
		}
	}
	for (i = 0; nr < count && i < nr; i++)
		okv_stock_put(&client->stock, &out[i], true);
	return nr == count;
}

static int alloc_locked(struct daemon_client *client, uint32_t nr_granules, uint32_t count,
			const struct omnikv_extent *after, bool is_meta, struct omnikv_extent *out)
{
	struct okv_wire_alloc alloc = { .nr_granules = nr_granules, .flags = is_meta ? OKV_WIRE_ALLOC_F_META : 0 };
	uint32_t done = 0, n, more;
	int ret = 0;

	compare_locked(client);
	while (!ret && done < count) {
		n = count - done < OKV_WIRE_EXTENTS_MAX ? count - done : OKV_WIRE_EXTENTS_MAX;
		alloc.count = n;
		more = is_meta || done + n < count ? 0 : okv_stock_want(&client->stock, nr_granules);
		alloc.nr_more = n + more <= OKV_WIRE_EXTENTS_MAX ? more : 0;
		if (after) {
			alloc.flags |= OKV_WIRE_ALLOC_F_AFTER;
			alloc.after = *after;
		}
		ret = request_alloc(client, &alloc, out + done);
		if ((ret == -ENOSPC || is_away(ret)) && !is_meta &&
		    stock_take(client, nr_granules, n, out + done))
			ret = 0;
		if (!ret) {
			done += n;
			after = &out[done - 1];
		}
	}
	if (ret && done && request_list(client, OKV_WIRE_FREE, out, done < OKV_WIRE_EXTENTS_MAX ? done : OKV_WIRE_EXTENTS_MAX))
		client->is_doubtful = true;
	if (ret && done > OKV_WIRE_EXTENTS_MAX)
		client->is_doubtful = true;
	return ret;
}

static int daemon_alloc(struct omnikv_client *base, uint32_t nr_granules, uint32_t count,
			const struct omnikv_extent *after, uint32_t flags, struct omnikv_extent *out)
{
	struct daemon_client *client = daemon_client(base);
	struct okv_embedded_pool *pool = okv_embedded_pool(base->pool);
	uint64_t bytes = (uint64_t)nr_granules * pool->pool.granule_bytes;
	bool is_meta = flags & OMNIKV_ALLOC_F_META;
	uint32_t i, j;
	int ret;

	if (is_child(base->pool) || (is_meta && !client->base.is_manager))
		return -EPERM;
	ret = -OKV_FAILPOINT("pool.alloc");
	if (ret)
		return ret;
	if ((uint64_t)nr_granules * count > pool->map.nr_granules)
		return -ENOSPC;
	pthread_mutex_lock(&client->requests);
	pthread_mutex_lock(&pool->lock);
	ret = okv_holds_reserve(&client->base.holds, count);
	pthread_mutex_unlock(&pool->lock);
	if (!ret)
		ret = alloc_locked(client, nr_granules, count, after, is_meta, out);
	if (!ret && !is_meta) {
		pthread_mutex_lock(&pool->lock);
		/* Others may have used up what was reserved. */
		ret = okv_holds_reserve(&client->base.holds, count);
		if (!ret)
			mark_private_locked(client, out, count, true);
		else
			client->is_doubtful = true;
		pthread_mutex_unlock(&pool->lock);
	}
	pthread_mutex_unlock(&client->requests);
	if (ret)
		return ret;
	/* The daemon zeroes META alone. Neighbours go in one go. */
	for (i = 0; !is_meta && !(flags & OMNIKV_ALLOC_F_NO_ZERO) && i < count; i = j) {
		for (j = i + 1; j < count && out[j].granule == out[j - 1].granule + nr_granules;)
			j++;
		memset(omnikv_pool_addr(base->pool, &out[i]), 0, (j - i) * bytes);
	}
	return 0;
}

/* May the list be sealed, as far as can be seen here? @has_binds: some are bound in RW windows. */
static int check_seal_locked(struct daemon_client *client, const struct omnikv_extent *exts, uint32_t count,
			     bool *has_binds)
{
	struct okv_embedded_pool *pool = okv_embedded_pool(client->base.client.pool);
	const struct okv_hold *hold;
	uint32_t i;
	int ret;

	*has_binds = false;
	for (i = 0; i < count; i++) {
		ret = okv_extent_check(&pool->map, &exts[i], OKV_OP_SEAL, client->base.id, client->base.is_manager);
		if (ret)
			return ret;
	}
	for (i = 0; i < count; i++) {
		hold = okv_holds_find(&client->base.holds, (uint32_t)exts[i].granule);
		if (hold && hold->nr_ios)
			return -EBUSY;
		if (hold && hold->nr_binds)
			*has_binds = true;
	}
	return 0;
}

static int daemon_seal(struct omnikv_client *base, const struct omnikv_extent *exts, uint32_t count)
{
	struct daemon_client *client = daemon_client(base);
	struct okv_embedded_pool *pool = okv_embedded_pool(base->pool);
	bool has_binds;
	int ret;

	if (count > OKV_WIRE_EXTENTS_MAX)
		return -E2BIG;
	if (is_child(base->pool))
		return -EPERM;
	pthread_mutex_lock(&client->requests);
	compare_locked(client);
	/* Binds stay as they are until it is sealed. */
	pthread_mutex_lock(&client->base.windows_lock);
	pthread_mutex_lock(&pool->lock);
	ret = check_seal_locked(client, exts, count, &has_binds);
	if (!ret && has_binds)
		okv_windows_condemn_locked(&client->base, exts, count);
	if (!ret)
		offer_locked(client, exts, count);
	pthread_mutex_unlock(&pool->lock);
	if (!ret && has_binds)
		ret = okv_windows_execute_locked(&client->base);
	if (!ret)
		ret = request_list(client, OKV_WIRE_SEAL, exts, count);
	if (!ret)
		mark_private(client, exts, count, false);
	pthread_mutex_unlock(&client->base.windows_lock);
	pthread_mutex_unlock(&client->requests);
	return ret;
}

/*
 * While the daemon is away: ours no more, and to be used again where nothing refers to it. What was offered may be
 * in the catalog by now, which the next daemon recovers.
 */
static int free_away(struct daemon_client *client, const struct omnikv_extent *exts, uint32_t count, int error)
{
	struct okv_embedded_pool *pool = okv_embedded_pool(client->base.client.pool);
	struct okv_hold *hold;
	uint32_t i;
	int ret = 0;

	pthread_mutex_lock(&pool->lock);
	for (i = 0; i < count && !ret; i++) {
		hold = okv_holds_find(&client->base.holds, (uint32_t)exts[i].granule);
		if (!hold || !hold->is_private || hold->generation != exts[i].generation)
			ret = error;
	}
	for (i = 0; i < count && !ret; i++) {
		bool is_unused;

		hold = okv_holds_find(&client->base.holds, (uint32_t)exts[i].granule);
		is_unused = hold && hold->is_private && !hold->is_offered && !hold->nr_leases && !hold->nr_binds &&
			    !hold->nr_ios;
		mark_private_locked(client, &exts[i], 1, false);
		/* A request that got no reply may have freed it already. */
		if (is_unused && error == -ENOTCONN)
			okv_stock_put(&client->stock, &exts[i], true);
		client->is_doubtful = true;
	}
	pthread_mutex_unlock(&pool->lock);
	return ret;
}

/* Refused: what a request without a reply has taken from us is not ours any more. */
static void forget_gone(struct daemon_client *client, const struct omnikv_extent *exts, uint32_t count)
{
	uint32_t i;

	for (i = 0; i < count; i++)
		if (!is_private_there(client, &exts[i]))
			mark_private(client, &exts[i], 1, false);
}

static int daemon_free(struct omnikv_client *base, const struct omnikv_extent *exts, uint32_t count)
{
	struct daemon_client *client = daemon_client(base);
	int ret;

	if (count > OKV_WIRE_EXTENTS_MAX)
		return -E2BIG;
	if (is_child(base->pool))
		return -EPERM;
	pthread_mutex_lock(&client->requests);
	compare_locked(client);
	ret = request_list(client, OKV_WIRE_FREE, exts, count);
	if (!ret)
		mark_private(client, exts, count, false);
	else if (is_away(ret))
		ret = free_away(client, exts, count, ret);
	else
		forget_gone(client, exts, count);
	pthread_mutex_unlock(&client->requests);
	return ret;
}

/* ---- leases ----------------------------------------------------------------------------- */

/*
 * Is @op allowed on an extent that is counted already? It is counted, and that seen (okv_lease_fence()), before it is
 * looked at, so that who gives the extent up sees the count, or this sees that it was given up (lease.h).
 */
static int ref_check(const struct okv_embedded_client *client, const struct omnikv_extent *ext, enum okv_op op)
{
	const struct okv_embedded_pool *pool = okv_embedded_pool(client->client.pool);
	int ret = okv_extent_check(&pool->map, ext, op, client->id, client->is_manager);

	/* The state may be that of a later life, where the generation was read before. */
	if (!ret && __atomic_load_n(&pool->map.recs[ext->granule].generation, __ATOMIC_ACQUIRE) != ext->generation)
		ret = -ESTALE;
	return ret;
}

/* A lease or a transfer ends on each of the list, all of which have one. */
static void put_list_locked(struct okv_embedded_client *client, const struct omnikv_extent *exts, uint32_t count,
			    bool is_lease)
{
	struct okv_hold *hold;
	uint32_t i;

	for (i = 0; i < count; i++) {
		hold = okv_holds_find(&client->holds, (uint32_t)exts[i].granule);
		if (is_lease)
			hold->nr_leases--;
		else
			hold->nr_ios--;
		hold->is_marked = false;
		okv_lease_sub(&client->leases, (uint32_t)exts[i].granule);
		okv_holds_drop(&client->holds, hold);
	}
}

/* What is counted and what is looked at, of all of them side by side. */
static int prefetch_list(const struct okv_embedded_client *client, const struct omnikv_extent *exts, uint32_t count)
{
	const struct okv_extent_map *map = &okv_embedded_pool(client->client.pool)->map;

	for (uint32_t i = 0; i < count; i++) {
		if (exts[i].granule >= map->nr_granules)
			return -ESTALE;
		okv_lease_prefetch(&client->leases, (uint32_t)exts[i].granule);
		okv_prefetch(&map->recs[exts[i].granule]);
	}
	return 0;
}

static int get_list(struct omnikv_client *base, const struct omnikv_extent *exts, uint32_t count, enum okv_op op)
{
	struct okv_embedded_client *client = okv_embedded_client(base);
	struct okv_embedded_pool *pool = okv_embedded_pool(base->pool);
	struct okv_hold *hold;
	uint32_t i, k;
	int ret;

	if (is_child(base->pool))
		return -EPERM;
	ret = prefetch_list(client, exts, count);
	if (ret)
		return ret;
	pthread_mutex_lock(&pool->lock);
	ret = okv_holds_reserve(&client->holds, count);
	if (ret)
		goto out;
	for (i = 0; i < count; i++)
		okv_lease_add(&client->leases, (uint32_t)exts[i].granule);
	okv_lease_fence();
	/* Only what may be had is noted: an old name of a place must not take that of what is there now. */
	for (i = 0; i < count; i++) {
		hold = okv_holds_find(&client->holds, (uint32_t)exts[i].granule);
		ret = hold && hold->is_marked ? -EINVAL : ref_check(client, &exts[i], op);
		if (ret)
			break;
		hold = okv_holds_get(&client->holds, (uint32_t)exts[i].granule, exts[i].generation);
		hold->is_marked = true;
		if (op == OKV_OP_LEASE)
			hold->nr_leases++;
		else
			hold->nr_ios++;
	}
	okv_holds_mark(&client->holds, exts, i, false);
	if (ret) {
		for (k = i; k < count; k++)
			okv_lease_sub(&client->leases, (uint32_t)exts[k].granule);
		put_list_locked(client, exts, i, op == OKV_OP_LEASE);
	}
	if (!ret && op == OKV_OP_IO_GET)
		client->nr_ios += count;
out:
	pthread_mutex_unlock(&pool->lock);
	return ret;
}

static int daemon_lease(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count)
{
	return get_list(client, exts, count, OKV_OP_LEASE);
}

static int daemon_io_get(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count)
{
	int ret = -OKV_FAILPOINT("pool.io_get");

	return ret ? ret : get_list(client, exts, count, OKV_OP_IO_GET);
}

static int daemon_release(struct omnikv_client *base, const struct omnikv_extent *exts, uint32_t count)
{
	struct okv_embedded_client *client = okv_embedded_client(base);
	struct okv_embedded_pool *pool = okv_embedded_pool(base->pool);
	bool is_denied = false;
	struct okv_hold *hold;
	uint32_t i;
	int ret = 0;

	if (is_child(base->pool))
		return -EPERM;
	/* One that is outside is found below. */
	(void)prefetch_list(client, exts, count);
	pthread_mutex_lock(&pool->lock);
	for (i = 0; !ret && i < count; i++) {
		ret = okv_extent_check(&pool->map, &exts[i], OKV_OP_RELEASE, client->id, client->is_manager);
		hold = ret ? NULL : okv_holds_find(&client->holds, (uint32_t)exts[i].granule);
		if (hold && hold->is_marked)
			ret = -EINVAL;
		if (ret)
			break;
		if (!hold || !hold->nr_leases || hold->generation != exts[i].generation)
			is_denied = true;
		if (hold)
			hold->is_marked = true;
	}
	if (!ret && is_denied)
		ret = -EPERM;
	if (ret)
		okv_holds_mark(&client->holds, exts, i, false);
	else
		put_list_locked(client, exts, count, true);
	pthread_mutex_unlock(&pool->lock);
	return ret;
}

static void daemon_io_put(struct omnikv_client *base, const struct omnikv_extent *exts, uint32_t count)
{
	struct daemon_client *client = daemon_client(base);
	struct okv_embedded_pool *pool = okv_embedded_pool(base->pool);
	struct okv_hold *hold;
	bool is_over;
	uint32_t i;

	if (is_child(base->pool))
		return;
	pthread_mutex_lock(&pool->lock);
	for (i = 0; i < count; i++) {
		hold = okv_holds_find(&client->base.holds, (uint32_t)exts[i].granule);
		if (!hold || hold->generation != exts[i].generation || !hold->nr_ios)
			continue;
		put_list_locked(&client->base, &exts[i], 1, false);
		client->base.nr_ios--;
	}
	is_over = client->base.is_closed && !client->base.nr_ios;
	pthread_mutex_unlock(&pool->lock);
	if (is_over)
		client_free(client);
}

static int bind_get(struct okv_embedded_client *client, const struct omnikv_extent *ext, bool is_rw)
{
	const struct okv_hold *hold = okv_holds_find(&client->holds, (uint32_t)ext->granule);
	bool is_leased = hold && hold->generation == ext->generation && hold->nr_leases;
	const struct okv_embedded_pool *pool = okv_embedded_pool(client->client.pool);
	int ret;

	if (is_child(&pool->pool))
		return -EPERM;
	if (ext->granule >= pool->map.nr_granules)
		return -ESTALE;
	okv_lease_add(&client->leases, (uint32_t)ext->granule);
	okv_lease_fence();
	ret = ref_check(client, ext, is_rw ? OKV_OP_BIND_RW : OKV_OP_BIND_RO);
	/* What is not leased and may be bound to read is META. */
	if (!ret && !is_rw && !is_leased &&
	    okv_extent_check(&pool->map, ext, OKV_OP_LEASE, client->id, false) != -EPERM)
		ret = -EPERM;
	if (ret)
		okv_lease_sub(&client->leases, (uint32_t)ext->granule);
	return ret;
}

static void bind_put(struct okv_embedded_client *client, uint32_t granule)
{
	okv_lease_sub(&client->leases, granule);
}

static const struct okv_ref_ops daemon_refs = { bind_get, bind_put };

/* ---- questions -------------------------------------------------------------------------- */

/*
 * Its own PRIVATE ones only this process refers to, so nobody needs to be asked: rings look at each extent
 * that they store to. -EAGAIN: another one.
 */
static int query_own(struct daemon_client *client, const struct omnikv_extent *ext, struct omnikv_extent_info *info)
{
	struct okv_embedded_pool *pool = okv_embedded_pool(client->base.client.pool);
	const struct okv_hold *hold;
	struct okv_extent_view view;
	int ret = -EAGAIN;

	pthread_mutex_lock(&pool->lock);
	if (!okv_extent_check(&pool->map, ext, OKV_OP_QUERY, client->base.id, client->base.is_manager)) {
		okv_extent_view(&pool->map, ext->granule, &view);
		hold = okv_holds_find(&client->base.holds, (uint32_t)ext->granule);
		if (hold && hold->is_private && hold->generation == ext->generation &&
		    view.state == OMNIKV_EXTENT_PRIVATE && view.owner == client->base.id) {
			info->state = view.state;
			info->nr_refs = hold->nr_leases + hold->nr_ios + hold->nr_binds;
			info->bytes = (uint64_t)ext->nr_granules * pool->pool.granule_bytes;
			info->is_mine = true;
			ret = 0;
		}
	}
	pthread_mutex_unlock(&pool->lock);
	return ret;
}

static int daemon_query(struct omnikv_client *base, const struct omnikv_extent *ext, struct omnikv_extent_info *info)
{
	struct daemon_client *client = daemon_client(base);
	struct okv_wire_query query = { .extent = *ext };
	struct okv_wire_queried queried;
	struct okv_call call = {
		.type = OKV_WIRE_QUERY, .req = &query, .req_bytes = sizeof(query), .reply = &queried,
		.reply_max = sizeof(queried),
	};
	int ret = is_child(base->pool) ? -EPERM : query_own(client, ext, info);

	if (ret != -EAGAIN)
		return ret;
	ret = okv_conn_call(client->conn, &call);
	if (ret)
		return ret;
	info->state = queried.state;
	info->nr_refs = queried.nr_refs;
	info->bytes = queried.bytes;
	info->is_mine = queried.is_mine;
	return 0;
}

static int64_t daemon_list(struct omnikv_client *base, uint32_t states, uint64_t *from, struct omnikv_extent *exts,
			   uint32_t max)
{
	struct daemon_client *client = daemon_client(base);
	struct okv_wire_extents *page;
	uint32_t i, nr = 0;
	int ret;

	if (is_child(base->pool))
		return -EPERM;
	if (max > OKV_WIRE_EXTENTS_MAX)
		max = OKV_WIRE_EXTENTS_MAX;
	page = malloc(sizeof(*page) + max * sizeof(page->extents[0]));
	if (!page)
		return -ENOMEM;
	pthread_mutex_lock(&client->requests);
	ret = request_page(client, states, from, max, page);
	/* What lies in stock is nobody's yet. */
	for (i = 0; ret > 0 && i < page->count; i++)
		if (!okv_stock_has(&client->stock, &page->extents[i]))
			exts[nr++] = page->extents[i];
	pthread_mutex_unlock(&client->requests);
	free(page);
	return ret < 0 ? ret : (int64_t)nr;
}

/* ---- windows: those of an embedded pool --------------------------------------------------- */

static int daemon_window_create(struct omnikv_client *client, uint64_t bytes, uint32_t flags, struct omnikv_window **window)
{
	return is_child(client->pool) ? -EPERM : okv_embedded_window_create(client, bytes, flags, window);
}

/* A child has nothing of its binds, and another mapping may lie where they were. */
static void daemon_window_destroy(struct omnikv_window *window)
{
	if (!is_child(window->client->pool))
		okv_embedded_window_destroy(window);
}

static int daemon_window_bind(struct omnikv_window *window, const struct omnikv_bind *binds, uint32_t count, uint32_t *nr_bound)
{
	return is_child(window->client->pool) ? -EPERM : okv_embedded_window_bind(window, binds, count, nr_bound);
}

static int daemon_window_unbind(struct omnikv_window *window, uint64_t off, uint64_t bytes)
{
	return is_child(window->client->pool) ? -EPERM : okv_embedded_window_unbind(window, off, bytes);
}

const struct okv_provider okv_provider_daemon = {
	.name		= "daemon",
	.open		= daemon_open,
	.close		= daemon_close,
	.info		= daemon_info,
	.free_granules	= daemon_free_granules,
	.client_open	= daemon_client_open,
	.client_close	= daemon_client_close,
	.client_fd	= daemon_client_fd,
	.alloc		= daemon_alloc,
	.seal		= daemon_seal,
	.free		= daemon_free,
	.lease		= daemon_lease,
	.release	= daemon_release,
	.io_get		= daemon_io_get,
	.io_put		= daemon_io_put,
	.query		= daemon_query,
	.list		= daemon_list,
	.window_create	= daemon_window_create,
	.window_destroy	= daemon_window_destroy,
	.window_bind	= daemon_window_bind,
	.window_unbind	= daemon_window_unbind,
};

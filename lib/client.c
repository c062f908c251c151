// SPDX-License-Identifier: MIT
/*
 * Clients of an embedded pool, and the extents that they allocate, seal, lease and free.
 *
 * The extent map decides (core/extent.c); here is who holds what, and the lock around both.
 * Bytes are zeroed outside the lock, before anybody but the caller knows the extent.
 */
#include "embedded.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "failpoint.h"
#include "share.h"

static bool id_is_used(const struct okv_embedded_pool *pool, uint32_t id)
{
	const struct okv_embedded_client *other;

	for (other = pool->clients; other; other = other->next)
		if (other->id == id)
			return true;
	/* A process that lost its connection may still be there. */
	return pool->is_shared && okv_share_is_alive(pool, id);
}

/* Numbers in use that are passed over: somebody may lock all of them. */
#define ID_TRIES	65536u

/* A client's number: never 0 ("nobody"), and of no other client while it lives. 0: there is none to be found. */
static uint32_t new_id_locked(struct okv_embedded_pool *pool)
{
	uint32_t i;

	for (i = 0; i < ID_TRIES; i++) {
		if (!++pool->last_client_id)
			pool->last_client_id = 1;
		if (!id_is_used(pool, pool->last_client_id))
			return pool->last_client_id;
	}
	return 0;
}

int okv_embedded_client_new(struct okv_embedded_pool *pool, uint32_t flags, uint32_t id,
			    struct okv_embedded_client **out)
{
	struct okv_embedded_client *client;
	int ret = 0;

	client = calloc(1, sizeof(*client));
	if (!client)
		return -ENOMEM;
	client->client.pool = &pool->pool;
	client->leases_fd = -1;
	client->is_manager = flags & OMNIKV_CLIENT_F_MANAGER;
	pthread_mutex_init(&client->windows_lock, NULL);

	pthread_mutex_lock(&pool->lock);
	client->id = id;
	if (client->is_manager && pool->manager)
		ret = -EBUSY;
	else if (!id)
		ret = (client->id = new_id_locked(pool)) ? 0 : -EUSERS;
	if (ret) {
		pthread_mutex_unlock(&pool->lock);
		pthread_mutex_destroy(&client->windows_lock);
		free(client);
		return ret;
	}
	client->next = pool->clients;
	pool->clients = client;
	pool->nr_clients++;
	if (client->is_manager)
		pool->manager = client;
	pthread_mutex_unlock(&pool->lock);
	*out = client;
	return 0;
}

int okv_embedded_client_open(struct omnikv_pool *base, uint32_t flags, struct omnikv_client **out)
{
	struct okv_embedded_client *client;
	int ret;

	ret = okv_embedded_client_new(okv_embedded_pool(base), flags, 0, &client);
	if (!ret)
		*out = &client->client;
	return ret;
}

/* Out of the list and gone. Nothing holds it any more. */
void okv_embedded_client_free_locked(struct okv_embedded_pool *pool, struct okv_embedded_client *client)
{
	struct okv_embedded_client **link;

	for (link = &pool->clients; *link != client;)
		link = &(*link)->next;
	*link = client->next;
	okv_holds_fini(&client->holds);
	pthread_mutex_destroy(&client->windows_lock);
	free(client);
}

/* Leases end. What transfers hold stays counted until their io_put. */
static void end_leases_locked(struct okv_embedded_pool *pool, struct okv_embedded_client *client)
{
	uint32_t i;

	for (i = 0; client->holds.slots && i <= client->holds.mask; i++) {
		struct okv_hold *hold = &client->holds.slots[i];

		if (!hold->generation || !hold->nr_leases)
			continue;
		okv_extent_put(&pool->map, hold->granule, hold->nr_leases);
		hold->nr_leases = 0;
	}
}

static void end_private_locked(struct okv_embedded_pool *pool, struct okv_embedded_client *client)
{
	struct okv_extent_view view;
	uint32_t cursor = 0;

	while (client->nr_private && okv_extent_map_next(&pool->map, &cursor, &view)) {
		if (view.state != OMNIKV_EXTENT_PRIVATE || view.owner != client->id)
			continue;
		okv_extent_end(&pool->map, view.name.granule);
		client->nr_private--;
	}
}

void okv_embedded_client_close(struct omnikv_client *base)
{
	struct okv_embedded_client *client = okv_embedded_client(base);
	struct okv_embedded_pool *pool = okv_embedded_pool(base->pool);

	while (client->windows)
		okv_embedded_window_destroy((struct omnikv_window *)client->windows);
	okv_windows_fini(client);

	pthread_mutex_lock(&pool->lock);
	okv_share_forget_locked(pool, client);
	end_leases_locked(pool, client);
	end_private_locked(pool, client);
	client->is_closed = true;
	if (!client->is_over)
		pool->nr_clients--;
	if (pool->manager == client)
		pool->manager = NULL;
	if (!client->nr_ios)
		okv_embedded_client_free_locked(pool, client);
	pthread_mutex_unlock(&pool->lock);
}

void okv_embedded_clients_fini(struct okv_embedded_pool *pool)
{
	while (pool->clients) {
		struct okv_embedded_client *client = pool->clients;

		if (!client->is_closed) {
			client->nr_ios = 0;
			okv_embedded_client_close(&client->client);
		} else {
			okv_embedded_client_free_locked(pool, client);
		}
	}
}

int okv_embedded_alloc(struct omnikv_client *base, uint32_t nr_granules, uint32_t count,
		       const struct omnikv_extent *after, uint32_t flags, struct omnikv_extent *out)
{
	struct okv_embedded_client *client = okv_embedded_client(base);
	struct okv_embedded_pool *pool = okv_embedded_pool(base->pool);
	bool is_meta = flags & OMNIKV_ALLOC_F_META;
	uint64_t bytes = (uint64_t)nr_granules * pool->pool.granule_bytes;
	uint32_t i, j;
	int ret;

	if (is_meta && !client->is_manager)
		return -EPERM;
	ret = -OKV_FAILPOINT("pool.alloc");
	if (ret)
		return ret;

	pthread_mutex_lock(&pool->lock);
	ret = okv_extent_alloc(&pool->map, nr_granules, count, after, client->id, out);
	if (ret == -ENOSPC && okv_share_settle_locked(pool))
		ret = okv_extent_alloc(&pool->map, nr_granules, count, after, client->id, out);
	if (!ret)
		client->nr_private += count;
	pthread_mutex_unlock(&pool->lock);
	if (ret)
		return ret;

	/* Neighbours are zeroed in one go. */
	for (i = 0; !(flags & OMNIKV_ALLOC_F_NO_ZERO) && i < count; i = j) {
		for (j = i + 1; j < count && out[j].granule == out[j - 1].granule + nr_granules;)
			j++;
		memset(omnikv_pool_addr(base->pool, &out[i]), 0, (j - i) * bytes);
	}
	if (!is_meta)
		return 0;

	/* Only zeroed memory becomes META: it outlives a kill, and old entries must not return in it. */
	pthread_mutex_lock(&pool->lock);
	for (i = 0; i < count; i++)
		okv_extent_publish_meta(&pool->map, out[i].granule);
	client->nr_private -= count;
	pthread_mutex_unlock(&pool->lock);
	return 0;
}

/* May the list be sealed? Then it is marked. @has_binds: some are bound in the client's RW windows. */
static int check_seal_locked(struct okv_embedded_pool *pool, struct okv_embedded_client *client,
			     const struct omnikv_extent *exts, uint32_t count, bool *has_binds)
{
	const struct okv_hold *hold;
	uint32_t i;
	int ret;

	*has_binds = false;
	ret = okv_extent_check_list(&pool->map, exts, count, OKV_OP_SEAL, client->id, client->is_manager);
	if (ret || !client->holds.nr)
		return ret;
	for (i = 0; i < count; i++) {
		hold = okv_holds_find(&client->holds, (uint32_t)exts[i].granule);
		if (hold && hold->nr_ios) {
			okv_extent_unmark_list(&pool->map, exts, count);
			return -EBUSY;
		}
		if (hold && hold->nr_binds)
			*has_binds = true;
	}
	return 0;
}

int okv_embedded_seal(struct omnikv_client *base, const struct omnikv_extent *exts, uint32_t count)
{
	struct okv_embedded_client *client = okv_embedded_client(base);
	struct okv_embedded_pool *pool = okv_embedded_pool(base->pool);
	bool has_binds;
	uint32_t i;
	int ret;

	/* Keeps the client's own binds as they are while the pool's lock is dropped below. */
	pthread_mutex_lock(&client->windows_lock);
	pthread_mutex_lock(&pool->lock);
	ret = check_seal_locked(pool, client, exts, count, &has_binds);
	if (!ret && has_binds) {
		okv_windows_condemn_locked(client, exts, count);
		okv_extent_unmark_list(&pool->map, exts, count);
		pthread_mutex_unlock(&pool->lock);
		ret = okv_windows_execute_locked(client);
		pthread_mutex_lock(&pool->lock);
		if (!ret)
			ret = check_seal_locked(pool, client, exts, count, &has_binds);
	}
	if (!ret) {
		okv_extent_unmark_list(&pool->map, exts, count);
		for (i = 0; i < count; i++)
			okv_extent_seal(&pool->map, exts[i].granule);
		client->nr_private -= count;
	}
	pthread_mutex_unlock(&pool->lock);
	pthread_mutex_unlock(&client->windows_lock);
	return ret;
}

int okv_embedded_free(struct omnikv_client *base, const struct omnikv_extent *exts, uint32_t count)
{
	struct okv_embedded_client *client = okv_embedded_client(base);
	struct okv_embedded_pool *pool = okv_embedded_pool(base->pool);
	uint64_t nr_private;
	int ret;

	pthread_mutex_lock(&pool->lock);
	nr_private = pool->map.nr_extents[OMNIKV_EXTENT_PRIVATE];
	if (pool->nr_remotes)
		ret = okv_share_free_locked(pool, client, exts, count);
	else
		ret = okv_extent_free_list(&pool->map, exts, count, client->id, client->is_manager);
	/* Only an owner frees PRIVATE extents, so all that went were this client's. */
	client->nr_private -= nr_private - pool->map.nr_extents[OMNIKV_EXTENT_PRIVATE];
	pthread_mutex_unlock(&pool->lock);
	return ret;
}

/* The state allows RO to anybody; the right to read is a lease. META needs none. */
static int bind_get(struct okv_embedded_client *client, const struct omnikv_extent *ext, bool is_rw)
{
	struct okv_embedded_pool *pool = okv_embedded_pool(client->client.pool);
	const struct okv_hold *hold;
	struct okv_extent_view view;
	int ret;

	ret = okv_extent_check(&pool->map, ext, is_rw ? OKV_OP_BIND_RW : OKV_OP_BIND_RO, client->id,
			       client->is_manager);
	if (ret)
		return ret;
	if (!is_rw) {
		okv_extent_view(&pool->map, ext->granule, &view);
		hold = okv_holds_find(&client->holds, (uint32_t)ext->granule);
		if (view.state != OMNIKV_EXTENT_META && (!hold || !hold->nr_leases))
			return -EPERM;
	}
	okv_extent_get(&pool->map, ext->granule, 1);
	return 0;
}

static void bind_put(struct okv_embedded_client *client, uint32_t granule)
{
	okv_extent_put(&okv_embedded_pool(client->client.pool)->map, granule, 1);
}

const struct okv_ref_ops okv_embedded_refs = { bind_get, bind_put };

/* A lease or a transfer begins on each of the list. */
static int get_list(struct omnikv_client *base, const struct omnikv_extent *exts, uint32_t count, enum okv_op op)
{
	struct okv_embedded_client *client = okv_embedded_client(base);
	struct okv_embedded_pool *pool = okv_embedded_pool(base->pool);
	uint32_t i;
	int ret;

	pthread_mutex_lock(&pool->lock);
	ret = okv_holds_reserve(&client->holds, count);
	if (!ret)
		ret = okv_extent_check_list(&pool->map, exts, count, op, client->id, client->is_manager);
	if (ret)
		goto out;
	okv_extent_unmark_list(&pool->map, exts, count);
	for (i = 0; i < count; i++) {
		struct okv_hold *hold = okv_holds_get(&client->holds, (uint32_t)exts[i].granule,
						      exts[i].generation);

		if (op == OKV_OP_LEASE) {
			hold->nr_leases++;
		} else {
			hold->nr_ios++;
			client->nr_ios++;
		}
		okv_extent_get(&pool->map, exts[i].granule, 1);
	}
out:
	pthread_mutex_unlock(&pool->lock);
	return ret;
}

int okv_embedded_lease(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count)
{
	return get_list(client, exts, count, OKV_OP_LEASE);
}

int okv_embedded_io_get(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count)
{
	int ret = -OKV_FAILPOINT("pool.io_get");

	return ret ? ret : get_list(client, exts, count, OKV_OP_IO_GET);
}

int okv_embedded_release(struct omnikv_client *base, const struct omnikv_extent *exts, uint32_t count)
{
	struct okv_embedded_client *client = okv_embedded_client(base);
	struct okv_embedded_pool *pool = okv_embedded_pool(base->pool);
	struct okv_hold *hold;
	uint32_t i;
	int ret;

	pthread_mutex_lock(&pool->lock);
	ret = okv_extent_check_list(&pool->map, exts, count, OKV_OP_RELEASE, client->id, client->is_manager);
	if (ret)
		goto out;
	okv_extent_unmark_list(&pool->map, exts, count);
	for (i = 0; i < count && !ret; i++) {
		hold = okv_holds_find(&client->holds, (uint32_t)exts[i].granule);
		if (!hold || !hold->nr_leases)
			ret = -EPERM;
	}
	for (i = 0; i < count && !ret; i++) {
		hold = okv_holds_find(&client->holds, (uint32_t)exts[i].granule);
		hold->nr_leases--;
		okv_holds_drop(&client->holds, hold);
		okv_extent_put(&pool->map, exts[i].granule, 1);
	}
out:
	pthread_mutex_unlock(&pool->lock);
	return ret;
}

void okv_embedded_io_put(struct omnikv_client *base, const struct omnikv_extent *exts, uint32_t count)
{
	struct okv_embedded_client *client = okv_embedded_client(base);
	struct okv_embedded_pool *pool = okv_embedded_pool(base->pool);
	struct okv_hold *hold;
	uint32_t i;

	pthread_mutex_lock(&pool->lock);
	for (i = 0; i < count; i++) {
		if (exts[i].granule >= pool->map.nr_granules)
			continue;
		hold = okv_holds_find(&client->holds, (uint32_t)exts[i].granule);
		if (!hold || hold->generation != exts[i].generation || !hold->nr_ios)
			continue;
		hold->nr_ios--;
		client->nr_ios--;
		okv_holds_drop(&client->holds, hold);
		okv_extent_put(&pool->map, exts[i].granule, 1);
	}
	if (client->is_closed && !client->nr_ios)
		okv_embedded_client_free_locked(pool, client);
	pthread_mutex_unlock(&pool->lock);
}

int okv_embedded_query(struct omnikv_client *base, const struct omnikv_extent *ext,
		       struct omnikv_extent_info *info)
{
	struct okv_embedded_client *client = okv_embedded_client(base);
	struct okv_embedded_pool *pool = okv_embedded_pool(base->pool);
	struct okv_extent_view view;
	int ret;

	pthread_mutex_lock(&pool->lock);
	ret = okv_extent_check(&pool->map, ext, OKV_OP_QUERY, client->id, client->is_manager);
	if (!ret) {
		okv_extent_view(&pool->map, ext->granule, &view);
		view.nr_refs += okv_share_count_locked(pool, (uint32_t)ext->granule);
	}
	pthread_mutex_unlock(&pool->lock);
	if (ret)
		return ret;
	info->state = view.state;
	info->nr_refs = view.nr_refs;
	info->bytes = (uint64_t)view.name.nr_granules * pool->pool.granule_bytes;
	info->is_mine = view.state == OMNIKV_EXTENT_PRIVATE && view.owner == client->id;
	return 0;
}

int64_t okv_embedded_list(struct omnikv_client *base, uint32_t states, uint64_t *from,
			  struct omnikv_extent *exts, uint32_t max)
{
	struct okv_embedded_client *client = okv_embedded_client(base);
	struct okv_embedded_pool *pool = okv_embedded_pool(base->pool);
	struct okv_extent_view view;
	uint32_t cursor, nr = 0;
	bool is_more = true;

	if (states != 1u << OMNIKV_EXTENT_PRIVATE && !client->is_manager)
		return -EPERM;
	pthread_mutex_lock(&pool->lock);
	is_more = *from < pool->map.nr_granules;
	cursor = is_more ? (uint32_t)*from : 0;
	while (is_more && nr < max) {
		is_more = okv_extent_map_next(&pool->map, &cursor, &view);
		if (!is_more || !(states >> view.state & 1) ||
		    (view.state == OMNIKV_EXTENT_PRIVATE && view.owner != client->id))
			continue;
		exts[nr++] = view.name;
	}
	pthread_mutex_unlock(&pool->lock);
	*from = is_more ? cursor : UINT64_MAX;
	return nr;
}

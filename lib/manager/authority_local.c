// SPDX-License-Identifier: MIT
/*
 * An authority in the same process: a manager of the pool, asked directly by managers over other
 * clients. Also how an attached manager is made. Any thread.
 */
#include "manager/authority.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "manager/handover.h"
#include "manager/import.h"
#include "manager/retain.h"
#include "manager/session.h"
#include "provider.h"

struct local {
	struct okv_authority	auth;
	struct omnikv_manager	*manager;
	_Atomic bool		is_gone;
};

static struct local *local_of(struct okv_authority *auth)
{
	return (struct local *)auth;
}

static bool is_gone(struct okv_authority *auth)
{
	return atomic_load(&local_of(auth)->is_gone);
}

static int local_space_open(struct okv_authority *auth, const struct omnikv_namespace *ns,
			    const struct omnikv_plan *plan, void **remote, struct omnikv_error *notice)
{
	struct omnikv_space *space;
	int ret;

	if (is_gone(auth))
		return -ENOTCONN;
	ret = omnikv_space_open(local_of(auth)->manager, ns, plan, &space, notice);
	if (!ret)
		*remote = space;
	return ret;
}

static void local_space_close(struct okv_authority *auth, void *remote)
{
	(void)auth;
	omnikv_space_close(remote);
}

static int64_t local_lookup(struct okv_authority *auth, void *remote, const struct omnikv_key *keys, size_t nr_keys)
{
	return is_gone(auth) ? -ENOTCONN : omnikv_lookup(remote, keys, nr_keys);
}

static void local_find(struct okv_authority *auth, void *remote, struct okv_ask *asks, uint32_t nr, uint32_t flags,
		       struct okv_found *found)
{
	found->nr = 0;
	for (uint32_t i = 0; i < nr; i++)
		asks[i].res = is_gone(auth) ? -ENOTCONN : okv_session_find(remote, auth->client, &asks[i], flags, found);
}

static int local_publish(struct okv_authority *auth, void *remote, const struct okv_publication *pub)
{
	return is_gone(auth) ? -ENOTCONN : okv_session_publish(remote, auth->client, false, pub);
}

static int local_attach(struct okv_authority *auth, void *remote, const struct omnikv_key *key, uint32_t group,
			const struct omnikv_extent *extent, uint32_t crc, uint32_t epoch)
{
	if (is_gone(auth))
		return -ENOTCONN;
	return okv_session_attach(remote, auth->client, false, key, group, extent, crc, epoch);
}

static bool local_is_idle(struct okv_authority *auth, const struct omnikv_extent *extent)
{
	struct omnikv_extent_info info = { .size = sizeof(info) };

	return !omnikv_extent_query(auth->client, extent, &info) && !info.nr_refs;
}

static void local_use(struct okv_authority *auth, void *remote, const struct okv_use *uses, uint32_t nr)
{
	for (uint32_t i = 0; i < nr && !is_gone(auth); i++)
		okv_session_use(remote, &uses[i]);
}

static void local_distrust(struct okv_authority *auth, void *remote, const struct omnikv_key *key)
{
	if (!is_gone(auth))
		okv_session_distrust(remote, key);
}

static int local_make_room(struct okv_authority *auth, uint64_t nr_granules)
{
	if (is_gone(auth))
		return -ENOTCONN;
	return okv_manager_have_free(local_of(auth)->manager, nr_granules) ? 0 : -ENOSPC;
}

static int local_can_room(struct okv_authority *auth, uint64_t nr_granules)
{
	struct omnikv_manager *manager = local_of(auth)->manager;
	struct okv_visit visit;
	int ret;

	if (is_gone(auth))
		return okv_pool_free_granules(manager->pool) >= nr_granules;
	okv_visit_init(&visit, manager);
	okv_visit_enter(&visit);
	ret = okv_can_make_room(manager, nr_granules);
	okv_visit_leave(&visit);
	return ret;
}

static int64_t local_reset(struct okv_authority *auth)
{
	return is_gone(auth) ? -ENOTCONN : omnikv_manager_reset(local_of(auth)->manager);
}

static int local_stats(struct okv_authority *auth, struct omnikv_manager_stats *stats)
{
	return is_gone(auth) ? -ENOTCONN : omnikv_manager_stats(local_of(auth)->manager, stats);
}

static int64_t local_prefetch(struct okv_authority *auth, void *remote, const struct omnikv_key *keys, size_t nr_keys)
{
	return is_gone(auth) ? -ENOTCONN : omnikv_space_prefetch(remote, keys, nr_keys);
}

static int local_retain(struct okv_authority *auth, void *remote, const struct omnikv_key *key, uint32_t position,
			const struct omnikv_retention *how)
{
	return is_gone(auth) ? -ENOTCONN : okv_session_retain(remote, (uintptr_t)auth->client, key, position, how);
}

static int local_give(struct okv_authority *auth, void *remote, const struct omnikv_key *key, uint32_t position,
		      uint32_t timeout_ms, struct omnikv_ticket *ticket)
{
	return is_gone(auth) ? -ENOTCONN : okv_handover_give(remote, key, position, timeout_ms, ticket);
}

static int local_take(struct okv_authority *auth, void *remote, const struct omnikv_ticket *ticket, uint64_t first,
		      struct okv_handed *handed)
{
	return is_gone(auth) ? -ENOTCONN : okv_handover_take(remote, ticket, first, handed);
}

static int local_take_end(struct okv_authority *auth, void *remote, const struct omnikv_ticket *ticket)
{
	return is_gone(auth) ? -ENOTCONN : okv_handover_end(remote, ticket);
}

static int local_note_tokens(struct okv_authority *auth, void *remote, const struct omnikv_key *keys, size_t nr_keys,
			     uint32_t block_tokens, const uint32_t *tokens)
{
	(void)block_tokens;
	return is_gone(auth) ? -ENOTCONN : omnikv_space_note_tokens(remote, keys, nr_keys, tokens);
}

static int64_t local_epoch(struct okv_authority *auth)
{
	return is_gone(auth) ? -ENOTCONN : okv_manager_epoch_up(local_of(auth)->manager);
}

static uint64_t local_epoch_now(struct okv_authority *auth, void *remote, uint64_t known)
{
	struct okv_visit visit;
	uint64_t epoch;

	(void)remote;
	if (is_gone(auth))
		return known;
	okv_visit_init(&visit, local_of(auth)->manager);
	okv_visit_enter(&visit);
	epoch = okv_manager_epoch(visit.manager);
	okv_visit_leave(&visit);
	return epoch;
}

static void local_destroy(struct okv_authority *auth)
{
	okv_retain_end_owner(local_of(auth)->manager, (uintptr_t)auth->client);
	free(auth);
}

static const struct okv_authority_ops local_ops = {
	.space_open	= local_space_open,
	.space_close	= local_space_close,
	.lookup		= local_lookup,
	.find		= local_find,
	.publish	= local_publish,
	.attach		= local_attach,
	.is_idle	= local_is_idle,
	.use		= local_use,
	.distrust	= local_distrust,
	.make_room	= local_make_room,
	.can_room	= local_can_room,
	.reset		= local_reset,
	.stats		= local_stats,
	.prefetch	= local_prefetch,
	.retain		= local_retain,
	.give		= local_give,
	.take		= local_take,
	.take_end	= local_take_end,
	.note_tokens	= local_note_tokens,
	.epoch		= local_epoch,
	.epoch_now	= local_epoch_now,
	.destroy	= local_destroy,
};

int okv_authority_local(struct omnikv_manager *manager, struct omnikv_client *client, struct okv_authority **auth)
{
	struct local *local = calloc(1, sizeof(*local));

	if (!local)
		return -ENOMEM;
	local->auth = (struct okv_authority){ .ops = &local_ops, .client = client };
	local->manager = manager;
	atomic_init(&local->is_gone, false);
	*auth = &local->auth;
	return 0;
}

void okv_authority_local_set_gone(struct okv_authority *auth, bool is_gone)
{
	atomic_store(&local_of(auth)->is_gone, is_gone);
}

int okv_manager_attach_to(struct okv_authority *auth, struct omnikv_manager **out)
{
	struct omnikv_manager *manager;
	int ret = -EBUSY;

	if (atomic_exchange(&auth->client->is_managed, true))
		goto err_auth;
	ret = okv_manager_new(auth->client, &manager);
	if (ret)
		goto err_client;
	ret = okv_imports_create(auth, &manager->imports);
	if (ret)
		goto err_manager;
	*out = manager;
	return 0;

err_manager:
	okv_manager_free(manager);
err_client:
	atomic_store(&auth->client->is_managed, false);
err_auth:
	auth->ops->destroy(auth);
	return ret;
}

// SPDX-License-Identifier: MIT
/*
 * The public pool, client and extent calls: what can be checked without state is checked here,
 * the rest is the provider's (provider.h). Any thread.
 */
#include "provider.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "error.h"
#include "option.h"

/* "SIZE" or "SIZE:REST"; @rest is NULL where there is no colon. */
static int spec_size(const char *text, const char *size, uint64_t *bytes, const char **rest,
		     struct omnikv_error *err)
{
	const char *colon = strchr(size, ':');
	size_t len = colon ? (size_t)(colon - size) : strlen(size);
	char copy[64];

	if (len >= sizeof(copy))
		return okv_error_set(err, -EINVAL, "pool \"%.64s\": the size is too long", text);
	memcpy(copy, size, len);
	copy[len] = '\0';
	*rest = colon ? colon + 1 : NULL;
	return omnikv_size_parse(copy, bytes, err);
}

static int spec_embedded(const char *text, const char *size, struct okv_pool_spec *spec,
			 struct omnikv_error *err)
{
	int ret = spec_size(text, size, &spec->bytes, &spec->name, err);

	if (ret)
		return ret;
	if (spec->name && !*spec->name)
		return okv_error_set(err, -EINVAL, "pool \"%.64s\": no file after the last colon", text);
	spec->kind = OKV_PROVIDER_EMBEDDED;
	return 0;
}

static int check_name(const char *text, const char *name, struct omnikv_error *err)
{
	static const char allowed[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
	size_t len = strlen(name);

	if (len && len <= OMNIKV_NAME_MAX && strspn(name, allowed) == len)
		return 0;
	return okv_error_set(err, -EINVAL,
			     "pool \"%.64s\": a name is 1 to %d of the characters A-Z a-z 0-9 . _ -", text,
			     OMNIKV_NAME_MAX);
}

static int spec_kmod(const char *text, const char *name, struct okv_pool_spec *spec,
		     struct omnikv_error *err)
{
	spec->kind = OKV_PROVIDER_KMOD;
	spec->name = name;
	return check_name(text, name, err);
}

static int spec_auto(const char *text, const char *size, struct okv_pool_spec *spec, struct omnikv_error *err)
{
	int ret = spec_size(text, size, &spec->bytes, &spec->name, err);

	if (ret)
		return ret;
	if (!spec->bytes)
		return okv_error_set(err, -EINVAL, "pool \"%.64s\": of no size", text);
	spec->kind = OKV_PROVIDER_AUTO;
	return spec->name ? check_name(text, spec->name, err) : 0;
}

static int spec_daemon(const char *text, const char *path, struct okv_pool_spec *spec, struct omnikv_error *err)
{
	if (path && !*path)
		return okv_error_set(err, -EINVAL, "pool \"%.64s\": no socket after the colon", text);
	spec->kind = OKV_PROVIDER_DAEMON;
	spec->name = path;
	return 0;
}

int okv_pool_spec_parse(const char *text, struct okv_pool_spec *spec, struct omnikv_error *err)
{
	struct okv_pool_spec parsed = { 0 };
	int ret;

	if (!text)
		return okv_error_set(err, -EINVAL, "pool: NULL");
	if (!strncmp(text, "kmod:", 5))
		ret = spec_kmod(text, text + 5, &parsed, err);
	else if (!strncmp(text, "embedded:", 9))
		ret = spec_embedded(text, text + 9, &parsed, err);
	else if (!strncmp(text, "auto:", 5))
		ret = spec_auto(text, text + 5, &parsed, err);
	else if (!strcmp(text, "daemon") || !strncmp(text, "daemon:", 7))
		ret = spec_daemon(text, text[6] ? text + 7 : NULL, &parsed, err);
	else if (strchr(text, ':'))
		ret = okv_error_set(err, -EINVAL,
				    "pool \"%.64s\": write SIZE, embedded:SIZE[:FILE], kmod:NAME, auto:SIZE[:NAME] or daemon[:SOCKET]",
				    text);
	else
		ret = spec_embedded(text, text, &parsed, err);
	if (!ret)
		*spec = parsed;
	return ret;
}

/* The one notice of an opening: why it is not the module's pool, and what the other provider says. */
struct auto_notice {
	const struct omnikv_pool_config	*config;
	struct omnikv_error		why;
	bool				is_told;
};

static void auto_notice(void *opaque, const char *line)
{
	struct auto_notice *notice = opaque;
	char text[2 * sizeof(notice->why.text) + 512];

	notice->is_told = true;
	snprintf(text, sizeof(text), "the pool is memory of this process: %s%s%s", notice->why.text,
		 line ? "; " : "", line ? line : "");
	notice->config->notice(notice->config->opaque, text);
}

static void auto_progress(void *opaque, uint64_t done_bytes, uint64_t total_bytes)
{
	struct auto_notice *notice = opaque;

	notice->config->progress(notice->config->opaque, done_bytes, total_bytes);
}

/*
 * The module where it is there and lets this user make pools. What it refuses for another reason
 * (a limit, memory) is an error: memory of this process would pass that limit by.
 */
static int open_auto(struct okv_pool_spec *spec, const struct omnikv_pool_config *config,
		     struct omnikv_pool **pool, struct omnikv_error *err)
{
	struct auto_notice notice = { .config = config };
	struct omnikv_pool_config ours = *config;
	int ret;

	ret = okv_provider_kmod.open(spec, config, pool, &notice.why);
	if (ret != -EOPNOTSUPP && ret != -EPERM)
		return ret ? okv_error_set(err, ret, "%s", notice.why.text) : 0;
	spec->name = NULL;
	ours.opaque = &notice;
	ours.notice = config->notice ? auto_notice : NULL;
	ours.progress = config->progress ? auto_progress : NULL;
	ret = okv_provider_embedded.open(spec, &ours, pool, err);
	if (!ret && ours.notice && !notice.is_told)
		auto_notice(&notice, NULL);
	return ret;
}

int omnikv_pool_open(const char *spec_text, const struct omnikv_pool_config *config,
		     struct omnikv_pool **pool, struct omnikv_error *err)
{
	struct omnikv_pool_config full;
	struct okv_pool_spec spec;
	int ret;

	if (err)
		err->text[0] = '\0';
	if (!pool)
		return okv_error_set(err, -EINVAL, "pool: no place for the result");
	ret = okv_option_copy(&full, sizeof(full), config);
	if (ret)
		return okv_error_set(err, ret, "pool: struct omnikv_pool_config is of another size");
	if (full.flags & ~OMNIKV_POOL_F_ALL)
		return okv_error_set(err, -EINVAL, "pool: unknown flag in 0x%x", full.flags);
	if (full.reserved)
		return okv_error_set(err, -EINVAL, "pool: reserved word is not zero");
	if (full.granule_bytes % 4096)
		return okv_error_set(err, -EINVAL, "pool: granule of %u bytes; it must be a multiple of 4096",
				     full.granule_bytes);
	ret = okv_pool_spec_parse(spec_text, &spec, err);
	if (ret)
		return ret;

	if (spec.kind == OKV_PROVIDER_AUTO)
		return open_auto(&spec, &full, pool, err);
	if (spec.kind == OKV_PROVIDER_DAEMON)
		return okv_provider_daemon.open(&spec, &full, pool, err);
	if (spec.kind == OKV_PROVIDER_KMOD)
		return okv_provider_kmod.open(&spec, &full, pool, err);
	return okv_provider_embedded.open(&spec, &full, pool, err);
}

void omnikv_pool_close(struct omnikv_pool *pool)
{
	if (pool)
		pool->provider->close(pool);
}

int omnikv_pool_info(struct omnikv_pool *pool, struct omnikv_pool_info *info)
{
	struct omnikv_pool_info full = { .size = sizeof(full) };
	int ret;

	if (!pool || !info)
		return -EINVAL;
	ret = okv_option_check(info, sizeof(full));
	if (ret)
		return ret;
	ret = pool->provider->info(pool, &full);
	if (ret)
		return ret;
	okv_option_return(info, &full, sizeof(full));
	return 0;
}

uint64_t okv_pool_free_granules(struct omnikv_pool *pool)
{
	return pool->provider->free_granules(pool);
}

int okv_client_fd(const struct omnikv_client *client)
{
	const struct okv_provider *provider = client->pool->provider;

	return provider->client_fd ? provider->client_fd(client) : -1;
}

void *omnikv_pool_base(const struct omnikv_pool *pool)
{
	return pool->base;
}

uint32_t omnikv_pool_granule_bytes(const struct omnikv_pool *pool)
{
	return pool->granule_bytes;
}

void *omnikv_pool_addr(const struct omnikv_pool *pool, const struct omnikv_extent *ext)
{
	return pool->base + ext->granule * pool->granule_bytes;
}

int omnikv_client_open(struct omnikv_pool *pool, uint32_t flags, struct omnikv_client **client)
{
	if (!pool || !client || (flags & ~OMNIKV_CLIENT_F_ALL))
		return -EINVAL;
	return pool->provider->client_open(pool, flags, client);
}

void omnikv_client_close(struct omnikv_client *client)
{
	if (client)
		client->pool->provider->client_close(client);
}

struct omnikv_pool *omnikv_client_pool(const struct omnikv_client *client)
{
	return client->pool;
}

#define ROOM_TRIES	8u

int omnikv_extent_alloc(struct omnikv_client *client, uint32_t nr_granules, uint32_t count,
			const struct omnikv_extent *after, uint32_t flags, struct omnikv_extent *out)
{
	int ret;

	if (!client || !out || !nr_granules || !count || (flags & ~OMNIKV_ALLOC_F_ALL))
		return -EINVAL;
	ret = client->pool->provider->alloc(client, nr_granules, count, after, flags, out);
	/* Others may have taken it in between. */
	for (uint32_t i = 0; ret == -ENOSPC && client->make_room && i < ROOM_TRIES; i++) {
		if (client->make_room(client->room_opaque, nr_granules, count))
			break;
		ret = client->pool->provider->alloc(client, nr_granules, count, after, flags, out);
	}
	return ret;
}

/* An empty list is nothing to do; a list that is not there is a mistake. */
static int check_list(const struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count)
{
	return !client || (count && !exts) ? -EINVAL : 0;
}

#define LIST_CALL(verb)									\
int omnikv_extent_##verb(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count) \
{											\
	int ret = check_list(client, exts, count);					\
											\
	if (ret || !count)								\
		return ret;								\
	return client->pool->provider->verb(client, exts, count);			\
}

LIST_CALL(seal)
LIST_CALL(free)
LIST_CALL(lease)
LIST_CALL(release)
LIST_CALL(io_get)

void omnikv_extent_io_put(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count)
{
	if (!check_list(client, exts, count) && count)
		client->pool->provider->io_put(client, exts, count);
}

int64_t omnikv_extent_list(struct omnikv_client *client, uint32_t states, uint64_t *from,
			   struct omnikv_extent *exts, uint32_t max)
{
	const uint32_t known = 1u << OMNIKV_EXTENT_PRIVATE | 1u << OMNIKV_EXTENT_SEALED | 1u << OMNIKV_EXTENT_META;

	if (!client || !from || !exts || !max || !states || (states & ~known))
		return -EINVAL;
	return client->pool->provider->list(client, states, from, exts, max);
}

int omnikv_extent_query(struct omnikv_client *client, const struct omnikv_extent *ext,
			struct omnikv_extent_info *info)
{
	struct omnikv_extent_info full = { .size = sizeof(full) };
	int ret;

	if (!client || !ext || !info)
		return -EINVAL;
	ret = okv_option_check(info, sizeof(full));
	if (ret)
		return ret;
	ret = client->pool->provider->query(client, ext, &full);
	if (ret)
		return ret;
	okv_option_return(info, &full, sizeof(full));
	return 0;
}

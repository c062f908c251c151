// SPDX-License-Identifier: GPL-2.0-only
/*
 * A small world for tests of the manager: see kv_world.h. Any thread, each with its own
 * sequences and stories.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "manager/authority.h"
#include "tests/harness/kv_world.h"

void kv_fail(const char *what, const char *file, int line)
{
	printf("# %s:%d: %s\n", file, line, what);
	fflush(stdout);
	abort();
}

static struct omnikv_group *add_group(struct omnikv_layout *layout, enum omnikv_group_kind kind, uint32_t nr_layers,
				      uint32_t tokens_per_entry)
{
	struct omnikv_group *group = &layout->groups[layout->nr_groups++];

	group->kind = kind;
	group->nr_layers = nr_layers;
	for (uint32_t i = 0; i < OMNIKV_LAYERS_MAX; i++)
		group->alias_of[i] = -1;
	for (uint32_t i = 0; i < nr_layers; i++)
		group->layers[i] = i;
	group->tokens_per_entry = tokens_per_entry;
	group->reuse = tokens_per_entry ? OMNIKV_REUSE_PREFIX : OMNIKV_REUSE_EXACT;
	group->rollback = tokens_per_entry ? OMNIKV_ROLLBACK_TRUNCATE : OMNIKV_ROLLBACK_SNAPSHOT;
	return group;
}

static void add_plane(struct omnikv_group *group, enum omnikv_plane_role role, uint32_t elems)
{
	group->planes[group->nr_planes++] = (struct omnikv_plane){
		.role = role, .dtype = OMNIKV_DTYPE_U8, .heads = 1, .elems = elems,
	};
}

void kv_layout(struct omnikv_layout *layout, enum kv_shape shape)
{
	struct omnikv_group *group;

	memset(layout, 0, sizeof(*layout));
	strcpy(layout->name, "world");
	layout->nr_layers = 3;
	group = add_group(layout, OMNIKV_GROUP_FULL, 2, 1);
	add_plane(group, OMNIKV_PLANE_K, 24);
	add_plane(group, OMNIKV_PLANE_V, 40);
	if (shape == KV_SHAPE_MIXED) {
		group = add_group(layout, OMNIKV_GROUP_INDEX, 3, 1);
		add_plane(group, OMNIKV_PLANE_INDEX, 9);
		group = add_group(layout, OMNIKV_GROUP_COMPRESSED, 1, 4);
		add_plane(group, OMNIKV_PLANE_LATENT, 100);
	}
	if (shape == KV_SHAPE_HYBRID) {
		group = add_group(layout, OMNIKV_GROUP_RECURRENT, 2, 0);
		add_plane(group, OMNIKV_PLANE_STATE, 3000);
	}
	for (uint32_t g = 0; g < layout->nr_groups; g++)
		layout->groups[g].atomic_with = ((1u << layout->nr_groups) - 1u) & ~(1u << g);
}

void kv_world_open(struct kv_world *world, enum kv_shape shape, uint32_t block_tokens, uint64_t nr_blocks)
{
	kv_world_open_spill(world, shape, block_tokens, nr_blocks, NULL, 0);
}

void kv_world_open_spill(struct kv_world *world, enum kv_shape shape, uint32_t block_tokens, uint64_t nr_blocks,
			 struct omnikv_spill *spill, uint32_t admit)
{
	struct omnikv_manager_config config = { .size = sizeof(config), .spill = spill, .spill_admit = admit };

	kv_world_open_config(world, shape, block_tokens, nr_blocks, &config);
}

/* Layout, plan and namespace of @shape. */
static void kv_world_plan(struct kv_world *world, enum kv_shape shape, uint32_t block_tokens)
{
	struct omnikv_plan_config config = {
		.size = sizeof(config), .block_tokens = block_tokens, .granule_bytes = 4096,
	};
	struct omnikv_layout *layout = calloc(1, sizeof(*layout));
	struct omnikv_error err = { "" };

	assert_non_null(layout);
	memset(world, 0, sizeof(*world));
	kv_layout(layout, shape);
	if (omnikv_plan_make(layout, &config, &world->plan, &err))
		fail_msg("%s", err.text);
	free(layout);
	world->ns = (struct omnikv_namespace){
		.size = sizeof(world->ns), .tenant = "t", .weights = "w", .layout = &world->plan.layout,
		.block_tokens = block_tokens,
		/* Keys follow from all tokens before them; in one shape the manager is told so. */
		.hash_algorithm = shape == KV_SHAPE_MIXED ? OMNIKV_HASH_FAST : OMNIKV_HASH_OPAQUE,
	};
}

/* World's plan is made. */
static void open_on(struct kv_world *world, const char *spec, const struct omnikv_manager_config *manager_config)
{
	struct omnikv_error err = { "" };

	if (omnikv_pool_open(spec, NULL, &world->pool, &err))
		fail_msg("%s", err.text);
	assert_int_equal(omnikv_client_open(world->pool, OMNIKV_CLIENT_F_MANAGER, &world->client), 0);
	if (omnikv_manager_create(world->client, manager_config, &world->manager, &err))
		fail_msg("%s", err.text);
	if (omnikv_space_open(world->manager, &world->ns, &world->plan, &world->space, &err))
		fail_msg("%s", err.text);
}

void kv_world_open_config(struct kv_world *world, enum kv_shape shape, uint32_t block_tokens, uint64_t nr_blocks,
			  const struct omnikv_manager_config *config)
{
	char spec[32];

	kv_world_plan(world, shape, block_tokens);
	snprintf(spec, sizeof(spec), "%llu",
		 (unsigned long long)(nr_blocks * (omnikv_plan_block_bytes(&world->plan) +
						   omnikv_plan_checkpoint_bytes(&world->plan))));
	open_on(world, spec, config);
}

void kv_world_open_pool_config(struct kv_world *world, enum kv_shape shape, uint32_t block_tokens, const char *spec,
			       const struct omnikv_manager_config *config)
{
	kv_world_plan(world, shape, block_tokens);
	open_on(world, spec, config);
}

void kv_world_open_pool(struct kv_world *world, enum kv_shape shape, uint32_t block_tokens, const char *spec)
{
	kv_world_open_pool_config(world, shape, block_tokens, spec, NULL);
}

void kv_world_leave(struct kv_world *world)
{
	omnikv_space_close(world->space);
	KV_MUST(!omnikv_manager_destroy(world->manager));
	omnikv_client_close(world->client);
	omnikv_pool_close(world->pool);
}

void kv_world_check(struct kv_world *world)
{
	struct omnikv_error err = { "" };
	int ret = omnikv_manager_check(world->manager, &err);

	if (ret)
		fail_msg("%d: %s", ret, err.text);
}

void kv_world_attach(struct kv_world *world, struct kv_world *base, struct okv_authority **auth)
{
	struct omnikv_error err = { "" };

	*world = *base;
	/* The layout that the namespace points to is this world's own. */
	world->ns.layout = &world->plan.layout;
	assert_int_equal(omnikv_client_open(world->pool, 0, &world->client), 0);
	assert_int_equal(okv_authority_local(base->manager, world->client, auth), 0);
	assert_int_equal(okv_manager_attach_to(*auth, &world->manager), 0);
	if (omnikv_space_open(world->manager, &world->ns, &world->plan, &world->space, &err))
		fail_msg("%s", err.text);
}

/* Manager and namespace, or none of them. */
static int connect_world(struct kv_world *world, const char *socket, const struct omnikv_attach_config *config,
			 struct omnikv_error *err)
{
	int ret = omnikv_manager_attach(socket, config, &world->manager, err);

	if (ret)
		return ret;
	world->pool = omnikv_client_pool(omnikv_manager_client(world->manager));
	ret = omnikv_space_open(world->manager, &world->ns, &world->plan, &world->space, err);
	if (ret)
		KV_MUST(!omnikv_manager_destroy(world->manager));
	return ret;
}

void kv_world_connect(struct kv_world *world, enum kv_shape shape, uint32_t block_tokens, const char *socket,
		      const struct omnikv_attach_config *config)
{
	struct omnikv_error err = { "" };

	kv_world_plan(world, shape, block_tokens);
	KV_MUST(!connect_world(world, socket, config, &err) || (puts(err.text), false));
}

void kv_world_connect_again(struct kv_world *world, enum kv_shape shape, uint32_t block_tokens, const char *socket)
{
	struct timespec ts = { .tv_nsec = 10000000 };
	struct omnikv_error err = { "" };
	uint32_t nr = 0;

	kv_world_plan(world, shape, block_tokens);
	while (connect_world(world, socket, NULL, &err)) {
		KV_MUST(nr++ < 6000 || (puts(err.text), false));
		nanosleep(&ts, NULL);
	}
}

void kv_world_detach(struct kv_world *world)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	kv_world_check(world);
	assert_int_equal(omnikv_manager_stats(world->manager, &stats), 0);
	/* What is left waits to be published. */
	assert_true(stats.nr_blocks == 0 || stats.blocks_queued);
	assert_int_equal(stats.extents_lost, 0);
	omnikv_space_close(world->space);
	KV_MUST(!omnikv_manager_destroy(world->manager));
	if (world->client)
		omnikv_client_close(world->client);
}

void kv_world_close(struct kv_world *world)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };
	struct omnikv_pool_info info = { .size = sizeof(info) };

	kv_world_check(world);
	assert_int_equal(omnikv_manager_stats(world->manager, &stats), 0);
	assert_int_equal(stats.nr_leased_blocks, 0);
	assert_true(stats.tokens_hit <= stats.tokens_queried);
	assert_int_equal(omnikv_manager_reset(world->manager), stats.nr_blocks);
	kv_world_check(world);
	omnikv_space_close(world->space);
	KV_MUST(!omnikv_manager_destroy(world->manager));
	assert_int_equal(omnikv_pool_info(world->pool, &info), 0);
	assert_int_equal(info.free_bytes, info.usable_bytes);
	omnikv_client_close(world->client);
	omnikv_pool_close(world->pool);
}

void kv_story_add(struct kv_story *story, uint32_t token)
{
	uint64_t seed;

	if (story->nr_tokens == story->capacity) {
		story->capacity = story->capacity ? 2 * story->capacity : 64;
		story->tokens = realloc(story->tokens, story->capacity * sizeof(story->tokens[0]));
		story->hashes = realloc(story->hashes, story->capacity * sizeof(story->hashes[0]));
		KV_MUST(story->tokens);
		KV_MUST(story->hashes);
	}
	seed = (story->nr_tokens ? story->hashes[story->nr_tokens - 1] : 0) ^ (token + 1) * 0x9e3779b97f4a7c15ull;
	story->tokens[story->nr_tokens] = token;
	story->hashes[story->nr_tokens++] = kv_random(&seed);
}

void kv_story_copy(struct kv_story *to, const struct kv_story *from, uint64_t nr_tokens)
{
	memset(to, 0, sizeof(*to));
	for (uint64_t i = 0; i < nr_tokens; i++)
		kv_story_add(to, from->tokens[i]);
}

void kv_story_free(struct kv_story *story)
{
	free(story->tokens);
	free(story->hashes);
	memset(story, 0, sizeof(*story));
}

struct omnikv_key kv_key(const struct kv_world *world, const struct kv_story *story, uint64_t block_idx,
			 uint32_t nr_tokens)
{
	uint64_t bytes[3] = { story->hashes[block_idx * world->plan.block_tokens + nr_tokens - 1], block_idx, nr_tokens };
	struct omnikv_key key;

	KV_MUST(omnikv_key_init(&key, bytes, sizeof(bytes)) == 0);
	return key;
}

struct omnikv_key *kv_keys(const struct kv_world *world, const struct kv_story *story, uint64_t nr)
{
	struct omnikv_key *keys = calloc(nr + 1, sizeof(*keys));

	KV_MUST(keys);
	for (uint64_t i = 0; i < nr; i++)
		keys[i] = kv_key(world, story, i, world->plan.block_tokens);
	return keys;
}

/* The bytes of one row; eight at a time. */
static void row_bytes(uint64_t hash, uint32_t group, uint32_t layer, uint32_t plane, uint8_t *row, uint64_t bytes)
{
	uint64_t seed = hash ^ (uint64_t)group << 56 ^ (uint64_t)layer << 40 ^ (uint64_t)plane << 32;

	for (uint64_t i = 0; i < bytes; i += 8) {
		uint64_t word = kv_random(&seed);

		memcpy(row + i, &word, bytes - i < 8 ? bytes - i : 8);
	}
}

/* Store into, or compare with, the rows of one plane. */
static const char *plane_rows(const struct kv_world *world, const struct omnikv_seq *seq, const struct kv_story *story,
			      uint32_t group, uint32_t layer, uint32_t plane, uint64_t from, uint64_t to, bool is_store)
{
	static _Thread_local char text[160];
	uint32_t tokens_per_entry = world->plan.layout.groups[group].tokens_per_entry;
	uint64_t bytes = world->plan.groups[group].row_bytes[plane];
	struct omnikv_piece pieces[64];
	uint8_t row[4096];
	uint64_t block_tokens = world->plan.block_tokens;

	while (from < to) {
		uint64_t end = (from / block_tokens + 64) * block_tokens < to ?
			       (from / block_tokens + 64) * block_tokens : to;
		uint64_t first = tokens_per_entry ? from / tokens_per_entry : 0, entry = first;
		int64_t nr;

		if (!tokens_per_entry)
			from = end = to;
		nr = omnikv_seq_pieces(seq, group, layer, plane, from, end, 0, pieces, 64);
		if (nr < 0) {
			snprintf(text, sizeof(text), "pieces of group %u, tokens %llu to %llu: %lld", group,
				 (unsigned long long)from, (unsigned long long)end, (long long)nr);
			return text;
		}
		for (int64_t i = 0; i < nr; i++) {
			uint8_t *at = (uint8_t *)omnikv_pool_addr(world->pool, &pieces[i].extent) + pieces[i].extent_off;

			KV_MUST(pieces[i].extent_off + pieces[i].bytes <=
				    (uint64_t)pieces[i].extent.nr_granules * world->plan.granule_bytes);
			KV_MUST(pieces[i].device_off == (entry - first) * bytes);
			for (uint64_t done = 0; done < pieces[i].bytes; done += bytes, entry++, at += bytes) {
				uint64_t token = tokens_per_entry ? (entry + 1) * tokens_per_entry - 1 : end - 1;

				row_bytes(story->hashes[token], group, layer, plane, row, bytes);
				if (is_store) {
					memcpy(at, row, bytes);
				} else if (memcmp(at, row, bytes)) {
					snprintf(text, sizeof(text), "group %u layer %u plane %u: row of token %llu is wrong",
						 group, layer, plane, (unsigned long long)token);
					return text;
				}
			}
		}
		if (tokens_per_entry && entry != end / tokens_per_entry)
			return "pieces do not cover the rows";
		from = end;
	}
	return NULL;
}

static const char *all_rows(const struct kv_world *world, const struct omnikv_seq *seq, const struct kv_story *story,
			    uint64_t from, uint64_t to, bool is_store)
{
	const struct omnikv_layout *layout = &world->plan.layout;
	const char *wrong = NULL;

	for (uint32_t g = 0; g < layout->nr_groups; g++) {
		if (!layout->groups[g].tokens_per_entry && !is_store)
			continue;
		for (uint32_t l = 0; l < world->plan.groups[g].nr_stored && !wrong; l++)
			for (uint32_t p = 0; p < layout->groups[g].nr_planes && !wrong; p++)
				wrong = plane_rows(world, seq, story, g, l, p, from, to, is_store);
	}
	return wrong;
}

void kv_store(const struct kv_world *world, struct omnikv_seq *seq, const struct kv_story *story, uint64_t from,
	      uint64_t to)
{
	const char *wrong = all_rows(world, seq, story, from, to, true);

	if (wrong)
		kv_fail(wrong, __FILE__, __LINE__);
}

const char *kv_compare(const struct kv_world *world, const struct omnikv_seq *seq, const struct kv_story *story,
		       uint64_t from, uint64_t to)
{
	return all_rows(world, seq, story, from, to, false);
}

bool kv_state_is_right(const struct kv_world *world, const struct omnikv_seq *seq, const struct kv_story *story,
		       uint64_t at)
{
	const struct omnikv_layout *layout = &world->plan.layout;

	for (uint32_t g = 0; g < layout->nr_groups; g++)
		for (uint32_t l = 0; !layout->groups[g].tokens_per_entry && l < world->plan.groups[g].nr_stored; l++)
			if (plane_rows(world, seq, story, g, l, 0, 0, at, false))
				return false;
	return true;
}

int64_t kv_commit(const struct kv_world *world, struct omnikv_seq *seq, const struct kv_story *story, bool with_tail)
{
	uint64_t nr = omnikv_seq_tokens(seq) / world->plan.block_tokens;
	uint32_t rest = omnikv_seq_tokens(seq) % world->plan.block_tokens;
	struct omnikv_key *keys = kv_keys(world, story, nr);
	struct omnikv_key tail;
	int64_t ret;

	with_tail = with_tail && rest;
	if (with_tail)
		tail = kv_key(world, story, nr, rest);
	ret = omnikv_seq_commit(seq, keys, nr, with_tail ? &tail : NULL);
	free(keys);
	return ret;
}

struct omnikv_seq *kv_open(const struct kv_world *world, const struct kv_story *story, bool with_tail)
{
	uint64_t nr = story->nr_tokens / world->plan.block_tokens;
	uint32_t rest = story->nr_tokens % world->plan.block_tokens;
	struct omnikv_key *keys = kv_keys(world, story, nr);
	struct omnikv_key tail;
	struct omnikv_seq *seq;

	with_tail = with_tail && rest;
	if (with_tail)
		tail = kv_key(world, story, nr, rest);
	KV_MUST(omnikv_seq_open(world->space, keys, nr, with_tail ? &tail : NULL, &seq) == 0);
	free(keys);
	return seq;
}

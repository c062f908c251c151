// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pins, priorities and hints of next use: what is retained leaves after all else and in order of its worth, pins do
 * not leave; all of it is bounded, and ends as it says. With a manager of one's own, and with one that asks another.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "manager/authority.h"
#include "manager/manager.h"
#include "tests/harness/daemon_case.h"
#include "tests/harness/kv_world.h"

#define T		16u
#define POOL_BLOCKS	64u
#define BLOCKS		4u	/* of each story: the pool holds 16 of them */
#define HOUR_MS		3600000u

/* Two ways to one cache: asked directly, or through an authority. */
struct path {
	struct kv_world		base;
	struct kv_world		other;
	struct okv_authority	*auth;
	struct kv_world		*world;
};

static void path_open(struct path *path, bool is_attached, enum kv_shape shape)
{
	/* Pins: half of the pool; a client gets a quarter. */
	struct omnikv_manager_config config = { .size = sizeof(config) };
	struct kv_world probe;
	uint64_t pool_bytes;

	kv_world_open(&probe, shape, T, POOL_BLOCKS);
	pool_bytes = probe.manager->nr_granules * probe.manager->granule_bytes;
	kv_world_close(&probe);
	config.pin_bytes = pool_bytes / 2;
	kv_world_open_config(&path->base, shape, T, POOL_BLOCKS, &config);
	path->world = &path->base;
	if (!is_attached)
		return;
	kv_world_attach(&path->other, &path->base, &path->auth);
	path->world = &path->other;
}

static void path_close(struct path *path)
{
	kv_world_check(&path->base);
	for (uint32_t session = 1; session <= 100; session++)
		omnikv_space_unretain(path->world->space, session);
	if (path->world == &path->other)
		kv_world_detach(&path->other);
	kv_world_close(&path->base);
}

static struct omnikv_manager_stats stats_of(const struct path *path)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	assert_int_equal(omnikv_manager_stats(path->base.manager, &stats), 0);
	return stats;
}

/* Each story has BLOCKS blocks, of which the first @nr_common are those of story 0. */
static void make_story(struct kv_story *story, uint32_t salt, uint64_t nr_common)
{
	*story = (struct kv_story){ 0 };
	for (uint64_t i = 0; i < BLOCKS * T; i++)
		kv_story_add(story, (i < nr_common * T ? 0 : salt) * 100000 + i);
}

static uint64_t play(const struct path *path, uint32_t salt)
{
	struct omnikv_seq *seq;
	struct kv_story story;
	uint64_t hit;

	make_story(&story, salt, 0);
	seq = kv_open(path->world, &story, false);
	hit = omnikv_seq_tokens(seq);
	if (hit)
		assert_null(kv_compare(path->world, seq, &story, 0, hit));
	if (hit < story.nr_tokens) {
		assert_int_equal(omnikv_seq_append(seq, story.nr_tokens - hit), 0);
		kv_store(path->world, seq, &story, hit, story.nr_tokens);
		assert_true(kv_commit(path->world, seq, &story, false) >= 0);
	}
	omnikv_seq_close(seq);
	kv_story_free(&story);
	return hit / T;
}

/* Blocks of it that are cached. */
static uint64_t cached(const struct path *path, uint32_t salt)
{
	struct omnikv_key *keys;
	struct kv_story story;
	int64_t nr;

	make_story(&story, salt, 0);
	keys = kv_keys(path->world, &story, BLOCKS);
	nr = omnikv_lookup(path->base.space, keys, BLOCKS);
	free(keys);
	kv_story_free(&story);
	return nr;
}

static int64_t retain_begin(const struct path *path, uint32_t salt, uint64_t nr_blocks, const struct omnikv_retention *how)
{
	struct omnikv_retention full = *how;
	struct omnikv_key *keys;
	struct kv_story story;
	int64_t nr;

	full.size = sizeof(full);
	make_story(&story, salt, 0);
	keys = kv_keys(path->world, &story, BLOCKS);
	nr = omnikv_space_retain(path->world->space, keys, nr_blocks, NULL, &full);
	free(keys);
	kv_story_free(&story);
	return nr;
}

static int64_t retain(const struct path *path, uint32_t salt, const struct omnikv_retention *how)
{
	return retain_begin(path, salt, BLOCKS, how);
}

static int64_t pin(const struct path *path, uint32_t salt, uint32_t ttl_ms)
{
	return retain(path, salt, &(struct omnikv_retention){ .flags = OMNIKV_RETAIN_F_PIN, .session = salt, .ttl_ms = ttl_ms });
}

static int64_t hint(const struct path *path, uint32_t salt, uint32_t next_use_ms)
{
	return retain(path, salt, &(struct omnikv_retention){ .session = salt, .next_use_ms = next_use_ms });
}

static int64_t rank(const struct path *path, uint32_t salt, uint32_t priority)
{
	return retain(path, salt, &(struct omnikv_retention){ .session = salt, .priority = priority, .ttl_ms = HOUR_MS });
}

/* A flood of prompts that are used once. */
static void flood(const struct path *path, uint32_t nr)
{
	static uint32_t salt = 1000;

	while (nr--)
		play(path, salt++);
}

static void on_both_paths(void (*check)(struct path *path))
{
	for (int shape = KV_SHAPE_FULL; shape <= KV_SHAPE_HYBRID; shape++) {
		for (uint32_t is_attached = 0; is_attached < 2; is_attached++) {
			struct path path;

			path_open(&path, is_attached, shape);
			check(&path);
			path_close(&path);
		}
	}
}

static void check_pins(struct path *path)
{
	for (uint32_t i = 1; i <= 4; i++)
		play(path, i);
	assert_int_equal(pin(path, 1, HOUR_MS), BLOCKS);
	assert_int_equal(stats_of(path).nr_retentions, 1);
	assert_true(stats_of(path).pinned_bytes > 0);
	flood(path, 40);
	assert_int_equal(cached(path, 1), BLOCKS);
	for (uint32_t i = 2; i <= 4; i++)
		assert_int_equal(cached(path, i), 0);
	kv_world_check(&path->base);
	assert_int_equal(omnikv_space_unretain(path->world->space, 1), 0);
	assert_int_equal(omnikv_space_unretain(path->world->space, 1), -ENOENT);
	assert_int_equal(stats_of(path).pinned_bytes, 0);
	flood(path, 40);
	assert_int_equal(cached(path, 1), 0);
}

static void a_pinned_prefix_does_not_leave(void **state)
{
	(void)state;
	on_both_paths(check_pins);
}

/* B1: somebody pins, and never comes back. */
static void check_ttl(struct path *path)
{
	play(path, 1);
	play(path, 2);
	assert_int_equal(pin(path, 1, 150), BLOCKS);
	assert_int_equal(hint(path, 2, 75), BLOCKS);
	flood(path, 1);
	sleep_ms(200);
	flood(path, 40);
	assert_int_equal(cached(path, 1), 0);
	assert_int_equal(cached(path, 2), 0);
	assert_int_equal(stats_of(path).nr_retentions, 0);
	assert_int_equal(stats_of(path).retentions_expired, 2);
}

static void a_forgotten_pin_ends_by_its_time(void **state)
{
	(void)state;
	on_both_paths(check_ttl);
}

static void check_idle(struct path *path)
{
	play(path, 1);
	play(path, 2);
	assert_int_equal(pin(path, 1, 20), BLOCKS);
	assert_int_equal(hint(path, 2, 10), BLOCKS);
	sleep_ms(30);
	/* Nothing but the question comes in between. */
	assert_int_equal(stats_of(path).nr_retentions, 0);
	assert_int_equal(stats_of(path).pinned_bytes, 0);
	assert_int_equal(stats_of(path).retained_bytes, 0);
	assert_int_equal(stats_of(path).retentions_expired, 2);
}

static void what_is_over_is_not_shown_where_nobody_needs_memory(void **state)
{
	(void)state;
	on_both_paths(check_idle);
}

static void check_priorities(struct path *path)
{
	play(path, 1);
	play(path, 2);
	play(path, 3);
	assert_int_equal(rank(path, 1, 10), BLOCKS);
	assert_int_equal(rank(path, 2, 30), BLOCKS);
	assert_int_equal(rank(path, 3, 20), BLOCKS);
	flood(path, 40);
	for (uint32_t i = 1; i <= 3; i++)
		assert_int_equal(cached(path, i), BLOCKS);
	kv_world_check(&path->base);
}

/* Blocks that one open sequence holds, so that there are so many fewer for all else. */
static struct omnikv_seq *hold(const struct path *path, uint64_t nr_blocks)
{
	struct omnikv_seq *seq;

	assert_int_equal(omnikv_seq_open(path->world->space, NULL, 0, NULL, &seq), 0);
	for (uint64_t i = 0; i < nr_blocks; i++)
		assert_int_equal(omnikv_seq_append(seq, T), 0);
	return seq;
}

static void what_has_priority_leaves_last(void **state)
{
	(void)state;
	on_both_paths(check_priorities);
}

static void check_order(struct path *path, bool is_by_hint)
{
	struct omnikv_seq *held[24] = { NULL };
	uint32_t nr = 0;

	for (uint32_t i = 1; i <= 3; i++)
		play(path, i);
	if (is_by_hint) {
		hint(path, 1, HOUR_MS / 2);
		hint(path, 2, HOUR_MS / 8);
		hint(path, 3, HOUR_MS / 4);
	} else {
		rank(path, 1, 10);
		rank(path, 2, 30);
		rank(path, 3, 20);
	}
	assert_int_equal(stats_of(path).nr_retentions, 3);
	/* More and more of the pool is in use: they leave in the order of their worth. */
	while (cached(path, 1) == BLOCKS && nr < 24)
		held[nr++] = hold(path, 3);
	assert_true(cached(path, 1) < BLOCKS);
	assert_int_equal(cached(path, 2), BLOCKS);
	assert_int_equal(cached(path, 3), BLOCKS);
	kv_world_check(&path->base);
	while (nr < 24 && cached(path, 3) == BLOCKS)
		held[nr++] = hold(path, 3);
	assert_int_equal(cached(path, 1), 0);
	assert_true(cached(path, 3) < BLOCKS);
	assert_int_equal(cached(path, 2), BLOCKS);
	assert_int_equal(stats_of(path).retentions_yielded, 2);
	while (nr)
		omnikv_seq_close(held[--nr]);
}

static void what_is_worth_least_leaves_first(void **state)
{
	(void)state;
	for (uint32_t is_attached = 0; is_attached < 2; is_attached++) {
		for (uint32_t is_by_hint = 0; is_by_hint < 2; is_by_hint++) {
			struct path path;

			path_open(&path, is_attached, KV_SHAPE_FULL);
			check_order(&path, is_by_hint);
			path_close(&path);
		}
	}
}

/* A session that is over gives up what it alone used, before anything older. */
static void check_over(struct path *path)
{
	for (uint32_t i = 1; i <= 4; i++)
		play(path, i);
	assert_int_equal(hint(path, 4, HOUR_MS), BLOCKS);
	assert_int_equal(hint(path, 4, OMNIKV_NEXT_USE_NEVER), BLOCKS);
	assert_int_equal(stats_of(path).nr_retentions, 0);
	/* Just so much that something has to leave. */
	while (!stats_of(path).blocks_evicted)
		flood(path, 1);
	assert_true(cached(path, 4) < BLOCKS);
	for (uint32_t i = 1; i <= 3; i++)
		assert_int_equal(cached(path, i), BLOCKS);
}

static void what_a_finished_session_used_leaves_first(void **state)
{
	(void)state;
	on_both_paths(check_over);
}

/* A pool that is pinned whole serves nobody else: so it cannot be. */
static void check_bounds(struct path *path)
{
	bool is_attached = path->world == &path->other;
	uint32_t nr = 0;
	int64_t ret = 0;

	for (uint32_t i = 1; i <= 9; i++)
		play(path, i);
	while (nr < 9 && (ret = pin(path, nr + 1, HOUR_MS)) == BLOCKS)
		nr++;
	assert_int_equal(ret, -EDQUOT);
	/* Half of 64 blocks, or a client's half of that. */
	assert_int_equal(nr, is_attached ? 4 : 8);
	assert_int_equal(stats_of(path).nr_retentions, nr);
	/* What is refused changes nothing, neither does a session that asks for more than there is. */
	assert_int_equal(pin(path, 1, HOUR_MS), BLOCKS);
	assert_true(stats_of(path).pinned_bytes <= stats_of(path).pin_limit_bytes);
	flood(path, 30);
	for (uint32_t i = 1; i <= nr; i++)
		assert_int_equal(cached(path, i), BLOCKS);
	/* And hints make way for one another. */
	for (uint32_t i = 20; i < 30; i++) {
		play(path, i);
		assert_int_equal(rank(path, i, i), BLOCKS);
		assert_true(stats_of(path).retained_bytes <= stats_of(path).pin_limit_bytes);
	}
	assert_int_equal(rank(path, 29, 1), BLOCKS);
	play(path, 30);
	kv_world_check(&path->base);
}

static void nobody_can_pin_the_whole_pool(void **state)
{
	(void)state;
	for (uint32_t is_attached = 0; is_attached < 2; is_attached++) {
		struct path path;

		path_open(&path, is_attached, KV_SHAPE_FULL);
		check_bounds(&path);
		path_close(&path);
	}
}

/* Whatever could make way for it would not be enough: then nothing makes way. */
static void check_refused(struct path *path)
{
	const struct omnikv_retention least = { .session = 1, .priority = 1, .ttl_ms = HOUR_MS };
	const struct omnikv_retention low = { .session = 2, .priority = 2, .ttl_ms = HOUR_MS };
	const struct omnikv_retention own = { .session = 3, .priority = 10, .ttl_ms = HOUR_MS };
	bool is_attached = path->world == &path->other;
	/* Half of 64 blocks, or a client's half of that. */
	uint32_t nr_whole = is_attached ? 3 : 7;
	struct omnikv_manager_stats before, after;

	for (uint32_t i = 1; i <= 3 + nr_whole; i++)
		play(path, i);
	assert_int_equal(retain_begin(path, 1, 1, &least), 1);
	assert_int_equal(retain_begin(path, 2, 1, &low), 1);
	assert_int_equal(retain_begin(path, 3, 2, &own), 2);
	for (uint32_t i = 4; i <= 3 + nr_whole; i++)
		assert_int_equal(rank(path, i, 50), BLOCKS);
	before = stats_of(path);
	assert_int_equal(before.nr_retentions, 3 + nr_whole);
	play(path, 20);
	/* 4 blocks more, and 2 that two sessions of less worth have; and 4 instead of 2, and 1 that a session of no more has. */
	assert_int_equal(rank(path, 20, 9), -EDQUOT);
	assert_int_equal(retain(path, 20, &(struct omnikv_retention){ .session = 3, .priority = 1, .ttl_ms = HOUR_MS }), -EDQUOT);
	after = stats_of(path);
	assert_int_equal(after.nr_retentions, before.nr_retentions);
	assert_int_equal(after.retained_bytes, before.retained_bytes);
	assert_int_equal(after.retentions_yielded, before.retentions_yielded);
	kv_world_check(&path->base);
	/* 4 instead of 2 fit where the two others go, and these are counted. */
	assert_int_equal(retain(path, 20, &own), BLOCKS);
	after = stats_of(path);
	assert_int_equal(after.nr_retentions, before.nr_retentions - 2);
	assert_int_equal(after.retentions_yielded, before.retentions_yielded + 2);
	kv_world_check(&path->base);
}

static void a_retention_that_is_refused_ends_no_other(void **state)
{
	(void)state;
	for (uint32_t is_attached = 0; is_attached < 2; is_attached++) {
		struct path path;

		path_open(&path, is_attached, KV_SHAPE_FULL);
		check_refused(&path);
		path_close(&path);
	}
}

/* Compute the first @nr_blocks of a story whose longer path is cached without a checkpoint there. The state that comes along: kept? */
static bool bring_state(const struct path *path, uint32_t salt, uint64_t nr_blocks)
{
	uint64_t nr_tokens = nr_blocks * T, hit;
	struct omnikv_seq *seq;
	struct kv_story story;

	make_story(&story, salt, 0);
	story.nr_tokens = nr_tokens;
	seq = kv_open(path->world, &story, false);
	hit = omnikv_seq_tokens(seq);
	assert_true(hit < nr_tokens);
	assert_int_equal(omnikv_seq_append(seq, nr_tokens - hit), 0);
	kv_store(path->world, seq, &story, hit, nr_tokens);
	assert_int_equal(kv_commit(path->world, seq, &story, false), 0);
	omnikv_seq_close(seq);
	seq = kv_open(path->world, &story, false);
	hit = omnikv_seq_tokens(seq);
	if (hit)
		assert_null(kv_compare(path->world, seq, &story, 0, hit));
	omnikv_seq_close(seq);
	kv_story_free(&story);
	return hit == nr_tokens;
}

static void check_state_bound(struct path *path, bool is_pinned)
{
	struct path owner = *path;
	uint32_t nr = 0, nr_kept = 0;

	/* The manager's own process has the whole bound. */
	owner.world = &path->base;
	for (play(path, 1); nr < POOL_BLOCKS && (is_pinned ? pin(&owner, nr + 1, HOUR_MS) : rank(&owner, nr + 1, 1)) == BLOCKS &&
	     stats_of(path).nr_retentions == nr + 1; play(path, nr + 1))
		nr++;
	assert_in_range(nr, POOL_BLOCKS / 2 / BLOCKS, POOL_BLOCKS / 2);
	for (uint32_t i = 1; i <= nr; i++) {
		for (uint64_t nr_blocks = 1; nr_blocks < BLOCKS; nr_blocks++) {
			nr_kept += bring_state(path, i, nr_blocks);
			/* Both bounds are a half of the pool here. */
			assert_true(stats_of(path).pinned_bytes <= stats_of(path).pin_limit_bytes);
			assert_true(stats_of(path).retained_bytes <= stats_of(path).pin_limit_bytes);
			kv_world_check(&path->base);
		}
	}
	/* Pins refuse what is too much; hints make way for it. */
	if (is_pinned)
		assert_true(nr_kept < nr * (BLOCKS - 1));
	else
		assert_int_equal(nr_kept, nr * (BLOCKS - 1));
	assert_int_equal(stats_of(path).nr_retentions < nr, !is_pinned);
	for (uint32_t i = 1; i <= nr; i++)
		omnikv_space_unretain(owner.world->space, i);
	if (is_pinned)
		assert_true(bring_state(path, nr, BLOCKS - 1));
}

static void states_that_come_late_do_not_pin_more_than_the_bound(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		struct path path;

		path_open(&path, i & 1, KV_SHAPE_HYBRID);
		check_state_bound(&path, i & 2);
		path_close(&path);
	}
}

/* What many sessions begin with is counted once, and protected until the last of them has ended. */
static void shared_prefixes_count_once(void **state)
{
	struct omnikv_retention how = { .size = sizeof(how), .flags = OMNIKV_RETAIN_F_PIN, .ttl_ms = HOUR_MS };
	struct kv_story story;
	struct path path;
	uint64_t bytes;

	(void)state;
	path_open(&path, false, KV_SHAPE_FULL);
	make_story(&story, 0, 0);
	play(&path, 0);
	for (uint64_t session = 1; session <= 200; session++) {
		struct omnikv_key *keys = kv_keys(path.world, &story, BLOCKS);

		how.session = session;
		assert_int_equal(omnikv_space_retain(path.world->space, keys, BLOCKS - session % 3, NULL, &how),
				 BLOCKS - session % 3);
		free(keys);
	}
	bytes = stats_of(&path).pinned_bytes;
	assert_int_equal(bytes, BLOCKS * omnikv_plan_block_bytes(&path.world->plan));
	kv_world_check(&path.base);
	for (uint64_t session = 1; session <= 199; session++)
		assert_int_equal(omnikv_space_unretain(path.world->space, session), 0);
	flood(&path, 30);
	/* The last one retained all but two. */
	assert_int_equal(cached(&path, 0), BLOCKS - 200 % 3);
	assert_int_equal(omnikv_space_unretain(path.world->space, 200), 0);
	kv_story_free(&story);
	path_close(&path);
}

/* A13: reset, epoch and distrust reach what is retained too. */
static void check_resets(struct path *path)
{
	play(path, 1);
	play(path, 2);
	pin(path, 1, HOUR_MS);
	hint(path, 2, HOUR_MS);
	assert_int_equal(omnikv_manager_reset(path->world->manager), 2 * BLOCKS);
	assert_int_equal(stats_of(path).nr_retentions, 0);
	assert_int_equal(stats_of(path).nr_blocks, 0);
	play(path, 1);
	play(path, 2);
	pin(path, 1, HOUR_MS);
	hint(path, 2, HOUR_MS);
	assert_true(omnikv_manager_raise_epoch(path->world->manager) > 0);
	assert_int_equal(stats_of(path).nr_retentions, 0);
	assert_int_equal(cached(path, 1), 0);
	assert_int_equal(stats_of(path).nr_blocks, 0);
}

static void a_reset_ends_retentions_too(void **state)
{
	(void)state;
	on_both_paths(check_resets);
}

static void a_client_that_ends_retains_nothing(void **state)
{
	struct path path;

	(void)state;
	path_open(&path, true, KV_SHAPE_FULL);
	play(&path, 1);
	play(&path, 2);
	pin(&path, 1, HOUR_MS);
	rank(&path, 2, 50);
	assert_int_equal(stats_of(&path).nr_retentions, 2);
	kv_world_detach(&path.other);
	path.world = &path.base;
	assert_int_equal(stats_of(&path).nr_retentions, 0);
	flood(&path, 30);
	assert_int_equal(cached(&path, 1), 0);
	path_close(&path);
}

static void check_refusals(struct path *path)
{
	static const struct omnikv_retention bad[] = {
		{ .flags = 2, .session = 1, .ttl_ms = 1 },
		{ .session = 0, .ttl_ms = 1 },
		{ .session = 1 },
		{ .session = 1, .priority = 5 },
		{ .session = 1, .priority = OMNIKV_PRIORITY_MAX + 1, .ttl_ms = 1 },
		{ .session = 1, .ttl_ms = OMNIKV_RETAIN_MS_MAX + 1 },
		{ .session = 1, .next_use_ms = OMNIKV_RETAIN_MS_MAX + 1 },
		{ .flags = OMNIKV_RETAIN_F_PIN, .session = 1 },
		{ .flags = OMNIKV_RETAIN_F_PIN, .session = 1, .next_use_ms = 5 },
		{ .flags = OMNIKV_RETAIN_F_PIN, .session = 1, .ttl_ms = 1, .priority = 1 },
		{ .flags = OMNIKV_RETAIN_F_PIN, .session = 1, .next_use_ms = OMNIKV_NEXT_USE_NEVER },
		{ .session = 1, .next_use_ms = OMNIKV_NEXT_USE_NEVER, .ttl_ms = 5 },
	};
	struct omnikv_retention how = { .size = sizeof(how), .session = 1, .ttl_ms = 5 };
	struct omnikv_key key = { .len = 40 };

	play(path, 1);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		assert_int_equal(retain(path, 1, &bad[i]), -EINVAL);
	assert_int_equal(omnikv_space_retain(NULL, NULL, 0, NULL, &how), -EINVAL);
	assert_int_equal(omnikv_space_retain(path->world->space, NULL, 0, NULL, NULL), -EINVAL);
	assert_int_equal(omnikv_space_retain(path->world->space, &key, 1, NULL, &how), -EINVAL);
	assert_int_equal(omnikv_space_unretain(path->world->space, 0), -EINVAL);
	assert_int_equal(stats_of(path).nr_retentions, 0);
	/* Of what is not cached nothing can be kept, and what the session had goes all the same. */
	assert_int_equal(pin(path, 1, HOUR_MS), BLOCKS);
	how.flags = OMNIKV_RETAIN_F_PIN;
	key = (struct omnikv_key){ .bytes = { 1 }, .len = 8 };
	assert_int_equal(omnikv_space_retain(path->world->space, &key, 1, NULL, &how), 0);
	assert_int_equal(stats_of(path).nr_retentions, 0);
}

static void what_is_no_retention_is_refused(void **state)
{
	(void)state;
	on_both_paths(check_refusals);
}

/* The state of a block comes after the retention that counts it: what was retained must be given back whole. */
static void check_late_states(struct path *path)
{
	struct kv_story story, begin = { 0 };
	struct omnikv_seq *seq;

	play(path, 1);
	assert_int_equal(pin(path, 1, HOUR_MS), BLOCKS);
	make_story(&story, 1, 0);
	kv_story_copy(&begin, &story, 2 * T);
	seq = kv_open(path->world, &begin, false);
	assert_int_equal(omnikv_seq_tokens(seq), 0);
	assert_int_equal(omnikv_seq_append(seq, begin.nr_tokens), 0);
	kv_store(path->world, seq, &begin, 0, begin.nr_tokens);
	assert_true(kv_commit(path->world, seq, &begin, false) >= 0);
	omnikv_seq_close(seq);
	kv_story_free(&begin);
	kv_story_free(&story);

	assert_int_equal(omnikv_space_unretain(path->world->space, 1), 0);
	assert_int_equal(stats_of(path).pinned_bytes, 0);
	assert_int_equal(pin(path, 1, HOUR_MS), BLOCKS);
	assert_int_equal(omnikv_space_unretain(path->world->space, 1), 0);
}

static void a_state_that_comes_later_ends_no_pinning(void **state)
{
	(void)state;
	for (uint32_t is_attached = 0; is_attached < 2; is_attached++) {
		struct path path;

		path_open(&path, is_attached, KV_SHAPE_HYBRID);
		check_late_states(&path);
		path_close(&path);
	}
}

static void pins_can_have_a_half_of_the_pool_at_most(void **state)
{
	static const uint64_t asked[] = { 8 << 20, 0, OMNIKV_PIN_NONE }, given[] = { 8 << 20, 4 << 20, 0 };
	struct omnikv_manager_config config = { .size = sizeof(config) };
	struct omnikv_manager *manager;
	struct omnikv_client *client;
	struct omnikv_error err;
	struct omnikv_pool *pool;

	(void)state;
	assert_int_equal(omnikv_pool_open("16M", NULL, &pool, &err), 0);
	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &client), 0);
	config.pin_bytes = (8 << 20) + 4096;
	assert_int_equal(omnikv_manager_create(client, &config, &manager, &err), -EINVAL);
	assert_non_null(strstr(err.text, "more than a half of the pool"));
	for (uint32_t i = 0; i < 3; i++) {
		struct omnikv_manager_stats stats = { .size = sizeof(stats) };

		config.pin_bytes = asked[i];
		assert_int_equal(omnikv_manager_create(client, &config, &manager, &err), 0);
		assert_int_equal(omnikv_manager_stats(manager, &stats), 0);
		assert_int_equal(stats.pin_limit_bytes, given[i]);
		KV_MUST(!omnikv_manager_destroy(manager));
	}
	omnikv_client_close(client);
	omnikv_pool_close(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_pinned_prefix_does_not_leave),
		cmocka_unit_test(a_forgotten_pin_ends_by_its_time),
		cmocka_unit_test(what_is_over_is_not_shown_where_nobody_needs_memory),
		cmocka_unit_test(what_has_priority_leaves_last),
		cmocka_unit_test(what_is_worth_least_leaves_first),
		cmocka_unit_test(what_a_finished_session_used_leaves_first),
		cmocka_unit_test(nobody_can_pin_the_whole_pool),
		cmocka_unit_test(a_retention_that_is_refused_ends_no_other),
		cmocka_unit_test(states_that_come_late_do_not_pin_more_than_the_bound),
		cmocka_unit_test(shared_prefixes_count_once),
		cmocka_unit_test(a_state_that_comes_later_ends_no_pinning),
		cmocka_unit_test(a_reset_ends_retentions_too),
		cmocka_unit_test(a_client_that_ends_retains_nothing),
		cmocka_unit_test(what_is_no_retention_is_refused),
		cmocka_unit_test(pins_can_have_a_half_of_the_pool_at_most),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * What engines have cached in a daemon is there when it has been started anew, in memory that the service
 * manager kept, or in a file: for engines that were there all the time and for new ones, to the byte.
 *
 * The index lies in META extents of the pool, so nothing is copied. The test plays the service manager.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "tests/harness/kv_world.h"
#include "tests/harness/service_manager.h"

#define T	16u
#define ROUNDS	6

static void make_story(struct kv_story *story, uint32_t salt, uint64_t nr_tokens)
{
	*story = (struct kv_story){ 0 };
	for (uint64_t i = 0; i < nr_tokens; i++)
		kv_story_add(story, (uint32_t)(salt * 100000 + i));
}

/* As a request does; how many tokens hit. Every byte is compared. */
static uint64_t play(const struct kv_world *world, const struct kv_story *story)
{
	struct omnikv_seq *seq = kv_open(world, story, true);
	uint64_t hit = omnikv_seq_tokens(seq);
	const char *why = hit ? kv_compare(world, seq, story, 0, hit) : NULL;

	if (why)
		fail_msg("%s", why);
	if (hit < story->nr_tokens) {
		assert_int_equal(omnikv_seq_append(seq, story->nr_tokens - hit), 0);
		kv_store(world, seq, story, hit, story->nr_tokens);
		assert_true(kv_commit(world, seq, story, true) >= 0);
	}
	omnikv_seq_close(seq);
	return hit;
}

/* The daemon that comes next may still be starting: a lookup misses then, and nothing else. */
static void hits_again(const struct kv_world *world, const struct kv_story *story)
{
	uint64_t end = now_ms() + 10000, hit;

	do {
		struct omnikv_seq *seq = kv_open(world, story, true);

		hit = omnikv_seq_tokens(seq);
		omnikv_seq_close(seq);
		if (hit < story->nr_tokens)
			sleep_ms(10);
	} while (hit < story->nr_tokens && now_ms() < end);
	assert_int_equal(play(world, story), story->nr_tokens);
}

static void under_a_service_manager(void **state)
{
	const char *const options[] = { "--pool", "64M", "--reserve", "1M", NULL };
	struct service_manager manager;
	struct kv_world old, fresh;
	struct kv_story stories[ROUNDS];
	int i, k;

	(void)state;
	service_manager_init(&manager);
	service_manager_start(&manager, options);
	kv_world_connect(&old, KV_SHAPE_FULL, T, manager.daemon.socket, NULL);
	for (i = 0; i < ROUNDS; i++) {
		make_story(&stories[i], (uint32_t)i + 1, 40 * T + 5);
		assert_int_equal(play(&old, &stories[i]), 0);
		if (i % 2)
			daemon_kill(&manager.daemon);
		else
			assert_int_equal(daemon_stop(&manager.daemon, NULL), 0);
		service_manager_start(&manager, options);
		kv_world_connect(&fresh, KV_SHAPE_FULL, T, manager.daemon.socket, NULL);
		for (k = 0; k <= i; k++)
			assert_int_equal(play(&fresh, &stories[k]), stories[k].nr_tokens);
		kv_world_detach(&fresh);
		for (k = 0; k <= i; k++)
			hits_again(&old, &stories[k]);
	}
	kv_world_detach(&old);
	for (i = 0; i < ROUNDS; i++)
		kv_story_free(&stories[i]);
	assert_int_equal(daemon_stop(&manager.daemon, NULL), 0);
	service_manager_fini(&manager);
}

static void in_a_file(void **state)
{
	struct daemon_case daemon;
	struct kv_world old, fresh;
	struct kv_story story;
	char pool[160];
	const char *const options[] = { "--pool", pool, "--reserve", "1M", NULL };
	int i;

	(void)state;
	daemon_case_init(&daemon);
	snprintf(pool, sizeof(pool), "embedded:64M:%s/pool", daemon.dir);
	daemon_start(&daemon, options);
	make_story(&story, 1, 40 * T + 5);
	kv_world_connect(&old, KV_SHAPE_HYBRID, T, daemon.socket, NULL);
		assert_int_equal(play(&old, &story), 0);
	for (i = 0; i < ROUNDS; i++) {
		if (i % 2)
			daemon_kill(&daemon);
		else
			assert_int_equal(daemon_stop(&daemon, NULL), 0);
		daemon_start(&daemon, options);
		kv_world_connect(&fresh, KV_SHAPE_HYBRID, T, daemon.socket, NULL);
		assert_int_equal(play(&fresh, &story), story.nr_tokens);
		kv_world_detach(&fresh);
		hits_again(&old, &story);
	}
	kv_world_detach(&old);
	kv_story_free(&story);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* A directory with one file. */
static void unlink_store(const char *path)
{
	char file[200];

	snprintf(file, sizeof(file), "%s/omnikv.spill", path);
	unlink(file);
	rmdir(path);
}

static void in_a_spill_store(void **state)
{
	struct daemon_case daemon;
	struct kv_world world;
	struct kv_story story;
	char store[160];
	const char *const options[] = {
		"--pool", "16M", "--reserve", "1M", "--spill", store, "--spill-size", "64M", NULL,
	};

	(void)state;
	daemon_case_init(&daemon);
	snprintf(store, sizeof(store), "%s/store", daemon.dir);
	daemon_start(&daemon, options);
	make_story(&story, 1, 40 * T);
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	assert_int_equal(play(&world, &story), 0);
	kv_world_detach(&world);
	/* Its memory goes with it, and nobody keeps that. */
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_start(&daemon, options);
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	hits_again(&world, &story);
	kv_world_detach(&world);
	kv_story_free(&story);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	unlink_store(store);
	daemon_case_fini(&daemon);
}

/* More than memory holds is cached, so that the store is at work; the daemon is told to end. */
static void stop_with_a_store(struct daemon_case *daemon, const char *store)
{
	struct omnikv_spill_config config = { .size = sizeof(config), .flags = OMNIKV_SPILL_F_READ_ONLY };
	struct omnikv_spill_stats stats = { .size = sizeof(stats) };
	struct omnikv_error err = { "" };
	struct omnikv_spill *spill;
	struct kv_world world;

	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon->socket, NULL);
	for (uint32_t i = 0; i < 40; i++) {
		struct kv_story story;

		make_story(&story, i + 1, 40 * T);
		play(&world, &story);
		kv_story_free(&story);
	}
	kv_world_detach(&world);
	assert_int_equal(daemon_stop(daemon, NULL), 0);
	/* Nobody's, and whole: not what a kill leaves. */
	if (omnikv_spill_open(store, &config, &spill, &err))
		fail_msg("%s", err.text);
	assert_int_equal(omnikv_spill_stats(spill, &stats), 0);
	assert_true(stats.nr_records > 0);
	assert_int_equal(stats.recovered_scanned, 0);
	assert_int_equal(stats.owner_pid, 0);
	omnikv_spill_close(spill);
	unlink_store(store);
}

static void stopped_daemons_close_their_store(void **state)
{
	static const char *const pools[] = { "2M", "embedded:2M:%s/pool" };
	struct service_manager manager;
	struct daemon_case daemon;
	char store[160], pool[160];
	const char *const options[] = {
		"--pool", pool, "--reserve", "64K", "--spill", store, "--spill-size", "64M", NULL,
	};

	(void)state;
	for (uint32_t i = 0; i < sizeof(pools) / sizeof(pools[0]); i++) {
		daemon_case_init(&daemon);
		snprintf(store, sizeof(store), "%s/store", daemon.dir);
		snprintf(pool, sizeof(pool), pools[i], daemon.dir);
		daemon_start(&daemon, options);
		stop_with_a_store(&daemon, store);
		daemon_case_fini(&daemon);
	}
	service_manager_init(&manager);
	snprintf(store, sizeof(store), "%s/store", manager.daemon.dir);
	snprintf(pool, sizeof(pool), "2M");
	service_manager_start(&manager, options);
	stop_with_a_store(&manager.daemon, store);
	service_manager_fini(&manager);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(under_a_service_manager),
		cmocka_unit_test(in_a_file),
		cmocka_unit_test(in_a_spill_store),
		cmocka_unit_test(stopped_daemons_close_their_store),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

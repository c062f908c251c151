// SPDX-License-Identifier: GPL-2.0-only
/*
 * Managers attached to a real omnikvd: what one commits others hit, byte for byte; a daemon that is
 * killed, stopped or started anew costs hits and nothing else.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "failpoint.h"
#include "tests/harness/daemon_case.h"
#include "tests/harness/kv_world.h"

#define T	16u
#define RESERVE	(4u << 20)

static const char *const options[] = { "--pool", "64M", "--reserve", "4M", NULL };

static struct omnikv_manager_stats stats_of(const struct kv_world *world)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	KV_MUST(!omnikv_manager_stats(world->manager, &stats));
	return stats;
}

static void make_story(struct kv_story *story, uint32_t salt, uint64_t nr_tokens)
{
	*story = (struct kv_story){ 0 };
	for (uint64_t i = 0; i < nr_tokens; i++)
		kv_story_add(story, salt * 100000 + i);
}

/* As a request does; how many tokens hit. Every byte is compared. */
static uint64_t play(const struct kv_world *world, const struct kv_story *story, bool with_tail)
{
	struct omnikv_seq *seq = kv_open(world, story, with_tail);
	uint64_t hit = omnikv_seq_tokens(seq);
	const char *why = hit ? kv_compare(world, seq, story, 0, hit) : NULL;

	if (why)
		kv_fail(why, __FILE__, __LINE__);
	if (hit < story->nr_tokens) {
		KV_MUST(!omnikv_seq_append(seq, story->nr_tokens - hit));
		kv_store(world, seq, story, hit, story->nr_tokens);
		KV_MUST(kv_commit(world, seq, story, with_tail) >= 0);
		why = kv_compare(world, seq, story, 0, story->nr_tokens);
		if (why)
			kv_fail(why, __FILE__, __LINE__);
	}
	omnikv_seq_close(seq);
	return hit;
}

static void what_one_commits_another_process_hits(void **state)
{
	struct daemon_case daemon;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, options);
	for (int shape = KV_SHAPE_FULL; shape <= KV_SHAPE_HYBRID; shape++) {
		struct kv_story story;
		struct kv_world world;
		int status;
		pid_t pid;

		make_story(&story, 1, 150 * T + 8);
		pid = fork();
		assert_true(pid >= 0);
		if (!pid) {
			kv_world_connect(&world, shape, T, daemon.socket, NULL);
			KV_MUST(play(&world, &story, true) == 0);
			KV_MUST(stats_of(&world).blocks_published == 151);
			kv_world_detach(&world);
			_exit(0);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
		kv_world_connect(&world, shape, T, daemon.socket, NULL);
		assert_int_equal(play(&world, &story, true), story.nr_tokens);
		assert_int_equal(stats_of(&world).blocks_imported, 151);
		assert_int_equal(play(&world, &story, true), story.nr_tokens);
		kv_world_check(&world);
		kv_world_detach(&world);
		kv_story_free(&story);
	}
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* They wait for more to come; who asks for the sums, or ends, waits no longer. */
static void the_last_lookups_are_counted_where_sums_are_asked_for_and_at_the_end(void **state)
{
	struct omnikv_manager_stats before = { .size = sizeof(before) }, stats = { .size = sizeof(stats) };
	struct daemon_case daemon;
	struct kv_world world, other;
	struct kv_story story;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, options);
	make_story(&story, 1, 20 * T);
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	assert_int_equal(play(&world, &story, false), 0);
	assert_int_equal(omnikv_manager_shared_stats(world.manager, &before), 0);
	for (uint32_t i = 1; i <= 3; i++) {
		omnikv_seq_close(kv_open(&world, &story, false));
		assert_int_equal(omnikv_manager_shared_stats(world.manager, &stats), 0);
		assert_int_equal(stats.nr_queries, before.nr_queries + i);
		assert_int_equal(stats.blocks_hit, before.blocks_hit + 20 * i);
	}
	/* One that ends. */
	kv_world_connect(&other, KV_SHAPE_FULL, T, daemon.socket, NULL);
	omnikv_seq_close(kv_open(&other, &story, false));
	kv_world_detach(&other);
	assert_int_equal(omnikv_manager_shared_stats(world.manager, &stats), 0);
	assert_int_equal(stats.blocks_hit, before.blocks_hit + 20 * 4);
	kv_world_detach(&world);
	kv_story_free(&story);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* It has neither the memory nor the connection. */
static void a_forked_childs_lookups_are_misses(void **state)
{
	struct omnikv_seq *seq;
	struct daemon_case daemon;
	struct kv_story story;
	struct kv_world world;
	int status;
	pid_t pid;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, options);
	make_story(&story, 1, 20 * T);
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	assert_int_equal(play(&world, &story, false), 0);
	assert_int_equal(play(&world, &story, false), story.nr_tokens);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		seq = kv_open(&world, &story, false);
		KV_MUST(omnikv_seq_tokens(seq) == 0);
		KV_MUST(omnikv_seq_append(seq, 1) < 0);
		omnikv_seq_close(seq);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	assert_int_equal(play(&world, &story, false), story.nr_tokens);
	kv_world_check(&world);
	kv_world_detach(&world);
	kv_story_free(&story);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* A pool in a file: what is there when the daemon comes back is the same pool. */
static void start_on_file(struct daemon_case *daemon, char *pool, size_t size)
{
	snprintf(pool, size, "embedded:64M:%s/pool", daemon->dir);
	daemon_start(daemon, (const char *const []){ "--pool", pool, "--reserve", "8M", NULL });
}

static uint64_t hit_of(const struct kv_world *world, const struct kv_story *story)
{
	struct omnikv_seq *seq = kv_open(world, story, true);
	uint64_t hit = omnikv_seq_tokens(seq);
	const char *why = hit ? kv_compare(world, seq, story, 0, hit) : NULL;

	if (why)
		kv_fail(why, __FILE__, __LINE__);
	omnikv_seq_close(seq);
	return hit;
}

/* P6 and D3: the daemon is killed; requests go on from the reserve, commits wait; then it is back. */
static void a_killed_daemon_costs_hits_and_nothing_else(void **state)
{
	struct kv_story before, during, after;
	struct kv_world worlds[2];
	struct daemon_case daemon;
	struct omnikv_seq *seq;
	char pool[160];
	uint64_t since;

	(void)state;
	make_story(&before, 1, 20 * T);
	make_story(&during, 2, 30 * T + 3);
	make_story(&after, 3, 20 * T);
	daemon_case_init(&daemon);
	start_on_file(&daemon, pool, sizeof(pool));
	for (uint32_t i = 0; i < 2; i++)
		kv_world_connect(&worlds[i], KV_SHAPE_FULL, T, daemon.socket, NULL);
	assert_int_equal(play(&worlds[0], &before, true), 0);
	seq = kv_open(&worlds[1], &before, false);
	assert_int_equal(omnikv_seq_tokens(seq), before.nr_tokens);

	daemon_kill(&daemon);
	since = now_ms();
	/* What it holds it hits; the rest is computed, and waits. */
	assert_int_equal(hit_of(&worlds[1], &before), before.nr_tokens);
	assert_int_equal(play(&worlds[1], &during, true), 0);
	assert_int_equal(stats_of(&worlds[1]).blocks_queued, 31);
	assert_null(kv_compare(&worlds[1], seq, &before, 0, before.nr_tokens));
	assert_true(now_ms() - since < 2000);

	start_on_file(&daemon, pool, sizeof(pool));
	since = now_ms();
	while (stats_of(&worlds[1]).blocks_queued && now_ms() - since < 10000) {
		hit_of(&worlds[1], &after);
		sleep_ms(20);
	}
	assert_int_equal(stats_of(&worlds[1]).blocks_queued, 0);
	assert_int_equal(stats_of(&worlds[1]).blocks_published, 31);
	assert_null(kv_compare(&worlds[1], seq, &before, 0, before.nr_tokens));
	/* The other process hits what waited, and what it commits itself is there for all. */
	while (hit_of(&worlds[0], &during) != during.nr_tokens && now_ms() - since < 10000)
		sleep_ms(20);
	assert_int_equal(play(&worlds[0], &during, true), during.nr_tokens);
	play(&worlds[0], &after, true);
	assert_int_equal(hit_of(&worlds[1], &after), after.nr_tokens);
	omnikv_seq_close(seq);
	for (uint32_t i = 0; i < 2; i++) {
		kv_world_check(&worlds[i]);
		kv_world_detach(&worlds[i]);
	}
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
	kv_story_free(&before);
	kv_story_free(&during);
	kv_story_free(&after);
}

/* A daemon that does not answer (stopped, swapped out) is as good as none, after the deadline. */
static void a_stopped_daemon_delays_each_call_by_its_deadline_at_most(void **state)
{
	struct omnikv_attach_config config = { .size = sizeof(config), .deadline_ms = 200 };
	struct kv_story story[4];
	struct omnikv_manager *second;
	struct omnikv_error err;
	struct daemon_case daemon;
	struct kv_world world;
	uint64_t since;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, options);
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, &config);
	for (uint32_t i = 0; i < 4; i++)
		make_story(&story[i], i + 1, 10 * T);
	assert_int_equal(play(&world, &story[0], true), 0);
	kill(daemon.pid, SIGSTOP);
	since = now_ms();
	play(&world, &story[1], true);
	assert_true(now_ms() - since < 20000);
	assert_int_equal(omnikv_manager_attach(daemon.socket, &config, &second, &err), -ETIME);
	assert_non_null(strstr(err.text, daemon.socket));
	assert_non_null(strstr(err.text, "does not answer within"));
	kill(daemon.pid, SIGCONT);
	since = now_ms();
	while (stats_of(&world).blocks_queued && now_ms() - since < 10000)
		hit_of(&world, &story[0]);
	assert_int_equal(stats_of(&world).blocks_queued, 0);
	assert_int_equal(hit_of(&world, &story[1]), story[1].nr_tokens);
	kv_world_detach(&world);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
	for (uint32_t i = 0; i < 4; i++)
		kv_story_free(&story[i]);
}

/* A13: a reset takes everything that nobody uses from everybody. */
static void a_reset_reaches_every_process(void **state)
{
	struct kv_world worlds[2];
	struct daemon_case daemon;
	struct kv_story story;
	struct omnikv_seq *seq;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, options);
	make_story(&story, 1, 20 * T);
	for (uint32_t i = 0; i < 2; i++)
		kv_world_connect(&worlds[i], KV_SHAPE_FULL, T, daemon.socket, NULL);
	play(&worlds[0], &story, true);
	assert_int_equal(hit_of(&worlds[1], &story), story.nr_tokens);
	assert_int_equal(omnikv_manager_reset(worlds[0].manager), 20);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(hit_of(&worlds[i], &story), 0);
	/* What somebody reads stays as it is for as long as that. */
	play(&worlds[0], &story, true);
	seq = kv_open(&worlds[1], &story, false);
	omnikv_manager_reset(worlds[0].manager);
	for (uint32_t i = 0; i < 50; i++) {
		struct kv_story other;

		make_story(&other, 100 + i, 60 * T);
		play(&worlds[0], &other, false);
		kv_story_free(&other);
	}
	assert_null(kv_compare(&worlds[1], seq, &story, 0, story.nr_tokens));
	omnikv_seq_close(seq);
	for (uint32_t i = 0; i < 2; i++)
		kv_world_detach(&worlds[i]);
	kv_story_free(&story);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* A13: weights have changed: nothing older is hit, in no process, and after a restart of the daemon neither. */
static void a_new_epoch_outlives_the_daemon(void **state)
{
	struct kv_world worlds[2];
	struct daemon_case daemon;
	struct kv_story story, other;
	char pool[160];
	uint64_t since;

	(void)state;
	daemon_case_init(&daemon);
	start_on_file(&daemon, pool, sizeof(pool));
	make_story(&story, 1, 20 * T);
	make_story(&other, 2, 20 * T);
	for (uint32_t i = 0; i < 2; i++)
		kv_world_connect(&worlds[i], KV_SHAPE_FULL, T, daemon.socket, NULL);
	play(&worlds[0], &story, true);
	assert_int_equal(hit_of(&worlds[1], &story), story.nr_tokens);
	assert_int_equal(omnikv_manager_raise_epoch(worlds[1].manager), 1);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(hit_of(&worlds[i], &story), 0);
	play(&worlds[0], &other, true);
	daemon_kill(&daemon);
	start_on_file(&daemon, pool, sizeof(pool));
	/* Warm, but for what is older. */
	since = now_ms();
	while (hit_of(&worlds[1], &other) != other.nr_tokens && now_ms() - since < 10000)
		sleep_ms(20);
	assert_int_equal(hit_of(&worlds[1], &other), other.nr_tokens);
	assert_int_equal(hit_of(&worlds[1], &story), 0);
	while (omnikv_manager_raise_epoch(worlds[0].manager) < 0 && now_ms() - since < 10000)
		sleep_ms(20);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(hit_of(&worlds[i], &other), 0);
		kv_world_detach(&worlds[i]);
	}
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
	kv_story_free(&story);
	kv_story_free(&other);
}

/* D8: nothing is free and all could leave: an append evicts by itself, at once. */
static void a_full_pool_makes_room_at_once(void **state)
{
	struct omnikv_manager_stats shared = { .size = sizeof(shared) };
	struct daemon_case daemon;
	struct kv_world world;
	struct kv_story story;
	uint64_t longest = 0;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, (const char *const []){ "--pool", "8M", "--reserve", "0", NULL });
	kv_world_connect(&world, KV_SHAPE_HYBRID, T, daemon.socket, NULL);
	for (uint32_t i = 0; i < 200; i++) {
		uint64_t since = now_ms();

		make_story(&story, i, 40 * T + 3);
		assert_int_equal(play(&world, &story, true), 0);
		kv_story_free(&story);
		longest = now_ms() - since > longest ? now_ms() - since : longest;
	}
	assert_int_equal(omnikv_manager_shared_stats(world.manager, &shared), 0);
	assert_true(shared.blocks_evicted > 4000);
	assert_true(longest < 2000);
	/* What was used last is still there. */
	make_story(&story, 199, 40 * T + 3);
	assert_int_equal(hit_of(&world, &story), story.nr_tokens);
	kv_story_free(&story);
	kv_world_detach(&world);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* One without features is of an older version: what it would not take is not sent. Each lookup counts once, there too. */
static void uses_reach_daemons_that_take_short_lists_alone(void **state)
{
	(void)state;
	for (uint32_t is_plain = 0; is_plain < 2; is_plain++) {
		struct omnikv_manager_stats before = { .size = sizeof(before) }, after = before;
		struct daemon_case daemon;
		struct kv_world world;
		struct kv_story story;

		daemon_case_init(&daemon);
		daemon_start(&daemon, options);
		if (is_plain)
			assert_int_equal(okv_failpoint_arm(&(struct okv_failpoint){ .name = "conn.plain", .error = EIO }), 0);
		kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
		okv_failpoint_disarm_all();
		make_story(&story, 1, 2 * T);
		assert_int_equal(play(&world, &story, false), 0);
		assert_int_equal(omnikv_manager_shared_stats(world.manager, &before), 0);
		for (uint32_t i = 0; i < 999; i++)
			assert_int_equal(hit_of(&world, &story), 2 * T);
		/* What is kept back goes with the first that comes later. */
		usleep(50000);
		assert_int_equal(hit_of(&world, &story), 2 * T);
		assert_int_equal(omnikv_manager_shared_stats(world.manager, &after), 0);
		assert_int_equal(after.blocks_hit - before.blocks_hit, 2000);
		kv_story_free(&story);
		kv_world_detach(&world);
		assert_int_equal(daemon_stop(&daemon, NULL), 0);
		daemon_case_fini(&daemon);
	}
}

/* What a full pool gives up for its clients is written first; whoever asks for it later gets it back, byte for byte. */
static void what_leaves_a_full_pool_comes_back_from_nvme(void **state)
{
	char store[160], file[200];
	const char *const spilling[] = {
		"--pool", "8M", "--reserve", "1M", "--spill", store, "--spill-size", "256M", NULL,
	};

	/* Whatever the disk of this machine has to do beside. */
	const struct omnikv_attach_config patient = { .size = sizeof(patient), .deadline_ms = 30000 };

	(void)state;
	for (int shape = KV_SHAPE_FULL; shape <= KV_SHAPE_HYBRID; shape++) {
		struct omnikv_manager_stats shared = { .size = sizeof(shared) };
		struct kv_story stories[150];
		struct daemon_case daemon;
		struct kv_world world;

		daemon_case_init(&daemon);
		snprintf(store, sizeof(store), "%s/store", daemon.dir);
		snprintf(file, sizeof(file), "%s/omnikv.spill", store);
		daemon_start(&daemon, spilling);
		kv_world_connect(&world, shape, T, daemon.socket, &patient);
		for (uint32_t i = 0; i < 150; i++) {
			make_story(&stories[i], i, 40 * T + 8);
			assert_int_equal(play(&world, &stories[i], true), 0);
		}
		assert_int_equal(omnikv_manager_shared_stats(world.manager, &shared), 0);
		assert_true(shared.blocks_evicted > 500);
		assert_int_equal(shared.blocks_spilled, shared.blocks_evicted);
		assert_int_equal(shared.blocks_lost, 0);
		kv_world_detach(&world);
		/* Paths leave from their ends: of some the begin is in memory, and only the rest on NVMe. */
		kv_world_connect(&world, shape, T, daemon.socket, &patient);
		for (uint32_t i = 150; i-- > 0;)
			assert_int_equal(hit_of(&world, &stories[i]), stories[i].nr_tokens);
		assert_int_equal(omnikv_manager_shared_stats(world.manager, &shared), 0);
		assert_true(shared.blocks_hit_nvme > 500);
		assert_int_equal(shared.blocks_lost, 0);
		kv_world_check(&world);
		kv_world_detach(&world);
		for (uint32_t i = 0; i < 150; i++)
			kv_story_free(&stories[i]);
		assert_int_equal(daemon_stop(&daemon, NULL), 0);
		unlink(file);
		rmdir(store);
		daemon_case_fini(&daemon);
	}
}

/* Of a prompt that is longer than one frame, and than two, nothing is missing: whoever asks sees no bound. */
static void the_longest_prompts_come_back_from_nvme_whole(void **state)
{
	char store[160], file[200];
	const char *const spilling[] = {
		"--pool", "48M", "--reserve", "1M", "--spill", store, "--spill-size", "512M", NULL,
	};

	/* Thousands of blocks are written for one append, on whatever disk this is. */
	const struct omnikv_attach_config patient = { .size = sizeof(patient), .deadline_ms = 60000 };

	(void)state;
	for (int shape = KV_SHAPE_FULL; shape <= KV_SHAPE_HYBRID; shape++) {
		struct omnikv_manager_stats shared = { .size = sizeof(shared) };
		const uint64_t nr_blocks = shape == KV_SHAPE_MIXED ? 2300 : 4100;
		struct kv_story story, other;
		struct daemon_case daemon;
		struct omnikv_key *keys;
		struct kv_world world;

		daemon_case_init(&daemon);
		snprintf(store, sizeof(store), "%s/store", daemon.dir);
		snprintf(file, sizeof(file), "%s/omnikv.spill", store);
		daemon_start(&daemon, spilling);
		kv_world_connect(&world, shape, T, daemon.socket, &patient);
		make_story(&story, 1, nr_blocks * T + 8);
		assert_int_equal(play(&world, &story, true), 0);
		keys = kv_keys(&world, &story, nr_blocks);
		for (uint32_t round = 0; round < 2; round++) {
			for (uint32_t i = 0; i < 4; i++) {
				make_story(&other, 100 + 10 * round + i, nr_blocks * T);
				play(&world, &other, false);
				kv_story_free(&other);
			}
			assert_int_equal(omnikv_lookup(world.space, keys, nr_blocks), 0);
			if (round && shape == KV_SHAPE_FULL)
				assert_int_equal(omnikv_space_prefetch(world.space, keys, nr_blocks), nr_blocks);
			assert_int_equal(hit_of(&world, &story), story.nr_tokens);
		}
		assert_int_equal(omnikv_manager_shared_stats(world.manager, &shared), 0);
		assert_int_equal(shared.blocks_lost, 0);
		kv_world_check(&world);
		kv_world_detach(&world);
		free(keys);
		kv_story_free(&story);
		assert_int_equal(daemon_stop(&daemon, NULL), 0);
		unlink(file);
		rmdir(store);
		daemon_case_fini(&daemon);
	}
}

/* F1: the same tokens of another tenant, adapter, salt or epoch are another prefix, over a daemon too. */
static void tenants_of_a_daemon_never_share_a_hit(void **state)
{
	struct omnikv_namespace others[4];
	struct daemon_case daemon;
	struct omnikv_key *keys;
	struct kv_world world;
	struct kv_story story;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, options);
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	make_story(&story, 1, 20 * T);
	play(&world, &story, true);
	keys = kv_keys(&world, &story, 20);
	for (uint32_t i = 0; i < 4; i++)
		others[i] = world.ns;
	others[0].tenant = "u";
	others[1].adapter = "a";
	others[2].salt = "s";
	others[2].salt_len = 1;
	others[3].epoch = 1;
	for (uint32_t i = 0; i < 4; i++) {
		struct omnikv_space *space;
		struct omnikv_seq *seq;

		assert_int_equal(omnikv_space_open(world.manager, &others[i], &world.plan, &space, NULL), 0);
		assert_int_equal(omnikv_lookup(space, keys, 20), 0);
		assert_int_equal(omnikv_seq_open(space, keys, 20, NULL, &seq), 0);
		assert_int_equal(omnikv_seq_tokens(seq), 0);
		omnikv_seq_close(seq);
		omnikv_space_close(space);
	}
	assert_int_equal(omnikv_lookup(world.space, keys, 20), 20);
	free(keys);
	kv_story_free(&story);
	kv_world_detach(&world);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

static void who_computes_a_block_is_waited_for(void **state)
{
	struct kv_world worlds[2];
	struct daemon_case daemon;
	struct omnikv_key *keys;
	struct kv_story story;
	uint64_t since;
	pid_t pid;
	int status;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, options);
	make_story(&story, 1, 20 * T);
	kv_world_connect(&worlds[0], KV_SHAPE_FULL, T, daemon.socket, NULL);
	keys = kv_keys(&worlds[0], &story, 20);
	assert_int_equal(omnikv_space_wait(worlds[0].space, &keys[3], 5000), 0);
	pid = fork();
	if (!pid) {
		kv_world_connect(&worlds[1], KV_SHAPE_FULL, T, daemon.socket, NULL);
		KV_MUST(!omnikv_space_promise(worlds[1].space, keys, 20, 60000));
		raise(SIGSTOP);
		play(&worlds[1], &story, true);
		KV_MUST(!omnikv_space_promise(worlds[1].space, keys, 20, 60000));
		raise(SIGSTOP);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	since = now_ms();
	assert_int_equal(omnikv_space_wait(worlds[0].space, &keys[3], 300), -ETIME);
	assert_true(now_ms() - since >= 290);
	kill(pid, SIGCONT);
	assert_int_equal(omnikv_space_wait(worlds[0].space, &keys[19], 20000), 1);
	assert_int_equal(hit_of(&worlds[0], &story), story.nr_tokens);
	/* It ends: so does what it promised. */
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	omnikv_manager_reset(worlds[0].manager);
	kill(pid, SIGKILL);
	since = now_ms();
	assert_int_equal(omnikv_space_wait(worlds[0].space, &keys[3], 20000), 0);
	assert_true(now_ms() - since < 5000);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	free(keys);
	kv_world_detach(&worlds[0]);
	kv_story_free(&story);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* I2, B1: a process is killed in the midst of anything; its memory and its leases are there again. */
static void a_killed_process_leaves_nothing_behind(void **state)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct daemon_case daemon;
	struct kv_world world;
	struct kv_story story;
	uint64_t since;
	int status;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, options);
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	for (uint32_t round = 0; round < 10; round++) {
		pid_t pid = fork();

		if (!pid) {
			struct kv_world mine;

			kv_world_connect(&mine, KV_SHAPE_FULL, T, daemon.socket, NULL);
			for (uint32_t i = 0;; i++) {
				make_story(&story, i % 50, 40 * T);
				play(&mine, &story, true);
				kv_story_free(&story);
			}
		}
		sleep_ms(50 + 10 * round);
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, &status, 0), pid);
	}
	assert_int_equal(omnikv_manager_reset(world.manager) > 0, 1);
	since = now_ms();
	do {
		sleep_ms(10);
		omnikv_manager_reset(world.manager);
		assert_int_equal(omnikv_pool_info(world.pool, &info), 0);
	} while ((info.state_bytes[OMNIKV_EXTENT_SEALED] || info.state_bytes[OMNIKV_EXTENT_QUARANTINED] ||
		  info.state_bytes[OMNIKV_EXTENT_PRIVATE] > RESERVE) && now_ms() - since < 3000);
	assert_int_equal(info.state_bytes[OMNIKV_EXTENT_SEALED], 0);
	assert_int_equal(info.state_bytes[OMNIKV_EXTENT_QUARANTINED], 0);
	/* What is left is this process's own reserve. */
	assert_true(info.state_bytes[OMNIKV_EXTENT_PRIVATE] <= RESERVE);
	kv_world_detach(&world);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_one_commits_another_process_hits),
		cmocka_unit_test(the_last_lookups_are_counted_where_sums_are_asked_for_and_at_the_end),
		cmocka_unit_test(a_forked_childs_lookups_are_misses),
		cmocka_unit_test(a_killed_daemon_costs_hits_and_nothing_else),
		cmocka_unit_test(a_stopped_daemon_delays_each_call_by_its_deadline_at_most),
		cmocka_unit_test(a_reset_reaches_every_process),
		cmocka_unit_test(a_new_epoch_outlives_the_daemon),
		cmocka_unit_test(a_full_pool_makes_room_at_once),
		cmocka_unit_test(uses_reach_daemons_that_take_short_lists_alone),
		cmocka_unit_test(what_leaves_a_full_pool_comes_back_from_nvme),
		cmocka_unit_test(the_longest_prompts_come_back_from_nvme_whole),
		cmocka_unit_test(tenants_of_a_daemon_never_share_a_hit),
		cmocka_unit_test(who_computes_a_block_is_waited_for),
		cmocka_unit_test(a_killed_process_leaves_nothing_behind),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

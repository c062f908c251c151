// SPDX-License-Identifier: GPL-2.0-only
/*
 * What went wrong in other caches, tried over a real omnikvd: each test is named by what users saw there, and shows that it
 * does not happen here.
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
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/harness/daemon_case.h"
#include "tests/harness/kv_world.h"

#define T	16u
#define BLOCKS	40u
#define NOBODY	65534

static void make_story(struct kv_story *story, uint32_t salt)
{
	*story = (struct kv_story){ 0 };
	for (uint64_t i = 0; i < BLOCKS * T; i++)
		kv_story_add(story, salt * 100000 + i);
}

/* Compute and commit; the sequence stays open. */
static struct omnikv_seq *compute(const struct kv_world *world, const struct kv_story *story)
{
	struct omnikv_seq *seq = kv_open(world, story, false);

	KV_MUST(!omnikv_seq_append(seq, story->nr_tokens - omnikv_seq_tokens(seq)));
	kv_store(world, seq, story, 0, story->nr_tokens);
	KV_MUST(kv_commit(world, seq, story, false) >= 0);
	return seq;
}

static uint64_t hit_of(const struct kv_world *world, const struct kv_story *story)
{
	struct omnikv_seq *seq = kv_open(world, story, false);
	uint64_t hit = omnikv_seq_tokens(seq);

	KV_MUST(!hit || !kv_compare(world, seq, story, 0, hit));
	omnikv_seq_close(seq);
	return hit;
}

static void start_on_file(struct daemon_case *daemon, const char *size)
{
	char pool[160];

	snprintf(pool, sizeof(pool), "embedded:%s:%s/pool", size, daemon->dir);
	daemon_start(daemon, (const char *const []){ "--pool", pool, "--reserve", "0", NULL });
}

/* A1: a block was hit while the transfer that writes it was still running. */
static void a_lookup_hits_a_block_that_is_being_written(void **state)
{
	struct omnikv_piece pieces[BLOCKS];
	struct kv_world worlds[2];
	struct daemon_case daemon;
	struct omnikv_seq *seq;
	struct kv_story story;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, (const char *const []){ "--pool", "16M", "--reserve", "0", NULL });
	for (uint32_t i = 0; i < 2; i++)
		kv_world_connect(&worlds[i], KV_SHAPE_FULL, T, daemon.socket, NULL);
	make_story(&story, 1);
	seq = kv_open(&worlds[0], &story, false);
	assert_int_equal(omnikv_seq_append(seq, story.nr_tokens), 0);
	kv_store(&worlds[0], seq, &story, 0, story.nr_tokens);
	assert_int_equal(omnikv_seq_pieces(seq, 0, 0, 0, 0, story.nr_tokens, 0, pieces, BLOCKS), BLOCKS);
	/* As a ring counts a store that is under way. */
	assert_int_equal(omnikv_extent_io_get(omnikv_manager_client(worlds[0].manager), &pieces[7].extent, 1), 0);
	assert_int_equal(kv_commit(&worlds[0], seq, &story, false), -EBUSY);
	assert_true(hit_of(&worlds[1], &story) <= 7 * T);
	omnikv_extent_io_put(omnikv_manager_client(worlds[0].manager), &pieces[7].extent, 1);
	assert_true(kv_commit(&worlds[0], seq, &story, false) > 0);
	assert_int_equal(hit_of(&worlds[1], &story), story.nr_tokens);
	omnikv_seq_close(seq);
	for (uint32_t i = 0; i < 2; i++)
		kv_world_detach(&worlds[i]);
	kv_story_free(&story);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* C5: each of several ranks was told that there is room, and together they took more than there is. */
static void ranks_that_pass_the_check_alone_overcommit_together(void **state)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_seq *seqs[4] = { NULL };
	struct kv_world worlds[4];
	struct daemon_case daemon;
	uint64_t nr_tokens;
	uint32_t nr_in = 0;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, (const char *const []){ "--pool", "8M", "--reserve", "0", NULL });
	for (uint32_t i = 0; i < 4; i++)
		kv_world_connect(&worlds[i], KV_SHAPE_FULL, T, daemon.socket, NULL);
	assert_int_equal(omnikv_pool_info(worlds[0].pool, &info), 0);
	nr_tokens = info.free_bytes / omnikv_plan_block_bytes(&worlds[0].plan) * 2 / 5 * T;
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(omnikv_admit(worlds[i].space, nr_tokens), 1);
	for (uint32_t i = 0; i < 4; i++) {
		int ret;

		assert_int_equal(omnikv_seq_open(worlds[i].space, NULL, 0, NULL, &seqs[i]), 0);
		ret = omnikv_seq_append(seqs[i], nr_tokens);
		assert_true(ret == 0 || ret == -ENOSPC);
		assert_int_equal(omnikv_seq_tokens(seqs[i]), ret ? 0 : nr_tokens);
		nr_in += !ret;
	}
	/* Those that have it have it, and the others are told at once. */
	assert_int_equal(nr_in, 2);
	assert_int_equal(omnikv_admit(worlds[3].space, nr_tokens), 0);
	for (uint32_t i = 0; i < 4; i++) {
		omnikv_seq_close(seqs[i]);
		kv_world_detach(&worlds[i]);
	}
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* E5: so many blocks were said to be restored, and nothing of them could be used. */
static void blocks_are_counted_as_restored_and_cannot_be_used(void **state)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };
	struct daemon_case daemon;
	struct kv_story story;
	struct kv_world world;

	(void)state;
	daemon_case_init(&daemon);
	start_on_file(&daemon, "16M");
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	make_story(&story, 1);
	omnikv_seq_close(compute(&world, &story));
	kv_world_detach(&world);
	daemon_kill(&daemon);
	start_on_file(&daemon, "16M");
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	assert_int_equal(omnikv_manager_shared_stats(world.manager, &stats), 0);
	assert_int_equal(stats.blocks_recovered, BLOCKS);
	assert_int_equal(stats.blocks_dropped, 0);
	assert_int_equal(hit_of(&world, &story), stats.blocks_recovered * T);
	kv_world_detach(&world);
	kv_story_free(&story);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* F6: whoever could reach the socket could clear the cache, or change what it is for. */
static void strangers_clear_the_cache(void **state)
{
	struct daemon_case daemon;
	struct kv_story story;
	struct kv_world world;
	int status;
	pid_t pid;

	(void)state;
	if (geteuid())
		skip();
	daemon_case_init(&daemon);
	daemon_start(&daemon, (const char *const []){ "--pool", "16M", "--reserve", "0", NULL });
	assert_int_equal(chmod(daemon.dir, 0755), 0);
	assert_int_equal(chmod(daemon.socket, 0666), 0);
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	make_story(&story, 1);
	omnikv_seq_close(compute(&world, &story));
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		struct omnikv_manager *manager;
		struct omnikv_error err;
		int ret;

		if (setgid(NOBODY) || setuid(NOBODY))
			_exit(2);
		ret = omnikv_manager_attach(daemon.socket, NULL, &manager, &err);
		if (!ret)
			omnikv_manager_reset(manager);
		_exit(ret < 0 && err.text[0] ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_true(daemon_said(&daemon, "of user 65534"));
	assert_int_equal(hit_of(&world, &story), story.nr_tokens);
	kv_world_detach(&world);
	kv_story_free(&story);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_lookup_hits_a_block_that_is_being_written),
		cmocka_unit_test(ranks_that_pass_the_check_alone_overcommit_together),
		cmocka_unit_test(blocks_are_counted_as_restored_and_cannot_be_used),
		cmocka_unit_test(strangers_clear_the_cache),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

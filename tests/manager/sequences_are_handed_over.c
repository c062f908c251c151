// SPDX-License-Identifier: GPL-2.0-only
/*
 * A sequence goes from one process to another by a ticket of omnikvd: whole, byte for byte, whatever the pool is full of
 * meanwhile and whoever of the two dies when; and nothing of it stays behind.
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
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "failpoint.h"
#include "manager/authority.h"
#include "tests/harness/daemon_case.h"
#include "tests/harness/kv_world.h"

#define T		16u
#define MINUTE_MS	60000u

/* Some 2,000 blocks of 4 KiB. */
static const char *const options[] = { "--pool", "8M", "--reserve", "0", NULL };

static struct omnikv_ticket *board;	/* which both processes see */

static void make_story(struct kv_story *story, uint32_t salt, uint64_t nr_tokens)
{
	*story = (struct kv_story){ 0 };
	for (uint64_t i = 0; i < nr_tokens; i++)
		kv_story_add(story, salt * 100000 + i);
}

/* Compute it, commit all of it; the sequence stays open. */
static struct omnikv_seq *compute(const struct kv_world *world, const struct kv_story *story)
{
	struct omnikv_seq *seq = kv_open(world, story, true);
	uint64_t hit = omnikv_seq_tokens(seq);

	if (hit < story->nr_tokens) {
		KV_MUST(!omnikv_seq_append(seq, story->nr_tokens - hit));
		kv_store(world, seq, story, hit, story->nr_tokens);
		KV_MUST(kv_commit(world, seq, story, true) >= 0);
	}
	return seq;
}

static void flood(const struct kv_world *world, uint32_t nr)
{
	static uint32_t salt = 1000;
	struct kv_story story;

	while (nr--) {
		make_story(&story, salt++, 40 * T);
		omnikv_seq_close(compute(world, &story));
		kv_story_free(&story);
	}
}

static struct omnikv_manager_stats shared_stats(const struct kv_world *world)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	KV_MUST(!omnikv_manager_shared_stats(world->manager, &stats));
	return stats;
}

/* All that can leave leaves: one sequence takes the whole of the pool. */
static void squeeze(const struct kv_world *world)
{
	struct omnikv_seq *seq;

	assert_int_equal(omnikv_seq_open(world->space, NULL, 0, NULL, &seq), 0);
	while (!omnikv_seq_append(seq, 8 * T))
		;
	omnikv_seq_close(seq);
}

/* A process that computes and gives, and is killed then. */
static void give_and_die(const struct daemon_case *daemon, enum kv_shape shape, const struct kv_story *story,
			 uint32_t timeout_ms)
{
	pid_t pid = fork();
	int status;

	KV_MUST(pid >= 0);
	if (!pid) {
		struct omnikv_seq *seq;
		struct kv_world mine;

		kv_world_connect(&mine, shape, T, daemon->socket, NULL);
		seq = compute(&mine, story);
		KV_MUST(!omnikv_seq_give(seq, timeout_ms, board));
		raise(SIGKILL);
	}
	KV_MUST(waitpid(pid, &status, 0) == pid);
	KV_MUST(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

/* Nothing is retained or leased any more: all of it can go. */
static void nothing_is_left(const struct kv_world *world)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	uint64_t since = now_ms();

	assert_int_equal(shared_stats(world).nr_retentions, 0);
	do {
		sleep_ms(10);
		omnikv_manager_reset(world->manager);
		assert_int_equal(omnikv_pool_info(world->pool, &info), 0);
	} while ((info.state_bytes[OMNIKV_EXTENT_SEALED] || info.state_bytes[OMNIKV_EXTENT_QUARANTINED]) &&
		 now_ms() - since < 5000);
	assert_int_equal(info.state_bytes[OMNIKV_EXTENT_SEALED], 0);
	assert_int_equal(info.state_bytes[OMNIKV_EXTENT_QUARANTINED], 0);
}

static void a_giver_that_dies_has_given(void **state)
{
	(void)state;
	for (int shape = KV_SHAPE_FULL; shape <= KV_SHAPE_HYBRID; shape++) {
		struct daemon_case daemon;
		struct omnikv_seq *seq;
		struct kv_story story;
		struct kv_world world;

		daemon_case_init(&daemon);
		daemon_start(&daemon, options);
		make_story(&story, 1, 60 * T + 8);
		give_and_die(&daemon, shape, &story, MINUTE_MS);
		kv_world_connect(&world, shape, T, daemon.socket, NULL);
		flood(&world, 120);
		assert_true(shared_stats(&world).blocks_evicted > 1000);
		squeeze(&world);
		assert_int_equal(shared_stats(&world).nr_retentions, 1);
		assert_int_equal(omnikv_seq_take(world.space, board, &seq), 0);
		assert_int_equal(omnikv_seq_tokens(seq), story.nr_tokens);
		assert_int_equal(shared_stats(&world).nr_retentions, 0);
		/* Held by this process's leases from here on. */
		squeeze(&world);
		assert_null(kv_compare(&world, seq, &story, 0, story.nr_tokens));
		if (shape == KV_SHAPE_HYBRID)
			assert_true(kv_state_is_right(&world, seq, &story, story.nr_tokens));
		/* Once. */
		{
			struct omnikv_seq *twice;

			assert_int_equal(omnikv_seq_take(world.space, board, &twice), -ESTALE);
		}
		omnikv_seq_close(seq);
		nothing_is_left(&world);
		kv_world_detach(&world);
		kv_story_free(&story);
		assert_int_equal(daemon_stop(&daemon, NULL), 0);
		daemon_case_fini(&daemon);
	}
}

/* At each moment of taking: another one takes it then, and what the dead one had is free. */
static void a_taker_that_dies_leaves_it_to_another(void **state)
{
	static const char *const points[] = { "handover.told", "import.find", "import.found", "handover.held" };

	(void)state;
	for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
		struct daemon_case daemon;
		struct omnikv_seq *seq;
		struct kv_story story;
		struct kv_world world;
		int status;
		pid_t pid;

		daemon_case_init(&daemon);
		daemon_start(&daemon, options);
		make_story(&story, 1, 60 * T + 8);
		give_and_die(&daemon, KV_SHAPE_HYBRID, &story, MINUTE_MS);
		pid = fork();
		assert_true(pid >= 0);
		if (!pid) {
			kv_world_connect(&world, KV_SHAPE_HYBRID, T, daemon.socket, NULL);
			okv_failpoint_arm(&(struct okv_failpoint){ .name = points[i], .flags = OKV_FAILPOINT_F_KILL });
			omnikv_seq_take(world.space, board, &seq);
			_exit(3);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		kv_world_connect(&world, KV_SHAPE_HYBRID, T, daemon.socket, NULL);
		flood(&world, 120);
		assert_int_equal(omnikv_seq_take(world.space, board, &seq), 0);
		assert_int_equal(omnikv_seq_tokens(seq), story.nr_tokens);
		assert_null(kv_compare(&world, seq, &story, 0, story.nr_tokens));
		omnikv_seq_close(seq);
		nothing_is_left(&world);
		kv_world_detach(&world);
		kv_story_free(&story);
		assert_int_equal(daemon_stop(&daemon, NULL), 0);
		daemon_case_fini(&daemon);
	}
}

struct rival {
	struct kv_world		world;
	struct omnikv_seq	*seq;
	int			ret;
};

static int take_before(void *opaque, const char *name)
{
	struct rival *rival = opaque;

	okv_failpoint_disarm(name);
	rival->ret = omnikv_seq_take(rival->world.space, board, &rival->seq);
	return 0;
}

/* Both were told its keys, and both hold its blocks, when one of them ends it. */
static void a_ticket_that_two_take_at_once_is_had_by_one(void **state)
{
	struct daemon_case daemon;
	struct rival rival = { .ret = 1 };
	struct omnikv_seq *seq = NULL;
	struct kv_story story;
	struct kv_world world;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, options);
	make_story(&story, 1, 60 * T + 8);
	give_and_die(&daemon, KV_SHAPE_FULL, &story, MINUTE_MS);
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	kv_world_connect(&rival.world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	okv_failpoint_arm(&(struct okv_failpoint){ .name = "handover.held", .fn = take_before, .opaque = &rival });
	assert_int_equal(omnikv_seq_take(world.space, board, &seq), -ESTALE);
	assert_null(seq);
	assert_int_equal(rival.ret, 0);
	assert_null(kv_compare(&rival.world, rival.seq, &story, 0, story.nr_tokens));
	omnikv_seq_close(rival.seq);
	kv_world_detach(&rival.world);
	nothing_is_left(&world);
	kv_world_detach(&world);
	kv_story_free(&story);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

static void what_nobody_takes_is_free_after_its_time(void **state)
{
	struct daemon_case daemon;
	struct omnikv_seq *seq;
	struct kv_story story;
	struct kv_world world;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, options);
	make_story(&story, 1, 40 * T);
	give_and_die(&daemon, KV_SHAPE_FULL, &story, 200);
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	sleep_ms(250);
	assert_int_equal(omnikv_seq_take(world.space, board, &seq), -ESTALE);
	flood(&world, 120);
	seq = kv_open(&world, &story, false);
	assert_int_equal(omnikv_seq_tokens(seq), 0);
	omnikv_seq_close(seq);
	nothing_is_left(&world);
	kv_world_detach(&world);
	kv_story_free(&story);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* Longer than one answer has keys; and both go on with what they have, each in its own way. */
static void who_keeps_it_has_a_fork_of_it(void **state)
{
	struct kv_story story, mine, theirs;
	struct kv_world worlds[2];
	struct daemon_case daemon;
	struct omnikv_seq *seqs[2];

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, (const char *const []){ "--pool", "128M", "--reserve", "0", "--pins", "64M", NULL });
	make_story(&story, 1, 2500 * T + 4);
	for (uint32_t i = 0; i < 2; i++)
		kv_world_connect(&worlds[i], KV_SHAPE_MIXED, T, daemon.socket, NULL);
	seqs[0] = compute(&worlds[0], &story);
	assert_int_equal(omnikv_seq_give(seqs[0], MINUTE_MS, board), 0);
	assert_int_equal(omnikv_seq_take(worlds[1].space, board, &seqs[1]), 0);
	assert_int_equal(omnikv_seq_tokens(seqs[1]), story.nr_tokens);
	kv_story_copy(&mine, &story, story.nr_tokens);
	kv_story_copy(&theirs, &story, story.nr_tokens);
	for (uint32_t i = 0; i < 3 * T; i++) {
		kv_story_add(&mine, 7000000 + i);
		kv_story_add(&theirs, 8000000 + i);
	}
	for (uint32_t i = 0; i < 2; i++) {
		const struct kv_story *longer = i ? &theirs : &mine;

		assert_int_equal(omnikv_seq_append(seqs[i], 3 * T), 0);
		kv_store(&worlds[i], seqs[i], longer, story.nr_tokens, longer->nr_tokens);
		assert_true(kv_commit(&worlds[i], seqs[i], longer, true) > 0);
	}
	assert_null(kv_compare(&worlds[0], seqs[0], &mine, 0, mine.nr_tokens));
	assert_null(kv_compare(&worlds[1], seqs[1], &theirs, 0, theirs.nr_tokens));
	for (uint32_t i = 0; i < 2; i++) {
		omnikv_seq_close(seqs[i]);
		kv_world_check(&worlds[i]);
	}
	kv_world_detach(&worlds[0]);
	nothing_is_left(&worlds[1]);
	kv_world_detach(&worlds[1]);
	kv_story_free(&story);
	kv_story_free(&mine);
	kv_story_free(&theirs);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* The daemon dies with the ticket; what it named stays cached, for who has the keys. */
static void a_ticket_ends_with_the_daemon_and_the_blocks_do_not(void **state)
{
	struct daemon_case daemon;
	struct omnikv_seq *seq;
	struct kv_story story;
	struct kv_world world;
	char pool[160];

	(void)state;
	daemon_case_init(&daemon);
	snprintf(pool, sizeof(pool), "embedded:8M:%s/pool", daemon.dir);
	daemon_start(&daemon, (const char *const []){ "--pool", pool, "--reserve", "0", NULL });
	make_story(&story, 1, 40 * T);
	give_and_die(&daemon, KV_SHAPE_FULL, &story, MINUTE_MS);
	daemon_kill(&daemon);
	daemon_start(&daemon, (const char *const []){ "--pool", pool, "--reserve", "0", NULL });
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	assert_int_equal(omnikv_seq_take(world.space, board, &seq), -ESTALE);
	seq = kv_open(&world, &story, false);
	assert_int_equal(omnikv_seq_tokens(seq), story.nr_tokens);
	assert_null(kv_compare(&world, seq, &story, 0, story.nr_tokens));
	omnikv_seq_close(seq);
	nothing_is_left(&world);
	kv_world_detach(&world);
	kv_story_free(&story);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

static void what_is_no_ticket_is_refused(void **state)
{
	struct omnikv_namespace tenant;
	struct omnikv_space *other;
	struct daemon_case daemon;
	struct omnikv_seq *seq, *taken;
	struct kv_story story;
	struct kv_world world;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, options);
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	make_story(&story, 1, 20 * T);
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_give(seq, MINUTE_MS, board), -EINVAL);
	assert_int_equal(omnikv_seq_append(seq, T), 0);
	assert_int_equal(omnikv_seq_give(seq, MINUTE_MS, board), -EINVAL);
	omnikv_seq_close(seq);
	seq = compute(&world, &story);
	assert_int_equal(omnikv_seq_give(seq, 0, board), -EINVAL);
	assert_int_equal(omnikv_seq_give(seq, OMNIKV_GIVE_MS_MAX + 1, board), -EINVAL);
	assert_int_equal(omnikv_seq_give(NULL, MINUTE_MS, board), -EINVAL);
	assert_int_equal(omnikv_seq_give(seq, MINUTE_MS, board), 0);
	/* Of another tenant's, and with half of it guessed. */
	tenant = world.ns;
	tenant.tenant = "u";
	assert_int_equal(omnikv_space_open(world.manager, &tenant, &world.plan, &other, NULL), 0);
	assert_int_equal(omnikv_seq_take(other, board, &taken), -ESTALE);
	for (uint32_t i = 0; i < 16; i += 15) {
		board->bytes[i] ^= 1;
		assert_int_equal(omnikv_seq_take(world.space, board, &taken), -ESTALE);
		board->bytes[i] ^= 1;
	}
	assert_int_equal(omnikv_seq_take(world.space, board, &taken), 0);
	omnikv_seq_close(taken);
	/* Older weights are not handed on. */
	assert_int_equal(omnikv_seq_give(seq, MINUTE_MS, board), 0);
	assert_true(omnikv_manager_raise_epoch(world.manager) > 0);
	assert_int_equal(omnikv_seq_take(world.space, board, &taken), -ESTALE);
	assert_int_equal(omnikv_seq_give(seq, MINUTE_MS, board), -ESTALE);
	omnikv_seq_close(seq);
	omnikv_space_close(other);
	nothing_is_left(&world);
	kv_world_detach(&world);
	kv_story_free(&story);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* With a manager of one's own: between threads, or one part of a program and another. */
static void it_works_within_a_process_too(void **state)
{
	(void)state;
	for (int shape = KV_SHAPE_FULL; shape <= KV_SHAPE_HYBRID; shape++) {
		struct omnikv_seq *seq, *taken;
		struct kv_story story;
		struct kv_world world;

		kv_world_open(&world, shape, T, 200);
		make_story(&story, 1, 20 * T + 8);
		seq = compute(&world, &story);
		assert_int_equal(omnikv_seq_give(seq, MINUTE_MS, board), 0);
		omnikv_seq_close(seq);
		flood(&world, 40);
		assert_int_equal(omnikv_seq_take(world.space, board, &taken), 0);
		assert_int_equal(omnikv_seq_tokens(taken), story.nr_tokens);
		assert_null(kv_compare(&world, taken, &story, 0, story.nr_tokens));
		omnikv_seq_close(taken);
		assert_int_equal(omnikv_seq_take(world.space, board, &taken), -ESTALE);
		kv_story_free(&story);
		kv_world_close(&world);
	}
}

/* How often its blocks are looked at does not grow with the number of answers that its keys take. */
static void a_long_sequence_is_looked_at_no_more_than_twice(void **state)
{
	const uint64_t nr_blocks = 5 * OKV_HANDED_KEYS + 5;
	struct omnikv_manager_config config = { .size = sizeof(config), .pin_bytes = 2 * nr_blocks * 4096 };
	struct omnikv_seq *seq, *taken;
	struct kv_story story;
	struct kv_world world;
	uint64_t nr_looks;

	(void)state;
	kv_world_open_config(&world, KV_SHAPE_FULL, 4, 4 * nr_blocks, &config);
	make_story(&story, 1, nr_blocks * 4 - 2);
	seq = compute(&world, &story);
	assert_int_equal(omnikv_seq_give(seq, MINUTE_MS, board), 0);
	omnikv_seq_close(seq);
	assert_int_equal(okv_failpoint_arm(&(struct okv_failpoint){ .name = "handover.look", .nth = UINT32_MAX }), 0);
	assert_int_equal(omnikv_seq_take(world.space, board, &taken), 0);
	nr_looks = okv_failpoint_hits("handover.look");
	okv_failpoint_disarm_all();
	print_message("# %llu blocks, %llu looks\n", (unsigned long long)nr_blocks, (unsigned long long)nr_looks);
	assert_in_range(nr_looks, nr_blocks, 2 * nr_blocks);
	assert_int_equal(omnikv_seq_tokens(taken), story.nr_tokens);
	assert_null(kv_compare(&world, taken, &story, 0, story.nr_tokens));
	omnikv_seq_close(taken);
	kv_story_free(&story);
	kv_world_close(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_giver_that_dies_has_given),
		cmocka_unit_test(a_taker_that_dies_leaves_it_to_another),
		cmocka_unit_test(a_ticket_that_two_take_at_once_is_had_by_one),
		cmocka_unit_test(what_nobody_takes_is_free_after_its_time),
		cmocka_unit_test(who_keeps_it_has_a_fork_of_it),
		cmocka_unit_test(a_ticket_ends_with_the_daemon_and_the_blocks_do_not),
		cmocka_unit_test(what_is_no_ticket_is_refused),
		cmocka_unit_test(it_works_within_a_process_too),
		cmocka_unit_test(a_long_sequence_is_looked_at_no_more_than_twice),
	};

	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (board == MAP_FAILED)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pins, priorities and hints of processes that share a real omnikvd: kept against the others, within bounds, until their
 * time is over or their process has ended; and brought to the daemon that follows.
 */
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
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
#define BLOCKS	40u
#define HOUR_MS	3600000u

/* Some 2,000 blocks of 4 KiB: a flood of 80 stories goes through it more than once. */
static const char *const options[] = { "--pool", "8M", "--reserve", "0", NULL };

static struct omnikv_manager_stats shared_stats(const struct kv_world *world)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	KV_MUST(!omnikv_manager_shared_stats(world->manager, &stats));
	return stats;
}

static void make_story(struct kv_story *story, uint32_t salt)
{
	*story = (struct kv_story){ 0 };
	for (uint64_t i = 0; i < BLOCKS * T; i++)
		kv_story_add(story, salt * 100000 + i);
}

/* As a request does; how many blocks hit. */
static uint64_t play(const struct kv_world *world, uint32_t salt)
{
	struct omnikv_seq *seq;
	struct kv_story story;
	uint64_t hit;

	make_story(&story, salt);
	seq = kv_open(world, &story, false);
	hit = omnikv_seq_tokens(seq);
	KV_MUST(!hit || !kv_compare(world, seq, &story, 0, hit));
	if (hit < story.nr_tokens) {
		KV_MUST(!omnikv_seq_append(seq, story.nr_tokens - hit));
		kv_store(world, seq, &story, hit, story.nr_tokens);
		KV_MUST(kv_commit(world, seq, &story, false) >= 0);
	}
	omnikv_seq_close(seq);
	kv_story_free(&story);
	return hit / T;
}

static uint64_t cached(const struct kv_world *world, uint32_t salt)
{
	struct omnikv_key *keys;
	struct kv_story story;
	int64_t nr;

	make_story(&story, salt);
	keys = kv_keys(world, &story, BLOCKS);
	nr = omnikv_lookup(world->space, keys, BLOCKS);
	free(keys);
	kv_story_free(&story);
	return nr;
}

static int64_t retain(const struct kv_world *world, uint32_t salt, struct omnikv_retention how)
{
	struct omnikv_key *keys;
	struct kv_story story;
	int64_t nr;

	how.size = sizeof(how);
	how.session = how.session ? how.session : salt;
	make_story(&story, salt);
	keys = kv_keys(world, &story, BLOCKS);
	nr = omnikv_space_retain(world->space, keys, BLOCKS, NULL, &how);
	free(keys);
	kv_story_free(&story);
	return nr;
}

static int64_t pin(const struct kv_world *world, uint32_t salt, uint32_t ttl_ms)
{
	return retain(world, salt, (struct omnikv_retention){ .flags = OMNIKV_RETAIN_F_PIN, .ttl_ms = ttl_ms });
}

static void flood(const struct kv_world *world, uint32_t nr)
{
	static uint32_t salt = 1000;

	while (nr--)
		play(world, salt++);
}

/* Wait until the daemon has so many. */
static void wait_for_retentions(const struct kv_world *world, uint64_t nr)
{
	uint64_t since = now_ms();

	while (shared_stats(world).nr_retentions != nr && now_ms() - since < 10000)
		sleep_ms(10);
	assert_int_equal(shared_stats(world).nr_retentions, nr);
}

/* B1: a process pins, and dies. */
static void a_pin_protects_against_all_and_ends_with_its_process(void **state)
{
	struct daemon_case daemon;
	struct kv_world world;
	int status;
	pid_t pid;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, options);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		struct kv_world mine;

		kv_world_connect(&mine, KV_SHAPE_HYBRID, T, daemon.socket, NULL);
		play(&mine, 1);
		KV_MUST(pin(&mine, 1, HOUR_MS) == BLOCKS);
		play(&mine, 2);
		KV_MUST(retain(&mine, 2, (struct omnikv_retention){ .priority = 50, .ttl_ms = HOUR_MS }) == BLOCKS);
		raise(SIGSTOP);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	assert_true(WIFSTOPPED(status));
	kv_world_connect(&world, KV_SHAPE_HYBRID, T, daemon.socket, NULL);
	assert_int_equal(shared_stats(&world).nr_retentions, 2);
	assert_true(shared_stats(&world).pinned_bytes > 0);
	flood(&world, 120);
	assert_true(shared_stats(&world).blocks_evicted > 1000);
	assert_int_equal(play(&world, 1), BLOCKS);
	assert_int_equal(play(&world, 2), BLOCKS);
	/* Another one's session of this number is another one. */
	assert_int_equal(omnikv_space_unretain(world.space, 1), -ENOENT);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	wait_for_retentions(&world, 0);
	assert_int_equal(shared_stats(&world).pinned_bytes, 0);
	flood(&world, 120);
	assert_int_equal(cached(&world, 1), 0);
	assert_int_equal(cached(&world, 2), 0);
	kv_world_detach(&world);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* B1: it lives, and does nothing any more. */
static void a_pin_of_a_process_that_hangs_ends_by_its_time(void **state)
{
	struct daemon_case daemon;
	struct kv_world world;
	int status;
	pid_t pid;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, options);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		struct kv_world mine;

		kv_world_connect(&mine, KV_SHAPE_FULL, T, daemon.socket, NULL);
		play(&mine, 1);
		KV_MUST(pin(&mine, 1, 300) == BLOCKS);
		raise(SIGSTOP);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
	assert_true(WIFSTOPPED(status));
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	sleep_ms(350);
	flood(&world, 120);
	assert_int_equal(cached(&world, 1), 0);
	assert_int_equal(shared_stats(&world).retentions_expired, 1);
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	kv_world_detach(&world);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

static void no_process_can_pin_what_all_need(void **state)
{
	struct omnikv_manager_stats stats;
	struct kv_world worlds[2];
	struct daemon_case daemon;
	int64_t ret = BLOCKS;
	uint32_t nr = 0;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, (const char *const []){ "--pool", "8M", "--reserve", "0", "--pins", "2M", NULL });
	for (uint32_t i = 0; i < 2; i++)
		kv_world_connect(&worlds[i], KV_SHAPE_FULL, T, daemon.socket, NULL);
	while (nr < 100 && ret == BLOCKS) {
		play(&worlds[0], ++nr);
		ret = pin(&worlds[0], nr, HOUR_MS);
	}
	assert_int_equal(ret, -EDQUOT);
	stats = shared_stats(&worlds[0]);
	assert_int_equal(stats.pin_limit_bytes, 2u << 20);
	/* Of 2 MiB a half, and of that whole stories. */
	assert_int_equal(stats.nr_retentions, nr - 1);
	assert_true(stats.pinned_bytes <= 1u << 20 && stats.pinned_bytes > (1u << 20) - BLOCKS * 8192);
	/* The other one has its half still, and memory for whatever comes. */
	play(&worlds[1], 500);
	assert_int_equal(pin(&worlds[1], 500, HOUR_MS), BLOCKS);
	flood(&worlds[1], 100);
	for (uint32_t i = 1; i < nr; i++)
		assert_int_equal(cached(&worlds[1], i), BLOCKS);
	assert_int_equal(omnikv_manager_reset(worlds[1].manager) > 0, 1);
	assert_int_equal(shared_stats(&worlds[1]).nr_retentions, 0);
	assert_int_equal(cached(&worlds[0], 1), 0);
	for (uint32_t i = 0; i < 2; i++)
		kv_world_detach(&worlds[i]);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* The later a session says that it comes back, the sooner it leaves. */
static void sessions_leave_in_the_order_of_their_next_use(void **state)
{
	struct daemon_case daemon;
	struct kv_world world;
	uint32_t nr_left = 0;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, options);
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	/* One client's hints protect a quarter of the pool: those of the farthest next use are not kept, or not any more. */
	for (uint32_t i = 1; i <= 40; i++) {
		play(&world, i);
		retain(&world, i, (struct omnikv_retention){ .next_use_ms = (i % 2 ? i : 100 - i) * 10000 });
	}
	flood(&world, 100);
	for (uint32_t i = 1; i <= 40; i++)
		nr_left += cached(&world, i) == BLOCKS;
	assert_true(nr_left >= 10 && nr_left < 20);
	/* 1, 3, 5 come back first; 2 last. */
	for (uint32_t i = 1; i <= 19; i += 2)
		assert_int_equal(cached(&world, i), BLOCKS);
	assert_int_equal(cached(&world, 2), 0);
	assert_int_equal(cached(&world, 4), 0);
	/* What is said later counts. */
	play(&world, 2);
	assert_int_equal(retain(&world, 2, (struct omnikv_retention){ .next_use_ms = 1000000 }) == BLOCKS ||
			 cached(&world, 2) == BLOCKS, 1);
	assert_int_equal(retain(&world, 1, (struct omnikv_retention){ .next_use_ms = OMNIKV_NEXT_USE_NEVER }), BLOCKS);
	flood(&world, 100);
	assert_int_equal(cached(&world, 1), 0);
	assert_int_equal(cached(&world, 3), BLOCKS);
	kv_world_detach(&world);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* A daemon that was killed: the next one hears of it with the next request of whoever lives. */
/* Requests go on until the daemon that has come answers them; it has so many retentions then. */
static void go_on_until_told(const struct kv_world *world, uint64_t nr)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };
	uint64_t since = now_ms();

	for (uint32_t i = 50; now_ms() - since < 10000; i++) {
		play(world, i);
		if (!omnikv_manager_shared_stats(world->manager, &stats) && (!nr || stats.nr_retentions))
			break;
		sleep_ms(20);
	}
	assert_int_equal(shared_stats(world).nr_retentions, nr);
}

static void the_next_daemon_is_told(void **state)
{
	struct daemon_case daemon;
	struct kv_world world;
	char pool[160];

	(void)state;
	daemon_case_init(&daemon);
	snprintf(pool, sizeof(pool), "embedded:8M:%s/pool", daemon.dir);
	daemon_start(&daemon, (const char *const []){ "--pool", pool, "--reserve", "0", NULL });
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	for (uint32_t i = 1; i <= 3; i++)
		play(&world, i);
	assert_int_equal(pin(&world, 1, HOUR_MS), BLOCKS);
	assert_int_equal(retain(&world, 2, (struct omnikv_retention){ .priority = 7, .ttl_ms = HOUR_MS }), BLOCKS);
	assert_int_equal(pin(&world, 3, 50), BLOCKS);
	daemon_kill(&daemon);
	sleep_ms(60);
	daemon_start(&daemon, (const char *const []){ "--pool", pool, "--reserve", "0", NULL });
	/* The third was over by then. */
	go_on_until_told(&world, 2);
	assert_true(shared_stats(&world).pinned_bytes > 0);
	flood(&world, 120);
	assert_int_equal(cached(&world, 1), BLOCKS);
	assert_int_equal(cached(&world, 2), BLOCKS);
	assert_int_equal(cached(&world, 3), 0);
	assert_int_equal(omnikv_space_unretain(world.space, 1), 0);
	assert_int_equal(shared_stats(&world).nr_retentions, 1);
	kv_world_detach(&world);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* While a thread tells the next daemon what is kept, another one says something new of the same session. */
struct meanwhile {
	const struct kv_world	*world;
	bool			is_over;	/* of the session; else it retains for longer, at a priority */
	pthread_t		thread;
	atomic_bool		has_begun;
	atomic_bool		is_done;
	int64_t			ret;
};

static void *say_something_new(void *arg)
{
	struct meanwhile *now = arg;

	now->ret = now->is_over ? omnikv_space_unretain(now->world->space, 1) :
				  retain(now->world, 1, (struct omnikv_retention){ .priority = 7, .ttl_ms = HOUR_MS });
	atomic_store(&now->is_done, true);
	return NULL;
}

static int at_announcement(void *opaque, const char *name)
{
	struct meanwhile *now = opaque;

	(void)name;
	if (atomic_exchange(&now->has_begun, true))
		return 0;
	KV_MUST(!pthread_create(&now->thread, NULL, say_something_new, now));
	/* It may be done at once, or wait for this announcement: that is not for ever. */
	for (uint32_t i = 0; i < 40 && !atomic_load(&now->is_done); i++)
		sleep_ms(10);
	return 0;
}

static void what_ends_while_the_next_daemon_is_told_does_not_come_back(void **state)
{
	(void)state;
	for (int is_over = 0; is_over < 2; is_over++) {
		struct daemon_case daemon;
		struct kv_world world;
		struct meanwhile now = { .world = &world, .is_over = is_over };
		uint64_t since;
		char pool[160];

		daemon_case_init(&daemon);
		snprintf(pool, sizeof(pool), "embedded:8M:%s/pool", daemon.dir);
		daemon_start(&daemon, (const char *const []){ "--pool", pool, "--reserve", "0", NULL });
		kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
		play(&world, 1);
		assert_int_equal(pin(&world, 1, HOUR_MS), BLOCKS);
		daemon_kill(&daemon);
		daemon_start(&daemon, (const char *const []){ "--pool", pool, "--reserve", "0", NULL });
		KV_MUST(!okv_failpoint_arm(&(struct okv_failpoint){ .name = "attach.announce", .fn = at_announcement, .opaque = &now }));
		since = now_ms();
		for (uint32_t i = 50; !atomic_load(&now.has_begun) && now_ms() - since < 10000; i++) {
			play(&world, i);
			sleep_ms(20);
		}
		assert_true(atomic_load(&now.has_begun));
		pthread_join(now.thread, NULL);
		okv_failpoint_disarm_all();
		assert_int_equal(now.ret, is_over ? 0 : BLOCKS);
		assert_int_equal(shared_stats(&world).pinned_bytes, 0);
		assert_int_equal(shared_stats(&world).nr_retentions, !is_over);
		/* The daemon after that is told the same. */
		daemon_kill(&daemon);
		daemon_start(&daemon, (const char *const []){ "--pool", pool, "--reserve", "0", NULL });
		go_on_until_told(&world, !is_over);
		assert_int_equal(shared_stats(&world).pinned_bytes, 0);
		kv_world_detach(&world);
		assert_int_equal(daemon_stop(&daemon, NULL), 0);
		daemon_case_fini(&daemon);
	}
}

/* What a client keeps for the next daemon is no more than one daemon takes of it. */
static void sessions_without_end_take_no_memory_without_end(void **state)
{
	struct daemon_case daemon;
	struct kv_world world;
	size_t before, bytes;

	(void)state;
	daemon_case_init(&daemon);
	daemon_start(&daemon, options);
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	play(&world, 1);
	before = mallinfo2().uordblks;
	/* Each sooner than the one before, however long the daemon took over that. */
	for (uint32_t i = 0; i < 24000; i++)
		assert_int_equal(retain(&world, 1, (struct omnikv_retention){ .session = 1000 + i, .next_use_ms = HOUR_MS - 100 * i }), BLOCKS);
	bytes = mallinfo2().uordblks - before;
	/* 15,000 take 1.7 MB, all of them 2.7. */
	assert_true(bytes < 2000000);
	kv_world_detach(&world);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_pin_protects_against_all_and_ends_with_its_process),
		cmocka_unit_test(a_pin_of_a_process_that_hangs_ends_by_its_time),
		cmocka_unit_test(no_process_can_pin_what_all_need),
		cmocka_unit_test(sessions_leave_in_the_order_of_their_next_use),
		cmocka_unit_test(the_next_daemon_is_told),
		cmocka_unit_test(what_ends_while_the_next_daemon_is_told_does_not_come_back),
		cmocka_unit_test(sessions_without_end_take_no_memory_without_end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

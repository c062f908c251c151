// SPDX-License-Identifier: GPL-2.0-only
/*
 * Managers attached to a daemon, over each provider of its pool: what one process commits others hit, byte for byte;
 * a process that is killed leaves nothing behind; the next daemon serves what the one before it was given.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "crc32c.h"
#include "failpoint.h"
#include "tests/harness/any_pool.h"
#include "tests/harness/daemon_case.h"
#include "tests/harness/kv_world.h"

#define T	16u
#define RESERVE	(1u << 20)

static struct daemon_case the_daemon;
static const char *options[] = { "--pool", NULL, "--reserve", "1M", NULL };

/* A pool of 16 MiB that outlives its daemon. */
static int set_up(void **state)
{
	(void)state;
	daemon_case_init(&the_daemon);
	options[1] = any_pool_of_daemons("16M", the_daemon.dir);
	daemon_start(&the_daemon, options);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	daemon_case_fini(&the_daemon);
	return 0;
}

static void make_story(struct kv_story *story, uint32_t salt, uint64_t nr_tokens)
{
	*story = (struct kv_story){ 0 };
	for (uint64_t i = 0; i < nr_tokens; i++)
		kv_story_add(story, salt * 100000 + i);
}

/* As a request does; how many tokens hit. Every byte is compared. */
static uint64_t play(const struct kv_world *world, uint32_t salt, uint64_t nr_tokens)
{
	struct kv_story story;
	struct omnikv_seq *seq;
	const char *why;
	uint64_t hit;

	make_story(&story, salt, nr_tokens);
	seq = kv_open(world, &story, true);
	hit = omnikv_seq_tokens(seq);
	why = hit ? kv_compare(world, seq, &story, 0, hit) : NULL;
	if (why)
		kv_fail(why, __FILE__, __LINE__);
	if (hit < nr_tokens) {
		KV_MUST(!omnikv_seq_append(seq, nr_tokens - hit));
		kv_store(world, seq, &story, hit, nr_tokens);
		KV_MUST(kv_commit(world, seq, &story, true) >= 0);
		why = kv_compare(world, seq, &story, 0, nr_tokens);
		if (why)
			kv_fail(why, __FILE__, __LINE__);
	}
	omnikv_seq_close(seq);
	kv_story_free(&story);
	return hit;
}

static void connect_to(struct kv_world *world, int shape)
{
	kv_world_connect_again(world, shape, T, the_daemon.socket);
}

static void wait_for(pid_t pid)
{
	int status;

	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

static void what_one_commits_another_process_hits(void **state)
{
	(void)state;
	for (int shape = KV_SHAPE_FULL; shape <= KV_SHAPE_HYBRID; shape++) {
		struct omnikv_manager_stats stats = { .size = sizeof(stats) };
		struct kv_world world;
		pid_t pid = fork();

		if (!pid) {
			connect_to(&world, shape);
			KV_MUST(play(&world, 1, 40 * T + 8) == 0);
			KV_MUST(!omnikv_manager_stats(world.manager, &stats) && stats.blocks_published == 41);
			kv_world_detach(&world);
			_exit(0);
		}
		wait_for(pid);
		connect_to(&world, shape);
		assert_int_equal(play(&world, 1, 40 * T + 8), 40 * T + 8);
		assert_int_equal(omnikv_manager_stats(world.manager, &stats), 0);
		assert_int_equal(stats.blocks_imported, 41);
		kv_world_detach(&world);
	}
}

/* SEALED, QUARANTINED and PRIVATE bytes of the pool, but for reserves. */
static uint64_t bytes_left(const struct kv_world *world)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	uint64_t private_bytes;

	assert_int_equal(omnikv_pool_info(omnikv_client_pool(omnikv_manager_client(world->manager)), &info), 0);
	private_bytes = info.state_bytes[OMNIKV_EXTENT_PRIVATE];
	return info.state_bytes[OMNIKV_EXTENT_SEALED] + info.state_bytes[OMNIKV_EXTENT_QUARANTINED] +
	       (private_bytes > RESERVE ? private_bytes - RESERVE : 0);
}

static void assert_nothing_is_left(const struct kv_world *world)
{
	uint64_t since = now_ms();

	while (bytes_left(world) && now_ms() - since < 20000) {
		omnikv_manager_reset(world->manager);
		sleep_ms(20);
	}
	assert_int_equal(bytes_left(world), 0);
}

static void killed_processes_leave_nothing_behind(void **state)
{
	struct kv_world world;
	int status;

	(void)state;
	connect_to(&world, KV_SHAPE_FULL);
	for (uint32_t round = 0; round < 10; round++) {
		pid_t pid = fork();

		if (!pid) {
			struct kv_world mine;

			connect_to(&mine, KV_SHAPE_FULL);
			for (uint32_t i = 0;; i++)
				play(&mine, i % 50, 40 * T);
		}
		sleep_ms(50 + 20 * round);
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status));
		play(&world, round, 40 * T);
	}
	assert_nothing_is_left(&world);
	kv_world_detach(&world);
}

/* What was sealed for a publication that never came is nobody's, and is found. */
static void what_was_never_published_is_freed(void **state)
{
	struct kv_world world;
	int status;

	(void)state;
	connect_to(&world, KV_SHAPE_FULL);
	for (uint32_t round = 0; round < 3; round++) {
		pid_t pid = fork();

		if (!pid) {
			struct kv_world mine;

			connect_to(&mine, KV_SHAPE_FULL);
			KV_MUST(!okv_failpoint_arm(&(struct okv_failpoint){
				.name = any_pool_is_kmod() ? "attach.sealed" : "import.publish", .nth = 1 + round, .flags = OKV_FAILPOINT_F_KILL,
			}));
			for (uint32_t i = 0;; i++)
				play(&mine, 100 + 10 * round + i, 40 * T);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status));
	}
	assert_nothing_is_left(&world);
	kv_world_detach(&world);
}

static void the_next_daemon_serves_warm(void **state)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };
	struct kv_world world;
	uint64_t since;

	(void)state;
	connect_to(&world, KV_SHAPE_FULL);
	assert_int_equal(play(&world, 1, 40 * T), 0);
	daemon_kill(&the_daemon);
	/* What is cached here is used without it, and what is new waits. */
	assert_int_equal(play(&world, 1, 40 * T), 40 * T);
	assert_int_equal(play(&world, 2, 10 * T), 0);
	daemon_start(&the_daemon, options);
	/* The connection is made anew by one of the next calls, and what waited goes. */
	since = now_ms();
	for (uint32_t i = 3; (i == 3 || stats.blocks_queued) && now_ms() - since < 20000; i++) {
		play(&world, i, 10 * T);
		sleep_ms(20);
		assert_int_equal(omnikv_manager_stats(world.manager, &stats), 0);
	}
	assert_int_equal(stats.blocks_queued, 0);
	kv_world_detach(&world);
	connect_to(&world, KV_SHAPE_FULL);
	assert_int_equal(play(&world, 1, 40 * T), 40 * T);
	assert_int_equal(play(&world, 2, 10 * T), 10 * T);
	assert_int_equal(play(&world, 3, 10 * T), 10 * T);
	kv_world_detach(&world);
}

/* More than fits: the daemon makes room for who allocates. */
static void a_full_pool_makes_room(void **state)
{
	struct omnikv_manager_stats shared = { .size = sizeof(shared) };
	struct kv_world world;

	(void)state;
	connect_to(&world, KV_SHAPE_FULL);
	for (uint32_t i = 0; i < 400; i++)
		assert_int_equal(play(&world, i, 40 * T), 0);
	assert_int_equal(omnikv_manager_shared_stats(world.manager, &shared), 0);
	assert_true(shared.blocks_evicted > 0);
	assert_int_equal(play(&world, 399, 40 * T), 40 * T);
	kv_world_detach(&world);
}

/* The sum of all that is META, as the pool's manager on @dev may ask. */
static uint32_t sum_meta(const struct kv_world *world, int dev, int pool)
{
	const unsigned char *base = omnikv_pool_base(omnikv_client_pool(omnikv_manager_client(world->manager)));
	struct omnikv_extent_entry entries[64];
	struct omnikv_ioc_extent_list list = { .pool_fd = pool, .states = 1u << OMNIKV_EXTENT_META, .entries = (uintptr_t)entries };
	uint32_t sum = 0, nr = 0;

	while (list.from != UINT64_MAX) {
		list.count = sizeof(entries) / sizeof(entries[0]);
		KV_MUST(!ioctl(dev, OMNIKV_IOC_EXTENT_LIST, &list));
		for (uint32_t i = 0; i < list.count; i++, nr++)
			sum = okv_crc32c_extend(sum, base + entries[i].extent.granule * 4096, (size_t)entries[i].extent.nr_granules * 4096);
	}
	KV_MUST(nr > 0);
	return sum;
}

/* Only the module's can be. What such a daemon has in mind to write would be in the next one's index. */
static void a_daemon_that_was_taken_over_writes_nothing(void **state)
{
	struct omnikv_ioc_pool_manage manage = { .flags = OMNIKV_MANAGE_F_FORCE };
	struct omnikv_ioc_pool_open open_it = { 0 };
	uint64_t since = now_ms();
	struct kv_world world;
	uint32_t sum;
	int dev;

	(void)state;
	connect_to(&world, KV_SHAPE_FULL);
	assert_int_equal(play(&world, 1, 40 * T), 0);
	dev = open("/dev/omnikv", O_RDWR | O_CLOEXEC);
	assert_true(dev >= 0);
	snprintf((char *)open_it.name, sizeof(open_it.name), "%s", strchr(options[1], ':') + 1);
	assert_int_equal(ioctl(dev, OMNIKV_IOC_POOL_OPEN, &open_it), 0);
	manage.pool_fd = open_it.pool_fd;
	assert_int_equal(ioctl(dev, OMNIKV_IOC_POOL_MANAGE, &manage), 0);
	sum = sum_meta(&world, dev, open_it.pool_fd);
	/* It is to publish these. */
	play(&world, 2, 40 * T);
	while (!daemon_is_dead(&the_daemon) && now_ms() - since < 20000)
		sleep_ms(20);
	assert_int_equal(sum_meta(&world, dev, open_it.pool_fd), sum);
	assert_true(daemon_is_dead(&the_daemon));
	assert_true(daemon_said(&the_daemon, "took the pool over"));
	kv_world_detach(&world);
	close(open_it.pool_fd);
	close(dev);
	daemon_start(&the_daemon, options);
	connect_to(&world, KV_SHAPE_FULL);
	assert_int_equal(play(&world, 1, 40 * T), 40 * T);
	kv_world_detach(&world);
}

#define CASE(name)	cmocka_unit_test_setup_teardown(name, set_up, tear_down)
#define CASES \
	CASE(what_one_commits_another_process_hits), CASE(killed_processes_leave_nothing_behind), \
	CASE(what_was_never_published_is_freed), CASE(the_next_daemon_serves_warm), CASE(a_full_pool_makes_room)

int main(void)
{
	const struct CMUnitTest tests[] = { CASES };
	const struct CMUnitTest of_the_module[] = { CASES, CASE(a_daemon_that_was_taken_over_writes_nothing) };

	return any_pool_is_kmod() ? cmocka_run_group_tests(of_the_module, NULL, NULL) : cmocka_run_group_tests(tests, NULL, NULL);
}

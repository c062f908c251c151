// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a manager cached in a pool that lasts is there for the next one, over each provider: after an orderly
 * end, and after a kill in the middle of an insertion or an eviction. Bytes are compared, and the pool's
 * books with the manager's.
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
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "failpoint.h"
#include "manager/manager.h"
#include "provider.h"
#include "tests/harness/any_pool.h"
#include "tests/harness/kv_world.h"

#define T		4u
#define NR_BLOCKS	40u	/* of a story */

static char spec[96], path[64];
static int pool_fd = -1;

/* A pool of the provider that outlives whoever opens it: the module's is held by its descriptor. */
static int set_up(void **state)
{
	(void)state;
	if (any_pool_is_kmod()) {
		struct omnikv_ioc_pool_create req = {
			.flags = OMNIKV_CREATE_F_TRANSIENT | OMNIKV_CREATE_F_TRUSTED, .mode = 0600, .bytes = 4 << 20,
			.granule_bytes = 4096,
		};
		int dev = open("/dev/omnikv", O_RDWR | O_CLOEXEC);

		snprintf((char *)req.name, sizeof(req.name), "warm-%d", getpid());
		if (dev < 0 || ioctl(dev, OMNIKV_IOC_POOL_CREATE, &req) < 0)
			return -1;
		close(dev);
		pool_fd = req.pool_fd;
		snprintf(spec, sizeof(spec), "kmod:%s", (const char *)req.name);
		return 0;
	}
	snprintf(path, sizeof(path), "/dev/shm/omnikv-warm-XXXXXX");
	if (close(mkstemp(path)) || unlink(path))
		return -1;
	snprintf(spec, sizeof(spec), "embedded:4M:%s", path);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	if (pool_fd >= 0)
		close(pool_fd);
	pool_fd = -1;
	if (path[0])
		unlink(path);
	return 0;
}

static struct omnikv_manager_stats stats_of(const struct kv_world *world)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	KV_MUST(omnikv_manager_stats(world->manager, &stats) == 0);
	return stats;
}

static void make_story(struct kv_story *story, uint32_t number)
{
	memset(story, 0, sizeof(*story));
	while (story->nr_tokens < NR_BLOCKS * T)
		kv_story_add(story, number * 1000 + (uint32_t)story->nr_tokens);
}

static void tell(const struct kv_world *world, uint32_t number)
{
	struct kv_story story;
	struct omnikv_seq *seq;
	uint64_t at;

	make_story(&story, number);
	seq = kv_open(world, &story, false);
	at = omnikv_seq_tokens(seq);
	if (at < story.nr_tokens) {
		KV_MUST(omnikv_seq_append(seq, story.nr_tokens - at) == 0);
		kv_store(world, seq, &story, at, story.nr_tokens);
		KV_MUST(kv_commit(world, seq, &story, false) >= 0);
	}
	omnikv_seq_close(seq);
	kv_story_free(&story);
}

/* Blocks of it that hit, each compared. */
static uint64_t hear(const struct kv_world *world, uint32_t number)
{
	struct kv_story story;
	struct omnikv_seq *seq;
	const char *wrong;
	uint64_t nr;

	make_story(&story, number);
	seq = kv_open(world, &story, false);
	nr = omnikv_seq_tokens(seq);
	wrong = kv_compare(world, seq, &story, 0, nr);
	if (wrong)
		kv_fail(wrong, __FILE__, __LINE__);
	omnikv_seq_close(seq);
	kv_story_free(&story);
	return nr / T;
}

static void after_an_orderly_end(void **state)
{
	struct kv_world world;

	(void)state;
	kv_world_open_pool(&world, KV_SHAPE_MIXED, T, spec);
	for (uint32_t i = 0; i < 5; i++)
		tell(&world, i);
	kv_world_leave(&world);
	kv_world_open_pool(&world, KV_SHAPE_MIXED, T, spec);
	kv_world_check(&world);
	assert_int_equal(stats_of(&world).blocks_recovered, 5 * NR_BLOCKS);
	assert_int_equal(stats_of(&world).blocks_dropped, 0);
	assert_int_equal(stats_of(&world).extents_freed, 0);
	for (uint32_t i = 0; i < 5; i++)
		assert_int_equal(hear(&world, i), NR_BLOCKS);
	kv_world_close(&world);
}

/* How many stories were told whole is seen by both. */
static void run_and_die(const char *point, uint32_t nth, uint32_t *nr_told)
{
	struct kv_world world;

	KV_MUST(okv_failpoint_arm(&(struct okv_failpoint){ .name = point, .nth = nth, .flags = OKV_FAILPOINT_F_KILL }) == 0);
	kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
	for (uint32_t i = 0; i < 40; i++) {
		tell(&world, i);
		__atomic_store_n(nr_told, i + 1, __ATOMIC_RELEASE);
	}
	_exit(1);
}

static void after_a_kill(void **state)
{
	static const struct { const char *point; uint32_t nth; } kills[] = {
		{ "index.insert_filled", 100 }, { "index.insert_there", 333 }, { "index.remove_unlisted", 7 },
		{ "index.remove_gone", 50 }, { "catalog.shelf_filled", 1 },
	};
	uint32_t *nr_told = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	(void)state;
	assert_true(nr_told != MAP_FAILED);
	for (uint32_t k = 0; k < sizeof(kills) / sizeof(kills[0]); k++) {
		struct kv_world world;
		uint32_t told;
		int status;
		pid_t pid;

		*nr_told = 0;
		pid = fork();
		assert_true(pid >= 0);
		if (!pid)
			run_and_die(kills[k].point, kills[k].nth, nr_told);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		told = __atomic_load_n(nr_told, __ATOMIC_ACQUIRE);

		kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
		kv_world_check(&world);
		assert_int_equal(stats_of(&world).blocks_dropped, 0);
		/* The last one told is the last to leave. */
		if (told)
			assert_int_equal(hear(&world, told - 1), NR_BLOCKS);
		for (uint32_t i = 0; i < 40; i++)
			hear(&world, i);
		tell(&world, told);
		assert_int_equal(hear(&world, told), NR_BLOCKS);
		print_message("# %s, hit %u: %u stories told, %llu blocks there again\n", kills[k].point, kills[k].nth, told,
			      (unsigned long long)stats_of(&world).blocks_recovered);
		kv_world_close(&world);
	}
	munmap(nr_told, 4096);
}

/* What owners seal by themselves is taken over once: nobody publishes what is another's, or the cache's already. */
static void sealed_extents_are_taken_once(void **state)
{
	struct omnikv_client *owner;
	struct omnikv_extent ext[2];
	struct omnikv_extent twice[2];
	struct kv_world world;

	(void)state;
	if (!any_pool_is_kmod())
		skip();
	kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
	assert_int_equal(omnikv_client_open(world.pool, 0, &owner), 0);
	assert_int_equal(omnikv_extent_alloc(owner, 1, 2, NULL, 0, ext), 0);
	assert_int_equal(okv_manager_take(world.manager, NULL, ext, 1), -EPERM);
	assert_int_equal(world.pool->provider->hand_over(owner, ext, 2), 0);
	twice[0] = twice[1] = ext[0];
	assert_int_equal(okv_manager_take(world.manager, NULL, twice, 2), -EINVAL);
	assert_int_equal(okv_manager_take(world.manager, NULL, ext, 1), 0);
	assert_int_equal(okv_manager_take(world.manager, NULL, ext, 1), -EINVAL);
	assert_int_equal(okv_manager_take(world.manager, NULL, ext, 2), -EINVAL);
	assert_int_equal(okv_manager_take(world.manager, NULL, &ext[1], 1), 0);
	assert_int_equal(omnikv_extent_free(world.client, ext, 2), 0);
	assert_int_equal(omnikv_extent_release(owner, ext, 2), 0);
	omnikv_client_close(owner);
	kv_world_close(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(after_an_orderly_end, set_up, tear_down),
		cmocka_unit_test_setup_teardown(after_a_kill, set_up, tear_down),
		cmocka_unit_test_setup_teardown(sealed_extents_are_taken_once, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

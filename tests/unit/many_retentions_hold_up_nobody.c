// SPDX-License-Identifier: GPL-2.0-only
/*
 * As many retentions as there may be, of four clients: one more request of any of them takes microseconds, also the one
 * for which thousands have to make way.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "manager/manager.h"
#include "manager/retain.h"
#include "manager/session.h"
#include "tests/harness/kv_world.h"

#define T		16u
#define POOL_BLOCKS	400u
#define NR_OWNERS	4u
#define HOUR_MS		3600000u
/* Mean CPU time of a request, and of one for which all of its client's others make way; sanitizers and busy machines are slower. */
#define REQUEST_NS	UINT64_C(200000)
#define DISPLACE_NS	(UINT64_C(1000000000))

static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* A story of @nr_blocks in the cache; key of its last block. */
static struct omnikv_key cache(const struct kv_world *world, uint32_t salt, uint32_t nr_blocks)
{
	struct omnikv_key *keys, last;
	struct omnikv_seq *seq;
	struct kv_story story = { 0 };

	for (uint64_t i = 0; i < (uint64_t)nr_blocks * T; i++)
		kv_story_add(&story, salt * 100000 + i);
	seq = kv_open(world, &story, false);
	assert_int_equal(omnikv_seq_append(seq, story.nr_tokens), 0);
	kv_store(world, seq, &story, 0, story.nr_tokens);
	assert_int_equal(kv_commit(world, seq, &story, false), nr_blocks);
	omnikv_seq_close(seq);
	keys = kv_keys(world, &story, nr_blocks);
	last = keys[nr_blocks - 1];
	free(keys);
	kv_story_free(&story);
	return last;
}

static int retain(const struct kv_world *world, uint64_t owner, uint64_t session, const struct omnikv_key *key, uint32_t nr_blocks,
		  uint32_t priority)
{
	const struct omnikv_retention how = {
		.size = sizeof(how), .session = session, .priority = priority, .ttl_ms = HOUR_MS,
	};

	return okv_session_retain(world->space, owner, key, nr_blocks - 1, &how);
}

static void a_request_of_one_who_has_many(void **state)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };
	struct omnikv_key small, large;
	struct kv_world world;
	uint64_t begun, ns;
	uint32_t nr_large;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, POOL_BLOCKS);
	/* All that a client gets, so that nothing of its own fits beside it. */
	nr_large = (uint32_t)(okv_manager_granules(world.manager) / 4 / world.plan.groups[0].nr_granules);
	small = cache(&world, 1, 1);
	large = cache(&world, 2, nr_large);
	/* The first one is charged for the block, and is worth the most. */
	for (uint64_t owner = 1; owner <= NR_OWNERS; owner++) {
		assert_int_equal(retain(&world, owner, 1, &small, 1, 50), 0);
		for (uint64_t session = 2; session <= OKV_RETAIN_OF_OWNER; session++)
			assert_int_equal(retain(&world, owner, session, &small, 1, 5), 0);
	}
	assert_int_equal(omnikv_manager_stats(world.manager, &stats), 0);
	assert_int_equal(stats.nr_retentions, OKV_RANKS_MAX);

	begun = cpu_ns();
	for (uint64_t session = 100; session < 200; session++)
		assert_int_equal(retain(&world, 1, session, &small, 1, 6), 0);
	ns = (cpu_ns() - begun) / 100;
	print_message("# %u retentions: %llu ns a request\n", OKV_RANKS_MAX, (unsigned long long)ns);
	assert_in_range(ns, 0, REQUEST_NS);

	/* The one that is charged is worth more, so that nothing is gained by the others' making way first. */
	begun = cpu_ns();
	assert_int_equal(retain(&world, 1, OKV_RETAIN_OF_OWNER + 1, &large, nr_large, 40), -EDQUOT);
	ns = cpu_ns() - begun;
	print_message("# %u make way, and come back: %llu us\n", OKV_RETAIN_OF_OWNER, (unsigned long long)ns / 1000);
	assert_in_range(ns, 0, DISPLACE_NS);
	/* As they were. */
	assert_int_equal(omnikv_manager_stats(world.manager, &stats), 0);
	assert_int_equal(stats.nr_retentions, OKV_RANKS_MAX);
	kv_world_check(&world);
	for (uint64_t owner = 1; owner <= NR_OWNERS; owner++)
		okv_retain_end_owner(world.manager, owner);
	assert_int_equal(omnikv_manager_stats(world.manager, &stats), 0);
	assert_int_equal(stats.nr_retentions, 0);
	kv_world_check(&world);
	kv_world_close(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_request_of_one_who_has_many),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * A pool of 1,000 blocks with none free, 970 evictable and 30 leased: two threads get 900 at
 * once; one more than 970 is refused at once, and nothing is evicted for it in vain. The same
 * with extents of several sizes, with transfers still on what was given up, and with memory
 * that another client holds. Admission says beforehand what allocation will say.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "failpoint.h"
#include "manager/manager.h"
#include "tests/harness/kv_world.h"

#define T		16u
#define NR_BLOCKS	1000u
#define NR_LEASED	30u

/* @nr blocks of one story, committed; closed unless the sequence is asked for. */
static struct omnikv_seq *fill(struct kv_world *world, uint32_t salt, uint64_t nr)
{
	struct kv_story story = { 0 };
	struct omnikv_seq *seq;

	for (uint64_t i = 0; i < nr * T; i++)
		kv_story_add(&story, salt + i);
	seq = kv_open(world, &story, false);
	assert_int_equal(omnikv_seq_tokens(seq), 0);
	assert_int_equal(omnikv_seq_append(seq, nr * T), 0);
	assert_int_equal(kv_commit(world, seq, &story, false), nr);
	kv_story_free(&story);
	return seq;
}

static uint64_t evicted(struct kv_world *world)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	assert_int_equal(omnikv_manager_stats(world->manager, &stats), 0);
	return stats.blocks_evicted;
}

struct asker {
	struct kv_world		*world;
	struct omnikv_seq	*seq;
	uint64_t		nr_blocks;
	uint64_t		cpu_ns;
	int			ret;
};

/* Of this thread: what it works, however busy the machine is. */
static uint64_t cpu_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static _Atomic uint32_t nr_waits;

static int count_wait(void *opaque, const char *name)
{
	(void)opaque;
	(void)name;
	nr_waits++;
	return 0;
}

static void *ask(void *arg)
{
	struct asker *asker = arg;
	uint64_t begin = cpu_ns();

	for (uint64_t i = 0; i < asker->nr_blocks && !asker->ret; i += 45)
		asker->ret = omnikv_seq_append(asker->seq, 45 * T);
	asker->cpu_ns = cpu_ns() - begin;
	return NULL;
}

static void full_pool_serves_two_threads_at_once(void **state)
{
	struct omnikv_seq *leased, *seq;
	struct asker askers[2];
	pthread_t threads[2];
	struct kv_world world;
	uint64_t begin;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, NR_BLOCKS);
	leased = fill(&world, 0, NR_LEASED);
	for (uint32_t i = 0; i < 97; i++)
		omnikv_seq_close(fill(&world, 100000 * (i + 1), 10));
	assert_int_equal(evicted(&world), 0);

	/* One too many: refused at once, and the cache is as it was. */
	assert_int_equal(omnikv_admit(world.space, 970 * T), 1);
	assert_int_equal(omnikv_admit(world.space, 970 * T + 1), 0);
	assert_int_equal(omnikv_admit(world.space, NR_BLOCKS * T), 0);
	assert_int_equal(omnikv_admit(world.space, NR_BLOCKS * T + 1), -ENOSPC);
	assert_int_equal(omnikv_admit(world.space, UINT64_MAX), -ENOSPC);
	assert_int_equal(omnikv_admit(world.space, 0), 1);
	assert_int_equal(omnikv_admit(NULL, 0), -EINVAL);
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	/* At once is without waiting for anybody, and with little work. */
	okv_failpoint_arm(&(struct okv_failpoint){ .name = "manager.wait", .fn = count_wait });
	begin = cpu_ns();
	assert_int_equal(omnikv_seq_append(seq, 971 * T), -ENOSPC);
	assert_int_equal(omnikv_seq_append(seq, UINT64_MAX), -ENOSPC);
	assert_true(cpu_ns() - begin < 100000000);
	assert_int_equal(nr_waits, 0);
	assert_int_equal(omnikv_seq_tokens(seq), 0);
	assert_int_equal(evicted(&world), 0);
	omnikv_seq_close(seq);

	for (uint32_t i = 0; i < 2; i++) {
		askers[i] = (struct asker){ .world = &world, .nr_blocks = 450 };
		assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &askers[i].seq), 0);
	}
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, ask, &askers[i]), 0);
	for (uint32_t i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	okv_failpoint_disarm_all();
	assert_int_equal(nr_waits, 0);
	for (uint32_t i = 0; i < 2; i++) {
		assert_true(askers[i].cpu_ns < 100000000);
		assert_int_equal(askers[i].ret, 0);
		assert_int_equal(omnikv_seq_tokens(askers[i].seq), 450 * T);
	}
	/* Exactly as many as were needed. */
	assert_int_equal(evicted(&world), 900);
	kv_world_check(&world);

	/* The 70 that are left, and not one more. */
	assert_int_equal(omnikv_seq_append(askers[0].seq, 71 * T), -ENOSPC);
	assert_int_equal(evicted(&world), 900);
	assert_int_equal(omnikv_seq_append(askers[0].seq, 70 * T), 0);
	assert_int_equal(omnikv_seq_append(askers[1].seq, 1), -ENOSPC);
	for (uint32_t i = 0; i < 2; i++)
		omnikv_seq_close(askers[i].seq);
	omnikv_seq_close(leased);
	kv_world_close(&world);
}

/* Least recently used first, and leaves before what they stand on. */
static void least_recently_used_leaves_first(void **state)
{
	struct kv_story a = { 0 }, b = { 0 };
	struct omnikv_seq *seq;
	struct kv_world world;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 8);
	for (uint32_t i = 0; i < 4 * T; i++) {
		kv_story_add(&a, i);
		kv_story_add(&b, 1000 + i);
	}
	omnikv_seq_close(fill(&world, 0, 4));
	omnikv_seq_close(fill(&world, 1000, 4));
	omnikv_seq_close(kv_open(&world, &a, false));
	omnikv_seq_close(fill(&world, 2000, 3));
	seq = kv_open(&world, &b, false);
	assert_int_equal(omnikv_seq_tokens(seq), T);
	omnikv_seq_close(seq);
	seq = kv_open(&world, &a, false);
	assert_int_equal(omnikv_seq_tokens(seq), 4 * T);
	omnikv_seq_close(seq);
	kv_story_free(&a);
	kv_story_free(&b);
	kv_world_close(&world);
}

/* Extents of three sizes leave holes of three sizes: more is evicted until it fits. */
static void several_sizes_fit_in_the_end(void **state)
{
	uint64_t seed = 1;
	struct kv_world world;

	(void)state;
	kv_world_open(&world, KV_SHAPE_HYBRID, T, 40);
	for (uint32_t i = 0; i < 400; i++) {
		struct omnikv_seq *seq = NULL;
		uint64_t nr = 1 + kv_random(&seed) % (30 * T);
		struct kv_story story = { 0 };

		for (uint64_t k = 0; k < nr; k++)
			kv_story_add(&story, 1000 * i + k);
		seq = kv_open(&world, &story, true);
		assert_int_equal(omnikv_seq_append(seq, nr), 0);
		kv_store(&world, seq, &story, 0, nr);
		assert_int_equal(kv_commit(&world, seq, &story, true), (nr + T - 1) / T);
		omnikv_seq_close(seq);
		kv_story_free(&story);
		if (i % 40 == 0)
			kv_world_check(&world);
	}
	kv_world_close(&world);
}

/* What a transfer still uses, and what others have, is neither free nor evictable. */
static void memory_in_use_elsewhere_is_not_counted_on(void **state)
{
	struct omnikv_extent others[10];
	struct omnikv_piece piece;
	struct omnikv_client *client;
	struct omnikv_seq *seq;
	struct kv_world world;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 20);
	assert_int_equal(omnikv_client_open(world.pool, 0, &client), 0);
	assert_int_equal(omnikv_extent_alloc(client, 1, 10, NULL, 0, others), 0);
	seq = fill(&world, 0, 10);
	assert_int_equal(omnikv_seq_pieces(seq, 0, 0, 0, 9 * T, 10 * T, 0, &piece, 1), 1);
	assert_int_equal(omnikv_extent_io_get(world.client, &piece.extent, 1), 0);
	omnikv_seq_close(seq);
	assert_int_equal(omnikv_admit(world.space, 11 * T), 0);

	/* Evicting the block under transfer frees nothing yet: nine others do. */
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_append(seq, 9 * T), 0);
	assert_int_equal(omnikv_seq_append(seq, T), -ENOSPC);
	kv_world_check(&world);
	omnikv_extent_io_put(world.client, &piece.extent, 1);
	assert_int_equal(omnikv_seq_append(seq, T), 0);
	omnikv_seq_close(seq);
	omnikv_client_close(client);
	kv_world_close(&world);
}

/* Layouts of different groups share a pool: whichever holds most gives, down to nothing. */
static void layouts_give_way_to_each_other(void **state)
{
	struct omnikv_plan_config config = { .size = sizeof(config), .block_tokens = T, .granule_bytes = 4096 };
	struct omnikv_layout *layout = malloc(sizeof(*layout));
	struct omnikv_seq *seq, *held;
	struct kv_story story = { 0 };
	struct kv_world full, mixed;

	(void)state;
	assert_non_null(layout);
	kv_world_open(&full, KV_SHAPE_FULL, T, 400);
	mixed = full;
	kv_layout(layout, KV_SHAPE_MIXED);
	assert_int_equal(omnikv_plan_make(layout, &config, &mixed.plan, NULL), 0);
	assert_int_equal(omnikv_plan_block_bytes(&mixed.plan), 3 * 4096);
	mixed.ns.layout = &mixed.plan.layout;
	assert_int_equal(omnikv_space_open(mixed.manager, &mixed.ns, &mixed.plan, &mixed.space, NULL), 0);

	/* 300 blocks of one granule in one sequence, found again whole. */
	omnikv_seq_close(fill(&full, 0, 300));
	for (uint32_t i = 0; i < 300 * T; i++)
		kv_story_add(&story, i);
	seq = kv_open(&full, &story, false);
	assert_int_equal(omnikv_seq_tokens(seq), 300 * T);
	omnikv_seq_close(seq);

	/* 100 blocks of three take the free 100 and 200 of these. */
	omnikv_seq_close(fill(&mixed, 500000, 100));
	assert_int_equal(evicted(&full), 200);
	kv_world_check(&full);
	/* 130 take all but ten: of the larger shelf first, and in the end of both. */
	held = fill(&mixed, 600000, 130);
	kv_world_check(&full);
	assert_int_equal(omnikv_admit(mixed.space, 3 * T), 1);
	assert_int_equal(omnikv_admit(mixed.space, 4 * T), 0);
	assert_int_equal(omnikv_admit(full.space, 10 * T), 1);
	assert_int_equal(omnikv_admit(full.space, 11 * T), 0);
	assert_int_equal(omnikv_seq_open(full.space, NULL, 0, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_append(seq, 11 * T), -ENOSPC);
	assert_int_equal(omnikv_seq_append(seq, 10 * T), 0);
	omnikv_seq_close(seq);
	omnikv_seq_close(held);
	omnikv_space_close(mixed.space);
	kv_story_free(&story);
	free(layout);
	kv_world_close(&full);
}

/* Eight blocks fill the pool; the oldest is leased by another client; what has become of it after five more? */
static int lease_and_evict(bool asks)
{
	struct omnikv_extent_info info = { .size = sizeof(info) };
	struct omnikv_extent oldest;
	struct omnikv_client *other;
	struct kv_world world;
	uint64_t from = 0;
	int ret;

	kv_world_open(&world, KV_SHAPE_FULL, T, 8);
	world.manager->asks_victims = asks;
	assert_int_equal(omnikv_client_open(world.pool, 0, &other), 0);
	omnikv_seq_close(fill(&world, 1000, 1));
	assert_int_equal(omnikv_extent_list(world.client, 1u << OMNIKV_EXTENT_SEALED, &from, &oldest, 1), 1);
	omnikv_seq_close(fill(&world, 2000, 7));
	assert_int_equal(omnikv_extent_lease(other, &oldest, 1), 0);
	omnikv_seq_close(fill(&world, 3000, 5));
	ret = omnikv_extent_query(other, &oldest, &info);
	assert_int_equal(omnikv_extent_release(other, &oldest, 1), 0);
	omnikv_client_close(other);
	kv_world_close(&world);
	return ret ? ret : (int)info.state;
}

static void blocks_that_others_lease_stay_where_the_pool_is_asked(void **state)
{
	(void)state;
	assert_int_equal(lease_and_evict(true), OMNIKV_EXTENT_SEALED);
	/* Where it is not they leave the cache, and only wait in quarantine. */
	assert_int_equal(lease_and_evict(false), -ESTALE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(full_pool_serves_two_threads_at_once),
		cmocka_unit_test(least_recently_used_leaves_first),
		cmocka_unit_test(several_sizes_fit_in_the_end),
		cmocka_unit_test(layouts_give_way_to_each_other),
		cmocka_unit_test(memory_in_use_elsewhere_is_not_counted_on),
		cmocka_unit_test(blocks_that_others_lease_stay_where_the_pool_is_asked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

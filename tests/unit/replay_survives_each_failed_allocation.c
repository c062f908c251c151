// SPDX-License-Identifier: GPL-2.0-only
/*
 * The whole system with each allocation failing in turn: a replay ends with an errno or plays on,
 * never with a wrong byte, broken books, or anything that is not given back. Its known hits are seen too, so
 * that what survives is the real job.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/harness/fault.h"
#include "tools/omnikv/replay.h"
#include "tools/omnikv/workload.h"

/* A replay has one thread of its own: there is little for the thread sanitizer to see, and it takes its time. */
#if defined(__SANITIZE_THREAD__)
#define STRIDE		20
#else
#define STRIDE		1
#endif

#define POOL_BYTES	"1M"	/* 64 blocks: fewer than the requests store */

struct world {
	struct omnikv_layout		layout;
	struct omnikv_plan		plan;
	struct okv_trace		trace;
	struct okv_replay_config	config;
};

static int world_open(void **state)
{
	struct omnikv_pool_config pc = { .size = sizeof(pc) };
	struct world *world = calloc(1, sizeof(*world));
	struct omnikv_error err;

	assert_non_null(world);
	assert_int_equal(omnikv_layout_preset("tiny", &world->layout, &err), 0);
	assert_int_equal(omnikv_plan_make(&world->layout, NULL, &world->plan, &err), 0);
	okv_trace_init(&world->trace, world->plan.block_tokens);
	assert_int_equal(okv_workload_make("agent", OKV_WORKLOAD_SEED, &world->trace), 0);
	okv_trace_cut(&world->trace, 24);
	world->config = (struct okv_replay_config) {
		.trace = &world->trace, .plan = &world->plan, .gpu = okv_gpu_find("h100"), .tenant = "t",
		.eviction = "lru", .device = "sim", .is_verified = true, .is_shuffled = true, .concurrency = 1,
		.nr_slots = 2,
	};
	pc.granule_bytes = world->plan.granule_bytes;
	assert_int_equal(omnikv_pool_open(POOL_BYTES, &pc, &world->config.pool, &err), 0);
	*state = world;
	return 0;
}

static int world_close(void **state)
{
	struct world *world = *state;

	omnikv_pool_close(world->config.pool);
	okv_trace_fini(&world->trace);
	free(world);
	return 0;
}

static void assert_pool_is_empty(struct omnikv_pool *pool)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	assert_int_equal(info.free_bytes, info.usable_bytes);
	assert_int_equal(info.nr_clients, 0);
}

static void nothing_is_lost(void **state)
{
	struct world *world = *state;
	struct okv_replay_result res;
	uint64_t blocks_hit, nr_failed = 0, nr_survived = 0;
	struct omnikv_error err;
	unsigned int nth = 0;
	bool has_fired;
	int ret;

	assert_int_equal(okv_replay_run(&world->config, &res, &err), 0);
	blocks_hit = res.blocks_hit;
	assert_true(blocks_hit > 0);
	assert_true(res.manager.blocks_evicted > 0);
	assert_int_equal(res.nr_refused, 0);
	do {
		err.text[0] = 0;
		nth += STRIDE;
		fault_arm(nth);
		ret = okv_replay_run(&world->config, &res, &err);
		has_fired = fault_disarm();
		if (ret && !err.text[0])
			fail_msg("allocation %u: %d without a reason", nth, ret);
		if (ret > 0 || (ret && !has_fired))
			fail_msg("allocation %u: %d, %s", nth, ret, err.text);
		/* The walk over the books allocates too. */
		if (has_fired && !strcmp(res.check, strerror(ENOMEM)))
			res.check[0] = 0;
		if (res.wrong_bytes || res.leaked_bytes || res.leaked_leases || res.check[0])
			fail_msg("allocation %u: %s %s", nth, res.first_wrong, res.check);
		assert_pool_is_empty(world->config.pool);
		nr_failed += !!ret;
		nr_survived += !ret && has_fired;
	} while (has_fired);
	assert_int_equal(res.blocks_hit, blocks_hit);
	print_message("about %u allocations: %llu runs ended, %llu played on\n", nth - STRIDE, (unsigned long long)nr_failed,
		      (unsigned long long)nr_survived);
	assert_true(nth > 100);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(nothing_is_lost, world_open, world_close),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Each allocation of each call of the manager and of sequences fails once, in turn: the call
 * says -ENOMEM, all invariants hold, nothing leaks, and the same call then works.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/harness/fault.h"
#include "tests/harness/kv_world.h"

#define T	16u

/* Run @call with its nth allocation failing, for each n, until it works. Its result is then @expected. */
#define TRY_ALL(world, call, expected)								\
do {												\
	unsigned int nth_ = 0;									\
	int64_t ret_;										\
												\
	for (;;) {										\
		bool has_fired_;								\
												\
		fault_arm(++nth_);								\
		ret_ = call;									\
		has_fired_ = fault_disarm();							\
		kv_world_check(world);								\
		if (!has_fired_ || ret_ != -ENOMEM)						\
			break;									\
	}											\
	assert_int_equal(ret_, expected);							\
	nr_failed += nth_ - 1;									\
} while (0)

static int64_t zero_or_error(int64_t ret)
{
	return ret < 0 ? ret : 0;
}

static void every_call(void **state)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };
	struct kv_story story = { 0 };
	struct omnikv_key *keys, tail;
	struct omnikv_seq *seq, *fork, *hit;
	struct omnikv_match *match;
	struct omnikv_space *space;
	struct omnikv_namespace ns;
	struct kv_world world;
	unsigned int nr_failed = 0;

	(void)state;
	kv_world_open(&world, KV_SHAPE_HYBRID, T, 600);
	for (uint32_t i = 0; i < 200 * T + 7; i++)
		kv_story_add(&story, i);
	keys = kv_keys(&world, &story, 200);
	tail = kv_key(&world, &story, 200, 7);

	TRY_ALL(&world, omnikv_seq_open(world.space, keys, 200, NULL, &seq), 0);
	TRY_ALL(&world, omnikv_seq_append(seq, 100 * T + 3), 0);
	kv_store(&world, seq, &story, 0, 100 * T + 3);
	TRY_ALL(&world, omnikv_seq_fork(seq, &fork), 0);
	TRY_ALL(&world, omnikv_seq_append(seq, 1), 0);
	TRY_ALL(&world, omnikv_seq_append(fork, 100 * T + 4), 0);
	kv_store(&world, fork, &story, 100 * T + 3, 200 * T + 7);
	/* What was published before the failure stays so: the last call has less to do. */
	TRY_ALL(&world, zero_or_error(omnikv_seq_commit(fork, keys, 200, &tail)), 0);
	assert_int_equal(omnikv_seq_cached_tokens(fork), 200 * T + 7);
	TRY_ALL(&world, omnikv_seq_commit(seq, keys, 100, NULL), 0);
	assert_int_equal(omnikv_seq_cached_tokens(seq), 100 * T);
	TRY_ALL(&world, omnikv_match(world.space, keys, 200, &tail, &match), 0);
	assert_int_equal(omnikv_match_tokens(match), 200 * T + 7);
	omnikv_match_put(match);
	TRY_ALL(&world, omnikv_seq_open(world.space, keys, 200, &tail, &hit), 0);
	assert_null(kv_compare(&world, hit, &story, 0, 200 * T + 7));
	TRY_ALL(&world, omnikv_seq_append(hit, 2), 0);
	TRY_ALL(&world, omnikv_manager_stats(world.manager, &stats), 0);
	fault_arm(1);
	assert_int_equal(omnikv_seq_truncate(fork, 150 * T + 1), 0);
	fault_disarm();
	kv_world_check(&world);
	assert_null(kv_compare(&world, fork, &story, 0, 150 * T + 1));

	ns = world.ns;
	ns.epoch = 3;
	TRY_ALL(&world, omnikv_space_open(world.manager, &ns, &world.plan, &space, NULL), 0);
	omnikv_space_close(space);
	omnikv_seq_close(seq);
	omnikv_seq_close(fork);
	omnikv_seq_close(hit);
	assert_true(nr_failed > 20);
	free(keys);
	kv_story_free(&story);
	kv_world_close(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_call),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

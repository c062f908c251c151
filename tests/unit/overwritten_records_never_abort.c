// SPDX-License-Identifier: GPL-2.0-only
/*
 * A pool whose extent records somebody overwrote while it is in use: what the pool does not take
 * back is counted and reported by the check, and giving it up ends no process.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "embedded.h"
#include "pool_file.h"
#include "tests/harness/kv_world.h"

#define T	16u

static void overwrite(struct omnikv_pool *pool, int byte)
{
	struct okv_embedded_pool *embedded = okv_embedded_pool(pool);
	uint64_t seed = 7, nr_bytes = embedded->map.nr_granules * sizeof(struct okv_extent_rec);
	unsigned char *recs = embedded->meta + OKV_POOL_HEADER_BYTES;

	for (uint64_t i = 0; i < nr_bytes; i++)
		recs[i] = byte < 0 ? (unsigned char)kv_random(&seed) : (unsigned char)byte;
}

static void give_up_with(int byte)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };
	struct kv_story story = { 0 };
	struct omnikv_error err;
	struct kv_world world;
	struct omnikv_seq *seq, *fork, *late;

	kv_world_open(&world, KV_SHAPE_HYBRID, T, 40);
	for (uint32_t i = 0; i < 10 * T; i++)
		kv_story_add(&story, i);
	seq = kv_open(&world, &story, false);
	assert_int_equal(omnikv_seq_append(seq, 10 * T), 0);
	kv_store(&world, seq, &story, 0, 10 * T);
	assert_int_equal(kv_commit(&world, seq, &story, false), 10);
	assert_int_equal(omnikv_seq_append(seq, 5 * T), 0);
	assert_int_equal(omnikv_seq_fork(seq, &fork), 0);
	assert_int_equal(omnikv_manager_stats(world.manager, &stats), 0);
	assert_true(stats.extents_lost == 0);

	overwrite(world.pool, byte);
	/* Whether there is room is anybody's guess now. */
	(void)omnikv_seq_append(fork, T);
	late = kv_open(&world, &story, false);
	(void)omnikv_seq_append(late, 40 * T);
	(void)kv_commit(&world, late, &story, false);
	omnikv_seq_close(late);
	omnikv_seq_close(seq);
	omnikv_seq_close(fork);
	(void)omnikv_manager_reset(world.manager);
	assert_int_equal(omnikv_manager_stats(world.manager, &stats), 0);
	assert_true(stats.extents_lost > 0);
	assert_int_equal(omnikv_manager_check(world.manager, &err), -EUCLEAN);
	assert_non_null(strstr(err.text, "overwritten"));
	omnikv_space_close(world.space);
	KV_MUST(!omnikv_manager_destroy(world.manager));
	omnikv_client_close(world.client);
	omnikv_pool_close(world.pool);
	kv_story_free(&story);
}

static void records_of_zeros_are_counted_and_reported(void **state)
{
	(void)state;
	give_up_with(0);
}

static void records_of_ones_are_counted_and_reported(void **state)
{
	(void)state;
	give_up_with(0xff);
}

static void records_of_text_are_counted_and_reported(void **state)
{
	(void)state;
	give_up_with('#');
}

static void records_of_noise_are_counted_and_reported(void **state)
{
	(void)state;
	give_up_with(-1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(records_of_zeros_are_counted_and_reported),
		cmocka_unit_test(records_of_ones_are_counted_and_reported),
		cmocka_unit_test(records_of_text_are_counted_and_reported),
		cmocka_unit_test(records_of_noise_are_counted_and_reported),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

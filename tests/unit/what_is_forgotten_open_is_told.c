// SPDX-License-Identifier: GPL-2.0-only
/*
 * A manager whose sequences or matches were forgotten, a device whose rings were: closing it says -EBUSY, ends
 * nothing, and works once they are closed.
 *
 * An assertion ended the whole engine there. One thread.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include <omnikv.h>

#include "tests/harness/kv_world.h"

static void make(struct kv_world *world, struct kv_story *story)
{
	struct omnikv_seq *seq;

	kv_world_open(world, KV_SHAPE_FULL, 16, 64);
	for (uint32_t i = 0; i < 48; i++)
		kv_story_add(story, i);
	seq = kv_open(world, story, false);
	assert_int_equal(omnikv_seq_append(seq, story->nr_tokens), 0);
	kv_store(world, seq, story, 0, story->nr_tokens);
	assert_int_equal(kv_commit(world, seq, story, false), 3);
	omnikv_seq_close(seq);
}

static void a_manager_with_an_open_sequence_is_busy(void **state)
{
	struct kv_story story = { 0 };
	struct omnikv_seq *seq, *fork;
	struct kv_world world;

	(void)state;
	make(&world, &story);
	seq = kv_open(&world, &story, false);
	assert_int_equal(omnikv_manager_destroy(world.manager), -EBUSY);
	/* Nothing has ended. */
	assert_null(kv_compare(&world, seq, &story, 0, story.nr_tokens));
	assert_int_equal(omnikv_seq_append(seq, 1), 0);
	assert_int_equal(omnikv_seq_fork(seq, &fork), 0);
	omnikv_seq_close(seq);
	assert_int_equal(omnikv_manager_destroy(world.manager), -EBUSY);
	omnikv_seq_close(fork);
	kv_world_close(&world);
	kv_story_free(&story);
}

static void a_manager_with_an_open_match_is_busy(void **state)
{
	struct kv_story story = { 0 };
	struct omnikv_match *match, *none;
	struct omnikv_key *keys;
	struct kv_world world;

	(void)state;
	make(&world, &story);
	keys = kv_keys(&world, &story, 3);
	assert_int_equal(omnikv_match(world.space, keys, 3, NULL, &match), 0);
	assert_int_equal(omnikv_match(world.space, keys + 1, 1, NULL, &none), 0);
	assert_int_equal(omnikv_match_blocks(none), 0);
	assert_int_equal(omnikv_manager_destroy(world.manager), -EBUSY);
	assert_int_equal(omnikv_match_blocks(match), 3);
	omnikv_match_put(match);
	/* A match of nothing refers to its space. */
	assert_int_equal(omnikv_manager_destroy(world.manager), -EBUSY);
	omnikv_match_put(none);
	kv_world_close(&world);
	free(keys);
	kv_story_free(&story);
}

static void an_attached_manager_is_busy_likewise(void **state)
{
	struct okv_authority *auth;
	struct kv_world base, world;
	struct kv_story story = { 0 };
	struct omnikv_seq *seq;

	(void)state;
	make(&base, &story);
	kv_world_attach(&world, &base, &auth);
	seq = kv_open(&world, &story, false);
	assert_int_equal(omnikv_manager_destroy(world.manager), -EBUSY);
	assert_null(kv_compare(&world, seq, &story, 0, story.nr_tokens));
	omnikv_seq_close(seq);
	kv_world_detach(&world);
	kv_world_close(&base);
	kv_story_free(&story);
}

static void a_device_with_an_open_ring_is_busy(void **state)
{
	const struct omnikv_ring_config config = { .size = sizeof(config), .entries = 8 };
	struct omnikv_device *dev;
	struct omnikv_ring *ring;

	(void)state;
	assert_int_equal(omnikv_device_open("host", NULL, &dev, NULL), 0);
	assert_int_equal(omnikv_ring_init(NULL, dev, &config, &ring, NULL), 0);
	assert_int_equal(omnikv_device_close(dev), -EBUSY);
	omnikv_ring_exit(ring);
	assert_int_equal(omnikv_device_close(dev), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_manager_with_an_open_sequence_is_busy),
		cmocka_unit_test(a_manager_with_an_open_match_is_busy),
		cmocka_unit_test(an_attached_manager_is_busy_likewise),
		cmocka_unit_test(a_device_with_an_open_ring_is_busy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

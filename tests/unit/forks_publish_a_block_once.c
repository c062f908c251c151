// SPDX-License-Identifier: GPL-2.0-only
/*
 * Two forks that commit the block that they share at the same time: while one of them sums it, the
 * other publishes it, under the same key or another one, and it may even have left the index again.
 * The block's memory belongs to one entry whatever happens.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lib/failpoint.h"
#include "lib/sequence.h"
#include "tests/harness/kv_world.h"

#define T	16u

static struct kv_world world;
static struct kv_story story;

/* What the other fork does meanwhile. */
struct meanwhile {
	struct omnikv_seq	*fork;
	bool			is_other_key;
	bool			is_distrusted;
	int64_t			published;
};

static int publish(void *opaque, const char *name)
{
	struct meanwhile *m = opaque;
	struct omnikv_key *keys = kv_keys(&world, &story, 3);

	(void)name;
	if (m->is_other_key)
		keys[1].bytes[0] ^= 1;
	m->published = omnikv_seq_commit(m->fork, keys, 3, NULL);
	free(keys);
	if (m->is_distrusted)
		okv_seq_distrust(m->fork, 1);
	return 0;
}

static int64_t commit_both(bool is_other_key, bool is_distrusted)
{
	struct okv_failpoint point = { .name = "commit.publish", .times = 1, .fn = publish };
	struct meanwhile m = { .is_other_key = is_other_key, .is_distrusted = is_distrusted };
	struct omnikv_seq *seq, *again;
	uint64_t nr_hit;
	int64_t ret;

	kv_world_open(&world, KV_SHAPE_FULL, T, 16);
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_append(seq, 3 * T), 0);
	kv_store(&world, seq, &story, 0, 3 * T);
	assert_int_equal(omnikv_seq_fork(seq, &m.fork), 0);
	point.opaque = &m;
	assert_int_equal(okv_failpoint_arm(&point), 0);
	ret = kv_commit(&world, seq, &story, false);
	okv_failpoint_disarm("commit.publish");
	assert_int_equal(m.published, 3);
	kv_world_check(&world);
	omnikv_seq_close(m.fork);
	kv_world_check(&world);
	/* What is evicted is not what somebody still reads. */
	omnikv_manager_reset(world.manager);
	assert_null(kv_compare(&world, seq, &story, 0, 3 * T));
	kv_world_check(&world);
	again = kv_open(&world, &story, false);
	nr_hit = omnikv_seq_tokens(again);
	assert_null(kv_compare(&world, again, &story, 0, nr_hit));
	omnikv_seq_close(again);
	omnikv_seq_close(seq);
	kv_world_close(&world);
	return ret;
}

static void under_the_same_keys(void **state)
{
	(void)state;
	/* All of it was there when the first came to publish. */
	assert_int_equal(commit_both(false, false), 0);
}

static void under_another_key(void **state)
{
	(void)state;
	assert_int_equal(commit_both(true, false), -EINVAL);
}

static void under_the_same_keys_and_distrusted_since(void **state)
{
	(void)state;
	assert_int_equal(commit_both(false, true), -EINVAL);
}

static int setup(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 3 * T; i++)
		kv_story_add(&story, i);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	kv_story_free(&story);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(under_the_same_keys),
		cmocka_unit_test(under_another_key),
		cmocka_unit_test(under_the_same_keys_and_distrusted_since),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Committing: a failure at any step leaves each block an entry or the sequence's, whole, and
 * leaks nothing; the next commit goes on from there. A block that is cached already is used
 * instead of one's own. A reader that looks all the time sees a miss or the right bytes. What a
 * transfer still writes, or failed to write, is not published.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "block.h"
#include "crc32c.h"
#include "failpoint.h"
#include "sequence.h"
#include "tests/harness/kv_world.h"

#define T	16u

static struct kv_story make_story(uint32_t salt, uint64_t nr_tokens)
{
	struct kv_story story = { 0 };

	for (uint64_t i = 0; i < nr_tokens; i++)
		kv_story_add(&story, salt + i);
	return story;
}

static struct omnikv_seq *make_seq(struct kv_world *world, const struct kv_story *story)
{
	struct omnikv_seq *seq = kv_open(world, story, false);
	uint64_t old = omnikv_seq_tokens(seq);

	assert_int_equal(omnikv_seq_append(seq, story->nr_tokens - old), 0);
	kv_store(world, seq, story, old, story->nr_tokens);
	return seq;
}

static void must_hit(struct kv_world *world, const struct kv_story *story, uint64_t nr_tokens)
{
	struct omnikv_seq *seq = kv_open(world, story, true);

	assert_int_equal(omnikv_seq_tokens(seq), nr_tokens);
	assert_null(kv_compare(world, seq, story, 0, nr_tokens));
	omnikv_seq_close(seq);
}

static int disarm(void **state)
{
	(void)state;
	okv_failpoint_disarm_all();
	return 0;
}

/* 150 blocks and a tail are three leaves and a tail: each step of each fails once. */
static void failure_at_each_step(void **state)
{
	static const char *const points[] = { "commit.seal", "commit.publish", "commit.insert" };
	struct kv_world world;
	uint32_t nr_failed = 0;

	(void)state;
	kv_world_open(&world, KV_SHAPE_MIXED, T, 400);
	for (uint32_t p = 0; p < 3; p++) {
		for (uint32_t nth = 1; nth <= 4; nth++) {
			struct okv_failpoint point = { .name = points[p], .nth = nth, .times = 1, .error = ENOMEM };
			struct kv_story story = make_story(100000 * ++nr_failed, 150 * T + 4);
			struct omnikv_seq *seq = make_seq(&world, &story);
			uint64_t before = nth == 4 ? 150 : (nth - 1) * 64;

			assert_int_equal(okv_failpoint_arm(&point), 0);
			assert_int_equal(kv_commit(&world, seq, &story, true), -ENOMEM);
			okv_failpoint_disarm_all();
			kv_world_check(&world);
			assert_int_equal(omnikv_seq_cached_tokens(seq), before * T);
			must_hit(&world, &story, before * T);
			assert_null(kv_compare(&world, seq, &story, 0, story.nr_tokens));
			if (nth % 2) {
				/* Once more: only what is missing is published. */
				assert_int_equal(kv_commit(&world, seq, &story, true), 151 - before);
				must_hit(&world, &story, story.nr_tokens);
			} else {
				/* Growing from a sealed tail copies it. */
				kv_story_add(&story, 7);
				assert_int_equal(omnikv_seq_append(seq, 1), 0);
				kv_store(&world, seq, &story, 150 * T + 4, 150 * T + 5);
				assert_null(kv_compare(&world, seq, &story, 0, story.nr_tokens));
			}
			omnikv_seq_close(seq);
			kv_world_check(&world);
			kv_story_free(&story);
		}
	}
	kv_world_close(&world);
}

static void cached_block_replaces_own_copy(void **state)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };
	struct omnikv_seq *a, *b;
	struct omnikv_piece pa, pb;
	struct kv_story story;
	struct kv_world world;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 64);
	story = make_story(0, 5 * T + 3);
	a = make_seq(&world, &story);
	b = make_seq(&world, &story);
	assert_int_equal(kv_commit(&world, a, &story, true), 6);
	assert_int_equal(kv_commit(&world, b, &story, true), 0);
	assert_int_equal(kv_commit(&world, b, &story, true), 0);
	assert_int_equal(omnikv_seq_cached_tokens(b), 5 * T + 3);
	assert_int_equal(omnikv_seq_pieces(a, 0, 0, 0, 5 * T, 5 * T + 3, 0, &pa, 1), 1);
	assert_int_equal(omnikv_seq_pieces(b, 0, 0, 0, 5 * T, 5 * T + 3, 0, &pb, 1), 1);
	assert_memory_equal(&pa, &pb, sizeof(pa));
	assert_int_equal(omnikv_manager_stats(world.manager, &stats), 0);
	assert_int_equal(stats.blocks_committed, 6);
	assert_int_equal(stats.blocks_deduplicated, 6);
	assert_int_equal(stats.cached_bytes, 6 * 4096);
	omnikv_seq_close(a);
	omnikv_seq_close(b);
	kv_story_free(&story);
	kv_world_close(&world);
}

/* Others cache the rest between the look at the index and the insertion. */
struct rival {
	struct kv_world		*world;
	struct omnikv_seq	*seq;
	struct kv_story		*story;
	int64_t			ret;
};

static int commit_rival(void *opaque, const char *name)
{
	struct rival *rival = opaque;

	(void)name;
	okv_failpoint_disarm("commit.publish");
	rival->ret = kv_commit(rival->world, rival->seq, rival->story, true);
	return 0;
}

static void rival_is_faster(void **state)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };
	struct rival rival;
	struct okv_failpoint point = { .name = "commit.publish", .fn = commit_rival, .opaque = &rival };
	struct omnikv_seq *seq;
	struct kv_story story;
	struct kv_world world;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 64);
	story = make_story(0, 9 * T + 3);
	seq = make_seq(&world, &story);
	rival = (struct rival){ &world, make_seq(&world, &story), &story, 0 };
	assert_int_equal(okv_failpoint_arm(&point), 0);
	assert_int_equal(kv_commit(&world, seq, &story, false), 0);
	assert_int_equal(rival.ret, 10);
	kv_world_check(&world);
	assert_int_equal(omnikv_seq_cached_tokens(seq), 9 * T);
	assert_null(kv_compare(&world, seq, &story, 0, 9 * T + 3));

	/* And with the tail, which two others of the same key but another length lay claim to. */
	assert_int_equal(kv_commit(&world, seq, &story, true), 0);
	assert_int_equal(omnikv_manager_stats(world.manager, &stats), 0);
	assert_int_equal(stats.nr_blocks, 10);
	omnikv_seq_close(seq);
	omnikv_seq_close(rival.seq);
	kv_story_free(&story);
	kv_world_close(&world);
}

static void tail_key_of_another_length_is_refused(void **state)
{
	struct rival rival;
	struct okv_failpoint point = { .name = "commit.publish", .fn = commit_rival, .opaque = &rival };
	struct omnikv_seq *seq;
	struct omnikv_key key;
	struct kv_story story, shorter;
	struct kv_world world;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 64);
	story = make_story(0, 7);
	shorter = make_story(0, 5);
	key = kv_key(&world, &shorter, 0, 5);
	seq = make_seq(&world, &story);
	rival = (struct rival){ &world, make_seq(&world, &shorter), &shorter, 0 };
	assert_int_equal(okv_failpoint_arm(&point), 0);
	assert_int_equal(omnikv_seq_commit(seq, NULL, 0, &key), -EINVAL);
	assert_int_equal(rival.ret, 1);
	/* Once it is there, it is seen at once. */
	assert_int_equal(omnikv_seq_commit(seq, NULL, 0, &key), -EINVAL);
	assert_int_equal(omnikv_seq_cached_tokens(seq), 0);
	assert_null(kv_compare(&world, seq, &story, 0, 7));
	assert_int_equal(kv_commit(&world, seq, &story, true), 1);
	omnikv_seq_close(seq);
	omnikv_seq_close(rival.seq);
	kv_story_free(&story);
	kv_story_free(&shorter);
	kv_world_close(&world);
}

static void checksum_is_of_the_rows_alone(void **state)
{
	struct kv_story story;
	struct omnikv_seq *seq;
	struct kv_world world;
	uint32_t crc, expected;

	(void)state;
	kv_world_open(&world, KV_SHAPE_MIXED, T, 64);
	story = make_story(0, 2 * T + 8);
	seq = make_seq(&world, &story);
	assert_int_equal(omnikv_seq_block_crc(seq, 0, 0, &crc), -ENODATA);
	assert_int_equal(kv_commit(&world, seq, &story, true), 3);
	for (uint64_t block = 0; block < 3; block++) {
		for (uint32_t g = 0; g < 3; g++) {
			const struct omnikv_group *group = &world.plan.layout.groups[g];

			/* Row by row, in the order layer, plane, row. */
			expected = 0;
			for (uint32_t l = 0; l < world.plan.groups[g].nr_stored; l++) {
				for (uint32_t p = 0; p < group->nr_planes; p++) {
					struct omnikv_piece piece;

					assert_int_equal(omnikv_seq_pieces(seq, g, l, p, block * T,
									   block < 2 ? (block + 1) * T : 2 * T + 8, 0,
									   &piece, 1), 1);
					expected = okv_crc32c_extend(expected,
								     (char *)omnikv_pool_addr(world.pool, &piece.extent) +
								     piece.extent_off, piece.bytes);
				}
			}
			assert_int_equal(omnikv_seq_block_crc(seq, block, g, &crc), 0);
			assert_int_equal(crc, expected);
		}
	}
	assert_int_equal(omnikv_seq_block_crc(seq, 3, 0, &crc), -EINVAL);
	assert_int_equal(omnikv_seq_block_crc(seq, 0, 3, &crc), -EINVAL);
	assert_int_equal(omnikv_seq_block_crc(seq, 0, 0, NULL), -EINVAL);
	assert_int_equal(omnikv_seq_truncate(seq, 2 * T + 4), 0);
	assert_int_equal(omnikv_seq_block_crc(seq, 2, 0, &crc), -ENODATA);
	assert_int_equal(omnikv_seq_block_crc(seq, 1, 0, &crc), 0);
	omnikv_seq_close(seq);
	kv_story_free(&story);
	kv_world_close(&world);
}

static void block_under_transfer_or_lost_stays_out(void **state)
{
	struct omnikv_piece piece;
	struct omnikv_seq *seq;
	struct kv_story story;
	struct kv_world world;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 64);
	story = make_story(0, 4 * T);
	seq = make_seq(&world, &story);
	assert_int_equal(omnikv_seq_pieces(seq, 0, 0, 0, 2 * T, 3 * T, 0, &piece, 1), 1);
	assert_int_equal(omnikv_extent_io_get(world.client, &piece.extent, 1), 0);
	assert_int_equal(kv_commit(&world, seq, &story, false), -EBUSY);
	must_hit(&world, &story, 0);
	kv_world_check(&world);
	omnikv_extent_io_put(world.client, &piece.extent, 1);

	okv_seq_mark_lost(seq, 3 * T + 2);
	okv_seq_mark_lost(seq, 3 * T + 5);
	assert_int_equal(kv_commit(&world, seq, &story, false), -EIO);
	assert_int_equal(omnikv_seq_cached_tokens(seq), 0);
	/* Stored again in part, then not from the start of what was lost, then truncated to what is good. */
	okv_seq_mark_stored(seq, 3 * T + 2, 3 * T + 4);
	okv_seq_mark_stored(seq, 3 * T + 5, 4 * T);
	assert_int_equal(kv_commit(&world, seq, &story, false), -EIO);
	assert_int_equal(omnikv_seq_truncate(seq, 3 * T + 2), 0);
	okv_seq_mark_lost(seq, 2 * T);
	assert_int_equal(kv_commit(&world, seq, &story, true), -EIO);
	okv_seq_mark_stored(seq, T, 3 * T + 2);
	assert_int_equal(kv_commit(&world, seq, &story, true), 4);
	must_hit(&world, &story, 3 * T);

	/* Closed while a load of a private block is in flight: the pool keeps it until that is over. */
	assert_int_equal(omnikv_seq_append(seq, T), 0);
	assert_int_equal(omnikv_seq_pieces(seq, 0, 0, 0, 4 * T, 4 * T + 1, 0, &piece, 1), 1);
	assert_int_equal(omnikv_extent_io_get(world.client, &piece.extent, 1), 0);
	omnikv_seq_close(seq);
	kv_world_check(&world);
	omnikv_extent_io_put(world.client, &piece.extent, 1);
	kv_story_free(&story);
	kv_world_close(&world);
}

/* A block that is not what was committed, and all behind it, is a miss from then on; its memory comes back. */
static void wrong_block_is_not_hit_again(void **state)
{
	struct omnikv_seq *seq, *other;
	struct kv_story story;
	struct kv_world world;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 64);
	story = make_story(0, 4 * T + 3);
	seq = make_seq(&world, &story);
	okv_seq_distrust(seq, 0);
	assert_int_equal(kv_commit(&world, seq, &story, true), 5);
	other = kv_open(&world, &story, true);
	assert_int_equal(omnikv_seq_tokens(other), 4 * T + 3);
	okv_seq_distrust(other, 2);
	okv_seq_distrust(seq, 2);
	must_hit(&world, &story, 2 * T);
	kv_world_check(&world);
	omnikv_seq_close(other);
	omnikv_seq_close(seq);
	kv_world_check(&world);

	/* The right bytes can be put there again. */
	seq = make_seq(&world, &story);
	assert_int_equal(kv_commit(&world, seq, &story, true), 3);
	must_hit(&world, &story, 4 * T + 3);
	omnikv_seq_close(seq);
	kv_story_free(&story);
	kv_world_close(&world);
}

/* Readers look for 32 blocks all the time while they are committed, with delays where it could matter. */
struct reading {
	struct kv_world		*world;
	const struct kv_story	*story;
	_Atomic bool		is_over;
	_Atomic uint64_t	nr_hits;
};

static void *read_all_the_time(void *arg)
{
	struct reading *reading = arg;
	struct omnikv_key *keys = kv_keys(reading->world, reading->story, 32);
	bool is_last;

	do {
		struct omnikv_seq *seq;
		uint64_t nr_tokens;

		is_last = atomic_load(&reading->is_over);
		KV_MUST(omnikv_seq_open(reading->world->space, keys, 32, NULL, &seq) == 0);
		nr_tokens = omnikv_seq_tokens(seq);
		KV_MUST(!kv_compare(reading->world, seq, reading->story, 0, nr_tokens));
		atomic_fetch_add(&reading->nr_hits, nr_tokens / T);
		KV_MUST(!is_last || nr_tokens == 32 * T);
		omnikv_seq_close(seq);
	} while (!is_last);
	free(keys);
	return NULL;
}

static void reader_sees_a_miss_or_right_bytes(void **state)
{
	static const char *const points[] = { "commit.seal", "commit.publish", "commit.insert" };
	struct reading reading = { 0 };
	struct omnikv_seq *seq;
	struct kv_story story;
	struct kv_world world;
	pthread_t threads[2];

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 64);
	story = make_story(0, 32 * T);
	reading.world = &world;
	reading.story = &story;
	for (uint32_t i = 0; i < 3; i++) {
		struct okv_failpoint point = { .name = points[i], .delay_ms = 1 };

		assert_int_equal(okv_failpoint_arm(&point), 0);
	}
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, read_all_the_time, &reading), 0);
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	for (uint64_t i = 0; i < 32; i++) {
		struct omnikv_key *keys = kv_keys(&world, &story, i + 1);

		assert_int_equal(omnikv_seq_append(seq, T), 0);
		kv_store(&world, seq, &story, i * T, (i + 1) * T);
		assert_int_equal(omnikv_seq_commit(seq, keys, i + 1, NULL), 1);
		free(keys);
	}
	atomic_store(&reading.is_over, true);
	for (uint32_t i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	assert_true(atomic_load(&reading.nr_hits) >= 64);
	omnikv_seq_close(seq);
	kv_story_free(&story);
	kv_world_close(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_teardown(failure_at_each_step, disarm),
		cmocka_unit_test_teardown(cached_block_replaces_own_copy, disarm),
		cmocka_unit_test_teardown(rival_is_faster, disarm),
		cmocka_unit_test_teardown(tail_key_of_another_length_is_refused, disarm),
		cmocka_unit_test_teardown(checksum_is_of_the_rows_alone, disarm),
		cmocka_unit_test_teardown(block_under_transfer_or_lost_stays_out, disarm),
		cmocka_unit_test_teardown(wrong_block_is_not_hit_again, disarm),
		cmocka_unit_test_teardown(reader_sees_a_miss_or_right_bytes, disarm),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

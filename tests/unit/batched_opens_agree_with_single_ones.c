// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sequences that are opened and closed many in a call: the same hits, leases, counters and order of eviction as one call
 * after another, in a manager of one's own, over another manager and with a spill store, in every shape of layout. What
 * fails in the middle leaves nothing open; what is no batch is refused.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "failpoint.h"
#include "manager/authority.h"
#include "manager/manager.h"
#include "spill/spill.h"
#include "tests/harness/batch_history.h"
#include "tests/harness/fault.h"
#include "tests/harness/spill_world.h"

#define T		4u
#define STEPS		150u
#define SEGMENT		(1u << 20)
#define DISK		(OKV_SPILL_DATA_OFF + 12ull * SEGMENT)

/* Both kinds of calls have done something, and the pool was too small for all of it. */
static void was_busy(const struct batch_history *history, const struct kv_world *world)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	assert_int_equal(omnikv_manager_stats(world->manager, &stats), 0);
	assert_true(history->nr_opened > 1000);
	assert_true(history->nr_hit > 1000);
	assert_true(stats.blocks_evicted > 100);
}

static void histories_agree_in_a_manager_of_ones_own(void **state)
{
	(void)state;
	for (int shape = KV_SHAPE_FULL; shape <= KV_SHAPE_HYBRID; shape++) {
		struct kv_world single, batch;
		struct batch_history history = { .single = &single, .batch = &batch, .seed = 100 + (unsigned int)shape };

		kv_world_open(&single, shape, T, 900);
		kv_world_open(&batch, shape, T, 900);
		batch_history_run(&history, STEPS, 80, 12);
		was_busy(&history, &batch);
		kv_world_close(&batch);
		kv_world_close(&single);
	}
}

static void histories_agree_over_another_manager(void **state)
{
	(void)state;
	for (int shape = KV_SHAPE_FULL; shape <= KV_SHAPE_HYBRID; shape++) {
		struct kv_world single, batch, single_base, batch_base;
		struct batch_history history = { .single = &single, .batch = &batch, .seed = 200 + (unsigned int)shape };
		struct okv_authority *auths[2];

		kv_world_open(&single_base, shape, T, 900);
		kv_world_open(&batch_base, shape, T, 900);
		kv_world_attach(&single, &single_base, &auths[0]);
		kv_world_attach(&batch, &batch_base, &auths[1]);
		batch_history_run(&history, STEPS, 80, 12);
		batch_history_compare_stats(single_base.manager, batch_base.manager);
		was_busy(&history, &batch_base);
		/* Nobody answers: what is here hits, and nothing else. */
		okv_authority_local_set_gone(auths[0], true);
		okv_authority_local_set_gone(auths[1], true);
		batch_history_run(&history, 10, 40, 3);
		okv_authority_local_set_gone(auths[0], false);
		okv_authority_local_set_gone(auths[1], false);
		kv_world_detach(&batch);
		kv_world_detach(&single);
		kv_world_close(&batch_base);
		kv_world_close(&single_base);
	}
}

struct tiers {
	struct sim_disk		sim;
	struct omnikv_spill	spill;
	struct kv_world		world;
};

static void open_tiers(struct tiers *tiers, enum kv_shape shape)
{
	struct okv_store_config config = spill_sim_config(DISK, SEGMENT);

	memset(tiers, 0, sizeof(*tiers));
	sim_disk_init(&tiers->sim, DISK);
	tiers->spill = (struct omnikv_spill){ .disk = &tiers->sim.disk, .is_simulated = true };
	assert_int_equal(spill_sim_open(&tiers->sim, &config, &tiers->spill.store), 0);
	kv_world_open_spill(&tiers->world, shape, T, 300, &tiers->spill, OMNIKV_SPILL_ADMIT_ALL);
}

static void close_tiers(struct tiers *tiers)
{
	kv_world_close(&tiers->world);
	okv_store_close(tiers->spill.store);
	sim_disk_fini(&tiers->sim);
}

static void histories_agree_with_a_spill_store(void **state)
{
	(void)state;
	for (int shape = KV_SHAPE_FULL; shape <= KV_SHAPE_HYBRID; shape++) {
		struct omnikv_manager_stats stats = { .size = sizeof(stats) };
		static struct tiers single, batch;
		struct batch_history history = {
			.single = &single.world, .batch = &batch.world, .seed = 300 + (unsigned int)shape,
		};

		open_tiers(&single, shape);
		open_tiers(&batch, shape);
		batch_history_run(&history, STEPS, 30, 6);
		assert_int_equal(omnikv_manager_stats(batch.world.manager, &stats), 0);
		assert_true(stats.blocks_hit_nvme > 50);
		close_tiers(&batch);
		close_tiers(&single);
	}
}

/* ---- what fails ----------------------------------------------------------------------------- */

/* A world of two prompts, of which @keys[0] is cached. */
static void open_two(struct kv_world *world, struct omnikv_key keys[2])
{
	struct kv_story story = { 0 };
	struct omnikv_seq *seq;

	kv_world_open(world, KV_SHAPE_FULL, T, 100);
	for (uint32_t i = 0; i < T; i++)
		kv_story_add(&story, 7);
	keys[0] = kv_key(world, &story, 0, T);
	assert_int_equal(omnikv_seq_open(world->space, NULL, 0, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_append(seq, T), 0);
	kv_store(world, seq, &story, 0, T);
	assert_int_equal(kv_commit(world, seq, &story, false), 1);
	omnikv_seq_close(seq);
	keys[1] = keys[0];
	keys[1].bytes[0] ^= 1;
	kv_story_free(&story);
}

static uint64_t nr_leased(const struct kv_world *world)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	assert_int_equal(omnikv_manager_stats(world->manager, &stats), 0);
	return stats.nr_leased_blocks;
}

static void one_lease_too_many_opens_nothing(void **state)
{
	const uint32_t nr = 65534;
	struct omnikv_prefix *prefixes = calloc(nr, sizeof(*prefixes)), four[4];
	struct omnikv_seq **seqs = calloc(nr, sizeof(*seqs)), *out[4] = { NULL }, *seq;
	struct omnikv_key keys[2];
	struct kv_world world;

	(void)state;
	assert_true(prefixes && seqs);
	open_two(&world, keys);
	for (uint32_t i = 0; i < nr; i++)
		prefixes[i] = (struct omnikv_prefix){ .keys = &keys[0], .nr_keys = 1 };
	assert_int_equal(omnikv_seq_open_batch(world.space, prefixes, nr, seqs), 0);
	for (uint32_t i = 0; i < 4; i++)
		four[i] = (struct omnikv_prefix){ .keys = &keys[i == 0 || i == 3], .nr_keys = 1 };
	assert_int_equal(omnikv_seq_open_batch(world.space, four, 4, out), -EOVERFLOW);
	for (uint32_t i = 0; i < 4; i++)
		assert_null(out[i]);
	/* Its one lease was given up again. */
	assert_int_equal(omnikv_seq_open(world.space, keys, 1, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_tokens(seq), T);
	omnikv_seq_close(seq);
	kv_world_check(&world);
	omnikv_seq_close_batch(seqs, nr);
	assert_int_equal(nr_leased(&world), 0);
	kv_world_close(&world);
	free(prefixes);
	free(seqs);
}

static void what_is_no_batch_is_refused(void **state)
{
	struct omnikv_prefix prefixes[2] = { { .nr_keys = 0 } };
	struct omnikv_seq *seqs[2] = { NULL }, *seq;
	struct omnikv_key keys[2], bad;
	struct kv_world world;

	(void)state;
	open_two(&world, keys);
	prefixes[0] = (struct omnikv_prefix){ .keys = keys, .nr_keys = 1 };
	assert_int_equal(omnikv_seq_open_batch(NULL, prefixes, 1, seqs), -EINVAL);
	assert_int_equal(omnikv_seq_open_batch(world.space, NULL, 1, seqs), -EINVAL);
	assert_int_equal(omnikv_seq_open_batch(world.space, prefixes, 1, NULL), -EINVAL);
	assert_int_equal(omnikv_seq_open_batch(world.space, prefixes, OMNIKV_SEQ_BATCH_MAX + 1, seqs), -EINVAL);
	assert_int_equal(omnikv_seq_open_batch(world.space, prefixes, SIZE_MAX, seqs), -EINVAL);
	/* One of them: no key, a key that is none, one that is not zero behind its end, such a tail. */
	prefixes[1] = (struct omnikv_prefix){ .keys = NULL, .nr_keys = 1 };
	assert_int_equal(omnikv_seq_open_batch(world.space, prefixes, 2, seqs), -EINVAL);
	bad = keys[0];
	bad.len = 0;
	prefixes[1] = (struct omnikv_prefix){ .keys = &bad, .nr_keys = 1 };
	assert_int_equal(omnikv_seq_open_batch(world.space, prefixes, 2, seqs), -EINVAL);
	bad.len = OMNIKV_KEY_BYTES_MAX + 1;
	assert_int_equal(omnikv_seq_open_batch(world.space, prefixes, 2, seqs), -EINVAL);
	bad.len = 1;
	memset(bad.bytes, 0xff, sizeof(bad.bytes));
	assert_int_equal(omnikv_seq_open_batch(world.space, prefixes, 2, seqs), -EINVAL);
	prefixes[1] = (struct omnikv_prefix){ .tail = &bad };
	assert_int_equal(omnikv_seq_open_batch(world.space, prefixes, 2, seqs), -EINVAL);
	assert_null(seqs[0]);
	assert_int_equal(nr_leased(&world), 0);

	/* Nothing to do is nothing wrong. */
	assert_int_equal(omnikv_seq_open_batch(world.space, NULL, 0, NULL), 0);
	omnikv_seq_close_batch(NULL, 0);
	omnikv_seq_close_batch(seqs, 2);
	omnikv_seq_close(NULL);
	/* An empty prompt is one. */
	prefixes[1] = (struct omnikv_prefix){ .nr_keys = 0 };
	assert_int_equal(omnikv_seq_open_batch(world.space, prefixes, 2, seqs), 0);
	assert_int_equal(omnikv_seq_tokens(seqs[0]), T);
	assert_int_equal(omnikv_seq_tokens(seqs[1]), 0);
	assert_int_equal(omnikv_seq_append(seqs[1], 3), 0);
	seq = seqs[0];
	seqs[0] = NULL;
	omnikv_seq_close_batch(seqs, 2);
	omnikv_seq_close(seq);
	kv_world_close(&world);
}

/* Sequences of two managers, closed in one call: what each has of its own goes back to its own. */
static void one_close_ends_sequences_of_several_managers(void **state)
{
	struct kv_world worlds[2];
	struct omnikv_key keys[2];
	struct omnikv_seq *seqs[6];

	(void)state;
	for (uint32_t i = 0; i < 2; i++)
		open_two(&worlds[i], keys);
	for (uint32_t i = 0; i < 6; i++) {
		assert_int_equal(omnikv_seq_open(worlds[i / 2 % 2].space, keys, 1, NULL, &seqs[i]), 0);
		assert_int_equal(omnikv_seq_append(seqs[i], T), 0);
	}
	omnikv_seq_close_batch(seqs, 6);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(nr_leased(&worlds[i]), 0);
		kv_world_check(&worlds[i]);
		kv_world_close(&worlds[i]);
	}
}

/* Prompts of which each lies in more than one leaf, and more of them than are looked up in one visit. */
static void memory_shortage_opens_nothing(void **state)
{
	const uint32_t nr = 40, nr_blocks = 70;
	struct omnikv_prefix prefixes[40];
	struct omnikv_seq *seqs[40] = { NULL };
	struct kv_world base, world;
	struct okv_authority *auth;
	struct omnikv_key *keys[40];
	unsigned int nth = 0;
	bool has_fired;
	int ret;

	(void)state;
	kv_world_open(&base, KV_SHAPE_FULL, T, 4000);
	kv_world_attach(&world, &base, &auth);
	for (uint32_t i = 0; i < nr; i++) {
		struct kv_story story = { 0 };
		struct omnikv_seq *seq;

		for (uint32_t k = 0; k < nr_blocks * T; k++)
			kv_story_add(&story, 1000 * (i / 2) + (k < 60 * T ? 0 : i) + 1);
		seq = kv_open(&world, &story, false);
		assert_int_equal(omnikv_seq_append(seq, story.nr_tokens - omnikv_seq_tokens(seq)), 0);
		kv_store(&world, seq, &story, omnikv_seq_cached_tokens(seq), story.nr_tokens);
		assert_true(kv_commit(&world, seq, &story, false) > 0);
		omnikv_seq_close(seq);
		keys[i] = kv_keys(&world, &story, nr_blocks);
		prefixes[i] = (struct omnikv_prefix){ .keys = keys[i], .nr_keys = nr_blocks };
		kv_story_free(&story);
	}
	do {
		fault_arm(++nth);
		ret = omnikv_seq_open_batch(world.space, prefixes, nr, seqs);
		has_fired = fault_disarm();
		kv_world_check(&world);
		kv_world_check(&base);
		if (ret) {
			assert_int_equal(ret, -ENOMEM);
			assert_null(seqs[0]);
			assert_int_equal(nr_leased(&world), 0);
		} else {
			omnikv_seq_close_batch(seqs, nr);
			memset(seqs, 0, sizeof(seqs));
		}
	} while (has_fired);
	assert_int_equal(ret, 0);
	assert_true(nth > 2 * nr);
	for (uint32_t i = 0; i < nr; i++)
		free(keys[i]);
	kv_world_detach(&world);
	kv_world_close(&base);
}

/* Lookups that cannot ask, or cannot keep what they were told, are shorter; those beside them are not. */
static void what_cannot_be_imported_is_a_miss(void **state)
{
	static const char *const points[] = { "import.find", "import.insert" };
	struct kv_world base, world, writer;
	struct okv_authority *auths[2];
	struct omnikv_prefix prefixes[8];
	struct omnikv_seq *seqs[8];
	struct omnikv_key keys[8];

	(void)state;
	kv_world_open(&base, KV_SHAPE_FULL, T, 100);
	kv_world_attach(&world, &base, &auths[0]);
	kv_world_attach(&writer, &base, &auths[1]);
	for (uint32_t i = 0; i < 8; i++) {
		struct kv_story story = { 0 };
		struct omnikv_seq *seq;

		for (uint32_t k = 0; k < T; k++)
			kv_story_add(&story, 10 * i + k);
		seq = kv_open(&writer, &story, false);
		assert_int_equal(omnikv_seq_append(seq, T), 0);
		kv_store(&writer, seq, &story, 0, T);
		assert_int_equal(kv_commit(&writer, seq, &story, false), 1);
		omnikv_seq_close(seq);
		keys[i] = kv_key(&writer, &story, 0, T);
		prefixes[i] = (struct omnikv_prefix){ .keys = &keys[i], .nr_keys = 1 };
		kv_story_free(&story);
	}
	for (uint32_t p = 0; p < 2; p++) {
		for (uint32_t nth = 1; nth <= 8; nth++) {
			okv_failpoint_arm(&(struct okv_failpoint){ .name = points[p], .nth = nth, .times = 1, .error = EIO });
			assert_int_equal(omnikv_seq_open_batch(world.space, prefixes, 8, seqs), 0);
			okv_failpoint_disarm(points[p]);
			for (uint32_t i = 0; i < 8; i++)
				assert_int_equal(omnikv_seq_tokens(seqs[i]), i + 1 == nth ? 0 : T);
			omnikv_seq_close_batch(seqs, 8);
			kv_world_check(&world);
			kv_world_check(&base);
			assert_int_equal(nr_leased(&world), 0);
		}
	}
	kv_world_detach(&writer);
	kv_world_detach(&world);
	kv_world_close(&base);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(histories_agree_in_a_manager_of_ones_own),
		cmocka_unit_test(histories_agree_over_another_manager),
		cmocka_unit_test(histories_agree_with_a_spill_store),
		cmocka_unit_test(one_lease_too_many_opens_nothing),
		cmocka_unit_test(what_is_no_batch_is_refused),
		cmocka_unit_test(one_close_ends_sequences_of_several_managers),
		cmocka_unit_test(memory_shortage_opens_nothing),
		cmocka_unit_test(what_cannot_be_imported_is_a_miss),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

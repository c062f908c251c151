// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sequences that are opened many in a call over a real daemon: the same hits, bytes and counters as one call after another,
 * with blocks that another process committed and with some of them on NVMe.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/harness/batch_history.h"
#include "tests/harness/daemon_case.h"

#define T	4u

static const struct omnikv_attach_config patient = { .size = sizeof(patient), .deadline_ms = 30000 };

static void histories_agree(enum kv_shape shape)
{
	const char *const options[] = { "--pool", "64M", "--reserve", "1M", NULL };
	struct batch_history history = { .seed = 400 + (unsigned int)shape };
	struct kv_world single, batch;
	struct daemon_case daemons[2];

	for (uint32_t i = 0; i < 2; i++) {
		daemon_case_init(&daemons[i]);
		daemon_start(&daemons[i], options);
	}
	/* What the first processes commit the second ones find. */
	for (uint32_t i = 0; i < 2; i++) {
		kv_world_connect(&single, shape, T, daemons[0].socket, &patient);
		kv_world_connect(&batch, shape, T, daemons[1].socket, &patient);
		history.single = &single;
		history.batch = &batch;
		batch_history_run(&history, 100, 80, 12);
		kv_world_detach(&batch);
		kv_world_detach(&single);
	}
	assert_true(history.nr_hit > 1000);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(daemon_stop(&daemons[i], NULL), 0);
		daemon_case_fini(&daemons[i]);
	}
}

static void histories_agree_in_every_shape(void **state)
{
	(void)state;
	for (int shape = KV_SHAPE_FULL; shape <= KV_SHAPE_HYBRID; shape++)
		histories_agree(shape);
}

/* A prompt of which the pool has the begin and the store the rest; each batch brings back what it asks for. */
static void blocks_on_nvme_come_back_for_a_batch(void **state)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };
	const uint32_t nr = 40, nr_blocks = 8, nr_prompts = 600;
	struct omnikv_prefix prefixes[40];
	struct omnikv_key *keys[40];
	struct omnikv_seq *seqs[40];
	struct daemon_case daemon;
	struct kv_world world;
	char spill[128];

	(void)state;
	daemon_case_init(&daemon);
	snprintf(spill, sizeof(spill), "%s/spill", daemon.dir);
	daemon_start(&daemon, (const char *const[]){ "--pool", "16M", "--reserve", "1M", "--spill", spill, "--spill-size", "64M", NULL });
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, &patient);
	for (uint32_t i = 0; i < nr_prompts; i++) {
		struct kv_story story = { 0 };
		struct omnikv_seq *seq;

		for (uint32_t k = 0; k < nr_blocks * T; k++)
			kv_story_add(&story, i);
		seq = kv_open(&world, &story, false);
		assert_int_equal(omnikv_seq_append(seq, story.nr_tokens), 0);
		kv_store(&world, seq, &story, 0, story.nr_tokens);
		assert_true(kv_commit(&world, seq, &story, false) >= 0);
		omnikv_seq_close(seq);
		kv_story_free(&story);
	}
	for (uint32_t from = 0; from + nr <= nr_prompts; from += nr) {
		for (uint32_t i = 0; i < nr; i++) {
			struct kv_story story = { 0 };

			for (uint32_t k = 0; k < nr_blocks * T; k++)
				kv_story_add(&story, from + i);
			keys[i] = kv_keys(&world, &story, nr_blocks);
			prefixes[i] = (struct omnikv_prefix){ .keys = keys[i], .nr_keys = nr_blocks / 2 };
			kv_story_free(&story);
		}
		assert_int_equal(omnikv_seq_open_batch(world.space, prefixes, nr, seqs), 0);
		omnikv_seq_close_batch(seqs, nr);
		for (uint32_t i = 0; i < nr; i++)
			prefixes[i].nr_keys = nr_blocks;
		assert_int_equal(omnikv_seq_open_batch(world.space, prefixes, nr, seqs), 0);
		for (uint32_t i = 0; i < nr; i++) {
			struct kv_story story = { 0 };

			for (uint32_t k = 0; k < nr_blocks * T; k++)
				kv_story_add(&story, from + i);
			assert_int_equal(omnikv_seq_tokens(seqs[i]), nr_blocks * T);
			assert_null(kv_compare(&world, seqs[i], &story, 0, nr_blocks * T));
			kv_story_free(&story);
			free(keys[i]);
		}
		omnikv_seq_close_batch(seqs, nr);
	}
	assert_int_equal(omnikv_manager_shared_stats(world.manager, &stats), 0);
	assert_true(stats.blocks_hit_nvme > 0);
	kv_world_detach(&world);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(histories_agree_in_every_shape),
		cmocka_unit_test(blocks_on_nvme_come_back_for_a_batch),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

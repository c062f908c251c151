// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory and the spill store together: what a small pool evicts comes back byte for byte, in
 * every shape of layout; nothing crosses tenants on either tier; a full pool answers at once;
 * restarts find what was there, and say how much truly; a watcher is told what is where; errors, bit rot and a disk that
 * does not answer cost hits and nothing else.
 */
#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "failpoint.h"
#include "manager/manager.h"
#include "manager/watch.h"
#include "spill/spill.h"
#include "tests/harness/kv_world.h"
#include "tests/harness/spill_world.h"

#define T		16u
#define SEGMENT		(1u << 20)
#define DISK		(OKV_SPILL_DATA_OFF + 12ull * SEGMENT)

struct tiers {
	struct sim_disk		sim;
	struct omnikv_spill	spill;
	struct kv_world		world;
};

static void open_spill(struct tiers *tiers)
{
	struct okv_store_config config = spill_sim_config(DISK, SEGMENT);

	tiers->spill = (struct omnikv_spill){ .disk = &tiers->sim.disk, .is_simulated = true };
	assert_int_equal(spill_sim_open(&tiers->sim, &config, &tiers->spill.store), 0);
}

static void open_tiers(struct tiers *tiers, enum kv_shape shape, uint64_t nr_blocks, uint32_t admit)
{
	memset(tiers, 0, sizeof(*tiers));
	sim_disk_init(&tiers->sim, DISK);
	open_spill(tiers);
	kv_world_open_spill(&tiers->world, shape, T, nr_blocks, &tiers->spill, admit);
}

static void close_tiers(struct tiers *tiers)
{
	const char *reason;

	kv_world_close(&tiers->world);
	if (okv_store_check_books(tiers->spill.store, &reason))
		fail_msg("%s", reason);
	okv_store_close(tiers->spill.store);
	sim_disk_fini(&tiers->sim);
}

static struct omnikv_manager_stats stats_of(struct tiers *tiers)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	assert_int_equal(omnikv_manager_stats(tiers->world.manager, &stats), 0);
	return stats;
}

static void make_story(struct kv_story *story, uint32_t salt, uint64_t nr_tokens)
{
	*story = (struct kv_story){ 0 };
	for (uint64_t i = 0; i < nr_tokens; i++)
		kv_story_add(story, salt * 100000 + i);
}

/* Ask for the whole story, as a request does; how many tokens hit. Every byte is compared. */
static uint64_t play(struct tiers *tiers, const struct kv_story *story, bool with_tail)
{
	struct omnikv_seq *seq = kv_open(&tiers->world, story, with_tail);
	uint64_t hit = omnikv_seq_tokens(seq);
	const char *why = hit ? kv_compare(&tiers->world, seq, story, 0, hit) : NULL;

	if (why)
		fail_msg("%s", why);
	if (hit < story->nr_tokens) {
		assert_int_equal(omnikv_seq_append(seq, story->nr_tokens - hit), 0);
		kv_store(&tiers->world, seq, story, hit, story->nr_tokens);
		assert_true(kv_commit(&tiers->world, seq, story, with_tail) >= 0);
	}
	omnikv_seq_close(seq);
	kv_world_check(&tiers->world);
	return hit;
}

static void tier_brings_back_every_byte(void **state)
{
	(void)state;
	for (int shape = KV_SHAPE_FULL; shape <= KV_SHAPE_HYBRID; shape++) {
		struct kv_story stories[10];
		struct omnikv_manager_stats stats;
		struct tiers tiers;

		open_tiers(&tiers, shape, 20, OMNIKV_SPILL_ADMIT_ALL);
		for (uint32_t i = 0; i < 10; i++) {
			make_story(&stories[i], i + 1, 8 * T + (i % 2 ? 8 : 0));
			assert_int_equal(play(&tiers, &stories[i], true), 0);
		}
		/* All of it is four times the pool, and all of it hits. */
		for (uint32_t round = 0; round < 2; round++)
			for (uint32_t i = 0; i < 10; i++)
				assert_int_equal(play(&tiers, &stories[i], true), stories[i].nr_tokens);
		stats = stats_of(&tiers);
		assert_int_equal(stats.blocks_lost, 0);
		assert_int_equal(stats.blocks_bad, 0);
		assert_true(stats.blocks_hit_nvme >= 85);
		assert_true(stats.blocks_hit_nvme <= stats.blocks_hit);
		assert_int_equal(stats.blocks_hit_nvme, stats.blocks_fetched);
		assert_int_equal(stats.blocks_hit_recovered, 0);
		/* A block that has not changed is not written again. */
		assert_true(stats.blocks_spilled > tiers.spill.store->stats.stored_records);
		assert_true(tiers.spill.store->stats.stored_records <= 85);
		for (uint32_t i = 0; i < 10; i++)
			kv_story_free(&stories[i]);
		close_tiers(&tiers);
	}
}

/* A hint: what is asked for brings blocks back before the lookup, which then finds them in memory. */
static void tier_prefetches_what_is_going_to_be_asked_for(void **state)
{
	struct omnikv_manager_stats stats;
	struct kv_story stories[10];
	struct omnikv_key *keys;
	struct tiers tiers;

	(void)state;
	open_tiers(&tiers, KV_SHAPE_FULL, 20, OMNIKV_SPILL_ADMIT_ALL);
	for (uint32_t i = 0; i < 10; i++) {
		make_story(&stories[i], i + 1, 8 * T);
		play(&tiers, &stories[i], false);
	}
	keys = kv_keys(&tiers.world, &stories[0], 8);
	assert_int_equal(omnikv_lookup(tiers.world.space, keys, 8), 0);
	assert_int_equal(omnikv_space_prefetch(tiers.world.space, keys, 8), 8);
	assert_int_equal(omnikv_space_prefetch(tiers.world.space, keys, 0), 0);
	stats = stats_of(&tiers);
	assert_int_equal(stats.blocks_fetched, 8);
	assert_int_equal(stats.blocks_hit, 0);
	assert_int_equal(play(&tiers, &stories[0], false), stories[0].nr_tokens);
	stats = stats_of(&tiers);
	assert_int_equal(stats.blocks_fetched, 8);
	assert_int_equal(stats.blocks_hit_nvme, 0);
	free(keys);
	for (uint32_t i = 0; i < 10; i++)
		kv_story_free(&stories[i]);
	close_tiers(&tiers);
}

/* A prefix of more than three batches comes back as far as it goes: by a lookup, by a hint, and with a gap in it. */
static void tier_reads_ahead_along_a_long_prefix(void **state)
{
	struct kv_story story;
	struct omnikv_key *keys;
	struct tiers tiers;

	(void)state;
	open_tiers(&tiers, KV_SHAPE_FULL, 220, OMNIKV_SPILL_ADMIT_ALL);
	make_story(&story, 1, 200 * T);
	keys = kv_keys(&tiers.world, &story, 200);
	play(&tiers, &story, false);
	assert_int_equal(omnikv_manager_flush(tiers.world.manager), 200);
	assert_int_equal(play(&tiers, &story, false), 200 * T);
	assert_int_equal(stats_of(&tiers).blocks_fetched, 200);
	assert_int_equal(omnikv_manager_flush(tiers.world.manager), 200);
	assert_int_equal(omnikv_space_prefetch(tiers.world.space, keys, 200), 200);
	assert_int_equal(stats_of(&tiers).blocks_fetched, 400);
	assert_int_equal(omnikv_manager_flush(tiers.world.manager), 200);
	/* In the third batch one is missing. */
	okv_store_forget(tiers.spill.store, tiers.world.space->identity, &keys[150]);
	assert_int_equal(omnikv_space_prefetch(tiers.world.space, keys, 200), 150);
	assert_int_equal(play(&tiers, &story, false), 150 * T);
	free(keys);
	kv_story_free(&story);
	close_tiers(&tiers);
}

/* Keys that do not name their prefix: a block of one prefix must not follow another prefix's. */
static void tier_keeps_prefixes_apart_whose_keys_do_not_chain(void **state)
{
	struct kv_story story[2];
	struct omnikv_key keys[2][3];
	struct omnikv_seq *seq;
	struct tiers tiers;

	(void)state;
	open_tiers(&tiers, KV_SHAPE_FULL, 20, OMNIKV_SPILL_ADMIT_ALL);
	for (uint32_t i = 0; i < 2; i++) {
		/* The second has other first blocks, and the same key for its second one. */
		make_story(&story[i], i + 1, 3 * T);
		for (uint32_t k = 0; k < 3; k++)
			keys[i][k] = kv_key(&tiers.world, &story[k == 1 ? 0 : i], k, T);
	}
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(omnikv_seq_open(tiers.world.space, NULL, 0, NULL, &seq), 0);
		assert_int_equal(omnikv_seq_append(seq, (3 - i) * T), 0);
		kv_store(&tiers.world, seq, &story[i], 0, (3 - i) * T);
		assert_int_equal(omnikv_seq_commit(seq, keys[i], 3 - i, NULL), 3 - i);
		omnikv_seq_close(seq);
		assert_int_equal(omnikv_manager_flush(tiers.world.manager), 3 - i);
	}
	keys[1][2] = keys[0][2];
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(omnikv_seq_open(tiers.world.space, keys[i], 3, NULL, &seq), 0);
		print_message("# prefix %u: %llu tokens\n", i, (unsigned long long)omnikv_seq_tokens(seq));
		assert_true(omnikv_seq_tokens(seq) <= (3 - i) * T);
		assert_null(kv_compare(&tiers.world, seq, &story[i], 0, omnikv_seq_tokens(seq)));
		omnikv_seq_close(seq);
		omnikv_manager_reset(tiers.world.manager);
	}
	for (uint32_t i = 0; i < 2; i++)
		kv_story_free(&story[i]);
	close_tiers(&tiers);
}

static void tier_keeps_tenants_apart(void **state)
{
	struct omnikv_namespace other;
	struct omnikv_space *first, *second;
	struct kv_story story, filler;
	struct tiers tiers;

	(void)state;
	open_tiers(&tiers, KV_SHAPE_FULL, 20, OMNIKV_SPILL_ADMIT_ALL);
	first = tiers.world.space;
	other = tiers.world.ns;
	other.tenant = "u";
	assert_int_equal(omnikv_space_open(tiers.world.manager, &other, &tiers.world.plan, &second, NULL), 0);
	make_story(&story, 1, 8 * T);
	make_story(&filler, 2, 20 * T);
	/* In memory. */
	assert_int_equal(play(&tiers, &story, false), 0);
	tiers.world.space = second;
	assert_int_equal(omnikv_manager_flush(tiers.world.manager), 8);
	tiers.world.space = first;
	assert_int_equal(play(&tiers, &story, false), 8 * T);
	assert_int_equal(stats_of(&tiers).blocks_hit_nvme, 8);
	/* On NVMe: not the other one's, still its own. */
	play(&tiers, &filler, false);
	assert_int_equal(stats_of(&tiers).nr_blocks, 20);
	tiers.world.space = second;
	assert_int_equal(play(&tiers, &story, false), 0);
	tiers.world.space = first;
	assert_int_equal(play(&tiers, &story, false), 8 * T);
	tiers.world.space = second;
	assert_int_equal(play(&tiers, &story, false), 8 * T);
	tiers.world.space = first;
	omnikv_space_close(second);
	kv_story_free(&story);
	kv_story_free(&filler);
	close_tiers(&tiers);
}

static int look_meanwhile(void *opaque, const char *name)
{
	struct kv_story *story = ((void **)opaque)[1];
	struct tiers *tiers = ((void **)opaque)[0];
	struct omnikv_seq *seq;

	(void)name;
	seq = kv_open(&tiers->world, story, false);
	((uint64_t **)opaque)[2][0]++;
	/* Its first blocks may be in memory still; what is on its way is not there, and nothing half is. */
	KV_MUST(omnikv_seq_tokens(seq) < story->nr_tokens);
	KV_MUST(!omnikv_seq_tokens(seq) || !kv_compare(&tiers->world, seq, story, 0, omnikv_seq_tokens(seq)));
	omnikv_seq_close(seq);
	return 0;
}

static void tier_block_on_its_way_is_a_miss(void **state)
{
	struct kv_story story, filler;
	uint64_t nr_looks = 0;
	struct tiers tiers;
	void *args[3] = { &tiers, &story, &nr_looks };
	struct okv_failpoint point = { .name = "tier.demote", .times = 1, .fn = look_meanwhile, .opaque = args };

	(void)state;
	open_tiers(&tiers, KV_SHAPE_FULL, 20, OMNIKV_SPILL_ADMIT_ALL);
	make_story(&story, 1, 8 * T);
	make_story(&filler, 2, 16 * T);
	play(&tiers, &story, false);
	assert_int_equal(okv_failpoint_arm(&point), 0);
	play(&tiers, &filler, false);
	okv_failpoint_disarm_all();
	assert_int_equal(nr_looks, 1);
	assert_int_equal(play(&tiers, &story, false), 8 * T);
	kv_story_free(&story);
	kv_story_free(&filler);
	close_tiers(&tiers);
}

static void tier_restart_finds_what_it_says(void **state)
{
	struct kv_story stories[4];
	struct omnikv_spill_stats spill = { .size = sizeof(spill) };
	uint64_t nr_hit = 0;
	struct tiers tiers;

	(void)state;
	open_tiers(&tiers, KV_SHAPE_FULL, 40, OMNIKV_SPILL_ADMIT_ALL);
	for (uint32_t i = 0; i < 4; i++) {
		make_story(&stories[i], i + 1, 8 * T);
		play(&tiers, &stories[i], false);
	}
	assert_int_equal(omnikv_manager_flush(tiers.world.manager), 32);
	assert_int_equal(stats_of(&tiers).nr_blocks, 0);
	assert_int_equal(stats_of(&tiers).bytes_spilled, 32 * omnikv_plan_block_bytes(&tiers.world.plan));
	kv_world_close(&tiers.world);
	okv_store_close(tiers.spill.store);

	open_spill(&tiers);
	kv_world_open_spill(&tiers.world, KV_SHAPE_FULL, T, 40, &tiers.spill, 0);
	assert_int_equal(omnikv_spill_stats(&tiers.spill, &spill), 0);
	assert_int_equal(spill.recovered_records, 32);
	for (uint32_t i = 0; i < 4; i++)
		nr_hit += play(&tiers, &stories[i], false) / T;
	assert_int_equal(nr_hit, spill.recovered_records);
	assert_int_equal(stats_of(&tiers).blocks_hit_recovered, 32);
	assert_int_equal(stats_of(&tiers).blocks_hit_nvme, 32);
	/* From memory now. */
	assert_int_equal(play(&tiers, &stories[0], false), 8 * T);
	assert_int_equal(stats_of(&tiers).blocks_hit_nvme, 32);
	for (uint32_t i = 0; i < 4; i++)
		kv_story_free(&stories[i]);
	close_tiers(&tiers);
}

/* What was stored before is not found, and what is stored from then on is; also by the next managers. */
static void tier_forgets_what_is_of_an_older_epoch(void **state)
{
	struct okv_store_config config = spill_sim_config(DISK, SEGMENT);
	struct kv_story stories[4];
	struct tiers tiers;
	uint64_t off;

	(void)state;
	open_tiers(&tiers, KV_SHAPE_HYBRID, 40, OMNIKV_SPILL_ADMIT_ALL);
	for (uint32_t i = 0; i < 4; i++) {
		make_story(&stories[i], i + 1, 8 * T);
		play(&tiers, &stories[i], false);
	}
	assert_int_equal(omnikv_manager_flush(tiers.world.manager), 32);
	play(&tiers, &stories[0], false);
	assert_true(stats_of(&tiers).blocks_hit_nvme > 0);
	assert_int_equal(omnikv_manager_raise_epoch(tiers.world.manager), 1);
	/* In memory or not. */
	assert_int_equal(play(&tiers, &stories[0], false), 0);
	assert_int_equal(play(&tiers, &stories[1], false), 0);
	assert_int_equal(omnikv_manager_flush(tiers.world.manager), 16);
	assert_int_equal(play(&tiers, &stories[1], false), 8 * T);
	kv_world_close(&tiers.world);
	okv_store_close(tiers.spill.store);

	/* The pool's memory is gone, and the store knows the epoch. */
	open_spill(&tiers);
	kv_world_open_spill(&tiers.world, KV_SHAPE_HYBRID, T, 40, &tiers.spill, 0);
	assert_int_equal(play(&tiers, &stories[0], false), 8 * T);
	assert_int_equal(play(&tiers, &stories[2], false), 0);
	assert_int_equal(omnikv_manager_raise_epoch(tiers.world.manager), 2);
	assert_int_equal(play(&tiers, &stories[0], false), 0);
	assert_int_equal(omnikv_manager_flush(tiers.world.manager), 8);
	kv_world_close(&tiers.world);
	okv_store_close(tiers.spill.store);

	/* Which era it was cannot be read: nothing that is stored is believed to be of it, be it of era 0. */
	off = OKV_SPILL_ERA_OFF + 40;
	tiers.sim.base[off] ^= 1;
	config.is_read_only = true;
	tiers.spill = (struct omnikv_spill){ .disk = &tiers.sim.disk, .is_simulated = true };
	assert_int_equal(spill_sim_open(&tiers.sim, &config, &tiers.spill.store), 0);
	kv_world_open_spill(&tiers.world, KV_SHAPE_HYBRID, T, 40, &tiers.spill, 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(play(&tiers, &stories[i], false), 0);
	kv_world_close(&tiers.world);
	okv_store_close(tiers.spill.store);
	open_spill(&tiers);
	kv_world_open_spill(&tiers.world, KV_SHAPE_HYBRID, T, 40, &tiers.spill, 0);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(play(&tiers, &stories[i], false), 0);
		kv_story_free(&stories[i]);
	}
	close_tiers(&tiers);
}

/* A sector of zeros is what some disks give back for one that they have lost: it is not the first era. */
static void tier_finds_nothing_older_behind_a_zeroed_page(void **state)
{
	struct kv_story story;
	struct tiers tiers;

	(void)state;
	open_tiers(&tiers, KV_SHAPE_FULL, 40, OMNIKV_SPILL_ADMIT_ALL);
	make_story(&story, 1, 8 * T);
	play(&tiers, &story, false);
	assert_int_equal(omnikv_manager_flush(tiers.world.manager), 8);
	assert_int_equal(omnikv_manager_raise_epoch(tiers.world.manager), 1);
	kv_world_close(&tiers.world);
	okv_store_close(tiers.spill.store);
	memset(tiers.sim.base + OKV_SPILL_ERA_OFF, 0, OKV_SPILL_PAGE);
	open_spill(&tiers);
	kv_world_open_spill(&tiers.world, KV_SHAPE_FULL, T, 40, &tiers.spill, 0);
	assert_int_equal(play(&tiers, &story, false), 0);
	assert_int_equal(omnikv_manager_flush(tiers.world.manager), 8);
	assert_int_equal(play(&tiers, &story, false), 8 * T);
	kv_story_free(&story);
	close_tiers(&tiers);
}

/* An older one's blocks may not be found, and a store that is only looked at cannot note that. */
static void store_of_an_older_epoch_is_not_taken_read_only(void **state)
{
	struct omnikv_manager_config with = { .size = sizeof(with) };
	struct okv_store_config config = spill_sim_config(DISK, SEGMENT);
	struct omnikv_error err = { "" };
	struct kv_story story;
	struct tiers tiers;
	char path[256], spec[300], *tmp = getenv("TMPDIR");

	(void)state;
	snprintf(path, sizeof(path), "%.200s/older-epoch-%d.pool", tmp ? tmp : "/tmp", (int)getpid());
	snprintf(spec, sizeof(spec), "embedded:16M:%s", path);
	make_story(&story, 1, 8 * T);
	open_tiers(&tiers, KV_SHAPE_HYBRID, 40, OMNIKV_SPILL_ADMIT_ALL);
	assert_int_equal(play(&tiers, &story, false), 0);
	assert_int_equal(omnikv_manager_flush(tiers.world.manager), 8);
	kv_world_close(&tiers.world);
	okv_store_close(tiers.spill.store);

	/* Meanwhile a pool's weights change. */
	kv_world_open_pool(&tiers.world, KV_SHAPE_HYBRID, T, spec);
	assert_int_equal(omnikv_manager_raise_epoch(tiers.world.manager), 1);
	omnikv_space_close(tiers.world.space);
	KV_MUST(!omnikv_manager_destroy(tiers.world.manager));
	config.is_read_only = true;
	tiers.spill = (struct omnikv_spill){ .disk = &tiers.sim.disk, .is_simulated = true };
	assert_int_equal(spill_sim_open(&tiers.sim, &config, &tiers.spill.store), 0);
	with.spill = &tiers.spill;
	assert_int_equal(omnikv_manager_create(tiers.world.client, &with, &tiers.world.manager, &err), -EROFS);
	assert_non_null(strstr(err.text, "the store is of epoch 0 and the pool of 1"));
	assert_non_null(strstr(err.text, "open it for writing"));
	okv_store_close(tiers.spill.store);

	/* Where it can note that it is taken, and what it has is not found. */
	omnikv_client_close(tiers.world.client);
	omnikv_pool_close(tiers.world.pool);
	open_spill(&tiers);
	with.spill = &tiers.spill;
	kv_world_open_pool_config(&tiers.world, KV_SHAPE_HYBRID, T, spec, &with);
	assert_int_equal(play(&tiers, &story, false), 0);
	kv_story_free(&story);
	kv_world_leave(&tiers.world);
	okv_store_close(tiers.spill.store);
	sim_disk_fini(&tiers.sim);
	unlink(path);
}

struct raising {
	struct tiers	*tiers;
	pthread_t	second;
	sem_t		has_begun, may_end;
	int		nr;
	int64_t		ret;
};

static void *raise_again(void *opaque)
{
	struct raising *raising = opaque;

	raising->ret = omnikv_manager_raise_epoch(raising->tiers->world.manager);
	return NULL;
}

/* The first one's raise has begun: so has the second one's, as far as that may. Then the second one's waits. */
static int raise_while_one_is_raised(void *opaque, const char *name)
{
	struct raising *raising = opaque;
	struct timespec until;

	(void)name;
	if (raising->nr++) {
		sem_post(&raising->has_begun);
		sem_wait(&raising->may_end);
		return 0;
	}
	assert_int_equal(pthread_create(&raising->second, NULL, raise_again, raising), 0);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += 200000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	sem_timedwait(&raising->has_begun, &until);
	return 0;
}

/* Two raise it at once: what is stored after the first and before the second is older than the second. */
static void tier_forgets_what_is_between_two_epochs(void **state)
{
	struct raising raising = { 0 };
	struct kv_story story;
	struct tiers tiers;

	(void)state;
	open_tiers(&tiers, KV_SHAPE_FULL, 40, OMNIKV_SPILL_ADMIT_ALL);
	make_story(&story, 1, 8 * T);
	raising.tiers = &tiers;
	sem_init(&raising.has_begun, 0, 0);
	sem_init(&raising.may_end, 0, 0);
	okv_failpoint_arm(&(struct okv_failpoint){
		.name = "manager.era_begun", .fn = raise_while_one_is_raised, .opaque = &raising,
	});
	assert_int_equal(omnikv_manager_raise_epoch(tiers.world.manager), 1);
	play(&tiers, &story, false);
	assert_int_equal(omnikv_manager_flush(tiers.world.manager), 8);
	sem_post(&raising.may_end);
	pthread_join(raising.second, NULL);
	okv_failpoint_disarm_all();
	assert_int_equal(raising.ret, 2);
	assert_int_equal(play(&tiers, &story, false), 0);
	sem_destroy(&raising.has_begun);
	sem_destroy(&raising.may_end);
	kv_story_free(&story);
	close_tiers(&tiers);
}

/* The disk cannot note it: the old epoch goes on. */
static void tier_epoch_that_cannot_be_noted_is_not_raised(void **state)
{
	struct kv_story story;
	struct tiers tiers;

	(void)state;
	open_tiers(&tiers, KV_SHAPE_FULL, 40, OMNIKV_SPILL_ADMIT_ALL);
	make_story(&story, 1, 8 * T);
	play(&tiers, &story, false);
	tiers.sim.fail_nth = tiers.sim.nr_calls + 1;
	tiers.sim.fail_times = 1;
	tiers.sim.fail_error = -EIO;
	assert_int_equal(omnikv_manager_raise_epoch(tiers.world.manager), -EIO);
	tiers.sim.fail_nth = 0;
	assert_int_equal(play(&tiers, &story, false), 8 * T);
	assert_int_equal(omnikv_manager_raise_epoch(tiers.world.manager), 1);
	assert_int_equal(play(&tiers, &story, false), 0);
	kv_story_free(&story);
	close_tiers(&tiers);
}

static void tier_full_pool_answers_at_once(void **state)
{
	struct kv_story spilled, pinned;
	struct timespec begin, end;
	struct omnikv_seq *seq;
	struct tiers tiers;

	(void)state;
	open_tiers(&tiers, KV_SHAPE_FULL, 20, OMNIKV_SPILL_ADMIT_ALL);
	make_story(&spilled, 1, 10 * T);
	make_story(&pinned, 2, 20 * T);
	play(&tiers, &spilled, false);
	assert_int_equal(omnikv_manager_flush(tiers.world.manager), 10);
	play(&tiers, &pinned, false);
	seq = kv_open(&tiers.world, &pinned, false);
	assert_int_equal(omnikv_seq_tokens(seq), 20 * T);
	/* Every block is leased: nothing can be brought back, which is a miss and no wait. */
	clock_gettime(CLOCK_MONOTONIC, &begin);
	for (uint32_t i = 0; i < 10; i++) {
		struct omnikv_seq *other = kv_open(&tiers.world, &spilled, false);

		assert_int_equal(omnikv_seq_tokens(other), 0);
		omnikv_seq_close(other);
	}
	clock_gettime(CLOCK_MONOTONIC, &end);
	assert_true(end.tv_sec - begin.tv_sec <= 1);
	/* With some room, as much of the prefix as goes in. */
	assert_int_equal(omnikv_seq_truncate(seq, 14 * T), 0);
	kv_world_check(&tiers.world);
	{
		struct omnikv_seq *other = kv_open(&tiers.world, &spilled, false);

		assert_int_equal(omnikv_seq_tokens(other), 6 * T);
		omnikv_seq_close(other);
	}
	omnikv_seq_close(seq);
	assert_int_equal(play(&tiers, &spilled, false), 10 * T);
	kv_story_free(&spilled);
	kv_story_free(&pinned);
	close_tiers(&tiers);
}

static void tier_may_skip_what_was_used_once(void **state)
{
	struct kv_story once, twice, filler;
	struct tiers tiers;

	(void)state;
	open_tiers(&tiers, KV_SHAPE_FULL, 20, OMNIKV_SPILL_ADMIT_SECOND);
	make_story(&once, 1, 4 * T);
	make_story(&twice, 2, 4 * T);
	make_story(&filler, 3, 20 * T);
	play(&tiers, &once, false);
	play(&tiers, &twice, false);
	assert_int_equal(play(&tiers, &twice, false), 4 * T);
	play(&tiers, &filler, false);
	assert_int_equal(play(&tiers, &once, false), 0);
	assert_int_equal(play(&tiers, &twice, false), 4 * T);
	assert_true(stats_of(&tiers).blocks_not_admitted >= 4);
	assert_int_equal(stats_of(&tiers).blocks_hit_nvme, 4);
	kv_story_free(&once);
	kv_story_free(&twice);
	kv_story_free(&filler);
	close_tiers(&tiers);
}

/* A mix of requests on a small pool; the disk does what @trouble says. No byte is wrong whatever it does. */
static void tier_trouble_costs_hits_only(void **state)
{
	(void)state;
	for (uint32_t trouble = 0; trouble < 12; trouble++) {
		uint64_t seed = 5 + trouble, hit = 0;
		struct kv_story stories[12];
		struct tiers tiers;

		open_tiers(&tiers, trouble % 3, 16, OMNIKV_SPILL_ADMIT_ALL);
		for (uint32_t i = 0; i < 12; i++)
			make_story(&stories[i], i / 3 + 1, (4 + i % 5) * T + (i % 4) * 4);
		for (uint32_t step = 0; step < 120; step++) {
			if (trouble >= 3 && trouble < 9 && step % 20 == 10) {
				tiers.sim.nr_calls = 0;
				tiers.sim.fail_nth = 1 + step % 7;
				tiers.sim.fail_times = trouble < 6 ? 1 : 30;
				tiers.sim.fail_error = trouble & 1 ? -EIO : -ENOSPC;
			}
			if (trouble >= 9 && step % 15 == 7)
				for (uint32_t k = 0; k < 20; k++)
					tiers.sim.base[OKV_SPILL_DATA_OFF + spill_random(&seed) % (3 * SEGMENT)] ^= 1;
			if (step % 20 == 19) {
				tiers.sim.fail_nth = 0;
				tiers.sim.now_ns += 61000000000;
			}
			hit += play(&tiers, &stories[spill_random(&seed) % 12], step % 2);
		}
		assert_true(hit > 0);
		for (uint32_t i = 0; i < 12; i++)
			kv_story_free(&stories[i]);
		close_tiers(&tiers);
	}
}

static void tier_stuck_disk_keeps_its_memory(void **state)
{
	for (uint32_t is_read = 0; is_read < 2; is_read++) {
		struct kv_story a, b, c;
		struct omnikv_pool_info info = { .size = sizeof(info) };
		struct tiers tiers;

		(void)state;
		open_tiers(&tiers, KV_SHAPE_FULL, 20, OMNIKV_SPILL_ADMIT_ALL);
		make_story(&a, 1, 10 * T);
		make_story(&b, 2, 12 * T);
		make_story(&c, 3, 4 * T);
		play(&tiers, &a, false);
		if (is_read) {
			assert_int_equal(omnikv_manager_flush(tiers.world.manager), 10);
			tiers.sim.stick_nth = 1;
			assert_int_equal(play(&tiers, &a, false), 0);
		} else {
			tiers.sim.stick_nth = 1;
			play(&tiers, &b, false);
		}
		assert_true(tiers.sim.is_stuck);
		/* What the disk may still use is nobody's; the engine goes on with the rest. */
		assert_true(tiers.world.manager->tier_granules > 0);
		play(&tiers, &c, false);
		assert_true(tiers.world.manager->tier_granules > 0);
		tiers.sim.is_stuck = false;
		tiers.sim.now_ns += 61000000000;
		play(&tiers, &b, false);
		assert_int_equal(tiers.world.manager->tier_granules, 0);
		assert_int_equal(omnikv_pool_info(tiers.world.pool, &info), 0);
		kv_story_free(&a);
		kv_story_free(&b);
		kv_story_free(&c);
		close_tiers(&tiers);
	}
}

struct player {
	struct tiers		*tiers;
	struct kv_story		*stories;
	uint32_t		nr_stories;
	uint64_t		seed;
	uint64_t		nr_hit;
};

static void *player_run(void *arg)
{
	struct player *player = arg;
	struct kv_world *world = &player->tiers->world;

	for (uint32_t step = 0; step < 60; step++) {
		const struct kv_story *story = &player->stories[spill_random(&player->seed) % player->nr_stories];
		struct omnikv_seq *seq = kv_open(world, story, true);
		uint64_t hit = omnikv_seq_tokens(seq);

		player->nr_hit += hit;
		KV_MUST(!hit || !kv_compare(world, seq, story, 0, hit));
		/* Others may lease the rest of the pool for a while. */
		if (hit < story->nr_tokens && !omnikv_seq_append(seq, story->nr_tokens - hit)) {
			kv_store(world, seq, story, hit, story->nr_tokens);
			KV_MUST(kv_commit(world, seq, story, true) >= 0);
		}
		omnikv_seq_close(seq);
	}
	return NULL;
}

static void tier_serves_many_threads(void **state)
{
	struct player players[3];
	struct kv_story stories[9];
	pthread_t threads[3];
	struct tiers tiers;

	(void)state;
	open_tiers(&tiers, KV_SHAPE_FULL, 24, OMNIKV_SPILL_ADMIT_ALL);
	for (uint32_t i = 0; i < 9; i++)
		make_story(&stories[i], i / 2 + 1, (3 + i % 4) * T + i % 3 * 4);
	for (uint32_t i = 0; i < 3; i++) {
		players[i] = (struct player){ .tiers = &tiers, .stories = stories, .nr_stories = 9, .seed = i };
		assert_int_equal(pthread_create(&threads[i], NULL, player_run, &players[i]), 0);
	}
	for (uint32_t i = 0; i < 3; i++) {
		pthread_join(threads[i], NULL);
		assert_true(players[i].nr_hit > 0);
	}
	kv_world_check(&tiers.world);
	assert_true(stats_of(&tiers).blocks_hit_nvme > 0);
	for (uint32_t i = 0; i < 9; i++)
		kv_story_free(&stories[i]);
	close_tiers(&tiers);
}

#define SEEN_MAX	4096u

/* What a watcher takes for cached, in memory and on NVMe: by namespace and key. */
struct seen {
	struct okv_watch	watch;
	uint32_t		nr[2];
	uint32_t		nr_cleared;
	struct {
		uint32_t		ns;
		struct omnikv_key	key;
	} blocks[2][SEEN_MAX];
};

static void see(struct seen *seen, bool is_nvme, uint32_t ns, const struct omnikv_key *key, bool is_there)
{
	uint32_t i;

	for (i = 0; i < seen->nr[is_nvme]; i++)
		if (seen->blocks[is_nvme][i].ns == ns && !memcmp(&seen->blocks[is_nvme][i].key, key, sizeof(*key)))
			break;
	KV_MUST((i == seen->nr[is_nvme]) == is_there && i < SEEN_MAX);
	if (is_there) {
		seen->blocks[is_nvme][i].ns = ns;
		seen->blocks[is_nvme][i].key = *key;
		seen->nr[is_nvme]++;
	} else {
		seen->blocks[is_nvme][i] = seen->blocks[is_nvme][--seen->nr[is_nvme]];
	}
}

static void see_memory(struct okv_watch *watch, const struct omnikv_space *space, uint32_t entry, bool is_there)
{
	struct okv_index_info info;

	KV_MUST(!okv_index_get(space->shelf->index, entry, &info));
	see((struct seen *)watch, false, space->id, &info.key, is_there);
}

static void see_nvme(struct okv_watch *watch, const struct omnikv_space *space, const struct omnikv_key *key,
		     const struct omnikv_key *parent, uint32_t nr_tokens, bool is_there)
{
	KV_MUST(parent->len == 0 || parent->len == key->len);
	KV_MUST(nr_tokens && nr_tokens <= T);
	see((struct seen *)watch, true, space->id, key, is_there);
}

static void see_nothing(struct okv_watch *watch)
{
	struct seen *seen = (struct seen *)watch;

	seen->nr[0] = 0;
	seen->nr[1] = 0;
	seen->nr_cleared++;
}

static void must_have_seen(struct tiers *tiers, const struct seen *seen)
{
	struct omnikv_spill_stats spill = { .size = sizeof(spill) };

	assert_int_equal(omnikv_spill_stats(&tiers->spill, &spill), 0);
	assert_int_equal(seen->nr[0], stats_of(tiers).nr_blocks);
	assert_int_equal(seen->nr[1], spill.nr_records);
	for (uint32_t i = 0; i < seen->nr[1]; i++)
		assert_true(okv_store_find(tiers->spill.store, tiers->world.manager->space_of_id[seen->blocks[1][i].ns]->identity,
					   &seen->blocks[1][i].key, NULL));
}

static void play_story(struct tiers *tiers, uint32_t salt)
{
	struct kv_story story;

	make_story(&story, salt, 8 * T + (salt % 2 ? 8 : 0));
	play(tiers, &story, true);
	kv_story_free(&story);
}

static void tier_watcher_sees_what_nvme_has(void **state)
{
	struct okv_failpoint point = { .name = "spill.note_change", .times = 1, .error = ENOMEM };
	struct omnikv_spill_stats spill = { .size = sizeof(spill) };
	struct seen *seen = calloc(1, sizeof(*seen));
	struct tiers tiers;
	uint32_t n;

	(void)state;
	assert_non_null(seen);
	seen->watch = (struct okv_watch){ .changed = see_memory, .spilled = see_nvme, .cleared = see_nothing };
	open_tiers(&tiers, KV_SHAPE_FULL, 20, OMNIKV_SPILL_ADMIT_ALL);
	for (n = 0; n < 10; n++)
		play_story(&tiers, n);
	assert_int_equal(okv_manager_watch(tiers.world.manager, &seen->watch), 0);
	must_have_seen(&tiers, seen);
	assert_true(seen->nr[1] > 50);
	/* Comes back, and leaves the store too. */
	for (uint64_t seed = 3; n < 100000 && spill.reclaimed_segments < 3; n++) {
		play_story(&tiers, n % 3 ? n : kv_random(&seed) % n);
		must_have_seen(&tiers, seen);
		assert_int_equal(omnikv_spill_stats(&tiers.spill, &spill), 0);
	}
	assert_int_equal(spill.reclaimed_segments, 3);
	assert_true(spill.read_records > 0);
	assert_int_equal(seen->nr_cleared, 0);
	/* Where the memory for it is missing, everything is told again. */
	assert_int_equal(okv_failpoint_arm(&point), 0);
	for (uint32_t i = 0; i < 100; i++) {
		play_story(&tiers, ++n);
		must_have_seen(&tiers, seen);
	}
	okv_failpoint_disarm_all();
	assert_int_equal(seen->nr_cleared, 1);
	assert_true(omnikv_manager_raise_epoch(tiers.world.manager) > 0);
	assert_int_equal(seen->nr_cleared, 2);
	play_story(&tiers, 1);
	assert_int_equal(seen->nr[0], 9);
	assert_int_equal(seen->nr[1], 0);
	assert_int_equal(okv_manager_watch(tiers.world.manager, NULL), 0);
	free(seen);
	close_tiers(&tiers);
}

/* What a namespace has on NVMe is told when somebody opens it, and not any more when it is forgotten. */
static void tier_watcher_sees_nvme_of_known_namespaces(void **state)
{
	struct seen *seen = calloc(1, sizeof(*seen));
	struct omnikv_space *first, *second, *more;
	struct omnikv_namespace other;
	struct tiers tiers;
	char tenant[16];

	(void)state;
	assert_non_null(seen);
	seen->watch = (struct okv_watch){ .changed = see_memory, .spilled = see_nvme, .cleared = see_nothing };
	open_tiers(&tiers, KV_SHAPE_FULL, 20, OMNIKV_SPILL_ADMIT_ALL);
	assert_int_equal(okv_manager_watch(tiers.world.manager, &seen->watch), 0);
	first = tiers.world.space;
	other = tiers.world.ns;
	other.tenant = "u";
	assert_int_equal(omnikv_space_open(tiers.world.manager, &other, &tiers.world.plan, &second, NULL), 0);
	tiers.world.space = second;
	play_story(&tiers, 2);
	tiers.world.space = first;
	play_story(&tiers, 4);
	assert_int_equal(omnikv_manager_flush(tiers.world.manager), 16);
	must_have_seen(&tiers, seen);
	omnikv_space_close(second);
	for (uint32_t i = 0; i < 200; i++) {
		snprintf(tenant, sizeof(tenant), "%u", i);
		other.tenant = tenant;
		assert_int_equal(omnikv_space_open(tiers.world.manager, &other, &tiers.world.plan, &more, NULL), 0);
		omnikv_space_close(more);
	}
	assert_int_equal(seen->nr[1], 8);
	other.tenant = "u";
	assert_int_equal(omnikv_space_open(tiers.world.manager, &other, &tiers.world.plan, &second, NULL), 0);
	must_have_seen(&tiers, seen);
	omnikv_space_close(second);
	assert_int_equal(okv_manager_watch(tiers.world.manager, NULL), 0);
	free(seen);
	close_tiers(&tiers);
}

static void tier_is_not_there_unless_asked_for(void **state)
{
	struct omnikv_manager_config config = { .size = sizeof(config), .spill_admit = 7 };
	struct omnikv_manager *manager;
	struct omnikv_error err;
	struct kv_world world;
	struct tiers tiers;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 4);
	assert_int_equal(omnikv_manager_flush(world.manager), -EOPNOTSUPP);
	assert_int_equal(omnikv_manager_flush(NULL), -EINVAL);
	kv_world_close(&world);
	open_tiers(&tiers, KV_SHAPE_FULL, 4, 0);
	config.spill = &tiers.spill;
	assert_int_equal(omnikv_manager_create(tiers.world.client, &config, &manager, &err), -EINVAL);
	assert_non_null(strstr(err.text, "spill_admit"));
	close_tiers(&tiers);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tier_brings_back_every_byte),
		cmocka_unit_test(tier_forgets_what_is_of_an_older_epoch),
		cmocka_unit_test(tier_finds_nothing_older_behind_a_zeroed_page),
		cmocka_unit_test(store_of_an_older_epoch_is_not_taken_read_only),
		cmocka_unit_test(tier_forgets_what_is_between_two_epochs),
		cmocka_unit_test(tier_epoch_that_cannot_be_noted_is_not_raised),
		cmocka_unit_test(tier_prefetches_what_is_going_to_be_asked_for),
		cmocka_unit_test(tier_reads_ahead_along_a_long_prefix),
		cmocka_unit_test(tier_keeps_prefixes_apart_whose_keys_do_not_chain),
		cmocka_unit_test(tier_keeps_tenants_apart),
		cmocka_unit_test(tier_block_on_its_way_is_a_miss),
		cmocka_unit_test(tier_restart_finds_what_it_says),
		cmocka_unit_test(tier_full_pool_answers_at_once),
		cmocka_unit_test(tier_may_skip_what_was_used_once),
		cmocka_unit_test(tier_trouble_costs_hits_only),
		cmocka_unit_test(tier_stuck_disk_keeps_its_memory),
		cmocka_unit_test(tier_serves_many_threads),
		cmocka_unit_test(tier_watcher_sees_what_nvme_has),
		cmocka_unit_test(tier_watcher_sees_nvme_of_known_namespaces),
		cmocka_unit_test(tier_is_not_there_unless_asked_for),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

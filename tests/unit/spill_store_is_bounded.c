// SPDX-License-Identifier: GPL-2.0-only
/*
 * The spill store at work on a simulated disk: what is stored is found and read, the cap holds,
 * what is hot outlives reclaim, a full or failing disk degrades and resumes by itself, with one
 * line each way.
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

#include "crc32c.h"
#include "failpoint.h"
#include "tests/harness/spill_world.h"

#define SEGMENT		(256u << 10)
#define BLOCK		(16u << 10)
#define CAPACITY	(OKV_SPILL_DATA_OFF + 8ull * SEGMENT)

struct notes {
	uint32_t	nr;
	char		last[256];
};

static void note(void *opaque, const char *line)
{
	struct notes *notes = opaque;

	notes->nr++;
	snprintf(notes->last, sizeof(notes->last), "%s", line);
}

static void check_books(struct okv_store *store)
{
	const char *reason;

	if (okv_store_check_books(store, &reason))
		fail_msg("%s", reason);
}

static struct omnikv_spill_stats stats_of(struct okv_store *store)
{
	struct omnikv_spill_stats stats = { .size = sizeof(stats) };

	okv_store_stats(store, &stats);
	return stats;
}

static void spill_blocks_come_back_as_they_went(void **state)
{
	struct okv_store_config config = spill_sim_config(CAPACITY, SEGMENT);
	struct okv_store *store;
	struct sim_disk sim;

	(void)state;
	sim_disk_init(&sim, CAPACITY);
	assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
	assert_int_equal(spill_get(store, 1, 0), -ENOENT);
	assert_int_equal(spill_put_run(store, 1, 0, 20, BLOCK, 1), 0);
	assert_int_equal(spill_put_run(store, 1, 20, 30, 3 * BLOCK, 3), 0);
	assert_int_equal(spill_put(store, 2, 7, OKV_SPILL_PAGE, 1), 0);
	for (uint64_t id = 0; id < 30; id++)
		assert_int_equal(spill_get(store, 1, id), 0);
	/* Another namespace's keys are other keys. */
	assert_int_equal(spill_get(store, 2, 7), 0);
	assert_int_equal(spill_get(store, 2, 8), -ENOENT);
	assert_int_equal(stats_of(store).nr_records, 31);
	assert_int_equal(stats_of(store).live_bytes, 20 * BLOCK + 30 * BLOCK + OKV_SPILL_PAGE);
	/* What is there already is not written again. */
	uint64_t written = stats_of(store).write_bytes;

	assert_int_equal(spill_put_run(store, 1, 0, 20, BLOCK, 1), 0);
	assert_int_equal(stats_of(store).write_bytes, written);
	check_books(store);
	okv_store_close(store);

	/* After a clean close nothing is scanned. */
	assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
	assert_int_equal(stats_of(store).recovered_records, 31);
	assert_int_equal(stats_of(store).recovered_scanned, 0);
	for (uint64_t id = 0; id < 30; id++)
		assert_int_equal(spill_get(store, 1, id), 0);
	/* The youngest segment goes on. */
	assert_int_equal(spill_put(store, 1, 30, BLOCK, 1), 0);
	check_books(store);
	okv_store_close(store);
	assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
	for (uint64_t id = 0; id < 31; id++)
		assert_int_equal(spill_get(store, 1, id), 0);
	okv_store_forget(store, (uint8_t[32]){ 0 }, &(struct omnikv_key){ .len = 1 });
	okv_store_close(store);
	sim_disk_fini(&sim);
}

static void spill_without_close_is_found_batch_by_batch(void **state)
{
	struct okv_store_config config = spill_sim_config(CAPACITY, SEGMENT);
	struct okv_store *store, *again;
	struct sim_disk sim;

	(void)state;
	sim_disk_init(&sim, CAPACITY);
	assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
	assert_int_equal(spill_put_run(store, 1, 0, 20, BLOCK, 1), 0);
	config.random[0] = 77;
	assert_int_equal(spill_sim_open(&sim, &config, &again), 0);
	assert_int_equal(stats_of(again).recovered_records, 20);
	assert_int_equal(stats_of(again).recovered_scanned, 1);
	for (uint64_t id = 0; id < 20; id++)
		assert_int_equal(spill_get(again, 1, id), 0);
	okv_store_close(again);
	sim.disk.ops->sync(&sim.disk);
	config.is_read_only = true;
	assert_int_equal(spill_sim_open(&sim, &config, &again), 0);
	assert_int_equal(spill_put(again, 1, 99, BLOCK, 1), -EPERM);
	okv_store_close(again);
	/* The first one never knew. */
	okv_store_close(store);
	sim_disk_fini(&sim);
}

/* The cap says how far it may grow. What is read at opening is what is there. */
static void spill_of_a_small_file_is_read_up_to_a_large_cap(void **state)
{
	static const uint64_t caps[] = { CAPACITY, UINT64_C(1) << 36 };
	struct okv_store_config config = spill_sim_config(CAPACITY, SEGMENT);
	struct okv_store *store;
	uint64_t nr_calls[2];
	struct sim_disk sim;

	(void)state;
	sim_disk_init(&sim, CAPACITY);
	assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
	assert_int_equal(spill_put_run(store, 1, 0, 100, BLOCK, 1), 0);
	okv_store_close(store);
	for (uint32_t i = 0; i < 2; i++) {
		config.capacity_bytes = caps[i];
		sim.nr_calls = 0;
		assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
		nr_calls[i] = sim.nr_calls;
		assert_int_equal(stats_of(store).recovered_records, 100);
		assert_int_equal(stats_of(store).lost_segments, 0);
		assert_int_equal(stats_of(store).nr_segments, (caps[i] - OKV_SPILL_DATA_OFF) / SEGMENT);
		for (uint64_t id = 0; id < 100; id++)
			assert_int_equal(spill_get(store, 1, id), 0);
		check_books(store);
		okv_store_close(store);
	}
	assert_int_equal(nr_calls[1], nr_calls[0]);
	sim_disk_fini(&sim);
}

/* A device is as long as it is from the start: what was never written is not read. */
static void spill_of_a_large_device_is_read_where_it_was_written(void **state)
{
	const uint64_t device = OKV_SPILL_DATA_OFF + 1024 * SEGMENT;
	struct okv_store_config config = spill_sim_config(device, SEGMENT);
	struct okv_store *store;
	struct sim_disk sim;

	(void)state;
	sim_disk_init(&sim, device);
	assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
	okv_store_close(store);
	for (uint64_t round = 0; round < 4; round++) {
		sim.nr_calls = 0;
		config.random[0]++;
		assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
		/* Two pages of each segment. */
		assert_in_range(sim.nr_calls, 1, 150);
		for (uint64_t id = 0; id < round * 30; id++)
			assert_int_equal(spill_get(store, 1, id), 0);
		assert_int_equal(spill_put_run(store, 1, round * 30, round * 30 + 30, BLOCK, 1), 0);
		check_books(store);
		okv_store_close(store);
	}
	sim_disk_fini(&sim);
}

/* One that was made before there were marks, or whose mark is not known any more. */
static void spill_without_a_mark_is_read_to_its_end(void **state)
{
	struct okv_store_config config = spill_sim_config(CAPACITY, SEGMENT);
	struct okv_store *store;
	struct sim_disk sim;
	uint32_t crc;

	(void)state;
	for (int is_old = 1; is_old >= 0; is_old--) {
		sim_disk_init(&sim, CAPACITY);
		assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
		okv_store_close(store);
		for (uint32_t copy = 0; copy < 2 && is_old; copy++) {
			sim.base[copy * OKV_SPILL_PAGE + 60] = 0;
			crc = okv_crc32c(sim.base + copy * OKV_SPILL_PAGE, 508);
			memcpy(sim.base + copy * OKV_SPILL_PAGE + 508, &crc, 4);
		}
		assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
		assert_int_equal(spill_put_run(store, 1, 0, 100, BLOCK, 1), 0);
		okv_store_close(store);
		if (!is_old)
			sim.base[OKV_SPILL_ERA_OFF + 40] ^= 1;
		for (uint32_t round = 0; round < 2; round++) {
			config.random[0]++;
			assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
			assert_int_equal(stats_of(store).recovered_records, 100);
			check_books(store);
			okv_store_close(store);
		}
		sim_disk_fini(&sim);
	}
}

struct killed {
	struct sim_disk	*sim;
	uint8_t		*base;		/* what the disk had as the mark had been moved, and nothing else done */
	uint32_t	nr;
	uint32_t	nr_unsynced;	/* of those */
};

static int kill_here(void *opaque, const char *name)
{
	struct killed *killed = opaque;

	(void)name;
	memcpy(killed->base, killed->sim->base, CAPACITY);
	killed->nr++;
	killed->nr_unsynced += !killed->sim->nr_entries || !killed->sim->journal[killed->sim->nr_entries - 1].is_sync;
	return 0;
}

/* Whoever is killed between the mark and what it is for leaves a store that has all that was there before, and that goes on. */
static void spill_killed_as_its_mark_moves_hides_nothing(void **state)
{
	struct okv_store_config config = spill_sim_config(CAPACITY, SEGMENT);
	struct killed killed = { .base = malloc(CAPACITY) };
	struct sim_disk sim, after;
	struct okv_store *store, *again;
	uint64_t id = 0;

	(void)state;
	assert_non_null(killed.base);
	sim_disk_init(&sim, CAPACITY);
	sim.is_logging = true;
	killed.sim = &sim;
	assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
	okv_failpoint_arm(&(struct okv_failpoint){ .name = "spill.marked", .fn = kill_here, .opaque = &killed });
	for (uint32_t step = 0; step < 6; step++) {
		uint32_t nr = killed.nr;
		uint64_t before;

		do {
			before = id;
			assert_int_equal(spill_put(store, 1, id++, BLOCK, 1), 0);
		} while (killed.nr == nr);
		sim_disk_init(&after, CAPACITY);
		memcpy(after.base, killed.base, CAPACITY);
		config.random[0]++;
		assert_int_equal(spill_sim_open(&after, &config, &again), 0);
		for (uint64_t i = 0; i < before; i++)
			assert_int_equal(spill_get(again, 1, i), 0);
		assert_int_equal(spill_put(again, 1, 5000, BLOCK, 1), 0);
		okv_store_close(again);
		config.random[0]++;
		assert_int_equal(spill_sim_open(&after, &config, &again), 0);
		assert_int_equal(spill_get(again, 1, 5000), 0);
		check_books(again);
		okv_store_close(again);
		sim_disk_fini(&after);
	}
	/* The disk had it before anything was written behind it. */
	assert_int_equal(killed.nr_unsynced, 0);
	okv_failpoint_disarm_all();
	okv_store_close(store);
	sim_disk_fini(&sim);
	free(killed.base);
}

/* On a disk that was nearly full it has fewer segments than a new store must have room for. */
static void spill_made_on_a_full_disk_opens_with_no_size_any_more(void **state)
{
	static const struct {
		bool		is_open_only;
		bool		is_read_only;
	} ways[] = { { false, false }, { true, false }, { false, true } };
	struct okv_store_config config = spill_sim_config(CAPACITY, SEGMENT);
	struct okv_store *store;
	struct sim_disk sim;

	(void)state;
	sim_disk_init(&sim, OKV_SPILL_DATA_OFF + SEGMENT);
	assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
	assert_int_equal(spill_put_run(store, 1, 0, 10, BLOCK, 1), 0);
	okv_store_close(store);
	for (uint32_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		config.capacity_bytes = 0;
		config.is_open_only = ways[i].is_open_only;
		config.is_read_only = ways[i].is_read_only;
		assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
		assert_int_equal(stats_of(store).recovered_records, 10);
		/* Who only reads tells what is there. */
		assert_int_equal(stats_of(store).nr_segments, ways[i].is_read_only ? 1 : 4);
		for (uint64_t id = 0; id < 10; id++)
			assert_int_equal(spill_get(store, 1, id), 0);
		check_books(store);
		okv_store_close(store);
	}
	sim_disk_fini(&sim);
}

static void spill_cap_holds_and_hot_blocks_stay(void **state)
{
	struct okv_store_config config = spill_sim_config(CAPACITY, SEGMENT);
	struct omnikv_spill_stats stats;
	struct okv_store *store;
	struct sim_disk sim;
	uint32_t nr_there = 0;

	(void)state;
	sim_disk_init(&sim, CAPACITY);
	assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
	/* One block is read now and then, and outlives its segment; ten times the capacity beside it. */
	for (uint64_t id = 0; id < 1200; id++) {
		assert_int_equal(spill_put(store, 1, id, BLOCK, 1), 0);
		if (id == 10 || (id && id % 125 == 0))
			assert_int_equal(spill_get(store, 1, 0), 0);
		if (id % 50 == 0)
			check_books(store);
	}
	stats = stats_of(store);
	assert_int_equal(stats.nr_segments, 8);
	assert_true(stats.used_bytes <= stats.capacity_bytes);
	assert_true(stats.peak_bytes <= CAPACITY);
	assert_true(stats.reclaimed_segments > 50);
	assert_true(stats.moved_records > 0);
	assert_int_equal(stats.stored_bytes, 1200 * BLOCK);
	/* A record takes its bytes, and a page here, since each was a batch of its own. */
	assert_true(stats.write_bytes >= stats.stored_bytes + 1200 * OKV_SPILL_PAGE);
	assert_true(stats.write_bytes < 2 * stats.stored_bytes);
	/* Of the cold ones the youngest are there. */
	for (uint64_t id = 3; id < 1200; id++) {
		int ret = spill_get(store, 1, id);

		assert_true(!ret || ret == -ENOENT);
		nr_there += !ret;
		if (id >= 1180)
			assert_int_equal(ret, 0);
	}
	assert_true(nr_there >= 60);
	check_books(store);
	okv_store_close(store);
	assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
	/* What is used is what is there, not what this opening wrote. */
	assert_true(stats_of(store).used_bytes + SEGMENT >= stats.used_bytes);
	assert_true(stats_of(store).used_bytes <= stats.capacity_bytes);
	assert_true(stats_of(store).nr_records >= nr_there);
	for (uint64_t id = 1180; id < 1200; id++)
		assert_int_equal(spill_get(store, 1, id), 0);
	check_books(store);
	okv_store_close(store);

	/* A smaller cap drops what lies beyond it and nothing else. */
	config.capacity_bytes = OKV_SPILL_DATA_OFF + 4ull * SEGMENT;
	assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
	assert_int_equal(stats_of(store).nr_segments, 4);
	for (uint64_t id = 0; id < 1200; id++) {
		int ret = spill_get(store, 1, id);

		assert_true(!ret || ret == -ENOENT);
	}
	assert_int_equal(spill_put_run(store, 3, 0, 100, BLOCK, 1), 0);
	check_books(store);
	okv_store_close(store);
	sim_disk_fini(&sim);
}

static void spill_bad_requests_are_refused(void **state)
{
	struct okv_store_config config = spill_sim_config(CAPACITY, SEGMENT);
	struct okv_store_put put = { 0 };
	struct okv_store *store;
	struct sim_disk sim;
	uint8_t *page = aligned_alloc(4096, 8192);

	(void)state;
	assert_non_null(page);
	memset(page, 1, 8192);
	sim_disk_init(&sim, CAPACITY);
	assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
	assert_int_equal(okv_store_put(store, NULL, 0), 0);
	assert_int_equal(spill_put(store, 1, 0, SEGMENT, 1), -E2BIG);
	assert_int_equal(spill_put(store, 1, 0, SEGMENT * 3 / 4, 1), -E2BIG);
	assert_int_equal(spill_put(store, 1, 0, SEGMENT / 2, 1), 0);
	spill_block(&put.rec, 1, 5, 4096, 1);
	put.bufs[0] = page + 512;
	assert_int_equal(okv_store_put(store, &put, 1), 0);
	assert_int_equal(put.res, -EINVAL);
	put.bufs[0] = page;
	put.rec.parts[0].bytes = 4096 - 512;
	okv_store_put(store, &put, 1);
	assert_int_equal(put.res, -EINVAL);
	put.rec.parts[0].bytes = 0;
	okv_store_put(store, &put, 1);
	assert_int_equal(put.res, -EINVAL);
	put.rec.parts[0].bytes = 4096;
	put.rec.key.len = 0;
	okv_store_put(store, &put, 1);
	assert_int_equal(put.res, -EINVAL);
	put.rec.key.len = 33;
	okv_store_put(store, &put, 1);
	assert_int_equal(put.res, -EINVAL);
	put.rec.key.len = 32;
	put.rec.nr_parts = 0;
	okv_store_put(store, &put, 1);
	assert_int_equal(put.res, -EINVAL);
	assert_int_equal(stats_of(store).nr_records, 1);
	okv_store_close(store);

	config.capacity_bytes = SEGMENT;
	assert_int_equal(spill_sim_open(&sim, &config, &store), -EINVAL);
	sim_disk_fini(&sim);
	sim_disk_init(&sim, CAPACITY);
	assert_int_equal(spill_sim_open(&sim, &config, &store), -EINVAL);
	config.capacity_bytes = CAPACITY;
	config.segment_bytes = 5000;
	assert_int_equal(spill_sim_open(&sim, &config, &store), -EINVAL);
	config.is_open_only = true;
	assert_int_equal(spill_sim_open(&sim, &config, &store), -ENOENT);
	/* Somebody else's bytes are left alone. */
	memset(sim.base + 100, 0x33, 10);
	config.is_open_only = false;
	assert_int_equal(spill_sim_open(&sim, &config, &store), -EBADMSG);
	assert_int_equal(sim.base[100], 0x33);
	sim_disk_fini(&sim);
	free(page);
}

static void spill_later_format_is_refused_once(void **state)
{
	struct okv_store_config config = spill_sim_config(CAPACITY, SEGMENT);
	struct omnikv_error err = { "" };
	struct okv_store *store;
	struct sim_disk sim;
	uint32_t crc;

	(void)state;
	sim_disk_init(&sim, CAPACITY);
	assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
	assert_int_equal(spill_put_run(store, 1, 0, 5, BLOCK, 1), 0);
	okv_store_close(store);
	sim.base[8] = 2;
	crc = okv_crc32c(sim.base, 508);
	memcpy(sim.base + 508, &crc, 4);
	assert_int_equal(okv_store_open(&sim.disk, &config, &store, &err), -EPROTO);
	assert_non_null(strstr(err.text, "version 2"));
	sim.base[8] = 1;
	sim.base[60] |= 2;
	crc = okv_crc32c(sim.base, 508);
	memcpy(sim.base + 508, &crc, 4);
	assert_int_equal(okv_store_open(&sim.disk, &config, &store, &err), -EOPNOTSUPP);
	/* Nothing was changed: it is there for whoever understands it. */
	sim.base[60] &= ~2;
	crc = okv_crc32c(sim.base, 508);
	memcpy(sim.base + 508, &crc, 4);
	assert_int_equal(okv_store_open(&sim.disk, &config, &store, &err), 0);
	for (uint64_t id = 0; id < 5; id++)
		assert_int_equal(spill_get(store, 1, id), 0);
	okv_store_close(store);
	sim_disk_fini(&sim);
}

static void spill_full_disk_degrades_and_resumes(void **state)
{
	struct okv_store_config config = spill_sim_config(CAPACITY, SEGMENT);
	struct notes notes = { 0 };
	struct okv_store *store;
	struct sim_disk sim;

	(void)state;
	config.notice = note;
	config.opaque = &notes;
	config.floor_bytes = 10 << 20;
	sim_disk_init(&sim, CAPACITY);
	assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
	/* Below the floor from the start: nothing can be stored, said once. */
	sim.free_bytes = (10 << 20) + SEGMENT - 1;
	for (uint64_t id = 0; id < 10; id++)
		assert_int_equal(spill_put(store, 1, id, BLOCK, 1), -ENOSPC);
	assert_int_equal(notes.nr, 1);
	assert_non_null(strstr(notes.last, "no space left"));
	assert_int_equal(stats_of(store).is_degraded, 1);
	assert_int_equal(stats_of(store).refused_records, 10);
	/* Room alone is noticed at the next try, within half a minute. */
	sim.free_bytes = 20 << 20;
	sim.now_ns += 31000000000;
	assert_int_equal(spill_put(store, 1, 0, BLOCK, 1), 0);
	assert_int_equal(notes.nr, 2);
	assert_int_equal(stats_of(store).is_degraded, 0);
	/* With segments of its own it makes do with those. */
	assert_int_equal(spill_put_run(store, 1, 1, 40, BLOCK, 1), 0);
	sim.free_bytes = 0;
	assert_int_equal(spill_put_run(store, 1, 40, 100, BLOCK, 1), 0);
	assert_int_equal(spill_get(store, 1, 99), 0);
	assert_int_equal(notes.nr, 2);
	assert_true(stats_of(store).reclaimed_segments > 0);
	check_books(store);
	okv_store_close(store);
	sim_disk_fini(&sim);
}

static void spill_stuck_disk_is_given_up_until_it_answers(void **state)
{
	struct okv_store_config config = spill_sim_config(CAPACITY, SEGMENT);
	struct notes notes = { 0 };
	struct okv_store *store;
	struct sim_disk sim;

	(void)state;
	config.notice = note;
	config.opaque = &notes;
	sim_disk_init(&sim, CAPACITY);
	assert_int_equal(spill_sim_open(&sim, &config, &store), 0);
	assert_int_equal(spill_put_run(store, 1, 0, 5, BLOCK, 1), 0);
	/* is_idle is false from now on: nothing new begins, lookups go on. */
	sim.is_stuck = true;
	assert_int_equal(spill_put(store, 1, 5, BLOCK, 1), -EIO);
	assert_false(okv_store_is_idle(store));
	assert_int_equal(spill_get(store, 1, 0), -ETIME);
	assert_int_equal(okv_store_sync(store), -ETIME);
	sim.is_stuck = false;
	assert_true(okv_store_is_idle(store));
	sim.now_ns += 31000000000;
	/* What was asked for meanwhile is not lost for that. */
	assert_int_equal(spill_get(store, 1, 0), 0);
	assert_int_equal(spill_put(store, 1, 5, BLOCK, 1), 0);
	assert_int_equal(spill_get(store, 1, 5), 0);
	check_books(store);
	okv_store_close(store);
	sim_disk_fini(&sim);
}

static void spill_reclaim_weighs_gain_against_cost(void **state)
{
	struct okv_reclaim_view views[4] = {
		{ .is_candidate = false },
		{ .is_candidate = true, .live_bytes = 1000000, .hot_bytes = 0, .age_ns = 1000 },
		{ .is_candidate = true, .live_bytes = 1000000, .hot_bytes = 800000, .age_ns = 1000 },
		{ .is_candidate = true, .live_bytes = 1000000, .hot_bytes = 0, .age_ns = 999 },
	};

	(void)state;
	assert_int_equal(okv_reclaim_choose(views, 1, 1 << 20), OKV_CATALOG_NONE);
	/* The older of two equal ones. */
	assert_int_equal(okv_reclaim_choose(views, 4, 1 << 20), 1);
	/* An empty one before any. */
	views[3].live_bytes = 0;
	assert_int_equal(okv_reclaim_choose(views, 4, 1 << 20), 3);
	/* A hot one only when it is very much older. */
	views[1].is_candidate = false;
	views[3].live_bytes = 1000000;
	assert_int_equal(okv_reclaim_choose(views, 4, 1 << 20), 3);
	views[2].age_ns = 1000000;
	assert_int_equal(okv_reclaim_choose(views, 4, 1 << 20), 2);
	/* What was read once makes way in the end, also where all of a segment was. */
	views[2] = (struct okv_reclaim_view){ .is_candidate = true, .live_bytes = 1000000, .hot_bytes = 1000000, .age_ns = 3000 };
	views[3] = (struct okv_reclaim_view){ .is_candidate = true, .live_bytes = 1000000, .age_ns = 1000 };
	assert_int_equal(okv_reclaim_choose(views, 4, 1 << 20), 3);
	views[2].age_ns = 6000;
	assert_int_equal(okv_reclaim_choose(views, 4, 1 << 20), 2);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(spill_blocks_come_back_as_they_went),
		cmocka_unit_test(spill_without_close_is_found_batch_by_batch),
		cmocka_unit_test(spill_of_a_large_device_is_read_where_it_was_written),
		cmocka_unit_test(spill_without_a_mark_is_read_to_its_end),
		cmocka_unit_test(spill_killed_as_its_mark_moves_hides_nothing),
		cmocka_unit_test(spill_of_a_small_file_is_read_up_to_a_large_cap),
		cmocka_unit_test(spill_made_on_a_full_disk_opens_with_no_size_any_more),
		cmocka_unit_test(spill_cap_holds_and_hot_blocks_stay),
		cmocka_unit_test(spill_bad_requests_are_refused),
		cmocka_unit_test(spill_later_format_is_refused_once),
		cmocka_unit_test(spill_full_disk_degrades_and_resumes),
		cmocka_unit_test(spill_stuck_disk_is_given_up_until_it_answers),
		cmocka_unit_test(spill_reclaim_weighs_gain_against_cost),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lookups while the disk works: a block is not found before its write has ended, and one that was
 * found and then reclaimed before it is read is a miss; what is leased stays whatever is evicted
 * and written over meanwhile.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "manager/manager.h"
#include "spill/spill.h"
#include "tests/harness/kv_world.h"
#include "tests/harness/spill_world.h"

#define T	16u
#define SEGMENT	(1u << 20)
#define BLOCK	(64u << 10)
#define BLOCKS	64u
#define BATCH	8u

/* A disk that takes its time, and says which blocks it is writing. */
struct slow_disk {
	struct sim_disk		sim;
	struct okv_disk_ops	ops;
	const struct okv_disk_ops *base;
	uint32_t		run_us;
	pthread_mutex_t		lock;
	uint64_t		from, to;	/* blocks of the put that is written; equal: none */
	bool			is_writing;
};

static int slow_run(struct okv_disk *disk, struct okv_disk_io *ios, uint32_t nr, uint64_t deadline_ns)
{
	struct slow_disk *slow = (struct slow_disk *)disk;
	bool is_write = false;
	int ret;

	for (uint32_t i = 0; i < nr; i++)
		is_write |= ios[i].is_write;
	pthread_mutex_lock(&slow->lock);
	slow->is_writing = is_write;
	pthread_mutex_unlock(&slow->lock);
	/* Half of it is there, then all of it, and it has yet to say so. */
	for (uint32_t i = 0; i < nr; i++)
		if (ios[i].is_write && !ios[i].begin)
			memcpy(slow->sim.base + ios[i].off, ios[i].buf, ios[i].bytes / 2);
	usleep(slow->run_us);
	ret = slow->base->run(disk, ios, nr, deadline_ns);
	usleep(slow->run_us);
	pthread_mutex_lock(&slow->lock);
	slow->is_writing = false;
	pthread_mutex_unlock(&slow->lock);
	return ret;
}

static void slow_init(struct slow_disk *slow, uint64_t bytes, uint32_t run_us)
{
	memset(slow, 0, sizeof(*slow));
	sim_disk_init(&slow->sim, bytes);
	slow->base = slow->sim.disk.ops;
	slow->ops = *slow->base;
	slow->ops.run = slow_run;
	slow->sim.disk.ops = &slow->ops;
	slow->run_us = run_us;
	pthread_mutex_init(&slow->lock, NULL);
}

struct reader {
	struct slow_disk	*slow;
	struct okv_store	*store;
	atomic_bool		*is_over;
	uint64_t		seed;
	uint64_t		nr_hits, nr_gone;
	bool			has_hit[BLOCKS];
};

static void *poll_blocks(void *arg)
{
	struct reader *reader = arg;

	do {
		for (uint64_t id = 0; id < BLOCKS; id++) {
			struct okv_record rec;
			bool is_found, is_being_written;
			int ret;

			spill_block(&rec, 1, id, OKV_SPILL_PAGE, 1);
			/* The write does not end while the lock is held. */
			pthread_mutex_lock(&reader->slow->lock);
			is_being_written = reader->slow->is_writing && id >= reader->slow->from && id < reader->slow->to;
			is_found = okv_store_find(reader->store, rec.ns, &rec.key, NULL);
			pthread_mutex_unlock(&reader->slow->lock);
			KV_MUST(!is_being_written || !is_found);
			ret = is_found ? spill_get(reader->store, 1, id) : -ENOENT;
			KV_MUST(!ret || ret == -ENOENT);
			reader->has_hit[id] |= !ret;
		}
	} while (!atomic_load(reader->is_over));
	return NULL;
}

static void block_is_not_found_before_its_write_has_ended(void **state)
{
	struct okv_store_config config = spill_sim_config(OKV_SPILL_DATA_OFF + 12ull * SEGMENT, SEGMENT);
	struct reader readers[4];
	atomic_bool is_over = false;
	struct okv_store *store;
	struct slow_disk slow;
	pthread_t threads[4];

	(void)state;
	slow_init(&slow, config.capacity_bytes, 5000);
	assert_int_equal(okv_store_open(&slow.sim.disk, &config, &store, NULL), 0);
	for (uint32_t i = 0; i < 4; i++) {
		readers[i] = (struct reader){ .slow = &slow, .store = store, .is_over = &is_over };
		assert_int_equal(pthread_create(&threads[i], NULL, poll_blocks, &readers[i]), 0);
	}
	for (uint64_t id = 0; id < BLOCKS; id += BATCH) {
		pthread_mutex_lock(&slow.lock);
		slow.from = id;
		slow.to = id + BATCH;
		pthread_mutex_unlock(&slow.lock);
		assert_int_equal(spill_put_run(store, 1, id, id + BATCH, BLOCK, 2), 0);
		pthread_mutex_lock(&slow.lock);
		slow.from = slow.to = 0;
		pthread_mutex_unlock(&slow.lock);
	}
	atomic_store(&is_over, true);
	for (uint32_t i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	/* One more look at everything, now that nothing is written. */
	poll_blocks(&readers[0]);
	for (uint64_t id = 0; id < BLOCKS; id++)
		assert_true(readers[0].has_hit[id]);
	okv_store_close(store);
	sim_disk_fini(&slow.sim);
}

/* Find, dawdle, read: whatever took its place meanwhile. */
static void *read_late(void *arg)
{
	struct reader *reader = arg;
	uint8_t *buf = aligned_alloc(OKV_SPILL_PAGE, BLOCK);

	KV_MUST(buf != NULL);
	while (reader->nr_hits + reader->nr_gone < 250) {
		struct okv_store_get get = { 0 };
		struct okv_record rec;
		uint64_t id = spill_random(&reader->seed) % 2000;

		spill_block(&rec, 1, id, OKV_SPILL_PAGE, 1);
		if (!okv_store_find(reader->store, rec.ns, &rec.key, &get.rec))
			continue;
		usleep(spill_random(&reader->seed) % 20000);
		get.bufs[0] = buf;
		KV_MUST(!okv_store_get(reader->store, &get, 1));
		KV_MUST(!get.res || get.res == -ENOENT);
		KV_MUST(get.res || !spill_wrong(buf, 1, id, BLOCK));
		reader->nr_hits += !get.res;
		reader->nr_gone += get.res == -ENOENT;
	}
	free(buf);
	return NULL;
}

static void block_reclaimed_between_lookup_and_read_is_a_miss(void **state)
{
	struct okv_store_config config = spill_sim_config(OKV_SPILL_DATA_OFF + 5ull * SEGMENT, SEGMENT);
	uint64_t seed = 9, nr_hits = 0, nr_gone = 0;
	struct reader readers[2];
	struct okv_store *store;
	struct slow_disk slow;
	pthread_t threads[2];
	const char *reason;

	(void)state;
	slow_init(&slow, config.capacity_bytes, 200);
	assert_int_equal(okv_store_open(&slow.sim.disk, &config, &store, NULL), 0);
	for (uint32_t i = 0; i < 2; i++) {
		readers[i] = (struct reader){ .slow = &slow, .store = store, .seed = i + 1 };
		assert_int_equal(pthread_create(&threads[i], NULL, read_late, &readers[i]), 0);
	}
	while (pthread_tryjoin_np(threads[0], NULL)) {
		uint64_t id = spill_random(&seed) % 2000 / BATCH * BATCH;

		assert_int_equal(spill_put_run(store, 1, id, id + BATCH, BLOCK, 1), 0);
	}
	pthread_join(threads[1], NULL);
	for (uint32_t i = 0; i < 2; i++) {
		nr_hits += readers[i].nr_hits;
		nr_gone += readers[i].nr_gone;
	}
	print_message("# %llu reads right, %llu gone\n", (unsigned long long)nr_hits, (unsigned long long)nr_gone);
	assert_true(nr_hits && nr_gone);
	if (okv_store_check_books(store, &reason))
		fail_msg("%s", reason);
	okv_store_close(store);
	sim_disk_fini(&slow.sim);
}

static void leased_block_stays_while_all_else_is_evicted(void **state)
{
	struct okv_store_config config = spill_sim_config(OKV_SPILL_DATA_OFF + 12ull * SEGMENT, SEGMENT);
	struct omnikv_spill spill = { .is_simulated = true };
	struct kv_story held = { 0 }, story;
	struct kv_world world;
	struct sim_disk sim;

	(void)state;
	sim_disk_init(&sim, config.capacity_bytes);
	spill.disk = &sim.disk;
	assert_int_equal(spill_sim_open(&sim, &config, &spill.store), 0);
	kv_world_open_spill(&world, KV_SHAPE_FULL, T, 20, &spill, OMNIKV_SPILL_ADMIT_ALL);
	for (uint32_t t = 0; t < 8 * T; t++)
		kv_story_add(&held, t);
	for (uint32_t round = 0; round < 50; round++) {
		struct omnikv_seq *seq = kv_open(&world, &held, false), *other;
		const char *why;

		if (!round) {
			assert_int_equal(omnikv_seq_append(seq, 8 * T), 0);
			kv_store(&world, seq, &held, 0, 8 * T);
			assert_int_equal(kv_commit(&world, seq, &held, false), 8);
		}
		assert_int_equal(omnikv_seq_tokens(seq), 8 * T);
		/* Twice what is left of the pool, over and over. */
		for (uint32_t i = 0; i < 4; i++) {
			story = (struct kv_story){ 0 };
			for (uint32_t t = 0; t < 6 * T; t++)
				kv_story_add(&story, 1000000 + (round * 4 + i) * 1000 + t);
			other = kv_open(&world, &story, false);
			assert_int_equal(omnikv_seq_append(other, 6 * T), 0);
			kv_store(&world, other, &story, 0, 6 * T);
			assert_int_equal(kv_commit(&world, other, &story, false), 6);
			omnikv_seq_close(other);
			why = kv_compare(&world, seq, &held, 0, 8 * T);
			if (why)
				fail_msg("%s", why);
			kv_story_free(&story);
		}
		omnikv_seq_close(seq);
		/* Next round it comes back from NVMe, if the store still has it. */
		assert_true(omnikv_manager_flush(world.manager) > 0);
		kv_world_check(&world);
	}
	kv_world_close(&world);
	okv_store_close(spill.store);
	sim_disk_fini(&sim);
	kv_story_free(&held);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(block_is_not_found_before_its_write_has_ended),
		cmocka_unit_test(block_reclaimed_between_lookup_and_read_is_a_miss),
		cmocka_unit_test(leased_block_stays_while_all_else_is_evicted),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

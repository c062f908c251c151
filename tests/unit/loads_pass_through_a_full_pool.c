// SPDX-License-Identifier: GPL-2.0-only
/*
 * A pool of which every block is leased or private still serves what is on NVMe, through the
 * staging reserve: one block after another, as much of a long prefix as the reserve holds, and
 * layer by layer to a device. Who waits for the reserve gets it when it is given up, and is
 * answered at the deadline when it is not. Nothing else ever takes it.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "device.h"
#include "manager/manager.h"
#include "spill/spill.h"
#include "tests/harness/daemon_case.h"
#include "tests/harness/kv_world.h"
#include "tests/harness/spill_world.h"

#define T		16u
#define SEGMENT		(1u << 20)
#define DISK		(OKV_SPILL_DATA_OFF + 12ull * SEGMENT)
#define NR_BLOCKS	20u
#define NR_STAGING	4u

struct full_pool {
	struct sim_disk		sim;
	struct omnikv_spill	spill;
	struct kv_world		world;
	struct kv_story		singles[10];
	struct kv_story		prefix;
	struct kv_story		pinned;
	struct omnikv_seq	*pin;
};

static void make_story(struct kv_story *story, uint32_t salt, uint64_t nr_tokens)
{
	*story = (struct kv_story){ 0 };
	for (uint64_t i = 0; i < nr_tokens; i++)
		kv_story_add(story, salt * 100000 + i);
}

static void commit(struct full_pool *full, const struct kv_story *story)
{
	struct omnikv_seq *seq = kv_open(&full->world, story, false);

	assert_int_equal(omnikv_seq_tokens(seq), 0);
	assert_int_equal(omnikv_seq_append(seq, story->nr_tokens), 0);
	kv_store(&full->world, seq, story, 0, story->nr_tokens);
	assert_true(kv_commit(&full->world, seq, story, false) > 0);
	omnikv_seq_close(seq);
}

static struct omnikv_manager_stats stats_of(struct full_pool *full)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	assert_int_equal(omnikv_manager_stats(full->world.manager, &stats), 0);
	return stats;
}

/* Ten single blocks and a prefix of ten on NVMe, and a pool that is leased but for its reserve of NR_STAGING blocks. */
static void open_full(struct full_pool *full, enum kv_shape shape, uint32_t wait_ms)
{
	struct omnikv_manager_config config = { .size = sizeof(config), .spill = &full->spill, .staging_wait_ms = wait_ms };
	struct okv_store_config store_config = spill_sim_config(DISK, SEGMENT);
	struct kv_world plain;
	uint64_t block_bytes;

	kv_world_open(&plain, shape, T, 1);
	block_bytes = omnikv_plan_block_bytes(&plain.plan) + omnikv_plan_checkpoint_bytes(&plain.plan);
	kv_world_close(&plain);

	memset(full, 0, sizeof(*full));
	sim_disk_init(&full->sim, DISK);
	full->spill = (struct omnikv_spill){ .disk = &full->sim.disk, .is_simulated = true };
	assert_int_equal(spill_sim_open(&full->sim, &store_config, &full->spill.store), 0);
	config.staging_bytes = NR_STAGING * block_bytes;
	kv_world_open_config(&full->world, shape, T, NR_BLOCKS, &config);
	for (uint32_t i = 0; i < 10; i++) {
		make_story(&full->singles[i], i + 1, T);
		commit(full, &full->singles[i]);
	}
	make_story(&full->prefix, 20, 10 * T);
	commit(full, &full->prefix);
	assert_true(omnikv_manager_flush(full->world.manager) > 0);
	make_story(&full->pinned, 30, (NR_BLOCKS - NR_STAGING) * T);
	full->pin = kv_open(&full->world, &full->pinned, false);
	for (uint64_t done = 0; done < full->pinned.nr_tokens; done += T)
		assert_int_equal(omnikv_seq_append(full->pin, T), 0);
	/* All but the reserve. */
	assert_int_equal(omnikv_seq_append(full->pin, T), -ENOSPC);
	assert_int_equal(omnikv_admit(full->world.space, T), 0);
}

static void close_full(struct full_pool *full)
{
	const char *reason;

	kv_world_check(&full->world);
	omnikv_seq_close(full->pin);
	kv_world_close(&full->world);
	if (okv_store_check_books(full->spill.store, &reason))
		fail_msg("%s", reason);
	okv_store_close(full->spill.store);
	sim_disk_fini(&full->sim);
	for (uint32_t i = 0; i < 10; i++)
		kv_story_free(&full->singles[i]);
	kv_story_free(&full->prefix);
	kv_story_free(&full->pinned);
}

static uint64_t open_and_compare(struct full_pool *full, const struct kv_story *story, struct omnikv_seq **seq)
{
	const char *why;

	*seq = kv_open(&full->world, story, false);
	why = kv_compare(&full->world, *seq, story, 0, omnikv_seq_tokens(*seq));
	if (why)
		fail_msg("%s", why);
	return omnikv_seq_tokens(*seq);
}

static void full_pool_serves_block_after_block(void **state)
{
	(void)state;
	for (int shape = KV_SHAPE_FULL; shape <= KV_SHAPE_MIXED; shape++) {
		uint64_t begin_ns = okv_monotonic_ns();
		struct full_pool full;

		open_full(&full, shape, 0);
		for (uint32_t round = 0; round < 3; round++) {
			for (uint32_t i = 0; i < 10; i++) {
				struct omnikv_seq *seq;

				assert_int_equal(open_and_compare(&full, &full.singles[i], &seq), T);
				/* The reserve is for loads: nobody else gets what is left of it. */
				assert_int_equal(omnikv_seq_append(full.pin, T), -ENOSPC);
				omnikv_seq_close(seq);
				kv_world_check(&full.world);
			}
		}
		assert_true(okv_monotonic_ns() - begin_ns < 3000000000);
		assert_true(stats_of(&full).blocks_staged >= 30);
		assert_int_equal(stats_of(&full).lookups_without_room, 0);
		assert_int_equal(stats_of(&full).blocks_lost, 0);
		close_full(&full);
	}
}

static void full_pool_serves_as_much_of_a_prefix_as_the_reserve_holds(void **state)
{
	struct omnikv_seq *seq, *other;
	struct full_pool full;

	(void)state;
	open_full(&full, KV_SHAPE_FULL, 0);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(open_and_compare(&full, &full.prefix, &seq), NR_STAGING * T);
		assert_int_equal(stats_of(&full).lookups_without_room, 3 * i + 1);
		/* Taken: a miss at once, and no wait. */
		assert_int_equal(open_and_compare(&full, &full.singles[i], &other), 0);
		omnikv_seq_close(other);
		/* The same blocks again cost nothing. */
		assert_int_equal(open_and_compare(&full, &full.prefix, &other), NR_STAGING * T);
		omnikv_seq_close(other);
		omnikv_seq_close(seq);
		assert_int_equal(open_and_compare(&full, &full.singles[i], &other), T);
		omnikv_seq_close(other);
		omnikv_manager_reset(full.world.manager);
		assert_int_equal(stats_of(&full).lookups_without_room, 3 * i + 3);
	}
	/* What others give up serves the rest of the prefix. */
	assert_int_equal(omnikv_seq_truncate(full.pin, 4 * T), 0);
	assert_int_equal(open_and_compare(&full, &full.prefix, &seq), 10 * T);
	omnikv_seq_close(seq);
	close_full(&full);
}

/* Each plane of each layer of the staged blocks, on its own, to the device's memory. */
static void full_pool_serves_layer_by_layer(void **state)
{
	struct omnikv_device_config config = { .size = sizeof(config), .hbm_bytes = 1 << 20 };
	struct omnikv_device *dev;
	struct omnikv_ring *ring;
	struct omnikv_hbm *hbm;
	struct omnikv_seq *seq;
	struct full_pool full;

	(void)state;
	open_full(&full, KV_SHAPE_FULL, 0);
	assert_int_equal(omnikv_device_open("host", &config, &dev, NULL), 0);
	assert_int_equal(omnikv_ring_init(full.world.client, dev, NULL, &ring, NULL), 0);
	assert_int_equal(omnikv_hbm_create(dev, 1 << 20, &hbm), 0);
	for (uint32_t round = 0; round < 4; round++) {
		const struct kv_story *story = round % 2 ? &full.prefix : &full.singles[round];
		uint64_t hit = open_and_compare(&full, story, &seq);

		assert_int_equal(hit, round % 2 ? NR_STAGING * T : T);
		for (uint32_t l = 0; l < 2; l++) {
			for (uint32_t p = 0; p < 2; p++) {
				struct omnikv_piece pieces[NR_STAGING];
				int64_t nr = omnikv_seq_pieces(seq, 0, l, p, 0, hit, 0, pieces, NR_STAGING);
				struct omnikv_cqe *cqe;
				uint64_t bytes = 0;

				assert_int_equal(nr, hit / T);
				omnikv_prep_load(omnikv_get_sqe(ring), hbm, pieces, nr);
				assert_int_equal(omnikv_submit(ring), 1);
				assert_int_equal(omnikv_wait_cqe(ring, &cqe, 5000000000), 0);
				for (int64_t i = 0; i < nr; i++) {
					const uint8_t *at = omnikv_pool_addr(full.world.pool, &pieces[i].extent);

					assert_memory_equal((uint8_t *)omnikv_hbm_ptr(hbm) + pieces[i].device_off,
							    at + pieces[i].extent_off, pieces[i].bytes);
					bytes += pieces[i].bytes;
				}
				assert_int_equal(cqe->res, bytes);
				omnikv_cqe_seen(ring, cqe);
			}
		}
		omnikv_seq_close(seq);
	}
	omnikv_hbm_destroy(hbm);
	omnikv_ring_exit(ring);
	assert_int_equal(omnikv_device_close(dev), 0);
	close_full(&full);
}

struct holder {
	struct full_pool	*full;
	struct omnikv_seq	*seq;
};

static void *let_go_soon(void *arg)
{
	struct holder *holder = arg;

	sleep_ms(50);
	omnikv_seq_close(holder->seq);
	return NULL;
}

static void full_pool_makes_loads_wait_until_their_deadline(void **state)
{
	struct holder holder;
	struct full_pool full;
	struct omnikv_seq *seq;
	pthread_t thread;
	uint64_t begin_ns, ns;

	(void)state;
	holder.full = &full;
	open_full(&full, KV_SHAPE_FULL, 200);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(open_and_compare(&full, &full.prefix, &holder.seq), NR_STAGING * T);
		/* Nobody lets go: answered at the deadline. */
		begin_ns = okv_monotonic_ns();
		assert_int_equal(open_and_compare(&full, &full.singles[i], &seq), 0);
		ns = okv_monotonic_ns() - begin_ns;
		omnikv_seq_close(seq);
		assert_true(ns >= 200000000);
		assert_true(ns < 1000000000);
		/* The holder lets go: served. */
		full.world.manager->staging_wait_ns = 10000000000;
		assert_int_equal(pthread_create(&thread, NULL, let_go_soon, &holder), 0);
		begin_ns = okv_monotonic_ns();
		assert_int_equal(open_and_compare(&full, &full.singles[i], &seq), T);
		assert_true(okv_monotonic_ns() - begin_ns < 5000000000);
		pthread_join(thread, NULL);
		omnikv_seq_close(seq);
		full.world.manager->staging_wait_ns = 200000000;
	}
	close_full(&full);
}

struct loader {
	struct full_pool	*full;
	uint32_t		first;
	uint32_t		nr_hits;
};

static void *load_singles(void *arg)
{
	struct loader *loader = arg;

	for (uint32_t i = 0; i < 60; i++) {
		const struct kv_story *story = &loader->full->singles[(loader->first + i) % 10];
		struct omnikv_seq *seq = kv_open(&loader->full->world, story, false);

		KV_MUST(!omnikv_seq_tokens(seq) || !kv_compare(&loader->full->world, seq, story, 0, omnikv_seq_tokens(seq)));
		loader->nr_hits += omnikv_seq_tokens(seq) != 0;
		omnikv_seq_close(seq);
	}
	return NULL;
}

/* More loads at once than the reserve holds: each waits for its turn, and none starves. */
static void full_pool_serves_many_at_once(void **state)
{
	struct loader loaders[6];
	struct full_pool full;
	pthread_t threads[6];

	(void)state;
	open_full(&full, KV_SHAPE_FULL, 20000);
	for (uint32_t i = 0; i < 6; i++) {
		loaders[i] = (struct loader){ .full = &full, .first = i };
		assert_int_equal(pthread_create(&threads[i], NULL, load_singles, &loaders[i]), 0);
	}
	for (uint32_t i = 0; i < 6; i++) {
		pthread_join(threads[i], NULL);
		/* A block that is on its way for somebody else is a miss. */
		assert_true(loaders[i].nr_hits > 0);
	}
	close_full(&full);
}

static void reserve_is_refused_where_it_is_the_pool(void **state)
{
	struct omnikv_manager_config config = { .size = sizeof(config) };
	struct omnikv_manager *manager;
	struct omnikv_error err;
	struct full_pool full;
	struct kv_world world;

	(void)state;
	open_full(&full, KV_SHAPE_FULL, 0);
	config.spill = &full.spill;
	kv_world_open(&world, KV_SHAPE_FULL, T, 4);
	omnikv_space_close(world.space);
	KV_MUST(!omnikv_manager_destroy(world.manager));
	config.staging_bytes = omnikv_plan_block_bytes(&world.plan) * 64;
	assert_int_equal(omnikv_manager_create(world.client, &config, &manager, &err), -EINVAL);
	assert_non_null(strstr(err.text, "staging_bytes"));
	config.staging_bytes = OMNIKV_STAGING_NONE;
	assert_int_equal(omnikv_manager_create(world.client, &config, &manager, &err), 0);
	assert_int_equal(manager->staging_granules, 0);
	KV_MUST(!omnikv_manager_destroy(manager));
	omnikv_client_close(world.client);
	omnikv_pool_close(world.pool);
	close_full(&full);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(full_pool_serves_block_after_block),
		cmocka_unit_test(full_pool_serves_as_much_of_a_prefix_as_the_reserve_holds),
		cmocka_unit_test(full_pool_serves_layer_by_layer),
		cmocka_unit_test(full_pool_makes_loads_wait_until_their_deadline),
		cmocka_unit_test(full_pool_serves_many_at_once),
		cmocka_unit_test(reserve_is_refused_where_it_is_the_pool),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

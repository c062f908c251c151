// SPDX-License-Identifier: GPL-2.0-only
/*
 * What goes wrong on a GPU, and what its rings make of it: a copy that the driver refuses, a fault that takes the whole
 * context, copies that outlive their deadline, memory and events that are used again meanwhile.
 *
 * On the driver of tests/harness/cuda.
 */
#include <errno.h>
#include <unistd.h>

#include "../harness/daemon_case.h"
#include "../harness/ring_fixture.h"
#include "device_cuda.h"

#define PIECE		4096
#define NR_PIECES	64

static void pieces_make(struct omnikv_piece *pieces, const struct omnikv_extent *exts, uint32_t nr)
{
	uint32_t i;

	/* Every other page, so that each is a copy of its own. */
	for (i = 0; i < nr; i++)
		pieces[i] = (struct omnikv_piece) { .extent = exts[i], .device_off = 2 * i * PIECE, .bytes = PIECE };
}

static void open_engine(struct ring_fixture *f, const struct omnikv_ring_config *config)
{
	struct omnikv_device_info info = { .size = sizeof(info) };

	assert_int_equal(setenv("OMNIKV_CUDA_PATH", "engine", 1), 0);
	fixture_open(f, "cuda", "16M", NULL, config);
	unsetenv("OMNIKV_CUDA_PATH");
	do {
		usleep(500);
		assert_int_equal(omnikv_device_info(f->dev, &info), 0);
	} while (!info.host_mapped_bytes);
}

static struct omnikv_device *allocating;
static int (*driver_host_alloc)(void **ptr, size_t bytes, unsigned int flags);
static uint32_t nr_allocs, nr_locked;

static int host_alloc(void **ptr, size_t bytes, unsigned int flags)
{
	nr_allocs++;
	if (pthread_mutex_trylock(&allocating->lock))
		nr_locked++;
	else
		pthread_mutex_unlock(&allocating->lock);
	return driver_host_alloc(ptr, bytes, flags);
}

/* A driver may let an allocation wait for work that ends with a callback, and that may fire events. */
static void events_need_no_memory_of_the_driver_under_the_lock(void **state)
{
	struct omnikv_event *events[2000];
	struct ring_fixture f;
	uint32_t i;

	(void)state;
	open_engine(&f, NULL);
	allocating = f.dev;
	driver_host_alloc = okv_cuda_of(f.dev)->drv.cuMemHostAlloc;
	okv_cuda_of(f.dev)->drv.cuMemHostAlloc = host_alloc;
	for (i = 0; i < 2000; i++)
		assert_int_equal(omnikv_event_create(f.dev, &events[i]), 0);
	okv_cuda_of(f.dev)->drv.cuMemHostAlloc = driver_host_alloc;
	assert_true(nr_allocs >= 2);
	assert_int_equal(nr_locked, 0);
	/* Each has a word of its own. */
	for (i = 0; i < 2000; i += 3)
		fixture_fire(&f, events[i]);
	for (i = 0; i < 2000; i++)
		assert_int_equal(omnikv_event_query(events[i]), i % 3 == 0);
	for (i = 0; i < 2000; i++)
		omnikv_event_destroy(events[i]);
	fixture_close(&f);
}

static void a_refused_copy_fails_its_own_transfer_only(void **state)
{
	struct omnikv_device_info info = { .size = sizeof(info) };
	struct omnikv_piece pieces[NR_PIECES];
	struct omnikv_extent exts[NR_PIECES];
	struct omnikv_event *signal;
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	struct omnikv_sqe *sqe;
	uint64_t valid;
	long nth;

	(void)state;
	open_engine(&f, NULL);
	hbm = fixture_hbm(&f, 2 * NR_PIECES * PIECE);
	signal = fixture_event(&f);
	fixture_sealed(&f, exts, NR_PIECES, 1, 0);
	pieces_make(pieces, exts, NR_PIECES);
	for (nth = 1; nth <= NR_PIECES; nth += 9) {
		fixture_cuda_set("fail_copy", nth);
		omnikv_event_reset(signal);
		sqe = fixture_sqe(&f, 1);
		omnikv_prep_load(sqe, hbm, pieces, NR_PIECES);
		sqe->valid = &valid;
		sqe->signal = signal;
		fixture_submit(&f);
		fixture_expect(&f, 1, -EIO);
		assert_int_equal(valid, 0);
		assert_int_equal(omnikv_event_query(signal), -EIO);
		/* Who waits for it goes on. */
		assert_int_equal(omnikv_stream_wait(f.stream, signal), 0);
		assert_int_equal(omnikv_stream_sync(f.stream, FIXTURE_WAIT_NS), 0);
		omnikv_prep_load(fixture_sqe(&f, 2), hbm, pieces, NR_PIECES);
		fixture_submit(&f);
		fixture_expect(&f, 2, NR_PIECES * PIECE);
	}
	assert_int_equal(omnikv_device_info(f.dev, &info), 0);
	assert_int_equal(info.nr_failed, 8);
	omnikv_event_destroy(signal);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

static void a_lost_context_fails_everything_and_a_new_device_works(void **state)
{
	struct omnikv_piece pieces[NR_PIECES];
	struct omnikv_extent exts[NR_PIECES];
	struct omnikv_event *signals[20], *never;
	struct omnikv_stream *stream;
	struct ring_fixture f;
	struct omnikv_hbm *hbm, *more;
	struct omnikv_sqe *sqe;
	struct omnikv_cqe cqe;
	int i, nr_failed = 0;

	(void)state;
	open_engine(&f, NULL);
	hbm = fixture_hbm(&f, 2 * NR_PIECES * PIECE);
	fixture_sealed(&f, exts, NR_PIECES, 1, 0);
	pieces_make(pieces, exts, NR_PIECES);
	never = fixture_event(&f);
	fixture_cuda_set("copy_us", 50);
	fixture_cuda_set("fault_copy", 3 * NR_PIECES + 5);
	for (i = 0; i < 20; i++) {
		signals[i] = fixture_event(&f);
		sqe = fixture_sqe(&f, (uint64_t)i);
		omnikv_prep_load(sqe, hbm, pieces, NR_PIECES);
		sqe->signal = signals[i];
		sqe->wait = i == 19 ? never : NULL;
		sqe->deadline_ns = i == 19 ? 300000000 : 0;
		fixture_submit(&f);
	}
	for (i = 0; i < 20; i++) {
		cqe = fixture_reap(&f);
		assert_false(cqe.flags & OMNIKV_CQE_F_MORE);
		if (cqe.user_data < 3)
			assert_int_equal(cqe.res, NR_PIECES * PIECE);
		else if (cqe.user_data == 19)
			assert_int_equal(cqe.res, -ETIME);
		else
			assert_int_equal(cqe.res, -EIO);
		nr_failed += cqe.res < 0;
		assert_int_equal(omnikv_event_query(signals[cqe.user_data]), cqe.res < 0 ? (int)cqe.res : 1);
	}
	assert_int_equal(nr_failed, 17);
	/* Each later call says so, and none waits. */
	omnikv_prep_load(fixture_sqe(&f, 77), hbm, pieces, NR_PIECES);
	fixture_submit(&f);
	fixture_expect(&f, 77, -EIO);
	assert_int_equal(omnikv_stream_create(f.dev, &stream), -EIO);
	assert_int_equal(omnikv_stream_record(f.stream, never), -EIO);
	assert_int_equal(omnikv_stream_sync(f.stream, FIXTURE_WAIT_NS), -EIO);
	assert_int_equal(omnikv_hbm_create(f.dev, PIECE, &more), -EIO);
	assert_int_equal(omnikv_device_poll(f.dev), 0);
	for (i = 0; i < 20; i++)
		omnikv_event_destroy(signals[i]);
	omnikv_event_destroy(never);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	assert_int_equal(omnikv_extent_release(f.client, exts, NR_PIECES), 0);
	omnikv_ring_exit(f.ring);
	omnikv_stream_destroy(f.stream);
	assert_int_equal(omnikv_device_close(f.dev), 0);

	/* The pool has lost nothing. */
	assert_int_equal(omnikv_device_open("cuda", NULL, &f.dev, NULL), 0);
	assert_int_equal(omnikv_stream_create(f.dev, &f.stream), 0);
	assert_int_equal(omnikv_ring_init(f.client, f.dev, NULL, &f.ring, NULL), 0);
	assert_int_equal(omnikv_extent_lease(f.client, exts, NR_PIECES), 0);
	hbm = fixture_hbm(&f, 2 * NR_PIECES * PIECE);
	fixture_cuda_set("copy_us", 0);
	omnikv_prep_load(fixture_sqe(&f, 1), hbm, pieces, NR_PIECES);
	fixture_submit(&f);
	fixture_expect(&f, 1, NR_PIECES * PIECE);
	for (i = 0; i < NR_PIECES; i++)
		assert_true(fixture_is_filled((uint8_t *)omnikv_hbm_ptr(hbm) + pieces[i].device_off, PIECE, (uint64_t)i, 0));
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

/* A copy that is late writes its event's word when the event is already in its next life. */
static void a_late_copy_never_fires_its_event_again(void **state)
{
	struct omnikv_piece pieces[2];
	struct omnikv_extent exts[2];
	struct omnikv_event *signal, *done;
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	struct omnikv_sqe *sqe;
	struct omnikv_cqe cqe;
	int round;

	(void)state;
	open_engine(&f, NULL);
	hbm = fixture_hbm(&f, 4 * PIECE);
	fixture_sealed(&f, exts, 2, 1, 0);
	pieces_make(pieces, exts, 2);
	signal = fixture_event(&f);
	done = fixture_event(&f);
	for (round = 0; round < 5; round++) {
		fixture_cuda_set("copy_us", 40000);
		sqe = fixture_sqe(&f, 1);
		omnikv_prep_load(sqe, hbm, pieces, 2);
		sqe->signal = signal;
		sqe->deadline_ns = 10000000;
		fixture_submit(&f);
		cqe = fixture_reap(&f);
		assert_int_equal(cqe.res, -ETIME);
		assert_true(cqe.flags & OMNIKV_CQE_F_MORE);
		assert_int_equal(omnikv_event_query(signal), -ETIME);
		assert_int_equal(omnikv_hbm_destroy(hbm), -EBUSY);

		/* Its next life: who fires it then has fired it, whatever the late copy writes. */
		omnikv_event_reset(signal);
		if (round % 2) {
			assert_int_equal(omnikv_stream_record(f.stream, signal), 0);
			assert_int_equal(omnikv_stream_sync(f.stream, FIXTURE_WAIT_NS), 0);
			cqe = fixture_reap(&f);
			assert_true(cqe.flags & OMNIKV_CQE_F_NOTIF);
			assert_int_equal(omnikv_event_query(signal), 1);
			omnikv_event_reset(signal);
			continue;
		}
		/* Nothing has fired it, and the late copy does not. */
		assert_int_equal(omnikv_event_query(signal), 0);
		assert_int_equal(omnikv_stream_wait(f.stream, signal), 0);
		omnikv_event_reset(done);
		assert_int_equal(omnikv_stream_record(f.stream, done), 0);
		cqe = fixture_reap(&f);
		assert_true(cqe.flags & OMNIKV_CQE_F_NOTIF);
		assert_int_equal(omnikv_event_query(signal), 0);
		assert_int_equal(omnikv_event_query(done), 0);
		assert_int_equal(omnikv_stream_sync(f.stream, 20000000), -ETIME);

		/* A transfer that signals it does, and who waited goes on. */
		fixture_cuda_set("copy_us", 0);
		sqe = fixture_sqe(&f, 2);
		omnikv_prep_load(sqe, hbm, pieces, 2);
		sqe->signal = signal;
		fixture_submit(&f);
		fixture_expect(&f, 2, 2 * PIECE);
		assert_int_equal(omnikv_event_query(signal), 1);
		assert_int_equal(omnikv_stream_sync(f.stream, FIXTURE_WAIT_NS), 0);
		assert_int_equal(omnikv_event_query(done), 1);
		omnikv_event_reset(signal);
	}
	omnikv_event_destroy(signal);
	omnikv_event_destroy(done);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

/* The same of an event that is gone, whose word another one has. */
static void an_event_destroyed_under_a_late_copy_hands_its_word_on_afterwards(void **state)
{
	struct omnikv_event *signal, *others[200];
	struct omnikv_piece pieces[2];
	struct omnikv_extent exts[2];
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	struct omnikv_sqe *sqe;
	struct omnikv_cqe cqe;
	int i;

	(void)state;
	open_engine(&f, NULL);
	hbm = fixture_hbm(&f, 4 * PIECE);
	fixture_sealed(&f, exts, 2, 1, 0);
	pieces_make(pieces, exts, 2);
	signal = fixture_event(&f);
	fixture_cuda_set("copy_us", 30000);
	sqe = fixture_sqe(&f, 1);
	omnikv_prep_load(sqe, hbm, pieces, 2);
	sqe->signal = signal;
	sqe->deadline_ns = 5000000;
	fixture_submit(&f);
	cqe = fixture_reap(&f);
	assert_int_equal(cqe.res, -ETIME);
	omnikv_event_destroy(signal);
	for (i = 0; i < 200; i++) {
		others[i] = fixture_event(&f);
		assert_int_equal(omnikv_event_query(others[i]), 0);
		assert_int_equal(omnikv_stream_record(f.stream, others[i]), 0);
	}
	assert_int_equal(omnikv_stream_sync(f.stream, FIXTURE_WAIT_NS), 0);
	cqe = fixture_reap(&f);
	assert_true(cqe.flags & OMNIKV_CQE_F_NOTIF);
	for (i = 0; i < 200; i++) {
		assert_int_equal(omnikv_event_query(others[i]), 1);
		omnikv_event_destroy(others[i]);
	}
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

/*
 * Requests are aborted at random while their copies are late, and their blocks go to others at once. 2 threads of the
 * device's move bytes; whoever has a block now must find his own pattern.
 */
static void aborted_loads_and_stores_never_touch_the_next_owner(void **state)
{
	const char *full = getenv("OMNIKV_FULL");
	int rounds = full && *full == '1' ? 10000 : 300, round;
	struct omnikv_piece pieces[NR_PIECES];
	struct omnikv_extent exts[NR_PIECES], again[NR_PIECES];
	uint64_t nr_submitted = 0, nr_done = 0, seed = 77;
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	struct omnikv_cqe cqe;
	uint32_t i;

	(void)state;
	open_engine(&f, NULL);
	hbm = fixture_hbm(&f, 2 * NR_PIECES * PIECE);
	for (round = 0; round < rounds; round++) {
		bool is_store = round % 2;

		fixture_cuda_set("copy_us", (long)(fixture_random(&seed) % 100));
		if (is_store)
			assert_int_equal(omnikv_extent_alloc(f.client, 1, NR_PIECES, NULL, OMNIKV_ALLOC_F_NO_ZERO, exts), 0);
		else
			fixture_sealed(&f, exts, NR_PIECES, 1, 0);
		pieces_make(pieces, exts, NR_PIECES);
		if (is_store)
			omnikv_prep_store(fixture_sqe(&f, 1), hbm, pieces, NR_PIECES);
		else
			omnikv_prep_load(fixture_sqe(&f, 1), hbm, pieces, NR_PIECES);
		fixture_submit(&f);
		usleep((useconds_t)(fixture_random(&seed) % 3000));
		omnikv_prep_cancel(fixture_sqe(&f, 2), 1);
		fixture_submit(&f);
		nr_submitted += 2;
		/* Given up at once, as an engine does with a request that was aborted. */
		if (!is_store)
			assert_int_equal(omnikv_extent_release(f.client, exts, NR_PIECES), 0);
		assert_int_equal(omnikv_extent_free(f.client, exts, NR_PIECES), 0);
		assert_int_equal(omnikv_extent_alloc(f.client, 1, NR_PIECES, NULL, OMNIKV_ALLOC_F_NO_ZERO, again), 0);
		for (i = 0; i < NR_PIECES; i++)
			fixture_fill(omnikv_pool_addr(f.pool, &again[i]), PIECE, 1000u + (uint64_t)round, i);
		while (nr_done < nr_submitted) {
			cqe = fixture_reap(&f);
			if (cqe.flags & OMNIKV_CQE_F_MORE)
				nr_submitted++;
			nr_done++;
		}
		for (i = 0; i < NR_PIECES; i++)
			assert_true(fixture_is_filled(omnikv_pool_addr(f.pool, &again[i]), PIECE, 1000u + (uint64_t)round, i));
		assert_int_equal(omnikv_extent_free(f.client, again, NR_PIECES), 0);
	}
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

/* The stream cannot be told to show that a copy has ended: the copy has been made all the same, and nothing is lost. */
static void an_end_that_cannot_be_shown_is_shown_later(void **state)
{
	struct omnikv_piece pieces[NR_PIECES];
	struct omnikv_extent exts[NR_PIECES];
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	struct omnikv_sqe *sqe;
	uint32_t i, nth;

	(void)state;
	open_engine(&f, NULL);
	hbm = fixture_hbm(&f, 2 * NR_PIECES * PIECE);
	fixture_fill(omnikv_hbm_ptr(hbm), 2 * NR_PIECES * PIECE, 5, 0);
	fixture_cuda_set("copy_us", 500);
	for (nth = 1; nth <= 4; nth++) {
		assert_int_equal(omnikv_extent_alloc(f.client, 1, NR_PIECES, NULL, 0, exts), 0);
		pieces_make(pieces, exts, NR_PIECES);
		fixture_cuda_set("fail_write", nth);
		for (i = 0; i < 4; i++) {
			sqe = fixture_sqe(&f, i);
			omnikv_prep_store(sqe, hbm, pieces + i * NR_PIECES / 4, NR_PIECES / 4);
			fixture_submit(&f);
		}
		for (i = 0; i < 4; i++)
			fixture_expect(&f, i, NR_PIECES / 4 * PIECE);
		for (i = 0; i < NR_PIECES; i++)
			assert_true(fixture_is_filled(omnikv_pool_addr(f.pool, &exts[i]), PIECE, 5, pieces[i].device_off));
		assert_int_equal(omnikv_extent_free(f.client, exts, NR_PIECES), 0);
	}
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

/* The device is given up by somebody else while copies into the pool go on: their blocks are not free before they end. */
static void copies_of_a_lost_device_keep_their_blocks_while_they_move(void **state)
{
	struct omnikv_extent exts[NR_PIECES], again[NR_PIECES];
	struct omnikv_piece pieces[NR_PIECES];
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	struct omnikv_cqe cqe;
	uint32_t i;

	(void)state;
	open_engine(&f, NULL);
	hbm = fixture_hbm(&f, 2 * NR_PIECES * PIECE);
	assert_int_equal(omnikv_extent_alloc(f.client, 1, NR_PIECES, NULL, 0, exts), 0);
	pieces_make(pieces, exts, NR_PIECES);
	fixture_cuda_set("copy_us", 2000);
	omnikv_prep_store(fixture_sqe(&f, 1), hbm, pieces, NR_PIECES);
	fixture_submit(&f);
	sleep_ms(10);
	atomic_store(&okv_cuda_of(f.dev)->is_lost, 1);
	cqe = fixture_reap(&f);
	assert_int_equal(cqe.flags, 0);
	assert_int_equal(omnikv_extent_free(f.client, exts, NR_PIECES), 0);
	assert_int_equal(omnikv_extent_alloc(f.client, 1, NR_PIECES, NULL, 0, again), 0);
	for (i = 0; i < NR_PIECES; i++)
		fixture_fill(omnikv_pool_addr(f.pool, &again[i]), PIECE, 9, i);
	sleep_ms(200);
	for (i = 0; i < NR_PIECES; i++)
		assert_true(fixture_is_filled(omnikv_pool_addr(f.pool, &again[i]), PIECE, 9, i));
	assert_int_equal(omnikv_extent_free(f.client, again, NR_PIECES), 0);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

/* A ring whose copies never ended has left its registration behind: it is not the next pool's at the same address. */
static void a_registration_left_behind_is_nobodys(void **state)
{
	struct okv_cuda_map *stuck, *next, *shared;
	struct ring_fixture f;
	void *base;

	(void)state;
	open_engine(&f, NULL);
	base = aligned_alloc(4096, 8 * 4096);
	assert_int_equal(okv_cuda_map_get(f.dev, base, 8 * 4096, &stuck), 0);
	assert_int_equal(okv_cuda_map_get(f.dev, base, 8 * 4096, &shared), 0);
	assert_ptr_equal(stuck, shared);
	okv_cuda_map_abandon(stuck);
	assert_int_equal(okv_cuda_map_get(f.dev, base, 8 * 4096, &next), 0);
	assert_ptr_not_equal(next, stuck);
	okv_cuda_map_put(next);
	/* Here it does end, so that the test leaves nothing. */
	okv_cuda_map_put(stuck);
	okv_cuda_map_put(shared);
	free(base);
	fixture_close(&f);
}

static void only_what_a_context_does_not_survive_loses_it(void **state)
{
	static const int survived[] = { 0, 1, 2, 100, 201, 209, 400, 500, 600, 701, 703, 704, 705, 708, 712, 713, 720, 800, 801, 900 };
	static const int fatal[] = { 214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721, 911, 999 };
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(survived) / sizeof(survived[0]); i++)
		assert_false(okv_cuda_is_fatal(survived[i]));
	for (i = 0; i < sizeof(fatal) / sizeof(fatal[0]); i++)
		assert_true(okv_cuda_is_fatal(fatal[i]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_refused_copy_fails_its_own_transfer_only),
		cmocka_unit_test(a_lost_context_fails_everything_and_a_new_device_works),
		cmocka_unit_test(an_end_that_cannot_be_shown_is_shown_later),
		cmocka_unit_test(copies_of_a_lost_device_keep_their_blocks_while_they_move),
		cmocka_unit_test(a_registration_left_behind_is_nobodys),
		cmocka_unit_test(only_what_a_context_does_not_survive_loses_it),
		cmocka_unit_test(events_need_no_memory_of_the_driver_under_the_lock),
		cmocka_unit_test(a_late_copy_never_fires_its_event_again),
		cmocka_unit_test(an_event_destroyed_under_a_late_copy_hands_its_word_on_afterwards),
		cmocka_unit_test(aborted_loads_and_stores_never_touch_the_next_owner),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * The simulated device against times worked out by hand, and the accounting of device memory
 * and streams on every device.
 */
#include "../harness/ring_fixture.h"

#include <errno.h>
#include <pthread.h>

static struct omnikv_device_info info_of(struct omnikv_device *dev)
{
	struct omnikv_device_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_device_info(dev, &info), 0);
	return info;
}

static void transfers_take_fixed_cost_and_bandwidth(void **state)
{
	/* 1 byte a nanosecond up, half of that down */
	struct omnikv_device_config c = {
		.size = sizeof(c), .h2d_bytes_s = 1e9, .d2h_bytes_s = 0.5e9, .transfer_ns = 100, .piece_ns = 10,
	};
	struct omnikv_extent exts[2];
	struct omnikv_piece pieces[2];
	struct ring_fixture f;
	struct omnikv_hbm *hbm;

	fixture_open(&f, *state, "1M", &c, NULL);
	hbm = fixture_hbm(&f, 8192);
	assert_int_equal(omnikv_extent_alloc(f.client, 1, 2, NULL, 0, exts), 0);
	pieces[0] = (struct omnikv_piece) { exts[0], 0, 0, 1000 };
	pieces[1] = (struct omnikv_piece) { exts[1], 0, 4096, 500 };
	omnikv_prep_load(fixture_sqe(&f, 1), hbm, pieces, 2);
	fixture_submit(&f);
	assert_int_equal(info_of(f.dev).clock_ns, 0);
	fixture_expect(&f, 1, 1500);
	/* 100 + 2 x 10 + 1500 */
	assert_int_equal(info_of(f.dev).clock_ns, 1620);
	/* Two engines at once: a load of 1000 ends at 1620 + 1110, a store of 1000 at 1620 + 2110. */
	omnikv_prep_store(fixture_sqe(&f, 2), hbm, pieces, 1);
	pieces[1].bytes = 1000;
	omnikv_prep_load(fixture_sqe(&f, 3), hbm, &pieces[1], 1);
	fixture_submit(&f);
	fixture_expect(&f, 3, 1000);
	assert_int_equal(info_of(f.dev).clock_ns, 2730);
	fixture_expect(&f, 2, 1000);
	assert_int_equal(info_of(f.dev).clock_ns, 3730);
	/* One engine: one after another. */
	omnikv_prep_load(fixture_sqe(&f, 4), hbm, pieces, 1);
	omnikv_prep_load(fixture_sqe(&f, 5), hbm, pieces, 1);
	fixture_submit(&f);
	fixture_expect(&f, 4, 1000);
	assert_int_equal(info_of(f.dev).clock_ns, 3730 + 1110);
	fixture_expect(&f, 5, 1000);
	assert_int_equal(info_of(f.dev).clock_ns, 3730 + 2220);
	assert_int_equal(info_of(f.dev).h2d_bytes, 1500 + 3 * 1000);
	assert_int_equal(info_of(f.dev).d2h_bytes, 1000);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

static uint64_t seen_at;
static uint8_t seen_byte;
static struct ring_fixture *seen_f;

static void look(void *arg)
{
	seen_at = info_of(seen_f->dev).clock_ns;
	seen_byte = *(uint8_t *)arg;
}

static void streams_compute_beside_transfers_and_stall_behind_them(void **state)
{
	struct omnikv_device_config c = { .size = sizeof(c), .h2d_bytes_s = 1e9, .transfer_ns = 1000 };
	struct omnikv_extent ext;
	struct omnikv_piece piece;
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	struct omnikv_event *loaded, *done;
	struct omnikv_sqe *sqe;

	fixture_open(&f, *state, "1M", &c, NULL);
	seen_f = &f;
	hbm = fixture_hbm(&f, 4096);
	loaded = fixture_event(&f);
	done = fixture_event(&f);
	fixture_sealed(&f, &ext, 1, 1, 3);
	piece = (struct omnikv_piece) { ext, 0, 0, 4000 };
	sqe = fixture_sqe(&f, 1);
	omnikv_prep_load(sqe, hbm, &piece, 1);
	sqe->signal = loaded;
	/* Computes until 2000, then waits for the load, which ends at 5000: stalls for 3000. */
	assert_int_equal(omnikv_stream_launch(f.stream, 2000, NULL, NULL), 0);
	assert_int_equal(omnikv_stream_wait(f.stream, loaded), 0);
	assert_int_equal(omnikv_stream_launch(f.stream, 500, look, omnikv_hbm_ptr(hbm)), 0);
	assert_int_equal(omnikv_stream_record(f.stream, done), 0);
	fixture_submit(&f);
	assert_int_equal(omnikv_event_query(done), 0);
	assert_int_equal(omnikv_stream_sync(f.stream, FIXTURE_WAIT_NS), 0);
	assert_int_equal(seen_at, 5000);
	assert_int_equal(seen_byte, fixture_byte(3, 0));
	assert_int_equal(info_of(f.dev).clock_ns, 5500);
	assert_int_equal(info_of(f.dev).compute_ns, 2500);
	assert_int_equal(info_of(f.dev).stall_ns, 3000);
	assert_int_equal(omnikv_event_query(done), 1);
	fixture_expect(&f, 1, 4000);
	/* Waiting with nothing behind it is no stall, until something comes: at 6500 that is. */
	omnikv_event_reset(loaded);
	assert_int_equal(omnikv_stream_wait(f.stream, loaded), 0);
	assert_int_equal(omnikv_device_advance(f.dev, 6500), 0);
	assert_int_equal(info_of(f.dev).clock_ns, 6500);
	assert_int_equal(omnikv_stream_launch(f.stream, 100, NULL, NULL), 0);
	assert_int_equal(omnikv_device_advance(f.dev, 7000), 0);
	sqe = fixture_sqe(&f, 2);
	sqe->signal = loaded;
	fixture_submit(&f);
	assert_int_equal(omnikv_stream_sync(f.stream, FIXTURE_WAIT_NS), 0);
	assert_int_equal(info_of(f.dev).stall_ns, 3500);
	assert_int_equal(info_of(f.dev).clock_ns, 7100);
	fixture_expect(&f, 2, 0);
	/* A stream that waits for what nobody will do does not hang its caller. */
	omnikv_event_reset(loaded);
	assert_int_equal(omnikv_stream_wait(f.stream, loaded), 0);
	assert_int_equal(omnikv_stream_sync(f.stream, FIXTURE_WAIT_NS), -ETIME);
	assert_int_equal(omnikv_device_poll(f.dev), 0);
	fixture_sqe(&f, 3)->signal = loaded;
	fixture_submit(&f);
	assert_int_equal(omnikv_stream_sync(f.stream, FIXTURE_WAIT_NS), 0);
	fixture_expect(&f, 3, 0);
	omnikv_event_destroy(loaded);
	omnikv_event_destroy(done);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

/* Polling does not run into deadlines on its own: the caller may be about to fire the event. */
static void polling_does_not_expire_what_waits_for_the_caller(void **state)
{
	struct ring_fixture f;
	struct omnikv_event *event;
	struct omnikv_sqe *sqe;
	uint32_t i;

	fixture_open(&f, *state, NULL, NULL, NULL);
	event = fixture_event(&f);
	sqe = fixture_sqe(&f, 1);
	sqe->wait = event;
	sqe->deadline_ns = 1000;
	fixture_submit(&f);
	for (i = 0; i < 100; i++)
		assert_int_equal(omnikv_device_poll(f.dev), 0);
	assert_int_equal(info_of(f.dev).clock_ns, 0);
	/* Work that takes longer than the deadline makes it pass. */
	assert_int_equal(omnikv_stream_launch(f.stream, 5000, NULL, NULL), 0);
	while (omnikv_device_poll(f.dev))
		;
	fixture_expect(&f, 1, -ETIME);
	assert_int_equal(info_of(f.dev).clock_ns, 5000);
	omnikv_event_destroy(event);
	fixture_close(&f);
}

/* Order of completions and all bytes at each of them, folded into one number. */
static uint64_t shuffled_run(const char *device, uint64_t seed, bool *in_order)
{
	struct omnikv_device_config c = {
		.size = sizeof(c), .flags = OMNIKV_DEVICE_F_SHUFFLE | OMNIKV_DEVICE_F_POISON, .late_ns = 20000, .seed = seed,
	};
	struct omnikv_extent exts[32];
	struct omnikv_piece pieces[32];
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	uint64_t fold = 14695981039346656037u, i, j, last = 0;

	fixture_open(&f, device, "1M", &c, NULL);
	hbm = fixture_hbm(&f, 32 * 4096);
	fixture_sealed(&f, exts, 32, 1, 0);
	for (i = 0; i < 32; i++) {
		pieces[i] = (struct omnikv_piece) { exts[i], 0, i * 4096, 4096 };
		omnikv_prep_load(fixture_sqe(&f, i), hbm, &pieces[i], 1);
	}
	fixture_submit(&f);
	*in_order = true;
	for (i = 0; i < 32; i++) {
		struct omnikv_cqe cqe = fixture_reap(&f);
		const uint8_t *there = omnikv_hbm_ptr(hbm);

		*in_order &= !i || cqe.user_data > last;
		last = cqe.user_data;
		assert_int_equal(cqe.res, 4096);
		assert_true(fixture_is_filled(there + last * 4096, 4096, last, 0));
		for (j = 0; j < 32 * 4096; j += 61)
			fold = (fold ^ there[j]) * 1099511628211u;
		fold = (fold ^ last ^ info_of(f.dev).clock_ns) * 1099511628211u;
	}
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
	return fold;
}

static void shuffling_is_late_and_the_same_for_a_seed(void **state)
{
	bool in_order;
	uint64_t first = shuffled_run(*state, 1, &in_order);

	assert_false(in_order);
	assert_true(first == shuffled_run(*state, 1, &in_order));
	assert_true(first != shuffled_run(*state, 2, &in_order));
}

static void too_early_and_too_late_readers_see_poison(void **state)
{
	struct omnikv_device_config c = {
		.size = sizeof(c), .flags = OMNIKV_DEVICE_F_POISON, .h2d_bytes_s = 1e9, .transfer_ns = 1000,
	};
	struct omnikv_extent ext;
	struct omnikv_piece piece;
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	uint8_t *there;
	uint32_t i;

	fixture_open(&f, *state, "1M", &c, NULL);
	hbm = fixture_hbm(&f, 8192);
	there = omnikv_hbm_ptr(hbm);
	memset(there, 1, 8192);
	fixture_sealed(&f, &ext, 1, 1, 3);
	piece = (struct omnikv_piece) { ext, 0, 0, 4096 };
	omnikv_prep_load(fixture_sqe(&f, 1), hbm, &piece, 1);
	fixture_submit(&f);
	assert_int_equal(there[0], 1);
	assert_int_equal(omnikv_device_poll(f.dev), 1);
	for (i = 0; i < 4096; i++)
		assert_int_equal(there[i], 0xdb);
	assert_int_equal(there[4096], 1);
	fixture_expect(&f, 1, 4096);
	assert_true(fixture_is_filled(there, 4096, 3, 0));
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	for (i = 0; i < 8192; i++)
		assert_int_equal(there[i], 0xdb);
	fixture_close(&f);
}

static void failures_come_when_asked_for(void **state)
{
	struct omnikv_device_config c = { .size = sizeof(c), .fail_ppm = 100000, .seed = 3 };
	struct omnikv_piece piece = { .extent_off = 0, .device_off = 64, .bytes = 64 };
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	uint64_t i, nr_failed = 0;

	fixture_open(&f, *state, NULL, &c, NULL);
	hbm = fixture_hbm(&f, 128);
	for (i = 0; i < 2000; i++) {
		omnikv_prep_copy(fixture_sqe(&f, i), hbm, &piece, 1);
		fixture_submit(&f);
		nr_failed += fixture_reap(&f).res == -EIO;
	}
	/* A tenth; 5 standard deviations are 67. */
	assert_in_range(nr_failed, 200 - 67, 200 + 67);
	assert_int_equal(info_of(f.dev).nr_failed, nr_failed);
	assert_int_equal(omnikv_device_fail_next(f.dev, 0, -EIO), -EINVAL);
	assert_int_equal(omnikv_device_fail_next(f.dev, 1, 5), -EINVAL);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);

	fixture_open(&f, *state, NULL, NULL, NULL);
	hbm = fixture_hbm(&f, 128);
	assert_int_equal(omnikv_device_fail_next(f.dev, 3, -ENODEV), 0);
	for (i = 1; i <= 4; i++) {
		omnikv_prep_copy(fixture_sqe(&f, i), hbm, &piece, 1);
		fixture_submit(&f);
		fixture_expect(&f, i, i == 3 ? -ENODEV : 64);
	}
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

static void device_memory_is_counted(void **state)
{
	struct omnikv_device_config c = { .size = sizeof(c), .hbm_bytes = 10 << 20 };
	struct omnikv_device *dev;
	struct omnikv_hbm *a, *b, *attached;
	static uint8_t own[4096];

	fixture_device(*state);
	assert_int_equal(omnikv_device_open(*state, &c, &dev, NULL), 0);
	assert_int_equal(omnikv_hbm_create(dev, 6 << 20, &a), 0);
	assert_int_equal(omnikv_hbm_create(dev, (4 << 20) + 1, &b), -ENOMEM);
	assert_int_equal(omnikv_hbm_create(dev, 0, &b), -EINVAL);
	assert_int_equal(omnikv_hbm_create(dev, UINT64_MAX, &b), -EINVAL);
	assert_int_equal(omnikv_hbm_create(dev, 4 << 20, &b), 0);
	assert_int_equal(info_of(dev).hbm_used_bytes, 10 << 20);
	assert_int_equal((uintptr_t)omnikv_hbm_ptr(a) % (2 << 20), 0);
	((uint8_t *)omnikv_hbm_ptr(a))[(6 << 20) - 1] = 1;
	assert_int_equal(omnikv_hbm_destroy(a), 0);
	assert_int_equal(info_of(dev).hbm_used_bytes, 4 << 20);
	assert_int_equal(info_of(dev).hbm_peak_bytes, 10 << 20);
	assert_int_equal(info_of(dev).hbm_bytes, 10 << 20);
	/* The engine's own memory is not the device's to count, fill or free. */
	memset(own, 7, sizeof(own));
	assert_int_equal(omnikv_hbm_attach(dev, NULL, 4096, &attached), -EINVAL);
	assert_int_equal(omnikv_hbm_attach(dev, own, 0, &attached), -EINVAL);
	if (!strcmp(*state, "cuda")) {
		/* Memory of this process is none of a GPU's. */
		assert_int_equal(omnikv_hbm_attach(dev, own, sizeof(own), &attached), -EINVAL);
		assert_int_equal(omnikv_hbm_attach(dev, omnikv_hbm_ptr(b), (4 << 20) + 1, &attached), -EINVAL);
		assert_int_equal(omnikv_hbm_attach(dev, omnikv_hbm_ptr(b), 4096, &attached), 0);
		assert_int_equal(omnikv_hbm_destroy(attached), 0);
		goto out_b;
	}
	assert_int_equal(omnikv_hbm_attach(dev, own, sizeof(own), &attached), 0);
	assert_ptr_equal(omnikv_hbm_ptr(attached), own);
	assert_int_equal(omnikv_hbm_bytes(attached), sizeof(own));
	assert_int_equal(info_of(dev).hbm_used_bytes, 4 << 20);
	assert_int_equal(omnikv_hbm_destroy(attached), 0);
	assert_int_equal(own[17], 7);
out_b:
	assert_int_equal(omnikv_hbm_destroy(b), 0);
	assert_int_equal(omnikv_hbm_destroy(NULL), 0);
	assert_int_equal(omnikv_device_close(dev), 0);
}

static void wrong_devices_are_named(void **state)
{
	struct omnikv_device_config c = { .size = sizeof(c) };
	struct {
		struct omnikv_device_config c;
		uint64_t tail;
	} longer = { { .size = sizeof(longer) }, 1 };
	struct omnikv_device_info shorter = { .size = sizeof(size_t) + 8 }, none = { .size = 0 };
	struct omnikv_error err = { "" };
	struct omnikv_device *dev;

	(void)state;
	assert_int_equal(omnikv_device_open("abacus", NULL, &dev, &err), -ENODEV);
	assert_non_null(strstr(err.text, "abacus"));
	assert_non_null(strstr(err.text, "sim"));
	assert_int_equal(omnikv_device_open(NULL, NULL, &dev, NULL), -ENODEV);
	assert_int_equal(omnikv_device_open("sim:abacus", NULL, &dev, &err), -ENODEV);
	assert_non_null(strstr(err.text, "sim:abacus"));
	assert_non_null(strstr(err.text, "sim:kernels"));
	assert_int_equal(omnikv_device_open("host:kernels", NULL, &dev, NULL), -ENODEV);
	c.flags = OMNIKV_DEVICE_F_ALL + 1;
	assert_int_equal(omnikv_device_open("sim", &c, &dev, &err), -EINVAL);
	c.flags = 0;
	c.fail_ppm = 1000001;
	assert_int_equal(omnikv_device_open("sim", &c, &dev, NULL), -EINVAL);
	c.fail_ppm = 0;
	c.h2d_bytes_s = -1;
	assert_int_equal(omnikv_device_open("sim", &c, &dev, NULL), -EINVAL);
	c.h2d_bytes_s = 0;
	c.size = 8;
	assert_int_equal(omnikv_device_open("sim", &c, &dev, NULL), -EINVAL);
	assert_int_equal(omnikv_device_open("sim", &longer.c, &dev, NULL), -E2BIG);
	longer.tail = 0;
	assert_int_equal(omnikv_device_open("sim", &longer.c, &dev, NULL), 0);
	shorter.hbm_used_bytes = 77;
	assert_int_equal(omnikv_device_info(dev, &shorter), 0);
	assert_int_equal(shorter.hbm_bytes, UINT64_C(16) << 30);
	assert_int_equal(shorter.hbm_used_bytes, 77);
	assert_int_equal(omnikv_device_info(dev, &none), -EINVAL);
	assert_int_equal(omnikv_device_close(dev), 0);
	assert_int_equal(omnikv_device_close(NULL), 0);
}

struct firing {
	struct omnikv_device	*dev;
	struct omnikv_event	*event;
};

static void *fire_from_another_thread(void *arg)
{
	struct firing *firing = arg;
	struct omnikv_stream *own;

	if (omnikv_stream_create(firing->dev, &own))
		abort();
	omnikv_stream_record(own, firing->event);
	omnikv_stream_destroy(own);
	return NULL;
}

static void add_one(void *arg)
{
	++*(int *)arg;
}

/* On the host the calling thread is the stream, and any thread may fire what it waits for. */
static void host_streams_wait_for_other_threads(void **state)
{
	struct ring_fixture f;
	struct firing firing;
	struct omnikv_event *event;
	struct omnikv_device *dev;
	struct omnikv_event *foreign;
	pthread_t thread;
	int i, nr = 0;

	fixture_open(&f, *state, NULL, NULL, NULL);
	for (i = 0; i < 50; i++) {
		event = fixture_event(&f);
		firing = (struct firing) { f.dev, event };
		assert_int_equal(pthread_create(&thread, NULL, fire_from_another_thread, &firing), 0);
		assert_int_equal(omnikv_stream_wait(f.stream, event), 0);
		assert_int_equal(omnikv_event_query(event), 1);
		/* At once, though the other thread may still be in the call. */
		omnikv_event_destroy(event);
		pthread_join(thread, NULL);
	}
	assert_int_equal(omnikv_stream_launch(f.stream, 10, add_one, &nr), 0);
	assert_int_equal(nr, 1);
	assert_int_equal(omnikv_stream_sync(f.stream, 0), 0);
	assert_int_equal(info_of(f.dev).compute_ns, 10);
	assert_int_equal(omnikv_device_poll(f.dev), 0);
	assert_int_equal(omnikv_device_advance(f.dev, 1), -EOPNOTSUPP);
	assert_int_equal(omnikv_device_fail_next(f.dev, 1, -EIO), -EOPNOTSUPP);
	assert_int_equal(omnikv_device_open("host", NULL, &dev, NULL), 0);
	assert_int_equal(omnikv_event_create(dev, &foreign), 0);
	assert_int_equal(omnikv_stream_wait(f.stream, foreign), -EINVAL);
	assert_int_equal(omnikv_stream_record(f.stream, foreign), -EINVAL);
	omnikv_event_destroy(foreign);
	omnikv_event_destroy(NULL);
	assert_int_equal(omnikv_device_close(dev), 0);
	fixture_close(&f);
}

#define ON(device, fn) { #fn, fn, NULL, NULL, (void *)device }

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON("sim", transfers_take_fixed_cost_and_bandwidth),
		ON("sim", streams_compute_beside_transfers_and_stall_behind_them),
		ON("sim", polling_does_not_expire_what_waits_for_the_caller),
		ON("sim", shuffling_is_late_and_the_same_for_a_seed),
		ON("sim", too_early_and_too_late_readers_see_poison),
		ON("sim", failures_come_when_asked_for),
		ON_EACH_DEVICE(device_memory_is_counted),
		ON("sim", wrong_devices_are_named),
		ON("host", host_streams_wait_for_other_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

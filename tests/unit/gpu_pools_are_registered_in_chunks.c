// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pools and a GPU's driver: registered in chunks, the hottest first, in the background; right bytes before, while and
 * after, also where the driver refuses; shared between devices; given back.
 *
 * On the driver of tests/harness/cuda, which refuses copies that span two registrations.
 */
#include <errno.h>
#include <time.h>

#include "../harness/ring_fixture.h"

#define CHUNK		(UINT64_C(256) << 20)
#define GRANULE		4096
#define PIECE		(UINT64_C(64) << 10)

static struct omnikv_device_info info_of(struct omnikv_device *dev)
{
	struct omnikv_device_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_device_info(dev, &info), 0);
	return info;
}

/* As fixture_open(), on a driver that is not in its first state. */
static void open_with(struct ring_fixture *f, const char *pool_spec, const char *key, long value)
{
	struct omnikv_pool_config c = { .size = sizeof(c), .flags = OMNIKV_POOL_F_NO_POPULATE };

	fixture_device("cuda");
	fixture_cuda_set(key, value);
	*f = (struct ring_fixture) { .is_cuda = true };
	assert_int_equal(omnikv_pool_open(pool_spec, &c, &f->pool, NULL), 0);
	assert_int_equal(omnikv_client_open(f->pool, OMNIKV_CLIENT_F_MANAGER, &f->client), 0);
	assert_int_equal(omnikv_device_open("cuda", NULL, &f->dev, NULL), 0);
	assert_int_equal(omnikv_stream_create(f->dev, &f->stream), 0);
	assert_int_equal(omnikv_ring_init(f->client, f->dev, NULL, &f->ring, NULL), 0);
}

static void nap(long ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&ts, NULL);
}

/* Until @bytes are registered or refused; false after some seconds. */
static bool settled(struct ring_fixture *f, uint64_t bytes)
{
	struct omnikv_device_info info;
	int i;

	for (i = 0; i < 5000; i++) {
		info = info_of(f->dev);
		if (info.host_mapped_bytes + info.host_refused_bytes >= bytes)
			return true;
		nap(1);
	}
	return false;
}

static uint64_t usable(struct ring_fixture *f)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_pool_info(f->pool, &info), 0);
	return info.nr_granules * info.granule_bytes;
}

/* Store a pattern into @ext at @off and load it back: both must be right. */
static void round_trip(struct ring_fixture *f, struct omnikv_hbm *hbm, const struct omnikv_extent *ext, uint64_t off,
		       uint64_t bytes, uint64_t seed)
{
	struct omnikv_piece piece = { .extent = *ext, .extent_off = off, .bytes = bytes };
	uint8_t *there = omnikv_hbm_ptr(hbm), *here = (uint8_t *)omnikv_pool_addr(f->pool, ext) + off;

	fixture_fill(there, bytes, seed, 0);
	omnikv_prep_store(fixture_sqe(f, seed), hbm, &piece, 1);
	fixture_submit(f);
	fixture_expect(f, seed, (int64_t)bytes);
	assert_true(fixture_is_filled(here, bytes, seed, 0));
	memset(there, 0xa5, bytes);
	omnikv_prep_load(fixture_sqe(f, seed), hbm, &piece, 1);
	fixture_submit(f);
	fixture_expect(f, seed, (int64_t)bytes);
	assert_true(fixture_is_filled(there, bytes, seed, 0));
}

/* One extent over all of the pool. */
static struct omnikv_extent whole(struct ring_fixture *f)
{
	struct omnikv_extent ext;

	assert_int_equal(omnikv_extent_alloc(f->client, (uint32_t)(usable(f) / GRANULE), 1, NULL, OMNIKV_ALLOC_F_NO_ZERO, &ext), 0);
	return ext;
}

static void a_large_pool_is_registered_though_the_driver_takes_one_gib_at_most(void **state)
{
	struct omnikv_extent ext;
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	uint64_t all, i;

	(void)state;
	fixture_open(&f, "cuda", "2560M", NULL, NULL);
	all = usable(&f);
	assert_true(all > UINT64_C(2) << 30);
	assert_true(settled(&f, all));
	assert_int_equal(info_of(f.dev).host_bytes, all);
	assert_int_equal(info_of(f.dev).host_mapped_bytes, all);
	assert_int_equal(info_of(f.dev).host_refused_bytes, 0);
	assert_int_equal(fixture_cuda_get("registered"), all);
	/* At both ends, and over each border of two registrations. */
	hbm = fixture_hbm(&f, PIECE);
	ext = whole(&f);
	for (i = 0; i < all / CHUNK; i++)
		round_trip(&f, hbm, &ext, i ? i * CHUNK - PIECE / 2 - 100 * i : 0, PIECE, i + 1);
	round_trip(&f, hbm, &ext, all - PIECE, PIECE, 99);
	assert_int_equal(info_of(f.dev).bounced_bytes, 0);
	assert_int_equal(omnikv_extent_free(f.client, &ext, 1), 0);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

static void what_the_driver_refuses_goes_by_the_bounce_buffer(void **state)
{
	struct omnikv_extent ext;
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	uint64_t all;

	(void)state;
	open_with(&f, "300M", "max_register", 1 << 20);
	all = usable(&f);
	assert_true(settled(&f, all));
	assert_int_equal(info_of(f.dev).host_refused_bytes, all);
	assert_int_equal(info_of(f.dev).host_mapped_bytes, 0);
	/* More than the buffer holds at once, by a piece of its own, and odd. */
	hbm = fixture_hbm(&f, 40 << 20);
	ext = whole(&f);
	round_trip(&f, hbm, &ext, 4097, (33 << 20) + 5, 1);
	round_trip(&f, hbm, &ext, CHUNK - 3, 17, 2);
	assert_int_equal(info_of(f.dev).bounced_bytes, 2 * ((33 << 20) + 5 + 17));
	assert_int_equal(omnikv_extent_free(f.client, &ext, 1), 0);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

static void transfers_begin_before_registration_ends_and_call_their_chunk_forward(void **state)
{
	struct ring_fixture f;
	struct omnikv_extent ext;
	struct omnikv_hbm *hbm;
	uint64_t all, seed = 1, bounced;

	(void)state;
	/* 128 units of 2 MiB a chunk: some 400 ms each, 8 chunks by one thread or a few. */
	open_with(&f, "2G", "register_us", 3000);
	all = usable(&f);
	hbm = fixture_hbm(&f, PIECE);
	ext = whole(&f);
	/* Chunk 7 is the last in order; it must not be the last to come. */
	do {
		bounced = info_of(f.dev).bounced_bytes;
		round_trip(&f, hbm, &ext, 7 * CHUNK + seed % 100 * PIECE, PIECE, seed);
		seed++;
		assert_true(info_of(f.dev).host_mapped_bytes + info_of(f.dev).host_refused_bytes < all || seed > 2);
	} while (info_of(f.dev).bounced_bytes != bounced);
	assert_true(info_of(f.dev).bounced_bytes > 0);
	assert_true(info_of(f.dev).host_mapped_bytes < all);
	assert_true(settled(&f, all));
	assert_int_equal(info_of(f.dev).host_mapped_bytes, all);
	bounced = info_of(f.dev).bounced_bytes;
	round_trip(&f, hbm, &ext, 3 * CHUNK - 5, PIECE, 3);
	assert_int_equal(info_of(f.dev).bounced_bytes, bounced);
	assert_int_equal(omnikv_extent_free(f.client, &ext, 1), 0);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

static void devices_share_the_registration_of_a_pool(void **state)
{
	struct ring_fixture f;
	struct omnikv_device *other;
	struct omnikv_ring *ring, *second;
	uint64_t all;

	(void)state;
	fixture_open(&f, "cuda", "600M", NULL, NULL);
	all = usable(&f);
	assert_true(settled(&f, all));
	assert_int_equal(omnikv_device_open("cuda:1", NULL, &other, NULL), 0);
	assert_int_equal(omnikv_ring_init(f.client, other, NULL, &ring, NULL), 0);
	assert_int_equal(omnikv_ring_init(f.client, other, NULL, &second, NULL), 0);
	assert_int_equal(info_of(other).host_bytes, all);
	assert_int_equal(info_of(other).host_mapped_bytes, all);
	assert_int_equal(fixture_cuda_get("registered"), all);
	/* The one that made it goes first. */
	omnikv_ring_exit(f.ring);
	assert_int_equal(fixture_cuda_get("registered"), all);
	omnikv_ring_exit(ring);
	assert_int_equal(fixture_cuda_get("registered"), all);
	omnikv_ring_exit(second);
	assert_int_equal(fixture_cuda_get("registered"), 0);
	assert_int_equal(omnikv_device_close(other), 0);
	assert_int_equal(omnikv_ring_init(f.client, f.dev, NULL, &f.ring, NULL), 0);
	assert_true(settled(&f, all));
	assert_int_equal(fixture_cuda_get("registered"), all);
	fixture_close(&f);
}

static void failing_allocations_of_the_driver_leave_nothing(void **state)
{
	struct ring_fixture f;
	struct omnikv_device *dev;
	struct omnikv_event *event;
	struct omnikv_ring *ring;
	struct omnikv_hbm *hbm;
	long nth, host, device;
	int ret;

	(void)state;
	fixture_open(&f, "cuda", "4M", NULL, NULL);
	host = fixture_cuda_get("host");
	device = fixture_cuda_get("device");
	for (nth = 1, ret = -1; ret; nth++) {
		fixture_cuda_set("fail_alloc", nth);
		ret = omnikv_ring_init(f.client, f.dev, NULL, &ring, NULL);
		assert_true(ret == 0 || ret == -ENOMEM);
		if (ret) {
			assert_int_equal(fixture_cuda_get("host"), host);
			assert_int_equal(fixture_cuda_get("device"), device);
		}
	}
	assert_true(nth > 20);
	omnikv_ring_exit(ring);
	fixture_cuda_set("fail_alloc", 1);
	assert_int_equal(omnikv_hbm_create(f.dev, 4096, &hbm), -ENOMEM);
	assert_int_equal(info_of(f.dev).hbm_used_bytes, 0);
	fixture_cuda_set("fail_alloc", 0);

	/* A second device: its first event needs memory of the driver; measuring without memory is done without. */
	fixture_cuda_set("fail_alloc", 1);
	assert_int_equal(omnikv_device_open("cuda:1", NULL, &dev, NULL), 0);
	fixture_cuda_set("fail_alloc", 1);
	assert_int_equal(omnikv_event_create(dev, &event), -ENOMEM);
	fixture_cuda_set("fail_alloc", 0);
	assert_int_equal(omnikv_event_create(dev, &event), 0);
	omnikv_event_destroy(event);
	assert_int_equal(omnikv_device_close(dev), 0);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_large_pool_is_registered_though_the_driver_takes_one_gib_at_most),
		cmocka_unit_test(what_the_driver_refuses_goes_by_the_bounce_buffer),
		cmocka_unit_test(transfers_begin_before_registration_ends_and_call_their_chunk_forward),
		cmocka_unit_test(devices_share_the_registration_of_a_pool),
		cmocka_unit_test(failing_allocations_of_the_driver_leave_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

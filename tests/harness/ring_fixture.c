// SPDX-License-Identifier: GPL-2.0-only
/*
 * A pool, a client, a device and a ring, see ring_fixture.h.
 *
 * Owns opening and closing in the right order, and the bytes that tests fill memory with. What
 * is moved is the test's. One thread, but for fixture_now_ns(), fixture_byte() and
 * fixture_random().
 */
#include "ring_fixture.h"

#include <dlfcn.h>
#include <errno.h>
#include <libgen.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

uint64_t fixture_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

uint64_t fixture_random(uint64_t *state)
{
	uint64_t x = *state ? *state : 88172645463325252u;

	x ^= x << 13;
	x ^= x >> 7;
	x ^= x << 17;
	return *state = x;
}

static bool has_cuda_cache;

void fixture_cuda_cache(const char *dir)
{
	char path[4096];

	snprintf(path, sizeof(path), "%s/fake-cuda-cache", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	assert_int_equal(setenv("XDG_CACHE_HOME", dir ? dir : path, 1), 0);
	has_cuda_cache = true;
}

/* The driver stands beside the program, and stays loaded once it is. */
static void *fake_driver(void)
{
	char self[4096], path[4096 + 64];
	static void *handle;
	ssize_t len;

	if (handle)
		return handle;
	len = readlink("/proc/self/exe", self, sizeof(self) - 1);
	assert_true(len > 0);
	self[len] = '\0';
	snprintf(path, sizeof(path), "%s/../../lib/libfake-cuda.so", dirname(self));
	handle = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
	if (!handle)
		print_error("%s\n", dlerror());
	assert_non_null(handle);
	assert_int_equal(setenv("OMNIKV_CUDA_DRIVER", path, 1), 0);
	if (!has_cuda_cache)
		fixture_cuda_cache(NULL);
	return handle;
}

void fixture_cuda_set(const char *key, long value)
{
	int (*set)(const char *, long) = (int (*)(const char *, long))dlsym(fake_driver(), "fake_cuda_set");

	assert_non_null(set);
	assert_int_equal(set(key, value), 0);
}

long fixture_cuda_get(const char *key)
{
	long (*get)(const char *) = (long (*)(const char *))dlsym(fake_driver(), "fake_cuda_get");
	long value;

	assert_non_null(get);
	value = get(key);
	assert_true(value >= 0);
	return value;
}

void *fixture_cuda_function(const char *name, int version)
{
	int (*get)(const char *, void **, int, uint64_t, int *) =
		(int (*)(const char *, void **, int, uint64_t, int *))dlsym(fake_driver(), "cuGetProcAddress_v2");
	void *fn;
	int status;

	assert_non_null(get);
	assert_int_equal(get(name, &fn, version, 0, &status), 0);
	assert_non_null(fn);
	return fn;
}

void fixture_device(const char *device)
{
	if (!strncmp(device, "cuda", 4))
		fixture_cuda_set("reset", 0);
}

void fixture_open(struct ring_fixture *f, const char *device, const char *pool_spec,
		  const struct omnikv_device_config *device_config, const struct omnikv_ring_config *ring_config)
{
	memset(f, 0, sizeof(*f));
	f->is_sim = !strncmp(device, "sim", 3);
	f->is_cuda = !strncmp(device, "cuda", 4);
	fixture_device(device);
	if (pool_spec) {
		struct omnikv_pool_config c = { .size = sizeof(c), .flags = OMNIKV_POOL_F_NO_POPULATE };

		assert_int_equal(omnikv_pool_open(pool_spec, &c, &f->pool, NULL), 0);
		assert_int_equal(omnikv_client_open(f->pool, OMNIKV_CLIENT_F_MANAGER, &f->client), 0);
	}
	assert_int_equal(omnikv_device_open(device, device_config, &f->dev, NULL), 0);
	assert_int_equal(omnikv_stream_create(f->dev, &f->stream), 0);
	assert_int_equal(omnikv_ring_init(f->client, f->dev, ring_config, &f->ring, NULL), 0);
}

void fixture_close(struct ring_fixture *f)
{
	omnikv_ring_exit(f->ring);
	omnikv_stream_destroy(f->stream);
	assert_int_equal(omnikv_device_close(f->dev), 0);
	if (f->is_cuda) {
		static const char *const held[] = { "registrations", "host", "device", "streams", "contexts" };
		size_t i;

		/* All is given back, whatever the test did. */
		for (i = 0; i < sizeof(held) / sizeof(held[0]); i++)
			assert_int_equal(fixture_cuda_get(held[i]), 0);
	}
	if (f->pool) {
		struct omnikv_pool_info info = { .size = sizeof(info) };

		assert_int_equal(omnikv_pool_info(f->pool, &info), 0);
		assert_int_equal(info.state_bytes[OMNIKV_EXTENT_QUARANTINED], 0);
		omnikv_client_close(f->client);
		omnikv_pool_close(f->pool);
	}
}

struct omnikv_sqe *fixture_sqe(struct ring_fixture *f, uint64_t user_data)
{
	struct omnikv_sqe *sqe = omnikv_get_sqe(f->ring);

	assert_non_null(sqe);
	sqe->user_data = user_data;
	return sqe;
}

void fixture_submit(struct ring_fixture *f)
{
	int nr;

	do {
		nr = omnikv_submit(f->ring);
		assert_true(nr >= 0);
	} while (nr);
}

struct omnikv_cqe fixture_reap(struct ring_fixture *f)
{
	struct omnikv_cqe *cqe, copy;

	assert_int_equal(omnikv_wait_cqe(f->ring, &cqe, FIXTURE_WAIT_NS), 0);
	copy = *cqe;
	omnikv_cqe_seen(f->ring, cqe);
	return copy;
}

void fixture_expect(struct ring_fixture *f, uint64_t user_data, int64_t res)
{
	struct omnikv_cqe cqe = fixture_reap(f);

	assert_int_equal(cqe.user_data, user_data);
	assert_int_equal(cqe.res, res);
}

void fixture_expect_none(struct ring_fixture *f)
{
	struct omnikv_cqe *cqe;
	uint64_t start_ns = fixture_now_ns();

	do {
		assert_int_equal(omnikv_peek_cqe(f->ring, &cqe), -EAGAIN);
	} while (f->is_sim ? omnikv_device_poll(f->dev) : fixture_now_ns() - start_ns < 3000000);
}

void fixture_fire(struct ring_fixture *f, struct omnikv_event *event)
{
	assert_int_equal(omnikv_stream_record(f->stream, event), 0);
	while (!omnikv_event_query(event))
		assert_int_equal(omnikv_device_poll(f->dev), 1);
}

struct omnikv_event *fixture_event(struct ring_fixture *f)
{
	struct omnikv_event *event;

	assert_int_equal(omnikv_event_create(f->dev, &event), 0);
	return event;
}

struct omnikv_hbm *fixture_hbm(struct ring_fixture *f, uint64_t bytes)
{
	struct omnikv_hbm *hbm;

	assert_int_equal(omnikv_hbm_create(f->dev, bytes, &hbm), 0);
	return hbm;
}

uint8_t fixture_byte(uint64_t seed, uint64_t off)
{
	uint64_t x = (seed + 1) * UINT64_C(0x9e3779b97f4a7c15) ^ (off / 8 + 1) * UINT64_C(0xd6e8feb86659fd93);

	x ^= x >> 29;
	return (uint8_t)(x >> (off % 8 * 8));
}

void fixture_fill(void *buf, uint64_t bytes, uint64_t seed, uint64_t off)
{
	uint64_t i;

	for (i = 0; i < bytes; i++)
		((uint8_t *)buf)[i] = fixture_byte(seed, off + i);
}

bool fixture_is_filled(const void *buf, uint64_t bytes, uint64_t seed, uint64_t off)
{
	uint64_t i;

	for (i = 0; i < bytes; i++) {
		if (((const uint8_t *)buf)[i] != fixture_byte(seed, off + i))
			return false;
	}
	return true;
}

void fixture_sealed(struct ring_fixture *f, struct omnikv_extent *exts, uint32_t nr, uint32_t nr_granules,
		    uint64_t seed)
{
	uint32_t i;

	assert_int_equal(omnikv_extent_alloc(f->client, nr_granules, nr, NULL, 0, exts), 0);
	for (i = 0; i < nr; i++)
		fixture_fill(omnikv_pool_addr(f->pool, &exts[i]),
			     (uint64_t)nr_granules * omnikv_pool_granule_bytes(f->pool), seed + i, 0);
	assert_int_equal(omnikv_extent_seal(f->client, exts, nr), 0);
	assert_int_equal(omnikv_extent_lease(f->client, exts, nr), 0);
}

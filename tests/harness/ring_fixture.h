/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A pool, a client, a device and a ring, for tests that run the same over every device.
 *
 * Everything here asserts by cmocka; one thread.
 */
#ifndef RING_FIXTURE_H
#define RING_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <omnikv/ring.h>

/** One test over each device; the test's state is the device's name. "cuda" is on the driver of tests/harness/cuda. */
#define ON_EACH_DEVICE(fn) \
	{ #fn "_on_host", fn, NULL, NULL, (void *)"host" }, \
	{ #fn "_on_sim", fn, NULL, NULL, (void *)"sim" }, \
	{ #fn "_on_cuda", fn, NULL, NULL, (void *)"cuda" }

/** One on the simulated device whose bytes the GPU's code moves. */
#define ON_SIM_WITH_KERNELS(fn) \
	{ #fn "_on_sim_with_kernels", fn, NULL, NULL, (void *)"sim:kernels" }

#define FIXTURE_WAIT_NS		(UINT64_C(20) * 1000000000)

struct ring_fixture {
	struct omnikv_pool	*pool;		/* NULL when the test wants none */
	struct omnikv_client	*client;
	struct omnikv_device	*dev;
	struct omnikv_stream	*stream;
	struct omnikv_ring	*ring;
	bool			is_sim;
	bool			is_cuda;
};

/** Before opening: the device "cuda" is on the tests' driver from now on, in its first state; others are as they are. */
void fixture_device(const char *device);
/**
 * Where the device "cuda" keeps what it measures of itself, from now on: $XDG_CACHE_HOME. NULL, as before the first call: a folder
 * beside other temporary files, which programs share.
 */
void fixture_cuda_cache(const char *dir);
/** As fake_cuda_set() and fake_cuda_get() of tests/harness/cuda/fake_driver.h; fails the test on an unknown key. */
void fixture_cuda_set(const char *key, long value);
long fixture_cuda_get(const char *key);
/** A function of that driver, as an engine finds it. */
void *fixture_cuda_function(const char *name, int version);

/** @pool_spec, @device_config and @ring_config may be NULL. */
void fixture_open(struct ring_fixture *f, const char *device, const char *pool_spec,
		  const struct omnikv_device_config *device_config, const struct omnikv_ring_config *ring_config);
/** Checks that nothing stays in quarantine. */
void fixture_close(struct ring_fixture *f);

/** There is a free slot. */
struct omnikv_sqe *fixture_sqe(struct ring_fixture *f, uint64_t user_data);
/** Takes all filled slots, in one or more calls. */
void fixture_submit(struct ring_fixture *f);
/** The next completion, seen. */
struct omnikv_cqe fixture_reap(struct ring_fixture *f);
/** The next completion has this user_data and result. */
void fixture_expect(struct ring_fixture *f, uint64_t user_data, int64_t res);
/** No completion comes, for as long as the device can do anything (host: a few milliseconds). */
void fixture_expect_none(struct ring_fixture *f);
/** Let @event fire as an engine's stream would. */
void fixture_fire(struct ring_fixture *f, struct omnikv_event *event);
struct omnikv_event *fixture_event(struct ring_fixture *f);
struct omnikv_hbm *fixture_hbm(struct ring_fixture *f, uint64_t bytes);
/** @nr sealed extents of @nr_granules, filled by fixture_byte(@seed + index) and leased. */
void fixture_sealed(struct ring_fixture *f, struct omnikv_extent *exts, uint32_t nr, uint32_t nr_granules,
		    uint64_t seed);
/** Content of byte @off of whatever @seed names. */
uint8_t fixture_byte(uint64_t seed, uint64_t off);
void fixture_fill(void *buf, uint64_t bytes, uint64_t seed, uint64_t off);
bool fixture_is_filled(const void *buf, uint64_t bytes, uint64_t seed, uint64_t off);
uint64_t fixture_now_ns(void);
/** A small generator of its own, so that tests are the same everywhere. */
uint64_t fixture_random(uint64_t *state);

#endif /* RING_FIXTURE_H */

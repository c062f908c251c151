// SPDX-License-Identifier: GPL-2.0-only
/*
 * Replicated planes on several devices of one process: each fetches its part from the pool, all have everything after.
 *
 * "cuda" is the driver of tests/harness/cuda.
 */
#include <errno.h>
#include <stdio.h>

#include "../harness/ring_fixture.h"
#include "device.h"

#define NR_RANKS	4
#define PIECE		8192
#define NR_PIECES	(3 * NR_RANKS)

struct ranks {
	bool				is_cuda;
	struct omnikv_pool		*pool;
	struct omnikv_client		*client;
	struct omnikv_device		*devs[NR_RANKS];
	struct omnikv_ring		*rings[NR_RANKS];
	struct omnikv_hbm		*hbms[NR_RANKS];
	struct omnikv_event		*signals[NR_RANKS];
	struct omnikv_extent		exts[NR_PIECES];
	struct omnikv_exchange		*exchange;
};

static void ranks_open(struct ranks *r, const char *device, const struct omnikv_device_config *config)
{
	struct omnikv_pool_config c = { .size = sizeof(c), .flags = OMNIKV_POOL_F_NO_POPULATE };
	char name[32];
	uint32_t i;

	memset(r, 0, sizeof(*r));
	r->is_cuda = !strcmp(device, "cuda");
	fixture_device(device);
	if (r->is_cuda)
		fixture_cuda_set("devices", NR_RANKS);
	assert_int_equal(omnikv_pool_open("4M", &c, &r->pool, NULL), 0);
	assert_int_equal(omnikv_client_open(r->pool, OMNIKV_CLIENT_F_MANAGER, &r->client), 0);
	assert_int_equal(omnikv_extent_alloc(r->client, PIECE / 4096, NR_PIECES, NULL, 0, r->exts), 0);
	for (i = 0; i < NR_PIECES; i++)
		fixture_fill(omnikv_pool_addr(r->pool, &r->exts[i]), PIECE, i, 0);
	for (i = 0; i < NR_RANKS; i++) {
		if (r->is_cuda)
			snprintf(name, sizeof(name), "cuda:%u", i);
		else
			snprintf(name, sizeof(name), "%s", device);
		assert_int_equal(omnikv_device_open(name, config, &r->devs[i], NULL), 0);
		assert_int_equal(omnikv_ring_init(r->client, r->devs[i], NULL, &r->rings[i], NULL), 0);
		assert_int_equal(omnikv_hbm_create(r->devs[i], NR_PIECES * PIECE, &r->hbms[i]), 0);
		assert_int_equal(omnikv_event_create(r->devs[i], &r->signals[i]), 0);
		memset(omnikv_hbm_ptr(r->hbms[i]), 0xa5, NR_PIECES * PIECE);
	}
	assert_int_equal(omnikv_exchange_create(r->devs, NR_RANKS, &r->exchange), 0);
}

static void ranks_close(struct ranks *r)
{
	uint32_t i;

	omnikv_exchange_destroy(r->exchange);
	for (i = 0; i < NR_RANKS; i++) {
		omnikv_event_destroy(r->signals[i]);
		omnikv_ring_exit(r->rings[i]);
		assert_int_equal(omnikv_hbm_destroy(r->hbms[i]), 0);
		assert_int_equal(omnikv_device_close(r->devs[i]), 0);
	}
	if (r->is_cuda) {
		assert_int_equal(fixture_cuda_get("contexts"), 0);
		assert_int_equal(fixture_cuda_get("streams"), 0);
		assert_int_equal(fixture_cuda_get("host"), 0);
		assert_int_equal(fixture_cuda_get("device"), 0);
		assert_int_equal(fixture_cuda_get("registrations"), 0);
	}
	assert_int_equal(omnikv_extent_free(r->client, r->exts, NR_PIECES), 0);
	omnikv_client_close(r->client);
	omnikv_pool_close(r->pool);
}

/* Rank i fetches pieces i, i + N, ... */
static void fetch(struct ranks *r, struct omnikv_exchange_part *parts)
{
	struct omnikv_piece pieces[NR_PIECES / NR_RANKS];
	struct omnikv_sqe *sqe;
	struct omnikv_cqe *cqe;
	uint32_t i, k;

	for (i = 0; i < NR_RANKS; i++) {
		for (k = 0; k < NR_PIECES / NR_RANKS; k++) {
			uint32_t at = k * NR_RANKS + i;

			pieces[k] = (struct omnikv_piece) { r->exts[at], 0, at * PIECE, PIECE };
			parts[at] = (struct omnikv_exchange_part) { at * PIECE, PIECE, i, 0 };
		}
		sqe = omnikv_get_sqe(r->rings[i]);
		omnikv_prep_load(sqe, r->hbms[i], pieces, NR_PIECES / NR_RANKS);
		assert_int_equal(omnikv_submit(r->rings[i]), 1);
		assert_int_equal(omnikv_wait_cqe(r->rings[i], &cqe, FIXTURE_WAIT_NS), 0);
		assert_int_equal(cqe->res, NR_PIECES / NR_RANKS * PIECE);
		omnikv_cqe_seen(r->rings[i], cqe);
	}
}

static void each_rank_has_every_piece_and_fetched_one_part(void **state)
{
	struct omnikv_device_info info = { .size = sizeof(info) };
	struct omnikv_exchange_part parts[NR_PIECES];
	struct ranks r;
	uint32_t i, k;
	int round;

	ranks_open(&r, *state, NULL);
	for (round = 0; round < 3; round++) {
		fetch(&r, parts);
		for (i = 0; i < NR_RANKS; i++)
			omnikv_event_reset(r.signals[i]);
		assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, parts, NR_PIECES, r.signals), 0);
		assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, parts, NR_PIECES, r.signals), -EBUSY);
		assert_int_equal(omnikv_exchange_end(r.exchange, FIXTURE_WAIT_NS), 0);
		for (i = 0; i < NR_RANKS; i++) {
			assert_int_equal(omnikv_event_query(r.signals[i]), 1);
			for (k = 0; k < NR_PIECES; k++)
				assert_true(fixture_is_filled((uint8_t *)omnikv_hbm_ptr(r.hbms[i]) + k * PIECE, PIECE, k, 0));
			memset(omnikv_hbm_ptr(r.hbms[i]), 0xa5, NR_PIECES * PIECE);
			assert_int_equal(omnikv_device_info(r.devs[i], &info), 0);
			assert_int_equal(info.h2d_bytes, (round + 1) * NR_PIECES / NR_RANKS * PIECE);
		}
		if (r.is_cuda)
			assert_int_equal(fixture_cuda_get("peer_copies"), (round + 1) * NR_PIECES * (NR_RANKS - 1));
	}
	ranks_close(&r);
}

static void a_copy_that_fails_poisons_every_signal(void **state)
{
	struct omnikv_exchange_part parts[NR_PIECES];
	struct ranks r;
	uint32_t i;
	int ret;

	(void)state;
	ranks_open(&r, "cuda", NULL);
	fetch(&r, parts);
	fixture_cuda_set("fail_copy", 7);
	assert_true(omnikv_exchange_begin(r.exchange, r.hbms, parts, NR_PIECES, r.signals) < 0);
	for (i = 0; i < NR_RANKS; i++)
		assert_true(omnikv_event_query(r.signals[i]) < 0);
	assert_true(omnikv_exchange_end(r.exchange, FIXTURE_WAIT_NS) < 0);

	/* A GPU that is lost in the middle: the others do not wait for it. */
	for (i = 0; i < NR_RANKS; i++)
		omnikv_event_reset(r.signals[i]);
	fixture_cuda_set("fault_copy", 5);
	/* Where it is lost while copies are still being queued, the beginning says so already. */
	ret = omnikv_exchange_begin(r.exchange, r.hbms, parts, NR_PIECES, r.signals);
	assert_true(ret == 0 || ret == -EIO);
	assert_int_equal(omnikv_exchange_end(r.exchange, FIXTURE_WAIT_NS), -EIO);
	for (i = 0; i < NR_RANKS; i++)
		assert_true(omnikv_event_query(r.signals[i]) < 0);
	ranks_close(&r);
}

/* In which state a rank's signal is, and that all has arrived where it says so. */
static int signalled(struct ranks *r, uint32_t rank)
{
	int state = omnikv_event_query(r->signals[rank]);
	uint32_t k;

	for (k = 0; state == 1 && k < NR_PIECES; k++)
		assert_true(fixture_is_filled((uint8_t *)omnikv_hbm_ptr(r->hbms[rank]) + k * PIECE, PIECE, k, 0));
	return state;
}

/* Let one rank after another run, in a random order, until none can; what is signalled is there at that moment. */
static void poll_all(struct ranks *r, uint64_t *random)
{
	uint32_t i, idle = 0;

	while (idle < 100) {
		idle = omnikv_device_poll(r->devs[fixture_random(random) % NR_RANKS]) ? 0 : idle + 1;
		for (i = 0; i < NR_RANKS; i++)
			signalled(r, i);
	}
}

static void nothing_is_signalled_before_it_is_there(void **state)
{
	struct omnikv_device_config config = { .size = sizeof(config), .late_ns = 100000,
					       .flags = OMNIKV_DEVICE_F_SHUFFLE | OMNIKV_DEVICE_F_POISON };
	struct omnikv_exchange_part parts[NR_PIECES];
	uint64_t random = 1;
	struct ranks r;
	uint32_t i;
	int round;

	for (round = 0; round < 20; round++) {
		config.seed = (uint64_t)round;
		ranks_open(&r, *state, &config);
		fetch(&r, parts);
		assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, parts, NR_PIECES, r.signals), 0);
		poll_all(&r, &random);
		for (i = 0; i < NR_RANKS; i++)
			assert_int_equal(signalled(&r, i), 1);
		assert_int_equal(omnikv_exchange_end(r.exchange, FIXTURE_WAIT_NS), 0);
		ranks_close(&r);
	}
}

/* Any copy of any rank: nobody is told that all has arrived, and the next exchange is as good as new. */
static void a_copy_that_fails_late_poisons_who_waits_for_it(void **state)
{
	struct omnikv_exchange_part parts[NR_PIECES];
	uint64_t random = 1;
	struct ranks r;
	uint32_t i, nth;

	ranks_open(&r, *state, NULL);
	for (nth = 1; nth <= NR_PIECES / NR_RANKS * (NR_RANKS - 1); nth++) {
		fetch(&r, parts);
		for (i = 0; i < NR_RANKS; i++)
			omnikv_event_reset(r.signals[i]);
		assert_int_equal(omnikv_device_fail_next(r.devs[nth % NR_RANKS], nth, -EIO), 0);
		assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, parts, NR_PIECES, r.signals), 0);
		poll_all(&r, &random);
		for (i = 0; i < NR_RANKS; i++)
			assert_int_equal(signalled(&r, i), -EIO);
		assert_int_equal(omnikv_exchange_end(r.exchange, FIXTURE_WAIT_NS), -EIO);
		for (i = 0; i < NR_RANKS; i++) {
			omnikv_event_reset(r.signals[i]);
			memset(omnikv_hbm_ptr(r.hbms[i]), 0xa5, NR_PIECES * PIECE);
		}
		fetch(&r, parts);
		assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, parts, NR_PIECES, r.signals), 0);
		assert_int_equal(omnikv_exchange_end(r.exchange, FIXTURE_WAIT_NS), 0);
		for (i = 0; i < NR_RANKS; i++)
			assert_int_equal(signalled(&r, i), 1);
	}
	ranks_close(&r);
}

/* Who waits for a rank that is late when time is up goes on, and is not told that all has arrived. */
static void who_is_poisoned_is_not_signalled(void **state)
{
	struct omnikv_exchange_part parts[NR_PIECES];
	struct ranks r;
	uint32_t i;
	int round, ret;

	(void)state;
	ranks_open(&r, "cuda", NULL);
	fetch(&r, parts);
	fixture_cuda_set("copy_us", 500);
	for (round = 0; round < 300; round++) {
		for (i = 0; i < NR_RANKS; i++) {
			omnikv_event_reset(r.signals[i]);
			if (i)
				memset(omnikv_hbm_ptr(r.hbms[i]), 0xa5, PIECE);
		}
		assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, parts, 1, r.signals), 0);
		ret = omnikv_exchange_end(r.exchange, 100000);
		for (i = 0; i < NR_RANKS; i++) {
			int state = omnikv_event_query(r.signals[i]);

			/* On a busy machine a rank, or all of them, may be in time after all. */
			assert_true(state == 1 || (ret && state == -ETIME));
			if (state == 1)
				assert_true(fixture_is_filled(omnikv_hbm_ptr(r.hbms[i]), PIECE, 0, 0));
		}
		assert_true(!ret || ret == -ETIME);
		if (ret)
			ret = omnikv_exchange_end(r.exchange, FIXTURE_WAIT_NS);
		assert_true(!ret || ret == -ETIME);
	}
	ranks_close(&r);
}

/* A rank that is lost when it is first asked, and another one that is not over then. */
static const struct omnikv_device *lost, *late;
static int nr_late;

static int sync_lost_and_late(struct omnikv_stream *stream, uint64_t timeout_ns)
{
	int ret = okv_device_sim.stream_sync(stream, timeout_ns);

	if (!ret && stream->dev == lost) {
		lost = NULL;
		return -EIO;
	}
	return !ret && stream->dev == late && nr_late-- > 0 ? -ETIME : ret;
}

static void an_error_before_time_is_up_is_told_at_the_end(void **state)
{
	struct okv_device_ops ops = okv_device_sim;
	struct omnikv_exchange_part parts[NR_PIECES];
	uint64_t random = 1;
	struct ranks r;
	uint32_t i;

	(void)state;
	ops.stream_sync = sync_lost_and_late;
	ranks_open(&r, "sim", NULL);
	fetch(&r, parts);
	assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, parts, NR_PIECES, r.signals), 0);
	poll_all(&r, &random);
	lost = r.devs[0];
	late = r.devs[1];
	nr_late = 1;
	for (i = 0; i < NR_RANKS; i++)
		r.devs[i]->ops = &ops;
	assert_int_equal(omnikv_exchange_end(r.exchange, 0), -ETIME);
	assert_int_equal(omnikv_exchange_end(r.exchange, FIXTURE_WAIT_NS), -EIO);
	assert_int_equal(omnikv_exchange_end(r.exchange, FIXTURE_WAIT_NS), -EINVAL);
	/* Of that exchange, not of the next. */
	fetch(&r, parts);
	assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, parts, NR_PIECES, NULL), 0);
	assert_int_equal(omnikv_exchange_end(r.exchange, FIXTURE_WAIT_NS), 0);
	for (i = 0; i < NR_RANKS; i++)
		r.devs[i]->ops = &okv_device_sim;
	ranks_close(&r);
}

static void memory_stays_while_copies_are_under_way(void **state)
{
	struct omnikv_exchange_part parts[NR_PIECES];
	struct ranks r;
	uint32_t i;

	ranks_open(&r, *state, NULL);
	fetch(&r, parts);
	assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, parts, NR_PIECES, NULL), 0);
	for (i = 0; i < NR_RANKS; i++) {
		assert_int_equal(omnikv_hbm_resize(r.hbms[i], PIECE), -EBUSY);
		assert_int_equal(omnikv_hbm_destroy(r.hbms[i]), -EBUSY);
	}
	assert_int_equal(omnikv_exchange_end(r.exchange, FIXTURE_WAIT_NS), 0);
	for (i = 0; i < NR_RANKS; i++)
		assert_int_equal(omnikv_hbm_resize(r.hbms[i], PIECE), 0);
	ranks_close(&r);
}

static void parts_that_overlap_are_refused(void **state)
{
	struct omnikv_exchange_part parts[NR_PIECES], two[2];
	struct ranks r;
	uint32_t i;

	(void)state;
	ranks_open(&r, "sim", NULL);
	fetch(&r, parts);
	/* Any order is fine, and neighbours touch. */
	for (i = 0; i < NR_PIECES / 2; i++) {
		struct omnikv_exchange_part part = parts[i];

		parts[i] = parts[NR_PIECES - 1 - i];
		parts[NR_PIECES - 1 - i] = part;
	}
	assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, parts, NR_PIECES, NULL), 0);
	assert_int_equal(omnikv_exchange_end(r.exchange, FIXTURE_WAIT_NS), 0);
	parts[0].off -= PIECE + 1;
	assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, parts, NR_PIECES, NULL), -EINVAL);
	two[0] = (struct omnikv_exchange_part) { 0, PIECE, 0, 0 };
	two[1] = (struct omnikv_exchange_part) { PIECE - 1, 1, 1, 0 };
	assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, two, 2, NULL), -EINVAL);
	two[1].rank = 0;
	assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, two, 2, NULL), -EINVAL);
	two[1].off = PIECE;
	assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, two, 2, NULL), 0);
	assert_int_equal(omnikv_exchange_end(r.exchange, FIXTURE_WAIT_NS), 0);
	ranks_close(&r);
}

static void what_can_never_be_right_is_refused(void **state)
{
	struct omnikv_exchange_part parts[NR_PIECES], bad;
	struct omnikv_device *host, *two[2];
	struct omnikv_exchange *other;
	struct ranks r;

	(void)state;
	ranks_open(&r, "cuda", NULL);
	fetch(&r, parts);
	bad = parts[0];
	bad.rank = NR_RANKS;
	assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, &bad, 1, NULL), -EINVAL);
	bad = parts[0];
	bad.off = NR_PIECES * PIECE - PIECE + 1;
	assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, &bad, 1, NULL), -EINVAL);
	bad.off = UINT64_MAX - PIECE + 1;
	assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, &bad, 1, NULL), -EINVAL);
	bad = parts[0];
	bad.reserved = 1;
	assert_int_equal(omnikv_exchange_begin(r.exchange, r.hbms, &bad, 1, NULL), -EINVAL);
	assert_int_equal(omnikv_exchange_end(r.exchange, 0), -EINVAL);
	two[0] = two[1] = r.devs[0];
	assert_int_equal(omnikv_exchange_create(two, 2, &other), -EINVAL);
	assert_int_equal(omnikv_exchange_create(two, 1, &other), -EINVAL);
	assert_int_equal(omnikv_device_open("host", NULL, &host, NULL), 0);
	two[1] = host;
	assert_int_equal(omnikv_exchange_create(two, 2, &other), -EOPNOTSUPP);
	assert_int_equal(omnikv_device_close(host), 0);
	ranks_close(&r);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_EACH_DEVICE(each_rank_has_every_piece_and_fetched_one_part),
		ON_SIM_WITH_KERNELS(each_rank_has_every_piece_and_fetched_one_part),
		{ "nothing_is_signalled_before_it_is_there", nothing_is_signalled_before_it_is_there, NULL, NULL, (void *)"sim" },
		{ "a_copy_that_fails_late_poisons_who_waits_for_it", a_copy_that_fails_late_poisons_who_waits_for_it, NULL, NULL,
		  (void *)"sim" },
		cmocka_unit_test(a_copy_that_fails_poisons_every_signal),
		cmocka_unit_test(who_is_poisoned_is_not_signalled),
		cmocka_unit_test(an_error_before_time_is_up_is_told_at_the_end),
		ON_EACH_DEVICE(memory_stays_while_copies_are_under_way),
		cmocka_unit_test(parts_that_overlap_are_refused),
		cmocka_unit_test(what_can_never_be_right_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Links, drains, barriers, cancellations, deadlines and refusals, the same on every device.
 *
 * Operations are held back by events that the test fires itself, so that the expected order
 * is exact on the host's worker too.
 */
#include "../harness/ring_fixture.h"

#include <errno.h>

static void chain_runs_in_order(void **state)
{
	struct ring_fixture f;
	struct omnikv_event *event;
	struct omnikv_sqe *sqe;
	uint64_t i;

	fixture_open(&f, *state, NULL, NULL, NULL);
	event = fixture_event(&f);
	for (i = 0; i < 5; i++) {
		sqe = fixture_sqe(&f, i);
		omnikv_prep_nop(sqe);
		sqe->flags = i < 3 ? OMNIKV_SQE_F_LINK : 0;
		if (!i)
			sqe->wait = event;
	}
	fixture_submit(&f);
	/* The fifth is not of the chain. */
	fixture_expect(&f, 4, 0);
	fixture_expect_none(&f);
	fixture_fire(&f, event);
	for (i = 0; i < 4; i++)
		fixture_expect(&f, i, 0);
	omnikv_event_destroy(event);
	fixture_close(&f);
}

static void chain_ends_at_its_first_failure(void **state)
{
	struct ring_fixture f;
	struct omnikv_sqe *sqe;
	uint64_t i;

	fixture_open(&f, *state, NULL, NULL, NULL);
	for (i = 0; i < 5; i++) {
		sqe = fixture_sqe(&f, i);
		omnikv_prep_nop(sqe);
		sqe->flags = i < 3 ? OMNIKV_SQE_F_LINK : 0;
		if (i == 1)
			sqe->opcode = OMNIKV_OP_SPILL;
	}
	fixture_submit(&f);
	{
		int64_t res[5];

		for (i = 0; i < 5; i++) {
			struct omnikv_cqe cqe = fixture_reap(&f);

			res[cqe.user_data] = cqe.res;
		}
		assert_int_equal(res[0], 0);
		assert_int_equal(res[1], -EOPNOTSUPP);
		assert_int_equal(res[2], -ECANCELED);
		assert_int_equal(res[3], -ECANCELED);
		assert_int_equal(res[4], 0);
	}
	fixture_close(&f);
}

static void chain_spans_submissions(void **state)
{
	struct ring_fixture f;
	struct omnikv_sqe *sqe;

	fixture_open(&f, *state, NULL, NULL, NULL);
	sqe = fixture_sqe(&f, 1);
	sqe->opcode = OMNIKV_OP_FETCH;
	sqe->flags = OMNIKV_SQE_F_LINK;
	fixture_submit(&f);
	fixture_expect(&f, 1, -EOPNOTSUPP);
	sqe = fixture_sqe(&f, 2);
	omnikv_prep_nop(sqe);
	fixture_submit(&f);
	fixture_expect(&f, 2, -ECANCELED);
	/* The chain is over. */
	sqe = fixture_sqe(&f, 3);
	omnikv_prep_nop(sqe);
	sqe->flags = OMNIKV_SQE_F_LINK;
	fixture_submit(&f);
	fixture_expect(&f, 3, 0);
	sqe = fixture_sqe(&f, 4);
	omnikv_prep_nop(sqe);
	fixture_submit(&f);
	fixture_expect(&f, 4, 0);
	fixture_close(&f);
}

static void drain_waits_for_all_and_holds_all(void **state)
{
	struct ring_fixture f;
	struct omnikv_event *a, *b;
	struct omnikv_sqe *sqe;

	fixture_open(&f, *state, NULL, NULL, NULL);
	a = fixture_event(&f);
	b = fixture_event(&f);
	fixture_sqe(&f, 1)->wait = a;
	fixture_sqe(&f, 2)->wait = b;
	sqe = fixture_sqe(&f, 3);
	sqe->flags = OMNIKV_SQE_F_DRAIN;
	fixture_sqe(&f, 4);
	fixture_submit(&f);
	fixture_expect_none(&f);
	fixture_fire(&f, b);
	fixture_expect(&f, 2, 0);
	fixture_expect_none(&f);
	fixture_fire(&f, a);
	fixture_expect(&f, 1, 0);
	fixture_expect(&f, 3, 0);
	fixture_expect(&f, 4, 0);
	omnikv_event_destroy(a);
	omnikv_event_destroy(b);
	fixture_close(&f);
}

static void barrier_waits_for_all_and_holds_none(void **state)
{
	struct ring_fixture f;
	struct omnikv_event *a;

	fixture_open(&f, *state, NULL, NULL, NULL);
	a = fixture_event(&f);
	fixture_sqe(&f, 1)->wait = a;
	omnikv_prep_barrier(fixture_sqe(&f, 2));
	fixture_sqe(&f, 3);
	fixture_submit(&f);
	fixture_expect(&f, 3, 0);
	fixture_expect_none(&f);
	fixture_fire(&f, a);
	fixture_expect(&f, 1, 0);
	fixture_expect(&f, 2, 0);
	omnikv_event_destroy(a);
	fixture_close(&f);
}

static void cancel_finds_one_or_none(void **state)
{
	struct ring_fixture f;
	struct omnikv_event *a;
	struct omnikv_sqe *sqe;

	fixture_open(&f, *state, NULL, NULL, NULL);
	a = fixture_event(&f);
	/* Held by a drain: the cancellation is not. */
	fixture_sqe(&f, 1)->wait = a;
	fixture_sqe(&f, 2)->flags = OMNIKV_SQE_F_DRAIN;
	sqe = fixture_sqe(&f, 3);
	omnikv_prep_cancel(sqe, 1);
	fixture_submit(&f);
	fixture_expect(&f, 1, -ECANCELED);
	{
		struct omnikv_cqe x = fixture_reap(&f), y = fixture_reap(&f);

		assert_int_equal(x.user_data + y.user_data, 5);
		assert_int_equal(x.res, 0);
		assert_int_equal(y.res, 0);
	}
	sqe = fixture_sqe(&f, 4);
	omnikv_prep_cancel(sqe, 1);
	fixture_submit(&f);
	fixture_expect(&f, 4, -ENOENT);
	omnikv_event_destroy(a);
	fixture_close(&f);
}

static void cancelled_link_takes_the_rest_of_its_chain(void **state)
{
	struct ring_fixture f;
	struct omnikv_event *a;
	struct omnikv_sqe *sqe;

	fixture_open(&f, *state, NULL, NULL, NULL);
	a = fixture_event(&f);
	sqe = fixture_sqe(&f, 1);
	sqe->wait = a;
	sqe->flags = OMNIKV_SQE_F_LINK;
	fixture_sqe(&f, 2)->flags = OMNIKV_SQE_F_LINK;
	fixture_sqe(&f, 3);
	fixture_submit(&f);
	omnikv_prep_cancel(fixture_sqe(&f, 9), 2);
	fixture_submit(&f);
	fixture_expect(&f, 2, -ECANCELED);
	{
		struct omnikv_cqe x = fixture_reap(&f), y = fixture_reap(&f);

		/* The cancellation's own result and the rest of the chain, in either order. */
		assert_int_equal(x.user_data + y.user_data, 12);
		assert_int_equal(x.user_data == 3 ? x.res : y.res, -ECANCELED);
	}
	fixture_expect_none(&f);
	fixture_fire(&f, a);
	fixture_expect(&f, 1, 0);
	omnikv_event_destroy(a);
	fixture_close(&f);
}

static void deadline_ends_the_wait_for_an_event(void **state)
{
	struct ring_fixture f;
	struct omnikv_event *a, *signal;
	struct omnikv_device_info info = { .size = sizeof(info) };
	struct omnikv_sqe *sqe;
	uint64_t start_ns;

	fixture_open(&f, *state, NULL, NULL, NULL);
	a = fixture_event(&f);
	signal = fixture_event(&f);
	sqe = fixture_sqe(&f, 1);
	sqe->wait = a;
	sqe->signal = signal;
	sqe->deadline_ns = 5000000;
	sqe->flags = OMNIKV_SQE_F_LINK;
	fixture_sqe(&f, 2);
	assert_int_equal(omnikv_device_info(f.dev, &info), 0);
	start_ns = info.clock_ns;
	fixture_submit(&f);
	assert_int_equal(omnikv_event_query(signal), 0);
	fixture_expect(&f, 1, -ETIME);
	fixture_expect(&f, 2, -ECANCELED);
	assert_int_equal(omnikv_event_query(signal), -ETIME);
	assert_int_equal(omnikv_device_info(f.dev, &info), 0);
	assert_true(info.clock_ns - start_ns >= 5000000);
	if (f.is_sim)
		assert_int_equal(info.clock_ns - start_ns, 5000000);
	else
		assert_true(info.clock_ns - start_ns < 2000000000);
	omnikv_event_destroy(a);
	omnikv_event_destroy(signal);
	fixture_close(&f);
}

static void default_deadline_is_the_ring_s(void **state)
{
	struct omnikv_ring_config c = { .size = sizeof(c), .deadline_ns = 1000000 };
	struct ring_fixture f;
	struct omnikv_event *a;

	fixture_open(&f, *state, NULL, NULL, &c);
	a = fixture_event(&f);
	fixture_sqe(&f, 1)->wait = a;
	fixture_submit(&f);
	fixture_expect(&f, 1, -ETIME);
	omnikv_event_destroy(a);
	fixture_close(&f);
}

static void submission_is_refused_where_a_result_could_be_lost(void **state)
{
	struct omnikv_ring_config c = { .size = sizeof(c), .entries = 4, .cq_entries = 4 };
	struct ring_fixture f;
	struct omnikv_event *a;
	struct omnikv_hbm *hbm;
	struct omnikv_piece piece = { .extent_off = 0, .device_off = 4096, .bytes = 4096 };
	uint64_t i;

	fixture_open(&f, *state, NULL, NULL, &c);
	a = fixture_event(&f);
	hbm = fixture_hbm(&f, 8192);
	/* A transfer may need two: three do not fit into four slots. */
	for (i = 1; i <= 3; i++) {
		struct omnikv_sqe *sqe = fixture_sqe(&f, i);

		omnikv_prep_copy(sqe, hbm, &piece, 1);
		sqe->wait = a;
	}
	assert_int_equal(omnikv_submit(f.ring), 2);
	assert_int_equal(omnikv_submit(f.ring), -EAGAIN);
	fixture_fire(&f, a);
	assert_int_equal(fixture_reap(&f).res, 4096);
	assert_int_equal(omnikv_submit(f.ring), 1);
	assert_int_equal(omnikv_submit(f.ring), 0);
	assert_int_equal(fixture_reap(&f).res, 4096);
	assert_int_equal(fixture_reap(&f).res, 4096);
	/* Nothing is in flight. */
	{
		struct omnikv_cqe *cqe;

		assert_int_equal(omnikv_wait_cqe(f.ring, &cqe, 1000), -ENODATA);
		assert_int_equal(omnikv_peek_cqe(f.ring, &cqe), -EAGAIN);
	}
	/* Slots of the submission queue run out too. */
	omnikv_event_reset(a);
	for (i = 0; i < 4; i++)
		fixture_sqe(&f, i)->wait = a;
	assert_null(omnikv_get_sqe(f.ring));
	fixture_submit(&f);
	fixture_fire(&f, a);
	for (i = 0; i < 4; i++)
		assert_int_equal(fixture_reap(&f).res, 0);
	omnikv_event_destroy(a);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

static void wait_gives_up_after_its_time(void **state)
{
	struct ring_fixture f;
	struct omnikv_event *a;
	struct omnikv_cqe *cqe;
	uint64_t start_ns;

	fixture_open(&f, *state, NULL, NULL, NULL);
	if (!f.is_sim) {
		a = fixture_event(&f);
		fixture_sqe(&f, 1)->wait = a;
		fixture_submit(&f);
		start_ns = fixture_now_ns();
		assert_int_equal(omnikv_wait_cqe(f.ring, &cqe, 2000000), -ETIME);
		assert_true(fixture_now_ns() - start_ns >= 2000000);
		fixture_fire(&f, a);
		fixture_expect(&f, 1, 0);
		omnikv_event_destroy(a);
	}
	fixture_close(&f);
}

static void exit_with_everything_in_flight(void **state)
{
	struct ring_fixture f;
	struct omnikv_event *a, *signal;
	struct omnikv_hbm *hbm;
	struct omnikv_piece piece = { .extent_off = 0, .device_off = 4 << 20, .bytes = 4 << 20 };
	struct omnikv_sqe *sqe;
	uint64_t i;

	fixture_open(&f, *state, NULL, NULL, NULL);
	a = fixture_event(&f);
	signal = fixture_event(&f);
	hbm = fixture_hbm(&f, 8 << 20);
	/* They are in flight when this thread gets its next turn, however late that is. */
	if (f.is_cuda)
		fixture_cuda_set("copy_us", 50000);
	for (i = 0; i < 8; i++)
		omnikv_prep_copy(fixture_sqe(&f, i), hbm, &piece, 1);
	sqe = fixture_sqe(&f, 100);
	sqe->wait = a;
	sqe->signal = signal;
	sqe->flags = OMNIKV_SQE_F_LINK;
	fixture_sqe(&f, 101);
	fixture_sqe(&f, 102)->flags = OMNIKV_SQE_F_DRAIN;
	fixture_submit(&f);
	if (f.is_sim)
		omnikv_device_poll(f.dev);
	assert_int_equal(omnikv_hbm_destroy(hbm), -EBUSY);
	/* Filled but never submitted. */
	fixture_sqe(&f, 103);
	omnikv_ring_exit(f.ring);
	assert_int_equal(omnikv_event_query(signal), -ECANCELED);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	omnikv_event_destroy(a);
	omnikv_event_destroy(signal);
	assert_int_equal(omnikv_ring_init(NULL, f.dev, NULL, &f.ring, NULL), 0);
	fixture_close(&f);
}

static void wrong_requests_are_refused_one_by_one(void **state)
{
	struct ring_fixture f;
	struct omnikv_device *other;
	struct omnikv_hbm *hbm, *foreign;
	struct omnikv_event *foreign_event;
	struct omnikv_piece piece = { .device_off = 4096, .bytes = 4096 };
	struct omnikv_sqe *sqe;
	uint64_t valid = ~UINT64_C(0);

	fixture_open(&f, *state, NULL, NULL, NULL);
	assert_int_equal(omnikv_device_open("sim", NULL, &other, NULL), 0);
	assert_int_equal(omnikv_hbm_create(other, 8192, &foreign), 0);
	assert_int_equal(omnikv_event_create(other, &foreign_event), 0);
	hbm = fixture_hbm(&f, 8192);

	sqe = fixture_sqe(&f, 1);
	sqe->reserved = 1;
	fixture_submit(&f);
	fixture_expect(&f, 1, -EINVAL);
	sqe = fixture_sqe(&f, 2);
	sqe->flags = 4;
	fixture_submit(&f);
	fixture_expect(&f, 2, -EINVAL);
	sqe = fixture_sqe(&f, 3);
	sqe->opcode = OMNIKV_OP_NR;
	fixture_submit(&f);
	fixture_expect(&f, 3, -EINVAL);
	omnikv_prep_copy(fixture_sqe(&f, 4), foreign, &piece, 1);
	fixture_submit(&f);
	fixture_expect(&f, 4, -EINVAL);
	sqe = fixture_sqe(&f, 5);
	omnikv_prep_nop(sqe);
	sqe->wait = foreign_event;
	fixture_submit(&f);
	fixture_expect(&f, 5, -EINVAL);
	/* Pool memory without a pool. */
	sqe = fixture_sqe(&f, 6);
	omnikv_prep_load(sqe, hbm, &piece, 1);
	sqe->valid = &valid;
	fixture_submit(&f);
	fixture_expect(&f, 6, -EPERM);
	assert_int_equal(valid, 0);
	omnikv_prep_copy(fixture_sqe(&f, 7), NULL, &piece, 1);
	fixture_submit(&f);
	fixture_expect(&f, 7, -EINVAL);
	omnikv_prep_spill(fixture_sqe(&f, 8), NULL, NULL, 0, NULL);
	fixture_submit(&f);
	fixture_expect(&f, 8, -EOPNOTSUPP);
	omnikv_prep_pull(fixture_sqe(&f, 9));
	fixture_submit(&f);
	fixture_expect(&f, 9, -EOPNOTSUPP);
	/* What is right after all that still works. */
	omnikv_prep_copy(fixture_sqe(&f, 10), hbm, &piece, 1);
	fixture_submit(&f);
	fixture_expect(&f, 10, 4096);

	assert_int_equal(omnikv_hbm_destroy(foreign), 0);
	omnikv_event_destroy(foreign_event);
	assert_int_equal(omnikv_device_close(other), 0);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

static void impossible_rings_are_refused(void **state)
{
	static const struct omnikv_ring_config bad[] = {
		{ .size = 4 },
		{ .size = sizeof(bad[0]), .entries = 3 },
		{ .size = sizeof(bad[0]), .entries = 65536 },
		{ .size = sizeof(bad[0]), .entries = 8, .cq_entries = 4 },
		{ .size = sizeof(bad[0]), .entries = 8, .cq_entries = 12 },
		{ .size = sizeof(bad[0]), .entries = 8, .cq_entries = 131072 },
	};
	struct {
		struct omnikv_ring_config c;
		uint64_t tail;
	} longer = { { .size = sizeof(longer) }, 1 };
	struct omnikv_error err = { "" };
	struct omnikv_device *dev;
	struct omnikv_ring *ring;
	size_t i;

	assert_int_equal(omnikv_device_open(*state, NULL, &dev, NULL), 0);
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		err.text[0] = 0;
		assert_int_equal(omnikv_ring_init(NULL, dev, &bad[i], &ring, &err), -EINVAL);
		assert_true(err.text[0]);
	}
	assert_int_equal(omnikv_ring_init(NULL, dev, &longer.c, &ring, NULL), -E2BIG);
	longer.tail = 0;
	assert_int_equal(omnikv_ring_init(NULL, dev, &longer.c, &ring, NULL), 0);
	assert_ptr_equal(omnikv_ring_device(ring), dev);
	assert_null(omnikv_ring_client(ring));
	omnikv_ring_exit(ring);
	assert_int_equal(omnikv_device_close(dev), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_EACH_DEVICE(chain_runs_in_order),
		ON_EACH_DEVICE(chain_ends_at_its_first_failure),
		ON_EACH_DEVICE(chain_spans_submissions),
		ON_EACH_DEVICE(drain_waits_for_all_and_holds_all),
		ON_EACH_DEVICE(barrier_waits_for_all_and_holds_none),
		ON_EACH_DEVICE(cancel_finds_one_or_none),
		ON_EACH_DEVICE(cancelled_link_takes_the_rest_of_its_chain),
		ON_EACH_DEVICE(deadline_ends_the_wait_for_an_event),
		ON_EACH_DEVICE(default_deadline_is_the_ring_s),
		ON_EACH_DEVICE(submission_is_refused_where_a_result_could_be_lost),
		ON_EACH_DEVICE(wait_gives_up_after_its_time),
		ON_EACH_DEVICE(exit_with_everything_in_flight),
		ON_EACH_DEVICE(wrong_requests_are_refused_one_by_one),
		ON_EACH_DEVICE(impossible_rings_are_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

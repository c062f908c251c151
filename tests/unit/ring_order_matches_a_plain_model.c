// SPDX-License-Identifier: GPL-2.0-only
/*
 * The pure part of rings against models that are too slow to be wrong: which operations may
 * start, whose deadline is next, how many completions may be promised, which requests can be
 * right at all.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../harness/ring_fixture.h"
#include "ring_queue.h"

#define NR_OPS	24

/* A live operation, in a list in submission order. */
struct model_op {
	struct okv_op	*op;
	uint64_t	user_data;
	uint64_t	deadline;
	uint8_t		opcode;
	uint8_t		flags;
	bool		has_pred;	/* the one submitted before it is live and links to it */
	bool		is_doomed;
	bool		is_started;
};

struct model {
	struct model_op	ops[NR_OPS];
	uint32_t	nr;
	bool		chain_open;	/* the last submitted links on */
	bool		chain_live;
	bool		chain_failed;
};

static bool may_start(const struct model *m, uint32_t i)
{
	const struct model_op *op = &m->ops[i];
	uint32_t j;

	if (op->is_doomed)
		return true;
	if (op->has_pred)
		return false;
	if (op->opcode == OMNIKV_OP_CANCEL && !op->flags && !op->is_started) {
		/* Unless it was a member of a chain it waits for nothing. A member whose chain has come
		 * this far stands behind no drain either, as its predecessor did not. */
		return true;
	}
	if (i && (op->flags & OMNIKV_SQE_F_DRAIN || op->opcode == OMNIKV_OP_BARRIER))
		return false;
	for (j = 0; j < i; j++) {
		if (m->ops[j].flags & OMNIKV_SQE_F_DRAIN)
			return false;
	}
	return true;
}

static void compare(const struct model *m, struct okv_opq *q)
{
	uint64_t deadline = UINT64_MAX;
	uint32_t i;

	assert_true(okv_opq_check(q));
	assert_int_equal(q->nr_live, m->nr);
	for (i = 0; i < m->nr; i++) {
		const struct model_op *op = &m->ops[i];

		if (op->is_started)
			assert_int_equal(op->op->state, OKV_OP_WAITING);
		else
			assert_int_equal(op->op->state, may_start(m, i) ? OKV_OP_READY : OKV_OP_HELD);
		assert_int_equal(op->op->is_doomed, op->is_doomed);
		if (op->deadline < deadline)
			deadline = op->deadline;
	}
	assert_int_equal(okv_opq_next_deadline(q), deadline);
	if (deadline != UINT64_MAX && deadline) {
		assert_null(okv_opq_expired(q, deadline - 1));
		assert_int_equal(okv_opq_expired(q, deadline)->deadline, deadline);
	}
}

static void model_add(struct model *m, struct okv_opq *q, uint64_t *random)
{
	struct omnikv_sqe sqe = { 0 };
	struct model_op *op = &m->ops[m->nr];
	uint64_t x = fixture_random(random);

	sqe.opcode = x % 8 == 0 ? OMNIKV_OP_BARRIER : x % 8 == 1 ? OMNIKV_OP_CANCEL : OMNIKV_OP_NOP;
	sqe.flags = (x >> 8) % 4 == 0 ? OMNIKV_SQE_F_LINK : 0;
	sqe.flags |= (x >> 12) % 6 == 0 ? OMNIKV_SQE_F_DRAIN : 0;
	sqe.user_data = (x >> 16) % 16;
	*op = (struct model_op) {
		.user_data = sqe.user_data, .deadline = 1 + (x >> 24) % 50, .opcode = sqe.opcode, .flags = sqe.flags,
		.has_pred = m->chain_open && m->chain_live, .is_doomed = m->chain_open && !m->chain_live && m->chain_failed,
	};
	assert_int_equal(okv_opq_is_free_of_order(q), !m->chain_open && !q->nr_drains);
	/* A cancellation that ends a chain is an operation like others. */
	if (m->chain_open && op->opcode == OMNIKV_OP_CANCEL)
		op->opcode = OMNIKV_OP_NOP;
	m->nr++;
	m->chain_open = m->chain_live = sqe.flags & OMNIKV_SQE_F_LINK;
	if (sqe.opcode == OMNIKV_OP_CANCEL && op->opcode == OMNIKV_OP_NOP)
		sqe.opcode = OMNIKV_OP_NOP;
	op->op = okv_opq_add(q, &sqe, op->deadline);
}

static void model_post(struct model *m, struct okv_opq *q, uint32_t i, bool failed)
{
	struct okv_op *op = m->ops[i].op;

	/* Who stands directly behind and was linked to this one. */
	if (i + 1 < m->nr && m->ops[i + 1].has_pred && (m->ops[i].flags & OMNIKV_SQE_F_LINK)) {
		m->ops[i + 1].has_pred = false;
		m->ops[i + 1].is_doomed = failed;
	}
	if (i + 1 == m->nr && m->chain_open && m->chain_live) {
		m->chain_live = false;
		m->chain_failed = failed;
	}
	memmove(&m->ops[i], &m->ops[i + 1], (m->nr - i - 1) * sizeof(m->ops[0]));
	m->nr--;
	okv_opq_post(q, op, failed);
	okv_opq_put(q, op);
}

static void order_and_deadlines_match_the_model(void **state)
{
	struct model m = { .nr = 0 };
	struct okv_opq q;
	uint64_t random = 99;
	uint32_t round, i;

	(void)state;
	assert_int_equal(okv_opq_init(&q, NR_OPS), 0);
	for (round = 0; round < 200000; round++) {
		uint64_t x = fixture_random(&random);

		if (x % 3 == 0 && m.nr < NR_OPS) {
			model_add(&m, &q, &random);
		} else if (x % 3 == 1) {
			struct okv_op *op = okv_opq_next(&q);

			for (i = 0; op && m.ops[i].op != op; i++)
				;
			if (op)
				m.ops[i].is_started = true;
			for (i = 0; !op && i < m.nr; i++)
				assert_true(m.ops[i].is_started || !may_start(&m, i));
		} else if (m.nr) {
			/* Most that end have started; some are withdrawn before. */
			i = (uint32_t)(x >> 8) % m.nr;
			if (m.ops[i].is_started || (x >> 40) % 4 == 0)
				model_post(&m, &q, i, m.ops[i].is_doomed || (x >> 48) % 3 == 0);
		}
		compare(&m, &q);
		{
			uint64_t wanted = (x >> 16) % 16;
			struct okv_op *found = okv_opq_find(&q, wanted, NULL);

			for (i = 0; i < m.nr && m.ops[i].user_data != wanted; i++)
				;
			assert_ptr_equal(found, i < m.nr ? m.ops[i].op : NULL);
			if (found)
				assert_ptr_not_equal(okv_opq_find(&q, wanted, found), found);
		}
	}
	while (m.nr)
		model_post(&m, &q, m.nr - 1, true);
	compare(&m, &q);
	okv_opq_fini(&q);
}

/* Each broken invariant is seen by the walker. */
static void walker_sees_broken_tables(void **state)
{
	struct omnikv_sqe nop = { 0 }, drain = { .flags = OMNIKV_SQE_F_DRAIN }, link = { .flags = OMNIKV_SQE_F_LINK };
	struct okv_opq q;
	struct okv_op *a, *b, *c, *d;

	(void)state;
	assert_int_equal(okv_opq_init(&q, 8), 0);
	a = okv_opq_add(&q, &link, 5);
	b = okv_opq_add(&q, &nop, 3);
	c = okv_opq_add(&q, &drain, 9);
	d = okv_opq_add(&q, &nop, 9);
	assert_true(okv_opq_check(&q));
#define BROKEN(field, value) do { \
		__typeof__(field) kept = (field); \
		(field) = (value); \
		assert_false(okv_opq_check(&q)); \
		(field) = kept; \
		assert_true(okv_opq_check(&q)); \
	} while (0)
	BROKEN(a->state, OKV_OP_FREE);
	BROKEN(a->state, OKV_OP_HELD);
	BROKEN(a->link_next, OKV_OP_NONE);
	BROKEN(b->deadline, 100);
	BROKEN(c->state, OKV_OP_RUNNING);
	BROKEN(d->state, OKV_OP_RUNNING);
	BROKEN(q.nr_live, 3);
	BROKEN(q.nr_drains, 0);
	BROKEN(q.nr_used, 3);
	BROKEN(q.heap[0], 7);
#undef BROKEN
	okv_opq_fini(&q);
}

static void submission_queue_survives_the_wrap_of_its_counters(void **state)
{
	struct okv_sq sq;
	uint32_t i;

	(void)state;
	assert_int_equal(okv_sq_init(&sq, 3), -EINVAL);
	assert_int_equal(okv_sq_init(&sq, 0), -EINVAL);
	assert_int_equal(okv_sq_init(&sq, 4), 0);
	sq.filled = sq.taken = sq.seen_head = UINT32_MAX - 1;
	atomic_store(&sq.head, UINT32_MAX - 1);
	for (i = 0; i < 4; i++) {
		struct omnikv_sqe *sqe = okv_sq_get(&sq);

		assert_non_null(sqe);
		assert_int_equal(sqe->user_data, 0);
		sqe->user_data = i + 1;
	}
	assert_null(okv_sq_get(&sq));
	/* Handed over in two parts; the third is no plain no-op. */
	sq.sqes[0].opcode = OMNIKV_OP_BARRIER;
	assert_null(okv_sq_peek(&sq, UINT32_MAX - 1));
	okv_sq_publish(&sq, 3);
	assert_int_equal(atomic_load(&sq.tail), 1);
	for (i = 0; i < 3; i++) {
		const struct okv_sq_desc *desc = okv_sq_peek(&sq, UINT32_MAX - 1 + i);

		assert_non_null(desc);
		assert_int_equal(desc->user_data, i + 1);
		assert_int_equal(desc->is_nop, i != 2);
	}
	assert_null(okv_sq_peek(&sq, 1));
	okv_sq_publish(&sq, 1);
	assert_non_null(okv_sq_peek(&sq, 1));
	atomic_store(&sq.head, 0);
	for (i = 0; i < 2; i++) {
		/* Cleared though it was used before. */
		assert_int_equal(okv_sq_get(&sq)->user_data, 0);
	}
	assert_null(okv_sq_get(&sq));
	okv_sq_fini(&sq);
}

static void completions_are_promised_only_where_there_is_room(void **state)
{
	uint64_t promised = 0, seen = 0, filled = 0, random = 17, next = 0, expect = 0;
	struct okv_cq cq;
	uint32_t round;

	(void)state;
	assert_int_equal(okv_cq_init(&cq, 1), -EINVAL);
	assert_int_equal(okv_cq_init(&cq, 6), -EINVAL);
	assert_int_equal(okv_cq_init(&cq, 8), 0);
	assert_int_equal(okv_op_slots(OMNIKV_OP_LOAD), 2);
	assert_int_equal(okv_op_slots(OMNIKV_OP_STORE), 2);
	assert_int_equal(okv_op_slots(OMNIKV_OP_COPY), 2);
	assert_int_equal(okv_op_slots(OMNIKV_OP_NOP), 1);
	assert_int_equal(okv_op_slots(OMNIKV_OP_CANCEL), 1);
	for (round = 0; round < 100000; round++) {
		uint64_t x = fixture_random(&random);
		uint32_t nr = 1 + (x >> 8) % 2;
		struct omnikv_cqe *cqe;

		switch (x % 4) {
		case 0:
			/* promised: slots that are neither given back nor seen */
			assert_int_equal(okv_cq_reserve(&cq, nr), promised + nr <= 8);
			if (promised + nr <= 8)
				promised += nr;
			break;
		case 1:
			if (promised - filled) {
				okv_cq_fill(&cq, next++, -5, 1, 2);
				filled++;
				if (x >> 16 & 1)
					assert_true(okv_cq_show(&cq));
			}
			break;
		case 2:
			if (promised - filled) {
				okv_cq_spare(&cq);
				promised--;
			}
			break;
		default:
			okv_cq_show(&cq);
			assert_false(okv_cq_show(&cq));
			cqe = okv_cq_peek(&cq);
			assert_int_equal(!cqe, filled == 0);
			if (cqe) {
				assert_int_equal(cqe->user_data, expect++);
				assert_int_equal(cqe->res, -5);
				okv_cq_seen(&cq);
				filled--;
				promised--;
				seen++;
			}
			break;
		}
		assert_int_equal(okv_cq_pending(&cq), promised);
	}
	assert_true(seen > 1000);
	okv_cq_fini(&cq);
}

static void impossible_requests_are_told_apart(void **state)
{
	static struct omnikv_piece many[3];
	struct omnikv_piece good = { { 5, 1, 2 }, 100, 200, 1000 };
	struct omnikv_sqe sqe = { .opcode = OMNIKV_OP_LOAD, .nr_pieces = 1, .pieces = &good, .hbm = (void *)&good };
	uint8_t op;

	(void)state;
	assert_int_equal(okv_sqe_check(&sqe, 4096, 4096), 0);
	sqe.opcode = OMNIKV_OP_STORE;
	assert_int_equal(okv_sqe_check(&sqe, 4096, 4096), 0);
	assert_int_equal(okv_sqe_check(&sqe, 0, 4096), -EPERM);

#define BAD(field, value) do { \
		__typeof__(field) kept = (field); \
		(field) = (value); \
		assert_int_equal(okv_sqe_check(&sqe, 4096, 4096), -EINVAL); \
		(field) = kept; \
		assert_int_equal(okv_sqe_check(&sqe, 4096, 4096), 0); \
	} while (0)
	BAD(sqe.flags, 4);
	BAD(sqe.flags, 0x80);
	BAD(sqe.reserved, 1);
	BAD(sqe.opcode, OMNIKV_OP_NR);
	BAD(sqe.opcode, 255);
	BAD(sqe.hbm, NULL);
	BAD(sqe.pieces, NULL);
	BAD(sqe.nr_pieces, 0);
	BAD(sqe.nr_pieces, OMNIKV_PIECES_MAX + 1);
	BAD(good.bytes, 0);
	BAD(good.bytes, 3897);				/* 200 + 3897 = 4097 */
	BAD(good.device_off, 3097);
	BAD(good.device_off, UINT64_MAX - 999);		/* ends at 2^64 */
	BAD(good.device_off, UINT64_MAX);
	BAD(good.extent_off, 7193);			/* 7193 + 1000 = 2 x 4096 + 1 */
	BAD(good.extent_off, UINT64_MAX - 500);
	BAD(good.extent.nr_granules, 0);
#undef BAD
	/* Just inside. */
	good.device_off = 3096;
	good.extent_off = 7192;
	assert_int_equal(okv_sqe_check(&sqe, 4096, 4096), 0);
	/* An extent of more than 2^64 bytes cannot be. */
	good.extent.nr_granules = 1u << 31;
	assert_int_equal(okv_sqe_check(&sqe, UINT64_C(1) << 34, 4096), -EINVAL);

	/* Within one device a piece does not overlap itself. */
	sqe.opcode = OMNIKV_OP_COPY;
	good = (struct omnikv_piece) { .extent_off = 1000, .device_off = 2000, .bytes = 1000 };
	assert_int_equal(okv_sqe_check(&sqe, 0, 4096), 0);
	good.device_off = 1999;
	assert_int_equal(okv_sqe_check(&sqe, 0, 4096), -EINVAL);
	good.device_off = 0;
	assert_int_equal(okv_sqe_check(&sqe, 0, 4096), 0);
	good.device_off = 1;
	assert_int_equal(okv_sqe_check(&sqe, 0, 4096), -EINVAL);
	good = (struct omnikv_piece) { .extent_off = 4000, .device_off = 0, .bytes = 100 };
	assert_int_equal(okv_sqe_check(&sqe, 0, 4096), -EINVAL);

	/* The sum fits the result. */
	sqe.pieces = many;
	sqe.nr_pieces = 2;
	many[0] = many[1] = (struct omnikv_piece) { .extent_off = UINT64_C(1) << 62, .device_off = 0, .bytes = UINT64_C(1) << 62 };
	assert_int_equal(okv_sqe_check(&sqe, 0, UINT64_MAX), -EINVAL);
	many[1].bytes--;
	assert_int_equal(okv_sqe_check(&sqe, 0, UINT64_MAX), 0);

	for (op = 0; op < OMNIKV_OP_NR; op++) {
		struct omnikv_sqe bare = { .opcode = op };
		int ret = okv_sqe_check(&bare, 4096, 0);

		if (op == OMNIKV_OP_SPILL || op == OMNIKV_OP_FETCH || op == OMNIKV_OP_PULL)
			assert_int_equal(ret, -EOPNOTSUPP);
		else
			assert_int_equal(ret, okv_op_moves(op) ? -EINVAL : 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(order_and_deadlines_match_the_model),
		cmocka_unit_test(walker_sees_broken_tables),
		cmocka_unit_test(submission_queue_survives_the_wrap_of_its_counters),
		cmocka_unit_test(completions_are_promised_only_where_there_is_room),
		cmocka_unit_test(impossible_requests_are_told_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

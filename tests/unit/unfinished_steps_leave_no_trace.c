// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a step left half done is neither published nor loaded again: rows of a sequence that was
 * withdrawn, a state that the step wrote over, calls that are repeated after they failed.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "tests/harness/toy_engine.h"

#define T		16u
#define NR_LAYERS	4u

static struct omnikv_layout full, hybrid;

static struct omnikv_group group_of(enum omnikv_group_kind kind, uint32_t first, uint32_t step, uint32_t tokens_per_entry)
{
	struct omnikv_group g = { .kind = kind, .tokens_per_entry = tokens_per_entry, .residency = OMNIKV_RESIDENCY_RING };

	for (uint32_t l = first; l < NR_LAYERS; l += step) {
		g.layers[g.nr_layers] = (uint16_t)l;
		g.alias_of[g.nr_layers++] = -1;
	}
	return g;
}

static void plane_add(struct omnikv_group *g, enum omnikv_plane_role role, enum omnikv_dtype dtype, uint32_t elems)
{
	g->planes[g->nr_planes++] = (struct omnikv_plane){ .role = role, .dtype = dtype, .heads = 1, .elems = elems };
}

static int setup(void **state)
{
	(void)state;
	full = (struct omnikv_layout){ .name = "full", .nr_layers = NR_LAYERS, .block_tokens = T, .nr_groups = 1 };
	full.groups[0] = group_of(OMNIKV_GROUP_FULL, 0, 1, 1);
	plane_add(&full.groups[0], OMNIKV_PLANE_K, OMNIKV_DTYPE_BF16, 4);
	plane_add(&full.groups[0], OMNIKV_PLANE_V, OMNIKV_DTYPE_BF16, 4);

	hybrid = (struct omnikv_layout){ .name = "hybrid", .nr_layers = NR_LAYERS, .block_tokens = T, .nr_groups = 2 };
	hybrid.groups[0] = group_of(OMNIKV_GROUP_FULL, 1, 2, 1);
	plane_add(&hybrid.groups[0], OMNIKV_PLANE_K, OMNIKV_DTYPE_BF16, 4);
	plane_add(&hybrid.groups[0], OMNIKV_PLANE_V, OMNIKV_DTYPE_BF16, 4);
	hybrid.groups[0].atomic_with = 2;
	hybrid.groups[1] = group_of(OMNIKV_GROUP_RECURRENT, 0, 2, 0);
	hybrid.groups[1].reuse = OMNIKV_REUSE_EXACT;
	hybrid.groups[1].rollback = OMNIKV_ROLLBACK_SNAPSHOT;
	hybrid.groups[1].atomic_with = 1;
	plane_add(&hybrid.groups[1], OMNIKV_PLANE_STATE, OMNIKV_DTYPE_F32, 64);
	return 0;
}

static void open_engine(struct toy_engine *e, const struct omnikv_layout *layout)
{
	struct toy_config config = {
		.device = "sim", .layout = layout, .block_tokens = T, .pool_spec = "4M", .nr_slots = 2,
		.slot_tokens = 256, .layer_ns = 1000,
	};

	toy_engine_open(e, &config);
}

static int extend(struct toy_engine *e, struct toy_seq *s, uint64_t nr_tokens)
{
	s->hist_tokens = omnikv_seq_tokens(s->seq);
	s->new_tokens = nr_tokens;
	assert_int_equal(omnikv_seq_append(s->seq, nr_tokens), 0);
	return toy_step(e, s, 1, NULL);
}

static void withdraw(void *arg, struct omnikv_step *step, uint32_t layer)
{
	if (layer == 1)
		assert_int_equal(omnikv_seq_abort(step, arg), 0);
}

static void withdrawn_rows_are_not_committed(void **state)
{
	struct toy_engine e;
	struct toy_seq s[2];

	(void)state;
	open_engine(&e, &full);
	toy_seq_open(&e, &s[0], 1, 3 * T);
	toy_seq_open(&e, &s[1], 2, T);
	assert_int_equal(extend(&e, &s[0], T), 0);
	s[0].hist_tokens = T;
	s[0].new_tokens = 2 * T;
	s[1].new_tokens = T;
	assert_int_equal(omnikv_seq_append(s[0].seq, 2 * T), 0);
	assert_int_equal(omnikv_seq_append(s[1].seq, T), 0);
	/* Layers 2 and 3 of its new rows are never stored. */
	assert_int_equal(toy_step_hooked(&e, s, 2, NULL, withdraw, s[0].seq), 0);
	assert_int_equal(toy_seq_commit(&e, &s[0], false), -EIO);
	assert_int_equal(toy_seq_commit(&e, &s[1], false), 1);
	/* What was whole before can be kept, and computing the rest again makes all of it good. */
	assert_int_equal(toy_step(&e, s, 1, NULL), 0);
	assert_int_equal(toy_seq_commit(&e, &s[0], false), 3);
	omnikv_seq_close(s[0].seq);
	omnikv_seq_close(s[1].seq);

	toy_seq_open(&e, &s[0], 1, 3 * T);
	s[0].hist_tokens = omnikv_seq_tokens(s[0].seq);
	assert_int_equal(s[0].hist_tokens, 3 * T);
	assert_int_equal(toy_step(&e, s, 1, NULL), 0);
	assert_int_equal(s[0].wrong_bytes, 0);
	omnikv_seq_close(s[0].seq);
	toy_engine_close(&e);
}

/* The state at the end of the history is gone once the step has stored the next one in its place. */
static void a_state_that_was_written_over_is_not_loaded(void **state)
{
	struct toy_engine e;
	struct omnikv_piece piece;
	struct toy_seq s;

	(void)state;
	open_engine(&e, &hybrid);
	toy_seq_open(&e, &s, 3, T);
	assert_int_equal(extend(&e, &s, 4), 0);
	assert_int_equal(omnikv_seq_append(s.seq, 4), 0);
	assert_int_equal(omnikv_seq_pieces(s.seq, 1, 0, 0, 0, 4, 0, &piece, 1), 1);
	s.hist_tokens = s.new_tokens = 4;
	assert_int_equal(toy_step(&e, &s, 1, NULL), 0);
	assert_int_equal(s.wrong_bytes, 0);

	assert_int_equal(omnikv_seq_pieces(s.seq, 1, 0, 0, 0, 8, 0, &piece, 1), 1);
	assert_int_equal(omnikv_seq_pieces(s.seq, 1, 0, 0, 0, 4, 0, &piece, 1), -ENODATA);
	assert_int_equal(omnikv_seq_checkpoint(s.seq, 7), 0);
	/* The same step once more. */
	assert_int_equal(toy_step(&e, &s, 1, NULL), -ENODATA);
	assert_int_equal(s.wrong_bytes, 0);
	/* Nor does it come back when the sequence goes on in another block. */
	assert_int_equal(extend(&e, &s, 8), 0);
	assert_int_equal(omnikv_seq_append(s.seq, 4), 0);
	assert_int_equal(omnikv_seq_pieces(s.seq, 1, 0, 0, 0, 8, 0, &piece, 1), -ENODATA);
	assert_int_equal(omnikv_seq_checkpoint(s.seq, 15), 0);
	assert_int_equal(omnikv_seq_checkpoint(s.seq, 19), 16);
	/* Back to where it was. */
	assert_int_equal(omnikv_seq_truncate(s.seq, 4), 0);
	s.hist_tokens = 4;
	s.new_tokens = 0;
	assert_int_equal(toy_step(&e, &s, 1, NULL), -ENODATA);
	assert_int_equal(s.wrong_bytes, 0);
	omnikv_seq_close(s.seq);
	toy_engine_close(&e);
}

static void a_failed_step_is_not_retried_from_its_own_state(void **state)
{
	struct toy_engine e;
	struct toy_seq s;

	(void)state;
	open_engine(&e, &hybrid);
	toy_seq_open(&e, &s, 4, T);
	assert_int_equal(extend(&e, &s, 4), 0);
	assert_int_equal(omnikv_seq_append(s.seq, 4), 0);
	s.hist_tokens = s.new_tokens = 4;
	/* The load of layer 1 fails, and the step goes on: it stores the states of layers 0 and 2. */
	assert_int_equal(omnikv_device_fail_next(e.dev, 2, -EIO), 0);
	assert_int_equal(toy_step(&e, &s, 1, NULL), -EIO);
	s.wrong_bytes = 0;
	assert_int_equal(toy_step(&e, &s, 1, NULL), -ENODATA);
	assert_int_equal(s.wrong_bytes, 0);
	/* From the start it can be computed again. */
	s.hist_tokens = 0;
	s.new_tokens = 8;
	assert_int_equal(toy_step(&e, &s, 1, NULL), 0);
	assert_int_equal(extend(&e, &s, 8), 0);
	assert_int_equal(s.wrong_bytes, 0);
	assert_int_equal(toy_seq_commit(&e, &s, false), 1);
	omnikv_seq_close(s.seq);
	toy_engine_close(&e);
}

/* A step that ends before it has stored anything leaves the state where it was. */
static void a_step_that_stored_nothing_can_be_done_again(void **state)
{
	struct omnikv_step_seq ss = { .hist_tokens = 4, .new_tokens = 4 };
	struct omnikv_step *step;
	struct toy_engine e;
	struct toy_seq s;

	(void)state;
	open_engine(&e, &hybrid);
	toy_seq_open(&e, &s, 5, T);
	assert_int_equal(extend(&e, &s, 4), 0);
	assert_int_equal(omnikv_seq_append(s.seq, 4), 0);
	ss.seq = s.seq;
	assert_int_equal(omnikv_step_begin(e.pipe, &ss, 1, 0, &step), 0);
	assert_int_equal(omnikv_step_end(step, NULL), -ECANCELED);
	s.hist_tokens = s.new_tokens = 4;
	assert_int_equal(toy_step(&e, &s, 1, NULL), 0);
	assert_int_equal(s.wrong_bytes, 0);
	omnikv_seq_close(s.seq);
	toy_engine_close(&e);
}

static void releasing_again_after_a_failure_changes_nothing(void **state)
{
	struct omnikv_step_seq ss = { .new_tokens = 4 };
	struct omnikv_view view;
	struct omnikv_step *step;
	struct toy_engine e;
	struct toy_seq s;

	(void)state;
	open_engine(&e, &hybrid);
	toy_seq_open(&e, &s, 6, T);
	/* The state is that of 8 tokens: a step over the first 4 has no place for its own. */
	assert_int_equal(omnikv_seq_append(s.seq, 8), 0);
	ss.seq = s.seq;
	assert_int_equal(omnikv_step_begin(e.pipe, &ss, 1, 0, &step), 0);
	assert_int_equal(omnikv_layer_acquire(step, 0, e.stream, &view), 0);
	for (uint32_t i = 0; i < 1000; i++)
		assert_int_equal(omnikv_layer_release(step, 0, e.stream), -ENODATA);
	assert_int_equal(omnikv_step_end(step, NULL), -ENODATA);
	s.new_tokens = 8;
	assert_int_equal(toy_step(&e, &s, 1, NULL), 0);
	omnikv_seq_close(s.seq);
	toy_engine_close(&e);
}

/* A ring on another pool would take this pool's names for its own extents. */
static void a_ring_on_another_pool_is_refused(void **state)
{
	struct omnikv_pipe_config config = { .size = sizeof(config), .slot_tokens = 256 };
	struct omnikv_ring *ring, *without;
	struct omnikv_client *client;
	struct omnikv_error err = { "" };
	struct omnikv_pool *pool;
	struct omnikv_pipe *pipe;
	struct toy_engine e;

	(void)state;
	open_engine(&e, &full);
	assert_int_equal(omnikv_pool_open("4M", NULL, &pool, NULL), 0);
	assert_int_equal(omnikv_client_open(pool, 0, &client), 0);
	assert_int_equal(omnikv_ring_init(client, e.dev, NULL, &ring, NULL), 0);
	assert_int_equal(omnikv_ring_init(NULL, e.dev, NULL, &without, NULL), 0);
	assert_int_equal(omnikv_pipe_create(e.space, ring, e.hbm, &config, &pipe, &err), -EINVAL);
	assert_non_null(strstr(err.text, "pool"));
	assert_int_equal(omnikv_pipe_create(e.space, without, e.hbm, &config, &pipe, &err), -EINVAL);
	omnikv_ring_exit(without);
	omnikv_ring_exit(ring);
	omnikv_client_close(client);
	omnikv_pool_close(pool);
	toy_engine_close(&e);
}

/* A request that ends between the step and the reconciliation takes its drafts with it. */
static void drafts_of_a_closed_sequence_are_dropped(void **state)
{
	struct omnikv_pipe_config config = { .size = sizeof(config), .slot_tokens = 256, .draft_tokens = 8 };
	uint32_t counts[2] = { 2, 2 }, accepted[2] = { 9, 9 }, first[2] = { 0, 1 };
	struct omnikv_step_seq ss[2] = { 0 };
	struct omnikv_seq *reborn = NULL;
	struct omnikv_view view;
	struct omnikv_step *step;
	struct toy_seq s[2];
	struct toy_engine e;

	(void)state;
	open_engine(&e, &full);
	omnikv_pipe_destroy(e.pipe);
	assert_int_equal(omnikv_hbm_destroy(e.hbm), 0);
	assert_int_equal(omnikv_hbm_create(e.dev, omnikv_pipe_hbm_bytes(&e.plan, &config), &e.hbm), 0);
	assert_int_equal(omnikv_pipe_create(e.space, e.ring, e.hbm, &config, &e.pipe, NULL), 0);
	for (uint32_t i = 0; i < 2; i++) {
		toy_seq_open(&e, &s[i], 8 + i, T);
		assert_int_equal(omnikv_seq_append(s[i].seq, 4), 0);
		ss[i] = (struct omnikv_step_seq){ .seq = s[i].seq, .new_tokens = 4, .lane = OMNIKV_LANE_VERIFY };
	}
	assert_int_equal(omnikv_step_begin(e.pipe, ss, 2, 0, &step), 0);
	for (uint32_t l = 0; l < NR_LAYERS; l++) {
		assert_int_equal(omnikv_layer_acquire(step, l, e.stream, &view), 0);
		assert_int_equal(omnikv_layer_release(step, l, e.stream), 0);
	}
	assert_int_equal(omnikv_drafts_accept_on_device(step, counts, e.stream), 0);
	assert_int_equal(omnikv_step_end(step, NULL), 0);

	omnikv_seq_close(s[0].seq);
	assert_int_equal(omnikv_seq_open(e.space, NULL, 0, NULL, &reborn), 0);
	assert_int_equal(omnikv_drafts_commit(e.pipe, reborn, first, 2), -ENOENT);
	assert_int_equal(omnikv_drafts_reconcile(e.pipe, accepted), 0);
	assert_int_equal(accepted[0], 0);
	assert_int_equal(accepted[1], 2);
	assert_int_equal(omnikv_seq_tokens(reborn), 0);
	assert_int_equal(omnikv_seq_tokens(s[1].seq), 2);
	omnikv_seq_close(reborn);
	omnikv_seq_close(s[1].seq);
	toy_engine_close(&e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(withdrawn_rows_are_not_committed),
		cmocka_unit_test(a_state_that_was_written_over_is_not_loaded),
		cmocka_unit_test(a_failed_step_is_not_retried_from_its_own_state),
		cmocka_unit_test(a_step_that_stored_nothing_can_be_done_again),
		cmocka_unit_test(releasing_again_after_a_failure_changes_nothing),
		cmocka_unit_test(a_ring_on_another_pool_is_refused),
		cmocka_unit_test(drafts_of_a_closed_sequence_are_dropped),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}

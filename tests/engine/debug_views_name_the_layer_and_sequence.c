// SPDX-License-Identifier: GPL-2.0-only
/*
 * Kernels that do wrong under debug views: each fault is reported with layer and sequence and fails its
 * step; right kernels are not reported. And what else a view can be asked.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/harness/llm_engine.h"

#define NR_LAYERS 4u
#define NEW_TOKENS 32u

enum fault { NO_FAULT, BEYOND, STRIDE, HISTORY, NOT_WRITTEN, AFTER_RELEASE, GUARD };

static const struct llm_shape shape = { .dim = 16, .hidden = 16, .nr_layers = NR_LAYERS, .heads = 4, .kv_heads = 2,
					.head_dim = 4, .vocab = 32 };

/* A kernel that writes new rows, and what it does wrong in layer 1. */
struct kernel {
	struct omnikv_view	view;
	enum fault		fault;
	uint8_t			*old_rows;	/* of layer 0 */
};

static void write_rows(const struct kernel *k, uint32_t plane, uint32_t i)
{
	const struct omnikv_group_view *gv = &k->view.groups[0];
	uint64_t n = gv->planes[plane].row_bytes, row, nr = gv->cu_kv[i] + gv->nr_rows[i] - gv->new_row[i];
	uint8_t *rows = gv->planes[plane].rows;
	uint64_t stride = k->fault == STRIDE ? n + n / 2 : n;

	for (row = 0; row < nr; row++) {
		if (k->fault == NOT_WRITTEN && i == 1 && plane == 1 && row == 5)
			continue;
		memset(rows + gv->new_row[i] * n + row * stride, (int)(row % 16 + 1), n);
	}
	if (k->fault == BEYOND && i == k->view.nr_seqs - 1)
		memset(rows + (gv->cu_kv[i] + gv->nr_rows[i]) * n, 1, 1);
	if (k->fault == HISTORY && i == 1 && plane == 0)
		rows[gv->cu_kv[1] * n + 3] ^= 1;
}

static void kernel_run(void *arg)
{
	struct kernel *k = arg;

	for (uint32_t p = 0; p < 2; p++)
		for (uint32_t i = 0; i < k->view.nr_seqs; i++)
			write_rows(k, p, i);
	if (k->fault == GUARD)
		((uint8_t *)k->view.groups[0].planes[0].rows)[-1] = 1;
}

static void late_run(void *arg)
{
	struct kernel *k = arg;

	if (k->old_rows)
		k->old_rows[0] ^= 1;
}

/* A step of two sequences with @hist tokens of history each. Returns the step's result. */
static int step(struct llm_engine *e, struct omnikv_seq **seqs, uint64_t hist, enum fault fault)
{
	struct omnikv_step_seq ss[2];
	struct kernel kernels[NR_LAYERS];
	struct omnikv_step *step;
	uint32_t l, i;

	memset(ss, 0, sizeof(ss));
	memset(kernels, 0, sizeof(kernels));
	for (i = 0; i < 2; i++) {
		ss[i] = (struct omnikv_step_seq){ .seq = seqs[i], .hist_tokens = hist, .new_tokens = NEW_TOKENS };
		assert_int_equal(omnikv_seq_append(seqs[i], NEW_TOKENS), 0);
	}
	assert_int_equal(omnikv_step_begin(e->pipe, ss, 2, 0, &step), 0);
	for (l = 0; l < NR_LAYERS; l++) {
		assert_int_equal(omnikv_layer_acquire(step, l, e->stream, &kernels[l].view), 0);
		if (l == 1)
			kernels[l].fault = fault;
		assert_int_equal(omnikv_stream_launch(e->stream, 0, kernel_run, &kernels[l]), 0);
		if (l == 1 && fault == AFTER_RELEASE) {
			/* Long enough for layer 2's rows to be where layer 0's were. */
			kernels[l].old_rows = kernels[0].view.groups[0].planes[0].rows;
			assert_int_equal(omnikv_stream_launch(e->stream, 50000000, NULL, NULL), 0);
			assert_int_equal(omnikv_stream_launch(e->stream, 0, late_run, &kernels[1]), 0);
		}
		assert_int_equal(omnikv_layer_release(step, l, e->stream), 0);
	}
	return omnikv_step_end(step, NULL);
}

static void run(const char *device, enum fault fault, bool has_history, const char *report)
{
	struct llm_model model;
	struct llm_config config = {
		.device = device, .model = &model, .block_tokens = 16, .pool_spec = "4M", .nr_slots = 2, .slot_tokens = 160,
		.pipe_flags = OMNIKV_PIPE_F_DEBUG_VIEWS,
	};
	struct omnikv_seq *seqs[2];
	struct llm_engine e;
	uint64_t hist = 0;

	llm_model_random(&model, &shape, 5);
	llm_engine_open(&e, &config);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(omnikv_seq_open(e.space, NULL, 0, NULL, &seqs[i]), 0);
	if (has_history) {
		assert_int_equal(step(&e, seqs, 0, NO_FAULT), 0);
		assert_string_equal(omnikv_pipe_report(e.pipe), "");
		hist = NEW_TOKENS;
	}
	assert_int_equal(step(&e, seqs, hist, fault), report[0] ? -EUCLEAN : 0);
	assert_string_equal(omnikv_pipe_report(e.pipe), report);
	/* A good step afterwards is a good one. */
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(omnikv_seq_truncate(seqs[i], hist), 0);
	assert_int_equal(step(&e, seqs, hist, NO_FAULT), 0);
	for (uint32_t i = 0; i < 2; i++)
		omnikv_seq_close(seqs[i]);
	llm_engine_close(&e);
	llm_model_free(&model);
}

static void each_fault_is_reported_in_one_line(void **state)
{
	static const char *const devices[] = { "host", "sim" };

	(void)state;
	for (uint32_t d = 0; d < 2; d++) {
		run(devices[d], NO_FAULT, true, "");
		/* Behind two sequences of 32 + 32 rows. */
		run(devices[d], BEYOND, true,
		    "layer 1, behind the rows of sequence 1, group 0, plane 0, row 128 of the view: outside of all rows, and the kernel wrote it");
		run(devices[d], HISTORY, true, "layer 1, sequence 1, group 0, plane 0, row 0: history that the kernel wrote");
		run(devices[d], NOT_WRITTEN, true,
		    "layer 1, sequence 1, group 0, plane 1, row 37: a new row that the kernel did not write (wrong stride?)");
		run(devices[d], GUARD, true,
		    "layer 1, sequences 0 to 1, between the planes, byte 255 of the buffer: outside of all rows, and the kernel wrote it");
		/* Rows 1.5 rows apart run into the next sequence's history. */
		run(devices[d], STRIDE, true, "layer 1, sequence 1, group 0, plane 0, row 0: history that the kernel wrote");
	}
	run("sim", AFTER_RELEASE, true,
	    "layer 2, sequence 0, group 0, plane 0, row 0: written while it was not shown (after a release?)");
	run("sim", AFTER_RELEASE, false, "layer 2, sequence 0, group 0, plane 0, row 0: written after its release");
}

/* Lanes are views of their own, sequences are pages, and a kernel that takes a plane for another is told. */
static void a_view_tells_its_lanes_pages_and_shape(void **state)
{
	static const uint64_t lens[3] = { 20, 33, 5 };
	static const enum omnikv_lane lanes[3] = { OMNIKV_LANE_PREFILL, OMNIKV_LANE_DECODE, OMNIKV_LANE_DECODE };
	struct llm_model model;
	struct llm_config config = {
		.device = "sim", .model = &model, .block_tokens = 16, .pool_spec = "4M", .nr_slots = 2, .slot_tokens = 128,
		.page_rows = 16, .pipe_flags = OMNIKV_PIPE_F_DEBUG_VIEWS,
	};
	struct omnikv_step_seq ss[3];
	struct omnikv_view view, lane;
	struct omnikv_seq *seqs[3];
	struct omnikv_error err;
	struct omnikv_step *step;
	struct llm_engine e;
	uint32_t pages[8], i;

	(void)state;
	llm_model_random(&model, &shape, 5);
	llm_engine_open(&e, &config);
	memset(ss, 0, sizeof(ss));
	for (i = 0; i < 3; i++) {
		assert_int_equal(omnikv_seq_open(e.space, NULL, 0, NULL, &seqs[i]), 0);
		assert_int_equal(omnikv_seq_append(seqs[i], lens[i]), 0);
		ss[i] = (struct omnikv_step_seq){ .seq = seqs[i], .new_tokens = lens[i], .lane = lanes[i] };
	}
	assert_int_equal(omnikv_step_begin(e.pipe, ss, 3, 0, &step), 0);
	assert_int_equal(omnikv_layer_acquire(step, 0, e.stream, &view), 0);
	/* 20, 33 and 5 rows begin at multiples of 16. */
	assert_int_equal(view.groups[0].cu_kv[1], 32);
	assert_int_equal(view.groups[0].cu_kv[2], 80);
	assert_int_equal(view.groups[0].nr_rows[1], 33);
	assert_int_equal(omnikv_view_block_table(&view, 0, 1, pages, 8), 3);
	for (i = 0; i < 3; i++)
		assert_int_equal(pages[i], 2 + i);
	assert_int_equal(omnikv_view_block_table(&view, 0, 1, pages, 2), -ENOSPC);
	assert_int_equal(omnikv_view_block_table(&view, 1, 1, pages, 8), -EINVAL);
	assert_int_equal(omnikv_view_lane(&view, OMNIKV_LANE_VERIFY, &lane), 0);
	assert_int_equal(omnikv_view_lane(&view, OMNIKV_LANE_DECODE, &lane), 2);
	assert_int_equal(lane.first_seq, 1);
	assert_int_equal(lane.groups[0].nr_rows[0], 33);
	assert_int_equal(lane.groups[0].cu_kv[1], 80);
	assert_int_equal(omnikv_view_block_table(&lane, 0, 1, pages, 8), 1);
	assert_int_equal(pages[0], 5);
	assert_int_equal(omnikv_view_expect(&e.plan, &view, 0, 1, OMNIKV_DTYPE_F32, 2, 4, 32, &err), 0);
	assert_int_equal(omnikv_view_expect(&e.plan, &view, 0, 1, OMNIKV_DTYPE_F32, 2, 4, 64, &err), -EINVAL);
	assert_string_equal(err.text, "layer 0, group 0 of the view, plane 1: rows are 32 bytes apart, the kernel takes 64");
	assert_int_equal(omnikv_view_expect(&e.plan, &view, 0, 0, OMNIKV_DTYPE_F32, 4, 2, 32, &err), -EINVAL);
	assert_string_equal(err.text, "layer 0, group 0 of the view, plane 0: rows are [2][4], the kernel takes [4][2]");
	assert_int_equal(omnikv_view_expect(&e.plan, &view, 0, 0, OMNIKV_DTYPE_BF16, 2, 4, 32, &err), -EINVAL);
	assert_int_equal(omnikv_view_expect(&e.plan, &view, 0, 2, OMNIKV_DTYPE_F32, 2, 4, 32, &err), -EINVAL);
	assert_int_equal(omnikv_step_end(step, NULL), -ECANCELED);
	/* A lane in two places has no view. */
	ss[1].lane = OMNIKV_LANE_PREFILL;
	ss[0].lane = OMNIKV_LANE_DECODE;
	assert_int_equal(omnikv_step_begin(e.pipe, ss, 3, 0, &step), 0);
	assert_int_equal(omnikv_layer_acquire(step, 0, e.stream, &view), 0);
	assert_int_equal(omnikv_view_lane(&view, OMNIKV_LANE_DECODE, &lane), -EINVAL);
	assert_int_equal(omnikv_step_end(step, NULL), -ECANCELED);
	/* Padding counts: three sequences of 33 rows take 48 each. */
	for (i = 0; i < 3; i++) {
		assert_int_equal(omnikv_seq_append(seqs[i], 33), 0);
		ss[i].new_tokens = 33;
	}
	assert_int_equal(omnikv_step_begin(e.pipe, ss, 3, 0, &step), -ENOSPC);
	for (i = 0; i < 3; i++)
		omnikv_seq_close(seqs[i]);
	llm_engine_close(&e);
	llm_model_free(&model);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_fault_is_reported_in_one_line),
		cmocka_unit_test(a_view_tells_its_lanes_pages_and_shape),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

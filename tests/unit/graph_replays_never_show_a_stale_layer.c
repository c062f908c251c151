// SPDX-License-Identifier: GPL-2.0-only
/*
 * A thousand steps by replays of one captured graph, with loads that are late, that fail and that are aborted, and steps
 * that are never launched: each ends, and none that ends well has shown a kernel a byte that is not its own.
 *
 * Slots are fewer than layers, so what an earlier layer or step has left in a slot is what a replay that does not wait
 * would read.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "../harness/ring_fixture.h"
#include "../harness/toy_engine.h"

#define T		16
#define NR_LAYERS	5

static struct omnikv_layout layout;

static void layout_make(void)
{
	struct omnikv_group *g = &layout.groups[0];
	uint32_t l;

	memset(&layout, 0, sizeof(layout));
	strcpy(layout.name, "graph");
	layout.nr_layers = NR_LAYERS;
	layout.block_tokens = T;
	layout.nr_groups = 1;
	g->kind = OMNIKV_GROUP_FULL;
	g->tokens_per_entry = 1;
	g->residency = OMNIKV_RESIDENCY_RING;
	for (l = 0; l < 2; l++)
		g->planes[g->nr_planes++] = (struct omnikv_plane){
			.role = l ? OMNIKV_PLANE_V : OMNIKV_PLANE_K, .dtype = OMNIKV_DTYPE_BF16, .heads = 1, .elems = 4,
		};
	for (l = 0; l < NR_LAYERS; l++) {
		g->layers[g->nr_layers] = (uint16_t)l;
		g->alias_of[g->nr_layers++] = -1;
	}
}

struct launch {
	uint64_t		*seed;
	struct toy_seq		*seqs;
	uint32_t		nr;
	bool			is_launched;
	uint32_t		nr_aborted;
};

/* Between begin and launch: an abort now and then, and now and then nothing is launched at all. */
static bool at_launch(void *arg, struct omnikv_step *step)
{
	struct launch *l = arg;
	struct toy_seq *s = &l->seqs[fixture_random(l->seed) % l->nr];

	if (fixture_random(l->seed) % 8 == 0) {
		assert_int_equal(omnikv_seq_abort(step, s->seq), 0);
		/* Its loads and stores are queued; the pool keeps its memory until they are over. */
		omnikv_seq_close(s->seq);
		s->seq = NULL;
		l->nr_aborted++;
	}
	l->is_launched = fixture_random(l->seed) % 10 != 0;
	return l->is_launched;
}

static void thousand_replays(void **state)
{
	struct toy_config c = {
		.device = *state, .layout = &layout, .block_tokens = T, .pool_spec = "4M", .nr_slots = 2, .slot_tokens = 512,
		.layer_ns = 1000, .deadline_ns = 2000000000,
		.device_config = { .flags = OMNIKV_DEVICE_F_SHUFFLE | OMNIKV_DEVICE_F_POISON, .late_ns = 20000,
				   .fail_ppm = 20000, .seed = 11 },
	};
	bool is_cuda = !strcmp(*state, "cuda"), is_late;
	uint64_t seed = 4242, start_ns;
	uint32_t nr_ok = 0, nr_failed = 0, nr_cancelled = 0, nr_aborted = 0, nr_hits = 0, round, i;
	struct toy_engine e;
	struct toy_graph g;
	int ret;

	layout_make();
	toy_engine_open(&e, &c);
	toy_graph_open(&e, &g);
	for (round = 0; round < 1000; round++) {
		struct toy_seq s[3];
		struct launch l = { .seed = &seed, .seqs = s, .nr = 3 };

		for (i = 0; i < 3; i++) {
			uint64_t len = (1 + fixture_random(&seed) % 8) * T;

			toy_seq_open(&e, &s[i], 100 + 10 * i + fixture_random(&seed) % 5, len);
			s[i].hist_tokens = omnikv_seq_tokens(s[i].seq);
			nr_hits += s[i].hist_tokens > 0;
			/* A step has something to compute. */
			s[i].new_tokens = len - s[i].hist_tokens ? len - s[i].hist_tokens : 1;
			assert_int_equal(omnikv_seq_append(s[i].seq, s[i].new_tokens), 0);
		}
		if (is_cuda) {
			fixture_cuda_set("copy_us", fixture_random(&seed) % 4 ? 0 : (long)(fixture_random(&seed) % 300));
			fixture_cuda_set("fail_copy", fixture_random(&seed) % 10 ? 0 : 1 + (long)(fixture_random(&seed) % 20));
		}
		start_ns = fixture_now_ns();
		ret = toy_graph_step(&e, &g, s, 3, at_launch, &l, &is_late);
		/* Far from every deadline but the step's own. */
		assert_true(fixture_now_ns() - start_ns < FIXTURE_WAIT_NS);
		assert_false(is_late);
		if (!l.is_launched) {
			assert_true(ret < 0);
			nr_cancelled++;
		} else if (ret) {
			nr_failed++;
		} else {
			nr_ok++;
		}
		nr_aborted += l.nr_aborted;
		for (i = 0; i < 3; i++) {
			if (!s[i].seq)
				continue;
			if (!ret) {
				assert_int_equal(s[i].wrong_bytes, 0);
				assert_true(toy_seq_commit(&e, &s[i], false) >= 0);
			}
			omnikv_seq_close(s[i].seq);
		}
	}
	print_message("# %s: %u replays right, %u failed, %u never launched, %u sequences aborted, %u prefix hits\n",
		      (const char *)*state, nr_ok, nr_failed, nr_cancelled, nr_aborted, nr_hits);
	assert_true(nr_ok > 300 && nr_cancelled > 50 && nr_aborted > 50 && nr_hits > 500);
	assert_true(nr_failed > 20 || !strcmp(*state, "host"));
	if (is_cuda)
		fixture_cuda_set("fail_copy", 0);
	toy_graph_close(&e, &g);
	toy_engine_close(&e);
}

/* A copy that outlives its deadline poisons the wait: the replay goes on, and the step says so. */
static void a_load_over_its_deadline_ends_the_wait_and_fails_the_step(void **state)
{
	struct toy_config c = {
		.device = *state, .layout = &layout, .block_tokens = T, .pool_spec = "4M", .nr_slots = 2, .slot_tokens = 512,
		.layer_ns = 1000, .deadline_ns = 300000000,
		.device_config = { .flags = OMNIKV_DEVICE_F_POISON, .seed = 1 },
	};
	struct toy_engine e;
	struct toy_graph g;
	struct toy_seq s;
	bool is_late;
	int ret;

	layout_make();
	toy_engine_open(&e, &c);
	toy_graph_open(&e, &g);
	toy_seq_open(&e, &s, 7, 4 * T);
	s.new_tokens = 4 * T;
	assert_int_equal(omnikv_seq_append(s.seq, 4 * T), 0);
	assert_int_equal(toy_graph_step(&e, &g, &s, 1, NULL, NULL, &is_late), 0);
	assert_int_equal(toy_seq_commit(&e, &s, false), 4);
	omnikv_seq_close(s.seq);

	toy_seq_open(&e, &s, 7, 5 * T);
	s.hist_tokens = omnikv_seq_tokens(s.seq);
	assert_int_equal(s.hist_tokens, 4 * T);
	s.new_tokens = T;
	assert_int_equal(omnikv_seq_append(s.seq, T), 0);
	if (!strcmp(*state, "cuda"))
		fixture_cuda_set("copy_us", 400000);
	else
		assert_int_equal(omnikv_device_fail_next(e.dev, 1, -ETIME), 0);
	ret = toy_graph_step(&e, &g, &s, 1, NULL, NULL, &is_late);
	assert_int_equal(ret, -ETIME);
	assert_false(is_late);
	omnikv_seq_close(s.seq);

	/* The next one is whole again. */
	if (!strcmp(*state, "cuda"))
		fixture_cuda_set("copy_us", 0);
	toy_seq_open(&e, &s, 7, 5 * T);
	s.hist_tokens = 4 * T;
	s.new_tokens = T;
	assert_int_equal(omnikv_seq_append(s.seq, T), 0);
	assert_int_equal(toy_graph_step(&e, &g, &s, 1, NULL, NULL, &is_late), 0);
	assert_int_equal(s.wrong_bytes, 0);
	omnikv_seq_close(s.seq);
	toy_graph_close(&e, &g);
	toy_engine_close(&e);
}

static void what_a_graph_cannot_do_is_refused(void **state)
{
	struct toy_config c = {
		.device = *state, .layout = &layout, .block_tokens = T, .pool_spec = "4M", .nr_slots = 2, .slot_tokens = 128,
		.layer_ns = 1000,
	};
	struct omnikv_step_seq ss = { 0 };
	struct omnikv_step *step;
	struct omnikv_view view;
	struct toy_engine e;
	struct toy_graph g;
	struct toy_seq s;

	layout_make();
	toy_engine_open(&e, &c);
	toy_graph_open(&e, &g);
	assert_int_equal(omnikv_layer_capture(e.pipe, NR_LAYERS, g.graph, e.stream, &view), -EINVAL);
	assert_int_equal(omnikv_layer_captured(e.pipe, NR_LAYERS, g.graph, e.stream), -EINVAL);
	toy_seq_open(&e, &s, 1, 160);
	assert_int_equal(omnikv_seq_append(s.seq, 160), 0);
	ss.seq = s.seq;
	ss.new_tokens = 129;
	assert_int_equal(omnikv_step_begin(e.pipe, &ss, 1, OMNIKV_STEP_F_GRAPH, &step), -ENOSPC);
	ss.new_tokens = 64;
	assert_int_equal(omnikv_step_begin(e.pipe, &ss, 1, 0, &step), 0);
	assert_int_equal(omnikv_step_view(step, 0, &view), -EINVAL);
	assert_int_equal(omnikv_step_cancel(step), -EINVAL);
	assert_int_equal(omnikv_step_end(step, NULL), -ECANCELED);
	assert_int_equal(omnikv_step_begin(e.pipe, &ss, 1, OMNIKV_STEP_F_GRAPH, &step), 0);
	assert_int_equal(omnikv_layer_acquire(step, 0, e.stream, &view), -EINVAL);
	assert_int_equal(omnikv_layer_release(step, 0, e.stream), -EINVAL);
	assert_int_equal(omnikv_step_view(step, NR_LAYERS, &view), -EINVAL);
	assert_int_equal(omnikv_step_view(step, NR_LAYERS - 1, &view), 0);
	assert_int_equal(view.groups[0].nr_rows[0], 64);
	assert_int_equal(omnikv_step_cancel(step), 0);
	assert_int_equal(omnikv_step_end(step, NULL), -ECANCELED);
	omnikv_seq_close(s.seq);
	toy_graph_close(&e, &g);
	toy_engine_close(&e);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_EACH_DEVICE(thousand_replays),
		{ "a_load_over_its_deadline_ends_the_wait_and_fails_the_step_on_sim",
		  a_load_over_its_deadline_ends_the_wait_and_fails_the_step, NULL, NULL, (void *)"sim" },
		{ "a_load_over_its_deadline_ends_the_wait_and_fails_the_step_on_cuda",
		  a_load_over_its_deadline_ends_the_wait_and_fails_the_step, NULL, NULL, (void *)"cuda" },
		ON_EACH_DEVICE(what_a_graph_cannot_do_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

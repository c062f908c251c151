// SPDX-License-Identifier: GPL-2.0-only
/*
 * The layer pipeline under a toy engine that knows every byte: each case runs over both devices,
 * rings of one to three layer buffers, and layouts of every kind of group.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "tests/harness/toy_engine.h"

#define NR_LAYERS 6u
#define T 16u

static struct omnikv_group group_of(enum omnikv_group_kind kind, uint32_t first, uint32_t step,
				    uint32_t tokens_per_entry)
{
	struct omnikv_group g = { .kind = kind, .tokens_per_entry = tokens_per_entry,
				  .residency = OMNIKV_RESIDENCY_RING };
	uint32_t l;

	for (l = first; l < NR_LAYERS; l += step) {
		g.layers[g.nr_layers] = (uint16_t)l;
		g.alias_of[g.nr_layers++] = -1;
	}
	return g;
}

static void add_plane(struct omnikv_group *g, enum omnikv_plane_role role, enum omnikv_dtype dtype, uint32_t elems)
{
	g->planes[g->nr_planes++] = (struct omnikv_plane){ .role = role, .dtype = dtype, .heads = 1, .elems = elems };
}

enum { FULL, MLA_INDEX, FULL_SWA, ALIASES, COMPRESSED, HYBRID, NR_LAYOUTS };
static const char *const layout_names[] = { "full", "mla+index+draft", "full+swa", "aliases", "compressed", "hybrid" };
static struct omnikv_layout layouts[NR_LAYOUTS];

static void layouts_make(void)
{
	struct omnikv_layout *l;
	uint32_t i;

	memset(layouts, 0, sizeof(layouts));
	for (i = 0; i < NR_LAYOUTS; i++) {
		l = &layouts[i];
		snprintf(l->name, sizeof(l->name), "%s", layout_names[i]);
		l->nr_layers = NR_LAYERS;
		l->block_tokens = T;
		l->groups[0] = group_of(OMNIKV_GROUP_FULL, i == HYBRID, i == HYBRID || i == FULL_SWA ? 2 : 1, 1);
		l->nr_groups = 1;
		if (i != MLA_INDEX) {
			add_plane(&l->groups[0], OMNIKV_PLANE_K, OMNIKV_DTYPE_BF16, 4);
			add_plane(&l->groups[0], OMNIKV_PLANE_V, OMNIKV_DTYPE_BF16, 4);
		}
	}
	l = &layouts[MLA_INDEX];
	l->groups[0].kind = OMNIKV_GROUP_MLA_LATENT;
	add_plane(&l->groups[0], OMNIKV_PLANE_LATENT, OMNIKV_DTYPE_BF16, 18);
	l->groups[0].planes[0].is_replicated = true;
	l->groups[1] = group_of(OMNIKV_GROUP_INDEX, 0, 1, 1);
	add_plane(&l->groups[1], OMNIKV_PLANE_INDEX, OMNIKV_DTYPE_F8_E4M3, 12);
	l->groups[1].atomic_with = 1;
	l->groups[0].atomic_with = 2;
	/* A draft model's layer beside the target's last. */
	l->groups[2] = group_of(OMNIKV_GROUP_DRAFT, NR_LAYERS - 1, 1, 1);
	add_plane(&l->groups[2], OMNIKV_PLANE_K, OMNIKV_DTYPE_BF16, 4);
	add_plane(&l->groups[2], OMNIKV_PLANE_V, OMNIKV_DTYPE_BF16, 4);
	l->groups[2].atomic_with = 3;
	l->nr_groups = 3;

	l = &layouts[FULL_SWA];
	l->groups[1] = group_of(OMNIKV_GROUP_SWA, 1, 2, 1);
	l->groups[1].window = 32;
	add_plane(&l->groups[1], OMNIKV_PLANE_K, OMNIKV_DTYPE_BF16, 2);
	add_plane(&l->groups[1], OMNIKV_PLANE_V, OMNIKV_DTYPE_BF16, 2);
	l->nr_groups = 2;

	layouts[ALIASES].groups[0].alias_of[4] = 1;
	layouts[ALIASES].groups[0].alias_of[5] = 3;

	l = &layouts[COMPRESSED];
	l->groups[0].kind = OMNIKV_GROUP_COMPRESSED;
	l->groups[0].tokens_per_entry = 4;

	l = &layouts[HYBRID];
	l->groups[1] = group_of(OMNIKV_GROUP_RECURRENT, 0, 2, 0);
	l->groups[1].reuse = OMNIKV_REUSE_EXACT;
	l->groups[1].rollback = OMNIKV_ROLLBACK_SNAPSHOT;
	l->groups[1].atomic_with = 1u | 4u;
	add_plane(&l->groups[1], OMNIKV_PLANE_STATE, OMNIKV_DTYPE_F32, 64);
	l->groups[2] = group_of(OMNIKV_GROUP_CONV, 0, 2, 0);
	l->groups[2].reuse = OMNIKV_REUSE_EXACT;
	l->groups[2].rollback = OMNIKV_ROLLBACK_SNAPSHOT;
	l->groups[2].atomic_with = 1u | 2u;
	add_plane(&l->groups[2], OMNIKV_PLANE_CONV, OMNIKV_DTYPE_BF16, 24);
	l->groups[0].atomic_with = 2u | 4u;
	l->nr_groups = 3;
}

static struct toy_config config_of(const char *device, uint32_t layout, uint32_t nr_slots)
{
	return (struct toy_config){
		.device = device, .layout = &layouts[layout], .block_tokens = T, .pool_spec = "16M",
		.nr_slots = nr_slots, .slot_tokens = 1024, .layer_ns = 1000, .verify = true,
		.device_config = { .flags = OMNIKV_DEVICE_F_SHUFFLE | OMNIKV_DEVICE_F_POISON, .late_ns = 20000, .seed = 7 },
	};
}

static void over_everything(void (*one)(const struct toy_config *config))
{
	static const char *const devices[] = { "host", "sim", "cuda", "sim:kernels" };
	uint32_t d, l, r;

	layouts_make();
	for (d = 0; d < (okv_kernels_shim ? 4 : 3); d++) {
		for (l = 0; l < NR_LAYOUTS; l++) {
			/* The GPU's code on the CPU is slow: two layouts, once. */
			if (d == 3 && l != FULL && l != HYBRID)
				continue;
			for (r = d == 3 ? 2 : 1; r <= (d == 3 ? 2 : 3); r++) {
				struct toy_config config = config_of(devices[d], l, r);

				print_message("# %s, %s, %u slots\n", devices[d], layout_names[l], r);
				one(&config);
			}
		}
	}
}

/* Extend a sequence by @nr_tokens in one step. */
static int extend(struct toy_engine *e, struct toy_seq *s, uint64_t nr_tokens, struct omnikv_step_error *error)
{
	s->hist_tokens = omnikv_seq_tokens(s->seq);
	s->new_tokens = nr_tokens;
	assert_int_equal(omnikv_seq_append(s->seq, nr_tokens), 0);
	return toy_step(e, s, 1, error);
}

static void one_round_trip(const struct toy_config *config)
{
	struct toy_engine e;
	struct toy_seq a, b[3];
	uint32_t i;

	toy_engine_open(&e, config);
	/* Chunked prefill: the second chunk reads the first one back. */
	toy_seq_open(&e, &a, 11, 112);
	assert_int_equal(omnikv_seq_tokens(a.seq), 0);
	assert_int_equal(extend(&e, &a, 48, NULL), 0);
	assert_int_equal(extend(&e, &a, 64, NULL), 0);
	assert_int_equal(a.wrong_bytes, 0);
	assert_int_equal(toy_seq_commit(&e, &a, false), 7);
	omnikv_seq_close(a.seq);

	/* A batch: a whole hit with more behind it, a cold one, and a re-computation of a hit's last token. */
	toy_seq_open(&e, &b[0], 11, 112);
	assert_int_equal(omnikv_seq_tokens(b[0].seq), 112);
	b[0].hist_tokens = 112;
	b[0].new_tokens = 20;
	toy_seq_open(&e, &b[1], 12, 32);
	assert_int_equal(omnikv_seq_tokens(b[1].seq), 0);
	b[1].new_tokens = 32;
	toy_seq_open(&e, &b[2], 11, 112);
	b[2].hist_tokens = 112;
	b[2].lane = OMNIKV_LANE_DECODE;
	assert_int_equal(omnikv_seq_append(b[0].seq, 20), 0);
	assert_int_equal(omnikv_seq_append(b[1].seq, 32), 0);
	assert_int_equal(toy_step(&e, b, 3, NULL), 0);
	for (i = 0; i < 3; i++) {
		assert_int_equal(b[i].wrong_bytes, 0);
		assert_int_equal(toy_seq_commit(&e, &b[i], false), i < 2 ? (int)(i + 1) : 0);
		omnikv_seq_close(b[i].seq);
	}
	toy_engine_close(&e);
}

static void a_prefix_hit_reads_back_what_prefill_wrote(void **state)
{
	(void)state;
	over_everything(one_round_trip);
}

static void one_failed_load(const struct toy_config *config)
{
	struct toy_config c = *config;
	struct omnikv_step_error error = { 0 };
	struct toy_engine e;
	struct toy_seq a;

	if (strncmp(c.device, "sim", 3))
		return;
	toy_engine_open(&e, &c);
	toy_seq_open(&e, &a, 21, 96);
	assert_int_equal(extend(&e, &a, 96, NULL), 0);
	assert_int_equal(toy_seq_commit(&e, &a, false), 6);
	omnikv_seq_close(a.seq);

	toy_seq_open(&e, &a, 21, 96);
	a.hist_tokens = 96;
	assert_int_equal(omnikv_device_fail_next(e.dev, 1, -EIO), 0);
	assert_int_equal(toy_step(&e, &a, 1, &error), -EIO);
	assert_int_equal(error.seq_idx, 0);
	assert_true(error.first_lost_token < 96);
	/* The next step is untouched by it. */
	a.wrong_bytes = 0;
	assert_int_equal(toy_step(&e, &a, 1, &error), 0);
	assert_int_equal(a.wrong_bytes, 0);
	omnikv_seq_close(a.seq);
	toy_engine_close(&e);
}

static void a_failed_load_is_the_steps_result(void **state)
{
	(void)state;
	over_everything(one_failed_load);
}

static void one_flipped_byte(const struct toy_config *config)
{
	struct toy_config c = *config;
	struct omnikv_step_error error = { 0 };
	struct omnikv_piece piece[64];
	struct omnikv_pipe_stats stats = { .size = sizeof(stats) };
	struct toy_engine e;
	struct toy_seq a;
	uint8_t *at;
	int verify;

	for (verify = 0; verify < 2; verify++) {
		c.verify = verify;
		toy_engine_open(&e, &c);
		toy_seq_open(&e, &a, 31, 96);
		assert_int_equal(extend(&e, &a, 96, NULL), 0);
		assert_int_equal(toy_seq_commit(&e, &a, false), 6);
		/* Block 3, stored layer 1 of group 0. */
		assert_true(omnikv_seq_pieces(a.seq, 0, 1, 0, 48, 64, 0, piece, 64) >= 1);
		at = (uint8_t *)omnikv_pool_addr(e.pool, &piece[0].extent) + piece[0].extent_off + 5;
		*at ^= 0x40;
		a.hist_tokens = 96;
		a.new_tokens = 0;
		a.wrong_bytes = 0;
		assert_int_equal(toy_step(&e, &a, 1, &error), verify ? -EBADMSG : 0);
		/* An alias shows the same row a second time. */
		assert_int_equal(a.wrong_bytes, c.layout == &layouts[ALIASES] ? 2 : 1);
		assert_int_equal(omnikv_pipe_stats(e.pipe, &stats), 0);
		assert_int_equal(stats.checksum_errors, verify);
		if (verify)
			assert_int_equal(error.first_lost_token, 48);
		*at ^= 0x40;
		a.wrong_bytes = 0;
		assert_int_equal(toy_step(&e, &a, 1, &error), 0);
		assert_int_equal(a.wrong_bytes, 0);
		omnikv_seq_close(a.seq);
		toy_engine_close(&e);
	}
}

static void a_flipped_byte_fails_the_step_that_loads_it(void **state)
{
	(void)state;
	over_everything(one_flipped_byte);
}

struct abort_at {
	struct omnikv_seq	**seq;
	uint32_t		layer;
};

static void abort_hook(void *arg, struct omnikv_step *step, uint32_t layer)
{
	struct abort_at *at = arg;

	if (layer != at->layer)
		return;
	assert_int_equal(omnikv_seq_abort(step, *at->seq), 0);
	assert_int_equal(omnikv_seq_abort(step, *at->seq), -ENOENT);
	/* Its transfers may be under way: the pool keeps the memory until they are over. */
	omnikv_seq_close(*at->seq);
	/* On "cuda" kernels look at it from another thread. */
	__atomic_store_n(at->seq, NULL, __ATOMIC_RELEASE);
}

static void one_abort(const struct toy_config *config)
{
	uint32_t layer;

	for (layer = 0; layer < NR_LAYERS; layer++) {
		struct toy_engine e;
		struct toy_seq s[2], again;
		struct abort_at at = { .seq = &s[0].seq, .layer = layer };

		toy_engine_open(&e, config);
		toy_seq_open(&e, &s[0], 41, 64);
		toy_seq_open(&e, &s[1], 42, 64);
		s[0].new_tokens = s[1].new_tokens = 64;
		assert_int_equal(omnikv_seq_append(s[0].seq, 64), 0);
		assert_int_equal(omnikv_seq_append(s[1].seq, 64), 0);
		assert_int_equal(toy_step_hooked(&e, s, 2, NULL, abort_hook, &at), 0);
		assert_int_equal(toy_seq_commit(&e, &s[1], false), 4);
		omnikv_seq_close(s[1].seq);

		toy_seq_open(&e, &again, 41, 64);
		assert_int_equal(omnikv_seq_tokens(again.seq), 0);
		omnikv_seq_close(again.seq);
		toy_seq_open(&e, &again, 42, 64);
		again.hist_tokens = omnikv_seq_tokens(again.seq);
		assert_int_equal(again.hist_tokens, 64);
		assert_int_equal(toy_step(&e, &again, 1, NULL), 0);
		assert_int_equal(again.wrong_bytes, 0);
		omnikv_seq_close(again.seq);
		toy_engine_close(&e);
	}
}

static void aborting_one_sequence_leaves_the_others_right(void **state)
{
	(void)state;
	over_everything(one_abort);
}

static void a_step_too_large_is_refused_at_begin(void **state)
{
	struct toy_config c;
	struct toy_engine e;
	struct toy_seq s[2];
	struct omnikv_step_seq ss[65];
	struct omnikv_step *step, *second;

	(void)state;
	layouts_make();
	c = config_of("sim", FULL, 2);
	c.slot_tokens = 64;
	toy_engine_open(&e, &c);
	toy_seq_open(&e, &s[0], 51, 80);
	assert_int_equal(omnikv_seq_append(s[0].seq, 80), 0);
	memset(ss, 0, sizeof(ss));
	ss[0].seq = s[0].seq;
	ss[0].new_tokens = 65;
	assert_int_equal(omnikv_step_begin(e.pipe, ss, 1, 0, &step), -ENOSPC);
	ss[0].new_tokens = 81;
	assert_int_equal(omnikv_step_begin(e.pipe, ss, 1, 0, &step), -EINVAL);
	ss[0].hist_tokens = UINT64_MAX;
	assert_int_equal(omnikv_step_begin(e.pipe, ss, 1, 0, &step), -EINVAL);
	ss[0].hist_tokens = ss[0].new_tokens = 0;
	assert_int_equal(omnikv_step_begin(e.pipe, ss, 1, 0, &step), -EINVAL);
	ss[0].new_tokens = 1;
	assert_int_equal(omnikv_step_begin(e.pipe, ss, 0, 0, &step), -EINVAL);
	assert_int_equal(omnikv_step_begin(e.pipe, ss, 65, 0, &step), -ENOSPC);
	assert_int_equal(omnikv_step_begin(e.pipe, ss, 1, 4, &step), -EINVAL);
	ss[0].lane = (enum omnikv_lane)9;
	assert_int_equal(omnikv_step_begin(e.pipe, ss, 1, 0, &step), -EINVAL);
	ss[0].lane = OMNIKV_LANE_PREFILL;
	ss[1] = ss[0];
	assert_int_equal(omnikv_step_begin(e.pipe, ss, 2, 0, &step), -EINVAL);
	/* One step at a time; layers in order; an unfinished step is a failed one. */
	assert_int_equal(omnikv_step_begin(e.pipe, ss, 1, 0, &step), 0);
	assert_int_equal(omnikv_step_begin(e.pipe, ss, 1, 0, &second), -EAGAIN);
	assert_int_equal(omnikv_layer_release(step, 0, e.stream), -EINVAL);
	assert_int_equal(omnikv_step_end(step, NULL), -ECANCELED);
	assert_int_equal(omnikv_step_end(step, NULL), -EINVAL);
	omnikv_seq_close(s[0].seq);
	toy_engine_close(&e);
}

/* Peak HBM is what the pipe was given: R layers, whatever the depth of the model. */
static void hbm_holds_r_layers_whatever_the_depth(void **state)
{
	struct omnikv_pipe_config pc = { .size = sizeof(pc), .slot_tokens = 1024 };
	struct omnikv_device_info info = { .size = sizeof(info) };
	struct toy_config c;
	struct toy_engine e;
	struct toy_seq a;
	uint32_t r;

	(void)state;
	layouts_make();
	for (r = 1; r <= 3; r++) {
		c = config_of("sim", FULL, r);
		pc.nr_slots = r;
		toy_engine_open(&e, &c);
		/* 1024 rows x 8 bytes x 2 planes, by hand. */
		assert_int_equal(omnikv_pipe_hbm_bytes(&e.plan, &pc), r * 1024 * 8 * 2);
		toy_seq_open(&e, &a, 61, 1008);
		assert_int_equal(extend(&e, &a, 1008, NULL), 0);
		assert_int_equal(omnikv_device_info(e.dev, &info), 0);
		assert_int_equal(info.hbm_peak_bytes, r * 1024 * 8 * 2);
		omnikv_seq_close(a.seq);
		toy_engine_close(&e);
	}
}

/* With kernels longer than transfers only the first layer's load is exposed. On the device's clock, to the nanosecond. */
static void only_the_first_load_is_exposed_when_kernels_are_longer(void **state)
{
	struct omnikv_device_info before = { .size = sizeof(before) }, after = { .size = sizeof(after) };
	struct toy_config c;
	struct toy_engine e;
	struct toy_seq a;

	(void)state;
	layouts_make();
	c = config_of("sim", FULL, 2);
	/* 960 tokens x 16 bytes a layer at 1 byte/ns = 15360 ns, + 1000 ns a transfer. */
	c.device_config = (struct omnikv_device_config){ .h2d_bytes_s = 1e9, .d2h_bytes_s = 1e9, .transfer_ns = 1000 };
	c.layer_ns = 50000;
	toy_engine_open(&e, &c);
	toy_seq_open(&e, &a, 71, 960);
	assert_int_equal(extend(&e, &a, 960, NULL), 0);
	assert_int_equal(omnikv_device_info(e.dev, &before), 0);
	a.hist_tokens = 960;
	a.new_tokens = 0;
	assert_int_equal(toy_step(&e, &a, 1, NULL), 0);
	assert_int_equal(omnikv_device_info(e.dev, &after), 0);
	assert_int_equal(after.compute_ns - before.compute_ns, NR_LAYERS * 50000);
	assert_int_equal(after.stall_ns - before.stall_ns, 16360);
	assert_int_equal(after.clock_ns - before.clock_ns, NR_LAYERS * 50000 + 16360);
	omnikv_seq_close(a.seq);
	toy_engine_close(&e);
}

/* A step that loads only has nothing to wait for but its kernels. */
static void one_load_only_step(const struct toy_config *config)
{
	struct toy_engine e;
	struct toy_seq a, b;
	int i;

	toy_engine_open(&e, config);
	toy_seq_open(&e, &a, 81, 96);
	assert_int_equal(extend(&e, &a, 96, NULL), 0);
	assert_int_equal(toy_seq_commit(&e, &a, false), 6);
	for (i = 0; i < 3; i++) {
		a.hist_tokens = 96;
		a.new_tokens = 0;
		assert_int_equal(toy_step(&e, &a, 1, NULL), 0);
		assert_int_equal(a.wrong_bytes, 0);
		/* A different prompt next: its first loads and kernels use the same buffers. */
		toy_seq_open(&e, &b, 90 + (uint64_t)i, 48);
		assert_int_equal(extend(&e, &b, 48, NULL), 0);
		assert_int_equal(toy_seq_commit(&e, &b, false), 3);
		omnikv_seq_close(b.seq);
	}
	omnikv_seq_close(a.seq);
	toy_engine_close(&e);
}

static void a_step_that_stores_nothing_ends_with_its_kernels(void **state)
{
	(void)state;
	over_everything(one_load_only_step);
}

/* Chains of drafts of which some are accepted, at every place in an entry of several tokens; all groups follow. */
static void one_accepted(const struct toy_config *config)
{
	static const uint32_t chain[] = { 0, 1, 2, 3, 4, 5 };
	struct toy_config c = *config;
	struct toy_engine e;
	struct toy_seq s;
	uint32_t i;

	if (c.layout == &layouts[HYBRID] || c.layout == &layouts[ALIASES])
		return;
	c.draft_tokens = 6;
	toy_engine_open(&e, &c);
	toy_seq_open(&e, &s, 301, 0);
	assert_int_equal(extend(&e, &s, 18, NULL), 0);
	s.lane = OMNIKV_LANE_VERIFY;
	for (i = 0; i < 12; i++) {
		uint64_t hist = omnikv_seq_tokens(s.seq);

		assert_int_equal(extend(&e, &s, 6, NULL), 0);
		assert_int_equal(omnikv_drafts_commit(e.pipe, s.seq, chain, i % 7), 0);
		assert_int_equal(omnikv_seq_tokens(s.seq), hist + i % 7);
	}
	s.lane = OMNIKV_LANE_DECODE;
	s.hist_tokens = omnikv_seq_tokens(s.seq);
	s.new_tokens = 0;
	assert_int_equal(toy_step(&e, &s, 1, NULL), 0);
	assert_int_equal(s.wrong_bytes, 0);
	/* By hand: 18 and 0 + 1 + .. + 6 + 0 + .. + 4 = 49 tokens, three full blocks of 16. */
	assert_int_equal(toy_seq_commit(&e, &s, false), 3);
	omnikv_seq_close(s.seq);
	toy_seq_open(&e, &s, 301, 48);
	s.hist_tokens = 48;
	assert_int_equal(toy_step(&e, &s, 1, NULL), 0);
	assert_int_equal(s.wrong_bytes, 0);
	omnikv_seq_close(s.seq);
	toy_engine_close(&e);
}

static void accepted_drafts_are_stored_and_others_leave_no_trace(void **state)
{
	struct omnikv_pipe_config pc = { .size = sizeof(pc), .slot_tokens = 16, .draft_tokens = 2 };
	struct omnikv_pipe *pipe;
	struct omnikv_error err;
	struct toy_config c;
	struct toy_engine e;

	(void)state;
	over_everything(one_accepted);
	/* A layer that reads another one's rows would need them on the host. */
	c = config_of("sim", ALIASES, 2);
	toy_engine_open(&e, &c);
	assert_int_equal(omnikv_pipe_create(e.space, e.ring, e.hbm, &pc, &pipe, &err), -EOPNOTSUPP);
	pc.draft_tokens = 0;
	pc.page_rows = 3;
	assert_int_equal(omnikv_pipe_create(e.space, e.ring, e.hbm, &pc, &pipe, &err), -EINVAL);
	pc.page_rows = 0;
	pc.flags = 0x80;
	assert_int_equal(omnikv_pipe_create(e.space, e.ring, e.hbm, &pc, &pipe, &err), -EINVAL);
	toy_engine_close(&e);
}

/*
 * Prompts that end around the ends of blocks, behind prefixes that do too: every byte is right, guards included, and
 * what was cached is left as it was.
 */
static void tails_around_block_ends_are_byte_exact(void **state)
{
	static const uint64_t lens[] = { 1, 255, 256, 257, 511, 512, 513, 4096, 4097 };
	struct toy_config c;
	struct toy_engine e;
	uint64_t stream = 1000, nr = 0;
	uint32_t l, p, i;

	(void)state;
	layouts_make();
	setenv("OMNIKV_DEBUG", "views", 1);
	c = config_of("sim", FULL, 2);
	c.block_tokens = 256;
	c.slot_tokens = 4352;
	toy_engine_open(&e, &c);
	for (l = 0; l < sizeof(lens) / sizeof(lens[0]); l++) {
		const uint64_t prefixes[] = { 0, 16, 240, 256, 272, lens[l] - 1, lens[l] };

		for (p = 0; p < sizeof(prefixes) / sizeof(prefixes[0]); p++, stream++) {
			struct toy_seq s;

			if (prefixes[p] > lens[l])
				continue;
			nr++;
			toy_seq_open(&e, &s, stream, lens[l]);
			if (prefixes[p]) {
				assert_int_equal(extend(&e, &s, prefixes[p], NULL), 0);
				assert_true(toy_seq_commit(&e, &s, true) > 0);
			}
			omnikv_seq_close(s.seq);

			toy_seq_open(&e, &s, stream, prefixes[p]);
			assert_int_equal(omnikv_seq_tokens(s.seq), prefixes[p]);
			if (lens[l] > prefixes[p])
				assert_int_equal(extend(&e, &s, lens[l] - prefixes[p], NULL), 0);
			assert_int_equal(s.wrong_bytes, 0);
			assert_true(toy_seq_commit(&e, &s, true) >= 0);
			omnikv_seq_close(s.seq);

			/* Both are there, whole. */
			for (i = 0; i < 2; i++) {
				uint64_t n = i ? lens[l] : prefixes[p];

				toy_seq_open(&e, &s, stream, n);
				assert_int_equal(omnikv_seq_tokens(s.seq), n);
				s.hist_tokens = n;
				if (n)
					assert_int_equal(toy_step(&e, &s, 1, NULL), 0);
				assert_int_equal(s.wrong_bytes, 0);
				omnikv_seq_close(s.seq);
			}
			assert_string_equal(omnikv_pipe_report(e.pipe), "");
			assert_true(omnikv_manager_reset(e.manager) >= 0);
		}
	}
	/* By hand: 3 of length 1 (0, n - 1 and n), 5 of 255, 6 of 256 and of 257, 7 of each of the five others. */
	assert_int_equal(nr, 3 + 5 + 6 + 6 + 5 * 7);
	toy_engine_close(&e);
	unsetenv("OMNIKV_DEBUG");
}

/* Whoever asked for views by a word that is none found nothing in them. */
static void an_unknown_word_of_omnikv_debug_is_refused(void **state)
{
	static const char *const bad[] = { "view", "views2", "1", "views,all", "Views" };
	static const char *const good[] = { "", "views", "views,", "views,views" };
	struct omnikv_pipe_config pc = { .size = sizeof(pc), .slot_tokens = 64 };
	struct omnikv_pipe *pipe;
	struct omnikv_error err;
	struct toy_config c;
	struct toy_engine e;

	(void)state;
	layouts_make();
	c = config_of("sim", FULL, 2);
	toy_engine_open(&e, &c);
	omnikv_pipe_destroy(e.pipe);
	for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		setenv("OMNIKV_DEBUG", bad[i], 1);
		assert_int_equal(omnikv_pipe_create(e.space, e.ring, e.hbm, &pc, &pipe, &err), -EINVAL);
		assert_non_null(strstr(err.text, "is unknown; \"views\" is possible"));
	}
	for (uint32_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
		setenv("OMNIKV_DEBUG", good[i], 1);
		assert_int_equal(omnikv_pipe_create(e.space, e.ring, e.hbm, &pc, &pipe, &err), 0);
		omnikv_pipe_destroy(pipe);
	}
	unsetenv("OMNIKV_DEBUG");
	assert_int_equal(omnikv_pipe_create(e.space, e.ring, e.hbm, &pc, &e.pipe, &err), 0);
	toy_engine_close(&e);
}

/* Kernels that never run: the step ends with -ETIME, and nothing of it can be published. */
static void rows_of_a_step_that_never_ends_are_not_published(void **state)
{
	struct omnikv_event *never;
	struct omnikv_stream *other;
	struct omnikv_step_seq ss = { 0 };
	struct omnikv_step *step;
	struct omnikv_view view;
	struct toy_config c;
	struct toy_engine e;
	struct toy_seq a;
	uint32_t l;

	(void)state;
	layouts_make();
	c = config_of("sim", FULL, NR_LAYERS);
	toy_engine_open(&e, &c);
	assert_int_equal(omnikv_event_create(e.dev, &never), 0);
	assert_int_equal(omnikv_stream_create(e.dev, &other), 0);
	toy_seq_open(&e, &a, 87, 96);
	assert_int_equal(omnikv_seq_append(a.seq, 96), 0);
	ss.seq = a.seq;
	ss.new_tokens = 96;
	assert_int_equal(omnikv_stream_wait(e.stream, never), 0);
	assert_int_equal(omnikv_step_begin(e.pipe, &ss, 1, 0, &step), 0);
	for (l = 0; l < NR_LAYERS; l++) {
		assert_int_equal(omnikv_layer_acquire(step, l, e.stream, &view), 0);
		assert_int_equal(omnikv_stream_launch(e.stream, 1000, NULL, NULL), 0);
		assert_int_equal(omnikv_layer_release(step, l, e.stream), 0);
	}
	assert_int_equal(omnikv_step_end(step, NULL), -ETIME);
	assert_int_equal(toy_seq_commit(&e, &a, false), -EIO);
	omnikv_seq_close(a.seq);
	/* The pipe is busy until the kernels have run. */
	assert_int_equal(omnikv_stream_record(other, never), 0);
	assert_int_equal(omnikv_stream_sync(e.stream, 10ull * 1000 * 1000 * 1000), 0);
	omnikv_step_end(step, NULL);
	omnikv_stream_destroy(other);
	omnikv_event_destroy(never);
	toy_engine_close(&e);
}

/* A full ring refuses the step; what was filled for it does not come along with the next one. */
static void one_full_ring(const struct toy_config *config)
{
	struct omnikv_cqe *cqe;
	struct omnikv_sqe *sqe;
	struct toy_engine e;
	struct toy_seq a;
	uint32_t nr;

	toy_engine_open(&e, config);
	toy_seq_open(&e, &a, 85, 96);
	assert_int_equal(extend(&e, &a, 96, NULL), 0);
	assert_int_equal(toy_seq_commit(&e, &a, false), 6);
	a.hist_tokens = 96;
	a.new_tokens = 0;
	/* The toy engine's ring has 1024 completion slots. */
	for (nr = 0; nr < 1024; nr++) {
		while (!(sqe = omnikv_get_sqe(e.ring)))
			;
		omnikv_prep_nop(sqe);
		sqe->user_data = 1;
		assert_int_equal(omnikv_submit(e.ring), 1);
	}
	assert_true(toy_step(&e, &a, 1, NULL) < 0);
	while (nr) {
		assert_int_equal(omnikv_wait_cqe(e.ring, &cqe, 10ull * 1000 * 1000 * 1000), 0);
		nr -= cqe->user_data == 1;
		omnikv_cqe_seen(e.ring, cqe);
	}
	a.wrong_bytes = 0;
	assert_int_equal(toy_step(&e, &a, 1, NULL), 0);
	assert_int_equal(a.wrong_bytes, 0);
	/* Each operation of the step has ended with it. */
	assert_int_equal(omnikv_peek_cqe(e.ring, &cqe), -EAGAIN);
	omnikv_seq_close(a.seq);
	toy_engine_close(&e);
}

static void a_full_ring_refuses_the_step_and_forgets_it(void **state)
{
	(void)state;
	over_everything(one_full_ring);
}

/* Random prompts over a few streams, chunked at random, in batches, with failing transfers: never a wrong byte. */
static void one_random_run(const struct toy_config *config)
{
	struct toy_config c = *config;
	struct toy_engine e;
	uint64_t seed = 12345, ok = 0, failed = 0;
	int round;

	c.verify = false;
	c.pool_spec = "1M";
	c.device_config.fail_ppm = 20000;
	toy_engine_open(&e, &c);
	for (round = 0; round < 60; round++) {
		struct toy_seq s[3];
		uint32_t n = 0, i;
		int ret;

		for (i = 0; i < 3; i++) {
			uint64_t len, hist;

			seed = seed * 6364136223846793005ull + 1442695040888963407ull;
			len = (1 + (seed >> 33) % 18) * T;
			toy_seq_open(&e, &s[n], 100 + (seed >> 50) % 5, len);
			hist = omnikv_seq_tokens(s[n].seq);
			s[n].hist_tokens = hist;
			s[n].new_tokens = len - hist;
			if (omnikv_seq_append(s[n].seq, len - hist)) {
				omnikv_seq_close(s[n].seq);
				continue;
			}
			n++;
		}
		if (n == 0)
			continue;
		ret = toy_step(&e, s, n, NULL);
		if (ret == 0)
			ok++;
		else
			failed++;
		for (i = 0; i < n; i++) {
			if (ret == 0) {
				assert_int_equal(s[i].wrong_bytes, 0);
				assert_true(toy_seq_commit(&e, &s[i], false) >= 0);
			}
			omnikv_seq_close(s[i].seq);
		}
	}
	assert_true(ok > 0);
	if (!strncmp(c.device, "sim", 3))
		assert_true(failed > 0);
	toy_engine_close(&e);
}

static void random_batches_never_show_a_wrong_byte(void **state)
{
	(void)state;
	over_everything(one_random_run);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_prefix_hit_reads_back_what_prefill_wrote),
		cmocka_unit_test(a_failed_load_is_the_steps_result),
		cmocka_unit_test(a_flipped_byte_fails_the_step_that_loads_it),
		cmocka_unit_test(aborting_one_sequence_leaves_the_others_right),
		cmocka_unit_test(a_step_too_large_is_refused_at_begin),
		cmocka_unit_test(hbm_holds_r_layers_whatever_the_depth),
		cmocka_unit_test(only_the_first_load_is_exposed_when_kernels_are_longer),
		cmocka_unit_test(a_step_that_stores_nothing_ends_with_its_kernels),
		cmocka_unit_test(accepted_drafts_are_stored_and_others_leave_no_trace),
		cmocka_unit_test(tails_around_block_ends_are_byte_exact),
		cmocka_unit_test(a_full_ring_refuses_the_step_and_forgets_it),
		cmocka_unit_test(an_unknown_word_of_omnikv_debug_is_refused),
		cmocka_unit_test(rows_of_a_step_that_never_ends_are_not_published),
		cmocka_unit_test(random_batches_never_show_a_wrong_byte),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

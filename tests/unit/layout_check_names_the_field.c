// SPDX-License-Identifier: GPL-2.0-only
/*
 * A layout made by hand in C is checked field by field: the message names the field, its value and
 * what is allowed. Sizes of layouts that were not checked saturate and never run past their arrays.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <omnikv/layout.h>

static struct omnikv_layout layout;
static struct omnikv_group *g0 = &layout.groups[0], *g1 = &layout.groups[1];

/* The layout is wrong as said; then it is the preset again. */
static void refuse(const char *text)
{
	struct omnikv_error err = { "" };

	assert_int_equal(omnikv_layout_check(&layout, &err), -EINVAL);
	if (strncmp(err.text, text, strlen(text)) != 0)
		fail_msg("'%s' does not begin with '%s'", err.text, text);
	assert_int_equal(omnikv_layout_check(&layout, NULL), -EINVAL);
	assert_int_equal(omnikv_layout_preset("gpt-oss-20b", &layout, NULL), 0);
	assert_int_equal(omnikv_layout_check(&layout, &err), 0);
}

static int setup(void **state)
{
	(void)state;
	return omnikv_layout_preset("gpt-oss-20b", &layout, NULL);
}

static void test_ranges(void **state)
{
	struct omnikv_error err = { "" };

	(void)state;
	assert_int_equal(omnikv_layout_check(NULL, &err), -EINVAL);
	memset(layout.name, 'a', sizeof(layout.name));
	refuse("name: 64 characters; allowed: 1 to 63");
	strcpy(layout.name, "a\nb");
	refuse("name: byte 0x0a at 1 is not allowed");
	layout.nr_layers = 0;
	refuse("nr_layers: 0 is not allowed; allowed: 1 to 1024");
	layout.nr_layers = UINT32_MAX;
	refuse("nr_layers: 4294967295 is not allowed");
	layout.layer_params = NAN;
	refuse("layer_params: nan is not allowed");
	layout.layer_params = INFINITY;
	refuse("layer_params: inf is not allowed");
	layout.nr_groups = 0;
	refuse("groups: 0 entries; allowed: 1 to 8");
	layout.nr_groups = 9;
	refuse("groups: 9 entries; allowed: 1 to 8");
	g1->kind = (enum omnikv_group_kind)8;
	refuse("groups[1].kind: 8 is not allowed; allowed: full, ");
	g0->reuse = (enum omnikv_reuse)3;
	refuse("groups[0].reuse: 3 is not allowed; allowed: prefix, exact, none");
	g0->rollback = (enum omnikv_rollback)3;
	refuse("groups[0].rollback: 3 is");
	g0->residency = (enum omnikv_residency)4;
	refuse("groups[0].residency: 4 is");
	g0->codec = (enum omnikv_codec)1;
	refuse("groups[0].codec: 1 is not allowed; allowed: none");
	g0->error_bound = NAN;
	refuse("groups[0].error_bound: nan is");
	g0->error_bound = -0.5;
	refuse("groups[0].error_bound: -0.5 is");
	g0->error_bound = 0.5;
	refuse("groups[0].error_bound: 0.5 with codec none; allowed: 0 (exact)");
	g0->nr_planes = 0;
	refuse("groups[0].planes: 0 entries; allowed: 1 to 8");
	g0->nr_planes = 9;
	refuse("groups[0].planes: 9 entries; allowed: 1 to 8");
	g1->planes[1].dtype = (enum omnikv_dtype)6;
	refuse("groups[1].planes[1].dtype: 6 is not allowed; allowed: f32, ");
	g1->planes[1].heads = 65537;
	refuse("groups[1].planes[1].heads: 65537 is not allowed; allowed: 1 to 65536");
	memset(&g1->planes[1].is_replicated, 2, 1);
	refuse("groups[1].planes[1].is_replicated: 2 is not allowed; allowed: true or false");
	g1->planes[1].is_replicated = true;
	refuse("groups[1].planes[1].shard_axis: heads with is_replicated true; allowed: none");
}

static void test_layers(void **state)
{
	(void)state;
	g0->nr_layers = 0;
	refuse("groups[0].layers: 0 entries; allowed: 1 to 24 (nr_layers)");
	g0->nr_layers = 25;
	refuse("groups[0].layers: 25 entries");
	g0->layers[11] = 24;
	refuse("groups[0].layers[11]: 24; allowed: less than nr_layers 24");
	g0->layers[5] = g0->layers[4];
	refuse("groups[0].layers[5]: 9 follows 9; allowed: ascending");
	g0->alias_of[3] = -2;
	refuse("groups[0].alias_of[3]: -2 for layer 7; allowed: -1 or an earlier");
	g0->alias_of[3] = 7;
	refuse("groups[0].alias_of[3]: 7 for layer 7");
	g0->alias_of[3] = 9;
	refuse("groups[0].alias_of[3]: 9 for layer 7");
	g0->alias_of[3] = 4;	/* in the other group */
	refuse("groups[0].alias_of[3]: 4 for layer 7");
	g0->alias_of[2] = 3;	/* chained */
	g0->alias_of[3] = 5;
	refuse("groups[0].alias_of[3]: 5 for layer 7");
}

static void test_kinds(void **state)
{
	(void)state;
	g0->tokens_per_entry = 0;
	refuse("groups[0].tokens_per_entry: 0 with kind full; allowed: 1 or more");
	g0->kind = OMNIKV_GROUP_RECURRENT;
	refuse("groups[0].tokens_per_entry: 1 with kind recurrent; allowed: 0");
	g0->kind = OMNIKV_GROUP_CONV;
	g0->tokens_per_entry = 0;
	refuse("groups[0].reuse: prefix with kind conv; allowed: exact, none");
	g0->kind = OMNIKV_GROUP_CONV;
	g0->tokens_per_entry = 0;
	g0->reuse = OMNIKV_REUSE_EXACT;
	refuse("groups[0].rollback: truncate with kind conv; allowed: snapshot, recompute");
	g0->window = 5;
	refuse("groups[0].window: 5 with kind full; allowed: 0");
	g1->window = 0;
	refuse("groups[1].window: 0 with kind swa; allowed: 1 or more");
	g0->sinks = 4;
	refuse("groups[0].sinks: 4 with kind full; allowed: 0");
	g0->atomic_with = 1;
	refuse("groups[0].atomic_with: group 0; allowed: other groups");
	g0->atomic_with = 1u << 31;
	refuse("groups[0].atomic_with: group 31; allowed: less than 2 groups");
	g0->atomic_with = 4;
	refuse("groups[0].atomic_with: group 2; allowed: less than 2 groups");
}

static void test_sizes_saturate(void **state)
{
	(void)state;
	g0->nr_planes = UINT32_MAX;
	g0->nr_layers = UINT32_MAX;
	for (uint32_t p = 0; p < OMNIKV_PLANES_MAX; p++)
		g0->planes[p] = (struct omnikv_plane){ .dtype = OMNIKV_DTYPE_F32, .heads = UINT32_MAX, .elems = UINT32_MAX };
	assert_true(omnikv_group_entry_bytes(g0) == UINT64_MAX);
	assert_int_equal(omnikv_group_piece_idx(g0, 1), -ENOENT);
	assert_in_range(omnikv_group_stored_layers(g0), 0, OMNIKV_LAYERS_MAX);
	layout.nr_groups = UINT32_MAX;
	assert_true(omnikv_layout_token_bytes(&layout) > 0);
	g0->tokens_per_entry = 0;
	assert_true(omnikv_layout_sequence_bytes(&layout) == UINT64_MAX);
	/* 2^63 twice: the sum, not a product, overflows. */
	g0->nr_planes = 2;
	for (uint32_t p = 0; p < 2; p++)
		g0->planes[p] = (struct omnikv_plane){ .dtype = OMNIKV_DTYPE_U8, .heads = 1u << 31, .elems = UINT32_MAX };
	g0->nr_planes = 3;
	g0->planes[2] = g0->planes[0];
	assert_true(omnikv_group_entry_bytes(g0) == UINT64_MAX);
}

static void test_aliases_share_pieces(void **state)
{
	(void)state;
	/* Layers 1, 3, ..., 23; 7 and 9 read 5's, 23 reads 21's: 9 pieces */
	assert_int_equal(setup(state), 0);
	g0->alias_of[3] = 5;
	g0->alias_of[4] = 5;
	g0->alias_of[11] = 21;
	assert_int_equal(omnikv_layout_check(&layout, NULL), 0);
	assert_int_equal(omnikv_group_stored_layers(g0), 9);
	assert_int_equal(omnikv_group_piece_idx(g0, 1), 0);
	assert_int_equal(omnikv_group_piece_idx(g0, 5), 2);
	assert_int_equal(omnikv_group_piece_idx(g0, 7), 2);
	assert_int_equal(omnikv_group_piece_idx(g0, 9), 2);
	assert_int_equal(omnikv_group_piece_idx(g0, 11), 3);
	assert_int_equal(omnikv_group_piece_idx(g0, 21), 8);
	assert_int_equal(omnikv_group_piece_idx(g0, 23), 8);
	assert_int_equal(omnikv_group_piece_idx(g0, 0), -ENOENT);
	assert_int_equal(omnikv_group_piece_idx(g0, 24), -ENOENT);
	assert_int_equal(omnikv_group_piece_idx(g0, 1u << 31), -ENOENT);
	/* (9 + 12) x 2048 */
	assert_true(omnikv_layout_token_bytes(&layout) == 43008);
}

static void test_names(void **state)
{
	(void)state;
	assert_string_equal(omnikv_group_kind_name(OMNIKV_GROUP_FULL), "full");
	assert_string_equal(omnikv_group_kind_name(OMNIKV_GROUP_DRAFT), "draft");
	assert_string_equal(omnikv_group_kind_name((enum omnikv_group_kind)99), "?");
	assert_string_equal(omnikv_plane_role_name(OMNIKV_PLANE_KV), "kv");
	assert_string_equal(omnikv_dtype_name(OMNIKV_DTYPE_F8_E5M2), "f8_e5m2");
	assert_string_equal(omnikv_shard_axis_name(OMNIKV_SHARD_ELEMS), "elems");
	assert_string_equal(omnikv_reuse_name(OMNIKV_REUSE_EXACT), "exact");
	assert_string_equal(omnikv_rollback_name(OMNIKV_ROLLBACK_SNAPSHOT), "snapshot");
	assert_string_equal(omnikv_residency_name(OMNIKV_RESIDENCY_HBM), "hbm");
	assert_string_equal(omnikv_codec_name(OMNIKV_CODEC_NONE), "none");
	assert_string_equal(omnikv_codec_name((enum omnikv_codec)1), "?");
	assert_int_equal(omnikv_dtype_bytes(OMNIKV_DTYPE_F32), 4);
	assert_int_equal(omnikv_dtype_bytes(OMNIKV_DTYPE_BF16), 2);
	assert_int_equal(omnikv_dtype_bytes(OMNIKV_DTYPE_F16), 2);
	assert_int_equal(omnikv_dtype_bytes(OMNIKV_DTYPE_F8_E4M3), 1);
	assert_int_equal(omnikv_dtype_bytes(OMNIKV_DTYPE_F8_E5M2), 1);
	assert_int_equal(omnikv_dtype_bytes(OMNIKV_DTYPE_U8), 1);
	assert_int_equal(omnikv_dtype_bytes((enum omnikv_dtype)6), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_ranges),
		cmocka_unit_test(test_layers),
		cmocka_unit_test(test_kinds),
		cmocka_unit_test(test_sizes_saturate),
		cmocka_unit_test(test_aliases_share_pieces),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Presets have the sizes that their models publish, and the planner cuts each into blocks that
 * waste at most 5 %. All figures are worked out by hand from the models' configurations.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <omnikv/layout.h>

#define NR(array) (sizeof(array) / sizeof((array)[0]))

/*
 * @token_bytes: 2 (K, V) x heads x head_dim x 2 B x layers, or the sum of the planes x layers
 * @piece:       of group 0 at @tokens, rounded up to 128
 */
static const struct {
	const char	*name;
	uint32_t	layers, groups, q_heads, head_dim;
	double		layer_params;
	double		token_bytes;
	uint64_t	sequence_bytes;
	uint32_t	tokens;		/* the planner's T */
	uint32_t	granule;
	uint64_t	piece;
	uint64_t	block;		/* as allocated */
	uint64_t	checkpoint;
} expect[] = {
	/* 2 x 8 x 128 x 2 = 4096 a layer; 16 x 4096 = 64 KiB a piece, 2 MiB a block */
	{ "llama-3-8b", 32, 1, 32, 128, 218.1e6, 131072, 0, 16, 65536, 65536, 2097152, 0 },
	{ "llama-3-70b", 80, 1, 64, 128, 855.6e6, 327680, 0, 16, 65536, 65536, 5242880, 0 },
	{ "qwen3-32b", 64, 1, 64, 128, 487.6e6, 262144, 0, 16, 65536, 65536, 4194304, 0 },
	/* 2 x 8 x 64 x 2 = 2048 a layer, 24 layers; 12 pieces of 32 KiB in each group */
	{ "gpt-oss-20b", 24, 2, 64, 64, 126e6, 49152, 0, 16, 32768, 32768, 786432, 0 },
	/* (512 + 64) x 2 = 1152 a layer; 61 x 18432 = 1124352 = 68.6 x 16 KiB: 69 granules */
	{ "deepseek-v3", 61, 1, 128, 192, 585e6, 70272, 0, 16, 16384, 18432, 1130496, 0 },
	/*
	 * 656 + 132 = 788 a layer; latent 61 x 10496 = 640256 = 156.3 granules: 157; index 16 x 132 = 2112, padded
	 * to 2176, x 61 = 132736 = 32.4: 33; 190 granules
	 */
	{ "deepseek-v3.2", 61, 2, 128, 192, 585e6, 48068, 0, 16, 4096, 10496, 778240, 0 },
	/*
	 * 2 x 2 x 256 x 2 = 2048 on 12 layers; 36 x 2 MiB + 36 x 48 KiB of state, the latter 1728 KiB = 54 x 32 KiB
	 */
	{ "qwen3-next-80b-a3b", 48, 3, 16, 256, 62e6, 24576, 77266944, 16, 32768, 32768, 393216, 77266944 },
	/* 2 x 1 x 2 x 2 = 8 a layer, 512 of them a 4-KiB piece */
	{ "tiny", 4, 1, 1, 2, 0, 32, 0, 512, 4096, 4096, 16384, 0 },
};

static struct omnikv_layout layout;
static struct omnikv_plan plan;

static void test_names(void **state)
{
	const char *const *names = omnikv_layout_presets();
	struct omnikv_error err;
	size_t n;

	(void)state;
	for (n = 0; names[n]; n++)
		assert_string_equal(names[n], expect[n].name);
	assert_int_equal(n, NR(expect));

	memset(&layout, 0x5a, sizeof(layout));
	assert_int_equal(omnikv_layout_preset("llama-4", &layout, &err), -ENOENT);
	assert_non_null(strstr(err.text, "llama-4"));
	for (n = 0; names[n]; n++)
		assert_non_null(strstr(err.text, names[n]));
	assert_int_equal(((uint8_t *)&layout)[0], 0x5a);
	assert_int_equal(omnikv_layout_preset(NULL, &layout, NULL), -ENOENT);
}

static void test_sizes(void **state)
{
	(void)state;
	for (size_t i = 0; i < NR(expect); i++) {
		struct omnikv_error err = { "" };

		print_message("# %s\n", expect[i].name);
		assert_int_equal(omnikv_layout_preset(expect[i].name, &layout, NULL), 0);
		if (omnikv_layout_check(&layout, &err))
			fail_msg("%s", err.text);
		assert_string_equal(layout.name, expect[i].name);
		assert_int_equal(layout.nr_layers, expect[i].layers);
		assert_int_equal(layout.nr_groups, expect[i].groups);
		assert_int_equal(layout.q_heads, expect[i].q_heads);
		assert_int_equal(layout.head_dim, expect[i].head_dim);
		assert_true(layout.layer_params == expect[i].layer_params);
		assert_true(omnikv_layout_token_bytes(&layout) == expect[i].token_bytes);
		assert_int_equal(omnikv_layout_sequence_bytes(&layout), expect[i].sequence_bytes);
	}
}

static void test_plans(void **state)
{
	(void)state;
	for (size_t i = 0; i < NR(expect); i++) {
		double needed = expect[i].token_bytes * expect[i].tokens;

		print_message("# %s\n", expect[i].name);
		assert_int_equal(omnikv_layout_preset(expect[i].name, &layout, NULL), 0);
		assert_int_equal(omnikv_plan_make(&layout, NULL, &plan, NULL), 0);
		assert_int_equal(plan.block_tokens, expect[i].tokens);
		assert_int_equal(plan.scale, 1);
		assert_int_equal(plan.granule_bytes, expect[i].granule);
		assert_int_equal(plan.groups[0].piece_bytes, expect[i].piece);
		assert_int_equal(omnikv_plan_block_bytes(&plan), expect[i].block);
		assert_int_equal(omnikv_plan_checkpoint_bytes(&plan), expect[i].checkpoint);
		assert_true(omnikv_plan_overhead(&plan) <= 1.05);
		assert_true(omnikv_plan_overhead(&plan) > (double)expect[i].block / needed - 1e-9);
		assert_true(omnikv_plan_overhead(&plan) < (double)expect[i].block / needed + 1e-9);
		/* The least granule keeps the bound too. */
		assert_int_equal(omnikv_plan_make(&layout,
						  &(struct omnikv_plan_config){ .size = sizeof(struct omnikv_plan_config),
										.granule_bytes = 4096 },
						  &plan, NULL), 0);
		assert_int_equal(plan.block_tokens, expect[i].tokens);
		assert_true(omnikv_plan_overhead(&plan) <= 1.05);
	}
}

static void test_gpt_oss_alternates(void **state)
{
	(void)state;
	assert_int_equal(omnikv_layout_preset("gpt-oss-20b", &layout, NULL), 0);
	assert_int_equal(layout.groups[0].kind, OMNIKV_GROUP_FULL);
	assert_int_equal(layout.groups[1].kind, OMNIKV_GROUP_SWA);
	assert_int_equal(layout.groups[0].nr_layers, 12);
	assert_int_equal(layout.groups[1].nr_layers, 12);
	for (uint32_t i = 0; i < 12; i++) {
		assert_int_equal(layout.groups[0].layers[i], 2 * i + 1);
		assert_int_equal(layout.groups[1].layers[i], 2 * i);
	}
	assert_int_equal(layout.groups[1].window, 128);
	assert_int_equal(layout.groups[1].sinks, 0);
	assert_int_equal(layout.groups[0].window, 0);
	assert_int_equal(layout.groups[0].atomic_with, 2);
	assert_int_equal(layout.groups[1].atomic_with, 1);
}

static void test_deepseek_is_stored_once(void **state)
{
	(void)state;
	assert_int_equal(omnikv_layout_preset("deepseek-v3", &layout, NULL), 0);
	assert_int_equal(omnikv_group_entry_bytes(&layout.groups[0]), 1152);
	for (uint32_t p = 0; p < layout.groups[0].nr_planes; p++)
		assert_true(layout.groups[0].planes[p].is_replicated);

	assert_int_equal(omnikv_layout_preset("deepseek-v3.2", &layout, NULL), 0);
	assert_int_equal(layout.groups[0].kind, OMNIKV_GROUP_MLA_LATENT);
	assert_int_equal(layout.groups[0].residency, OMNIKV_RESIDENCY_SELECTED);
	assert_int_equal(omnikv_group_entry_bytes(&layout.groups[0]), 656);
	assert_int_equal(layout.groups[1].kind, OMNIKV_GROUP_INDEX);
	assert_int_equal(layout.groups[1].residency, OMNIKV_RESIDENCY_HBM);
	assert_int_equal(omnikv_group_entry_bytes(&layout.groups[1]), 132);
	for (uint32_t p = 0; p < layout.groups[1].nr_planes; p++)
		assert_true(layout.groups[1].planes[p].is_replicated);
}

static void test_qwen3_next_state(void **state)
{
	uint32_t n = 0;

	(void)state;
	assert_int_equal(omnikv_layout_preset("qwen3-next-80b-a3b", &layout, NULL), 0);
	assert_int_equal(layout.groups[0].nr_layers, 12);
	assert_int_equal(layout.groups[0].layers[0], 3);
	assert_int_equal(layout.groups[0].layers[11], 47);
	assert_int_equal(layout.groups[1].nr_layers, 36);
	for (uint32_t l = 0; l < 48; l++) {
		if (l % 4 == 3)
			continue;
		assert_int_equal(layout.groups[1].layers[n], l);
		assert_int_equal(layout.groups[2].layers[n], l);
		n++;
	}
	assert_int_equal(omnikv_group_entry_bytes(&layout.groups[1]), 2 << 20);
	assert_int_equal(omnikv_group_entry_bytes(&layout.groups[2]), 48 << 10);
	for (uint32_t g = 1; g < 3; g++) {
		assert_true(omnikv_group_is_state(&layout.groups[g]));
		assert_int_equal(layout.groups[g].reuse, OMNIKV_REUSE_EXACT);
		assert_int_equal(layout.groups[g].rollback, OMNIKV_ROLLBACK_SNAPSHOT);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_plans),
		cmocka_unit_test(test_gpt_oss_alternates),
		cmocka_unit_test(test_deepseek_is_stored_once),
		cmocka_unit_test(test_qwen3_next_state),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

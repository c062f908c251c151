// SPDX-License-Identifier: GPL-2.0-only
/*
 * Plans: every figure of every group against a model in 128-bit arithmetic, the choice of T and
 * granule, scaling, and refusals. Nothing wraps, whatever the layout.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <omnikv/layout.h>

__extension__ typedef unsigned __int128 u128;

static struct omnikv_layout layout;
static struct omnikv_plan plan, before;

static int make(uint32_t block_tokens, uint32_t granule_bytes, uint32_t scale, struct omnikv_error *err)
{
	struct omnikv_plan_config config = {
		.size = sizeof(config), .block_tokens = block_tokens, .granule_bytes = granule_bytes, .scale = scale,
	};

	return omnikv_plan_make(&layout, &config, &plan, err);
}

static void preset(const char *name)
{
	assert_int_equal(omnikv_layout_preset(name, &layout, NULL), 0);
}

/* The plan against the rules of the header, computed anew. */
static void assert_model(void)
{
	u128 block = 0, checkpoint = 0;

	assert_memory_equal(&plan.layout, &layout, sizeof(layout));
	assert_int_equal(plan.granule_bytes % 4096, 0);
	for (uint32_t g = 0; g < layout.nr_groups; g++) {
		const struct omnikv_group *group = &layout.groups[g];
		const struct omnikv_group_plan *gp = &plan.groups[g];
		u128 end = 0, needed = 0, extent;
		uint32_t stored = 0;

		for (uint32_t i = 0; i < group->nr_layers; i++)
			stored += group->alias_of[i] < 0;
		assert_int_equal(gp->nr_stored, stored);
		if (group->tokens_per_entry)
			assert_true((uint64_t)gp->entries * group->tokens_per_entry == plan.block_tokens);
		else
			assert_int_equal(gp->entries, 1);
		for (uint32_t p = 0; p < group->nr_planes; p++) {
			u128 row = (u128)group->planes[p].heads * group->planes[p].elems *
				   omnikv_dtype_bytes(group->planes[p].dtype) / plan.scale;

			row = row ? row : 1;
			while (end % 16)
				end++;
			assert_true(gp->plane_off[p] == end);
			assert_true(gp->row_bytes[p] == row);
			end += row * gp->entries;
			needed += row * gp->entries * stored;
		}
		end = (end + 127) / 128 * 128;
		assert_true(gp->piece_bytes == end);
		assert_true(gp->needed_bytes == needed);
		extent = (end * stored + plan.granule_bytes - 1) / plan.granule_bytes * plan.granule_bytes;
		assert_true(gp->extent_bytes == extent);
		assert_true((u128)gp->nr_granules * plan.granule_bytes == extent);
		if (group->tokens_per_entry)
			block += extent;
		else
			checkpoint += extent;
	}
	assert_true(omnikv_plan_block_bytes(&plan) == block);
	assert_true(omnikv_plan_checkpoint_bytes(&plan) == checkpoint);
}

static void test_presets_follow_the_model(void **state)
{
	static const uint32_t tokens[] = { 0, 1, 16, 48, 512, 1024, 65536 };
	static const uint32_t granules[] = { 0, 4096, 12288, 2u << 20 };
	static const uint32_t scales[] = { 0, 1, 3, 64, 1000, 1u << 20 };

	(void)state;
	for (const char *const *name = omnikv_layout_presets(); *name; name++) {
		preset(*name);
		for (size_t t = 0; t < 7; t++) {
			for (size_t g = 0; g < 4; g++) {
				for (size_t s = 0; s < 6; s++) {
					assert_int_equal(make(tokens[t], granules[g], scales[s], NULL), 0);
					assert_model();
					if (tokens[t])
						assert_int_equal(plan.block_tokens, tokens[t]);
					if (granules[g])
						assert_int_equal(plan.granule_bytes, granules[g]);
					assert_int_equal(plan.scale, scales[s] ? scales[s] : 1);
				}
			}
		}
	}
}

static void test_tokens_are_the_fewest_that_suit(void **state)
{
	(void)state;
	/* One row of 2 KiB in one layer: 16 x 2 KiB fill 8 granules, no larger T is needed */
	preset("tiny");
	layout.block_tokens = 0;
	layout.nr_layers = layout.groups[0].nr_layers = 1;
	layout.groups[0].nr_planes = 1;
	layout.groups[0].planes[0].elems = 1024;
	assert_int_equal(make(0, 0, 0, NULL), 0);
	assert_int_equal(plan.block_tokens, 16);
	/* 8 bytes: 512 x 8 is the first to fill one */
	layout.groups[0].planes[0].elems = 4;
	assert_int_equal(make(0, 0, 0, NULL), 0);
	assert_int_equal(plan.block_tokens, 512);
	/* 132 bytes: 16 x 132 -> 4096/2112, 32 -> 8192/4224, 64 -> 12288/8448, 128 -> 20480/16896, 256 -> 36864/33792
	 * = 1.09, 512 -> 69632/67584 = 1.03 */
	layout.groups[0].planes[0].elems = 66;
	assert_int_equal(make(0, 0, 0, NULL), 0);
	assert_int_equal(plan.block_tokens, 512);
	assert_true(omnikv_plan_overhead(&plan) == 69632.0 / 67584.0);
	/* 2 bytes never fill a granule at 1024: the closest all the same, and the overhead tells */
	layout.groups[0].planes[0].elems = 1;
	assert_int_equal(make(0, 0, 0, NULL), 0);
	assert_int_equal(plan.block_tokens, 1024);
	assert_true(omnikv_plan_overhead(&plan) == 2.0);
	/* A larger granule needs a larger T. */
	layout.groups[0].planes[0].elems = 1024;
	assert_int_equal(make(0, 65536, 0, NULL), 0);
	assert_int_equal(plan.block_tokens, 32);
	/* The layout's own T, and the caller's before it. */
	layout.block_tokens = 48;
	assert_int_equal(make(0, 0, 0, NULL), 0);
	assert_int_equal(plan.block_tokens, 48);
	assert_int_equal(make(7, 0, 0, NULL), 0);
	assert_int_equal(plan.block_tokens, 7);
	assert_model();
}

static void test_tokens_suit_every_group(void **state)
{
	struct omnikv_error err = { "" };

	(void)state;
	preset("gpt-oss-20b");
	layout.groups[0].kind = OMNIKV_GROUP_COMPRESSED;
	layout.groups[0].tokens_per_entry = 128;
	assert_int_equal(make(0, 0, 0, &err), 0);
	assert_int_equal(plan.block_tokens, 128);
	assert_int_equal(plan.groups[0].entries, 1);
	assert_int_equal(plan.groups[1].entries, 128);
	assert_model();
	/* 12 x 2048 / 128 + 12 x 2048 */
	assert_true(omnikv_layout_token_bytes(&layout) == 24768);

	memset(&before, 0x5a, sizeof(before));
	memset(&plan, 0x5a, sizeof(plan));
	assert_int_equal(make(64, 0, 0, &err), -EINVAL);
	assert_string_equal(err.text, "block_tokens: 64; allowed: a multiple of groups[0].tokens_per_entry 128");
	layout.groups[0].tokens_per_entry = 3;
	assert_int_equal(make(0, 0, 0, &err), -EINVAL);
	assert_non_null(strstr(err.text, "block_tokens: no power of two from 16 to 1024"));
	assert_memory_equal(&plan, &before, sizeof(plan));
	assert_int_equal(make(48, 0, 0, &err), 0);
	assert_model();
}

static void test_granule_wastes_little(void **state)
{
	static const char *const names[] = { "llama-3-8b", "deepseek-v3", "deepseek-v3.2", "qwen3-next-80b-a3b", "tiny" };

	(void)state;
	for (size_t i = 0; i < 5; i++) {
		preset(names[i]);
		for (uint32_t scale = 1; scale <= 4096; scale *= 2) {
			uint64_t needed = 0;

			assert_int_equal(make(0, 0, scale, NULL), 0);
			if (plan.granule_bytes == 4096)
				continue;
			for (uint32_t g = 0; g < layout.nr_groups; g++)
				assert_true(plan.granule_bytes <= plan.groups[g].piece_bytes);
			assert_true(omnikv_plan_overhead(&plan) < 1.02);
			for (uint32_t g = 0; g < layout.nr_groups; g++)
				if (omnikv_group_is_state(&layout.groups[g]))
					needed += plan.groups[g].needed_bytes;
			assert_true((double)omnikv_plan_checkpoint_bytes(&plan) <= 1.02 * (double)needed);
		}
	}
	/* State alone: 50 pieces of 10 KiB are 62.5 x 8 KiB: 63, within 2 % */
	preset("qwen3-next-80b-a3b");
	layout.nr_groups = 1;
	layout.nr_layers = 50;
	layout.groups[0] = (struct omnikv_group){
		.kind = OMNIKV_GROUP_CONV, .nr_layers = 50, .nr_planes = 1, .reuse = OMNIKV_REUSE_EXACT,
		.rollback = OMNIKV_ROLLBACK_SNAPSHOT,
		.planes = { { .role = OMNIKV_PLANE_CONV, .dtype = OMNIKV_DTYPE_U8, .heads = 1, .elems = 10240 } },
	};
	for (uint16_t l = 0; l < 50; l++) {
		layout.groups[0].layers[l] = l;
		layout.groups[0].alias_of[l] = -1;
	}
	assert_int_equal(make(0, 0, 0, NULL), 0);
	assert_int_equal(plan.granule_bytes, 8192);
	assert_true(omnikv_plan_overhead(&plan) == 1);
	assert_int_equal(omnikv_plan_block_bytes(&plan), 0);
	assert_model();
	/* 9 of them are 11.25 x 8 KiB: 12, 6.7 %: back to 4 KiB */
	layout.nr_layers = layout.groups[0].nr_layers = 9;
	assert_int_equal(make(0, 0, 0, NULL), 0);
	assert_int_equal(plan.granule_bytes, 4096);
}

static void test_scale_keeps_the_blocks(void **state)
{
	(void)state;
	for (const char *const *name = omnikv_layout_presets(); *name; name++) {
		uint32_t tokens;

		preset(*name);
		assert_int_equal(make(0, 0, 1, NULL), 0);
		tokens = plan.block_tokens;
		for (uint32_t scale = 2; scale <= OMNIKV_SCALE_MAX; scale *= 4) {
			assert_int_equal(make(0, 0, scale, NULL), 0);
			assert_int_equal(plan.block_tokens, tokens);
			assert_model();
		}
	}
	/* Rows of 2048 B by 3 are 682; of 4 B by 8, 1 */
	preset("llama-3-8b");
	assert_int_equal(make(0, 0, 3, NULL), 0);
	assert_int_equal(plan.groups[0].row_bytes[0], 682);
	/* 16 x 682 = 10912 is a multiple of 16 */
	assert_int_equal(plan.groups[0].plane_off[1], 10912);
	preset("tiny");
	assert_int_equal(make(0, 0, 8, NULL), 0);
	assert_int_equal(plan.groups[0].row_bytes[1], 1);
	assert_int_equal(plan.groups[0].needed_bytes, 4096);
}

static void test_too_large_is_refused(void **state)
{
	struct omnikv_group *group = &layout.groups[0];
	struct omnikv_error err = { "" };

	(void)state;
	preset("tiny");
	layout.nr_layers = group->nr_layers = OMNIKV_LAYERS_MAX;
	for (uint32_t l = 0; l < OMNIKV_LAYERS_MAX; l++) {
		group->layers[l] = (uint16_t)l;
		group->alias_of[l] = -1;
	}
	group->nr_planes = OMNIKV_PLANES_MAX;
	for (uint32_t p = 0; p < OMNIKV_PLANES_MAX; p++)
		group->planes[p] = (struct omnikv_plane){ .heads = 65536, .elems = 1u << 24 };
	memset(&plan, 0x5a, sizeof(plan));
	before = plan;
	/* 2^42 a row, x 8 planes x 65536 tokens x 1024 layers = 2^71 */
	assert_int_equal(make(65536, 0, 0, &err), -EINVAL);
	assert_non_null(strstr(err.text, "groups[0].planes["));
	assert_non_null(strstr(err.text, "65536 tokens over 1024 layers do not fit"));
	assert_non_null(strstr(err.text, "overflow 64 bits"));
	layout.block_tokens = 0;
	/* With T left to choose too: the fields are at fault, not tokens_per_entry. 2^45 x 16 x 1024 fits 64 bits. */
	assert_int_equal(make(0, 0, 0, &err), -EINVAL);
	assert_null(strstr(err.text, "tokens_per_entry"));
	assert_non_null(strstr(err.text, "groups[0].planes["));
	assert_non_null(strstr(err.text, "elems; 16 tokens over 1024 layers do not fit"));
	/* 2^59 fits 64 bits, not 2^32 granules of 4 KiB */
	assert_int_equal(make(16, 4096, 0, &err), -EINVAL);
	assert_non_null(strstr(err.text, "granules of 4096 bytes"));
	assert_int_equal(make(0, 0, 0, &err), -EINVAL);
	assert_memory_equal(&plan, &before, sizeof(plan));
	/* 2^71 / 2^20 / 2^21 = 2^30 granules */
	assert_int_equal(make(65536, 2u << 20, 1u << 20, NULL), 0);
	assert_model();
}

static void test_configuration_is_checked(void **state)
{
	struct {
		struct omnikv_plan_config config;
		uint64_t tail;
	} longer = { .config = { .size = sizeof(longer) } };
	struct omnikv_plan_config config = { .size = sizeof(config) - 1 };
	struct omnikv_error err = { "" };

	(void)state;
	preset("tiny");
	memset(&plan, 0x5a, sizeof(plan));
	before = plan;
	assert_int_equal(make(65537, 0, 0, &err), -EINVAL);
	assert_string_equal(err.text, "block_tokens: 65537; allowed: 1 to 65536, or 0 to choose");
	assert_int_equal(make(0, 4097, 0, &err), -EINVAL);
	assert_string_equal(err.text, "granule_bytes: 4097; allowed: a multiple of 4096 up to 2097152, or 0 to choose");
	assert_int_equal(make(0, (2u << 20) + 4096, 0, &err), -EINVAL);
	assert_int_equal(make(0, 0, OMNIKV_SCALE_MAX + 1, &err), -EINVAL);
	assert_string_equal(err.text, "scale: 1048577; allowed: 1 to 1048576");
	assert_int_equal(omnikv_plan_make(&layout, &config, &plan, &err), -EINVAL);
	assert_non_null(strstr(err.text, "config.size: 23"));
	config.size = sizeof(config);
	config.reserved = 1;
	assert_int_equal(omnikv_plan_make(&layout, &config, &plan, &err), -EINVAL);
	assert_string_equal(err.text, "config.reserved: 1; allowed: 0");
	longer.tail = 1;
	assert_int_equal(omnikv_plan_make(&layout, &longer.config, &plan, &err), -E2BIG);
	assert_int_equal(omnikv_plan_make(NULL, NULL, &plan, &err), -EINVAL);
	layout.nr_groups = 0;
	assert_int_equal(omnikv_plan_make(&layout, NULL, &plan, &err), -EINVAL);
	assert_memory_equal(&plan, &before, sizeof(plan));

	preset("tiny");
	longer.tail = 0;
	assert_int_equal(omnikv_plan_make(&layout, &longer.config, &plan, &err), 0);
	assert_model();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_presets_follow_the_model),
		cmocka_unit_test(test_tokens_are_the_fewest_that_suit),
		cmocka_unit_test(test_tokens_suit_every_group),
		cmocka_unit_test(test_granule_wastes_little),
		cmocka_unit_test(test_scale_keeps_the_blocks),
		cmocka_unit_test(test_too_large_is_refused),
		cmocka_unit_test(test_configuration_is_checked),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

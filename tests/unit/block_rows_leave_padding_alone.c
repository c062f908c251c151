// SPDX-License-Identifier: GPL-2.0-only
/*
 * Rows of a block: copied and summed layer by layer, plane by plane, row by row, whatever the
 * padding between them; no other byte is read into the sum or written by the copy. Checked for
 * every preset's shape, scaled down, and for each fill of the block.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "block.h"
#include "crc32c.h"

static void one(const struct omnikv_plan *plan, uint32_t group, uint32_t nr_tokens)
{
	const struct omnikv_group_plan *gp = &plan->groups[group];
	uint32_t nr_planes = plan->layout.groups[group].nr_planes;
	uint32_t nr_entries = okv_block_entries(plan, group, nr_tokens), crc = 0;
	uint8_t *src = malloc(gp->extent_bytes), *dst = malloc(gp->extent_bytes), *expected = malloc(gp->extent_bytes);

	assert_non_null(src);
	assert_non_null(dst);
	assert_non_null(expected);
	for (uint64_t i = 0; i < gp->extent_bytes; i++)
		src[i] = i * 2654435761u >> 13;
	memset(dst, 0xa5, gp->extent_bytes);
	memset(expected, 0xa5, gp->extent_bytes);
	for (uint32_t l = 0; l < gp->nr_stored; l++) {
		for (uint32_t p = 0; p < nr_planes; p++) {
			for (uint32_t e = 0; e < nr_entries; e++) {
				uint64_t off = l * gp->piece_bytes + gp->plane_off[p] + e * gp->row_bytes[p];

				memcpy(expected + off, src + off, gp->row_bytes[p]);
				crc = okv_crc32c_extend(crc, src + off, gp->row_bytes[p]);
			}
		}
	}
	okv_block_copy(plan, group, nr_entries, dst, src);
	assert_memory_equal(dst, expected, gp->extent_bytes);
	assert_int_equal(okv_block_crc(plan, group, nr_entries, src), crc);
	/* From the copy, whose padding differs, the same. */
	assert_int_equal(okv_block_crc(plan, group, nr_entries, dst), crc);
	if (nr_tokens) {
		uint32_t told = ~crc;

		assert_int_equal(omnikv_plan_block_crc(plan, group, nr_tokens, dst, &told), 0);
		assert_int_equal(told, crc);
	}
	free(src);
	free(dst);
	free(expected);
}

static void rows_of_every_preset(void **state)
{
	struct omnikv_plan_config config = { .size = sizeof(config), .block_tokens = 128, .scale = 64 };
	struct omnikv_layout *layout = malloc(sizeof(*layout));
	struct omnikv_plan *plan = malloc(sizeof(*plan));

	(void)state;
	assert_non_null(layout);
	assert_non_null(plan);
	for (const char *const *name = omnikv_layout_presets(); *name; name++) {
		assert_int_equal(omnikv_layout_preset(*name, layout, NULL), 0);
		assert_int_equal(omnikv_plan_make(layout, &config, plan, NULL), 0);
		for (uint32_t g = 0; g < layout->nr_groups; g++) {
			assert_int_equal(okv_group_is_state(plan, g), layout->groups[g].tokens_per_entry == 0);
			one(plan, g, 0);
			one(plan, g, 1);
			one(plan, g, 77);
			one(plan, g, 128);
		}
	}
	free(layout);
	free(plan);
}

static void no_sum_of_what_is_no_block(void **state)
{
	struct omnikv_plan *plan = calloc(1, sizeof(*plan));
	uint32_t crc = 1;

	(void)state;
	assert_non_null(plan);
	plan->layout.nr_groups = 2;
	plan->block_tokens = 16;
	assert_int_equal(omnikv_plan_block_crc(plan, 2, 16, plan, &crc), -EINVAL);
	assert_int_equal(omnikv_plan_block_crc(plan, 0, 0, plan, &crc), -EINVAL);
	assert_int_equal(omnikv_plan_block_crc(plan, 0, 17, plan, &crc), -EINVAL);
	assert_int_equal(omnikv_plan_block_crc(NULL, 0, 1, plan, &crc), -EINVAL);
	assert_int_equal(omnikv_plan_block_crc(plan, 0, 1, NULL, &crc), -EINVAL);
	assert_int_equal(omnikv_plan_block_crc(plan, 0, 1, plan, NULL), -EINVAL);
	assert_int_equal(crc, 1);
	free(plan);
}

static void entries_of_several_tokens_count_when_whole(void **state)
{
	struct omnikv_plan *plan = calloc(1, sizeof(*plan));

	(void)state;
	assert_non_null(plan);
	plan->layout.groups[0].tokens_per_entry = 4;
	plan->layout.groups[1].tokens_per_entry = 1;
	assert_int_equal(okv_block_entries(plan, 0, 3), 0);
	assert_int_equal(okv_block_entries(plan, 0, 4), 1);
	assert_int_equal(okv_block_entries(plan, 0, 11), 2);
	assert_int_equal(okv_block_entries(plan, 1, 11), 11);
	assert_int_equal(okv_block_entries(plan, 2, 11), 1);
	free(plan);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(rows_of_every_preset),
		cmocka_unit_test(no_sum_of_what_is_no_block),
		cmocka_unit_test(entries_of_several_tokens_count_when_whole),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

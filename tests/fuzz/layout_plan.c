// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fuzzes checks, plans, identity and diff with layouts of any bytes: what the checks accept is
 * planned without wrapping (each figure against 128-bit arithmetic) or refused; diff says "none" exactly where
 * identities are equal.
 *
 * Input: the plan's T, granule and scale (12 bytes), then edits of a preset, 7 bytes each: where (2 bytes, a 32-bit
 * word of the layout), value (4), which of two copies (1).
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <omnikv/layout.h>

__extension__ typedef unsigned __int128 okv_u128;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void expect(int is_true)
{
	if (!is_true)
		abort();
}

static uint32_t take32(const uint8_t *data)
{
	uint32_t value;

	memcpy(&value, data, sizeof(value));
	return value;
}

static void expect_plan(const struct omnikv_plan *plan)
{
	for (uint32_t g = 0; g < plan->layout.nr_groups; g++) {
		const struct omnikv_group *group = &plan->layout.groups[g];
		const struct omnikv_group_plan *gp = &plan->groups[g];
		okv_u128 end = 0;

		for (uint32_t p = 0; p < group->nr_planes; p++) {
			expect(gp->row_bytes[p] > 0 && gp->plane_off[p] >= end && gp->plane_off[p] < end + 16);
			end = gp->plane_off[p] + (okv_u128)gp->row_bytes[p] * gp->entries;
		}
		expect(gp->piece_bytes % 128 == 0 && gp->piece_bytes >= end && gp->piece_bytes < end + 128);
		end = (okv_u128)gp->piece_bytes * gp->nr_stored;
		expect(gp->nr_stored > 0 && gp->needed_bytes > 0 && gp->needed_bytes <= end);
		expect(gp->extent_bytes >= end && gp->extent_bytes < end + plan->granule_bytes);
		expect((okv_u128)gp->nr_granules * plan->granule_bytes == gp->extent_bytes);
		for (uint32_t i = 0; i < group->nr_layers; i++)
			expect((uint32_t)omnikv_group_piece_idx(group, group->layers[i]) < gp->nr_stored);
		if (group->tokens_per_entry)
			expect((uint64_t)gp->entries * group->tokens_per_entry == plan->block_tokens);
	}
	expect(omnikv_plan_overhead(plan) >= 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static struct omnikv_layout layouts[2];
	static struct omnikv_plan plan;
	struct omnikv_plan_config config = { .size = sizeof(config) };
	const char *const *names = omnikv_layout_presets();
	uint8_t a[32], b[32];
	bool is_good[2];
	int ret;

	if (len < 13)
		return 0;
	config.block_tokens = take32(data);
	config.granule_bytes = take32(data + 4);
	config.scale = take32(data + 8);
	expect(omnikv_layout_preset(names[data[12] % 8], &layouts[0], NULL) == 0);
	layouts[1] = layouts[0];
	for (data += 13, len -= 13; len >= 7; data += 7, len -= 7) {
		size_t word = (data[0] | (size_t)data[1] << 8) % (sizeof(layouts[0]) / 4);

		memcpy((char *)&layouts[data[6] & 1] + 4 * word, data + 2, 4);
	}

	for (int i = 0; i < 2; i++) {
		is_good[i] = omnikv_layout_check(&layouts[i], NULL) == 0;
		ret = omnikv_layout_identity(&layouts[i], i ? b : a);
		expect(ret == (is_good[i] ? 0 : -EINVAL));
		omnikv_layout_token_bytes(&layouts[i]);
		omnikv_layout_sequence_bytes(&layouts[i]);
		ret = omnikv_plan_make(&layouts[i], &config, &plan, NULL);
		expect(ret == 0 || ret == -EINVAL);
		if (ret == 0) {
			expect(is_good[i]);
			expect_plan(&plan);
		}
	}
	ret = omnikv_layout_diff(&layouts[0], &layouts[1], NULL);
	if (is_good[0] && is_good[1])
		expect(ret == (memcmp(a, b, 32) ? 0 : -ENOENT));
	else
		expect(ret == -EINVAL);
	return 0;
}

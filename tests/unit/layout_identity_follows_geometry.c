// SPDX-License-Identifier: GPL-2.0-only
/*
 * The identity of a layout changes with whatever changes the meaning of its bytes, and with nothing else; diff names
 * the field. Two layouts of the same total bytes (a KV layout changed by an engine's upgrade) never share
 * an identity.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <omnikv/layout.h>

static struct omnikv_layout base, other;

static bool same_identity(const struct omnikv_layout *a, const struct omnikv_layout *b)
{
	uint8_t in_a[32], in_b[32];

	assert_int_equal(omnikv_layout_identity(a, in_a), 0);
	assert_int_equal(omnikv_layout_identity(b, in_b), 0);
	return memcmp(in_a, in_b, 32) == 0;
}

static void reset(const char *preset)
{
	assert_int_equal(omnikv_layout_preset(preset, &base, NULL), 0);
	other = base;
}

/* @other differs from @base in the field of which diff says @text. */
static void differs(const char *text)
{
	struct omnikv_error err = { "" };

	assert_false(same_identity(&base, &other));
	assert_int_equal(omnikv_layout_diff(&base, &other, &err), 0);
	assert_string_equal(err.text, text);
	assert_int_equal(omnikv_layout_diff(&base, &other, NULL), 0);
	other = base;
}

static void is_same(void)
{
	struct omnikv_error err = { "untouched" };

	assert_true(same_identity(&base, &other));
	assert_int_equal(omnikv_layout_diff(&base, &other, &err), -ENOENT);
	assert_string_equal(err.text, "untouched");
	other = base;
}

static void test_each_field_counts(void **state)
{
	(void)state;
	reset("gpt-oss-20b");
	other.nr_layers++;
	differs("nr_layers: 24 and 25");
	other.nr_groups = 1;
	other.groups[0].atomic_with = 0;
	differs("groups: 2 and 1 entries");
	other.groups[0].kind = OMNIKV_GROUP_DRAFT;
	differs("groups[0].kind: full and draft");
	other.groups[0].tokens_per_entry = 4;
	differs("groups[0].tokens_per_entry: 1 and 4");
	other.groups[1].window = 127;
	differs("groups[1].window: 128 and 127");
	other.groups[1].sinks = 4;
	differs("groups[1].sinks: 0 and 4");
	other.groups[0].nr_layers--;
	differs("groups[0].layers: 12 and 11 entries");
	other.groups[0].layers[11] = 22;
	differs("groups[0].layers[11]: 23 and 22");
	other.groups[0].alias_of[3] = 5;
	differs("groups[0].alias_of[3]: -1 and 5");
	other.groups[0].nr_planes = 1;
	differs("groups[0].planes: 2 and 1 entries");
	other.groups[1].planes[0].role = OMNIKV_PLANE_V;
	differs("groups[1].planes[0].role: k and v");
	other.groups[1].planes[1].dtype = OMNIKV_DTYPE_F16;
	differs("groups[1].planes[1].dtype: bf16 and f16");
	other.groups[0].planes[1].heads = 4;
	differs("groups[0].planes[1].heads: 8 and 4");
	other.groups[0].planes[1].elems = 65;
	differs("groups[0].planes[1].elems: 64 and 65");
	other.groups[0].planes[1].shard_axis = OMNIKV_SHARD_ELEMS;
	differs("groups[0].planes[1].shard_axis: heads and elems");
	reset("deepseek-v3");
	other.groups[0].planes[0].is_replicated = false;
	differs("groups[0].planes[0].is_replicated: true and false");
}

static void test_treatment_does_not_count(void **state)
{
	(void)state;
	reset("gpt-oss-20b");
	is_same();
	strcpy(other.name, "another");
	is_same();
	other.layer_params = 1;
	other.q_heads = 1;
	other.head_dim = 1;
	other.block_tokens = 32;
	is_same();
	other.groups[0].residency = OMNIKV_RESIDENCY_HOST;
	other.groups[0].rollback = OMNIKV_ROLLBACK_RECOMPUTE;
	other.groups[0].reuse = OMNIKV_REUSE_NONE;
	other.groups[0].atomic_with = 0;
	is_same();
	/* What stands behind the ends of lists, and minus zero. */
	other.groups[0].layers[12] = 99;
	other.groups[0].alias_of[12] = 99;
	other.groups[0].planes[2].heads = 99;
	other.groups[5].kind = OMNIKV_GROUP_CONV;
	other.groups[0].error_bound = -0.0;
	is_same();
}

/*
 * An engine's [2][tokens][head] and its next version's [head][tokens][2x] take the same bytes; served to each
 * other they are silently wrong.
 */
static void test_same_bytes_in_another_order(void **state)
{
	struct omnikv_group *group = &other.groups[0];

	(void)state;
	reset("llama-3-8b");
	group->nr_planes = 8;
	for (uint32_t p = 0; p < 8; p++)
		group->planes[p] = (struct omnikv_plane){
			.role = OMNIKV_PLANE_KV, .dtype = OMNIKV_DTYPE_BF16, .heads = 1, .elems = 256,
			.shard_axis = OMNIKV_SHARD_HEADS,
		};
	assert_int_equal(omnikv_layout_check(&other, NULL), 0);
	assert_int_equal(omnikv_group_entry_bytes(group), omnikv_group_entry_bytes(&base.groups[0]));
	assert_true(omnikv_layout_token_bytes(&other) == omnikv_layout_token_bytes(&base));
	differs("groups[0].planes: 2 and 8 entries");

	/* V before K; half the heads of twice the size; one byte twice for one of two. */
	group->planes[0].role = OMNIKV_PLANE_V;
	group->planes[1].role = OMNIKV_PLANE_K;
	differs("groups[0].planes[0].role: k and v");
	group->planes[0].heads = 4;
	group->planes[0].elems = 256;
	differs("groups[0].planes[0].heads: 8 and 4");
	group->planes[1].dtype = OMNIKV_DTYPE_U8;
	group->planes[1].elems = 256;
	differs("groups[0].planes[1].dtype: bf16 and u8");
}

static void test_presets_are_apart(void **state)
{
	const char *const *names = omnikv_layout_presets();

	(void)state;
	for (size_t i = 0; names[i]; i++) {
		for (size_t j = 0; names[j]; j++) {
			reset(names[i]);
			assert_int_equal(omnikv_layout_preset(names[j], &other, NULL), 0);
			assert_int_equal(same_identity(&base, &other), i == j);
			assert_int_equal(omnikv_layout_diff(&base, &other, NULL), i == j ? -ENOENT : 0);
		}
	}
}

/*
 * SHA-256 of "omnikv-layout-1" and the fields of tiny, each behind its length, numbers as 64-bit little endian; computed by
 * 25 lines of Python. It may never change: identities are stored.
 */
static void test_golden(void **state)
{
	static const uint8_t golden[32] = {
		0xf5, 0x6a, 0x60, 0x2d, 0xe5, 0x69, 0xd5, 0x7e,
		0xfe, 0x1b, 0xb3, 0x40, 0xc7, 0x0d, 0xc2, 0x30,
		0xf1, 0x54, 0x32, 0x04, 0xe3, 0x38, 0x36, 0x53,
		0x2b, 0x98, 0xb5, 0xf8, 0x5c, 0x74, 0xde, 0xba,
	};
	uint8_t identity[32];

	(void)state;
	reset("tiny");
	assert_int_equal(omnikv_layout_identity(&base, identity), 0);
	assert_memory_equal(identity, golden, 32);
}

static void test_bad_layout(void **state)
{
	uint8_t identity[32], before[32];

	(void)state;
	reset("tiny");
	memset(identity, 0x5a, 32);
	memset(before, 0x5a, 32);
	other.groups[0].nr_layers = 5000;
	assert_int_equal(omnikv_layout_identity(&other, identity), -EINVAL);
	assert_int_equal(omnikv_layout_identity(NULL, identity), -EINVAL);
	assert_int_equal(omnikv_layout_identity(&base, NULL), -EINVAL);
	assert_memory_equal(identity, before, 32);
	assert_int_equal(omnikv_layout_diff(&base, &other, NULL), -EINVAL);
	assert_int_equal(omnikv_layout_diff(&other, &base, NULL), -EINVAL);
	assert_int_equal(omnikv_layout_diff(NULL, &base, NULL), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_each_field_counts),
		cmocka_unit_test(test_treatment_does_not_count),
		cmocka_unit_test(test_same_bytes_in_another_order),
		cmocka_unit_test(test_presets_are_apart),
		cmocka_unit_test(test_golden),
		cmocka_unit_test(test_bad_layout),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

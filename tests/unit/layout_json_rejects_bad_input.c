// SPDX-License-Identifier: GPL-2.0-only
/*
 * JSON that is no layout gives -EINVAL and one line that names the path, the value and what is
 * allowed; the result is left as it was. Each case changes one thing of a good text.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <omnikv/layout.h>

#define PLANE "{\"role\":\"k\",\"dtype\":\"bf16\",\"heads\":1,\"elems\":64}"
#define GROUP "{\"kind\":\"full\",\"layers\":\"all\",\"planes\":[" PLANE "]}"
#define GOOD "{\"name\":\"m\",\"nr_layers\":4,\"groups\":[" GROUP "]}"
/* A group with some text in the place of its last fields, or a plane of it. */
#define IN_GROUP(text) "{\"name\":\"m\",\"nr_layers\":4,\"groups\":[{\"planes\":[" PLANE "]," text "}]}"
#define IN_PLANE(text) "{\"name\":\"m\",\"nr_layers\":4,\"groups\":[{\"kind\":\"full\",\"layers\":\"all\",\"planes\":[" \
	PLANE ",{" text "}]}]}"

static struct omnikv_layout layout;

/* @path, @value and @allowed must all stand in the message. */
static void refuse_bytes(const char *json, size_t len, const char *path, const char *value, const char *allowed)
{
	struct omnikv_error err = { "" };
	const char *want[] = { path, value, allowed };
	static struct omnikv_layout before;

	memset(&layout, 0x5a, sizeof(layout));
	memset(&before, 0x5a, sizeof(before));
	if (omnikv_layout_parse(json, len, &layout, &err) != -EINVAL)
		fail_msg("accepted: %.200s", json);
	assert_memory_equal(&layout, &before, sizeof(layout));
	if (strncmp(err.text, path, strlen(path)) != 0)
		fail_msg("'%s' does not begin with '%s'", err.text, path);
	for (size_t i = 0; i < 3; i++)
		if (!strstr(err.text, want[i]))
			fail_msg("'%s' does not say '%s'", err.text, want[i]);
	for (const char *c = err.text; *c; c++)
		if (*c < 0x20 || *c > 0x7e)
			fail_msg("byte 0x%02x in '%s'", (unsigned char)*c, err.text);
	assert_int_equal(omnikv_layout_parse(json, len, &layout, NULL), -EINVAL);
}

static void refuse(const char *json, const char *path, const char *value, const char *allowed)
{
	refuse_bytes(json, strlen(json), path, value, allowed);
}

static void test_good_is_good(void **state)
{
	(void)state;
	assert_int_equal(omnikv_layout_parse(GOOD, strlen(GOOD), &layout, NULL), 0);
	assert_int_equal(omnikv_layout_parse(IN_GROUP("\"kind\":\"full\",\"layers\":[1,2]"),
					     strlen(IN_GROUP("\"kind\":\"full\",\"layers\":[1,2]")), &layout, NULL), 0);
	assert_int_equal(omnikv_layout_parse(NULL, 0, &layout, NULL), -EINVAL);
	assert_int_equal(omnikv_layout_parse(GOOD, strlen(GOOD), NULL, NULL), -EINVAL);
}

static void test_no_json(void **state)
{
	(void)state;
	refuse("", "layout:", "line 1", "");
	refuse("nonsense", "layout:", "line 1", "nonsense");
	refuse("{\"name\":\"m\",\n\"nr_layers\":4,\n\"groups\":[{\"kind\":full}]}", "groups[0].kind:", "line 3", "full");
	refuse("{\"name\":\"m\"", "name:", "line 1", "");
	refuse(GOOD GOOD, "layout:", "line 1", "");
	refuse("{\"name\":\"a\\u0000b\"}", "", "", "");
	refuse("{\"name\":\"\xff\xfe\"}", "", "", "");
	refuse("{\"nr_layers\":123456789012345678901234567890}", "nr_layers:", "", "");
	refuse("{\"layer_params\":1e999}", "layer_params:", "", "");
	refuse("{\"a\\\"b\": \"c\\\"d\", \"e\" :\n\t\"f\" 1}", "e:", "line 2", "");
	for (size_t cut = 0; cut < strlen(GOOD); cut++)
		refuse_bytes(GOOD, cut, "", "", "");
}

static void test_wrong_type_at_top(void **state)
{
	(void)state;
	refuse("[]", "layout:", "an array of 0 entries", "an object");
	refuse("{\"name\":1,\"nr_layers\":4,\"groups\":[]}", "name:", "1", "1 to 63");
	refuse("{\"name\":\"m\",\"nr_layers\":\"4\",\"groups\":[]}", "nr_layers:", "\"4\"", "1 to 1024");
	refuse("{\"name\":\"m\",\"nr_layers\":4.0,\"groups\":[]}", "nr_layers:", "4.0", "1 to 1024");
	refuse("{\"name\":\"m\",\"nr_layers\":null,\"groups\":[]}", "nr_layers:", "null", "1 to 1024");
	refuse("{\"name\":\"m\",\"nr_layers\":true,\"groups\":[]}", "nr_layers:", "true", "1 to 1024");
	refuse("{\"name\":\"m\",\"nr_layers\":false,\"groups\":[]}", "nr_layers:", "false", "1 to 1024");
	refuse("{\"name\":\"m\",\"nr_layers\":4,\"groups\":{}}", "groups:", "an object", "1 to 8");
	refuse("{\"name\":\"m\",\"nr_layers\":4,\"groups\":[]}", "groups:", "0 entries", "1 to 8");
	refuse("{\"name\":\"m\",\"nr_layers\":4,\"groups\":[3]}", "groups[0]:", "3", "an object");
	refuse("{\"name\":\"m\",\"nr_layers\":4,\"layer_params\":\"x\",\"groups\":[]}", "layer_params:", "\"x\"", "0 to");
}

static void test_out_of_range(void **state)
{
	(void)state;
	refuse("{\"name\":\"m\",\"nr_layers\":0,\"groups\":[]}", "nr_layers:", "0", "1 to 1024");
	refuse("{\"name\":\"m\",\"nr_layers\":1025,\"groups\":[]}", "nr_layers:", "1025", "1 to 1024");
	refuse("{\"name\":\"m\",\"nr_layers\":-1,\"groups\":[]}", "nr_layers:", "-1", "1 to 1024");
	refuse("{\"name\":\"m\",\"nr_layers\":4294967300,\"groups\":[]}", "nr_layers:", "4294967300", "1 to 1024");
	refuse("{\"name\":\"m\",\"nr_layers\":4,\"layer_params\":-1,\"groups\":[]}", "layer_params:", "-1", "0 to");
	refuse("{\"name\":\"m\",\"nr_layers\":4,\"layer_params\":1e15,\"groups\":[]}", "layer_params:", "1e+15", "0 to");
	refuse("{\"name\":\"m\",\"nr_layers\":4,\"block_tokens\":65537,\"groups\":[]}", "block_tokens:", "65537", "0 to 65536");
	refuse("{\"name\":\"m\",\"nr_layers\":4,\"q_heads\":70000,\"groups\":[]}", "q_heads:", "70000", "0 to 65536");
	refuse("{\"name\":\"\",\"nr_layers\":4,\"groups\":[" GROUP "]}", "name:", "0 characters", "1 to 63");
	refuse("{\"name\":\"a b\",\"nr_layers\":4,\"groups\":[" GROUP "]}", "name:", "0x20", "A-Z");
	refuse("{\"name\":\"0123456789012345678901234567890123456789012345678901234567890123\",\"nr_layers\":4,\"groups\":["
	       GROUP "]}", "name:", "01234567", "1 to 63");
	refuse(IN_PLANE("\"role\":\"k\",\"dtype\":\"bf16\",\"heads\":0,\"elems\":1"), "groups[0].planes[1].heads:", "0",
	       "1 to 65536");
	refuse(IN_PLANE("\"role\":\"k\",\"dtype\":\"bf16\",\"heads\":1,\"elems\":16777217"), "groups[0].planes[1].elems:",
	       "16777217", "1 to 16777216");
	refuse(IN_PLANE("\"role\":\"k\",\"dtype\":\"fp16\",\"heads\":1,\"elems\":1"), "groups[0].planes[1].dtype:", "\"fp16\"",
	       "f32, bf16, f16, f8_e4m3, f8_e5m2, u8");
	refuse(IN_PLANE("\"role\":7,\"dtype\":\"bf16\",\"heads\":1,\"elems\":1"), "groups[0].planes[1].role:", "7", "latent");
	refuse(IN_PLANE("\"role\":\"k\",\"dtype\":\"bf16\",\"heads\":1,\"elems\":1,\"is_replicated\":1"),
	       "groups[0].planes[1].is_replicated:", "1", "true or false");
	refuse(IN_PLANE("\"role\":\"k\",\"dtype\":\"bf16\",\"heads\":1,\"elems\":1,\"is_replicated\":true,"
			"\"shard_axis\":\"heads\""), "groups[0].planes[1].shard_axis:", "heads", "none");
	refuse(IN_GROUP("\"kind\":\"sparse\",\"layers\":\"all\""), "groups[0].kind:", "\"sparse\"",
	       "full, mla_latent, swa, compressed, index, recurrent, conv, draft");
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":\"all\",\"error_bound\":1"), "groups[0].error_bound:", "1",
	       "0 to less than 1");
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":\"all\",\"tokens_per_entry\":65537"), "groups[0].tokens_per_entry:",
	       "65537", "65536");
	refuse(IN_GROUP("\"kind\":\"swa\",\"layers\":\"all\""), "groups[0].window:", "0", "1 or more");
}

static void test_lists(void **state)
{
	(void)state;
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":\"some\""), "groups[0].layers:", "\"some\"", "\"all\" or a list");
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":[]"), "groups[0].layers:", "0 entries", "1 to 4");
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":[0,1,2,3,4]"), "groups[0].layers:", "5 entries", "1 to 4");
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":[0,4]"), "groups[0].layers[1]:", "4", "0 to 3");
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":[0,-1]"), "groups[0].layers[1]:", "-1", "0 to 3");
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":[0,\"1\"]"), "groups[0].layers[1]:", "\"1\"", "0 to 3");
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":[1,1]"), "groups[0].layers[1]:", "1 follows 1", "ascending");
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":[0,1],\"alias_of\":[-1]"), "groups[0].alias_of:", "1 entries", "2");
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":[0,1],\"alias_of\":0"), "groups[0].alias_of:", "0", "2");
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":[0,1],\"alias_of\":[-1,-2]"), "groups[0].alias_of[1]:", "-2", "-1 to 3");
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":[0,1],\"alias_of\":[1,-1]"), "groups[0].alias_of[0]:", "1 for layer 0",
	       "earlier");
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":\"all\",\"atomic_with\":[0]"), "groups[0].atomic_with:", "0", "other");
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":\"all\",\"atomic_with\":[1]"), "groups[0].atomic_with[0]:", "1",
	       "0 to 0");
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":\"all\",\"atomic_with\":1"), "groups[0].atomic_with:", "1", "a list");
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":\"all\",\"atomic_with\":[0,0,0,0,0,0,0,0,0]"), "groups[0].atomic_with:",
	       "9 entries", "at most 8");
	refuse("{\"name\":\"m\",\"nr_layers\":4,\"groups\":[{\"kind\":\"full\",\"layers\":\"all\",\"planes\":[]}]}",
	       "groups[0].planes:", "0 entries", "1 to 8");
	refuse("{\"name\":\"m\",\"nr_layers\":4,\"groups\":[{\"kind\":\"full\",\"layers\":\"all\",\"planes\":[[]]}]}",
	       "groups[0].planes[0]:", "an array", "an object");
}

static void test_missing(void **state)
{
	(void)state;
	refuse("{\"nr_layers\":4,\"groups\":[" GROUP "]}", "name: missing", "", "");
	refuse("{\"name\":\"m\",\"groups\":[" GROUP "]}", "nr_layers: missing", "", "1 to 1024");
	refuse("{\"name\":\"m\",\"nr_layers\":4}", "groups: missing", "", "");
	refuse(IN_GROUP("\"layers\":\"all\""), "groups[0].kind: missing", "", "full, mla_latent");
	refuse(IN_GROUP("\"kind\":\"full\""), "groups[0].layers: missing", "", "\"all\"");
	refuse("{\"name\":\"m\",\"nr_layers\":4,\"groups\":[{\"kind\":\"full\",\"layers\":\"all\"}]}",
	       "groups[0].planes: missing", "", "");
	refuse(IN_PLANE("\"role\":\"k\",\"dtype\":\"bf16\",\"heads\":1"), "groups[0].planes[1].elems: missing", "", "");
}

static void test_unknown_field(void **state)
{
	(void)state;
	refuse("{\"name\":\"m\",\"layers\":4,\"groups\":[]}", "layers: unknown field", "allowed:", "nr_layers");
	refuse("{\"name\":\"m\",\"x\":4}", "x: unknown field", "head_dim, block_tokens, name, groups", "");
	refuse(IN_GROUP("\"kind\":\"full\",\"Layers\":\"all\""), "groups[0].Layers: unknown field", "tokens_per_entry", "planes");
	refuse(IN_PLANE("\"head\":1"), "groups[0].planes[1].head: unknown field", "heads, elems", "is_replicated");
	/* What a hostile name holds does not reach the terminal, and a long one is cut. */
	refuse("{\"a\\n\\u001b[31m\":1}", "a??[31m: unknown field", "", "");
	refuse("{\"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\":1}", "aaaaaaaaaa", "...: unknown field", "");
}

static void test_duplicate(void **state)
{
	(void)state;
	refuse("{\"name\":\"m\",\"name\":\"n\",\"nr_layers\":4,\"groups\":[" GROUP "]}", "name: given twice", "line 1", "once");
	refuse(IN_GROUP("\"kind\":\"full\",\"layers\":\"all\",\n\"kind\":\"swa\""), "groups[0].kind: given twice", "line 2", "once");
	refuse(IN_PLANE("\"role\":\"k\",\"elems\":1,\"elems\":2"), "groups[0].planes[1].elems: given twice", "", "once");
}

static void test_deep_and_huge(void **state)
{
	size_t len = 900000;
	char *text = malloc(len + 200000);
	int n;

	(void)state;
	assert_non_null(text);
	memset(text, '[', len);
	refuse_bytes(text, len, "[0][0][0][0][0]:", "6 deep, at byte 6", "at most 5");
	refuse(IN_PLANE("\"role\":{\"x\":1}"), "groups[0].planes[1].role:", "6 deep", "at most 5");

	n = sprintf(text, "{\"name\":\"m\",\"nr_layers\":4,\"groups\":[{\"kind\":\"full\",\"planes\":[" PLANE "],\"layers\":[0");
	for (size_t i = 0; i < 400000; i++)
		memcpy(text + n + 2 * i, ",0", 2);
	n += 800000;
	n += sprintf(text + n, "]}]}");
	refuse_bytes(text, (size_t)n, "groups[0].layers:", "400001 entries", "1 to 4");

	memset(text, ' ', len + 200000);
	refuse_bytes(text, OMNIKV_LAYOUT_JSON_MAX + 1, "layout:", "1048577", "1048576");
	refuse_bytes(text, OMNIKV_LAYOUT_JSON_MAX, "layout:", "line 1", "");
	free(text);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_good_is_good),
		cmocka_unit_test(test_no_json),
		cmocka_unit_test(test_wrong_type_at_top),
		cmocka_unit_test(test_out_of_range),
		cmocka_unit_test(test_lists),
		cmocka_unit_test(test_missing),
		cmocka_unit_test(test_unknown_field),
		cmocka_unit_test(test_duplicate),
		cmocka_unit_test(test_deep_and_huge),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

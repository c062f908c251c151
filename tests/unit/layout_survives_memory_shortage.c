// SPDX-License-Identifier: GPL-2.0-only
/*
 * Where memory is short, or the hash fails, each function of layouts, plans, keys and
 * namespaces returns -ENOMEM, leaves its result as it was and leaks nothing (the address sanitizer watches).
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include <omnikv/key.h>

#include "failpoint.h"

static struct omnikv_layout layout, result;
static struct omnikv_plan plan;
static uint32_t tokens[64];

static const char text[] = "{\"name\":\"m\",\"nr_layers\":1,\"groups\":[{\"kind\":\"full\",\"layers\":\"all\",\"planes\":["
			   "{\"role\":\"k\",\"dtype\":\"u8\",\"heads\":1,\"elems\":1}]}]}";

static int setup(void **state)
{
	(void)state;
	return omnikv_layout_preset("tiny", &layout, NULL);
}

static void arm(const char *name, uint32_t nth)
{
	struct okv_failpoint point = { .name = name, .nth = nth, .times = 1, .error = ENOMEM };

	okv_failpoint_disarm_all();
	assert_int_equal(okv_failpoint_arm(&point), 0);
}

static bool is_untouched(const void *bytes, size_t nr_bytes)
{
	for (size_t i = 0; i < nr_bytes; i++)
		if (((const uint8_t *)bytes)[i] != 0x5a)
			return false;
	return true;
}

static void test_identities(void **state)
{
	static const struct {
		const char	*name;
		uint32_t	nth;
	} points[] = {
		{ "identity.init", 1 }, { "identity.update", 1 }, { "identity.update", 2 }, { "identity.update", 5 },
		{ "identity.final", 1 },
	};
	struct omnikv_namespace ns = { .size = sizeof(ns), .tenant = "t" };
	struct omnikv_key key, partial;
	uint8_t identity[32];

	(void)state;
	memset(identity, 0x5a, sizeof(identity));
	memset(&partial, 0x5a, sizeof(partial));
	assert_int_equal(omnikv_key_init(&key, "k", 1), 0);
	for (size_t i = 0; i < sizeof(points) / sizeof(points[0]); i++) {
		arm(points[i].name, points[i].nth);
		assert_int_equal(omnikv_layout_identity(&layout, identity), -ENOMEM);
		arm(points[i].name, points[i].nth);
		assert_int_equal(omnikv_namespace_identity(&ns, identity), -ENOMEM);
		arm(points[i].name, points[i].nth);
		assert_int_equal(omnikv_key_partial(&key, 1, &partial), -ENOMEM);
		assert_true(is_untouched(identity, sizeof(identity)));
		assert_true(is_untouched(&partial, sizeof(partial)));
	}
	/* The layout's own identity fails inside the namespace's. */
	ns.layout = &layout;
	arm("identity.final", 1);
	assert_int_equal(omnikv_namespace_identity(&ns, identity), -ENOMEM);
	assert_true(is_untouched(identity, sizeof(identity)));
	assert_int_equal(omnikv_namespace_identity(&ns, identity), 0);
}

static void test_chains(void **state)
{
	static uint32_t many[3000];
	static char seed[10000];
	struct omnikv_key keys[4];

	(void)state;
	arm("chain.fetch", 1);
	assert_int_equal(omnikv_chain_vllm("0", tokens, 64, 16, NULL, 0, keys), -ENOMEM);
	arm("chain.fetch", 1);
	assert_int_equal(omnikv_chain_sglang(tokens, 64, 16, keys), -ENOMEM);
	for (uint32_t nth = 1; nth <= 5; nth++) {
		arm("chain.update", nth);
		assert_int_equal(omnikv_chain_vllm("0", tokens, 64, 16, NULL, 0, keys), -ENOMEM);
		arm("chain.final", nth);
		assert_int_equal(omnikv_chain_vllm("0", tokens, 64, 16, NULL, 0, keys), -ENOMEM);
	}
	for (uint32_t nth = 1; nth <= 4; nth++) {
		arm("chain.final", nth);
		assert_int_equal(omnikv_chain_sglang(tokens, 64, 16, keys), -ENOMEM);
	}
	/* Between two halves of a long block, and behind a long seed. */
	arm("chain.update", 1);
	assert_int_equal(omnikv_chain_sglang(many, 3000, 3000, keys), -ENOMEM);
	memset(seed, 's', sizeof(seed) - 1);
	arm("chain.update_long", 1);
	assert_int_equal(omnikv_chain_vllm(seed, many, 3000, 3000, NULL, 0, keys), -ENOMEM);
	okv_failpoint_disarm_all();
	assert_int_equal(omnikv_chain_vllm(seed, many, 3000, 3000, NULL, 0, keys), 1);
}

static void test_plan_and_parse(void **state)
{
	(void)state;
	memset(&plan, 0x5a, sizeof(plan));
	memset(&result, 0x5a, sizeof(result));
	arm("plan.alloc", 1);
	assert_int_equal(omnikv_plan_make(&layout, NULL, &plan, NULL), -ENOMEM);
	assert_true(is_untouched(&plan, sizeof(plan)));
	arm("layout_json.alloc", 1);
	assert_int_equal(omnikv_layout_parse(text, strlen(text), &result, NULL), -ENOMEM);
	assert_true(is_untouched(&result, sizeof(result)));
	assert_int_equal(omnikv_layout_parse(text, strlen(text), &result, NULL), 0);
}

static int left;	/* allocations of jansson that still succeed */

static void *failing_malloc(size_t bytes)
{
	return left-- > 0 ? malloc(bytes) : NULL;
}

/* Every allocation of the JSON library fails in turn, in the writer and in the reader. */
static void test_json_library(void **state)
{
	char *json = NULL;
	int n, ret = -ENOMEM;

	(void)state;
	okv_failpoint_disarm_all();
	json_set_alloc_funcs(failing_malloc, free);
	for (n = 0; ret; n++) {
		left = n;
		ret = omnikv_layout_format(&layout, &json);
		assert_true(ret == 0 || ret == -ENOMEM);
		assert_true(ret == 0 || json == NULL);
	}
	assert_true(n > 50);
	for (n = 0, ret = -ENOMEM; ret; n++) {
		struct omnikv_error err = { "" };

		memset(&result, 0x5a, sizeof(result));
		left = n;
		ret = omnikv_layout_parse(text, strlen(text), &result, &err);
		/* For some jansson says that the text is wrong. */
		assert_true(ret == 0 || ((ret == -ENOMEM || ret == -EINVAL) && is_untouched(&result, sizeof(result))));
	}
	assert_true(n > 20);
	left = 1 << 30;
	free(json);
	json_set_alloc_funcs(malloc, free);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_identities),
		cmocka_unit_test(test_chains),
		cmocka_unit_test(test_plan_and_parse),
		cmocka_unit_test(test_json_library),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}

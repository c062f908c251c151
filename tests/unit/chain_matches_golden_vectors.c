// SPDX-License-Identifier: GPL-2.0-only
/*
 * Chains give the keys that vLLM and SGLang give.
 *
 * The vectors were computed with Python's cbor2 (canonical) and hashlib after vllm/v1/core/kv_cache_utils.py
 * and SGLang's get_hash_str; they stand here so that the test needs no other file.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <omnikv/key.h>

#define T 16u

/* Blocks: 1..16, 17..32, then these. */
static const uint32_t third[T] = {
	0, 9973, 19946, 29919, 39892, 49865, 59838, 69811,
	79784, 89757, 99730, 109703, 119676, 1393, 11366, 21339,
};

static const char *const vllm_hash[] = {
	"202da172482d928bbc42ab25b0151e2b895f13f41002e27b2ceabcfae6d332ea",
	"4a0a393805c6d2f0ed831000d41bb65980336c4c04895d5e26470bbec927f5bf",
	"3f4f071b79101efcd0178ac23847329db252b012f324fd8e53931d13bb49588e",
};
static const char vllm_salted[] = "311d71020bc0aac18e382b51df4e162c75cbf9f31e5a6868d6bdfee02bc9f258";

/* The block behind it, which has no extra keys of its own; by Python's hashlib. */
static const char vllm_behind_salted[] = "f1afdbf0f9d6eb112332c54425a4d498118d8f05337c6453ea343ab9e847b97e";

static const char *const sglang_hash[] = {
	"77d735ce838418aa151bd96b5b1e78ee63860892e0a95c00fe34178442be9b07",
	"1170426cf2449cebf4d17f087ce5bb43b6a910ce91b3f40922868e913e8ee91d",
	"61b10958caa435e575d955e363eecd7c0ebc0c258d66fee01b17221cd7acd901",
};

static uint32_t tokens[3 * T + 5];

static int setup(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < 2 * T; i++)
		tokens[i] = i + 1;
	memcpy(tokens + 2 * T, third, sizeof(third));
	return 0;
}

static void assert_key(const struct omnikv_key *key, const char *hex)
{
	char text[65];

	assert_int_equal(key->len, 32);
	for (int i = 0; i < 32; i++)
		snprintf(text + 2 * i, 3, "%02x", key->bytes[i]);
	assert_string_equal(text, hex);
}

static void test_vllm(void **state)
{
	struct omnikv_key keys[4] = { 0 };

	(void)state;
	/* 53 tokens: three full blocks; the five left over make no key */
	assert_int_equal(omnikv_chain_vllm("0", tokens, 3 * T + 5, T, NULL, 0, keys), 3);
	for (int i = 0; i < 3; i++)
		assert_key(&keys[i], vllm_hash[i]);
	assert_int_equal(keys[3].len, 0);
}

static void test_vllm_extra_keys(void **state)
{
	const char *const extra[] = { "salt-a" };
	const char *const two[] = { "salt-a", "x" };
	struct omnikv_key keys[2], other[2];

	(void)state;
	assert_int_equal(omnikv_chain_vllm("0", tokens, 2 * T, T, extra, 1, keys), 2);
	assert_key(&keys[0], vllm_salted);
	assert_key(&keys[1], vllm_behind_salted);
	assert_int_equal(omnikv_chain_vllm("0", tokens, T, T, two, 2, other), 1);
	assert_memory_not_equal(keys[0].bytes, other[0].bytes, 32);
}

/*
 * One block of 5000 tokens of every CBOR width and a seed and salt of 5000 characters: more than any buffer. Computed
 * with python3: hashlib and a CBOR encoder of 20 lines (RFC 8949, 4.2.1).
 */
static void test_vllm_every_width(void **state)
{
	static const uint32_t edge[] = { 0, 23, 24, 255, 256, 65535, 65536, UINT32_MAX };
	static uint32_t many[5000];
	static char text[5001];
	const char *const extra[] = { text, "b" };
	struct omnikv_key key;

	(void)state;
	for (uint32_t i = 0; i < 5000; i++)
		many[i] = edge[i % 8];
	memset(text, 's', 5000);
	assert_int_equal(omnikv_chain_vllm(text, many, 5000, 5000, extra, 2, &key), 1);
	assert_key(&key, "1c440e3b3914d85e4e0f18db107ab3bdbbe113092053ef4b6735a73cf762856f");
	assert_int_equal(omnikv_chain_sglang(many, 5000, 5000, &key), 1);
	assert_key(&key, "1ea27a532250f97dfd5a127efcb6d1e9bc0f6d61f049436bac0ef9acd04fbc4b");
	assert_int_equal(omnikv_chain_vllm("0", edge, 8, 1, NULL, 0, (struct omnikv_key[8]){ 0 }), 8);
}

static void test_sglang(void **state)
{
	struct omnikv_key keys[4] = { 0 };

	(void)state;
	assert_int_equal(omnikv_chain_sglang(tokens, 3 * T + 5, T, keys), 3);
	for (int i = 0; i < 3; i++)
		assert_key(&keys[i], sglang_hash[i]);
	assert_int_equal(keys[3].len, 0);
}

static void test_prefix_decides(void **state)
{
	struct omnikv_key a[3], b[3];

	(void)state;
	/* A longer prompt has the same keys for the same prefix; a changed token changes its block and all after it. */
	assert_int_equal(omnikv_chain_vllm("0", tokens, 2 * T, T, NULL, 0, a), 2);
	tokens[T] ^= 1;
	assert_int_equal(omnikv_chain_vllm("0", tokens, 3 * T, T, NULL, 0, b), 3);
	tokens[T] ^= 1;
	assert_memory_equal(a[0].bytes, b[0].bytes, 32);
	assert_memory_not_equal(a[1].bytes, b[1].bytes, 32);
	/* Another seed shares nothing. */
	assert_int_equal(omnikv_chain_vllm("1", tokens, 2 * T, T, NULL, 0, b), 2);
	assert_memory_not_equal(a[0].bytes, b[0].bytes, 32);
}

static void test_bad_arguments(void **state)
{
	const char *const hole[] = { "a", NULL };
	struct omnikv_key keys[3];

	(void)state;
	memset(keys, 0x5a, sizeof(keys));
	assert_int_equal(omnikv_chain_vllm(NULL, tokens, T, T, NULL, 0, keys), -EINVAL);
	assert_int_equal(omnikv_chain_vllm("0", NULL, T, T, NULL, 0, keys), -EINVAL);
	assert_int_equal(omnikv_chain_vllm("0", tokens, T, 0, NULL, 0, keys), -EINVAL);
	assert_int_equal(omnikv_chain_vllm("0", tokens, T, T, NULL, 0, NULL), -EINVAL);
	assert_int_equal(omnikv_chain_vllm("0", tokens, T, T, NULL, 1, keys), -EINVAL);
	assert_int_equal(omnikv_chain_vllm("0", tokens, T, T, hole, 2, keys), -EINVAL);
	assert_int_equal(omnikv_chain_sglang(NULL, T, T, keys), -EINVAL);
	assert_int_equal(omnikv_chain_sglang(tokens, T, 0, keys), -EINVAL);
	assert_int_equal(omnikv_chain_sglang(tokens, T, T, NULL), -EINVAL);
	assert_int_equal(keys[0].len, 0x5a5a5a5a);
	/* Less than one block is no error. */
	assert_int_equal(omnikv_chain_vllm("0", NULL, 0, T, NULL, 0, NULL), 0);
	assert_int_equal(omnikv_chain_vllm("0", tokens, T - 1, T, NULL, 0, NULL), 0);
	assert_int_equal(omnikv_chain_sglang(NULL, 0, T, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_vllm),
		cmocka_unit_test(test_vllm_extra_keys),
		cmocka_unit_test(test_vllm_every_width),
		cmocka_unit_test(test_sglang),
		cmocka_unit_test(test_prefix_decides),
		cmocka_unit_test(test_bad_arguments),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}

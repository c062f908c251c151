// SPDX-License-Identifier: GPL-2.0-only
/*
 * A key has 1 to 32 bytes and nothing behind them; a key of no length is refused, never found.
 * The key of a partial tail is bound to the number of its tokens.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <omnikv/key.h>

static const uint8_t bytes[OMNIKV_KEY_BYTES_MAX + 1] = "0123456789abcdef0123456789ABCDEF";

static void test_init(void **state)
{
	static const uint8_t zero[OMNIKV_KEY_BYTES_MAX];
	struct omnikv_key key, before;

	(void)state;
	memset(&key, 0x5a, sizeof(key));
	before = key;
	assert_int_equal(omnikv_key_init(&key, bytes, 0), -EINVAL);
	assert_int_equal(omnikv_key_init(&key, bytes, OMNIKV_KEY_BYTES_MAX + 1), -EINVAL);
	assert_int_equal(omnikv_key_init(&key, bytes, SIZE_MAX), -EINVAL);
	assert_int_equal(omnikv_key_init(&key, NULL, 1), -EINVAL);
	assert_int_equal(omnikv_key_init(&key, NULL, 0), -EINVAL);
	assert_int_equal(omnikv_key_init(NULL, bytes, 1), -EINVAL);
	assert_memory_equal(&key, &before, sizeof(key));

	for (size_t len = 1; len <= OMNIKV_KEY_BYTES_MAX; len++) {
		memset(&key, 0x5a, sizeof(key));
		assert_int_equal(omnikv_key_init(&key, bytes, len), 0);
		assert_int_equal(key.len, len);
		assert_memory_equal(key.bytes, bytes, len);
		assert_memory_equal(key.bytes + len, zero, OMNIKV_KEY_BYTES_MAX - len);
	}
	/* In place: the first 4 bytes of itself. */
	assert_int_equal(omnikv_key_init(&key, key.bytes, 4), 0);
	assert_memory_equal(key.bytes, "0123", 5);
}

/* SHA-256 of: 16 "omnikv-partial-1", 4 "0123", 8 7; numbers as 64-bit little endian. By Python's hashlib. */
static const uint8_t golden[32] = {
	0xc9, 0xbc, 0x98, 0x5e, 0x5f, 0x8f, 0x04, 0x5c,
	0xb3, 0xc8, 0xd7, 0x55, 0x89, 0x89, 0xfb, 0x92,
	0x8b, 0xe9, 0xd4, 0xe8, 0x15, 0x92, 0xc2, 0xe1,
	0xa5, 0x5f, 0x0d, 0x13, 0xe3, 0x69, 0x4f, 0x80,
};

static void test_partial(void **state)
{
	struct omnikv_key key, a, b, other;

	(void)state;
	assert_int_equal(omnikv_key_init(&key, bytes, 4), 0);
	assert_int_equal(omnikv_key_partial(&key, 7, &a), 0);
	assert_int_equal(a.len, 32);
	assert_memory_equal(a.bytes, golden, 32);

	assert_int_equal(omnikv_key_partial(&key, 8, &b), 0);
	assert_memory_not_equal(a.bytes, b.bytes, 32);
	assert_int_equal(omnikv_key_init(&other, bytes, 5), 0);
	assert_int_equal(omnikv_key_partial(&other, 7, &b), 0);
	assert_memory_not_equal(a.bytes, b.bytes, 32);
	/* A key that ends with zero bytes is not its shorter self. */
	assert_int_equal(omnikv_key_init(&other, "0123\0", 5), 0);
	assert_int_equal(omnikv_key_partial(&other, 7, &b), 0);
	assert_memory_not_equal(a.bytes, b.bytes, 32);

	assert_int_equal(omnikv_key_partial(&key, 7, &key), 0);
	assert_memory_equal(&key, &a, sizeof(a));
}

static void test_partial_refuses(void **state)
{
	struct omnikv_key key = { .len = 0 }, out, before;

	(void)state;
	memset(&out, 0x5a, sizeof(out));
	before = out;
	assert_int_equal(omnikv_key_partial(&key, 1, &out), -EINVAL);
	key.len = OMNIKV_KEY_BYTES_MAX + 1;
	assert_int_equal(omnikv_key_partial(&key, 1, &out), -EINVAL);
	key.len = 4;
	assert_int_equal(omnikv_key_partial(&key, 0, &out), -EINVAL);
	assert_int_equal(omnikv_key_partial(NULL, 1, &out), -EINVAL);
	assert_int_equal(omnikv_key_partial(&key, 1, NULL), -EINVAL);
	assert_memory_equal(&out, &before, sizeof(out));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_init),
		cmocka_unit_test(test_partial),
		cmocka_unit_test(test_partial_refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

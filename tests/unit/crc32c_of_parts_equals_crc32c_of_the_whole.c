// SPDX-License-Identifier: GPL-2.0-only
/*
 * CRC32C against published check values (RFC 3720, B.4) and against itself: the sum of two
 * parts combined is the sum of the whole, for every split that could go wrong.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <omnikv/ring.h>

#include "crc32c.h"

static void published_values(void **state)
{
	uint8_t buf[32];
	int i;

	(void)state;
	memset(buf, 0, sizeof(buf));
	assert_int_equal(okv_crc32c(buf, 32), 0x8a9136aa);
	memset(buf, 0xff, sizeof(buf));
	assert_int_equal(okv_crc32c(buf, 32), 0x62a8ab43);
	for (i = 0; i < 32; i++)
		buf[i] = (uint8_t)i;
	assert_int_equal(okv_crc32c(buf, 32), 0x46dd794e);
	assert_int_equal(okv_crc32c("123456789", 9), 0xe3069283);
	assert_int_equal(okv_crc32c(NULL, 0), 0);
}

static void parts_combine(void **state)
{
	static const size_t lens[] = { 0, 1, 2, 7, 8, 63, 64, 255, 256, 576, 4095, 4096, 65536 };
	uint8_t *buf = malloc(2 * 65536);
	struct okv_crc32c_shift shift;
	size_t a, b, i;

	(void)state;
	assert_non_null(buf);
	srand(1);
	for (i = 0; i < 2 * 65536; i++)
		buf[i] = (uint8_t)rand();
	for (a = 0; a < sizeof(lens) / sizeof(lens[0]); a++) {
		for (b = 0; b < sizeof(lens) / sizeof(lens[0]); b++) {
			uint32_t whole = okv_crc32c(buf, lens[a] + lens[b]);
			uint32_t first = okv_crc32c(buf, lens[a]);

			okv_crc32c_shift_init(&shift, lens[b]);
			assert_int_equal(okv_crc32c_combine(&shift, first, okv_crc32c(buf + lens[a], lens[b])),
					 whole);
			assert_int_equal(omnikv_crc32c_combine(first, okv_crc32c(buf + lens[a], lens[b]), lens[b]), whole);
			assert_int_equal(okv_crc32c_extend(first, buf + lens[a], lens[b]), whole);
		}
	}
	free(buf);
}

static void long_shift_equals_many_short_ones(void **state)
{
	struct okv_crc32c_shift once, step;
	uint32_t crc = 0x12345678;
	int i;

	(void)state;
	/* 2^33 bytes in one shift, and as 8192 shifts of 2^20. */
	okv_crc32c_shift_init(&once, 1ull << 33);
	okv_crc32c_shift_init(&step, 1ull << 20);
	for (i = 0; i < 8192; i++)
		crc = okv_crc32c_combine(&step, crc, 0);
	assert_int_equal(okv_crc32c_combine(&once, 0x12345678, 0), crc);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(published_values),
		cmocka_unit_test(parts_combine),
		cmocka_unit_test(long_shift_equals_many_short_ones),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

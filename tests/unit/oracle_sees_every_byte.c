// SPDX-License-Identifier: GPL-2.0-only
/*
 * The oracle: parts agree with the whole at every offset and length, every flipped byte is
 * counted, and no two of (tenant, key, group, layer, plane) share content.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tools/omnikv/gpu.h"
#include "tools/omnikv/oracle.h"

static uint64_t seed_of(uint64_t tenant, uint64_t word, uint32_t group, uint32_t layer, uint32_t plane)
{
	struct omnikv_key key;

	assert_int_equal(omnikv_key_init(&key, &word, sizeof(word)), 0);
	return okv_oracle_plane(okv_oracle_block(tenant, &key), group, layer, plane);
}

static void parts_agree_with_the_whole(void **state)
{
	uint8_t whole[96], part[96];
	uint64_t seed = seed_of(1, 2, 0, 0, 0), first;
	size_t off, len;

	(void)state;
	okv_oracle_fill(seed, 0, whole, sizeof(whole));
	for (off = 0; off < 40; off++) {
		for (len = 0; off + len <= sizeof(whole); len++) {
			memset(part, 0, sizeof(part));
			okv_oracle_fill(seed, off, part, len);
			assert_memory_equal(part, whole + off, len);
			first = 77;
			assert_int_equal(okv_oracle_check(seed, off, whole + off, len, &first), 0);
			assert_int_equal(first, 77);
		}
	}
}

static void every_flip_is_counted(void **state)
{
	uint64_t seed = seed_of(1, 2, 0, 0, 0), first = 0;
	uint8_t buf[61];
	size_t off, at;
	int bit;

	(void)state;
	for (off = 0; off < 9; off++) {
		okv_oracle_fill(seed, off, buf, sizeof(buf));
		for (at = 0; at < sizeof(buf); at++) {
			for (bit = 0; bit < 8; bit++) {
				buf[at] ^= 1 << bit;
				assert_int_equal(okv_oracle_check(seed, off, buf, sizeof(buf), &first), 1);
				assert_int_equal(first, at);
				buf[at] ^= 1 << bit;
			}
		}
		buf[3] ^= 1;
		buf[40] ^= 1;
		buf[60] ^= 1;
		assert_int_equal(okv_oracle_check(seed, off, buf, sizeof(buf), &first), 3);
		assert_int_equal(first, 3);
	}
}

/* Bytes of different places agree no more often than by chance: of 4096 bytes 16 are expected, 64 never happen. */
static void assert_unlike(const uint8_t *a, const uint8_t *b)
{
	int same = 0, i;

	for (i = 0; i < 4096; i++)
		same += a[i] == b[i];
	assert_in_range(same, 0, 48);
}

static void content_differs_by_every_coordinate(void **state)
{
	uint8_t a[4096 + 8], b[4096];
	struct omnikv_key longer, shorter;
	uint64_t word = 7;

	(void)state;
	okv_oracle_fill(seed_of(okv_oracle_text("t"), 7, 1, 2, 1), 0, a, sizeof(a));
	okv_oracle_fill(seed_of(okv_oracle_text("u"), 7, 1, 2, 1), 0, b, sizeof(b));
	assert_unlike(a, b);
	okv_oracle_fill(seed_of(okv_oracle_text("t"), 8, 1, 2, 1), 0, b, sizeof(b));
	assert_unlike(a, b);
	okv_oracle_fill(seed_of(okv_oracle_text("t"), 7, 0, 2, 1), 0, b, sizeof(b));
	assert_unlike(a, b);
	okv_oracle_fill(seed_of(okv_oracle_text("t"), 7, 1, 3, 1), 0, b, sizeof(b));
	assert_unlike(a, b);
	okv_oracle_fill(seed_of(okv_oracle_text("t"), 7, 1, 2, 0), 0, b, sizeof(b));
	assert_unlike(a, b);
	/* A row read in another's place. */
	assert_unlike(a, a + 4);
	assert_unlike(a, a + 8);

	/* A key that differs in its length alone. */
	assert_int_equal(omnikv_key_init(&shorter, &word, 7), 0);
	assert_int_equal(omnikv_key_init(&longer, &word, 8), 0);
	assert_memory_equal(shorter.bytes, longer.bytes, sizeof(longer.bytes));
	assert_int_not_equal(okv_oracle_block(1, &shorter), okv_oracle_block(1, &longer));
}

static void prefill_times_by_hand(void **state)
{
	struct omnikv_layout *layout = calloc(1, sizeof(*layout));
	const struct okv_gpu *h100 = okv_gpu_find("h100");

	(void)state;
	assert_non_null(layout);
	layout->layer_params = 218.1e6;
	layout->q_heads = 32;
	layout->head_dim = 128;
	/* 2 x 218.1e6 x 1000 + 4 x 32 x 128 x 1000 x 500 = 444.392e9 operations at 494.5e12 a second */
	assert_in_range(okv_gpu_prefill_ns(h100, layout, 0, 1000), 898669 - 1, 898669 + 1);
	/* 8000 tokens of history: 4 x 32 x 128 x 1000 x 8000 = 131.072e9 more */
	assert_in_range(okv_gpu_prefill_ns(h100, layout, 8000, 1000), 1163729 - 1, 1163729 + 1);
	/* h20: 148e12 x 0.7 */
	assert_in_range(okv_gpu_prefill_ns(okv_gpu_find("h20"), layout, 0, 1000), 4289498 - 1, 4289498 + 1);
	assert_int_equal(okv_gpu_prefill_ns(h100, layout, 8000, 0), 0);
	assert_null(okv_gpu_find("h1000"));
	assert_non_null(strstr(okv_gpu_names(), "b200"));
	free(layout);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(parts_agree_with_the_whole),
		cmocka_unit_test(every_flip_is_counted),
		cmocka_unit_test(content_differs_by_every_coordinate),
		cmocka_unit_test(prefill_times_by_hand),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

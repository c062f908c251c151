// SPDX-License-Identifier: GPL-2.0-only
/*
 * Every path copies the same bytes and yields the same sums as memcpy() and ISA-L, for every
 * length, alignment and grouping, and touches nothing beside.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../harness/ring_fixture.h"
#include "copy.h"
#include "crc32c.h"

#define NR_MAX		96
#define GUARD		128

static void check(enum okv_copy_path path, const uint64_t *bytes, const uint32_t *src_skew, const uint32_t *dst_skew,
		  uint32_t nr, bool sums)
{
	struct okv_run runs[NR_MAX];
	uint32_t crc[NR_MAX], i;
	uint64_t room = GUARD, src_off = GUARD, dst_off = GUARD;
	uint8_t *src, *dst, *want;

	for (i = 0; i < nr; i++)
		room += bytes[i] + 64 + 64 + GUARD;
	room = (room + 64 + 63) & ~UINT64_C(63);
	/* Exactly as long as needed, so that reading beyond the end is seen by a sanitizer. */
	src = aligned_alloc(64, room);
	dst = aligned_alloc(64, room);
	want = malloc(room);
	assert_true(src && dst && want);
	fixture_fill(src, room, 1, 0);
	memset(dst, 0xa5, room);
	memset(want, 0xa5, room);
	memset(crc, 0, sizeof(crc));
	for (i = 0; i < nr; i++) {
		src_off = ((src_off + 63) & ~UINT64_C(63)) + src_skew[i];
		dst_off = ((dst_off + 63) & ~UINT64_C(63)) + dst_skew[i];
		runs[i] = (struct okv_run) { src + src_off, dst + dst_off, bytes[i] };
		memcpy(want + dst_off, src + src_off, bytes[i]);
		src_off += bytes[i];
		dst_off += bytes[i] + GUARD;
		assert_true(dst_off <= room);
	}
	okv_copy_runs_by(path, runs, nr, sums ? crc : NULL);
	assert_memory_equal(dst, want, room);
	for (i = 0; i < nr; i++)
		assert_int_equal(crc[i], sums ? okv_crc32c(runs[i].src, bytes[i]) : 0);
	free(src);
	free(dst);
	free(want);
}

static void single_runs_of_every_length(void **state)
{
	enum okv_copy_path path = (enum okv_copy_path)(uintptr_t)*state;
	static const uint32_t skews[] = { 0, 1, 16, 32, 63 };
	uint64_t bytes;
	uint32_t i, j;

	if (!okv_copy_path_is_usable(path)) {
		print_message("this processor lacks its instructions\n");
		skip();
	}
	for (bytes = 1; bytes < 900; bytes++) {
		for (i = 0; i < 5; i++) {
			for (j = 0; j < 5; j++) {
				check(path, &bytes, &skews[i], &skews[j], 1, false);
				check(path, &bytes, &skews[i], &skews[j], 1, true);
			}
		}
	}
}

static void groups_of_equal_length(void **state)
{
	enum okv_copy_path path = (enum okv_copy_path)(uintptr_t)*state;
	static const uint64_t lengths[] = { 1, 64, 128, 576, 656, 831, 832, 1000, 1152, 2048, 4096, 16384, 16448, 65536 };
	static const uint32_t none[NR_MAX];
	uint64_t bytes[NR_MAX];
	uint32_t skew[NR_MAX], nr, i;
	size_t l;

	if (!okv_copy_path_is_usable(path)) {
		print_message("this processor lacks its instructions\n");
		skip();
	}
	for (l = 0; l < sizeof(lengths) / sizeof(lengths[0]); l++) {
		for (i = 0; i < NR_MAX; i++) {
			bytes[i] = lengths[l];
			skew[i] = i % 7 * 9;
		}
		for (nr = 1; nr <= (lengths[l] > 5000 ? 9u : NR_MAX); nr += nr < 10 ? 1 : 43) {
			check(path, bytes, none, none, nr, false);
			check(path, bytes, none, none, nr, true);
			check(path, bytes, skew, none, nr, true);
			check(path, bytes, none, skew, nr, true);
		}
	}
}

static void lists_of_anything(void **state)
{
	enum okv_copy_path path = (enum okv_copy_path)(uintptr_t)*state;
	uint64_t random = 77, bytes[NR_MAX];
	uint32_t src_skew[NR_MAX], dst_skew[NR_MAX], round, i;

	if (!okv_copy_path_is_usable(path)) {
		print_message("this processor lacks its instructions\n");
		skip();
	}
	for (round = 0; round < 300; round++) {
		uint64_t x = fixture_random(&random), same = 1 + (x >> 8) % 3000;
		uint32_t nr = 1 + (uint32_t)(x % NR_MAX);

		for (i = 0; i < nr; i++) {
			uint64_t y = fixture_random(&random);

			bytes[i] = y % 8 ? same : 1 + (y >> 8) % 3000;
			src_skew[i] = y >> 20 & 1 ? (y >> 24) % 64 : 0;
			dst_skew[i] = (y >> 21) % 8 ? 0 : (y >> 32) % 64;
		}
		check(path, bytes, src_skew, dst_skew, nr, x >> 40 & 1);
	}
}

static void one_run_extends_a_sum(void **state)
{
	enum { BYTES = 100000 };
	uint8_t *src = malloc(BYTES), *dst = malloc(BYTES);
	struct okv_run run;
	uint32_t crc = 0;

	(void)state;
	assert_true(src && dst);
	fixture_fill(src, BYTES, 4, 0);
	run = (struct okv_run) { src, dst, 12345 };
	okv_copy_run_extend(&run, &crc);
	run = (struct okv_run) { src + 12345, dst + 12345, BYTES - 12345 };
	okv_copy_run_extend(&run, &crc);
	assert_memory_equal(src, dst, BYTES);
	assert_int_equal(crc, okv_crc32c(src, BYTES));
	memset(dst, 0, BYTES);
	run = (struct okv_run) { src, dst, BYTES };
	okv_copy_run_extend(&run, NULL);
	assert_memory_equal(src, dst, BYTES);
	free(src);
	free(dst);
}

static void chosen_path_is_usable(void **state)
{
	(void)state;
	assert_true(okv_copy_path_is_usable(OKV_COPY_PORTABLE));
	assert_true(okv_copy_path_is_usable(okv_copy_path_chosen()));
	assert_string_equal(okv_copy_path_name(OKV_COPY_AVX2), "avx2");
	assert_string_equal(okv_copy_path_name(OKV_COPY_AVX512_AMD), "avx512-amd");
}

#define BY_EVERY_PATH(fn) \
	{ #fn "_portable", fn, NULL, NULL, (void *)(uintptr_t)OKV_COPY_PORTABLE }, \
	{ #fn "_avx2", fn, NULL, NULL, (void *)(uintptr_t)OKV_COPY_AVX2 }, \
	{ #fn "_avx2_amd", fn, NULL, NULL, (void *)(uintptr_t)OKV_COPY_AVX2_AMD }, \
	{ #fn "_avx512", fn, NULL, NULL, (void *)(uintptr_t)OKV_COPY_AVX512 }, \
	{ #fn "_avx512_amd", fn, NULL, NULL, (void *)(uintptr_t)OKV_COPY_AVX512_AMD }

int main(void)
{
	const struct CMUnitTest tests[] = {
		BY_EVERY_PATH(single_runs_of_every_length),
		BY_EVERY_PATH(groups_of_equal_length),
		BY_EVERY_PATH(lists_of_anything),
		cmocka_unit_test(one_run_extends_a_sum),
		cmocka_unit_test(chosen_path_is_usable),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Launchers: each argument that cannot be right is refused and starts nothing; CTAs are as many as there is work for,
 * and never more than allowed; shards meet where the whole has the same units.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/geometry.h"

static uint32_t nr_launches, last_ctas;
static enum okv_kernel last_kernel;
static int answer;

static int count(void *ctx, enum okv_kernel kernel, uint32_t nr_ctas, const void *args)
{
	assert_ptr_equal(ctx, &answer);
	assert_non_null(args);
	nr_launches++;
	last_kernel = kernel;
	last_ctas = nr_ctas;
	return answer;
}

static const struct okv_kernel_ops ops = { .name = "count", .launch = count };

#define refused(launch, args, field, bad) do {							\
	__typeof__(args) changed = (args);							\
	changed.field = (bad);									\
	assert_int_equal(launch(&ops, &answer, 4, &changed), -EINVAL);				\
	assert_int_equal(nr_launches, before);							\
} while (0)

/* What all launchers have in common. */
#define check_common(launch, args, kernel) do {							\
	uint32_t before = nr_launches;								\
	__typeof__(args) empty = (args);							\
												\
	assert_int_equal(launch(&ops, &answer, 0, &(args)), -EINVAL);				\
	refused(launch, args, list, 0);								\
	refused(launch, args, list, 4);								\
	refused(launch, args, nr, OKV_KERNEL_LIST_MAX + 1);					\
	empty.nr = 0;										\
	empty.list = 0;										\
	assert_int_equal(launch(&ops, &answer, 4, &empty), 0);					\
	assert_int_equal(nr_launches, before);							\
	assert_int_equal(launch(&ops, &answer, 4, &(args)), 0);					\
	assert_int_equal(nr_launches, before + 1);						\
	assert_int_equal(last_kernel, kernel);							\
	answer = -EIO;										\
	assert_int_equal(launch(&ops, &answer, 4, &(args)), -EIO);				\
	answer = 0;										\
} while (0)

static void copies_are_checked(void **state)
{
	struct okv_copy_args args = { .list = 4096, .nr = 1000, .max_bytes = 4096 };
	uint32_t before;

	(void)state;
	check_common(okv_launch_copy, args, OKV_KERNEL_COPY);
	before = nr_launches;
	refused(okv_launch_copy, args, align_dst, 2);
	refused(okv_launch_copy, args, max_bytes, (uint64_t)INT64_MAX + 1);
}

static void gathers_are_checked(void **state)
{
	struct okv_gather_args args = {
		.list = 4096, .nr = 1000, .nr_planes = 2, .max_rows = 16,
		.planes = { { .device = 8192, .row_bytes = 2048 }, { .device = 65536, .row_bytes = 2048 } },
	};
	uint32_t before;

	(void)state;
	check_common(okv_launch_gather, args, OKV_KERNEL_GATHER);
	check_common(okv_launch_scatter, args, OKV_KERNEL_SCATTER);
	before = nr_launches;
	refused(okv_launch_gather, args, nr_planes, 0);
	refused(okv_launch_gather, args, nr_planes, OKV_KERNEL_PLANES_MAX + 1);
	refused(okv_launch_gather, args, nr_planes, 3);
	refused(okv_launch_gather, args, max_rows, (uint32_t)INT32_MAX + 1);
	refused(okv_launch_gather, args, reserved, 1);
	refused(okv_launch_gather, args, planes[1].device, 0);
	refused(okv_launch_gather, args, planes[1].row_bytes, 0);
	refused(okv_launch_gather, args, planes[1].row_bytes, (uint32_t)INT32_MAX + 1);
	refused(okv_launch_gather, args, planes[1].reserved, 1);
}

static void relayouts_are_checked(void **state)
{
	struct okv_relayout_args args = {
		.list = 4096, .nr = 1000, .nr_planes = 1, .nr_layers = 32, .max_rows = 16, .host_layer_bytes = 65536,
		.planes = { {
			.device = 8192, .device_layer_bytes = 1 << 20, .device_row_bytes = 512, .device_off = 128,
			.host_row_bytes = 1024, .host_slice_off = 640, .slice_bytes = 384, .rows_per_entry = 1,
		} },
	};
	uint32_t before;

	(void)state;
	check_common(okv_launch_relayout, args, OKV_KERNEL_RELAYOUT);
	before = nr_launches;
	refused(okv_launch_relayout, args, nr_planes, 0);
	refused(okv_launch_relayout, args, nr_planes, OKV_KERNEL_PLANES_MAX + 1);
	refused(okv_launch_relayout, args, nr_layers, 0);
	refused(okv_launch_relayout, args, nr_layers, UINT16_MAX + 1);
	refused(okv_launch_relayout, args, to_host, 2);
	refused(okv_launch_relayout, args, max_rows, (uint32_t)INT32_MAX + 1);
	refused(okv_launch_relayout, args, reserved, 1);
	refused(okv_launch_relayout, args, planes[0].device, 0);
	refused(okv_launch_relayout, args, planes[0].rows_per_entry, 0);
	refused(okv_launch_relayout, args, planes[0].rows_per_entry, UINT16_MAX + 1);
	refused(okv_launch_relayout, args, planes[0].slice_bytes, 0);
	/* A slice that ends behind its row, on either side, also where the sum would wrap. */
	refused(okv_launch_relayout, args, planes[0].slice_bytes, 385);
	refused(okv_launch_relayout, args, planes[0].slice_bytes, UINT32_MAX);
	refused(okv_launch_relayout, args, planes[0].device_off, 129);
	refused(okv_launch_relayout, args, planes[0].device_off, UINT32_MAX);
	refused(okv_launch_relayout, args, planes[0].host_slice_off, 641);
	refused(okv_launch_relayout, args, planes[0].host_row_bytes, UINT32_MAX);
}

static void checksums_are_checked(void **state)
{
	struct okv_crc32c_args args = { .list = 4096, .crc = 8192, .nr = 1000 };
	uint32_t before;

	(void)state;
	check_common(okv_launch_crc32c, args, OKV_KERNEL_CRC32C);
	before = nr_launches;
	refused(okv_launch_crc32c, args, crc, 0);
	refused(okv_launch_crc32c, args, crc, 8193);
	refused(okv_launch_crc32c, args, reserved, 1);
}

static void ctas_are_capped(void **state)
{
	struct okv_copy_args args = { .list = 4096, .nr = 1, .max_bytes = 0 };

	(void)state;
	assert_int_equal(okv_launch_copy(&ops, &answer, 132, &args), 0);
	assert_int_equal(last_ctas, 1);
	args.nr = OKV_COPY_GROUPS + 1;
	assert_int_equal(okv_launch_copy(&ops, &answer, 132, &args), 0);
	assert_int_equal(last_ctas, 2);
	args.nr = 3;
	args.max_bytes = (uint64_t)OKV_COPY_GROUPS * OKV_SLICE_BYTES;
	assert_int_equal(okv_launch_copy(&ops, &answer, 132, &args), 0);
	assert_int_equal(last_ctas, 3);
	assert_int_equal(okv_launch_copy(&ops, &answer, 2, &args), 0);
	assert_int_equal(last_ctas, 2);
	args.nr = OKV_KERNEL_LIST_MAX;
	args.max_bytes = INT64_MAX;
	assert_int_equal(okv_launch_copy(&ops, &answer, UINT32_MAX, &args), 0);
	assert_true(last_ctas > 132);
	assert_int_equal(okv_launch_copy(&ops, &answer, 132, &args), 0);
	assert_int_equal(last_ctas, 132);
}

static void every_kernel_has_a_name_and_fits_its_limits(void **state)
{
	int i;

	(void)state;
	for (i = 0; i < OKV_KERNEL_NR; i++) {
		assert_int_equal(strncmp(okv_kernels[i].symbol, "okv_kernel_", 11), 0);
		/* Parameters of a launch: 4 KiB on every GPU. */
		assert_in_range(okv_kernels[i].args_bytes, 1, 4096);
		assert_in_range(okv_kernels[i].cta_threads, 32, 1024);
		assert_int_equal(okv_kernels[i].cta_threads % 32, 0);
	}
}

static void the_library_carries_a_fatbin_or_says_why_not(void **state)
{
	/* Of a fatbin's header: its magic number, and how long header and code are. */
	struct {
		uint32_t	magic;
		uint16_t	version;
		uint16_t	header_bytes;
		uint64_t	bytes;
	} header;
	size_t bytes = 1;
	const void *fatbin = okv_kernels_fatbin(&bytes);

	(void)state;
	print_message("# %s\n", okv_kernels_build());
	if (!fatbin) {
		assert_int_equal(bytes, 0);
		assert_non_null(strstr(okv_kernels_build(), "no nvcc; run tools/setup"));
		return;
	}
	assert_int_equal(strncmp(okv_kernels_build(), "nvcc ", 5), 0);
	assert_int_equal((uintptr_t)fatbin % 8, 0);
	assert_true(bytes > sizeof(header));
	memcpy(&header, fatbin, sizeof(header));
	assert_int_equal(header.magic, 0xba55ed50);
	assert_in_range(header.header_bytes + header.bytes, bytes - 7, bytes);
}

/* ---- shards ------------------------------------------------------------------------------- */

static void shards_meet_where_the_whole_is_the_same(void **state)
{
	static const uint32_t degrees[] = { 1, 2, 3, 4, 6, 8, 12 };
	uint32_t nr_cases = 0, i, k, from, to, u;

	(void)state;
	for (i = 0; i < 7; i++) {
		for (k = 0; k < 7; k++) {
			uint32_t nr_from = degrees[i], nr_to = degrees[k], seen[24] = { 0 };

			for (to = 0; to < nr_to; to++) {
				for (from = 0; from < nr_from; from++) {
					uint32_t from_first = 99, to_first = 99;
					int nr = okv_reshard(24, nr_from, from, nr_to, to, &from_first, &to_first);

					assert_true(nr >= 0);
					assert_int_equal(nr == 0, from_first == 99 && to_first == 99);
					for (u = 0; u < (uint32_t)nr; u++) {
						assert_int_equal(from * (24 / nr_from) + from_first + u,
								 to * (24 / nr_to) + to_first + u);
						seen[to * (24 / nr_to) + to_first + u]++;
					}
					nr_cases++;
				}
			}
			for (u = 0; u < 24; u++)
				assert_int_equal(seen[u], 1);
		}
	}
	print_message("# shards: %u cases\n", nr_cases);
	assert_int_equal(okv_reshard(0, 1, 0, 1, 0, &i, &k), -EINVAL);
	assert_int_equal(okv_reshard(8, 3, 0, 1, 0, &i, &k), -EINVAL);
	assert_int_equal(okv_reshard(8, 1, 0, 3, 0, &i, &k), -EINVAL);
	assert_int_equal(okv_reshard(8, 0, 0, 1, 0, &i, &k), -EINVAL);
	assert_int_equal(okv_reshard(8, 1, 0, 0, 0, &i, &k), -EINVAL);
	assert_int_equal(okv_reshard(8, 4, 4, 1, 0, &i, &k), -EINVAL);
	assert_int_equal(okv_reshard(8, 1, 0, 4, 4, &i, &k), -EINVAL);
	assert_int_equal(okv_reshard((uint32_t)INT32_MAX + 1, 1, 0, 1, 0, &i, &k), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(copies_are_checked),
		cmocka_unit_test(gathers_are_checked),
		cmocka_unit_test(relayouts_are_checked),
		cmocka_unit_test(checksums_are_checked),
		cmocka_unit_test(ctas_are_capped),
		cmocka_unit_test(every_kernel_has_a_name_and_fits_its_limits),
		cmocka_unit_test(the_library_carries_a_fatbin_or_says_why_not),
		cmocka_unit_test(shards_meet_where_the_whole_is_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

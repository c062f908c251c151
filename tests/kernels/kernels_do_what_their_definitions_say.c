// SPDX-License-Identifier: GPL-2.0-only
/*
 * Each kernel's device code, run on the CPU, leaves every byte as its definition in plain C does: random shapes and
 * alignments, entries of 0, 1, 2^k - 1, 2^k and 2^k + 1 bytes, hints that are wrong, threads in any order.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "../harness/kernel_case.h"
#include "crc32c.h"
#include "kernels/kernels.h"
#include "kernels/shim/run.h"

#define NR_MAX		40u
#define LIST_BYTES	((size_t)4096)
#define ARENA_BYTES	((size_t)512 << 10)

/* A case that is made twice. */
struct world {
	struct case_arena	list, host, device;
};

static uint32_t nr_cases;

static void world_init(struct world *w, uint64_t seed, bool to_host)
{
	case_arena_init(&w->list, LIST_BYTES, 0);
	case_arena_init(&w->host, ARENA_BYTES, to_host ? 0 : seed | 1);
	case_arena_init(&w->device, ARENA_BYTES, to_host ? seed | 1 : 0);
}

static void world_fini(struct world *w)
{
	case_arena_fini(&w->list);
	case_arena_fini(&w->host);
	case_arena_fini(&w->device);
}

static uint64_t address_of(const void *ptr)
{
	return (uint64_t)(uintptr_t)ptr;
}

/* @nr cases, ten times as many in the long form of the lane. */
static uint64_t cases(uint64_t nr)
{
	const char *full = getenv("OMNIKV_FULL");

	return full && !strcmp(full, "1") ? 10 * nr : nr;
}

/* Does a whole run fit behind what is taken already? */
static bool has_room(const struct case_arena *arena, size_t bytes)
{
	return arena->used + bytes + 1024 <= arena->bytes;
}

static uint32_t skew(uint64_t *random)
{
	/* Half of all runs are aligned as KV is, a quarter to 16 bytes, a quarter anyhow. */
	switch (case_below(random, 4)) {
	case 0:
		return case_below(random, 128);
	case 1:
		return case_below(random, 8) * 16;
	default:
		return 0;
	}
}

typedef int (*make_and_launch)(struct world *w, uint64_t seed, const struct okv_kernel_ops *ops, void *ctx);

static void compare(make_and_launch make, uint64_t seed, bool to_host)
{
	struct okv_shim shim = { .order = (enum okv_shim_order)(seed % 3), .seed = seed };
	struct world want, got;
	int ret;

	world_init(&want, seed, to_host);
	world_init(&got, seed, to_host);
	assert_int_equal(make(&want, seed, &okv_kernels_ref, NULL), 0);
	ret = make(&got, seed, okv_kernels_shim, &shim);
	if (ret || case_arena_differ(&want.host, &got.host) >= 0 || case_arena_differ(&want.device, &got.device) >= 0)
		fail_msg("seed %llu: result %d %s, host differs at %lld, device at %lld", (unsigned long long)seed, ret,
			 shim.divergence, (long long)case_arena_differ(&want.host, &got.host),
			 (long long)case_arena_differ(&want.device, &got.device));
	world_fini(&want);
	world_fini(&got);
	nr_cases++;
}

/* A right hint, none, one that is too small, one that is too large. */
static uint64_t hint(uint64_t *random, uint64_t right)
{
	switch (case_below(random, 4)) {
	case 0:
		return 0;
	case 1:
		return right / 3;
	case 2:
		return right * 3;
	default:
		return right;
	}
}

/* ---- copy --------------------------------------------------------------------------------- */

static int copy_case(struct world *w, uint64_t seed, const struct okv_kernel_ops *ops, void *ctx)
{
	uint64_t random = seed, longest = 0;
	uint32_t nr = case_size(&random, NR_MAX), i;
	struct okv_kernel_run *runs = case_arena_take(&w->list, nr * sizeof(*runs), 0);
	struct okv_copy_args args = { .list = address_of(runs), .align_dst = case_below(&random, 2) };

	for (i = 0; i < nr; i++) {
		uint32_t bytes = case_size(&random, 20000), src = skew(&random), dst = skew(&random);

		if (!has_room(&w->host, bytes) || !has_room(&w->device, bytes))
			bytes = 0;
		/* As often as not the two ends are equal modulo 16. */
		if (case_below(&random, 2))
			dst = dst / 16 * 16 + src % 16;
		runs[i].src = address_of(case_arena_take(&w->host, bytes, src));
		runs[i].dst = address_of(case_arena_take(&w->device, bytes, dst));
		runs[i].bytes = bytes;
		longest = bytes > longest ? bytes : longest;
	}
	args.nr = nr;
	args.max_bytes = hint(&random, longest);
	return okv_launch_copy(ops, ctx, 1 + case_below(&random, 4), &args);
}

static void copy_moves_what_its_definition_moves(void **state)
{
	uint64_t seed;

	(void)state;
	nr_cases = 0;
	for (seed = 1; seed <= cases(300); seed++)
		compare(copy_case, seed, false);
	print_message("# copy: %u cases\n", nr_cases);
}

/* ---- gather, scatter ---------------------------------------------------------------------- */

static int dense_case(struct world *w, uint64_t seed, const struct okv_kernel_ops *ops, void *ctx, bool to_host)
{
	uint64_t random = seed, piece_bytes = 0, row = 0;
	uint32_t nr = case_size(&random, 24), entries = 1 + case_size(&random, 32), rows = 0, i, p;
	struct okv_kernel_piece *pieces = case_arena_take(&w->list, nr * sizeof(*pieces), 0);
	struct okv_gather_args args = { .list = address_of(pieces), .nr_planes = 1 + case_below(&random, 4) };
	uint32_t plane_skew = skew(&random), align = case_below(&random, 3) ? 16 : 1, nr_rows[24], max_rows = 0;
	/* One piece of which every plane begins equally on both sides, whatever its rows are. */
	bool is_even = !case_below(&random, 3);
	uint32_t host_skew = skew(&random);

	if (is_even && nr)
		nr = 1;
	for (i = 0; i < nr; i++) {
		nr_rows[i] = case_below(&random, entries + 1);
		rows += nr_rows[i] + case_below(&random, 3);
		max_rows = nr_rows[i] > max_rows ? nr_rows[i] : max_rows;
	}
	for (p = 0; p < args.nr_planes; p++) {
		uint32_t row_bytes = 1 + case_size(&random, 700);
		size_t bytes;

		if (align == 16)
			row_bytes = (row_bytes + 15) / 16 * 16;
		bytes = (size_t)row_bytes * rows;
		if (!has_room(&w->device, bytes) || (uint64_t)row_bytes * entries * nr > ARENA_BYTES / 8) {
			row_bytes = 1 + case_below(&random, 16);
			bytes = (size_t)row_bytes * rows;
		}
		args.planes[p].row_bytes = row_bytes;
		args.planes[p].host_off = piece_bytes;
		args.planes[p].device = address_of(case_arena_take(&w->device, bytes, is_even ?
								   (uint32_t)(host_skew + piece_bytes) % 128 : plane_skew));
		piece_bytes += (uint64_t)row_bytes * entries;
		piece_bytes = (piece_bytes + align - 1) / align * align;
	}
	for (i = 0; i < nr; i++) {
		pieces[i].host = address_of(case_arena_take(&w->host, piece_bytes, is_even ? host_skew : skew(&random)));
		pieces[i].nr_rows = nr_rows[i];
		pieces[i].entry = is_even ? 0 : case_below(&random, entries - nr_rows[i] + 1);
		pieces[i].row = row;
		row += nr_rows[i];
	}
	args.nr = nr;
	args.max_rows = (uint32_t)hint(&random, max_rows);
	return (to_host ? okv_launch_scatter : okv_launch_gather)(ops, ctx, 1 + case_below(&random, 4), &args);
}

static int gather_case(struct world *w, uint64_t seed, const struct okv_kernel_ops *ops, void *ctx)
{
	return dense_case(w, seed, ops, ctx, false);
}

static int scatter_case(struct world *w, uint64_t seed, const struct okv_kernel_ops *ops, void *ctx)
{
	return dense_case(w, seed, ops, ctx, true);
}

static void gather_and_scatter_move_what_their_definitions_move(void **state)
{
	uint64_t seed;

	(void)state;
	nr_cases = 0;
	for (seed = 1; seed <= cases(200); seed++) {
		compare(gather_case, seed, false);
		compare(scatter_case, seed, true);
	}
	print_message("# gather and scatter: %u cases\n", nr_cases);
}

/* ---- relayout ----------------------------------------------------------------------------- */

static int relayout_case(struct world *w, uint64_t seed, const struct okv_kernel_ops *ops, void *ctx, bool to_host)
{
	uint64_t random = seed, row = 0;
	uint32_t nr = case_size(&random, 12), entries = 1 + case_size(&random, 16), rows = 0, i, p;
	uint32_t unit = 1u << case_below(&random, 6), nr_rows[12], max_rows = 0;
	struct okv_kernel_piece *pieces = case_arena_take(&w->list, nr * sizeof(*pieces), 0);
	struct okv_relayout_args args = {
		.list = address_of(pieces), .nr_planes = 1 + case_below(&random, 3),
		.nr_layers = 1 + case_below(&random, 4), .to_host = to_host,
	};

	for (i = 0; i < nr; i++) {
		nr_rows[i] = case_below(&random, entries + 1);
		rows += nr_rows[i] + case_below(&random, 2);
		max_rows = nr_rows[i] > max_rows ? nr_rows[i] : max_rows;
	}
	for (p = 0; p < args.nr_planes; p++) {
		struct okv_relayout_plane *plane = &args.planes[p];

		plane->rows_per_entry = 1 + case_below(&random, 3);
		plane->slice_bytes = unit * (1 + case_below(&random, 6));
		plane->host_slice_off = unit * case_below(&random, 3);
		plane->device_off = unit * case_below(&random, 3);
		plane->host_row_bytes = plane->host_slice_off + plane->slice_bytes + unit * case_below(&random, 3);
		plane->device_row_bytes = plane->device_off + plane->slice_bytes + unit * case_below(&random, 3);
		plane->host_off = args.host_layer_bytes;
		args.host_layer_bytes += (uint64_t)entries * plane->rows_per_entry * plane->host_row_bytes;
		plane->device_layer_bytes = (uint64_t)rows * plane->rows_per_entry * plane->device_row_bytes +
					    unit * case_below(&random, 3);
		if (!has_room(&w->device, plane->device_layer_bytes * args.nr_layers)) {
			nr = 0;
			plane->device_layer_bytes = 0;
		}
		plane->device = address_of(case_arena_take(&w->device, plane->device_layer_bytes * args.nr_layers,
							   skew(&random)));
	}
	for (i = 0; i < nr; i++) {
		uint64_t bytes = args.host_layer_bytes * args.nr_layers;

		if (!has_room(&w->host, bytes)) {
			nr = i;
			break;
		}
		pieces[i].host = address_of(case_arena_take(&w->host, bytes, skew(&random)));
		pieces[i].nr_rows = nr_rows[i];
		pieces[i].entry = case_below(&random, entries - nr_rows[i] + 1);
		pieces[i].row = row;
		row += nr_rows[i];
	}
	args.nr = nr;
	args.max_rows = (uint32_t)hint(&random, max_rows);
	return okv_launch_relayout(ops, ctx, 1 + case_below(&random, 4), &args);
}

static int relayout_in_case(struct world *w, uint64_t seed, const struct okv_kernel_ops *ops, void *ctx)
{
	return relayout_case(w, seed, ops, ctx, false);
}

static int relayout_out_case(struct world *w, uint64_t seed, const struct okv_kernel_ops *ops, void *ctx)
{
	return relayout_case(w, seed, ops, ctx, true);
}

static void relayout_moves_what_its_definition_moves(void **state)
{
	uint64_t seed;

	(void)state;
	nr_cases = 0;
	for (seed = 1; seed <= cases(200); seed++) {
		compare(relayout_in_case, seed, false);
		compare(relayout_out_case, seed, true);
	}
	print_message("# relayout: %u cases\n", nr_cases);
}

/* ---- crc32c ------------------------------------------------------------------------------- */

static int crc32c_case(struct world *w, uint64_t seed, const struct okv_kernel_ops *ops, void *ctx)
{
	uint64_t random = seed;
	uint32_t nr = case_size(&random, NR_MAX), i;
	struct okv_kernel_span *spans = case_arena_take(&w->list, nr * sizeof(*spans), 0);
	struct okv_crc32c_args args = {
		.list = address_of(spans), .crc = address_of(case_arena_take(&w->device, nr * 4, 0)), .nr = nr,
	};

	for (i = 0; i < nr; i++) {
		uint32_t bytes = case_size(&random, 9000);

		if (!has_room(&w->host, bytes))
			bytes = 0;
		spans[i].addr = address_of(case_arena_take(&w->host, bytes, skew(&random)));
		spans[i].bytes = bytes;
	}
	return okv_launch_crc32c(ops, ctx, 1 + case_below(&random, 3), &args);
}

static void crc32c_sums_as_its_definition_does(void **state)
{
	uint64_t seed;

	(void)state;
	nr_cases = 0;
	for (seed = 1; seed <= cases(100); seed++)
		compare(crc32c_case, seed, false);
	print_message("# crc32c: %u cases\n", nr_cases);
}

/* The definition itself, against ISA-L and the check value of the standard. */
static void the_definition_is_crc32c(void **state)
{
	unsigned char bytes[300];
	struct okv_kernel_span span = { address_of("123456789"), 9 };
	uint32_t crc = 0, len, i;
	struct okv_crc32c_args args = { .list = address_of(&span), .crc = address_of(&crc), .nr = 1 };

	(void)state;
	assert_int_equal(okv_launch_crc32c(&okv_kernels_ref, NULL, 1, &args), 0);
	assert_int_equal(crc, 0xe3069283);
	for (i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(i * 37 + 11);
	for (len = 0; len <= sizeof(bytes); len++) {
		span = (struct okv_kernel_span) { address_of(bytes), len };
		assert_int_equal(okv_launch_crc32c(&okv_kernels_ref, NULL, 1, &args), 0);
		assert_int_equal(crc, okv_crc32c(bytes, len));
	}
}

/* Both, by definition and by device code: at the value, before it, beyond it, and where the numbers wrap. */
static void events_wait_and_fire_as_their_definitions_do(void **state)
{
	const struct okv_kernel_ops *const ways[] = { &okv_kernels_ref, okv_kernels_shim };
	uint64_t seed = 5, base, step, word, late;
	uint32_t i, k;

	(void)state;
	for (k = 0; k < 2; k++) {
		for (i = 0; i < 200; i++) {
			struct okv_event_args args = {
				.word = address_of(&word), .step = address_of(&step), .late = address_of(&late), .nr_polls = 3,
			};

			base = args.base = case_random(&seed) >> case_below(&seed, 64);
			step = case_random(&seed) >> case_below(&seed, 64);
			late = 7;
			word = 0;
			assert_int_equal(okv_launch_fire(ways[k], NULL, &args), 0);
			assert_true(word == 2 * (base + step));
			assert_int_equal(okv_launch_wait(ways[k], NULL, &args), 0);
			word++;
			assert_int_equal(okv_launch_wait(ways[k], NULL, &args), 0);
			assert_int_equal(late, 7);
			word -= 2;
			assert_int_equal(okv_launch_wait(ways[k], NULL, &args), 0);
			assert_int_equal(late, 8);
			assert_true(word == 2 * (base + step) - 1);
			args.word++;
			assert_int_equal(okv_launch_wait(ways[k], NULL, &args), -EINVAL);
			assert_int_equal(okv_launch_fire(ways[k], NULL, &args), -EINVAL);
		}
	}
}

static int skip_without_shim(void **state)
{
	(void)state;
	if (okv_kernels_shim)
		return 0;
	print_message("the library was built without a C++ compiler\n");
	skip();
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(copy_moves_what_its_definition_moves, skip_without_shim),
		cmocka_unit_test_setup(gather_and_scatter_move_what_their_definitions_move, skip_without_shim),
		cmocka_unit_test_setup(relayout_moves_what_its_definition_moves, skip_without_shim),
		cmocka_unit_test_setup(crc32c_sums_as_its_definition_does, skip_without_shim),
		cmocka_unit_test(the_definition_is_crc32c),
		cmocka_unit_test_setup(events_wait_and_fire_as_their_definitions_do, skip_without_shim),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

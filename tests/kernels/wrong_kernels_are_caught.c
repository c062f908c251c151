// SPDX-License-Identifier: GPL-2.0-only
/*
 * The way in which kernels run on the CPU finds what is wrong with them: a barrier that is missing, threads that wait
 * at different barriers or have ended while others wait, a warp operation that a lane does not take part in.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"
#include "kernels/shim/run.h"

#define NR_SPANS	3u
#define SPAN_BYTES	1000u

/* ---- a barrier less ----------------------------------------------------------------------- */

static int sum(struct okv_shim *shim, const struct okv_kernel_ops *ops, uint32_t *crc)
{
	static unsigned char bytes[NR_SPANS * SPAN_BYTES];
	struct okv_kernel_span spans[NR_SPANS];
	struct okv_crc32c_args args = {
		.list = (uint64_t)(uintptr_t)spans, .crc = (uint64_t)(uintptr_t)crc, .nr = NR_SPANS,
	};
	uint32_t i;

	for (i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)(i * 31 + i / 256);
	for (i = 0; i < NR_SPANS; i++)
		spans[i] = (struct okv_kernel_span) { (uint64_t)(uintptr_t)(bytes + i * SPAN_BYTES), SPAN_BYTES };
	return okv_launch_crc32c(ops, shim, 2, &args);
}

/* Each barrier of the checksum, left out, gives a wrong sum in whatever order the threads run. */
static void a_missing_barrier_gives_other_bytes(void **state)
{
	uint32_t want[NR_SPANS], got[NR_SPANS], missing, nr_cases = 0;
	int order;

	(void)state;
	if (!okv_kernels_shim) {
		print_message("the library was built without a C++ compiler\n");
		skip();
	}
	assert_int_equal(sum(NULL, &okv_kernels_ref, want), 0);
	for (order = OKV_SHIM_FORWARD; order <= OKV_SHIM_RANDOM; order++) {
		for (missing = 0; missing <= 2; missing++) {
			struct okv_shim shim = { .order = (enum okv_shim_order)order, .seed = 7, .missing = missing };

			memset(got, 0, sizeof(got));
			assert_int_equal(sum(&shim, okv_kernels_shim, got), 0);
			assert_true(shim.nr_waits > 0);
			if (missing)
				assert_memory_not_equal(got, want, sizeof(want));
			else
				assert_memory_equal(got, want, sizeof(want));
			nr_cases++;
		}
	}
	print_message("# barriers: %u cases\n", nr_cases);
}

/* ---- threads that do not meet ------------------------------------------------------------- */

static void barrier_for_some(const void *args)
{
	(void)args;
	if (okv_shim_place.thread.x < 48)
		okv_shim_barrier("test", 1);
}

static void two_barriers(const void *args)
{
	(void)args;
	okv_shim_barrier("test", okv_shim_place.thread.x < 48 ? 1 : 2);
}

static void shuffle_without_one(const void *args)
{
	(void)args;
	if (okv_shim_place.thread.x != 5)
		okv_shim_shuffle("test", 1, UINT32_MAX, 0, 0);
}

static void shuffle_of_others(const void *args)
{
	(void)args;
	okv_shim_shuffle("test", 1, 0xffffu, 0, 0);
}

static void threads_that_do_not_meet_are_named(void **state)
{
	static const struct {
		void		(*kernel)(const void *args);
		const char	*text;
	} cases[] = {
		{ barrier_for_some, "barrier divergence: thread 0 waits for its CTA at line 1, thread 48 has ended" },
		{ two_barriers, "barrier divergence: thread 0 waits for its CTA at line 1, thread 48 waits for its CTA" },
		{ shuffle_without_one, "barrier divergence: thread 0 waits for its warp at line 1, thread 5 has ended" },
		{ shuffle_of_others, "barrier divergence: thread 16 waits for its warp at line 1, thread 0 has ended" },
	};
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct okv_shim shim = { .order = OKV_SHIM_FORWARD };

		assert_int_equal(okv_shim_run(&shim, 2, 64, cases[i].kernel, NULL), -EDEADLK);
		assert_string_equal(shim.divergence, cases[i].text);
		/* Without a place for the text as well. */
		assert_int_equal(okv_shim_run(NULL, 1, 64, cases[i].kernel, NULL), -EDEADLK);
	}
}

/* ---- threads that do ---------------------------------------------------------------------- */

struct reduction {
	uint32_t	partial[4];
	uint32_t	total[3];
	uint32_t	begun[128];
	uint32_t	nr_begun;
};

/* The sum of all thread numbers, by warps and then by a barrier. */
static void reduce(const void *args)
{
	struct reduction *r = (struct reduction *)(uintptr_t)args;
	uint32_t thread = okv_shim_place.thread.x, sum = thread, step;

	if (!okv_shim_place.cta.x)
		r->begun[r->nr_begun++] = thread;
	for (step = 16; step; step /= 2)
		sum += okv_shim_shuffle("test", 1, UINT32_MAX, sum, thread % 32 + step);
	if (thread % 32 == 0)
		r->partial[thread / 32] = sum;
	okv_shim_barrier("test", 2);
	if (!thread)
		r->total[okv_shim_place.cta.x] = r->partial[0] + r->partial[1] + r->partial[2] + r->partial[3];
	okv_shim_barrier("test", 3);
}

static void threads_that_meet_go_on_in_every_order(void **state)
{
	int order;

	(void)state;
	for (order = OKV_SHIM_FORWARD; order <= OKV_SHIM_RANDOM; order++) {
		struct okv_shim shim = { .order = (enum okv_shim_order)order, .seed = 3 };
		struct reduction r = { .nr_begun = 0 };

		assert_int_equal(okv_shim_run(&shim, 3, 128, reduce, &r), 0);
		assert_int_equal(r.total[0], 127 * 128 / 2);
		assert_int_equal(r.total[1], 127 * 128 / 2);
		assert_int_equal(r.total[2], 127 * 128 / 2);
		assert_int_equal(r.nr_begun, 128);
		assert_int_equal(shim.nr_waits, 3 * 128 * 7);
		assert_int_equal(r.begun[0] == 0 && r.begun[1] == 1, order == OKV_SHIM_FORWARD);
		assert_int_equal(r.begun[0] == 127 && r.begun[1] == 126, order == OKV_SHIM_BACKWARD);
		assert_string_equal(shim.divergence, "");
	}
	assert_int_equal(okv_shim_run(NULL, 1, 0, reduce, NULL), -EINVAL);
	assert_int_equal(okv_shim_run(NULL, 1, 1025, reduce, NULL), -EINVAL);
	assert_int_equal(okv_shim_run(NULL, 0, 128, reduce, NULL), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_missing_barrier_gives_other_bytes),
		cmocka_unit_test(threads_that_do_not_meet_are_named),
		cmocka_unit_test(threads_that_meet_go_on_in_every_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

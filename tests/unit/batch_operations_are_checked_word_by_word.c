// SPDX-License-Identifier: GPL-2.0-only
/*
 * The form of an operation of the module's batch: a valid one of each opcode, then each word that
 * it does not use set alone, each unknown flag, misalignment, and ranges at the ends of 64 bits.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "kmod/batch_check.c"

static const struct omnikv_extent name = { .granule = 5, .generation = 1, .nr_granules = 3 };

static struct omnikv_batch_op valid(uint32_t opcode)
{
	struct omnikv_batch_op op = { .opcode = opcode };

	switch (opcode) {
	case OMNIKV_BATCH_NOP:
		break;
	case OMNIKV_BATCH_ALLOC:
		op.extent.nr_granules = 3;
		op.cookie = 9;
		break;
	case OMNIKV_BATCH_BIND:
		op.extent = name;
		op.extent_off = 4096;
		/* fallthrough */
	case OMNIKV_BATCH_UNBIND:
		op.window_fd = 4;
		op.window_off = 8192;
		op.bytes = 4096;
		break;
	default:
		op.extent = name;
	}
	return op;
}

/* Words of the struct that an opcode may use, by offset / 4. */
static bool uses(uint32_t opcode, unsigned int word)
{
	bool is_window = opcode == OMNIKV_BATCH_BIND || opcode == OMNIKV_BATCH_UNBIND;
	bool is_list = opcode != OMNIKV_BATCH_NOP && !is_window && opcode != OMNIKV_BATCH_QUERY_EXTENT;

	switch (word * 4) {
	case offsetof(struct omnikv_batch_op, opcode):
	case offsetof(struct omnikv_batch_op, flags):
		return true;	/* tried by themselves */
	case offsetof(struct omnikv_batch_op, extent.granule):
	case offsetof(struct omnikv_batch_op, extent.granule) + 4:
	case offsetof(struct omnikv_batch_op, extent.generation):
		return opcode != OMNIKV_BATCH_NOP && opcode != OMNIKV_BATCH_UNBIND && opcode != OMNIKV_BATCH_ALLOC;
	case offsetof(struct omnikv_batch_op, extent.nr_granules):
		return opcode != OMNIKV_BATCH_NOP && opcode != OMNIKV_BATCH_UNBIND;
	case offsetof(struct omnikv_batch_op, addr):
	case offsetof(struct omnikv_batch_op, addr) + 4:
	case offsetof(struct omnikv_batch_op, count):
		return is_list;
	case offsetof(struct omnikv_batch_op, window_fd):
	case offsetof(struct omnikv_batch_op, window_off):
	case offsetof(struct omnikv_batch_op, window_off) + 4:
	case offsetof(struct omnikv_batch_op, bytes):
	case offsetof(struct omnikv_batch_op, bytes) + 4:
		return is_window;
	case offsetof(struct omnikv_batch_op, extent_off):
	case offsetof(struct omnikv_batch_op, extent_off) + 4:
		return opcode == OMNIKV_BATCH_BIND;
	case offsetof(struct omnikv_batch_op, cookie):
	case offsetof(struct omnikv_batch_op, cookie) + 4:
		return opcode == OMNIKV_BATCH_ALLOC;
	default:
		return false;
	}
}

static void unused_words_must_be_zero(void **state)
{
	uint32_t opcode, value = 4096;
	unsigned int word;

	(void)state;
	for (opcode = 0; opcode <= OMNIKV_BATCH_LAST; opcode++) {
		struct omnikv_batch_op op = valid(opcode);

		assert_int_equal(okv_op_check(&op), 0);
		for (word = 0; word < sizeof(op) / 4; word++) {
			if (uses(opcode, word))
				continue;
			op = valid(opcode);
			memcpy((char *)&op + word * 4, &value, 4);
			if (okv_op_check(&op) != -EINVAL)
				fail_msg("opcode %u takes word %u", opcode, word);
		}
	}
}

static void unknown_opcodes_and_flags_are_refused(void **state)
{
	uint32_t opcode, bit;

	(void)state;
	for (opcode = 0; opcode <= OMNIKV_BATCH_LAST; opcode++) {
		uint32_t known = opcode == OMNIKV_BATCH_ALLOC ? OMNIKV_BATCH_ALLOC_F_ALL :
				 opcode == OMNIKV_BATCH_BIND ? OMNIKV_BATCH_BIND_F_ALL : 0;

		for (bit = 0; bit < 32; bit++) {
			struct omnikv_batch_op op = valid(opcode);

			op.flags = 1u << bit;
			assert_int_equal(okv_op_check(&op), known >> bit & 1 ? 0 : -EINVAL);
		}
	}
	assert_int_equal(okv_op_check(&(struct omnikv_batch_op) { .opcode = OMNIKV_BATCH_LAST + 1 }), -EINVAL);
	assert_int_equal(okv_op_check(&(struct omnikv_batch_op) { .opcode = ~0u }), -EINVAL);
}

static void lists_stand_instead_of_the_extent(void **state)
{
	struct omnikv_batch_op op = { .opcode = OMNIKV_BATCH_SEAL, .addr = 4096, .count = 3 };

	(void)state;
	assert_int_equal(okv_op_check(&op), 0);
	assert_int_equal(okv_op_count(&op), 3);
	op.count = OMNIKV_LIST_MAX;
	assert_int_equal(okv_op_check(&op), 0);
	op.count = OMNIKV_LIST_MAX + 1;
	assert_int_equal(okv_op_check(&op), -EINVAL);
	op.count = 0;
	assert_int_equal(okv_op_check(&op), -EINVAL);
	op.count = 3;
	op.extent = name;
	assert_int_equal(okv_op_check(&op), -EINVAL);
	op.addr = 0;
	assert_int_equal(okv_op_check(&op), -EINVAL);
	op.count = 0;
	assert_int_equal(okv_op_check(&op), 0);
	assert_int_equal(okv_op_count(&op), 1);

	/* ALLOC's extent is a wish: its length stands beside a list too. */
	op = (struct omnikv_batch_op) { .opcode = OMNIKV_BATCH_ALLOC, .addr = 4096, .count = 3 };
	assert_int_equal(okv_op_check(&op), -EINVAL);
	op.extent.nr_granules = 1;
	assert_int_equal(okv_op_check(&op), 0);
	op.extent.granule = 7;
	assert_int_equal(okv_op_check(&op), -EINVAL);
	op.flags = OMNIKV_BATCH_ALLOC_F_AFTER;
	assert_int_equal(okv_op_check(&op), 0);
	op.extent.generation = 1;
	assert_int_equal(okv_op_check(&op), -EINVAL);
}

static void ranges_do_not_wrap(void **state)
{
	const uint64_t top = ~0ull - 4095;
	struct omnikv_batch_op op = valid(OMNIKV_BATCH_BIND);

	(void)state;
	assert_true(okv_range_fits(0, 4096, 4096));
	assert_false(okv_range_fits(0, 0, 4096));
	assert_false(okv_range_fits(1, 4096, 1 << 20));
	assert_false(okv_range_fits(0, 4097, 1 << 20));
	assert_false(okv_range_fits(4096, 4096, 4096));
	assert_false(okv_range_fits(top, 8192, 1 << 20));
	assert_false(okv_range_fits(4096, top, ~0ull));
	assert_true(okv_range_fits(0, top, ~0ull));
	/* 2^31 and 2^32 and a page around them. */
	assert_true(okv_range_fits((1ull << 31) - 4096, 8192, 6ull << 30));
	assert_true(okv_range_fits((1ull << 32) - 4096, 8192, 6ull << 30));
	assert_false(okv_range_fits(6ull << 30, 4096, 6ull << 30));

	assert_int_equal(okv_bind_check(&op, 8192, 12288), 0);
	assert_int_equal(okv_bind_check(&op, 4096, 12288), -EINVAL);
	assert_int_equal(okv_bind_check(&op, 8192, 8192), -EINVAL);
	op.extent_off = top;
	assert_int_equal(okv_bind_check(&op, 8192, 12288), -EINVAL);
	op = valid(OMNIKV_BATCH_BIND);
	op.extent_off = 12;
	assert_int_equal(okv_op_check(&op), -EINVAL);
	op = valid(OMNIKV_BATCH_BIND);
	op.window_fd = -1;
	assert_int_equal(okv_op_check(&op), -EINVAL);
	op = valid(OMNIKV_BATCH_BIND);
	op.window_off = top;
	op.bytes = 8192;
	assert_int_equal(okv_op_check(&op), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(unused_words_must_be_zero),
		cmocka_unit_test(unknown_opcodes_and_flags_are_refused),
		cmocka_unit_test(lists_stand_instead_of_the_extent),
		cmocka_unit_test(ranges_do_not_wrap),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Each allocation and each step of a digest fails once, in turn: the call says -ENOMEM, its
 * results are untouched (a list of keys may be begun), nothing leaks (the address sanitizer's
 * run sees that), and the same call then works and yields what it yields without faults.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <omnikv/key.h>
#include <omnikv/layout.h>

#include "tests/harness/fault.h"

#define NR_TOKENS	64
#define BLOCK_TOKENS	16
#define NR_KEYS		(NR_TOKENS / BLOCK_TOKENS)

static uint32_t tokens[NR_TOKENS];
static char long_text[70000];
static struct omnikv_layout layout;

union result {
	struct omnikv_key	keys[NR_KEYS];
	uint8_t			identity[32];
	char			*json;
};

static int64_t chain_vllm(union result *result)
{
	/* Longer than what is gathered before it is hashed. */
	const char *const extra[] = { "salt", long_text };

	return omnikv_chain_vllm("0", tokens, NR_TOKENS, BLOCK_TOKENS, extra, 2, result->keys);
}

static int64_t chain_sglang(union result *result)
{
	return omnikv_chain_sglang(tokens, NR_TOKENS, BLOCK_TOKENS, result->keys);
}

static int64_t key_partial(union result *result)
{
	struct omnikv_key key;

	assert_int_equal(omnikv_key_init(&key, "k", 1), 0);
	return omnikv_key_partial(&key, 7, &result->keys[0]);
}

static int64_t layout_identity(union result *result)
{
	return omnikv_layout_identity(&layout, result->identity);
}

static int64_t namespace_identity(union result *result)
{
	struct omnikv_namespace ns = {
		.size = sizeof(ns), .tenant = "t", .weights = "w", .layout = &layout,
		.block_tokens = BLOCK_TOKENS, .hash_algorithm = OMNIKV_HASH_OPAQUE, .salt = "s", .salt_len = 1,
	};

	return omnikv_namespace_identity(&ns, result->identity);
}

struct call {
	const char	*name;
	int64_t		(*fn)(union result *result);
	int64_t		good;		/* what it returns without a fault */
	unsigned int	least;		/* faults that it must meet */
	bool		is_list;	/* its results may be written in part */
};

static const struct call calls[] = {
	{ "omnikv_chain_vllm", chain_vllm, NR_KEYS, 6, true },
	{ "omnikv_chain_sglang", chain_sglang, NR_KEYS, 4, true },
	{ "omnikv_key_partial", key_partial, 0, 3, false },
	{ "omnikv_layout_identity", layout_identity, 0, 3, false },
	{ "omnikv_namespace_identity", namespace_identity, 0, 3, false },
};

static void each_fault(void **state)
{
	const struct call *call = *state;
	union result good, before, result;
	unsigned int nr_faults = 0;
	bool has_fired;

	memset(&before, 0x5a, sizeof(before));
	good = before;
	assert_int_equal(call->fn(&good), call->good);
	do {
		int64_t ret;

		result = before;
		fault_arm(nr_faults + 1);
		ret = call->fn(&result);
		has_fired = fault_disarm();
		nr_faults += has_fired;
		assert_int_equal(ret, has_fired ? -ENOMEM : call->good);
		if (!has_fired || !call->is_list)
			assert_memory_equal(&result, has_fired ? &before : &good, sizeof(result));
	} while (has_fired);
	print_message("%s met %u faults\n", call->name, nr_faults);
	assert_true(nr_faults >= call->least);
}

static int setup(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < NR_TOKENS; i++)
		tokens[i] = i * 2654435761u;
	memset(long_text, 'x', sizeof(long_text) - 1);
	return omnikv_layout_preset("tiny", &layout, NULL);
}

int main(void)
{
	struct CMUnitTest tests[sizeof(calls) / sizeof(calls[0])];

	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++)
		tests[i] = (struct CMUnitTest){ .name = calls[i].name, .test_func = each_fault,
						.initial_state = (void *)&calls[i] };
	return cmocka_run_group_tests(tests, setup, NULL);
}

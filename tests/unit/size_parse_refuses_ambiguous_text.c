// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sizes and pool specifications as users type them.
 *
 * Expected values are worked out by hand. Whatever is refused has a reason that names it, and
 * leaves the result alone. One thread.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "numa_policy.h"
#include "provider.h"

static void sizes_in_powers_of_1024(void **state)
{
	static const struct { const char *text; uint64_t bytes; } cases[] = {
		{ "0", 0 }, { "65536", 65536 }, { "1K", 1024 }, { "512M", 536870912 }, { "4G", 4294967296 },
		{ "2T", 2199023255552 }, { "129.5M", 135790592 }, { "0.5K", 512 }, { "1.25K", 1280 },
		{ "1.0", 1 }, { "3.000000000000000000000000G", 3221225472 }, { "0001", 1 },
		{ "1.0000000000009094947017729282379150390625T", 0 },
		{ "9223372036854775807", INT64_MAX }, { "8388607T", 8388607ull << 40 },
		{ "8388607.9999999999990905052982270717620849609375T", 0 },
	};
	struct omnikv_error err;
	uint64_t bytes;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		int ret = omnikv_size_parse(cases[i].text, &bytes, &err);

		/* Over 19 digits behind the point are refused, though these two are whole bytes. */
		if (!cases[i].bytes && cases[i].text[1]) {
			assert_int_equal(ret, -EINVAL);
			assert_non_null(strstr(err.text, "too many digits"));
			continue;
		}
		assert_int_equal(ret, 0);
		assert_int_equal(bytes, cases[i].bytes);
	}
}

static void everything_else_is_refused_with_a_reason(void **state)
{
	static const struct { const char *text, *why; } cases[] = {
		{ "", "digit" }, { " 1", "digit" }, { "-1", "digit" }, { "+1", "digit" }, { ".5K", "digit" },
		{ "G", "digit" }, { "10 GB", "unit" }, { "10GB", "unit" }, { "10GiB", "unit" }, { "10g", "unit" },
		{ "1e10", "unit" }, { "0x10", "unit" }, { "1,5G", "unit" }, { "4G ", "unit" }, { "4GG", "unit" },
		{ "1P", "unit" }, { "1.", "no digit" }, { "1.G", "no digit" }, { "1.5.5G", "unit" },
		{ "0.5", "whole number of bytes" }, { "0.3K", "whole number of bytes" }, { "1.1M", "whole number" },
		{ "9223372036854775808", "too large" }, { "18446744073709551616", "too large" },
		{ "99999999999999999999999", "too large" }, { "8388608T", "too large" },
	};
	struct omnikv_error err;
	uint64_t bytes = 77;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		assert_int_equal(omnikv_size_parse(cases[i].text, &bytes, &err), -EINVAL);
		if (!strstr(err.text, cases[i].why))
			fail_msg("\"%s\": %s", cases[i].text, err.text);
		assert_int_equal(bytes, 77);
	}
	assert_int_equal(omnikv_size_parse(NULL, &bytes, NULL), -EINVAL);
	assert_int_equal(omnikv_size_parse("1", NULL, NULL), -EINVAL);
	assert_int_equal(omnikv_size_parse("?", &bytes, NULL), -EINVAL);
}

static void pools_are_named_in_six_ways(void **state)
{
	struct okv_pool_spec spec;

	(void)state;
	assert_int_equal(okv_pool_spec_parse("4G", &spec, NULL), 0);
	assert_int_equal(spec.kind, OKV_PROVIDER_EMBEDDED);
	assert_int_equal(spec.bytes, 4294967296);
	assert_null(spec.name);
	assert_int_equal(okv_pool_spec_parse("embedded:1.5M", &spec, NULL), 0);
	assert_int_equal(spec.bytes, 1572864);
	assert_null(spec.name);
	assert_int_equal(okv_pool_spec_parse("embedded:64M:/var/lib/pool:a", &spec, NULL), 0);
	assert_int_equal(spec.bytes, 67108864);
	assert_string_equal(spec.name, "/var/lib/pool:a");
	assert_int_equal(okv_pool_spec_parse("kmod:team-a.1_B", &spec, NULL), 0);
	assert_int_equal(spec.kind, OKV_PROVIDER_KMOD);
	assert_string_equal(spec.name, "team-a.1_B");
	assert_int_equal(okv_pool_spec_parse("kmod:abcdefghijklmnopqrstuvwxyz012345", &spec, NULL), 0);
	assert_int_equal(okv_pool_spec_parse("auto:2G", &spec, NULL), 0);
	assert_int_equal(spec.kind, OKV_PROVIDER_AUTO);
	assert_int_equal(spec.bytes, 2147483648);
	assert_null(spec.name);
	assert_int_equal(okv_pool_spec_parse("auto:2G:team-a", &spec, NULL), 0);
	assert_int_equal(spec.bytes, 2147483648);
	assert_string_equal(spec.name, "team-a");
}

static void numa_policies_are_lists_of_nodes(void **state)
{
	static const char *const refused[] = {
		"", "bind", "bind:", "bind:,", "bind:0,", "bind:-1", "bind:2-1", "bind:64", "bind:0-64", "bind:0 ",
		"bind:99999999999999999999", "Bind:0", "local:0", "prefer: 0", "bind:0-", "bind:0--1",
	};
	struct okv_numa_policy policy = { .kind = 77 };
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
		if (okv_numa_policy_parse(refused[i], &policy) || policy.kind != 77)
			fail_msg("\"%s\"", refused[i]);
	assert_true(okv_numa_policy_parse("bind:0,2-3", &policy));
	assert_int_equal(policy.kind, OMNIKV_NUMA_BIND);
	assert_int_equal(policy.nodes, 13);
	assert_true(okv_numa_policy_parse("interleave:0-63", &policy));
	assert_int_equal(policy.kind, OMNIKV_NUMA_INTERLEAVE);
	assert_int_equal(policy.nodes, UINT64_MAX);
	assert_true(okv_numa_policy_parse("prefer:63", &policy));
	assert_int_equal(policy.kind, OMNIKV_NUMA_PREFER);
	assert_int_equal(policy.nodes, 0x8000000000000000);
}

static void other_specifications_are_refused(void **state)
{
	static const char *const cases[] = {
		"", "auto:", "auto", "auto:0", "auto::a", "auto:4G:", "auto:4G:a/b", "auto:4G:a:b", "kmod:", "kmod:a/b", "kmod:a b", "kmod:abcdefghijklmnopqrstuvwxyz0123456", "embedded:", "embedded",
		"embedded:4G:", "embedded::f", "4G:f", "Embedded:4G", "shm:4G", ":", "embedded:4GB:f",
		"embedded:00000000000000000000000000000000000000000000000000000000000000001:f",
	};
	struct okv_pool_spec spec = { .bytes = 5 };
	struct omnikv_error err;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		err.text[0] = '\0';
		assert_int_equal(okv_pool_spec_parse(cases[i], &spec, &err), -EINVAL);
		assert_int_not_equal(err.text[0], '\0');
		assert_int_equal(spec.bytes, 5);
	}
	assert_int_equal(okv_pool_spec_parse(NULL, &spec, NULL), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sizes_in_powers_of_1024),
		cmocka_unit_test(everything_else_is_refused_with_a_reason),
		cmocka_unit_test(pools_are_named_in_six_ways),
		cmocka_unit_test(other_specifications_are_refused),
		cmocka_unit_test(numa_policies_are_lists_of_nodes),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

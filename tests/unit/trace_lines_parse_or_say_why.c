// SPDX-License-Identifier: GPL-2.0-only
/*
 * Each trace format, line by line: what is read from good lines, and that every kind of bad line is
 * refused with the field's name, and costs nothing but itself.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tools/omnikv/trace.h"

static int parse(enum okv_trace_format format, const char *text, struct okv_trace_line *line,
		 struct omnikv_error *err)
{
	err->text[0] = 0;
	return okv_trace_line_parse(format, text, strlen(text), line, err);
}

/* Every bad line: -EINVAL, and the reason has @word in it. */
struct bad {
	enum okv_trace_format	format;
	const char		*text;
	const char		*word;
};

static void mooncake_line(void **state)
{
	struct okv_trace_line line = { 0 };
	struct omnikv_error err;

	(void)state;
	assert_int_equal(parse(OKV_TRACE_MOONCAKE, "{\"timestamp\": 27482, \"input_length\": 513, \"output_length\": 7, "
			       "\"hash_ids\": [0, 9007199254740993]}\r", &line, &err), 1);
	assert_int_equal(line.time_ns, UINT64_C(27482000000));
	assert_int_equal(line.nr_tokens, 513);
	assert_int_equal(line.output_tokens, 7);
	assert_int_equal(line.nr_ids, 2);
	assert_int_equal(line.ids[0], 0);
	assert_int_equal(line.ids[1], UINT64_C(9007199254740993));
	/* A time with a fraction; no output_length. The array of the line before is re-used and may grow. */
	assert_int_equal(parse(OKV_TRACE_MOONCAKE, "{\"timestamp\": 1.5, \"input_length\": 1536, \"hash_ids\": [1,2,3]}",
			       &line, &err), 1);
	assert_int_equal(line.time_ns, 1500000);
	assert_int_equal(line.output_tokens, 0);
	assert_int_equal(line.nr_ids, 3);
	okv_trace_line_fini(&line);
}

static void azure_line(void **state)
{
	struct okv_trace_line line = { 0 };
	struct omnikv_error err;

	(void)state;
	assert_int_equal(parse(OKV_TRACE_AZURE, "TIMESTAMP,ContextTokens,GeneratedTokens", &line, &err), 0);
	/* date -u -d '2023-11-16 18:17:03' +%s */
	assert_int_equal(parse(OKV_TRACE_AZURE, "2023-11-16 18:17:03.9799600,4808,10", &line, &err), 1);
	assert_int_equal(line.time_ns, UINT64_C(1700158623) * 1000000000 + 979960000);
	assert_int_equal(line.nr_tokens, 4808);
	assert_int_equal(line.output_tokens, 10);
	assert_int_equal(parse(OKV_TRACE_AZURE, "1970-01-01 00:00:01,1,0\r\n", &line, &err), 1);
	assert_int_equal(line.time_ns, 1000000000);
	/* More digits than nanoseconds have. */
	assert_int_equal(parse(OKV_TRACE_AZURE, "1970-01-01 00:00:00.1234567891234,1,0", &line, &err), 1);
	assert_int_equal(line.time_ns, 123456789);
}

static void tokens_line(void **state)
{
	struct okv_trace_line line = { 0 };
	struct omnikv_error err;

	(void)state;
	assert_int_equal(parse(OKV_TRACE_TOKENS, "{\"input_toks\": 3, \"output_toks\": 5, \"arrival_time_ns\": 46926808, "
			       "\"input_tok_ids\": [5971, 0, 4294967295], \"output_tok_ids\": [1]}", &line, &err), 1);
	assert_int_equal(line.time_ns, 46926808);
	assert_int_equal(line.nr_tokens, 3);
	assert_int_equal(line.output_tokens, 5);
	assert_int_equal(line.tokens[0], 5971);
	assert_int_equal(line.tokens[2], UINT32_MAX);
	assert_int_equal(parse(OKV_TRACE_TOKENS, "{\"arrival_time_ns\": 0, \"input_tok_ids\": [1]}", &line, &err), 1);
	assert_int_equal(line.nr_tokens, 1);
	okv_trace_line_fini(&line);
}

static void text_line(void **state)
{
	struct okv_trace_line line = { 0 };
	struct omnikv_error err;

	(void)state;
	/* U+20AC is three bytes, an escaped NUL is one. */
	assert_int_equal(parse(OKV_TRACE_TEXT, "{\"timestamp\": 1760995776640783, \"input\": \"a\\u20ac\\u0000b\", "
			       "\"output\": \"xy\", \"session_id\": \"s\"}", &line, &err), 1);
	assert_int_equal(line.time_ns, UINT64_C(1760995776640783000));
	assert_int_equal(line.nr_tokens, 6);
	assert_int_equal(line.output_tokens, 2);
	assert_int_equal(line.tokens[0], 'a');
	assert_int_equal(line.tokens[1], 0xe2);
	assert_int_equal(line.tokens[2], 0x82);
	assert_int_equal(line.tokens[3], 0xac);
	assert_int_equal(line.tokens[4], 0);
	assert_int_equal(line.tokens[5], 'b');
	okv_trace_line_fini(&line);
}

static void bad_lines(void **state)
{
	static const struct bad bad[] = {
		{ OKV_TRACE_MOONCAKE, "{", "JSON" },
		{ OKV_TRACE_MOONCAKE, "[1]", "object" },
		{ OKV_TRACE_MOONCAKE, "{\"input_length\": 1, \"hash_ids\": [1]}", "timestamp" },
		{ OKV_TRACE_MOONCAKE, "{\"timestamp\": -1, \"input_length\": 1, \"hash_ids\": [1]}", "timestamp" },
		{ OKV_TRACE_MOONCAKE, "{\"timestamp\": 1e300, \"input_length\": 1, \"hash_ids\": [1]}", "timestamp" },
		{ OKV_TRACE_MOONCAKE, "{\"timestamp\": 9223372036854775807, \"input_length\": 1, \"hash_ids\": [1]}",
		  "timestamp" },
		{ OKV_TRACE_MOONCAKE, "{\"timestamp\": \"0\", \"input_length\": 1, \"hash_ids\": [1]}", "timestamp" },
		{ OKV_TRACE_MOONCAKE, "{\"timestamp\": 0, \"hash_ids\": []}", "input_length is missing" },
		{ OKV_TRACE_MOONCAKE, "{\"timestamp\": 0, \"input_length\": -5, \"hash_ids\": []}", "input_length" },
		{ OKV_TRACE_MOONCAKE, "{\"timestamp\": 0, \"input_length\": 1.0, \"hash_ids\": [1]}", "no whole" },
		{ OKV_TRACE_MOONCAKE, "{\"timestamp\": 0, \"input_length\": 268435457, \"hash_ids\": [1]}", "268435456" },
		{ OKV_TRACE_MOONCAKE, "{\"timestamp\": 0, \"input_length\": 1, \"output_length\": -1, \"hash_ids\": [1]}",
		  "output_length" },
		{ OKV_TRACE_MOONCAKE, "{\"timestamp\": 0, \"input_length\": 513, \"hash_ids\": [1]}", "2 are needed" },
		{ OKV_TRACE_MOONCAKE, "{\"timestamp\": 0, \"input_length\": 512, \"hash_ids\": [1, 2]}", "1 are needed" },
		{ OKV_TRACE_MOONCAKE, "{\"timestamp\": 0, \"input_length\": 1}", "hash_ids is missing" },
		{ OKV_TRACE_MOONCAKE, "{\"timestamp\": 0, \"input_length\": 513, \"hash_ids\": [1, -2]}", "hash_ids[1]" },
		{ OKV_TRACE_MOONCAKE, "{\"timestamp\": 0, \"input_length\": 1, \"hash_ids\": [\"x\"]}", "hash_ids[0]" },
		{ OKV_TRACE_MOONCAKE, "{\"timestamp\": 0, \"timestamp\": 1, \"input_length\": 1, \"hash_ids\": [1]}",
		  "JSON" },
		{ OKV_TRACE_AZURE, "2023-11-16 18:17:03", "column 1" },
		{ OKV_TRACE_AZURE, "2023-13-16 18:17:03,1,1", "column 1" },
		{ OKV_TRACE_AZURE, "2023-04-31 18:17:03,1,1", "column 1" },
		{ OKV_TRACE_AZURE, "2023-11-16 24:17:03,1,1", "column 1" },
		{ OKV_TRACE_AZURE, "2023-11-16 23:17:03.,1,1", "column 1" },
		{ OKV_TRACE_AZURE, "1969-11-16 23:17:03,1,1", "column 1" },
		{ OKV_TRACE_AZURE, "x,1,1", "column 1" },
		{ OKV_TRACE_AZURE, "2023-11-16 18:17:03,-1,1", "column 2" },
		{ OKV_TRACE_AZURE, "2023-11-16 18:17:03,268435457,1", "column 2" },
		{ OKV_TRACE_AZURE, "2023-11-16 18:17:03,12", "column 2" },
		{ OKV_TRACE_AZURE, "2023-11-16 18:17:03,12,", "column 3" },
		{ OKV_TRACE_AZURE, "2023-11-16 18:17:03,12,5,6", "column 3" },
		{ OKV_TRACE_AZURE, "2023-11-16 18:17:03,12,99999999999999999999", "column 3" },
		{ OKV_TRACE_TOKENS, "{\"arrival_time_ns\": 0}", "input_tok_ids" },
		{ OKV_TRACE_TOKENS, "{\"input_tok_ids\": [1]}", "arrival_time_ns" },
		{ OKV_TRACE_TOKENS, "{\"arrival_time_ns\": 0, \"input_tok_ids\": [1, -1]}", "input_tok_ids[1]" },
		{ OKV_TRACE_TOKENS, "{\"arrival_time_ns\": 0, \"input_tok_ids\": [4294967296]}", "input_tok_ids[0]" },
		{ OKV_TRACE_TOKENS, "{\"arrival_time_ns\": 0, \"input_tok_ids\": [null]}", "input_tok_ids[0]" },
		{ OKV_TRACE_TOKENS, "{\"arrival_time_ns\": 0, \"input_toks\": 2, \"input_tok_ids\": [1]}",
		  "input_toks is 2, but there are 1" },
		{ OKV_TRACE_TOKENS, "{\"arrival_time_ns\": 0, \"input_toks\": null, \"input_tok_ids\": [1]}", "input_toks" },
		{ OKV_TRACE_TOKENS, "{\"arrival_time_ns\": 0, \"output_toks\": 1.5, \"input_tok_ids\": [1]}", "output_toks" },
		{ OKV_TRACE_TOKENS, "no", "JSON" },
		{ OKV_TRACE_TEXT, "{\"timestamp\": 0}", "input" },
		{ OKV_TRACE_TEXT, "{\"timestamp\": 0, \"input\": 5}", "input" },
		{ OKV_TRACE_TEXT, "{\"timestamp\": null, \"input\": \"a\"}", "timestamp" },
		{ OKV_TRACE_TEXT, "{\"timestamp\": 0, \"input\": \"\xff\"}", "JSON" },
		{ OKV_TRACE_TEXT, "[", "JSON" },
		{ OKV_TRACE_AUTO, "x", "no format" },
	};
	struct okv_trace_line line = { 0 };
	struct omnikv_error err;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		if (parse(bad[i].format, bad[i].text, &line, &err) != -EINVAL || !strstr(err.text, bad[i].word))
			fail_msg("%s: \"%s\" lacks \"%s\"", bad[i].text, err.text, bad[i].word);
		assert_null(strchr(err.text, '\n'));
	}
	okv_trace_line_fini(&line);
}

static void empty_lines_are_nothing(void **state)
{
	struct okv_trace_line line = { 0 };
	struct omnikv_error err;
	int f;

	(void)state;
	for (f = OKV_TRACE_MOONCAKE; f < OKV_TRACE_NR_FORMATS; f++) {
		assert_int_equal(parse(f, "", &line, &err), 0);
		assert_int_equal(parse(f, " \t\r", &line, &err), 0);
	}
}

static void empty_prompts_are_requests(void **state)
{
	struct okv_trace_line line = { 0 };
	struct omnikv_error err;

	(void)state;
	assert_int_equal(parse(OKV_TRACE_MOONCAKE, "{\"timestamp\": 0, \"input_length\": 0, \"hash_ids\": []}", &line,
			       &err), 1);
	assert_int_equal(line.nr_ids, 0);
	assert_int_equal(parse(OKV_TRACE_AZURE, "2023-11-16 18:17:03,0,1", &line, &err), 1);
	assert_int_equal(parse(OKV_TRACE_TOKENS, "{\"arrival_time_ns\": 0, \"input_tok_ids\": []}", &line, &err), 1);
	assert_int_equal(parse(OKV_TRACE_TEXT, "{\"timestamp\": 0, \"input\": \"\"}", &line, &err), 1);
	assert_int_equal(line.nr_tokens, 0);
	okv_trace_line_fini(&line);
}

static void formats_are_told_apart(void **state)
{
	static const struct {
		const char		*text;
		enum okv_trace_format	format;
	} first[] = {
		{ "TIMESTAMP,ContextTokens,GeneratedTokens", OKV_TRACE_AZURE },
		{ "2023-11-16 18:17:03.9799600,4808,10", OKV_TRACE_AZURE },
		{ "{\"timestamp\": 0, \"input_length\": 6758, \"hash_ids\": [0]}", OKV_TRACE_MOONCAKE },
		{ "{\"input_toks\": 1, \"input_tok_ids\": [0]}", OKV_TRACE_TOKENS },
		{ "{\"timestamp\": 0, \"input\": \"x\"}", OKV_TRACE_TEXT },
	};
	static const char *const unknown[] = { "", "x", "{}", "[1,2]", "{\"input\": 1}", "1.5" };
	enum okv_trace_format format;
	struct omnikv_error err;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(first) / sizeof(first[0]); i++) {
		assert_int_equal(okv_trace_detect(first[i].text, strlen(first[i].text), &format, &err), 0);
		assert_int_equal(format, first[i].format);
	}
	for (i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
		assert_int_equal(okv_trace_detect(unknown[i], strlen(unknown[i]), &format, &err), -EINVAL);
		assert_non_null(strstr(err.text, "--format"));
	}
	assert_int_equal(okv_trace_format_parse("azure", &format), 0);
	assert_int_equal(format, OKV_TRACE_AZURE);
	assert_int_equal(okv_trace_format_parse("Azure", &format), -EINVAL);
	assert_string_equal(okv_trace_format_name(OKV_TRACE_TEXT), "text");
	assert_null(okv_trace_format_name(OKV_TRACE_NR_FORMATS));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(mooncake_line),
		cmocka_unit_test(azure_line),
		cmocka_unit_test(tokens_line),
		cmocka_unit_test(text_line),
		cmocka_unit_test(bad_lines),
		cmocka_unit_test(empty_lines_are_nothing),
		cmocka_unit_test(empty_prompts_are_requests),
		cmocka_unit_test(formats_are_told_apart),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

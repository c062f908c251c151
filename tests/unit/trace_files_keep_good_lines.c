// SPDX-License-Identifier: GPL-2.0-only
/*
 * Whole files: bad lines are named and counted and the others kept; files are merged by time; keys
 * of blocks; and the real traces give the hits that follow from them, by a plain set of keys.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <glob.h>

#include <cmocka.h>

#include "tools/omnikv/trace.h"

struct named {
	char	text[8][256];
	int	nr;
};

static void remember(void *opaque, const char *text)
{
	struct named *named = opaque;

	snprintf(named->text[named->nr++ % 8], sizeof(named->text[0]), "%s", text);
}

static int64_t read_text(struct okv_trace *trace, enum okv_trace_format format, const char *text, bool is_strict,
			 struct named *named, struct omnikv_error *err)
{
	struct okv_trace_file file = {
		.name = "a.jsonl", .format = format, .is_strict = is_strict, .malformed = named ? remember : NULL,
		.opaque = named,
	};
	FILE *stream = fmemopen((void *)text, strlen(text), "r");
	int64_t ret;

	assert_non_null(stream);
	ret = okv_trace_read(trace, stream, &file, err);
	fclose(stream);
	return ret;
}

static const char some_bad[] =
	"{\"timestamp\": 5, \"input_length\": 1000, \"hash_ids\": [1, 2]}\n"
	"\n"
	"{\"timestamp\": 6, \"input_length\": 1000, \"hash_ids\": [1]}\n"
	"garbage\n"
	"{\"timestamp\": 7, \"input_length\": 1024, \"hash_ids\": [1, 3]}";	/* no newline at the end */

static void bad_lines_are_named_and_counted(void **state)
{
	struct named named = { .nr = 0 };
	struct omnikv_error err = { "" };
	struct okv_trace trace;
	struct omnikv_key key;
	uint64_t word = 3;

	(void)state;
	okv_trace_init(&trace, 512);
	assert_int_equal(read_text(&trace, OKV_TRACE_MOONCAKE, some_bad, false, &named, &err), 2);
	assert_int_equal(trace.nr_requests, 2);
	assert_int_equal(trace.nr_malformed, 2);
	assert_int_equal(named.nr, 2);
	assert_non_null(strstr(named.text[0], "a.jsonl:3: 1 hash_ids"));
	assert_non_null(strstr(named.text[1], "a.jsonl:4: no JSON"));

	assert_int_equal(trace.requests[0].nr_blocks, 2);
	assert_true(trace.requests[0].is_tail_shared);
	assert_int_equal(okv_request_block_tokens(&trace, &trace.requests[0], 0), 512);
	assert_int_equal(okv_request_block_tokens(&trace, &trace.requests[0], 1), 488);
	assert_false(trace.requests[1].is_tail_shared);
	okv_request_content_key(&trace, &trace.requests[1], 1, &key);
	assert_int_equal(key.len, 8);
	assert_memory_equal(key.bytes, &word, 8);
	okv_trace_fini(&trace);
}

/* An id stands for its tokens and all before them: it has one parent, in all files, and stands once in a line. */
static void ids_have_one_parent(void **state)
{
	static const char text[] =
		"{\"timestamp\": 1, \"input_length\": 1024, \"hash_ids\": [1, 2]}\n"
		"{\"timestamp\": 2, \"input_length\": 1024, \"hash_ids\": [4, 4]}\n"
		"{\"timestamp\": 3, \"input_length\": 1536, \"hash_ids\": [5, 6, 2]}\n"
		"{\"timestamp\": 4, \"input_length\": 1024, \"hash_ids\": [6, 5]}\n";
	static const char other[] =
		"{\"timestamp\": 5, \"input_length\": 512, \"hash_ids\": [2]}\n"
		"{\"timestamp\": 6, \"input_length\": 1024, \"hash_ids\": [1, 2]}\n";
	struct named named = { .nr = 0 };
	struct omnikv_error err = { "" };
	struct okv_trace trace;
	char *many;
	size_t len = 0, i;

	(void)state;
	okv_trace_init(&trace, 512);
	/* What stands in a line that is left out is not remembered: 6 then 5 is a chain. */
	assert_int_equal(read_text(&trace, OKV_TRACE_MOONCAKE, text, false, &named, &err), 2);
	assert_int_equal(read_text(&trace, OKV_TRACE_MOONCAKE, other, false, &named, &err), 1);
	assert_int_equal(trace.nr_malformed, 3);
	assert_non_null(strstr(named.text[0], "a.jsonl:2: hash_ids has 4 twice"));
	assert_non_null(strstr(named.text[1], "a.jsonl:3: hash_ids[2]: 2 stood behind another id"));
	assert_non_null(strstr(named.text[2], "a.jsonl:1: hash_ids[0]: 2 stood behind another id"));

	/* More than the first table has room for; all are known again. */
	many = malloc(3000 * 64);
	assert_non_null(many);
	for (i = 0; i < 3000; i++)
		len += snprintf(many + len, 64, "{\"timestamp\":1,\"input_length\":1,\"hash_ids\":[%zu]}\n", 10 + i);
	assert_int_equal(read_text(&trace, OKV_TRACE_MOONCAKE, many, false, &named, &err), 3000);
	assert_int_equal(read_text(&trace, OKV_TRACE_MOONCAKE, many, false, &named, &err), 3000);
	assert_int_equal(trace.nr_malformed, 3);
	free(many);
	okv_trace_fini(&trace);
}

static int detect(const char *text, enum okv_trace_format *format, struct omnikv_error *err)
{
	FILE *stream = *text ? fmemopen((void *)text, strlen(text), "r") : fopen("/dev/null", "r");
	int ret;

	assert_non_null(stream);
	err->text[0] = 0;
	ret = okv_trace_detect_file(stream, format, err);
	fclose(stream);
	return ret;
}

/* By the first line that says anything; what says nothing, or cannot be read, is told apart. */
static void format_is_known_by_the_first_line(void **state)
{
	enum okv_trace_format format = OKV_TRACE_AUTO;
	struct omnikv_error err;
	FILE *folder;

	(void)state;
	assert_int_equal(detect("\n \t\r\n{\"timestamp\": 5, \"input_length\": 9, \"hash_ids\": [1]}\nx", &format, &err), 0);
	assert_int_equal(format, OKV_TRACE_MOONCAKE);
	assert_int_equal(detect("", &format, &err), -ENODATA);
	assert_string_equal(err.text, "is empty");
	assert_int_equal(detect("\n\n  \n", &format, &err), -ENODATA);
	assert_int_equal(detect("neither\n", &format, &err), -EINVAL);
	assert_true(err.text[0] != 0);
	folder = fopen("/", "r");
	assert_non_null(folder);
	assert_int_equal(okv_trace_detect_file(folder, &format, &err), -EIO);
	assert_string_equal(err.text, strerror(EIO));
	fclose(folder);
	assert_int_equal(format, OKV_TRACE_MOONCAKE);
}

static void strict_stops_at_the_first(void **state)
{
	struct omnikv_error err = { "" };
	struct okv_trace trace;

	(void)state;
	okv_trace_init(&trace, 512);
	assert_int_equal(read_text(&trace, OKV_TRACE_MOONCAKE, some_bad, true, NULL, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "a.jsonl:3: "));
	assert_int_equal(trace.nr_malformed, 1);
	okv_trace_fini(&trace);
}

/* A line of more than 64 MiB is counted; the one behind it is read. */
static ssize_t long_line(void *cookie, char *buf, size_t size)
{
	static const char last[] = "\n{\"timestamp\": 7, \"input_length\": 1, \"hash_ids\": [1]}\n";
	uint64_t *at = cookie, limit = OKV_TRACE_LINE_MAX + UINT64_C(100), nr = 0;

	for (; nr < size && *at < limit; nr++, (*at)++)
		buf[nr] = ' ';
	for (; nr < size && *at >= limit && *at - limit < sizeof(last) - 1; nr++, (*at)++)
		buf[nr] = last[*at - limit];
	return nr;
}

static ssize_t broken(void *cookie, char *buf, size_t size)
{
	(void)cookie;
	(void)buf;
	(void)size;
	errno = EIO;
	return -1;
}

static void long_lines_and_io_errors(void **state)
{
	struct okv_trace_file file = { .name = "long", .format = OKV_TRACE_MOONCAKE };
	struct omnikv_error err = { "" };
	struct okv_trace trace;
	uint64_t at = 0;
	FILE *stream;

	(void)state;
	okv_trace_init(&trace, 512);
	stream = fopencookie(&at, "r", (cookie_io_functions_t) { .read = long_line });
	assert_int_equal(okv_trace_read(&trace, stream, &file, &err), 1);
	assert_int_equal(trace.nr_malformed, 1);
	fclose(stream);

	stream = fopencookie(&at, "r", (cookie_io_functions_t) { .read = broken });
	assert_int_equal(okv_trace_read(&trace, stream, &file, &err), -EIO);
	assert_non_null(strstr(err.text, "long:1"));
	fclose(stream);
	okv_trace_fini(&trace);
}

static void merged_by_time_and_stable(void **state)
{
	struct omnikv_error err = { "" };
	struct okv_trace trace;
	static const uint64_t order[] = { 4, 2, 3, 1 };
	int i;

	(void)state;
	okv_trace_init(&trace, 512);
	assert_int_equal(read_text(&trace, OKV_TRACE_MOONCAKE,
				   "{\"timestamp\": 9, \"input_length\": 1, \"hash_ids\": [1]}\n"
				   "{\"timestamp\": 5, \"input_length\": 2, \"hash_ids\": [2]}\n", true, NULL, &err), 2);
	assert_int_equal(read_text(&trace, OKV_TRACE_AZURE, "1970-01-01 00:00:00.005,3,1\n1970-01-01 00:00:00.001,4,1\n",
				   true, NULL, &err), 2);
	okv_trace_sort(&trace);
	for (i = 0; i < 4; i++)
		assert_int_equal(trace.requests[i].nr_tokens, order[i]);
	okv_trace_cut(&trace, 9);
	assert_int_equal(trace.nr_requests, 4);
	okv_trace_cut(&trace, 1);
	assert_int_equal(trace.nr_requests, 1);
	okv_trace_fini(&trace);
}

static void unknown_content_is_never_shared(void **state)
{
	struct omnikv_error err = { "" };
	struct omnikv_key a, b;
	struct okv_trace trace;

	(void)state;
	okv_trace_init(&trace, 16);
	assert_int_equal(read_text(&trace, OKV_TRACE_AZURE, "1970-01-01 00:00:00,40,1\n1970-01-01 00:00:00,40,1\n", true,
				   NULL, &err), 2);
	assert_int_equal(trace.requests[0].nr_blocks, 2);
	okv_request_content_key(&trace, &trace.requests[0], 0, &a);
	okv_request_content_key(&trace, &trace.requests[1], 0, &b);
	assert_memory_not_equal(a.bytes, b.bytes, sizeof(a.bytes));
	okv_request_content_key(&trace, &trace.requests[0], 1, &b);
	assert_memory_not_equal(a.bytes, b.bytes, sizeof(a.bytes));

	/* The tail of a trace with tokens is private to its request; its full blocks are not. */
	assert_int_equal(read_text(&trace, OKV_TRACE_TEXT, "{\"timestamp\": 1, \"input\": \"0123456789abcdefXY\"}\n"
				   "{\"timestamp\": 2, \"input\": \"0123456789abcdefXY\"}\n", true, NULL, &err), 2);
	assert_int_equal(trace.requests[2].nr_blocks, 1);
	okv_request_content_key(&trace, &trace.requests[2], 0, &a);
	okv_request_content_key(&trace, &trace.requests[3], 0, &b);
	assert_int_equal(a.len, 32);
	assert_memory_equal(a.bytes, b.bytes, sizeof(a.bytes));
	okv_request_content_key(&trace, &trace.requests[2], 1, &a);
	okv_request_content_key(&trace, &trace.requests[3], 1, &b);
	assert_memory_not_equal(a.bytes, b.bytes, sizeof(a.bytes));
	assert_int_equal(okv_trace_add_line(&trace, OKV_TRACE_AUTO, &(struct okv_trace_line) { 0 }), -EINVAL);
	okv_trace_fini(&trace);
}

/* ---- known answers of the real traces ------------------------------------------------------- */

/* A set of keys: open addressing, 2^20 places. */
#define SET_SHIFT	20
struct set {
	struct omnikv_key	*keys;
};

static bool set_find(struct set *set, const struct omnikv_key *key, bool add)
{
	uint64_t h = 14695981039346656037u;
	uint32_t i;

	for (i = 0; i < key->len; i++)
		h = (h ^ key->bytes[i]) * 1099511628211u;
	for (h >>= 64 - SET_SHIFT;; h = (h + 1) & ((1u << SET_SHIFT) - 1)) {
		if (!set->keys[h].len) {
			if (add)
				set->keys[h] = *key;
			return false;
		}
		if (set->keys[h].len == key->len && !memcmp(set->keys[h].bytes, key->bytes, key->len))
			return true;
	}
}

struct answer {
	const char		*pattern;
	enum okv_trace_format	format;
	uint32_t		block_tokens;
	uint64_t		nr_requests;
	uint64_t		referenced;
	uint64_t		hit;
};

static void real_trace(const struct answer *answer)
{
	const char *data = getenv("OMNIKV_DATA");
	struct omnikv_error err = { "" };
	struct set set = { NULL };
	struct okv_trace trace;
	uint64_t referenced = 0, hit = 0;
	char pattern[4096];
	struct omnikv_key key;
	glob_t found;
	size_t i;

	snprintf(pattern, sizeof(pattern), "%s/traces/%s", data ? data : "../shared/data", answer->pattern);
	if (glob(pattern, 0, NULL, &found)) {
		print_message("%s is not there\n", answer->pattern);
		skip();
	}
	okv_trace_init(&trace, answer->block_tokens);
	for (i = 0; i < found.gl_pathc; i++) {
		struct okv_trace_file file = { .name = found.gl_pathv[i], .format = answer->format, .is_strict = true };
		FILE *stream = fopen(file.name, "r");

		assert_non_null(stream);
		if (okv_trace_read(&trace, stream, &file, &err) < 0)
			fail_msg("%s", err.text);
		fclose(stream);
	}
	globfree(&found);
	okv_trace_sort(&trace);

	set.keys = calloc(1u << SET_SHIFT, sizeof(*set.keys));
	assert_non_null(set.keys);
	for (i = 0; i < trace.nr_requests; i++) {
		const struct okv_request *req = &trace.requests[i];
		bool is_prefix = true;
		uint32_t b;

		for (b = 0; b < req->nr_blocks; b++) {
			okv_request_content_key(&trace, req, b, &key);
			is_prefix = set_find(&set, &key, true) && is_prefix;
			hit += is_prefix;
		}
		referenced += req->nr_blocks;
	}
	assert_int_equal(trace.nr_malformed, 0);
	assert_int_equal(trace.nr_requests, answer->nr_requests);
	if (answer->referenced)
		assert_int_equal(referenced, answer->referenced);
	assert_int_equal(hit, answer->hit);
	free(set.keys);
	okv_trace_fini(&trace);
}

static void mooncake_conversations(void **state)
{
	(void)state;
	real_trace(&(struct answer) { "conversation_trace.jsonl", OKV_TRACE_MOONCAKE, 512, 12031, 288500, 105710 });
}

static void azure_code(void **state)
{
	(void)state;
	real_trace(&(struct answer) { "AzureLLMInferenceTrace_code.csv", OKV_TRACE_AZURE, 512, 8819, 0, 0 });
}

static void agent_sessions(void **state)
{
	(void)state;
	real_trace(&(struct answer) { "agent/*.jsonl", OKV_TRACE_TEXT, 16, 95, 26754, 20860 });
	real_trace(&(struct answer) { "agent/*.jsonl", OKV_TRACE_TEXT, 64, 95, 6663, 5189 });
	real_trace(&(struct answer) { "agent/*.jsonl", OKV_TRACE_TEXT, 512, 95, 804, 618 });
}

static void sharegpt_tokens(void **state)
{
	(void)state;
	real_trace(&(struct answer) { "llmservingsim_sharegpt*.jsonl", OKV_TRACE_TOKENS, 16, 300, 15942, 1220 });
	real_trace(&(struct answer) { "llmservingsim_sharegpt*.jsonl", OKV_TRACE_TOKENS, 64, 300, 3873, 295 });
	real_trace(&(struct answer) { "llmservingsim_sharegpt*.jsonl", OKV_TRACE_TOKENS, 512, 300, 349, 22 });
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(bad_lines_are_named_and_counted),
		cmocka_unit_test(ids_have_one_parent),
		cmocka_unit_test(format_is_known_by_the_first_line),
		cmocka_unit_test(strict_stops_at_the_first),
		cmocka_unit_test(long_lines_and_io_errors),
		cmocka_unit_test(merged_by_time_and_stable),
		cmocka_unit_test(unknown_content_is_never_shared),
		cmocka_unit_test(mooncake_conversations),
		cmocka_unit_test(azure_code),
		cmocka_unit_test(agent_sessions),
		cmocka_unit_test(sharegpt_tokens),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

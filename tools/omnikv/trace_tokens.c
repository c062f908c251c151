// SPDX-License-Identifier: GPL-2.0-only
/*
 * One line of a trace with token ids:
 *
 *	{"arrival_time_ns": NS, "input_tok_ids": [TOKEN, ...], "input_toks": N, "output_toks": N}
 *
 * The counts may be missing; input_toks must agree where it is there.
 */
#include <errno.h>

#include "trace_json.h"

static int okv_tokens_copy(const json_t *tokens, struct okv_trace_line *line, struct omnikv_error *err)
{
	size_t nr = json_array_size(tokens), i;
	int ret;

	ret = okv_line_room(line, nr);
	if (ret)
		return ret;
	for (i = 0; i < nr; i++) {
		const json_t *token = json_array_get(tokens, i);

		if (!json_is_integer(token) || json_integer_value(token) < 0 ||
		    json_integer_value(token) > UINT32_MAX) {
			snprintf(err->text, sizeof(err->text), "input_tok_ids[%zu] is no whole number from 0 to %u", i,
				 UINT32_MAX);
			return -EINVAL;
		}
		line->tokens[i] = json_integer_value(token);
	}
	return 0;
}

int okv_trace_tokens_parse(const char *text, size_t len, struct okv_trace_line *line, struct omnikv_error *err)
{
	const json_t *tokens;
	uint64_t nr_said;
	json_t *root;
	int ret;

	root = okv_json_object(text, len, err);
	if (!root)
		return -EINVAL;
	tokens = json_object_get(root, "input_tok_ids");
	line->nr_tokens = json_array_size(tokens);
	if (!json_is_array(tokens) || line->nr_tokens > OKV_TRACE_TOKENS_MAX) {
		snprintf(err->text, sizeof(err->text), "input_tok_ids is missing, no array or longer than %u",
			 OKV_TRACE_TOKENS_MAX);
		ret = -EINVAL;
		goto out;
	}
	ret = okv_json_time(root, "arrival_time_ns", 1, &line->time_ns, err);
	if (!ret)
		ret = okv_json_uint(root, "input_toks", 0, OKV_TRACE_TOKENS_MAX, (int64_t)line->nr_tokens, &nr_said,
				    err);
	if (!ret)
		ret = okv_json_uint(root, "output_toks", 0, OKV_TRACE_TOKENS_MAX, 0, &line->output_tokens, err);
	if (ret)
		goto out;
	if (nr_said != line->nr_tokens) {
		snprintf(err->text, sizeof(err->text), "input_toks is %llu, but there are %llu input_tok_ids",
			 (unsigned long long)nr_said, (unsigned long long)line->nr_tokens);
		ret = -EINVAL;
		goto out;
	}
	ret = okv_tokens_copy(tokens, line, err);
out:
	json_decref(root);
	return ret ? ret : 1;
}

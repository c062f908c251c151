// SPDX-License-Identifier: GPL-2.0-only
/*
 * One line of an agent's trace with the text of its prompts:
 *
 *	{"timestamp": US, "input": "TEXT", "output": "TEXT", ...}
 *
 * Each byte of the text's UTF-8 is a token.
 */
#include <errno.h>

#include "trace_json.h"

int okv_trace_text_parse(const char *text, size_t len, struct okv_trace_line *line, struct omnikv_error *err)
{
	const json_t *input;
	const char *bytes;
	json_t *root;
	size_t i;
	int ret;

	root = okv_json_object(text, len, err);
	if (!root)
		return -EINVAL;
	input = json_object_get(root, "input");
	line->nr_tokens = json_string_length(input);
	if (!json_is_string(input) || line->nr_tokens > OKV_TRACE_TOKENS_MAX) {
		snprintf(err->text, sizeof(err->text), "input is missing, no string or longer than %u bytes",
			 OKV_TRACE_TOKENS_MAX);
		ret = -EINVAL;
		goto out;
	}
	ret = okv_json_time(root, "timestamp", 1000, &line->time_ns, err);
	if (!ret)
		ret = okv_line_room(line, line->nr_tokens);
	if (ret)
		goto out;
	line->output_tokens = json_string_length(json_object_get(root, "output"));
	bytes = json_string_value(input);
	for (i = 0; i < line->nr_tokens; i++)
		line->tokens[i] = (unsigned char)bytes[i];
out:
	json_decref(root);
	return ret ? ret : 1;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fields of JSON lines, each with its range. Nothing in a line is trusted, and every refusal names
 * the field and what is allowed. Pure.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "trace_json.h"

json_t *okv_json_object(const char *text, size_t len, struct omnikv_error *err)
{
	json_error_t why;
	json_t *root;

	root = json_loadb(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
	if (!root) {
		snprintf(err->text, sizeof(err->text), "no JSON: %.160s (column %d)", why.text, why.column);
		return NULL;
	}
	if (!json_is_object(root)) {
		snprintf(err->text, sizeof(err->text), "JSON, but no object");
		json_decref(root);
		return NULL;
	}
	return root;
}

int okv_json_time(const json_t *root, const char *name, uint64_t unit_ns, uint64_t *time_ns,
		  struct omnikv_error *err)
{
	const json_t *value = json_object_get(root, name);
	double ns;

	if (json_is_integer(value) && json_integer_value(value) >= 0) {
		if (!__builtin_mul_overflow((uint64_t)json_integer_value(value), unit_ns, time_ns) &&
		    *time_ns <= INT64_MAX)
			return 0;
	} else if (json_is_real(value)) {
		ns = json_real_value(value) * (double)unit_ns;
		if (ns >= 0 && ns < 9.2e18) {
			*time_ns = (uint64_t)ns;
			return 0;
		}
	}
	snprintf(err->text, sizeof(err->text), "%s is no time: a number from 0 to %llu is needed", name,
		 (unsigned long long)(INT64_MAX / unit_ns));
	return -EINVAL;
}

int okv_json_uint(const json_t *root, const char *name, uint64_t min, uint64_t max, int64_t absent,
		  uint64_t *value, struct omnikv_error *err)
{
	const json_t *field = json_object_get(root, name);
	int64_t v = field ? -1 : absent;

	if (json_is_integer(field))
		v = json_integer_value(field);
	if (v >= 0 && (uint64_t)v >= min && (uint64_t)v <= max) {
		*value = v;
		return 0;
	}
	snprintf(err->text, sizeof(err->text), "%s is %s: a whole number from %llu to %llu is needed", name,
		 !field ? "missing" : json_is_integer(field) ? "out of range" : "no whole number",
		 (unsigned long long)min, (unsigned long long)max);
	return -EINVAL;
}

int okv_line_room(struct okv_trace_line *line, size_t nr)
{
	uint32_t *room;

	if (nr <= line->max_tokens)
		return 0;
	room = realloc(line->tokens, nr * sizeof(*room));
	if (!room)
		return -ENOMEM;
	line->tokens = room;
	line->max_tokens = nr;
	return 0;
}

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the parsers of JSON lines share: fields with a range, and arrays of numbers.
 *
 * Every function names the field and what is allowed in @err.
 */
#ifndef OKV_TRACE_JSON_H
#define OKV_TRACE_JSON_H

#include <jansson.h>

#include "trace.h"

/** The line as an object; NULL with the reason in @err. */
json_t *okv_json_object(const char *text, size_t len, struct omnikv_error *err);
/** A number >= 0 times @unit_ns; whole, or with a fraction. */
int okv_json_time(const json_t *root, const char *name, uint64_t unit_ns, uint64_t *time_ns,
		  struct omnikv_error *err);
/** A whole number in [@min, @max]; an absent one is @absent where that is in range, else an error. */
int okv_json_uint(const json_t *root, const char *name, uint64_t min, uint64_t max, int64_t absent,
		  uint64_t *value, struct omnikv_error *err);

/** Room for @nr tokens in the line; -ENOMEM. */
int okv_line_room(struct okv_trace_line *line, size_t nr);

#endif /* OKV_TRACE_JSON_H */

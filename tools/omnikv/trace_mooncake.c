// SPDX-License-Identifier: GPL-2.0-only
/*
 * One line of a Mooncake trace:
 *
 *	{"timestamp": MS, "input_length": N, "output_length": N, "hash_ids": [ID, ...]}
 *
 * An id stands for 512 tokens and all before them; the last one for what is left of the prompt.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "trace_json.h"

static int okv_id_cmp(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* An id stands for all tokens up to its block's end, so none stands twice in a line. */
static int okv_ids_differ(const struct okv_trace_line *line, struct omnikv_error *err)
{
	uint64_t *ids;
	size_t i;
	int ret = 0;

	if (line->nr_ids < 2)
		return 0;
	ids = malloc(line->nr_ids * sizeof(*ids));
	if (!ids)
		return -ENOMEM;
	memcpy(ids, line->ids, line->nr_ids * sizeof(*ids));
	qsort(ids, line->nr_ids, sizeof(*ids), okv_id_cmp);
	for (i = 1; i < line->nr_ids && !ret; i++) {
		if (ids[i] == ids[i - 1]) {
			snprintf(err->text, sizeof(err->text), "hash_ids has %llu twice; an id stands for its tokens and all "
				 "before them", (unsigned long long)ids[i]);
			ret = -EINVAL;
		}
	}
	free(ids);
	return ret;
}

static int okv_ids_copy(const json_t *ids, struct okv_trace_line *line, struct omnikv_error *err)
{
	size_t nr = json_array_size(ids), i;
	uint64_t *room;

	if (nr > line->max_ids) {
		room = realloc(line->ids, nr * sizeof(*room));
		if (!room)
			return -ENOMEM;
		line->ids = room;
		line->max_ids = nr;
	}
	for (i = 0; i < nr; i++) {
		const json_t *id = json_array_get(ids, i);

		if (!json_is_integer(id) || json_integer_value(id) < 0) {
			snprintf(err->text, sizeof(err->text), "hash_ids[%zu] is no whole number >= 0", i);
			return -EINVAL;
		}
		line->ids[i] = json_integer_value(id);
	}
	line->nr_ids = nr;
	return okv_ids_differ(line, err);
}

int okv_trace_mooncake_parse(const char *text, size_t len, struct okv_trace_line *line, struct omnikv_error *err)
{
	const json_t *ids;
	uint64_t nr_blocks;
	json_t *root;
	int ret;

	root = okv_json_object(text, len, err);
	if (!root)
		return -EINVAL;
	ret = okv_json_time(root, "timestamp", 1000000, &line->time_ns, err);
	if (!ret)
		ret = okv_json_uint(root, "input_length", 0, OKV_TRACE_TOKENS_MAX, -1, &line->nr_tokens, err);
	if (!ret)
		ret = okv_json_uint(root, "output_length", 0, OKV_TRACE_TOKENS_MAX, 0, &line->output_tokens, err);
	if (ret)
		goto out;

	ids = json_object_get(root, "hash_ids");
	nr_blocks = (line->nr_tokens + OKV_MOONCAKE_TOKENS - 1) / OKV_MOONCAKE_TOKENS;
	ret = -EINVAL;
	if (!json_is_array(ids))
		snprintf(err->text, sizeof(err->text), "hash_ids is missing or no array");
	else if (json_array_size(ids) != nr_blocks)
		snprintf(err->text, sizeof(err->text), "%zu hash_ids for input_length %llu: %llu are needed (one for %u "
			 "tokens)", json_array_size(ids), (unsigned long long)line->nr_tokens,
			 (unsigned long long)nr_blocks, OKV_MOONCAKE_TOKENS);
	else
		ret = okv_ids_copy(ids, line, err);
out:
	json_decref(root);
	return ret ? ret : 1;
}

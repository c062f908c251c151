// SPDX-License-Identifier: GPL-2.0-only
/*
 * Traces: the container, reading files line by line, telling formats apart, block keys.
 *
 * What a line of each format means is left to trace_mooncake.c, trace_azure.c, trace_tokens.c
 * and trace_text.c.
 */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "trace.h"

static const char *const okv_format_names[OKV_TRACE_NR_FORMATS] = {
	[OKV_TRACE_AUTO]	= "auto",
	[OKV_TRACE_MOONCAKE]	= "mooncake",
	[OKV_TRACE_AZURE]	= "azure",
	[OKV_TRACE_TOKENS]	= "tokens",
	[OKV_TRACE_TEXT]	= "text",
};

const char *okv_trace_format_name(enum okv_trace_format format)
{
	return (unsigned int)format < OKV_TRACE_NR_FORMATS ? okv_format_names[format] : NULL;
}

int okv_trace_format_parse(const char *name, enum okv_trace_format *format)
{
	int i;

	for (i = 0; i < OKV_TRACE_NR_FORMATS; i++) {
		if (!strcmp(name, okv_format_names[i])) {
			*format = i;
			return 0;
		}
	}
	return -EINVAL;
}

void okv_trace_line_fini(struct okv_trace_line *line)
{
	free(line->ids);
	free(line->tokens);
	memset(line, 0, sizeof(*line));
}

int okv_trace_line_parse(enum okv_trace_format format, const char *text, size_t len,
			 struct okv_trace_line *line, struct omnikv_error *err)
{
	while (len && isspace((unsigned char)text[len - 1]))
		len--;
	if (!len)
		return 0;

	switch (format) {
	case OKV_TRACE_MOONCAKE:
		return okv_trace_mooncake_parse(text, len, line, err);
	case OKV_TRACE_AZURE:
		return okv_trace_azure_parse(text, len, line, err);
	case OKV_TRACE_TOKENS:
		return okv_trace_tokens_parse(text, len, line, err);
	case OKV_TRACE_TEXT:
		return okv_trace_text_parse(text, len, line, err);
	default:
		snprintf(err->text, sizeof(err->text), "no format");
		return -EINVAL;
	}
}

int okv_trace_detect(const char *text, size_t len, enum okv_trace_format *format, struct omnikv_error *err)
{
	static const char header[] = "TIMESTAMP,";
	json_t *root;
	int ret = 0;

	if (len >= sizeof(header) - 1 && !strncasecmp(text, header, sizeof(header) - 1)) {
		*format = OKV_TRACE_AZURE;
		return 0;
	}
	if (len && isdigit((unsigned char)text[0]) && memchr(text, ',', len)) {
		*format = OKV_TRACE_AZURE;
		return 0;
	}

	root = json_loadb(text, len, JSON_ALLOW_NUL, NULL);
	if (json_is_array(json_object_get(root, "hash_ids"))) {
		*format = OKV_TRACE_MOONCAKE;
	} else if (json_is_array(json_object_get(root, "input_tok_ids"))) {
		*format = OKV_TRACE_TOKENS;
	} else if (json_is_string(json_object_get(root, "input"))) {
		*format = OKV_TRACE_TEXT;
	} else {
		snprintf(err->text, sizeof(err->text),
			 "its first line is of no known format (JSON with hash_ids, input_tok_ids or input, or CSV "
			 "that begins with TIMESTAMP); name one with --format mooncake|azure|tokens|text");
		ret = -EINVAL;
	}
	json_decref(root);
	return ret;
}

void okv_trace_init(struct okv_trace *trace, uint32_t block_tokens)
{
	memset(trace, 0, sizeof(*trace));
	trace->block_tokens = block_tokens;
}

void okv_trace_fini(struct okv_trace *trace)
{
	free(trace->requests);
	free(trace->words);
	free(trace->links);
	memset(trace, 0, sizeof(*trace));
}

struct okv_request *okv_trace_add(struct okv_trace *trace, size_t nr_words)
{
	struct okv_request *req;
	size_t max;

	if (trace->nr_requests == trace->max_requests) {
		max = trace->max_requests ? trace->max_requests * 2 : 1024;
		req = realloc(trace->requests, max * sizeof(*req));
		if (!req)
			return NULL;
		trace->requests = req;
		trace->max_requests = max;
	}
	if (nr_words > trace->max_words - trace->nr_words) {
		uint64_t *words;

		max = trace->max_words * 2 + nr_words + 4096;
		words = realloc(trace->words, max * sizeof(*words));
		if (!words)
			return NULL;
		trace->words = words;
		trace->max_words = max;
	}

	req = &trace->requests[trace->nr_requests];
	memset(req, 0, sizeof(*req));
	req->first_word = trace->nr_words;
	req->order = trace->nr_requests++;
	if (nr_words)
		memset(trace->words + trace->nr_words, 0, nr_words * sizeof(*trace->words));
	trace->nr_words += nr_words;
	return req;
}

static int okv_add_ids(struct okv_trace *trace, const struct okv_trace_line *line)
{
	struct okv_request *req;

	req = okv_trace_add(trace, line->nr_ids);
	if (!req)
		return -ENOMEM;
	req->nr_blocks = line->nr_ids;
	req->key_words = 1;
	req->is_tail_shared = line->nr_tokens % trace->block_tokens;
	if (line->nr_ids)
		memcpy(trace->words + req->first_word, line->ids, line->nr_ids * sizeof(*line->ids));
	return 0;
}

static int okv_add_tokens(struct okv_trace *trace, const struct okv_trace_line *line)
{
	size_t nr = line->nr_tokens / trace->block_tokens;
	const size_t words = sizeof(((struct omnikv_key *)0)->bytes) / sizeof(uint64_t);
	struct omnikv_key *keys;
	struct okv_request *req;
	int64_t ret;
	size_t i;

	keys = malloc((nr + 1) * sizeof(*keys));
	if (!keys)
		return -ENOMEM;
	ret = omnikv_chain_vllm("0", line->tokens, line->nr_tokens, trace->block_tokens, NULL, 0, keys);
	if (ret < 0)
		goto out;
	req = okv_trace_add(trace, nr * words);
	ret = req ? 0 : -ENOMEM;
	if (ret)
		goto out;
	req->nr_blocks = nr;
	req->key_words = words;
	for (i = 0; i < nr; i++)
		memcpy(trace->words + req->first_word + i * words, keys[i].bytes, sizeof(keys[i].bytes));
out:
	free(keys);
	return ret;
}

int okv_trace_add_line(struct okv_trace *trace, enum okv_trace_format format, const struct okv_trace_line *line)
{
	struct okv_request *req;
	int ret;

	switch (format) {
	case OKV_TRACE_MOONCAKE:
		ret = okv_add_ids(trace, line);
		break;
	case OKV_TRACE_AZURE:
		req = okv_trace_add(trace, 0);
		ret = req ? 0 : -ENOMEM;
		if (req) {
			req->is_unique = true;
			req->nr_blocks = line->nr_tokens / trace->block_tokens;
		}
		break;
	case OKV_TRACE_TOKENS:
	case OKV_TRACE_TEXT:
		ret = okv_add_tokens(trace, line);
		break;
	default:
		ret = -EINVAL;
	}
	if (ret)
		return ret;

	req = &trace->requests[trace->nr_requests - 1];
	req->time_ns = line->time_ns;
	req->nr_tokens = line->nr_tokens;
	req->lookup_tokens = line->nr_tokens;
	req->output_tokens = line->output_tokens;
	return 0;
}

/* Lines of a stream; one that is too long is cut and marked, and the rest of it is skipped. */
struct okv_lines {
	FILE	*stream;
	char	*text;
	size_t	len;
	size_t	max;
	bool	is_too_long;
};

/* 1: a line; 0: the end; -EFBIG (it does not end), -EIO, -ENOMEM. */
static int okv_lines_next(struct okv_lines *lines)
{
	bool is_any = false;
	uint64_t len = 0;
	int c;

	lines->len = 0;
	lines->is_too_long = false;
	while ((c = getc_unlocked(lines->stream)) != EOF) {
		is_any = true;
		if (c == '\n')
			break;
		if (lines->len == OKV_TRACE_LINE_MAX) {
			lines->is_too_long = true;
			if (++len > OKV_TRACE_LINE_END - OKV_TRACE_LINE_MAX)
				return -EFBIG;
			continue;
		}
		if (lines->len == lines->max) {
			size_t max = lines->max ? lines->max * 2 : 64 << 10;
			char *text = realloc(lines->text, max);

			if (!text)
				return -ENOMEM;
			lines->text = text;
			lines->max = max;
		}
		lines->text[lines->len++] = c;
	}
	if (c == EOF && ferror(lines->stream))
		return -EIO;
	return is_any;
}

int okv_trace_detect_file(FILE *stream, enum okv_trace_format *format, struct omnikv_error *err)
{
	struct okv_lines lines = { .stream = stream };
	int ret;

	do {
		ret = okv_lines_next(&lines);
		while (lines.len && isspace((unsigned char)lines.text[lines.len - 1]))
			lines.len--;
	} while (ret > 0 && !lines.len);

	if (ret == -EFBIG || (ret > 0 && lines.is_too_long)) {
		snprintf(err->text, sizeof(err->text), "its first line is longer than %u bytes; not a trace",
			 OKV_TRACE_LINE_MAX);
		ret = -EINVAL;
	} else if (ret < 0) {
		snprintf(err->text, sizeof(err->text), "%s", strerror(-ret));
	} else if (!ret) {
		snprintf(err->text, sizeof(err->text), "is empty");
		ret = -ENODATA;
	} else {
		ret = okv_trace_detect(lines.text, lines.len, format, err);
	}
	free(lines.text);
	return ret;
}

/* ---- ids that are chains -------------------------------------------------------------------- */

/* Where the link of an id is, or the empty one where it would be. */
static struct okv_chain_link *okv_chain_find(struct okv_chain_link *links, size_t max, uint64_t id, uint32_t tail_tokens)
{
	uint64_t at = (id + tail_tokens * UINT64_C(0x100000001)) * UINT64_C(0x9e3779b97f4a7c15);

	for (at ^= at >> 32;; at++) {
		struct okv_chain_link *link = &links[at & (max - 1)];

		if (!link->is_used || (link->id == id && link->tail_tokens == tail_tokens))
			return link;
	}
}

/* Room for @nr more links, half of all stay empty. */
static int okv_chain_reserve(struct okv_trace *trace, size_t nr)
{
	struct okv_chain_link *links;
	size_t max = trace->max_links ? trace->max_links : 1024, i;

	while (max / 2 < trace->nr_links + nr)
		max *= 2;
	if (max == trace->max_links)
		return 0;
	links = calloc(max, sizeof(*links));
	if (!links)
		return -ENOMEM;
	for (i = 0; i < trace->max_links; i++) {
		if (trace->links[i].is_used)
			*okv_chain_find(links, max, trace->links[i].id, trace->links[i].tail_tokens) = trace->links[i];
	}
	free(trace->links);
	trace->links = links;
	trace->max_links = max;
	return 0;
}

/* Remember which id stands before each id of @line; -EINVAL, with nothing remembered, where it was another before. */
static int okv_chain_add(struct okv_trace *trace, const struct okv_trace_line *line, struct omnikv_error *err)
{
	int ret = okv_chain_reserve(trace, line->nr_ids);
	size_t i;

	/* All are looked at before the first is remembered. */
	for (i = 0; !ret && i < 2 * line->nr_ids; i++) {
		size_t k = i % line->nr_ids;
		uint64_t parent = k ? line->ids[k - 1] : OKV_CHAIN_ROOT;
		uint32_t tail = k + 1 == line->nr_ids ? line->nr_tokens % OKV_MOONCAKE_TOKENS : 0;
		struct okv_chain_link *link = okv_chain_find(trace->links, trace->max_links, line->ids[k], tail);

		if (i >= line->nr_ids) {
			trace->nr_links += !link->is_used;
			*link = (struct okv_chain_link){ line->ids[k], parent, tail, true };
		} else if (link->is_used && link->parent != parent) {
			snprintf(err->text, sizeof(err->text), "hash_ids[%zu]: %llu stood behind another id before; an id "
				 "stands for its tokens and all before them", k, (unsigned long long)line->ids[k]);
			ret = -EINVAL;
		}
	}
	return ret;
}

int64_t okv_trace_read(struct okv_trace *trace, FILE *stream, const struct okv_trace_file *file,
		       struct omnikv_error *err)
{
	struct okv_lines lines = { .stream = stream };
	struct okv_trace_line line = { 0 };
	struct omnikv_error reason;
	char text[sizeof(reason.text) + 128];
	uint64_t line_nr = 0;
	int64_t nr = 0;
	int ret;

	while ((ret = okv_lines_next(&lines)) > 0) {
		line_nr++;
		reason.text[0] = 0;
		if (lines.is_too_long) {
			snprintf(reason.text, sizeof(reason.text), "longer than %u bytes", OKV_TRACE_LINE_MAX);
			ret = -EINVAL;
		} else {
			ret = okv_trace_line_parse(file->format, lines.text, lines.len, &line, &reason);
		}
		if (ret > 0 && file->format == OKV_TRACE_MOONCAKE) {
			int chain = okv_chain_add(trace, &line, &reason);

			ret = chain ? chain : ret;
		}
		if (ret > 0) {
			ret = okv_trace_add_line(trace, file->format, &line);
			if (!ret)
				nr++;
		} else if (ret == -EINVAL) {
			trace->nr_malformed++;
			snprintf(text, sizeof(text), "%.110s:%llu: %s", file->name, (unsigned long long)line_nr,
				 reason.text);
			if (file->is_strict) {
				snprintf(err->text, sizeof(err->text), "%.*s", (int)sizeof(err->text) - 1, text);
				ret = -EBADMSG;
				break;
			}
			if (file->malformed)
				file->malformed(file->opaque, text);
			ret = 0;
		}
		if (ret < 0)
			break;
	}
	if (ret == -EIO)
		snprintf(err->text, sizeof(err->text), "%.200s:%llu: cannot be read", file->name,
			 (unsigned long long)line_nr + 1);

	if (ret == -EFBIG) {
		snprintf(err->text, sizeof(err->text), "%.160s:%llu: a line without an end in %u bytes; not a trace", file->name,
			 (unsigned long long)line_nr + 1, OKV_TRACE_LINE_END);
		ret = -EBADMSG;
	}

	free(lines.text);
	okv_trace_line_fini(&line);
	return ret < 0 ? ret : nr;
}

static int okv_request_cmp(const void *a, const void *b)
{
	const struct okv_request *ra = a, *rb = b;

	if (ra->time_ns != rb->time_ns)
		return ra->time_ns < rb->time_ns ? -1 : 1;
	return ra->order < rb->order ? -1 : ra->order > rb->order;
}

void okv_trace_sort(struct okv_trace *trace)
{
	if (trace->nr_requests)
		qsort(trace->requests, trace->nr_requests, sizeof(*trace->requests), okv_request_cmp);
}

void okv_trace_cut(struct okv_trace *trace, size_t nr)
{
	if (nr < trace->nr_requests)
		trace->nr_requests = nr;
}

uint32_t okv_request_block_tokens(const struct okv_trace *trace, const struct okv_request *req, uint64_t idx)
{
	uint64_t first = idx * trace->block_tokens;

	if (req->nr_tokens - first >= trace->block_tokens)
		return trace->block_tokens;
	return req->nr_tokens - first;
}

void okv_request_content_key(const struct okv_trace *trace, const struct okv_request *req, uint64_t idx,
			     struct omnikv_key *key)
{
	/* The first word tells a private block from an id of a trace, which has one word. */
	const uint64_t private_key[3] = { UINT64_C(0x6f6d6e696b763a70), req->order, idx };

	if (req->is_unique || idx >= req->nr_blocks)
		omnikv_key_init(key, private_key, sizeof(private_key));
	else
		omnikv_key_init(key, trace->words + req->first_word + idx * req->key_words,
				req->key_words * sizeof(uint64_t));
}

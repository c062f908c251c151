// SPDX-License-Identifier: GPL-2.0-only
/*
 * One line of an Azure LLM inference trace:
 *
 *	TIMESTAMP,ContextTokens,GeneratedTokens
 *	2023-11-16 18:17:03.9799600,4808,10
 *
 * Times are UTC. There is no content, so no two blocks are the same.
 */
#include <errno.h>
#include <string.h>
#include <time.h>

#include "trace.h"

/* Exactly @nr digits at *@at. */
static bool okv_digits(const char **at, const char *end, int nr, int *value)
{
	int v = 0;

	for (; nr; nr--, (*at)++) {
		if (*at == end || **at < '0' || **at > '9')
			return false;
		v = v * 10 + (**at - '0');
	}
	*value = v;
	return true;
}

static bool okv_char(const char **at, const char *end, char c)
{
	if (*at == end || **at != c)
		return false;
	(*at)++;
	return true;
}

/* "YYYY-MM-DD hh:mm:ss[.fraction]" */
static bool okv_time(const char **at, const char *end, uint64_t *time_ns)
{
	static const int month_days[] = { 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31 };
	int year, month, day, hour, minute, second;
	uint64_t scale = 100000000, ns = 0;
	struct tm tm = { 0 };

	if (!okv_digits(at, end, 4, &year) || !okv_char(at, end, '-') || !okv_digits(at, end, 2, &month) ||
	    !okv_char(at, end, '-') || !okv_digits(at, end, 2, &day) || !okv_char(at, end, ' ') ||
	    !okv_digits(at, end, 2, &hour) || !okv_char(at, end, ':') || !okv_digits(at, end, 2, &minute) ||
	    !okv_char(at, end, ':') || !okv_digits(at, end, 2, &second))
		return false;
	if (year < 1970 || year > 2200 || month < 1 || month > 12 || day < 1 || day > month_days[month - 1] ||
	    hour > 23 || minute > 59 || second > 59)
		return false;
	if (okv_char(at, end, '.')) {
		if (*at == end || **at < '0' || **at > '9')
			return false;
		for (; *at != end && **at >= '0' && **at <= '9'; (*at)++, scale /= 10)
			ns += (uint64_t)(**at - '0') * scale;
	}

	tm.tm_year = year - 1900;
	tm.tm_mon = month - 1;
	tm.tm_mday = day;
	tm.tm_hour = hour;
	tm.tm_min = minute;
	tm.tm_sec = second;
	*time_ns = (uint64_t)timegm(&tm) * 1000000000 + ns;
	return true;
}

static bool okv_count(const char **at, const char *end, uint64_t *value)
{
	const char *first = *at;
	uint64_t v = 0;

	for (; *at != end && **at >= '0' && **at <= '9'; (*at)++) {
		v = v * 10 + (uint64_t)(**at - '0');
		if (v > OKV_TRACE_TOKENS_MAX)
			return false;
	}
	*value = v;
	return *at != first;
}

int okv_trace_azure_parse(const char *text, size_t len, struct okv_trace_line *line, struct omnikv_error *err)
{
	static const char header[] = "TIMESTAMP,";
	const char *at = text, *end = text + len;

	if (len >= sizeof(header) - 1 && !strncasecmp(text, header, sizeof(header) - 1))
		return 0;

	if (!okv_time(&at, end, &line->time_ns) || !okv_char(&at, end, ',')) {
		snprintf(err->text, sizeof(err->text), "column 1 is no time such as 2023-11-16 18:17:03.9799600");
		return -EINVAL;
	}
	if (!okv_count(&at, end, &line->nr_tokens) || !okv_char(&at, end, ',')) {
		snprintf(err->text, sizeof(err->text), "column 2 (ContextTokens) is no whole number up to %u",
			 OKV_TRACE_TOKENS_MAX);
		return -EINVAL;
	}
	if (!okv_count(&at, end, &line->output_tokens) || at != end) {
		snprintf(err->text, sizeof(err->text), "column 3 (GeneratedTokens) is no whole number up to %u, or more "
			 "follows", OKV_TRACE_TOKENS_MAX);
		return -EINVAL;
	}
	return 1;
}

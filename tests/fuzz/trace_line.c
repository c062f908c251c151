// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lines of traces from anyone: the first byte chooses the format, the rest is the line.
 * What is refused must say why, and what is taken must be playable.
 */
#include <stdint.h>
#include <stdlib.h>

#include "tools/omnikv/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct okv_trace_line line = { 0 };
	struct omnikv_error err = { "" };
	enum okv_trace_format format;
	struct okv_trace trace;
	int ret;

	if (!size)
		return 0;
	format = OKV_TRACE_MOONCAKE + data[0] % (OKV_TRACE_NR_FORMATS - OKV_TRACE_MOONCAKE);
	ret = okv_trace_line_parse(format, (const char *)data + 1, size - 1, &line, &err);
	/* What is refused has a reason; what is taken can be played. */
	if (ret < 0 && !err.text[0])
		abort();
	if (ret > 0) {
		if (line.nr_tokens > OKV_TRACE_TOKENS_MAX)
			abort();
		okv_trace_init(&trace, OKV_MOONCAKE_TOKENS);
		if (okv_trace_add_line(&trace, format, &line))
			abort();
		okv_trace_fini(&trace);
	}
	okv_trace_line_fini(&line);

	ret = okv_trace_detect((const char *)data + 1, size - 1, &format, &err);
	if (!ret && (format <= OKV_TRACE_AUTO || format >= OKV_TRACE_NR_FORMATS))
		abort();
	return 0;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sizes and pool specifications of any bytes. What is accepted is in range, reads back as the
 * number that it stands for, and names a part of the text; what is refused has a reason.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "provider.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void expect(int is_true)
{
	if (!is_true)
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct okv_pool_spec spec;
	struct omnikv_error err;
	char *text = malloc(size + 1), again[32];
	uint64_t bytes, twice;

	if (!text)
		return 0;
	memcpy(text, data, size);
	text[size] = '\0';

	err.text[0] = '\0';
	if (!omnikv_size_parse(text, &bytes, &err)) {
		expect(bytes <= INT64_MAX);
		snprintf(again, sizeof(again), "%" PRIu64, bytes);
		expect(!omnikv_size_parse(again, &twice, NULL) && twice == bytes);
	} else {
		expect(err.text[0] && !memchr(err.text, '\0', 1) && strlen(err.text) < sizeof(err.text));
	}

	err.text[0] = '\0';
	if (!okv_pool_spec_parse(text, &spec, &err)) {
		/* All others have a name of their own where none is given. */
		expect(spec.kind != OKV_PROVIDER_KMOD || spec.name);
		expect(!spec.name || (spec.name > text && spec.name < text + size && spec.name[0]));
	} else {
		expect(err.text[0]);
	}
	free(text);
	return 0;
}

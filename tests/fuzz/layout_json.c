// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fuzzes the JSON reader of layouts: no text makes it crash, leak or fill its result on
 * failure; messages are one printable line; what it accepts passes the checks, is written and read back the same,
 * and can be planned or is refused with a reason.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <omnikv/layout.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static void expect(int is_true)
{
	if (!is_true)
		abort();
}

static void expect_line(const struct omnikv_error *err)
{
	size_t n = strnlen(err->text, sizeof(err->text));

	expect(n > 0 && n < sizeof(err->text));
	for (size_t i = 0; i < n; i++)
		expect(err->text[i] >= 0x20 && err->text[i] < 0x7f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	static struct omnikv_layout first, second;
	static struct omnikv_plan plan;
	struct omnikv_error err = { "" };
	uint8_t a[32], b[32];
	char *text, *again;
	int ret;

	memset(&first, 0x5a, sizeof(first));
	ret = omnikv_layout_parse((const char *)data, len, &first, &err);
	if (ret) {
		expect(ret == -EINVAL);
		expect_line(&err);
		for (size_t i = 0; i < sizeof(first); i += sizeof(first) / 64)
			expect(((uint8_t *)&first)[i] == 0x5a);
		return 0;
	}
	expect(omnikv_layout_check(&first, NULL) == 0);
	expect(omnikv_layout_format(&first, &text) == 0);
	expect(omnikv_layout_parse(text, strlen(text), &second, NULL) == 0);
	expect(omnikv_layout_format(&second, &again) == 0);
	expect(strcmp(text, again) == 0);
	free(text);
	free(again);
	expect(omnikv_layout_identity(&first, a) == 0 && omnikv_layout_identity(&second, b) == 0);
	expect(memcmp(a, b, 32) == 0);
	expect(omnikv_layout_diff(&first, &second, NULL) == -ENOENT);
	ret = omnikv_plan_make(&first, NULL, &plan, &err);
	expect(ret == 0 || ret == -EINVAL);
	if (ret)
		expect_line(&err);
	return 0;
}

// SPDX-License-Identifier: MIT
/*
 * Sizes as users type them: "4G", "129.5M", "65536".
 *
 * Exact: what is no whole number of bytes, or could be read in two ways, is refused with the
 * reason. Pure; any thread.
 */
#include <omnikv/pool.h>

#include <errno.h>

#include "error.h"

#define SIZE_MAX_BYTES	0x7fffffffffffffffull

static int refuse(struct omnikv_error *err, const char *text, const char *why)
{
	return okv_error_set(err, -EINVAL,
			     "size \"%.64s\": %s; write digits, a fraction if you like, and K, M, G or T (powers of 1024)",
			     text, why);
}

static int digit(char c)
{
	return c >= '0' && c <= '9' ? c - '0' : -1;
}

/* "K" to "T" end the text; nothing is bytes. -1 for anything else. */
static int unit_shift(const char *text)
{
	static const char units[] = "KMGT";
	int i;

	if (!text[0])
		return 0;
	for (i = 0; units[i]; i++)
		if (text[0] == units[i] && !text[1])
			return 10 * (i + 1);
	return -1;
}

int omnikv_size_parse(const char *text, uint64_t *bytes, struct omnikv_error *err)
{
	uint64_t whole = 0, fraction = 0, scale = 1, part;
	const char *p = text;
	int shift;

	if (!text || !bytes)
		return okv_error_set(err, -EINVAL, "size: NULL");
	if (digit(*p) < 0)
		return refuse(err, text, "it does not begin with a digit");

	for (; digit(*p) >= 0; p++)
		if (__builtin_mul_overflow(whole, 10, &whole) ||
		    __builtin_add_overflow(whole, (uint64_t)digit(*p), &whole))
			return refuse(err, text, "too large");
	if (*p == '.') {
		p++;
		if (digit(*p) < 0)
			return refuse(err, text, "no digit after the point");
		for (; digit(*p) >= 0; p++) {
			/* Zeros at the end change nothing and would exhaust the scale. */
			const char *q = p;

			while (*q == '0')
				q++;
			if (digit(*q) < 0) {
				p = q;
				break;
			}
			if (__builtin_mul_overflow(scale, 10, &scale))
				return refuse(err, text, "too many digits after the point");
			fraction = fraction * 10 + (uint64_t)digit(*p);
		}
	}

	shift = unit_shift(p);
	if (shift < 0)
		return refuse(err, text, "unknown unit");
	if (whole > SIZE_MAX_BYTES >> shift)
		return refuse(err, text, "too large");
	whole <<= shift;

	/* fraction / scale of the unit, which must be whole bytes. */
	if (fraction) {
		unsigned __int128 product = (unsigned __int128)fraction << shift;

		if (product % scale)
			return refuse(err, text, "not a whole number of bytes");
		part = (uint64_t)(product / scale);
		if (part > SIZE_MAX_BYTES - whole)
			return refuse(err, text, "too large");
		whole += part;
	}
	*bytes = whole;
	return 0;
}

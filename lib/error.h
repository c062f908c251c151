/* SPDX-License-Identifier: MIT */
/*
 * Filling struct omnikv_error: one line that says what was wrong, why, and what to do.
 *
 * Header only. Any thread; the struct is the caller's and may be NULL.
 */
#ifndef OKV_ERROR_H
#define OKV_ERROR_H

#include <stdarg.h>
#include <stdio.h>

#include <omnikv/types.h>

/** Format @err->text, cut to its size, and return @ret, so that a failing path is one statement. */
__attribute__((format(printf, 3, 4)))
static inline int okv_error_set(struct omnikv_error *err, int ret, const char *format, ...)
{
	va_list args;

	if (err) {
		va_start(args, format);
		vsnprintf(err->text, sizeof(err->text), format, args);
		va_end(args);
	}
	return ret;
}

#endif /* OKV_ERROR_H */

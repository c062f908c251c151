/* SPDX-License-Identifier: MIT */
/*
 * Types that every public header of libomnikv uses.
 *
 * Functions return 0 (or a count) or a negative errno, write out-parameters only
 * on success, never print and never touch errno. Option structs begin with their
 * own size in bytes; a tail that the library does not know must be zero (-E2BIG).
 */
#ifndef OMNIKV_TYPES_H
#define OMNIKV_TYPES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <linux/omnikv.h>

#define OMNIKV_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/**
 * struct omnikv_error - why a call failed, in words
 * @text: one line: what was wrong, why, and what to do; empty when the errno says it all
 *
 * Optional in every call that takes one: NULL drops the text.
 */
struct omnikv_error {
	char text[256];
};

#ifdef __cplusplus
}
#endif

#endif /* OMNIKV_TYPES_H */

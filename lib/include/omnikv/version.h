/* SPDX-License-Identifier: MIT */
/*
 * Version of libomnikv.
 *
 * The library's soname is MAJOR. A program asks for a feature, not for a version: these numbers
 * are for messages. lib/omnikv.map and Documentation/changes.rst must agree with them, or the
 * build stops.
 */
#ifndef OMNIKV_VERSION_H
#define OMNIKV_VERSION_H

#include <omnikv/types.h>

#define OMNIKV_VERSION_MAJOR	0
#define OMNIKV_VERSION_MINOR	1
#define OMNIKV_VERSION_PATCH	0
#define OMNIKV_VERSION		"0.1.0"

#ifdef __cplusplus
extern "C" {
#endif

/**
 * Version of the library that is loaded, as OMNIKV_VERSION was when it was built. Bindings compare the two, to
 * say in words what the loader cannot.
 */
OMNIKV_API const char *omnikv_version(void);

#ifdef __cplusplus
}
#endif

#endif /* OMNIKV_VERSION_H */

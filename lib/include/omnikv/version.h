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

#define OMNIKV_VERSION_MAJOR	0
#define OMNIKV_VERSION_MINOR	1
#define OMNIKV_VERSION_PATCH	0
#define OMNIKV_VERSION		"0.1.0"

#endif /* OMNIKV_VERSION_H */

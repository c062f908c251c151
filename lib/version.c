/* SPDX-License-Identifier: MIT */
/*
 * The version of the library that is loaded.
 *
 * Pure: any thread.
 */
#include <omnikv/version.h>

const char *omnikv_version(void)
{
	return OMNIKV_VERSION;
}

/* SPDX-License-Identifier: MIT */
/*
 * Structs that begin with their own size, so that a caller built against another version works.
 *
 * A caller's struct may be longer than the library's when the tail is zero (-E2BIG else), and
 * shorter: the missing tail reads as zero. Size 0 is a struct that was never filled in: -EINVAL.
 * Header only, pure.
 */
#ifndef OKV_OPTION_H
#define OKV_OPTION_H

#include <errno.h>
#include <stddef.h>
#include <string.h>

/** Is the size of @option one that this library can serve? @known is the library's. */
static inline int okv_option_check(const void *option, size_t known)
{
	size_t size, i;

	memcpy(&size, option, sizeof(size));
	if (size < sizeof(size))
		return -EINVAL;
	for (i = known; i < size; i++)
		if (((const unsigned char *)option)[i])
			return -E2BIG;
	return 0;
}

/** Copy @option (NULL: all defaults) to @full of @known bytes, with @full's size set to @known. */
static inline int okv_option_copy(void *full, size_t known, const void *option)
{
	size_t size;
	int ret;

	memset(full, 0, known);
	if (option) {
		ret = okv_option_check(option, known);
		if (ret)
			return ret;
		memcpy(&size, option, sizeof(size));
		memcpy(full, option, size < known ? size : known);
	}
	memcpy(full, &known, sizeof(known));
	return 0;
}

/** Hand a result back: as much of @full as the caller's @option holds, its size left alone. */
static inline void okv_option_return(void *option, const void *full, size_t known)
{
	size_t size;

	memcpy(&size, option, sizeof(size));
	memcpy((unsigned char *)option + sizeof(size), (const unsigned char *)full + sizeof(size),
	       (size < known ? size : known) - sizeof(size));
}

#endif /* OKV_OPTION_H */

/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * What the files of core/ need from their surroundings, in the kernel and in user space.
 *
 * core/ is freestanding: fixed-width integers, errno values and memset() are all that it uses.
 * It allocates nothing, takes no lock and reads no clock; callers serialise.
 */
#ifndef OKV_CORE_TYPES_H
#define OKV_CORE_TYPES_H

#ifdef __KERNEL__
#include <linux/errno.h>
#include <linux/string.h>
#include <linux/types.h>
#else
#include <errno.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#endif

#include <linux/omnikv.h>

#define OKV_PREFETCH_W(p)	__builtin_prefetch((p), 1)

/*
 * Stores before it are seen first by whoever reads the memory later, also after the writer was
 * killed: a process that dies leaves its stores in program order, so the compiler's order is enough.
 */
#define OKV_ORDERED_STORE(p, v)	__atomic_store_n((p), (v), __ATOMIC_RELEASE)

#endif /* OKV_CORE_TYPES_H */

/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * The contract between /dev/omnikv and user space.
 *
 * So far this holds what both providers of pools share: how an extent is named
 * and which states it passes through. The commands of the module follow with it.
 * Fixed-width fields only, no holes, the same layout for 32-bit callers.
 */
#ifndef _UAPI_LINUX_OMNIKV_H
#define _UAPI_LINUX_OMNIKV_H

#include <linux/types.h>

/**
 * struct omnikv_extent - the name of a run of granules inside one pool
 * @granule:     first granule, counted from the start of the pool
 * @generation:  raised each time that the extent is given up; an old name is -ESTALE
 * @nr_granules: length of the run, never 0
 */
struct omnikv_extent {
	__aligned_u64	granule;
	__u32		generation;
	__u32		nr_granules;
};

/*
 * Life of an extent. FREE has no owner; PRIVATE is written by the client that
 * allocated it; SEALED is immutable and may be leased; META is the manager's;
 * QUARANTINED waits for its last bind, lease or transfer; POISONED is lost to
 * the pool for good.
 */
#define OMNIKV_EXTENT_FREE		0
#define OMNIKV_EXTENT_PRIVATE		1
#define OMNIKV_EXTENT_SEALED		2
#define OMNIKV_EXTENT_META		3
#define OMNIKV_EXTENT_QUARANTINED	4
#define OMNIKV_EXTENT_POISONED		5
#define OMNIKV_EXTENT_NR_STATES		6

#endif /* _UAPI_LINUX_OMNIKV_H */

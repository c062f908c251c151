/* SPDX-License-Identifier: MIT */
/*
 * NUMA policies as users type them, for both providers and the command line.
 *
 * Reading them is pure; which nodes a host has is asked by numa_host.c alone. Any thread.
 */
#ifndef OKV_NUMA_POLICY_H
#define OKV_NUMA_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include <omnikv/types.h>

struct okv_numa_policy {
	uint32_t	kind;	/* OMNIKV_NUMA_* */
	uint64_t	nodes;	/* bit per node */
};

/** "bind:0,2-3", "interleave:0-1" or "prefer:0", nodes 0 to 63. False: it is none, and @policy is as it was. */
bool okv_numa_policy_parse(const char *text, struct okv_numa_policy *policy);
/** The same for this host. -EINVAL: it is none, or names nodes that are not there; -EOPNOTSUPP; @err begins with "numa". */
int okv_numa_policy_check(const char *text, struct okv_numa_policy *policy, struct omnikv_error *err);

#endif /* OKV_NUMA_POLICY_H */

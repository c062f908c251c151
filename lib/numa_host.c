// SPDX-License-Identifier: MIT
/*
 * NUMA policies against the nodes that this host has. See numa_policy.h.
 *
 * The only file that asks libnuma which they are; reading the text is numa_policy.c's. Any thread.
 */
#include "numa_policy.h"

#include <errno.h>
#include <numa.h>

#include "error.h"

static uint64_t host_nodes(void)
{
	uint64_t nodes = 0;
	int i;

	for (i = 0; i <= numa_max_node() && i < 64; i++)
		if (numa_bitmask_isbitset(numa_all_nodes_ptr, (unsigned int)i))
			nodes |= 1ULL << i;
	return nodes;
}

int okv_numa_policy_check(const char *text, struct okv_numa_policy *policy, struct omnikv_error *err)
{
	struct okv_numa_policy asked;

	if (!okv_numa_policy_parse(text, &asked))
		return okv_error_set(err, -EINVAL, "numa \"%.40s\": write bind:NODES, interleave:NODES or prefer:NODE, with nodes as 0,2-3",
				     text);
	if (numa_available() < 0)
		return okv_error_set(err, -EOPNOTSUPP, "numa \"%.40s\": the kernel has no NUMA support", text);
	if (asked.nodes & ~host_nodes())
		return okv_error_set(err, -EINVAL, "numa \"%.40s\": no such nodes (0 to %d are there)", text, numa_max_node());
	*policy = asked;
	return 0;
}

// SPDX-License-Identifier: MIT
/*
 * NUMA policies as users type them. See numa_policy.h.
 *
 * A word, a colon and a list of nodes; whatever else there is makes it none. Pure, any thread.
 */
#include "numa_policy.h"

#include <stddef.h>
#include <string.h>

#include <linux/omnikv.h>

#define NODES	64

/* One number of a list; -1 when there is none, or it is too large. */
static int parse_node(const char **text)
{
	int node = -1;

	for (; **text >= '0' && **text <= '9'; ++*text) {
		node = (node < 0 ? 0 : node) * 10 + (**text - '0');
		if (node >= NODES)
			return -1;
	}
	return node;
}

/* "0,2-3" */
static bool parse_nodes(const char *text, uint64_t *nodes)
{
	int first, last;

	for (*nodes = 0;; text++) {
		first = last = parse_node(&text);
		if (first >= 0 && *text == '-') {
			text++;
			last = parse_node(&text);
		}
		if (first < 0 || last < first)
			return false;
		for (; first <= last; first++)
			*nodes |= 1ULL << first;
		if (*text != ',')
			return !*text;
	}
}

bool okv_numa_policy_parse(const char *text, struct okv_numa_policy *policy)
{
	static const struct { const char *word; uint32_t kind; } words[] = {
		{ "bind:", OMNIKV_NUMA_BIND }, { "interleave:", OMNIKV_NUMA_INTERLEAVE },
		{ "prefer:", OMNIKV_NUMA_PREFER },
	};
	uint64_t nodes;
	size_t i;

	for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		size_t len = strlen(words[i].word);

		if (strncmp(text, words[i].word, len) || !parse_nodes(text + len, &nodes))
			continue;
		policy->kind = words[i].kind;
		policy->nodes = nodes;
		return true;
	}
	return false;
}

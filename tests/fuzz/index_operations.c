// SPDX-License-Identifier: GPL-2.0-only
/*
 * Strings of index operations against the plain model, every invariant walked after each one.
 * The first two bytes choose the universe and how many bits of hash are kept.
 */
#include <stdio.h>
#include <stdlib.h>

#include "tests/harness/index_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct index_model_config config = { .nr_nodes = 24, .check_every = 1 };
	struct index_model_counts counts;
	const char *why;

	if (size < 2 || size > 4096)
		return 0;
	config.seed = data[0];
	config.nr_groups = 1 + data[1] % 2;
	config.optional_groups = config.nr_groups == 2 ? 2 : 0;
	config.hash_bits = data[1] & 4 ? 2 : 0;
	why = index_model_run(&config, data + 2, size - 2, &counts);
	if (why) {
		fprintf(stderr, "%s\n", why);
		abort();
	}
	return 0;
}

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A plain model of the prefix index, and a driver that does the same to both.
 *
 * The model keeps one record a block in an array and answers everything by walking it: no hash,
 * no lists, no search. A string of bytes says which operations to do, so that a seeded
 * generator and a fuzzer drive the same code. One thread.
 */
#ifndef INDEX_MODEL_H
#define INDEX_MODEL_H

#include <stddef.h>
#include <stdint.h>

struct index_model_config {
	uint64_t	seed;		/* of the universe of blocks and of placements */
	uint32_t	nr_nodes;	/* blocks that exist in the universe */
	uint32_t	nr_groups;
	uint32_t	optional_groups;
	uint32_t	hash_bits;
	uint32_t	second_ns;	/* of the two namespaces, beside 0; 0: 3 */
	uint32_t	check_every;	/* operations between two walks of all invariants */
};

struct index_model_counts {
	uint64_t	nr_ops;
	uint64_t	nr_inserted;
	uint64_t	nr_evicted;
	uint64_t	nr_blocks_hit;
	uint64_t	nr_collisions;
};

/** NULL, or in words where index and model first differ. */
const char *index_model_run(const struct index_model_config *config, const uint8_t *ops, size_t nr_bytes,
			    struct index_model_counts *counts);

#endif /* INDEX_MODEL_H */

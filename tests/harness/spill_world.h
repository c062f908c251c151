/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Blocks that a test of the spill store can make from a number and know again.
 *
 * Block @id of @salt has a key, a parent, parts and bytes that follow from the two alone.
 */
#ifndef OKV_TESTS_SPILL_WORLD_H
#define OKV_TESTS_SPILL_WORLD_H

#include "spill/store.h"
#include "tests/harness/sim_disk.h"

/** splitmix64 */
uint64_t spill_random(uint64_t *state);

/** @bytes of payload, split over @nr_parts parts of whole pages. */
void spill_block(struct okv_record *rec, uint64_t salt, uint64_t id, uint64_t bytes, uint32_t nr_parts);
void spill_fill(uint8_t *buf, uint64_t salt, uint64_t id, uint64_t bytes);
/** Bytes of @buf that are not the block's. */
uint64_t spill_wrong(const uint8_t *buf, uint64_t salt, uint64_t id, uint64_t bytes);

/** Store one block; the result of its put. */
int spill_put(struct okv_store *store, uint64_t salt, uint64_t id, uint64_t bytes, uint32_t nr_parts);
/** Store blocks [from, to) with one call; the first error. */
int spill_put_run(struct okv_store *store, uint64_t salt, uint64_t from, uint64_t to, uint64_t bytes,
		  uint32_t nr_parts);
/**
 * Read one block and compare: 0 all right, -ENOENT not found, or what reading said; -EUCLEAN: it was served with
 * a wrong byte, or under a record that is not the block's.
 */
int spill_get(struct okv_store *store, uint64_t salt, uint64_t id);

/** Options for a store on a simulated disk. */
struct okv_store_config spill_sim_config(uint64_t capacity, uint64_t segment_bytes);
int spill_sim_open(struct sim_disk *sim, const struct okv_store_config *config, struct okv_store **store);

#endif /* OKV_TESTS_SPILL_WORLD_H */

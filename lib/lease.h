/* SPDX-License-Identifier: MIT */
/*
 * The lease table of one client process: what it holds of each extent of a shared pool.
 *
 * Memory that the client writes and the pool's authority reads: a counter for each granule, sparse,
 * and a bit for each page of counters, so that the authority never touches pages that the client
 * never wrote. Header only; the counters are atomic, so threads need no lock.
 *
 * A lease is taken and an extent is given up without either waiting for the other:
 *
 *	client                            authority
 *	count++                           raise the generation of the record
 *	full fence                        full fence
 *	generation still the same?        counts of all tables 0?
 *
 * At least one of the two sees what the other did: the client's name is old (-ESTALE, count--), or the
 * extent waits in quarantine. What a hostile client writes here only keeps memory of its own pool busy.
 */
#ifndef OKV_LEASE_H
#define OKV_LEASE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "fence.h"
#include "prefetch.h"

#define OKV_LEASE_GRANULES_A_BIT	1024u	/* a page of counters */

/** @touched, @counts: in the shared memory; NULL: no table */
struct okv_lease_table {
	_Atomic uint64_t	*touched;
	_Atomic uint32_t	*counts;
	uint64_t		nr_granules;
};

static inline uint64_t okv_lease_counts_off(uint64_t nr_granules)
{
	uint64_t nr_bits = (nr_granules + OKV_LEASE_GRANULES_A_BIT - 1) / OKV_LEASE_GRANULES_A_BIT;

	return ((nr_bits + 7) / 8 + 4095) & ~4095ull;
}

/** Bytes of the table's memory, whole pages. */
static inline uint64_t okv_lease_bytes(uint64_t nr_granules)
{
	return (okv_lease_counts_off(nr_granules) + nr_granules * sizeof(uint32_t) + 4095) & ~4095ull;
}

/** @base: okv_lease_bytes() of shared memory, zero at first */
static inline void okv_lease_init(struct okv_lease_table *table, void *base, uint64_t nr_granules)
{
	table->touched = base;
	table->counts = (_Atomic uint32_t *)((unsigned char *)base + okv_lease_counts_off(nr_granules));
	table->nr_granules = nr_granules;
}

/** Count one more. Before anything is decided by it okv_lease_fence() follows, one for many. */
static inline void okv_lease_add(struct okv_lease_table *table, uint32_t granule)
{
	uint32_t bit = granule / OKV_LEASE_GRANULES_A_BIT;

	if (!(atomic_load_explicit(&table->touched[bit / 64], memory_order_relaxed) >> (bit % 64) & 1))
		atomic_fetch_or(&table->touched[bit / 64], 1ull << (bit % 64));
	atomic_fetch_add_explicit(&table->counts[granule], 1, memory_order_relaxed);
}

/** What was counted before is seen, or what was stored before that count: pairs with the fence of whoever gives up. */
static inline void okv_lease_fence(void)
{
	okv_fence(memory_order_seq_cst);
}

/** It is about to be counted. */
static inline void okv_lease_prefetch(const struct okv_lease_table *table, uint32_t granule)
{
	okv_prefetch((const void *)&table->counts[granule]);
}

static inline void okv_lease_sub(struct okv_lease_table *table, uint32_t granule)
{
	atomic_fetch_sub(&table->counts[granule], 1);
}

/** What it counts. Whoever decides by it has stored the new generation and passed a full fence. */
static inline uint32_t okv_lease_count(const struct okv_lease_table *table, uint32_t granule)
{
	uint32_t bit = granule / OKV_LEASE_GRANULES_A_BIT;

	if (!table->counts ||
	    !(atomic_load_explicit(&table->touched[bit / 64], memory_order_relaxed) >> (bit % 64) & 1))
		return 0;
	return atomic_load_explicit(&table->counts[granule], memory_order_acquire);
}

#endif /* OKV_LEASE_H */

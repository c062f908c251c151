/* SPDX-License-Identifier: MIT */
/*
 * How the prefix index lies in memory, for the one that writes it (index.c), for readers in other
 * processes (reader.c), and for the manager that finds it after a crash.
 *
 * Nothing in here is a pointer. Offsets count bytes from a base that both sides know (the pool's
 * linear map); the writer's own pointers and lists are its own affair.
 *
 *	head ---> directory ---> chunks: entries [], records []
 *	  '-----> table (and, while it grows, the one being left): buckets []
 *
 * What survives the writer: key, name, parent, position, tail_tokens, heat, the tick, and each
 * group's extent and checksum. An entry is there when its name is not 0: that is stored last when
 * it comes and first when it goes, and a killed process leaves its stores in program order. @seal
 * says whether the rest belongs together. Links, tables, runs and the order are made anew.
 *
 * What readers rely on: an entry, and all that is before it on its path, does not change while a slot of the
 * table names it, but for links, heat and order; a bucket's version is raised before and after each change of
 * its slots, and odd in between.
 */
#ifndef OKV_INDEX_SHARED_H
#define OKV_INDEX_SHARED_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define XXH_INLINE_ALL
#define XXH_STATIC_LINKING_ONLY
#include <xxhash.h>

#include <omnikv/key.h>

#include "manager/evict.h"

#define OKV_INDEX_MAGIC		0x3158444e49564b4full
#define OKV_INDEX_VERSION	1u
#define OKV_CHUNK_SHIFT		OKV_EVICT_CHUNK_SHIFT
#define OKV_CHUNK_ENTRIES	(1u << OKV_CHUNK_SHIFT)
#define OKV_CHUNKS_MAX		((UINT32_MAX >> OKV_CHUNK_SHIFT) - 1)
#define OKV_SECRET_BYTES	192u
#define OKV_BUCKET_SLOTS	7u

/* The name of an entry: namespace, length of the key, flags. */
#define OKV_ENTRY_NS_BITS	20
#define OKV_ENTRY_LEN_BITS	6
#define OKV_ENTRY_NAME_MASK	((1u << (OKV_ENTRY_NS_BITS + OKV_ENTRY_LEN_BITS)) - 1)
#define OKV_ENTRY_F_PARTIAL	(1u << 26)
#define OKV_ENTRY_F_DROPPED	(1u << 27)	/* not in the table */

/**
 * struct okv_entry - what a lookup reads of a block; one cache line
 * @name:   OKV_ENTRY_*; 0: the entry is free
 * @parent: of a free entry: its successor on the free list
 * @tag:    hash of namespace and key
 * @seal:   check of all that survives but heat, tick and flags: okv_entry_seal()
 *
 * A partial tail has no children and no tails, so its links among its parent's tails take their place; and it
 * says how many tokens it has, which leaves less room for its heat.
 */
struct okv_entry {
	uint64_t	key[OMNIKV_KEY_BYTES_MAX / 8];
	uint32_t	name;
	uint32_t	parent;
	uint32_t	position;
	uint32_t	tag;
	union {
		uint32_t	nr_children;
		uint32_t	tail_prev;
	};
	union {
		uint32_t	tails;
		uint32_t	tail_next;
	};
	union {
		uint32_t	heat;
		struct {
			uint16_t	tail_tokens;
			uint16_t	tail_heat;
		};
	};
	uint32_t	seal;
};

_Static_assert(sizeof(struct okv_entry) == 64, "an entry is one cache line");

/**
 * struct okv_group - one extent of a block
 * @run_blocks, @run_parent: the run up to and with this block, and the entry before the run's first block:
 *                           they lead past a run without visiting it
 * @nr_granules: 0: absent, and all else means nothing
 *
 * What a walk reads comes first, so that it seldom lies in two cache lines.
 */
struct okv_group {
	uint64_t	granule : 40;
	uint64_t	run_blocks : 24;
	uint32_t	nr_granules;
	uint32_t	run_parent;
	uint32_t	generation;
	uint32_t	crc32c;
};

struct okv_entry_record {
	struct okv_evict_node	node;
	struct okv_group	groups[];
};

/**
 * struct okv_bucket - slots of the table; one cache line
 * @tags:      hash; of an empty slot anything
 * @nr_passed: entries of this or an earlier home that lie further on
 * @ids:       entry id + 1; 0 is empty
 * @version:   odd while a slot of this bucket changes
 */
struct okv_bucket {
	uint32_t	tags[OKV_BUCKET_SLOTS];
	uint32_t	nr_passed;
	uint32_t	ids[OKV_BUCKET_SLOTS];
	uint32_t	version;
};

_Static_assert(sizeof(struct okv_bucket) == 64, "a bucket is one cache line");

/**
 * struct okv_chunk_ref - where a chunk lies
 * @nr: entries that it has room for; OKV_CHUNK_ENTRIES but in the last one
 */
struct okv_chunk_ref {
	uint64_t	entries_off;
	uint64_t	records_off;
	uint32_t	nr;
	uint32_t	reserved;
};

/** struct okv_index_dir - all chunks; changed by appending, else replaced by another directory */
struct okv_index_dir {
	uint32_t		nr_chunks;
	uint32_t		max_chunks;
	struct okv_chunk_ref	chunks[];
};

/** struct okv_table_ref - a table of 1 << @log2_buckets buckets; @off 0: none */
struct okv_table_ref {
	uint64_t	off;
	uint32_t	log2_buckets;
	uint32_t	reserved;
};

/**
 * struct okv_index_head - where a reader, or the next writer, begins
 * @stride:  bytes of a record
 * @secret:  keys the hash; not to leave the pool's trust domain
 * @crc:     CRC32C of all before it, which never changes
 * @nr_ids:  entries below have been in use
 * @tables:  version of the two references below; odd while they change
 */
struct okv_index_head {
	uint64_t		magic;
	uint32_t		version;
	uint32_t		nr_groups;
	uint32_t		optional_groups;
	uint32_t		block_tokens;
	uint32_t		tag_mask;
	uint32_t		stride;
	uint8_t			secret[OKV_SECRET_BYTES];
	uint32_t		reserved;
	uint32_t		crc;

	uint64_t		dir_off;
	uint32_t		nr_ids;
	uint32_t		tables;
	struct okv_table_ref	tab;
	struct okv_table_ref	old;
};

static inline uint64_t okv_ns_mix(uint32_t ns)
{
	return ((uint64_t)ns + 1) * 0x9e3779b97f4a7c15ull;
}

/* Length and zero padding are part of what is hashed. */
static inline uint32_t okv_key_tag(const uint8_t secret[OKV_SECRET_BYTES], uint32_t tag_mask, uint64_t mix,
				   const struct omnikv_key *key)
{
	uint64_t h = XXH3_64bits_withSecret(key, sizeof(*key), secret, OKV_SECRET_BYTES);

	return (uint32_t)((h ^ mix) >> 32) & tag_mask;
}

static inline uint32_t okv_entry_name(uint32_t ns, uint32_t key_len)
{
	return ns | key_len << OKV_ENTRY_NS_BITS;
}

static inline uint32_t okv_entry_ns(const struct okv_entry *e)
{
	return e->name & ((1u << OKV_ENTRY_NS_BITS) - 1);
}

static inline uint32_t okv_entry_key_len(const struct okv_entry *e)
{
	return e->name >> OKV_ENTRY_NS_BITS & ((1u << OKV_ENTRY_LEN_BITS) - 1);
}

/**
 * okv_entry_seal() - a sum over what belongs to an entry, namespace and key by way of its tag
 * @name: that it has, or will have
 *
 * Absent groups count as such, whatever they hold. Each word has an odd factor of its own, so that the products
 * do not wait for one another.
 */
static inline uint32_t okv_entry_seal(const struct okv_entry *e, const struct okv_entry_record *rec, uint32_t nr_groups,
				      uint32_t name)
{
	const uint64_t step = 0x9fb21c651e98df24ull;
	uint64_t factor = 0x9e3779b97f4a7c15ull;
	uint32_t tokens = name & OKV_ENTRY_F_PARTIAL ? e->tail_tokens : 0;
	uint64_t sum = ((uint64_t)e->position << 32 | e->parent) * factor +
		       ((uint64_t)e->tag << 32 | tokens) * (factor + step);

	for (uint32_t i = 0; i < nr_groups; i++) {
		const struct okv_group *g = &rec->groups[i];

		factor += 3 * step;
		if (g->nr_granules == 0)
			sum += factor;
		else
			sum += ((uint64_t)g->granule << 24 ^ g->nr_granules) * factor +
			       ((uint64_t)g->crc32c << 32 | g->generation) * (factor + step);
	}
	return (uint32_t)(sum >> 32);
}

static inline bool okv_key_equal(const struct okv_entry *e, const struct omnikv_key *key)
{
	uint64_t k[OMNIKV_KEY_BYTES_MAX / 8];

	memcpy(k, key->bytes, sizeof(k));
	return (((e->key[0] ^ k[0]) | (e->key[1] ^ k[1]) | (e->key[2] ^ k[2]) | (e->key[3] ^ k[3])) |
		(okv_entry_key_len(e) ^ key->len)) == 0;
}

/** Is it the entry of this key, whose name is okv_entry_name()? */
static inline bool okv_entry_is(const struct okv_entry *e, uint32_t name, const struct omnikv_key *key)
{
	uint64_t k[OMNIKV_KEY_BYTES_MAX / 8];

	memcpy(k, key->bytes, sizeof(k));
	return (((e->key[0] ^ k[0]) | (e->key[1] ^ k[1]) | (e->key[2] ^ k[2]) | (e->key[3] ^ k[3])) |
		((e->name & OKV_ENTRY_NAME_MASK) ^ name)) == 0;
}

/* A bit for each of OKV_BUCKET_SLOTS words that is @word. No branches: which slot it is cannot be foreseen. */
static inline uint32_t okv_slots_with(const uint32_t *words, uint32_t word)
{
	_Static_assert(OKV_BUCKET_SLOTS == 7, "one term a slot");
	return (uint32_t)(words[0] == word) | (uint32_t)(words[1] == word) << 1 | (uint32_t)(words[2] == word) << 2 |
	       (uint32_t)(words[3] == word) << 3 | (uint32_t)(words[4] == word) << 4 | (uint32_t)(words[5] == word) << 5 |
	       (uint32_t)(words[6] == word) << 6;
}

#endif /* OKV_INDEX_SHARED_H */

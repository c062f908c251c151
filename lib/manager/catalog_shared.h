/* SPDX-License-Identifier: MIT */
/*
 * How the catalog lies in META extents: the root, and the namespaces. The indexes that it leads to are
 * index_shared.h's.
 *
 *	root ---> namespaces []
 *	  |-----> one index a shelf
 *	  '-----> token ids: chunk ---> chunk ---> ...		(where they are kept)
 *
 * Written by the pool's manager (catalog.c), read by its successor and by readers in other processes
 * (reader.c). No pointers: offsets count from the base of the pool's linear map. What can be seen half
 * made has a word that is stored last.
 */
#ifndef OKV_CATALOG_SHARED_H
#define OKV_CATALOG_SHARED_H

#include <stdint.h>

#define OKV_CATALOG_MAGIC	0x31544143564b4f00ull
#define OKV_CATALOG_VERSION	2u
#define OKV_CATALOG_SHELVES_MAX	16u

/**
 * struct okv_catalog_space - one namespace; its place in the list is its number in the indexes
 * @plan_off:     its layout and how it is cut: struct okv_catalog_plan
 * @shelf:        its index: place in the root's list
 * @needed_state, @match_flags: as in struct omnikv_space
 * @crc:          CRC32C of all before it
 * @is_used:      1, stored last when the namespace comes and cleared first when it goes
 */
struct okv_catalog_space {
	uint8_t		identity[32];
	uint8_t		kin[32];
	uint64_t	plan_off;
	uint32_t	shelf;
	uint32_t	block_tokens;
	uint32_t	needed_state;
	uint32_t	match_flags;
	uint32_t	nr_groups;
	uint32_t	crc;
	uint32_t	is_used;
	uint32_t	reserved;
};

struct okv_catalog_spaces {
	uint32_t			nr;
	uint32_t			reserved;
	struct okv_catalog_space	spaces[];
};

/**
 * struct okv_catalog_plan - a layout as text, and how it is cut
 * @crc:  CRC32C of all behind it
 * @text: the layout as omnikv_layout_format() says it, without a final 0
 */
struct okv_catalog_plan {
	uint32_t	crc;
	uint32_t	nr_bytes;	/* of @text */
	uint32_t	block_tokens;
	uint32_t	scale;
	char		text[];
};

/**
 * struct okv_catalog_root - at the start of a META extent
 * @granule:     that extent's first: a copy elsewhere is no root
 * @nr_granules: of the pool
 * @instance:    of the pool: nothing that a client writes into a block or key looks like a root by chance
 * @crc:         CRC32C of all before it, which never changes
 * @epoch:       only ever raised
 * @spaces_off:  0: none
 * @shelves:     offsets of struct okv_index_head; 0: none
 * @tokens_off:  of the first struct okv_tokens_chunk; 0: none
 */
struct okv_catalog_root {
	uint64_t	magic;
	uint32_t	version;
	uint32_t	granule_bytes;
	uint64_t	granule;
	uint64_t	nr_granules;
	uint8_t		instance[16];
	uint32_t	reserved;
	uint32_t	crc;

	uint64_t	epoch;
	uint64_t	spaces_off;
	uint64_t	shelves[OKV_CATALOG_SHELVES_MAX];
	uint64_t	tokens_off;
};

/**
 * struct okv_tokens_chunk - slots for the token ids of blocks of one size
 * @slot_tokens: token ids that each slot has room for
 * @crc:         CRC32C of all before it, which never changes
 * @next_off:    0: the last
 *
 * [nr_slots] struct okv_tokens_slot follow, each of okv_tokens_stride() bytes.
 */
struct okv_tokens_chunk {
	uint64_t	magic;
	uint32_t	nr_slots;
	uint32_t	slot_tokens;
	uint32_t	reserved;
	uint32_t	crc;
	uint64_t	next_off;
};

/**
 * struct okv_tokens_slot - the token ids of one block
 * @ns, @entry: whose; OKV_ENTRY_NONE: nobody's
 * @crc: CRC32C of the fields before it, the token ids and the block's key: of a slot that is half written, or whose
 *       entry is another block's by now, it does not fit
 */
struct okv_tokens_slot {
	uint32_t	ns;
	uint32_t	entry;
	uint32_t	nr_tokens;
	uint32_t	crc;
	uint32_t	ids[];
};

#define OKV_TOKENS_MAGIC	0x314e4b54564b4f00ull

static inline size_t okv_tokens_stride(uint32_t slot_tokens)
{
	return sizeof(struct okv_tokens_slot) + ((size_t)slot_tokens + 3) / 4 * 16;
}

#endif /* OKV_CATALOG_SHARED_H */

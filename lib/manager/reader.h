/* SPDX-License-Identifier: MIT */
/*
 * The index of a pool as another process reads it: lookups that no writer blocks.
 *
 * The memory is the pool's linear map, mapped read-only; the pool's manager writes in it meanwhile, may
 * be killed at any instruction, and is not trusted: every offset, id and length is checked before it
 * is followed, and every loop is bounded. What was read counts only if the versions around it say that
 * it held still. A reader has no lock and leaves no trace; the calls are pure and may come from any thread.
 *
 * A hit is what was there at one moment of the call. Whoever is to use its bytes leases the extents
 * that okv_reader_blocks() names: their generations tell whether they are still the ones. The memory
 * may be unmapped only when no call is inside.
 */
#ifndef OKV_READER_H
#define OKV_READER_H

#include <stddef.h>
#include <stdint.h>

#include <omnikv/key.h>
#include <omnikv/types.h>

/** How often a call looks again before it gives up with -EAGAIN. */
#define OKV_READER_TRIES	8u

/**
 * struct okv_reader
 * @base:     the pool's linear map, readable
 * @bytes:    of it
 * @root_off: of the catalog's root in it: okv_pool_catalog_root_off()
 * @granule_bytes: as the root says
 */
struct okv_reader {
	const unsigned char	*base;
	uint64_t		bytes;
	uint64_t		root_off;
	uint64_t		granule_bytes;
};

/**
 * okv_reader_init() - read the index of this memory
 *
 * Return: 0, or -EINVAL (@root_off is outside or not a multiple of 64), -EBADMSG (no root of this
 * library's version is there).
 */
int okv_reader_init(struct okv_reader *reader, const void *base, uint64_t bytes, uint64_t root_off);
/** The catalog's epoch: what is older is not to be used. */
uint64_t okv_reader_epoch(const struct okv_reader *reader);

/**
 * struct okv_reader_space - one namespace of the catalog
 * @index_off:    its shelf's index
 * @id:           its number there
 * @nr_groups:    extents of a block
 * @needed_state: groups that the last block of a hit must have
 * @match_flags:  OKV_INDEX_MATCH_F_*
 * @block_tokens: T
 */
struct okv_reader_space {
	uint8_t		identity[32];
	uint64_t	index_off;
	uint32_t	id;
	uint32_t	nr_groups;
	uint32_t	needed_state;
	uint32_t	match_flags;
	uint32_t	block_tokens;
};

/** Find a namespace by its identity. -ENOENT; -EAGAIN; -EBADMSG. */
int okv_reader_space(const struct okv_reader *reader, const uint8_t identity[32], struct okv_reader_space *space);

/**
 * struct okv_reader_hit - how far a match went
 * @nr_blocks:   a partial tail included
 * @tail_tokens: of that tail; 0: none
 * @entry:       of the last block; OKV_ENTRY_NONE: nothing hit
 * @bucket_off, @version, @tables: what tells whether it is still there
 */
struct okv_reader_hit {
	uint64_t	nr_blocks;
	uint32_t	tail_tokens;
	uint32_t	entry;
	uint64_t	bucket_off;
	uint32_t	version;
	uint32_t	tables;
};

/**
 * okv_reader_match() - the longest cached prefix, as omnikv_match() finds it
 * @keys: [nr_keys] of full blocks, in order from position 0
 * @tail: key of a partial tail behind them, or NULL
 *
 * Each block of the hit was there, under its key and behind its parent, at one moment of the call.
 * While the writer inserts or evicts on this very path the hit may be shorter than the longest of
 * any moment.
 *
 * Return: 0 (also for a miss of everything), or -EAGAIN (it changed at each of OKV_READER_TRIES looks, or
 * its writer died in a change: ask the manager, or take it for a miss), -ESTALE (the namespace is
 * gone), -EBADMSG (what is there is no index).
 */
int okv_reader_match(const struct okv_reader *reader, const struct okv_reader_space *space,
		     const struct omnikv_key *keys, size_t nr_keys, const struct omnikv_key *tail,
		     struct okv_reader_hit *hit);

/** struct okv_reader_lookup - one of many; @res: what okv_reader_match() returns */
struct okv_reader_lookup {
	const struct omnikv_prefix	*prefix;
	int				res;
	struct okv_reader_hit		hit;
};

/** okv_reader_match() of each, with the waits for memory of short ones side by side. */
void okv_reader_match_list(const struct okv_reader *reader, const struct okv_reader_space *space,
			   struct okv_reader_lookup *lookups, uint32_t nr);

/**
 * struct okv_reader_block - one block of a hit
 * @entry: its id
 */
struct okv_reader_block {
	struct omnikv_key	key;
	uint32_t		entry;
	uint32_t		position;
	uint32_t		nr_tokens;	/* T, or those of a partial tail */
};

/**
 * okv_reader_blocks() - blocks [@from, hit->nr_blocks) of a hit, in order of position
 * @blocks:  [nr_blocks - from], may be NULL
 * @extents: [nr_blocks - from][nr_groups]; nr_granules 0 where an optional group has none
 * @crc32c:  [nr_blocks - from][nr_groups], may be NULL
 *
 * All of them are what they were when the hit was made, or the call fails. They name extents; none is leased.
 *
 * Return: 0, or -ESTALE (the hit is gone, or may be: match again), -EINVAL (@from is behind the hit), -EBADMSG.
 */
int okv_reader_blocks(const struct okv_reader *reader, const struct okv_reader_space *space,
		      const struct okv_reader_hit *hit, uint64_t from, struct okv_reader_block *blocks,
		      struct omnikv_extent *extents, uint32_t *crc32c);
/** struct okv_reader_read - one of many; @res: what okv_reader_blocks() returns */
struct okv_reader_read {
	const struct okv_reader_hit	*hit;
	uint64_t			from;
	struct okv_reader_block		*blocks;
	struct omnikv_extent		*extents;
	uint32_t			*crc32c;
	int				res;
};

/** okv_reader_blocks() of each. */
void okv_reader_blocks_list(const struct okv_reader *reader, const struct okv_reader_space *space,
			    struct okv_reader_read *reads, uint32_t nr);
/** Is the hit as it was? Then so is every block of it. False also where only its bucket was changed, or nothing was hit. */
bool okv_reader_is_current(const struct okv_reader *reader, const struct okv_reader_space *space,
			   const struct okv_reader_hit *hit);

#endif /* OKV_READER_H */

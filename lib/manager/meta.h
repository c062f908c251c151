/* SPDX-License-Identifier: MIT */
/*
 * The manager's memory in META extents of its pool, cut into pieces.
 *
 * Which pieces are in use is known to this process alone: a manager that takes over claims again what
 * it can reach, and what nobody claims goes back to the pool. So no store into META has to be made for
 * an allocation, and none can be lost. Calls are serialised by the manager's lock.
 */
#ifndef OKV_META_H
#define OKV_META_H

#include <stdbool.h>

#include <omnikv/pool.h>

#define OKV_META_ALIGN	64u

struct okv_meta;

/**
 * typedef okv_meta_room_fn - the pool is full: make room
 *
 * Return: granules that were given up; 0: there is nothing more to give up.
 */
typedef uint64_t (*okv_meta_room_fn)(void *opaque, uint64_t nr_granules);

/**
 * okv_meta_open() - what META there is, is found, and no piece of it is in use yet
 * @client:    manages its pool
 * @is_fenced: by a window, which ends when another manager takes the pool over, rather than by the pool's own mapping
 *
 * -ENOMEM; errors of the pool.
 */
int okv_meta_open(struct omnikv_client *client, bool is_fenced, okv_meta_room_fn room, void *opaque, struct okv_meta **meta);
/** Forget it; the extents stay. NULL is ignored. */
void okv_meta_close(struct okv_meta *meta);

/**
 * okv_meta_alloc() - zeroed memory
 *
 * Where no extent has room another one is allocated, if need be after making room. Before okv_meta_sweep()
 * nothing is taken of what was found. No piece lies at offset 0.
 *
 * Return: memory aligned to OKV_META_ALIGN, at okv_meta_extent() where there was none; NULL: no room, or no memory.
 */
void *okv_meta_alloc(struct okv_meta *meta, size_t bytes);
/** @bytes as at the allocation or claim. An extent without pieces goes back to the pool. */
void okv_meta_free(struct okv_meta *meta, void *mem, size_t bytes);
/** A piece that an earlier manager had: inside one extent and not claimed yet, else NULL. */
void *okv_meta_claim(struct okv_meta *meta, uint64_t off, size_t bytes);
/** The same without claiming it, and whether or not it is claimed. */
const void *okv_meta_peek(const struct okv_meta *meta, uint64_t off, size_t bytes);
/** Does @granule lie in an extent of META? */
bool okv_meta_has(const struct okv_meta *meta, uint64_t granule);
/** All is claimed that ever will be: extents without pieces go back to the pool. */
void okv_meta_sweep(struct okv_meta *meta);

uint64_t okv_meta_granules(const struct okv_meta *meta);
/** Where META stands at its offsets in the pool; nothing else need be there. */
unsigned char *okv_meta_base(const struct okv_meta *meta);
/** Where the first piece of extent @i, in order of place, may lie; 0: there are not so many. */
uint64_t okv_meta_extent(const struct okv_meta *meta, uint32_t i);

#endif /* OKV_META_H */

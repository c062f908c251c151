/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The oracle: what every byte of every block must be.
 *
 * Content is a function of (tenant, key of the block, group, layer, plane, byte of the plane),
 * never stored, so that whatever comes back from the pool can be compared byte by byte. A piece
 * of a plane is a stream of 64-bit words, each a mix of a seed and the word's number.
 *
 * Pure; any thread.
 */
#ifndef OKV_ORACLE_H
#define OKV_ORACLE_H

#include <omnikv/key.h>

/** Seed of all content under a block key of a tenant. */
uint64_t okv_oracle_block(uint64_t tenant_seed, const struct omnikv_key *key);
/** Seed of one plane of one layer of a block. */
uint64_t okv_oracle_plane(uint64_t block_seed, uint32_t group, uint32_t layer, uint32_t plane);
/** Text to seed, for tenants. */
uint64_t okv_oracle_text(const char *text);

/** Write the bytes [@off, @off + @len) of the plane to @buf. */
void okv_oracle_fill(uint64_t plane_seed, uint64_t off, void *buf, size_t len);
/** How many of the bytes at @buf differ; the first one's index in @first where that is not 0. */
uint64_t okv_oracle_check(uint64_t plane_seed, uint64_t off, const void *buf, size_t len, uint64_t *first);

#endif /* OKV_ORACLE_H */

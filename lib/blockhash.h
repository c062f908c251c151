/* SPDX-License-Identifier: MIT */
/*
 * Our own keyed 128-bit hash of blocks of tokens, chained so that a key names its whole prefix.
 *
 * Tokens are cut into vectors of four 16-byte lanes, each block zero-padded to whole vectors.
 * With x(v,l) the lane l of vector v, counted from the start of the prompt:
 *
 *	d(0,l)   secret;  d(v+1,l) = 2 * d(v,l) in GF(2^128)
 *	sum(i)   = iv + sum over all vectors of blocks 0..i of R4(l, x(v,l) + d(v,l))
 *	key(i)   = AES-128(final, sum(i))
 *
 * where + is exclusive or and R4(l, .) is four rounds of AES under round keys of that lane. This
 * is the parallel MAC of Minematsu and Tsunoo (FSE 2006): lanes that differ in one place never
 * collide, since R4 is a permutation; for more, collision needs a differential of four-round
 * AES, which has probability at most 2^-113 over the keys. Nothing in it is serial but an
 * exclusive or, so it runs at the speed at which tokens come (tests/bench/index.c). XXH3 has no
 * such bound, and its 128-bit form, block by block and folded, takes over twice as long.
 *
 * Pure; a key is constant after creation, and any number of threads hash with it.
 */
#ifndef OKV_BLOCKHASH_H
#define OKV_BLOCKHASH_H

#include <stddef.h>
#include <stdint.h>

#include <omnikv/key.h>

#define OKV_BLOCKHASH_LANES	4u
#define OKV_BLOCKHASH_ROUNDS	4u
#define OKV_BLOCKHASH_VECTOR	16u	/* tokens of one vector */

struct omnikv_chain_key;

/** Hash @nr_blocks more: @sum and @offset go on, @keys is written whole. */
typedef void (*okv_blockhash_fn)(const struct omnikv_chain_key *ck, uint64_t sum[2], uint64_t offset[8],
				 const uint32_t *tokens, size_t nr_blocks, struct omnikv_key *keys);

/** All values as they lie in memory: lane l's 16 bytes are words 2l and 2l + 1, little endian. */
struct omnikv_chain_key {
	_Alignas(64) uint64_t	rounds[OKV_BLOCKHASH_ROUNDS][8];
	uint64_t		offset[8];	/* d(0, l) */
	uint64_t		final[11][2];
	uint64_t		iv[2];
	uint32_t		block_tokens;
	okv_blockhash_fn	fn;
};

enum okv_blockhash_path {
	OKV_BLOCKHASH_PORTABLE,
	OKV_BLOCKHASH_AESNI,	/* one lane at a time */
	OKV_BLOCKHASH_VAES512,	/* a vector at a time */
	OKV_BLOCKHASH_NR_PATHS,
};

/** For tests: all paths give the same keys. -EOPNOTSUPP where this CPU lacks it. */
int okv_blockhash_set_path(struct omnikv_chain_key *ck, enum okv_blockhash_path path);
/** NULL where the build or the CPU lacks it. */
okv_blockhash_fn okv_blockhash_x86(enum okv_blockhash_path path);

#endif /* OKV_BLOCKHASH_H */

/* SPDX-License-Identifier: MIT */
/*
 * Keys of blocks, and the namespaces that they live in.
 *
 * A key is the engine's own block hash, opaque, 1 to 32 bytes. A namespace is everything
 * that must match for bytes to be interchangeable. Engines without a block hash can use one
 * of the chains below: two are identical to vLLM's and SGLang's, the third is our own and fast.
 */
#ifndef OMNIKV_KEY_H
#define OMNIKV_KEY_H

#include <omnikv/layout.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OMNIKV_KEY_BYTES_MAX	32u

/**
 * struct omnikv_key - identity of one block inside a namespace
 * @bytes: the first @len are significant, the rest must be zero
 * @len:   1 to OMNIKV_KEY_BYTES_MAX
 *
 * A key names the whole prefix up to and including its block. For a partial tail the
 * caller's key must include the number of tokens; omnikv_key_partial() makes one.
 */
struct omnikv_key {
	uint8_t		bytes[OMNIKV_KEY_BYTES_MAX];
	uint32_t	len;
};

/**
 * struct omnikv_prefix - a prompt, or the begin of one, by the keys of its blocks
 * @keys: [nr_keys] of full blocks, in order from position 0; NULL where there are none
 * @tail: of a partial tail behind them, or NULL
 */
struct omnikv_prefix {
	const struct omnikv_key	*keys;
	size_t			nr_keys;
	const struct omnikv_key	*tail;
};

/** Make a key of @len bytes; -EINVAL for length 0, a length over the maximum, NULL. */
OMNIKV_API int omnikv_key_init(struct omnikv_key *key, const void *bytes, size_t len);
/**
 * omnikv_key_partial() - key of a partial tail that is bound to its length
 * @key:       the engine's key of the tail (or of the block that the tail will become part of)
 * @nr_tokens: tokens in the tail, 1 or more
 * @partial:   result, 32 bytes; may be @key
 *
 * SHA-256 over key and length: tails of different length never share a key, and none equals @key.
 *
 * Return: 0, -EINVAL (no key, or @nr_tokens 0) or -ENOMEM.
 */
OMNIKV_API int omnikv_key_partial(const struct omnikv_key *key, uint32_t nr_tokens, struct omnikv_key *partial);

/**
 * struct omnikv_namespace - all that must match for bytes to be interchangeable
 *
 * Strings may be NULL (empty). Each field enters the identity with its length before it, so
 * that no two different sets of fields have the same encoding.
 */
struct omnikv_namespace {
	size_t				size;
	const char			*tenant;
	const char			*weights;	/* model and revision */
	const char			*adapter;	/* LoRA */
	const struct omnikv_layout	*layout;	/* its identity enters, dtypes included */
	uint32_t			block_tokens;
	uint32_t			hash_algorithm;	/* enum omnikv_hash_algorithm, how keys were made */
	const void			*salt;
	size_t				salt_len;
	uint64_t			epoch;		/* raised when weights change under the same name */
};

enum omnikv_hash_algorithm {
	OMNIKV_HASH_OPAQUE,		/* the engine's own */
	OMNIKV_HASH_VLLM_SHA256_CBOR,
	OMNIKV_HASH_SGLANG_SHA256,
	OMNIKV_HASH_FAST,		/* omnikv_chain_fast() */
};

/** Name of a hash algorithm, as in "sha256_cbor"; "?" for a value that there is not. */
OMNIKV_API const char *omnikv_hash_algorithm_name(enum omnikv_hash_algorithm algorithm);

/**
 * SHA-256 of the length-prefixed fields. The same in every process and on every machine.
 *
 * Return: 0, -EINVAL (@ns NULL or shorter than the first release's, layout that does not pass
 * omnikv_layout_check(), unknown hash algorithm, salt_len without salt), -E2BIG (longer than known
 * with a tail that is not zero) or -ENOMEM.
 */
OMNIKV_API int omnikv_namespace_identity(const struct omnikv_namespace *ns, uint8_t identity[32]);

/**
 * omnikv_chain_vllm() - block keys as vLLM's sha256_cbor computes them
 * @seed:       text of PYTHONHASHSEED (vLLM draws one at random where it is unset: then nothing is shared)
 * @tokens:     [nr_tokens]
 * @extra_keys: [nr_extra] strings that enter the first block only (cache salt), NULL when nr_extra is 0
 * @keys:       [nr_tokens / block_tokens] results, full blocks only
 *
 * h0 = SHA-256(CBOR(seed)), h_i = SHA-256(CBOR([h_(i-1), [tokens], extra or null])), canonical CBOR
 * (vllm/v1/core/kv_cache_utils.py, vllm/utils/hashing.py).
 *
 * Return: the number of keys, -EINVAL (NULL where something is needed, or @block_tokens 0) or -ENOMEM
 * (keys of the first blocks may then have been written).
 */
OMNIKV_API int64_t omnikv_chain_vllm(const char *seed, const uint32_t *tokens, size_t nr_tokens,
				     uint32_t block_tokens, const char *const *extra_keys, size_t nr_extra,
				     struct omnikv_key *keys);
/**
 * omnikv_chain_sglang() - block keys as SGLang's get_hash_str computes them
 *
 * h_i = SHA-256(h_(i-1) or nothing, then each token as 32-bit little endian).
 *
 * Return: as omnikv_chain_vllm().
 */
OMNIKV_API int64_t omnikv_chain_sglang(const uint32_t *tokens, size_t nr_tokens, uint32_t block_tokens,
				       struct omnikv_key *keys);

/** Shortest secret of omnikv_chain_key_create(), bytes. */
#define OMNIKV_CHAIN_SECRET_BYTES_MIN	16u
#define OMNIKV_CHAIN_BLOCK_TOKENS_MAX	(1u << 20)

struct omnikv_chain_key;

/**
 * omnikv_chain_key_create() - a secret, made ready for omnikv_chain_fast()
 * @secret: random, and the same wherever keys are to agree
 *
 * Return: 0, -EINVAL (NULL, secret shorter than OMNIKV_CHAIN_SECRET_BYTES_MIN, @block_tokens 0 or over
 * OMNIKV_CHAIN_BLOCK_TOKENS_MAX) or -ENOMEM.
 */
OMNIKV_API int omnikv_chain_key_create(const void *secret, size_t secret_len, uint32_t block_tokens,
				       struct omnikv_chain_key **ck);
/** NULL is ignored. */
OMNIKV_API void omnikv_chain_key_destroy(struct omnikv_chain_key *ck);

/**
 * struct omnikv_chain_state - where a chain has got to; all zero at its start
 * @nr_blocks: blocks hashed so far
 *
 * The rest is the library's, and as secret as the key.
 */
struct omnikv_chain_state {
	uint64_t	nr_blocks;
	uint64_t	sum[2];
	uint64_t	offset[8];
};

/**
 * omnikv_chain_fast() - block keys for engines that have none, at memory speed
 * @ck:     constant; any number of threads may share it
 * @state:  goes on behind the blocks hashed before, and is moved along; NULL: from the start
 * @tokens: [nr_tokens]
 * @keys:   [nr_tokens / block_tokens] results of 16 bytes, full blocks only
 *
 * Keyed, 128 bits, built of AES (lib/blockhash.h has the definition and why). Two different prefixes
 * get the same key with a probability near 2^-113, whoever chose the tokens, as long as the secret is
 * one. Without AES instructions it is some hundred times slower.
 *
 * Return: the number of keys, or -EINVAL (NULL where something is needed).
 */
OMNIKV_API int64_t omnikv_chain_fast(const struct omnikv_chain_key *ck, struct omnikv_chain_state *state,
				     const uint32_t *tokens, size_t nr_tokens, struct omnikv_key *keys);

#ifdef __cplusplus
}
#endif

#endif /* OMNIKV_KEY_H */

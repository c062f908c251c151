// SPDX-License-Identifier: MIT
/*
 * Chains: block keys identical to vLLM's (sha256_cbor) and SGLang's (get_hash_str).
 *
 * CBOR (RFC 8949) is written by hand: one fixed shape, shortest integers, definite lengths.
 * The digest is fetched once a call and its context reused for every block.
 * Pure: no global state, any thread.
 */
#include <errno.h>
#include <string.h>

#include <openssl/evp.h>

#include <omnikv/key.h>

#include "failpoint.h"

#define CBOR_UINT	0x00u
#define CBOR_BYTES	0x40u
#define CBOR_TEXT	0x60u
#define CBOR_ARRAY	0x80u
#define CBOR_NULL	0xf6u

#define BUFFER_BYTES	4096u
#define DIGEST_BYTES	32u

/* A hash in progress; what is added gathers in the buffer first. */
struct okv_chain {
	EVP_MD		*md;
	EVP_MD_CTX	*ctx;
	size_t		used;
	bool		is_broken;
	uint8_t		buffer[BUFFER_BYTES];
};

static int chain_init(struct okv_chain *chain)
{
	chain->used = 0;
	chain->is_broken = false;
	chain->md = OKV_FAILPOINT("chain.fetch") ? NULL : EVP_MD_fetch(NULL, "SHA256", NULL);
	chain->ctx = EVP_MD_CTX_new();
	return chain->md && chain->ctx && EVP_DigestInit_ex2(chain->ctx, chain->md, NULL) == 1 ? 0 : -ENOMEM;
}

static void chain_fini(struct okv_chain *chain)
{
	EVP_MD_CTX_free(chain->ctx);
	EVP_MD_free(chain->md);
}

static void chain_flush(struct okv_chain *chain)
{
	if (OKV_FAILPOINT("chain.update") || EVP_DigestUpdate(chain->ctx, chain->buffer, chain->used) != 1)
		chain->is_broken = true;
	chain->used = 0;
}

/* Room for one more head (at most 9 bytes). */
static inline uint8_t *chain_room(struct okv_chain *chain)
{
	if (chain->used > BUFFER_BYTES - 9)
		chain_flush(chain);
	return chain->buffer + chain->used;
}

static void chain_bytes(struct okv_chain *chain, const void *bytes, size_t nr_bytes)
{
	if (nr_bytes > BUFFER_BYTES - chain->used)
		chain_flush(chain);
	if (nr_bytes > BUFFER_BYTES) {
		if (OKV_FAILPOINT("chain.update_long") || EVP_DigestUpdate(chain->ctx, bytes, nr_bytes) != 1)
			chain->is_broken = true;
		return;
	}
	memcpy(chain->buffer + chain->used, bytes, nr_bytes);
	chain->used += nr_bytes;
}

/* End of one hash: its digest, and the context ready for the next. */
static void chain_digest(struct okv_chain *chain, uint8_t digest[DIGEST_BYTES])
{
	chain_flush(chain);
	if (OKV_FAILPOINT("chain.final") || EVP_DigestFinal_ex(chain->ctx, digest, NULL) != 1 ||
	    EVP_DigestInit_ex2(chain->ctx, NULL, NULL) != 1)
		chain->is_broken = true;
}

/* Major type @type with @value in as few bytes as it takes. */
static void cbor_head(struct okv_chain *chain, uint8_t type, uint64_t value)
{
	uint8_t *at = chain_room(chain);
	unsigned int width, nr_bytes;

	if (value < 24) {
		at[0] = (uint8_t)(type | value);
		chain->used++;
		return;
	}
	/* 1, 2, 4 or 8 bytes follow, most significant first. */
	width = (value > UINT8_MAX) + (value > UINT16_MAX) + (value > UINT32_MAX);
	nr_bytes = 1u << width;
	at[0] = (uint8_t)(type | (24 + width));
	for (unsigned int i = 0; i < nr_bytes; i++)
		at[1 + i] = (uint8_t)(value >> (8 * (nr_bytes - 1 - i)));
	chain->used += 1 + nr_bytes;
}

/* One token, shortest form; returns the byte after it. */
static inline uint8_t *cbor_token(uint8_t *at, uint32_t token)
{
	if (token < 24) {
		at[0] = (uint8_t)token;
		return at + 1;
	}
	if (token <= UINT8_MAX) {
		at[0] = CBOR_UINT | 24;
		at[1] = (uint8_t)token;
		return at + 2;
	}
	if (token <= UINT16_MAX) {
		at[0] = CBOR_UINT | 25;
		at[1] = (uint8_t)(token >> 8);
		at[2] = (uint8_t)token;
		return at + 3;
	}
	at[0] = CBOR_UINT | 26;
	at[1] = (uint8_t)(token >> 24);
	at[2] = (uint8_t)(token >> 16);
	at[3] = (uint8_t)(token >> 8);
	at[4] = (uint8_t)token;
	return at + 5;
}

/* How many of @nr_tokens tokens of at most @token_bytes fit the buffer now; makes room for one at least. */
static inline uint32_t tokens_that_fit(struct okv_chain *chain, uint32_t nr_tokens, uint32_t token_bytes)
{
	uint32_t nr_fit = (uint32_t)(BUFFER_BYTES - chain->used) / token_bytes;

	if (nr_fit == 0) {
		chain_flush(chain);
		nr_fit = BUFFER_BYTES / token_bytes;
	}
	return nr_fit < nr_tokens ? nr_fit : nr_tokens;
}

static void cbor_text(struct okv_chain *chain, const char *text)
{
	size_t len = strlen(text);

	cbor_head(chain, CBOR_TEXT, len);
	chain_bytes(chain, text, len);
}

static void set_key(struct omnikv_key *key, const uint8_t digest[DIGEST_BYTES])
{
	memcpy(key->bytes, digest, DIGEST_BYTES);
	key->len = DIGEST_BYTES;
}

static bool tokens_are_bad(const uint32_t *tokens, size_t nr_tokens, uint32_t block_tokens, struct omnikv_key *keys)
{
	return block_tokens == 0 || (!tokens && nr_tokens) || (!keys && nr_tokens >= block_tokens);
}

int64_t omnikv_chain_vllm(const char *seed, const uint32_t *tokens, size_t nr_tokens, uint32_t block_tokens,
			  const char *const *extra_keys, size_t nr_extra, struct omnikv_key *keys)
{
	uint8_t parent[DIGEST_BYTES];
	struct okv_chain chain;
	size_t nr_blocks;
	int64_t ret;

	if (!seed || tokens_are_bad(tokens, nr_tokens, block_tokens, keys) || (!extra_keys && nr_extra))
		return -EINVAL;
	for (size_t i = 0; i < nr_extra; i++)
		if (!extra_keys[i])
			return -EINVAL;

	ret = chain_init(&chain);
	if (ret)
		goto out_fini;
	cbor_text(&chain, seed);
	chain_digest(&chain, parent);
	nr_blocks = nr_tokens / block_tokens;
	for (size_t b = 0; b < nr_blocks && !chain.is_broken; b++) {
		const uint32_t *block = tokens + b * block_tokens;

		cbor_head(&chain, CBOR_ARRAY, 3);
		cbor_head(&chain, CBOR_BYTES, DIGEST_BYTES);
		chain_bytes(&chain, parent, DIGEST_BYTES);
		cbor_head(&chain, CBOR_ARRAY, block_tokens);
		for (uint32_t t = 0; t < block_tokens;) {
			uint32_t end = t + tokens_that_fit(&chain, block_tokens - t, 5);
			uint8_t *at = chain.buffer + chain.used;

			while (t < end)
				at = cbor_token(at, block[t++]);
			chain.used = (size_t)(at - chain.buffer);
		}
		if (b == 0 && nr_extra) {
			cbor_head(&chain, CBOR_ARRAY, nr_extra);
			for (size_t i = 0; i < nr_extra; i++)
				cbor_text(&chain, extra_keys[i]);
		} else {
			*chain_room(&chain) = CBOR_NULL;
			chain.used++;
		}
		chain_digest(&chain, parent);
		set_key(&keys[b], parent);
	}
	ret = chain.is_broken ? -ENOMEM : (int64_t)nr_blocks;
out_fini:
	chain_fini(&chain);
	return ret;
}

int64_t omnikv_chain_sglang(const uint32_t *tokens, size_t nr_tokens, uint32_t block_tokens, struct omnikv_key *keys)
{
	uint8_t parent[DIGEST_BYTES];
	struct okv_chain chain;
	size_t nr_blocks;
	int64_t ret;

	if (tokens_are_bad(tokens, nr_tokens, block_tokens, keys))
		return -EINVAL;

	ret = chain_init(&chain);
	if (ret)
		goto out_fini;
	nr_blocks = nr_tokens / block_tokens;
	for (size_t b = 0; b < nr_blocks && !chain.is_broken; b++) {
		const uint32_t *block = tokens + b * block_tokens;

		if (b)
			chain_bytes(&chain, parent, DIGEST_BYTES);
		for (uint32_t t = 0; t < block_tokens;) {
			uint32_t end = t + tokens_that_fit(&chain, block_tokens - t, 4);

			for (; t < end; t++, chain.used += 4) {
				uint8_t *at = chain.buffer + chain.used;

				at[0] = (uint8_t)block[t];
				at[1] = (uint8_t)(block[t] >> 8);
				at[2] = (uint8_t)(block[t] >> 16);
				at[3] = (uint8_t)(block[t] >> 24);
			}
		}
		chain_digest(&chain, parent);
		set_key(&keys[b], parent);
	}
	ret = chain.is_broken ? -ENOMEM : (int64_t)nr_blocks;
out_fini:
	chain_fini(&chain);
	return ret;
}

/* SPDX-License-Identifier: MIT */
/*
 * The keyed block hash: expansion of the secret, the portable path and the choice of a path;
 * blockhash.h defines what is computed. The AES here serves only where the CPU has none; it
 * reads a table by secret bytes, so whoever shares the cache may learn of them: the hash guards
 * against collisions, not against such a neighbour.
 */
#include "blockhash.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <openssl/crypto.h>
#include <openssl/evp.h>

_Static_assert(sizeof(struct omnikv_chain_state) == 11 * sizeof(uint64_t), "count, sum, offset");

/* FIPS 197, figure 7. */
static const uint8_t sbox[256] = {
	0x63, 0x7c, 0x77, 0x7b, 0xf2, 0x6b, 0x6f, 0xc5, 0x30, 0x01, 0x67, 0x2b, 0xfe, 0xd7, 0xab, 0x76,
	0xca, 0x82, 0xc9, 0x7d, 0xfa, 0x59, 0x47, 0xf0, 0xad, 0xd4, 0xa2, 0xaf, 0x9c, 0xa4, 0x72, 0xc0,
	0xb7, 0xfd, 0x93, 0x26, 0x36, 0x3f, 0xf7, 0xcc, 0x34, 0xa5, 0xe5, 0xf1, 0x71, 0xd8, 0x31, 0x15,
	0x04, 0xc7, 0x23, 0xc3, 0x18, 0x96, 0x05, 0x9a, 0x07, 0x12, 0x80, 0xe2, 0xeb, 0x27, 0xb2, 0x75,
	0x09, 0x83, 0x2c, 0x1a, 0x1b, 0x6e, 0x5a, 0xa0, 0x52, 0x3b, 0xd6, 0xb3, 0x29, 0xe3, 0x2f, 0x84,
	0x53, 0xd1, 0x00, 0xed, 0x20, 0xfc, 0xb1, 0x5b, 0x6a, 0xcb, 0xbe, 0x39, 0x4a, 0x4c, 0x58, 0xcf,
	0xd0, 0xef, 0xaa, 0xfb, 0x43, 0x4d, 0x33, 0x85, 0x45, 0xf9, 0x02, 0x7f, 0x50, 0x3c, 0x9f, 0xa8,
	0x51, 0xa3, 0x40, 0x8f, 0x92, 0x9d, 0x38, 0xf5, 0xbc, 0xb6, 0xda, 0x21, 0x10, 0xff, 0xf3, 0xd2,
	0xcd, 0x0c, 0x13, 0xec, 0x5f, 0x97, 0x44, 0x17, 0xc4, 0xa7, 0x7e, 0x3d, 0x64, 0x5d, 0x19, 0x73,
	0x60, 0x81, 0x4f, 0xdc, 0x22, 0x2a, 0x90, 0x88, 0x46, 0xee, 0xb8, 0x14, 0xde, 0x5e, 0x0b, 0xdb,
	0xe0, 0x32, 0x3a, 0x0a, 0x49, 0x06, 0x24, 0x5c, 0xc2, 0xd3, 0xac, 0x62, 0x91, 0x95, 0xe4, 0x79,
	0xe7, 0xc8, 0x37, 0x6d, 0x8d, 0xd5, 0x4e, 0xa9, 0x6c, 0x56, 0xf4, 0xea, 0x65, 0x7a, 0xae, 0x08,
	0xba, 0x78, 0x25, 0x2e, 0x1c, 0xa6, 0xb4, 0xc6, 0xe8, 0xdd, 0x74, 0x1f, 0x4b, 0xbd, 0x8b, 0x8a,
	0x70, 0x3e, 0xb5, 0x66, 0x48, 0x03, 0xf6, 0x0e, 0x61, 0x35, 0x57, 0xb9, 0x86, 0xc1, 0x1d, 0x9e,
	0xe1, 0xf8, 0x98, 0x11, 0x69, 0xd9, 0x8e, 0x94, 0x9b, 0x1e, 0x87, 0xe9, 0xce, 0x55, 0x28, 0xdf,
	0x8c, 0xa1, 0x89, 0x0d, 0xbf, 0xe6, 0x42, 0x68, 0x41, 0x99, 0x2d, 0x0f, 0xb0, 0x54, 0xbb, 0x16,
};

static uint8_t xtime(uint8_t b)
{
	return (uint8_t)(b << 1 ^ (b >> 7) * 0x1b);
}

/* One round as AESENC does it: SubBytes, ShiftRows, MixColumns unless it is the last, key. */
static void aes_round(uint8_t state[16], const uint8_t key[16], bool is_last)
{
	uint8_t in[16];
	int c, r;

	for (c = 0; c < 4; c++) {
		for (r = 0; r < 4; r++)
			in[4 * c + r] = sbox[state[4 * ((c + r) & 3) + r]];
	}
	for (c = 0; c < 4; c++) {
		const uint8_t *a = in + 4 * c;

		for (r = 0; r < 4; r++) {
			uint8_t b = a[r];

			if (!is_last)
				b = xtime(a[r]) ^ xtime(a[(r + 1) & 3]) ^ a[(r + 1) & 3] ^ a[(r + 2) & 3] ^ a[(r + 3) & 3];
			state[4 * c + r] = b ^ key[4 * c + r];
		}
	}
}

static void aes_expand(const uint8_t secret[16], uint8_t keys[11][16])
{
	uint8_t rcon = 1;
	int i, k;

	memcpy(keys[0], secret, 16);
	for (i = 1; i <= 10; i++) {
		const uint8_t *prev = keys[i - 1];

		for (k = 0; k < 4; k++)
			keys[i][k] = prev[k] ^ sbox[prev[12 + ((k + 1) & 3)]] ^ (k == 0 ? rcon : 0);
		for (k = 4; k < 16; k++)
			keys[i][k] = prev[k] ^ keys[i][k - 4];
		rcon = xtime(rcon);
	}
}

/* Lanes are 128-bit little-endian numbers. */
static void offset_double(uint64_t offset[8])
{
	unsigned int l;

	for (l = 0; l < OKV_BLOCKHASH_LANES; l++) {
		uint64_t lo = offset[2 * l], hi = offset[2 * l + 1];

		offset[2 * l] = lo << 1 ^ (hi >> 63) * 0x87;
		offset[2 * l + 1] = hi << 1 | lo >> 63;
	}
}

static void hash_portable(const struct omnikv_chain_key *ck, uint64_t sum[2], uint64_t offset[8],
			  const uint32_t *tokens, size_t nr_blocks, struct omnikv_key *keys)
{
	uint32_t done, l, r;
	size_t i;

	for (i = 0; i < nr_blocks; i++, tokens += ck->block_tokens) {
		uint8_t state[16];

		for (done = 0; done < ck->block_tokens; done += OKV_BLOCKHASH_VECTOR) {
			uint32_t nr = ck->block_tokens - done, vector[OKV_BLOCKHASH_VECTOR] = { 0 };

			if (nr > OKV_BLOCKHASH_VECTOR)
				nr = OKV_BLOCKHASH_VECTOR;
			memcpy(vector, tokens + done, nr * sizeof(*tokens));
			for (l = 0; l < OKV_BLOCKHASH_LANES; l++) {
				uint64_t x[2];

				memcpy(x, vector + 4 * l, 16);
				x[0] ^= offset[2 * l];
				x[1] ^= offset[2 * l + 1];
				memcpy(state, x, 16);
				for (r = 0; r < OKV_BLOCKHASH_ROUNDS; r++)
					aes_round(state, (const uint8_t *)&ck->rounds[r][2 * l], false);
				memcpy(x, state, 16);
				sum[0] ^= x[0];
				sum[1] ^= x[1];
			}
			offset_double(offset);
		}
		for (r = 0; r < 2; r++) {
			uint64_t x = sum[r] ^ ck->final[0][r];

			memcpy(state + 8 * r, &x, 8);
		}
		for (r = 1; r <= 10; r++)
			aes_round(state, (const uint8_t *)ck->final[r], r == 10);
		memset(&keys[i], 0, sizeof(keys[i]));
		memcpy(keys[i].bytes, state, 16);
		keys[i].len = 16;
	}
}

int okv_blockhash_set_path(struct omnikv_chain_key *ck, enum okv_blockhash_path path)
{
	okv_blockhash_fn fn = path == OKV_BLOCKHASH_PORTABLE ? hash_portable : okv_blockhash_x86(path);

	if (!fn)
		return -EOPNOTSUPP;
	ck->fn = fn;
	return 0;
}

/* SHA-256(label, counter, block_tokens, secret), as often as it takes. */
static int expand(const void *secret, size_t secret_len, uint32_t block_tokens, uint8_t *out, size_t nr_bytes)
{
	static const char label[] = "omnikv block hash 1";
	uint8_t digest[EVP_MAX_MD_SIZE], counter[8];
	EVP_MD_CTX *ctx = EVP_MD_CTX_new();
	uint32_t i;
	int ret = ctx ? 0 : -ENOMEM;

	for (i = 0; i < 4; i++)
		counter[4 + i] = (uint8_t)(block_tokens >> (8 * i));
	for (i = 0; !ret && nr_bytes; i++) {
		size_t n = nr_bytes < 32 ? nr_bytes : 32;

		counter[0] = (uint8_t)i;
		counter[1] = counter[2] = counter[3] = 0;
		if (EVP_DigestInit_ex(ctx, EVP_sha256(), NULL) != 1 ||
		    EVP_DigestUpdate(ctx, label, sizeof(label)) != 1 ||
		    EVP_DigestUpdate(ctx, counter, sizeof(counter)) != 1 ||
		    EVP_DigestUpdate(ctx, secret, secret_len) != 1 || EVP_DigestFinal_ex(ctx, digest, NULL) != 1)
			ret = -ENOMEM;
		memcpy(out, digest, n);
		out += n;
		nr_bytes -= n;
	}
	OPENSSL_cleanse(digest, sizeof(digest));
	EVP_MD_CTX_free(ctx);
	return ret;
}

OMNIKV_API int omnikv_chain_key_create(const void *secret, size_t secret_len, uint32_t block_tokens,
				       struct omnikv_chain_key **out)
{
	struct {
		uint64_t	rounds[OKV_BLOCKHASH_ROUNDS][8];
		uint64_t	offset[8];
		uint64_t	iv[2];
		uint8_t		final[16];
	} material;
	struct omnikv_chain_key *ck;
	int path, ret;

	if (!secret || secret_len < OMNIKV_CHAIN_SECRET_BYTES_MIN || block_tokens == 0 ||
	    block_tokens > OMNIKV_CHAIN_BLOCK_TOKENS_MAX || !out)
		return -EINVAL;
	ck = aligned_alloc(64, (sizeof(*ck) + 63) & ~(size_t)63);
	if (!ck)
		return -ENOMEM;
	ret = expand(secret, secret_len, block_tokens, (uint8_t *)&material, sizeof(material));
	if (ret) {
		free(ck);
		return ret;
	}
	memcpy(ck->rounds, material.rounds, sizeof(ck->rounds));
	memcpy(ck->offset, material.offset, sizeof(ck->offset));
	memcpy(ck->iv, material.iv, sizeof(ck->iv));
	aes_expand(material.final, (uint8_t (*)[16])ck->final);
	OPENSSL_cleanse(&material, sizeof(material));
	ck->block_tokens = block_tokens;
	for (path = OKV_BLOCKHASH_NR_PATHS - 1; okv_blockhash_set_path(ck, (enum okv_blockhash_path)path); path--)
		;
	*out = ck;
	return 0;
}

OMNIKV_API void omnikv_chain_key_destroy(struct omnikv_chain_key *ck)
{
	if (ck)
		OPENSSL_cleanse(ck, sizeof(*ck));
	free(ck);
}

OMNIKV_API int64_t omnikv_chain_fast(const struct omnikv_chain_key *ck, struct omnikv_chain_state *state,
				     const uint32_t *tokens, size_t nr_tokens, struct omnikv_key *keys)
{
	struct omnikv_chain_state start = { 0 };
	size_t nr;

	if (!ck || (nr_tokens && !tokens))
		return -EINVAL;
	nr = nr_tokens / ck->block_tokens;
	if (nr && !keys)
		return -EINVAL;
	if (!state)
		state = &start;
	if (state->nr_blocks == 0) {
		memcpy(state->sum, ck->iv, sizeof(state->sum));
		memcpy(state->offset, ck->offset, sizeof(state->offset));
	}
	ck->fn(ck, state->sum, state->offset, tokens, nr, keys);
	state->nr_blocks += nr;
	return (int64_t)nr;
}

/* SPDX-License-Identifier: MIT */
/*
 * The block hash with the AES instructions of x86: one lane at a time, and a whole vector at a
 * time (VAES on 512 bits, four blocks finished together). blockhash.h defines what is computed.
 * Which of the two runs is decided when a key is created.
 */
#include "blockhash.h"

#if defined(__x86_64__)

#include <cpuid.h>
#include <immintrin.h>
#include <stdbool.h>

#define PREFETCH_BYTES	2048	/* the CPU's own prefetch stops at each page */

#define TARGET_AESNI	__attribute__((target("aes,sse4.1")))
#define TARGET_VAES	__attribute__((target("aes,vaes,avx512f,avx512bw,avx512dq,avx512vl")))

TARGET_AESNI static inline __m128i double_128(__m128i d)
{
	__m128i carry = _mm_shuffle_epi32(_mm_srli_epi64(d, 63), 0x4e);

	/* Each half's top bit goes into the other half: as 1 into the high one, as 0x87 into the low. */
	carry = _mm_and_si128(_mm_sub_epi64(_mm_setzero_si128(), carry), _mm_set_epi64x(1, 0x87));
	return _mm_xor_si128(_mm_add_epi64(d, d), carry);
}

TARGET_AESNI static inline __m128i lane_hash(const struct omnikv_chain_key *ck, unsigned int l, __m128i x)
{
	unsigned int r;

	for (r = 0; r < OKV_BLOCKHASH_ROUNDS; r++)
		x = _mm_aesenc_si128(x, _mm_load_si128((const __m128i *)&ck->rounds[r][2 * l]));
	return x;
}

TARGET_AESNI static void hash_aesni(const struct omnikv_chain_key *ck, uint64_t sum_words[2],
				    uint64_t offset_words[8], const uint32_t *tokens, size_t nr_blocks,
				    struct omnikv_key *keys)
{
	__m128i sum = _mm_loadu_si128((const __m128i *)sum_words), d[OKV_BLOCKHASH_LANES], x;
	uint32_t whole = ck->block_tokens / OKV_BLOCKHASH_VECTOR, rest = ck->block_tokens % OKV_BLOCKHASH_VECTOR;
	unsigned int l, r;
	uint32_t v;
	size_t i;

	for (l = 0; l < OKV_BLOCKHASH_LANES; l++)
		d[l] = _mm_loadu_si128((const __m128i *)&offset_words[2 * l]);
	for (i = 0; i < nr_blocks; i++) {
		for (v = 0; v < whole + (rest != 0); v++) {
			uint32_t padded[OKV_BLOCKHASH_VECTOR] = { 0 };
			const uint32_t *vector = tokens;

			if (v == whole) {
				__builtin_memcpy(padded, tokens, rest * sizeof(*tokens));
				vector = padded;
			}
			tokens += v == whole ? rest : OKV_BLOCKHASH_VECTOR;
			for (l = 0; l < OKV_BLOCKHASH_LANES; l++) {
				x = _mm_loadu_si128((const __m128i *)(vector + 4 * l));
				sum = _mm_xor_si128(sum, lane_hash(ck, l, _mm_xor_si128(x, d[l])));
				d[l] = double_128(d[l]);
			}
		}
		x = _mm_xor_si128(sum, _mm_loadu_si128((const __m128i *)ck->final[0]));
		for (r = 1; r < 10; r++)
			x = _mm_aesenc_si128(x, _mm_loadu_si128((const __m128i *)ck->final[r]));
		x = _mm_aesenclast_si128(x, _mm_loadu_si128((const __m128i *)ck->final[10]));
		_mm_storeu_si128((__m128i *)keys[i].bytes, x);
		_mm_storeu_si128((__m128i *)(keys[i].bytes + 16), _mm_setzero_si128());
		keys[i].len = 16;
	}
	_mm_storeu_si128((__m128i *)sum_words, sum);
	for (l = 0; l < OKV_BLOCKHASH_LANES; l++)
		_mm_storeu_si128((__m128i *)&offset_words[2 * l], d[l]);
}

TARGET_VAES static inline __m512i double_512(__m512i d)
{
	__m512i carry = _mm512_shuffle_epi32(_mm512_srli_epi64(d, 63), (_MM_PERM_ENUM)0x4e);
	const __m512i poly = _mm512_set_epi64(1, 0x87, 1, 0x87, 1, 0x87, 1, 0x87);

	carry = _mm512_sub_epi64(_mm512_setzero_si512(), carry);
	/* (d + d) ^ (carry & poly) */
	return _mm512_ternarylogic_epi64(_mm512_add_epi64(d, d), carry, poly, 0x78);
}

TARGET_VAES static inline void store_key(struct omnikv_key *key, __m128i bytes)
{
	_mm256_storeu_si256((__m256i *)key->bytes, _mm256_zextsi128_si256(bytes));
	key->len = 16;
}

TARGET_VAES static void hash_vaes512(const struct omnikv_chain_key *ck, uint64_t sum_words[2],
				     uint64_t offset_words[8], const uint32_t *tokens, size_t nr_blocks,
				     struct omnikv_key *keys)
{
	const __m512i k0 = _mm512_load_si512(ck->rounds[0]), k1 = _mm512_load_si512(ck->rounds[1]);
	const __m512i k2 = _mm512_load_si512(ck->rounds[2]), k3 = _mm512_load_si512(ck->rounds[3]);
	uint32_t whole = ck->block_tokens / OKV_BLOCKHASH_VECTOR, rest = ck->block_tokens % OKV_BLOCKHASH_VECTOR;
	__mmask16 rest_mask = (__mmask16)((1u << rest) - 1);
	__m512i d = _mm512_loadu_si512(offset_words);
	/* The sum so far, in all lanes. */
	__m512i sum = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)sum_words));
	__m512i final[11];
	unsigned int r;
	size_t i;

	for (r = 0; r <= 10; r++)
		final[r] = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)ck->final[r]));

	for (i = 0; i < nr_blocks; i += 4) {
		unsigned int nr = nr_blocks - i < 4 ? (unsigned int)(nr_blocks - i) : 4, b;
		__m512i acc[4], t0, t1, p;

		for (b = 0; b < 4; b++)
			acc[b] = _mm512_setzero_si512();
		for (b = 0; b < nr; b++) {
			uint32_t v;

			for (v = 0; v < whole + (rest != 0); v++) {
				__m512i x;

				_mm_prefetch((const char *)tokens + PREFETCH_BYTES, _MM_HINT_T0);
				if (v < whole)
					x = _mm512_loadu_si512(tokens);
				else
					x = _mm512_maskz_loadu_epi32(rest_mask, tokens);
				tokens += v < whole ? OKV_BLOCKHASH_VECTOR : rest;
				x = _mm512_aesenc_epi128(_mm512_xor_si512(x, d), k0);
				x = _mm512_aesenc_epi128(x, k1);
				x = _mm512_aesenc_epi128(x, k2);
				x = _mm512_aesenc_epi128(x, k3);
				acc[b] = _mm512_xor_si512(acc[b], x);
				d = double_512(d);
			}
		}
		/* Lane b of p becomes the sum of acc[b]'s lanes. */
		t0 = _mm512_xor_si512(_mm512_shuffle_i64x2(acc[0], acc[1], 0x44),
				      _mm512_shuffle_i64x2(acc[0], acc[1], 0xee));
		t1 = _mm512_xor_si512(_mm512_shuffle_i64x2(acc[2], acc[3], 0x44),
				      _mm512_shuffle_i64x2(acc[2], acc[3], 0xee));
		p = _mm512_xor_si512(_mm512_shuffle_i64x2(t0, t1, 0x88), _mm512_shuffle_i64x2(t0, t1, 0xdd));
		/* Prefix sums over the four blocks, then over all before. */
		p = _mm512_xor_si512(p, _mm512_maskz_shuffle_i64x2(0xfc, p, p, 0x90));
		p = _mm512_xor_si512(p, _mm512_maskz_shuffle_i64x2(0xf0, p, p, 0x40));
		p = _mm512_xor_si512(p, sum);
		sum = _mm512_shuffle_i64x2(p, p, 0xff);

		p = _mm512_xor_si512(p, final[0]);
		for (r = 1; r < 10; r++)
			p = _mm512_aesenc_epi128(p, final[r]);
		p = _mm512_aesenclast_epi128(p, final[10]);
		store_key(&keys[i], _mm512_castsi512_si128(p));
		if (nr > 1)
			store_key(&keys[i + 1], _mm512_extracti64x2_epi64(p, 1));
		if (nr > 2)
			store_key(&keys[i + 2], _mm512_extracti64x2_epi64(p, 2));
		if (nr > 3)
			store_key(&keys[i + 3], _mm512_extracti64x2_epi64(p, 3));
	}
	/* Blocks that are not there added nothing, so any lane of the last sum is right. */
	_mm_storeu_si128((__m128i *)sum_words, _mm512_castsi512_si128(sum));
	_mm512_storeu_si512(offset_words, d);
}

/* Not every compiler's __builtin_cpu_supports() knows VAES. That the system saves the registers, it does know. */
static bool cpu_has_vaes(void)
{
	unsigned int a, b, c, d;

	return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (c & (1u << 9));
}

okv_blockhash_fn okv_blockhash_x86(enum okv_blockhash_path path)
{
	__builtin_cpu_init();
	if (path == OKV_BLOCKHASH_AESNI && __builtin_cpu_supports("aes") && __builtin_cpu_supports("sse4.1"))
		return hash_aesni;
	if (path == OKV_BLOCKHASH_VAES512 && cpu_has_vaes() && __builtin_cpu_supports("avx512f") &&
	    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
	    __builtin_cpu_supports("avx512vl"))
		return hash_vaes512;
	return NULL;
}

#else

okv_blockhash_fn okv_blockhash_x86(enum okv_blockhash_path path)
{
	(void)path;
	return NULL;
}

#endif

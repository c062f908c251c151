// SPDX-License-Identifier: GPL-2.0-only
/*
 * The keyed block hash: golden keys from an independent implementation (AES from FIPS 197's
 * definitions, in Python), the same keys from every path and for every way of cutting a prompt
 * into calls, and no two prefixes with one key.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "blockhash.h"

static const char secret[] = "golden secret, sixteen or more";

static struct omnikv_chain_key *key_new(uint32_t block_tokens)
{
	struct omnikv_chain_key *ck;

	assert_int_equal(omnikv_chain_key_create(secret, sizeof(secret) - 1, block_tokens, &ck), 0);
	return ck;
}

static uint32_t *tokens_new(size_t nr)
{
	uint32_t *tokens = malloc((nr + 1) * sizeof(*tokens));
	size_t i;

	assert_non_null(tokens);
	for (i = 0; i < nr; i++)
		tokens[i] = (uint32_t)i * 2654435761u + 12345u;
	return tokens;
}

static void golden_keys(void **state)
{
	static const struct {
		uint32_t	block_tokens;
		const char	*keys[5];
	} cases[] = {
		{ 1, { "ad513dacf385967b5f135828624df8d3", "3e1d3910ea265d525b469af919fe84c0",
		       "b8ea2b21742e8e272636eba92a523dac", "b566f4633d7495d64592e13fc0929669",
		       "039332520812f7100f3d38d059a0ce33" } },
		{ 16, { "51b820e8f3288fedc5c27f886c0e5b80", "02d46df9cd9c1d8192f75a900021e779",
			"a3bddd814c66b6bc1f67bdbf7f788586", "eb0d142515f1e5bbe50b07a105fcd319",
			"460e35416e242ec4b582dc0b49103578" } },
		{ 20, { "b5687540e9f984a093e58b309e8633e2", "c578cc60597ca903ebdc6c604c221d5f",
			"0b2fb3791e5e0145998b17062f1a6e73", "e5eceb35be612b9672db92879cc0f204",
			"e3955618d60c985e24ad42ec9c109094" } },
		{ 512, { "b8d65ed696e3312cfa114fa0806f31fb", "ae8de645da51375c9c1c783beef24c23",
			 "303c8d460eb39f2c9394a4be4216a932", "781bb284d8881e937b46677e832b0579",
			 "c290be4a89df86ac47fde6a72fbe73f9" } },
	};
	size_t c, i, b;
	int path;

	(void)state;
	for (c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		uint32_t T = cases[c].block_tokens;
		size_t nr = 5 * T + T / 2;
		uint32_t *tokens = tokens_new(nr);

		for (path = 0; path < OKV_BLOCKHASH_NR_PATHS; path++) {
			struct omnikv_chain_key *ck = key_new(T);
			struct omnikv_key keys[6];

			if (okv_blockhash_set_path(ck, (enum okv_blockhash_path)path)) {
				print_message("# path %d is not there on this CPU\n", path);
				omnikv_chain_key_destroy(ck);
				continue;
			}
			memset(keys, 0xee, sizeof(keys));
			assert_int_equal(omnikv_chain_fast(ck, NULL, tokens, nr, keys), 5);
			for (i = 0; i < 5; i++) {
				char hex[33];

				for (b = 0; b < 16; b++)
					snprintf(hex + 2 * b, 3, "%02x", keys[i].bytes[b]);
				assert_string_equal(hex, cases[c].keys[i]);
				assert_int_equal(keys[i].len, 16);
				for (b = 16; b < 32; b++)
					assert_int_equal(keys[i].bytes[b], 0);
			}
			/* A block that is not full gets no key. */
			assert_int_equal(keys[5].bytes[0], 0xee);
			omnikv_chain_key_destroy(ck);
		}
		free(tokens);
	}
}

/* 37 blocks at once, and in calls of a few, on every path; tokens at any address. */
static void cuts_do_not_matter(void **state)
{
	static const uint32_t sizes[] = { 1, 4, 15, 16, 17, 64, 100 };
	struct omnikv_key whole[37], parts[37];
	size_t s, cut, done;
	int path;

	(void)state;
	for (s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++) {
		uint32_t T = sizes[s], *tokens = tokens_new(37 * T);
		struct omnikv_chain_key *ck = key_new(T);

		assert_int_equal(okv_blockhash_set_path(ck, OKV_BLOCKHASH_PORTABLE), 0);
		assert_int_equal(omnikv_chain_fast(ck, NULL, tokens, 37 * T, whole), 37);
		for (path = 0; path < OKV_BLOCKHASH_NR_PATHS; path++) {
			if (okv_blockhash_set_path(ck, (enum okv_blockhash_path)path))
				continue;
			for (cut = 1; cut <= 9; cut++) {
				struct omnikv_chain_state at = { 0 };

				memset(parts, 0, sizeof(parts));
				for (done = 0; done < 37;) {
					size_t nr = 37 - done < cut ? 37 - done : cut;

					assert_int_equal(omnikv_chain_fast(ck, &at, tokens + done * T, nr * T,
									   parts + done), nr);
					done += nr;
					assert_int_equal(at.nr_blocks, done);
				}
				assert_memory_equal(parts, whole, sizeof(whole));
			}
		}
		free(tokens);
		omnikv_chain_key_destroy(ck);
	}
}

static int compare_keys(const void *a, const void *b)
{
	return memcmp(a, b, sizeof(struct omnikv_key));
}

/*
 * 64 prompts of 64 blocks that differ in one token, or in two equal changes at two places, or in
 * an exchange of blocks: equal up to the first difference, different from it on, all distinct.
 */
static void prefixes_differ_from_the_first_difference_on(void **state)
{
	enum { T = 16, NR = 64, VARIANTS = 64 };
	struct omnikv_key *all = malloc(sizeof(*all) * NR * (VARIANTS + 1));
	uint32_t *base = tokens_new(T * NR), tokens[T * NR], swap[T];
	struct omnikv_chain_key *ck = key_new(T), *other;
	size_t nr_all = NR, v, i;

	(void)state;
	assert_non_null(all);
	assert_int_equal(omnikv_chain_fast(ck, NULL, base, T * NR, all), NR);
	for (v = 0; v < VARIANTS; v++) {
		size_t first = (v * 5) % (NR - 1);
		struct omnikv_key mine[NR];

		memcpy(tokens, base, sizeof(tokens));
		if (v % 3 == 0) {
			tokens[first * T + v % T] ^= 1u << (v % 32);
		} else if (v % 3 == 1) {
			tokens[first * T + v % T] ^= 0x80;
			tokens[(first + 1) * T + v % T] ^= 0x80;
		} else {
			memcpy(swap, tokens + first * T, sizeof(swap));
			memmove(tokens + first * T, tokens + (first + 1) * T, sizeof(swap));
			memcpy(tokens + (first + 1) * T, swap, sizeof(swap));
		}
		assert_int_equal(omnikv_chain_fast(ck, NULL, tokens, T * NR, mine), NR);
		for (i = 0; i < NR; i++) {
			if (i < first) {
				assert_memory_equal(&mine[i], &all[i], sizeof(*mine));
			} else {
				assert_memory_not_equal(&mine[i], &all[i], sizeof(*mine));
				all[nr_all++] = mine[i];
			}
		}
	}
	qsort(all, nr_all, sizeof(*all), compare_keys);
	for (i = 1; i < nr_all; i++)
		assert_memory_not_equal(&all[i - 1], &all[i], sizeof(*all));

	/* Another secret, or the same one for another block size, gives other keys. */
	assert_int_equal(omnikv_chain_key_create("another secret, as long as the first", 36, T, &other), 0);
	assert_int_equal(omnikv_chain_fast(other, NULL, base, T, &all[0]), 1);
	assert_int_equal(omnikv_chain_fast(ck, NULL, base, T, &all[1]), 1);
	assert_memory_not_equal(&all[0], &all[1], sizeof(*all));
	omnikv_chain_key_destroy(other);
	omnikv_chain_key_destroy(ck);
	free(base);
	free(all);
}

static void refusals(void **state)
{
	struct omnikv_chain_key *ck = NULL;
	uint32_t tokens[16] = { 0 };
	struct omnikv_key key;

	(void)state;
	assert_int_equal(omnikv_chain_key_create(NULL, 16, 16, &ck), -EINVAL);
	assert_int_equal(omnikv_chain_key_create(secret, 15, 16, &ck), -EINVAL);
	assert_int_equal(omnikv_chain_key_create(secret, 16, 0, &ck), -EINVAL);
	assert_int_equal(omnikv_chain_key_create(secret, 16, OMNIKV_CHAIN_BLOCK_TOKENS_MAX + 1, &ck), -EINVAL);
	assert_int_equal(omnikv_chain_key_create(secret, 16, 16, NULL), -EINVAL);
	assert_null(ck);
	omnikv_chain_key_destroy(NULL);
	ck = key_new(16);
	assert_int_equal(okv_blockhash_set_path(ck, OKV_BLOCKHASH_NR_PATHS), -EOPNOTSUPP);
	assert_int_equal(omnikv_chain_fast(NULL, NULL, tokens, 16, &key), -EINVAL);
	assert_int_equal(omnikv_chain_fast(ck, NULL, NULL, 16, &key), -EINVAL);
	assert_int_equal(omnikv_chain_fast(ck, NULL, tokens, 16, NULL), -EINVAL);
	assert_int_equal(omnikv_chain_fast(ck, NULL, NULL, 0, NULL), 0);
	assert_int_equal(omnikv_chain_fast(ck, NULL, tokens, 15, NULL), 0);
	omnikv_chain_key_destroy(ck);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(golden_keys),
		cmocka_unit_test(cuts_do_not_matter),
		cmocka_unit_test(prefixes_differ_from_the_first_difference_on),
		cmocka_unit_test(refusals),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

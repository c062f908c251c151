// SPDX-License-Identifier: GPL-2.0-only
/*
 * Content of blocks from counters: the generator and the comparison.
 *
 * No word depends on another, so that the hot loops run at the speed of the multipliers.
 */
#include <string.h>

#include "oracle.h"

#define OKV_GOLDEN	UINT64_C(0x9e3779b97f4a7c15)

/* The finalizer of splitmix64: every input bit changes half of the output's. */
static uint64_t okv_mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static inline uint64_t okv_word(uint64_t seed, uint64_t idx)
{
	uint64_t z = seed + idx * OKV_GOLDEN;

	z = (z ^ (z >> 32)) * UINT64_C(0xd6e8feb86659fd93);
	return z ^ (z >> 29);
}

uint64_t okv_oracle_block(uint64_t tenant_seed, const struct omnikv_key *key)
{
	uint64_t h = okv_mix(tenant_seed + key->len), word;
	uint32_t i;

	for (i = 0; i < key->len; i += sizeof(word)) {
		memcpy(&word, key->bytes + i, sizeof(word));
		h = okv_mix(h + OKV_GOLDEN + word);
	}
	return h;
}

uint64_t okv_oracle_plane(uint64_t block_seed, uint32_t group, uint32_t layer, uint32_t plane)
{
	return okv_mix(block_seed + (((uint64_t)group << 48) | ((uint64_t)layer << 16) | plane) * OKV_GOLDEN);
}

uint64_t okv_oracle_text(const char *text)
{
	uint64_t h = OKV_GOLDEN;

	for (; *text; text++)
		h = okv_mix(h + (unsigned char)*text);
	return h;
}

/* Bytes [off, off + len) inside one word. */
static size_t okv_part(uint64_t seed, uint64_t off, size_t len, uint8_t part[8])
{
	uint64_t word = okv_word(seed, off / 8);
	size_t skip = off % 8, nr = 8 - skip;

	if (nr > len)
		nr = len;
	memcpy(part, (const uint8_t *)&word + skip, nr);
	return nr;
}

void okv_oracle_fill(uint64_t plane_seed, uint64_t off, void *buf, size_t len)
{
	uint8_t *out = buf, part[8];
	uint64_t word, idx;
	size_t nr, i;

	if (off % 8 && len) {
		nr = okv_part(plane_seed, off, len, part);
		memcpy(out, part, nr);
		out += nr;
		off += nr;
		len -= nr;
	}
	for (idx = off / 8, nr = len / 8, i = 0; i < nr; i++) {
		word = okv_word(plane_seed, idx + i);
		memcpy(out + i * 8, &word, 8);
	}
	if (len % 8) {
		okv_part(plane_seed, off + nr * 8, len % 8, part);
		memcpy(out + nr * 8, part, len % 8);
	}
}

/* Byte by byte; only for parts of words and for words that are known to differ. */
static uint64_t okv_check_slow(uint64_t seed, uint64_t off, const uint8_t *in, size_t len, uint64_t *first)
{
	uint64_t wrong = 0, at = 0;
	uint8_t part[8];
	size_t nr, i;

	while (at < len) {
		nr = okv_part(seed, off + at, len - at, part);
		for (i = 0; i < nr; i++) {
			if (in[at + i] != part[i] && !wrong++)
				*first = at + i;
		}
		at += nr;
	}
	return wrong;
}

uint64_t okv_oracle_check(uint64_t plane_seed, uint64_t off, const void *buf, size_t len, uint64_t *first)
{
	size_t head = -off % 8, nr, tail, i;
	uint64_t word, diff = 0, idx;
	const uint8_t *in = buf;
	uint8_t part[8];

	if (head > len)
		head = len;
	nr = (len - head) / 8;
	tail = (len - head) % 8;

	for (idx = (off + head) / 8, i = 0; i < nr; i++) {
		memcpy(&word, in + head + i * 8, 8);
		diff |= word ^ okv_word(plane_seed, idx + i);
	}
	if (head) {
		okv_part(plane_seed, off, head, part);
		diff |= !!memcmp(part, in, head);
	}
	if (tail) {
		okv_part(plane_seed, off + len - tail, tail, part);
		diff |= !!memcmp(part, in + len - tail, tail);
	}
	return diff ? okv_check_slow(plane_seed, off, in, len, first) : 0;
}

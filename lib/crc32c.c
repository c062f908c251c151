/* SPDX-License-Identifier: MIT */
/*
 * CRC32C of bytes (ISA-L) and of concatenations.
 *
 * A sum is a polynomial over GF(2) modulo the Castagnoli polynomial; appending n bytes to A
 * multiplies A's sum by x^(8n). That factor is found by repeated squaring. Polynomials are kept
 * bit-reflected: bit 31 is the coefficient of x^0.
 */
#include "crc32c.h"

#include <isa-l/crc.h>

#include <omnikv/ring.h>

#define CASTAGNOLI_REFLECTED 0x82f63b78u
#define ONE 0x80000000u

uint32_t okv_crc32c_extend(uint32_t crc, const void *buf, size_t len)
{
	const unsigned char *p = buf;

	crc = ~crc;
	/* ISA-L takes an int. */
	while (len > 0) {
		size_t n = len < (1u << 30) ? len : (1u << 30);

		crc = crc32_iscsi((unsigned char *)p, (int)n, crc);
		p += n;
		len -= n;
	}
	return ~crc;
}

uint32_t okv_crc32c(const void *buf, size_t len)
{
	return okv_crc32c_extend(0, buf, len);
}

static uint32_t gf_multiply(uint32_t a, uint32_t b)
{
	uint32_t product = 0;
	int i;

	for (i = 0; i < 32; i++) {
		product ^= b & -(a >> 31);
		a <<= 1;
		b = (b >> 1) ^ (CASTAGNOLI_REFLECTED & -(b & 1));
	}
	return product;
}

void okv_crc32c_shift_init(struct okv_crc32c_shift *shift, uint64_t len)
{
	uint32_t square = ONE >> 8; /* x^8: one byte */
	uint32_t factor = ONE;
	uint64_t rest;

	for (rest = len; rest; rest >>= 1) {
		if (rest & 1)
			factor = gf_multiply(factor, square);
		square = gf_multiply(square, square);
	}
	shift->len = len;
	shift->factor = factor;
}

uint32_t okv_crc32c_combine(const struct okv_crc32c_shift *shift, uint32_t crc_a, uint32_t crc_b)
{
	return gf_multiply(shift->factor, crc_a) ^ crc_b;
}

uint32_t omnikv_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t bytes_b)
{
	struct okv_crc32c_shift shift;

	okv_crc32c_shift_init(&shift, bytes_b);
	return okv_crc32c_combine(&shift, crc_a, crc_b);
}

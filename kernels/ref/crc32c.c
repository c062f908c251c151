// SPDX-License-Identifier: MIT
/*
 * Definition of the kernel crc32c.
 *
 * Bit by bit, with the reflected form of the polynomial 0x1edc6f41.
 */
#include "ref.h"

static uint32_t crc32c(const unsigned char *bytes, uint64_t len)
{
	uint32_t crc = UINT32_MAX;
	uint64_t i;
	int bit;

	for (i = 0; i < len; i++) {
		crc ^= bytes[i];
		for (bit = 0; bit < 8; bit++)
			crc = crc >> 1 ^ (crc & 1 ? UINT32_C(0x82f63b78) : 0);
	}
	return ~crc;
}

void okv_ref_crc32c(const struct okv_crc32c_args *args)
{
	const struct okv_kernel_span *spans = (const void *)okv_ref_at(args->list);
	uint32_t *crc = (void *)okv_ref_at(args->crc);
	uint32_t i;

	for (i = 0; i < args->nr; i++)
		crc[i] = crc32c(okv_ref_at(spans[i].addr), spans[i].bytes);
}

/* SPDX-License-Identifier: MIT */
/*
 * CRC32C (Castagnoli), as iSCSI, ext4 and NVMe use it: initial value and final xor all ones.
 *
 * Pure; any thread. The sum itself is ISA-L's; combining sums of neighbouring runs is ours,
 * since ISA-L has no such call.
 */
#ifndef OKV_CRC32C_H
#define OKV_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/** Sum of @len bytes. Sum of nothing is 0. */
uint32_t okv_crc32c(const void *buf, size_t len);
/** Sum of what @crc was taken over followed by @len more bytes. */
uint32_t okv_crc32c_extend(uint32_t crc, const void *buf, size_t len);

/**
 * struct okv_crc32c_shift - how a sum changes when @len bytes follow it
 *
 * Making one costs about a microsecond, using it some tens of nanoseconds: keep it for runs of
 * equal length.
 */
struct okv_crc32c_shift {
	uint64_t	len;
	uint32_t	factor;
};

void okv_crc32c_shift_init(struct okv_crc32c_shift *shift, uint64_t len);
/** Sum of A followed by B, from the sums of both; B has the length of @shift. */
uint32_t okv_crc32c_combine(const struct okv_crc32c_shift *shift, uint32_t crc_a, uint32_t crc_b);

#endif /* OKV_CRC32C_H */

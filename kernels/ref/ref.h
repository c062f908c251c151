/* SPDX-License-Identifier: MIT */
/*
 * What each kernel must do, in plain C: the shortest code that can be read as a definition. Nothing here is fast.
 *
 * Addresses are those of this process.
 */
#ifndef OKV_REF_H
#define OKV_REF_H

#include "../kernels.h"

void okv_ref_copy(const struct okv_copy_args *args);
void okv_ref_gather(const struct okv_gather_args *args);
void okv_ref_scatter(const struct okv_gather_args *args);
void okv_ref_relayout(const struct okv_relayout_args *args);
void okv_ref_crc32c(const struct okv_crc32c_args *args);
void okv_ref_wait(const struct okv_event_args *args);
void okv_ref_fire(const struct okv_event_args *args);

/** The bytes at a 64-bit address. */
static inline unsigned char *okv_ref_at(uint64_t address)
{
	return (unsigned char *)(uintptr_t)address;
}

#endif /* OKV_REF_H */

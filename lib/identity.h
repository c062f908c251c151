/* SPDX-License-Identifier: MIT */
/*
 * Identities: SHA-256 over fields, each with its length before it.
 *
 * No two different lists of fields have the same encoding, on any machine: lengths and
 * numbers are 64-bit little endian. Errors are kept and reported by okv_identity_fini().
 */
#ifndef OKV_IDENTITY_H
#define OKV_IDENTITY_H

#include <stddef.h>
#include <stdint.h>

struct evp_md_ctx_st;

struct okv_identity {
	struct evp_md_ctx_st	*ctx;
	int			error;
};

/* @domain keeps identities of different kinds apart; it is the first field. */
void okv_identity_init(struct okv_identity *id, const char *domain);
void okv_identity_bytes(struct okv_identity *id, const void *bytes, size_t nr_bytes);
void okv_identity_text(struct okv_identity *id, const char *text);	/* NULL is empty */
void okv_identity_u64(struct okv_identity *id, uint64_t value);
/* Writes @digest only on success; 0 or -ENOMEM. Always frees. */
int okv_identity_fini(struct okv_identity *id, uint8_t digest[32]);

#endif /* OKV_IDENTITY_H */

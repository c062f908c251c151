// SPDX-License-Identifier: MIT
/*
 * Identities: SHA-256 over length-prefixed fields, by OpenSSL's EVP.
 *
 * Which fields there are is the caller's business (layout.c, namespace.c, key.c).
 * No global state; any thread, each with its own struct okv_identity.
 */
#include <errno.h>
#include <string.h>

#include <openssl/evp.h>

#include "failpoint.h"
#include "identity.h"

static void identity_add(struct okv_identity *id, const void *bytes, size_t nr_bytes)
{
	if (!id->error && (OKV_FAILPOINT("identity.update") || EVP_DigestUpdate(id->ctx, bytes, nr_bytes) != 1))
		id->error = -ENOMEM;
}

static void identity_add_u64(struct okv_identity *id, uint64_t value)
{
	uint8_t le[8];

	for (int i = 0; i < 8; i++)
		le[i] = (uint8_t)(value >> (8 * i));
	identity_add(id, le, sizeof(le));
}

void okv_identity_init(struct okv_identity *id, const char *domain)
{
	id->error = 0;
	id->ctx = EVP_MD_CTX_new();
	if (OKV_FAILPOINT("identity.init") || !id->ctx || EVP_DigestInit_ex(id->ctx, EVP_sha256(), NULL) != 1)
		id->error = -ENOMEM;
	okv_identity_text(id, domain);
}

void okv_identity_bytes(struct okv_identity *id, const void *bytes, size_t nr_bytes)
{
	identity_add_u64(id, nr_bytes);
	if (nr_bytes)
		identity_add(id, bytes, nr_bytes);
}

void okv_identity_text(struct okv_identity *id, const char *text)
{
	okv_identity_bytes(id, text, text ? strlen(text) : 0);
}

void okv_identity_u64(struct okv_identity *id, uint64_t value)
{
	identity_add_u64(id, sizeof(value));
	identity_add_u64(id, value);
}

int okv_identity_fini(struct okv_identity *id, uint8_t digest[32])
{
	uint8_t result[32];

	if (!id->error && (OKV_FAILPOINT("identity.final") || EVP_DigestFinal_ex(id->ctx, result, NULL) != 1))
		id->error = -ENOMEM;
	EVP_MD_CTX_free(id->ctx);
	id->ctx = NULL;
	if (!id->error)
		memcpy(digest, result, sizeof(result));
	return id->error;
}

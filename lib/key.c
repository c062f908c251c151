// SPDX-License-Identifier: MIT
/*
 * Keys: opaque hashes of 1 to 32 bytes, and keys of partial tails.
 *
 * How a full block's key is computed is the engine's business, or chain.c's.
 * Pure: no I/O, no global state, any thread.
 */
#include <errno.h>
#include <string.h>

#include <omnikv/key.h>

#include "identity.h"

int omnikv_key_init(struct omnikv_key *key, const void *bytes, size_t len)
{
	if (!key || !bytes || len == 0 || len > OMNIKV_KEY_BYTES_MAX)
		return -EINVAL;
	memmove(key->bytes, bytes, len);
	memset(key->bytes + len, 0, OMNIKV_KEY_BYTES_MAX - len);
	key->len = (uint32_t)len;
	return 0;
}

int omnikv_key_partial(const struct omnikv_key *key, uint32_t nr_tokens, struct omnikv_key *partial)
{
	struct okv_identity id;
	uint8_t digest[32];
	int ret;

	if (!key || !partial || key->len == 0 || key->len > OMNIKV_KEY_BYTES_MAX || nr_tokens == 0)
		return -EINVAL;
	okv_identity_init(&id, "omnikv-partial-1");
	okv_identity_bytes(&id, key->bytes, key->len);
	okv_identity_u64(&id, nr_tokens);
	ret = okv_identity_fini(&id, digest);
	if (ret)
		return ret;
	return omnikv_key_init(partial, digest, sizeof(digest));
}

// SPDX-License-Identifier: MIT
/*
 * Namespaces: everything that must match for bytes to be interchangeable, as one identity.
 *
 * A field that is added to the struct enters here behind the others only when it is set, so
 * that identities already stored stay valid. Pure, no global state, any thread.
 */
#include <errno.h>
#include <string.h>

#include <omnikv/key.h>

#include "identity.h"

static const char *const algorithm_names[] = {
	[OMNIKV_HASH_OPAQUE] = "opaque",
	[OMNIKV_HASH_VLLM_SHA256_CBOR] = "sha256_cbor",
	[OMNIKV_HASH_SGLANG_SHA256] = "sglang_sha256",
	[OMNIKV_HASH_FAST] = "fast",
};

#define NR_ALGORITHMS (sizeof(algorithm_names) / sizeof(algorithm_names[0]))

const char *omnikv_hash_algorithm_name(enum omnikv_hash_algorithm algorithm)
{
	return (unsigned int)algorithm < NR_ALGORITHMS ? algorithm_names[algorithm] : "?";
}

int omnikv_namespace_identity(const struct omnikv_namespace *ns, uint8_t identity[32])
{
	struct okv_identity id;
	uint8_t layout[32];
	size_t layout_len = 0;
	int ret;

	if (!ns || !identity || ns->size < sizeof(*ns))
		return -EINVAL;
	for (size_t i = sizeof(*ns); i < ns->size; i++)
		if (((const char *)ns)[i])
			return -E2BIG;
	if (ns->hash_algorithm >= NR_ALGORITHMS || (!ns->salt && ns->salt_len))
		return -EINVAL;
	if (ns->layout) {
		ret = omnikv_layout_identity(ns->layout, layout);
		if (ret)
			return ret;
		layout_len = sizeof(layout);
	}

	okv_identity_init(&id, "omnikv-namespace-1");
	okv_identity_text(&id, ns->tenant);
	okv_identity_text(&id, ns->weights);
	okv_identity_text(&id, ns->adapter);
	okv_identity_bytes(&id, layout, layout_len);
	okv_identity_u64(&id, ns->block_tokens);
	okv_identity_u64(&id, ns->hash_algorithm);
	okv_identity_bytes(&id, ns->salt, ns->salt_len);
	okv_identity_u64(&id, ns->epoch);
	return okv_identity_fini(&id, identity);
}

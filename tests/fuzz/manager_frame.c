// SPDX-License-Identifier: GPL-2.0-only
/*
 * Frames of the manager of random bytes: what passes okv_frame_check() has every key and every list item that
 * its counts promise, inside the payload, and counts within their bounds.
 *
 * Input: type (1 byte, from OKV_WIRE_MANAGER on), groups of a reply (1 byte; 0: it is a request), the payload.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "manager/frames.h"

/* Reads all of it, so that a sanitizer sees what is outside. */
static void touch(const void *at, size_t bytes)
{
	volatile uint8_t sum = 0;

	for (size_t i = 0; i < bytes; i++)
		sum = (uint8_t)(sum + ((const uint8_t *)at)[i]);
}

static void must(bool is_true)
{
	if (!is_true)
		abort();
}

static void check_request(uint32_t type, const void *payload)
{
	const struct okv_wire_space_open *open = payload;
	const struct okv_wire_find *find = payload;
	const struct okv_wire_publish *publish = payload;
	const struct okv_wire_uses *uses = payload;
	const struct okv_wire_promise *promise = payload;
	const struct okv_wire_join *join = payload;
	const struct okv_wire_prefetch *prefetch = payload;
	const struct okv_wire_retain *retain = payload;
	const struct okv_wire_give *give = payload;
	const struct okv_wire_tokens *tokens = payload;
	uint64_t bytes = 0;

	switch (type) {
	case OKV_WIRE_SPACE_OPEN:
		for (uint32_t i = 0; i < 5; i++)
			bytes += open->lengths[i];
		touch(open + 1, bytes);
		break;
	case OKV_WIRE_FIND:
		must(find->nr_keys <= OKV_WIRE_KEYS_MAX);
		must(!find->has_parent || find->first);
		touch(find + 1, (find->nr_keys + find->has_tail + find->has_parent) * sizeof(struct omnikv_key));
		break;
	case OKV_WIRE_PUBLISH:
		must(publish->nr && publish->nr <= OKV_AUTHORITY_BLOCKS && publish->nr_groups <= OMNIKV_GROUPS_MAX);
		touch(publish + 1, (publish->nr + publish->has_parent) * sizeof(struct omnikv_key) +
		      publish->nr * publish->nr_groups * (sizeof(struct omnikv_extent) + 4));
		break;
	case OKV_WIRE_USE:
		must(uses->count && uses->count <= OKV_WIRE_USES_MAX);
		touch(uses + 1, uses->count * sizeof(struct okv_wire_use));
		break;
	case OKV_WIRE_PROMISE:
		touch(promise + 1, promise->nr_keys * sizeof(struct omnikv_key));
		break;
	case OKV_WIRE_JOIN:
		must(join->part < join->nr_parts && join->nr_parts <= OMNIKV_GROUPS_MAX);
		touch(join + 1, __builtin_popcount(join->groups) * (sizeof(struct omnikv_extent) + 4));
		break;
	case OKV_WIRE_RETAIN:
		must(retain->session && (retain->key.len || !retain->position));
		must(!(retain->flags & OMNIKV_RETAIN_F_PIN) || retain->ttl_ms);
		break;
	case OKV_WIRE_GIVE:
		must(give->key.len && give->timeout_ms && give->timeout_ms <= OMNIKV_GIVE_MS_MAX);
		break;
	case OKV_WIRE_PREFETCH:
		touch(prefetch + 1, (prefetch->nr_keys + (prefetch->first != 0)) * sizeof(struct omnikv_key));
		break;
	case OKV_WIRE_TOKENS:
		must(tokens->nr_keys && tokens->nr_keys * tokens->block_tokens <= OKV_WIRE_TOKENS_MAX);
		touch(tokens + 1, tokens->nr_keys * (sizeof(struct omnikv_key) + tokens->block_tokens * 4));
		break;
	}
}

static void check_reply(uint32_t type, uint32_t nr_groups, const void *payload)
{
	const struct okv_wire_space_opened *opened = payload;
	const struct okv_wire_found *found = payload;
	const struct okv_wire_published *published = payload;
	const struct okv_wire_taken *taken = payload;

	switch (type) {
	case OKV_WIRE_SPACE_OPEN:
		must(memchr(opened->notice, 0, sizeof(opened->notice)) != NULL);
		break;
	case OKV_WIRE_FIND:
		must(found->nr <= OKV_FOUND_BLOCKS && found->nr <= found->nr_hit);
		touch(found + 1, (size_t)found->nr * nr_groups * (sizeof(struct omnikv_extent) + 4));
		break;
	case OKV_WIRE_TAKE:
		must(taken->nr <= OKV_HANDED_KEYS && taken->nr <= taken->nr_blocks);
		touch(taken + 1, taken->nr * sizeof(struct omnikv_key));
		break;
	case OKV_WIRE_PUBLISH:
		must(published->nr <= OKV_AUTHORITY_BLOCKS);
		break;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint32_t type, nr_groups;
	void *payload;

	if (size < 2)
		return 0;
	type = OKV_WIRE_MANAGER + data[0] % (OKV_WIRE_FRAMES_END - OKV_WIRE_MANAGER + 1);
	nr_groups = data[1] % (OMNIKV_GROUPS_MAX + 1);
	/* Of exactly its size, as a sanitizer wants it. */
	payload = malloc(size - 2 ? size - 2 : 1);
	if (!payload)
		return 0;
	memcpy(payload, data + 2, size - 2);
	if (!nr_groups && !okv_frame_check(type, payload, size - 2))
		check_request(type, payload);
	if (nr_groups && !okv_frame_reply_check(type, nr_groups, payload, size - 2))
		check_reply(type, nr_groups, payload);
	free(payload);
	return 0;
}

// SPDX-License-Identifier: MIT
/*
 * Checks of the manager's frames; see frames.h. Nothing here looks at a manager, so that all of it can be
 * tried on any bytes. Pure; any thread.
 */
#include "manager/frames.h"

#include <errno.h>
#include <string.h>

#include "manager/retain.h"

static bool is_key(const struct omnikv_key *key)
{
	if (!key->len || key->len > OMNIKV_KEY_BYTES_MAX)
		return false;
	for (uint32_t i = key->len; i < OMNIKV_KEY_BYTES_MAX; i++)
		if (key->bytes[i])
			return false;
	return true;
}

static bool are_keys(const void *at, uint32_t nr)
{
	const struct omnikv_key *keys = at;

	for (uint32_t i = 0; i < nr; i++)
		if (!is_key(&keys[i]))
			return false;
	return true;
}

/* Nothing, or a key: len 0 means that there is none, and then there are no bytes either. */
static bool is_key_or_none(const struct omnikv_key *key)
{
	static const struct omnikv_key none;

	return key->len ? is_key(key) : !memcmp(key, &none, sizeof(none));
}

static int check_space_open(const struct okv_wire_space_open *open, size_t len)
{
	uint64_t text = 0;

	for (uint32_t i = 0; i < 5; i++) {
		if (i < 4 && open->lengths[i] > OKV_WIRE_TEXT_MAX)
			return -EINVAL;
		text += open->lengths[i];
	}
	if (len - sizeof(*open) != text)
		return -EPROTO;
	return open->reserved || !open->lengths[4] ? -EINVAL : 0;
}

static int check_find(const struct okv_wire_find *find, size_t len)
{
	uint32_t nr = find->nr_keys + find->has_tail + find->has_parent;

	if (find->nr_keys > OKV_WIRE_KEYS_MAX || find->has_tail > 1 || find->has_parent > 1 ||
	    find->flags & ~OKV_FIND_F_ANY || (find->has_parent && !find->first))
		return -EINVAL;
	if (len - sizeof(*find) != nr * sizeof(struct omnikv_key))
		return -EPROTO;
	return are_keys(find + 1, nr) ? 0 : -EINVAL;
}

static int check_publish(const struct okv_wire_publish *publish, size_t len)
{
	uint64_t nr_keys, nr_extents;

	if (!publish->nr || publish->nr > OKV_AUTHORITY_BLOCKS || publish->has_parent > 1 || !publish->nr_groups ||
	    publish->nr_groups > OMNIKV_GROUPS_MAX || publish->has_parent != (publish->position != 0))
		return -EINVAL;
	nr_keys = publish->nr + publish->has_parent;
	nr_extents = (uint64_t)publish->nr * publish->nr_groups;
	if (len - sizeof(*publish) !=
	    nr_keys * sizeof(struct omnikv_key) + nr_extents * (sizeof(struct omnikv_extent) + sizeof(uint32_t)))
		return -EPROTO;
	return are_keys(publish + 1, nr_keys) ? 0 : -EINVAL;
}

static int check_uses(const struct okv_wire_uses *uses, size_t len)
{
	const struct okv_wire_use *use = (const void *)(uses + 1);

	if (!uses->count || uses->count > OKV_WIRE_USES_MAX || uses->reserved)
		return -EINVAL;
	if (len - sizeof(*uses) != uses->count * sizeof(*use))
		return -EPROTO;
	for (uint32_t i = 0; i < uses->count; i++)
		if (use[i].reserved || !is_key_or_none(&use[i].last))
			return -EINVAL;
	return 0;
}

static int check_list(const void *fixed, size_t fixed_bytes, uint32_t nr_keys, size_t len)
{
	if (!nr_keys || nr_keys > OKV_WIRE_KEYS_MAX)
		return -EINVAL;
	if (len - fixed_bytes != nr_keys * sizeof(struct omnikv_key))
		return -EPROTO;
	return are_keys((const char *)fixed + fixed_bytes, nr_keys) ? 0 : -EINVAL;
}

static int check_join(const struct okv_wire_join *join, size_t len)
{
	uint32_t nr = __builtin_popcount(join->groups);

	if (!join->nr_parts || join->nr_parts > OMNIKV_GROUPS_MAX || join->part >= join->nr_parts || !nr ||
	    join->groups >> OMNIKV_GROUPS_MAX || !join->nr_tokens || !join->timeout_ms ||
	    join->timeout_ms > OKV_WIRE_WAIT_MS_MAX || !is_key(&join->key) || !is_key_or_none(&join->parent) ||
	    (join->parent.len != 0) != (join->position != 0) || join->flags & ~OKV_WIRE_JOIN_F_ASK)
		return -EINVAL;
	return len - sizeof(*join) == nr * (sizeof(struct omnikv_extent) + sizeof(uint32_t)) ? 0 : -EPROTO;
}

static int check_retain(const struct okv_wire_retain *retain)
{
	const struct omnikv_retention how = {
		.flags = retain->flags, .priority = retain->priority, .session = retain->session, .ttl_ms = retain->ttl_ms,
		.next_use_ms = retain->next_use_ms,
	};

	if (!is_key_or_none(&retain->key) || (!retain->key.len && retain->position))
		return -EINVAL;
	return okv_retention_check(&how);
}

static int check_tokens(const struct okv_wire_tokens *tokens, size_t len)
{
	if (!tokens->nr_keys || tokens->nr_keys > OKV_WIRE_TOKENS_KEYS_MAX || !tokens->block_tokens || tokens->block_tokens > OKV_WIRE_TOKENS_MAX ||
	    tokens->nr_keys > OKV_WIRE_TOKENS_MAX / tokens->block_tokens)
		return -EINVAL;
	if (len - sizeof(*tokens) != tokens->nr_keys * (sizeof(struct omnikv_key) + tokens->block_tokens * sizeof(uint32_t)))
		return -EPROTO;
	return are_keys(tokens + 1, tokens->nr_keys) ? 0 : -EINVAL;
}

static int check_fields(uint32_t type, const void *payload, size_t len)
{
	const struct okv_wire_state *state = payload;
	const struct okv_wire_distrust *distrust = payload;
	const struct okv_wire_promise *promise = payload;
	const struct okv_wire_wait *wait = payload;
	const struct okv_wire_prefetch *prefetch = payload;
	const struct okv_wire_give *give = payload;
	const struct okv_wire_take *take = payload;

	switch (type) {
	case OKV_WIRE_SPACE_OPEN:
		return check_space_open(payload, len);
	case OKV_WIRE_FIND:
		return check_find(payload, len);
	case OKV_WIRE_PUBLISH:
		return check_publish(payload, len);
	case OKV_WIRE_STATE:
		return is_key(&state->key) ? 0 : -EINVAL;
	case OKV_WIRE_USE:
		return check_uses(payload, len);
	case OKV_WIRE_DISTRUST:
		return !distrust->reserved && is_key(&distrust->key) ? 0 : -EINVAL;
	case OKV_WIRE_PROMISE:
		if (promise->timeout_ms > OKV_WIRE_WAIT_MS_MAX)
			return -EINVAL;
		return check_list(promise, sizeof(*promise), promise->nr_keys, len);
	case OKV_WIRE_WAIT:
		return wait->timeout_ms <= OKV_WIRE_WAIT_MS_MAX && is_key(&wait->key) ? 0 : -EINVAL;
	case OKV_WIRE_JOIN:
		return check_join(payload, len);
	case OKV_WIRE_TOKENS:
		return check_tokens(payload, len);
	case OKV_WIRE_PREFETCH:
		if (!prefetch->nr_keys || prefetch->nr_keys > OKV_WIRE_KEYS_MAX)
			return -EINVAL;
		if (len - sizeof(*prefetch) != (prefetch->nr_keys + (prefetch->first != 0)) * sizeof(struct omnikv_key))
			return -EPROTO;
		return are_keys(prefetch + 1, prefetch->nr_keys + (prefetch->first != 0)) ? 0 : -EINVAL;
	case OKV_WIRE_RETAIN:
		return check_retain(payload);
	case OKV_WIRE_GIVE:
		return is_key(&give->key) && give->timeout_ms && give->timeout_ms <= OMNIKV_GIVE_MS_MAX && !give->reserved ?
		       0 : -EINVAL;
	case OKV_WIRE_TAKE_END:
		return take->first ? -EINVAL : 0;
	}
	return 0;
}

/* Lengths of the fixed parts, and whether a list follows. */
static const struct {
	uint16_t	bytes;
	bool		has_list;
} requests[] = {
	[OKV_WIRE_SPACE_OPEN - OKV_WIRE_MANAGER]	= { sizeof(struct okv_wire_space_open), true },
	[OKV_WIRE_SPACE_CLOSE - OKV_WIRE_MANAGER]	= { sizeof(struct okv_wire_space), false },
	[OKV_WIRE_FIND - OKV_WIRE_MANAGER]		= { sizeof(struct okv_wire_find), true },
	[OKV_WIRE_PUBLISH - OKV_WIRE_MANAGER]		= { sizeof(struct okv_wire_publish), true },
	[OKV_WIRE_STATE - OKV_WIRE_MANAGER]		= { sizeof(struct okv_wire_state), false },
	[OKV_WIRE_USE - OKV_WIRE_MANAGER]		= { sizeof(struct okv_wire_uses), true },
	[OKV_WIRE_DISTRUST - OKV_WIRE_MANAGER]		= { sizeof(struct okv_wire_distrust), false },
	[OKV_WIRE_ADMIT - OKV_WIRE_MANAGER]		= { sizeof(struct okv_wire_admit), false },
	[OKV_WIRE_RESET - OKV_WIRE_MANAGER]		= { 0, false },
	[OKV_WIRE_EPOCH - OKV_WIRE_MANAGER]		= { 0, false },
	[OKV_WIRE_STATS - OKV_WIRE_MANAGER]		= { 0, false },
	[OKV_WIRE_PROMISE - OKV_WIRE_MANAGER]		= { sizeof(struct okv_wire_promise), true },
	[OKV_WIRE_WAIT - OKV_WIRE_MANAGER]		= { sizeof(struct okv_wire_wait), false },
	[OKV_WIRE_JOIN - OKV_WIRE_MANAGER]		= { sizeof(struct okv_wire_join), true },
	[OKV_WIRE_PREFETCH - OKV_WIRE_MANAGER]		= { sizeof(struct okv_wire_prefetch), true },
	[OKV_WIRE_RETAIN - OKV_WIRE_MANAGER]		= { sizeof(struct okv_wire_retain), false },
	[OKV_WIRE_GIVE - OKV_WIRE_MANAGER]		= { sizeof(struct okv_wire_give), false },
	[OKV_WIRE_TAKE - OKV_WIRE_MANAGER]		= { sizeof(struct okv_wire_take), false },
	[OKV_WIRE_TAKE_END - OKV_WIRE_MANAGER]		= { sizeof(struct okv_wire_take), false },
	[OKV_WIRE_TOKENS - OKV_WIRE_MANAGER]		= { sizeof(struct okv_wire_tokens), true },
};

int okv_frame_check(uint32_t type, const void *payload, size_t len)
{
	if (type < OKV_WIRE_MANAGER || type >= OKV_WIRE_FRAMES_END)
		return -EOPNOTSUPP;
	type -= OKV_WIRE_MANAGER;
	if (requests[type].has_list ? len < requests[type].bytes : len != requests[type].bytes)
		return -EPROTO;
	return check_fields(type + OKV_WIRE_MANAGER, payload, len);
}

static int check_found(uint32_t nr_groups, const struct okv_wire_found *found, size_t len)
{
	if (len < sizeof(*found) || found->nr > OKV_FOUND_BLOCKS || found->nr > found->nr_hit ||
	    found->nr_hit > UINT32_MAX)
		return -EPROTO;
	return len - sizeof(*found) ==
	       (uint64_t)found->nr * nr_groups * (sizeof(struct omnikv_extent) + sizeof(uint32_t)) ? 0 : -EPROTO;
}

static int check_taken(const struct okv_wire_taken *taken, size_t len)
{
	if (len < sizeof(*taken) || taken->nr > OKV_HANDED_KEYS || taken->nr > taken->nr_blocks || taken->has_tail > 1)
		return -EPROTO;
	return len - sizeof(*taken) == taken->nr * sizeof(struct omnikv_key) && are_keys(taken + 1, taken->nr) ? 0 : -EPROTO;
}

int okv_frame_reply_check(uint32_t type, uint32_t nr_groups, const void *payload, size_t len)
{
	const struct okv_wire_space_opened *opened = payload;
	const struct okv_wire_published *published = payload;
	const struct okv_wire_epoch *epoch = payload;

	switch (type) {
	case OKV_WIRE_SPACE_OPEN:
		return len == sizeof(*opened) && opened->nr_groups == nr_groups &&
		       !opened->notice[sizeof(opened->notice) - 1] ? 0 : -EPROTO;
	case OKV_WIRE_FIND:
		return check_found(nr_groups, payload, len);
	case OKV_WIRE_PUBLISH:
		if (len != sizeof(*published) || published->nr > OKV_AUTHORITY_BLOCKS || published->status > 0 ||
		    published->status < -OKV_WIRE_ERRNO_MAX)
			return -EPROTO;
		for (uint32_t i = 0; i < published->nr; i++)
			if (published->published[i] > OKV_PUBLISHED_ADRIFT)
				return -EPROTO;
		return 0;
	case OKV_WIRE_GIVE:
		return len == sizeof(struct omnikv_ticket) ? 0 : -EPROTO;
	case OKV_WIRE_TAKE:
		return check_taken(payload, len);
	case OKV_WIRE_EPOCH:
		return len == sizeof(*epoch) && epoch->epoch <= INT64_MAX ? 0 : -EPROTO;
	case OKV_WIRE_STATS:
		return len >= sizeof(size_t) ? 0 : -EPROTO;
	default:
		return len ? -EPROTO : 0;
	}
}

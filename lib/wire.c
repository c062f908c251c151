// SPDX-License-Identifier: MIT
/*
 * Checks of frames. See wire.h.
 *
 * Pure, so that they are fuzzed: they read the frame and nothing else, and any thread may call them.
 * Static assertions freeze the layout of what version 1 sends.
 */
#include "wire.h"

#include <errno.h>
#include <string.h>

#include "error.h"

_Static_assert(sizeof(struct okv_wire_header) == 32, "the header is the same in all versions");
_Static_assert(offsetof(struct okv_wire_header, length) == 12 && offsetof(struct okv_wire_header, status) == 24,
	       "the header is the same in all versions");
_Static_assert(sizeof(struct okv_wire_hello) == 48, "HELLO is the same in all versions");
_Static_assert(sizeof(struct okv_wire_attach) == 8, "frames of version 1 keep their layout");
_Static_assert(sizeof(struct okv_wire_attached) == 112, "frames of version 1 keep their layout");
_Static_assert(sizeof(struct okv_wire_reattach) == 24, "frames of version 1 keep their layout");
_Static_assert(sizeof(struct okv_wire_alloc) == 32, "frames of version 1 keep their layout");
_Static_assert(sizeof(struct okv_wire_extents) == 16, "frames of version 1 keep their layout");
_Static_assert(sizeof(struct okv_wire_queried) == 24, "frames of version 1 keep their layout");
_Static_assert(sizeof(struct okv_wire_list) == 16, "frames of version 1 keep their layout");
_Static_assert(sizeof(struct okv_wire_client) == 72, "frames of version 1 keep their layout");
_Static_assert(sizeof(struct okv_wire_clients) == 24, "frames of version 1 keep their layout");
_Static_assert(sizeof(struct okv_wire_extents) + OKV_WIRE_EXTENTS_MAX * sizeof(struct omnikv_extent) <=
	       OKV_WIRE_PAYLOAD_MAX, "a list of extents fits into a frame");
_Static_assert(sizeof(struct okv_wire_clients) + OKV_WIRE_CLIENTS_MAX * sizeof(struct okv_wire_client) <=
	       OKV_WIRE_PAYLOAD_MAX, "a list of clients fits into a frame");

int okv_wire_header_check(const void *frame, size_t len, uint32_t version, bool is_reply,
			  struct okv_wire_header *out)
{
	struct okv_wire_header header;

	if (len < sizeof(header) || len > OKV_WIRE_FRAME_MAX)
		return -EPROTO;
	memcpy(&header, frame, sizeof(header));
	if (header.magic != OKV_WIRE_MAGIC || header.length != len - sizeof(header) || header.reserved ||
	    (header.flags & ~OKV_WIRE_F_ALL) || !(header.flags & OKV_WIRE_F_REPLY) != !is_reply ||
	    (!is_reply && header.status) || header.status < -OKV_WIRE_ERRNO_MAX || !header.type || header.type >= OKV_WIRE_NR)
		return -EPROTO;
	/* HELLO is how the version is found. */
	if (header.type == OKV_WIRE_HELLO) {
		if (header.flags & OKV_WIRE_F_ONE_WAY)
			return -EPROTO;
	} else if (!version) {
		return -EPROTO;
	} else if (header.version != version) {
		return -EPROTONOSUPPORT;
	}
	*out = header;
	return 0;
}

int okv_wire_agree(const struct okv_wire_hello *theirs, struct omnikv_error *why)
{
	uint32_t version = theirs->version < OKV_WIRE_VERSION ? theirs->version : OKV_WIRE_VERSION;

	if (theirs->version_oldest > theirs->version || version < theirs->version_oldest ||
	    version < OKV_WIRE_VERSION_OLDEST)
		return okv_error_set(why, -EPROTONOSUPPORT,
				     "one end speaks versions %u to %u of the protocol, the other %u to %u; update the older one",
				     theirs->version_oldest, theirs->version, OKV_WIRE_VERSION_OLDEST, OKV_WIRE_VERSION);
	return (int)version;
}

int64_t okv_wire_list_count(const void *payload, size_t len, size_t fixed_bytes, size_t item_bytes, uint32_t max)
{
	uint32_t count;

	if (len < fixed_bytes || fixed_bytes < sizeof(count))
		return -EPROTO;
	memcpy(&count, payload, sizeof(count));
	if (count > max || len - fixed_bytes != (uint64_t)count * item_bytes)
		return -EPROTO;
	return count;
}

static int extents_check(const void *payload, size_t len, bool is_reply)
{
	const struct okv_wire_extents *list = payload;
	int64_t nr = okv_wire_list_count(payload, len, sizeof(*list), sizeof(list->extents[0]), OKV_WIRE_EXTENTS_MAX);

	if (nr < 0)
		return (int)nr;
	return list->reserved || (!is_reply && (list->from || !nr)) ? -EINVAL : 0;
}

int okv_wire_request_check(uint32_t type, const void *payload, size_t len)
{
	static const size_t bytes[] = {
		[OKV_WIRE_HELLO]	= sizeof(struct okv_wire_hello),
		[OKV_WIRE_ATTACH]	= sizeof(struct okv_wire_attach),
		[OKV_WIRE_REATTACH]	= sizeof(struct okv_wire_reattach),
		[OKV_WIRE_INFO]		= 0,
		[OKV_WIRE_ALLOC]	= sizeof(struct okv_wire_alloc),
		[OKV_WIRE_QUERY]	= sizeof(struct okv_wire_query),
		[OKV_WIRE_LIST]		= sizeof(struct okv_wire_list),
		[OKV_WIRE_STATUS]	= sizeof(struct okv_wire_status),
		[OKV_WIRE_ROOM]		= sizeof(struct okv_wire_room),
		[OKV_WIRE_END]		= 0,
	};

	if (!type || type > OKV_WIRE_END)
		return -EOPNOTSUPP;
	if (type == OKV_WIRE_FREE || type == OKV_WIRE_SEAL)
		return extents_check(payload, len, false);
	if (len != bytes[type])
		return -EPROTO;

	switch (type) {
	case OKV_WIRE_HELLO: {
		const struct okv_wire_hello *hello = payload;

		return memchr(hello->program, 0, sizeof(hello->program)) ? 0 : -EINVAL;
	}
	case OKV_WIRE_ATTACH: {
		const struct okv_wire_attach *attach = payload;

		return (attach->flags & ~OKV_WIRE_ATTACH_F_ALL) || attach->reserved ||
		       attach->flags == OKV_WIRE_ATTACH_F_ALL ? -EINVAL : 0;
	}
	case OKV_WIRE_REATTACH: {
		const struct okv_wire_reattach *again = payload;

		return (again->flags & ~OKV_WIRE_ATTACH_F_MANAGER) || !again->client_id ? -EINVAL : 0;
	}
	case OKV_WIRE_ALLOC: {
		const struct okv_wire_alloc *alloc = payload;

		return (alloc->flags & ~OKV_WIRE_ALLOC_F_ALL) || !alloc->nr_granules || !alloc->count ||
		       (uint64_t)alloc->count + alloc->nr_more > OKV_WIRE_EXTENTS_MAX ? -EINVAL : 0;
	}
	case OKV_WIRE_LIST: {
		const struct okv_wire_list *list = payload;

		return !list->max || list->max > OKV_WIRE_EXTENTS_MAX ? -EINVAL : 0;
	}
	case OKV_WIRE_STATUS:
		return ((const struct okv_wire_status *)payload)->reserved ? -EINVAL : 0;
	case OKV_WIRE_ROOM: {
		const struct okv_wire_room *room = payload;

		return !room->nr_granules || !room->count ? -EINVAL : 0;
	}
	default:
		return 0;
	}
}

static int attached_check(const struct okv_wire_attached *attached)
{
	uint64_t data;

	if (!memchr(attached->name, 0, sizeof(attached->name)))
		return -EINVAL;
	if (attached->kind == OKV_WIRE_POOL_KMOD)
		return attached->name[0] ? 0 : -EINVAL;
	if (attached->kind != OKV_WIRE_POOL_SHARED || !attached->granule_bytes || attached->granule_bytes % 4096 ||
	    !attached->nr_granules || attached->nr_granules > UINT32_MAX || attached->data_off % 4096)
		return -EINVAL;
	data = attached->nr_granules * attached->granule_bytes;
	return attached->map_bytes < data || attached->map_bytes - data < attached->data_off ? -EINVAL : 0;
}

int okv_wire_reply_check(uint32_t type, const void *payload, size_t len)
{
	static const size_t bytes[] = {
		[OKV_WIRE_HELLO]	= sizeof(struct okv_wire_hello),
		[OKV_WIRE_ATTACH]	= sizeof(struct okv_wire_attached),
		[OKV_WIRE_REATTACH]	= sizeof(struct okv_wire_attached),
		[OKV_WIRE_INFO]		= sizeof(struct okv_wire_info),
		[OKV_WIRE_QUERY]	= sizeof(struct okv_wire_queried),
		[OKV_WIRE_ROOM]		= 0,
		[OKV_WIRE_FREE]		= 0,
		[OKV_WIRE_SEAL]		= 0,
		[OKV_WIRE_END]		= 0,
	};
	const struct okv_wire_clients *clients = payload;
	int64_t nr;
	uint32_t i;

	if (!type || type > OKV_WIRE_END)
		return -EOPNOTSUPP;
	if (type == OKV_WIRE_ALLOC || type == OKV_WIRE_LIST)
		return extents_check(payload, len, true);
	if (type == OKV_WIRE_STATUS) {
		nr = okv_wire_list_count(payload, len, sizeof(*clients), sizeof(clients->clients[0]),
					 OKV_WIRE_CLIENTS_MAX);
		for (i = 0; i < nr; i++)
			if (!memchr(clients->clients[i].name, 0, sizeof(clients->clients[i].name)))
				return -EINVAL;
		return nr < 0 ? (int)nr : 0;
	}
	if (len != bytes[type])
		return -EPROTO;
	if (type == OKV_WIRE_HELLO)
		return memchr(((const struct okv_wire_hello *)payload)->program, 0, 32) ? 0 : -EINVAL;
	if (type == OKV_WIRE_ATTACH || type == OKV_WIRE_REATTACH)
		return attached_check(payload);
	return 0;
}

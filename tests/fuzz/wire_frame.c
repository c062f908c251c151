// SPDX-License-Identifier: GPL-2.0-only
/*
 * Frames of random bytes: what the checks let pass is as long as it says, and every item of its lists lies
 * inside; and names of kept descriptors, which are what this program writes or nothing.
 *
 * Input: one byte (bit 0: a reply; bit 1: HELLO is over; bit 2: a name instead), then the packet.
 */
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tools/omnikvd/notify.h"
#include "wire.h"

#define require(x)	do { if (!(x)) abort(); } while (0)

static void check_name(const uint8_t *data, size_t size)
{
	struct okv_kept kept = { .fd = 7 };
	char name[128] = "", again[96];

	memcpy(name, data, size < sizeof(name) - 1 ? size : sizeof(name) - 1);
	okv_kept_parse(name, &kept);
	require(kept.fd == 7);
	if (kept.kind == OKV_KEPT_NONE)
		return;
	okv_kept_name(&kept, again);
	require(!strcmp(name, again));
}

/* Every byte of what a handler would read, in memory that ends where the payload does. */
static uint32_t sum(const void *payload, size_t len)
{
	const uint8_t *bytes = payload;
	uint32_t total = 0;
	size_t i;

	for (i = 0; i < len; i++)
		total += bytes[i];
	return total;
}

static void check_list(const struct okv_wire_extents *list, size_t len)
{
	require(list->count <= OKV_WIRE_EXTENTS_MAX);
	require(sizeof(*list) + list->count * sizeof(list->extents[0]) == len);
	sum(list->extents, list->count * sizeof(list->extents[0]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct okv_wire_header header = { 0 };
	bool is_reply;
	void *payload;
	uint8_t mode;
	int ret;

	if (!size)
		return 0;
	mode = *data++;
	size--;
	is_reply = mode & 1;
	if (mode & 4) {
		check_name(data, size);
		return 0;
	}
	ret = okv_wire_header_check(data, size, mode & 2 ? OKV_WIRE_VERSION : 0, is_reply, &header);
	if (ret) {
		require(ret == -EPROTO || ret == -EPROTONOSUPPORT);
		return 0;
	}
	require(header.length == size - sizeof(header) && header.length <= OKV_WIRE_PAYLOAD_MAX);
	require(header.type && header.type < OKV_WIRE_NR);
	require(mode & 2 || header.type == OKV_WIRE_HELLO);
	/* Of exactly that length, so that a sanitizer sees each byte behind it. */
	payload = malloc(header.length ? header.length : 1);
	if (!payload)
		return 0;
	memcpy(payload, data + sizeof(header), header.length);
	ret = is_reply ? okv_wire_reply_check(header.type, payload, header.length) :
			 okv_wire_request_check(header.type, payload, header.length);
	require(ret == 0 || ret == -EPROTO || ret == -EINVAL || ret == -EOPNOTSUPP);
	if (!ret && header.type == OKV_WIRE_HELLO) {
		int version = okv_wire_agree(payload, NULL);

		require(version == -EPROTONOSUPPORT ||
			(version >= (int)OKV_WIRE_VERSION_OLDEST && version <= (int)OKV_WIRE_VERSION));
	}
	if (!ret && (is_reply ? header.type == OKV_WIRE_ALLOC || header.type == OKV_WIRE_LIST :
				header.type == OKV_WIRE_FREE || header.type == OKV_WIRE_SEAL))
		check_list(payload, header.length);
	if (!ret && is_reply && header.type == OKV_WIRE_ATTACH) {
		const struct okv_wire_attached *attached = payload;

		require(attached->kind == OKV_WIRE_POOL_KMOD ||
			(attached->nr_granules * attached->granule_bytes <= attached->map_bytes - attached->data_off));
	}
	free(payload);
	return 0;
}

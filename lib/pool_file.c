// SPDX-License-Identifier: MIT
/*
 * The header of a pool's file: made, summed, and checked field by field when a file is opened.
 *
 * It decides what a pool of so many bytes looks like; reading, locking and mapping the file are
 * provider_memfd.c's. Pure; any thread.
 */
#include "pool_file.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/extent.h"
#include "crc32c.h"
#include "error.h"

#define UNIT_BYTES	(2ull << 20)

static uint64_t round_up(uint64_t bytes)
{
	return (bytes + UNIT_BYTES - 1) & ~(UNIT_BYTES - 1);
}

int okv_pool_header_make(uint64_t asked_bytes, uint32_t granule_bytes, struct okv_pool_header *header,
			 struct omnikv_error *err)
{
	uint64_t nr = asked_bytes / granule_bytes;

	if (!nr)
		return okv_error_set(err, -EINVAL, "pool of %" PRIu64 " bytes: less than one granule of %u",
				     asked_bytes, granule_bytes);
	if (nr > OKV_POOL_GRANULES_MAX || asked_bytes > 1ull << 62)
		return okv_error_set(err, -EINVAL,
				     "pool of %" PRIu64 " bytes: over %llu granules of %u; ask for less, or for larger granules",
				     asked_bytes, OKV_POOL_GRANULES_MAX, granule_bytes);
	*header = (struct okv_pool_header){
		.magic		= OKV_POOL_MAGIC,
		.version	= OKV_POOL_VERSION,
		.granule_bytes	= granule_bytes,
		.nr_granules	= nr,
		.asked_bytes	= asked_bytes,
		.data_off	= round_up(OKV_POOL_HEADER_BYTES + nr * sizeof(struct okv_extent_rec)),
		.data_bytes	= round_up(nr * granule_bytes),
		.rec_bytes	= sizeof(struct okv_extent_rec),
	};
	return 0;
}

void okv_pool_header_seal(struct okv_pool_header *header)
{
	header->crc = okv_crc32c(header, offsetof(struct okv_pool_header, crc));
}

int okv_pool_header_check(const void *buf, size_t len, uint64_t file_bytes, struct okv_pool_header *out,
			  struct omnikv_error *err)
{
	struct okv_pool_header header, want;

	if (len < sizeof(header))
		return okv_error_set(err, -EBADMSG, "file of %zu bytes: too short for a pool", len);
	memcpy(&header, buf, sizeof(header));
	if (header.magic != OKV_POOL_MAGIC)
		return okv_error_set(err, -EBADMSG, "magic 0x%016" PRIx64 ": not the file of a pool", header.magic);
	if (header.version != OKV_POOL_VERSION)
		return okv_error_set(err, -EBADMSG, "version %u: this library knows %u", header.version,
				     OKV_POOL_VERSION);
	if (header.crc != okv_crc32c(&header, offsetof(struct okv_pool_header, crc)))
		return okv_error_set(err, -EBADMSG, "crc 0x%08x: the header is damaged", header.crc);
	/* The sum is no proof against a hostile file: the shape must be the one that this code makes. */
	if (!header.granule_bytes || header.granule_bytes % 4096)
		return okv_error_set(err, -EBADMSG, "granule_bytes %u: not a multiple of 4096", header.granule_bytes);
	if (okv_pool_header_make(header.asked_bytes, header.granule_bytes, &want, NULL))
		return okv_error_set(err, -EBADMSG, "asked_bytes %" PRIu64 ": out of range", header.asked_bytes);
	if (header.nr_granules != want.nr_granules)
		return okv_error_set(err, -EBADMSG, "nr_granules %" PRIu64 ": must be %" PRIu64, header.nr_granules,
				     want.nr_granules);
	if (header.data_off != want.data_off || header.data_bytes != want.data_bytes)
		return okv_error_set(err, -EBADMSG, "data_off %" PRIu64 ", data_bytes %" PRIu64 ": must be %" PRIu64
				     " and %" PRIu64, header.data_off, header.data_bytes, want.data_off,
				     want.data_bytes);
	if (header.rec_bytes != want.rec_bytes)
		return okv_error_set(err, -EBADMSG, "rec_bytes %u: must be %u", header.rec_bytes, want.rec_bytes);
	if (header.is_ready && file_bytes < header.data_off + header.data_bytes)
		return okv_error_set(err, -EBADMSG, "file of %" PRIu64 " bytes: cut short, %" PRIu64 " are needed",
				     file_bytes, header.data_off + header.data_bytes);
	*out = header;
	return 0;
}

void okv_huge_advice_make(const struct okv_huge_state *state, struct okv_huge_advice *advice)
{
	uint64_t nr_ours = state->nr_free > state->nr_reserved ? state->nr_free - state->nr_reserved : 0;
	uint64_t nr_missing = state->nr_needed > nr_ours ? state->nr_needed - nr_ours : 0;
	char reserved[64] = "";

	if (state->nr_reserved)
		snprintf(reserved, sizeof(reserved), ", of which others have reserved %" PRIu64 ",", state->nr_reserved);
	snprintf(advice->found, sizeof(advice->found), "%" PRIu64 " free huge pages%s where %" PRIu64 " are needed%s%s", state->nr_free,
		 reserved, state->nr_needed, state->is_declined ? ", and none were asked for" : nr_missing ? "" :
		 ", and they were not to be had: ", state->is_declined || nr_missing ? "" : strerror(state->error ? state->error : ENOMEM));
	if (nr_missing)
		snprintf(advice->command, sizeof(advice->command),
			 "as root: echo %" PRIu64 " > /proc/sys/vm/nr_hugepages (%" PRIu64 " there and %" PRIu64 " missing)%s",
			 state->nr_total + nr_missing, state->nr_total, nr_missing,
			 state->is_declined ? ", and take them (omnikvd: hugetlb = yes)" : "");
	else if (state->is_declined)
		snprintf(advice->command, sizeof(advice->command), "take them (omnikvd: hugetlb = yes)");
	else
		snprintf(advice->command, sizeof(advice->command), "look at the NUMA policy, and at hugetlb.2MB.max of the cgroup");
}

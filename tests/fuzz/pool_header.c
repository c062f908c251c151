// SPDX-License-Identifier: GPL-2.0-only
/*
 * Headers of any bytes, as a pool's file may hold them. The first byte says whether magic, version
 * and sum are put right first, so that what lies behind them is reached. An accepted header is
 * exactly the one that a pool of its size has, and its file is long enough.
 */
#include <stdlib.h>
#include <string.h>

#include "core/extent.h"
#include "pool_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	unsigned char page[OKV_POOL_HEADER_BYTES] = { 0 };
	struct okv_pool_header header, want;
	uint64_t file_bytes;

	if (size < 9)
		return 0;
	memcpy(&file_bytes, data + 1, 8);
	size -= 9;
	if (size > sizeof(page))
		size = sizeof(page);
	memcpy(page, data + 9, size);
	if (data[0] & 1) {
		memcpy(&header, page, sizeof(header));
		header.magic = OKV_POOL_MAGIC;
		header.version = OKV_POOL_VERSION;
		if ((data[0] & 2) && header.granule_bytes && header.asked_bytes / header.granule_bytes &&
		    !okv_pool_header_make(header.asked_bytes, header.granule_bytes, &want, NULL)) {
			memcpy(want.instance, header.instance, sizeof(want.instance));
			want.is_ready = header.is_ready;
			header = want;
		}
		okv_pool_header_seal(&header);
		memcpy(page, &header, sizeof(header));
		size = sizeof(page);
	}
	if (okv_pool_header_check(page, size, file_bytes, &header, NULL))
		return 0;
	if (okv_pool_header_make(header.asked_bytes, header.granule_bytes, &want, NULL) ||
	    want.nr_granules != header.nr_granules || want.data_off != header.data_off ||
	    want.data_bytes != header.data_bytes || header.nr_granules > OKV_EXTENT_GRANULES_MAX ||
	    header.data_off < OKV_POOL_HEADER_BYTES + header.nr_granules * sizeof(struct okv_extent_rec) ||
	    header.data_bytes / header.granule_bytes < header.nr_granules ||
	    (header.is_ready && header.data_off + header.data_bytes > file_bytes))
		abort();
	return 0;
}

// SPDX-License-Identifier: MIT
/*
 * Opening a spill store: superblock, segments' tables, and batch by batch where there is none.
 *
 * Whatever stands on the disk, this ends: what is not whole and right is left out, and only
 * superblocks that are neither empty nor ours are an error. Blocks are not read; each record's
 * sum is compared when it is first read. One thread, before anybody else has the store.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "error.h"
#include "spill/store.h"

/* Segments whose two pages are read at once. */
#define PROBE_SEGMENTS	32u

/* Records of @table, which was checked, become the segment's. */
static int adopt_table(struct okv_store *store, uint32_t index, uint8_t *table, uint64_t bytes, uint32_t nr_records)
{
	struct okv_segment *segment = &store->segments[index];
	struct okv_record rec;
	int ret;

	ret = okv_catalog_reserve(&store->catalog, nr_records);
	if (ret)
		return ret;
	segment->table = table;
	segment->table_bytes = bytes;
	segment->table_room = bytes;
	segment->nr_records = nr_records;
	for (uint64_t at = 0; at < bytes;) {
		int len = okv_record_decode(table + at, bytes - at, store->super.segment_bytes, &rec);

		okv_catalog_add(store, index, at, &rec);
		if (rec.generation >= store->next_generation)
			store->next_generation = rec.generation + 1;
		at += len;
	}
	return 0;
}

/* 0, -EBADMSG (no usable table), -ENOMEM, or the disk's error. */
static int load_table(struct okv_store *store, uint32_t index, const uint8_t *page)
{
	struct okv_segment *segment = &store->segments[index];
	struct okv_spill_trailer trailer;
	uint64_t bytes;
	uint8_t *table;
	int ret;

	ret = okv_trailer_decode(page, store->super.uuid, store->super.segment_bytes, &trailer);
	if (ret)
		return ret;
	if (trailer.life.seq != segment->life.seq || trailer.life.nonce != segment->life.nonce)
		return -EBADMSG;
	bytes = okv_spill_pages(trailer.table_bytes);
	table = aligned_alloc(OKV_SPILL_PAGE, bytes ? bytes : OKV_SPILL_PAGE);
	if (!table)
		return -ENOMEM;
	if (bytes) {
		store->ios[0] = (struct okv_disk_io){
			.off = okv_segment_off(store, index) + trailer.table_off, .buf = table, .bytes = bytes,
		};
		ret = okv_store_run(store, 1);
		if (ret == -ETIME)
			return ret;	/* the disk may write there still */
	}
	if (!ret && (okv_crc32c(table, trailer.table_bytes) != trailer.table_crc ||
		     okv_table_check(table, trailer.table_bytes, trailer.nr_records, store->super.segment_bytes)))
		ret = -EBADMSG;
	if (!ret)
		ret = adopt_table(store, index, table, trailer.table_bytes, trailer.nr_records);
	if (ret) {
		if (segment->table != table)
			free(table);
		return ret;
	}
	segment->has_table = true;
	segment->table_off = trailer.table_off;
	segment->append_off = trailer.table_off;
	return 0;
}

/* Batches from the start, up to the first that is not whole. */
static int scan_batches(struct okv_store *store, uint32_t index)
{
	struct okv_segment *segment = &store->segments[index];
	uint64_t segment_bytes = store->super.segment_bytes;
	struct okv_spill_batch batch;
	struct okv_record rec;
	int ret = 0;

	segment->append_off = OKV_SPILL_PAGE;
	while (segment->append_off + 2 * OKV_SPILL_PAGE <= segment_bytes) {
		uint64_t off = okv_segment_off(store, index) + segment->append_off;
		uint64_t at = OKV_SPILL_BATCH_HEAD;
		uint32_t where;

		store->ios[0] = (struct okv_disk_io){ .off = off, .buf = store->header, .bytes = OKV_SPILL_PAGE };
		ret = okv_store_run(store, 1);
		if (ret)
			break;
		if (okv_batch_peek(store->header, store->super.uuid, &segment->life, segment->append_off, segment_bytes,
				   &batch))
			break;
		if (batch.header_bytes > OKV_SPILL_PAGE) {
			store->ios[0] = (struct okv_disk_io){
				.off = off + OKV_SPILL_PAGE, .buf = store->header + OKV_SPILL_PAGE,
				.bytes = batch.header_bytes - OKV_SPILL_PAGE,
			};
			ret = okv_store_run(store, 1);
			if (ret)
				break;
		}
		if (okv_batch_check(store->header, &batch, segment_bytes))
			break;
		ret = okv_catalog_reserve(&store->catalog, batch.nr_records);
		if (ret)
			break;
		for (uint32_t i = 0; i < batch.nr_records && !ret; i++) {
			at += okv_record_decode(store->header + at, batch.header_bytes - at, segment_bytes, &rec);
			ret = okv_segment_note(segment, &rec, &where);
			if (ret)
				break;
			okv_catalog_add(store, index, where, &rec);
			if (rec.generation >= store->next_generation)
				store->next_generation = rec.generation + 1;
		}
		segment->append_off += batch.bytes;
	}
	return ret;
}

static int recover_segment(struct okv_store *store, uint32_t index, const uint8_t *head, const uint8_t *tail)
{
	struct okv_segment *segment = &store->segments[index];
	int ret;

	if (okv_segment_decode(head, store->super.uuid, &segment->life))
		return 0;
	segment->state = OKV_SEGMENT_SEALED;
	segment->is_reserved = true;
	/* Nothing is known but their order. */
	segment->used_ns = segment->life.seq * 1000000;
	if (segment->life.seq >= store->next_seq)
		store->next_seq = segment->life.seq + 1;
	ret = load_table(store, index, tail);
	if (ret == -EBADMSG || ret == -EIO) {
		ret = scan_batches(store, index);
		store->stats.recovered_scanned++;
	}
	if (ret == -EIO) {
		store->stats.lost_segments++;
		ret = 0;
	}
	return ret;
}

/* Segments that the disk has bytes of, and that may have been written: its end may come long before the cap. */
static uint32_t nr_there(const struct okv_store *store)
{
	uint64_t bytes = store->disk->ops->bytes(store->disk), segment_bytes = store->super.segment_bytes, nr;
	uint64_t most = okv_store_nr_begun(store);

	if (bytes <= store->super.data_off)
		return 0;
	nr = (bytes - store->super.data_off + segment_bytes - 1) / segment_bytes;
	if (nr > most)
		nr = most;
	return nr < store->nr_segments ? nr : store->nr_segments;
}

int okv_store_recover(struct okv_store *store)
{
	uint64_t segment_bytes = store->super.segment_bytes;
	uint32_t nr_segments = nr_there(store);
	uint8_t *pages;
	int ret = 0;

	pages = aligned_alloc(OKV_SPILL_PAGE, (size_t)2 * PROBE_SEGMENTS * OKV_SPILL_PAGE);
	if (!pages)
		return -ENOMEM;
	for (uint32_t first = 0; first < nr_segments && !ret; first += PROBE_SEGMENTS) {
		uint32_t nr = nr_segments - first < PROBE_SEGMENTS ? nr_segments - first : PROBE_SEGMENTS;
		int res[2 * PROBE_SEGMENTS];

		for (uint32_t i = 0; i < 2 * nr; i++) {
			uint64_t off = okv_segment_off(store, first + i / 2);

			if (i % 2)
				off += segment_bytes - OKV_SPILL_PAGE;
			store->ios[i] = (struct okv_disk_io){
				.off = off, .buf = pages + (size_t)i * OKV_SPILL_PAGE, .bytes = OKV_SPILL_PAGE,
			};
		}
		if (okv_store_run(store, 2 * nr) == -ETIME)
			return -ETIME;	/* the pages are in use: they are left behind */
		for (uint32_t i = 0; i < 2 * nr; i++)
			res[i] = store->ios[i].res;
		for (uint32_t i = 0; i < nr && !ret; i++) {
			uint8_t *head = pages + (size_t)2 * i * OKV_SPILL_PAGE, *tail = head + OKV_SPILL_PAGE;

			if (res[2 * i]) {
				store->stats.lost_segments++;
				continue;
			}
			if (res[2 * i + 1])
				memset(tail, 0, OKV_SPILL_PAGE);
			ret = recover_segment(store, first + i, head, tail);
		}
	}
	if (ret != -ETIME)
		free(pages);
	return ret;
}

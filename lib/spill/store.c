// SPDX-License-Identifier: MIT
/*
 * The spill store at work: batches, reads, reclaim, degradation; see store.h.
 *
 * Recovery is recover.c's, the catalogue catalog.c's. Any thread. @io_lock is taken before
 * @lock, and held while the disk works; @lock never is.
 */
#include "spill/store.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "error.h"
#include "failpoint.h"

#define BACKOFF_MIN_NS		UINT64_C(1000000000)
#define BACKOFF_MAX_NS		UINT64_C(30000000000)
/* One write is the header's. */
#define BATCH_IOS		(OKV_STORE_IOS - 1)
/* That a new store must have room for. */
#define NEW_SEGMENTS		4u

void okv_store_notice(struct okv_store *store, const char *format, ...)
{
	char line[256];
	va_list args;

	if (!store->config.notice)
		return;
	va_start(args, format);
	vsnprintf(line, sizeof(line), format, args);
	va_end(args);
	store->config.notice(store->config.opaque, line);
}

static uint64_t now_ns(struct okv_store *store)
{
	return store->disk->ops->now_ns(store->disk);
}

int okv_store_run(struct okv_store *store, uint32_t nr)
{
	int ret;

	if (!store->disk->ops->is_idle(store->disk)) {
		for (uint32_t i = 0; i < nr; i++)
			store->ios[i].res = -EIO;
		return -EIO;
	}
	ret = store->disk->ops->run(store->disk, store->ios, nr, store->config.deadline_ns);
	if (ret == -ETIME) {
		store->stats.nr_timeouts++;
		return ret;
	}
	for (uint32_t i = 0; i < nr; i++) {
		if (!store->ios[i].res)
			continue;
		store->stats.nr_errors++;
		if (!ret)
			ret = store->ios[i].res;
	}
	return ret;
}

/* ---- degrading and resuming ----------------------------------------------------------------- */

static const char *error_text(int error)
{
	switch (error) {
	case -ENOSPC:
		return "no space left";
	case -EDQUOT:
		return "quota exceeded";
	case -EFBIG:
		return "the file may not get longer (ulimit -f, or the file system's own limit)";
	case -ETIME:
		return "the disk does not answer";
	case -ENOMEM:
		return "no memory";
	default:
		return "the disk reports errors";
	}
}

static void degrade(struct okv_store *store, int error)
{
	bool is_new = !store->stats.is_degraded;

	store->backoff_ns = store->backoff_ns ? 2 * store->backoff_ns : BACKOFF_MIN_NS;
	if (store->backoff_ns > BACKOFF_MAX_NS)
		store->backoff_ns = BACKOFF_MAX_NS;
	store->retry_at_ns = now_ns(store) + store->backoff_ns;
	store->last_error = error;
	store->stats.is_degraded = 1;
	if (is_new)
		okv_store_notice(store, "spill: %s; blocks that leave memory are lost until it is well again, which is tried "
				 "by itself", error_text(error));
}

static void resume(struct okv_store *store)
{
	store->backoff_ns = 0;
	store->retry_at_ns = 0;
	store->last_error = 0;
	if (!store->stats.is_degraded)
		return;
	store->stats.is_degraded = 0;
	okv_store_notice(store, "spill: the store is well again");
}

/* ---- segments ------------------------------------------------------------------------------- */

static int segment_room(struct okv_segment *segment, uint64_t bytes)
{
	uint64_t room = segment->table_bytes + bytes;
	uint8_t *table;

	if (room <= segment->table_room)
		return 0;
	room += room / 2 + OKV_SPILL_PAGE;
	table = realloc(segment->table, room);
	if (!table)
		return -ENOMEM;
	segment->table = table;
	segment->table_room = room;
	return 0;
}

int okv_segment_note(struct okv_segment *segment, const struct okv_record *rec, uint32_t *at)
{
	int ret = segment_room(segment, okv_record_bytes(rec));

	if (ret)
		return ret;
	*at = segment->table_bytes;
	okv_record_encode(rec, segment->table + segment->table_bytes);
	segment->table_bytes += okv_record_bytes(rec);
	segment->nr_records++;
	return 0;
}

void okv_segment_clear(struct okv_store *store, uint32_t index)
{
	struct okv_segment *segment = &store->segments[index];
	struct okv_record rec;

	for (uint64_t at = 0; at < segment->table_bytes; at += okv_record_bytes(&rec)) {
		uint32_t entry = okv_catalog_at(store, index, at);

		okv_record_decode(segment->table + at, segment->table_bytes - at, store->super.segment_bytes, &rec);
		if (entry == OKV_CATALOG_NONE)
			continue;
		okv_catalog_del(store, entry);
		store->stats.reclaimed_records++;
	}
	free(segment->table);
	*segment = (struct okv_segment){ .state = OKV_SEGMENT_FREE, .is_reserved = segment->is_reserved };
}

static uint32_t nr_free_segments(const struct okv_store *store)
{
	uint32_t nr = 0;

	for (uint32_t i = 0; i < store->nr_segments; i++)
		nr += store->segments[i].state == OKV_SEGMENT_FREE;
	return nr;
}

static void note_peak(struct okv_store *store)
{
	uint64_t used = (store->nr_segments - nr_free_segments(store)) * store->super.segment_bytes;

	if (used > store->stats.peak_bytes)
		store->stats.peak_bytes = used;
}

int okv_segment_write_table(struct okv_store *store, uint32_t index)
{
	struct okv_segment *segment = &store->segments[index];
	uint64_t bytes = okv_spill_pages(segment->table_bytes), off = okv_segment_off(store, index);
	struct okv_spill_trailer trailer = {
		.life = segment->life,
		.table_off = segment->has_table ? segment->table_off : segment->append_off,
		.table_bytes = segment->table_bytes,
		.nr_records = segment->nr_records,
		.table_crc = okv_crc32c(segment->table, segment->table_bytes),
	};
	uint8_t *pages;
	int ret;

	if (trailer.table_off + bytes + OKV_SPILL_PAGE > store->super.segment_bytes)
		return -ENOSPC;
	pages = aligned_alloc(OKV_SPILL_PAGE, bytes + OKV_SPILL_PAGE);
	if (!pages)
		return -ENOMEM;
	memset(pages, 0, bytes);
	if (segment->table_bytes)
		memcpy(pages, segment->table, segment->table_bytes);
	okv_trailer_encode(store->super.uuid, &trailer, pages + bytes);
	store->ios[0] = (struct okv_disk_io){
		.off = off + store->super.segment_bytes - OKV_SPILL_PAGE, .buf = pages + bytes,
		.bytes = OKV_SPILL_PAGE, .is_write = true,
	};
	store->ios[1] = (struct okv_disk_io){
		.off = off + trailer.table_off, .buf = pages, .bytes = bytes, .is_write = true,
	};
	ret = okv_store_run(store, bytes ? 2 : 1);
	if (ret == -ETIME)
		return ret;	/* the disk may read there still: left behind */
	free(pages);
	if (!ret) {
		segment->has_table = true;
		segment->table_off = trailer.table_off;
		store->stats.write_bytes += bytes + OKV_SPILL_PAGE;
	}
	return ret;
}

/* The active segment takes no more; what cannot be written of its table is found batch by batch. */
static int seal_active(struct okv_store *store)
{
	uint32_t index = store->active;
	int ret;

	if (index == OKV_CATALOG_NONE)
		return 0;
	pthread_mutex_lock(&store->lock);
	store->segments[index].state = OKV_SEGMENT_SEALED;
	store->active = OKV_CATALOG_NONE;
	pthread_mutex_unlock(&store->lock);
	ret = okv_segment_write_table(store, index);
	if (!ret) {
		ret = store->disk->ops->sync(store->disk);
		store->stats.nr_errors += ret != 0;
	}
	return ret;
}

/* A write into the active segment failed: nothing more goes there. */
static void abandon_active(struct okv_store *store)
{
	uint32_t index = store->active;

	pthread_mutex_lock(&store->lock);
	store->active = OKV_CATALOG_NONE;
	store->segments[index].state = OKV_SEGMENT_SEALED;
	store->segments[index].has_table = false;
	if (!store->segments[index].nr_records)
		okv_segment_clear(store, index);
	pthread_mutex_unlock(&store->lock);
}

/* ---- writing one batch ---------------------------------------------------------------------- */

/* The next write of a list continues the last one where it can. */
static uint32_t add_io(struct okv_disk_io *ios, uint32_t nr, uint64_t off, void *buf, uint64_t bytes, bool is_write)
{
	if (nr && ios[nr - 1].is_write == is_write && ios[nr - 1].off + ios[nr - 1].bytes == off &&
	    (uint8_t *)ios[nr - 1].buf + ios[nr - 1].bytes == (uint8_t *)buf) {
		ios[nr - 1].bytes += bytes;
		return nr;
	}
	ios[nr] = (struct okv_disk_io){ .off = off, .buf = buf, .bytes = bytes, .is_write = is_write };
	return nr + 1;
}

/* What a batch takes, and what must stay behind it for the segment's table. */
static bool batch_fits(const struct okv_store *store, const struct okv_segment *segment, uint64_t table_bytes,
		       uint64_t payload)
{
	uint64_t end = segment->append_off + okv_batch_header_bytes(table_bytes) + payload;

	return end + okv_spill_pages(segment->table_bytes + table_bytes) + OKV_SPILL_PAGE <= store->super.segment_bytes;
}

/* A batch under way: its header is made while its payloads are written already. */
struct okv_batch_work {
	struct okv_store	*store;
	struct okv_store_put	**puts;
	struct okv_spill_batch	batch;
};

static void finish_header(void *opaque, struct okv_disk_io *io)
{
	struct okv_batch_work *work = opaque;
	uint8_t *header = work->store->header;
	uint64_t at = OKV_SPILL_BATCH_HEAD;

	(void)io;
	memset(header, 0, work->batch.header_bytes);
	for (uint32_t i = 0; i < work->batch.nr_records; i++) {
		struct okv_record *rec = &work->puts[i]->rec;

		rec->crc = okv_record_seed(rec);
		for (uint32_t p = 0; p < rec->nr_parts; p++)
			if (rec->parts[p].bytes)
				rec->crc = okv_crc32c_extend(rec->crc, work->puts[i]->bufs[p], rec->parts[p].bytes);
		okv_record_encode(rec, header + at);
		at += okv_record_bytes(rec);
	}
	okv_batch_encode(work->store->super.uuid, &work->batch, header);
}

/* Write @puts, which fit, and make them findable. On an error nothing of them is. */
static int write_batch(struct okv_store *store, struct okv_store_put **puts, uint32_t nr, uint64_t table_bytes)
{
	struct okv_segment *segment = &store->segments[store->active];
	struct okv_batch_work work = {
		.store = store, .puts = puts,
		.batch = {
			.life = segment->life, .off = segment->append_off, .nr_records = nr,
			.header_bytes = okv_batch_header_bytes(table_bytes),
		},
	};
	uint64_t off = work.batch.off + work.batch.header_bytes, base = okv_segment_off(store, store->active);
	uint32_t nr_ios = 0, where;
	int ret;

	pthread_mutex_lock(&store->lock);
	ret = okv_catalog_reserve(&store->catalog, nr);
	if (!ret)
		ret = segment_room(segment, table_bytes);
	pthread_mutex_unlock(&store->lock);
	if (ret)
		return ret;

	for (uint32_t i = 0; i < nr; i++) {
		struct okv_record *rec = &puts[i]->rec;

		rec->generation = store->next_generation++;
		rec->off = off;
		rec->flags = 0;
		for (uint32_t p = 0; p < rec->nr_parts; p++) {
			if (!rec->parts[p].bytes)
				continue;
			nr_ios = add_io(store->ios, nr_ios, base + off, (void *)puts[i]->bufs[p], rec->parts[p].bytes, true);
			off += rec->parts[p].bytes;
		}
	}
	work.batch.bytes = off - work.batch.off;
	store->ios[nr_ios++] = (struct okv_disk_io){
		.off = base + work.batch.off, .buf = store->header, .bytes = work.batch.header_bytes, .is_write = true,
		.begin = finish_header, .opaque = &work,
	};
	ret = -OKV_FAILPOINT("spill.before_write");
	if (!ret)
		ret = okv_store_run(store, nr_ios);
	if (!ret)
		ret = -OKV_FAILPOINT("spill.after_write");
	if (ret) {
		abandon_active(store);
		return ret;
	}

	pthread_mutex_lock(&store->lock);
	segment->append_off += work.batch.bytes;
	segment->has_table = false;
	segment->used_ns = now_ns(store);
	for (uint32_t i = 0; i < nr; i++) {
		/* Room was made for it. */
		ret = okv_segment_note(segment, &puts[i]->rec, &where);
		assert(!ret);
		okv_catalog_add(store, store->active, where, &puts[i]->rec);
	}
	store->stats.write_bytes += work.batch.bytes;
	pthread_mutex_unlock(&store->lock);
	return 0;
}

/* ---- reclaim -------------------------------------------------------------------------------- */

int okv_store_bounce(struct okv_store *store, uint32_t index, const struct okv_record *rec)
{
	uint64_t bytes = okv_record_payload(rec);
	int ret;

	if (bytes > store->bounce_bytes) {
		uint8_t *bounce = aligned_alloc(OKV_SPILL_PAGE, bytes);

		if (!bounce)
			return -ENOMEM;
		free(store->bounce);
		store->bounce = bounce;
		store->bounce_bytes = bytes;
	}
	store->ios[0] = (struct okv_disk_io){
		.off = okv_segment_off(store, index) + rec->off, .buf = store->bounce, .bytes = bytes,
	};
	ret = okv_store_run(store, 1);
	if (ret == -ETIME) {
		/* In use by the disk: left behind. */
		store->bounce = NULL;
		store->bounce_bytes = 0;
		return ret;
	}
	if (!ret && okv_crc32c_extend(okv_record_seed(rec), store->bounce, bytes) != rec->crc)
		ret = -EBADMSG;
	return ret;
}

/* Copy what was read since it was written to the active segment, as far as a part of it. */
static void move_hot(struct okv_store *store, uint32_t victim)
{
	uint64_t left = store->super.segment_bytes >> OKV_RECLAIM_MOVE_SHIFT;
	struct okv_segment *segment = &store->segments[victim];
	struct okv_record rec;

	for (uint64_t at = 0; at < segment->table_bytes && store->active != OKV_CATALOG_NONE;
	     at += okv_record_bytes(&rec)) {
		uint32_t entry = okv_catalog_at(store, victim, at);
		struct okv_store_put put, *list = &put;
		uint64_t cost, buf = 0;

		okv_record_decode(segment->table + at, segment->table_bytes - at, store->super.segment_bytes, &rec);
		cost = okv_batch_header_bytes(okv_record_bytes(&rec)) + okv_record_payload(&rec);
		if (entry == OKV_CATALOG_NONE || !store->catalog.entries[entry].is_read || cost > left)
			continue;
		if (!batch_fits(store, &store->segments[store->active], okv_record_bytes(&rec), okv_record_payload(&rec)))
			break;
		if (okv_store_bounce(store, victim, &rec))
			continue;
		put.rec = rec;
		for (uint32_t p = 0; p < rec.nr_parts; p++) {
			put.bufs[p] = store->bounce + buf;
			buf += rec.parts[p].bytes;
		}
		if (write_batch(store, &list, 1, okv_record_bytes(&rec)))
			break;
		left -= cost;
		store->stats.moved_records++;
	}
}

/* Give up the segment that is cheapest to lose. */
static bool reclaim(struct okv_store *store)
{
	struct okv_reclaim_view *views = calloc(store->nr_segments, sizeof(*views));
	uint64_t now = now_ns(store);
	uint32_t victim;

	if (!views)
		return false;
	for (uint32_t i = 0; i < store->nr_segments; i++) {
		const struct okv_segment *segment = &store->segments[i];

		views[i] = (struct okv_reclaim_view){
			.is_candidate = segment->state == OKV_SEGMENT_SEALED,
			.live_bytes = segment->live_bytes,
			.hot_bytes = segment->hot_bytes,
			.age_ns = now > segment->used_ns ? now - segment->used_ns : 0,
		};
	}
	victim = okv_reclaim_choose(views, store->nr_segments, store->super.segment_bytes);
	free(views);
	if (victim == OKV_CATALOG_NONE)
		return false;
	if (store->active != OKV_CATALOG_NONE)
		move_hot(store, victim);
	pthread_mutex_lock(&store->lock);
	okv_segment_clear(store, victim);
	store->stats.reclaimed_segments++;
	pthread_mutex_unlock(&store->lock);
	return true;
}

/* ---- the active segment --------------------------------------------------------------------- */

/* A free segment that has its room, or -ENOSPC, -EDQUOT, -EFBIG. */
static int find_free(struct okv_store *store, uint32_t *index)
{
	int ret = -ENOSPC;

	for (int is_reserved = 1; is_reserved >= 0; is_reserved--) {
		for (uint32_t i = 0; i < store->nr_segments; i++) {
			struct okv_segment *segment = &store->segments[i];

			if (segment->state != OKV_SEGMENT_FREE || segment->is_reserved != is_reserved)
				continue;
			if (!is_reserved) {
				if (store->disk->ops->free_bytes(store->disk) <
				    store->config.floor_bytes + store->super.segment_bytes)
					return -ENOSPC;
				ret = store->disk->ops->reserve(store->disk, okv_segment_off(store, i),
								store->super.segment_bytes);
				if (ret)
					return ret;
				segment->is_reserved = true;
			}
			*index = i;
			return 0;
		}
	}
	return ret;
}

static int begin_segment(struct okv_store *store)
{
	struct okv_segment *segment;
	uint32_t index;
	int ret;

	ret = find_free(store, &index);
	/* The file cannot have more: make do with what it has. */
	if ((ret == -ENOSPC || ret == -EDQUOT || ret == -EFBIG) && reclaim(store))
		ret = find_free(store, &index);
	if (!ret)
		ret = okv_store_begins(store, index);
	if (ret)
		return ret;
	segment = &store->segments[index];
	pthread_mutex_lock(&store->lock);
	segment->life = (struct okv_spill_life){ .seq = store->next_seq++, .nonce = store->nonce };
	segment->append_off = OKV_SPILL_PAGE;
	segment->state = OKV_SEGMENT_ACTIVE;
	store->active = index;
	pthread_mutex_unlock(&store->lock);

	memset(store->header, 0, OKV_SPILL_PAGE);
	okv_segment_encode(store->super.uuid, &segment->life, store->header);
	store->ios[0] = (struct okv_disk_io){
		.off = okv_segment_off(store, index), .buf = store->header, .bytes = OKV_SPILL_PAGE, .is_write = true,
	};
	ret = okv_store_run(store, 1);
	if (ret) {
		abandon_active(store);
		return ret;
	}
	store->stats.write_bytes += OKV_SPILL_PAGE;
	note_peak(store);
	/* One stays free, so that what is hot can be moved before it is given up. */
	if (!nr_free_segments(store))
		reclaim(store);
	return store->active == OKV_CATALOG_NONE ? -EIO : 0;
}

/* ---- put ------------------------------------------------------------------------------------ */

static bool put_is_valid(const struct okv_store_put *put)
{
	const struct okv_record *rec = &put->rec;
	uint64_t payload = 0;

	if (!rec->key.len || rec->key.len > OMNIKV_KEY_BYTES_MAX || rec->parent.len > OMNIKV_KEY_BYTES_MAX ||
	    !rec->nr_parts || rec->nr_parts > OKV_SPILL_PARTS_MAX)
		return false;
	for (uint32_t p = 0; p < rec->nr_parts; p++) {
		if (rec->parts[p].bytes % OKV_SPILL_PAGE ||
		    (rec->parts[p].bytes && (!put->bufs[p] || (uintptr_t)put->bufs[p] % OKV_SPILL_PAGE)))
			return false;
		payload += rec->parts[p].bytes;
	}
	return payload != 0;
}

/* Is it stored already, with every part that the new one has? */
static bool is_stored(const struct okv_store *store, const struct okv_record *rec)
{
	uint32_t entry = okv_catalog_find(store, rec->ns, &rec->key);
	struct okv_record old;

	if (entry == OKV_CATALOG_NONE)
		return false;
	okv_catalog_record(store, entry, &old);
	if (old.nr_parts != rec->nr_parts)
		return false;
	for (uint32_t p = 0; p < rec->nr_parts; p++)
		if (rec->parts[p].bytes && !old.parts[p].bytes)
			return false;
	return true;
}

static uint32_t put_ios(const struct okv_store_put *put)
{
	uint32_t nr = 0;

	for (uint32_t p = 0; p < put->rec.nr_parts; p++)
		nr += put->rec.parts[p].bytes != 0;
	return nr;
}

/* Larger than what a fresh segment has, also when reclaim has moved something there? */
static bool is_too_big(const struct okv_store *store, const struct okv_record *rec)
{
	uint64_t bytes = okv_batch_header_bytes(okv_record_bytes(rec)) + okv_record_payload(rec) + 4 * OKV_SPILL_PAGE;

	return bytes > store->super.segment_bytes - (store->super.segment_bytes >> OKV_RECLAIM_MOVE_SHIFT);
}

/* Write as many of @puts as go into one batch: *@nr_done, also where they could not be written. */
static int put_some(struct okv_store *store, struct okv_store_put **puts, uint32_t nr, uint32_t *nr_done)
{
	uint64_t table_bytes = 0, payload = 0;
	uint32_t n = 0, nr_ios = 0;
	int ret;

	*nr_done = 1;
	if (is_too_big(store, &puts[0]->rec))
		return -E2BIG;
	for (;;) {
		if (store->active == OKV_CATALOG_NONE) {
			ret = begin_segment(store);
			if (ret)
				return ret;
		}
		while (n < nr && n < OKV_SPILL_BATCH_MAX && nr_ios + put_ios(puts[n]) <= BATCH_IOS &&
		       batch_fits(store, &store->segments[store->active], table_bytes + okv_record_bytes(&puts[n]->rec),
				  payload + okv_record_payload(&puts[n]->rec))) {
			table_bytes += okv_record_bytes(&puts[n]->rec);
			payload += okv_record_payload(&puts[n]->rec);
			nr_ios += put_ios(puts[n]);
			n++;
		}
		if (n)
			break;
		seal_active(store);
	}
	*nr_done = n;
	ret = write_batch(store, puts, n, table_bytes);
	if (!ret) {
		store->stats.stored_records += n;
		store->stats.stored_bytes += payload;
	}
	return ret;
}

int okv_store_put(struct okv_store *store, struct okv_store_put *puts, uint32_t nr)
{
	struct okv_store_put **list;
	uint32_t nr_list = 0, nr_done;
	int ret = 0;

	if (!nr)
		return 0;
	list = malloc(nr * sizeof(*list));
	pthread_mutex_lock(&store->io_lock);
	for (uint32_t i = 0; i < nr; i++) {
		puts[i].res = 0;
		if (!put_is_valid(&puts[i]))
			puts[i].res = -EINVAL;
		else if (!list)
			puts[i].res = -ENOMEM;
		else if (!is_stored(store, &puts[i].rec))
			list[nr_list++] = &puts[i];
	}
	for (uint32_t i = 0; i < nr_list; i += nr_done) {
		if (store->config.is_read_only) {
			ret = -EPERM;
			nr_done = nr_list - i;
		} else if (!store->disk->ops->is_idle(store->disk)) {
			ret = -EIO;
			nr_done = nr_list - i;
		} else if (store->retry_at_ns && now_ns(store) < store->retry_at_ns) {
			ret = store->last_error == -ETIME ? -EIO : store->last_error;
			nr_done = nr_list - i;
		} else {
			ret = put_some(store, list + i, nr_list - i, &nr_done);
			if (!ret)
				resume(store);
			else if (ret != -E2BIG)
				degrade(store, ret);
		}
		for (uint32_t k = 0; k < nr_done; k++)
			list[i + k]->res = ret;
		if (ret)
			store->stats.refused_records += nr_done;
		if (ret == -ETIME) {
			for (uint32_t k = i + nr_done; k < nr_list; k++)
				list[k]->res = -EIO;
			break;
		}
	}
	pthread_mutex_unlock(&store->io_lock);
	free(list);
	return ret == -ETIME ? ret : 0;
}

/* ---- find and get --------------------------------------------------------------------------- */

bool okv_store_find(struct okv_store *store, const uint8_t ns[32], const struct omnikv_key *key,
		    struct okv_record *rec)
{
	uint32_t entry;

	pthread_mutex_lock(&store->lock);
	entry = okv_catalog_find(store, ns, key);
	if (entry != OKV_CATALOG_NONE && rec)
		okv_catalog_record(store, entry, rec);
	pthread_mutex_unlock(&store->lock);
	return entry != OKV_CATALOG_NONE;
}

void okv_store_forget(struct okv_store *store, const uint8_t ns[32], const struct omnikv_key *key)
{
	uint32_t entry;

	pthread_mutex_lock(&store->io_lock);
	pthread_mutex_lock(&store->lock);
	while ((entry = okv_catalog_find(store, ns, key)) != OKV_CATALOG_NONE)
		okv_catalog_del(store, entry);
	pthread_mutex_unlock(&store->lock);
	pthread_mutex_unlock(&store->io_lock);
}

/* The entry of the very record that @get names. Under either lock. */
static uint32_t get_entry(const struct okv_store *store, const struct okv_store_get *get)
{
	uint32_t entry = okv_catalog_find(store, get->rec.ns, &get->rec.key);

	if (entry == OKV_CATALOG_NONE || okv_catalog_generation(store, entry) != get->rec.generation)
		return OKV_CATALOG_NONE;
	return entry;
}

static bool is_sum_right(const struct okv_store_get *get)
{
	uint32_t crc = okv_record_seed(&get->rec);

	for (uint32_t p = 0; p < get->rec.nr_parts; p++)
		if (get->rec.parts[p].bytes)
			crc = okv_crc32c_extend(crc, get->bufs[p], get->rec.parts[p].bytes);
	return crc == get->rec.crc;
}

/* A request has come back: compare the sums of the blocks of which it was the last, while others are under way. */
static void get_done(void *opaque, struct okv_disk_io *io)
{
	struct okv_store *store = opaque;
	struct okv_store_get *get = store->io_gets[io - store->ios];
	uint64_t left = io->bytes;

	/* The runs of a list follow the order of its gets, so those that one is for stand side by side. */
	for (const uint8_t *at = io->buf; left; get++) {
		bool is_for = false;

		for (uint32_t p = 0; p < get->rec.nr_parts && left && !get->res; p++) {
			if (!get->rec.parts[p].bytes || get->bufs[p] != at)
				continue;
			at += get->rec.parts[p].bytes;
			left -= get->rec.parts[p].bytes;
			is_for = true;
		}
		if (is_for && !--get->nr_pending)
			get->is_good = is_sum_right(get);
	}
}

/* What reading it has shown. Nothing was added since its entry was looked up. Under both locks. */
static void get_settle(struct okv_store *store, struct okv_store_get *get)
{
	struct okv_spill_entry *e = &store->catalog.entries[get->entry];
	/* Another get of the same list may have found it bad. */
	bool is_there = e->segment != OKV_CATALOG_NONE;

	if (!get->res)
		get->res = get->is_good ? 0 : -EBADMSG;
	if (get->res) {
		store->stats.bad_records += get->res == -EBADMSG;
		if (is_there)
			okv_catalog_del(store, get->entry);
	} else if (is_there) {
		store->segments[e->segment].used_ns = now_ns(store);
		if (!e->is_read)
			store->segments[e->segment].hot_bytes += okv_record_payload(&get->rec);
		e->is_read = true;
		store->stats.read_records++;
		store->stats.read_bytes += okv_record_payload(&get->rec);
	}
}

/* Reads of @gets from the first on, as many as go into one list. Returns how many gets they are. */
static uint32_t get_ios(struct okv_store *store, struct okv_store_get *gets, uint32_t nr, uint32_t *nr_ios)
{
	uint32_t i;

	*nr_ios = 0;
	for (i = 0; i < nr && *nr_ios + OKV_SPILL_PARTS_MAX <= OKV_STORE_IOS; i++) {
		struct okv_store_get *get = &gets[i];
		uint32_t entry = get_entry(store, get), nr_before, last = UINT32_MAX;
		uint64_t off;

		get->res = entry == OKV_CATALOG_NONE ? -ENOENT : 0;
		get->entry = entry;
		get->nr_pending = 0;
		get->is_good = false;
		if (get->res)
			continue;
		off = okv_segment_off(store, store->catalog.entries[entry].segment) + get->rec.off;
		for (uint32_t p = 0; p < get->rec.nr_parts; p++) {
			if (!get->rec.parts[p].bytes)
				continue;
			nr_before = *nr_ios;
			*nr_ios = add_io(store->ios, nr_before, off, get->bufs[p], get->rec.parts[p].bytes, false);
			if (*nr_ios != nr_before) {
				store->io_gets[nr_before] = get;
				store->ios[nr_before].done = get_done;
				store->ios[nr_before].opaque = store;
			}
			/* One more request has a part of it, unless the last one got longer by a second part. */
			get->nr_pending += *nr_ios != nr_before || *nr_ios != last;
			last = *nr_ios;
			off += get->rec.parts[p].bytes;
		}
	}
	return i;
}

/* A get whose bytes one of the failed requests was to bring. */
static void get_blame(struct okv_store *store, struct okv_store_get *get, uint32_t nr_ios)
{
	for (uint32_t i = 0; i < nr_ios && !get->res; i++) {
		const struct okv_disk_io *io = &store->ios[i];
		const uint8_t *from = io->buf;

		if (!io->res)
			continue;
		for (uint32_t p = 0; p < get->rec.nr_parts && !get->res; p++)
			if (get->rec.parts[p].bytes && (uint8_t *)get->bufs[p] >= from &&
			    (uint8_t *)get->bufs[p] < from + io->bytes)
				get->res = -EIO;
	}
}

/* Run what get_ios() has made of @gets. 0 or -ETIME. */
static int get_run(struct okv_store *store, struct okv_store_get *gets, uint32_t nr, uint32_t nr_ios)
{
	if (nr_ios && okv_store_run(store, nr_ios) == -ETIME) {
		for (uint32_t i = 0; i < nr; i++)
			gets[i].res = -ETIME;
		return -ETIME;
	}
	pthread_mutex_lock(&store->lock);
	for (uint32_t i = 0; i < nr; i++) {
		if (gets[i].res)
			continue;
		get_blame(store, &gets[i], nr_ios);
		get_settle(store, &gets[i]);
	}
	pthread_mutex_unlock(&store->lock);
	return 0;
}

/* An older record of the same block, of the same shape: a copy that was torn may have been made from it. */
static bool get_older(struct okv_store *store, struct okv_store_get *get)
{
	uint32_t entry = okv_catalog_find(store, get->rec.ns, &get->rec.key);
	struct okv_record rec;

	if (entry == OKV_CATALOG_NONE)
		return false;
	okv_catalog_record(store, entry, &rec);
	if (rec.nr_parts != get->rec.nr_parts ||
	    memcmp(rec.parts, get->rec.parts, rec.nr_parts * sizeof(rec.parts[0])))
		return false;
	get->rec = rec;
	return true;
}

int okv_store_get(struct okv_store *store, struct okv_store_get *gets, uint32_t nr)
{
	uint32_t nr_some, nr_ios;
	int ret = 0;

	pthread_mutex_lock(&store->io_lock);
	/* The disk has yet to answer others: their blocks are not bad for that, and these are not either. */
	if (!store->disk->ops->is_idle(store->disk)) {
		for (uint32_t i = 0; i < nr; i++)
			gets[i].res = -ETIME;
		nr = 0;
	}
	for (uint32_t i = 0; i < nr; i += nr_some) {
		nr_some = get_ios(store, gets + i, nr - i, &nr_ios);
		ret = get_run(store, gets + i, nr_some, nr_ios);
		if (ret) {
			for (uint32_t k = i; k < nr; k++)
				gets[k].res = -ETIME;
			break;
		}
	}
	for (uint32_t i = 0; i < nr && !ret; i++) {
		while (gets[i].res == -EBADMSG && get_older(store, &gets[i])) {
			get_ios(store, &gets[i], 1, &nr_ios);
			ret = get_run(store, &gets[i], 1, nr_ios);
		}
	}
	/* A disk that does not answer stores nothing either, one that answers again may. */
	if (ret)
		degrade(store, ret);
	else if (nr && store->last_error == -ETIME)
		resume(store);
	pthread_mutex_unlock(&store->io_lock);
	return ret;
}

bool okv_record_is_same(const struct okv_record *rec, const struct okv_record *want)
{
	if (rec->position != want->position || rec->nr_tokens != want->nr_tokens || rec->nr_parts != want->nr_parts ||
	    rec->parent.len != want->parent.len || memcmp(rec->parent.bytes, want->parent.bytes, want->parent.len))
		return false;
	for (uint32_t p = 0; p < want->nr_parts; p++)
		if (rec->parts[p].bytes != want->parts[p].bytes)
			return false;
	return true;
}

/* The record that @want describes, verified. Under io_lock. */
static int find_verified(struct okv_store *store, const struct okv_record *want, struct okv_store_get *get, uint64_t *off)
{
	uint32_t entry = okv_catalog_find(store, want->ns, &want->key), segment;
	int ret = 0;

	if (!store->disk->ops->is_idle(store->disk))
		return -ETIME;
	if (entry == OKV_CATALOG_NONE)
		return -ENOENT;
	okv_catalog_record(store, entry, &get->rec);
	if (!okv_record_is_same(&get->rec, want))
		return -ENOENT;
	segment = store->catalog.entries[entry].segment;
	*off = okv_segment_off(store, segment) + get->rec.off;
	if (!store->catalog.entries[entry].is_read)
		ret = okv_store_bounce(store, segment, &get->rec);
	if (ret == -ETIME || ret == -ENOMEM)
		return ret;
	get->res = ret && ret != -EBADMSG ? -EIO : ret;
	get->is_good = !ret;
	get->entry = entry;
	pthread_mutex_lock(&store->lock);
	get_settle(store, get);
	pthread_mutex_unlock(&store->lock);
	return get->res;
}

int okv_store_read_other(struct okv_store *store, const struct okv_record *want,
			 int (*fn)(void *opaque, const struct okv_record *rec, uint64_t off), void *opaque)
{
	struct okv_store_get get = { 0 };
	uint64_t off;
	int ret;

	pthread_mutex_lock(&store->io_lock);
	ret = find_verified(store, want, &get, &off);
	if (!ret)
		ret = fn(opaque, &get.rec, off);
	pthread_mutex_unlock(&store->io_lock);
	return ret;
}

/* ---- check, counters ------------------------------------------------------------------------ */

#define CHECK_BYTES	(4u << 20)

/* A part of a segment in memory, for a check that reads everything. */
struct okv_check_window {
	uint8_t		*buf;		/* [CHECK_BYTES]; NULL: none */
	uint64_t	off;
	uint64_t	bytes;		/* 0: nothing yet */
};

/* Verify a record: out of the window, which is moved along, or by itself where that cannot be. */
static int check_record(struct okv_store *store, uint32_t index, const struct okv_record *rec,
			struct okv_check_window *window)
{
	uint64_t bytes = okv_record_payload(rec);

	if (!window->buf || bytes > CHECK_BYTES)
		return okv_store_bounce(store, index, rec);
	if (!window->bytes || rec->off < window->off || rec->off + bytes > window->off + window->bytes) {
		int ret;

		window->off = rec->off;
		window->bytes = store->super.segment_bytes - rec->off;
		if (window->bytes > CHECK_BYTES)
			window->bytes = CHECK_BYTES;
		store->ios[0] = (struct okv_disk_io){
			.off = okv_segment_off(store, index) + window->off, .buf = window->buf, .bytes = window->bytes,
		};
		ret = okv_store_run(store, 1);
		if (ret)
			window->bytes = 0;
		if (ret == -ETIME)
			window->buf = NULL;	/* in use by the disk: left behind */
		if (ret)
			return okv_store_bounce(store, index, rec);
	}
	return okv_crc32c_extend(okv_record_seed(rec), window->buf + (rec->off - window->off), bytes) == rec->crc ?
	       0 : -EBADMSG;
}

static void check_segment(struct okv_store *store, uint32_t index, struct omnikv_spill_check *check,
			  struct okv_check_window *window)
{
	struct okv_segment *segment = &store->segments[index];
	struct okv_record rec;
	bool is_changed = false;

	for (uint64_t at = 0; at < segment->table_bytes; at += okv_record_bytes(&rec)) {
		uint32_t entry = okv_catalog_at(store, index, at);
		int ret;

		okv_record_decode(segment->table + at, segment->table_bytes - at, store->super.segment_bytes, &rec);
		if (entry == OKV_CATALOG_NONE)
			continue;
		ret = check_record(store, index, &rec, window);
		check->nr_records++;
		check->nr_bytes += okv_record_payload(&rec);
		if (!ret)
			continue;
		check->nr_bad += ret == -EBADMSG;
		check->nr_unreadable += ret != -EBADMSG;
		if (!check->first_bad[0])
			snprintf(check->first_bad, sizeof(check->first_bad), "segment %u, offset %llu, %llu bytes: %s", index,
				 (unsigned long long)rec.off, (unsigned long long)okv_record_payload(&rec),
				 ret == -EBADMSG ? "wrong checksum" : "cannot be read");
		if (!(check->flags & OMNIKV_SPILL_CHECK_F_QUARANTINE))
			continue;
		pthread_mutex_lock(&store->lock);
		okv_catalog_del(store, entry);
		rec.flags |= OKV_RECORD_F_QUARANTINED;
		okv_record_encode(&rec, segment->table + at);
		pthread_mutex_unlock(&store->lock);
		check->nr_quarantined++;
		is_changed = true;
	}
	if (is_changed && segment->state == OKV_SEGMENT_SEALED)
		okv_segment_write_table(store, index);
}

int okv_store_check(struct okv_store *store, struct omnikv_spill_check *check, omnikv_progress_fn progress,
		    void *opaque)
{
	struct okv_check_window window = { .buf = aligned_alloc(OKV_SPILL_PAGE, CHECK_BYTES) };
	bool is_quarantine = check->flags & OMNIKV_SPILL_CHECK_F_QUARANTINE;

	if (is_quarantine && store->config.is_read_only) {
		free(window.buf);
		return -EPERM;
	}
	if (is_quarantine) {
		/* Marks stand in tables. */
		pthread_mutex_lock(&store->io_lock);
		seal_active(store);
		pthread_mutex_unlock(&store->io_lock);
	}
	for (uint32_t i = 0; i < store->nr_segments; i++) {
		pthread_mutex_lock(&store->io_lock);
		window.bytes = 0;
		check_segment(store, i, check, &window);
		pthread_mutex_unlock(&store->io_lock);
		if (progress)
			progress(opaque, (i + 1) * store->super.segment_bytes,
				 store->nr_segments * store->super.segment_bytes);
	}
	free(window.buf);
	return is_quarantine && check->nr_quarantined ? okv_store_sync(store) : 0;
}

void okv_store_stats(struct okv_store *store, struct omnikv_spill_stats *stats)
{
	size_t size = stats->size;

	pthread_mutex_lock(&store->io_lock);
	*stats = store->stats;
	stats->nr_free_segments = nr_free_segments(store);
	stats->nr_records = store->catalog.nr_live - store->catalog.nr_shadowed;
	pthread_mutex_unlock(&store->io_lock);
	stats->size = size;
	stats->segment_bytes = store->super.segment_bytes;
	stats->nr_segments = store->nr_segments;
	stats->capacity_bytes = store->nr_segments * store->super.segment_bytes;
	stats->used_bytes = (stats->nr_segments - stats->nr_free_segments) * stats->segment_bytes;
}

/* ---- life ----------------------------------------------------------------------------------- */

bool okv_store_is_idle(struct okv_store *store)
{
	bool is_idle;

	pthread_mutex_lock(&store->io_lock);
	is_idle = store->disk->ops->is_idle(store->disk);
	pthread_mutex_unlock(&store->io_lock);
	return is_idle;
}

int okv_store_sync(struct okv_store *store)
{
	int ret = 0;

	pthread_mutex_lock(&store->io_lock);
	if (!store->disk->ops->is_idle(store->disk))
		ret = -ETIME;
	else if (!store->config.is_read_only)
		ret = store->disk->ops->sync(store->disk);
	store->stats.nr_errors += ret != 0;
	pthread_mutex_unlock(&store->io_lock);
	return ret;
}

/* One superblock page: read and decoded. */
static int read_super(struct okv_store *store, uint32_t copy, uint32_t *version)
{
	int ret;

	store->ios[0] = (struct okv_disk_io){
		.off = copy * OKV_SPILL_PAGE, .buf = store->header, .bytes = OKV_SPILL_PAGE,
	};
	ret = okv_store_run(store, 1);
	return ret ? ret : okv_super_decode(store->header, &store->super, version);
}

static int write_super(struct okv_store *store)
{
	for (uint32_t copy = 0; copy < 2; copy++) {
		int ret;

		okv_super_encode(&store->super, store->header);
		store->ios[0] = (struct okv_disk_io){
			.off = copy * OKV_SPILL_PAGE, .buf = store->header, .bytes = OKV_SPILL_PAGE, .is_write = true,
		};
		ret = okv_store_run(store, 1);
		if (!ret)
			ret = store->disk->ops->sync(store->disk);
		if (ret)
			return ret;
	}
	return 0;
}

static uint64_t choose_segment_bytes(uint64_t capacity)
{
	uint64_t bytes = 64ull << 20;

	while (bytes > OKV_SPILL_SEGMENT_MIN && capacity / bytes < 32)
		bytes /= 2;
	return bytes;
}

static int open_super(struct okv_store *store, struct omnikv_error *err)
{
	uint32_t version = 0;
	uint64_t bytes = store->disk->ops->bytes(store->disk);
	int first, second;

	first = read_super(store, 0, &version);
	if (!first)
		return 0;
	if (first == -EPROTO)
		return okv_error_set(err, first, "the store has format version %u, this omnikv knows %u; use a newer one or "
				     "another path", version, OKV_SPILL_VERSION);
	if (first == -EOPNOTSUPP)
		return okv_error_set(err, first, "the store uses a feature that this omnikv does not know; use a newer one");
	if (first == -ETIME)
		return first;
	second = read_super(store, 1, &version);
	if (!second)
		return 0;
	if (second == -ETIME)
		return second;
	/* What ends within a superblock is none of ours. */
	if (first == -EBADMSG || second == -EBADMSG || (bytes < 2 * OKV_SPILL_PAGE && bytes % OKV_SPILL_PAGE))
		return okv_error_set(err, -EBADMSG, "this is no spill store (or its superblocks are damaged); it is left alone: give "
				     "another path, or remove it");
	if (first == -EIO || second == -EIO)
		return okv_error_set(err, -EIO, "the superblock cannot be read: %s", error_text(-EIO));
	if (store->config.is_open_only || store->config.is_read_only)
		return okv_error_set(err, -ENOENT, "there is no spill store");

	memcpy(store->super.uuid, store->config.random + 8, sizeof(store->super.uuid));
	store->super.segment_bytes = store->config.segment_bytes ? store->config.segment_bytes :
				     choose_segment_bytes(store->config.capacity_bytes);
	store->super.data_off = OKV_SPILL_DATA_OFF;
	store->super.created_s = store->config.time_s;
	store->super.features = OKV_SPILL_FEATURE_MARK;
	if (store->super.segment_bytes < OKV_SPILL_SEGMENT_MIN || store->super.segment_bytes > OKV_SPILL_SEGMENT_MAX ||
	    store->super.segment_bytes % OKV_SPILL_PAGE)
		return okv_error_set(err, -EINVAL, "segments of %llu bytes; multiples of %u from %u to %u are possible",
				     (unsigned long long)store->super.segment_bytes, OKV_SPILL_PAGE, OKV_SPILL_SEGMENT_MIN,
				     OKV_SPILL_SEGMENT_MAX);
	if (store->config.capacity_bytes < store->super.data_off + NEW_SEGMENTS * store->super.segment_bytes)
		return okv_error_set(err, -EINVAL, "%llu bytes are less than four segments of %llu; give more",
				     (unsigned long long)store->config.capacity_bytes,
				     (unsigned long long)store->super.segment_bytes);
	first = okv_store_era_create(store);
	if (!first)
		first = write_super(store);
	if (first)
		return okv_error_set(err, first, "the superblock of a new store cannot be written: %s%s", error_text(first),
				     first == -ENOSPC || first == -EDQUOT ? "; make room, or give another path" : "");
	return 0;
}

/* Who has it, for whoever comes and finds it taken. Nothing depends on it. */
static void write_owner(struct okv_store *store)
{
	struct okv_spill_owner owner = { .pid = store->config.pid, .since_s = store->config.time_s };

	snprintf(owner.host, sizeof(owner.host), "%s", store->config.host ? store->config.host : "");
	snprintf(owner.name, sizeof(owner.name), "%s", store->config.owner ? store->config.owner : "omnikv");
	okv_owner_encode(store->super.uuid, &owner, store->header);
	store->ios[0] = (struct okv_disk_io){
		.off = OKV_SPILL_OWNER_OFF, .buf = store->header, .bytes = OKV_SPILL_PAGE, .is_write = true,
	};
	okv_store_run(store, 1);
}

/* The youngest segment goes on where much of it is free; tables are written for those that had none. */
static void settle_segments(struct okv_store *store)
{
	uint32_t youngest = OKV_CATALOG_NONE;

	for (uint32_t i = 0; i < store->nr_segments; i++) {
		struct okv_segment *segment = &store->segments[i];

		if (segment->state == OKV_SEGMENT_SEALED &&
		    (youngest == OKV_CATALOG_NONE || segment->life.seq > store->segments[youngest].life.seq))
			youngest = i;
	}
	if (youngest != OKV_CATALOG_NONE &&
	    store->segments[youngest].append_off < store->super.segment_bytes / 4 * 3 &&
	    store->segments[youngest].append_off >= OKV_SPILL_PAGE) {
		store->segments[youngest].state = OKV_SEGMENT_ACTIVE;
		store->active = youngest;
	}
	for (uint32_t i = 0; i < store->nr_segments; i++)
		if (store->segments[i].state == OKV_SEGMENT_SEALED && !store->segments[i].has_table)
			okv_segment_write_table(store, i);
}

static void store_free(struct okv_store *store)
{
	for (uint32_t i = 0; store->segments && i < store->nr_segments; i++)
		free(store->segments[i].table);
	free(store->segments);
	okv_catalog_fini(&store->catalog);
	free(store->changes.list);
	/* What a stuck request still uses is left behind. */
	if (store->disk->ops->is_idle(store->disk)) {
		free(store->header);
		free(store->bounce);
	}
	free(store->ios);
	free(store->io_gets);
	pthread_mutex_destroy(&store->io_lock);
	pthread_mutex_destroy(&store->lock);
	free(store);
}

int okv_store_open(struct okv_disk *disk, const struct okv_store_config *config, struct okv_store **out,
		   struct omnikv_error *err)
{
	uint64_t begin_ns = disk->ops->now_ns(disk), capacity;
	struct okv_store *store;
	int ret = -ENOMEM;

	store = calloc(1, sizeof(*store));
	if (!store)
		return -ENOMEM;
	store->disk = disk;
	store->config = *config;
	store->active = OKV_CATALOG_NONE;
	store->next_seq = 1;
	store->next_generation = 1;
	memcpy(&store->nonce, config->random, sizeof(store->nonce));
	pthread_mutex_init(&store->io_lock, NULL);
	pthread_mutex_init(&store->lock, NULL);
	store->header = aligned_alloc(OKV_SPILL_PAGE, OKV_STORE_HEADER_BYTES);
	store->ios = calloc(OKV_STORE_IOS, sizeof(*store->ios));
	store->io_gets = calloc(OKV_STORE_IOS, sizeof(*store->io_gets));
	if (!store->header || !store->ios || !store->io_gets || okv_catalog_init(&store->catalog))
		goto err_free;

	if (!store->config.capacity_bytes)
		store->config.capacity_bytes = disk->ops->bytes(disk);
	ret = open_super(store, err);
	if (ret)
		goto err_free;
	capacity = store->config.capacity_bytes;
	/* As long as it is; one that was made on a disk without much room may have less than it was made for. */
	if (!config->capacity_bytes && !config->is_read_only &&
	    capacity < store->super.data_off + NEW_SEGMENTS * store->super.segment_bytes)
		capacity = store->super.data_off + NEW_SEGMENTS * store->super.segment_bytes;
	store->nr_segments = capacity < store->super.data_off ? 0 :
			     (capacity - store->super.data_off) / store->super.segment_bytes;
	if (store->nr_segments < 3 && !config->is_read_only) {
		ret = okv_error_set(err, -EINVAL, "%llu bytes are too few for this store's segments of %llu; give more",
				    (unsigned long long)capacity, (unsigned long long)store->super.segment_bytes);
		goto err_free;
	}
	ret = -ENOMEM;
	store->segments = calloc(store->nr_segments + 1, sizeof(*store->segments));
	if (!store->segments)
		goto err_free;
	ret = okv_store_era_load(store);
	if (ret)
		goto err_free;
	ret = okv_store_recover(store);
	if (ret)
		goto err_free;
	store->first_generation = store->next_generation;
	store->stats.recovered_records = store->catalog.nr_live - store->catalog.nr_shadowed;
	if (!config->is_read_only) {
		write_owner(store);
		settle_segments(store);
		/* Beyond a smaller cap. */
		if (disk->ops->bytes(disk) > okv_segment_off(store, store->nr_segments))
			disk->ops->discard(disk, okv_segment_off(store, store->nr_segments),
					   disk->ops->bytes(disk) - okv_segment_off(store, store->nr_segments));
	}
	note_peak(store);
	store->stats.open_s = (double)(disk->ops->now_ns(disk) - begin_ns) / 1e9;
	*out = store;
	return 0;

err_free:
	store_free(store);
	return ret;
}

void okv_store_close(struct okv_store *store)
{
	if (!store)
		return;
	pthread_mutex_lock(&store->io_lock);
	if (!store->config.is_read_only && store->disk->ops->is_idle(store->disk)) {
		if (store->active != OKV_CATALOG_NONE && store->segments[store->active].has_table)
			store->disk->ops->sync(store->disk);
		else
			seal_active(store);
	}
	pthread_mutex_unlock(&store->io_lock);
	store_free(store);
}

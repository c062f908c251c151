// SPDX-License-Identifier: MIT
/*
 * The spill store's records in memory: found by namespace and key, dropped by segment.
 *
 * An entry is 16 bytes and points into the table of its segment, where the record stands as it
 * does on the disk. Callers hold the store's lock.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "failpoint.h"
#include "spill/store.h"

#define BUCKETS_MIN	1024u

static uint32_t hash_of(const uint8_t ns[32], const struct omnikv_key *key)
{
	uint8_t text[32 + OMNIKV_KEY_BYTES_MAX];

	memcpy(text, ns, 32);
	memcpy(text + 32, key->bytes, key->len);
	return XXH3_64bits(text, 32 + key->len);
}

static uint32_t *bucket_of(const struct okv_catalog *catalog, uint32_t hash)
{
	return &catalog->buckets[hash & (catalog->nr_buckets - 1)];
}

int okv_catalog_init(struct okv_catalog *catalog)
{
	memset(catalog, 0, sizeof(*catalog));
	catalog->free = OKV_CATALOG_NONE;
	catalog->buckets = malloc(BUCKETS_MIN * sizeof(*catalog->buckets));
	if (!catalog->buckets)
		return -ENOMEM;
	memset(catalog->buckets, 0xff, BUCKETS_MIN * sizeof(*catalog->buckets));
	catalog->nr_buckets = BUCKETS_MIN;
	return 0;
}

void okv_catalog_fini(struct okv_catalog *catalog)
{
	free(catalog->buckets);
	free(catalog->entries);
	memset(catalog, 0, sizeof(*catalog));
}

void okv_catalog_record(const struct okv_store *store, uint32_t entry, struct okv_record *rec)
{
	const struct okv_spill_entry *e = &store->catalog.entries[entry];
	const struct okv_segment *segment = &store->segments[e->segment];

	/* It was checked when it got there. */
	okv_record_decode(segment->table + e->at, segment->table_bytes - e->at, store->super.segment_bytes, rec);
}

/* More buckets; without memory for them chains get longer, that is all. */
static void catalog_spread(struct okv_store *store)
{
	struct okv_catalog *catalog = &store->catalog;
	uint32_t nr = 2 * catalog->nr_buckets, nr_old = catalog->nr_buckets;
	uint32_t *old = catalog->buckets, *buckets;

	if (catalog->nr_live < catalog->nr_buckets || nr > 1u << 28)
		return;
	buckets = malloc(nr * sizeof(*buckets));
	if (!buckets)
		return;
	memset(buckets, 0xff, nr * sizeof(*buckets));
	catalog->buckets = buckets;
	catalog->nr_buckets = nr;
	for (uint32_t b = 0; b < nr_old; b++) {
		for (uint32_t id = old[b]; id != OKV_CATALOG_NONE;) {
			struct okv_spill_entry *e = &catalog->entries[id];
			uint32_t *to = bucket_of(catalog, e->hash), next = e->next;

			e->next = *to;
			*to = id;
			id = next;
		}
	}
	free(old);
}

int okv_catalog_reserve(struct okv_catalog *catalog, uint32_t nr)
{
	struct okv_spill_entry *entries;
	uint64_t room;

	if (catalog->nr_live + (uint64_t)nr <= catalog->room)
		return 0;
	room = catalog->room + (catalog->room / 2 > nr ? catalog->room / 2 : nr) + 256;
	if (room >= OKV_CATALOG_NONE)
		return -ENOMEM;
	entries = realloc(catalog->entries, room * sizeof(*entries));
	if (!entries)
		return -ENOMEM;
	catalog->entries = entries;
	catalog->room = room;
	return 0;
}

/* In an encoded record: where the lengths of the keys, the namespace and the key stand. */
static bool record_is_of(const uint8_t *rec, const uint8_t ns[32])
{
	return !memcmp(rec + 48, ns, 32);
}

static bool record_is(const uint8_t *rec, const uint8_t ns[32], const struct omnikv_key *key)
{
	return rec[32] == key->len && record_is_of(rec, ns) && !memcmp(rec + 80, key->bytes, key->len);
}

/* Generation of an encoded record; it was checked when it got there. */
static uint64_t record_generation(const uint8_t *rec)
{
	uint64_t generation = 0;

	for (uint32_t i = 8; i-- > 0;)
		generation = generation << 8 | rec[24 + i];
	return generation;
}

static const uint8_t *entry_record(const struct okv_store *store, uint32_t entry)
{
	const struct okv_spill_entry *e = &store->catalog.entries[entry];

	return store->segments[e->segment].table + e->at;
}

uint64_t okv_catalog_generation(const struct okv_store *store, uint32_t entry)
{
	return record_generation(entry_record(store, entry));
}

uint32_t okv_catalog_find(const struct okv_store *store, const uint8_t ns[32], const struct omnikv_key *key)
{
	const struct okv_catalog *catalog = &store->catalog;
	uint32_t best = OKV_CATALOG_NONE, hash = hash_of(ns, key);
	uint64_t best_generation = 0;

	for (uint32_t id = *bucket_of(catalog, hash); id != OKV_CATALOG_NONE; id = catalog->entries[id].next) {
		const uint8_t *rec;

		if (catalog->entries[id].hash != hash)
			continue;
		rec = entry_record(store, id);
		if (!record_is(rec, ns, key) || (best != OKV_CATALOG_NONE && record_generation(rec) <= best_generation))
			continue;
		best = id;
		best_generation = record_generation(rec);
	}
	return best;
}

/* A block is found that was not, or is not any more. */
static void note_change(struct okv_store *store, const struct okv_record *rec, bool is_there)
{
	struct okv_store_changes *changes = &store->changes;

	if (!changes->is_watched || changes->has_lost)
		return;
	if (changes->nr == changes->room) {
		uint32_t room = 2 * changes->room + 64;
		struct okv_store_change *list = realloc(changes->list, room * sizeof(*list));

		changes->has_lost = !list || OKV_FAILPOINT("spill.note_change");
		changes->list = list ? list : changes->list;
		if (changes->has_lost)
			return;
		changes->room = room;
	}
	changes->list[changes->nr++] = (struct okv_store_change){
		.key = rec->key, .parent = rec->parent, .nr_tokens = rec->nr_tokens, .is_there = is_there,
	};
	memcpy(changes->list[changes->nr - 1].ns, rec->ns, sizeof(rec->ns));
}

void okv_store_watch(struct okv_store *store, bool is_watched)
{
	pthread_mutex_lock(&store->lock);
	free(store->changes.list);
	store->changes = (struct okv_store_changes){ .is_watched = is_watched };
	pthread_mutex_unlock(&store->lock);
}

int okv_store_changes(struct okv_store *store, struct okv_store_change **changes, uint32_t *nr)
{
	bool is_watched, has_lost;

	pthread_mutex_lock(&store->lock);
	is_watched = store->changes.is_watched;
	has_lost = store->changes.has_lost;
	*changes = store->changes.list;
	*nr = store->changes.nr;
	store->changes = (struct okv_store_changes){ .is_watched = is_watched };
	pthread_mutex_unlock(&store->lock);
	if (!has_lost)
		return 0;
	free(*changes);
	*changes = NULL;
	*nr = 0;
	return -ENOMEM;
}

struct placed {
	uint32_t	position;
	uint32_t	entry;
};

static int by_position(const void *a, const void *b)
{
	const struct placed *x = a, *y = b;

	return x->position < y->position ? -1 : x->position > y->position;
}

int okv_store_list(struct okv_store *store, const uint8_t ns[32],
		   void (*fn)(void *opaque, const struct okv_record *rec), void *opaque)
{
	struct okv_store_changes *changes = &store->changes;
	const struct okv_catalog *catalog = &store->catalog;
	struct placed *placed;
	struct okv_record rec;
	uint32_t nr = 0, left = 0;

	pthread_mutex_lock(&store->lock);
	placed = malloc(((size_t)catalog->nr_entries + 1) * sizeof(*placed));
	for (uint32_t id = 0; placed && id < catalog->nr_entries; id++) {
		if (catalog->entries[id].segment == OKV_CATALOG_NONE || !record_is_of(entry_record(store, id), ns))
			continue;
		okv_catalog_record(store, id, &rec);
		if (okv_catalog_find(store, ns, &rec.key) == id)
			placed[nr++] = (struct placed){ rec.position, id };
	}
	if (placed) {
		qsort(placed, nr, sizeof(*placed), by_position);
		for (uint32_t i = 0; i < nr; i++) {
			okv_catalog_record(store, placed[i].entry, &rec);
			fn(opaque, &rec);
		}
		for (uint32_t i = 0; i < changes->nr; i++)
			if (memcmp(changes->list[i].ns, ns, 32))
				changes->list[left++] = changes->list[i];
		changes->nr = left;
	}
	pthread_mutex_unlock(&store->lock);
	free(placed);
	return placed ? 0 : -ENOMEM;
}

void okv_catalog_del(struct okv_store *store, uint32_t entry)
{
	struct okv_catalog *catalog = &store->catalog;
	struct okv_segment *segment = &store->segments[catalog->entries[entry].segment];
	struct okv_record rec;
	uint32_t *link;

	okv_catalog_record(store, entry, &rec);
	for (link = bucket_of(catalog, catalog->entries[entry].hash); *link != entry; link = &catalog->entries[*link].next)
		;
	*link = catalog->entries[entry].next;
	segment->nr_live--;
	segment->live_bytes -= okv_record_payload(&rec);
	if (catalog->entries[entry].is_read)
		segment->hot_bytes -= okv_record_payload(&rec);
	store->stats.live_bytes -= okv_record_payload(&rec);
	catalog->entries[entry].next = catalog->free;
	catalog->entries[entry].segment = OKV_CATALOG_NONE;
	catalog->free = entry;
	catalog->nr_live--;
	if (okv_catalog_find(store, rec.ns, &rec.key) != OKV_CATALOG_NONE)
		catalog->nr_shadowed--;
	else
		note_change(store, &rec, false);
}

void okv_catalog_add(struct okv_store *store, uint32_t segment, uint32_t at, const struct okv_record *rec)
{
	struct okv_catalog *catalog = &store->catalog;
	uint32_t hash = hash_of(rec->ns, &rec->key), *bucket, id;

	if (rec->flags & OKV_RECORD_F_QUARANTINED)
		return;
	catalog_spread(store);
	if (okv_catalog_find(store, rec->ns, &rec->key) != OKV_CATALOG_NONE)
		catalog->nr_shadowed++;
	else
		note_change(store, rec, true);
	if (catalog->free != OKV_CATALOG_NONE) {
		id = catalog->free;
		catalog->free = catalog->entries[id].next;
	} else {
		id = catalog->nr_entries++;
	}
	bucket = bucket_of(catalog, hash);
	catalog->entries[id] = (struct okv_spill_entry){ .next = *bucket, .segment = segment, .hash = hash, .at = at };
	*bucket = id;
	catalog->nr_live++;
	store->segments[segment].nr_live++;
	store->segments[segment].live_bytes += okv_record_payload(rec);
	store->stats.live_bytes += okv_record_payload(rec);
}

uint32_t okv_catalog_at(const struct okv_store *store, uint32_t segment, uint32_t at)
{
	const struct okv_segment *s = &store->segments[segment];
	struct okv_record rec;
	uint32_t id;

	okv_record_decode(s->table + at, s->table_bytes - at, store->super.segment_bytes, &rec);
	id = *bucket_of(&store->catalog, hash_of(rec.ns, &rec.key));
	while (id != OKV_CATALOG_NONE &&
	       (store->catalog.entries[id].segment != segment || store->catalog.entries[id].at != at))
		id = store->catalog.entries[id].next;
	return id;
}

int okv_store_check_books(struct okv_store *store, const char **reason)
{
	const struct okv_catalog *catalog = &store->catalog;
	uint64_t live_bytes = 0, nr_live = 0;
	int ret = 0;

	*reason = NULL;
	pthread_mutex_lock(&store->lock);
	for (uint32_t i = 0; i < store->nr_segments && !*reason; i++) {
		const struct okv_segment *s = &store->segments[i];
		uint64_t bytes = 0, hot = 0;
		uint32_t nr = 0, records = 0;
		struct okv_record rec;

		for (uint64_t at = 0; at < s->table_bytes; at += okv_record_bytes(&rec), records++) {
			uint32_t id;

			if (okv_record_decode(s->table + at, s->table_bytes - at, store->super.segment_bytes, &rec) < 0) {
				*reason = "a record of a table does not decode";
				break;
			}
			id = okv_catalog_at(store, i, at);
			if (id == OKV_CATALOG_NONE)
				continue;
			nr++;
			bytes += okv_record_payload(&rec);
			hot += catalog->entries[id].is_read ? okv_record_payload(&rec) : 0;
		}
		if (!*reason && records != s->nr_records)
			*reason = "a table has another number of records than its segment says";
		if (!*reason && (nr != s->nr_live || bytes != s->live_bytes || hot != s->hot_bytes))
			*reason = "what a segment holds is not the sum over its entries";
		if (!*reason && s->state == OKV_SEGMENT_FREE && s->table)
			*reason = "a free segment has a table";
		if (!*reason && (s->state == OKV_SEGMENT_ACTIVE) != (i == store->active))
			*reason = "not exactly the active segment is ACTIVE";
		nr_live += nr;
		live_bytes += bytes;
	}
	if (!*reason && nr_live != catalog->nr_live)
		*reason = "entries that no table has";
	if (!*reason && live_bytes != store->stats.live_bytes)
		*reason = "live bytes are not the sum over entries";
	pthread_mutex_unlock(&store->lock);
	if (*reason)
		ret = -EUCLEAN;
	return ret;
}

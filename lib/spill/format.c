// SPDX-License-Identifier: MIT
/*
 * Encoding and decoding of the spill store's pages and records; see format.h.
 *
 * Pure; any thread. Nothing here is cast onto bytes: each field is read and written by its
 * offset, so neither alignment nor byte order of the machine matter.
 */
#include "spill/format.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "crc32c.h"

#define MAGIC		"OKVSPILL"
#define SECTOR		512u

enum page_kind {
	PAGE_SUPER = 1,
	PAGE_OWNER,
	PAGE_SEGMENT,
	PAGE_BATCH,
	PAGE_TRAILER,
	PAGE_ERA,
};

/* Every page begins so: magic 8, version 4, kind 4, uuid 16. */
#define HEAD_BYTES	32u

static void put16(uint8_t *p, uint16_t v)
{
	p[0] = v;
	p[1] = v >> 8;
}

static void put32(uint8_t *p, uint32_t v)
{
	put16(p, v);
	put16(p + 2, v >> 16);
}

static void put64(uint8_t *p, uint64_t v)
{
	put32(p, v);
	put32(p + 4, v >> 32);
}

static uint16_t get16(const uint8_t *p)
{
	return p[0] | p[1] << 8;
}

static uint32_t get32(const uint8_t *p)
{
	return get16(p) | (uint32_t)get16(p + 2) << 16;
}

static uint64_t get64(const uint8_t *p)
{
	return get32(p) | (uint64_t)get32(p + 4) << 32;
}

static void head_encode(uint8_t *page, enum page_kind kind, const uint8_t uuid[16])
{
	memcpy(page, MAGIC, 8);
	put32(page + 8, OKV_SPILL_VERSION);
	put32(page + 12, kind);
	memcpy(page + 16, uuid, 16);
}

static bool head_is(const uint8_t *page, enum page_kind kind, const uint8_t uuid[16])
{
	return !memcmp(page, MAGIC, 8) && get32(page + 8) == OKV_SPILL_VERSION && get32(page + 12) == kind &&
	       !memcmp(page + 16, uuid, 16);
}

/* The sum stands in the last four bytes of what it covers. */
static void seal(uint8_t *page, size_t bytes)
{
	put32(page + bytes - 4, okv_crc32c(page, bytes - 4));
}

static bool is_sealed(const uint8_t *page, size_t bytes)
{
	return get32(page + bytes - 4) == okv_crc32c(page, bytes - 4);
}

static void life_encode(uint8_t *p, const struct okv_spill_life *life)
{
	put64(p, life->seq);
	put64(p + 8, life->nonce);
}

static void life_decode(const uint8_t *p, struct okv_spill_life *life)
{
	life->seq = get64(p);
	life->nonce = get64(p + 8);
}

/* ---- superblock, owner, segment header ------------------------------------------------------ */

void okv_super_encode(const struct okv_spill_super *super, uint8_t *page)
{
	memset(page, 0, OKV_SPILL_PAGE);
	head_encode(page, PAGE_SUPER, super->uuid);
	put64(page + 32, super->segment_bytes);
	put64(page + 40, super->data_off);
	put64(page + 48, super->created_s);
	put32(page + 56, OKV_SPILL_PAGE);
	put32(page + 60, (uint32_t)super->features);
	seal(page, SECTOR);
}

int okv_super_decode(const uint8_t *page, struct okv_spill_super *super, uint32_t *version)
{
	struct okv_spill_super s;
	bool is_zero = true;

	for (uint32_t i = 0; i < OKV_SPILL_PAGE && is_zero; i++)
		is_zero = !page[i];
	if (is_zero)
		return -ENODATA;
	if (memcmp(page, MAGIC, 8) || get32(page + 12) != PAGE_SUPER || !is_sealed(page, SECTOR))
		return -EBADMSG;
	*version = get32(page + 8);
	if (*version != OKV_SPILL_VERSION)
		return -EPROTO;
	if (get32(page + 60) & ~OKV_SPILL_FEATURES)
		return -EOPNOTSUPP;
	s.features = get32(page + 60);
	memcpy(s.uuid, page + 16, 16);
	s.segment_bytes = get64(page + 32);
	s.data_off = get64(page + 40);
	s.created_s = get64(page + 48);
	if (get32(page + 56) != OKV_SPILL_PAGE || s.segment_bytes < OKV_SPILL_SEGMENT_MIN ||
	    s.segment_bytes > OKV_SPILL_SEGMENT_MAX || s.segment_bytes % OKV_SPILL_PAGE ||
	    s.data_off != OKV_SPILL_DATA_OFF)
		return -EBADMSG;
	*super = s;
	return 0;
}

void okv_owner_encode(const uint8_t uuid[16], const struct okv_spill_owner *owner, uint8_t *page)
{
	memset(page, 0, OKV_SPILL_PAGE);
	head_encode(page, PAGE_OWNER, uuid);
	put64(page + 32, owner->since_s);
	put32(page + 40, owner->pid);
	memcpy(page + 48, owner->host, OKV_SPILL_NAME_BYTES);
	memcpy(page + 48 + OKV_SPILL_NAME_BYTES, owner->name, OKV_SPILL_NAME_BYTES);
	seal(page, SECTOR);
}

int okv_owner_decode(const uint8_t *page, const uint8_t uuid[16], struct okv_spill_owner *owner)
{
	if (!head_is(page, PAGE_OWNER, uuid) || !is_sealed(page, SECTOR))
		return -EBADMSG;
	owner->since_s = get64(page + 32);
	owner->pid = get32(page + 40);
	memcpy(owner->host, page + 48, OKV_SPILL_NAME_BYTES);
	memcpy(owner->name, page + 48 + OKV_SPILL_NAME_BYTES, OKV_SPILL_NAME_BYTES);
	owner->host[OKV_SPILL_NAME_BYTES - 1] = '\0';
	owner->name[OKV_SPILL_NAME_BYTES - 1] = '\0';
	return 0;
}

void okv_era_encode(const uint8_t uuid[16], const struct okv_spill_era *era, uint8_t *page)
{
	memset(page, 0, OKV_SPILL_PAGE);
	head_encode(page, PAGE_ERA, uuid);
	put64(page + HEAD_BYTES, era->number);
	put64(page + HEAD_BYTES + 8, era->epoch);
	put64(page + HEAD_BYTES + 16, era->nr_begun);
	seal(page, SECTOR);
}

int okv_era_decode(const uint8_t *page, const uint8_t uuid[16], struct okv_spill_era *era)
{
	if (!head_is(page, PAGE_ERA, uuid) || !is_sealed(page, SECTOR))
		return -EBADMSG;
	era->number = get64(page + HEAD_BYTES);
	era->epoch = get64(page + HEAD_BYTES + 8);
	era->nr_begun = get64(page + HEAD_BYTES + 16);
	return 0;
}

void okv_segment_encode(const uint8_t uuid[16], const struct okv_spill_life *life, uint8_t *page)
{
	memset(page, 0, OKV_SPILL_PAGE);
	head_encode(page, PAGE_SEGMENT, uuid);
	life_encode(page + HEAD_BYTES, life);
	seal(page, SECTOR);
}

int okv_segment_decode(const uint8_t *page, const uint8_t uuid[16], struct okv_spill_life *life)
{
	if (!head_is(page, PAGE_SEGMENT, uuid) || !is_sealed(page, SECTOR))
		return -EBADMSG;
	life_decode(page + HEAD_BYTES, life);
	return 0;
}

/* ---- trailer -------------------------------------------------------------------------------- */

void okv_trailer_encode(const uint8_t uuid[16], const struct okv_spill_trailer *trailer, uint8_t *page)
{
	memset(page, 0, OKV_SPILL_PAGE);
	head_encode(page, PAGE_TRAILER, uuid);
	life_encode(page + HEAD_BYTES, &trailer->life);
	put64(page + 48, trailer->table_off);
	put64(page + 56, trailer->table_bytes);
	put32(page + 64, trailer->nr_records);
	put32(page + 68, trailer->table_crc);
	seal(page, SECTOR);
}

int okv_trailer_decode(const uint8_t *page, const uint8_t uuid[16], uint64_t segment_bytes,
		       struct okv_spill_trailer *trailer)
{
	struct okv_spill_trailer t;

	if (!head_is(page, PAGE_TRAILER, uuid) || !is_sealed(page, SECTOR))
		return -EBADMSG;
	life_decode(page + HEAD_BYTES, &t.life);
	t.table_off = get64(page + 48);
	t.table_bytes = get64(page + 56);
	t.nr_records = get32(page + 64);
	t.table_crc = get32(page + 68);
	if (t.table_off % OKV_SPILL_PAGE || t.table_off < OKV_SPILL_PAGE || t.table_bytes > segment_bytes ||
	    t.table_off > segment_bytes - OKV_SPILL_PAGE ||
	    okv_spill_pages(t.table_bytes) > segment_bytes - OKV_SPILL_PAGE - t.table_off)
		return -EBADMSG;
	*trailer = t;
	return 0;
}

/* ---- records -------------------------------------------------------------------------------- */

/* What stands in an encoded record from here on identifies the block. */
#define IDENTITY_FROM	32u

uint32_t okv_record_seed(const struct okv_record *rec)
{
	uint8_t encoded[OKV_SPILL_RECORD_HEAD + 8 * OKV_SPILL_PARTS_MAX];

	okv_record_encode(rec, encoded);
	return okv_crc32c(encoded + IDENTITY_FROM, okv_record_bytes(rec) - IDENTITY_FROM);
}

void okv_record_encode(const struct okv_record *rec, uint8_t *to)
{
	put32(to, okv_record_bytes(rec));
	put32(to + 4, rec->flags);
	put32(to + 8, rec->crc);
	put32(to + 12, 0);
	put64(to + 16, rec->off);
	put64(to + 24, rec->generation);
	to[32] = rec->key.len;
	to[33] = rec->parent.len;
	put16(to + 34, rec->nr_parts);
	put32(to + 36, rec->nr_tokens);
	put32(to + 40, rec->position);
	put32(to + 44, 0);
	memcpy(to + 48, rec->ns, 32);
	memcpy(to + 80, rec->key.bytes, 32);
	memcpy(to + 112, rec->parent.bytes, 32);
	for (uint32_t i = 0; i < rec->nr_parts; i++) {
		put32(to + OKV_SPILL_RECORD_HEAD + 8 * i, rec->parts[i].bytes);
		put32(to + OKV_SPILL_RECORD_HEAD + 8 * i + 4, rec->parts[i].crc);
	}
}

static bool key_decode(const uint8_t *bytes, uint32_t len, struct omnikv_key *key)
{
	if (len > OMNIKV_KEY_BYTES_MAX)
		return false;
	memcpy(key->bytes, bytes, OMNIKV_KEY_BYTES_MAX);
	key->len = len;
	for (uint32_t i = len; i < OMNIKV_KEY_BYTES_MAX; i++)
		if (bytes[i])
			return false;
	return true;
}

int okv_record_decode(const uint8_t *from, size_t len, uint64_t segment_bytes, struct okv_record *rec)
{
	uint64_t payload = 0;

	if (len < OKV_SPILL_RECORD_HEAD)
		return -EBADMSG;
	rec->nr_parts = get16(from + 34);
	if (!rec->nr_parts || rec->nr_parts > OKV_SPILL_PARTS_MAX || get32(from) != okv_record_bytes(rec) ||
	    len < okv_record_bytes(rec))
		return -EBADMSG;
	rec->flags = get32(from + 4);
	rec->crc = get32(from + 8);
	rec->off = get64(from + 16);
	rec->generation = get64(from + 24);
	rec->nr_tokens = get32(from + 36);
	rec->position = get32(from + 40);
	memcpy(rec->ns, from + 48, 32);
	if (rec->flags & ~OKV_RECORD_F_QUARANTINED || get32(from + 12) || get32(from + 44) || !from[32] ||
	    !key_decode(from + 80, from[32], &rec->key) || !key_decode(from + 112, from[33], &rec->parent))
		return -EBADMSG;
	for (uint32_t i = 0; i < rec->nr_parts; i++) {
		rec->parts[i].bytes = get32(from + OKV_SPILL_RECORD_HEAD + 8 * i);
		rec->parts[i].crc = get32(from + OKV_SPILL_RECORD_HEAD + 8 * i + 4);
		if (rec->parts[i].bytes % OKV_SPILL_PAGE)
			return -EBADMSG;
		payload += rec->parts[i].bytes;
	}
	if (!payload || rec->off < OKV_SPILL_PAGE || rec->off % OKV_SPILL_PAGE || payload > segment_bytes ||
	    rec->off > segment_bytes - payload)
		return -EBADMSG;
	return okv_record_bytes(rec);
}

int okv_table_check(const uint8_t *table, uint64_t bytes, uint32_t nr_records, uint64_t segment_bytes)
{
	struct okv_record rec;
	uint64_t at = 0;

	for (uint32_t i = 0; i < nr_records; i++) {
		int ret = okv_record_decode(table + at, bytes - at, segment_bytes, &rec);

		if (ret < 0)
			return ret;
		at += ret;
	}
	return at == bytes ? 0 : -EBADMSG;
}

/* ---- batches -------------------------------------------------------------------------------- */

void okv_batch_encode(const uint8_t uuid[16], const struct okv_spill_batch *batch, uint8_t *header)
{
	head_encode(header, PAGE_BATCH, uuid);
	life_encode(header + HEAD_BYTES, &batch->life);
	put64(header + 48, batch->off);
	put64(header + 56, batch->bytes);
	put32(header + 64, batch->header_bytes);
	put32(header + 68, batch->nr_records);
	seal(header, batch->header_bytes);
}

int okv_batch_peek(const uint8_t *page, const uint8_t uuid[16], const struct okv_spill_life *life, uint64_t off,
		   uint64_t segment_bytes, struct okv_spill_batch *batch)
{
	struct okv_spill_batch b;

	if (!head_is(page, PAGE_BATCH, uuid))
		return -EBADMSG;
	life_decode(page + HEAD_BYTES, &b.life);
	b.off = get64(page + 48);
	b.bytes = get64(page + 56);
	b.header_bytes = get32(page + 64);
	b.nr_records = get32(page + 68);
	if (b.life.seq != life->seq || b.life.nonce != life->nonce || b.off != off || off > segment_bytes ||
	    b.bytes > segment_bytes - off || b.header_bytes >= b.bytes || !b.header_bytes ||
	    b.header_bytes % OKV_SPILL_PAGE || b.bytes % OKV_SPILL_PAGE || !b.nr_records ||
	    b.nr_records > OKV_SPILL_BATCH_MAX ||
	    b.header_bytes > okv_batch_header_bytes((uint64_t)OKV_SPILL_BATCH_MAX *
						    (OKV_SPILL_RECORD_HEAD + 8 * OKV_SPILL_PARTS_MAX)))
		return -EBADMSG;
	*batch = b;
	return 0;
}

int okv_batch_check(const uint8_t *header, const struct okv_spill_batch *batch, uint64_t segment_bytes)
{
	uint64_t at = OKV_SPILL_BATCH_HEAD, payload = batch->off + batch->header_bytes;
	struct okv_record rec;

	if (!is_sealed(header, batch->header_bytes))
		return -EBADMSG;
	/* Payloads lie behind the header in the order of the records, without gaps. */
	for (uint32_t i = 0; i < batch->nr_records; i++) {
		int ret = okv_record_decode(header + at, batch->header_bytes - OKV_SPILL_BATCH_TAIL - at, segment_bytes,
					    &rec);

		if (ret < 0 || rec.off != payload)
			return -EBADMSG;
		at += ret;
		payload += okv_record_payload(&rec);
	}
	return payload == batch->off + batch->bytes ? 0 : -EBADMSG;
}

/* SPDX-License-Identifier: MIT */
/*
 * What stands on the disk of a spill store: every structure, encoded and decoded.
 *
 * A store is a row of pages of 4 KiB: two superblocks, one page that names the owner, one of the era, and from
 * @data_off on segments of equal length. A segment is a header page, batches one behind the
 * other, and once it is full a table of its records with a trailer in its last page. All
 * integers are little endian. Each structure carries a CRC32C, and what belongs to a segment
 * carries the segment's sequence number and nonce, so that what an earlier life of the same
 * place left behind is never taken for its own.
 *
 * Pure; any thread. Decoders take any bytes whatever and never trust a length.
 */
#ifndef OKV_SPILL_FORMAT_H
#define OKV_SPILL_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include <omnikv/key.h>

#define OKV_SPILL_PAGE		4096u
#define OKV_SPILL_VERSION	1u
#define OKV_SPILL_PARTS_MAX	32u
#define OKV_SPILL_OWNER_OFF	(2 * OKV_SPILL_PAGE)
#define OKV_SPILL_ERA_OFF	(3 * OKV_SPILL_PAGE)
#define OKV_SPILL_DATA_OFF	(4 * OKV_SPILL_PAGE)
#define OKV_SPILL_NAME_BYTES	64u
#define OKV_SPILL_SEGMENT_MIN	(64u << 10)
#define OKV_SPILL_SEGMENT_MAX	(1u << 30)
/** Bytes of a batch's header before its first record, and behind its last. */
#define OKV_SPILL_BATCH_HEAD	72u
#define OKV_SPILL_BATCH_TAIL	4u
#define OKV_SPILL_RECORD_HEAD	144u
/** Records of one batch. */
#define OKV_SPILL_BATCH_MAX	64u

static inline uint64_t okv_spill_pages(uint64_t bytes)
{
	return (bytes + OKV_SPILL_PAGE - 1) & ~(uint64_t)(OKV_SPILL_PAGE - 1);
}

/** struct okv_spill_super - what never changes after a store is made; fits one 512-byte sector */
struct okv_spill_super {
	uint8_t		uuid[16];
	uint64_t	segment_bytes;
	uint64_t	data_off;
	uint64_t	created_s;
	uint64_t	features;	/* OKV_SPILL_FEATURE_*: who does not know one must not write */
};

/** The page of the era says how many segments may ever have been written. */
#define OKV_SPILL_FEATURE_MARK	(1u << 0)
#define OKV_SPILL_FEATURES	OKV_SPILL_FEATURE_MARK

struct okv_spill_owner {
	uint32_t	pid;
	uint64_t	since_s;
	char		host[OKV_SPILL_NAME_BYTES];
	char		name[OKV_SPILL_NAME_BYTES];
};

/**
 * struct okv_spill_era - of what is found: see era.c
 * @number:   0 until the first one begins
 * @epoch:    the manager's, as it was then
 * @nr_begun: no segment from this one on was ever written; without OKV_SPILL_FEATURE_MARK 0, and nothing is known
 */
struct okv_spill_era {
	uint64_t	number;
	uint64_t	epoch;
	uint64_t	nr_begun;
};

/** One life of a segment: @seq rises with every life of any segment, @nonce is random at each opening. */
struct okv_spill_life {
	uint64_t	seq;
	uint64_t	nonce;
};

/** struct okv_spill_batch - head of a batch; @off, @bytes: in its segment, header included */
struct okv_spill_batch {
	struct okv_spill_life	life;
	uint64_t		off;
	uint64_t		bytes;
	uint32_t		header_bytes;
	uint32_t		nr_records;
};

struct okv_spill_trailer {
	struct okv_spill_life	life;
	uint64_t		table_off;
	uint64_t		table_bytes;
	uint32_t		nr_records;
	uint32_t		table_crc;
};

/** Found wrong by a check, and not to be served again. */
#define OKV_RECORD_F_QUARANTINED	(1u << 0)

struct okv_record_part {
	uint32_t	bytes;		/* a multiple of OKV_SPILL_PAGE; 0: the block has no such group */
	uint32_t	crc;		/* the manager's sum over the block's rows; opaque here */
};

/**
 * struct okv_record - one block
 * @ns:         identity of its namespace
 * @parent:     key of the block before it; len 0: none
 * @generation: of two records with the same key the one with the higher counts
 * @off:        of the payload in its segment; parts follow one another
 * @crc:        over the encoded identity and the payload; see okv_record_seed()
 */
struct okv_record {
	uint8_t			ns[32];
	struct omnikv_key	key;
	struct omnikv_key	parent;
	uint64_t		generation;
	uint64_t		off;
	uint32_t		nr_tokens;
	uint32_t		position;
	uint32_t		flags;
	uint32_t		crc;
	uint32_t		nr_parts;
	struct okv_record_part	parts[OKV_SPILL_PARTS_MAX];
};

static inline uint32_t okv_record_bytes(const struct okv_record *rec)
{
	return OKV_SPILL_RECORD_HEAD + 8 * rec->nr_parts;
}

static inline uint64_t okv_record_payload(const struct okv_record *rec)
{
	uint64_t bytes = 0;

	for (uint32_t i = 0; i < rec->nr_parts; i++)
		bytes += rec->parts[i].bytes;
	return bytes;
}

/** Sum of what identifies the block; extended by the payload it is the record's @crc. */
uint32_t okv_record_seed(const struct okv_record *rec);
/** @to has okv_record_bytes() of room. */
void okv_record_encode(const struct okv_record *rec, uint8_t *to);
/**
 * okv_record_decode() - the record that begins at @from
 * @segment_bytes: the payload must lie inside
 *
 * Return: its length in bytes, or -EBADMSG.
 */
int okv_record_decode(const uint8_t *from, size_t len, uint64_t segment_bytes, struct okv_record *rec);

/*
 * Pages. Decoders return 0, -EBADMSG (no such page, or damaged), and okv_super_decode() also
 * -ENODATA (all zero), -EPROTO (a later version) and -EOPNOTSUPP (an unknown incompatible
 * feature). @page is OKV_SPILL_PAGE bytes.
 */
void okv_super_encode(const struct okv_spill_super *super, uint8_t *page);
int okv_super_decode(const uint8_t *page, struct okv_spill_super *super, uint32_t *version);
void okv_owner_encode(const uint8_t uuid[16], const struct okv_spill_owner *owner, uint8_t *page);
int okv_owner_decode(const uint8_t *page, const uint8_t uuid[16], struct okv_spill_owner *owner);
void okv_era_encode(const uint8_t uuid[16], const struct okv_spill_era *era, uint8_t *page);
int okv_era_decode(const uint8_t *page, const uint8_t uuid[16], struct okv_spill_era *era);
void okv_segment_encode(const uint8_t uuid[16], const struct okv_spill_life *life, uint8_t *page);
int okv_segment_decode(const uint8_t *page, const uint8_t uuid[16], struct okv_spill_life *life);
void okv_trailer_encode(const uint8_t uuid[16], const struct okv_spill_trailer *trailer, uint8_t *page);
int okv_trailer_decode(const uint8_t *page, const uint8_t uuid[16], uint64_t segment_bytes,
		       struct okv_spill_trailer *trailer);

/** Bytes of the header of a batch whose records take @table_bytes. */
static inline uint64_t okv_batch_header_bytes(uint64_t table_bytes)
{
	return okv_spill_pages(OKV_SPILL_BATCH_HEAD + table_bytes + OKV_SPILL_BATCH_TAIL);
}

/** @header: [header_bytes], the encoded records in place from OKV_SPILL_BATCH_HEAD on, zeroes behind them. */
void okv_batch_encode(const uint8_t uuid[16], const struct okv_spill_batch *batch, uint8_t *header);
/**
 * okv_batch_peek() - what the first page of a batch says, unchecked but for its bounds
 *
 * Return: 0 with lengths that lie inside the segment, or -EBADMSG.
 */
int okv_batch_peek(const uint8_t *page, const uint8_t uuid[16], const struct okv_spill_life *life, uint64_t off,
		   uint64_t segment_bytes, struct okv_spill_batch *batch);
/** The whole header is right, and so is each of its records. 0 or -EBADMSG. @header: [batch->header_bytes]. */
int okv_batch_check(const uint8_t *header, const struct okv_spill_batch *batch, uint64_t segment_bytes);
/** Each of @nr_records records of a table decodes, and they fill it. 0 or -EBADMSG. */
int okv_table_check(const uint8_t *table, uint64_t bytes, uint32_t nr_records, uint64_t segment_bytes);

#endif /* OKV_SPILL_FORMAT_H */

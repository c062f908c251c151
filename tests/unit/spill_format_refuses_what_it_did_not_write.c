// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pages and records of a spill store: what is encoded decodes to the same, the bytes of a
 * superblock are those of the documentation, and a change of any one bit that means anything is
 * noticed by whoever decodes.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "crc32c.h"
#include "spill/format.h"

static const uint8_t uuid[16] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };
static uint8_t page[8 * OKV_SPILL_PAGE];

static struct okv_record sample(void)
{
	struct okv_record rec = {
		.key.len = 20, .parent.len = 32, .generation = UINT64_C(0x123456789abcdef0), .off = 3 * OKV_SPILL_PAGE,
		.nr_tokens = 512, .position = 70000, .crc = 0xdeadbeef, .nr_parts = 3,
		.parts = { { 8192, 1 }, { 0, 0 }, { 4096, 0xffffffff } },
	};

	memset(rec.ns, 0xaa, 32);
	memset(rec.key.bytes, 0xbb, 20);
	memset(rec.parent.bytes, 0xcc, 32);
	return rec;
}

static void spill_superblock_has_the_documented_bytes(void **state)
{
	struct okv_spill_super super = { .segment_bytes = 1 << 20, .data_off = 16384, .created_s = 5 }, back;
	static const uint8_t head[] = {
		'O', 'K', 'V', 'S', 'P', 'I', 'L', 'L', 1, 0, 0, 0, 1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14,
		15, 16, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0,
	};
	uint32_t version, crc;

	(void)state;
	memcpy(super.uuid, uuid, 16);
	okv_super_encode(&super, page);
	assert_memory_equal(page, head, sizeof(head));
	for (uint32_t i = sizeof(head); i < 508; i++)
		assert_int_equal(page[i], 0);
	memcpy(&crc, page + 508, 4);
	assert_int_equal(crc, okv_crc32c(page, 508));
	assert_int_equal(okv_super_decode(page, &back, &version), 0);
	assert_memory_equal(&back, &super, sizeof(super));

	memset(page, 0, OKV_SPILL_PAGE);
	assert_int_equal(okv_super_decode(page, &back, &version), -ENODATA);
	page[4000] = 1;
	assert_int_equal(okv_super_decode(page, &back, &version), -EBADMSG);

	/* A later version and an unknown feature are refused as what they are. */
	okv_super_encode(&super, page);
	page[8] = 2;
	crc = okv_crc32c(page, 508);
	memcpy(page + 508, &crc, 4);
	assert_int_equal(okv_super_decode(page, &back, &version), -EPROTO);
	assert_int_equal(version, 2);
	page[8] = 1;
	page[60] = 2;
	crc = okv_crc32c(page, 508);
	memcpy(page + 508, &crc, 4);
	assert_int_equal(okv_super_decode(page, &back, &version), -EOPNOTSUPP);
	page[60] = OKV_SPILL_FEATURE_MARK;
	crc = okv_crc32c(page, 508);
	memcpy(page + 508, &crc, 4);
	assert_int_equal(okv_super_decode(page, &back, &version), 0);
	assert_int_equal(back.features, OKV_SPILL_FEATURE_MARK);
	/* Right sums over lengths that cannot be. */
	super.segment_bytes = 4096;
	okv_super_encode(&super, page);
	assert_int_equal(okv_super_decode(page, &back, &version), -EBADMSG);
	super.segment_bytes = (1 << 20) + 1;
	okv_super_encode(&super, page);
	assert_int_equal(okv_super_decode(page, &back, &version), -EBADMSG);
	super.segment_bytes = 1 << 20;
	super.data_off = 4096;
	okv_super_encode(&super, page);
	assert_int_equal(okv_super_decode(page, &back, &version), -EBADMSG);
}

static int decode_page(uint32_t kind)
{
	struct okv_spill_super super;
	struct okv_spill_owner owner;
	struct okv_spill_life life;
	struct okv_spill_trailer trailer;
	struct okv_spill_era era;
	uint32_t version;

	switch (kind) {
	case 0:
		return okv_super_decode(page, &super, &version);
	case 1:
		return okv_owner_decode(page, uuid, &owner);
	case 2:
		return okv_segment_decode(page, uuid, &life);
	case 3:
		return okv_era_decode(page, uuid, &era);
	default:
		return okv_trailer_decode(page, uuid, 1 << 20, &trailer);
	}
}

static void spill_pages_notice_every_bit(void **state)
{
	struct okv_spill_super super = { .segment_bytes = 1 << 20, .data_off = 16384 };
	struct okv_spill_owner owner = { .pid = 4242, .since_s = 99, .host = "host", .name = "name" }, owner_back;
	struct okv_spill_life life = { .seq = 5, .nonce = 6 }, life_back;
	struct okv_spill_trailer trailer = {
		.life = life, .table_off = 8192, .table_bytes = 5000, .nr_records = 3, .table_crc = 7,
	}, trailer_back;
	struct okv_spill_era era = { .number = 77, .epoch = 3, .nr_begun = 9 }, era_back;

	(void)state;
	memset(page, 0, sizeof(page));
	assert_int_equal(okv_era_decode(page, uuid, &era_back), -EBADMSG);
	memcpy(super.uuid, uuid, 16);
	for (uint32_t kind = 0; kind < 5; kind++) {
		switch (kind) {
		case 0:
			okv_super_encode(&super, page);
			break;
		case 1:
			okv_owner_encode(uuid, &owner, page);
			assert_int_equal(okv_owner_decode(page, uuid, &owner_back), 0);
			assert_int_equal(owner.pid, owner_back.pid);
			assert_int_equal(owner.since_s, owner_back.since_s);
			assert_memory_equal(owner.host, owner_back.host, sizeof(owner.host));
			assert_memory_equal(owner.name, owner_back.name, sizeof(owner.name));
			break;
		case 2:
			okv_segment_encode(uuid, &life, page);
			assert_int_equal(okv_segment_decode(page, uuid, &life_back), 0);
			assert_memory_equal(&life, &life_back, sizeof(life));
			break;
		case 3:
			okv_era_encode(uuid, &era, page);
			assert_int_equal(okv_era_decode(page, uuid, &era_back), 0);
			assert_memory_equal(&era, &era_back, sizeof(era));
			break;
		case 4:
			okv_trailer_encode(uuid, &trailer, page);
			assert_int_equal(okv_trailer_decode(page, uuid, 1 << 20, &trailer_back), 0);
			assert_memory_equal(&trailer, &trailer_back, sizeof(trailer));
			break;
		}
		for (uint32_t bit = 0; bit < 8 * 512; bit++) {
			page[bit / 8] ^= 1 << bit % 8;
			assert_int_equal(decode_page(kind), -EBADMSG);
			page[bit / 8] ^= 1 << bit % 8;
		}
		assert_int_equal(decode_page(kind), 0);
		if (kind) {
			uint8_t other[16] = { 0 };

			assert_int_equal(okv_owner_decode(page, other, &owner_back), -EBADMSG);
			assert_int_equal(okv_era_decode(page, other, &era_back), -EBADMSG);
			assert_int_equal(okv_segment_decode(page, other, &life_back), -EBADMSG);
			assert_int_equal(okv_trailer_decode(page, other, 1 << 20, &trailer_back), -EBADMSG);
		}
	}
	/* Lengths beyond the segment, though summed right. */
	for (uint32_t i = 0; i < 5; i++) {
		struct okv_spill_trailer bad = trailer;

		if (i == 0)
			bad.table_off = 8193;
		else if (i == 1)
			bad.table_off = 0;
		else if (i == 2)
			bad.table_bytes = UINT64_MAX;
		else if (i == 3)
			bad.table_off = (1 << 20) - 8192;
		else
			bad.table_off = UINT64_MAX - 4095;
		okv_trailer_encode(uuid, &bad, page);
		assert_int_equal(okv_trailer_decode(page, uuid, 1 << 20, &trailer_back), -EBADMSG);
	}
}

static void spill_record_is_bound_to_its_identity(void **state)
{
	struct okv_record rec = sample(), back, other;
	uint8_t *buf = malloc(okv_record_bytes(&rec));
	uint32_t len = okv_record_bytes(&rec);

	(void)state;
	assert_non_null(buf);
	assert_int_equal(len, 144 + 3 * 8);
	assert_int_equal(okv_record_payload(&rec), 12288);
	okv_record_encode(&rec, buf);
	memset(&back, 0, sizeof(back));
	assert_int_equal(okv_record_decode(buf, len, 1 << 20, &back), len);
	assert_memory_equal(&back, &rec, sizeof(rec));
	for (uint32_t cut = 0; cut < len; cut++)
		assert_int_equal(okv_record_decode(buf, cut, 1 << 20, &back), -EBADMSG);
	/* The payload must lie in the segment. */
	assert_int_equal(okv_record_decode(buf, len, rec.off + 12288, &back), len);
	assert_int_equal(okv_record_decode(buf, len, rec.off + 12287, &back), -EBADMSG);
	/* What identifies the block enters the sum, what merely places it does not. */
	other = rec;
	other.generation++;
	other.off += 4096;
	other.flags = OKV_RECORD_F_QUARANTINED;
	assert_int_equal(okv_record_seed(&other), okv_record_seed(&rec));
	for (uint32_t i = 0; i < 7; i++) {
		other = rec;
		if (i == 0)
			other.ns[31] ^= 1;
		else if (i == 1)
			other.key.bytes[0] ^= 1;
		else if (i == 2)
			other.key.len++;
		else if (i == 3)
			other.parent.bytes[5] ^= 1;
		else if (i == 4)
			other.nr_tokens++;
		else if (i == 5)
			other.position++;
		else
			other.parts[2].crc ^= 1;
		assert_int_not_equal(okv_record_seed(&other), okv_record_seed(&rec));
	}
	/* Malformed fields, one at a time. */
	struct { uint32_t at; uint8_t value; } bad[] = {
		{ 0, 1 }, { 4, 2 }, { 12, 1 }, { 16, 1 }, { 32, 0 }, { 32, 33 }, { 33, 33 }, { 34, 0 }, { 34, 33 }, { 44, 1 },
		{ 80 + 20, 1 }, { 144, 1 },
	};
	for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		uint8_t was = buf[bad[i].at];

		buf[bad[i].at] = bad[i].value;
		assert_int_equal(okv_record_decode(buf, len, 1 << 20, &back), -EBADMSG);
		buf[bad[i].at] = was;
	}
	memset(buf + 144, 0, 24);
	assert_int_equal(okv_record_decode(buf, len, 1 << 20, &back), -EBADMSG);
	free(buf);
}

static void spill_batch_notices_every_bit(void **state)
{
	struct okv_record rec = sample();
	struct okv_spill_batch batch = {
		.life = { 5, 6 }, .off = 8192, .header_bytes = 4096, .nr_records = 2, .bytes = 4096 + 2 * 12288,
	}, back;
	struct okv_spill_life life = { 5, 6 };
	uint32_t used = OKV_SPILL_BATCH_HEAD + 2 * okv_record_bytes(&rec);

	(void)state;
	memset(page, 0, sizeof(page));
	rec.off = 8192 + 4096;
	okv_record_encode(&rec, page + OKV_SPILL_BATCH_HEAD);
	rec.off += 12288;
	okv_record_encode(&rec, page + OKV_SPILL_BATCH_HEAD + okv_record_bytes(&rec));
	okv_batch_encode(uuid, &batch, page);
	assert_int_equal(okv_batch_peek(page, uuid, &life, 8192, 1 << 20, &back), 0);
	assert_memory_equal(&back, &batch, sizeof(batch));
	assert_int_equal(okv_batch_check(page, &back, 1 << 20), 0);
	assert_int_equal(okv_table_check(page + OKV_SPILL_BATCH_HEAD, 2 * okv_record_bytes(&rec), 2, 1 << 20), 0);
	assert_int_equal(okv_table_check(page + OKV_SPILL_BATCH_HEAD, 2 * okv_record_bytes(&rec), 1, 1 << 20), -EBADMSG);
	assert_int_equal(okv_table_check(page + OKV_SPILL_BATCH_HEAD, 2 * okv_record_bytes(&rec), 3, 1 << 20), -EBADMSG);
	for (uint32_t bit = 0; bit < 8 * used; bit++) {
		int ret;

		page[bit / 8] ^= 1 << bit % 8;
		ret = okv_batch_peek(page, uuid, &life, 8192, 1 << 20, &back);
		/* A header that would be longer than the buffer is not asked for. */
		if (!ret && back.header_bytes <= sizeof(page))
			ret = okv_batch_check(page, &back, 1 << 20);
		assert_int_equal(ret, -EBADMSG);
		page[bit / 8] ^= 1 << bit % 8;
	}
	/* Of another life, at another place, beyond the end. */
	life.seq = 4;
	assert_int_equal(okv_batch_peek(page, uuid, &life, 8192, 1 << 20, &back), -EBADMSG);
	life = (struct okv_spill_life){ 5, 7 };
	assert_int_equal(okv_batch_peek(page, uuid, &life, 8192, 1 << 20, &back), -EBADMSG);
	life.nonce = 6;
	assert_int_equal(okv_batch_peek(page, uuid, &life, 4096, 1 << 20, &back), -EBADMSG);
	assert_int_equal(okv_batch_peek(page, uuid, &life, 8192, 8192 + batch.bytes - 1, &back), -EBADMSG);
	/* Payloads with a gap between, though summed right. */
	rec.off += 4096;
	okv_record_encode(&rec, page + OKV_SPILL_BATCH_HEAD + okv_record_bytes(&rec));
	okv_batch_encode(uuid, &batch, page);
	assert_int_equal(okv_batch_peek(page, uuid, &life, 8192, 1 << 20, &back), 0);
	assert_int_equal(okv_batch_check(page, &back, 1 << 20), -EBADMSG);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(spill_superblock_has_the_documented_bytes),
		cmocka_unit_test(spill_pages_notice_every_bit),
		cmocka_unit_test(spill_record_is_bound_to_its_identity),
		cmocka_unit_test(spill_batch_notices_every_bit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

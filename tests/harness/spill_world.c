// SPDX-License-Identifier: GPL-2.0-only
/*
 * Blocks made from numbers; see spill_world.h.
 * Nothing is kept here; any thread.
 */
#include "tests/harness/spill_world.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

uint64_t spill_random(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

void spill_block(struct okv_record *rec, uint64_t salt, uint64_t id, uint64_t bytes, uint32_t nr_parts)
{
	uint64_t left = bytes / OKV_SPILL_PAGE;

	memset(rec, 0, sizeof(*rec));
	memset(rec->ns, 0x20 + salt % 64, sizeof(rec->ns));
	memcpy(rec->ns, &salt, sizeof(salt));
	rec->key.len = 32;
	memset(rec->key.bytes, 0x5a, 32);
	memcpy(rec->key.bytes, &id, sizeof(id));
	if (id) {
		uint64_t parent = id - 1;

		rec->parent.len = 32;
		memset(rec->parent.bytes, 0x5a, 32);
		memcpy(rec->parent.bytes, &parent, sizeof(parent));
	}
	rec->position = id;
	rec->nr_tokens = 16;
	rec->nr_parts = nr_parts;
	for (uint32_t p = 0; p < nr_parts; p++) {
		uint64_t pages = p + 1 < nr_parts ? left / (nr_parts - p) : left;

		rec->parts[p].bytes = pages * OKV_SPILL_PAGE;
		rec->parts[p].crc = id * 31 + p;
		left -= pages;
	}
}

void spill_fill(uint8_t *buf, uint64_t salt, uint64_t id, uint64_t bytes)
{
	uint64_t state = salt * UINT64_C(0x100000001b3) ^ id << 20, word;

	for (uint64_t i = 0; i < bytes; i += 8) {
		word = spill_random(&state);
		memcpy(buf + i, &word, 8);
	}
}

uint64_t spill_wrong(const uint8_t *buf, uint64_t salt, uint64_t id, uint64_t bytes)
{
	uint64_t state = salt * UINT64_C(0x100000001b3) ^ id << 20, word, wrong = 0;

	for (uint64_t i = 0; i < bytes; i += 8) {
		word = spill_random(&state);
		if (memcmp(buf + i, &word, 8))
			for (uint32_t k = 0; k < 8; k++)
				wrong += buf[i + k] != (uint8_t)(word >> 8 * k);
	}
	return wrong;
}

int spill_put_run(struct okv_store *store, uint64_t salt, uint64_t from, uint64_t to, uint64_t bytes,
		  uint32_t nr_parts)
{
	struct okv_store_put *puts = calloc(to - from, sizeof(*puts));
	uint8_t *buf = aligned_alloc(OKV_SPILL_PAGE, (to - from) * bytes);
	int ret;

	if (!puts || !buf)
		abort();
	for (uint64_t i = 0; i < to - from; i++) {
		uint8_t *at = buf + i * bytes;

		spill_block(&puts[i].rec, salt, from + i, bytes, nr_parts);
		spill_fill(at, salt, from + i, bytes);
		for (uint32_t p = 0; p < nr_parts; p++) {
			puts[i].bufs[p] = at;
			at += puts[i].rec.parts[p].bytes;
		}
	}
	ret = okv_store_put(store, puts, to - from);
	for (uint64_t i = 0; i < to - from && !ret; i++)
		ret = puts[i].res;
	free(puts);
	free(buf);
	return ret;
}

int spill_put(struct okv_store *store, uint64_t salt, uint64_t id, uint64_t bytes, uint32_t nr_parts)
{
	return spill_put_run(store, salt, id, id + 1, bytes, nr_parts);
}

int spill_get(struct okv_store *store, uint64_t salt, uint64_t id)
{
	struct okv_store_get get = { 0 };
	struct okv_record want;
	uint64_t bytes;
	uint8_t *buf, *at;
	int ret;

	spill_block(&want, salt, id, OKV_SPILL_PAGE, 1);
	if (!okv_store_find(store, want.ns, &want.key, &get.rec))
		return -ENOENT;
	bytes = okv_record_payload(&get.rec);
	spill_block(&want, salt, id, bytes, get.rec.nr_parts);
	if (memcmp(&want.parent, &get.rec.parent, sizeof(want.parent)) || want.position != get.rec.position ||
	    memcmp(want.parts, get.rec.parts, sizeof(want.parts[0]) * want.nr_parts))
		return -EUCLEAN;
	buf = aligned_alloc(OKV_SPILL_PAGE, bytes);
	if (!buf)
		abort();
	at = buf;
	for (uint32_t p = 0; p < get.rec.nr_parts; p++) {
		get.bufs[p] = at;
		at += get.rec.parts[p].bytes;
	}
	ret = okv_store_get(store, &get, 1);
	if (!ret)
		ret = get.res;
	if (!ret && spill_wrong(buf, salt, id, bytes))
		ret = -EUCLEAN;
	free(buf);
	return ret;
}

struct okv_store_config spill_sim_config(uint64_t capacity, uint64_t segment_bytes)
{
	struct okv_store_config config = {
		.capacity_bytes = capacity,
		.segment_bytes = segment_bytes,
		.deadline_ns = 1000000000,
		.owner = "test",
		.host = "here",
		.pid = 1,
	};

	for (uint32_t i = 0; i < sizeof(config.random); i++)
		config.random[i] = i + 1;
	return config;
}

int spill_sim_open(struct sim_disk *sim, const struct okv_store_config *config, struct okv_store **store)
{
	return okv_store_open(&sim->disk, config, store, NULL);
}

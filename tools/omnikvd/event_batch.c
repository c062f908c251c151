// SPDX-License-Identifier: GPL-2.0-only
/*
 * One batch of KV events in msgpack. See event_batch.h.
 *
 * Events are packed as they come; the head, which counts them, is packed last. Pure; one thread.
 */
#include "event_batch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef OKV_HAVE_EVENTS
#include <msgpack.h>

struct okv_batch {
	enum okv_batch_encoding	encoding;
	msgpack_sbuffer		buffer;
	msgpack_packer		packer;
	uint32_t		nr;
	bool			has_lost;
};

struct okv_batch *okv_batch_create(enum okv_batch_encoding encoding)
{
	struct okv_batch *batch = calloc(1, sizeof(*batch));

	if (!batch)
		return NULL;
	batch->encoding = encoding;
	msgpack_sbuffer_init(&batch->buffer);
	msgpack_packer_init(&batch->packer, &batch->buffer, msgpack_sbuffer_write);
	return batch;
}

void okv_batch_destroy(struct okv_batch *batch)
{
	if (!batch)
		return;
	msgpack_sbuffer_destroy(&batch->buffer);
	free(batch);
}

uint32_t okv_batch_nr(const struct okv_batch *batch)
{
	return batch->nr;
}

bool okv_batch_is_full(const struct okv_batch *batch)
{
	return batch->nr >= OKV_BATCH_EVENTS || batch->buffer.size >= OKV_BATCH_BYTES;
}

static int pack_text(msgpack_packer *p, const char *text)
{
	size_t len = strlen(text);

	return msgpack_pack_str(p, len) || msgpack_pack_str_body(p, text, len);
}

static int pack_key(msgpack_packer *p, const struct omnikv_key *key)
{
	if (!key)
		return msgpack_pack_nil(p);
	return msgpack_pack_bin(p, key->len) || msgpack_pack_bin_body(p, key->bytes, key->len);
}

static int pack_tokens(msgpack_packer *p, const uint32_t *tokens, uint32_t nr)
{
	int ret = msgpack_pack_array(p, nr);

	for (uint32_t i = 0; i < nr && !ret; i++)
		ret = msgpack_pack_uint32(p, tokens[i]);
	return ret;
}

/* An event of a @type with @nr_fields more in an array, and @nr_named in a map, which names them. */
static int event_begin(struct okv_batch *batch, const char *type, uint32_t nr_fields, uint32_t nr_named)
{
	msgpack_packer *p = &batch->packer;

	if (batch->encoding == OKV_BATCH_ARRAY)
		return msgpack_pack_array(p, 1 + nr_fields) || pack_text(p, type);
	return msgpack_pack_map(p, 1 + nr_named) || pack_text(p, "type") || pack_text(p, type);
}

/* What goes before a field. */
static int name(struct okv_batch *batch, const char *text)
{
	return batch->encoding == OKV_BATCH_MAP ? pack_text(&batch->packer, text) : 0;
}

static int hashes(struct okv_batch *batch, const struct okv_batch_block *block)
{
	return name(batch, "block_hashes") || msgpack_pack_array(&batch->packer, 1) || pack_key(&batch->packer, block->key);
}

/* An array has no place for it. */
static int namespace(struct okv_batch *batch, const struct okv_batch_block *block)
{
	char text[17];

	if (batch->encoding == OKV_BATCH_ARRAY)
		return 0;
	for (uint32_t i = 0; i < 8; i++)
		snprintf(text + 2 * i, 3, "%02x", block->namespace_id[i]);
	return name(batch, "namespace") || pack_text(&batch->packer, text);
}

/* What was begun and could not be ended is taken back. */
static int event_end(struct okv_batch *batch, size_t size, int ret)
{
	if (ret) {
		batch->buffer.size = size;
		batch->has_lost = true;
		return -ENOMEM;
	}
	batch->nr++;
	return 0;
}

int okv_batch_stored(struct okv_batch *batch, const struct okv_batch_block *block)
{
	msgpack_packer *p = &batch->packer;
	size_t size = batch->buffer.size;
	int ret;

	ret = event_begin(batch, "BlockStored", 7, 8) || hashes(batch, block) ||
	      name(batch, "parent_block_hash") || pack_key(p, block->parent) ||
	      name(batch, "token_ids") || pack_tokens(p, block->tokens, block->nr_tokens) ||
	      name(batch, "block_size") || msgpack_pack_uint32(p, block->block_tokens) ||
	      name(batch, "lora_id") || msgpack_pack_nil(p) ||
	      name(batch, "medium") || pack_text(p, block->medium) ||
	      name(batch, "lora_name") || msgpack_pack_nil(p) || namespace(batch, block);
	return event_end(batch, size, ret);
}

int okv_batch_removed(struct okv_batch *batch, const struct okv_batch_block *block)
{
	size_t size = batch->buffer.size;
	int ret;

	ret = event_begin(batch, "BlockRemoved", 2, 3) || hashes(batch, block) ||
	      name(batch, "medium") || pack_text(&batch->packer, block->medium) || namespace(batch, block);
	return event_end(batch, size, ret);
}

int okv_batch_cleared(struct okv_batch *batch)
{
	size_t size = batch->buffer.size;

	return event_end(batch, size, event_begin(batch, "AllBlocksCleared", 0, 0));
}

int okv_batch_take(struct okv_batch *batch, double when, void **bytes, size_t *nr_bytes)
{
	msgpack_sbuffer head;
	msgpack_packer p;
	unsigned char *whole = NULL;
	size_t nr;
	int ret;

	msgpack_sbuffer_init(&head);
	msgpack_packer_init(&p, &head, msgpack_sbuffer_write);
	ret = msgpack_pack_array(&p, 2) || msgpack_pack_double(&p, when) || msgpack_pack_array(&p, batch->nr);
	nr = head.size + batch->buffer.size;
	if (!ret && !batch->has_lost)
		whole = malloc(nr);
	if (whole) {
		memcpy(whole, head.data, head.size);
		memcpy(whole + head.size, batch->buffer.data, batch->buffer.size);
		*bytes = whole;
		*nr_bytes = nr;
	}
	msgpack_sbuffer_destroy(&head);
	msgpack_sbuffer_clear(&batch->buffer);
	batch->nr = 0;
	batch->has_lost = false;
	return whole ? 0 : -ENOMEM;
}
#endif /* OKV_HAVE_EVENTS */

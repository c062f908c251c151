/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * One batch of KV events in the making: [time, [event, ...]] in msgpack.
 *
 * Owns the bytes, and what stands where in vLLM's two encodings. Knows no socket and no manager. One thread.
 */
#ifndef OKV_EVENT_BATCH_H
#define OKV_EVENT_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <omnikv/key.h>

/** A batch that is as long is sent before another event is added. */
#define OKV_BATCH_BYTES		(64u << 10)
#define OKV_BATCH_EVENTS	256u

enum okv_batch_encoding {
	OKV_BATCH_MAP,		/* maps with a "type", as since June 2026 */
	OKV_BATCH_ARRAY,	/* a name and the fields in order, as before, and as SGLang */
};

/** Where a block is, in vLLM's words. */
#define OKV_BATCH_MEMORY	"CPU"
#define OKV_BATCH_NVME		"STORAGE"

struct okv_batch;

/**
 * struct okv_batch_block - a block that can be found from now on, or not any more
 * @medium:    OKV_BATCH_*
 * @parent:    of the block before it; NULL: it is the first
 * @tokens:    [@nr_tokens] its token ids; none where they are not known
 * @block_tokens: T
 * @namespace_id: [8] names what the key is unique in; told in maps alone, as hexadecimal digits
 *
 * Of one that is not there any more key, medium and namespace are told.
 */
struct okv_batch_block {
	const char		*medium;
	const struct omnikv_key	*key;
	const struct omnikv_key	*parent;
	const uint32_t		*tokens;
	uint32_t		nr_tokens;
	uint32_t		block_tokens;
	const uint8_t		*namespace_id;
};

/** NULL: no memory. */
struct okv_batch *okv_batch_create(enum okv_batch_encoding encoding);
void okv_batch_destroy(struct okv_batch *batch);
/** Events of the batch in the making. */
uint32_t okv_batch_nr(const struct okv_batch *batch);
bool okv_batch_is_full(const struct okv_batch *batch);

/* Each adds one event. -ENOMEM: the event is lost, and okv_batch_take() will say so. */
int okv_batch_stored(struct okv_batch *batch, const struct okv_batch_block *block);
int okv_batch_removed(struct okv_batch *batch, const struct okv_batch_block *block);
int okv_batch_cleared(struct okv_batch *batch);

/**
 * okv_batch_take() - the batch is complete; the next one begins
 * @when:  seconds since the epoch
 * @bytes: its bytes, the caller's to free()
 *
 * Return: 0, or -ENOMEM: these events are lost.
 */
int okv_batch_take(struct okv_batch *batch, double when, void **bytes, size_t *nr_bytes);

#endif /* OKV_EVENT_BATCH_H */

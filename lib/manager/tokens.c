// SPDX-License-Identifier: MIT
/*
 * Token ids of blocks in META extents. See tokens.h.
 *
 * What waits for its block is in a ring, oldest first, and found by a hash of its key; whose slot is
 * whose is an array a shelf, by entry. Chunks and their free slots are lists for each size of block. Slots that no
 * block has are bounded by bytes: a chunk more is had for what gives way, and unused chunks are given back.
 */
#include "manager/tokens.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <omnikv/ring.h>

#include "core/types.h"
#include "crc32c.h"
#include "failpoint.h"
#include "manager/catalog.h"
#include "manager/catalog_shared.h"
#include "manager/index_shared.h"
#include "manager/meta.h"
#include "provider.h"

#define CHUNK_BYTES	(256u << 10)
#define BUCKETS		(1u << 12)
#define NOT_PENDING	UINT32_MAX

#define OKV_READ_ONCE(what)	__atomic_load_n(&(what), __ATOMIC_RELAXED)

/**
 * struct chunk - what is known of a struct okv_tokens_chunk without looking into it
 * @prev, @next: as the catalog links them
 * @free:        [@nr_free] numbers of slots; has room for [@nr_slots]
 */
struct chunk {
	struct chunk	*prev;
	struct chunk	*next;
	struct sizes	*sizes;
	uint64_t	off;
	uint32_t	nr_slots;
	uint32_t	nr_free;
	uint32_t	free[];
};

/** struct sizes - chunks of one size of slots, in order of place; those before @first have nothing free */
struct sizes {
	struct sizes	*next;
	struct chunk	**chunks;
	uint32_t	slot_tokens;
	uint32_t	nr_chunks;
	uint32_t	first;
	uint64_t	nr_free;
};

/* @off 0: not used */
struct pending {
	uint64_t		off;
	uint32_t		ns;
	uint32_t		next;		/* of its bucket */
	struct omnikv_key	key;
	struct sizes		*sizes;
};

/* Slots by entry; 0: it has none. */
struct owned {
	uint64_t	*offs;
	uint32_t	nr;
};

struct okv_tokens {
	struct omnikv_manager	*manager;
	struct sizes		*sizes;
	struct owned		owned[OKV_CATALOG_SHELVES_MAX];
	struct chunk		*chunks;
	uint64_t		idle_bytes;	/* of slots that no block has: free, or waiting */
	uint32_t		buckets[BUCKETS];
	/* Places in the ring, by their remainder: the next one, and that before which nothing waits. */
	uint64_t		next;
	uint64_t		oldest;
	struct pending		ring[OKV_TOKENS_PENDING_MAX];
};

static unsigned char *base_of(const struct okv_tokens *tokens)
{
	return okv_meta_base(okv_pool_catalog_meta(tokens->manager));
}

static struct okv_tokens_slot *slot_at(const struct okv_tokens *tokens, uint64_t off)
{
	return (struct okv_tokens_slot *)(base_of(tokens) + off);
}

/* Of what @slot has, or is to have, in its @fields: it is where others may write it. */
static uint32_t slot_crc(const struct okv_tokens_slot *fields, const struct okv_tokens_slot *slot, const struct omnikv_key *key)
{
	uint32_t head = okv_crc32c(fields, offsetof(struct okv_tokens_slot, crc));
	uint32_t ids = okv_crc32c(slot->ids, fields->nr_tokens * sizeof(slot->ids[0]));

	head = omnikv_crc32c_combine(head, ids, fields->nr_tokens * sizeof(slot->ids[0]));
	return omnikv_crc32c_combine(head, okv_crc32c(key, sizeof(*key)), sizeof(*key));
}

static uint32_t chunk_crc(const struct okv_tokens_chunk *chunk)
{
	return okv_crc32c(chunk, offsetof(struct okv_tokens_chunk, crc));
}

static size_t chunk_bytes(uint32_t nr_slots, uint32_t slot_tokens)
{
	return sizeof(struct okv_tokens_chunk) + nr_slots * okv_tokens_stride(slot_tokens);
}

/* ---- slots ---------------------------------------------------------------------------------- */

static struct sizes *sizes_get(struct okv_tokens *tokens, uint32_t slot_tokens)
{
	struct sizes *sizes;

	for (sizes = tokens->sizes; sizes; sizes = sizes->next)
		if (sizes->slot_tokens == slot_tokens)
			return sizes;
	sizes = calloc(1, sizeof(*sizes));
	if (!sizes)
		return NULL;
	sizes->slot_tokens = slot_tokens;
	sizes->next = tokens->sizes;
	tokens->sizes = sizes;
	return sizes;
}

/* The chunk that @off lies in, or would stand before it. */
static uint32_t chunk_from(const struct sizes *sizes, uint64_t off)
{
	uint32_t lo = 0, hi = sizes->nr_chunks;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (sizes->chunks[mid]->off <= off)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Listed behind @prev, with nothing free in it. */
static struct chunk *chunk_list(struct okv_tokens *tokens, struct sizes *sizes, struct chunk *prev, uint64_t off, uint32_t nr_slots)
{
	uint32_t at = chunk_from(sizes, off);
	struct chunk *chunk, **bigger;

	bigger = realloc(sizes->chunks, (sizes->nr_chunks + 1) * sizeof(struct chunk *));
	if (!bigger)
		return NULL;
	sizes->chunks = bigger;
	chunk = malloc(sizeof(*chunk) + nr_slots * sizeof(chunk->free[0]));
	if (!chunk)
		return NULL;
	*chunk = (struct chunk){
		.prev = prev, .next = prev ? prev->next : tokens->chunks, .sizes = sizes, .off = off, .nr_slots = nr_slots,
	};
	*(prev ? &prev->next : &tokens->chunks) = chunk;
	if (chunk->next)
		chunk->next->prev = chunk;
	memmove(&sizes->chunks[at + 1], &sizes->chunks[at], (sizes->nr_chunks - at) * sizeof(struct chunk *));
	sizes->chunks[at] = chunk;
	sizes->nr_chunks++;
	if (sizes->first > at)
		sizes->first = at;
	tokens->idle_bytes += nr_slots * okv_tokens_stride(sizes->slot_tokens);
	return chunk;
}

/* All of it is free: it goes back. */
static void chunk_end(struct okv_tokens *tokens, struct chunk *chunk)
{
	struct okv_tokens_chunk *before = chunk->prev ? (void *)(base_of(tokens) + chunk->prev->off) : NULL;
	uint64_t *link = before ? &before->next_off : okv_pool_catalog_tokens_off(tokens->manager);
	struct sizes *sizes = chunk->sizes;
	uint32_t at = chunk_from(sizes, chunk->off) - 1;

	OKV_ORDERED_STORE(link, chunk->next ? chunk->next->off : 0);
	(void)OKV_FAILPOINT("tokens.chunk_cut");
	okv_meta_free(okv_pool_catalog_meta(tokens->manager), base_of(tokens) + chunk->off,
		      chunk_bytes(chunk->nr_slots, sizes->slot_tokens));
	*(chunk->prev ? &chunk->prev->next : &tokens->chunks) = chunk->next;
	if (chunk->next)
		chunk->next->prev = chunk->prev;
	memmove(&sizes->chunks[at], &sizes->chunks[at + 1], (sizes->nr_chunks - at - 1) * sizeof(struct chunk *));
	sizes->nr_chunks--;
	sizes->nr_free -= chunk->nr_free;
	tokens->idle_bytes -= chunk->nr_slots * okv_tokens_stride(sizes->slot_tokens);
	free(chunk);
}

/* Would a chunk more be too much? */
static bool is_at_bound(const struct okv_tokens *tokens)
{
	return tokens->idle_bytes + CHUNK_BYTES > OKV_TOKENS_IDLE_BYTES;
}

/* Nobody's any more; whose it was is counted already. */
static struct chunk *slot_put(struct okv_tokens *tokens, struct sizes *sizes, uint64_t off)
{
	uint32_t at = chunk_from(sizes, off) - 1;
	struct chunk *chunk = sizes->chunks[at];

	OKV_ORDERED_STORE(&slot_at(tokens, off)->entry, OKV_ENTRY_NONE);
	chunk->free[chunk->nr_free++] =
		(uint32_t)((off - chunk->off - sizeof(struct okv_tokens_chunk)) / okv_tokens_stride(sizes->slot_tokens));
	sizes->nr_free++;
	if (sizes->first > at)
		sizes->first = at;
	return chunk;
}

static void slot_free(struct okv_tokens *tokens, struct sizes *sizes, uint64_t off)
{
	struct chunk *chunk = slot_put(tokens, sizes, off);

	if (chunk->nr_free == chunk->nr_slots && is_at_bound(tokens))
		chunk_end(tokens, chunk);
}

/* There is a free one. */
static uint64_t slot_take(struct sizes *sizes)
{
	struct chunk *chunk;

	while (!sizes->chunks[sizes->first]->nr_free)
		sizes->first++;
	chunk = sizes->chunks[sizes->first];
	sizes->nr_free--;
	return chunk->off + sizeof(struct okv_tokens_chunk) +
	       chunk->free[--chunk->nr_free] * okv_tokens_stride(sizes->slot_tokens);
}

static int chunk_add(struct okv_tokens *tokens, struct sizes *sizes)
{
	size_t stride = okv_tokens_stride(sizes->slot_tokens);
	uint32_t nr = (uint32_t)((CHUNK_BYTES - sizeof(struct okv_tokens_chunk)) / stride);
	uint64_t *head = okv_pool_catalog_tokens_off(tokens->manager), off;
	struct okv_tokens_chunk *chunk;

	if (!head)
		return -ENOMEM;
	chunk = okv_meta_alloc(okv_pool_catalog_meta(tokens->manager), chunk_bytes(nr, sizes->slot_tokens));
	if (!chunk)
		return -ENOMEM;
	off = (uint64_t)((unsigned char *)chunk - base_of(tokens));
	if (!chunk_list(tokens, sizes, NULL, off, nr)) {
		okv_meta_free(okv_pool_catalog_meta(tokens->manager), chunk, chunk_bytes(nr, sizes->slot_tokens));
		return -ENOMEM;
	}
	*chunk = (struct okv_tokens_chunk){
		.magic = OKV_TOKENS_MAGIC, .next_off = *head, .nr_slots = nr, .slot_tokens = sizes->slot_tokens,
	};
	chunk->crc = chunk_crc(chunk);
	for (uint32_t i = nr; i-- > 0;)
		slot_put(tokens, sizes, off + sizeof(*chunk) + i * stride);
	(void)OKV_FAILPOINT("tokens.chunk_filled");
	OKV_ORDERED_STORE(head, off);
	return 0;
}

/* ---- whose slot ----------------------------------------------------------------------------- */

static uint64_t *owned_slot(const struct okv_tokens *tokens, const struct omnikv_space *space, uint32_t entry)
{
	const struct owned *owned = &tokens->owned[space->shelf->slot];

	return entry < owned->nr ? &owned->offs[entry] : NULL;
}

static int owned_reserve(struct okv_tokens *tokens, const struct omnikv_space *space, uint32_t entry)
{
	struct owned *owned = &tokens->owned[space->shelf->slot];
	uint32_t more = owned->nr ? owned->nr : 1024;
	uint64_t *offs;

	if (entry < owned->nr)
		return 0;
	while (more <= entry)
		more = more > UINT32_MAX / 2 ? UINT32_MAX : 2 * more;
	offs = realloc(owned->offs, more * sizeof(*offs));
	if (!offs)
		return -ENOMEM;
	memset(offs + owned->nr, 0, (more - owned->nr) * sizeof(*offs));
	owned->offs = offs;
	owned->nr = more;
	return 0;
}

/* The slot, which is filled, is this block's from now on. */
static void slot_own(struct okv_tokens *tokens, const struct omnikv_space *space, uint32_t entry,
		     const struct omnikv_key *key, struct sizes *sizes, uint64_t off)
{
	const struct okv_tokens_slot fields = { .ns = space->id, .entry = entry, .nr_tokens = sizes->slot_tokens };
	struct okv_tokens_slot *slot = slot_at(tokens, off);
	uint64_t *owned;

	if (owned_reserve(tokens, space, entry)) {
		slot_free(tokens, sizes, off);
		return;
	}
	owned = owned_slot(tokens, space, entry);
	if (*owned) {
		slot_free(tokens, sizes, off);
		return;
	}
	*owned = off;
	tokens->idle_bytes -= okv_tokens_stride(sizes->slot_tokens);
	OKV_ORDERED_STORE(&slot->entry, entry);
	(void)OKV_FAILPOINT("tokens.half_owned");
	slot->crc = slot_crc(&fields, slot, key);
}

/* ---- what waits ----------------------------------------------------------------------------- */

static uint32_t *bucket_of(struct okv_tokens *tokens, uint32_t ns, const struct omnikv_key *key)
{
	return &tokens->buckets[(okv_crc32c(key, sizeof(*key)) ^ ns) % BUCKETS];
}

/* Its place in the ring, or NOT_PENDING; out of its bucket in any case. */
static uint32_t pending_take(struct okv_tokens *tokens, uint32_t ns, const struct omnikv_key *key)
{
	uint32_t *at = bucket_of(tokens, ns, key);

	for (; *at != NOT_PENDING; at = &tokens->ring[*at].next) {
		uint32_t i = *at;

		if (tokens->ring[i].ns != ns || memcmp(&tokens->ring[i].key, key, sizeof(*key)))
			continue;
		*at = tokens->ring[i].next;
		return i;
	}
	return NOT_PENDING;
}

static void pending_drop(struct okv_tokens *tokens, uint32_t i)
{
	struct pending *pending = &tokens->ring[i];

	if (!pending->off)
		return;
	pending_take(tokens, pending->ns, &pending->key);
	slot_free(tokens, pending->sizes, pending->off);
	pending->off = 0;
}

static void pending_add(struct okv_tokens *tokens, uint32_t ns, const struct omnikv_key *key, struct sizes *sizes, uint64_t off)
{
	uint32_t i = pending_take(tokens, ns, key), *bucket;

	if (i != NOT_PENDING) {
		slot_free(tokens, tokens->ring[i].sizes, tokens->ring[i].off);
	} else {
		i = tokens->next++ % OKV_TOKENS_PENDING_MAX;
		pending_drop(tokens, i);
		if (tokens->oldest + OKV_TOKENS_PENDING_MAX < tokens->next)
			tokens->oldest = tokens->next - OKV_TOKENS_PENDING_MAX;
	}
	bucket = bucket_of(tokens, ns, key);
	tokens->ring[i] = (struct pending){ .off = off, .ns = ns, .key = *key, .sizes = sizes, .next = *bucket };
	*bucket = i;
}

/* false: nothing waits. */
static bool pending_drop_oldest(struct okv_tokens *tokens)
{
	bool has_dropped = false;

	while (!has_dropped && tokens->oldest < tokens->next) {
		uint32_t i = tokens->oldest++ % OKV_TOKENS_PENDING_MAX;

		has_dropped = tokens->ring[i].off != 0;
		pending_drop(tokens, i);
	}
	return has_dropped;
}

/* A slot of this size is free: at the bound for what waits longest, or lies unused. */
static int slot_reserve(struct okv_tokens *tokens, struct sizes *sizes)
{
	struct chunk *chunk, *next;

	for (chunk = sizes->nr_free ? NULL : tokens->chunks; chunk && is_at_bound(tokens); chunk = next) {
		next = chunk->next;
		if (chunk->nr_free == chunk->nr_slots)
			chunk_end(tokens, chunk);
	}
	while (!sizes->nr_free && is_at_bound(tokens) && pending_drop_oldest(tokens))
		;
	return sizes->nr_free ? 0 : chunk_add(tokens, sizes);
}

/* ---- the outside ---------------------------------------------------------------------------- */

int okv_tokens_create(struct omnikv_manager *manager, struct okv_tokens **out)
{
	struct okv_tokens *tokens;

	if (!manager->pool->is_lasting)
		return -EOPNOTSUPP;
	tokens = calloc(1, sizeof(*tokens));
	if (!tokens)
		return -ENOMEM;
	tokens->manager = manager;
	for (uint32_t i = 0; i < BUCKETS; i++)
		tokens->buckets[i] = NOT_PENDING;
	*out = tokens;
	return 0;
}

void okv_tokens_destroy(struct okv_tokens *tokens)
{
	struct sizes *sizes;

	if (!tokens)
		return;
	while ((sizes = tokens->sizes)) {
		tokens->sizes = sizes->next;
		for (uint32_t i = 0; i < sizes->nr_chunks; i++)
			free(sizes->chunks[i]);
		free(sizes->chunks);
		free(sizes);
	}
	for (uint32_t i = 0; i < OKV_CATALOG_SHELVES_MAX; i++)
		free(tokens->owned[i].offs);
	free(tokens);
}

int okv_tokens_note(struct okv_tokens *tokens, const struct omnikv_space *space, const struct omnikv_key *keys,
		    size_t nr_keys, const uint32_t *ids)
{
	uint32_t nr_tokens = space->plan->plan.block_tokens;
	struct okv_index *index = space->shelf->index;
	struct sizes *sizes;

	if (nr_tokens > OKV_TOKENS_BLOCK_MAX)
		return 0;
	sizes = sizes_get(tokens, nr_tokens);
	if (!sizes)
		return -ENOMEM;
	for (size_t i = 0; i < nr_keys; i++, ids += nr_tokens) {
		uint32_t entry = okv_index_find(index, space->id, &keys[i]);
		const uint32_t *there;
		struct okv_tokens_slot *slot;
		uint64_t off;
		int ret;

		if (entry != OKV_ENTRY_NONE && okv_tokens_of(tokens, space, entry, &there))
			continue;
		ret = slot_reserve(tokens, sizes);
		if (ret)
			return ret;
		off = slot_take(sizes);
		slot = slot_at(tokens, off);
		slot->ns = space->id;
		slot->nr_tokens = nr_tokens;
		memcpy(slot->ids, ids, nr_tokens * sizeof(*ids));
		/* Making room may have evicted it. */
		entry = okv_index_find(index, space->id, &keys[i]);
		if (entry == OKV_ENTRY_NONE)
			pending_add(tokens, space->id, &keys[i], sizes, off);
		else
			slot_own(tokens, space, entry, &keys[i], sizes, off);
	}
	return 0;
}

void okv_tokens_settle(struct okv_tokens *tokens, const struct omnikv_space *space, uint32_t entry)
{
	struct okv_index_info info;
	uint32_t i;

	if (okv_index_get(space->shelf->index, entry, &info) || info.is_partial)
		return;
	i = pending_take(tokens, space->id, &info.key);
	if (i == NOT_PENDING)
		return;
	slot_own(tokens, space, entry, &info.key, tokens->ring[i].sizes, tokens->ring[i].off);
	tokens->ring[i].off = 0;
}

void okv_tokens_end_space(struct okv_tokens *tokens, const struct omnikv_space *space)
{
	for (uint32_t i = 0; i < OKV_TOKENS_PENDING_MAX; i++)
		if (tokens->ring[i].off && tokens->ring[i].ns == space->id)
			pending_drop(tokens, i);
}

void okv_tokens_forget(struct okv_tokens *tokens, const struct omnikv_space *space, uint32_t entry)
{
	uint64_t *owned = owned_slot(tokens, space, entry);
	struct sizes *sizes = owned && *owned ? sizes_get(tokens, space->plan->plan.block_tokens) : NULL;

	if (!sizes)
		return;
	tokens->idle_bytes += okv_tokens_stride(sizes->slot_tokens);
	slot_free(tokens, sizes, *owned);
	*owned = 0;
}

uint32_t okv_tokens_of(const struct okv_tokens *tokens, const struct omnikv_space *space, uint32_t entry,
		       const uint32_t **ids)
{
	const uint64_t *owned = owned_slot(tokens, space, entry);

	if (!owned || !*owned)
		return 0;
	*ids = slot_at(tokens, *owned)->ids;
	return space->plan->plan.block_tokens;
}

/* ---- after a restart ------------------------------------------------------------------------ */

/*
 * The block that this slot's ids are of, and its @entry; NULL: none that there is. Others that have the pool may write
 * the slot meanwhile: each field counts as it was once.
 */
static const struct omnikv_space *slot_space(const struct okv_tokens *tokens, const struct okv_tokens_slot *slot,
					     uint32_t slot_tokens, uint32_t *entry)
{
	const struct omnikv_manager *manager = tokens->manager;
	const struct okv_tokens_slot fields = {
		.ns = OKV_READ_ONCE(slot->ns), .entry = OKV_READ_ONCE(slot->entry),
		.nr_tokens = OKV_READ_ONCE(slot->nr_tokens), .crc = OKV_READ_ONCE(slot->crc),
	};
	const struct omnikv_space *space = fields.ns < manager->nr_ids ? manager->space_of_id[fields.ns] : NULL;
	struct okv_index_info info;

	if (fields.entry == OKV_ENTRY_NONE || !space || fields.nr_tokens != slot_tokens ||
	    space->plan->plan.block_tokens != slot_tokens || okv_index_get(space->shelf->index, fields.entry, &info) ||
	    info.ns != fields.ns || info.is_partial || info.is_dropped)
		return NULL;
	*entry = fields.entry;
	return fields.crc == slot_crc(&fields, slot, &info.key) ? space : NULL;
}

/* It is linked behind @prev, which it becomes. */
static int chunk_load(struct okv_tokens *tokens, const struct okv_tokens_chunk *chunk, uint64_t off, struct chunk **prev)
{
	size_t stride = okv_tokens_stride(chunk->slot_tokens);
	struct sizes *sizes = sizes_get(tokens, chunk->slot_tokens);
	int ret;

	*prev = sizes ? chunk_list(tokens, sizes, *prev, off, chunk->nr_slots) : NULL;
	ret = *prev ? 0 : -ENOMEM;
	for (uint32_t i = 0; i < chunk->nr_slots && !ret; i++) {
		uint64_t at = off + sizeof(*chunk) + i * stride;
		const struct omnikv_space *space;
		uint32_t entry = OKV_ENTRY_NONE;

		space = slot_space(tokens, slot_at(tokens, at), chunk->slot_tokens, &entry);
		ret = space ? owned_reserve(tokens, space, entry) : 0;
		if (!ret && space && !*owned_slot(tokens, space, entry)) {
			*owned_slot(tokens, space, entry) = at;
			tokens->idle_bytes -= stride;
		} else if (!ret) {
			slot_put(tokens, sizes, at);
		}
	}
	return ret;
}

int okv_tokens_load(struct okv_tokens *tokens)
{
	struct okv_meta *meta = okv_pool_catalog_meta(tokens->manager);
	uint64_t *at = okv_pool_catalog_tokens_off(tokens->manager);
	struct chunk *prev = NULL;

	/* A damaged link ends the list: what is behind it is swept. A circle cannot be claimed twice. */
	while (at && *at) {
		uint64_t off = OKV_READ_ONCE(*at);
		const struct okv_tokens_chunk *shared = okv_meta_peek(meta, off, sizeof(*shared));
		struct okv_tokens_chunk chunk;
		int ret;

		if (shared)
			chunk = *shared;
		if (!shared || chunk.magic != OKV_TOKENS_MAGIC || chunk.crc != chunk_crc(&chunk) || !chunk.slot_tokens ||
		    chunk.slot_tokens > OKV_TOKENS_BLOCK_MAX || chunk.nr_slots > CHUNK_BYTES ||
		    !okv_meta_claim(meta, off, chunk_bytes(chunk.nr_slots, chunk.slot_tokens))) {
			OKV_ORDERED_STORE(at, 0);
			break;
		}
		ret = chunk_load(tokens, &chunk, off, &prev);
		if (ret)
			return ret;
		at = &((struct okv_tokens_chunk *)(base_of(tokens) + off))->next_off;
	}
	return 0;
}

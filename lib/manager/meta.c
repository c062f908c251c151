// SPDX-License-Identifier: MIT
/*
 * Pieces of META extents: first fit over sorted lists. There are a handful of extents and a few pieces for
 * every 32,768 blocks, and allocations are as rare as new namespaces, so lists are searched from the start.
 */
#include "manager/meta.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <omnikv/window.h>

struct piece {
	uint64_t	off;	/* from the pool's base on */
	uint64_t	bytes;
};

/* @is_found: it was there at the beginning, and holds what may yet be claimed */
struct meta_extent {
	struct omnikv_extent	ext;
	bool			is_found;
};

struct okv_meta {
	struct omnikv_client	*client;
	okv_meta_room_fn	room;
	void			*opaque;
	struct omnikv_window	*window;	/* NULL: not fenced */
	unsigned char		*base;
	uint64_t		granule_bytes;
	struct meta_extent	*extents;	/* in order of place */
	uint32_t		nr_extents;
	uint32_t		max_extents;
	struct piece		*pieces;	/* in order of place; in use */
	uint32_t		nr_pieces;
	uint32_t		max_pieces;
	uint64_t		nr_granules;
};

/* Room for one element more in a list. */
static int list_reserve(void **list, uint32_t nr, uint32_t *max, size_t elem_bytes)
{
	uint32_t more = *max ? 2 * *max : 16;
	void *new;

	if (nr < *max)
		return 0;
	new = realloc(*list, more * elem_bytes);
	if (!new)
		return -ENOMEM;
	*list = new;
	*max = more;
	return 0;
}

static uint64_t extent_off(const struct okv_meta *meta, const struct omnikv_extent *ext)
{
	return ext->granule * meta->granule_bytes;
}

static uint64_t extent_bytes(const struct okv_meta *meta, const struct omnikv_extent *ext)
{
	return ext->nr_granules * meta->granule_bytes;
}

static int extent_add(struct okv_meta *meta, const struct omnikv_extent *ext, bool is_found)
{
	const struct omnikv_bind bind = {
		.extent = *ext, .window_off = extent_off(meta, ext), .bytes = extent_bytes(meta, ext),
	};
	uint32_t at;
	int ret;

	ret = list_reserve((void **)&meta->extents, meta->nr_extents, &meta->max_extents, sizeof(*meta->extents));
	if (!ret && meta->window)
		ret = omnikv_window_bind(meta->window, &bind, 1, NULL);
	if (ret)
		return ret;
	for (at = meta->nr_extents; at && meta->extents[at - 1].ext.granule > ext->granule; at--)
		meta->extents[at] = meta->extents[at - 1];
	meta->extents[at] = (struct meta_extent){ .ext = *ext, .is_found = is_found };
	meta->nr_extents++;
	meta->nr_granules += ext->nr_granules;
	return 0;
}

/* What the pool does not take back stays META, and the next manager tries again. */
static void extent_drop(struct okv_meta *meta, uint32_t at)
{
	const struct omnikv_extent *ext = &meta->extents[at].ext;

	meta->nr_granules -= ext->nr_granules;
	if (meta->window)
		(void)omnikv_window_unbind(meta->window, extent_off(meta, ext), extent_bytes(meta, ext));
	(void)omnikv_extent_free(meta->client, ext, 1);
	memmove(&meta->extents[at], &meta->extents[at + 1], (meta->nr_extents - at - 1) * sizeof(*meta->extents));
	meta->nr_extents--;
}

/* The first piece that ends behind @off. */
static uint32_t piece_from(const struct okv_meta *meta, uint64_t off)
{
	uint32_t lo = 0, hi = meta->nr_pieces;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (meta->pieces[mid].off + meta->pieces[mid].bytes <= off)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* There is room for it in the list. */
static void piece_add(struct okv_meta *meta, uint64_t off, uint64_t bytes)
{
	uint32_t at = piece_from(meta, off);

	memmove(&meta->pieces[at + 1], &meta->pieces[at], (meta->nr_pieces - at) * sizeof(*meta->pieces));
	meta->pieces[at] = (struct piece){ off, bytes };
	meta->nr_pieces++;
}

static bool extent_has_pieces(const struct okv_meta *meta, const struct omnikv_extent *ext)
{
	uint32_t at = piece_from(meta, extent_off(meta, ext));

	return at < meta->nr_pieces && meta->pieces[at].off < extent_off(meta, ext) + extent_bytes(meta, ext);
}

/* At the pool's offsets, so that they mean the same in it. */
static int fence(struct okv_meta *meta, struct omnikv_pool *pool)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	int ret;

	ret = omnikv_pool_info(pool, &info);
	if (!ret)
		ret = omnikv_window_create(meta->client, info.nr_granules * info.granule_bytes, OMNIKV_WINDOW_F_RW, &meta->window);
	if (!ret)
		meta->base = omnikv_window_base(meta->window);
	return ret;
}

int okv_meta_open(struct omnikv_client *client, bool is_fenced, okv_meta_room_fn room, void *opaque, struct okv_meta **out)
{
	struct omnikv_pool *pool = omnikv_client_pool(client);
	struct omnikv_extent exts[64];
	struct okv_meta *meta;
	uint64_t from = 0;
	int ret = 0;

	meta = calloc(1, sizeof(*meta));
	if (!meta)
		return -ENOMEM;
	meta->client = client;
	meta->room = room;
	meta->opaque = opaque;
	meta->base = omnikv_pool_base(pool);
	meta->granule_bytes = omnikv_pool_granule_bytes(pool);
	if (is_fenced)
		ret = fence(meta, pool);
	while (from != UINT64_MAX && !ret) {
		int64_t nr = omnikv_extent_list(client, 1u << OMNIKV_EXTENT_META, &from, exts, sizeof(exts) / sizeof(exts[0]));

		ret = nr < 0 ? (int)nr : 0;
		for (int64_t i = 0; i < nr && !ret; i++)
			ret = extent_add(meta, &exts[i], true);
	}
	if (ret) {
		okv_meta_close(meta);
		return ret;
	}
	*out = meta;
	return 0;
}

void okv_meta_close(struct okv_meta *meta)
{
	if (!meta)
		return;
	omnikv_window_destroy(meta->window);
	free(meta->extents);
	free(meta->pieces);
	free(meta);
}

/* Offset 0 says "none" elsewhere: no piece lies there. */
static uint64_t first_off(const struct okv_meta *meta, const struct omnikv_extent *ext)
{
	uint64_t off = extent_off(meta, ext);

	return off ? off : OKV_META_ALIGN;
}

/* A gap of an extent that can be used; false: none. */
static bool find_gap(const struct okv_meta *meta, uint64_t bytes, uint64_t *off)
{
	for (uint32_t i = 0; i < meta->nr_extents; i++) {
		const struct omnikv_extent *ext = &meta->extents[i].ext;
		uint64_t at = first_off(meta, ext), end = extent_off(meta, ext) + extent_bytes(meta, ext);

		if (meta->extents[i].is_found)
			continue;
		for (uint32_t p = piece_from(meta, at);; p++) {
			uint64_t stop = p < meta->nr_pieces && meta->pieces[p].off < end ? meta->pieces[p].off : end;

			if (stop - at >= bytes) {
				*off = at;
				return true;
			}
			if (stop == end)
				break;
			at = (stop + meta->pieces[p].bytes + OKV_META_ALIGN - 1) & ~(uint64_t)(OKV_META_ALIGN - 1);
			if (at >= end)
				break;
		}
	}
	return false;
}

/* Another extent; more and more room is made, as long as that yields something. */
static int extent_alloc(struct okv_meta *meta, uint64_t bytes, struct omnikv_extent *ext)
{
	uint64_t nr = (bytes + meta->granule_bytes - 1) / meta->granule_bytes, step = nr;
	int ret;

	if (nr > UINT32_MAX)
		return -ENOSPC;
	for (;; step *= 2) {
		ret = omnikv_extent_alloc(meta->client, (uint32_t)nr, 1, NULL, OMNIKV_ALLOC_F_META, ext);
		if (ret != -ENOSPC || !meta->room(meta->opaque, step))
			return ret;
	}
}

void *okv_meta_alloc(struct okv_meta *meta, size_t bytes)
{
	struct omnikv_extent ext;
	uint64_t off;

	if (!bytes || list_reserve((void **)&meta->pieces, meta->nr_pieces, &meta->max_pieces, sizeof(*meta->pieces)))
		return NULL;
	/* An extent at offset 0 may be too short by what is left out there. */
	while (!find_gap(meta, bytes, &off)) {
		if (extent_alloc(meta, bytes, &ext))
			return NULL;
		if (extent_add(meta, &ext, false)) {
			(void)omnikv_extent_free(meta->client, &ext, 1);
			return NULL;
		}
	}
	memset(meta->base + off, 0, bytes);
	piece_add(meta, off, bytes);
	return meta->base + off;
}

void okv_meta_free(struct okv_meta *meta, void *mem, size_t bytes)
{
	uint64_t off = (uint64_t)((unsigned char *)mem - meta->base);
	uint32_t at = piece_from(meta, off);

	if (at == meta->nr_pieces || meta->pieces[at].off != off || meta->pieces[at].bytes != bytes)
		return;
	memmove(&meta->pieces[at], &meta->pieces[at + 1], (meta->nr_pieces - at - 1) * sizeof(*meta->pieces));
	meta->nr_pieces--;
	for (uint32_t i = 0; i < meta->nr_extents; i++) {
		const struct omnikv_extent *ext = &meta->extents[i].ext;

		if (off < extent_off(meta, ext) || off >= extent_off(meta, ext) + extent_bytes(meta, ext))
			continue;
		if (!meta->extents[i].is_found && !extent_has_pieces(meta, ext))
			extent_drop(meta, i);
		break;
	}
}

const void *okv_meta_peek(const struct okv_meta *meta, uint64_t off, size_t bytes)
{
	if (!bytes || off % OKV_META_ALIGN)
		return NULL;
	for (uint32_t i = 0; i < meta->nr_extents; i++) {
		const struct omnikv_extent *ext = &meta->extents[i].ext;
		uint64_t first = extent_off(meta, ext), all = extent_bytes(meta, ext);

		if (off >= first && off - first < all)
			return bytes <= all - (off - first) ? meta->base + off : NULL;
	}
	return NULL;
}

void *okv_meta_claim(struct okv_meta *meta, uint64_t off, size_t bytes)
{
	uint32_t at;

	if (!okv_meta_peek(meta, off, bytes))
		return NULL;
	at = piece_from(meta, off);
	if (at < meta->nr_pieces && meta->pieces[at].off < off + bytes)
		return NULL;
	if (list_reserve((void **)&meta->pieces, meta->nr_pieces, &meta->max_pieces, sizeof(*meta->pieces)))
		return NULL;
	piece_add(meta, off, bytes);
	return meta->base + off;
}

void okv_meta_sweep(struct okv_meta *meta)
{
	for (uint32_t i = meta->nr_extents; i-- > 0;) {
		meta->extents[i].is_found = false;
		if (!extent_has_pieces(meta, &meta->extents[i].ext))
			extent_drop(meta, i);
	}
}

bool okv_meta_has(const struct okv_meta *meta, uint64_t granule)
{
	for (uint32_t i = 0; i < meta->nr_extents; i++)
		if (granule - meta->extents[i].ext.granule < meta->extents[i].ext.nr_granules)
			return true;
	return false;
}

uint64_t okv_meta_granules(const struct okv_meta *meta)
{
	return meta->nr_granules;
}

unsigned char *okv_meta_base(const struct okv_meta *meta)
{
	return meta->base;
}

uint64_t okv_meta_extent(const struct okv_meta *meta, uint32_t i)
{
	return i < meta->nr_extents ? first_off(meta, &meta->extents[i].ext) : 0;
}

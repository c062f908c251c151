// SPDX-License-Identifier: GPL-2.0-only
/*
 * What one degree of tensor parallelism wrote into the pool is read, and written, at another, by rings, on every device:
 * degrees x layouts, sharded by heads and by elements, beside planes that every rank has whole. What is right is worked
 * out from the whole tensor of the model.
 */
#include "../harness/ring_fixture.h"

#include <errno.h>
#include <omnikv/reshard.h>

#include "crc32c.h"

#define NR_DEGREES	4
#define BLOCK_TOKENS	16u
#define NR_BLOCKS	3u
#define NR_TOKENS	(2 * BLOCK_TOKENS + 7)
#define NR_LAYERS	2u
#define UNTOUCHED	0xa5
#define PIECES_MAX	4096u

static const uint32_t degrees[NR_DEGREES] = { 1, 2, 4, 8 };

struct shape {
	const char		*name;
	uint32_t		nr_planes;
	struct omnikv_plane	planes[3];
};

#define HEADS	OMNIKV_SHARD_HEADS
#define ELEMS	OMNIKV_SHARD_ELEMS
#define WHOLE	OMNIKV_SHARD_NONE

static const struct shape shapes[] = {
	{ "heads of 32 bytes", 2, { { OMNIKV_PLANE_K, OMNIKV_DTYPE_BF16, 8, 16, HEADS, false },
				    { OMNIKV_PLANE_V, OMNIKV_DTYPE_BF16, 8, 16, HEADS, false } } },
	{ "heads of 3 bytes", 2, { { OMNIKV_PLANE_K, OMNIKV_DTYPE_U8, 8, 3, HEADS, false },
				   { OMNIKV_PLANE_V, OMNIKV_DTYPE_U8, 16, 3, HEADS, false } } },
	{ "elements", 2, { { OMNIKV_PLANE_K, OMNIKV_DTYPE_BF16, 2, 24, ELEMS, false },
			   { OMNIKV_PLANE_V, OMNIKV_DTYPE_U8, 3, 40, ELEMS, false } } },
	{ "a latent that all have", 1, { { OMNIKV_PLANE_LATENT, OMNIKV_DTYPE_BF16, 1, 72, WHOLE, true } } },
	{ "heads, elements and scales", 3, { { OMNIKV_PLANE_K, OMNIKV_DTYPE_F32, 8, 4, HEADS, false },
					     { OMNIKV_PLANE_V, OMNIKV_DTYPE_F8_E4M3, 2, 16, ELEMS, false },
					     { OMNIKV_PLANE_SCALE, OMNIKV_DTYPE_F32, 1, 5, WHOLE, false } } },
};

#define NR_SHAPES	(sizeof(shapes) / sizeof(shapes[0]))

static void layout_of(const struct shape *shape, struct omnikv_layout *layout)
{
	struct omnikv_group *group = &layout->groups[0];
	uint32_t i;

	memset(layout, 0, sizeof(*layout));
	strcpy(layout->name, "shards");
	layout->nr_layers = NR_LAYERS;
	layout->nr_groups = 1;
	group->kind = shape->planes[0].is_replicated ? OMNIKV_GROUP_MLA_LATENT : OMNIKV_GROUP_FULL;
	group->nr_layers = NR_LAYERS;
	group->nr_planes = shape->nr_planes;
	group->tokens_per_entry = 1;
	group->residency = OMNIKV_RESIDENCY_RING;
	for (i = 0; i < NR_LAYERS; i++) {
		group->layers[i] = (uint16_t)i;
		group->alias_of[i] = -1;
	}
	memcpy(group->planes, shape->planes, sizeof(shape->planes));
}

/* ---- what is right ------------------------------------------------------------------------ */

static uint32_t entry_bytes(const struct omnikv_plane *plane)
{
	return plane->heads * plane->elems * omnikv_dtype_bytes(plane->dtype);
}

static uint32_t shard_bytes(const struct omnikv_plane *plane, uint32_t nr)
{
	return plane->shard_axis == WHOLE ? entry_bytes(plane) : entry_bytes(plane) / nr;
}

/* Where byte @i of an entry of rank @rank is in the whole entry. */
static uint32_t whole_byte(const struct omnikv_plane *plane, uint32_t nr, uint32_t rank, uint32_t i)
{
	uint32_t head_bytes = plane->elems * omnikv_dtype_bytes(plane->dtype), part = head_bytes / nr;

	if (plane->shard_axis == WHOLE)
		return i;
	if (plane->shard_axis == HEADS)
		return rank * shard_bytes(plane, nr) + i;
	return i / part * head_bytes + rank * part + i % part;
}

static uint8_t right(uint32_t layer, uint32_t plane, uint32_t token, uint32_t i)
{
	return fixture_byte((layer * 3 + plane) * NR_TOKENS + token, i);
}

/* ---- one pair of degrees ------------------------------------------------------------------ */

struct run {
	struct ring_fixture	f;
	const struct shape	*shape;
	uint32_t		nr_host;
	uint32_t		nr_device;
	struct omnikv_plan	plan;
	struct omnikv_extent	exts[8][NR_BLOCKS];	/* [rank of the pool] */
	uint64_t		plane_off[NR_LAYERS][3];
	uint64_t		hbm_bytes;
};

static uint32_t tokens_in(uint32_t block)
{
	return block + 1 < NR_BLOCKS ? BLOCK_TOKENS : NR_TOKENS - block * BLOCK_TOKENS;
}

/* Fill, or compare, all of a shard's extents. */
static void pool_shard(struct run *r, uint32_t rank, bool is_filled)
{
	const struct omnikv_group_plan *gp = &r->plan.groups[0];
	uint32_t b, l, p, t, i;

	for (b = 0; b < NR_BLOCKS; b++) {
		uint8_t *base = omnikv_pool_addr(r->f.pool, &r->exts[rank][b]), *copy = malloc(gp->extent_bytes);

		memset(copy, UNTOUCHED, gp->extent_bytes);
		for (l = 0; l < NR_LAYERS; l++) {
			for (p = 0; p < r->shape->nr_planes; p++) {
				const struct omnikv_plane *plane = &r->shape->planes[p];
				uint32_t bytes = shard_bytes(plane, r->nr_host);

				assert_int_equal(gp->row_bytes[p], bytes);
				for (t = 0; t < tokens_in(b); t++) {
					uint8_t *row = copy + l * gp->piece_bytes + gp->plane_off[p] + t * bytes;

					for (i = 0; i < bytes; i++)
						row[i] = right(l, p, b * BLOCK_TOKENS + t, whole_byte(plane, r->nr_host, rank, i));
				}
			}
		}
		if (is_filled)
			memcpy(base, copy, gp->extent_bytes);
		else
			assert_memory_equal(base, copy, gp->extent_bytes);
		free(copy);
	}
}

static void device_rank(struct run *r, uint32_t rank, uint8_t *base, bool is_filled)
{
	uint8_t *copy = malloc(r->hbm_bytes);
	uint32_t l, p, t, i;

	memset(copy, UNTOUCHED, r->hbm_bytes);
	for (l = 0; l < NR_LAYERS; l++) {
		for (p = 0; p < r->shape->nr_planes; p++) {
			const struct omnikv_plane *plane = &r->shape->planes[p];
			uint32_t bytes = shard_bytes(plane, r->nr_device);

			for (t = 0; t < NR_TOKENS; t++) {
				for (i = 0; i < bytes; i++)
					copy[r->plane_off[l][p] + t * bytes + i] =
						right(l, p, t, whole_byte(plane, r->nr_device, rank, i));
			}
		}
	}
	if (is_filled)
		memcpy(base, copy, r->hbm_bytes);
	else
		assert_memory_equal(base, copy, r->hbm_bytes);
	free(copy);
}

/* All that the device's rank @rank shares with the pool's shards @first to @end - 1. */
static uint32_t pieces_of(struct run *r, uint32_t rank, uint32_t first, uint32_t end, struct omnikv_piece *pieces,
			  struct omnikv_rows *rows)
{
	const struct omnikv_rank device = { rank, r->nr_device };
	uint32_t nr = 0, h, l, p, b;

	for (h = first; h < end; h++) {
		const struct omnikv_rank host = { h, r->nr_host };

		for (p = 0; p < r->shape->nr_planes; p++) {
			struct omnikv_slice slice;
			int ret = omnikv_slice_find(&r->plan, 0, p, &host, &device, &slice, NULL);

			assert_true(ret == 0 || ret == 1);
			for (l = 0; ret && l < NR_LAYERS; l++) {
				for (b = 0; b < NR_BLOCKS; b++, nr++) {
					assert_true(nr < PIECES_MAX);
					omnikv_slice_piece(&slice, &r->exts[h][b], l * r->plan.groups[0].piece_bytes, 0, r->plane_off[l][p],
							   b * BLOCK_TOKENS, tokens_in(b), &pieces[nr], &rows[nr]);
				}
			}
		}
	}
	return nr;
}

/* The sum of what a piece moves, from the device's side. */
static uint32_t sum_of(const struct omnikv_piece *piece, const struct omnikv_rows *rows, const uint8_t *base)
{
	uint64_t off = 0, row = rows->slice_bytes ? rows->slice_bytes : piece->bytes, at = piece->device_off;
	uint32_t crc = 0;

	for (; off < piece->bytes; off += row, at += rows->device_row_bytes)
		crc = okv_crc32c_extend(crc, base + at, row);
	return crc;
}

static void transfer(struct run *r, uint8_t opcode, struct omnikv_hbm *hbm, const struct omnikv_piece *pieces,
		     const struct omnikv_rows *rows, uint32_t nr)
{
	uint32_t *crc = calloc(PIECES_MAX, sizeof(*crc)), i;
	struct omnikv_sqe *sqe = fixture_sqe(&r->f, 1);
	uint64_t bytes = 0;

	omnikv_prep_load(sqe, hbm, pieces, nr);
	sqe->opcode = opcode;
	sqe->rows = rows;
	sqe->crc = crc;
	for (i = 0; i < nr; i++)
		bytes += pieces[i].bytes;
	fixture_submit(&r->f);
	fixture_expect(&r->f, 1, (int64_t)bytes);
	for (i = 0; i < nr; i++)
		assert_int_equal(crc[i], sum_of(&pieces[i], &rows[i], omnikv_hbm_ptr(hbm)));
	free(crc);
}

static void pair(struct run *r, const struct shape *shape, uint32_t nr_host, uint32_t nr_device)
{
	struct omnikv_plan_config config = { .size = sizeof(config), .block_tokens = BLOCK_TOKENS, .granule_bytes = 4096 };
	struct omnikv_piece *pieces = calloc(PIECES_MAX, sizeof(*pieces));
	struct omnikv_rows *rows = calloc(PIECES_MAX, sizeof(*rows));
	struct omnikv_layout *whole = malloc(sizeof(*whole)), *shard = malloc(sizeof(*shard));
	struct omnikv_hbm *hbms[8];
	struct omnikv_error err = { "" };
	uint32_t h, d, l, p, nr;
	uint64_t moved = 0;

	r->shape = shape;
	r->nr_host = nr_host;
	r->nr_device = nr_device;
	layout_of(shape, whole);
	if (omnikv_layout_shard(whole, nr_host, shard, &err) || omnikv_plan_make(shard, &config, &r->plan, &err))
		fail_msg("%s: %s", shape->name, err.text);
	r->hbm_bytes = 64;
	for (l = 0; l < NR_LAYERS; l++) {
		for (p = 0; p < shape->nr_planes; p++) {
			r->plane_off[l][p] = r->hbm_bytes;
			r->hbm_bytes += (uint64_t)NR_TOKENS * shard_bytes(&shape->planes[p], nr_device) + 16;
		}
	}

	for (h = 0; h < nr_host; h++) {
		assert_int_equal(omnikv_extent_alloc(r->f.client, r->plan.groups[0].nr_granules, NR_BLOCKS, NULL, 0, r->exts[h]), 0);
		pool_shard(r, h, true);
		assert_int_equal(omnikv_extent_seal(r->f.client, r->exts[h], NR_BLOCKS), 0);
		assert_int_equal(omnikv_extent_lease(r->f.client, r->exts[h], NR_BLOCKS), 0);
	}
	for (d = 0; d < nr_device; d++) {
		hbms[d] = fixture_hbm(&r->f, r->hbm_bytes);
		memset(omnikv_hbm_ptr(hbms[d]), UNTOUCHED, r->hbm_bytes);
		nr = pieces_of(r, d, 0, nr_host, pieces, rows);
		transfer(r, OMNIKV_OP_LOAD, hbms[d], pieces, rows, nr);
		/* Each byte once. */
		for (l = 0; l < nr; l++)
			moved += pieces[l].bytes;
		device_rank(r, d, omnikv_hbm_ptr(hbms[d]), false);
	}
	assert_int_equal(moved, nr_device * (r->hbm_bytes - 64 - NR_LAYERS * shape->nr_planes * 16));
	for (h = 0; h < nr_host; h++) {
		assert_int_equal(omnikv_extent_release(r->f.client, r->exts[h], NR_BLOCKS), 0);
		assert_int_equal(omnikv_extent_free(r->f.client, r->exts[h], NR_BLOCKS), 0);
	}

	/* And back: every rank of the device writes its part of every shard of the pool. */
	for (h = 0; h < nr_host; h++) {
		uint32_t b;

		assert_int_equal(omnikv_extent_alloc(r->f.client, r->plan.groups[0].nr_granules, NR_BLOCKS, NULL, 0, r->exts[h]), 0);
		for (b = 0; b < NR_BLOCKS; b++)
			memset(omnikv_pool_addr(r->f.pool, &r->exts[h][b]), UNTOUCHED, r->plan.groups[0].extent_bytes);
	}
	for (d = 0; d < nr_device; d++) {
		nr = pieces_of(r, d, 0, nr_host, pieces, rows);
		transfer(r, OMNIKV_OP_STORE, hbms[d], pieces, rows, nr);
		assert_int_equal(omnikv_hbm_destroy(hbms[d]), 0);
	}
	for (h = 0; h < nr_host; h++) {
		/* A plane that all have whole is written by those ranks of the device that would read it there. */
		if (h < nr_device || shape->planes[shape->nr_planes - 1].shard_axis != WHOLE)
			pool_shard(r, h, false);
		assert_int_equal(omnikv_extent_free(r->f.client, r->exts[h], NR_BLOCKS), 0);
	}
	free(whole);
	free(shard);
	free(pieces);
	free(rows);
}

static void every_degree_reads_and_writes_every_other(void **state)
{
	struct run *r = calloc(1, sizeof(*r));
	uint32_t s, a, b;

	fixture_open(&r->f, *state, "8M", NULL, NULL);
	for (s = 0; s < NR_SHAPES; s++) {
		for (a = 0; a < NR_DEGREES; a++) {
			for (b = 0; b < NR_DEGREES; b++)
				pair(r, &shapes[s], degrees[a], degrees[b]);
		}
	}
	print_message("# %u pairs of degrees and layouts, both ways\n", (uint32_t)NR_SHAPES * NR_DEGREES * NR_DEGREES);
	fixture_close(&r->f);
	free(r);
}

/* ---- rows as such ------------------------------------------------------------------------- */

#define NR_ROWS		OMNIKV_ROWS_MAX
#define NR_PIECES	4u

/* Pieces of thousands of rows: on "cuda" in many parts, also by way of the bounce buffer. */
static void rows(const char *device, bool is_bounced, const struct omnikv_rows *shapes)
{
	struct omnikv_piece pieces[NR_PIECES], copies[NR_PIECES];
	uint64_t bytes = 0, device_off = 1, hbm_bytes;
	struct omnikv_extent exts[NR_PIECES];
	struct omnikv_rows all[NR_PIECES];
	uint32_t crc[NR_PIECES], i, k;
	struct omnikv_hbm *hbm;
	struct omnikv_sqe *sqe;
	struct ring_fixture f;
	uint8_t *there;

	fixture_open(&f, device, "32M", NULL, NULL);
	if (is_bounced) {
		/* A ring whose pool the driver does not take. */
		omnikv_ring_exit(f.ring);
		fixture_cuda_set("max_register", 1);
		assert_int_equal(omnikv_ring_init(f.client, f.dev, NULL, &f.ring, NULL), 0);
	}
	for (i = 0; i < NR_PIECES; i++) {
		fixture_sealed(&f, &exts[i], 1, shapes[i].host_row_bytes + 1, i);
		all[i] = shapes[i];
		pieces[i] = (struct omnikv_piece) { exts[i], 2, device_off, (uint64_t)all[i].slice_bytes * NR_ROWS };
		device_off += (uint64_t)all[i].device_row_bytes * NR_ROWS;
		bytes += pieces[i].bytes;
	}
	for (i = 0; i < NR_PIECES; i++) {
		copies[i] = (struct omnikv_piece) { .extent_off = pieces[i].device_off, .device_off = device_off,
						    .bytes = pieces[i].bytes };
		device_off += (uint64_t)(all[i].slice_bytes + 1) * NR_ROWS;
	}
	hbm_bytes = device_off;
	hbm = fixture_hbm(&f, hbm_bytes);
	there = omnikv_hbm_ptr(hbm);
	memset(there, UNTOUCHED, hbm_bytes);

	sqe = fixture_sqe(&f, 1);
	omnikv_prep_load(sqe, hbm, pieces, NR_PIECES);
	sqe->rows = all;
	sqe->crc = crc;
	fixture_submit(&f);
	fixture_expect(&f, 1, (int64_t)bytes);
	for (i = 0; i < NR_PIECES; i++) {
		for (k = 0; k < NR_ROWS; k++) {
			const uint8_t *row = there + pieces[i].device_off + k * all[i].device_row_bytes;

			assert_true(fixture_is_filled(row, all[i].slice_bytes, i, 2 + k * all[i].host_row_bytes));
			if (all[i].slice_bytes < all[i].device_row_bytes)
				assert_int_equal(row[all[i].slice_bytes], UNTOUCHED);
		}
		assert_int_equal(crc[i], sum_of(&pieces[i], &all[i], there));
		all[i].host_row_bytes = all[i].device_row_bytes;
		all[i].device_row_bytes = all[i].slice_bytes + 1;
	}
	sqe = fixture_sqe(&f, 2);
	omnikv_prep_copy(sqe, hbm, copies, NR_PIECES);
	sqe->rows = all;
	sqe->crc = crc;
	fixture_submit(&f);
	fixture_expect(&f, 2, (int64_t)bytes);
	for (i = 0; i < NR_PIECES; i++) {
		for (k = 0; k < NR_ROWS; k++) {
			const uint8_t *row = there + copies[i].device_off + k * all[i].device_row_bytes;

			assert_true(fixture_is_filled(row, all[i].slice_bytes, i, 2 + k * shapes[i].host_row_bytes));
			assert_int_equal(row[all[i].slice_bytes], UNTOUCHED);
		}
		assert_int_equal(crc[i], sum_of(&copies[i], &all[i], there));
	}
	if (is_bounced) {
		struct omnikv_device_info info = { .size = sizeof(info) };

		assert_int_equal(omnikv_device_info(f.dev, &info), 0);
		assert_true(info.bounced_bytes >= bytes);
	}
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	assert_int_equal(omnikv_extent_release(f.client, exts, NR_PIECES), 0);
	fixture_close(&f);
}

/* Rows apart, rows that follow one another, and pieces of more than a part holds before some that are small. */
static const struct omnikv_rows apart[NR_PIECES] = { { 3, 7, 5, 0 }, { 1, 2, 2, 0 }, { 16, 32, 16, 0 }, { 5, 7, 9, 0 } };
static const struct omnikv_rows dense[NR_PIECES] = { { 3, 3, 3, 0 }, { 1, 1, 1, 0 }, { 16, 16, 16, 0 }, { 5, 5, 5, 0 } };
static const struct omnikv_rows mixed[NR_PIECES] = { { 1100, 1200, 1150, 0 }, { 3, 3, 3, 0 }, { 700, 700, 700, 0 }, { 5, 5, 5, 0 } };

static void thousands_of_rows_arrive_and_nothing_between_them(void **state)
{
	rows(*state, false, apart);
	rows(*state, false, dense);
	rows(*state, false, mixed);
}

static void rows_pass_through_the_bounce_buffer(void **state)
{
	(void)state;
	rows("cuda", true, apart);
	rows("cuda", true, dense);
	rows("cuda", true, mixed);
}

static void blocks_that_vanish_leave_their_rows_alone(void **state)
{
	static const struct omnikv_rows shape = { 16, 64, 32, 0 };
	struct omnikv_rows all[4] = { shape, shape, shape, shape };
	struct omnikv_piece pieces[4];
	struct omnikv_extent exts[4];
	struct omnikv_hbm *hbm;
	struct omnikv_sqe *sqe;
	struct omnikv_cqe cqe;
	struct ring_fixture f;
	uint64_t valid;
	uint32_t i, k;
	uint8_t *there;

	fixture_open(&f, *state, "4M", NULL, NULL);
	hbm = fixture_hbm(&f, 4 * 64 * 32);
	there = omnikv_hbm_ptr(hbm);
	memset(there, UNTOUCHED, 4 * 64 * 32);
	fixture_sealed(&f, exts, 4, 1, 0);
	for (i = 0; i < 4; i++)
		pieces[i] = (struct omnikv_piece) { exts[i], 16, i * 64 * 32, 64 * 16 };
	assert_int_equal(omnikv_extent_release(f.client, &exts[2], 1), 0);
	assert_int_equal(omnikv_extent_free(f.client, &exts[2], 1), 0);
	sqe = fixture_sqe(&f, 1);
	omnikv_prep_load(sqe, hbm, pieces, 4);
	sqe->rows = all;
	sqe->valid = &valid;
	fixture_submit(&f);
	cqe = fixture_reap(&f);
	assert_int_equal(cqe.res, -ESTALE);
	assert_int_equal(cqe.nr_valid, 3);
	assert_int_equal(valid, 0xb);
	for (i = 0; i < 4; i++) {
		for (k = 0; k < 64 * 32; k++) {
			uint8_t want = i == 2 || k % 32 >= 16 ? UNTOUCHED : fixture_byte(i, 16 + k / 32 * 64 + k % 32);

			assert_int_equal(there[i * 64 * 32 + k], want);
		}
	}
	exts[2] = exts[3];
	assert_int_equal(omnikv_extent_release(f.client, exts, 3), 0);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

/* ---- what is refused ---------------------------------------------------------------------- */

static void rows_that_can_never_be_right_are_refused(void **state)
{
	static const struct {
		struct omnikv_rows	rows;
		uint64_t		extent_off, device_off, bytes;
		bool			is_copy;
		bool			is_right;
	} cases[] = {
		{ { 16, 64, 32, 0 }, 0, 0, 64 * 16, false, true },
		{ { 0, 0, 0, 0 }, 0, 0, 4096, false, true },
		{ { 16, 16, 16, 0 }, 0, 0, 4096, false, true },
		{ { 16, 64, 32, 0 }, 48, 16, 64 * 16, false, true },	/* the last slices end where both sides do */
		{ { 16, 64, 32, 0 }, 49, 0, 64 * 16, false, false },
		{ { 16, 64, 32, 0 }, 0, 6161, 64 * 16, false, false },
		{ { 16, 64, 32, 0 }, 0, 6144, 64 * 16, false, true },
		{ { 16, 64, 32, 1 }, 0, 0, 64 * 16, false, false },
		{ { 16, 15, 32, 0 }, 0, 0, 64 * 16, false, false },
		{ { 16, 64, 15, 0 }, 0, 0, 64 * 16, false, false },
		{ { 16, 64, 32, 0 }, 0, 0, 64 * 16 - 1, false, false },
		{ { 16, 64, 32, 0 }, 0, 0, 15, false, false },
		{ { 0, 64, 0, 0 }, 0, 0, 64, false, false },
		{ { 0, 0, 64, 0 }, 0, 0, 64, false, false },
		{ { 0, 0, 0, 1 }, 0, 0, 64, false, false },
		{ { 1, 1, 1, 0 }, 0, 0, 4096, false, true },
		{ { 1, 0, 1, 0 }, 0, 0, 4096, false, false },
		{ { UINT32_MAX, UINT32_MAX, UINT32_MAX, 0 }, 0, 0, UINT32_MAX, false, false },
		{ { 1, UINT32_MAX, 1, 0 }, 0, 0, 4096, false, false },
		{ { 1, 1, UINT32_MAX, 0 }, 0, 0, 4096, false, false },
		{ { 1, 1, 1, 0 }, 0, 4096, 4096, true, true },
		{ { 1, 1, 1, 0 }, 0, 2048, 4097, true, false },		/* a row too many */
		{ { 1, 2, 1, 0 }, 0, 4095, 2049, true, false },		/* between the source's rows */
		{ { 1, 2, 1, 0 }, 0, 4096, 2048, true, true },
		{ { 1, 1, 2, 0 }, 4094, 0, 2048, true, false },		/* between the destination's */
		{ { 1, 1, 2, 0 }, 4095, 0, 2048, true, true },
	};
	struct ring_fixture f;
	struct omnikv_extent ext;
	struct omnikv_hbm *hbm;
	size_t i;

	fixture_open(&f, *state, "4M", NULL, NULL);
	hbm = fixture_hbm(&f, 8192);
	fixture_sealed(&f, &ext, 1, 1, 0);
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct omnikv_piece piece = { ext, cases[i].extent_off, cases[i].device_off, cases[i].bytes };
		struct omnikv_sqe *sqe = fixture_sqe(&f, i);
		struct omnikv_cqe cqe;

		omnikv_prep_load(sqe, hbm, &piece, 1);
		if (cases[i].is_copy)
			sqe->opcode = OMNIKV_OP_COPY;
		sqe->rows = &cases[i].rows;
		fixture_submit(&f);
		cqe = fixture_reap(&f);
		if (cqe.res != (cases[i].is_right ? (int64_t)cases[i].bytes : -EINVAL))
			fail_msg("case %zu: %lld", i, (long long)cqe.res);
	}
	assert_int_equal(omnikv_extent_release(f.client, &ext, 1), 0);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

static void degrees_that_do_not_divide_are_named(void **state)
{
	struct omnikv_plan_config config = { .size = sizeof(config), .block_tokens = BLOCK_TOKENS, .granule_bytes = 4096 };
	struct omnikv_layout *whole = malloc(sizeof(*whole)), *shard = malloc(sizeof(*shard));
	struct omnikv_rank host = { 0, 2 }, device = { 0, 3 };
	struct omnikv_plan *plan = malloc(sizeof(*plan));
	struct omnikv_slice slice;
	struct omnikv_error err;

	(void)state;
	layout_of(&shapes[0], whole);
	assert_int_equal(omnikv_layout_shard(whole, 16, shard, &err), -EINVAL);
	assert_string_equal(err.text, "groups[0].planes[0].heads: 8 cannot be shared out among 16 ranks; allowed: what divides it");
	assert_int_equal(omnikv_layout_shard(whole, 0, shard, &err), -EINVAL);
	assert_string_equal(err.text, "shards: among 0 ranks; allowed: 1 or more");
	assert_int_equal(omnikv_layout_shard(whole, 16, shard, NULL), -EINVAL);
	whole->groups[0].planes[0].heads = 0;
	assert_int_equal(omnikv_layout_shard(whole, 2, shard, &err), -EINVAL);

	layout_of(&shapes[2], whole);
	assert_int_equal(omnikv_layout_shard(whole, 5, shard, &err), -EINVAL);
	assert_string_equal(err.text, "groups[0].planes[0].elems: 24 cannot be shared out among 5 ranks; allowed: what divides it");
	assert_int_equal(omnikv_layout_shard(whole, 2, shard, NULL), 0);
	assert_int_equal(omnikv_plan_make(shard, &config, plan, NULL), 0);
	assert_int_equal(omnikv_slice_find(plan, 0, 0, &host, &device, &slice, NULL), 1);
	device.nr_ranks = 5;
	assert_int_equal(omnikv_slice_find(plan, 0, 0, &host, &device, &slice, &err), -EINVAL);
	assert_string_equal(err.text, "groups[0].planes[0].elems: 24 cannot be shared out among 5 ranks; allowed: what divides it");
	device = (struct omnikv_rank) { 4, 4 };
	assert_int_equal(omnikv_slice_find(plan, 0, 0, &host, &device, &slice, &err), -EINVAL);
	assert_string_equal(err.text, "rank 0 of 2 and rank 4 of 4: a rank is below the number of ranks");
	device = (struct omnikv_rank) { 0, 0 };
	assert_int_equal(omnikv_slice_find(plan, 0, 0, &host, &device, &slice, &err), -EINVAL);
	device = (struct omnikv_rank) { 0, 1 };
	assert_int_equal(omnikv_slice_find(plan, 0, 2, &host, &device, &slice, &err), -EINVAL);
	assert_string_equal(err.text, "groups[0].planes[2]: there is none in layout \"shards\"");
	assert_int_equal(omnikv_slice_find(plan, 1, 0, &host, &device, &slice, &err), -EINVAL);
	plan->scale = 4;
	assert_int_equal(omnikv_slice_find(plan, 0, 0, &host, &device, &slice, &err), -EINVAL);
	assert_string_equal(err.text, "scale: 4 with shards; allowed: 1");
	free(whole);
	free(shard);
	free(plan);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_EACH_DEVICE(every_degree_reads_and_writes_every_other),
		ON_SIM_WITH_KERNELS(every_degree_reads_and_writes_every_other),
		ON_EACH_DEVICE(thousands_of_rows_arrive_and_nothing_between_them),
		ON_SIM_WITH_KERNELS(thousands_of_rows_arrive_and_nothing_between_them),
		cmocka_unit_test(rows_pass_through_the_bounce_buffer),
		ON_EACH_DEVICE(blocks_that_vanish_leave_their_rows_alone),
		ON_EACH_DEVICE(rows_that_can_never_be_right_are_refused),
		cmocka_unit_test(degrees_that_do_not_divide_are_named),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

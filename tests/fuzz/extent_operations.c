// SPDX-License-Identifier: GPL-2.0-only
/*
 * The extent map driven by bytes: first it recovers records of any content, then it allocates, frees
 * and counts as the bytes say. The walker runs after each step, and no two live extents may overlap
 * (each one's first granule is owned by the number that was given to it).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/extent.h"

#define NR_GRANULES	96u
#define NR_NAMES	64u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const struct okv_extent_map *map)
{
	const char *broken = okv_extent_map_check(map);

	if (broken) {
		fprintf(stderr, "not true: %s\n", broken);
		abort();
	}
}

static uint8_t next(const uint8_t **data, size_t *size)
{
	if (!*size)
		return 0;
	--*size;
	return *(*data)++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct okv_extent_rec recs[NR_GRANULES] = { { 0 } };
	uint64_t used[(NR_GRANULES + 63) / 64] = { 0 };
	struct omnikv_extent names[NR_NAMES] = { { 0 } };
	uint32_t refs[NR_NAMES] = { 0 }, owner = 1;
	size_t raw = size < sizeof(recs) ? size / 2 : sizeof(recs);
	struct okv_extent_map map;

	if (size > 3000)
		return 0;
	memcpy(recs, data, raw);
	memset(&recs[64], 0, 32 * sizeof(recs[0]));
	data += raw;
	size -= raw;
	if (okv_extent_map_init(&map, recs, used, NR_GRANULES) || okv_extent_map_recover(&map, 64) ||
	    okv_extent_map_add(&map, 32))
		abort();
	walk(&map);
	while (size) {
		uint8_t op = next(&data, &size), which = next(&data, &size) % NR_NAMES;
		struct omnikv_extent *ext = &names[which];
		struct okv_extent_view view;

		switch (op % 6) {
		case 0:
			if (refs[which])
				break;
			if (!okv_extent_alloc(&map, 1 + next(&data, &size) % 40, 1, op & 64 ? &names[op % NR_NAMES] : NULL,
					      owner, ext)) {
				okv_extent_view(&map, ext->granule, &view);
				if (view.owner != owner++ || view.state != OMNIKV_EXTENT_PRIVATE)
					abort();
			}
			break;
		case 1:
			okv_extent_free_list(&map, ext, which + 1u < NR_NAMES && (op & 64) ? 2 : 1, owner - 1 - op / 64,
					     op & 128);
			break;
		case 2:
			if (okv_extent_check(&map, ext, OKV_OP_IO_GET, recs[ext->granule].a, true))
				break;
			okv_extent_get(&map, ext->granule, 1);
			refs[which]++;
			break;
		case 3:
			if (!refs[which])
				break;
			if (okv_extent_check(&map, ext, OKV_OP_IO_PUT, recs[ext->granule].a, true))
				abort();
			okv_extent_put(&map, ext->granule, 1);
			refs[which]--;
			break;
		case 4:
			if (!okv_extent_check(&map, ext, OKV_OP_SEAL, recs[ext->granule].a, false))
				okv_extent_seal(&map, ext->granule);
			break;
		default:
			ext->generation += next(&data, &size) & (refs[which] ? 0 : 7);
		}
		walk(&map);
	}
	return 0;
}

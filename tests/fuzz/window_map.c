// SPDX-License-Identifier: GPL-2.0-only
/*
 * The module's pure parts under arbitrary input: operations of a batch are checked, and those that
 * are found right are played on the map of a window, whose invariants are walked.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "kmod/batch_check.c"
#include "kmod/winmap.c"

#define WINDOW_BYTES	(1ull << 32)
#define EXTENT_BYTES	(1ull << 24)

static void *block_alloc(void)
{
	return calloc(1, 4096);
}

static void ignore_drop(void *opaque, uintptr_t owner, uint64_t first, uint64_t nr)
{
	(void)first;
	if (!owner || !nr)
		abort();
	*(uint64_t *)opaque += nr;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	void *tops[8] = { NULL };
	struct okv_winmap map;
	uint64_t dropped;

	okv_winmap_init(&map, WINDOW_BYTES / 4096, tops);
	for (; size >= sizeof(struct omnikv_batch_op); size -= sizeof(struct omnikv_batch_op)) {
		struct omnikv_batch_op op;
		uint64_t first, nr, page = 0;

		memcpy(&op, data, sizeof(op));
		data += sizeof(op);
		op.opcode %= OMNIKV_BATCH_LAST + 2;
		if (okv_op_check(&op))
			continue;
		first = op.window_off / 4096;
		nr = op.bytes / 4096;
		dropped = 0;
		if (op.opcode == OMNIKV_BATCH_BIND && !okv_bind_check(&op, EXTENT_BYTES, WINDOW_BYTES)) {
			uint64_t was = map.nr_bound;

			if (okv_winmap_prepare(&map, first, nr, block_alloc))
				abort();
			okv_winmap_clear(&map, first, nr, NULL, ignore_drop, &dropped);
			okv_winmap_set(&map, first, nr, 1 + op.extent.generation % 5, op.extent_off / 4096);
			if (map.nr_bound != was - dropped + nr || okv_winmap_run(&map, first, nr, &page) != nr)
				abort();
		} else if (op.opcode == OMNIKV_BATCH_UNBIND && okv_range_fits(op.window_off, op.bytes, WINDOW_BYTES)) {
			okv_winmap_clear(&map, first, nr, NULL, ignore_drop, &dropped);
			if (okv_winmap_any(&map, first, nr, NULL, NULL))
				abort();
		}
	}
	if (map.nr_bound < 100000 && okv_winmap_check(&map))
		abort();
	okv_winmap_fini(&map, free);
	return 0;
}

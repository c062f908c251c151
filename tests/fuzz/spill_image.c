// SPDX-License-Identifier: GPL-2.0-only
/*
 * A spill store is opened on bytes of any kind. The input patches the image of a small store that
 * has blocks in three segments: each five bytes are where (three) and what (two). Nothing may
 * crash, no block may be served with a wrong byte, and the books must be right.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/spill_world.h"

#define SEGMENT	(64u << 10)
#define DISK	(OKV_SPILL_DATA_OFF + 6ull * SEGMENT)
#define BLOCKS	24u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void __attribute__((noreturn)) die(const char *what)
{
	fprintf(stderr, "%s\n", what);
	abort();
}

static uint8_t *make_image(const struct okv_store_config *config)
{
	struct okv_store *store;
	struct sim_disk sim;
	uint8_t *image;

	sim_disk_init(&sim, DISK);
	if (spill_sim_open(&sim, config, &store) || spill_put_run(store, 1, 0, BLOCKS / 2, 8192, 2))
		die("the image cannot be made");
	okv_store_close(store);
	if (spill_sim_open(&sim, config, &store) || spill_put_run(store, 1, BLOCKS / 2, BLOCKS, 4096, 1))
		die("the image cannot be made");
	/* As if killed: the last segment has no table. */
	image = malloc(DISK);
	if (!image)
		die("no memory");
	memcpy(image, sim.base, DISK);
	okv_store_close(store);
	sim_disk_fini(&sim);
	return image;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct okv_store_config config = spill_sim_config(DISK, SEGMENT);
	static uint8_t *image;
	struct okv_store *store;
	const char *reason;
	struct sim_disk sim;

	if (!image)
		image = make_image(&config);
	sim_disk_init(&sim, DISK);
	memcpy(sim.base, image, DISK);
	for (size_t i = 0; i + 5 <= size; i += 5) {
		uint64_t at = (data[i] | data[i + 1] << 8 | data[i + 2] << 16) % (DISK - 1);

		sim.base[at] ^= data[i + 3];
		sim.base[at + 1] ^= data[i + 4];
	}
	if (!spill_sim_open(&sim, &config, &store)) {
		for (uint64_t id = 0; id < BLOCKS; id++)
			if (spill_get(store, 1, id) == -EUCLEAN)
				die("a wrong byte was served");
		if (spill_put(store, 2, 0, 4096, 1) || spill_get(store, 2, 0))
			die("the store does not store");
		if (okv_store_check_books(store, &reason))
			die(reason);
		okv_store_close(store);
	}
	sim_disk_fini(&sim);
	return 0;
}

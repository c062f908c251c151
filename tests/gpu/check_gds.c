// SPDX-License-Identifier: GPL-2.0-only
/*
 * GPUDirect Storage by the libcufile that is there: blocks of a spill store straight to the GPU's memory, moved back from
 * there and compared. Skipped (exit status 4) where there is no GPU, no libcufile, or none that serves this file system.
 *
 *     check_gds [DIRECTORY]    where the store is made; "." if none is named
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <omnikv.h>
#include <omnikv/ring.h>

#include "../harness/spill_world.h"
#include "spill/spill.h"

#define NR_BLOCKS	64u
#define BLOCK		(256u << 10)
#define WAIT_NS		(UINT64_C(30) * 1000000000)

static char notice[256] = "GPUDirect Storage does not serve this store";
static char dir[4096];

static void note(void *opaque, const char *line)
{
	(void)opaque;
	if (strstr(line, "GPUDirect"))
		snprintf(notice, sizeof(notice), "%s", line);
}

static void clear(void)
{
	char file[sizeof(dir) + 16];

	snprintf(file, sizeof(file), "%s/omnikv.spill", dir);
	unlink(file);
	rmdir(dir);
}

static void must(int ret, const char *what)
{
	if (!ret)
		return;
	printf("%s: %s\n", what, strerror(-ret));
	clear();
	exit(1);
}

static void skip(const char *why)
{
	printf("%s\n", why);
	clear();
	exit(4);
}

/* Move it back and compare. */
static void compare(struct omnikv_ring *ring, struct omnikv_hbm *hbm, const struct omnikv_extent *extent, void *at, uint64_t id)
{
	struct omnikv_piece piece = { .extent = *extent, .device_off = 4096, .bytes = BLOCK };
	struct omnikv_cqe *cqe;

	memset(at, 0, BLOCK);
	omnikv_prep_store(omnikv_get_sqe(ring), hbm, &piece, 1);
	must(omnikv_submit(ring) == 1 ? 0 : -EAGAIN, "submit");
	must(omnikv_wait_cqe(ring, &cqe, WAIT_NS), "the way back");
	must(cqe->res == BLOCK ? 0 : cqe->res < 0 ? (int)cqe->res : -EIO, "the way back");
	omnikv_cqe_seen(ring, cqe);
	must(spill_wrong(at, 1, id, BLOCK) ? -EUCLEAN : 0, "a wrong byte");
}

int main(int argc, char **argv)
{
	struct omnikv_spill_config config = {
		.size = sizeof(config), .capacity_bytes = 64 << 20, .segment_bytes = 4 << 20, .floor_bytes = 1, .notice = note,
	};
	struct omnikv_extent extent;
	struct omnikv_client *client;
	struct omnikv_device *dev;
	struct omnikv_spill *spill;
	struct omnikv_pool *pool;
	struct omnikv_ring *ring;
	struct omnikv_error err = { "" };
	struct omnikv_hbm *hbm;

	snprintf(dir, sizeof(dir), "%s/omnikv-gds-XXXXXX", argc > 1 ? argv[1] : ".");
	if (!mkdtemp(dir))
		must(-errno, dir);
	if (omnikv_device_open("cuda", NULL, &dev, &err))
		skip(err.text);
	must(omnikv_pool_open("16M", NULL, &pool, &err), "pool");
	must(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &client), "client");
	must(omnikv_ring_init(client, dev, NULL, &ring, &err), "ring");
	must(omnikv_hbm_create(dev, 2 << 20, &hbm), "HBM");
	must(omnikv_extent_alloc(client, BLOCK / 4096, 1, NULL, 0, &extent), "extent");
	must(omnikv_spill_open(dir, &config, &spill, &err), err.text);
	for (uint64_t id = 0; id < NR_BLOCKS; id++)
		must(spill_put(spill->store, 1, id, BLOCK, 2), "put");
	must(omnikv_spill_sync(spill), "sync");
	/* The first time verified on the host, the second time not. */
	for (uint64_t i = 0; i < 2 * NR_BLOCKS; i++) {
		struct omnikv_spill_block block = { .nr_tokens = 16, .nr_parts = 2 };
		uint64_t id = i % NR_BLOCKS, off[2], bytes[2];
		struct okv_record rec;
		int ret;

		spill_block(&rec, 1, id, BLOCK, 2);
		block.key = rec.key;
		block.parent = rec.parent;
		block.position = rec.position;
		bytes[0] = rec.parts[0].bytes;
		bytes[1] = rec.parts[1].bytes;
		off[0] = 4096;
		off[1] = off[0] + bytes[0];
		ret = omnikv_spill_read_device(spill, rec.ns, &block, hbm, off, bytes);
		if (ret == -EOPNOTSUPP)
			skip(notice);
		must(ret, "read");
		compare(ring, hbm, &extent, omnikv_pool_addr(pool, &extent), id);
	}
	omnikv_spill_close(spill);
	clear();
	omnikv_extent_free(client, &extent, 1);
	omnikv_hbm_destroy(hbm);
	omnikv_ring_exit(ring);
	omnikv_device_close(dev);
	omnikv_client_close(client);
	omnikv_pool_close(pool);
	printf("ok\n");
	return 0;
}

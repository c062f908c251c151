// SPDX-License-Identifier: GPL-2.0-only
/*
 * The ways of moving bytes to and from a GPU: each gives the same bytes and sums, and the table says which is taken.
 *
 * On the driver of tests/harness/cuda: what the ways cost there says nothing.
 */
#include <errno.h>
#include <unistd.h>

#include "../harness/ring_fixture.h"
#include "crc32c.h"
#include "device_cuda.h"

#define NR_PIECES	300
#define GRANULES	12
#define EXTENT_BYTES	(GRANULES * 4096)

static struct omnikv_device_info info_of(struct omnikv_device *dev)
{
	struct omnikv_device_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_device_info(dev, &info), 0);
	return info;
}

/* Pieces of 1 byte to some 45 KB, in order or scattered on either side, odd addresses among them. */
static uint64_t pieces_make(struct omnikv_piece *pieces, const struct omnikv_extent *exts, uint64_t *seed)
{
	uint64_t off = 0;
	uint32_t i;

	for (i = 0; i < NR_PIECES; i++) {
		uint64_t bytes = 1 + fixture_random(seed) % (i % 7 ? 2000 : 45000);

		if (i % 3 == 0)
			bytes = (bytes + 127) / 128 * 128;
		pieces[i] = (struct omnikv_piece) {
			.extent = exts[i], .extent_off = i % 2 ? fixture_random(seed) % (EXTENT_BYTES - bytes) : 0,
			.device_off = off, .bytes = bytes,
		};
		off += bytes + (i % 5 ? 0 : fixture_random(seed) % 33);
	}
	return off;
}

static void one_path(const char *path, const char *lacks, bool has_crc)
{
	struct omnikv_piece *pieces = calloc(NR_PIECES, sizeof(*pieces));
	struct omnikv_extent *exts = calloc(NR_PIECES, sizeof(*exts));
	uint32_t *crc = calloc(NR_PIECES, sizeof(*crc));
	uint64_t seed = 12345, all, moved = 0, valid[NR_PIECES / 64 + 1];
	struct omnikv_device_info before, after;
	struct ring_fixture f;
	struct omnikv_sqe *sqe;
	struct omnikv_hbm *hbm;
	uint8_t *there;
	uint32_t i;

	if (path)
		assert_int_equal(setenv("OMNIKV_CUDA_PATH", path, 1), 0);
	fixture_open(&f, "cuda", "32M", NULL, NULL);
	if (lacks) {
		omnikv_ring_exit(f.ring);
		omnikv_stream_destroy(f.stream);
		assert_int_equal(omnikv_device_close(f.dev), 0);
		fixture_cuda_set(lacks, 0);
		assert_int_equal(omnikv_device_open("cuda", NULL, &f.dev, NULL), 0);
		assert_int_equal(omnikv_stream_create(f.dev, &f.stream), 0);
		assert_int_equal(omnikv_ring_init(f.client, f.dev, NULL, &f.ring, NULL), 0);
	}
	unsetenv("OMNIKV_CUDA_PATH");
	while (!info_of(f.dev).host_mapped_bytes)
		usleep(1000);
	fixture_sealed(&f, exts, NR_PIECES, GRANULES, 0);
	all = pieces_make(pieces, exts, &seed);
	hbm = fixture_hbm(&f, 2 * all);
	there = omnikv_hbm_ptr(hbm);
	memset(there, 0xa5, 2 * all);
	before = info_of(f.dev);

	sqe = fixture_sqe(&f, 1);
	omnikv_prep_load(sqe, hbm, pieces, NR_PIECES);
	sqe->valid = valid;
	sqe->crc = has_crc ? crc : NULL;
	for (i = 0; i < NR_PIECES; i++)
		moved += pieces[i].bytes;
	fixture_submit(&f);
	fixture_expect(&f, 1, (int64_t)moved);
	for (i = 0; i < NR_PIECES; i++) {
		const uint8_t *from = (uint8_t *)omnikv_pool_addr(f.pool, &exts[i]) + pieces[i].extent_off;

		assert_memory_equal(there + pieces[i].device_off, from, pieces[i].bytes);
		if (has_crc)
			assert_int_equal(crc[i], okv_crc32c(from, pieces[i].bytes));
	}
	/* What lies between the pieces is as it was. */
	for (i = 0; i + 1 < NR_PIECES; i++) {
		uint64_t off = pieces[i].device_off + pieces[i].bytes;

		for (; off < pieces[i + 1].device_off; off++)
			assert_int_equal(there[off], 0xa5);
	}

	/* Within the device, and back into memory of our own. */
	assert_int_equal(omnikv_extent_release(f.client, exts, NR_PIECES), 0);
	assert_int_equal(omnikv_extent_free(f.client, exts, NR_PIECES), 0);
	for (i = 0; i < NR_PIECES; i++) {
		pieces[i].extent_off = pieces[i].device_off;
		pieces[i].device_off += all;
	}
	omnikv_prep_copy(fixture_sqe(&f, 2), hbm, pieces, NR_PIECES);
	fixture_submit(&f);
	fixture_expect(&f, 2, (int64_t)moved);
	for (i = 0; i < NR_PIECES; i++)
		assert_memory_equal(there + pieces[i].device_off, there + pieces[i].extent_off, pieces[i].bytes);
	assert_int_equal(omnikv_extent_alloc(f.client, GRANULES, NR_PIECES, NULL, 0, exts), 0);
	for (i = 0; i < NR_PIECES; i++) {
		pieces[i].extent = exts[i];
		pieces[i].extent_off = i % 2 ? EXTENT_BYTES - pieces[i].bytes : 3;
	}
	sqe = fixture_sqe(&f, 3);
	omnikv_prep_store(sqe, hbm, pieces, NR_PIECES);
	sqe->crc = has_crc ? crc : NULL;
	fixture_submit(&f);
	fixture_expect(&f, 3, (int64_t)moved);
	for (i = 0; i < NR_PIECES; i++) {
		const uint8_t *to = (uint8_t *)omnikv_pool_addr(f.pool, &exts[i]) + pieces[i].extent_off;

		assert_memory_equal(to, there + pieces[i].device_off, pieces[i].bytes);
		if (has_crc)
			assert_int_equal(crc[i], okv_crc32c(to, pieces[i].bytes));
	}
	after = info_of(f.dev);
	assert_int_equal(after.engine_bytes - before.engine_bytes + after.batch_bytes - before.batch_bytes + after.kernel_bytes -
			 before.kernel_bytes, 3 * moved);
	if (path && !lacks) {
		uint64_t by = !strcmp(path, "engine") ? after.engine_bytes - before.engine_bytes :
			      !strcmp(path, "batch") ? after.batch_bytes - before.batch_bytes :
						       after.kernel_bytes - before.kernel_bytes;

		assert_int_equal(by, 3 * moved);
	}
	assert_int_equal(omnikv_extent_free(f.client, exts, NR_PIECES), 0);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
	free(crc);
	free(exts);
	free(pieces);
}

static void every_path_moves_the_same_bytes(void **state)
{
	static const char *const paths[] = { "engine", "batch", "kernel" };
	size_t i;

	(void)state;
	for (i = 0; i < 3; i++) {
		one_path(paths[i], NULL, false);
		one_path(paths[i], NULL, true);
	}
	one_path(NULL, NULL, true);
}

static void what_a_driver_lacks_is_done_without(void **state)
{
	(void)state;
	one_path("batch", "batch", true);
	one_path("kernel", "kernels", true);
	one_path(NULL, "kernels", true);
}

static void neighbours_become_one_copy(void **state)
{
	struct omnikv_piece pieces[64];
	struct omnikv_extent exts[64];
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	long copies;
	uint32_t i;

	(void)state;
	assert_int_equal(setenv("OMNIKV_CUDA_PATH", "engine", 1), 0);
	fixture_open(&f, "cuda", "16M", NULL, NULL);
	unsetenv("OMNIKV_CUDA_PATH");
	while (!info_of(f.dev).host_mapped_bytes)
		usleep(1000);
	hbm = fixture_hbm(&f, 64 * 4096);
	fixture_sealed(&f, exts, 64, 1, 0);
	for (i = 0; i < 64; i++) {
		assert_int_equal(exts[i].granule, exts[0].granule + i);
		pieces[i] = (struct omnikv_piece) { .extent = exts[i], .device_off = i * 4096, .bytes = 4096 };
	}
	/* One gap on the device, so two runs. */
	pieces[40].bytes = 100;
	copies = fixture_cuda_get("copies");
	omnikv_prep_load(fixture_sqe(&f, 1), hbm, pieces, 64);
	fixture_submit(&f);
	fixture_expect(&f, 1, 63 * 4096 + 100);
	assert_int_equal(fixture_cuda_get("copies") - copies, 2);
	for (i = 0; i < 64; i++)
		assert_true(fixture_is_filled((uint8_t *)omnikv_hbm_ptr(hbm) + pieces[i].device_off, pieces[i].bytes, i, 0));
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

static void each_direction_is_measured(void **state)
{
	struct ring_fixture f;
	int dir, size, count, path;

	(void)state;
	/* No folder to keep it in: measured now. */
	fixture_cuda_cache("/proc/none");
	fixture_open(&f, "cuda", NULL, NULL, NULL);
	for (dir = 0; dir < OKV_NR_DIRECTIONS; dir++) {
		for (size = 0; size < OKV_PATH_SIZES; size++) {
			for (count = 0; count < OKV_PATH_COUNTS; count++) {
				for (path = 0; path < OKV_NR_PATHS; path++)
					assert_true(okv_cuda_of(f.dev)->costs.ns[dir][size][count][path] > 0);
			}
		}
	}
	fixture_close(&f);
	fixture_cuda_cache(NULL);
}

static void the_cheapest_of_the_table_is_taken(void **state)
{
	struct okv_cuda *cuda = calloc(1, sizeof(*cuda));

	(void)state;
	assert_non_null(cuda);
	cuda->forced_path = -1;
	cuda->module = cuda;
	cuda->drv.cuMemcpyBatchAsync = (void *)(uintptr_t)1;
	/* Nothing measured: the copy engine. */
	assert_int_equal(okv_cuda_path_choose(cuda, OKV_H2D, 100, 100 * 4096), OKV_PATH_ENGINE);
	cuda->costs.ns[OKV_H2D][1][1][OKV_PATH_ENGINE] = 2000;
	cuda->costs.ns[OKV_H2D][1][1][OKV_PATH_BATCH] = 500;
	cuda->costs.ns[OKV_H2D][1][1][OKV_PATH_KERNEL] = 100;
	cuda->costs.ns[OKV_H2D][5][0][OKV_PATH_ENGINE] = 20000;
	cuda->costs.ns[OKV_H2D][5][0][OKV_PATH_BATCH] = 19000;
	cuda->costs.ns[OKV_H2D][5][0][OKV_PATH_KERNEL] = 21000;
	assert_int_equal(okv_cuda_path_choose(cuda, OKV_H2D, 256, 256 * 4096), OKV_PATH_KERNEL);
	assert_int_equal(okv_cuda_path_choose(cuda, OKV_H2D, 200, 200 * 3000), OKV_PATH_KERNEL);
	assert_int_equal(okv_cuda_path_choose(cuda, OKV_H2D, 8, 8 << 20), OKV_PATH_BATCH);
	assert_int_equal(okv_cuda_path_choose(cuda, OKV_H2D, 1, 1 << 20), OKV_PATH_ENGINE);
	/* One direction says nothing of the others. */
	assert_int_equal(okv_cuda_path_choose(cuda, OKV_D2H, 256, 256 * 4096), OKV_PATH_ENGINE);
	assert_int_equal(okv_cuda_path_choose(cuda, OKV_D2D, 256, 256 * 4096), OKV_PATH_ENGINE);
	cuda->costs.ns[OKV_D2D][1][1][OKV_PATH_ENGINE] = 2000;
	cuda->costs.ns[OKV_D2D][1][1][OKV_PATH_BATCH] = 10;
	cuda->costs.ns[OKV_D2D][1][1][OKV_PATH_KERNEL] = 20;
	assert_int_equal(okv_cuda_path_choose(cuda, OKV_D2D, 256, 256 * 4096), OKV_PATH_BATCH);
	cuda->costs.ns[OKV_D2D][1][1][OKV_PATH_KERNEL] = 5;
	assert_int_equal(okv_cuda_path_choose(cuda, OKV_D2D, 256, 256 * 4096), OKV_PATH_KERNEL);
	/* What is not there is not taken, however cheap it once was. */
	cuda->module = NULL;
	assert_int_equal(okv_cuda_path_choose(cuda, OKV_H2D, 256, 256 * 4096), OKV_PATH_BATCH);
	cuda->drv.cuMemcpyBatchAsync = NULL;
	assert_int_equal(okv_cuda_path_choose(cuda, OKV_H2D, 256, 256 * 4096), OKV_PATH_ENGINE);
	free(cuda);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(every_path_moves_the_same_bytes),
		cmocka_unit_test(what_a_driver_lacks_is_done_without),
		cmocka_unit_test(neighbours_become_one_copy),
		cmocka_unit_test(the_cheapest_of_the_table_is_taken),
		cmocka_unit_test(each_direction_is_measured),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

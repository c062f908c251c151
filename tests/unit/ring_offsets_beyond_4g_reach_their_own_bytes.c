// SPDX-License-Identifier: GPL-2.0-only
/*
 * Offsets of 2, 4 and more GiB in pools, extents and device memory: each block reads back its
 * own id. Memory is backed only where it is touched.
 */
#include "../harness/ring_fixture.h"

#include <errno.h>

#include "crc32c.h"

#define GIB	(UINT64_C(1) << 30)
#define BYTES	4096

static void each_block_reads_back_its_own_id(void **state)
{
	static const uint64_t offs[] = {
		0, 2 * GIB - BYTES / 2, 2 * GIB + BYTES, 4 * GIB - 64, 4 * GIB + BYTES,
		4 * GIB + 3 * BYTES + 1, 5 * GIB, 6 * GIB - BYTES,
	};
	enum { NR = sizeof(offs) / sizeof(offs[0]) };
	struct omnikv_device_config c = { .size = sizeof(c), .hbm_bytes = 16 * GIB };
	struct omnikv_piece pieces[NR];
	uint32_t crc[NR], i;
	struct omnikv_extent ext, dst;
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	struct omnikv_sqe *sqe;
	uint8_t *from, *there, *to;

	/* Small pages only: a huge page would be backed as a whole. */
	fixture_open(&f, *state, "13G", &c, NULL);
	hbm = fixture_hbm(&f, 7 * GIB);
	assert_int_equal(omnikv_extent_alloc(f.client, 6 * GIB / 4096, 1, NULL, OMNIKV_ALLOC_F_NO_ZERO, &ext), 0);
	assert_int_equal(omnikv_extent_alloc(f.client, 6 * GIB / 4096, 1, &ext, OMNIKV_ALLOC_F_NO_ZERO, &dst), 0);
	from = omnikv_pool_addr(f.pool, &ext);
	to = omnikv_pool_addr(f.pool, &dst);
	there = omnikv_hbm_ptr(hbm);
	for (i = 0; i < NR; i++) {
		fixture_fill(from + offs[i], BYTES, i, 0);
		pieces[i] = (struct omnikv_piece) { ext, offs[i], offs[i] + 8192, BYTES };
	}
	sqe = fixture_sqe(&f, 1);
	omnikv_prep_load(sqe, hbm, pieces, NR);
	sqe->crc = crc;
	fixture_submit(&f);
	fixture_expect(&f, 1, (int64_t)NR * BYTES);
	for (i = 0; i < NR; i++) {
		assert_true(fixture_is_filled(there + offs[i] + 8192, BYTES, i, 0));
		assert_int_equal(crc[i], okv_crc32c(from + offs[i], BYTES));
		pieces[i].extent = dst;
	}
	omnikv_prep_store(fixture_sqe(&f, 2), hbm, pieces, NR);
	fixture_submit(&f);
	fixture_expect(&f, 2, (int64_t)NR * BYTES);
	for (i = 0; i < NR; i++) {
		assert_true(fixture_is_filled(to + offs[i], BYTES, i, 0));
	}
	/* Within the device, across 4 GiB; and one that would end behind it. */
	pieces[0] = (struct omnikv_piece) { .extent_off = 8192, .device_off = 6 * GIB + 100, .bytes = BYTES };
	omnikv_prep_copy(fixture_sqe(&f, 3), hbm, pieces, 1);
	fixture_submit(&f);
	fixture_expect(&f, 3, BYTES);
	assert_true(fixture_is_filled(there + 6 * GIB + 100, BYTES, 0, 0));
	pieces[0] = (struct omnikv_piece) { ext, 6 * GIB - BYTES + 1, 0, BYTES };
	omnikv_prep_load(fixture_sqe(&f, 4), hbm, pieces, 1);
	fixture_submit(&f);
	fixture_expect(&f, 4, -EINVAL);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_EACH_DEVICE(each_block_reads_back_its_own_id),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

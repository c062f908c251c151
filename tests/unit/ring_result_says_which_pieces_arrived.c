// SPDX-License-Identifier: GPL-2.0-only
/*
 * Transfers between a pool and device memory: what the result, the bitmap and the checksums
 * say is what the destination holds, also when blocks vanish, the device fails or the copy is
 * withdrawn half-way.
 */
#include "../harness/ring_fixture.h"

#include <errno.h>

#include "crc32c.h"
#include "failpoint.h"

#define PIECE_BYTES	4096
#define UNTOUCHED	0xa5

static bool bit(const uint64_t *bits, uint32_t i)
{
	return bits[i / 64] >> (i % 64) & 1;
}

static bool is_untouched(const uint8_t *buf, uint64_t bytes)
{
	uint64_t i;

	for (i = 0; i < bytes; i++) {
		if (buf[i] != UNTOUCHED)
			return false;
	}
	return true;
}

/* Pieces of 4 KiB in reverse order of the destination. */
static void make_pieces(struct omnikv_piece *pieces, const struct omnikv_extent *exts, uint32_t nr)
{
	uint32_t i;

	for (i = 0; i < nr; i++)
		pieces[i] = (struct omnikv_piece) { exts[i], 0, (uint64_t)(nr - 1 - i) * PIECE_BYTES, PIECE_BYTES };
}

/* A block that a lookup promised is gone at the load, and its memory may be somebody else's by then. */
static void vanished_blocks_are_not_reported_loaded(void **state)
{
	static const uint32_t gone[5] = { 0, 63, 64, 100, 127 };
	struct omnikv_piece pieces[128];
	struct omnikv_extent exts[128], other[5];
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	struct omnikv_event *signal;
	struct omnikv_sqe *sqe;
	struct omnikv_cqe cqe;
	uint64_t valid[2];
	uint32_t crc[128], i, nr_clear = 0;
	uint8_t *there;

	fixture_open(&f, *state, "4M", NULL, NULL);
	hbm = fixture_hbm(&f, 128 * PIECE_BYTES);
	signal = fixture_event(&f);
	there = omnikv_hbm_ptr(hbm);
	memset(there, UNTOUCHED, 128 * PIECE_BYTES);
	fixture_sealed(&f, exts, 128, 1, 0);
	for (i = 0; i < 5; i++) {
		assert_int_equal(omnikv_extent_release(f.client, &exts[gone[i]], 1), 0);
		assert_int_equal(omnikv_extent_free(f.client, &exts[gone[i]], 1), 0);
	}
	/* Two of the five have a new owner already. */
	assert_int_equal(omnikv_extent_alloc(f.client, 1, 2, NULL, 0, other), 0);

	make_pieces(pieces, exts, 128);
	sqe = fixture_sqe(&f, 7);
	omnikv_prep_load(sqe, hbm, pieces, 128);
	sqe->valid = valid;
	sqe->crc = crc;
	sqe->signal = signal;
	fixture_submit(&f);
	cqe = fixture_reap(&f);
	assert_int_equal(cqe.user_data, 7);
	assert_int_equal(cqe.res, -ESTALE);
	assert_int_equal(cqe.flags, 0);
	assert_int_equal(cqe.nr_valid, 123);
	assert_int_equal(omnikv_event_query(signal), -ESTALE);
	for (i = 0; i < 128; i++) {
		const uint8_t *dst = there + pieces[i].device_off;

		assert_int_equal(bit(valid, i), fixture_is_filled(dst, PIECE_BYTES, i, 0));
		if (bit(valid, i)) {
			assert_int_equal(crc[i], okv_crc32c(dst, PIECE_BYTES));
		} else {
			assert_true(is_untouched(dst, PIECE_BYTES));
			nr_clear++;
		}
	}
	assert_int_equal(nr_clear, 5);
	for (i = 0; i < 5; i++)
		assert_false(bit(valid, gone[i]));
	omnikv_event_destroy(signal);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

static void failed_copy_reports_what_arrived(void **state)
{
	struct omnikv_piece pieces[256];
	struct omnikv_extent exts[256];
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	struct omnikv_sqe *sqe;
	struct omnikv_cqe cqe;
	struct omnikv_device_info info = { .size = sizeof(info) };
	uint64_t valid[4];
	uint32_t i, nr = 0;
	uint8_t *there;

	fixture_open(&f, *state, "4M", NULL, NULL);
	hbm = fixture_hbm(&f, 256 * PIECE_BYTES);
	there = omnikv_hbm_ptr(hbm);
	memset(there, UNTOUCHED, 256 * PIECE_BYTES);
	fixture_sealed(&f, exts, 256, 1, 0);
	make_pieces(pieces, exts, 256);
	if (f.is_sim) {
		assert_int_equal(omnikv_device_fail_next(f.dev, 1, -EIO), 0);
	} else {
		struct okv_failpoint point = { .name = "ring.copy", .nth = f.is_cuda ? 1 : 2, .times = 1, .error = EIO };

		assert_int_equal(okv_failpoint_arm(&point), 0);
	}
	sqe = fixture_sqe(&f, 7);
	omnikv_prep_load(sqe, hbm, pieces, 256);
	sqe->valid = valid;
	fixture_submit(&f);
	cqe = fixture_reap(&f);
	okv_failpoint_disarm_all();
	assert_int_equal(cqe.res, -EIO);
	for (i = 0; i < 256; i++) {
		if (bit(valid, i)) {
			assert_true(fixture_is_filled(there + pieces[i].device_off, PIECE_BYTES, i, 0));
			nr++;
		}
	}
	assert_int_equal(nr, cqe.nr_valid);
	/* A part of 256 pieces is one submission to a driver: all or nothing. */
	assert_true(nr < 256 && (nr > 0 || f.is_cuda));
	assert_int_equal(omnikv_device_info(f.dev, &info), 0);
	assert_int_equal(info.nr_failed, 1);
	/* The next one is whole again. */
	omnikv_prep_load(fixture_sqe(&f, 8), hbm, pieces, 256);
	fixture_submit(&f);
	fixture_expect(&f, 8, 256 * PIECE_BYTES);
	for (i = 0; i < 256; i++)
		assert_true(fixture_is_filled(there + pieces[i].device_off, PIECE_BYTES, i, 0));
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

/* Pieces of every length at odd offsets, several of one extent, some larger than what is copied at a time. */
static void pieces_of_any_shape_round_trip(void **state)
{
	enum { NR = 300, EXTENT_GRANULES = 256 };
	static struct omnikv_piece pieces[NR];
	static uint32_t crc_in[NR], crc_out[NR];
	static uint64_t valid[(NR + 63) / 64];
	struct omnikv_extent src, dst;
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	struct omnikv_sqe *sqe;
	uint64_t extent_bytes, off, random = 3, total = 0;
	uint8_t *from, *to;
	uint32_t i;

	fixture_open(&f, *state, "8M", NULL, NULL);
	extent_bytes = (uint64_t)EXTENT_GRANULES * omnikv_pool_granule_bytes(f.pool);
	hbm = fixture_hbm(&f, extent_bytes);
	fixture_sealed(&f, &src, 1, EXTENT_GRANULES, 42);
	assert_int_equal(omnikv_extent_alloc(f.client, EXTENT_GRANULES, 1, NULL, 0, &dst), 0);
	for (i = 0, off = 0; i < NR; i++) {
		uint64_t bytes = i == 17 ? 300000 : i % 3 ? 1 + fixture_random(&random) % 700 : 1 + i;

		off += fixture_random(&random) % 5;
		pieces[i] = (struct omnikv_piece) { src, off, off, bytes };
		off += bytes;
		total += bytes;
		assert_true(off <= extent_bytes);
	}
	sqe = fixture_sqe(&f, 1);
	omnikv_prep_load(sqe, hbm, pieces, NR);
	sqe->crc = crc_in;
	sqe->valid = valid;
	fixture_submit(&f);
	fixture_expect(&f, 1, (int64_t)total);
	for (i = 0; i < NR; i++) {
		assert_true(bit(valid, i));
		pieces[i].extent = dst;
	}
	/* Bits beyond the last piece are clear. */
	assert_int_equal(valid[NR / 64] >> (NR % 64), 0);
	sqe = fixture_sqe(&f, 2);
	omnikv_prep_store(sqe, hbm, pieces, NR);
	sqe->crc = crc_out;
	fixture_submit(&f);
	fixture_expect(&f, 2, (int64_t)total);
	from = omnikv_pool_addr(f.pool, &src);
	to = omnikv_pool_addr(f.pool, &dst);
	for (i = 0, off = 0; i < NR; i++) {
		assert_memory_equal(from + pieces[i].extent_off, to + pieces[i].extent_off, pieces[i].bytes);
		assert_int_equal(crc_in[i], okv_crc32c(from + pieces[i].extent_off, pieces[i].bytes));
		assert_int_equal(crc_out[i], crc_in[i]);
		/* What lies between was zeroed at allocation and is so still. */
		for (; off < pieces[i].extent_off; off++)
			assert_int_equal(to[off], 0);
		off += pieces[i].bytes;
	}
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

static void stores_go_into_own_private_memory_only(void **state)
{
	struct omnikv_piece pieces[3];
	struct omnikv_extent own, sealed, foreign;
	struct omnikv_client *other;
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	struct omnikv_sqe *sqe;
	struct omnikv_cqe cqe;
	uint64_t valid;

	fixture_open(&f, *state, "4M", NULL, NULL);
	hbm = fixture_hbm(&f, 3 * PIECE_BYTES);
	fixture_fill(omnikv_hbm_ptr(hbm), 3 * PIECE_BYTES, 5, 0);
	assert_int_equal(omnikv_client_open(f.pool, 0, &other), 0);
	fixture_sealed(&f, &sealed, 1, 1, 9);
	assert_int_equal(omnikv_extent_alloc(f.client, 1, 1, NULL, 0, &own), 0);
	assert_int_equal(omnikv_extent_alloc(other, 1, 1, NULL, 0, &foreign), 0);
	pieces[0] = (struct omnikv_piece) { sealed, 0, 0, PIECE_BYTES };
	pieces[1] = (struct omnikv_piece) { own, 0, PIECE_BYTES, PIECE_BYTES };
	pieces[2] = (struct omnikv_piece) { foreign, 0, 2 * PIECE_BYTES, PIECE_BYTES };
	sqe = fixture_sqe(&f, 1);
	omnikv_prep_store(sqe, hbm, pieces, 3);
	sqe->valid = &valid;
	fixture_submit(&f);
	cqe = fixture_reap(&f);
	assert_int_equal(cqe.res, -EPERM);
	assert_int_equal(valid, 2);
	assert_true(fixture_is_filled(omnikv_pool_addr(f.pool, &sealed), PIECE_BYTES, 9, 0));
	assert_true(fixture_is_filled(omnikv_pool_addr(f.pool, &own), PIECE_BYTES, 5, PIECE_BYTES));
	assert_int_equal(*(uint8_t *)omnikv_pool_addr(f.pool, &foreign), 0);
	/* Nothing is referenced any more: sealing would be -EBUSY else. */
	assert_int_equal(omnikv_extent_seal(f.client, &own, 1), 0);
	omnikv_client_close(other);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

static uint32_t state_of(struct ring_fixture *f, const struct omnikv_extent *ext)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	(void)ext;
	assert_int_equal(omnikv_pool_info(f->pool, &info), 0);
	return info.state_bytes[OMNIKV_EXTENT_QUARANTINED] ? OMNIKV_EXTENT_QUARANTINED : OMNIKV_EXTENT_FREE;
}

/* A copy under way cannot be recalled: the result says so and a notification follows when the memory is free. */
static void withdrawn_copy_keeps_its_memory_until_notified(void **state)
{
	struct omnikv_device_config c = { .size = sizeof(c), .transfer_ns = 1000000 };
	int by_deadline;

	for (by_deadline = 0; by_deadline < 2; by_deadline++) {
		struct omnikv_extent ext;
		struct omnikv_piece piece;
		struct ring_fixture f;
		struct omnikv_hbm *hbm;
		struct omnikv_event *signal;
		struct omnikv_sqe *sqe;
		struct omnikv_cqe cqe;
		uint64_t valid = 1;

		fixture_open(&f, *state, "4M", &c, NULL);
		hbm = fixture_hbm(&f, PIECE_BYTES);
		signal = fixture_event(&f);
		memset(omnikv_hbm_ptr(hbm), UNTOUCHED, PIECE_BYTES);
		assert_int_equal(omnikv_extent_alloc(f.client, 1, 1, NULL, 0, &ext), 0);
		fixture_fill(omnikv_pool_addr(f.pool, &ext), PIECE_BYTES, 1, 0);
		piece = (struct omnikv_piece) { ext, 0, 0, PIECE_BYTES };
		sqe = fixture_sqe(&f, 1);
		omnikv_prep_load(sqe, hbm, &piece, 1);
		sqe->valid = &valid;
		sqe->signal = signal;
		sqe->deadline_ns = by_deadline ? 500000 : 0;
		fixture_submit(&f);
		assert_int_equal(omnikv_device_poll(f.dev), 1);	/* the copy begins */
		assert_int_equal(omnikv_extent_free(f.client, &ext, 1), 0);
		assert_int_equal(state_of(&f, &ext), OMNIKV_EXTENT_QUARANTINED);
		if (!by_deadline) {
			omnikv_prep_cancel(fixture_sqe(&f, 2), 1);
			fixture_submit(&f);
		}
		cqe = fixture_reap(&f);
		assert_int_equal(cqe.user_data, 1);
		assert_int_equal(cqe.res, by_deadline ? -ETIME : -ECANCELED);
		assert_int_equal(cqe.flags, OMNIKV_CQE_F_MORE);
		assert_int_equal(cqe.nr_valid, 0);
		assert_int_equal(valid, 0);
		assert_int_equal(omnikv_event_query(signal), cqe.res);
		if (!by_deadline)
			fixture_expect(&f, 2, 0);
		assert_int_equal(state_of(&f, &ext), OMNIKV_EXTENT_QUARANTINED);
		assert_int_equal(omnikv_hbm_destroy(hbm), -EBUSY);
		/* The bytes land late, and only then is the memory free. */
		assert_true(is_untouched(omnikv_hbm_ptr(hbm), PIECE_BYTES));
		cqe = fixture_reap(&f);
		assert_int_equal(cqe.user_data, 1);
		assert_int_equal(cqe.res, 0);
		assert_int_equal(cqe.flags, OMNIKV_CQE_F_NOTIF);
		assert_true(fixture_is_filled(omnikv_hbm_ptr(hbm), PIECE_BYTES, 1, 0));
		assert_int_equal(valid, 0);
		assert_int_equal(state_of(&f, &ext), OMNIKV_EXTENT_FREE);
		assert_int_equal(omnikv_hbm_destroy(hbm), 0);
		omnikv_event_destroy(signal);
		fixture_close(&f);
	}
}

/* On the host a copy is recalled between two steps, so the memory is free with the result. */
static void withdrawn_host_copy_stops(void **state)
{
	struct okv_failpoint point = { .name = "ring.copy", .delay_ms = 2 };
	struct omnikv_extent exts[512];
	static struct omnikv_piece pieces[512];
	uint64_t valid[8];
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	struct omnikv_sqe *sqe;
	struct omnikv_cqe cqe;
	uint32_t i;
	int by_deadline;

	for (by_deadline = 0; by_deadline < 2; by_deadline++) {
		fixture_open(&f, *state, "8M", NULL, NULL);
		hbm = fixture_hbm(&f, 512 * PIECE_BYTES);
		memset(omnikv_hbm_ptr(hbm), UNTOUCHED, 512 * PIECE_BYTES);
		fixture_sealed(&f, exts, 512, 1, 0);
		make_pieces(pieces, exts, 512);
		assert_int_equal(okv_failpoint_arm(&point), 0);
		sqe = fixture_sqe(&f, 1);
		omnikv_prep_load(sqe, hbm, pieces, 512);
		sqe->valid = valid;
		sqe->deadline_ns = by_deadline ? 3000000 : 0;
		fixture_submit(&f);
		if (!by_deadline) {
			omnikv_prep_cancel(fixture_sqe(&f, 2), 1);
			fixture_submit(&f);
		}
		cqe = fixture_reap(&f);
		assert_int_equal(cqe.user_data, 1);
		assert_int_equal(cqe.res, by_deadline ? -ETIME : -ECANCELED);
		assert_int_equal(cqe.flags, 0);
		assert_true(cqe.nr_valid < 512);
		if (!by_deadline)
			fixture_expect(&f, 2, 0);
		assert_int_equal(omnikv_hbm_destroy(hbm), 0);
		okv_failpoint_disarm_all();
		for (i = 0; i < 512; i++)
			assert_true(bit(valid, i) == (i < cqe.nr_valid));
		assert_int_equal(omnikv_extent_release(f.client, exts, 512), 0);
		assert_int_equal(omnikv_extent_free(f.client, exts, 512), 0);
		fixture_close(&f);
	}
}

/* Work behind a failed load is not stuck: its event is poisoned, the stream goes on and can see it. */
static void failed_load_lets_the_stream_go_on(void **state)
{
	struct omnikv_piece piece = { { 0, 1, 1 }, 0, 0, PIECE_BYTES };
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	struct omnikv_event *signal;
	struct omnikv_sqe *sqe;

	fixture_open(&f, *state, "4M", NULL, NULL);
	hbm = fixture_hbm(&f, PIECE_BYTES);
	signal = fixture_event(&f);
	sqe = fixture_sqe(&f, 1);
	omnikv_prep_load(sqe, hbm, &piece, 1);
	sqe->signal = signal;
	fixture_submit(&f);
	assert_int_equal(omnikv_stream_wait(f.stream, signal), 0);
	assert_int_equal(omnikv_stream_sync(f.stream, FIXTURE_WAIT_NS), 0);
	assert_int_equal(omnikv_event_query(signal), -ESTALE);
	fixture_expect(&f, 1, -ESTALE);
	/* Firing it again changes nothing before it is reset. */
	assert_int_equal(omnikv_stream_record(f.stream, signal), 0);
	assert_int_equal(omnikv_stream_sync(f.stream, FIXTURE_WAIT_NS), 0);
	assert_int_equal(omnikv_event_query(signal), -ESTALE);
	omnikv_event_reset(signal);
	assert_int_equal(omnikv_event_query(signal), 0);
	omnikv_event_destroy(signal);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_EACH_DEVICE(vanished_blocks_are_not_reported_loaded),
		ON_EACH_DEVICE(failed_copy_reports_what_arrived),
		ON_EACH_DEVICE(pieces_of_any_shape_round_trip),
		ON_EACH_DEVICE(stores_go_into_own_private_memory_only),
		ON_EACH_DEVICE(failed_load_lets_the_stream_go_on),
		ON_SIM_WITH_KERNELS(vanished_blocks_are_not_reported_loaded),
		ON_SIM_WITH_KERNELS(failed_copy_reports_what_arrived),
		ON_SIM_WITH_KERNELS(pieces_of_any_shape_round_trip),
		ON_SIM_WITH_KERNELS(stores_go_into_own_private_memory_only),
		ON_SIM_WITH_KERNELS(failed_load_lets_the_stream_go_on),
		{ "withdrawn_copy_keeps_its_memory_until_notified", withdrawn_copy_keeps_its_memory_until_notified,
		  NULL, NULL, (void *)"sim" },
		{ "withdrawn_host_copy_stops", withdrawn_host_copy_stops, NULL, NULL, (void *)"host" },
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

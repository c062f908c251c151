// SPDX-License-Identifier: GPL-2.0-only
/*
 * SPILL and FETCH through rings: every byte comes back, what is not there or is another block does
 * not, and links, deadlines and cancellations mean what they mean for other transfers. A disk that
 * does not answer costs one result in time and one notification when the memory is free.
 */
#include <errno.h>
#include <unistd.h>

#include "failpoint.h"
#include "ring_queue.h"
#include "spill/spill.h"
#include "tests/harness/daemon_case.h"
#include "tests/harness/ring_fixture.h"
#include "tests/harness/sim_disk.h"
#include "tests/harness/spill_world.h"

#define SEGMENT		(1u << 20)
#define DISK		(OKV_SPILL_DATA_OFF + 8ull * SEGMENT)
#define NR		4u	/* blocks, of two parts: 4 and 2 granules of 4096 */
#define PARTS		2u

struct nvme {
	struct ring_fixture		f;
	struct sim_disk			sim;
	struct omnikv_spill		spill;
	uint8_t				ns[32];
	struct omnikv_spill_block	blocks[NR];
	struct omnikv_spill_io		io;
	struct omnikv_extent		from[NR * PARTS];	/* sealed and leased, filled by their index */
	struct omnikv_extent		to[NR * PARTS];		/* private */
	struct omnikv_piece		out[NR * PARTS];
	struct omnikv_piece		in[NR * PARTS];
	uint32_t			crc[NR * PARTS];
};

static uint32_t granules_of(uint32_t i)
{
	return i % PARTS ? 2 : 4;
}

static void open_nvme(struct nvme *n, const char *device)
{
	struct okv_store_config config = spill_sim_config(DISK, SEGMENT);

	memset(n, 0, sizeof(*n));
	fixture_open(&n->f, device, "4M", NULL, NULL);
	sim_disk_init(&n->sim, DISK);
	n->spill = (struct omnikv_spill){ .disk = &n->sim.disk, .is_simulated = true };
	assert_int_equal(spill_sim_open(&n->sim, &config, &n->spill.store), 0);
	memset(n->ns, 7, sizeof(n->ns));
	for (uint32_t b = 0; b < NR; b++) {
		n->blocks[b] = (struct omnikv_spill_block){
			.key = { .len = 16, .bytes = { 1, b } }, .position = b, .nr_tokens = 16, .nr_parts = PARTS,
		};
		if (b)
			n->blocks[b].parent = n->blocks[b - 1].key;
	}
	n->io = (struct omnikv_spill_io){ .spill = &n->spill, .ns = n->ns, .blocks = n->blocks, .nr_blocks = NR };
	for (uint32_t i = 0; i < NR * PARTS; i++) {
		uint32_t nr = granules_of(i);

		fixture_sealed(&n->f, &n->from[i], 1, nr, i);
		assert_int_equal(omnikv_extent_alloc(n->f.client, nr, 1, NULL, 0, &n->to[i]), 0);
		n->out[i] = (struct omnikv_piece){ .extent = n->from[i], .bytes = nr * 4096 };
		n->in[i] = (struct omnikv_piece){ .extent = n->to[i], .bytes = nr * 4096 };
		n->crc[i] = 1000 + i;
	}
}

static void close_nvme(struct nvme *n)
{
	const char *reason;

	assert_int_equal(omnikv_extent_release(n->f.client, n->from, NR * PARTS), 0);
	omnikv_extent_free(n->f.client, n->from, NR * PARTS);
	omnikv_extent_free(n->f.client, n->to, NR * PARTS);
	fixture_close(&n->f);
	if (okv_store_check_books(n->spill.store, &reason))
		fail_msg("%s", reason);
	okv_store_close(n->spill.store);
	sim_disk_fini(&n->sim);
}

static bool is_there(struct nvme *n, uint32_t i)
{
	return fixture_is_filled(omnikv_pool_addr(n->f.pool, &n->to[i]), n->in[i].bytes, i, 0);
}

static void spill_all(struct nvme *n)
{
	omnikv_prep_spill(fixture_sqe(&n->f, 1), &n->io, n->out, NR * PARTS, n->crc);
	fixture_submit(&n->f);
	fixture_expect(&n->f, 1, NR * 6 * 4096);
}

static void block_comes_back_byte_for_byte(void **state)
{
	uint32_t crc[NR * PARTS] = { 0 };
	uint64_t valid = 0;
	struct omnikv_cqe cqe;
	struct omnikv_sqe *sqe;
	struct nvme n;

	open_nvme(&n, *state);
	spill_all(&n);
	assert_int_equal(n.spill.store->stats.stored_records, NR);
	/* What is there already is not written again. */
	spill_all(&n);
	assert_int_equal(n.spill.store->stats.stored_records, NR);
	sqe = fixture_sqe(&n.f, 2);
	omnikv_prep_fetch(sqe, &n.io, n.in, NR * PARTS, crc);
	sqe->valid = &valid;
	fixture_submit(&n.f);
	cqe = fixture_reap(&n.f);
	assert_int_equal(cqe.res, NR * 6 * 4096);
	assert_int_equal(cqe.flags, 0);
	assert_int_equal(cqe.nr_valid, NR * PARTS);
	assert_int_equal(valid, (1u << NR * PARTS) - 1);
	for (uint32_t i = 0; i < NR * PARTS; i++) {
		assert_true(is_there(&n, i));
		assert_int_equal(crc[i], n.crc[i]);
	}
	fixture_expect_none(&n.f);
	close_nvme(&n);
}

static void block_that_is_not_there_is_said_to_be_missing(void **state)
{
	struct omnikv_spill_block right, *b;
	uint64_t valid;
	struct omnikv_cqe cqe;
	struct omnikv_sqe *sqe;
	struct nvme n;

	open_nvme(&n, *state);
	spill_all(&n);
	b = &n.blocks[1];
	right = *b;
	for (uint32_t wrong = 0; wrong < 7; wrong++) {
		*b = right;
		if (wrong == 0)
			b->key.bytes[5] = 1;
		if (wrong == 1)
			b->parent.bytes[5] = 1;
		if (wrong == 2)
			b->position++;
		if (wrong == 3)
			b->nr_tokens--;
		if (wrong == 4)
			n.ns[31] ^= 1;
		if (wrong == 5)
			n.in[2].bytes -= 4096;
		if (wrong == 6)
			b->parent.len = 0;
		sqe = fixture_sqe(&n.f, wrong);
		omnikv_prep_fetch(sqe, &n.io, n.in, NR * PARTS, NULL);
		sqe->valid = &valid;
		fixture_submit(&n.f);
		cqe = fixture_reap(&n.f);
		assert_int_equal(cqe.res, -ENOENT);
		/* The others are there, unless all are of another namespace. */
		assert_int_equal(cqe.nr_valid, wrong == 4 ? 0 : (NR - 1) * PARTS);
		assert_int_equal(valid, wrong == 4 ? 0 : 0xff & ~(3u << 2));
		if (wrong == 4)
			n.ns[31] ^= 1;
		if (wrong == 5)
			n.in[2].bytes += 4096;
	}
	close_nvme(&n);
}

static void damaged_block_is_never_served(void **state)
{
	struct omnikv_cqe cqe;
	struct omnikv_sqe *sqe;
	uint64_t valid;
	struct nvme n;

	open_nvme(&n, *state);
	spill_all(&n);
	/* A bit of the second block's second part: header of a page, and the blocks before it. */
	n.sim.base[OKV_SPILL_DATA_OFF + 2 * 4096 + 6 * 4096 + 4 * 4096 + 77] ^= 4;
	sqe = fixture_sqe(&n.f, 1);
	omnikv_prep_fetch(sqe, &n.io, n.in, NR * PARTS, NULL);
	sqe->valid = &valid;
	fixture_submit(&n.f);
	cqe = fixture_reap(&n.f);
	assert_int_equal(cqe.res, -EBADMSG);
	assert_int_equal(valid, 0xff & ~(3u << 2));
	close_nvme(&n);
}

/* The second part of each block over the first, which is longer: no block is whole, and nothing else happens. */
static void parts_that_overlap_are_no_block(void **state)
{
	struct omnikv_piece right[NR * PARTS];
	struct omnikv_cqe cqe;
	struct nvme n;

	open_nvme(&n, *state);
	spill_all(&n);
	memcpy(right, n.in, sizeof(right));
	for (uint32_t b = 0; b < NR; b++)
		n.in[b * PARTS + 1].extent = n.in[b * PARTS].extent;
	omnikv_prep_fetch(fixture_sqe(&n.f, 1), &n.io, n.in, NR * PARTS, NULL);
	fixture_submit(&n.f);
	cqe = fixture_reap(&n.f);
	assert_int_equal(cqe.res, -EINVAL);
	memcpy(n.in, right, sizeof(right));
	omnikv_prep_fetch(fixture_sqe(&n.f, 2), &n.io, n.in, NR * PARTS, NULL);
	fixture_submit(&n.f);
	fixture_expect(&n.f, 2, NR * 6 * 4096);
	close_nvme(&n);
}

static void memory_that_is_not_ones_own_is_refused(void **state)
{
	struct omnikv_cqe cqe;
	struct nvme n;

	open_nvme(&n, *state);
	spill_all(&n);
	/* Into what is sealed: not that block, but the others. */
	n.in[3].extent = n.from[3];
	omnikv_prep_fetch(fixture_sqe(&n.f, 1), &n.io, n.in, NR * PARTS, NULL);
	fixture_submit(&n.f);
	cqe = fixture_reap(&n.f);
	assert_int_equal(cqe.res, -EPERM);
	assert_int_equal(cqe.nr_valid, (NR - 1) * PARTS);
	assert_true(fixture_is_filled(omnikv_pool_addr(n.f.pool, &n.from[3]), n.in[3].bytes, 3, 0));
	/* From what is gone. */
	n.blocks[0].key.bytes[9] = 1;
	n.out[1].extent.generation++;
	omnikv_prep_spill(fixture_sqe(&n.f, 2), &n.io, n.out, NR * PARTS, n.crc);
	fixture_submit(&n.f);
	cqe = fixture_reap(&n.f);
	assert_int_equal(cqe.res, -ESTALE);
	assert_int_equal(cqe.nr_valid, (NR - 1) * PARTS);
	close_nvme(&n);
}

static void request_is_checked_word_by_word(void **state)
{
	struct omnikv_sqe good = { .opcode = OMNIKV_OP_SPILL };
	struct nvme n;

	open_nvme(&n, *state);
	omnikv_prep_spill(&good, &n.io, n.out, NR * PARTS, n.crc);
	assert_int_equal(okv_sqe_check(&good, 4096, 0), 0);
	assert_int_equal(okv_sqe_check(&good, 0, 0), -EPERM);
#define WRONG(field, value, error) do {							\
		struct nvme keep = n;							\
		struct omnikv_sqe sqe = good;						\
											\
		field = value;								\
		assert_int_equal(okv_sqe_check(&sqe, 4096, 1 << 20), error);		\
		n = keep;								\
	} while (0)
	WRONG(sqe.spill_io, NULL, -EOPNOTSUPP);
	WRONG(n.io.spill, NULL, -EOPNOTSUPP);
	WRONG(n.io.ns, NULL, -EINVAL);
	WRONG(n.io.blocks, NULL, -EINVAL);
	WRONG(n.io.nr_blocks, 0, -EINVAL);
	WRONG(n.io.nr_blocks, NR - 1, -EINVAL);
	WRONG(n.io.nr_blocks, OMNIKV_SPILL_BLOCKS_MAX + 1, -EINVAL);
	WRONG(n.io.reserved, 1, -EINVAL);
	WRONG(sqe.hbm, (struct omnikv_hbm *)&n, -EINVAL);
	WRONG(sqe.pieces, NULL, -EINVAL);
	WRONG(sqe.nr_pieces, NR * PARTS - 1, -EINVAL);
	WRONG(sqe.crc, NULL, -EINVAL);
	WRONG(sqe.reserved, 1, -EINVAL);
	WRONG(sqe.flags, 4, -EINVAL);
	WRONG(n.blocks[2].key.len, 0, -EINVAL);
	WRONG(n.blocks[2].key.len, 33, -EINVAL);
	WRONG(n.blocks[2].parent.len, 33, -EINVAL);
	WRONG(n.blocks[2].nr_tokens, 0, -EINVAL);
	WRONG(n.blocks[2].nr_parts, 0, -EINVAL);
	WRONG(n.blocks[2].nr_parts, 33, -EINVAL);
	WRONG(n.out[4].device_off, 4096, -EINVAL);
	WRONG(n.out[4].bytes, 4095, -EINVAL);
	WRONG(n.out[4].bytes, 0, -EINVAL);
	WRONG(n.out[4].bytes, 5 * 4096, -EINVAL);
	WRONG(n.out[4].extent_off, 512, -EINVAL);
	WRONG(n.out[4].extent_off, UINT64_MAX - 4095, -EINVAL);
	close_nvme(&n);
}

/* Device to pool to NVMe, and back to the device, each as one chain. */
static void chains_go_through_nvme(void **state)
{
	struct omnikv_piece piece[PARTS], back[PARTS];
	struct omnikv_sqe *sqe;
	struct omnikv_hbm *hbm;
	struct nvme n;
	uint64_t seen = 0;

	open_nvme(&n, *state);
	hbm = fixture_hbm(&n.f, 64 << 10);
	fixture_fill(omnikv_hbm_ptr(hbm), 6 * 4096, 99, 0);
	n.io.nr_blocks = 1;
	for (uint32_t p = 0; p < PARTS; p++) {
		piece[p] = n.in[p];
		piece[p].device_off = p * 4 * 4096;
		back[p] = n.in[2 + p];
		back[p].device_off = 32768 + p * 4 * 4096;
	}
	sqe = fixture_sqe(&n.f, 1);
	omnikv_prep_store(sqe, hbm, piece, PARTS);
	sqe->flags = OMNIKV_SQE_F_LINK;
	sqe = fixture_sqe(&n.f, 2);
	omnikv_prep_spill(sqe, &n.io, n.in, PARTS, n.crc);
	sqe->flags = OMNIKV_SQE_F_LINK;
	sqe = fixture_sqe(&n.f, 3);
	omnikv_prep_fetch(sqe, &n.io, n.in + 2, PARTS, NULL);
	sqe->flags = OMNIKV_SQE_F_LINK;
	omnikv_prep_load(fixture_sqe(&n.f, 4), hbm, back, PARTS);
	fixture_submit(&n.f);
	for (uint64_t i = 1; i <= 4; i++)
		fixture_expect(&n.f, i, 6 * 4096);
	assert_true(fixture_is_filled((uint8_t *)omnikv_hbm_ptr(hbm) + 32768, 6 * 4096, 99, 0));
	/* One that fails takes the rest of its chain along. */
	n.blocks[0].position = 5;
	sqe = fixture_sqe(&n.f, 5);
	omnikv_prep_fetch(sqe, &n.io, n.in + 2, PARTS, NULL);
	sqe->flags = OMNIKV_SQE_F_LINK;
	omnikv_prep_load(fixture_sqe(&n.f, 6), hbm, back, PARTS);
	fixture_submit(&n.f);
	for (uint32_t i = 0; i < 2; i++) {
		struct omnikv_cqe cqe = fixture_reap(&n.f);

		assert_int_equal(cqe.res, cqe.user_data == 5 ? -ENOENT : -ECANCELED);
		seen |= 1u << cqe.user_data;
	}
	assert_int_equal(seen, 3u << 5);
	omnikv_hbm_destroy(hbm);
	close_nvme(&n);
}

/* On "host": the thread that waits for the disk is busy for a while. */
static void deadline_and_cancellation_end_it_once(void **state)
{
	struct okv_failpoint slow = { .name = "ring.spill", .times = 1, .delay_ms = 300 };
	uint64_t begin_ns;
	struct omnikv_cqe cqe;
	struct omnikv_sqe *sqe;
	struct nvme n;

	(void)state;
	open_nvme(&n, "host");
	spill_all(&n);
	/* By its deadline while it is under way; the one behind it has not begun, and is withdrawn for good. */
	for (uint32_t is_cancel = 0; is_cancel < 2; is_cancel++) {
		assert_int_equal(okv_failpoint_arm(&slow), 0);
		begin_ns = fixture_now_ns();
		sqe = fixture_sqe(&n.f, 1);
		omnikv_prep_fetch(sqe, &n.io, n.in, NR * PARTS, NULL);
		sqe->deadline_ns = is_cancel ? 0 : 50000000;
		fixture_submit(&n.f);
		sleep_ms(20);
		sqe = fixture_sqe(&n.f, 2);
		omnikv_prep_fetch(sqe, &n.io, n.in, NR * PARTS, NULL);
		fixture_submit(&n.f);
		omnikv_prep_cancel(fixture_sqe(&n.f, 3), 2);
		if (is_cancel)
			omnikv_prep_cancel(fixture_sqe(&n.f, 4), 1);
		fixture_submit(&n.f);
		cqe = fixture_reap(&n.f);
		assert_int_equal(cqe.user_data, 2);
		assert_int_equal(cqe.res, -ECANCELED);
		assert_int_equal(cqe.flags, 0);
		fixture_expect(&n.f, 3, 0);
		cqe = fixture_reap(&n.f);
		assert_true(fixture_now_ns() - begin_ns < 250000000);
		assert_int_equal(cqe.user_data, 1);
		assert_int_equal(cqe.res, is_cancel ? -ECANCELED : -ETIME);
		assert_int_equal(cqe.flags, OMNIKV_CQE_F_MORE);
		if (is_cancel)
			fixture_expect(&n.f, 4, 0);
		/* Its memory is in use until it says otherwise. */
		assert_int_equal(omnikv_extent_seal(n.f.client, n.to, 1), -EBUSY);
		cqe = fixture_reap(&n.f);
		assert_int_equal(cqe.user_data, 1);
		assert_int_equal(cqe.res, 0);
		assert_int_equal(cqe.flags, OMNIKV_CQE_F_NOTIF);
		fixture_expect_none(&n.f);
	}
	okv_failpoint_disarm_all();
	/* And works as before. */
	omnikv_prep_fetch(fixture_sqe(&n.f, 9), &n.io, n.in, NR * PARTS, NULL);
	fixture_submit(&n.f);
	fixture_expect(&n.f, 9, NR * 6 * 4096);
	close_nvme(&n);
}

static void set_stuck(struct nvme *n, bool is_stuck)
{
	pthread_mutex_lock(&n->spill.store->io_lock);
	n->sim.is_stuck = is_stuck;
	n->sim.now_ns += 61000000000;
	pthread_mutex_unlock(&n->spill.store->io_lock);
}

static void disk_that_does_not_answer_keeps_its_memory_only(void **state)
{
	for (uint32_t is_put = 0; is_put < 2; is_put++) {
		struct omnikv_cqe cqe;
		struct nvme n;

		open_nvme(&n, *state);
		if (!is_put)
			spill_all(&n);
		pthread_mutex_lock(&n.spill.store->io_lock);
		n.sim.stick_nth = 1;
		pthread_mutex_unlock(&n.spill.store->io_lock);
		if (is_put)
			omnikv_prep_spill(fixture_sqe(&n.f, 1), &n.io, n.out, NR * PARTS, n.crc);
		else
			omnikv_prep_fetch(fixture_sqe(&n.f, 1), &n.io, n.in, NR * PARTS, NULL);
		fixture_submit(&n.f);
		cqe = fixture_reap(&n.f);
		assert_int_equal(cqe.user_data, 1);
		assert_int_equal(cqe.res, -ETIME);
		assert_int_equal(cqe.flags, OMNIKV_CQE_F_MORE);
		if (!is_put)
			assert_int_equal(omnikv_extent_seal(n.f.client, n.to, 1), -EBUSY);
		/* Others are told at once, and hold nothing. */
		omnikv_prep_fetch(fixture_sqe(&n.f, 2), &n.io, n.in, 1 * PARTS, NULL);
		n.io.nr_blocks = 1;
		fixture_submit(&n.f);
		cqe = fixture_reap(&n.f);
		assert_int_equal(cqe.user_data, 2);
		assert_int_equal(cqe.res, is_put ? -ENOENT : -ETIME);
		assert_int_equal(cqe.flags, 0);
		n.io.nr_blocks = NR;
		set_stuck(&n, false);
		if (n.f.is_sim)
			omnikv_device_poll(n.f.dev);
		cqe = fixture_reap(&n.f);
		assert_int_equal(cqe.user_data, 1);
		assert_int_equal(cqe.flags, OMNIKV_CQE_F_NOTIF);
		fixture_expect_none(&n.f);
		spill_all(&n);
		close_nvme(&n);
	}
}

static void ring_ends_while_the_disk_does_not_answer(void **state)
{
	uint64_t begin_ns;
	struct nvme n;

	open_nvme(&n, *state);
	spill_all(&n);
	pthread_mutex_lock(&n.spill.store->io_lock);
	n.sim.stick_nth = 1;
	pthread_mutex_unlock(&n.spill.store->io_lock);
	omnikv_prep_fetch(fixture_sqe(&n.f, 1), &n.io, n.in, NR * PARTS, NULL);
	fixture_submit(&n.f);
	fixture_expect(&n.f, 1, -ETIME);
	for (uint64_t i = 2; i <= 5; i++)
		omnikv_prep_fetch(fixture_sqe(&n.f, i), &n.io, n.in, NR * PARTS, NULL);
	fixture_submit(&n.f);
	begin_ns = fixture_now_ns();
	omnikv_ring_exit(n.f.ring);
	assert_true(fixture_now_ns() - begin_ns < 5000000000);
	/* The disk may write there for ever: nobody else gets that memory. */
	assert_int_equal(omnikv_extent_seal(n.f.client, n.to, 1), -EBUSY);
	set_stuck(&n, false);
	omnikv_stream_destroy(n.f.stream);
	assert_int_equal(omnikv_device_close(n.f.dev), 0);
	omnikv_client_close(n.f.client);
	omnikv_pool_close(n.f.pool);
	okv_store_close(n.spill.store);
	sim_disk_fini(&n.sim);
}

/* Each call of the disk failing once, and for ever. */
static void errors_of_the_disk_are_results(void **state)
{
	for (uint32_t k = 0; k < 24; k++) {
		uint32_t nr_valid = 0;
		struct nvme n;

		open_nvme(&n, *state);
		n.sim.fail_nth = n.sim.nr_calls + 1 + k / 2;
		n.sim.fail_times = k % 2 ? UINT32_MAX : 1;
		n.sim.fail_error = k % 3 ? -EIO : -ENOSPC;
		for (uint64_t i = 0; i < 4; i++) {
			struct omnikv_cqe cqe;
			uint64_t valid;
			struct omnikv_sqe *sqe = fixture_sqe(&n.f, i);

			if (i % 2)
				omnikv_prep_fetch(sqe, &n.io, n.in, NR * PARTS, NULL);
			else
				omnikv_prep_spill(sqe, &n.io, n.out, NR * PARTS, n.crc);
			sqe->valid = &valid;
			fixture_submit(&n.f);
			cqe = fixture_reap(&n.f);
			assert_int_equal(cqe.user_data, i);
			assert_int_equal(cqe.flags, 0);
			assert_true(cqe.res == NR * 6 * 4096 || cqe.res == -EIO || cqe.res == -ENOSPC || cqe.res == -ENOENT);
			for (uint32_t p = 0; p < NR * PARTS && i % 2; p++)
				assert_true(!(valid >> p & 1) || is_there(&n, p));
			nr_valid += cqe.nr_valid;
			set_stuck(&n, false);
		}
		assert_true(nr_valid || k % 2);
		n.sim.fail_nth = 0;
		set_stuck(&n, false);
		spill_all(&n);
		close_nvme(&n);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_EACH_DEVICE(block_comes_back_byte_for_byte),
		ON_EACH_DEVICE(block_that_is_not_there_is_said_to_be_missing),
		ON_EACH_DEVICE(damaged_block_is_never_served),
		ON_EACH_DEVICE(parts_that_overlap_are_no_block),
		ON_EACH_DEVICE(memory_that_is_not_ones_own_is_refused),
		ON_EACH_DEVICE(request_is_checked_word_by_word),
		ON_EACH_DEVICE(chains_go_through_nvme),
		ON_EACH_DEVICE(disk_that_does_not_answer_keeps_its_memory_only),
		ON_EACH_DEVICE(ring_ends_while_the_disk_does_not_answer),
		ON_EACH_DEVICE(errors_of_the_disk_are_results),
		cmocka_unit_test(deadline_and_cancellation_end_it_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * A request is aborted while its copies are in flight, and its memory goes to somebody else at
 * once: what the new owner writes stays as it is, in the pool and on the device, and every
 * operation still ends once.
 *
 * "sim" copies late, in parts and in random order. On the host a second thread takes the
 * memory over. OMNIKV_TEST_SCALE multiplies the number of rounds.
 */
#include "../harness/ring_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "failpoint.h"

#define GRANULE_BYTES	4096
#define NR_SLOTS	16
#define PIECES_MAX	4
#define TAKEN_MAX	24

static uint64_t scale(void)
{
	const char *text = getenv("OMNIKV_TEST_SCALE");

	return text && atoll(text) > 0 ? (uint64_t)atoll(text) : 1;
}

/* What an owner writes: one word all over, cheap to write and to compare. */
static void mark(void *buf, uint64_t bytes, uint64_t word)
{
	uint64_t i;

	for (i = 0; i < bytes / 8; i++)
		((uint64_t *)buf)[i] = word;
}

static bool is_marked(const void *buf, uint64_t bytes, uint64_t word)
{
	uint64_t i;

	for (i = 0; i < bytes / 8; i++) {
		if (((const uint64_t *)buf)[i] != word)
			return false;
	}
	return true;
}

/* The second request: takes whatever is free, writes, and looks later whether it is still there. */
struct taker {
	struct omnikv_client	*client;
	struct omnikv_pool	*pool;
	struct omnikv_extent	taken[TAKEN_MAX];
	uint64_t		words[TAKEN_MAX];
	uint32_t		nr;
	uint64_t		word;
	uint64_t		random;
	uint64_t		nr_taken;
	uint64_t		nr_foreign;	/* memory that changed under its owner */
	_Atomic bool		is_over;
};

static void taker_give(struct taker *t, uint32_t i)
{
	if (!is_marked(omnikv_pool_addr(t->pool, &t->taken[i]), GRANULE_BYTES, t->words[i]))
		t->nr_foreign++;
	assert_int_equal(omnikv_extent_free(t->client, &t->taken[i], 1), 0);
	t->nr--;
	t->taken[i] = t->taken[t->nr];
	t->words[i] = t->words[t->nr];
}

static void taker_turn(struct taker *t)
{
	while (t->nr < TAKEN_MAX &&
	       !omnikv_extent_alloc(t->client, 1, 1, NULL, OMNIKV_ALLOC_F_NO_ZERO, &t->taken[t->nr])) {
		t->words[t->nr] = ++t->word | UINT64_C(1) << 63;
		mark(omnikv_pool_addr(t->pool, &t->taken[t->nr]), GRANULE_BYTES, t->words[t->nr]);
		t->nr++;
		t->nr_taken++;
	}
	while (t->nr > TAKEN_MAX / 2)
		taker_give(t, (uint32_t)(fixture_random(&t->random) % t->nr));
}

static void *taker_thread(void *arg)
{
	struct taker *t = arg;

	while (!atomic_load(&t->is_over))
		taker_turn(t);
	return NULL;
}

/* A part of device memory with at most one transfer; what stands in it between transfers is the engine's. */
struct slot {
	struct omnikv_piece	pieces[PIECES_MAX];
	uint64_t		valid;
	uint64_t		word;		/* what its memory, or what is loaded into it, is marked with */
	uint32_t		nr;
	bool			is_busy;
	bool			is_load;
	bool			has_result;
};

struct round_state {
	struct ring_fixture	f;
	struct omnikv_hbm	*hbm;
	struct slot		slots[NR_SLOTS];
	uint64_t		nr_submitted;
	uint64_t		nr_results;
	uint64_t		nr_more;
	uint64_t		nr_notifications;
	uint64_t		nr_foreign;
	uint64_t		nr_cancelled;
};

static uint8_t *slot_addr(struct round_state *r, const struct slot *s)
{
	return (uint8_t *)omnikv_hbm_ptr(r->hbm) + (uint64_t)(s - r->slots) * PIECES_MAX * GRANULE_BYTES;
}

static void on_completion(struct round_state *r, const struct omnikv_cqe *cqe)
{
	struct slot *s = &r->slots[cqe->user_data % NR_SLOTS];
	uint32_t i;

	if (cqe->user_data >= NR_SLOTS)
		return;		/* a cancellation's own */
	if (cqe->flags & OMNIKV_CQE_F_NOTIF) {
		assert_true(s->is_busy && s->has_result);
		r->nr_notifications++;
	} else {
		assert_true(s->is_busy && !s->has_result);
		s->has_result = true;
		r->nr_results++;
		r->nr_cancelled += cqe->res == -ECANCELED;
		/* Freed or not, what is said to have arrived is right. */
		for (i = 0; i < s->nr && s->is_load; i++) {
			if (s->valid >> i & 1 &&
			    !is_marked(slot_addr(r, s) + i * GRANULE_BYTES, GRANULE_BYTES, s->word))
				r->nr_foreign++;
		}
		if (cqe->flags & OMNIKV_CQE_F_MORE) {
			r->nr_more++;
			return;
		}
	}
	/* The engine has its memory back, and uses it for something else. */
	s->is_busy = false;
	s->word = UINT64_C(0x1000000) + r->nr_submitted;
	mark(slot_addr(r, s), PIECES_MAX * GRANULE_BYTES, s->word);
}

static void reap(struct round_state *r, bool must)
{
	struct omnikv_cqe *cqe;
	int ret;

	while (!(ret = must ? omnikv_wait_cqe(r->f.ring, &cqe, FIXTURE_WAIT_NS) : omnikv_peek_cqe(r->f.ring, &cqe))) {
		struct omnikv_cqe copy = *cqe;

		omnikv_cqe_seen(r->f.ring, cqe);
		on_completion(r, &copy);
		must = false;
	}
	assert_true(ret == -EAGAIN);
}

static void submit(struct round_state *r)
{
	int ret;

	while ((ret = omnikv_submit(r->f.ring)) != 0) {
		if (ret == -EAGAIN)
			reap(r, true);
		else
			assert_true(ret > 0);
	}
}

static struct omnikv_sqe *get_sqe(struct round_state *r)
{
	struct omnikv_sqe *sqe;

	while (!(sqe = omnikv_get_sqe(r->f.ring)))
		reap(r, false);
	return sqe;
}

static void run(struct round_state *r, struct taker *t, const char *device, uint64_t nr_rounds)
{
	struct omnikv_device_config c = {
		.size = sizeof(c), .flags = OMNIKV_DEVICE_F_SHUFFLE | OMNIKV_DEVICE_F_POISON,
		.late_ns = 30000, .transfer_ns = 10000, .seed = 7,
	};
	uint64_t random = 11, round;
	pthread_t thread;
	uint32_t i;

	/* 64 granules: what is freed is allocated again at once. */
	fixture_open(&r->f, device, "256K", &c, NULL);
	r->hbm = fixture_hbm(&r->f, NR_SLOTS * PIECES_MAX * GRANULE_BYTES);
	for (i = 0; i < NR_SLOTS; i++) {
		r->slots[i].word = 1;
		mark(slot_addr(r, &r->slots[i]), PIECES_MAX * GRANULE_BYTES, 1);
	}
	t->pool = r->f.pool;
	assert_int_equal(omnikv_client_open(r->f.pool, 0, &t->client), 0);
	if (!r->f.is_sim)
		assert_int_equal(pthread_create(&thread, NULL, taker_thread, t), 0);

	for (round = 0; r->nr_submitted < nr_rounds; round++) {
		struct slot *s = &r->slots[fixture_random(&random) % NR_SLOTS];
		struct omnikv_extent exts[PIECES_MAX];
		uint64_t x = fixture_random(&random);
		uint32_t nr = 1 + (uint32_t)(x % PIECES_MAX);
		struct omnikv_sqe *sqe;

		if (s->is_busy) {
			reap(r, false);
			continue;
		}
		if (!is_marked(slot_addr(r, s), PIECES_MAX * GRANULE_BYTES, s->word))
			r->nr_foreign++;
		if (omnikv_extent_alloc(r->f.client, 1, nr, NULL, OMNIKV_ALLOC_F_NO_ZERO, exts)) {
			reap(r, false);
			if (r->f.is_sim)
				taker_turn(t);
			continue;
		}
		s->nr = nr;
		s->is_load = x >> 8 & 1;
		s->is_busy = true;
		s->has_result = false;
		if (s->is_load)
			s->word = UINT64_C(0x2000000) + round;
		for (i = 0; i < nr; i++) {
			if (s->is_load)
				mark(omnikv_pool_addr(r->f.pool, &exts[i]), GRANULE_BYTES, s->word);
			s->pieces[i] = (struct omnikv_piece) {
				exts[i], 0, (uint64_t)(slot_addr(r, s) - (uint8_t *)omnikv_hbm_ptr(r->hbm)) +
				(uint64_t)i * GRANULE_BYTES, GRANULE_BYTES,
			};
		}
		sqe = get_sqe(r);
		if (s->is_load)
			omnikv_prep_load(sqe, r->hbm, s->pieces, nr);
		else
			omnikv_prep_store(sqe, r->hbm, s->pieces, nr);
		sqe->valid = &s->valid;
		sqe->user_data = (uint64_t)(s - r->slots);
		if (x >> 40 & 1)
			sqe->deadline_ns = 1 + (x >> 44) % 40000;
		submit(r);
		r->nr_submitted++;

		/* Somewhere between before its beginning and after its end... */
		for (i = (uint32_t)(x >> 9) % 4; i; i--)
			reap(r, false);
		/* ... the request is aborted ... */
		if (x >> 12 & 1) {
			sqe = get_sqe(r);
			omnikv_prep_cancel(sqe, (uint64_t)(s - r->slots));
			sqe->user_data = UINT64_MAX;
			submit(r);
		}
		/* ... and its memory given up without waiting for anything. */
		assert_int_equal(omnikv_extent_free(r->f.client, exts, nr), 0);
		if (r->f.is_sim)
			taker_turn(t);
	}
	while (r->nr_results < r->nr_submitted || r->nr_notifications < r->nr_more)
		reap(r, true);
	atomic_store(&t->is_over, true);
	if (!r->f.is_sim)
		pthread_join(thread, NULL);
	while (t->nr)
		taker_give(t, 0);

	assert_int_equal(r->nr_foreign, 0);
	assert_int_equal(t->nr_foreign, 0);
	assert_int_equal(r->nr_results, r->nr_submitted);
	assert_int_equal(r->nr_notifications, r->nr_more);
	assert_true(t->nr_taken > r->nr_submitted / 4);
	assert_true(r->nr_cancelled > 0);
	if (r->f.is_sim)
		assert_true(r->nr_more > nr_rounds / 20);
	for (i = 0; i < NR_SLOTS; i++) {
		if (!is_marked(slot_addr(r, &r->slots[i]), PIECES_MAX * GRANULE_BYTES, r->slots[i].word))
			r->nr_foreign++;
	}
	assert_int_equal(r->nr_foreign, 0);
	omnikv_client_close(t->client);
	assert_int_equal(omnikv_hbm_destroy(r->hbm), 0);
	fixture_close(&r->f);
}

static void aborted_request_never_writes_into_reused_memory(void **state)
{
	static struct round_state r;
	struct taker t = { .random = 5 };

	memset(&r, 0, sizeof(r));
	run(&r, &t, *state, 20000 * scale());
}

/* The same where each copy takes its time. */
static void slow_copies_do_not_reach_reused_memory(void **state)
{
	struct okv_failpoint point = { .name = "ring.copy", .delay_ms = 1 };
	static struct round_state r;
	struct taker t = { .random = 6 };

	memset(&r, 0, sizeof(r));
	assert_int_equal(okv_failpoint_arm(&point), 0);
	run(&r, &t, *state, 300 * scale());
	okv_failpoint_disarm_all();
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_EACH_DEVICE(aborted_request_never_writes_into_reused_memory),
		{ "slow_copies_do_not_reach_reused_memory", slow_copies_do_not_reach_reused_memory, NULL, NULL,
		  (void *)"host" },
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

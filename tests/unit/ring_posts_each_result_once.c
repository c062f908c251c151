// SPDX-License-Identifier: GPL-2.0-only
/*
 * No completion is lost, doubled or late to be seen: small rings, slow consumers, random
 * cancellations, on every device. On the host one thread submits and another reaps.
 *
 * 9.4 million operations; 100 million with --full, where OMNIKV_TEST_SCALE, which multiplies their number, is 100, and
 * 25 in sanitized builds.
 */
#include "../harness/ring_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

/* Measured exactly in the bench; ten times the limit here: 10 s on a machine that is free, where a tick is a ms and a little. */
#define STALL_TICKS_MAX	UINT64_C(9000)

static uint64_t scale(void)
{
	const char *text = getenv("OMNIKV_TEST_SCALE"), *full = getenv("OMNIKV_FULL"), *variant = getenv("OMNIKV_VARIANT");

	if (text && atoll(text) > 0)
		return (uint64_t)atoll(text);
	return !full || !atoi(full) ? 1 : !variant || !strcmp(variant, "plain") ? 100 : 25;
}

struct run {
	struct ring_fixture	f;
	struct omnikv_hbm	*hbm;
	struct omnikv_piece	piece;
	uint64_t		nr_ops;
	uint8_t			*seen;		/* [nr_ops] bit 0: result, bit 1: more, bit 2: notification */
	uint64_t		nr_done;	/* operations whose last completion has come */
	uint64_t		nr_bad;
	uint64_t		nap_every;	/* consumer: sleep 1 ms after so many */
	uint64_t		naps;		/* ... this often at most */
	uint64_t		stall_ticks;	/* longest wait for a completion */
	uint64_t		nr_cancelled;	/* withdrawn, or past their deadline */
	_Atomic uint64_t	nr_submitted;
	_Atomic uint64_t	ticks;
	_Atomic bool		is_over;
	bool			is_random;
};

/*
 * The clock of stalls: a thread like those that are watched, which sleeps a millisecond at a time. It gets on as they
 * do, so a machine that is busy, or stopped, makes no stall, and a completion that nobody posts does.
 */
static void *tick(void *arg)
{
	struct run *r = arg;
	struct timespec at;

	while (!atomic_load(&r->is_over)) {
		clock_gettime(CLOCK_MONOTONIC, &at);
		at.tv_nsec += 1000000;
		if (at.tv_nsec >= 1000000000) {
			at.tv_nsec -= 1000000000;
			at.tv_sec++;
		}
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL))
			;
		atomic_fetch_add(&r->ticks, 1);
	}
	return NULL;
}

static void account(struct run *r, const struct omnikv_cqe *cqe)
{
	uint8_t *seen;

	if (cqe->user_data >= r->nr_ops) {
		r->nr_bad++;
		return;
	}
	seen = &r->seen[cqe->user_data];
	if (cqe->flags & OMNIKV_CQE_F_NOTIF) {
		r->nr_bad += *seen != 3;
		*seen |= 4;
		r->nr_done++;
		return;
	}
	r->nr_bad += *seen != 0;
	r->nr_cancelled += cqe->res == -ECANCELED || cqe->res == -ETIME;
	*seen |= 1;
	if (cqe->flags & OMNIKV_CQE_F_MORE) {
		*seen |= 2;
		/* A transfer that was withdrawn, nothing else. */
		r->nr_bad += cqe->res != -ECANCELED && cqe->res != -ETIME;
	} else {
		r->nr_done++;
	}
}

static void *reaper(void *arg)
{
	struct run *r = arg;
	uint64_t last = atomic_load(&r->ticks), nr = 0;

	while (r->nr_done < r->nr_ops) {
		struct omnikv_cqe *cqe;
		uint64_t now;
		int ret = omnikv_wait_cqe(r->f.ring, &cqe, 100000000);

		if (ret == -ENODATA)
			continue;	/* nothing submitted yet */
		now = atomic_load(&r->ticks);
		if (ret == -ETIME) {
			if (now - last > STALL_TICKS_MAX)
				break;
			continue;
		}
		if (ret) {
			r->nr_bad++;
			break;
		}
		if (now - last > r->stall_ticks)
			r->stall_ticks = now - last;
		account(r, cqe);
		omnikv_cqe_seen(r->f.ring, cqe);
		if (r->nap_every && ++nr % r->nap_every == 0 && r->naps) {
			struct timespec ms = { 0, 1000000 };

			r->naps--;
			nanosleep(&ms, NULL);
		}
		last = atomic_load(&r->ticks);
	}
	return NULL;
}

static void fill(struct run *r, struct omnikv_sqe *sqe, uint64_t id, uint64_t *random)
{
	uint64_t x;

	sqe->user_data = id;
	if (!r->is_random)
		return;
	x = fixture_random(random);
	switch (x % 8) {
	case 0:
	case 1:
	case 2:
		omnikv_prep_copy(sqe, r->hbm, &r->piece, 1);
		break;
	case 3:
	case 4:
		omnikv_prep_cancel(sqe, id - 1 - (x >> 8) % 64);
		break;
	case 5:
		omnikv_prep_barrier(sqe);
		break;
	default:
		break;
	}
	if ((x >> 16) % 8 == 0)
		sqe->flags |= OMNIKV_SQE_F_LINK;
	if ((x >> 20) % 16 == 0)
		sqe->flags |= OMNIKV_SQE_F_DRAIN;
	if ((x >> 24) % 16 == 0)
		sqe->deadline_ns = 1 + (x >> 32) % 5000;
}

static void run(struct run *r, const char *device, uint32_t entries, uint32_t cq_entries, uint64_t nr_ops)
{
	struct omnikv_ring_config c = { .size = sizeof(c), .entries = entries, .cq_entries = cq_entries };
	struct omnikv_device_config dc = {
		.size = sizeof(dc), .flags = OMNIKV_DEVICE_F_SHUFFLE, .late_ns = 3000, .transfer_ns = 500, .seed = entries,
	};
	uint64_t next = 0, random = entries + 1, i, missing = 0;
	struct omnikv_sqe *sqe = NULL;
	struct omnikv_cqe *cqe;
	pthread_t thread, clock;
	uint32_t burst = 0;

	fixture_open(&r->f, device, NULL, &dc, &c);
	r->hbm = fixture_hbm(&r->f, 8192);
	r->piece = (struct omnikv_piece) { .extent_off = 0, .device_off = 4096, .bytes = 64 };
	r->nr_ops = nr_ops;
	r->seen = calloc(nr_ops, 1);
	assert_non_null(r->seen);
	assert_int_equal(pthread_create(&clock, NULL, tick, r), 0);
	if (!r->f.is_sim)
		assert_int_equal(pthread_create(&thread, NULL, reaper, r), 0);

	while (next < nr_ops || burst) {
		int ret;

		while (next < nr_ops && burst < entries && (sqe = omnikv_get_sqe(r->f.ring))) {
			fill(r, sqe, next++, &random);
			burst++;
			if (r->is_random && fixture_random(&random) % 4 == 0)
				break;
		}
		ret = omnikv_submit(r->f.ring);
		assert_true(ret >= 0 || ret == -EAGAIN);
		if (ret > 0)
			burst -= (uint32_t)ret;
		if (!r->f.is_sim) {
			/* Not a yield: a busy machine would not come back for milliseconds. */
			if (ret <= 0)
				nanosleep(&(struct timespec) { 0, 20000 }, NULL);
			continue;
		}
		while (ret == -EAGAIN ? !omnikv_wait_cqe(r->f.ring, &cqe, FIXTURE_WAIT_NS) :
					!omnikv_peek_cqe(r->f.ring, &cqe)) {
			account(r, cqe);
			omnikv_cqe_seen(r->f.ring, cqe);
			ret = 0;
		}
	}
	if (r->f.is_sim)
		reaper(r);
	else
		pthread_join(thread, NULL);
	atomic_store(&r->is_over, true);
	pthread_join(clock, NULL);
	for (i = 0; i < nr_ops; i++)
		missing += r->seen[i] != 1 && r->seen[i] != 7;
	print_message("# %llu operations, %llu of them withdrawn or too late\n", (unsigned long long)nr_ops,
		      (unsigned long long)r->nr_cancelled);
	assert_int_equal(missing, 0);
	assert_int_equal(r->nr_bad, 0);
	assert_int_equal(r->nr_done, nr_ops);
	assert_true(r->stall_ticks < STALL_TICKS_MAX);
	assert_int_equal(omnikv_peek_cqe(r->f.ring, &cqe), -EAGAIN);
	assert_int_equal(omnikv_wait_cqe(r->f.ring, &cqe, 0), -ENODATA);
	assert_int_equal(omnikv_hbm_destroy(r->hbm), 0);
	free(r->seen);
	fixture_close(&r->f);
}

static void slow_consumer_loses_no_completion(void **state)
{
	struct run r = { .nap_every = 64, .naps = 50 * scale() };

	/* Threads that take turns are slow on a busy machine. */
	run(&r, *state, 32, 32, strcmp(*state, "sim") ? 100000 * scale() : scale() < 15 ? 9000000 : 600000 * scale());
}

static void random_traffic(const char *device, uint32_t entries, uint64_t nr_ops)
{
	struct run r = { .is_random = true };

	run(&r, device, entries, entries, nr_ops * scale());
}

static void ring_of_one_completes_everything(void **state)
{
	random_traffic(*state, 1, 500);
}

static void ring_of_two_completes_everything(void **state)
{
	random_traffic(*state, 2, 1000);
}

static void ring_of_32_completes_everything(void **state)
{
	random_traffic(*state, 32, 20000);
}

static void ring_of_4096_completes_everything(void **state)
{
	random_traffic(*state, 4096, 50000);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_EACH_DEVICE(slow_consumer_loses_no_completion),
		ON_EACH_DEVICE(ring_of_one_completes_everything),
		ON_EACH_DEVICE(ring_of_two_completes_everything),
		ON_EACH_DEVICE(ring_of_32_completes_everything),
		ON_EACH_DEVICE(ring_of_4096_completes_everything),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Every request of a piece of work fails, once and for ever, with each of several errors: the
 * store opens or says that very error, no wrong byte is served, what a put said is stored is
 * found, and when the disk is well again so is the store.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/spill_world.h"

#define SEGMENT	(128u << 10)
#define DISK	(OKV_SPILL_DATA_OFF + 6ull * SEGMENT)
#define BLOCKS	60u

static const int errors[] = { EIO, ENOSPC, EDQUOT, EINTR, EAGAIN, EPERM, ENOMEM, ENODEV };

static uint64_t nr_runs, nr_served, nr_refused, nr_bad;

static void die(const char *what, uint64_t nth, int error)
{
	printf("not ok 1 - errors_cost_hits_and_nothing_else\n# %s (call %llu, error %d)\n", what, (unsigned long long)nth,
	       error);
	exit(1);
}

static void look(struct okv_store *store, const uint8_t *stored, uint64_t nth, int error)
{
	for (uint64_t id = 0; id < BLOCKS; id++) {
		int ret = spill_get(store, 1, id);

		if (ret == -EUCLEAN)
			die("a wrong byte was served", nth, error);
		if (!ret && stored && !stored[id])
			die("a block was found that was refused", nth, error);
		nr_served += !ret;
		nr_bad += ret == -EBADMSG;
	}
}

/* Returns how many calls there were. */
static uint64_t run(uint64_t nth, uint32_t times, int error)
{
	struct okv_store_config config = spill_sim_config(DISK, SEGMENT);
	uint8_t stored[BLOCKS] = { 0 };
	struct okv_store *store;
	const char *reason;
	struct sim_disk sim;
	struct okv_record rec;
	uint64_t nr_calls;
	int ret;

	sim_disk_init(&sim, DISK);
	sim.fail_nth = nth;
	sim.fail_times = times;
	sim.fail_error = -error;
	for (uint32_t round = 0; round < 2; round++) {
		ret = spill_sim_open(&sim, &config, &store);
		if (ret) {
			if (ret != -error && ret != -EIO && ret != -EBADMSG)
				die("opening fails with another error", nth, -ret);
			continue;
		}
		for (uint64_t id = round * 30; id < round * 30 + 30; id += 3) {
			for (uint64_t k = id; k < id + 3; k++) {
				ret = spill_put(store, 1, k, 12 << 10, 2);
				stored[k] = !ret;
				nr_refused += ret != 0;
				if (ret && ret != -error && ret != -EIO)
					die("a put fails with another error", nth, -ret);
				spill_block(&rec, 1, k, OKV_SPILL_PAGE, 1);
				if (!ret != okv_store_find(store, rec.ns, &rec.key, NULL))
					die("a block is found where its put failed, or not where it did not", nth, error);
				/* Its reading may fail, but what was said to be written was. */
				if (!ret && spill_get(store, 1, k) == -EBADMSG)
					die("a put that failed says that it did not", nth, error);
			}
			if (id % 9 == 0)
				okv_store_sync(store);
			if (id % 12 == 0)
				spill_get(store, 1, id / 2);
		}
		look(store, stored, nth, error);
		if (okv_store_check_books(store, &reason))
			die(reason, nth, error);
		okv_store_close(store);
	}
	nr_calls = sim.nr_calls;

	/* The disk is well again. A half-written superblock is all that may stand in the way. */
	sim.fail_nth = 0;
	ret = spill_sim_open(&sim, &config, &store);
	if (ret)
		die("the store does not open on a disk that is well", nth, -ret);
	look(store, NULL, nth, error);
	if (spill_put(store, 2, 0, 12 << 10, 1) || spill_get(store, 2, 0))
		die("the store does not store on a disk that is well", nth, error);
	okv_store_close(store);

	/* In one session: degraded, then well. */
	sim.fail_nth = 0;
	if (spill_sim_open(&sim, &config, &store))
		die("the store does not open again", nth, error);
	sim.nr_calls = 0;
	sim.fail_nth = 1 + nth % 7;
	sim.fail_times = times;
	for (uint64_t id = 10; id < 20; id++)
		spill_put(store, 2, id, 12 << 10, 1);
	sim.fail_nth = 0;
	sim.now_ns += 61000000000;
	if (spill_put(store, 2, 99, 12 << 10, 1) || spill_get(store, 2, 99))
		die("storing does not resume", nth, error);
	okv_store_close(store);
	sim_disk_fini(&sim);
	nr_runs++;
	return nr_calls;
}

int main(void)
{
	const char *full = getenv("OMNIKV_FULL");
	uint32_t nr_errors = full && atoi(full) ? sizeof(errors) / sizeof(errors[0]) : 3;
	uint64_t nr_sites = run(0, 1, EIO), last = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("1..1\n# %llu calls to the disk without errors\n", (unsigned long long)nr_sites);
	for (uint32_t e = 0; e < nr_errors; e++) {
		for (uint64_t nth = 1; nth <= nr_sites + 1; nth++) {
			last = run(nth, 1, errors[e]);
			/* Until none fires any more. */
			if (nth == nr_sites + 1 && last > 4 * nr_sites)
				die("the work never ends", nth, errors[e]);
			run(nth, UINT32_MAX, errors[e]);
		}
	}
	if (!nr_refused || !nr_served)
		die("nothing failed", 0, 0);
	printf("ok 1 - errors_cost_hits_and_nothing_else\n# %llu runs, %u errors at each of %llu calls, once and for ever: %llu "
	       "blocks served, %llu puts refused, %llu bad\n", (unsigned long long)nr_runs, nr_errors,
	       (unsigned long long)nr_sites, (unsigned long long)nr_served, (unsigned long long)nr_refused,
	       (unsigned long long)nr_bad);
	return 0;
}

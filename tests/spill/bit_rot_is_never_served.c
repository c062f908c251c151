// SPDX-License-Identifier: GPL-2.0-only
/*
 * A store whose bytes rot: one bit flipped at random places and in every field of every
 * structure, two blocks swapped, the end cut off, a part replaced by an older image of itself. No wrong byte is
 * served, what is bad is counted, a check finds it, and a quarantine outlives the next opening.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/spill_world.h"

#define SEGMENT	(256u << 10)
#define DISK	(OKV_SPILL_DATA_OFF + 6ull * SEGMENT)
#define BLOCK	(16u << 10)
#define BLOCKS	40u

static struct sim_disk sim;
static struct okv_store_config config;
static uint64_t nr_trials, nr_bad, nr_missed, nr_refused;

static void die(const char *what, uint64_t a, uint64_t b)
{
	printf("not ok 1 - bit_rot_is_never_served\n# %s (%llu, %llu)\n", what, (unsigned long long)a, (unsigned long long)b);
	exit(1);
}

/* Open on the disk as it is; what was served right. */
static uint32_t trial(uint64_t where)
{
	struct omnikv_spill_stats stats = { .size = sizeof(stats) };
	struct okv_store *store;
	uint32_t nr_right = 0, bad = 0;
	int ret;

	nr_trials++;
	ret = spill_sim_open(&sim, &config, &store);
	if (ret) {
		/* Both superblocks would have to be bad. */
		nr_refused++;
		if (ret != -EBADMSG)
			die("opening fails with another error", where, -ret);
		return 0;
	}
	for (uint64_t id = 0; id < BLOCKS; id++) {
		ret = spill_get(store, 1, id);
		if (ret == -EUCLEAN)
			die("a wrong byte was served", where, id);
		if (ret && ret != -ENOENT && ret != -EBADMSG)
			die("an error where a miss was due", where, -ret);
		nr_right += !ret;
		bad += ret == -EBADMSG;
		nr_missed += ret == -ENOENT;
		if (ret == -EBADMSG && spill_get(store, 1, id) != -ENOENT)
			die("a bad block is found again", where, id);
	}
	okv_store_stats(store, &stats);
	if (stats.bad_records != bad)
		die("bad records are not counted", stats.bad_records, bad);
	nr_bad += bad;
	okv_store_close(store);
	return nr_right;
}

static void flip(uint64_t at, uint32_t bit, uint32_t least)
{
	uint8_t byte = sim.base[at] ^ 1 << bit;

	sim.is_undoing = true;
	sim_disk_poke(&sim, at, &byte, 1);
	if (trial(at) < least)
		die("one bit cost too much", at, bit);
	sim_disk_undo(&sim);
	sim.is_undoing = false;
}

static void check_and_quarantine(void)
{
	struct omnikv_spill_check check = { .size = sizeof(check) };
	struct okv_record rec;
	struct okv_store *store;
	uint64_t at;
	uint8_t byte;

	if (spill_sim_open(&sim, &config, &store))
		die("the store does not open", 0, 0);
	spill_block(&rec, 1, 5, BLOCK, 1);
	if (!okv_store_find(store, rec.ns, &rec.key, &rec))
		die("block 5 is not there", 0, 0);
	/* The payload of the first segment's records. */
	at = OKV_SPILL_DATA_OFF + rec.off + 100;
	byte = sim.base[at] ^ 4;
	sim_disk_poke(&sim, at, &byte, 1);
	if (okv_store_check(store, &check, NULL, NULL) || check.nr_records != BLOCKS || check.nr_bad != 1 ||
	    check.nr_quarantined || !strstr(check.first_bad, "wrong checksum"))
		die("a check does not find one bad record", check.nr_records, check.nr_bad);
	check = (struct omnikv_spill_check){ .size = sizeof(check), .flags = OMNIKV_SPILL_CHECK_F_QUARANTINE };
	if (okv_store_check(store, &check, NULL, NULL) || check.nr_quarantined != 1)
		die("it is not put into quarantine", check.nr_quarantined, 0);
	if (spill_get(store, 1, 5) != -ENOENT)
		die("what is in quarantine is found", 5, 0);
	okv_store_close(store);
	if (spill_sim_open(&sim, &config, &store))
		die("the store does not open", 0, 0);
	if (spill_get(store, 1, 5) != -ENOENT)
		die("what is in quarantine is found after opening", 5, 0);
	check = (struct omnikv_spill_check){ .size = sizeof(check) };
	if (okv_store_check(store, &check, NULL, NULL) || check.nr_bad || check.nr_records != BLOCKS - 1)
		die("the check does not pass after the quarantine", check.nr_bad, check.nr_records);
	/* It is stored again like any other. */
	if (spill_put(store, 1, 5, BLOCK, 1) || spill_get(store, 1, 5))
		die("a block cannot be stored again after its quarantine", 5, 0);
	okv_store_close(store);
}

int main(void)
{
	const char *full = getenv("OMNIKV_FULL");
	uint64_t nr_flips = full && atoi(full) ? 50000 : 2000, state = 11;
	static uint8_t a[BLOCK], b[BLOCK];
	struct okv_store *store;
	uint8_t *old;

	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("1..1\n# seed 11\n");
	sim_disk_init(&sim, DISK);
	config = spill_sim_config(DISK, SEGMENT);
	if (spill_sim_open(&sim, &config, &store) || spill_put_run(store, 1, 0, 12, BLOCK, 1))
		die("the store cannot be made", 0, 0);
	okv_store_close(store);
	old = malloc(DISK);
	if (!old)
		return 1;
	memcpy(old, sim.base, DISK);
	if (spill_sim_open(&sim, &config, &store) || spill_put_run(store, 1, 12, BLOCKS, BLOCK, 1))
		die("the store cannot be made", 0, 0);
	okv_store_close(store);
	if (trial(0) != BLOCKS)
		die("the store is not whole", 0, 0);

	for (uint64_t i = 0; i < nr_flips; i++)
		flip(spill_random(&state) % (OKV_SPILL_DATA_OFF + 3 * SEGMENT), spill_random(&state) % 8, BLOCKS - 15);
	/* Every byte of the superblock, of a segment's header, of a batch's header, of a trailer. */
	for (uint64_t at = 0; at < 512; at++)
		flip(at, at % 8, BLOCKS);
	for (uint64_t at = 0; at < 512; at++)
		flip(OKV_SPILL_DATA_OFF + at, at % 8, BLOCKS - 15);
	for (uint64_t at = 0; at < 2048; at++)
		flip(OKV_SPILL_DATA_OFF + OKV_SPILL_PAGE + at, at % 8, BLOCKS);
	for (uint64_t at = 0; at < 512; at++)
		flip(OKV_SPILL_DATA_OFF + SEGMENT - OKV_SPILL_PAGE + at, at % 8, BLOCKS);

	/* Two payloads of one length change places. */
	sim.is_undoing = true;
	memcpy(a, sim.base + OKV_SPILL_DATA_OFF + 2 * OKV_SPILL_PAGE, BLOCK);
	memcpy(b, sim.base + OKV_SPILL_DATA_OFF + 2 * OKV_SPILL_PAGE + BLOCK, BLOCK);
	sim_disk_poke(&sim, OKV_SPILL_DATA_OFF + 2 * OKV_SPILL_PAGE, b, BLOCK);
	sim_disk_poke(&sim, OKV_SPILL_DATA_OFF + 2 * OKV_SPILL_PAGE + BLOCK, a, BLOCK);
	if (trial(1) != BLOCKS - 2)
		die("swapped blocks are served", 0, 0);
	sim_disk_undo(&sim);

	/* The end is cut off at every page of the last segment in use. */
	for (uint64_t end = OKV_SPILL_DATA_OFF; end < OKV_SPILL_DATA_OFF + 4 * SEGMENT; end += 4 * OKV_SPILL_PAGE) {
		sim.bytes = end;
		trial(end);
	}
	sim.bytes = DISK;

	/* The older file, whole and in part, over the newer one. */
	for (uint64_t off = 0; off < DISK; off += SEGMENT / 2) {
		uint64_t bytes = DISK - off < SEGMENT / 2 ? DISK - off : SEGMENT / 2;

		sim_disk_poke(&sim, off, old + off, bytes);
		trial(off);
	}
	if (trial(2) != 12)
		die("the older file has other blocks than it had", 0, 0);
	sim_disk_undo(&sim);
	sim.is_undoing = false;
	if (trial(3) != BLOCKS)
		die("undoing does not undo", 0, 0);
	check_and_quarantine();

	if (!nr_bad)
		die("nothing was ever bad", 0, 0);
	printf("ok 1 - bit_rot_is_never_served\n# %llu trials: %llu blocks refused as bad, %llu missed, %llu stores refused\n",
	       (unsigned long long)nr_trials, (unsigned long long)nr_bad, (unsigned long long)nr_missed,
	       (unsigned long long)nr_refused);
	free(old);
	sim_disk_fini(&sim);
	return 0;
}

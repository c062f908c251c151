// SPDX-License-Identifier: GPL-2.0-only
/*
 * Power cuts, enumerated: a store of 16 MiB is worked with, its disk's journal kept, and then
 * opened on what the disk may hold after a cut at any moment: every prefix of the journal;
 * of what was written since the last sync every subset of one to four writes and random ones
 * of more; in other orders; the last write torn at 512 bytes or at a page. On each image the
 * store must open, serve no wrong byte, and have every block that a sync had promised.
 *
 * Argument: how many images; 5,000, or 100,000 where OMNIKV_FULL is 1. The seed is printed.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/harness/spill_world.h"

#define DISK		(16ull << 20)
#define SEGMENT		(1ull << 20)
#define BLOCK		(64u << 10)
#define BLOCKS_MAX	700u
#define SALT		7

/* What the journal's position promises: blocks synced and not reclaimed. */
struct promise {
	uint32_t	at;			/* journal entries before it */
	uint8_t		has[BLOCKS_MAX];
};

struct cut {
	struct sim_disk		sim;
	struct promise		*promises;
	uint32_t		nr_promises;
	uint64_t		nr_images;
	uint64_t		nr_served;
	uint64_t		nr_missed;
	uint64_t		nr_bad;
	uint64_t		nr_due;
	struct okv_store_config	config;
	uint8_t			*expected[BLOCKS_MAX];	/* what block @id must hold; made when it is first served */
	uint8_t			*buf;
};

static void die(const char *what, uint64_t a, uint64_t b)
{
	printf("not ok 1 - power_cut_loses_nothing_synced\n# %s (%llu, %llu)\n", what, (unsigned long long)a,
	       (unsigned long long)b);
	exit(1);
}

static bool is_found(struct okv_store *store, uint64_t id)
{
	struct okv_record rec;

	spill_block(&rec, SALT, id, OKV_SPILL_PAGE, 1);
	return okv_store_find(store, rec.ns, &rec.key, NULL);
}

/* Everything that can be found now has been synced. */
static void promise(struct cut *cut, struct okv_store *store)
{
	struct promise *p;

	cut->promises = realloc(cut->promises, (cut->nr_promises + 1) * sizeof(*p));
	p = &cut->promises[cut->nr_promises++];
	memset(p, 0, sizeof(*p));
	p->at = cut->sim.nr_entries;
	for (uint64_t id = 0; id < BLOCKS_MAX; id++)
		p->has[id] = is_found(store, id);
}

/*
 * The work whose power is cut: batches of one to nine blocks, syncs between, reads that make some hot, enough for
 * reclaim, closed and opened twice. A promise ends where its block is reclaimed: all that a later position may
 * not have any more is struck out behind.
 */
static void work(struct cut *cut)
{
	uint64_t state = 42, id = 0;
	struct okv_store *store;

	cut->sim.is_logging = true;
	for (uint32_t round = 0; round < 3; round++) {
		cut->config.random[0]++;
		if (spill_sim_open(&cut->sim, &cut->config, &store))
			die("the store does not open", round, 0);
		/* The last round reclaims much, and syncs seldom: what it moves has the store's own syncs alone. */
		for (uint32_t step = 0; step < (round == 2 ? 90 : 24) && id + 9 < BLOCKS_MAX; step++) {
			uint64_t to = id + 1 + spill_random(&state) % 9;

			if (spill_put_run(store, SALT, id, to, step % 5 == 4 ? BLOCK / 4 : BLOCK, 1 + step % 3))
				die("a put fails", id, to);
			id = to;
			for (uint32_t k = 0; k < 3; k++)
				spill_get(store, SALT, id - 1 - spill_random(&state) % (id < 150 ? id : 150));
			if (step % (round == 2 ? 12 : 3) == 2) {
				if (okv_store_sync(store))
					die("sync fails", id, 0);
				promise(cut, store);
			}
		}
		if (round == 1) {
			/* Killed: what it knew is gone, what it wrote is not. */
			cut->sim.is_logging = false;
			okv_store_close(store);
			cut->sim.is_logging = true;
		} else {
			okv_store_close(store);
		}
		if (round == 1) {
			/* The disk is as it was before that close. */
			memset(cut->sim.base, 0, DISK);
			for (uint32_t i = 0; i < cut->sim.nr_entries; i++)
				if (!cut->sim.journal[i].is_sync)
					memcpy(cut->sim.base + cut->sim.journal[i].off, cut->sim.journal[i].data,
					       cut->sim.journal[i].bytes);
		}
	}
	cut->sim.is_logging = false;
}

/* Was the block promised before journal position @end, whatever has reached the disk? What may be reclaimed since is not. */
static bool is_promised(const struct cut *cut, uint32_t end, uint64_t id)
{
	const struct promise *before = NULL;

	for (uint32_t i = 0; i < cut->nr_promises; i++) {
		const struct promise *p = &cut->promises[i];

		/* Reclaimed by the next promise: anywhere between. */
		if (p->at > end)
			return before && before->has[id] && p->has[id];
		before = p;
	}
	return before && before->has[id];
}

/* As spill_get(), with what must be there kept. */
static int look(struct cut *cut, struct okv_store *store, uint64_t id)
{
	struct okv_store_get get = { 0 };
	struct okv_record want;
	uint8_t *at = cut->buf;
	uint64_t bytes;

	spill_block(&want, SALT, id, OKV_SPILL_PAGE, 1);
	if (!okv_store_find(store, want.ns, &want.key, &get.rec))
		return -ENOENT;
	bytes = okv_record_payload(&get.rec);
	if (bytes > BLOCK)
		return -EUCLEAN;
	for (uint32_t p = 0; p < get.rec.nr_parts; p++) {
		get.bufs[p] = at;
		at += get.rec.parts[p].bytes;
	}
	if (okv_store_get(store, &get, 1))
		return -ETIME;
	if (get.res)
		return get.res;
	if (!cut->expected[id]) {
		cut->expected[id] = malloc(BLOCK);
		if (!cut->expected[id])
			die("no memory", id, 0);
		spill_fill(cut->expected[id], SALT, id, BLOCK);
	}
	return memcmp(cut->buf, cut->expected[id], bytes) ? -EUCLEAN : 0;
}

/* Open the store on the disk as it is, and look at everything. */
static void verify(struct cut *cut, uint32_t end)
{
	struct okv_store *store;
	const char *reason;
	int ret;

	ret = spill_sim_open(&cut->sim, &cut->config, &store);
	if (ret)
		die("recovery fails", end, -ret);
	for (uint64_t id = 0; id < BLOCKS_MAX; id++) {
		bool is_due = is_promised(cut, end, id);

		cut->nr_due += is_due;
		ret = look(cut, store, id);
		if (ret == -EUCLEAN)
			die("a wrong byte was served", end, id);
		if (ret && is_due)
			die("a block that was synced is not there", end, id);
		if (ret && ret != -ENOENT && ret != -EBADMSG)
			die("an error where a miss was due", id, -ret);
		cut->nr_served += !ret;
		cut->nr_missed += ret == -ENOENT;
		cut->nr_bad += ret == -EBADMSG;
	}
	if (okv_store_check_books(store, &reason))
		die(reason, end, 0);
	/* It can be written to again. */
	if (cut->nr_images % 8 == 0 && (spill_put(store, SALT + 1, 1, BLOCK, 1) || spill_get(store, SALT + 1, 1)))
		die("the recovered store does not store", end, 0);
	okv_store_close(store);
	cut->nr_images++;
}

static void apply(struct cut *cut, const struct sim_entry *entry, uint64_t from, uint64_t bytes)
{
	if (!entry->is_sync && bytes)
		sim_disk_poke(&cut->sim, entry->off + from, entry->data + from, bytes);
}

/*
 * Images of a cut among writes [first, end) of one epoch; what is before @first is on the disk.
 * Subset bits @mask (of up to 64 writes) in the order of @state's shuffle, the last one torn as @tear says.
 */
static void image(struct cut *cut, uint32_t first, uint32_t end, uint64_t mask, bool is_shuffled, uint32_t tear,
		  uint64_t *state)
{
	uint32_t order[64], nr = 0;

	for (uint32_t i = first; i < end && nr < 64; i++)
		if (mask >> (i - first) & 1)
			order[nr++] = i;
	for (uint32_t i = nr; is_shuffled && i > 1; i--) {
		uint32_t k = spill_random(state) % i, t = order[i - 1];

		order[i - 1] = order[k];
		order[k] = t;
	}
	cut->sim.is_undoing = true;
	for (uint32_t i = 0; i < nr; i++) {
		const struct sim_entry *entry = &cut->sim.journal[order[i]];

		if (i + 1 < nr || !tear) {
			apply(cut, entry, 0, entry->bytes);
		} else if (spill_random(state) & 1) {
			/* The first so many sectors or pages of it. */
			apply(cut, entry, 0, spill_random(state) % (entry->bytes / tear) * tear);
		} else {
			/* Any of them. */
			for (uint64_t at = 0; at < entry->bytes; at += tear)
				if (spill_random(state) & 1)
					apply(cut, entry, at, tear);
		}
	}
	verify(cut, end);
	sim_disk_undo(&cut->sim);
	cut->sim.is_undoing = false;
}

int main(int argc, char **argv)
{
	const char *full = getenv("OMNIKV_FULL");
	uint64_t want = full && atoi(full) ? 100000 : 5000, seed = 2026, state = seed;
	struct cut cut = { 0 };
	struct sim_disk *sim = &cut.sim;
	uint32_t first = 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc > 1)
		want = strtoull(argv[1], NULL, 10);
	sim_disk_init(sim, DISK);
	cut.buf = aligned_alloc(OKV_SPILL_PAGE, BLOCK);
	if (!cut.buf)
		return 1;
	cut.config = spill_sim_config(DISK, SEGMENT);
	work(&cut);
	/* All later openings are one: they must not be taken for the owner of what lies there. */
	cut.config.random[0] = 99;
	memset(sim->base, 0, DISK);

	printf("1..1\n# seed %llu, %u entries of the journal, %u promises\n", (unsigned long long)seed, sim->nr_entries,
	       cut.nr_promises);
	/* As many images of each position as it takes to come to what is wanted. */
	for (uint32_t at = 0; at <= sim->nr_entries; at++) {
		uint64_t share = (want * (at + 1)) / (sim->nr_entries + 1);
		uint32_t nr = at - first < 64 ? at - first : 64;

		image(&cut, first, at, UINT64_MAX, false, 0, &state);
		for (uint32_t k = 0; cut.nr_images < share; k++) {
			uint64_t mask = UINT64_MAX;
			uint32_t tear = k % 3 == 0 ? 0 : k % 3 == 1 ? 512 : 4096;

			if (nr && nr <= 4 && k < 1u << nr)
				mask = k;
			else if (k % 4)
				mask = spill_random(&state) | (k % 4 == 1 ? spill_random(&state) : 0);
			image(&cut, first, at, mask, k % 2, tear, &state);
		}
		if (at < sim->nr_entries && sim->journal[at].is_sync) {
			for (uint32_t i = first; i < at; i++)
				apply(&cut, &sim->journal[i], 0, sim->journal[i].bytes);
			first = at + 1;
		}
	}
	if (cut.nr_images < want || !cut.nr_served || !cut.nr_bad || !cut.nr_due)
		die("too little was tried", cut.nr_images, cut.nr_bad);
	printf("ok 1 - power_cut_loses_nothing_synced\n# %llu images: %llu blocks served, of which %llu had been promised, %llu missed, %llu "
	       "torn and refused\n", (unsigned long long)cut.nr_images, (unsigned long long)cut.nr_served,
	       (unsigned long long)cut.nr_due,
	       (unsigned long long)cut.nr_missed, (unsigned long long)cut.nr_bad);
	for (uint64_t id = 0; id < BLOCKS_MAX; id++)
		free(cut.expected[id]);
	free(cut.buf);
	free(cut.promises);
	sim_disk_fini(sim);
	return 0;
}

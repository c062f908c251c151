// SPDX-License-Identifier: GPL-2.0-only
/*
 * Row M6: another process's blocks, by their keys: their place in the pool under a lease, and copies of them.
 *
 * A daemon is started for the run; a process attaches to it and commits the blocks, this one attaches and
 * gets them in random order. A get is everything that a caller does: the lookup, the leases, where the bytes
 * lie, and letting go. Every block is compared once, outside of what is timed. One thread.
 */
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <omnikv.h>

#include "bench.h"
#include "bench_kv.h"
#include "cmd.h"
#include "copy.h"
#include "own_daemon.h"

#define NR_SIZES	2u
#define GETS_MIN	2000u
#define BATCH		16u	/* blocks that are leased and copied at once */
#define NONE		((double)NAN)

static const uint32_t sizes[NR_SIZES] = { 64u << 10, 1u << 20 };

struct world {
	struct okv_own_daemon	daemon;
	struct omnikv_plan	plans[NR_SIZES];
	uint64_t		nr[NR_SIZES];		/* blocks of each size */
	uint64_t		side_bytes;
	unsigned char		*own;			/* [side_bytes] what the limit reads */
	unsigned char		*others;		/* [side_bytes] in the other process: what the peer reads */
	unsigned char		*flat;			/* [side_bytes] destination of all */
	uint64_t		*order;
	pid_t			other;
	struct omnikv_manager	*manager;
	struct omnikv_pool	*pool;
};

uint64_t okv_bench_get_need(uint64_t footprint_bytes)
{
	return footprint_bytes + footprint_bytes / 8 + footprint_bytes / 4 * 3 + (192u << 20);
}

static struct omnikv_manager *attach(const struct world *w)
{
	struct omnikv_error err = { "" };
	struct omnikv_manager *manager;

	if (omnikv_manager_attach(w->daemon.socket, NULL, &manager, &err))
		okv_die("the daemon at %s: %s", w->daemon.socket, err.text);
	return manager;
}

/* The other process: all blocks, each a prompt of its own, and memory for the peer to read. */
static void be_other(const struct world *w, int done_fd)
{
	uint64_t *own = mmap(NULL, w->side_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct omnikv_manager *manager;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (own == MAP_FAILED)
		_exit(1);
	madvise(own, w->side_bytes, MADV_HUGEPAGE);
	manager = attach(w);
	for (uint32_t s = 0; s < NR_SIZES; s++) {
		struct omnikv_space *space = okv_bench_kv_open(manager, &w->plans[s]);

		for (uint64_t i = 0; i < w->nr[s]; i++)
			okv_bench_kv_store(space, i, 1);
		omnikv_space_close(space);
	}
	omnikv_manager_destroy(manager);
	for (uint64_t i = 0; i < w->side_bytes / sizeof(uint64_t); i++)
		own[i] = i;
	if (write(done_fd, &own, sizeof(own)) != sizeof(own))
		_exit(1);
	for (;;)
		pause();
}

static void open_world(struct okv_bench *bench, struct world *w)
{
	struct omnikv_error err = { "" };
	int fds[2];

	w->side_bytes = bench->footprint_bytes / 4;
	w->own = okv_bench_alloc(bench, w->side_bytes);
	w->flat = okv_bench_alloc(bench, w->side_bytes);
	for (uint64_t i = 0; i < w->side_bytes / sizeof(uint64_t); i++)
		((uint64_t *)w->own)[i] = okv_bench_random(bench);
	for (uint32_t s = 0; s < NR_SIZES; s++) {
		okv_bench_kv_plan(&w->plans[s], sizes[s]);
		w->nr[s] = bench->footprint_bytes / 2 / sizes[s];
	}
	w->order = okv_bench_alloc(bench, w->nr[0] * sizeof(*w->order));
	if (okv_own_daemon_init(&w->daemon, "bench"))
		okv_die("no directory for a daemon: %s", strerror(errno));
	snprintf(w->daemon.pool, sizeof(w->daemon.pool), "%llu",
		 (unsigned long long)(bench->footprint_bytes + bench->footprint_bytes / 8 + (64u << 20)) >> 21 << 21);
	w->daemon.granule_bytes = 4096;
	w->daemon.reserve_bytes = 8u << 20;
	w->daemon.with_hugetlb = bench->nr_huge_pages > 0;
	if (okv_own_daemon_start(&w->daemon, &err)) {
		okv_own_daemon_stop(&w->daemon, SIGKILL);
		okv_own_daemon_fini(&w->daemon);
		okv_die("%s", err.text);
	}
	okv_bench_must(!pipe(fds), "no pipe");
	w->other = fork();
	okv_bench_must(w->other >= 0, "no process");
	if (!w->other)
		be_other(w, fds[1]);
	close(fds[1]);
	okv_bench_must(read(fds[0], &w->others, sizeof(w->others)) == sizeof(w->others), "the other process could not commit its blocks");
	close(fds[0]);
	w->manager = attach(w);
	w->pool = omnikv_client_pool(omnikv_manager_client(w->manager));
}

static void close_world(struct world *w)
{
	omnikv_manager_destroy(w->manager);
	kill(w->other, SIGKILL);
	waitpid(w->other, NULL, 0);
	okv_own_daemon_stop(&w->daemon, SIGTERM);
	okv_own_daemon_fini(&w->daemon);
}

/* Where block @number lies; it stays there until @seq is closed. */
static const void *get(const struct world *w, struct omnikv_space *space, uint64_t number, struct omnikv_seq **seq)
{
	struct omnikv_key key = okv_bench_kv_key(number);
	struct omnikv_piece piece;

	okv_bench_must(!omnikv_seq_open(space, &key, 1, NULL, seq) &&
		       omnikv_seq_pieces(*seq, 0, 0, 0, 0, OKV_BENCH_KV_TOKENS, 0, &piece, 1) == 1, "a block is not there");
	return (const unsigned char *)omnikv_pool_addr(w->pool, &piece.extent) + piece.extent_off;
}

/* Where the @nr blocks @numbers lie, at most BATCH; they stay there until @seqs are closed. */
static void get_batch(const struct world *w, struct omnikv_space *space, const uint64_t *numbers, uint32_t nr,
		      struct omnikv_seq **seqs, const void **places)
{
	struct omnikv_prefix prefixes[BATCH] = { { .nr_keys = 0 } };
	struct omnikv_key keys[BATCH];
	struct omnikv_piece piece;

	for (uint32_t i = 0; i < nr; i++) {
		keys[i] = okv_bench_kv_key(numbers[i]);
		prefixes[i] = (struct omnikv_prefix){ .keys = &keys[i], .nr_keys = 1 };
	}
	okv_bench_must(!omnikv_seq_open_batch(space, prefixes, nr, seqs), "blocks cannot be looked up");
	for (uint32_t i = 0; i < nr; i++) {
		okv_bench_must(omnikv_seq_pieces(seqs[i], 0, 0, 0, 0, OKV_BENCH_KV_TOKENS, 0, &piece, 1) == 1,
			       "a block is not there");
		places[i] = (const unsigned char *)omnikv_pool_addr(w->pool, &piece.extent) + piece.extent_off;
	}
}

static void check_all(const struct world *w, uint32_t s, struct omnikv_space *space)
{
	struct omnikv_seq *seq;

	for (uint64_t i = 0; i < w->nr[s]; i++) {
		struct okv_run run = { .src = get(w, space, i, &seq), .dst = w->flat, .bytes = sizes[s] };

		okv_copy_runs(&run, 1, NULL);
		omnikv_seq_close(seq);
		okv_bench_must(okv_bench_kv_is_right(w->flat, i, sizes[s]), "a block has wrong bytes");
	}
}

static void shuffle(struct okv_bench *bench, struct world *w, uint64_t nr)
{
	for (uint64_t i = 0; i < nr; i++)
		w->order[i] = i;
	for (uint64_t i = nr - 1; i > 0; i--) {
		uint64_t j = okv_bench_random(bench) % (i + 1), kept = w->order[i];

		w->order[i] = w->order[j];
		w->order[j] = kept;
	}
}

/* GB/s of gets with a copy each: a batch is leased, copied as one list, and let go. */
static double copies(const struct world *w, uint32_t s, struct omnikv_space *space)
{
	uint64_t nr = w->side_bytes / sizes[s], done, n;
	double start = okv_bench_cpu_ns();
	struct omnikv_seq *seqs[BATCH];
	struct okv_run runs[BATCH];
	const void *places[BATCH];

	for (done = 0; done < nr; done += n) {
		n = nr - done < BATCH ? nr - done : BATCH;
		get_batch(w, space, &w->order[done], (uint32_t)n, seqs, places);
		for (uint64_t i = 0; i < n; i++)
			runs[i] = (struct okv_run){ .src = places[i], .dst = w->flat + (done + i) * sizes[s], .bytes = sizes[s] };
		okv_copy_runs(runs, n, NULL);
		omnikv_seq_close_batch(seqs, n);
	}
	return (double)(nr * sizes[s]) / (okv_bench_cpu_ns() - start);
}

static double own_copy(const struct world *w, uint64_t bytes)
{
	struct okv_run run = { .src = w->own, .dst = w->flat, .bytes = bytes };
	double start = okv_bench_cpu_ns();

	okv_copy_runs(&run, 1, NULL);
	return (double)bytes / (okv_bench_cpu_ns() - start);
}

/* Of the other process's memory, a block a call; NONE where the system does not allow it. */
static double kernel_copies(const struct world *w, uint32_t s)
{
	uint64_t nr = w->side_bytes / sizes[s];
	double start = okv_bench_cpu_ns();

	for (uint64_t i = 0; i < nr; i++) {
		struct iovec to = { w->flat + i * sizes[s], sizes[s] };
		struct iovec from = { w->others + w->order[i] % nr * sizes[s], sizes[s] };

		if (process_vm_readv(w->other, &to, 1, &from, 1, 0) != (ssize_t)sizes[s])
			return NONE;
	}
	return (double)(nr * sizes[s]) / (okv_bench_cpu_ns() - start);
}

/* ns of a get without a copy. */
static double gets(const struct world *w, uint32_t s, struct omnikv_space *space)
{
	double start = okv_bench_cpu_ns();
	struct omnikv_seq *seq;
	uint64_t nr = 0;

	while (nr < GETS_MIN) {
		for (uint64_t i = 0; i < w->nr[s]; i++, nr++) {
			get(w, space, w->order[i], &seq);
			omnikv_seq_close(seq);
		}
	}
	return (okv_bench_cpu_ns() - start) / (double)nr;
}

/* The same, BATCH of them at a time. */
static double batches(const struct world *w, uint32_t s, struct omnikv_space *space)
{
	double start = okv_bench_cpu_ns();
	struct omnikv_seq *seqs[BATCH];
	const void *places[BATCH];
	uint64_t nr = 0, n;

	while (nr < GETS_MIN) {
		for (uint64_t i = 0; i < w->nr[s]; i += n, nr += n) {
			n = w->nr[s] - i < BATCH ? w->nr[s] - i : BATCH;
			get_batch(w, space, &w->order[i], (uint32_t)n, seqs, places);
			omnikv_seq_close_batch(seqs, n);
		}
	}
	return (okv_bench_cpu_ns() - start) / (double)nr;
}

/* ns of a lookup with its lease alone. */
static double matches(const struct world *w, uint32_t s, struct omnikv_space *space)
{
	double start = okv_bench_cpu_ns();
	struct omnikv_match *match;
	uint64_t nr = 0;

	while (nr < GETS_MIN) {
		for (uint64_t i = 0; i < w->nr[s]; i++, nr++) {
			struct omnikv_key key = okv_bench_kv_key(w->order[i]);

			okv_bench_must(!omnikv_match(space, &key, 1, NULL, &match) && omnikv_match_blocks(match) == 1,
				       "a block is not there");
			omnikv_match_put(match);
		}
	}
	return (okv_bench_cpu_ns() - start) / (double)nr;
}

void okv_bench_get(struct okv_bench *bench)
{
	struct okv_bench_row *copy[NR_SIZES], *mapped[NR_SIZES], *batch[NR_SIZES], *match[NR_SIZES];
	static struct world w;
	char text[80];

	for (uint32_t s = 0; s < NR_SIZES; s++) {
		snprintf(text, sizeof(text), "copy another process's blocks of %u KiB, %u at a time", sizes[s] >> 10, BATCH);
		copy[s] = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M6", .workload = text, .unit = "GB/s",
			.clock = "thread CPU", .limit = "one copy of own memory around the caches, of the same bytes",
			.peer = "process_vm_readv of a block", .target_of = OKV_TARGET_RATIO, .target = 0.95 });
	}
	for (uint32_t s = 0; s < NR_SIZES; s++) {
		snprintf(text, sizeof(text), "mapped get of %u KiB: lookup, lease, place, and letting go", sizes[s] >> 10);
		mapped[s] = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M6", .workload = text, .unit = "ns",
			.clock = "thread CPU", .peer = "one copy of it", .is_lower_better = true,
			.target_of = sizes[s] >= 1u << 20 ? OKV_TARGET_OURS : OKV_TARGET_NONE, .target = 1000 });
		snprintf(text, sizeof(text), "mapped get of %u KiB, %u at a time", sizes[s] >> 10, BATCH);
		batch[s] = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M6", .workload = text, .unit = "ns",
			.clock = "thread CPU", .peer = "one copy of it", .is_lower_better = true });
		snprintf(text, sizeof(text), "of it: lookup, lease, and letting go, %u KiB", sizes[s] >> 10);
		match[s] = okv_bench_row(bench, &(struct okv_bench_desc) { .row = "M6", .unit = "ns", .clock = "thread CPU",
			.workload = text, .is_lower_better = true });
	}
	memset(&w, 0, sizeof(w));
	open_world(bench, &w);
	for (uint32_t s = 0; s < NR_SIZES; s++) {
		struct omnikv_space *space = okv_bench_kv_open(w.manager, &w.plans[s]);

		check_all(&w, s, space);
		/* Round 0 warms up. */
		for (unsigned int round = 0; round <= bench->nr_rounds; round++) {
			double limit, ours, peer;

			shuffle(bench, &w, w.nr[s]);
			limit = own_copy(&w, w.side_bytes);
			ours = copies(&w, s, space);
			peer = kernel_copies(&w, s);
			if (round)
				okv_bench_sample(copy[s], ours, limit, peer);
			if (!round)
				continue;
			okv_bench_sample(mapped[s], gets(&w, s, space), NONE, (double)sizes[s] / limit);
			okv_bench_sample(batch[s], batches(&w, s, space), NONE, (double)sizes[s] / limit);
			okv_bench_sample(match[s], matches(&w, s, space), NONE, NONE);
		}
		omnikv_space_close(space);
	}
	okv_bench_note_pages(bench);
	close_world(&w);
}

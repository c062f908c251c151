// SPDX-License-Identifier: GPL-2.0-only
/*
 * Four processes look up, one block or all in one call, commit, drop and raise the epoch at once, over a real daemon. Each short history of what they did
 * and saw is one that could have happened one after another: nothing is seen before it was committed, nothing is missed
 * after a commit has returned, nothing of an older epoch is seen after the raise has returned.
 *
 * 1,000 histories of 40 operations, 20,000 with --full.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/harness/daemon_case.h"
#include "tests/harness/history.h"
#include "tests/harness/kill_campaign.h"
#include "tests/harness/kv_world.h"

#define T		4u
#define NR_PROCESSES	4u
#define NR_BLOCKS	3u
#define OPS_EACH	10u

struct op {
	struct history_op	op;
	uint32_t		block;		/* NR_BLOCKS: all */
	bool			are_there[NR_BLOCKS];	/* of a look at all */
	bool			has_effect;	/* it was refused else, and changed nothing */
};

/* Shared with the children. */
struct board {
	pthread_barrier_t	begin, end;
	volatile bool		is_over;
	volatile uint64_t	seed;
	struct op		ops[NR_PROCESSES][OPS_EACH];
};

static struct board *board;

static uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void make_story(struct kv_story *story, uint32_t block)
{
	*story = (struct kv_story){ 0 };
	for (uint32_t i = 0; i < T; i++)
		kv_story_add(story, 1000 * (block + 1) + i);
}

static struct omnikv_manager_stats stats_of(const struct kv_world *world)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	KV_MUST(!omnikv_manager_stats(world->manager, &stats));
	return stats;
}

static void look(const struct kv_world *world, struct op *op, bool is_lookup)
{
	struct omnikv_match *match;
	struct omnikv_key *keys;
	struct kv_story story;
	int64_t nr;

	make_story(&story, op->block);
	keys = kv_keys(world, &story, 1);
	op->op.begin_ns = clock_ns();
	if (is_lookup) {
		nr = omnikv_lookup(world->space, keys, 1);
	} else {
		KV_MUST(!omnikv_match(world->space, keys, 1, NULL, &match));
		nr = (int64_t)omnikv_match_blocks(match);
	}
	op->op.end_ns = clock_ns();
	KV_MUST(nr >= 0);
	op->op.is_there = nr > 0;
	if (!is_lookup)
		omnikv_match_put(match);
	free(keys);
	kv_story_free(&story);
}

/* All blocks in one call: what it says of each was so at some moment of it. */
static void look_at_all(const struct kv_world *world, struct op *op)
{
	struct omnikv_prefix prefixes[NR_BLOCKS];
	struct omnikv_seq *seqs[NR_BLOCKS];
	struct omnikv_key keys[NR_BLOCKS];

	for (uint32_t i = 0; i < NR_BLOCKS; i++) {
		struct kv_story story;

		make_story(&story, i);
		keys[i] = kv_key(world, &story, 0, T);
		prefixes[i] = (struct omnikv_prefix){ .keys = &keys[i], .nr_keys = 1 };
		kv_story_free(&story);
	}
	op->op.begin_ns = clock_ns();
	KV_MUST(!omnikv_seq_open_batch(world->space, prefixes, NR_BLOCKS, seqs));
	op->op.end_ns = clock_ns();
	for (uint32_t i = 0; i < NR_BLOCKS; i++)
		op->are_there[i] = omnikv_seq_tokens(seqs[i]) > 0;
	omnikv_seq_close_batch(seqs, NR_BLOCKS);
}

static void put(const struct kv_world *world, struct op *op)
{
	struct omnikv_manager_stats before = stats_of(world), after;
	struct omnikv_seq *seq;
	struct kv_story story;

	make_story(&story, op->block);
	KV_MUST(!omnikv_seq_open(world->space, NULL, 0, NULL, &seq));
	KV_MUST(!omnikv_seq_append(seq, T));
	kv_store(world, seq, &story, 0, T);
	op->op.begin_ns = clock_ns();
	op->has_effect = kv_commit(world, seq, &story, false) >= 0;
	op->op.end_ns = clock_ns();
	omnikv_seq_close(seq);
	after = stats_of(world);
	/* What was refused as of an older epoch has changed nothing. */
	KV_MUST(!after.blocks_queued);
	if (after.blocks_unpublished != before.blocks_unpublished)
		op->has_effect = false;
	kv_story_free(&story);
}

static void run_op(const struct kv_world *world, struct op *op, uint64_t *seed)
{
	uint32_t x = kv_random(seed) % 100;

	op->block = kv_random(seed) % NR_BLOCKS;
	op->has_effect = true;
	if (x < 15) {
		op->block = NR_BLOCKS;
		op->op.kind = HISTORY_LOOK;
		look_at_all(world, op);
	} else if (x < 35) {
		op->op.kind = HISTORY_LOOK;
		look(world, op, false);
	} else if (x < 50) {
		op->op.kind = HISTORY_LOOK;
		look(world, op, true);
	} else if (x < 85) {
		op->op.kind = HISTORY_PUT;
		put(world, op);
	} else {
		op->block = NR_BLOCKS;
		op->op.kind = x < 93 ? HISTORY_MAY_DROP : HISTORY_DROP;
		op->op.begin_ns = clock_ns();
		KV_MUST((x < 93 ? omnikv_manager_reset(world->manager) : omnikv_manager_raise_epoch(world->manager)) >= 0);
		op->op.end_ns = clock_ns();
	}
}

/* Whatever else the machine has to do. */
static const struct omnikv_attach_config patient = { .size = sizeof(patient), .deadline_ms = 30000 };

static void run_process(const char *socket, uint32_t number)
{
	struct kv_world world;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	kv_world_connect(&world, KV_SHAPE_FULL, T, socket, &patient);
	for (;;) {
		uint64_t seed;

		pthread_barrier_wait(&board->begin);
		if (board->is_over)
			break;
		seed = board->seed + number;
		for (uint32_t i = 0; i < OPS_EACH; i++)
			run_op(&world, &board->ops[number][i], &seed);
		pthread_barrier_wait(&board->end);
	}
	kv_world_detach(&world);
	_exit(0);
}

/* What all processes did to one block. */
static uint32_t history_of(uint32_t block, struct history_op *ops)
{
	uint32_t nr = 0;

	for (uint32_t p = 0; p < NR_PROCESSES; p++)
		for (uint32_t i = 0; i < OPS_EACH; i++) {
			const struct op *op = &board->ops[p][i];

			if (!op->has_effect || (op->block != block && op->block != NR_BLOCKS))
				continue;
			ops[nr] = op->op;
			if (op->op.kind == HISTORY_LOOK && op->block == NR_BLOCKS)
				ops[nr].is_there = op->are_there[block];
			nr++;
		}
	return nr;
}

static void print_history(const struct history_op *ops, uint32_t nr)
{
	static const char *const names[] = { "look", "put", "drop", "may drop" };
	uint64_t first = UINT64_MAX;

	for (uint32_t i = 0; i < nr; i++)
		first = ops[i].begin_ns < first ? ops[i].begin_ns : first;
	for (uint32_t i = 0; i < nr; i++)
		print_message("# %8llu to %8llu us: %s%s\n", (unsigned long long)(ops[i].begin_ns - first) / 1000,
			      (unsigned long long)(ops[i].end_ns - first) / 1000, names[ops[i].kind],
			      ops[i].kind != HISTORY_LOOK ? "" : ops[i].is_there ? ": there" : ": not there");
}

static void what_processes_see_could_have_happened_in_turn(void **state)
{
	const char *const options[] = { "--pool", "16M", "--reserve", "1M", NULL };
	uint32_t nr_histories = campaign_scale(1000, 20000), nr_refused = 0, nr_there = 0;
	const char *text = getenv("OMNIKV_TEST_SEED");
	uint64_t seed = text ? strtoull(text, NULL, 10) : 20261130;
	struct history_op ops[NR_PROCESSES * OPS_EACH];
	pid_t pids[NR_PROCESSES];
	struct daemon_case daemon;
	pthread_barrierattr_t attr;
	struct kv_world world;
	int status;

	(void)state;
	print_message("# seed %llu\n", (unsigned long long)seed);
	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(board != MAP_FAILED);
	pthread_barrierattr_init(&attr);
	pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
	pthread_barrier_init(&board->begin, &attr, NR_PROCESSES + 1);
	pthread_barrier_init(&board->end, &attr, NR_PROCESSES + 1);
	daemon_case_init(&daemon);
	daemon_start(&daemon, options);
	for (uint32_t p = 0; p < NR_PROCESSES; p++) {
		pids[p] = fork();
		assert_true(pids[p] >= 0);
		if (!pids[p])
			run_process(daemon.socket, p);
	}
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, &patient);
	for (uint32_t n = 0; n < nr_histories; n++) {
		int64_t epoch = omnikv_manager_raise_epoch(world.manager);

		/* Each begins with nothing. */
		if (epoch <= 0)
			fail_msg("history %u: the epoch is not raised: %lld", n, (long long)epoch);
		board->seed = kv_random(&seed);
		pthread_barrier_wait(&board->begin);
		pthread_barrier_wait(&board->end);
		for (uint32_t block = 0; block < NR_BLOCKS; block++) {
			uint32_t nr = history_of(block, ops);

			for (uint32_t i = 0; i < nr; i++)
				nr_there += ops[i].kind == HISTORY_LOOK && ops[i].is_there;
			if (history_is_linearizable(ops, nr))
				continue;
			print_history(ops, nr);
			fail_msg("history %u, block %u: what was seen cannot have happened", n, block);
		}
		for (uint32_t p = 0; p < NR_PROCESSES; p++)
			for (uint32_t i = 0; i < OPS_EACH; i++)
				nr_refused += !board->ops[p][i].has_effect;
	}
	print_message("# %u histories of %u operations; %u times there, %u refused\n", nr_histories, NR_PROCESSES * OPS_EACH,
		      nr_there, nr_refused);
	/* One that never saw anything, or where nothing was ever refused, has shown nothing. */
	assert_true(nr_there > nr_histories);
	assert_true(nr_refused > 0);
	board->is_over = true;
	pthread_barrier_wait(&board->begin);
	for (uint32_t p = 0; p < NR_PROCESSES; p++) {
		assert_int_equal(waitpid(pids[p], &status, 0), pids[p]);
		assert_int_equal(status, 0);
	}
	kv_world_detach(&world);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* The checker says no where it must. */
static void impossible_histories_are_told(void **state)
{
	const struct history_op early[] = {
		{ HISTORY_LOOK, true, 10, 20 }, { HISTORY_PUT, false, 30, 40 },
	}, missed[] = {
		{ HISTORY_PUT, false, 10, 20 }, { HISTORY_LOOK, false, 30, 40 },
	}, stale[] = {
		{ HISTORY_PUT, false, 10, 20 }, { HISTORY_DROP, false, 30, 40 }, { HISTORY_LOOK, true, 50, 60 },
	}, back[] = {
		{ HISTORY_PUT, false, 10, 90 }, { HISTORY_LOOK, true, 20, 30 }, { HISTORY_LOOK, false, 40, 50 },
	}, fine[] = {
		{ HISTORY_PUT, false, 10, 90 }, { HISTORY_LOOK, false, 20, 30 }, { HISTORY_LOOK, true, 25, 50 },
		{ HISTORY_MAY_DROP, false, 60, 95 }, { HISTORY_LOOK, true, 96, 97 }, { HISTORY_DROP, false, 98, 120 },
		{ HISTORY_LOOK, true, 99, 121 }, { HISTORY_LOOK, false, 122, 123 },
	};

	(void)state;
	assert_false(history_is_linearizable(early, 2));
	assert_false(history_is_linearizable(missed, 2));
	assert_false(history_is_linearizable(stale, 3));
	assert_false(history_is_linearizable(back, 3));
	assert_true(history_is_linearizable(fine, 8));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(impossible_histories_are_told),
		cmocka_unit_test(what_processes_see_could_have_happened_in_turn),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

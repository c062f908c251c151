// SPDX-License-Identifier: GPL-2.0-only
/*
 * What went wrong in other caches, tried over a real omnikvd, and over the manager of one process where that is another way:
 * each test is named by what users saw there, and shows that it does not happen here.
 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/harness/daemon_case.h"
#include "tests/harness/kill_campaign.h"
#include "tests/harness/kv_world.h"

#define T	16u
#define BLOCKS	40u
#define NOBODY	65534

static void make_story(struct kv_story *story, uint32_t salt)
{
	*story = (struct kv_story){ 0 };
	for (uint64_t i = 0; i < BLOCKS * T; i++)
		kv_story_add(story, salt * 100000 + i);
}

/* Compute what does not hit, and commit; the sequence stays open. */
static struct omnikv_seq *compute(const struct kv_world *world, const struct kv_story *story)
{
	struct omnikv_seq *seq = kv_open(world, story, false);
	uint64_t hit = omnikv_seq_tokens(seq);

	if (hit == story->nr_tokens)
		return seq;
	KV_MUST(!omnikv_seq_append(seq, story->nr_tokens - hit));
	kv_store(world, seq, story, hit, story->nr_tokens);
	KV_MUST(kv_commit(world, seq, story, false) >= 0);
	return seq;
}

static uint64_t hit_of(const struct kv_world *world, const struct kv_story *story)
{
	struct omnikv_seq *seq = kv_open(world, story, false);
	uint64_t hit = omnikv_seq_tokens(seq);

	KV_MUST(!hit || !kv_compare(world, seq, story, 0, hit));
	omnikv_seq_close(seq);
	return hit;
}

static void start_on_file(struct daemon_case *daemon, const char *size)
{
	char pool[160];

	snprintf(pool, sizeof(pool), "embedded:%s:%s/pool", size, daemon->dir);
	daemon_start(daemon, (const char *const []){ "--pool", pool, "--reserve", "0", NULL });
}

/* ---- both ways to share memory: threads of one manager, and managers that are attached to a daemon ------------------- */

struct place {
	bool			is_daemon;
	uint32_t		block_tokens;
	struct daemon_case	daemon;
	struct kv_world		own;
};

static void place_open(struct place *place, bool is_daemon, uint32_t block_tokens, const char *size)
{
	*place = (struct place){ .is_daemon = is_daemon, .block_tokens = block_tokens };
	if (is_daemon) {
		daemon_case_init(&place->daemon);
		daemon_start(&place->daemon, (const char *const []){ "--pool", size, "--reserve", "0", NULL });
	} else {
		kv_world_open_pool(&place->own, KV_SHAPE_FULL, block_tokens, size);
	}
}

static void join(const struct place *place, struct kv_world *world)
{
	/* Whatever else this machine has to do. */
	const struct omnikv_attach_config patient = { .size = sizeof(patient), .deadline_ms = 30000 };

	if (place->is_daemon)
		kv_world_connect(world, KV_SHAPE_FULL, place->block_tokens, place->daemon.socket, &patient);
	else
		*world = place->own;
}

static void part(const struct place *place, struct kv_world *world)
{
	if (place->is_daemon)
		kv_world_detach(world);
}

static uint64_t state_bytes(const struct kv_world *world, uint32_t state)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	KV_MUST(!omnikv_pool_info(world->pool, &info));
	return info.state_bytes[state];
}

/* Nothing is held by anybody: a reset gives all of it back. */
static void place_close(struct place *place)
{
	struct kv_world world;
	uint64_t since = now_ms();

	join(place, &world);
	do {
		omnikv_manager_reset(world.manager);
		sleep_ms(10);
	} while ((state_bytes(&world, OMNIKV_EXTENT_SEALED) || state_bytes(&world, OMNIKV_EXTENT_QUARANTINED)) &&
		 now_ms() - since < 10000);
	assert_int_equal(state_bytes(&world, OMNIKV_EXTENT_SEALED), 0);
	assert_int_equal(state_bytes(&world, OMNIKV_EXTENT_QUARANTINED), 0);
	assert_int_equal(state_bytes(&world, OMNIKV_EXTENT_PRIVATE), 0);
	part(place, &world);
	if (place->is_daemon) {
		assert_int_equal(daemon_stop(&place->daemon, NULL), 0);
		daemon_case_fini(&place->daemon);
	} else {
		kv_world_close(&place->own);
	}
}

static void both_ways(void (*check)(bool is_daemon))
{
	check(false);
	check(true);
}

/* ---- A1: a block was hit while the transfer that writes it was still running ----------------------------------------- */

#define SLOW_BLOCKS	64u
#define SLOW_STEPS	8u

struct slow {
	struct place		place;
	struct kv_story		story;
	_Atomic uint64_t	nr_begun;	/* commits of blocks that have begun */
	_Atomic bool		is_over;
};

struct slow_reader {
	struct slow	*slow;
	uint64_t	nr_partly;	/* hits of a part of the story */
	uint64_t	longest;
};

static void *read_all_the_time(void *arg)
{
	struct slow_reader *reader = arg;
	struct slow *slow = reader->slow;
	struct kv_world world;

	join(&slow->place, &world);
	while (reader->longest < SLOW_BLOCKS) {
		bool is_last = slow->is_over;
		uint64_t nr = hit_of(&world, &slow->story) / slow->place.block_tokens;

		KV_MUST(nr <= slow->nr_begun);
		KV_MUST(nr >= reader->longest);
		KV_MUST(!is_last || nr == SLOW_BLOCKS);
		reader->nr_partly += nr && nr < SLOW_BLOCKS;
		reader->longest = nr;
	}
	part(&slow->place, &world);
	return NULL;
}

/* As a ring does: its transfer is counted on the block that it writes, and takes its time. */
static void write_slowly(struct slow *slow, const struct kv_world *world, struct omnikv_seq *seq, uint64_t block, uint32_t nap_ms)
{
	struct omnikv_client *client = omnikv_manager_client(world->manager);
	uint64_t from = block * slow->place.block_tokens, step = slow->place.block_tokens / SLOW_STEPS;
	struct kv_story so_far = slow->story;
	struct omnikv_piece piece;

	so_far.nr_tokens = from + slow->place.block_tokens;
	KV_MUST(!omnikv_seq_append(seq, slow->place.block_tokens));
	KV_MUST(omnikv_seq_pieces(seq, 0, 0, 0, from, so_far.nr_tokens, 0, &piece, 1) == 1);
	KV_MUST(!omnikv_extent_io_get(client, &piece.extent, 1));
	slow->nr_begun = block + 1;
	for (uint32_t i = 0; i < SLOW_STEPS; i++) {
		/* Whoever asks for it too early is told, and nobody sees it. */
		KV_MUST(kv_commit(world, seq, &so_far, false) == -EBUSY);
		kv_store(world, seq, &so_far, from + i * step, from + (i + 1) * step);
		sleep_ms(nap_ms);
	}
	omnikv_extent_io_put(client, &piece.extent, 1);
	KV_MUST(kv_commit(world, seq, &so_far, false) == 1);
}

static void check_slow_writes(bool is_daemon)
{
	/* 64 blocks of 1 MiB, 50 ms for each eighth of one, in the long form; 64 KiB and 2 ms else. */
	uint32_t block_tokens = campaign_scale(512, 8192);
	struct slow slow = { .story = { 0 } };
	struct slow_reader readers[4];
	pthread_t threads[4];
	struct omnikv_seq *seq;
	struct kv_world world;

	place_open(&slow.place, is_daemon, block_tokens, campaign_scale(0, 1) ? "96M" : "16M");
	for (uint32_t i = 0; i < SLOW_BLOCKS * block_tokens; i++)
		kv_story_add(&slow.story, i);
	join(&slow.place, &world);
	for (uint32_t i = 0; i < 4; i++) {
		readers[i] = (struct slow_reader){ .slow = &slow };
		assert_int_equal(pthread_create(&threads[i], NULL, read_all_the_time, &readers[i]), 0);
	}
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	for (uint64_t i = 0; i < SLOW_BLOCKS; i++)
		write_slowly(&slow, &world, seq, i, campaign_scale(2, 50));
	slow.is_over = true;
	for (uint32_t i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		/* Each of them looked while it was written. */
		assert_true(readers[i].nr_partly > 0);
		assert_int_equal(readers[i].longest, SLOW_BLOCKS);
	}
	omnikv_seq_close(seq);
	part(&slow.place, &world);
	kv_story_free(&slow.story);
	place_close(&slow.place);
}

static void a_lookup_hits_a_block_that_is_being_written(void **state)
{
	(void)state;
	both_ways(check_slow_writes);
}

/* ---- A7: what was read was used again before the reading had ended --------------------------------------------------- */

#define NR_READERS	4u
#define POOL_STORIES	12u	/* that a pool of 2 MiB has room for, about */

struct churn {
	struct place		place;
	_Atomic uint64_t	nr_played;	/* stories that others have computed */
	_Atomic uint64_t	nr_reads;	/* that were held while the whole pool was churned */
	_Atomic uint32_t	nr_waiting;
	_Atomic bool		is_over;
};

struct churn_reader {
	struct churn	*churn;
	uint32_t	number;
};

/* Holds what it has hit until everything else has left; both looks at it are right. */
static void *read_slowly(void *arg)
{
	struct churn_reader *reader = arg;
	struct churn *churn = reader->churn;
	struct kv_story story;
	struct kv_world world;

	join(&churn->place, &world);
	make_story(&story, 1 + reader->number);
	while (!churn->is_over) {
		struct omnikv_seq *seq = kv_open(&world, &story, false);
		uint64_t hit = omnikv_seq_tokens(seq), until = churn->nr_played + POOL_STORIES;

		if (hit < story.nr_tokens) {
			/* It has left: a miss, and nothing else. */
			KV_MUST(!hit || !kv_compare(&world, seq, &story, 0, hit));
			omnikv_seq_close(seq);
			omnikv_seq_close(compute(&world, &story));
			continue;
		}
		KV_MUST(!kv_compare(&world, seq, &story, 0, hit / 2));
		while (churn->nr_played < until && !churn->is_over)
			sleep_ms(1);
		KV_MUST(!kv_compare(&world, seq, &story, 0, hit));
		churn->nr_reads += churn->nr_played >= until;
		omnikv_seq_close(seq);
	}
	kv_story_free(&story);
	part(&churn->place, &world);
	return NULL;
}

/* A process that is killed while it reads. */
static pid_t start_victim(const struct churn *churn)
{
	struct kv_story story;
	struct kv_world world;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	KV_MUST(pid >= 0);
	if (pid)
		return pid;
	join(&churn->place, &world);
	make_story(&story, 90);
	for (;;)
		KV_MUST(omnikv_seq_tokens(compute(&world, &story)) == story.nr_tokens);
}

static void check_long_reads(bool is_daemon)
{
	uint64_t nr_reads = campaign_scale(100, 500), nr_killed = 0;
	struct churn_reader readers[NR_READERS];
	struct churn churn = { .nr_played = 0 };
	pthread_t threads[NR_READERS];
	pid_t victim = 0;
	struct kv_world world;

	place_open(&churn.place, is_daemon, T, "2M");
	/* Before there are threads. */
	if (is_daemon)
		victim = start_victim(&churn);
	join(&churn.place, &world);
	for (uint32_t i = 0; i < NR_READERS; i++) {
		readers[i] = (struct churn_reader){ .churn = &churn, .number = i };
		assert_int_equal(pthread_create(&threads[i], NULL, read_slowly, &readers[i]), 0);
	}
	for (uint32_t i = 0; churn.nr_reads < nr_reads; i++) {
		struct kv_story story;

		make_story(&story, 1000 + i);
		omnikv_seq_close(compute(&world, &story));
		kv_story_free(&story);
		churn.nr_played++;
		if (victim && churn.nr_reads >= nr_reads / 2) {
			kill(victim, SIGKILL);
			assert_int_equal(waitpid(victim, NULL, 0), victim);
			victim = 0;
			nr_killed++;
		}
	}
	churn.is_over = true;
	for (uint32_t i = 0; i < NR_READERS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(nr_killed, is_daemon);
	part(&churn.place, &world);
	/* What the killed one held is there again too. */
	place_close(&churn.place);
}

static void bytes_change_under_whoever_reads_them_slowly(void **state)
{
	(void)state;
	both_ways(check_long_reads);
}

/* ---- A13: the weights had changed, and old blocks were still served -------------------------------------------------- */

#define EPOCH_STORIES	25u	/* of 40 blocks: 1,000 */

struct epochs {
	struct place		place;
	_Atomic uint64_t	nr_raised;	/* raises that have returned */
	_Atomic uint64_t	nr_filled;	/* epochs whose stories are all there */
	_Atomic uint64_t	nr_hits;
	_Atomic bool		is_over;
};

static void *look_all_the_time(void *arg)
{
	struct epochs *epochs = arg;
	struct kv_world world;

	join(&epochs->place, &world);
	for (uint32_t i = 0; !epochs->is_over; i++) {
		uint64_t nr_raised = epochs->nr_raised;
		struct omnikv_match *match;
		struct omnikv_key *keys;
		struct kv_story story;
		uint64_t nr_hit;

		/* Each epoch has stories of its own, so that what is hit says of which it is. */
		make_story(&story, 100 * nr_raised + i % EPOCH_STORIES);
		keys = kv_keys(&world, &story, BLOCKS);
		nr_hit = (uint64_t)omnikv_lookup(world.space, keys, BLOCKS);
		epochs->nr_hits += nr_hit;
		free(keys);
		kv_story_free(&story);
		if (!nr_raised)
			continue;
		make_story(&story, 100 * (nr_raised - 1) + i % EPOCH_STORIES);
		keys = kv_keys(&world, &story, BLOCKS);
		KV_MUST(omnikv_lookup(world.space, keys, BLOCKS) == 0);
		KV_MUST(!omnikv_match(world.space, keys, BLOCKS, NULL, &match));
		KV_MUST(omnikv_match_blocks(match) == 0);
		omnikv_match_put(match);
		free(keys);
		kv_story_free(&story);
	}
	part(&epochs->place, &world);
	return NULL;
}

static void check_epochs(bool is_daemon)
{
	struct epochs epochs = { .nr_raised = 0 };
	pthread_t threads[2];
	struct kv_world world;

	place_open(&epochs.place, is_daemon, T, "16M");
	join(&epochs.place, &world);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, look_all_the_time, &epochs), 0);
	for (uint64_t n = 0; n < 10; n++) {
		for (uint32_t i = 0; i < EPOCH_STORIES; i++) {
			struct kv_story story;

			make_story(&story, 100 * n + i);
			omnikv_seq_close(compute(&world, &story));
			kv_story_free(&story);
		}
		assert_int_equal(state_bytes(&world, OMNIKV_EXTENT_SEALED),
				 EPOCH_STORIES * BLOCKS * omnikv_plan_block_bytes(&world.plan));
		sleep_ms(10);
		assert_true(omnikv_manager_raise_epoch(world.manager) > 0);
		epochs.nr_raised++;
		/* What was old is memory again, but for what somebody reads at this moment. */
		for (uint64_t since = now_ms(); now_ms() - since < 10000;) {
			if (!state_bytes(&world, OMNIKV_EXTENT_SEALED) && !state_bytes(&world, OMNIKV_EXTENT_QUARANTINED))
				break;
			omnikv_manager_reset(world.manager);
		}
		assert_int_equal(state_bytes(&world, OMNIKV_EXTENT_SEALED), 0);
		assert_int_equal(state_bytes(&world, OMNIKV_EXTENT_QUARANTINED), 0);
	}
	epochs.is_over = true;
	for (uint32_t i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	assert_true(epochs.nr_hits > 0);
	part(&epochs.place, &world);
	place_close(&epochs.place);
}

static void blocks_of_old_weights_are_served(void **state)
{
	(void)state;
	both_ways(check_epochs);
}

/* ---- B1: what was looked up and never loaded stayed pinned ------------------------------------------------------------ */

/* Over the manager of one process: tests/unit/leases_and_counters_add_up.c. */
static void lookups_that_need_nothing_pin_the_pool_for_ever(void **state)
{
	struct kv_world worlds[2];
	struct omnikv_match *kept;
	struct omnikv_key *keys;
	struct place place;
	struct kv_story story = { 0 };
	struct omnikv_seq *seq;
	uint64_t nr_free;
	int status;
	pid_t pid;

	(void)state;
	place_open(&place, true, T, "4M");
	for (uint32_t i = 0; i < 1000; i++)
		kv_story_add(&story, i);
	/* One that looks, keeps what it has found, and is killed. */
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		join(&place, &worlds[0]);
		omnikv_seq_close(compute(&worlds[0], &story));
		keys = kv_keys(&worlds[0], &story, 62);
		for (uint32_t i = 0; i < 100; i++) {
			KV_MUST(!omnikv_match(worlds[0].space, keys, 62, NULL, &kept));
			KV_MUST(omnikv_match_blocks(kept) == 62);
		}
		raise(SIGKILL);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	for (uint32_t i = 0; i < 2; i++)
		join(&place, &worlds[i]);
	keys = kv_keys(&worlds[0], &story, 62);
	for (uint32_t i = 0; i < 10000; i++) {
		struct omnikv_match *match;

		assert_int_equal(omnikv_match(worlds[i % 2].space, keys, 62, NULL, &match), 0);
		assert_int_equal(omnikv_match_blocks(match), 62);
		omnikv_match_put(match);
	}
	assert_int_equal(omnikv_manager_reset(worlds[0].manager), 62);
	assert_int_equal(state_bytes(&worlds[0], OMNIKV_EXTENT_SEALED), 0);
	/* All that the catalog leaves is to be had. */
	nr_free = state_bytes(&worlds[0], OMNIKV_EXTENT_FREE) / omnikv_plan_block_bytes(&worlds[0].plan);
	assert_int_equal(omnikv_seq_open(worlds[1].space, NULL, 0, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_append(seq, nr_free * T), 0);
	assert_int_equal(state_bytes(&worlds[0], OMNIKV_EXTENT_FREE), 0);
	omnikv_seq_close(seq);
	free(keys);
	kv_story_free(&story);
	for (uint32_t i = 0; i < 2; i++)
		part(&place, &worlds[i]);
	place_close(&place);
}

/* ---- C5: each of several ranks was told that there is room, and together they took more than there is ---------------- */

struct asker {
	struct kv_world		world;
	struct omnikv_seq	*seq;
	pthread_barrier_t	*begin;
	uint64_t		nr_tokens;
	uint64_t		step;		/* appended at once */
	int			ret;
};

static void *ask(void *arg)
{
	struct asker *asker = arg;

	pthread_barrier_wait(asker->begin);
	for (uint64_t n = 0; n < asker->nr_tokens && !asker->ret; n += asker->step)
		asker->ret = omnikv_seq_append(asker->seq, asker->step);
	return NULL;
}

/* All at the same instant. */
static void ask_together(struct asker *askers, uint32_t nr)
{
	pthread_barrier_t begin;
	pthread_t threads[4];

	assert_int_equal(pthread_barrier_init(&begin, NULL, nr), 0);
	for (uint32_t i = 0; i < nr; i++) {
		askers[i].begin = &begin;
		assert_int_equal(omnikv_seq_open(askers[i].world.space, NULL, 0, NULL, &askers[i].seq), 0);
		assert_int_equal(pthread_create(&threads[i], NULL, ask, &askers[i]), 0);
	}
	for (uint32_t i = 0; i < nr; i++)
		pthread_join(threads[i], NULL);
	pthread_barrier_destroy(&begin);
}

static void check_ranks(bool is_daemon)
{
	struct asker askers[4];
	struct place place;

	place_open(&place, is_daemon, T, "8M");
	for (uint32_t round = 0; round < 10; round++) {
		uint64_t nr_blocks;
		uint32_t nr_in = 0;

		for (uint32_t i = 0; i < 4; i++) {
			askers[i] = (struct asker){ .seq = NULL };
			join(&place, &askers[i].world);
		}
		nr_blocks = state_bytes(&askers[0].world, OMNIKV_EXTENT_FREE) / omnikv_plan_block_bytes(&askers[0].world.plan);
		for (uint32_t i = 0; i < 4; i++) {
			askers[i].nr_tokens = askers[i].step = nr_blocks * 2 / 5 * T;
			assert_int_equal(omnikv_admit(askers[i].world.space, askers[i].nr_tokens), 1);
		}
		ask_together(askers, 4);
		for (uint32_t i = 0; i < 4; i++) {
			assert_true(askers[i].ret == 0 || askers[i].ret == -ENOSPC);
			assert_int_equal(omnikv_seq_tokens(askers[i].seq), askers[i].ret ? 0 : askers[i].nr_tokens);
			nr_in += !askers[i].ret;
		}
		/* Those that have it have it, and the others are told at once. */
		assert_int_equal(nr_in, 2);
		assert_int_equal(omnikv_admit(askers[3].world.space, askers[3].nr_tokens), 0);
		for (uint32_t i = 0; i < 4; i++) {
			omnikv_seq_close(askers[i].seq);
			part(&place, &askers[i].world);
		}
	}
	place_close(&place);
}

static void ranks_that_pass_the_check_alone_overcommit_together(void **state)
{
	(void)state;
	both_ways(check_ranks);
}

/* ---- D8: almost nothing was free, nearly all could leave, and requests waited for what never came -------------------- */

/* Over the manager of one process: tests/unit/allocation_evicts_inline.c. */
static void a_pool_full_of_what_may_leave_has_no_room(void **state)
{
	struct omnikv_manager_stats before = { .size = sizeof(before) }, after = { .size = sizeof(after) };
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_seq *held, *seq;
	struct asker askers[2];
	struct place place;
	struct kv_story story;
	struct kv_world world;
	uint64_t nr_evictable;

	(void)state;
	place_open(&place, true, T, "4M");
	join(&place, &world);
	for (uint32_t i = 0; i < 2; i++)
		join(&place, &askers[i].world);
	make_story(&story, 0);
	story.nr_tokens = 30 * T;
	held = compute(&world, &story);
	kv_story_free(&story);
	do {
		make_story(&story, 1 + (uint32_t)before.blocks_committed);
		omnikv_seq_close(compute(&world, &story));
		kv_story_free(&story);
		assert_int_equal(omnikv_manager_shared_stats(world.manager, &before), 0);
	} while (!before.blocks_evicted);
	assert_int_equal(omnikv_pool_info(world.pool, &info), 0);
	nr_evictable = (info.usable_bytes - info.state_bytes[OMNIKV_EXTENT_META]) / omnikv_plan_block_bytes(&world.plan) - 30;
	assert_true(nr_evictable > 900);

	/* One too many: refused, and nothing has left in vain. */
	assert_int_equal(omnikv_admit(world.space, nr_evictable * T), 1);
	assert_int_equal(omnikv_admit(world.space, nr_evictable * T + 1), 0);
	assert_int_equal(omnikv_seq_open(world.space, NULL, 0, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_append(seq, nr_evictable * T + 1), -ENOSPC);
	omnikv_seq_close(seq);
	assert_int_equal(omnikv_manager_shared_stats(world.manager, &after), 0);
	assert_int_equal(after.blocks_evicted, before.blocks_evicted);
	for (uint32_t i = 0; i < 2; i++) {
		askers[i].nr_tokens = 450 * T;
		askers[i].step = 45 * T;
		askers[i].ret = 0;
	}
	ask_together(askers, 2);
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(askers[i].ret, 0);
		assert_int_equal(omnikv_seq_tokens(askers[i].seq), 450 * T);
	}
	/* What is left, and not one more. */
	assert_int_equal(omnikv_seq_append(askers[0].seq, (nr_evictable - 900) * T + 1), -ENOSPC);
	assert_int_equal(omnikv_seq_append(askers[0].seq, (nr_evictable - 900) * T), 0);
	omnikv_seq_close(held);
	for (uint32_t i = 0; i < 2; i++) {
		omnikv_seq_close(askers[i].seq);
		part(&place, &askers[i].world);
	}
	part(&place, &world);
	place_close(&place);
}

/* ---- E5: so many blocks were said to be restored, and nothing of them could be used ---------------------------------- */

static void is_restored(const struct kv_world *world, const struct kv_story *story, const struct omnikv_manager_stats *stats)
{
	struct omnikv_seq *seq = kv_open(world, story, true);

	assert_int_equal(stats->blocks_recovered, 70);
	assert_int_equal(stats->blocks_dropped, 0);
	/* 69 whole blocks and the four tokens of the last one. */
	assert_int_equal(omnikv_seq_tokens(seq), 1108);
	assert_null(kv_compare(world, seq, story, 0, 1108));
	omnikv_seq_close(seq);
}

static void compute_with_tail(const struct kv_world *world, const struct kv_story *story)
{
	struct omnikv_seq *seq = kv_open(world, story, true);

	assert_int_equal(omnikv_seq_append(seq, story->nr_tokens), 0);
	kv_store(world, seq, story, 0, story->nr_tokens);
	assert_int_equal(kv_commit(world, seq, story, true), 70);
	omnikv_seq_close(seq);
}

static void blocks_are_counted_as_restored_and_cannot_be_used(void **state)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };
	struct kv_story story = { 0 };
	struct daemon_case daemon;
	struct kv_world world;
	char pool[160];

	(void)state;
	for (uint32_t i = 0; i < 1108; i++)
		kv_story_add(&story, i);
	daemon_case_init(&daemon);
	start_on_file(&daemon, "16M");
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	compute_with_tail(&world, &story);
	kv_world_detach(&world);
	daemon_kill(&daemon);
	start_on_file(&daemon, "16M");
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	assert_int_equal(omnikv_manager_shared_stats(world.manager, &stats), 0);
	is_restored(&world, &story, &stats);
	kv_world_detach(&world);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);

	/* A process of its own, over a file of its own. */
	snprintf(pool, sizeof(pool), "embedded:16M:%s/own", daemon.dir);
	kv_world_open_pool(&world, KV_SHAPE_FULL, T, pool);
	compute_with_tail(&world, &story);
	kv_world_leave(&world);
	kv_world_open_pool(&world, KV_SHAPE_FULL, T, pool);
	assert_int_equal(omnikv_manager_stats(world.manager, &stats), 0);
	is_restored(&world, &story, &stats);
	kv_world_leave(&world);
	kv_story_free(&story);
	daemon_case_fini(&daemon);
}

/* ---- F6: whoever could reach the socket could clear the cache, or change what it is for ------------------------------ */

/* Sockets of @pid that are not AF_UNIX: of each open one, whether the host's list of those names it. */
static uint32_t nr_other_sockets(pid_t pid)
{
	char path[300], link[64], line[256];
	uint32_t nr_all = 0, nr_unix = 0;
	struct dirent *entry;
	unsigned long inode;
	FILE *file;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	dir = opendir(path);
	assert_non_null(dir);
	while ((entry = readdir(dir))) {
		bool is_unix = false;

		snprintf(path, sizeof(path), "/proc/%d/fd/%s", pid, entry->d_name);
		memset(link, 0, sizeof(link));
		if (readlink(path, link, sizeof(link) - 1) < 0 || sscanf(link, "socket:[%lu]", &inode) != 1)
			continue;
		nr_all++;
		file = fopen("/proc/net/unix", "re");
		assert_non_null(file);
		while (fgets(line, sizeof(line), file)) {
			unsigned long theirs;

			is_unix |= sscanf(line, "%*s %*s %*s %*s %*s %*s %lu", &theirs) == 1 && theirs == inode;
		}
		fclose(file);
		nr_unix += is_unix;
	}
	closedir(dir);
	/* Its own, and that of the one who is attached. */
	assert_true(nr_unix >= 2);
	return nr_all - nr_unix;
}

static void strangers_clear_the_cache(void **state)
{
	struct daemon_case daemon;
	struct kv_story story;
	struct kv_world world;
	int status;
	pid_t pid;

	(void)state;
	if (geteuid())
		skip();
	daemon_case_init(&daemon);
	daemon_start(&daemon, (const char *const []){ "--pool", "16M", "--reserve", "0", NULL });
	assert_int_equal(chmod(daemon.dir, 0755), 0);
	assert_int_equal(chmod(daemon.socket, 0666), 0);
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	make_story(&story, 1);
	omnikv_seq_close(compute(&world, &story));
	assert_int_equal(nr_other_sockets(daemon.pid), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		struct omnikv_manager *manager;
		struct omnikv_error err;
		int ret;

		if (setgid(NOBODY) || setuid(NOBODY))
			_exit(2);
		ret = omnikv_manager_attach(daemon.socket, NULL, &manager, &err);
		if (!ret)
			omnikv_manager_reset(manager);
		_exit(ret < 0 && err.text[0] ? 0 : 1);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFEXITED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
	assert_true(daemon_said(&daemon, "of user 65534"));
	assert_int_equal(hit_of(&world, &story), story.nr_tokens);
	kv_world_detach(&world);
	kv_story_free(&story);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

/* ---- I2: after a crash figures stood still, or fell below nothing ---------------------------------------------------- */

#define NR_PLAYERS	3u

static pid_t start_player(const struct daemon_case *daemon, uint32_t number)
{
	struct kv_world world;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	KV_MUST(pid >= 0);
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	kv_world_connect_again(&world, KV_SHAPE_FULL, T, daemon->socket);
	for (uint32_t i = number;; i++) {
		struct omnikv_seq *seq;
		struct kv_story story;
		uint64_t hit;

		make_story(&story, i % 200);
		seq = kv_open(&world, &story, false);
		hit = omnikv_seq_tokens(seq);
		KV_MUST(!hit || !kv_compare(&world, seq, &story, 0, hit));
		/* While the daemon is away there is no memory. */
		if (!omnikv_seq_append(seq, story.nr_tokens - hit)) {
			kv_store(&world, seq, &story, hit, story.nr_tokens);
			KV_MUST(kv_commit(&world, seq, &story, false) >= 0);
		}
		omnikv_seq_close(seq);
		kv_story_free(&story);
	}
}

/* What is shown at any moment is possible, and of one daemon never less than it was. */
static void scrape(const struct kv_world *world, struct omnikv_manager_stats *last)
{
	struct omnikv_manager_stats now = { .size = sizeof(now) };
	struct omnikv_pool_info info = { .size = sizeof(info) };
	uint64_t sum = 0;

	/* A daemon that is away says nothing. */
	if (omnikv_manager_shared_stats(world->manager, &now) || omnikv_pool_info(world->pool, &info))
		return;
	for (uint32_t i = 0; i < OMNIKV_EXTENT_NR_STATES; i++)
		sum += info.state_bytes[i];
	assert_int_equal(sum, info.usable_bytes);
	assert_int_equal(info.free_bytes, info.state_bytes[OMNIKV_EXTENT_FREE]);
	assert_true(info.nr_clients <= NR_PLAYERS + 2);
	assert_true(now.blocks_hit <= now.blocks_queried && now.tokens_hit <= now.tokens_queried);
	assert_true(now.cached_bytes <= info.usable_bytes && now.nr_leased_blocks <= now.nr_blocks);
	assert_true(now.nr_queries >= last->nr_queries && now.blocks_queried >= last->blocks_queried &&
		    now.blocks_hit >= last->blocks_hit && now.tokens_hit >= last->tokens_hit &&
		    now.blocks_committed >= last->blocks_committed && now.blocks_evicted >= last->blocks_evicted);
	*last = now;
}

/* So many clients are there, and the figures say so. */
static void wait_for_clients(const struct kv_world *world, uint32_t nr, struct omnikv_manager_stats *last)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	uint64_t since = now_ms();

	do {
		scrape(world, last);
		sleep_ms(5);
		if (omnikv_pool_info(world->pool, &info))
			info.nr_clients = 0;
	} while (info.nr_clients != nr && now_ms() - since < 20000);
	assert_int_equal(info.nr_clients, nr);
}

static void figures_stand_still_or_turn_negative_after_a_crash(void **state)
{
	struct omnikv_manager_stats last = { .size = sizeof(last) }, before;
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct daemon_case daemon;
	pid_t pids[NR_PLAYERS];
	struct kv_world world;
	struct kv_story story;
	uint32_t nr_clients;

	(void)state;
	daemon_case_init(&daemon);
	start_on_file(&daemon, "8M");
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	assert_int_equal(omnikv_pool_info(world.pool, &info), 0);
	nr_clients = info.nr_clients;
	for (uint32_t i = 0; i < NR_PLAYERS; i++)
		pids[i] = start_player(&daemon, 60 * i);
	wait_for_clients(&world, nr_clients + NR_PLAYERS, &last);
	for (uint32_t n = 0; n < 50; n++) {
		uint32_t i = n % NR_PLAYERS;
		uint64_t nr_queries;

		if (n % 10 == 9) {
			daemon_kill(&daemon);
			scrape(&world, &last);
			start_on_file(&daemon, "8M");
			/* Another one counts from the beginning. */
			last = (struct omnikv_manager_stats){ .size = sizeof(last) };
		} else {
			kill(pids[i], SIGKILL);
			assert_int_equal(waitpid(pids[i], NULL, 0), pids[i]);
			wait_for_clients(&world, nr_clients + NR_PLAYERS - 1, &last);
			pids[i] = start_player(&daemon, 60 * i + n);
		}
		wait_for_clients(&world, nr_clients + NR_PLAYERS, &last);
		/* They go on counting. */
		nr_queries = last.nr_queries;
		for (uint64_t since = now_ms(); last.nr_queries == nr_queries && now_ms() - since < 20000; sleep_ms(5))
			scrape(&world, &last);
		assert_true(last.nr_queries > nr_queries);
	}
	for (uint32_t i = 0; i < NR_PLAYERS; i++) {
		kill(pids[i], SIGKILL);
		assert_int_equal(waitpid(pids[i], NULL, 0), pids[i]);
	}
	wait_for_clients(&world, nr_clients, &last);
	/* Nobody does anything: what is cached is what is sealed, to the byte, and nothing else is there. */
	for (uint64_t since = now_ms(); now_ms() - since < 10000; sleep_ms(10)) {
		scrape(&world, &last);
		if (last.cached_bytes == state_bytes(&world, OMNIKV_EXTENT_SEALED) && !state_bytes(&world, OMNIKV_EXTENT_QUARANTINED) &&
		    !state_bytes(&world, OMNIKV_EXTENT_PRIVATE))
			break;
	}
	assert_int_equal(last.cached_bytes, state_bytes(&world, OMNIKV_EXTENT_SEALED));
	assert_int_equal(last.cached_bytes, last.nr_blocks * omnikv_plan_block_bytes(&world.plan));
	assert_int_equal(last.nr_leased_blocks, 0);
	assert_int_equal(state_bytes(&world, OMNIKV_EXTENT_QUARANTINED), 0);
	assert_int_equal(state_bytes(&world, OMNIKV_EXTENT_PRIVATE), 0);
	/* And what somebody asks for now counts once, at the latest when it leaves. */
	make_story(&story, 1);
	omnikv_seq_close(compute(&world, &story));
	kv_world_detach(&world);
	for (uint32_t i = 0; i < 2; i++) {
		kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
		if (i)
			break;
		scrape(&world, &last);
		before = last;
		assert_int_equal(hit_of(&world, &story), story.nr_tokens);
		kv_world_detach(&world);
	}
	scrape(&world, &last);
	assert_int_equal(last.nr_queries - before.nr_queries, 1);
	assert_int_equal(last.blocks_queried - before.blocks_queried, BLOCKS);
	assert_int_equal(last.blocks_hit - before.blocks_hit, BLOCKS);
	assert_int_equal(last.tokens_queried - before.tokens_queried, story.nr_tokens);
	assert_int_equal(last.tokens_hit - before.tokens_hit, story.nr_tokens);
	kv_story_free(&story);
	kv_world_detach(&world);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_lookup_hits_a_block_that_is_being_written),
		cmocka_unit_test(bytes_change_under_whoever_reads_them_slowly),
		cmocka_unit_test(blocks_of_old_weights_are_served),
		cmocka_unit_test(lookups_that_need_nothing_pin_the_pool_for_ever),
		cmocka_unit_test(a_pool_full_of_what_may_leave_has_no_room),
		cmocka_unit_test(ranks_that_pass_the_check_alone_overcommit_together),
		cmocka_unit_test(blocks_are_counted_as_restored_and_cannot_be_used),
		cmocka_unit_test(strangers_clear_the_cache),
		cmocka_unit_test(figures_stand_still_or_turn_negative_after_a_crash),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

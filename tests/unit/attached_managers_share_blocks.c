// SPDX-License-Identifier: GPL-2.0-only
/*
 * Managers that ask another one, over clients of one pool: what one commits all others hit, byte
 * for byte; nothing that one holds is re-used, whoever resets or evicts; what cannot be published
 * waits, and is published later; whatever fails costs hits and nothing else.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "failpoint.h"
#include "manager/authority.h"
#include "manager/manager.h"
#include "manager/session.h"
#include "sequence.h"
#include "tests/harness/fault.h"
#include "tests/harness/kv_world.h"

#define T	16u
#define CLIENTS	3u

struct shared {
	struct kv_world		base;
	struct kv_world		clients[CLIENTS];
	struct okv_authority	*auths[CLIENTS];
};

static void open_shared(struct shared *sh, enum kv_shape shape, uint64_t nr_blocks)
{
	kv_world_open(&sh->base, shape, T, nr_blocks);
	for (uint32_t i = 0; i < CLIENTS; i++)
		kv_world_attach(&sh->clients[i], &sh->base, &sh->auths[i]);
}

static void check_shared(struct shared *sh)
{
	for (uint32_t i = 0; i < CLIENTS; i++)
		kv_world_check(&sh->clients[i]);
	kv_world_check(&sh->base);
}

static void close_shared(struct shared *sh)
{
	for (uint32_t i = 0; i < CLIENTS; i++)
		kv_world_detach(&sh->clients[i]);
	kv_world_close(&sh->base);
}

static struct omnikv_manager_stats stats_of(const struct kv_world *world)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	assert_int_equal(omnikv_manager_stats(world->manager, &stats), 0);
	return stats;
}

static void make_story(struct kv_story *story, uint32_t salt, uint64_t nr_tokens)
{
	*story = (struct kv_story){ 0 };
	for (uint64_t i = 0; i < nr_tokens; i++)
		kv_story_add(story, salt * 100000 + i);
}

/* Compute what does not hit, and commit it. The sequence stays open. */
static struct omnikv_seq *compute(const struct kv_world *world, const struct kv_story *story, bool with_tail,
				  uint64_t *hit)
{
	struct omnikv_seq *seq = kv_open(world, story, with_tail);
	const char *why;

	*hit = omnikv_seq_tokens(seq);
	why = *hit ? kv_compare(world, seq, story, 0, *hit) : NULL;
	if (why)
		fail_msg("%s", why);
	if (*hit < story->nr_tokens) {
		assert_int_equal(omnikv_seq_append(seq, story->nr_tokens - *hit), 0);
		kv_store(world, seq, story, *hit, story->nr_tokens);
		assert_true(kv_commit(world, seq, story, with_tail) >= 0);
	}
	return seq;
}

/* As a request does; how many tokens hit. Every byte is compared. */
static uint64_t play(const struct kv_world *world, const struct kv_story *story, bool with_tail)
{
	uint64_t hit;
	struct omnikv_seq *seq = compute(world, story, with_tail, &hit);

	omnikv_seq_close(seq);
	return hit;
}

static void what_one_commits_all_others_hit(void **state)
{
	(void)state;
	for (int shape = KV_SHAPE_FULL; shape <= KV_SHAPE_HYBRID; shape++) {
		struct kv_story story;
		struct shared sh;

		open_shared(&sh, shape, 300);
		make_story(&story, 1, 150 * T + 8);
		assert_int_equal(play(&sh.clients[0], &story, true), 0);
		check_shared(&sh);
		assert_int_equal(stats_of(&sh.clients[0]).blocks_published, 151);
		assert_int_equal(stats_of(&sh.clients[0]).nr_blocks, 0);
		for (uint32_t i = 0; i < CLIENTS; i++)
			assert_int_equal(play(&sh.clients[i], &story, true), story.nr_tokens);
		/* The authority itself as well, and its counters have all of them. */
		assert_int_equal(play(&sh.base, &story, true), story.nr_tokens);
		assert_int_equal(stats_of(&sh.base).blocks_hit, 4 * 151);
		assert_int_equal(stats_of(&sh.base).nr_leased_blocks, 0);
		assert_int_equal(omnikv_lookup(sh.clients[1].space, NULL, 0), 0);
		check_shared(&sh);
		kv_story_free(&story);
		close_shared(&sh);
	}
}

/* More than a block can have of them: the lookup asked for it without end. */
static void one_sequence_too_many_on_a_block_is_refused(void **state)
{
	enum { MANY = 65535 };
	struct omnikv_seq **seqs = calloc(MANY + 1, sizeof(*seqs));
	struct kv_story story;
	struct shared sh;
	struct omnikv_key key;
	int ret = 0, nr;

	(void)state;
	assert_non_null(seqs);
	open_shared(&sh, KV_SHAPE_FULL, 300);
	make_story(&story, 1, T);
	assert_int_equal(play(&sh.clients[0], &story, true), 0);
	key = kv_key(&sh.clients[1], &story, 0, T);
	alarm(60);
	for (nr = 0; nr <= MANY && !ret; nr += !ret)
		ret = omnikv_seq_open(sh.clients[1].space, &key, 1, NULL, &seqs[nr]);
	assert_int_equal(nr, MANY);
	assert_int_equal(ret, -EOVERFLOW);
	assert_int_equal(omnikv_seq_tokens(seqs[MANY - 1]), T);
	omnikv_seq_close_batch(seqs, nr);
	alarm(0);
	assert_int_equal(play(&sh.clients[1], &story, true), T);
	check_shared(&sh);
	kv_story_free(&story);
	close_shared(&sh);
	free(seqs);
}

/* A7: bytes that somebody reads are not re-used, whatever the authority does meanwhile. */
static void held_blocks_outlive_reset_and_eviction(void **state)
{
	struct kv_story held, other;
	struct omnikv_seq *seq;
	struct shared sh;
	uint64_t hit;

	(void)state;
	open_shared(&sh, KV_SHAPE_FULL, 40);
	make_story(&held, 1, 20 * T);
	assert_int_equal(play(&sh.clients[0], &held, false), 0);
	seq = compute(&sh.clients[1], &held, false, &hit);
	assert_int_equal(hit, held.nr_tokens);
	assert_int_equal(omnikv_manager_reset(sh.clients[2].manager), 20);
	assert_int_equal(stats_of(&sh.base).nr_blocks, 0);
	for (uint32_t i = 0; i < 8; i++) {
		make_story(&other, 10 + i, 15 * T);
		assert_int_equal(play(&sh.clients[2], &other, false), 0);
		assert_null(kv_compare(&sh.clients[1], seq, &held, 0, held.nr_tokens));
		kv_story_free(&other);
	}
	/* It is found no more, but by whom has it. */
	assert_int_equal(omnikv_lookup(sh.clients[2].space, NULL, 0), 0);
	omnikv_seq_close(seq);
	check_shared(&sh);
	/* And its memory is there again. */
	make_story(&other, 99, 39 * T);
	assert_int_equal(play(&sh.clients[0], &other, false), 0);
	kv_story_free(&other);
	kv_story_free(&held);
	close_shared(&sh);
}

static void two_that_compute_the_same_keep_one(void **state)
{
	(void)state;
	for (uint32_t is_race = 0; is_race < 2; is_race++) {
		struct omnikv_seq *seqs[2];
		struct kv_story story;
		struct shared sh;

		open_shared(&sh, KV_SHAPE_HYBRID, 60);
		make_story(&story, 1, 10 * T);
		for (uint32_t i = 0; i < 2; i++) {
			seqs[i] = kv_open(&sh.clients[i], &story, false);
			assert_int_equal(omnikv_seq_tokens(seqs[i]), 0);
			assert_int_equal(omnikv_seq_append(seqs[i], story.nr_tokens), 0);
			kv_store(&sh.clients[i], seqs[i], &story, 0, story.nr_tokens);
		}
		assert_int_equal(kv_commit(&sh.clients[0], seqs[0], &story, false), 10);
		/* The second does not see the first's, and finds out when it publishes. */
		if (is_race)
			okv_failpoint_arm(&(struct okv_failpoint){ .name = "import.find", .error = EIO });
		assert_int_equal(kv_commit(&sh.clients[1], seqs[1], &story, false), is_race ? 10 : 0);
		okv_failpoint_disarm_all();
		assert_int_equal(stats_of(&sh.base).nr_blocks, 10);
		assert_int_equal(stats_of(&sh.clients[1]).blocks_deduplicated, 10);
		assert_int_equal(stats_of(&sh.clients[1]).blocks_queued, 0);
		for (uint32_t i = 0; i < 2; i++) {
			assert_null(kv_compare(&sh.clients[i], seqs[i], &story, 0, story.nr_tokens));
			assert_int_equal(omnikv_seq_cached_tokens(seqs[i]), story.nr_tokens);
		}
		check_shared(&sh);
		for (uint32_t i = 0; i < 2; i++)
			omnikv_seq_close(seqs[i]);
		check_shared(&sh);
		kv_story_free(&story);
		close_shared(&sh);
	}
}

/* A block is cached without the state that a later turn needs: whoever has it adds it, for all. */
static void states_are_added_to_blocks_of_others(void **state)
{
	struct kv_story whole, half;
	struct omnikv_seq *seq;
	struct shared sh;

	(void)state;
	open_shared(&sh, KV_SHAPE_HYBRID, 60);
	make_story(&whole, 1, 8 * T);
	kv_story_copy(&half, &whole, 4 * T);
	assert_int_equal(play(&sh.clients[0], &whole, false), 0);
	/* Only the end of the whole has a state. Somebody who has the half's first block open stays without. */
	seq = kv_open(&sh.clients[2], &whole, false);
	assert_int_equal(omnikv_seq_tokens(seq), whole.nr_tokens);
	assert_int_equal(play(&sh.clients[1], &half, false), 0);
	check_shared(&sh);
	for (uint32_t i = 0; i < CLIENTS; i++)
		assert_int_equal(play(&sh.clients[i], &half, false), half.nr_tokens);
	check_shared(&sh);
	omnikv_seq_close(seq);
	check_shared(&sh);
	kv_story_free(&whole);
	kv_story_free(&half);
	close_shared(&sh);
}

/* P6: nobody answers, at any call; later everything is where it belongs. */
static void commits_wait_while_nobody_answers(void **state)
{
	struct omnikv_namespace ns;
	struct omnikv_space *space;
	struct kv_story story, old;
	struct omnikv_seq *seq;
	struct shared sh;
	uint64_t hit;

	(void)state;
	open_shared(&sh, KV_SHAPE_FULL, 200);
	make_story(&old, 7, 10 * T);
	make_story(&story, 1, 70 * T + 5);
	assert_int_equal(play(&sh.clients[1], &old, false), 0);
	okv_authority_local_set_gone(sh.auths[0], true);

	assert_int_equal(play(&sh.clients[0], &old, false), 0);
	seq = compute(&sh.clients[0], &story, true, &hit);
	assert_int_equal(hit, 0);
	assert_int_equal(stats_of(&sh.clients[0]).blocks_queued, 81);
	assert_int_equal(stats_of(&sh.clients[0]).blocks_published, 0);
	check_shared(&sh);
	assert_null(kv_compare(&sh.clients[0], seq, &story, 0, story.nr_tokens));
	/* Its own process hits it. */
	assert_int_equal(play(&sh.clients[0], &story, true), story.nr_tokens);
	assert_int_equal(omnikv_manager_reset(sh.clients[0].manager), -ENOTCONN);
	assert_int_equal(omnikv_admit(sh.clients[0].space, 10), 1);
	ns = sh.clients[0].ns;
	ns.tenant = "somebody else";
	assert_int_equal(omnikv_space_open(sh.clients[0].manager, &ns, &sh.clients[0].plan, &space, NULL), -ENOTCONN);
	assert_int_equal(play(&sh.clients[1], &story, true), 0);
	omnikv_seq_close(seq);
	assert_int_equal(stats_of(&sh.clients[0]).blocks_queued, 81);

	okv_authority_local_set_gone(sh.auths[0], false);
	kv_story_free(&story);
	make_story(&story, 2, 3 * T);
	assert_int_equal(play(&sh.clients[0], &story, false), 0);
	assert_int_equal(stats_of(&sh.clients[0]).blocks_queued, 0);
	/* Of the 81 others had cached all meanwhile; the new three are published. */
	assert_int_equal(stats_of(&sh.clients[0]).blocks_published, 3);
	assert_int_equal(stats_of(&sh.clients[0]).nr_blocks, 0);
	assert_int_equal(play(&sh.clients[2], &story, false), story.nr_tokens);
	check_shared(&sh);
	kv_story_free(&story);
	kv_story_free(&old);
	close_shared(&sh);
}

static void queued_commits_are_published_when_somebody_answers_again(void **state)
{
	struct kv_story story[3];
	struct shared sh;

	(void)state;
	open_shared(&sh, KV_SHAPE_MIXED, 300);
	for (uint32_t i = 0; i < 3; i++)
		make_story(&story[i], i + 1, (i + 1) * 20 * T + 4);
	okv_authority_local_set_gone(sh.auths[0], true);
	for (uint32_t i = 0; i < 3; i++)
		assert_int_equal(play(&sh.clients[0], &story[i], true), 0);
	assert_int_equal(stats_of(&sh.clients[0]).blocks_queued, 123);
	okv_authority_local_set_gone(sh.auths[0], false);
	/* Any lookup does. */
	assert_int_equal(play(&sh.clients[0], &story[0], true), story[0].nr_tokens);
	assert_int_equal(stats_of(&sh.clients[0]).blocks_queued, 0);
	assert_int_equal(stats_of(&sh.clients[0]).blocks_published, 123);
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(play(&sh.clients[1], &story[i], true), story[i].nr_tokens);
		kv_story_free(&story[i]);
	}
	check_shared(&sh);
	close_shared(&sh);
}

/* Memory is short while commits wait: they give way, an append does not fail for them. */
static void waiting_commits_give_way_to_appends(void **state)
{
	struct kv_story story;
	struct shared sh;

	(void)state;
	open_shared(&sh, KV_SHAPE_FULL, 40);
	okv_authority_local_set_gone(sh.auths[0], true);
	for (uint32_t i = 0; i < 10; i++) {
		make_story(&story, i + 1, 15 * T);
		assert_int_equal(play(&sh.clients[0], &story, false), 0);
		check_shared(&sh);
		kv_story_free(&story);
	}
	assert_int_equal(stats_of(&sh.clients[0]).blocks_queued + stats_of(&sh.clients[0]).blocks_unpublished, 150);
	assert_true(stats_of(&sh.clients[0]).blocks_queued <= 40);
	/* The end forgets them. */
	close_shared(&sh);
}

/* An authority that does not tell the truth: what it makes of an answer. */
enum lie { MORE_THAN_ASKED, TAIL_NOBODY_ASKED_FOR, TAIL_AS_LONG_AS_A_BLOCK, EXTENT_OF_ANOTHER_SIZE, MORE_AND_NEVER_ANY,
	   NR_LIES };

static enum lie lie;
static const struct kv_story *longer;
static const struct shared *liar;
static const struct okv_authority_ops *honest;
static struct omnikv_extent wrong;

static void find_and_lie(struct okv_authority *auth, void *remote, struct okv_ask *asks, uint32_t nr, uint32_t flags,
			 struct okv_found *found)
{
	struct omnikv_key *all = kv_keys(&liar->base, longer, longer->nr_tokens / T);
	const struct omnikv_prefix *asked = asks[0].prefix, more = { .keys = all, .nr_keys = longer->nr_tokens / T };

	assert_int_equal(nr, 1);
	if (lie == MORE_THAN_ASKED)
		asks[0].prefix = &more;
	honest->find(auth, remote, asks, nr, flags, found);
	asks[0].prefix = asked;
	free(all);
	if (asks[0].res)
		return;
	if (lie == TAIL_NOBODY_ASKED_FOR || lie == TAIL_AS_LONG_AS_A_BLOCK)
		asks[0].tail_tokens = lie == TAIL_NOBODY_ASKED_FOR ? 3 : T;
	if (lie == EXTENT_OF_ANOTHER_SIZE) {
		assert_int_equal(omnikv_extent_release(auth->client, &found->extents[0], 1), 0);
		assert_int_equal(omnikv_extent_lease(auth->client, &wrong, 1), 0);
		found->extents[0] = wrong;
	}
	if (lie == MORE_AND_NEVER_ANY) {
		assert_int_equal(omnikv_extent_release(auth->client, found->extents, found->nr), 0);
		found->nr = asks[0].nr = 0;
		asks[0].has_more = true;
	}
}

static void answers_that_cannot_be_are_misses(void **state)
{
	struct okv_authority_ops ops;
	struct kv_story story, short_one;
	struct omnikv_seq *seq;
	struct shared sh;

	(void)state;
	open_shared(&sh, KV_SHAPE_FULL, 60);
	make_story(&story, 1, 20 * T + 5);
	kv_story_copy(&short_one, &story, 5 * T);
	assert_int_equal(play(&sh.clients[0], &story, true), 0);
	assert_int_equal(omnikv_extent_alloc(sh.clients[2].client, 2, 1, NULL, 0, &wrong), 0);
	assert_int_not_equal(wrong.nr_granules, sh.base.plan.groups[0].nr_granules);
	assert_int_equal(omnikv_extent_seal(sh.clients[2].client, &wrong, 1), 0);
	longer = &story;
	liar = &sh;
	honest = sh.auths[1]->ops;
	ops = *honest;
	ops.find = find_and_lie;
	sh.auths[1]->ops = &ops;
	alarm(60);
	for (lie = 0; lie < NR_LIES; lie++) {
		bool with_tail = lie == TAIL_AS_LONG_AS_A_BLOCK;

		seq = kv_open(&sh.clients[1], with_tail ? &story : &short_one, with_tail);
		assert_int_equal(omnikv_seq_tokens(seq), 0);
		omnikv_seq_close(seq);
		check_shared(&sh);
	}
	alarm(0);
	sh.auths[1]->ops = honest;
	assert_int_equal(play(&sh.clients[1], &short_one, false), short_one.nr_tokens);
	assert_int_equal(omnikv_extent_free(sh.base.client, &wrong, 1), 0);
	check_shared(&sh);
	kv_story_free(&short_one);
	kv_story_free(&story);
	close_shared(&sh);
}

static void each_failure_costs_hits_and_nothing_else(void **state)
{
	static const char *const points[] = {
		"import.find", "import.insert", "import.publish", "session.seal", "session.insert", "commit.seal",
		"commit.publish", "commit.insert", "sequence.append", "sequence.own_block",
	};

	(void)state;
	for (uint32_t p = 0; p < sizeof(points) / sizeof(points[0]); p++) {
		for (uint32_t nth = 1; nth <= 4; nth++) {
			struct omnikv_seq *seqs[CLIENTS][2];
			struct kv_story story[CLIENTS];
			struct shared sh;

			open_shared(&sh, KV_SHAPE_HYBRID, 400);
			for (uint32_t i = 0; i < CLIENTS; i++)
				make_story(&story[i], 1 + i / 2, 70 * T + 3 * i);
			play(&sh.clients[0], &story[0], true);
			okv_failpoint_arm(&(struct okv_failpoint){ .name = points[p], .nth = nth, .times = 3, .error = ENOMEM });
			for (uint32_t i = 0; i < CLIENTS; i++) {
				uint64_t hit;

				seqs[i][0] = kv_open(&sh.clients[i], &story[i], true);
				hit = omnikv_seq_tokens(seqs[i][0]);
				if (hit < story[i].nr_tokens) {
					while (omnikv_seq_append(seqs[i][0], story[i].nr_tokens - hit))
						;
					kv_store(&sh.clients[i], seqs[i][0], &story[i], hit, story[i].nr_tokens);
				}
				assert_int_equal(omnikv_seq_fork(seqs[i][0], &seqs[i][1]), 0);
				kv_commit(&sh.clients[i], seqs[i][1], &story[i], true);
				check_shared(&sh);
			}
			okv_failpoint_disarm_all();
			for (uint32_t i = 0; i < CLIENTS; i++) {
				for (uint32_t k = 0; k < 2; k++) {
					assert_true(kv_commit(&sh.clients[i], seqs[i][k], &story[i], true) >= 0);
					assert_null(kv_compare(&sh.clients[i], seqs[i][k], &story[i], 0, story[i].nr_tokens));
					omnikv_seq_close(seqs[i][k]);
					check_shared(&sh);
				}
			}
			for (uint32_t i = 0; i < CLIENTS; i++) {
				play(&sh.clients[(i + 1) % CLIENTS], &story[i], true);
				kv_story_free(&story[i]);
			}
			close_shared(&sh);
		}
	}
}

/* Each allocation of a whole request fails once, in turn: at worst the hit is shorter or the request fails cleanly. */
static void short_memory_costs_hits_and_nothing_else(void **state)
{
	struct kv_story story;
	struct shared sh;
	bool has_fired = true;

	(void)state;
	open_shared(&sh, KV_SHAPE_HYBRID, 300);
	make_story(&story, 1, 70 * T + 3);
	for (uint32_t nth = 1; has_fired; nth++) {
		for (uint32_t i = 0; i < 2; i++) {
			struct kv_world *world = &sh.clients[i];
			struct omnikv_key *keys = kv_keys(world, &story, 70), tail = kv_key(world, &story, 70, 3);
			struct omnikv_seq *seq = NULL;
			uint64_t hit;

			fault_arm(nth);
			if (!omnikv_seq_open(world->space, keys, 70, &tail, &seq)) {
				hit = omnikv_seq_tokens(seq);
				if (!omnikv_seq_append(seq, story.nr_tokens - hit)) {
					kv_store(world, seq, &story, hit, story.nr_tokens);
					omnikv_seq_commit(seq, keys, 70, &tail);
					assert_null(kv_compare(world, seq, &story, 0, story.nr_tokens));
				}
				omnikv_seq_close(seq);
			}
			has_fired = fault_disarm();
			free(keys);
			check_shared(&sh);
		}
		omnikv_manager_reset(sh.base.manager);
		check_shared(&sh);
	}
	kv_story_free(&story);
	close_shared(&sh);
}

/* Wrong bytes are not served again, to anybody. */
static void a_distrusted_block_leaves_all_clients(void **state)
{
	struct omnikv_piece piece;
	struct kv_story story;
	struct omnikv_seq *seq;
	struct shared sh;
	uint64_t hit;

	(void)state;
	open_shared(&sh, KV_SHAPE_FULL, 60);
	make_story(&story, 1, 10 * T);
	play(&sh.clients[0], &story, false);
	seq = compute(&sh.clients[1], &story, false, &hit);
	assert_int_equal(hit, story.nr_tokens);
	assert_int_equal(omnikv_seq_pieces(seq, 0, 0, 0, 4 * T, 5 * T, 0, &piece, 1), 1);
	*((uint8_t *)omnikv_pool_addr(sh.base.pool, &piece.extent) + piece.extent_off) ^= 1;
	okv_seq_distrust(seq, 4);
	omnikv_seq_close(seq);
	for (uint32_t i = 0; i < CLIENTS; i++)
		assert_int_equal(play(&sh.clients[i], &story, false), i ? story.nr_tokens : 4 * T);
	check_shared(&sh);
	kv_story_free(&story);
	close_shared(&sh);
}

/* A13: weights have changed. Nothing older is hit, not even by who holds it; what waits is forgotten. */
static void a_new_epoch_hides_all_that_is_older(void **state)
{
	struct kv_story story, other;
	struct omnikv_seq *seq;
	struct shared sh;
	uint64_t hit;

	(void)state;
	open_shared(&sh, KV_SHAPE_FULL, 80);
	make_story(&story, 1, 10 * T + 3);
	make_story(&other, 2, 5 * T);
	play(&sh.clients[0], &story, true);
	seq = compute(&sh.clients[1], &story, true, &hit);
	assert_int_equal(hit, story.nr_tokens);
	okv_authority_local_set_gone(sh.auths[2], true);
	play(&sh.clients[2], &other, false);
	assert_int_equal(stats_of(&sh.clients[2]).blocks_queued, 5);
	assert_int_equal(omnikv_manager_raise_epoch(sh.clients[0].manager), 1);
	okv_authority_local_set_gone(sh.auths[2], false);
	for (uint32_t i = 0; i < CLIENTS; i++) {
		struct omnikv_seq *again = kv_open(&sh.clients[i], i == 2 ? &other : &story, true);

		assert_int_equal(omnikv_seq_tokens(again), 0);
		omnikv_seq_close(again);
	}
	assert_int_equal(stats_of(&sh.clients[2]).blocks_queued, 0);
	assert_int_equal(stats_of(&sh.base).blocks_committed, 11);
	/* Who holds it reads what it held; what is committed now is hit. */
	assert_null(kv_compare(&sh.clients[1], seq, &story, 0, story.nr_tokens));
	check_shared(&sh);
	assert_int_equal(play(&sh.clients[0], &story, true), 0);
	assert_int_equal(play(&sh.clients[1], &story, true), story.nr_tokens);
	omnikv_seq_close(seq);
	check_shared(&sh);
	assert_int_equal(omnikv_manager_raise_epoch(sh.base.manager), 2);
	assert_int_equal(play(&sh.clients[1], &story, true), 0);
	kv_story_free(&story);
	kv_story_free(&other);
	close_shared(&sh);
}

struct raising {
	struct shared	*sh;
	struct kv_story	*other;
};

/* As another thread of the process does: it learns of the new epoch. */
static int raise_and_look(void *opaque, const char *name)
{
	struct raising *raising = opaque;

	(void)name;
	okv_failpoint_disarm_all();
	assert_true(omnikv_manager_raise_epoch(raising->sh->base.manager) > 0);
	omnikv_seq_close(kv_open(&raising->sh->clients[1], raising->other, false));
	return 0;
}

static void arm_raising(struct raising *raising, const char *point)
{
	okv_failpoint_arm(&(struct okv_failpoint){ .name = point, .times = 1, .fn = raise_and_look, .opaque = raising });
}

/* A13: what was found or summed before the epoch was raised does not come in after it. */
static void nothing_older_comes_in_after_a_new_epoch(void **state)
{
	struct kv_story story, other;
	struct raising raising;
	struct omnikv_seq *seq;
	struct shared sh;

	(void)state;
	open_shared(&sh, KV_SHAPE_FULL, 80);
	make_story(&story, 1, 10 * T);
	make_story(&other, 2, 5 * T);
	raising = (struct raising){ &sh, &other };
	play(&sh.clients[0], &story, false);
	arm_raising(&raising, "import.found");
	seq = kv_open(&sh.clients[1], &story, false);
	assert_int_equal(omnikv_seq_tokens(seq), 0);
	assert_int_equal(omnikv_seq_append(seq, story.nr_tokens), 0);
	kv_store(&sh.clients[1], seq, &story, 0, story.nr_tokens);
	arm_raising(&raising, "commit.publish");
	assert_int_equal(kv_commit(&sh.clients[1], seq, &story, false), -ESTALE);
	assert_int_equal(play(&sh.clients[1], &story, false), 0);
	omnikv_seq_close(seq);
	okv_failpoint_disarm_all();
	check_shared(&sh);
	kv_story_free(&story);
	kv_story_free(&other);
	close_shared(&sh);
}

/* The same where the begin of the prefix is here and in use, while the rest is asked for. */
static void what_is_in_use_is_not_hit_after_a_new_epoch(void **state)
{
	struct omnikv_prefix prefixes[2];
	struct kv_story story, begin, other;
	struct omnikv_seq *held, *seqs[2];
	struct raising raising;
	struct omnikv_key *keys;
	struct shared sh;

	(void)state;
	open_shared(&sh, KV_SHAPE_FULL, 80);
	make_story(&story, 1, 10 * T);
	kv_story_copy(&begin, &story, 5 * T);
	make_story(&other, 2, 5 * T);
	raising = (struct raising){ &sh, &other };
	play(&sh.clients[0], &story, false);
	held = kv_open(&sh.clients[1], &begin, false);
	assert_int_equal(omnikv_seq_tokens(held), 5 * T);
	keys = kv_keys(&sh.clients[1], &story, 10);
	for (uint32_t i = 0; i < 2; i++)
		prefixes[i] = (struct omnikv_prefix){ .keys = keys, .nr_keys = 10 - i };
	arm_raising(&raising, "import.found");
	assert_int_equal(omnikv_seq_open_batch(sh.clients[1].space, prefixes, 2, seqs), 0);
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(omnikv_seq_tokens(seqs[i]), 0);
	omnikv_seq_close_batch(seqs, 2);
	assert_null(kv_compare(&sh.clients[1], held, &begin, 0, 5 * T));
	omnikv_seq_close(held);
	okv_failpoint_disarm_all();
	check_shared(&sh);
	free(keys);
	kv_story_free(&story);
	kv_story_free(&begin);
	kv_story_free(&other);
	close_shared(&sh);
}

/* The authority's epoch ends while a request is on its way, whose sender knows nothing of it. */
static int raise_alone(void *opaque, const char *name)
{
	const struct shared *sh = opaque;

	(void)name;
	KV_MUST(omnikv_manager_raise_epoch(sh->base.manager) > 0);
	return 0;
}

static int64_t cached_at_base(const struct shared *sh, const struct kv_story *story)
{
	uint64_t nr = story->nr_tokens / T;
	struct omnikv_key *keys = kv_keys(&sh->base, story, nr);
	int64_t nr_hit = omnikv_lookup(sh->base.space, keys, nr);

	free(keys);
	return nr_hit;
}

static void what_is_on_its_way_as_the_epoch_ends_is_not_published(void **state)
{
	struct kv_story story;
	struct shared sh;

	(void)state;
	open_shared(&sh, KV_SHAPE_FULL, 80);
	make_story(&story, 1, 10 * T);
	okv_failpoint_arm(&(struct okv_failpoint){ .name = "import.publish", .times = 1, .fn = raise_alone, .opaque = &sh });
	play(&sh.clients[0], &story, false);
	okv_failpoint_disarm_all();
	assert_int_equal(cached_at_base(&sh, &story), 0);
	assert_int_equal(stats_of(&sh.base).nr_blocks, 0);
	check_shared(&sh);
	/* And of the new one it is. */
	assert_int_equal(play(&sh.clients[0], &story, false), 0);
	assert_int_equal(cached_at_base(&sh, &story), 10);
	kv_story_free(&story);
	close_shared(&sh);
}

/* Whoever decides, and whoever asks: what is known of the epoch comes another way. */
struct epoch_row {
	bool		is_attached;
	bool		raises_itself;		/* else the authority does, untold */
	uint64_t	nr_cached;		/* blocks that it began with */
	bool		is_fork;		/* of it is committed, made after the raise */
	bool		is_there_anew;		/* somebody has committed the same in the new epoch */
};

static void check_old_bytes(const struct epoch_row *row)
{
	struct kv_story story, prefix;
	struct omnikv_seq *seq, *fork;
	struct kv_world *world;
	struct shared sh;

	open_shared(&sh, KV_SHAPE_FULL, 80);
	world = row->is_attached ? &sh.clients[0] : &sh.base;
	make_story(&story, 1, 5 * T + 3);
	make_story(&prefix, 1, row->nr_cached * T);
	if (row->nr_cached)
		play(world, &prefix, false);
	seq = kv_open(world, &story, true);
	assert_int_equal(omnikv_seq_tokens(seq), prefix.nr_tokens);
	assert_int_equal(omnikv_seq_append(seq, story.nr_tokens - prefix.nr_tokens), 0);
	kv_store(world, seq, &story, prefix.nr_tokens, story.nr_tokens);
	assert_int_equal(omnikv_manager_raise_epoch(row->raises_itself ? world->manager : sh.base.manager), 1);
	if (row->is_fork) {
		assert_int_equal(omnikv_seq_fork(seq, &fork), 0);
		omnikv_seq_close(seq);
		seq = fork;
	}
	if (row->is_there_anew)
		play(&sh.clients[1], &story, true);
	/* Also when it is asked again. */
	for (uint32_t i = 0; i < 2; i++)
		assert_int_equal(kv_commit(world, seq, &story, true), -ESTALE);
	assert_int_equal(cached_at_base(&sh, &story), row->is_there_anew ? 5 : 0);
	omnikv_seq_close(seq);
	check_shared(&sh);
	assert_int_equal(play(world, &story, true), row->is_there_anew ? story.nr_tokens : 0);
	assert_int_equal(play(world, &story, true), story.nr_tokens);
	kv_story_free(&story);
	kv_story_free(&prefix);
	close_shared(&sh);
}

static void bytes_of_old_weights_are_published_in_the_new_epoch(void **state)
{
	static const struct epoch_row rows[] = {
		{ .is_attached = false },
		{ .is_attached = false, .nr_cached = 2 },
		{ .is_attached = false, .is_fork = true },
		{ .is_attached = false, .is_there_anew = true },
		{ .is_attached = true },
		{ .is_attached = true, .raises_itself = true },
		{ .is_attached = true, .nr_cached = 2 },
		{ .is_attached = true, .is_fork = true },
		{ .is_attached = true, .is_there_anew = true },
	};

	(void)state;
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		check_old_bytes(&rows[i]);
}

static void who_holds_old_blocks_counts_them_in_the_new_epoch(void **state)
{
	(void)state;
	for (int is_attached = 0; is_attached <= 1; is_attached++) {
		struct omnikv_seq *seq;
		struct omnikv_key *keys;
		struct kv_story story;
		struct kv_world *world;
		struct shared sh;
		uint64_t hit;

		open_shared(&sh, KV_SHAPE_FULL, 80);
		world = is_attached ? &sh.clients[0] : &sh.base;
		make_story(&story, 1, 5 * T);
		keys = kv_keys(world, &story, 5);
		seq = compute(world, &story, false, &hit);
		assert_int_equal(omnikv_lookup(world->space, keys, 5), 5);
		assert_int_equal(omnikv_space_epoch(world->space), 0);
		assert_int_equal(omnikv_manager_raise_epoch(sh.base.manager), 1);
		assert_int_equal(omnikv_lookup(world->space, keys, 5), 0);
		assert_int_equal(omnikv_space_epoch(world->space), 1);
		omnikv_seq_close(seq);
		free(keys);
		kv_story_free(&story);
		close_shared(&sh);
	}
}

static void a_state_of_an_older_epoch_is_not_taken(void **state)
{
	struct omnikv_extent_info info = { .size = sizeof(info) };
	struct omnikv_extent extent;
	struct omnikv_key key;
	struct kv_story story;
	struct shared sh;

	(void)state;
	open_shared(&sh, KV_SHAPE_HYBRID, 80);
	make_story(&story, 1, 4 * T);
	assert_int_equal(omnikv_manager_raise_epoch(sh.base.manager), 1);
	play(&sh.clients[0], &story, false);
	/* The block is of this epoch and has no state; the bytes are of the one before. */
	key = kv_key(&sh.base, &story, 1, T);
	assert_int_equal(omnikv_extent_alloc(sh.clients[1].client, sh.base.plan.groups[1].nr_granules, 1, NULL, 0, &extent), 0);
	assert_int_equal(okv_session_attach(sh.base.space, sh.clients[1].client, false, &key, 1, &extent, 0, 0), -ESTALE);
	assert_int_equal(omnikv_extent_query(sh.clients[1].client, &extent, &info), 0);
	assert_int_equal(info.state, OMNIKV_EXTENT_PRIVATE);
	assert_int_equal(okv_session_attach(sh.base.space, sh.clients[1].client, false, &key, 1, &extent, 0, 1), 0);
	assert_int_equal(omnikv_extent_release(sh.clients[1].client, &extent, 1), 0);
	kv_story_free(&story);
	close_shared(&sh);
}

/* ---- anything at all ------------------------------------------------------------------------ */

struct actor {
	struct omnikv_seq	*seq;
	struct kv_story		story;
	uint32_t		client;
};

static void random_step(struct shared *sh, struct actor *actor, struct kv_story *roots, uint32_t nr_roots, uint64_t *seed)
{
	struct kv_world *world = &sh->clients[actor->client];
	uint64_t n, old;
	const char *why;

	if (!actor->seq) {
		const struct kv_story *root = &roots[kv_random(seed) % nr_roots];

		actor->client = kv_random(seed) % CLIENTS;
		world = &sh->clients[actor->client];
		kv_story_copy(&actor->story, root, kv_random(seed) % (root->nr_tokens + 1));
		actor->seq = kv_open(world, &actor->story, kv_random(seed) % 2);
		n = omnikv_seq_tokens(actor->seq);
		actor->story.nr_tokens = n;
	} else if (kv_random(seed) % 8 == 0) {
		omnikv_seq_close(actor->seq);
		kv_story_free(&actor->story);
		actor->seq = NULL;
		return;
	} else if (kv_random(seed) % 3 == 0) {
		kv_commit(world, actor->seq, &actor->story, kv_random(seed) % 2);
	} else if (kv_random(seed) % 6 == 0) {
		n = omnikv_seq_checkpoint(actor->seq, kv_random(seed) % (actor->story.nr_tokens + 1));
		assert_int_equal(omnikv_seq_truncate(actor->seq, n), 0);
		actor->story.nr_tokens = n;
	} else {
		/* Mostly what others compute as well. */
		old = actor->story.nr_tokens;
		n = 1 + kv_random(seed) % (3 * T);
		if (omnikv_seq_append(actor->seq, n))
			return;
		for (uint64_t i = 0; i < n; i++)
			kv_story_add(&actor->story, kv_random(seed) % 64 ? (old + i) % 5 : 77);
		kv_store(world, actor->seq, &actor->story, old, old + n);
	}
	why = actor->story.nr_tokens ? kv_compare(world, actor->seq, &actor->story, 0, actor->story.nr_tokens) : NULL;
	if (why)
		fail_msg("%s", why);
}

static void random_clients_agree_byte_for_byte(void **state)
{
	(void)state;
	for (int shape = KV_SHAPE_FULL; shape <= KV_SHAPE_HYBRID; shape++) {
		struct kv_story roots[4];
		struct actor actors[8] = { { 0 } };
		uint64_t seed = 42 + shape;
		struct shared sh;

		open_shared(&sh, shape, 160);
		for (uint32_t i = 0; i < 4; i++) {
			roots[i] = (struct kv_story){ 0 };
			for (uint64_t k = 0; k < 12 * T; k++)
				kv_story_add(&roots[i], kv_random(&seed) % 64 ? k % 5 : 77);
		}
		for (uint32_t step = 0; step < 4000; step++) {
			random_step(&sh, &actors[kv_random(&seed) % 8], roots, 4, &seed);
			if (step % 16 == 0)
				check_shared(&sh);
			if (kv_random(&seed) % 100 == 0)
				okv_authority_local_set_gone(sh.auths[kv_random(&seed) % CLIENTS], kv_random(&seed) % 2);
			if (kv_random(&seed) % 300 == 0)
				omnikv_manager_reset(sh.base.manager);
		}
		for (uint32_t i = 0; i < 8; i++) {
			omnikv_seq_close(actors[i].seq);
			kv_story_free(&actors[i].story);
		}
		assert_true(stats_of(&sh.clients[0]).blocks_imported > 20);
		assert_true(stats_of(&sh.clients[0]).blocks_published > 20);
		for (uint32_t i = 0; i < 4; i++)
			kv_story_free(&roots[i]);
		close_shared(&sh);
	}
}

struct thread {
	struct shared	*sh;
	uint32_t	client;
	uint64_t	seed;
};

static void *run_thread(void *arg)
{
	struct thread *thread = arg;
	const struct kv_world *world = &thread->sh->clients[thread->client];

	for (uint32_t round = 0; round < 60; round++) {
		struct kv_story story = { 0 };
		struct omnikv_seq *seq;
		uint64_t hit, nr = 1 + kv_random(&thread->seed) % (12 * T);
		uint32_t salt = kv_random(&thread->seed) % 4;
		const char *why;

		for (uint64_t i = 0; i < nr; i++)
			kv_story_add(&story, salt * 1000 + i);
		seq = kv_open(world, &story, true);
		hit = omnikv_seq_tokens(seq);
		if (hit == nr || !omnikv_seq_append(seq, nr - hit)) {
			kv_store(world, seq, &story, hit, nr);
			kv_commit(world, seq, &story, true);
			why = kv_compare(world, seq, &story, 0, nr);
			if (why)
				kv_fail(why, __FILE__, __LINE__);
		}
		omnikv_seq_close(seq);
		kv_story_free(&story);
	}
	return NULL;
}

static void threads_of_all_clients_agree(void **state)
{
	struct thread threads[2 * CLIENTS];
	pthread_t ids[2 * CLIENTS];
	struct shared sh;

	(void)state;
	open_shared(&sh, KV_SHAPE_FULL, 120);
	for (uint32_t i = 0; i < 2 * CLIENTS; i++) {
		threads[i] = (struct thread){ &sh, i % CLIENTS, i + 1 };
		assert_int_equal(pthread_create(&ids[i], NULL, run_thread, &threads[i]), 0);
	}
	for (uint32_t i = 0; i < 2 * CLIENTS; i++)
		pthread_join(ids[i], NULL);
	check_shared(&sh);
	close_shared(&sh);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_one_commits_all_others_hit),
		cmocka_unit_test(one_sequence_too_many_on_a_block_is_refused),
		cmocka_unit_test(held_blocks_outlive_reset_and_eviction),
		cmocka_unit_test(two_that_compute_the_same_keep_one),
		cmocka_unit_test(states_are_added_to_blocks_of_others),
		cmocka_unit_test(commits_wait_while_nobody_answers),
		cmocka_unit_test(queued_commits_are_published_when_somebody_answers_again),
		cmocka_unit_test(waiting_commits_give_way_to_appends),
		cmocka_unit_test(answers_that_cannot_be_are_misses),
		cmocka_unit_test(each_failure_costs_hits_and_nothing_else),
		cmocka_unit_test(short_memory_costs_hits_and_nothing_else),
		cmocka_unit_test(a_distrusted_block_leaves_all_clients),
		cmocka_unit_test(a_new_epoch_hides_all_that_is_older),
		cmocka_unit_test(nothing_older_comes_in_after_a_new_epoch),
		cmocka_unit_test(what_is_in_use_is_not_hit_after_a_new_epoch),
		cmocka_unit_test(what_is_on_its_way_as_the_epoch_ends_is_not_published),
		cmocka_unit_test(bytes_of_old_weights_are_published_in_the_new_epoch),
		cmocka_unit_test(who_holds_old_blocks_counts_them_in_the_new_epoch),
		cmocka_unit_test(a_state_of_an_older_epoch_is_not_taken),
		cmocka_unit_test(random_clients_agree_byte_for_byte),
		cmocka_unit_test(threads_of_all_clients_agree),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

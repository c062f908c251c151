// SPDX-License-Identifier: GPL-2.0-only
/*
 * Many sequences at random: opened, appended to, forked, truncated, committed, closed. Whatever
 * they hold must be what their tokens say, byte by byte, and what the model says is cached
 * must be hit. Single-threaded with an exact model where nothing is evicted; with eviction, and
 * with four threads that hand sequences to each other, bytes and invariants only.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/harness/kv_world.h"

#define T		16u
#define NR_SLOTS	24u
#define NR_KNOWN	8192u

struct player {
	struct omnikv_seq	*seqs[NR_SLOTS];
	struct kv_story		stories[NR_SLOTS];
};

/* The hashes of what was committed: full blocks and tails, by the hash after their last token. */
struct known {
	uint64_t	full[NR_KNOWN];
	uint64_t	tails[NR_KNOWN];
	uint64_t	states[NR_KNOWN];
	uint32_t	nr_full;
	uint32_t	nr_tails;
	uint32_t	nr_states;
};

static bool known_has(const uint64_t *list, uint32_t nr, uint64_t hash)
{
	for (uint32_t i = 0; i < nr; i++)
		if (list[i] == hash)
			return true;
	return false;
}

static void known_add(uint64_t *list, uint32_t *nr, uint64_t hash)
{
	if (known_has(list, *nr, hash))
		return;
	KV_MUST(*nr < NR_KNOWN);
	list[(*nr)++] = hash;
}

static void player_drop(struct player *player, uint32_t slot)
{
	omnikv_seq_close(player->seqs[slot]);
	player->seqs[slot] = NULL;
	kv_story_free(&player->stories[slot]);
}

static void must_hold(const struct kv_world *world, const struct omnikv_seq *seq, const struct kv_story *story)
{
	const char *wrong = kv_compare(world, seq, story, 0, omnikv_seq_tokens(seq));

	if (wrong)
		kv_fail(wrong, __FILE__, __LINE__);
}

/* How many tokens of a story the model says must hit. */
static uint64_t must_hit(const struct kv_world *world, const struct known *known, const struct kv_story *story)
{
	bool is_hybrid = world->plan.layout.nr_groups == 2;
	uint64_t nr = story->nr_tokens / T, i;

	for (i = 0; i < nr; i++)
		if (!known_has(known->full, known->nr_full, story->hashes[(i + 1) * T - 1]))
			break;
	if (i == nr && story->nr_tokens % T) {
		uint64_t hash = story->hashes[story->nr_tokens - 1];

		if (known_has(known->tails, known->nr_tails, hash) &&
		    (!is_hybrid || known_has(known->states, known->nr_states, hash)))
			return story->nr_tokens;
	}
	while (is_hybrid && i && !known_has(known->states, known->nr_states, story->hashes[i * T - 1]))
		i--;
	return i * T;
}

static void grow(struct kv_world *world, struct omnikv_seq *seq, struct kv_story *story, uint64_t nr, uint64_t *seed)
{
	uint64_t old = omnikv_seq_tokens(seq);
	int ret = omnikv_seq_append(seq, nr);

	if (ret) {
		KV_MUST(ret == -ENOSPC);
		KV_MUST(omnikv_seq_tokens(seq) == old);
		return;
	}
	KV_MUST(omnikv_seq_tokens(seq) == old + nr);
	/* Few tokens, so that stories meet again. */
	while (story->nr_tokens < old + nr)
		kv_story_add(story, kv_random(seed) % 8 ? 1 : kv_random(seed) % 3);
	kv_store(world, seq, story, old, old + nr);
	if (nr)
		KV_MUST(kv_state_is_right(world, seq, story, old + nr));
}

static void player_move(struct kv_world *world, struct player *player, struct known *known, uint64_t *seed)
{
	uint32_t slot = kv_random(seed) % NR_SLOTS, other = kv_random(seed) % NR_SLOTS;
	struct omnikv_seq *seq = player->seqs[slot];
	struct kv_story *story = &player->stories[slot];
	bool with_tail = kv_random(seed) % 2, is_hybrid = world->plan.layout.nr_groups == 2;
	bool is_mixed = world->plan.layout.nr_groups == 3;
	uint64_t nr;

	if (!seq) {
		/* A prompt that may have been seen: part of another's story, and something new. */
		struct kv_story prompt = { 0 };

		if (player->seqs[other])
			kv_story_copy(&prompt, &player->stories[other],
				      kv_random(seed) % (player->stories[other].nr_tokens + 1));
		for (nr = kv_random(seed) % 40; nr; nr--)
			kv_story_add(&prompt, kv_random(seed) % 8 ? 1 : kv_random(seed) % 3);
		player->seqs[slot] = kv_open(world, &prompt, with_tail);
		nr = omnikv_seq_tokens(player->seqs[slot]);
		KV_MUST(omnikv_seq_cached_tokens(player->seqs[slot]) == nr);
		if (known && with_tail)
			KV_MUST(nr == must_hit(world, known, &prompt));
		must_hold(world, player->seqs[slot], &prompt);
		if (nr)
			KV_MUST(kv_state_is_right(world, player->seqs[slot], &prompt, nr));
		kv_story_copy(story, &prompt, nr);
		grow(world, player->seqs[slot], &prompt, prompt.nr_tokens - nr, seed);
		kv_story_free(story);
		kv_story_copy(story, &prompt, omnikv_seq_tokens(player->seqs[slot]));
		kv_story_free(&prompt);
		return;
	}

	switch (kv_random(seed) % 8) {
	case 0:
	case 1:
		grow(world, seq, story, kv_random(seed) % 3 ? 1 + kv_random(seed) % 5 : kv_random(seed) % (5 * T), seed);
		break;
	case 2:
		nr = kv_random(seed) % (omnikv_seq_tokens(seq) + 1);
		KV_MUST(omnikv_seq_truncate(seq, nr) == 0);
		KV_MUST(omnikv_seq_tokens(seq) == nr);
		story->nr_tokens = nr;
		break;
	case 3:
		if (player->seqs[other])
			break;
		KV_MUST(omnikv_seq_fork(seq, &player->seqs[other]) == 0);
		kv_story_copy(&player->stories[other], story, story->nr_tokens);
		break;
	case 4:
	case 5: {
		uint64_t full = story->nr_tokens / T * T, at = story->nr_tokens;
		bool has_state, is_hit = false;
		int64_t ret;

		with_tail = with_tail && (!is_mixed || at % 4 == 0);
		has_state = at && kv_state_is_right(world, seq, story, at);
		ret = kv_commit(world, seq, story, with_tail);
		if (ret == -ENOSPC)	/* no room for the copy of a tail */
			break;
		KV_MUST(ret >= 0);
		KV_MUST(omnikv_seq_cached_tokens(seq) >= full);
		if (!known)
			break;
		for (uint64_t i = T; i <= full; i += T)
			known_add(known->full, &known->nr_full, story->hashes[i - 1]);
		if (with_tail && at % T) {
			is_hit = known_has(known->tails, known->nr_tails, story->hashes[at - 1]);
			known_add(known->tails, &known->nr_tails, story->hashes[at - 1]);
		}
		/* Only a state that was made for this end is certain; one at an earlier block may have come along. */
		if (is_hybrid && has_state && (at == full || with_tail) && !is_hit)
			known_add(known->states, &known->nr_states, story->hashes[at - 1]);
		break;
	}
	case 6:
		must_hold(world, seq, story);
		break;
	default:
		player_drop(player, slot);
		break;
	}
	if (player->seqs[slot])
		must_hold(world, player->seqs[slot], &player->stories[slot]);
}

static void play(enum kv_shape shape, uint64_t nr_blocks, uint32_t nr_moves, bool is_exact, uint64_t seed)
{
	struct known *known = calloc(1, sizeof(*known));
	struct player player = { 0 };
	struct kv_world world;

	assert_non_null(known);
	kv_world_open(&world, shape, T, nr_blocks);
	for (uint32_t i = 0; i < nr_moves; i++) {
		player_move(&world, &player, is_exact ? known : NULL, &seed);
		if (i % 16 == 0)
			kv_world_check(&world);
	}
	for (uint32_t i = 0; i < NR_SLOTS; i++)
		player_drop(&player, i);
	kv_world_close(&world);
	free(known);
}

static void one_group_hits_exactly(void **state)
{
	(void)state;
	play(KV_SHAPE_FULL, 5000, 2500, true, 1);
}

static void several_groups_hit_exactly(void **state)
{
	(void)state;
	play(KV_SHAPE_MIXED, 5000, 2500, true, 2);
}

static void states_and_bytes_are_right(void **state)
{
	(void)state;
	play(KV_SHAPE_HYBRID, 5000, 2500, false, 3);
}

static void evicting_keeps_bytes_right(void **state)
{
	(void)state;
	play(KV_SHAPE_FULL, 60, 3000, false, 4);
	play(KV_SHAPE_MIXED, 60, 2000, false, 5);
	play(KV_SHAPE_HYBRID, 60, 2000, false, 6);
}

/* One place where threads leave forks for each other. */
struct table {
	struct kv_world		world;
	pthread_mutex_t		lock;
	struct omnikv_seq	*seq;
	struct kv_story		story;
	uint64_t		seed;
};

static void *play_thread(void *arg)
{
	struct table *table = arg;
	struct player player = { 0 };
	uint64_t seed;

	pthread_mutex_lock(&table->lock);
	seed = kv_random(&table->seed);
	pthread_mutex_unlock(&table->lock);
	for (uint32_t i = 0; i < 600; i++) {
		uint32_t slot = kv_random(&seed) % NR_SLOTS;

		player_move(&table->world, &player, NULL, &seed);
		if (i % 4)
			continue;
		pthread_mutex_lock(&table->lock);
		if (table->seq && !player.seqs[slot]) {
			player.seqs[slot] = table->seq;
			player.stories[slot] = table->story;
			table->seq = NULL;
		} else if (!table->seq && player.seqs[slot]) {
			KV_MUST(omnikv_seq_fork(player.seqs[slot], &table->seq) == 0);
			kv_story_copy(&table->story, &player.stories[slot], player.stories[slot].nr_tokens);
		}
		pthread_mutex_unlock(&table->lock);
	}
	for (uint32_t i = 0; i < NR_SLOTS; i++)
		player_drop(&player, i);
	return NULL;
}

static void threads_share_forks(void **state)
{
	static const enum kv_shape shapes[] = { KV_SHAPE_FULL, KV_SHAPE_HYBRID };

	(void)state;
	for (uint32_t s = 0; s < 2; s++) {
		struct table table = { .lock = PTHREAD_MUTEX_INITIALIZER, .seed = 7 + s };
		pthread_t threads[4];

		kv_world_open(&table.world, shapes[s], T, 150);
		for (uint32_t i = 0; i < 4; i++)
			assert_int_equal(pthread_create(&threads[i], NULL, play_thread, &table), 0);
		for (uint32_t i = 0; i < 4; i++)
			pthread_join(threads[i], NULL);
		omnikv_seq_close(table.seq);
		if (table.seq)
			kv_story_free(&table.story);
		kv_world_close(&table.world);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(one_group_hits_exactly),
		cmocka_unit_test(several_groups_hit_exactly),
		cmocka_unit_test(states_and_bytes_are_right),
		cmocka_unit_test(evicting_keeps_bytes_right),
		cmocka_unit_test(threads_share_forks),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

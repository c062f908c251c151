// SPDX-License-Identifier: GPL-2.0-only
/*
 * Eight processes each bring one group of a block; one of them is killed at each place of its way. Nobody
 * ever sees half a block: a lookup hits all groups, byte for byte, or nothing; what was dropped is memory again.
 * Over a daemon's own pool, and in a guest over the module's.
 */
#include <errno.h>
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
#include <unistd.h>

#include <cmocka.h>

#include "block.h"
#include "failpoint.h"
#include "tests/harness/any_pool.h"
#include "tests/harness/daemon_case.h"
#include "tests/harness/kill_campaign.h"
#include "tests/harness/kv_world.h"

#define RANKS	8u
#define T	16u

struct ranks {
	struct omnikv_manager	*manager;
	struct omnikv_space	*space;
	struct omnikv_plan	plan;
	struct omnikv_pool	*pool;
};

static struct daemon_case the_daemon;
static const char *options[] = { "--pool", NULL, "--reserve", "0", NULL };

static int start(const char *size)
{
	daemon_case_init(&the_daemon);
	options[1] = any_pool_of_daemons(size, the_daemon.dir);
	daemon_start(&the_daemon, options);
	return 0;
}

static int set_up(void **state)
{
	(void)state;
	return start("64M");
}

/* Half of what G1's prefixes take; the module has units of 2 MiB. */
static int set_up_small(void **state)
{
	(void)state;
	return start(campaign_scale(0, 1) ? "48M" : any_pool_is_kmod() ? "6M" : "5M");
}

static int tear_down(void **state)
{
	int ret = the_daemon.pid ? daemon_stop(&the_daemon, NULL) : 0;

	(void)state;
	daemon_case_fini(&the_daemon);
	return ret;
}

/* One group a rank. */
static void make_plan(struct omnikv_plan *plan)
{
	struct omnikv_plan_config config = { .size = sizeof(config), .block_tokens = T, .granule_bytes = 4096 };
	struct omnikv_layout *layout = calloc(1, sizeof(*layout));
	struct omnikv_error err = { "" };

	KV_MUST(layout);
	strcpy(layout->name, "ranks");
	layout->nr_layers = RANKS;
	for (uint32_t g = 0; g < RANKS; g++) {
		struct omnikv_group *group = &layout->groups[layout->nr_groups++];

		group->kind = OMNIKV_GROUP_FULL;
		group->nr_layers = 1;
		group->layers[0] = g;
		for (uint32_t i = 0; i < OMNIKV_LAYERS_MAX; i++)
			group->alias_of[i] = -1;
		group->tokens_per_entry = 1;
		group->reuse = OMNIKV_REUSE_PREFIX;
		group->rollback = OMNIKV_ROLLBACK_TRUNCATE;
		group->atomic_with = 0xff & ~(1u << g);
		group->nr_planes = 1;
		group->planes[0] = (struct omnikv_plane){
			.role = OMNIKV_PLANE_K, .dtype = OMNIKV_DTYPE_U8, .heads = 1, .elems = 256,
		};
	}
	KV_MUST(!omnikv_plan_make(layout, &config, plan, &err) || (puts(err.text), false));
	free(layout);
}

static void attach(struct ranks *ranks)
{
	struct omnikv_namespace ns = {
		.size = sizeof(ns), .tenant = "t", .weights = "w", .layout = &ranks->plan.layout, .block_tokens = T,
	};
	/* Longer than a slow machine takes. */
	const struct omnikv_attach_config config = { .size = sizeof(config), .deadline_ms = 60000 };

	make_plan(&ranks->plan);
	KV_MUST(!omnikv_manager_attach(the_daemon.socket, &config, &ranks->manager, NULL));
	KV_MUST(!omnikv_space_open(ranks->manager, &ns, &ranks->plan, &ranks->space, NULL));
	ranks->pool = omnikv_client_pool(omnikv_manager_client(ranks->manager));
}

static void detach(struct ranks *ranks)
{
	omnikv_space_close(ranks->space);
	KV_MUST(!omnikv_manager_destroy(ranks->manager));
}

static uint64_t bytes_in(const struct ranks *ranks, uint32_t states)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	uint64_t bytes = 0;

	KV_MUST(!omnikv_pool_info(ranks->pool, &info));
	for (uint32_t i = 0; i < OMNIKV_EXTENT_NR_STATES; i++)
		bytes += states >> i & 1 ? info.state_bytes[i] : 0;
	return bytes;
}

static const uint32_t states_of_blocks = 1u << OMNIKV_EXTENT_PRIVATE | 1u << OMNIKV_EXTENT_SEALED | 1u << OMNIKV_EXTENT_QUARANTINED;

/* What a killed process sealed is found by and by. */
static void assert_nothing_is_left(const struct ranks *ranks)
{
	uint64_t since = now_ms();

	omnikv_manager_reset(ranks->manager);
	while (bytes_in(ranks, states_of_blocks) && now_ms() - since < 20000)
		sleep_ms(20);
	assert_int_equal(bytes_in(ranks, states_of_blocks), 0);
}

static struct omnikv_key key_of(uint32_t round)
{
	uint32_t words[2] = { 0x6a6f696e, round };
	struct omnikv_key key;

	KV_MUST(!omnikv_key_init(&key, words, sizeof(words)));
	return key;
}

static uint8_t byte_of(uint32_t round, uint32_t rank, uint64_t i)
{
	return (uint8_t)(round * 31 + rank * 101 + i * 7 + (i >> 8));
}

/* One rank's part of the block of @round; killed at @point where that is not NULL. */
static void contribute(uint32_t round, uint32_t rank, uint32_t timeout_ms, const char *point, uint32_t nth)
{
	struct omnikv_key key = key_of(round);
	struct omnikv_join join = {
		.size = sizeof(join), .key = &key, .nr_tokens = T, .part = rank, .nr_parts = RANKS, .groups = 1u << rank,
		.timeout_ms = timeout_ms,
	};
	struct omnikv_extent extent;
	struct ranks ranks;
	uint64_t bytes;
	uint8_t *at;
	uint32_t crc;
	int ret;

	if (point)
		okv_failpoint_arm(&(struct okv_failpoint){ .name = point, .nth = nth, .flags = OKV_FAILPOINT_F_KILL });
	attach(&ranks);
	KV_MUST(!omnikv_extent_alloc(omnikv_manager_client(ranks.manager), ranks.plan.groups[rank].nr_granules, 1, NULL, 0,
				     &extent));
	at = omnikv_pool_addr(ranks.pool, &extent);
	bytes = (uint64_t)extent.nr_granules * 4096;
	for (uint64_t i = 0; i < bytes; i++)
		at[i] = byte_of(round, rank, i);
	KV_MUST(!omnikv_plan_block_crc(&ranks.plan, rank, T, at, &crc));
	join.extents = &extent;
	join.crcs = &crc;
	ret = omnikv_commit_join(ranks.space, &join);
	/* Where a rank died the whole is dropped, also before this one has come: then it waits in vain. */
	KV_MUST(ret == 0 || ret == 1 || ret == -ECANCELED);
	/* A contributor that ends takes the block with it until it is whole. */
	omnikv_space_wait(ranks.space, &key, 2 * timeout_ms);
	detach(&ranks);
	_exit(0);
}

/* All of the block, or nothing. */
static bool is_there(const struct ranks *ranks, uint32_t round)
{
	struct omnikv_key key = key_of(round);
	struct omnikv_seq *seq;
	bool is_hit;

	KV_MUST(!omnikv_seq_open(ranks->space, &key, 1, NULL, &seq));
	is_hit = omnikv_seq_tokens(seq) == T;
	KV_MUST(is_hit || omnikv_seq_tokens(seq) == 0);
	for (uint32_t g = 0; g < RANKS && is_hit; g++) {
		struct omnikv_piece piece;
		const uint8_t *at;

		KV_MUST(omnikv_seq_pieces(seq, g, 0, 0, 0, T, 0, &piece, 1) == 1);
		at = omnikv_pool_addr(ranks->pool, &piece.extent);
		for (uint64_t i = 0; i < (uint64_t)piece.extent.nr_granules * 4096; i++)
			KV_MUST(at[i] == byte_of(round, g, i));
	}
	omnikv_seq_close(seq);
	return is_hit;
}

/* Everybody contributes; who watches sees all or nothing at any moment. True: it was published. */
static bool play(const struct ranks *watcher, uint32_t round, uint32_t victim, const char *point, uint32_t nth)
{
	uint32_t nr_left = RANKS, nr_killed = 0;
	pid_t pids[RANKS];
	bool is_seen = false;
	int status;

	fflush(NULL);
	for (uint32_t i = 0; i < RANKS; i++) {
		pids[i] = fork();
		KV_MUST(pids[i] >= 0);
		if (!pids[i])
			contribute(round, i, point ? 1000 : 60000, i == victim ? point : NULL, nth);
	}
	while (nr_left) {
		is_seen |= is_there(watcher, round);
		for (uint32_t i = 0; i < RANKS; i++) {
			if (!pids[i] || waitpid(pids[i], &status, WNOHANG) != pids[i])
				continue;
			pids[i] = 0;
			nr_left--;
			nr_killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
			KV_MUST((WIFEXITED(status) && !WEXITSTATUS(status)) || (i == victim && WIFSIGNALED(status)));
		}
		sleep_ms(1);
	}
	KV_MUST(nr_killed == (point != NULL));
	/* What was seen once is there still. */
	KV_MUST(!is_seen || is_there(watcher, round));
	return is_there(watcher, round);
}

static void nobody_sees_half_a_block(void **state)
{
	static const struct {
		const char	*point;
		uint32_t	nth;
		bool		may_be_published;
		bool		is_of_module;	/* there owners seal, between two requests */
	} ways[] = {
		{ NULL, 0, true, false }, { "attach.call", 1, false, false }, { "join.send", 1, false, false },
		{ "join.sent", 1, true, false }, { "conn.send", 3, false, false }, { "conn.send", 6, false, false },
		{ "join.sealed", 1, false, true }, { "conn.send", 7, false, true }, { "conn.send", 8, true, true },
	};
	uint32_t round = 0, nr_published = 0, nr_dropped = 0;
	struct ranks watcher;

	(void)state;
	attach(&watcher);
	for (uint32_t w = 0; w < sizeof(ways) / sizeof(ways[0]); w++) {
		if (ways[w].is_of_module && !any_pool_is_kmod())
			continue;
		for (uint32_t victim = 0; victim < RANKS; victim += w ? 3 : RANKS) {
			bool is_published = play(&watcher, ++round, victim, ways[w].point, ways[w].nth);

			if (is_published ? !ways[w].may_be_published : !ways[w].point)
				fail_msg("%s %u of rank %u: %s", ways[w].point ? ways[w].point : "nobody", ways[w].nth, victim,
					 is_published ? "published" : "dropped");
			nr_published += is_published;
			nr_dropped += !is_published;
		}
	}
	assert_true(nr_published >= 1);
	assert_true(nr_dropped >= 10);
	print_message("# %u blocks: %u whole, %u dropped, none by halves\n", round, nr_published, nr_dropped);
	assert_nothing_is_left(&watcher);
	detach(&watcher);
}

/* Half of the groups by one rank. */
struct half {
	struct omnikv_key	key;
	struct omnikv_extent	extents[RANKS / 2];
	uint32_t		crcs[RANKS / 2];
	struct omnikv_join	join;
};

/* Its bytes are those of @round. */
static void fill_half(const struct ranks *ranks, const struct omnikv_key *key, uint32_t half, uint32_t round,
		      struct half *out)
{
	struct omnikv_client *client = omnikv_manager_client(ranks->manager);

	*out = (struct half){ .key = *key };
	out->join = (struct omnikv_join){
		.size = sizeof(out->join), .key = &out->key, .nr_tokens = T, .part = half, .nr_parts = 2,
		.groups = ((1u << RANKS / 2) - 1) << half * RANKS / 2, .timeout_ms = 60000,
		.extents = out->extents, .crcs = out->crcs, .epoch = (uint32_t)omnikv_space_epoch(ranks->space),
	};
	for (uint32_t i = 0; i < RANKS / 2; i++) {
		uint32_t rank = half * RANKS / 2 + i;
		uint8_t *at;

		KV_MUST(!omnikv_extent_alloc(client, ranks->plan.groups[rank].nr_granules, 1, NULL, 0, &out->extents[i]));
		at = omnikv_pool_addr(ranks->pool, &out->extents[i]);
		for (uint64_t n = 0; n < (uint64_t)out->extents[i].nr_granules * 4096; n++)
			at[n] = byte_of(round, rank, n);
		out->crcs[i] = okv_block_crc(&ranks->plan, rank, T, at);
	}
}

static int join_half(const struct ranks *ranks, const struct omnikv_key *key, uint32_t half, uint32_t round)
{
	struct half mine;

	fill_half(ranks, key, half, round, &mine);
	return omnikv_commit_join(ranks->space, &mine.join);
}

/* The weights change between the parts of a block: it is not made of both. */
static void no_block_is_of_two_epochs(void **state)
{
	struct omnikv_key key = key_of(1);
	struct half late[2];
	struct ranks ranks[2];

	(void)state;
	for (uint32_t i = 0; i < 2; i++)
		attach(&ranks[i]);
	assert_int_equal(join_half(&ranks[0], &key, 0, 9), 0);
	for (uint32_t i = 0; i < 2; i++)
		fill_half(&ranks[1], &key, 1, 9, &late[i]);
	assert_int_equal(omnikv_manager_raise_epoch(ranks[0].manager), 1);
	/* Computed before that, and late: also where a lookup of the same process has learnt of the new epoch, and again. */
	for (uint32_t i = 0; i < 2; i++) {
		assert_int_equal(omnikv_commit_join(ranks[1].space, &late[i].join), -ESTALE);
		assert_int_equal(bytes_in(&ranks[0], 1u << OMNIKV_EXTENT_SEALED), 0);
		assert_false(is_there(&ranks[1], 1));
	}
	assert_int_equal(join_half(&ranks[0], &key, 0, 1), 0);
	assert_int_equal(join_half(&ranks[1], &key, 1, 1), 1);
	for (uint32_t i = 0; i < 2; i++) {
		assert_true(is_there(&ranks[i], 1));
	}
	assert_nothing_is_left(&ranks[0]);
	for (uint32_t i = 0; i < 2; i++)
		detach(&ranks[i]);
}

/* PRIVATE of @ranks, all of it; then given back. */
static void assert_is_still_ours(const struct ranks *ranks, const struct half *half)
{
	struct omnikv_client *client = omnikv_manager_client(ranks->manager);

	for (uint32_t i = 0; i < RANKS / 2; i++) {
		struct omnikv_extent_info info = { .size = sizeof(info) };

		assert_int_equal(omnikv_extent_query(client, &half->extents[i], &info), 0);
		assert_int_equal(info.state, OMNIKV_EXTENT_PRIVATE);
		assert_true(info.is_mine);
	}
	assert_int_equal(omnikv_extent_free(client, half->extents, RANKS / 2), 0);
}

static void what_cannot_come_stays_its_owners(void **state)
{
	struct omnikv_key key = key_of(1), other = key_of(2);
	struct ranks ranks[2];
	struct half half;

	(void)state;
	for (uint32_t i = 0; i < 2; i++)
		attach(&ranks[i]);
	/* A transfer is on one of them. */
	fill_half(&ranks[0], &key, 0, 1, &half);
	assert_int_equal(omnikv_extent_io_get(omnikv_manager_client(ranks[0].manager), &half.extents[3], 1), 0);
	assert_int_equal(omnikv_commit_join(ranks[0].space, &half.join), -EBUSY);
	omnikv_extent_io_put(omnikv_manager_client(ranks[0].manager), &half.extents[3], 1);
	assert_is_still_ours(&ranks[0], &half);
	/* More tokens than a block has. */
	fill_half(&ranks[0], &key, 0, 1, &half);
	half.join.nr_tokens = T + 1;
	assert_int_equal(omnikv_commit_join(ranks[0].space, &half.join), -EINVAL);
	assert_is_still_ours(&ranks[0], &half);
	/* It is there already. */
	assert_int_equal(join_half(&ranks[0], &key, 0, 1), 0);
	assert_int_equal(join_half(&ranks[1], &key, 1, 1), 1);
	fill_half(&ranks[1], &key, 1, 1, &half);
	assert_int_equal(omnikv_commit_join(ranks[1].space, &half.join), -EEXIST);
	assert_is_still_ours(&ranks[1], &half);
	assert_true(is_there(&ranks[0], 1));
	/* Two of the same part: neither is believed, and both are gone. */
	assert_int_equal(join_half(&ranks[0], &other, 0, 2), 0);
	assert_int_equal(join_half(&ranks[1], &other, 0, 2), -ECANCELED);
	assert_int_equal(join_half(&ranks[1], &other, 1, 2), 0);
	assert_int_equal(join_half(&ranks[0], &other, 0, 2), 1);
	assert_true(is_there(&ranks[1], 2));
	assert_nothing_is_left(&ranks[0]);
	for (uint32_t i = 0; i < 2; i++)
		detach(&ranks[i]);
}

static struct ranks others;

static int others_are_first(void *opaque, const char *name)
{
	struct omnikv_key key = key_of(1);

	(void)opaque;
	(void)name;
	KV_MUST(join_half(&others, &key, 0, 1) == 0);
	KV_MUST(join_half(&others, &key, 1, 1) == 1);
	return 0;
}

static int the_daemon_is_another(void *opaque, const char *name)
{
	(void)opaque;
	(void)name;
	daemon_kill(&the_daemon);
	daemon_start(&the_daemon, options);
	return 0;
}

/* Others publish the block, or another daemon comes, while a part of it is on its way. */
static void what_comes_between_leaves_nothing_behind(void **state)
{
	struct okv_failpoint point = { .name = any_pool_is_kmod() ? "join.sealed" : "join.send", .times = 1 };
	struct omnikv_key key = key_of(1), other = key_of(2);
	struct ranks ranks;
	struct half half;
	int ret;

	(void)state;
	attach(&ranks);
	attach(&others);
	point.fn = others_are_first;
	assert_int_equal(okv_failpoint_arm(&point), 0);
	fill_half(&ranks, &key, 0, 1, &half);
	ret = omnikv_commit_join(ranks.space, &half.join);
	if (any_pool_is_kmod()) {
		assert_int_equal(ret, -ECANCELED);
	} else {
		assert_int_equal(ret, -EEXIST);
		assert_is_still_ours(&ranks, &half);
	}
	assert_true(is_there(&ranks, 1));
	assert_int_equal(bytes_in(&ranks, states_of_blocks), RANKS * 4096);
	point.fn = the_daemon_is_another;
	assert_int_equal(okv_failpoint_arm(&point), 0);
	fill_half(&ranks, &other, 0, 2, &half);
	ret = omnikv_commit_join(ranks.space, &half.join);
	okv_failpoint_disarm(point.name);
	/* That one gives up what is sealed for nobody; where it seals itself it knows no better than the one before. */
	assert_int_equal(ret, any_pool_is_kmod() ? -ESTALE : 0);
	assert_true(is_there(&ranks, 1));
	if (!ret)
		assert_int_equal(join_half(&others, &other, 1, 2), 1);
	assert_int_equal(is_there(&ranks, 2), !ret);
	assert_nothing_is_left(&ranks);
	detach(&others);
	detach(&ranks);
}

/* ---- G1: ranks hit prefixes of different lengths, and what one of them had found left before another loaded it -------- */

#define G1_RANKS	4u
#define G1_BLOCKS	3u	/* of a prefix */

static struct omnikv_key *prefix_keys(uint32_t prefix)
{
	struct omnikv_key *keys = calloc(G1_BLOCKS, sizeof(*keys));

	KV_MUST(keys);
	for (uint32_t i = 0; i < G1_BLOCKS; i++)
		keys[i] = key_of(100 + G1_BLOCKS * prefix + i);
	return keys;
}

/* Each of four ranks brings a quarter of the groups of each block. */
static void join_prefix(const struct ranks *ranks, uint32_t prefix)
{
	struct omnikv_key *keys = prefix_keys(prefix);

	for (uint32_t b = 0; b < G1_BLOCKS; b++) {
		int ret = 0;

		for (uint32_t r = 0; r < G1_RANKS; r++) {
			struct omnikv_client *client = omnikv_manager_client(ranks[r].manager);
			struct omnikv_extent extents[RANKS / G1_RANKS];
			uint32_t crcs[RANKS / G1_RANKS];
			struct omnikv_join join = {
				.size = sizeof(join), .key = &keys[b], .parent = b ? &keys[b - 1] : NULL, .position = b,
				.nr_tokens = T, .part = r, .nr_parts = G1_RANKS, .groups = 3u << 2 * r, .timeout_ms = 60000,
				.extents = extents, .crcs = crcs,
			};

			for (uint32_t i = 0; i < RANKS / G1_RANKS; i++) {
				uint32_t g = 2 * r + i;
				uint8_t *at;

				KV_MUST(!omnikv_extent_alloc(client, ranks[r].plan.groups[g].nr_granules, 1, NULL, 0, &extents[i]));
				at = omnikv_pool_addr(ranks[r].pool, &extents[i]);
				for (uint64_t n = 0; n < (uint64_t)extents[i].nr_granules * 4096; n++)
					at[n] = byte_of(prefix * G1_BLOCKS + b, g, n);
				crcs[i] = okv_block_crc(&ranks[r].plan, g, T, at);
			}
			ret = omnikv_commit_join(ranks[r].space, &join);
		}
		/* Its parent may have left meanwhile: then there is no more of it. */
		KV_MUST(ret == 1 || ret == -EEXIST || ret == -ESTALE || ret == -ECANCELED);
		if (ret < 0)
			break;
	}
	free(keys);
}

/* One decision: the first rank's. While it holds what it has found all others find that, and their own groups of it are right. */
static uint64_t load_by_all(const struct ranks *ranks, uint32_t prefix)
{
	struct omnikv_key *keys = prefix_keys(prefix);
	struct omnikv_match *match;
	uint64_t nr;

	KV_MUST(!omnikv_match(ranks[0].space, keys, G1_BLOCKS, NULL, &match));
	nr = omnikv_match_blocks(match);
	for (uint32_t r = 0; r < G1_RANKS && nr; r++) {
		struct omnikv_seq *seq;

		KV_MUST(!omnikv_seq_open(ranks[r].space, keys, nr, NULL, &seq));
		KV_MUST(omnikv_seq_tokens(seq) == nr * T);
		for (uint32_t g = 2 * r; g < 2 * r + 2; g++) {
			struct omnikv_piece pieces[G1_BLOCKS];

			KV_MUST(omnikv_seq_pieces(seq, g, 0, 0, 0, nr * T, 0, pieces, G1_BLOCKS) == (int64_t)nr);
			for (uint64_t b = 0; b < nr; b++) {
				const uint8_t *at = (uint8_t *)omnikv_pool_addr(ranks[r].pool, &pieces[b].extent) + pieces[b].extent_off;

				for (uint64_t n = 0; n < pieces[b].bytes; n++)
					KV_MUST(at[n] == byte_of(prefix * G1_BLOCKS + (uint32_t)b, g, n + pieces[b].extent_off));
			}
		}
		omnikv_seq_close(seq);
	}
	omnikv_match_put(match);
	free(keys);
	return nr;
}

/* Somebody who knows nothing of ranks takes memory all the time. */
static void press(volatile bool *is_over)
{
	struct ranks ranks;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	attach(&ranks);
	for (uint32_t i = 0; !*is_over; i++) {
		struct omnikv_seq *seq;

		KV_MUST(!omnikv_seq_open(ranks.space, NULL, 0, NULL, &seq));
		/* As much as a half of the pool, at times. */
		(void)omnikv_seq_append(seq, (1 + i % 60) * T);
		omnikv_seq_close(seq);
	}
	omnikv_space_close(ranks.space);
	KV_MUST(!omnikv_manager_destroy(ranks.manager));
	_exit(0);
}

static void ranks_hit_the_same_and_load_it(void **state)
{
	uint32_t nr_prefixes = campaign_scale(100, 1000), nr_loads = campaign_scale(1000, 10000), nr_whole = 0, nr_part = 0, nr_none = 0;
	struct ranks ranks[G1_RANKS];
	uint64_t seed = 20261202;
	volatile bool *is_over;
	int status;
	pid_t pid;

	(void)state;
	is_over = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(is_over != MAP_FAILED);
	fflush(NULL);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		press(is_over);
	for (uint32_t r = 0; r < G1_RANKS; r++)
		attach(&ranks[r]);
	for (uint32_t i = 0; i < nr_loads; i++) {
		uint32_t prefix = kv_random(&seed) % nr_prefixes;
		uint64_t nr = load_by_all(ranks, prefix);

		nr_whole += nr == G1_BLOCKS;
		nr_part += nr && nr < G1_BLOCKS;
		nr_none += !nr;
		if (!nr)
			join_prefix(ranks, prefix);
	}
	*is_over = true;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	print_message("# %u loads by %u ranks: %u of the whole prefix, %u of a part of it, %u of nothing\n", nr_loads, G1_RANKS,
		      nr_whole, nr_part, nr_none);
	assert_true(nr_whole > nr_loads / 10 && nr_none > nr_loads / 10);
	for (uint32_t r = 0; r < G1_RANKS; r++)
		detach(&ranks[r]);
	munmap((void *)is_over, 4096);
}

#define CASE(name)	cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
	const struct CMUnitTest tests[] = {
		CASE(nobody_sees_half_a_block),
		CASE(no_block_is_of_two_epochs),
		cmocka_unit_test_setup_teardown(ranks_hit_the_same_and_load_it, set_up_small, tear_down),
		CASE(what_cannot_come_stays_its_owners),
		CASE(what_comes_between_leaves_nothing_behind),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Every call of an attached process while the daemon is stopped (SIGSTOP): it comes back within the deadline that was
 * asked for at the attaching, whatever requests it is made of, and before each call the daemon has just answered.
 *
 * The deadline is a fifth of the connection's own, so that a request that takes that one instead is seen. SLACK is for
 * a machine that is busy with other things.
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

#include <cmocka.h>

#include "tests/harness/daemon_case.h"
#include "tests/harness/kv_world.h"

#define T		16u
#define DEADLINE_MS	400u
#define SLACK_MS	1200u
#define WAIT_MS		300u
#define OPEN_MS		5000u

/* What the calls are made with: built while the daemon answers. */
struct case_of {
	struct daemon_case	daemon;
	struct kv_world		world;
	struct kv_story		fresh;
	struct omnikv_key	*keys;		/* of @fresh */
	struct omnikv_seq	*seq;		/* @fresh, stored and not committed */
	struct omnikv_extent	own[4];
	struct omnikv_client	*client;
};

static const struct omnikv_attach_config config = { .size = sizeof(config), .deadline_ms = DEADLINE_MS };

static int64_t call_match(struct case_of *c)
{
	struct omnikv_match *match;
	int ret = omnikv_match(c->world.space, c->keys, 8, NULL, &match);

	if (!ret)
		omnikv_match_put(match);
	return ret;
}

static int64_t call_seq_open(struct case_of *c)
{
	struct omnikv_seq *seq;
	int ret = omnikv_seq_open(c->world.space, c->keys, 8, NULL, &seq);

	if (!ret)
		omnikv_seq_close(seq);
	return ret;
}

/* More than the reserve has. */
static int64_t call_append(struct case_of *c)
{
	struct omnikv_seq *seq = NULL;
	int ret = omnikv_seq_open(c->world.space, NULL, 0, NULL, &seq);

	if (!ret)
		ret = omnikv_seq_append(seq, 600 * T);
	omnikv_seq_close(seq);
	return ret;
}

static int64_t call_commit(struct case_of *c)
{
	return omnikv_seq_commit(c->seq, c->keys, 8, NULL);
}

static int64_t call_lookup(struct case_of *c)
{
	return omnikv_lookup(c->world.space, c->keys, 8);
}

static int64_t call_prefetch(struct case_of *c)
{
	return omnikv_space_prefetch(c->world.space, c->keys, 8);
}

static int64_t call_promise(struct case_of *c)
{
	return omnikv_space_promise(c->world.space, c->keys, 8, 1000);
}

static int64_t call_wait(struct case_of *c)
{
	return omnikv_space_wait(c->world.space, c->keys, WAIT_MS);
}

static int64_t call_join(struct case_of *c)
{
	uint32_t nr_groups = c->world.plan.layout.nr_groups, crcs[OMNIKV_GROUPS_MAX] = { 0 };
	struct omnikv_join join = {
		.size = sizeof(join), .key = c->keys, .nr_tokens = T, .nr_parts = 1, .groups = (1u << nr_groups) - 1,
		.extents = c->own, .crcs = crcs, .timeout_ms = 1000,
	};

	return omnikv_commit_join(c->world.space, &join);
}

static int64_t call_admit(struct case_of *c)
{
	return omnikv_admit(c->world.space, 64 * T);
}

static int64_t call_reset(struct case_of *c)
{
	return omnikv_manager_reset(c->world.manager);
}

static int64_t call_epoch(struct case_of *c)
{
	return omnikv_manager_raise_epoch(c->world.manager);
}

static int64_t call_stats(struct case_of *c)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	return omnikv_manager_shared_stats(c->world.manager, &stats);
}

static int64_t call_space(struct case_of *c)
{
	struct omnikv_namespace ns = c->world.ns;
	struct omnikv_space *space;
	int ret;

	ns.tenant = "another";
	ret = omnikv_space_open(c->world.manager, &ns, &c->world.plan, &space, NULL);
	if (!ret)
		omnikv_space_close(space);
	return ret;
}

static int64_t call_info(struct case_of *c)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	return omnikv_pool_info(omnikv_client_pool(c->client), &info);
}

static int64_t call_alloc(struct case_of *c)
{
	struct omnikv_extent ext;

	return omnikv_extent_alloc(c->client, 3, 1, NULL, 0, &ext);
}

static int64_t call_seal(struct case_of *c)
{
	return omnikv_extent_seal(c->client, &c->own[1], 1);
}

static int64_t call_free(struct case_of *c)
{
	return omnikv_extent_free(c->client, &c->own[2], 1);
}

static int64_t call_query(struct case_of *c)
{
	struct omnikv_extent_info info = { .size = sizeof(info) };
	struct omnikv_extent ext = { .granule = 1, .nr_granules = 1, .generation = 3 };

	return omnikv_extent_query(c->client, &ext, &info);
}

static int64_t call_list(struct case_of *c)
{
	struct omnikv_extent exts[8];
	uint64_t from = 0;

	return omnikv_extent_list(c->client, 1u << OMNIKV_EXTENT_PRIVATE, &from, exts, 8);
}

static int64_t call_client(struct case_of *c)
{
	struct omnikv_client *client;
	int ret = omnikv_client_open(omnikv_client_pool(c->client), 0, &client);

	if (!ret)
		omnikv_client_close(client);
	return ret;
}

static int64_t call_attach(struct case_of *c)
{
	struct omnikv_manager *manager;
	struct omnikv_error err;
	int ret = omnikv_manager_attach(c->daemon.socket, &config, &manager, &err);

	if (!ret)
		KV_MUST(!omnikv_manager_destroy(manager));
	return ret;
}

static const struct {
	const char	*name;
	int64_t		(*call)(struct case_of *c);
	uint32_t	more_ms;	/* that the call itself asks for */
} calls[] = {
	{ "match", call_match, 0 }, { "lookup", call_lookup, 0 }, { "seq_open", call_seq_open, 0 },
	{ "seq_append", call_append, 0 }, { "seq_commit", call_commit, 0 }, { "prefetch", call_prefetch, 0 },
	{ "promise", call_promise, 0 }, { "wait", call_wait, WAIT_MS }, { "commit_join", call_join, 0 },
	{ "admit", call_admit, 0 }, { "reset", call_reset, 0 }, { "raise_epoch", call_epoch, 0 },
	{ "shared_stats", call_stats, 0 }, { "space_open", call_space, 0 }, { "pool_info", call_info, 0 },
	{ "extent_alloc", call_alloc, 0 }, { "extent_seal", call_seal, 0 }, { "extent_free", call_free, 0 },
	{ "extent_query", call_query, 0 }, { "extent_list", call_list, 0 }, { "client_open", call_client, OPEN_MS },
	{ "attach", call_attach, OPEN_MS },
};

static void begin(struct case_of *c, const char *const *options)
{
	uint32_t g;

	memset(c, 0, sizeof(*c));
	daemon_case_init(&c->daemon);
	daemon_start(&c->daemon, options);
	kv_world_connect(&c->world, KV_SHAPE_MIXED, T, c->daemon.socket, &config);
	c->client = omnikv_manager_client(c->world.manager);
	for (uint64_t i = 0; i < 8 * T; i++)
		kv_story_add(&c->fresh, 7000 + (uint32_t)i);
	c->keys = kv_keys(&c->world, &c->fresh, 8);
	assert_int_equal(omnikv_seq_open(c->world.space, NULL, 0, NULL, &c->seq), 0);
	assert_int_equal(omnikv_seq_append(c->seq, 8 * T), 0);
	kv_store(&c->world, c->seq, &c->fresh, 0, 8 * T);
	for (g = 0; g < c->world.plan.layout.nr_groups; g++)
		assert_int_equal(omnikv_extent_alloc(c->client, c->world.plan.groups[g].nr_granules, 1, NULL, 0, &c->own[g]), 0);
}

static void end(struct case_of *c)
{
	free(c->keys);
	kv_story_free(&c->fresh);
	daemon_case_fini(&c->daemon);
}

static void each_call_ends_by_its_deadline(void **state)
{
	const char *const options[] = { "--pool", "64M", "--reserve", "1M", NULL };
	struct case_of c;

	(void)state;
	for (uint32_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		uint64_t begun, ms;

		/* A daemon each, which has just answered. */
		begin(&c, options);
		kill(c.daemon.pid, SIGSTOP);
		begun = now_ms();
		calls[i].call(&c);
		ms = now_ms() - begun;
		if (ms > DEADLINE_MS + calls[i].more_ms + SLACK_MS)
			fail_msg("%s took %llu ms of %u", calls[i].name, (unsigned long long)ms, DEADLINE_MS + calls[i].more_ms);
		/* And the end of all of it. */
		begun = now_ms();
		omnikv_seq_close(c.seq);
		omnikv_space_close(c.world.space);
		KV_MUST(!omnikv_manager_destroy(c.world.manager));
		ms = now_ms() - begun;
		if (ms > DEADLINE_MS + SLACK_MS)
			fail_msg("the end after %s took %llu ms", calls[i].name, (unsigned long long)ms);
		end(&c);
	}
}

static struct case_of shared;

static void *append_often(void *arg)
{
	uint64_t *slowest = arg;

	for (int i = 0; i < 10; i++) {
		uint64_t begun = now_ms(), ms;

		call_append(&shared);
		ms = now_ms() - begun;
		*slowest = ms > *slowest ? ms : *slowest;
	}
	return NULL;
}

/* Nobody waits for the deadlines of the others besides their own; and a lookup of what is in memory for none. */
static void many_threads_wait_no_longer_than_one(void **state)
{
	const char *const options[] = { "--pool", "64M", "--reserve", "1M", NULL };
	uint64_t slowest[8] = { 0 }, begun, ms, slowest_hit = 0;
	pthread_t threads[8];

	(void)state;
	begin(&shared, options);
	assert_true(omnikv_seq_commit(shared.seq, shared.keys, 8, NULL) >= 0);
	kill(shared.daemon.pid, SIGSTOP);
	for (int i = 0; i < 8; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, append_often, &slowest[i]), 0);
	for (int i = 0; i < 200; i++) {
		begun = now_ms();
		assert_int_equal(omnikv_lookup(shared.world.space, shared.keys, 8), 8);
		ms = now_ms() - begun;
		slowest_hit = ms > slowest_hit ? ms : slowest_hit;
		sleep_ms(5);
	}
	for (int i = 0; i < 8; i++) {
		assert_int_equal(pthread_join(threads[i], NULL), 0);
		assert_in_range(slowest[i], 0, 2 * DEADLINE_MS + SLACK_MS);
	}
	assert_in_range(slowest_hit, 0, SLACK_MS);
	kill(shared.daemon.pid, SIGCONT);
	omnikv_seq_close(shared.seq);
	omnikv_space_close(shared.world.space);
	KV_MUST(!omnikv_manager_destroy(shared.world.manager));
	end(&shared);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_call_ends_by_its_deadline),
		cmocka_unit_test(many_threads_wait_no_longer_than_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

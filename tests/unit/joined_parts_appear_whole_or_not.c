// SPDX-License-Identifier: GPL-2.0-only
/*
 * Parts of a block by several clients: it appears with the last one, whole; a contributor's end, the deadline,
 * a contradiction or a missing parent gives all of it up. Nothing leaks on any way.
 */
#include <errno.h>
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
#include "manager/join.h"
#include "manager/session.h"
#include "tests/harness/kv_world.h"

#define T	16u
#define PARTS	3u

struct parts {
	struct kv_world		world;
	struct omnikv_client	*clients[PARTS];
	struct okv_joins	*joins;
	uint32_t		nr_published;
	uint32_t		nr_dropped;
	uint32_t		epoch;
};

static void on_end(void *opaque, const struct omnikv_space *space, const struct omnikv_key *key, bool is_published)
{
	struct parts *parts = opaque;

	assert_ptr_equal(space, parts->world.space);
	assert_true(key->len != 0);
	parts->nr_published += is_published;
	parts->nr_dropped += !is_published;
}

static int open_parts(void **state)
{
	struct parts *parts = calloc(1, sizeof(*parts));

	kv_world_open(&parts->world, KV_SHAPE_MIXED, T, 20);
	for (uint32_t i = 0; i < PARTS; i++)
		assert_int_equal(omnikv_client_open(parts->world.pool, 0, &parts->clients[i]), 0);
	assert_int_equal(okv_joins_create(parts->world.manager, on_end, parts, &parts->joins), 0);
	*state = parts;
	return 0;
}

static int close_parts(void **state)
{
	struct parts *parts = *state;

	okv_joins_destroy(parts->joins);
	for (uint32_t i = 0; i < PARTS; i++)
		omnikv_client_close(parts->clients[i]);
	kv_world_close(&parts->world);
	free(parts);
	return 0;
}

static struct omnikv_key key_of(uint32_t number)
{
	struct omnikv_key key;

	assert_int_equal(omnikv_key_init(&key, &number, sizeof(number)), 0);
	return key;
}

/* Group @g of @nr_tokens of block @number (at position 0, or behind block @number - 1) by client @g. */
static int add_tokens(struct parts *parts, uint32_t number, uint32_t g, uint32_t position, uint32_t nr_tokens, uint64_t until_ns,
		      struct omnikv_extent *extent)
{
	struct omnikv_key key = key_of(number), parent = key_of(number - 1);
	uint32_t crc = 100 * number + g;
	struct okv_join_part part = {
		.owner = g + 1, .client = parts->clients[g], .key = &key, .parent = position ? &parent : NULL,
		.position = position, .nr_tokens = nr_tokens, .part = g, .nr_parts = PARTS, .groups = 1u << g, .extents = extent,
		.crcs = &crc, .until_ns = until_ns, .epoch = parts->epoch,
	};

	assert_int_equal(omnikv_extent_alloc(parts->clients[g], parts->world.plan.groups[g].nr_granules, 1, NULL, 0, extent),
			 0);
	return okv_joins_add(parts->joins, parts->world.space, &part);
}

static int add(struct parts *parts, uint32_t number, uint32_t g, uint32_t position, uint64_t until_ns,
	       struct omnikv_extent *extent)
{
	return add_tokens(parts, number, g, position, T, until_ns, extent);
}

static int64_t hit(struct parts *parts, uint32_t number)
{
	struct omnikv_key key = key_of(number);

	return omnikv_lookup(parts->world.space, &key, 1);
}

static uint64_t private_bytes(struct parts *parts)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_pool_info(parts->world.pool, &info), 0);
	return info.state_bytes[OMNIKV_EXTENT_PRIVATE];
}

static void the_last_part_publishes(void **state)
{
	struct parts *parts = *state;
	struct omnikv_extent extent;

	for (uint32_t number = 1; number <= 2; number++) {
		for (uint32_t g = 0; g < PARTS; g++) {
			assert_int_equal(hit(parts, number), 0);
			assert_int_equal(add(parts, number, (g + number) % PARTS, number - 1, 1000, &extent), g == PARTS - 1);
			kv_world_check(&parts->world);
		}
	}
	assert_int_equal(parts->nr_published, 2);
	assert_int_equal(hit(parts, 1), 1);
	/* It is there: whoever comes late keeps what is his. */
	assert_int_equal(add(parts, 1, 0, 0, 1000, &extent), -EEXIST);
	assert_int_equal(omnikv_extent_free(parts->clients[0], &extent, 1), 0);
	assert_int_equal(private_bytes(parts), 0);
	kv_world_check(&parts->world);
}

static void an_end_or_the_deadline_drops_all_parts(void **state)
{
	struct parts *parts = *state;
	struct omnikv_extent extent;

	assert_int_equal(add(parts, 1, 0, 0, 1000, &extent), 0);
	assert_int_equal(add(parts, 1, 1, 0, 5000, &extent), 0);
	okv_joins_end_owner(parts->joins, 3);
	assert_int_equal(parts->nr_dropped, 0);
	okv_joins_end_owner(parts->joins, 2);
	assert_int_equal(parts->nr_dropped, 1);
	kv_world_check(&parts->world);

	assert_int_equal(add(parts, 2, 0, 0, 1000, &extent), 0);
	assert_int_equal(add(parts, 3, 1, 0, 2000, &extent), 0);
	assert_int_equal(okv_joins_tick(parts->joins, 999), 1000);
	assert_int_equal(okv_joins_tick(parts->joins, 1000), 2000);
	assert_int_equal(parts->nr_dropped, 2);
	assert_int_equal(okv_joins_tick(parts->joins, 2001), UINT64_MAX);
	assert_int_equal(parts->nr_dropped, 3);
	/* The rest of a dropped block begins another one, which nobody completes. */
	assert_int_equal(add(parts, 1, 2, 0, 3000, &extent), 0);
	assert_int_equal(hit(parts, 1), 0);
	kv_world_check(&parts->world);
}

static void parts_that_contradict_each_other_are_dropped(void **state)
{
	struct parts *parts = *state;
	struct omnikv_extent extent;

	/* The same part twice. */
	assert_int_equal(add(parts, 1, 0, 0, 1000, &extent), 0);
	assert_int_equal(add(parts, 1, 0, 0, 1000, &extent), -ECANCELED);
	assert_int_equal(parts->nr_dropped, 1);
	/* Another position. */
	assert_int_equal(add(parts, 2, 0, 0, 1000, &extent), 0);
	assert_int_equal(add(parts, 2, 1, 1, 1000, &extent), -ECANCELED);
	/* Behind a block that is not there. */
	for (uint32_t g = 0; g < PARTS; g++)
		assert_int_equal(add(parts, 9, g, 1, 1000, &extent), g == PARTS - 1 ? -ESTALE : 0);
	assert_int_equal(parts->nr_dropped, 3);
	assert_int_equal(hit(parts, 9), 0);
	kv_world_check(&parts->world);
	assert_int_equal(private_bytes(parts), 0);
}

/* The weights have changed between two parts: no block has bytes of both. */
static void parts_of_two_epochs_make_no_block(void **state)
{
	struct parts *parts = *state;
	struct omnikv_extent extent;

	assert_int_equal(add(parts, 1, 0, 0, 1000, &extent), 0);
	assert_int_equal(add(parts, 1, 1, 0, 1000, &extent), 0);
	assert_int_equal(omnikv_manager_raise_epoch(parts->world.manager), 1);
	/* Computed before, and late. */
	assert_int_equal(add(parts, 1, 2, 0, 1000, &extent), -ESTALE);
	assert_int_equal(hit(parts, 1), 0);
	parts->epoch = 1;
	assert_int_equal(add(parts, 1, 2, 0, 1000, &extent), -ECANCELED);
	assert_int_equal(parts->nr_dropped, 1);
	for (uint32_t g = 0; g < PARTS; g++)
		assert_int_equal(add(parts, 1, g, 0, 1000, &extent), g == PARTS - 1);
	assert_int_equal(hit(parts, 1), 1);
	kv_world_check(&parts->world);
	assert_int_equal(private_bytes(parts), 0);
}

/* One group has an entry for each four tokens: half of one would be taken for a whole. */
static void a_tail_within_an_entry_is_no_part(void **state)
{
	struct parts *parts = *state;
	struct omnikv_extent extent;

	for (uint32_t g = 0; g < PARTS; g++) {
		assert_int_equal(add_tokens(parts, 1, g, 0, 6, 1000, &extent), -EINVAL);
		assert_int_equal(omnikv_extent_free(parts->clients[g], &extent, 1), 0);
		assert_int_equal(add_tokens(parts, 2, g, 0, 8, 1000, &extent), g == PARTS - 1);
	}
	assert_int_equal(hit(parts, 1), 0);
	kv_world_check(&parts->world);
}

/* The same of a client that publishes alone. */
static void a_tail_within_an_entry_is_not_published(void **state)
{
	struct parts *parts = *state;
	enum okv_published published[1];
	struct omnikv_extent extents[PARTS];
	struct omnikv_key key = key_of(1);
	uint32_t crcs[PARTS] = { 0 };
	struct okv_publication pub = {
		.nr = 1, .tail_tokens = 6, .keys = &key, .extents = extents, .crcs = crcs, .published = published,
	};

	for (uint32_t g = 0; g < PARTS; g++)
		assert_int_equal(omnikv_extent_alloc(parts->clients[0], parts->world.plan.groups[g].nr_granules, 1, NULL, 0,
						     &extents[g]), 0);
	assert_int_equal(okv_session_publish(parts->world.space, parts->clients[0], true, &pub), -EINVAL);
	pub.tail_tokens = 8;
	assert_int_equal(okv_session_publish(parts->world.space, parts->clients[0], true, &pub), 0);
	kv_world_check(&parts->world);
}

static void failures_leave_all_or_nothing(void **state)
{
	struct parts *parts = *state;
	struct omnikv_extent extent;

	okv_failpoint_arm(&(struct okv_failpoint){ .name = "join.seal", .nth = 2, .times = 1, .error = EBUSY });
	assert_int_equal(add(parts, 1, 0, 0, 1000, &extent), 0);
	assert_int_equal(add(parts, 1, 1, 0, 1000, &extent), -EBUSY);
	assert_int_equal(omnikv_extent_free(parts->clients[1], &extent, 1), 0);
	assert_int_equal(add(parts, 1, 1, 0, 1000, &extent), 0);
	okv_failpoint_arm(&(struct okv_failpoint){ .name = "join.insert", .times = 1, .error = ENOMEM });
	assert_int_equal(add(parts, 1, 2, 0, 1000, &extent), -ECANCELED);
	okv_failpoint_disarm_all();
	assert_int_equal(parts->nr_dropped, 1);
	assert_int_equal(hit(parts, 1), 0);
	kv_world_check(&parts->world);
	assert_int_equal(private_bytes(parts), 0);
}

/* All but a few granules of the pool. */
static uint32_t take_most(struct omnikv_client *client, struct omnikv_extent *exts, uint32_t max)
{
	uint32_t nr = 0;

	while (nr < max && !omnikv_extent_alloc(client, 1, 1, NULL, OMNIKV_ALLOC_F_NO_ZERO, &exts[nr]))
		nr++;
	assert_in_range(nr, 9, max - 1);
	assert_int_equal(omnikv_extent_free(client, &exts[nr - 8], 8), 0);
	return nr - 8;
}

/* A pool that lasts, whose index could not get the memory that it would like when the namespace was opened. */
static void blocks_leave_a_full_index_for_joined_ones(void **state)
{
	static struct omnikv_extent filler[4096];
	struct kv_world world, shape;
	struct omnikv_client *client;
	struct omnikv_space *space;
	struct okv_joins *joins;
	char path[64], spec[96];
	uint32_t nr, room;

	(void)state;
	snprintf(path, sizeof(path), "/tmp/omnikv-join-%d", getpid());
	snprintf(spec, sizeof(spec), "embedded:8M:%s", path);
	kv_world_open(&shape, KV_SHAPE_MIXED, T, 20);
	kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
	assert_int_equal(omnikv_client_open(world.pool, 0, &client), 0);
	nr = take_most(client, filler, 4096);
	assert_int_equal(omnikv_space_open(world.manager, &shape.ns, &shape.plan, &space, NULL), 0);
	assert_int_equal(omnikv_extent_free(client, filler, nr), 0);
	room = okv_index_room(space->shelf->index);
	assert_in_range(room, 1, 2048 / 8);
	assert_int_equal(okv_joins_create(world.manager, NULL, NULL, &joins), 0);
	for (uint32_t number = 1; number <= room + 5; number++) {
		struct omnikv_extent extents[PARTS];
		struct omnikv_key key = key_of(number);
		uint32_t crcs[PARTS] = { number };
		struct okv_join_part part = {
			.owner = 1, .client = client, .key = &key, .nr_tokens = T, .nr_parts = 1, .groups = (1u << PARTS) - 1,
			.extents = extents, .crcs = crcs, .until_ns = 1000,
		};

		for (uint32_t g = 0; g < PARTS; g++)
			assert_int_equal(omnikv_extent_alloc(client, shape.plan.groups[g].nr_granules, 1, NULL, 0, &extents[g]), 0);
		assert_int_equal(okv_joins_add(joins, space, &part), 1);
		assert_int_equal(omnikv_lookup(space, &key, 1), 1);
	}
	kv_world_check(&world);
	okv_joins_destroy(joins);
	omnikv_space_close(space);
	omnikv_client_close(client);
	kv_world_leave(&world);
	kv_world_close(&shape);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(the_last_part_publishes, open_parts, close_parts),
		cmocka_unit_test_setup_teardown(an_end_or_the_deadline_drops_all_parts, open_parts, close_parts),
		cmocka_unit_test_setup_teardown(parts_that_contradict_each_other_are_dropped, open_parts, close_parts),
		cmocka_unit_test_setup_teardown(parts_of_two_epochs_make_no_block, open_parts, close_parts),
		cmocka_unit_test_setup_teardown(a_tail_within_an_entry_is_no_part, open_parts, close_parts),
		cmocka_unit_test_setup_teardown(a_tail_within_an_entry_is_not_published, open_parts, close_parts),
		cmocka_unit_test_setup_teardown(failures_leave_all_or_nothing, open_parts, close_parts),
		cmocka_unit_test(blocks_leave_a_full_index_for_joined_ones),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

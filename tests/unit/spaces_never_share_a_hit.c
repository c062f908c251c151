// SPDX-License-Identifier: GPL-2.0-only
/*
 * Namespaces: whatever differs in one field never hits the other's blocks; an engine whose
 * layout has changed is told so, naming the field, while the old layout's blocks stay good for
 * the old layout; a raised epoch makes older blocks unreachable and their memory comes back.
 * What does not fit together is refused in one line with both numbers.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "manager/manager.h"
#include "tests/harness/kv_world.h"

#define T	16u
#define NR	64u

static struct kv_story story;

static void put_blocks(struct kv_world *world, uint64_t nr_tokens)
{
	struct omnikv_seq *seq = kv_open(world, &story, false);
	uint64_t old = omnikv_seq_tokens(seq);

	assert_int_equal(omnikv_seq_append(seq, nr_tokens - old), 0);
	kv_store(world, seq, &story, old, nr_tokens);
	assert_int_equal(kv_commit(world, seq, &story, true), nr_tokens / T - old / T + (nr_tokens % T != 0));
	omnikv_seq_close(seq);
}

static uint64_t hits(struct kv_world *world, struct omnikv_space *space)
{
	struct omnikv_key *keys = kv_keys(world, &story, NR / T);
	struct omnikv_match *match;
	uint64_t nr;

	assert_int_equal(omnikv_match(space, keys, NR / T, NULL, &match), 0);
	nr = omnikv_match_blocks(match);
	assert_int_equal(omnikv_lookup(space, keys, NR / T), nr);
	omnikv_match_put(match);
	free(keys);
	return nr;
}

static int setup(void **state)
{
	(void)state;
	while (story.nr_tokens < NR + 5)
		kv_story_add(&story, story.nr_tokens);
	return 0;
}

static int teardown(void **state)
{
	(void)state;
	kv_story_free(&story);
	return 0;
}

static void each_field_separates(void **state)
{
	static const char salt[] = "salt";
	struct kv_world world;
	struct omnikv_space *space;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 16);
	put_blocks(&world, NR);
	for (uint32_t i = 0; i < 6; i++) {
		struct omnikv_namespace ns = world.ns;
		struct omnikv_error notice;

		if (i == 0)
			ns.tenant = "u";
		else if (i == 1)
			ns.weights = "x";
		else if (i == 2)
			ns.adapter = "a";
		else if (i == 3)
			ns.epoch = 1;
		else if (i == 4)
			ns.hash_algorithm = OMNIKV_HASH_SGLANG_SHA256;
		else
			ns.salt = salt, ns.salt_len = 4;
		assert_int_equal(omnikv_space_open(world.manager, &ns, &world.plan, &space, &notice), 0);
		assert_ptr_not_equal(space, world.space);
		assert_string_equal(notice.text, "");
		assert_int_equal(hits(&world, space), 0);
		omnikv_space_close(space);
	}
	assert_int_equal(omnikv_space_open(world.manager, &world.ns, &world.plan, &space, NULL), 0);
	assert_ptr_equal(space, world.space);
	assert_ptr_equal(omnikv_space_manager(space), world.manager);
	assert_int_equal(omnikv_space_plan(space)->block_tokens, T);
	assert_int_equal(hits(&world, space), NR / T);
	omnikv_space_close(space);
	kv_world_close(&world);
}

/* Same bytes in all, another meaning: [2][tokens][24 and 40] against [tokens] of 40 and 24. */
static void changed_layout_is_named_and_never_hit(void **state)
{
	struct omnikv_layout *layout = calloc(1, sizeof(*layout));
	struct omnikv_plan *plan = calloc(1, sizeof(*plan));
	struct omnikv_plan_config config = { .size = sizeof(config), .block_tokens = T, .granule_bytes = 4096 };
	struct omnikv_namespace ns;
	struct omnikv_error notice;
	struct omnikv_space *space;
	struct omnikv_seq *seq;
	struct kv_world world;

	(void)state;
	assert_non_null(layout);
	assert_non_null(plan);
	kv_world_open(&world, KV_SHAPE_FULL, T, 16);
	put_blocks(&world, NR);

	kv_layout(layout, KV_SHAPE_FULL);
	layout->groups[0].planes[0].elems = 40;
	layout->groups[0].planes[1].elems = 24;
	assert_int_equal(omnikv_plan_make(layout, &config, plan, NULL), 0);
	assert_int_equal(omnikv_plan_block_bytes(plan), omnikv_plan_block_bytes(&world.plan));
	ns = world.ns;
	ns.layout = layout;
	assert_int_equal(omnikv_space_open(world.manager, &ns, plan, &space, &notice), 0);
	assert_non_null(strstr(notice.text, "4 cached blocks"));
	assert_non_null(strstr(notice.text, "groups[0].planes[0].elems: 40 and 24"));
	assert_int_equal(hits(&world, space), 0);
	omnikv_space_close(space);

	/* The old layout's blocks are still right. */
	seq = kv_open(&world, &story, false);
	assert_int_equal(omnikv_seq_tokens(seq), NR);
	assert_null(kv_compare(&world, seq, &story, 0, NR));
	omnikv_seq_close(seq);

	/* Another block size is named as well. */
	config.block_tokens = 2 * T;
	kv_layout(layout, KV_SHAPE_FULL);
	assert_int_equal(omnikv_plan_make(layout, &config, plan, NULL), 0);
	ns.block_tokens = 2 * T;
	assert_int_equal(omnikv_space_open(world.manager, &ns, plan, &space, &notice), 0);
	assert_non_null(strstr(notice.text, "block_tokens: 32 and 16"));
	omnikv_space_close(space);

	/* Nothing is said once nothing is there. */
	assert_int_equal(omnikv_manager_reset(world.manager), 4);
	assert_int_equal(omnikv_space_open(world.manager, &ns, plan, &space, &notice), 0);
	assert_string_equal(notice.text, "");
	omnikv_space_close(space);
	kv_world_close(&world);
	free(layout);
	free(plan);
}

static void raised_epoch_leaves_old_blocks_behind(void **state)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_space *space, *old;
	struct kv_world world;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 8);
	put_blocks(&world, NR);
	world.ns.epoch++;
	old = world.space;
	assert_int_equal(omnikv_space_open(world.manager, &world.ns, &world.plan, &space, NULL), 0);
	world.space = space;
	assert_int_equal(hits(&world, space), 0);

	/* The pool has room for 8 blocks, 4 of them old: the new epoch's 5 push old ones out. */
	put_blocks(&world, NR + 5);
	assert_int_equal(hits(&world, space), 4);
	omnikv_space_close(old);

	/* And a reset that is none would leave something behind. */
	assert_int_equal(omnikv_manager_reset(world.manager), 8);
	assert_int_equal(hits(&world, space), 0);
	assert_int_equal(omnikv_pool_info(world.pool, &info), 0);
	assert_int_equal(info.free_bytes, info.usable_bytes);
	kv_world_close(&world);
}

static void reset_keeps_what_is_leased(void **state)
{
	struct omnikv_seq *seq;
	struct kv_world world;
	struct kv_story half;

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 16);
	put_blocks(&world, NR);
	kv_story_copy(&half, &story, NR / 2);
	seq = kv_open(&world, &half, false);
	assert_int_equal(omnikv_manager_reset(world.manager), 2);
	assert_null(kv_compare(&world, seq, &story, 0, NR / 2));
	omnikv_seq_close(seq);
	assert_int_equal(omnikv_manager_reset(world.manager), 2);
	kv_story_free(&half);
	kv_world_close(&world);
}

static void what_does_not_fit_is_named(void **state)
{
	struct omnikv_manager_config config = { .size = sizeof(config), .eviction = "fifo" };
	struct omnikv_layout *layout = calloc(1, sizeof(*layout));
	struct omnikv_plan *plan = malloc(sizeof(*plan));
	struct omnikv_namespace ns;
	struct omnikv_error err;
	struct omnikv_client *client;
	struct omnikv_manager *manager;
	struct omnikv_space *space;
	struct kv_world world;

	(void)state;
	assert_non_null(layout);
	assert_non_null(plan);
	kv_world_open(&world, KV_SHAPE_FULL, T, 16);

	assert_int_equal(omnikv_manager_create(world.client, &config, &manager, &err), -EINVAL);
	assert_string_equal(err.text, "eviction: \"fifo\" is unknown; \"lru\" is possible");
	config.size = 0;
	assert_int_equal(omnikv_manager_create(world.client, &config, &manager, &err), -EINVAL);
	assert_int_equal(omnikv_manager_create(NULL, NULL, &manager, NULL), -EINVAL);
	assert_int_equal(omnikv_client_open(world.pool, 0, &client), 0);
	assert_int_equal(omnikv_manager_create(client, NULL, &manager, &err), -EPERM);
	assert_non_null(strstr(err.text, "OMNIKV_CLIENT_F_MANAGER"));
	omnikv_client_close(client);

	*plan = world.plan;
	plan->granule_bytes = 8192;
	assert_int_equal(omnikv_space_open(world.manager, &world.ns, plan, &space, &err), -EINVAL);
	assert_non_null(strstr(err.text, "8192"));
	assert_non_null(strstr(err.text, "4096"));

	*plan = world.plan;
	plan->block_tokens = 32;
	assert_int_equal(omnikv_space_open(world.manager, &world.ns, plan, &space, &err), -EINVAL);
	assert_string_equal(err.text, "block_tokens: 16 in the namespace, 32 in the plan");
	plan->block_tokens = 65535;
	assert_int_equal(omnikv_space_open(world.manager, &world.ns, plan, &space, &err), -EINVAL);
	assert_string_equal(err.text, "block_tokens: 65535; 1 to 65534 are possible");

	*plan = world.plan;
	plan->layout.groups[0].planes[0].elems = 12;
	assert_int_equal(omnikv_space_open(world.manager, &world.ns, plan, &space, &err), -EINVAL);
	assert_non_null(strstr(err.text, "groups[0].planes[0].elems: 24 and 12"));

	*plan = world.plan;
	plan->scale = 4;
	assert_int_equal(omnikv_space_open(world.manager, &world.ns, plan, &space, &err), -EINVAL);
	assert_string_equal(err.text, "scale: blocks of this namespace are in use with scale 1, the plan has 4; take scale 1 or another "
			    "tenant, or drop them (omnikv_manager_reset(), or remove the pool's file)");

	*plan = world.plan;
	plan->groups[0].nr_granules = 17;
	assert_int_equal(omnikv_space_open(world.manager, &world.ns, plan, &space, &err), -ENOSPC);
	assert_string_equal(err.text,
			    "pool: 65536 bytes are less than one block of this layout, which takes 69632");
	plan->groups[0].nr_granules = 0;
	assert_int_equal(omnikv_space_open(world.manager, &world.ns, plan, &space, &err), -EINVAL);
	*plan = world.plan;
	plan->layout.groups[0].reuse = OMNIKV_REUSE_NONE;
	ns = world.ns;
	ns.layout = &plan->layout;
	assert_int_equal(omnikv_space_open(world.manager, &ns, plan, &space, &err), -EOPNOTSUPP);
	ns.layout = NULL;
	assert_int_equal(omnikv_space_open(world.manager, &ns, plan, &space, &err), -EINVAL);
	ns = world.ns;
	ns.hash_algorithm = 77;
	assert_int_equal(omnikv_space_open(world.manager, &ns, &world.plan, &space, &err), -EINVAL);
	ns.size = 1;
	assert_int_equal(omnikv_space_open(world.manager, &ns, &world.plan, &space, &err), -EINVAL);
	assert_int_equal(omnikv_space_open(NULL, &ns, &world.plan, &space, &err), -EINVAL);
	omnikv_space_close(NULL);
	kv_world_close(&world);
	free(layout);
	free(plan);
}

/* A scale holds for as long as blocks of it are cached, and no longer. */
static void another_scale_waits_for_the_last_block(void **state)
{
	struct omnikv_plan *plan = malloc(sizeof(*plan));
	struct omnikv_space *space;
	struct omnikv_error err;
	struct kv_world world;

	(void)state;
	assert_non_null(plan);
	kv_world_open(&world, KV_SHAPE_FULL, T, 16);
	put_blocks(&world, NR);
	omnikv_space_close(world.space);
	*plan = world.plan;
	plan->scale = 4;
	assert_int_equal(omnikv_space_open(world.manager, &world.ns, plan, &space, &err), -EINVAL);
	assert_non_null(strstr(err.text, "are cached with scale 1, the plan has 4; take scale 1 or another tenant, or drop them"));
	assert_int_equal(omnikv_manager_reset(world.manager), NR / T);
	assert_int_equal(omnikv_space_open(world.manager, &world.ns, plan, &space, &err), 0);
	omnikv_space_close(space);
	assert_int_equal(omnikv_space_open(world.manager, &world.ns, &world.plan, &world.space, NULL), 0);
	kv_world_close(&world);
	free(plan);
}

/* One namespace a request must not make the manager grow for ever; those that hold blocks stay. */
static void unused_namespaces_are_forgotten(void **state)
{
	struct omnikv_space *space;
	struct kv_world world;
	char salt[16];

	(void)state;
	kv_world_open(&world, KV_SHAPE_FULL, T, 16);
	put_blocks(&world, NR);
	for (uint32_t i = 0; i < 1000; i++) {
		struct omnikv_namespace ns = world.ns;

		snprintf(salt, sizeof(salt), "%u", i);
		ns.salt = salt;
		ns.salt_len = strlen(salt);
		assert_int_equal(omnikv_space_open(world.manager, &ns, &world.plan, &space, NULL), 0);
		omnikv_space_close(space);
	}
	omnikv_space_close(world.space);
	for (uint32_t i = 0; i < 200; i++) {
		struct omnikv_namespace ns = world.ns;

		ns.epoch = i + 1;
		assert_int_equal(omnikv_space_open(world.manager, &ns, &world.plan, &space, NULL), 0);
		omnikv_space_close(space);
	}
	assert_true(world.manager->nr_spaces <= 130);
	assert_int_equal(omnikv_space_open(world.manager, &world.ns, &world.plan, &world.space, NULL), 0);
	assert_int_equal(hits(&world, world.space), NR / T);
	kv_world_close(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_field_separates),
		cmocka_unit_test(changed_layout_is_named_and_never_hit),
		cmocka_unit_test(raised_epoch_leaves_old_blocks_behind),
		cmocka_unit_test(reset_keeps_what_is_leased),
		cmocka_unit_test(what_does_not_fit_is_named),
		cmocka_unit_test(another_scale_waits_for_the_last_block),
		cmocka_unit_test(unused_namespaces_are_forgotten),
	};

	return cmocka_run_group_tests(tests, setup, teardown);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * A pool that lasts has an index for each kind of layout, and room for 16 of them: one of which no namespace is open makes
 * way for another, with its blocks; one that is in use does not.
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

#include "manager/manager.h"
#include "tests/harness/kv_world.h"

#define T	16u
#define KINDS	16u	/* that there is room for */

static char path[64], spec[96];

/* A layout of five groups, of which those in @states are states. */
static void make_kind(struct omnikv_layout *layout, uint32_t states)
{
	const uint32_t nr = 5;

	memset(layout, 0, sizeof(*layout));
	strcpy(layout->name, "kind");
	layout->nr_layers = nr;
	layout->nr_groups = nr;
	for (uint32_t g = 0; g < nr; g++) {
		struct omnikv_group *group = &layout->groups[g];
		bool is_state = states >> g & 1;

		group->kind = is_state ? OMNIKV_GROUP_RECURRENT : OMNIKV_GROUP_FULL;
		group->nr_layers = 1;
		group->layers[0] = g;
		for (uint32_t i = 0; i < OMNIKV_LAYERS_MAX; i++)
			group->alias_of[i] = -1;
		group->tokens_per_entry = is_state ? 0 : 1;
		group->reuse = is_state ? OMNIKV_REUSE_EXACT : OMNIKV_REUSE_PREFIX;
		group->rollback = is_state ? OMNIKV_ROLLBACK_SNAPSHOT : OMNIKV_ROLLBACK_TRUNCATE;
		group->nr_planes = 1;
		group->planes[0] = (struct omnikv_plane){
			.role = is_state ? OMNIKV_PLANE_STATE : OMNIKV_PLANE_LATENT, .dtype = OMNIKV_DTYPE_U8, .heads = 1, .elems = 32,
		};
		group->atomic_with = ((1u << nr) - 1u) & ~(1u << g);
	}
}

static int open_kind(struct omnikv_manager *manager, uint32_t kind, struct omnikv_space **space, struct omnikv_error *err)
{
	struct omnikv_plan_config config = { .size = sizeof(config), .block_tokens = T, .granule_bytes = 4096 };
	struct omnikv_namespace ns = { .size = sizeof(ns), .tenant = "t", .weights = "w", .block_tokens = T };
	struct omnikv_layout *layout = malloc(sizeof(*layout));
	struct omnikv_plan *plan = malloc(sizeof(*plan));
	int ret;

	make_kind(layout, kind);
	err->text[0] = '\0';
	if (omnikv_plan_make(layout, &config, plan, err))
		fail_msg("%s", err->text);
	ns.layout = &plan->layout;
	ret = omnikv_space_open(manager, &ns, plan, space, err);
	free(layout);
	free(plan);
	return ret;
}

static void make_story(struct kv_story *story, uint32_t salt)
{
	*story = (struct kv_story){ 0 };
	for (uint64_t i = 0; i < 10 * T; i++)
		kv_story_add(story, salt * 100000 + i);
}

static void compute(const struct kv_world *world, const struct kv_story *story)
{
	struct omnikv_seq *seq = kv_open(world, story, false);

	assert_int_equal(omnikv_seq_append(seq, story->nr_tokens - omnikv_seq_tokens(seq)), 0);
	kv_store(world, seq, story, 0, story->nr_tokens);
	assert_int_equal(kv_commit(world, seq, story, false), 10);
	omnikv_seq_close(seq);
}

static uint64_t hit_of(const struct kv_world *world, const struct kv_story *story)
{
	struct omnikv_seq *seq = kv_open(world, story, false);
	uint64_t hit = omnikv_seq_tokens(seq);

	if (hit)
		assert_null(kv_compare(world, seq, story, 0, hit));
	omnikv_seq_close(seq);
	return hit;
}

static void any_number_of_kinds_comes_and_goes(void **state)
{
	struct omnikv_space *space;
	struct omnikv_error err;
	struct kv_story story;
	struct kv_world world;

	(void)state;
	kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
	make_story(&story, 1);
	compute(&world, &story);
	/* What is open keeps its blocks, whatever else comes. */
	for (uint32_t kind = 0; kind < 24; kind++) {
		if (open_kind(world.manager, kind, &space, &err))
			fail_msg("kind %u: %s", kind, err.text);
		kv_world_check(&world);
		omnikv_space_close(space);
	}
	assert_int_equal(hit_of(&world, &story), story.nr_tokens);
	kv_world_check(&world);
	kv_world_leave(&world);
	/* The next manager has what this one had, and goes on likewise. */
	kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
	assert_int_equal(hit_of(&world, &story), story.nr_tokens);
	for (uint32_t kind = 0; kind < 24; kind++) {
		assert_int_equal(open_kind(world.manager, kind, &space, &err), 0);
		omnikv_space_close(space);
	}
	assert_int_equal(hit_of(&world, &story), story.nr_tokens);
	kv_world_check(&world);
	kv_world_close(&world);
	kv_story_free(&story);
	unlink(path);
}

static void what_is_open_does_not_make_way(void **state)
{
	struct omnikv_space *spaces[KINDS], *space;
	struct omnikv_error err;
	struct kv_world world;
	struct kv_story story;

	(void)state;
	kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
	make_story(&story, 1);
	compute(&world, &story);
	/* The world's own is one of them. */
	for (uint32_t kind = 0; kind < KINDS - 1; kind++)
		assert_int_equal(open_kind(world.manager, kind, &spaces[kind], &err), 0);
	assert_int_equal(open_kind(world.manager, KINDS, &space, &err), -ENOSPC);
	assert_non_null(strstr(err.text, "16 kinds of layout are open; close those of one"));
	kv_world_check(&world);
	omnikv_space_close(spaces[3]);
	assert_int_equal(open_kind(world.manager, KINDS, &spaces[3], &err), 0);
	assert_int_equal(hit_of(&world, &story), story.nr_tokens);
	/* Its blocks go with a namespace that nobody has open, and its memory is there again. */
	omnikv_space_close(world.space);
	assert_int_equal(open_kind(world.manager, KINDS + 1, &space, &err), 0);
	omnikv_space_close(space);
	for (uint32_t kind = 0; kind < KINDS - 1; kind++)
		omnikv_space_close(spaces[kind]);
	assert_int_equal(omnikv_space_open(world.manager, &world.ns, &world.plan, &world.space, &err), 0);
	assert_int_equal(hit_of(&world, &story), 0);
	compute(&world, &story);
	assert_int_equal(hit_of(&world, &story), story.nr_tokens);
	kv_world_check(&world);
	kv_world_close(&world);
	kv_story_free(&story);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_number_of_kinds_comes_and_goes),
		cmocka_unit_test(what_is_open_does_not_make_way),
	};

	snprintf(path, sizeof(path), "/tmp/omnikv-kinds-%d", getpid());
	snprintf(spec, sizeof(spec), "embedded:64M:%s", path);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * A layout written as JSON is read back the same, field by field, whatever the locale; a short
 * hand-written one gets the defaults of its kinds.
 */
#include <errno.h>
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <omnikv/layout.h>

static struct omnikv_layout a, b;

/* Every field, also those outside the identity. */
static void assert_same(const struct omnikv_layout *x, const struct omnikv_layout *y)
{
	assert_string_equal(x->name, y->name);
	assert_int_equal(x->nr_layers, y->nr_layers);
	assert_int_equal(x->nr_groups, y->nr_groups);
	assert_true(x->layer_params == y->layer_params);
	assert_int_equal(x->q_heads, y->q_heads);
	assert_int_equal(x->head_dim, y->head_dim);
	assert_int_equal(x->block_tokens, y->block_tokens);
	for (uint32_t g = 0; g < x->nr_groups; g++) {
		const struct omnikv_group *p = &x->groups[g], *q = &y->groups[g];

		assert_int_equal(p->kind, q->kind);
		assert_int_equal(p->nr_layers, q->nr_layers);
		assert_memory_equal(p->layers, q->layers, p->nr_layers * sizeof(p->layers[0]));
		assert_memory_equal(p->alias_of, q->alias_of, p->nr_layers * sizeof(p->alias_of[0]));
		assert_int_equal(p->nr_planes, q->nr_planes);
		assert_int_equal(p->tokens_per_entry, q->tokens_per_entry);
		assert_int_equal(p->window, q->window);
		assert_int_equal(p->sinks, q->sinks);
		assert_int_equal(p->reuse, q->reuse);
		assert_int_equal(p->rollback, q->rollback);
		assert_int_equal(p->residency, q->residency);
		assert_int_equal(p->codec, q->codec);
		assert_true(p->error_bound == q->error_bound);
		assert_int_equal(p->atomic_with, q->atomic_with);
		for (uint32_t i = 0; i < p->nr_planes; i++) {
			assert_int_equal(p->planes[i].role, q->planes[i].role);
			assert_int_equal(p->planes[i].dtype, q->planes[i].dtype);
			assert_int_equal(p->planes[i].heads, q->planes[i].heads);
			assert_int_equal(p->planes[i].elems, q->planes[i].elems);
			assert_int_equal(p->planes[i].shard_axis, q->planes[i].shard_axis);
			assert_int_equal(p->planes[i].is_replicated, q->planes[i].is_replicated);
		}
	}
}

static void round_trip(const struct omnikv_layout *layout)
{
	struct omnikv_error err = { "" };
	char *text, *again;

	assert_int_equal(omnikv_layout_format(layout, &text), 0);
	memset(&b, 0x5a, sizeof(b));
	if (omnikv_layout_parse(text, strlen(text), &b, &err))
		fail_msg("%s", err.text);
	assert_same(layout, &b);
	assert_int_equal(omnikv_layout_format(&b, &again), 0);
	assert_string_equal(text, again);
	free(text);
	free(again);
}

static void test_presets(void **state)
{
	(void)state;
	for (const char *const *name = omnikv_layout_presets(); *name; name++) {
		print_message("# %s\n", *name);
		assert_int_equal(omnikv_layout_preset(*name, &a, NULL), 0);
		round_trip(&a);
	}
}

/* Every field away from its default, and figures that need all digits of a double. */
static void test_every_field(void **state)
{
	struct omnikv_group *group;

	(void)state;
	assert_int_equal(omnikv_layout_preset("gpt-oss-20b", &a, NULL), 0);
	strcpy(a.name, "a/B.9_x:y+z-0");
	a.layer_params = 0.1 + 0.2;
	a.block_tokens = 48;
	group = &a.groups[1];
	group->tokens_per_entry = 4;
	group->sinks = 3;
	group->reuse = OMNIKV_REUSE_NONE;
	group->rollback = OMNIKV_ROLLBACK_RECOMPUTE;
	group->residency = OMNIKV_RESIDENCY_HOST;
	group->atomic_with = 0;
	group->alias_of[2] = 0;
	group->alias_of[11] = (int16_t)group->layers[10];
	group->planes[0].role = OMNIKV_PLANE_KV;
	group->planes[0].dtype = OMNIKV_DTYPE_F8_E5M2;
	group->planes[0].shard_axis = OMNIKV_SHARD_NONE;
	group->planes[0].is_replicated = true;
	assert_int_equal(omnikv_layout_check(&a, NULL), 0);
	round_trip(&a);
}

static void test_largest(void **state)
{
	(void)state;
	memset(&a, 0, sizeof(a));
	strcpy(a.name, "x");
	a.nr_layers = OMNIKV_LAYERS_MAX;
	a.nr_groups = OMNIKV_GROUPS_MAX;
	for (uint32_t g = 0; g < a.nr_groups; g++) {
		struct omnikv_group *group = &a.groups[g];

		group->nr_layers = OMNIKV_LAYERS_MAX;
		group->nr_planes = OMNIKV_PLANES_MAX;
		group->tokens_per_entry = 1;
		group->atomic_with = 0xffu & ~(1u << g);
		for (uint32_t l = 0; l < OMNIKV_LAYERS_MAX; l++) {
			group->layers[l] = (uint16_t)l;
			group->alias_of[l] = l % 2 ? (int16_t)(l - 1) : -1;
		}
		for (uint32_t p = 0; p < OMNIKV_PLANES_MAX; p++)
			group->planes[p] = (struct omnikv_plane){ .heads = 65536, .elems = 1u << 24 };
	}
	round_trip(&a);
}

static void test_defaults(void **state)
{
	static const char text[] =
		"{ \"name\": \"mine\", \"nr_layers\": 4, \"groups\": [\n"
		"  { \"kind\": \"full\", \"layers\": [3],\n"
		"    \"planes\": [{ \"role\": \"k\", \"dtype\": \"bf16\", \"heads\": 2, \"elems\": 64 }] },\n"
		"  { \"planes\": [{ \"role\": \"state\", \"dtype\": \"f32\", \"heads\": 1, \"elems\": 8 }],\n"
		"    \"layers\": \"all\", \"kind\": \"recurrent\" },\n"
		"  { \"kind\": \"swa\", \"layers\": [0, 1], \"window\": 64, \"error_bound\": -0.0,\n"
		"    \"planes\": [{ \"role\": \"kv\", \"dtype\": \"u8\", \"heads\": 1, \"elems\": 8 }] } ] }";
	struct omnikv_error err = { "" };

	(void)state;
	if (omnikv_layout_parse(text, sizeof(text) - 1, &a, &err))
		fail_msg("%s", err.text);
	assert_true(a.layer_params == 0);
	assert_int_equal(a.block_tokens, 0);
	assert_int_equal(a.groups[0].nr_layers, 1);
	assert_int_equal(a.groups[0].layers[0], 3);
	assert_int_equal(a.groups[0].alias_of[0], -1);
	assert_int_equal(a.groups[0].tokens_per_entry, 1);
	assert_int_equal(a.groups[0].reuse, OMNIKV_REUSE_PREFIX);
	assert_int_equal(a.groups[0].rollback, OMNIKV_ROLLBACK_TRUNCATE);
	assert_int_equal(a.groups[0].residency, OMNIKV_RESIDENCY_RING);
	assert_int_equal(a.groups[0].planes[0].shard_axis, OMNIKV_SHARD_NONE);
	assert_false(a.groups[0].planes[0].is_replicated);
	assert_int_equal(a.groups[1].nr_layers, 4);
	assert_int_equal(a.groups[1].layers[3], 3);
	assert_int_equal(a.groups[1].tokens_per_entry, 0);
	assert_int_equal(a.groups[1].reuse, OMNIKV_REUSE_EXACT);
	assert_int_equal(a.groups[1].rollback, OMNIKV_ROLLBACK_SNAPSHOT);
	assert_int_equal(a.groups[1].residency, OMNIKV_RESIDENCY_HBM);
	assert_int_equal(a.groups[2].residency, OMNIKV_RESIDENCY_HBM);
	round_trip(&a);
}

/* A comma as decimal point in the user's locale changes nothing. */
static void test_locale(void **state)
{
	char *text, *other;

	(void)state;
	assert_int_equal(omnikv_layout_preset("llama-3-8b", &a, NULL), 0);
	a.layer_params = 0.5;
	assert_int_equal(omnikv_layout_format(&a, &text), 0);
	if (!setlocale(LC_ALL, "de_DE.UTF-8"))
		print_message("# locale de_DE.UTF-8 is not installed; C only\n");
	assert_int_equal(omnikv_layout_format(&a, &other), 0);
	assert_string_equal(text, other);
	round_trip(&a);
	setlocale(LC_ALL, "C");
	free(text);
	free(other);
}

static void test_format_refuses(void **state)
{
	char *text = (char *)state;

	assert_int_equal(omnikv_layout_preset("tiny", &a, NULL), 0);
	assert_int_equal(omnikv_layout_format(&a, NULL), -EINVAL);
	a.groups[0].nr_planes = 99;
	assert_int_equal(omnikv_layout_format(&a, &text), -EINVAL);
	assert_ptr_equal(text, state);
	assert_int_equal(omnikv_layout_format(NULL, &text), -EINVAL);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_presets),
		cmocka_unit_test(test_every_field),
		cmocka_unit_test(test_largest),
		cmocka_unit_test(test_defaults),
		cmocka_unit_test(test_locale),
		cmocka_unit_test(test_format_refuses),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

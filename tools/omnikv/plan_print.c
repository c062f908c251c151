// SPDX-License-Identifier: GPL-2.0-only
/*
 * A plan in words, or as one JSON object.
 *
 * Sizes are whole bytes, so that they can be added up; ratios have three digits. A group of state
 * has its figures for a checkpoint where others have them for a block.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include <jansson.h>

#include "plan_print.h"

static double group_overhead(const struct omnikv_group_plan *gp)
{
	return (double)gp->extent_bytes / (double)gp->needed_bytes;
}

/* Bytes of a token in the real model, all layers of the group. */
static double group_token_bytes(const struct omnikv_group *group)
{
	if (omnikv_group_is_state(group))
		return 0;
	return (double)omnikv_group_entry_bytes(group) * omnikv_group_stored_layers(group) / group->tokens_per_entry;
}

void okv_plan_fit(const struct omnikv_plan *plan, uint64_t pool_bytes, struct okv_plan_fit *fit)
{
	uint64_t usable = pool_bytes - pool_bytes % plan->granule_bytes;
	uint64_t block = omnikv_plan_block_bytes(plan), checkpoint = omnikv_plan_checkpoint_bytes(plan);

	fit->blocks = block ? usable / block : 0;
	fit->tokens = fit->blocks * plan->block_tokens;
	fit->checkpoints = checkpoint ? usable / checkpoint : 0;
}

int okv_plan_print(FILE *out, const struct omnikv_plan *plan, uint64_t pool_bytes)
{
	const struct omnikv_layout *layout = &plan->layout;
	uint64_t state = omnikv_layout_sequence_bytes(layout);
	struct okv_plan_fit fit;

	fprintf(out, "model    %s: %u layers, %g bytes a token", layout->name, layout->nr_layers,
		omnikv_layout_token_bytes(layout));
	if (state)
		fprintf(out, ", %llu bytes of state a sequence", (unsigned long long)state);
	fprintf(out, "\nblock    %u tokens, %llu bytes, %.3f of what is needed; granules of %u bytes", plan->block_tokens,
		(unsigned long long)omnikv_plan_block_bytes(plan), omnikv_plan_overhead(plan), plan->granule_bytes);
	if (plan->scale != 1)
		fprintf(out, "; rows at 1/%u of their size", plan->scale);
	fprintf(out, "\n\n%-5s %-10s %6s %12s %7s %12s %14s %9s %8s\n", "group", "kind", "layers", "bytes/token", "entries",
		"piece bytes", "extent bytes", "granules", "overhead");
	for (uint32_t g = 0; g < layout->nr_groups; g++) {
		const struct omnikv_group_plan *gp = &plan->groups[g];

		fprintf(out, "%-5u %-10s %6u %12g %7u %12llu %14llu %9u %8.3f\n", g,
			omnikv_group_kind_name(layout->groups[g].kind), gp->nr_stored,
			group_token_bytes(&layout->groups[g]), gp->entries, (unsigned long long)gp->piece_bytes,
			(unsigned long long)gp->extent_bytes, gp->nr_granules, group_overhead(gp));
	}
	if (state)
		fprintf(out, "\nA checkpoint of state takes %llu bytes beside the blocks.\n",
			(unsigned long long)omnikv_plan_checkpoint_bytes(plan));
	if (pool_bytes) {
		okv_plan_fit(plan, pool_bytes, &fit);
		fprintf(out, "\npool     %llu bytes hold %llu blocks, %llu tokens", (unsigned long long)pool_bytes,
			(unsigned long long)fit.blocks, (unsigned long long)fit.tokens);
		if (state)
			fprintf(out, "; or %llu checkpoints", (unsigned long long)fit.checkpoints);
		fputc('\n', out);
	}
	return ferror(out) ? -EIO : 0;
}

static int set_number(json_t *object, const char *name, uint64_t value)
{
	return json_object_set_new(object, name, json_integer((json_int_t)value));
}

/* A real number; whole ones without a fraction, others with at most four digits of one. */
static int set_real(json_t *object, const char *name, double value)
{
	value = floor(value * 1e4 + 0.5) / 1e4;
	if (value == floor(value))
		return set_number(object, name, (uint64_t)value);
	return json_object_set_new(object, name, json_real(value));
}

static json_t *group_json(const struct omnikv_group *group, const struct omnikv_group_plan *gp, int *failed)
{
	json_t *object = json_object();

	*failed |= json_object_set_new(object, "kind", json_string(omnikv_group_kind_name(group->kind)));
	*failed |= set_number(object, "layers", gp->nr_stored);
	*failed |= set_real(object, "token_bytes", group_token_bytes(group));
	*failed |= set_number(object, "entries", gp->entries);
	*failed |= set_number(object, "piece_bytes", gp->piece_bytes);
	*failed |= set_number(object, "needed_bytes", gp->needed_bytes);
	*failed |= set_number(object, "extent_bytes", gp->extent_bytes);
	*failed |= set_number(object, "granules", gp->nr_granules);
	*failed |= set_real(object, "overhead", group_overhead(gp));
	return object;
}

int okv_plan_print_json(FILE *out, const struct omnikv_plan *plan, uint64_t pool_bytes)
{
	json_t *root = json_object(), *groups = json_array();
	struct okv_plan_fit fit;
	int failed = 0, ret = 0;

	failed |= json_object_set_new(root, "model", json_string(plan->layout.name));
	failed |= set_number(root, "layers", plan->layout.nr_layers);
	failed |= set_real(root, "token_bytes", omnikv_layout_token_bytes(&plan->layout));
	failed |= set_number(root, "sequence_bytes", omnikv_layout_sequence_bytes(&plan->layout));
	failed |= set_number(root, "block_tokens", plan->block_tokens);
	failed |= set_number(root, "granule_bytes", plan->granule_bytes);
	failed |= set_number(root, "scale", plan->scale);
	failed |= set_number(root, "block_bytes", omnikv_plan_block_bytes(plan));
	failed |= set_number(root, "checkpoint_bytes", omnikv_plan_checkpoint_bytes(plan));
	failed |= set_real(root, "overhead", omnikv_plan_overhead(plan));
	for (uint32_t g = 0; g < plan->layout.nr_groups; g++)
		failed |= json_array_append_new(groups, group_json(&plan->layout.groups[g], &plan->groups[g], &failed));
	failed |= json_object_set_new(root, "groups", groups);
	if (pool_bytes) {
		json_t *pool = json_object();

		okv_plan_fit(plan, pool_bytes, &fit);
		failed |= set_number(pool, "bytes", pool_bytes);
		failed |= set_number(pool, "blocks", fit.blocks);
		failed |= set_number(pool, "tokens", fit.tokens);
		failed |= set_number(pool, "checkpoints", fit.checkpoints);
		failed |= json_object_set_new(root, "pool", pool);
	}
	if (failed)
		ret = -ENOMEM;
	else if (json_dumpf(root, out, JSON_INDENT(1) | JSON_REAL_PRECISION(12)) || fputc('\n', out) == EOF)
		ret = -EIO;
	json_decref(root);
	return ret;
}

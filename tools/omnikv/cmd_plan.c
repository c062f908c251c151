// SPDX-License-Identifier: GPL-2.0-only
/*
 * omnikv plan: how a model is cut into blocks, and how many of them a pool holds.
 *
 * Options and their limits stand here; what is printed is plan_print.c's.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd.h"
#include "model.h"
#include "plan_print.h"

enum {
	OPT_MODEL = 'm', OPT_JSON = 'j',
	OPT_BLOCK_TOKENS = 256, OPT_GRANULE, OPT_SCALE, OPT_POOL_SIZE, OPT_LIST,
};

static const struct argp_option okv_options[] = {
	{ "model", OPT_MODEL, "NAME|FILE", 0, "A preset or a layout in JSON", 0 },
	{ "list", OPT_LIST, NULL, 0, "Print the names of the presets and stop", 0 },
	{ "block-tokens", OPT_BLOCK_TOKENS, "T", 0, "Tokens in a block (default: the model's, or else the planner's choice)",
	  0 },
	{ "granule", OPT_GRANULE, "SIZE", 0, "Unit of allocation, a multiple of 4K (default: the planner's choice)", 0 },
	{ "scale", OPT_SCALE, "N", 0, "Divide the bytes of a token by N (default 1)", 0 },
	{ "pool", OPT_POOL_SIZE, "SIZE", 0, "Also say what a pool of this size holds", 0 },
	{ "json", OPT_JSON, NULL, 0, "One JSON object", 0 },
	{ 0 },
};

struct okv_plan_args {
	const char			*model;
	struct omnikv_plan_config	config;
	uint64_t			pool_bytes;
	bool				is_json;
};

static void okv_print_presets(void)
{
	const char *const *names = omnikv_layout_presets();

	for (; *names; names++)
		puts(*names);
	exit(OKV_EXIT_DONE);
}

static error_t okv_parse(int key, char *arg, struct argp_state *state)
{
	struct okv_plan_args *args = state->input;
	uint64_t bytes;

	switch (key) {
	case OPT_MODEL:
		args->model = arg;
		break;
	case OPT_LIST:
		okv_print_presets();
		break;
	case OPT_BLOCK_TOKENS:
		args->config.block_tokens = okv_number("--block-tokens", arg, 1, OMNIKV_BLOCK_TOKENS_MAX);
		break;
	case OPT_GRANULE:
		bytes = okv_size("--granule", arg);
		if (bytes > OMNIKV_GRANULE_BYTES_MAX || !bytes || bytes % 4096)
			okv_usage("--granule: %s is no multiple of 4096 bytes up to %u", arg, OMNIKV_GRANULE_BYTES_MAX);
		args->config.granule_bytes = bytes;
		break;
	case OPT_SCALE:
		args->config.scale = okv_number("--scale", arg, 1, OMNIKV_SCALE_MAX);
		break;
	case OPT_POOL_SIZE:
		args->pool_bytes = okv_size("--pool", arg);
		if (!args->pool_bytes)
			okv_usage("--pool: '%s' is no pool at all; give more, or leave it out", arg);
		break;
	case OPT_JSON:
		args->is_json = true;
		break;
	default:
		return ARGP_ERR_UNKNOWN;
	}
	return 0;
}

static const struct argp okv_argp = {
	.options = okv_options,
	.parser = okv_parse,
	.doc = "Show how a model's KV is cut into blocks: tokens and bytes of a block, granule, padding, the pieces of "
	       "each group of layers.\v"
	       "Sizes are bytes, or K, M, G, T for powers of 1024. Exit status: 0 done, 1 failed, 2 wrong usage.\n\n"
	       "  omnikv plan --model llama-3-8b --pool 64G",
};

int okv_cmd_plan(int argc, char **argv)
{
	struct okv_plan_args args = { .config = { .size = sizeof(args.config) } };
	struct omnikv_error err = { "" };
	struct omnikv_layout *layout;
	struct omnikv_plan *plan;
	int ret, status = OKV_EXIT_DONE;

	okv_cmd_parse(&okv_argp, argc, argv, &args);
	if (!args.model)
		okv_usage("no model; give --model NAME|FILE, --list names the presets");

	layout = calloc(1, sizeof(*layout));
	plan = calloc(1, sizeof(*plan));
	if (!layout || !plan)
		return okv_fail("no memory");
	ret = okv_model_load(args.model, layout, &err);
	if (ret)
		okv_usage("--model: %s", err.text[0] ? err.text : strerror(-ret));
	if (omnikv_plan_make(layout, &args.config, plan, &err))
		okv_usage("--model %s: %s", args.model, err.text);
	ret = args.is_json ? okv_plan_print_json(stdout, plan, args.pool_bytes) :
			     okv_plan_print(stdout, plan, args.pool_bytes);
	status = okv_output_end(-ret);
	free(plan);
	free(layout);
	return status;
}

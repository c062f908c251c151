// SPDX-License-Identifier: GPL-2.0-only
/*
 * omnikv replay: reads options, trace and model, opens the pool, runs the replay, prints what happened.
 *
 * The replay itself is replay.c's. Here stands everything that a user sees of it: the options
 * and their limits, the progress bar, the summary and the JSON object.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <jansson.h>

#include "clients.h"
#include "cmd.h"
#include "model.h"
#include "numa_policy.h"
#include "replay.h"
#include "turns.h"
#include "workload.h"

#define OKV_TRACES_MAX		256
#define OKV_MALFORMED_SHOWN	10
#define OKV_CONCURRENCY_MAX	1024u
#define OKV_SLOTS_MAX		1024u
#define OKV_BLOCK_TOKENS_MAX	65534u	/* that a pool takes; a plan may have more */

enum {
	OPT_TRACE = 't', OPT_MODEL = 'm', OPT_POOL = 'p', OPT_JSON = 'j',
	OPT_FORMAT = 256, OPT_WORKLOAD, OPT_SEED, OPT_REQUESTS, OPT_STRICT, OPT_BLOCK_TOKENS, OPT_SCALE, OPT_TENANT,
	OPT_NUMA, OPT_EVICTION, OPT_HINTS, OPT_FAST, OPT_DEVICE, OPT_GPU, OPT_CONCURRENCY, OPT_SLOTS, OPT_SLOT_TOKENS, OPT_HBM,
	OPT_VERIFY, OPT_SHUFFLE, OPT_INJECT, OPT_SPILL, OPT_SPILL_SIZE, OPT_SPILL_ADMIT,
	OPT_CLIENTS, OPT_DAEMON, OPT_KILL,
};

static const struct argp_option okv_options[] = {
	{ .doc = "What is played (one of --trace and --workload):", .group = 1 },
	{ "trace", OPT_TRACE, "FILE", 0, "A request trace; several are merged by time", 1 },
	{ "format", OPT_FORMAT, "NAME", 0, "Format of all traces: auto (default), mooncake, azure, tokens, text", 1 },
	{ "strict", OPT_STRICT, NULL, 0, "A malformed line is an error; else it is named and left out", 1 },
	{ "workload", OPT_WORKLOAD, "NAME", 0, "A built-in one: chat, agent", 1 },
	{ "seed", OPT_SEED, "N", 0, "Of the workload and of all that is random (default 1)", 1 },
	{ "requests", OPT_REQUESTS, "N", 0, "Only the first N requests", 1 },
	{ "as-fast-as-possible", OPT_FAST, NULL, 0, "Commit each request before the next is looked up; else requests "
	  "start at their time on the device's clock", 1 },
	{ "concurrency", OPT_CONCURRENCY, "N", 0, "By arrival: most requests in one step (default 8)", 1 },

	{ .doc = "The model:", .group = 2 },
	{ "model", OPT_MODEL, "NAME|FILE", 0, "A preset (default tiny) or a layout in JSON", 2 },
	{ "block-tokens", OPT_BLOCK_TOKENS, "T", 0, "Tokens in a block (default: the trace's, the model's or the planner's)",
	  2 },
	{ "scale", OPT_SCALE, "N", 0, "Divide the bytes of a token by N; the number of blocks stays (default 1)", 2 },
	{ "tenant", OPT_TENANT, "NAME", 0, "Whose blocks these are (default replay)", 2 },

	{ .doc = "The memory:", .group = 3 },
	{ "pool", OPT_POOL, "SPEC", 0, "SIZE, embedded:SIZE[:FILE], kmod:NAME or auto:SIZE[:NAME] (default 1G)", 3 },
	{ "numa", OPT_NUMA, "POLICY", 0, "bind:NODES, interleave:NODES or prefer:NODE", 3 },
	{ "eviction", OPT_EVICTION, "NAME", 0, "Policy (default lru)", 3 },
	{ "hints", OPT_HINTS, NULL, 0, "Tell the cache when each session goes on, as the trace has it", 3 },

	{ "spill", OPT_SPILL, "PATH", 0, "Where blocks go that leave memory: a directory, a file or a block device", 3 },
	{ "spill-size", OPT_SPILL_SIZE, "SIZE", 0, "Most that this takes on disk; needed where there is no store yet", 3 },
	{ "spill-admit", OPT_SPILL_ADMIT, "WHICH", 0, "all (default), or second: not what was used only once", 3 },

	{ "daemon", OPT_DAEMON, "SOCKET", OPTION_ARG_OPTIONAL, "Over an omnikvd: that of SOCKET, or one that is started for "
	  "this run with --pool; as fast as possible", 3 },
	{ "clients", OPT_CLIENTS, "N", 0, "Deal the requests to N processes; lookups stay in order, and wait for what an "
	  "earlier request computes (default 1)", 3 },

	{ .doc = "The device:", .group = 4 },
	{ "device", OPT_DEVICE, "NAME", 0, "sim (default), sim:kernels (a GPU's code moves the bytes, on the CPU) or host, "
	  "which has no clock of its own and needs --as-fast-as-possible", 4 },
	{ "gpu", OPT_GPU, "NAME", 0, "Whose compute and link times: h20, h100 (default), h200, b200", 4 },
	{ "slots", OPT_SLOTS, "R", 0, "Layer buffers in device memory (default 2)", 4 },
	{ "slot-tokens", OPT_SLOT_TOKENS, "N", 0, "Tokens in one buffer (default: the longest request)", 4 },
	{ "hbm", OPT_HBM, "SIZE", 0, "Device memory that there is (default 16G)", 4 },

	{ .doc = "What is checked and broken:", .group = 5 },
	{ "verify-checksums", OPT_VERIFY, NULL, 0, "Also compare each loaded block with its stored checksum", 5 },
	{ "shuffle", OPT_SHUFFLE, NULL, 0, "sim: finish transfers late and out of order, poison memory that is free", 5 },
	{ "inject", OPT_INJECT, "FAULT", 0, "flip[:N] flips a byte of the Nth block hit (from 0) before it is loaded; "
	  "fail:PPM lets so many of a million transfers fail", 5 },

	{ "kill-every", OPT_KILL, "SECONDS", 0, "With --daemon: kill one of the processes, then the daemon, and so on; others "
	  "take their places", 5 },

	{ .doc = "Output:", .group = 6 },
	{ "json", OPT_JSON, NULL, 0, "One JSON object instead of the summary", 6 },
	{ 0 },
};

/* Options as given, and what was made of them. */
struct okv_replay_args {
	const char		*traces[OKV_TRACES_MAX];
	enum okv_trace_format	formats[OKV_TRACES_MAX];
	size_t			nr_traces;
	enum okv_trace_format	format;
	const char		*workload;
	const char		*model;
	const char		*pool_spec;
	const char		*numa;
	const char		*inject;
	const char		*spill_path;
	const char		*spill_admit;
	uint64_t		spill_bytes;
	struct omnikv_spill_stats spill;
	uint64_t		nr_requests;	/* 0: all */
	uint32_t		block_tokens;
	uint32_t		scale;
	const char		*socket;
	uint32_t		nr_clients;	/* 0: not said */
	uint32_t		kill_ms;
	struct okv_clients_result clients;
	bool			has_daemon;
	bool			is_strict;
	bool			is_json;
	uint64_t		nr_malformed;
	char			notice[512];	/* of the pool; said when nothing is wrong with the usage */
	struct okv_replay_config replay;
	struct omnikv_pool_info	pool_info;
};

static void okv_parse_inject(struct okv_replay_config *config, const char *text)
{
	if (!strcmp(text, "flip") || !strncmp(text, "flip:", 5)) {
		config->inject = OKV_INJECT_FLIP;
		config->inject_nth = text[4] ? okv_number("--inject flip", text + 5, 0, UINT64_MAX / 2) : 0;
	} else if (!strncmp(text, "fail:", 5)) {
		config->inject = OKV_INJECT_FAIL;
		config->inject_nth = okv_number("--inject fail", text + 5, 1, 500000);
	} else {
		okv_usage("--inject: '%s' is neither flip, flip:N nor fail:PPM", text);
	}
}

static error_t okv_parse(int key, char *arg, struct argp_state *state)
{
	struct okv_replay_args *args = state->input;
	struct okv_replay_config *config = &args->replay;
	struct omnikv_error err;

	switch (key) {
	case OPT_TRACE:
		if (args->nr_traces == OKV_TRACES_MAX)
			okv_usage("--trace: more than %d files", OKV_TRACES_MAX);
		args->traces[args->nr_traces++] = arg;
		break;
	case OPT_FORMAT:
		if (okv_trace_format_parse(arg, &args->format))
			okv_usage("--format: '%s' is none of auto, mooncake, azure, tokens, text", arg);
		break;
	case OPT_STRICT:
		args->is_strict = true;
		break;
	case OPT_WORKLOAD:
		args->workload = arg;
		break;
	case OPT_SEED:
		config->seed = okv_number("--seed", arg, 0, UINT64_MAX);
		break;
	case OPT_REQUESTS:
		args->nr_requests = okv_number("--requests", arg, 1, UINT32_MAX);
		break;
	case OPT_FAST:
		config->is_by_arrival = false;
		break;
	case OPT_CONCURRENCY:
		config->concurrency = okv_number("--concurrency", arg, 1, OKV_CONCURRENCY_MAX);
		break;
	case OPT_MODEL:
		args->model = arg;
		break;
	case OPT_BLOCK_TOKENS:
		args->block_tokens = okv_number("--block-tokens", arg, 1, OKV_BLOCK_TOKENS_MAX);
		break;
	case OPT_SCALE:
		args->scale = okv_number("--scale", arg, 1, OMNIKV_SCALE_MAX);
		break;
	case OPT_TENANT:
		config->tenant = arg;
		break;
	case OPT_POOL:
		args->pool_spec = arg;
		break;
	case OPT_NUMA:
		if (okv_numa_policy_check(arg, &(struct okv_numa_policy){ 0 }, &err))
			okv_usage("--%s", err.text);
		args->numa = arg;
		break;
	case OPT_EVICTION:
		config->eviction = arg;
		break;
	case OPT_HINTS:
		config->with_hints = true;
		break;
	case OPT_DEVICE:
		if (!strncmp(arg, "cuda", 4) && (!arg[4] || arg[4] == ':'))
			okv_usage("--device: '%s': replay's kernels run on the CPU, which does not read a GPU's memory; use sim:kernels, "
				  "and tests/gpu/run on the GPU itself", arg);
		if (strcmp(arg, "sim") && strcmp(arg, "sim:kernels") && strcmp(arg, "host"))
			okv_usage("--device: '%s' is none of sim, sim:kernels and host", arg);
		config->device = arg;
		break;
	case OPT_GPU:
		config->gpu = okv_gpu_find(arg);
		if (!config->gpu)
			okv_usage("--gpu: '%s' is none of %s", arg, okv_gpu_names());
		break;
	case OPT_SLOTS:
		config->nr_slots = okv_number("--slots", arg, 1, OKV_SLOTS_MAX);
		break;
	case OPT_SLOT_TOKENS:
		config->slot_tokens = okv_number("--slot-tokens", arg, 1, UINT32_MAX);
		break;
	case OPT_HBM:
		config->hbm_bytes = okv_size("--hbm", arg);
		if (!config->hbm_bytes)
			okv_usage("--hbm: '%s' is no device memory at all; give more", arg);
		break;
	case OPT_VERIFY:
		config->is_verified = true;
		break;
	case OPT_SHUFFLE:
		config->is_shuffled = true;
		break;
	case OPT_INJECT:
		if (args->inject)
			okv_usage("--inject %s and --inject %s: a run has one fault; give one of them", args->inject, arg);
		args->inject = arg;
		okv_parse_inject(config, arg);
		break;
	case OPT_SPILL:
		args->spill_path = arg;
		break;
	case OPT_SPILL_SIZE:
		args->spill_bytes = okv_size("--spill-size", arg);
		break;
	case OPT_SPILL_ADMIT:
		args->spill_admit = arg;
		if (!strcmp(arg, "second"))
			config->spill_admit = OMNIKV_SPILL_ADMIT_SECOND;
		else if (!strcmp(arg, "all"))
			config->spill_admit = OMNIKV_SPILL_ADMIT_ALL;
		else
			okv_usage("--spill-admit: '%s' is neither all nor second", arg);
		break;
	case OPT_DAEMON:
		args->has_daemon = true;
		config->is_by_arrival = false;
		args->socket = arg;
		break;
	case OPT_CLIENTS:
		args->nr_clients = okv_number("--clients", arg, 1, OKV_CLIENTS_MAX);
		break;
	case OPT_KILL:
		args->kill_ms = 1000 * okv_number("--kill-every", arg, 1, 3600);
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
	.doc = "Play request traces through the whole system with real bytes: look prefixes up, load them layer by layer "
	       "into the device, compute, store and commit new blocks, evict under pressure, and check every byte "
	       "that was ever loaded.\v"
	       "Sizes are bytes, or K, M, G, T for powers of 1024. Exit status: 0 every byte was right; 1 not, or it could "
	       "not be run; 2 wrong usage, and files named that cannot be opened or are not what they should be.\n\n"
	       "  omnikv replay --workload chat --pool 256M --as-fast-as-possible\n"
	       "  omnikv replay --trace conversation_trace.jsonl --requests 2000 --model llama-3-8b --scale 1024 --pool 1G",
};

static void okv_check_usage(const struct okv_replay_args *args)
{
	const struct okv_replay_config *config = &args->replay;

	if (!args->nr_traces && !args->workload)
		okv_usage("nothing to play; give --trace FILE or --workload NAME (%s)", okv_workload_names());
	if (args->nr_traces && args->workload)
		okv_usage("--trace and --workload exclude each other; give one of them");
	if ((args->nr_clients || args->kill_ms) && !args->has_daemon)
		okv_usage("--clients and --kill-every need --daemon");
	if (args->has_daemon && (args->spill_path || args->numa || config->eviction || config->inject != OKV_INJECT_NONE))
		okv_usage("--daemon excludes --spill, --numa, --eviction and --inject: the pool is the daemon's");
	if (config->with_hints && args->nr_clients > 1)
		okv_usage("--hints and --clients %u: a session's requests go to several processes; give one of them", args->nr_clients);
	if (args->kill_ms && args->socket)
		okv_usage("--kill-every kills the daemon, which is not to be done to that of %s; give --daemon without a socket",
			  args->socket);
	if ((args->spill_bytes || args->spill_admit) && !args->spill_path)
		okv_usage("--spill-size and --spill-admit need --spill PATH");
	if (!strcmp(config->device, "host")) {
		if (config->is_by_arrival)
			okv_usage("--device host has no clock to wait on; give --as-fast-as-possible too, or --device sim");
		if (config->is_shuffled || config->inject == OKV_INJECT_FAIL)
			okv_usage("--device host cannot do %s; use --device sim",
				  config->is_shuffled ? "--shuffle" : "--inject fail");
	}
}

/* ---- model and plan ------------------------------------------------------------------------- */

/* T of a trace of ids is the trace's; it cannot be cut finer. */
static void okv_choose_block_tokens(struct okv_replay_args *args)
{
	size_t i;

	for (i = 0; i < args->nr_traces; i++) {
		if (args->formats[i] != OKV_TRACE_MOONCAKE)
			continue;
		if (args->block_tokens && args->block_tokens != OKV_MOONCAKE_TOKENS)
			okv_usage("--block-tokens %u, but the ids of %s stand for blocks of %u tokens; give %u or nothing",
				  args->block_tokens, args->traces[i], OKV_MOONCAKE_TOKENS, OKV_MOONCAKE_TOKENS);
		args->block_tokens = OKV_MOONCAKE_TOKENS;
	}
}

static void okv_make_plan(const struct okv_replay_args *args, const struct omnikv_layout *layout,
			  struct omnikv_plan *plan)
{
	struct omnikv_plan_config config = {
		.size		= sizeof(config),
		.block_tokens	= args->block_tokens,
		.scale		= args->scale,
	};
	struct omnikv_error err = { "" };

	if (omnikv_plan_make(layout, &config, plan, &err))
		okv_usage("--model %s --block-tokens %u --scale %u: %s", args->model, args->block_tokens, args->scale,
			  err.text);
}

/* ---- traces --------------------------------------------------------------------------------- */

static FILE *okv_open_trace(const char *name)
{
	struct stat st;
	FILE *stream;

	stream = fopen(name, "r");
	if (!stream || fstat(fileno(stream), &st))
		okv_usage("--trace: %s: %s", name, strerror(errno));
	if (S_ISDIR(st.st_mode))
		okv_usage("--trace: %s: is a directory; name its files", name);
	return stream;
}

/* Formats of all traces from their first lines that are not empty. */
static void okv_detect_formats(struct okv_replay_args *args)
{
	struct omnikv_error err = { "" };
	FILE *stream;
	size_t i;
	int ret;

	for (i = 0; i < args->nr_traces; i++) {
		args->formats[i] = args->format;
		if (args->format != OKV_TRACE_AUTO)
			continue;
		stream = okv_open_trace(args->traces[i]);
		if (fseek(stream, 0, SEEK_SET))
			okv_usage("--trace: %s: can be read only once, so give its --format", args->traces[i]);
		ret = okv_trace_detect_file(stream, &args->formats[i], &err);
		if (ret == -EINVAL || ret == -ENODATA)
			okv_usage("--trace: %s: %s", args->traces[i], err.text);
		if (ret)
			okv_die("--trace: %s: %s", args->traces[i], err.text);
		fclose(stream);
	}
}

static void okv_malformed(void *opaque, const char *text)
{
	struct okv_replay_args *args = opaque;

	if (args->nr_malformed++ < OKV_MALFORMED_SHOWN)
		okv_note("%s", text);
}

static int okv_read_traces(struct okv_replay_args *args, struct okv_trace *trace)
{
	struct omnikv_error err = { "" };
	int64_t nr;
	size_t i;

	for (i = 0; i < args->nr_traces; i++) {
		struct okv_trace_file file = {
			.name = args->traces[i], .format = args->formats[i], .is_strict = args->is_strict,
			.malformed = okv_malformed, .opaque = args,
		};
		FILE *stream = okv_open_trace(file.name);

		nr = okv_trace_read(trace, stream, &file, &err);
		fclose(stream);
		if (nr == -EBADMSG)
			okv_usage("%s%s", err.text, args->is_strict ? " (--strict)" : "");
		if (nr < 0)
			return okv_fail("--trace: %s", err.text[0] ? err.text : strerror(-nr));
	}
	if (args->nr_malformed > OKV_MALFORMED_SHOWN)
		okv_note("and %llu more malformed lines", (unsigned long long)args->nr_malformed - OKV_MALFORMED_SHOWN);
	okv_trace_sort(trace);
	if (!trace->nr_requests)
		okv_usage("--trace: no request could be read");
	return OKV_EXIT_DONE;
}

static int okv_make_trace(struct okv_replay_args *args, struct okv_trace *trace)
{
	int ret;

	if (args->nr_traces) {
		ret = okv_read_traces(args, trace);
		if (ret)
			return ret;
	} else {
		ret = okv_workload_make(args->workload, args->replay.seed, trace);
		if (ret == -ENOENT)
			okv_usage("--workload: '%s' is none of %s", args->workload, okv_workload_names());
		if (ret)
			return okv_fail("--workload: %s", strerror(-ret));
	}
	if (args->nr_requests)
		okv_trace_cut(trace, args->nr_requests);
	return OKV_EXIT_DONE;
}

/* ---- the pool ------------------------------------------------------------------------------- */

struct okv_pool_opening {
	struct okv_replay_args	*args;
	struct okv_progress	progress;
};

static void okv_pool_progress(void *opaque, uint64_t done, uint64_t total)
{
	struct okv_pool_opening *opening = opaque;

	okv_progress_show(&opening->progress, done, total, NULL);
}

static void okv_pool_notice(void *opaque, const char *line)
{
	struct okv_pool_opening *opening = opaque;

	snprintf(opening->args->notice, sizeof(opening->args->notice), "%s", line);
}

static void okv_say_notice(struct okv_replay_args *args)
{
	if (args->notice[0])
		okv_note("%s", args->notice);
	args->notice[0] = 0;
}

static int okv_open_pool(struct okv_replay_args *args, const struct omnikv_plan *plan, struct omnikv_pool **pool)
{
	struct okv_pool_opening opening = { .args = args };
	struct omnikv_pool_config config = {
		.size		= sizeof(config),
		.granule_bytes	= plan->granule_bytes,
		.numa		= args->numa,
		.progress	= okv_pool_progress,
		.notice		= okv_pool_notice,
		.opaque		= &opening,
	};
	struct omnikv_error err = { "" };
	int ret;

	okv_progress_init(&opening.progress, "populating the pool");
	ret = omnikv_pool_open(args->pool_spec, &config, pool, &err);
	okv_progress_fini(&opening.progress);
	if (ret == -EINVAL)
		okv_usage("--pool: %s", err.text[0] ? err.text : args->pool_spec);
	if (ret)
		return okv_fail("--pool %s: %s", args->pool_spec, err.text[0] ? err.text : strerror(-ret));

	args->pool_info.size = sizeof(args->pool_info);
	ret = omnikv_pool_info(*pool, &args->pool_info);
	if (ret)
		return okv_fail("--pool %s: %s", args->pool_spec, strerror(-ret));
	if (args->pool_info.usable_bytes < omnikv_plan_block_bytes(plan) + omnikv_plan_checkpoint_bytes(plan))
		okv_usage("--pool %s: %llu bytes are usable, one block of %u tokens of %s needs %llu; give a larger pool or "
			  "--scale", args->pool_spec, (unsigned long long)args->pool_info.usable_bytes,
			  plan->block_tokens, args->model,
			  (unsigned long long)(omnikv_plan_block_bytes(plan) + omnikv_plan_checkpoint_bytes(plan)));
	return OKV_EXIT_DONE;
}

/* ---- the spill store ------------------------------------------------------------------------ */

static void okv_spill_notice(void *opaque, const char *line)
{
	(void)opaque;
	okv_note("%s", line);
}

static int okv_open_spill(struct okv_replay_args *args, struct omnikv_pool *pool)
{
	struct omnikv_spill_config config = {
		.size		= sizeof(config),
		.capacity_bytes	= args->spill_bytes,
		.owner		= "omnikv replay",
		.pool		= pool,
		.notice		= okv_spill_notice,
	};
	struct omnikv_error err = { "" };
	int ret;

	if (!args->spill_path)
		return OKV_EXIT_DONE;
	ret = omnikv_spill_open(args->spill_path, &config, &args->replay.spill, &err);
	if (ret == -EINVAL && args->spill_bytes)
		okv_usage("--spill, --spill-size: %s", err.text);
	if (ret == -EINVAL)
		okv_usage("--spill: %s; give --spill-size", err.text);
	if (ret)
		return okv_fail("--spill: %s", err.text[0] ? err.text : strerror(-ret));
	return OKV_EXIT_DONE;
}

/* ---- results -------------------------------------------------------------------------------- */

static double okv_ratio(uint64_t part, uint64_t whole)
{
	return whole ? (double)part / (double)whole : 0;
}

static uint64_t okv_max_rss_bytes(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return (uint64_t)usage.ru_maxrss * 1024;
}

static const char *okv_page_kind_name(uint32_t kind)
{
	switch (kind) {
	case OMNIKV_PAGES_HUGETLB:
		return "hugetlb";
	case OMNIKV_PAGES_THP:
		return "thp";
	default:
		return "small";
	}
}

static void okv_set_real(json_t *object, const char *name, double value)
{
	json_object_set_new(object, name, json_real(value));
}

static void okv_set_text(json_t *object, const char *name, const char *value)
{
	json_object_set_new(object, name, value ? json_string(value) : json_null());
}

static json_t *okv_percentiles_json(uint64_t p50, uint64_t p99)
{
	json_t *object = json_object();

	okv_json_set(object, "p50", p50);
	okv_json_set(object, "p99", p99);
	return object;
}

static json_t *okv_config_json(const struct okv_replay_args *args, const struct omnikv_plan *plan,
			       const struct okv_replay_result *res)
{
	const struct okv_replay_config *config = &args->replay;
	json_t *object = json_object(), *traces = json_array(), *trace;
	size_t i;

	for (i = 0; i < args->nr_traces; i++) {
		trace = json_object();
		okv_set_text(trace, "file", args->traces[i]);
		okv_set_text(trace, "format", okv_trace_format_name(args->formats[i]));
		json_array_append_new(traces, trace);
	}
	json_object_set_new(object, "traces", traces);
	okv_set_text(object, "workload", args->workload);
	okv_json_set(object, "seed", config->seed);
	okv_set_text(object, "mode", config->is_by_arrival ? "by-arrival" : "as-fast-as-possible");
	okv_json_set(object, "concurrency", config->is_by_arrival ? config->concurrency : 1);
	okv_set_text(object, "model", plan->layout.name);
	okv_json_set(object, "block_tokens", plan->block_tokens);
	okv_json_set(object, "scale", plan->scale);
	okv_json_set(object, "granule_bytes", plan->granule_bytes);
	okv_json_set(object, "block_bytes", omnikv_plan_block_bytes(plan));
	okv_json_set(object, "checkpoint_bytes", omnikv_plan_checkpoint_bytes(plan));
	okv_set_text(object, "tenant", config->tenant);
	okv_set_text(object, "pool", args->pool_spec);
	okv_json_set(object, "pool_asked_bytes", args->pool_info.asked_bytes);
	okv_json_set(object, "pool_usable_bytes", args->pool_info.usable_bytes);
	okv_set_text(object, "pool_pages", okv_page_kind_name(args->pool_info.page_kind));
	okv_set_text(object, "numa", args->numa);
	okv_set_text(object, "eviction", config->eviction);
	json_object_set_new(object, "hints", json_boolean(config->with_hints));
	okv_set_text(object, "device", config->device);
	okv_set_text(object, "gpu", config->gpu->name);
	okv_json_set(object, "slots", config->nr_slots);
	okv_json_set(object, "slot_tokens", res->slot_tokens);
	json_object_set_new(object, "verify_checksums", json_boolean(config->is_verified));
	json_object_set_new(object, "shuffle", json_boolean(config->is_shuffled));
	okv_set_text(object, "inject", args->inject);
	return object;
}

static json_t *okv_spill_json(const struct okv_replay_args *args, const struct okv_replay_result *res)
{
	const struct omnikv_spill_stats *stats = &args->spill;
	json_t *object = json_object();

	okv_set_text(object, "path", args->spill_path);
	okv_set_text(object, "admit", args->spill_admit ? args->spill_admit : "all");
	okv_json_set(object, "capacity_bytes", stats->capacity_bytes);
	okv_json_set(object, "segment_bytes", stats->segment_bytes);
	okv_json_set(object, "records", stats->nr_records);
	json_object_set_new(object, "direct_io", json_boolean(stats->is_direct));
	json_object_set_new(object, "io_uring", json_boolean(stats->is_uring));
	json_object_set_new(object, "registered_memory", json_boolean(stats->is_registered));
	okv_json_set(object, "queue_depth", stats->queue_depth);
	okv_set_real(object, "open_s", stats->open_s);
	okv_json_set(object, "recovered_blocks", stats->recovered_records);
	okv_json_set(object, "recovered_hits", res->manager.blocks_hit_recovered);
	okv_json_set(object, "lost_segments", stats->lost_segments);
	okv_json_set(object, "blocks_spilled", res->manager.blocks_spilled);
	okv_json_set(object, "blocks_fetched", res->manager.blocks_fetched);
	okv_json_set(object, "blocks_staged", res->manager.blocks_staged);
	okv_json_set(object, "lookups_without_room", res->manager.lookups_without_room);
	okv_json_set(object, "blocks_not_admitted", res->manager.blocks_not_admitted);
	okv_json_set(object, "blocks_lost", res->manager.blocks_lost);
	okv_json_set(object, "blocks_bad", res->manager.blocks_bad);
	okv_json_set(object, "blocks_flushed", res->blocks_flushed);
	okv_json_set(object, "blocks_moved", stats->moved_records);
	okv_json_set(object, "segments_reclaimed", stats->reclaimed_segments);
	okv_set_real(object, "written_over_stored", okv_ratio(stats->write_bytes, stats->stored_bytes));
	okv_json_set(object, "errors", stats->nr_errors);
	okv_json_set(object, "timeouts", stats->nr_timeouts);
	return object;
}

static json_t *okv_daemon_json(const struct okv_replay_args *args, const struct okv_replay_result *res)
{
	const struct okv_clients_result *clients = &args->clients;
	json_t *object = json_object();

	okv_json_set(object, "clients", clients->nr_clients);
	okv_json_set(object, "lookups_waited", clients->nr_waits);
	okv_json_set(object, "lookups_late", clients->nr_late);
	okv_json_set(object, "blocks_imported", res->manager.blocks_imported);
	okv_json_set(object, "blocks_published", res->manager.blocks_published);
	okv_json_set(object, "blocks_unpublished", res->manager.blocks_unpublished + res->manager.blocks_queued);
	okv_json_set(object, "blocks", clients->daemon.nr_blocks);
	okv_json_set(object, "leased_blocks", clients->daemon.nr_leased_blocks);
	okv_json_set(object, "blocks_spilled", res->manager.blocks_spilled);
	okv_json_set(object, "blocks_fetched", res->manager.blocks_fetched);
	okv_json_set(object, "blocks_lost", res->manager.blocks_lost);
	okv_json_set(object, "clients_killed", clients->nr_clients_killed);
	okv_json_set(object, "daemons_killed", clients->nr_daemons_killed);
	okv_json_set(object, "requests_lost", clients->nr_requests_lost);
	okv_json_set(object, "requests_delayed", clients->nr_away);
	okv_json_set(object, "private_bytes", clients->pool.state_bytes[OMNIKV_EXTENT_PRIVATE]);
	okv_json_set(object, "quarantined_bytes", clients->pool.state_bytes[OMNIKV_EXTENT_QUARANTINED]);
	return object;
}

static int okv_print_json(const struct okv_replay_args *args, const struct okv_trace *trace,
			  const struct omnikv_plan *plan, const struct okv_replay_result *res)
{
	json_t *root = json_object();

	okv_json_set(root, "requests", res->nr_requests);
	okv_json_set(root, "requests_refused", res->nr_refused);
	okv_json_set(root, "requests_failed", res->nr_failed);
	okv_json_set(root, "steps_recomputed", res->nr_recomputed);
	okv_json_set(root, "malformed_lines", trace->nr_malformed);
	okv_json_set(root, "prompt_tokens", res->prompt_tokens);
	okv_json_set(root, "tokens_hit", res->tokens_hit);
	okv_json_set(root, "tokens_missed", res->prompt_tokens - res->tokens_hit);
	okv_json_set(root, "blocks_referenced", res->blocks_referenced);
	okv_json_set(root, "blocks_hit", res->blocks_hit);
	okv_json_set(root, "blocks_hit_dram", res->blocks_hit - res->blocks_hit_nvme);
	okv_json_set(root, "blocks_hit_nvme", res->blocks_hit_nvme);
	okv_json_set(root, "blocks_hit_recovered", res->manager.blocks_hit_recovered);
	okv_json_set(root, "blocks_recovered", res->manager.blocks_recovered);
	okv_json_set(root, "blocks_dropped", res->manager.blocks_dropped);
	okv_json_set(root, "index_bytes", res->manager.index_bytes);
	okv_json_set(root, "blocks_missed", res->blocks_referenced - res->blocks_hit);
	okv_set_real(root, "hit_ratio", okv_ratio(res->blocks_hit, res->blocks_referenced));
	okv_set_real(root, "hit_ratio_dram", okv_ratio(res->blocks_hit - res->blocks_hit_nvme, res->blocks_referenced));
	okv_set_real(root, "hit_ratio_nvme", okv_ratio(res->blocks_hit_nvme, res->blocks_referenced));
	okv_json_set(root, "bytes_h2d", res->device.h2d_bytes);
	okv_json_set(root, "bytes_d2h", res->device.d2h_bytes);
	okv_json_set(root, "bytes_spilled", res->manager.bytes_spilled);
	okv_json_set(root, "bytes_fetched", res->manager.bytes_fetched);
	okv_json_set(root, "loads_verified", res->loads_verified);
	okv_json_set(root, "bytes_verified", res->bytes_verified);
	okv_json_set(root, "wrong_bytes", res->wrong_bytes);
	okv_set_text(root, "first_wrong", res->first_wrong[0] ? res->first_wrong : NULL);
	okv_json_set(root, "checksum_errors", res->pipe.checksum_errors);
	okv_json_set(root, "transfers_failed", res->device.nr_failed);
	okv_json_set(root, "injected", res->nr_injected);
	okv_json_set(root, "blocks_committed", res->blocks_committed);
	okv_json_set(root, "blocks_deduplicated", res->manager.blocks_deduplicated);
	okv_json_set(root, "blocks_evicted", res->manager.blocks_evicted);
	okv_json_set(root, "hash_collisions", res->manager.hash_collisions);
	okv_json_set(root, "steps", res->nr_steps);
	okv_set_real(root, "exposed_transfer_s", (double)res->device.stall_ns / 1e9);
	okv_set_real(root, "compute_s", (double)res->device.compute_ns / 1e9);
	okv_set_real(root, "device_s", (double)res->device.clock_ns / 1e9);
	okv_json_set(root, "peak_hbm_bytes", res->device.hbm_peak_bytes);
	okv_json_set(root, "peak_dram_bytes", res->manager.peak_used_bytes);
	okv_json_set(root, "peak_nvme_bytes", args->spill.peak_bytes);
	if (args->spill_path)
		json_object_set_new(root, "spill", okv_spill_json(args, res));
	okv_set_real(root, "allocated_over_needed", omnikv_plan_overhead(plan));
	okv_json_set(root, "tail_blocks_committed", res->tail_blocks_committed);
	okv_set_real(root, "tail_allocated_over_needed", okv_ratio(res->tail_allocated_bytes, res->tail_needed_bytes));
	okv_set_real(root, "mean_run_blocks", res->manager.mean_run_blocks);
	okv_json_set(root, "leaked_bytes", res->leaked_bytes);
	okv_json_set(root, "leaked_leases", res->leaked_leases);
	okv_set_text(root, "check", res->check[0] ? res->check : "ok");
	okv_json_set(root, "max_rss_bytes", okv_max_rss_bytes());
	okv_set_real(root, "wall_s", res->wall_s);
	json_object_set_new(root, "lookup_ns", okv_percentiles_json(res->lookup_p50_ns, res->lookup_p99_ns));
	if (args->replay.is_by_arrival)
		json_object_set_new(root, "ttft_ns", okv_percentiles_json(res->ttft_p50_ns, res->ttft_p99_ns));
	if (args->has_daemon)
		json_object_set_new(root, "daemon", okv_daemon_json(args, res));
	json_object_set_new(root, "config", okv_config_json(args, plan, res));

	return okv_json_print(root, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
}

static void okv_print_spill(const struct okv_replay_args *args, const struct okv_replay_result *res)
{
	const struct omnikv_spill_stats *stats = &args->spill;
	char a[24], b[24];

	if (!args->spill_path)
		return;
	printf("spill       %s: %s written, %s fetched, %s at most in use; %s\n", args->spill_path,
	       okv_bytes_text(res->manager.bytes_spilled, a), okv_bytes_text(res->manager.bytes_fetched, b),
	       okv_bytes_text(stats->peak_bytes, (char[24]){ 0 }), stats->is_direct ? "direct I/O" : "page cache");
	printf("tiers       %llu blocks hit in memory, %llu on NVMe", (unsigned long long)(res->blocks_hit - res->blocks_hit_nvme),
	       (unsigned long long)res->blocks_hit_nvme);
	if (stats->recovered_records)
		printf(" (%llu of an earlier run, which left %llu)", (unsigned long long)res->manager.blocks_hit_recovered,
		       (unsigned long long)stats->recovered_records);
	printf("\n");
	if (res->manager.blocks_lost || res->manager.blocks_bad || stats->lost_segments)
		printf("lost        %llu blocks could not be stored, %llu were damaged, %llu segments could not be read\n",
		       (unsigned long long)res->manager.blocks_lost, (unsigned long long)res->manager.blocks_bad,
		       (unsigned long long)stats->lost_segments);
}

static void okv_print_daemon(const struct okv_replay_args *args, const struct okv_replay_result *res)
{
	const struct okv_clients_result *clients = &args->clients;

	if (!args->has_daemon)
		return;
	printf("processes   %u over %s: %llu blocks of others used, %llu given to the daemon, %llu lookups waited\n",
	       clients->nr_clients, args->socket ? args->socket : "an omnikvd of this run",
	       (unsigned long long)res->manager.blocks_imported, (unsigned long long)res->manager.blocks_published,
	       (unsigned long long)clients->nr_waits);
	if (res->manager.blocks_spilled || res->manager.blocks_fetched)
		printf("spill       the daemon's: %s written, %s fetched; %llu blocks hit in memory, %llu on NVMe, %llu lost\n",
		       okv_bytes_text(res->manager.bytes_spilled, (char[24]){ 0 }),
		       okv_bytes_text(res->manager.bytes_fetched, (char[24]){ 0 }),
		       (unsigned long long)(res->blocks_hit - res->blocks_hit_nvme),
		       (unsigned long long)res->blocks_hit_nvme, (unsigned long long)res->manager.blocks_lost);
	if (clients->nr_clients_killed || clients->nr_daemons_killed)
		printf("killed      %llu processes, %llu daemons; %llu requests lost, %llu waited for a daemon, %llu blocks not "
		       "given to one\n", (unsigned long long)clients->nr_clients_killed,
		       (unsigned long long)clients->nr_daemons_killed, (unsigned long long)clients->nr_requests_lost,
		       (unsigned long long)clients->nr_away,
		       (unsigned long long)(res->manager.blocks_unpublished + res->manager.blocks_queued));
}

static void okv_print_summary(const struct okv_replay_args *args, const struct okv_trace *trace,
			      const struct omnikv_plan *plan, const struct okv_replay_result *res)
{
	const struct okv_replay_config *config = &args->replay;
	char a[24], b[24];
	size_t i;

	if (args->workload)
		printf("played      workload %s, seed %llu", args->workload, (unsigned long long)config->seed);
	else
		printf("played      %s (%s)", args->traces[0], okv_trace_format_name(args->formats[0]));
	for (i = 1; i < args->nr_traces; i++)
		printf(", %s (%s)", args->traces[i], okv_trace_format_name(args->formats[i]));
	if (config->is_by_arrival)
		printf(", by arrival, up to %u at once\n", config->concurrency);
	else
		printf(", as fast as possible\n");
	printf("model       %s, blocks of %u tokens, %s each, granules of %s, scale %u\n", plan->layout.name,
	       plan->block_tokens, okv_bytes_text(omnikv_plan_block_bytes(plan), a),
	       okv_bytes_text(plan->granule_bytes, b), plan->scale);
	printf("pool        %s: %s usable on %s pages, eviction %s%s\n", args->pool_spec,
	       okv_bytes_text(args->pool_info.usable_bytes, a), okv_page_kind_name(args->pool_info.page_kind),
	       config->eviction, config->with_hints ? " with hints" : "");
	printf("device      %s as %s, %u slots of %llu tokens, %s of device memory\n", config->device, config->gpu->name,
	       config->nr_slots, (unsigned long long)res->slot_tokens, okv_bytes_text(res->device.hbm_peak_bytes, a));
	printf("\n");
	printf("requests    %llu, %llu prompt tokens", (unsigned long long)res->nr_requests,
	       (unsigned long long)res->prompt_tokens);
	if (res->nr_refused)
		printf(", %llu refused (did not fit)", (unsigned long long)res->nr_refused);
	if (res->nr_failed)
		printf(", %llu FAILED", (unsigned long long)res->nr_failed);
	if (trace->nr_malformed)
		printf(", %llu malformed lines left out", (unsigned long long)trace->nr_malformed);
	printf("\n");
	printf("hits        %llu of %llu blocks, %.2f %%; %.2f %% of tokens\n", (unsigned long long)res->blocks_hit,
	       (unsigned long long)res->blocks_referenced,
	       100 * okv_ratio(res->blocks_hit, res->blocks_referenced),
	       100 * okv_ratio(res->tokens_hit, res->prompt_tokens));
	printf("cache       %llu blocks committed, %llu evicted, %s at most in use, runs of %.1f blocks\n",
	       (unsigned long long)res->blocks_committed, (unsigned long long)res->manager.blocks_evicted,
	       okv_bytes_text(res->manager.peak_used_bytes, a), res->manager.mean_run_blocks);
	okv_print_spill(args, res);
	okv_print_daemon(args, res);
	printf("moved       %s to the device, %s back, in %llu steps\n", okv_bytes_text(res->device.h2d_bytes, a),
	       okv_bytes_text(res->device.d2h_bytes, b), (unsigned long long)res->nr_steps);
	printf("device time %s computing, %s waiting for transfers\n", okv_ns_text(res->device.compute_ns, a),
	       okv_ns_text(res->device.stall_ns, b));
	if (config->is_by_arrival)
		printf("TTFT        %s in the middle, %s at 99 %%\n", okv_ns_text(res->ttft_p50_ns, a),
		       okv_ns_text(res->ttft_p99_ns, b));
	printf("lookup      %s in the middle, %s at 99 %%\n", okv_ns_text(res->lookup_p50_ns, a),
	       okv_ns_text(res->lookup_p99_ns, b));
	printf("took        %.2f s, %s of memory at most\n", res->wall_s, okv_bytes_text(okv_max_rss_bytes(), a));
	printf("\n");
	if (res->nr_injected)
		printf("injected    %llu flipped byte\n", (unsigned long long)res->nr_injected);
	if (res->nr_recomputed)
		printf("recovered   %llu steps done again, %llu transfers failed\n",
		       (unsigned long long)res->nr_recomputed, (unsigned long long)res->device.nr_failed);
	printf("checked     %s in %llu loads against what they must be: %llu wrong bytes\n",
	       okv_bytes_text(res->bytes_verified, a), (unsigned long long)res->loads_verified,
	       (unsigned long long)res->wrong_bytes);
}

/* Why requests were left out, and what to do. A run of which nothing was played is no success. */
static int okv_say_refused(const struct okv_replay_result *res, int status)
{
	uint64_t nr_large = res->nr_refused - res->nr_too_long;
	char why[256] = "";
	int len = 0;

	if (res->nr_too_long)
		len = snprintf(why, sizeof(why), "%llu longer than a layer buffer of %llu tokens (give more --slot-tokens)",
			       (unsigned long long)res->nr_too_long, (unsigned long long)res->slot_tokens);
	if (nr_large)
		snprintf(why + len, sizeof(why) - len, "%s%llu larger than the pool (give a larger --pool, or --scale)",
			 len ? ", " : "", (unsigned long long)nr_large);
	if (res->nr_refused == res->nr_requests)
		return okv_fail("all %llu requests were refused: %s", (unsigned long long)res->nr_refused, why);
	okv_note("%llu of %llu requests were refused: %s", (unsigned long long)res->nr_refused,
		 (unsigned long long)res->nr_requests, why);
	return status;
}

/* One line for each thing that must not be. Returns the exit status. */
static int okv_verdict(const struct okv_replay_args *args, const struct okv_replay_result *res)
{
	int ret = OKV_EXIT_DONE;

	if (res->wrong_bytes)
		ret = okv_fail("%llu wrong bytes, the first at %s", (unsigned long long)res->wrong_bytes, res->first_wrong);
	if (res->pipe.checksum_errors)
		ret = okv_fail("%llu checksum errors", (unsigned long long)res->pipe.checksum_errors);
	if (res->nr_refused)
		ret = okv_say_refused(res, ret);
	if (res->nr_failed)
		ret = okv_fail("%llu requests failed again and again", (unsigned long long)res->nr_failed);
	if (res->check[0])
		ret = okv_fail("the manager's books are wrong: %s", res->check);
	if (res->leaked_bytes || res->leaked_leases)
		ret = okv_fail("leaked: %llu bytes, %llu leased blocks", (unsigned long long)res->leaked_bytes,
			       (unsigned long long)res->leaked_leases);
	if (args->replay.inject == OKV_INJECT_FLIP && !res->nr_injected)
		ret = okv_fail("--inject flip:%llu: only %llu blocks were hit, nothing was flipped",
			       (unsigned long long)args->replay.inject_nth, (unsigned long long)res->blocks_hit);
	return ret;
}

struct okv_running {
	struct okv_replay_args	*args;
	struct okv_progress	progress;
};

static void okv_run_progress(void *opaque, uint64_t done, uint64_t total, const char *note)
{
	struct okv_running *running = opaque;

	okv_say_notice(running->args);
	okv_progress_show(&running->progress, done, total, note);
}

/* The daemon that is started takes a size alone; one that is there has its pool. */
static int okv_check_daemon_pool(struct okv_replay_args *args)
{
	static char name[sizeof("daemon:") + sizeof(((struct sockaddr_un *)0)->sun_path)];
	struct omnikv_error err = { "" };
	uint64_t bytes;

	if (args->socket) {
		snprintf(name, sizeof(name), "daemon:%s", args->socket);
		args->pool_spec = name;
	} else if (omnikv_size_parse(args->pool_spec, &bytes, &err)) {
		okv_usage("--pool: with --daemon it is the size of the daemon's pool: %s", err.text);
	}
	return OKV_EXIT_DONE;
}

static int okv_run_clients(struct okv_replay_args *args, struct okv_replay_result *result, struct omnikv_error *err)
{
	struct okv_clients_config config = {
		.replay		= args->replay,
		.nr_clients	= args->nr_clients ? args->nr_clients : 1,
		.socket		= args->socket,
		.pool_spec	= args->pool_spec,
		.kill_ms	= args->kill_ms,
	};
	int ret = okv_clients_run(&config, result, &args->clients, err);

	args->pool_info = args->clients.pool;
	return ret;
}

int okv_cmd_replay(int argc, char **argv)
{
	static struct okv_replay_args args = {
		.model		= "tiny",
		.pool_spec	= "1G",
		.scale		= 1,
		.replay = {
			.tenant		= "replay",
			.device		= "sim",
			.is_by_arrival	= true,
			.concurrency	= 8,
			.nr_slots	= 2,
			.seed		= OKV_WORKLOAD_SEED,
		},
	};
	struct okv_replay_result result;
	struct omnikv_error err = { "" };
	struct omnikv_pool *pool = NULL;
	struct omnikv_layout *layout;
	struct omnikv_plan *plan;
	struct okv_running running = { .args = &args };
	struct okv_trace trace;
	int status, ret;

	args.replay.gpu = okv_gpu_find("h100");
	okv_cmd_parse(&okv_argp, argc, argv, &args);
	okv_check_usage(&args);
	if (!args.replay.eviction)
		args.replay.eviction = "lru";

	layout = calloc(1, sizeof(*layout));
	plan = calloc(1, sizeof(*plan));
	if (!layout || !plan)
		return okv_fail("no memory");
	ret = okv_model_load(args.model, layout, &err);
	if (ret)
		okv_usage("--model: %s", err.text[0] ? err.text : strerror(-ret));
	okv_detect_formats(&args);
	okv_choose_block_tokens(&args);
	okv_make_plan(&args, layout, plan);

	okv_trace_init(&trace, plan->block_tokens);
	status = okv_make_trace(&args, &trace);
	if (status)
		goto out;
	status = args.has_daemon ? okv_check_daemon_pool(&args) : okv_open_pool(&args, plan, &pool);
	if (status)
		goto out;

	status = okv_open_spill(&args, pool);
	if (status)
		goto out;

	okv_progress_init(&running.progress, "replay");
	args.replay.trace = &trace;
	args.replay.plan = plan;
	args.replay.pool = pool;
	args.replay.progress = okv_run_progress;
	args.replay.opaque = &running;
	if (!args.replay.is_by_arrival)
		args.replay.concurrency = 1;
	ret = args.has_daemon ? okv_run_clients(&args, &result, &err) : okv_replay_run(&args.replay, &result, &err);
	okv_progress_fini(&running.progress);
	if (result.notice[0])
		okv_note("--pool %s: %s", args.pool_spec, result.notice);
	args.spill.size = sizeof(args.spill);
	if (args.replay.spill)
		omnikv_spill_stats(args.replay.spill, &args.spill);
	if (ret) {
		status = okv_fail("%s", err.text);
		if (ret == -EINVAL)
			status = OKV_EXIT_USAGE;
		goto out;
	}
	if (args.is_json)
		status = okv_print_json(&args, &trace, plan, &result);
	else
		okv_print_summary(&args, &trace, plan, &result);
	if (okv_output_end(0))
		status = OKV_EXIT_FAILED;
	if (okv_verdict(&args, &result))
		status = OKV_EXIT_FAILED;
out:
	omnikv_spill_close(args.replay.spill);
	if (pool)
		omnikv_pool_close(pool);
	okv_trace_fini(&trace);
	free(plan);
	free(layout);
	return status;
}

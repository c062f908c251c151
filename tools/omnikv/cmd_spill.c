// SPDX-License-Identifier: GPL-2.0-only
/*
 * omnikv spill: looks at a spill store (stat), and reads and verifies all of it (check).
 *
 * Neither needs the store's owner to be stopped for stat; check does, since a block that is being
 * replaced would look bad. Only check --quarantine changes anything.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include <omnikv/spill.h>

#include "cmd.h"

#define JSON_FLAGS	(JSON_INDENT(1) | JSON_REAL_PRECISION(9))

enum {
	OPT_JSON = 'j',
	OPT_QUARANTINE = 256,
};

static const struct argp_option okv_options[] = {
	{ "json", OPT_JSON, NULL, 0, "One JSON object", 0 },
	{ "quarantine", OPT_QUARANTINE, NULL, 0, "check: keep bad blocks from being found again", 0 },
	{ 0 },
};

struct okv_spill_args {
	const char	*what;
	const char	*path;
	bool		is_json;
	bool		is_quarantine;
};

static error_t okv_parse(int key, char *arg, struct argp_state *state)
{
	struct okv_spill_args *args = state->input;

	switch (key) {
	case OPT_JSON:
		args->is_json = true;
		break;
	case OPT_QUARANTINE:
		args->is_quarantine = true;
		break;
	case ARGP_KEY_ARG:
		if (!args->what)
			args->what = arg;
		else if (!args->path)
			args->path = arg;
		else
			okv_usage("'%s' is one argument too many", arg);
		break;
	default:
		return ARGP_ERR_UNKNOWN;
	}
	return 0;
}

static const struct argp okv_argp = {
	.options = okv_options,
	.parser = okv_parse,
	.args_doc = "stat|check PATH",
	.doc = "Look at a spill store: a directory, a file or a block device. 'stat' reads its tables, also while it is in use; "
	       "'check' reads every block and compares its checksum.\v"
	       "Exit status: 0 done, and every block was right; 1 failed, or bad blocks were found; 2 wrong usage.\n\n"
	       "  omnikv spill stat /var/cache/omnikv\n"
	       "  omnikv spill check --quarantine /var/cache/omnikv",
};

static int okv_stat(const struct okv_spill_args *args, const struct omnikv_spill_stats *stats)
{
	char a[24], b[24];

	if (args->is_json) {
		json_t *object = json_object();

		json_object_set_new(object, "path", json_string(args->path));
		okv_json_set(object, "owner_pid", stats->owner_pid);
		okv_json_set(object, "segment_bytes", stats->segment_bytes);
		okv_json_set(object, "segments", stats->nr_segments);
		okv_json_set(object, "segments_free", stats->nr_free_segments);
		okv_json_set(object, "segments_without_table", stats->recovered_scanned);
		okv_json_set(object, "segments_unreadable", stats->lost_segments);
		okv_json_set(object, "used_bytes", stats->used_bytes);
		okv_json_set(object, "blocks", stats->nr_records);
		okv_json_set(object, "block_bytes", stats->live_bytes);
		json_object_set_new(object, "open_s", json_real(stats->open_s));
		return okv_json_print(object, JSON_FLAGS);
	}
	printf("store       %s\n", args->path);
	if (stats->owner_pid)
		printf("owner       process %u\n", stats->owner_pid);
	else
		printf("owner       nobody\n");
	printf("segments    %llu of %s, %llu free; %s in use\n", (unsigned long long)stats->nr_segments,
	       okv_bytes_text(stats->segment_bytes, a), (unsigned long long)stats->nr_free_segments,
	       okv_bytes_text(stats->used_bytes, b));
	printf("blocks      %llu, %s\n", (unsigned long long)stats->nr_records, okv_bytes_text(stats->live_bytes, a));
	if (stats->recovered_scanned)
		printf("unfinished  %llu segments without a table: their owner was killed, or is at work\n",
		       (unsigned long long)stats->recovered_scanned);
	if (stats->lost_segments)
		printf("unreadable  %llu segments\n", (unsigned long long)stats->lost_segments);
	return OKV_EXIT_DONE;
}

static void okv_check_progress(void *opaque, uint64_t done, uint64_t total)
{
	okv_progress_show(opaque, done, total, NULL);
}

static int okv_check(const struct okv_spill_args *args, struct omnikv_spill *spill)
{
	struct omnikv_spill_check check = {
		.size = sizeof(check), .flags = args->is_quarantine ? OMNIKV_SPILL_CHECK_F_QUARANTINE : 0,
	};
	struct okv_progress progress;
	char a[24];
	int ret;

	okv_progress_init(&progress, "checking");
	ret = omnikv_spill_check(spill, &check, okv_check_progress, &progress);
	okv_progress_fini(&progress);
	if (ret)
		return okv_fail("%s: %s", args->path, strerror(-ret));
	if (args->is_json) {
		json_t *object = json_object();

		json_object_set_new(object, "path", json_string(args->path));
		okv_json_set(object, "blocks", check.nr_records);
		okv_json_set(object, "bytes", check.nr_bytes);
		okv_json_set(object, "bad", check.nr_bad);
		okv_json_set(object, "unreadable", check.nr_unreadable);
		okv_json_set(object, "quarantined", check.nr_quarantined);
		json_object_set_new(object, "first_bad", check.first_bad[0] ? json_string(check.first_bad) : json_null());
		okv_json_print(object, JSON_FLAGS);
	} else {
		printf("checked     %llu blocks, %s\n", (unsigned long long)check.nr_records,
		       okv_bytes_text(check.nr_bytes, a));
		printf("bad         %llu with a wrong checksum, %llu that cannot be read\n", (unsigned long long)check.nr_bad,
		       (unsigned long long)check.nr_unreadable);
		if (args->is_quarantine)
			printf("quarantine  %llu blocks\n", (unsigned long long)check.nr_quarantined);
	}
	if (!check.nr_bad && !check.nr_unreadable)
		return OKV_EXIT_DONE;
	return okv_fail("%s: %llu bad blocks, the first in %s%s", args->path,
			(unsigned long long)(check.nr_bad + check.nr_unreadable), check.first_bad,
			args->is_quarantine ? "" : "; they are never served, --quarantine forgets them");
}

int okv_cmd_spill(int argc, char **argv)
{
	struct omnikv_spill_config config = { .size = sizeof(config), .owner = "omnikv spill check" };
	struct omnikv_spill_stats stats = { .size = sizeof(stats) };
	struct okv_spill_args args = { .what = NULL };
	struct omnikv_error err = { "" };
	struct omnikv_spill *spill;
	int ret, status;

	okv_cmd_parse(&okv_argp, argc, argv, &args);
	if (!args.what)
		okv_usage("nothing to do; give stat or check, and the PATH of a store");
	if (strcmp(args.what, "stat") && strcmp(args.what, "check"))
		okv_usage("'%s' is neither stat nor check", args.what);
	if (!args.path)
		okv_usage("no store; give the PATH of one: omnikv spill %s PATH", args.what);
	if (args.is_quarantine && strcmp(args.what, "check"))
		okv_usage("--quarantine is for check");

	config.flags = OMNIKV_SPILL_F_OPEN_ONLY | (args.is_quarantine ? 0 : OMNIKV_SPILL_F_READ_ONLY);
	ret = omnikv_spill_open(args.path, &config, &spill, &err);
	if (ret == -EINVAL)
		okv_usage("%s", err.text);
	if (ret)
		return okv_fail("%s", err.text[0] ? err.text : strerror(-ret));
	ret = omnikv_spill_stats(spill, &stats);
	if (ret)
		status = okv_fail("%s: %s", args.path, strerror(-ret));
	else if (!strcmp(args.what, "stat"))
		status = okv_stat(&args, &stats);
	else if (stats.owner_pid && !args.is_quarantine)
		status = okv_fail("%s: in use by process %u; stop it first, since what it replaces would look bad", args.path,
				  stats.owner_pid);
	else
		status = okv_check(&args, spill);
	omnikv_spill_close(spill);
	if (okv_output_end(0))
		status = OKV_EXIT_FAILED;
	return status;
}

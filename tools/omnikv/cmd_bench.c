// SPDX-License-Identifier: GPL-2.0-only
/*
 * omnikv bench: how fast this machine runs omnikv, beside what no code can beat here and what
 * others do.
 *
 * Options, and which benchmarks run, stand here; each benchmark stands in a file of its own, what
 * they share in bench.c, how results look in bench_print.c. Reports, and never judges.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "bench.h"
#include "cmd.h"

#define FOOTPRINT_MIN	(16ull << 20)
#define FOOTPRINT_MAX	(1ull << 40)
#define NAMES_MAX	32u

enum {
	OPT_JSON = 'j',
	OPT_COMPARE = 256, OPT_SVG, OPT_ROUNDS, OPT_HUGE, OPT_LIST, OPT_FROM, OPT_FOOTPRINT, OPT_DISK,
};

static const struct argp_option okv_options[] = {
	{ "list", OPT_LIST, NULL, 0, "Print the names of the benchmarks and stop", 0 },
	{ "rounds", OPT_ROUNDS, "N", 0, "Measure everything N times, interleaved (default 5)", 0 },
	{ "hugepages", OPT_HUGE, "N", 0, "Reserve N huge pages of 2M for the run and give them back (needs root)", 0 },
	{ "footprint", OPT_FOOTPRINT, "SIZE", 0, "Work on so much memory (default 1G; less than the caches measures caches)", 0 },
	{ "disk", OPT_DISK, "DIR", 0, "What needs a disk works in DIR (default /var/tmp)", 0 },
	{ "json", OPT_JSON, NULL, 0, "One JSON object", 0 },
	{ "compare", OPT_COMPARE, "FILE", 0, "Also compare with an earlier run's JSON", 0 },
	{ "svg", OPT_SVG, "FILE", 0, "Also draw the ratios", 0 },
	{ "from", OPT_FROM, "FILE", 0, "Measure nothing: print an earlier run's JSON", 0 },
	{ 0 },
};

static const struct okv_benchmark okv_benchmarks[] = {
	{ "gather", "M1 M10", "scattered pieces into one buffer, without and with checksums", okv_bench_copy_need, okv_bench_gather, NULL },
	{ "scatter", "M2 M10", "one buffer into scattered pieces, without and with checksums", okv_bench_copy_need, okv_bench_scatter, NULL },
	{ "match", "M3", "the longest cached prefix of a prompt, hashing included", okv_bench_index_need, okv_bench_match, NULL },
	{ "readers", "M3", "lookups of other processes in an index that changes", okv_bench_readers_need, okv_bench_readers, NULL },
	{ "life", "M4", "evict, free, allocate and insert blocks in a full pool", okv_bench_index_need, okv_bench_life, NULL },
	{ "ring", "M5", "operations to a worker and back, and what an idle ring costs", okv_bench_ring_need, okv_bench_ring, NULL },
	{ "fork", "fork", "forks of a long sequence, and their first append", okv_bench_fork_need, okv_bench_fork, NULL },
	{ "get", "M6", "another process's blocks over a daemon, mapped and copied", okv_bench_get_need, okv_bench_get, NULL },
	{ "start", "M8", "a new pool until it is ready, and another client meanwhile", okv_bench_start_need, okv_bench_start, NULL },
	{ "restart", "M8", "a manager and a daemon over a pool that is full of blocks", okv_bench_restart_need, okv_bench_restart, NULL },
	{ "spill", "M9", "blocks to NVMe and back, beside fio where it is installed", okv_bench_spill_need, okv_bench_spill,
	  okv_bench_spill_disk_need },
};

#define NR_BENCHMARKS	(sizeof(okv_benchmarks) / sizeof(okv_benchmarks[0]))

struct okv_bench_args {
	struct okv_bench	bench;
	const char		*names[NAMES_MAX];
	unsigned int		nr_names;
	const char		*compare;
	const char		*svg;
	const char		*from;
	bool			is_json;
};

static void okv_print_names(void)
{
	size_t i;

	for (i = 0; i < NR_BENCHMARKS; i++)
		printf("%-8s  %-6s  %s\n", okv_benchmarks[i].name, okv_benchmarks[i].rows, okv_benchmarks[i].summary);
	exit(OKV_EXIT_DONE);
}

/* By its name, by one of its rows, or "all". */
static bool okv_is_named(const struct okv_benchmark *benchmark, const char *name)
{
	const char *at = strstr(benchmark->rows, name);
	size_t len = strlen(name);

	if (!strcmp(name, "all") || !strcmp(name, benchmark->name))
		return true;
	return len && at && (at == benchmark->rows || at[-1] == ' ') && (!at[len] || at[len] == ' ');
}

static error_t okv_parse(int key, char *arg, struct argp_state *state)
{
	struct okv_bench_args *args = state->input;
	size_t i;

	switch (key) {
	case OPT_LIST:
		okv_print_names();
		break;
	case OPT_ROUNDS:
		args->bench.nr_rounds = (unsigned int)okv_number("--rounds", arg, 1, OKV_BENCH_ROUNDS_MAX);
		break;
	case OPT_HUGE:
		args->bench.nr_huge_pages = okv_number("--hugepages", arg, 0, FOOTPRINT_MAX >> 21);
		break;
	case OPT_FOOTPRINT:
		args->bench.footprint_bytes = okv_size("--footprint", arg);
		if (args->bench.footprint_bytes < FOOTPRINT_MIN || args->bench.footprint_bytes > FOOTPRINT_MAX)
			okv_usage("--footprint: %s is not between 16M and 1T", arg);
		break;
	case OPT_DISK:
		args->bench.disk = arg;
		break;
	case OPT_JSON:
		args->is_json = true;
		break;
	case OPT_COMPARE:
		args->compare = arg;
		break;
	case OPT_SVG:
		args->svg = arg;
		break;
	case OPT_FROM:
		args->from = arg;
		break;
	case ARGP_KEY_ARG:
		for (i = 0; i < NR_BENCHMARKS && !okv_is_named(&okv_benchmarks[i], arg); i++)
			;
		if (i == NR_BENCHMARKS)
			okv_usage("no benchmark is named '%s'; --list names them", arg);
		if (args->nr_names == NAMES_MAX)
			okv_usage("more than %u names", NAMES_MAX);
		args->names[args->nr_names++] = arg;
		break;
	default:
		return ARGP_ERR_UNKNOWN;
	}
	return 0;
}

static const struct argp okv_argp = {
	.options = okv_options,
	.parser = okv_parse,
	.args_doc = "NAME...|all",
	.doc = "Measure omnikv on this machine, beside what no code can beat here (the limit) and what others do (the "
	       "peer), all in one run. A NAME is that of a benchmark or of a row.\v"
	       "Rows of one thread are measured in CPU time of that thread; all others in wall time, so run those at one "
	       "priority on a machine that is otherwise idle. Without --hugepages each row says which pages it got. Exit "
	       "status: 0 measured, 1 failed, 2 wrong usage; no figure makes it fail.\n\n"
	       "  nice -n -15 omnikv bench all --hugepages 1200 --json > now.json\n"
	       "  omnikv bench --from now.json --compare then.json",
};

static json_t *okv_load(const char *option, const char *path)
{
	json_error_t err;
	json_t *run = json_load_file(path, 0, &err);

	if (!run)
		okv_die("%s: %s: %s", option, path, err.text);
	return run;
}

/* 0, or the exit status; what was measured stays. */
static int okv_run_one(struct okv_bench *bench, const struct okv_benchmark *benchmark)
{
	uint64_t need = benchmark->need_bytes(bench->footprint_bytes), have = okv_memory_available();
	char need_text[24], have_text[24];

	have += bench->nr_huge_pages << 21;
	if (need > have)
		return okv_fail("%s: needs %s of memory and %s is available; free some, or give --footprint SIZE", benchmark->name,
				okv_bytes_text(need, need_text), okv_bytes_text(have, have_text));
	if (benchmark->need_disk) {
		struct statvfs vfs;

		if (statvfs(bench->disk, &vfs))
			return okv_fail("%s: %s: %s; give --disk DIR", benchmark->name, bench->disk, strerror(errno));
		need = benchmark->need_disk(bench->footprint_bytes);
		have = (uint64_t)vfs.f_bavail * vfs.f_frsize;
		if (need > have)
			return okv_fail("%s: needs %s in %s and %s is free there; give --disk DIR, or --footprint SIZE", benchmark->name,
					okv_bytes_text(need, need_text), bench->disk, okv_bytes_text(have, have_text));
	}
	okv_bench_begin(bench);
	benchmark->run(bench);
	okv_bench_end(bench);
	return OKV_EXIT_DONE;
}

static int okv_run_all(struct okv_bench_args *args)
{
	struct okv_progress progress;
	int status = OKV_EXIT_DONE;
	size_t i;
	unsigned int k;

	if (args->bench.nr_huge_pages) {
		int ret = okv_huge_reserve(args->bench.nr_huge_pages);

		if (ret)
			return okv_fail("--hugepages %llu: %s; %s", (unsigned long long)args->bench.nr_huge_pages, strerror(-ret),
					ret == -EPERM ? "run as root, or without" : "ask for fewer, or run without");
	}
	okv_progress_init(&progress, "bench");
	for (i = 0; i < NR_BENCHMARKS; i++) {
		for (k = 0; k < args->nr_names && !okv_is_named(&okv_benchmarks[i], args->names[k]); k++)
			;
		if (k == args->nr_names)
			continue;
		okv_progress_show(&progress, i, NR_BENCHMARKS, okv_benchmarks[i].name);
		if (okv_run_one(&args->bench, &okv_benchmarks[i]))
			status = OKV_EXIT_FAILED;
	}
	okv_progress_fini(&progress);
	okv_huge_release();
	return status;
}

static int okv_draw(const char *path, const json_t *run, const char **why)
{
	FILE *file = fopen(path, "we");
	int ret;

	if (!file)
		okv_die("--svg: %s: %s", path, strerror(errno));
	ret = okv_bench_svg(file, run, why);
	if (fclose(file) && !ret)
		okv_die("--svg: %s: %s", path, strerror(errno));
	return ret;
}

static int okv_show(const struct okv_bench_args *args, const json_t *run, const json_t *old)
{
	const char *why = NULL;
	int ret = 0;

	if (args->is_json) {
		if (json_dumpf(run, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(6)))
			return okv_output_end(errno ? errno : EIO);
		putchar('\n');
	} else {
		ret = okv_bench_table(stdout, run, &why);
	}
	if (!ret && old) {
		if (!args->is_json)
			putchar('\n');
		ret = okv_bench_compare(args->is_json ? stderr : stdout, old, run, &why);
	}
	if (!ret && args->svg)
		ret = okv_draw(args->svg, run, &why);
	if (ret)
		return okv_fail("this is no result of omnikv bench: %s", why);
	return okv_output_end(0);
}

int okv_cmd_bench(int argc, char **argv)
{
	struct okv_bench_args args = { .bench = { .nr_rounds = 5, .footprint_bytes = 1ull << 30, .disk = "/var/tmp" } };
	json_t *run, *old = NULL;
	int status = OKV_EXIT_DONE, shown;

	okv_cmd_parse(&okv_argp, argc, argv, &args);
	if (!args.nr_names && !args.from)
		okv_usage("no benchmark; give a name or all, --list names them");
	if (args.nr_names && args.from)
		okv_usage("--from prints an earlier run and '%s' is to be measured; give one of them", args.names[0]);
	/* Read first: a mistake there costs no run. */
	if (args.compare)
		old = okv_load("--compare", args.compare);
	if (args.from) {
		run = okv_load("--from", args.from);
	} else {
		status = okv_run_all(&args);
		run = args.bench.nr_rows ? okv_bench_json(&args.bench) : NULL;
		if (!run && !status)
			status = okv_fail("no memory");
	}
	if (run) {
		shown = okv_show(&args, run, old);
		status = status ? status : shown;
	}
	okv_bench_fini(&args.bench);
	json_decref(run);
	json_decref(old);
	return status;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * omnikv, the command line: finds the sub-command and hands over.
 *
 * Each sub-command stands in a file of its own, cmd_NAME.c.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <omnikv/version.h>

#include "cmd.h"

static const struct okv_cmd okv_cmds[] = {
	{ "bench",	"measure this machine beside its limits and what others do",			okv_cmd_bench },
	{ "device",	"show what there is to compute on, and the GPU code of this build",	okv_cmd_device },
	{ "plan",	"show how a model's KV is cut into blocks",					okv_cmd_plan },
	{ "pool",	"make, list, show and end pools of the kernel module",				okv_cmd_pool },
	{ "replay",	"play request traces through the whole system and check every byte",	okv_cmd_replay },
	{ "status",	"show the kernel module's pools and who holds them",				okv_cmd_status },
	{ "spill",	"look at a spill store, or check every block of it",				okv_cmd_spill },
};

#define OKV_NR_CMDS	(sizeof(okv_cmds) / sizeof(okv_cmds[0]))

static void okv_help(void)
{
	size_t i;

	puts("Usage: omnikv COMMAND [OPTION...]\n"
	     "DRAM-centric KV-cache memory for LLM inference.\n\n"
	     "Commands:");
	for (i = 0; i < OKV_NR_CMDS; i++)
		printf("  %-10s  %s\n", okv_cmds[i].name, okv_cmds[i].summary);
	puts("\n'omnikv COMMAND --help' describes a command; 'omnikv --version' prints the version.\n"
	     "Sizes are bytes, or K, M, G, T for powers of 1024: 512M, 1.5G.\n"
	     "Exit status: 0 done, 1 failed, 2 wrong usage.");
}

/*
 * A closed standard stream is filled, or the next file would get its number and what is printed. The wrong way
 * round, so that using it fails as it does on a closed one.
 */
static void okv_fill_streams(void)
{
	int fd;

	for (fd = 0; fd <= 2; fd++) {
		if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd ? O_RDONLY : O_WRONLY) < 0)
			_exit(OKV_EXIT_FAILED);
	}
}

/* At exit, whoever printed: a result that could not be written was not given. */
static void okv_check_output(void)
{
	if (okv_output_end(0))
		_exit(OKV_EXIT_FAILED);
}

int main(int argc, char **argv)
{
	static char name[64];
	size_t i;

	okv_fill_streams();
	if (atexit(okv_check_output))
		return OKV_EXIT_FAILED;

	if (argc < 2) {
		fputs("omnikv: no command; see 'omnikv --help'\n", stderr);
		return OKV_EXIT_USAGE;
	}
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-?") || !strcmp(argv[1], "help")) {
		okv_help();
		return OKV_EXIT_DONE;
	}
	if (!strcmp(argv[1], "--version") || !strcmp(argv[1], "-V")) {
		puts("omnikv " OMNIKV_VERSION);
		return OKV_EXIT_DONE;
	}

	for (i = 0; i < OKV_NR_CMDS; i++) {
		if (!strcmp(argv[1], okv_cmds[i].name)) {
			snprintf(name, sizeof(name), "omnikv %s", argv[1]);
			argv[1] = name;
			return okv_cmds[i].run(argc - 1, argv + 1);
		}
	}
	fprintf(stderr, "omnikv: unknown %s '%s'; see 'omnikv --help'\n", argv[1][0] == '-' ? "option" : "command",
		argv[1]);
	return OKV_EXIT_USAGE;
}

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Sub-commands of omnikv, and how they speak to their user.
 *
 * Exit status: 0 done, 1 failed, 2 wrong usage, to which files belong that were named and cannot be
 * opened or are not what they should be. An error is one line that says what, why and what
 * to do. Results go to stdout, everything else to stderr.
 */
#ifndef OKV_CMD_H
#define OKV_CMD_H

#include <argp.h>

#include <omnikv/pool.h>

#define OKV_EXIT_DONE	0
#define OKV_EXIT_FAILED	1
#define OKV_EXIT_USAGE	2

/**
 * struct okv_cmd - one sub-command
 * @run: argv[0] is "omnikv NAME"; returns the exit status
 */
struct okv_cmd {
	const char	*name;
	const char	*summary;
	int		(*run)(int argc, char **argv);
};

int okv_cmd_bench(int argc, char **argv);
int okv_cmd_device(int argc, char **argv);
int okv_cmd_plan(int argc, char **argv);
int okv_cmd_pool(int argc, char **argv);
int okv_cmd_replay(int argc, char **argv);
int okv_cmd_status(int argc, char **argv);
struct json_t;
/** cmd_pool.c: what the kernel module has, printed, or put into @object. OKV_EXIT_FAILED without a module, said where printed. */
int okv_kmod_status(struct json_t *object);
int okv_cmd_spill(int argc, char **argv);

/**
 * okv_cmd_parse() - argp_parse() with errors of one line
 *
 * Exits: with 0 after --help, with 2 after a mistake.
 */
void okv_cmd_parse(const struct argp *argp, int argc, char **argv, void *input);
/** Print "PROGRAM: text" and exit with 2. */
void okv_usage(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/** Is all of standard output written? @error: that of a write before, or 0. Else says so once; OKV_EXIT_FAILED. */
int okv_output_end(int error);
/** Print @value with flags of jansson and an end of line, drop it, and end the output. */
int okv_json_print(struct json_t *value, size_t flags);
/** One whole number of an object. */
void okv_json_set(struct json_t *object, const char *name, uint64_t value);
/** Print "PROGRAM: text". Returns OKV_EXIT_FAILED. */
int okv_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/** Print "PROGRAM: text" and exit with 1. */
void okv_die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/** Print "PROGRAM: text" as a remark. */
void okv_note(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** A whole number in [@min, @max]; exits with 2 else. @option is as typed, "--slots". */
uint64_t okv_number(const char *option, const char *text, uint64_t min, uint64_t max);
/** A size; exits with 2 when it is none. */
uint64_t okv_size(const char *option, const char *text);

/* A bar on stderr for what takes over a second; silent where stderr is no terminal. */
struct okv_progress {
	const char	*what;
	uint64_t	start_ns;
	uint64_t	last_ns;
	bool		is_on;
	bool		is_shown;
};

void okv_progress_init(struct okv_progress *progress, const char *what);
/** @note is a short text behind the bar; may be NULL. */
void okv_progress_show(struct okv_progress *progress, uint64_t done, uint64_t total, const char *note);
/** Wipe the bar. */
void okv_progress_fini(struct okv_progress *progress);

/** A signal ends it early. */
void okv_pause_ns(uint64_t ns);
/** "1.5 GiB" and the like; @text holds at least 24 bytes. */
const char *okv_bytes_text(uint64_t bytes, char text[24]);
/** "1.50 ms" and the like; @text holds at least 24 bytes. */
const char *okv_ns_text(uint64_t ns, char text[24]);

#endif /* OKV_CMD_H */

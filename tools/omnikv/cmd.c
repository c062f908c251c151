// SPDX-License-Identifier: GPL-2.0-only
/*
 * What all sub-commands share: option errors of one line, numbers, progress bars. What each of them
 * does is left to cmd_NAME.c. One thread.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <jansson.h>

#include "clock.h"
#include "cmd.h"

static const char *okv_program = "omnikv";

/* One line, whatever stands in the names of files. */
static void okv_say(const char *format, va_list args)
{
	char text[2048];
	size_t i;

	vsnprintf(text, sizeof(text), format, args);
	fprintf(stderr, "%s: ", okv_program);
	for (i = 0; text[i]; i++) {
		if ((unsigned char)text[i] < ' ' || text[i] == 0x7f)
			fprintf(stderr, "\\x%02x", (unsigned char)text[i]);
		else
			fputc(text[i], stderr);
	}
	fputc('\n', stderr);
}

void okv_usage(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	okv_say(format, args);
	va_end(args);
	exit(OKV_EXIT_USAGE);
}

void okv_die(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	okv_say(format, args);
	va_end(args);
	exit(OKV_EXIT_FAILED);
}

int okv_fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	okv_say(format, args);
	va_end(args);
	return OKV_EXIT_FAILED;
}

void okv_note(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	okv_say(format, args);
	va_end(args);
}

int okv_output_end(int error)
{
	static bool is_said;

	errno = error;
	if (!fflush(stdout) && !error && !ferror(stdout))
		return OKV_EXIT_DONE;
	if (!is_said)
		okv_note("the output cannot be written%s%s", errno ? ": " : "", errno ? strerror(errno) : "");
	is_said = true;
	return OKV_EXIT_FAILED;
}

int okv_json_print(json_t *value, size_t flags)
{
	int ret = json_dumpf(value, stdout, flags), error = errno;

	putchar('\n');
	json_decref(value);
	return okv_output_end(!ret ? 0 : error ? error : EIO);
}

void okv_json_set(json_t *object, const char *name, uint64_t value)
{
	json_object_set_new(object, name, json_integer((json_int_t)value));
}

/* --help and --usage are argp's own. */
static bool okv_is_builtin(const char *name, size_t len)
{
	return (len == 4 && !strncmp(name, "help", 4)) || (len == 5 && !strncmp(name, "usage", 5));
}

/* The option that --@name is or is short for; NULL: none, or several. */
static const struct argp_option *okv_long_option(const struct argp *argp, const char *name, size_t len)
{
	const struct argp_option *opt, *found = NULL;
	int nr = 0;

	for (opt = argp->options; opt && (opt->name || opt->key || opt->doc); opt++) {
		if (!opt->name || strncmp(opt->name, name, len))
			continue;
		if (!opt->name[len])
			return opt;
		found = opt;
		nr++;
	}
	return nr == 1 ? found : NULL;
}

static const struct argp_option *okv_short_option(const struct argp *argp, char key)
{
	const struct argp_option *opt;

	for (opt = argp->options; opt && (opt->name || opt->key || opt->doc); opt++) {
		if (opt->key == key)
			return opt;
	}
	return NULL;
}

/* Words that the option at argv[@idx] takes, itself included. */
static int okv_option_words(const struct argp *argp, int argc, char **argv, int idx)
{
	const char *text = argv[idx], *value;
	const struct argp_option *opt;
	size_t len;

	if (text[1] == '-') {
		len = strcspn(text + 2, "=");
		value = text[2 + len] ? text + 3 + len : NULL;
		if (okv_is_builtin(text + 2, len))
			return 1;
		opt = okv_long_option(argp, text + 2, len);
	} else {
		len = 0;
		value = text[2] ? text + 2 : NULL;
		if (text[1] == '?')
			return 1;
		opt = okv_short_option(argp, text[1]);
	}

	if (!opt)
		okv_usage("unknown option '%s'; see '%s --help'", text, argv[0]);
	/* A value that may be left out stands behind "=". */
	if (opt->arg && opt->flags & OPTION_ARG_OPTIONAL)
		return 1;
	if (opt->arg && !value && idx + 1 == argc)
		okv_usage("option %s needs a value (%s); see '%s --help'", text, opt->arg, argv[0]);
	if (!opt->arg && value)
		okv_usage("option '%s' takes no value; see '%s --help'", text, argv[0]);
	return opt->arg && !value ? 2 : 1;
}

void okv_cmd_parse(const struct argp *argp, int argc, char **argv, void *input)
{
	int idx, ret;

	okv_program = argv[0];
	/* argp would need two lines for each of these. */
	for (idx = 1; idx < argc;) {
		if (!strcmp(argv[idx], "--")) {
			if (!argp->args_doc && idx + 1 < argc)
				okv_usage("unexpected '%s'; see '%s --help'", argv[idx + 1], argv[0]);
			break;
		}
		if (argv[idx][0] == '-' && argv[idx][1])
			idx += okv_option_words(argp, argc, argv, idx);
		else if (argp->args_doc)
			idx++;
		else
			okv_usage("unexpected '%s'; see '%s --help'", argv[idx], argv[0]);
	}

	argp_err_exit_status = OKV_EXIT_USAGE;
	ret = argp_parse(argp, argc, argv, 0, NULL, input);
	if (ret)
		okv_usage("options cannot be read: %s", strerror(ret));
}

uint64_t okv_number(const char *option, const char *text, uint64_t min, uint64_t max)
{
	unsigned long long value;
	char *end;

	errno = 0;
	value = strtoull(text, &end, 10);
	if (text[0] < '0' || text[0] > '9' || *end || errno || value < min || value > max)
		okv_usage("%s: '%s' is no whole number from %llu to %llu", option, text, (unsigned long long)min,
			  (unsigned long long)max);
	return value;
}

uint64_t okv_size(const char *option, const char *text)
{
	struct omnikv_error err = { "" };
	uint64_t bytes = 0;

	if (omnikv_size_parse(text, &bytes, &err))
		okv_usage("%s: %s", option, err.text);
	return bytes;
}

void okv_progress_init(struct okv_progress *progress, const char *what)
{
	*progress = (struct okv_progress) {
		.what		= what,
		.start_ns	= okv_monotonic_ns(),
		.is_on		= isatty(STDERR_FILENO),
	};
}

void okv_progress_show(struct okv_progress *progress, uint64_t done, uint64_t total, const char *note)
{
	static const char bar[] = "##############################";
	uint64_t now, width;

	if (!progress->is_on)
		return;
	now = okv_monotonic_ns();
	if (now - progress->start_ns < 1000000000 || now - progress->last_ns < 100000000)
		return;
	progress->last_ns = now;
	progress->is_shown = true;
	width = total ? (uint64_t)((double)done / (double)total * (sizeof(bar) - 1)) : 0;
	fprintf(stderr, "\r%s [%-*.*s] %3.0f %%  %s\033[K", progress->what, (int)sizeof(bar) - 1, (int)width, bar,
		total ? 100.0 * (double)done / (double)total : 0.0, note ? note : "");
	fflush(stderr);
}

void okv_progress_fini(struct okv_progress *progress)
{
	if (progress->is_shown)
		fputs("\r\033[K", stderr);
	progress->is_shown = false;
}

void okv_pause_ns(uint64_t ns)
{
	struct timespec ts = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

	nanosleep(&ts, NULL);
}

/* In the first unit whole, in others with two digits. */
static const char *scaled(uint64_t number, double step, const char *const *units, char text[24])
{
	double value = (double)number;
	int i = 0;

	for (; value >= step && units[i + 1]; i++)
		value /= step;
	snprintf(text, 24, i ? "%.2f %s" : "%.0f %s", value, units[i]);
	return text;
}

const char *okv_bytes_text(uint64_t bytes, char text[24])
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", NULL };

	return scaled(bytes, 1024, units, text);
}

const char *okv_ns_text(uint64_t ns, char text[24])
{
	static const char *const units[] = { "ns", "us", "ms", "s", NULL };

	return scaled(ns, 1000, units, text);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * omnikvd: options, signals, and the order of a daemon's life.
 *
 * Owns what the operator sees: settings, messages, exit status. The pool and its clients are daemon.c's
 * and the services'. One thread.
 */
#include <argp.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <syslog.h>
#include <unistd.h>

#include <omnikv/version.h>

#include "daemon.h"

#define EXIT_DONE	0
#define EXIT_FAILED	1
#define EXIT_USAGE	2
#define KEY_SETTING	1000
#define SETTINGS_MAX	32

static struct okv_daemon omnikvd = { .listen_fd = -1, .lock_fd = -1 };
static const char *config_path;

static void say(void *opaque, int priority, const char *line)
{
	(void)opaque;
	(void)priority;
	fprintf(stderr, "omnikvd: %s\n", line);
}

static void complain(void *opaque, const char *line)
{
	say(opaque, LOG_ERR, line);
}

static void notice(void *opaque, const char *line)
{
	say(opaque, LOG_NOTICE, line);
}

/* ---- options ---------------------------------------------------------------------------- */

/* Settings of the command line, to be applied over those of the file. */
struct overrides {
	const char	*values[SETTINGS_MAX];
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct overrides *overrides = state->input;

	if (key == 'c') {
		config_path = arg;
		return 0;
	}
	if (key >= KEY_SETTING && key < KEY_SETTING + SETTINGS_MAX) {
		overrides->values[key - KEY_SETTING] = arg;
		return 0;
	}
	if (key == ARGP_KEY_ARG) {
		fprintf(stderr, "omnikvd: unexpected '%s'; see 'omnikvd --help'\n", arg);
		exit(EXIT_USAGE);
	}
	return ARGP_ERR_UNKNOWN;
}

/* Defaults, then the file, then the command line. */
static int read_settings(const struct overrides *overrides, struct okv_daemon_config *config)
{
	const char *name, *arg, *help;
	struct omnikv_error err = { "" };
	char line[300];
	uint32_t i;
	int ret = okv_config_init(config);

	if (!ret && config_path)
		ret = okv_config_read(config, config_path, complain, NULL);
	for (i = 0; !ret && okv_config_describe(i, &name, &arg, &help); i++) {
		if (!overrides->values[i])
			continue;
		ret = okv_config_set(config, name, overrides->values[i], &err);
		if (ret) {
			snprintf(line, sizeof(line), "--%s", err.text);
			complain(NULL, line);
		}
	}
	if (!ret && !config->pool) {
		complain(NULL, "no pool; write --pool SIZE, or pool = SIZE in the file of --config");
		ret = -EINVAL;
	}
	return ret;
}

static void parse(int argc, char **argv, struct overrides *overrides)
{
	static struct argp_option options[SETTINGS_MAX + 2] = {
		{ "config", 'c', "FILE", 0, "read settings from this file; options go before it", 0 },
	};
	static const struct argp argp = {
		options, parse_option, NULL,
		"Keeps a pool of KV cache for the engines of this host, warm over their restarts and its own.\v"
		"Sizes are bytes, or K, M, G, T for powers of 1024. SIGHUP reads the file again; SIGTERM ends the "
		"daemon within seconds. Exit status: 0 done, 1 failed, 2 wrong usage.", NULL, NULL, NULL,
	};
	const char *name, *arg, *help;
	uint32_t i;

	for (i = 0; okv_config_describe(i, &name, &arg, &help); i++)
		options[i + 1] = (struct argp_option){ name, KEY_SETTING + (int)i, arg, 0, help, 0 };
	argp_program_version = "omnikvd " OMNIKV_VERSION;
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, overrides);
}

/* ---- signals ---------------------------------------------------------------------------- */

static void signal_ready(struct okv_server *server, int fd, void *opaque)
{
	struct signalfd_siginfo info;

	(void)opaque;
	while (read(fd, &info, sizeof(info)) == sizeof(info))
		if (info.ssi_signo == SIGTERM || info.ssi_signo == SIGINT)
			okv_server_stop(server);
}

static int catch_signals(void)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	signal(SIGPIPE, SIG_IGN);
	if (sigprocmask(SIG_BLOCK, &set, NULL))
		return -errno;
	return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

static int serve(struct omnikv_error *err)
{
	struct okv_daemon *daemon = &omnikvd;
	int signal_fd = catch_signals(), ret;

	ret = signal_fd < 0 ? signal_fd : okv_daemon_find_group(daemon, err);
	if (!ret)
		ret = okv_daemon_open_socket(daemon, err);
	if (!ret)
		ret = okv_daemon_open_pool(daemon, -1, notice, err);
	if (!ret)
		ret = okv_daemon_serve(daemon, say, err);
	if (!ret)
		ret = okv_server_watch(daemon->server, signal_fd, signal_ready, NULL);
	if (!ret)
		ret = okv_server_run(daemon->server);
	okv_daemon_close(daemon);
	return ret;
}

int main(int argc, char **argv)
{
	struct overrides overrides = { { NULL } };
	struct omnikv_error err = { "" };
	int ret;

	parse(argc, argv, &overrides);
	if (read_settings(&overrides, &omnikvd.config))
		return EXIT_USAGE;
	ret = serve(&err);
	if (ret)
		complain(NULL, err.text[0] ? err.text : strerror(-ret));
	return ret ? EXIT_FAILED : EXIT_DONE;
}

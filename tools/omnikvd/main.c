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
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

#include <omnikv/version.h>

#include "clock.h"
#include "daemon.h"
#include "error.h"
#include "share.h"

#define EXIT_DONE	0
#define EXIT_FAILED	1
#define EXIT_USAGE	2
#define KEY_SETTING	1000
#define STOP_SECONDS	8

static struct okv_daemon omnikvd = { .listen_fd = -1, .lock_fd = -1 };
static const char *config_path;

static void say(void *opaque, int priority, const char *line)
{
	(void)opaque;
	/* The journal reads the priority; people do not. */
	if (getenv("JOURNAL_STREAM"))
		fprintf(stderr, "<%d>%s\n", priority, line);
	else
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
	const char	*values[OKV_SETTINGS_MAX];
};

static error_t parse_option(int key, char *arg, struct argp_state *state)
{
	struct overrides *overrides = state->input;

	if (key == 'c') {
		config_path = arg;
		return 0;
	}
	if (key >= KEY_SETTING && key < KEY_SETTING + OKV_SETTINGS_MAX) {
		overrides->values[key - KEY_SETTING] = arg;
		return 0;
	}
	return ARGP_ERR_UNKNOWN;
}

/* Defaults, then the file, then the command line. */
static int read_settings(const struct overrides *overrides, struct okv_daemon_config *config)
{
	const char *name, *arg, *help;
	struct omnikv_error err = { "" };
	char line[300];
	bool is_bad = false;
	uint32_t i;
	int ret = okv_config_init(config);

	if (!ret && config_path)
		ret = okv_config_read(config, config_path, complain, NULL);
	for (i = 0; !ret && okv_config_describe(i, &name, &arg, &help); i++) {
		int bad = overrides->values[i] ? okv_config_set(config, name, overrides->values[i], &err) : 0;

		if (!bad)
			continue;
		snprintf(line, sizeof(line), "--%s", bad == -ENOMEM ? strerror(ENOMEM) : err.text);
		complain(NULL, line);
		is_bad = true;
	}
	if (is_bad)
		ret = -EINVAL;
	if (ret)
		return ret;
	ret = okv_config_check(config, &err);
	if (ret)
		complain(NULL, err.text);
	return ret;
}

/* argp would need two lines for a mistake. */
static void check_words(int argc, char **argv)
{
	const char *name, *arg, *help;
	char line[160] = "";
	uint32_t k;
	int i;

	for (i = 1; i < argc && !line[0]; i++) {
		const char *word = argv[i];
		size_t len = strcspn(word, "=");
		bool needs_value = false, is_known;

		is_known = !strcmp(word, "--help") || !strcmp(word, "--usage") || !strcmp(word, "--version") ||
			   !strcmp(word, "-?") || !strcmp(word, "-V") || (!strncmp(word, "-c", 2) && word[1] == 'c');
		if (!strncmp(word, "-c", 2))
			needs_value = !word[2];
		for (k = 0; !is_known && !strncmp(word, "--", 2); k++) {
			bool is_more = okv_config_describe(k, &name, &arg, &help);

			if (!is_more)
				name = "config";
			if (strlen(name) == len - 2 && !strncmp(word + 2, name, len - 2)) {
				is_known = true;
				needs_value = !word[len];
			}
			if (!is_more)
				break;
		}
		if (!is_known)
			snprintf(line, sizeof(line), "unknown %s '%.64s'; see 'omnikvd --help'",
				 word[0] == '-' ? "option" : "word", word);
		else if (needs_value && ++i == argc)
			snprintf(line, sizeof(line), "option %.64s needs a value; see 'omnikvd --help'", word);
	}
	if (!line[0])
		return;
	complain(NULL, line);
	exit(EXIT_USAGE);
}

static void parse(int argc, char **argv, struct overrides *overrides)
{
	static struct argp_option options[OKV_SETTINGS_MAX + 2] = {
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
	check_words(argc, argv);
	argp_program_version = "omnikvd " OMNIKV_VERSION;
	argp_err_exit_status = EXIT_USAGE;
	argp_parse(&argp, argc, argv, 0, NULL, overrides);
}

/* ---- signals ---------------------------------------------------------------------------- */

/* The loop is woken by this; what for stands beside it. */
static int event_fd = -1;
static volatile sig_atomic_t is_serving, is_flushing, has_to_end, has_to_reload;
static struct overrides overrides;

static void on_signal(int number)
{
	const uint64_t one = 1;
	int error = errno;

	/* Too long, or told once more: nothing is lost by ending hard. */
	if (number == SIGALRM || (has_to_end && number != SIGHUP))
		_exit(is_flushing ? EXIT_DONE : EXIT_FAILED);
	/* Populating a pool can take minutes, and a start that is given up leaves nothing behind. */
	if (!is_serving && number != SIGHUP) {
		okv_daemon_unlink(&omnikvd);
		_exit(EXIT_DONE);
	}
	if (number == SIGHUP) {
		has_to_reload = 1;
	} else {
		/* Whatever holds the loop up. */
		alarm(STOP_SECONDS);
		has_to_end = 1;
	}
	if (write(event_fd, &one, sizeof(one)) < 0)
		errno = error;
	errno = error;
}

/* A page of the pool that is no longer this daemon's, or no longer there. The next one takes over what is in it. */
static void on_fault(int number)
{
	static const char line[] = "omnikvd: the pool's memory is out of reach: another manager took the pool over, or it was destroyed or "
				   "cut off; start the daemon again\n";
	ssize_t n = write(STDERR_FILENO, line, sizeof(line) - 1);

	(void)number;
	(void)n;
	okv_daemon_unlink(&omnikvd);
	_exit(EXIT_FAILED);
}

/* Clients get less then, where it was not the default. */
static void say_reserve(const struct okv_daemon *daemon)
{
	uint64_t bytes = okv_pool_reserve(daemon);
	struct omnikv_error line;
	char text[100];

	if (daemon->spec.kind == OKV_PROVIDER_KMOD || bytes == daemon->config.reserve_bytes || !okv_config_has(&daemon->config, "reserve"))
		return;
	snprintf(text, sizeof(text), "it is more than a 16th of the pool; each client keeps %llu bytes", (unsigned long long)bytes);
	okv_config_refuse(&daemon->config, "reserve", 0, text, &line);
	say(NULL, LOG_NOTICE, line.text);
}

/* From the file that --config names. */
static void read_again(struct okv_daemon *daemon)
{
	struct okv_daemon_config fresh = { 0 };
	struct omnikv_error fixed = { "" };
	int ret;

	ret = read_settings(&overrides, &fresh);
	/* A unit's socket is where it is, whatever the settings say. */
	if (!ret && !daemon->owns_socket)
		ret = okv_config_set(&fresh, "socket", daemon->config.socket, NULL);
	if (ret) {
		say(NULL, LOG_ERR, "the settings stay as they were");
	} else {
		if (okv_config_reload(&daemon->config, &fresh, &fixed)) {
			char line[sizeof(fixed.text) + 60];

			snprintf(line, sizeof(line), "%s cannot change while the daemon runs; restart it", fixed.text);
			say(NULL, LOG_WARNING, line);
		}
		say(NULL, LOG_INFO, "settings read again");
		say_reserve(daemon);
	}
	okv_config_fini(&fresh);
}

/* The service manager waits for both lines, whatever comes of it. */
static void reload(struct okv_daemon *daemon)
{
	okv_notify("RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)okv_monotonic_ns() / 1000);
	if (config_path)
		read_again(daemon);
	else
		say(NULL, LOG_NOTICE, "there is no file of settings to read again: none was given with --config");
	okv_notify("READY=1");
}

static void event_ready(struct okv_server *server, int fd, void *opaque)
{
	uint64_t nr;

	if (read(fd, &nr, sizeof(nr)) != sizeof(nr))
		return;
	if (has_to_reload) {
		has_to_reload = 0;
		reload(opaque);
	}
	if (has_to_end)
		okv_server_stop(server);
}

static int catch_signals(void)
{
	static const int numbers[] = { SIGTERM, SIGINT, SIGHUP, SIGALRM };
	struct sigaction action = { .sa_handler = on_signal }, fault = { .sa_handler = on_fault };
	size_t i;

	event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (event_fd < 0)
		return -errno;
	for (i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		if (sigaction(numbers[i], &action, NULL))
			return -errno;
	return sigaction(SIGBUS, &fault, NULL) ? -errno : 0;
}

/* ---- the watchdog ----------------------------------------------------------------------- */

static uint64_t watchdog_tick(struct okv_server *server, uint64_t now_ns)
{
	uint64_t every_ns = okv_notify_watchdog_ns();

	(void)server;
	if (!every_ns)
		return UINT64_MAX;
	okv_notify("WATCHDOG=1");
	return now_ns + every_ns;
}

static const struct okv_service watchdog = { .tick = watchdog_tick };

/* ---- descriptors of an earlier life ----------------------------------------------------- */

static struct okv_kept kept[OKV_KEPT_MAX];
static int nr_kept;

static int kept_fd(enum okv_kept_kind kind, uint32_t client_id)
{
	int i;

	for (i = 0; i < nr_kept; i++)
		if (kept[i].kind == kind && kept[i].client_id == client_id)
			return kept[i].fd;
	return -1;
}

/* The unit says where it listens, whatever the settings say. */
static int take_socket(struct okv_daemon *daemon, int fd)
{
	struct sockaddr_un addr = { 0 };
	socklen_t len = sizeof(addr);
	char *path;

	if (getsockname(fd, (struct sockaddr *)&addr, &len))
		return -errno;
	path = strndup(addr.sun_path, sizeof(addr.sun_path));
	if (!path)
		return -ENOMEM;
	free(daemon->config.socket);
	daemon->config.socket = path;
	daemon->listen_fd = fd;
	return 0;
}

/* Is it of use from now on? What is not would stay in the store, and in memory, for as long as the unit is there. */
static bool is_used(const struct okv_daemon *daemon, const struct okv_kept *one)
{
	int i;

	if (one->kind == OKV_KEPT_POOL)
		return daemon->spec.kind == OKV_PROVIDER_EMBEDDED && !daemon->spec.name;
	for (i = 0; i < nr_kept; i++)
		if (kept[i].kind == OKV_KEPT_PEER && kept[i].fd >= 0 && kept[i].client_id == one->client_id)
			return true;
	return false;
}

/* Peers go on where they were; what cannot is dropped, and its client comes back by itself. */
static void adopt_peers(struct okv_daemon *daemon)
{
	int i, nr = 0;
	char line[80];

	for (i = 0; i < nr_kept; i++) {
		if (kept[i].kind != OKV_KEPT_PEER)
			continue;
		if (okv_pool_adopt(daemon, &kept[i], kept_fd(OKV_KEPT_LEASES, kept[i].client_id))) {
			okv_notify_drop(&kept[i]);
			close(kept[i].fd);
			kept[i].fd = -1;
		} else {
			nr++;
		}
	}
	for (i = 0; i < nr_kept; i++) {
		if (kept[i].kind != OKV_KEPT_LEASES && kept[i].kind != OKV_KEPT_NONE && kept[i].kind != OKV_KEPT_POOL)
			continue;
		if (kept[i].kind != OKV_KEPT_NONE && !is_used(daemon, &kept[i]))
			okv_notify_drop(&kept[i]);
		close(kept[i].fd);
	}
	snprintf(line, sizeof(line), "goes on with %d connections", nr);
	if (nr)
		say(NULL, LOG_INFO, line);
}

/* The socket stays. Engines are told that their pool is gone, and attach to the new one. */
static void drop_kept(void)
{
	int i;

	for (i = 0; i < nr_kept; i++) {
		if (kept[i].kind == OKV_KEPT_LISTEN)
			continue;
		if (kept[i].kind != OKV_KEPT_NONE)
			okv_notify_drop(&kept[i]);
		close(kept[i].fd);
		kept[i] = (struct okv_kept){ .kind = OKV_KEPT_NONE, .fd = -1 };
	}
}

/*
 * Memory of an earlier life that the settings or this version do not go with is given up: the next start would
 * fail as well, and the service manager gives it up after a few of those.
 */
static int open_pool(struct okv_daemon *daemon, struct omnikv_error *err)
{
	int fd = kept_fd(OKV_KEPT_POOL, 0), ret;
	char line[320];

	ret = okv_daemon_open_pool(daemon, fd, notice, err);
	if (ret != -EBADMSG || fd < 0 || daemon->pool)
		return ret;
	snprintf(line, sizeof(line), "%.240s; it is given up, and the cache starts empty", err->text);
	say(NULL, LOG_WARNING, line);
	drop_kept();
	*err = (struct omnikv_error){ "" };
	return okv_daemon_open_pool(daemon, -1, notice, err);
}

/* For whoever started it by hand, or reads the journal. */
static void say_ready(const struct okv_daemon *daemon)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };
	char line[256];

	if (!isatty(STDERR_FILENO) && !getenv("JOURNAL_STREAM"))
		return;
	if (daemon->manager)
		omnikv_manager_stats(daemon->manager, &stats);
	snprintf(line, sizeof(line), "serves %.100s on %.100s, %llu blocks cached", daemon->config.pool,
		 daemon->config.socket, (unsigned long long)stats.nr_blocks);
	say(NULL, LOG_INFO, line);
}

/* ---- a life ----------------------------------------------------------------------------- */

/* Memory that nobody keeps goes with this process: what its blocks hold goes to the store first. */
static bool is_memory_lost(const struct okv_daemon *daemon)
{
	return daemon->spec.kind == OKV_PROVIDER_EMBEDDED && !daemon->spec.name && !getenv("NOTIFY_SOCKET");
}

static int serve(struct omnikv_error *err)
{
	struct okv_daemon *daemon = &omnikvd;
	int fd, ret;

	signal(SIGPIPE, SIG_IGN);
	nr_kept = okv_notify_kept(kept, OKV_KEPT_MAX);
	if (nr_kept < 0)
		return okv_error_set(err, nr_kept, "descriptors of the service manager: %s", strerror(-nr_kept));
	fd = kept_fd(OKV_KEPT_LISTEN, 0);
	ret = fd < 0 ? 0 : take_socket(daemon, fd);
	if (!ret)
		ret = catch_signals();
	if (!ret)
		ret = okv_daemon_find_group(daemon, err);
	if (!ret)
		ret = okv_daemon_listen(daemon, say, err);
	if (!ret)
		ret = open_pool(daemon, err);
	is_serving = 1;
	if (!ret)
		ret = okv_daemon_serve(daemon, err);
	if (!ret)
		ret = okv_server_watch(daemon->server, event_fd, event_ready, daemon);
	if (ret)
		goto out;
	if (daemon->spec.kind == OKV_PROVIDER_EMBEDDED && !daemon->spec.name) {
		struct okv_kept pool = { .kind = OKV_KEPT_POOL, .fd = okv_share_fd(daemon->pool) };

		if (kept_fd(OKV_KEPT_POOL, 0) < 0)
			okv_notify_keep(&pool);
	}
	adopt_peers(daemon);
	okv_server_add(daemon->server, &watchdog);
	okv_notify("READY=1\nSTATUS=serving %s", daemon->config.socket);
	say_reserve(daemon);
	say_ready(daemon);
	ret = okv_server_run(daemon->server);
	okv_notify("STOPPING=1");
out:
	okv_daemon_close(daemon);
	is_flushing = !ret;
	okv_daemon_close_store(daemon, !ret && is_memory_lost(daemon));
	return ret;
}

int main(int argc, char **argv)
{
	struct omnikv_error err = { "" };
	int ret;

	parse(argc, argv, &overrides);
	if (read_settings(&overrides, &omnikvd.config))
		return EXIT_USAGE;
	ret = serve(&err);
	if (ret)
		complain(NULL, err.text[0] ? err.text : strerror(-ret));
	return ret == -EINVAL ? EXIT_USAGE : ret ? EXIT_FAILED : EXIT_DONE;
}

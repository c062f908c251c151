// SPDX-License-Identifier: GPL-2.0-only
/*
 * Starting and ending of a real omnikvd. See daemon_case.h.
 *
 * The daemon is a child that dies with the test, and its directory is removed with it. What /proc says of
 * a process is read here too.
 */
#include "daemon_case.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "conn.h"

#define OPTIONS_MAX	32
#define START_MS	20000
#define STOP_MS		10000

uint64_t now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000 + (uint64_t)ts.tv_nsec / 1000000;
}

void sleep_ms(uint32_t ms)
{
	struct timespec ts = { ms / 1000, (long)(ms % 1000) * 1000000 };

	while (nanosleep(&ts, &ts) && errno == EINTR)
		;
}

/* build/tests/LANE/NAME runs build/bin/omnikvd. */
static void program_path(char *path, size_t size)
{
	char exe[PATH_MAX - 16];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	int i;

	assert_true(n > 0);
	exe[n] = '\0';
	for (i = 0; i < 3; i++) {
		char *slash = strrchr(exe, '/');

		assert_non_null(slash);
		*slash = '\0';
	}
	snprintf(path, size, "%s/bin/omnikvd", exe);
}

void daemon_case_init(struct daemon_case *daemon)
{
	memset(daemon, 0, sizeof(*daemon));
	snprintf(daemon->dir, sizeof(daemon->dir), "/tmp/omnikvd-test-XXXXXX");
	assert_non_null(mkdtemp(daemon->dir));
	snprintf(daemon->socket, sizeof(daemon->socket), "%s/sock", daemon->dir);
	snprintf(daemon->log, sizeof(daemon->log), "%s/log", daemon->dir);
}

void daemon_case_fini(struct daemon_case *daemon)
{
	struct dirent *entry;
	DIR *dir;

	daemon_kill(daemon);
	dir = opendir(daemon->dir);
	while (dir && (entry = readdir(dir)))
		unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
	rmdir(daemon->dir);
}

void daemon_spawn(struct daemon_case *daemon, const char *const *options)
{
	char *argv[OPTIONS_MAX + 4], path[PATH_MAX];
	int nr = 0, log;

	program_path(path, sizeof(path));
	argv[nr++] = path;
	argv[nr++] = (char *)(uintptr_t)"--socket";
	argv[nr++] = daemon->socket;
	for (; options && *options && nr < OPTIONS_MAX; options++)
		argv[nr++] = (char *)(uintptr_t)*options;
	argv[nr] = NULL;

	daemon->pid = fork();
	assert_true(daemon->pid >= 0);
	if (daemon->pid)
		return;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	log = open(daemon->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
	dup2(log, STDOUT_FILENO);
	dup2(log, STDERR_FILENO);
	if (daemon->fds_max) {
		struct rlimit limit = { (rlim_t)daemon->fds_max, (rlim_t)daemon->fds_max };

		setrlimit(RLIMIT_NOFILE, &limit);
	}
	if (daemon->before_exec && daemon->before_exec(daemon->opaque))
		_exit(126);
	execv(path, argv);
	_exit(127);
}

static void print_log(const struct daemon_case *daemon)
{
	char text[4096];
	int fd = open(daemon->log, O_RDONLY);
	ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof(text) - 1);

	if (fd >= 0)
		close(fd);
	if (n > 0)
		fprintf(stderr, "# omnikvd: %.*s\n", (int)n, text);
}

int daemon_connect(const struct daemon_case *daemon)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	memcpy(addr.sun_path, daemon->socket, strlen(daemon->socket));
	if (fd >= 0 && connect(fd, (struct sockaddr *)&addr, sizeof(addr))) {
		close(fd);
		fd = -1;
	}
	return fd;
}

void daemon_start(struct daemon_case *daemon, const char *const *options)
{
	uint64_t end = now_ms() + START_MS;
	struct okv_conn *conn = NULL;
	int fd;

	daemon_spawn(daemon, options);
	while ((fd = daemon_connect(daemon)) < 0) {
		if (daemon_is_dead(daemon) || now_ms() > end) {
			print_log(daemon);
			fail_msg("omnikvd does not start");
		}
		sleep_ms(5);
	}
	close(fd);
	/* It may be populating its pool yet. */
	okv_conn_open(daemon->socket, NULL, &conn, NULL);
	okv_conn_close(conn);
}

/* Its exit status; -1 when a signal ended it, or it had not ended after @ms and was killed. */
static int wait_for_end(struct daemon_case *daemon, uint64_t ms)
{
	uint64_t begin = now_ms();
	int status;

	while (waitpid(daemon->pid, &status, WNOHANG) != daemon->pid) {
		if (now_ms() - begin > ms) {
			daemon_kill(daemon);
			return -1;
		}
		sleep_ms(2);
	}
	daemon->pid = 0;
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int daemon_run(struct daemon_case *daemon, const char *const *options)
{
	daemon_spawn(daemon, options);
	return wait_for_end(daemon, START_MS);
}

bool daemon_is_dead(struct daemon_case *daemon)
{
	if (daemon->pid && waitpid(daemon->pid, NULL, WNOHANG) == daemon->pid)
		daemon->pid = 0;
	return !daemon->pid;
}

int daemon_stop(struct daemon_case *daemon, uint32_t *ms)
{
	uint64_t begin = now_ms();
	int status;

	assert_true(daemon->pid > 0);
	kill(daemon->pid, SIGTERM);
	status = wait_for_end(daemon, STOP_MS);
	if (ms)
		*ms = (uint32_t)(now_ms() - begin);
	return status;
}

void daemon_kill(struct daemon_case *daemon)
{
	if (!daemon->pid)
		return;
	kill(daemon->pid, SIGKILL);
	waitpid(daemon->pid, NULL, 0);
	daemon->pid = 0;
}

bool daemon_said(struct daemon_case *daemon, const char *text)
{
	static char log[1 << 20];
	int fd = open(daemon->log, O_RDONLY);
	ssize_t n = fd < 0 ? 0 : read(fd, log, sizeof(log) - 1);

	if (fd >= 0)
		close(fd);
	log[n > 0 ? n : 0] = '\0';
	return strstr(log, text) != NULL;
}

int process_fds(pid_t pid)
{
	struct dirent *entry;
	char path[64];
	int nr = 0;
	DIR *dir;

	snprintf(path, sizeof(path), "/proc/%d/fd", pid);
	dir = opendir(path);
	if (!dir)
		return -1;
	while ((entry = readdir(dir)))
		nr += entry->d_name[0] != '.';
	closedir(dir);
	return nr;
}

int process_maps(pid_t pid)
{
	char path[64];
	FILE *file;
	int c, nr = 0;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	file = fopen(path, "re");
	if (!file)
		return -1;
	while ((c = fgetc(file)) != EOF)
		nr += c == '\n';
	fclose(file);
	return nr;
}

long process_private_kib(pid_t pid)
{
	char path[64], line[128];
	long kib = -1;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/status", pid);
	file = fopen(path, "re");
	if (!file)
		return -1;
	while (fgets(line, sizeof(line), file))
		sscanf(line, "RssAnon: %ld", &kib);
	fclose(file);
	return kib;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Start, end and directory of a daemon of one's own; see own_daemon.h.
 *
 * The daemon dies with the thread that started it. It serves when it answers, not when it listens, so
 * starting it is waiting for that, with a deadline.
 */
#include "own_daemon.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "cmd.h"
#include "conn.h"
#include "error.h"

#define STEP_NS		5000000
#define START_NS	UINT64_C(180000000000)
#define STOP_NS		UINT64_C(15000000000)

/* A daemon listens before it has touched its memory: it serves when it answers. 0, or why not. */
static int ask(const char *path, struct omnikv_error *why)
{
	struct okv_conn *conn = NULL;
	int ret = okv_conn_open(path, NULL, &conn, why);

	okv_conn_close(conn);
	return ret;
}

/* omnikvd beside this program, or in the path. */
static void exec_daemon(const struct okv_own_daemon *daemon)
{
	char path[PATH_MAX + 16], granule[24], reserve[24];
	const char *argv[] = { "omnikvd", "--socket", daemon->socket, "--pool", daemon->pool, "--granule", granule, "--reserve", reserve,
			       "--hugetlb", daemon->with_hugetlb ? "yes" : "no", NULL };
	ssize_t len = readlink("/proc/self/exe", path, PATH_MAX - 1);
	char *slash;

	snprintf(reserve, sizeof(reserve), "%llu", (unsigned long long)daemon->reserve_bytes);
	snprintf(granule, sizeof(granule), "%u", daemon->granule_bytes);
	if (len > 0) {
		path[len] = '\0';
		slash = strrchr(path, '/');
		if (slash) {
			strcpy(slash + 1, "omnikvd");
			execv(path, (char *const *)argv);
		}
	}
	execvp("omnikvd", (char *const *)argv);
	_exit(127);
}

int okv_own_daemon_start(struct okv_own_daemon *daemon, struct omnikv_error *err)
{
	uint64_t deadline_ns = okv_monotonic_ns() + START_NS;
	struct omnikv_error why = { "" };
	int status, null_fd, ret;

	daemon->pid = fork();
	if (daemon->pid < 0) {
		daemon->pid = 0;
		return -errno;
	}
	if (!daemon->pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		null_fd = open("/dev/null", O_RDWR);
		if (null_fd >= 0)
			dup2(null_fd, STDOUT_FILENO);
		exec_daemon(daemon);
	}
	while ((ret = ask(daemon->socket, &why))) {
		if (daemon->ended_by && *daemon->ended_by)
			return -EINTR;
		if (waitpid(daemon->pid, &status, WNOHANG) == daemon->pid) {
			daemon->pid = 0;
			snprintf(err->text, sizeof(err->text), "omnikvd could not be started%s",
				 WIFEXITED(status) && WEXITSTATUS(status) == 127 ? ": it is neither beside omnikv nor in PATH" : "");
			return -EIO;
		}
		/* It is there, and takes nobody. */
		if (ret == -EDQUOT)
			return okv_error_set(err, ret, "%s", why.text);
		if (okv_monotonic_ns() > deadline_ns)
			return okv_error_set(err, -ETIME, "omnikvd was started and does not answer: %.200s", why.text);
		okv_pause_ns(STEP_NS);
	}
	return 0;
}

void okv_own_daemon_stop(struct okv_own_daemon *daemon, int signal)
{
	uint64_t deadline_ns = okv_monotonic_ns() + STOP_NS;

	if (!daemon->pid)
		return;
	kill(daemon->pid, signal);
	while (waitpid(daemon->pid, NULL, WNOHANG) == 0) {
		if (okv_monotonic_ns() > deadline_ns)
			kill(daemon->pid, SIGKILL);
		okv_pause_ns(STEP_NS);
	}
	daemon->pid = 0;
}

static void remove_files(const char *path)
{
	struct dirent *entry;
	DIR *dir = opendir(path);

	while (dir && (entry = readdir(dir)))
		unlinkat(dirfd(dir), entry->d_name, 0);
	if (dir)
		closedir(dir);
	rmdir(path);
}

void okv_own_daemon_fini(struct okv_own_daemon *daemon)
{
	if (daemon->dir[0])
		remove_files(daemon->dir);
	daemon->dir[0] = '\0';
}

/* What commands that were killed have left in memory: their names say whose it was. */
static void remove_stale(const char *where, const char *command)
{
	char path[PATH_MAX], prefix[64];
	struct dirent *entry;
	DIR *dir = opendir(where);
	size_t len = (size_t)snprintf(prefix, sizeof(prefix), "omnikv-%s-", command);
	char *end;
	long pid;

	while (dir && (entry = readdir(dir))) {
		if (strncmp(entry->d_name, prefix, len))
			continue;
		pid = strtol(entry->d_name + len, &end, 10);
		if (*end != '-' || pid <= 0 || pid > INT_MAX || !kill((pid_t)pid, 0) || errno != ESRCH)
			continue;
		if (snprintf(path, sizeof(path), "%s/%s", where, entry->d_name) < (int)sizeof(path))
			remove_files(path);
	}
	if (dir)
		closedir(dir);
}

int okv_own_daemon_init(struct okv_own_daemon *daemon, const char *command)
{
	struct stat st;
	const char *where = !stat("/dev/shm", &st) && S_ISDIR(st.st_mode) ? "/dev/shm" : "/tmp";

	*daemon = (struct okv_own_daemon){ .pid = 0 };
	remove_stale(where, command);
	snprintf(daemon->dir, sizeof(daemon->dir), "%s/omnikv-%s-%d-XXXXXX", where, command, (int)getpid());
	if (!mkdtemp(daemon->dir)) {
		daemon->dir[0] = '\0';
		return -errno;
	}
	snprintf(daemon->socket, sizeof(daemon->socket), "%s/sock", daemon->dir);
	return 0;
}

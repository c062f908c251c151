// SPDX-License-Identifier: GPL-2.0-only
/*
 * Huge pages of the system, borrowed for a run.
 *
 * A child that does nothing else raises the system's count and holds one end of a pipe; when the
 * other end is closed, by us or by our death of whatever kind, it lowers the count by as much. Others
 * may change the count meanwhile: only the difference is given back. One thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

#define OKV_HUGE_FILE	"/proc/sys/vm/nr_hugepages"

static struct {
	pid_t	child;
	int	fd;
} okv_guard = { 0, -1 };

static int okv_count_read(unsigned long long *nr)
{
	char text[32] = "";
	int fd = open(OKV_HUGE_FILE, O_RDONLY | O_CLOEXEC);
	ssize_t len;

	if (fd < 0)
		return -errno;
	len = read(fd, text, sizeof(text) - 1);
	close(fd);
	if (len <= 0)
		return -EIO;
	*nr = strtoull(text, NULL, 10);
	return 0;
}

static int okv_count_write(unsigned long long nr)
{
	char text[32];
	int fd = open(OKV_HUGE_FILE, O_WRONLY | O_CLOEXEC), ret = 0, len;

	if (fd < 0)
		return errno == EACCES || errno == EROFS ? -EPERM : -errno;
	len = snprintf(text, sizeof(text), "%llu\n", nr);
	if (write(fd, text, (size_t)len) != len)
		ret = -errno;
	close(fd);
	return ret;
}

/* @nr more, all or none. */
static int okv_take(unsigned long long nr)
{
	unsigned long long before, after = 0;
	int ret;

	ret = okv_count_read(&before);
	if (!ret)
		ret = okv_count_write(before + nr);
	if (!ret)
		ret = okv_count_read(&after);
	if (!ret && after < before + nr) {
		okv_count_write(before);
		ret = -ENOMEM;
	}
	return ret;
}

static void okv_give_back(unsigned long long nr)
{
	unsigned long long now = 0;

	if (!okv_count_read(&now))
		okv_count_write(now > nr ? now - nr : 0);
}

/* The child: takes the pages, tells how that went, waits for the other's end, and gives back. */
static void okv_watch(uint64_t nr, int wait_fd, int tell_fd)
{
	char byte;
	int sig, ret;

	/* Signals of the terminal are for the other one; it ends, and then so does this. */
	setsid();
	for (sig = 1; sig < NSIG; sig++)
		signal(sig, SIG_IGN);
	ret = okv_take(nr);
	if (write(tell_fd, &ret, sizeof(ret)) != (ssize_t)sizeof(ret) && !ret) {
		okv_give_back(nr);
		_exit(1);
	}
	/* Whoever waits for our output must not wait for this process. */
	close(0);
	close(1);
	close(2);
	while (!ret && read(wait_fd, &byte, 1) < 0 && errno == EINTR)
		;
	if (!ret)
		okv_give_back(nr);
	_exit(0);
}

int okv_huge_reserve(uint64_t nr)
{
	int wait_fds[2], tell_fds[2], ret = -EIO;

	if (pipe2(wait_fds, O_CLOEXEC))
		return -errno;
	if (pipe2(tell_fds, O_CLOEXEC)) {
		ret = -errno;
		goto err_close_wait;
	}
	okv_guard.child = fork();
	if (okv_guard.child < 0) {
		ret = -errno;
		goto err_close_tell;
	}
	if (!okv_guard.child) {
		close(wait_fds[1]);
		close(tell_fds[0]);
		okv_watch(nr, wait_fds[0], tell_fds[1]);
	}
	close(wait_fds[0]);
	close(tell_fds[1]);
	okv_guard.fd = wait_fds[1];
	if (read(tell_fds[0], &ret, sizeof(ret)) != (ssize_t)sizeof(ret))
		ret = -EIO;
	close(tell_fds[0]);
	if (ret)
		okv_huge_release();
	return ret;

err_close_tell:
	close(tell_fds[0]);
	close(tell_fds[1]);
err_close_wait:
	close(wait_fds[0]);
	close(wait_fds[1]);
	return ret;
}

void okv_huge_release(void)
{
	if (okv_guard.fd < 0)
		return;
	close(okv_guard.fd);
	okv_guard.fd = -1;
	while (waitpid(okv_guard.child, NULL, 0) < 0 && errno == EINTR)
		;
}

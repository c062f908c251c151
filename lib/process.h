/* SPDX-License-Identifier: MIT */
/*
 * Is a process that holds a lock on its way out? Then the lock is worth a wait: the kernel takes the memory of a
 * killed process down before it lets go of its files.
 *
 * Header only. Any thread.
 */
#ifndef OKV_PROCESS_H
#define OKV_PROCESS_H

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* The kernel's PF_EXITING, among the flags of /proc/PID/stat. */
#define OKV_PROCESS_EXITING	0x4u

/** Has process @pid ended, or begun to end? False where that cannot be known. */
static inline bool okv_process_is_leaving(pid_t pid)
{
	char path[40], text[512], *at;
	unsigned int flags = 0;
	ssize_t n;
	int fd;

	if (pid <= 0)
		return false;
	if (kill(pid, 0) && errno == ESRCH)
		return true;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	n = read(fd, text, sizeof(text) - 1);
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	/* Behind the name, which may have anything in it: state, ppid, pgrp, session, tty, tpgid, flags. */
	at = strrchr(text, ')');
	return at && sscanf(at, ") %*c %*d %*d %*d %*d %*d %u", &flags) == 1 && (flags & OKV_PROCESS_EXITING);
}

#endif /* OKV_PROCESS_H */

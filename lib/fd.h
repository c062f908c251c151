/* SPDX-License-Identifier: MIT */
/*
 * Descriptors that the library keeps are never 0, 1 or 2.
 *
 * In a process with a closed standard stream a pool's file would get its number, and whatever
 * the program prints would land in the pool. Header only; any thread.
 */
#ifndef OKV_FD_H
#define OKV_FD_H

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/** @fd, or its copy above 2 in its place. What open() returned, and as open(): -1 with errno, with nothing left open. */
static inline int okv_fd_high(int fd)
{
	int high, error;

	if (fd < 0 || fd > 2)
		return fd;
	high = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	error = errno;
	close(fd);
	errno = error;
	return high;
}

#endif /* OKV_FD_H */

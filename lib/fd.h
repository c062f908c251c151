/* SPDX-License-Identifier: MIT */
/*
 * Descriptors that the library keeps are never 0, 1 or 2, and its files no longer than they may be.
 *
 * In a process with a closed standard stream a pool's file would get its number, and whatever
 * the program prints would land in the pool. A file that grows beyond the process's limit is a
 * signal before it is an error. Header only; any thread.
 */
#ifndef OKV_FD_H
#define OKV_FD_H

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/resource.h>
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

/** May this process have files of @bytes? @most, where it is not NULL: the limit (RLIMIT_FSIZE), or UINT64_MAX. */
static inline bool okv_fd_may_have(uint64_t bytes, uint64_t *most)
{
	struct rlimit limit;
	uint64_t all = getrlimit(RLIMIT_FSIZE, &limit) || limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;

	if (most)
		*most = all;
	return bytes <= all;
}

/** As ftruncate(); -1 with EFBIG where it would be a signal that ends the process (SIGXFSZ). */
static inline int okv_fd_resize(int fd, uint64_t bytes)
{
	if (okv_fd_may_have(bytes, NULL))
		return ftruncate(fd, (off_t)bytes);
	errno = EFBIG;
	return -1;
}

#endif /* OKV_FD_H */

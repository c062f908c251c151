// SPDX-License-Identifier: MIT
/*
 * The table of costs of copy paths, as text and as a file of the user's cache folder.
 *
 * A file is hostile until checked: it must be a plain file of this user that nobody else may write, small, and to the
 * byte what okv_cuda_costs_print() writes for the key in question; else it is as if it were not there. It is written
 * beside its place and renamed, so that no half of one is ever read. Any thread; pure but for load and save.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "crc32c.h"
#include "device_cuda.h"
#include "fd.h"

#define HEADER		"omnikv copy paths 2\n"
#define FILE_BYTES_MAX	16384
#define NS_MAX		1e9f

int okv_cuda_costs_print(const struct okv_cuda_costs *costs, const char *key, char *text, size_t bytes)
{
	int dir, size, count, len, at = snprintf(text, bytes, HEADER "%s\n", key);

	for (dir = 0; dir < OKV_NR_DIRECTIONS; dir++) {
		for (size = 0; size < OKV_PATH_SIZES; size++) {
			for (count = 0; count < OKV_PATH_COUNTS; count++) {
				const float *ns = costs->ns[dir][size][count];

				if (at < 0 || (size_t)at >= bytes)
					return -ENOSPC;
				len = snprintf(text + at, bytes - (size_t)at, "%d %d %d %.1f %.1f %.1f\n", dir, size, count,
					       (double)ns[0], (double)ns[1], (double)ns[2]);
				at += len;
			}
		}
	}
	if ((size_t)at + 10 > bytes)
		return -ENOSPC;
	return at + snprintf(text + at, bytes - (size_t)at, "%08x\n", okv_crc32c(text, (size_t)at));
}

/* The next number of @text, which ends with @end. */
static bool number(const char **text, char end, float *out)
{
	char *stop;

	if (!((**text >= '0' && **text <= '9')))
		return false;
	*out = strtof(*text, &stop);
	if (*stop != end || !isfinite(*out) || *out < 0 || *out > NS_MAX)
		return false;
	*text = stop + 1;
	return true;
}

int okv_cuda_costs_parse(struct okv_cuda_costs *out, const char *key, const char *text, size_t bytes)
{
	char copy[FILE_BYTES_MAX + 1], again[FILE_BYTES_MAX + 1];
	struct okv_cuda_costs costs = { 0 };
	const char *at = copy;
	float place[3];
	int dir, size, count, i, len;

	if (bytes > FILE_BYTES_MAX)
		return -EBADMSG;
	memcpy(copy, text, bytes);
	copy[bytes] = '\0';
	if (strncmp(at, HEADER, strlen(HEADER)))
		return -EBADMSG;
	at = strchr(at + strlen(HEADER), '\n');
	if (!at)
		return -EBADMSG;
	at++;
	for (dir = 0; dir < OKV_NR_DIRECTIONS; dir++) {
		for (size = 0; size < OKV_PATH_SIZES; size++) {
			for (count = 0; count < OKV_PATH_COUNTS; count++) {
				for (i = 0; i < 3; i++) {
					if (!number(&at, ' ', &place[i]))
						return -EBADMSG;
				}
				for (i = 0; i < OKV_NR_PATHS; i++) {
					if (!number(&at, i + 1 < OKV_NR_PATHS ? ' ' : '\n', &costs.ns[dir][size][count][i]))
						return -EBADMSG;
				}
			}
		}
	}
	/* What it says must be what would be written, key, order and checksum included. */
	len = okv_cuda_costs_print(&costs, key, again, sizeof(again));
	if (len < 0 || (size_t)len != bytes || memcmp(again, text, bytes))
		return -EBADMSG;
	*out = costs;
	return 0;
}

/* $XDG_CACHE_HOME or ~/.cache, and omnikv in it. */
static int cache_path(const char *name, char *path, size_t bytes, bool is_made)
{
	const char *base = secure_getenv("XDG_CACHE_HOME"), *home;
	int len;

	if (base && base[0] == '/') {
		len = snprintf(path, bytes, "%s", base);
	} else {
		home = secure_getenv("HOME");
		if (!home || home[0] != '/')
			return -ENOENT;
		len = snprintf(path, bytes, "%s/.cache", home);
	}
	if (len < 0 || (size_t)len + strlen(name) + 16 > bytes)
		return -ENAMETOOLONG;
	if (is_made)
		mkdir(path, 0700);
	strcat(path, "/omnikv");
	if (is_made)
		mkdir(path, 0700);
	strcat(path, "/");
	strcat(path, name);
	return 0;
}

int okv_cuda_costs_load(struct okv_cuda_costs *costs, const char *key, const char *name)
{
	char path[4096], text[FILE_BYTES_MAX];
	struct stat st;
	ssize_t got;
	int fd, ret = cache_path(name, path, sizeof(path), false);

	if (ret)
		return ret;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
	if (fd < 0)
		return -errno;
	if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid() || st.st_mode & (S_IWGRP | S_IWOTH) ||
	    st.st_size <= 0 || st.st_size > FILE_BYTES_MAX) {
		close(fd);
		return -EBADMSG;
	}
	got = read(fd, text, (size_t)st.st_size);
	close(fd);
	return got == st.st_size ? okv_cuda_costs_parse(costs, key, text, (size_t)got) : -EBADMSG;
}

int okv_cuda_costs_save(const struct okv_cuda_costs *costs, const char *key, const char *name)
{
	char path[4096], beside[4096 + 16], text[FILE_BYTES_MAX];
	int fd, len, ret = cache_path(name, path, sizeof(path), true);

	if (ret)
		return ret;
	len = okv_cuda_costs_print(costs, key, text, sizeof(text));
	if (len < 0)
		return len;
	snprintf(beside, sizeof(beside), "%s.XXXXXX", path);
	/* Of mode 0600. */
	fd = mkostemp(beside, O_CLOEXEC);
	if (fd < 0)
		return -errno;
	/* Beyond the limit it would be a signal. */
	if (!okv_fd_may_have((uint64_t)len, NULL))
		ret = -EFBIG;
	else if (write(fd, text, (size_t)len) != len || fsync(fd))
		ret = -EIO;
	if (ret) {
		close(fd);
	} else if (close(fd) || rename(beside, path)) {
		ret = -errno;
	}
	if (ret)
		unlink(beside);
	return ret;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * A stand-in for libcufile on this machine's memory: it counts what it is asked for, and fails as told.
 * Built as a library of its own, which tests let omnikv load. One thread.
 */
#include <errno.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

struct status {
	int	error;
	int	cuda_error;
};

struct descr {
	int		type;
	union {
		int	fd;
		void	*handle;
	}		handle;
	const void	*fs_ops;
};

static struct {
	long	drivers, handles, reads;	/* open now, ever */
	long	fail_driver, fail_handle;
	long	shorten;			/* reads stop after so many bytes */
	long	fail_read;			/* the so-manieth from now; 0: none */
	int	fds[16];
} fake;

#define EXPORT __attribute__((visibility("default")))

EXPORT long fake_cufile_get(const char *key);
EXPORT void fake_cufile_set(const char *key, long value);
EXPORT struct status cuFileDriverOpen(void);
EXPORT struct status cuFileDriverClose(void);
EXPORT struct status cuFileHandleRegister(void **handle, struct descr *descr);
EXPORT void cuFileHandleDeregister(void *handle);
EXPORT ssize_t cuFileRead(void *handle, void *base, size_t bytes, off_t file_off, off_t base_off);

static long *field(const char *key)
{
	return !strcmp(key, "drivers") ? &fake.drivers : !strcmp(key, "handles") ? &fake.handles :
	       !strcmp(key, "reads") ? &fake.reads : !strcmp(key, "fail_driver") ? &fake.fail_driver :
	       !strcmp(key, "fail_handle") ? &fake.fail_handle : !strcmp(key, "shorten") ? &fake.shorten : &fake.fail_read;
}

long fake_cufile_get(const char *key)
{
	return *field(key);
}

void fake_cufile_set(const char *key, long value)
{
	*field(key) = value;
}

struct status cuFileDriverOpen(void)
{
	struct status status = { fake.fail_driver ? 5001 : 0, 0 };

	fake.drivers += !fake.fail_driver;
	return status;
}

struct status cuFileDriverClose(void)
{
	struct status status = { 0, 0 };

	fake.drivers--;
	return status;
}

struct status cuFileHandleRegister(void **handle, struct descr *descr)
{
	struct status status = { fake.fail_handle || descr->type != 1 || fake.handles == 16 ? 5027 : 0, 0 };

	if (!status.error) {
		fake.fds[fake.handles] = descr->handle.fd;
		*handle = &fake.fds[fake.handles++];
	}
	return status;
}

void cuFileHandleDeregister(void *handle)
{
	(void)handle;
	fake.handles--;
}

ssize_t cuFileRead(void *handle, void *base, size_t bytes, off_t file_off, off_t base_off)
{
	fake.reads++;
	if (fake.fail_read && !--fake.fail_read) {
		errno = EIO;
		return -5011;
	}
	if (fake.shorten && bytes > (size_t)fake.shorten)
		bytes = fake.shorten;
	return pread(*(int *)handle, (char *)base + base_off, bytes, file_off);
}

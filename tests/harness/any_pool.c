// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pools of the provider under test. See any_pool.h.
 *
 * One of the module's is transient and lives as long as the library's own descriptor of it, so
 * that a test that dies leaves none behind.
 */
#include "any_pool.h"

#include "daemon_case.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static bool provider_is(const char *name)
{
	const char *provider = getenv("OMNIKV_TEST_PROVIDER");

	return provider && !strcmp(provider, name);
}

bool any_pool_is_kmod(void)
{
	return provider_is("kmod");
}

static struct daemon_case the_daemon;

static void end_daemon(void)
{
	if (the_daemon.dir[0])
		daemon_case_fini(&the_daemon);
	the_daemon.dir[0] = '\0';
}

static const char *daemon_spec(const char *size, const char *granule)
{
	const char *const options[] = {
		"--pool", size, "--granule", granule, "--manager", "no", "--reserve", "0", NULL,
	};
	static char spec[128];
	static bool is_registered;

	if (!is_registered && atexit(end_daemon))
		abort();
	is_registered = true;
	end_daemon();
	daemon_case_init(&the_daemon);
	daemon_start(&the_daemon, options);
	snprintf(spec, sizeof(spec), "daemon:%s", the_daemon.socket);
	return spec;
}

const char *any_pool_spec(const char *arg)
{
	return !strncmp(arg, "omnikvd:", 8) ? daemon_spec(arg + 8, "4096") : arg;
}

void any_pool_may_fail(void)
{
	int fd;

	if (!getenv("OMNIKV_TEST_FAIL"))
		return;
	fd = open("/proc/self/make-it-fail", O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, "1", 1) != 1)
		fprintf(stderr, "# no fault injection here\n");
	if (fd >= 0)
		close(fd);
}

/* A descriptor of a new one, with which it ends, and how it is opened. */
static int kmod_pool_create(const char *size, uint32_t flags, uint32_t granule_bytes, char (*spec)[64])
{
	struct omnikv_ioc_pool_create req = {
		.flags = OMNIKV_CREATE_F_TRANSIENT | flags, .mode = 0600, .granule_bytes = granule_bytes,
	};
	static unsigned int number;
	uint64_t bytes;
	int dev, ret;

	ret = omnikv_size_parse(size, &bytes, NULL);
	if (ret)
		return ret;
	req.bytes = bytes;
	snprintf((char *)req.name, sizeof(req.name), "test-%d-%u", getpid(), number++);
	dev = open("/dev/omnikv", O_RDWR | O_CLOEXEC);
	if (dev < 0)
		return -errno;
	ret = ioctl(dev, OMNIKV_IOC_POOL_CREATE, &req) < 0 ? -errno : req.pool_fd;
	close(dev);
	snprintf(*spec, sizeof(*spec), "kmod:%s", (const char *)req.name);
	return ret;
}

static int kmod_pool_open(const char *size, const struct omnikv_pool_config *config, struct omnikv_pool **pool)
{
	char spec[64];
	int fd, ret;

	fd = kmod_pool_create(size, OMNIKV_CREATE_F_TRUSTED, config ? config->granule_bytes : 0, &spec);
	if (fd < 0)
		return fd;
	ret = omnikv_pool_open(spec, NULL, pool, NULL);
	close(fd);
	return ret;
}

const char *any_pool_of_daemons(const char *size, const char *dir)
{
	static char spec[160], name[64];
	static int fd = -1;

	if (fd >= 0)
		close(fd);
	fd = -1;
	if (any_pool_is_kmod()) {
		fd = kmod_pool_create(size, 0, 4096, &name);
		if (fd < 0) {
			fprintf(stderr, "# no pool of %s: %s\n", size, strerror(-fd));
			abort();
		}
		return name;
	}
	snprintf(spec, sizeof(spec), "embedded:%s:%s/pool", size, dir);
	unlink(strrchr(spec, ':') + 1);
	return spec;
}

int any_pool_open(const char *size, const struct omnikv_pool_config *config, struct omnikv_pool **pool)
{
	struct omnikv_error err = { "" };
	char granule[16];
	int ret;

	any_pool_may_fail();
	if (any_pool_is_kmod())
		return kmod_pool_open(size, config, pool);
	if (!provider_is("daemon"))
		return omnikv_pool_open(size, config, pool, NULL);
	snprintf(granule, sizeof(granule), "%u", config && config->granule_bytes ? config->granule_bytes : 4096);
	ret = omnikv_pool_open(daemon_spec(size, granule), NULL, pool, &err);
	if (ret)
		fprintf(stderr, "# %s\n", err.text);
	return ret;
}

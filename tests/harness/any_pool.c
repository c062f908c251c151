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

static int kmod_pool_open(const char *size, const struct omnikv_pool_config *config, struct omnikv_pool **pool)
{
	struct omnikv_ioc_pool_create req = {
		.flags = OMNIKV_CREATE_F_TRANSIENT | OMNIKV_CREATE_F_TRUSTED, .mode = 0600,
	};
	static unsigned int number;
	char spec[64];
	uint64_t bytes;
	int dev, ret;

	ret = omnikv_size_parse(size, &bytes, NULL);
	if (ret)
		return ret;
	req.bytes = bytes;
	req.granule_bytes = config ? config->granule_bytes : 0;
	snprintf((char *)req.name, sizeof(req.name), "test-%d-%u", getpid(), number++);
	dev = open("/dev/omnikv", O_RDWR | O_CLOEXEC);
	if (dev < 0)
		return -errno;
	if (ioctl(dev, OMNIKV_IOC_POOL_CREATE, &req) < 0) {
		ret = -errno;
		close(dev);
		return ret;
	}
	snprintf(spec, sizeof(spec), "kmod:%s", (const char *)req.name);
	ret = omnikv_pool_open(spec, NULL, pool, NULL);
	close(req.pool_fd);
	close(dev);
	return ret;
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

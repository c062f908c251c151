// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pools of the provider under test. See any_pool.h.
 *
 * One of the module's is transient and lives as long as the library's own descriptor of it, so
 * that a test that dies leaves none behind.
 */
#include "any_pool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

bool any_pool_is_kmod(void)
{
	const char *provider = getenv("OMNIKV_TEST_PROVIDER");

	return provider && !strcmp(provider, "kmod");
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
	return any_pool_is_kmod() ? kmod_pool_open(size, config, pool) : omnikv_pool_open(size, config, pool, NULL);
}

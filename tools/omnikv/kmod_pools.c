// SPDX-License-Identifier: GPL-2.0-only
/*
 * The kernel module as sub-commands see it. See kmod_pools.h.
 *
 * Figures come from sysfs, which everybody may read; holders from the device, which asks for the
 * right to open the pool.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "cmd.h"
#include "kmod_pools.h"

int okv_kmod_open(bool is_quiet)
{
	int dev = open("/dev/omnikv", O_RDWR | O_CLOEXEC);

	if (dev >= 0)
		return dev;
	if (errno != ENOENT && errno != ENXIO && errno != ENODEV)
		okv_note("cannot open /dev/omnikv: %s", strerror(errno));
	else if (!is_quiet)
		okv_note("the kernel module is not loaded (no /dev/omnikv); load it with modprobe omnikv");
	return -1;
}

int okv_kmod_call(int dev, unsigned long number, void *arg)
{
	return ioctl(dev, number, arg) < 0 ? -errno : 0;
}

int okv_kmod_pool(int dev, const char *name)
{
	struct omnikv_ioc_pool_open req = { 0 };
	size_t len = strlen(name);
	int ret = -EINVAL;

	if (len <= OMNIKV_NAME_MAX) {
		memcpy(req.name, name, len);
		ret = okv_kmod_call(dev, OMNIKV_IOC_POOL_OPEN, &req);
	}
	if (!ret)
		return req.pool_fd;
	if (ret == -ENOENT)
		okv_note("no pool '%s'; 'omnikv pool list' shows which there are", name);
	else if (ret == -EACCES)
		okv_note("pool '%s': its owner and mode do not let this user in", name);
	else if (ret == -EINVAL)
		okv_note("pool '%s': a name is 1 to 32 of the characters A-Z a-z 0-9 . _ -", name);
	else
		okv_note("pool '%s': %s", name, strerror(-ret));
	return -1;
}

static int compare(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

int okv_kmod_pool_names(char ***names)
{
	char **list = NULL, **more;
	struct dirent *entry;
	int nr = 0;
	DIR *dir;

	dir = opendir(OKV_SYSFS_POOLS);
	if (!dir)
		return -1;
	while ((entry = readdir(dir))) {
		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		more = realloc(list, (size_t)(nr + 1) * sizeof(*list));
		if (!more)
			break;
		list = more;
		list[nr] = strdup(entry->d_name);
		if (!list[nr])
			break;
		nr++;
	}
	closedir(dir);
	if (nr)
		qsort(list, (size_t)nr, sizeof(*list), compare);
	*names = list;
	return nr;
}

void okv_kmod_names_free(char **names, int nr)
{
	while (nr > 0)
		free(names[--nr]);
	free(names);
}

void okv_kmod_pool_text(const char *name, const char *file, char *text, int size)
{
	char path[256];
	FILE *stream;

	text[0] = '\0';
	snprintf(path, sizeof(path), OKV_SYSFS_POOLS "/%s/%s", name, file);
	stream = fopen(path, "re");
	if (!stream)
		return;
	if (fgets(text, size, stream))
		text[strcspn(text, "\n")] = '\0';
	fclose(stream);
}

uint64_t okv_kmod_pool_value(const char *name, const char *file)
{
	char text[64];

	okv_kmod_pool_text(name, file, text, sizeof(text));
	return strtoull(text, NULL, 10);
}

int okv_kmod_clients(int dev, int pool, struct omnikv_client_entry *entries, int max)
{
	struct omnikv_ioc_client_list req = { .pool_fd = pool };
	int nr = 0, ret;

	while (req.from != ~0ULL && nr < max) {
		req.count = max - nr < OMNIKV_BATCH_MAX ? (uint32_t)(max - nr) : OMNIKV_BATCH_MAX;
		req.entries = (uintptr_t)(entries + nr);
		ret = okv_kmod_call(dev, OMNIKV_IOC_CLIENT_LIST, &req);
		if (ret)
			return ret;
		nr += (int)req.count;
	}
	return nr;
}

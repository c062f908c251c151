// SPDX-License-Identifier: GPL-2.0-only
/*
 * Disks, commands and mapped devices of a guest; see guest.h.
 * Nothing is kept here; one thread.
 */
#include "tests/harness/guest.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <linux/fs.h>

static int run(const char *format, va_list args)
{
	char command[2048];

	vsnprintf(command, sizeof(command), format, args);
	fflush(stdout);
	return system(command);
}

int guest_shell(const char *format, ...)
{
	va_list args;
	int ret;

	va_start(args, format);
	ret = run(format, args);
	va_end(args);
	return ret;
}

bool guest_disk(uint32_t nr, char path[64])
{
	char file[64], serial[64], want[16];

	snprintf(want, sizeof(want), "okv%u", nr);
	for (uint32_t i = 0; i < 16; i++) {
		FILE *in;
		bool is_it;

		snprintf(file, sizeof(file), "/sys/block/nvme%un1/device/serial", i);
		in = fopen(file, "r");
		if (!in)
			continue;
		is_it = fscanf(in, "%60s", serial) == 1 && !strcmp(serial, want);
		fclose(in);
		if (is_it) {
			snprintf(path, 64, "/dev/nvme%un1", i);
			return true;
		}
	}
	return false;
}

uint64_t guest_sectors(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	uint64_t bytes = 0;

	if (fd < 0 || ioctl(fd, BLKGETSIZE64, &bytes))
		bytes = 0;
	if (fd >= 0)
		close(fd);
	return bytes / 512;
}

bool guest_modules(const char *names)
{
	return !guest_shell("modprobe crc32c_generic; for m in dm-mod %s; do modprobe $m || exit 1; done; mkdir -p /dev/mapper /run; "
			    "[ -e /dev/mapper/control ] || mknod /dev/mapper/control c 10 236", names);
}

static bool map(const char *name, const char *table, bool is_there)
{
	if (is_there)
		return !guest_shell("DM_DISABLE_UDEV=1 dmsetup reload %s --table '%s' && "
				    "DM_DISABLE_UDEV=1 dmsetup suspend --noflush --nolockfs %s && "
				    "DM_DISABLE_UDEV=1 dmsetup resume %s", name, table, name, name);
	return !guest_shell("DM_DISABLE_UDEV=1 dmsetup create %s --table '%s'", name, table);
}

bool guest_map(const char *name, const char *format, ...)
{
	char table[512];
	va_list args;

	va_start(args, format);
	vsnprintf(table, sizeof(table), format, args);
	va_end(args);
	return map(name, table, false);
}

bool guest_remap(const char *name, const char *format, ...)
{
	char table[512];
	va_list args;

	va_start(args, format);
	vsnprintf(table, sizeof(table), format, args);
	va_end(args);
	return map(name, table, true);
}

void guest_unmap(const char *name)
{
	/* The kernel lets go of a ring's file in its own time. */
	guest_shell("export DM_DISABLE_UDEV=1; i=0; while dmsetup info %s >/dev/null 2>&1 && ! dmsetup remove %s 2>/dev/null && "
		    "[ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done", name, name);
}

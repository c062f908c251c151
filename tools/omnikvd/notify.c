// SPDX-License-Identifier: GPL-2.0-only
/*
 * Messages to and descriptors from the service manager, by libsystemd. See notify.h.
 *
 * Names are parsed strictly: a descriptor that another program left in the store is none of ours.
 */
#include "notify.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "fd.h"

void okv_kept_name(const struct okv_kept *kept, char name[96])
{
	switch (kept->kind) {
	case OKV_KEPT_POOL:
		snprintf(name, 96, "pool");
		break;
	case OKV_KEPT_PEER:
		snprintf(name, 96, "peer.%u.%u.%" PRIx64 ".%x.%" PRIu64, kept->client_id, kept->version, kept->features,
			 kept->flags, kept->number);
		break;
	case OKV_KEPT_LEASES:
		snprintf(name, 96, "leases.%u", kept->client_id);
		break;
	default:
		name[0] = '\0';
	}
}

void okv_kept_parse(const char *name, struct okv_kept *kept)
{
	struct okv_kept parsed = { .kind = OKV_KEPT_NONE, .fd = kept->fd };
	char again[96];

	if (!strcmp(name, "pool"))
		parsed.kind = OKV_KEPT_POOL;
	else if (sscanf(name, "peer.%u.%u.%" SCNx64 ".%x.%" SCNu64, &parsed.client_id, &parsed.version,
			&parsed.features, &parsed.flags, &parsed.number) == 5)
		parsed.kind = OKV_KEPT_PEER;
	else if (sscanf(name, "leases.%u", &parsed.client_id) == 1)
		parsed.kind = OKV_KEPT_LEASES;
	/* Exactly what this program writes, and nothing behind it. */
	okv_kept_name(&parsed, again);
	if (strcmp(name, again))
		parsed = (struct okv_kept){ .kind = OKV_KEPT_NONE, .fd = kept->fd };
	*kept = parsed;
}

int okv_notify_kept(struct okv_kept *kept, uint32_t max)
{
	char **names = NULL;
	int nr, i;

	nr = sd_listen_fds_with_names(1, &names);
	for (i = 0; i < nr; i++) {
		struct okv_kept one = { .fd = SD_LISTEN_FDS_START + i };

		fcntl(one.fd, F_SETFD, FD_CLOEXEC);
		if (sd_is_socket(one.fd, AF_UNIX, SOCK_SEQPACKET, 1) > 0)
			one.kind = OKV_KEPT_LISTEN;
		else if (names && names[i])
			okv_kept_parse(names[i], &one);
		if ((uint32_t)i < max)
			kept[i] = one;
		else
			close(one.fd);
		if (names)
			free(names[i]);
	}
	free(names);
	return nr < 0 ? nr : nr < (int)max ? nr : (int)max;
}

void okv_notify_keep(const struct okv_kept *kept)
{
	char name[96], text[160];

	okv_kept_name(kept, name);
	/* Memory has nothing to poll; a connection that hung up may go by itself. */
	snprintf(text, sizeof(text), "FDSTORE=1\nFDNAME=%s%s", name, kept->kind == OKV_KEPT_PEER ? "" : "\nFDPOLL=0");
	sd_pid_notify_with_fds(0, 0, text, &kept->fd, 1);
}

void okv_notify_drop(const struct okv_kept *kept)
{
	char name[96];

	okv_kept_name(kept, name);
	okv_notify("FDSTOREREMOVE=1\nFDNAME=%s", name);
}

void okv_notify(const char *format, ...)
{
	char text[512];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	sd_notify(0, text);
}

uint64_t okv_notify_watchdog_ns(void)
{
	uint64_t usec = 0;

	return sd_watchdog_enabled(0, &usec) > 0 ? usec * 1000 / 2 : 0;
}

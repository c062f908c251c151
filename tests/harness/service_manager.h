/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Plays the service manager for an omnikvd: its socket, its notifications, its store of descriptors.
 *
 * Owns the listening socket and what the daemon stored; a thread of its own takes messages. As systemd
 * does, it drops a stored connection that hung up, and hands all that it has to the next daemon.
 */
#ifndef TESTS_SERVICE_MANAGER_H
#define TESTS_SERVICE_MANAGER_H

#include <pthread.h>
#include <stdatomic.h>

#include "daemon_case.h"

#define STORED_MAX	512

struct service_manager {
	struct daemon_case	daemon;
	int			notify_fd;
	int			listen_fd;
	char			notify_path[96];
	char			watchdog_usec[24];	/* empty: none */
	bool			is_storing;		/* else FDSTORE is ignored, as without FileDescriptorStoreMax= */
	pthread_t		thread;
	atomic_bool		is_over;

	pthread_mutex_t		lock;
	/* Guarded by lock. */
	struct {
		int	fd;
		char	name[96];
	}			stored[STORED_MAX];
	int			nr_stored;
	int			nr_ready;
	int			nr_reloading;
	int			nr_stopping;
	int			nr_watchdog;
};

void service_manager_init(struct service_manager *manager);
void service_manager_fini(struct service_manager *manager);
/** Start the daemon with these options and all stored descriptors; returns when it said READY=1. */
void service_manager_start(struct service_manager *manager, const char *const *options);
/** How many descriptors are stored whose name begins so. */
int service_manager_stored(struct service_manager *manager, const char *begin);
/** Wait until *@count, one of the counters above, is at least @least. */
void service_manager_wait(struct service_manager *manager, const int *count, int least);

#endif /* TESTS_SERVICE_MANAGER_H */

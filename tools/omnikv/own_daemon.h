/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * An omnikvd of this command's own: in a directory that is removed with it, ended with this process.
 *
 * What commands that were killed have left behind is removed by the next one. One thread.
 */
#ifndef OKV_OWN_DAEMON_H
#define OKV_OWN_DAEMON_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/un.h>

#include <omnikv.h>

/**
 * struct okv_own_daemon
 * @dir:     in memory, for the socket and whatever else; "": none
 * @pool, @granule_bytes, @reserve_bytes, @with_hugetlb: its options, set by the caller between init and start
 * @ended_by: the signal that ends a start; NULL: none does
 * @pid:     0: it does not run
 */
struct okv_own_daemon {
	char				dir[64];
	char				socket[sizeof(((struct sockaddr_un *)0)->sun_path)];
	char				pool[160];
	uint32_t			granule_bytes;
	uint64_t			reserve_bytes;
	bool				with_hugetlb;
	const volatile sig_atomic_t	*ended_by;
	pid_t				pid;
};

/** Makes the directory, named after @command. 0 or an errno. */
int okv_own_daemon_init(struct okv_own_daemon *daemon, const char *command);
/** Starts it, and waits until it answers. 0, -EINTR (@ended_by), or an errno with a line in @err. */
int okv_own_daemon_start(struct okv_own_daemon *daemon, struct omnikv_error *err);
/** Ends it by @signal, at last by SIGKILL, and waits for that. Nothing where none runs. */
void okv_own_daemon_stop(struct okv_own_daemon *daemon, int signal);
/** Removes the directory. The daemon has been stopped. */
void okv_own_daemon_fini(struct okv_own_daemon *daemon);

#endif /* OKV_OWN_DAEMON_H */

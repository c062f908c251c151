/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The service manager's side of omnikvd: readiness, watchdog, and descriptors that outlive the daemon.
 *
 * Kept there are the memory of an anonymous pool, and of each attached peer its connection and its lease
 * table, under names that say all that the next daemon needs to go on with them. Without a service manager
 * every call does nothing. One thread.
 */
#ifndef OKV_NOTIFY_H
#define OKV_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

#define OKV_KEPT_MAX	8192u

enum okv_kept_kind {
	OKV_KEPT_NONE,		/* not one of ours */
	OKV_KEPT_LISTEN,	/* the socket of the unit */
	OKV_KEPT_POOL,
	OKV_KEPT_PEER,
	OKV_KEPT_LEASES,
};

/**
 * struct okv_kept - one descriptor from the service manager
 * @client_id: of the pool; 0 where the peer is no client of a shared pool
 * @version, @features: as agreed in HELLO
 * @flags:     of ATTACH
 * @number:    of the peer, so that names differ
 */
struct okv_kept {
	enum okv_kept_kind	kind;
	int			fd;
	uint32_t		client_id;
	uint32_t		version;
	uint64_t		features;
	uint32_t		flags;
	uint64_t		number;
};

/** "peer.CLIENT.VERSION.FEATURES.FLAGS.NUMBER" and the like, [96]. */
void okv_kept_name(const struct okv_kept *kept, char name[96]);
/** What a name says; OKV_KEPT_NONE for any other text. */
void okv_kept_parse(const char *name, struct okv_kept *kept);

/** All descriptors that were passed, [@max], close-on-exec and above 2; how many, or a negative errno. Once a process. */
int okv_notify_kept(struct okv_kept *kept, uint32_t max);
/** Keep @kept->fd under its name, from now on until okv_notify_drop(), also over a crash. */
void okv_notify_keep(const struct okv_kept *kept);
void okv_notify_drop(const struct okv_kept *kept);
/** One of the service manager's messages, "READY=1" and the like. */
void okv_notify(const char *format, ...) __attribute__((format(printf, 1, 2)));
/** Time between two signs of life, half of what is allowed; 0: none is wanted. */
uint64_t okv_notify_watchdog_ns(void);

#endif /* OKV_NOTIFY_H */

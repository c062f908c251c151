/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A replay by several processes over one omnikvd: starts them, kills them where asked, adds up what they found.
 *
 * The daemon is one that runs already, or one that is started here, in a directory that is removed with
 * it. Nothing outlives the call. One thread.
 */
#ifndef OKV_CLIENTS_H
#define OKV_CLIENTS_H

#include "replay.h"

/**
 * struct okv_clients_config
 * @replay:       what each process plays; socket, turns and client are set here
 * @nr_clients:   1 to OKV_CLIENTS_MAX
 * @socket:       of a running daemon; NULL: one is started
 * @pool_spec:    of the daemon that is started: a size
 * @kill_ms:      kill a client and the daemon in turn every so often; 0: nobody. Needs a daemon that is started here
 */
struct okv_clients_config {
	struct okv_replay_config	replay;
	uint32_t			nr_clients;
	const char			*socket;
	const char			*pool_spec;
	uint32_t			kill_ms;
};

/** What came of it beside the sums of all processes' results. */
struct okv_clients_result {
	uint32_t			nr_clients;
	uint64_t			nr_clients_killed;
	uint64_t			nr_daemons_killed;
	uint64_t			nr_requests_lost;	/* under way in a process that was killed */
	uint64_t			nr_waits;
	uint64_t			nr_late;
	uint64_t			nr_away;
	struct omnikv_manager_stats	daemon;		/* of the last one; 0 where it did not answer */
	struct omnikv_pool_info		pool;
};

/** As okv_replay_run(). */
int okv_clients_run(const struct okv_clients_config *config, struct okv_replay_result *result,
		    struct okv_clients_result *clients, struct omnikv_error *err);

#endif /* OKV_CLIENTS_H */

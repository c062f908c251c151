/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Four processes over one daemon compute, commit and hit, and compare every byte that they hit, while whoever runs
 * the campaign kills them or the daemon. At its end what was committed must be hit, and nothing be held.
 *
 * Half of the processes run under a signal a millisecond. Whatever is wrong fails the test. One thread.
 */
#ifndef TESTS_KILL_CAMPAIGN_H
#define TESTS_KILL_CAMPAIGN_H

#include <stdatomic.h>

#include "tests/harness/daemon_case.h"
#include "tests/harness/kv_world.h"

#define CAMPAIGN_T		16u
#define CAMPAIGN_CLIENTS	4u
#define CAMPAIGN_STORIES	64u

/* What processes tell, whoever is killed. */
struct campaign_board {
	_Atomic uint32_t	is_committed[CAMPAIGN_STORIES];	/* the daemon has all of it */
	_Atomic uint64_t	nr_rounds;
	_Atomic uint64_t	nr_hit_tokens;
	_Atomic uint64_t	longest_ms;	/* one request, where is_strict */
	_Atomic uint32_t	is_over;
};

/**
 * struct campaign
 * @nr_killed:  processes that ended by SIGKILL and were followed by others
 * @has_points: half of the processes end at a named place of the library
 * @is_strict:  the daemon is always there: the longest request counts
 */
struct campaign {
	struct daemon_case	daemon;
	struct campaign_board	*board;
	pid_t			pids[CAMPAIGN_CLIENTS];
	uint64_t		seed;
	uint32_t		nr_killed;
	bool			has_points;
	bool			is_strict;
	int			nr_fds;		/* of the daemon before anybody came; 0: it is not the same daemon */
	int			nr_maps;
	const char		*options[5];	/* of the daemon */
	char			pool[160];
};

/** No daemon and no process yet. */
void campaign_begin(struct campaign *camp, uint64_t seed);
/** All processes. A daemon runs, or will. */
void campaign_start_clients(struct campaign *camp);
/** Note what the daemon holds while nobody is there, to be compared at the end. */
void campaign_note_daemon(struct campaign *camp);
/** Whoever was killed is followed by another; who ended in another way has found something. */
void campaign_reap(struct campaign *camp);
/** The processes end by themselves; all is compared. The daemon is stopped. */
void campaign_end(struct campaign *camp);
/** @many with --full. */
uint32_t campaign_scale(uint32_t few, uint32_t many);

#endif /* TESTS_KILL_CAMPAIGN_H */

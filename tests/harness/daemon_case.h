/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A real omnikvd in a directory of its own, for tests that talk to one.
 *
 * The program is the one built beside the test. Whatever fails in here fails the test. One thread.
 */
#ifndef TESTS_DAEMON_CASE_H
#define TESTS_DAEMON_CASE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <omnikv/types.h>

/** @fds_max: of the daemon, 0: as the test's own; set it before daemon_start() */
struct daemon_case {
	char	dir[64];
	char	socket[96];
	char	log[96];	/* what the daemon prints */
	pid_t	pid;		/* 0: none runs */
	int	fds_max;
	int	(*before_exec)(void *opaque);	/* in the child; may be NULL */
	void	*opaque;
};

/** A fresh directory, no daemon yet. */
void daemon_case_init(struct daemon_case *daemon);
/** End the daemon, hard, and remove the directory. */
void daemon_case_fini(struct daemon_case *daemon);
/** Start one with these options beside --socket; NULL ends the list. Returns when it serves. */
void daemon_start(struct daemon_case *daemon, const char *const *options);
/** The same, without waiting for it. */
void daemon_spawn(struct daemon_case *daemon, const char *const *options);
/** Run it to its end, which comes by itself; its exit status, or -1 when it is not over within 20 s. */
int daemon_run(struct daemon_case *daemon, const char *const *options);
/** SIGTERM; its exit status, or -1 when it is not over within 10 s. @ms: how long it took; may be NULL. */
int daemon_stop(struct daemon_case *daemon, uint32_t *ms);
/** SIGKILL. */
void daemon_kill(struct daemon_case *daemon);
/** Has it ended by itself? */
bool daemon_is_dead(struct daemon_case *daemon);
/** Does its log contain @text? */
bool daemon_said(struct daemon_case *daemon, const char *text);
/** A connected socket without HELLO. */
int daemon_connect(const struct daemon_case *daemon);
/** Open descriptors of the process; -1 when it is not there. */
int process_fds(pid_t pid);
/** Lines of its maps. */
int process_maps(pid_t pid);
/** Its private memory, in KiB. */
long process_private_kib(pid_t pid);
void sleep_ms(uint32_t ms);
uint64_t now_ms(void);

#endif /* TESTS_DAEMON_CASE_H */

// SPDX-License-Identifier: GPL-2.0-only
/*
 * A signal a millisecond, for whole programs that are to notice nothing: preloaded, it begins before main().
 *
 * Calls that can be restarted are; waits with a deadline end early, in the library as in the test. A child of fork() has
 * none, and what it executes begins anew. Not the daemon, whose SIGALRM has a meaning of its own.
 */
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/time.h>

static void on_alarm(int number)
{
	(void)number;
}

__attribute__((constructor)) static void begin(void)
{
	const struct itimerval timer = { { 0, 1000 }, { 0, 1000 } };
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };

	if (!strcmp(program_invocation_short_name, "omnikvd"))
		return;
	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
}

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which requests of a trace go on where an earlier one ended, and when: what an agent's scheduler knows.
 *
 * A request goes on with the latest one before it whose last full block is one of its own; that one's prefix is used
 * next when it arrives. Pure; one thread.
 */
#ifndef OKV_SESSIONS_H
#define OKV_SESSIONS_H

#include "trace.h"

#define OKV_SESSION_OVER	UINT64_MAX

/**
 * struct okv_session_step - of one request
 * @session: never 0
 * @next_ns: when the session goes on, on the trace's clock; OKV_SESSION_OVER: it does not
 */
struct okv_session_step {
	uint64_t	session;
	uint64_t	next_ns;
};

/** One step a request of @trace; free() them. -ENOMEM. */
int okv_sessions_find(const struct okv_trace *trace, struct okv_session_step **steps);

#endif /* OKV_SESSIONS_H */

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Built-in workloads: conversations made from a seed, for replays without a trace.
 *
 * "chat":  many short conversations that share a few system prompts; each prompt is looked up whole.
 * "agent": few long sessions with tool results; the engine knows where its last prompt ended and
 *          looks up exactly that, partial tail included.
 *
 * Pure; any thread.
 */
#ifndef OKV_WORKLOAD_H
#define OKV_WORKLOAD_H

#include "trace.h"

#define OKV_WORKLOAD_SEED	1u

/** "chat, agent" */
const char *okv_workload_names(void);
/**
 * okv_workload_make() - fill a trace
 * @trace: initialized, empty, with its block_tokens
 *
 * Return: 0, -ENOENT (no such workload), -ENOMEM.
 */
int okv_workload_make(const char *name, uint64_t seed, struct okv_trace *trace);

#endif /* OKV_WORKLOAD_H */

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Replay: a trace through the whole system, with real bytes, each loaded one compared with the oracle.
 *
 * An engine without a model: its "kernel" checks the history that it is given and writes the
 * new rows that its key demands; how long it takes is the accelerator's figure (gpu.h).
 *
 * One thread.
 */
#ifndef OKV_REPLAY_H
#define OKV_REPLAY_H

#include <omnikv.h>

#include "gpu.h"
#include "trace.h"

struct okv_turns;

enum okv_inject {
	OKV_INJECT_NONE,
	OKV_INJECT_FLIP,	/* one byte of a stored block, before it is loaded */
	OKV_INJECT_FAIL,	/* transfers of the simulated device */
};

/** @done of @total requests; @note is what a bar shows behind them. */
typedef void (*okv_replay_progress_fn)(void *opaque, uint64_t done, uint64_t total, const char *note);

/**
 * struct okv_replay_config
 * @trace, @plan:    what is played, and how its blocks are cut; same T
 * @pool:            open, with the plan's granule; NULL where a daemon has it
 * @socket:          of the daemon whose manager is used; NULL: one of this process's own
 * @away_s:          how long a daemon that does not answer is waited for
 * @turns, @client:  of several processes, this is that one; NULL: there is one. Not by arrival
 * @with_hints:      the cache is told when each session goes on (sessions.h); of one process
 * @is_by_arrival:   requests start when their time has come on the device's clock; else each starts when
 *                   the one before it is committed
 * @device:          "sim", "sim:kernels" or "host"; by arrival needs a simulated one
 * @concurrency:     by arrival: most requests in one step
 * @nr_slots:        layer buffers
 * @slot_tokens:     tokens in one; 0: the longest request
 * @hbm_bytes:       of the device; 0: its default
 * @is_shuffled:     "sim" finishes transfers late and out of order and poisons what it frees
 * @inject_nth:      FLIP: which block hit, counted from 0; FAIL: millionths
 */
struct okv_replay_config {
	const struct okv_trace		*trace;
	const struct omnikv_plan	*plan;
	struct omnikv_pool		*pool;
	const char			*socket;
	uint32_t			away_s;
	struct okv_turns		*turns;
	uint32_t			client;
	const struct okv_gpu		*gpu;
	const char			*tenant;
	const char			*eviction;
	struct omnikv_spill		*spill;		/* NULL: none */
	uint32_t			spill_admit;
	const char			*device;
	bool				with_hints;
	bool				is_by_arrival;
	bool				is_verified;
	bool				is_shuffled;
	uint32_t			concurrency;
	uint32_t			nr_slots;
	uint64_t			slot_tokens;
	uint64_t			hbm_bytes;
	uint64_t			seed;
	enum okv_inject			inject;
	uint64_t			inject_nth;
	okv_replay_progress_fn		progress;
	void				*opaque;
};

/**
 * struct okv_replay_result - what happened
 *
 * Each block and token of a request is counted once: referenced = hit + missed. A block counts
 * as hit when its bytes came from the cache, tails included.
 */
struct okv_replay_result {
	uint64_t	nr_requests;
	uint64_t	nr_refused;		/* did not fit in pool or slot */
	uint64_t	nr_too_long;		/* of these, longer than a slot */
	uint64_t	nr_failed;		/* gave up after repeated failures */
	uint64_t	nr_recomputed;		/* steps done again after a failed load or store */
	uint64_t	prompt_tokens;
	uint64_t	tokens_hit;
	uint64_t	blocks_referenced;
	uint64_t	blocks_hit;
	uint64_t	blocks_hit_nvme;	/* of these, brought back for the request that counts them */
	uint64_t	blocks_flushed;		/* written to the spill store after the last request */
	uint64_t	blocks_committed;
	uint64_t	tail_blocks_committed;
	uint64_t	tail_needed_bytes;
	uint64_t	tail_allocated_bytes;
	uint64_t	loads_verified;		/* pieces compared: one layer of one group of one block */
	uint64_t	bytes_verified;
	uint64_t	wrong_bytes;
	uint64_t	nr_steps;
	uint64_t	nr_injected;
	uint64_t	lookup_p50_ns;
	uint64_t	lookup_p99_ns;
	uint64_t	ttft_p50_ns;		/* by arrival: from arrival to the end of prefill */
	uint64_t	ttft_p99_ns;
	uint64_t	slot_tokens;
	uint64_t	leaked_bytes;
	uint64_t	leaked_leases;
	double		wall_s;
	struct omnikv_manager_stats	manager;
	struct omnikv_device_info	device;
	struct omnikv_pipe_stats	pipe;
	char		first_wrong[256];	/* first difference in words; empty if none */
	char		notice[256];	/* what of the pool's cache could not be used; empty if nothing */
	char		check[256];		/* what the manager's check found; empty if nothing */
};

/**
 * okv_replay_run() - play the trace
 *
 * Return: 0 when it was played to its end, whatever was found; else an errno with the reason in @err.
 * -EINVAL is for what the user gave.
 */
int okv_replay_run(const struct okv_replay_config *config, struct okv_replay_result *result,
		   struct omnikv_error *err);

#endif /* OKV_REPLAY_H */

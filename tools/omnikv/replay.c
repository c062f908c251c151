// SPDX-License-Identifier: GPL-2.0-only
/*
 * The replay engine: admits requests, runs their steps layer by layer, commits, and counts.
 *
 * Requests of one step are "flights". The kernel of a layer is a callback on the device's stream that
 * compares the history rows of all flights with the oracle and writes their new rows. A step
 * that fails is done again from the last checkpoint before the first lost token, as an engine would.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "cmd.h"
#include "error.h"
#include "oracle.h"
#include "replay.h"
#include "sessions.h"
#include "turns.h"

#define OKV_ATTEMPTS_MAX	100
#define OKV_SYNC_TIMEOUT_NS	UINT64_C(60000000000)
/* How long one process waits for another: for its turn, for a block that another computes, for the daemon. */
#define OKV_TURN_TIMEOUT_NS	UINT64_C(120000000000)
#define OKV_WAIT_MS		30000u
/* How often a block that is there and is not hit is looked for again. */
#define OKV_VAIN_MAX		4u
#define OKV_AWAY_STEP_NS	20000000
#define OKV_HINTS_AHEAD_NS	UINT64_C(3600000000000)

/* One request in a step. */
struct okv_flight {
	const struct okv_request	*req;
	struct omnikv_seq		*seq;
	struct omnikv_key		*keys;		/* [max_blocks], content keys of all blocks */
	uint64_t			*seeds;		/* [max_blocks] */
	uint64_t			max_blocks;
	uint64_t			nr_blocks;	/* of the prompt, a private tail included */
	uint64_t			hist;		/* tokens that the step loads */
	struct omnikv_key		tail;		/* of what it commits; len 0: none */
	uint64_t			due_ns;		/* arrival on the device's clock */
};

/* Argument of one layer's kernel; lives until the step ends. */
struct okv_kernel {
	struct okv_replay	*replay;
	struct omnikv_view	view;
};

struct okv_replay {
	const struct okv_replay_config	*config;
	struct okv_replay_result	*result;
	const struct omnikv_plan	*plan;
	struct omnikv_client	*client;
	struct omnikv_manager	*manager;
	struct omnikv_space	*space;
	struct omnikv_device	*dev;
	struct omnikv_ring	*ring;
	struct omnikv_hbm	*hbm;
	struct omnikv_pipe	*pipe;
	struct omnikv_stream	*stream;
	struct okv_flight	*flights;	/* [concurrency] */
	struct okv_kernel	*kernels;	/* [nr_layers] */
	struct omnikv_step_seq	*step_seqs;	/* [concurrency] */
	uint32_t		nr_flights;
	uint64_t		slot_tokens;
	uint64_t		tenant_seed;
	uint64_t		*lookup_ns;	/* [nr_lookups] */
	uint64_t		*ttft_ns;	/* [nr_ttfts] */
	size_t			nr_lookups;
	size_t			nr_ttfts;
	uint64_t		blocks_seen;	/* hit so far, for FLIP */
	uint64_t		foreign_bytes;	/* of the pool, before anything: neither free nor left by an earlier manager */
	uint64_t		start_ns;	/* by arrival: the first request, on the device's clock */
	uint64_t		turn;		/* request that is looked up, or was last */
	struct okv_session_step	*sessions;	/* [nr_requests]; NULL: no hints */
	uint64_t		hints_ns;	/* the trace's first request, on the clock of hints */
	/* of the step being filled or under way */
	uint64_t		step_tokens;
	uint64_t		step_wrong;
	char			step_text[256];
};

static int okv_u64_cmp(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

/* Sorts @values. */
static void okv_percentiles(uint64_t *values, size_t nr, uint64_t *p50, uint64_t *p99)
{
	if (!nr)
		return;
	qsort(values, nr, sizeof(*values), okv_u64_cmp);
	*p50 = values[(nr - 1) / 2];
	*p99 = values[(nr - 1) * 99 / 100];
}

/* Layer whose bytes layer @layer of @group has. */
static uint32_t okv_source_layer(const struct omnikv_group *group, uint32_t layer, bool *is_alias)
{
	uint32_t i;

	*is_alias = false;
	for (i = 0; i < group->nr_layers; i++) {
		if (group->layers[i] == layer && group->alias_of[i] >= 0) {
			*is_alias = true;
			return (uint32_t)group->alias_of[i];
		}
	}
	return layer;
}

static void okv_report_wrong(struct okv_replay *rp, const struct okv_flight *flight, uint64_t block, uint32_t group,
			     uint32_t layer, uint32_t plane, uint64_t off, uint64_t wrong)
{
	if (!rp->step_wrong)
		snprintf(rp->step_text, sizeof(rp->step_text),
			 "request %llu, block %llu, group %u, layer %u, plane %u, byte %llu of the plane",
			 (unsigned long long)flight->req->order, (unsigned long long)block, group, layer, plane,
			 (unsigned long long)off);
	rp->step_wrong += wrong;
}

/*
 * Rows [from, to) of one plane of one flight, which stand at @rows: compare or write them.
 * Rows are entries of the group, counted from the start of the sequence.
 */
static void okv_rows(struct okv_replay *rp, const struct okv_flight *flight, uint32_t g, uint32_t layer,
		     uint32_t plane, uint8_t *rows, uint64_t row_bytes, uint64_t from, uint64_t to, bool is_check)
{
	uint32_t entries = rp->plan->groups[g].entries;
	uint64_t at, end, block, first = 0, wrong, seed;

	for (at = from; at < to; at = end) {
		block = at / entries;
		end = (block + 1) * entries < to ? (block + 1) * entries : to;
		seed = okv_oracle_plane(flight->seeds[block], g, layer, plane);
		if (!is_check) {
			okv_oracle_fill(seed, (at % entries) * row_bytes, rows, (end - at) * row_bytes);
		} else {
			wrong = okv_oracle_check(seed, (at % entries) * row_bytes, rows, (end - at) * row_bytes, &first);
			if (wrong)
				okv_report_wrong(rp, flight, block, g, layer, plane,
						 (at % entries) * row_bytes + first, wrong);
			rp->result->bytes_verified += (end - at) * row_bytes;
			rp->result->loads_verified += plane == 0;
		}
		rows += (end - at) * row_bytes;
	}
}

/* The one row of a state group: content of the block that holds the last token, as if row n of it for n tokens. */
static void okv_state_row(struct okv_replay *rp, const struct okv_flight *flight, uint32_t g, uint32_t layer,
			  uint32_t plane, uint8_t *row, uint64_t row_bytes, uint64_t tokens, bool is_check)
{
	uint64_t block = (tokens - 1) / rp->plan->block_tokens;
	uint64_t off = (tokens - block * rp->plan->block_tokens) * row_bytes;
	uint64_t seed = okv_oracle_plane(flight->seeds[block], g, layer, plane), first = 0, wrong;

	if (!is_check) {
		okv_oracle_fill(seed, off, row, row_bytes);
		return;
	}
	wrong = okv_oracle_check(seed, off, row, row_bytes, &first);
	if (wrong)
		okv_report_wrong(rp, flight, block, g, layer, plane, first, wrong);
	rp->result->bytes_verified += row_bytes;
	rp->result->loads_verified += plane == 0;
}

static void okv_kernel_flight(struct okv_replay *rp, const struct omnikv_view *view,
			      const struct omnikv_group_view *gv, const struct okv_flight *flight, uint32_t idx)
{
	const struct omnikv_group *group = &rp->plan->layout.groups[gv->group];
	uint64_t tpe = group->tokens_per_entry, row_bytes, hist, all;
	bool is_alias;
	uint32_t layer = okv_source_layer(group, view->layer, &is_alias), p;
	uint8_t *rows;

	for (p = 0; p < gv->nr_planes; p++) {
		row_bytes = gv->planes[p].row_bytes;
		rows = (uint8_t *)gv->planes[p].rows + gv->cu_kv[idx] * row_bytes;
		if (!tpe) {
			if (flight->hist)
				okv_state_row(rp, flight, gv->group, layer, p, rows, row_bytes, flight->hist, true);
			if (flight->hist < flight->req->nr_tokens && !is_alias)
				okv_state_row(rp, flight, gv->group, layer, p, rows, row_bytes,
					      flight->req->nr_tokens, false);
			continue;
		}
		hist = flight->hist / tpe;
		all = flight->req->nr_tokens / tpe;
		okv_rows(rp, flight, gv->group, layer, p, rows, row_bytes, 0, hist, true);
		/* The rows of an alias are its source's, the new ones included. */
		okv_rows(rp, flight, gv->group, layer, p, rows + hist * row_bytes, row_bytes, hist, all, is_alias);
	}
}

/* Runs on the device's stream, after the layer's load. */
static void okv_kernel_run(void *arg)
{
	struct okv_kernel *kernel = arg;
	struct okv_replay *rp = kernel->replay;
	uint32_t g, i;

	for (g = 0; g < kernel->view.nr_groups; g++) {
		for (i = 0; i < rp->nr_flights; i++)
			okv_kernel_flight(rp, &kernel->view, &kernel->view.groups[g], &rp->flights[i], i);
	}
}

/* All layers of the step for the flights as they are. */
static int okv_step_run(struct okv_replay *rp, struct omnikv_step_error *lost)
{
	const struct omnikv_layout *layout = &rp->plan->layout;
	struct omnikv_step *step;
	uint64_t duration_ns = 0;
	uint32_t l, i;
	int ret, ret_end;

	rp->step_wrong = 0;
	for (i = 0; i < rp->nr_flights; i++) {
		struct okv_flight *flight = &rp->flights[i];
		uint64_t nr = flight->req->nr_tokens - flight->hist;

		rp->step_seqs[i] = (struct omnikv_step_seq) {
			.seq		= flight->seq,
			.hist_tokens	= flight->hist,
			.new_tokens	= nr,
			.lane		= OMNIKV_LANE_PREFILL,
		};
		/* An engine needs the last token's output even where all of the prompt was cached. */
		duration_ns += okv_gpu_prefill_ns(rp->config->gpu, layout, flight->hist, nr ? nr : 1);
	}

	ret = omnikv_step_begin(rp->pipe, rp->step_seqs, rp->nr_flights, 0, &step);
	if (ret)
		return ret;
	for (l = 0; l < layout->nr_layers && !ret; l++) {
		rp->kernels[l].replay = rp;
		ret = omnikv_layer_acquire(step, l, rp->stream, &rp->kernels[l].view);
		if (!ret)
			ret = omnikv_stream_launch(rp->stream, duration_ns, okv_kernel_run, &rp->kernels[l]);
		if (!ret)
			ret = omnikv_layer_release(step, l, rp->stream);
	}
	/* The step waits for what was released; a kernel of the layer that failed is ours to wait for. */
	if (ret)
		omnikv_stream_sync(rp->stream, OKV_SYNC_TIMEOUT_NS);
	ret_end = omnikv_step_end(step, lost);
	rp->result->nr_steps++;
	return ret ? ret : ret_end;
}

/* Take the rows from @hist on back and make new room for them; what stays is loaded again. */
static int okv_flight_rewind(struct okv_flight *flight, uint64_t hist)
{
	int ret;

	ret = omnikv_seq_truncate(flight->seq, hist);
	if (!ret)
		ret = omnikv_seq_append(flight->seq, flight->req->nr_tokens - hist);
	flight->hist = hist;
	return ret;
}

static void okv_flights_close(struct okv_replay *rp)
{
	uint32_t i;

	for (i = 0; i < rp->nr_flights; i++)
		omnikv_seq_close(rp->flights[i].seq);
	rp->nr_flights = 0;
	rp->step_tokens = 0;
}

/* A tail that ends within an entry of some group stays private: its last rows are not whole. */
static bool okv_tail_is_whole(const struct okv_replay *rp, uint64_t nr_tokens)
{
	const struct omnikv_layout *layout = &rp->plan->layout;
	uint32_t g;

	for (g = 0; g < layout->nr_groups; g++) {
		if (layout->groups[g].tokens_per_entry &&
		    nr_tokens % rp->plan->block_tokens % layout->groups[g].tokens_per_entry)
			return false;
	}
	return true;
}

static int okv_flight_commit(struct okv_replay *rp, struct okv_flight *flight)
{
	const struct okv_trace *trace = rp->config->trace;
	const struct okv_request *req = flight->req;
	uint32_t tail_tokens = req->nr_tokens % trace->block_tokens;
	uint64_t nr_full = req->nr_tokens / trace->block_tokens;
	bool has_tail = flight->tail.len != 0;
	uint64_t allocated, needed;
	int64_t ret;

	ret = omnikv_seq_commit(flight->seq, flight->keys, nr_full, has_tail ? &flight->tail : NULL);
	if (ret < 0)
		return ret;
	rp->result->blocks_committed += ret;
	if (has_tail && flight->hist < req->nr_tokens) {
		allocated = omnikv_plan_block_bytes(rp->plan);
		needed = (uint64_t)((double)tail_tokens / trace->block_tokens * (double)allocated /
				    omnikv_plan_overhead(rp->plan));
		rp->result->tail_blocks_committed++;
		rp->result->tail_allocated_bytes += allocated;
		rp->result->tail_needed_bytes += needed;
	}
	return 0;
}

/*
 * Tell the cache when this session goes on. The trace is played faster than it was recorded, so times of its clock are
 * given as times from the begin of the replay, an hour of which is in the future whatever it takes.
 */
static int okv_hint(struct okv_replay *rp, const struct okv_flight *flight)
{
	const struct okv_trace *trace = rp->config->trace;
	const struct okv_session_step *step = &rp->sessions[flight->req - trace->requests];
	struct omnikv_retention how = { .size = sizeof(how), .session = step->session };
	uint64_t nr_full = flight->req->nr_tokens / trace->block_tokens, ms;
	int64_t ret;

	if (step->next_ns == OKV_SESSION_OVER) {
		how.next_use_ms = OMNIKV_NEXT_USE_NEVER;
	} else {
		ms = (step->next_ns - trace->requests[0].time_ns + OKV_HINTS_AHEAD_NS - (okv_monotonic_ns() - rp->hints_ns)) / 1000000;
		how.ttl_ms = OMNIKV_RETAIN_MS_MAX;
		how.next_use_ms = ms < OMNIKV_RETAIN_MS_MAX ? ms : OMNIKV_RETAIN_MS_MAX;
	}
	ret = omnikv_space_retain(rp->space, flight->keys, nr_full, flight->tail.len ? &flight->tail : NULL, &how);
	/* A session that is worth less than all others of a full bound is not kept. */
	return ret < 0 && ret != -EDQUOT ? (int)ret : 0;
}

/* Run the flights' step, again where it fails, then commit and close them. */
static int okv_flights_run(struct okv_replay *rp)
{
	struct omnikv_step_error lost = { 0 };
	struct omnikv_device_info info = { .size = sizeof(info) };
	uint32_t attempt, i;
	uint64_t hist;
	int ret, ret_rewind;

	for (attempt = 0;; attempt++) {
		ret = okv_step_run(rp, &lost);
		/* Bytes that were announced as lost were not served; a wrong checksum is the pool's fault. */
		if (rp->step_wrong && (!ret || ret == -EBADMSG)) {
			if (!rp->result->wrong_bytes)
				memcpy(rp->result->first_wrong, rp->step_text, sizeof(rp->step_text));
			rp->result->wrong_bytes += rp->step_wrong;
		}
		if (!ret)
			break;
		if (ret != -EIO && ret != -ENODATA && ret != -EBADMSG && ret != -ETIME)
			return ret;
		if (attempt == OKV_ATTEMPTS_MAX) {
			rp->result->nr_failed += rp->nr_flights;
			okv_flights_close(rp);
			return 0;
		}
		rp->result->nr_recomputed++;
		for (i = 0; i < rp->nr_flights; i++) {
			hist = rp->flights[i].hist;
			if (i == lost.seq_idx && lost.first_lost_token < hist)
				hist = lost.first_lost_token / rp->plan->block_tokens * rp->plan->block_tokens;
			hist = omnikv_seq_checkpoint(rp->flights[i].seq, hist);
			ret_rewind = okv_flight_rewind(&rp->flights[i], hist);
			if (ret_rewind)
				return ret_rewind;
		}
	}

	if (rp->config->is_by_arrival) {
		ret = omnikv_device_info(rp->dev, &info);
		if (ret)
			return ret;
	}
	for (i = 0; i < rp->nr_flights; i++) {
		ret = okv_flight_commit(rp, &rp->flights[i]);
		if (!ret && rp->sessions)
			ret = okv_hint(rp, &rp->flights[i]);
		if (ret)
			return ret;
		if (rp->config->is_by_arrival)
			rp->ttft_ns[rp->nr_ttfts++] = info.clock_ns - rp->flights[i].due_ns;
	}
	okv_flights_close(rp);
	return 0;
}

/* Flip one byte of the pool where the flight's block @block lies. */
static int okv_flip(struct okv_replay *rp, struct okv_flight *flight, uint64_t block)
{
	const struct omnikv_layout *layout = &rp->plan->layout;
	uint64_t from = block * rp->plan->block_tokens;
	uint64_t to = from + okv_request_block_tokens(rp->config->trace, flight->req, block);
	struct omnikv_piece piece;
	uint32_t g;
	int64_t ret;

	if (to > flight->hist)
		to = flight->hist;
	for (g = 0; g < layout->nr_groups && !layout->groups[g].tokens_per_entry; g++)
		;
	if (g == layout->nr_groups)
		return -EOPNOTSUPP;
	ret = omnikv_seq_pieces(flight->seq, g, 0, 0, from, to, 0, &piece, 1);
	if (ret < 0)
		return ret;
	((uint8_t *)omnikv_pool_addr(omnikv_client_pool(rp->client), &piece.extent))[piece.extent_off + piece.bytes / 2] ^= 0x40;
	rp->result->nr_injected++;
	return 0;
}

static int okv_flight_room(struct okv_flight *flight, uint64_t nr_blocks)
{
	struct omnikv_key *keys;
	uint64_t *seeds;

	if (nr_blocks <= flight->max_blocks)
		return 0;
	keys = realloc(flight->keys, nr_blocks * sizeof(*keys));
	if (!keys)
		return -ENOMEM;
	flight->keys = keys;
	seeds = realloc(flight->seeds, nr_blocks * sizeof(*seeds));
	if (!seeds)
		return -ENOMEM;
	flight->seeds = seeds;
	flight->max_blocks = nr_blocks;
	return 0;
}

/* The key of the tail that the flight is going to commit. */
static int okv_flight_tail(const struct okv_replay *rp, struct okv_flight *flight)
{
	const struct okv_request *req = flight->req;
	uint64_t nr_full = req->nr_tokens / rp->config->trace->block_tokens;

	flight->tail.len = 0;
	if (!req->is_tail_shared || !okv_tail_is_whole(rp, req->nr_tokens))
		return 0;
	return omnikv_key_partial(&flight->keys[nr_full], req->nr_tokens % rp->config->trace->block_tokens, &flight->tail);
}

/* ---- beside other processes ----------------------------------------------------------------- */

/*
 * The lookup, again as long as an earlier request of another process is computing what it lacks: so it hits
 * what it would if all of them were played one after another.
 */
static int okv_open_in_turn(struct okv_replay *rp, struct okv_flight *flight, uint64_t nr_lookup,
			    const struct omnikv_key *tail)
{
	struct okv_turns *turns = rp->config->turns;
	uint32_t block_tokens = rp->plan->block_tokens;
	const struct omnikv_key *missing = NULL;
	uint32_t nr_vain = 0;
	uint64_t nr_hit;
	int ret;

	for (bool has_waited = false;; has_waited = true) {
		const struct omnikv_key *before = missing;

		ret = omnikv_seq_open(rp->space, flight->keys, nr_lookup, tail, &flight->seq);
		if (ret || !turns)
			return ret;
		nr_hit = omnikv_seq_tokens(flight->seq) / block_tokens;
		missing = nr_hit < nr_lookup ? &flight->keys[nr_hit] :
			  tail && omnikv_seq_tokens(flight->seq) == nr_hit * block_tokens ? tail : NULL;
		nr_vain = missing == before ? nr_vain + 1 : 0;
		/* What is there and is not hit all the same follows another prompt's blocks. */
		if (!missing || nr_vain == OKV_VAIN_MAX)
			return 0;
		ret = omnikv_space_wait(rp->space, missing, OKV_WAIT_MS);
		if (ret != 1) {
			turns->nr_late += ret == -ETIME;
			return 0;
		}
		turns->nr_waits += !has_waited;
		omnikv_seq_close(flight->seq);
	}
}

/* Others wait for what this flight computes (or, with 0, do not any more). */
static void okv_promise(struct okv_replay *rp, const struct okv_flight *flight, uint32_t timeout_ms)
{
	uint64_t first = flight->hist / rp->plan->block_tokens;
	uint64_t nr_full = flight->req->nr_tokens / rp->plan->block_tokens;

	if (!rp->config->turns)
		return;
	/* Where nobody can be told, nobody waits. */
	if (first < nr_full)
		omnikv_space_promise(rp->space, flight->keys + first, nr_full - first, timeout_ms);
	if (flight->tail.len && flight->hist < flight->req->nr_tokens)
		omnikv_space_promise(rp->space, &flight->tail, 1, timeout_ms);
}

/* Memory for the flight's new tokens. While the daemon is away, and the reserve does not do, it is waited for. */
static int okv_append(struct okv_replay *rp, struct okv_flight *flight)
{
	uint64_t deadline_ns = okv_monotonic_ns() + rp->config->away_s * UINT64_C(1000000000);
	bool is_away = false;
	int ret;

	for (;;) {
		ret = omnikv_seq_append(flight->seq, flight->req->nr_tokens - flight->hist);
		if (!rp->config->socket || (ret != -ENOTCONN && ret != -EPIPE && ret != -ETIME) ||
		    okv_monotonic_ns() > deadline_ns)
			break;
		if (!is_away && rp->config->turns)
			rp->config->turns->nr_away++;
		is_away = true;
		okv_pause_ns(OKV_AWAY_STEP_NS);
	}
	return ret;
}

/* 1: the request is a flight now; 0: it does not fit (beside the others); negative errno. */
static int okv_admit(struct okv_replay *rp, const struct okv_request *req)
{
	struct okv_flight *flight = &rp->flights[rp->nr_flights];
	const struct okv_trace *trace = rp->config->trace;
	struct okv_replay_result *res = rp->result;
	uint64_t nr_lookup = req->lookup_tokens / trace->block_tokens, begin_ns, blocks_hit, nvme_blocks, b;
	uint32_t tail_tokens = req->lookup_tokens % trace->block_tokens;
	struct omnikv_key tail;
	bool has_tail;
	int ret;

	flight->req = req;
	flight->nr_blocks = (req->nr_tokens + trace->block_tokens - 1) / trace->block_tokens;
	ret = okv_flight_room(flight, flight->nr_blocks);
	if (ret)
		return ret;
	for (b = 0; b < flight->nr_blocks; b++) {
		okv_request_content_key(trace, req, b, &flight->keys[b]);
		flight->seeds[b] = okv_oracle_block(rp->tenant_seed, &flight->keys[b]);
	}
	has_tail = tail_tokens && nr_lookup < req->nr_blocks && okv_tail_is_whole(rp, req->lookup_tokens);
	if (has_tail) {
		ret = omnikv_key_partial(&flight->keys[nr_lookup], tail_tokens, &tail);
		if (ret)
			return ret;
	}

	ret = okv_flight_tail(rp, flight);
	if (ret)
		return ret;

	begin_ns = okv_monotonic_ns();
	ret = okv_open_in_turn(rp, flight, nr_lookup, has_tail ? &tail : NULL);
	if (ret)
		return ret;
	rp->lookup_ns[rp->nr_lookups] = okv_monotonic_ns() - begin_ns;

	flight->hist = omnikv_seq_tokens(flight->seq);
	okv_promise(rp, flight, OKV_WAIT_MS);
	if (rp->config->turns)
		okv_turns_pass(rp->config->turns, rp->turn);
	ret = okv_append(rp, flight);
	if (ret) {
		okv_promise(rp, flight, 0);
		omnikv_seq_close(flight->seq);
		return ret == -ENOSPC ? 0 : ret;
	}

	rp->nr_lookups++;
	rp->nr_flights++;
	blocks_hit = (flight->hist + trace->block_tokens - 1) / trace->block_tokens;
	if (rp->config->inject == OKV_INJECT_FLIP && rp->config->inject_nth >= rp->blocks_seen &&
	    rp->config->inject_nth < rp->blocks_seen + blocks_hit) {
		ret = okv_flip(rp, flight, rp->config->inject_nth - rp->blocks_seen);
		if (ret)
			return ret;
	}
	nvme_blocks = omnikv_seq_nvme_blocks(flight->seq);
	if (nvme_blocks > blocks_hit)
		nvme_blocks = blocks_hit;
	rp->blocks_seen += blocks_hit;
	res->tokens_hit += flight->hist;
	res->blocks_hit += blocks_hit;
	res->blocks_hit_nvme += nvme_blocks;
	return 1;
}

static void okv_show(struct okv_replay *rp, size_t done)
{
	const struct okv_replay_result *res = rp->result;
	char note[96];

	if (!rp->config->progress)
		return;
	snprintf(note, sizeof(note), "%zu requests, %.1f %% of blocks hit%s", done,
		 res->blocks_referenced ? 100.0 * (double)res->blocks_hit / (double)res->blocks_referenced : 0.0,
		 res->wrong_bytes ? ", WRONG BYTES" : "");
	rp->config->progress(rp->config->opaque, done, rp->config->trace->nr_requests, note);
}

/* The device's clock; with nothing in flight it is moved on to @due_ns first. */
static int okv_clock_reach(struct okv_replay *rp, uint64_t due_ns, uint64_t *now_ns)
{
	struct omnikv_device_info info = { .size = sizeof(info) };
	int ret;

	ret = omnikv_device_info(rp->dev, &info);
	if (!ret && !rp->nr_flights && info.clock_ns < due_ns) {
		ret = omnikv_device_advance(rp->dev, due_ns);
		if (!ret)
			ret = omnikv_device_info(rp->dev, &info);
	}
	*now_ns = info.clock_ns;
	return ret;
}

/* 1: the request is admitted or refused, and counted; 0: the step that is being filled must run first. */
static int okv_take(struct okv_replay *rp, const struct okv_request *req)
{
	const struct okv_replay_config *config = rp->config;
	bool has_room = req->nr_tokens <= rp->slot_tokens;
	struct okv_replay_result *res = rp->result;
	uint64_t due_ns = 0, now_ns = 0;
	int ret;

	/* Nothing asked is nothing to do. */
	if (!req->nr_tokens) {
		res->nr_requests++;
		return 1;
	}
	if (config->is_by_arrival) {
		due_ns = rp->start_ns + (req->time_ns - config->trace->requests[0].time_ns);
		ret = okv_clock_reach(rp, due_ns, &now_ns);
		if (ret)
			return ret;
	}
	if (rp->nr_flights && (due_ns > now_ns || rp->nr_flights == config->concurrency ||
			       rp->step_tokens + req->nr_tokens > rp->slot_tokens))
		return 0;

	ret = has_room ? okv_admit(rp, req) : 0;
	if (ret < 0)
		return ret;
	/* Beside others it is tried again when they have given their memory up. */
	if (!ret && has_room && rp->nr_flights)
		return 0;
	if (ret) {
		rp->flights[rp->nr_flights - 1].due_ns = due_ns;
		rp->step_tokens += req->nr_tokens;
	}
	res->nr_requests++;
	res->nr_refused += !ret;
	res->nr_too_long += !has_room;
	res->prompt_tokens += req->nr_tokens;
	res->blocks_referenced += req->nr_blocks;
	return 1;
}

/* Every nr_clients-th request, one at a time. */
static int okv_play_turns(struct okv_replay *rp)
{
	const struct okv_trace *trace = rp->config->trace;
	struct okv_turns *turns = rp->config->turns;
	struct okv_client_slot *slot = &turns->slots[rp->config->client];
	uint64_t i;
	int ret;

	for (i = slot->next_request; i < trace->nr_requests; i += turns->nr_clients) {
		atomic_store(&slot->next_request, i);
		ret = okv_turns_wait(turns, i, OKV_TURN_TIMEOUT_NS);
		if (ret)
			return ret;
		atomic_store(&slot->is_begun, 1);
		rp->turn = i;
		ret = okv_take(rp, &trace->requests[i]);
		/* What did not come to its lookup has no more claim to the turn. */
		okv_turns_pass(turns, i);
		if (ret < 0)
			return ret;
		if (rp->nr_lookups)
			turns->lookup_ns[i] = rp->lookup_ns[rp->nr_lookups - 1];
		rp->nr_lookups = 0;
		if (rp->nr_flights) {
			struct okv_flight flight = rp->flights[0];

			ret = okv_flights_run(rp);
			okv_promise(rp, &flight, 0);
			if (ret)
				return ret;
		}
		turns->nr_done++;
		atomic_store(&slot->is_begun, 0);
	}
	atomic_store(&slot->next_request, i);
	return 0;
}

static int okv_play(struct okv_replay *rp)
{
	const struct okv_trace *trace = rp->config->trace;
	size_t i = 0;
	int ret;

	if (rp->config->is_by_arrival) {
		ret = okv_clock_reach(rp, 0, &rp->start_ns);
		if (ret)
			return ret;
	}
	if (rp->config->turns)
		return okv_play_turns(rp);
	while (i < trace->nr_requests || rp->nr_flights) {
		ret = i < trace->nr_requests ? okv_take(rp, &trace->requests[i]) : 0;
		if (ret < 0)
			return ret;
		i += ret;
		if (rp->nr_flights && (!ret || !rp->config->is_by_arrival)) {
			ret = okv_flights_run(rp);
			if (ret)
				return ret;
			okv_show(rp, i);
		}
	}
	return 0;
}

static uint32_t okv_pow2_at_least(uint32_t value)
{
	uint32_t p = 1;

	while (p < value)
		p *= 2;
	return p;
}

/* What managers leave in a pool that lasts. */
static uint64_t left_bytes(const struct omnikv_pool_info *info)
{
	return info->state_bytes[OMNIKV_EXTENT_SEALED] + info->state_bytes[OMNIKV_EXTENT_META];
}

/*
 * Attach and open the namespace. A daemon answers when it has touched its memory, and one that is killed
 * between the two answers no more: until then again.
 */
static int okv_attach(struct okv_replay *rp, const struct omnikv_namespace *ns, struct omnikv_error *why,
		      struct omnikv_error *err)
{
	struct omnikv_attach_config config = { .size = sizeof(config) };
	uint64_t deadline_ns = okv_monotonic_ns() + rp->config->away_s * UINT64_C(1000000000);
	int ret;

	for (;;) {
		ret = omnikv_manager_attach(rp->config->socket, &config, &rp->manager, err);
		if (!ret) {
			ret = omnikv_space_open(rp->manager, ns, rp->plan, &rp->space, why);
			if (!ret)
				break;
			omnikv_manager_destroy(rp->manager);
			rp->manager = NULL;
		}
		if ((ret != -ENOTCONN && ret != -ECONNREFUSED && ret != -ENOENT && ret != -ETIME && ret != -EPIPE) ||
		    okv_monotonic_ns() > deadline_ns)
			return ret;
		okv_pause_ns(OKV_AWAY_STEP_NS);
	}
	rp->client = omnikv_manager_client(rp->manager);
	return 0;
}

/* Everything that a replay stands on, in the order in which it is taken down again. */
static int okv_open(struct okv_replay *rp, struct omnikv_error *err)
{
	const struct okv_replay_config *config = rp->config;
	const struct okv_trace *trace = config->trace;
	const struct omnikv_layout *layout = &rp->plan->layout;
	uint32_t nr_layers = layout->nr_layers;
	struct omnikv_manager_config mc = {
		.size		= sizeof(mc),
		.eviction	= config->eviction,
		.spill		= config->spill,
		.spill_admit	= config->spill_admit,
	};
	struct omnikv_namespace ns = {
		.size		= sizeof(ns),
		.tenant		= config->tenant,
		.weights	= layout->name,
		.layout		= layout,
		.block_tokens	= rp->plan->block_tokens,
		.hash_algorithm	= OMNIKV_HASH_OPAQUE,
	};
	struct omnikv_device_config dc = {
		.size		= sizeof(dc),
		.flags		= config->is_shuffled ? OMNIKV_DEVICE_F_SHUFFLE | OMNIKV_DEVICE_F_POISON : 0,
		.fail_ppm	= config->inject == OKV_INJECT_FAIL ? (uint32_t)config->inject_nth : 0,
		.hbm_bytes	= config->hbm_bytes,
		/* Fewer bytes take the time that all of them would. */
		.h2d_bytes_s	= config->gpu->link_bytes_s / rp->plan->scale,
		.d2h_bytes_s	= config->gpu->link_bytes_s / rp->plan->scale,
		.late_ns	= config->is_shuffled ? 50000 : 0,
		.seed		= config->seed,
	};
	struct omnikv_ring_config rc = {
		.size		= sizeof(rc),
		.entries	= okv_pow2_at_least(4 * nr_layers + 64),
		.cq_entries	= okv_pow2_at_least(8 * nr_layers + 128),
	};
	struct omnikv_pipe_config pc = {
		.size		= sizeof(pc),
		.nr_slots	= config->nr_slots,
		.max_seqs	= config->concurrency,
		.slot_tokens	= rp->slot_tokens,
		.verify		= config->is_verified,
	};
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_device_info device = { .size = sizeof(device) };
	struct omnikv_error why = { "" };
	uint64_t hbm_bytes;
	int ret;

	if (config->pool) {
		ret = omnikv_pool_info(config->pool, &info);
		if (ret)
			return ret;
		rp->foreign_bytes = info.usable_bytes - info.free_bytes - left_bytes(&info);
	}
	rp->flights = calloc(config->concurrency, sizeof(*rp->flights));
	rp->step_seqs = calloc(config->concurrency, sizeof(*rp->step_seqs));
	rp->kernels = calloc(nr_layers, sizeof(*rp->kernels));
	rp->lookup_ns = calloc(trace->nr_requests + 1, sizeof(*rp->lookup_ns));
	rp->ttft_ns = calloc(trace->nr_requests + 1, sizeof(*rp->ttft_ns));
	if (!rp->flights || !rp->step_seqs || !rp->kernels || !rp->lookup_ns || !rp->ttft_ns)
		return -ENOMEM;

	if (config->socket) {
		ret = okv_attach(rp, &ns, &why, err);
	} else {
		ret = omnikv_client_open(config->pool, OMNIKV_CLIENT_F_MANAGER, &rp->client);
		if (ret == -EALREADY)
			return okv_error_set(err, ret, "the daemon manages this pool; attach to it with --daemon=SOCKET "
					     "(unix:SOCKET in Python, omnikv_manager_attach() in C) instead of --pool daemon:SOCKET");
		if (ret == -EBUSY)
			return okv_error_set(err, ret, "another process manages this pool; end it, or, where it is an omnikvd, "
					     "attach to it with --daemon=SOCKET");
		if (!ret)
			ret = omnikv_manager_create(rp->client, &mc, &rp->manager, &why);
		/* Of what it can refuse, the policy alone is the user's. */
		if (ret)
			return okv_error_set(err, ret, "%s%.240s", ret == -EINVAL ? "--" : "", why.text);
		memcpy(rp->result->notice, why.text, sizeof(rp->result->notice));
		why.text[0] = '\0';
		ret = omnikv_space_open(rp->manager, &ns, rp->plan, &rp->space, &why);
	}
	if (ret && why.text[0])
		snprintf(err->text, sizeof(err->text), "model %.40s: %.200s", layout->name, why.text);
	/* What cannot be kept is the layout's doing. */
	if (ret == -EOPNOTSUPP)
		return -EINVAL;
	if (!ret)
		ret = omnikv_device_open(config->device, &dc, &rp->dev, err);
	if (!ret)
		ret = omnikv_ring_init(rp->client, rp->dev, &rc, &rp->ring, err);
	if (!ret)
		ret = omnikv_stream_create(rp->dev, &rp->stream);
	if (ret)
		return ret;

	hbm_bytes = omnikv_pipe_hbm_bytes(rp->plan, &pc);
	ret = hbm_bytes ? omnikv_hbm_create(rp->dev, hbm_bytes, &rp->hbm) : -EINVAL;
	if (ret) {
		omnikv_device_info(rp->dev, &device);
		snprintf(err->text, sizeof(err->text),
			 "%u slots of %llu tokens need %llu bytes of device memory, there are %llu; give fewer --slots or "
			 "--slot-tokens, more --hbm, or --scale", config->nr_slots, (unsigned long long)rp->slot_tokens,
			 (unsigned long long)hbm_bytes, (unsigned long long)device.hbm_bytes);
		return -EINVAL;
	}
	return omnikv_pipe_create(rp->space, rp->ring, rp->hbm, &pc, &rp->pipe, err);
}

static void okv_close(struct okv_replay *rp, struct okv_replay_result *res)
{
	struct omnikv_manager_stats kept = { .size = sizeof(kept) };
	uint64_t kept_bytes = 0;
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_error check = { "" };
	uint32_t i;
	int ret;

	okv_flights_close(rp);
	if (rp->pipe) {
		res->pipe.size = sizeof(res->pipe);
		omnikv_pipe_stats(rp->pipe, &res->pipe);
		omnikv_pipe_destroy(rp->pipe);
	}
	if (rp->stream)
		omnikv_stream_destroy(rp->stream);
	if (rp->ring)
		omnikv_ring_exit(rp->ring);
	if (rp->dev) {
		res->device.size = sizeof(res->device);
		omnikv_device_info(rp->dev, &res->device);
	}
	if (rp->hbm)
		omnikv_hbm_destroy(rp->hbm);
	if (rp->dev)
		omnikv_device_close(rp->dev);
	if (rp->space)
		omnikv_space_close(rp->space);
	if (rp->manager) {
		ret = omnikv_manager_check(rp->manager, &check);
		if (ret)
			snprintf(res->check, sizeof(res->check), "%.255s",
				 ret == -EUCLEAN && check.text[0] ? check.text : strerror(-ret));
		res->manager.size = sizeof(res->manager);
		omnikv_manager_stats(rp->manager, &res->manager);
		/* Commits that wait for a daemon hold what they are to publish. */
		res->leaked_leases = res->manager.blocks_queued ? 0 : res->manager.nr_leased_blocks;
		/* What is in memory still is there for the next run. */
		if (rp->config->spill)
			res->blocks_flushed = omnikv_manager_flush(rp->manager);
		/* Nor is it leaked what a pool that lasts keeps for the next manager. */
		omnikv_manager_stats(rp->manager, &kept);
		kept_bytes = kept.cached_bytes + kept.index_bytes;
		omnikv_manager_destroy(rp->manager);
	}
	if (rp->client && !rp->config->socket)
		omnikv_client_close(rp->client);
	if (rp->config->pool && !omnikv_pool_info(rp->config->pool, &info))
		res->leaked_bytes = info.usable_bytes - info.free_bytes - rp->foreign_bytes -
				    (left_bytes(&info) == kept_bytes ? kept_bytes : 0);

	for (i = 0; rp->flights && i < rp->config->concurrency; i++) {
		free(rp->flights[i].keys);
		free(rp->flights[i].seeds);
	}
	free(rp->flights);
	free(rp->step_seqs);
	free(rp->kernels);
	free(rp->lookup_ns);
	free(rp->ttft_ns);
}

int okv_replay_run(const struct okv_replay_config *config, struct okv_replay_result *result,
		   struct omnikv_error *err)
{
	struct okv_replay rp = {
		.config		= config,
		.result		= result,
		.plan		= config->plan,
		.slot_tokens	= config->slot_tokens,
		.tenant_seed	= okv_oracle_text(config->tenant),
	};
	uint64_t begin_ns = okv_monotonic_ns();
	size_t i;
	int ret;

	memset(result, 0, sizeof(*result));
	for (i = 0; i < config->trace->nr_requests && !config->slot_tokens; i++) {
		if (config->trace->requests[i].nr_tokens > rp.slot_tokens)
			rp.slot_tokens = config->trace->requests[i].nr_tokens;
	}
	if (!rp.slot_tokens)
		rp.slot_tokens = 1;
	result->slot_tokens = rp.slot_tokens;

	ret = okv_open(&rp, err);
	if (!ret && config->with_hints)
		ret = okv_sessions_find(config->trace, &rp.sessions);
	rp.hints_ns = okv_monotonic_ns();
	if (!ret)
		ret = okv_play(&rp);
	if (ret && !err->text[0])
		snprintf(err->text, sizeof(err->text), "request %llu: %s", (unsigned long long)result->nr_requests,
			 strerror(-ret));
	okv_percentiles(rp.lookup_ns, rp.nr_lookups, &result->lookup_p50_ns, &result->lookup_p99_ns);
	okv_percentiles(rp.ttft_ns, rp.nr_ttfts, &result->ttft_p50_ns, &result->ttft_p99_ns);
	okv_close(&rp, result);
	free(rp.sessions);
	result->wall_s = (double)(okv_monotonic_ns() - begin_ns) / 1e9;
	return ret;
}

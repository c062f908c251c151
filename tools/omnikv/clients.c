// SPDX-License-Identifier: GPL-2.0-only
/*
 * Several processes over one daemon; see clients.h.
 *
 * This process touches neither pool nor daemon while clients run: it forks, kills, waits and adds up, and asks the
 * daemon for its counters before and after. A client that is killed is followed by another in its place, which goes
 * on behind the request that was lost.
 */
#include "clients.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "clock.h"
#include "cmd.h"
#include "conn.h"
#include "error.h"
#include "own_daemon.h"
#include "turns.h"

#define STEP_NS		20000000
/* How long clients wait for a daemon that is started here, and is started anew where it is killed; and for another. */
#define AWAY_S		120u
#define AWAY_OTHER_S	10u
#define STALL_NS	UINT64_C(5000000000)
#define RESERVE_BYTES	(UINT64_C(64) << 20)

/* What ends a replay: the signal that came, 0 before. */
static volatile sig_atomic_t ended_by;

static const int ending_signals[] = { SIGINT, SIGTERM, SIGHUP };

#define NR_ENDING	(sizeof(ending_signals) / sizeof(ending_signals[0]))

static void end(int signal)
{
	ended_by = signal;
}

/* What is ignored (by nohup, say) stays so. */
static void catch_signals(struct sigaction saved[NR_ENDING])
{
	struct sigaction action = { .sa_handler = end };

	ended_by = 0;
	for (size_t i = 0; i < NR_ENDING; i++) {
		sigaction(ending_signals[i], NULL, &saved[i]);
		if (saved[i].sa_handler != SIG_IGN)
			sigaction(ending_signals[i], &action, NULL);
	}
}

static void restore_signals(const struct sigaction saved[NR_ENDING])
{
	for (size_t i = 0; i < NR_ENDING; i++)
		sigaction(ending_signals[i], &saved[i], NULL);
}

struct clients {
	const struct okv_clients_config	*config;
	struct okv_clients_result	*result;
	struct okv_turns		*turns;
	struct omnikv_error		*err;
	struct sigaction		saved[NR_ENDING];
	const char			*socket;
	struct okv_own_daemon		daemon;		/* none where another's is used */
	pid_t				pids[OKV_CLIENTS_MAX];	/* 0: it has ended */
	uint32_t			ever[OKV_CLIENTS_MAX];	/* its number among all that ever were */
	uint32_t			nr_ever;
	struct omnikv_manager_stats	before;		/* of a daemon that ran already */
	uint64_t			next_kill_ns;
	uint64_t			nr_done;	/* as last seen, and when it last grew */
	uint64_t			moved_ns;
	bool				is_daemons_turn;
	uint32_t			victim;
};

/* ---- the daemon ----------------------------------------------------------------------------- */

/* In a file where the daemon is to be killed: the pool outlives it then. */
static int make_daemon(struct clients *cl)
{
	uint64_t bytes = 0;
	int ret = okv_own_daemon_init(&cl->daemon, "replay");

	if (ret)
		return ret;
	cl->socket = cl->daemon.socket;
	if (cl->config->kill_ms)
		snprintf(cl->daemon.pool, sizeof(cl->daemon.pool), "embedded:%s:%s/pool", cl->config->pool_spec, cl->daemon.dir);
	else
		snprintf(cl->daemon.pool, sizeof(cl->daemon.pool), "%s", cl->config->pool_spec);
	/* What clients keep for themselves is nobody's cache: all of them together a sixteenth. */
	omnikv_size_parse(cl->config->pool_spec, &bytes, NULL);
	bytes /= 16 * cl->config->nr_clients;
	cl->daemon.reserve_bytes = bytes < RESERVE_BYTES ? bytes : RESERVE_BYTES;
	cl->daemon.granule_bytes = cl->config->replay.plan->granule_bytes;
	cl->daemon.ended_by = &ended_by;
	return okv_own_daemon_start(&cl->daemon, cl->err);
}

/* ---- clients -------------------------------------------------------------------------------- */

/* A call that failed for want of its daemon says no more than that: what has become of the daemon, and what to do. */
static void say_what_became(const struct okv_replay_config *config, int error, struct omnikv_error *err)
{
	struct omnikv_error why = { "" };
	struct okv_conn *conn = NULL;
	char request[24];
	int ret;

	if (error != -ENOTCONN && error != -EPIPE && error != -ETIME)
		return;
	/* Where it did not come to a request, the line names the daemon already. */
	if (sscanf(err->text, "request %23[0-9]", request) != 1)
		return;
	ret = okv_conn_open(config->socket, NULL, &conn, &why);
	okv_conn_close(conn);
	if (ret == -ENOENT || ret == -ECONNREFUSED)
		okv_error_set(err, 0, "request %s: the daemon at %s ended, and no other came within %u s; start one, and play again",
			      request, config->socket, config->away_s);
	else if (ret && why.text[0])
		okv_error_set(err, 0, "request %s: %s", request, why.text);
	else if (!ret && error != -ETIME)
		okv_error_set(err, 0, "request %s: the daemon at %s was away, and answers again; play again", request,
			      config->socket);
}

static void run_client(const struct clients *cl, uint32_t place, uint32_t number)
{
	struct okv_replay_config config = cl->config->replay;
	struct okv_replay_result *result = &cl->turns->results[number];
	struct omnikv_error err = { "" };
	int ret;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	restore_signals(cl->saved);
	config.pool = NULL;
	config.spill = NULL;
	config.socket = cl->socket;
	config.away_s = cl->config->socket ? AWAY_OTHER_S : AWAY_S;
	config.turns = cl->turns;
	config.client = place;
	config.progress = NULL;
	ret = okv_replay_run(&config, result, &err);
	if (ret)
		say_what_became(&config, ret, &err);
	if (ret)
		snprintf(result->check, sizeof(result->check), "client %u: %.230s", place, err.text[0] ? err.text : strerror(-ret));
	_exit(ret ? 1 : 0);
}

static int start_client(struct clients *cl, uint32_t place)
{
	if (cl->nr_ever == OKV_CLIENTS_EVER)
		return -ENOSPC;
	cl->ever[place] = cl->nr_ever++;
	fflush(NULL);
	cl->pids[place] = fork();
	if (cl->pids[place] < 0) {
		cl->pids[place] = 0;
		return -errno;
	}
	if (!cl->pids[place])
		run_client(cl, place, cl->ever[place]);
	return 0;
}

/* A killed client's turn is passed on, its request is lost, another takes its place. */
static int replace_client(struct clients *cl, uint32_t place)
{
	struct okv_client_slot *slot = &cl->turns->slots[place];
	uint64_t request = slot->next_request;

	cl->pids[place] = 0;
	if (slot->is_begun) {
		okv_turns_pass(cl->turns, request);
		atomic_store(&slot->next_request, request + cl->turns->nr_clients);
		atomic_store(&slot->is_begun, 0);
		cl->result->nr_requests_lost++;
	}
	return start_client(cl, place);
}

static int kill_somebody(struct clients *cl)
{
	uint32_t place;
	int ret = 0;

	if (!cl->config->kill_ms || okv_monotonic_ns() < cl->next_kill_ns)
		return 0;
	if (cl->is_daemons_turn) {
		okv_own_daemon_stop(&cl->daemon, SIGKILL);
		cl->result->nr_daemons_killed++;
		ret = okv_own_daemon_start(&cl->daemon, cl->err);
	} else {
		place = cl->victim++ % cl->config->nr_clients;
		if (cl->pids[place]) {
			kill(cl->pids[place], SIGKILL);
			waitpid(cl->pids[place], NULL, 0);
			cl->result->nr_clients_killed++;
			ret = replace_client(cl, place);
		}
	}
	cl->is_daemons_turn = !cl->is_daemons_turn;
	cl->next_kill_ns = okv_monotonic_ns() + cl->config->kill_ms * UINT64_C(1000000);
	return ret;
}

/* Those that have ended. A client that failed ends the replay. */
static int reap(struct clients *cl, uint32_t *nr_running)
{
	int status;

	*nr_running = 0;
	for (uint32_t i = 0; i < cl->config->nr_clients; i++) {
		if (!cl->pids[i])
			continue;
		if (waitpid(cl->pids[i], &status, WNOHANG) != cl->pids[i]) {
			++*nr_running;
			continue;
		}
		cl->pids[i] = 0;
		if (WIFEXITED(status) && !WEXITSTATUS(status))
			continue;
		if (WIFSIGNALED(status))
			snprintf(cl->err->text, sizeof(cl->err->text), "client %u ended by signal %d", i, WTERMSIG(status));
		else
			snprintf(cl->err->text, sizeof(cl->err->text), "%.255s", cl->turns->results[cl->ever[i]].check);
		return -EIO;
	}
	return 0;
}

static void show(const struct clients *cl)
{
	const struct okv_replay_config *config = &cl->config->replay;
	char note[96];

	if (!config->progress)
		return;
	snprintf(note, sizeof(note), "%llu requests by %u processes", (unsigned long long)cl->turns->nr_done,
		 cl->config->nr_clients);
	config->progress(config->opaque, cl->turns->nr_done, config->trace->nr_requests, note);
}

/* Each call to a silent daemon has its deadline, but a request has many calls: where none ends, it is asked itself. */
static int check_daemon(struct clients *cl)
{
	struct omnikv_error why = { "" };
	struct okv_conn *conn = NULL;
	uint64_t nr_done = cl->turns->nr_done;
	int ret = 0;

	if (nr_done == cl->nr_done && okv_monotonic_ns() - cl->moved_ns < STALL_NS)
		return 0;
	if (nr_done == cl->nr_done)
		ret = okv_conn_open(cl->socket, NULL, &conn, &why);
	okv_conn_close(conn);
	cl->nr_done = nr_done;
	cl->moved_ns = okv_monotonic_ns();
	/* One that is gone may come back; the clients wait for it. */
	return ret == -ETIME ? okv_error_set(cl->err, ret, "%s", why.text) : 0;
}

static int play(struct clients *cl)
{
	uint32_t nr_running = 1;
	int ret = 0;

	for (uint32_t i = 0; i < cl->config->nr_clients && !ret; i++)
		ret = start_client(cl, i);
	cl->next_kill_ns = okv_monotonic_ns() + cl->config->kill_ms * UINT64_C(1000000);
	cl->moved_ns = okv_monotonic_ns();
	while (!ret && nr_running) {
		okv_pause_ns(STEP_NS);
		ret = ended_by ? -EINTR : reap(cl, &nr_running);
		if (!ret && nr_running)
			ret = kill_somebody(cl);
		if (!ret && nr_running)
			ret = check_daemon(cl);
		show(cl);
	}
	for (uint32_t i = 0; i < cl->config->nr_clients; i++) {
		if (!cl->pids[i])
			continue;
		kill(cl->pids[i], SIGKILL);
		waitpid(cl->pids[i], NULL, 0);
	}
	return ret;
}

/* ---- sums ----------------------------------------------------------------------------------- */

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void add(struct okv_replay_result *sum, const struct okv_replay_result *one)
{
	sum->nr_requests += one->nr_requests;
	sum->nr_refused += one->nr_refused;
	sum->nr_too_long += one->nr_too_long;
	sum->nr_failed += one->nr_failed;
	sum->nr_recomputed += one->nr_recomputed;
	sum->prompt_tokens += one->prompt_tokens;
	sum->tokens_hit += one->tokens_hit;
	sum->blocks_referenced += one->blocks_referenced;
	sum->blocks_hit += one->blocks_hit;
	sum->blocks_committed += one->blocks_committed;
	sum->tail_blocks_committed += one->tail_blocks_committed;
	sum->tail_needed_bytes += one->tail_needed_bytes;
	sum->tail_allocated_bytes += one->tail_allocated_bytes;
	sum->loads_verified += one->loads_verified;
	sum->bytes_verified += one->bytes_verified;
	if (!sum->wrong_bytes && one->wrong_bytes)
		memcpy(sum->first_wrong, one->first_wrong, sizeof(sum->first_wrong));
	sum->wrong_bytes += one->wrong_bytes;
	sum->nr_steps += one->nr_steps;
	sum->leaked_leases += one->leaked_leases;
	sum->slot_tokens = one->slot_tokens;
	if (one->check[0])
		memcpy(sum->check, one->check, sizeof(sum->check));
	sum->manager.blocks_deduplicated += one->manager.blocks_deduplicated;
	sum->manager.hash_collisions += one->manager.hash_collisions;
	sum->manager.blocks_imported += one->manager.blocks_imported;
	sum->manager.blocks_published += one->manager.blocks_published;
	sum->manager.blocks_unpublished += one->manager.blocks_unpublished;
	sum->manager.blocks_queued += one->manager.blocks_queued;
	sum->device.h2d_bytes += one->device.h2d_bytes;
	sum->device.d2h_bytes += one->device.d2h_bytes;
	sum->device.nr_failed += one->device.nr_failed;
	sum->device.stall_ns += one->device.stall_ns;
	sum->device.compute_ns += one->device.compute_ns;
	if (one->device.clock_ns > sum->device.clock_ns)
		sum->device.clock_ns = one->device.clock_ns;
	if (one->device.hbm_peak_bytes > sum->device.hbm_peak_bytes)
		sum->device.hbm_peak_bytes = one->device.hbm_peak_bytes;
	sum->pipe.checksum_errors += one->pipe.checksum_errors;
}

/* What the daemon itself has counted, and what its pool holds. */
static int ask_daemon(const struct clients *cl, struct omnikv_manager_stats *stats, struct omnikv_pool_info *pool,
		      struct omnikv_error *err)
{
	struct omnikv_manager *manager;
	int ret;

	*stats = (struct omnikv_manager_stats){ .size = sizeof(*stats) };
	*pool = (struct omnikv_pool_info){ .size = sizeof(*pool) };
	ret = omnikv_manager_attach(cl->socket, NULL, &manager, err);
	if (ret)
		return ret;
	ret = omnikv_manager_shared_stats(manager, stats);
	if (!ret)
		ret = omnikv_pool_info(omnikv_client_pool(omnikv_manager_client(manager)), pool);
	omnikv_manager_destroy(manager);
	if (ret == -EOPNOTSUPP)
		return okv_error_set(err, ret, "the daemon at %.108s does not manage the pool (--manager=no); manage it from here with "
				     "--pool daemon:SOCKET", cl->socket);
	return ret ? okv_conn_say_why(cl->socket, ret, 0, err) : 0;
}

/* A daemon that was started anew meanwhile counts from 0. */
static uint64_t since(uint64_t now, uint64_t before)
{
	return now > before ? now - before : 0;
}

/* Of this run: the spill store is the daemon's, and so is who counts what goes there and what comes back. */
static void add_tiers(const struct clients *cl, struct okv_replay_result *result)
{
	const struct omnikv_manager_stats *now = &cl->result->daemon, *before = &cl->before;

	result->manager.blocks_spilled = since(now->blocks_spilled, before->blocks_spilled);
	result->manager.bytes_spilled = since(now->bytes_spilled, before->bytes_spilled);
	result->manager.blocks_fetched = since(now->blocks_fetched, before->blocks_fetched);
	result->manager.bytes_fetched = since(now->bytes_fetched, before->bytes_fetched);
	result->manager.blocks_lost = since(now->blocks_lost, before->blocks_lost);
	result->manager.blocks_bad = since(now->blocks_bad, before->blocks_bad);
	/* Others may use the daemon too. */
	result->blocks_hit_nvme = since(now->blocks_hit_nvme, before->blocks_hit_nvme);
	if (result->blocks_hit_nvme > result->blocks_hit)
		result->blocks_hit_nvme = result->blocks_hit;
}

static void add_up(struct clients *cl, struct okv_replay_result *result)
{
	uint64_t nr = cl->turns->nr_requests, *ns = cl->turns->lookup_ns;

	for (uint32_t i = 0; i < cl->nr_ever; i++)
		add(result, &cl->turns->results[i]);
	cl->result->nr_waits = cl->turns->nr_waits;
	cl->result->nr_late = cl->turns->nr_late;
	cl->result->nr_away = cl->turns->nr_away;
	qsort(ns, nr, sizeof(*ns), compare);
	if (nr) {
		result->lookup_p50_ns = ns[(nr - 1) / 2];
		result->lookup_p99_ns = ns[(nr - 1) * 99 / 100];
	}
	if (!cl->err->text[0])
		ask_daemon(cl, &cl->result->daemon, &cl->result->pool, NULL);
	add_tiers(cl, result);
	result->manager.blocks_evicted = cl->result->daemon.blocks_evicted;
	result->manager.peak_used_bytes = cl->result->daemon.peak_used_bytes;
	result->manager.mean_run_blocks = cl->result->pool.nr_runs_begun ?
		(double)cl->result->pool.nr_placed / (double)cl->result->pool.nr_runs_begun : 0;
}

/* A daemon of somebody else: one line that names it is better than each client's. */
static int find_daemon(struct clients *cl)
{
	const struct omnikv_plan *plan = cl->config->replay.plan;
	struct omnikv_pool_info pool;
	int ret;

	cl->socket = cl->config->socket;
	ret = ask_daemon(cl, &cl->before, &pool, cl->err);
	if (!ret && pool.granule_bytes != plan->granule_bytes)
		ret = okv_error_set(cl->err, -EINVAL, "model %.40s wants granules of %u bytes, the daemon at %.60s has %u: set granule = %u in "
				    "omnikvd's configuration and restart it, or play another --model or --scale", plan->layout.name,
				    plan->granule_bytes, cl->socket, pool.granule_bytes, plan->granule_bytes);
	return ret;
}

int okv_clients_run(const struct okv_clients_config *config, struct okv_replay_result *result,
		    struct okv_clients_result *clients, struct omnikv_error *err)
{
	struct clients cl = { .config = config, .result = clients, .err = err };
	uint64_t begin_ns = okv_monotonic_ns();
	int ret;

	memset(result, 0, sizeof(*result));
	memset(clients, 0, sizeof(*clients));
	clients->nr_clients = config->nr_clients;
	cl.turns = okv_turns_create(config->replay.trace->nr_requests, config->nr_clients);
	if (!cl.turns)
		return -ENOMEM;
	catch_signals(cl.saved);
	ret = config->socket ? find_daemon(&cl) : make_daemon(&cl);
	if (!ret) {
		ret = play(&cl);
		if (!ended_by)
			add_up(&cl, result);
	}
	okv_own_daemon_stop(&cl.daemon, ended_by ? SIGKILL : SIGTERM);
	okv_own_daemon_fini(&cl.daemon);
	restore_signals(cl.saved);
	/* Now it ends as it would have. */
	if (ended_by)
		raise(ended_by);
	okv_turns_destroy(cl.turns);
	if (ret && !err->text[0])
		snprintf(err->text, sizeof(err->text), "%s", strerror(-ret));
	result->wall_s = (double)(okv_monotonic_ns() - begin_ns) / 1e9;
	return ret;
}

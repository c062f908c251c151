// SPDX-License-Identifier: GPL-2.0-only
/*
 * Four processes over one daemon compute, commit and hit, and compare every byte that they hit, while somebody
 * is killed all the time: one of them, at any instruction or at a named place, or the daemon, also while it is
 * recovering. What was committed is hit afterwards, nothing is torn, and nothing is left behind.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "failpoint.h"
#include "tests/harness/daemon_case.h"
#include "tests/harness/kv_world.h"

#define T		16u
#define CLIENTS		4u
#define STORIES		64u
#define RESERVE		(1u << 20)

/* What processes tell, whoever is killed. */
struct board {
	_Atomic uint32_t	is_committed[STORIES];	/* the daemon has all of it */
	_Atomic uint64_t	nr_rounds;
	_Atomic uint64_t	nr_hit_tokens;
	_Atomic uint64_t	longest_ms;		/* one request, while somebody answered */
	_Atomic uint32_t	is_over;
};

static const char *const points[] = {
	"attach.call", "import.find", "import.insert", "import.publish", "commit.seal", "commit.insert", "commit.publish",
	"conn.send", "sequence.append",
};

static void story_of(struct kv_story *story, uint32_t number)
{
	/* Eight roots with eight branches each: what one commits is the prefix of others. */
	uint64_t nr = 20 * T + (number % 8) * 4 * T + (number % 3) * 5;

	*story = (struct kv_story){ 0 };
	for (uint64_t i = 0; i < nr; i++)
		kv_story_add(story, i < 12 * T ? (number / 8) * 1000 + i : number * 100000 + i);
}

static struct omnikv_manager_stats stats_of(const struct kv_world *world)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	KV_MUST(!omnikv_manager_stats(world->manager, &stats));
	return stats;
}

/* One request. */
static void request(const struct kv_world *world, struct board *board, uint32_t number, bool is_strict)
{
	struct omnikv_manager_stats before = stats_of(world), after;
	uint64_t since = now_ms(), hit;
	struct omnikv_seq *seq;
	struct kv_story story;
	const char *why;

	story_of(&story, number);
	seq = kv_open(world, &story, true);
	hit = omnikv_seq_tokens(seq);
	why = hit ? kv_compare(world, seq, &story, 0, hit) : NULL;
	if (why)
		kv_fail(why, __FILE__, __LINE__);
	board->nr_hit_tokens += hit;
	if (hit == story.nr_tokens || !omnikv_seq_append(seq, story.nr_tokens - hit)) {
		if (hit < story.nr_tokens)
			kv_store(world, seq, &story, hit, story.nr_tokens);
		/* Nothing waits, nothing was given up: so the daemon has it. */
		if (kv_commit(world, seq, &story, true) >= 0) {
			after = stats_of(world);
			if (!before.blocks_queued && !after.blocks_queued &&
			    after.blocks_unpublished == before.blocks_unpublished)
				board->is_committed[number] = 1;
		}
		why = kv_compare(world, seq, &story, 0, story.nr_tokens);
		if (why)
			kv_fail(why, __FILE__, __LINE__);
	}
	omnikv_seq_close(seq);
	kv_story_free(&story);
	board->nr_rounds++;
	if (is_strict && now_ms() - since > board->longest_ms)
		board->longest_ms = now_ms() - since;
}

/* A signal a millisecond that nothing is to notice: waits go on, transfers are whole. */
static void on_alarm(int number)
{
	(void)number;
}

static void disturb(void)
{
	struct sigaction action = { .sa_handler = on_alarm };
	struct itimerval timer = { { 0, 1000 }, { 0, 1000 } };

	sigaction(SIGALRM, &action, NULL);
	setitimer(ITIMER_REAL, &timer, NULL);
}

static void run_client(const char *socket, struct board *board, uint64_t seed, bool has_points, bool is_strict)
{
	struct kv_world world;

	if (kv_random(&seed) % 2)
		disturb();
	if (has_points && kv_random(&seed) % 2)
		okv_failpoint_arm(&(struct okv_failpoint){
			.name = points[kv_random(&seed) % (sizeof(points) / sizeof(points[0]))],
			.nth = 1 + kv_random(&seed) % 40, .flags = OKV_FAILPOINT_F_KILL,
		});
	kv_world_connect_again(&world, KV_SHAPE_FULL, T, socket);
	while (!board->is_over)
		request(&world, board, kv_random(&seed) % STORIES, is_strict);
	/* Leaves nothing that waits behind. */
	for (uint32_t i = 0; i < 500 && stats_of(&world).blocks_queued; i++) {
		omnikv_lookup(world.space, NULL, 0);
		request(&world, board, kv_random(&seed) % STORIES, false);
		sleep_ms(10);
	}
	kv_world_detach(&world);
	_exit(0);
}

struct campaign {
	struct daemon_case	daemon;
	struct board		*board;
	pid_t			pids[CLIENTS];
	uint64_t		seed;
	uint32_t		nr_killed;	/* clients */
	bool			has_points;
	bool			is_strict;
	int			nr_fds;		/* of the daemon before anybody came; 0: it is not the same daemon */
	int			nr_maps;
	char			pool[160];
};

static void start_client(struct campaign *camp, uint32_t i)
{
	uint64_t seed = kv_random(&camp->seed);

	fflush(NULL);
	camp->pids[i] = fork();
	KV_MUST(camp->pids[i] >= 0);
	if (!camp->pids[i])
		run_client(camp->daemon.socket, camp->board, seed, camp->has_points, camp->is_strict);
}

/* Whoever was killed at a named place is followed by another; who ended in another way has found something. */
static void reap(struct campaign *camp)
{
	int status;

	for (uint32_t i = 0; i < CLIENTS; i++) {
		if (waitpid(camp->pids[i], &status, WNOHANG) != camp->pids[i])
			continue;
		KV_MUST(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		camp->nr_killed++;
		start_client(camp, i);
	}
}

static void begin(struct campaign *camp, uint64_t seed)
{
	memset(camp, 0, sizeof(*camp));
	camp->seed = seed;
	camp->board = mmap(NULL, sizeof(*camp->board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	KV_MUST(camp->board != MAP_FAILED);
	daemon_case_init(&camp->daemon);
	snprintf(camp->pool, sizeof(camp->pool), "embedded:64M:%s/pool", camp->daemon.dir);
	print_message("# seed %llu\n", (unsigned long long)seed);
}

static void start_daemon(struct campaign *camp)
{
	daemon_start(&camp->daemon, (const char *const []){ "--pool", camp->pool, "--reserve", "1M", NULL });
}

/* All is there that was told to be; nothing else is held. */
static void end(struct campaign *camp)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	uint32_t nr_committed = 0;
	struct kv_world world;
	uint64_t since;
	int status;

	camp->board->is_over = 1;
	for (uint32_t i = 0; i < CLIENTS; i++) {
		KV_MUST(waitpid(camp->pids[i], &status, 0) == camp->pids[i]);
		KV_MUST((WIFEXITED(status) && !WEXITSTATUS(status)) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
	}
	kv_world_connect_again(&world, KV_SHAPE_FULL, T, camp->daemon.socket);
	for (uint32_t i = 0; i < STORIES; i++) {
		struct omnikv_seq *seq;
		struct kv_story story;
		const char *why;

		if (!camp->board->is_committed[i])
			continue;
		story_of(&story, i);
		seq = kv_open(&world, &story, true);
		KV_MUST(omnikv_seq_tokens(seq) == story.nr_tokens);
		why = kv_compare(&world, seq, &story, 0, story.nr_tokens);
		if (why)
			kv_fail(why, __FILE__, __LINE__);
		omnikv_seq_close(seq);
		kv_story_free(&story);
		nr_committed++;
	}
	since = now_ms();
	do {
		omnikv_manager_reset(world.manager);
		sleep_ms(10);
		KV_MUST(!omnikv_pool_info(world.pool, &info));
	} while ((info.state_bytes[OMNIKV_EXTENT_SEALED] || info.state_bytes[OMNIKV_EXTENT_QUARANTINED] ||
		  info.state_bytes[OMNIKV_EXTENT_PRIVATE] > RESERVE) && now_ms() - since < 5000);
	print_message("# %llu requests, %llu tokens hit, %u of %u stories whole, longest request %llu ms\n",
		      (unsigned long long)camp->board->nr_rounds, (unsigned long long)camp->board->nr_hit_tokens, nr_committed,
		      STORIES, (unsigned long long)camp->board->longest_ms);
	assert_true(nr_committed > STORIES / 2);
	assert_int_equal(info.state_bytes[OMNIKV_EXTENT_SEALED], 0);
	assert_int_equal(info.state_bytes[OMNIKV_EXTENT_QUARANTINED], 0);
	assert_true(info.state_bytes[OMNIKV_EXTENT_PRIVATE] <= RESERVE);
	kv_world_detach(&world);
	/* R13: descriptors and mappings of the daemon are what they were. */
	for (since = now_ms(); camp->nr_fds && now_ms() - since < 5000; sleep_ms(10))
		if (process_fds(camp->daemon.pid) <= camp->nr_fds && process_maps(camp->daemon.pid) <= camp->nr_maps + 4)
			break;
	if (camp->nr_fds) {
		print_message("# descriptors %d and %d, mappings %d and %d\n", camp->nr_fds, process_fds(camp->daemon.pid),
			      camp->nr_maps, process_maps(camp->daemon.pid));
		assert_int_equal(process_fds(camp->daemon.pid), camp->nr_fds);
		/* The allocator's own may be a few more. */
		assert_true(process_maps(camp->daemon.pid) <= camp->nr_maps + 4);
	}
	assert_int_equal(daemon_stop(&camp->daemon, NULL), 0);
	daemon_case_fini(&camp->daemon);
	munmap(camp->board, sizeof(*camp->board));
}

static uint32_t scale(uint32_t few, uint32_t many)
{
	const char *full = getenv("OMNIKV_FULL");

	return full && *full == '1' ? many : few;
}

static void killed_processes_lose_nothing(void **state)
{
	uint32_t nr = scale(500, 10000);
	struct kv_world world;
	struct campaign camp;

	(void)state;
	begin(&camp, 20261129);
	camp.has_points = true;
	camp.is_strict = true;
	start_daemon(&camp);
	kv_world_connect_again(&world, KV_SHAPE_FULL, T, camp.daemon.socket);
	kv_world_detach(&world);
	sleep_ms(500);
	camp.nr_fds = process_fds(camp.daemon.pid);
	camp.nr_maps = process_maps(camp.daemon.pid);
	for (uint32_t i = 0; i < CLIENTS; i++)
		start_client(&camp, i);
	while (camp.nr_killed < nr) {
		uint32_t i = kv_random(&camp.seed) % CLIENTS;

		sleep_ms(kv_random(&camp.seed) % 20);
		kill(camp.pids[i], SIGKILL);
		sleep_ms(1);
		reap(&camp);
	}
	print_message("# %u processes killed\n", camp.nr_killed);
	/* Survivors do not wait for the dead; the machine may be busy with other things. */
	assert_true(camp.board->longest_ms < 5000);
	end(&camp);
}

static void killed_daemons_lose_nothing(void **state)
{
	uint32_t nr = scale(300, 5000);
	uint64_t longest_ms = 0;
	struct campaign camp;

	(void)state;
	begin(&camp, 20261130);
	start_daemon(&camp);
	for (uint32_t i = 0; i < CLIENTS; i++)
		start_client(&camp, i);
	for (uint32_t i = 0; i < nr; i++) {
		uint64_t since;

		sleep_ms(kv_random(&camp.seed) % 90);
		daemon_kill(&camp.daemon);
		since = now_ms();
		/* Some die while they recover what another one left. */
		for (uint32_t k = kv_random(&camp.seed) % 3; k; k--, i++) {
			daemon_spawn(&camp.daemon, (const char *const []){ "--pool", camp.pool, "--reserve", "1M", NULL });
			sleep_ms(kv_random(&camp.seed) % 30);
			daemon_kill(&camp.daemon);
		}
		start_daemon(&camp);
		if (now_ms() - since > longest_ms)
			longest_ms = now_ms() - since;
		reap(&camp);
	}
	print_message("# %u daemons killed, the next one served after %llu ms at most\n", nr,
		      (unsigned long long)longest_ms);
	end(&camp);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed_processes_lose_nothing),
		cmocka_unit_test(killed_daemons_lose_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

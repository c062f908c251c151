// SPDX-License-Identifier: GPL-2.0-only
/*
 * Campaigns of kills: see kill_campaign.h. What processes commit they note on a board in shared memory, so that it is
 * known whoever dies.
 */
#include "tests/harness/kill_campaign.h"

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "failpoint.h"

#define RESERVE		(1u << 20)

static const char *const points[] = {
	"attach.call", "import.find", "import.insert", "import.publish", "commit.seal", "commit.insert", "commit.publish",
	"conn.send", "sequence.append",
};

static void story_of(struct kv_story *story, uint32_t number)
{
	/* Eight roots with eight branches each: what one commits is the prefix of others. */
	uint64_t nr = 20 * CAMPAIGN_T + (number % 8) * 4 * CAMPAIGN_T + (number % 3) * 5;

	*story = (struct kv_story){ 0 };
	for (uint64_t i = 0; i < nr; i++)
		kv_story_add(story, i < 12 * CAMPAIGN_T ? (number / 8) * 1000 + i : number * 100000 + i);
}

static struct omnikv_manager_stats stats_of(const struct kv_world *world)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	KV_MUST(!omnikv_manager_stats(world->manager, &stats));
	return stats;
}

/* One request. */
static void request(const struct kv_world *world, struct campaign_board *board, uint32_t number, bool is_strict)
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

static void run_client(const char *socket, struct campaign_board *board, uint64_t seed, bool has_points, bool is_strict)
{
	struct kv_world world;

	if (kv_random(&seed) % 2)
		disturb();
	if (has_points && kv_random(&seed) % 2)
		okv_failpoint_arm(&(struct okv_failpoint){
			.name = points[kv_random(&seed) % (sizeof(points) / sizeof(points[0]))],
			.nth = 1 + kv_random(&seed) % 40, .flags = OKV_FAILPOINT_F_KILL,
		});
	kv_world_connect_again(&world, KV_SHAPE_FULL, CAMPAIGN_T, socket);
	while (!board->is_over)
		request(&world, board, kv_random(&seed) % CAMPAIGN_STORIES, is_strict);
	/* Leaves nothing that waits behind. */
	for (uint32_t i = 0; i < 500 && stats_of(&world).blocks_queued; i++) {
		omnikv_lookup(world.space, NULL, 0);
		request(&world, board, kv_random(&seed) % CAMPAIGN_STORIES, false);
		sleep_ms(10);
	}
	kv_world_detach(&world);
	_exit(0);
}

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
void campaign_reap(struct campaign *camp)
{
	int status;

	for (uint32_t i = 0; i < CAMPAIGN_CLIENTS; i++) {
		if (waitpid(camp->pids[i], &status, WNOHANG) != camp->pids[i])
			continue;
		KV_MUST(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
		camp->nr_killed++;
		start_client(camp, i);
	}
}

void campaign_begin(struct campaign *camp, uint64_t seed)
{
	memset(camp, 0, sizeof(*camp));
	camp->seed = seed;
	camp->board = mmap(NULL, sizeof(*camp->board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	KV_MUST(camp->board != MAP_FAILED);
	daemon_case_init(&camp->daemon);
	snprintf(camp->pool, sizeof(camp->pool), "embedded:24M:%s/pool", camp->daemon.dir);
	camp->options[0] = "--pool";
	camp->options[1] = camp->pool;
	camp->options[2] = "--reserve";
	camp->options[3] = "1M";
	print_message("# seed %llu\n", (unsigned long long)seed);
}

void campaign_start_clients(struct campaign *camp)
{
	for (uint32_t i = 0; i < CAMPAIGN_CLIENTS; i++)
		start_client(camp, i);
}

void campaign_note_daemon(struct campaign *camp)
{
	struct kv_world world;

	/* What it makes for its first client stays. */
	kv_world_connect_again(&world, KV_SHAPE_FULL, CAMPAIGN_T, camp->daemon.socket);
	kv_world_detach(&world);
	sleep_ms(500);
	camp->nr_fds = process_fds(camp->daemon.pid);
	camp->nr_maps = process_maps(camp->daemon.pid);
}

/* All is there that was told to be; nothing else is held. */
void campaign_end(struct campaign *camp)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	uint32_t nr_committed = 0;
	struct kv_world world;
	uint64_t since;
	int status;

	camp->board->is_over = 1;
	for (uint32_t i = 0; i < CAMPAIGN_CLIENTS; i++) {
		KV_MUST(waitpid(camp->pids[i], &status, 0) == camp->pids[i]);
		KV_MUST((WIFEXITED(status) && !WEXITSTATUS(status)) || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL));
	}
	kv_world_connect_again(&world, KV_SHAPE_FULL, CAMPAIGN_T, camp->daemon.socket);
	for (uint32_t i = 0; i < CAMPAIGN_STORIES; i++) {
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
		      CAMPAIGN_STORIES, (unsigned long long)camp->board->longest_ms);
	assert_true(nr_committed > CAMPAIGN_STORIES / 2);
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

uint32_t campaign_scale(uint32_t few, uint32_t many)
{
	const char *full = getenv("OMNIKV_FULL");

	return full && atoi(full) ? many : few;
}

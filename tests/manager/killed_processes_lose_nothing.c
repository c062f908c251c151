// SPDX-License-Identifier: GPL-2.0-only
/*
 * One of four processes is killed all the time, at any instruction or at a named place. What was committed is hit
 * afterwards, nothing is torn, and the daemon holds nothing for the dead. And one ends at each named place in turn, the
 * first to the 23rd time that it comes there, while another one goes on.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "failpoint.h"
#include "tests/harness/kill_campaign.h"

static void killed_processes_lose_nothing(void **state)
{
	uint32_t nr = campaign_scale(500, 10000);
	struct campaign camp;

	(void)state;
	campaign_begin(&camp, 20261129);
	camp.has_points = true;
	camp.is_strict = true;
	daemon_start(&camp.daemon, camp.options);
	campaign_note_daemon(&camp);
	campaign_start_clients(&camp);
	while (camp.nr_killed < nr) {
		uint32_t i = kv_random(&camp.seed) % CAMPAIGN_CLIENTS;

		sleep_ms(kv_random(&camp.seed) % 20);
		kill(camp.pids[i], SIGKILL);
		sleep_ms(1);
		campaign_reap(&camp);
	}
	print_message("# %u processes killed\n", camp.nr_killed);
	/* Survivors do not wait for the dead; the machine may be busy with other things. */
	assert_true(camp.board->longest_ms < 5000);
	campaign_end(&camp);
}

#define RESERVE		(1u << 20)
#define NTH_MAX		23u
#define REQUESTS_MAX	100u
/* Of a victim that was never there so often. */
#define NOT_REACHED	3

/* A request for a story of its own; how much of it was there. */
static uint64_t play(const struct kv_world *world, uint32_t salt)
{
	struct kv_story story = { 0 };
	struct omnikv_seq *seq;
	uint64_t hit;

	for (uint32_t i = 0; i < 12 * CAMPAIGN_T + 5; i++)
		kv_story_add(&story, i < 4 * CAMPAIGN_T ? i : salt * 100000 + i);
	seq = kv_open(world, &story, true);
	hit = omnikv_seq_tokens(seq);
	KV_MUST(!hit || !kv_compare(world, seq, &story, 0, hit));
	if (hit < story.nr_tokens && !omnikv_seq_append(seq, story.nr_tokens - hit)) {
		kv_store(world, seq, &story, hit, story.nr_tokens);
		KV_MUST(kv_commit(world, seq, &story, true) >= 0);
		KV_MUST(!kv_compare(world, seq, &story, 0, story.nr_tokens));
	}
	omnikv_seq_close(seq);
	kv_story_free(&story);
	return hit;
}

static int run_victim(const char *socket, const char *point, uint32_t nth, uint32_t salt)
{
	struct kv_world world;

	okv_failpoint_arm(&(struct okv_failpoint){ .name = point, .nth = nth, .flags = OKV_FAILPOINT_F_KILL });
	kv_world_connect(&world, KV_SHAPE_FULL, CAMPAIGN_T, socket, NULL);
	for (uint32_t i = 0; i < REQUESTS_MAX; i++)
		play(&world, salt + i);
	return NOT_REACHED;
}

static void run_survivor(const char *socket, struct campaign_board *board)
{
	struct kv_world world;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	kv_world_connect(&world, KV_SHAPE_FULL, CAMPAIGN_T, socket, NULL);
	for (uint32_t i = 0; !board->is_over; i++) {
		uint64_t since = now_ms();

		board->nr_hit_tokens += play(&world, i % 50);
		board->nr_rounds++;
		if (now_ms() - since > board->longest_ms)
			board->longest_ms = now_ms() - since;
	}
	kv_world_detach(&world);
	_exit(0);
}

/* All that is cached is dropped, and nothing else is there. */
static void nothing_is_held(const char *socket)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	uint64_t since = now_ms();
	struct kv_world world;

	kv_world_connect(&world, KV_SHAPE_FULL, CAMPAIGN_T, socket, NULL);
	do {
		omnikv_manager_reset(world.manager);
		sleep_ms(10);
		assert_int_equal(omnikv_pool_info(world.pool, &info), 0);
	} while ((info.state_bytes[OMNIKV_EXTENT_SEALED] || info.state_bytes[OMNIKV_EXTENT_QUARANTINED] ||
		  info.state_bytes[OMNIKV_EXTENT_PRIVATE] > RESERVE) && now_ms() - since < 10000);
	assert_int_equal(info.state_bytes[OMNIKV_EXTENT_SEALED], 0);
	assert_int_equal(info.state_bytes[OMNIKV_EXTENT_QUARANTINED], 0);
	assert_true(info.state_bytes[OMNIKV_EXTENT_PRIVATE] <= RESERVE);
	kv_world_detach(&world);
}

/* D3: others went on to wait for what a dead process had held. */
static void a_process_that_ends_anywhere_holds_up_nobody(void **state)
{
	static const char *const points[] = {
		"attach.call", "import.find", "import.found", "import.insert", "import.publish", "commit.seal", "commit.insert",
		"commit.publish", "conn.send", "sequence.append",
	};
	uint32_t nr_points = sizeof(points) / sizeof(points[0]), nr_reached = 0, salt = 1000;
	struct campaign_board *board;
	struct daemon_case daemon;
	pid_t survivor;
	int status;

	(void)state;
	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(board != MAP_FAILED);
	daemon_case_init(&daemon);
	daemon_start(&daemon, (const char *const []){ "--pool", "8M", "--reserve", "1M", NULL });
	fflush(NULL);
	survivor = fork();
	assert_true(survivor >= 0);
	if (!survivor)
		run_survivor(daemon.socket, board);
	for (uint32_t i = 0; i < nr_points * NTH_MAX; i++, salt += REQUESTS_MAX) {
		uint64_t nr_rounds = board->nr_rounds, since = now_ms();
		pid_t victim = fork();

		assert_true(victim >= 0);
		if (!victim)
			_exit(run_victim(daemon.socket, points[i % nr_points], 1 + i / nr_points, salt));
		assert_int_equal(waitpid(victim, &status, 0), victim);
		assert_true((WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) ||
			    (WIFEXITED(status) && WEXITSTATUS(status) == NOT_REACHED));
		nr_reached += WIFSIGNALED(status);
		/* The other one has not found anything wrong, and gets on. */
		while (board->nr_rounds < nr_rounds + 2 && now_ms() - since < 10000 && !waitpid(survivor, &status, WNOHANG))
			sleep_ms(1);
		assert_true(board->nr_rounds >= nr_rounds + 2);
	}
	board->is_over = 1;
	assert_int_equal(waitpid(survivor, &status, 0), survivor);
	assert_int_equal(status, 0);
	print_message("# ended at %u places; %llu requests of another one, %llu ms at most\n", nr_reached,
		      (unsigned long long)board->nr_rounds, (unsigned long long)board->longest_ms);
	assert_true(nr_reached >= 200);
	assert_true(board->nr_hit_tokens > 0);
	nothing_is_held(daemon.socket);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	daemon_case_fini(&daemon);
	munmap(board, sizeof(*board));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed_processes_lose_nothing),
		cmocka_unit_test(a_process_that_ends_anywhere_holds_up_nobody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

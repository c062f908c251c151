// SPDX-License-Identifier: GPL-2.0-only
/*
 * Four processes of four threads each over one daemon with a spill store, on a pool too small for what they ask for: they
 * hit, compute, commit, give up in the middle, and compare every byte that they hit, while one of them after the other is
 * killed. What the daemon has taken in the second half of that time is what it had taken in the first.
 *
 * 3 minutes; 2 hours with --full, OMNIKV_TEST_SECONDS for another time.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/harness/daemon_case.h"
#include "tests/harness/kill_campaign.h"
#include "tests/harness/kv_world.h"

#define T		16u
#define NR_PROCESSES	4u
#define NR_THREADS	4u
#define NR_STORIES	160u
#define RESERVE		(1u << 20)
#define KILL_EVERY_MS	15000u

/* Shared with the children. */
struct board {
	_Atomic bool		is_over;
	_Atomic uint64_t	nr_requests;
	_Atomic uint64_t	nr_verified;	/* tokens, each with all its rows */
	_Atomic uint64_t	nr_given_up;
};

struct thread {
	const struct kv_world	*world;
	uint64_t		seed;
};

static struct board *board;

/* Twenty roots with eight branches each. */
static void story_of(struct kv_story *story, uint32_t number)
{
	uint64_t nr = 12 * T + (number % 8) * 3 * T + (number % 3) * 5;

	*story = (struct kv_story){ 0 };
	for (uint64_t i = 0; i < nr; i++)
		kv_story_add(story, i < 8 * T ? (number / 8) * 1000 + (uint32_t)i : number * 100000 + (uint32_t)i);
}

static void request(const struct kv_world *world, uint64_t *seed)
{
	struct omnikv_seq *seq;
	struct kv_story story;
	const char *why;
	uint64_t hit;

	/* Some stories are asked for far more often than others. */
	story_of(&story, kv_random(seed) % 4 ? kv_random(seed) % 24 : kv_random(seed) % NR_STORIES);
	seq = kv_open(world, &story, true);
	hit = omnikv_seq_tokens(seq);
	why = hit ? kv_compare(world, seq, &story, 0, hit) : NULL;
	if (why)
		kv_fail(why, __FILE__, __LINE__);
	board->nr_verified += hit;
	if (hit < story.nr_tokens && kv_random(seed) % 8 == 0) {
		/* An engine whose request is cancelled in the middle of its prefill. */
		if (!omnikv_seq_append(seq, T))
			kv_store(world, seq, &story, hit, hit + T < story.nr_tokens ? hit + T : story.nr_tokens);
		board->nr_given_up++;
	} else if (hit < story.nr_tokens && !omnikv_seq_append(seq, story.nr_tokens - hit)) {
		kv_store(world, seq, &story, hit, story.nr_tokens);
		kv_commit(world, seq, &story, true);
		why = kv_compare(world, seq, &story, 0, story.nr_tokens);
		if (why)
			kv_fail(why, __FILE__, __LINE__);
	}
	omnikv_seq_close(seq);
	kv_story_free(&story);
	board->nr_requests++;
}

static void *run_thread(void *opaque)
{
	struct thread *thread = opaque;

	while (!board->is_over)
		request(thread->world, &thread->seed);
	return NULL;
}

static pid_t start_process(const struct daemon_case *daemon, uint64_t seed)
{
	const struct omnikv_attach_config config = { .size = sizeof(config), .deadline_ms = 30000, .reserve_bytes = RESERVE };
	static const int numbers[] = { SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL };
	struct thread threads[NR_THREADS];
	pthread_t ids[NR_THREADS];
	struct kv_world world;
	pid_t pid;

	fflush(NULL);
	pid = fork();
	KV_MUST(pid >= 0);
	if (pid)
		return pid;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* What ends a thread of it is to be seen here, and not to be taken for an exit. */
	for (uint32_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
		signal(numbers[i], SIG_DFL);
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon->socket, &config);
	for (uint32_t i = 0; i < NR_THREADS; i++) {
		threads[i] = (struct thread){ &world, seed + i };
		KV_MUST(!pthread_create(&ids[i], NULL, run_thread, &threads[i]));
	}
	for (uint32_t i = 0; i < NR_THREADS; i++)
		pthread_join(ids[i], NULL);
	kv_world_detach(&world);
	_exit(0);
}

/* Nobody is there: what the daemon has of clients, and of the cache once that is dropped. */
static void is_empty(const struct daemon_case *daemon, int nr_fds)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct kv_world world;
	uint64_t since = now_ms();

	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon->socket, NULL);
	assert_int_equal(omnikv_manager_shared_stats(world.manager, &stats), 0);
	print_message("# blocks: %llu committed, %llu evicted, %llu spilled, %llu fetched, %llu bad\n",
		      (unsigned long long)stats.blocks_committed, (unsigned long long)stats.blocks_evicted,
		      (unsigned long long)stats.blocks_spilled, (unsigned long long)stats.blocks_fetched,
		      (unsigned long long)stats.blocks_bad);
	/* Else it has shown little. */
	assert_true(stats.blocks_spilled && stats.blocks_fetched);
	assert_int_equal(stats.blocks_bad, 0);
	do {
		omnikv_manager_reset(world.manager);
		sleep_ms(10);
		KV_MUST(!omnikv_pool_info(world.pool, &info));
	} while ((info.state_bytes[OMNIKV_EXTENT_SEALED] || info.state_bytes[OMNIKV_EXTENT_QUARANTINED] ||
		  info.state_bytes[OMNIKV_EXTENT_PRIVATE] > RESERVE) && now_ms() - since < 10000);
	assert_int_equal(info.state_bytes[OMNIKV_EXTENT_SEALED], 0);
	assert_int_equal(info.state_bytes[OMNIKV_EXTENT_QUARANTINED], 0);
	assert_true(info.state_bytes[OMNIKV_EXTENT_PRIVATE] <= RESERVE);
	kv_world_detach(&world);
	for (since = now_ms(); process_fds(daemon->pid) != nr_fds && now_ms() - since < 10000;)
		sleep_ms(10);
	assert_int_equal(process_fds(daemon->pid), nr_fds);
}

static void engines_share_a_daemon_for_long(void **state)
{
	const char *text = getenv("OMNIKV_TEST_SECONDS");
	uint64_t ms = 1000 * (text ? strtoull(text, NULL, 10) : campaign_scale(180, 7200)), begun, half_requests = 0, seed = 14;
	char store[96], file[128];
	const char *const options[] = {
		"--pool", "4M", "--reserve", "1M", "--spill", store, "--spill-size", "64M", NULL,
	};
	uint32_t nr_killed = 0;
	pid_t pids[NR_PROCESSES];
	struct daemon_case daemon;
	long half_kib = 0, kib;
	int nr_fds, status;
	struct kv_world world;

	(void)state;
	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(board != MAP_FAILED);
	daemon_case_init(&daemon);
	snprintf(store, sizeof(store), "%s/store", daemon.dir);
	snprintf(file, sizeof(file), "%s/omnikv.spill", store);
	daemon_start(&daemon, options);
	/* What it makes for its first client stays. */
	kv_world_connect(&world, KV_SHAPE_FULL, T, daemon.socket, NULL);
	kv_world_detach(&world);
	sleep_ms(500);
	nr_fds = process_fds(daemon.pid);
	for (uint32_t i = 0; i < NR_PROCESSES; i++)
		pids[i] = start_process(&daemon, kv_random(&seed));
	for (begun = now_ms(); now_ms() - begun < ms;) {
		uint32_t i = kv_random(&seed) % NR_PROCESSES;

		sleep_ms((uint32_t)(ms / 12 < KILL_EVERY_MS ? ms / 12 : KILL_EVERY_MS));
		kill(pids[i], SIGKILL);
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
			fail_msg("a process ended with status 0x%x by itself", (unsigned int)status);
		nr_killed++;
		pids[i] = start_process(&daemon, kv_random(&seed));
		for (uint32_t k = 0; k < NR_PROCESSES; k++)
			if (waitpid(pids[k], &status, WNOHANG))
				fail_msg("a process ended with status 0x%x by itself", (unsigned int)status);
		if (!half_kib && now_ms() - begun > ms / 2) {
			half_kib = process_private_kib(daemon.pid);
			half_requests = board->nr_requests;
		}
	}
	kib = process_private_kib(daemon.pid);
	board->is_over = true;
	for (uint32_t i = 0; i < NR_PROCESSES; i++) {
		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		assert_int_equal(status, 0);
	}
	print_message("# %llu requests in %llu s, %llu in the first half; %llu tokens verified, %llu given up, %u killed\n",
		      (unsigned long long)board->nr_requests, (unsigned long long)ms / 1000, (unsigned long long)half_requests,
		      (unsigned long long)board->nr_verified, (unsigned long long)board->nr_given_up, nr_killed);
	print_message("# private memory of the daemon: %ld KiB at half time, %ld KiB at the end\n", half_kib, kib);
	assert_true(board->nr_verified > 0);
	assert_in_range(kib, 0, half_kib + half_kib / 100 + 2048);
	is_empty(&daemon, nr_fds);
	assert_int_equal(daemon_stop(&daemon, NULL), 0);
	unlink(file);
	rmdir(store);
	daemon_case_fini(&daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(engines_share_a_daemon_for_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * A daemon whose spill store is slow: who waits for it waits, and the requests of all others are answered meanwhile.
 *
 * The daemon runs in a child of the test, where fail-points make every batch that goes to the disk, or comes from there,
 * take SLOW_MS. Another child fills the pool over and over; this process asks for other things.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "failpoint.h"
#include "manager/frames.h"
#include "tests/harness/daemon_case.h"
#include "tests/harness/kv_world.h"
#include "tools/omnikvd/daemon.h"

#define T		16u
#define NR_STORIES	18u
#define STORY_BLOCKS	64u
#define SLOW_MS		2000u
/* Of a request that does not wait for the disk, on a machine that is busy with other things. */
#define QUICK_MS	1200u

/* What the two children and the test tell each other. */
struct board {
	volatile bool		is_over;
	volatile uint32_t	nr_played;
	volatile uint64_t	nr_hit;
	volatile uint32_t	nr_waits;	/* of the disk, in the daemon */
	volatile uint32_t	nr_paths;	/* that it made of what it knows alone */
};

static struct board *board;

static void make_story(struct kv_story *story, uint32_t salt, uint64_t nr_tokens)
{
	*story = (struct kv_story){ 0 };
	for (uint64_t i = 0; i < nr_tokens; i++)
		kv_story_add(story, salt * 100000 + (uint32_t)i);
}

static void say(void *opaque, const char *line)
{
	(void)opaque;
	fprintf(stderr, "# omnikvd: %s\n", line);
}

static int count_waits(void *opaque, const char *name)
{
	(void)opaque;
	(void)name;
	__atomic_fetch_add(&board->nr_waits, 1, __ATOMIC_RELAXED);
	return 0;
}

static int count_paths(void *opaque, const char *name)
{
	(void)opaque;
	(void)name;
	__atomic_fetch_add(&board->nr_paths, 1, __ATOMIC_RELAXED);
	return 0;
}

/* A slow one, or one that has no room for a second errand. */
static void run_daemon(const struct daemon_case *place, const char *pool, bool is_slow)
{
	static const char *const points[] = { "tier.demote", "tier.fetch" };
	static struct okv_daemon daemon = { .listen_fd = -1, .lock_fd = -1 };
	struct omnikv_error err = { "" };
	char spill[96];
	const char *const settings[][2] = {
		{ "socket", place->socket }, { "pool", pool }, { "reserve", "0" }, { "spill", spill }, { "spill-size", "256M" },
	};
	int ret;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(spill, sizeof(spill), "%s/spill", place->dir);
	ret = mkdir(spill, 0700) ? -errno : okv_config_init(&daemon.config);
	for (uint32_t i = 0; !ret && i < sizeof(settings) / sizeof(settings[0]); i++)
		ret = okv_config_set(&daemon.config, settings[i][0], settings[i][1], &err);
	if (!ret)
		ret = okv_daemon_listen(&daemon, NULL, &err);
	if (!ret)
		ret = okv_daemon_open_pool(&daemon, -1, say, &err);
	if (!is_slow) {
		okv_failpoint_arm(&(struct okv_failpoint){ .name = "errands.check", .nth = 2, .error = EBUSY });
		okv_failpoint_arm(&(struct okv_failpoint){ .name = "session.path", .fn = count_paths });
	}
	for (uint32_t i = 0; is_slow && i < sizeof(points) / sizeof(points[0]); i++)
		okv_failpoint_arm(&(struct okv_failpoint){ .name = points[i], .delay_ms = SLOW_MS, .fn = count_waits });
	if (!ret)
		ret = okv_daemon_serve(&daemon, &err);
	if (!ret)
		ret = okv_server_run(daemon.server);
	fprintf(stderr, "# the daemon ended: %d %s\n", ret, err.text);
	_exit(1);
}

/* Fills the pool, so that what was there goes to the disk, and asks for it again. Every byte that comes is compared. */
static void run_writer(const struct daemon_case *place)
{
	const struct omnikv_attach_config config = { .size = sizeof(config), .deadline_ms = 60000 };
	struct kv_world world;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	kv_world_connect(&world, KV_SHAPE_FULL, T, place->socket, &config);
	for (uint32_t round = 0; !board->is_over; round++) {
		struct kv_story story;
		struct omnikv_seq *seq;
		const char *why;
		uint64_t hit;

		make_story(&story, 1 + round % NR_STORIES, STORY_BLOCKS * T);
		seq = kv_open(&world, &story, false);
		hit = omnikv_seq_tokens(seq);
		why = hit ? kv_compare(&world, seq, &story, 0, hit) : NULL;
		if (why)
			kv_fail(why, __FILE__, __LINE__);
		board->nr_hit += hit;
		if (hit < story.nr_tokens && !omnikv_seq_append(seq, story.nr_tokens - hit)) {
			kv_store(&world, seq, &story, hit, story.nr_tokens);
			kv_commit(&world, seq, &story, false);
		}
		omnikv_seq_close(seq);
		kv_story_free(&story);
		board->nr_played++;
	}
	kv_world_detach(&world);
	_exit(0);
}

/* One of each kind of request that needs no disk; the longest of them. */
static uint64_t ask_others(const struct kv_world *world, uint32_t salt)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };
	uint64_t longest = 0, begun, ms;
	struct omnikv_match *match;
	struct kv_story story;
	struct omnikv_key *keys;

	make_story(&story, 5000 + salt, 8 * T);
	keys = kv_keys(world, &story, 8);
	for (uint32_t i = 0; i < 4; i++) {
		begun = now_ms();
		switch (i) {
		case 0:
			assert_int_equal(omnikv_match(world->space, keys, 8, NULL, &match), 0);
			assert_int_equal(omnikv_match_blocks(match), 0);
			omnikv_match_put(match);
			break;
		case 1:
			assert_int_equal(omnikv_space_promise(world->space, keys, 8, 1000), 0);
			break;
		case 2:
			assert_int_equal(omnikv_manager_shared_stats(world->manager, &stats), 0);
			break;
		case 3:
			assert_true(omnikv_admit(world->space, T) >= 0);
			break;
		}
		ms = now_ms() - begun;
		longest = ms > longest ? ms : longest;
	}
	free(keys);
	kv_story_free(&story);
	return longest;
}

/* One that does not wait for its answers: the daemon has only so much to do for it at once, and says so. */
static void ask_too_much(const struct daemon_case *place)
{
	const struct omnikv_attach_config config = { .size = sizeof(config), .deadline_ms = 100 };
	struct omnikv_key *keys;
	struct kv_story story;
	struct kv_world world;
	uint64_t begun;
	int64_t ret;

	kv_world_connect(&world, KV_SHAPE_FULL, T, place->socket, &config);
	make_story(&story, 7000, T);
	keys = kv_keys(&world, &story, 1);
	begun = now_ms();
	do {
		ret = omnikv_space_prefetch(world.space, keys, 1);
		assert_true(ret == 0 || ret == -ENOTCONN || ret == -EBUSY);
		sleep_ms(20);
	} while (ret != -EBUSY && now_ms() - begun < 60000);
	assert_int_equal(ret, -EBUSY);
	free(keys);
	kv_story_free(&story);
	kv_world_detach(&world);
}

/* In a child, with a board that it shares; its socket is there then. */
static pid_t start_daemon(struct daemon_case *place, const char *pool, bool is_slow)
{
	uint64_t begun = now_ms();
	pid_t daemon;

	board = mmap(NULL, sizeof(*board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(board != MAP_FAILED);
	daemon_case_init(place);
	daemon = fork();
	assert_true(daemon >= 0);
	if (!daemon)
		run_daemon(place, pool, is_slow);
	while (access(place->socket, F_OK) && now_ms() - begun < 20000)
		sleep_ms(10);
	return daemon;
}

static void others_are_answered_while_one_waits_for_the_disk(void **state)
{
	const struct omnikv_attach_config config = { .size = sizeof(config), .deadline_ms = 60000 };
	uint64_t longest = 0, ms, begun = now_ms();
	struct daemon_case place;
	struct kv_world world;
	pid_t daemon, writer;
	uint32_t nr_asked = 0;
	char command[128];
	int status;

	(void)state;
	daemon = start_daemon(&place, "4M", true);
	kv_world_connect(&world, KV_SHAPE_FULL, T, place.socket, &config);
	writer = fork();
	assert_true(writer >= 0);
	if (!writer)
		run_writer(&place);

	/* Until the disk was waited for in both directions. */
	while ((board->nr_waits < 4 || !board->nr_hit) && now_ms() - begun < 60000) {
		ms = ask_others(&world, nr_asked++);
		longest = ms > longest ? ms : longest;
		sleep_ms(20);
	}
	print_message("# %u waits for the disk, %u rounds of requests, the slowest took %llu ms\n", board->nr_waits, nr_asked,
		      (unsigned long long)longest);
	assert_true(board->nr_waits >= 4);
	assert_true(board->nr_hit > 0);
	assert_in_range(longest, 0, QUICK_MS);
	ask_too_much(&place);
	board->is_over = true;
	assert_int_equal(waitpid(writer, &status, 0), writer);
	assert_int_equal(status, 0);

	/* A raised epoch is noted on the same disk. */
	assert_int_equal(omnikv_manager_raise_epoch(world.manager), 1);
	kv_world_detach(&world);
	assert_int_equal(waitpid(daemon, &status, WNOHANG), 0);
	kill(daemon, SIGKILL);
	waitpid(daemon, &status, 0);
	snprintf(command, sizeof(command), "rm -r %s/spill", place.dir);
	assert_int_equal(system(command), 0);
	daemon_case_fini(&place);
}

/* A prefix in two frames, of which the daemon has to make the keys of the first itself for the second. */
static void a_prefix_that_is_refused_is_not_made_first(void **state)
{
	const uint32_t nr = OKV_WIRE_KEYS_MAX + 8;
	struct daemon_case place;
	struct omnikv_seq *seq;
	struct omnikv_key *keys;
	struct kv_story story;
	struct kv_world world;
	char command[128];
	pid_t daemon;
	int status;

	(void)state;
	daemon = start_daemon(&place, "32M", false);
	kv_world_connect(&world, KV_SHAPE_FULL, T, place.socket, NULL);
	make_story(&story, 1, nr * T);
	seq = kv_open(&world, &story, false);
	assert_int_equal(omnikv_seq_append(seq, story.nr_tokens), 0);
	kv_store(&world, seq, &story, 0, story.nr_tokens);
	assert_int_equal(kv_commit(&world, seq, &story, false), nr);
	omnikv_seq_close(seq);
	keys = kv_keys(&world, &story, nr);
	assert_int_equal(omnikv_space_prefetch(world.space, keys, nr), -EBUSY);
	assert_int_equal(board->nr_paths, 0);
	/* Nor for a lookup, which finds what is in memory by itself and asks for the rest. */
	for (uint32_t i = 0; i < 8 * T; i++)
		kv_story_add(&story, i);
	seq = kv_open(&world, &story, false);
	assert_int_equal(omnikv_seq_tokens(seq), nr * T);
	omnikv_seq_close(seq);
	assert_int_equal(board->nr_paths, 0);
	free(keys);
	kv_story_free(&story);
	kv_world_detach(&world);
	kill(daemon, SIGKILL);
	waitpid(daemon, &status, 0);
	snprintf(command, sizeof(command), "rm -r %s/spill", place.dir);
	assert_int_equal(system(command), 0);
	daemon_case_fini(&place);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(others_are_answered_while_one_waits_for_the_disk),
		cmocka_unit_test(a_prefix_that_is_refused_is_not_made_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

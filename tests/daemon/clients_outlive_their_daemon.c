// SPDX-License-Identifier: GPL-2.0-only
/*
 * A daemon without anybody who keeps its descriptors is killed and started anew over the pool's file:
 * meanwhile its clients live on their reserve, and afterwards they go on as the clients that they were.
 *
 * One thread; some clients are processes of their own.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <omnikv/pool.h>
#include <omnikv/window.h>

#include "tests/harness/daemon_case.h"

#define NR_GRANULES	4096u
#define RESERVE		64u	/* granules */

static struct daemon_case the_daemon;
static char pool_text[128], spec[128];
static const char *options[] = { "--pool", pool_text, "--manager", "no", "--reserve", "256K", NULL };

static int set_up(void **state)
{
	(void)state;
	daemon_case_init(&the_daemon);
	snprintf(pool_text, sizeof(pool_text), "embedded:16M:%s/pool", the_daemon.dir);
	snprintf(spec, sizeof(spec), "daemon:%s", the_daemon.socket);
	daemon_start(&the_daemon, options);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	daemon_case_fini(&the_daemon);
	return 0;
}

static struct omnikv_pool *open_pool(void)
{
	struct omnikv_error err = { "" };
	struct omnikv_pool *pool;

	if (omnikv_pool_open(spec, NULL, &pool, &err))
		fail_msg("%s", err.text);
	return pool;
}

static uint64_t granules_in(struct omnikv_pool *pool, int state)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	return info.state_bytes[state] / 4096;
}

/* Whatever the library makes of a pause between attempts to connect, it ends. */
static void until_there(struct omnikv_pool *pool, struct omnikv_client *client)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_extent any;
	uint64_t from;
	int i;

	/* What a client owns it is told without the daemon; a list is the daemon's. */
	for (i = 0; i < 500; i++) {
		from = 0;
		if (!omnikv_pool_info(pool, &info) &&
		    omnikv_extent_list(client, 1u << OMNIKV_EXTENT_PRIVATE, &from, &any, 1) >= 0)
			break;
		sleep_ms(10);
	}
	assert_in_range(i, 0, 499);
}

static void allocation_lives_on_the_reserve_while_the_daemon_is_away(void **state)
{
	struct omnikv_pool *pool = open_pool();
	struct omnikv_window *window;
	struct omnikv_client *engine;
	struct omnikv_extent mine, sealed, ext[RESERVE], again;
	struct omnikv_bind bind;
	uint32_t i, nr;

	(void)state;
	assert_int_equal(omnikv_client_open(pool, 0, &engine), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 1, 1, NULL, 0, &mine), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 1, 1, NULL, 0, &sealed), 0);
	assert_int_equal(omnikv_extent_seal(engine, &sealed, 1), 0);
	assert_int_equal(granules_in(pool, OMNIKV_EXTENT_PRIVATE), 1 + RESERVE);
	memset(omnikv_pool_addr(pool, &mine), 0x11, 4096);

	daemon_kill(&the_daemon);
	for (nr = 0; nr < RESERVE; nr++) {
		assert_int_equal(omnikv_extent_alloc(engine, 1, 1, NULL, 0, &ext[nr]), 0);
		/* As zero as any. */
		for (i = 0; i < 4096; i += 511)
			assert_int_equal(((unsigned char *)omnikv_pool_addr(pool, &ext[nr]))[i], 0);
		memset(omnikv_pool_addr(pool, &ext[nr]), 0x22, 4096);
	}
	assert_int_equal(omnikv_extent_alloc(engine, 1, 1, NULL, 0, &again), -ENOTCONN);
	/* What is freed can be used again, and only that. */
	assert_int_equal(omnikv_extent_free(engine, &ext[7], 1), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 1, 1, NULL, 0, &again), 0);
	assert_int_equal(again.granule, ext[7].granule);
	assert_int_equal(*(unsigned char *)omnikv_pool_addr(pool, &again), 0);
	/* One with a transfer is not. */
	assert_int_equal(omnikv_extent_io_get(engine, &ext[8], 1), 0);
	assert_int_equal(omnikv_extent_free(engine, &ext[8], 1), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 1, 1, NULL, 0, &again), -ENOTCONN);

	/* Leases and windows need nobody. */
	assert_int_equal(omnikv_extent_lease(engine, &sealed, 1), 0);
	assert_int_equal(omnikv_window_create(engine, 4096, 0, &window), 0);
	bind = (struct omnikv_bind){ .extent = sealed, .bytes = 4096 };
	assert_int_equal(omnikv_window_bind(window, &bind, 1, NULL), 0);
	assert_int_equal(omnikv_extent_seal(engine, &mine, 1), -ENOTCONN);

	daemon_start(&the_daemon, options);
	until_there(pool, engine);
	assert_int_equal(omnikv_extent_seal(engine, &mine, 1), 0);
	assert_int_equal(*(unsigned char *)omnikv_pool_addr(pool, &mine), 0x11);
	/* All but what was sealed or given back: the one with a transfer waits for its end. */
	assert_int_equal(granules_in(pool, OMNIKV_EXTENT_SEALED), 2);
	assert_int_equal(granules_in(pool, OMNIKV_EXTENT_PRIVATE), RESERVE - 1);
	assert_int_equal(granules_in(pool, OMNIKV_EXTENT_QUARANTINED), 1);
	omnikv_extent_io_put(engine, &ext[8], 1);
	assert_int_equal(granules_in(pool, OMNIKV_EXTENT_QUARANTINED), 0);
	omnikv_window_destroy(window);
	omnikv_client_close(engine);
	assert_int_equal(granules_in(pool, OMNIKV_EXTENT_FREE), NR_GRANULES - 2);
	omnikv_pool_close(pool);
}

static void a_daemon_that_hangs_holds_nobody_up(void **state)
{
	struct omnikv_pool *pool = open_pool();
	struct omnikv_client *engine;
	struct omnikv_extent mine[RESERVE], ext;
	uint64_t begin;
	uint32_t i;

	(void)state;
	assert_int_equal(omnikv_client_open(pool, 0, &engine), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 1, 1, NULL, 0, &ext), 0);
	kill(the_daemon.pid, SIGSTOP);
	/* The first one waits for its deadline, those behind it no more. */
	begin = now_ms();
	assert_int_equal(omnikv_extent_alloc(engine, 1, 1, NULL, 0, &mine[0]), 0);
	assert_in_range(now_ms() - begin, 0, 8000);
	begin = now_ms();
	for (i = 1; i < 10; i++)
		assert_int_equal(omnikv_extent_alloc(engine, 1, 1, NULL, 0, &mine[i]), 0);
	assert_in_range(now_ms() - begin, 0, 5000);
	kill(the_daemon.pid, SIGCONT);
	sleep_ms(200);
	/* It has done what nobody waited for any more; that is given back. */
	assert_int_equal(omnikv_extent_alloc(engine, 1, 1, NULL, 0, &mine[i]), 0);
	assert_in_range(granules_in(pool, OMNIKV_EXTENT_PRIVATE), 12, 12 + RESERVE);
	assert_int_equal(omnikv_extent_seal(engine, mine, 11), 0);
	assert_int_equal(granules_in(pool, OMNIKV_EXTENT_SEALED), 11);
	omnikv_client_close(engine);
	assert_int_equal(granules_in(pool, OMNIKV_EXTENT_FREE), NR_GRANULES - 11);
	omnikv_pool_close(pool);
}

/* A daemon that dies with a request to seal: nobody can tell whether it did so, and who reads the bytes by now. */
static void what_was_to_be_sealed_is_not_used_again(void **state)
{
	struct omnikv_pool *pool = open_pool();
	struct omnikv_client *engine;
	struct omnikv_extent mine[2], ext;
	uint32_t i, nr = 0;

	(void)state;
	assert_int_equal(omnikv_client_open(pool, 0, &engine), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 1, 2, NULL, 0, mine), 0);
	/* One is sealed and nobody hears of it; of the other one the daemon never reads. */
	for (i = 0; i < 2; i++) {
		kill(the_daemon.pid, SIGSTOP);
		assert_int_equal(omnikv_extent_seal(engine, &mine[i], 1), -ETIME);
		if (i == 1)
			break;
		kill(the_daemon.pid, SIGCONT);
		for (nr = 0; nr < 500 && granules_in(pool, OMNIKV_EXTENT_SEALED) != 1; nr++)
			sleep_ms(10);
		until_there(pool, engine);
	}
	daemon_kill(&the_daemon);
	assert_int_equal(omnikv_extent_free(engine, mine, 2), 0);
	for (nr = 0; !omnikv_extent_alloc(engine, 1, 1, NULL, 0, &ext); nr++)
		for (i = 0; i < 2; i++)
			assert_int_not_equal(ext.granule, mine[i].granule);
	assert_in_range(nr, 1, RESERVE);

	daemon_start(&the_daemon, options);
	until_there(pool, engine);
	assert_int_equal(granules_in(pool, OMNIKV_EXTENT_SEALED), 1);
	/* The next request has what was left lying about compared, and given back. */
	assert_int_equal(omnikv_extent_alloc(engine, 1, 1, NULL, 0, &ext), 0);
	assert_int_equal(omnikv_extent_seal(engine, &ext, 1), 0);
	omnikv_client_close(engine);
	assert_int_equal(granules_in(pool, OMNIKV_EXTENT_FREE), NR_GRANULES - 2);
	omnikv_pool_close(pool);
}

/*
 * A client of this pool of which a block was sealed by a request that got no reply; the pool's manager gives it up.
 * @is_told: the client has asked for that as well, and was refused
 */
static struct omnikv_client *client_whose_block_went_unheard(struct omnikv_pool *pool, struct omnikv_client *boss,
							     bool is_told, struct omnikv_extent *gone)
{
	struct omnikv_client *engine;
	int i;

	assert_int_equal(omnikv_client_open(pool, 0, &engine), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 1, 1, NULL, 0, gone), 0);
	kill(the_daemon.pid, SIGSTOP);
	assert_int_equal(omnikv_extent_seal(engine, gone, 1), -ETIME);
	kill(the_daemon.pid, SIGCONT);
	for (i = 0; i < 500 && granules_in(pool, OMNIKV_EXTENT_SEALED) != 1; i++)
		sleep_ms(10);
	until_there(pool, engine);
	if (is_told)
		assert_int_equal(omnikv_extent_free(engine, gone, 1), -EPERM);
	assert_int_equal(omnikv_extent_free(boss, gone, 1), 0);
	return engine;
}

/* The memory at @gone's place, anew; what lies before it is taken and stays so. */
static void take_place(struct omnikv_client *client, const struct omnikv_extent *gone, struct omnikv_extent *ext)
{
	do
		assert_int_equal(omnikv_extent_alloc(client, 1, 1, NULL, 0, ext), 0);
	while (ext->granule != gone->granule);
	assert_int_not_equal(ext->generation, gone->generation);
}

/* The next daemon compares what the client has with what is noted for it, and @live is among it. */
static void check_is_kept(struct omnikv_pool *pool, struct omnikv_client *engine, const struct omnikv_extent *live)
{
	struct omnikv_extent_info info = { .size = sizeof(info) };
	struct omnikv_extent ext;

	daemon_kill(&the_daemon);
	daemon_start(&the_daemon, options);
	until_there(pool, engine);
	assert_int_equal(omnikv_extent_alloc(engine, 1, 1, NULL, 0, &ext), 0);
	assert_int_equal(omnikv_extent_query(engine, live, &info), 0);
	assert_int_equal(info.state, OMNIKV_EXTENT_PRIVATE);
	assert_true(info.is_mine);
}

/* It is in use. What an old request may have left there is given back, and it is none of that. */
static void memory_of_a_block_that_went_unheard_is_not_given_up_anew(void **state)
{
	struct omnikv_pool *pool = open_pool();
	struct omnikv_client *boss, *engine;
	struct omnikv_extent gone, live;

	(void)state;
	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &boss), 0);
	engine = client_whose_block_went_unheard(pool, boss, true, &gone);
	take_place(engine, &gone, &live);
	check_is_kept(pool, engine, &live);
	omnikv_client_close(engine);
	omnikv_client_close(boss);
	assert_int_equal(granules_in(pool, OMNIKV_EXTENT_FREE), NR_GRANULES);
	omnikv_pool_close(pool);
}

static void a_lease_on_memory_of_a_block_that_went_unheard_ends(void **state)
{
	struct omnikv_pool *pool = open_pool();
	struct omnikv_client *boss, *engine;
	struct omnikv_extent gone, theirs;

	(void)state;
	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &boss), 0);
	engine = client_whose_block_went_unheard(pool, boss, false, &gone);
	take_place(boss, &gone, &theirs);
	assert_int_equal(omnikv_extent_seal(boss, &theirs, 1), 0);
	assert_int_equal(omnikv_extent_lease(engine, &theirs, 1), 0);
	assert_int_equal(omnikv_extent_release(engine, &theirs, 1), 0);
	assert_int_equal(omnikv_extent_free(boss, &theirs, 1), 0);
	assert_int_equal(granules_in(pool, OMNIKV_EXTENT_QUARANTINED), 0);
	omnikv_client_close(engine);
	omnikv_client_close(boss);
	assert_int_equal(granules_in(pool, OMNIKV_EXTENT_FREE), NR_GRANULES);
	omnikv_pool_close(pool);
}

/* It is refused, and what the client has there under the new name stays known as its own. */
static void memory_leased_by_an_old_name_is_not_given_up_anew(void **state)
{
	struct omnikv_pool *pool = open_pool();
	struct omnikv_extent gone, live;
	struct omnikv_client *engine;

	(void)state;
	assert_int_equal(omnikv_client_open(pool, 0, &engine), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 1, 1, NULL, 0, &gone), 0);
	assert_int_equal(omnikv_extent_free(engine, &gone, 1), 0);
	take_place(engine, &gone, &live);
	assert_int_equal(omnikv_extent_lease(engine, &gone, 1), -ESTALE);
	assert_int_equal(omnikv_extent_io_get(engine, &gone, 1), -ESTALE);
	check_is_kept(pool, engine, &live);
	omnikv_client_close(engine);
	assert_int_equal(granules_in(pool, OMNIKV_EXTENT_FREE), NR_GRANULES);
	omnikv_pool_close(pool);
}

/* A process with a client: leases @ext, allocates, says so, and waits to be killed. */
static pid_t start_client(const struct omnikv_extent *ext, uint32_t nr_granules)
{
	int pipes[2];
	char byte;
	pid_t pid;

	assert_int_equal(pipe(pipes), 0);
	pid = fork();
	if (!pid) {
		struct omnikv_client *client;
		struct omnikv_extent mine;
		struct omnikv_pool *pool;

		if (omnikv_pool_open(spec, NULL, &pool, NULL) || omnikv_client_open(pool, 0, &client) ||
		    omnikv_extent_lease(client, ext, 1) ||
		    omnikv_extent_alloc(client, nr_granules, 1, NULL, 0, &mine) || write(pipes[1], "x", 1) != 1)
			_exit(1);
		for (;;)
			pause();
	}
	close(pipes[1]);
	assert_int_equal(read(pipes[0], &byte, 1), 1);
	close(pipes[0]);
	return pid;
}

static void end_client(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

static void what_idle_clients_hold_is_not_used_again(void **state)
{
	struct omnikv_pool *pool = open_pool();
	struct omnikv_client *boss;
	struct omnikv_extent leased[2], ext;
	pid_t lives, dies;
	int i;

	(void)state;
	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &boss), 0);
	assert_int_equal(omnikv_extent_alloc(boss, 8, 2, NULL, 0, leased), 0);
	assert_int_equal(omnikv_extent_seal(boss, leased, 2), 0);
	lives = start_client(&leased[0], 100);
	dies = start_client(&leased[1], 200);
	daemon_kill(&the_daemon);
	end_client(dies);

	/* The one that lives does nothing, and keeps what it has. */
	daemon_start(&the_daemon, options);
	until_there(pool, boss);
	for (i = 0; i < 200 && omnikv_extent_free(boss, leased, 2) == -ENOTCONN; i++)
		sleep_ms(10);
	assert_int_equal(granules_in(pool, OMNIKV_EXTENT_QUARANTINED), 8);
	/* The manager's own reserve is PRIVATE too. */
	assert_in_range(granules_in(pool, OMNIKV_EXTENT_PRIVATE), 100, 100 + RESERVE);
	assert_int_equal(omnikv_extent_alloc(boss, NR_GRANULES, 1, NULL, 0, &ext), -ENOSPC);
	end_client(lives);
	for (i = 0; i < 200 && granules_in(pool, OMNIKV_EXTENT_QUARANTINED); i++)
		sleep_ms(10);
	omnikv_client_close(boss);
	assert_int_equal(granules_in(pool, OMNIKV_EXTENT_FREE), NR_GRANULES);
	omnikv_pool_close(pool);
}

static void a_daemon_with_another_pool_is_none(void **state)
{
	const char *const other[] = { "--pool", "16M", "--manager", "no", NULL };
	struct omnikv_pool *pool = open_pool();
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_client *engine;
	struct omnikv_extent ext, sealed;
	uint64_t begin;
	int i;

	(void)state;
	assert_int_equal(omnikv_client_open(pool, 0, &engine), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 4, 1, NULL, 0, &sealed), 0);
	assert_int_equal(omnikv_extent_seal(engine, &sealed, 1), 0);
	memset(omnikv_pool_addr(pool, &sealed), 0x33, 4096);
	daemon_kill(&the_daemon);
	daemon_start(&the_daemon, other);
	/* Never an extent of the other pool, and no waiting either. */
	begin = now_ms();
	for (i = 0; i < 40; i++) {
		assert_int_equal(omnikv_extent_alloc(engine, 300, 1, NULL, 0, &ext), -ENOTCONN);
		assert_int_equal(omnikv_pool_info(pool, &info), -ENOTCONN);
		sleep_ms(10);
	}
	assert_true(now_ms() - begin < 5000);
	assert_int_equal(*(unsigned char *)omnikv_pool_addr(pool, &sealed), 0x33);
	omnikv_client_close(engine);
	omnikv_pool_close(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		TEST(allocation_lives_on_the_reserve_while_the_daemon_is_away),
		TEST(a_daemon_that_hangs_holds_nobody_up),
		TEST(what_was_to_be_sealed_is_not_used_again),
		TEST(memory_of_a_block_that_went_unheard_is_not_given_up_anew),
		TEST(a_lease_on_memory_of_a_block_that_went_unheard_ends),
		TEST(memory_leased_by_an_old_name_is_not_given_up_anew),
		TEST(what_idle_clients_hold_is_not_used_again),
		TEST(a_daemon_with_another_pool_is_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

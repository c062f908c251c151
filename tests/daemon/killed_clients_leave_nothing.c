// SPDX-License-Identifier: GPL-2.0-only
/*
 * Two hundred clients are killed at moments that they did not choose: afterwards the daemon has the
 * descriptors, mappings and memory that it had before, the pool is free, and nobody else noticed.
 *
 * The survivor is the test itself. OMNIKV_TEST_SEED takes another seed.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <omnikv/pool.h>
#include <omnikv/window.h>

#include "tests/harness/daemon_case.h"

#define NR_GRANULES	8192u
#define NR_CLIENTS	200
#define AT_ONCE		10
#define STALL_MS	1000

static uint64_t rng = 0x853c49e6748fea9bull;

static uint32_t random_below(uint32_t n)
{
	rng ^= rng << 13;
	rng ^= rng >> 7;
	rng ^= rng << 17;
	return (uint32_t)((rng >> 16) % n);
}

/* Everything that a client can do, until it is killed. Bytes that it owns or leases must stay its own. */
static void run_client(const char *spec)
{
	struct omnikv_client *client;
	struct omnikv_window *window;
	struct omnikv_extent ext[8];
	struct omnikv_pool *pool;
	uint32_t mark = (uint32_t)getpid(), i, k;

	rng ^= (uint64_t)getpid() << 20;
	if (omnikv_pool_open(spec, NULL, &pool, NULL) || omnikv_client_open(pool, 0, &client) ||
	    omnikv_window_create(client, 8 * 4096, OMNIKV_WINDOW_F_RW, &window))
		_exit(1);
	for (;;) {
		uint32_t nr = 1 + random_below(8);

		if (omnikv_extent_alloc(client, 1, nr, NULL, 0, ext))
			continue;
		for (i = 0; i < nr; i++) {
			struct omnikv_bind bind = { .extent = ext[i], .window_off = i * 4096, .bytes = 4096 };
			uint32_t *words = omnikv_pool_addr(pool, &ext[i]);

			for (k = 0; k < 1024; k += 128)
				words[k] = mark;
			if (omnikv_window_bind(window, &bind, 1, NULL))
				_exit(2);
		}
		if (omnikv_extent_io_get(client, ext, nr))
			_exit(3);
		for (i = 0; i < nr; i++) {
			uint32_t *words = omnikv_pool_addr(pool, &ext[i]);

			for (k = 0; k < 1024; k += 128)
				if (words[k] != mark)
					_exit(4);
		}
		omnikv_extent_io_put(client, ext, nr);
		if (random_below(2)) {
			if (omnikv_extent_free(client, ext, nr))
				_exit(5);
		} else if (omnikv_extent_seal(client, ext, nr)) {
			_exit(6);
		}
	}
}

/* What clients sealed, the manager frees; figures of the pool. */
static void free_sealed(struct omnikv_client *boss)
{
	struct omnikv_extent ext[256];
	uint64_t from = 0;
	int64_t nr;

	while (from != UINT64_MAX) {
		nr = omnikv_extent_list(boss, 1u << OMNIKV_EXTENT_SEALED, &from, ext, 256);
		assert_true(nr >= 0);
		if (nr)
			assert_int_equal(omnikv_extent_free(boss, ext, (uint32_t)nr), 0);
	}
}

static void the_daemon_has_what_it_had_before(void **state)
{
	const char *const options[] = { "--pool", "32M", "--manager", "no", "--reserve", "64K", NULL };
	const char *seed = getenv("OMNIKV_TEST_SEED");
	struct omnikv_pool_info info = { .size = sizeof(info) };
	int fds, maps, killed = 0, running = 0, status, i;
	struct daemon_case the_daemon;
	struct omnikv_client *boss;
	pid_t pids[AT_ONCE] = { 0 };
	uint64_t begin, worst = 0, end;
	struct omnikv_pool *pool;
	struct omnikv_extent ext;
	char spec[128];
	long kib;

	(void)state;
	if (seed)
		rng ^= strtoull(seed, NULL, 10) * 0x9e3779b97f4a7c15ull;
	daemon_case_init(&the_daemon);
	daemon_start(&the_daemon, options);
	snprintf(spec, sizeof(spec), "daemon:%s", the_daemon.socket);
	assert_int_equal(omnikv_pool_open(spec, NULL, &pool, NULL), 0);
	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &boss), 0);
	sleep_ms(100);
	fds = process_fds(the_daemon.pid);
	maps = process_maps(the_daemon.pid);
	kib = process_private_kib(the_daemon.pid);

	while (killed < NR_CLIENTS) {
		for (i = 0; i < AT_ONCE; i++) {
			if (pids[i] && !random_below(4)) {
				kill(pids[i], SIGKILL);
				assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
				/* It did not end by itself, by what it saw. */
				assert_true(WIFSIGNALED(status));
				pids[i] = 0;
				killed++;
				running--;
			} else if (!pids[i] && killed + running < NR_CLIENTS) {
				pids[i] = fork();
				if (!pids[i])
					run_client(spec);
				running++;
			}
		}
		begin = now_ms();
		if (!omnikv_extent_alloc(boss, 2, 1, NULL, 0, &ext))
			assert_int_equal(omnikv_extent_free(boss, &ext, 1), 0);
		if (now_ms() - begin > worst)
			worst = now_ms() - begin;
		free_sealed(boss);
		sleep_ms(random_below(10));
	}
	print_message("# longest wait of the survivor: %d ms\n", (int)worst);
	assert_in_range(worst, 0, STALL_MS - 1);

	end = now_ms() + 10000;
	do {
		sleep_ms(20);
		free_sealed(boss);
		assert_int_equal(omnikv_pool_info(pool, &info), 0);
	} while ((info.nr_clients != 1 || process_fds(the_daemon.pid) != fds) && now_ms() < end);
	assert_int_equal(info.nr_clients, 1);
	/* Of the manager's own reserve. */
	assert_in_range(info.state_bytes[OMNIKV_EXTENT_PRIVATE], 0, 64 << 10);
	assert_int_equal(info.state_bytes[OMNIKV_EXTENT_QUARANTINED], 0);
	assert_int_equal(info.state_bytes[OMNIKV_EXTENT_SEALED], 0);
	assert_int_equal(process_fds(the_daemon.pid), fds);
	/* An allocator takes some for itself; one a client would be 200. */
	assert_in_range(process_maps(the_daemon.pid), 0, maps + 40);
	assert_in_range(process_private_kib(the_daemon.pid), 0, kib + 2048);
	omnikv_client_close(boss);
	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	assert_int_equal(info.free_bytes, NR_GRANULES * 4096ull);
	omnikv_pool_close(pool);
	daemon_case_fini(&the_daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_daemon_has_what_it_had_before),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

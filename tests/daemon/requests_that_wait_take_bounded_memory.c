// SPDX-License-Identifier: GPL-2.0-only
/*
 * Requests that wait for the disk keep what they are about: how many bytes that may be, of one client and of all, and
 * that one of any size goes by itself.
 */
#include <errno.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tools/omnikvd/errands.h"

static struct okv_server *server;
static struct okv_errands *errands;
static sem_t may_run;
static uint32_t nr_done;

static void run(struct okv_errand *errand)
{
	(void)errand;
	sem_wait(&may_run);
}

static void done(struct okv_errand *errand, struct okv_peer *peer)
{
	assert_null(peer);
	nr_done++;
	free(errand);
}

static int add(uint64_t peer, uint64_t bytes)
{
	struct okv_errand *errand = calloc(1, sizeof(*errand));
	int ret;

	assert_non_null(errand);
	*errand = (struct okv_errand){ .run = run, .done = done, .peer = peer, .bytes = bytes };
	ret = okv_errands_add(errands, errand);
	if (ret)
		free(errand);
	return ret;
}

static void finish(uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++)
		sem_post(&may_run);
	for (nr += nr_done; nr_done < nr;)
		assert_int_equal(okv_server_turn(server, 10000), 0);
}

static int begin(void **state)
{
	const struct okv_server_config config = { .peers_max = 1 };

	(void)state;
	nr_done = 0;
	sem_init(&may_run, 0, 0);
	assert_int_equal(okv_server_create(&config, &server), 0);
	assert_int_equal(okv_errands_create(server, &errands), 0);
	return 0;
}

static int end(void **state)
{
	(void)state;
	okv_errands_destroy(errands);
	okv_server_destroy(server);
	sem_destroy(&may_run);
	return 0;
}

static void one_client_does_not_fill_it(void **state)
{
	(void)state;
	assert_int_equal(add(1, OKV_ERRANDS_BYTES_OF_PEER - 1000), 0);
	assert_int_equal(add(1, 1001), -EBUSY);
	assert_int_equal(add(1, 1000), 0);
	assert_int_equal(add(1, 0), 0);
	assert_int_equal(add(1, 1), -EBUSY);
	assert_int_equal(add(2, OKV_ERRANDS_BYTES_OF_PEER), 0);
	/* What is over makes room. */
	finish(4);
	assert_int_equal(add(1, OKV_ERRANDS_BYTES_OF_PEER), 0);
	finish(1);
}

static void many_clients_do_not_fill_it(void **state)
{
	const uint64_t most = OKV_ERRANDS_BYTES / OKV_ERRANDS_BYTES_OF_PEER;

	(void)state;
	for (uint64_t peer = 1; peer <= most; peer++)
		assert_int_equal(add(peer, OKV_ERRANDS_BYTES_OF_PEER), 0);
	assert_int_equal(add(most + 1, 1), -EBUSY);
	assert_int_equal(add(most + 1, 0), 0);
	finish((uint32_t)most + 1);
}

/* The longest path that a large pool can have is longer than any bound. */
static void what_is_too_large_goes_by_itself(void **state)
{
	(void)state;
	assert_int_equal(add(1, UINT64_C(4) * OKV_ERRANDS_BYTES), 0);
	assert_int_equal(add(1, 1), -EBUSY);
	assert_int_equal(add(2, 1), -EBUSY);
	finish(1);
	assert_int_equal(add(2, 1), 0);
	assert_int_equal(add(1, UINT64_C(4) * OKV_ERRANDS_BYTES), -EBUSY);
	finish(1);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(one_client_does_not_fill_it, begin, end),
		cmocka_unit_test_setup_teardown(many_clients_do_not_fill_it, begin, end),
		cmocka_unit_test_setup_teardown(what_is_too_large_goes_by_itself, begin, end),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

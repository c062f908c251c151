// SPDX-License-Identifier: GPL-2.0-only
/*
 * A daemon that cannot start, wherever memory was short, leaves no store open behind it.
 *
 * The daemon's code runs in the test itself, up to the point where it would serve; one thread.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include <omnikv/pool.h>

#include "tests/harness/daemon_case.h"
#include "tests/harness/fault.h"
#include "tools/omnikvd/daemon.h"

static struct daemon_case place;
static char spill[96];

static int set_up(void **state)
{
	(void)state;
	daemon_case_init(&place);
	snprintf(spill, sizeof(spill), "%s/store", place.dir);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	daemon_case_fini(&place);
	return 0;
}

static void ignore(void *opaque, const char *line)
{
	(void)opaque;
	(void)line;
}

/* One start, as the program does it, whose @nth allocation fails; is there a store afterwards that can be had? */
static bool start(unsigned int nth)
{
	const char *const settings[][2] = {
		{ "socket", place.socket }, { "pool", "1M" }, { "spill", spill }, { "spill-size", "8M" }, { "populate", "no" },
	};
	struct okv_daemon daemon = { .listen_fd = -1, .lock_fd = -1 };
	struct omnikv_spill_config config = { .size = sizeof(config), .flags = OMNIKV_SPILL_F_OPEN_ONLY };
	struct omnikv_error err = { "" };
	struct omnikv_spill *again;
	bool has_fired;
	int ret;

	assert_int_equal(okv_config_init(&daemon.config), 0);
	for (size_t i = 0; i < sizeof(settings) / sizeof(settings[0]); i++)
		assert_int_equal(okv_config_set(&daemon.config, settings[i][0], settings[i][1], &err), 0);
	fault_arm(nth);
	ret = okv_daemon_listen(&daemon, NULL, &err);
	if (!ret)
		ret = okv_daemon_open_pool(&daemon, -1, ignore, &err);
	if (!ret)
		ret = okv_daemon_serve(&daemon, &err);
	has_fired = fault_disarm();
	assert_true(!ret || has_fired);
	okv_daemon_close(&daemon);
	okv_daemon_close_store(&daemon, false);
	if (daemon.client)
		omnikv_client_close(daemon.client);
	if (daemon.pool)
		omnikv_pool_close(daemon.pool);
	okv_config_fini(&daemon.config);
	ret = omnikv_spill_open(spill, &config, &again, &err);
	if (!ret)
		omnikv_spill_close(again);
	if (ret == -EBUSY)
		fail_msg("the %u. allocation: %s", nth, err.text);
	return has_fired;
}

static void a_failed_start_gives_its_store_back(void **state)
{
	unsigned int nth = 0;

	(void)state;
	while (start(++nth))
		;
	assert_true(nth > 20);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(a_failed_start_gives_its_store_back, set_up, tear_down),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

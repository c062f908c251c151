// SPDX-License-Identifier: GPL-2.0-only
/*
 * One of four processes is killed all the time, at any instruction or at a named place. What was committed is hit
 * afterwards, nothing is torn, and the daemon holds nothing for the dead.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed_processes_lose_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

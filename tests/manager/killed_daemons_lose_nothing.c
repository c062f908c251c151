// SPDX-License-Identifier: GPL-2.0-only
/*
 * The daemon of four processes is killed all the time, also while it recovers what another one left. Requests go on,
 * what was committed is hit afterwards, and nothing is torn.
 */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "tests/harness/kill_campaign.h"

static void killed_daemons_lose_nothing(void **state)
{
	uint32_t nr = campaign_scale(300, 5000), nr_killed = 0;
	uint64_t longest_ms = 0;
	struct campaign camp;

	(void)state;
	campaign_begin(&camp, 20261130);
	daemon_start(&camp.daemon, camp.options);
	campaign_start_clients(&camp);
	while (nr_killed < nr) {
		uint64_t since;

		sleep_ms(kv_random(&camp.seed) % 90);
		daemon_kill(&camp.daemon);
		nr_killed++;
		since = now_ms();
		for (uint32_t k = kv_random(&camp.seed) % 3; k; k--) {
			daemon_spawn(&camp.daemon, camp.options);
			sleep_ms(kv_random(&camp.seed) % 30);
			daemon_kill(&camp.daemon);
			nr_killed++;
		}
		daemon_start(&camp.daemon, camp.options);
		if (now_ms() - since > longest_ms)
			longest_ms = now_ms() - since;
		campaign_reap(&camp);
	}
	print_message("# %u daemons killed, the next one served after %llu ms at most\n", nr_killed,
		      (unsigned long long)longest_ms);
	campaign_end(&camp);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(killed_daemons_lose_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * The walker of the eviction order: each thing that can be wrong with its lists is put there by
 * hand, and named. A walker that finds nothing would let every other test pass.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "manager/evict.h"

static struct okv_evict_node nodes[8];
static unsigned char *chunk = (unsigned char *)nodes;

/* 0 to 3 listed in that order, 4 and 5 parked. */
static void order_new(struct okv_evict *ev)
{
	uint32_t i;

	okv_evict_init(ev, sizeof(nodes[0]));
	ev->chunks = &chunk;
	for (i = 0; i < 8; i++)
		okv_evict_node_init(ev, i);
	for (i = 4; i < 6; i++) {
		okv_evict_touch(ev, i, OKV_EVICT_NONE);
		assert_int_equal(okv_evict_pin(ev, i), 0);
		okv_evict_pass_pinned(ev, i);
	}
	for (i = 0; i < 4; i++)
		okv_evict_touch(ev, i, OKV_EVICT_NONE);
}

static void expect(const struct okv_evict *ev, const char *words)
{
	const char *reason = "nothing";

	assert_int_equal(okv_evict_check(ev, &reason), -EUCLEAN);
	if (!strstr(reason, words))
		fail_msg("\"%s\" does not say \"%s\"", reason, words);
}

static void each_fault_is_named(void **state)
{
	const char *reason = NULL;
	struct okv_evict ev;

	(void)state;
	order_new(&ev);
	assert_int_equal(okv_evict_check(&ev, &reason), 0);
	assert_null(reason);

	nodes[2].prev = 0;
	expect(&ev, "both ways");
	order_new(&ev);
	nodes[3].next = 0;
	expect(&ev, "both ways");
	order_new(&ev);
	nodes[1].state = OKV_EVICT_OFF;
	expect(&ev, "another state");
	order_new(&ev);
	nodes[2].tick = 1;
	expect(&ev, "ticks fall");
	order_new(&ev);
	nodes[5].nr_pins = 0;
	expect(&ev, "no pin");
	order_new(&ev);
	ev.listed.nr_nodes++;
	expect(&ev, "shorter");
	order_new(&ev);
	ev.parked.tail = 4;
	expect(&ev, "shorter");
	order_new(&ev);
	ev.tick = 2;
	expect(&ev, "future");
}

/* What was parked comes back by its tick, before all that is newer. */
static void unpinned_nodes_come_back_in_order(void **state)
{
	static const uint32_t order[] = { 4, 5, 0, 1, 2, 3 };
	const char *reason = NULL;
	struct okv_evict ev;
	uint32_t i;

	(void)state;
	order_new(&ev);
	okv_evict_unpin(&ev, 5);
	okv_evict_unpin(&ev, 4);
	assert_int_equal(okv_evict_check(&ev, &reason), 0);
	for (i = 0; i < 6; i++) {
		assert_int_equal(okv_evict_oldest(&ev), order[i]);
		okv_evict_del(&ev, order[i], OKV_EVICT_NONE);
	}
	assert_int_equal(okv_evict_oldest(&ev), OKV_EVICT_NONE);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_fault_is_named),
		cmocka_unit_test(unpinned_nodes_come_back_in_order),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

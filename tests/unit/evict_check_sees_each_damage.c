// SPDX-License-Identifier: GPL-2.0-only
/*
 * The walker of the eviction order finds each kind of damage that it claims to find.
 *
 * Three listed nodes and a parked one; one field is broken at a time and then put back, and the
 * walker must name that damage, then be content again.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "manager/evict.h"

#define NR_NODES	4

static struct okv_evict_node nodes[NR_NODES];
static unsigned char *chunk = (unsigned char *)nodes;
static struct okv_evict ev;

/* Nodes 0, 1, 2 listed in this order with ticks 1, 2, 3; node 3 was the oldest, pinned, and is parked. */
static int setup(void **state)
{
	(void)state;
	okv_evict_init(&ev, sizeof(nodes[0]));
	ev.chunks = &chunk;
	for (uint32_t id = 0; id < NR_NODES; id++)
		okv_evict_node_init(&ev, id);
	okv_evict_touch(&ev, 3, OKV_EVICT_NONE);
	for (uint32_t id = 0; id < 3; id++)
		okv_evict_touch(&ev, id, OKV_EVICT_NONE);
	if (okv_evict_pin(&ev, 3) || okv_evict_oldest(&ev) != 3)
		return -1;
	okv_evict_pass_pinned(&ev, 3);
	return 0;
}

static void expect(int ret, const char *part)
{
	const char *reason = "";

	assert_int_equal(okv_evict_check(&ev, &reason), ret);
	if (!strstr(reason, part))
		fail_msg("said \"%s\", which does not say \"%s\"", reason, part);
}

static void content_as_it_is(void **state)
{
	(void)state;
	expect(0, "");
	assert_int_equal(ev.listed.nr_nodes, 3);
	assert_int_equal(ev.parked.nr_nodes, 1);
}

static void a_link_back_that_is_wrong(void **state)
{
	uint32_t prev = nodes[2].prev;

	(void)state;
	nodes[2].prev = 0;
	expect(-EUCLEAN, "linked both ways");
	nodes[2].prev = prev;
	expect(0, "");
}

static void a_loop(void **state)
{
	(void)state;
	nodes[2].next = 0;
	nodes[0].prev = 2;
	ev.listed.head = 0;
	expect(-EUCLEAN, "linked both ways, or longer");
	nodes[2].next = OKV_EVICT_NONE;
	nodes[0].prev = OKV_EVICT_NONE;
	expect(0, "");
}

static void a_count_that_is_wrong(void **state)
{
	(void)state;
	ev.listed.nr_nodes = 2;
	expect(-EUCLEAN, "longer than it says");
	ev.listed.nr_nodes = 4;
	expect(-EUCLEAN, "shorter than it says");
	ev.listed.nr_nodes = 3;
	expect(0, "");
}

static void a_tail_that_is_wrong(void **state)
{
	(void)state;
	ev.listed.tail = 1;
	expect(-EUCLEAN, "shorter than it says");
	ev.listed.tail = 2;
	expect(0, "");
}

static void a_node_of_another_state(void **state)
{
	(void)state;
	nodes[1].state = OKV_EVICT_OFF;
	expect(-EUCLEAN, "another state");
	nodes[1].state = OKV_EVICT_LISTED;
	nodes[3].state = OKV_EVICT_LISTED;
	expect(-EUCLEAN, "another state");
	nodes[3].state = OKV_EVICT_PARKED;
	expect(0, "");
}

static void ticks_that_fall(void **state)
{
	uint64_t tick = nodes[1].tick;

	(void)state;
	nodes[1].tick = nodes[0].tick - 1;
	expect(-EUCLEAN, "ticks fall");
	nodes[1].tick = tick;
	expect(0, "");
}

static void a_tick_of_the_future(void **state)
{
	uint64_t tick = ev.tick;

	(void)state;
	ev.tick = nodes[2].tick - 1;
	expect(-EUCLEAN, "of the future");
	ev.tick = tick;
	expect(0, "");
}

static void a_parked_node_without_a_pin(void **state)
{
	(void)state;
	nodes[3].nr_pins = 0;
	expect(-EUCLEAN, "no pin");
	nodes[3].nr_pins = 1;
	expect(0, "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(content_as_it_is),
		cmocka_unit_test(a_link_back_that_is_wrong),
		cmocka_unit_test(a_loop),
		cmocka_unit_test(a_count_that_is_wrong),
		cmocka_unit_test(a_tail_that_is_wrong),
		cmocka_unit_test(a_node_of_another_state),
		cmocka_unit_test(ticks_that_fall),
		cmocka_unit_test(a_tick_of_the_future),
		cmocka_unit_test(a_parked_node_without_a_pin),
	};

	return cmocka_run_group_tests(tests, setup, NULL);
}

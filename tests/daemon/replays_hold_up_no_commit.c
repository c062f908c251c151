// SPDX-License-Identifier: GPL-2.0-only
/*
 * While the daemon sends what a subscriber has missed, blocks come to the pool: whoever commits them waits for no replay,
 * and the replay has all batches that there were, in order, with the bytes that were published.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#ifdef OKV_HAVE_EVENTS
#include <zmq.h>

#include "clock.h"
#include "failpoint.h"
#include "tests/harness/daemon_case.h"
#include "tests/harness/kv_world.h"
#include "tools/omnikvd/events.h"

#define T	4u
#define BLOCKS	20u

struct other {
	const struct kv_world	*world;
	pthread_t		thread;
	bool			has_begun;
	atomic_bool		is_done;
	bool			was_done;	/* before the replay went on */
};

static void commit(const struct kv_world *world, uint32_t salt)
{
	struct kv_story story = { 0 };
	struct omnikv_seq *seq;

	for (uint32_t i = 0; i < BLOCKS * T; i++)
		kv_story_add(&story, salt * 1000 + i);
	seq = kv_open(world, &story, false);
	KV_MUST(!omnikv_seq_append(seq, story.nr_tokens));
	kv_store(world, seq, &story, 0, story.nr_tokens);
	KV_MUST(kv_commit(world, seq, &story, false) == BLOCKS);
	omnikv_seq_close(seq);
	kv_story_free(&story);
}

static void *commit_another(void *arg)
{
	struct other *other = arg;

	commit(other->world, 99);
	atomic_store(&other->is_done, true);
	return NULL;
}

static int at_replay(void *opaque, const char *name)
{
	struct other *other = opaque;

	(void)name;
	if (other->has_begun)
		return 0;
	other->has_begun = true;
	KV_MUST(!pthread_create(&other->thread, NULL, commit_another, other));
	for (uint32_t i = 0; i < 1000 && !atomic_load(&other->is_done); i++)
		sleep_ms(10);
	other->was_done = atomic_load(&other->is_done);
	return 0;
}

/* One part of a message; its length. */
static size_t receive(void *socket, unsigned char *part, size_t max)
{
	int len = zmq_recv(socket, part, max, 0);

	assert_in_range(len, 0, max);
	return (size_t)len;
}

/* The parts behind an empty one of each message of the replay, up to its end; how many batches. */
static uint32_t read_replay(struct okv_events *events, void *socket)
{
	static unsigned char batch[1 << 20];
	uint64_t since = now_ms();
	unsigned char part[64];
	uint32_t nr = 0;

	while (now_ms() - since < 20000) {
		zmq_pollitem_t item = { .socket = socket, .events = ZMQ_POLLIN };
		unsigned char number[8] = { 0, 0, 0, 0, 0, 0, (unsigned char)(nr >> 8), (unsigned char)nr };
		size_t topic;

		okv_events_tick(events, okv_monotonic_ns());
		if (zmq_poll(&item, 1, 10) <= 0)
			continue;
		assert_int_equal(receive(socket, part, sizeof(part)), 0);
		topic = receive(socket, part, sizeof(part));
		assert_int_equal(receive(socket, part, sizeof(part)), 8);
		if (!topic) {
			assert_int_equal(receive(socket, batch, sizeof(batch)), 0);
			return nr;
		}
		assert_memory_equal(part, number, 8);
		/* [time, [event, ...]] */
		assert_true(receive(socket, batch, sizeof(batch)) > 10);
		assert_int_equal(batch[0], 0x92);
		nr++;
	}
	fail_msg("no end of the replay after %u batches", nr);
	return 0;
}

static void replays_hold_up_no_commit(void **state)
{
	const struct okv_server_config server_config = { .peers_max = 1 };
	struct okv_events_config config = { .topic = "kv" };
	static const unsigned char from_the_first[8];
	struct okv_server *server;
	struct okv_events *events;
	char publish[96], replay[96];
	struct omnikv_error err;
	struct kv_world world;
	struct other other = { .world = &world };
	void *context, *socket;
	uint32_t nr;

	(void)state;
	snprintf(publish, sizeof(publish), "ipc:///tmp/omnikv-events-%d", getpid());
	snprintf(replay, sizeof(replay), "ipc:///tmp/omnikv-replay-%d", getpid());
	config.endpoint = publish;
	config.replay = replay;
	kv_world_open(&world, KV_SHAPE_FULL, T, 300);
	assert_int_equal(okv_server_create(&server_config, &server), 0);
	if (okv_events_create(&config, server, world.manager, &events, &err))
		fail_msg("%s", err.text);
	for (uint32_t i = 0; i < 5; i++) {
		commit(&world, i);
		okv_events_tick(events, okv_monotonic_ns());
	}
	context = zmq_ctx_new();
	socket = zmq_socket(context, ZMQ_DEALER);
	assert_int_equal(zmq_connect(socket, replay), 0);
	assert_int_equal(okv_failpoint_arm(&(struct okv_failpoint){ .name = "events.replay", .fn = at_replay, .opaque = &other }), 0);
	assert_int_equal(zmq_send(socket, "", 0, ZMQ_SNDMORE), 0);
	assert_int_equal(zmq_send(socket, from_the_first, 8, 0), 8);
	nr = read_replay(events, socket);
	assert_true(other.has_begun);
	pthread_join(other.thread, NULL);
	okv_failpoint_disarm_all();
	assert_true(other.was_done);
	assert_true(nr >= 5);
	/* What came meanwhile is there as well, and what was sent can be sent again. */
	okv_events_tick(events, okv_monotonic_ns());
	assert_int_equal(zmq_send(socket, "", 0, ZMQ_SNDMORE), 0);
	assert_int_equal(zmq_send(socket, from_the_first, 8, 0), 8);
	assert_int_equal(read_replay(events, socket), nr + 1);
	zmq_close(socket);
	zmq_ctx_term(context);
	okv_events_destroy(events);
	okv_server_destroy(server);
	unlink(publish + 6);
	unlink(replay + 6);
	kv_world_close(&world);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(replays_hold_up_no_commit),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
	printf("1..0 # SKIP built without libzmq and msgpack\n");
	return 4;
}
#endif

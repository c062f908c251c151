// SPDX-License-Identifier: GPL-2.0-only
/*
 * A daemon ends while one request waits for a slow disk and others wait behind it; the next one goes on with the
 * connections: each request is answered once, and none waits for its deadline.
 *
 * Both lives of the daemon are servers of this process, one after the other; a client is a thread.
 */
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

#include "conn.h"
#include "manager/frames.h"
#include "tests/harness/daemon_case.h"
#include "tools/omnikvd/errands.h"
#include "wire.h"

#define NR_CLIENTS	3u
#define SLOW_MS		500u
#define DEADLINE_MS	60000u

static struct okv_server *server;
static struct okv_errands *errands;
static atomic_uint nr_taken, nr_run;
static uint32_t life;

struct client {
	const char	*socket;
	pthread_t	thread;
	struct okv_conn	*conn;
	uint64_t	epoch;
	int		ret;
};

static void run_slowly(struct okv_errand *errand)
{
	(void)errand;
	atomic_fetch_add(&nr_run, 1);
	sleep_ms(SLOW_MS);
}

static void answer(struct okv_errand *errand, struct okv_peer *peer)
{
	const struct okv_wire_epoch out = { .epoch = life };

	if (peer)
		okv_peer_reply(peer, errand->type, errand->id, 0, &out, sizeof(out), NULL, 0);
	free(errand);
}

static int take_epoch(struct okv_server *of, const struct okv_request *req, struct okv_reply *reply)
{
	struct okv_errand *errand = calloc(1, sizeof(*errand));

	(void)of;
	(void)reply;
	assert_non_null(errand);
	okv_errand_init(errand, req);
	errand->run = run_slowly;
	errand->done = answer;
	assert_int_equal(okv_errands_add(errands, errand), 0);
	/* The first life ends when all are under way. */
	if (atomic_fetch_add(&nr_taken, 1) + 1 == NR_CLIENTS)
		okv_server_stop(server);
	return OKV_REPLY_LATER;
}

static void end_errands(struct okv_server *of)
{
	(void)of;
	okv_errands_destroy(errands);
	errands = NULL;
}

static const struct okv_frame frames[] = { { OKV_WIRE_EPOCH, 0, OKV_WIRE_PAYLOAD_MAX, take_epoch } };
static const struct okv_service service = { .frames = frames, .nr_frames = 1, .stop = end_errands };

static void begin_life(void)
{
	const struct okv_server_config config = { .peers_max = 16 };

	life++;
	assert_int_equal(okv_server_create(&config, &server), 0);
	okv_server_add(server, &service);
	assert_int_equal(okv_errands_create(server, &errands), 0);
}

static void *ask(void *opaque)
{
	const struct okv_conn_hooks hooks = { .timeout_ms = DEADLINE_MS };
	struct client *client = opaque;
	struct okv_wire_epoch epoch = { 0 };
	struct okv_call call = { .type = OKV_WIRE_EPOCH, .reply = &epoch, .reply_max = sizeof(epoch) };

	client->ret = okv_conn_open(client->socket, &hooks, &client->conn, NULL);
	if (!client->ret)
		client->ret = okv_conn_call(client->conn, &call);
	client->epoch = epoch.epoch;
	return NULL;
}

static void they_are_left_to_the_next_one(void **state)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct client clients[NR_CLIENTS];
	uint64_t begun = now_ms(), nr_first = 0;
	struct daemon_case place;
	int kept[NR_CLIENTS], listen_fd;
	uint32_t i, nr_kept = 0;

	(void)state;
	daemon_case_init(&place);
	memcpy(addr.sun_path, place.socket, sizeof(place.socket));
	listen_fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	assert_int_equal(bind(listen_fd, (const struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(listen_fd, 16), 0);
	begin_life();
	assert_int_equal(okv_server_listen(server, listen_fd), 0);
	for (i = 0; i < NR_CLIENTS; i++) {
		clients[i] = (struct client){ .socket = place.socket };
		assert_int_equal(pthread_create(&clients[i].thread, NULL, ask, &clients[i]), 0);
	}
	assert_int_equal(okv_server_run(server), 0);
	for (struct okv_peer *peer = okv_server_peers(server); peer; peer = peer->next)
		kept[nr_kept++] = fcntl(peer->fd, F_DUPFD_CLOEXEC, 3);
	assert_int_equal(nr_kept, NR_CLIENTS);
	/* What had not been begun is left alone. */
	assert_in_range(atomic_load(&nr_run), 0, 1);
	okv_server_destroy(server);

	begin_life();
	for (i = 0; i < NR_CLIENTS; i++)
		assert_non_null(okv_server_adopt(server, kept[i], OKV_WIRE_VERSION, OKV_WIRE_FEATURES, i + 1));
	while (atomic_load(&nr_run) < NR_CLIENTS && now_ms() - begun < DEADLINE_MS / 2)
		okv_server_turn(server, 100);
	end_errands(server);
	for (i = 0; i < NR_CLIENTS; i++) {
		pthread_join(clients[i].thread, NULL);
		assert_int_equal(clients[i].ret, 0);
		nr_first += clients[i].epoch == 1;
		okv_conn_close(clients[i].conn);
	}
	assert_int_equal(atomic_load(&nr_run), NR_CLIENTS);
	assert_in_range(nr_first, 0, 1);
	assert_in_range(now_ms() - begun, 0, DEADLINE_MS / 2);
	okv_server_destroy(server);
	close(listen_fd);
	daemon_case_fini(&place);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(they_are_left_to_the_next_one),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * A client of a daemon that allocates, or lists, what cannot be: nothing of it is touched.
 *
 * A thread plays the daemon, with memory of its own behind it. The test is the one client.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

#include <omnikv/pool.h>

#include "core/extent.h"
#include "lease.h"
#include "pool_file.h"
#include "wire.h"

#define NR_GRANULES	16u
#define NR_CONNS	2u	/* of the pool and of the client */

static int listen_fd, memory, leases;
static struct omnikv_extent answer;

static void attach_reply(struct okv_wire_attached *attached)
{
	uint64_t records = OKV_POOL_HEADER_BYTES + NR_GRANULES * sizeof(struct okv_extent_rec);

	*attached = (struct okv_wire_attached){
		.kind = OKV_WIRE_POOL_SHARED, .client_id = 1, .granule_bytes = 4096, .page_kind = OMNIKV_PAGES_SMALL,
		.nr_granules = NR_GRANULES, .data_off = (records + 4095) & ~4095ull, .lease_bytes = okv_lease_bytes(NR_GRANULES),
	};
	attached->map_bytes = attached->data_off + NR_GRANULES * 4096;
}

static void reply(int fd, const struct okv_wire_header *ask, const void *payload, size_t len, const int *fds)
{
	union {
		struct cmsghdr	align;
		char		room[CMSG_SPACE(2 * sizeof(int))];
	} control = { 0 };
	struct okv_wire_header header = *ask;
	struct iovec iov[2] = { { &header, sizeof(header) }, { (void *)(uintptr_t)payload, len } };
	struct msghdr msg = { .msg_iov = iov, .msg_iovlen = 2 };

	header.flags = OKV_WIRE_F_REPLY;
	header.length = (uint32_t)len;
	if (fds) {
		msg.msg_control = &control;
		msg.msg_controllen = sizeof(control);
		control.align.cmsg_level = SOL_SOCKET;
		control.align.cmsg_type = SCM_RIGHTS;
		control.align.cmsg_len = CMSG_LEN(2 * sizeof(int));
		memcpy(CMSG_DATA(&control.align), fds, 2 * sizeof(int));
	}
	sendmsg(fd, &msg, MSG_NOSIGNAL);
}

static void serve(int fd, const unsigned char *frame)
{
	struct okv_wire_hello hello = { .version = OKV_WIRE_VERSION, .version_oldest = 1 };
	union {
		struct okv_wire_extents	list;
		unsigned char		room[sizeof(struct okv_wire_extents) + sizeof(answer)];
	} one = { .list = { .count = 1 } };
	const int looked[2] = { memory, memory }, had[2] = { memory, leases };
	struct okv_wire_attach attach;
	struct okv_wire_attached attached;
	struct okv_wire_header ask;

	memcpy(&one.room[sizeof(one.list)], &answer, sizeof(answer));
	memcpy(&ask, frame, sizeof(ask));
	switch (ask.type) {
	case OKV_WIRE_HELLO:
		reply(fd, &ask, &hello, sizeof(hello), NULL);
		break;
	case OKV_WIRE_ATTACH:
		memcpy(&attach, frame + sizeof(ask), sizeof(attach));
		attach_reply(&attached);
		reply(fd, &ask, &attached, sizeof(attached), attach.flags & OKV_WIRE_ATTACH_F_LOOK ? looked : had);
		break;
	case OKV_WIRE_LIST:
		one.list.from = UINT64_MAX;
		reply(fd, &ask, &one, sizeof(one), NULL);
		break;
	case OKV_WIRE_ALLOC:
		reply(fd, &ask, &one, sizeof(one), NULL);
		break;
	default:
		reply(fd, &ask, NULL, 0, NULL);
	}
}

static void *play(void *arg)
{
	struct pollfd fds[1 + NR_CONNS] = { { .fd = listen_fd, .events = POLLIN } };
	unsigned char frame[4096];
	uint32_t nr = 1, nr_gone = 0;

	(void)arg;
	while (nr_gone < NR_CONNS && poll(fds, nr, 60000) > 0) {
		for (uint32_t i = 1; i < nr; i++) {
			if (!fds[i].revents)
				continue;
			if (recv(fds[i].fd, frame, sizeof(frame), 0) >= (ssize_t)sizeof(struct okv_wire_header)) {
				serve(fds[i].fd, frame);
				continue;
			}
			close(fds[i].fd);
			fds[i].fd = -1;
			nr_gone++;
		}
		if (nr <= NR_CONNS && fds[0].revents)
			fds[nr++] = (struct pollfd){ .fd = accept(listen_fd, NULL, NULL), .events = POLLIN };
	}
	return NULL;
}

static int memory_of(uint64_t bytes)
{
	int fd = memfd_create("omnikv-test", MFD_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(ftruncate(fd, (off_t)bytes), 0);
	return fd;
}

static void what_cannot_be_allocated_is_not_touched(void **state)
{
	static const struct omnikv_extent good = { .granule = 12, .generation = 5, .nr_granules = 4 };
	struct omnikv_extent bad[] = { good, good, good, good, good }, ext;
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct okv_wire_attached attached;
	struct omnikv_client *client;
	struct omnikv_pool *pool;
	pthread_t thread;
	char spec[100];
	uint64_t from;

	(void)state;
	bad[0].granule = 13;
	bad[1].granule = UINT64_MAX;
	bad[2].nr_granules = 3;
	bad[3].generation = 0;
	bad[4].generation = 6;
	attach_reply(&attached);
	memory = memory_of(attached.map_bytes);
	leases = memory_of(attached.lease_bytes);
	snprintf(addr.sun_path, sizeof(addr.sun_path), "/tmp/omnikv-believes-%d", getpid());
	unlink(addr.sun_path);
	listen_fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
	assert_int_equal(bind(listen_fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	assert_int_equal(listen(listen_fd, 8), 0);
	assert_int_equal(pthread_create(&thread, NULL, play, NULL), 0);
	snprintf(spec, sizeof(spec), "daemon:%.90s", addr.sun_path);
	assert_int_equal(omnikv_pool_open(spec, NULL, &pool, NULL), 0);
	assert_int_equal(omnikv_client_open(pool, 0, &client), 0);
	for (uint32_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		answer = bad[i];
		assert_int_equal(omnikv_extent_alloc(client, 4, 1, NULL, 0, &ext), -EPROTO);
		/* Of another length there may be one. */
		from = 0;
		assert_int_equal(omnikv_extent_list(client, 1u << OMNIKV_EXTENT_PRIVATE, &from, &ext, 1), i == 2 ? 1 : -EPROTO);
	}
	answer = good;
	assert_int_equal(omnikv_extent_alloc(client, 4, 1, NULL, 0, &ext), 0);
	memset(omnikv_pool_addr(pool, &ext), 1, 4 * 4096);
	omnikv_client_close(client);
	omnikv_pool_close(pool);
	pthread_join(thread, NULL);
	close(listen_fd);
	close(memory);
	close(leases);
	unlink(addr.sun_path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_cannot_be_allocated_is_not_touched),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

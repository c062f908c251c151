// SPDX-License-Identifier: GPL-2.0-only
/*
 * The service manager of a test. See service_manager.h.
 *
 * Messages are parsed as systemd's sd_notify(3) describes them: lines of one datagram, a descriptor
 * beside them.
 */
#include "service_manager.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

#define WAIT_MS	20000

static int bound_socket(int type, const char *path)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

	memcpy(addr.sun_path, path, strlen(path));
	assert_true(fd >= 0);
	assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
	return fd;
}

static void drop(struct service_manager *manager, int i)
{
	close(manager->stored[i].fd);
	manager->stored[i] = manager->stored[--manager->nr_stored];
}

static bool has_hung_up(int fd)
{
	struct pollfd pfd = { .fd = fd };

	return poll(&pfd, 1, 0) > 0 && (pfd.revents & (POLLHUP | POLLERR));
}

static void take_message_locked(struct service_manager *manager, char *text, int fd)
{
	bool is_store = false, is_remove = false, is_polled = true;
	char name[96] = "stored", *line, *save;
	int i;

	for (line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
		if (!strcmp(line, "FDSTORE=1"))
			is_store = true;
		else if (!strcmp(line, "FDSTOREREMOVE=1"))
			is_remove = true;
		else if (!strcmp(line, "FDPOLL=0"))
			is_polled = false;
		else if (!strncmp(line, "FDNAME=", 7))
			snprintf(name, sizeof(name), "%s", line + 7);
		else if (!strcmp(line, "READY=1"))
			manager->nr_ready++;
		else if (!strcmp(line, "RELOADING=1"))
			manager->nr_reloading++;
		else if (!strcmp(line, "STOPPING=1"))
			manager->nr_stopping++;
		else if (!strcmp(line, "WATCHDOG=1"))
			manager->nr_watchdog++;
	}
	for (i = 0; is_remove && i < manager->nr_stored;) {
		if (!strcmp(manager->stored[i].name, name))
			drop(manager, i);
		else
			i++;
	}
	if (is_store && fd >= 0 && manager->is_storing && manager->nr_stored < STORED_MAX &&
	    !(is_polled && has_hung_up(fd))) {
		manager->stored[manager->nr_stored].fd = fd;
		snprintf(manager->stored[manager->nr_stored++].name, 96, "%s", name);
		fd = -1;
	}
	if (fd >= 0)
		close(fd);
}

static void *run(void *arg)
{
	struct service_manager *manager = arg;
	struct pollfd pfd = { .fd = manager->notify_fd, .events = POLLIN };

	while (!atomic_load(&manager->is_over)) {
		union {
			struct cmsghdr	align;
			char		room[CMSG_SPACE(sizeof(int))];
		} control;
		char text[1024];
		struct iovec iov = { text, sizeof(text) - 1 };
		struct msghdr msg = {
			.msg_iov = &iov, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof(control),
		};
		struct cmsghdr *cmsg;
		ssize_t n;
		int fd = -1;

		if (poll(&pfd, 1, 50) <= 0)
			continue;
		/* Under the lock, a message is either still in the socket or has had its effect. */
		pthread_mutex_lock(&manager->lock);
		n = recvmsg(manager->notify_fd, &msg, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
		cmsg = n < 0 ? NULL : CMSG_FIRSTHDR(&msg);
		if (cmsg && cmsg->cmsg_type == SCM_RIGHTS)
			memcpy(&fd, CMSG_DATA(cmsg), sizeof(fd));
		if (n >= 0) {
			text[n] = '\0';
			take_message_locked(manager, text, fd);
		}
		pthread_mutex_unlock(&manager->lock);
	}
	return NULL;
}

void service_manager_init(struct service_manager *manager)
{
	memset(manager, 0, sizeof(*manager));
	manager->is_storing = true;
	daemon_case_init(&manager->daemon);
	snprintf(manager->notify_path, sizeof(manager->notify_path), "%s/notify", manager->daemon.dir);
	manager->notify_fd = bound_socket(SOCK_DGRAM, manager->notify_path);
	manager->listen_fd = bound_socket(SOCK_SEQPACKET, manager->daemon.socket);
	assert_int_equal(listen(manager->listen_fd, 128), 0);
	pthread_mutex_init(&manager->lock, NULL);
	assert_int_equal(pthread_create(&manager->thread, NULL, run, manager), 0);
}

void service_manager_fini(struct service_manager *manager)
{
	daemon_kill(&manager->daemon);
	atomic_store(&manager->is_over, true);
	pthread_join(manager->thread, NULL);
	while (manager->nr_stored)
		drop(manager, 0);
	close(manager->notify_fd);
	close(manager->listen_fd);
	daemon_case_fini(&manager->daemon);
	pthread_mutex_destroy(&manager->lock);
}

/* In the child: descriptors from 3 on, and the variables that tell of them. */
static int pass_descriptors(void *opaque)
{
	struct service_manager *manager = opaque;
	static char names[STORED_MAX * 97], text[24];
	int high[STORED_MAX + 1], i, nr = manager->nr_stored + 1;

	snprintf(names, sizeof(names), "omnikvd.socket");
	for (i = 0; i < nr; i++) {
		high[i] = fcntl(i ? manager->stored[i - 1].fd : manager->listen_fd, F_DUPFD, 2000);
		if (high[i] < 0)
			return -1;
		if (i) {
			strcat(names, ":");
			strcat(names, manager->stored[i - 1].name);
		}
	}
	for (i = 0; i < nr; i++) {
		if (dup2(high[i], 3 + i) < 0)
			return -1;
		close(high[i]);
	}
	snprintf(text, sizeof(text), "%d", nr);
	setenv("LISTEN_FDS", text, 1);
	snprintf(text, sizeof(text), "%d", getpid());
	setenv("LISTEN_PID", text, 1);
	setenv("LISTEN_FDNAMES", names, 1);
	setenv("NOTIFY_SOCKET", manager->notify_path, 1);
	if (manager->watchdog_usec[0]) {
		setenv("WATCHDOG_USEC", manager->watchdog_usec, 1);
		setenv("WATCHDOG_PID", text, 1);
	}
	return 0;
}

void service_manager_wait(struct service_manager *manager, const int *count, int least)
{
	uint64_t end = now_ms() + WAIT_MS;
	int now;

	for (;;) {
		pthread_mutex_lock(&manager->lock);
		now = *count;
		pthread_mutex_unlock(&manager->lock);
		if (now >= least)
			return;
		if (now_ms() > end || daemon_is_dead(&manager->daemon))
			fail_msg("the daemon did not say what it should have");
		sleep_ms(2);
	}
}

/* Take the lock when all that was said has had its effect. */
static void lock_settled(struct service_manager *manager)
{
	struct pollfd pfd = { .fd = manager->notify_fd, .events = POLLIN };

	for (;;) {
		pthread_mutex_lock(&manager->lock);
		if (poll(&pfd, 1, 0) <= 0)
			return;
		pthread_mutex_unlock(&manager->lock);
		sleep_ms(1);
	}
}

void service_manager_start(struct service_manager *manager, const char *const *options)
{
	int i, ready;

	lock_settled(manager);
	for (i = 0; i < manager->nr_stored;) {
		if (has_hung_up(manager->stored[i].fd))
			drop(manager, i);
		else
			i++;
	}
	ready = manager->nr_ready;
	manager->daemon.before_exec = pass_descriptors;
	manager->daemon.opaque = manager;
	daemon_start(&manager->daemon, options);
	pthread_mutex_unlock(&manager->lock);
	service_manager_wait(manager, &manager->nr_ready, ready + 1);
}

int service_manager_stored(struct service_manager *manager, const char *begin)
{
	int i, nr = 0;

	lock_settled(manager);
	for (i = 0; i < manager->nr_stored; i++)
		nr += !strncmp(manager->stored[i].name, begin, strlen(begin));
	pthread_mutex_unlock(&manager->lock);
	return nr;
}

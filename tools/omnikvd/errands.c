// SPDX-License-Identifier: GPL-2.0-only
/*
 * Two lists and a thread; see errands.h.
 *
 * An eventfd tells the loop that some are done. The lock guards the lists, and is never held while one is run.
 */
#include "errands.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "failpoint.h"
#include "fd.h"

struct okv_errands {
	/* fixed after creation */
	struct okv_server	*server;
	pthread_t		thread;
	int			event_fd;

	pthread_mutex_t		lock;
	pthread_cond_t		more;
	/* under lock */
	struct okv_errand	*waiting, **waiting_tail;
	struct okv_errand	*over, **over_tail;
	struct okv_errand	*running;
	uint32_t		nr;
	uint64_t		bytes;
	bool			is_ending;
};

static void append(struct okv_errand ***tail, struct okv_errand *errand)
{
	errand->next = NULL;
	**tail = errand;
	*tail = &errand->next;
}

static void *work(void *opaque)
{
	struct okv_errands *errands = opaque;
	const uint64_t one = 1;

	pthread_mutex_lock(&errands->lock);
	for (;;) {
		while (!errands->waiting && !errands->is_ending)
			pthread_cond_wait(&errands->more, &errands->lock);
		if (errands->is_ending)
			break;
		errands->running = errands->waiting;
		errands->waiting = errands->running->next;
		if (!errands->waiting)
			errands->waiting_tail = &errands->waiting;
		pthread_mutex_unlock(&errands->lock);
		errands->running->run(errands->running);
		pthread_mutex_lock(&errands->lock);
		append(&errands->over_tail, errands->running);
		errands->running = NULL;
		/* It counts: one that does not go in has gone in before. */
		(void)!write(errands->event_fd, &one, sizeof(one));
	}
	pthread_mutex_unlock(&errands->lock);
	return NULL;
}

static void finish(struct okv_errands *errands, struct okv_errand *list)
{
	struct okv_errand *errand;

	while ((errand = list)) {
		list = errand->next;
		errand->done(errand, okv_server_peer(errands->server, errand->peer));
	}
}

/* What has not been run: who asked hears so, and asks the next daemon. */
static void decline(struct okv_errands *errands, struct okv_errand *list)
{
	struct okv_errand *errand;
	struct okv_peer *peer;

	while ((errand = list)) {
		list = errand->next;
		peer = okv_server_peer(errands->server, errand->peer);
		if (peer)
			okv_peer_reply(peer, errand->type, errand->id, -ENOTCONN, NULL, 0, NULL, 0);
		errand->done(errand, NULL);
	}
}

static void some_are_over(struct okv_server *server, int fd, void *opaque)
{
	struct okv_errands *errands = opaque;
	struct okv_errand *list, *errand;
	uint64_t nr;

	if (read(fd, &nr, sizeof(nr)) != sizeof(nr))
		return;
	pthread_mutex_lock(&errands->lock);
	list = errands->over;
	errands->over = NULL;
	errands->over_tail = &errands->over;
	for (errand = list; errand; errand = errand->next) {
		errands->nr--;
		errands->bytes -= errand->bytes;
	}
	pthread_mutex_unlock(&errands->lock);
	finish(errands, list);
	/* What it has changed is told to whoever wants to know. */
	okv_server_wake(server, 0);
}

int okv_errands_create(struct okv_server *server, struct okv_errands **out)
{
	struct okv_errands *errands = calloc(1, sizeof(*errands));
	sigset_t all, before;
	int ret;

	if (!errands)
		return -ENOMEM;
	errands->server = server;
	errands->waiting_tail = &errands->waiting;
	errands->over_tail = &errands->over;
	errands->event_fd = okv_fd_high(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
	if (errands->event_fd < 0) {
		ret = -errno;
		goto err_free;
	}
	ret = okv_server_watch(server, errands->event_fd, some_are_over, errands);
	if (ret)
		goto err_close;
	pthread_mutex_init(&errands->lock, NULL);
	pthread_cond_init(&errands->more, NULL);
	/* Signals are the loop's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	ret = -pthread_create(&errands->thread, NULL, work, errands);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (ret)
		goto err_unwatch;
	*out = errands;
	return 0;

err_unwatch:
	okv_server_unwatch(server, errands->event_fd);
	pthread_cond_destroy(&errands->more);
	pthread_mutex_destroy(&errands->lock);
err_close:
	close(errands->event_fd);
err_free:
	free(errands);
	return ret;
}

void okv_errands_destroy(struct okv_errands *errands)
{
	struct okv_errand *list;

	if (!errands)
		return;
	pthread_mutex_lock(&errands->lock);
	errands->is_ending = true;
	list = errands->waiting;
	errands->waiting = NULL;
	pthread_cond_signal(&errands->more);
	pthread_mutex_unlock(&errands->lock);
	decline(errands, list);
	pthread_join(errands->thread, NULL);
	okv_server_unwatch(errands->server, errands->event_fd);
	finish(errands, errands->over);
	close(errands->event_fd);
	pthread_cond_destroy(&errands->more);
	pthread_mutex_destroy(&errands->lock);
	free(errands);
}

/* How many of @list are the peer's, and their bytes besides. */
static uint32_t count_of(const struct okv_errand *list, uint64_t peer, uint64_t *bytes)
{
	uint32_t nr = 0;

	for (; list; list = list->next) {
		if (list->peer != peer)
			continue;
		nr++;
		*bytes += list->bytes;
	}
	return nr;
}

/* Are @more bytes more than @nr errands may have together? Where there is none yet they are not. */
static bool is_too_much(uint64_t more, uint32_t nr, uint64_t bytes, uint64_t most)
{
	return nr && (more > most || bytes > most - more);
}

static int check_locked(const struct okv_errands *errands, uint64_t peer, uint64_t bytes)
{
	uint64_t peer_bytes = 0;
	uint32_t nr = count_of(errands->waiting, peer, &peer_bytes) + count_of(errands->over, peer, &peer_bytes);

	if (errands->running && errands->running->peer == peer) {
		nr++;
		peer_bytes += errands->running->bytes;
	}
	if (errands->is_ending)
		return -ENOTCONN;
	return errands->nr >= OKV_ERRANDS_MAX || nr >= OKV_ERRANDS_OF_PEER ||
	       is_too_much(bytes, errands->nr, errands->bytes, OKV_ERRANDS_BYTES) ||
	       is_too_much(bytes, nr, peer_bytes, OKV_ERRANDS_BYTES_OF_PEER) ? -EBUSY : -OKV_FAILPOINT("errands.check");
}

int okv_errands_check(struct okv_errands *errands, uint64_t peer, uint64_t bytes)
{
	int ret;

	pthread_mutex_lock(&errands->lock);
	ret = check_locked(errands, peer, bytes);
	pthread_mutex_unlock(&errands->lock);
	return ret;
}

int okv_errands_add(struct okv_errands *errands, struct okv_errand *errand)
{
	int ret;

	pthread_mutex_lock(&errands->lock);
	ret = check_locked(errands, errand->peer, errand->bytes);
	if (!ret) {
		errands->nr++;
		errands->bytes += errand->bytes;
		append(&errands->waiting_tail, errand);
		pthread_cond_signal(&errands->more);
	}
	pthread_mutex_unlock(&errands->lock);
	return ret;
}

void okv_errand_init(struct okv_errand *errand, const struct okv_request *req)
{
	errand->peer = req->peer->number;
	errand->id = req->header->id;
	errand->type = req->header->type;
	errand->bytes = 0;
}

// SPDX-License-Identifier: MIT
/*
 * Exchange between devices of one process: what each rank has fetched of replicated planes goes to all the others.
 *
 * A rank's stream copies its parts to every other rank and fires an event of its own behind that. A rank has everything
 * when all of these have fired: its stream waits for them and then fires the caller's event. How a stream copies to
 * another device, and waits for an event of one, is the device's: peer_copy and peer_wait of struct okv_device_ops.
 *
 * One thread at a time for each exchange.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "device.h"
#include "disjoint.h"

#define POLL_NS		20000

struct rank {
	struct omnikv_device	*dev;
	struct omnikv_stream	*stream;
	struct omnikv_event	*sent;		/* its parts are with all others */
	struct omnikv_event	*signal;	/* the caller's; NULL: none */
	struct omnikv_hbm	*hbm;		/* held while the exchange is open */
	bool			is_over;
};

struct omnikv_exchange {
	uint32_t	nr;
	bool		is_open;
	int		error;		/* the first one that a rank has ended with since it was begun */
	struct rank	ranks[];
};

static bool is_same(const struct omnikv_device *a, const struct omnikv_device *b)
{
	return a == b || (a->ops->is_same && a->ops->is_same(a, b));
}

/* Its memory may be resized and destroyed again. */
static void close_exchange(struct omnikv_exchange *ex)
{
	uint32_t i;

	/* Pairs with the acquire in okv_hbm_resize() and omnikv_hbm_destroy(). */
	for (i = 0; i < ex->nr && ex->is_open; i++)
		atomic_fetch_sub_explicit(&ex->ranks[i].hbm->nr_io, 1, memory_order_release);
	ex->is_open = false;
}

void omnikv_exchange_destroy(struct omnikv_exchange *ex)
{
	uint32_t i;

	if (!ex)
		return;
	close_exchange(ex);
	for (i = 0; i < ex->nr; i++) {
		omnikv_stream_destroy(ex->ranks[i].stream);
		omnikv_event_destroy(ex->ranks[i].sent);
	}
	free(ex);
}

int omnikv_exchange_create(struct omnikv_device *const *devs, uint32_t nr, struct omnikv_exchange **out)
{
	struct omnikv_exchange *ex;
	uint32_t i, k;
	int ret = 0;

	if (nr < 2 || nr > OMNIKV_EXCHANGE_RANKS_MAX)
		return -EINVAL;
	for (i = 0; i < nr; i++) {
		if (devs[i]->ops != devs[0]->ops || !devs[i]->ops->peer_copy)
			return -EOPNOTSUPP;
		for (k = 0; k < i; k++) {
			if (is_same(devs[k], devs[i]))
				return -EINVAL;
		}
	}
	ex = calloc(1, sizeof(*ex) + nr * sizeof(ex->ranks[0]));
	if (!ex)
		return -ENOMEM;
	ex->nr = nr;
	for (i = 0; i < nr && !ret; i++) {
		ex->ranks[i].dev = devs[i];
		ret = omnikv_stream_create(devs[i], &ex->ranks[i].stream);
		if (!ret)
			ret = omnikv_event_create(devs[i], &ex->ranks[i].sent);
	}
	if (ret) {
		omnikv_exchange_destroy(ex);
		return ret;
	}
	*out = ex;
	return 0;
}

/* 0 where no two parts have bytes in common: one rank would send what another is writing. -EINVAL, -ENOMEM. */
static int check_disjoint(const struct omnikv_exchange_part *parts, uint32_t nr_parts)
{
	struct okv_place *places;
	uint32_t i;
	int ret;

	for (i = 1; i < nr_parts && parts[i - 1].off + parts[i - 1].bytes <= parts[i].off; i++)
		;
	/* In order, as most lists are. */
	if (i >= nr_parts)
		return 0;
	places = malloc(nr_parts * sizeof(*places));
	if (!places)
		return -ENOMEM;
	for (i = 0; i < nr_parts; i++)
		places[i] = (struct okv_place) { parts[i].off, parts[i].off + parts[i].bytes };
	ret = okv_places_are_disjoint(places, nr_parts) ? 0 : -EINVAL;
	free(places);
	return ret;
}

static int check(const struct omnikv_exchange *ex, struct omnikv_hbm *const *hbms, const struct omnikv_exchange_part *parts,
		 uint32_t nr_parts, struct omnikv_event *const *signals)
{
	uint32_t i, k;

	if (ex->is_open)
		return -EBUSY;
	for (i = 0; i < ex->nr; i++) {
		if (hbms[i]->dev != ex->ranks[i].dev || (signals && signals[i] && signals[i]->dev != ex->ranks[i].dev))
			return -EINVAL;
	}
	for (i = 0; i < nr_parts; i++) {
		if (parts[i].rank >= ex->nr || parts[i].reserved || !parts[i].bytes)
			return -EINVAL;
		for (k = 0; k < ex->nr; k++) {
			if (parts[i].off > hbms[k]->bytes || parts[i].bytes > hbms[k]->bytes - parts[i].off)
				return -EINVAL;
		}
	}
	return check_disjoint(parts, nr_parts);
}

/* Rank @r's parts to all others, in its stream. */
static int send_all(struct omnikv_exchange *ex, uint32_t r, struct omnikv_hbm *const *hbms,
		    const struct omnikv_exchange_part *parts, uint32_t nr_parts)
{
	const struct rank *rank = &ex->ranks[r];
	uint32_t i, k, to;
	int ret = 0;

	for (i = 0; i < nr_parts && !ret; i++) {
		/* Not all to the same one at once. */
		for (k = 1; k < ex->nr && !ret && parts[i].rank == r; k++) {
			to = (r + k) % ex->nr;
			ret = rank->dev->ops->peer_copy(rank->stream, ex->ranks[to].dev,
							(unsigned char *)omnikv_hbm_ptr(hbms[to]) + parts[i].off,
							(const unsigned char *)omnikv_hbm_ptr(hbms[r]) + parts[i].off, parts[i].bytes);
		}
	}
	return ret ? ret : omnikv_stream_record(rank->stream, rank->sent);
}

/* Behind everybody's events: rank @r has all. */
static int receive_all(struct omnikv_exchange *ex, uint32_t r)
{
	const struct rank *rank = &ex->ranks[r];
	uint32_t i;
	int ret = 0;

	for (i = 0; i < ex->nr && !ret; i++) {
		if (i != r)
			ret = rank->dev->ops->peer_wait(rank->stream, ex->ranks[i].sent);
	}
	if (!ret && rank->signal)
		ret = omnikv_stream_record(rank->stream, rank->signal);
	return ret;
}

/* Whoever waits goes on, and knows: the signals first, since what waits for a part that never comes would fire them. */
static void poison(struct omnikv_exchange *ex, int error)
{
	uint32_t i;

	for (i = 0; i < ex->nr; i++) {
		if (ex->ranks[i].signal && !omnikv_event_query(ex->ranks[i].signal))
			okv_event_fire(ex->ranks[i].signal, error);
	}
	for (i = 0; i < ex->nr; i++)
		okv_event_fire(ex->ranks[i].sent, error);
}

int omnikv_exchange_begin(struct omnikv_exchange *ex, struct omnikv_hbm *const *hbms,
			  const struct omnikv_exchange_part *parts, uint32_t nr_parts, struct omnikv_event *const *signals)
{
	uint32_t i;
	int ret = check(ex, hbms, parts, nr_parts, signals);

	if (ret)
		return ret;
	for (i = 0; i < ex->nr; i++) {
		omnikv_event_reset(ex->ranks[i].sent);
		ex->ranks[i].signal = signals ? signals[i] : NULL;
		ex->ranks[i].hbm = hbms[i];
		atomic_fetch_add_explicit(&hbms[i]->nr_io, 1, memory_order_relaxed);
		ex->ranks[i].is_over = false;
	}
	ex->is_open = true;
	ex->error = 0;
	for (i = 0; i < ex->nr && !ret; i++)
		ret = send_all(ex, i, hbms, parts, nr_parts);
	/* Signals are recorded only where all has been queued: none fires over a part that never comes. */
	for (i = 0; i < ex->nr && !ret; i++)
		ret = receive_all(ex, i);
	if (ret)
		poison(ex, ret);
	return ret;
}

int omnikv_exchange_end(struct omnikv_exchange *ex, uint64_t timeout_ns)
{
	struct timespec nap = { .tv_nsec = POLL_NS };
	uint64_t start_ns = okv_monotonic_ns();
	uint32_t i, nr_open;
	int ret, one;

	if (!ex->is_open)
		return -EINVAL;
	/* In turn, since none goes on without the others. */
	for (;;) {
		for (i = nr_open = 0; i < ex->nr; i++) {
			if (ex->ranks[i].is_over)
				continue;
			one = omnikv_stream_sync(ex->ranks[i].stream, 0);
			if (one == -ETIME) {
				nr_open++;
				continue;
			}
			ex->ranks[i].is_over = true;
			if (one && !ex->error) {
				/* A rank that is lost fires nothing: the others must not wait for it. */
				ex->error = one;
				poison(ex, one);
			}
		}
		if (!nr_open)
			break;
		if (okv_monotonic_ns() - start_ns >= timeout_ns) {
			/* Copies under way still write: the exchange stays open. */
			poison(ex, -ETIME);
			return -ETIME;
		}
		nanosleep(&nap, NULL);
	}
	close_exchange(ex);
	ret = ex->error;
	for (i = 0; i < ex->nr && !ret; i++) {
		if (omnikv_event_query(ex->ranks[i].sent) < 0)
			ret = omnikv_event_query(ex->ranks[i].sent);
	}
	return ret;
}

// SPDX-License-Identifier: MIT
/*
 * Exchange between GPUs of one process: what each rank has fetched of replicated planes goes to all the others.
 *
 * A rank's stream copies its parts to every other rank by cuMemcpyPeerAsync() (over NVLink where there is one, by the
 * host where there is no other way; the driver's choice), and raises a word of its own behind that. A rank has
 * everything when all words are raised: its stream waits for them and then fires the caller's event. Words are portable
 * host memory, so that streams of every GPU see them.
 *
 * One thread at a time for each exchange.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device_cuda.h"

#define POLL_NS		20000

struct rank {
	struct omnikv_device	*dev;
	struct omnikv_stream	*stream;
	struct omnikv_event	*sent;		/* its parts are with all others */
	struct omnikv_event	*signal;	/* the caller's; NULL: none */
};

struct omnikv_exchange {
	uint32_t	nr;
	bool		is_open;
	struct rank	ranks[];
};

static bool is_cuda(const struct omnikv_device *dev)
{
	return dev->ops == &okv_device_cuda;
}

void omnikv_exchange_destroy(struct omnikv_exchange *ex)
{
	uint32_t i;

	if (!ex)
		return;
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
		if (!is_cuda(devs[i]))
			return -EOPNOTSUPP;
		for (k = 0; k < i; k++) {
			if (okv_cuda_of(devs[k])->device == okv_cuda_of(devs[i])->device)
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
	return 0;
}

/* Rank @r's parts to all others, in its stream. */
static int send_all(struct omnikv_exchange *ex, uint32_t r, struct omnikv_hbm *const *hbms,
		    const struct omnikv_exchange_part *parts, uint32_t nr_parts)
{
	struct omnikv_device *dev = ex->ranks[r].dev;
	struct okv_cuda *cuda = okv_cuda_of(dev);
	void *stream = omnikv_stream_native(ex->ranks[r].stream);
	uint32_t i, k;
	int ret = okv_cuda_enter(dev);

	if (ret)
		return ret;
	for (i = 0; i < nr_parts && !ret; i++) {
		/* Each rank begins with another one, so that not all of them send to the same. */
		for (k = 1; k < ex->nr && !ret && parts[i].rank == r; k++) {
			uint32_t to = (r + k) % ex->nr;

			ret = okv_cuda_check(dev, cuda->drv.cuMemcpyPeerAsync(
				(uintptr_t)hbms[to]->ptr + parts[i].off, okv_cuda_of(ex->ranks[to].dev)->context,
				(uintptr_t)hbms[r]->ptr + parts[i].off, cuda->context, parts[i].bytes, stream));
		}
	}
	okv_cuda_leave(dev);
	return ret ? ret : omnikv_stream_record(ex->ranks[r].stream, ex->ranks[r].sent);
}

/* Behind everybody's words: rank @r has all. */
static int receive_all(struct omnikv_exchange *ex, uint32_t r)
{
	struct omnikv_device *dev = ex->ranks[r].dev;
	uint32_t i;
	int ret = okv_cuda_enter(dev);

	if (ret)
		return ret;
	for (i = 0; i < ex->nr && !ret; i++) {
		const struct okv_cuda_word *word = ((struct okv_cuda_event *)ex->ranks[i].sent)->word;

		ret = okv_cuda_check(dev, okv_cuda_of(dev)->drv.cuStreamWaitValue64(
			omnikv_stream_native(ex->ranks[r].stream), word->ptr, 2 * word->gen, OKV_CU_STREAM_WAIT_VALUE_GEQ));
	}
	okv_cuda_leave(dev);
	if (!ret && ex->ranks[r].signal)
		ret = omnikv_stream_record(ex->ranks[r].stream, ex->ranks[r].signal);
	return ret;
}

/* Whoever waits goes on, and knows. */
static void poison(struct omnikv_exchange *ex, int error)
{
	uint32_t i;

	for (i = 0; i < ex->nr; i++) {
		okv_event_fire(ex->ranks[i].sent, error);
		if (ex->ranks[i].signal && !omnikv_event_query(ex->ranks[i].signal))
			okv_event_fire(ex->ranks[i].signal, error);
	}
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
	}
	ex->is_open = true;
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
	uint32_t i;
	int ret = 0, one;

	if (!ex->is_open)
		return -EINVAL;
	for (i = 0; i < ex->nr; i++) {
		for (;;) {
			one = omnikv_stream_sync(ex->ranks[i].stream, 0);
			if (one != -ETIME)
				break;
			if (okv_monotonic_ns() - start_ns >= timeout_ns) {
				/* Copies under way still write: the exchange stays open. */
				poison(ex, -ETIME);
				return -ETIME;
			}
			/* A rank that is lost raises no word: the others must not wait for it. */
			if (ret)
				poison(ex, ret);
			nanosleep(&nap, NULL);
		}
		if (one && !ret) {
			ret = one;
			poison(ex, ret);
			/* From the start, now that nobody waits for it. */
			i = UINT32_MAX;
		}
	}
	ex->is_open = false;
	for (i = 0; i < ex->nr && !ret; i++) {
		if (omnikv_event_query(ex->ranks[i].sent) < 0)
			ret = omnikv_event_query(ex->ranks[i].sent);
	}
	return ret;
}

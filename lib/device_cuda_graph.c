// SPDX-License-Identifier: MIT
/*
 * CUDA graphs: ends of captured work that wait for, and fire, the events of the replay at hand.
 *
 * A captured stream memory operation has its value baked in, so in a capture a kernel of one warp waits for an event's
 * word, and another one raises it: both compare with a counter in device memory that is written, in stream order,
 * before each launch. Events count their lives, so a graph's are in step when each has been reset as often as the
 * others since it was captured: then one counter is right for all of them, and what fired in an earlier life, however
 * late it is written, ends no wait of this one.
 *
 * A graph is one thread's at a time.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "device_cuda.h"

/* One look at a word over the link, and the pause behind it. */
#define POLL_NS		1000

struct member {
	struct okv_cuda_event	*event;
	uint64_t		base;	/* the life in which it was captured */
};

struct cuda_graph {
	struct omnikv_graph	base;
	uint64_t		step_ptr;	/* 64 bits of device memory */
	struct okv_cuda_word	*late;		/* counts waits that ran out of time */
	uint64_t		seen_late;
	uint64_t		nr_polls;
	bool			is_launched;
	uint64_t		launched;	/* counter of the last launch */
	struct member		*members;
	size_t			nr;
	size_t			nr_alloc;
};

int okv_cuda_graph_create(struct omnikv_device *dev, uint64_t timeout_ns, struct omnikv_graph **out)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);
	struct cuda_graph *graph;
	int ret;

	if (!okv_cuda_has_kernels(cuda))
		return -EOPNOTSUPP;
	graph = calloc(1, sizeof(*graph));
	if (!graph)
		return -ENOMEM;
	ret = okv_cuda_enter(dev);
	if (ret)
		goto err_free;
	graph->late = okv_cuda_word_get(dev);
	ret = graph->late ? okv_cuda_check(dev, cuda->drv.cuMemAlloc(&graph->step_ptr, sizeof(uint64_t))) : -ENOMEM;
	okv_cuda_leave(dev);
	if (ret)
		goto err_word;
	graph->base.dev = dev;
	graph->seen_late = atomic_load(graph->late->host);
	graph->nr_polls = timeout_ns / POLL_NS + 1;
	*out = &graph->base;
	return 0;

err_word:
	if (graph->late) {
		pthread_mutex_lock(&dev->lock);
		okv_cuda_word_put_locked(dev, graph->late);
		pthread_mutex_unlock(&dev->lock);
	}
err_free:
	free(graph);
	return ret;
}

void okv_cuda_graph_destroy(struct omnikv_graph *base)
{
	struct cuda_graph *graph = (struct cuda_graph *)base;
	struct omnikv_device *dev = base->dev;
	struct okv_cuda *cuda = okv_cuda_of(dev);
	void *context;
	size_t i;

	cuda->drv.cuCtxPushCurrent(cuda->context);
	cuda->drv.cuMemFree(graph->step_ptr);
	cuda->drv.cuCtxPopCurrent(&context);
	pthread_mutex_lock(&dev->lock);
	for (i = 0; i < graph->nr; i++)
		graph->members[i].event->nr_graphs--;
	/* Its generation goes on behind what it has counted. */
	graph->late->gen = atomic_load(graph->late->host);
	okv_cuda_word_put_locked(dev, graph->late);
	pthread_mutex_unlock(&dev->lock);
	free(graph->members);
	free(graph);
}

/* Remember @event; its word stays with it from now on. */
static int member_add(struct cuda_graph *graph, struct okv_cuda_event *event, uint64_t *base)
{
	struct omnikv_device *dev = graph->base.dev;
	struct member *more;
	size_t i;

	for (i = 0; i < graph->nr; i++) {
		if (graph->members[i].event == event) {
			*base = graph->members[i].base;
			return 0;
		}
	}
	if (graph->nr == graph->nr_alloc) {
		size_t nr_alloc = graph->nr_alloc ? 2 * graph->nr_alloc : 64;

		more = realloc(graph->members, nr_alloc * sizeof(*more));
		if (!more)
			return -ENOMEM;
		graph->members = more;
		graph->nr_alloc = nr_alloc;
	}
	pthread_mutex_lock(&dev->lock);
	event->nr_graphs++;
	*base = event->word->gen;
	pthread_mutex_unlock(&dev->lock);
	graph->members[graph->nr++] = (struct member) { event, *base };
	return 0;
}

int okv_cuda_graph_add(struct omnikv_graph *base, struct omnikv_stream *stream, struct omnikv_event *event, bool is_wait)
{
	struct cuda_graph *graph = (struct cuda_graph *)base;
	struct omnikv_device *dev = base->dev;
	struct okv_cuda *cuda = okv_cuda_of(dev);
	void *native = omnikv_stream_native(stream);
	struct okv_event_args args = { .step = graph->step_ptr, .nr_polls = graph->nr_polls };
	int status = OKV_CU_STREAM_CAPTURE_STATUS_NONE, ret;

	ret = okv_cuda_enter(dev);
	if (ret)
		return ret;
	ret = okv_cuda_check(dev, cuda->drv.cuStreamIsCapturing(native, &status));
	/* Not captured: work of this life, once. Engines warm up like that. */
	if (ret || status == OKV_CU_STREAM_CAPTURE_STATUS_NONE)
		goto out_leave;
	ret = member_add(graph, (struct okv_cuda_event *)event, &args.base);
	if (ret)
		goto out_leave;
	args.word = ((struct okv_cuda_event *)event)->word->ptr;
	args.late = graph->late->ptr;
	ret = okv_cuda_check(dev, okv_cuda_event_kernel(cuda, native, is_wait, &args));

out_leave:
	okv_cuda_leave(dev);
	if (ret || status != OKV_CU_STREAM_CAPTURE_STATUS_NONE)
		return ret;
	return is_wait ? omnikv_stream_wait(stream, event) : omnikv_stream_record(stream, event);
}

int okv_cuda_graph_begin(struct omnikv_graph *base, struct omnikv_stream *stream)
{
	struct cuda_graph *graph = (struct cuda_graph *)base;
	struct omnikv_device *dev = base->dev;
	uint64_t step = 0, n;
	size_t i;
	int ret;

	for (i = 0; i < graph->nr; i++) {
		n = graph->members[i].event->word->gen - graph->members[i].base;
		if (i && n != step)
			return -EINVAL;
		step = n;
	}
	/* Twice in one life: its waits would end at once, before anything has been loaded for it. */
	if (graph->nr && graph->is_launched && step <= graph->launched)
		return -EINVAL;
	ret = okv_cuda_enter(dev);
	if (ret)
		return ret;
	ret = okv_cuda_check(dev, okv_cuda_of(dev)->drv.cuStreamWriteValue64(omnikv_stream_native(stream), graph->step_ptr, step,
									     OKV_CU_STREAM_WRITE_VALUE_DEFAULT));
	okv_cuda_leave(dev);
	if (!ret) {
		graph->is_launched = true;
		graph->launched = step;
	}
	return ret;
}

int okv_cuda_graph_status(struct omnikv_graph *base)
{
	struct cuda_graph *graph = (struct cuda_graph *)base;
	uint64_t late = atomic_load_explicit(graph->late->host, memory_order_acquire);

	if (late == graph->seen_late)
		return 0;
	graph->seen_late = late;
	return -ETIME;
}

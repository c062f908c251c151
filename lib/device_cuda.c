// SPDX-License-Identifier: MIT
/*
 * The "cuda" device: an NVIDIA GPU by its driver, see device_cuda.h.
 *
 * Owns opening, listing, streams and events. A stream waits for an event on the device, by its word: whoever fires
 * the event (a copy's stream, an engine's stream, or the host where something failed) raises the word, so no thread
 * of this machine stands between a copy and the kernel behind it. The other way round the host looks: a transfer that
 * waits for an event is handed to the driver only when that has fired, so that it can be recalled until then, and so
 * that no copy engine ever waits for a kernel.
 *
 * Any thread; a stream is one thread's at a time.
 */
#include "device_cuda.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "device_worker.h"
#include "error.h"

#define DEFAULT_SMS	4
#define POLL_NS		20000

struct cuda_stream {
	struct omnikv_stream	base;
	void			*stream;
	bool			is_ours;
};

/* ---- context ------------------------------------------------------------------------------ */

int okv_cuda_enter(struct omnikv_device *dev)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);

	if (atomic_load_explicit(&cuda->is_lost, memory_order_relaxed))
		return -EIO;
	return okv_cuda_check(dev, cuda->drv.cuCtxPushCurrent(cuda->context));
}

void okv_cuda_leave(struct omnikv_device *dev)
{
	void *context;

	okv_cuda_of(dev)->drv.cuCtxPopCurrent(&context);
}

int okv_cuda_check(struct omnikv_device *dev, int error)
{
	if (error && okv_cuda_is_fatal(error))
		atomic_store(&okv_cuda_of(dev)->is_lost, 1);
	return okv_cuda_errno(error);
}

/* ---- device ------------------------------------------------------------------------------- */

static int attribute(const struct okv_cuda *cuda, int which)
{
	int value = 0;

	if (cuda->drv.cuDeviceGetAttribute(&value, which, cuda->device))
		return 0;
	return value;
}

static int unit_parse(const char *unit, int *ordinal)
{
	char *end;
	long n;

	*ordinal = 0;
	if (!unit)
		return 0;
	if (*unit < '0' || *unit > '9')
		return -EINVAL;
	errno = 0;
	n = strtol(unit, &end, 10);
	if (*end || errno || n > 1023)
		return -EINVAL;
	*ordinal = (int)n;
	return 0;
}

/* What a GPU must have; @err names what it lacks. */
static int capable(const struct okv_cuda *cuda, struct omnikv_error *err)
{
	static const struct {
		int		attribute;
		const char	*name;
	} needed[] = {
		{ OKV_CU_ATTRIBUTE_UNIFIED_ADDRESSING, "unified addressing" },
		{ OKV_CU_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory management" },
		{ OKV_CU_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, "64-bit stream memory operations" },
	};
	size_t i;

	for (i = 0; i < sizeof(needed) / sizeof(needed[0]); i++) {
		if (!attribute(cuda, needed[i].attribute))
			return okv_error_set(err, -ENODEV, "GPU unavailable: cuda:%d (%.60s) has no %s", cuda->ordinal, cuda->model,
					     needed[i].name);
	}
	return 0;
}

static int cuda_open(struct omnikv_device *dev, const char *unit, struct omnikv_error *err)
{
	struct okv_cuda *cuda = calloc(1, sizeof(*cuda));
	int ret, count = 0, least = 0;
	size_t total = 0;
	char text[128];

	if (!cuda)
		return -ENOMEM;
	dev->priv = cuda;
	ret = unit_parse(unit, &cuda->ordinal);
	if (ret) {
		okv_error_set(err, ret, "device \"cuda:%.32s\": not a number of a GPU; see omnikv_device_list()", unit);
		goto err_free;
	}
	ret = okv_cuda_driver_open(&cuda->drv, err);
	if (ret)
		goto err_free;
	ret = cuda->drv.cuDeviceGetCount(&count);
	if (ret || cuda->ordinal >= count) {
		ret = okv_error_set(err, -ENODEV, "GPU unavailable: cuda:%d: there are %d GPUs; see nvidia-smi and CUDA_VISIBLE_DEVICES",
				    cuda->ordinal, ret ? 0 : count);
		goto err_driver;
	}
	ret = cuda->drv.cuDeviceGet(&cuda->device, cuda->ordinal);
	if (!ret)
		ret = cuda->drv.cuDeviceGetName(cuda->model, sizeof(cuda->model), cuda->device);
	if (!ret)
		ret = cuda->drv.cuDeviceGetUuid(&cuda->uuid, cuda->device);
	if (!ret)
		ret = cuda->drv.cuDeviceTotalMem(&total, cuda->device);
	if (ret)
		goto err_text;
	cuda->model[sizeof(cuda->model) - 1] = '\0';
	ret = capable(cuda, err);
	if (ret)
		goto err_driver;
	ret = cuda->drv.cuDevicePrimaryCtxRetain(&cuda->context, cuda->device);
	if (ret)
		goto err_text;

	cuda->opened_ns = okv_monotonic_ns();
	cuda->nr_sms = (uint32_t)attribute(cuda, OKV_CU_ATTRIBUTE_MULTIPROCESSOR_COUNT);
	cuda->max_sms = dev->config.max_sms ? dev->config.max_sms : DEFAULT_SMS;
	if (cuda->nr_sms && cuda->max_sms > cuda->nr_sms)
		cuda->max_sms = cuda->nr_sms;
	cuda->has_dma_buf = attribute(cuda, OKV_CU_ATTRIBUTE_DMA_BUF_SUPPORTED) && cuda->drv.cuMemGetHandleForAddressRange;
	cuda->has_vmm_rdma = attribute(cuda, OKV_CU_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
	cuda->total_bytes = total;
	if (!dev->config.hbm_bytes)
		dev->config.hbm_bytes = total;
	ret = cuda->drv.cuCtxPushCurrent(cuda->context);
	if (ret)
		goto err_context;
	if (cuda->drv.cuCtxGetStreamPriorityRange(&least, &cuda->priority))
		cuda->priority = 0;
	okv_cuda_paths_measure(dev);
	okv_cuda_leave(dev);
	return 0;

err_context:
	cuda->drv.cuDevicePrimaryCtxRelease(cuda->device);
err_text:
	ret = okv_error_set(err, okv_cuda_errno(ret), "GPU unavailable: cuda:%d: %s", cuda->ordinal,
			    okv_cuda_error_text(&cuda->drv, ret, text, sizeof(text)));
err_driver:
	okv_cuda_driver_close(&cuda->drv);
err_free:
	free(cuda);
	dev->priv = NULL;
	return ret;
}

static void cuda_close(struct omnikv_device *dev)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);
	void *context;

	/* Also of a lost context: what can be given back is. */
	cuda->drv.cuCtxPushCurrent(cuda->context);
	okv_cuda_kernels_unload(dev);
	/* Leaked where something may still write them. */
	if (!atomic_load(&cuda->has_leaks))
		okv_cuda_words_free(dev);
	cuda->drv.cuCtxPopCurrent(&context);
	cuda->drv.cuDevicePrimaryCtxRelease(cuda->device);
	okv_cuda_driver_close(&cuda->drv);
	free(cuda);
}

static uint64_t cuda_clock(struct omnikv_device *dev)
{
	return okv_monotonic_ns() - okv_cuda_of(dev)->opened_ns;
}

static void cuda_info(struct omnikv_device *dev, struct omnikv_device_info *info)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);

	info->clock_ns = cuda_clock(dev);
	info->nr_sms = cuda->nr_sms;
	if (cuda->has_dma_buf)
		info->features |= OMNIKV_DEVICE_HAS_DMABUF;
	if (!access("/sys/module/nvidia_peermem", F_OK))
		info->features |= OMNIKV_DEVICE_HAS_PEERMEM;
	if (cuda->drv.cuMemcpyBatchAsync)
		info->features |= OMNIKV_DEVICE_HAS_BATCH;
	if (okv_cuda_has_kernels(cuda))
		info->features |= OMNIKV_DEVICE_HAS_KERNELS;
	okv_cuda_rings_count(dev, &info->host_bytes, &info->host_mapped_bytes, &info->host_refused_bytes);
	info->bounced_bytes = atomic_load(&cuda->nr_bounced_bytes);
	info->engine_bytes = atomic_load(&cuda->path_bytes[OKV_PATH_ENGINE]);
	info->batch_bytes = atomic_load(&cuda->path_bytes[OKV_PATH_BATCH]);
	info->kernel_bytes = atomic_load(&cuda->path_bytes[OKV_PATH_KERNEL]);
}

static int entry_fill(const struct okv_cuda_driver *drv, int ordinal, struct omnikv_device_entry *entry)
{
	int device, sms = 0, major = 0, minor = 0, ret;
	size_t total = 0;

	memset(entry, 0, sizeof(*entry));
	snprintf(entry->name, sizeof(entry->name), "cuda:%d", ordinal);
	ret = drv->cuDeviceGet(&device, ordinal);
	if (!ret)
		ret = drv->cuDeviceGetName(entry->model, sizeof(entry->model), device);
	if (!ret)
		ret = drv->cuDeviceGetUuid((struct okv_cu_uuid *)entry->uuid, device);
	if (!ret)
		ret = drv->cuDeviceTotalMem(&total, device);
	if (!ret)
		ret = drv->cuDeviceGetAttribute(&sms, OKV_CU_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
	if (!ret)
		ret = drv->cuDeviceGetAttribute(&major, OKV_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
	if (!ret)
		ret = drv->cuDeviceGetAttribute(&minor, OKV_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
	entry->model[sizeof(entry->model) - 1] = '\0';
	entry->hbm_bytes = total;
	entry->nr_sms = (uint32_t)sms;
	entry->compute = (uint32_t)(10 * major + minor);
	return ret;
}

/*
 * Code that nvcc of one major version wrote is for drivers of that one and newer. Where others refuse it, what needs no
 * kernels goes on.
 */
static void code_note(const struct okv_cuda_driver *drv, struct omnikv_error *why)
{
	int major, minor;

	if (sscanf(okv_kernels_build(), "nvcc %d.%d", &major, &minor) != 2 || drv->version / 1000 >= major)
		return;
	okv_error_set(why, 0, "the driver is for CUDA %d.%d and the GPU code of CUDA %d.%d, which needs a driver of CUDA %d.0 or newer%s: "
		      "expect no copying kernels and no CUDA graphs; update the driver, or build with an older nvcc", drv->version / 1000,
		      drv->version % 1000 / 10, major, minor, major, major == 13 ? " (release 580)" : "");
}

int omnikv_device_list(struct omnikv_device_entry *entries, uint32_t max, struct omnikv_error *why)
{
	struct okv_cuda_driver drv;
	char text[128];
	int count = 0, i, ret;

	if (okv_cuda_driver_open(&drv, why))
		return 0;
	ret = drv.cuDeviceGetCount(&count);
	for (i = 0; !ret && i < count && (uint32_t)i < max; i++)
		ret = entry_fill(&drv, i, &entries[i]);
	if (ret) {
		count = 0;
		okv_error_set(why, 0, "GPU unavailable: %s", okv_cuda_error_text(&drv, ret, text, sizeof(text)));
	} else if (!count) {
		okv_error_set(why, 0, "GPU unavailable: there is a driver, and no GPU; see nvidia-smi and CUDA_VISIBLE_DEVICES");
	} else {
		okv_error_set(why, 0, "%s", "");
		code_note(&drv, why);
	}
	okv_cuda_driver_close(&drv);
	return count;
}

/* ---- events ------------------------------------------------------------------------------- */

static uint64_t word_fired(const struct okv_cuda_word *word)
{
	return 2 * word->gen;
}

static int cuda_event_create(struct omnikv_device *dev, struct omnikv_event **out)
{
	struct okv_cuda_event *event = calloc(1, sizeof(*event));
	int ret;

	if (!event)
		return -ENOMEM;
	ret = okv_cuda_enter(dev);
	if (ret)
		goto err_free;
	event->word = okv_cuda_word_get(dev);
	event->spare = event->word ? okv_cuda_word_get(dev) : NULL;
	okv_cuda_leave(dev);
	if (!event->spare) {
		ret = -ENOMEM;
		goto err_word;
	}
	event->base.dev = dev;
	*out = &event->base;
	return 0;

err_word:
	if (event->word) {
		pthread_mutex_lock(&dev->lock);
		okv_cuda_word_put_locked(dev, event->word);
		pthread_mutex_unlock(&dev->lock);
	}
err_free:
	free(event);
	return ret;
}

static void word_abandon_locked(struct omnikv_device *dev, struct okv_cuda_word *word)
{
	if (word->nr_writers)
		word->is_orphan = true;
	else
		okv_cuda_word_put_locked(dev, word);
}

static void cuda_event_destroy(struct omnikv_event *base)
{
	struct okv_cuda_event *event = (struct okv_cuda_event *)base;
	struct omnikv_device *dev = base->dev;

	pthread_mutex_lock(&dev->lock);
	if (event->spare)
		okv_cuda_word_put_locked(dev, event->spare);
	word_abandon_locked(dev, event->word);
	pthread_mutex_unlock(&dev->lock);
	free(event);
}

/*
 * dev->lock is held. A copy that outlived its deadline may still write the word, with a value of this generation:
 * then the spare takes its place, and the word is handed on when that copy is over. One event has one such copy at a
 * time: its next spare is taken where the next transfer that signals it is begun. Graphs have the word's address: who
 * captures an event resets it only when the transfers that signal it are over.
 */
static void cuda_event_reset(struct omnikv_event *base)
{
	struct okv_cuda_event *event = (struct okv_cuda_event *)base;

	if (event->word->nr_writers && event->spare && !event->nr_graphs) {
		event->word->is_orphan = true;
		event->word = event->spare;
		event->spare = NULL;
	} else {
		event->word->gen++;
	}
}

/* dev->lock is held. */
static void cuda_event_fired(struct omnikv_device *dev, struct omnikv_event *base)
{
	struct okv_cuda_event *event = (struct okv_cuda_event *)base;
	uint64_t value = word_fired(event->word) + (atomic_load(&base->state) < 0);

	/* Pairs with waits on the device. */
	if (atomic_load_explicit(event->word->host, memory_order_relaxed) < value)
		atomic_store_explicit(event->word->host, value, memory_order_release);
	okv_worker_event_fired(dev, base);
}

static void cuda_event_look(struct omnikv_event *base)
{
	struct okv_cuda_event *event = (struct okv_cuda_event *)base;
	struct omnikv_device *dev = base->dev;

	/* Under the lock, so that no reset comes between the look and what follows from it. */
	pthread_mutex_lock(&dev->lock);
	/* Pairs with the write of whichever stream fired it: what came before that is visible after this. */
	if (atomic_load_explicit(event->word->host, memory_order_acquire) >= word_fired(event->word))
		okv_event_fire_locked(base, 1);
	pthread_mutex_unlock(&dev->lock);
}

/* ---- streams ------------------------------------------------------------------------------ */

static int stream_new(struct omnikv_device *dev, void *native, bool is_ours, struct omnikv_stream **out)
{
	struct cuda_stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return -ENOMEM;
	stream->base.dev = dev;
	stream->stream = native;
	stream->is_ours = is_ours;
	*out = &stream->base;
	return 0;
}

static int cuda_stream_create(struct omnikv_device *dev, struct omnikv_stream **out)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);
	void *native = NULL;
	int ret = okv_cuda_enter(dev);

	if (ret)
		return ret;
	ret = okv_cuda_check(dev, cuda->drv.cuStreamCreateWithPriority(&native, OKV_CU_STREAM_NON_BLOCKING, 0));
	if (!ret) {
		ret = stream_new(dev, native, true, out);
		if (ret)
			cuda->drv.cuStreamDestroy(native);
	}
	okv_cuda_leave(dev);
	return ret;
}

static int cuda_stream_attach(struct omnikv_device *dev, void *native, struct omnikv_stream **out)
{
	return stream_new(dev, native, false, out);
}

static void *cuda_stream_native(struct omnikv_stream *base)
{
	return ((struct cuda_stream *)base)->stream;
}

static void cuda_stream_destroy(struct omnikv_stream *base)
{
	struct cuda_stream *stream = (struct cuda_stream *)base;
	struct okv_cuda *cuda = okv_cuda_of(base->dev);
	void *context;

	if (stream->is_ours) {
		/* Also of a lost context. */
		cuda->drv.cuCtxPushCurrent(cuda->context);
		cuda->drv.cuStreamDestroy(stream->stream);
		cuda->drv.cuCtxPopCurrent(&context);
	}
	free(stream);
}

static int cuda_stream_launch(struct omnikv_stream *base, uint64_t duration_ns, void (*fn)(void *arg), void *arg)
{
	struct omnikv_device *dev = base->dev;
	int ret = 0;

	if (fn) {
		ret = okv_cuda_enter(dev);
		if (ret)
			return ret;
		ret = okv_cuda_check(dev, okv_cuda_of(dev)->drv.cuLaunchHostFunc(((struct cuda_stream *)base)->stream, fn, arg));
		okv_cuda_leave(dev);
	}
	if (!ret)
		atomic_fetch_add_explicit(&dev->compute_ns, duration_ns, memory_order_relaxed);
	return ret;
}

/* Also for an event of another device: words are portable host memory, streams of every GPU see them. */
static int cuda_peer_wait(struct omnikv_stream *base, struct omnikv_event *event)
{
	const struct okv_cuda_word *word = ((struct okv_cuda_event *)event)->word;
	struct omnikv_device *dev = base->dev;
	int ret = okv_cuda_enter(dev);

	if (ret)
		return ret;
	ret = okv_cuda_check(dev, okv_cuda_of(dev)->drv.cuStreamWaitValue64(((struct cuda_stream *)base)->stream, word->ptr,
									    word_fired(word), OKV_CU_STREAM_WAIT_VALUE_GEQ));
	okv_cuda_leave(dev);
	return ret;
}

static int cuda_stream_wait(struct omnikv_stream *stream, struct omnikv_event *event)
{
	return omnikv_event_query(event) ? 0 : cuda_peer_wait(stream, event);
}

static int cuda_stream_record(struct omnikv_stream *base, struct omnikv_event *event)
{
	struct okv_cuda_word *word = ((struct okv_cuda_event *)event)->word;
	struct omnikv_device *dev = base->dev;
	int ret = okv_cuda_enter(dev);

	if (ret)
		return ret;
	ret = okv_cuda_check(dev, okv_cuda_of(dev)->drv.cuStreamWriteValue64(((struct cuda_stream *)base)->stream, word->ptr,
									     word_fired(word), OKV_CU_STREAM_WRITE_VALUE_DEFAULT));
	okv_cuda_leave(dev);
	return ret;
}

static int cuda_stream_read(struct omnikv_stream *base, void *pinned, const void *hbm, uint64_t bytes)
{
	struct omnikv_device *dev = base->dev;
	int ret = okv_cuda_enter(dev);

	if (ret)
		return ret;
	ret = okv_cuda_check(dev, okv_cuda_of(dev)->drv.cuMemcpyDtoHAsync(pinned, (uintptr_t)hbm, bytes,
									  ((struct cuda_stream *)base)->stream));
	okv_cuda_leave(dev);
	return ret;
}

/* Over NVLink where there is one, by the host where there is no other way: the driver's choice. */
static int cuda_peer_copy(struct omnikv_stream *base, struct omnikv_device *to, void *dst, const void *src, uint64_t bytes)
{
	struct omnikv_device *dev = base->dev;
	int ret = okv_cuda_enter(dev);

	if (ret)
		return ret;
	ret = okv_cuda_check(dev, okv_cuda_of(dev)->drv.cuMemcpyPeerAsync((uintptr_t)dst, okv_cuda_of(to)->context, (uintptr_t)src,
									  okv_cuda_of(dev)->context, bytes,
									  ((struct cuda_stream *)base)->stream));
	okv_cuda_leave(dev);
	return ret;
}

static bool cuda_is_same(const struct omnikv_device *a, const struct omnikv_device *b)
{
	return okv_cuda_of(a)->device == okv_cuda_of(b)->device;
}

static int cuda_pinned_alloc(struct omnikv_device *dev, uint64_t bytes, void **ptr)
{
	int ret = okv_cuda_enter(dev);

	if (ret)
		return ret;
	ret = okv_cuda_check(dev, okv_cuda_of(dev)->drv.cuMemHostAlloc(ptr, bytes, OKV_CU_MEMHOSTALLOC_PORTABLE |
										    OKV_CU_MEMHOSTALLOC_DEVICEMAP));
	okv_cuda_leave(dev);
	return ret;
}

static void cuda_pinned_free(struct omnikv_device *dev, void *ptr)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);
	void *context;

	/* Also of a lost context. */
	cuda->drv.cuCtxPushCurrent(cuda->context);
	cuda->drv.cuMemFreeHost(ptr);
	cuda->drv.cuCtxPopCurrent(&context);
}

static void doze(uint64_t ns)
{
	struct timespec ts = { .tv_nsec = (long)ns };

	nanosleep(&ts, NULL);
}

static int cuda_stream_sync(struct omnikv_stream *base, uint64_t timeout_ns)
{
	struct omnikv_device *dev = base->dev;
	struct okv_cuda *cuda = okv_cuda_of(dev);
	uint64_t start_ns = okv_monotonic_ns();
	int ret = okv_cuda_enter(dev), error;

	if (ret)
		return ret;
	/* Not cuStreamSynchronize(), which knows no deadline. */
	for (;;) {
		error = cuda->drv.cuStreamQuery(((struct cuda_stream *)base)->stream);
		if (error != OKV_CUDA_ERROR_NOT_READY)
			break;
		if (okv_monotonic_ns() - start_ns >= timeout_ns)
			break;
		doze(POLL_NS);
	}
	okv_cuda_leave(dev);
	return error == OKV_CUDA_ERROR_NOT_READY ? -ETIME : okv_cuda_check(dev, error);
}

/* ---- running ------------------------------------------------------------------------------ */

static int cuda_poll(struct omnikv_device *dev)
{
	if (atomic_load(&okv_cuda_of(dev)->is_lost))
		return 0;
	doze(POLL_NS);
	return 1;
}

static int cuda_advance(struct omnikv_device *dev, uint64_t clock_ns)
{
	(void)dev;
	(void)clock_ns;
	return -EOPNOTSUPP;
}

static int cuda_fail_next(struct omnikv_device *dev, uint32_t nth, int error)
{
	(void)dev;
	(void)nth;
	(void)error;
	return -EOPNOTSUPP;
}

static void cuda_ring_poll(struct omnikv_ring *ring)
{
	(void)ring;
}

const struct okv_device_ops okv_device_cuda = {
	.name = "cuda",
	.has_units = true,
	.open = cuda_open,
	.close = cuda_close,
	.clock = cuda_clock,
	.info = cuda_info,
	.stream_create = cuda_stream_create,
	.stream_destroy = cuda_stream_destroy,
	.stream_launch = cuda_stream_launch,
	.stream_wait = cuda_stream_wait,
	.stream_record = cuda_stream_record,
	.stream_sync = cuda_stream_sync,
	.stream_attach = cuda_stream_attach,
	.stream_native = cuda_stream_native,
	.pinned_alloc = cuda_pinned_alloc,
	.pinned_free = cuda_pinned_free,
	.stream_read = cuda_stream_read,
	.peer_copy = cuda_peer_copy,
	.peer_wait = cuda_peer_wait,
	.is_same = cuda_is_same,
	.event_fired = cuda_event_fired,
	.event_create = cuda_event_create,
	.event_destroy = cuda_event_destroy,
	.event_reset = cuda_event_reset,
	.event_look = cuda_event_look,
	.graph_create = okv_cuda_graph_create,
	.graph_destroy = okv_cuda_graph_destroy,
	.graph_add = okv_cuda_graph_add,
	.graph_begin = okv_cuda_graph_begin,
	.graph_status = okv_cuda_graph_status,
	.hbm_alloc = okv_cuda_hbm_alloc,
	.hbm_bind = okv_cuda_hbm_bind,
	.hbm_check = okv_cuda_hbm_check,
	.hbm_dmabuf = okv_cuda_hbm_dmabuf,
	.hbm_freed = okv_cuda_hbm_free,
	.poll = cuda_poll,
	.advance = cuda_advance,
	.fail_next = cuda_fail_next,
	.ring_init = okv_cuda_ring_init,
	.ring_exit = okv_cuda_ring_exit,
	.ring_submitted = okv_worker_ring_submitted,
	.ring_poll = cuda_ring_poll,
	.ring_wait = okv_worker_ring_wait,
	.op_start = okv_cuda_op_start,
	.op_recall = okv_cuda_op_recall,
};

// SPDX-License-Identifier: MIT
/*
 * Devices: opening by name, device memory and its accounting, events.
 *
 * Leaves streams, clocks and transfers to the table of the kind (device_host.c, device_sim.c,
 * device_cuda.c). Events are fired by rings and streams under the device's lock, so that one
 * can be destroyed as soon as it is seen to have fired.
 */
#include "device.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "failpoint.h"
#include "kernels/kernels.h"

#define HUGE_BYTES	(UINT64_C(2) << 20)
#define PAGE_BYTES	UINT64_C(4096)

static const struct okv_device_ops *const kinds[] = { &okv_device_host, &okv_device_sim, &okv_device_cuda };

static void set_error(struct omnikv_error *err, const char *text)
{
	if (err)
		snprintf(err->text, sizeof(err->text), "%s", text);
}

/* A caller's struct may be shorter than ours (the rest is zero) or longer when its tail is zero. */
static int copy_config(struct omnikv_device_config *to, const struct omnikv_device_config *from,
		       struct omnikv_error *err)
{
	const unsigned char *bytes = (const unsigned char *)from;
	size_t i;

	memset(to, 0, sizeof(*to));
	if (!from)
		return 0;
	if (from->size < offsetof(struct omnikv_device_config, hbm_bytes)) {
		set_error(err, "device configuration: size is too small; set it to sizeof(struct omnikv_device_config)");
		return -EINVAL;
	}
	for (i = sizeof(*to); i < from->size; i++) {
		if (bytes[i]) {
			set_error(err, "device configuration: asks for what this library does not know");
			return -E2BIG;
		}
	}
	memcpy(to, from, from->size < sizeof(*to) ? from->size : sizeof(*to));
	return 0;
}

/* @unit: what stands behind "KIND:", or NULL. */
static const struct okv_device_ops *find_kind(const char *name, const char **unit)
{
	size_t i, len;

	for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		len = strlen(kinds[i]->name);
		if (strncmp(kinds[i]->name, name, len))
			continue;
		*unit = name[len] == ':' && kinds[i]->has_units ? name + len + 1 : NULL;
		if (!name[len] || *unit)
			return kinds[i];
	}
	return NULL;
}

const char *omnikv_device_code(void)
{
	return okv_kernels_build();
}

int omnikv_device_open(const char *name, const struct omnikv_device_config *config,
		       struct omnikv_device **out, struct omnikv_error *err)
{
	const struct okv_device_ops *ops;
	const char *unit = NULL;
	struct omnikv_device *dev;
	int ret;

	ops = find_kind(name ? name : "", &unit);
	if (!ops) {
		if (err)
			snprintf(err->text, sizeof(err->text),
				 "device \"%.64s\": unknown; there are host, sim, sim:kernels, cuda and cuda:N",
				 name ? name : "");
		return -ENODEV;
	}

	dev = calloc(1, sizeof(*dev));
	if (!dev)
		return -ENOMEM;
	ret = copy_config(&dev->config, config, err);
	if (ret)
		goto err_free;
	if ((dev->config.flags & ~OMNIKV_DEVICE_F_ALL) || dev->config.fail_ppm > 1000000 ||
	    !(dev->config.h2d_bytes_s >= 0) || !(dev->config.d2h_bytes_s >= 0)) {
		set_error(err, "device configuration: unknown flag, fail_ppm over 1000000 or a negative speed");
		ret = -EINVAL;
		goto err_free;
	}
	dev->ops = ops;
	pthread_mutex_init(&dev->lock, NULL);
	ret = ops->open(dev, unit, err);
	if (ret)
		goto err_mutex;
	if (!dev->config.hbm_bytes)
		dev->config.hbm_bytes = UINT64_C(16) << 30;

	*out = dev;
	return 0;

err_mutex:
	pthread_mutex_destroy(&dev->lock);
err_free:
	free(dev);
	return ret;
}

int omnikv_device_close(struct omnikv_device *dev)
{
	bool has_rings;

	if (!dev)
		return 0;
	pthread_mutex_lock(&dev->lock);
	has_rings = dev->rings != NULL;
	pthread_mutex_unlock(&dev->lock);
	if (has_rings)
		return -EBUSY;
	dev->ops->close(dev);
	pthread_mutex_destroy(&dev->lock);
	free(dev);
	return 0;
}

int omnikv_device_info(struct omnikv_device *dev, struct omnikv_device_info *out)
{
	struct omnikv_device_info info = { .size = sizeof(info) };
	size_t size = out->size;

	if (size < sizeof(size))
		return -EINVAL;
	pthread_mutex_lock(&dev->lock);
	info.hbm_bytes = dev->config.hbm_bytes;
	info.hbm_used_bytes = dev->hbm_used_bytes;
	info.hbm_peak_bytes = dev->hbm_peak_bytes;
	pthread_mutex_unlock(&dev->lock);
	info.h2d_bytes = atomic_load(&dev->h2d_bytes);
	info.d2h_bytes = atomic_load(&dev->d2h_bytes);
	info.compute_ns = atomic_load(&dev->compute_ns);
	info.nr_failed = atomic_load(&dev->nr_failed);
	dev->ops->info(dev, &info);

	info.size = size;
	if (size > sizeof(info)) {
		memset((char *)out + sizeof(info), 0, size - sizeof(info));
		size = sizeof(info);
	}
	memcpy(out, &info, size);
	return 0;
}

/* ---- memory ------------------------------------------------------------------------------- */

/* Memory of this machine, aligned so that huge pages can back it. */
static int map_memory(uint64_t bytes, void **out, uint64_t *out_bytes)
{
	uint64_t mapped_bytes = (bytes + 4095) & ~UINT64_C(4095);
	uintptr_t start, aligned;
	void *ptr;

	if (bytes < HUGE_BYTES) {
		ptr = mmap(NULL, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (ptr == MAP_FAILED)
			return -ENOMEM;
		goto out_set;
	}
	mapped_bytes = (bytes + HUGE_BYTES - 1) & ~(HUGE_BYTES - 1);
	ptr = mmap(NULL, mapped_bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (ptr == MAP_FAILED)
		return -ENOMEM;
	start = (uintptr_t)ptr;
	aligned = (start + HUGE_BYTES - 1) & ~(uintptr_t)(HUGE_BYTES - 1);
	if (aligned > start)
		munmap(ptr, aligned - start);
	if (start + HUGE_BYTES > aligned)
		munmap((void *)(aligned + mapped_bytes), start + HUGE_BYTES - aligned);
	ptr = (void *)aligned;
	madvise(ptr, mapped_bytes, MADV_HUGEPAGE);

out_set:
	*out = ptr;
	*out_bytes = mapped_bytes;
	return 0;
}

/* Pages behind @to_bytes go back to the system, and a touch of them is a fault. */
static int bind_memory(void *ptr, uint64_t mapped_bytes, uint64_t from_bytes, uint64_t to_bytes)
{
	uint64_t end = (to_bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);

	if (to_bytes >= from_bytes)
		return mprotect(ptr, end, PROT_READ | PROT_WRITE) ? -ENOMEM : 0;
	if (end == mapped_bytes)
		return 0;
	if (mprotect((char *)ptr + end, mapped_bytes - end, PROT_NONE))
		return -ENOMEM;
	madvise((char *)ptr + end, mapped_bytes - end, MADV_DONTNEED);
	return 0;
}

/* Count @bytes more as used; -ENOMEM over the capacity. */
static int account_add(struct omnikv_device *dev, uint64_t bytes)
{
	int ret = 0;

	pthread_mutex_lock(&dev->lock);
	if (bytes > dev->config.hbm_bytes - dev->hbm_used_bytes)
		ret = -ENOMEM;
	else
		dev->hbm_used_bytes += bytes;
	if (dev->hbm_used_bytes > dev->hbm_peak_bytes)
		dev->hbm_peak_bytes = dev->hbm_used_bytes;
	pthread_mutex_unlock(&dev->lock);
	return ret;
}

static void account_sub(struct omnikv_device *dev, uint64_t bytes)
{
	pthread_mutex_lock(&dev->lock);
	dev->hbm_used_bytes -= bytes;
	pthread_mutex_unlock(&dev->lock);
}

int omnikv_hbm_create(struct omnikv_device *dev, uint64_t bytes, struct omnikv_hbm **out)
{
	struct omnikv_hbm *hbm;
	int ret;

	if (!bytes || bytes > INT64_MAX - HUGE_BYTES)
		return -EINVAL;
	hbm = calloc(1, sizeof(*hbm));
	if (!hbm)
		return -ENOMEM;

	ret = account_add(dev, bytes);
	if (ret)
		goto err_free;
	if (dev->ops->hbm_alloc)
		ret = dev->ops->hbm_alloc(dev, bytes, &hbm->ptr, &hbm->mapped_bytes);
	else
		ret = map_memory(bytes, &hbm->ptr, &hbm->mapped_bytes);
	if (ret)
		goto err_account;
	hbm->dev = dev;
	hbm->bytes = bytes;
	hbm->created_bytes = bytes;
	*out = hbm;
	return 0;

err_account:
	account_sub(dev, bytes);
err_free:
	free(hbm);
	return ret;
}

int omnikv_hbm_attach(struct omnikv_device *dev, void *ptr, uint64_t bytes, struct omnikv_hbm **out)
{
	struct omnikv_hbm *hbm;

	int ret;

	if (!ptr || !bytes || bytes > INT64_MAX)
		return -EINVAL;
	if (dev->ops->hbm_check) {
		ret = dev->ops->hbm_check(dev, ptr, bytes);
		if (ret)
			return ret;
	}
	hbm = calloc(1, sizeof(*hbm));
	if (!hbm)
		return -ENOMEM;
	hbm->dev = dev;
	hbm->ptr = ptr;
	hbm->bytes = bytes;
	*out = hbm;
	return 0;
}

/* Of memory that omnikv created; attached memory is the engine's. */
static int created_resize(struct omnikv_hbm *hbm, uint64_t bytes)
{
	struct omnikv_device *dev = hbm->dev;
	uint64_t more = bytes > hbm->bytes ? bytes - hbm->bytes : 0;
	int ret;

	if (bytes > hbm->created_bytes)
		return -EINVAL;
	ret = account_add(dev, more);
	if (ret)
		return ret;
	if (dev->ops->hbm_bind)
		ret = dev->ops->hbm_bind(dev, hbm->ptr, hbm->mapped_bytes, hbm->bytes, bytes);
	else
		ret = bind_memory(hbm->ptr, hbm->mapped_bytes, hbm->bytes, bytes);
	if (ret)
		account_sub(dev, more);
	else if (bytes < hbm->bytes)
		account_sub(dev, hbm->bytes - bytes);
	return ret;
}

int okv_hbm_get(struct omnikv_hbm *hbm)
{
	uint32_t nr = atomic_load_explicit(&hbm->nr_pipes, memory_order_relaxed);

	/* The acquire pairs with the release at the end of okv_hbm_resize(): its length is that from now on. */
	do {
		if (nr == OKV_HBM_RESIZED)
			return -EBUSY;
	} while (!atomic_compare_exchange_weak_explicit(&hbm->nr_pipes, &nr, nr + 1, memory_order_acquire,
							memory_order_relaxed));
	return 0;
}

void okv_hbm_put(struct omnikv_hbm *hbm)
{
	/* Pairs with the acquire at the begin of okv_hbm_resize(): what this pipe did to it is over. */
	atomic_fetch_sub_explicit(&hbm->nr_pipes, 1, memory_order_release);
}

int okv_hbm_resize(struct omnikv_hbm *hbm, uint32_t nr_own, uint64_t bytes)
{
	uint32_t nr_pipes = nr_own;
	int ret = 0;

	if (!bytes || bytes > INT64_MAX)
		return -EINVAL;
	if (!atomic_compare_exchange_strong_explicit(&hbm->nr_pipes, &nr_pipes, OKV_HBM_RESIZED, memory_order_acquire,
						     memory_order_relaxed))
		return -EBUSY;
	(void)OKV_FAILPOINT("hbm.resize");
	/* Pairs as in omnikv_hbm_destroy(). */
	if (atomic_load_explicit(&hbm->nr_io, memory_order_acquire))
		ret = -EBUSY;
	else if (hbm->mapped_bytes)
		ret = created_resize(hbm, bytes);
	else if (bytes > hbm->bytes && hbm->dev->ops->hbm_check)
		ret = hbm->dev->ops->hbm_check(hbm->dev, hbm->ptr, bytes);
	if (!ret)
		hbm->bytes = bytes;
	atomic_store_explicit(&hbm->nr_pipes, nr_own, memory_order_release);
	return ret;
}

int omnikv_hbm_resize(struct omnikv_hbm *hbm, uint64_t bytes)
{
	return okv_hbm_resize(hbm, 0, bytes);
}

int omnikv_hbm_destroy(struct omnikv_hbm *hbm)
{
	struct omnikv_device *dev;
	uint32_t nr_pipes = 0;

	if (!hbm)
		return 0;
	/* Pairs as in okv_hbm_resize(). */
	if (!atomic_compare_exchange_strong_explicit(&hbm->nr_pipes, &nr_pipes, OKV_HBM_RESIZED, memory_order_acquire,
						     memory_order_relaxed))
		return -EBUSY;
	/* Pairs with the release when a transfer's last completion is posted. */
	if (atomic_load_explicit(&hbm->nr_io, memory_order_acquire)) {
		atomic_store_explicit(&hbm->nr_pipes, 0, memory_order_release);
		return -EBUSY;
	}
	dev = hbm->dev;
	if (hbm->mapped_bytes) {
		account_sub(dev, hbm->bytes);
		dev->ops->hbm_freed(dev, hbm->ptr, hbm->mapped_bytes, hbm->bytes);
	}
	free(hbm);
	return 0;
}

void *omnikv_hbm_ptr(const struct omnikv_hbm *hbm)
{
	return hbm->ptr;
}

uint64_t omnikv_hbm_bytes(const struct omnikv_hbm *hbm)
{
	return hbm->bytes;
}

int omnikv_hbm_dmabuf(const struct omnikv_hbm *hbm, int *fd)
{
	if (!hbm->dev->ops->hbm_dmabuf)
		return -EOPNOTSUPP;
	return hbm->dev->ops->hbm_dmabuf(hbm->dev, hbm->ptr, hbm->bytes, fd);
}

/* ---- events ------------------------------------------------------------------------------- */

int omnikv_event_create(struct omnikv_device *dev, struct omnikv_event **out)
{
	struct omnikv_event *event;

	if (dev->ops->event_create)
		return dev->ops->event_create(dev, out);
	event = calloc(1, sizeof(*event));
	if (!event)
		return -ENOMEM;
	event->dev = dev;
	*out = event;
	return 0;
}

void omnikv_event_destroy(struct omnikv_event *event)
{
	struct omnikv_device *dev;

	if (!event)
		return;
	/* Whoever fires it holds the lock until it no longer touches it. */
	dev = event->dev;
	pthread_mutex_lock(&dev->lock);
	pthread_mutex_unlock(&dev->lock);
	if (dev->ops->event_destroy)
		dev->ops->event_destroy(event);
	else
		free(event);
}

void omnikv_event_reset(struct omnikv_event *event)
{
	pthread_mutex_lock(&event->dev->lock);
	atomic_store(&event->state, 0);
	if (event->dev->ops->event_reset)
		event->dev->ops->event_reset(event);
	pthread_mutex_unlock(&event->dev->lock);
}

int omnikv_event_query(struct omnikv_event *event)
{
	int state = atomic_load(&event->state);

	if (state || !event->dev->ops->event_look)
		return state;
	event->dev->ops->event_look(event);
	return atomic_load(&event->state);
}

void okv_event_fire_locked(struct omnikv_event *event, int status)
{
	if (atomic_load(&event->state))
		return;
	atomic_store(&event->state, status);
	atomic_fetch_add(&event->dev->event_seq, 1);
	event->dev->ops->event_fired(event->dev, event);
}

void okv_event_fire(struct omnikv_event *event, int status)
{
	struct omnikv_device *dev = event->dev;

	pthread_mutex_lock(&dev->lock);
	okv_event_fire_locked(event, status);
	pthread_mutex_unlock(&dev->lock);
}

/* ---- streams and time --------------------------------------------------------------------- */

int omnikv_stream_create(struct omnikv_device *dev, struct omnikv_stream **stream)
{
	return dev->ops->stream_create(dev, stream);
}

int omnikv_stream_attach(struct omnikv_device *dev, void *native, struct omnikv_stream **stream)
{
	return dev->ops->stream_attach ? dev->ops->stream_attach(dev, native, stream) : -EOPNOTSUPP;
}

void *omnikv_stream_native(struct omnikv_stream *stream)
{
	return stream->dev->ops->stream_native ? stream->dev->ops->stream_native(stream) : NULL;
}

void omnikv_stream_destroy(struct omnikv_stream *stream)
{
	if (stream)
		stream->dev->ops->stream_destroy(stream);
}

int omnikv_stream_launch(struct omnikv_stream *stream, uint64_t duration_ns, void (*fn)(void *arg), void *arg)
{
	return stream->dev->ops->stream_launch(stream, duration_ns, fn, arg);
}

int omnikv_stream_wait(struct omnikv_stream *stream, struct omnikv_event *event)
{
	if (event->dev != stream->dev)
		return -EINVAL;
	return stream->dev->ops->stream_wait(stream, event);
}

int omnikv_stream_record(struct omnikv_stream *stream, struct omnikv_event *event)
{
	if (event->dev != stream->dev)
		return -EINVAL;
	return stream->dev->ops->stream_record(stream, event);
}

int omnikv_stream_sync(struct omnikv_stream *stream, uint64_t timeout_ns)
{
	return stream->dev->ops->stream_sync(stream, timeout_ns);
}

int omnikv_graph_create(struct omnikv_device *dev, uint64_t timeout_ns, struct omnikv_graph **out)
{
	struct omnikv_graph *graph;

	if (dev->ops->graph_create)
		return dev->ops->graph_create(dev, timeout_ns, out);
	graph = calloc(1, sizeof(*graph));
	if (!graph)
		return -ENOMEM;
	graph->dev = dev;
	*out = graph;
	return 0;
}

void omnikv_graph_destroy(struct omnikv_graph *graph)
{
	if (graph && graph->dev->ops->graph_destroy)
		graph->dev->ops->graph_destroy(graph);
	else
		free(graph);
}

int omnikv_graph_wait(struct omnikv_graph *graph, struct omnikv_stream *stream, struct omnikv_event *event)
{
	if (stream->dev != graph->dev || event->dev != graph->dev)
		return -EINVAL;
	return graph->dev->ops->graph_add ? graph->dev->ops->graph_add(graph, stream, event, true) :
					    omnikv_stream_wait(stream, event);
}

int omnikv_graph_record(struct omnikv_graph *graph, struct omnikv_stream *stream, struct omnikv_event *event)
{
	if (stream->dev != graph->dev || event->dev != graph->dev)
		return -EINVAL;
	return graph->dev->ops->graph_add ? graph->dev->ops->graph_add(graph, stream, event, false) :
					    omnikv_stream_record(stream, event);
}

int omnikv_graph_begin(struct omnikv_graph *graph, struct omnikv_stream *stream)
{
	if (stream->dev != graph->dev)
		return -EINVAL;
	return graph->dev->ops->graph_begin ? graph->dev->ops->graph_begin(graph, stream) : 0;
}

int omnikv_graph_status(struct omnikv_graph *graph)
{
	return graph->dev->ops->graph_status ? graph->dev->ops->graph_status(graph) : 0;
}

int omnikv_device_poll(struct omnikv_device *dev)
{
	return dev->ops->poll(dev);
}

int omnikv_device_advance(struct omnikv_device *dev, uint64_t clock_ns)
{
	return dev->ops->advance(dev, clock_ns);
}

int omnikv_device_fail_next(struct omnikv_device *dev, uint32_t nth, int error)
{
	if (!nth || error >= 0)
		return -EINVAL;
	return dev->ops->fail_next(dev, nth, error);
}

// SPDX-License-Identifier: MIT
/*
 * Memory of the "cuda" device: HBM, words that both sides see, and the registration of pools.
 *
 * A pool's linear map is registered with the driver in chunks: one registration of hundreds of GiB fails on real
 * drivers, and takes long where it does not. Threads of its own take the chunks that transfers have asked for most,
 * then the rest in order; until a chunk is registered its pieces go by the ring's bounce buffer. No run crosses the
 * border of two chunks: okv_cuda_map_find() cuts it there, since a copy may not span two registrations.
 *
 * Registrations are the process's, as the driver has them: two devices that use one pool share them. So the list of
 * maps is the one thing here that is not some device's.
 *
 * Any thread; what is under a lock is said at each structure.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device_cuda.h"
#include "ring.h"

/* A driver that refuses large registrations still takes these; eight of them fill a second of pinning. */
#define CHUNK_BYTES	(UINT64_C(256) << 20)
#define MAX_THREADS	4
#define PAGE_BYTES	4096

/* Of HBM that may be given back: few mappings, and little that is kept beyond what is asked for. */
#define UNIT_BYTES	(UINT64_C(32) << 20)

#define WORDS_BYTES	(UINT64_C(64) << 10)
/* A cache line each: the device's writes of one do not disturb who polls another. */
#define WORD_STRIDE	64

/* ---- words -------------------------------------------------------------------------------- */

struct okv_cuda_page {
	struct okv_cuda_page	*next;
	void			*host;
	struct okv_cuda_word	words[WORDS_BYTES / WORD_STRIDE];
};

/* Without the lock: a driver's call may wait for work that ends with a callback which takes it. */
static int words_grow(struct omnikv_device *dev)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);
	struct okv_cuda_page *page = calloc(1, sizeof(*page));
	uint64_t ptr = 0;
	size_t i;
	int ret;

	if (!page)
		return -ENOMEM;
	ret = cuda->drv.cuMemHostAlloc(&page->host, WORDS_BYTES, OKV_CU_MEMHOSTALLOC_PORTABLE | OKV_CU_MEMHOSTALLOC_DEVICEMAP);
	if (ret)
		goto err_free;
	ret = cuda->drv.cuMemHostGetDevicePointer(&ptr, page->host, 0);
	if (ret)
		goto err_host;
	memset(page->host, 0, WORDS_BYTES);
	for (i = 0; i < WORDS_BYTES / WORD_STRIDE; i++) {
		struct okv_cuda_word *word = &page->words[i];

		word->host = (_Atomic uint64_t *)((char *)page->host + i * WORD_STRIDE);
		word->ptr = ptr + i * WORD_STRIDE;
		word->next = i ? &page->words[i - 1] : NULL;
	}
	pthread_mutex_lock(&dev->lock);
	page->words[0].next = cuda->free_words;
	cuda->free_words = &page->words[i - 1];
	page->next = cuda->pages;
	cuda->pages = page;
	pthread_mutex_unlock(&dev->lock);
	return 0;

err_host:
	cuda->drv.cuMemFreeHost(page->host);
err_free:
	free(page);
	return okv_cuda_check(dev, ret);
}

struct okv_cuda_word *okv_cuda_word_get(struct omnikv_device *dev)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);
	struct okv_cuda_word *word;

	pthread_mutex_lock(&dev->lock);
	while (!cuda->free_words) {
		pthread_mutex_unlock(&dev->lock);
		if (words_grow(dev))
			return NULL;
		pthread_mutex_lock(&dev->lock);
	}
	word = cuda->free_words;
	cuda->free_words = word->next;
	/* Whatever it was last written is below what the next generation waits for. */
	word->gen++;
	word->is_orphan = false;
	pthread_mutex_unlock(&dev->lock);
	return word;
}

void okv_cuda_word_put_locked(struct omnikv_device *dev, struct okv_cuda_word *word)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);

	word->next = cuda->free_words;
	cuda->free_words = word;
}

void okv_cuda_words_free(struct omnikv_device *dev)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);

	cuda->free_words = NULL;
	while (cuda->pages) {
		struct okv_cuda_page *page = cuda->pages;

		cuda->pages = page->next;
		cuda->drv.cuMemFreeHost(page->host);
		free(page);
	}
}

/* ---- HBM ---------------------------------------------------------------------------------- */

static struct okv_cu_mem_allocation_prop hbm_prop(const struct okv_cuda *cuda)
{
	struct okv_cu_mem_allocation_prop prop = { .type = OKV_CU_MEM_ALLOCATION_TYPE_PINNED };

	prop.location.type = OKV_CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = cuda->device;
	prop.is_gpu_direct_rdma_capable = cuda->has_vmm_rdma;
	return prop;
}

/* The device itself, and every other GPU that can reach it. */
static int hbm_allow(struct okv_cuda *cuda, uint64_t ptr, uint64_t bytes)
{
	struct okv_cu_mem_access_desc desc = { { OKV_CU_MEM_LOCATION_TYPE_DEVICE, cuda->device },
					       OKV_CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	int ret = cuda->drv.cuMemSetAccess(ptr, bytes, &desc, 1);
	int count = 0, i, peer, can;

	if (ret || !cuda->drv.cuDeviceCanAccessPeer || cuda->drv.cuDeviceGetCount(&count))
		return ret;
	for (i = 0; i < count; i++) {
		can = 0;
		if (cuda->drv.cuDeviceGet(&peer, i) || peer == cuda->device ||
		    cuda->drv.cuDeviceCanAccessPeer(&can, peer, cuda->device) || !can)
			continue;
		/* Exchange between GPUs goes by the host where this is refused. */
		desc.location.id = peer;
		cuda->drv.cuMemSetAccess(ptr, bytes, &desc, 1);
	}
	return 0;
}

/* What one mapping holds: a mapping goes as a whole, so memory comes back in such units. */
static int hbm_unit(struct okv_cuda *cuda, uint64_t *granularity, uint64_t *unit)
{
	struct okv_cu_mem_allocation_prop prop = hbm_prop(cuda);
	size_t got = 0;
	int ret = cuda->drv.cuMemGetAllocationGranularity(&got, &prop, OKV_CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

	if (!ret && (!got || got > INT64_MAX / 4))
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
	if (ret)
		return ret;
	*granularity = got;
	*unit = (UNIT_BYTES + got - 1) / got * got;
	return 0;
}

static uint64_t bound_bytes(uint64_t mapped_bytes, uint64_t bytes, uint64_t unit)
{
	uint64_t whole = (bytes + unit - 1) / unit * unit;

	return whole < mapped_bytes ? whole : mapped_bytes;
}

/* Unmap [@from, @to) unit by unit. An error ends it, and @done says where. */
static int units_unmap(struct okv_cuda *cuda, uint64_t ptr, uint64_t from, uint64_t to, uint64_t unit, uint64_t *done)
{
	int ret = 0;

	for (*done = from; *done < to && !ret; *done += ret ? 0 : unit)
		ret = cuda->drv.cuMemUnmap(ptr + *done, to - *done < unit ? to - *done : unit);
	return ret;
}

static int units_map(struct okv_cuda *cuda, uint64_t ptr, uint64_t from, uint64_t to, uint64_t unit)
{
	struct okv_cu_mem_allocation_prop prop = hbm_prop(cuda);
	unsigned long long handle;
	uint64_t at, n, unused;
	int ret = 0;

	for (at = from; at < to; at += n) {
		n = to - at < unit ? to - at : unit;
		ret = cuda->drv.cuMemCreate(&handle, n, &prop, 0);
		if (ret)
			goto err_unmap;
		ret = cuda->drv.cuMemMap(ptr + at, n, 0, handle, 0);
		/* The mapping keeps the memory from now on. */
		cuda->drv.cuMemRelease(handle);
		if (ret)
			goto err_unmap;
	}
	ret = from < to ? hbm_allow(cuda, ptr + from, to - from) : 0;
	if (!ret)
		return 0;

err_unmap:
	units_unmap(cuda, ptr, from, at, unit, &unused);
	return ret;
}

int okv_cuda_hbm_alloc(struct omnikv_device *dev, uint64_t bytes, void **out, uint64_t *mapped_bytes)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);
	uint64_t ptr, all, granularity, unit;
	int ret = okv_cuda_enter(dev);

	if (ret)
		return ret;
	ret = hbm_unit(cuda, &granularity, &unit);
	if (!ret && bytes > INT64_MAX - unit)
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
	if (ret)
		goto out_leave;
	all = (bytes + granularity - 1) / granularity * granularity;
	ret = cuda->drv.cuMemAddressReserve(&ptr, all, 0, 0, 0);
	if (ret)
		goto out_leave;
	ret = units_map(cuda, ptr, 0, all, unit);
	if (ret) {
		cuda->drv.cuMemAddressFree(ptr, all);
		goto out_leave;
	}
	*out = (void *)(uintptr_t)ptr;
	*mapped_bytes = all;

out_leave:
	okv_cuda_leave(dev);
	return ret ? okv_cuda_check(dev, ret) : 0;
}

int okv_cuda_hbm_bind(struct omnikv_device *dev, void *ptr, uint64_t mapped_bytes, uint64_t from_bytes, uint64_t to_bytes)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);
	uint64_t from, to, granularity, unit, done;
	int ret = okv_cuda_enter(dev);

	if (ret)
		return ret;
	ret = hbm_unit(cuda, &granularity, &unit);
	if (ret)
		goto out_leave;
	from = bound_bytes(mapped_bytes, from_bytes, unit);
	to = bound_bytes(mapped_bytes, to_bytes, unit);
	if (to >= from) {
		ret = units_map(cuda, (uintptr_t)ptr, from, to, unit);
		goto out_leave;
	}
	ret = units_unmap(cuda, (uintptr_t)ptr, to, from, unit, &done);
	/* What was unmapped comes back, with other contents; a driver that refuses that too has lost the context. */
	if (ret)
		units_map(cuda, (uintptr_t)ptr, to, done, unit);

out_leave:
	okv_cuda_leave(dev);
	return ret ? okv_cuda_check(dev, ret) : 0;
}

void okv_cuda_hbm_free(struct omnikv_device *dev, void *ptr, uint64_t mapped_bytes, uint64_t bytes)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);
	uint64_t granularity, unit, done;
	void *context;

	/* Also of a lost context. */
	cuda->drv.cuCtxPushCurrent(cuda->context);
	if (!hbm_unit(cuda, &granularity, &unit))
		units_unmap(cuda, (uintptr_t)ptr, 0, bound_bytes(mapped_bytes, bytes, unit), unit, &done);
	cuda->drv.cuMemAddressFree((uintptr_t)ptr, mapped_bytes);
	cuda->drv.cuCtxPopCurrent(&context);
}

int okv_cuda_hbm_check(struct omnikv_device *dev, void *ptr, uint64_t bytes)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);
	uint64_t at = (uintptr_t)ptr, start = 0;
	unsigned int type = 0, is_managed = 0;
	int ordinal = -1, ret = okv_cuda_enter(dev);
	size_t size = 0;

	if (ret)
		return ret;
	ret = cuda->drv.cuPointerGetAttribute(&type, OKV_CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
	if (!ret)
		ret = cuda->drv.cuPointerGetAttribute(&is_managed, OKV_CU_POINTER_ATTRIBUTE_IS_MANAGED, at);
	if (!ret)
		ret = cuda->drv.cuPointerGetAttribute(&ordinal, OKV_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at);
	/* Neighbouring mappings of one reservation are several ranges: then only its first byte can be looked at. */
	if (!ret && (cuda->drv.cuPointerGetAttribute(&start, OKV_CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at) ||
		     cuda->drv.cuPointerGetAttribute(&size, OKV_CU_POINTER_ATTRIBUTE_RANGE_SIZE, at)))
		size = 0;
	/* And its last one. */
	if (!ret && (!size || at + bytes > start + size))
		ret = cuda->drv.cuPointerGetAttribute(&type, OKV_CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at + bytes - 1);
	okv_cuda_leave(dev);
	if (ret)
		return okv_cuda_check(dev, ret) == -EIO ? -EIO : -EINVAL;
	return type == OKV_CU_MEMORYTYPE_DEVICE && !is_managed && ordinal == cuda->ordinal ? 0 : -EINVAL;
}

int okv_cuda_hbm_dmabuf(struct omnikv_device *dev, void *ptr, uint64_t bytes, int *fd)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	int got = -1, ret;

	if (!cuda->has_dma_buf)
		return -EOPNOTSUPP;
	if ((uintptr_t)ptr % page)
		return -EINVAL;
	ret = okv_cuda_enter(dev);
	if (ret)
		return ret;
	/* Whole pages; what omnikv_hbm_create() maps is rounded up to far more. */
	ret = okv_cuda_check(dev, cuda->drv.cuMemGetHandleForAddressRange(&got, (uintptr_t)ptr, (bytes + page - 1) / page * page,
									  OKV_CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
	okv_cuda_leave(dev);
	if (!ret)
		*fd = got;
	return ret;
}

/* ---- pools -------------------------------------------------------------------------------- */

static pthread_mutex_t maps_lock = PTHREAD_MUTEX_INITIALIZER;
static struct okv_cuda_map *maps;	/* under maps_lock, as are next and nr_users */

static uint64_t chunk_len(const struct okv_cuda_map *map, uint32_t i)
{
	uint64_t off = (uint64_t)i * map->chunk_bytes;

	return map->bytes - off < map->chunk_bytes ? map->bytes - off : map->chunk_bytes;
}

/* The hottest new chunk, the first of equals; taken. False: there is none. */
static bool chunk_pick(struct okv_cuda_map *map, uint32_t *out)
{
	uint32_t i, heat, best = 0;
	bool found = false;

	pthread_mutex_lock(&map->lock);
	for (i = 0; i < map->nr_chunks; i++) {
		if (atomic_load_explicit(&map->chunks[i].state, memory_order_relaxed) != OKV_CHUNK_NEW)
			continue;
		heat = atomic_load_explicit(&map->chunks[i].heat, memory_order_relaxed);
		if (!found || heat > best) {
			found = true;
			best = heat;
			*out = i;
		}
	}
	if (found) {
		atomic_store_explicit(&map->chunks[*out].state, OKV_CHUNK_BUSY, memory_order_relaxed);
		map->nr_busy++;
	}
	pthread_mutex_unlock(&map->lock);
	return found;
}

static void chunk_register(struct okv_cuda_map *map, uint32_t i)
{
	const struct okv_cuda_driver *drv = &map->drv;
	struct okv_cuda_chunk *chunk = &map->chunks[i];
	unsigned char *host = map->base + (uint64_t)i * map->chunk_bytes;
	int ret = drv->cuMemHostRegister(host, chunk_len(map, i),
					 OKV_CU_MEMHOSTREGISTER_PORTABLE | OKV_CU_MEMHOSTREGISTER_DEVICEMAP);

	if (!ret) {
		ret = drv->cuMemHostGetDevicePointer(&chunk->ptr, host, 0);
		if (ret)
			drv->cuMemHostUnregister(host);
	}
	if (ret)
		atomic_store(&map->error, ret);
	pthread_mutex_lock(&map->lock);
	map->nr_busy--;
	if (ret)
		map->nr_refused++;
	else
		map->nr_mapped++;
	/* Pairs with the acquire in okv_cuda_map_find(). */
	atomic_store_explicit(&chunk->state, ret ? OKV_CHUNK_REFUSED : OKV_CHUNK_MAPPED, memory_order_release);
	pthread_mutex_unlock(&map->lock);
}

static void *registrar(void *arg)
{
	struct okv_cuda_map *map = arg;
	uint32_t i;

	if (map->drv.cuCtxSetCurrent(map->context))
		return NULL;
	okv_cuda_thread_relax(&map->drv);
	while (!atomic_load(&map->is_stopping) && chunk_pick(map, &i))
		chunk_register(map, i);
	map->drv.cuCtxSetCurrent(NULL);
	return NULL;
}

static int map_new(struct omnikv_device *dev, void *base, uint64_t bytes, struct okv_cuda_map **out)
{
	struct okv_cuda_map *map = calloc(1, sizeof(*map));
	cpu_set_t cpus;
	uint32_t nr = 1;
	int ret;

	if (!map)
		return -ENOMEM;
	map->base = base;
	map->bytes = bytes;
	map->chunk_bytes = CHUNK_BYTES;
	map->nr_chunks = (uint32_t)((bytes + CHUNK_BYTES - 1) / CHUNK_BYTES);
	map->device = okv_cuda_of(dev)->device;
	map->chunks = calloc(map->nr_chunks, sizeof(*map->chunks));
	ret = map->chunks ? okv_cuda_driver_open(&map->drv, NULL) : -ENOMEM;
	if (ret)
		goto err_free;
	/* The registration lives as long as the context in which it is made: this one is held for it. */
	ret = okv_cuda_errno(map->drv.cuDevicePrimaryCtxRetain(&map->context, map->device));
	if (ret)
		goto err_driver;
	pthread_mutex_init(&map->lock, NULL);
	if (!sched_getaffinity(0, sizeof(cpus), &cpus))
		nr = (uint32_t)CPU_COUNT(&cpus) / 2;
	nr = nr < 1 ? 1 : nr > MAX_THREADS ? MAX_THREADS : nr;
	nr = nr > map->nr_chunks ? map->nr_chunks : nr;
	/* With no thread at all the pool stays unregistered, and everything goes by the bounce buffer. */
	while (map->nr_threads < nr && !pthread_create(&map->threads[map->nr_threads], NULL, registrar, map))
		map->nr_threads++;
	*out = map;
	return 0;

err_driver:
	okv_cuda_driver_close(&map->drv);
err_free:
	free(map->chunks);
	free(map);
	return ret;
}

int okv_cuda_map_get(struct omnikv_device *dev, void *base, uint64_t bytes, struct okv_cuda_map **out)
{
	struct okv_cuda_map *map;
	int ret = 0;

	pthread_mutex_lock(&maps_lock);
	for (map = maps; map && (map->base != base || map->bytes != bytes || map->is_abandoned); map = map->next)
		;
	if (!map) {
		ret = map_new(dev, base, bytes, &map);
		if (!ret) {
			map->next = maps;
			maps = map;
		}
	}
	if (!ret) {
		map->nr_users++;
		*out = map;
	}
	pthread_mutex_unlock(&maps_lock);
	return ret;
}

void okv_cuda_map_put(struct okv_cuda_map *map)
{
	struct okv_cuda_map **link;
	void *context;
	uint32_t i;

	/* Held to the end, so that who opens the same pool again finds its memory unregistered. */
	pthread_mutex_lock(&maps_lock);
	if (--map->nr_users)
		goto out_unlock;
	for (link = &maps; *link != map; link = &(*link)->next)
		;
	*link = map->next;
	atomic_store(&map->is_stopping, 1);
	for (i = 0; i < map->nr_threads; i++)
		pthread_join(map->threads[i], NULL);
	/* Also of a lost context: the pages stay pinned otherwise. */
	map->drv.cuCtxPushCurrent(map->context);
	for (i = 0; i < map->nr_chunks; i++) {
		if (atomic_load(&map->chunks[i].state) == OKV_CHUNK_MAPPED)
			map->drv.cuMemHostUnregister(map->base + (uint64_t)i * map->chunk_bytes);
	}
	map->drv.cuCtxPopCurrent(&context);
	map->drv.cuDevicePrimaryCtxRelease(map->device);
	okv_cuda_driver_close(&map->drv);
	pthread_mutex_destroy(&map->lock);
	free(map->chunks);
	free(map);

out_unlock:
	pthread_mutex_unlock(&maps_lock);
}

void okv_cuda_map_abandon(struct okv_cuda_map *map)
{
	pthread_mutex_lock(&maps_lock);
	map->is_abandoned = true;
	pthread_mutex_unlock(&maps_lock);
}

uint64_t okv_cuda_map_find(struct okv_cuda_map *map, const void *host, uint64_t *bytes)
{
	uint64_t off = (uint64_t)((const unsigned char *)host - map->base);
	uint32_t i = (uint32_t)(off / map->chunk_bytes);
	struct okv_cuda_chunk *chunk = &map->chunks[i];
	uint64_t in = off % map->chunk_bytes, rest = chunk_len(map, i) - in;

	if (*bytes > rest)
		*bytes = rest;
	/* Pairs with the release in chunk_register(). */
	if (atomic_load_explicit(&chunk->state, memory_order_acquire) == OKV_CHUNK_MAPPED)
		return chunk->ptr + in;
	atomic_fetch_add_explicit(&chunk->heat, (uint32_t)((*bytes + PAGE_BYTES - 1) / PAGE_BYTES), memory_order_relaxed);
	return 0;
}

void okv_cuda_map_count(const struct okv_cuda_map *map, uint64_t *mapped, uint64_t *refused)
{
	uint32_t i, state;

	*mapped = *refused = 0;
	for (i = 0; i < map->nr_chunks; i++) {
		state = atomic_load_explicit(&map->chunks[i].state, memory_order_relaxed);
		if (state == OKV_CHUNK_MAPPED)
			*mapped += chunk_len(map, i);
		if (state == OKV_CHUNK_REFUSED)
			*refused += chunk_len(map, i);
	}
}

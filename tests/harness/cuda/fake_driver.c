// SPDX-License-Identifier: GPL-2.0-only
/*
 * A CUDA driver without a GPU, see fake_driver.h.
 *
 * One lock guards all of it; threads of streams drop it while they copy, wait or call back. Any thread may call. What
 * a context has met as a fault every later call of that context answers with, as a real one does.
 */
#include "fake_driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "kernels/kernels.h"
#include "lib/cuda_abi.h"

#define EXPORT __attribute__((visibility("default")))
#define MAX_DEVICES	4
#define MAX_STACK	16
/* On the device host memory stands here: no address of this process. */
#define ALIAS		(UINT64_C(1) << 56)
#define GRANULARITY	(UINT64_C(2) << 20)
/* A small GPU: what opening one measures with is little. */
#define TOTAL_BYTES	(UINT64_C(1) << 30)

enum item_kind { ITEM_COPY, ITEM_WAIT, ITEM_WRITE, ITEM_CALL, ITEM_KERNEL, ITEM_EVENT };

struct item {
	struct item	*next;
	enum item_kind	kind;
	uint64_t	dst, src, bytes;	/* WAIT, WRITE: dst is the word, src the value */
	void		(*fn)(void *arg);
	void		*arg;			/* EVENT: the event */
	int		kernel;
	uint32_t	nr_ctas;
	unsigned char	args[512];
};

struct context {
	int		device;
	int		nr_users;
	int		fault;
};

struct stream {
	struct stream	*next;
	struct context	*context;
	pthread_t	thread;
	pthread_cond_t	cond;
	struct item	*first, *last;
	bool		is_busy;
	bool		is_ending;
	struct graph	*capture;
	bool		is_global;	/* ... of mode 0 */
};

struct graph {
	struct item	*first, *last;
};

struct event {
	double		ms;
};

enum range_kind { RANGE_DEVICE, RANGE_ALLOC, RANGE_REGISTERED, RANGE_RESERVED, RANGE_MAPPED };

struct range {
	struct range	*next;
	enum range_kind	kind;
	uint64_t	start, bytes;
	int		device;
	bool		is_open;		/* MAPPED, within a reservation: may be touched */
};

struct fault {
	long	nth;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct context contexts[MAX_DEVICES];
static struct range *ranges;
static struct stream *streams;
static unsigned long long next_handle;
static __thread struct context *stack[MAX_STACK];
static __thread int depth;
/* Of threads that have not said otherwise: calls that are no work of a stream are refused while somebody captures. */
static __thread int capture_mode;
static int nr_captures;		/* of mode 0, which holds for all threads */

static long cfg_devices, cfg_version, cfg_max_register, cfg_register_us, cfg_copy_us, cfg_batch, cfg_kernels, cfg_init_error;
static long cfg_no_stream_ops;
static struct fault fail_copy, fault_copy, fail_register, fail_alloc, fail_write, fail_unmap;
static long nr_copies, nr_batches, nr_launches, nr_graphs, nr_peer_copies, nr_handles;

static void config_reset(void)
{
	cfg_devices = 2;
	cfg_version = 13000;
	cfg_max_register = 1L << 30;
	cfg_batch = cfg_kernels = 1;
	cfg_register_us = cfg_copy_us = cfg_init_error = cfg_no_stream_ops = 0;
	fail_copy.nth = fault_copy.nth = fail_register.nth = fail_alloc.nth = fail_write.nth = fail_unmap.nth = 0;
	nr_copies = nr_batches = nr_launches = nr_graphs = nr_peer_copies = 0;
}

__attribute__((constructor)) static void start(void)
{
	config_reset();
}

static bool fires(struct fault *fault)
{
	return fault->nth && !--fault->nth;
}

static void sleep_us(long us)
{
	struct timespec ts = { us / 1000000, us % 1000000 * 1000 };

	nanosleep(&ts, NULL);
}

EXPORT int fake_cuda_set(const char *key, long value)
{
	static const struct {
		const char	*key;
		long		*value;
	} known[] = {
		{ "devices", &cfg_devices }, { "version", &cfg_version }, { "max_register", &cfg_max_register },
		{ "register_us", &cfg_register_us }, { "copy_us", &cfg_copy_us }, { "batch", &cfg_batch },
		{ "kernels", &cfg_kernels }, { "init_error", &cfg_init_error }, { "no_stream_ops", &cfg_no_stream_ops },
		{ "fail_copy", &fail_copy.nth }, { "fault_copy", &fault_copy.nth }, { "fail_register", &fail_register.nth },
		{ "fail_alloc", &fail_alloc.nth }, { "fail_write", &fail_write.nth },
		{ "fail_unmap", &fail_unmap.nth },
	};
	size_t i;
	int ret = -1;

	pthread_mutex_lock(&lock);
	if (!strcmp(key, "reset")) {
		config_reset();
		ret = 0;
	}
	for (i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (!strcmp(key, known[i].key)) {
			*known[i].value = value;
			ret = 0;
		}
	}
	pthread_mutex_unlock(&lock);
	return ret;
}

static long count_ranges(enum range_kind kind, bool in_bytes)
{
	const struct range *r;
	long n = 0;

	for (r = ranges; r; r = r->next) {
		if (r->kind == kind)
			n += in_bytes ? (long)r->bytes : 1;
	}
	return n;
}

EXPORT long fake_cuda_get(const char *key)
{
	const struct stream *s;
	long n = 0;
	int i;

	pthread_mutex_lock(&lock);
	if (!strcmp(key, "registered"))
		n = count_ranges(RANGE_REGISTERED, true);
	else if (!strcmp(key, "registrations"))
		n = count_ranges(RANGE_REGISTERED, false);
	else if (!strcmp(key, "mapped"))
		n = count_ranges(RANGE_MAPPED, true);
	else if (!strcmp(key, "host"))
		n = count_ranges(RANGE_ALLOC, false);
	else if (!strcmp(key, "device"))
		n = count_ranges(RANGE_DEVICE, false) + count_ranges(RANGE_RESERVED, false) + nr_handles;
	else if (!strcmp(key, "streams"))
		for (s = streams; s; s = s->next)
			n++;
	else if (!strcmp(key, "contexts"))
		for (i = 0; i < MAX_DEVICES; i++)
			n += contexts[i].nr_users;
	else if (!strcmp(key, "copies"))
		n = nr_copies;
	else if (!strcmp(key, "batches"))
		n = nr_batches;
	else if (!strcmp(key, "launches"))
		n = nr_launches;
	else if (!strcmp(key, "graphs"))
		n = nr_graphs;
	else if (!strcmp(key, "peer_copies"))
		n = nr_peer_copies;
	else
		n = -1;
	pthread_mutex_unlock(&lock);
	return n;
}

/* ---- ranges ------------------------------------------------------------------------------- */

static bool is_usable(const struct range *r)
{
	return r->kind != RANGE_RESERVED && (r->kind != RANGE_MAPPED || r->is_open);
}

/* Some mapping lies in these addresses. */
static bool mapped_within(uint64_t ptr, uint64_t bytes)
{
	const struct range *r;

	for (r = ranges; r; r = r->next) {
		if (r->kind == RANGE_MAPPED && r->start < ptr + bytes && ptr < r->start + r->bytes)
			return true;
	}
	return false;
}

static bool is_reserved(uint64_t ptr, uint64_t bytes)
{
	const struct range *r;

	for (r = ranges; r; r = r->next) {
		if (r->kind == RANGE_RESERVED && ptr >= r->start && bytes <= r->bytes && ptr - r->start <= r->bytes - bytes)
			return true;
	}
	return false;
}

/* The range that @at is in, or NULL. */
static struct range *range_around(uint64_t at)
{
	struct range *r;

	for (r = ranges; r && (at < r->start || at - r->start >= r->bytes || !is_usable(r)); r = r->next)
		;
	return r;
}

/*
 * All of [@at, @at + @bytes) in one range, or in mappings of one reservation without a gap: the first; or NULL. Host memory
 * by either of its addresses.
 */
static struct range *range_find(uint64_t at, uint64_t bytes)
{
	struct range *first, *r;
	uint64_t end;

	at &= ~ALIAS;
	first = r = range_around(at);
	if (!r || bytes <= r->bytes - (at - r->start))
		return r;
	if (r->kind != RANGE_MAPPED || !is_reserved(at, bytes))
		return NULL;
	for (end = r->start + r->bytes; end < at + bytes; end = r->start + r->bytes) {
		r = range_around(end);
		if (!r)
			return NULL;
	}
	return first;
}

static bool is_device(const struct range *r)
{
	return r && (r->kind == RANGE_DEVICE || r->kind == RANGE_MAPPED);
}

static bool is_host(const struct range *r)
{
	return r && (r->kind == RANGE_ALLOC || r->kind == RANGE_REGISTERED);
}

static void range_add(enum range_kind kind, uint64_t start, uint64_t bytes, int device)
{
	struct range *r = calloc(1, sizeof(*r));

	*r = (struct range) { .next = ranges, .kind = kind, .start = start, .bytes = bytes, .device = device };
	ranges = r;
}

static struct range **range_at(enum range_kind kind, uint64_t start)
{
	struct range **link;

	for (link = &ranges; *link && ((*link)->kind != kind || (*link)->start != start); link = &(*link)->next)
		;
	return link;
}

static void range_del(struct range **link)
{
	struct range *r = *link;

	*link = r->next;
	free(r);
}

/* As a kernel or a stream sees it: host memory only by its address on the device. NULL where it may not be touched. */
static void *as_device(uint64_t at, uint64_t bytes)
{
	struct range *r = range_find(at, bytes);

	if (!r || is_host(r) != !!(at & ALIAS))
		return NULL;
	return (void *)(uintptr_t)(at & ~ALIAS);
}

/* ---- contexts ----------------------------------------------------------------------------- */

/* The current context, which must be in order. */
static int current(struct context **out)
{
	struct context *c = depth ? stack[depth - 1] : NULL;

	if (!c || !c->nr_users)
		return OKV_CUDA_ERROR_INVALID_CONTEXT;
	*out = c;
	return c->fault;
}

/* Locked, for calls that a capture cannot have beside it. */
static int is_unsafe(void)
{
	return nr_captures && capture_mode == 0 ? 900 : 0;
}

static int okv_cuInit(unsigned int flags)
{
	(void)flags;
	return (int)cfg_init_error;
}

static int okv_cuDriverGetVersion(int *version)
{
	*version = (int)cfg_version;
	return 0;
}

static int okv_cuGetErrorName(int error, const char **text)
{
	*text = error == OKV_CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" :
		error == OKV_CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" :
		error == OKV_CUDA_ERROR_ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OTHER";
	return 0;
}

static int okv_cuGetErrorString(int error, const char **text)
{
	(void)error;
	*text = "as the test asked for";
	return 0;
}

static int okv_cuDeviceGetCount(int *count)
{
	*count = (int)cfg_devices;
	return 0;
}

static int okv_cuDeviceGet(int *device, int ordinal)
{
	if (ordinal < 0 || ordinal >= cfg_devices)
		return OKV_CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return 0;
}

static int okv_cuDeviceGetName(char *name, int len, int device)
{
	snprintf(name, (size_t)len, "fake GPU %d", device);
	return 0;
}

static int okv_cuDeviceGetUuid(struct okv_cu_uuid *uuid, int device)
{
	memset(uuid->bytes, 0xfa, sizeof(uuid->bytes));
	uuid->bytes[15] = (unsigned char)device;
	return 0;
}

static int okv_cuDeviceTotalMem(size_t *bytes, int device)
{
	(void)device;
	*bytes = TOTAL_BYTES;
	return 0;
}

static int okv_cuDeviceGetAttribute(int *value, int attribute, int device)
{
	(void)device;
	switch (attribute) {
	case OKV_CU_ATTRIBUTE_MULTIPROCESSOR_COUNT:
		*value = 8;
		break;
	case OKV_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = 9;
		break;
	case OKV_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*value = 0;
		break;
	case OKV_CU_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
		*value = !cfg_no_stream_ops;
		break;
	default:
		*value = 1;
		break;
	}
	return 0;
}

static int okv_cuDeviceCanAccessPeer(int *can, int device, int peer)
{
	*can = device != peer;
	return 0;
}

static int okv_cuDevicePrimaryCtxRetain(void **context, int device)
{
	if (device < 0 || device >= MAX_DEVICES)
		return OKV_CUDA_ERROR_INVALID_DEVICE;
	pthread_mutex_lock(&lock);
	contexts[device].device = device;
	if (contexts[device].nr_users++ == 0)
		contexts[device].fault = 0;
	*context = &contexts[device];
	pthread_mutex_unlock(&lock);
	return 0;
}

static int okv_cuDevicePrimaryCtxRelease(int device)
{
	pthread_mutex_lock(&lock);
	contexts[device].nr_users--;
	pthread_mutex_unlock(&lock);
	return 0;
}

static int okv_cuCtxPushCurrent(void *context)
{
	if (depth == MAX_STACK)
		return OKV_CUDA_ERROR_INVALID_VALUE;
	stack[depth++] = context;
	return 0;
}

static int okv_cuCtxPopCurrent(void **context)
{
	if (!depth)
		return OKV_CUDA_ERROR_INVALID_CONTEXT;
	*context = stack[--depth];
	return 0;
}

static int okv_cuCtxSetCurrent(void *context)
{
	if (!context) {
		depth -= depth > 0;
		return 0;
	}
	if (!depth)
		depth = 1;
	stack[depth - 1] = context;
	return 0;
}

static int okv_cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	*least = 0;
	*greatest = -5;
	return 0;
}

/* ---- memory ------------------------------------------------------------------------------- */

/* Every call that needs a context: locked, the context in order. */
#define ENTER(c) \
	struct context *c = NULL; \
	int ret; \
	\
	pthread_mutex_lock(&lock); \
	ret = current(&c); \
	if (ret) \
		goto out_unlock

#define LEAVE() \
out_unlock: \
	pthread_mutex_unlock(&lock); \
	return ret

static int okv_cuMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
	*free_bytes = *total_bytes = TOTAL_BYTES;
	return 0;
}

static void *map(size_t bytes)
{
	void *ptr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	return ptr == MAP_FAILED ? NULL : ptr;
}

static int okv_cuMemAlloc(uint64_t *ptr, size_t bytes)
{
	void *got;

	ENTER(c);
	ret = is_unsafe();
	if (ret)
		goto out_unlock;
	got = fires(&fail_alloc) ? NULL : map(bytes);
	if (!got) {
		ret = OKV_CUDA_ERROR_OUT_OF_MEMORY;
		goto out_unlock;
	}
	range_add(RANGE_DEVICE, (uintptr_t)got, bytes, c->device);
	*ptr = (uintptr_t)got;
	LEAVE();
}

static int okv_cuMemFree(uint64_t ptr)
{
	struct range **link;
	int ret = 0;

	pthread_mutex_lock(&lock);
	link = range_at(RANGE_DEVICE, ptr);
	if (!*link) {
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
		goto out_unlock;
	}
	munmap((void *)(uintptr_t)ptr, (*link)->bytes);
	range_del(link);
	LEAVE();
}

static int okv_cuMemHostAlloc(void **ptr, size_t bytes, unsigned int flags)
{
	void *got;

	ENTER(c);
	(void)flags;
	ret = is_unsafe();
	if (ret)
		goto out_unlock;
	got = fires(&fail_alloc) ? NULL : map(bytes);
	if (!got) {
		ret = OKV_CUDA_ERROR_OUT_OF_MEMORY;
		goto out_unlock;
	}
	range_add(RANGE_ALLOC, (uintptr_t)got, bytes, c->device);
	*ptr = got;
	LEAVE();
}

static int okv_cuMemFreeHost(void *ptr)
{
	struct range **link;
	int ret = 0;

	pthread_mutex_lock(&lock);
	link = range_at(RANGE_ALLOC, (uintptr_t)ptr);
	if (!*link) {
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
		goto out_unlock;
	}
	munmap(ptr, (*link)->bytes);
	range_del(link);
	LEAVE();
}

static int okv_cuMemHostRegister(void *ptr, size_t bytes, unsigned int flags)
{
	struct range *r;
	long us;

	ENTER(c);
	(void)flags;
	ret = is_unsafe();
	if (ret)
		goto out_unlock;
	if ((long)bytes > cfg_max_register || fires(&fail_register) || (uintptr_t)ptr % 4096 || bytes % 4096) {
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
		goto out_unlock;
	}
	for (r = ranges; r; r = r->next) {
		if (r->start < (uintptr_t)ptr + bytes && (uintptr_t)ptr < r->start + r->bytes) {
			ret = OKV_CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
			goto out_unlock;
		}
	}
	us = (long)(bytes >> 21) * cfg_register_us;
	if (us) {
		pthread_mutex_unlock(&lock);
		sleep_us(us);
		pthread_mutex_lock(&lock);
	}
	range_add(RANGE_REGISTERED, (uintptr_t)ptr, bytes, c->device);
	LEAVE();
}

static int okv_cuMemHostUnregister(void *ptr)
{
	struct range **link;
	int ret = 0;

	pthread_mutex_lock(&lock);
	link = range_at(RANGE_REGISTERED, (uintptr_t)ptr);
	if (*link)
		range_del(link);
	else
		ret = OKV_CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	pthread_mutex_unlock(&lock);
	return ret;
}

static int okv_cuMemHostGetDevicePointer(uint64_t *ptr, void *host, unsigned int flags)
{
	ENTER(c);
	(void)flags;
	if (!is_host(range_find((uintptr_t)host, 1)))
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
	else
		*ptr = (uintptr_t)host | ALIAS;
	LEAVE();
}

static int okv_cuPointerGetAttribute(void *value, int attribute, uint64_t ptr)
{
	struct range *r;

	ENTER(c);
	r = range_find(ptr, 1);
	if (!r) {
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
		goto out_unlock;
	}
	switch (attribute) {
	case OKV_CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned int *)value = is_device(r) ? OKV_CU_MEMORYTYPE_DEVICE : 1;
		break;
	case OKV_CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned int *)value = 0;
		break;
	case OKV_CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)value = r->device;
		break;
	case OKV_CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(uint64_t *)value = r->start;
		break;
	case OKV_CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)value = r->bytes;
		break;
	default:
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
	}
	LEAVE();
}

static int okv_cuMemAddressReserve(uint64_t *ptr, size_t bytes, size_t align, uint64_t at, unsigned long long flags)
{
	void *got;

	ENTER(c);
	(void)align;
	got = bytes % GRANULARITY || at || flags ? NULL : map(bytes);
	if (!got) {
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
		goto out_unlock;
	}
	range_add(RANGE_RESERVED, (uintptr_t)got, bytes, -1);
	*ptr = (uintptr_t)got;
	LEAVE();
}

static int okv_cuMemAddressFree(uint64_t ptr, size_t bytes)
{
	struct range **link;
	int ret = 0;

	pthread_mutex_lock(&lock);
	link = range_at(RANGE_RESERVED, ptr);
	if (!*link || mapped_within(ptr, bytes) || (*link)->bytes != bytes) {
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
		goto out_unlock;
	}
	munmap((void *)(uintptr_t)ptr, bytes);
	range_del(link);
	LEAVE();
}

/* A handle is a number; how often it is held is counted for all of them together: one by its creator, one by a mapping. */
static int okv_cuMemCreate(unsigned long long *handle, size_t bytes, const struct okv_cu_mem_allocation_prop *prop,
			   unsigned long long flags)
{
	ENTER(c);
	if (bytes % GRANULARITY || prop->type != OKV_CU_MEM_ALLOCATION_TYPE_PINNED || flags)
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
	else if (fires(&fail_alloc))
		ret = OKV_CUDA_ERROR_OUT_OF_MEMORY;
	if (!ret) {
		*handle = ++next_handle << 8 | (unsigned int)prop->location.id;
		nr_handles++;
	}
	LEAVE();
}

static int okv_cuMemRelease(unsigned long long handle)
{
	(void)handle;
	pthread_mutex_lock(&lock);
	nr_handles--;
	pthread_mutex_unlock(&lock);
	return 0;
}

static int okv_cuMemMap(uint64_t ptr, size_t bytes, size_t off, unsigned long long handle, unsigned long long flags)
{
	ENTER(c);
	if (!bytes || ptr % GRANULARITY || bytes % GRANULARITY || !is_reserved(ptr, bytes) || mapped_within(ptr, bytes) || off || flags) {
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
		goto out_unlock;
	}
	range_add(RANGE_MAPPED, ptr, bytes, (int)(handle & 0xff));
	LEAVE();
}

static int okv_cuMemUnmap(uint64_t ptr, size_t bytes)
{
	struct range **link;
	int ret = 0;

	pthread_mutex_lock(&lock);
	link = range_at(RANGE_MAPPED, ptr);
	/* A mapping goes as a whole. */
	if (!*link || (*link)->bytes != bytes || fires(&fail_unmap)) {
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
		goto out_unlock;
	}
	/* Its bytes are gone, and who still touches it dies. */
	mmap((void *)(uintptr_t)ptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
	range_del(link);
	LEAVE();
}

static int okv_cuMemSetAccess(uint64_t ptr, size_t bytes, const struct okv_cu_mem_access_desc *desc, size_t nr)
{
	struct range *r;
	uint64_t inside = 0;

	ENTER(c);
	/* Whole mappings, and nothing between them that is none. */
	for (r = ranges; r; r = r->next) {
		if (r->kind == RANGE_MAPPED && r->start >= ptr && r->start + r->bytes <= ptr + bytes)
			inside += r->bytes;
	}
	if (!bytes || inside != bytes || nr != 1 || desc->flags != OKV_CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
		goto out_unlock;
	}
	for (r = ranges; r; r = r->next) {
		if (r->kind == RANGE_MAPPED && r->start >= ptr && r->start + r->bytes <= ptr + bytes)
			r->is_open = true;
	}
	mprotect((void *)(uintptr_t)ptr, bytes, PROT_READ | PROT_WRITE);
	LEAVE();
}

static int okv_cuMemGetAllocationGranularity(size_t *bytes, const struct okv_cu_mem_allocation_prop *prop, int option)
{
	(void)prop;
	(void)option;
	*bytes = GRANULARITY;
	return 0;
}

static int okv_cuMemGetHandleForAddressRange(void *handle, uint64_t ptr, size_t bytes, int type, unsigned long long flags)
{
	ENTER(c);
	if (!is_device(range_find(ptr, bytes)) || type != OKV_CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD || flags || ptr % 4096 ||
	    bytes % 4096) {
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
		goto out_unlock;
	}
	*(int *)handle = memfd_create("fake-dmabuf", MFD_CLOEXEC);
	if (*(int *)handle < 0 || ftruncate(*(int *)handle, (off_t)bytes))
		ret = OKV_CUDA_ERROR_UNKNOWN;
	LEAVE();
}

/* ---- streams ------------------------------------------------------------------------------ */

static void kernel_run(struct item *item, struct context *c)
{
	uint32_t i;

	if (item->kernel == OKV_KERNEL_COPY) {
		struct okv_copy_args args;
		struct okv_kernel_run *list, *runs;

		memcpy(&args, item->args, sizeof(args));
		pthread_mutex_lock(&lock);
		list = as_device(args.list, args.nr * sizeof(*list));
		runs = calloc(args.nr, sizeof(*runs));
		for (i = 0; list && i < args.nr; i++) {
			runs[i] = list[i];
			runs[i].src = (uintptr_t)as_device(list[i].src, list[i].bytes);
			runs[i].dst = (uintptr_t)as_device(list[i].dst, list[i].bytes);
			if (!runs[i].src || !runs[i].dst)
				list = NULL;
			/* The definition goes byte by byte: what is long would take long. */
			else if (runs[i].bytes > 4096) {
				memcpy((void *)(uintptr_t)runs[i].dst, (void *)(uintptr_t)runs[i].src, runs[i].bytes);
				runs[i].bytes = 0;
			}
		}
		if (!list)
			c->fault = OKV_CUDA_ERROR_ILLEGAL_ADDRESS;
		pthread_mutex_unlock(&lock);
		args.list = (uintptr_t)runs;
		if (list)
			okv_kernels_ref.launch(NULL, OKV_KERNEL_COPY, item->nr_ctas, &args);
		free(runs);
	} else if (item->kernel == OKV_KERNEL_CRC32C) {
		struct okv_crc32c_args args;
		struct okv_kernel_span *list, *spans;

		memcpy(&args, item->args, sizeof(args));
		pthread_mutex_lock(&lock);
		list = as_device(args.list, args.nr * sizeof(*list));
		spans = calloc(args.nr, sizeof(*spans));
		for (i = 0; list && i < args.nr; i++) {
			spans[i] = list[i];
			spans[i].addr = (uintptr_t)as_device(list[i].addr, list[i].bytes);
			if (!spans[i].addr)
				list = NULL;
		}
		args.crc = (uintptr_t)as_device(args.crc, args.nr * sizeof(uint32_t));
		if (!list || !args.crc)
			c->fault = OKV_CUDA_ERROR_ILLEGAL_ADDRESS;
		pthread_mutex_unlock(&lock);
		args.list = (uintptr_t)spans;
		if (list && args.crc)
			okv_kernels_ref.launch(NULL, OKV_KERNEL_CRC32C, item->nr_ctas, &args);
		free(spans);
	} else {
		okv_kernels_ref.launch(NULL, (enum okv_kernel)item->kernel, item->nr_ctas, item->args);
	}
}

static double now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec / 1e6;
}

/* A captured wait or its counterpart; the waiting is done here, and the definition has the last look. */
static void event_kernel_run(struct stream *s, struct item *item)
{
	struct okv_event_args args;
	_Atomic uint64_t *word, *step;
	uint64_t polls;

	memcpy(&args, item->args, sizeof(args));
	pthread_mutex_lock(&lock);
	args.word = (uintptr_t)as_device(args.word, 8);
	args.step = (uintptr_t)as_device(args.step, 8);
	args.late = item->kernel == OKV_KERNEL_WAIT ? (uintptr_t)as_device(args.late, 8) : 8;
	if (!args.word || !args.step || !args.late)
		s->context->fault = OKV_CUDA_ERROR_ILLEGAL_ADDRESS;
	pthread_mutex_unlock(&lock);
	if (s->context->fault)
		return;
	word = (_Atomic uint64_t *)(uintptr_t)args.word;
	step = (_Atomic uint64_t *)(uintptr_t)args.step;
	if (item->kernel == OKV_KERNEL_WAIT) {
		for (polls = 0; polls < args.nr_polls && !s->is_ending && !s->context->fault; polls += 100) {
			if ((int64_t)(atomic_load(word) - okv_event_value(args.base, atomic_load(step))) >= 0)
				break;
			sleep_us(100);
		}
		args.nr_polls = 1;
	}
	okv_kernels_ref.launch(NULL, (enum okv_kernel)item->kernel, 1, &args);
}

/* Without the lock. */
static void item_run(struct stream *s, struct item *item)
{
	_Atomic uint64_t *word = (_Atomic uint64_t *)(uintptr_t)(item->dst & ~ALIAS);
	bool is_fault;

	switch (item->kind) {
	case ITEM_COPY:
		if (cfg_copy_us)
			sleep_us(cfg_copy_us);
		pthread_mutex_lock(&lock);
		is_fault = fires(&fault_copy);
		if (is_fault)
			s->context->fault = OKV_CUDA_ERROR_ILLEGAL_ADDRESS;
		pthread_mutex_unlock(&lock);
		if (!is_fault)
			memcpy((void *)(uintptr_t)(item->dst & ~ALIAS), (void *)(uintptr_t)(item->src & ~ALIAS), item->bytes);
		break;
	case ITEM_WAIT:
		while ((int64_t)(atomic_load(word) - item->src) < 0 && !s->is_ending && !s->context->fault)
			sleep_us(20);
		break;
	case ITEM_WRITE:
		atomic_store(word, item->src);
		break;
	case ITEM_CALL:
		item->fn(item->arg);
		break;
	case ITEM_KERNEL:
		if (item->kernel == OKV_KERNEL_WAIT || item->kernel == OKV_KERNEL_FIRE)
			event_kernel_run(s, item);
		else
			kernel_run(item, s->context);
		break;
	case ITEM_EVENT:
		((struct event *)item->arg)->ms = now_ms();
		break;
	}
}

/* The first item, which there is, and nobody is at another one. Locked; the lock is dropped meanwhile. */
static void run_first(struct stream *s)
{
	struct item *item = s->first;
	/* Of a lost context nothing runs any more. */
	bool is_lost = s->context->fault;

	s->first = item->next;
	if (!s->first)
		s->last = NULL;
	s->is_busy = true;
	pthread_mutex_unlock(&lock);
	if (!is_lost)
		item_run(s, item);
	free(item);
	pthread_mutex_lock(&lock);
	s->is_busy = false;
	pthread_cond_signal(&s->cond);
}

static void *stream_thread(void *arg)
{
	struct stream *s = arg;

	pthread_mutex_lock(&lock);
	for (;;) {
		while (s->is_busy || (!s->first && !s->is_ending))
			pthread_cond_wait(&s->cond, &lock);
		if (!s->first)
			break;
		run_first(s);
	}
	pthread_mutex_unlock(&lock);
	return NULL;
}

static struct item *item_append(struct item **first, struct item **last, const struct item *from)
{
	struct item *item = malloc(sizeof(*item));

	*item = *from;
	item->next = NULL;
	if (*last)
		(*last)->next = item;
	else
		*first = item;
	*last = item;
	return item;
}

/* Locked. */
static int stream_add(struct stream *s, const struct item *item)
{
	if (!s || s->context->fault)
		return s ? s->context->fault : OKV_CUDA_ERROR_INVALID_HANDLE;
	if (s->capture) {
		item_append(&s->capture->first, &s->capture->last, item);
		return 0;
	}
	item_append(&s->first, &s->last, item);
	pthread_cond_signal(&s->cond);
	return 0;
}

static int okv_cuStreamCreateWithPriority(void **stream, unsigned int flags, int priority)
{
	struct stream *s;

	ENTER(c);
	(void)priority;
	if (flags != OKV_CU_STREAM_NON_BLOCKING) {
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
		goto out_unlock;
	}
	s = calloc(1, sizeof(*s));
	s->context = c;
	pthread_cond_init(&s->cond, NULL);
	s->next = streams;
	streams = s;
	pthread_create(&s->thread, NULL, stream_thread, s);
	*stream = s;
	LEAVE();
}

static int okv_cuStreamDestroy(void *stream)
{
	struct stream *s = stream, **link;

	pthread_mutex_lock(&lock);
	for (link = &streams; *link != s; link = &(*link)->next)
		;
	*link = s->next;
	s->is_ending = true;
	pthread_cond_signal(&s->cond);
	pthread_mutex_unlock(&lock);
	pthread_join(s->thread, NULL);
	pthread_cond_destroy(&s->cond);
	free(s);
	return 0;
}

static int okv_cuStreamQuery(void *stream)
{
	struct stream *s = stream;

	ENTER(c);
	if (s->capture || is_unsafe())
		ret = 900;
	else if (s->first || s->is_busy)
		ret = OKV_CUDA_ERROR_NOT_READY;
	LEAVE();
}

static int okv_cuStreamSynchronize(void *stream)
{
	struct stream *s = stream;
	int ret;

	/* Who waits does the work: on a loaded machine it would wait long for the stream's thread to get its turn. */
	pthread_mutex_lock(&lock);
	while (s->first && !s->is_busy && !s->capture)
		run_first(s);
	pthread_mutex_unlock(&lock);
	while ((ret = okv_cuStreamQuery(stream)) == OKV_CUDA_ERROR_NOT_READY)
		sleep_us(10);
	return ret;
}

static int okv_cuStreamWaitValue64(void *stream, uint64_t ptr, uint64_t value, unsigned int flags)
{
	ENTER(c);
	if (!as_device(ptr, 8) || ptr % 8 || flags != OKV_CU_STREAM_WAIT_VALUE_GEQ)
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
	else
		ret = stream_add(stream, &(struct item) { .kind = ITEM_WAIT, .dst = ptr, .src = value });
	LEAVE();
}

static int okv_cuStreamWriteValue64(void *stream, uint64_t ptr, uint64_t value, unsigned int flags)
{
	ENTER(c);
	if (!as_device(ptr, 8) || ptr % 8 || flags)
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
	else if (fires(&fail_write))
		ret = OKV_CUDA_ERROR_OUT_OF_MEMORY;
	else
		ret = stream_add(stream, &(struct item) { .kind = ITEM_WRITE, .dst = ptr, .src = value });
	LEAVE();
}

static int okv_cuLaunchHostFunc(void *stream, void (*fn)(void *arg), void *arg)
{
	ENTER(c);
	ret = stream_add(stream, &(struct item) { .kind = ITEM_CALL, .fn = fn, .arg = arg });
	LEAVE();
}

/* ---- copies ------------------------------------------------------------------------------- */

/* Locked. Each end within one range, of the right kind. */
static int copy_add(void *stream, uint64_t dst, bool dst_is_device, uint64_t src, bool src_is_device, uint64_t bytes)
{
	struct range *d = range_find(dst, bytes), *s = range_find(src, bytes);

	nr_copies++;
	if (fires(&fail_copy))
		return OKV_CUDA_ERROR_INVALID_VALUE;
	if (!bytes || (dst_is_device ? !is_device(d) : !is_host(d)) || (src_is_device ? !is_device(s) : !is_host(s)))
		return OKV_CUDA_ERROR_INVALID_VALUE;
	return stream_add(stream, &(struct item) { .kind = ITEM_COPY, .dst = dst, .src = src, .bytes = bytes });
}

static int okv_cuMemcpyHtoDAsync(uint64_t dst, const void *src, size_t bytes, void *stream)
{
	ENTER(c);
	ret = copy_add(stream, dst, true, (uintptr_t)src, false, bytes);
	LEAVE();
}

static int okv_cuMemcpyDtoHAsync(void *dst, uint64_t src, size_t bytes, void *stream)
{
	ENTER(c);
	ret = copy_add(stream, (uintptr_t)dst, false, src, true, bytes);
	LEAVE();
}

static int okv_cuMemcpyDtoDAsync(uint64_t dst, uint64_t src, size_t bytes, void *stream)
{
	ENTER(c);
	ret = copy_add(stream, dst, true, src, true, bytes);
	LEAVE();
}

static int okv_cuMemcpyPeerAsync(uint64_t dst, void *dst_context, uint64_t src, void *src_context, size_t bytes, void *stream)
{
	ENTER(c);
	nr_peer_copies++;
	if (dst_context == src_context)
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
	else
		ret = copy_add(stream, dst, true, src, true, bytes);
	LEAVE();
}

static int okv_cuMemcpyBatchAsync(uint64_t *dsts, uint64_t *srcs, size_t *sizes, size_t nr,
				  struct okv_cu_memcpy_attributes *attrs, size_t *attr_idx, size_t nr_attrs, size_t *fail_idx,
				  void *stream)
{
	size_t i;

	ENTER(c);
	nr_batches++;
	*fail_idx = SIZE_MAX;
	if (!nr || nr_attrs != 1 || attr_idx[0] ||
	    (attrs->src_access_order != OKV_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && is_device(range_find(srcs[0], 1)))) {
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
		goto out_unlock;
	}
	for (i = 0; i < nr && !ret; i++) {
		ret = copy_add(stream, dsts[i], is_device(range_find(dsts[i], 1)), srcs[i], is_device(range_find(srcs[i], 1)), sizes[i]);
		if (ret)
			*fail_idx = i;
	}
	LEAVE();
}

/* ---- graphs, events, kernels -------------------------------------------------------------- */

static int okv_cuStreamBeginCapture(void *stream, int mode)
{
	struct stream *s = stream;

	ENTER(c);
	if (s->capture || s->is_global) {
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
		goto out_unlock;
	}
	s->capture = calloc(1, sizeof(*s->capture));
	s->is_global = mode == 0;
	nr_captures += s->is_global;
	LEAVE();
}

static int okv_cuStreamEndCapture(void *stream, void **graph)
{
	struct stream *s = stream;

	ENTER(c);
	if (!s->capture)
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
	*graph = s->capture;
	s->capture = NULL;
	nr_captures -= s->is_global;
	s->is_global = false;
	nr_graphs++;
	LEAVE();
}

static int okv_cuThreadExchangeStreamCaptureMode(int *mode)
{
	int old = capture_mode;

	capture_mode = *mode;
	*mode = old;
	return 0;
}

static int okv_cuStreamIsCapturing(void *stream, int *status)
{
	*status = ((struct stream *)stream)->capture ? 1 : 0;
	return 0;
}

static void items_copy(struct graph *to, const struct item *from)
{
	for (; from; from = from->next)
		item_append(&to->first, &to->last, from);
}

static int graph_free(struct graph *graph)
{
	struct item *item;

	while ((item = graph->first)) {
		graph->first = item->next;
		free(item);
	}
	free(graph);
	return 0;
}

static int okv_cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long flags)
{
	struct graph *copy;

	ENTER(c);
	(void)flags;
	copy = calloc(1, sizeof(*copy));
	items_copy(copy, ((struct graph *)graph)->first);
	*exec = copy;
	LEAVE();
}

static int okv_cuGraphLaunch(void *exec, void *stream)
{
	const struct item *item;

	ENTER(c);
	for (item = ((struct graph *)exec)->first; item && !ret; item = item->next)
		ret = stream_add(stream, item);
	LEAVE();
}

static int okv_cuGraphExecDestroy(void *exec)
{
	return graph_free(exec);
}

static int okv_cuGraphDestroy(void *graph)
{
	return graph_free(graph);
}

static int okv_cuEventCreate(void **event, unsigned int flags)
{
	(void)flags;
	*event = calloc(1, sizeof(struct event));
	return 0;
}

static int okv_cuEventDestroy(void *event)
{
	free(event);
	return 0;
}

static int okv_cuEventRecord(void *event, void *stream)
{
	ENTER(c);
	ret = stream_add(stream, &(struct item) { .kind = ITEM_EVENT, .arg = event });
	LEAVE();
}

static int okv_cuEventElapsedTime(float *ms, void *from, void *to)
{
	*ms = (float)(((struct event *)to)->ms - ((struct event *)from)->ms);
	return 0;
}

static int okv_cuModuleLoadData(void **module, const void *image)
{
	ENTER(c);
	if (!cfg_kernels || !image)
		ret = OKV_CUDA_ERROR_NO_BINARY_FOR_GPU;
	else
		*module = &cfg_kernels;
	LEAVE();
}

static int okv_cuModuleUnload(void *module)
{
	return module == &cfg_kernels ? 0 : OKV_CUDA_ERROR_INVALID_HANDLE;
}

static int okv_cuModuleGetFunction(void **function, void *module, const char *name)
{
	int i;

	(void)module;
	for (i = 0; i < OKV_KERNEL_NR; i++) {
		if (!strcmp(name, okv_kernels[i].symbol)) {
			*function = (void *)(uintptr_t)(i + 1);
			return 0;
		}
	}
	return OKV_CUDA_ERROR_NOT_FOUND;
}

static int okv_cuLaunchKernel(void *function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
			      unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
			      void *stream, void **params, void **extra)
{
	struct item item = { .kind = ITEM_KERNEL, .kernel = (int)(uintptr_t)function - 1, .nr_ctas = grid_x };

	ENTER(c);
	nr_launches++;
	if (item.kernel < 0 || item.kernel >= OKV_KERNEL_NR || !grid_x || grid_x > 8 || grid_y != 1 || grid_z != 1 ||
	    block_x != okv_kernels[item.kernel].cta_threads || block_y != 1 || block_z != 1 || shared_bytes || extra ||
	    okv_kernels[item.kernel].args_bytes > sizeof(item.args)) {
		ret = OKV_CUDA_ERROR_INVALID_VALUE;
		goto out_unlock;
	}
	memcpy(item.args, params[0], okv_kernels[item.kernel].args_bytes);
	ret = stream_add(stream, &item);
	LEAVE();
}

/* ---- what dlsym() finds ------------------------------------------------------------------- */

#define ENTRY(name, version, is_needed, args) { #name, version, (void *)okv_##name },
static const struct {
	const char	*name;
	int		version;
	void		*fn;
} functions[] = { OKV_CUDA_FUNCTIONS(ENTRY) };

EXPORT int cuGetProcAddress_v2(const char *name, void **fn, int version, uint64_t flags, int *status);
EXPORT int cuGetProcAddress_v2(const char *name, void **fn, int version, uint64_t flags, int *status)
{
	size_t i;

	*fn = NULL;
	*status = 1;
	for (i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
		if (strcmp(name, functions[i].name))
			continue;
		if (functions[i].version > cfg_version || version < functions[i].version || flags ||
		    (!cfg_batch && !strcmp(name, "cuMemcpyBatchAsync")))
			break;
		*fn = functions[i].fn;
		*status = 0;
		return 0;
	}
	return OKV_CUDA_ERROR_NOT_FOUND;
}

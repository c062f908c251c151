// SPDX-License-Identifier: MIT
/*
 * Copy paths of the "cuda" device: how a list of runs is handed to the driver, and which way is the cheapest.
 *
 * There are three. The copy engine takes one call a run, which costs microseconds of this CPU each; the driver's
 * batches half a microsecond; a kernel over mapped host memory next to nothing, but multiprocessors. Which is best
 * depends on GPU, link, driver, size and number, so it is measured when a device is opened for the first time, and
 * kept. Runs that follow one another on both sides were joined before.
 *
 * Choosing is pure; the rest needs the device's context current. Any thread, with lists and streams of its own.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "device_cuda.h"

/* What a path is measured with. */
static const uint32_t sizes[OKV_PATH_SIZES] = { 512, 4096, 16384, 65536, 262144, 1048576 };
static const uint32_t counts[OKV_PATH_COUNTS] = { 16, 256, 4096 };
#define MEASURE_BYTES	(UINT64_C(8) << 20)
/* ... and of a small GPU this part of its memory, but a run of the largest size. */
#define MEASURE_SHIFT	10
#define MEASURE_ROUNDS	3
/* Dearer than this a run is not told apart. */
#define COST_MAX_NS	1e6f

/* ---- lists -------------------------------------------------------------------------------- */

void okv_cuda_list_fini(struct okv_cuda *cuda, struct okv_cuda_list *list)
{
	free(list->dsts);
	free(list->srcs);
	free(list->sizes);
	if (list->runs)
		cuda->drv.cuMemFreeHost(list->runs);
	if (list->device_runs)
		cuda->drv.cuMemFree(list->device_runs);
	memset(list, 0, sizeof(*list));
}

int okv_cuda_list_init(struct okv_cuda *cuda, struct okv_cuda_list *list, uint32_t max)
{
	void *runs;
	int ret;

	memset(list, 0, sizeof(*list));
	list->max = max;
	list->dsts = calloc(max, sizeof(*list->dsts));
	list->srcs = calloc(max, sizeof(*list->srcs));
	list->sizes = calloc(max, sizeof(*list->sizes));
	ret = list->dsts && list->srcs && list->sizes ? 0 : OKV_CUDA_ERROR_OUT_OF_MEMORY;
	/* Kernels alone read the rest. */
	if (!ret && okv_cuda_has_kernels(cuda)) {
		ret = cuda->drv.cuMemHostAlloc(&runs, max * sizeof(*list->runs),
					       OKV_CU_MEMHOSTALLOC_PORTABLE | OKV_CU_MEMHOSTALLOC_DEVICEMAP);
		if (!ret) {
			list->runs = runs;
			ret = cuda->drv.cuMemAlloc(&list->device_runs, max * sizeof(*list->runs));
		}
	}
	if (ret)
		okv_cuda_list_fini(cuda, list);
	return ret;
}

void okv_cuda_list_add(struct okv_cuda_list *list, bool may_join, uint64_t dst, uint64_t src, uint64_t bytes,
		       uint64_t kernel_dst, uint64_t kernel_src)
{
	uint32_t last = list->nr - 1;

	list->bytes += bytes;
	if (may_join && list->nr && list->dsts[last] + list->sizes[last] == dst && list->srcs[last] + list->sizes[last] == src &&
	    (!list->runs || (list->runs[last].dst + list->runs[last].bytes == kernel_dst &&
			     list->runs[last].src + list->runs[last].bytes == kernel_src))) {
		list->sizes[last] += bytes;
		if (list->runs)
			list->runs[last].bytes += bytes;
	} else {
		last = list->nr++;
		list->dsts[last] = dst;
		list->srcs[last] = src;
		list->sizes[last] = bytes;
		if (list->runs)
			list->runs[last] = (struct okv_kernel_run) { kernel_src, kernel_dst, bytes };
	}
	if (list->sizes[last] > list->max_bytes)
		list->max_bytes = list->sizes[last];
}

/* ---- kernels ------------------------------------------------------------------------------ */

bool okv_cuda_has_kernels(const struct okv_cuda *cuda)
{
	return cuda->module;
}

void okv_cuda_kernels_load(struct omnikv_device *dev)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);
	const void *fatbin;
	size_t bytes;
	int i;

	fatbin = okv_kernels_fatbin(&bytes);
	/* No code for this GPU is no error: the other paths remain. */
	if (!fatbin || cuda->drv.cuModuleLoadData(&cuda->module, fatbin)) {
		cuda->module = NULL;
		return;
	}
	for (i = 0; i < OKV_KERNEL_NR; i++) {
		if (cuda->drv.cuModuleGetFunction(&cuda->kernels[i], cuda->module, okv_kernels[i].symbol)) {
			okv_cuda_kernels_unload(dev);
			return;
		}
	}
}

void okv_cuda_kernels_unload(struct omnikv_device *dev)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);

	if (cuda->module)
		cuda->drv.cuModuleUnload(cuda->module);
	cuda->module = NULL;
	memset(cuda->kernels, 0, sizeof(cuda->kernels));
}

struct launch {
	struct okv_cuda	*cuda;
	void		*stream;
	int		error;		/* the driver's */
};

static int launch(void *ctx, enum okv_kernel kernel, uint32_t nr_ctas, const void *args)
{
	void *params[] = { (void *)(uintptr_t)args };
	struct launch *l = ctx;

	l->error = l->cuda->drv.cuLaunchKernel(l->cuda->kernels[kernel], nr_ctas, 1, 1, okv_kernels[kernel].cta_threads, 1, 1, 0,
					       l->stream, params, NULL);
	return okv_cuda_errno(l->error);
}

static const struct okv_kernel_ops kernel_ops = { .name = "cuda", .launch = launch };

int okv_cuda_crc32c(struct okv_cuda *cuda, void *stream, uint64_t spans, uint64_t crc, uint32_t nr)
{
	struct okv_crc32c_args args = { .list = spans, .crc = crc, .nr = nr };
	struct launch l = { cuda, stream, 0 };

	if (okv_launch_crc32c(&kernel_ops, &l, cuda->max_sms, &args))
		return l.error ? l.error : OKV_CUDA_ERROR_INVALID_VALUE;
	return 0;
}

int okv_cuda_event_kernel(struct okv_cuda *cuda, void *stream, bool is_wait, const struct okv_event_args *args)
{
	struct launch l = { cuda, stream, 0 };
	int ret = is_wait ? okv_launch_wait(&kernel_ops, &l, args) : okv_launch_fire(&kernel_ops, &l, args);

	return ret && !l.error ? OKV_CUDA_ERROR_INVALID_VALUE : l.error;
}

/* ---- handing over ------------------------------------------------------------------------- */

static int submit_engine(struct okv_cuda *cuda, enum okv_cuda_direction dir, void *stream, const struct okv_cuda_list *list)
{
	uint32_t i;
	int ret = 0;

	for (i = 0; i < list->nr && !ret; i++) {
		void *dst = (void *)(uintptr_t)list->dsts[i], *src = (void *)(uintptr_t)list->srcs[i];

		if (dir == OKV_H2D)
			ret = cuda->drv.cuMemcpyHtoDAsync(list->dsts[i], src, list->sizes[i], stream);
		else if (dir == OKV_D2H)
			ret = cuda->drv.cuMemcpyDtoHAsync(dst, list->srcs[i], list->sizes[i], stream);
		else
			ret = cuda->drv.cuMemcpyDtoDAsync(list->dsts[i], list->srcs[i], list->sizes[i], stream);
	}
	return ret;
}

static int submit_batch(struct okv_cuda *cuda, enum okv_cuda_direction dir, void *stream, const struct okv_cuda_list *list)
{
	/*
	 * The pool's bytes are what they are until the transfer has ended; the device's may be another stream's until
	 * the event that this one was begun after: nothing reads them out of its order.
	 */
	struct okv_cu_memcpy_attributes attrs = {
		.src_access_order = dir == OKV_H2D ? OKV_CU_MEMCPY_SRC_ACCESS_ORDER_ANY : OKV_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM,
		.flags = OKV_CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE,
	};
	size_t first = 0, failed = SIZE_MAX;

	return cuda->drv.cuMemcpyBatchAsync(list->dsts, list->srcs, list->sizes, list->nr, &attrs, &first, 1, &failed, stream);
}

static int submit_kernel(struct okv_cuda *cuda, enum okv_cuda_direction dir, void *stream, const struct okv_cuda_list *list)
{
	struct okv_copy_args args = {
		.list = list->device_runs, .nr = list->nr, .align_dst = dir == OKV_D2H, .max_bytes = list->max_bytes,
	};
	struct launch l = { cuda, stream, 0 };
	int ret = cuda->drv.cuMemcpyHtoDAsync(list->device_runs, list->runs, list->nr * sizeof(*list->runs), stream);

	if (ret)
		return ret;
	if (okv_launch_copy(&kernel_ops, &l, cuda->max_sms, &args))
		return l.error ? l.error : OKV_CUDA_ERROR_INVALID_VALUE;
	return 0;
}

int okv_cuda_submit(struct okv_cuda *cuda, enum okv_cuda_path path, enum okv_cuda_direction dir, void *stream,
		    const struct okv_cuda_list *list)
{
	switch (path) {
	case OKV_PATH_BATCH:
		return submit_batch(cuda, dir, stream, list);
	case OKV_PATH_KERNEL:
		return submit_kernel(cuda, dir, stream, list);
	default:
		return submit_engine(cuda, dir, stream, list);
	}
}

/* ---- choosing ----------------------------------------------------------------------------- */

static bool path_is_there(const struct okv_cuda *cuda, enum okv_cuda_path path)
{
	return path == OKV_PATH_ENGINE || (path == OKV_PATH_BATCH && cuda->drv.cuMemcpyBatchAsync) ||
	       (path == OKV_PATH_KERNEL && okv_cuda_has_kernels(cuda));
}

/* The index of the measured value nearest to @value by ratio. */
static int nearest(const uint32_t *values, int nr, uint64_t value)
{
	int i;

	for (i = 0; i + 1 < nr; i++) {
		/* Below the geometric mean of this one and the next. */
		if ((double)value * (double)value < (double)values[i] * (double)values[i + 1])
			break;
	}
	return i;
}

enum okv_cuda_path okv_cuda_path_choose(const struct okv_cuda *cuda, enum okv_cuda_direction dir, uint32_t nr,
					uint64_t bytes)
{
	enum okv_cuda_path best = OKV_PATH_ENGINE;
	const float *ns;
	int path;

	if (cuda->forced_path >= 0 && path_is_there(cuda, (enum okv_cuda_path)cuda->forced_path))
		return (enum okv_cuda_path)cuda->forced_path;
	if (nr <= 1)
		return OKV_PATH_ENGINE;
	ns = cuda->costs.ns[dir][nearest(sizes, OKV_PATH_SIZES, bytes / nr)][nearest(counts, OKV_PATH_COUNTS, nr)];
	for (path = 0; path < OKV_NR_PATHS; path++) {
		if (ns[path] > 0 && path_is_there(cuda, (enum okv_cuda_path)path) && (!(ns[best] > 0) || ns[path] < ns[best]))
			best = (enum okv_cuda_path)path;
	}
	return best;
}

/* ---- measuring ---------------------------------------------------------------------------- */

/* What is measured with: pinned memory, device memory twice, a list, a stream. */
struct bench {
	struct okv_cuda		*cuda;
	void			*stream;
	unsigned char		*host;
	uint64_t		host_ptr;
	uint64_t		device;
	uint64_t		apart;		/* device memory to copy from to that */
	uint64_t		bytes;		/* at most so many at once; twice that where they are scattered */
	struct okv_cuda_list	list;
};

static void bench_fini(struct bench *b)
{
	okv_cuda_list_fini(b->cuda, &b->list);
	if (b->device)
		b->cuda->drv.cuMemFree(b->device);
	if (b->apart)
		b->cuda->drv.cuMemFree(b->apart);
	if (b->host)
		b->cuda->drv.cuMemFreeHost(b->host);
	if (b->stream)
		b->cuda->drv.cuStreamDestroy(b->stream);
}

static int bench_init(struct bench *b, struct okv_cuda *cuda)
{
	void *host = NULL;
	int ret;

	memset(b, 0, sizeof(*b));
	b->cuda = cuda;
	b->bytes = cuda->total_bytes >> MEASURE_SHIFT;
	if (b->bytes < sizes[OKV_PATH_SIZES - 1])
		b->bytes = sizes[OKV_PATH_SIZES - 1];
	if (b->bytes > MEASURE_BYTES)
		b->bytes = MEASURE_BYTES;
	ret = cuda->drv.cuStreamCreateWithPriority(&b->stream, OKV_CU_STREAM_NON_BLOCKING, cuda->priority);
	if (!ret)
		ret = cuda->drv.cuMemHostAlloc(&host, 2 * b->bytes, OKV_CU_MEMHOSTALLOC_PORTABLE | OKV_CU_MEMHOSTALLOC_DEVICEMAP);
	b->host = host;
	if (!ret)
		ret = cuda->drv.cuMemHostGetDevicePointer(&b->host_ptr, host, 0);
	if (!ret)
		ret = cuda->drv.cuMemAlloc(&b->device, b->bytes);
	if (!ret)
		ret = cuda->drv.cuMemAlloc(&b->apart, 2 * b->bytes);
	if (!ret)
		ret = okv_cuda_list_init(cuda, &b->list, counts[OKV_PATH_COUNTS - 1]);
	if (ret)
		bench_fini(b);
	return ret;
}

/* Every other slot of the pool, or of other device memory, in a scattered order, against a dense layer. */
static void bench_fill(struct bench *b, enum okv_cuda_direction dir, uint32_t bytes, uint32_t nr)
{
	uint32_t i;

	b->list.nr = 0;
	b->list.bytes = b->list.max_bytes = 0;
	for (i = 0; i < nr; i++) {
		/* Odd and below 2^k: a permutation where nr is a power of two, scattered enough where it is not. */
		uint64_t at = (uint64_t)(i * 2654435761u % nr) * 2 * bytes, there = b->device + (uint64_t)i * bytes;
		uint64_t host = (uintptr_t)b->host + at;

		if (dir == OKV_H2D)
			okv_cuda_list_add(&b->list, false, there, host, bytes, there, b->host_ptr + at);
		else if (dir == OKV_D2D)
			okv_cuda_list_add(&b->list, false, there, b->apart + at, bytes, there, b->apart + at);
		else
			okv_cuda_list_add(&b->list, false, host, there, bytes, b->host_ptr + at, there);
	}
}

/* Nanoseconds of one submission from here to its end; 0 where it fails. */
static float bench_once(struct bench *b, enum okv_cuda_path path, enum okv_cuda_direction dir)
{
	uint64_t start_ns = okv_monotonic_ns();
	int error = okv_cuda_submit(b->cuda, path, dir, b->stream, &b->list);

	/* Also of a part of it: the list is filled anew after this. */
	if (b->cuda->drv.cuStreamSynchronize(b->stream) || error)
		return 0;
	return (float)(okv_monotonic_ns() - start_ns);
}

static int compare(const void *a, const void *b)
{
	float x = *(const float *)a, y = *(const float *)b;

	return (x > y) - (x < y);
}

static float bench_median(struct bench *b, enum okv_cuda_path path, enum okv_cuda_direction dir)
{
	float ns[MEASURE_ROUNDS];
	int i;

	/* The first one pays for whatever the driver does once. */
	if (!(bench_once(b, path, dir) > 0))
		return 0;
	for (i = 0; i < MEASURE_ROUNDS; i++) {
		ns[i] = bench_once(b, path, dir);
		if (!(ns[i] > 0))
			return 0;
	}
	qsort(ns, MEASURE_ROUNDS, sizeof(ns[0]), compare);
	return ns[MEASURE_ROUNDS / 2];
}

/* Fewer runs where that many would not fit: the cost of one is what counts. */
static uint32_t cell_runs(const struct bench *b, int size, int count)
{
	uint64_t nr = b->bytes / sizes[size];

	return nr < counts[count] ? (uint32_t)nr : counts[count];
}

static void bench_cell(struct bench *b, enum okv_cuda_direction dir, int size, int count)
{
	float *ns = b->cuda->costs.ns[dir][size][count];
	uint32_t nr = cell_runs(b, size, count);
	int path;

	if (count && cell_runs(b, size, count - 1) == nr) {
		memcpy(ns, b->cuda->costs.ns[dir][size][count - 1], OKV_NR_PATHS * sizeof(*ns));
		return;
	}
	bench_fill(b, dir, sizes[size], nr);
	for (path = 0; path < OKV_NR_PATHS; path++) {
		if (path_is_there(b->cuda, (enum okv_cuda_path)path))
			ns[path] = bench_median(b, (enum okv_cuda_path)path, dir) / (float)nr;
		if (ns[path] > COST_MAX_NS)
			ns[path] = COST_MAX_NS;
	}
}

/* A path that is there and has no figure has failed: what kept it from working may be gone the next time. */
static bool is_whole(const struct okv_cuda *cuda)
{
	const float *ns = &cuda->costs.ns[0][0][0][0];
	size_t i;

	for (i = 0; i < sizeof(cuda->costs) / sizeof(*ns); i++) {
		if (path_is_there(cuda, (enum okv_cuda_path)(i % OKV_NR_PATHS)) && !(ns[i] > 0))
			return false;
	}
	return true;
}

/* What makes a table this device's: it is not used with any other of these. */
static void table_key(const struct okv_cuda *cuda, char *key, size_t key_bytes, char *name, size_t name_bytes)
{
	char uuid[33];
	size_t i;

	for (i = 0; i < sizeof(cuda->uuid.bytes); i++)
		snprintf(uuid + 2 * i, 3, "%02x", cuda->uuid.bytes[i]);
	snprintf(name, name_bytes, "cuda-%s-%d-%u.table", uuid, cuda->drv.version, cuda->max_sms);
	snprintf(key, key_bytes, "gpu %s driver %d sms %u paths %d%d%d %.100s", uuid, cuda->drv.version, cuda->max_sms,
		 path_is_there(cuda, OKV_PATH_ENGINE), path_is_there(cuda, OKV_PATH_BATCH), path_is_there(cuda, OKV_PATH_KERNEL),
		 okv_kernels_build());
}

static void forced_path_read(struct okv_cuda *cuda)
{
	static const char *const names[OKV_NR_PATHS] = { "engine", "batch", "kernel" };
	const char *name = secure_getenv("OMNIKV_CUDA_PATH");
	int i;

	cuda->forced_path = -1;
	for (i = 0; name && i < OKV_NR_PATHS; i++) {
		if (!strcmp(name, names[i]))
			cuda->forced_path = i;
	}
}

void okv_cuda_paths_measure(struct omnikv_device *dev)
{
	struct okv_cuda *cuda = okv_cuda_of(dev);
	char key[256], name[128];
	struct bench b;
	int dir, size, count;

	okv_cuda_kernels_load(dev);
	forced_path_read(cuda);
	table_key(cuda, key, sizeof(key), name, sizeof(name));
	if (!okv_cuda_costs_load(&cuda->costs, key, name))
		return;
	/* Without memory to measure with, each transfer goes by the copy engine. */
	memset(&cuda->costs, 0, sizeof(cuda->costs));
	if (bench_init(&b, cuda))
		return;
	for (dir = 0; dir < OKV_NR_DIRECTIONS; dir++) {
		for (size = 0; size < OKV_PATH_SIZES; size++) {
			for (count = 0; count < OKV_PATH_COUNTS; count++)
				bench_cell(&b, (enum okv_cuda_direction)dir, size, count);
		}
	}
	bench_fini(&b);
	/* A cache folder that cannot be written costs the next opening a second. */
	if (is_whole(cuda))
		okv_cuda_costs_save(&cuda->costs, key, name);
}

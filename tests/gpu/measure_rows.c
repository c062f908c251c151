// SPDX-License-Identifier: GPL-2.0-only
/*
 * Measurements on a GPU, a row a run of this program, each beside its limit and its peers in the same process.
 *
 *     measure_rows list          names of rows, one a line
 *     measure_rows card          what is measured, as JSON
 *     measure_rows run NAME      prints lines of JSON, one a result; status 4 with a reason where it cannot
 *
 * Arms are interleaved, ROUNDS rounds; figures are medians with min and max. Contents are checked outside the timed
 * part. OMNIKV_GPU_MIB makes everything smaller (default 1024); X8 writes half of that to a file at TMPDIR, which has no
 * name and ends with the program. tests/gpu/run calls this.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "../harness/gpu_card.h"
#include "../harness/kernel_case.h"

#define ROUNDS		5
#define CALLS_MAX	20000u		/* of one copy a piece: more only take longer */
#define LAYERS		32

static struct gpu_card card;
static size_t region_bytes;

/* ---- results ------------------------------------------------------------------------------ */

struct series {
	double	values[ROUNDS];
	int	nr;
};

static void add(struct series *s, double value)
{
	s->values[s->nr++] = value;
}

static double median(const struct series *s)
{
	double values[ROUNDS];

	if (!s->nr)
		return 0;
	memcpy(values, s->values, sizeof(values));
	return middle(values, s->nr);
}

static bool is_first;

static void result_begin(const char *row, const char *fmt, ...)
{
	va_list args;

	printf("{\"row\": \"%s\", \"name\": \"", row);
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	printf("\", \"figures\": {");
	is_first = true;
}

static void figure(const char *name, const struct series *s)
{
	double values[ROUNDS];

	if (!s->nr)
		return;
	memcpy(values, s->values, sizeof(values));
	middle(values, s->nr);
	printf("%s\"%s\": {\"median\": %.6g, \"min\": %.6g, \"max\": %.6g}", is_first ? "" : ", ", name, median(s), values[0],
	       values[s->nr - 1]);
	is_first = false;
}

/* @unit of all figures; @value against @limit, whose target @target is; reached where @is_reached. */
static void result_end(const char *unit, double value, double limit, const char *target, bool is_reached)
{
	printf("}, \"unit\": \"%s\", \"ours\": %.6g, \"limit\": %.6g, \"target\": \"%s\", \"reached\": %s}\n", unit, value, limit,
	       target, is_reached ? "true" : "false");
	fflush(stdout);
}

static int cannot(const char *why)
{
	printf("%s\n", why);
	return 4;
}

/* ---- X1, X2: scattered pieces -------------------------------------------------------------- */

/* Pieces in both regions, and the list of them. */
struct pieces {
	struct gpu_host		host;
	uint64_t		device;
	struct gpu_host		list;		/* pinned; what is uploaded */
	uint64_t		device_list;
	struct gpu_host		copy;		/* of the device's region */
	uint32_t		nr;
	uint32_t		bytes;		/* of a piece */
	uint64_t		*host_off;	/* [nr] */
	uint64_t		*device_off;
	bool			to_host;
};

static void pieces_open(struct pieces *p, uint32_t bytes, bool to_host)
{
	size_t total = region_bytes / 4;

	memset(p, 0, sizeof(*p));
	p->bytes = bytes;
	p->to_host = to_host;
	p->nr = (uint32_t)(total / bytes);
	p->host = card_host(&card, region_bytes);
	p->copy = card_host(&card, region_bytes);
	p->device = card_alloc(&card, region_bytes);
	p->list = card_host(&card, p->nr * sizeof(struct okv_kernel_run));
	p->device_list = card_alloc(&card, p->nr * sizeof(struct okv_kernel_run));
	p->host_off = calloc(p->nr, sizeof(*p->host_off));
	p->device_off = calloc(p->nr, sizeof(*p->device_off));
	if (!p->host_off || !p->device_off)
		exit(1);
}

static void pieces_close(struct pieces *p)
{
	CARD(&card, cuStreamSynchronize(card.stream));
	CARD(&card, cuMemFree(p->device));
	CARD(&card, cuMemFree(p->device_list));
	card_host_free(&card, &p->host);
	card_host_free(&card, &p->list);
	card_host_free(&card, &p->copy);
	free(p->host_off);
	free(p->device_off);
}

/* Distinct places of a region in random order, or one after another. */
static void places(uint64_t *off, uint32_t nr, uint32_t bytes, bool is_scattered)
{
	uint32_t nr_places = (uint32_t)(region_bytes / bytes), i;
	uint64_t random = 7, *all;

	if (!is_scattered) {
		for (i = 0; i < nr; i++)
			off[i] = (uint64_t)i * bytes;
		return;
	}
	all = malloc(nr_places * sizeof(*all));
	if (!all)
		exit(1);
	for (i = 0; i < nr_places; i++)
		all[i] = i;
	for (i = 0; i < nr; i++) {
		uint32_t other = i + case_below(&random, nr_places - i);
		uint64_t swap = all[i];

		all[i] = all[other];
		all[other] = swap;
		off[i] = all[i] * bytes;
	}
	free(all);
}

static void list_make(struct pieces *p)
{
	struct okv_kernel_run *runs = (struct okv_kernel_run *)p->list.ptr;
	uint32_t i;

	for (i = 0; i < p->nr; i++) {
		uint64_t host = p->host.device + p->host_off[i], device = p->device + p->device_off[i];

		runs[i] = p->to_host ? (struct okv_kernel_run) { device, host, p->bytes } :
				       (struct okv_kernel_run) { host, device, p->bytes };
	}
}

static uint64_t list_upload(struct pieces *p)
{
	CARD(&card, cuMemcpyHtoDAsync(p->device_list, p->list.ptr, p->nr * sizeof(struct okv_kernel_run), card.stream));
	return p->device_list;
}

static void by_kernel(struct pieces *p, uint32_t max_ctas)
{
	struct okv_copy_args args = {
		.list = list_upload(p), .nr = p->nr, .align_dst = p->to_host, .max_bytes = p->bytes,
	};

	if (okv_launch_copy(&card_ops, &card, max_ctas, &args)) {
		fprintf(stderr, "the launcher refused it\n");
		exit(1);
	}
}

/* All of it as runs of 64 KiB that follow one another: what SMs can do at best. */
static void by_kernel_contiguous(struct pieces *p)
{
	struct okv_kernel_run *runs = (struct okv_kernel_run *)p->list.ptr;
	uint64_t total = (uint64_t)p->nr * p->bytes, bytes = 65536, i;
	struct okv_copy_args args = { .list = p->list.device, .align_dst = p->to_host, .max_bytes = bytes };

	for (i = 0; i * bytes < total && i < p->nr; i++) {
		uint64_t host = p->host.device + i * bytes, device = p->device + i * bytes;

		runs[i] = p->to_host ? (struct okv_kernel_run) { device, host, bytes } :
				       (struct okv_kernel_run) { host, device, bytes };
	}
	args.nr = (uint32_t)i;
	args.list = list_upload(p);
	if (okv_launch_copy(&card_ops, &card, (uint32_t)card.nr_sms, &args))
		exit(1);
}

static void by_engine(struct pieces *p, uint64_t device_off, uint64_t host_off, size_t bytes)
{
	if (p->to_host)
		CARD(&card, cuMemcpyDtoHAsync(p->host.ptr + host_off, p->device + device_off, bytes, card.stream));
	else
		CARD(&card, cuMemcpyHtoDAsync(p->device + device_off, p->host.ptr + host_off, bytes, card.stream));
}

static uint32_t by_loop(struct pieces *p)
{
	uint32_t nr = p->nr < CALLS_MAX ? p->nr : CALLS_MAX, i;

	for (i = 0; i < nr; i++)
		by_engine(p, p->device_off[i], p->host_off[i], p->bytes);
	return nr;
}

static uint32_t by_batch(struct pieces *p)
{
	uint32_t nr = p->nr < CALLS_MAX ? p->nr : CALLS_MAX, i;
	uint64_t *src = malloc(nr * sizeof(*src)), *dst = malloc(nr * sizeof(*dst));
	size_t *sizes = malloc(nr * sizeof(*sizes)), first = 0, failed = 0;
	struct okv_cu_memcpy_attributes attrs = {
		.src_access_order = p->to_host ? OKV_CU_MEMCPY_SRC_ACCESS_ORDER_STREAM : OKV_CU_MEMCPY_SRC_ACCESS_ORDER_ANY,
		.flags = OKV_CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE,
	};

	if (!src || !dst || !sizes)
		exit(1);
	for (i = 0; i < nr; i++) {
		uint64_t host = (uintptr_t)p->host.ptr + p->host_off[i], device = p->device + p->device_off[i];

		src[i] = p->to_host ? device : host;
		dst[i] = p->to_host ? host : device;
		sizes[i] = p->bytes;
	}
	CARD(&card, cuMemcpyBatchAsync(dst, src, sizes, nr, &attrs, &first, 1, &failed, card.stream));
	free(src);
	free(dst);
	free(sizes);
	return nr;
}

/* Every piece of the destination is the source's. */
static void check(struct pieces *p, const char *what)
{
	uint32_t i;

	CARD(&card, cuMemcpyDtoHAsync(p->copy.ptr, p->device, region_bytes, card.stream));
	CARD(&card, cuStreamSynchronize(card.stream));
	for (i = 0; i < p->nr; i++) {
		if (memcmp(p->copy.ptr + p->device_off[i], p->host.ptr + p->host_off[i], p->bytes)) {
			fprintf(stderr, "%s: piece %u of %u bytes is wrong\n", what, i, p->bytes);
			exit(1);
		}
	}
}

/* No word of the two regions is another. */
static void fill(struct pieces *p)
{
	uint64_t *host = (uint64_t *)p->host.ptr, *device = (uint64_t *)p->copy.ptr, i;

	for (i = 0; i < region_bytes / 8; i++) {
		host[i] = (2 * i + 1) * UINT64_C(0x9e3779b97f4a7c15);
		device[i] = (2 * i + 2) * UINT64_C(0x9e3779b97f4a7c15);
	}
	CARD(&card, cuMemcpyHtoDAsync(p->device, p->copy.ptr, region_bytes, card.stream));
	CARD(&card, cuStreamSynchronize(card.stream));
}

enum arm { ENGINE_WHOLE, KERNEL_WHOLE, KERNEL_4, KERNEL_16, KERNEL_ALL, LOOP, BATCH, NR_ARMS };
static const char *const arm_names[] = {
	"copy engine, contiguous", "kernel, contiguous", "kernel, 4 SMs", "kernel, 16 SMs", "kernel, all SMs",
	"one cuMemcpyAsync a piece", "cuMemcpyBatchAsync",
};

/* Runs an arm; returns how many of the pieces it moved. */
static uint32_t arm_run(struct pieces *p, enum arm arm)
{
	switch (arm) {
	case ENGINE_WHOLE:
		by_engine(p, 0, 0, (size_t)p->nr * p->bytes);
		return p->nr;
	case KERNEL_WHOLE:
		by_kernel_contiguous(p);
		return p->nr;
	case KERNEL_4:
		by_kernel(p, 4);
		return p->nr;
	case KERNEL_16:
		by_kernel(p, card.nr_sms < 16 ? (uint32_t)card.nr_sms : 16);
		return p->nr;
	case KERNEL_ALL:
		by_kernel(p, (uint32_t)card.nr_sms);
		return p->nr;
	case LOOP:
		return by_loop(p);
	default:
		return by_batch(p);
	}
}

static void x1_cell(struct pieces *p, bool host_scattered, bool device_scattered)
{
	void *from = card_event(&card), *to = card_event(&card);
	struct series rates[NR_ARMS] = { 0 };
	double limit, better, ours = 0;
	enum arm best = KERNEL_ALL, arm;
	char target[96];
	bool is_reached;
	int round;

	places(p->host_off, p->nr, p->bytes, host_scattered);
	places(p->device_off, p->nr, p->bytes, device_scattered);
	fill(p);
	list_make(p);
	arm_run(p, KERNEL_4);
	CARD(&card, cuStreamSynchronize(card.stream));
	check(p, arm_names[KERNEL_4]);
	for (round = 0; round < ROUNDS; round++) {
		for (arm = 0; arm < NR_ARMS; arm++) {
			uint32_t nr;

			if (arm == BATCH && !card.drv.cuMemcpyBatchAsync)
				continue;
			if (arm >= KERNEL_4)
				list_make(p);
			CARD(&card, cuStreamSynchronize(card.stream));
			CARD(&card, cuEventRecord(from, card.stream));
			nr = arm_run(p, arm);
			CARD(&card, cuEventRecord(to, card.stream));
			CARD(&card, cuStreamSynchronize(card.stream));
			add(&rates[arm], (double)nr * p->bytes / card_seconds(&card, from, to) / 1e9);
		}
	}
	CARD(&card, cuEventDestroy(from));
	CARD(&card, cuEventDestroy(to));

	for (arm = KERNEL_4; arm < NR_ARMS; arm++) {
		if (median(&rates[arm]) > ours) {
			ours = median(&rates[arm]);
			best = arm;
		}
	}
	better = median(&rates[ENGINE_WHOLE]) > median(&rates[KERNEL_WHOLE]) ? median(&rates[ENGINE_WHOLE]) :
		 median(&rates[KERNEL_WHOLE]);
	limit = p->bytes < 4096 ? median(&rates[KERNEL_WHOLE]) : better;
	is_reached = ours >= 0.95 * limit && (p->bytes >= 4096 || p->to_host || ours >= 37);
	if (p->bytes == 8192 && rates[BATCH].nr)
		is_reached = is_reached && ours >= 3.5 * median(&rates[BATCH]);
	snprintf(target, sizeof(target), "at least 0.95 of %s%s%s", p->bytes < 4096 ? "the kernel's contiguous copy" : "the better path",
		 p->bytes < 4096 && !p->to_host ? " and 37 GB/s" : "", p->bytes == 8192 ? " and 3.5 x the batch" : "");
	result_begin("X1", "%s %u B, %s scattered, best by %s", p->to_host ? "D2H" : "H2D", p->bytes,
		     host_scattered && device_scattered ? "both" : host_scattered ? "host" : "device", arm_names[best]);
	for (arm = 0; arm < NR_ARMS; arm++)
		figure(arm_names[arm], &rates[arm]);
	result_end("GB/s", ours, limit, target, is_reached);
}

static int x1(uint32_t bytes, bool to_host)
{
	struct pieces p;

	pieces_open(&p, bytes, to_host);
	x1_cell(&p, true, false);
	x1_cell(&p, false, true);
	x1_cell(&p, true, true);
	pieces_close(&p);
	return 0;
}

/* What submitting costs the CPU: list, upload and launch, beside the driver's batch. */
static int x2(uint32_t bytes)
{
	struct series ours = { 0 }, batch = { 0 };
	struct pieces p;
	double start;
	int round;

	pieces_open(&p, bytes, false);
	places(p.host_off, p.nr, bytes, true);
	places(p.device_off, p.nr, bytes, false);
	for (round = 0; round < ROUNDS; round++) {
		CARD(&card, cuStreamSynchronize(card.stream));
		start = cpu_s();
		list_make(&p);
		by_kernel(&p, 4);
		add(&ours, (cpu_s() - start) / p.nr * 1e9);
		CARD(&card, cuStreamSynchronize(card.stream));
		if (!card.drv.cuMemcpyBatchAsync)
			continue;
		start = cpu_s();
		add(&batch, 0);
		batch.values[batch.nr - 1] = 1e9 / by_batch(&p);
		batch.values[batch.nr - 1] *= cpu_s() - start;
	}
	result_begin("X2", "submission of %u pieces of %u B", p.nr, bytes);
	figure("list, upload and launch", &ours);
	figure("cuMemcpyBatchAsync", &batch);
	result_end("ns of CPU a piece", median(&ours), 20, "at most 20 ns an extent", median(&ours) <= 20);
	pieces_close(&p);
	return 0;
}

/* ---- X3, X4: beside a model's kernels ------------------------------------------------------- */

static void *load_compute, *load_read;

/* gpu_load_*() from the fatbin beside this program. */
static int loads_open(void)
{
	char path[4096];
	ssize_t len = readlink("/proc/self/exe", path, sizeof(path) - 32);
	void *module, *image;
	FILE *file;
	size_t got;

	if (len < 0)
		return -errno;
	path[len] = 0;
	snprintf(strrchr(path, '/'), 32, "/load.fatbin");
	file = fopen(path, "rb");
	image = calloc(1, (size_t)4 << 20);
	if (!file || !image)
		return -ENOENT;
	got = fread(image, 1, (size_t)4 << 20, file);
	fclose(file);
	if (!got || card.drv.cuModuleLoadData(&module, image) ||
	    card.drv.cuModuleGetFunction(&load_compute, module, "gpu_load_compute") ||
	    card.drv.cuModuleGetFunction(&load_read, module, "gpu_load_read")) {
		free(image);
		return -ENOENT;
	}
	free(image);
	return 0;
}

struct load {
	bool		is_read;
	uint64_t	memory;		/* region_bytes */
	uint32_t	amount;		/* iterations or rounds */
};

static void load_launch(const struct load *load, void *stream)
{
	uint64_t out = load->memory;
	unsigned long long nr = region_bytes / 16;
	uint32_t amount = load->amount;
	void *compute_params[] = { &out, &amount }, *read_params[] = { &out, &nr, &amount, &out };

	CARD(&card, cuLaunchKernel(load->is_read ? load_read : load_compute, 4 * (uint32_t)card.nr_sms, 1, 1, 256, 1, 1, 0, stream,
				   load->is_read ? read_params : compute_params, NULL));
}

static double load_seconds(const struct load *load, void *from, void *to)
{
	CARD(&card, cuEventRecord(from, card.stream));
	load_launch(load, card.stream);
	CARD(&card, cuEventRecord(to, card.stream));
	CARD(&card, cuStreamSynchronize(card.stream));
	return card_seconds(&card, from, to);
}

/* Choose the amount that takes about @seconds. */
static void load_calibrate(struct load *load, double seconds, void *from, void *to)
{
	double took;

	load->amount = load->is_read ? 1 : 1000;
	load_seconds(load, from, to);
	do {
		took = load_seconds(load, from, to);
		if (took < seconds / 4)
			load->amount *= 2;
	} while (took < seconds / 4 && load->amount < 1u << 30);
	if (took > 0)
		load->amount = (uint32_t)((double)load->amount * seconds / took) + 1;
}

static int x3(bool is_read)
{
	static const char *const names[] = { "alone", "beside the copy engine", "beside the kernel, 4 SMs" };
	void *from = card_event(&card), *to = card_event(&card), *computing = card.stream, *copying = NULL;
	struct series times[3] = { 0 }, slower = { 0 };
	struct load load = { .is_read = is_read };
	struct pieces p;
	int round, arm, i;

	if (loads_open())
		return cannot("there is no load.fatbin beside measure_rows, or not for this GPU");
	pieces_open(&p, 4096, false);
	places(p.host_off, p.nr, p.bytes, true);
	places(p.device_off, p.nr, p.bytes, false);
	list_make(&p);
	load.memory = card_alloc(&card, region_bytes);
	CARD(&card, cuStreamCreateWithPriority(&copying, OKV_CU_STREAM_NON_BLOCKING, 0));
	load_calibrate(&load, 0.02, from, to);
	for (round = 0; round < ROUNDS; round++) {
		for (arm = 0; arm < 3; arm++) {
			/* Transfers that take some three times as long as the load. */
			card.stream = copying;
			for (i = 0; arm && i < 16; i++) {
				if (arm == 1)
					by_engine(&p, 0, 0, (size_t)p.nr * p.bytes);
				else
					by_kernel(&p, 4);
			}
			card.stream = computing;
			add(&times[arm], load_seconds(&load, from, to) * 1e3);
			CARD(&card, cuStreamSynchronize(copying));
		}
	}
	for (arm = 1; arm < 3; arm++) {
		double most = arm == 1 ? 2 : 4;

		slower.nr = 0;
		for (round = 0; round < ROUNDS; round++)
			add(&slower, (times[arm].values[round] / times[0].values[round] - 1) * 100);
		result_begin("X3", "%s %s", is_read ? "reading of HBM" : "arithmetic", names[arm]);
		figure("slower", &slower);
		result_end("%", median(&slower), most, arm == 1 ? "at most 2 %" : "at most 4 % with at most 4 SMs", median(&slower) <= most);
	}
	CARD(&card, cuStreamDestroy(copying));
	CARD(&card, cuMemFree(load.memory));
	pieces_close(&p);
	return 0;
}

typedef int (*stream_wait_event)(void *stream, void *event, unsigned int flags);

/* A prefill of LAYERS layers over two slots: layer l computes while l + 1 loads. Seconds. */
static double x4_run(struct pieces *p, const struct load *load, void *computing, void *copying, bool by_the_kernel,
		     bool with_load, bool with_compute, stream_wait_event wait)
{
	void *loaded[LAYERS], *done[LAYERS], *from = card_event(&card), *to = card_event(&card);
	double seconds;
	int l;

	for (l = 0; l < LAYERS; l++) {
		loaded[l] = card_event(&card);
		done[l] = card_event(&card);
	}
	CARD(&card, cuEventRecord(from, computing));
	card_must(&card, wait(copying, from, 0), "cuStreamWaitEvent");
	for (l = 0; l < LAYERS; l++) {
		if (with_load) {
			if (l >= 2)
				card_must(&card, wait(copying, done[l - 2], 0), "cuStreamWaitEvent");
			card.stream = copying;
			if (by_the_kernel)
				by_kernel(p, 4);
			else
				by_engine(p, 0, 0, (size_t)p->nr * p->bytes);
			card.stream = computing;
			CARD(&card, cuEventRecord(loaded[l], copying));
			card_must(&card, wait(computing, loaded[l], 0), "cuStreamWaitEvent");
		}
		if (with_compute)
			load_launch(load, computing);
		CARD(&card, cuEventRecord(done[l], computing));
	}
	CARD(&card, cuEventRecord(to, computing));
	CARD(&card, cuStreamSynchronize(computing));
	CARD(&card, cuStreamSynchronize(copying));
	seconds = card_seconds(&card, from, to);
	for (l = 0; l < LAYERS; l++) {
		CARD(&card, cuEventDestroy(loaded[l]));
		CARD(&card, cuEventDestroy(done[l]));
	}
	CARD(&card, cuEventDestroy(from));
	CARD(&card, cuEventDestroy(to));
	return seconds;
}

static int x4(bool by_the_kernel)
{
	void *from = card_event(&card), *to = card_event(&card), *computing = card.stream, *copying = NULL;
	struct series exposed = { 0 }, total = { 0 }, compute = { 0 }, transfer = { 0 };
	struct load load = { .is_read = false };
	stream_wait_event wait = NULL;
	struct pieces p;
	double limit, one;
	int round;

	if (loads_open())
		return cannot("there is no load.fatbin beside measure_rows, or not for this GPU");
	*(void **)&wait = dlsym(card.drv.handle, "cuStreamWaitEvent");
	if (!wait)
		return cannot("the driver has no cuStreamWaitEvent()");
	pieces_open(&p, 4096, false);
	p.nr = p.nr > 4096 ? 4096 : p.nr;	/* 16 MiB a layer */
	places(p.host_off, p.nr, p.bytes, true);
	places(p.device_off, p.nr, p.bytes, false);
	list_make(&p);
	load.memory = card_alloc(&card, region_bytes);
	CARD(&card, cuStreamCreateWithPriority(&copying, OKV_CU_STREAM_NON_BLOCKING, 0));
	x4_run(&p, &load, computing, copying, by_the_kernel, true, false, wait);
	one = x4_run(&p, &load, computing, copying, by_the_kernel, true, false, wait) / LAYERS;
	load_calibrate(&load, 1.5 * one, from, to);
	for (round = 0; round < ROUNDS; round++) {
		double c = x4_run(&p, &load, computing, copying, by_the_kernel, false, true, wait);
		double t = x4_run(&p, &load, computing, copying, by_the_kernel, true, false, wait);
		double both = x4_run(&p, &load, computing, copying, by_the_kernel, true, true, wait);

		add(&compute, c * 1e3);
		add(&transfer, t * 1e3);
		add(&total, both * 1e3);
		add(&exposed, (both - c) * 1e3);
	}
	limit = 1.1 * median(&transfer) / LAYERS + 0.015 * median(&compute);
	result_begin("X4", "prefill of %d layers of %u x 4 KiB, by %s", LAYERS, p.nr, by_the_kernel ? "the kernel, 4 SMs" : "the copy engine");
	figure("exposed", &exposed);
	figure("compute only", &compute);
	figure("transfer only", &transfer);
	figure("both", &total);
	result_end("ms", median(&exposed), limit, "at most 1.1 layers' transfer and 1.5 % of compute", median(&exposed) <= limit);
	CARD(&card, cuStreamDestroy(copying));
	CARD(&card, cuMemFree(load.memory));
	pieces_close(&p);
	return 0;
}

/* ---- X7: pinning ----------------------------------------------------------------------------- */

static int x7_register(bool is_huge)
{
	size_t bytes = 2 * region_bytes, chunk = (size_t)256 << 20, off;
	struct series times = { 0 };
	int round;

	for (round = 0; round < 3; round++) {
		unsigned char *ptr = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		double start;

		if (ptr == MAP_FAILED)
			return cannot("not enough memory");
		madvise(ptr, bytes, is_huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
		memset(ptr, 1, bytes);
		start = now_s();
		for (off = 0; off < bytes; off += chunk)
			CARD(&card, cuMemHostRegister(ptr + off, chunk < bytes - off ? chunk : bytes - off, OKV_CU_MEMHOSTREGISTER_DEVICEMAP));
		add(&times, (now_s() - start) * 1e3 / ((double)bytes / (1u << 30)));
		for (off = 0; off < bytes; off += chunk)
			CARD(&card, cuMemHostUnregister(ptr + off));
		munmap(ptr, bytes);
	}
	result_begin("X7", "cuMemHostRegister of %zu MiB in chunks of 256 MiB, %s pages", bytes >> 20, is_huge ? "2-MiB (advised)" : "4-KiB");
	figure("one thread", &times);
	result_end("ms/GiB", median(&times), 25, "at most 25 ms/GiB a process", median(&times) <= 25);
	return 0;
}

/* ---- X1, X2, X7 through the library: pool, ring, device "cuda" --------------------------------- */

struct stack {
	struct omnikv_pool	*pool;
	struct omnikv_client	*client;
	struct omnikv_device	*dev;
	struct omnikv_ring	*ring;
	struct omnikv_hbm	*hbm;
};

static const char *stack_open(struct stack *s, struct omnikv_error *err)
{
	struct omnikv_device_config dc = { .size = sizeof(dc), .hbm_bytes = region_bytes };
	char spec[64];

	memset(s, 0, sizeof(*s));
	snprintf(spec, sizeof(spec), "embedded:%zuM", region_bytes >> 20);
	if (omnikv_pool_open(spec, NULL, &s->pool, err))
		return "pool";
	if (omnikv_client_open(s->pool, OMNIKV_CLIENT_F_MANAGER, &s->client))
		return "client";
	if (omnikv_device_open("cuda", &dc, &s->dev, err))
		return "device";
	return NULL;
}

static void stack_close(struct stack *s)
{
	if (s->ring)
		omnikv_ring_exit(s->ring);
	if (s->hbm)
		omnikv_hbm_destroy(s->hbm);
	if (s->dev)
		omnikv_device_close(s->dev);
	if (s->client)
		omnikv_client_close(s->client);
	if (s->pool)
		omnikv_pool_close(s->pool);
}

static int64_t stack_move(struct stack *s, bool to_host, const struct omnikv_piece *pieces, uint32_t nr)
{
	struct omnikv_sqe *sqe = omnikv_get_sqe(s->ring);
	struct omnikv_cqe *cqe;
	int64_t res;

	if (!sqe)
		return -EAGAIN;
	if (to_host)
		omnikv_prep_store(sqe, s->hbm, pieces, nr);
	else
		omnikv_prep_load(sqe, s->hbm, pieces, nr);
	if (omnikv_submit(s->ring) != 1 || omnikv_wait_cqe(s->ring, &cqe, UINT64_C(60) * 1000000000))
		return -ETIME;
	res = cqe->res;
	omnikv_cqe_seen(s->ring, cqe);
	return res;
}

#define EXTENT_GRANULES	512u

static double process_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static int stack_row(uint32_t bytes, bool to_host)
{
	uint32_t extent_bytes = EXTENT_GRANULES * 4096, nr_extents = (uint32_t)(region_bytes * 3 / 4 / extent_bytes), per, nr, i;
	struct omnikv_error err = { "" };
	struct omnikv_device_info info = { .size = sizeof(info) };
	struct series rates = { 0 }, cpu = { 0 };
	struct omnikv_extent *extents;
	struct omnikv_piece *pieces;
	double begin, first_s, mapped_s, start;
	uint64_t random = 5;
	struct stack s;
	const char *what = stack_open(&s, &err);
	int ret = 1, round;

	if (what) {
		ret = cannot(err.text[0] ? err.text : what);
		goto out;
	}
	begin = now_s();
	if (omnikv_hbm_create(s.dev, region_bytes / 2, &s.hbm) || omnikv_ring_init(s.client, s.dev, NULL, &s.ring, &err)) {
		fprintf(stderr, "ring or device memory: %s\n", err.text);
		goto out;
	}
	per = extent_bytes / bytes;
	nr = (uint32_t)(region_bytes / 4 / bytes);
	nr = nr > nr_extents * per ? nr_extents * per : nr;
	extents = calloc(nr_extents, sizeof(*extents));
	pieces = calloc(nr, sizeof(*pieces));
	if (!extents || !pieces || omnikv_extent_alloc(s.client, EXTENT_GRANULES, nr_extents, NULL, 0, extents)) {
		fprintf(stderr, "no memory for the pieces\n");
		goto out;
	}
	for (i = 0; i < nr; i++) {
		/* Piece i of a random order of (extent, place). */
		pieces[i] = (struct omnikv_piece) {
			.extent = extents[i % nr_extents], .extent_off = (uint64_t)(i / nr_extents) * bytes,
			.device_off = (uint64_t)i * bytes, .bytes = bytes,
		};
	}
	for (i = nr; i > 1; i--) {
		uint32_t other = case_below(&random, i);
		struct omnikv_piece swap = pieces[i - 1];

		pieces[i - 1] = pieces[other];
		pieces[other] = swap;
	}
	for (i = 0; i < nr; i++)
		memset((char *)omnikv_pool_addr(s.pool, &pieces[i].extent) + pieces[i].extent_off, (int)(i * 7 + 1), bytes);
	if (stack_move(&s, false, pieces, nr < 1000 ? nr : 1000) < 0) {
		fprintf(stderr, "the first load failed\n");
		goto out;
	}
	first_s = now_s() - begin;
	do {
		struct timespec ms = { 0, 1000000 };

		nanosleep(&ms, NULL);
		if (omnikv_device_info(s.dev, &info))
			goto out;
	} while (info.host_mapped_bytes + info.host_refused_bytes < info.host_bytes && now_s() - begin < 60);
	mapped_s = now_s() - begin;

	/* There, forget, and back: every byte must be what it was. */
	if (stack_move(&s, false, pieces, nr) != (int64_t)nr * bytes)
		goto moved_wrong;
	for (i = 0; i < nr; i++)
		memset((char *)omnikv_pool_addr(s.pool, &pieces[i].extent) + pieces[i].extent_off, 0, bytes);
	if (stack_move(&s, true, pieces, nr) != (int64_t)nr * bytes)
		goto moved_wrong;
	for (i = 0; i < nr; i++) {
		const unsigned char *at = (const unsigned char *)omnikv_pool_addr(s.pool, &pieces[i].extent) + pieces[i].extent_off;

		if (at[0] != (unsigned char)(i * 7 + 1) || memcmp(at, at + 1, bytes - 1))
			goto moved_wrong;
	}
	for (round = 0; round < ROUNDS; round++) {
		double cpu_start = process_s();

		start = now_s();
		if (stack_move(&s, to_host, pieces, nr) != (int64_t)nr * bytes)
			goto moved_wrong;
		add(&rates, (double)nr * bytes / (now_s() - start) / 1e9);
		add(&cpu, (process_s() - cpu_start) / nr * 1e9);
	}
	result_begin("X1", "%s %u B through a ring, host scattered", to_host ? "D2H" : "H2D", bytes);
	figure("omnikv", &rates);
	result_end("GB/s", median(&rates), 0, "see the rows of the same size", true);
	result_begin("X2", "%s %u B through a ring, spinning included", to_host ? "D2H" : "H2D", bytes);
	figure("omnikv", &cpu);
	result_end("ns of CPU a piece", median(&cpu), 20, "at most 20 ns an extent", median(&cpu) <= 20);
	if (!to_host && bytes == 4096) {
		struct series first = { { first_s }, 1 };
		struct series mapped = { { mapped_s * 1e3 / ((double)info.host_bytes / (1u << 30)) }, 1 };

		result_begin("X7", "first transfer after attaching to %zu MiB", region_bytes >> 20);
		figure("omnikv", &first);
		result_end("s", first_s, 1, "within 1 s", first_s <= 1);
		result_begin("X7", "all of a pool of %zu MiB registered", region_bytes >> 20);
		figure("omnikv", &mapped);
		result_end("ms/GiB", median(&mapped), 25, "at most 25 ms/GiB a process", median(&mapped) <= 25);
	}
	free(extents);
	free(pieces);
	ret = 0;
	goto out;

moved_wrong:
	fprintf(stderr, "%u pieces of %u bytes: a wrong byte, or a transfer that failed\n", nr, bytes);
out:
	stack_close(&s);
	return ret;
}

/* ---- rows ------------------------------------------------------------------------------------- */

#define X8_DEPTH	8u
#define X8_BYTES	(EXTENT_GRANULES * 4096u)

static void load_one(struct stack *s, const struct omnikv_piece *piece)
{
	struct omnikv_sqe *sqe = omnikv_get_sqe(s->ring);

	if (!sqe) {
		fprintf(stderr, "the ring is full\n");
		exit(1);
	}
	omnikv_prep_load(sqe, s->hbm, piece, 1);
	if (omnikv_submit(s->ring) != 1) {
		fprintf(stderr, "a load was not taken\n");
		exit(1);
	}
}

/* Reap what has been loaded, @all of @nr or what is there; adds to *@done. */
static void loads_reap(struct stack *s, uint32_t nr, bool all, uint32_t *done)
{
	struct omnikv_cqe *cqe;

	while (*done < nr) {
		int ret = all ? omnikv_wait_cqe(s->ring, &cqe, UINT64_C(60) * 1000000000) : omnikv_peek_cqe(s->ring, &cqe);

		if (ret == -EAGAIN && !all)
			return;
		if (ret || cqe->res != X8_BYTES) {
			fprintf(stderr, "a load failed: %d\n", ret ? ret : (int)cqe->res);
			exit(1);
		}
		omnikv_cqe_seen(s->ring, cqe);
		(*done)++;
	}
}

/* Read all pieces from @fd into the pool, X8_DEPTH at a time; with @loads each goes on to the device. */
static void x8_read(struct stack *s, struct io_uring *io, int fd, const struct omnikv_piece *pieces, uint32_t nr, bool loads)
{
	uint32_t next = 0, nr_read = 0, nr_submitted = 0, nr_loaded = 0;

	while (nr_read < nr) {
		struct io_uring_cqe *cqe;

		while (next < nr && next - nr_read < X8_DEPTH) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(io);

			io_uring_prep_read(sqe, fd, omnikv_pool_addr(s->pool, &pieces[next].extent), X8_BYTES,
					   (uint64_t)next * X8_BYTES);
			io_uring_sqe_set_data64(sqe, next++);
		}
		if (io_uring_submit_and_wait(io, 1) < 0 || io_uring_peek_cqe(io, &cqe) || cqe->res != (int)X8_BYTES) {
			fprintf(stderr, "a read from disk failed\n");
			exit(1);
		}
		/* A bounded number of loads, so that the ring is never full. */
		if (loads) {
			load_one(s, &pieces[io_uring_cqe_get_data64(cqe)]);
			nr_submitted++;
			loads_reap(s, nr_submitted, nr_submitted - nr_loaded >= 64, &nr_loaded);
		}
		io_uring_cqe_seen(io, cqe);
		nr_read++;
	}
	if (loads)
		loads_reap(s, nr, true, &nr_loaded);
}

static void x8_fill(struct stack *s, const struct omnikv_piece *piece, uint32_t i)
{
	uint64_t *words = omnikv_pool_addr(s->pool, &piece->extent), k;

	for (k = 0; k < X8_BYTES / 8; k++)
		words[k] = ((uint64_t)i << 32 | k) * UINT64_C(0x9e3779b97f4a7c15);
}

static int x8(void)
{
	const char *dir = getenv("TMPDIR") ? getenv("TMPDIR") : "/var/tmp";
	uint32_t nr = (uint32_t)(region_bytes / 2 / X8_BYTES), i, done;
	struct series disk = { 0 }, h2d = { 0 }, both = { 0 }, cpu = { 0 };
	struct omnikv_device_info info = { .size = sizeof(info) };
	struct omnikv_error err = { "" };
	struct omnikv_extent *extents = calloc(nr, sizeof(*extents));
	struct omnikv_piece *pieces = calloc(nr, sizeof(*pieces));
	int fd = open(dir, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600), ret = 1, round;
	double begin, start, cpu_start, limit, bytes = (double)nr * X8_BYTES;
	struct io_uring io;
	struct stack s;
	const char *what;

	if (fd < 0)
		return cannot("TMPDIR is on a file system without O_DIRECT or O_TMPFILE; name one on a disk");
	if (io_uring_queue_init(2 * X8_DEPTH, &io, 0))
		return cannot("there is no io_uring here");
	what = stack_open(&s, &err);
	if (what) {
		ret = cannot(err.text[0] ? err.text : what);
		goto out;
	}
	if (!extents || !pieces || omnikv_hbm_create(s.dev, region_bytes / 2, &s.hbm) ||
	    omnikv_ring_init(s.client, s.dev, NULL, &s.ring, &err) ||
	    omnikv_extent_alloc(s.client, EXTENT_GRANULES, nr, NULL, 0, extents)) {
		fprintf(stderr, "no memory: %s\n", err.text);
		goto out;
	}
	for (i = 0; i < nr; i++) {
		pieces[i] = (struct omnikv_piece) { .extent = extents[i], .device_off = (uint64_t)i * X8_BYTES, .bytes = X8_BYTES };
		x8_fill(&s, &pieces[i], i);
		if (pwrite(fd, omnikv_pool_addr(s.pool, &extents[i]), X8_BYTES, (off_t)i * X8_BYTES) != (ssize_t)X8_BYTES) {
			ret = cannot("the disk at TMPDIR is full");
			goto out;
		}
	}
	fsync(fd);
	begin = now_s();
	do {
		struct timespec ms = { 0, 1000000 };

		nanosleep(&ms, NULL);
		if (omnikv_device_info(s.dev, &info))
			goto out;
	} while (info.host_mapped_bytes + info.host_refused_bytes < info.host_bytes && now_s() - begin < 60);
	for (round = 0; round < ROUNDS; round++) {
		start = now_s();
		x8_read(&s, &io, fd, pieces, nr, false);
		add(&disk, bytes / (now_s() - start) / 1e9);
		start = now_s();
		for (i = done = 0; i < nr; i++) {
			load_one(&s, &pieces[i]);
			loads_reap(&s, i + 1, i + 1 - done >= 64, &done);
		}
		loads_reap(&s, nr, true, &done);
		add(&h2d, bytes / (now_s() - start) / 1e9);
		for (i = 0; i < nr; i++)
			memset(omnikv_pool_addr(s.pool, &extents[i]), 0, X8_BYTES);
		cpu_start = process_s();
		start = now_s();
		x8_read(&s, &io, fd, pieces, nr, true);
		add(&both, bytes / (now_s() - start) / 1e9);
		add(&cpu, (process_s() - cpu_start) * 1e6 / (bytes / (1 << 20)));
	}
	/* What the device has is what was written to the file. */
	for (i = 0; i < nr; i++)
		memset(omnikv_pool_addr(s.pool, &extents[i]), 0, X8_BYTES);
	if (stack_move(&s, true, pieces, nr) != (int64_t)bytes)
		goto moved_wrong;
	for (i = 0; i < nr; i++) {
		const uint64_t *words = omnikv_pool_addr(s.pool, &extents[i]);
		uint64_t k;

		for (k = 0; k < X8_BYTES / 8; k++) {
			if (words[k] != ((uint64_t)i << 32 | k) * UINT64_C(0x9e3779b97f4a7c15))
				goto moved_wrong;
		}
	}
	limit = median(&disk) < median(&h2d) ? median(&disk) : median(&h2d);
	result_begin("X8", "from a file at %s to the device through the pool, 2 MiB at a time", dir);
	figure("disk to device", &both);
	figure("disk to pool", &disk);
	figure("pool to device", &h2d);
	result_end("GB/s", median(&both), limit, "at least 0.95 of the smaller", median(&both) >= 0.95 * limit);
	result_begin("X8", "CPU time of that, spinning included");
	figure("omnikv", &cpu);
	result_end("us of CPU a MiB", median(&cpu), 0, "", true);
	ret = 0;
	goto out;

moved_wrong:
	fprintf(stderr, "from disk to device: a wrong byte, or a transfer that failed\n");
out:
	stack_close(&s);
	io_uring_queue_exit(&io);
	close(fd);
	free(extents);
	free(pieces);
	return ret;
}

static const uint32_t x1_sizes[] = { 576, 656, 1152, 4096, 8192, 32768, 65536 };

/* @name: as printed by list. Returns the status of the program. */
static int row_run(const char *name)
{
	static const char *const directions[] = { "h2d", "d2h" };
	char text[64];
	size_t i;
	int d;

	for (i = 0; i < sizeof(x1_sizes) / sizeof(x1_sizes[0]); i++) {
		for (d = 0; d < 2; d++) {
			snprintf(text, sizeof(text), "X1-%s-%u", directions[d], x1_sizes[i]);
			if (!strcmp(text, name))
				return x1(x1_sizes[i], d);
			snprintf(text, sizeof(text), "ring-%s-%u", directions[d], x1_sizes[i]);
			if (!strcmp(text, name))
				return stack_row(x1_sizes[i], d);
		}
		snprintf(text, sizeof(text), "X2-%u", x1_sizes[i]);
		if (!strcmp(text, name))
			return x2(x1_sizes[i]);
	}
	if (!strcmp(name, "X3-compute") || !strcmp(name, "X3-read"))
		return x3(!strcmp(name, "X3-read"));
	if (!strcmp(name, "X4-engine") || !strcmp(name, "X4-kernel"))
		return x4(!strcmp(name, "X4-kernel"));
	if (!strcmp(name, "X7-4k") || !strcmp(name, "X7-2m"))
		return x7_register(!strcmp(name, "X7-2m"));
	if (!strcmp(name, "X8"))
		return x8();
	fprintf(stderr, "%s: no such row; see measure_rows list\n", name);
	return 2;
}

static void list(void)
{
	size_t i;

	for (i = 0; i < sizeof(x1_sizes) / sizeof(x1_sizes[0]); i++)
		printf("X1-h2d-%u\nX1-d2h-%u\n", x1_sizes[i], x1_sizes[i]);
	printf("X2-576\nX2-4096\nX3-compute\nX3-read\nX4-engine\nX4-kernel\nX7-4k\nX7-2m\n");
	printf("ring-h2d-4096\nring-d2h-4096\nring-h2d-576\nring-d2h-576\nring-h2d-65536\nring-d2h-65536\nX8\n");
}

int main(int argc, char **argv)
{
	const char *mib = getenv("OMNIKV_GPU_MIB");
	struct omnikv_error err = { "" };
	int ret;

	if (argc == 2 && !strcmp(argv[1], "list")) {
		list();
		return 0;
	}
	if (!(argc == 3 && !strcmp(argv[1], "run")) && !(argc == 2 && !strcmp(argv[1], "card"))) {
		fprintf(stderr, "usage: measure_rows list | measure_rows card | measure_rows run NAME\n");
		return 2;
	}
	region_bytes = (size_t)(mib ? strtoul(mib, NULL, 10) : 1024) << 20;
	if (!region_bytes || region_bytes > (size_t)64 << 30) {
		fprintf(stderr, "OMNIKV_GPU_MIB: not 1 to 65536\n");
		return 2;
	}
	if (card_open(&card, &err))
		return cannot(err.text);
	if (!strcmp(argv[1], "card")) {
		printf("{\"card\": \"%s\", \"compute\": %d, \"sms\": %d, \"cuda\": %d, \"built\": \"%s\"}\n", card.name, card.compute,
		       card.nr_sms, card.drv.version, okv_kernels_build());
		return 0;
	}
	ret = row_run(argv[2]);
	if (!ret)
		card_close(&card);
	return ret;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * One GPU for checks and measurements. See gpu_card.h.
 *
 * The primary context of the first GPU, kept current for the calling thread.
 */
#include "gpu_card.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define HUGE_BYTES	((size_t)2 << 20)

void card_must(const struct gpu_card *card, int error, const char *what)
{
	char text[128];

	if (!error)
		return;
	fflush(stdout);
	fprintf(stderr, "%s: %s\n", what, okv_cuda_error_text(&card->drv, error, text, sizeof(text)));
	exit(1);
}

int card_open(struct gpu_card *card, struct omnikv_error *err)
{
	int count = 0, major = 0, minor = 0, i, ret;
	const void *fatbin;
	size_t bytes;

	memset(card, 0, sizeof(*card));
	ret = okv_cuda_driver_open(&card->drv, err);
	if (ret)
		return -ENODEV;
	if (card->drv.cuDeviceGetCount(&count) || !count) {
		snprintf(err->text, sizeof(err->text), "the driver is there, but no GPU");
		goto err_close;
	}
	fatbin = okv_kernels_fatbin(&bytes);
	if (!fatbin) {
		snprintf(err->text, sizeof(err->text), "%s", okv_kernels_build());
		goto err_close;
	}
	CARD(card, cuDeviceGet(&card->device, 0));
	CARD(card, cuDeviceGetName(card->name, sizeof(card->name), card->device));
	CARD(card, cuDeviceGetAttribute(&card->nr_sms, OKV_CU_ATTRIBUTE_MULTIPROCESSOR_COUNT, card->device));
	CARD(card, cuDeviceGetAttribute(&major, OKV_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, card->device));
	CARD(card, cuDeviceGetAttribute(&minor, OKV_CU_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, card->device));
	card->compute = 10 * major + minor;
	CARD(card, cuDevicePrimaryCtxRetain(&card->context, card->device));
	CARD(card, cuCtxSetCurrent(card->context));
	CARD(card, cuModuleLoadData(&card->module, fatbin));
	for (i = 0; i < OKV_KERNEL_NR; i++)
		CARD(card, cuModuleGetFunction(&card->kernels[i], card->module, okv_kernels[i].symbol));
	CARD(card, cuStreamCreateWithPriority(&card->stream, OKV_CU_STREAM_NON_BLOCKING, 0));
	return 0;

err_close:
	okv_cuda_driver_close(&card->drv);
	return -ENODEV;
}

void card_close(struct gpu_card *card)
{
	CARD(card, cuStreamSynchronize(card->stream));
	CARD(card, cuStreamDestroy(card->stream));
	CARD(card, cuModuleUnload(card->module));
	CARD(card, cuCtxSetCurrent(NULL));
	CARD(card, cuDevicePrimaryCtxRelease(card->device));
	okv_cuda_driver_close(&card->drv);
}

struct gpu_host card_host(struct gpu_card *card, size_t bytes)
{
	struct gpu_host host = { .bytes = (bytes + HUGE_BYTES - 1) / HUGE_BYTES * HUGE_BYTES };
	unsigned char *ptr = mmap(NULL, host.bytes + HUGE_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t head;

	if (ptr == MAP_FAILED) {
		fprintf(stderr, "no memory for %zu bytes\n", bytes);
		exit(1);
	}
	head = (HUGE_BYTES - (uintptr_t)ptr % HUGE_BYTES) % HUGE_BYTES;
	if (head)
		munmap(ptr, head);
	if (HUGE_BYTES - head)
		munmap(ptr + head + host.bytes, HUGE_BYTES - head);
	host.ptr = ptr + head;
	madvise(host.ptr, host.bytes, MADV_HUGEPAGE);
	memset(host.ptr, 0, host.bytes);
	CARD(card, cuMemHostRegister(host.ptr, host.bytes, OKV_CU_MEMHOSTREGISTER_PORTABLE | OKV_CU_MEMHOSTREGISTER_DEVICEMAP));
	CARD(card, cuMemHostGetDevicePointer(&host.device, host.ptr, 0));
	return host;
}

void card_host_free(struct gpu_card *card, struct gpu_host *host)
{
	CARD(card, cuMemHostUnregister(host->ptr));
	munmap(host->ptr, host->bytes);
}

uint64_t card_alloc(struct gpu_card *card, size_t bytes)
{
	uint64_t ptr = 0;

	CARD(card, cuMemAlloc(&ptr, bytes));
	return ptr;
}

static int launch(void *ctx, enum okv_kernel kernel, uint32_t nr_ctas, const void *args)
{
	struct gpu_card *card = ctx;
	void *params[] = { (void *)(uintptr_t)args };

	CARD(card, cuLaunchKernel(card->kernels[kernel], nr_ctas, 1, 1, okv_kernels[kernel].cta_threads, 1, 1, 0, card->stream,
				  params, NULL));
	return 0;
}

const struct okv_kernel_ops card_ops = { .name = "card", .launch = launch };

void *card_event(struct gpu_card *card)
{
	void *event = NULL;

	CARD(card, cuEventCreate(&event, OKV_CU_EVENT_DEFAULT));
	return event;
}

double card_seconds(struct gpu_card *card, void *from, void *to)
{
	float ms = 0;

	CARD(card, cuEventElapsedTime(&ms, from, to));
	return (double)ms / 1e3;
}

static double clock_s(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

double now_s(void)
{
	return clock_s(CLOCK_MONOTONIC);
}

double cpu_s(void)
{
	return clock_s(CLOCK_THREAD_CPUTIME_ID);
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

double middle(double *values, int nr)
{
	qsort(values, (size_t)nr, sizeof(*values), compare);
	return nr % 2 ? values[nr / 2] : (values[nr / 2 - 1] + values[nr / 2]) / 2;
}

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * One GPU for checks and measurements: the library's own table of the driver, its fatbin, pinned and device memory.
 *
 * Programs that use this end with a message and status 1 at the first error of the driver. One thread.
 */
#ifndef OKV_TEST_GPU_CARD_H
#define OKV_TEST_GPU_CARD_H

#include <stdint.h>

#include <omnikv.h>

#include "device_cuda.h"
#include "kernels/kernels.h"

struct gpu_card {
	struct okv_cuda_driver	drv;
	int			device;
	void			*context;
	void			*module;
	void			*kernels[OKV_KERNEL_NR];
	void			*stream;
	char			name[96];
	int			compute;	/* 90 is 9.0 */
	int			nr_sms;
};

/** Memory of this machine that the device reaches. */
struct gpu_host {
	unsigned char	*ptr;
	uint64_t	device;		/* its address there */
	size_t		bytes;
};

/** 0, or -ENODEV (no driver, no GPU, or no code for it) with the reason in @err. */
int card_open(struct gpu_card *card, struct omnikv_error *err);
void card_close(struct gpu_card *card);
/** End the program where @error of the driver is not 0. */
void card_must(const struct gpu_card *card, int error, const char *what);
#define CARD(card, call)	card_must(card, (card)->drv.call, #call)

/** Pinned memory in 2-MiB pages where the kernel gives them, touched. */
struct gpu_host card_host(struct gpu_card *card, size_t bytes);
void card_host_free(struct gpu_card *card, struct gpu_host *host);
uint64_t card_alloc(struct gpu_card *card, size_t bytes);

/** Kernels on card->stream; @ctx is the card. */
extern const struct okv_kernel_ops card_ops;

void *card_event(struct gpu_card *card);
/** Seconds between two recorded events, of which the second has been reached. */
double card_seconds(struct gpu_card *card, void *from, void *to);
/** CLOCK_MONOTONIC. */
double now_s(void);
/** CPU time of the calling thread. */
double cpu_s(void);
/** The middle of @nr values, which are sorted. */
double middle(double *values, int nr);

#endif /* OKV_TEST_GPU_CARD_H */

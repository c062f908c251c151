/* SPDX-License-Identifier: MIT */
/*
 * Running kernels on the CPU: one fibre a thread, where threads wait for each other.
 *
 * A CTA's threads run one after another on the calling thread until they end or meet a barrier or a warp operation;
 * those are the only points at which another thread runs. What a kernel leaves unordered shows when the order of its
 * threads is changed (struct okv_shim), and shared memory holds 0xa5 when a CTA begins. Launches of a process take
 * turns, since shared memory is static.
 *
 * Not seen: the order in which stores become visible to other threads between two barriers, bank conflicts, time.
 */
#ifndef OKV_SHIM_RUN_H
#define OKV_SHIM_RUN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/** In what order the threads of a CTA run. */
enum okv_shim_order {
	OKV_SHIM_FORWARD,
	OKV_SHIM_BACKWARD,
	OKV_SHIM_RANDOM,
};

/**
 * struct okv_shim - what okv_kernels_shim takes as @ctx, all zero or NULL for the defaults
 * @order:       of threads, within what barriers allow
 * @seed:        of RANDOM
 * @missing:     the barrier of a CTA that is left out, counted from 1 as each thread meets them; 0: none
 * @nr_waits:    result, raised by the times that a thread waited
 * @divergence:  result, of -EDEADLK: one line that says who waits where
 */
struct okv_shim {
	enum okv_shim_order	order;
	uint64_t		seed;
	uint32_t		missing;
	uint64_t		nr_waits;
	char			divergence[160];
};

struct okv_shim_index {
	uint32_t	x;
	uint32_t	y;
	uint32_t	z;
};

/** The running thread's place; what cuda.h makes threadIdx and its kin of. */
struct okv_shim_place {
	struct okv_shim_index	thread;
	struct okv_shim_index	cta;
	struct okv_shim_index	cta_threads;
	struct okv_shim_index	nr_ctas;
};

extern struct okv_shim_place okv_shim_place;

/** A CTA-wide barrier at @line of @file. */
void okv_shim_barrier(const char *file, int line);
/**
 * A warp operation of the lanes in @mask: publish @value, wait for all of them, read the value of lane @from (this
 * lane's own where that is not 0 to 31).
 */
uint32_t okv_shim_shuffle(const char *file, int line, uint32_t mask, uint32_t value, uint32_t from);

/**
 * okv_shim_run() - run @fn(@args) for every thread of @nr_ctas CTAs
 * @cta_threads: 1 to 1024
 *
 * Return: 0, -ENOMEM, or -EDEADLK where threads wait for what cannot come.
 */
int okv_shim_run(struct okv_shim *shim, uint32_t nr_ctas, uint32_t cta_threads, void (*fn)(const void *args),
		 const void *args);

#ifdef __cplusplus
}
#endif

#endif /* OKV_SHIM_RUN_H */

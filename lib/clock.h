/* SPDX-License-Identifier: MIT */
/*
 * The clock of deadlines: CLOCK_MONOTONIC in nanoseconds. Any thread.
 *
 * Code that is simulated asks its disk or its device for the time instead.
 */
#ifndef OKV_CLOCK_H
#define OKV_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t okv_monotonic_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/** The same to some ms, for a tenth of the price. */
static inline uint64_t okv_monotonic_rough_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC_COARSE, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

#endif /* OKV_CLOCK_H */

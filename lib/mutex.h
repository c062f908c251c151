/* SPDX-License-Identifier: MIT */
/*
 * A mutex that is waited for until a deadline only. Any thread.
 *
 * Owns nothing; the mutex is the caller's, and is unlocked as any other.
 */
#ifndef OKV_MUTEX_H
#define OKV_MUTEX_H

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <time.h>

#include "clock.h"

/* GCC says it by a macro, clang by a feature. */
#if defined(__SANITIZE_THREAD__)
#define OKV_HAVE_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define OKV_HAVE_TSAN 1
#endif
#endif

/** 0, or -ETIME when others have held @mutex until CLOCK_MONOTONIC was @until_ns. */
static inline int okv_mutex_lock_until(pthread_mutex_t *mutex, uint64_t until_ns)
{
#ifdef OKV_HAVE_TSAN
	/* Thread sanitizers before GCC 13's do not know pthread_mutex_clocklock(): a try now and then. */
	const struct timespec pause = { 0, 200000 };

	while (pthread_mutex_trylock(mutex)) {
		if (okv_monotonic_ns() >= until_ns)
			return -ETIME;
		nanosleep(&pause, NULL);
	}
	return 0;
#else
	const struct timespec until = { (time_t)(until_ns / 1000000000u), (long)(until_ns % 1000000000u) };

	return pthread_mutex_clocklock(mutex, CLOCK_MONOTONIC, &until) ? -ETIME : 0;
#endif
}

#endif /* OKV_MUTEX_H */

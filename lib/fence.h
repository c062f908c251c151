/* SPDX-License-Identifier: MIT */
/*
 * Fences between atomic operations.
 *
 * gcc's thread sanitizer knows none and refuses to compile them; under it an atomic operation on a word of
 * nobody's takes their place, which orders at least as much. Header only, any thread.
 */
#ifndef OKV_FENCE_H
#define OKV_FENCE_H

#include <stdatomic.h>

static inline void okv_fence(memory_order order)
{
#ifdef __SANITIZE_THREAD__
	static _Atomic unsigned int word;

	(void)order;
	atomic_fetch_add(&word, 0);
#else
	atomic_thread_fence(order);
#endif
}

#endif /* OKV_FENCE_H */

/* SPDX-License-Identifier: MIT */
/*
 * Bring a line of memory close before it is read.
 *
 * Header only. Any thread; the memory need not even be mapped.
 */
#ifndef OKV_PREFETCH_H
#define OKV_PREFETCH_H

/* gcc takes __builtin_prefetch() for something without effect, and drops calls of functions that do little else. */
static inline void okv_prefetch(const void *mem)
{
#if defined(__x86_64__)
	__asm__ volatile("prefetcht0 %0" : : "m"(*(const char *)mem));
#else
	__builtin_prefetch(mem);
#endif
}

#endif /* OKV_PREFETCH_H */

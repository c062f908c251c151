/* SPDX-License-Identifier: MIT */
/*
 * Sleeping on a 32-bit word of this process. Any thread.
 *
 * The sleeper sets its word to 1, looks once more for work, and waits while the word is 1; who
 * makes work looks at the word afterwards. Both sides are sequentially consistent, so one of
 * them sees the other.
 */
#ifndef OKV_FUTEX_H
#define OKV_FUTEX_H

#include <linux/futex.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/** Wait while *@word is @value, for at most @timeout_ns (UINT64_MAX: for ever). May return early. */
static inline void okv_futex_wait(_Atomic uint32_t *word, uint32_t value, uint64_t timeout_ns)
{
	struct timespec ts = {
		.tv_sec = (time_t)(timeout_ns / 1000000000u),
		.tv_nsec = (long)(timeout_ns % 1000000000u),
	};

	syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout_ns == UINT64_MAX ? NULL : &ts, NULL, 0);
}

static inline void okv_futex_wake(_Atomic uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

/** Wake whoever sleeps on @word, without a system call where nobody does. */
static inline void okv_sleeper_wake(_Atomic uint32_t *word)
{
	if (atomic_load(word) && atomic_exchange(word, 0))
		okv_futex_wake(word);
}

static inline void okv_cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#endif
}

#endif /* OKV_FUTEX_H */

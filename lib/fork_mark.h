/* SPDX-License-Identifier: MIT */
/*
 * A word by which a process sees that it is a forked child: mappings of a pool are not there then, and what lies at
 * their addresses is not ours.
 *
 * The kernel clears its page in children, so that looking costs no system call. Header only; any thread.
 */
#ifndef OKV_FORK_MARK_H
#define OKV_FORK_MARK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>

#define OKV_FORK_MARK_BYTES	4096u

/** NULL: no memory. */
static inline uint32_t *okv_fork_mark_new(void)
{
	uint32_t *mark = mmap(NULL, OKV_FORK_MARK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (mark == MAP_FAILED)
		return NULL;
	if (madvise(mark, OKV_FORK_MARK_BYTES, MADV_WIPEONFORK)) {
		munmap(mark, OKV_FORK_MARK_BYTES);
		return NULL;
	}
	*mark = 1;
	return mark;
}

/** NULL is ignored. */
static inline void okv_fork_mark_free(uint32_t *mark)
{
	if (mark)
		munmap(mark, OKV_FORK_MARK_BYTES);
}

static inline bool okv_is_forked(const uint32_t *mark)
{
	return !__atomic_load_n(mark, __ATOMIC_RELAXED);
}

#endif /* OKV_FORK_MARK_H */

/* SPDX-License-Identifier: MIT */
/*
 * Windows: a reserved contiguous virtual range onto which parts of extents are bound.
 *
 * Step 1 reserves (omnikv_window_create), step 2 binds. Touching a part that nothing is
 * bound to raises SIGBUS or SIGSEGV, never returns foreign bytes.
 */
#ifndef OMNIKV_WINDOW_H
#define OMNIKV_WINDOW_H

#include <omnikv/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct omnikv_window;

/** RO: extents that the client leases. RW: its own PRIVATE extents; sealing them unbinds. */
#define OMNIKV_WINDOW_F_RW	(1u << 0)
#define OMNIKV_WINDOW_F_ALL	0x1u

/**
 * struct omnikv_bind - one part of an extent and its place in a window
 * @extent:     source; must be leased (RO) or PRIVATE and own (RW)
 * @extent_off: bytes from the start of the extent, a multiple of 4096
 * @window_off: bytes from the start of the window, a multiple of 4096
 * @bytes:      a multiple of 4096, not 0
 */
struct omnikv_bind {
	struct omnikv_extent	extent;
	uint64_t		extent_off;
	uint64_t		window_off;
	uint64_t		bytes;
};

/** Reserve @bytes (a multiple of 4096) of address space. Nothing is mapped yet. */
OMNIKV_API int omnikv_window_create(struct omnikv_client *client, uint64_t bytes, uint32_t flags,
				    struct omnikv_window **window);
/** Also done for windows that are left when their client is closed. */
OMNIKV_API void omnikv_window_destroy(struct omnikv_window *window);
OMNIKV_API void *omnikv_window_base(const struct omnikv_window *window);

/**
 * omnikv_window_bind() - bind @count parts, in order, stopping at the first error
 * @nr_bound: how many were bound; may be NULL
 *
 * Binding over an existing bind replaces it. Each bind counts as a reference on its extent.
 *
 * Return: 0, or -EINVAL (misaligned, outside window or extent), -EPERM (state or owner does
 * not fit the window's kind), -ESTALE, -ENOMEM (the host's limit on mappings; see vm.max_map_count),
 * -EOPNOTSUPP (an embedded pool on the host's huge-page pool binds whole 2-MiB pages only; open it
 * with OMNIKV_POOL_F_NO_HUGETLB for finer binds).
 */
OMNIKV_API int omnikv_window_bind(struct omnikv_window *window, const struct omnikv_bind *binds,
				  uint32_t count, uint32_t *nr_bound);
/**
 * omnikv_window_unbind() - unbind everything in [@off, @off + @bytes)
 *
 * Unbound parts are skipped. Return: 0, -EINVAL (misaligned, outside the window, empty), or -ENOMEM
 * (the host's limit on mappings, taken up by others meanwhile: some parts are still bound).
 */
OMNIKV_API int omnikv_window_unbind(struct omnikv_window *window, uint64_t off, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif /* OMNIKV_WINDOW_H */

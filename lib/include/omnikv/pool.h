/* SPDX-License-Identifier: MIT */
/*
 * Pools of host memory, their clients, and the extents allocated in them.
 *
 * A pool is one trust domain: pinned (or at least resident) host memory cut into
 * granules. A client is one user of a pool; what it allocates, leases or has in
 * flight ends with it. The same calls work on every provider: the embedded one
 * (a memfd or a named file of this process) and the kernel module.
 *
 * Pool and client calls may come from any thread.
 */
#ifndef OMNIKV_POOL_H
#define OMNIKV_POOL_H

#include <omnikv/types.h>

#ifdef __cplusplus
extern "C" {
#endif

struct omnikv_pool;
struct omnikv_client;

#define OMNIKV_NODES_MAX	64

/** Pages that back a pool, best first. */
enum omnikv_page_kind {
	OMNIKV_PAGES_HUGETLB,	/* 2-MiB pages taken from the host's huge-page pool */
	OMNIKV_PAGES_THP,	/* transparent huge pages */
	OMNIKV_PAGES_SMALL,	/* 4-KiB pages */
};

/** Refuse with -ENOMEM rather than fall back to small pages. */
#define OMNIKV_POOL_F_REQUIRE_HUGE	(1u << 0)
/** Open an existing named pool; -ENOENT when there is none. */
#define OMNIKV_POOL_F_OPEN_ONLY		(1u << 1)
/** Leave pages untouched at open; they are populated by their first use. */
#define OMNIKV_POOL_F_NO_POPULATE	(1u << 2)
/** Take no pages from the host's huge-page pool: windows on those can only bind whole 2-MiB pages. */
#define OMNIKV_POOL_F_NO_HUGETLB	(1u << 3)
#define OMNIKV_POOL_F_ALL		0xfu

/** Called from the opening thread while a pool is populated. @done and @total in bytes. */
typedef void (*omnikv_progress_fn)(void *opaque, uint64_t done_bytes, uint64_t total_bytes);
/** Called at most once an open, with one line for the operator (for instance: small pages, and why). */
typedef void (*omnikv_notice_fn)(void *opaque, const char *line);

/**
 * struct omnikv_pool_config - how to open a pool
 * @size:          sizeof(struct omnikv_pool_config)
 * @flags:         OMNIKV_POOL_F_*
 * @granule_bytes: a multiple of 4096; 0 is 4096. An existing pool must agree or 0 be given.
 * @nr_threads:    threads that populate; 0 is one for every allowed CPU
 * @numa:          "bind:0,1", "interleave:0-1", "prefer:0", or NULL for the kernel's default
 * @progress:      may be NULL
 * @notice:        may be NULL
 * @opaque:        handed to both
 */
struct omnikv_pool_config {
	size_t			size;
	uint32_t		flags;
	uint32_t		granule_bytes;
	uint32_t		nr_threads;
	uint32_t		reserved;
	const char		*numa;
	omnikv_progress_fn	progress;
	omnikv_notice_fn	notice;
	void			*opaque;
};

/**
 * omnikv_size_parse() - a size as users type it
 * @text:  digits, optionally a fraction, then K, M, G or T (powers of 1024) or nothing for bytes
 * @bytes: result
 *
 * "4G", "512M", "129.5M", "65536". Everything else ("10 GB", "10GiB", "1e10", "-1",
 * a fraction of a byte, more than 2^63 - 1) is -EINVAL, with the reason in @err.
 */
OMNIKV_API int omnikv_size_parse(const char *text, uint64_t *bytes, struct omnikv_error *err);

/**
 * omnikv_pool_open() - create or open a pool
 * @spec:   "SIZE", "embedded:SIZE", "embedded:SIZE:FILE", "kmod:NAME", "auto:SIZE", "auto:SIZE:NAME",
 *          "daemon" or "daemon:SOCKET"
 * @config: NULL for defaults
 * @pool:   result; close with omnikv_pool_close()
 * @err:    may be NULL
 *
 * A pool on FILE survives the process: what was SEALED or META is there again at the
 * next open, PRIVATE extents of dead clients are freed. It has one owner at a time.
 *
 * "auto" is the module where it is loaded and lets this user make pools, else memory of this process
 * (@notice says why). With NAME it is the module's pool of that name, made with SIZE where it is not
 * there yet, and it stays; without, a pool that ends with its last user. SIZE is rounded up to 2 MiB.
 *
 * "daemon" is the pool of the omnikvd at SOCKET, or at the system's: of the module, which is opened as kmod:NAME
 * would be, or memory that the daemon shares. While the daemon is away allocation lives on a private reserve,
 * leases, windows and transfers go on, and the rest is -ENOTCONN; afterwards all goes on by itself. A manager of one's own
 * such a pool can have only where omnikvd runs with --manager=no; else the daemon has it: omnikv_manager_attach().
 *
 * Return: 0, or -EINVAL (spec, size below one granule, unaligned granule), -ENOMEM
 * (memory or huge pages short), -EBUSY (FILE is open elsewhere; @err names the holder),
 * -EBADMSG (FILE is no pool, or of another version or geometry; @err names the field),
 * -ENOENT, -EACCES (the module's pool is another user's, or the daemon's socket not for this one), -EDQUOT (the module's
 * limits, or the daemon has as many clients as it may), -ENOSPC (file system full), -EOPNOTSUPP (no module), -ECONNREFUSED or
 * -EPIPE (the daemon is not there, or ended meanwhile), -EPERM (it refuses this user), -EMFILE (this process cannot have more
 * open files). A file that this call began is taken away again.
 */
OMNIKV_API int omnikv_pool_open(const char *spec, const struct omnikv_pool_config *config,
				struct omnikv_pool **pool, struct omnikv_error *err);
/** All clients must be closed. Extents of an anonymous pool go with it. */
OMNIKV_API void omnikv_pool_close(struct omnikv_pool *pool);

/**
 * struct omnikv_pool_info - exact accounting, all in bytes
 *
 * usable = sum of state_bytes = nr_granules x granule_bytes;
 * asked - usable = asked % granule_bytes; all that the pool maps = usable + overhead.
 */
struct omnikv_pool_info {
	size_t		size;
	uint64_t	asked_bytes;		/* what the spec said */
	uint64_t	usable_bytes;		/* whole granules that extents can use */
	uint64_t	overhead_bytes;		/* headers, extent table, rounding to whole pages */
	uint64_t	free_bytes;		/* of usable: FREE */
	uint64_t	state_bytes[OMNIKV_EXTENT_NR_STATES];
	uint64_t	nr_extents[OMNIKV_EXTENT_NR_STATES];	/* [OMNIKV_EXTENT_FREE]: free runs */
	uint64_t	largest_free_bytes;
	uint64_t	nr_granules;
	uint32_t	granule_bytes;
	uint32_t	nr_clients;
	uint32_t	page_kind;		/* enum omnikv_page_kind */
	uint32_t	nr_nodes;
	uint64_t	node_bytes[OMNIKV_NODES_MAX];	/* resident bytes on each NUMA node */
	uint8_t		instance[16];		/* random at creation, kept for the pool's life */
	uint64_t	nr_placed;		/* extents ever allocated */
	uint64_t	nr_runs_begun;		/* those not right behind the one before: mean run = placed / begun */
};

OMNIKV_API int omnikv_pool_info(struct omnikv_pool *pool, struct omnikv_pool_info *info);

/** Start of the linear map; extent e begins at base + e.granule x granule_bytes. */
OMNIKV_API void *omnikv_pool_base(const struct omnikv_pool *pool);
OMNIKV_API uint32_t omnikv_pool_granule_bytes(const struct omnikv_pool *pool);
/** Address of an extent in the linear map. The name is not checked: hold a lease or own it. */
OMNIKV_API void *omnikv_pool_addr(const struct omnikv_pool *pool, const struct omnikv_extent *ext);

/**
 * The client manages the pool: it may free SEALED extents and allocate META. One at a time (-EBUSY). -EALREADY: it is the
 * pool of an omnikvd that manages it; omnikv_manager_attach() shares that cache.
 */
#define OMNIKV_CLIENT_F_MANAGER		(1u << 0)
#define OMNIKV_CLIENT_F_ALL		0x1u

/** -EDQUOT: the daemon of the pool has as many clients as it may; -EMFILE: this process cannot have more open files. */
OMNIKV_API int omnikv_client_open(struct omnikv_pool *pool, uint32_t flags,
				  struct omnikv_client **client);
/**
 * omnikv_client_close() - end a client and all that it holds
 *
 * Its windows and leases end, its PRIVATE extents are given up. Extents that a transfer still uses
 * wait in QUARANTINED until that transfer is over; omnikv_extent_io_put() is the one call that may
 * still name the client until then.
 */
OMNIKV_API void omnikv_client_close(struct omnikv_client *client);
OMNIKV_API struct omnikv_pool *omnikv_client_pool(const struct omnikv_client *client);

/** Leave the bytes as they are; only for pools whose clients trust one another. */
#define OMNIKV_ALLOC_F_NO_ZERO		(1u << 0)
/** Allocate in META; managers only. */
#define OMNIKV_ALLOC_F_META		(1u << 1)
#define OMNIKV_ALLOC_F_ALL		0x3u

/**
 * omnikv_extent_alloc() - allocate @count extents of @nr_granules each, all or none
 * @after: the extents are placed behind this one where that is free, each after the last; may be NULL
 * @out:   [count], PRIVATE (or META), owned by @client
 *
 * Return: 0, or -ENOSPC (with nothing allocated), -EINVAL (count or nr_granules 0, unknown
 * flag), -EPERM (META by other than the manager), -ENOMEM. Of a daemon's pool also -ENOTCONN, -EPIPE, -ETIME or -EPROTO: it
 * is away, or gives no answer, and the client's reserve has none; -EPERM in a forked child.
 */
OMNIKV_API int omnikv_extent_alloc(struct omnikv_client *client, uint32_t nr_granules, uint32_t count,
				   const struct omnikv_extent *after, uint32_t flags,
				   struct omnikv_extent *out);

/*
 * The calls below take a list and are all or nothing: on an error no extent has changed.
 * -ESTALE: a name is of an older generation or no extent begins there; -EPERM: not this
 * client's to do; -EINVAL: wrong length in the name, or a name twice; -EBUSY: state forbids it.
 */

/**
 * PRIVATE -> SEALED by its owner, out of its RW windows. The caller has reaped its own transfers into
 * them (-EBUSY else). -ENOMEM (see omnikv_window_unbind()): none is sealed, some are still bound.
 */
OMNIKV_API int omnikv_extent_seal(struct omnikv_client *client, const struct omnikv_extent *exts,
				  uint32_t count);
/** PRIVATE by its owner, SEALED and META by the manager. Freed at once, or after the last lease, bind or transfer. */
OMNIKV_API int omnikv_extent_free(struct omnikv_client *client, const struct omnikv_extent *exts,
				  uint32_t count);
/** Count a right to read SEALED extents (nestable); they are not re-used before omnikv_extent_release(). */
OMNIKV_API int omnikv_extent_lease(struct omnikv_client *client, const struct omnikv_extent *exts,
				   uint32_t count);
OMNIKV_API int omnikv_extent_release(struct omnikv_client *client, const struct omnikv_extent *exts,
				     uint32_t count);
/** A transfer begins or ends: as a lease, but also on the client's own PRIVATE extents. Used by rings. */
OMNIKV_API int omnikv_extent_io_get(struct omnikv_client *client, const struct omnikv_extent *exts,
				    uint32_t count);
OMNIKV_API void omnikv_extent_io_put(struct omnikv_client *client, const struct omnikv_extent *exts,
				     uint32_t count);

struct omnikv_extent_info {
	size_t		size;
	uint32_t	state;		/* OMNIKV_EXTENT_* */
	uint32_t	nr_refs;	/* leases + binds + transfers */
	uint64_t	bytes;
	bool		is_mine;	/* PRIVATE of this client */
};

OMNIKV_API int omnikv_extent_query(struct omnikv_client *client, const struct omnikv_extent *ext,
				   struct omnikv_extent_info *info);

/**
 * omnikv_extent_list() - extents in order of their place
 * @states: bit per OMNIKV_EXTENT_* state. PRIVATE lists the client's own; SEALED and META are the
 *          manager's to list (-EPERM)
 * @from:   first granule to look at; moved behind the last one listed, UINT64_MAX at the end
 * @exts:   [max] results
 *
 * Extents may come and go between calls; each one that stays is listed once.
 *
 * Return: how many were written, or -EINVAL (no or another state, @max 0), -EPERM.
 */
OMNIKV_API int64_t omnikv_extent_list(struct omnikv_client *client, uint32_t states, uint64_t *from,
				      struct omnikv_extent *exts, uint32_t max);

#ifdef __cplusplus
}
#endif

#endif /* OMNIKV_POOL_H */

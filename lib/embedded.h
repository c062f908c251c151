/* SPDX-License-Identifier: MIT */
/*
 * Inside the embedded provider: a pool in this process, on a memfd or a file.
 *
 * provider_memfd.c owns the memory and the pool's life, client.c the clients and extents,
 * window.c the windows, share.c what other processes hold of a shared pool. provider_daemon.c, the
 * other end of that, uses the same structs and windows. Locks, outermost first:
 *
 *	lock                   guards                                   may then take
 *	client->windows_lock   the client's windows and their binds     pool->lock
 *	pool->lock             extent map, clients, what they hold      -
 *
 * pool->lock is never held across a system call, except while a client ends.
 */
#ifndef OKV_EMBEDDED_H
#define OKV_EMBEDDED_H

#include <pthread.h>

#include "core/extent.h"
#include "hold.h"
#include "lease.h"
#include "provider.h"

#define OKV_HUGE_BYTES	(UINT64_C(2) << 20)

struct okv_embedded_client;
struct okv_embedded_window;

/**
 * struct okv_ref_ops - how binds of windows are counted; the caller holds the pool's lock
 * @bind_get: may the client bind the extent? Then one reference more is counted. The caller sees to the hold.
 */
struct okv_ref_ops {
	int	(*bind_get)(struct okv_embedded_client *client, const struct omnikv_extent *ext, bool is_rw);
	void	(*bind_put)(struct okv_embedded_client *client, uint32_t granule);
};

struct okv_embedded_pool {
	struct omnikv_pool		pool;
	const struct okv_ref_ops	*refs;

	/* Fixed after creation. */
	int				fd;
	int				fd_ro;		/* the same memory, opened read-only; -1 where /proc is missing */
	bool				is_file;
	bool				is_shared;	/* other processes map it; see share.h */
	char				*path;		/* of a shared pool's file; NULL: a memfd */
	uint32_t			page_kind;
	unsigned char			*map_base;	/* the memfd: data; a file: header, records, data */
	uint64_t			map_bytes;
	unsigned char			*meta;		/* header and records, in the file or in memory of their own */
	uint64_t			meta_bytes;	/* of the latter; 0 for a file */
	uint64_t			data_off;	/* of the linear map, in the file and in the mapping */
	uint64_t			asked_bytes;
	uint64_t			used_bytes;	/* of the extent map's bitmap */
	uint8_t				instance[16];

	pthread_mutex_t			lock;
	/* Guarded by lock. */
	struct okv_extent_map		map;
	struct okv_embedded_client	*clients;	/* also closed ones with transfers under way */
	struct okv_embedded_client	*manager;
	uint32_t			nr_clients;	/* open ones */
	uint32_t			last_client_id;

	/* Guarded by lock; of shared pools. */
	uint32_t			nr_remotes;	/* clients that are other processes */
	uint32_t			nr_unknown;	/* of these, those whose leases are not known: all may be leased */
	uint32_t			*limbo;		/* first granules of given-up extents with a reference of ours */
	uint64_t			nr_limbo;
	uint64_t			max_limbo;
};

struct okv_embedded_client {
	struct omnikv_client		client;
	/* Fixed after creation. */
	uint32_t			id;
	bool				is_manager;
	bool				is_remote;	/* another process */

	/* Guarded by the pool's lock. */
	struct okv_embedded_client	*next;
	struct okv_holds		holds;
	uint64_t			nr_private;	/* PRIVATE extents it owns */
	uint64_t			nr_ios;		/* keeps the struct alive after close */
	bool				is_closed;
	bool				is_over;	/* remote: it said so; what its table counts waits for its connection */
	bool				is_absent;	/* remote: without a connection */
	bool				is_dead;	/* remote and absent: its process is known to have ended */
	uint64_t			dead_since_ns;	/* that long */
	bool				is_unknown;	/* remote and absent: its table is not here either */
	struct okv_lease_table		leases;		/* remote: what it holds; no counts where its table is a file */
	int				leases_fd;	/* the table's memory */

	pthread_mutex_t			windows_lock;
	/* Guarded by windows_lock. */
	struct okv_embedded_window	*windows;
	void				*spare;		/* mappings to give up where unbinding needs one; see window.c */
};

static inline struct okv_embedded_pool *okv_embedded_pool(struct omnikv_pool *pool)
{
	return (struct okv_embedded_pool *)pool;
}

static inline struct okv_embedded_client *okv_embedded_client(struct omnikv_client *client)
{
	return (struct okv_embedded_client *)client;
}

/* client.c */
extern const struct okv_ref_ops okv_embedded_refs;
/**
 * okv_embedded_client_new() - a client of this pool
 * @id: a number that is no other client's, or 0: any
 *
 * Return: 0, -ENOMEM, -EBUSY (there is a manager), -EUSERS (no number is free).
 */
int okv_embedded_client_new(struct okv_embedded_pool *pool, uint32_t flags, uint32_t id,
			    struct okv_embedded_client **client);
int okv_embedded_client_open(struct omnikv_pool *pool, uint32_t flags, struct omnikv_client **client);
void okv_embedded_client_close(struct omnikv_client *client);
/** Out of the list and gone. Nothing holds it any more. */
void okv_embedded_client_free_locked(struct okv_embedded_pool *pool, struct okv_embedded_client *client);
/** The pool ends: free what closed clients left behind. */
void okv_embedded_clients_fini(struct okv_embedded_pool *pool);
int okv_embedded_alloc(struct omnikv_client *client, uint32_t nr_granules, uint32_t count,
		       const struct omnikv_extent *after, uint32_t flags, struct omnikv_extent *out);
int okv_embedded_seal(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count);
int okv_embedded_free(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count);
int okv_embedded_lease(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count);
int okv_embedded_release(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count);
int okv_embedded_io_get(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count);
void okv_embedded_io_put(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count);
int okv_embedded_query(struct omnikv_client *client, const struct omnikv_extent *ext,
		       struct omnikv_extent_info *info);
int64_t okv_embedded_list(struct omnikv_client *client, uint32_t states, uint64_t *from,
			  struct omnikv_extent *exts, uint32_t max);

/* window.c */
/** The client ends: its spare mappings go. */
void okv_windows_fini(struct okv_embedded_client *client);
int okv_embedded_window_create(struct omnikv_client *client, uint64_t bytes, uint32_t flags,
			       struct omnikv_window **window);
void okv_embedded_window_destroy(struct omnikv_window *window);
int okv_embedded_window_bind(struct omnikv_window *window, const struct omnikv_bind *binds, uint32_t count,
			     uint32_t *nr_bound);
int okv_embedded_window_unbind(struct omnikv_window *window, uint64_t off, uint64_t bytes);
/**
 * okv_windows_condemn_locked() - remember the binds of these extents in the client's RW windows
 *
 * The caller holds windows_lock and the pool's lock.
 */
void okv_windows_condemn_locked(struct okv_embedded_client *client, const struct omnikv_extent *exts,
				uint32_t count);
/** Unbind what was condemned. The caller holds windows_lock, not the pool's. -ENOMEM: some are still bound. */
int okv_windows_execute_locked(struct okv_embedded_client *client);

#endif /* OKV_EMBEDDED_H */

/* SPDX-License-Identifier: MIT */
/*
 * What stands between the public pool, client and window calls and who provides the memory.
 *
 * pool.c and window.c check arguments that need no state (NULL, unknown flags, counts,
 * alignment, option structs) and call the provider; a provider relies on that. Each
 * provider embeds the structs below as the first member of its own. Calls come from any
 * thread; a provider has its own locks.
 */
#ifndef OKV_PROVIDER_H
#define OKV_PROVIDER_H

#include <stdatomic.h>

#include <omnikv/pool.h>
#include <omnikv/window.h>

enum okv_provider_kind {
	OKV_PROVIDER_EMBEDDED,
	OKV_PROVIDER_KMOD,
	OKV_PROVIDER_DAEMON,	/* the pool of an omnikvd: the module's, or memory that it shares */
	OKV_PROVIDER_AUTO,	/* either, see omnikv_pool_open() */
};

/**
 * struct okv_pool_spec - a pool as users type it, parsed
 * @bytes: its size; kmod: 0, or that of the pool to make where @name is not there yet
 * @name:  embedded: the file's path, or NULL for an anonymous pool; kmod: the pool's name, or
 *         NULL for one that ends with its last user; daemon: path of its socket. Points into the text that was parsed.
 * @timeout_ms: daemon: of each request; 0: the connection's own
 */
struct okv_pool_spec {
	enum okv_provider_kind	kind;
	uint64_t		bytes;
	const char		*name;
	uint32_t		timeout_ms;
};

/**
 * "SIZE", "embedded:SIZE", "embedded:SIZE:FILE", "kmod:NAME", "auto:SIZE", "auto:SIZE:NAME",
 * "daemon", "daemon:SOCKET".
 * -EINVAL with the reason in @err.
 */
int okv_pool_spec_parse(const char *text, struct okv_pool_spec *spec, struct omnikv_error *err);

struct okv_provider;
struct omnikv_pool;

/**
 * A descriptor whose last close ends the client, or -1. Whoever reads and writes extents behind the
 * client's back (a ring of the kernel) keeps it open until that is over.
 */
int okv_client_fd(const struct omnikv_client *client);
/** Granules that are FREE now. */
uint64_t okv_pool_free_granules(struct omnikv_pool *pool);

/** @is_lasting: it outlives its manager, or others read its index: the manager keeps that in META */
struct omnikv_pool {
	const struct okv_provider	*provider;
	unsigned char			*base;
	uint32_t			granule_bytes;
	bool				is_lasting;
};

/**
 * struct omnikv_client - begins each provider's own
 * @is_managed: a struct omnikv_manager uses it
 * @make_room:  has whoever manages the pool make room for @count extents that did not fit: 0, or -ENOSPC. NULL: nobody
 *              is asked. Fixed before the client is used
 */
struct omnikv_client {
	struct omnikv_pool		*pool;
	_Atomic bool			is_managed;
	int				(*make_room)(void *opaque, uint32_t nr_granules, uint32_t count);
	void				*room_opaque;
};

struct omnikv_window {
	struct omnikv_client		*client;
	unsigned char			*base;
	uint64_t			bytes;
	uint32_t			flags;
};

/**
 * struct okv_provider - one way to provide pools
 *
 * Each member is the public call of the same name, with its contract. @open gets a complete
 * config (never NULL), @info and @query a cleared struct with its size set, the lists a count
 * of at least 1, @bind's @nr_bound is never NULL. @client_close also destroys the windows
 * that the client still has.
 */
struct okv_provider {
	const char *name;
	bool can_fence;		/* a manager's RW windows show META until another one takes the pool over */
	int (*open)(const struct okv_pool_spec *spec, const struct omnikv_pool_config *config,
		    struct omnikv_pool **pool, struct omnikv_error *err);
	void (*close)(struct omnikv_pool *pool);
	int (*info)(struct omnikv_pool *pool, struct omnikv_pool_info *info);
	/* Granules that are FREE now; cheap, where @info may read files. */
	uint64_t (*free_granules)(struct omnikv_pool *pool);

	int (*client_open)(struct omnikv_pool *pool, uint32_t flags, struct omnikv_client **client);
	void (*client_close)(struct omnikv_client *client);
	/* The descriptor that the kernel ends the client with; not the caller's to close. NULL: there is none. */
	int (*client_fd)(const struct omnikv_client *client);

	int (*alloc)(struct omnikv_client *client, uint32_t nr_granules, uint32_t count,
		     const struct omnikv_extent *after, uint32_t flags, struct omnikv_extent *out);
	int (*seal)(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count);
	int (*free)(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count);
	/*
	 * SEAL, and LEASE behind it, with nothing between, all or nothing: for a manager elsewhere that takes them over.
	 * NULL: that manager seals.
	 */
	int (*hand_over)(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count);
	int (*lease)(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count);
	int (*release)(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count);
	int (*io_get)(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count);
	void (*io_put)(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count);
	int (*query)(struct omnikv_client *client, const struct omnikv_extent *ext,
		     struct omnikv_extent_info *info);
	int64_t (*list)(struct omnikv_client *client, uint32_t states, uint64_t *from,
			struct omnikv_extent *exts, uint32_t max);

	int (*window_create)(struct omnikv_client *client, uint64_t bytes, uint32_t flags,
			     struct omnikv_window **window);
	void (*window_destroy)(struct omnikv_window *window);
	int (*window_bind)(struct omnikv_window *window, const struct omnikv_bind *binds, uint32_t count,
			   uint32_t *nr_bound);
	int (*window_unbind)(struct omnikv_window *window, uint64_t off, uint64_t bytes);
};

extern const struct okv_provider okv_provider_embedded;
extern const struct okv_provider okv_provider_kmod;
extern const struct okv_provider okv_provider_daemon;

#endif /* OKV_PROVIDER_H */

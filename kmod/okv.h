/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Everything that the files of kmod/ share: the objects, their locks and who may call what.
 *
 * Locks, outermost first; nobody takes upwards (Documentation/dev/locking.md tells why):
 *
 *	lock                 guards                                context     may then take
 *	mmap_lock            (the kernel's; held on entry to mmap and fault)   all below
 *	client->lock         attachments, holds, its windows       may sleep   pool->users
 *	pool->users          dead, the segment's pages (readers use them)      pool->lock
 *	pool->lock           owner, manager, attachments, windows  may sleep   window->lock
 *	window->lock         map and page tables of one window     may sleep   folio lock, map_lock
 *	folio lock           (the kernel's)                        may sleep   map_lock
 *	pool->map_lock       extents                               spins       -
 *
 * Beside that order: okv_pools_lock (names, the ledger) and the quarantine's lock are innermost
 * mutexes: under them only map_lock is taken. No user memory is touched under any of them.
 */
#ifndef OKV_H
#define OKV_H

#include <linux/cleanup.h>
#include <linux/fs.h>
#include <linux/kobject.h>
#include <linux/kref.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/rwsem.h>
#include <linux/spinlock.h>
#include <linux/uidgid.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include <linux/omnikv.h>

#include "core/extent.h"
#include "batch_check.h"
#include "winmap.h"

#define OKV_UNIT_SHIFT	21
#define OKV_UNIT_BYTES	(1UL << OKV_UNIT_SHIFT)
#define OKV_UNIT_PAGES	(OKV_UNIT_BYTES >> PAGE_SHIFT)
#define OKV_UNIT_ORDER	(OKV_UNIT_SHIFT - PAGE_SHIFT)

/* ---- segment.c: pages ------------------------------------------------------------------ */

/* One 2-MiB unit: a large page, or in a pool that accepts them @small[OKV_UNIT_PAGES]. */
struct okv_unit {
	struct page	*head;
	struct page	**small;
};

/* Fixed after creation, until okv_segment_fini(). */
struct okv_segment {
	struct vfsmount	*mnt;
	struct file	*file;
	struct okv_unit	*units;
	u64		nr_units;
	u64		nr_small;
	u64		node_bytes[64];
};

/* What okv_segment_init() is asked for. */
struct okv_backing {
	u64		bytes;
	u32		flags;		/* OMNIKV_CREATE_F_* */
	u32		numa;		/* OMNIKV_NUMA_* */
	u64		nodes;
	atomic64_t	*ready_units;	/* counts up while it works */
};

int okv_segment_init(struct okv_segment *seg, const struct okv_backing *want);
void okv_segment_fini(struct okv_segment *seg);
/* Page number @page of the segment. Caller holds pool->users, or the segment cannot go otherwise. */
struct page *okv_segment_page(const struct okv_segment *seg, u64 page);
/* References on the folios below [@first, @first + @nr) that neither we nor page tables explain. */
long okv_segment_foreign_refs(const struct okv_segment *seg, u64 first, u64 nr);

/* ---- pool.c ------------------------------------------------------------------------------ */

struct okv_attach;
struct okv_client;

/*
 * Life of a pool:
 *
 *	NEW ----> LIVE ----> DEAD ----> DROPPED
 *	  \                              ^
 *	   `-----------------------------'  (creation failed)
 *
 * NEW      its name is taken, only the creating thread uses it
 * LIVE     found by name
 * DEAD     the name is free, windows raise SIGBUS, operations are -ENODEV, leases still count
 * DROPPED  the pages are given back
 */
enum okv_pool_state {
	OKV_POOL_NEW,
	OKV_POOL_LIVE,
	OKV_POOL_DEAD,
	OKV_POOL_DROPPED,
};

struct okv_pool {
	/* Holders: the table of names, each pool file, attachment and window, a running drop_work. */
	struct kref		ref;

	/* Fixed after creation. */
	char			name[OMNIKV_NAME_MAX + 1];
	u8			instance[16];
	u64			id;
	u32			flags;
	u32			granule_bytes;
	u32			granule_pages;
	u32			nr_granules;
	u64			bytes;
	u64			client_bytes;
	kuid_t			creator;
	bool			is_privileged;	/* its creator was: not counted on user_bytes */
	struct kobject		kobj;
	struct completion	kobj_gone;

	/* Under okv_pools_lock. */
	struct list_head	link;
	unsigned int		nr_files;

	/* Written under @users for writing; read under it. */
	struct rw_semaphore	users;
	enum okv_pool_state	state;
	struct okv_segment	seg;

	/* Under @lock. */
	struct mutex		lock;
	kuid_t			uid;
	kgid_t			gid;
	umode_t			mode;
	struct okv_attach	*manager;
	u32			epoch;		/* windows read it without the lock */
	struct xarray		attaches;	/* by okv_attach.id */
	u32			next_id;
	u32			nr_clients;
	struct list_head	windows;

	/* Under @map_lock. */
	spinlock_t		map_lock;
	struct okv_extent_map	map;
	struct okv_extent_rec	*recs;
	u64			*used;

	atomic64_t		nr_leases;
	atomic64_t		nr_binds;
	atomic64_t		nr_zaps;
	atomic64_t		ready_units;
	struct work_struct	drop_work;
};

extern struct mutex okv_pools_lock;
extern struct list_head okv_pools;

int okv_pool_create(struct omnikv_ioc_pool_create *req, struct file **filep);
int okv_pool_open(struct omnikv_ioc_pool_open *req, struct file **filep);
int okv_pool_info(struct okv_pool *pool, struct omnikv_ioc_pool_info *info);
int okv_pool_chown(struct okv_pool *pool, const struct omnikv_ioc_pool_chown *req);
/* @self: the caller, who does not count as a user; may be NULL. */
int okv_pool_destroy(struct okv_pool *pool, struct okv_client *self, bool is_forced);
bool okv_pool_is_owner(struct okv_pool *pool);
struct okv_pool *okv_pool_of_file(struct file *file);
void okv_pool_put(struct okv_pool *pool);
/* The pool behind a descriptor, referenced; ERR_PTR(-EBADF) otherwise. */
struct okv_pool *okv_pool_get_fd(int fd);
/* The last lease of a dead pool has ended: give its pages back soon. Any context. */
void okv_pool_kick(struct okv_pool *pool);
u64 okv_used_bytes(void);

/* ---- client.c ---------------------------------------------------------------------------- */

/*
 * What a client has of one extent; all under client->lock. Exists while any count is not 0.
 * The extent map counts one reference a lease, transfer and bind.
 */
struct okv_hold {
	struct omnikv_extent	ext;
	u64			cookie;
	u32			nr_binds;
	u32			nr_leases;
	u32			nr_ios;		/* transfers that the client says are under way */
	bool			is_private;
	/* Where RW windows may show it; SEAL looks there. */
	u32			nr_places;
	u32			max_places;
	struct okv_place	*places;
	/* In the quarantine, under its lock, when its client is dead. */
	struct list_head	rest_link;
	struct okv_client	*rest_client;
	struct okv_pool		*rest_pool;
};

struct okv_place {
	u64			first;		/* window page */
	u64			nr;
	u32			window_id;
};

/* One BIND, for as long as any of its pages is bound; under client->lock. Windows' maps point here. */
struct okv_bind {
	struct okv_hold		*hold;
	u64			nr_left;	/* pages */
};

/* One client at one pool. */
struct okv_attach {
	/* Fixed after creation. */
	struct okv_client	*client;
	struct okv_pool		*pool;
	u64			pool_id;
	u32			id;		/* unique in the pool, never 0: the owner of extents */

	/* Under client->lock. */
	struct list_head	link;
	bool			has_ended;	/* revoked: refused for ever */
	struct xarray		holds;		/* by first granule */
	u64			private_bytes;
	u64			nr_leases;	/* and transfers */
	u64			nr_bound;	/* window pages */
	u32			nr_windows;
};

struct okv_client {
	/* Holders: the file, the mmu notifier, each window, each entry of the quarantine. */
	struct kref		ref;

	/* Fixed after creation. */
	struct mmu_notifier	mn;
	struct mm_struct	*mm;
	struct pid		*pid;
	kuid_t			uid;
	u64			id;

	/* Under @lock. */
	struct mutex		lock;
	bool			has_ended;
	struct list_head	attaches;
	struct xarray		windows;	/* by okv_window.id */
	u32			nr_windows;
	u32			next_window;

	/* Set once, read without a lock by the quarantine. */
	bool			is_file_gone;
	bool			is_mm_gone;
	unsigned long		gone_at;	/* jiffies of the later one */
};

int okv_client_open(struct inode *inode, struct file *file);
int okv_client_release(struct inode *inode, struct file *file);
void okv_client_put(struct okv_client *client);
/* Caller holds client->lock. The attachment to @pool, made on the first call; or ERR_PTR. */
struct okv_attach *okv_client_attach_locked(struct okv_client *client, struct okv_pool *pool);
int okv_client_manage(struct okv_client *client, struct okv_pool *pool, u32 flags, u32 *epoch);
int okv_client_revoke(struct okv_pool *pool, u64 id);
int okv_client_list(struct okv_pool *pool, u64 *from, struct omnikv_client_entry *out, u32 *count);
/* A manager's calls are checked against takeover under pool->lock. */
bool okv_attach_is_manager_locked(const struct okv_attach *attach);

/* ---- extent.c: operations on lists of extents; caller holds client->lock and pool->users ---- */

int okv_extents_alloc(struct okv_attach *attach, const struct omnikv_batch_op *op, u32 count,
		      struct omnikv_extent *out);
int okv_extents_free(struct okv_attach *attach, const struct omnikv_extent *exts, u32 count);
int okv_extents_seal(struct okv_attach *attach, const struct omnikv_extent *exts, u32 count, u32 epoch);
/* LEASE or IO_GET, RELEASE or IO_PUT. */
int okv_extents_get(struct okv_attach *attach, const struct omnikv_extent *exts, u32 count, enum okv_op op);
int okv_extents_put(struct okv_attach *attach, const struct omnikv_extent *exts, u32 count, enum okv_op op);
int okv_extent_query(struct okv_attach *attach, struct omnikv_batch_op *op);
int okv_extent_list(struct okv_attach *attach, u32 states, u64 *from, struct omnikv_extent_entry *out,
		    u32 *count);
/* All that the attachment holds ends; PRIVATE extents go to the quarantine. */
void okv_extents_end(struct okv_attach *attach);
struct okv_hold *okv_hold_get(struct okv_attach *attach, const struct omnikv_extent *ext);
/* Erase and free it where nothing is counted on it any more. */
void okv_hold_tidy(struct okv_attach *attach, struct okv_hold *hold);

/* ---- window.c ---------------------------------------------------------------------------- */

struct okv_window {
	/* Fixed after creation. The file owns it. */
	struct okv_client	*client;
	struct okv_pool		*pool;
	struct file		*file;		/* no reference: it outlives the window */
	u64			nr_pages;
	u32			kind;
	u32			id;
	u32			epoch;		/* META: the manager's */

	/* Under pool->lock. */
	struct list_head	pool_link;

	/* Under client->lock. */
	struct okv_attach	*attach;	/* NULL when its client's part has ended */

	/* Under @lock. */
	struct mutex		lock;
	bool			is_dead;
	bool			is_mapped;
	unsigned long		addr;		/* in client->mm, while mapped */
	struct okv_winmap	map;
};

extern const struct file_operations okv_window_fops;

int okv_window_create(struct okv_client *client, struct okv_pool *pool,
		      const struct omnikv_ioc_window_create *req, struct file **filep);
#define OKV_BIND_GROUP	64
/*
 * BIND up to OKV_BIND_GROUP ops of one window, of client->lock's holder; ops[i].res says how each
 * went, up to the first that failed. Returns how many succeeded. @may_fill: mmap_lock is held.
 */
u32 okv_window_bind(struct okv_window *win, struct okv_attach *attach, struct omnikv_batch_op *ops, u32 nr,
		    bool may_fill);
int okv_window_unbind(struct okv_window *win, struct okv_attach *attach, u64 off, u64 bytes);
/* Touches raise SIGBUS from now on; binds still count. Caller holds pool->lock. */
void okv_window_kill_locked(struct okv_window *win);
/* Caller holds client->lock: as above, and its binds are given up. */
void okv_window_end_locked(struct okv_window *win);
/* Unbind what RW windows show of a PRIVATE extent. Caller holds client->lock. */
void okv_window_unbind_hold(struct okv_attach *attach, struct okv_hold *hold);

/* ---- quarantine.c ------------------------------------------------------------------------ */

/*
 * The memory of a dead client's PRIVATE extent rests until no late transfer can reach it. The
 * extent is QUARANTINED already, with a reference that is the quarantine's, which takes @hold.
 */
void okv_quarantine_add(struct okv_hold *hold, struct okv_client *client, struct okv_pool *pool);
void okv_quarantine_kick(void);
/* The pool is dead: nothing of it needs to rest. */
void okv_quarantine_forget(struct okv_pool *pool);
void okv_quarantine_exit(void);

/* ---- main.c, batch.c, ioctl.c, sysfs.c --------------------------------------------------- */

extern struct workqueue_struct *okv_wq;
extern struct kmem_cache *okv_hold_cache;
extern struct kmem_cache *okv_bind_cache;
extern ulong okv_limit_bytes;
extern ulong okv_user_bytes;
extern uint okv_windows_max;
extern uint okv_leases_max;
extern uint okv_binds_max;
extern uint okv_quarantine_ms;

/* A file of our pseudo file system, with an inode of its own of @size bytes. Pins the module. */
struct file *okv_file_create(const char *name, const struct file_operations *fops, void *priv, u64 size);

long okv_ioctl(struct file *file, unsigned int cmd, unsigned long arg);
int okv_batch(struct okv_client *client, struct omnikv_ioc_batch *req);

int okv_sysfs_init(struct device *dev);
void okv_sysfs_exit(struct device *dev);
int okv_sysfs_pool_add(struct okv_pool *pool);
void okv_sysfs_pool_del(struct okv_pool *pool);

#endif /* OKV_H */

/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note */
/*
 * The contract between /dev/omnikv and user space.
 *
 * First what both providers of pools share: how an extent is named and which states
 * it passes through. Then the commands of the module. Fixed-width fields only, no
 * holes, the same layout for 32-bit callers. Structs grow at their end only: the
 * number of a command carries the caller's length, a missing tail reads as zero, and
 * a tail that the module does not know must be zero (E2BIG). Unknown flags and
 * non-zero reserved words are EINVAL. On an error a struct is left as it was.
 */
#ifndef _UAPI_LINUX_OMNIKV_H
#define _UAPI_LINUX_OMNIKV_H

#include <linux/ioctl.h>
#include <linux/types.h>

/**
 * struct omnikv_extent - the name of a run of granules inside one pool
 * @granule:     first granule, counted from the start of the pool
 * @generation:  raised each time that the extent is given up; an old name is -ESTALE
 * @nr_granules: length of the run, never 0
 */
struct omnikv_extent {
	__aligned_u64	granule;
	__u32		generation;
	__u32		nr_granules;
};

/*
 * Life of an extent. FREE has no owner; PRIVATE is written by the client that
 * allocated it; SEALED is immutable and may be leased; META is the manager's;
 * QUARANTINED waits for its last bind, lease or transfer; POISONED is lost to
 * the pool for good.
 */
#define OMNIKV_EXTENT_FREE		0
#define OMNIKV_EXTENT_PRIVATE		1
#define OMNIKV_EXTENT_SEALED		2
#define OMNIKV_EXTENT_META		3
#define OMNIKV_EXTENT_QUARANTINED	4
#define OMNIKV_EXTENT_POISONED		5
#define OMNIKV_EXTENT_NR_STATES		6

/* ------------------------------------------------------------------ module */

#define OMNIKV_UAPI_VERSION		1
#define OMNIKV_IOC_TYPE			0xba

#define OMNIKV_NAME_MAX			32	/* characters of [A-Za-z0-9._-], then a NUL */
#define OMNIKV_BATCH_MAX		4096	/* operations a batch, entries of a listing */
#define OMNIKV_LIST_MAX			65536	/* extents of one operation */

/**
 * struct omnikv_ioc_query - what this module is and may
 * @flags:          in: 0
 * @version:        out: OMNIKV_UAPI_VERSION of the module
 * @features:       out: OMNIKV_FEATURE_*
 * @batch_max:      out: most operations a batch
 * @windows_max:    out: most windows a client
 * @leases_max:     out: most leases a client
 * @quarantine_ms:  out: see Documentation: how long memory of a dead client rests at most
 * @limit_bytes:    out: what all pools together may take
 * @used_bytes:     out: what they take
 * @user_bytes:     out: what pools created by one uid without CAP_SYS_ADMIN may take
 */
struct omnikv_ioc_query {
	__u32		flags;
	__u32		version;
	__aligned_u64	features;
	__u32		batch_max;
	__u32		windows_max;
	__u32		leases_max;
	__u32		quarantine_ms;
	__aligned_u64	limit_bytes;
	__aligned_u64	used_bytes;
	__aligned_u64	user_bytes;
};

#define OMNIKV_FEATURE_WINDOWS		(1ULL << 0)
#define OMNIKV_FEATURE_META_WINDOWS	(1ULL << 1)
#define OMNIKV_FEATURE_NUMA		(1ULL << 2)
#define OMNIKV_FEATURE_REVOKE		(1ULL << 3)

/** The pool ends with its last descriptor. */
#define OMNIKV_CREATE_F_TRANSIENT		(1U << 0)
/** Where a 2-MiB page cannot be had, take small ones and count them, rather than ENOMEM. */
#define OMNIKV_CREATE_F_ACCEPT_SMALL	(1U << 1)
/** Charge the creator's memory cgroup; else none is charged. */
#define OMNIKV_CREATE_F_CHARGE		(1U << 2)
/** Clients trust one another: they may allocate without zeroing. */
#define OMNIKV_CREATE_F_TRUSTED		(1U << 3)
#define OMNIKV_CREATE_F_ALL		0xfU

#define OMNIKV_NUMA_DEFAULT		0
#define OMNIKV_NUMA_BIND		1
#define OMNIKV_NUMA_INTERLEAVE		2
#define OMNIKV_NUMA_PREFER		3

/**
 * struct omnikv_ioc_pool_create - reserve and pin memory as one pool
 * @flags:         in: OMNIKV_CREATE_F_*
 * @granule_bytes: in: a multiple of 4096, at most 2 MiB; 0 is 4096
 * @bytes:         in: capacity, a multiple of 2 MiB
 * @mode:          in: who may open it, as of a file (0660); execute bits must be 0
 * @numa:          in: OMNIKV_NUMA_*
 * @nodes:         in: bit per NUMA node; 0 with OMNIKV_NUMA_DEFAULT
 * @client_bytes:  in: most PRIVATE bytes a client, 0 is no limit
 * @pool_fd:       out: descriptor (O_CLOEXEC): map it, pass it on, name it in other commands
 * @small_units:   out: 2-MiB units that small pages back
 * @name:          in: [A-Za-z0-9._-]{1,32}, NUL-terminated, rest zero
 *
 * Owner and group are the caller's effective ones. Takes as long as the clearing of the memory;
 * killable.
 *
 * Errors: EINVAL malformed, EEXIST the name is taken, EPERM without CAP_SYS_ADMIN while
 * user_bytes is 0, EDQUOT limit_bytes or user_bytes would be passed, ENOMEM too few huge pages
 * (see shmem_enabled when none came), EOPNOTSUPP a kernel without huge pages of tmpfs (pass
 * ACCEPT_SMALL), EINTR killed.
 */
struct omnikv_ioc_pool_create {
	__u32		flags;
	__u32		granule_bytes;
	__aligned_u64	bytes;
	__u32		mode;
	__u32		numa;
	__aligned_u64	nodes;
	__aligned_u64	client_bytes;
	__s32		pool_fd;
	__u32		small_units;
	__u8		name[40];
};

/** The descriptor cannot be mapped: its holder lives on windows. */
#define OMNIKV_OPEN_F_NO_LINEAR		(1U << 0)
#define OMNIKV_OPEN_F_ALL		0x1U

/**
 * struct omnikv_ioc_pool_open - a descriptor of an existing pool
 * @flags:   in: OMNIKV_OPEN_F_*
 * @pool_fd: out
 * @name:    in
 *
 * Errors: ENOENT no such pool (or not ready yet), EACCES mode, EINVAL.
 */
struct omnikv_ioc_pool_open {
	__u32		flags;
	__s32		pool_fd;
	__u8		name[40];
};

/**
 * struct omnikv_ioc_pool_info - a pool's shape and figures
 * @pool_fd:       in
 * @flags:         in: 0
 * @pool_flags:    out: OMNIKV_CREATE_F_* of its creation
 * @granule_bytes: out
 * @bytes:         out: capacity
 * @nr_granules:   out
 * @largest_free:  out: granules of the longest free run
 * @state_bytes:   out: by state
 * @nr_extents:    out: by state; [FREE] counts free runs
 * @client_bytes:  out
 * @binds:         out: 4-KiB pages bound since creation
 * @zaps:          out: ranges unmapped since creation
 * @epoch:         out: raised by each POOL_MANAGE, 0 before the first
 * @nr_clients:    out: attached now
 * @uid: @gid: @mode: out: in the caller's user namespace
 * @small_units:   out: 2-MiB units that small pages back
 * @instance:      out: random, for the pool's life
 * @name:          out
 * @node_bytes:    out: bytes on each NUMA node
 */
struct omnikv_ioc_pool_info {
	__s32		pool_fd;
	__u32		flags;
	__u32		pool_flags;
	__u32		granule_bytes;
	__aligned_u64	bytes;
	__aligned_u64	nr_granules;
	__aligned_u64	largest_free;
	__aligned_u64	state_bytes[8];
	__aligned_u64	nr_extents[8];
	__aligned_u64	client_bytes;
	__aligned_u64	binds;
	__aligned_u64	zaps;
	__u32		epoch;
	__u32		nr_clients;
	__u32		uid;
	__u32		gid;
	__u32		mode;
	__u32		small_units;
	__u8		instance[16];
	__u8		name[40];
	__aligned_u64	node_bytes[64];
};

/**
 * struct omnikv_ioc_pool_chown - a pool's owner, group and mode
 *
 * Errors: EPERM unless owner (who may change mode, and group to one of his) or CAP_SYS_ADMIN.
 */
struct omnikv_ioc_pool_chown {
	__s32		pool_fd;
	__u32		flags;
	__u32		uid;
	__u32		gid;
	__u32		mode;
	__u32		reserved;
};

/** End the pool although other clients are attached. */
#define OMNIKV_DESTROY_F_FORCE		(1U << 0)
#define OMNIKV_DESTROY_F_ALL		0x1U

/**
 * struct omnikv_ioc_pool_destroy - end a pool
 *
 * The name is free at once, windows raise SIGBUS from now on, operations are ENODEV. The memory
 * goes back when the last lease has ended; what a linear map still shows, when that is unmapped.
 *
 * Errors: EPERM unless owner or CAP_SYS_ADMIN, EBUSY others are attached and not FORCE, ENODEV
 * it has ended already.
 */
struct omnikv_ioc_pool_destroy {
	__s32		pool_fd;
	__u32		flags;
};

/** Take over from a living manager. */
#define OMNIKV_MANAGE_F_FORCE		(1U << 0)
/** Stop being the manager. */
#define OMNIKV_MANAGE_F_RELEASE		(1U << 1)
#define OMNIKV_MANAGE_F_ALL		0x3U

/**
 * struct omnikv_ioc_pool_manage - become the pool's manager
 * @epoch: out: the new epoch
 *
 * From now on calls and META windows of an earlier manager are refused: they named an older epoch.
 *
 * Errors: EPERM unless owner or CAP_SYS_ADMIN, EBUSY the manager lives and not FORCE, EINVAL
 * both flags, ENOENT (RELEASE) the caller is not the manager.
 */
struct omnikv_ioc_pool_manage {
	__s32		pool_fd;
	__u32		flags;
	__u32		epoch;
	__u32		reserved;
};

#define OMNIKV_WINDOW_RO		0	/* SEALED extents that the client leases */
#define OMNIKV_WINDOW_RW		1	/* its own PRIVATE extents; SEAL unbinds them */
#define OMNIKV_WINDOW_META		2	/* META extents, writable, while its manager is the current one */

/**
 * struct omnikv_ioc_window_create - reserve a window
 * @kind:      in: OMNIKV_WINDOW_*
 * @bytes:     in: a multiple of 4096, at most 2^46
 * @window_fd: out: descriptor to map once, whole, shared, by this process
 *
 * Errors: EINVAL, EDQUOT windows_max reached, EPERM META by other than the manager, ENODEV.
 */
struct omnikv_ioc_window_create {
	__s32		pool_fd;
	__u32		flags;
	__u32		kind;
	__s32		window_fd;
	__aligned_u64	bytes;
};

#define OMNIKV_BATCH_NOP		0
#define OMNIKV_BATCH_ALLOC		1
#define OMNIKV_BATCH_FREE		2
#define OMNIKV_BATCH_SEAL		3
#define OMNIKV_BATCH_LEASE		4
#define OMNIKV_BATCH_RELEASE		5
#define OMNIKV_BATCH_BIND		6
#define OMNIKV_BATCH_UNBIND		7
#define OMNIKV_BATCH_QUERY_EXTENT	8
#define OMNIKV_BATCH_IO_GET		9	/* a transfer begins: as LEASE, but also on own PRIVATE extents */
#define OMNIKV_BATCH_IO_PUT		10
#define OMNIKV_BATCH_LAST		10

/** ALLOC: leave the bytes as they are; TRUSTED pools and managers only. */
#define OMNIKV_BATCH_ALLOC_F_NO_ZERO	(1U << 0)
/** ALLOC: in META; the manager only. */
#define OMNIKV_BATCH_ALLOC_F_META	(1U << 1)
/** ALLOC: @extent names one behind which to place, if that is free. */
#define OMNIKV_BATCH_ALLOC_F_AFTER	(1U << 2)
#define OMNIKV_BATCH_ALLOC_F_ALL	0x7U
/** BIND: page tables are filled at the first touch, not now. */
#define OMNIKV_BATCH_BIND_F_LAZY	(1U << 0)
#define OMNIKV_BATCH_BIND_F_ALL		0x1U

/** QUERY_EXTENT: set in @state beside OMNIKV_EXTENT_*: PRIVATE of this client. */
#define OMNIKV_STATE_F_MINE		(1U << 8)

/**
 * struct omnikv_batch_op - one operation of a batch; words that it does not use must be 0
 * @opcode:     OMNIKV_BATCH_*
 * @flags:      OMNIKV_BATCH_<opcode>_F_*
 * @extent:     the extent, where @addr is 0. ALLOC: in: @nr_granules wanted, and with AFTER the
 *              neighbour's first granule; out (with @addr 0): the new extent
 * @addr:       ALLOC, FREE, SEAL, LEASE, RELEASE, IO_GET, IO_PUT: array of @count struct
 *              omnikv_extent instead, all or nothing; ALLOC writes it
 * @count:      length of that array, up to OMNIKV_LIST_MAX. QUERY_EXTENT: out: references
 * @window_fd:  BIND, UNBIND: the window
 * @window_off: BIND, UNBIND: bytes from its start, a multiple of 4096
 * @extent_off: BIND: bytes from the start of the extent, a multiple of 4096
 * @bytes:      BIND, UNBIND: a multiple of 4096, not 0
 * @cookie:     ALLOC: in: returned by EXTENT_LIST. QUERY_EXTENT: out, where it is the caller's
 * @res:        out: 0 or a negative errno; -ECANCELED where an earlier operation failed
 * @state:      QUERY_EXTENT: out: OMNIKV_EXTENT_* and OMNIKV_STATE_F_MINE
 */
struct omnikv_batch_op {
	__u32			opcode;
	__u32			flags;
	struct omnikv_extent	extent;
	__aligned_u64		addr;
	__u32			count;
	__s32			window_fd;
	__aligned_u64		window_off;
	__aligned_u64		extent_off;
	__aligned_u64		bytes;
	__aligned_u64		cookie;
	__s32			res;
	__u32			state;
};

/**
 * struct omnikv_ioc_batch - operations in order, stopping at the first error
 * @pool_fd: in
 * @flags:   in: 0
 * @epoch:   in: the manager epoch that the caller knows; another one is ESTALE; 0 is not said
 * @nr_ops:  in: up to OMNIKV_BATCH_MAX
 * @ops:     in, out: address of struct omnikv_batch_op[nr_ops]
 * @nr_done: out: operations that succeeded; where less than @nr_ops, the next one's @res says why
 * @reserved: in: 0
 *
 * The array is read once, at the start. A client is attached to the pool by its first batch,
 * window or POOL_MANAGE.
 *
 * Errors of the whole (nothing was done): EFAULT, EINVAL, EPERM (the caller's mm is not the one
 * that opened the file, or the client was revoked), ENODEV (the pool has ended), ESTALE (@epoch).
 * EFAULT also where @ops can no longer be written at the end: the results are lost, not what was done.
 * EINTR: killed between two operations.
 */
struct omnikv_ioc_batch {
	__s32		pool_fd;
	__u32		flags;
	__u32		epoch;
	__u32		nr_ops;
	__aligned_u64	ops;
	__u32		nr_done;
	__u32		reserved;
};

/** struct omnikv_extent_entry - one line of EXTENT_LIST */
struct omnikv_extent_entry {
	struct omnikv_extent	extent;
	__aligned_u64		cookie;		/* of the caller's own PRIVATE extents, else 0 */
	__u32			state;		/* as in struct omnikv_batch_op */
	__u32			nr_refs;
};

/**
 * struct omnikv_ioc_extent_list - extents in order of their place
 * @states:  in: bit per OMNIKV_EXTENT_* state; other than PRIVATE for the manager only, and
 *           without that bit's owner's own: PRIVATE lists the caller's
 * @from:    in: first granule to look at; out: where to go on, or all ones at the end
 * @count:   in: length of the array, up to OMNIKV_BATCH_MAX; out: entries written
 * @entries: in: address of struct omnikv_extent_entry[count]
 */
struct omnikv_ioc_extent_list {
	__s32		pool_fd;
	__u32		flags;
	__u32		states;
	__u32		count;
	__aligned_u64	from;
	__aligned_u64	entries;
};

/** struct omnikv_client_entry - one line of CLIENT_LIST */
struct omnikv_client_entry {
	__aligned_u64	id;		/* of the client, for CLIENT_REVOKE */
	__aligned_u64	private_bytes;
	__aligned_u64	nr_leases;
	__u32		nr_windows;
	__s32		pid;		/* thread group, in the caller's pid namespace; 0 outside it */
	__u32		uid;
	__u32		is_manager;
	__u8		comm[16];
};

/** struct omnikv_ioc_client_list - who is attached to a pool; as EXTENT_LIST, @from is an id */
struct omnikv_ioc_client_list {
	__s32		pool_fd;
	__u32		flags;
	__u32		count;
	__u32		reserved;
	__aligned_u64	from;
	__aligned_u64	entries;
};

/**
 * struct omnikv_ioc_client_revoke - end what a client holds in a pool
 *
 * Its calls on the pool are EPERM from now on. A linear map that it has stays.
 *
 * Errors: EPERM without CAP_SYS_ADMIN and not the pool's owner, ENOENT no such client.
 */
struct omnikv_ioc_client_revoke {
	__s32		pool_fd;
	__u32		flags;
	__aligned_u64	id;
};

/* 6 is kept for POOL_GROW. */
#define OMNIKV_IOC_QUERY		_IOWR(OMNIKV_IOC_TYPE, 0, struct omnikv_ioc_query)
#define OMNIKV_IOC_POOL_CREATE		_IOWR(OMNIKV_IOC_TYPE, 1, struct omnikv_ioc_pool_create)
#define OMNIKV_IOC_POOL_OPEN		_IOWR(OMNIKV_IOC_TYPE, 2, struct omnikv_ioc_pool_open)
#define OMNIKV_IOC_POOL_INFO		_IOWR(OMNIKV_IOC_TYPE, 3, struct omnikv_ioc_pool_info)
#define OMNIKV_IOC_POOL_CHOWN		_IOW(OMNIKV_IOC_TYPE, 4, struct omnikv_ioc_pool_chown)
#define OMNIKV_IOC_POOL_DESTROY		_IOW(OMNIKV_IOC_TYPE, 5, struct omnikv_ioc_pool_destroy)
#define OMNIKV_IOC_POOL_MANAGE		_IOWR(OMNIKV_IOC_TYPE, 7, struct omnikv_ioc_pool_manage)
#define OMNIKV_IOC_WINDOW_CREATE	_IOWR(OMNIKV_IOC_TYPE, 8, struct omnikv_ioc_window_create)
#define OMNIKV_IOC_BATCH		_IOWR(OMNIKV_IOC_TYPE, 9, struct omnikv_ioc_batch)
#define OMNIKV_IOC_EXTENT_LIST		_IOWR(OMNIKV_IOC_TYPE, 10, struct omnikv_ioc_extent_list)
#define OMNIKV_IOC_CLIENT_LIST		_IOWR(OMNIKV_IOC_TYPE, 11, struct omnikv_ioc_client_list)
#define OMNIKV_IOC_CLIENT_REVOKE	_IOW(OMNIKV_IOC_TYPE, 12, struct omnikv_ioc_client_revoke)

#endif /* _UAPI_LINUX_OMNIKV_H */

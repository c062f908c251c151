/* SPDX-License-Identifier: MIT */
/*
 * An embedded pool that other processes map: the end of its authority (omnikvd).
 *
 * A shared pool lies in one piece of memory, a memfd or a file: header, records, data. Each client
 * process gets a descriptor of it with an open file description of its own, on which one byte is
 * locked, far behind the end of the file, at OKV_SHARE_LOCK + the client's number. The kernel keeps
 * that lock while the process has the descriptor or a mapping of it, whatever becomes of sockets and of
 * the authority, so it is the truth about who may still touch the memory: leases (lease.h) and PRIVATE
 * extents end with it, and not with a connection.
 *
 * A lease table is a memfd, or, where the pool is a file, a file beside it named FILE.leases.NUMBER: the next
 * authority then knows all leases by itself. A memfd is sealed and mapped. A file can be cut off by the client at any
 * time, which would end whoever has it mapped by a signal: the authority reads it by calls, and counts what is
 * missing as 0.
 *
 * An extent that is given up while a table counts it keeps one reference of the authority, "in limbo",
 * until okv_share_settle() finds it in no table.
 *
 * A client is in one of these states:
 *
 *	ATTACHED ----> ABSENT ----> ended
 *	   ^   ^__________|           ^
 *	UNKNOWN ----------------------'
 *
 * ATTACHED  the caller has it, with its table
 * ABSENT    it lost its connection and lives; its table still counts
 * UNKNOWN   it lives since before this authority, which has no table of it: all may be leased
 *
 * Any thread; the pool's lock is taken within, but for the calls that end in _locked.
 */
#ifndef OKV_SHARE_H
#define OKV_SHARE_H

#include "embedded.h"

#define OKV_SHARE_LOCK	(INT64_C(1) << 62)

/**
 * okv_share_open() - open or make a shared pool
 * @spec: of an embedded one
 * @fd:   its memory, kept from an earlier life of this authority; -1: none. It stays the caller's
 *
 * As omnikv_pool_open(). Clients that live are UNKNOWN then.
 */
int okv_share_open(const struct okv_pool_spec *spec, const struct omnikv_pool_config *config, int fd,
		   struct omnikv_pool **pool, struct omnikv_error *err);
/** The pool's memory, to be kept over a restart. */
int okv_share_fd(struct omnikv_pool *pool);

/**
 * struct okv_share_fds - what a client process gets, or got
 * @memory: of its own, with its lock; the caller's
 * @leases: its table; stays the authority's, for the next life
 */
struct okv_share_fds {
	int	memory;
	int	leases;
};

/**
 * okv_share_attach() - a new client process
 * @flags: OMNIKV_CLIENT_F_*
 *
 * Return: 0, -EBUSY (there is a manager), -EUSERS (no number is free), -ENOMEM, -EMFILE and the like.
 */
int okv_share_attach(struct omnikv_pool *pool, uint32_t flags, struct omnikv_client **client,
		     struct okv_share_fds *fds);
/** Is @memory a description of this pool's memory, and the one that holds the lock of client @id? */
bool okv_share_is_proof(struct omnikv_pool *pool, int memory, uint32_t id);
/**
 * okv_share_reattach() - an ABSENT or UNKNOWN client is back
 * @memory: proves that it is that client, by the lock; -1: the caller knows it (its socket was kept)
 * @leases: its table; the caller's still, where this fails; else the client's
 *
 * Return: 0, -ENOENT (no such client, or it is attached), -EPERM (no proof), -EINVAL (no such table), -EBUSY.
 */
int okv_share_reattach(struct omnikv_pool *pool, uint32_t id, uint32_t flags, int memory, int leases,
		       struct omnikv_client **client);
/** A description of the memory without a lock, for who only looks. @flags: O_RDWR or O_RDONLY. A descriptor, or -errno. */
int okv_share_memory(struct omnikv_pool *pool, int flags);
/**
 * okv_share_end() - the client says that it is over
 *
 * Its PRIVATE extents are given up; those that its table counts wait in limbo. It counts as a client no more.
 * The connection's end still has to be told. -ENOMEM: nothing has changed.
 */
int okv_share_end(struct omnikv_client *client);
/** How long a lock keeps what a dead process had: what is under way for it on a disk ends meanwhile. */
#define OKV_SHARE_REST_MS	1000u

/**
 * The client's connection is gone: it is ABSENT, until okv_share_settle() finds its lock free. That of a process known to
 * be dead, which a child or a ring of it still has, counts for OKV_SHARE_REST_MS. @client is not to be used then.
 */
void okv_share_detach(struct omnikv_client *client, bool is_dead);
/**
 * okv_share_settle() - end clients that are gone, free what nobody holds
 *
 * Return: how many clients are ABSENT or UNKNOWN, plus extents in limbo: 0 where there is nothing to look at again.
 */
uint64_t okv_share_settle(struct omnikv_pool *pool);

/** For each client that is another process; @is_here: ATTACHED. Leases are counted, O(granules of touched pages). */
void okv_share_clients(struct omnikv_pool *pool,
		       void (*see)(void *opaque, const struct okv_embedded_client *client, uint64_t private_bytes,
				   uint64_t nr_leases),
		       void *opaque);
/** The lease table's descriptor of a client process. */
int okv_share_leases_fd(const struct omnikv_client *client);

/** Is an extent of this struct omnikv_pool leased by another process, or may be? The manager passes over such victims. */
bool okv_share_is_leased(void *pool, const struct omnikv_extent *ext);
/** Leases and transfers of all other processes, or more; UINT64_MAX: not known. Reads every table. */
uint64_t okv_share_leases(struct omnikv_pool *pool);

/* For client.c and provider_memfd.c. */
bool okv_share_is_alive(const struct okv_embedded_pool *pool, uint32_t id);
uint32_t okv_share_count_locked(const struct okv_embedded_pool *pool, uint32_t granule);
/** FREE of a list where other processes may lease. */
int okv_share_free_locked(struct okv_embedded_pool *pool, struct okv_embedded_client *client,
			  const struct omnikv_extent *exts, uint32_t count);
/** True when something was freed. */
bool okv_share_settle_locked(struct okv_embedded_pool *pool);
/** The client ends: its table goes. */
void okv_share_forget_locked(struct okv_embedded_pool *pool, struct okv_embedded_client *client);
/** A pool is being opened: clients that live are UNKNOWN, what was quarantined is in limbo. */
int okv_share_recover(struct okv_embedded_pool *pool);
/** The authority ends, and its clients live on: what they have stays in the records. */
void okv_share_abandon(struct okv_embedded_pool *pool);
void okv_share_fini(struct okv_embedded_pool *pool);

#endif /* OKV_SHARE_H */

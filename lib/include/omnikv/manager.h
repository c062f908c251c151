/* SPDX-License-Identifier: MIT */
/*
 * The memory manager: prefix index, admission, eviction, namespaces, counters.
 *
 * Policy over one pool, embedded in the engine's process or in omnikvd, to which engines attach. Calls
 * may come from any thread; none waits for another's transfer.
 */
#ifndef OMNIKV_MANAGER_H
#define OMNIKV_MANAGER_H

#include <omnikv/key.h>
#include <omnikv/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct omnikv_manager;
struct omnikv_space;	/* one namespace of a manager */
struct omnikv_match;	/* a hit with its leases */
struct omnikv_spill;	/* see omnikv/spill.h */

/** Which blocks that leave memory go to the spill store. */
enum omnikv_spill_admit {
	OMNIKV_SPILL_ADMIT_ALL,
	OMNIKV_SPILL_ADMIT_SECOND,	/* not one that was used only once */
};

/**
 * struct omnikv_manager_config
 * @eviction:    "lru"; NULL is "lru"
 * @spill:       where blocks go that leave memory, and come back from; outlives the manager. NULL: nowhere
 * @spill_admit: enum omnikv_spill_admit
 * @staging_wait_ms: how long a lookup waits for memory to bring a block of @spill back to, while leases hold all of the pool and
 *               of the reserve; 0: it does not, and what is on NVMe alone is a miss at once
 * @staging_bytes: memory that stays free of all else, so that blocks of @spill come back while the rest of the pool is leased
 *               or private; 0: a 64th of the pool, at most 1 GiB; OMNIKV_STAGING_NONE: none. It helps where it holds a block
 * @pin_bytes:   that pins can have in sum (omnikv_space_retain()), at most a half of the pool; one client of a daemon gets at most
 *               a half of it; 0: a quarter of the pool; OMNIKV_PIN_NONE: nothing. A state that comes to a pinned block later counts
 *               in the sum, not in its client's half; what does not fit is not kept: lookups end before it until a pin ends
 * @flags:       OMNIKV_MANAGER_F_*
 */
struct omnikv_manager_config {
	size_t			size;
	const char		*eviction;
	struct omnikv_spill	*spill;
	uint32_t		spill_admit;
	uint32_t		staging_wait_ms;
	uint64_t		staging_bytes;
	uint64_t		pin_bytes;
	uint32_t		flags;
	uint32_t		reserved;
};

/** Keep the token ids of blocks (omnikv_space_note_tokens()), 4 bytes a token of the pool. Needs a pool that lasts. */
#define OMNIKV_MANAGER_F_TOKENS	(1u << 0)
/**
 * In a pool of the module the index is reached by a window: once another manager has taken the pool over by force, or the
 * pool was destroyed, this process gets SIGBUS where it would use the index, rather than write on what is no longer its own.
 * For programs that do nothing else, as omnikvd; without it such a manager writes on. Other pools cannot be taken over.
 */
#define OMNIKV_MANAGER_F_FENCED	(1u << 1)
#define OMNIKV_MANAGER_F_ALL	0x3u
#define OMNIKV_PIN_NONE		UINT64_MAX
#define OMNIKV_STAGING_NONE	UINT64_MAX

/**
 * @client must be the pool's manager (OMNIKV_CLIENT_F_MANAGER; -EPERM else) and outlive the manager; all
 * sequences' memory is its own. -EINVAL: unknown policy, or a staging reserve as large as the pool, named in @err. -EBUSY: the client has a manager.
 *
 * On a pool that lasts (a file, the module's, a daemon's) it has at once what an earlier manager cached, whether
 * that was closed or killed: namespaces, blocks, their checksums and their order of eviction. What of it fails a
 * check is dropped and counted, and what no block has is freed; @err says so in a line, also where the manager was made,
 * and is empty where all could be used. On any other pool it begins empty. The bytes of blocks are not read:
 * struct omnikv_pipe_config's @verify compares them with their checksums when they are loaded.
 *
 * A spill store of an older epoch than the pool's (omnikv_manager_raise_epoch()) has nothing that may be found; that is written to
 * it at once: -EIO, -ETIME and the like where it cannot be, -EROFS where the store is open read-only.
 */
OMNIKV_API int omnikv_manager_create(struct omnikv_client *client, const struct omnikv_manager_config *config,
				     struct omnikv_manager **manager, struct omnikv_error *err);

#define OMNIKV_ATTACH_F_ALL	0x0u

/**
 * struct omnikv_attach_config - how to attach to omnikvd
 * @flags:         OMNIKV_ATTACH_F_*
 * @deadline_ms:   of each request to the daemon, 1 to 600,000; 0 is 1000. Attaching itself takes at most 5 s, since a daemon
 *                 may be starting
 * @reserve_bytes: of the pool, had at omnikv_space_open() and kept for appends while the daemon does not answer, as far
 *                 as the daemon allows; 0: 8 MiB
 */
struct omnikv_attach_config {
	size_t			size;
	uint32_t		flags;
	uint32_t		deadline_ms;
	uint64_t		reserve_bytes;
};

/**
 * omnikv_manager_attach() - a manager whose index, eviction and pool are those of a running omnikvd
 * @socket:  path; NULL: the system's
 * @config:  NULL for defaults
 * @manager: end with omnikv_manager_destroy(); its client and pool (omnikv_manager_client(), omnikv_client_pool())
 *           end with it
 *
 * Every call on spaces, matches, sequences and pipelines holds as for a manager of one's own. What one process
 * commits all others hit, where it lies in the pool; leases end with their process. While the daemon is away
 * lookups find what this process uses itself, commits wait in a bounded queue, appends take from the reserve;
 * when it is back, all goes on by itself. Over a pool of the module there is no reserve: appends allocate from the
 * module, which is always there.
 *
 * Calls that ask the daemon can return, beside what each of them says, -ENOTCONN (no answer in time, or it ends), -ENOMEM
 * (there or here), -EPERM (in a forked child) and, once a daemon was started anew, what omnikv_space_open() returns there.
 *
 * Return: 0, or -ENOENT, -ECONNREFUSED (nobody serves @socket), -EACCES, -EPERM (the daemon refuses this user),
 * -EDQUOT (it has as many clients as it may), -EPROTONOSUPPORT (no version of the protocol in common), -ETIME (no answer),
 * -EMFILE (this process cannot have more open files), -ENOMEM, -EINVAL, each with one line in @err.
 */
OMNIKV_API int omnikv_manager_attach(const char *socket, const struct omnikv_attach_config *config,
				     struct omnikv_manager **manager, struct omnikv_error *err);

/**
 * omnikv_manager_destroy() - end a manager whose sequences and matches are closed
 *
 * On a pool that lasts the cached blocks stay for the next manager (omnikv_manager_reset() drops them first), on any other
 * they are freed; an attached one lets go of them. Its spaces end with it.
 *
 * Return: 0, or -EBUSY (a sequence or a match is open): nothing has ended.
 */
OMNIKV_API int omnikv_manager_destroy(struct omnikv_manager *manager);
OMNIKV_API struct omnikv_client *omnikv_manager_client(const struct omnikv_manager *manager);

/**
 * omnikv_space_open() - the namespace of these fields
 * @plan:   how its blocks are cut; its layout and block_tokens must be those of @ns, its granule the pool's
 * @notice: may be NULL; on success says when a namespace that differs in its layout (or block_tokens) alone
 *          holds blocks, and names the first differing field (those blocks will not hit); on failure says why
 *
 * A hash algorithm other than OMNIKV_HASH_OPAQUE declares that each key names its whole prefix: lookups then
 * search by position. Opaque keys are compared one by one, so that even keys that do not chain never hit another
 * prefix's block.
 *
 * The same fields give the same space. Close with omnikv_space_close(); cached blocks stay. No two
 * spaces ever share a hit.
 *
 * Return: 0, or -EINVAL (@ns and @plan do not fit each other or the pool), -EOPNOTSUPP (a group with reuse
 * "none"), -ENOSPC (the pool is smaller than one block), -ENOMEM.
 */
OMNIKV_API int omnikv_space_open(struct omnikv_manager *manager, const struct omnikv_namespace *ns,
				 const struct omnikv_plan *plan, struct omnikv_space **space,
				 struct omnikv_error *notice);
OMNIKV_API void omnikv_space_close(struct omnikv_space *space);
OMNIKV_API const struct omnikv_plan *omnikv_space_plan(const struct omnikv_space *space);
OMNIKV_API struct omnikv_manager *omnikv_space_manager(const struct omnikv_space *space);

/** How many leading keys are cached now; nothing is leased, so the answer may be old at once. */
OMNIKV_API int64_t omnikv_lookup(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys);

/**
 * omnikv_match() - the longest cached prefix, leased
 * @keys:  [nr_keys] keys of full blocks, in order
 * @tail:  key of a partial tail behind the full blocks, or NULL; used only when all of @keys hit
 * @match: result, also for a miss of everything (0 tokens); end with omnikv_match_put()
 *
 * Where the layout has state groups, the hit ends at the deepest block that has their checkpoint.
 *
 * Atomic with eviction: what is counted is leased. Counted in the statistics as one query; a tail's
 * tokens count when it hits (how many a missing one would have had is not known).
 *
 * Return: 0, or -EINVAL (a key that is none), -ENOMEM, -EOVERFLOW (65,535 leases end at one block).
 */
OMNIKV_API int omnikv_match(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys,
			    const struct omnikv_key *tail, struct omnikv_match **match);
OMNIKV_API uint64_t omnikv_match_blocks(const struct omnikv_match *match);	/* blocks, a partial tail included */
OMNIKV_API uint64_t omnikv_match_tokens(const struct omnikv_match *match);
OMNIKV_API uint32_t omnikv_match_tail_tokens(const struct omnikv_match *match);
OMNIKV_API void omnikv_match_put(struct omnikv_match *match);

/**
 * omnikv_space_prefetch() - a prompt with this prefix is going to come
 * @keys: [nr_keys] from the first block on
 *
 * What of it is on NVMe is brought back now, so that its lookup need not wait for the disk. Nothing is leased; it counts
 * as used. Waits for the disk itself.
 *
 * Return: how many leading blocks are in memory then, or -EINVAL, or of an attached manager
 *   -EBUSY       the daemon has too much to bring back already, for this process or for all: its lookup will do it
 *   -ENOTCONN, -ENOMEM
 */
OMNIKV_API int64_t omnikv_space_prefetch(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys);

/** It does not leave memory before the retention ends. */
#define OMNIKV_RETAIN_F_PIN	(1u << 0)
#define OMNIKV_RETAIN_F_ALL	0x1u

#define OMNIKV_PRIORITY_MAX	100u
#define OMNIKV_RETAIN_MS_MAX	86400000u
/** The session is over. */
#define OMNIKV_NEXT_USE_NEVER	UINT32_MAX

/**
 * struct omnikv_retention - why a prefix is worth its memory
 * @flags:       OMNIKV_RETAIN_F_*
 * @priority:    0 to OMNIKV_PRIORITY_MAX; the highest leaves last. 0 for pins
 * @session:     whose prefix it is: an agent, a conversation, a system prompt; any number but 0, of the caller's choosing
 * @ttl_ms:      after which it ends, at most OMNIKV_RETAIN_MS_MAX; 0: twice @next_use_ms. A pin has one
 * @next_use_ms: when the session is going to use it next, from now on; 0: not known. Of one priority what is used latest
 *               leaves first, what is not known before all others. OMNIKV_NEXT_USE_NEVER, with nothing else beside: the
 *               session is over, and what only it used leaves next
 */
struct omnikv_retention {
	size_t		size;
	uint32_t	flags;
	uint32_t	priority;
	uint64_t	session;
	uint32_t	ttl_ms;
	uint32_t	next_use_ms;
};

/**
 * omnikv_space_retain() - keep the cached begin of this prefix in memory
 * @keys, @tail: as omnikv_match(); what is on NVMe alone is not brought back
 *
 * A session retains one prefix of a namespace: the new one takes the place of the one before, also where nothing of it
 * is cached. Blocks that are retained leave after all others, the least worth one first; pins do not leave at all. All
 * that is hints are advice: together they protect at most a half of the pool, and what is worth less of the same client
 * makes way for what is worth more.
 *
 * A retention ends by its time, by omnikv_space_unretain(), with its process, by omnikv_manager_reset(), by
 * omnikv_manager_flush() and with the epoch. It does not outlive the manager. Where that is a daemon's, the process's
 * next request to the one that follows brings those that are left; until then nothing protects them.
 *
 * Return: how many leading blocks are retained now, or
 *   -EINVAL      a key or a value that is none, a pin without @ttl_ms, or nothing that would keep anything
 *   -EDQUOT      pins have reached their bound (struct omnikv_manager_config), there are too many retentions, or others
 *                of this client are all worth more; what was retained before stays
 *   -ENOTCONN, -EOPNOTSUPP (a daemon that knows of none), -ENOMEM, -EOVERFLOW (65,535 leases end at one block)
 */
OMNIKV_API int64_t omnikv_space_retain(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys,
				       const struct omnikv_key *tail, const struct omnikv_retention *retention);
/** What @session retains is as any other block again. -ENOENT: it retains nothing (any more); -ENOTCONN. */
OMNIKV_API int omnikv_space_unretain(struct omnikv_space *space, uint64_t session);

#define OMNIKV_PROMISE_MS_MAX	600000u

/**
 * omnikv_space_promise() - others can wait for these blocks instead of computing them too
 * @keys:       [nr_keys] that this process computes now and is going to commit
 * @timeout_ms: after which nobody waits any more, at most OMNIKV_PROMISE_MS_MAX; 0: not computed here any more
 *
 * A promise ends when its block is published, and with its process. Nothing else depends on it.
 *
 * Return: 0, or -EINVAL, -EOPNOTSUPP (the manager is not attached), -ENOTCONN, -ENOSPC (too many), -ENOMEM.
 */
OMNIKV_API int omnikv_space_promise(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys,
				    uint32_t timeout_ms);
/**
 * omnikv_space_wait() - wait for a block that another process computes
 *
 * Return: 1: it is cached; 0: it is not, and nobody computes it (any more); or -ETIME (somebody still does, or the daemon
 * does not answer), -EINVAL, -EOPNOTSUPP, -ENOTCONN, -ENOSPC (too many wait), -ENOMEM. One thread of a process waits at a time.
 */
OMNIKV_API int omnikv_space_wait(struct omnikv_space *space, const struct omnikv_key *key, uint32_t timeout_ms);

/**
 * omnikv_space_note_tokens() - what tokens these blocks stand for, for those that ask the manager's owner what is cached
 * @keys:   [nr_keys] of full blocks, one behind the other
 * @tokens: [nr_keys][T] token ids of these blocks, without those before them
 *
 * Before they are committed: then they are kept with the blocks, and come back with them after a restart. What is noted and not
 * committed is forgotten in time, at the latest when 16 MiB of others wait. Where nobody keeps them (OMNIKV_MANAGER_F_TOKENS,
 * omnikvd's setting "tokens") this does nothing.
 *
 * Return: 0, or -EINVAL, -ENOMEM (the pool has no room for them), -ENOTCONN.
 */
OMNIKV_API int omnikv_space_note_tokens(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys,
					const uint32_t *tokens);

/**
 * struct omnikv_join - one rank's part of a block
 * @key, @parent: of the block, and of the one before it (NULL at position 0)
 * @position:  blocks before it
 * @nr_tokens: T, or fewer for a partial tail, which ends within no entry of a group
 * @part:      0 to @nr_parts - 1, each by one contributor; at most OMNIKV_GROUPS_MAX
 * @groups:    bit per group of the layout that this part brings; no group comes from two
 * @extents, @crcs: [bits of @groups], by rising group: PRIVATE extents of the manager's client, whole and with
 *             their CRC32C (omnikv_plan_block_crc())
 * @timeout_ms: until all parts must be there, from the first one on; 1 to OMNIKV_PROMISE_MS_MAX
 * @epoch:     omnikv_space_epoch() from before the part was computed; its low 32 bits
 */
struct omnikv_join {
	size_t				size;
	const struct omnikv_key		*key;
	const struct omnikv_key		*parent;
	uint64_t			position;
	uint32_t			nr_tokens;
	uint32_t			part;
	uint32_t			nr_parts;
	uint32_t			groups;
	const struct omnikv_extent	*extents;
	const uint32_t			*crcs;
	uint32_t			timeout_ms;
	uint32_t			epoch;
};

/**
 * omnikv_commit_join() - commit one rank's part of a block
 *
 * The block is published, whole, with its last part: a lookup hits all of it, for all ranks and groups, or nothing.
 * Where a contributor's process ends before, or the time is over, all parts are dropped.
 * omnikv_space_wait() tells of both.
 *
 * Return: 1: that was the last part; 0: others are still to come; the extents are no longer the caller's.
 *   -EEXIST      the block is cached already: the extents are the caller's as before
 *   -EINVAL, -EBUSY (a transfer is on them), -ENOSPC, -ENOMEM: likewise
 *   -EOPNOTSUPP  the manager is not attached: likewise
 *   -ECANCELED   it contradicts the parts before, and all are dropped; or, in a pool of the module, something came
 *                between, and this part is. -ESTALE: the parent is not cached, or the epoch of the part is over, likewise
 *   -ENOTCONN    no answer: whether it was done is not known, and the extents end with the client
 */
OMNIKV_API int omnikv_commit_join(struct omnikv_space *space, const struct omnikv_join *join);

/**
 * omnikv_admit() - will this request fit?
 * @nr_tokens: tokens whose KV is not cached yet
 *
 * 1: yes, counting what could be evicted; 0: not now (leases in the way); -ENOSPC: never in this pool.
 * Nothing is reserved.
 */
OMNIKV_API int omnikv_admit(struct omnikv_space *space, uint64_t nr_tokens);

/**
 * Write every block that nothing leases to the spill store, as admitted, and give its memory back: before a
 * restart, so that the next manager finds them. Returns how many left memory; -EOPNOTSUPP without a store of this process's
 * own, -EINVAL, -ENOMEM.
 */
OMNIKV_API int64_t omnikv_manager_flush(struct omnikv_manager *manager);
/**
 * Drop every block that nothing leases, and give its memory back. A spill store keeps what it has. Returns how many, or
 * -EINVAL, -ENOTCONN.
 */
OMNIKV_API int64_t omnikv_manager_reset(struct omnikv_manager *manager);

/**
 * omnikv_manager_raise_epoch() - weights have changed: nothing that is cached now is hit again, by anybody
 *
 * At once, in every process that is attached, and after every restart. Sequences and matches keep what they hold.
 * Commits that wait for a daemon are forgotten, and a sequence that was opened before commits nothing any more: -ESTALE.
 * Of a spill store too: what it has goes as its room is used again.
 *
 * Return: the new epoch, or -EINVAL, -ENOTCONN, -ENOMEM, -EBUSY (the daemon has too much to do already), or -EIO, -ETIME and the
 * like: the spill store cannot note it. On an error
 * the old epoch goes on, or ends with the manager.
 */
OMNIKV_API int64_t omnikv_manager_raise_epoch(struct omnikv_manager *manager);
/**
 * omnikv_space_epoch() - which weights what is computed from now on is of
 *
 * Sequences note it by themselves; for struct omnikv_join. Sends nothing: while nobody can tell it is that of the last lookup.
 * Return: the epoch, or -EINVAL.
 */
OMNIKV_API int64_t omnikv_space_epoch(struct omnikv_space *space);

/** Counters since creation. Each token of a query is counted once: queried = hit + missed. */
struct omnikv_manager_stats {
	size_t		size;
	uint64_t	nr_queries;
	uint64_t	tokens_queried;
	uint64_t	tokens_hit;
	uint64_t	blocks_queried;
	uint64_t	blocks_hit;
	uint64_t	blocks_committed;
	uint64_t	blocks_deduplicated;	/* committed while already cached */
	uint64_t	blocks_evicted;
	uint64_t	hash_collisions;
	/* now */
	uint64_t	nr_blocks;
	uint64_t	nr_leased_blocks;	/* or pinned */
	uint64_t	cached_bytes;
	uint64_t	peak_used_bytes;	/* most of the pool ever in use at once */
	double		mean_run_blocks;	/* mean length of physically consecutive runs */
	/* of the spill store; blocks_hit counts its hits too */
	uint64_t	blocks_hit_nvme;	/* brought back for the query that counts them */
	uint64_t	blocks_hit_recovered;	/* of these, stored before the store was last opened */
	uint64_t	blocks_spilled;		/* written, or found there already, as they left memory */
	uint64_t	bytes_spilled;		/* written */
	uint64_t	blocks_fetched;
	uint64_t	bytes_fetched;
	uint64_t	blocks_not_admitted;	/* left memory without having been used twice */
	uint64_t	blocks_lost;		/* left memory and could not be stored */
	uint64_t	blocks_bad;		/* on NVMe, damaged or unreadable: never served */
	uint64_t	extents_lost;		/* that the pool did not take back: its records were overwritten */
	/* of an earlier manager of this pool */
	uint64_t	blocks_recovered;	/* cached there, and here from the start */
	uint64_t	blocks_dropped;		/* that failed a check */
	uint64_t	extents_freed;		/* sealed, but in no block that is there */
	uint64_t	index_bytes;		/* of the pool, now: what the index and its catalog take */
	uint64_t	blocks_staged;		/* of those fetched, through the staging reserve */
	uint64_t	lookups_without_room;	/* that left blocks on NVMe, since nothing of the pool could be had for them */
	/* of an attached manager */
	uint64_t	blocks_imported;	/* that others had cached and this process has used */
	uint64_t	blocks_published;	/* committed here and given to the daemon */
	uint64_t	blocks_unpublished;	/* committed here and never given to it */
	uint64_t	blocks_queued;		/* now: waiting to be given to it */
	/* of retentions; now */
	uint64_t	nr_retentions;
	uint64_t	pinned_bytes;
	uint64_t	pin_limit_bytes;
	uint64_t	retained_bytes;		/* by those that are no pins */
	/* ever */
	uint64_t	retentions_expired;	/* ended by their time */
	uint64_t	retentions_yielded;	/* made way */
};

OMNIKV_API int omnikv_manager_stats(struct omnikv_manager *manager, struct omnikv_manager_stats *stats);
/**
 * Of the daemon that @manager is attached to, over all its clients. Lookups of other clients that hit in memory are told by
 * their next call, or their end: those of an idle one may be missing. -EOPNOTSUPP: it is not attached; -ENOTCONN, -EINVAL.
 */
OMNIKV_API int omnikv_manager_shared_stats(struct omnikv_manager *manager, struct omnikv_manager_stats *stats);
/**
 * Walks all invariants; 0, or -EUCLEAN with the first broken one in @err (any extents_lost is one). For tests and debug builds: no
 * other thread may be inside a call on a sequence.
 */
OMNIKV_API int omnikv_manager_check(struct omnikv_manager *manager, struct omnikv_error *err);

#ifdef __cplusplus
}
#endif

#endif /* OMNIKV_MANAGER_H */

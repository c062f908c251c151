/* SPDX-License-Identifier: MIT */
/*
 * Sequences: an immutable chain of cached blocks plus a private tail.
 *
 * KV is append-only: a fork shares the chain and copies nothing but, at its first append,
 * the partial tail block. One thread uses a sequence at a time; different sequences may be
 * used by different threads.
 */
#ifndef OMNIKV_SEQUENCE_H
#define OMNIKV_SEQUENCE_H

#include <omnikv/manager.h>
#include <omnikv/ring.h>

#ifdef __cplusplus
extern "C" {
#endif

struct omnikv_seq;

/**
 * omnikv_seq_open() - a sequence that begins with the longest cached prefix
 * @keys, @nr_keys, @tail: as omnikv_match(); nr_keys 0 starts empty
 *
 * omnikv_seq_tokens() tells how long the prefix is. Its blocks stay leased until close. Counted and
 * returning as omnikv_match().
 */
OMNIKV_API int omnikv_seq_open(struct omnikv_space *space, const struct omnikv_key *keys, size_t nr_keys,
			       const struct omnikv_key *tail, struct omnikv_seq **seq);
/** Gives up leases and uncommitted blocks; memory under transfer is freed when the transfer is over. NULL is ignored. */
OMNIKV_API void omnikv_seq_close(struct omnikv_seq *seq);

#define OMNIKV_SEQ_BATCH_MAX	65536u

/**
 * omnikv_seq_open_batch() - many sequences, each as by omnikv_seq_open(), one after another
 * @prefixes: [nr]; they may have blocks in common, or be the same
 * @nr:       0 to OMNIKV_SEQ_BATCH_MAX
 * @seqs:     [nr] results, in the order of @prefixes; each ends by itself or with others
 *
 * What one lookup waits for memory is spent on the others, and what is asked and locked is so once for many: several
 * times as fast as one by one where each has a few blocks.
 *
 * Return: 0 (also where nothing hits), or an error of omnikv_seq_open(): then no sequence is open; lookups before the
 * one that failed stay counted. -EINVAL: also where @nr is over the maximum.
 */
OMNIKV_API int omnikv_seq_open_batch(struct omnikv_space *space, const struct omnikv_prefix *prefixes, size_t nr,
				     struct omnikv_seq **seqs);
/** Close @nr different sequences, in order; NULL among them, or for none, is ignored. */
OMNIKV_API void omnikv_seq_close_batch(struct omnikv_seq *const *seqs, size_t nr);
OMNIKV_API struct omnikv_space *omnikv_seq_space(const struct omnikv_seq *seq);

OMNIKV_API uint64_t omnikv_seq_tokens(const struct omnikv_seq *seq);		/* length, tokens */
OMNIKV_API uint64_t omnikv_seq_nvme_blocks(const struct omnikv_seq *seq);	/* that opening it brought back from NVMe */
OMNIKV_API uint64_t omnikv_seq_cached_tokens(const struct omnikv_seq *seq);	/* of these, from or in the cache */

/**
 * omnikv_seq_append() - room for @nr_tokens more tokens
 *
 * Allocates private blocks next to the last one, evicting inline as needed. The new rows'
 * bytes are undefined until they are stored. A partial block that is shared is copied first.
 * State groups get one extent an append, in the block that holds the last new token.
 *
 * A step loads the state at the end of the append before and stores the one at the end of this
 * append; older uncommitted ones are given up. A shared partial block is read when it is copied: what it
 * holds must have been stored before.
 *
 * Return: 0, or -ENOSPC (everything else is leased; at once, with nothing evicted in vain), -ENOMEM,
 * -EOVERFLOW, or of a daemon's pool what omnikv_extent_alloc() says; with the sequence's tokens unchanged.
 */
OMNIKV_API int omnikv_seq_append(struct omnikv_seq *seq, uint64_t nr_tokens);
/**
 * Drop tokens from the end, down to @nr_tokens. Blocks no longer used are given up. A state survives
 * only where it stands at @nr_tokens. -EINVAL when longer; -EOVERFLOW, with nothing changed, where 65,535
 * leases end at the block that becomes the last cached one.
 */
OMNIKV_API int omnikv_seq_truncate(struct omnikv_seq *seq, uint64_t nr_tokens);
/**
 * omnikv_seq_checkpoint() - where a sequence can go on after a loss
 *
 * With state groups a step can begin only where a state is that was stored whole; with several tokens an
 * entry only between entries.
 *
 * Return: the last such position not behind @at_most, 0 at worst; truncate to it and append again.
 */
OMNIKV_API uint64_t omnikv_seq_checkpoint(const struct omnikv_seq *seq, uint64_t at_most);
/** Share everything so far, O(1) in length. -ENOMEM, -EOVERFLOW (as above). */
OMNIKV_API int omnikv_seq_fork(struct omnikv_seq *seq, struct omnikv_seq **fork);

/**
 * omnikv_seq_commit() - publish blocks, so that lookups find them
 * @keys:  [nr_keys] keys of the sequence's first full blocks, from its start; those already
 *         committed are skipped: their keys are not compared with those that they were committed under
 * @tail:  key of the partial tail, published as well; NULL: the tail stays private
 *
 * The caller has seen all stores into these blocks complete. A block whose key is cached
 * already is given up in favour of the cached one. Zero-length blocks do not exist.
 *
 * A state group's checkpoint is published with the block whose end it stands at.
 *
 * Each block appears whole or not at all. After an error the blocks before the one that caused it are
 * published (omnikv_seq_cached_tokens() tells), the rest is the sequence's as before; call again.
 *
 * Return: the number of blocks newly published, or
 *   -EINVAL  more keys than full blocks; a bad key, or one that is cached for another prefix; a tail without
 *            all keys before it, or one that ends within an entry of a group
 *   -EBUSY   a transfer into a block is in flight
 *   -EIO     a store into it failed
 *   -ENOSPC  a tail had to be copied first
 *   -ESTALE  the epoch was raised since it, or what it is a fork of, was opened (omnikv_manager_raise_epoch()): its bytes are
 *            not to be published; open another one
 *   -ENOMEM, -EOVERFLOW
 */
OMNIKV_API int64_t omnikv_seq_commit(struct omnikv_seq *seq, const struct omnikv_key *keys, size_t nr_keys,
				     const struct omnikv_key *tail);

#define OMNIKV_GIVE_MS_MAX	600000u

/** Names a sequence on its way to another process. Nobody guesses one; whoever knows it, and opens the namespace, takes it. */
struct omnikv_ticket {
	uint8_t		bytes[16];
};

/**
 * omnikv_seq_give() - hand a sequence over, or a fork of it, to another process of the same daemon
 * @seq:        committed to its last token (a tail too); stays the caller's: to move it, close it after this
 * @timeout_ms: until somebody must have taken it, 1 to OMNIKV_GIVE_MS_MAX
 *
 * Its blocks are held from here on until they are taken or the time is over, whatever becomes of the caller: so there is
 * no moment at which nobody holds them. They count as pins (struct omnikv_manager_config). Within one process, and with a
 * manager of one's own, the same works between threads.
 *
 * Return: 0, or
 *   -EINVAL     not all of it is committed, or it is empty
 *   -ENOTCONN   the daemon does not answer, or has not got all of its blocks yet; commit again later
 *   -ENODATA    there is no state at its end to go on from
 *   -ESTALE     the epoch was raised, or the daemon has dropped it
 *   -EDQUOT     pins have reached their bound
 *   -EOPNOTSUPP (a daemon that knows of none), -ENOMEM, -EOVERFLOW (65,535 leases end at its last block), -EIO (no random numbers)
 */
OMNIKV_API int omnikv_seq_give(struct omnikv_seq *seq, uint32_t timeout_ms, struct omnikv_ticket *ticket);
/**
 * omnikv_seq_take() - take over a sequence
 * @space: the same namespace, opened here
 *
 * It is as if opened by omnikv_seq_open() with the keys of all of its blocks, and leased here before the ticket ends.
 * A process that dies before that leaves the ticket as it was, for another one. Of several that take it at once one has
 * it, as far as the daemon answers. Tickets end with the daemon; what they named stays cached.
 *
 * Return: 0, or
 *   -ESTALE     there is no such ticket: taken, over its time, of another namespace
 *   -EAGAIN     the ticket is there, and not all of its blocks could be had; try again
 *   -EINVAL, -ENOTCONN, -EOPNOTSUPP, -ENOMEM, -EOVERFLOW (as omnikv_seq_open()), -EPROTO (the answer is none)
 */
OMNIKV_API int omnikv_seq_take(struct omnikv_space *space, const struct omnikv_ticket *ticket, struct omnikv_seq **seq);

/**
 * omnikv_seq_pieces() - where the rows of one plane of one layer lie
 * @group, @layer_idx, @plane: index of the group, of the layer among the group's stored layers, of the plane
 * @from, @to:   tokens [from, to); for state groups the one row of the block that holds token @to - 1
 * @device_off:  device offset of the row of token @from; rows follow densely
 * @pieces:      [max] results, in order; each lies in one extent, so there is one a block
 *
 * With n tokens an entry these are entries [@from / n, @to / n), rounded down: those that are whole.
 *
 * Return: the number of pieces, or -ENOSPC (more than @max), -EINVAL (outside the sequence), -ENODATA (a
 * state group that has no state at @to).
 *
 * Context: never sleeps, allocates or takes a lock.
 */
OMNIKV_API int64_t omnikv_seq_pieces(const struct omnikv_seq *seq, uint32_t group, uint32_t layer_idx,
				     uint32_t plane, uint64_t from, uint64_t to, uint64_t device_off,
				     struct omnikv_piece *pieces, size_t max);

/**
 * omnikv_seq_block_crc() - CRC32C that a committed block must have
 *
 * Over the block's own rows and nothing else, in the order layer, plane, row: padding and the
 * unused rows of a partial tail do not count. -ENODATA while uncommitted, and where the sequence was
 * truncated within the block.
 */
OMNIKV_API int omnikv_seq_block_crc(const struct omnikv_seq *seq, uint64_t block_idx, uint32_t group, uint32_t *crc);

#ifdef __cplusplus
}
#endif

#endif /* OMNIKV_SEQUENCE_H */

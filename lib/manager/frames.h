/* SPDX-License-Identifier: MIT */
/*
 * What attached managers and omnikvd say to each other: frames of the manager, behind those of lib/wire.h.
 *
 * Owns their layout, and the checks that need nothing but the frame. Pure; any thread. Keys, extents
 * and sums stand behind the fixed part in that order, each list without padding.
 */
#ifndef OKV_FRAMES_H
#define OKV_FRAMES_H

#include "manager/authority.h"
#include "wire.h"

enum okv_frame_type {
	OKV_WIRE_SPACE_OPEN	= OKV_WIRE_MANAGER,
	OKV_WIRE_SPACE_CLOSE,	/* one way: struct okv_wire_space */
	OKV_WIRE_FIND,
	OKV_WIRE_PUBLISH,
	OKV_WIRE_STATE,
	OKV_WIRE_USE,		/* one way: a list of struct okv_wire_use */
	OKV_WIRE_DISTRUST,	/* one way: struct okv_wire_distrust */
	OKV_WIRE_ADMIT,
	OKV_WIRE_RESET,		/* no payload; the status is the number of blocks, INT32_MAX for more */
	OKV_WIRE_EPOCH,		/* no payload; reply struct okv_wire_epoch */
	OKV_WIRE_STATS,		/* no payload; reply struct omnikv_manager_stats of the daemon's library */
	OKV_WIRE_PROMISE,	/* struct okv_wire_promise and keys: somebody computes these */
	OKV_WIRE_WAIT,		/* struct okv_wire_wait: until it is cached (status 1), or nobody computes it (0) */
	OKV_WIRE_JOIN,
	OKV_WIRE_PREFETCH,	/* struct okv_wire_prefetch and keys from position 0; status: how many are in memory then */
	OKV_WIRE_RETAIN,	/* struct okv_wire_retain; status 1: without a key, what the session retained ended */
	OKV_WIRE_GIVE,		/* struct okv_wire_give; reply struct omnikv_ticket */
	OKV_WIRE_TAKE,		/* struct okv_wire_take; reply struct okv_wire_taken and keys */
	OKV_WIRE_TAKE_END,	/* struct okv_wire_take: whoever took it holds it now */
	OKV_WIRE_TOKENS,	/* struct okv_wire_tokens, keys and token ids: to be kept with blocks that are going to come */
	OKV_WIRE_FRAMES_END,
};

/** Keys of one frame. */
#define OKV_WIRE_KEYS_MAX	1800u
#define OKV_WIRE_TEXT_MAX	4096u
#define OKV_WIRE_USES_MAX	256u
#define OKV_WIRE_USES_SHORT	32u	/* to who does not have OKV_WIRE_FEATURE_LONG_USES */
#define OKV_WIRE_WAIT_MS_MAX	600000u
#define OKV_WIRE_SPACES_MAX	1024u	/* that one client has open */

/*
 * A space's number holds the begin of its identity: a connection that was made anew has numbers of its
 * own, and one of the old connection must not name another namespace there.
 */

/** Texts follow: tenant, weights, adapter, salt, the layout in JSON. */
struct okv_wire_space_open {
	uint32_t	block_tokens;
	uint32_t	hash_algorithm;
	uint32_t	scale;
	uint32_t	granule_bytes;
	uint64_t	epoch;
	uint32_t	lengths[5];
	uint32_t	reserved;
};

/** There is a spill store: FIND also brings back what is on it. */
#define OKV_SPACE_OPENED_F_TIER	(1u << 0)
/** Token ids are kept: TOKENS is understood. */
#define OKV_SPACE_OPENED_F_TOKENS	(1u << 1)

/**
 * struct okv_wire_space_opened
 * @space:    its number in later frames of this connection
 * @root_off: of the catalog, for readers (reader.h); 0: there is none to be read
 */
struct okv_wire_space_opened {
	uint64_t	space;
	uint64_t	root_off;
	uint32_t	nr_groups;
	uint32_t	flags;		/* OKV_SPACE_OPENED_F_* */
	uint8_t		identity[32];
	char		notice[256];
};

struct okv_wire_space {
	uint64_t	space;
};

/**
 * struct okv_wire_find - a lookup
 * @first:      block that is described first
 * @has_parent: 1: the keys are those from @first on, and that of the block before stands in front of them; else
 *              they begin with block 0. For prompts that are longer than a frame
 *
 * @nr_keys keys, and the tail's where @has_tail.
 */
struct okv_wire_find {
	uint64_t	space;
	uint64_t	first;
	uint32_t	flags;		/* OKV_FIND_F_* */
	uint32_t	nr_keys;
	uint32_t	has_tail;
	uint32_t	has_parent;
};

/** [nr][groups] extents, as many sums. */
struct okv_wire_found {
	uint64_t	nr_hit;
	uint32_t	tail_tokens;
	uint32_t	nr;
};

/** The parent's key where @has_parent, @nr keys, [nr][nr_groups] extents, as many sums. */
struct okv_wire_publish {
	uint64_t	space;
	uint32_t	position;
	uint32_t	nr;
	uint32_t	tail_tokens;
	uint32_t	has_parent;
	uint32_t	nr_groups;
	uint32_t	epoch;
};

/** @status: what okv_session_publish() returned. */
struct okv_wire_published {
	int32_t		status;
	uint32_t	nr;
	uint8_t		published[OKV_AUTHORITY_BLOCKS];
};

struct okv_wire_state {
	uint64_t		space;
	struct omnikv_extent	extent;
	uint32_t		group;
	uint32_t		crc;
	struct omnikv_key	key;
	uint32_t		epoch;
};

struct okv_wire_use {
	uint64_t		space;
	struct omnikv_key	last;		/* len 0: nothing hit */
	uint32_t		reserved;
	uint64_t		blocks_queried;
	uint64_t		blocks_hit;
	uint64_t		tokens_queried;
	uint64_t		tokens_hit;
};

/** A list; struct okv_wire_use follow. */
struct okv_wire_uses {
	uint32_t	count;
	uint32_t	reserved;
};

struct okv_wire_distrust {
	uint64_t		space;
	struct omnikv_key	key;
	uint32_t		reserved;
};

struct okv_wire_admit {
	uint64_t	nr_granules;
};

struct okv_wire_epoch {
	uint64_t	epoch;
};

/** @timeout_ms: of the promise; 0 withdraws it */
struct okv_wire_promise {
	uint8_t		identity[32];
	uint32_t	nr_keys;
	uint32_t	timeout_ms;
};

struct okv_wire_wait {
	uint8_t			identity[32];
	struct omnikv_key	key;
	uint32_t		timeout_ms;
};

/** Nothing is done yet: may it come as things are? Asked by owners who seal their part before they send it. */
#define OKV_WIRE_JOIN_F_ASK	(1u << 0)

/**
 * struct okv_wire_join - one part of a block; its extents and their sums follow, by rising group
 * @groups: bit per group that this part brings
 */
struct okv_wire_join {
	uint64_t		space;
	uint32_t		position;
	uint32_t		nr_tokens;
	uint32_t		part;
	uint32_t		nr_parts;
	uint32_t		groups;
	uint32_t		timeout_ms;
	struct omnikv_key	parent;
	struct omnikv_key	key;
	uint32_t		epoch;
	uint32_t		flags;
};

/** @first: 0, or the keys are those from there on, and that of the block before stands in front of them */
struct okv_wire_prefetch {
	uint64_t	space;
	uint32_t	nr_keys;
	uint32_t	first;
};

/** @key: of the last block of the path, at @position; len 0: nothing is retained any more */
struct okv_wire_retain {
	uint64_t		space;
	uint64_t		session;
	uint32_t		flags;
	uint32_t		priority;
	uint32_t		ttl_ms;
	uint32_t		next_use_ms;
	uint32_t		position;
	struct omnikv_key	key;
};

struct okv_wire_give {
	uint64_t		space;
	uint32_t		position;
	struct omnikv_key	key;
	uint32_t		timeout_ms;
	uint32_t		reserved;
};

/** @first: key wanted; 0 to end it */
struct okv_wire_take {
	uint64_t		space;
	struct omnikv_ticket	ticket;
	uint64_t		first;
};

/** @nr keys follow. */
struct okv_wire_taken {
	uint64_t	nr_blocks;
	uint32_t	nr;
	uint32_t	has_tail;
};

_Static_assert(sizeof(struct okv_wire_retain) == 72, "no padding");
_Static_assert(sizeof(struct okv_wire_give) == 56, "no padding");
_Static_assert(sizeof(struct okv_wire_take) == 32, "no padding");
/** @nr_keys keys, as many times @block_tokens token ids. */
struct okv_wire_tokens {
	uint64_t	space;
	uint32_t	nr_keys;
	uint32_t	block_tokens;
};

/** Token ids, and keys, of one frame. */
#define OKV_WIRE_TOKENS_MAX	8192u
#define OKV_WIRE_TOKENS_KEYS_MAX	512u

_Static_assert(sizeof(struct omnikv_key) == 36, "keys are packed");
_Static_assert(sizeof(struct okv_wire_space_open) == 48, "no padding");
_Static_assert(sizeof(struct okv_wire_space_opened) == 312, "no padding");
_Static_assert(sizeof(struct okv_wire_find) == 32, "no padding");
_Static_assert(sizeof(struct okv_wire_publish) == 32, "no padding");
_Static_assert(sizeof(struct okv_wire_published) == 72, "no padding");
_Static_assert(sizeof(struct okv_wire_state) == 72, "no padding");
_Static_assert(sizeof(struct okv_wire_use) == 80, "no padding");
_Static_assert(sizeof(struct okv_wire_distrust) == 48, "no padding");
_Static_assert(sizeof(struct okv_wire_wait) == 72, "no padding");
_Static_assert(sizeof(struct okv_wire_join) == 112, "no padding");
_Static_assert(sizeof(struct okv_wire_publish) + (OKV_AUTHORITY_BLOCKS + 1) * sizeof(struct omnikv_key) +
	       OKV_AUTHORITY_BLOCKS * OMNIKV_GROUPS_MAX * (sizeof(struct omnikv_extent) + 4) <=
	       OKV_WIRE_FRAME_MAX - sizeof(struct okv_wire_header), "a leaf fits into a frame");

/**
 * okv_frame_check() - is this the payload of a request?
 *
 * For types of enum okv_frame_type. Lengths, counts, flags, reserved words and keys; whether spaces and extents
 * are there is the manager's to say. @payload is aligned to 8 bytes.
 *
 * Return: 0, -EPROTO (length), -EINVAL (a field), -EOPNOTSUPP (no such frame).
 */
int okv_frame_check(uint32_t type, const void *payload, size_t len);
/** The same of a reply that succeeded to a request with @nr_groups groups a block. */
int okv_frame_reply_check(uint32_t type, uint32_t nr_groups, const void *payload, size_t len);

#endif /* OKV_FRAMES_H */

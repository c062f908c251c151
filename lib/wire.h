/* SPDX-License-Identifier: MIT */
/*
 * What a client and omnikvd say to each other: one frame a packet of an AF_UNIX SOCK_SEQPACKET socket.
 *
 * Owns the layout of the frames of connections and pools, and the checks that need nothing but the
 * frame. Frames of the manager stand in a header of their own, with types from OKV_WIRE_MANAGER on.
 * Pure; any thread. Both ends are on one host, so numbers are in its byte order.
 *
 *	client                                   omnikvd
 *	HELLO (versions, features)       ---->
 *	                                 <----   HELLO: the version to speak, features of both
 *	ATTACH                           ---->
 *	                                 <----   ATTACH + descriptors of pool and lease table
 *	any request, with an id          ---->
 *	                                 <----   its reply: same type and id, status, results
 *
 * A reply that failed has a negative errno as its status, and one line of text or nothing as its payload.
 * Where the daemon refuses the peer, it says so in such a reply of HELLO with the id 0, and closes.
 */
#ifndef OKV_WIRE_H
#define OKV_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <omnikv/pool.h>

#define OKV_WIRE_MAGIC		0x44564b4fu	/* "OKVD" */
/** What this build speaks: the newest version, and the oldest that it still understands. */
#define OKV_WIRE_VERSION	1u
#define OKV_WIRE_VERSION_OLDEST	1u
/** Bytes of a frame, header included. */
#define OKV_WIRE_FRAME_MAX	65536u
#define OKV_WIRE_PAYLOAD_MAX	(OKV_WIRE_FRAME_MAX - (uint32_t)sizeof(struct okv_wire_header))
#define OKV_WIRE_FDS_MAX	4u
/** A status below 0 is an errno up to this one. */
#define OKV_WIRE_ERRNO_MAX	4095
/** Extents of one list. */
#define OKV_WIRE_EXTENTS_MAX	4032u

/** What a peer can do beyond version 1; both ends use what both have. */
#define OKV_WIRE_FEATURE_LONG_USES	(1ull << 0)	/* lists of uses beyond OKV_WIRE_USES_SHORT, in manager/frames.h */
#define OKV_WIRE_FEATURES		OKV_WIRE_FEATURE_LONG_USES

enum okv_wire_type {
	OKV_WIRE_HELLO		= 1,
	OKV_WIRE_ATTACH		= 2,
	OKV_WIRE_REATTACH	= 3,
	OKV_WIRE_INFO		= 4,
	OKV_WIRE_ALLOC		= 5,
	OKV_WIRE_FREE		= 6,
	OKV_WIRE_SEAL		= 7,
	OKV_WIRE_QUERY		= 8,
	OKV_WIRE_LIST		= 9,
	OKV_WIRE_STATUS		= 10,
	OKV_WIRE_ROOM		= 11,
	OKV_WIRE_END		= 12,
	OKV_WIRE_MANAGER	= 64,
	OKV_WIRE_NR		= 128,
};

#define OKV_WIRE_F_REPLY	(1u << 0)
/** A request that wants no reply. */
#define OKV_WIRE_F_ONE_WAY	(1u << 1)
#define OKV_WIRE_F_ALL		0x3u

/**
 * struct okv_wire_header - first bytes of each frame; the same in all versions
 * @version: as agreed in HELLO; of HELLO itself, the newest that the sender speaks
 * @length:  bytes behind the header
 * @id:      the client's, returned in the reply
 * @status:  0 in requests; of a reply, 0 or more, or a negative errno
 */
struct okv_wire_header {
	uint32_t	magic;
	uint16_t	version;
	uint16_t	type;
	uint32_t	flags;
	uint32_t	length;
	uint64_t	id;
	int32_t		status;
	uint32_t	reserved;
};

/** Both ways. The reply's @version is the one to speak, its @features those of both. */
struct okv_wire_hello {
	uint32_t	version;
	uint32_t	version_oldest;
	uint64_t	features;
	char		program[32];	/* for people; ends with a zero */
};

enum okv_wire_pool {
	OKV_WIRE_POOL_SHARED,	/* descriptors of its memory come along */
	OKV_WIRE_POOL_KMOD,	/* the client opens the module's pool of this name by itself */
};

/** The client is the pool's manager; -EALREADY where the daemon is, -EBUSY where another client is. */
#define OKV_WIRE_ATTACH_F_MANAGER	(1u << 0)
/** For questions alone: no client of the pool comes of it, and no lease table. */
#define OKV_WIRE_ATTACH_F_LOOK		(1u << 1)
#define OKV_WIRE_ATTACH_F_ALL		0x3u

struct okv_wire_attach {
	uint32_t	flags;
	uint32_t	reserved;
};

/**
 * struct okv_wire_attached - reply to ATTACH and REATTACH
 * @client_id:     owner of this client's PRIVATE extents; REATTACH names it
 * @data_off:      of the linear map in the memory
 * @map_bytes:     of the whole memory: header, records, linear map
 * @lease_bytes:   of the lease table
 * @reserve_bytes: that the client may keep allocated ahead of need
 * @name:          of the module's pool; the reply has no descriptors then
 *
 * Descriptors: memory read-write and lease table; with ATTACH_F_LOOK memory read-write and read-only.
 */
struct okv_wire_attached {
	uint32_t	kind;		/* enum okv_wire_pool */
	uint32_t	client_id;
	uint32_t	granule_bytes;
	uint32_t	page_kind;
	uint64_t	nr_granules;
	uint64_t	data_off;
	uint64_t	map_bytes;
	uint64_t	lease_bytes;
	uint64_t	reserve_bytes;
	uint8_t		instance[16];
	char		name[40];
};

/**
 * struct okv_wire_reattach - go on as the client that lost its connection
 *
 * Descriptors: the memory read-write, by which the daemon knows its client again, and the lease table.
 */
struct okv_wire_reattach {
	uint32_t	client_id;
	uint32_t	flags;		/* as in ATTACH */
	uint8_t		instance[16];
};

/** Reply to INFO: struct omnikv_pool_info, fixed. */
struct okv_wire_info {
	uint64_t	asked_bytes;
	uint64_t	usable_bytes;
	uint64_t	overhead_bytes;
	uint64_t	free_bytes;
	uint64_t	state_bytes[OMNIKV_EXTENT_NR_STATES];
	uint64_t	nr_extents[OMNIKV_EXTENT_NR_STATES];
	uint64_t	largest_free_bytes;
	uint64_t	nr_granules;
	uint64_t	nr_placed;
	uint64_t	nr_runs_begun;
	uint64_t	node_bytes[OMNIKV_NODES_MAX];
	uint32_t	granule_bytes;
	uint32_t	nr_clients;
	uint32_t	page_kind;
	uint32_t	nr_nodes;
	uint8_t		instance[16];
};

#define OKV_WIRE_ALLOC_F_META	(1u << 0)
#define OKV_WIRE_ALLOC_F_AFTER	(1u << 1)
#define OKV_WIRE_ALLOC_F_ALL	0x3u

/**
 * struct okv_wire_alloc - the reply is a list: @count extents, and up to @nr_more that are there at once
 *
 * The bytes are not zeroed, except those of META: that is the client's to do.
 */
struct okv_wire_alloc {
	uint32_t		flags;
	uint32_t		nr_granules;
	uint32_t		count;
	uint32_t		nr_more;
	struct omnikv_extent	after;
};

/** FREE, SEAL; replies to ALLOC and LIST. */
struct okv_wire_extents {
	uint32_t		count;
	uint32_t		reserved;
	uint64_t		from;		/* LIST: the next granule to look at; else 0 */
	struct omnikv_extent	extents[];
};

struct okv_wire_query {
	struct omnikv_extent	extent;
};

struct okv_wire_queried {
	uint32_t	state;
	uint32_t	nr_refs;
	uint64_t	bytes;
	uint32_t	is_mine;
	uint32_t	reserved;
};

struct okv_wire_list {
	uint32_t	states;
	uint32_t	max;
	uint64_t	from;
};

/*
 * END: the client is over: its PRIVATE extents are given up. What its table still counts waits for that, or for the
 * end of the connection. Nothing but FREE may follow. No payload.
 */

/** ROOM: evict until @count extents of @nr_granules can be had. For clients of a module's pool. */
struct okv_wire_room {
	uint32_t	nr_granules;
	uint32_t	count;
};

/** STATUS: the reply lists the daemon's clients from number @from on. */
struct okv_wire_status {
	uint32_t	from;
	uint32_t	reserved;
};

/** One client, as people see it. @name may be cut; ends with a zero. */
struct okv_wire_client {
	uint32_t	client_id;
	uint32_t	pid;
	uint32_t	uid;
	uint32_t	flags;			/* OKV_WIRE_CLIENT_F_* */
	uint64_t	private_bytes;
	uint64_t	nr_leases;		/* leases, binds and transfers */
	uint64_t	seconds;		/* since it connected */
	char		name[32];
};

#define OKV_WIRE_CLIENT_F_ABSENT	(1u << 0)	/* alive, and without a connection */
#define OKV_WIRE_CLIENT_F_MANAGER	(1u << 1)
#define OKV_WIRE_CLIENTS_MAX		512u

/** @next: the number to ask from for more; 0: that was all */
struct okv_wire_clients {
	uint32_t		count;
	uint32_t		next;
	uint32_t		daemon_pid;
	uint32_t		reserved;
	uint64_t		seconds;	/* since the daemon began */
	struct okv_wire_client	clients[];
};

/**
 * okv_wire_header_check() - is this a whole frame that may come now?
 * @frame:    [@len] one packet
 * @version:  that both ends speak, or 0 before HELLO, which alone may come then
 * @is_reply: which way it goes
 * @header:   the header, on success
 *
 * Return: 0, -EPROTO (no frame, of another length than it says, an unknown flag, a reserved word that is
 * not zero, a status that none of these can have), -EPROTONOSUPPORT (of another version).
 */
int okv_wire_header_check(const void *frame, size_t len, uint32_t version, bool is_reply,
			  struct okv_wire_header *header);

/**
 * okv_wire_agree() - which version do these two speak?
 * @why: what to tell the other; may be NULL
 *
 * Return: the version, or -EPROTONOSUPPORT.
 */
int okv_wire_agree(const struct okv_wire_hello *theirs, struct omnikv_error *why);

/**
 * okv_wire_list_count() - items behind a fixed part whose first word is their number
 *
 * Return: how many, or -EPROTO where the payload is not as long as that, or they are over @max.
 */
int64_t okv_wire_list_count(const void *payload, size_t len, size_t fixed_bytes, size_t item_bytes, uint32_t max);

/**
 * okv_wire_request_check() - is the payload one that a request of a pool may have?
 *
 * For types below OKV_WIRE_MANAGER. @payload is aligned to 8 bytes.
 *
 * Return: 0, -EPROTO (length), -EINVAL (unknown flag, non-zero reserved word, a count that is 0 or over
 * its bound), -EOPNOTSUPP (no such request).
 */
int okv_wire_request_check(uint32_t type, const void *payload, size_t len);
/** The same for replies that succeeded, so that a client believes no daemon either. */
int okv_wire_reply_check(uint32_t type, const void *payload, size_t len);

#endif /* OKV_WIRE_H */

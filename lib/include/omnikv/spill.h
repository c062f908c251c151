/* SPDX-License-Identifier: MIT */
/*
 * Spill stores: a bounded, crash-consistent home of KV blocks on NVMe.
 *
 * A store is a directory (with one file in it), a file or a raw block device, and has one owner
 * at a time. It is a cache: whatever happens to it (a power cut, bit rot, a full disk, an error
 * of the device) costs hits and is never an error of the engine, and no wrong byte is served.
 *
 * Calls may come from any thread.
 */
#ifndef OMNIKV_SPILL_H
#define OMNIKV_SPILL_H

#include <omnikv/key.h>
#include <omnikv/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct omnikv_spill;

/** Look at a store without owning or changing it; the owner may be at work meanwhile. */
#define OMNIKV_SPILL_F_READ_ONLY	(1u << 0)
/** Do not ask for direct I/O. */
#define OMNIKV_SPILL_F_BUFFERED		(1u << 1)
/** Use pread and pwrite, not io_uring. */
#define OMNIKV_SPILL_F_PLAIN		(1u << 2)
/** -ENOENT where there is no store yet. */
#define OMNIKV_SPILL_F_OPEN_ONLY	(1u << 3)
#define OMNIKV_SPILL_F_ALL		0xfu

/**
 * struct omnikv_spill_config - how to open a store
 * @flags:          OMNIKV_SPILL_F_*
 * @capacity_bytes: hard cap on what the store takes; 0: what is there already, and at least four segments, or the device
 * @floor_bytes:    what must stay free in the file system; 0: a twentieth of it, at most 1 GiB
 * @segment_bytes:  a multiple of 4096; 0: chosen from the capacity. An existing store keeps its own.
 * @deadline_ms:    of each request to the disk; 0: 10 s
 * @queue_depth:    requests under way at once; 0: measured
 * @owner:          a name for messages to whoever finds the store taken; NULL: "omnikv"
 * @pool:           memory that blocks will move from and to, registered with the kernel; may be NULL. Outlives the store.
 * @notice:         one line for the operator when something degrades and when it is well again; may be NULL
 * @opaque:         handed to it
 */
struct omnikv_spill_config {
	size_t			size;
	uint32_t		flags;
	uint32_t		queue_depth;
	uint64_t		capacity_bytes;
	uint64_t		floor_bytes;
	uint64_t		segment_bytes;
	uint32_t		deadline_ms;
	uint32_t		reserved;
	const char		*owner;
	struct omnikv_pool	*pool;
	omnikv_notice_fn	notice;
	void			*opaque;
};

/**
 * omnikv_spill_open() - open or make a store
 * @path: a directory (made where there is none), a file or a block device
 *
 * Reads tables of segments, not blocks. What a crash left half done is left out.
 *
 * Return: 0, or -EINVAL (capacity under four segments), -EBUSY (another owner, named in @err), -EBADMSG (no spill
 * store, nothing was changed), -EPROTO or -EOPNOTSUPP (a later format), -ENOENT, -EIO, -ENOSPC, -ENOMEM, -EACCES.
 */
OMNIKV_API int omnikv_spill_open(const char *path, const struct omnikv_spill_config *config,
				 struct omnikv_spill **spill, struct omnikv_error *err);
/** Makes everything durable first. No manager uses it any more. */
OMNIKV_API void omnikv_spill_close(struct omnikv_spill *spill);
struct omnikv_hbm;		/* see omnikv/device.h */
struct omnikv_spill_block;	/* see omnikv/ring.h */

/**
 * omnikv_spill_read_device() - a block from NVMe to the device's memory, past the host's (GPUDirect Storage)
 * @ns:         [32] identity of its namespace
 * @device_off: [block->nr_parts] where each part goes in @hbm
 * @bytes:      [block->nr_parts] of each part, as it was stored
 *
 * Reads that very block, or nothing. Its checksum is compared at its first read since the store was opened, for which it
 * is read to the host's memory as well. Waits for the disk.
 *
 * Return: 0, or -EOPNOTSUPP (no libcufile here, or it does not serve this store; the notice of the store's configuration
 * says why, once: use a FETCH and a LOAD), -EINVAL, -ENOENT, -EBADMSG, -EIO, -ETIME, -ENOMEM; what is in @hbm is undefined
 * after -EIO.
 */
OMNIKV_API int omnikv_spill_read_device(struct omnikv_spill *spill, const uint8_t *ns,
					const struct omnikv_spill_block *block, struct omnikv_hbm *hbm,
					const uint64_t *device_off, const uint64_t *bytes);
/** What was stored before is durable: it is there after a power cut. 0, -EIO, -ETIME. */
OMNIKV_API int omnikv_spill_sync(struct omnikv_spill *spill);

/**
 * struct omnikv_spill_stats - the store now, and counters since it was opened
 *
 * write_bytes / stored_bytes is the wear: bytes written to the disk for each byte of KV stored.
 */
struct omnikv_spill_stats {
	size_t		size;
	uint64_t	capacity_bytes;		/* that records can use */
	uint64_t	used_bytes;		/* of segments in use */
	uint64_t	peak_bytes;		/* most of that since opening */
	uint64_t	live_bytes;		/* of KV that would be found */
	uint64_t	segment_bytes;
	uint64_t	nr_segments;
	uint64_t	nr_free_segments;
	uint64_t	nr_records;
	uint64_t	recovered_records;	/* found at opening */
	uint64_t	recovered_scanned;	/* segments of these without a table: read batch by batch */
	uint64_t	lost_segments;		/* could not be read at opening */
	double		open_s;

	uint64_t	stored_records;
	uint64_t	stored_bytes;
	uint64_t	write_bytes;
	uint64_t	read_records;
	uint64_t	read_bytes;
	uint64_t	moved_records;		/* kept when their segment was reclaimed */
	uint64_t	reclaimed_segments;
	uint64_t	reclaimed_records;
	uint64_t	bad_records;		/* failed their checksum, never served */
	uint64_t	nr_errors;		/* of the disk */
	uint64_t	nr_timeouts;
	uint64_t	refused_records;	/* not stored while the disk was full or failing */

	uint32_t	is_direct;
	uint32_t	is_uring;
	uint32_t	is_registered;		/* the pool's memory, with the kernel */
	uint32_t	is_degraded;		/* stores are refused now */
	uint32_t	queue_depth;
	uint32_t	owner_pid;		/* who has it; 0: nobody is known */
};

OMNIKV_API int omnikv_spill_stats(struct omnikv_spill *spill, struct omnikv_spill_stats *stats);

/** Keep bad records from being found again, also after the next opening. */
#define OMNIKV_SPILL_CHECK_F_QUARANTINE	(1u << 0)

struct omnikv_spill_check {
	size_t		size;
	uint32_t	flags;			/* in: OMNIKV_SPILL_CHECK_F_* */
	uint32_t	reserved;
	uint64_t	nr_records;
	uint64_t	nr_bytes;		/* of KV read */
	uint64_t	nr_bad;			/* wrong checksum */
	uint64_t	nr_unreadable;		/* the disk's error */
	uint64_t	nr_quarantined;
	char		first_bad[128];		/* where, in words; empty if none */
};

/**
 * omnikv_spill_check() - read and verify every record
 * @progress: may be NULL
 *
 * Return: 0 when it ran to its end, whatever it found; -EPERM (quarantine in a store that is open for reading
 * only), -EINVAL, -ENOMEM.
 */
OMNIKV_API int omnikv_spill_check(struct omnikv_spill *spill, struct omnikv_spill_check *check,
				  omnikv_progress_fn progress, void *opaque);

#ifdef __cplusplus
}
#endif

#endif /* OMNIKV_SPILL_H */

/* SPDX-License-Identifier: MIT */
/*
 * The thin interface between the spill store and whatever it stands on.
 *
 * A disk is a row of bytes: a file, a block device, or (in tests) memory that loses power. It
 * reads and writes whole pages in lists, makes what was written durable, reserves and gives
 * back space, and tells the time. Nothing about formats is known below here, nothing about
 * system calls above.
 *
 * One thread at a time is inside a disk.
 */
#ifndef OKV_SPILL_DISK_H
#define OKV_SPILL_DISK_H

#include <stdbool.h>
#include <stdint.h>

#include <omnikv/pool.h>

/**
 * struct okv_disk_io - one run of pages
 * @off, @bytes: multiples of 4096; @buf is aligned to 4096 too
 * @res:   result: 0, or a negative errno; reading behind the end yields zeroes
 * @begin: called just before it is handed over, while others are under way already; may be NULL
 * @done:  called when it has succeeded, while others are still under way; may be NULL
 */
struct okv_disk_io {
	uint64_t	off;
	void		*buf;
	uint64_t	bytes;
	bool		is_write;
	int		res;
	void		(*begin)(void *opaque, struct okv_disk_io *io);
	void		(*done)(void *opaque, struct okv_disk_io *io);
	void		*opaque;
};

struct okv_disk;

/**
 * struct okv_disk_ops
 * @run:      do all of @ios, in any order, within @deadline_ns; 0 with each @res set, or -ETIME:
 *            some are still under way and their memory is in use until @is_idle says otherwise
 * @sync:     what was written before is durable; 0 or a negative errno
 * @reserve:  room for these bytes will not run out; -ENOSPC, -EDQUOT, -EFBIG; 0 also where that cannot be had
 * @discard:  these bytes are not needed; a hint
 * @free_bytes: what the file system could still give
 * @bytes:    length of the disk now
 * @is_idle:  nothing that was begun is still under way
 * @now_ns:   a clock that only rises
 * @keep:     hold this descriptor open, beside its owner, while anything is under way; -1 no more. NULL: cannot
 */
struct okv_disk_ops {
	int		(*run)(struct okv_disk *disk, struct okv_disk_io *ios, uint32_t nr, uint64_t deadline_ns);
	int		(*sync)(struct okv_disk *disk);
	int		(*reserve)(struct okv_disk *disk, uint64_t off, uint64_t bytes);
	void		(*discard)(struct okv_disk *disk, uint64_t off, uint64_t bytes);
	uint64_t	(*free_bytes)(struct okv_disk *disk);
	uint64_t	(*bytes)(struct okv_disk *disk);
	bool		(*is_idle)(struct okv_disk *disk);
	uint64_t	(*now_ns)(struct okv_disk *disk);
	void		(*keep)(struct okv_disk *disk, int fd);
	void		(*close)(struct okv_disk *disk);
};

struct okv_disk {
	const struct okv_disk_ops *ops;
};

/**
 * struct okv_disk_file_config
 * @queue_depth: 0: measured
 * @memory:      registered with the ring, so that the kernel need not look it up each time; may be NULL
 */
struct okv_disk_file_config {
	bool			is_read_only;
	bool			is_buffered;
	bool			is_plain;
	uint32_t		queue_depth;
	void			*memory;
	uint64_t		memory_bytes;
	omnikv_notice_fn	notice;
	void			*opaque;
};

struct okv_disk_file_info {
	bool		is_direct;
	bool		is_uring;
	bool		is_registered;
	bool		is_device;
	uint32_t	queue_depth;
};

/**
 * okv_disk_file_open() - a disk on an open file or block device
 * @fd: becomes the disk's, also where this fails
 */
int okv_disk_file_open(int fd, const struct okv_disk_file_config *config, struct okv_disk **disk);
/** The descriptor, which stays the disk's. */
int okv_disk_file_fd(const struct okv_disk *disk);
void okv_disk_file_info(const struct okv_disk *disk, struct okv_disk_file_info *info);

#endif /* OKV_SPILL_DISK_H */

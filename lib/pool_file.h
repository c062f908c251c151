/* SPDX-License-Identifier: MIT */
/*
 * How a pool lies in its file: one page of header, one record a granule, the data.
 *
 * Pure: arithmetic and checks; reading, locking and mapping are provider_memfd.c's. Anonymous
 * pools have the same shape. Everything is in the byte order of the host, which the magic tells.
 *
 *	0                4096                       data_off          data_off + data_bytes
 *	| header, zeros  | records [nr_granules]    | granules         |
 */
#ifndef OKV_POOL_FILE_H
#define OKV_POOL_FILE_H

#include <omnikv/types.h>

#define OKV_POOL_MAGIC		0x31564b494e4d4f00ull
#define OKV_POOL_VERSION	1u
#define OKV_POOL_HEADER_BYTES	4096u
/** Where nobody says. */
#define OKV_POOL_GRANULE_BYTES	4096u
#define OKV_POOL_GRANULES_MAX	0xffffff00ull

/**
 * struct okv_pool_header - first bytes of the file
 * @magic:       OKV_POOL_MAGIC
 * @crc:         CRC32C of all before it
 * @holder_pid:  process that has it open, or had it last
 * @is_ready:    0 until the pool is made whole: a file that was left before that is made anew
 * @is_clean:    1 when closed in order, with everything written back
 * @boot_id:     of the host when it was opened last: memory that was not written back and another
 *               boot mean that nothing in the file can be trusted
 */
struct okv_pool_header {
	uint64_t	magic;
	uint32_t	version;
	uint32_t	granule_bytes;
	uint64_t	nr_granules;
	uint64_t	asked_bytes;
	uint64_t	data_off;
	uint64_t	data_bytes;
	uint8_t		instance[16];
	uint32_t	rec_bytes;
	uint32_t	crc;
	/* Fixed no longer. */
	uint32_t	holder_pid;
	uint32_t	is_ready;
	uint32_t	is_clean;
	uint32_t	reserved;
	char		boot_id[40];
};

/**
 * okv_pool_header_make() - the shape of a pool of @asked_bytes
 *
 * Whole granules only; records and data each fill whole 2-MiB units, so that both can be huge pages.
 *
 * Return: 0, or -EINVAL (less than one granule, or too many; @err has both numbers).
 */
int okv_pool_header_make(uint64_t asked_bytes, uint32_t granule_bytes, struct okv_pool_header *header,
			 struct omnikv_error *err);
/** Set @crc once every field before it is final. */
void okv_pool_header_seal(struct okv_pool_header *header);
/**
 * okv_pool_header_check() - is this the header of a pool that this library can open?
 * @buf:        the first @len bytes of the file
 * @file_bytes: the file's length
 * @header:     the header, on success
 *
 * Return: 0, or -EBADMSG with the field in @err.
 */
int okv_pool_header_check(const void *buf, size_t len, uint64_t file_bytes, struct okv_pool_header *header,
			  struct omnikv_error *err);

/**
 * struct okv_huge_state - the host's pool of 2-MiB pages, and what a pool of ours got of it: nothing
 * @nr_needed:   pages that it needs
 * @nr_free:     of @nr_total; those that others have reserved, @nr_reserved, are among them
 * @is_declined: none were asked for
 * @error:       errno of asking for them; 0: too few, seen before
 */
struct okv_huge_state {
	uint64_t	nr_needed;
	uint64_t	nr_total;
	uint64_t	nr_free;
	uint64_t	nr_reserved;
	bool		is_declined;
	int		error;
};

/**
 * struct okv_huge_advice - how a pool gets the huge pages that it lacks
 * @found:   "0 free huge pages where 512 are needed"
 * @command: what to do; it never makes the host's pool smaller
 */
struct okv_huge_advice {
	char	found[160];
	char	command[160];
};

void okv_huge_advice_make(const struct okv_huge_state *state, struct okv_huge_advice *advice);

#endif /* OKV_POOL_FILE_H */

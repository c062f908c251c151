/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A disk in memory that remembers what was written when, so that it can lose power at any moment.
 *
 * Every write and every sync is an entry of its journal. An image is what the disk may hold
 * after a power cut: everything up to some sync, and of what was written since then any
 * subset, in any order, the last of them torn. Requests can be made to fail.
 */
#ifndef OKV_TESTS_SIM_DISK_H
#define OKV_TESTS_SIM_DISK_H

#include "spill/disk.h"

struct sim_entry {
	bool		is_sync;
	uint64_t	off;
	uint64_t	bytes;
	uint8_t		*data;
};

/**
 * struct sim_disk
 * @base:      contents
 * @undo:      where it is on, what writes have replaced, so that they can be taken back
 * @fail_nth:  the so-manieth call (from 1) that fails; 0: none
 * @fail_times: how many in a row do; UINT32_MAX: for ever
 * @nr_calls:  of run's requests, sync and reserve
 * @is_stuck:  the requests under way do not come back
 * @stick_nth: the so-manieth list of requests (from 1) does not come back in time; 0: none
 */
struct sim_disk {
	struct okv_disk		disk;
	uint8_t			*base;
	uint64_t		bytes;
	uint64_t		free_bytes;

	struct sim_entry	*journal;
	uint32_t		nr_entries;
	uint32_t		room;
	bool			is_logging;

	struct sim_entry	*undo;
	uint32_t		nr_undo;
	uint32_t		undo_room;
	bool			is_undoing;

	uint64_t		fail_nth;
	uint32_t		fail_times;
	int			fail_error;
	uint64_t		nr_calls;
	uint64_t		now_ns;
	bool			is_stuck;
	uint64_t		stick_nth;
};

void sim_disk_init(struct sim_disk *sim, uint64_t bytes);
void sim_disk_fini(struct sim_disk *sim);
/** Write straight to the contents (remembered for undo). */
void sim_disk_poke(struct sim_disk *sim, uint64_t off, const void *data, uint64_t bytes);
/** Take back everything since is_undoing was set. */
void sim_disk_undo(struct sim_disk *sim);

#endif /* OKV_TESTS_SIM_DISK_H */

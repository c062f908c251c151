/* SPDX-License-Identifier: MIT */
/*
 * What the manager may see of an open spill store: the store itself.
 * The fields are fixed after opening unless it says otherwise; spill.c owns them.
 */
#ifndef OKV_SPILL_SPILL_H
#define OKV_SPILL_SPILL_H

#include "spill/store.h"

/* The store, in the directory that was named for it. */
#define OKV_SPILL_FILE_NAME	"omnikv.spill"

struct omnikv_spill {
	struct okv_store	*store;
	struct okv_disk		*disk;
	bool			is_simulated;	/* tests: the disk is no file */
	uint32_t		owner_pid;
	struct okv_gds		*gds;		/* under the store's io_lock; NULL: not yet, or not to be had */
	bool			is_gds_tried;
	omnikv_notice_fn	notice;
	void			*opaque;
};

#endif /* OKV_SPILL_SPILL_H */

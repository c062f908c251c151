/* SPDX-License-Identifier: MIT */
/*
 * What the manager may see of an open spill store: the store itself.
 * The fields are fixed after opening; spill.c owns them.
 */
#ifndef OKV_SPILL_SPILL_H
#define OKV_SPILL_SPILL_H

#include "spill/store.h"

struct omnikv_spill {
	struct okv_store	*store;
	struct okv_disk		*disk;
	bool			is_simulated;	/* tests: the disk is no file */
	uint32_t		owner_pid;
};

#endif /* OKV_SPILL_SPILL_H */

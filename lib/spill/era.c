// SPDX-License-Identifier: MIT
/*
 * Eras of a spill store: what was written in an earlier one is not found any more.
 *
 * An era is a number that is part of every name by which the manager stores and looks up (okv_store_era()), so what is
 * older is out of reach in one step, however much it is, and goes as segments are reclaimed. It stands on a page of
 * its own, with the manager's epoch, in one sector: a power cut leaves the old or the new. It is there before the store
 * is, so one that is damaged, zeroed or not to be read begins an era, since what it forbade is not known. Any thread.
 *
 * The page also has the mark: how many segments may ever have been written. It is on the disk before the first write behind
 * it, so that whoever opens the store need not look there.
 */
#include "spill/store.h"

#include <errno.h>
#include <string.h>

#include "failpoint.h"

static int era_write(struct okv_store *store, const struct okv_spill_era *era)
{
	int ret;

	okv_era_encode(store->super.uuid, era, store->header);
	store->ios[0] = (struct okv_disk_io){
		.off = OKV_SPILL_ERA_OFF, .buf = store->header, .bytes = OKV_SPILL_PAGE, .is_write = true,
	};
	ret = okv_store_run(store, 1);
	return ret ? ret : store->disk->ops->sync(store->disk);
}

/* Never one that this store has had: the nonce is of this opening, and an epoch comes once in it. */
static uint64_t era_new(const struct okv_store *store, uint64_t epoch)
{
	return (store->nonce ^ (epoch + 1) * 0x9e3779b97f4a7c15ull) | 1;
}

static bool has_mark(const struct okv_store *store)
{
	return store->super.features & OKV_SPILL_FEATURE_MARK;
}

uint64_t okv_store_nr_begun(const struct okv_store *store)
{
	return has_mark(store) ? store->era.nr_begun : UINT64_MAX;
}

int okv_store_begins(struct okv_store *store, uint32_t index)
{
	struct okv_spill_era era = store->era;
	int ret;

	if (index < okv_store_nr_begun(store))
		return 0;
	/* Some more at once, which are looked at in vain: a 64th of all. */
	era.nr_begun = (uint64_t)index + 1 + store->nr_segments / 64;
	ret = era_write(store, &era);
	if (ret)
		return ret;
	(void)OKV_FAILPOINT("spill.marked");
	pthread_mutex_lock(&store->lock);
	store->era = era;
	pthread_mutex_unlock(&store->lock);
	return 0;
}

int okv_store_era_create(struct okv_store *store)
{
	return era_write(store, &store->era);
}

int okv_store_era_load(struct okv_store *store)
{
	int ret;

	store->ios[0] = (struct okv_disk_io){ .off = OKV_SPILL_ERA_OFF, .buf = store->header, .bytes = OKV_SPILL_PAGE };
	ret = okv_store_run(store, 1);
	if (ret == -ETIME)
		return ret;
	if (!ret)
		ret = okv_era_decode(store->header, store->super.uuid, &store->era);
	if (!ret)
		return 0;
	/* Any segment may have been written. */
	store->era = (struct okv_spill_era){ .number = era_new(store, 0), .nr_begun = has_mark(store) ? UINT64_MAX : 0 };
	okv_store_notice(store, "the page of the store's era is damaged: what was stored is not found any more");
	if (store->config.is_read_only)
		return 0;
	/* Where that fails, the next opening begins another era. */
	ret = era_write(store, &store->era);
	return ret == -ETIME ? ret : 0;
}

void okv_store_era(struct okv_store *store, struct okv_spill_era *era)
{
	pthread_mutex_lock(&store->lock);
	*era = store->era;
	pthread_mutex_unlock(&store->lock);
}

int okv_store_era_begin(struct okv_store *store, uint64_t epoch)
{
	struct okv_spill_era era;
	int ret;

	pthread_mutex_lock(&store->io_lock);
	era = store->era;
	era.epoch = epoch;
	if (epoch < store->era.epoch)
		era.epoch = store->era.epoch;
	era.number = era_new(store, ++store->nr_eras + era.epoch);
	ret = store->config.is_read_only ? -EROFS : !store->disk->ops->is_idle(store->disk) ? -ETIME : era_write(store, &era);
	if (!ret) {
		pthread_mutex_lock(&store->lock);
		store->era = era;
		pthread_mutex_unlock(&store->lock);
	}
	pthread_mutex_unlock(&store->io_lock);
	return ret;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Rest for the memory of dead clients: a transfer that a client began may end after the client,
 * and must not write into the next owner's bytes. Filled when a client ends; emptied by one
 * delayed work, which looks at each entry every OKV_LOOK_MS.
 *
 * An entry may go when no folio below it has a reference that page tables and the pool do not
 * explain: nobody can write any more but by a mapping. Where others have registered a folio
 * (io_uring, RDMA, CUDA) it has some for as long as they live, 512 or, where they hold large
 * folios as one, a single one; so that whose they are cannot be told, and an entry goes at the
 * latest okv_quarantine_ms after the client's file and its mm are gone. A library's rings hold
 * its client file: with that its transfers have ended.
 */
#include <linux/jiffies.h>
#include <linux/slab.h>

#include "okv.h"

#define OKV_LOOK_MS	20

static void look(struct work_struct *work);

static DEFINE_MUTEX(quarantine_lock);
static LIST_HEAD(quarantine);
static DECLARE_DELAYED_WORK(look_work, look);

static bool may_go(const struct okv_hold *hold)
{
	struct okv_pool *pool = hold->rest_pool;
	struct okv_client *client = hold->rest_client;

	if (okv_segment_foreign_refs(&pool->seg, hold->ext.granule * pool->granule_pages,
				     (u64)hold->ext.nr_granules * pool->granule_pages) <= 0)
		return true;
	/* Pairs with the release in the client's two ends. */
	if (!smp_load_acquire(&client->is_file_gone) || !smp_load_acquire(&client->is_mm_gone))
		return false;
	return time_after(jiffies, READ_ONCE(client->gone_at) + msecs_to_jiffies(okv_quarantine_ms));
}

static void let_go(struct okv_hold *hold)
{
	struct okv_pool *pool = hold->rest_pool;

	spin_lock(&pool->map_lock);
	okv_extent_put(&pool->map, hold->ext.granule, 1);
	spin_unlock(&pool->map_lock);
	list_del(&hold->rest_link);
	okv_client_put(hold->rest_client);
	okv_pool_put(pool);
	kmem_cache_free(okv_hold_cache, hold);
}

static void look(struct work_struct *work)
{
	struct okv_hold *hold, *next;
	bool is_empty;

	guard(mutex)(&quarantine_lock);
	list_for_each_entry_safe(hold, next, &quarantine, rest_link) {
		struct okv_pool *pool = hold->rest_pool;
		bool is_over = true;

		/* Who drops the segment waits for our lock in okv_quarantine_forget(). */
		if (READ_ONCE(pool->state) == OKV_POOL_LIVE)
			is_over = may_go(hold);
		if (is_over)
			let_go(hold);
		cond_resched();
	}
	is_empty = list_empty(&quarantine);
	if (!is_empty)
		queue_delayed_work(okv_wq, &look_work, msecs_to_jiffies(OKV_LOOK_MS));
}

void okv_quarantine_add(struct okv_hold *hold, struct okv_client *client, struct okv_pool *pool)
{
	kref_get(&client->ref);
	kref_get(&pool->ref);
	hold->rest_client = client;
	hold->rest_pool = pool;
	mutex_lock(&quarantine_lock);
	list_add_tail(&hold->rest_link, &quarantine);
	mutex_unlock(&quarantine_lock);
}

void okv_quarantine_kick(void)
{
	mod_delayed_work(okv_wq, &look_work, 0);
}

void okv_quarantine_forget(struct okv_pool *pool)
{
	struct okv_hold *hold, *next;

	guard(mutex)(&quarantine_lock);
	list_for_each_entry_safe(hold, next, &quarantine, rest_link)
		if (hold->rest_pool == pool)
			let_go(hold);
}

/* Each entry pins its pool, and that the module: the list is empty. */
void okv_quarantine_exit(void)
{
	cancel_delayed_work_sync(&look_work);
	WARN_ON_ONCE(!list_empty(&quarantine));
}

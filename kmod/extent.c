// SPDX-License-Identifier: GPL-2.0-only
/*
 * Extents of a pool and what a client holds of them. The arithmetic is core/extent.c's; this
 * file counts who has what, clears memory, and hands a dead client's memory to the quarantine.
 * Entered with client->lock held, by the client's own calls or by whoever ends it.
 */
#include <linux/highmem.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "okv.h"

/* ---- holds ---------------------------------------------------------------------------- */

/* What the client has of this very extent, or NULL. */
static struct okv_hold *hold_find(struct okv_attach *attach, const struct omnikv_extent *ext)
{
	struct okv_hold *hold = xa_load(&attach->holds, ext->granule);

	if (hold && (hold->ext.generation != ext->generation || hold->ext.nr_granules != ext->nr_granules))
		return NULL;
	return hold;
}

struct okv_hold *okv_hold_get(struct okv_attach *attach, const struct omnikv_extent *ext)
{
	struct okv_hold *hold;
	int ret;

	lockdep_assert_held(&attach->client->lock);
	if (ext->granule >= attach->pool->nr_granules)
		return ERR_PTR(-ESTALE);
	hold = xa_load(&attach->holds, ext->granule);
	if (hold) {
		if (hold->ext.generation != ext->generation)
			return ERR_PTR(-ESTALE);
		return hold->ext.nr_granules == ext->nr_granules ? hold : ERR_PTR(-EINVAL);
	}
	hold = kmem_cache_zalloc(okv_hold_cache, GFP_KERNEL);
	if (!hold)
		return ERR_PTR(-ENOMEM);
	hold->ext = *ext;
	ret = xa_err(xa_store(&attach->holds, ext->granule, hold, GFP_KERNEL_ACCOUNT));
	if (ret) {
		kmem_cache_free(okv_hold_cache, hold);
		return ERR_PTR(ret);
	}
	return hold;
}

static void hold_free(struct okv_hold *hold)
{
	kvfree(hold->places);
	kmem_cache_free(okv_hold_cache, hold);
}

void okv_hold_tidy(struct okv_attach *attach, struct okv_hold *hold)
{
	if (hold->is_private || hold->nr_leases || hold->nr_ios || hold->nr_binds)
		return;
	xa_erase(&attach->holds, hold->ext.granule);
	hold_free(hold);
}

static void tidy_list(struct okv_attach *attach, const struct omnikv_extent *exts, u32 count)
{
	u32 i;

	for (i = 0; i < count; i++) {
		/* By number, not by pointer: a list may name an extent twice. */
		struct okv_hold *hold = xa_load(&attach->holds, exts[i].granule);

		if (hold)
			okv_hold_tidy(attach, hold);
	}
}

/* ---- allocation ----------------------------------------------------------------------- */

static int clear_extent(struct okv_pool *pool, const struct omnikv_extent *ext)
{
	u64 page = ext->granule * pool->granule_pages;
	u64 end = page + (u64)ext->nr_granules * pool->granule_pages;

	for (; page < end; page++) {
		clear_highpage(okv_segment_page(&pool->seg, page));
		if (!(page & 255)) {
			if (fatal_signal_pending(current))
				return -EINTR;
			cond_resched();
		}
	}
	return 0;
}

static void undo_alloc(struct okv_attach *attach, const struct omnikv_extent *exts, u32 count)
{
	struct okv_pool *pool = attach->pool;
	u32 i;

	spin_lock(&pool->map_lock);
	for (i = 0; i < count; i++)
		okv_extent_end(&pool->map, exts[i].granule);
	spin_unlock(&pool->map_lock);
	for (i = 0; i < count; i++) {
		struct okv_hold *hold = hold_find(attach, &exts[i]);

		if (hold) {
			hold->is_private = false;
			okv_hold_tidy(attach, hold);
		}
	}
}

static int publish_meta(struct okv_attach *attach, const struct omnikv_extent *exts, u32 count)
{
	struct okv_pool *pool = attach->pool;
	u32 i;

	guard(mutex)(&pool->lock);
	if (!okv_attach_is_manager_locked(attach))
		return -EPERM;
	spin_lock(&pool->map_lock);
	for (i = 0; i < count; i++)
		okv_extent_publish_meta(&pool->map, exts[i].granule);
	spin_unlock(&pool->map_lock);
	return 0;
}

static int check_alloc(struct okv_attach *attach, const struct omnikv_batch_op *op, u64 bytes)
{
	struct okv_pool *pool = attach->pool;
	bool is_manager;

	mutex_lock(&pool->lock);
	is_manager = okv_attach_is_manager_locked(attach);
	mutex_unlock(&pool->lock);
	if (op->flags & OMNIKV_BATCH_ALLOC_F_META)
		return is_manager ? 0 : -EPERM;
	if (op->flags & OMNIKV_BATCH_ALLOC_F_NO_ZERO && !is_manager && !(pool->flags & OMNIKV_CREATE_F_TRUSTED))
		return -EPERM;
	if (pool->client_bytes &&
	    (bytes > pool->client_bytes || attach->private_bytes > pool->client_bytes - bytes))
		return -EDQUOT;
	return 0;
}

int okv_extents_alloc(struct okv_attach *attach, const struct omnikv_batch_op *op, u32 count,
		      struct omnikv_extent *out)
{
	struct okv_pool *pool = attach->pool;
	u32 nr = op->extent.nr_granules, i;
	struct okv_extent_view view;
	u64 granules, bytes;
	int ret;

	if (check_mul_overflow((u64)nr, (u64)count, &granules) ||
	    check_mul_overflow(granules, (u64)pool->granule_bytes, &bytes))
		return -ENOSPC;
	ret = check_alloc(attach, op, bytes);
	if (ret)
		return ret;

	spin_lock(&pool->map_lock);
	view.name.nr_granules = 0;
	if (op->flags & OMNIKV_BATCH_ALLOC_F_AFTER && op->extent.granule < pool->nr_granules)
		okv_extent_view(&pool->map, op->extent.granule, &view);
	/* Where no extent begins the length means nothing, and neither does the wish. */
	ret = okv_extent_alloc(&pool->map, nr, count,
			       op->flags & OMNIKV_BATCH_ALLOC_F_AFTER && view.name.nr_granules ? &view.name : NULL,
			       attach->id, out);
	spin_unlock(&pool->map_lock);
	if (ret)
		return ret;

	for (i = 0; i < count && !ret; i++) {
		struct okv_hold *hold = okv_hold_get(attach, &out[i]);

		if (IS_ERR(hold)) {
			ret = PTR_ERR(hold);
			break;
		}
		hold->is_private = true;
		hold->cookie = op->cookie;
		if (!(op->flags & OMNIKV_BATCH_ALLOC_F_NO_ZERO))
			ret = clear_extent(pool, &out[i]);
	}
	if (!ret && op->flags & OMNIKV_BATCH_ALLOC_F_META) {
		ret = publish_meta(attach, out, count);
		if (!ret) {
			for (i = 0; i < count; i++)
				hold_find(attach, &out[i])->is_private = false;
			tidy_list(attach, out, count);
			return 0;
		}
	}
	if (ret) {
		undo_alloc(attach, out, count);
		return ret;
	}
	attach->private_bytes += bytes;
	return 0;
}

/* ---- lists ---------------------------------------------------------------------------- */

/* PRIVATE no more: sealed or freed. */
static void leave_private(struct okv_attach *attach, const struct omnikv_extent *exts, u32 count)
{
	u32 i;

	for (i = 0; i < count; i++) {
		struct okv_hold *hold = hold_find(attach, &exts[i]);

		if (!hold || !hold->is_private)
			continue;
		hold->is_private = false;
		attach->private_bytes -= (u64)hold->ext.nr_granules * attach->pool->granule_bytes;
		okv_hold_tidy(attach, hold);
	}
}

int okv_extents_free(struct okv_attach *attach, const struct omnikv_extent *exts, u32 count)
{
	struct okv_pool *pool = attach->pool;
	int ret;

	/* No takeover between the question who manages and the answer. */
	mutex_lock(&pool->lock);
	spin_lock(&pool->map_lock);
	ret = okv_extent_free_list(&pool->map, exts, count, attach->id, okv_attach_is_manager_locked(attach));
	spin_unlock(&pool->map_lock);
	mutex_unlock(&pool->lock);
	if (!ret)
		leave_private(attach, exts, count);
	return ret;
}

static int check_list(struct okv_attach *attach, const struct omnikv_extent *exts, u32 count, enum okv_op op)
{
	struct okv_pool *pool = attach->pool;
	int ret;

	lockdep_assert_held(&pool->map_lock);
	ret = okv_extent_check_list(&pool->map, exts, count, op, attach->id,
				    READ_ONCE(pool->manager) == attach);
	if (!ret)
		okv_extent_unmark_list(&pool->map, exts, count);
	return ret;
}

int okv_extents_seal(struct okv_attach *attach, const struct omnikv_extent *exts, u32 count, u32 epoch)
{
	struct okv_pool *pool = attach->pool;
	int ret;
	u32 i;

	spin_lock(&pool->map_lock);
	ret = check_list(attach, exts, count, OKV_OP_SEAL);
	spin_unlock(&pool->map_lock);
	for (i = 0; i < count && !ret; i++) {
		struct okv_hold *hold = hold_find(attach, &exts[i]);

		if (WARN_ON_ONCE(!hold))
			ret = -EIO;
		else if (hold->nr_ios)
			ret = -EBUSY;
	}
	if (ret)
		return ret;

	/*
	 * PRIVATE extents change by their owner only, and its lock is held: the check holds. No
	 * window shows them for writing any more, and none will, before they become immutable.
	 */
	for (i = 0; i < count; i++) {
		struct okv_hold *hold = hold_find(attach, &exts[i]);

		okv_window_unbind_hold(attach, hold);
		if (WARN_ON_ONCE(hold->nr_binds))
			return -EBUSY;
	}
	mutex_lock(&pool->lock);
	/* A new manager looks for sealed extents once: a late one must not slip past it. */
	if (epoch && epoch != pool->epoch) {
		ret = -ESTALE;
	} else {
		spin_lock(&pool->map_lock);
		for (i = 0; i < count; i++)
			okv_extent_seal(&pool->map, exts[i].granule);
		spin_unlock(&pool->map_lock);
	}
	mutex_unlock(&pool->lock);
	if (!ret)
		leave_private(attach, exts, count);
	return ret;
}

int okv_extents_get(struct okv_attach *attach, const struct omnikv_extent *exts, u32 count, enum okv_op op)
{
	struct okv_pool *pool = attach->pool;
	u32 i, nr_held = 0;
	int ret = 0;

	if (count > okv_leases_max || attach->nr_leases > okv_leases_max - count)
		return -EDQUOT;
	for (; nr_held < count; nr_held++) {
		struct okv_hold *hold = okv_hold_get(attach, &exts[nr_held]);

		if (IS_ERR(hold)) {
			ret = PTR_ERR(hold);
			break;
		}
	}
	if (!ret) {
		spin_lock(&pool->map_lock);
		ret = check_list(attach, exts, count, op);
		for (i = 0; i < count && !ret; i++)
			okv_extent_get(&pool->map, exts[i].granule, 1);
		spin_unlock(&pool->map_lock);
	}
	if (ret) {
		tidy_list(attach, exts, nr_held);
		return ret;
	}
	for (i = 0; i < count; i++) {
		struct okv_hold *hold = hold_find(attach, &exts[i]);

		if (op == OKV_OP_LEASE)
			hold->nr_leases++;
		else
			hold->nr_ios++;
	}
	attach->nr_leases += count;
	atomic64_add(count, &pool->nr_leases);
	return 0;
}

int okv_extents_put(struct okv_attach *attach, const struct omnikv_extent *exts, u32 count, enum okv_op op)
{
	struct okv_pool *pool = attach->pool;
	int ret;
	u32 i;

	spin_lock(&pool->map_lock);
	ret = check_list(attach, exts, count, op);
	spin_unlock(&pool->map_lock);
	for (i = 0; i < count && !ret; i++) {
		struct okv_hold *hold = hold_find(attach, &exts[i]);

		if (!hold || !(op == OKV_OP_RELEASE ? hold->nr_leases : hold->nr_ios))
			ret = -EPERM;
	}
	if (ret)
		return ret;

	/* What is put now has kept the extents, so that the check still holds. */
	spin_lock(&pool->map_lock);
	for (i = 0; i < count; i++)
		okv_extent_put(&pool->map, exts[i].granule, 1);
	spin_unlock(&pool->map_lock);
	for (i = 0; i < count; i++) {
		struct okv_hold *hold = hold_find(attach, &exts[i]);

		if (op == OKV_OP_RELEASE)
			hold->nr_leases--;
		else
			hold->nr_ios--;
		okv_hold_tidy(attach, hold);
	}
	attach->nr_leases -= count;
	atomic64_sub(count, &pool->nr_leases);
	return 0;
}

/* ---- questions ------------------------------------------------------------------------ */

static u32 state_word(const struct okv_extent_view *view, const struct okv_attach *attach)
{
	bool is_mine = view->state == OMNIKV_EXTENT_PRIVATE && view->owner == attach->id;

	return view->state | (is_mine ? OMNIKV_STATE_F_MINE : 0);
}

int okv_extent_query(struct okv_attach *attach, struct omnikv_batch_op *op)
{
	struct okv_pool *pool = attach->pool;
	struct okv_extent_view view;
	struct okv_hold *hold;
	int ret;

	spin_lock(&pool->map_lock);
	ret = okv_extent_check(&pool->map, &op->extent, OKV_OP_QUERY, attach->id, false);
	if (!ret)
		okv_extent_view(&pool->map, op->extent.granule, &view);
	spin_unlock(&pool->map_lock);
	if (ret)
		return ret;
	hold = hold_find(attach, &op->extent);
	op->cookie = hold && hold->is_private ? hold->cookie : 0;
	op->count = view.nr_refs;
	op->state = state_word(&view, attach);
	return 0;
}

#define LOOKS_MAX	1024	/* extents looked at before the lock is dropped */

int okv_extent_list(struct okv_attach *attach, u32 states, u64 *from, struct omnikv_extent_entry *out,
		    u32 *count)
{
	struct okv_pool *pool = attach->pool;
	struct okv_extent_view view;
	u32 nr = 0, cursor, looks;
	bool is_more = true, is_manager;

	mutex_lock(&pool->lock);
	is_manager = okv_attach_is_manager_locked(attach);
	mutex_unlock(&pool->lock);
	if (!states || states & ~((1u << OMNIKV_EXTENT_NR_STATES) - 2))
		return -EINVAL;
	if (states != 1u << OMNIKV_EXTENT_PRIVATE && !is_manager)
		return -EPERM;
	if (*from >= pool->nr_granules) {
		*from = ~0ULL;
		*count = 0;
		return 0;
	}

	cursor = *from;
	while (is_more && nr < *count) {
		spin_lock(&pool->map_lock);
		for (looks = 0; looks < LOOKS_MAX && nr < *count; looks++) {
			is_more = okv_extent_map_next(&pool->map, &cursor, &view);
			if (!is_more)
				break;
			if (!(states & 1u << view.state) ||
			    (view.state == OMNIKV_EXTENT_PRIVATE && view.owner != attach->id))
				continue;
			out[nr++] = (struct omnikv_extent_entry) {
				.extent = view.name, .state = state_word(&view, attach),
				.nr_refs = view.nr_refs,
			};
		}
		spin_unlock(&pool->map_lock);
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	*from = is_more ? cursor : ~0ULL;
	*count = nr;
	while (nr--) {
		struct okv_hold *hold = hold_find(attach, &out[nr].extent);

		if (hold && hold->is_private)
			out[nr].cookie = hold->cookie;
	}
	return 0;
}

/* ---- the end -------------------------------------------------------------------------- */

/*
 * May a transfer that the client began still reach the extent? Asked once here, so that what nobody
 * else refers to is free when the client's end returns; the quarantine asks the others again.
 */
static bool must_rest(struct okv_pool *pool, const struct okv_hold *hold)
{
	/* What it could write, and what it said that a transfer still uses. */
	if (!hold->is_private && !hold->nr_ios)
		return false;
	guard(rwsem_read)(&pool->users);
	return pool->state == OKV_POOL_LIVE &&
	       okv_segment_foreign_refs(&pool->seg, hold->ext.granule * pool->granule_pages,
					(u64)hold->ext.nr_granules * pool->granule_pages) > 0;
}

void okv_extents_end(struct okv_attach *attach)
{
	struct okv_pool *pool = attach->pool;
	struct okv_hold *hold;
	unsigned long granule;

	lockdep_assert_held(&attach->client->lock);
	xa_for_each(&attach->holds, granule, hold) {
		bool is_resting = must_rest(pool, hold);

		WARN_ON_ONCE(hold->nr_binds);
		xa_erase(&attach->holds, granule);
		kvfree(hold->places);
		hold->places = NULL;
		spin_lock(&pool->map_lock);
		if (hold->nr_leases + hold->nr_ios)
			okv_extent_put(&pool->map, granule, hold->nr_leases + hold->nr_ios);
		if (is_resting)
			okv_extent_get(&pool->map, granule, 1);
		if (hold->is_private)
			okv_extent_end(&pool->map, granule);
		spin_unlock(&pool->map_lock);
		if (is_resting)
			okv_quarantine_add(hold, attach->client, pool);
		else
			kmem_cache_free(okv_hold_cache, hold);
		cond_resched();
	}
	atomic64_sub(attach->nr_leases, &pool->nr_leases);
	attach->nr_leases = 0;
	attach->private_bytes = 0;
	/* Were these the last leases of a dead pool? */
	if (READ_ONCE(pool->state) == OKV_POOL_DEAD)
		okv_pool_kick(pool);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Windows: one file, one VMA, a map of what is bound where, and the page tables that show it.
 * Leaves who may bind what to the holds of extent.c. Entered by batches of the client (bind,
 * unbind), by faults of its mm, by release of the file, and by whoever ends client or pool.
 *
 * window->lock serialises all of these. A page table entry exists only where the map has an
 * entry for the same page: an entry of the map goes after unmap_mapping_range(), and a fault
 * fills in only what it finds in the map under the lock.
 */
#include <linux/file.h>
#include <linux/mman.h>
#include <linux/pagemap.h>
#include <linux/slab.h>

#include "compat.h"
#include "okv.h"

#define FAULT_PAGES	16	/* filled around a fault: 64 KiB */
#define FILL_PAGES	64	/* handed to vm_insert_pages() at once; on the stack */
#define PLACES_MAX	65536	/* of one PRIVATE extent in windows */

static void *block_alloc(void)
{
	return (void *)get_zeroed_page(GFP_KERNEL_ACCOUNT);
}

static void block_free(void *block)
{
	free_page((unsigned long)block);
}

/* Pages of binds go; caller holds client->lock. */
struct drop {
	struct okv_attach	*attach;
	struct okv_hold		*only;		/* of this extent; NULL is of all */
};

static bool drop_wants(void *opaque, uintptr_t owner)
{
	return ((struct okv_bind *)owner)->hold == ((struct drop *)opaque)->only;
}

/* The last page of a bind is gone. */
static void bind_end(struct okv_attach *attach, struct okv_bind *bind)
{
	struct okv_hold *hold = bind->hold;

	spin_lock(&attach->pool->map_lock);
	okv_extent_put(&attach->pool->map, hold->ext.granule, 1);
	spin_unlock(&attach->pool->map_lock);
	kmem_cache_free(okv_bind_cache, bind);
	hold->nr_binds--;
	okv_hold_tidy(attach, hold);
}

static void drop_run(void *opaque, uintptr_t owner, uint64_t first, uint64_t nr)
{
	struct drop *drop = opaque;
	struct okv_attach *attach = drop->attach;
	struct okv_bind *bind = (struct okv_bind *)owner;

	lockdep_assert_held(&attach->client->lock);
	attach->nr_bound -= nr;
	bind->nr_left -= nr;
	if (!bind->nr_left)
		bind_end(attach, bind);
}

static void zap(struct okv_window *win, u64 first, u64 nr)
{
	lockdep_assert_held(&win->lock);
	atomic64_inc(&win->pool->nr_zaps);
	unmap_mapping_range(win->file->f_mapping, (loff_t)first << PAGE_SHIFT, (loff_t)nr << PAGE_SHIFT, 0);
}

/*
 * Fill page tables for [first, first + nr) from the map. -EBUSY: an entry was there before,
 * which shows the same page. Caller holds mmap_lock (or the fault's own lock) and win->lock.
 */
static int fill(struct okv_window *win, struct vm_area_struct *vma, u64 first, u64 nr)
{
	struct page *pages[FILL_PAGES];
	u64 at = first, end = first + nr, page = 0;
	int ret = 0;

	lockdep_assert_held(&win->lock);
	while (at < end) {
		unsigned long n = okv_winmap_run(&win->map, at, min_t(u64, end - at, FILL_PAGES), &page);
		unsigned long left, i;
		struct folio *folio;

		if (!n) {
			at++;
			continue;
		}
		/* Pages of one folio at a time: it is locked while they are mapped. */
		n = min_t(u64, n, OKV_UNIT_PAGES - page % OKV_UNIT_PAGES);
		folio = page_folio(okv_segment_page(&win->pool->seg, page));
		if (!folio_test_large(folio))
			n = 1;
		for (i = 0; i < n; i++)
			pages[i] = okv_segment_page(&win->pool->seg, page + i);
		left = n;
		/* 6.1 wants it locked where a page of a large folio becomes mapped. */
		folio_lock(folio);
		ret = vm_insert_pages(vma, vma->vm_start + (at << PAGE_SHIFT), pages, &left);
		folio_unlock(folio);
		if (ret && ret != -EBUSY)
			return ret;
		at += n;
	}
	return ret;
}

/* ---- the VMA -------------------------------------------------------------------------- */

static bool is_epoch_over(const struct okv_window *win)
{
	return win->kind == OMNIKV_WINDOW_META && READ_ONCE(win->pool->epoch) != win->epoch;
}

static vm_fault_t window_fault(struct vm_fault *vmf)
{
	struct vm_area_struct *vma = vmf->vma;
	struct okv_window *win = vma->vm_file->private_data;
	u64 page, nr;
	int ret;

	/* A copy that fork made although it was asked not to. */
	if (vma->vm_mm != win->client->mm)
		return VM_FAULT_SIGBUS;

	guard(mutex)(&win->lock);
	if (win->is_dead || is_epoch_over(win) || vmf->pgoff >= win->nr_pages)
		return VM_FAULT_SIGBUS;
	nr = okv_winmap_run(&win->map, vmf->pgoff, FAULT_PAGES - vmf->pgoff % FAULT_PAGES, &page);
	if (!nr)
		return VM_FAULT_SIGBUS;
	ret = fill(win, vma, vmf->pgoff, nr);
	if (ret == -ENOMEM)
		return VM_FAULT_OOM;
	return ret && ret != -EBUSY ? VM_FAULT_SIGBUS : VM_FAULT_NOPAGE;
}

/*
 * fork copies a window only after MADV_DOFORK; then the child's is empty and stays so. Kernels
 * differ in whether fork copies the entries before this call or after it (6.1 did both in its
 * life): what is there already is zapped, of the parent too, which faults it in again.
 */
static void window_vma_open(struct vm_area_struct *vma)
{
	struct okv_window *win = vma->vm_file->private_data;

	if (vma->vm_mm == win->client->mm)
		return;
	vm_flags_set(vma, VM_WIPEONFORK);
	mutex_lock(&win->lock);
	zap(win, 0, win->nr_pages);
	mutex_unlock(&win->lock);
}

static void window_vma_close(struct vm_area_struct *vma)
{
	struct okv_window *win = vma->vm_file->private_data;

	if (vma->vm_mm != win->client->mm)
		return;
	mutex_lock(&win->lock);
	/* A refused mremap opens and closes a second one elsewhere. */
	if (win->addr == vma->vm_start)
		win->is_mapped = false;
	mutex_unlock(&win->lock);
}

static int window_vma_split(struct vm_area_struct *vma, unsigned long addr)
{
	return -EINVAL;
}

static int window_vma_mremap(struct vm_area_struct *vma)
{
	return -EINVAL;
}

static const struct vm_operations_struct okv_window_vm_ops = {
	.fault		= window_fault,
	.open		= window_vma_open,
	.close		= window_vma_close,
	.may_split	= window_vma_split,
	.mremap		= window_vma_mremap,
};

static int window_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct okv_window *win = file->private_data;

	if (vma->vm_mm != win->client->mm)
		return -EPERM;
	if (!(vma->vm_flags & VM_SHARED) || vma->vm_pgoff || vma_pages(vma) != win->nr_pages)
		return -EINVAL;
	if (vma->vm_flags & VM_EXEC || (win->kind == OMNIKV_WINDOW_RO && vma->vm_flags & VM_WRITE))
		return -EACCES;

	guard(mutex)(&win->lock);
	if (win->is_dead)
		return -ENODEV;
	if (win->is_mapped)
		return -EBUSY;
	win->is_mapped = true;
	win->addr = vma->vm_start;
	vm_flags_set(vma, VM_MIXEDMAP | VM_DONTEXPAND | VM_DONTDUMP | VM_DONTCOPY);
	vm_flags_clear(vma, VM_MAYEXEC | (win->kind == OMNIKV_WINDOW_RO ? VM_MAYWRITE : 0));
	vma->vm_ops = &okv_window_vm_ops;
	return 0;
}

/* ---- bind ----------------------------------------------------------------------------- */

/*
 * Forget places where the extent was bound once and is not now. The maps of the client's windows
 * change under client->lock only, which is held. The youngest may be of binds that are being made.
 */
static void tidy_places(struct okv_attach *attach, struct okv_hold *hold)
{
	struct drop drop = { .attach = attach, .only = hold };
	u32 i, nr = 0;

	for (i = 0; i < hold->nr_places; i++) {
		struct okv_place *place = &hold->places[i];
		struct okv_window *win = xa_load(&attach->client->windows, place->window_id);

		if (i + OKV_BIND_GROUP >= hold->nr_places ||
		    (win && okv_winmap_any(&win->map, place->first, place->nr, drop_wants, &drop)))
			hold->places[nr++] = *place;
	}
	hold->nr_places = nr;
}

static int add_place(struct okv_attach *attach, struct okv_hold *hold, struct okv_window *win, u64 first, u64 nr)
{
	struct okv_place *places, *last = hold->nr_places ? &hold->places[hold->nr_places - 1] : NULL;
	bool is_full;

	/* Pieces one behind the other are one place; so is the same piece again. */
	if (last && last->window_id == win->id) {
		if (first >= last->first && first + nr <= last->first + last->nr)
			return 0;
		if (first == last->first + last->nr) {
			last->nr += nr;
			return 0;
		}
	}
	is_full = hold->nr_places == hold->max_places;
	if (is_full)
		tidy_places(attach, hold);
	/* Larger where it is still half full, so that tidying is rare. */
	if (is_full && hold->nr_places >= hold->max_places / 2) {
		u32 max = hold->max_places ? hold->max_places * 2 : 4;

		if (max > PLACES_MAX)
			return -EDQUOT;
		places = kvmalloc_array(max, sizeof(*places), GFP_KERNEL_ACCOUNT);
		if (!places)
			return -ENOMEM;
		if (hold->nr_places)
			memcpy(places, hold->places, hold->nr_places * sizeof(*places));
		kvfree(hold->places);
		hold->places = places;
		hold->max_places = max;
	}
	hold->places[hold->nr_places++] = (struct okv_place) {
		.first = first, .nr = nr, .window_id = win->id,
	};
	return 0;
}

/*
 * The hold behind a bind. RO windows show what is leased, RW ones what is PRIVATE, META ones both
 * that and META, which the manager may also read in RO ones; META has a hold only while bound.
 */
static struct okv_hold *bind_hold(struct okv_window *win, struct okv_attach *attach, const struct omnikv_extent *ext)
{
	bool is_ro = win->kind == OMNIKV_WINDOW_RO;
	struct okv_pool *pool = win->pool;
	struct okv_extent_view view;
	struct okv_hold *hold;
	int ret;

	hold = xa_load(&attach->holds, ext->granule);
	if (hold && hold->ext.generation == ext->generation && hold->ext.nr_granules == ext->nr_granules &&
	    (is_ro ? !!hold->nr_leases : hold->is_private))
		return hold;

	spin_lock(&pool->map_lock);
	ret = okv_extent_check(&pool->map, ext, is_ro ? OKV_OP_BIND_RO : OKV_OP_BIND_RW, attach->id,
			       READ_ONCE(pool->manager) == attach);
	if (!ret)
		okv_extent_view(&pool->map, ext->granule, &view);
	spin_unlock(&pool->map_lock);
	if (ret)
		return ERR_PTR(ret);
	/* The state would allow it, but there is no lease, or it is not this window's kind. */
	if (view.state != OMNIKV_EXTENT_META || win->kind == OMNIKV_WINDOW_RW)
		return ERR_PTR(-EPERM);
	return okv_hold_get(attach, ext);
}

/* Everything that can fail. On success the bind is counted, though nothing is bound yet. */
static int bind_begin(struct okv_window *win, struct okv_attach *attach, const struct omnikv_batch_op *op,
		      struct okv_bind **bindp)
{
	struct okv_pool *pool = win->pool;
	u64 first = op->window_off >> PAGE_SHIFT, nr = op->bytes >> PAGE_SHIFT;
	enum okv_op kind = win->kind == OMNIKV_WINDOW_RO ? OKV_OP_BIND_RO : OKV_OP_BIND_RW;
	struct okv_bind *bind;
	struct okv_hold *hold;
	int ret;

	ret = okv_bind_check(op, (u64)op->extent.nr_granules * pool->granule_bytes, win->nr_pages << PAGE_SHIFT);
	if (ret)
		return ret;
	if (nr > okv_binds_max || attach->nr_bound > okv_binds_max - nr)
		return -EDQUOT;
	hold = bind_hold(win, attach, &op->extent);
	if (IS_ERR(hold))
		return PTR_ERR(hold);
	ret = okv_winmap_prepare(&win->map, first, nr, block_alloc);
	if (!ret && hold->is_private)
		ret = add_place(attach, hold, win, first, nr);
	bind = ret ? NULL : kmem_cache_alloc(okv_bind_cache, GFP_KERNEL);
	if (!bind) {
		okv_hold_tidy(attach, hold);
		return ret ?: -ENOMEM;
	}
	/* Asked again: a newer manager may have freed META since, and references are bounded. */
	spin_lock(&pool->map_lock);
	ret = okv_extent_check(&pool->map, &op->extent, kind, attach->id, READ_ONCE(pool->manager) == attach);
	if (!ret)
		okv_extent_get(&pool->map, hold->ext.granule, 1);
	spin_unlock(&pool->map_lock);
	if (ret) {
		kmem_cache_free(okv_bind_cache, bind);
		okv_hold_tidy(attach, hold);
		return ret;
	}
	bind->hold = hold;
	bind->nr_left = nr;
	hold->nr_binds++;
	attach->nr_bound += nr;
	*bindp = bind;
	return 0;
}

/* Unmap what the ops replace; neighbours in the list become one range. */
static void zap_replaced(struct okv_window *win, const struct omnikv_batch_op *ops, u32 nr)
{
	u64 first = 0, end = 0;
	u32 i;

	for (i = 0; i < nr; i++) {
		u64 at = ops[i].window_off >> PAGE_SHIFT, len = ops[i].bytes >> PAGE_SHIFT;

		if (!okv_winmap_any(&win->map, at, len, NULL, NULL))
			continue;
		if (end != first && at == end) {
			end += len;
			continue;
		}
		if (end != first)
			zap(win, first, end - first);
		first = at;
		end = at + len;
	}
	if (end != first)
		zap(win, first, end - first);
}

u32 okv_window_bind(struct okv_window *win, struct okv_attach *attach, struct omnikv_batch_op *ops, u32 nr,
		    bool may_fill)
{
	struct okv_bind *binds[OKV_BIND_GROUP];
	struct drop drop = { .attach = attach };
	struct vm_area_struct *vma = NULL;
	u32 i, n;

	lockdep_assert_held(&attach->client->lock);
	guard(mutex)(&win->lock);
	for (n = 0; n < nr; n++) {
		int ret = -ENODEV;

		if (is_epoch_over(win))
			ret = -ESTALE;
		else if (!win->is_dead)
			ret = bind_begin(win, attach, &ops[n], &binds[n]);
		ops[n].res = ret;
		if (ret)
			break;
	}
	zap_replaced(win, ops, n);
	for (i = 0; i < n; i++) {
		u64 first = ops[i].window_off >> PAGE_SHIFT, len = ops[i].bytes >> PAGE_SHIFT;

		okv_winmap_clear(&win->map, first, len, NULL, drop_run, &drop);
		okv_winmap_set(&win->map, first, len, (uintptr_t)binds[i],
			       ops[i].extent.granule * win->pool->granule_pages +
			       (ops[i].extent_off >> PAGE_SHIFT));
		atomic64_add(len, &win->pool->nr_binds);
	}
	if (may_fill && win->is_mapped && n)
		vma = vma_lookup(current->mm, win->addr);
	if (!vma || vma->vm_file != win->file)
		return n;
	for (i = 0; i < n; i++)
		if (!(ops[i].flags & OMNIKV_BATCH_BIND_F_LAZY) &&
		    fill(win, vma, ops[i].window_off >> PAGE_SHIFT, ops[i].bytes >> PAGE_SHIFT) == -ENOMEM)
			break;	/* a touch will try again */
	return n;
}

int okv_window_unbind(struct okv_window *win, struct okv_attach *attach, u64 off, u64 bytes)
{
	struct drop drop = { .attach = attach };
	u64 first = off >> PAGE_SHIFT, nr = bytes >> PAGE_SHIFT;

	lockdep_assert_held(&attach->client->lock);
	guard(mutex)(&win->lock);
	if (!okv_range_fits(off, bytes, win->nr_pages << PAGE_SHIFT))
		return -EINVAL;
	if (!okv_winmap_any(&win->map, first, nr, NULL, NULL))
		return 0;
	zap(win, first, nr);
	okv_winmap_clear(&win->map, first, nr, NULL, drop_run, &drop);
	return 0;
}

void okv_window_unbind_hold(struct okv_attach *attach, struct okv_hold *hold)
{
	/* The hold is PRIVATE and so stays. */
	struct drop drop = { .attach = attach, .only = hold };
	u32 i;

	lockdep_assert_held(&attach->client->lock);
	for (i = 0; i < hold->nr_places && hold->nr_binds; i++) {
		struct okv_place *place = &hold->places[i];
		struct okv_window *win = xa_load(&attach->client->windows, place->window_id);

		if (!win || win->attach != attach)
			continue;
		mutex_lock(&win->lock);
		/* It may show others there by now; their next touch brings them back. */
		zap(win, place->first, place->nr);
		okv_winmap_clear(&win->map, place->first, place->nr, drop_wants, drop_run, &drop);
		mutex_unlock(&win->lock);
	}
	hold->nr_places = 0;
}

/* ---- life ----------------------------------------------------------------------------- */

void okv_window_kill_locked(struct okv_window *win)
{
	lockdep_assert_held(&win->pool->lock);
	mutex_lock(&win->lock);
	win->is_dead = true;
	zap(win, 0, win->nr_pages);
	mutex_unlock(&win->lock);
}

void okv_window_end_locked(struct okv_window *win)
{
	struct drop drop = { .attach = win->attach };

	lockdep_assert_held(&win->client->lock);
	mutex_lock(&win->lock);
	win->is_dead = true;
	zap(win, 0, win->nr_pages);
	okv_winmap_clear(&win->map, 0, win->nr_pages, NULL, drop_run, &drop);
	mutex_unlock(&win->lock);
	win->attach->nr_windows--;
	win->attach = NULL;
}

static int window_release(struct inode *inode, struct file *file)
{
	struct okv_window *win = file->private_data;
	struct okv_client *client = win->client;
	struct okv_pool *pool = win->pool;

	/* No VMA is left: each holds the file. */
	mutex_lock(&client->lock);
	if (win->attach)
		okv_window_end_locked(win);
	xa_erase(&client->windows, win->id);
	client->nr_windows--;
	mutex_unlock(&client->lock);
	mutex_lock(&pool->lock);
	list_del(&win->pool_link);
	mutex_unlock(&pool->lock);

	okv_winmap_fini(&win->map, block_free);
	kvfree(win->map.tops);
	kfree(win);
	okv_client_put(client);
	okv_pool_put(pool);
	return 0;
}

const struct file_operations okv_window_fops = {
	.owner		= THIS_MODULE,
	.mmap		= window_mmap,
	.release	= window_release,
	.llseek		= noop_llseek,
};

static int may_create(struct okv_window *win)
{
	struct okv_client *client = win->client;
	bool is_manager;
	int ret;

	mutex_lock(&win->pool->lock);
	is_manager = okv_attach_is_manager_locked(win->attach);
	win->epoch = win->pool->epoch;
	mutex_unlock(&win->pool->lock);
	if (win->kind == OMNIKV_WINDOW_META && !is_manager)
		return -EPERM;
	ret = xa_alloc_cyclic(&client->windows, &win->id, win, xa_limit_31b, &client->next_window,
			      GFP_KERNEL_ACCOUNT);
	return ret < 0 ? ret : 0;
}

static void publish(struct okv_window *win)
{
	struct okv_pool *pool = win->pool;

	guard(mutex)(&pool->lock);
	/* A takeover since then could not see it. */
	win->is_dead = is_epoch_over(win);
	list_add_tail(&win->pool_link, &pool->windows);
}

int okv_window_create(struct okv_client *client, struct okv_pool *pool,
		      const struct omnikv_ioc_window_create *req, struct file **filep)
{
	struct okv_attach *attach;
	struct okv_window *win;
	struct file *file;
	void **tops;
	int ret;

	if (req->flags || req->kind > OMNIKV_WINDOW_META || req->window_fd ||
	    !okv_range_fits(0, req->bytes, OKV_WINMAP_PAGES_MAX << PAGE_SHIFT))
		return -EINVAL;

	guard(mutex)(&client->lock);
	guard(rwsem_read)(&pool->users);
	if (pool->state != OKV_POOL_LIVE)
		return -ENODEV;
	attach = okv_client_attach_locked(client, pool);
	if (IS_ERR(attach))
		return PTR_ERR(attach);
	if (client->nr_windows >= okv_windows_max)
		return -EDQUOT;

	win = kzalloc(sizeof(*win), GFP_KERNEL_ACCOUNT);
	if (!win)
		return -ENOMEM;
	ret = -ENOMEM;
	win->nr_pages = req->bytes >> PAGE_SHIFT;
	tops = kvcalloc(okv_winmap_nr_tops(win->nr_pages), sizeof(*tops), GFP_KERNEL_ACCOUNT);
	if (!tops)
		goto err_win;
	win->client = client;
	win->pool = pool;
	win->attach = attach;
	win->kind = req->kind;
	mutex_init(&win->lock);
	okv_winmap_init(&win->map, win->nr_pages, tops);

	ret = may_create(win);
	if (ret)
		goto err_tops;
	file = okv_file_create("omnikv-window", &okv_window_fops, win, req->bytes);
	ret = PTR_ERR_OR_ZERO(file);
	if (ret)
		goto err_id;
	win->file = file;
	publish(win);
	kref_get(&client->ref);
	kref_get(&pool->ref);
	client->nr_windows++;
	attach->nr_windows++;
	*filep = file;
	return 0;

err_id:
	xa_erase(&client->windows, win->id);
err_tops:
	kvfree(tops);
err_win:
	kfree(win);
	return ret;
}

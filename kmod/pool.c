// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pools: names, the ledger of memory, owners, descriptors, the linear map, and the end.
 * Leaves pages to segment.c, extents to extent.c, attachments to client.c. Entered by ioctls,
 * by mmap and release of pool files, and by drop_work.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/ctype.h>
#include <linux/file.h>
#include <linux/mman.h>
#include <linux/module.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "compat.h"
#include "okv.h"

DEFINE_MUTEX(okv_pools_lock);
LIST_HEAD(okv_pools);
static u64 pools_used_bytes;	/* under okv_pools_lock */
static u64 pools_next_id;

/* private_data of a pool's file. */
struct okv_pool_file {
	struct okv_pool	*pool;
	u32		flags;		/* OMNIKV_OPEN_F_* */
};

static const struct file_operations okv_pool_fops;

/* ---- states --------------------------------------------------------------------------- */

static const u8 okv_pool_next[] = {
	[OKV_POOL_NEW]		= BIT(OKV_POOL_LIVE) | BIT(OKV_POOL_DROPPED),
	[OKV_POOL_LIVE]		= BIT(OKV_POOL_DEAD),
	[OKV_POOL_DEAD]		= BIT(OKV_POOL_DROPPED),
	[OKV_POOL_DROPPED]	= 0,
};

static void set_state_locked(struct okv_pool *pool, enum okv_pool_state next)
{
	lockdep_assert_held_write(&pool->users);
	WARN_ON_ONCE(!(okv_pool_next[pool->state] & BIT(next)));
	WRITE_ONCE(pool->state, next);
}

/* ---- the ledger ----------------------------------------------------------------------- */

u64 okv_used_bytes(void)
{
	guard(mutex)(&okv_pools_lock);
	return pools_used_bytes;
}

static struct okv_pool *find_locked(const char *name)
{
	struct okv_pool *pool;

	lockdep_assert_held(&okv_pools_lock);
	list_for_each_entry(pool, &okv_pools, link)
		if (!strcmp(pool->name, name))
			return pool;
	return NULL;
}

/* Take the name and the bytes, or neither. */
static int book(struct okv_pool *pool)
{
	struct okv_pool *other;
	u64 users = 0;

	guard(mutex)(&okv_pools_lock);
	if (find_locked(pool->name))
		return -EEXIST;
	if (pool->bytes > okv_limit_bytes || pools_used_bytes > okv_limit_bytes - pool->bytes)
		return -EDQUOT;
	if (!pool->is_privileged) {
		list_for_each_entry(other, &okv_pools, link)
			if (!other->is_privileged && uid_eq(other->creator, pool->creator))
				users += other->bytes;
		if (pool->bytes > okv_user_bytes || users > okv_user_bytes - pool->bytes)
			return -EDQUOT;
	}
	pools_used_bytes += pool->bytes;
	pool->id = ++pools_next_id;
	list_add_tail(&pool->link, &okv_pools);
	return 0;
}

static void unbook_bytes(struct okv_pool *pool)
{
	guard(mutex)(&okv_pools_lock);
	pools_used_bytes -= pool->bytes;
}

static void unbook_name(struct okv_pool *pool)
{
	guard(mutex)(&okv_pools_lock);
	list_del_init(&pool->link);
}

/* ---- life and death ------------------------------------------------------------------- */

static void pool_free(struct kref *ref)
{
	struct okv_pool *pool = container_of(ref, struct okv_pool, ref);

	WARN_ON_ONCE(pool->state != OKV_POOL_DROPPED || !list_empty(&pool->windows));
	xa_destroy(&pool->attaches);
	vfree(pool->recs);
	vfree(pool->used);
	kfree(pool);
	module_put(THIS_MODULE);
}

void okv_pool_put(struct okv_pool *pool)
{
	kref_put(&pool->ref, pool_free);
}

static void drop_work(struct work_struct *work)
{
	struct okv_pool *pool = container_of(work, struct okv_pool, drop_work);
	bool is_dropped = false;

	okv_quarantine_forget(pool);
	down_write(&pool->users);
	if (pool->state == OKV_POOL_DEAD && !atomic64_read(&pool->nr_leases)) {
		set_state_locked(pool, OKV_POOL_DROPPED);
		okv_segment_fini(&pool->seg);
		is_dropped = true;
	}
	up_write(&pool->users);
	if (is_dropped)
		unbook_bytes(pool);
	okv_pool_put(pool);
}

void okv_pool_kick(struct okv_pool *pool)
{
	kref_get(&pool->ref);
	if (!queue_work(okv_wq, &pool->drop_work))
		okv_pool_put(pool);
}

static int check_create(const struct omnikv_ioc_pool_create *req)
{
	size_t len = strnlen(req->name, sizeof(req->name));

	if (req->flags & ~OMNIKV_CREATE_F_ALL || req->mode & ~0666u || req->pool_fd || req->small_units)
		return -EINVAL;
	if (!req->bytes || req->bytes % OKV_UNIT_BYTES)
		return -EINVAL;
	if (req->granule_bytes % PAGE_SIZE || req->granule_bytes > OKV_UNIT_BYTES)
		return -EINVAL;
	if (req->numa > OMNIKV_NUMA_PREFER || !req->nodes != (req->numa == OMNIKV_NUMA_DEFAULT))
		return -EINVAL;
	if (!len || len > OMNIKV_NAME_MAX || memchr_inv(req->name + len, 0, sizeof(req->name) - len))
		return -EINVAL;
	/* A name is a directory in sysfs. */
	if (!strcmp(req->name, ".") || !strcmp(req->name, ".."))
		return -EINVAL;
	while (len--)
		if (!(isascii(req->name[len]) && isalnum(req->name[len])) &&
		    !strchr("._-", req->name[len]))
			return -EINVAL;
	return 0;
}

static struct okv_pool *pool_alloc(const struct omnikv_ioc_pool_create *req)
{
	u32 granule_bytes = req->granule_bytes ?: PAGE_SIZE;
	u64 nr = div_u64(req->bytes, granule_bytes);
	struct okv_pool *pool;

	if (nr > OKV_EXTENT_GRANULES_MAX)
		return ERR_PTR(-EINVAL);
	pool = kzalloc(sizeof(*pool), GFP_KERNEL);
	if (!pool)
		return ERR_PTR(-ENOMEM);

	__module_get(THIS_MODULE);
	kref_init(&pool->ref);
	strscpy(pool->name, req->name, sizeof(pool->name));
	get_random_bytes(pool->instance, sizeof(pool->instance));
	pool->flags = req->flags;
	pool->granule_bytes = granule_bytes;
	pool->granule_pages = granule_bytes / PAGE_SIZE;
	pool->nr_granules = nr;
	pool->bytes = req->bytes;
	pool->client_bytes = req->client_bytes;
	pool->creator = pool->uid = current_euid();
	pool->gid = current_egid();
	pool->mode = req->mode;
	pool->is_privileged = capable(CAP_SYS_ADMIN);
	init_completion(&pool->kobj_gone);
	INIT_LIST_HEAD(&pool->link);
	INIT_LIST_HEAD(&pool->windows);
	init_rwsem(&pool->users);
	mutex_init(&pool->lock);
	spin_lock_init(&pool->map_lock);
	xa_init_flags(&pool->attaches, XA_FLAGS_ALLOC1);
	INIT_WORK(&pool->drop_work, drop_work);
	pool->state = OKV_POOL_DROPPED;

	pool->recs = vzalloc(array_size(nr, sizeof(*pool->recs)));
	pool->used = vzalloc(array_size(okv_extent_used_words(nr), sizeof(*pool->used)));
	if (!pool->recs || !pool->used) {
		okv_pool_put(pool);
		return ERR_PTR(-ENOMEM);
	}
	okv_extent_map_init(&pool->map, pool->recs, pool->used, nr);
	okv_extent_map_add(&pool->map, nr);
	pool->state = OKV_POOL_NEW;
	return pool;
}

static struct file *pool_file(struct okv_pool *pool, u32 flags)
{
	struct okv_pool_file *pf;
	struct file *file;

	pf = kzalloc(sizeof(*pf), GFP_KERNEL);
	if (!pf)
		return ERR_PTR(-ENOMEM);
	pf->pool = pool;
	pf->flags = flags;
	file = okv_file_create("omnikv-pool", &okv_pool_fops, pf, pool->bytes);
	if (IS_ERR(file)) {
		kfree(pf);
		return file;
	}
	kref_get(&pool->ref);
	mutex_lock(&okv_pools_lock);
	pool->nr_files++;
	mutex_unlock(&okv_pools_lock);
	return file;
}

static void fail_new(struct okv_pool *pool)
{
	down_write(&pool->users);
	okv_segment_fini(&pool->seg);
	set_state_locked(pool, OKV_POOL_DROPPED);
	up_write(&pool->users);
	unbook_name(pool);
	unbook_bytes(pool);
	okv_pool_put(pool);
}

int okv_pool_create(struct omnikv_ioc_pool_create *req, struct file **filep)
{
	struct okv_backing want;
	struct okv_pool *pool;
	struct file *file;
	int ret;

	ret = check_create(req);
	if (ret)
		return ret;
	if (!okv_user_bytes && !capable(CAP_SYS_ADMIN))
		return -EPERM;
	/* Asked again under the lock; but then after tables have been made for it. */
	if (req->bytes > okv_limit_bytes)
		return -EDQUOT;

	pool = pool_alloc(req);
	if (IS_ERR(pool))
		return PTR_ERR(pool);
	ret = book(pool);
	if (ret) {
		pool->state = OKV_POOL_DROPPED;
		okv_pool_put(pool);
		return ret;
	}

	want = (struct okv_backing) {
		.bytes = pool->bytes, .flags = pool->flags, .numa = req->numa, .nodes = req->nodes,
		.ready_units = &pool->ready_units,
	};
	/* Its progress is seen there. */
	ret = okv_sysfs_pool_add(pool);
	if (ret)
		goto err_fail;
	/* Long; no lock is held, and nobody else can use the pool yet. */
	ret = okv_segment_init(&pool->seg, &want);
	if (ret)
		goto err_sysfs;
	file = pool_file(pool, 0);
	if (IS_ERR(file)) {
		ret = PTR_ERR(file);
		goto err_sysfs;
	}
	down_write(&pool->users);
	set_state_locked(pool, OKV_POOL_LIVE);
	up_write(&pool->users);
	req->small_units = pool->seg.nr_small;
	*filep = file;
	return 0;

err_sysfs:
	okv_sysfs_pool_del(pool);
err_fail:
	fail_new(pool);
	return ret;
}

bool okv_pool_is_owner(struct okv_pool *pool)
{
	return uid_eq(current_euid(), READ_ONCE(pool->uid)) || capable(CAP_SYS_ADMIN);
}

static bool may_open(struct okv_pool *pool)
{
	umode_t mode;

	guard(mutex)(&pool->lock);
	mode = pool->mode;
	if (uid_eq(current_euid(), pool->uid))
		mode >>= 6;
	else if (in_egroup_p(pool->gid))
		mode >>= 3;
	return (mode & 06) == 06 || capable(CAP_SYS_ADMIN);
}

int okv_pool_open(struct omnikv_ioc_pool_open *req, struct file **filep)
{
	struct okv_pool *pool;
	struct file *file;
	size_t len = strnlen(req->name, sizeof(req->name));

	if (req->flags & ~OMNIKV_OPEN_F_ALL || req->pool_fd || !len || len == sizeof(req->name) ||
	    memchr_inv(req->name + len, 0, sizeof(req->name) - len))
		return -EINVAL;

	mutex_lock(&okv_pools_lock);
	pool = find_locked(req->name);
	if (pool)
		kref_get(&pool->ref);
	mutex_unlock(&okv_pools_lock);
	if (!pool)
		return -ENOENT;
	if (!may_open(pool))
		file = ERR_PTR(-EACCES);
	else if (READ_ONCE(pool->state) != OKV_POOL_LIVE)
		file = ERR_PTR(-ENOENT);
	else
		file = pool_file(pool, req->flags);
	okv_pool_put(pool);
	if (IS_ERR(file))
		return PTR_ERR(file);
	*filep = file;
	return 0;
}

int okv_pool_destroy(struct okv_pool *pool, struct okv_client *self, bool is_forced)
{
	struct okv_attach *attach;
	struct okv_window *win;
	unsigned long i;

	/*
	 * Dead first, so that nothing new begins; then windows are unmapped, for no page may leave
	 * the page cache while one shows it; then the pages go. Batches in progress end before.
	 */
	down_write(&pool->users);
	if (pool->state != OKV_POOL_LIVE) {
		up_write(&pool->users);
		return -ENODEV;
	}
	mutex_lock(&pool->lock);
	if (!is_forced) {
		xa_for_each(&pool->attaches, i, attach) {
			if (attach->client == self)
				continue;
			mutex_unlock(&pool->lock);
			up_write(&pool->users);
			return -EBUSY;
		}
	}
	set_state_locked(pool, OKV_POOL_DEAD);
	list_for_each_entry(win, &pool->windows, pool_link)
		okv_window_kill_locked(win);
	mutex_unlock(&pool->lock);
	up_write(&pool->users);

	okv_sysfs_pool_del(pool);
	unbook_name(pool);
	okv_pool_kick(pool);
	/* The caller finds the memory back when nothing is leased. */
	flush_work(&pool->drop_work);
	okv_pool_put(pool);
	return 0;
}

/* ---- figures and owners --------------------------------------------------------------- */

int okv_pool_info(struct okv_pool *pool, struct omnikv_ioc_pool_info *info)
{
	struct user_namespace *ns = current_user_ns();
	int i;

	if (info->flags)
		return -EINVAL;
	info->pool_flags = pool->flags;
	info->granule_bytes = pool->granule_bytes;
	info->bytes = pool->bytes;
	info->nr_granules = pool->nr_granules;
	info->client_bytes = pool->client_bytes;
	info->binds = atomic64_read(&pool->nr_binds);
	info->zaps = atomic64_read(&pool->nr_zaps);
	info->small_units = pool->seg.nr_small;
	memcpy(info->instance, pool->instance, sizeof(info->instance));
	memcpy(info->name, pool->name, sizeof(pool->name));
	memcpy(info->node_bytes, pool->seg.node_bytes, sizeof(info->node_bytes));

	mutex_lock(&pool->lock);
	info->epoch = pool->epoch;
	info->nr_clients = pool->nr_clients;
	info->uid = from_kuid_munged(ns, pool->uid);
	info->gid = from_kgid_munged(ns, pool->gid);
	info->mode = pool->mode;
	mutex_unlock(&pool->lock);

	spin_lock(&pool->map_lock);
	info->largest_free = okv_extent_map_largest(&pool->map);
	for (i = 0; i < OMNIKV_EXTENT_NR_STATES; i++) {
		info->state_bytes[i] = pool->map.state_granules[i] * pool->granule_bytes;
		info->nr_extents[i] = pool->map.nr_extents[i];
	}
	spin_unlock(&pool->map_lock);
	return 0;
}

int okv_pool_chown(struct okv_pool *pool, const struct omnikv_ioc_pool_chown *req)
{
	kuid_t uid = make_kuid(current_user_ns(), req->uid);
	kgid_t gid = make_kgid(current_user_ns(), req->gid);
	bool is_admin = capable(CAP_SYS_ADMIN);

	if (req->flags || req->reserved || req->mode & ~0666u || !uid_valid(uid) || !gid_valid(gid))
		return -EINVAL;
	guard(mutex)(&pool->lock);
	if (!is_admin) {
		if (!uid_eq(current_euid(), pool->uid) || !uid_eq(uid, pool->uid))
			return -EPERM;
		if (!gid_eq(gid, pool->gid) && !in_egroup_p(gid))
			return -EPERM;
	}
	WRITE_ONCE(pool->uid, uid);
	pool->gid = gid;
	pool->mode = req->mode;
	return 0;
}

/* ---- files ---------------------------------------------------------------------------- */

struct okv_pool *okv_pool_get_fd(int fd)
{
	struct okv_pool *pool = ERR_PTR(-EBADF);
	struct file *file = fget(fd);

	if (!file)
		return pool;
	if (file->f_op == &okv_pool_fops) {
		pool = ((struct okv_pool_file *)file->private_data)->pool;
		kref_get(&pool->ref);
	}
	fput(file);
	return pool;
}

static int pool_file_release(struct inode *inode, struct file *file)
{
	struct okv_pool_file *pf = file->private_data;
	struct okv_pool *pool = pf->pool;
	bool is_last;

	mutex_lock(&okv_pools_lock);
	is_last = !--pool->nr_files;
	mutex_unlock(&okv_pools_lock);
	if (is_last && pool->flags & OMNIKV_CREATE_F_TRANSIENT)
		okv_pool_destroy(pool, NULL, true);
	okv_pool_put(pool);
	kfree(pf);
	return 0;
}

/*
 * The linear map is the tmpfs file's own mapping: its vm_ops stay, since fixed buffers of
 * io_uring on 6.1 ask for them. The pool's file is not held by it.
 */
static int pool_file_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct okv_pool_file *pf = file->private_data;
	struct okv_pool *pool = pf->pool;
	u64 first = (u64)vma->vm_pgoff << PAGE_SHIFT, len = vma->vm_end - vma->vm_start;
	struct file *shm;
	int ret;

	if (pf->flags & OMNIKV_OPEN_F_NO_LINEAR || vma->vm_flags & VM_EXEC)
		return -EACCES;
	if (!(vma->vm_flags & VM_SHARED) || vma->vm_pgoff > pool->bytes >> PAGE_SHIFT ||
	    len > pool->bytes - first)
		return -EINVAL;

	down_read(&pool->users);
	shm = pool->state == OKV_POOL_LIVE ? get_file(pool->seg.file) : NULL;
	up_read(&pool->users);
	if (!shm)
		return -ENODEV;
	vma_set_file(vma, shm);
	ret = call_mmap(shm, vma);
	fput(shm);
	if (ret)
		return ret;
	vm_flags_set(vma, VM_DONTCOPY | VM_DONTDUMP | VM_DONTEXPAND);
	vm_flags_clear(vma, VM_MAYEXEC);
	return 0;
}

/* tmpfs places the mapping where 2-MiB entries fit. */
static unsigned long pool_file_area(struct file *file, unsigned long addr, unsigned long len,
				    unsigned long pgoff, unsigned long flags)
{
	struct okv_pool *pool = ((struct okv_pool_file *)file->private_data)->pool;
	unsigned long ret = -ENODEV;

	down_read(&pool->users);
	if (pool->state == OKV_POOL_LIVE)
		ret = pool->seg.file->f_op->get_unmapped_area(pool->seg.file, addr, len, pgoff, flags);
	up_read(&pool->users);
	return ret;
}

static const struct file_operations okv_pool_fops = {
	.owner			= THIS_MODULE,
	.release		= pool_file_release,
	.mmap			= pool_file_mmap,
	.get_unmapped_area	= pool_file_area,
	.llseek			= noop_llseek,
};

struct okv_pool *okv_pool_of_file(struct file *file)
{
	return ((struct okv_pool_file *)file->private_data)->pool;
}

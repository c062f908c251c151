// SPDX-License-Identifier: GPL-2.0-only
/*
 * Clients: an open file of /dev/omnikv together with the mm that opened it, and what each has
 * at each pool. Leaves holds to extent.c and windows to window.c. Entered by open and release,
 * by ioctls of the client, by other clients that revoke, and by the mmu notifier when the mm
 * goes, which comes before the file's release where both end together.
 */
#include <linux/cred.h>
#include <linux/jiffies.h>
#include <linux/pid.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "okv.h"

static void client_free(struct kref *ref)
{
	struct okv_client *client = container_of(ref, struct okv_client, ref);

	WARN_ON_ONCE(!list_empty(&client->attaches));
	xa_destroy(&client->windows);
	put_pid(client->pid);
	kfree(client);
}

void okv_client_put(struct okv_client *client)
{
	kref_put(&client->ref, client_free);
}

/* ---- attachments ---------------------------------------------------------------------- */

static struct okv_attach *find_attach(struct okv_client *client, u64 pool_id)
{
	struct okv_attach *attach;

	list_for_each_entry(attach, &client->attaches, link)
		if (attach->pool_id == pool_id)
			return attach;
	return NULL;
}

struct okv_attach *okv_client_attach_locked(struct okv_client *client, struct okv_pool *pool)
{
	struct okv_attach *attach;
	int ret;

	lockdep_assert_held(&client->lock);
	if (client->has_ended)
		return ERR_PTR(-EPERM);
	attach = find_attach(client, pool->id);
	if (attach)
		return attach->has_ended ? ERR_PTR(-EPERM) : attach;

	attach = kzalloc(sizeof(*attach), GFP_KERNEL_ACCOUNT);
	if (!attach)
		return ERR_PTR(-ENOMEM);
	attach->client = client;
	attach->pool = pool;
	attach->pool_id = pool->id;
	xa_init(&attach->holds);

	mutex_lock(&pool->lock);
	ret = xa_alloc_cyclic(&pool->attaches, &attach->id, attach, xa_limit_31b, &pool->next_id,
			      GFP_KERNEL_ACCOUNT);
	if (ret >= 0)
		pool->nr_clients++;
	mutex_unlock(&pool->lock);
	if (ret < 0) {
		kfree(attach);
		return ERR_PTR(ret);
	}
	kref_get(&pool->ref);
	list_add(&attach->link, &client->attaches);
	return attach;
}

/* What it holds ends; the struct stays with the client. */
static void attach_end_locked(struct okv_attach *attach)
{
	struct okv_client *client = attach->client;
	struct okv_pool *pool = attach->pool;
	struct okv_window *win;
	unsigned long i;

	lockdep_assert_held(&client->lock);
	if (attach->has_ended)
		return;
	attach->has_ended = true;
	xa_for_each(&client->windows, i, win)
		if (win->attach == attach)
			okv_window_end_locked(win);
	okv_extents_end(attach);

	mutex_lock(&pool->lock);
	if (pool->manager == attach)
		pool->manager = NULL;
	xa_erase(&pool->attaches, attach->id);
	pool->nr_clients--;
	mutex_unlock(&pool->lock);
	attach->pool = NULL;
	okv_pool_put(pool);
}

static void client_end(struct okv_client *client)
{
	struct okv_attach *attach, *next;

	mutex_lock(&client->lock);
	client->has_ended = true;
	list_for_each_entry_safe(attach, next, &client->attaches, link) {
		attach_end_locked(attach);
		list_del(&attach->link);
		xa_destroy(&attach->holds);
		kfree(attach);
	}
	mutex_unlock(&client->lock);
}

bool okv_attach_is_manager_locked(const struct okv_attach *attach)
{
	lockdep_assert_held(&attach->pool->lock);
	return attach->pool->manager == attach;
}

int okv_client_manage(struct okv_client *client, struct okv_pool *pool, u32 flags, u32 *epoch)
{
	struct okv_attach *attach;
	struct okv_window *win;

	if (flags & ~OMNIKV_MANAGE_F_ALL || flags == OMNIKV_MANAGE_F_ALL)
		return -EINVAL;
	if (!okv_pool_is_owner(pool))
		return -EPERM;

	guard(mutex)(&client->lock);
	guard(rwsem_read)(&pool->users);
	if (pool->state != OKV_POOL_LIVE)
		return -ENODEV;
	attach = okv_client_attach_locked(client, pool);
	if (IS_ERR(attach))
		return PTR_ERR(attach);

	guard(mutex)(&pool->lock);
	if (flags & OMNIKV_MANAGE_F_RELEASE) {
		if (pool->manager != attach)
			return -ENOENT;
		pool->manager = NULL;
	} else if (pool->manager == attach) {
		*epoch = pool->epoch;
		return 0;
	} else {
		if (pool->manager && !(flags & OMNIKV_MANAGE_F_FORCE))
			return -EBUSY;
		if (pool->epoch == U32_MAX)
			return -EOVERFLOW;
		pool->manager = attach;
		/* Faults that have read the old one are over when their window has been killed. */
		WRITE_ONCE(pool->epoch, pool->epoch + 1);
	}
	list_for_each_entry(win, &pool->windows, pool_link)
		if (win->kind == OMNIKV_WINDOW_META &&
		    (win->epoch != pool->epoch || flags & OMNIKV_MANAGE_F_RELEASE))
			okv_window_kill_locked(win);
	*epoch = pool->epoch;
	return 0;
}

int okv_client_revoke(struct okv_pool *pool, u64 id)
{
	struct okv_client *client = NULL;
	struct okv_attach *attach;

	if (!okv_pool_is_owner(pool))
		return -EPERM;
	mutex_lock(&pool->lock);
	attach = id <= U32_MAX ? xa_load(&pool->attaches, id) : NULL;
	if (attach) {
		client = attach->client;
		kref_get(&client->ref);
	}
	mutex_unlock(&pool->lock);
	if (!client)
		return -ENOENT;

	/* It may have ended meanwhile; an id is not used again soon. */
	mutex_lock(&client->lock);
	attach = find_attach(client, pool->id);
	if (attach)
		attach_end_locked(attach);
	mutex_unlock(&client->lock);
	okv_client_put(client);
	okv_quarantine_kick();
	return attach ? 0 : -ENOENT;
}

int okv_client_list(struct okv_pool *pool, u64 *from, struct omnikv_client_entry *out, u32 *count)
{
	struct okv_attach *attach;
	unsigned long id = *from;
	u32 nr = 0;

	guard(mutex)(&pool->lock);
	for (attach = xa_find(&pool->attaches, &id, U32_MAX, XA_PRESENT); attach && nr < *count;
	     attach = xa_find_after(&pool->attaches, &id, U32_MAX, XA_PRESENT)) {
		struct omnikv_client_entry *entry = &out[nr++];
		struct okv_client *client = attach->client;
		struct task_struct *task;

		memset(entry, 0, sizeof(*entry));
		entry->id = id;
		/* The other client's own lock guards these; a moment's value will do. */
		entry->private_bytes = READ_ONCE(attach->private_bytes);
		entry->nr_leases = READ_ONCE(attach->nr_leases);
		entry->nr_windows = READ_ONCE(attach->nr_windows);
		entry->pid = pid_vnr(client->pid);
		entry->uid = from_kuid_munged(current_user_ns(), client->uid);
		entry->is_manager = pool->manager == attach;
		task = get_pid_task(client->pid, PIDTYPE_TGID);
		if (task) {
			char comm[TASK_COMM_LEN];

			get_task_comm(comm, task);
			memcpy(entry->comm, comm, min(sizeof(comm), sizeof(entry->comm)));
			put_task_struct(task);
		}
	}
	*from = attach ? id : ~0ULL;
	*count = nr;
	return 0;
}

/* ---- the two ends --------------------------------------------------------------------- */

/* current->mm is NULL here already. */
static void mn_release(struct mmu_notifier *mn, struct mm_struct *mm)
{
	struct okv_client *client = container_of(mn, struct okv_client, mn);

	client_end(client);
	WRITE_ONCE(client->gone_at, jiffies);
	/* Pairs with the acquire in may_go(). */
	smp_store_release(&client->is_mm_gone, true);
	okv_quarantine_kick();
}

static void mn_free(struct mmu_notifier *mn)
{
	okv_client_put(container_of(mn, struct okv_client, mn));
}

static const struct mmu_notifier_ops okv_mn_ops = {
	.release	= mn_release,
	.free_notifier	= mn_free,
};

int okv_client_open(struct inode *inode, struct file *file)
{
	struct okv_client *client;
	int ret;

	if (!current->mm)
		return -EINVAL;
	client = kzalloc(sizeof(*client), GFP_KERNEL_ACCOUNT);
	if (!client)
		return -ENOMEM;
	kref_init(&client->ref);
	mutex_init(&client->lock);
	INIT_LIST_HEAD(&client->attaches);
	xa_init_flags(&client->windows, XA_FLAGS_ALLOC1);
	client->mm = current->mm;
	client->pid = get_pid(task_tgid(current));
	client->uid = current_euid();
	client->mn.ops = &okv_mn_ops;

	/* Takes mmap_lock for writing: none of our locks is held. */
	ret = mmu_notifier_register(&client->mn, client->mm);
	if (ret) {
		okv_client_put(client);
		return ret;
	}
	kref_get(&client->ref);
	file->private_data = client;
	return 0;
}

int okv_client_release(struct inode *inode, struct file *file)
{
	struct okv_client *client = file->private_data;

	client_end(client);
	WRITE_ONCE(client->gone_at, jiffies);
	/* Pairs with the acquire in may_go(). */
	smp_store_release(&client->is_file_gone, true);
	okv_quarantine_kick();
	mmu_notifier_put(&client->mn);
	okv_client_put(client);
	return 0;
}

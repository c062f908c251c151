// SPDX-License-Identifier: GPL-2.0-only
/*
 * BATCH: operations in order, up to the first that fails. Owns the copies between the caller's
 * memory and ours, and the taking and dropping of locks between operations; what an operation
 * does is in extent.c and window.c. Entered by the client's ioctl.
 *
 * The caller's array is read once, and a word of each of its pages is written before anything
 * happens, so that a bad address is found first. Only who takes the memory away meanwhile loses
 * results. No user memory is touched under a lock.
 */
#include <linux/file.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "okv.h"

struct okv_run {
	struct okv_client	*client;
	struct okv_pool		*pool;
	u32			epoch;
};

/* Take what every operation needs. On success run_end() follows. */
static int run_begin(struct okv_run *run, struct okv_attach **attachp)
{
	struct okv_attach *attach;
	int ret;

	if (mutex_lock_killable(&run->client->lock))
		return -EINTR;
	down_read(&run->pool->users);
	ret = -ENODEV;
	if (run->pool->state != OKV_POOL_LIVE)
		goto err_unlock;
	attach = okv_client_attach_locked(run->client, run->pool);
	ret = PTR_ERR_OR_ZERO(attach);
	if (ret)
		goto err_unlock;
	ret = -ESTALE;
	if (run->epoch && run->epoch != READ_ONCE(run->pool->epoch))
		goto err_unlock;
	*attachp = attach;
	return 0;

err_unlock:
	up_read(&run->pool->users);
	mutex_unlock(&run->client->lock);
	return ret;
}

static void run_end(struct okv_run *run)
{
	up_read(&run->pool->users);
	mutex_unlock(&run->client->lock);
}

static int run_list(struct okv_run *run, struct omnikv_batch_op *op, struct omnikv_extent *exts, u32 count)
{
	struct okv_attach *attach;
	int ret;

	ret = run_begin(run, &attach);
	if (ret)
		return ret;
	switch (op->opcode) {
	case OMNIKV_BATCH_ALLOC:
		ret = okv_extents_alloc(attach, op, count, exts);
		break;
	case OMNIKV_BATCH_FREE:
		ret = okv_extents_free(attach, exts, count);
		break;
	case OMNIKV_BATCH_SEAL:
		ret = okv_extents_seal(attach, exts, count, run->epoch);
		break;
	case OMNIKV_BATCH_LEASE:
		ret = okv_extents_get(attach, exts, count, OKV_OP_LEASE);
		break;
	case OMNIKV_BATCH_RELEASE:
		ret = okv_extents_put(attach, exts, count, OKV_OP_RELEASE);
		break;
	case OMNIKV_BATCH_IO_GET:
		ret = okv_extents_get(attach, exts, count, OKV_OP_IO_GET);
		break;
	case OMNIKV_BATCH_IO_PUT:
		ret = okv_extents_put(attach, exts, count, OKV_OP_IO_PUT);
		break;
	case OMNIKV_BATCH_QUERY_EXTENT:
		ret = okv_extent_query(attach, op);
		break;
	}
	run_end(run);
	return ret;
}

/* An operation on one extent, or on a list in the caller's memory. */
static int run_extents(struct okv_run *run, struct omnikv_batch_op *op)
{
	struct omnikv_extent __user *list = u64_to_user_ptr(op->addr);
	u32 count = okv_op_count(op);
	struct omnikv_extent *exts;
	size_t bytes = count * sizeof(*exts);
	int ret;

	if (!op->addr) {
		struct omnikv_extent ext = op->extent;

		ret = run_list(run, op, &ext, 1);
		if (!ret && op->opcode == OMNIKV_BATCH_ALLOC)
			op->extent = ext;
		return ret;
	}

	exts = kvmalloc(bytes, GFP_KERNEL_ACCOUNT);
	if (!exts)
		return -ENOMEM;
	/* For ALLOC too: what cannot be read could hardly be written. */
	ret = -EFAULT;
	if (copy_from_user(exts, list, bytes))
		goto out;
	ret = run_list(run, op, exts, count);
	if (!ret && op->opcode == OMNIKV_BATCH_ALLOC && copy_to_user(list, exts, bytes)) {
		/* META is not ours to undo as PRIVATE is, but the manager may free it all the same. */
		struct omnikv_batch_op undo = { .opcode = OMNIKV_BATCH_FREE };

		run_list(run, &undo, exts, count);
		ret = -EFAULT;
	}
out:
	kvfree(exts);
	return ret;
}

/* The window behind a descriptor if it is this client's at this pool; the file is referenced. */
static struct file *window_get(struct okv_run *run, int fd, struct okv_window **winp)
{
	struct file *file = fget(fd);
	struct okv_window *win;

	if (!file)
		return ERR_PTR(-EBADF);
	if (file->f_op != &okv_window_fops) {
		fput(file);
		return ERR_PTR(-EBADF);
	}
	win = file->private_data;
	if (win->client != run->client || win->pool != run->pool) {
		fput(file);
		return ERR_PTR(-EPERM);
	}
	*winp = win;
	return file;
}

static u32 run_binds(struct okv_run *run, struct omnikv_batch_op *ops, u32 nr)
{
	struct mm_struct *mm = current->mm;
	struct okv_attach *attach;
	struct okv_window *win;
	struct file *file;
	u32 done = 0;
	int ret;

	file = window_get(run, ops[0].window_fd, &win);
	if (IS_ERR(file)) {
		ops[0].res = PTR_ERR(file);
		return 0;
	}
	/* Outermost, for page tables are filled below. */
	ret = mmap_read_lock_killable(mm);
	if (!ret) {
		ret = run_begin(run, &attach);
		if (!ret) {
			if (win->attach == attach)
				done = okv_window_bind(win, attach, ops, nr, true);
			else
				ops[0].res = -ENODEV;
			run_end(run);
		} else {
			ops[0].res = ret;
		}
		mmap_read_unlock(mm);
	} else {
		ops[0].res = -EINTR;
	}
	fput(file);
	return done;
}

static int run_unbind(struct okv_run *run, struct omnikv_batch_op *op)
{
	struct okv_attach *attach;
	struct okv_window *win;
	struct file *file;
	int ret;

	file = window_get(run, op->window_fd, &win);
	if (IS_ERR(file))
		return PTR_ERR(file);
	ret = run_begin(run, &attach);
	if (!ret) {
		ret = win->attach == attach ? okv_window_unbind(win, attach, op->window_off, op->bytes) : -ENODEV;
		run_end(run);
	}
	fput(file);
	return ret;
}

/* Ops from the front that go under one taking of the locks: binds of one window. */
static u32 group(const struct omnikv_batch_op *ops, u32 nr)
{
	u32 n;

	if (ops[0].opcode != OMNIKV_BATCH_BIND)
		return 1;
	for (n = 1; n < nr && n < OKV_BIND_GROUP; n++)
		if (ops[n].opcode != OMNIKV_BATCH_BIND || ops[n].window_fd != ops[0].window_fd ||
		    okv_op_check(&ops[n]))
			break;
	return n;
}

static u32 run_group(struct okv_run *run, struct omnikv_batch_op *ops, u32 n)
{
	int ret = okv_op_check(&ops[0]);

	if (!ret) {
		switch (ops[0].opcode) {
		case OMNIKV_BATCH_NOP:
			break;
		case OMNIKV_BATCH_BIND:
			return run_binds(run, ops, n);
		case OMNIKV_BATCH_UNBIND:
			ret = run_unbind(run, &ops[0]);
			break;
		default:
			ret = run_extents(run, &ops[0]);
		}
	}
	ops[0].res = ret;
	return !ret;
}

static int run_all(struct okv_run *run, struct omnikv_batch_op *ops, u32 nr, u32 *done)
{
	u32 n, ok;

	*done = 0;
	while (*done < nr) {
		if (fatal_signal_pending(current))
			return -EINTR;
		n = group(ops + *done, nr - *done);
		ok = run_group(run, ops + *done, n);
		*done += ok;
		if (ok < n)
			return 0;
		cond_resched();
	}
	return 0;
}

/* Whole errors are found before the first operation. */
static int check_run(struct okv_run *run)
{
	struct okv_attach *attach;
	int ret = run_begin(run, &attach);

	if (!ret)
		run_end(run);
	return ret;
}

int okv_batch(struct okv_client *client, struct omnikv_ioc_batch *req)
{
	struct okv_run run = { .client = client, .epoch = req->epoch };
	struct omnikv_batch_op __user *user = u64_to_user_ptr(req->ops);
	struct omnikv_batch_op *ops;
	u32 i, done, nr = req->nr_ops;
	int ret;

	if (req->flags || req->reserved || req->nr_done || !nr || nr > OMNIKV_BATCH_MAX)
		return -EINVAL;
	run.pool = okv_pool_get_fd(req->pool_fd);
	if (IS_ERR(run.pool))
		return PTR_ERR(run.pool);
	ret = -ENOMEM;
	ops = kvmalloc_array(nr, sizeof(*ops), GFP_KERNEL_ACCOUNT);
	if (!ops)
		goto out_put;
	ret = -EFAULT;
	if (copy_from_user(ops, user, nr * sizeof(*ops)))
		goto out_free;
	ret = check_run(&run);
	if (ret)
		goto out_free;
	ret = -EFAULT;
	/* The first page may end before the first result, the last one begin behind the last. */
	if (put_user(ops[0].opcode, &user[0].opcode) || put_user(ops[nr - 1].state, &user[nr - 1].state))
		goto out_free;
	for (i = 0; i < nr; i++)
		if (put_user(-ECANCELED, &user[i].res))
			goto out_free;

	ret = run_all(&run, ops, nr, &done);
	/* The failed one's result too. */
	i = min(done + !ret, nr);
	if (copy_to_user(user, ops, i * sizeof(*ops)))
		ret = -EFAULT;
	req->nr_done = done;
out_free:
	kvfree(ops);
out_put:
	okv_pool_put(run.pool);
	return ret;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Commands of /dev/omnikv: a table, the copying of their structs, and the publishing of new
 * descriptors. What a command does is elsewhere. Entered by ioctl of any process that has the
 * file; only the one whose mm opened it gets further.
 */
#include <linux/file.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "okv.h"

#define OKV_FEATURES	(OMNIKV_FEATURE_WINDOWS | OMNIKV_FEATURE_META_WINDOWS | OMNIKV_FEATURE_NUMA | \
			 OMNIKV_FEATURE_REVOKE)

/* A command in progress: its struct, and a file to be published with it. */
struct okv_call {
	struct okv_client	*client;
	void			*req;
	s32			*fd;		/* where in @req the new descriptor goes */
	struct file		*file;
	struct okv_pool		*created;	/* to be destroyed where the result cannot be told */
};

static int do_query(struct okv_call *call)
{
	struct omnikv_ioc_query *req = call->req;

	if (req->flags)
		return -EINVAL;
	req->version = OMNIKV_UAPI_VERSION;
	req->features = OKV_FEATURES;
	req->batch_max = OMNIKV_BATCH_MAX;
	req->windows_max = okv_windows_max;
	req->leases_max = okv_leases_max;
	req->quarantine_ms = okv_quarantine_ms;
	req->limit_bytes = okv_limit_bytes;
	req->used_bytes = okv_used_bytes();
	req->user_bytes = okv_user_bytes;
	return 0;
}

static int do_pool_create(struct okv_call *call)
{
	struct omnikv_ioc_pool_create *req = call->req;
	int ret;

	ret = okv_pool_create(req, &call->file);
	if (ret)
		return ret;
	call->fd = &req->pool_fd;
	call->created = okv_pool_of_file(call->file);
	return 0;
}

static int do_pool_open(struct okv_call *call)
{
	struct omnikv_ioc_pool_open *req = call->req;

	call->fd = &req->pool_fd;
	return okv_pool_open(req, &call->file);
}

static int do_pool_info(struct okv_call *call, struct okv_pool *pool)
{
	return okv_pool_info(pool, call->req);
}

static int do_pool_chown(struct okv_call *call, struct okv_pool *pool)
{
	return okv_pool_chown(pool, call->req);
}

static int do_pool_destroy(struct okv_call *call, struct okv_pool *pool)
{
	struct omnikv_ioc_pool_destroy *req = call->req;

	if (req->flags & ~OMNIKV_DESTROY_F_ALL)
		return -EINVAL;
	if (!okv_pool_is_owner(pool))
		return -EPERM;
	return okv_pool_destroy(pool, call->client, req->flags & OMNIKV_DESTROY_F_FORCE);
}

static int do_pool_manage(struct okv_call *call, struct okv_pool *pool)
{
	struct omnikv_ioc_pool_manage *req = call->req;

	if (req->reserved || req->epoch)
		return -EINVAL;
	return okv_client_manage(call->client, pool, req->flags, &req->epoch);
}

static int do_window_create(struct okv_call *call, struct okv_pool *pool)
{
	struct omnikv_ioc_window_create *req = call->req;

	call->fd = &req->window_fd;
	return okv_window_create(call->client, pool, req, &call->file);
}

static int do_batch(struct okv_call *call)
{
	return okv_batch(call->client, call->req);
}

static int do_extent_list(struct okv_call *call, struct okv_pool *pool)
{
	struct omnikv_ioc_extent_list *req = call->req;
	struct omnikv_extent_entry *entries;
	struct okv_attach *attach;
	int ret;

	if (req->flags || !req->count || req->count > OMNIKV_BATCH_MAX)
		return -EINVAL;
	entries = kvcalloc(req->count, sizeof(*entries), GFP_KERNEL_ACCOUNT);
	if (!entries)
		return -ENOMEM;

	mutex_lock(&call->client->lock);
	down_read(&pool->users);
	attach = pool->state == OKV_POOL_LIVE ? okv_client_attach_locked(call->client, pool) : ERR_PTR(-ENODEV);
	ret = PTR_ERR_OR_ZERO(attach);
	if (!ret)
		ret = okv_extent_list(attach, req->states, &req->from, entries, &req->count);
	up_read(&pool->users);
	mutex_unlock(&call->client->lock);

	if (!ret && copy_to_user(u64_to_user_ptr(req->entries), entries, req->count * sizeof(*entries)))
		ret = -EFAULT;
	kvfree(entries);
	return ret;
}

static int do_client_list(struct okv_call *call, struct okv_pool *pool)
{
	struct omnikv_ioc_client_list *req = call->req;
	struct omnikv_client_entry *entries;
	int ret;

	if (req->flags || req->reserved || !req->count || req->count > OMNIKV_BATCH_MAX)
		return -EINVAL;
	entries = kvcalloc(req->count, sizeof(*entries), GFP_KERNEL_ACCOUNT);
	if (!entries)
		return -ENOMEM;
	ret = okv_client_list(pool, &req->from, entries, &req->count);
	if (!ret && copy_to_user(u64_to_user_ptr(req->entries), entries, req->count * sizeof(*entries)))
		ret = -EFAULT;
	kvfree(entries);
	return ret;
}

static int do_client_revoke(struct okv_call *call, struct okv_pool *pool)
{
	struct omnikv_ioc_client_revoke *req = call->req;

	return req->flags ? -EINVAL : okv_client_revoke(pool, req->id);
}

/* @pool_do: the struct begins with the descriptor of a pool. @min: length in the first release. */
static const struct okv_command {
	u32	min;
	u32	size;
	bool	is_read;	/* results go back */
	int	(*call)(struct okv_call *call);
	int	(*pool_call)(struct okv_call *call, struct okv_pool *pool);
} okv_commands[] = {
#define COMMAND(name, len, back, ...) \
	[_IOC_NR(OMNIKV_IOC_##name)] = { len, _IOC_SIZE(OMNIKV_IOC_##name), back, __VA_ARGS__ }
	COMMAND(QUERY, 56, true, .call = do_query),
	COMMAND(POOL_CREATE, 88, true, .call = do_pool_create),
	COMMAND(POOL_OPEN, 48, true, .call = do_pool_open),
	COMMAND(POOL_INFO, 784, true, .pool_call = do_pool_info),
	COMMAND(POOL_CHOWN, 24, false, .pool_call = do_pool_chown),
	COMMAND(POOL_DESTROY, 8, false, .pool_call = do_pool_destroy),
	COMMAND(POOL_MANAGE, 16, true, .pool_call = do_pool_manage),
	COMMAND(WINDOW_CREATE, 24, true, .pool_call = do_window_create),
	COMMAND(BATCH, 32, true, .call = do_batch),
	COMMAND(EXTENT_LIST, 32, true, .pool_call = do_extent_list),
	COMMAND(CLIENT_LIST, 32, true, .pool_call = do_client_list),
	COMMAND(CLIENT_REVOKE, 16, false, .pool_call = do_client_revoke),
#undef COMMAND
};

/* Offsets and first lengths are for ever. */
static_assert(sizeof(struct omnikv_ioc_query) == 56);
static_assert(sizeof(struct omnikv_ioc_pool_create) == 88);
static_assert(offsetof(struct omnikv_ioc_pool_create, name) == 48);
static_assert(sizeof(struct omnikv_ioc_pool_open) == 48);
static_assert(sizeof(struct omnikv_ioc_pool_info) == 784);
static_assert(offsetof(struct omnikv_ioc_pool_info, node_bytes) == 272);
static_assert(sizeof(struct omnikv_ioc_batch) == 32);
static_assert(sizeof(struct omnikv_batch_op) == 80);
static_assert(offsetof(struct omnikv_batch_op, res) == 72);
static_assert(sizeof(struct omnikv_extent) == 16);
static_assert(sizeof(struct omnikv_extent_entry) == 32);
static_assert(sizeof(struct omnikv_client_entry) == 56);

static int call_command(const struct okv_command *cmd, struct okv_call *call)
{
	struct okv_pool *pool;
	int ret;

	if (cmd->call)
		return cmd->call(call);
	pool = okv_pool_get_fd(*(s32 *)call->req);
	if (IS_ERR(pool))
		return PTR_ERR(pool);
	ret = cmd->pool_call(call, pool);
	okv_pool_put(pool);
	return ret;
}

/* Tell the caller; only then does a new descriptor exist. */
static int publish(const struct okv_command *cmd, struct okv_call *call, void __user *user, size_t size)
{
	int fd = -1, ret;

	if (call->file) {
		fd = get_unused_fd_flags(O_CLOEXEC);
		if (fd < 0) {
			ret = fd;
			goto err_file;
		}
		*call->fd = fd;
	}
	ret = -EFAULT;
	if (cmd->is_read && copy_to_user(user, call->req, min_t(size_t, size, cmd->size)))
		goto err_fd;
	if (call->file)
		fd_install(fd, call->file);
	return 0;

err_fd:
	if (fd >= 0)
		put_unused_fd(fd);
err_file:
	if (call->created)
		okv_pool_destroy(call->created, call->client, true);
	if (call->file)
		fput(call->file);
	return ret;
}

long okv_ioctl(struct file *file, unsigned int num, unsigned long arg)
{
	struct okv_call call = { .client = file->private_data };
	void __user *user = (void __user *)arg;
	const struct okv_command *cmd;
	size_t size = _IOC_SIZE(num);
	int ret;

	if (_IOC_TYPE(num) != OMNIKV_IOC_TYPE || _IOC_NR(num) >= ARRAY_SIZE(okv_commands))
		return -ENOTTY;
	cmd = &okv_commands[_IOC_NR(num)];
	if (!cmd->size)
		return -ENOTTY;
	/* A forked child and whoever got the file otherwise are not the client. */
	if (current->mm != call.client->mm)
		return -EPERM;
	if (size < cmd->min)
		return -EINVAL;

	call.req = kzalloc(cmd->size, GFP_KERNEL_ACCOUNT);
	if (!call.req)
		return -ENOMEM;
	ret = copy_struct_from_user(call.req, cmd->size, user, size);
	/* What cannot be told is not done: the same bytes once more, to see whether they can be written. */
	if (!ret && cmd->is_read && copy_to_user(user, call.req, min_t(size_t, size, cmd->size)))
		ret = -EFAULT;
	if (!ret)
		ret = call_command(cmd, &call);
	/* A batch that was killed half-way still tells how far it came. */
	if (!ret || (ret == -EINTR && cmd->call == do_batch)) {
		int told = publish(cmd, &call, user, size);

		if (told)
			ret = told;
	}
	kfree(call.req);
	return ret;
}

// SPDX-License-Identifier: MIT
/*
 * Pools of the kernel module, reached by /dev/omnikv.
 *
 * A pool here is a descriptor of the module's pool and its linear map; a client is one open file
 * of /dev/omnikv, so that the module ends what it holds when this process dies; a window is the
 * module's. States, references and rights are the module's: it is asked for every call. Kept here
 * is only what a client has under way when it closes: until those transfers are over its file
 * stays open. Calls from any thread. Making a pool takes a thread where progress is asked for.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

#include "error.h"
#include "fd.h"
#include "failpoint.h"
#include "hold.h"
#include "numa_policy.h"
#include "provider.h"

#define DEV_PATH	"/dev/omnikv"
#define PAGE_BYTES	4096u
#define SYSFS_POOLS	"/sys/class/misc/omnikv/pools"
#define UNIT_BYTES	(UINT64_C(2) << 20)
#define BINDS_MAX	256u	/* handed over at once; on the stack */
#define CREATE_PAUSE_US	20000u
#define CREATE_TRIES	3000u	/* a minute */

struct kmod_pool {
	struct omnikv_pool	pool;

	/* Fixed after creation. */
	int			dev;	/* for questions; never attached */
	int			fd;
	uint64_t		bytes;
	uint32_t		flags;	/* OMNIKV_CREATE_F_* */

	atomic_uint		nr_ending;	/* closed clients that the module still counts */
};

struct kmod_window {
	struct omnikv_window	window;
	struct kmod_window	*next;
	int			fd;
};

struct kmod_client {
	struct omnikv_client	client;

	/* Fixed after creation. */
	int			dev;
	bool			is_manager;

	pthread_mutex_t		lock;
	/* Guarded by lock. */
	struct okv_holds	holds;		/* leases and transfers, for the end */
	uint64_t		nr_ios;
	bool			is_closed;
	struct kmod_window	*windows;
};

static struct kmod_pool *kmod_pool(struct omnikv_pool *pool)
{
	return (struct kmod_pool *)pool;
}

static struct kmod_client *kmod_client(struct omnikv_client *client)
{
	return (struct kmod_client *)client;
}

static int call(int dev, unsigned long number, void *arg)
{
	int ret;

	do {
		ret = ioctl(dev, number, arg);
	} while (ret < 0 && errno == EINTR);
	return ret < 0 ? -errno : 0;
}

/* One batch; the number of operations that succeeded goes to @done. */
static int batch(const struct kmod_client *client, struct omnikv_batch_op *ops, uint32_t nr, uint32_t *done)
{
	struct omnikv_ioc_batch req = {
		.pool_fd = kmod_pool(client->client.pool)->fd, .nr_ops = nr, .ops = (uintptr_t)ops,
	};
	int ret;

	ret = call(client->dev, OMNIKV_IOC_BATCH, &req);
	if (!ret && done)
		*done = req.nr_done;
	if (!ret && req.nr_done < nr)
		ret = ops[req.nr_done].res;
	return ret;
}

static int list_op(const struct kmod_client *client, uint32_t opcode, const struct omnikv_extent *exts,
		   uint32_t count)
{
	struct omnikv_batch_op op = { .opcode = opcode };

	if (count == 1) {
		op.extent = *exts;
	} else {
		op.addr = (uintptr_t)exts;
		op.count = count;
	}
	return batch(client, &op, 1, NULL);
}

/* ---- pools ------------------------------------------------------------------------------ */

static int open_dev(struct omnikv_error *err)
{
	struct omnikv_ioc_query query = { 0 };
	int dev, ret;

	dev = okv_fd_high(open(DEV_PATH, O_RDWR | O_CLOEXEC));
	if (dev < 0 && (errno == ENOENT || errno == ENXIO || errno == ENODEV))
		return okv_error_set(err, -EOPNOTSUPP,
				     "the kernel module is not loaded (no " DEV_PATH "); load it with modprobe omnikv, or use embedded:SIZE");
	if (dev < 0) {
		ret = errno == EACCES ? -EPERM : -errno;
		return okv_error_set(err, ret, "cannot open " DEV_PATH ": %s", strerror(errno));
	}
	ret = call(dev, OMNIKV_IOC_QUERY, &query);
	if (ret || query.version < OMNIKV_UAPI_VERSION) {
		close(dev);
		return okv_error_set(err, -EOPNOTSUPP,
				     "the kernel module speaks version %u of the contract, this library needs %u",
				     query.version, OMNIKV_UAPI_VERSION);
	}
	return dev;
}

static int open_fd(int dev, const char *name, int *fd, struct omnikv_error *err)
{
	struct omnikv_ioc_pool_open req = { 0 };
	int ret;

	memcpy(req.name, name, strlen(name));
	ret = call(dev, OMNIKV_IOC_POOL_OPEN, &req);
	if (ret == -ENOENT)
		return okv_error_set(err, ret, "no pool \"%s\"; 'omnikv pool create %s SIZE' makes one", name, name);
	if (ret == -EACCES)
		return okv_error_set(err, ret, "pool \"%s\": its owner and mode do not let this user in", name);
	if (ret)
		return okv_error_set(err, ret, "pool \"%s\": %s", name, strerror(-ret));
	*fd = okv_fd_high(req.pool_fd);
	if (*fd < 0) {
		ret = -errno;
		return okv_error_set(err, ret, "pool \"%s\": %s", name, strerror(-ret));
	}
	return 0;
}

/* ---- making one ------------------------------------------------------------------------- */

struct creation {
	int				dev;
	struct omnikv_ioc_pool_create	*req;
	int				ret;
	atomic_bool			is_done;
};

static void *create_thread(void *opaque)
{
	struct creation *creation = opaque;

	creation->ret = call(creation->dev, OMNIKV_IOC_POOL_CREATE, creation->req);
	atomic_store(&creation->is_done, true);
	return NULL;
}

static uint64_t ready_bytes(const char *name)
{
	char path[128], text[32];
	ssize_t n = -1;
	int fd;

	snprintf(path, sizeof(path), SYSFS_POOLS "/%.*s/ready_bytes", OMNIKV_NAME_MAX, name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, text, sizeof(text) - 1);
		close(fd);
	}
	if (n <= 0)
		return 0;
	text[n] = '\0';
	return strtoull(text, NULL, 10);
}

/* One call that takes as long as clearing the memory: a thread makes it where somebody watches. */
static int create(int dev, struct omnikv_ioc_pool_create *req, const struct omnikv_pool_config *config)
{
	struct creation creation = { .dev = dev, .req = req };
	const struct timespec pause = { .tv_nsec = 20000000 };
	uint64_t bytes = req->bytes, ready;
	pthread_t thread;

	if (!config->progress || pthread_create(&thread, NULL, create_thread, &creation)) {
		create_thread(&creation);
		return creation.ret;
	}
	while (!atomic_load(&creation.is_done)) {
		nanosleep(&pause, NULL);
		ready = ready_bytes((const char *)req->name);
		config->progress(config->opaque, ready < bytes ? ready : bytes, bytes);
	}
	pthread_join(thread, NULL);
	if (!creation.ret)
		config->progress(config->opaque, bytes, bytes);
	return creation.ret;
}

/* A name of the module's that nobody else uses. */
static int name_transient(char *name, size_t size)
{
	uint64_t random;

	if (getrandom(&random, sizeof(random), 0) != sizeof(random))
		return -EIO;
	snprintf(name, size, "auto-%d-%016" PRIx64, getpid(), random);
	return 0;
}

static int explain_create(int dev, const struct omnikv_ioc_pool_create *req, int ret, struct omnikv_error *err)
{
	struct omnikv_ioc_query query = { 0 };

	switch (ret) {
	case -EPERM:
		return okv_error_set(err, ret,
				     "only CAP_SYS_ADMIN may make pools of the kernel module here (its user_bytes is 0)");
	case -EDQUOT:
		call(dev, OMNIKV_IOC_QUERY, &query);
		return okv_error_set(err, ret,
				     "pool \"%s\": asked %" PRIu64 " bytes, %" PRIu64 " of the module's %" PRIu64
				     " are taken (a user's pools: %" PRIu64 "); 'omnikv pool list' shows by whom",
				     (const char *)req->name, (uint64_t)req->bytes, (uint64_t)query.used_bytes,
				     (uint64_t)query.limit_bytes, (uint64_t)query.user_bytes);
	case -ENOMEM:
		return okv_error_set(err, ret, "pool \"%s\": not enough memory for %" PRIu64 " bytes",
				     (const char *)req->name, (uint64_t)req->bytes);
	case -EINVAL:
		return okv_error_set(err, ret,
				     "pool \"%s\": the module refuses %" PRIu64 " bytes in granules of %u (up to 2 MiB), or these NUMA nodes",
				     (const char *)req->name, (uint64_t)req->bytes, req->granule_bytes);
	default:
		return okv_error_set(err, ret, "pool \"%s\": %s", (const char *)req->name, strerror(-ret));
	}
}

/* -EEXIST: somebody else has made it. */
static int create_fd(int dev, const struct okv_pool_spec *spec, const struct omnikv_pool_config *config, int *fd,
		     struct omnikv_error *err)
{
	struct omnikv_ioc_pool_create req = {
		.mode = 0600, .granule_bytes = config->granule_bytes,
		/* In one process clients trust one another. */
		.flags = spec->name ? 0 : OMNIKV_CREATE_F_TRANSIENT | OMNIKV_CREATE_F_TRUSTED,
	};
	struct okv_numa_policy policy = { 0 };
	char line[160];
	int ret;

	ret = config->numa ? okv_numa_policy_check(config->numa, &policy, err) : 0;
	if (ret)
		return ret;
	req.numa = policy.kind;
	req.nodes = policy.nodes;
	if (spec->bytes > UINT64_MAX - UNIT_BYTES)
		return okv_error_set(err, -EINVAL, "pool: %" PRIu64 " bytes are too many", spec->bytes);
	req.bytes = (spec->bytes + UNIT_BYTES - 1) / UNIT_BYTES * UNIT_BYTES;
	if (spec->name)
		memcpy(req.name, spec->name, strlen(spec->name));
	ret = spec->name ? 0 : name_transient((char *)req.name, sizeof(req.name));
	if (ret)
		return okv_error_set(err, ret, "pool: no random numbers for its name");

	ret = create(dev, &req, config);
	if ((ret == -ENOMEM || ret == -EOPNOTSUPP) && !(config->flags & OMNIKV_POOL_F_REQUIRE_HUGE)) {
		req.flags |= OMNIKV_CREATE_F_ACCEPT_SMALL;
		ret = create(dev, &req, config);
	}
	if (ret)
		return ret == -EEXIST ? ret : explain_create(dev, &req, ret, err);
	if (req.small_units && config->notice) {
		snprintf(line, sizeof(line), "pool %s: %u of its %" PRIu64 " units of 2 MiB are small pages",
			 (const char *)req.name, req.small_units, (uint64_t)req.bytes / UNIT_BYTES);
		config->notice(config->opaque, line);
	}
	*fd = okv_fd_high(req.pool_fd);
	if (*fd >= 0)
		return 0;
	ret = -errno;
	return okv_error_set(err, ret, "pool \"%s\": %s", (const char *)req.name, strerror(-ret));
}

/* The pool of that name; where @spec has a size, made if it is not there. */
static int find_fd(int dev, const struct okv_pool_spec *spec, const struct omnikv_pool_config *config, int *fd,
		   struct omnikv_error *err)
{
	bool may_make = spec->bytes && !(config->flags & OMNIKV_POOL_F_OPEN_ONLY);
	unsigned int tries;
	int ret = -ENOENT;

	if (!spec->name)
		return may_make ? create_fd(dev, spec, config, fd, err) :
				  okv_error_set(err, ret, "pool: it has no name, so there is none to open");
	/* It may come and go between two calls; several processes may begin with it at once. */
	for (tries = 0; tries < CREATE_TRIES; tries++) {
		ret = open_fd(dev, spec->name, fd, err);
		if (ret != -ENOENT || !may_make)
			return ret;
		ret = create_fd(dev, spec, config, fd, err);
		if (ret != -EEXIST)
			return ret;
		/* Its maker is still clearing it. */
		usleep(CREATE_PAUSE_US);
	}
	return okv_error_set(err, -EBUSY, "pool \"%s\": another process has been making it for %u s", spec->name,
			     CREATE_TRIES / (1000000u / CREATE_PAUSE_US));
}

static int kmod_open(const struct okv_pool_spec *spec, const struct omnikv_pool_config *config,
		     struct omnikv_pool **out, struct omnikv_error *err)
{
	struct omnikv_ioc_pool_info info = { 0 };
	struct kmod_pool *pool;
	int ret;

	if (config->numa && !spec->bytes)
		return okv_error_set(err, -EINVAL,
				     "pool \"%s\": a pool of the module has the NUMA policy of its creation", spec->name);
	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return okv_error_set(err, -ENOMEM, "pool: no memory");
	pool->dev = open_dev(err);
	ret = pool->dev;
	if (ret < 0)
		goto err_free;
	ret = find_fd(pool->dev, spec, config, &pool->fd, err);
	if (ret)
		goto err_dev;
	info.pool_fd = pool->fd;
	ret = call(pool->dev, OMNIKV_IOC_POOL_INFO, &info);
	if (ret) {
		okv_error_set(err, ret, "pool: %s", strerror(-ret));
		goto err_fd;
	}
	if (spec->bytes && (spec->bytes + UNIT_BYTES - 1) / UNIT_BYTES != info.bytes / UNIT_BYTES) {
		ret = okv_error_set(err, -EBADMSG,
				    "pool \"%s\" is there with %" PRIu64 " bytes, asked for %" PRIu64 "; kmod:%s takes it as it is",
				    (const char *)info.name, (uint64_t)info.bytes, spec->bytes, (const char *)info.name);
		goto err_fd;
	}
	if (config->granule_bytes && config->granule_bytes != info.granule_bytes) {
		ret = okv_error_set(err, -EBADMSG, "pool \"%s\": granule_bytes is %u, asked for %u", (const char *)info.name,
				    info.granule_bytes, config->granule_bytes);
		goto err_fd;
	}
	if (config->flags & OMNIKV_POOL_F_REQUIRE_HUGE && info.small_units) {
		ret = okv_error_set(err, -ENOMEM, "pool \"%s\": %u of its 2-MiB units are small pages", (const char *)info.name,
				    info.small_units);
		goto err_fd;
	}
	pool->bytes = info.bytes;
	pool->flags = info.pool_flags;
	pool->pool.provider = &okv_provider_kmod;
	pool->pool.is_lasting = true;
	pool->pool.granule_bytes = info.granule_bytes;
	pool->pool.base = mmap(NULL, info.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, pool->fd, 0);
	if (pool->pool.base == MAP_FAILED) {
		ret = -errno;
		okv_error_set(err, ret, "pool \"%s\": cannot map its %llu bytes: %s", (const char *)info.name,
			      (unsigned long long)info.bytes, strerror(-ret));
		goto err_fd;
	}
	*out = &pool->pool;
	return 0;

err_fd:
	close(pool->fd);
err_dev:
	close(pool->dev);
err_free:
	free(pool);
	return ret;
}

static void kmod_close(struct omnikv_pool *base)
{
	struct kmod_pool *pool = kmod_pool(base);

	munmap(base->base, pool->bytes);
	close(pool->fd);
	close(pool->dev);
	free(pool);
}

static int kmod_info(struct omnikv_pool *base, struct omnikv_pool_info *info)
{
	struct kmod_pool *pool = kmod_pool(base);
	struct omnikv_ioc_pool_info from = { .pool_fd = pool->fd };
	int ret, i;

	ret = call(pool->dev, OMNIKV_IOC_POOL_INFO, &from);
	if (ret)
		return ret;
	info->asked_bytes = from.bytes;
	info->usable_bytes = from.nr_granules * from.granule_bytes;
	info->overhead_bytes = from.bytes - info->usable_bytes;
	info->free_bytes = from.state_bytes[OMNIKV_EXTENT_FREE];
	for (i = 0; i < OMNIKV_EXTENT_NR_STATES; i++) {
		info->state_bytes[i] = from.state_bytes[i];
		info->nr_extents[i] = from.nr_extents[i];
	}
	info->largest_free_bytes = from.largest_free * from.granule_bytes;
	info->nr_granules = from.nr_granules;
	info->granule_bytes = from.granule_bytes;
	info->nr_clients = from.nr_clients - atomic_load(&pool->nr_ending);
	info->page_kind = from.small_units ? OMNIKV_PAGES_SMALL : OMNIKV_PAGES_THP;
	for (i = 0; i < OMNIKV_NODES_MAX; i++) {
		info->node_bytes[i] = from.node_bytes[i];
		if (from.node_bytes[i])
			info->nr_nodes = (uint32_t)i + 1;
	}
	memcpy(info->instance, from.instance, sizeof(info->instance));
	return 0;
}

static uint64_t kmod_free_granules(struct omnikv_pool *base)
{
	struct omnikv_ioc_pool_info from = { .pool_fd = kmod_pool(base)->fd };

	if (call(kmod_pool(base)->dev, OMNIKV_IOC_POOL_INFO, &from))
		return 0;
	return from.state_bytes[OMNIKV_EXTENT_FREE] / base->granule_bytes;
}

/* ---- clients ---------------------------------------------------------------------------- */

static int kmod_client_open(struct omnikv_pool *base, uint32_t flags, struct omnikv_client **out)
{
	struct omnikv_batch_op attach = { .opcode = OMNIKV_BATCH_NOP };
	struct kmod_client *client;
	int ret;

	client = calloc(1, sizeof(*client));
	if (!client)
		return -ENOMEM;
	client->client.pool = base;
	client->is_manager = flags & OMNIKV_CLIENT_F_MANAGER;
	client->dev = okv_fd_high(open(DEV_PATH, O_RDWR | O_CLOEXEC));
	if (client->dev < 0) {
		ret = -errno;
		goto err_free;
	}
	ret = batch(client, &attach, 1, NULL);
	if (!ret && client->is_manager) {
		struct omnikv_ioc_pool_manage manage = { .pool_fd = kmod_pool(base)->fd };

		ret = call(client->dev, OMNIKV_IOC_POOL_MANAGE, &manage);
	}
	if (ret)
		goto err_dev;
	pthread_mutex_init(&client->lock, NULL);
	*out = &client->client;
	return 0;

err_dev:
	close(client->dev);
err_free:
	free(client);
	return ret;
}

/* The module ends all that it still holds with its file. */
static void client_free(struct kmod_client *client)
{
	close(client->dev);
	okv_holds_fini(&client->holds);
	pthread_mutex_destroy(&client->lock);
	free(client);
}

/* Everything but the transfers ends now, although the file stays open for these. */
static void end_early_locked(struct kmod_client *client)
{
	int fd = kmod_pool(client->client.pool)->fd;
	struct omnikv_ioc_pool_manage manage = { .pool_fd = fd, .flags = OMNIKV_MANAGE_F_RELEASE };
	struct omnikv_ioc_extent_list list = {
		.pool_fd = fd, .states = 1u << OMNIKV_EXTENT_PRIVATE, .count = 64,
	};
	struct omnikv_extent_entry entries[64];
	uint32_t i;

	for (i = 0; client->holds.slots && i <= client->holds.mask; i++) {
		struct okv_hold *hold = &client->holds.slots[i];

		/* The length is not kept here; the module knows it. */
		while (hold->generation && hold->nr_leases) {
			struct omnikv_extent ext = {
				.granule = hold->granule, .generation = hold->generation,
				.nr_granules = hold->nr_binds,
			};

			if (list_op(client, OMNIKV_BATCH_RELEASE, &ext, 1))
				break;
			hold->nr_leases--;
		}
	}
	list.entries = (uintptr_t)entries;
	while (list.from != ~0ULL && !call(client->dev, OMNIKV_IOC_EXTENT_LIST, &list)) {
		for (i = 0; i < list.count; i++)
			list_op(client, OMNIKV_BATCH_FREE, &entries[i].extent, 1);
		list.count = 64;
	}
	if (client->is_manager)
		call(client->dev, OMNIKV_IOC_POOL_MANAGE, &manage);
}

static void kmod_window_destroy(struct omnikv_window *base);

static void kmod_client_close(struct omnikv_client *base)
{
	struct kmod_client *client = kmod_client(base);
	bool is_over;

	while (client->windows)
		kmod_window_destroy(&client->windows->window);
	pthread_mutex_lock(&client->lock);
	is_over = !client->nr_ios;
	client->is_closed = true;
	if (!is_over) {
		atomic_fetch_add(&kmod_pool(base->pool)->nr_ending, 1);
		end_early_locked(client);
	}
	pthread_mutex_unlock(&client->lock);
	if (is_over)
		client_free(client);
}

static int kmod_client_fd(const struct omnikv_client *client)
{
	return ((const struct kmod_client *)client)->dev;
}

/* ---- extents ---------------------------------------------------------------------------- */

static int kmod_alloc(struct omnikv_client *base, uint32_t nr_granules, uint32_t count,
		      const struct omnikv_extent *after, uint32_t flags, struct omnikv_extent *out)
{
	struct kmod_client *client = kmod_client(base);
	struct omnikv_batch_op op = {
		.opcode = OMNIKV_BATCH_ALLOC, .extent.nr_granules = nr_granules,
	};
	uint32_t done = 0, n;
	int ret;

	ret = -OKV_FAILPOINT("pool.alloc");
	if (ret)
		return ret;
	/* Before @out is read: what can never be had has no array of that length. */
	if ((uint64_t)nr_granules * count > kmod_pool(base->pool)->bytes / client->client.pool->granule_bytes)
		return -ENOSPC;
	/* Zeroed memory is always right, so that an untrusted pool is no error. */
	if (flags & OMNIKV_ALLOC_F_NO_ZERO &&
	    (client->is_manager || kmod_pool(base->pool)->flags & OMNIKV_CREATE_F_TRUSTED))
		op.flags |= OMNIKV_BATCH_ALLOC_F_NO_ZERO;
	if (flags & OMNIKV_ALLOC_F_META)
		op.flags |= OMNIKV_BATCH_ALLOC_F_META;

	while (done < count) {
		if (after) {
			op.flags |= OMNIKV_BATCH_ALLOC_F_AFTER;
			op.extent.granule = after->granule;
		}
		n = count - done < OMNIKV_LIST_MAX ? count - done : OMNIKV_LIST_MAX;
		op.addr = (uintptr_t)(out + done);
		op.count = n;
		op.res = 0;
		ret = batch(client, &op, 1, NULL);
		if (ret)
			goto err_free;
		done += n;
		after = &out[done - 1];
	}
	return 0;

err_free:
	for (; done; done -= n) {
		n = done < OMNIKV_LIST_MAX ? done : OMNIKV_LIST_MAX;
		list_op(client, OMNIKV_BATCH_FREE, out + done - n, n);
	}
	return ret;
}

/* The module takes lists of OMNIKV_LIST_MAX, all or nothing; longer ones are refused. */
static int plain_list(struct omnikv_client *base, uint32_t opcode, const struct omnikv_extent *exts, uint32_t count)
{
	return count > OMNIKV_LIST_MAX ? -E2BIG : list_op(kmod_client(base), opcode, exts, count);
}

static int kmod_seal(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count)
{
	return plain_list(client, OMNIKV_BATCH_SEAL, exts, count);
}

static int kmod_free(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count)
{
	return plain_list(client, OMNIKV_BATCH_FREE, exts, count);
}

static int get_list(struct omnikv_client *base, const struct omnikv_extent *exts, uint32_t count, uint32_t opcode)
{
	struct kmod_client *client = kmod_client(base);
	uint32_t i;
	int ret;

	pthread_mutex_lock(&client->lock);
	ret = okv_holds_reserve(&client->holds, count);
	if (!ret)
		ret = plain_list(base, opcode, exts, count);
	for (i = 0; i < count && !ret; i++) {
		struct okv_hold *hold = okv_holds_get(&client->holds, (uint32_t)exts[i].granule,
						      exts[i].generation);

		/* Where the module counts binds, this table keeps the length of the extent. */
		hold->nr_binds = exts[i].nr_granules;
		if (opcode == OMNIKV_BATCH_LEASE)
			hold->nr_leases++;
		else
			hold->nr_ios++;
	}
	if (!ret && opcode == OMNIKV_BATCH_IO_GET)
		client->nr_ios += count;
	pthread_mutex_unlock(&client->lock);
	return ret;
}

static void put_counted_locked(struct kmod_client *client, const struct omnikv_extent *exts, uint32_t count,
			       uint32_t opcode)
{
	uint32_t i;

	for (i = 0; i < count; i++) {
		struct okv_hold *hold = okv_holds_find(&client->holds, (uint32_t)exts[i].granule);

		if (!hold)
			continue;
		if (opcode == OMNIKV_BATCH_RELEASE && hold->nr_leases) {
			hold->nr_leases--;
		} else if (opcode == OMNIKV_BATCH_IO_PUT && hold->nr_ios) {
			hold->nr_ios--;
			client->nr_ios--;
		}
		if (hold->nr_leases || hold->nr_ios)
			continue;
		hold->nr_binds = 0;
		okv_holds_drop(&client->holds, hold);
	}
}

static int kmod_lease(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count)
{
	return get_list(client, exts, count, OMNIKV_BATCH_LEASE);
}

/*
 * In one batch: who looks for sealed extents that nobody has sees them held. A lease that would be one too many is
 * seen by a transfer while they are PRIVATE still; leases of this client are all got with its lock held.
 */
static int kmod_hand_over(struct omnikv_client *base, const struct omnikv_extent *exts, uint32_t count)
{
	static const uint32_t opcodes[] = {
		OMNIKV_BATCH_IO_GET, OMNIKV_BATCH_IO_PUT, OMNIKV_BATCH_SEAL, OMNIKV_BATCH_LEASE,
	};
	struct omnikv_batch_op ops[4] = { 0 };
	struct kmod_client *client = kmod_client(base);
	uint32_t i;
	int ret;

	if (count > OMNIKV_LIST_MAX)
		return -E2BIG;
	for (i = 0; i < 4; i++)
		ops[i] = (struct omnikv_batch_op){ .opcode = opcodes[i], .addr = (uintptr_t)exts, .count = count };
	pthread_mutex_lock(&client->lock);
	ret = okv_holds_reserve(&client->holds, count);
	if (!ret)
		ret = batch(client, ops, 4, NULL);
	for (i = 0; i < count && !ret; i++) {
		struct okv_hold *hold = okv_holds_get(&client->holds, (uint32_t)exts[i].granule, exts[i].generation);

		hold->nr_binds = exts[i].nr_granules;
		hold->nr_leases++;
	}
	pthread_mutex_unlock(&client->lock);
	return ret;
}

static int kmod_release(struct omnikv_client *base, const struct omnikv_extent *exts, uint32_t count)
{
	struct kmod_client *client = kmod_client(base);
	int ret;

	pthread_mutex_lock(&client->lock);
	ret = plain_list(base, OMNIKV_BATCH_RELEASE, exts, count);
	if (!ret)
		put_counted_locked(client, exts, count, OMNIKV_BATCH_RELEASE);
	pthread_mutex_unlock(&client->lock);
	return ret;
}

static int kmod_io_get(struct omnikv_client *client, const struct omnikv_extent *exts, uint32_t count)
{
	int ret = -OKV_FAILPOINT("pool.io_get");

	return ret ? ret : get_list(client, exts, count, OMNIKV_BATCH_IO_GET);
}

static void kmod_io_put(struct omnikv_client *base, const struct omnikv_extent *exts, uint32_t count)
{
	struct kmod_client *client = kmod_client(base);
	struct kmod_pool *pool;
	bool is_over;
	uint32_t i;

	pthread_mutex_lock(&client->lock);
	/* A list that names an extent twice was got in two calls, and is put one by one. */
	if (plain_list(base, OMNIKV_BATCH_IO_PUT, exts, count))
		for (i = 0; i < count; i++)
			list_op(client, OMNIKV_BATCH_IO_PUT, &exts[i], 1);
	put_counted_locked(client, exts, count, OMNIKV_BATCH_IO_PUT);
	is_over = client->is_closed && !client->nr_ios;
	pthread_mutex_unlock(&client->lock);
	if (!is_over)
		return;
	pool = kmod_pool(base->pool);
	client_free(client);
	atomic_fetch_sub(&pool->nr_ending, 1);
}

static int kmod_query(struct omnikv_client *base, const struct omnikv_extent *ext, struct omnikv_extent_info *info)
{
	struct omnikv_batch_op op = { .opcode = OMNIKV_BATCH_QUERY_EXTENT, .extent = *ext };
	int ret;

	ret = batch(kmod_client(base), &op, 1, NULL);
	if (ret)
		return ret;
	info->state = op.state & ~OMNIKV_STATE_F_MINE;
	info->is_mine = op.state & OMNIKV_STATE_F_MINE;
	info->nr_refs = op.count;
	info->bytes = (uint64_t)ext->nr_granules * base->pool->granule_bytes;
	return 0;
}

static int64_t kmod_list(struct omnikv_client *base, uint32_t states, uint64_t *from,
			 struct omnikv_extent *exts, uint32_t max)
{
	struct omnikv_extent_entry entries[64];
	struct omnikv_ioc_extent_list req = { .pool_fd = kmod_pool(base->pool)->fd, .states = states };
	uint32_t nr = 0, i;
	int ret;

	req.entries = (uintptr_t)entries;
	req.from = *from;
	while (nr < max && req.from != UINT64_MAX) {
		req.count = max - nr < 64 ? max - nr : 64;
		ret = call(kmod_client(base)->dev, OMNIKV_IOC_EXTENT_LIST, &req);
		if (ret)
			return ret;
		for (i = 0; i < req.count; i++)
			exts[nr++] = entries[i].extent;
	}
	*from = req.from;
	return nr;
}

/* ---- windows ---------------------------------------------------------------------------- */

static int kmod_window_create(struct omnikv_client *base, uint64_t bytes, uint32_t flags,
			      struct omnikv_window **out)
{
	struct kmod_client *client = kmod_client(base);
	bool is_rw = flags & OMNIKV_WINDOW_F_RW;
	struct omnikv_ioc_window_create req = {
		.pool_fd = kmod_pool(base->pool)->fd, .bytes = bytes,
		/* A manager writes META too, for as long as it manages. */
		.kind = !is_rw ? OMNIKV_WINDOW_RO : client->is_manager ? OMNIKV_WINDOW_META : OMNIKV_WINDOW_RW,
	};
	struct kmod_window *window;
	int ret;

	ret = -OKV_FAILPOINT("window.create");
	if (ret)
		return ret;
	window = calloc(1, sizeof(*window));
	if (!window)
		return -ENOMEM;
	ret = call(client->dev, OMNIKV_IOC_WINDOW_CREATE, &req);
	if (ret)
		goto err_free;
	window->fd = req.window_fd;
	window->window.client = base;
	window->window.bytes = bytes;
	window->window.flags = flags;
	window->window.base = mmap(NULL, bytes, is_rw ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
				   window->fd, 0);
	if (window->window.base == MAP_FAILED) {
		ret = -ENOMEM;
		goto err_close;
	}
	pthread_mutex_lock(&client->lock);
	window->next = client->windows;
	client->windows = window;
	pthread_mutex_unlock(&client->lock);
	*out = &window->window;
	return 0;

err_close:
	close(window->fd);
err_free:
	free(window);
	return ret;
}

static void kmod_window_destroy(struct omnikv_window *base)
{
	struct kmod_client *client = kmod_client(base->client);
	struct kmod_window *window = (struct kmod_window *)base, **link;

	pthread_mutex_lock(&client->lock);
	for (link = &client->windows; *link != window;)
		link = &(*link)->next;
	*link = window->next;
	pthread_mutex_unlock(&client->lock);
	munmap(base->base, base->bytes);
	close(window->fd);
	free(window);
}

static int kmod_window_bind(struct omnikv_window *base, const struct omnikv_bind *binds, uint32_t count,
			    uint32_t *nr_bound)
{
	struct kmod_window *window = (struct kmod_window *)base;
	struct omnikv_batch_op ops[BINDS_MAX];
	uint32_t i, n, done;
	int ret = 0;

	*nr_bound = 0;
	while (*nr_bound < count && !ret) {
		n = count - *nr_bound < BINDS_MAX ? count - *nr_bound : BINDS_MAX;
		for (i = 0; i < n; i++) {
			const struct omnikv_bind *bind = &binds[*nr_bound + i];

			ops[i] = (struct omnikv_batch_op) {
				.opcode = OMNIKV_BATCH_BIND, .extent = bind->extent,
				.window_fd = window->fd, .window_off = bind->window_off,
				.extent_off = bind->extent_off, .bytes = bind->bytes,
			};
		}
		done = 0;
		ret = batch(kmod_client(base->client), ops, n, &done);
		*nr_bound += done;
	}
	return ret;
}

static int kmod_window_unbind(struct omnikv_window *base, uint64_t off, uint64_t bytes)
{
	struct kmod_window *window = (struct kmod_window *)base;
	struct omnikv_batch_op op = {
		.opcode = OMNIKV_BATCH_UNBIND, .window_fd = window->fd, .window_off = off, .bytes = bytes,
	};

	return bytes ? batch(kmod_client(base->client), &op, 1, NULL) : 0;
}

const struct okv_provider okv_provider_kmod = {
	.name		= "kmod",
	.can_fence	= true,
	.open		= kmod_open,
	.close		= kmod_close,
	.info		= kmod_info,
	.free_granules	= kmod_free_granules,
	.client_open	= kmod_client_open,
	.client_close	= kmod_client_close,
	.client_fd	= kmod_client_fd,
	.alloc		= kmod_alloc,
	.seal		= kmod_seal,
	.free		= kmod_free,
	.hand_over	= kmod_hand_over,
	.lease		= kmod_lease,
	.release	= kmod_release,
	.io_get		= kmod_io_get,
	.io_put		= kmod_io_put,
	.query		= kmod_query,
	.list		= kmod_list,
	.window_create	= kmod_window_create,
	.window_destroy	= kmod_window_destroy,
	.window_bind	= kmod_window_bind,
	.window_unbind	= kmod_window_unbind,
};

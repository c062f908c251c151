// SPDX-License-Identifier: MIT
/*
 * The authority over a pool that other processes map. See share.h.
 *
 * Numbers of clients, their locks and their tables live here; states and references are the extent
 * map's, as in any embedded pool. A given-up extent that a table counts is held by one reference, so
 * that the map quarantines it as it does for its own clients.
 */
#include "share.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "failpoint.h"
#include "fd.h"

/* ---- who lives -------------------------------------------------------------------------- */

/* The first byte locked by a client process at or behind that of @id; its number, or 0. */
static uint32_t first_alive(const struct okv_embedded_pool *pool, uint32_t id, int64_t nr)
{
	uint32_t found = 0;

	/* The kernel names any lock of the range, so it is asked until there is none before. */
	while (nr > 0) {
		struct flock lock = {
			.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = OKV_SHARE_LOCK + id, .l_len = nr,
		};

		/* Where that cannot be asked nobody is taken for dead. */
		if (fcntl(pool->fd, F_OFD_GETLK, &lock))
			return id;
		if (lock.l_type == F_UNLCK)
			break;
		if (lock.l_start <= OKV_SHARE_LOCK + id)
			return id;
		found = (uint32_t)(lock.l_start - OKV_SHARE_LOCK);
		nr = found - id;
	}
	return found;
}

bool okv_share_is_alive(const struct okv_embedded_pool *pool, uint32_t id)
{
	return first_alive(pool, id, 1) == id;
}

static bool owner_is_alive(void *opaque, uint32_t owner)
{
	return okv_share_is_alive(opaque, owner);
}

bool okv_share_is_proof(struct omnikv_pool *base, int memory, uint32_t id)
{
	const struct okv_embedded_pool *pool = okv_embedded_pool(base);
	struct flock lock = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = OKV_SHARE_LOCK + id, .l_len = 1,
	};
	struct stat ours, theirs;

	if (fstat(pool->fd, &ours) || fstat(memory, &theirs) || ours.st_dev != theirs.st_dev ||
	    ours.st_ino != theirs.st_ino || !okv_share_is_alive(pool, id))
		return false;
	/* Somebody's lock is there. Only its own description can make it another kind of lock. */
	if (fcntl(memory, F_OFD_SETLK, &lock))
		return false;
	lock.l_type = F_RDLCK;
	fcntl(memory, F_OFD_SETLK, &lock);
	return true;
}

/* ---- tables ----------------------------------------------------------------------------- */

/* NULL where tables are no files; else @path. */
static const char *table_path(const struct okv_embedded_pool *pool, uint32_t id, char path[PATH_MAX])
{
	int n = pool->path ? snprintf(path, PATH_MAX, "%s.leases.%u", pool->path, id) : 0;

	return n > 0 && n < PATH_MAX ? path : NULL;
}

/* Is it a table of this pool? @may_shrink: one that is to be read by calls. */
static bool is_table(const struct okv_embedded_pool *pool, int fd, bool *may_shrink)
{
	const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
	struct stat st;
	int has;

	if (fstat(fd, &st) || (uint64_t)st.st_size != okv_lease_bytes(pool->map.nr_granules))
		return false;
	has = fcntl(fd, F_GET_SEALS);
	*may_shrink = has < 0 || (has & seals) != seals;
	/* A file on tmpfs answers as well, and has no seals. */
	return !*may_shrink || (pool->path && S_ISREG(st.st_mode) && st.st_uid == geteuid());
}

static int table_take(struct okv_embedded_pool *pool, struct okv_embedded_client *client, int fd)
{
	uint64_t nr = pool->map.nr_granules, bytes = okv_lease_bytes(nr);
	bool may_shrink;
	void *base;

	if (!is_table(pool, fd, &may_shrink))
		return -EINVAL;
	client->leases = (struct okv_lease_table){ .nr_granules = nr };
	client->leases_fd = fd;
	if (may_shrink)
		return 0;
	base = mmap(NULL, bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (base == MAP_FAILED) {
		client->leases_fd = -1;
		return -ENOMEM;
	}
	madvise(base, bytes, MADV_DONTFORK);
	madvise(base, bytes, MADV_DONTDUMP);
	okv_lease_init(&client->leases, base, nr);
	return 0;
}

/* What the client counts; the caller has passed a full fence where it decides by that. */
static uint32_t table_count(const struct okv_embedded_client *client, uint32_t granule)
{
	const struct okv_lease_table *table = &client->leases;
	uint32_t nr;

	if (table->counts || client->leases_fd < 0)
		return okv_lease_count(table, granule);
	return pread(client->leases_fd, &nr, sizeof(nr),
		     (off_t)(okv_lease_counts_off(table->nr_granules) + granule * sizeof(nr))) == sizeof(nr) ? nr : 0;
}

/* All counts together. */
static uint64_t table_sum(const struct okv_embedded_client *client)
{
	const struct okv_lease_table *table = &client->leases;
	bool is_mapped = table->counts != NULL;
	uint32_t page[OKV_LEASE_GRANULES_A_BIT];
	uint64_t nr = 0, granule, i, bits;
	ssize_t len;

	for (granule = 0; granule < table->nr_granules; granule += OKV_LEASE_GRANULES_A_BIT) {
		uint64_t bit = granule / OKV_LEASE_GRANULES_A_BIT;

		if (is_mapped)
			bits = atomic_load_explicit(&table->touched[bit / 64], memory_order_relaxed);
		else if (pread(client->leases_fd, &bits, sizeof(bits), (off_t)(bit / 64 * sizeof(bits))) != sizeof(bits))
			break;
		if (!(bits >> (bit % 64) & 1))
			continue;
		for (i = granule; is_mapped && i < granule + OKV_LEASE_GRANULES_A_BIT && i < table->nr_granules; i++)
			nr += okv_lease_count(table, (uint32_t)i);
		if (is_mapped)
			continue;
		len = pread(client->leases_fd, page, sizeof(page),
			    (off_t)(okv_lease_counts_off(table->nr_granules) + granule * sizeof(page[0])));
		for (i = 0; len > 0 && i < (size_t)len / sizeof(page[0]) && granule + i < table->nr_granules; i++)
			nr += page[i];
	}
	return nr;
}

static int table_new(struct okv_embedded_pool *pool, struct okv_embedded_client *client)
{
	char room[PATH_MAX];
	const char *path = table_path(pool, client->id, room);
	int fd, ret;

	ret = -OKV_FAILPOINT("share.table");
	if (ret)
		return ret;
	/* What lies there under that name is of a client that is gone. */
	if (path)
		unlink(path);
	fd = okv_fd_high(path ? open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600) :
			 memfd_create("omnikv-leases", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (fd < 0)
		return -errno;
	if (okv_fd_resize(fd, okv_lease_bytes(pool->map.nr_granules)) ||
	    (!path && fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)))
		ret = -errno;
	else
		ret = table_take(pool, client, fd);
	if (ret) {
		close(fd);
		if (path)
			unlink(path);
	}
	return ret;
}

/* The table that an earlier authority made for a client that lives. */
static int table_find(struct okv_embedded_pool *pool, struct okv_embedded_client *client)
{
	char room[PATH_MAX];
	const char *path = table_path(pool, client->id, room);
	int fd, ret;

	if (!path)
		return -ENOENT;
	fd = okv_fd_high(open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC));
	if (fd < 0)
		return -errno;
	ret = table_take(pool, client, fd);
	if (ret)
		close(fd);
	return ret;
}

/* Tables of clients that ended while there was no authority. */
static void tables_clean(struct okv_embedded_pool *pool)
{
	char dir[PATH_MAX], *slash;
	const char *base;
	struct dirent *entry;
	unsigned int id;
	size_t len;
	DIR *list;

	if (!pool->path || strlen(pool->path) >= sizeof(dir))
		return;
	strcpy(dir, pool->path);
	slash = strrchr(dir, '/');
	base = slash ? pool->path + (slash - dir) + 1 : pool->path;
	if (slash)
		slash[slash == dir] = '\0';
	len = strlen(base);
	list = opendir(slash ? dir : ".");
	while (list && (entry = readdir(list))) {
		int end = 0;

		if (strncmp(entry->d_name, base, len) ||
		    sscanf(entry->d_name + len, ".leases.%u%n", &id, &end) != 1 || entry->d_name[len + (size_t)end])
			continue;
		if (!okv_share_is_alive(pool, id))
			unlinkat(dirfd(list), entry->d_name, 0);
	}
	if (list)
		closedir(list);
}

static void table_unmap(struct okv_embedded_client *client)
{
	if (client->leases.touched)
		munmap((void *)client->leases.touched, okv_lease_bytes(client->leases.nr_granules));
	if (client->leases_fd >= 0)
		close(client->leases_fd);
	client->leases = (struct okv_lease_table){ 0 };
	client->leases_fd = -1;
}

uint32_t okv_share_count_locked(const struct okv_embedded_pool *pool, uint32_t granule)
{
	const struct okv_embedded_client *client;
	uint64_t nr = 0;

	if (!pool->nr_remotes)
		return 0;
	for (client = pool->clients; client; client = client->next)
		if (client->is_remote)
			nr += table_count(client, granule);
	/* Clients count what they like: no sum of it is none. */
	return nr < INT32_MAX ? (uint32_t)nr : INT32_MAX;
}

bool okv_share_is_leased(void *opaque, const struct omnikv_extent *ext)
{
	struct okv_embedded_pool *pool = opaque;
	bool is_leased = false;

	if (pool->pool.provider != &okv_provider_embedded || !pool->is_shared)
		return false;
	pthread_mutex_lock(&pool->lock);
	if (pool->nr_remotes && ext->granule < pool->map.nr_granules)
		is_leased = pool->nr_unknown || okv_share_count_locked(pool, (uint32_t)ext->granule);
	pthread_mutex_unlock(&pool->lock);
	return is_leased;
}

uint64_t okv_share_leases(struct omnikv_pool *base)
{
	struct okv_embedded_pool *pool = okv_embedded_pool(base);
	const struct okv_embedded_client *client;
	uint64_t nr = 0;

	if (base->provider != &okv_provider_embedded || !pool->is_shared)
		return 0;
	pthread_mutex_lock(&pool->lock);
	for (client = pool->clients; client && pool->nr_remotes; client = client->next)
		nr += client->is_remote ? table_sum(client) : 0;
	if (pool->nr_unknown)
		nr = UINT64_MAX;
	pthread_mutex_unlock(&pool->lock);
	return nr;
}

/* ---- limbo ------------------------------------------------------------------------------ */

static int limbo_reserve(struct okv_embedded_pool *pool, uint64_t nr)
{
	uint64_t max = pool->max_limbo ? pool->max_limbo : 64;
	uint32_t *limbo;

	while (max < pool->nr_limbo + nr)
		max *= 2;
	if (max == pool->max_limbo)
		return 0;
	limbo = realloc(pool->limbo, max * sizeof(*limbo));
	if (!limbo)
		return -ENOMEM;
	pool->limbo = limbo;
	pool->max_limbo = max;
	return 0;
}

/*
 * Free what no table counts. The generation was raised before; the fence here pairs with the one in
 * okv_lease_fence(): who counted too late for us to see it sees that its name is old.
 */
static bool limbo_look(struct okv_embedded_pool *pool, uint64_t from)
{
	uint64_t i, kept = from;

	if (pool->nr_unknown)
		return false;
	okv_fence(memory_order_seq_cst);
	for (i = from; i < pool->nr_limbo; i++) {
		if (okv_share_count_locked(pool, pool->limbo[i]))
			pool->limbo[kept++] = pool->limbo[i];
		else
			okv_extent_put(&pool->map, pool->limbo[i], 1);
	}
	if (kept == pool->nr_limbo)
		return false;
	pool->nr_limbo = kept;
	return true;
}

bool okv_share_settle_locked(struct okv_embedded_pool *pool)
{
	return pool->nr_limbo && limbo_look(pool, 0);
}

int okv_share_free_locked(struct okv_embedded_pool *pool, struct okv_embedded_client *client,
			  const struct omnikv_extent *exts, uint32_t count)
{
	uint64_t from = pool->nr_limbo;
	uint32_t i;
	int ret;

	ret = limbo_reserve(pool, count);
	if (ret)
		return ret;
	ret = okv_extent_check_list(&pool->map, exts, count, OKV_OP_FREE, client->id, client->is_manager);
	if (ret)
		return ret;
	okv_extent_unmark_list(&pool->map, exts, count);
	for (i = 0; i < count; i++) {
		okv_extent_get(&pool->map, exts[i].granule, 1);
		pool->limbo[pool->nr_limbo++] = (uint32_t)exts[i].granule;
	}
	/* Checked above, so it cannot fail; each becomes QUARANTINED under a raised generation. */
	ret = okv_extent_free_list(&pool->map, exts, count, client->id, client->is_manager);
	limbo_look(pool, from);
	return ret;
}

/* ---- clients ---------------------------------------------------------------------------- */

void okv_share_forget_locked(struct okv_embedded_pool *pool, struct okv_embedded_client *client)
{
	char path[PATH_MAX];

	if (!client->is_remote)
		return;
	client->is_remote = false;
	pool->nr_remotes--;
	if (client->is_unknown)
		pool->nr_unknown--;
	if (table_path(pool, client->id, path))
		unlink(path);
	table_unmap(client);
}

static void mark_remote(struct okv_embedded_pool *pool, struct okv_embedded_client *client)
{
	pthread_mutex_lock(&pool->lock);
	client->is_remote = true;
	pool->nr_remotes++;
	pthread_mutex_unlock(&pool->lock);
}

/* A description of the memory that is the client's alone, with its lock; @id 0: without. */
static int memory_open(struct okv_embedded_pool *pool, uint32_t id, int flags)
{
	struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = OKV_SHARE_LOCK + id, .l_len = 1 };
	char path[48];
	int fd;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", pool->fd);
	fd = -OKV_FAILPOINT("share.memory");
	if (fd)
		return fd;
	fd = okv_fd_high(open(path, flags | O_CLOEXEC));
	if (fd < 0)
		return -errno;
	if (id && fcntl(fd, F_OFD_SETLK, &lock)) {
		int ret = -errno;

		close(fd);
		return ret;
	}
	return fd;
}

int okv_share_memory(struct omnikv_pool *pool, int flags)
{
	return memory_open(okv_embedded_pool(pool), 0, flags);
}

int okv_share_attach(struct omnikv_pool *base, uint32_t flags, struct omnikv_client **out,
		     struct okv_share_fds *fds)
{
	struct okv_embedded_pool *pool = okv_embedded_pool(base);
	struct okv_embedded_client *client;
	int ret;

	ret = okv_embedded_client_new(pool, flags, 0, &client);
	if (ret)
		return ret;
	fds->memory = memory_open(pool, client->id, O_RDWR);
	ret = fds->memory;
	if (ret < 0)
		goto err_close;
	ret = table_new(pool, client);
	if (ret)
		goto err_memory;
	fds->leases = client->leases_fd;
	mark_remote(pool, client);
	*out = &client->client;
	return 0;

err_memory:
	close(fds->memory);
err_close:
	okv_embedded_client_close(&client->client);
	return ret;
}

int okv_share_reattach(struct omnikv_pool *base, uint32_t id, uint32_t flags, int memory, int leases,
		       struct omnikv_client **out)
{
	struct okv_embedded_pool *pool = okv_embedded_pool(base);
	struct okv_embedded_client *client;
	bool is_manager = flags & OMNIKV_CLIENT_F_MANAGER;
	int ret = -ENOENT;

	if (memory >= 0 && !okv_share_is_proof(base, memory, id))
		return -EPERM;
	pthread_mutex_lock(&pool->lock);
	for (client = pool->clients; client && client->id != id;)
		client = client->next;
	if (!client || !client->is_remote || !client->is_absent || client->is_closed || client->is_over)
		goto out;
	ret = -EBUSY;
	if (is_manager && pool->manager && pool->manager != client)
		goto out;
	/* The table of an ABSENT one is here; an UNKNOWN one brings it. */
	if (client->is_unknown) {
		ret = table_take(pool, client, leases);
		if (ret)
			goto out;
		client->is_unknown = false;
		pool->nr_unknown--;
	} else if (leases >= 0) {
		close(leases);
	}
	if (is_manager) {
		client->is_manager = true;
		pool->manager = client;
	}
	client->is_absent = false;
	*out = &client->client;
	ret = 0;
out:
	pthread_mutex_unlock(&pool->lock);
	return ret;
}

int okv_share_end(struct omnikv_client *base)
{
	struct okv_embedded_pool *pool = okv_embedded_pool(base->pool);
	struct okv_embedded_client *client = okv_embedded_client(base);
	struct okv_extent_view view;
	uint64_t from;
	uint32_t cursor = 0;
	int ret;

	pthread_mutex_lock(&pool->lock);
	ret = limbo_reserve(pool, client->nr_private);
	if (ret || client->is_over)
		goto out;
	from = pool->nr_limbo;
	while (client->nr_private && okv_extent_map_next(&pool->map, &cursor, &view)) {
		if (view.state != OMNIKV_EXTENT_PRIVATE || view.owner != client->id)
			continue;
		okv_extent_get(&pool->map, view.name.granule, 1);
		pool->limbo[pool->nr_limbo++] = (uint32_t)view.name.granule;
		okv_extent_end(&pool->map, view.name.granule);
		client->nr_private--;
	}
	limbo_look(pool, from);
	client->is_over = true;
	pool->nr_clients--;
	if (pool->manager == client)
		pool->manager = NULL;
out:
	pthread_mutex_unlock(&pool->lock);
	return ret;
}

void okv_share_detach(struct omnikv_client *base, bool is_dead)
{
	struct okv_embedded_pool *pool = okv_embedded_pool(base->pool);
	struct okv_embedded_client *client = okv_embedded_client(base);

	pthread_mutex_lock(&pool->lock);
	client->is_absent = true;
	client->is_dead = is_dead;
	client->dead_since_ns = okv_monotonic_ns();
	pthread_mutex_unlock(&pool->lock);
}

/*
 * One that said that it is over may still have transfers under way, where its connection broke before they ended; and
 * so may one that is dead, whose rings then have its lock. A child that has it is not waited for.
 */
static bool is_gone(const struct okv_embedded_pool *pool, const struct okv_embedded_client *client)
{
	uint64_t dead_ns = client->is_dead ? okv_monotonic_ns() - client->dead_since_ns : 0;

	return dead_ns >= OKV_SHARE_REST_MS * UINT64_C(1000000) || (client->is_over && !table_sum(client)) ||
	       !okv_share_is_alive(pool, client->id);
}

uint64_t okv_share_settle(struct omnikv_pool *base)
{
	struct okv_embedded_pool *pool = okv_embedded_pool(base);
	struct okv_embedded_client *client;
	uint64_t nr = 0;

	for (;;) {
		pthread_mutex_lock(&pool->lock);
		for (client = pool->clients; client; client = client->next)
			if (client->is_remote && client->is_absent && is_gone(pool, client))
				break;
		pthread_mutex_unlock(&pool->lock);
		if (!client)
			break;
		okv_embedded_client_close(&client->client);
	}
	pthread_mutex_lock(&pool->lock);
	okv_share_settle_locked(pool);
	for (client = pool->clients; client; client = client->next)
		nr += client->is_remote && client->is_absent;
	nr += pool->nr_limbo;
	pthread_mutex_unlock(&pool->lock);
	return nr;
}

void okv_share_clients(struct omnikv_pool *base,
		       void (*see)(void *opaque, const struct okv_embedded_client *client, uint64_t private_bytes,
				   uint64_t nr_leases),
		       void *opaque)
{
	struct okv_embedded_pool *pool = okv_embedded_pool(base);
	struct okv_embedded_client *client;
	struct okv_extent_view view;
	uint64_t private_granules;
	uint32_t cursor;

	pthread_mutex_lock(&pool->lock);
	for (client = pool->clients; client; client = client->next) {
		if (!client->is_remote)
			continue;
		private_granules = 0;
		for (cursor = 0; client->nr_private && okv_extent_map_next(&pool->map, &cursor, &view);)
			if (view.state == OMNIKV_EXTENT_PRIVATE && view.owner == client->id)
				private_granules += view.name.nr_granules;
		see(opaque, client, private_granules * pool->pool.granule_bytes, table_sum(client));
	}
	pthread_mutex_unlock(&pool->lock);
}

int okv_share_leases_fd(const struct omnikv_client *client)
{
	return ((const struct okv_embedded_client *)client)->leases_fd;
}

/* ---- the pool's life -------------------------------------------------------------------- */

int okv_share_fd(struct omnikv_pool *pool)
{
	return okv_embedded_pool(pool)->fd;
}

int okv_share_recover(struct okv_embedded_pool *pool)
{
	struct okv_embedded_client *client;
	struct okv_extent_view view;
	uint32_t cursor = 0, id;
	int ret;

	ret = okv_extent_map_recover_shared(&pool->map, pool->map.capacity, owner_is_alive, pool);
	if (ret)
		return ret;
	for (id = first_alive(pool, 1, UINT32_MAX); id; id = id < UINT32_MAX ? first_alive(pool, id + 1, UINT32_MAX - id) : 0) {
		ret = okv_embedded_client_new(pool, 0, id, &client);
		if (ret)
			return ret;
		client->is_remote = client->is_absent = true;
		client->is_unknown = table_find(pool, client) != 0;
		pool->nr_remotes++;
		pool->nr_unknown += client->is_unknown;
	}
	tables_clean(pool);
	while (okv_extent_map_next(&pool->map, &cursor, &view)) {
		if (view.state == OMNIKV_EXTENT_QUARANTINED) {
			ret = limbo_reserve(pool, 1);
			if (ret)
				return ret;
			pool->limbo[pool->nr_limbo++] = (uint32_t)view.name.granule;
		}
		if (view.state != OMNIKV_EXTENT_PRIVATE)
			continue;
		for (client = pool->clients; client && client->id != view.owner;)
			client = client->next;
		/* Its process ended since it was looked at. */
		if (client)
			client->nr_private++;
		else
			okv_extent_end(&pool->map, view.name.granule);
	}
	okv_share_settle_locked(pool);
	return 0;
}

void okv_share_abandon(struct okv_embedded_pool *pool)
{
	struct okv_embedded_client *client, *next;

	for (client = pool->clients; client; client = next) {
		next = client->next;
		if (!client->is_remote)
			continue;
		/* Its table stays for the next authority. */
		client->is_remote = false;
		pool->nr_remotes--;
		table_unmap(client);
		pool->nr_clients -= !client->is_over;
		if (pool->manager == client)
			pool->manager = NULL;
		okv_embedded_client_free_locked(pool, client);
	}
}

void okv_share_fini(struct okv_embedded_pool *pool)
{
	free(pool->limbo);
	free(pool->path);
	pool->limbo = NULL;
	pool->path = NULL;
	pool->nr_limbo = 0;
}

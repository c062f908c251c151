// SPDX-License-Identifier: MIT
/*
 * Spill stores as users name them: paths, ownership, options, counters.
 *
 * A lock on the open file says who owns a store; a page in the store says it in words. The
 * work is store.c's. Any thread.
 */
#include "spill/spill.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <linux/fs.h>

#include <omnikv/ring.h>

#include "device.h"
#include "error.h"
#include "fd.h"
#include "failpoint.h"
#include "option.h"
#include "process.h"
#include "spill/gds.h"

#define DEADLINE_MS	10000u
/* How long a killed owner's last requests are waited for. */
#define LEAVING_TRIES	500u
#define LEAVING_TRIES_MIN	50u
#define LEAVING_US	10000u
#define FLOOR_MAX	(UINT64_C(1) << 30)

static bool read_page(int fd, uint64_t off, uint8_t *page)
{
	return pread(fd, page, OKV_SPILL_PAGE, off) == (ssize_t)OKV_SPILL_PAGE;
}

/* Who says in the store that it is theirs? */
static bool read_owner(int fd, struct okv_spill_owner *owner)
{
	uint8_t *page = aligned_alloc(OKV_SPILL_PAGE, OKV_SPILL_PAGE);
	struct okv_spill_super super;
	uint32_t version;
	bool is_there;

	if (!page)
		return false;
	is_there = ((read_page(fd, 0, page) && !okv_super_decode(page, &super, &version)) ||
		    (read_page(fd, OKV_SPILL_PAGE, page) && !okv_super_decode(page, &super, &version))) &&
		   read_page(fd, OKV_SPILL_OWNER_OFF, page) && !okv_owner_decode(page, super.uuid, owner);
	free(page);
	return is_there;
}

static int refuse_taken(int fd, const char *path, struct omnikv_error *err)
{
	struct okv_spill_owner owner;

	if (!read_owner(fd, &owner))
		return okv_error_set(err, -EBUSY, "%.100s: in use by another process; stop it, or give another path", path);
	return okv_error_set(err, -EBUSY, "%.100s: in use by %.32s, process %u on %.32s; stop it, or give another path", path,
			     owner.name, owner.pid, owner.host);
}

/*
 * What one opening has made, so that a failed one can take it away again: nothing else, and nothing that another
 * process has come to use meanwhile.
 */
struct making {
	int	dir;		/* that has the store's file; -1: @path is none */
	int	fd;		/* a descriptor more of the file, behind that of the disk; -1: the file was there, with bytes in it */
	bool	has_dir;
	bool	has_file;
};

static void making_end(struct making *making)
{
	if (making->fd >= 0)
		close(making->fd);
	if (making->dir >= 0)
		close(making->dir);
}

/* The lock is held: nobody else has got as far as to use it. */
static void making_undo(struct making *making, const char *path)
{
	struct stat ours, now;

	if (making->fd >= 0 && making->has_file) {
		if (!fstat(making->fd, &ours) && !fstatat(making->dir, OKV_SPILL_FILE_NAME, &now, AT_SYMLINK_NOFOLLOW) &&
		    now.st_dev == ours.st_dev && now.st_ino == ours.st_ino)
			unlinkat(making->dir, OKV_SPILL_FILE_NAME, 0);
	} else if (making->fd >= 0) {
		/* It was empty before. */
		if (ftruncate(making->fd, 0))
			return;
	}
	/* Where it is empty. */
	if (making->has_dir)
		rmdir(path);
}

/* The store's file in a directory, made where it is not there yet. */
static int open_in_dir(int dir, int how, bool may_make, bool *has_made)
{
	int fd;

	do {
		*has_made = false;
		fd = okv_fd_high(openat(dir, OKV_SPILL_FILE_NAME, how | O_NOFOLLOW));
		if (fd >= 0 || errno != ENOENT || !may_make)
			return fd < 0 ? -errno : fd;
		fd = okv_fd_high(openat(dir, OKV_SPILL_FILE_NAME, how | O_CREAT | O_EXCL | O_NOFOLLOW, 0600));
		*has_made = fd >= 0;
	} while (fd < 0 && errno == EEXIST);
	return fd < 0 ? -errno : fd;
}

/* Open what @path names. A descriptor or a negative errno. */
static int open_path(const char *path, uint32_t flags, struct making *making, struct omnikv_error *err)
{
	bool may_make = !(flags & (OMNIKV_SPILL_F_OPEN_ONLY | OMNIKV_SPILL_F_READ_ONLY));
	int how = (flags & OMNIKV_SPILL_F_READ_ONLY ? O_RDONLY : O_RDWR) | O_CLOEXEC;
	int fd, ret = -OKV_FAILPOINT("spill.open");
	struct stat st;

	if (ret)
		return okv_error_set(err, ret, "%.180s: %s", path, strerror(-ret));
	if (stat(path, &st)) {
		if (errno != ENOENT || !may_make || mkdir(path, 0700) || stat(path, &st)) {
			ret = -errno;
			return okv_error_set(err, ret, "%.180s: %s", path, strerror(-ret));
		}
		making->has_dir = true;
	}
	if (!S_ISDIR(st.st_mode)) {
		fd = okv_fd_high(open(path, how));
		if (fd < 0) {
			ret = -errno;
			return okv_error_set(err, ret, "%.180s: %s", path, strerror(-ret));
		}
		return fd;
	}
	making->dir = okv_fd_high(open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
	if (making->dir < 0) {
		ret = -errno;
		return okv_error_set(err, ret, "%.180s: %s", path, strerror(-ret));
	}
	ret = open_in_dir(making->dir, how, may_make, &making->has_file);
	/* The name must be there after a power cut too. */
	if (ret >= 0 && may_make)
		(void)fsync(making->dir);
	if (ret == -ENOENT)
		okv_error_set(err, ret, "%.180s: there is no spill store (no " OKV_SPILL_FILE_NAME " in it)", path);
	else if (ret < 0)
		okv_error_set(err, ret, "%.180s/" OKV_SPILL_FILE_NAME ": %s", path, strerror(-ret));
	return ret;
}

/*
 * Is the owner gone, and only its last requests are not yet? The kernel lets go of the lock when
 * they have ended, so that none of them lands in the next owner's bytes.
 */
static bool is_leaving(int fd)
{
	struct okv_spill_owner owner;
	char host[OKV_SPILL_NAME_BYTES] = "";

	gethostname(host, sizeof(host) - 1);
	return read_owner(fd, &owner) && !strcmp(owner.host, host) && owner.pid != (uint32_t)getpid() &&
	       okv_process_is_leaving((pid_t)owner.pid);
}

static int lock_file(int fd)
{
	for (uint32_t i = 0;; i++) {
		if (!flock(fd, LOCK_EX | LOCK_NB))
			return 0;
		if (errno == EINTR)
			continue;
		if (errno != EWOULDBLOCK)
			return -errno;
		/* One that was killed before it could say its name is waited for a little too. */
		if (i >= LEAVING_TRIES || (i >= LEAVING_TRIES_MIN && !is_leaving(fd)))
			return -EBUSY;
		usleep(LEAVING_US);
	}
}

static int take_lock(int fd, const char *path, uint32_t flags, uint32_t *owner_pid, struct omnikv_error *err)
{
	struct okv_spill_owner owner;
	int ret;

	*owner_pid = 0;
	if (flags & OMNIKV_SPILL_F_READ_ONLY) {
		if (flock(fd, LOCK_SH | LOCK_NB)) {
			if (read_owner(fd, &owner))
				*owner_pid = owner.pid;
		} else {
			flock(fd, LOCK_UN);
		}
		return 0;
	}
	ret = lock_file(fd);
	if (!ret)
		*owner_pid = getpid();
	if (ret == -EBUSY)
		return refuse_taken(fd, path, err);
	return ret ? okv_error_set(err, ret, "%.180s: cannot be locked: %s", path, strerror(-ret)) : 0;
}

/* Locked: what is empty now this opening fills, where it does not end before. */
static int making_begin(struct making *making, int fd, const char *path, uint32_t flags, struct omnikv_error *err)
{
	struct stat st, there;

	if (flags & OMNIKV_SPILL_F_READ_ONLY)
		return 0;
	if (fstat(fd, &st))
		return -errno;
	/* Who made it has failed, and taken it away; a file that never had a name is reached by its descriptor. */
	if (!st.st_nlink && (stat(path, &there) || there.st_dev != st.st_dev || there.st_ino != st.st_ino))
		return okv_error_set(err, -EBUSY, "%.180s: another process has just tried to make a store there; try again", path);
	if (!S_ISREG(st.st_mode) || st.st_size) {
		making->has_file = false;
		return 0;
	}
	making->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	return making->fd < 0 ? okv_error_set(err, -errno, "%.180s: %s", path, strerror(errno)) : 0;
}

/* What the store may take, and what must stay free around it. */
static int measure(int fd, const char *path, const struct omnikv_spill_config *config,
		   struct okv_store_config *store_config, struct omnikv_error *err)
{
	uint64_t bytes = 0;
	struct statvfs vfs;
	struct stat st;

	if (fstat(fd, &st))
		return -errno;
	store_config->capacity_bytes = config->capacity_bytes;
	store_config->floor_bytes = config->floor_bytes;
	if (S_ISBLK(st.st_mode)) {
		if (ioctl(fd, BLKGETSIZE64, &bytes))
			return okv_error_set(err, -errno, "%.180s: its size cannot be read", path);
		if (!config->capacity_bytes || config->capacity_bytes > bytes)
			store_config->capacity_bytes = bytes;
		return 0;
	}
	if (!S_ISREG(st.st_mode))
		return okv_error_set(err, -EINVAL, "%.180s: neither a directory, a file nor a block device", path);
	if (!st.st_size && config->flags & (OMNIKV_SPILL_F_READ_ONLY | OMNIKV_SPILL_F_OPEN_ONLY))
		return okv_error_set(err, -ENOENT, "%.180s: there is no spill store", path);
	if (!config->capacity_bytes && !st.st_size)
		return okv_error_set(err, -EINVAL, "%.180s: there is no store yet, and no size was given for one", path);
	if (!config->floor_bytes && !fstatvfs(fd, &vfs)) {
		store_config->floor_bytes = (uint64_t)vfs.f_blocks * vfs.f_frsize / 20;
		if (store_config->floor_bytes > FLOOR_MAX)
			store_config->floor_bytes = FLOOR_MAX;
	}
	return 0;
}

int omnikv_spill_open(const char *path, const struct omnikv_spill_config *config, struct omnikv_spill **out,
		      struct omnikv_error *err)
{
	struct okv_disk_file_config disk_config = { 0 };
	struct okv_store_config store_config = { 0 };
	struct omnikv_spill_config full;
	struct omnikv_spill *spill;
	char host[OKV_SPILL_NAME_BYTES] = "";
	struct making making = { .dir = -1, .fd = -1 };
	int fd, ret;

	if (err)
		err->text[0] = '\0';
	if (!path || !out)
		return -EINVAL;
	ret = okv_option_copy(&full, sizeof(full), config);
	if (ret)
		return okv_error_set(err, ret, "struct omnikv_spill_config is of another size");
	if (full.flags & ~OMNIKV_SPILL_F_ALL || full.reserved)
		return okv_error_set(err, -EINVAL, "struct omnikv_spill_config: unknown flag");

	spill = calloc(1, sizeof(*spill));
	if (!spill)
		return -ENOMEM;
	fd = open_path(path, full.flags, &making, err);
	if (fd < 0) {
		ret = fd;
		goto err_undo;
	}
	ret = take_lock(fd, path, full.flags, &spill->owner_pid, err);
	if (!ret)
		ret = making_begin(&making, fd, path, full.flags, err);
	if (!ret)
		ret = measure(fd, path, &full, &store_config, err);
	if (!ret && getrandom(store_config.random, sizeof(store_config.random), 0) !=
		    (ssize_t)sizeof(store_config.random))
		ret = -EIO;
	if (ret)
		goto err_close;

	disk_config.is_read_only = full.flags & OMNIKV_SPILL_F_READ_ONLY;
	disk_config.is_buffered = full.flags & OMNIKV_SPILL_F_BUFFERED;
	disk_config.is_plain = full.flags & OMNIKV_SPILL_F_PLAIN;
	disk_config.queue_depth = full.queue_depth;
	disk_config.notice = full.notice;
	disk_config.opaque = full.opaque;
	if (full.pool) {
		struct omnikv_pool_info info = { .size = sizeof(info) };

		ret = omnikv_pool_info(full.pool, &info);
		if (ret)
			goto err_close;
		disk_config.memory = omnikv_pool_base(full.pool);
		disk_config.memory_bytes = info.usable_bytes;
	}
	ret = okv_disk_file_open(fd, &disk_config, &spill->disk);
	if (ret)
		goto err_undo;

	gethostname(host, sizeof(host) - 1);
	store_config.segment_bytes = full.segment_bytes;
	store_config.deadline_ns = (full.deadline_ms ? full.deadline_ms : DEADLINE_MS) * UINT64_C(1000000);
	store_config.is_read_only = disk_config.is_read_only;
	store_config.is_open_only = full.flags & OMNIKV_SPILL_F_OPEN_ONLY;
	store_config.owner = full.owner;
	store_config.host = host;
	store_config.pid = getpid();
	store_config.time_s = time(NULL);
	store_config.notice = full.notice;
	store_config.opaque = full.opaque;
	ret = okv_store_open(spill->disk, &store_config, &spill->store, err);
	if (ret) {
		struct omnikv_error why = { "" };

		if (err && err->text[0]) {
			why = *err;
			okv_error_set(err, ret, "%.90s: %.150s", path, why.text);
		}
		making_undo(&making, path);
		spill->disk->ops->close(spill->disk);
		goto err_free;
	}
	making_end(&making);
	spill->notice = full.notice;
	spill->opaque = full.opaque;
	/* Names outlive the call no longer. */
	spill->store->config.owner = NULL;
	spill->store->config.host = NULL;
	*out = spill;
	return 0;

err_close:
	making_undo(&making, path);
	close(fd);
	goto err_free;
err_undo:
	making_undo(&making, path);
err_free:
	making_end(&making);
	free(spill);
	return ret;
}

void omnikv_spill_close(struct omnikv_spill *spill)
{
	if (!spill)
		return;
	okv_gds_close(spill->gds);
	okv_store_close(spill->store);
	spill->disk->ops->close(spill->disk);
	free(spill);
}

struct device_read {
	struct omnikv_spill	*spill;
	struct omnikv_hbm	*hbm;
	const uint64_t		*device_off;
};

/* Inside the store's io_lock. */
static int read_device(void *opaque, const struct okv_record *rec, uint64_t off)
{
	const struct device_read *read = opaque;
	struct omnikv_spill *spill = read->spill;
	int ret = 0;

	if (!spill->is_gds_tried) {
		struct omnikv_error err = { "" };

		spill->is_gds_tried = true;
		if (okv_gds_open(okv_disk_file_fd(spill->disk), &spill->gds, &err) && spill->notice)
			spill->notice(spill->opaque, err.text);
	}
	if (!spill->gds)
		return -EOPNOTSUPP;
	for (uint32_t p = 0; p < rec->nr_parts && !ret; p++) {
		if (rec->parts[p].bytes)
			ret = okv_gds_read(spill->gds, read->hbm->ptr, read->device_off[p], off, rec->parts[p].bytes);
		off += rec->parts[p].bytes;
	}
	return ret;
}

int omnikv_spill_read_device(struct omnikv_spill *spill, const uint8_t *ns, const struct omnikv_spill_block *block,
			     struct omnikv_hbm *hbm, const uint64_t *device_off, const uint64_t *bytes)
{
	struct device_read read = { .spill = spill, .hbm = hbm, .device_off = device_off };
	struct okv_record want = { 0 };

	if (!spill || !ns || !block || !hbm || !device_off || !bytes || !block->key.len ||
	    block->key.len > OMNIKV_KEY_BYTES_MAX || block->parent.len > OMNIKV_KEY_BYTES_MAX || !block->nr_parts ||
	    block->nr_parts > OKV_SPILL_PARTS_MAX)
		return -EINVAL;
	if (spill->is_simulated)
		return -EOPNOTSUPP;
	memcpy(want.ns, ns, sizeof(want.ns));
	want.key = block->key;
	want.parent = block->parent;
	want.position = block->position;
	want.nr_tokens = block->nr_tokens;
	want.nr_parts = block->nr_parts;
	for (uint32_t p = 0; p < block->nr_parts; p++) {
		if (bytes[p] > hbm->bytes || device_off[p] > hbm->bytes - bytes[p])
			return -EINVAL;
		want.parts[p].bytes = bytes[p];
	}
	return okv_store_read_other(spill->store, &want, read_device, &read);
}

int omnikv_spill_sync(struct omnikv_spill *spill)
{
	return spill ? okv_store_sync(spill->store) : -EINVAL;
}

int omnikv_spill_stats(struct omnikv_spill *spill, struct omnikv_spill_stats *stats)
{
	struct omnikv_spill_stats full = { .size = sizeof(full) };
	struct okv_disk_file_info info;
	int ret;

	if (!spill || !stats)
		return -EINVAL;
	ret = okv_option_check(stats, sizeof(full));
	if (ret)
		return ret;
	okv_store_stats(spill->store, &full);
	if (!spill->is_simulated) {
		okv_disk_file_info(spill->disk, &info);
		full.is_direct = info.is_direct;
		full.is_uring = info.is_uring;
		full.is_registered = info.is_registered;
		full.queue_depth = info.queue_depth;
	}
	full.owner_pid = spill->owner_pid;
	okv_option_return(stats, &full, sizeof(full));
	return 0;
}

int omnikv_spill_check(struct omnikv_spill *spill, struct omnikv_spill_check *check, omnikv_progress_fn progress,
		       void *opaque)
{
	struct omnikv_spill_check full;
	int ret;

	if (!spill || !check)
		return -EINVAL;
	ret = okv_option_check(check, sizeof(full));
	if (ret)
		return ret;
	if (check->size < offsetof(struct omnikv_spill_check, nr_records) || check->reserved ||
	    check->flags & ~OMNIKV_SPILL_CHECK_F_QUARANTINE)
		return -EINVAL;
	memset(&full, 0, sizeof(full));
	full.size = sizeof(full);
	full.flags = check->flags;
	ret = okv_store_check(spill->store, &full, progress, opaque);
	if (ret)
		return ret;
	okv_option_return(check, &full, sizeof(full));
	return 0;
}

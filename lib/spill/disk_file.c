// SPDX-License-Identifier: MIT
/*
 * A disk on a file or a block device: io_uring with direct I/O, and what stands in for them.
 *
 * Owns the descriptor, the ring and what is registered with it. Direct I/O is given up for
 * good, with one notice, where the file system refuses it or wants more than pages; so is the
 * ring where the kernel has none. Requests that fail for no reason of their own (EINTR,
 * EAGAIN, a short transfer) go on from where they stopped, a bounded number of times. What is
 * still under way at the deadline is cancelled; what cannot be is counted, and nothing new
 * begins before it has come back. One thread at a time.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include <linux/falloc.h>
#include <linux/fs.h>

#include <liburing.h>

#include "clock.h"
#include "error.h"
#include "fd.h"
#include "failpoint.h"
#include "spill/disk.h"
#include "spill/format.h"

#define RING_ENTRIES		256u
/* The ring's fixed files: its disk, and one that lives as long as what is under way. */
enum { FILE_DISK, FILE_KEPT, FILES_NR };

#define CHUNK_SHIFT		30	/* of what one registered buffer may be */
#define TRIES_MAX		16u
#define CANCEL_NS		UINT64_C(200000000)
#define MEASURE_BYTES		(64u << 10)
#define MEASURE_NR		128u
#define MEASURE_DEPTHS		5u
#define MEASURE_BUFS		16u	/* what is read is not looked at: several reads go to one place */
#define CANCEL_DATA		UINT64_MAX

/* One request under way: how much of it is done. */
struct okv_disk_todo {
	uint64_t	done;
	uint32_t	nr_tries;
	bool		is_flying;
};

struct okv_disk_file {
	struct okv_disk			disk;
	int				fd;
	struct okv_disk_file_config	config;
	struct okv_disk_file_info	info;
	struct io_uring			ring;
	uint64_t			nr_stuck;	/* requests that a deadline has left behind */
	uint32_t			nr_chunks;
	bool				has_said_buffered;
	struct okv_disk_todo		*todos;		/* [todos_room]: of the list that runs */
	uint32_t			todos_room;
};

static struct okv_disk_file *file_of(struct okv_disk *disk)
{
	return (struct okv_disk_file *)disk;
}

static uint64_t file_now_ns(struct okv_disk *disk)
{
	(void)disk;
	return okv_monotonic_ns();
}

static void say(struct okv_disk_file *file, const char *line)
{
	if (file->config.notice)
		file->config.notice(file->config.opaque, line);
}

/* Go on without direct I/O. */
static void go_buffered(struct okv_disk_file *file, const char *why)
{
	int flags = fcntl(file->fd, F_GETFL);

	if (flags >= 0 && (flags & O_DIRECT))
		(void)fcntl(file->fd, F_SETFL, flags & ~O_DIRECT);
	file->info.is_direct = false;
	if (!file->has_said_buffered && !file->config.is_buffered && !file->config.is_read_only)
		say(file, why);
	file->has_said_buffered = true;
}

/*
 * What a request has come back with: 0 it is done, 1 go on with the rest, or its error. Reading
 * behind the end of the file is reading zeroes.
 */
static int settle(struct okv_disk_file *file, const struct okv_disk_io *io, struct okv_disk_todo *todo, int64_t res)
{
	if (res == -EINVAL && file->info.is_direct && todo->nr_tries++ < TRIES_MAX) {
		go_buffered(file, "spill: the file system refuses direct I/O; going on through the page cache");
		return 1;
	}
	if (res == -EINTR || res == -EAGAIN)
		return todo->nr_tries++ < TRIES_MAX ? 1 : -EIO;
	if (res < 0)
		return res;
	if (!res) {
		if (io->is_write)
			return todo->nr_tries++ < TRIES_MAX ? 1 : -EIO;
		memset((uint8_t *)io->buf + todo->done, 0, io->bytes - todo->done);
		return 0;
	}
	todo->done += res;
	/* A short direct transfer may stop between pages: do that page again. */
	if (todo->done < io->bytes)
		todo->done -= todo->done % OKV_SPILL_PAGE;
	if (todo->done >= io->bytes)
		return 0;
	return todo->nr_tries++ < TRIES_MAX ? 1 : -EIO;
}

static int64_t inject(const struct okv_disk_io *io)
{
	return io->is_write ? -OKV_FAILPOINT("spill.write") : -OKV_FAILPOINT("spill.read");
}

/* ---- without a ring ------------------------------------------------------------------------- */

static void run_plain(struct okv_disk_file *file, struct okv_disk_io *ios, uint32_t nr)
{
	for (uint32_t i = 0; i < nr; i++) {
		struct okv_disk_todo todo = { 0 };
		int ret = 1;

		if (ios[i].begin)
			ios[i].begin(ios[i].opaque, &ios[i]);
		while (ret == 1) {
			uint8_t *buf = (uint8_t *)ios[i].buf + todo.done;
			uint64_t bytes = ios[i].bytes - todo.done, off = ios[i].off + todo.done;
			int64_t res = inject(&ios[i]);

			if (!res)
				res = ios[i].is_write ? pwrite(file->fd, buf, bytes, off) : pread(file->fd, buf, bytes, off);
			if (res == -1)
				res = -errno;
			ret = settle(file, &ios[i], &todo, res);
		}
		ios[i].res = ret;
		if (!ret && ios[i].done)
			ios[i].done(ios[i].opaque, &ios[i]);
	}
}

/* ---- with a ring ---------------------------------------------------------------------------- */

static void prep(struct okv_disk_file *file, struct io_uring_sqe *sqe, const struct okv_disk_io *io,
		 const struct okv_disk_todo *todo)
{
	uint8_t *buf = (uint8_t *)io->buf + todo->done, *memory = file->config.memory;
	uint64_t bytes = io->bytes - todo->done, off = io->off + todo->done;
	uint64_t at = buf - memory;
	uint32_t chunk = at >> CHUNK_SHIFT;

	/* The kernel's limit of one request. */
	if (bytes > 1u << 30)
		bytes = 1u << 30;
	if (file->nr_chunks && buf >= memory && at + bytes <= file->config.memory_bytes &&
	    (at + bytes - 1) >> CHUNK_SHIFT == chunk) {
		if (io->is_write)
			io_uring_prep_write_fixed(sqe, FILE_DISK, buf, bytes, off, chunk);
		else
			io_uring_prep_read_fixed(sqe, FILE_DISK, buf, bytes, off, chunk);
	} else if (io->is_write) {
		io_uring_prep_write(sqe, FILE_DISK, buf, bytes, off);
	} else {
		io_uring_prep_read(sqe, FILE_DISK, buf, bytes, off);
	}
	sqe->flags |= IOSQE_FIXED_FILE;
}

/* Ask for everything that flies to be withdrawn, and wait a little for it. Returns what is left. */
static uint32_t cancel(struct okv_disk_file *file, const struct okv_disk_todo *todos, uint32_t nr, uint32_t nr_flying)
{
	uint64_t until = file_now_ns(&file->disk) + CANCEL_NS;
	struct io_uring_cqe *cqe;
	struct io_uring_sqe *sqe;

	for (uint32_t i = 0; i < nr; i++) {
		if (!todos[i].is_flying)
			continue;
		sqe = io_uring_get_sqe(&file->ring);
		if (!sqe)
			break;
		io_uring_prep_cancel64(sqe, i, 0);
		io_uring_sqe_set_data64(sqe, CANCEL_DATA);
	}
	io_uring_submit(&file->ring);
	while (nr_flying && file_now_ns(&file->disk) < until) {
		struct __kernel_timespec ts = { .tv_nsec = 20000000 };

		if (io_uring_wait_cqe_timeout(&file->ring, &cqe, &ts))
			continue;
		nr_flying -= io_uring_cqe_get_data64(cqe) != CANCEL_DATA;
		io_uring_cqe_seen(&file->ring, cqe);
	}
	return nr_flying;
}

/*
 * How many of those under way are waited for at once. The rest keeps the disk busy meanwhile; each wake-up and each
 * submission is shared by as many requests.
 */
static uint32_t nr_to_wait_for(uint32_t nr_flying)
{
	return nr_flying < 8 ? 1 : nr_flying < 32 ? nr_flying / 4 : nr_flying / 2;
}

/* How many results are looked at before the queue is filled again: the disk is kept busy, each submission shared. */
static uint32_t nr_to_see(uint32_t depth)
{
	return depth < 64 ? 32 : depth / 2;
}

/* Room for the state of @nr requests, none of which has begun. */
static struct okv_disk_todo *todos_of(struct okv_disk_file *file, uint32_t nr)
{
	if (nr > file->todos_room) {
		struct okv_disk_todo *todos = realloc(file->todos, nr * sizeof(*todos));

		if (!todos)
			return NULL;
		file->todos = todos;
		file->todos_room = nr;
	}
	memset(file->todos, 0, nr * sizeof(*file->todos));
	return file->todos;
}

/* 0, or 1: the ring does not work here, do it without. */
static int run_ring(struct okv_disk_file *file, struct okv_disk_io *ios, uint32_t nr, uint64_t deadline_ns)
{
	uint64_t until = file_now_ns(&file->disk) + deadline_ns;
	uint32_t next = 0, nr_flying = 0, nr_left = nr, again[RING_ENTRIES], nr_again = 0;
	uint32_t depth = file->info.queue_depth < RING_ENTRIES ? file->info.queue_depth : RING_ENTRIES;
	struct okv_disk_todo *todos = todos_of(file, nr);
	struct __kernel_timespec ts;
	struct io_uring_cqe *cqe;
	int ret = 0;

	if (!todos)
		return 1;
	while (nr_left) {
		uint32_t nr_seen = 0;
		bool is_again;
		uint64_t now;
		int64_t res;
		uint32_t i;

		while (nr_flying < depth && (nr_again || next < nr)) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(&file->ring);

			if (!sqe)
				break;
			is_again = nr_again != 0;
			i = is_again ? again[--nr_again] : next++;
			if (!is_again && ios[i].begin) {
				/* What was prepared so far is under way meanwhile. A no-op keeps the slot's place. */
				io_uring_prep_nop(sqe);
				io_uring_sqe_set_data64(sqe, CANCEL_DATA);
				io_uring_submit(&file->ring);
				ios[i].begin(ios[i].opaque, &ios[i]);
				sqe = io_uring_get_sqe(&file->ring);
				if (!sqe) {
					again[nr_again++] = i;
					break;
				}
			}
			prep(file, sqe, &ios[i], &todos[i]);
			io_uring_sqe_set_data64(sqe, i);
			todos[i].is_flying = true;
			nr_flying++;
		}
		now = file_now_ns(&file->disk);
		ts.tv_sec = now < until ? (until - now) / 1000000000 : 0;
		ts.tv_nsec = now < until ? (until - now) % 1000000000 : 0;
		ret = io_uring_submit_and_wait_timeout(&file->ring, &cqe, nr_to_wait_for(nr_flying), &ts, NULL);
		if (ret < 0 && ret != -ETIME && ret != -EINTR && ret != -EAGAIN && ret != -EBUSY)
			ret = -ETIME;	/* what was handed over may be under way: as if time were up */
		else if (ret != -ETIME || file_now_ns(&file->disk) < until)
			ret = 0;
		if (ret == -ETIME && io_uring_peek_cqe(&file->ring, &cqe)) {
			nr_flying = cancel(file, todos, nr, nr_flying);
			file->nr_stuck += nr_flying;
			for (i = 0; i < nr && !nr_flying; i++)
				ios[i].res = -ETIME;
			return -ETIME;
		}
		while (nr_seen++ < nr_to_see(depth) && !io_uring_peek_cqe(&file->ring, &cqe)) {
			uint64_t data = io_uring_cqe_get_data64(cqe);

			res = cqe->res;
			io_uring_cqe_seen(&file->ring, cqe);
			if (data == CANCEL_DATA)
				continue;
			i = data;
			todos[i].is_flying = false;
			nr_flying--;
			if (res > 0) {
				int64_t error = inject(&ios[i]);

				res = error ? error : res;
			}
			ret = settle(file, &ios[i], &todos[i], res);
			if (ret == 1) {
				again[nr_again++] = i;
				continue;
			}
			ios[i].res = ret;
			nr_left--;
			if (!ret && ios[i].done)
				ios[i].done(ios[i].opaque, &ios[i]);
		}
	}
	return 0;
}

static bool file_is_idle(struct okv_disk *disk)
{
	struct okv_disk_file *file = file_of(disk);
	struct io_uring_cqe *cqe;

	while (file->nr_stuck && !io_uring_peek_cqe(&file->ring, &cqe)) {
		file->nr_stuck -= io_uring_cqe_get_data64(cqe) != CANCEL_DATA;
		io_uring_cqe_seen(&file->ring, cqe);
	}
	return !file->nr_stuck;
}

/* Beyond its limit a write is a signal that ends the process (SIGXFSZ) before it is an error. */
static bool may_end_at(const struct okv_disk_file *file, uint64_t end)
{
	return file->info.is_device || okv_fd_may_have(end, NULL);
}

/* Does one of them write where it may not? Then none of them is begun. */
static bool is_too_far(const struct okv_disk_file *file, struct okv_disk_io *ios, uint32_t nr)
{
	uint64_t end = 0;

	for (uint32_t i = 0; i < nr; i++)
		if (ios[i].is_write && ios[i].off + ios[i].bytes > end)
			end = ios[i].off + ios[i].bytes;
	if (!end || may_end_at(file, end))
		return false;
	for (uint32_t i = 0; i < nr; i++)
		ios[i].res = -EFBIG;
	return true;
}

static int file_run(struct okv_disk *disk, struct okv_disk_io *ios, uint32_t nr, uint64_t deadline_ns)
{
	struct okv_disk_file *file = file_of(disk);
	int ret = 1;

	if (!nr || is_too_far(file, ios, nr))
		return 0;
	if (file->info.is_uring)
		ret = run_ring(file, ios, nr, deadline_ns);
	if (ret == 1) {
		run_plain(file, ios, nr);
		ret = 0;
	}
	return ret;
}

/* ---- the rest ------------------------------------------------------------------------------- */

static int file_sync(struct okv_disk *disk)
{
	int ret = -OKV_FAILPOINT("spill.sync");

	if (ret)
		return ret;
	while (fdatasync(file_of(disk)->fd)) {
		if (errno != EINTR)
			return -errno;
	}
	return 0;
}

static int file_reserve(struct okv_disk *disk, uint64_t off, uint64_t bytes)
{
	struct okv_disk_file *file = file_of(disk);
	int ret = -OKV_FAILPOINT("spill.reserve");

	if (ret)
		return ret;
	if (file->info.is_device)
		return 0;
	if (!may_end_at(file, off + bytes))
		return -EFBIG;
	for (uint32_t i = 0; i < TRIES_MAX; i++) {
		if (!fallocate(file->fd, 0, off, bytes))
			return 0;
		if (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL)
			return 0;
		if (errno != EINTR)
			return -errno;
	}
	return -EIO;
}

static uint64_t file_bytes(struct okv_disk *disk)
{
	struct okv_disk_file *file = file_of(disk);
	uint64_t bytes = 0;
	struct stat st;

	if (file->info.is_device)
		return ioctl(file->fd, BLKGETSIZE64, &bytes) ? 0 : bytes;
	return fstat(file->fd, &st) ? 0 : (uint64_t)st.st_size;
}

static void file_discard(struct okv_disk *disk, uint64_t off, uint64_t bytes)
{
	struct okv_disk_file *file = file_of(disk);

	/* A device is left as it is. */
	if (file->info.is_device)
		return;
	if (off + bytes >= file_bytes(disk))
		(void)!ftruncate(file->fd, off);
	else
		(void)fallocate(file->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, off, bytes);
}

static uint64_t file_free_bytes(struct okv_disk *disk)
{
	struct okv_disk_file *file = file_of(disk);
	struct statvfs vfs;

	if (file->info.is_device || fstatvfs(file->fd, &vfs))
		return UINT64_MAX / 2;
	return (uint64_t)vfs.f_bavail * vfs.f_frsize;
}

static void file_keep(struct okv_disk *disk, int fd)
{
	struct okv_disk_file *file = file_of(disk);

	if (file->info.is_uring)
		(void)io_uring_register_files_update(&file->ring, FILE_KEPT, &fd, 1);
}

static void file_close(struct okv_disk *disk)
{
	struct okv_disk_file *file = file_of(disk);

	/*
	 * The kernel takes a ring down in its own time and keeps the file, and with it the owner's lock, until then.
	 * That is right while something is under way; else the lock is given up here.
	 */
	if (file_is_idle(disk)) {
		flock(file->fd, LOCK_UN);
		if (file->info.is_uring)
			io_uring_unregister_files(&file->ring);
	}
	if (file->info.is_uring)
		io_uring_queue_exit(&file->ring);
	close(file->fd);
	free(file->todos);
	free(file);
}

static const struct okv_disk_ops file_ops = {
	.run = file_run,
	.sync = file_sync,
	.reserve = file_reserve,
	.discard = file_discard,
	.free_bytes = file_free_bytes,
	.bytes = file_bytes,
	.is_idle = file_is_idle,
	.now_ns = file_now_ns,
	.keep = file_keep,
	.close = file_close,
};

/* ---- opening -------------------------------------------------------------------------------- */

/* Does direct I/O of whole pages work here? */
static void probe_direct(struct okv_disk_file *file)
{
	int flags = fcntl(file->fd, F_GETFL);
	struct statx stx;
	void *page;

	if (file->config.is_buffered)
		return;
#ifdef STATX_DIOALIGN
	if (!statx(file->fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) && (stx.stx_mask & STATX_DIOALIGN) &&
	    (!stx.stx_dio_offset_align || stx.stx_dio_offset_align > OKV_SPILL_PAGE ||
	     stx.stx_dio_mem_align > OKV_SPILL_PAGE)) {
		go_buffered(file, "spill: the file system has no direct I/O of whole pages; going on through the page cache");
		return;
	}
#else
	(void)stx;
#endif
	if (flags < 0 || fcntl(file->fd, F_SETFL, flags | O_DIRECT) || OKV_FAILPOINT("spill.direct")) {
		go_buffered(file, "spill: the file system has no direct I/O; going on through the page cache");
		return;
	}
	file->info.is_direct = true;
	page = aligned_alloc(OKV_SPILL_PAGE, OKV_SPILL_PAGE);
	if (page && pread(file->fd, page, OKV_SPILL_PAGE, 0) < 0 && errno == EINVAL)
		go_buffered(file, "spill: the file system refuses direct I/O; going on through the page cache");
	free(page);
}

static void open_ring(struct okv_disk_file *file)
{
	int files[FILES_NR] = { [FILE_DISK] = file->fd, [FILE_KEPT] = -1 };
	int ret = -OKV_FAILPOINT("spill.uring");

	if (file->config.is_plain)
		return;
	/* Results are only looked for when waiting: nothing need interrupt this thread for them. Kernels before 5.19 cannot. */
	if (!ret)
		ret = io_uring_queue_init(RING_ENTRIES, &file->ring, IORING_SETUP_COOP_TASKRUN);
	if (ret == -EINVAL)
		ret = io_uring_queue_init(RING_ENTRIES, &file->ring, 0);
	if (!ret) {
		file->ring.ring_fd = okv_fd_high(file->ring.ring_fd);
		file->ring.enter_ring_fd = file->ring.ring_fd;
		if (file->ring.ring_fd < 0) {
			ret = -errno;
			io_uring_queue_exit(&file->ring);
		}
	}
	if (!ret && !(file->ring.features & IORING_FEAT_EXT_ARG)) {
		io_uring_queue_exit(&file->ring);
		ret = -EOPNOTSUPP;
	}
	if (ret) {
		say(file, "spill: no io_uring here; going on with pread and pwrite");
		return;
	}
	ret = io_uring_register_files(&file->ring, files, FILES_NR);
	if (ret) {
		io_uring_queue_exit(&file->ring);
		return;
	}
	file->info.is_uring = true;
}

/* io_uring counts what it registers, for all of the user's rings together. */
static void say_memlock(struct okv_disk_file *file, uint64_t bytes)
{
	struct rlimit limit = { 0, 0 };
	char line[256], text[32] = "unlimited";

	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (limit.rlim_cur != RLIM_INFINITY)
		snprintf(text, sizeof(text), "%" PRIu64 " KiB", (uint64_t)limit.rlim_cur >> 10);
	snprintf(line, sizeof(line),
		 "spill: the pool's memory cannot be registered: it needs %" PRIu64 " KiB of locked memory, and RLIMIT_MEMLOCK "
		 "is %s; going on without (ulimit -l %" PRIu64 " helps)", bytes >> 10, text, bytes >> 10);
	say(file, line);
}

static void register_memory(struct okv_disk_file *file)
{
	uint64_t bytes = file->config.memory_bytes;
	uint32_t nr = (bytes + (1ull << CHUNK_SHIFT) - 1) >> CHUNK_SHIFT;
	struct iovec *iov;
	int ret = -OKV_FAILPOINT("spill.register");

	if (!file->info.is_uring || !file->config.memory || !bytes)
		return;
	iov = calloc(nr, sizeof(*iov));
	if (!iov)
		return;
	for (uint32_t i = 0; i < nr; i++) {
		uint64_t from = (uint64_t)i << CHUNK_SHIFT;

		iov[i].iov_base = (uint8_t *)file->config.memory + from;
		iov[i].iov_len = bytes - from < 1ull << CHUNK_SHIFT ? bytes - from : 1ull << CHUNK_SHIFT;
	}
	if (!ret)
		ret = io_uring_register_buffers(&file->ring, iov, nr);
	free(iov);
	if (ret == -ENOMEM)
		say_memlock(file, bytes);
	else if (ret)
		say(file, "spill: the kernel does not register this pool's memory; going on without");
	else
		file->nr_chunks = nr;
	file->info.is_registered = file->nr_chunks != 0;
}

/* Time of reading MEASURE_NR runs, spread over what is there, with so many under way at once. */
static uint64_t measure_one(struct okv_disk_file *file, uint8_t *buf, uint64_t bytes, uint32_t depth)
{
	struct okv_disk_io ios[MEASURE_NR];
	uint64_t begin, step = bytes / MEASURE_NR / OKV_SPILL_PAGE * OKV_SPILL_PAGE;

	for (uint32_t i = 0; i < MEASURE_NR; i++)
		ios[i] = (struct okv_disk_io){
			.off = (i * 37 % MEASURE_NR) * step, .bytes = MEASURE_BYTES,
			.buf = buf + (size_t)(i % MEASURE_BUFS) * MEASURE_BYTES,
		};
	file->info.queue_depth = depth;
	begin = file_now_ns(&file->disk);
	if (file_run(&file->disk, ios, MEASURE_NR, UINT64_C(1000000000)))
		return UINT64_MAX;
	return file_now_ns(&file->disk) - begin;
}

/* The largest depth that is within a tenth of the best. */
static void measure_depth(struct okv_disk_file *file)
{
	static const uint32_t depths[MEASURE_DEPTHS] = { 8, 16, 32, 64, 128 };
	uint64_t bytes = file_bytes(&file->disk), ns[MEASURE_DEPTHS], best = UINT64_MAX;
	uint8_t *buf;

	file->info.queue_depth = file->config.queue_depth ? file->config.queue_depth : 64;
	if (file->config.queue_depth || !file->info.is_uring || !file->info.is_direct ||
	    bytes < 4ull * MEASURE_NR * MEASURE_BYTES)
		return;
	buf = aligned_alloc(OKV_SPILL_PAGE, (size_t)MEASURE_BUFS * MEASURE_BYTES);
	if (!buf)
		return;
	for (uint32_t i = 0; i < MEASURE_DEPTHS; i++) {
		ns[i] = measure_one(file, buf, bytes, depths[i]);
		/* A device this slow is not measured longer. */
		if (ns[i] > UINT64_C(200000000))
			ns[i] = UINT64_MAX;
		if (ns[i] == UINT64_MAX)
			break;
		best = ns[i] < best ? ns[i] : best;
	}
	file->info.queue_depth = depths[0];
	for (uint32_t i = 0; i < MEASURE_DEPTHS && ns[i] != UINT64_MAX; i++)
		if (ns[i] <= best + best / 10)
			file->info.queue_depth = depths[i];
	if (file_is_idle(&file->disk))
		free(buf);
}

int okv_disk_file_open(int fd, const struct okv_disk_file_config *config, struct okv_disk **disk)
{
	struct okv_disk_file *file;
	struct stat st;

	file = fstat(fd, &st) ? NULL : calloc(1, sizeof(*file));
	if (!file) {
		close(fd);
		return -ENOMEM;
	}
	file->disk.ops = &file_ops;
	file->fd = fd;
	file->config = *config;
	file->info.is_device = S_ISBLK(st.st_mode);
	probe_direct(file);
	open_ring(file);
	register_memory(file);
	measure_depth(file);
	*disk = &file->disk;
	return 0;
}

int okv_disk_file_fd(const struct okv_disk *disk)
{
	return ((const struct okv_disk_file *)disk)->fd;
}

void okv_disk_file_info(const struct okv_disk *disk, struct okv_disk_file_info *info)
{
	*info = ((const struct okv_disk_file *)disk)->info;
}

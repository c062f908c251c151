// SPDX-License-Identifier: MIT
/*
 * The embedded provider's memory: a memfd, or a named file that survives the process.
 *
 * Opening chooses the pages (huge ones of the host's pool, transparent ones, small ones with a
 * notice), places them by the NUMA policy, populates them with several threads, and brings the
 * extent map up. The opening thread alone enters here until the pool is handed out; closing is
 * the caller's last call. Clients and windows are client.c's and window.c's.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <numaif.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "clock.h"
#include "embedded.h"
#include "error.h"
#include "fd.h"
#include "failpoint.h"
#include "numa_policy.h"
#include "pool_file.h"
#include "process.h"
#include "share.h"

#ifndef MFD_HUGE_2MB
#define MFD_HUGE_2MB		(21u << 26)
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE	23
#endif
/* How long a file's holder may take to end, once it has begun to. */
#define LEAVING_NS		UINT64_C(5000000000)
#define LEAVING_US		2000u
#define MAGIC_TMPFS		0x01021994
#define MAGIC_HUGETLBFS		0x958458f6
#define NODE_DIR		"/sys/kernel/mm/hugepages/hugepages-2048kB/"
#define SHMEM_ENABLED		"/sys/kernel/mm/transparent_hugepage/shmem_enabled"

/* What opening needs on its way, beside the pool itself. */
struct opening {
	const struct okv_pool_spec		*spec;
	const struct omnikv_pool_config		*config;
	struct okv_embedded_pool		*pool;
	struct omnikv_error			*err;
	struct okv_pool_header			header;
	char					label[80];	/* the pool in error lines */
	bool					is_new;
	bool					is_memory;	/* tmpfs, hugetlbfs or a memfd: no disk behind it */
	bool					is_created;	/* the file's name is this call's */
	bool					is_begun;	/* what the file holds is this call's */
	bool					is_shared;	/* other processes will map it */
	int					kept_fd;	/* its memory from an earlier life of this authority; -1: none */
	bool					has_declined;	/* huge pages of the host's pool */
	int					huge_error;	/* of asking for them */
};

/* ---- small files of the kernel ---------------------------------------------------------- */

/* The first line of a small file; empty when it cannot be read. */
static void read_line(const char *path, char *line, size_t size)
{
	ssize_t n = -1;
	int fd;

	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, line, size - 1);
		close(fd);
	}
	line[n > 0 ? n : 0] = '\0';
	line[strcspn(line, "\n")] = '\0';
}

static uint64_t read_number(const char *path)
{
	char line[32];

	read_line(path, line, sizeof(line));
	return strtoull(line, NULL, 10);
}

/* Bytes that the host can still give, by its own estimate; UINT64_MAX when it does not say. */
static uint64_t available_bytes(void)
{
	char text[2048], *at;
	ssize_t n = -1;
	int fd;

	fd = open("/proc/meminfo", O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		n = read(fd, text, sizeof(text) - 1);
		close(fd);
	}
	if (n <= 0)
		return UINT64_MAX;
	text[n] = '\0';
	at = strstr(text, "MemAvailable:");
	return at ? strtoull(at + 13, NULL, 10) * 1024 : UINT64_MAX;
}

static void read_boot_id(char *boot_id, size_t size)
{
	read_line("/proc/sys/kernel/random/boot_id", boot_id, size);
}

/* ---- NUMA ------------------------------------------------------------------------------- */

static int numa_apply(struct opening *op)
{
	static const int modes[] = {
		[OMNIKV_NUMA_BIND] = MPOL_BIND, [OMNIKV_NUMA_INTERLEAVE] = MPOL_INTERLEAVE,
		[OMNIKV_NUMA_PREFER] = MPOL_PREFERRED,
	};
	const char *text = op->config->numa;
	struct okv_numa_policy policy;
	struct omnikv_error why;
	unsigned long nodes;
	int ret;

	if (!text)
		return 0;
	ret = okv_numa_policy_check(text, &policy, &why);
	if (ret)
		return okv_error_set(op->err, ret, "%s: %.150s", op->label, why.text);
	nodes = policy.nodes;
	if (mbind(op->pool->map_base, op->pool->map_bytes, modes[policy.kind], &nodes, 65, 0))
		return okv_error_set(op->err, -errno, "%s: numa \"%.40s\": %s", op->label, text, strerror(errno));
	return 0;
}

/* ---- mapping ---------------------------------------------------------------------------- */

/* Map at an address that huge pages can use. */
static int map_aligned(uint64_t bytes, int flags, int fd, unsigned char **out)
{
	unsigned char *room, *at, *end;
	int ret;

	room = mmap(NULL, bytes + OKV_HUGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (room == MAP_FAILED)
		return -errno;
	at = (unsigned char *)(((uintptr_t)room + OKV_HUGE_BYTES - 1) & ~(uintptr_t)(OKV_HUGE_BYTES - 1));
	end = at + bytes;
	if (mmap(at, bytes, PROT_READ | PROT_WRITE, flags | MAP_FIXED, fd, 0) == MAP_FAILED) {
		ret = -errno;
		munmap(room, bytes + OKV_HUGE_BYTES);
		return ret;
	}
	if (at > room)
		munmap(room, (size_t)(at - room));
	if (end < room + bytes + OKV_HUGE_BYTES)
		munmap(end, (size_t)(room + bytes + OKV_HUGE_BYTES - end));
	*out = at;
	return 0;
}

static int map_whole(struct okv_embedded_pool *pool, int fd, uint64_t bytes)
{
	int ret = map_aligned(bytes, MAP_SHARED, fd, &pool->map_base);

	if (!ret)
		pool->map_bytes = bytes;
	return ret;
}

static void unmap_whole(struct okv_embedded_pool *pool)
{
	if (pool->map_base)
		munmap(pool->map_base, pool->map_bytes);
	if (pool->meta_bytes)
		munmap(pool->meta, pool->meta_bytes);
}

/*
 * Records of an anonymous pool are private memory: that gets transparent huge pages on many a
 * host where shared memory does not, and the records are what allocation and freeing touch.
 */
static int map_meta(struct opening *op)
{
	struct okv_embedded_pool *pool = op->pool;
	uint64_t bytes = op->header.data_off;
	int ret;

	ret = map_aligned(bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, &pool->meta);
	if (ret)
		return okv_error_set(op->err, ret, "%s: no memory for %" PRIu64 " bytes of records", op->label, bytes);
	pool->meta_bytes = bytes;
	madvise(pool->meta, bytes, MADV_HUGEPAGE);
	return 0;
}

/* Why the process may not have that much, where one of its limits says so. */
static const char *limit_hint(uint64_t bytes)
{
	struct rlimit limit;

	if (!getrlimit(RLIMIT_AS, &limit) && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < 4 * bytes)
		return "; RLIMIT_AS (ulimit -v) bounds this process";
	return "";
}

/* Bytes that the file's file system can still give; UINT64_MAX where it has no bound. */
static uint64_t room_bytes(int fd)
{
	struct statfs fs;

	if (fstatfs(fd, &fs) || !fs.f_blocks)
		return UINT64_MAX;
	return (uint64_t)fs.f_bfree * (uint64_t)fs.f_bsize;
}

static int no_room(struct opening *op, int fd, uint64_t bytes)
{
	return okv_error_set(op->err, -ENOSPC,
			     "%s: no room for %" PRIu64 " bytes in its file system, which has %" PRIu64 " bytes free",
			     op->label, bytes, room_bytes(fd));
}

/* Writing beyond this limit would raise SIGXFSZ. */
static int check_length(struct opening *op, uint64_t bytes)
{
	uint64_t most;

	if (okv_fd_may_have(bytes, &most))
		return 0;
	return okv_error_set(op->err, -ENOMEM, "%s: RLIMIT_FSIZE (ulimit -f) allows %" PRIu64 " bytes a file, %" PRIu64 " are needed",
			     op->label, most, bytes);
}

/* After check_length(). */
static int grow_file(struct opening *op, int fd, uint64_t bytes, bool is_reserved)
{
	int ret = -OKV_FAILPOINT("pool.grow_file");

	if (!ret && ftruncate(fd, (off_t)bytes))
		ret = -errno;
	if (!ret && is_reserved)
		ret = -posix_fallocate(fd, 0, (off_t)bytes);
	if (!ret)
		return 0;
	if (ret == -ENOSPC || ret == -EDQUOT)
		return no_room(op, fd, bytes);
	return okv_error_set(op->err, ret, "%s: cannot make the file %" PRIu64 " bytes long: %s", op->label, bytes,
			     strerror(-ret));
}

/* ---- anonymous pools -------------------------------------------------------------------- */

/* Nobody who gets the memory may cut it off under the others. */
static int seal_size(struct opening *op, int fd)
{
	if (!fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL))
		return 0;
	return op->is_shared ? okv_error_set(op->err, -errno, "%s: cannot seal its size: %s", op->label, strerror(errno)) : 0;
}

/* Pages of the host's huge-page pool, reserved as a whole; -ENOMEM where there are too few. */
static int open_hugetlb(struct opening *op, uint64_t bytes)
{
	uint64_t nr_free = read_number(NODE_DIR "free_hugepages"), nr_reserved = read_number(NODE_DIR "resv_hugepages");
	uint64_t node_free = nr_free > nr_reserved ? nr_free - nr_reserved : 0;
	uint64_t may_add = read_number(NODE_DIR "nr_overcommit_hugepages");
	int fd, ret;

	if (bytes / OKV_HUGE_BYTES > node_free + may_add)
		return -ENOMEM;
	fd = okv_fd_high(memfd_create("omnikv-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB));
	if (fd < 0)
		return -errno;
	ret = okv_fd_resize(fd, bytes) ? -errno : seal_size(op, fd);
	if (!ret)
		ret = map_whole(op->pool, fd, bytes);
	if (ret) {
		close(fd);
		return ret;
	}
	op->pool->fd = fd;
	op->pool->page_kind = OMNIKV_PAGES_HUGETLB;
	return 0;
}

/* Does the kernel give transparent huge pages to shared memory that asks for them? */
static bool shmem_is_huge(void)
{
	char line[128];

	read_line(SHMEM_ENABLED, line, sizeof(line));
	return strstr(line, "[always]") || strstr(line, "[within_size]") || strstr(line, "[advise]") ||
	       strstr(line, "[force]");
}

static void huge_advice(const struct opening *op, struct okv_huge_advice *advice)
{
	const struct okv_huge_state state = {
		.nr_needed = op->pool->map_bytes / OKV_HUGE_BYTES, .nr_total = read_number(NODE_DIR "nr_hugepages"),
		.nr_free = read_number(NODE_DIR "free_hugepages"), .nr_reserved = read_number(NODE_DIR "resv_hugepages"),
		.is_declined = op->has_declined, .error = op->huge_error,
	};

	okv_huge_advice_make(&state, advice);
}

static void notice_small(struct opening *op)
{
	struct okv_huge_advice advice;
	char line[640], policy[128];
	char *word, *end;

	if (!op->config->notice)
		return;
	huge_advice(op, &advice);
	read_line(SHMEM_ENABLED, policy, sizeof(policy));
	word = strchr(policy, '[');
	end = word ? strchr(word, ']') : NULL;
	if (end)
		*end = '\0';
	snprintf(line, sizeof(line),
		 "%s uses 4-KiB pages: %s, and shmem_enabled is \"%s\"; %s, or as root: echo advise > " SHMEM_ENABLED,
		 op->label, advice.found, end ? word + 1 : "missing", advice.command);
	op->config->notice(op->config->opaque, line);
}

static int open_shmem(struct opening *op, uint64_t bytes)
{
	struct okv_embedded_pool *pool = op->pool;
	int fd, ret;

	fd = okv_fd_high(memfd_create("omnikv-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING));
	if (fd < 0)
		return okv_error_set(op->err, -errno, "%s: memfd_create: %s", op->label, strerror(errno));
	ret = check_length(op, bytes);
	if (!ret)
		ret = grow_file(op, fd, bytes, false);
	if (!ret)
		ret = seal_size(op, fd);
	if (ret)
		goto err_close;
	ret = map_whole(pool, fd, bytes);
	if (ret) {
		okv_error_set(op->err, ret, "%s: cannot map %" PRIu64 " bytes: %s%s", op->label, bytes,
			      strerror(-ret), limit_hint(bytes));
		goto err_close;
	}
	pool->fd = fd;
	pool->page_kind = shmem_is_huge() ? OMNIKV_PAGES_THP : OMNIKV_PAGES_SMALL;
	return 0;

err_close:
	close(fd);
	return ret;
}

static int open_anonymous(struct opening *op)
{
	struct okv_embedded_pool *pool = op->pool;
	/* Other processes see the records of a shared pool, so they lie before its data as in a file. */
	uint64_t bytes = op->header.data_bytes + (op->is_shared ? op->header.data_off : 0);
	bool may_hugetlb = !(op->config->flags & OMNIKV_POOL_F_NO_HUGETLB);
	int ret = -ENOMEM;

	/*
	 * A reservation of huge pages is not one on a node: bound to a node that has too few,
	 * memory that is touched later would end in SIGBUS.
	 */
	if (op->config->numa && (op->config->flags & OMNIKV_POOL_F_NO_POPULATE))
		may_hugetlb = false;
	op->has_declined = !may_hugetlb;
	if (may_hugetlb)
		ret = open_hugetlb(op, bytes);
	op->huge_error = -ret;
	if (ret)
		ret = open_shmem(op, bytes);
	if (!ret && !op->is_shared)
		ret = map_meta(op);
	if (ret)
		return ret;
	if (op->is_shared) {
		pool->meta = pool->map_base;
		pool->data_off = op->header.data_off;
	}
	op->is_new = true;
	op->is_memory = true;
	return 0;
}

/* The memory of an anonymous shared pool, as an earlier life of its authority left it. */
static int open_kept(struct opening *op)
{
	struct okv_embedded_pool *pool = op->pool;
	unsigned char page[OKV_POOL_HEADER_BYTES];
	struct okv_pool_header header;
	struct omnikv_error why;
	struct statfs fs;
	struct stat st;
	ssize_t n;
	int ret;

	pool->fd = fcntl(op->kept_fd, F_DUPFD_CLOEXEC, 3);
	if (pool->fd < 0 || fstat(pool->fd, &st) || fstatfs(pool->fd, &fs))
		return okv_error_set(op->err, -errno, "%s: %s", op->label, strerror(errno));
	n = pread(pool->fd, page, sizeof(page), 0);
	ret = okv_pool_header_check(page, n > 0 ? (size_t)n : 0, (uint64_t)st.st_size, &header, &why);
	if (!ret && !header.is_ready)
		ret = okv_error_set(&why, -EBADMSG, "it was never made whole");
	if (!ret && header.asked_bytes != op->spec->bytes)
		ret = okv_error_set(&why, -EBADMSG, "it has %" PRIu64 " bytes", header.asked_bytes);
	if (!ret && op->config->granule_bytes && header.granule_bytes != op->config->granule_bytes)
		ret = okv_error_set(&why, -EBADMSG, "it has granules of %u bytes", header.granule_bytes);
	if (ret)
		return okv_error_set(op->err, ret, "%s: kept memory: %.150s", op->label, why.text);
	ret = map_whole(pool, pool->fd, header.data_off + header.data_bytes);
	if (ret)
		return okv_error_set(op->err, ret, "%s: cannot map it: %s", op->label, strerror(-ret));
	op->header = header;
	op->is_memory = true;
	pool->meta = pool->map_base;
	pool->data_off = header.data_off;
	pool->page_kind = (uint32_t)fs.f_type == MAGIC_HUGETLBFS ? OMNIKV_PAGES_HUGETLB :
			  shmem_is_huge() ? OMNIKV_PAGES_THP : OMNIKV_PAGES_SMALL;
	return 0;
}

/* ---- named pools ------------------------------------------------------------------------ */

static int lock_file(struct opening *op, int fd)
{
	/* Locks of client processes lie behind; see share.h. Who does not share waits for their end as well. */
	struct flock lock = { .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = op->is_shared ? OKV_SHARE_LOCK : 0 };
	uint64_t until_ns = okv_monotonic_ns() + LEAVING_NS;
	struct okv_pool_header header;
	struct flock other;

	while (fcntl(fd, F_OFD_SETLK, &lock)) {
		if (errno != EAGAIN && errno != EACCES)
			return okv_error_set(op->err, -errno, "%s: cannot lock: %s", op->label, strerror(errno));
		other = lock;
		if (!fcntl(fd, F_OFD_GETLK, &other) && other.l_type != F_UNLCK && other.l_start >= OKV_SHARE_LOCK)
			return okv_error_set(op->err, -EBUSY, "%s: clients of an omnikvd that has ended use it; end them, or start omnikvd on it "
					     "again", op->label);
		if (pread(fd, &header, sizeof(header), 0) != sizeof(header) || header.magic != OKV_POOL_MAGIC)
			return okv_error_set(op->err, -EBUSY, "%s: another process is just opening it", op->label);
		/* One that was killed is taken down, and lets go then. */
		if (okv_monotonic_ns() >= until_ns || !okv_process_is_leaving((pid_t)header.holder_pid))
			return okv_error_set(op->err, -EBUSY, "%s: open in process %u; end that or choose another file", op->label,
					     header.holder_pid);
		usleep(LEAVING_US);
	}
	return 0;
}

/* A header that says "not made whole yet" comes before everything else in a new file. */
static int create_file(struct opening *op, int fd)
{
	unsigned char page[OKV_POOL_HEADER_BYTES] = { 0 };
	uint64_t bytes = op->header.data_off + op->header.data_bytes;
	bool is_whole = !(op->config->flags & OMNIKV_POOL_F_NO_POPULATE);
	int ret;

	op->is_begun = true;
	if (ftruncate(fd, 0)) {
		ret = -errno;
		return okv_error_set(op->err, ret, "%s: %s", op->label, strerror(-ret));
	}
	ret = check_length(op, bytes);
	if (ret)
		return ret;
	/* Before anything is taken: filling a file system hurts others too, and what it cannot give later ends who touches it. */
	if (room_bytes(fd) < bytes)
		return no_room(op, fd, bytes);
	memcpy(page, &op->header, sizeof(op->header));
	if (pwrite(fd, page, sizeof(page), 0) != (ssize_t)sizeof(page))
		return okv_error_set(op->err, -ENOSPC, "%s: cannot write its first page: %s", op->label,
				     strerror(errno));
	ret = -OKV_FAILPOINT("pool.create_file");
	if (ret)
		return ret;
	return grow_file(op, fd, bytes, is_whole && !op->is_memory);
}

/* Take the shape of an existing pool, after comparing it with what is asked. */
static int adopt_file(struct opening *op, int fd, uint64_t file_bytes)
{
	struct okv_pool_header header;
	struct omnikv_error why;
	unsigned char page[OKV_POOL_HEADER_BYTES];
	ssize_t n;
	int ret;

	n = pread(fd, page, sizeof(page), 0);
	ret = okv_pool_header_check(page, n > 0 ? (size_t)n : 0, file_bytes, &header, &why);
	if (ret)
		return okv_error_set(op->err, ret, "%s: %.150s", op->label, why.text);
	if (!header.is_ready && (op->config->flags & OMNIKV_POOL_F_OPEN_ONLY))
		return okv_error_set(op->err, -ENOENT, "%s: whoever made it did not finish", op->label);
	if (!header.is_ready)
		return create_file(op, fd);
	if (header.asked_bytes != op->spec->bytes)
		return okv_error_set(op->err, -EBADMSG, "%s: size %" PRIu64 " bytes in the file, %" PRIu64 " asked",
				     op->label, header.asked_bytes, op->spec->bytes);
	if (op->config->granule_bytes && header.granule_bytes != op->config->granule_bytes)
		return okv_error_set(op->err, -EBADMSG, "%s: granule of %u bytes in the file, %u asked", op->label,
				     header.granule_bytes, op->config->granule_bytes);
	op->header = header;
	op->is_new = false;
	return 0;
}

/* The file, made where there is none; then its name is this call's, to take away where making it fails. */
static int open_file(struct opening *op)
{
	int fd = okv_fd_high(open(op->spec->name, O_RDWR | O_CLOEXEC));

	if (fd >= 0 || errno != ENOENT || (op->config->flags & OMNIKV_POOL_F_OPEN_ONLY))
		return fd;
	fd = okv_fd_high(open(op->spec->name, O_RDWR | O_CLOEXEC | O_CREAT | O_EXCL, 0600));
	op->is_created = fd >= 0;
	if (fd < 0 && errno == EEXIST)
		fd = okv_fd_high(open(op->spec->name, O_RDWR | O_CLOEXEC | O_CREAT, 0600));
	return fd;
}

/* The file is as before this call, while its lock is still held. */
static void undo_file(struct opening *op)
{
	if (op->is_created)
		unlink(op->spec->name);
	else if (op->is_begun && ftruncate(op->pool->fd, 0))
		return;
}

static int open_named(struct opening *op)
{
	struct okv_embedded_pool *pool = op->pool;
	bool is_open_only = op->config->flags & OMNIKV_POOL_F_OPEN_ONLY;
	bool is_hugetlbfs;
	struct statfs fs;
	struct stat st;
	int fd, ret;

	fd = open_file(op);
	if (fd < 0)
		return okv_error_set(op->err, -errno, "%s: %s", op->label, strerror(errno));
	pool->fd = fd;
	if (fstat(fd, &st) || fstatfs(fd, &fs))
		return okv_error_set(op->err, -errno, "%s: %s", op->label, strerror(errno));
	is_hugetlbfs = (uint32_t)fs.f_type == MAGIC_HUGETLBFS;
	op->is_memory = fs.f_type == MAGIC_TMPFS;
	/* hugetlbfs has no write(): the header could not come first. */
	if (!S_ISREG(st.st_mode) || is_hugetlbfs)
		return okv_error_set(op->err, -EINVAL, "%s: not a regular file%s", op->label,
				     is_hugetlbfs ? " that can be written (hugetlbfs)" : "");
	/* Whose file it is can open it to others, and cut it off under all who map it. */
	if (op->is_shared && st.st_uid && st.st_uid != geteuid())
		return okv_error_set(op->err, -EPERM, "%s: the file belongs to user %u; it must be root's or this user's",
				     op->label, st.st_uid);
	ret = lock_file(op, fd);
	if (ret) {
		op->is_created = false;
		return ret;
	}
	/* It may have been created, or failed to be and taken away, between open and lock. */
	if (fstat(fd, &st))
		return -errno;
	if (!st.st_nlink) {
		op->is_created = false;
		return okv_error_set(op->err, -EBUSY, "%s: another process is just opening it", op->label);
	}
	op->is_new = true;
	if (st.st_size)
		ret = adopt_file(op, fd, (uint64_t)st.st_size);
	else if (is_open_only)
		ret = okv_error_set(op->err, -ENOENT, "%s: the file is empty", op->label);
	else
		ret = create_file(op, fd);
	if (ret)
		return ret;
	ret = map_whole(pool, fd, op->header.data_off + op->header.data_bytes);
	if (ret)
		return okv_error_set(op->err, ret, "%s: cannot map it: %s%s", op->label, strerror(-ret),
				     limit_hint(op->header.data_bytes));
	pool->is_file = true;
	pool->meta = pool->map_base;
	pool->data_off = op->header.data_off;
	pool->page_kind = op->is_memory && shmem_is_huge() ? OMNIKV_PAGES_THP : OMNIKV_PAGES_SMALL;
	return 0;
}

/* ---- populating ------------------------------------------------------------------------- */

/*
 * Threads take chunks off one counter. The opening thread is one of them, and reports.
 * @error: the first one's errno
 */
struct populate {
	unsigned char		*base;
	uint64_t		bytes;
	uint64_t		chunk;
	_Atomic uint64_t	next;
	_Atomic uint64_t	done;
	_Atomic int		error;
};

/* Before Linux 5.14 there is no MADV_POPULATE_WRITE: touch a byte a page, without changing it. */
static void touch(unsigned char *at, uint64_t bytes)
{
	uint64_t off;

	for (off = 0; off < bytes; off += 4096)
		__atomic_fetch_add(&at[off], 0, __ATOMIC_RELAXED);
}

static bool populate_chunk(struct populate *pop)
{
	uint64_t off = atomic_fetch_add(&pop->next, pop->chunk), bytes;
	int error;

	if (off >= pop->bytes || atomic_load(&pop->error))
		return false;
	bytes = pop->bytes - off < pop->chunk ? pop->bytes - off : pop->chunk;
	error = OKV_FAILPOINT("pool.populate");
	if (!error && madvise(pop->base + off, bytes, MADV_POPULATE_WRITE))
		error = errno;
	if (error == EINVAL)
		touch(pop->base + off, bytes);
	else if (error)
		atomic_store(&pop->error, error);
	atomic_fetch_add(&pop->done, bytes);
	return true;
}

static void *populate_thread(void *arg)
{
	while (populate_chunk(arg))
		;
	return NULL;
}

static uint32_t allowed_cpus(void)
{
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set))
		return 1;
	return (uint32_t)CPU_COUNT(&set);
}

#define POPULATE_THREADS_MAX	64
#define POPULATE_CHUNK_MAX	(64ull << 20)

static int populate(struct opening *op)
{
	struct okv_embedded_pool *pool = op->pool;
	uint64_t usable = op->header.nr_granules * op->header.granule_bytes;
	struct populate pop = {
		.base	= pool->map_base,
		/* The rounding behind the last granule costs nothing unless its page is huge. */
		.bytes	= pool->page_kind == OMNIKV_PAGES_SMALL ? pool->data_off + usable : pool->map_bytes,
	};
	uint32_t nr = op->config->nr_threads ? op->config->nr_threads : allowed_cpus(), i, started = 0;
	pthread_t threads[POPULATE_THREADS_MAX];
	int error;

	if (nr > POPULATE_THREADS_MAX)
		nr = POPULATE_THREADS_MAX;
	pop.chunk = pop.bytes / (nr * 8ull) & ~(OKV_HUGE_BYTES - 1);
	if (pop.chunk < OKV_HUGE_BYTES)
		pop.chunk = OKV_HUGE_BYTES;
	if (pop.chunk > POPULATE_CHUNK_MAX)
		pop.chunk = POPULATE_CHUNK_MAX;

	/* Fewer threads than asked only take longer. */
	for (i = 1; i < nr; i++)
		if (!pthread_create(&threads[started], NULL, populate_thread, &pop))
			started++;
	while (populate_chunk(&pop))
		if (op->config->progress)
			op->config->progress(op->config->opaque, atomic_load(&pop.done), pop.bytes);
	for (i = 0; i < started; i++)
		pthread_join(threads[i], NULL);
	error = atomic_load(&pop.error);
	/* The kernel's word for a page that could not be had, instead of the SIGBUS of a touch. */
	if (error == EFAULT && pool->is_file)
		return no_room(op, pool->fd, pop.bytes);
	if (error)
		return okv_error_set(op->err, error == EFAULT ? -ENOMEM : -error,
				     "%s: populating stopped after %" PRIu64 " of %" PRIu64 " bytes: %s", op->label,
				     atomic_load(&pop.done), pop.bytes, strerror(error == EFAULT ? ENOMEM : error));
	if (op->config->progress)
		op->config->progress(op->config->opaque, pop.bytes, pop.bytes);
	return 0;
}

static int make_resident(struct opening *op)
{
	struct okv_embedded_pool *pool = op->pool;
	uint64_t need = pool->map_bytes, available;

	if (pool->page_kind == OMNIKV_PAGES_THP)
		madvise(pool->map_base, pool->map_bytes, MADV_HUGEPAGE);
	/* The page cache of a file on a disk comes and goes; its space was reserved. */
	if ((op->config->flags & OMNIKV_POOL_F_NO_POPULATE) || !op->is_memory)
		return 0;
	if (op->is_new && pool->page_kind != OMNIKV_PAGES_HUGETLB) {
		available = available_bytes();
		if (need > available)
			return okv_error_set(op->err, -ENOMEM,
					     "%s: %" PRIu64 " bytes asked, %" PRIu64 " available on this host; ask for less",
					     op->label, need, available);
	}
	return populate(op);
}

/* ---- records ---------------------------------------------------------------------------- */

/*
 * What an earlier process left can be used when it was written back in order, or when the host
 * has not been down since: its page cache then holds all that a killed process stored.
 */
static bool is_trusted(const struct okv_pool_header *header)
{
	char boot_id[sizeof(header->boot_id)];

	read_boot_id(boot_id, sizeof(boot_id));
	return header->is_clean || (boot_id[0] && !strncmp(boot_id, header->boot_id, sizeof(boot_id)));
}

static int bring_up(struct opening *op)
{
	struct okv_embedded_pool *pool = op->pool;
	struct okv_pool_header *header = (struct okv_pool_header *)pool->meta;
	struct okv_extent_rec *recs = (struct okv_extent_rec *)(pool->meta + OKV_POOL_HEADER_BYTES);
	uint64_t nr = op->header.nr_granules;
	bool is_fresh = op->is_new, must_be_emptied = !op->is_new && !is_trusted(header);
	uint64_t *used;
	int ret;

	/* Within the file, and yet bounded as what makes it longer is. */
	ret = must_be_emptied ? check_length(op, sizeof(op->header)) : 0;
	if (ret)
		return ret;
	pool->used_bytes = (okv_extent_used_words(nr) * sizeof(*used) + 4095) & ~4095ull;
	used = mmap(NULL, pool->used_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (used == MAP_FAILED)
		return okv_error_set(op->err, -ENOMEM, "%s: no memory for its bitmap", op->label);

	if (must_be_emptied) {
		/* Old names could come again with the records: a new instance takes their meaning away. */
		is_fresh = true;
		if (getrandom(op->header.instance, sizeof(op->header.instance), 0) < 0)
			memset(op->header.instance, 0, sizeof(op->header.instance));
		op->header.is_ready = 0;
		okv_pool_header_seal(&op->header);
		/* In one call, which a kill does not tear. */
		if (pwrite(pool->fd, &op->header, sizeof(op->header), 0) != sizeof(op->header)) {
			munmap(used, pool->used_bytes);
			return okv_error_set(op->err, -EIO, "%s: cannot write its header", op->label);
		}
		memset(recs, 0, nr * sizeof(*recs));
		if (op->config->notice) {
			char line[256];

			snprintf(line, sizeof(line),
				 "%s: the host went down while it was open; it starts empty", op->label);
			op->config->notice(op->config->opaque, line);
		}
	}
	memcpy(pool->instance, op->header.instance, sizeof(pool->instance));
	op->header.holder_pid = (uint32_t)getpid();
	op->header.is_clean = 0;
	read_boot_id(op->header.boot_id, sizeof(op->header.boot_id));
	*header = op->header;
	/*
	 * On the disk before anything changes: after a power cut a header that still said "closed in
	 * order" would vouch for records and bytes of which some were written back and some not.
	 */
	ret = pool->is_file && msync(pool->map_base, OKV_POOL_HEADER_BYTES, MS_SYNC) ? -errno : 0;
	if (ret) {
		munmap(used, pool->used_bytes);
		return okv_error_set(op->err, ret, "%s: cannot write its header: %s", op->label, strerror(-ret));
	}

	ret = okv_extent_map_init(&pool->map, recs, used, nr);
	if (!ret && op->is_shared && !is_fresh)
		ret = okv_share_recover(pool);
	else if (!ret)
		ret = is_fresh ? okv_extent_map_add(&pool->map, nr) : okv_extent_map_recover(&pool->map, nr);
	if (ret) {
		munmap(used, pool->used_bytes);
		return ret;
	}
	OKV_ORDERED_STORE(&header->is_ready, 1);
	return 0;
}

/* ---- the provider's calls --------------------------------------------------------------- */

static void close_fds(struct okv_embedded_pool *pool)
{
	if (pool->fd_ro >= 0)
		close(pool->fd_ro);
	if (pool->fd >= 0)
		close(pool->fd);
}

static int pool_open(const struct okv_pool_spec *spec, const struct omnikv_pool_config *config, bool is_shared,
		     int kept_fd, struct omnikv_pool **out, struct omnikv_error *err)
{
	struct opening op = {
		.spec = spec, .config = config, .err = err, .is_shared = is_shared, .kept_fd = kept_fd,
	};
	uint32_t granule_bytes = config->granule_bytes ? config->granule_bytes : OKV_POOL_GRANULE_BYTES;
	struct okv_embedded_pool *pool;
	struct okv_huge_advice advice;
	char path[32];
	int ret;

	if (spec->name)
		snprintf(op.label, sizeof(op.label), "pool %.64s", spec->name);
	else
		snprintf(op.label, sizeof(op.label), "pool of %" PRIu64 " bytes", spec->bytes);
	ret = okv_pool_header_make(spec->bytes, granule_bytes, &op.header, err);
	if (ret)
		return ret;
	if (!spec->name && (config->flags & OMNIKV_POOL_F_OPEN_ONLY))
		return okv_error_set(err, -ENOENT, "%s: it has no file, so there is none to open", op.label);
	if (getrandom(op.header.instance, sizeof(op.header.instance), 0) != sizeof(op.header.instance))
		return okv_error_set(err, -EIO, "%s: no random numbers for its instance", op.label);
	okv_pool_header_seal(&op.header);

	pool = calloc(1, sizeof(*pool));
	if (!pool)
		return okv_error_set(err, -ENOMEM, "%s: no memory", op.label);
	pool->fd = -1;
	pool->fd_ro = -1;
	op.pool = pool;

	pool->is_shared = is_shared;
	pool->refs = &okv_embedded_refs;
	pool->pool.provider = &okv_provider_embedded;
	pool->pool.is_lasting = is_shared || spec->name;
	pool->pool.granule_bytes = op.header.granule_bytes;
	pthread_mutex_init(&pool->lock, NULL);
	if (is_shared && spec->name) {
		pool->path = strdup(spec->name);
		if (!pool->path) {
			ret = -ENOMEM;
			goto err_unmap;
		}
	}

	ret = kept_fd >= 0 ? open_kept(&op) : spec->name ? open_named(&op) : open_anonymous(&op);
	if (ret)
		goto err_unmap;
	if (pool->page_kind == OMNIKV_PAGES_SMALL) {
		if (config->flags & OMNIKV_POOL_F_REQUIRE_HUGE) {
			huge_advice(&op, &advice);
			if (spec->name)
				ret = okv_error_set(err, -ENOMEM, "%s: a file gets huge pages on a tmpfs alone; as root: echo advise > "
						    SHMEM_ENABLED, op.label);
			else
				ret = okv_error_set(err, -ENOMEM, "%s: %s; %s", op.label, advice.found, advice.command);
			goto err_unmap;
		}
		if (!spec->name)
			notice_small(&op);
	}
	ret = numa_apply(&op);
	if (ret)
		goto err_unmap;
	if (madvise(pool->map_base, pool->map_bytes, MADV_DONTFORK) ||
	    (pool->meta_bytes && madvise(pool->meta, pool->meta_bytes, MADV_DONTFORK))) {
		ret = okv_error_set(err, -errno, "%s: madvise: %s", op.label, strerror(errno));
		goto err_unmap;
	}
	madvise(pool->map_base, pool->map_bytes, MADV_DONTDUMP);
	ret = make_resident(&op);
	if (ret)
		goto err_unmap;
	ret = bring_up(&op);
	if (ret)
		goto err_unmap;

	/* A descriptor without write permission gives windows that cannot be made writable. */
	snprintf(path, sizeof(path), "/proc/self/fd/%d", pool->fd);
	pool->fd_ro = okv_fd_high(open(path, O_RDONLY | O_CLOEXEC));
	pool->asked_bytes = spec->bytes;
	pool->pool.granule_bytes = op.header.granule_bytes;
	pool->pool.base = pool->map_base + pool->data_off;
	*out = &pool->pool;
	return 0;

err_unmap:
	okv_embedded_clients_fini(pool);
	okv_share_fini(pool);
	pthread_mutex_destroy(&pool->lock);
	unmap_whole(pool);
	if (spec->name)
		undo_file(&op);
	close_fds(pool);
	free(pool);
	return ret;
}

static int embedded_open(const struct okv_pool_spec *spec, const struct omnikv_pool_config *config,
			 struct omnikv_pool **out, struct omnikv_error *err)
{
	return pool_open(spec, config, false, -1, out, err);
}

int okv_share_open(const struct okv_pool_spec *spec, const struct omnikv_pool_config *config, int fd,
		   struct omnikv_pool **out, struct omnikv_error *err)
{
	return pool_open(spec, config, true, spec->name ? -1 : fd, out, err);
}

static void embedded_close(struct omnikv_pool *base)
{
	struct okv_embedded_pool *pool = okv_embedded_pool(base);
	struct okv_pool_header *header = (struct okv_pool_header *)pool->meta;

	okv_share_abandon(pool);
	okv_embedded_clients_fini(pool);
	okv_share_fini(pool);
	/*
	 * Everything first, then the word that says so. A shared pool's users may be writing, and its owner
	 * has to end within seconds, so that one starts empty when the host goes down before it is opened again.
	 */
	if (pool->is_file && !pool->is_shared && !msync(pool->map_base, pool->map_bytes, MS_SYNC)) {
		header->is_clean = 1;
		msync(pool->map_base, OKV_POOL_HEADER_BYTES, MS_SYNC);
	}
	munmap(pool->map.used, pool->used_bytes);
	unmap_whole(pool);
	close_fds(pool);
	pthread_mutex_destroy(&pool->lock);
	free(pool);
}

/*
 * Resident bytes on each node, from numa_maps lines such as
 * "7f5c00000000 default file=/memfd:x dirty=512 N0=500 N1=12 kernelpagesize_kB=4".
 */
static void node_bytes(const struct okv_embedded_pool *pool, struct omnikv_pool_info *info)
{
	uintptr_t begin = (uintptr_t)pool->map_base, end = begin + pool->map_bytes;
	char *line = NULL;
	size_t size = 0;
	bool is_found = false;
	struct stat st;
	FILE *file;

	info->nr_nodes = 1;
	file = fopen("/proc/self/numa_maps", "re");
	while (file && getline(&line, &size, file) > 0) {
		uint64_t pages[OMNIKV_NODES_MAX] = { 0 }, kib = 4;
		unsigned long at = strtoul(line, NULL, 16);
		char *word, *save;
		unsigned int node;
		uint64_t nr;

		if (at < begin || at >= end)
			continue;
		is_found = true;
		for (word = strtok_r(line, " \n", &save); word; word = strtok_r(NULL, " \n", &save)) {
			if (sscanf(word, "N%u=%" SCNu64, &node, &nr) == 2 && node < OMNIKV_NODES_MAX)
				pages[node] = nr;
			else
				sscanf(word, "kernelpagesize_kB=%" SCNu64, &kib);
		}
		for (node = 0; node < OMNIKV_NODES_MAX; node++) {
			info->node_bytes[node] += pages[node] * kib * 1024;
			if (pages[node] && node >= info->nr_nodes)
				info->nr_nodes = node + 1;
		}
	}
	free(line);
	if (file)
		fclose(file);
	/* A kernel without NUMA. */
	if (!is_found && !fstat(pool->fd, &st))
		info->node_bytes[0] = (uint64_t)st.st_blocks * 512;
}

static uint64_t embedded_free_granules(struct omnikv_pool *base)
{
	struct okv_embedded_pool *pool = okv_embedded_pool(base);
	uint64_t nr;

	pthread_mutex_lock(&pool->lock);
	nr = pool->map.state_granules[OMNIKV_EXTENT_FREE];
	pthread_mutex_unlock(&pool->lock);
	return nr;
}

static int embedded_info(struct omnikv_pool *base, struct omnikv_pool_info *info)
{
	struct okv_embedded_pool *pool = okv_embedded_pool(base);
	uint64_t granule = pool->pool.granule_bytes;
	uint32_t state;

	pthread_mutex_lock(&pool->lock);
	info->asked_bytes = pool->asked_bytes;
	info->nr_granules = pool->map.nr_granules;
	info->granule_bytes = pool->pool.granule_bytes;
	info->usable_bytes = info->nr_granules * granule;
	info->overhead_bytes = pool->map_bytes - info->usable_bytes + pool->meta_bytes + pool->used_bytes;
	for (state = 0; state < OMNIKV_EXTENT_NR_STATES; state++) {
		info->state_bytes[state] = pool->map.state_granules[state] * granule;
		info->nr_extents[state] = pool->map.nr_extents[state];
	}
	info->free_bytes = info->state_bytes[OMNIKV_EXTENT_FREE];
	info->largest_free_bytes = okv_extent_map_largest(&pool->map) * granule;
	info->nr_placed = pool->map.nr_placed;
	info->nr_runs_begun = pool->map.nr_runs_begun;
	info->nr_clients = pool->nr_clients;
	pthread_mutex_unlock(&pool->lock);

	info->page_kind = pool->page_kind;
	memcpy(info->instance, pool->instance, sizeof(info->instance));
	node_bytes(pool, info);
	return 0;
}

const struct okv_provider okv_provider_embedded = {
	.name		= "embedded",
	.open		= embedded_open,
	.close		= embedded_close,
	.info		= embedded_info,
	.free_granules	= embedded_free_granules,
	.client_open	= okv_embedded_client_open,
	.client_close	= okv_embedded_client_close,
	.alloc		= okv_embedded_alloc,
	.seal		= okv_embedded_seal,
	.free		= okv_embedded_free,
	.lease		= okv_embedded_lease,
	.release	= okv_embedded_release,
	.io_get		= okv_embedded_io_get,
	.io_put		= okv_embedded_io_put,
	.query		= okv_embedded_query,
	.list		= okv_embedded_list,
	.window_create	= okv_embedded_window_create,
	.window_destroy	= okv_embedded_window_destroy,
	.window_bind	= okv_embedded_window_bind,
	.window_unbind	= okv_embedded_window_unbind,
};

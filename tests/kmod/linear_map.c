// SPDX-License-Identifier: GPL-2.0-only
/*
 * The linear map: 2-MiB entries, direct I/O and io_uring's fixed buffers on it, RDMA's long-term
 * pin where a device can be had, and what its holder cannot do to the pool.
 */
#include "kselftest_harness.h"
#include "okv_test.h"

#include <liburing.h>
#include <linux/fs.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define POOL_BYTES	(16 * UNIT)
#define DISK		"/dev/nvme0n1"

FIXTURE(linear)
{
	int dev, pool, disk;
	unsigned char *base;
};

FIXTURE_SETUP(linear)
{
	faults_catch();
	self->dev = dev_open();
	ASSERT_GE(self->dev, 0);
	self->pool = pool_create(self->dev, "linear", POOL_BYTES, 0);
	ASSERT_GE(self->pool, 0);
	self->base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, self->pool, 0);
	ASSERT_NE(MAP_FAILED, (void *)self->base);
	self->disk = open(DISK, O_RDWR | O_DIRECT | O_CLOEXEC);
	ASSERT_GE(self->disk, 0);
}

FIXTURE_TEARDOWN(linear)
{
	close(self->disk);
	munmap(self->base, POOL_BYTES);
	EXPECT_EQ(0, pool_destroy(self->dev, self->pool, 0));
	close(self->pool);
	close(self->dev);
}

static void pattern(unsigned char *at, size_t bytes, unsigned int seed)
{
	size_t i;

	for (i = 0; i < bytes; i += 8)
		*(uint64_t *)(at + i) = (i + 1) * 0x9e3779b97f4a7c15ull ^ seed;
}

TEST_F(linear, is_mapped_by_2_mib_entries)
{
	memset(self->base, 1, POOL_BYTES);
	EXPECT_EQ(0, (uintptr_t)self->base % UNIT);
	EXPECT_EQ((long)(POOL_BYTES >> 10), kb_of("/proc/self/smaps", "ShmemPmdMapped", (uintptr_t)self->base));
}

TEST_F(linear, private_and_executable_maps_are_refused)
{
	EXPECT_EQ(MAP_FAILED, mmap(NULL, UNIT, PROT_READ, MAP_PRIVATE, self->pool, 0));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, UNIT, PROT_READ | PROT_EXEC, MAP_SHARED, self->pool, 0));
	EXPECT_EQ(EACCES, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, UNIT, PROT_READ, MAP_SHARED, self->pool, POOL_BYTES));
	EXPECT_EQ(EINVAL, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, 2 * UNIT, PROT_READ, MAP_SHARED, self->pool, POOL_BYTES - UNIT));
	EXPECT_EQ(-1, mprotect(self->base, UNIT, PROT_READ | PROT_EXEC));
}

TEST_F(linear, descriptor_without_linear_map)
{
	int pool2 = pool_open(self->dev, "linear", OMNIKV_OPEN_F_NO_LINEAR);
	struct omnikv_extent ext;

	ASSERT_GE(pool2, 0);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, UNIT, PROT_READ, MAP_SHARED, pool2, 0));
	EXPECT_EQ(EACCES, errno);
	EXPECT_EQ(0, op_alloc(self->dev, pool2, 1, 0, &ext));
	close(pool2);
}

TEST_F(linear, direct_io_reaches_the_disk_and_comes_back)
{
	pattern(self->base, UNIT, 1);
	ASSERT_EQ((ssize_t)UNIT, pwrite(self->disk, self->base, UNIT, 0));
	memset(self->base + 3 * UNIT, 0, UNIT);
	ASSERT_EQ((ssize_t)UNIT, pread(self->disk, self->base + 3 * UNIT, UNIT, 0));
	EXPECT_EQ(0, memcmp(self->base, self->base + 3 * UNIT, UNIT));
}

TEST_F(linear, whole_map_is_a_fixed_buffer_of_io_uring)
{
	struct iovec iov = { self->base, POOL_BYTES };
	struct io_uring_sqe *sqe;
	struct io_uring_cqe *cqe;
	struct io_uring ring;
	int i;

	ASSERT_EQ(0, io_uring_queue_init(16, &ring, 0));
	ASSERT_EQ(0, io_uring_register_buffers(&ring, &iov, 1));
	pattern(self->base, UNIT, 2);
	ASSERT_EQ((ssize_t)UNIT, pwrite(self->disk, self->base, UNIT, 4 * UNIT));
	for (i = 0; i < 8; i++) {
		sqe = io_uring_get_sqe(&ring);
		io_uring_prep_read_fixed(sqe, self->disk, self->base + 8 * UNIT + i * 256 * 1024, 256 * 1024,
					 4 * UNIT + i * 256 * 1024, 0);
	}
	ASSERT_EQ(8, io_uring_submit_and_wait(&ring, 8));
	for (i = 0; i < 8; i++) {
		ASSERT_EQ(0, io_uring_wait_cqe(&ring, &cqe));
		EXPECT_EQ(256 * 1024, cqe->res);
		io_uring_cqe_seen(&ring, cqe);
	}
	EXPECT_EQ(0, memcmp(self->base, self->base + 8 * UNIT, UNIT));
	io_uring_queue_exit(&ring);
}

/* Another process lives on, with its memory registered: a page of each unit, then all of them. */
TEST_F(linear, dead_clients_memory_comes_back_where_others_have_registered_it)
{
	struct omnikv_ioc_pool_info info;
	struct io_uring ring;
	struct iovec iovs[POOL_BYTES / UNIT];
	int round, i, status, ready[2];
	char byte;
	pid_t pid;

	for (round = 0; round < 2; round++) {
		size_t piece = round ? UNIT : PAGE;

		for (i = 0; i < (int)(POOL_BYTES / UNIT); i++)
			iovs[i] = (struct iovec) { self->base + i * UNIT, piece };
		ASSERT_EQ(0, io_uring_queue_init(4, &ring, 0));
		ASSERT_EQ(0, io_uring_register_buffers(&ring, iovs, POOL_BYTES / UNIT));
		ASSERT_EQ(0, pipe(ready));
		pid = fork();
		if (!pid) {
			struct omnikv_extent ext;
			int dev = dev_open(), pool = pool_open(dev, "linear", 0);

			if (op_alloc(dev, pool, 1024, 0, &ext) || write(ready[1], "", 1) != 1)
				_exit(1);
			pause();
		}
		ASSERT_EQ(1, read(ready[0], &byte, 1));
		kill(pid, SIGKILL);
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		/* It rests first: what it may have begun cannot be told from the registration. */
		ASSERT_EQ(0, pool_info(self->dev, self->pool, &info));
		EXPECT_EQ(1024 * PAGE, info.state_bytes[OMNIKV_EXTENT_QUARANTINED]);
		for (i = 0; i < 1000 && info.state_bytes[OMNIKV_EXTENT_FREE] != POOL_BYTES; i++) {
			sleep_ms(10);
			ASSERT_EQ(0, pool_info(self->dev, self->pool, &info));
		}
		EXPECT_EQ(POOL_BYTES, info.state_bytes[OMNIKV_EXTENT_FREE]) {
			TH_LOG("registered by pieces of %zu bytes", piece);
		}
		io_uring_queue_exit(&ring);
		close(ready[0]);
		close(ready[1]);
	}
}

TEST_F(linear, registration_over_the_memlock_limit_fails_cleanly)
{
	struct iovec iov = { self->base, POOL_BYTES };
	struct io_uring ring;
	int status;
	pid_t pid = fork();

	if (!pid) {
		struct rlimit limit = { 64 << 10, 64 << 10 };
		int fd = pool_open(dev_open(), "linear", 0);

		iov.iov_base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (setrlimit(RLIMIT_MEMLOCK, &limit) || setresuid(65534, 65534, 65534))
			_exit(1);
		if (io_uring_queue_init(4, &ring, 0))
			_exit(2);
		/* The limit counts, and unregistered I/O goes on. */
		if (io_uring_register_buffers(&ring, &iov, 1) != -ENOMEM)
			_exit(3);
		_exit(0);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, WEXITSTATUS(status));
}

static void mbind_try(void *at)
{
	unsigned long nodes = 2;

	/* MPOL_BIND to node 1, moving what is there: nothing moves. */
	syscall(SYS_mbind, at, UNIT, 2, &nodes, 64, 2);
}

/* What a holder of the map tries; a second map of the same pool must not notice. */
TEST_F(linear, pages_cannot_be_taken_out_of_the_pool)
{
	unsigned char *other = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, self->pool, 0);
	unsigned char *copy = malloc(POOL_BYTES);
	char path[128];
	int fd, flags = 0;

	ASSERT_NE(MAP_FAILED, (void *)other);
	pattern(self->base, POOL_BYTES, 3);
	memcpy(copy, self->base, POOL_BYTES);

	EXPECT_EQ(-1, madvise(self->base, UNIT, MADV_REMOVE));
	EXPECT_EQ(EPERM, errno);
	EXPECT_EQ(-1, madvise(self->base, PAGE, MADV_REMOVE));
#ifdef MADV_PAGEOUT
	madvise(self->base, POOL_BYTES, MADV_COLD);
	madvise(self->base, POOL_BYTES, MADV_PAGEOUT);
#endif
	madvise(self->base + UNIT, PAGE, MADV_DONTNEED);
	EXPECT_EQ(-1, madvise(self->base, UNIT, MADV_FREE));
	mbind_try(self->base);
	EXPECT_EQ(MAP_FAILED, mremap(self->base, POOL_BYTES, 2 * POOL_BYTES, MREMAP_MAYMOVE));
	EXPECT_EQ(MAP_FAILED, mremap(self->base, 0, POOL_BYTES, MREMAP_MAYMOVE));

	snprintf(path, sizeof(path), "/proc/self/map_files/%lx-%lx", (unsigned long)other,
		 (unsigned long)other + POOL_BYTES);
	fd = open(path, O_RDWR);
	EXPECT_EQ(-1, fd);
	fd = open(path, O_RDONLY);
	if (fd >= 0) {
		EXPECT_EQ(-1, fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, UNIT));
		EXPECT_EQ(-1, ftruncate(fd, 0));
		ioctl(fd, FS_IOC_GETFLAGS, &flags);
		flags = 0x40;
		EXPECT_EQ(-1, ioctl(fd, FS_IOC_SETFLAGS, &flags));
		EXPECT_EQ(-1, fchmod(fd, 0777));
		EXPECT_EQ(MAP_FAILED, mmap(NULL, UNIT, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
		close(fd);
	}
	EXPECT_EQ(-1, truncate(path, 0));
	EXPECT_EQ(-1, madvise(self->base, UNIT, MADV_REMOVE));
	EXPECT_EQ(-1, fallocate(self->pool, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, UNIT));
	EXPECT_EQ(-1, ftruncate(self->pool, 0));
	EXPECT_EQ(-1, fchmod(self->pool, 0777));

	EXPECT_EQ(0, memcmp(copy, other, POOL_BYTES));
	EXPECT_EQ(0, memcmp(copy, self->base, POOL_BYTES));
	/* A hole in one's own map is one's own. */
	EXPECT_EQ(0, munmap(self->base + UNIT, PAGE));
	EXPECT_EQ(0, memcmp(copy, other, POOL_BYTES));
	munmap(other, POOL_BYTES);
	free(copy);
}

TEST_F(linear, info_tells_where_the_pages_are)
{
	struct omnikv_ioc_pool_create req = pool_request("node1", 2 * UNIT, OMNIKV_CREATE_F_TRANSIENT);
	struct omnikv_ioc_pool_info info;

	req.numa = OMNIKV_NUMA_BIND;
	req.nodes = 2;
	ASSERT_EQ(0, okv_ioctl(self->dev, OMNIKV_IOC_POOL_CREATE, &req));
	ASSERT_EQ(0, pool_info(self->dev, req.pool_fd, &info));
	EXPECT_EQ(0, info.node_bytes[0]);
	EXPECT_EQ(2 * UNIT, info.node_bytes[1]);
	close(req.pool_fd);
	req = pool_request("node9", 2 * UNIT, OMNIKV_CREATE_F_TRANSIENT);
	req.numa = OMNIKV_NUMA_BIND;
	req.nodes = 1 << 9;
	EXPECT_EQ(-EINVAL, okv_ioctl(self->dev, OMNIKV_IOC_POOL_CREATE, &req));
}

TEST_HARNESS_MAIN

// SPDX-License-Identifier: GPL-2.0-only
/*
 * 200 clients killed at random moments while others read. Each reads from a slow disk into memory
 * of its own; what arrives after its death must not land in the next owner's bytes. What was
 * sealed stays, leases end at once, memory comes back, and no killed client stops another.
 *
 * The disk is dm-delay over the NVMe disk where it can be had ("slow"), else the disk itself.
 */
#include "kselftest_harness.h"
#include "okv_test.h"

#include <liburing.h>
#include <sys/ioctl.h>
#include <linux/dm-ioctl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define POOL_BYTES	(16 * UNIT)
#define NR_GRANULES	(POOL_BYTES / PAGE)
#define EXTENT		16u		/* granules: 64 KiB */
#define KILLS		200
#define DISK_BYTE	0xd1		/* what the disk holds, and nobody else writes */

/* A device-mapper table of one delay target, by the control device; busybox has no dmsetup. */
static int dm_command(int control, int number, void *buf)
{
	return ioctl(control, _IOWR(DM_IOCTL, number, struct dm_ioctl), buf);
}

static int slow_disk(void)
{
	static char buf[4096] __attribute__((aligned(8)));
	struct dm_ioctl *dm = (struct dm_ioctl *)buf;
	struct dm_target_spec *spec = (struct dm_target_spec *)(buf + sizeof(*dm));
	int control, disk = open("/dev/nvme0n1", O_RDWR);
	unsigned long long bytes = 0;
	struct stat st;

	if (disk < 0 || ioctl(disk, BLKGETSIZE64, &bytes))
		return -1;
	close(disk);
	/* Where it is built in there is nothing to load; whether it is there the table tells. */
	(void)!system("modprobe dm-delay 2>/dev/null");
	/* misc minor 236 is the mapper's control. */
	mkdir("/dev/mapper", 0755);
	mknod("/dev/mapper/control", S_IFCHR | 0600, makedev(10, 236));
	control = open("/dev/mapper/control", O_RDWR);
	if (control < 0)
		return -1;
#define FRESH() do { memset(buf, 0, sizeof(buf)); dm->version[0] = 4; dm->data_size = sizeof(buf); \
		     dm->data_start = sizeof(*dm); strcpy(dm->name, "slow"); } while (0)
	FRESH();
	dm_command(control, DM_DEV_CREATE_CMD, buf);
	FRESH();
	dm->target_count = 1;
	spec->length = bytes / 512;
	strcpy(spec->target_type, "delay");
	strcpy((char *)(spec + 1), "/dev/nvme0n1 0 60");
	if (dm_command(control, DM_TABLE_LOAD_CMD, buf))
		return -1;
	FRESH();
	if (dm_command(control, DM_DEV_SUSPEND_CMD, buf))
		return -1;
	FRESH();
	if (dm_command(control, DM_DEV_STATUS_CMD, buf))
		return -1;
	mknod("/dev/slow", S_IFBLK | 0600, dm->dev);
	close(control);
	return stat("/dev/slow", &st);
}

static const char *disk_path(void)
{
	static int is_slow = -1;

	if (is_slow < 0)
		is_slow = !slow_disk();
	return is_slow ? "/dev/slow" : "/dev/nvme0n1";
}

/* Reads from the disk into fresh extents of its own, for ever; @is_fixed: registered memory. */
static void victim(const char *disk, bool is_fixed)
{
	int dev = dev_open(), pool = pool_open(dev, "death", 0), fd = open(disk, O_RDONLY | O_DIRECT);
	unsigned char *base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, pool, 0);
	struct iovec iov = { base, POOL_BYTES };
	struct io_uring ring;
	struct io_uring_cqe *cqe;
	int i, files[1] = { dev };

	if (fd < 0 || base == MAP_FAILED || io_uring_queue_init(16, &ring, 0))
		_exit(1);
	/* As the library does: the client ends with its rings. */
	io_uring_register_files(&ring, files, 1);
	if (is_fixed && io_uring_register_buffers(&ring, &iov, 1))
		_exit(2);
	for (;;) {
		struct omnikv_extent exts[8];

		if (op_alloc_list(dev, pool, EXTENT, 0, exts, 8)) {
			sleep_ms(5);
			continue;
		}
		for (i = 0; i < 8; i++) {
			struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
			void *to = base + exts[i].granule * PAGE;

			if (is_fixed)
				io_uring_prep_read_fixed(sqe, fd, to, EXTENT * PAGE, i * EXTENT * PAGE, 0);
			else
				io_uring_prep_read(sqe, fd, to, EXTENT * PAGE, i * EXTENT * PAGE);
		}
		io_uring_submit_and_wait(&ring, 8);
		for (i = 0; i < 8; i++) {
			if (io_uring_wait_cqe(&ring, &cqe))
				_exit(3);
			io_uring_cqe_seen(&ring, cqe);
		}
		op_list(dev, pool, OMNIKV_BATCH_FREE, exts, 8);
	}
}

/* Takes whatever is free, fills it, waits, and looks whether it is still what it wrote. */
static void watcher(int nr)
{
	int dev = dev_open(), pool = pool_open(dev, "death", 0);
	unsigned char *base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, pool, 0);
	unsigned int mine = nr + 1;
	size_t i;

	for (;;) {
		struct omnikv_extent ext;
		unsigned char *at;

		if (op_alloc(dev, pool, EXTENT, 0, &ext)) {
			sleep_ms(2);
			continue;
		}
		at = base + ext.granule * PAGE;
		for (i = 0; i < EXTENT * PAGE; i += 512)
			if (at[i] == DISK_BYTE)
				_exit(10);
		memset(at, mine, EXTENT * PAGE);
		sleep_ms(70);
		for (i = 0; i < EXTENT * PAGE; i++)
			if (at[i] != mine)
				_exit(11);
		if (op_extent(dev, pool, OMNIKV_BATCH_FREE, ext))
			_exit(12);
	}
}

/* Leases what is sealed and compares it, for ever. */
static void reader(struct omnikv_extent *sealed, int nr)
{
	int dev = dev_open(), pool = pool_open(dev, "death", 0), i;
	int win = window_create(dev, pool, OMNIKV_WINDOW_RO, EXTENT * PAGE);
	unsigned char *r = window_map(win, EXTENT * PAGE, PROT_READ);

	for (i = 0;; i = (i + 1) % nr) {
		if (op_extent(dev, pool, OMNIKV_BATCH_LEASE, sealed[i]))
			_exit(20);
		if (op_bind(dev, pool, win, 0, sealed[i], 0, EXTENT * PAGE))
			_exit(21);
		if (r[0] != 0x80 + i || r[EXTENT * PAGE - 1] != 0x80 + i)
			_exit(22);
		if (op_unbind(dev, pool, win, 0, EXTENT * PAGE) ||
		    op_extent(dev, pool, OMNIKV_BATCH_RELEASE, sealed[i]))
			_exit(23);
	}
}

TEST(killed_clients_write_into_nobody_elses_memory)
{
	int dev = dev_open(), pool, disk, i, k, status, kills = 0;
	struct omnikv_extent sealed[16];
	struct omnikv_ioc_pool_info info;
	pid_t victims[4], others[4];
	unsigned char *base, *fill;
	unsigned int seed = 11;

	ASSERT_GE(dev, 0);
	pool = pool_create(dev, "death", POOL_BYTES, OMNIKV_CREATE_F_TRANSIENT);
	ASSERT_GE(pool, 0);
	base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, pool, 0);
	fill = aligned_alloc(PAGE, MIB);
	memset(fill, DISK_BYTE, MIB);
	disk = open("/dev/nvme0n1", O_RDWR | O_DIRECT);
	ASSERT_EQ((ssize_t)MIB, pwrite(disk, fill, MIB, 0));
	TH_LOG("reads from %s", disk_path());
	for (i = 0; i < 16; i++) {
		ASSERT_EQ(0, op_alloc(dev, pool, EXTENT, 0, &sealed[i]));
		memset(base + sealed[i].granule * PAGE, 0x80 + i, EXTENT * PAGE);
	}
	ASSERT_EQ(0, op_list(dev, pool, OMNIKV_BATCH_SEAL, sealed, 16));

	for (i = 0; i < 4; i++) {
		others[i] = fork();
		if (!others[i]) {
			if (i < 3)
				watcher(i);
			reader(sealed, 16);
		}
	}
	memset(victims, 0, sizeof(victims));
	for (k = 0; k < KILLS + 4; k++) {
		i = k % 4;
		if (victims[i]) {
			kill(victims[i], SIGKILL);
			waitpid(victims[i], &status, 0);
			EXPECT_TRUE(WIFSIGNALED(status));
			kills++;
		}
		if (k < KILLS) {
			victims[i] = fork();
			if (!victims[i])
				victim(disk_path(), k % 8 < 4);
		}
		sleep_ms(rand_r(&seed) % 60);
	}
	EXPECT_EQ(KILLS, kills);
	/* The others have never stopped; what they found is their exit status. */
	for (i = 0; i < 4; i++) {
		EXPECT_EQ(0, waitpid(others[i], &status, WNOHANG)) {
			TH_LOG("other %d ended with %d", i, WEXITSTATUS(status));
		}
		kill(others[i], SIGKILL);
		waitpid(others[i], &status, 0);
	}
	/* Everything but what is sealed comes back; a registered one after its rest. */
	for (i = 0; i < 500; i++) {
		ASSERT_EQ(0, pool_info(dev, pool, &info));
		if (info.state_bytes[OMNIKV_EXTENT_FREE] == POOL_BYTES - 16 * EXTENT * PAGE)
			break;
		sleep_ms(10);
	}
	EXPECT_EQ(POOL_BYTES - 16 * EXTENT * PAGE, info.state_bytes[OMNIKV_EXTENT_FREE]);
	EXPECT_EQ(1, info.nr_clients);
	for (i = 0; i < 16; i++) {
		uint32_t refs = 9;

		EXPECT_EQ(OMNIKV_EXTENT_SEALED, op_query(dev, pool, sealed[i], &refs));
		EXPECT_EQ(0, refs);
		EXPECT_EQ(0x80 + i, base[sealed[i].granule * PAGE + 77]);
	}
	close(disk);
	close(pool);
	close(dev);
}

/* The old manager is stopped, its successor takes over, and it wakes up. */
TEST(stopped_manager_is_fenced_when_it_wakes)
{
	int dev = dev_open(), pool, status, to[2];
	struct omnikv_extent meta = { 0 };
	unsigned char *base;
	uint32_t epoch;
	pid_t pid;

	pool = pool_create(dev, "fence", 2 * UNIT, OMNIKV_CREATE_F_TRANSIENT);
	ASSERT_GE(pool, 0);
	base = mmap(NULL, 2 * UNIT, PROT_READ | PROT_WRITE, MAP_SHARED, pool, 0);
	ASSERT_EQ(0, pipe(to));
	pid = fork();
	if (!pid) {
		int dev2 = dev_open(), win;
		volatile unsigned char *m;
		struct omnikv_batch_op op;

		faults_catch();
		if (pool_manage(dev2, pool, 0, &epoch) || op_alloc(dev2, pool, 1, OMNIKV_BATCH_ALLOC_F_META, &meta))
			_exit(1);
		win = window_create(dev2, pool, OMNIKV_WINDOW_META, PAGE);
		m = window_map(win, PAGE, PROT_READ | PROT_WRITE);
		if (op_bind(dev2, pool, win, 0, meta, 0, PAGE))
			_exit(2);
		m[0] = 1;
		if (write(to[1], &meta, sizeof(meta)) != sizeof(meta))
			_exit(3);
		raise(SIGSTOP);
		/* A store, a call with the epoch, a call without. */
		if (poke(m, 2) != -SIGBUS)
			_exit(4);
		op = (struct omnikv_batch_op) { .opcode = OMNIKV_BATCH_FREE, .extent = meta };
		if (one(dev2, pool, epoch, &op) != -ESTALE)
			_exit(5);
		if (one(dev2, pool, 0, &op) != -EPERM)
			_exit(6);
		_exit(0);
	}
	ASSERT_EQ((ssize_t)sizeof(meta), read(to[0], &meta, sizeof(meta)));
	waitpid(pid, &status, WUNTRACED);
	ASSERT_TRUE(WIFSTOPPED(status));
	EXPECT_EQ(-EBUSY, pool_manage(dev, pool, 0, &epoch));
	ASSERT_EQ(0, pool_manage(dev, pool, OMNIKV_MANAGE_F_FORCE, &epoch));
	kill(pid, SIGCONT);
	waitpid(pid, &status, 0);
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	EXPECT_EQ(1, base[meta.granule * PAGE]);
	close(pool);
	close(dev);
}

TEST_HARNESS_MAIN

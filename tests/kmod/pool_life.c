// SPDX-License-Identifier: GPL-2.0-only
/*
 * Pools as their creators and administrators see them: names, owners and modes, budgets taken by
 * several processes at once, transient pools whose owners are killed.
 */
#include "kselftest_harness.h"
#include "okv_test.h"

#include <grp.h>

FIXTURE(pools)
{
	int dev;
	uint64_t used;		/* by pools of others */
};

FIXTURE_SETUP(pools)
{
	struct omnikv_ioc_query query = { 0 };

	self->dev = dev_open();
	ASSERT_GE(self->dev, 0);
	ASSERT_EQ(0, okv_ioctl(self->dev, OMNIKV_IOC_QUERY, &query));
	self->used = query.used_bytes;
}

FIXTURE_TEARDOWN(pools)
{
	close(self->dev);
}

static void parameter(const char *name, unsigned long value)
{
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "/sys/module/omnikv/parameters/%s", name);
	file = fopen(path, "w");
	if (file) {
		fprintf(file, "%lu", value);
		fclose(file);
	}
}

static long parameter_of(const char *name)
{
	char path[128];
	FILE *file;
	long value = -1;

	snprintf(path, sizeof(path), "/sys/module/omnikv/parameters/%s", name);
	file = fopen(path, "r");
	if (file) {
		if (fscanf(file, "%ld", &value) != 1)
			value = -1;
		fclose(file);
	}
	return value;
}

/* Run @fn as nobody in a child; its result. */
static int as_nobody(int (*fn)(int arg), int arg)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		if (setgroups(0, NULL) || setresgid(65534, 65534, 65534) || setresuid(65534, 65534, 65534))
			_exit(99);
		_exit(fn(arg));
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

TEST_F(pools, names_are_checked)
{
	static const char *const bad[] = { "", ".", "..", "a/b", "a b", "a\n", "\xc3\xa4", "a:b" };
	struct omnikv_ioc_pool_create req;
	size_t i;
	int fd;

	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		EXPECT_EQ(-EINVAL, pool_create(self->dev, bad[i], UNIT, OMNIKV_CREATE_F_TRANSIENT));
	req = pool_request("aaaaaaaaaabbbbbbbbbbccccccccccddd", UNIT, 0);
	EXPECT_EQ(-EINVAL, okv_ioctl(self->dev, OMNIKV_IOC_POOL_CREATE, &req));
	req = pool_request("ok", UNIT, 0);
	req.name[20] = 'x';
	EXPECT_EQ(-EINVAL, okv_ioctl(self->dev, OMNIKV_IOC_POOL_CREATE, &req));
	fd = pool_create(self->dev, "A-z_0.9aaaaaaaaaaaaaaaaaaaaaaaaa", UNIT, OMNIKV_CREATE_F_TRANSIENT);
	EXPECT_GE(fd, 0);
	EXPECT_EQ(-EEXIST, pool_create(self->dev, "A-z_0.9aaaaaaaaaaaaaaaaaaaaaaaaa", UNIT, 0));
	close(fd);
	EXPECT_EQ(-ENOENT, pool_open(self->dev, "A-z_0.9aaaaaaaaaaaaaaaaaaaaaaaaa", 0));
}

TEST_F(pools, sizes_are_checked)
{
	struct omnikv_ioc_pool_create req;

	EXPECT_EQ(-EINVAL, pool_create(self->dev, "s", 0, 0));
	EXPECT_EQ(-EINVAL, pool_create(self->dev, "s", UNIT - PAGE, 0));
	EXPECT_EQ(-EINVAL, pool_create(self->dev, "s", UNIT + 1, 0));
	req = pool_request("s", UNIT, 0);
	req.granule_bytes = 4097;
	EXPECT_EQ(-EINVAL, okv_ioctl(self->dev, OMNIKV_IOC_POOL_CREATE, &req));
	req.granule_bytes = 2 * UNIT;
	EXPECT_EQ(-EINVAL, okv_ioctl(self->dev, OMNIKV_IOC_POOL_CREATE, &req));
	/* More than there is, and more than there could be. */
	EXPECT_EQ(-EDQUOT, pool_create(self->dev, "s", 1ULL << 40, 0));
	EXPECT_LT(pool_create(self->dev, "s", ~0ULL << 21, 0), 0);
	EXPECT_EQ(-ENOENT, pool_open(self->dev, "s", 0));
}

static int try_open(int unused)
{
	int dev = dev_open(), fd;

	if (dev < 0)
		return 90;
	fd = pool_open(dev, "mode", 0);
	return fd < 0 ? -fd : 0;
}

static int try_admin(int pool)
{
	int dev = dev_open();
	struct omnikv_ioc_pool_chown chown = { .pool_fd = pool, .uid = 65534, .gid = 65534, .mode = 0666 };
	struct omnikv_ioc_client_revoke revoke = { .pool_fd = pool, .id = 1 };

	/* The descriptor came with fork: it is a capability to attach, and no more. */
	if (pool_destroy(dev, pool, OMNIKV_DESTROY_F_FORCE) != -EPERM)
		return 1;
	if (pool_manage(dev, pool, OMNIKV_MANAGE_F_FORCE, NULL) != -EPERM)
		return 2;
	if (okv_ioctl(dev, OMNIKV_IOC_POOL_CHOWN, &chown) != -EPERM)
		return 3;
	if (okv_ioctl(dev, OMNIKV_IOC_CLIENT_REVOKE, &revoke) != -EPERM)
		return 4;
	if (pool_create(dev, "mine", UNIT, 0) != -EPERM)
		return 5;
	return 0;
}

TEST_F(pools, owner_and_mode_decide_who_opens)
{
	int pool = pool_create(self->dev, "mode", UNIT, OMNIKV_CREATE_F_TRANSIENT);
	struct omnikv_ioc_pool_chown chown = { .pool_fd = pool, .uid = 0, .gid = 0, .mode = 0666 };

	ASSERT_GE(pool, 0);
	EXPECT_EQ(EACCES, as_nobody(try_open, 0));
	EXPECT_EQ(0, as_nobody(try_admin, pool));
	ASSERT_EQ(0, okv_ioctl(self->dev, OMNIKV_IOC_POOL_CHOWN, &chown));
	EXPECT_EQ(0, as_nobody(try_open, 0));
	chown.mode = 0664;
	ASSERT_EQ(0, okv_ioctl(self->dev, OMNIKV_IOC_POOL_CHOWN, &chown));
	EXPECT_EQ(EACCES, as_nobody(try_open, 0));
	chown.mode = 0660;
	chown.gid = 65534;
	ASSERT_EQ(0, okv_ioctl(self->dev, OMNIKV_IOC_POOL_CHOWN, &chown));
	EXPECT_EQ(0, as_nobody(try_open, 0));
	chown.mode = 0600;
	chown.gid = 0;
	chown.uid = 65534;
	ASSERT_EQ(0, okv_ioctl(self->dev, OMNIKV_IOC_POOL_CHOWN, &chown));
	EXPECT_EQ(0, as_nobody(try_open, 0));
	chown.mode = 01600;
	EXPECT_EQ(-EINVAL, okv_ioctl(self->dev, OMNIKV_IOC_POOL_CHOWN, &chown));
	close(pool);
}

static int user_pools(int unused)
{
	int dev = dev_open();

	if (pool_create(dev, "u1", 2 * UNIT, OMNIKV_CREATE_F_TRANSIENT) < 0)
		return 1;
	if (pool_create(dev, "u2", UNIT, OMNIKV_CREATE_F_TRANSIENT) != -EDQUOT)
		return 2;
	return 0;
}

TEST_F(pools, users_have_a_budget_of_their_own)
{
	parameter("user_bytes", 2 * UNIT);
	EXPECT_EQ(0, as_nobody(user_pools, 0));
	/* It went with its process. */
	EXPECT_EQ(0, as_nobody(user_pools, 0));
	parameter("user_bytes", 0);
}

/* Four ask for 40 % each at the same moment: two get it. */
TEST_F(pools, budget_is_taken_from_one_ledger)
{
	long limit = parameter_of("limit_bytes");
	int gate[2], asked[2], end[2], i, got = 0, refused = 0, status;
	struct omnikv_ioc_query query = { 0 };
	pid_t pids[4];
	char byte;

	ASSERT_EQ(0, okv_ioctl(self->dev, OMNIKV_IOC_QUERY, &query));
	parameter("limit_bytes", query.used_bytes + 20 * UNIT);
	ASSERT_EQ(0, pipe(gate));
	ASSERT_EQ(0, pipe(asked));
	ASSERT_EQ(0, pipe(end));
	for (i = 0; i < 4; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			int dev = dev_open(), fd;
			char name[16];

			close(gate[1]);
			close(end[1]);
			if (read(gate[0], &byte, 1) != 0)
				_exit(9);
			snprintf(name, sizeof(name), "forty%d", i);
			fd = pool_create(dev, name, 8 * UNIT, OMNIKV_CREATE_F_TRANSIENT);
			/* Whoever has a pool keeps it until all have asked. */
			if (write(asked[1], "", 1) != 1 || read(end[0], &byte, 1) != 0)
				_exit(7);
			_exit(fd >= 0 ? 0 : fd == -EDQUOT ? 1 : 8);
		}
	}
	close(gate[0]);
	close(gate[1]);
	for (i = 0; i < 4; i++)
		ASSERT_EQ(1, read(asked[0], &byte, 1));
	close(end[1]);
	for (i = 0; i < 4; i++) {
		waitpid(pids[i], &status, 0);
		got += WIFEXITED(status) && WEXITSTATUS(status) == 0;
		refused += WIFEXITED(status) && WEXITSTATUS(status) == 1;
	}
	close(asked[0]);
	close(asked[1]);
	close(end[0]);
	EXPECT_EQ(2, got);
	EXPECT_EQ(2, refused);
	parameter("limit_bytes", limit);
}

TEST_F(pools, killed_owners_leave_nothing_behind)
{
	long huge = kb_of("/proc/meminfo", "ShmemHugePages", 0);
	struct omnikv_ioc_query query = { 0 };
	int i, k, ready[2], status, starts = 0;
	char byte;

	for (i = 0; i < 50; i++) {
		pid_t pids[3];
		int nr = i % 3 ? 1 : 3;

		ASSERT_EQ(0, pipe(ready));
		for (k = 0; k < nr; k++) {
			pids[k] = fork();
			if (!pids[k]) {
				struct omnikv_extent ext;
				int dev = dev_open(), fd = -1, try;

				if (!k)
					fd = pool_create(dev, "fixed", 8 * UNIT, OMNIKV_CREATE_F_TRANSIENT);
				for (try = 0; k && fd < 0 && try < 2000; try++) {
					fd = pool_open(dev, "fixed", 0);
					sleep_ms(1);
				}
				if (fd < 0 || op_alloc(dev, fd, 64, 0, &ext) || write(ready[1], "", 1) != 1)
					_exit(1);
				for (;;)
					pause();
			}
		}
		close(ready[1]);
		for (k = 0; k < nr; k++)
			starts += read(ready[0], &byte, 1) == 1;
		close(ready[0]);
		for (k = 0; k < nr; k++)
			kill(pids[(k + i) % nr], SIGKILL);
		for (k = 0; k < nr; k++)
			waitpid(pids[k], &status, 0);
	}
	EXPECT_EQ(50 + 2 * 17, starts);
	for (i = 0; i < 1000 && kb_of("/proc/meminfo", "ShmemHugePages", 0) != huge; i++)
		sleep_ms(10);
	EXPECT_EQ(huge, kb_of("/proc/meminfo", "ShmemHugePages", 0));
	ASSERT_EQ(0, okv_ioctl(self->dev, OMNIKV_IOC_QUERY, &query));
	EXPECT_EQ(self->used, query.used_bytes);
}

/* As above, but killed at a random moment of its work, creation included. */
TEST_F(pools, owners_killed_at_random_moments_leave_nothing_behind)
{
	long huge = kb_of("/proc/meminfo", "ShmemHugePages", 0);
	struct omnikv_ioc_query query = { 0 };
	unsigned int seed = 7;
	int i, status;

	for (i = 0; i < 30; i++) {
		pid_t pid = fork();

		if (!pid) {
			for (;;) {
				int dev = dev_open(), pool, win;
				struct omnikv_extent ext;
				unsigned char *w;

				pool = pool_create(dev, "random", 16 * UNIT, OMNIKV_CREATE_F_TRANSIENT);
				win = window_create(dev, pool, OMNIKV_WINDOW_RW, UNIT);
				w = window_map(win, UNIT, PROT_READ | PROT_WRITE);
				if (!op_alloc(dev, pool, 512, 0, &ext) && !op_bind(dev, pool, win, 0, ext, 0, UNIT))
					memset(w, 1, UNIT);
				close(win);
				munmap(w, UNIT);
				close(pool);
				close(dev);
			}
		}
		sleep_ms(rand_r(&seed) % 120);
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
	}
	for (i = 0; i < 1000 && kb_of("/proc/meminfo", "ShmemHugePages", 0) != huge; i++)
		sleep_ms(10);
	EXPECT_EQ(huge, kb_of("/proc/meminfo", "ShmemHugePages", 0));
	ASSERT_EQ(0, okv_ioctl(self->dev, OMNIKV_IOC_QUERY, &query));
	EXPECT_EQ(self->used, query.used_bytes);
}

TEST_F(pools, descriptor_of_another_process_lets_it_attach)
{
	int pool = pool_create(self->dev, "cap", UNIT, OMNIKV_CREATE_F_TRANSIENT), status;
	struct omnikv_extent ext;
	pid_t pid;

	ASSERT_GE(pool, 0);
	pid = fork();
	if (!pid) {
		/* The control file of the parent is not this process's client. */
		if (op_alloc(self->dev, pool, 1, 0, &ext) != -EPERM)
			_exit(1);
		_exit(op_alloc(dev_open(), pool, 1, 0, &ext) ? 2 : 0);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(0, WEXITSTATUS(status));
	close(pool);
}

TEST_HARNESS_MAIN

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Clients killed at every point of what they do. A process that dies holding a lock, or half-way
 * through a change, must not stop the others or leave anything behind; a pool's owner killed in
 * whatever it was at, with a second user that outlives it, must not leave a page behind.
 *
 * A point is a moment of the victim's own processor time: the script that it runs is the same each
 * time, so that 200 points spread over its length meet it between its calls and inside them.
 */
#include "kselftest_harness.h"
#include "okv_test.h"

#include <linux/fs.h>

#define POOL_BYTES	(8 * UNIT)
#define NR_GRANULES	(POOL_BYTES / PAGE)
#define POINTS		200
#define ROUNDS		2		/* of the script in a client's life */
#define STALL_MS	10000		/* the others make a step within a second; guests are slow */
#define NR_EXTENTS	64

/* ---- the victim ----------------------------------------------------------------------- */

/* Every call that takes a lock of the pool, once or many times. */
static int script(int dev, int pool, int win, unsigned char *w, unsigned char *base)
{
	struct omnikv_batch_op ops[NR_EXTENTS];
	struct omnikv_extent exts[NR_EXTENTS];
	struct omnikv_extent_entry entries[NR_EXTENTS];
	struct omnikv_ioc_extent_list list = {
		.pool_fd = pool, .states = 1 << OMNIKV_EXTENT_PRIVATE, .count = NR_EXTENTS,
		.entries = (uintptr_t)entries,
	};
	struct omnikv_ioc_pool_info info;
	int i, ro;

	if (op_alloc_list(dev, pool, 2, 0, exts, NR_EXTENTS))
		return -1;
	for (i = 0; i < NR_EXTENTS; i++) {
		ops[i] = bind_op(win, i * 2 * PAGE, exts[i], 0, 2 * PAGE);
		ops[i].flags = i & 1 ? OMNIKV_BATCH_BIND_F_LAZY : 0;
	}
	if (batch(dev, pool, 0, ops, NR_EXTENTS) != NR_EXTENTS)
		return -2;
	for (i = 0; i < NR_EXTENTS; i++)
		w[i * 2 * PAGE] = i;
	if (op_list(dev, pool, OMNIKV_BATCH_IO_GET, exts, 8))
		return -3;
	memset(base + exts[0].granule * PAGE, 1, PAGE);
	if (op_list(dev, pool, OMNIKV_BATCH_IO_PUT, exts, 8) || pool_info(dev, pool, &info) ||
	    okv_ioctl(dev, OMNIKV_IOC_EXTENT_LIST, &list))
		return -4;
	op_unbind(dev, pool, win, 0, 16 * PAGE);
	if (op_list(dev, pool, OMNIKV_BATCH_SEAL, exts, NR_EXTENTS / 2))
		return -5;
	/* The manager may have freed them by now, or do so before the bind. */
	if (!op_list(dev, pool, OMNIKV_BATCH_LEASE, exts, NR_EXTENTS / 2)) {
		ro = window_create(dev, pool, OMNIKV_WINDOW_RO, 2 * PAGE);
		if (ro < 0)
			return -6;
		op_bind(dev, pool, ro, 0, exts[0], 0, 2 * PAGE);
		close(ro);
		if (op_list(dev, pool, OMNIKV_BATCH_RELEASE, exts, NR_EXTENTS / 2))
			return -7;
	}
	return op_list(dev, pool, OMNIKV_BATCH_FREE, exts + NR_EXTENTS / 2, NR_EXTENTS / 2) ? -8 : 0;
}

static int live_once(void)
{
	int dev = dev_open(), pool = pool_open(dev, "anywhere", 0), win, i, ret = 0;
	unsigned char *w, *base;

	base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, pool, 0);
	win = window_create(dev, pool, OMNIKV_WINDOW_RW, NR_EXTENTS * 2 * PAGE);
	w = window_map(win, NR_EXTENTS * 2 * PAGE, PROT_READ | PROT_WRITE);
	if (base == MAP_FAILED || w == MAP_FAILED)
		return -31;
	for (i = 0; i < ROUNDS && ret >= -1; i++)
		ret = script(dev, pool, win, w, base);
	munmap(w, NR_EXTENTS * 2 * PAGE);
	munmap(base, POOL_BYTES);
	close(win);
	close(pool);
	close(dev);
	/* -1: the pool was full for a moment. */
	return ret < -1 ? ret : 0;
}

/* Lives until it has used so much time; attaching and ending are points too. 0: once, and tells how much that was. */
static void victim(long kill_at_ns, long *spent_ns)
{
	struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL };
	struct itimerspec when = { .it_value = { kill_at_ns / 1000000000, kill_at_ns % 1000000000 } };
	struct timespec now;
	timer_t timer;
	int ret;

	if (kill_at_ns && (timer_create(CLOCK_PROCESS_CPUTIME_ID, &event, &timer) || timer_settime(timer, 0, &when, NULL)))
		_exit(30);
	do {
		ret = live_once();
	} while (!ret && kill_at_ns);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
	*spent_ns = now.tv_sec * 1000000000 + now.tv_nsec;
	_exit(-ret);
}

/* ---- the others ----------------------------------------------------------------------- */

/* What they tell of themselves; their own pages, and none of the pool's. */
struct told {
	volatile long	steps[2];
};

/* Manages the pool: what is sealed it frees, whoever has sealed it. */
static void manager(struct told *told)
{
	static struct omnikv_extent_entry entries[512];
	int dev = dev_open(), pool = pool_open(dev, "anywhere", 0);
	uint32_t i;

	if (pool_manage(dev, pool, 0, NULL))
		_exit(20);
	for (;; told->steps[0]++) {
		struct omnikv_ioc_extent_list list = {
			.pool_fd = pool, .states = 1 << OMNIKV_EXTENT_SEALED, .count = 512,
			.entries = (uintptr_t)entries,
		};

		if (okv_ioctl(dev, OMNIKV_IOC_EXTENT_LIST, &list))
			_exit(21);
		for (i = 0; i < list.count; i++)
			if (op_extent(dev, pool, OMNIKV_BATCH_FREE, entries[i].extent))
				_exit(22);
	}
}

/* An engine of its own: what it has written it finds. */
static void engine(struct told *told)
{
	int dev = dev_open(), pool = pool_open(dev, "anywhere", 0);
	int win = window_create(dev, pool, OMNIKV_WINDOW_RW, 4 * PAGE);
	unsigned char *w = window_map(win, 4 * PAGE, PROT_READ | PROT_WRITE);
	struct omnikv_extent ext;
	int i;

	for (;; told->steps[1]++) {
		/* Full for a moment, where victims have much that rests. */
		if (op_alloc(dev, pool, 4, 0, &ext)) {
			sleep_ms(1);
			continue;
		}
		if (op_bind(dev, pool, win, 0, ext, 0, 4 * PAGE))
			_exit(10);
		for (i = 0; i < 4; i++)
			if (w[i * PAGE])
				_exit(11);
		memset(w, 0xe1, 4 * PAGE);
		sleep_ms(1);
		for (i = 0; i < 4 * (int)PAGE; i += 64)
			if (w[i] != 0xe1)
				_exit(12);
		if (op_extent(dev, pool, OMNIKV_BATCH_FREE, ext))
			_exit(13);
	}
}

static bool have_stepped(struct told *told, const long *from)
{
	int i;

	for (i = 0; i < STALL_MS / 2; i++) {
		if (told->steps[0] > from[0] && told->steps[1] > from[1])
			return true;
		sleep_ms(2);
	}
	return false;
}

TEST(victims_killed_at_200_points_stop_nobody_and_leave_nothing)
{
	int dev = dev_open(), pool, status, i, killed = 0;
	struct omnikv_ioc_pool_info info;
	struct told *told;
	long *spent, length, from[2];
	pid_t others[2], pid;
	uint64_t sum = 0;

	pool = pool_create(dev, "anywhere", POOL_BYTES, OMNIKV_CREATE_F_TRANSIENT);
	ASSERT_GE(pool, 0);
	told = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	spent = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	/* How long the script is, with nobody beside it. */
	pid = fork();
	if (!pid)
		victim(0, spent);
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	ASSERT_EQ(0, status);
	length = *spent;

	for (i = 0; i < 2; i++) {
		others[i] = fork();
		if (!others[i]) {
			if (!i)
				manager(told);
			engine(told);
		}
	}
	from[0] = from[1] = 0;
	ASSERT_TRUE(have_stepped(told, from));
	for (i = 0; i < POINTS; i++) {
		long at = length / POINTS * i + length / (2 * POINTS);

		pid = fork();
		if (!pid)
			victim(at, spent);
		ASSERT_EQ(pid, waitpid(pid, &status, 0));
		killed += WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
		if (WIFEXITED(status)) {
			TH_LOG("victim %d ended with %d", i, WEXITSTATUS(status));
		}
		from[0] = told->steps[0];
		from[1] = told->steps[1];
		if (!have_stepped(told, from)) {
			TH_LOG("after point %d the manager made %ld steps, the engine %ld", i,
			       told->steps[0] - from[0], told->steps[1] - from[1]);
			ASSERT_TRUE(false);
		}
	}
	TH_LOG("points up to %ld us", length / 1000);
	EXPECT_EQ(POINTS, killed);
	/* The last sealed extents are the manager's to free. */
	for (i = 0; i < 500; i++) {
		ASSERT_EQ(0, pool_info(dev, pool, &info));
		if (!info.state_bytes[OMNIKV_EXTENT_SEALED] && !info.state_bytes[OMNIKV_EXTENT_QUARANTINED])
			break;
		sleep_ms(10);
	}
	for (i = 0; i < 2; i++) {
		EXPECT_EQ(0, waitpid(others[i], &status, WNOHANG)) {
			TH_LOG("other %d ended with %d", i, WEXITSTATUS(status));
		}
		kill(others[i], SIGKILL);
		waitpid(others[i], &status, 0);
	}
	for (i = 0; i < 500; i++) {
		ASSERT_EQ(0, pool_info(dev, pool, &info));
		if (info.state_bytes[OMNIKV_EXTENT_FREE] == POOL_BYTES)
			break;
		sleep_ms(10);
	}
	for (i = 0; i < OMNIKV_EXTENT_NR_STATES; i++)
		sum += info.state_bytes[i];
	EXPECT_EQ(POOL_BYTES, sum);
	EXPECT_EQ(POOL_BYTES, info.state_bytes[OMNIKV_EXTENT_FREE]);
	EXPECT_EQ(1, info.nr_extents[OMNIKV_EXTENT_FREE]);
	EXPECT_EQ(0, info.nr_clients);
	/* Another may manage it: nothing is left of who did. */
	EXPECT_EQ(0, pool_manage(dev, pool, 0, NULL));
	close(pool);
	close(dev);
}

/* ---- owners, with a second user that is killed last ----------------------------------- */

enum phase { CREATING, ATTACHING, TRANSFERRING, DESTROYING, NR_PHASES };

static const char *const phase_names[] = { "creation", "attaching", "a transfer", "destruction" };

/* Loops over one kind of work on a pool that it makes; tells when the pool is there. */
static void owner(enum phase phase, int tell)
{
	int dev = dev_open(), pool = -1, disk = open("/dev/nvme0n1", O_RDONLY | O_DIRECT), k;
	struct omnikv_extent ext;
	unsigned char *base;

	if (phase == CREATING) {
		for (;;) {
			pool = pool_create(dev, "owned", POOL_BYTES, OMNIKV_CREATE_F_TRANSIENT);
			close(pool);
		}
	}
	for (k = 0;; k++) {
		if (pool < 0)
			pool = pool_create(dev, "owned", POOL_BYTES, OMNIKV_CREATE_F_TRANSIENT);
		if (pool < 0) {
			/* The second user still has the one before. */
			sleep_ms(1);
			continue;
		}
		if (!k && write(tell, "", 1) != 1)
			_exit(1);
		if (phase == DESTROYING) {
			pool_destroy(dev, pool, OMNIKV_DESTROY_F_FORCE);
			close(pool);
			pool = -1;
			continue;
		}
		if (phase == ATTACHING) {
			int other = dev_open();

			op_alloc(other, pool, 16, 0, &ext);
			close(other);
			continue;
		}
		base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, pool, 0);
		if (!op_alloc(dev, pool, 256, 0, &ext)) {
			op_extent(dev, pool, OMNIKV_BATCH_IO_GET, ext);
			if (pread(disk, base + ext.granule * PAGE, 256 * PAGE, 0) < 0)
				_exit(2);
			op_extent(dev, pool, OMNIKV_BATCH_IO_PUT, ext);
			op_extent(dev, pool, OMNIKV_BATCH_FREE, ext);
		}
		munmap(base, POOL_BYTES);
	}
}

/* A user of whatever pool of that name there is, for as long as it can. */
static void second(void)
{
	for (;;) {
		int dev = dev_open(), pool = -1, i;
		struct omnikv_extent ext;
		void *base;

		while (pool < 0) {
			pool = pool_open(dev, "owned", 0);
			sleep_ms(1);
		}
		base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, pool, 0);
		for (i = 0; i < 20 && !op_alloc(dev, pool, 8, 0, &ext); i++) {
			memset((char *)base + ext.granule * PAGE, 2, 8 * PAGE);
			sleep_ms(1);
		}
		munmap(base, POOL_BYTES);
		close(pool);
		close(dev);
	}
}

/* The pid that the module names as holding the pool, or 0. */
static int holder(int dev)
{
	struct omnikv_client_entry entries[8];
	struct omnikv_ioc_client_list list = { .count = 8, .entries = (uintptr_t)entries };
	int pid = 0;

	list.pool_fd = pool_open(dev, "owned", 0);
	if (list.pool_fd < 0)
		return 0;
	if (!okv_ioctl(dev, OMNIKV_IOC_CLIENT_LIST, &list) && list.count)
		pid = entries[0].pid;
	close(list.pool_fd);
	return pid;
}

TEST(owners_killed_in_each_phase_leave_no_page_behind_their_last_user)
{
	long huge = kb_of("/proc/meminfo", "ShmemHugePages", 0), now = 0;
	int dev = dev_open(), i, k, status, named = 0, tell[2];
	struct omnikv_ioc_query before = { 0 }, query = { 0 };
	unsigned int seed = 5;
	char byte;

	ASSERT_EQ(0, okv_ioctl(dev, OMNIKV_IOC_QUERY, &before));
	for (i = 0; i < 32; i++) {
		enum phase phase = i % NR_PHASES;
		pid_t pids[2];

		ASSERT_EQ(0, pipe(tell));
		pids[0] = fork();
		if (!pids[0])
			owner(phase, tell[1]);
		pids[1] = fork();
		if (!pids[1])
			second();
		if (phase != CREATING) {
			ASSERT_EQ(1, read(tell[0], &byte, 1));
		}
		sleep_ms(rand_r(&seed) % 50);
		/* Whoever the module names lives and is one of the two. */
		for (k = 0; phase == TRANSFERRING && k < 5000; k++) {
			int pid = holder(dev);

			if (pid == pids[0] || pid == pids[1]) {
				named++;
				break;
			}
			EXPECT_EQ(0, pid);
			sleep_ms(2);
		}
		kill(pids[0], SIGKILL);
		ASSERT_EQ(pids[0], waitpid(pids[0], &status, 0));
		EXPECT_TRUE(WIFSIGNALED(status));
		sleep_ms(rand_r(&seed) % 20);
		kill(pids[1], SIGKILL);
		ASSERT_EQ(pids[1], waitpid(pids[1], &status, 0));
		close(tell[0]);
		close(tell[1]);
		for (k = 0; k < 1000; k++) {
			now = kb_of("/proc/meminfo", "ShmemHugePages", 0);
			if (now == huge)
				break;
			sleep_ms(10);
		}
		EXPECT_EQ(huge, now) {
			TH_LOG("killed in %s, round %d", phase_names[phase], i);
		}
	}
	EXPECT_EQ(8, named);
	ASSERT_EQ(0, okv_ioctl(dev, OMNIKV_IOC_QUERY, &query));
	EXPECT_EQ(before.used_bytes, query.used_bytes);
	close(dev);
}

TEST_HARNESS_MAIN

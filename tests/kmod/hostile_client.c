// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a client may try against the module, its pool and its neighbours. Results are those of
 * omnikv.4; that the kernel says nothing about it is the runner's to see.
 */
#include "kselftest_harness.h"
#include "okv_test.h"

#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/uio.h>

#define POOL_BYTES	(8 * UNIT)
#define WIN_BYTES	(2 * MIB)

FIXTURE(hostile)
{
	int dev, pool, win, ro;
	unsigned char *base, *w, *r;
	struct omnikv_extent ext, sealed;
};

FIXTURE_SETUP(hostile)
{
	faults_catch();
	self->dev = dev_open();
	ASSERT_GE(self->dev, 0);
	self->pool = pool_create(self->dev, "h", POOL_BYTES, OMNIKV_CREATE_F_TRANSIENT);
	ASSERT_GE(self->pool, 0);
	self->base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, self->pool, 0);
	self->win = window_create(self->dev, self->pool, OMNIKV_WINDOW_RW, WIN_BYTES);
	self->ro = window_create(self->dev, self->pool, OMNIKV_WINDOW_RO, WIN_BYTES);
	self->w = window_map(self->win, WIN_BYTES, PROT_READ | PROT_WRITE);
	self->r = window_map(self->ro, WIN_BYTES, PROT_READ);
	ASSERT_NE(MAP_FAILED, (void *)self->w);
	ASSERT_EQ(0, op_alloc(self->dev, self->pool, 16, 0, &self->ext));
	ASSERT_EQ(0, op_alloc(self->dev, self->pool, 16, 0, &self->sealed));
	memset(self->base + self->sealed.granule * PAGE, 0x77, 16 * PAGE);
	ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_SEAL, self->sealed));
	ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_LEASE, self->sealed));
	ASSERT_EQ(0, op_bind(self->dev, self->pool, self->win, 0, self->ext, 0, 16 * PAGE));
	ASSERT_EQ(0, op_bind(self->dev, self->pool, self->ro, 0, self->sealed, 0, 16 * PAGE));
	EXPECT_EQ(0x77, peek(self->r));
}

FIXTURE_TEARDOWN(hostile)
{
	munmap(self->base, POOL_BYTES);
	munmap(self->w, WIN_BYTES);
	munmap(self->r, WIN_BYTES);
	close(self->win);
	close(self->ro);
	close(self->pool);
	close(self->dev);
}

TEST_F(hostile, advice_does_not_take_pages_away)
{
	static const int advices[] = {
		MADV_DONTNEED, MADV_REMOVE, MADV_FREE, MADV_HUGEPAGE, MADV_NOHUGEPAGE, MADV_MERGEABLE,
		20 /* COLD */, 21 /* PAGEOUT */, 22 /* POPULATE_READ */, 23 /* POPULATE_WRITE */,
		25 /* COLLAPSE */, MADV_SEQUENTIAL, MADV_WILLNEED, MADV_DODUMP, MADV_DOFORK,
	};
	size_t i;

	memset(self->w, 0x55, 16 * PAGE);
	for (i = 0; i < sizeof(advices) / sizeof(advices[0]); i++) {
		madvise(self->w, WIN_BYTES, advices[i]);
		madvise(self->w, PAGE, advices[i]);
		madvise(self->r, WIN_BYTES, advices[i]);
		madvise(self->base, UNIT, advices[i]);
		EXPECT_EQ(0x55, peek(self->w + 5 * PAGE));
		EXPECT_EQ(0x77, peek(self->r + 5 * PAGE));
		EXPECT_EQ(0x55, peek(self->base + (self->ext.granule + 5) * PAGE));
	}
	mlock(self->w, WIN_BYTES);
	mlock(self->base, UNIT);
	munlock(self->w, WIN_BYTES);
	EXPECT_EQ(0x55, peek(self->w + 5 * PAGE));
}

TEST_F(hostile, userfaultfd_cannot_serve_a_window)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = {
		.range = { (uintptr_t)self->w, WIN_BYTES }, .mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	if (fd < 0)
		SKIP(return, "no userfaultfd");
	ASSERT_EQ(0, ioctl(fd, UFFDIO_API, &api));
	EXPECT_EQ(-1, ioctl(fd, UFFDIO_REGISTER, &reg));
	reg.range.start = (uintptr_t)self->base;
	reg.range.len = UNIT;
	/* The linear map is tmpfs's, which allows it on some kernels; pages that are there stay. */
	if (!ioctl(fd, UFFDIO_REGISTER, &reg)) {
		struct uffdio_zeropage zero = { .range = { (uintptr_t)self->base, PAGE } };

		EXPECT_EQ(-1, ioctl(fd, UFFDIO_ZEROPAGE, &zero));
	}
	close(fd);
	EXPECT_EQ(0x77, self->base[self->sealed.granule * PAGE]);
}

TEST_F(hostile, another_process_cannot_write_a_sealed_extent_by_a_window)
{
	unsigned char byte = 0x99;
	struct iovec local = { &byte, 1 }, remote = { self->r, 1 };
	int status, fd;
	pid_t parent = getpid(), pid;
	char path[64];

	fd = open("/proc/self/mem", O_RDWR);
	ASSERT_GE(fd, 0);
	/* Writing by force makes a copy in private mappings only, and this is none. */
	EXPECT_EQ(-1, pwrite(fd, &byte, 1, (off_t)(uintptr_t)self->r));
	EXPECT_EQ(1, pread(fd, &byte, 1, (off_t)(uintptr_t)self->r));
	EXPECT_EQ(0x77, byte);
	EXPECT_EQ(1, pwrite(fd, &byte, 1, (off_t)(uintptr_t)self->w));
	close(fd);
	pid = fork();
	if (!pid) {
		byte = 0x99;
		if (process_vm_writev(parent, &local, 1, &remote, 1, 0) != -1)
			_exit(1);
		snprintf(path, sizeof(path), "/proc/%d/mem", parent);
		fd = open(path, O_RDWR);
		if (fd >= 0 && pwrite(fd, &byte, 1, (off_t)(uintptr_t)self->r) != -1)
			_exit(2);
		_exit(0);
	}
	waitpid(pid, &status, 0);
	EXPECT_EQ(0, WEXITSTATUS(status));
	EXPECT_EQ(0x77, self->base[self->sealed.granule * PAGE]);
}

TEST_F(hostile, ptrace_of_a_client_reads_and_writes_as_the_client_may)
{
	int status, ready[2];
	pid_t pid;
	char byte;

	ASSERT_EQ(0, pipe(ready));
	pid = fork();
	if (!pid) {
		int dev = dev_open(), win = window_create(dev, self->pool, OMNIKV_WINDOW_RW, PAGE);
		unsigned char *w = mmap((void *)0x10000000, PAGE, PROT_READ | PROT_WRITE,
					MAP_SHARED | MAP_FIXED_NOREPLACE, win, 0);
		struct omnikv_extent ext;

		op_alloc(dev, self->pool, 1, 0, &ext);
		op_bind(dev, self->pool, win, 0, ext, 0, PAGE);
		w[0] = 1;
		if (write(ready[1], "", 1) != 1)
			_exit(1);
		while (*(volatile unsigned char *)w != 0x42)
			sleep_ms(1);
		_exit(0);
	}
	ASSERT_EQ(1, read(ready[0], &byte, 1));
	ASSERT_EQ(0, ptrace(PTRACE_ATTACH, pid, 0, 0));
	waitpid(pid, &status, 0);
	EXPECT_EQ(1, ptrace(PTRACE_PEEKDATA, pid, (void *)0x10000000, 0) & 0xff);
	EXPECT_EQ(0, ptrace(PTRACE_POKEDATA, pid, (void *)0x10000000, (void *)0x42));
	EXPECT_EQ(0, ptrace(PTRACE_DETACH, pid, 0, 0));
	waitpid(pid, &status, 0);
	EXPECT_TRUE(WIFEXITED(status));
}

TEST_F(hostile, dumping_core_with_everything_mapped_is_quiet)
{
	struct rlimit limit = { RLIM_INFINITY, RLIM_INFINITY };
	int status;
	pid_t pid = fork();

	if (!pid) {
		int dev = dev_open(), win = window_create(dev, self->pool, OMNIKV_WINDOW_RW, WIN_BYTES);
		unsigned char *w = window_map(win, WIN_BYTES, PROT_READ | PROT_WRITE);
		struct omnikv_extent ext;

		mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, self->pool, 0);
		op_alloc(dev, self->pool, 16, 0, &ext);
		op_bind(dev, self->pool, win, 0, ext, 0, 16 * PAGE);
		w[0] = 1;
		signal(SIGSEGV, SIG_DFL);
		if (chdir("/tmp") || setrlimit(RLIMIT_CORE, &limit))
			_exit(1);
		raise(SIGSEGV);
		_exit(1);
	}
	waitpid(pid, &status, 0);
	EXPECT_TRUE(WIFSIGNALED(status));
	unlink("/tmp/core");
}

TEST_F(hostile, pipe_keeps_what_was_unbound_but_no_foreign_pool)
{
	struct iovec iov = { self->w, PAGE };
	unsigned char page[PAGE];
	int fds[2];

	memset(self->w, 0x31, PAGE);
	ASSERT_EQ(0, pipe(fds));
	ASSERT_EQ((ssize_t)PAGE, vmsplice(fds[1], &iov, 1, 0));
	ASSERT_EQ(0, op_unbind(self->dev, self->pool, self->win, 0, WIN_BYTES));
	ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_FREE, self->ext));
	munmap(self->base, POOL_BYTES);
	EXPECT_EQ(0, pool_destroy(self->dev, self->pool, OMNIKV_DESTROY_F_FORCE));
	/* The page is the pipe's until it is read; then it goes back to the host. */
	ASSERT_EQ((ssize_t)PAGE, read(fds[0], page, PAGE));
	EXPECT_EQ(0x31, page[7]);
	close(fds[0]);
	close(fds[1]);
}

TEST_F(hostile, descriptors_have_no_other_calls)
{
	char byte = 0;
	int fds[3] = { self->pool, self->win, self->dev };
	int i;

	for (i = 0; i < 3; i++) {
		EXPECT_EQ(-1, read(fds[i], &byte, 1));
		EXPECT_EQ(-1, write(fds[i], &byte, 1));
		EXPECT_EQ(-1, ftruncate(fds[i], 0));
		EXPECT_EQ(-1, fallocate(fds[i], 0, 0, 4096));
		EXPECT_EQ(-1, ioctl(fds[i], 0xba7f, 0));
		EXPECT_EQ(-1, fcntl(fds[i], F_ADD_SEALS, 1));
		syncfs(fds[i]);
		fsync(fds[i]);
	}
	EXPECT_EQ(-1, ioctl(self->pool, OMNIKV_IOC_QUERY, &byte));
	EXPECT_EQ(0x77, peek(self->r));
}

/*
 * One thread scribbles over the batch while another one has it executed. The first operation is
 * left alone: how far a batch comes is a matter of the two threads' speeds, that it begins is not.
 */
#define NR_BATCHES	300
#define BATCHES_SECONDS	20

static struct omnikv_batch_op scribbled[256];
static volatile bool is_over;

static void *scribble(void *arg)
{
	const unsigned int first = sizeof(scribbled[0]) / 4, nr = sizeof(scribbled) / 4 - first;
	uint32_t *words = (uint32_t *)scribbled;
	unsigned int seed = (uintptr_t)arg;

	while (!is_over) {
		/* Now and then, so that most operations are whole. */
		volatile unsigned int wait = rand_r(&seed) % 4096;

		while (wait)
			wait--;
		words[first + rand_r(&seed) % nr] = rand_r(&seed) % 64;
	}
	return NULL;
}

TEST_F(hostile, batch_scribbled_during_execution_harms_nobody)
{
	struct omnikv_ioc_pool_info info;
	long done, most = 0, all = 0;
	time_t end = time(NULL) + BATCHES_SECONDS;
	uint64_t sum = 0;
	pthread_t thread;
	int i, k;

	ASSERT_EQ(0, pthread_create(&thread, NULL, scribble, (void *)1));
	/* Each unbind waits for the other processor: on a busy host that alone may take minutes, and fewer are told. */
	for (i = 0; i < NR_BATCHES && time(NULL) < end; i++) {
		for (k = 0; k < 256; k++) {
			struct omnikv_batch_op op = { .opcode = OMNIKV_BATCH_ALLOC, .extent.nr_granules = 1 };

			if (!k)
				op = (struct omnikv_batch_op) { .opcode = OMNIKV_BATCH_QUERY_EXTENT, .extent = self->sealed };
			if (k % 4 == 1)
				op = bind_op(self->win, (k % 64) * PAGE, self->ext, 0, PAGE);
			if (k % 4 == 2)
				op.opcode = OMNIKV_BATCH_QUERY_EXTENT, op.extent = self->ext;
			if (k % 4 == 3)
				op = (struct omnikv_batch_op) { .opcode = OMNIKV_BATCH_UNBIND, .window_fd = self->win, .bytes = 64 * PAGE };
			scribbled[k] = op;
		}
		done = batch(self->dev, self->pool, 0, scribbled, 256);
		EXPECT_LE(1, done) {
			TH_LOG("batch %d: %ld", i, done);
		}
		all += done;
		most = done > most ? done : most;
	}
	is_over = true;
	pthread_join(thread, NULL);
	TH_LOG("%ld operations of %d batches, at most %ld of one", all, i, most);
	if (i < NR_BATCHES)
		TH_LOG("FEWER BATCHES: %d of %d in %d s", i, NR_BATCHES, BATCHES_SECONDS);
	ASSERT_EQ(0, pool_info(self->dev, self->pool, &info));
	for (i = 0; i < OMNIKV_EXTENT_NR_STATES; i++)
		sum += info.state_bytes[i];
	EXPECT_EQ(POOL_BYTES, sum);
	EXPECT_EQ(OMNIKV_EXTENT_SEALED, op_query(self->dev, self->pool, self->sealed, NULL));
	for (i = 0; i < 16 * (int)PAGE && self->base[self->sealed.granule * PAGE + i] == 0x77; i++)
		;
	EXPECT_EQ(16 * (int)PAGE, i);
}

/* Windows, pools and mappings come and go under touching threads. */
struct race {
	int	dev, pool;
	int	nr;
};

static void *race_thread(void *opaque)
{
	struct race *race = opaque;
	unsigned int seed = race->nr;
	int i;

	for (i = 0; i < 150; i++) {
		int win = window_create(race->dev, race->pool, OMNIKV_WINDOW_RW, 64 * PAGE);
		struct omnikv_extent ext = { 0 };
		unsigned char *w;
		int k;

		if (win < 0)
			break;
		w = window_map(win, 64 * PAGE, PROT_READ | PROT_WRITE);
		if (op_alloc(race->dev, race->pool, 64, 0, &ext)) {
			munmap(w, 64 * PAGE);
			close(win);
			continue;
		}
		for (k = 0; k < 8; k++) {
			struct omnikv_batch_op op = bind_op(win, 0, ext, 0, 64 * PAGE);

			op.flags = k & 1 ? OMNIKV_BATCH_BIND_F_LAZY : 0;
			one(race->dev, race->pool, 0, &op);
			madvise(w, 64 * PAGE, MADV_POPULATE_READ);
			op_unbind(race->dev, race->pool, win, (rand_r(&seed) % 32) * PAGE, 8 * PAGE);
		}
		if (i & 1)
			close(win);
		if (i & 2)
			op_extent(race->dev, race->pool, OMNIKV_BATCH_SEAL, ext);
		else
			op_extent(race->dev, race->pool, OMNIKV_BATCH_FREE, ext);
		munmap(w, 64 * PAGE);
		if (!(i & 1))
			close(win);
	}
	return NULL;
}

TEST_F(hostile, bind_fault_seal_and_destroy_race_quietly)
{
	int round;

	for (round = 0; round < 4; round++) {
		int dev = dev_open(), pool = pool_create(dev, "race", 4 * UNIT, OMNIKV_CREATE_F_TRANSIENT), i;
		struct race races[3];
		pthread_t threads[3];

		ASSERT_GE(pool, 0);
		pool_manage(dev, pool, 0, NULL);
		for (i = 0; i < 3; i++) {
			races[i] = (struct race) { dev, pool, i };
			pthread_create(&threads[i], NULL, race_thread, &races[i]);
		}
		sleep_ms(30 + 150 * round);
		EXPECT_EQ(0, pool_destroy(dev, pool, OMNIKV_DESTROY_F_FORCE));
		for (i = 0; i < 3; i++)
			pthread_join(threads[i], NULL);
		close(pool);
		close(dev);
	}
}

/* Last: the page stays bad for the rest of the guest's life. Some kernels kill who maps it. */
TEST_F(hostile, hwpoison_of_a_mapped_page_is_survived)
{
	int status;
	pid_t pid = fork();

	if (!pid) {
		unsigned char *own = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, self->pool, 0);

		signal(SIGBUS, SIG_DFL);
		memset(own + 4 * UNIT, 1, UNIT);
		madvise(own + 4 * UNIT, PAGE, MADV_HWPOISON);
		_exit(0);
	}
	EXPECT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0x77, self->base[self->sealed.granule * PAGE]);
	EXPECT_EQ(0x77, peek(self->r));
}

TEST_HARNESS_MAIN

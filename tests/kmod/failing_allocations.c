// SPDX-License-Identifier: GPL-2.0-only
/*
 * Each call of the module with its first, second, third ... allocation or copy of user memory
 * failing, until one passes untouched: /proc/thread-self/fail-nth of a kernel with fault
 * injection. A call that fails leaves the pool as it was and works when asked again; one that
 * succeeds though something failed has done its work.
 */
#include "kselftest_harness.h"
#include "okv_test.h"

#define POOL_BYTES	(4 * UNIT)
#define NTH_MAX		3000
#define NR_EXTENTS	64

static int nth_file = -1;

static void put(const char *path, const char *value)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0)
		return;
	if (write(fd, value, strlen(value)) < 0)
		perror(path);
	close(fd);
}

/* NULL, or why not here. */
static const char *injection_why(void)
{
	static const char *const dirs[] = { "failslab", "fail_page_alloc", "fail_usercopy" };
	char path[128];
	size_t i;

	if (nth_file < 0)
		nth_file = open("/proc/thread-self/fail-nth", O_RDWR);
	if (nth_file < 0)
		return "the kernel has no fault injection (tests/kmod/run --kernel debug has)";
	for (i = 0; i < 3; i++) {
		/* Allocations that may sleep fail too; each would be told in the log otherwise. */
		snprintf(path, sizeof(path), "/sys/kernel/debug/%s/ignore-gfp-wait", dirs[i]);
		put(path, "N");
		snprintf(path, sizeof(path), "/sys/kernel/debug/%s/ignore-gfp-highmem", dirs[i]);
		put(path, "N");
		snprintf(path, sizeof(path), "/sys/kernel/debug/%s/min-order", dirs[i]);
		put(path, "0");
		snprintf(path, sizeof(path), "/sys/kernel/debug/%s/verbose", dirs[i]);
		put(path, "0");
	}
	return NULL;
}

/* These calls copy user memory as well: a failure that is due may be theirs, and is over then. */
static void fail_nth(int nth)
{
	char text[16];
	int len = snprintf(text, sizeof(text), "%d", nth), tries;

	for (tries = 0; tries < 3; tries++)
		if (pwrite(nth_file, text, len, 0) == len)
			return;
	exit(1);
}

/* Has the failure that was asked for happened? Asks for none from now on. */
static bool has_failed(void)
{
	char text[16] = "";
	bool was_read = pread(nth_file, text, sizeof(text) - 1, 0) > 0;

	fail_nth(0);
	return was_read && atoi(text) == 0;
}

FIXTURE(failing)
{
	int dev, pool, win, ro;
	unsigned char *w;
	struct omnikv_extent exts[NR_EXTENTS], sealed;
	struct omnikv_ioc_pool_info before;
};

FIXTURE_SETUP(failing)
{
	const char *why = injection_why();

	if (why)
		SKIP(return, "%s", why);
	self->dev = dev_open();
	ASSERT_GE(self->dev, 0);
	self->pool = pool_create(self->dev, "failing", POOL_BYTES, OMNIKV_CREATE_F_TRANSIENT);
	ASSERT_GE(self->pool, 0);
	ASSERT_EQ(0, pool_manage(self->dev, self->pool, 0, NULL));
	self->win = window_create(self->dev, self->pool, OMNIKV_WINDOW_RW, 4 * MIB);
	self->ro = window_create(self->dev, self->pool, OMNIKV_WINDOW_RO, 4 * MIB);
	self->w = window_map(self->win, 4 * MIB, PROT_READ | PROT_WRITE);
	ASSERT_NE(MAP_FAILED, (void *)self->w);
	ASSERT_EQ(0, op_alloc_list(self->dev, self->pool, 2, 0, self->exts, NR_EXTENTS));
	ASSERT_EQ(0, op_alloc(self->dev, self->pool, 2, 0, &self->sealed));
	ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_SEAL, self->sealed));
	ASSERT_EQ(0, pool_info(self->dev, self->pool, &self->before));
}

FIXTURE_TEARDOWN(failing)
{
	if (!self->w)
		return;
	munmap(self->w, 4 * MIB);
	close(self->win);
	close(self->ro);
	close(self->pool);
	close(self->dev);
}

/* Same extents in same states; counters of what was done may differ. */
#define EXPECT_AS_BEFORE() do {									\
	struct omnikv_ioc_pool_info now;							\
												\
	ASSERT_EQ(0, pool_info(self->dev, self->pool, &now));					\
	EXPECT_EQ(0, memcmp(now.state_bytes, self->before.state_bytes, sizeof(now.state_bytes)));	\
	EXPECT_EQ(0, memcmp(now.nr_extents, self->before.nr_extents, sizeof(now.nr_extents)));	\
	EXPECT_EQ(self->before.nr_clients, now.nr_clients);					\
} while (0)

/* The failure that is due, and whether it came. */
static int cur_nth;
static bool was_hit;

#define ARMED(CALL) ({				\
	__typeof__(CALL) got_;			\
						\
	fail_nth(cur_nth);			\
	got_ = (CALL);				\
	was_hit = has_failed();			\
	got_;					\
})

/*
 * CALL with each of its failures in turn, then without; UNDO after each success. Injected copies
 * of user memory are EFAULT, allocations ENOMEM. Where the last copy of a batch fails, it is done
 * though its results cannot be told: what it has allocated the caller finds by listing.
 */
#define EACH_FAILURE(CALL, UNDO) do {								\
	int ret_ = -1, nr_ = 0;									\
												\
	for (cur_nth = 1; cur_nth < NTH_MAX; cur_nth++) {					\
		was_hit = false;								\
		ret_ = (CALL);									\
		if (ret_ >= 0) {								\
			UNDO;									\
		} else {									\
			EXPECT_TRUE(ret_ == -ENOMEM || ret_ == -EFAULT || ret_ == -EAGAIN) {	\
				TH_LOG("failure %d gave %d", cur_nth, ret_);			\
			}									\
		}										\
		if (ret_ == -EFAULT)								\
			free_strays(self->dev, self->pool, self->exts);				\
		EXPECT_AS_BEFORE();								\
		if (!was_hit)									\
			break;									\
		nr_++;										\
	}											\
	EXPECT_GE(ret_, 0);									\
	EXPECT_GT(nr_, 0);									\
	TH_LOG("%d failures", nr_);								\
} while (0)

#define EACH_FAILURE_OF(CALL, UNDO) EACH_FAILURE(ARMED(CALL), UNDO)

/* What the client has beside @exts: allocated by a batch whose results were lost. */
static void free_strays(int dev, int pool, const struct omnikv_extent *exts)
{
	struct omnikv_extent_entry entries[4 * NR_EXTENTS];
	struct omnikv_ioc_extent_list list = {
		.pool_fd = pool, .states = 1 << OMNIKV_EXTENT_PRIVATE | 1 << OMNIKV_EXTENT_META,
		.count = 4 * NR_EXTENTS, .entries = (uintptr_t)entries,
	};
	uint32_t i, k;

	if (okv_ioctl(dev, OMNIKV_IOC_EXTENT_LIST, &list))
		exit(1);
	for (i = 0; i < list.count; i++) {
		for (k = 0; k < NR_EXTENTS && exts[k].granule != entries[i].extent.granule; k++)
			;
		if (k == NR_EXTENTS)
			op_extent(dev, pool, OMNIKV_BATCH_FREE, entries[i].extent);
	}
}

TEST_F(failing, open_and_attach)
{
	int dev = -1;

	EACH_FAILURE_OF(dev = dev_open(), close(dev));
	EACH_FAILURE((dev = dev_open()) < 0 ? dev : ({
			struct omnikv_batch_op nop = { .opcode = OMNIKV_BATCH_NOP };
			int ret = ARMED(one(dev, self->pool, 0, &nop));

			if (ret)
				close(dev);
			ret;
		}), close(dev));
}

TEST_F(failing, pool_create_and_open)
{
	int pool = -1;

	EACH_FAILURE_OF(pool = pool_create(self->dev, "another", 2 * UNIT, OMNIKV_CREATE_F_TRANSIENT), close(pool));
	EACH_FAILURE_OF(pool = pool_create(self->dev, "another", UNIT,
					OMNIKV_CREATE_F_TRANSIENT | OMNIKV_CREATE_F_ACCEPT_SMALL), close(pool));
	EACH_FAILURE_OF(pool = pool_open(self->dev, "failing", 0), close(pool));
}

TEST_F(failing, window_create_and_map)
{
	void *at = NULL;
	int win = -1;

	EACH_FAILURE_OF(win = window_create(self->dev, self->pool, OMNIKV_WINDOW_RW, 1UL << 30), close(win));
	EACH_FAILURE(({
		at = ARMED(mmap(NULL, UNIT, PROT_READ, MAP_SHARED, self->pool, 0));
		at == MAP_FAILED ? -ENOMEM : 0;
	}), munmap(at, UNIT));
}

TEST_F(failing, alloc_and_free)
{
	struct omnikv_extent more[NR_EXTENTS], ext;

	EACH_FAILURE_OF(op_alloc(self->dev, self->pool, 3, 0, &ext),
		     ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_FREE, ext)));
	EACH_FAILURE_OF(op_alloc_list(self->dev, self->pool, 3, 0, more, NR_EXTENTS),
		     ASSERT_EQ(0, op_list(self->dev, self->pool, OMNIKV_BATCH_FREE, more, NR_EXTENTS)));
	EACH_FAILURE_OF(op_alloc(self->dev, self->pool, 3, OMNIKV_BATCH_ALLOC_F_META, &ext),
		     ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_FREE, ext)));
}

TEST_F(failing, lease_and_transfer)
{
	EACH_FAILURE_OF(op_extent(self->dev, self->pool, OMNIKV_BATCH_LEASE, self->sealed),
		     ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_RELEASE, self->sealed)));
	EACH_FAILURE_OF(op_list(self->dev, self->pool, OMNIKV_BATCH_IO_GET, self->exts, NR_EXTENTS),
		     ASSERT_EQ(0, op_list(self->dev, self->pool, OMNIKV_BATCH_IO_PUT, self->exts, NR_EXTENTS)));
}

TEST_F(failing, seal_and_free_by_the_manager)
{
	struct omnikv_extent ext;

	/* An extent of its own each time: what is sealed stays so. */
	EACH_FAILURE(({
		int ret;

		ASSERT_EQ(0, op_alloc(self->dev, self->pool, 2, 0, &ext));
		ASSERT_EQ(0, op_bind(self->dev, self->pool, self->win, 0, ext, 0, 2 * PAGE));
		ret = ARMED(op_list(self->dev, self->pool, OMNIKV_BATCH_SEAL, &ext, 1));
		ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_FREE, ext));
		op_unbind(self->dev, self->pool, self->win, 0, 2 * PAGE);
		ret;
	}), );
}

TEST_F(failing, bind_eager_and_lazy)
{
	struct omnikv_batch_op ops[NR_EXTENTS];
	int i, lazy;

	for (lazy = 0; lazy < 2; lazy++)
		EACH_FAILURE(({
			int done;

			for (i = 0; i < NR_EXTENTS; i++) {
				ops[i] = bind_op(self->win, i * 65536UL % (4 * MIB), self->exts[i], 0, 2 * PAGE);
				ops[i].flags = lazy ? OMNIKV_BATCH_BIND_F_LAZY : 0;
			}
			done = ARMED(batch(self->dev, self->pool, 0, ops, NR_EXTENTS));
			/* What is bound is shown, if need be at the touch. */
			for (i = 0; i < done; i++)
				self->w[i * 65536UL % (4 * MIB)] = i;
			EXPECT_EQ(0, op_unbind(self->dev, self->pool, self->win, 0, 4 * MIB));
			done < 0 ? done : done < NR_EXTENTS ? ops[done].res : 0;
		}), );
}

TEST_F(failing, bind_read_only)
{
	ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_LEASE, self->sealed));
	EACH_FAILURE_OF(op_bind(self->dev, self->pool, self->ro, 0, self->sealed, 0, 2 * PAGE),
		     EXPECT_EQ(0, op_unbind(self->dev, self->pool, self->ro, 0, 2 * PAGE)));
	ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_RELEASE, self->sealed));
}

TEST_F(failing, questions_and_lists)
{
	struct omnikv_extent_entry entries[128];
	struct omnikv_client_entry clients[4];
	struct omnikv_ioc_pool_info info;

	EACH_FAILURE_OF(pool_info(self->dev, self->pool, &info), );
	EACH_FAILURE(({
		struct omnikv_ioc_extent_list list = {
			.pool_fd = self->pool, .states = 1 << OMNIKV_EXTENT_PRIVATE, .count = 128,
			.entries = (uintptr_t)entries,
		};

		ARMED(okv_ioctl(self->dev, OMNIKV_IOC_EXTENT_LIST, &list));
	}), );
	EACH_FAILURE(({
		struct omnikv_ioc_client_list list = { .pool_fd = self->pool, .count = 4, .entries = (uintptr_t)clients };

		ARMED(okv_ioctl(self->dev, OMNIKV_IOC_CLIENT_LIST, &list));
	}), );
	EACH_FAILURE_OF(op_query(self->dev, self->pool, self->sealed, NULL), );
}

/* The close of a client, and the end of a pool, cannot fail. */
TEST_F(failing, ends_cannot_fail)
{
	int nth;

	for (nth = 1; nth < 200; nth++) {
		int dev = dev_open(), win = window_create(dev, self->pool, OMNIKV_WINDOW_RW, MIB);
		struct omnikv_extent ext;
		bool is_hit;

		ASSERT_EQ(0, op_alloc(dev, self->pool, 16, 0, &ext));
		ASSERT_EQ(0, op_bind(dev, self->pool, win, 0, ext, 0, 16 * PAGE));
		fail_nth(nth);
		close(win);
		close(dev);
		is_hit = has_failed();
		EXPECT_AS_BEFORE();
		if (!is_hit)
			break;
	}
	for (nth = 1; nth < 200; nth++) {
		int pool = pool_create(self->dev, "ending", UNIT, 0), ret;
		bool is_hit;

		ASSERT_GE(pool, 0);
		fail_nth(nth);
		ret = pool_destroy(self->dev, pool, 0);
		is_hit = has_failed();
		if (ret)
			EXPECT_EQ(0, pool_destroy(self->dev, pool, 0));
		close(pool);
		if (!is_hit)
			break;
	}
}

TEST_HARNESS_MAIN

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Windows: what may be bound where, what a touch shows before, while and after, sealing,
 * replacing, lazy binds, what ends with what, offsets above 4 GiB, and what may not be done to
 * a window's mapping.
 */
#include "kselftest_harness.h"
#include "okv_test.h"

#define POOL_BYTES	(8 * UNIT)
#define WIN_BYTES	(4 * MIB)

FIXTURE(window)
{
	int dev, pool, rw, ro;
	unsigned char *base, *w, *r;
	struct omnikv_extent a, b;
};

/* Granule g of the pool holds the byte g % 251 everywhere, unless allocated meanwhile. */
FIXTURE_SETUP(window)
{
	uint64_t i;

	faults_catch();
	self->dev = dev_open();
	ASSERT_GE(self->dev, 0);
	self->pool = pool_create(self->dev, "w", POOL_BYTES, OMNIKV_CREATE_F_TRUSTED);
	ASSERT_GE(self->pool, 0);
	self->base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, self->pool, 0);
	ASSERT_NE(MAP_FAILED, (void *)self->base);
	for (i = 0; i < POOL_BYTES / PAGE; i++)
		memset(self->base + i * PAGE, i % 251, PAGE);
	self->rw = window_create(self->dev, self->pool, OMNIKV_WINDOW_RW, WIN_BYTES);
	self->ro = window_create(self->dev, self->pool, OMNIKV_WINDOW_RO, WIN_BYTES);
	ASSERT_GE(self->rw, 0);
	ASSERT_GE(self->ro, 0);
	self->w = window_map(self->rw, WIN_BYTES, PROT_READ | PROT_WRITE);
	self->r = window_map(self->ro, WIN_BYTES, PROT_READ);
	ASSERT_NE(MAP_FAILED, (void *)self->w);
	ASSERT_NE(MAP_FAILED, (void *)self->r);
	ASSERT_EQ(0, op_alloc(self->dev, self->pool, 64, OMNIKV_BATCH_ALLOC_F_NO_ZERO, &self->a));
	ASSERT_EQ(0, op_alloc(self->dev, self->pool, 64, OMNIKV_BATCH_ALLOC_F_NO_ZERO, &self->b));
}

FIXTURE_TEARDOWN(window)
{
	munmap(self->base, POOL_BYTES);
	munmap(self->w, WIN_BYTES);
	munmap(self->r, WIN_BYTES);
	close(self->rw);
	close(self->ro);
	EXPECT_EQ(0, pool_destroy(self->dev, self->pool, 0));
	close(self->pool);
	close(self->dev);
}

static int value(uint64_t granule)
{
	return granule % 251;
}

TEST_F(window, shows_what_is_bound_and_nothing_else)
{
	uint64_t i;

	EXPECT_EQ(-SIGBUS, peek(self->w));
	ASSERT_EQ(0, op_bind(self->dev, self->pool, self->rw, 16 * PAGE, self->a, 4 * PAGE, 8 * PAGE));
	EXPECT_EQ(-SIGBUS, peek(self->w + 15 * PAGE));
	for (i = 0; i < 8; i++)
		EXPECT_EQ(value(self->a.granule + 4 + i), peek(self->w + (16 + i) * PAGE + 77));
	EXPECT_EQ(-SIGBUS, peek(self->w + 24 * PAGE));
	EXPECT_EQ(0, poke(self->w + 17 * PAGE, 0xee));
	EXPECT_EQ(0xee, self->base[(self->a.granule + 5) * PAGE]);
	/* In the middle, so that both ends stay. */
	ASSERT_EQ(0, op_unbind(self->dev, self->pool, self->rw, 18 * PAGE, 2 * PAGE));
	EXPECT_EQ(0xee, peek(self->w + 17 * PAGE));
	EXPECT_EQ(-SIGBUS, peek(self->w + 18 * PAGE));
	EXPECT_EQ(-SIGBUS, poke(self->w + 19 * PAGE, 1));
	EXPECT_EQ(value(self->a.granule + 8), peek(self->w + 20 * PAGE));
	ASSERT_EQ(0, op_unbind(self->dev, self->pool, self->rw, 0, WIN_BYTES));
	EXPECT_EQ(-SIGBUS, peek(self->w + 17 * PAGE));
}

TEST_F(window, bind_over_a_bind_replaces_it)
{
	uint32_t refs = 9;

	ASSERT_EQ(0, op_bind(self->dev, self->pool, self->rw, 0, self->a, 0, 64 * PAGE));
	ASSERT_EQ(0, op_bind(self->dev, self->pool, self->rw, 32 * PAGE, self->b, 0, 8 * PAGE));
	EXPECT_EQ(value(self->a.granule + 31), peek(self->w + 31 * PAGE));
	EXPECT_EQ(value(self->b.granule), peek(self->w + 32 * PAGE));
	EXPECT_EQ(value(self->a.granule + 40), peek(self->w + 40 * PAGE));
	ASSERT_EQ(0, op_bind(self->dev, self->pool, self->rw, 0, self->b, 0, 64 * PAGE));
	EXPECT_EQ(value(self->b.granule + 32), peek(self->w + 32 * PAGE));
	EXPECT_GE(op_query(self->dev, self->pool, self->a, &refs), 0);
	EXPECT_EQ(0, refs);
	EXPECT_GE(op_query(self->dev, self->pool, self->b, &refs), 0);
	EXPECT_EQ(1, refs);
}

TEST_F(window, lazy_bind_is_filled_by_the_first_touch)
{
	struct omnikv_batch_op op = bind_op(self->rw, 0, self->a, 0, 64 * PAGE);

	op.flags = OMNIKV_BATCH_BIND_F_LAZY;
	ASSERT_EQ(0, one(self->dev, self->pool, 0, &op));
	EXPECT_EQ(0, kb_of("/proc/self/smaps", "Rss", (uintptr_t)self->w));
	EXPECT_EQ(value(self->a.granule + 33), peek(self->w + 33 * PAGE));
	/* The rest of the 64 KiB came along. */
	EXPECT_EQ(60, kb_of("/proc/self/smaps", "Rss", (uintptr_t)self->w));
	ASSERT_EQ(0, op_bind(self->dev, self->pool, self->rw, 64 * PAGE, self->b, 0, 64 * PAGE));
	EXPECT_EQ(60 + 256, kb_of("/proc/self/smaps", "Rss", (uintptr_t)self->w));
}

TEST_F(window, seal_unbinds_for_writing_and_lease_binds_for_reading)
{
	struct omnikv_extent list[2] = { self->a, self->b };
	uint32_t refs = 9;

	ASSERT_EQ(0, op_bind(self->dev, self->pool, self->rw, 0, self->a, 0, 4 * PAGE));
	ASSERT_EQ(0, op_bind(self->dev, self->pool, self->rw, 100 * PAGE, self->a, 8 * PAGE, 4 * PAGE));
	ASSERT_EQ(0, op_bind(self->dev, self->pool, self->rw, 4 * PAGE, self->b, 0, 4 * PAGE));
	EXPECT_EQ(-EPERM, op_bind(self->dev, self->pool, self->ro, 0, self->a, 0, PAGE));
	EXPECT_EQ(0, poke(self->w, 0x11));
	EXPECT_EQ(0, poke(self->w + 100 * PAGE, 0x12));
	ASSERT_EQ(0, op_list(self->dev, self->pool, OMNIKV_BATCH_SEAL, list, 2));
	EXPECT_EQ(-SIGBUS, poke(self->w, 0x13));
	EXPECT_EQ(-SIGBUS, peek(self->w + 100 * PAGE));
	EXPECT_EQ(-SIGBUS, peek(self->w + 4 * PAGE));
	EXPECT_EQ(-EPERM, op_bind(self->dev, self->pool, self->rw, 0, self->a, 0, PAGE));
	EXPECT_EQ(-EPERM, op_bind(self->dev, self->pool, self->ro, 0, self->a, 0, PAGE));
	ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_LEASE, self->a));
	ASSERT_EQ(0, op_bind(self->dev, self->pool, self->ro, PAGE, self->a, 0, PAGE));
	EXPECT_EQ(0x11, peek(self->r + PAGE));
	EXPECT_EQ(-SIGSEGV, poke(self->r + PAGE, 1));
	/* The bind keeps the extent, the lease may go. */
	ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_RELEASE, self->a));
	ASSERT_EQ(OMNIKV_EXTENT_SEALED, op_query(self->dev, self->pool, self->a, &refs));
	EXPECT_EQ(1, refs);
	ASSERT_EQ(0, pool_manage(self->dev, self->pool, 0, NULL));
	ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_FREE, self->a));
	EXPECT_EQ(64 * PAGE, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_QUARANTINED));
	EXPECT_EQ(0x11, peek(self->r + PAGE));
	ASSERT_EQ(0, op_unbind(self->dev, self->pool, self->ro, 0, WIN_BYTES));
	EXPECT_EQ(0, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_QUARANTINED));
	EXPECT_EQ(-SIGBUS, peek(self->r + PAGE));
}

/* An extent that moves about for long is still found everywhere when it is sealed. */
TEST_F(window, seal_finds_an_extent_that_was_bound_often)
{
	uint64_t i, at = 0;

	for (i = 0; i < 5000; i++) {
		at = i * 37 % 900;
		ASSERT_EQ(0, op_bind(self->dev, self->pool, self->rw, at * PAGE, self->a, i % 64 * PAGE, PAGE));
		if (i < 4900)
			ASSERT_EQ(0, op_unbind(self->dev, self->pool, self->rw, at * PAGE, PAGE));
	}
	EXPECT_EQ(0, poke(self->w + at * PAGE, 1));
	ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_SEAL, self->a));
	for (i = 0; i < 1000; i++)
		EXPECT_EQ(-SIGBUS, peek(self->w + i * PAGE));
}

TEST_F(window, bad_binds_are_refused_and_change_nothing)
{
	struct omnikv_extent stale = self->a;

	stale.generation += 4;
	EXPECT_EQ(-EINVAL, op_bind(self->dev, self->pool, self->rw, 1, self->a, 0, PAGE));
	EXPECT_EQ(-EINVAL, op_bind(self->dev, self->pool, self->rw, 0, self->a, 8, PAGE));
	EXPECT_EQ(-EINVAL, op_bind(self->dev, self->pool, self->rw, 0, self->a, 0, 0));
	EXPECT_EQ(-EINVAL, op_bind(self->dev, self->pool, self->rw, 0, self->a, 64 * PAGE, PAGE));
	EXPECT_EQ(-EINVAL, op_bind(self->dev, self->pool, self->rw, 0, self->a, PAGE, 64 * PAGE));
	EXPECT_EQ(-EINVAL, op_bind(self->dev, self->pool, self->rw, WIN_BYTES, self->a, 0, PAGE));
	EXPECT_EQ(-EINVAL, op_bind(self->dev, self->pool, self->rw, ~0ULL - 4095, self->a, 0, 2 * PAGE));
	EXPECT_EQ(-EINVAL, op_bind(self->dev, self->pool, self->rw, 0, self->a, ~0ULL - 4095, 2 * PAGE));
	EXPECT_EQ(-ESTALE, op_bind(self->dev, self->pool, self->rw, 0, stale, 0, PAGE));
	EXPECT_EQ(-EBADF, op_bind(self->dev, self->pool, self->pool, 0, self->a, 0, PAGE));
	EXPECT_EQ(-EBADF, op_bind(self->dev, self->pool, 999, 0, self->a, 0, PAGE));
	EXPECT_EQ(-SIGBUS, peek(self->w));
}

TEST_F(window, batch_binds_up_to_the_first_error)
{
	struct omnikv_batch_op ops[100];
	int i;

	for (i = 0; i < 100; i++)
		ops[i] = bind_op(self->rw, i * PAGE, self->a, (i % 64) * PAGE, PAGE);
	ops[80].extent_off = 64 * PAGE;
	EXPECT_EQ(80, batch(self->dev, self->pool, 0, ops, 100));
	EXPECT_EQ(-EINVAL, ops[80].res);
	EXPECT_EQ(-ECANCELED, ops[81].res);
	EXPECT_EQ(value(self->a.granule + 15), peek(self->w + 79 * PAGE));
	EXPECT_EQ(-SIGBUS, peek(self->w + 80 * PAGE));
}

TEST_F(window, another_clients_window_and_extents_are_refused)
{
	int dev2 = dev_open(), win2;

	ASSERT_GE(dev2, 0);
	win2 = window_create(dev2, self->pool, OMNIKV_WINDOW_RW, WIN_BYTES);
	ASSERT_GE(win2, 0);
	EXPECT_EQ(-EPERM, op_bind(self->dev, self->pool, win2, 0, self->a, 0, PAGE));
	EXPECT_EQ(-EPERM, op_bind(dev2, self->pool, win2, 0, self->a, 0, PAGE));
	close(win2);
	close(dev2);
}

TEST_F(window, meta_window_ends_with_its_epoch)
{
	int dev2 = dev_open(), meta;
	unsigned char *m;
	uint32_t epoch;

	ASSERT_GE(dev2, 0);
	EXPECT_EQ(-EPERM, window_create(self->dev, self->pool, OMNIKV_WINDOW_META, WIN_BYTES));
	ASSERT_EQ(0, pool_manage(self->dev, self->pool, 0, &epoch));
	meta = window_create(self->dev, self->pool, OMNIKV_WINDOW_META, WIN_BYTES);
	ASSERT_GE(meta, 0);
	m = window_map(meta, WIN_BYTES, PROT_READ | PROT_WRITE);
	ASSERT_NE(MAP_FAILED, (void *)m);
	ASSERT_EQ(0, op_alloc(self->dev, self->pool, 2, OMNIKV_BATCH_ALLOC_F_META, &self->a));
	ASSERT_EQ(0, op_bind(self->dev, self->pool, meta, 0, self->a, 0, 2 * PAGE));
	EXPECT_EQ(0, poke(m, 7));
	EXPECT_EQ(-EPERM, op_bind(self->dev, self->pool, self->rw, 0, self->a, 0, PAGE));
	ASSERT_EQ(0, pool_manage(dev2, self->pool, OMNIKV_MANAGE_F_FORCE, &epoch));
	/* What it had filled and what it had not. */
	EXPECT_EQ(-SIGBUS, poke(m, 8));
	EXPECT_EQ(-SIGBUS, poke(m + PAGE, 8));
	EXPECT_EQ(-ESTALE, op_bind(self->dev, self->pool, meta, 0, self->a, 0, PAGE));
	EXPECT_EQ(7, self->base[self->a.granule * PAGE]);
	/* The new one may free it although the old one's window still counts. */
	EXPECT_EQ(0, op_extent(dev2, self->pool, OMNIKV_BATCH_FREE, self->a));
	EXPECT_EQ(2 * PAGE, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_QUARANTINED));
	munmap(m, WIN_BYTES);
	close(meta);
	EXPECT_EQ(0, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_QUARANTINED));
	close(dev2);
}

TEST_F(window, destroyed_pool_raises_sigbus_in_windows)
{
	int dev2 = dev_open(), win2, pool2 = pool_create(self->dev, "d", UNIT, 0);
	struct omnikv_extent ext;
	unsigned char *w2, *base2;

	ASSERT_GE(pool2, 0);
	base2 = mmap(NULL, UNIT, PROT_READ | PROT_WRITE, MAP_SHARED, pool2, 0);
	win2 = window_create(dev2, pool2, OMNIKV_WINDOW_RW, WIN_BYTES);
	ASSERT_GE(win2, 0);
	w2 = window_map(win2, WIN_BYTES, PROT_READ | PROT_WRITE);
	ASSERT_EQ(0, op_alloc(dev2, pool2, 8, 0, &ext));
	ASSERT_EQ(0, op_bind(dev2, pool2, win2, 0, ext, 0, 8 * PAGE));
	EXPECT_EQ(0, poke(w2, 9));
	EXPECT_EQ(-EBUSY, pool_destroy(self->dev, pool2, 0));
	EXPECT_EQ(0, pool_destroy(self->dev, pool2, OMNIKV_DESTROY_F_FORCE));
	EXPECT_EQ(-SIGBUS, peek(w2));
	EXPECT_EQ(-ENODEV, op_bind(dev2, pool2, win2, 0, ext, 0, 8 * PAGE));
	EXPECT_EQ(-ENODEV, window_create(dev2, pool2, OMNIKV_WINDOW_RW, WIN_BYTES));
	EXPECT_EQ(-ENODEV, pool_destroy(self->dev, pool2, OMNIKV_DESTROY_F_FORCE));
	EXPECT_EQ(-ENOENT, pool_open(self->dev, "d", 0));
	EXPECT_EQ(MAP_FAILED, mmap(NULL, UNIT, PROT_READ, MAP_SHARED, pool2, 0));
	/* A linear map is a promise until it is unmapped. */
	EXPECT_EQ(9, base2[ext.granule * PAGE]);
	munmap(base2, UNIT);
	munmap(w2, WIN_BYTES);
	close(win2);
	close(pool2);
	close(dev2);
}

TEST_F(window, offsets_above_4_gib_reach_their_own_block)
{
	uint64_t bytes = 6ULL << 30, i;
	uint64_t at[] = { 0, (2ULL << 30) - PAGE, 2ULL << 30, (4ULL << 30) - PAGE, 4ULL << 30,
			  (4ULL << 30) + PAGE, bytes - PAGE };
	int win = window_create(self->dev, self->pool, OMNIKV_WINDOW_RW, bytes);
	unsigned char *w = window_map(win, bytes, PROT_READ | PROT_WRITE);

	ASSERT_NE(MAP_FAILED, (void *)w);
	for (i = 0; i < 7; i++)
		ASSERT_EQ(0, op_bind(self->dev, self->pool, win, at[i], self->a, i * PAGE, PAGE));
	for (i = 0; i < 7; i++)
		EXPECT_EQ(value(self->a.granule + i), peek(w + at[i]));
	EXPECT_EQ(-SIGBUS, peek(w + PAGE));
	EXPECT_EQ(-SIGBUS, peek(w + (4ULL << 30) + 2 * PAGE));
	munmap(w, bytes);
	close(win);
}

TEST_F(window, mapping_cannot_be_split_moved_or_made_writable)
{
	EXPECT_EQ(-1, munmap(self->w + PAGE, PAGE));
	EXPECT_EQ(-1, mprotect(self->w, PAGE, PROT_READ));
	EXPECT_EQ(-1, mprotect(self->r, WIN_BYTES, PROT_READ | PROT_WRITE));
	EXPECT_EQ(EACCES, errno);
	EXPECT_EQ(-1, mprotect(self->w, WIN_BYTES, PROT_READ | PROT_EXEC));
	EXPECT_EQ(MAP_FAILED, mremap(self->w, WIN_BYTES, 2 * WIN_BYTES, MREMAP_MAYMOVE));
	EXPECT_EQ(MAP_FAILED, mremap(self->w, WIN_BYTES, PAGE, 0));
	EXPECT_EQ(MAP_FAILED, mremap(self->w, WIN_BYTES, WIN_BYTES, MREMAP_MAYMOVE | MREMAP_FIXED, self->w - 64 * MIB));
	EXPECT_EQ(MAP_FAILED, mmap(self->w + 8 * PAGE, PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	EXPECT_EQ(-1, madvise(self->w, WIN_BYTES, MADV_REMOVE));
	EXPECT_EQ(MAP_FAILED, window_map(self->rw, WIN_BYTES, PROT_READ));
	EXPECT_EQ(EBUSY, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, WIN_BYTES, PROT_READ, MAP_PRIVATE, self->ro, 0));
	EXPECT_EQ(MAP_FAILED, mmap(NULL, PAGE, PROT_READ, MAP_SHARED, self->ro, 0));
	/* It is still there after all that. */
	ASSERT_EQ(0, op_bind(self->dev, self->pool, self->rw, 0, self->a, 0, PAGE));
	EXPECT_EQ(value(self->a.granule), peek(self->w));
	/* The whole may go, and come again. */
	ASSERT_EQ(0, munmap(self->w, WIN_BYTES));
	self->w = window_map(self->rw, WIN_BYTES, PROT_READ | PROT_WRITE);
	ASSERT_NE(MAP_FAILED, (void *)self->w);
	EXPECT_EQ(value(self->a.granule), peek(self->w));
}

TEST_F(window, forked_child_sees_no_window)
{
	int status;
	pid_t pid;

	ASSERT_EQ(0, op_bind(self->dev, self->pool, self->rw, 0, self->a, 0, PAGE));
	EXPECT_GE(peek(self->w), 0);
	madvise(self->w, WIN_BYTES, MADV_DOFORK);
#ifdef MADV_KEEPONFORK
	madvise(self->w, WIN_BYTES, MADV_KEEPONFORK);
#endif
	pid = fork();
	if (!pid) {
		struct omnikv_extent ext;
		int bad = 0;

		bad |= peek(self->w) >= 0 ? 1 : 0;
		bad |= op_alloc(self->dev, self->pool, 1, 0, &ext) != -EPERM ? 2 : 0;
		bad |= window_map(self->ro, WIN_BYTES, PROT_READ) != MAP_FAILED ? 4 : 0;
		bad |= peek(self->base) != -SIGSEGV ? 8 : 0;
		_exit(bad);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_TRUE(WIFEXITED(status));
	EXPECT_EQ(0, WEXITSTATUS(status));
	EXPECT_GE(peek(self->w), 0);
}

TEST_HARNESS_MAIN

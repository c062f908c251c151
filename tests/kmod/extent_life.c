// SPDX-License-Identifier: GPL-2.0-only
/*
 * The life of an extent as one or two clients see it: allocation, sealing, leases, freeing,
 * generations, lists that are all or nothing, quotas, managers.
 */
#include "kselftest_harness.h"
#include "okv_test.h"

#define POOL_BYTES	(8 * UNIT)

FIXTURE(pool)
{
	int dev, pool, dev2, pool2;
	struct omnikv_extent a, b;
};

FIXTURE_SETUP(pool)
{
	self->dev = dev_open();
	ASSERT_GE(self->dev, 0);
	self->pool = pool_create(self->dev, "t", POOL_BYTES, 0);
	ASSERT_GE(self->pool, 0);
	self->dev2 = dev_open();
	ASSERT_GE(self->dev2, 0);
	self->pool2 = pool_open(self->dev2, "t", 0);
	ASSERT_GE(self->pool2, 0);
}

FIXTURE_TEARDOWN(pool)
{
	EXPECT_EQ(0, pool_destroy(self->dev, self->pool, OMNIKV_DESTROY_F_FORCE));
	close(self->pool);
	close(self->pool2);
	close(self->dev);
	close(self->dev2);
}

TEST_F(pool, from_private_to_sealed_to_free)
{
	uint32_t refs = 99;

	ASSERT_EQ(0, op_alloc(self->dev, self->pool, 16, 0, &self->a));
	EXPECT_EQ(16, self->a.nr_granules);
	EXPECT_EQ(OMNIKV_EXTENT_PRIVATE | (int)OMNIKV_STATE_F_MINE, op_query(self->dev, self->pool, self->a, &refs));
	EXPECT_EQ(0, refs);
	EXPECT_EQ(OMNIKV_EXTENT_PRIVATE, op_query(self->dev2, self->pool2, self->a, NULL));
	EXPECT_EQ(-EPERM, op_extent(self->dev2, self->pool2, OMNIKV_BATCH_SEAL, self->a));
	EXPECT_EQ(-EPERM, op_extent(self->dev2, self->pool2, OMNIKV_BATCH_FREE, self->a));
	EXPECT_EQ(-EPERM, op_extent(self->dev2, self->pool2, OMNIKV_BATCH_LEASE, self->a));
	ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_SEAL, self->a));
	EXPECT_EQ(OMNIKV_EXTENT_SEALED, op_query(self->dev, self->pool, self->a, NULL));
	EXPECT_EQ(16 * PAGE, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_SEALED));
	/* Only a manager frees what is sealed. */
	EXPECT_EQ(-EPERM, op_extent(self->dev, self->pool, OMNIKV_BATCH_FREE, self->a));
	ASSERT_EQ(0, pool_manage(self->dev, self->pool, 0, NULL));
	ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_FREE, self->a));
	EXPECT_EQ(-ESTALE, op_query(self->dev, self->pool, self->a, NULL));
	EXPECT_EQ(POOL_BYTES, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_FREE));
}

TEST_F(pool, leased_extent_waits_for_its_last_lease)
{
	uint32_t refs = 0;

	ASSERT_EQ(0, op_alloc(self->dev, self->pool, 4, 0, &self->a));
	ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_SEAL, self->a));
	ASSERT_EQ(0, op_extent(self->dev2, self->pool2, OMNIKV_BATCH_LEASE, self->a));
	ASSERT_EQ(0, op_extent(self->dev2, self->pool2, OMNIKV_BATCH_LEASE, self->a));
	EXPECT_EQ(OMNIKV_EXTENT_SEALED, op_query(self->dev, self->pool, self->a, &refs));
	EXPECT_EQ(2, refs);
	ASSERT_EQ(0, pool_manage(self->dev, self->pool, 0, NULL));
	ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_FREE, self->a));
	EXPECT_EQ(-ESTALE, op_query(self->dev, self->pool, self->a, NULL));
	EXPECT_EQ(4 * PAGE, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_QUARANTINED));
	EXPECT_EQ(-ESTALE, op_extent(self->dev, self->pool, OMNIKV_BATCH_LEASE, self->a));
	EXPECT_EQ(-EPERM, op_extent(self->dev, self->pool, OMNIKV_BATCH_RELEASE, self->a));
	ASSERT_EQ(0, op_extent(self->dev2, self->pool2, OMNIKV_BATCH_RELEASE, self->a));
	EXPECT_EQ(4 * PAGE, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_QUARANTINED));
	ASSERT_EQ(0, op_extent(self->dev2, self->pool2, OMNIKV_BATCH_RELEASE, self->a));
	EXPECT_EQ(0, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_QUARANTINED));
	EXPECT_EQ(-ESTALE, op_extent(self->dev2, self->pool2, OMNIKV_BATCH_RELEASE, self->a));
}

TEST_F(pool, lists_are_all_or_nothing)
{
	struct omnikv_extent exts[9];

	ASSERT_EQ(0, op_alloc_list(self->dev, self->pool, 2, 0, exts, 8));
	exts[8] = exts[0];
	EXPECT_EQ(-EINVAL, op_list(self->dev, self->pool, OMNIKV_BATCH_SEAL, exts, 9));
	exts[8].generation += 4;
	EXPECT_EQ(-ESTALE, op_list(self->dev, self->pool, OMNIKV_BATCH_SEAL, exts, 9));
	EXPECT_EQ(16 * PAGE, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_PRIVATE));
	ASSERT_EQ(0, op_list(self->dev, self->pool, OMNIKV_BATCH_SEAL, exts, 8));
	EXPECT_EQ(16 * PAGE, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_SEALED));
	EXPECT_EQ(-ESTALE, op_list(self->dev2, self->pool2, OMNIKV_BATCH_LEASE, exts, 9));
	EXPECT_EQ(0, op_list(self->dev2, self->pool2, OMNIKV_BATCH_LEASE, exts, 8));
	EXPECT_EQ(0, op_list(self->dev2, self->pool2, OMNIKV_BATCH_RELEASE, exts, 8));
	EXPECT_EQ(-EPERM, op_list(self->dev2, self->pool2, OMNIKV_BATCH_RELEASE, exts, 8));
	/* More than there is: nothing is taken. */
	EXPECT_EQ(-ENOSPC, op_alloc_list(self->dev, self->pool, 1024, 0, exts, 5));
	EXPECT_EQ(POOL_BYTES - 16 * PAGE, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_FREE));
}

TEST_F(pool, memory_comes_zeroed_unless_the_pool_is_trusted)
{
	unsigned char *base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, self->pool, 0);
	size_t i, sum = 0;

	ASSERT_NE(MAP_FAILED, (void *)base);
	memset(base, 0xa5, POOL_BYTES);
	EXPECT_EQ(-EPERM, op_alloc(self->dev, self->pool, 1024, OMNIKV_BATCH_ALLOC_F_NO_ZERO, &self->a));
	ASSERT_EQ(0, op_alloc(self->dev, self->pool, 1024, 0, &self->a));
	for (i = 0; i < 1024 * PAGE; i++)
		sum += base[self->a.granule * PAGE + i];
	EXPECT_EQ(0, sum);
	EXPECT_EQ(0xa5, base[(self->a.granule * PAGE + 1024 * PAGE) % POOL_BYTES]);
	ASSERT_EQ(0, pool_manage(self->dev, self->pool, 0, NULL));
	ASSERT_EQ(0, op_alloc(self->dev, self->pool, 1, OMNIKV_BATCH_ALLOC_F_NO_ZERO, &self->b));
	EXPECT_EQ(0xa5, base[self->b.granule * PAGE]);
	munmap(base, POOL_BYTES);
}

TEST_F(pool, own_private_extents_are_listed_with_their_cookies)
{
	struct omnikv_extent_entry entries[8];
	struct omnikv_ioc_extent_list req = {
		.pool_fd = self->pool, .states = 1u << OMNIKV_EXTENT_PRIVATE, .count = 2,
		.entries = (uintptr_t)entries,
	};
	struct omnikv_extent other;
	int i;

	for (i = 0; i < 3; i++) {
		struct omnikv_batch_op op = { .opcode = OMNIKV_BATCH_ALLOC, .extent.nr_granules = 1, .cookie = 70 + i };

		ASSERT_EQ(0, one(self->dev, self->pool, 0, &op));
		ASSERT_EQ(0, op_alloc(self->dev2, self->pool2, 1, 0, &other));
	}
	ASSERT_EQ(0, okv_ioctl(self->dev, OMNIKV_IOC_EXTENT_LIST, &req));
	EXPECT_EQ(2, req.count);
	EXPECT_NE(~0ULL, req.from);
	EXPECT_EQ(70, entries[0].cookie);
	EXPECT_EQ(71, entries[1].cookie);
	ASSERT_EQ(0, okv_ioctl(self->dev, OMNIKV_IOC_EXTENT_LIST, &req));
	EXPECT_EQ(1, req.count);
	EXPECT_EQ(72, entries[0].cookie);
	EXPECT_EQ(OMNIKV_EXTENT_PRIVATE | OMNIKV_STATE_F_MINE, entries[0].state);
	EXPECT_EQ(~0ULL, req.from);
	req.from = 0;
	req.count = 8;
	req.states = 1u << OMNIKV_EXTENT_SEALED;
	EXPECT_EQ(-EPERM, okv_ioctl(self->dev, OMNIKV_IOC_EXTENT_LIST, &req));
}

TEST_F(pool, old_manager_is_fenced)
{
	struct omnikv_batch_op op = { .opcode = OMNIKV_BATCH_FREE };
	uint32_t epoch, epoch2;

	ASSERT_EQ(0, pool_manage(self->dev, self->pool, 0, &epoch));
	EXPECT_EQ(1, epoch);
	EXPECT_EQ(-EBUSY, pool_manage(self->dev2, self->pool2, 0, &epoch2));
	ASSERT_EQ(0, op_alloc(self->dev, self->pool, 1, OMNIKV_BATCH_ALLOC_F_META, &self->a));
	EXPECT_EQ(OMNIKV_EXTENT_META, op_query(self->dev, self->pool, self->a, NULL));
	EXPECT_EQ(-EPERM, op_alloc(self->dev2, self->pool2, 1, OMNIKV_BATCH_ALLOC_F_META, &self->b));
	ASSERT_EQ(0, pool_manage(self->dev2, self->pool2, OMNIKV_MANAGE_F_FORCE, &epoch2));
	EXPECT_EQ(2, epoch2);
	/* META stays; the old manager's calls are refused, with and without its epoch. */
	op.extent = self->a;
	EXPECT_EQ(-ESTALE, one(self->dev, self->pool, epoch, &op));
	EXPECT_EQ(-EPERM, one(self->dev, self->pool, 0, &op));
	EXPECT_EQ(0, one(self->dev2, self->pool2, epoch2, &op));
	EXPECT_EQ(-ENOENT, pool_manage(self->dev, self->pool, OMNIKV_MANAGE_F_RELEASE, NULL));
	EXPECT_EQ(0, pool_manage(self->dev2, self->pool2, OMNIKV_MANAGE_F_RELEASE, NULL));
	EXPECT_EQ(0, pool_manage(self->dev, self->pool, 0, &epoch));
	EXPECT_EQ(3, epoch);
}

TEST_F(pool, seal_under_an_old_epoch_is_refused)
{
	struct omnikv_batch_op op = { .opcode = OMNIKV_BATCH_SEAL };
	uint32_t epoch;

	ASSERT_EQ(0, pool_manage(self->dev2, self->pool2, 0, &epoch));
	ASSERT_EQ(0, op_alloc(self->dev, self->pool, 1, 0, &self->a));
	op.extent = self->a;
	EXPECT_EQ(-ESTALE, one(self->dev, self->pool, epoch + 1, &op));
	EXPECT_EQ(0, one(self->dev, self->pool, epoch, &op));
}

TEST_F(pool, clients_end_and_their_holdings_with_them)
{
	int dev3 = dev_open();
	int i;

	ASSERT_GE(dev3, 0);
	ASSERT_EQ(0, op_alloc(dev3, self->pool, 64, 0, &self->a));
	ASSERT_EQ(0, op_alloc(dev3, self->pool, 8, 0, &self->b));
	ASSERT_EQ(0, op_extent(dev3, self->pool, OMNIKV_BATCH_SEAL, self->b));
	ASSERT_EQ(0, op_extent(dev3, self->pool, OMNIKV_BATCH_LEASE, self->b));
	close(dev3);
	for (i = 0; i < 100 && pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_QUARANTINED); i++)
		sleep_ms(10);
	EXPECT_EQ(POOL_BYTES - 8 * PAGE, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_FREE));
	EXPECT_EQ(8 * PAGE, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_SEALED));
	EXPECT_EQ(-ESTALE, op_query(self->dev, self->pool, self->a, NULL));
	ASSERT_EQ(0, pool_manage(self->dev, self->pool, 0, NULL));
	ASSERT_EQ(0, op_extent(self->dev, self->pool, OMNIKV_BATCH_FREE, self->b));
	EXPECT_EQ(-ESTALE, op_query(self->dev, self->pool, self->b, NULL));
}

TEST_F(pool, next_extent_lies_behind_the_last_where_that_is_free)
{
	struct omnikv_batch_op op = {
		.opcode = OMNIKV_BATCH_ALLOC, .flags = OMNIKV_BATCH_ALLOC_F_AFTER, .extent.nr_granules = 3,
	};

	ASSERT_EQ(0, op_alloc(self->dev, self->pool, 5, 0, &self->a));
	op.extent.granule = self->a.granule;
	ASSERT_EQ(0, one(self->dev, self->pool, 0, &op));
	EXPECT_EQ(self->a.granule + 5, op.extent.granule);
}

TEST_F(pool, batch_stops_at_the_first_error)
{
	struct omnikv_batch_op ops[4] = {
		{ .opcode = OMNIKV_BATCH_ALLOC, .extent.nr_granules = 1 },
		{ .opcode = OMNIKV_BATCH_SEAL, .extent = { .granule = 3, .generation = 1, .nr_granules = 1 } },
		{ .opcode = OMNIKV_BATCH_NOP },
		{ .opcode = OMNIKV_BATCH_ALLOC, .extent.nr_granules = 1 },
	};

	EXPECT_EQ(1, batch(self->dev, self->pool, 0, ops, 4));
	EXPECT_EQ(0, ops[0].res);
	EXPECT_EQ(-ESTALE, ops[1].res);
	EXPECT_EQ(-ECANCELED, ops[2].res);
	EXPECT_EQ(-ECANCELED, ops[3].res);
	EXPECT_EQ(PAGE, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_PRIVATE));
	EXPECT_EQ(-EFAULT, batch(self->dev, self->pool, 0, (void *)8, 4));
	EXPECT_EQ(-EINVAL, batch(self->dev, self->pool, 0, ops, 0));
	EXPECT_EQ(-EINVAL, batch(self->dev, self->pool, 0, ops, OMNIKV_BATCH_MAX + 1));
	EXPECT_EQ(-EBADF, batch(self->dev, self->dev, 0, ops, 1));
}

TEST_F(pool, batch_in_memory_that_cannot_be_written_does_nothing)
{
	unsigned char *pages = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct omnikv_batch_op op = { .opcode = OMNIKV_BATCH_ALLOC, .extent.nr_granules = 1 };
	/* Begins on one page; its result, and the second one, are on the next. */
	struct omnikv_batch_op *ops = (void *)(pages + PAGE - 40);
	int page;

	ASSERT_NE(MAP_FAILED, (void *)pages);
	for (page = 0; page < 2; page++) {
		ops[0] = ops[1] = op;
		ASSERT_EQ(0, mprotect(pages + page * PAGE, PAGE, PROT_READ));
		EXPECT_EQ(-EFAULT, batch(self->dev, self->pool, 0, ops, 2));
		EXPECT_EQ(0, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_PRIVATE));
		ASSERT_EQ(0, mprotect(pages + page * PAGE, PAGE, PROT_READ | PROT_WRITE));
	}
	EXPECT_EQ(2, batch(self->dev, self->pool, 0, ops, 2));

	/* Only the last word, behind the last result, is on a page of its own. */
	ops = (void *)(pages + 2 * PAGE + 4 - 2 * sizeof(op));
	memcpy(&ops[0], &op, sizeof(op));
	memcpy(&ops[1], &op, sizeof(op));
	ASSERT_EQ(0, mprotect(pages + 2 * PAGE, PAGE, PROT_READ));
	EXPECT_EQ(-EFAULT, batch(self->dev, self->pool, 0, ops, 2));
	EXPECT_EQ(2 * PAGE, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_PRIVATE));

	/* The request itself. */
	ASSERT_EQ(0, mprotect(pages + 2 * PAGE, PAGE, PROT_READ | PROT_WRITE));
	*(struct omnikv_ioc_batch *)pages = (struct omnikv_ioc_batch) { .pool_fd = self->pool, .nr_ops = 2, .ops = (uintptr_t)ops };
	ASSERT_EQ(0, mprotect(pages, PAGE, PROT_READ));
	EXPECT_EQ(-1, ioctl(self->dev, OMNIKV_IOC_BATCH, pages));
	EXPECT_EQ(EFAULT, errno);
	EXPECT_EQ(2 * PAGE, pool_state_bytes(self->dev, self->pool, OMNIKV_EXTENT_PRIVATE));
	munmap(pages, 3 * PAGE);
}

TEST_F(pool, client_quota_is_kept)
{
	struct omnikv_ioc_pool_create req = pool_request("q", 2 * UNIT, OMNIKV_CREATE_F_TRANSIENT | OMNIKV_CREATE_F_ACCEPT_SMALL);
	struct omnikv_extent ext = { 0 };

	req.client_bytes = 4 * PAGE;
	ASSERT_EQ(0, okv_ioctl(self->dev, OMNIKV_IOC_POOL_CREATE, &req));
	EXPECT_EQ(-EDQUOT, op_alloc(self->dev, req.pool_fd, 5, 0, &ext));
	EXPECT_EQ(0, op_alloc(self->dev, req.pool_fd, 4, 0, &ext));
	EXPECT_EQ(-EDQUOT, op_alloc(self->dev, req.pool_fd, 1, 0, &self->a));
	EXPECT_EQ(0, op_extent(self->dev, req.pool_fd, OMNIKV_BATCH_FREE, ext));
	EXPECT_EQ(0, op_alloc(self->dev, req.pool_fd, 1, 0, &ext));
	close(req.pool_fd);
	/* It was TRANSIENT: the name is free. */
	EXPECT_EQ(-ENOENT, pool_open(self->dev, "q", 0));
}

TEST_F(pool, revoked_client_is_refused)
{
	struct omnikv_client_entry entries[4];
	struct omnikv_ioc_client_list list = {
		.pool_fd = self->pool, .count = 4, .entries = (uintptr_t)entries,
	};
	struct omnikv_ioc_client_revoke revoke = { .pool_fd = self->pool };

	ASSERT_EQ(0, op_alloc(self->dev, self->pool, 1, 0, &self->b));
	ASSERT_EQ(0, op_alloc(self->dev2, self->pool2, 4, 0, &self->a));
	ASSERT_EQ(0, okv_ioctl(self->dev, OMNIKV_IOC_CLIENT_LIST, &list));
	ASSERT_EQ(2, list.count);
	EXPECT_EQ(~0ULL, list.from);
	EXPECT_EQ(getpid(), entries[1].pid);
	EXPECT_EQ(4 * PAGE, entries[1].private_bytes);
	EXPECT_STREQ("extent_life", (char *)entries[1].comm);
	revoke.id = entries[1].id;
	ASSERT_EQ(0, okv_ioctl(self->dev, OMNIKV_IOC_CLIENT_REVOKE, &revoke));
	EXPECT_EQ(-ENOENT, okv_ioctl(self->dev, OMNIKV_IOC_CLIENT_REVOKE, &revoke));
	EXPECT_EQ(-EPERM, op_alloc(self->dev2, self->pool2, 1, 0, &self->a));
	EXPECT_EQ(0, op_alloc(self->dev, self->pool, 1, 0, &self->b));
}

TEST_HARNESS_MAIN

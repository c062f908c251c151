// SPDX-License-Identifier: GPL-2.0-only
/*
 * An extent's life through the public calls of a pool: allocate, seal, lease, free.
 *
 * Expected values are worked out from the pool's contract (omnikv/pool.h). One thread.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include <omnikv/pool.h>

#include "tests/harness/any_pool.h"

struct fixture {
	struct omnikv_pool	*pool;
	struct omnikv_client	*manager;
	struct omnikv_client	*engine;
	struct omnikv_client	*other;
};

static int set_up(void **state)
{
	static struct fixture fix;

	memset(&fix, 0, sizeof(fix));
	*state = &fix;
	return any_pool_open("4M", NULL, &fix.pool) ||
	       omnikv_client_open(fix.pool, OMNIKV_CLIENT_F_MANAGER, &fix.manager) ||
	       omnikv_client_open(fix.pool, 0, &fix.engine) || omnikv_client_open(fix.pool, 0, &fix.other);
}

static int tear_down(void **state)
{
	struct fixture *fix = *state;

	omnikv_client_close(fix->other);
	omnikv_client_close(fix->engine);
	omnikv_client_close(fix->manager);
	omnikv_pool_close(fix->pool);
	return 0;
}

static struct omnikv_pool_info info_of(struct omnikv_pool *pool)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	return info;
}

static void state_is(struct omnikv_client *client, const struct omnikv_extent *ext, unsigned int state,
		     unsigned int nr_refs)
{
	struct omnikv_extent_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_extent_query(client, ext, &info), 0);
	assert_int_equal(info.state, state);
	assert_int_equal(info.nr_refs, nr_refs);
	assert_int_equal(info.bytes, ext->nr_granules * 4096ull);
}

static void new_extents_are_zeroed_and_follow_one_another(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent a[3], b;
	unsigned char *bytes;
	int i;

	assert_int_equal(omnikv_extent_alloc(fix->engine, 4, 3, NULL, 0, a), 0);
	for (i = 0; i < 3; i++) {
		assert_int_equal(a[i].granule, a[0].granule + 4 * i);
		assert_int_equal(a[i].nr_granules, 4);
		assert_int_not_equal(a[i].generation, 0);
		bytes = omnikv_pool_addr(fix->pool, &a[i]);
		assert_ptr_equal(bytes, (char *)omnikv_pool_base(fix->pool) + a[i].granule * 4096);
		memset(bytes, 0xa5, 4 * 4096);
		state_is(fix->engine, &a[i], OMNIKV_EXTENT_PRIVATE, 0);
	}
	assert_int_equal(omnikv_extent_alloc(fix->engine, 2, 1, &a[2], 0, &b), 0);
	assert_int_equal(b.granule, a[2].granule + 4);
	assert_int_equal(omnikv_extent_free(fix->engine, a, 3), 0);

	/* Of 1024 granules only 1022 are free, and those not in one run. */
	assert_int_equal(omnikv_extent_alloc(fix->engine, 1023, 1, NULL, 0, a), -ENOSPC);
	assert_int_equal(omnikv_extent_alloc(fix->engine, 511, 2, NULL, 0, a), -ENOSPC);
	assert_int_equal(info_of(fix->pool).free_bytes, 1022 * 4096);

	/* The soiled granules come back zeroed. */
	assert_int_equal(omnikv_extent_free(fix->engine, &b, 1), 0);
	assert_int_equal(omnikv_extent_alloc(fix->engine, 1024, 1, NULL, 0, a), 0);
	bytes = omnikv_pool_addr(fix->pool, a);
	for (i = 0; i < 1024 * 4096; i++)
		if (bytes[i])
			fail_msg("byte %d is 0x%02x", i, bytes[i]);
}

static void no_zero_leaves_the_bytes_alone(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent ext;

	assert_int_equal(omnikv_extent_alloc(fix->engine, 1024, 1, NULL, 0, &ext), 0);
	memset(omnikv_pool_addr(fix->pool, &ext), 0x5a, 4096);
	assert_int_equal(omnikv_extent_free(fix->engine, &ext, 1), 0);
	assert_int_equal(omnikv_extent_alloc(fix->engine, 1024, 1, NULL, OMNIKV_ALLOC_F_NO_ZERO, &ext), 0);
	assert_int_equal(*(unsigned char *)omnikv_pool_addr(fix->pool, &ext), 0x5a);
}

static void zero_lengths_are_refused(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent ext = { .granule = 7 }, empty = { 0 };
	struct omnikv_pool *pool;

	assert_int_equal(omnikv_extent_alloc(fix->engine, 0, 1, NULL, 0, &ext), -EINVAL);
	assert_int_equal(omnikv_extent_alloc(fix->engine, 1, 0, NULL, 0, &ext), -EINVAL);
	assert_int_equal(ext.granule, 7);
	assert_int_equal(omnikv_extent_seal(fix->engine, NULL, 1), -EINVAL);
	assert_int_equal(omnikv_extent_seal(fix->engine, NULL, 0), 0);
	assert_int_equal(omnikv_extent_free(fix->engine, &empty, 1), -ESTALE);
	assert_int_equal(omnikv_extent_lease(fix->engine, &empty, 1), -ESTALE);
	assert_int_equal(omnikv_extent_alloc(fix->engine, 1, 1, NULL, 0, &ext), 0);
	ext.nr_granules = 0;
	assert_int_equal(omnikv_extent_free(fix->engine, &ext, 1), -EINVAL);
	assert_int_equal(omnikv_pool_open("0", NULL, &pool, NULL), -EINVAL);
	assert_int_equal(omnikv_pool_open("", NULL, &pool, NULL), -EINVAL);
}

static void unknown_flags_are_refused(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_client *client;
	struct omnikv_extent ext;

	assert_int_equal(omnikv_extent_alloc(fix->engine, 1, 1, NULL, 4, &ext), -EINVAL);
	assert_int_equal(omnikv_client_open(fix->pool, 2, &client), -EINVAL);
}

static void sealed_extents_are_shared_and_freed_by_the_manager(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent ext;

	assert_int_equal(omnikv_extent_alloc(fix->engine, 4, 1, NULL, 0, &ext), 0);
	assert_int_equal(omnikv_extent_lease(fix->other, &ext, 1), -EPERM);
	assert_int_equal(omnikv_extent_lease(fix->engine, &ext, 1), -EBUSY);
	assert_int_equal(omnikv_extent_seal(fix->other, &ext, 1), -EPERM);
	assert_int_equal(omnikv_extent_free(fix->other, &ext, 1), -EPERM);
	assert_int_equal(omnikv_extent_free(fix->manager, &ext, 1), -EPERM);
	assert_int_equal(omnikv_extent_seal(fix->engine, &ext, 1), 0);
	assert_int_equal(omnikv_extent_seal(fix->engine, &ext, 1), -EBUSY);
	state_is(fix->other, &ext, OMNIKV_EXTENT_SEALED, 0);
	assert_int_equal(omnikv_extent_lease(fix->other, &ext, 1), 0);
	assert_int_equal(omnikv_extent_lease(fix->other, &ext, 1), 0);
	state_is(fix->other, &ext, OMNIKV_EXTENT_SEALED, 2);
	assert_int_equal(omnikv_extent_release(fix->engine, &ext, 1), -EPERM);
	assert_int_equal(omnikv_extent_free(fix->engine, &ext, 1), -EPERM);
	assert_int_equal(omnikv_extent_free(fix->manager, &ext, 1), 0);

	/* Its name is old at once; the two leases can still be given back. */
	assert_int_equal(omnikv_extent_free(fix->manager, &ext, 1), -ESTALE);
	assert_int_equal(omnikv_extent_lease(fix->other, &ext, 1), -ESTALE);
	assert_int_equal(info_of(fix->pool).state_bytes[OMNIKV_EXTENT_QUARANTINED], 4 * 4096);
	assert_int_equal(omnikv_extent_release(fix->other, &ext, 1), 0);
	assert_int_equal(info_of(fix->pool).free_bytes, 1020 * 4096);
	assert_int_equal(omnikv_extent_release(fix->other, &ext, 1), 0);
	assert_int_equal(info_of(fix->pool).free_bytes, 1024 * 4096);
	assert_int_equal(omnikv_extent_release(fix->other, &ext, 1), -ESTALE);
}

static void lists_are_all_or_nothing(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent ext[4], twice[2];

	assert_int_equal(omnikv_extent_alloc(fix->engine, 1, 3, NULL, 0, ext), 0);
	assert_int_equal(omnikv_extent_alloc(fix->other, 1, 1, NULL, 0, &ext[3]), 0);
	assert_int_equal(omnikv_extent_seal(fix->engine, ext, 4), -EPERM);
	assert_int_equal(omnikv_extent_free(fix->engine, ext, 4), -EPERM);
	state_is(fix->engine, &ext[0], OMNIKV_EXTENT_PRIVATE, 0);
	twice[0] = twice[1] = ext[0];
	assert_int_equal(omnikv_extent_free(fix->engine, twice, 2), -EINVAL);
	assert_int_equal(omnikv_extent_seal(fix->engine, twice, 2), -EINVAL);
	state_is(fix->engine, &ext[0], OMNIKV_EXTENT_PRIVATE, 0);
	assert_int_equal(omnikv_extent_seal(fix->engine, ext, 3), 0);
	twice[1] = ext[3];
	assert_int_equal(omnikv_extent_lease(fix->engine, twice, 2), -EPERM);
	state_is(fix->engine, &ext[0], OMNIKV_EXTENT_SEALED, 0);
	assert_int_equal(omnikv_extent_lease(fix->engine, twice, 1), 0);
	assert_int_equal(omnikv_extent_release(fix->engine, ext, 2), -EPERM);
	state_is(fix->engine, &ext[0], OMNIKV_EXTENT_SEALED, 1);
}

static void memory_freed_under_a_transfer_is_not_reused_before_it_ends(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent ext, all;

	assert_int_equal(omnikv_extent_alloc(fix->engine, 4, 1, NULL, 0, &ext), 0);
	assert_int_equal(omnikv_extent_io_get(fix->other, &ext, 1), -EPERM);
	assert_int_equal(omnikv_extent_io_get(fix->engine, &ext, 1), 0);
	assert_int_equal(omnikv_extent_io_get(fix->engine, &ext, 1), 0);
	assert_int_equal(omnikv_extent_seal(fix->engine, &ext, 1), -EBUSY);
	assert_int_equal(omnikv_extent_free(fix->engine, &ext, 1), 0);
	assert_int_equal(omnikv_extent_alloc(fix->other, 1024, 1, NULL, 0, &all), -ENOSPC);
	omnikv_extent_io_put(fix->engine, &ext, 1);
	assert_int_equal(omnikv_extent_alloc(fix->other, 1024, 1, NULL, 0, &all), -ENOSPC);
	/* Somebody else's put changes nothing. */
	omnikv_extent_io_put(fix->other, &ext, 1);
	assert_int_equal(omnikv_extent_alloc(fix->other, 1024, 1, NULL, 0, &all), -ENOSPC);
	omnikv_extent_io_put(fix->engine, &ext, 1);
	assert_int_equal(omnikv_extent_alloc(fix->other, 1024, 1, NULL, 0, &all), 0);
	/* One put too many neither. */
	omnikv_extent_io_put(fix->engine, &ext, 1);
	state_is(fix->other, &all, OMNIKV_EXTENT_PRIVATE, 0);
	assert_int_equal(omnikv_extent_free(fix->engine, &ext, 1), -ESTALE);
}

static void a_client_gives_everything_back_when_it_ends(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent mine[3], sealed, meta;

	assert_int_equal(omnikv_extent_alloc(fix->other, 4, 3, NULL, 0, mine), 0);
	assert_int_equal(omnikv_extent_alloc(fix->other, 1, 1, NULL, 0, &sealed), 0);
	assert_int_equal(omnikv_extent_seal(fix->other, &sealed, 1), 0);
	assert_int_equal(omnikv_extent_alloc(fix->manager, 2, 1, NULL, OMNIKV_ALLOC_F_META, &meta), 0);
	assert_int_equal(omnikv_extent_lease(fix->other, &sealed, 1), 0);
	assert_int_equal(omnikv_extent_io_get(fix->other, &mine[1], 1), 0);
	omnikv_client_close(fix->other);

	/* Left: what is sealed, without its lease; META; and what the transfer still uses. */
	state_is(fix->engine, &sealed, OMNIKV_EXTENT_SEALED, 0);
	state_is(fix->engine, &meta, OMNIKV_EXTENT_META, 0);
	assert_int_equal(info_of(fix->pool).nr_extents[OMNIKV_EXTENT_PRIVATE], 0);
	assert_int_equal(info_of(fix->pool).nr_extents[OMNIKV_EXTENT_QUARANTINED], 1);
	assert_int_equal(info_of(fix->pool).free_bytes, (1024 - 4 - 1 - 2) * 4096);
	assert_int_equal(info_of(fix->pool).nr_clients, 2);
	omnikv_extent_io_put(fix->other, &mine[1], 1);
	fix->other = NULL;
	assert_int_equal(info_of(fix->pool).free_bytes, (1024 - 1 - 2) * 4096);
}

static void a_pool_has_one_manager(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_client *second;
	struct omnikv_extent meta;

	assert_int_equal(omnikv_client_open(fix->pool, OMNIKV_CLIENT_F_MANAGER, &second), -EBUSY);
	assert_int_equal(omnikv_extent_alloc(fix->engine, 1, 1, NULL, OMNIKV_ALLOC_F_META, &meta), -EPERM);
	assert_int_equal(omnikv_extent_alloc(fix->manager, 1, 1, NULL, OMNIKV_ALLOC_F_META, &meta), 0);
	state_is(fix->engine, &meta, OMNIKV_EXTENT_META, 0);
	assert_int_equal(omnikv_extent_io_get(fix->engine, &meta, 1), -EPERM);
	omnikv_client_close(fix->manager);
	fix->manager = NULL;
	state_is(fix->engine, &meta, OMNIKV_EXTENT_META, 0);
	assert_int_equal(omnikv_client_open(fix->pool, OMNIKV_CLIENT_F_MANAGER, &fix->manager), 0);
	assert_int_equal(omnikv_extent_free(fix->manager, &meta, 1), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		TEST(new_extents_are_zeroed_and_follow_one_another),
		TEST(no_zero_leaves_the_bytes_alone),
		TEST(zero_lengths_are_refused),
		TEST(unknown_flags_are_refused),
		TEST(sealed_extents_are_shared_and_freed_by_the_manager),
		TEST(lists_are_all_or_nothing),
		TEST(memory_freed_under_a_transfer_is_not_reused_before_it_ends),
		TEST(a_client_gives_everything_back_when_it_ends),
		TEST(a_pool_has_one_manager),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * One suite for every provider of pools: what omnikv/pool.h and omnikv/window.h promise.
 *
 * The pool is the program's argument, or the variable OMNIKV_POOL, or an embedded one of 32 MiB.
 * It must have 16 MiB free, no manager, and be used by nobody else meanwhile; each test leaves it
 * as it was. Figures are compared with those before the test, so a pool may hold other extents.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include <omnikv/pool.h>
#include <omnikv/window.h>

#include "tests/harness/any_pool.h"

#define PAGE	4096ull
/* Tests of many rounds make fewer on a machine that is slow, as under a kernel that checks itself. */
#define LONGEST_S	30

static const char *spec;

struct fixture {
	struct omnikv_pool	*pool;
	struct omnikv_client	*manager;
	struct omnikv_client	*engine;
	struct omnikv_client	*other;
	uint64_t		granule;
	struct omnikv_pool_info	before;
};

static struct omnikv_pool_info info_of(struct omnikv_pool *pool)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	return info;
}

static int set_up(void **state)
{
	struct omnikv_pool_config config = { .size = sizeof(config), .flags = OMNIKV_POOL_F_NO_HUGETLB };
	static struct fixture fix;
	struct omnikv_error err = { "" };

	memset(&fix, 0, sizeof(fix));
	*state = &fix;
	any_pool_may_fail();
	if (omnikv_pool_open(spec, &config, &fix.pool, &err)) {
		fprintf(stderr, "# %s\n", err.text);
		return -1;
	}
	fix.granule = omnikv_pool_granule_bytes(fix.pool);
	fix.before = info_of(fix.pool);
	return omnikv_client_open(fix.pool, OMNIKV_CLIENT_F_MANAGER, &fix.manager) ||
	       omnikv_client_open(fix.pool, 0, &fix.engine) || omnikv_client_open(fix.pool, 0, &fix.other);
}

/* Whatever a test left PRIVATE ends with its client; what it sealed it must have freed. */
static int tear_down(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_pool_info after;
	bool is_same;

	omnikv_client_close(fix->other);
	omnikv_client_close(fix->engine);
	omnikv_client_close(fix->manager);
	after = info_of(fix->pool);
	is_same = after.free_bytes == fix->before.free_bytes && after.nr_clients == fix->before.nr_clients &&
		  !memcmp(after.state_bytes, fix->before.state_bytes, sizeof(after.state_bytes));
	if (!is_same)
		fprintf(stderr, "# %llu bytes free before, %llu after\n", (unsigned long long)fix->before.free_bytes,
			(unsigned long long)after.free_bytes);
	omnikv_pool_close(fix->pool);
	return !is_same;
}

static struct omnikv_extent_info query(struct omnikv_client *client, const struct omnikv_extent *ext)
{
	struct omnikv_extent_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_extent_query(client, ext, &info), 0);
	return info;
}

static void state_is(struct fixture *fix, const struct omnikv_extent *ext, unsigned int state, unsigned int nr_refs)
{
	struct omnikv_extent_info info = query(fix->engine, ext);

	assert_int_equal(info.state, state);
	assert_int_equal(info.nr_refs, nr_refs);
	assert_int_equal(info.bytes, ext->nr_granules * fix->granule);
}

static void alloc(struct omnikv_client *client, uint32_t nr, uint32_t count, struct omnikv_extent *out)
{
	assert_int_equal(omnikv_extent_alloc(client, nr, count, NULL, 0, out), 0);
}

static void sealed(struct fixture *fix, uint32_t nr, uint32_t count, struct omnikv_extent *out)
{
	alloc(fix->engine, nr, count, out);
	assert_int_equal(omnikv_extent_seal(fix->engine, out, count), 0);
}

/* ---- pools and extents ------------------------------------------------------------------ */

static void figures_add_up(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_pool_info info = info_of(fix->pool);
	uint64_t sum = 0;
	uint32_t i;

	for (i = 0; i < OMNIKV_EXTENT_NR_STATES; i++)
		sum += info.state_bytes[i];
	assert_int_equal(sum, info.usable_bytes);
	assert_int_equal(info.usable_bytes, info.nr_granules * fix->granule);
	assert_int_equal(info.free_bytes, info.state_bytes[OMNIKV_EXTENT_FREE]);
	assert_true(info.largest_free_bytes <= info.free_bytes);
	assert_true(info.free_bytes >= 16 << 20);
	assert_int_equal(info.nr_clients, fix->before.nr_clients + 3);
	assert_int_equal(info.granule_bytes % PAGE, 0);
}

static void new_extents_are_zeroed(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent ext[4];
	unsigned char *bytes;
	uint64_t i;
	int round, e;

	for (round = 0; round < 2; round++) {
		alloc(fix->engine, 3, 4, ext);
		for (e = 0; e < 4; e++) {
			bytes = omnikv_pool_addr(fix->pool, &ext[e]);
			for (i = 0; i < 3 * fix->granule; i++)
				if (bytes[i])
					fail_msg("byte %d of extent %d is 0x%02x", (int)i, e, bytes[i]);
			memset(bytes, 0xee, 3 * fix->granule);
			assert_true(query(fix->engine, &ext[e]).is_mine);
			assert_false(query(fix->other, &ext[e]).is_mine);
		}
		assert_int_equal(omnikv_extent_free(fix->engine, ext, 4), 0);
	}
}

static void extents_do_not_overlap_and_follow_one_another(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent ext[16], next;
	int i, nr_behind = 0;

	alloc(fix->engine, 2, 16, ext);
	for (i = 0; i < 16; i++)
		*(uint64_t *)omnikv_pool_addr(fix->pool, &ext[i]) = 1000 + i;
	for (i = 0; i < 16; i++) {
		assert_int_equal(*(uint64_t *)omnikv_pool_addr(fix->pool, &ext[i]), 1000 + i);
		assert_int_equal(ext[i].nr_granules, 2);
		nr_behind += i && ext[i].granule == ext[i - 1].granule + 2;
	}
	assert_true(nr_behind >= 14);
	assert_int_equal(omnikv_extent_free(fix->engine, &ext[8], 1), 0);
	assert_int_equal(omnikv_extent_alloc(fix->engine, 2, 1, &ext[7], 0, &next), 0);
	assert_int_equal(next.granule, ext[8].granule);
	assert_true(next.generation > ext[8].generation);
}

static void an_allocation_is_all_or_nothing(void **state)
{
	struct fixture *fix = *state;
	uint64_t nr_free = info_of(fix->pool).free_bytes / fix->granule, left;
	uint32_t big = (uint32_t)(nr_free / 3);
	struct omnikv_extent ext[4] = { { .granule = 42 } };

	assert_int_equal(omnikv_extent_alloc(fix->engine, big, 4, NULL, OMNIKV_ALLOC_F_NO_ZERO, ext), -ENOSPC);
	assert_int_equal(info_of(fix->pool).free_bytes / fix->granule, nr_free);
	assert_int_equal(omnikv_extent_alloc(fix->engine, UINT32_MAX, UINT32_MAX, NULL, 0, ext), -ENOSPC);
	assert_int_equal(omnikv_extent_alloc(fix->engine, 0, 1, NULL, 0, ext), -EINVAL);
	assert_int_equal(omnikv_extent_alloc(fix->engine, 1, 0, NULL, 0, ext), -EINVAL);
	assert_int_equal(omnikv_extent_alloc(fix->engine, 1, 1, NULL, 0x80, ext), -EINVAL);
	left = info_of(fix->pool).largest_free_bytes / fix->granule;
	assert_int_equal(omnikv_extent_alloc(fix->engine, (uint32_t)left, 1, NULL, OMNIKV_ALLOC_F_NO_ZERO, ext), 0);
	assert_int_equal(info_of(fix->pool).free_bytes / fix->granule, nr_free - left);
}

static void names_end_with_their_extent(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent_info info = { .size = sizeof(info) };
	struct omnikv_extent ext, bad;

	alloc(fix->engine, 4, 1, &ext);
	bad = ext;
	bad.nr_granules = 3;
	assert_int_equal(omnikv_extent_seal(fix->engine, &bad, 1), -EINVAL);
	bad = ext;
	bad.granule += 1;
	assert_int_equal(omnikv_extent_seal(fix->engine, &bad, 1), -ESTALE);
	bad = ext;
	bad.granule = UINT64_MAX;
	assert_int_equal(omnikv_extent_query(fix->engine, &bad, &info), -ESTALE);
	bad = ext;
	bad.generation++;
	assert_int_equal(omnikv_extent_free(fix->engine, &bad, 1), -ESTALE);
	memset(&bad, 0, sizeof(bad));
	assert_int_equal(omnikv_extent_lease(fix->engine, &bad, 1), -ESTALE);
	assert_int_equal(omnikv_extent_free(fix->engine, &ext, 1), 0);
	assert_int_equal(omnikv_extent_free(fix->engine, &ext, 1), -ESTALE);
	assert_int_equal(omnikv_extent_seal(fix->engine, &ext, 1), -ESTALE);
	assert_int_equal(omnikv_extent_io_get(fix->engine, &ext, 1), -ESTALE);
	assert_int_equal(omnikv_extent_query(fix->engine, &ext, &info), -ESTALE);
	assert_int_equal(omnikv_extent_seal(fix->engine, NULL, 1), -EINVAL);
	assert_int_equal(omnikv_extent_seal(fix->engine, NULL, 0), 0);
}

static void owner_other_and_manager_have_their_rights(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent ext, meta;

	alloc(fix->engine, 1, 1, &ext);
	assert_int_equal(omnikv_extent_lease(fix->engine, &ext, 1), -EBUSY);
	assert_int_equal(omnikv_extent_lease(fix->other, &ext, 1), -EPERM);
	assert_int_equal(omnikv_extent_seal(fix->other, &ext, 1), -EPERM);
	assert_int_equal(omnikv_extent_free(fix->other, &ext, 1), -EPERM);
	assert_int_equal(omnikv_extent_free(fix->manager, &ext, 1), -EPERM);
	assert_int_equal(omnikv_extent_io_get(fix->other, &ext, 1), -EPERM);
	assert_int_equal(omnikv_extent_seal(fix->engine, &ext, 1), 0);
	assert_int_equal(omnikv_extent_seal(fix->engine, &ext, 1), -EBUSY);
	assert_int_equal(omnikv_extent_free(fix->engine, &ext, 1), -EPERM);
	assert_int_equal(omnikv_extent_release(fix->other, &ext, 1), -EPERM);
	assert_int_equal(omnikv_extent_free(fix->manager, &ext, 1), 0);

	assert_int_equal(omnikv_extent_alloc(fix->engine, 1, 1, NULL, OMNIKV_ALLOC_F_META, &meta), -EPERM);
	assert_int_equal(omnikv_extent_alloc(fix->manager, 1, 1, NULL, OMNIKV_ALLOC_F_META, &meta), 0);
	state_is(fix, &meta, OMNIKV_EXTENT_META, 0);
	assert_int_equal(omnikv_extent_lease(fix->engine, &meta, 1), -EPERM);
	assert_int_equal(omnikv_extent_free(fix->engine, &meta, 1), -EPERM);
	assert_int_equal(omnikv_extent_seal(fix->manager, &meta, 1), -EBUSY);
	assert_int_equal(omnikv_extent_free(fix->manager, &meta, 1), 0);
}

static void a_pool_has_one_manager_at_a_time(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_client *second;

	assert_int_equal(omnikv_client_open(fix->pool, OMNIKV_CLIENT_F_MANAGER, &second), -EBUSY);
	omnikv_client_close(fix->manager);
	fix->manager = NULL;
	assert_int_equal(omnikv_client_open(fix->pool, OMNIKV_CLIENT_F_MANAGER, &fix->manager), 0);
	assert_int_equal(omnikv_client_open(fix->pool, 0x80, &second), -EINVAL);
}

static void lists_are_all_or_nothing(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent ext[4], pair[2];

	alloc(fix->engine, 1, 3, ext);
	alloc(fix->other, 1, 1, &ext[3]);
	assert_int_equal(omnikv_extent_seal(fix->engine, ext, 4), -EPERM);
	assert_int_equal(omnikv_extent_free(fix->engine, ext, 4), -EPERM);
	state_is(fix, &ext[0], OMNIKV_EXTENT_PRIVATE, 0);
	pair[0] = pair[1] = ext[0];
	assert_int_equal(omnikv_extent_free(fix->engine, pair, 2), -EINVAL);
	assert_int_equal(omnikv_extent_seal(fix->engine, pair, 2), -EINVAL);
	state_is(fix, &ext[0], OMNIKV_EXTENT_PRIVATE, 0);
	assert_int_equal(omnikv_extent_seal(fix->engine, ext, 3), 0);
	pair[1] = ext[3];
	assert_int_equal(omnikv_extent_lease(fix->engine, pair, 2), -EPERM);
	state_is(fix, &ext[0], OMNIKV_EXTENT_SEALED, 0);
	assert_int_equal(omnikv_extent_lease(fix->engine, ext, 1), 0);
	assert_int_equal(omnikv_extent_release(fix->engine, ext, 2), -EPERM);
	state_is(fix, &ext[0], OMNIKV_EXTENT_SEALED, 1);
	assert_int_equal(omnikv_extent_release(fix->engine, ext, 1), 0);
	assert_int_equal(omnikv_extent_free(fix->manager, ext, 3), 0);
}

static void leased_memory_is_not_reused(void **state)
{
	struct fixture *fix = *state;
	uint64_t quarantined = fix->before.state_bytes[OMNIKV_EXTENT_QUARANTINED];
	struct omnikv_extent ext;

	sealed(fix, 2, 1, &ext);
	memset(omnikv_pool_addr(fix->pool, &ext), 0x77, 1);
	assert_int_equal(omnikv_extent_lease(fix->other, &ext, 1), 0);
	assert_int_equal(omnikv_extent_lease(fix->other, &ext, 1), 0);
	state_is(fix, &ext, OMNIKV_EXTENT_SEALED, 2);
	assert_int_equal(omnikv_extent_free(fix->manager, &ext, 1), 0);
	assert_int_equal(omnikv_extent_lease(fix->engine, &ext, 1), -ESTALE);
	assert_int_equal(info_of(fix->pool).state_bytes[OMNIKV_EXTENT_QUARANTINED], quarantined + 2 * fix->granule);
	assert_int_equal(omnikv_extent_release(fix->other, &ext, 1), 0);
	assert_int_equal(*(unsigned char *)omnikv_pool_addr(fix->pool, &ext), 0x77);
	assert_int_equal(omnikv_extent_release(fix->other, &ext, 1), 0);
	assert_int_equal(info_of(fix->pool).state_bytes[OMNIKV_EXTENT_QUARANTINED], quarantined);
	assert_int_equal(omnikv_extent_release(fix->other, &ext, 1), -ESTALE);
}

static void memory_of_a_transfer_is_not_reused(void **state)
{
	struct fixture *fix = *state;
	uint64_t quarantined = fix->before.state_bytes[OMNIKV_EXTENT_QUARANTINED];
	struct omnikv_extent ext;

	alloc(fix->engine, 2, 1, &ext);
	assert_int_equal(omnikv_extent_io_get(fix->engine, &ext, 1), 0);
	assert_int_equal(omnikv_extent_seal(fix->engine, &ext, 1), -EBUSY);
	assert_int_equal(omnikv_extent_free(fix->engine, &ext, 1), 0);
	omnikv_extent_io_put(fix->other, &ext, 1);
	assert_int_equal(info_of(fix->pool).state_bytes[OMNIKV_EXTENT_QUARANTINED], quarantined + 2 * fix->granule);
	omnikv_extent_io_put(fix->engine, &ext, 1);
	assert_int_equal(info_of(fix->pool).state_bytes[OMNIKV_EXTENT_QUARANTINED], quarantined);
	omnikv_extent_io_put(fix->engine, &ext, 1);
}

static void a_client_ends_with_all_that_it_holds(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent priv[3], ext;
	struct omnikv_window *window;
	struct omnikv_bind bind;

	alloc(fix->other, 4, 3, priv);
	sealed(fix, 1, 1, &ext);
	assert_int_equal(omnikv_extent_lease(fix->other, &ext, 1), 0);
	assert_int_equal(omnikv_window_create(fix->other, 16 * fix->granule, OMNIKV_WINDOW_F_RW, &window), 0);
	bind = (struct omnikv_bind){ priv[0], 0, 0, fix->granule };
	assert_int_equal(omnikv_window_bind(window, &bind, 1, NULL), 0);
	omnikv_client_close(fix->other);
	fix->other = NULL;
	state_is(fix, &ext, OMNIKV_EXTENT_SEALED, 0);
	assert_int_equal(info_of(fix->pool).state_bytes[OMNIKV_EXTENT_PRIVATE],
			 fix->before.state_bytes[OMNIKV_EXTENT_PRIVATE]);
	assert_int_equal(omnikv_extent_free(fix->manager, &ext, 1), 0);
}

/* ---- windows ---------------------------------------------------------------------------- */

static bool can_read(const void *at)
{
	char byte;
	struct iovec to = { &byte, 1 }, from = { (void *)at, 1 };

	return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
}

static bool can_write(void *at)
{
	char byte;
	struct iovec to = { &byte, 1 }, from = { at, 1 };

	/* The byte that is there already. */
	return process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1 &&
	       process_vm_writev(getpid(), &to, 1, &from, 1, 0) == 1;
}

static void windows_show_what_is_bound_and_nothing_else(void **state)
{
	struct fixture *fix = *state;
	uint64_t g = fix->granule;
	struct omnikv_extent ext[3];
	struct omnikv_window *rw;
	struct omnikv_bind binds[3];
	unsigned char *base;
	uint32_t nr_bound, i;

	alloc(fix->engine, 4, 3, ext);
	for (i = 0; i < 3; i++) {
		memset(omnikv_pool_addr(fix->pool, &ext[i]), 10 + i, 4 * g);
		memset((unsigned char *)omnikv_pool_addr(fix->pool, &ext[i]) + g, 20 + i, g);
	}
	assert_int_equal(omnikv_window_create(fix->engine, 64 * g, OMNIKV_WINDOW_F_RW, &rw), 0);
	base = omnikv_window_base(rw);
	assert_false(can_read(base));
	binds[0] = (struct omnikv_bind){ ext[2], g, 0, 2 * g };
	binds[1] = (struct omnikv_bind){ ext[1], g, 2 * g, 2 * g };
	binds[2] = (struct omnikv_bind){ ext[0], g, 5 * g, 2 * g };
	assert_int_equal(omnikv_window_bind(rw, binds, 3, &nr_bound), 0);
	assert_int_equal(nr_bound, 3);
	assert_int_equal(base[0], 22);
	assert_int_equal(base[g], 12);
	assert_int_equal(base[2 * g], 21);
	assert_int_equal(base[5 * g + g - 1], 20);
	assert_int_equal(base[6 * g], 10);
	assert_false(can_read(base + 4 * g));
	assert_false(can_read(base + 7 * g));
	base[2 * g + 5] = 99;
	assert_int_equal(*((unsigned char *)omnikv_pool_addr(fix->pool, &ext[1]) + g + 5), 99);
	state_is(fix, &ext[0], OMNIKV_EXTENT_PRIVATE, 1);

	assert_int_equal(omnikv_window_unbind(rw, 0, g), 0);
	assert_false(can_read(base));
	assert_true(can_read(base + g));
	state_is(fix, &ext[2], OMNIKV_EXTENT_PRIVATE, 1);
	assert_int_equal(omnikv_window_unbind(rw, 0, 2 * g), 0);
	state_is(fix, &ext[2], OMNIKV_EXTENT_PRIVATE, 0);

	/* Over an existing bind: the new one shows, the old one counts no more. */
	binds[0] = (struct omnikv_bind){ ext[2], 0, 2 * g, 4 * g };
	assert_int_equal(omnikv_window_bind(rw, binds, 1, NULL), 0);
	state_is(fix, &ext[1], OMNIKV_EXTENT_PRIVATE, 0);
	state_is(fix, &ext[0], OMNIKV_EXTENT_PRIVATE, 1);
	assert_int_equal(base[2 * g], 12);
	assert_int_equal(base[6 * g], 10);
	omnikv_window_destroy(rw);
	state_is(fix, &ext[0], OMNIKV_EXTENT_PRIVATE, 0);
	state_is(fix, &ext[2], OMNIKV_EXTENT_PRIVATE, 0);
}

static void sealing_unbinds_from_writable_windows(void **state)
{
	struct fixture *fix = *state;
	uint64_t g = fix->granule;
	struct omnikv_extent ext[2];
	struct omnikv_window *rw, *ro;
	struct omnikv_bind binds[2];
	unsigned char *base;

	alloc(fix->engine, 1, 2, ext);
	memset(omnikv_pool_addr(fix->pool, &ext[0]), 7, g);
	assert_int_equal(omnikv_window_create(fix->engine, 4 * g, OMNIKV_WINDOW_F_RW, &rw), 0);
	assert_int_equal(omnikv_window_create(fix->engine, 4 * g, 0, &ro), 0);
	binds[0] = (struct omnikv_bind){ ext[0], 0, 0, g };
	binds[1] = (struct omnikv_bind){ ext[1], 0, g, g };
	assert_int_equal(omnikv_window_bind(ro, binds, 1, NULL), -EPERM);
	assert_int_equal(omnikv_window_bind(rw, binds, 2, NULL), 0);
	base = omnikv_window_base(rw);
	assert_true(can_write(base));
	assert_int_equal(omnikv_extent_seal(fix->engine, ext, 1), 0);
	assert_false(can_read(base));
	assert_true(can_write(base + g));
	state_is(fix, &ext[0], OMNIKV_EXTENT_SEALED, 0);
	assert_int_equal(omnikv_window_bind(rw, binds, 1, NULL), -EPERM);

	base = omnikv_window_base(ro);
	assert_int_equal(omnikv_window_bind(ro, binds, 1, NULL), -EPERM);
	assert_int_equal(omnikv_extent_lease(fix->engine, ext, 1), 0);
	assert_int_equal(omnikv_window_bind(ro, binds, 1, NULL), 0);
	assert_int_equal(base[0], 7);
	assert_false(can_write(base));
	assert_int_equal(mprotect(base, 4 * g, PROT_READ | PROT_WRITE), -1);
	assert_int_equal(omnikv_extent_release(fix->engine, ext, 1), 0);
	assert_int_equal(omnikv_extent_free(fix->manager, ext, 1), 0);
	assert_int_equal(base[5], 7);
	omnikv_window_destroy(ro);
}

static void malformed_binds_are_refused(void **state)
{
	struct fixture *fix = *state;
	uint64_t g = fix->granule;
	const struct { uint64_t extent_off, window_off, bytes; } cases[] = {
		{ 0, 0, 0 }, { 0, 0, g + 1 }, { 1, 0, g }, { 0, 1, g }, { 0, 0, 3 * g }, { 2 * g, 0, g },
		{ 0, 8 * g, g }, { 0, 7 * g, 2 * g }, { UINT64_MAX - PAGE + 1, 0, g },
		{ 0, UINT64_MAX - PAGE + 1, g }, { g, 0, UINT64_MAX - PAGE + 1 },
	};
	struct omnikv_extent ext, stale;
	struct omnikv_window *rw;
	struct omnikv_bind list[2];
	uint32_t nr_bound;
	size_t i;

	alloc(fix->engine, 2, 1, &ext);
	assert_int_equal(omnikv_window_create(fix->engine, 0, 0, &rw), -EINVAL);
	assert_int_equal(omnikv_window_create(fix->engine, 1, 0, &rw), -EINVAL);
	assert_int_equal(omnikv_window_create(fix->engine, g, 0x80, &rw), -EINVAL);
	assert_int_equal(omnikv_window_create(fix->engine, 8 * g, OMNIKV_WINDOW_F_RW, &rw), 0);
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		list[0] = (struct omnikv_bind){ ext, 0, 0, g };
		list[1] = (struct omnikv_bind){ ext, cases[i].extent_off, cases[i].window_off, cases[i].bytes };
		assert_int_equal(omnikv_window_bind(rw, list, 2, &nr_bound), -EINVAL);
		assert_int_equal(nr_bound, 1);
		assert_int_equal(omnikv_window_bind(rw, &list[1], 1, &nr_bound), -EINVAL);
		assert_int_equal(nr_bound, 0);
	}
	stale = ext;
	stale.generation += 4;
	list[0] = (struct omnikv_bind){ stale, 0, 0, g };
	assert_int_equal(omnikv_window_bind(rw, list, 1, NULL), -ESTALE);
	assert_int_equal(omnikv_window_unbind(rw, 0, 0), -EINVAL);
	assert_int_equal(omnikv_window_unbind(rw, 0, 9 * g), -EINVAL);
	assert_int_equal(omnikv_window_unbind(rw, g, UINT64_MAX - PAGE + 1), -EINVAL);
	assert_int_equal(omnikv_window_unbind(rw, 0, 8 * g), 0);
}

static void a_forked_child_sees_neither_pool_nor_windows(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent ext;
	struct omnikv_window *rw;
	struct omnikv_bind bind;
	int status;
	pid_t pid;

	alloc(fix->engine, 1, 1, &ext);
	assert_int_equal(omnikv_window_create(fix->engine, fix->granule, OMNIKV_WINDOW_F_RW, &rw), 0);
	bind = (struct omnikv_bind){ ext, 0, 0, fix->granule };
	assert_int_equal(omnikv_window_bind(rw, &bind, 1, NULL), 0);
	assert_true(can_read(omnikv_window_base(rw)));
	pid = fork();
	if (!pid)
		_exit(can_read(omnikv_pool_base(fix->pool)) || can_read(omnikv_window_base(rw)));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
}

/* ---- late transfers --------------------------------------------------------------------- */

/*
 * A stand-in for a device: it was given extents, and writes into them some time later. Meanwhile the
 * request is dropped and its memory freed; whoever gets memory then writes a pattern and checks it.
 */
#define NR_SLOTS	64u

struct slot {
	_Atomic int		is_full;
	struct omnikv_extent	ext;
};

struct device {
	struct fixture		*fix;
	struct slot		slots[NR_SLOTS];
	_Atomic bool		is_over;
	uint32_t		nr_done;
};

static void *device_thread(void *arg)
{
	struct device *device = arg;
	uint64_t seed = 7;

	for (;;) {
		bool is_over = atomic_load(&device->is_over), is_idle = true;
		uint32_t i;

		for (i = 0; i < NR_SLOTS; i++) {
			struct slot *slot = &device->slots[i];

			if (!atomic_load(&slot->is_full))
				continue;
			is_idle = false;
			seed = seed * 6364136223846793005ull + 1442695040888963407ull;
			if (!is_over && (seed >> 40) % 4)
				continue;
			memset(omnikv_pool_addr(device->fix->pool, &slot->ext), 0xdd, device->fix->granule);
			omnikv_extent_io_put(device->fix->engine, &slot->ext, 1);
			device->nr_done++;
			atomic_store(&slot->is_full, 0);
		}
		if (is_over && is_idle)
			return NULL;
		/* Else a host with one free core sees one transfer a time slice. */
		if (is_idle)
			sched_yield();
	}
}

#define NR_KEPT	32u	/* rounds for which memory stays with its new owner */

static void a_dropped_requests_late_copy_never_lands_in_anothers_memory(void **state)
{
	struct fixture *fix = *state;
	struct device device = { .fix = fix };
	struct omnikv_extent ext, kept[NR_KEPT][8];
	uint32_t nr_started = 0, nr_late = 0, nr_error = 0, round, i;
	time_t end = time(NULL) + LONGEST_S;
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, device_thread, &device), 0);
	for (round = 0; round < 20000 && time(NULL) < end; round++) {
		struct slot *slot = &device.slots[round % NR_SLOTS];
		struct omnikv_extent *mine = kept[round % NR_KEPT];

		if (!atomic_load(&slot->is_full) &&
		    !omnikv_extent_alloc(fix->engine, 1, 1, NULL, OMNIKV_ALLOC_F_NO_ZERO, &ext)) {
			nr_error += omnikv_extent_io_get(fix->engine, &ext, 1) != 0;
			slot->ext = ext;
			atomic_store(&slot->is_full, 1);
			nr_started++;
			/* The request is dropped while the device has it. */
			nr_error += omnikv_extent_free(fix->engine, &ext, 1) != 0;
		}
		for (i = 0; round >= NR_KEPT && i < 8; i++)
			nr_late += *(volatile uint64_t *)omnikv_pool_addr(fix->pool, &mine[i]) !=
				   (round - NR_KEPT) * 8ull + i;
		if (round >= NR_KEPT)
			nr_error += omnikv_extent_free(fix->other, mine, 8) != 0;
		nr_error += omnikv_extent_alloc(fix->other, 1, 8, NULL, OMNIKV_ALLOC_F_NO_ZERO, mine) != 0;
		for (i = 0; i < 8; i++)
			*(volatile uint64_t *)omnikv_pool_addr(fix->pool, &mine[i]) = round * 8ull + i;
	}
	atomic_store(&device.is_over, true);
	pthread_join(thread, NULL);
	print_message("# %u rounds, %u requests dropped\n", round, nr_started);
	assert_int_equal(nr_late, 0);
	assert_int_equal(nr_error, 0);
	assert_int_equal(device.nr_done, nr_started);
	assert_true(nr_started >= NR_SLOTS);
}

/* Clients on threads of their own: each extent belongs to one of them at a time. */
struct worker {
	struct fixture	*fix;
	uint64_t	id;
	uint32_t	nr_wrong;
	uint32_t	nr_error;
};

static void *worker_thread(void *arg)
{
	struct worker *worker = arg;
	struct omnikv_extent ext[16];
	struct omnikv_client *client;
	time_t end = time(NULL) + LONGEST_S;
	bool is_last = false;
	uint32_t round, i;

	if (omnikv_client_open(worker->fix->pool, 0, &client)) {
		worker->nr_error++;
		return NULL;
	}
	for (round = 0; !is_last; round++) {
		is_last = round == 1499 || time(NULL) >= end;
		if (omnikv_extent_alloc(client, 1 + round % 3, 16, round % 2 ? &ext[15] : NULL, OMNIKV_ALLOC_F_NO_ZERO,
					ext)) {
			worker->nr_error++;
			break;
		}
		for (i = 0; i < 16; i++)
			*(volatile uint64_t *)omnikv_pool_addr(worker->fix->pool, &ext[i]) = worker->id << 32 | i;
		worker->nr_error += omnikv_extent_io_get(client, ext, 16) != 0;
		for (i = 0; i < 16; i++)
			worker->nr_wrong += *(volatile uint64_t *)omnikv_pool_addr(worker->fix->pool, &ext[i]) !=
					    (worker->id << 32 | i);
		omnikv_extent_io_put(client, ext, 16);
		/* Some are left to the client's end. */
		if (round % 4 || round >= 16)
			worker->nr_error += omnikv_extent_free(client, ext, 16) != 0;
	}
	omnikv_client_close(client);
	return NULL;
}

static void clients_on_several_threads_never_share_an_extent(void **state)
{
	struct worker workers[4];
	pthread_t threads[4];
	int i;

	for (i = 0; i < 4; i++) {
		workers[i] = (struct worker){ .fix = *state, .id = i + 1 };
		assert_int_equal(pthread_create(&threads[i], NULL, worker_thread, &workers[i]), 0);
	}
	for (i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	for (i = 0; i < 4; i++) {
		assert_int_equal(workers[i].nr_wrong, 0);
		assert_int_equal(workers[i].nr_error, 0);
	}
}

/* In order of place, each once, by state and owner, whatever the size of the array. */
static void lists_name_each_extent_once(void **state)
{
	struct fixture *fix = *state;
	struct omnikv_extent sealed[5], private[3], seen[64];
	const uint32_t is_private = 1u << OMNIKV_EXTENT_PRIVATE, is_sealed = 1u << OMNIKV_EXTENT_SEALED;
	uint64_t from;
	uint32_t max;

	assert_int_equal(omnikv_extent_alloc(fix->engine, 2, 5, NULL, 0, sealed), 0);
	assert_int_equal(omnikv_extent_seal(fix->engine, sealed, 5), 0);
	assert_int_equal(omnikv_extent_alloc(fix->engine, 1, 3, NULL, 0, private), 0);
	for (max = 1; max <= 64; max *= 4) {
		uint32_t nr_found = 0, i;
		uint64_t last = 0;

		for (from = 0; from != UINT64_MAX;) {
			int64_t nr = omnikv_extent_list(fix->manager, is_sealed, &from, seen, max);

			assert_true(nr >= 0 && nr <= max);
			for (int64_t k = 0; k < nr; k++) {
				assert_true(seen[k].granule + 1 > last);
				last = seen[k].granule + 1;
				for (i = 0; i < 5; i++)
					nr_found += !memcmp(&sealed[i], &seen[k], sizeof(seen[k]));
			}
		}
		assert_int_equal(nr_found, 5);
	}
	from = 0;
	assert_int_equal(omnikv_extent_list(fix->engine, is_private, &from, seen, 64), 3);
	from = 0;
	assert_int_equal(omnikv_extent_list(fix->other, is_private, &from, seen, 64), 0);
	from = 0;
	assert_int_equal(omnikv_extent_list(fix->engine, is_sealed, &from, seen, 64), -EPERM);
	assert_int_equal(omnikv_extent_list(fix->engine, is_private | is_sealed, &from, seen, 64), -EPERM);
	assert_int_equal(omnikv_extent_list(fix->manager, 0, &from, seen, 64), -EINVAL);
	assert_int_equal(omnikv_extent_list(fix->manager, 1u << OMNIKV_EXTENT_FREE, &from, seen, 64), -EINVAL);
	assert_int_equal(omnikv_extent_list(fix->manager, is_sealed, &from, seen, 0), -EINVAL);
	from = UINT64_MAX;
	assert_int_equal(omnikv_extent_list(fix->manager, is_sealed, &from, seen, 64), 0);
	assert_int_equal(omnikv_extent_free(fix->manager, sealed, 5), 0);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		TEST(lists_name_each_extent_once),
		TEST(figures_add_up),
		TEST(new_extents_are_zeroed),
		TEST(extents_do_not_overlap_and_follow_one_another),
		TEST(an_allocation_is_all_or_nothing),
		TEST(names_end_with_their_extent),
		TEST(owner_other_and_manager_have_their_rights),
		TEST(a_pool_has_one_manager_at_a_time),
		TEST(lists_are_all_or_nothing),
		TEST(leased_memory_is_not_reused),
		TEST(memory_of_a_transfer_is_not_reused),
		TEST(a_client_ends_with_all_that_it_holds),
		TEST(windows_show_what_is_bound_and_nothing_else),
		TEST(sealing_unbinds_from_writable_windows),
		TEST(malformed_binds_are_refused),
		TEST(a_forked_child_sees_neither_pool_nor_windows),
		TEST(a_dropped_requests_late_copy_never_lands_in_anothers_memory),
		TEST(clients_on_several_threads_never_share_an_extent),
	};

	spec = argc > 1 ? argv[1] : getenv("OMNIKV_POOL");
	if (!spec || !spec[0])
		spec = "embedded:32M";
	spec = any_pool_spec(spec);
	return cmocka_run_group_tests(tests, NULL, NULL);
}

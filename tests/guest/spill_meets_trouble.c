// SPDX-License-Identifier: GPL-2.0-only
/*
 * The spill store on emulated NVMe disks with sectors of 512 and of 4096 bytes, bare and below ext4
 * and xfs; and when they break: a quota, errors of the device for a while and now and then, and a
 * device that does not answer. Each is a miss, one line when it begins and one when it is over,
 * and goes by itself.
 *
 * Runs in a guest (tests/guest/run); elsewhere each test is skipped.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/quota.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "device.h"
#include "manager/manager.h"
#include "spill/spill.h"
#include "tests/harness/guest.h"
#include "tests/harness/kv_world.h"
#include "tests/harness/ring_fixture.h"
#include "tests/harness/spill_world.h"

#define BLOCK	(64u << 10)
#define MNT	"/tmp/trouble"
#define UID	1000
#define T	16u

static char last_note[256];
static uint32_t nr_notes;

static void note(void *opaque, const char *line)
{
	(void)opaque;
	nr_notes++;
	print_message("# %.1f s: ", (double)okv_monotonic_ns() / 1e9);
	snprintf(last_note, sizeof(last_note), "%s", line);
	print_message("%s\n", line);
}

static struct omnikv_spill *open_with(const char *path, uint64_t capacity, uint32_t deadline_ms, struct omnikv_pool *pool)
{
	struct omnikv_spill_config config = {
		.size = sizeof(config), .capacity_bytes = capacity, .segment_bytes = 1 << 20, .floor_bytes = 1,
		.notice = note, .deadline_ms = deadline_ms, .pool = pool, .queue_depth = 8,
	};
	struct omnikv_spill *spill;
	struct omnikv_error err;

	nr_notes = 0;
	if (omnikv_spill_open(path, &config, &spill, &err))
		fail_msg("%s", err.text);
	return spill;
}

static struct omnikv_spill_stats stats_of(struct omnikv_spill *spill)
{
	struct omnikv_spill_stats stats = { .size = sizeof(stats) };

	assert_int_equal(omnikv_spill_stats(spill, &stats), 0);
	return stats;
}

static void wipe(const char *device)
{
	assert_int_equal(guest_shell("dd if=/dev/zero of=%s bs=1M count=4 2>/dev/null; sync", device), 0);
}

static void unmount(void)
{
	/* The kernel lets go of a ring's file in its own time. */
	for (uint32_t i = 0; umount(MNT) && i < 1000; i++)
		usleep(10000);
}

/* Disk @nr of the guest, wiped. */
static void take_disk(uint32_t nr, char path[64])
{
	if (!guest_disk(nr, path))
		skip();
	wipe(path);
}

static void make_fs(const char *fs, const char *mkfs, const char *device, const char *options)
{
	assert_true(guest_modules(fs));
	assert_int_equal(guest_shell("mkdir -p " MNT " && mkfs.%s %s >/dev/null 2>&1", mkfs, device), 0);
	assert_int_equal(mount(device, MNT, fs, 0, options), 0);
}

/* Twice the cap, then all that is left, after another opening too. Directly, by io_uring, without a word. */
static void use(const char *path)
{
	struct omnikv_spill *spill = open_with(path, 12 << 20, 0, NULL);
	uint32_t nr_there = 0;

	for (uint64_t id = 0; id < 384; id += 8)
		assert_int_equal(spill_put_run(spill->store, 1, id, id + 8, BLOCK, 1 + id % 3), 0);
	assert_true(stats_of(spill).is_direct);
	assert_true(stats_of(spill).is_uring);
	assert_int_equal(nr_notes, 0);
	assert_true(stats_of(spill).peak_bytes <= 12 << 20);
	omnikv_spill_close(spill);
	spill = open_with(path, 12 << 20, 0, NULL);
	for (uint64_t id = 0; id < 384; id++) {
		int ret = spill_get(spill->store, 1, id);

		assert_true(!ret || ret == -ENOENT);
		nr_there += !ret;
	}
	assert_true(nr_there >= 96);
	assert_int_equal(stats_of(spill).nr_errors, 0);
	omnikv_spill_close(spill);
}

static void nvme_bare(void **state)
{
	char path[64];

	(void)state;
	take_disk(1, path);
	use(path);
	take_disk(5, path);
	use(path);
}

static void nvme_below(const char *fs, const char *mkfs)
{
	for (uint32_t nr = 1; nr <= 5; nr += 4) {
		char path[64];

		take_disk(nr, path);
		make_fs(fs, mkfs, path, NULL);
		use(MNT);
		unmount();
	}
}

static void nvme_below_ext4(void **state)
{
	(void)state;
	nvme_below("ext4", "ext4 -q -F");
}

static void nvme_below_xfs(void **state)
{
	(void)state;
	nvme_below("xfs", "xfs -q -f");
}

/* Where direct I/O is refused (tmpfs, before kernel 6.6) it goes through the page cache, and says so once. */
static void file_system_without_direct_io_is_used_all_the_same(void **state)
{
	struct omnikv_spill *spill;
	bool is_direct;
	char path[64];
	int fd;

	(void)state;
	if (!guest_disk(1, path))
		skip();
	assert_int_equal(guest_shell("mkdir -p " MNT " && mount -t tmpfs -o size=64M none " MNT), 0);
	fd = open(MNT "/probe", O_CREAT | O_RDWR | O_DIRECT, 0600);
	is_direct = fd >= 0;
	if (is_direct)
		close(fd);
	spill = open_with(MNT, 8 << 20, 0, NULL);
	assert_int_equal(stats_of(spill).is_direct, is_direct);
	for (uint64_t id = 0; id < 256; id += 8)
		assert_int_equal(spill_put_run(spill->store, 1, id, id + 8, BLOCK, 1), 0);
	for (uint64_t id = 248; id < 256; id++)
		assert_int_equal(spill_get(spill->store, 1, id), 0);
	assert_int_equal(nr_notes, !is_direct);
	omnikv_spill_close(spill);
	unmount();
}

/* ---- trouble -------------------------------------------------------------------------------- */

static void set_quota(const char *device, uint64_t kib)
{
	struct dqblk limit = { .dqb_bhardlimit = kib, .dqb_bsoftlimit = kib, .dqb_valid = QIF_BLIMITS };

	assert_int_equal(quotactl(QCMD(Q_SETQUOTA, USRQUOTA), device, UID, (void *)&limit), 0);
}

/* Puts of a new block each, until one is stored; false after longer than the store ever waits. */
static bool resumes(struct omnikv_spill *spill, uint64_t id)
{
	for (uint32_t i = 0; i < 400; i++, id++) {
		if (!spill_put(spill->store, 1, id, BLOCK, 1))
			return !spill_get(spill->store, 1, id);
		usleep(100000);
	}
	return false;
}

static void quota_is_a_miss_until_it_is_raised(void **state)
{
	struct omnikv_spill *spill;
	char path[64];

	(void)state;
	take_disk(1, path);
	guest_shell("modprobe quota_v2");
	make_fs("ext4", "ext4 -q -F -O quota -E quotatype=usrquota", path, "usrquota");
	assert_int_equal(guest_shell("mkdir " MNT "/store && chown %u " MNT "/store && chmod 755 " MNT, UID), 0);
	set_quota(path, 256);
	assert_int_equal(seteuid(UID), 0);
	spill = open_with(MNT "/store", 32 << 20, 0, NULL);
	for (uint64_t id = 0; id < 20; id++)
		assert_int_equal(spill_put(spill->store, 1, id, BLOCK, 1), -EDQUOT);
	assert_int_equal(nr_notes, 1);
	assert_non_null(strstr(last_note, "quota exceeded"));
	assert_int_equal(seteuid(0), 0);
	set_quota(path, 6 << 10);
	assert_int_equal(seteuid(UID), 0);
	assert_true(resumes(spill, 100));
	assert_int_equal(nr_notes, 2);
	assert_non_null(strstr(last_note, "well again"));
	/* More than the quota has room for: it makes do with the segments that it has. */
	for (uint64_t id = 200; id < 400; id += 4)
		assert_int_equal(spill_put_run(spill->store, 1, id, id + 4, BLOCK, 1), 0);
	assert_int_equal(spill_get(spill->store, 1, 399), 0);
	assert_true(stats_of(spill).used_bytes <= 6 << 20);
	assert_int_equal(nr_notes, 2);
	omnikv_spill_close(spill);
	spill = open_with(MNT "/store", 32 << 20, 0, NULL);
	assert_int_equal(spill_get(spill->store, 1, 399), 0);
	assert_int_equal(stats_of(spill).bad_records, 0);
	omnikv_spill_close(spill);
	assert_int_equal(seteuid(0), 0);
	unmount();
}

static uint64_t map_disk(uint32_t nr, char path[64])
{
	uint64_t sectors;

	take_disk(nr, path);
	assert_true(guest_modules("dm-flakey"));
	guest_unmap("bad");
	sectors = guest_sectors(path);
	assert_true(guest_map("bad", "0 %llu linear %s 0", (unsigned long long)sectors, path));
	return sectors;
}

static void errors_are_misses_until_they_end(void **state)
{
	(void)state;
	for (uint32_t is_fs = 0; is_fs < 2; is_fs++) {
		struct omnikv_spill *spill;
		unsigned long long sectors;
		char path[64];

		sectors = map_disk(1, path);
		if (is_fs)
			make_fs("xfs", "xfs -q -f", "/dev/mapper/bad", NULL);
		spill = open_with(is_fs ? MNT : "/dev/mapper/bad", 16 << 20, 0, NULL);
		for (uint64_t id = 0; id < 64; id += 8)
			assert_int_equal(spill_put_run(spill->store, 1, id, id + 8, BLOCK, 1), 0);
		assert_int_equal(omnikv_spill_sync(spill), 0);
		/* A file system whose log fails shuts itself down for good: only where the store's data lies fails. */
		if (is_fs)
			assert_int_equal(guest_shell("sync -f " MNT), 0);
		assert_true(guest_remap("bad", "0 %llu error", sectors));
		for (uint64_t id = 0; id < 16; id++)
			assert_int_equal(spill_get(spill->store, 1, id), -EIO);
		for (uint64_t id = 100; id < 120; id++)
			assert_int_equal(spill_put(spill->store, 1, id, BLOCK, 1), -EIO);
		assert_int_equal(nr_notes, 1);
		assert_non_null(strstr(last_note, "errors"));
		assert_true(guest_remap("bad", "0 %llu linear %s 0", sectors, path));
		if (!is_fs) {
			assert_true(resumes(spill, 200));
			assert_int_equal(nr_notes, 2);
			assert_non_null(strstr(last_note, "well again"));
			/* What failed to be read is found no more; the rest is whole. */
			for (uint64_t id = 0; id < 64; id++)
				assert_int_equal(spill_get(spill->store, 1, id), id < 16 ? -ENOENT : 0);
		}
		omnikv_spill_close(spill);
		if (is_fs)
			unmount();
		guest_unmap("bad");
	}
}

/* Two seconds well, one broken, and so on: what is served is right, and it stores again whenever it can. */
static void errors_now_and_then_are_survived(void **state)
{
	uint64_t until_ns, id = 0, nr_stored = 0, nr_lost = 0, nr_served = 0;
	struct omnikv_spill *spill;
	unsigned long long sectors;
	char path[64];

	(void)state;
	sectors = map_disk(1, path);
	spill = open_with("/dev/mapper/bad", 16 << 20, 0, NULL);
	assert_true(guest_remap("bad", "0 %llu flakey %s 0 2 1", sectors, path));
	until_ns = okv_monotonic_ns() + 12000000000ull;
	while (okv_monotonic_ns() < until_ns) {
		int ret = spill_put_run(spill->store, 1, id, id + 4, BLOCK, 1);

		id += 4;
		nr_stored += !ret;
		nr_lost += ret != 0;
		for (uint32_t i = 1; i <= 8 && i <= id; i++) {
			ret = spill_get(spill->store, 1, id - i);
			assert_true(!ret || ret == -ENOENT || ret == -EIO);
			nr_served += !ret;
		}
		usleep(20000);
	}
	print_message("# %llu batches stored, %llu lost, %llu blocks served\n", (unsigned long long)nr_stored,
		      (unsigned long long)nr_lost, (unsigned long long)nr_served);
	assert_true(nr_stored && nr_lost && nr_served);
	assert_true(guest_remap("bad", "0 %llu linear %s 0", sectors, path));
	assert_true(resumes(spill, 1000000));
	omnikv_spill_close(spill);
	guest_unmap("bad");
}

static void suspend(bool is_suspended)
{
	assert_int_equal(guest_shell("DM_DISABLE_UDEV=1 dmsetup %s bad", is_suspended ? "suspend --noflush --nolockfs" : "resume"),
			 0);
}

static uint64_t play(struct kv_world *world, const struct kv_story *story)
{
	struct omnikv_seq *seq = kv_open(world, story, false);
	uint64_t hit = omnikv_seq_tokens(seq);
	const char *why = hit ? kv_compare(world, seq, story, 0, hit) : NULL;

	if (why)
		fail_msg("%s", why);
	if (hit < story->nr_tokens && !omnikv_seq_append(seq, story->nr_tokens - hit)) {
		kv_store(world, seq, story, hit, story->nr_tokens);
		assert_true(kv_commit(world, seq, story, false) >= 0);
	}
	omnikv_seq_close(seq);
	kv_world_check(world);
	return hit;
}

/* A device that does not answer costs each request its deadline once, then nothing; the engine goes on. */
static void stuck_device_never_hangs_the_engine(void **state)
{
	uint64_t begin_ns, longest_ns = 0;
	struct kv_story stories[6] = { 0 };
	struct omnikv_spill *spill;
	struct kv_world world;
	char path[64];

	(void)state;
	map_disk(1, path);
	spill = open_with("/dev/mapper/bad", 16 << 20, 500, NULL);
	kv_world_open_spill(&world, KV_SHAPE_FULL, T, 24, spill, OMNIKV_SPILL_ADMIT_ALL);
	for (uint32_t i = 0; i < 6; i++)
		for (uint32_t t = 0; t < 8 * T; t++)
			kv_story_add(&stories[i], i * 1000 + t);
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(play(&world, &stories[i]), 0);
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(play(&world, &stories[i]), 8 * T);
	suspend(true);
	for (uint32_t round = 0; round < 4; round++) {
		for (uint32_t i = 0; i < 6; i++) {
			begin_ns = okv_monotonic_ns();
			play(&world, &stories[i]);
			if (okv_monotonic_ns() - begin_ns > longest_ns)
				longest_ns = okv_monotonic_ns() - begin_ns;
		}
	}
	print_message("# longest answer of a suspended disk: %llu ms\n", (unsigned long long)longest_ns / 1000000);
	assert_true(longest_ns < 5000000000);
	assert_true(stats_of(spill).nr_timeouts >= 1);
	assert_int_equal(nr_notes, 1);
	assert_non_null(strstr(last_note, "does not answer"));
	assert_true(world.manager->tier_granules > 0);
	suspend(false);
	for (uint32_t i = 0; i < 1000 && !okv_store_is_idle(spill->store); i++)
		usleep(10000);
	/* What was there before is there still. */
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(play(&world, &stories[i]), 8 * T);
	for (uint32_t i = 0; i < 400 && (world.manager->tier_granules || stats_of(spill).is_degraded); i++) {
		usleep(100000);
		play(&world, &stories[i % 6]);
	}
	assert_int_equal(world.manager->tier_granules, 0);
	assert_int_equal(nr_notes, 2);
	for (uint32_t i = 0; i < 6; i++)
		play(&world, &stories[i]);
	for (uint32_t i = 0; i < 6; i++)
		assert_int_equal(play(&world, &stories[i]), 8 * T);
	kv_world_close(&world);
	omnikv_spill_close(spill);
	/* Closed while it does not answer: that ends too. */
	spill = open_with("/dev/mapper/bad", 16 << 20, 500, NULL);
	suspend(true);
	assert_true(spill_put(spill->store, 9, 1, BLOCK, 1) < 0);
	begin_ns = okv_monotonic_ns();
	omnikv_spill_close(spill);
	assert_true(okv_monotonic_ns() - begin_ns < 5000000000);
	suspend(false);
	guest_unmap("bad");
	for (uint32_t i = 0; i < 6; i++)
		kv_story_free(&stories[i]);
}

/* Operations of a ring on a disk that really does not answer: one result each in time, one notification each when it does. */
static void stuck_device_never_hangs_a_ring(void **state)
{
	struct omnikv_spill_block block = { .key = { .len = 4, .bytes = "key" }, .nr_tokens = 16, .nr_parts = 1 };
	struct omnikv_spill_io io = { .blocks = &block, .nr_blocks = 1 };
	struct omnikv_piece out, in[2];
	struct omnikv_extent from, to[2];
	struct omnikv_spill *spill;
	struct ring_fixture f;
	struct omnikv_sqe *sqe;
	uint8_t ns[32] = { 3 };
	uint32_t crc = 5, seen = 0;
	uint64_t begin_ns;
	char path[64];

	(void)state;
	map_disk(1, path);
	fixture_open(&f, "host", "8M", NULL, NULL);
	spill = open_with("/dev/mapper/bad", 16 << 20, 5000, f.pool);
	io.spill = spill;
	io.ns = ns;
	fixture_sealed(&f, &from, 1, 16, 77);
	assert_int_equal(omnikv_extent_alloc(f.client, 16, 2, NULL, 0, to), 0);
	out = (struct omnikv_piece){ .extent = from, .bytes = 64 << 10 };
	for (uint32_t i = 0; i < 2; i++)
		in[i] = (struct omnikv_piece){ .extent = to[i], .bytes = 64 << 10 };
	omnikv_prep_spill(fixture_sqe(&f, 1), &io, &out, 1, &crc);
	fixture_submit(&f);
	fixture_expect(&f, 1, 64 << 10);
	suspend(true);
	begin_ns = okv_monotonic_ns();
	sqe = fixture_sqe(&f, 2);
	omnikv_prep_fetch(sqe, &io, &in[0], 1, NULL);
	sqe->deadline_ns = 300000000;
	fixture_submit(&f);
	usleep(100000);
	sqe = fixture_sqe(&f, 3);
	omnikv_prep_fetch(sqe, &io, &in[1], 1, NULL);
	fixture_submit(&f);
	omnikv_prep_cancel(fixture_sqe(&f, 4), 3);
	fixture_submit(&f);
	for (uint32_t i = 0; i < 3; i++) {
		struct omnikv_cqe cqe = fixture_reap(&f);

		assert_int_equal(cqe.res, cqe.user_data == 2 ? -ETIME : cqe.user_data == 3 ? -ECANCELED : 0);
		assert_int_equal(cqe.flags, cqe.user_data == 2 ? OMNIKV_CQE_F_MORE : 0);
		seen |= 1u << cqe.user_data;
	}
	assert_int_equal(seen, 7u << 2);
	assert_true(okv_monotonic_ns() - begin_ns < 2000000000);
	fixture_expect_none(&f);
	suspend(false);
	{
		struct omnikv_cqe cqe = fixture_reap(&f);

		assert_int_equal(cqe.user_data, 2);
		assert_int_equal(cqe.flags, OMNIKV_CQE_F_NOTIF);
	}
	omnikv_prep_fetch(fixture_sqe(&f, 5), &io, &in[1], 1, NULL);
	fixture_submit(&f);
	fixture_expect(&f, 5, 64 << 10);
	assert_true(fixture_is_filled(omnikv_pool_addr(f.pool, &to[1]), 64 << 10, 77, 0));
	assert_int_equal(omnikv_extent_release(f.client, &from, 1), 0);
	assert_int_equal(omnikv_extent_free(f.client, &from, 1), 0);
	assert_int_equal(omnikv_extent_free(f.client, to, 2), 0);
	omnikv_spill_close(spill);
	fixture_close(&f);
	guest_unmap("bad");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nvme_bare),
		cmocka_unit_test(nvme_below_ext4),
		cmocka_unit_test(nvme_below_xfs),
		cmocka_unit_test(file_system_without_direct_io_is_used_all_the_same),
		cmocka_unit_test(quota_is_a_miss_until_it_is_raised),
		cmocka_unit_test(errors_are_misses_until_they_end),
		cmocka_unit_test(errors_now_and_then_are_survived),
		cmocka_unit_test(stuck_device_never_hangs_the_engine),
		cmocka_unit_test(stuck_device_never_hangs_a_ring),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * The spill store on file systems of many kinds, made on loop devices: ext4 with 1-KiB and 4-KiB
 * blocks, xfs where its tools are, tmpfs, overlayfs, sectors of 4096 bytes, and a raw block device.
 * And on those that run full: from the start, in the middle, of inodes; it goes on, says so once,
 * and resumes by itself when there is room. Needs root and loop devices; else each is skipped by name.
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
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "spill/spill.h"
#include "tests/harness/spill_world.h"

#define BLOCK	(64u << 10)

static char dir[64];
static char mnt[80];
static char last_note[256];
static uint32_t nr_notes;

static void note(void *opaque, const char *line)
{
	(void)opaque;
	nr_notes++;
	snprintf(last_note, sizeof(last_note), "%s", line);
}

static int shell(const char *format, ...)
{
	char command[1024];
	va_list args;

	va_start(args, format);
	vsnprintf(command, sizeof(command), format, args);
	va_end(args);
	return system(command);
}

static int make_dirs(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "/tmp/omnikv-fs-XXXXXX");
	nr_notes = 0;
	if (!mkdtemp(dir))
		return -1;
	snprintf(mnt, sizeof(mnt), "%s/mnt", dir);
	return mkdir(mnt, 0700);
}

static int remove_dirs(void **state)
{
	(void)state;
	/* The kernel lets go of a ring's file in its own time. */
	shell("i=0; while mountpoint -q %s && ! umount %s 2>/dev/null && [ $i -lt 100 ]; do sleep 0.1; i=$((i+1)); done; "
	      "mountpoint -q %s || rm -rf %s", mnt, mnt, mnt, dir);
	return 0;
}

/* An image of @mib with the file system that @mkfs makes, mounted; false: that cannot be had here. */
static bool mount_image(const char *mkfs, uint32_t mib, const char *options)
{
	return !geteuid() && !shell("truncate -s %uM %s/image && %s %s/image >/dev/null 2>&1 && "
				    "mount -o loop%s %s/image %s 2>/dev/null", mib, dir, mkfs, dir, options, dir, mnt);
}

static struct omnikv_spill *open_store(const char *path, uint64_t capacity)
{
	struct omnikv_spill_config config = {
		.size = sizeof(config), .capacity_bytes = capacity, .segment_bytes = 1 << 20, .floor_bytes = 1,
		.notice = note,
	};
	struct omnikv_spill *spill;
	struct omnikv_error err;

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

/* Stores twice the cap, reads what is left, opens again. */
static void use(const char *path, uint64_t capacity)
{
	uint64_t nr = 2 * capacity / BLOCK;
	struct omnikv_spill *spill = open_store(path, capacity);
	uint32_t nr_there = 0;

	for (uint64_t id = 0; id < nr; id += 4)
		assert_int_equal(spill_put_run(spill->store, 1, id, id + 4, BLOCK, 1), 0);
	assert_true(stats_of(spill).peak_bytes <= capacity);
	/* One line at most, and only about the page cache. */
	assert_int_equal(nr_notes, !stats_of(spill).is_direct);
	print_message("# %s\n", stats_of(spill).is_direct ? "direct" : "buffered");
	omnikv_spill_close(spill);
	spill = open_store(path, capacity);
	for (uint64_t id = 0; id < nr; id++) {
		int ret = spill_get(spill->store, 1, id);

		assert_true(!ret || ret == -ENOENT);
		nr_there += !ret;
	}
	assert_true(nr_there >= capacity / BLOCK / 2);
	omnikv_spill_close(spill);
}

static void spill_on_ext4_with_1k_blocks(void **state)
{
	(void)state;
	if (!mount_image("mkfs.ext4 -q -b 1024", 64, ""))
		skip();
	use(mnt, 16 << 20);
}

static void spill_on_ext4_with_4k_blocks(void **state)
{
	(void)state;
	if (!mount_image("mkfs.ext4 -q -b 4096", 64, ""))
		skip();
	use(mnt, 16 << 20);
}

static void spill_on_xfs(void **state)
{
	(void)state;
	if (!mount_image("mkfs.xfs -q", 320, ""))
		skip();
	use(mnt, 16 << 20);
}

static void spill_on_tmpfs(void **state)
{
	(void)state;
	if (geteuid() || shell("mount -t tmpfs -o size=64M none %s 2>/dev/null", mnt))
		skip();
	use(mnt, 16 << 20);
}

static void spill_on_overlayfs(void **state)
{
	(void)state;
	if (geteuid() || shell("mkdir %s/l %s/u %s/w && mount -t overlay -o lowerdir=%s/l,upperdir=%s/u,workdir=%s/w none %s "
			       "2>/dev/null", dir, dir, dir, dir, dir, dir, mnt))
		skip();
	use(mnt, 16 << 20);
}

static void spill_on_raw_device_with_4k_sectors(void **state)
{
	char path[64] = "", command[256];
	struct omnikv_spill *spill;
	FILE *pipe;

	(void)state;
	snprintf(command, sizeof(command), "truncate -s 20M %s/image && losetup --sector-size 4096 --find --show %s/image "
		 "2>/dev/null", dir, dir);
	pipe = geteuid() ? NULL : popen(command, "r");
	if (!pipe || !fgets(path, sizeof(path), pipe) || strncmp(path, "/dev/", 5)) {
		if (pipe)
			pclose(pipe);
		skip();
	}
	pclose(pipe);
	path[strcspn(path, "\n")] = '\0';
	use(path, 16 << 20);
	/* What is there stays: no file system is made on it by mistake. */
	spill = open_store(path, 0);
	assert_int_equal(stats_of(spill).segment_bytes, 1 << 20);
	omnikv_spill_close(spill);
	shell("losetup -d %s", path);
}

/* Fill what is left of the file system from outside. */
static void fill(void)
{
	shell("dd if=/dev/zero of=%s/filler bs=64k 2>/dev/null; sync %s", mnt, mnt);
}

static void spill_cap_beyond_the_disk_does_no_harm(void **state)
{
	struct omnikv_spill *spill;
	uint32_t nr_stored = 0;

	(void)state;
	if (!mount_image("mkfs.ext4 -q", 200, ""))
		skip();
	spill = open_store(mnt, 400 << 20);
	for (uint64_t id = 0; id < 6400; id += 8)
		nr_stored += !spill_put_run(spill->store, 1, id, id + 8, BLOCK, 1);
	/* It makes do with what there is. */
	assert_int_equal(nr_stored, 800);
	assert_int_equal(spill_get(spill->store, 1, 6399), 0);
	assert_true(stats_of(spill).used_bytes < 200 << 20);
	/* Others take the rest, and give a part of it back. */
	fill();
	for (uint64_t id = 6400; id < 7000; id += 8)
		assert_int_equal(spill_put_run(spill->store, 1, id, id + 8, BLOCK, 1), 0);
	assert_int_equal(spill_get(spill->store, 1, 6999), 0);
	shell("rm %s/filler", mnt);
	for (uint64_t id = 7000; id < 7100; id++)
		assert_int_equal(spill_put(spill->store, 1, id, BLOCK, 1), 0);
	omnikv_spill_close(spill);
	spill = open_store(mnt, 400 << 20);
	for (uint64_t id = 7000; id < 7100; id++)
		assert_int_equal(spill_get(spill->store, 1, id), 0);
	assert_int_equal(stats_of(spill).bad_records, 0);
	omnikv_spill_close(spill);
}

static void spill_resumes_when_there_is_room(void **state)
{
	struct omnikv_spill *spill;
	int ret = -1;

	(void)state;
	if (!mount_image("mkfs.ext4 -q", 64, ""))
		skip();
	spill = open_store(mnt, 32 << 20);
	fill();
	for (uint64_t id = 0; id < 5; id++)
		assert_int_equal(spill_put(spill->store, 1, id, BLOCK, 1), -ENOSPC);
	assert_int_equal(nr_notes, 1);
	assert_non_null(strstr(last_note, "no space left"));
	shell("rm %s/filler; sync", mnt);
	for (uint32_t i = 0; i < 50 && ret; i++) {
		usleep(100000);
		ret = spill_put(spill->store, 1, 7, BLOCK, 1);
	}
	assert_int_equal(ret, 0);
	assert_int_equal(nr_notes, 2);
	assert_non_null(strstr(last_note, "well again"));
	assert_int_equal(spill_get(spill->store, 1, 7), 0);
	omnikv_spill_close(spill);
}

static void spill_without_inodes_is_refused_by_name(void **state)
{
	struct omnikv_spill_config config = { .size = sizeof(config), .capacity_bytes = 16 << 20 };
	struct omnikv_spill *spill;
	struct omnikv_error err;

	(void)state;
	if (!mount_image("mkfs.ext4 -q -N 16", 64, ""))
		skip();
	shell("i=0; while : > %s/f$i; do i=$((i+1)); done 2>/dev/null", mnt);
	assert_int_equal(omnikv_spill_open(mnt, &config, &spill, &err), -ENOSPC);
	assert_non_null(strstr(err.text, "No space left"));
	shell("rm %s/f0", mnt);
	use(mnt, 16 << 20);
}

static void a_store_on_a_full_disk_is_refused_by_name(void **state)
{
	struct omnikv_spill_config config = { .size = sizeof(config), .capacity_bytes = 16 << 20 };
	struct omnikv_spill *spill;
	struct omnikv_error err;

	(void)state;
	if (geteuid() || shell("mount -t tmpfs -o size=64K none %s 2>/dev/null", mnt))
		skip();
	shell("dd if=/dev/zero of=%s/filler bs=4k 2>/dev/null", mnt);
	assert_int_equal(omnikv_spill_open(mnt, &config, &spill, &err), -ENOSPC);
	assert_non_null(strstr(err.text, mnt));
	assert_non_null(strstr(err.text, "the superblock of a new store cannot be written: no space left; make room"));
	/* What it has left is no store, and no obstacle to one. */
	shell("rm %s/filler", mnt);
	assert_int_equal(omnikv_spill_open(mnt, &config, &spill, &err), 0);
	omnikv_spill_close(spill);
}

#define TEST(f)	cmocka_unit_test_setup_teardown(f, make_dirs, remove_dirs)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(spill_on_ext4_with_1k_blocks),
		TEST(spill_on_ext4_with_4k_blocks),
		TEST(spill_on_xfs),
		TEST(spill_on_tmpfs),
		TEST(spill_on_overlayfs),
		TEST(spill_on_raw_device_with_4k_sectors),
		TEST(spill_cap_beyond_the_disk_does_no_harm),
		TEST(spill_resumes_when_there_is_room),
		TEST(spill_without_inodes_is_refused_by_name),
		TEST(a_store_on_a_full_disk_is_refused_by_name),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

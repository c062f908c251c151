// SPDX-License-Identifier: GPL-2.0-only
/*
 * Spill stores against the limits of a process and of themselves: locked memory, descriptors, the
 * size of files, the budget. Each is named in one line, nothing crashes, nothing leaks, and where a
 * limit is raised it goes on by itself.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "spill/spill.h"
#include "tests/harness/kv_world.h"
#include "tests/harness/spill_world.h"

#define SEGMENT	(1u << 20)
#define BLOCK	(16u << 10)
#define NOBODY	65534u

static char dir[128];
static char text[256];
static uint32_t nr_notes;

static void note(void *opaque, const char *line)
{
	(void)opaque;
	nr_notes++;
	snprintf(text, sizeof(text), "%s", line);
}

static struct omnikv_spill_config options(uint64_t capacity)
{
	return (struct omnikv_spill_config){
		.size = sizeof(struct omnikv_spill_config), .capacity_bytes = capacity, .segment_bytes = SEGMENT,
		.floor_bytes = 1, .notice = note,
	};
}

static int make_dir(void **state)
{
	const char *top = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";

	(void)state;
	snprintf(dir, sizeof(dir), "%.60s/omnikv-limits-XXXXXX", top);
	nr_notes = 0;
	text[0] = '\0';
	return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
	char file[160];

	(void)state;
	snprintf(file, sizeof(file), "%s/omnikv.spill", dir);
	unlink(file);
	return rmdir(dir);
}

/* What a child process says of itself: 0 all well, 4 it cannot be tried here. */
static void run_child(int (*fn)(void))
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (!pid)
		_exit(fn());
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 4)
		skip();
	assert_false(WIFSIGNALED(status));
	assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- locked memory -------------------------------------------------------------------------- */

static int use_without_locked_memory(void)
{
	struct rlimit limit = { 64 << 10, 64 << 10 };
	struct omnikv_spill_config config = options(16 << 20);
	struct omnikv_spill_stats stats = { .size = sizeof(stats) };
	struct okv_store_put put = { 0 };
	struct okv_store_get get = { 0 };
	struct omnikv_spill *spill;
	struct omnikv_pool *pool;
	uint8_t *base;

	if (omnikv_pool_open("4M", NULL, &pool, NULL) || setrlimit(RLIMIT_MEMLOCK, &limit))
		return 4;
	/* Root may lock what it likes. */
	if (!geteuid() && (chown(dir, NOBODY, NOBODY) || setgid(NOBODY) || setuid(NOBODY)))
		return 4;
	base = omnikv_pool_base(pool);
	config.pool = pool;
	KV_MUST(!omnikv_spill_open(dir, &config, &spill, NULL));
	KV_MUST(!omnikv_spill_stats(spill, &stats));
	if (stats.is_uring) {
		KV_MUST(!stats.is_registered);
		KV_MUST(nr_notes == 1);
		KV_MUST(strstr(text, "it needs 4096 KiB"));
		KV_MUST(strstr(text, "RLIMIT_MEMLOCK is 64 KiB"));
		KV_MUST(strstr(text, "ulimit -l 4096"));
	}
	spill_block(&put.rec, 1, 3, BLOCK, 1);
	spill_fill(base, 1, 3, BLOCK);
	put.bufs[0] = base;
	KV_MUST(!okv_store_put(spill->store, &put, 1) && !put.res);
	get.rec = put.rec;
	get.bufs[0] = base + (1 << 20);
	KV_MUST(!okv_store_get(spill->store, &get, 1) && !get.res);
	KV_MUST(!memcmp(base, base + (1 << 20), BLOCK));
	/* Memory that is not aligned is refused before it gets to the kernel. */
	put.bufs[0] = base + 16;
	spill_block(&put.rec, 1, 4, BLOCK, 1);
	KV_MUST(!okv_store_put(spill->store, &put, 1) && put.res == -EINVAL);
	omnikv_spill_close(spill);
	omnikv_pool_close(pool);
	return 0;
}

static void spill_goes_on_without_locked_memory(void **state)
{
	(void)state;
	run_child(use_without_locked_memory);
}

/* ---- descriptors ---------------------------------------------------------------------------- */

static uint32_t nr_descriptors(void)
{
	DIR *fds = opendir("/proc/self/fd");
	uint32_t nr = 0;

	KV_MUST(fds != NULL);
	while (readdir(fds))
		nr++;
	closedir(fds);
	return nr;
}

static int open_with_few_descriptors(void)
{
	struct omnikv_spill_config config = options(16 << 20);
	uint32_t before = nr_descriptors(), nr_refused = 0;
	struct rlimit limit;
	int ret = -EMFILE;

	KV_MUST(!getrlimit(RLIMIT_NOFILE, &limit));
	for (uint32_t i = 0; i < 64 && ret; i++) {
		struct rlimit few = { i, limit.rlim_max };
		struct omnikv_error err = { "" };
		struct omnikv_spill *spill;

		nr_notes = 0;
		KV_MUST(!setrlimit(RLIMIT_NOFILE, &few));
		ret = omnikv_spill_open(dir, &config, &spill, &err);
		if (ret) {
			nr_refused++;
			KV_MUST(ret == -EMFILE);
			KV_MUST(strstr(err.text, "Too many open files"));
		} else {
			/* Where the ring has found none it goes on without. */
			KV_MUST(!spill_put(spill->store, 1, i, BLOCK, 1) && !spill_get(spill->store, 1, i));
			if (nr_notes)
				KV_MUST(nr_notes == 1 && strstr(text, "no io_uring"));
			if (nr_notes)
				ret = -EMFILE;
			omnikv_spill_close(spill);
		}
		KV_MUST(!setrlimit(RLIMIT_NOFILE, &limit));
		KV_MUST(nr_descriptors() == before);
	}
	KV_MUST(!ret && nr_refused);
	return 0;
}

static void spill_without_descriptors_is_refused_by_name(void **state)
{
	(void)state;
	run_child(open_with_few_descriptors);
}

/* ---- the size of files ---------------------------------------------------------------------- */

static int fill_a_limited_file(void)
{
	struct rlimit limit = { (4 << 20) + (512 << 10), RLIM_INFINITY }, more = { 64 << 20, RLIM_INFINITY };
	struct omnikv_spill_config config = options(32 << 20);
	struct omnikv_spill *spill;
	struct omnikv_error err;
	uint64_t id = 0;

	if (setrlimit(RLIMIT_FSIZE, &limit))
		return 4;
	KV_MUST(!omnikv_spill_open(dir, &config, &spill, &err));
	/* More than the file may hold: it makes do with what it may have. */
	for (; id < 600; id += 4)
		KV_MUST(!spill_put_run(spill->store, 1, id, id + 4, BLOCK, 1));
	KV_MUST(!spill_get(spill->store, 1, 599));
	KV_MUST(!nr_notes);
	omnikv_spill_close(spill);
	/* Not even that: one line, and misses. */
	limit.rlim_cur = 64 << 10;
	KV_MUST(!setrlimit(RLIMIT_FSIZE, &limit));
	KV_MUST(!omnikv_spill_open(dir, &config, &spill, &err));
	for (; id < 640; id++)
		KV_MUST(spill_put(spill->store, 1, id, BLOCK, 1) == -EFBIG);
	KV_MUST(nr_notes == 1 && strstr(text, "ulimit -f"));
	KV_MUST(!spill_get(spill->store, 1, 599));
	/* Raised: it goes on by itself. */
	KV_MUST(!setrlimit(RLIMIT_FSIZE, &more));
	spill->store->retry_at_ns = 1;
	KV_MUST(!spill_put(spill->store, 1, id, BLOCK, 1) && !spill_get(spill->store, 1, id));
	KV_MUST(nr_notes == 2 && strstr(text, "well again"));
	omnikv_spill_close(spill);
	/* A store that is yet to be made. */
	limit.rlim_cur = 4096;
	KV_MUST(!setrlimit(RLIMIT_FSIZE, &limit));
	{
		char path[160];

		snprintf(path, sizeof(path), "%s/omnikv.spill", dir);
		KV_MUST(!unlink(path));
	}
	KV_MUST(omnikv_spill_open(dir, &config, &spill, &err) == -EFBIG);
	KV_MUST(strstr(err.text, "superblock"));
	return 0;
}

static void spill_limit_on_file_size_kills_nobody(void **state)
{
	(void)state;
	run_child(fill_a_limited_file);
}

/* ---- the budget ----------------------------------------------------------------------------- */

static uint64_t disk_usage(void)
{
	char path[160];
	struct stat st;

	snprintf(path, sizeof(path), "%s/omnikv.spill", dir);
	KV_MUST(!stat(path, &st));
	return (uint64_t)st.st_blocks * 512;
}

static void put_within(struct omnikv_spill *spill, uint64_t salt, uint64_t nr, uint64_t budget)
{
	for (uint64_t id = 0; id < nr; id += 8) {
		KV_MUST(!spill_put_run(spill->store, salt, id, id + 8, BLOCK, 1));
		KV_MUST(disk_usage() <= budget);
	}
	KV_MUST(!spill_get(spill->store, salt, nr - 1));
}

/* Four fifths of the budget, removed and put again thirty times; then the owner is killed. */
static void spill_budget_is_what_is_there_after_removals_and_a_kill(void **state)
{
	const uint64_t budget = 10 << 20, nr = (budget / 10 * 8 - 2 * SEGMENT) / BLOCK / 8 * 8;
	struct omnikv_spill_config config = options(budget);
	struct omnikv_spill_stats stats = { .size = sizeof(stats) };
	struct omnikv_spill *spill;
	const char *reason;
	pid_t pid = fork();

	(void)state;
	if (!pid) {
		KV_MUST(!omnikv_spill_open(dir, &config, &spill, NULL));
		for (uint64_t round = 0; round < 30; round++) {
			put_within(spill, round, nr, budget);
			/* Nothing of it was given up for what was removed. */
			for (uint64_t id = 0; id < nr; id++)
				KV_MUST(!spill_get(spill->store, round, id));
			for (uint64_t id = 0; id < nr && round < 29; id++) {
				struct okv_record rec;

				spill_block(&rec, round, id, OKV_SPILL_PAGE, 1);
				okv_store_forget(spill->store, rec.ns, &rec.key);
			}
			KV_MUST(!okv_store_check_books(spill->store, &reason));
			KV_MUST(!omnikv_spill_stats(spill, &stats));
			KV_MUST(stats.live_bytes == (round < 29 ? 0 : nr * BLOCK));
		}
		kill(getpid(), SIGKILL);
	}
	waitpid(pid, NULL, 0);
	assert_int_equal(omnikv_spill_open(dir, &config, &spill, NULL), 0);
	assert_int_equal(omnikv_spill_stats(spill, &stats), 0);
	/* What is used is what is there, at once. */
	assert_true(stats.live_bytes >= nr * BLOCK);
	assert_true(stats.used_bytes >= nr * BLOCK);
	assert_true(stats.used_bytes <= budget);
	for (uint64_t id = 0; id < nr; id++)
		assert_int_equal(spill_get(spill->store, 29, id), 0);
	put_within(spill, 100, nr / 4 * 3 / 8 * 8, budget);
	assert_int_equal(omnikv_spill_stats(spill, &stats), 0);
	assert_true(stats.reclaimed_segments > 0);
	assert_true(disk_usage() <= budget);
	if (okv_store_check_books(spill->store, &reason))
		fail_msg("%s", reason);
	omnikv_spill_close(spill);
}

#define TEST(f)	cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(spill_goes_on_without_locked_memory),
		TEST(spill_without_descriptors_is_refused_by_name),
		TEST(spill_limit_on_file_size_kills_nobody),
		TEST(spill_budget_is_what_is_there_after_removals_and_a_kill),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

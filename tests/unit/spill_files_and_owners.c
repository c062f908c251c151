// SPDX-License-Identifier: GPL-2.0-only
/*
 * Spill stores on real files: direct and buffered, with a ring and without, on tmpfs; one owner
 * who is named to the second; killed at any moment and opened again; beyond 4 GiB; requests
 * that fail, stop short or are interrupted in the system call itself.
 */
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

#include "failpoint.h"
#include "spill/spill.h"
#include "tests/harness/spill_world.h"

#define SEGMENT	(1u << 20)
#define BLOCK	(16u << 10)

static char dir[128];
static char text[256];
static uint32_t nr_notes;

static void note(void *opaque, const char *line)
{
	(void)opaque;
	nr_notes++;
	snprintf(text, sizeof(text), "%s", line);
}

static struct omnikv_spill_config options(uint32_t flags)
{
	return (struct omnikv_spill_config){
		.size = sizeof(struct omnikv_spill_config), .flags = flags, .capacity_bytes = 16 << 20,
		.segment_bytes = SEGMENT, .floor_bytes = 1, .owner = "unit test", .notice = note,
	};
}

static int make_dir(void **state)
{
	const char *top = getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp";

	(void)state;
	snprintf(dir, sizeof(dir), "%.60s/omnikv-spill-XXXXXX", top);
	nr_notes = 0;
	return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state)
{
	char file[160];

	(void)state;
	okv_failpoint_disarm_all();
	snprintf(file, sizeof(file), "%s/omnikv.spill", dir);
	unlink(file);
	return rmdir(dir);
}

static struct omnikv_spill *must_open(const struct omnikv_spill_config *config)
{
	struct omnikv_spill *spill;
	struct omnikv_error err;
	int ret = omnikv_spill_open(dir, config, &spill, &err);

	if (ret)
		fail_msg("%d: %s", ret, err.text);
	return spill;
}

static struct omnikv_spill_stats stats_of(struct omnikv_spill *spill)
{
	struct omnikv_spill_stats stats = { .size = sizeof(stats) };

	assert_int_equal(omnikv_spill_stats(spill, &stats), 0);
	return stats;
}

static void spill_works_in_each_way_of_doing_io(void **state)
{
	static const uint32_t ways[] = { 0, OMNIKV_SPILL_F_BUFFERED, OMNIKV_SPILL_F_PLAIN,
					 OMNIKV_SPILL_F_BUFFERED | OMNIKV_SPILL_F_PLAIN };

	(void)state;
	for (uint32_t i = 0; i < 4; i++) {
		struct omnikv_spill_config config = options(ways[i]);
		struct omnikv_spill *spill = must_open(&config);
		struct omnikv_spill_check check = { .size = sizeof(check) };

		assert_int_equal(spill_put_run(spill->store, i, 0, 100, BLOCK, 1), 0);
		for (uint64_t id = 0; id < 100; id++)
			assert_int_equal(spill_get(spill->store, i, id), 0);
		assert_int_equal(omnikv_spill_sync(spill), 0);
		if (ways[i] & OMNIKV_SPILL_F_BUFFERED)
			assert_int_equal(stats_of(spill).is_direct, 0);
		if (ways[i] & OMNIKV_SPILL_F_PLAIN)
			assert_int_equal(stats_of(spill).is_uring, 0);
		assert_int_equal(omnikv_spill_check(spill, &check, NULL, NULL), 0);
		assert_int_equal(check.nr_records, 100 * (i + 1));
		assert_int_equal(check.nr_bad, 0);
		omnikv_spill_close(spill);
	}
	/* What one way wrote the others have read: all in one store. */
	struct omnikv_spill_config config = options(OMNIKV_SPILL_F_READ_ONLY);
	struct omnikv_spill *spill = must_open(&config);

	assert_int_equal(stats_of(spill).nr_records, 400);
	assert_int_equal(stats_of(spill).owner_pid, 0);
	omnikv_spill_close(spill);
}

static void spill_second_owner_is_told_who_the_first_is(void **state)
{
	struct omnikv_spill_config config = options(0);
	struct omnikv_spill *spill, *second;
	struct omnikv_error err;
	int ready[2], go[2];
	char pid_text[32], c;
	pid_t pid;

	(void)state;
	assert_int_equal(pipe(ready), 0);
	assert_int_equal(pipe(go), 0);
	pid = fork();
	if (!pid) {
		struct omnikv_spill *mine;

		if (omnikv_spill_open(dir, &config, &mine, NULL) || spill_put_run(mine->store, 1, 0, 20, BLOCK, 1))
			_exit(1);
		(void)!write(ready[1], "x", 1);
		(void)!read(go[0], &c, 1);
		_exit(0);	/* not closed: as if killed */
	}
	assert_int_equal(read(ready[0], &c, 1), 1);
	assert_int_equal(omnikv_spill_open(dir, &config, &second, &err), -EBUSY);
	snprintf(pid_text, sizeof(pid_text), "process %d", pid);
	assert_non_null(strstr(err.text, pid_text));
	assert_non_null(strstr(err.text, "unit test"));
	/* To look is allowed. */
	config.flags = OMNIKV_SPILL_F_READ_ONLY;
	spill = must_open(&config);
	assert_int_equal(stats_of(spill).owner_pid, pid);
	assert_int_equal(stats_of(spill).nr_records, 20);
	omnikv_spill_close(spill);
	assert_int_equal(write(go[1], "x", 1), 1);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	config.flags = 0;
	spill = must_open(&config);
	for (uint64_t id = 0; id < 20; id++)
		assert_int_equal(spill_get(spill->store, 1, id), 0);
	omnikv_spill_close(spill);
	close(ready[0]);
	close(ready[1]);
	close(go[0]);
	close(go[1]);
}

static void spill_eight_owners_at_once_keep_their_blocks(void **state)
{
	struct omnikv_spill_config config = options(0);
	struct omnikv_spill *spill;
	uint32_t nr_owners = 0;
	pid_t pids[8];
	bool was_owner[8];

	(void)state;
	config.capacity_bytes = 64 << 20;
	for (uint32_t i = 0; i < 8; i++) {
		pids[i] = fork();
		if (!pids[i]) {
			int ret = omnikv_spill_open(dir, &config, &spill, NULL);

			if (ret)
				_exit(ret == -EBUSY ? 2 : 1);
			if (spill_put_run(spill->store, i, 0, 500, 4096, 1) || spill_get(spill->store, i, 499))
				_exit(1);
			kill(getpid(), SIGKILL);
		}
	}
	for (uint32_t i = 0; i < 8; i++) {
		int status;

		assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
		was_owner[i] = WIFSIGNALED(status);
		/* Refused, or all of it stored. */
		assert_true(was_owner[i] || WEXITSTATUS(status) == 2);
		nr_owners += was_owner[i];
	}
	assert_true(nr_owners >= 1);
	spill = must_open(&config);
	for (uint32_t i = 0; i < 8; i++)
		for (uint64_t id = 0; id < 500; id++)
			assert_int_equal(spill_get(spill->store, i, id), was_owner[i] ? 0 : -ENOENT);
	omnikv_spill_close(spill);
}

static void spill_survives_kill_at_any_moment(void **state)
{
	struct omnikv_spill_config config = options(0);
	uint64_t seed = 3, nr_recovered = 0;

	(void)state;
	for (uint32_t round = 0; round < 6; round++) {
		struct omnikv_spill *spill;
		int begun[2];
		char c;
		pid_t pid;

		assert_int_equal(pipe(begun), 0);
		pid = fork();
		if (!pid) {
			if (omnikv_spill_open(dir, &config, &spill, NULL))
				_exit(1);
			for (uint64_t id = 0;; id += 5) {
				if (spill_put_run(spill->store, round, id, id + 5, BLOCK, 1))
					_exit(2);
				if (!id)
					(void)!write(begun[1], "x", 1);
			}
		}
		close(begun[1]);
		assert_int_equal(read(begun[0], &c, 1), 1);
		close(begun[0]);
		usleep(2000 + spill_random(&seed) % 60000);
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		spill = must_open(&config);
		for (uint64_t id = 0; id < 2000; id++) {
			int ret = spill_get(spill->store, round, id);

			assert_true(!ret || ret == -ENOENT || ret == -EBADMSG);
			nr_recovered += !ret;
		}
		omnikv_spill_close(spill);
	}
	assert_true(nr_recovered > 20);
}

static void spill_offsets_beyond_4_gib_are_kept(void **state)
{
	struct omnikv_spill_config config = options(0);
	struct omnikv_spill *spill;

	(void)state;
	config.capacity_bytes = UINT64_C(9) << 30;
	config.segment_bytes = 512 << 20;
	spill = must_open(&config);
	/* Free segments whose room is there already go first; the file stays sparse. */
	for (uint32_t i = 0; i < 4; i++) {
		static const uint32_t where[] = { 3, 7, 8, 16 };
		struct okv_store *store = spill->store;

		store->segments[where[i]].is_reserved = true;
		if (store->active != OKV_CATALOG_NONE) {
			store->segments[store->active].state = OKV_SEGMENT_SEALED;
			assert_int_equal(okv_segment_write_table(store, store->active), 0);
			store->active = OKV_CATALOG_NONE;
		}
		assert_int_equal(spill_put_run(store, i, 0, 20, BLOCK, 1), 0);
		assert_int_equal(store->active, where[i]);
	}
	for (uint32_t round = 0; round < 2; round++) {
		for (uint32_t i = 0; i < 4; i++)
			for (uint64_t id = 0; id < 20; id++)
				assert_int_equal(spill_get(spill->store, i, id), 0);
		omnikv_spill_close(spill);
		spill = must_open(&config);
	}
	omnikv_spill_close(spill);
}

static void spill_system_calls_may_fail(void **state)
{
	static const char *const points[] = { "spill.read", "spill.write", "spill.sync", "spill.reserve",
					      "spill.before_write", "spill.after_write" };
	static const int errors[] = { EIO, ENOSPC, EINTR, EAGAIN, EINVAL };

	(void)state;
	for (uint32_t way = 0; way < 2; way++) {
		for (uint32_t p = 0; p < 6; p++) {
			for (uint32_t e = way; e < 5; e += 2) {
				struct okv_failpoint point = { .name = points[p], .nth = 1 + e, .times = 1, .error = errors[e] };
				struct omnikv_spill_config config = options(way ? OMNIKV_SPILL_F_PLAIN : 0);
				struct omnikv_spill *spill = must_open(&config);
				uint64_t salt = 1000 * way + 100 * p + e;

				assert_int_equal(okv_failpoint_arm(&point), 0);
				for (uint64_t id = 0; id < 12; id++) {
					int stored = spill_put(spill->store, salt, id, BLOCK, 1);
					int ret = spill_get(spill->store, salt, id);

					assert_int_not_equal(ret, -EUCLEAN);
					/* The one call that failed may have been the read. */
					if (!stored && strcmp(points[p], "spill.read"))
						assert_int_equal(ret, 0);
				}
				omnikv_spill_sync(spill);
				okv_failpoint_disarm_all();
				/* A second, and it is tried again. */
				spill->store->retry_at_ns = 1;
				assert_int_equal(spill_put(spill->store, salt, 77, BLOCK, 1), 0);
				assert_int_equal(spill_get(spill->store, salt, 77), 0);
				omnikv_spill_close(spill);
			}
		}
	}
	/* Each way of doing without. */
	struct {
		const char *name;
		const char *says;
	} without[] = { { "spill.uring", "no io_uring" }, { "spill.direct", "page cache" } };

	for (uint32_t i = 0; i < 2; i++) {
		struct okv_failpoint point = { .name = without[i].name, .error = ENOSYS };
		struct omnikv_spill_config config = options(0);
		struct omnikv_spill *spill;

		nr_notes = 0;
		assert_int_equal(okv_failpoint_arm(&point), 0);
		spill = must_open(&config);
		okv_failpoint_disarm_all();
		assert_int_equal(nr_notes, 1);
		assert_non_null(strstr(text, without[i].says));
		assert_int_equal(spill_put(spill->store, 50 + i, 1, BLOCK, 1), 0);
		assert_int_equal(spill_get(spill->store, 50 + i, 1), 0);
		omnikv_spill_close(spill);
	}
}

static void spill_pool_memory_is_registered(void **state)
{
	struct omnikv_spill_config config = options(0);
	struct okv_store_put put = { 0 };
	struct okv_store_get get = { 0 };
	struct omnikv_spill *spill;
	struct omnikv_pool *pool;
	uint8_t *base;

	(void)state;
	assert_int_equal(omnikv_pool_open("4M", NULL, &pool, NULL), 0);
	base = omnikv_pool_base(pool);
	config.pool = pool;
	spill = must_open(&config);
	spill_block(&put.rec, 1, 3, BLOCK, 1);
	spill_fill(base, 1, 3, BLOCK);
	put.bufs[0] = base;
	assert_int_equal(okv_store_put(spill->store, &put, 1), 0);
	assert_int_equal(put.res, 0);
	get.rec = put.rec;
	get.bufs[0] = base + (1 << 20);
	assert_int_equal(okv_store_get(spill->store, &get, 1), 0);
	assert_int_equal(get.res, 0);
	assert_memory_equal(base, base + (1 << 20), BLOCK);
	/* Where locked memory is short it goes on without, and says so. */
	if (!stats_of(spill).is_registered)
		assert_true(nr_notes > 0);
	omnikv_spill_close(spill);

	/* The limit of locked memory, as an ordinary user meets it: named, and done without. */
	{
		struct okv_failpoint point = { .name = "spill.register", .error = ENOMEM };
		struct rlimit limit;
		char figure[64];

		nr_notes = 0;
		assert_int_equal(okv_failpoint_arm(&point), 0);
		spill = must_open(&config);
		okv_failpoint_disarm_all();
		assert_int_equal(nr_notes, 1);
		/* The pool's 4 MiB, and the limit as it is here. */
		assert_int_equal(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
		if (limit.rlim_cur == RLIM_INFINITY)
			strcpy(figure, "RLIMIT_MEMLOCK is unlimited");
		else
			snprintf(figure, sizeof(figure), "RLIMIT_MEMLOCK is %llu KiB",
				 (unsigned long long)limit.rlim_cur >> 10);
		assert_non_null(strstr(text, figure));
		assert_non_null(strstr(text, "it needs 4096 KiB"));
		assert_non_null(strstr(text, "ulimit -l 4096"));
		assert_int_equal(stats_of(spill).is_registered, 0);
		get.bufs[0] = base + (2 << 20);
		assert_int_equal(okv_store_find(spill->store, put.rec.ns, &put.rec.key, &get.rec), true);
		assert_int_equal(okv_store_get(spill->store, &get, 1), 0);
		assert_int_equal(get.res, 0);
		assert_memory_equal(base, base + (2 << 20), BLOCK);
		omnikv_spill_close(spill);
	}
	omnikv_pool_close(pool);
}

static void spill_paths_are_checked(void **state)
{
	struct omnikv_spill_config config = options(0);
	char path[200], foreign[16384];
	struct omnikv_spill *spill;
	struct omnikv_error err;
	FILE *file;

	(void)state;
	assert_int_equal(omnikv_spill_open(NULL, &config, &spill, &err), -EINVAL);
	config.flags = 1 << 30;
	assert_int_equal(omnikv_spill_open(dir, &config, &spill, &err), -EINVAL);
	config = options(OMNIKV_SPILL_F_OPEN_ONLY);
	snprintf(path, sizeof(path), "%s/none", dir);
	assert_int_equal(omnikv_spill_open(path, &config, &spill, &err), -ENOENT);
	config = options(0);
	snprintf(path, sizeof(path), "%s/no/such/parent", dir);
	assert_int_equal(omnikv_spill_open(path, &config, &spill, &err), -ENOENT);
	assert_int_equal(omnikv_spill_open("/dev/null", &config, &spill, &err), -EINVAL);
	config.capacity_bytes = 0;
	assert_int_equal(omnikv_spill_open(dir, &config, &spill, &err), -EINVAL);
	config.capacity_bytes = 2 << 20;
	assert_int_equal(omnikv_spill_open(dir, &config, &spill, &err), -EINVAL);
	assert_non_null(strstr(err.text, "give more"));

	/* Somebody else's file is left as it is. */
	config = options(0);
	snprintf(path, sizeof(path), "%s/foreign", dir);
	memset(foreign, 'a', sizeof(foreign));
	file = fopen(path, "w");
	assert_non_null(file);
	assert_int_equal(fwrite(foreign, 1, sizeof(foreign), file), sizeof(foreign));
	fclose(file);
	assert_int_equal(omnikv_spill_open(path, &config, &spill, &err), -EBADMSG);
	assert_non_null(strstr(err.text, "no spill store"));
	file = fopen(path, "r");
	assert_int_equal(fread(foreign, 1, sizeof(foreign), file), sizeof(foreign));
	fclose(file);
	for (uint32_t i = 0; i < sizeof(foreign); i++)
		assert_int_equal(foreign[i], 'a');
	unlink(path);
}

static bool is_there(const char *path)
{
	struct stat st;

	return !lstat(path, &st);
}

/* A store that was refused left an empty file, of which the next attempt said something else. */
static void spill_failed_creation_leaves_what_was_there(void **state)
{
	struct omnikv_spill_config config = options(0);
	char made[160], file[200];
	struct omnikv_error first, second;
	struct omnikv_spill *spill;
	struct stat st;
	int fd;

	(void)state;
	snprintf(made, sizeof(made), "%s/made", dir);
	/* A directory that this call makes; one that was there; a failure at each step behind the lock. */
	for (uint32_t i = 0; i < 4; i++) {
		static const char *const points[] = { NULL, NULL, "spill.sync", "spill.write" };

		config.capacity_bytes = i == 0 ? 2 << 20 : i == 1 ? 0 : 16 << 20;
		if (points[i])
			okv_failpoint_arm(&(struct okv_failpoint){ .name = points[i], .error = EIO, .nth = 1 });
		assert_true(omnikv_spill_open(made, &config, &spill, &first) < 0);
		assert_false(is_there(made));
		if (points[i])
			okv_failpoint_arm(&(struct okv_failpoint){ .name = points[i], .error = EIO, .nth = 1 });
		assert_true(omnikv_spill_open(made, &config, &spill, &second) < 0);
		assert_string_equal(first.text, second.text);
		assert_int_equal(mkdir(made, 0700), 0);
		snprintf(file, sizeof(file), "%s/omnikv.spill", made);
		if (points[i])
			okv_failpoint_arm(&(struct okv_failpoint){ .name = points[i], .error = EIO, .nth = 1 });
		assert_true(omnikv_spill_open(made, &config, &spill, &second) < 0);
		assert_true(is_there(made));
		assert_false(is_there(file));
		/* An empty file of the user's stays, and stays empty. */
		fd = open(file, O_WRONLY | O_CREAT, 0600);
		close(fd);
		if (points[i])
			okv_failpoint_arm(&(struct okv_failpoint){ .name = points[i], .error = EIO, .nth = 1 });
		assert_true(omnikv_spill_open(made, &config, &spill, &second) < 0);
		assert_int_equal(stat(file, &st), 0);
		assert_int_equal(st.st_size, 0);
		okv_failpoint_disarm_all();
		/* And a store stays one. */
		config.capacity_bytes = 16 << 20;
		assert_int_equal(omnikv_spill_open(made, &config, &spill, &first), 0);
		omnikv_spill_close(spill);
		config.segment_bytes = 3;
		assert_true(omnikv_spill_open(made, &config, &spill, &first) < 0 || (omnikv_spill_close(spill), true));
		config.segment_bytes = SEGMENT;
		assert_int_equal(stat(file, &st), 0);
		assert_true(st.st_size > 0);
		unlink(file);
		rmdir(made);
	}
}

/* A descriptor's file that nobody can find by a name is the caller's own, not one that was taken away meanwhile. */
static void spill_file_without_a_name_is_reached_by_its_descriptor(void **state)
{
	struct omnikv_spill_config config = options(0);
	struct omnikv_spill *spill;
	char path[160];
	int fd;

	(void)state;
	snprintf(path, sizeof(path), "%s/nameless", dir);
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	assert_true(fd >= 0);
	assert_int_equal(unlink(path), 0);
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	assert_int_equal(omnikv_spill_open(path, &config, &spill, NULL), 0);
	omnikv_spill_close(spill);
	assert_int_equal(omnikv_spill_open(path, &config, &spill, NULL), 0);
	omnikv_spill_close(spill);
	close(fd);
}

static void spill_10000_blocks_are_found_after_kill(void **state)
{
	struct omnikv_spill_config config = options(0);
	uint32_t nr_hit = 0, nr_damaged = 0;
	struct omnikv_spill *spill;
	char path[200];
	pid_t pid;
	int fd;

	(void)state;
	config.capacity_bytes = 128 << 20;
	pid = fork();
	if (!pid) {
		if (omnikv_spill_open(dir, &config, &spill, NULL))
			_exit(1);
		for (uint64_t id = 0; id < 10000; id += 100)
			if (spill_put_run(spill->store, 1, id, id + 100, 4096, 1))
				_exit(1);
		kill(getpid(), SIGKILL);
	}
	waitpid(pid, NULL, 0);

	/* Damage ten of them; put strangers beside the store. */
	spill = must_open(&config);
	snprintf(path, sizeof(path), "%s/omnikv.spill", dir);
	fd = open(path, O_WRONLY);
	assert_true(fd >= 0);
	for (uint64_t id = 500; id < 10000; id += 1000) {
		struct okv_record rec, found;
		uint32_t entry;

		spill_block(&rec, 1, id, 4096, 1);
		assert_true(okv_store_find(spill->store, rec.ns, &rec.key, &found));
		entry = okv_catalog_find(spill->store, rec.ns, &rec.key);
		assert_int_equal(pwrite(fd, "rot", 3, okv_segment_off(spill->store,
				 spill->store->catalog.entries[entry].segment) + found.off + 17), 3);
		nr_damaged++;
	}
	close(fd);
	omnikv_spill_close(spill);
	snprintf(path, sizeof(path), "%s/stranger", dir);
	assert_int_equal(mkdir(path, 0700), 0);
	for (uint32_t i = 0; i < 10; i++) {
		snprintf(path, sizeof(path), "%s/omnikv.spill.%u", dir, i);
		fd = open(path, O_CREAT | O_WRONLY | O_EXCL, 0600);
		assert_int_equal(write(fd, "mine", 4), 4);
		close(fd);
	}
	snprintf(path, sizeof(path), "%s/link", dir);
	assert_int_equal(symlink("omnikv.spill", path), 0);
	spill = must_open(&config);
	assert_int_equal(stats_of(spill).recovered_records, 10000);
	assert_true(stats_of(spill).open_s < 10);
	for (uint64_t id = 0; id < 10000; id++)
		nr_hit += !spill_get(spill->store, 1, id);
	assert_int_equal(nr_hit, 10000 - nr_damaged);
	assert_int_equal(stats_of(spill).bad_records, nr_damaged);
	omnikv_spill_close(spill);
	assert_int_equal(unlink(path), 0);
	for (uint32_t i = 0; i < 10; i++) {
		char mine[8];

		snprintf(path, sizeof(path), "%s/omnikv.spill.%u", dir, i);
		fd = open(path, O_RDONLY);
		assert_int_equal(read(fd, mine, sizeof(mine)), 4);
		assert_memory_equal(mine, "mine", 4);
		close(fd);
		assert_int_equal(unlink(path), 0);
	}
	snprintf(path, sizeof(path), "%s/stranger", dir);
	assert_int_equal(rmdir(path), 0);
}

/* What lies at the store's place but is not a file of its own is not followed. */
static void spill_behind_a_symbolic_link_is_refused(void **state)
{
	struct omnikv_spill_config config = options(0);
	struct omnikv_spill *spill;
	struct omnikv_error err;
	char path[200];

	(void)state;
	snprintf(path, sizeof(path), "%s/omnikv.spill", dir);
	assert_int_equal(symlink("/etc/hostname", path), 0);
	assert_int_equal(omnikv_spill_open(dir, &config, &spill, &err), -ELOOP);
	assert_non_null(strstr(err.text, "omnikv.spill"));
	assert_int_equal(unlink(path), 0);
}

static void spill_works_on_tmpfs(void **state)
{
	struct omnikv_spill_config config = options(0);
	char path[64] = "/dev/shm/omnikv-spill-XXXXXX", file[100];
	struct omnikv_spill *spill;
	struct omnikv_error err;

	(void)state;
	if (!mkdtemp(path))
		skip();
	assert_int_equal(omnikv_spill_open(path, &config, &spill, &err), 0);
	assert_int_equal(spill_put_run(spill->store, 1, 0, 50, BLOCK, 1), 0);
	for (uint64_t id = 0; id < 50; id++)
		assert_int_equal(spill_get(spill->store, 1, id), 0);
	/* Direct, or buffered with one line. */
	assert_int_equal(nr_notes, !stats_of(spill).is_direct);
	omnikv_spill_close(spill);
	snprintf(file, sizeof(file), "%s/omnikv.spill", path);
	unlink(file);
	rmdir(path);
}

#define TEST(f)	cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(spill_works_in_each_way_of_doing_io),
		TEST(spill_second_owner_is_told_who_the_first_is),
		TEST(spill_eight_owners_at_once_keep_their_blocks),
		TEST(spill_survives_kill_at_any_moment),
		TEST(spill_offsets_beyond_4_gib_are_kept),
		TEST(spill_system_calls_may_fail),
		TEST(spill_pool_memory_is_registered),
		TEST(spill_paths_are_checked),
		TEST(spill_failed_creation_leaves_what_was_there),
		TEST(spill_file_without_a_name_is_reached_by_its_descriptor),
		TEST(spill_10000_blocks_are_found_after_kill),
		TEST(spill_behind_a_symbolic_link_is_refused),
		TEST(spill_works_on_tmpfs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Named pools: what a second opener sees, what a killed owner leaves, and which files are refused.
 *
 * Files are made in a directory of this run's own below the working directory.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include <omnikv/pool.h>

#include "embedded.h"
#include "failpoint.h"
#include "pool_file.h"

static char dir[64], spec[128], path[96];

static int set_up(void **state)
{
	(void)state;
	snprintf(dir, sizeof(dir), "pool_file.XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof(path), "%s/pool", dir);
	snprintf(spec, sizeof(spec), "embedded:1M:%s", path);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	unlink(path);
	return rmdir(dir);
}

static struct omnikv_pool *open_pool(void)
{
	struct omnikv_pool_config config = { .size = sizeof(config), .flags = OMNIKV_POOL_F_NO_POPULATE };
	struct omnikv_pool *pool;
	struct omnikv_error err;
	const char *broken;
	int ret = omnikv_pool_open(spec, &config, &pool, &err);

	if (ret)
		fail_msg("%d: %s", ret, err.text);
	broken = okv_extent_map_check(&okv_embedded_pool(pool)->map);
	if (broken)
		fail_msg("not true: %s", broken);
	return pool;
}

static struct omnikv_pool_info info_of(struct omnikv_pool *pool)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	return info;
}

static void sealed_and_meta_are_there_again_and_private_is_free(void **state)
{
	struct omnikv_extent priv, sealed[2], meta, found;
	struct omnikv_extent_info what = { .size = sizeof(what) };
	struct omnikv_client *manager, *engine;
	struct omnikv_pool *pool = open_pool();
	struct omnikv_pool_info before = info_of(pool), after;
	struct stat st;

	(void)state;
	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &manager), 0);
	assert_int_equal(omnikv_client_open(pool, 0, &engine), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 4, 1, NULL, 0, &priv), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 4, 2, NULL, 0, sealed), 0);
	assert_int_equal(omnikv_extent_alloc(manager, 1, 1, NULL, OMNIKV_ALLOC_F_META, &meta), 0);
	memset(omnikv_pool_addr(pool, &sealed[0]), 0x11, 16384);
	memset(omnikv_pool_addr(pool, &sealed[1]), 0x22, 16384);
	memset(omnikv_pool_addr(pool, &meta), 0x33, 4096);
	assert_int_equal(omnikv_extent_seal(engine, sealed, 2), 0);
	assert_int_equal(omnikv_extent_lease(engine, sealed, 2), 0);
	assert_int_equal(omnikv_extent_free(manager, &sealed[1], 1), 0);	/* waits for its lease */
	omnikv_client_close(engine);
	omnikv_client_close(manager);
	omnikv_pool_close(pool);
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);

	pool = open_pool();
	after = info_of(pool);
	assert_memory_equal(after.instance, before.instance, 16);
	assert_int_equal(after.nr_extents[OMNIKV_EXTENT_SEALED], 1);
	assert_int_equal(after.nr_extents[OMNIKV_EXTENT_META], 1);
	assert_int_equal(after.free_bytes, after.usable_bytes - 16384 - 4096);
	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &manager), 0);
	assert_int_equal(omnikv_extent_query(manager, &sealed[0], &what), 0);
	assert_int_equal(what.state, OMNIKV_EXTENT_SEALED);
	assert_int_equal(what.nr_refs, 0);
	assert_int_equal(*((unsigned char *)omnikv_pool_addr(pool, &sealed[0]) + 16383), 0x11);
	assert_int_equal(*((unsigned char *)omnikv_pool_addr(pool, &meta) + 4095), 0x33);
	assert_int_equal(omnikv_extent_query(manager, &priv, &what), -ESTALE);
	assert_int_equal(omnikv_extent_query(manager, &sealed[1], &what), -ESTALE);
	/* An old name never comes again. */
	assert_int_equal(omnikv_extent_alloc(manager, 4, 1, NULL, 0, &found), 0);
	assert_false(found.granule == priv.granule && found.generation == priv.generation);
	assert_int_equal(omnikv_extent_free(manager, sealed, 1), 0);
	assert_int_equal(omnikv_extent_free(manager, &meta, 1), 0);
	omnikv_client_close(manager);
	omnikv_pool_close(pool);
}

static void a_second_opener_hears_who_has_it(void **state)
{
	struct omnikv_pool *pool = open_pool(), *second;
	struct omnikv_error err;
	char pid_text[32];
	int status;
	pid_t pid;

	(void)state;
	snprintf(pid_text, sizeof(pid_text), "process %d", getpid());
	pid = fork();
	if (!pid)
		_exit(omnikv_pool_open(spec, NULL, &second, &err) != -EBUSY || !strstr(err.text, pid_text));
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_int_equal(status, 0);
	/* In the same process too. */
	assert_int_equal(omnikv_pool_open(spec, NULL, &second, &err), -EBUSY);
	omnikv_pool_close(pool);
	pool = open_pool();
	omnikv_pool_close(pool);
}

/* The kernel lets go of a killed process's files when it has taken its memory down: a grandchild has them a while longer. */
static void a_killed_owner_that_is_not_down_yet_is_waited_for(void **state)
{
	struct omnikv_pool *pool;
	siginfo_t info;
	char byte = 0;
	int said[2];
	pid_t pid;

	(void)state;
	assert_int_equal(pipe(said), 0);
	pid = fork();
	if (!pid) {
		pool = open_pool();
		if (!fork()) {
			usleep(500000);
			_exit(0);
		}
		if (write(said[1], &byte, 1) == 1)
			pause();
		_exit(1);
	}
	assert_int_equal(read(said[0], &byte, 1), 1);
	kill(pid, SIGKILL);
	/* Ended, and not reaped. */
	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
	pool = open_pool();
	omnikv_pool_close(pool);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	close(said[0]);
	close(said[1]);
}

static void refused(const char *text, uint32_t flags, uint32_t granule_bytes, int want, const char *word)
{
	struct omnikv_pool_config config = {
		.size = sizeof(config), .flags = flags | OMNIKV_POOL_F_NO_POPULATE, .granule_bytes = granule_bytes,
	};
	struct omnikv_error err = { "" };
	struct omnikv_pool *pool;

	assert_int_equal(omnikv_pool_open(text, &config, &pool, &err), want);
	if (!strstr(err.text, word))
		fail_msg("\"%s\" does not say \"%s\"", err.text, word);
}

static void files_that_do_not_fit_are_refused(void **state)
{
	char other[160];
	int fd;

	(void)state;
	refused(spec, OMNIKV_POOL_F_OPEN_ONLY, 0, -ENOENT, "No such file");
	assert_int_equal(access(path, F_OK), -1);
	omnikv_pool_close(open_pool());
	snprintf(other, sizeof(other), "embedded:2M:%s", path);
	refused(other, 0, 0, -EBADMSG, "size 1048576 bytes in the file, 2097152 asked");
	refused(spec, 0, 8192, -EBADMSG, "granule of 4096 bytes in the file, 8192 asked");
	snprintf(other, sizeof(other), "embedded:1M:%s", dir);
	refused(other, 0, 0, -EISDIR, "directory");
	refused("embedded:1M:/dev/null", 0, 0, -EINVAL, "regular");
	refused("embedded:1M:/proc/nothing/here", 0, 0, -ENOENT, "No such");

	assert_int_equal(truncate(path, 1 << 20), 0);
	refused(spec, 0, 0, -EBADMSG, "cut short");
	assert_int_equal(truncate(path, 100), 0);
	refused(spec, 0, 0, -EBADMSG, "too short");
	fd = open(path, O_RDWR | O_TRUNC);
	assert_int_equal(write(fd, "This is a letter to my aunt, and no pool of KV blocks at all; keep it, please."
			 "..........................................................................", 128), 128);
	close(fd);
	refused(spec, 0, 0, -EBADMSG, "not the file of a pool");
	assert_int_equal(truncate(path, 0), 0);
	refused(spec, OMNIKV_POOL_F_OPEN_ONLY, 0, -ENOENT, "empty");
	omnikv_pool_close(open_pool());
}

static void each_damaged_field_of_the_header_is_named(void **state)
{
	struct okv_pool_header good, bad, out;
	struct omnikv_error err;

	(void)state;
	assert_int_equal(okv_pool_header_make(5 << 20, 4096, &good, NULL), 0);
	okv_pool_header_seal(&good);
	good.is_ready = 1;
	assert_int_equal(okv_pool_header_check(&good, sizeof(good), 8 << 20, &out, NULL), 0);
#define NAMED(change, is_sealed, word) do {						\
		bad = good;								\
		change;									\
		if (is_sealed)								\
			okv_pool_header_seal(&bad);					\
		assert_int_equal(okv_pool_header_check(&bad, sizeof(bad), 8 << 20, &out, &err), -EBADMSG); \
		if (!strstr(err.text, word))						\
			fail_msg("\"%s\" does not say \"%s\"", err.text, word);		\
	} while (0)
	NAMED(bad.magic++, true, "magic");
	NAMED(bad.version++, true, "version");
	NAMED(bad.instance[3] ^= 1, false, "crc");
	NAMED(bad.granule_bytes = 0, true, "granule_bytes");
	NAMED(bad.granule_bytes = 4097, true, "granule_bytes");
	NAMED(bad.asked_bytes = 1, true, "asked_bytes");
	NAMED(bad.asked_bytes = UINT64_MAX, true, "asked_bytes");
	NAMED(bad.nr_granules++, true, "nr_granules");
	NAMED(bad.data_off = 0, true, "data_off");
	NAMED(bad.data_bytes = 1ull << 63, true, "data_bytes");
	NAMED(bad.rec_bytes = 8, true, "rec_bytes");
	assert_int_equal(okv_pool_header_check(&good, sizeof(good) - 1, 8 << 20, &out, &err), -EBADMSG);
	assert_int_equal(okv_pool_header_check(&good, sizeof(good), (8 << 20) - 1, &out, &err), -EBADMSG);
	assert_int_equal(okv_pool_header_make(4095, 4096, &out, &err), -EINVAL);
	assert_int_equal(okv_pool_header_make(1ull << 63, 1u << 31, &out, &err), -EINVAL);
}

static char notice_line[256];

static void on_notice(void *opaque, const char *line)
{
	(void)opaque;
	snprintf(notice_line, sizeof(notice_line), "%s", line);
}

/* As if it had never been closed, on another boot. */
static void pretend_a_crash(void)
{
	struct okv_pool_header header;
	int fd = open(path, O_RDWR);

	assert_int_equal(pread(fd, &header, sizeof(header), 0), sizeof(header));
	assert_int_equal(header.is_clean, 1);
	assert_int_equal(header.is_ready, 1);
	assert_int_equal(header.holder_pid, getpid());
	header.is_clean = 0;
	header.boot_id[0] ^= 1;
	assert_int_equal(pwrite(fd, &header, sizeof(header), 0), sizeof(header));
	close(fd);
}

static void a_host_that_went_down_leaves_an_empty_pool(void **state)
{
	struct omnikv_pool_config config = { .size = sizeof(config), .notice = on_notice };
	struct omnikv_extent_info what = { .size = sizeof(what) };
	struct omnikv_pool_info before, after;
	struct omnikv_client *engine;
	struct omnikv_extent sealed;
	struct omnikv_pool *pool;

	(void)state;
	pool = open_pool();
	before = info_of(pool);
	assert_int_equal(omnikv_client_open(pool, 0, &engine), 0);
	assert_int_equal(omnikv_extent_alloc(engine, 4, 1, NULL, 0, &sealed), 0);
	assert_int_equal(omnikv_extent_seal(engine, &sealed, 1), 0);
	omnikv_client_close(engine);
	omnikv_pool_close(pool);

	pretend_a_crash();
	assert_int_equal(omnikv_pool_open(spec, &config, &pool, NULL), 0);
	assert_non_null(strstr(notice_line, "the host went down"));
	after = info_of(pool);
	assert_int_equal(after.free_bytes, after.usable_bytes);
	assert_memory_not_equal(after.instance, before.instance, 16);
	assert_int_equal(omnikv_client_open(pool, 0, &engine), 0);
	assert_int_equal(omnikv_extent_query(engine, &sealed, &what), -ESTALE);
	omnikv_client_close(engine);
	omnikv_pool_close(pool);
	omnikv_pool_close(open_pool());
}

/* A limit on the length of files that is less than the header, which the pool of a host that went down gets anew. */
static void a_limit_below_the_header_is_one_line_and_no_signal(void **state)
{
	static const rlim_t limits[] = { 0, 8, sizeof(struct okv_pool_header) - 1 };

	(void)state;
	omnikv_pool_close(open_pool());
	pretend_a_crash();
	for (uint32_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
		int status;
		pid_t pid = fork();

		if (!pid) {
			struct rlimit limit = { limits[i], limits[i] };
			struct omnikv_pool *pool;
			struct omnikv_error err;

			_exit(setrlimit(RLIMIT_FSIZE, &limit) || omnikv_pool_open(spec, NULL, &pool, &err) != -ENOMEM ||
			      !strstr(err.text, "RLIMIT_FSIZE"));
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
	/* And nothing was written in part. */
	omnikv_pool_close(open_pool());
}

/* ---- kill -9 ---------------------------------------------------------------------------- */

#define NR_NOTES	32768u

/* What the child has been told about one extent; shared with the parent. */
struct note {
	struct omnikv_extent	ext;
	_Atomic uint32_t	is_sealed;	/* 1 after seal returned */
	_Atomic uint32_t	is_freeing;	/* 1 before free is called, 2 after it returned */
};

struct notes {
	_Atomic uint32_t	nr;
	struct note		note[NR_NOTES];
};

static void fill(struct omnikv_pool *pool, const struct omnikv_extent *ext)
{
	uint64_t *word = omnikv_pool_addr(pool, ext), i;

	for (i = 0; i < ext->nr_granules * 512ull; i++)
		word[i] = ext->granule << 32 ^ ext->generation ^ i;
}

static bool is_filled(struct omnikv_pool *pool, const struct omnikv_extent *ext)
{
	const uint64_t *word = omnikv_pool_addr(pool, ext);
	uint64_t i;

	for (i = 0; i < ext->nr_granules * 512ull; i++)
		if (word[i] != (ext->granule << 32 ^ ext->generation ^ i))
			return false;
	return true;
}

/* Works until it is killed. */
static void child(struct notes *notes, uint64_t seed)
{
	struct omnikv_client *manager;
	struct omnikv_pool *pool;
	struct omnikv_extent ext[3];

	if (omnikv_pool_open(spec, NULL, &pool, NULL) || omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &manager))
		_exit(1);
	for (;;) {
		uint32_t nr, i, at;

		seed = seed * 6364136223846793005ull + 1442695040888963407ull;
		nr = 1 + (seed >> 40) % 3;
		at = notes->nr;
		if ((seed >> 50) % 2 && at + 3 < NR_NOTES &&
		    !omnikv_extent_alloc(manager, nr, 3, NULL, OMNIKV_ALLOC_F_NO_ZERO, ext)) {
			for (i = 0; i < 3; i++) {
				fill(pool, &ext[i]);
				notes->note[at + i].ext = ext[i];
			}
			notes->nr = at + 3;
			if ((seed >> 60) % 4 && !omnikv_extent_seal(manager, ext, 3))
				for (i = 0; i < 3; i++)
					notes->note[at + i].is_sealed = 1;
		} else if (at) {
			struct note *note = &notes->note[(seed >> 33) % at];

			if (note->is_freeing)
				continue;
			note->is_freeing = 1;
			if (omnikv_extent_free(manager, &note->ext, 1))
				_exit(2);
			note->is_freeing = 2;
		}
		if (at + 3 >= NR_NOTES)
			_exit(0);
	}
}

static void a_killed_owner_leaves_every_sealed_extent_and_nothing_else(void **state)
{
	struct notes *notes = mmap(NULL, sizeof(*notes), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint32_t round, i, nr_left;
	int status;
	pid_t pid;

	(void)state;
	assert_true(notes != MAP_FAILED);
	for (round = 0; round < 60; round++) {
		struct omnikv_extent_info what = { .size = sizeof(what) };
		struct omnikv_client *manager;
		struct omnikv_pool *pool;

		memset(notes, 0, sizeof(*notes));
		pid = fork();
		if (!pid)
			child(notes, round);
		usleep(400 + round * 37 % 1500);
		kill(pid, SIGKILL);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		if (!WIFSIGNALED(status))
			assert_int_equal(WEXITSTATUS(status), 0);

		pool = open_pool();
		assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &manager), 0);
		nr_left = 0;
		for (i = 0; i < notes->nr; i++) {
			struct note *note = &notes->note[i];
			int ret = omnikv_extent_query(manager, &note->ext, &what);

			if (!ret) {
				assert_int_equal(what.state, OMNIKV_EXTENT_SEALED);
				assert_true(is_filled(pool, &note->ext));
				assert_int_not_equal(note->is_freeing, 2);
				assert_int_equal(omnikv_extent_free(manager, &note->ext, 1), 0);
				nr_left++;
			} else {
				assert_int_equal(ret, -ESTALE);
				assert_true(!note->is_sealed || note->is_freeing);
			}
		}
		/* What was sealed before its note was is_sealed is in the list all the same: nothing else is left. */
		assert_int_equal(info_of(pool).free_bytes, 1 << 20);
		omnikv_client_close(manager);
		omnikv_pool_close(pool);
	}
	munmap(notes, sizeof(*notes));
}

/* What a power cut now would leave on the disk: the header as it was when it was last written through. */
static struct okv_pool_header on_disk;
static bool is_watched;

int msync(void *at, size_t bytes, int flags)
{
	if (is_watched && (flags & MS_SYNC) && bytes >= sizeof(on_disk))
		memcpy(&on_disk, at, sizeof(on_disk));
	return (int)syscall(SYS_msync, at, bytes, flags);
}

static void an_open_pool_is_not_clean_on_its_disk(void **state)
{
	struct omnikv_pool *pool;

	(void)state;
	is_watched = true;
	pool = open_pool();
	assert_int_equal(on_disk.magic, OKV_POOL_MAGIC);
	assert_int_equal(on_disk.is_clean, 0);
	omnikv_pool_close(pool);
	assert_int_equal(on_disk.is_clean, 1);
	/* The second life of the same file. */
	pool = open_pool();
	assert_int_equal(on_disk.is_clean, 0);
	omnikv_pool_close(pool);
	assert_int_equal(on_disk.is_clean, 1);
	is_watched = false;
}

static void a_pool_whose_making_was_cut_short_is_made_anew(void **state)
{
	struct okv_pool_header header;
	unsigned char page[4096] = { 0 };
	struct omnikv_pool *pool;
	int fd;

	(void)state;
	/* What a process leaves that is killed there: the header, which says that nothing else is there. */
	assert_int_equal(okv_pool_header_make(1 << 20, 4096, &header, NULL), 0);
	okv_pool_header_seal(&header);
	memcpy(page, &header, sizeof(header));
	fd = open(path, O_RDWR | O_CREAT, 0600);
	assert_int_equal(write(fd, page, sizeof(page)), sizeof(page));
	close(fd);
	refused(spec, OMNIKV_POOL_F_OPEN_ONLY, 0, -ENOENT, "did not finish");
	pool = open_pool();
	assert_int_equal(info_of(pool).free_bytes, 1 << 20);
	omnikv_pool_close(pool);
}

static void a_full_file_system_is_named(void **state)
{
	struct okv_failpoint point = { .name = "pool.grow_file", .error = ENOSPC };

	(void)state;
	assert_int_equal(okv_failpoint_arm(&point), 0);
	refused(spec, 0, 0, -ENOSPC, "no room for 4194304 bytes");
	okv_failpoint_disarm_all();
	omnikv_pool_close(open_pool());
}

/* Whoever touches what it cannot give is ended by SIGBUS. */
static void a_file_system_that_is_too_small_is_named_before_anything_is_touched(void **state)
{
	char larger[256];
	struct statfs fs;

	(void)state;
	assert_int_equal(statfs(dir, &fs), 0);
	snprintf(larger, sizeof(larger), "embedded:%lluM:%.160s",
		 ((unsigned long long)fs.f_bfree * (unsigned long long)fs.f_bsize >> 20) + 1024, path);
	refused(larger, 0, 0, -ENOSPC, "bytes in its file system, which has");
	assert_int_equal(access(path, F_OK), -1);
}

/* Opening @text fails at @name with @error. */
static void fails_at(const char *text, const char *name, int error, int want, const char *word)
{
	struct okv_failpoint point = { .name = name, .error = error };
	struct omnikv_error err = { "" };
	struct omnikv_pool *pool;

	assert_int_equal(okv_failpoint_arm(&point), 0);
	assert_int_equal(omnikv_pool_open(text, NULL, &pool, &err), want);
	okv_failpoint_disarm_all();
	if (!strstr(err.text, word) || strstr(err.text, "Bad address"))
		fail_msg("\"%s\" does not say \"%s\"", err.text, word);
}

static void a_failed_creation_leaves_no_file(void **state)
{
	char name[] = "/dev/shm/omnikv-room-XXXXXX", text[64];
	struct omnikv_pool *pool;
	struct stat st;
	int fd;

	(void)state;
	fails_at(spec, "pool.create_file", EIO, -EIO, "");
	assert_int_equal(stat(path, &st), -1);
	fails_at(spec, "pool.grow_file", ENOSPC, -ENOSPC, "bytes free");
	assert_int_equal(stat(path, &st), -1);

	/* One that was there, and empty, is so again. */
	fd = mkstemp(name);
	assert_true(fd >= 0);
	snprintf(text, sizeof(text), "embedded:8M:%s", name);
	fails_at(text, "pool.populate", EFAULT, -ENOSPC, "bytes free");
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(st.st_size, 0);
	assert_int_equal(st.st_nlink, 1);
	close(fd);
	unlink(name);
	fails_at(text, "pool.populate", EFAULT, -ENOSPC, "bytes free");
	assert_int_equal(stat(name, &st), -1);
	/* A pool is no failed creation, whatever fails later. */
	assert_int_equal(omnikv_pool_open(text, NULL, &pool, NULL), 0);
	omnikv_pool_close(pool);
	fails_at(text, "pool.populate", EFAULT, -ENOSPC, "bytes free");
	assert_int_equal(omnikv_pool_open(text, NULL, &pool, NULL), 0);
	omnikv_pool_close(pool);
	unlink(name);
}

static void a_pool_larger_than_its_file_system_takes_nothing_of_it(void **state)
{
	char text[128], name[96];
	struct omnikv_error err = { "" };
	struct statfs before, after;
	struct omnikv_pool *pool;
	struct stat st;
	int ret;

	(void)state;
	if (mount("none", dir, "tmpfs", 0, "size=32M"))
		skip();
	snprintf(name, sizeof(name), "%s/pool", dir);
	snprintf(text, sizeof(text), "embedded:64M:%s", name);
	ret = statfs(dir, &before);
	if (!ret)
		ret = omnikv_pool_open(text, NULL, &pool, &err);
	statfs(dir, &after);
	assert_int_equal(stat(name, &st), -1);
	assert_int_equal(umount(dir), 0);
	assert_int_equal(ret, -ENOSPC);
	assert_true(after.f_bfree == before.f_bfree);
	assert_non_null(strstr(err.text, "which has 33554432 bytes free"));
}

static void advice_on_huge_pages_keeps_those_that_are_there(void **state)
{
	struct okv_huge_advice advice;

	(void)state;
	/* 1000 there, 10 of them free, 512 needed: 502 are missing. */
	okv_huge_advice_make(&(struct okv_huge_state){ .nr_needed = 512, .nr_free = 10, .nr_total = 1000 }, &advice);
	assert_string_equal(advice.found, "10 free huge pages where 512 are needed");
	assert_string_equal(advice.command, "as root: echo 1502 > /proc/sys/vm/nr_hugepages (1000 there and 502 missing)");
	okv_huge_advice_make(&(struct okv_huge_state){ .nr_needed = 4 }, &advice);
	assert_string_equal(advice.command, "as root: echo 4 > /proc/sys/vm/nr_hugepages (0 there and 4 missing)");
}

static void advice_on_huge_pages_tells_what_others_have_reserved(void **state)
{
	struct okv_huge_advice advice;

	(void)state;
	okv_huge_advice_make(&(struct okv_huge_state){ .nr_needed = 4, .nr_free = 8, .nr_reserved = 8, .nr_total = 8 }, &advice);
	assert_string_equal(advice.found, "8 free huge pages, of which others have reserved 8, where 4 are needed");
	assert_string_equal(advice.command, "as root: echo 12 > /proc/sys/vm/nr_hugepages (8 there and 4 missing)");
}

/* There are enough: more of them are no help. */
static void advice_on_huge_pages_makes_no_more_where_there_are_enough(void **state)
{
	struct okv_huge_advice advice;

	(void)state;
	okv_huge_advice_make(&(struct okv_huge_state){ .nr_needed = 4, .nr_free = 8, .nr_total = 8, .is_declined = true }, &advice);
	assert_string_equal(advice.found, "8 free huge pages where 4 are needed, and none were asked for");
	assert_string_equal(advice.command, "take them (omnikvd: hugetlb = yes)");
	okv_huge_advice_make(&(struct okv_huge_state){ .nr_needed = 4, .nr_free = 2, .nr_total = 8, .is_declined = true }, &advice);
	assert_string_equal(advice.command, "as root: echo 10 > /proc/sys/vm/nr_hugepages (8 there and 2 missing), and take them "
			    "(omnikvd: hugetlb = yes)");
	okv_huge_advice_make(&(struct okv_huge_state){ .nr_needed = 4, .nr_free = 8, .nr_total = 8, .error = ENOMEM }, &advice);
	assert_string_equal(advice.found, "8 free huge pages where 4 are needed, and they were not to be had: Cannot allocate memory");
	assert_string_equal(advice.command, "look at the NUMA policy, and at hugetlb.2MB.max of the cgroup");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		TEST(sealed_and_meta_are_there_again_and_private_is_free),
		TEST(a_second_opener_hears_who_has_it),
		TEST(a_killed_owner_that_is_not_down_yet_is_waited_for),
		TEST(files_that_do_not_fit_are_refused),
		TEST(each_damaged_field_of_the_header_is_named),
		TEST(a_host_that_went_down_leaves_an_empty_pool),
		TEST(a_limit_below_the_header_is_one_line_and_no_signal),
		TEST(a_killed_owner_leaves_every_sealed_extent_and_nothing_else),
		TEST(an_open_pool_is_not_clean_on_its_disk),
		TEST(a_pool_whose_making_was_cut_short_is_made_anew),
		TEST(a_full_file_system_is_named),
		TEST(a_file_system_that_is_too_small_is_named_before_anything_is_touched),
		TEST(a_failed_creation_leaves_no_file),
		TEST(a_pool_larger_than_its_file_system_takes_nothing_of_it),
		TEST(advice_on_huge_pages_keeps_those_that_are_there),
		TEST(advice_on_huge_pages_tells_what_others_have_reserved),
		TEST(advice_on_huge_pages_makes_no_more_where_there_are_enough),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

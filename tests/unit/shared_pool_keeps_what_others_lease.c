// SPDX-License-Identifier: GPL-2.0-only
/*
 * The authority over a shared pool: leases in tables, clients that lose their connection, new authorities.
 *
 * Client processes are played here: a table is mapped a second time and counted in by hand, and closing
 * a descriptor stands for the end of a process. One thread.
 */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "clock.h"
#include "failpoint.h"
#include "manager/index.h"
#include "share.h"

#define NR_GRANULES	1024u

static char path[64];

/* A client process, as far as the authority can see one. */
struct process {
	struct omnikv_client	*client;
	struct okv_share_fds	fds;
	struct okv_lease_table	table;
	uint32_t		id;
	int			leases;	/* its own descriptor of the table */
};

static struct omnikv_pool *open_pool(const char *text, int fd)
{
	struct omnikv_pool_config config = { .size = sizeof(config), .flags = OMNIKV_POOL_F_NO_HUGETLB };
	struct omnikv_error err = { "" };
	struct omnikv_pool *pool;
	struct okv_pool_spec spec;

	assert_int_equal(okv_pool_spec_parse(text, &spec, &err), 0);
	if (okv_share_open(&spec, &config, fd, &pool, &err))
		fail_msg("%s", err.text);
	return pool;
}

static struct process process_new(struct omnikv_pool *pool)
{
	struct process process = { 0 };
	void *base;

	assert_int_equal(okv_share_attach(pool, 0, &process.client, &process.fds), 0);
	process.id = okv_embedded_client(process.client)->id;
	process.leases = dup(process.fds.leases);
	base = mmap(NULL, okv_lease_bytes(NR_GRANULES), PROT_READ | PROT_WRITE, MAP_SHARED, process.leases, 0);
	assert_true(base != MAP_FAILED);
	okv_lease_init(&process.table, base, NR_GRANULES);
	return process;
}

/* All that the kernel takes from a process that ends. */
static void process_end(struct process *process)
{
	munmap((void *)process->table.touched, okv_lease_bytes(NR_GRANULES));
	close(process->leases);
	close(process->fds.memory);
}

static uint64_t bytes_in(struct omnikv_pool *pool, int state)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_pool_info(pool, &info), 0);
	return info.state_bytes[state] / 4096;
}

static struct omnikv_extent sealed_extent(struct omnikv_client *client, uint32_t nr)
{
	struct omnikv_extent ext;

	assert_int_equal(omnikv_extent_alloc(client, nr, 1, NULL, 0, &ext), 0);
	assert_int_equal(omnikv_extent_seal(client, &ext, 1), 0);
	return ext;
}

static void what_a_table_counts_waits_in_quarantine(void **state)
{
	struct omnikv_pool *pool = open_pool("4M", -1);
	struct process reader = process_new(pool);
	struct omnikv_extent_info info = { .size = sizeof(info) };
	struct omnikv_client *manager;
	struct omnikv_extent ext;

	(void)state;
	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &manager), 0);
	ext = sealed_extent(manager, 1000);
	assert_false(okv_share_is_leased(pool, &ext));
	okv_lease_add(&reader.table, (uint32_t)ext.granule);
	assert_true(okv_share_is_leased(pool, &ext));
	assert_int_equal(omnikv_extent_query(manager, &ext, &info), 0);
	assert_int_equal(info.nr_refs, 1);
	assert_int_equal(omnikv_extent_free(manager, &ext, 1), 0);
	assert_int_equal(omnikv_extent_free(manager, &ext, 1), -ESTALE);
	assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_QUARANTINED), 1000);
	assert_int_equal(omnikv_extent_alloc(manager, 1000, 1, NULL, 0, &ext), -ENOSPC);
	okv_lease_sub(&reader.table, (uint32_t)ext.granule);
	/* Falling short is when it is looked at again. */
	assert_int_equal(omnikv_extent_alloc(manager, 1000, 1, NULL, 0, &ext), 0);
	assert_int_equal(omnikv_extent_free(manager, &ext, 1), 0);
	assert_int_equal(okv_share_settle(pool), 0);
	process_end(&reader);
	omnikv_client_close(reader.client);
	omnikv_client_close(manager);
	omnikv_pool_close(pool);
}

/* What a hostile one counts makes the sum of all no smaller. */
static void a_count_that_wraps_ends_nobodys_lease(void **state)
{
	struct omnikv_pool *pool = open_pool("4M", -1);
	struct process reader = process_new(pool), hostile = process_new(pool);
	struct omnikv_client *manager;
	struct omnikv_extent ext;
	uint32_t granule;

	(void)state;
	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &manager), 0);
	ext = sealed_extent(manager, 1);
	granule = (uint32_t)ext.granule;
	okv_lease_add(&reader.table, granule);
	okv_lease_add(&hostile.table, granule);
	atomic_store(&hostile.table.counts[granule], UINT32_MAX);
	assert_true(okv_share_is_leased(pool, &ext));
	assert_int_equal(omnikv_extent_free(manager, &ext, 1), 0);
	assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_QUARANTINED), 1);
	atomic_store(&hostile.table.counts[granule], 0);
	okv_lease_sub(&reader.table, granule);
	process_end(&hostile);
	omnikv_client_close(hostile.client);
	process_end(&reader);
	omnikv_client_close(reader.client);
	omnikv_client_close(manager);
	omnikv_pool_close(pool);
}

static void a_lost_connection_ends_nothing_while_the_process_lives(void **state)
{
	struct omnikv_pool *pool = open_pool("4M", -1);
	struct process engine = process_new(pool), other = process_new(pool);
	struct omnikv_client *back;
	struct omnikv_extent ext, leased = sealed_extent(engine.client, 8);
	int plain;

	(void)state;
	assert_int_equal(omnikv_extent_alloc(engine.client, 4, 1, NULL, 0, &ext), 0);
	okv_lease_add(&engine.table, (uint32_t)leased.granule);
	okv_share_detach(engine.client, false);
	assert_int_equal(okv_share_settle(pool), 1);
	assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_PRIVATE), 4);
	assert_true(okv_share_is_leased(pool, &leased));

	/* Somebody else does not get in its place: another's lock, a description without one, no such number. */
	assert_int_equal(okv_share_reattach(pool, engine.id, 0, other.fds.memory, -1, &back), -EPERM);
	plain = okv_share_memory(pool, O_RDWR);
	assert_int_equal(okv_share_reattach(pool, engine.id, 0, plain, -1, &back), -EPERM);
	close(plain);
	assert_int_equal(okv_share_reattach(pool, 77, 0, engine.fds.memory, -1, &back), -EPERM);
	assert_int_equal(okv_share_reattach(pool, other.id, 0, other.fds.memory, -1, &back), -ENOENT);
	assert_int_equal(okv_share_reattach(pool, engine.id, 0, engine.fds.memory, -1, &back), 0);
	assert_int_equal(omnikv_extent_seal(back, &ext, 1), 0);

	okv_share_detach(back, false);
	process_end(&engine);
	assert_int_equal(okv_share_settle(pool), 0);
	assert_false(okv_share_is_leased(pool, &leased));
	okv_share_detach(other.client, false);
	process_end(&other);
	assert_int_equal(okv_share_settle(pool), 0);
	omnikv_pool_close(pool);
}

/* A ring of a killed process goes on for a moment, and has its lock; a child can have it for ever. */
static void what_a_dead_process_may_still_write_rests_a_moment(void **state)
{
	struct omnikv_pool *pool = open_pool("4M", -1);
	struct process engine = process_new(pool);
	struct timespec ts = { .tv_nsec = 10000000 };
	struct omnikv_extent ext;
	uint64_t begun;
	int ring = dup(engine.fds.memory);

	(void)state;
	assert_int_equal(omnikv_extent_alloc(engine.client, 4, 1, NULL, 0, &ext), 0);
	begun = okv_monotonic_ns();
	process_end(&engine);
	okv_share_detach(engine.client, true);
	assert_int_equal(okv_share_settle(pool), 1);
	assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_PRIVATE), 4);
	while (okv_share_settle(pool))
		nanosleep(&ts, NULL);
	assert_in_range((okv_monotonic_ns() - begun) / 1000000, OKV_SHARE_REST_MS, OKV_SHARE_REST_MS + 5000);
	assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_PRIVATE), 0);
	close(ring);

	/* Where it gives the lock up nothing is waited for. */
	engine = process_new(pool);
	assert_int_equal(omnikv_extent_alloc(engine.client, 4, 1, NULL, 0, &ext), 0);
	process_end(&engine);
	okv_share_detach(engine.client, true);
	assert_int_equal(okv_share_settle(pool), 0);
	assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_FREE), NR_GRANULES);
	omnikv_pool_close(pool);
}

static void a_client_that_says_that_it_is_over_leaves_its_transfers(void **state)
{
	struct omnikv_pool *pool = open_pool("4M", -1);
	struct process engine = process_new(pool);
	struct omnikv_extent ext[2];

	(void)state;
	assert_int_equal(omnikv_extent_alloc(engine.client, 4, 2, NULL, 0, ext), 0);
	okv_lease_add(&engine.table, (uint32_t)ext[1].granule);
	assert_int_equal(okv_share_end(engine.client), 0);
	assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_PRIVATE), 0);
	assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_QUARANTINED), 4);
	okv_lease_sub(&engine.table, (uint32_t)ext[1].granule);
	assert_int_equal(okv_share_settle(pool), 0);
	assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_FREE), NR_GRANULES);
	/* Over is over, although the process still has the memory; but not before its transfers are. */
	okv_lease_add(&engine.table, 9);
	okv_share_detach(engine.client, false);
	assert_int_equal(okv_share_settle(pool), 1);
	okv_lease_sub(&engine.table, 9);
	assert_int_equal(okv_share_settle(pool), 0);
	process_end(&engine);
	omnikv_pool_close(pool);
}

/* A hostile one: nobody can have a number then, but who asks is told so, and the others go on. */
static void a_process_that_locks_all_numbers_holds_nobody_up(void **state)
{
	struct flock lock = { .l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = OKV_SHARE_LOCK + 1, .l_len = UINT32_MAX };
	struct omnikv_pool *pool = open_pool("4M", -1);
	struct process engine = process_new(pool), hostile = process_new(pool);
	struct omnikv_client *client;
	struct okv_share_fds fds;
	struct omnikv_extent ext;

	(void)state;
	assert_int_equal(fcntl(hostile.fds.memory, F_OFD_SETLK, &lock), 0);
	alarm(60);
	assert_int_equal(okv_share_attach(pool, 0, &client, &fds), -EUSERS);
	assert_int_equal(omnikv_extent_alloc(engine.client, 4, 1, NULL, 0, &ext), 0);
	okv_share_detach(hostile.client, true);
	process_end(&hostile);
	assert_int_equal(okv_share_settle(pool), 0);
	assert_int_equal(okv_share_attach(pool, 0, &client, &fds), 0);
	alarm(0);
	close(fds.memory);
	omnikv_client_close(client);
	process_end(&engine);
	omnikv_client_close(engine.client);
	omnikv_pool_close(pool);
}

/* A new authority over the memory of @text or @fd, while @engine lives. */
static void take_over(const char *text, int fd, struct process *engine,
		      const struct omnikv_extent *mine, const struct omnikv_extent *leased,
		      const struct omnikv_extent *sealed)
{
	struct omnikv_pool *pool = open_pool(text, fd);
	struct omnikv_client *manager, *back;
	struct omnikv_extent ext;
	int table;

	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &manager), 0);
	assert_int_not_equal(okv_embedded_client(manager)->id, engine->id);
	assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_PRIVATE), mine->nr_granules);
	assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_SEALED), leased->nr_granules + 16);
	assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_QUARANTINED), fd >= 0 ? 32 : 0);
	assert_true(okv_share_is_leased(pool, leased));
	assert_int_equal(okv_share_is_leased(pool, sealed), fd >= 0);
	assert_int_equal(omnikv_extent_free(manager, leased, 1), 0);
	if (fd >= 0) {
		/* What the living one leases is not known yet: nothing that is given up is used again. */
		assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_QUARANTINED), 32 + leased->nr_granules);
		assert_int_equal(okv_share_settle(pool), 3);
		/* A table that could be cut off under the authority is none. */
		table = memfd_create("table", MFD_CLOEXEC);
		assert_int_equal(ftruncate(table, (off_t)okv_lease_bytes(NR_GRANULES)), 0);
		assert_int_equal(okv_share_reattach(pool, engine->id, 0, engine->fds.memory, table, &back), -EINVAL);
		close(table);
	} else {
		/* Its table lies beside the pool's file. */
		assert_int_equal(okv_share_settle(pool), 2);
	}
	assert_int_equal(okv_share_reattach(pool, engine->id, 0, engine->fds.memory, dup(engine->leases), &back), 0);
	assert_int_equal(okv_share_settle(pool), 1);
	assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_QUARANTINED), leased->nr_granules);
	assert_int_equal(omnikv_extent_seal(back, mine, 1), 0);
	okv_lease_sub(&engine->table, (uint32_t)leased->granule);
	assert_int_equal(okv_share_settle(pool), 0);
	assert_int_equal(omnikv_extent_alloc(manager, NR_GRANULES - 16 - mine->nr_granules, 1, NULL, 0, &ext), -ENOSPC);
	assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_FREE), NR_GRANULES - 16 - mine->nr_granules);
	okv_share_detach(back, false);
	process_end(engine);
	assert_int_equal(okv_share_settle(pool), 0);
	omnikv_client_close(manager);
	omnikv_pool_close(pool);
}

static void change_of_authority(const char *text, bool is_kept)
{
	struct omnikv_pool *pool = open_pool(text, -1);
	int fd = is_kept ? dup(okv_share_fd(pool)) : -1;
	struct process engine = process_new(pool), dead = process_new(pool);
	struct omnikv_client *manager;
	struct omnikv_extent mine, others, leased, waiting, sealed;

	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &manager), 0);
	sealed = sealed_extent(dead.client, 16);
	leased = sealed_extent(dead.client, 8);
	waiting = sealed_extent(dead.client, 32);
	assert_int_equal(omnikv_extent_alloc(engine.client, 4, 1, NULL, 0, &mine), 0);
	assert_int_equal(omnikv_extent_alloc(dead.client, 64, 1, NULL, 0, &others), 0);
	okv_lease_add(&engine.table, (uint32_t)leased.granule);
	okv_lease_add(&dead.table, (uint32_t)waiting.granule);
	assert_int_equal(omnikv_extent_free(manager, &waiting, 1), 0);
	/* Both lose their authority, and one its life. */
	omnikv_pool_close(pool);
	process_end(&dead);
	take_over(text, fd, &engine, &mine, &leased, &sealed);
	if (fd >= 0)
		close(fd);
}

static void a_new_authority_over_kept_memory_goes_on(void **state)
{
	(void)state;
	change_of_authority("4M", true);
}

/* As a kill leaves it that comes between the two stores by which an extent is given up: its name is old, its state is not. */
static void begin_to_give_up(struct omnikv_pool *pool, const struct omnikv_extent *ext)
{
	struct okv_extent_rec *rec = &okv_embedded_pool(pool)->map.recs[ext->granule];

	assert_int_equal(rec->generation & OKV_GENERATION_PHASE, OKV_GENERATION_LIVE);
	rec->generation = (rec->generation & ~OKV_GENERATION_PHASE) | OKV_GENERATION_GIVEN_UP;
}

static void what_was_just_being_given_up_waits_for_its_leases(void **state)
{
	struct omnikv_pool *pool = open_pool("4M", -1);
	int fd = dup(okv_share_fd(pool));
	struct process engine = process_new(pool);
	struct omnikv_extent mine, sealed;
	struct omnikv_client *back;

	(void)state;
	sealed = sealed_extent(engine.client, 8);
	assert_int_equal(omnikv_extent_alloc(engine.client, 4, 1, NULL, 0, &mine), 0);
	okv_lease_add(&engine.table, (uint32_t)sealed.granule);
	okv_lease_add(&engine.table, (uint32_t)mine.granule);
	begin_to_give_up(pool, &sealed);
	begin_to_give_up(pool, &mine);
	omnikv_pool_close(pool);

	pool = open_pool("4M", fd);
	assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_QUARANTINED), 12);
	assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_FREE), NR_GRANULES - 12);
	assert_int_equal(okv_share_reattach(pool, engine.id, 0, engine.fds.memory, dup(engine.leases), &back), 0);
	assert_int_equal(okv_share_settle(pool), 2);
	okv_lease_sub(&engine.table, (uint32_t)mine.granule);
	assert_int_equal(okv_share_settle(pool), 1);
	okv_lease_sub(&engine.table, (uint32_t)sealed.granule);
	assert_int_equal(okv_share_settle(pool), 0);
	assert_int_equal(bytes_in(pool, OMNIKV_EXTENT_FREE), NR_GRANULES);
	assert_null(okv_extent_map_check(&okv_embedded_pool(pool)->map));
	okv_share_detach(back, false);
	process_end(&engine);
	assert_int_equal(okv_share_settle(pool), 0);
	omnikv_pool_close(pool);
	close(fd);
}

/* Files whose name begins with that of @name. */
static int count_files(const char *name)
{
	glob_t found;
	char pattern[96];
	int nr;

	snprintf(pattern, sizeof(pattern), "%s*", name);
	nr = glob(pattern, 0, NULL, &found) ? 0 : (int)found.gl_pathc;
	globfree(&found);
	return nr;
}

static void a_new_authority_over_a_file_goes_on(void **state)
{
	char text[96];

	(void)state;
	snprintf(path, sizeof(path), "/tmp/omnikv-share-%d", getpid());
	snprintf(text, sizeof(text), "embedded:4M:%s", path);
	change_of_authority(text, false);
	unlink(path);
	/* No table is left behind. */
	assert_int_equal(count_files(path), 0);
}

static void who_does_not_share_waits_for_the_last_client(void **state)
{
	struct omnikv_error err = { "" };
	struct omnikv_pool *pool, *plain;
	struct process engine;
	char text[96];

	(void)state;
	snprintf(path, sizeof(path), "/tmp/omnikv-share-%d", getpid());
	snprintf(text, sizeof(text), "embedded:4M:%s", path);
	pool = open_pool(text, -1);
	engine = process_new(pool);
	omnikv_pool_close(pool);
	assert_int_equal(omnikv_pool_open(text, NULL, &plain, &err), -EBUSY);
	process_end(&engine);
	assert_int_equal(omnikv_pool_open(text, NULL, &plain, &err), 0);
	omnikv_pool_close(plain);
	pool = open_pool(text, -1);
	assert_int_equal(count_files(path), 1);
	omnikv_pool_close(pool);
	unlink(path);
}

static void a_client_that_cannot_be_attached_leaves_nothing(void **state)
{
	static const char *const names[] = { "share.memory", "share.table" };
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_pool *pool = open_pool("4M", -1);
	struct omnikv_client *client = NULL;
	struct okv_share_fds fds;
	uint32_t i;

	(void)state;
	for (i = 0; i < 2; i++) {
		struct okv_failpoint point = { .name = names[i], .nth = 1, .error = EMFILE };

		okv_failpoint_arm(&point);
		assert_int_equal(okv_share_attach(pool, OMNIKV_CLIENT_F_MANAGER, &client, &fds), -EMFILE);
		okv_failpoint_disarm(names[i]);
		assert_null(client);
		assert_int_equal(omnikv_pool_info(pool, &info), 0);
		assert_int_equal(info.nr_clients, 0);
		assert_int_equal(okv_share_settle(pool), 0);
	}
	/* Not even the place of the manager is taken. */
	assert_int_equal(okv_share_attach(pool, OMNIKV_CLIENT_F_MANAGER, &client, &fds), 0);
	omnikv_client_close(client);
	close(fds.memory);
	omnikv_pool_close(pool);
}

static const struct omnikv_extent *held;

static bool is_held(void *opaque, const struct omnikv_extent *extent)
{
	(void)opaque;
	return held && extent->granule == held->granule;
}

static void held_blocks_are_passed_over(void **state)
{
	struct okv_index_config config = { .nr_groups = 1, .block_tokens = 16, .is_held = is_held };
	struct omnikv_extent ext[4], out[4];
	struct okv_index *index;
	uint32_t ids[4], crc = 0, i;
	struct omnikv_key key;

	(void)state;
	assert_int_equal(okv_index_create(&config, &index), 0);
	for (i = 0; i < 4; i++) {
		struct okv_index_block block = {
			.parent = OKV_ENTRY_NONE, .nr_tokens = 16, .key = &key, .extents = &ext[i], .crc32c = &crc,
		};

		memset(&key, 0, sizeof(key));
		key.len = 4;
		key.bytes[0] = (unsigned char)(i + 1);
		ext[i] = (struct omnikv_extent){ .granule = i, .generation = 1, .nr_granules = 1 };
		assert_int_equal(okv_index_insert(index, &block, &ids[i]), 0);
	}
	held = &ext[0];
	assert_int_equal(okv_index_evict(index, 2, out, NULL), 2);
	assert_int_equal(out[0].granule, 1);
	assert_int_equal(out[1].granule, 2);
	/* The held one counts as just used: the other goes first, and it stays. */
	assert_int_equal(okv_index_evict(index, 2, out, NULL), 1);
	assert_int_equal(out[0].granule, 3);
	assert_int_equal(okv_index_evict(index, 1, out, NULL), 0);
	held = NULL;
	assert_int_equal(okv_index_evict(index, 1, out, NULL), 1);
	okv_index_destroy(index);
}

/* The authority would end by a signal. */
static void a_table_that_may_not_be_that_long_ends_nobody(void **state)
{
	struct rlimit all, few;
	char text[80];
	int i;

	(void)state;
	snprintf(path, sizeof(path), "/tmp/omnikv-share-%d", getpid());
	snprintf(text, sizeof(text), "embedded:4M:%s", path);
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &all), 0);
	few = all;
	few.rlim_cur = okv_lease_bytes(NR_GRANULES) - 1;
	for (i = 0; i < 2; i++) {
		struct omnikv_pool *pool = open_pool(i ? text : "4M", -1);
		struct omnikv_client *client;
		struct okv_share_fds fds;
		struct process process;

		assert_int_equal(setrlimit(RLIMIT_FSIZE, &few), 0);
		assert_int_equal(okv_share_attach(pool, 0, &client, &fds), -EFBIG);
		assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
		process = process_new(pool);
		omnikv_client_close(process.client);
		process_end(&process);
		omnikv_pool_close(pool);
	}
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_a_table_counts_waits_in_quarantine),
		cmocka_unit_test(a_count_that_wraps_ends_nobodys_lease),
		cmocka_unit_test(a_lost_connection_ends_nothing_while_the_process_lives),
		cmocka_unit_test(what_a_dead_process_may_still_write_rests_a_moment),
		cmocka_unit_test(a_client_that_says_that_it_is_over_leaves_its_transfers),
		cmocka_unit_test(a_process_that_locks_all_numbers_holds_nobody_up),
		cmocka_unit_test(a_new_authority_over_kept_memory_goes_on),
		cmocka_unit_test(what_was_just_being_given_up_waits_for_its_leases),
		cmocka_unit_test(a_new_authority_over_a_file_goes_on),
		cmocka_unit_test(who_does_not_share_waits_for_the_last_client),
		cmocka_unit_test(a_client_that_cannot_be_attached_leaves_nothing),
		cmocka_unit_test(a_table_that_may_not_be_that_long_ends_nobody),
		cmocka_unit_test(held_blocks_are_passed_over),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

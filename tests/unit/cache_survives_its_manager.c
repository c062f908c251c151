// SPDX-License-Identifier: GPL-2.0-only
/*
 * A pool on a file outlives its manager: what one has cached the next one serves, whether the first was
 * closed, or killed at any place where it stores something that counts. Hits, bytes, checksums, order of
 * eviction; nothing lost, nothing torn, nothing leaked, nothing guessed.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "failpoint.h"
#include "manager/catalog.h"
#include "manager/catalog_shared.h"
#include "manager/index_shared.h"
#include "tests/harness/kv_world.h"

#define T		4u
#define NR_STORIES	12u
#define NR_OPS		60u
#define BLOCKS_MAX	9u

/* Sanitizers take their time. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define IS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define IS_SANITIZED 1
#endif
#endif
#ifndef IS_SANITIZED
#define IS_SANITIZED 0
#endif
#define NR_KILLS	(IS_SANITIZED ? 1u : 6u)	/* at each place */
#define NR_TRIALS	(IS_SANITIZED ? 15u : 150u)

static char path[64], spec[96];

static void pool_begin(const char *size)
{
	snprintf(path, sizeof(path), "/dev/shm/omnikv-survives-XXXXXX");
	assert_true(close(mkstemp(path)) == 0);
	unlink(path);
	snprintf(spec, sizeof(spec), "embedded:%s:%s", size, path);
}

static struct omnikv_manager_stats stats_of(const struct kv_world *world)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	KV_MUST(omnikv_manager_stats(world->manager, &stats) == 0);
	return stats;
}

static struct omnikv_pool_info info_of(const struct kv_world *world)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	KV_MUST(omnikv_pool_info(world->pool, &info) == 0);
	return info;
}

/* The story of this number: some begin like others. */
static void make_story(struct kv_story *story, uint32_t number, uint64_t nr_tokens)
{
	memset(story, 0, sizeof(*story));
	while (story->nr_tokens < nr_tokens) {
		bool is_common = story->nr_tokens < 2 * T;

		kv_story_add(story, (is_common ? number / 3 : number) * 1000 + (uint32_t)story->nr_tokens);
	}
}

/* Store and commit a whole story, @step tokens an append. False: the pool is full of what is leased. */
static bool tell(const struct kv_world *world, uint32_t number, uint64_t nr_tokens, uint64_t step, bool with_tail)
{
	struct kv_story story;
	struct omnikv_seq *seq;
	uint64_t at;
	bool is_done = true;

	make_story(&story, number, nr_tokens);
	seq = kv_open(world, &story, with_tail);
	for (at = omnikv_seq_tokens(seq); at < nr_tokens && is_done; at = omnikv_seq_tokens(seq)) {
		uint64_t nr = nr_tokens - at < step ? nr_tokens - at : step;

		is_done = omnikv_seq_append(seq, nr) == 0;
		if (is_done)
			kv_store(world, seq, &story, at, at + nr);
		if (is_done)
			KV_MUST(kv_commit(world, seq, &story, with_tail && at + nr == nr_tokens) >= 0);
	}
	omnikv_seq_close(seq);
	kv_story_free(&story);
	return is_done;
}

/* How many tokens of it hit; every byte of them is compared. */
static uint64_t hear(const struct kv_world *world, uint32_t number, uint64_t nr_tokens, bool with_tail)
{
	struct kv_story story;
	struct omnikv_seq *seq;
	const char *wrong;
	uint64_t nr;

	make_story(&story, number, nr_tokens);
	seq = kv_open(world, &story, with_tail);
	nr = omnikv_seq_tokens(seq);
	wrong = kv_compare(world, seq, &story, 0, nr);
	if (wrong)
		kv_fail(wrong, __FILE__, __LINE__);
	if (nr && world->plan.layout.groups[world->plan.layout.nr_groups - 1].tokens_per_entry == 0)
		KV_MUST(kv_state_is_right(world, seq, &story, nr));
	omnikv_seq_close(seq);
	kv_story_free(&story);
	return nr;
}

static void a_closed_manager_leaves_its_cache(void **state)
{
	static const enum kv_shape shapes[] = { KV_SHAPE_FULL, KV_SHAPE_MIXED, KV_SHAPE_HYBRID };

	(void)state;
	for (uint32_t s = 0; s < 3; s++) {
		uint64_t hits[NR_STORIES], nr_blocks;
		struct kv_world world;

		pool_begin("2M");
		kv_world_open_pool(&world, shapes[s], T, spec);
		for (uint32_t i = 0; i < NR_STORIES; i++)
			assert_true(tell(&world, i, 5 * T + 4 * (i % 2) - (shapes[s] != KV_SHAPE_MIXED), T, true));
		for (uint32_t i = 0; i < NR_STORIES; i++) {
			hits[i] = hear(&world, i, 5 * T + 4 * (i % 2) - (shapes[s] != KV_SHAPE_MIXED), true);
			assert_true(hits[i] > 0);
		}
		nr_blocks = stats_of(&world).nr_blocks;
		kv_world_check(&world);
		kv_world_leave(&world);

		for (uint32_t again = 0; again < 3; again++) {
			kv_world_open_pool(&world, shapes[s], T, spec);
			kv_world_check(&world);
			assert_int_equal(stats_of(&world).blocks_recovered, nr_blocks);
			assert_int_equal(stats_of(&world).blocks_dropped, 0);
			assert_int_equal(stats_of(&world).extents_freed, 0);
			assert_int_equal(stats_of(&world).nr_blocks, nr_blocks);
			for (uint32_t i = 0; i < NR_STORIES; i++)
				assert_int_equal(hear(&world, i, 5 * T + 4 * (i % 2) - (shapes[s] != KV_SHAPE_MIXED), true), hits[i]);
			kv_world_check(&world);
			if (again < 2)
				kv_world_leave(&world);
		}
		/* A manager that caches nothing leaves nothing. */
		kv_world_close(&world);
		unlink(path);
	}
}

/* Blocks leave in the order in which the earlier manager would have let them go. */
static void the_order_of_eviction_is_kept(void **state)
{
	struct kv_world world;
	uint64_t nr_blocks;

	(void)state;
	pool_begin("512K");
	kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
	for (uint32_t i = 0; i < 10; i++)
		assert_true(tell(&world, 3 * i, 3 * T, T, false));
	for (uint32_t i = 0; i < 10; i += 2)
		assert_int_equal(hear(&world, 3 * i, 3 * T, false), 3 * T);
	nr_blocks = stats_of(&world).nr_blocks;
	kv_world_leave(&world);

	kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
	assert_int_equal(stats_of(&world).blocks_recovered, nr_blocks);
	/* As much as is free, and then the room of the five stories that nobody heard again. */
	for (uint32_t i = 100; stats_of(&world).blocks_evicted < 5 * 3; i++)
		assert_true(tell(&world, 3 * i, T, T, false));
	for (uint32_t i = 0; i < 10; i++)
		assert_int_equal(hear(&world, 3 * i, 3 * T, false), i % 2 ? 0 : 3 * T);
	kv_world_close(&world);
	unlink(path);
}

/* Retentions end with their manager, and what it has to count them by. */
static void retentions_leave_nothing_with_a_cache_that_stays(void **state)
{
	const struct omnikv_retention how = { .size = sizeof(how), .session = 1, .priority = 3, .ttl_ms = 60000 };
	struct omnikv_key *keys;
	struct kv_story story = { 0 };
	struct kv_world world;

	(void)state;
	pool_begin("512K");
	for (uint32_t i = 0; i < 3 * T; i++)
		kv_story_add(&story, i);
	for (uint32_t round = 0; round < 2; round++) {
		struct omnikv_seq *seq;

		kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
		seq = kv_open(&world, &story, false);
		if (!omnikv_seq_tokens(seq)) {
			assert_int_equal(omnikv_seq_append(seq, story.nr_tokens), 0);
			kv_store(&world, seq, &story, 0, story.nr_tokens);
			assert_int_equal(kv_commit(&world, seq, &story, false), 3);
		}
		omnikv_seq_close(seq);
		keys = kv_keys(&world, &story, 3);
		assert_int_equal(omnikv_space_retain(world.space, keys, 3, NULL, &how), 3);
		free(keys);
		assert_int_equal(stats_of(&world).nr_retentions, 1);
		kv_world_leave(&world);
	}
	kv_story_free(&story);
	unlink(path);
}

/* ---- killed at every store ------------------------------------------------------------------ */

/* What a child has done, as seen by its parent. */
struct record {
	uint32_t	nr_done;				/* operations */
	uint32_t	hits[NR_OPS + 1][NR_STORIES];		/* blocks of each story that are cached, after so many */
	uint64_t	nr_hits_of_points[64];
};

static const char *const points[] = {
	"catalog.root_filled", "catalog.root_there", "catalog.spaces_filled", "catalog.spaces_there",
	"catalog.space_filled", "catalog.space_there", "catalog.shelf_filled", "catalog.shelf_there",
	"index.dir_filled", "index.dir_switched", "index.chunk_taken", "index.chunk_listed",
	"index.insert_filled", "index.insert_there", "index.insert_listed",
	"index.attach_filled", "index.attach_there", "index.attach_sealed",
	"index.remove_unlisted", "index.remove_gone",
	"commit.publish", "commit.insert",
};

#define NR_POINTS (sizeof(points) / sizeof(points[0]))

static uint32_t lookup(const struct kv_world *world, uint32_t number)
{
	struct kv_story story;
	struct omnikv_key *keys;
	int64_t nr;

	make_story(&story, number, BLOCKS_MAX * T);
	keys = kv_keys(world, &story, BLOCKS_MAX);
	nr = omnikv_lookup(world->space, keys, BLOCKS_MAX);
	KV_MUST(nr >= 0);
	free(keys);
	kv_story_free(&story);
	return (uint32_t)nr;
}

/* One of many namespaces, which come on the way: they move the list of them. */
static void open_another(struct kv_world *world, uint32_t number)
{
	struct omnikv_namespace ns = world->ns;
	struct omnikv_space *space;
	char tenant[16];

	snprintf(tenant, sizeof(tenant), "t%u", number);
	ns.tenant = tenant;
	KV_MUST(omnikv_space_open(world->manager, &ns, &world->plan, &space, NULL) == 0);
	omnikv_space_close(space);
}

/* Operation @n, the same in every run. */
static void operate(struct kv_world *world, uint32_t n, uint64_t *seed)
{
	uint32_t number = kv_random(seed) % NR_STORIES;
	uint64_t nr_tokens = T * (1 + kv_random(seed) % BLOCKS_MAX);
	bool by_block = kv_random(seed) % 2, with_tail = kv_random(seed) % 2;

	if (n % 4 == 3)
		open_another(world, n);
	tell(world, number, with_tail ? nr_tokens - 1 : nr_tokens, by_block ? T : nr_tokens, with_tail);
}

static void child(enum kv_shape shape, uint64_t seed, const char *point, uint32_t nth, struct record *record)
{
	struct omnikv_error err = { "" };
	struct kv_world world;
	uint32_t i;

	for (i = 0; i < NR_POINTS && !point; i++)
		KV_MUST(okv_failpoint_arm(&(struct okv_failpoint){ .name = points[i], .nth = UINT32_MAX }) == 0);
	if (point)
		KV_MUST(okv_failpoint_arm(&(struct okv_failpoint){ .name = point, .nth = nth,
								   .flags = OKV_FAILPOINT_F_KILL }) == 0);
	kv_world_open_pool(&world, shape, T, spec);
	for (uint32_t n = 0; n < NR_OPS; n++) {
		operate(&world, n, &seed);
		for (i = 0; i < NR_STORIES; i++)
			record->hits[n + 1][i] = lookup(&world, i);
		__atomic_store_n(&record->nr_done, n + 1, __ATOMIC_RELEASE);
	}
	if (omnikv_manager_check(world.manager, &err))
		kv_fail(err.text, __FILE__, __LINE__);
	for (i = 0; i < NR_POINTS && !point; i++)
		record->nr_hits_of_points[i] = okv_failpoint_hits(points[i]);
	_exit(0);
}

/* Runs a child; true when it was killed. */
static bool run_child(enum kv_shape shape, uint64_t seed, const char *point, uint32_t nth, struct record *record)
{
	int status;
	pid_t pid;

	memset(record, 0, sizeof(*record));
	unlink(path);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid)
		child(shape, seed, point, nth, record);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFSIGNALED(status)) {
		assert_int_equal(WTERMSIG(status), SIGKILL);
		return true;
	}
	assert_int_equal(WEXITSTATUS(status), 0);
	return false;
}

static const char *const recovery_points[] = {
	"index.recover_judged", "index.recover_dropped", "catalog.loaded", "catalog.sealed_freed",
};

#define NR_RECOVERY_POINTS (sizeof(recovery_points) / sizeof(recovery_points[0]))

/* A manager that begins on the pool, and is killed before it is done. */
static void recover_and_die(enum kv_shape shape, const char *point)
{
	struct kv_world world;
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (!pid) {
		KV_MUST(okv_failpoint_arm(&(struct okv_failpoint){ .name = point, .flags = OKV_FAILPOINT_F_KILL }) == 0);
		kv_world_open_pool(&world, shape, T, spec);
		/* There was no index to recover. */
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
}

/* What the next manager finds lies between what was there before the operation under way and after it. */
static void compare_with_model(enum kv_shape shape, const struct record *full, const struct record *killed,
			       const char *point, uint32_t nth, uint64_t *nr_recovered)
{
	uint32_t n = killed->nr_done;
	struct omnikv_pool_info info;
	struct kv_world world;

	assert_memory_equal(killed->hits[n], full->hits[n], sizeof(full->hits[n]));
	kv_world_open_pool(&world, shape, T, spec);
	kv_world_check(&world);
	info = info_of(&world);
	assert_int_equal(info.state_bytes[OMNIKV_EXTENT_PRIVATE], 0);
	assert_int_equal(info.state_bytes[OMNIKV_EXTENT_QUARANTINED], 0);
	assert_int_equal(stats_of(&world).blocks_dropped, 0);
	*nr_recovered += stats_of(&world).blocks_recovered;
	for (uint32_t i = 0; i < NR_STORIES; i++) {
		uint32_t before = full->hits[n][i], after = n < NR_OPS ? full->hits[n + 1][i] : before, now;

		now = lookup(&world, i);
		if (now < (before < after ? before : after) || now > (before < after ? after : before))
			fail_msg("%s, hit %u: story %u has %u blocks, %u before the operation, %u after", point, nth, i, now,
				 before, after);
		assert_int_equal(hear(&world, i, BLOCKS_MAX * T, false), now * T);
	}
	/* And it goes on from there. */
	for (uint32_t i = 0; i < NR_STORIES; i++)
		tell(&world, i, 3 * T, T, true);
	kv_world_close(&world);
}

static void a_kill_at_any_store_loses_nothing(void **state)
{
	static const enum kv_shape shapes[] = { KV_SHAPE_FULL, KV_SHAPE_HYBRID };
	uint64_t nr_kills = 0, nr_recovered = 0, nr_unreached = 0;
	struct record *full, *killed;
	const char *more = getenv("OMNIKV_FULL");

	(void)state;
	pool_begin("320K");
	full = mmap(NULL, sizeof(*full), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	killed = mmap(NULL, sizeof(*killed), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(full != MAP_FAILED && killed != MAP_FAILED);
	for (uint32_t s = 0; s < 2; s++) {
		uint64_t seed = 7 + s;

		assert_false(run_child(shapes[s], seed, NULL, 0, full));
		for (uint32_t p = 0; p < NR_POINTS; p++) {
			uint64_t nr_hits = full->nr_hits_of_points[p], pick = seed + p;
			uint32_t tries = more && *more == '1' ? 40 : NR_KILLS;

			nr_unreached += nr_hits == 0;
			for (uint32_t k = 0; k < tries && nr_hits; k++) {
				uint32_t nth = k == 0 ? 1 : k == 1 ? (uint32_t)nr_hits : 1 + (uint32_t)(kv_random(&pick) % nr_hits);

				assert_true(run_child(shapes[s], seed, points[p], nth, killed));
				/* Of every other one the recovery is killed as well. */
				if (nr_kills % 2)
					recover_and_die(shapes[s], recovery_points[nr_kills / 2 % NR_RECOVERY_POINTS]);
				compare_with_model(shapes[s], full, killed, points[p], nth, &nr_recovered);
				nr_kills++;
			}
		}
	}
	print_message("# %llu kills, %llu blocks recovered, none lost\n", (unsigned long long)nr_kills,
		      (unsigned long long)nr_recovered);
	/* One shape has no state to attach. */
	assert_int_equal(nr_unreached, 3);
	munmap(full, sizeof(*full));
	munmap(killed, sizeof(*killed));
	unlink(path);
}

/* ---- damage --------------------------------------------------------------------------------- */

/* The file's bytes now, or as they were. */
static unsigned char *file_copy(size_t *bytes)
{
	FILE *file = fopen(path, "rb");
	unsigned char *copy;

	assert_non_null(file);
	assert_int_equal(fseek(file, 0, SEEK_END), 0);
	*bytes = (size_t)ftell(file);
	rewind(file);
	copy = malloc(*bytes);
	assert_non_null(copy);
	assert_int_equal(fread(copy, 1, *bytes, file), *bytes);
	fclose(file);
	return copy;
}

static void file_restore(const unsigned char *copy, size_t bytes)
{
	FILE *file = fopen(path, "wb");

	assert_non_null(file);
	assert_int_equal(fwrite(copy, 1, bytes, file), bytes);
	fclose(file);
}

/* Change @nr places of META, some by a bit and some wholly. */
static void damage_meta(uint64_t *seed, uint32_t nr)
{
	struct omnikv_extent metas[64];
	struct omnikv_client *client;
	struct omnikv_pool *pool;
	uint64_t from = 0;
	int64_t nr_metas;

	assert_int_equal(omnikv_pool_open(spec, NULL, &pool, NULL), 0);
	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &client), 0);
	nr_metas = omnikv_extent_list(client, 1u << OMNIKV_EXTENT_META, &from, metas, 64);
	assert_true(nr_metas > 0 && nr_metas < 64);
	while (nr--) {
		const struct omnikv_extent *meta = &metas[kv_random(seed) % (uint64_t)nr_metas];
		unsigned char *mem = omnikv_pool_addr(pool, meta);
		uint64_t at = kv_random(seed) % ((uint64_t)meta->nr_granules * 4096);
		uint32_t how = kv_random(seed) % 4;

		/* What is used is not spread evenly: look for it. */
		while (!mem[at] && at)
			at--;
		if (how == 0)
			mem[at] = (unsigned char)kv_random(seed);
		else
			mem[at] ^= 1u << (kv_random(seed) % 8);
	}
	omnikv_client_close(client);
	omnikv_pool_close(pool);
}

static void what_is_damaged_is_dropped_and_nothing_is_guessed(void **state)
{
	static const enum kv_shape shapes[] = { KV_SHAPE_FULL, KV_SHAPE_HYBRID };
	uint64_t nr_dropped = 0, nr_kept = 0, nr_empty = 0, seed = 5;

	(void)state;
	for (uint32_t s = 0; s < 2; s++) {
		unsigned char *copy;
		struct kv_world world;
		size_t bytes;

		pool_begin("1M");
		kv_world_open_pool(&world, shapes[s], T, spec);
		for (uint32_t i = 0; i < NR_STORIES; i++)
			assert_true(tell(&world, i, 5 * T - 1, T, true));
		kv_world_leave(&world);
		copy = file_copy(&bytes);
		for (uint32_t trial = 0; trial < NR_TRIALS; trial++) {
			struct omnikv_manager_stats stats;

			file_restore(copy, bytes);
			damage_meta(&seed, 1 + trial % 7);
			kv_world_open_pool(&world, shapes[s], T, spec);
			kv_world_check(&world);
			stats = stats_of(&world);
			nr_dropped += stats.blocks_dropped;
			nr_kept += stats.blocks_recovered;
			nr_empty += stats.blocks_recovered == 0;
			for (uint32_t i = 0; i < NR_STORIES; i++) {
				hear(&world, i, 5 * T - 1, true);
				tell(&world, i, 6 * T, T, false);
				hear(&world, i, 6 * T, false);
			}
			kv_world_close(&world);
		}
		free(copy);
		unlink(path);
	}
	print_message("# %u damaged catalogs: %llu blocks kept, %llu dropped, %llu times all\n", 2 * NR_TRIALS, (unsigned long long)nr_kept,
		      (unsigned long long)nr_dropped, (unsigned long long)nr_empty);
	assert_true(nr_dropped > 0 && nr_kept > 0 && nr_empty < 2 * NR_TRIALS);
}

/* An extent that is no longer what a block says takes the block along, and all behind it. */
static void blocks_whose_extents_are_gone_are_dropped(void **state)
{
	struct omnikv_extent sealed[64], other;
	struct omnikv_client *client;
	struct omnikv_pool *pool;
	struct kv_world world;

	(void)state;
	for (uint32_t how = 0; how < 2; how++) {
		uint64_t from = 0;

		pool_begin("512K");
		kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
		for (uint32_t i = 0; i < 3; i++)
			assert_true(tell(&world, 3 * i, 8 * T, T, false));
		kv_world_leave(&world);

		assert_int_equal(omnikv_pool_open(spec, NULL, &pool, NULL), 0);
		assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &client), 0);
		assert_int_equal(omnikv_extent_list(client, 1u << OMNIKV_EXTENT_SEALED, &from, sealed, 64), 24);
		/* Some block in the middle of the second story; its granule is somebody else's, or nobody's. */
		assert_int_equal(omnikv_extent_free(client, &sealed[12], 1), 0);
		if (how) {
			assert_int_equal(omnikv_extent_alloc(client, 1, 1, &sealed[11], 0, &other), 0);
			assert_int_equal(other.granule, sealed[12].granule);
			assert_int_equal(omnikv_extent_seal(client, &other, 1), 0);
		}
		omnikv_client_close(client);
		omnikv_pool_close(pool);

		kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
		kv_world_check(&world);
		assert_int_equal(stats_of(&world).blocks_recovered, 20);
		assert_int_equal(stats_of(&world).blocks_dropped, 4);
		assert_int_equal(stats_of(&world).extents_freed, how ? 4 : 3);
		assert_int_equal(hear(&world, 0, 8 * T, false), 8 * T);
		assert_int_equal(hear(&world, 3, 8 * T, false), 4 * T);
		assert_int_equal(hear(&world, 6, 8 * T, false), 8 * T);
		kv_world_close(&world);
		unlink(path);
	}
}

/* An index that cannot be read takes its own namespaces along, not those of others. */
static void one_damaged_index_leaves_the_others(void **state)
{
	uint64_t shelves[OKV_CATALOG_SHELVES_MAX];
	struct kv_world world, model, hybrid;
	struct omnikv_client *client;
	struct omnikv_pool *pool;

	(void)state;
	pool_begin("1M");
	kv_world_open(&model, KV_SHAPE_HYBRID, T, 4);
	kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
	hybrid = world;
	hybrid.plan = model.plan;
	hybrid.ns = model.ns;
	hybrid.ns.layout = &hybrid.plan.layout;
	assert_int_equal(omnikv_space_open(world.manager, &hybrid.ns, &hybrid.plan, &hybrid.space, NULL), 0);
	for (uint32_t i = 0; i < 4; i++)
		assert_true(tell(&world, 3 * i, 4 * T, T, false) && tell(&hybrid, 3 * i, 4 * T, T, false));
	memcpy(shelves, ((struct okv_catalog_root *)((char *)omnikv_pool_base(world.pool) +
						      okv_pool_catalog_root_off(world.manager)))->shelves, sizeof(shelves));
	assert_true(shelves[0] && shelves[1] && !shelves[2]);
	omnikv_space_close(hybrid.space);
	kv_world_leave(&world);

	assert_int_equal(omnikv_pool_open(spec, NULL, &pool, NULL), 0);
	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &client), 0);
	((struct okv_index_head *)((char *)omnikv_pool_base(pool) + shelves[1]))->secret[3] ^= 1;
	omnikv_client_close(client);
	omnikv_pool_close(pool);

	kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
	kv_world_check(&world);
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(hear(&world, 3 * i, 4 * T, false), 4 * T);
	hybrid.pool = world.pool;
	hybrid.client = world.client;
	hybrid.manager = world.manager;
	assert_int_equal(omnikv_space_open(world.manager, &hybrid.ns, &hybrid.plan, &hybrid.space, NULL), 0);
	for (uint32_t i = 0; i < 4; i++) {
		assert_int_equal(hear(&hybrid, 3 * i, 4 * T, false), 0);
		assert_true(tell(&hybrid, 3 * i, 4 * T, T, false));
		assert_int_equal(hear(&hybrid, 3 * i, 4 * T, false), 4 * T);
	}
	omnikv_space_close(hybrid.space);
	kv_world_close(&world);
	kv_world_close(&model);
	unlink(path);
}

/* Whatever it leads to: the root keeps its place and the epoch, also when the one that begins anew is killed. */
static void a_damaged_catalog_keeps_its_epoch(void **state)
{
	struct omnikv_client *client;
	struct okv_catalog_root *root;
	struct omnikv_pool *pool;
	struct kv_world world;
	uint64_t root_off;

	(void)state;
	pool_begin("1M");
	kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
	assert_int_equal(omnikv_manager_raise_epoch(world.manager), 1);
	assert_true(tell(&world, 0, 4 * T, T, false));
	root_off = okv_pool_catalog_root_off(world.manager);
	kv_world_leave(&world);

	assert_int_equal(omnikv_pool_open(spec, NULL, &pool, NULL), 0);
	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &client), 0);
	root = (struct okv_catalog_root *)((char *)omnikv_pool_base(pool) + root_off);
	root->spaces_off = 1;
	omnikv_client_close(client);
	omnikv_pool_close(pool);

	recover_and_die(KV_SHAPE_FULL, "catalog.renewed");
	kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
	kv_world_check(&world);
	assert_int_equal(hear(&world, 0, 4 * T, false), 0);
	assert_int_equal(okv_pool_catalog_epoch(world.manager), 1);
	assert_true(tell(&world, 0, 4 * T, T, false));
	kv_world_leave(&world);
	unlink(path);
}

/* What the index takes of a pool, at its fullest: blocks of one granule; the second size is one at which its table is largest. */
static void at_most_128_bytes_a_block(void **state)
{
	static const char *const sizes[] = { "24M", "26M" };

	(void)state;
	for (uint32_t s = 0; s < 2 - IS_SANITIZED; s++) {
		struct omnikv_manager_stats stats;
		struct kv_world world;

		pool_begin(sizes[s]);
		kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
		for (uint32_t i = 0; stats_of(&world).blocks_evicted < 100; i++)
			assert_true(tell(&world, 3 * i, 60 * T, 60 * T, false));
		stats = stats_of(&world);
		assert_int_equal(stats.cached_bytes, stats.nr_blocks * 4096);
		print_message("# %.1f bytes a block, %llu blocks\n", (double)stats.index_bytes / stats.nr_blocks,
			      (unsigned long long)stats.nr_blocks);
		assert_true(stats.index_bytes <= 128 * stats.nr_blocks);
		kv_world_close(&world);
		unlink(path);
	}
}

/* The pool is in pieces when the namespace comes: its index gets less than it would like, and blocks leave for others. */
static void an_index_that_cannot_grow_lets_blocks_go(void **state)
{
	struct omnikv_extent extents[1024];
	struct kv_world world;
	uint32_t nr = 0;

	(void)state;
	pool_begin("1M");
	kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
	omnikv_space_close(world.space);
	KV_MUST(!omnikv_manager_destroy(world.manager));
	while (nr < 1024 && omnikv_extent_alloc(world.client, 1, 1, NULL, 0, &extents[nr]) == 0)
		nr++;
	assert_int_equal(nr, 256);
	for (uint32_t i = 0; i < nr; i += 2)
		assert_int_equal(omnikv_extent_free(world.client, &extents[i], 1), 0);
	assert_int_equal(omnikv_manager_create(world.client, NULL, &world.manager, NULL), 0);
	assert_int_equal(omnikv_space_open(world.manager, &world.ns, &world.plan, &world.space, NULL), 0);
	for (uint32_t i = 1; i < nr; i += 2)
		assert_int_equal(omnikv_extent_free(world.client, &extents[i], 1), 0);

	for (uint32_t i = 0; i < 30; i++) {
		assert_true(tell(&world, 3 * i, 6 * T, T, true));
		assert_int_equal(hear(&world, 3 * i, 6 * T, false), 6 * T);
		kv_world_check(&world);
	}
	print_message("# %llu blocks in %llu bytes of index, %llu left\n", (unsigned long long)stats_of(&world).nr_blocks,
		      (unsigned long long)stats_of(&world).index_bytes, (unsigned long long)stats_of(&world).blocks_evicted);
	assert_true(stats_of(&world).blocks_evicted > 0 && stats_of(&world).cached_bytes < (512 << 10));
	kv_world_leave(&world);
	kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
	assert_int_equal(hear(&world, 3 * 29, 6 * T, false), 6 * T);
	kv_world_close(&world);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_closed_manager_leaves_its_cache),
		cmocka_unit_test(the_order_of_eviction_is_kept),
		cmocka_unit_test(retentions_leave_nothing_with_a_cache_that_stays),
		cmocka_unit_test(a_kill_at_any_store_loses_nothing),
		cmocka_unit_test(what_is_damaged_is_dropped_and_nothing_is_guessed),
		cmocka_unit_test(blocks_whose_extents_are_gone_are_dropped),
		cmocka_unit_test(one_damaged_index_leaves_the_others),
		cmocka_unit_test(a_damaged_catalog_keeps_its_epoch),
		cmocka_unit_test(at_most_128_bytes_a_block),
		cmocka_unit_test(an_index_that_cannot_grow_lets_blocks_go),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Token ids come back with their blocks after a manager was closed or killed at any place where it stores something
 * that counts, and after its memory was damaged: those of this very block, or none. They are told before their block
 * is, go with it, and take no room where nobody asked for them.
 */
#include <errno.h>
#include <pthread.h>
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
#include "manager/tokens.h"
#include "manager/watch.h"
#include "tests/harness/kv_world.h"

#define T		4u
#define NR_STORIES	150u
#define NR_OPS		150u
#define BLOCKS_MAX	9u
#define NR_TRIALS	60u

static char path[64], spec[96];
static const struct omnikv_manager_config with_tokens = { .size = sizeof(with_tokens), .flags = OMNIKV_MANAGER_F_TOKENS };

static void pool_begin(void)
{
	snprintf(path, sizeof(path), "/dev/shm/omnikv-tokens-XXXXXX");
	assert_true(close(mkstemp(path)) == 0);
	unlink(path);
	snprintf(spec, sizeof(spec), "embedded:2M:%s", path);
}

static void begin(struct kv_world *world)
{
	kv_world_open_pool_config(world, KV_SHAPE_FULL, T, spec, &with_tokens);
}

static void make_story(struct kv_story *story, uint32_t number)
{
	memset(story, 0, sizeof(*story));
	while (story->nr_tokens < BLOCKS_MAX * T)
		kv_story_add(story, (story->nr_tokens < 2 * T ? number / 3 : number) * 1000 + (uint32_t)story->nr_tokens);
}

/* Commit blocks [0, @nr) of a story, and note their token ids before, or behind it. */
static void tell(const struct kv_world *world, uint32_t number, uint64_t nr, bool is_late)
{
	struct omnikv_key *keys;
	struct kv_story story;
	struct omnikv_seq *seq;
	uint64_t at;

	make_story(&story, number);
	keys = kv_keys(world, &story, nr);
	if (!is_late)
		KV_MUST(omnikv_space_note_tokens(world->space, keys, nr, story.tokens) == 0);
	story.nr_tokens = nr * T;
	seq = kv_open(world, &story, false);
	at = omnikv_seq_tokens(seq);
	if (omnikv_seq_append(seq, nr * T - at) == 0) {
		kv_store(world, seq, &story, at, nr * T);
		KV_MUST(kv_commit(world, seq, &story, false) >= 0);
	}
	omnikv_seq_close(seq);
	if (is_late)
		KV_MUST(omnikv_space_note_tokens(world->space, keys, nr, story.tokens) == 0);
	free(keys);
	kv_story_free(&story);
}

struct count {
	uint32_t	blocks;
	uint32_t	with_tokens;
};

/* Of every block of every story: its token ids are its own, or not there. */
static struct count look(const struct kv_world *world)
{
	struct count count = { 0, 0 };
	struct okv_visit visit;

	okv_visit_init(&visit, world->manager);
	okv_visit_enter(&visit);
	for (uint32_t i = 0; i < NR_STORIES; i++) {
		struct omnikv_key *keys;
		struct kv_story story;

		make_story(&story, i);
		keys = kv_keys(world, &story, BLOCKS_MAX);
		for (uint32_t b = i % 3 ? 2 : 0; b < BLOCKS_MAX; b++) {
			uint32_t entry = okv_index_find(world->space->shelf->index, world->space->id, &keys[b]), nr;
			const uint32_t *ids;

			if (entry == OKV_ENTRY_NONE)
				continue;
			count.blocks++;
			nr = okv_tokens_of(world->manager->tokens, world->space, entry, &ids);
			assert_true(nr == 0 || nr == T);
			assert_true(!nr || !memcmp(ids, story.tokens + b * T, T * sizeof(*ids)));
			count.with_tokens += nr != 0;
		}
		free(keys);
		kv_story_free(&story);
	}
	okv_visit_leave(&visit);
	return count;
}

/* The pool has room for a third of all stories. */
static void operate(const struct kv_world *world, uint64_t *seed)
{
	uint32_t number = kv_random(seed) % NR_STORIES;

	tell(world, number, 1 + kv_random(seed) % BLOCKS_MAX, kv_random(seed) % 4 == 0);
}

static uint64_t meta_bytes(const struct kv_world *world)
{
	struct omnikv_pool_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_pool_info(world->pool, &info), 0);
	return info.state_bytes[OMNIKV_EXTENT_META];
}

static struct omnikv_manager_stats stats_of(const struct kv_world *world)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };

	assert_int_equal(omnikv_manager_stats(world->manager, &stats), 0);
	return stats;
}

static void they_come_and_go_with_their_blocks(void **state)
{
	uint64_t meta;
	struct kv_world world;
	struct count count;
	uint64_t seed = 5;

	(void)state;
	pool_begin();
	for (uint32_t again = 0; again < 3; again++) {
		begin(&world);
		count = look(&world);
		assert_true(again ? count.blocks > 20 : count.blocks == 0);
		assert_int_equal(count.with_tokens, count.blocks);
		for (uint32_t n = 0; n < NR_OPS; n++) {
			operate(&world, &seed);
			count = look(&world);
			assert_int_equal(count.with_tokens, count.blocks);
		}
		kv_world_check(&world);
		kv_world_leave(&world);
	}
	/* What is gone makes room for what comes: no slot is lost. */
	begin(&world);
	meta = meta_bytes(&world);
	for (uint32_t n = 0; n < 100 * NR_OPS; n++)
		operate(&world, &seed);
	assert_true(stats_of(&world).blocks_evicted > 2 * 8192);
	assert_true(meta_bytes(&world) <= meta + (256 << 10));
	kv_world_leave(&world);
	/* Nobody asks for them any more: their memory goes back. */
	kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
	assert_null(world.manager->tokens);
	assert_int_equal(*okv_pool_catalog_tokens_off(world.manager), 0);
	tell(&world, 1, 3, false);
	kv_world_check(&world);
	kv_world_leave(&world);
	begin(&world);
	assert_int_equal(look(&world).with_tokens, 0);
	kv_world_leave(&world);
	unlink(path);
}

static void what_never_comes_is_forgotten(void **state)
{
	struct omnikv_key key = { .len = 8 };
	uint32_t tokens[T] = { 1, 2, 3, 4 };
	struct kv_world world;
	uint64_t meta = 0;

	(void)state;
	pool_begin();
	begin(&world);
	/* Each waits in 32 bytes: the pool would be full of them. */
	for (uint32_t n = 0; n < 10 * OKV_TOKENS_PENDING_MAX; n++) {
		memcpy(key.bytes, &n, sizeof(n));
		assert_int_equal(omnikv_space_note_tokens(world.space, &key, 1, tokens), 0);
		if (n == OKV_TOKENS_PENDING_MAX)
			meta = meta_bytes(&world);
	}
	assert_int_equal(meta_bytes(&world), meta);
	/* The same key in the same namespace takes one place, however often it is noted. */
	for (uint32_t n = 0; n < 10; n++)
		assert_int_equal(omnikv_space_note_tokens(world.space, &key, 1, tokens), 0);
	tell(&world, 1, 3, false);
	assert_int_equal(look(&world).with_tokens, 3);
	kv_world_check(&world);
	kv_world_leave(&world);
	unlink(path);
}

/* The namespace of @world in blocks of so many tokens. */
static struct omnikv_space *open_with(const struct kv_world *world, uint32_t block_tokens)
{
	struct omnikv_plan_config config = { .size = sizeof(config), .block_tokens = block_tokens, .granule_bytes = 4096 };
	struct omnikv_plan *plan = calloc(1, sizeof(*plan));
	struct omnikv_namespace ns = world->ns;
	struct omnikv_space *space;
	struct omnikv_error err;

	assert_non_null(plan);
	assert_int_equal(omnikv_plan_make(&world->plan.layout, &config, plan, &err), 0);
	ns.layout = &plan->layout;
	ns.block_tokens = block_tokens;
	assert_int_equal(omnikv_space_open(world->manager, &ns, plan, &space, &err), 0);
	free(plan);
	return space;
}

/* Large blocks, and blocks of many sizes: whoever notes what never comes fills the pool with neither. */
static void what_waits_takes_no_more_memory_than_its_bound(void **state)
{
	static uint32_t tokens[OKV_TOKENS_BLOCK_MAX];
	struct omnikv_key key = { .len = 8 };
	struct omnikv_space *space;
	struct kv_world world;
	uint64_t meta, first;

	(void)state;
	pool_begin();
	snprintf(spec, sizeof(spec), "embedded:80M:%s", path);
	begin(&world);
	tell(&world, 1, 3, false);
	first = meta_bytes(&world);
	space = open_with(&world, OKV_TOKENS_BLOCK_MAX);
	meta = meta_bytes(&world);
	for (uint32_t n = 1; n < 2000; n++) {
		memcpy(key.bytes, &n, sizeof(n));
		assert_int_equal(omnikv_space_note_tokens(space, &key, 1, tokens), 0);
		assert_true(meta_bytes(&world) - meta <= OKV_TOKENS_IDLE_BYTES);
	}
	assert_true(meta_bytes(&world) - meta > OKV_TOKENS_IDLE_BYTES / 2);
	omnikv_space_close(space);
	for (uint32_t i = 1; i < 200; i++) {
		space = open_with(&world, OKV_TOKENS_BLOCK_MAX - 32 * i);
		assert_int_equal(omnikv_space_note_tokens(space, &key, 1, tokens), 0);
		omnikv_space_close(space);
		assert_true(meta_bytes(&world) - first <= OKV_TOKENS_IDLE_BYTES + (8u << 20));
	}
	/* Others go on as if nothing were. */
	tell(&world, 4, 5, false);
	assert_int_equal(look(&world).with_tokens, 3 + 5);
	kv_world_check(&world);
	kv_world_leave(&world);
	begin(&world);
	assert_int_equal(look(&world).with_tokens, 3 + 5);
	tell(&world, 7, 5, false);
	assert_int_equal(look(&world).with_tokens, 3 + 5 + 5);
	kv_world_check(&world);
	kv_world_leave(&world);
	unlink(path);
}

static const char *const points[] = {
	"tokens.chunk_filled", "tokens.half_owned", "index.insert_filled", "index.insert_there", "index.insert_listed",
	"index.remove_unlisted", "index.remove_gone", "commit.publish", "catalog.root_there", "catalog.loaded",
	"catalog.sealed_freed",
};

static void child(const char *point, uint32_t nth, uint64_t seed)
{
	struct kv_world world;

	KV_MUST(okv_failpoint_arm(&(struct okv_failpoint){ .name = point, .nth = nth, .flags = OKV_FAILPOINT_F_KILL }) == 0);
	begin(&world);
	for (uint32_t n = 0; n < NR_OPS; n++)
		operate(&world, &seed);
	_exit(0);
}

static void a_kill_at_any_store_leaves_the_right_ones(void **state)
{
	uint32_t nr_killed = 0, nr_missing = 0;
	uint64_t seed = 7;

	(void)state;
	pool_begin();
	for (uint32_t trial = 0; trial < NR_TRIALS; trial++) {
		const char *point = points[trial % (sizeof(points) / sizeof(points[0]))];
		struct kv_world world;
		struct count count;
		int status;
		pid_t pid;

		pid = fork();
		assert_true(pid >= 0);
		if (!pid)
			child(point, 1 + kv_random(&seed) % (strstr(point, "catalog") ? 1 : 12), kv_random(&seed));
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0);
		nr_killed += WIFSIGNALED(status) != 0;
		begin(&world);
		count = look(&world);
		nr_missing += count.blocks - count.with_tokens;
		/* One block at most was between its index entry and its token ids, each time. */
		assert_true(count.blocks - count.with_tokens <= trial + 1);
		kv_world_check(&world);
		kv_world_leave(&world);
	}
	print_message("# %u of %u killed, %u blocks without token ids\n", nr_killed, NR_TRIALS, nr_missing);
	assert_true(nr_killed > NR_TRIALS / 2);
	unlink(path);
}

/* Slots that are given back leave the list of all by one store. */
static void a_kill_as_memory_goes_back_loses_nothing_else(void **state)
{
	static uint32_t tokens[OKV_TOKENS_BLOCK_MAX];
	struct omnikv_key key = { .len = 8 };
	struct omnikv_space *space;
	struct kv_world world;
	int status;
	pid_t pid;

	(void)state;
	pool_begin();
	snprintf(spec, sizeof(spec), "embedded:80M:%s", path);
	pid = fork();
	assert_true(pid >= 0);
	if (!pid) {
		begin(&world);
		tell(&world, 1, 3, false);
		KV_MUST(okv_failpoint_arm(&(struct okv_failpoint){ .name = "tokens.chunk_cut", .nth = 3, .flags = OKV_FAILPOINT_F_KILL }) == 0);
		for (uint32_t i = 0; i < 100; i++) {
			space = open_with(&world, OKV_TOKENS_BLOCK_MAX - 32 * i);
			KV_MUST(omnikv_space_note_tokens(space, &key, 1, tokens) == 0);
			omnikv_space_close(space);
			if (i == 30)
				tell(&world, 4, 5, false);
		}
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	begin(&world);
	assert_int_equal(look(&world).with_tokens, 3 + 5);
	tell(&world, 7, 5, false);
	assert_int_equal(look(&world).with_tokens, 3 + 5 + 5);
	kv_world_check(&world);
	kv_world_leave(&world);
	unlink(path);
}

/* Change places of the chunks, and sometimes the list itself. */
static void damage(const struct kv_world *world, uint64_t *seed)
{
	uint64_t off = *okv_pool_catalog_tokens_off(world->manager);
	unsigned char *chunk = world->manager->base + off;

	assert_true(off != 0);
	for (uint32_t i = 0; i < 200; i++)
		chunk[sizeof(struct okv_tokens_chunk) + kv_random(seed) % 8192] ^= 1u << (kv_random(seed) % 8);
	if (kv_random(seed) % 4 == 0)
		chunk[kv_random(seed) % sizeof(struct okv_tokens_chunk)] ^= 1u << (kv_random(seed) % 8);
	if (kv_random(seed) % 4 == 0)
		*okv_pool_catalog_tokens_off(world->manager) = kv_random(seed) % 4 ? kv_random(seed) : off + 64;
	if (kv_random(seed) % 4 == 0)	/* a circle */
		((struct okv_tokens_chunk *)chunk)->next_off = off;
}

static void what_is_damaged_is_not_there(void **state)
{
	uint32_t nr_missing = 0;
	uint64_t seed = 9;

	(void)state;
	pool_begin();
	for (uint32_t trial = 0; trial < NR_TRIALS; trial++) {
		struct kv_world world;
		struct count count;

		begin(&world);
		for (uint32_t n = 0; n < 20; n++)
			operate(&world, &seed);
		damage(&world, &seed);
		kv_world_leave(&world);
		begin(&world);
		count = look(&world);
		nr_missing += count.blocks - count.with_tokens;
		kv_world_check(&world);
		kv_world_leave(&world);
	}
	assert_true(nr_missing > 0);
	unlink(path);
}

/* Another process that has the pool, and writes it while a manager starts. */
struct writer {
	struct okv_tokens_chunk	*chunk;
	_Atomic bool		is_over;
};

static void *write_slots(void *opaque)
{
	struct writer *writer = opaque;
	size_t stride = okv_tokens_stride(T);
	uint32_t entries[16], nr = 0;
	struct okv_tokens_slot *slots[16];

	for (uint32_t i = 0; i < writer->chunk->nr_slots && nr < 16; i++) {
		slots[nr] = (struct okv_tokens_slot *)((unsigned char *)(writer->chunk + 1) + i * stride);
		entries[nr] = slots[nr]->entry;
		nr += entries[nr] != OKV_ENTRY_NONE;
	}
	while (!writer->is_over) {
		for (uint32_t i = 0; i < nr; i++) {
			__atomic_store_n(&slots[i]->entry, OKV_ENTRY_NONE, __ATOMIC_RELAXED);
			__atomic_store_n(&slots[i]->nr_tokens, UINT32_MAX / 4, __ATOMIC_RELAXED);
		}
		for (uint32_t i = 0; i < nr; i++) {
			__atomic_store_n(&slots[i]->entry, entries[i], __ATOMIC_RELAXED);
			__atomic_store_n(&slots[i]->nr_tokens, T, __ATOMIC_RELAXED);
		}
	}
	return NULL;
}

static void what_is_written_while_it_is_loaded_is_read_once(void **state)
{
	struct writer writer = { NULL, false };
	struct kv_world world;
	unsigned char *map;
	uint64_t off;
	FILE *file;

	(void)state;
	pool_begin();
	begin(&world);
	tell(&world, 0, 8, false);
	tell(&world, 7, 8, false);
	off = (uint64_t)(world.manager->base - (unsigned char *)omnikv_pool_base(world.pool)) +
	      *okv_pool_catalog_tokens_off(world.manager);
	kv_world_leave(&world);
	file = fopen(path, "r+");
	assert_non_null(file);
	fseek(file, 0, SEEK_END);
	map = mmap(NULL, (size_t)ftell(file), PROT_READ | PROT_WRITE, MAP_SHARED, fileno(file), 0);
	assert_true(map != MAP_FAILED);
	/* The file's own head is before the memory that has an address. */
	while (off < (uint64_t)ftell(file) && ((struct okv_tokens_chunk *)(map + off))->magic != OKV_TOKENS_MAGIC)
		off += 4096;
	assert_true(off < (uint64_t)ftell(file));
	writer.chunk = (struct okv_tokens_chunk *)(map + off);
	for (uint32_t trial = 0; trial < 60; trial++) {
		struct count count;
		pthread_t thread;

		writer.is_over = false;
		assert_int_equal(pthread_create(&thread, NULL, write_slots, &writer), 0);
		begin(&world);
		writer.is_over = true;
		pthread_join(thread, NULL);
		count = look(&world);
		assert_int_equal(count.blocks, 16);
		kv_world_leave(&world);
	}
	munmap(map, (size_t)ftell(file));
	fclose(file);
	unlink(path);
}

/* What a watcher is told, one after another. */
struct seen {
	struct okv_watch	watch;
	uint32_t		nr_there;
	uint32_t		nr_ever;
	bool			is_there[4096];
};

static void note(struct okv_watch *watch, const struct omnikv_space *space, uint32_t entry, bool is_there)
{
	struct seen *seen = (struct seen *)watch;
	struct okv_index_info info;

	assert_int_equal(okv_index_get(space->shelf->index, entry, &info), 0);
	assert_true(entry < 4096 && seen->is_there[entry] != is_there);
	assert_true(!is_there || info.parent == OKV_ENTRY_NONE || seen->is_there[info.parent]);
	seen->is_there[entry] = is_there;
	seen->nr_there += is_there ? 1 : -1;
	seen->nr_ever++;
}

static void a_watcher_sees_what_comes_and_goes(void **state)
{
	struct seen *seen = calloc(1, sizeof(*seen));
	struct kv_world world;
	uint64_t seed = 11;

	(void)state;
	assert_non_null(seen);
	seen->watch.changed = note;
	pool_begin();
	begin(&world);
	for (uint32_t n = 0; n < NR_OPS; n++)
		operate(&world, &seed);
	kv_world_leave(&world);
	begin(&world);
	assert_int_equal(okv_manager_watch(world.manager, &seen->watch), 0);
	assert_int_equal(seen->nr_there, stats_of(&world).nr_blocks);
	for (uint32_t n = 0; n < NR_OPS; n++) {
		operate(&world, &seed);
		assert_int_equal(seen->nr_there, stats_of(&world).nr_blocks);
	}
	assert_true(seen->nr_ever > 2 * seen->nr_there);
	assert_true(omnikv_manager_raise_epoch(world.manager) > 0);
	assert_int_equal(seen->nr_there, 0);
	assert_int_equal(okv_manager_watch(world.manager, NULL), 0);
	kv_world_check(&world);
	kv_world_leave(&world);
	free(seen);
	unlink(path);
}

static void a_pool_that_does_not_last_keeps_none(void **state)
{
	const struct omnikv_manager_config unknown = { .size = sizeof(unknown), .flags = 1u << 31 };
	struct omnikv_manager *manager;
	struct omnikv_client *client;
	struct omnikv_error err = { "" };
	struct omnikv_pool *pool;

	(void)state;
	assert_int_equal(omnikv_pool_open("embedded:2M", NULL, &pool, NULL), 0);
	assert_int_equal(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &client), 0);
	assert_int_equal(omnikv_manager_create(client, &with_tokens, &manager, &err), -EOPNOTSUPP);
	assert_non_null(strstr(err.text, "lasts"));
	assert_int_equal(omnikv_manager_create(client, &unknown, &manager, &err), -EINVAL);
	assert_non_null(strstr(err.text, "0x80000000"));
	omnikv_client_close(client);
	omnikv_pool_close(pool);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(they_come_and_go_with_their_blocks),
		cmocka_unit_test(what_never_comes_is_forgotten),
		cmocka_unit_test(what_waits_takes_no_more_memory_than_its_bound),
		cmocka_unit_test(a_kill_at_any_store_leaves_the_right_ones),
		cmocka_unit_test(a_kill_as_memory_goes_back_loses_nothing_else),
		cmocka_unit_test(what_is_damaged_is_not_there),
		cmocka_unit_test(what_is_written_while_it_is_loaded_is_read_once),
		cmocka_unit_test(a_watcher_sees_what_comes_and_goes),
		cmocka_unit_test(a_pool_that_does_not_last_keeps_none),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

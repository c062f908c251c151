// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lookups in the index of another process. At rest they are what the manager's own would be. While the
 * manager commits and evicts as fast as it can, what two readers in processes of their own report as hit is right
 * to the byte, or was withdrawn meanwhile; when the manager is killed in a change they do not hang.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "block.h"
#include "failpoint.h"
#include "manager/catalog.h"
#include "manager/reader.h"
#include "pool_file.h"
#include "tests/harness/kv_world.h"

#define T		4u
#define NR_STORIES	24u
#define BLOCKS_MAX	12u
#define GROUPS_MAX	OMNIKV_GROUPS_MAX

static char path[64], spec[96];

static void pool_begin(const char *size)
{
	snprintf(path, sizeof(path), "/dev/shm/omnikv-reader-XXXXXX");
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

/* Stories begin alike by threes. */
static void make_story(struct kv_story *story, uint32_t number, uint64_t nr_tokens)
{
	memset(story, 0, sizeof(*story));
	while (story->nr_tokens < nr_tokens)
		kv_story_add(story, (story->nr_tokens < 2 * T ? number / 3 : number) * 1000 + (uint32_t)story->nr_tokens);
}

static void tell(const struct kv_world *world, uint32_t number, uint64_t nr_tokens, uint64_t step, bool with_tail)
{
	struct kv_story story;
	struct omnikv_seq *seq;
	uint64_t at;

	make_story(&story, number, nr_tokens);
	seq = kv_open(world, &story, with_tail);
	for (at = omnikv_seq_tokens(seq); at < nr_tokens; at = omnikv_seq_tokens(seq)) {
		uint64_t nr = nr_tokens - at < step ? nr_tokens - at : step;

		if (omnikv_seq_append(seq, nr))
			break;
		kv_store(world, seq, &story, at, at + nr);
		KV_MUST(kv_commit(world, seq, &story, with_tail && at + nr == nr_tokens) >= 0);
	}
	omnikv_seq_close(seq);
	kv_story_free(&story);
}

/* One story through the reader and through the manager. */
static void compare(const struct kv_world *world, const struct okv_reader *reader, const struct okv_reader_space *space,
		    uint32_t number, uint64_t nr_tokens)
{
	uint64_t nr = nr_tokens / T, rest = nr_tokens % T;
	struct omnikv_extent extents[(BLOCKS_MAX + 1) * GROUPS_MAX];
	struct okv_reader_block blocks[BLOCKS_MAX + 1];
	uint32_t crc[(BLOCKS_MAX + 1) * GROUPS_MAX];
	struct omnikv_match *match;
	struct okv_reader_hit hit;
	struct omnikv_key *keys, tail;
	struct kv_story story;

	make_story(&story, number, nr_tokens);
	keys = kv_keys(world, &story, nr);
	if (rest)
		tail = kv_key(world, &story, nr, (uint32_t)rest);
	assert_int_equal(omnikv_match(world->space, keys, nr, rest ? &tail : NULL, &match), 0);
	assert_int_equal(okv_reader_match(reader, space, keys, nr, rest ? &tail : NULL, &hit), 0);
	assert_int_equal(hit.nr_blocks, omnikv_match_blocks(match));
	assert_int_equal(hit.tail_tokens, omnikv_match_tail_tokens(match));
	omnikv_match_put(match);
	for (uint64_t from = 0; from <= hit.nr_blocks; from++) {
		uint64_t count = hit.nr_blocks - from;

		assert_int_equal(okv_reader_blocks(reader, space, &hit, from, blocks, extents, crc), 0);
		assert_true(!count || okv_reader_is_current(reader, space, &hit));
		for (uint64_t i = 0; i < count; i++) {
			bool is_tail = hit.tail_tokens && i == count - 1;
			const struct omnikv_key *key = is_tail ? &tail : &keys[from + i];
			struct omnikv_extent_info info = { .size = sizeof(info) };

			assert_int_equal(blocks[i].position, from + i);
			assert_int_equal(blocks[i].nr_tokens, is_tail ? rest : T);
			assert_memory_equal(&blocks[i].key, key, sizeof(*key));
			for (uint32_t g = 0; g < space->nr_groups; g++) {
				const struct omnikv_extent *extent = &extents[i * space->nr_groups + g];

				if (!extent->nr_granules)
					continue;
				assert_int_equal(omnikv_extent_query(world->client, extent, &info), 0);
				assert_int_equal(info.state, OMNIKV_EXTENT_SEALED);
			}
		}
	}
	assert_int_equal(okv_reader_blocks(reader, space, &hit, hit.nr_blocks + 1, blocks, extents, crc), -EINVAL);
	free(keys);
	kv_story_free(&story);
}

/* Keys that do not chain: the end of one story behind the beginning of another. */
static void compare_joined(const struct kv_world *world, const struct okv_reader *reader,
			   const struct okv_reader_space *space, uint32_t number, uint32_t other, uint64_t nr)
{
	struct okv_reader_hit hit;
	struct omnikv_key *keys, *tail;
	struct kv_story story, behind;

	make_story(&story, number, nr * T);
	make_story(&behind, other, nr * T);
	keys = kv_keys(world, &story, nr);
	tail = kv_keys(world, &behind, nr);
	memcpy(keys + nr / 2, tail + nr / 2, (nr - nr / 2) * sizeof(*keys));
	assert_int_equal(okv_reader_match(reader, space, keys, nr, NULL, &hit), 0);
	assert_int_equal(hit.nr_blocks, omnikv_lookup(world->space, keys, nr));
	free(keys);
	free(tail);
	kv_story_free(&story);
	kv_story_free(&behind);
}

static void reader_open(const struct kv_world *world, const void *base, struct okv_reader *reader,
			struct okv_reader_space *space)
{
	uint64_t bytes = omnikv_pool_granule_bytes(world->pool);
	struct omnikv_pool_info info = { .size = sizeof(info) };
	uint8_t identity[32];

	KV_MUST(omnikv_pool_info(world->pool, &info) == 0);
	bytes *= info.nr_granules;
	KV_MUST(okv_reader_init(reader, base, bytes, okv_pool_catalog_root_off(world->manager)) == 0);
	KV_MUST(omnikv_namespace_identity(&world->ns, identity) == 0);
	KV_MUST(okv_reader_space(reader, identity, space) == 0);
}

static void at_rest_it_answers_as_the_manager_does(void **state)
{
	static const enum kv_shape shapes[] = { KV_SHAPE_FULL, KV_SHAPE_MIXED, KV_SHAPE_HYBRID };
	uint8_t identity[32] = { 1 };

	(void)state;
	for (uint32_t s = 0; s < 3; s++) {
		struct okv_reader_space space, unknown;
		struct okv_reader reader;
		struct kv_world world;
		uint64_t seed = s;

		pool_begin("768K");
		kv_world_open_pool(&world, shapes[s], T, spec);
		reader_open(&world, omnikv_pool_base(world.pool), &reader, &space);
		assert_int_equal(space.nr_groups, world.plan.layout.nr_groups);
		assert_int_equal(space.block_tokens, T);
		assert_int_equal(okv_reader_space(&reader, identity, &unknown), -ENOENT);
		assert_int_equal(okv_reader_init(&reader, reader.base, reader.bytes, reader.bytes), -EINVAL);
		assert_int_equal(okv_reader_init(&reader, reader.base, reader.bytes, 8), -EINVAL);
		assert_int_equal(okv_reader_epoch(&reader), 0);
		assert_int_equal(okv_pool_catalog_raise_epoch(world.manager, 3), 0);
		assert_int_equal(okv_pool_catalog_raise_epoch(world.manager, 3), -EINVAL);
		assert_int_equal(okv_reader_epoch(&reader), 3);
		for (uint32_t n = 0; n < 60; n++) {
			uint64_t nr_tokens = 1 + kv_random(&seed) % (BLOCKS_MAX * T);

			if (shapes[s] == KV_SHAPE_MIXED)
				nr_tokens = (nr_tokens + T - 1) / T * T;
			tell(&world, (uint32_t)(kv_random(&seed) % NR_STORIES), nr_tokens, n % 2 ? T : nr_tokens, n % 3);
			for (uint32_t i = 0; i < NR_STORIES; i += 1 + n % 3)
				compare(&world, &reader, &space, i, 1 + kv_random(&seed) % (BLOCKS_MAX * T));
			for (uint32_t i = 0; i < NR_STORIES && shapes[s] != KV_SHAPE_MIXED; i += 2)
				compare_joined(&world, &reader, &space, i, kv_random(&seed) % NR_STORIES, BLOCKS_MAX);
		}
		kv_world_check(&world);
		kv_world_leave(&world);

		/* A later manager: same root, same namespace, and what was hit before is looked up anew. */
		kv_world_open_pool(&world, shapes[s], T, spec);
		assert_int_equal(okv_pool_catalog_epoch(world.manager), 3);
		reader_open(&world, omnikv_pool_base(world.pool), &reader, &space);
		for (uint32_t i = 0; i < NR_STORIES; i++)
			compare(&world, &reader, &space, i, BLOCKS_MAX * T);
		kv_world_leave(&world);
		unlink(path);
	}
}

/* ---- readers in other processes ------------------------------------------------------------- */

#define NR_READERS	2u

/* What readers count, and when they are to stop; seen by all. */
struct counts {
	uint32_t	is_over;
	uint32_t	nr_ready;
	uint64_t	nr_matches[NR_READERS];
	uint64_t	nr_blocks[NR_READERS];		/* compared to the byte, and still there after it */
	uint64_t	nr_withdrawn[NR_READERS];	/* hits that were gone when they were to be used */
	uint64_t	nr_again[NR_READERS];		/* -EAGAIN */
};

/* Checksums of the bytes that each story's blocks must have. */
struct expected {
	uint32_t	crc[NR_STORIES][BLOCKS_MAX];
};

static uint32_t block_crc(const struct kv_world *world, const unsigned char *base, const struct omnikv_extent *extent)
{
	return okv_block_crc(&world->plan, 0, okv_block_entries(&world->plan, 0, T),
			     base + extent->granule * world->plan.granule_bytes);
}

/* Tell each story once, compare its bytes with the story, and note their sums. */
static void expect(const struct kv_world *world, struct expected *expected)
{
	for (uint32_t n = 0; n < NR_STORIES; n++) {
		struct kv_story story;
		struct omnikv_seq *seq;
		const char *wrong;

		tell(world, n, BLOCKS_MAX * T, BLOCKS_MAX * T, false);
		make_story(&story, n, BLOCKS_MAX * T);
		seq = kv_open(world, &story, false);
		KV_MUST(omnikv_seq_tokens(seq) == BLOCKS_MAX * T);
		wrong = kv_compare(world, seq, &story, 0, BLOCKS_MAX * T);
		if (wrong)
			kv_fail(wrong, __FILE__, __LINE__);
		for (uint32_t b = 0; b < BLOCKS_MAX; b++) {
			struct omnikv_piece piece;

			KV_MUST(omnikv_seq_pieces(seq, 0, 0, 0, b * T, b * T + T, 0, &piece, 1) == 1);
			expected->crc[n][b] = block_crc(world, omnikv_pool_base(world->pool), &piece.extent);
		}
		omnikv_seq_close(seq);
		kv_story_free(&story);
	}
}

/* The pool's data as another process maps it. */
static const unsigned char *map_data(uint64_t *bytes)
{
	struct okv_pool_header header;
	const unsigned char *map;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	KV_MUST(fd >= 0 && read(fd, &header, sizeof(header)) == sizeof(header));
	map = mmap(NULL, header.data_off + header.data_bytes, PROT_READ, MAP_SHARED, fd, 0);
	KV_MUST(map != MAP_FAILED);
	close(fd);
	*bytes = header.nr_granules * header.granule_bytes;
	return map + header.data_off;
}

/* Match stories of any length until it is over; what hits must be right, or be withdrawn when looked at again. */
static void read_on(const struct kv_world *world, uint64_t root_off, const struct expected *expected, uint32_t me,
		    struct counts *counts)
{
	struct omnikv_extent extents[BLOCKS_MAX * GROUPS_MAX];
	struct okv_reader_block blocks[BLOCKS_MAX];
	uint32_t crc[BLOCKS_MAX * GROUPS_MAX];
	struct omnikv_key *keys[NR_STORIES];
	struct okv_reader_space space;
	struct okv_reader reader;
	const unsigned char *base;
	uint8_t identity[32];
	uint64_t bytes, seed = me;

	base = map_data(&bytes);
	KV_MUST(okv_reader_init(&reader, base, bytes, root_off) == 0);
	KV_MUST(omnikv_namespace_identity(&world->ns, identity) == 0);
	KV_MUST(okv_reader_space(&reader, identity, &space) == 0);
	for (uint32_t n = 0; n < NR_STORIES; n++) {
		struct kv_story story;

		make_story(&story, n, BLOCKS_MAX * T);
		keys[n] = kv_keys(world, &story, BLOCKS_MAX);
		kv_story_free(&story);
	}
	__atomic_fetch_add(&counts->nr_ready, 1, __ATOMIC_RELEASE);
	while (!__atomic_load_n(&counts->is_over, __ATOMIC_ACQUIRE)) {
		uint32_t n = kv_random(&seed) % NR_STORIES, nr = 1 + kv_random(&seed) % BLOCKS_MAX;
		struct okv_reader_hit hit;
		bool was_right = true;
		int ret;

		counts->nr_matches[me]++;
		ret = okv_reader_match(&reader, &space, keys[n], nr, NULL, &hit);
		if (ret == -EAGAIN) {
			counts->nr_again[me]++;
			continue;
		}
		KV_MUST(ret == 0 && hit.nr_blocks <= nr);
		ret = okv_reader_blocks(&reader, &space, &hit, 0, blocks, extents, crc);
		if (ret == -ESTALE) {
			counts->nr_withdrawn[me]++;
			continue;
		}
		KV_MUST(ret == 0);
		for (uint32_t b = 0; b < hit.nr_blocks; b++) {
			KV_MUST(!memcmp(&blocks[b].key, &keys[n][b], sizeof(keys[n][b])));
			KV_MUST(crc[b * space.nr_groups] == expected->crc[n][b]);
			was_right = was_right && block_crc(world, base, &extents[b * space.nr_groups]) == expected->crc[n][b];
		}
		if (!hit.nr_blocks)
			continue;
		if (okv_reader_is_current(&reader, &space, &hit)) {
			KV_MUST(was_right);
			counts->nr_blocks[me] += hit.nr_blocks;
		} else {
			counts->nr_withdrawn[me]++;
		}
	}
	_exit(0);
}

static void hits_of_other_processes_are_right(void **state)
{
	static const enum kv_shape shapes[] = { KV_SHAPE_FULL, KV_SHAPE_MIXED };

	(void)state;
	for (uint32_t s = 0; s < 2; s++) {
		struct expected *expected = calloc(1, sizeof(*expected));
		pid_t pids[NR_READERS];
		struct counts *counts;
		struct kv_world world;
		struct timespec begin, now;
		uint64_t seed = 3, nr = 0, root_off;
		int status;

		assert_non_null(expected);
		pool_begin(s ? "1M" : "640K");
		counts = mmap(NULL, sizeof(*counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		assert_true(counts != MAP_FAILED);
		kv_world_open_pool(&world, shapes[s], T, spec);
		expect(&world, expected);
		/* Not all stories fit at once. */
		assert_true(stats_of(&world).blocks_evicted > 0);
		root_off = okv_pool_catalog_root_off(world.manager);
		for (uint32_t i = 0; i < NR_READERS; i++) {
			pids[i] = fork();
			assert_true(pids[i] >= 0);
			if (!pids[i])
				read_on(&world, root_off, expected, i, counts);
		}
		while (__atomic_load_n(&counts->nr_ready, __ATOMIC_ACQUIRE) < NR_READERS)
			usleep(1000);
		clock_gettime(CLOCK_MONOTONIC, &begin);
		do {
			tell(&world, kv_random(&seed) % NR_STORIES, T * (1 + kv_random(&seed) % BLOCKS_MAX), BLOCKS_MAX * T, false);
			nr++;
			clock_gettime(CLOCK_MONOTONIC, &now);
		} while (now.tv_sec - begin.tv_sec < 2);
		__atomic_store_n(&counts->is_over, 1, __ATOMIC_RELEASE);
		for (uint32_t i = 0; i < NR_READERS; i++) {
			assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
			assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
			print_message("# %llu stories told; reader %u: %llu matches, %llu blocks right, %llu withdrawn, %llu again\n",
				      (unsigned long long)nr, i, (unsigned long long)counts->nr_matches[i],
				      (unsigned long long)counts->nr_blocks[i], (unsigned long long)counts->nr_withdrawn[i],
				      (unsigned long long)counts->nr_again[i]);
			assert_true(counts->nr_blocks[i] > 0);
		}
		kv_world_check(&world);
		kv_world_close(&world);
		munmap(counts, sizeof(*counts));
		free(expected);
		unlink(path);
	}
}

/* The manager dies while a bucket changes: whoever comes by there is told, and nobody waits. */
static void a_writer_killed_in_a_change_blocks_nobody(void **state)
{
	struct counts *counts;
	uint32_t nr_again = 0;
	uint64_t *root_off;
	int status;
	pid_t pid;

	(void)state;
	pool_begin("640K");
	counts = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	assert_true(counts != MAP_FAILED);
	root_off = &counts->nr_matches[0];
	for (uint32_t nth = 1; nth < 40; nth += 3) {
		struct okv_reader_space space;
		struct okv_reader reader;
		struct kv_world world;
		const unsigned char *base;
		uint64_t bytes;
		uint8_t identity[32];

		unlink(path);
		pid = fork();
		assert_true(pid >= 0);
		if (!pid) {
			kv_world_open_pool(&world, KV_SHAPE_FULL, T, spec);
			*root_off = okv_pool_catalog_root_off(world.manager);
			KV_MUST(okv_failpoint_arm(&(struct okv_failpoint){ .name = "index.slot_changing", .nth = nth,
									   .flags = OKV_FAILPOINT_F_KILL }) == 0);
			for (uint32_t n = 0; n < NR_STORIES; n++)
				tell(&world, n, BLOCKS_MAX * T, T, false);
			_exit(1);
		}
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);

		base = map_data(&bytes);
		assert_int_equal(okv_reader_init(&reader, base, bytes, *root_off), 0);
		kv_world_open(&world, KV_SHAPE_FULL, T, 4);
		assert_int_equal(omnikv_namespace_identity(&world.ns, identity), 0);
		assert_int_equal(okv_reader_space(&reader, identity, &space), 0);
		for (uint32_t n = 0; n < NR_STORIES; n++) {
			struct okv_reader_hit hit;
			struct omnikv_key *keys;
			struct kv_story story;
			int ret;

			make_story(&story, n, BLOCKS_MAX * T);
			keys = kv_keys(&world, &story, BLOCKS_MAX);
			ret = okv_reader_match(&reader, &space, keys, BLOCKS_MAX, NULL, &hit);
			assert_true(ret == 0 || ret == -EAGAIN);
			nr_again += ret == -EAGAIN;
			free(keys);
			kv_story_free(&story);
		}
		kv_world_close(&world);
	}
	print_message("# %u matches came by a bucket that stays in a change\n", nr_again);
	assert_true(nr_again > 0);
	munmap(counts, 4096);
	unlink(path);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(at_rest_it_answers_as_the_manager_does),
		cmocka_unit_test(hits_of_other_processes_are_right),
		cmocka_unit_test(a_writer_killed_in_a_change_blocks_nobody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

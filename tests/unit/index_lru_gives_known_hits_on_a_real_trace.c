// SPDX-License-Identifier: GPL-2.0-only
/*
 * Leaf-first LRU on a real trace of conversations (Mooncake, FAST'25): the hits for several
 * capacities are those that an independent simulation of the rule gives, and within 1 % of plain
 * LRU's. Without the trace (OMNIKV_DATA, or ../shared/data) the test is skipped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "manager/index.h"

#ifndef OMNIKV_DATA_DEFAULT
#define OMNIKV_DATA_DEFAULT "../shared/data"
#endif
#define PATH_MAX_BLOCKS 1024u

struct trace {
	uint32_t	*ids;		/* all requests', one after another */
	uint32_t	*first;		/* [nr + 1] */
	uint32_t	nr;
};

static FILE *trace_open(void)
{
	const char *dir = getenv("OMNIKV_DATA");
	char path[4096];

	snprintf(path, sizeof(path), "%s/traces/conversation_trace.jsonl", dir ? dir : OMNIKV_DATA_DEFAULT);
	return fopen(path, "r");
}

static void trace_read(FILE *file, struct trace *t)
{
	size_t room = 400000, nr_ids = 0, len = 0;
	char *line = NULL, *at;

	t->ids = malloc(room * sizeof(*t->ids));
	t->first = malloc(20000 * sizeof(*t->first));
	assert_non_null(t->ids);
	assert_non_null(t->first);
	t->nr = 0;
	while (getline(&line, &len, file) > 0 && t->nr < 19999) {
		at = strstr(line, "\"hash_ids\": [");
		assert_non_null(at);
		at += strlen("\"hash_ids\": [");
		t->first[t->nr++] = (uint32_t)nr_ids;
		while (*at != ']') {
			assert_true(nr_ids < room);
			t->ids[nr_ids++] = (uint32_t)strtoul(at, &at, 10);
			while (*at == ',' || *at == ' ')
				at++;
		}
	}
	t->first[t->nr] = (uint32_t)nr_ids;
	free(line);
}

static uint64_t play(const struct trace *t, size_t capacity)
{
	static struct omnikv_key keys[PATH_MAX_BLOCKS];
	struct okv_index_config config = { .nr_groups = 1, .block_tokens = 512, .seed = "trace" };
	const char *reason = "";
	struct okv_index *ix;
	uint64_t nr_hit = 0;
	size_t nr_held = 0;
	uint32_t r, i;

	assert_int_equal(okv_index_create(&config, &ix), 0);
	for (r = 0; r < t->nr; r++) {
		uint32_t nr = t->first[r + 1] - t->first[r];
		struct okv_index_hit hit;
		uint32_t parent;

		assert_true(nr <= PATH_MAX_BLOCKS);
		memset(keys, 0, nr * sizeof(*keys));
		for (i = 0; i < nr; i++) {
			memcpy(keys[i].bytes, &t->ids[t->first[r] + i], 4);
			keys[i].len = 8;
		}
		okv_index_match(ix, 0, keys, nr, 0, &hit);
		nr_hit += hit.nr_blocks;
		parent = hit.entry;
		if (parent != OKV_ENTRY_NONE)
			okv_index_touch(ix, parent);
		for (i = (uint32_t)hit.nr_blocks; i < nr; i++) {
			struct omnikv_extent extent;
			uint32_t crc = 0;
			struct okv_index_block block = { .parent = parent, .position = i, .nr_tokens = 512,
				.key = &keys[i], .extents = &extent, .crc32c = &crc };

			/* As a sequence does: its own path is leased while it makes room. */
			if (nr_held == capacity) {
				if (parent != OKV_ENTRY_NONE)
					assert_int_equal(okv_index_pin(ix, parent), 0);
				assert_int_equal(okv_index_evict(ix, 1, &extent, NULL), 1);
				if (parent != OKV_ENTRY_NONE)
					okv_index_unpin(ix, parent);
				nr_held--;
			}
			extent = (struct omnikv_extent){ .granule = i, .generation = 1, .nr_granules = 1 };
			assert_int_equal(okv_index_insert(ix, &block, &parent), 0);
			nr_held++;
		}
	}
	if (okv_index_check(ix, &reason))
		fail_msg("%s", reason);
	okv_index_destroy(ix);
	return nr_hit;
}

static void known_hits(void **state)
{
	static const struct {
		size_t		capacity;
		uint64_t	nr_hit, nr_hit_plain_lru;
	} cases[] = {
		{ 4096, 25350, 25259 },
		{ 16384, 76632, 76613 },
		{ 32768, 96618, 96618 },
		{ 65536, 103701, 103701 },
		{ SIZE_MAX, 105710, 105710 },
	};
	FILE *file = trace_open();
	struct trace t;
	size_t i;

	(void)state;
	if (!file) {
		print_message("# conversation_trace.jsonl is not there (OMNIKV_DATA)\n");
		skip();
	}
	trace_read(file, &t);
	fclose(file);
	assert_int_equal(t.first[t.nr], 288500);
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t nr = play(&t, cases[i].capacity);
		int64_t off = (int64_t)nr - (int64_t)cases[i].nr_hit_plain_lru;

		print_message("# %zu blocks: %llu hits\n", cases[i].capacity, (unsigned long long)nr);
		assert_int_equal(nr, cases[i].nr_hit);
		assert_true(llabs(off) * 100 <= (int64_t)nr);
	}
	free(t.ids);
	free(t.first);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(known_hits) };

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Built-in workloads: the hits of a cache that never evicts, at the default seed. The numbers come from
 * a second implementation of the recipe, tests/cli/workload_model.py.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tools/omnikv/workload.h"

struct entry {
	uint64_t	word;
	uint32_t	tokens;
};

static int entry_cmp(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	if (x->word != y->word)
		return x->word < y->word ? -1 : 1;
	return (x->tokens > y->tokens) - (x->tokens < y->tokens);
}

/* The first request (in playing order) that stores each key; a key of an earlier one is a hit. */
static void play(const char *name, uint32_t block_tokens, const uint64_t expected[5])
{
	uint64_t prompt_tokens = 0, referenced = 0, hit = 0, tokens_hit = 0;
	struct entry *cache, key;
	struct okv_trace trace;
	size_t nr = 0, i;
	uint32_t b;

	okv_trace_init(&trace, block_tokens);
	assert_int_equal(okv_workload_make(name, OKV_WORKLOAD_SEED, &trace), 0);
	cache = calloc(trace.nr_words, sizeof(*cache));
	assert_non_null(cache);
	for (i = 0; i < trace.nr_requests; i++) {
		const struct okv_request *req = &trace.requests[i];
		uint32_t nr_lookup = (req->lookup_tokens + block_tokens - 1) / block_tokens;

		assert_true(!i || trace.requests[i - 1].time_ns <= req->time_ns);
		assert_true(req->lookup_tokens <= req->nr_tokens);
		for (b = 0; b < nr_lookup; b++) {
			key.word = trace.words[req->first_word + b];
			key.tokens = b + 1 < nr_lookup || req->lookup_tokens % block_tokens == 0 ?
				block_tokens : req->lookup_tokens % block_tokens;
			if (!bsearch(&key, cache, nr, sizeof(key), entry_cmp))
				break;
			hit++;
			tokens_hit += key.tokens;
		}
		for (b = 0; b < req->nr_blocks; b++) {
			cache[nr].word = trace.words[req->first_word + b];
			cache[nr++].tokens = okv_request_block_tokens(&trace, req, b);
		}
		qsort(cache, nr, sizeof(*cache), entry_cmp);
		prompt_tokens += req->nr_tokens;
		referenced += req->nr_blocks;
	}
	assert_int_equal(trace.nr_requests, expected[0]);
	assert_int_equal(prompt_tokens, expected[1]);
	assert_int_equal(referenced, expected[2]);
	assert_int_equal(hit, expected[3]);
	assert_int_equal(tokens_hit, expected[4]);
	free(cache);
	okv_trace_fini(&trace);
}

static void chat(void **state)
{
	(void)state;
	play("chat", 512, (const uint64_t []) { 310, 1287743, 2663, 1984, 1015808 });
}

static void agent(void **state)
{
	(void)state;
	play("agent", 512, (const uint64_t []) { 187, 3101701, 6156, 5679, 2861361 });
}

static void another_seed_is_another_workload(void **state)
{
	struct okv_trace a, b;

	(void)state;
	okv_trace_init(&a, 512);
	okv_trace_init(&b, 512);
	assert_int_equal(okv_workload_make("chat", 1, &a), 0);
	assert_int_equal(okv_workload_make("chat", 2, &b), 0);
	assert_true(a.nr_requests != b.nr_requests || a.requests[0].nr_tokens != b.requests[0].nr_tokens);
	okv_trace_fini(&a);
	okv_trace_fini(&b);
	assert_int_equal(okv_workload_make("nonesuch", 1, &a), -ENOENT);
	assert_non_null(strstr(okv_workload_names(), "agent"));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(chat),
		cmocka_unit_test(agent),
		cmocka_unit_test(another_seed_is_another_workload),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

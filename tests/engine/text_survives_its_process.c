// SPDX-License-Identifier: GPL-2.0-only
/*
 * KV that left memory: spilled and fetched, read by another process, and after an engine was killed in
 * the middle of decoding. Text and logits are those of plain arrays, to the bit.
 *
 * What outlives a process here is the spill store; each process has a pool and a manager of its own.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/harness/llm_case.h"

static struct llm_case cases[LLM_NR_CASES];
static char path[4096];

static struct omnikv_spill *store_open(void)
{
	struct omnikv_spill_config config = { .size = sizeof(config), .capacity_bytes = 64 << 20, .floor_bytes = 1 << 20 };
	struct omnikv_error err = { "" };
	struct omnikv_spill *spill;
	int ret = omnikv_spill_open(path, &config, &spill, &err);

	if (ret)
		fail_msg("%s: %d, %s", path, ret, err.text);
	return spill;
}

static void store_begin(void)
{
	const char *dir = getenv("TMPDIR");

	snprintf(path, sizeof(path), "%s/llm-spill-%d.store", dir ? dir : "/tmp", (int)getpid());
	unlink(path);
}

static struct llm_config config_of(const struct llm_case *c, struct omnikv_spill *spill)
{
	struct llm_config config = llm_case_config(c, "sim", 2);

	config.spill = spill;
	return config;
}

/* Compute up to @end in steps of a block, committing each. */
static void advance(struct llm_engine *e, const struct llm_case *c, struct llm_seq *s, uint64_t end)
{
	memcpy(s->tokens, c->tokens, c->nr_tokens * sizeof(*c->tokens));
	while (s->nr_done < end) {
		s->nr_new = end - s->nr_done < 16 ? (uint32_t)(end - s->nr_done) : 16;
		assert_int_equal(llm_step(e, s, 1, NULL, NULL, NULL), 0);
		llm_case_compare(c, s, s->nr_new);
		assert_true(llm_seq_commit(e, s, false) >= 0);
	}
}

static void over_cases(void (*one)(struct llm_case *c))
{
	for (uint32_t i = 0; i < LLM_NR_CASES; i++) {
		if (cases[i].is_absent) {
			print_message("# %s: its files are not there, see OMNIKV_DATA\n", cases[i].name);
			continue;
		}
		print_message("# %s\n", cases[i].name);
		store_begin();
		one(&cases[i]);
		unlink(path);
	}
}

static void one_spill(struct llm_case *c)
{
	struct omnikv_manager_stats stats = { .size = sizeof(stats) };
	struct omnikv_spill *spill = store_open();
	struct llm_config config = config_of(c, spill);
	struct llm_engine e;
	struct llm_seq s;

	llm_engine_open(&e, &config);
	llm_seq_open(&e, &s, c->tokens, 0, c->nr_tokens, 40);
	advance(&e, c, &s, 96);
	llm_seq_close(&s);
	assert_true(omnikv_manager_flush(e.manager) >= 6);
	llm_seq_open(&e, &s, c->tokens, 120, c->nr_tokens, 40);
	assert_int_equal(s.nr_done, 96);
	assert_int_equal(omnikv_seq_nvme_blocks(s.seq), 6);
	advance(&e, c, &s, c->nr_tokens);
	llm_seq_close(&s);
	assert_int_equal(omnikv_manager_stats(e.manager, &stats), 0);
	assert_int_equal(stats.blocks_hit_nvme, 6);
	llm_engine_close(&e);
	omnikv_spill_close(spill);
}

static void blocks_that_were_spilled_come_back_right(void **state)
{
	(void)state;
	over_cases(one_spill);
}

/* In a child: what fails there ends it with 1. */
static pid_t child(const struct llm_case *c, void (*run)(const struct llm_case *c))
{
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		run(c);
		_exit(0);
	}
	return pid;
}

static void child_prefill(const struct llm_case *c)
{
	struct omnikv_spill *spill = store_open();
	struct llm_config config = config_of(c, spill);
	struct llm_engine e;
	struct llm_seq s;

	llm_engine_open(&e, &config);
	llm_seq_open(&e, &s, c->tokens, 0, c->nr_tokens, 40);
	advance(&e, c, &s, 96);
	llm_seq_close(&s);
	omnikv_manager_flush(e.manager);
	llm_engine_close(&e);
	omnikv_spill_close(spill);
}

static void one_other_process(struct llm_case *c)
{
	struct omnikv_spill *spill;
	struct llm_config config;
	struct llm_engine e;
	struct llm_seq s;
	int status;

	waitpid(child(c, child_prefill), &status, 0);
	assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
	spill = store_open();
	config = config_of(c, spill);
	llm_engine_open(&e, &config);
	llm_seq_open(&e, &s, c->tokens, 120, c->nr_tokens, 40);
	assert_int_equal(s.nr_done, 96);
	advance(&e, c, &s, c->nr_tokens);
	llm_seq_close(&s);
	llm_engine_close(&e);
	omnikv_spill_close(spill);
}

static void a_prefix_of_another_process_gives_the_logits_of_plain_arrays(void **state)
{
	(void)state;
	over_cases(one_other_process);
}

/* Decodes for ever, giving all that is committed to the store now and then. */
static void child_decode(const struct llm_case *c)
{
	struct omnikv_spill *spill = store_open();
	struct llm_config config = config_of(c, spill);
	struct llm_engine e;
	struct llm_seq s;

	llm_engine_open(&e, &config);
	for (;;) {
		llm_seq_open(&e, &s, c->tokens, c->nr_tokens - 1, c->nr_tokens, 40);
		/* One block further each time, so that the kill finds it in the middle. */
		advance(&e, c, &s, s.nr_done + 16 < c->nr_tokens ? s.nr_done + 16 : c->nr_tokens);
		llm_seq_close(&s);
		omnikv_manager_flush(e.manager);
	}
}

static void one_kill(struct llm_case *c)
{
	uint64_t most = 0;
	uint32_t round;

	for (round = 0; round < 4; round++) {
		pid_t pid = child(c, child_decode);
		struct omnikv_spill *spill;
		struct llm_config config;
		struct llm_engine e;
		struct llm_seq s;
		int status;

		usleep(15000 + 30000 * round);
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
		assert_true(WIFSIGNALED(status));
		/* Resume, greedily, from whatever is there. */
		spill = store_open();
		config = config_of(c, spill);
		llm_engine_open(&e, &config);
		llm_seq_open(&e, &s, c->tokens, c->nr_tokens - 1, c->nr_tokens, 40);
		if (s.nr_done > most)
			most = s.nr_done;
		advance(&e, c, &s, c->nr_tokens);
		llm_seq_close(&s);
		llm_engine_close(&e);
		omnikv_spill_close(spill);
		if (round < 3)
			unlink(path);
	}
	print_message("# resumed behind up to %llu tokens\n", (unsigned long long)most);
}

static void an_engine_killed_in_mid_decode_resumes_with_the_same_text(void **state)
{
	(void)state;
	over_cases(one_kill);
}

static int make(void **state)
{
	(void)state;
	llm_cases_make(cases);
	return 0;
}

static int drop(void **state)
{
	(void)state;
	llm_cases_free(cases);
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(blocks_that_were_spilled_come_back_right),
		cmocka_unit_test(a_prefix_of_another_process_gives_the_logits_of_plain_arrays),
		cmocka_unit_test(an_engine_killed_in_mid_decode_resumes_with_the_same_text),
	};

	return cmocka_run_group_tests(tests, make, drop);
}

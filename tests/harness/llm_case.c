/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Models for tests of the whole stack: shapes, greedy runs on plain arrays, comparison.
 *
 * What it promises stands in llm_case.h. The trained model's files are found below OMNIKV_DATA, or
 * beside the tree; without them that case is marked absent. One thread.
 */
#include "llm_case.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"

#define BOS 1u

static const struct llm_shape shapes[LLM_NR_CASES] = {
	[LLM_CASE_GQA] = { .dim = 24, .hidden = 40, .nr_layers = 3, .heads = 6, .kv_heads = 2, .head_dim = 4, .vocab = 61 },
	[LLM_CASE_LATENT] = { .dim = 24, .hidden = 40, .nr_layers = 3, .heads = 4, .kv_heads = 4, .head_dim = 6, .vocab = 61,
			      .latent = 10, .rope = 4, .kinds = { LLM_LATENT, LLM_LATENT, LLM_LATENT } },
	[LLM_CASE_WINDOW] = { .dim = 24, .hidden = 40, .nr_layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 6, .vocab = 61,
			      .window = 40, .kinds = { LLM_WINDOW, LLM_FULL, LLM_WINDOW, LLM_FULL } },
	[LLM_CASE_HYBRID] = { .dim = 24, .hidden = 40, .nr_layers = 4, .heads = 4, .kv_heads = 2, .head_dim = 6, .vocab = 61,
			      .kinds = { LLM_STATE, LLM_FULL, LLM_STATE, LLM_FULL } },
};
static const char *const names[LLM_NR_CASES] = { "stories260K", "gqa", "latent", "window", "hybrid" };

static void data_path(char *path, size_t max, const char *name)
{
	const char *data = getenv("OMNIKV_DATA");

	snprintf(path, max, "%s/models/stories260K/%s", data ? data : "../shared/data", name);
}

/* The greedy run on plain arrays. */
static void case_run(struct llm_case *c, uint64_t nr_tokens)
{
	uint32_t vocab = c->model.shape.vocab;
	struct llm_plain plain;
	uint64_t t;

	c->nr_tokens = nr_tokens;
	c->logits = calloc(nr_tokens * vocab, sizeof(float));
	assert_non_null(c->logits);
	llm_plain_init(&plain, &c->model, nr_tokens);
	for (t = 0; t < nr_tokens; t++) {
		llm_plain_step(&plain, c->tokens[t], c->logits + t * vocab);
		if (t + 1 >= c->nr_prompt && t + 1 < nr_tokens)
			c->tokens[t + 1] = llm_argmax(c->logits + t * vocab, vocab);
	}
	llm_plain_free(&plain);
}

/* The text that llama2.c prints: 200 tokens behind the first. */
static void stories_check(const struct llm_case *c)
{
	char path[4096], text[4096], want[4096];
	uint32_t next, before;
	size_t len = 0, n;
	struct llm_vocab vocab;
	FILE *file;
	uint64_t t;

	data_path(path, sizeof(path), "tok512.bin");
	assert_int_equal(llm_vocab_load(&vocab, path, c->model.shape.vocab), 0);
	for (t = 0; t < c->nr_tokens; t++) {
		before = c->tokens[t];
		next = t + 1 < c->nr_tokens ? c->tokens[t + 1] :
					      llm_argmax(c->logits + t * c->model.shape.vocab, c->model.shape.vocab);
		len += llm_vocab_text(&vocab, before, next, text + len, sizeof(text) - len);
	}
	llm_vocab_free(&vocab);
	data_path(path, sizeof(path), "expected-greedy-200.txt");
	file = fopen(path, "rb");
	assert_non_null(file);
	n = fread(want, 1, sizeof(want), file);
	fclose(file);
	/* The file may end with a line feed of its own. */
	if (n == len + 1 && want[n - 1] == '\n')
		n--;
	assert_int_equal(n, len);
	assert_memory_equal(text, want, len);
}

void llm_cases_make(struct llm_case cases[LLM_NR_CASES])
{
	char path[4096];
	uint32_t i, t;

	memset(cases, 0, LLM_NR_CASES * sizeof(*cases));
	for (i = 0; i < LLM_NR_CASES; i++) {
		struct llm_case *c = &cases[i];

		c->name = names[i];
		c->tokens = calloc(256, sizeof(*c->tokens));
		assert_non_null(c->tokens);
		if (i == LLM_CASE_STORIES) {
			data_path(path, sizeof(path), "stories260K.bin");
			c->is_absent = llm_model_load(&c->model, path) != 0;
			if (c->is_absent)
				continue;
			c->tokens[0] = BOS;
			c->nr_prompt = 1;
			case_run(c, 200);
			stories_check(c);
			continue;
		}
		llm_model_random(&c->model, &shapes[i], 1000 + i);
		c->nr_prompt = 75;
		for (t = 0; t < c->nr_prompt; t++)
			c->tokens[t] = (t * t * 7 + t / 3 + i) % c->model.shape.vocab;
		case_run(c, 140);
	}
}

void llm_cases_free(struct llm_case cases[LLM_NR_CASES])
{
	for (uint32_t i = 0; i < LLM_NR_CASES; i++) {
		llm_model_free(&cases[i].model);
		free(cases[i].tokens);
		free(cases[i].logits);
	}
}

struct llm_config llm_case_config(const struct llm_case *c, const char *device, uint32_t nr_slots)
{
	return (struct llm_config){
		.device = device, .model = &c->model, .block_tokens = 16, .pool_spec = "8M", .nr_slots = nr_slots,
		.slot_tokens = 512, .layer_ns = 1000, .verify = true,
		.device_config = { .flags = OMNIKV_DEVICE_F_SHUFFLE | OMNIKV_DEVICE_F_POISON, .late_ns = 20000, .seed = 3 },
	};
}

void llm_over_everything(struct llm_case *cases, void (*one)(struct llm_case *c, const struct llm_config *config))
{
	static const char *const devices[] = { "host", "sim", "cuda", "sim:kernels" };
	uint32_t i, d, r;

	for (i = 0; i < LLM_NR_CASES; i++) {
		if (cases[i].is_absent) {
			print_message("# %s: its files are not there, see OMNIKV_DATA\n", cases[i].name);
			continue;
		}
		/* The GPU's code on the CPU is slow: one model is enough. */
		for (d = 0; d < (okv_kernels_shim && i == LLM_CASE_GQA ? 4 : 3); d++) {
			for (r = d == 3 ? 2 : 1; r <= 2; r++) {
				struct llm_config config = llm_case_config(&cases[i], devices[d], r);

				print_message("# %s, %s, %u slots\n", cases[i].name, devices[d], r);
				one(&cases[i], &config);
			}
		}
	}
}

void llm_case_compare(const struct llm_case *c, const struct llm_seq *seq, uint32_t nr)
{
	uint32_t vocab = c->model.shape.vocab, i;

	for (i = 0; i < nr; i++) {
		uint64_t pos = seq->nr_done - nr + i;
		uint32_t at = seq->nr_new - nr + i;

		if (memcmp(seq->logits + (size_t)at * vocab, c->logits + pos * vocab, vocab * sizeof(float)))
			fail_msg("%s: logits after token %llu differ", c->name, (unsigned long long)pos);
	}
}

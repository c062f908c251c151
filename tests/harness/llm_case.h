/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Models for tests of the whole stack, each with what plain arrays say of it: the tokens of a
 * greedy run and the logits after every one of them. One thread.
 */
#ifndef LLM_CASE_H
#define LLM_CASE_H

#include "llm_engine.h"

enum { LLM_CASE_STORIES, LLM_CASE_GQA, LLM_CASE_LATENT, LLM_CASE_WINDOW, LLM_CASE_HYBRID, LLM_NR_CASES };

/**
 * @tokens:    [nr_tokens] the prompt, and what follows greedily
 * @logits:    [nr_tokens][vocab] after each of them
 * @is_absent: the trained model's files are not there
 */
struct llm_case {
	const char		*name;
	struct llm_model	model;
	uint64_t		nr_prompt;
	uint64_t		nr_tokens;
	uint32_t		*tokens;
	float			*logits;
	bool			is_absent;
};

/** All of them; asserts that the trained model's text is the expected one. */
void llm_cases_make(struct llm_case cases[LLM_NR_CASES]);
void llm_cases_free(struct llm_case cases[LLM_NR_CASES]);
/**
 * Run @one for every case on devices "host", "sim" (late and shuffled) and "cuda" (the tests' driver), with 1 and 2 slots,
 * and for one case on the simulated one where the GPU's code moves the bytes.
 */
void llm_over_everything(struct llm_case *cases, void (*one)(struct llm_case *c, const struct llm_config *config));
/** A configuration for @c. */
struct llm_config llm_case_config(const struct llm_case *c, const char *device, uint32_t nr_slots);
/** Are the logits of @seq's last step, @nr of them up to position @end, those of @c to the bit? */
void llm_case_compare(const struct llm_case *c, const struct llm_seq *seq, uint32_t nr);

#endif /* LLM_CASE_H */

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Conversations from a seed.
 *
 * The recipe, which a second implementation can follow: draws come from one splitmix64 stream
 * started at the seed; uniform(a, b) is a + next() % (b - a + 1). For each system prompt s in turn
 * draw its tokens. For each conversation c in turn draw: its system prompt, its start (ms), its number of
 * turns; then for each turn: user tokens, reply tokens, gap to the next turn (ms). The prompt of a turn is
 * the system prompt, all earlier user and reply tokens and the turn's user tokens; the last reply of a
 * conversation is nobody's prompt. Block b has the key word (1 << 62 | s << 32 | b) where it lies inside
 * the system prompt, else (2 << 62 | c << 32 | b); requests are ordered by time, then by order of drawing.
 */
#include <errno.h>
#include <string.h>

#include "workload.h"

struct okv_range {
	uint32_t	min;
	uint32_t	max;
};

struct okv_recipe {
	const char		*name;
	uint32_t		nr_systems;
	uint32_t		nr_conversations;
	struct okv_range	system_tokens;
	struct okv_range	start_ms;
	struct okv_range	turns;
	struct okv_range	user_tokens;
	struct okv_range	reply_tokens;
	struct okv_range	gap_ms;
	bool			knows_last;	/* looks its last prompt up, with its tail */
};

static const struct okv_recipe okv_recipes[] = {
	{
		.name			= "chat",
		.nr_systems		= 4,
		.nr_conversations	= 64,
		.system_tokens		= { 1000, 3000 },
		.start_ms		= { 0, 120000 },
		.turns			= { 2, 8 },
		.user_tokens		= { 32, 512 },
		.reply_tokens		= { 64, 768 },
		.gap_ms			= { 5000, 60000 },
	}, {
		.name			= "agent",
		.nr_systems		= 1,
		.nr_conversations	= 12,
		.system_tokens		= { 3000, 5000 },
		.start_ms		= { 0, 60000 },
		.turns			= { 8, 24 },
		.user_tokens		= { 100, 2000 },
		.reply_tokens		= { 50, 400 },
		.gap_ms			= { 1000, 10000 },
		.knows_last		= true,
	},
};

static uint64_t okv_next(uint64_t *state)
{
	uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);

	z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
	return z ^ (z >> 31);
}

static uint32_t okv_uniform(uint64_t *state, struct okv_range range)
{
	return range.min + (uint32_t)(okv_next(state) % (range.max - range.min + 1));
}

const char *okv_workload_names(void)
{
	return "chat, agent";
}

static int okv_add_turn(struct okv_trace *trace, uint32_t system, uint32_t system_tokens, uint32_t conversation,
			uint64_t time_ms, uint64_t tokens, uint64_t reply, uint64_t lookup)
{
	uint64_t nr_blocks = (tokens + trace->block_tokens - 1) / trace->block_tokens, b;
	struct okv_request *req;
	uint64_t *words;

	req = okv_trace_add(trace, nr_blocks);
	if (!req)
		return -ENOMEM;
	req->time_ns = time_ms * 1000000;
	req->nr_tokens = tokens;
	req->output_tokens = reply;
	req->lookup_tokens = lookup;
	req->nr_blocks = nr_blocks;
	req->key_words = 1;
	req->is_tail_shared = tokens % trace->block_tokens;
	words = trace->words + req->first_word;
	for (b = 0; b < nr_blocks; b++) {
		if ((b + 1) * trace->block_tokens <= system_tokens)
			words[b] = UINT64_C(1) << 62 | (uint64_t)system << 32 | b;
		else
			words[b] = UINT64_C(2) << 62 | (uint64_t)conversation << 32 | b;
	}
	return 0;
}

int okv_workload_make(const char *name, uint64_t seed, struct okv_trace *trace)
{
	uint32_t systems[8], s, c, k, nr_turns, user, reply;
	uint64_t time_ms, tokens, last, state = seed;
	const struct okv_recipe *recipe = NULL;
	size_t i;
	int ret;

	for (i = 0; i < sizeof(okv_recipes) / sizeof(okv_recipes[0]); i++) {
		if (!strcmp(name, okv_recipes[i].name))
			recipe = &okv_recipes[i];
	}
	if (!recipe)
		return -ENOENT;

	for (s = 0; s < recipe->nr_systems; s++)
		systems[s] = okv_uniform(&state, recipe->system_tokens);
	for (c = 0; c < recipe->nr_conversations; c++) {
		s = okv_next(&state) % recipe->nr_systems;
		time_ms = okv_uniform(&state, recipe->start_ms);
		nr_turns = okv_uniform(&state, recipe->turns);
		tokens = systems[s];
		last = 0;
		for (k = 0; k < nr_turns; k++) {
			user = okv_uniform(&state, recipe->user_tokens);
			reply = okv_uniform(&state, recipe->reply_tokens);
			tokens += user;
			ret = okv_add_turn(trace, s, systems[s], c, time_ms, tokens, reply,
					   recipe->knows_last && last ? last : tokens);
			if (ret)
				return ret;
			last = tokens;
			tokens += reply;
			time_ms += okv_uniform(&state, recipe->gap_ms);
		}
	}
	okv_trace_sort(trace);
	return 0;
}

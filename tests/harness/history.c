// SPDX-License-Identifier: GPL-2.0-only
/*
 * A search for an order (Wing and Gong): of the operations that are left, each that began before any other of them ended
 * may be the next. Where the search has been before, with the same ones done and the same flag, it does not go again.
 */
#include "history.h"

#include <stdlib.h>

#define SEEN_MAX	(1u << 20)

struct search {
	const struct history_op	*ops;
	uint32_t		nr;
	uint64_t		*seen;		/* [SEEN_MAX] what is done, with the flag as the highest bit, plus 1; 0: empty */
	uint32_t		nr_seen;
};

/* Returns false where it has been there. A full table forgets nothing that would make an answer wrong. */
static bool note(struct search *search, uint64_t done, bool is_there)
{
	uint64_t word = (done | (uint64_t)is_there << 63) + 1;
	uint32_t at = (uint32_t)((word * 0x9e3779b97f4a7c15ull) >> 44) % SEEN_MAX;

	while (search->seen[at] && search->seen[at] != word)
		at = (at + 1) % SEEN_MAX;
	if (search->seen[at])
		return false;
	if (search->nr_seen < SEEN_MAX / 2) {
		search->seen[at] = word;
		search->nr_seen++;
	}
	return true;
}

static bool go_on(struct search *search, uint64_t done, bool is_there)
{
	uint64_t first_end = UINT64_MAX;

	if (done == (UINT64_C(1) << search->nr) - 1)
		return true;
	if (!note(search, done, is_there))
		return false;
	for (uint32_t i = 0; i < search->nr; i++)
		if (!(done >> i & 1) && search->ops[i].end_ns < first_end)
			first_end = search->ops[i].end_ns;
	for (uint32_t i = 0; i < search->nr; i++) {
		const struct history_op *op = &search->ops[i];
		uint64_t next = done | UINT64_C(1) << i;

		if ((done >> i & 1) || op->begin_ns > first_end)
			continue;
		switch (op->kind) {
		case HISTORY_LOOK:
			if (op->is_there == is_there && go_on(search, next, is_there))
				return true;
			break;
		case HISTORY_PUT:
			if (go_on(search, next, true))
				return true;
			break;
		case HISTORY_MAY_DROP:
			if (is_there && go_on(search, next, true))
				return true;
			/* fallthrough */
		case HISTORY_DROP:
			if (go_on(search, next, false))
				return true;
			break;
		}
	}
	return false;
}

bool history_is_linearizable(const struct history_op *ops, uint32_t nr)
{
	struct search search = { .ops = ops, .nr = nr };
	bool is;

	if (nr > HISTORY_OPS_MAX)
		return false;
	search.seen = calloc(SEEN_MAX, sizeof(*search.seen));
	is = search.seen && go_on(&search, 0, false);
	free(search.seen);
	return is;
}

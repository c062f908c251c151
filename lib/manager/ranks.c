// SPDX-License-Identifier: MIT
/*
 * Two binary heaps over the same records, by worth (pins are not in that one) and by deadline, and a table by
 * name. A record knows its places, so that it leaves from anywhere.
 */
#include "manager/ranks.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define BUCKETS		4096u
#define NOWHERE		UINT32_MAX

enum { BY_WORTH, BY_DEADLINE };

struct okv_ranks {
	struct okv_rank	**heaps[2];
	uint32_t	nr[2];
	uint32_t	max;
	uint64_t	next_number;
	struct okv_rank	*buckets[BUCKETS];
};

int okv_ranks_create(struct okv_ranks **ranks)
{
	*ranks = calloc(1, sizeof(**ranks));
	return *ranks ? 0 : -ENOMEM;
}

void okv_ranks_destroy(struct okv_ranks *ranks)
{
	if (!ranks)
		return;
	free(ranks->heaps[BY_WORTH]);
	free(ranks->heaps[BY_DEADLINE]);
	free(ranks);
}

uint32_t okv_ranks_count(const struct okv_ranks *ranks)
{
	return ranks->nr[BY_DEADLINE];
}

/* ---- names ---------------------------------------------------------------------------------- */

static uint32_t bucket_of(uint64_t owner, const void *space, uint64_t session)
{
	uint64_t mix = (owner * 0x9e3779b97f4a7c15ull ^ session) * 0xbf58476d1ce4e5b9ull ^ (uintptr_t)space >> 4;

	mix *= 0x94d049bb133111ebull;
	return (mix >> 40) % BUCKETS;
}

struct okv_rank *okv_ranks_find(const struct okv_ranks *ranks, uint64_t owner, const void *space, uint64_t session)
{
	struct okv_rank *rank = ranks->buckets[bucket_of(owner, space, session)];

	while (rank && (rank->owner != owner || rank->space != space || rank->session != session))
		rank = rank->chain;
	return rank;
}

/* ---- heaps ---------------------------------------------------------------------------------- */

bool okv_rank_is_less(const struct okv_rank *a, const struct okv_rank *b)
{
	if (a->priority != b->priority)
		return a->priority < b->priority;
	if (a->next_ns != b->next_ns)
		return a->next_ns > b->next_ns;
	return a->number < b->number;
}

static bool goes_before(int heap, const struct okv_rank *a, const struct okv_rank *b)
{
	return heap == BY_WORTH ? okv_rank_is_less(a, b) : a->until_ns < b->until_ns;
}

static void put_at(struct okv_ranks *ranks, int heap, uint32_t at, struct okv_rank *rank)
{
	ranks->heaps[heap][at] = rank;
	rank->at[heap] = at;
}

static void sift_up(struct okv_ranks *ranks, int heap, uint32_t at, struct okv_rank *rank)
{
	while (at) {
		struct okv_rank *up = ranks->heaps[heap][(at - 1) / 2];

		if (!goes_before(heap, rank, up))
			break;
		put_at(ranks, heap, at, up);
		at = (at - 1) / 2;
	}
	put_at(ranks, heap, at, rank);
}

static void sift_down(struct okv_ranks *ranks, int heap, uint32_t at, struct okv_rank *rank)
{
	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child + 1 < ranks->nr[heap] &&
		    goes_before(heap, ranks->heaps[heap][child + 1], ranks->heaps[heap][child]))
			child++;
		if (child >= ranks->nr[heap] || !goes_before(heap, ranks->heaps[heap][child], rank))
			break;
		put_at(ranks, heap, at, ranks->heaps[heap][child]);
		at = child;
	}
	put_at(ranks, heap, at, rank);
}

static void heap_del(struct okv_ranks *ranks, int heap, struct okv_rank *rank)
{
	uint32_t at = rank->at[heap];
	struct okv_rank *last;

	if (at == NOWHERE)
		return;
	assert(ranks->heaps[heap][at] == rank);
	last = ranks->heaps[heap][--ranks->nr[heap]];
	rank->at[heap] = NOWHERE;
	if (last == rank)
		return;
	sift_up(ranks, heap, at, last);
	sift_down(ranks, heap, last->at[heap], last);
}

/* ---- the table ------------------------------------------------------------------------------ */

static int grow(struct okv_ranks *ranks)
{
	uint32_t max = ranks->max ? 2 * ranks->max : 64;

	for (int heap = 0; heap < 2; heap++) {
		struct okv_rank **bigger = realloc(ranks->heaps[heap], max * sizeof(*bigger));

		if (!bigger)
			return -ENOMEM;
		ranks->heaps[heap] = bigger;
	}
	ranks->max = max;
	return 0;
}

int okv_ranks_add(struct okv_ranks *ranks, struct okv_rank *rank)
{
	uint32_t bucket = bucket_of(rank->owner, rank->space, rank->session);
	int ret;

	assert(!okv_ranks_find(ranks, rank->owner, rank->space, rank->session));
	if (ranks->nr[BY_DEADLINE] == OKV_RANKS_MAX)
		return -EDQUOT;
	if (ranks->nr[BY_DEADLINE] == ranks->max) {
		ret = grow(ranks);
		if (ret)
			return ret;
	}
	rank->number = ranks->next_number++;
	rank->at[BY_WORTH] = NOWHERE;
	if (!rank->is_pin)
		sift_up(ranks, BY_WORTH, ranks->nr[BY_WORTH]++, rank);
	sift_up(ranks, BY_DEADLINE, ranks->nr[BY_DEADLINE]++, rank);
	rank->chain = ranks->buckets[bucket];
	ranks->buckets[bucket] = rank;
	return 0;
}

void okv_ranks_del(struct okv_ranks *ranks, struct okv_rank *rank)
{
	struct okv_rank **link = &ranks->buckets[bucket_of(rank->owner, rank->space, rank->session)];

	while (*link != rank)
		link = &(*link)->chain;
	*link = rank->chain;
	heap_del(ranks, BY_WORTH, rank);
	heap_del(ranks, BY_DEADLINE, rank);
}

struct okv_rank *okv_ranks_least(const struct okv_ranks *ranks)
{
	return ranks->nr[BY_WORTH] ? ranks->heaps[BY_WORTH][0] : NULL;
}

struct okv_rank *okv_ranks_first(const struct okv_ranks *ranks)
{
	return ranks->nr[BY_DEADLINE] ? ranks->heaps[BY_DEADLINE][0] : NULL;
}

struct okv_rank *okv_ranks_at(const struct okv_ranks *ranks, uint32_t i)
{
	return ranks->heaps[BY_DEADLINE][i];
}

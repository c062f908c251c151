// SPDX-License-Identifier: MIT
/*
 * Binary heaps over the same records, by worth (pins are not in that one) and by deadline, one more by worth for each
 * owner, and a table by name. A record knows its places, so that it leaves from anywhere.
 */
#include "manager/ranks.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define BUCKETS		4096u
#define OWNER_BUCKETS	256u
#define NOWHERE		UINT32_MAX

enum { BY_WORTH, BY_DEADLINE, BY_WORTH_OF_OWNER };

struct heap {
	struct okv_rank	**slots;
	uint32_t	nr;
};

/* One that has records, or some that are set aside. */
struct okv_rank_owner {
	uint64_t		owner;
	struct okv_rank_owner	*chain;
	struct heap		by_worth;
	uint32_t		max;
	uint32_t		nr;
	uint32_t		nr_aside;
	uint64_t		weights[2];	/* of pins: 1 */
};

struct okv_ranks {
	struct heap		heaps[2];
	uint32_t		max;
	uint64_t		next_number;
	struct okv_rank		*buckets[BUCKETS];
	struct okv_rank_owner	*owners[OWNER_BUCKETS];
};

int okv_ranks_create(struct okv_ranks **ranks)
{
	*ranks = calloc(1, sizeof(**ranks));
	return *ranks ? 0 : -ENOMEM;
}

static void owner_free(struct okv_rank_owner *owner)
{
	free(owner->by_worth.slots);
	free(owner);
}

void okv_ranks_destroy(struct okv_ranks *ranks)
{
	if (!ranks)
		return;
	for (uint32_t i = 0; i < OWNER_BUCKETS; i++) {
		struct okv_rank_owner *owner;

		while ((owner = ranks->owners[i])) {
			ranks->owners[i] = owner->chain;
			owner_free(owner);
		}
	}
	free(ranks->heaps[BY_WORTH].slots);
	free(ranks->heaps[BY_DEADLINE].slots);
	free(ranks);
}

uint32_t okv_ranks_count(const struct okv_ranks *ranks)
{
	return ranks->heaps[BY_DEADLINE].nr;
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

static bool goes_before(int kind, const struct okv_rank *a, const struct okv_rank *b)
{
	return kind == BY_DEADLINE ? a->until_ns < b->until_ns : okv_rank_is_less(a, b);
}

static void put_at(struct heap *heap, int kind, uint32_t at, struct okv_rank *rank)
{
	heap->slots[at] = rank;
	rank->at[kind] = at;
}

static void sift_up(struct heap *heap, int kind, uint32_t at, struct okv_rank *rank)
{
	while (at) {
		struct okv_rank *up = heap->slots[(at - 1) / 2];

		if (!goes_before(kind, rank, up))
			break;
		put_at(heap, kind, at, up);
		at = (at - 1) / 2;
	}
	put_at(heap, kind, at, rank);
}

static void sift_down(struct heap *heap, int kind, uint32_t at, struct okv_rank *rank)
{
	for (;;) {
		uint32_t child = 2 * at + 1;

		if (child + 1 < heap->nr && goes_before(kind, heap->slots[child + 1], heap->slots[child]))
			child++;
		if (child >= heap->nr || !goes_before(kind, heap->slots[child], rank))
			break;
		put_at(heap, kind, at, heap->slots[child]);
		at = child;
	}
	put_at(heap, kind, at, rank);
}

/* It has room. */
static void heap_add(struct heap *heap, int kind, struct okv_rank *rank)
{
	sift_up(heap, kind, heap->nr++, rank);
}

static void heap_del(struct heap *heap, int kind, struct okv_rank *rank)
{
	uint32_t at = rank->at[kind];
	struct okv_rank *last;

	if (at == NOWHERE)
		return;
	assert(heap->slots[at] == rank);
	last = heap->slots[--heap->nr];
	rank->at[kind] = NOWHERE;
	if (last == rank)
		return;
	sift_up(heap, kind, at, last);
	sift_down(heap, kind, last->at[kind], last);
}

static int heap_grow(struct heap *heap, uint32_t max)
{
	struct okv_rank **bigger = realloc(heap->slots, max * sizeof(*bigger));

	if (!bigger)
		return -ENOMEM;
	heap->slots = bigger;
	return 0;
}

/* ---- owners --------------------------------------------------------------------------------- */

static struct okv_rank_owner **find_owner(const struct okv_ranks *ranks, uint64_t owner)
{
	uint32_t bucket = owner * 0x9e3779b97f4a7c15ull >> 56;
	struct okv_rank_owner *const *link = &ranks->owners[bucket];

	while (*link && (*link)->owner != owner)
		link = &(*link)->chain;
	return (struct okv_rank_owner **)link;
}

/* With room for one record more; NULL: no memory. */
static struct okv_rank_owner *get_owner(struct okv_ranks *ranks, uint64_t name)
{
	struct okv_rank_owner **link = find_owner(ranks, name), *owner = *link;
	uint32_t max;

	if (!owner) {
		owner = calloc(1, sizeof(*owner));
		if (!owner)
			return NULL;
		owner->owner = name;
		*link = owner;
	}
	max = owner->max ? 2 * owner->max : 16;
	if (owner->nr + owner->nr_aside < owner->max)
		return owner;
	if (heap_grow(&owner->by_worth, max)) {
		if (!owner->nr && !owner->nr_aside) {
			*link = owner->chain;
			owner_free(owner);
		}
		return NULL;
	}
	owner->max = max;
	return owner;
}

static void put_owner(struct okv_ranks *ranks, struct okv_rank_owner *owner)
{
	struct okv_rank_owner **link;

	if (owner->nr || owner->nr_aside)
		return;
	link = find_owner(ranks, owner->owner);
	*link = owner->chain;
	owner_free(owner);
}

/* ---- the table ------------------------------------------------------------------------------ */

/* All of it has room. */
static void list(struct okv_ranks *ranks, struct okv_rank *rank)
{
	uint32_t bucket = bucket_of(rank->owner, rank->space, rank->session);
	struct okv_rank_owner *owner = rank->of;

	if (!rank->is_pin) {
		heap_add(&ranks->heaps[BY_WORTH], BY_WORTH, rank);
		heap_add(&owner->by_worth, BY_WORTH_OF_OWNER, rank);
	}
	heap_add(&ranks->heaps[BY_DEADLINE], BY_DEADLINE, rank);
	owner->nr++;
	owner->weights[rank->is_pin] += rank->weight;
	rank->chain = ranks->buckets[bucket];
	ranks->buckets[bucket] = rank;
}

static void unlist(struct okv_ranks *ranks, struct okv_rank *rank)
{
	struct okv_rank **link = &ranks->buckets[bucket_of(rank->owner, rank->space, rank->session)];

	while (*link != rank)
		link = &(*link)->chain;
	*link = rank->chain;
	heap_del(&ranks->heaps[BY_WORTH], BY_WORTH, rank);
	heap_del(&ranks->heaps[BY_DEADLINE], BY_DEADLINE, rank);
	heap_del(&rank->of->by_worth, BY_WORTH_OF_OWNER, rank);
	rank->of->nr--;
	rank->of->weights[rank->is_pin] -= rank->weight;
}

static int grow(struct okv_ranks *ranks)
{
	uint32_t max = ranks->max ? 2 * ranks->max : 64;

	for (int kind = BY_WORTH; kind <= BY_DEADLINE; kind++)
		if (heap_grow(&ranks->heaps[kind], max))
			return -ENOMEM;
	ranks->max = max;
	return 0;
}

int okv_ranks_add(struct okv_ranks *ranks, struct okv_rank *rank)
{
	uint32_t nr = ranks->heaps[BY_DEADLINE].nr;

	assert(!okv_ranks_find(ranks, rank->owner, rank->space, rank->session));
	if (nr == OKV_RANKS_MAX)
		return -EDQUOT;
	if (nr == ranks->max && grow(ranks))
		return -ENOMEM;
	rank->of = get_owner(ranks, rank->owner);
	if (!rank->of)
		return -ENOMEM;
	rank->number = ranks->next_number++;
	rank->at[BY_WORTH] = rank->at[BY_WORTH_OF_OWNER] = NOWHERE;
	rank->is_aside = false;
	list(ranks, rank);
	return 0;
}

void okv_ranks_del(struct okv_ranks *ranks, struct okv_rank *rank)
{
	if (rank->is_aside)
		rank->of->nr_aside--;
	else
		unlist(ranks, rank);
	put_owner(ranks, rank->of);
}

void okv_ranks_set_aside(struct okv_ranks *ranks, struct okv_rank *rank)
{
	unlist(ranks, rank);
	rank->of->nr_aside++;
	rank->is_aside = true;
}

void okv_ranks_take_back(struct okv_ranks *ranks, struct okv_rank *rank)
{
	rank->of->nr_aside--;
	rank->is_aside = false;
	list(ranks, rank);
}

struct okv_rank *okv_ranks_least(const struct okv_ranks *ranks)
{
	return ranks->heaps[BY_WORTH].nr ? ranks->heaps[BY_WORTH].slots[0] : NULL;
}

struct okv_rank *okv_ranks_least_of(const struct okv_ranks *ranks, uint64_t owner)
{
	const struct okv_rank_owner *of = *find_owner(ranks, owner);

	return of && of->by_worth.nr ? of->by_worth.slots[0] : NULL;
}

uint32_t okv_ranks_sum_of(const struct okv_ranks *ranks, uint64_t owner, bool is_pin, uint64_t *weight)
{
	const struct okv_rank_owner *of = *find_owner(ranks, owner);

	*weight = of ? of->weights[is_pin] : 0;
	return of ? of->nr : 0;
}

struct okv_rank *okv_ranks_first(const struct okv_ranks *ranks)
{
	return ranks->heaps[BY_DEADLINE].nr ? ranks->heaps[BY_DEADLINE].slots[0] : NULL;
}

struct okv_rank *okv_ranks_at(const struct okv_ranks *ranks, uint32_t i)
{
	return ranks->heaps[BY_DEADLINE].slots[i];
}

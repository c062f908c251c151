// SPDX-License-Identifier: MIT
/*
 * The table of what a client holds. See hold.h.
 *
 * Linear probing at most half full; removal moves later entries back, so there are no tombstones.
 */
#include "hold.h"

#include <errno.h>
#include <stdlib.h>

#define SLOTS_MIN	64u

static uint32_t home(const struct okv_holds *holds, uint32_t granule)
{
	return (uint32_t)((granule * 0x9e3779b97f4a7c15ull) >> 32) & holds->mask;
}

static struct okv_hold *slot_of(const struct okv_holds *holds, uint32_t granule)
{
	uint32_t at = home(holds, granule);

	while (holds->slots[at].generation && holds->slots[at].granule != granule)
		at = (at + 1) & holds->mask;
	return &holds->slots[at];
}

static bool counts(const struct okv_hold *hold)
{
	return hold->nr_leases || hold->nr_binds || hold->nr_ios;
}

void okv_holds_fini(struct okv_holds *holds)
{
	free(holds->slots);
	*holds = (struct okv_holds){ 0 };
}

int okv_holds_reserve(struct okv_holds *holds, uint32_t nr)
{
	uint64_t need = 2 * ((uint64_t)holds->nr + nr), nr_slots = SLOTS_MIN;
	struct okv_holds larger = { 0 };
	uint32_t i;

	if (holds->slots && need <= (uint64_t)holds->mask + 1)
		return 0;
	while (nr_slots < need)
		nr_slots *= 2;
	if (nr_slots > 1ull << 31)
		return -ENOMEM;
	larger.slots = calloc(nr_slots, sizeof(*larger.slots));
	if (!larger.slots)
		return -ENOMEM;
	larger.mask = (uint32_t)nr_slots - 1;
	larger.nr = holds->nr;
	for (i = 0; holds->slots && i <= holds->mask; i++)
		if (holds->slots[i].generation)
			*slot_of(&larger, holds->slots[i].granule) = holds->slots[i];
	free(holds->slots);
	*holds = larger;
	return 0;
}

struct okv_hold *okv_holds_find(const struct okv_holds *holds, uint32_t granule)
{
	struct okv_hold *hold;

	if (!holds->slots)
		return NULL;
	hold = slot_of(holds, granule);
	return hold->generation ? hold : NULL;
}

struct okv_hold *okv_holds_get(struct okv_holds *holds, uint32_t granule, uint32_t generation)
{
	struct okv_hold *hold = slot_of(holds, granule);

	holds->nr += !hold->generation;
	/* What counts nothing and has another generation says that an extent is the client's which was given up since. */
	if (!hold->generation || (hold->generation != generation && !counts(hold)))
		*hold = (struct okv_hold){ .granule = granule, .generation = generation };
	return hold;
}

void okv_holds_mark(struct okv_holds *holds, const struct omnikv_extent *exts, uint32_t count, bool is_marked)
{
	for (uint32_t i = 0; i < count; i++) {
		struct okv_hold *hold = okv_holds_find(holds, (uint32_t)exts[i].granule);

		if (hold)
			hold->is_marked = is_marked;
	}
}

void okv_holds_drop(struct okv_holds *holds, struct okv_hold *hold)
{
	uint32_t hole, at;

	if (counts(hold) || hold->is_private)
		return;
	holds->nr--;
	hole = at = (uint32_t)(hold - holds->slots);
	for (;;) {
		uint32_t want;

		holds->slots[hole].generation = 0;
		do {
			at = (at + 1) & holds->mask;
			if (!holds->slots[at].generation)
				return;
			want = home(holds, holds->slots[at].granule);
			/* It stays when its home lies behind the hole, going round. */
		} while (((at - want) & holds->mask) < ((at - hole) & holds->mask));
		holds->slots[hole] = holds->slots[at];
		hole = at;
	}
}

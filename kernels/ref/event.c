// SPDX-License-Identifier: MIT
/*
 * Definition of wait and fire.
 *
 * A wait ends when the word is reached or after so many looks, whichever comes first.
 */
#include "ref.h"

static uint64_t *word_at(uint64_t address)
{
	return (uint64_t *)okv_ref_at(address);
}

void okv_ref_wait(const struct okv_event_args *args)
{
	uint64_t value = okv_event_value(args->base, *word_at(args->step)), i;

	for (i = 0; i < args->nr_polls; i++) {
		if ((int64_t)(__atomic_load_n(word_at(args->word), __ATOMIC_ACQUIRE) - value) >= 0)
			return;
	}
	__atomic_fetch_add(word_at(args->late), 1, __ATOMIC_RELEASE);
}

void okv_ref_fire(const struct okv_event_args *args)
{
	__atomic_store_n(word_at(args->word), okv_event_value(args->base, *word_at(args->step)), __ATOMIC_RELEASE);
}

/* SPDX-License-Identifier: MIT */
/*
 * The rows of one block of one group inside its extent: copied, summed, nothing else.
 *
 * A block holds its rows in the order layer, plane, row, with padding behind each piece and,
 * in a partial tail, unused rows behind each plane's. Only rows that stand for tokens are
 * ever read or written here. Pure; any thread.
 */
#ifndef OKV_BLOCK_H
#define OKV_BLOCK_H

#include <omnikv/layout.h>

/** Entries that @nr_tokens tokens of a block fill in @group; state groups have one. */
static inline uint32_t okv_block_entries(const struct omnikv_plan *plan, uint32_t group, uint32_t nr_tokens)
{
	uint32_t tokens_per_entry = plan->layout.groups[group].tokens_per_entry;

	if (tokens_per_entry == 0)
		return 1;
	return tokens_per_entry == 1 ? nr_tokens : nr_tokens / tokens_per_entry;
}

static inline bool okv_group_is_state(const struct omnikv_plan *plan, uint32_t group)
{
	return plan->layout.groups[group].tokens_per_entry == 0;
}

/** Can @nr_tokens of a block stand alone? Not where they end in the middle of an entry. */
static inline bool okv_block_ends_entries(const struct omnikv_plan *plan, uint32_t nr_tokens)
{
	for (uint32_t g = 0; g < plan->layout.nr_groups; g++) {
		uint32_t tokens_per_entry = plan->layout.groups[g].tokens_per_entry;

		if (tokens_per_entry && nr_tokens % tokens_per_entry)
			return false;
	}
	return true;
}

/** Copy the first @nr_entries rows of every plane of every stored layer; the rest of @dst is left alone. */
void okv_block_copy(const struct omnikv_plan *plan, uint32_t group, uint32_t nr_entries, void *dst, const void *src);

/** CRC32C over the first @nr_entries rows of every plane of every stored layer, in that order. */
uint32_t okv_block_crc(const struct omnikv_plan *plan, uint32_t group, uint32_t nr_entries, const void *src);

#endif /* OKV_BLOCK_H */

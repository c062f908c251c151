// SPDX-License-Identifier: MIT
/*
 * Handing a sequence over; handover.h has the authority's side, omnikv/sequence.h the calls.
 *
 * The giver's leases, the ticket's pin and the taker's leases overlap, so that there is no moment at which nothing
 * holds the blocks.
 */
#include "manager/handover.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "failpoint.h"
#include "manager/import.h"
#include "manager/retain.h"
#include "sequence.h"

/* A ticket in halves: what it is found by, and what proves that one was told it. */
struct halves {
	uint64_t	name;
	uint64_t	secret;
};

_Static_assert(sizeof(struct halves) == sizeof(struct omnikv_ticket), "a ticket is its two halves");

/* ---- the authority's side ------------------------------------------------------------------- */

/* Has @entry all that a sequence needs that ends with it? */
static bool is_end(const struct omnikv_space *space, uint32_t entry, uint32_t position)
{
	struct okv_index_hit hit = { .nr_blocks = (uint64_t)position + 1, .entry = entry };

	if (!space->needed_state)
		return true;
	okv_index_usable(space->shelf->index, space->needed_state, &hit);
	return hit.entry == entry;
}

int okv_handover_give(struct omnikv_space *space, const struct omnikv_key *key, uint32_t position, uint32_t timeout_ms,
		      struct omnikv_ticket *ticket)
{
	struct omnikv_retention how = { .flags = OMNIKV_RETAIN_F_PIN, .ttl_ms = timeout_ms };
	struct okv_index_info info;
	struct okv_visit visit;
	struct halves halves;
	uint32_t entry;
	int ret;

	if (!okv_keys_are_valid(key, 1, NULL) || !timeout_ms || timeout_ms > OMNIKV_GIVE_MS_MAX)
		return -EINVAL;
	if (getrandom(&halves, sizeof(halves), 0) != (ssize_t)sizeof(halves))
		return -EIO;
	how.session = halves.name;
	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	entry = okv_index_find(space->shelf->index, space->id, key);
	ret = entry == OKV_ENTRY_NONE || okv_index_get(space->shelf->index, entry, &info) || info.position != position ?
	      -ESTALE : 0;
	if (!ret && !is_end(space, entry, position))
		ret = -ENODATA;
	if (!ret)
		ret = okv_retain_entry(space, OKV_OWNER_TICKETS, &how, entry);
	if (!ret) {
		okv_retain_find(space, OKV_OWNER_TICKETS, halves.name)->secret = halves.secret;
		memcpy(ticket, &halves, sizeof(*ticket));
	}
	okv_visit_leave(&visit);
	return ret;
}

/* Inside a visit. NULL: there is none such. */
static struct okv_retained *find_ticket(struct omnikv_space *space, const struct omnikv_ticket *ticket)
{
	struct okv_retained *retained;
	struct halves halves;

	memcpy(&halves, ticket, sizeof(halves));
	okv_retain_expire(space->manager);
	retained = okv_retain_find(space, OKV_OWNER_TICKETS, halves.name);
	return retained && retained->secret == halves.secret ? retained : NULL;
}

int okv_handover_take(struct omnikv_space *space, const struct omnikv_ticket *ticket, uint64_t first,
		      struct okv_handed *handed)
{
	struct okv_retained *retained;
	struct okv_index_info info;
	struct okv_visit visit;
	uint64_t position;
	uint32_t entry;
	bool is_next;
	int ret = 0;

	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	retained = find_ticket(space, ticket);
	if (!retained || okv_index_get(space->shelf->index, retained->pin.entry, &info)) {
		ret = -ESTALE;
		goto out;
	}
	handed->nr_blocks = retained->pin.nr_blocks;
	handed->has_tail = info.is_partial;
	handed->nr = 0;
	if (first >= handed->nr_blocks)
		goto out;
	handed->nr = handed->nr_blocks - first < OKV_HANDED_KEYS ? handed->nr_blocks - first : OKV_HANDED_KEYS;
	/* Paths are known from their ends alone: whoever asks for the last ones first has each of them looked at once. */
	is_next = retained->told_from >= first + handed->nr;
	entry = is_next ? retained->told_entry : retained->pin.entry;
	for (position = is_next ? retained->told_from : handed->nr_blocks; position-- > first; entry = info.parent) {
		(void)OKV_FAILPOINT("handover.look");
		if (okv_index_get(space->shelf->index, entry, &info)) {
			ret = -ESTALE;
			goto out;
		}
		if (position - first < handed->nr)
			handed->keys[position - first] = info.key;
	}
	retained->told_from = first;
	retained->told_entry = entry;
out:
	okv_visit_leave(&visit);
	return ret;
}

int okv_handover_end(struct omnikv_space *space, const struct omnikv_ticket *ticket)
{
	struct okv_retained *retained;
	struct okv_visit visit;

	okv_visit_init(&visit, space->manager);
	okv_visit_enter(&visit);
	retained = find_ticket(space, ticket);
	if (retained)
		okv_retain_end(space->manager, retained);
	okv_visit_leave(&visit);
	return retained ? 0 : -ESTALE;
}

/* ---- the calls ------------------------------------------------------------------------------ */

/* Key and position of the last block of @seq, which is committed to its end. */
static int last_block(struct omnikv_seq *seq, struct omnikv_key *key, uint32_t *position)
{
	struct okv_index_info info;
	struct okv_visit visit;
	int ret;

	if (!omnikv_seq_tokens(seq) || omnikv_seq_cached_tokens(seq) != omnikv_seq_tokens(seq))
		return -EINVAL;
	okv_imports_flush(seq->space->manager);
	okv_visit_init(&visit, seq->space->manager);
	okv_visit_enter(&visit);
	ret = okv_index_get(seq->pin.shelf->index, seq->pin.entry, &info);
	if (!ret && info.is_dropped)
		ret = -ESTALE;
	/* It waits to be published. */
	if (!ret && okv_is_attached(seq->space->manager) && okv_shelf_is_owned(seq->pin.shelf, seq->pin.entry))
		ret = -ENOTCONN;
	*key = info.key;
	*position = info.position;
	okv_visit_leave(&visit);
	return ret;
}

int omnikv_seq_give(struct omnikv_seq *seq, uint32_t timeout_ms, struct omnikv_ticket *ticket)
{
	struct omnikv_key key;
	uint32_t position;
	int ret;

	if (!seq || !ticket || !timeout_ms || timeout_ms > OMNIKV_GIVE_MS_MAX)
		return -EINVAL;
	ret = last_block(seq, &key, &position);
	if (ret)
		return ret;
	if (okv_is_attached(seq->space->manager))
		return okv_import_give(seq->space, &key, position, timeout_ms, ticket);
	return okv_handover_give(seq->space, &key, position, timeout_ms, ticket);
}

static int take(struct omnikv_space *space, const struct omnikv_ticket *ticket, uint64_t first, struct okv_handed *handed)
{
	if (okv_is_attached(space->manager))
		return okv_import_take(space, ticket, first, handed);
	return okv_handover_take(space, ticket, first, handed);
}

/* All keys of it; free() them. The first ones say how many there are, the others come from the end on. */
static int take_keys(struct omnikv_space *space, const struct omnikv_ticket *ticket, struct omnikv_key **out,
		     uint64_t *nr_blocks, bool *has_tail)
{
	struct okv_handed *handed = malloc(sizeof(*handed));
	struct omnikv_key *keys = NULL;
	uint64_t first = 0, nr = 0, end;
	int ret = handed ? take(space, ticket, 0, handed) : -ENOMEM;

	/* No path has more blocks than the pool granules. */
	if (!ret && (!handed->nr || handed->nr > handed->nr_blocks || handed->nr_blocks > space->manager->nr_granules))
		ret = -EPROTO;
	if (!ret) {
		*nr_blocks = handed->nr_blocks;
		*has_tail = handed->has_tail;
		nr = handed->nr;
		keys = malloc(*nr_blocks * sizeof(*keys));
		ret = keys ? 0 : -ENOMEM;
	}
	if (!ret)
		memcpy(keys, handed->keys, nr * sizeof(*keys));
	for (end = ret ? 0 : *nr_blocks; end > nr && !ret; end = first) {
		first = end > OKV_HANDED_KEYS ? end - OKV_HANDED_KEYS : 0;
		ret = take(space, ticket, first, handed);
		/* None changes on its way. */
		if (!ret && (handed->nr_blocks != *nr_blocks || handed->nr < end - first))
			ret = -EPROTO;
		if (!ret)
			memcpy(&keys[first], handed->keys, (end - first) * sizeof(*keys));
	}
	free(handed);
	if (ret)
		free(keys);
	else
		*out = keys;
	return ret;
}

int omnikv_seq_take(struct omnikv_space *space, const struct omnikv_ticket *ticket, struct omnikv_seq **out)
{
	struct omnikv_key *keys = NULL;
	struct omnikv_seq *seq;
	uint64_t nr_blocks = 0;
	bool has_tail = false;
	int ret;

	if (!space || !ticket || !out)
		return -EINVAL;
	ret = take_keys(space, ticket, &keys, &nr_blocks, &has_tail);
	if (ret)
		return ret;
	(void)OKV_FAILPOINT("handover.told");
	ret = omnikv_seq_open(space, keys, nr_blocks - has_tail, has_tail ? &keys[nr_blocks - 1] : NULL, &seq);
	free(keys);
	if (ret)
		return ret;
	if (seq->nr_cached != nr_blocks) {
		omnikv_seq_close(seq);
		return -EAGAIN;
	}
	(void)OKV_FAILPOINT("handover.held");
	/* Who ends it has it. Where nobody hears of that, it ends by its deadline. */
	ret = okv_is_attached(space->manager) ? okv_import_take_end(space, ticket) : okv_handover_end(space, ticket);
	if (ret == -ESTALE) {
		omnikv_seq_close(seq);
		return ret;
	}
	*out = seq;
	return 0;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Sessions by the keys of their last full blocks: a table from such a key to the latest request that ended with it.
 * Open addressing; at most half full.
 */
#include "sessions.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct end {
	struct omnikv_key	key;		/* len 0: empty */
	size_t			request;
};

static size_t home_of(const struct omnikv_key *key, size_t mask)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (uint32_t i = 0; i < key->len; i++)
		hash = (hash ^ key->bytes[i]) * 0x100000001b3u;
	return (hash ^ hash >> 32) & mask;
}

/* Where @key is, or belongs. */
static struct end *end_of(struct end *ends, size_t mask, const struct omnikv_key *key)
{
	size_t at = home_of(key, mask);

	while (ends[at].key.len && memcmp(&ends[at].key, key, sizeof(*key)))
		at = (at + 1) & mask;
	return &ends[at];
}

int okv_sessions_find(const struct okv_trace *trace, struct okv_session_step **out)
{
	struct okv_session_step *steps = calloc(trace->nr_requests + 1, sizeof(*steps));
	struct omnikv_key key;
	struct end *ends;
	size_t mask = 1;

	while (mask < 2 * trace->nr_requests)
		mask *= 2;
	ends = calloc(mask, sizeof(*ends));
	if (!steps || !ends) {
		free(steps);
		free(ends);
		return -ENOMEM;
	}
	mask--;
	for (size_t i = 0; i < trace->nr_requests; i++) {
		const struct okv_request *req = &trace->requests[i];
		uint64_t nr_full = req->nr_tokens / trace->block_tokens;

		steps[i] = (struct okv_session_step){ .session = i + 1, .next_ns = OKV_SESSION_OVER };
		for (uint64_t b = nr_full; b-- > 0;) {
			struct end *end;

			okv_request_content_key(trace, req, b, &key);
			end = end_of(ends, mask, &key);
			if (!end->key.len)
				continue;
			/* Two that go on where one ended are two sessions from there. */
			if (steps[end->request].next_ns == OKV_SESSION_OVER) {
				steps[i].session = steps[end->request].session;
				steps[end->request].next_ns = req->time_ns;
			}
			break;
		}
		if (nr_full) {
			struct end *end;

			okv_request_content_key(trace, req, nr_full - 1, &key);
			end = end_of(ends, mask, &key);
			*end = (struct end){ .key = key, .request = i };
		}
	}
	free(ends);
	*out = steps;
	return 0;
}

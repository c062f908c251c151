// SPDX-License-Identifier: MIT
/*
 * An authority behind a connection: what an attached manager asks omnikvd. Any thread.
 *
 * Lookups read the catalog in the pool's memory (reader.h) and take their leases in shared memory; no
 * frame is sent for a hit. Where the catalog cannot be read, or a spill store may have more, FIND asks.
 *
 * What is to be published is held by this client before the daemon hears of it. So whatever becomes of
 * the daemon between sealing, inserting and answering, the bytes stay as they are: the request is
 * repeated to the next daemon, which says what had been done.
 */
#include "manager/authority.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "clock.h"
#include "conn.h"
#include "embedded.h"
#include "error.h"
#include "failpoint.h"
#include "fork_mark.h"
#include "manager/frames.h"
#include "manager/import.h"
#include "manager/reader.h"
#include "manager/retain.h"
#include "mutex.h"
#include "option.h"
#include "provider_daemon.h"
#include "stock.h"

#define DEADLINE_MS		1000u
#define DEADLINE_MS_MAX		600000u
#define RESERVE_BYTES		(UINT64_C(8) << 20)
#define RESERVE_ROUNDS		64u
#define FIND_TRIES		3u
/* Uses that are kept back wait for each other at most this long, while there are calls at all. */
#define USES_NS			UINT64_C(20000000)

/* A retention that a daemon after this one has to be told of. */
struct kept {
	struct kept		*next;
	struct omnikv_retention	how;		/* times from @since_ns on */
	struct omnikv_key	key;
	uint32_t		position;
	uint64_t		since_ns;
};

/**
 * struct remote - one namespace
 * @open:       the request that opens it, [@open_bytes]
 * @epoch:      of the connection on which @space is its number; 0: none
 * @root_off:   where the catalog is; 0: nowhere
 * @has_reader: @rspace is current, as far as is known
 * @is_untold:  the daemon of @space knows nothing of what is kept
 * @kept:       what was retained, of which some may be over
 */
struct remote {
	/* fixed */
	unsigned char		*open;
	size_t			open_bytes;
	uint32_t		nr_groups;
	uint8_t			identity[32];
	/* under the authority's lock */
	uint64_t		epoch;
	uint64_t		space;
	uint64_t		root_off;
	uint32_t		flags;
	bool			has_reader;
	bool			is_untold;
	struct okv_reader	reader;
	struct okv_reader_space	rspace;
	/* under the authority's @retain_lock */
	struct kept		*kept;
};

struct attached {
	struct okv_authority	auth;
	struct omnikv_pool	*pool;
	uint64_t		pool_bytes;
	uint32_t		*mark;		/* of a forked child, which has no pool to read in */
	struct okv_conn		*conn;
	char			pool_name[sizeof(((struct okv_wire_attached *)0)->name)];	/* the module's */
	bool			is_module;	/* the module's pool: @conn is ours, and its owners seal */
	uint32_t		deadline_ms;
	uint64_t		reserve_bytes;

	/* What may wait long goes by a connection of its own, made at the first such call. */
	pthread_mutex_t		wait_lock;
	struct okv_conn		*wait_conn;

	/*
	 * Held from a request about a retention to what is kept of it, so that both have the same order here and there.
	 * Nothing is taken before it.
	 */
	pthread_mutex_t		retain_lock;

	pthread_mutex_t		lock;
	/* under @lock */
	uint64_t		uses_since_ns;
	struct okv_wire_uses	uses;
	struct okv_wire_use	use[OKV_WIRE_USES_MAX];
};

static struct attached *attached_of(struct okv_authority *auth)
{
	return (struct attached *)auth;
}

/* A request whose reply, where it succeeds, is one that this type can have. */
static int call(struct attached *at, uint32_t nr_groups, struct okv_call *call)
{
	int ret;

	ret = -OKV_FAILPOINT("attach.call");
	if (!ret)
		ret = okv_conn_call(at->conn, call);
	for (uint32_t i = 0; ret >= 0 && i < OKV_WIRE_FDS_MAX; i++)
		if (call->fds_out[i] >= 0)
			close(call->fds_out[i]);
	if (ret >= 0 && okv_frame_reply_check(call->type, nr_groups, call->reply, call->reply_bytes))
		return -EPROTO;
	/* Nobody there, or nobody who answered as one should: the same to whoever goes on without. */
	return ret == -EPIPE || ret == -ETIME || ret == -EPROTO ? -ENOTCONN : ret;
}

/* ---- namespaces ----------------------------------------------------------------------------- */

/* The request that opens @ns: fixed part, texts, the layout in JSON. */
static int encode_space(const struct omnikv_namespace *ns, const struct omnikv_plan *plan, struct remote *remote)
{
	const char *texts[3] = { ns->tenant, ns->weights, ns->adapter };
	struct okv_wire_space_open open = {
		.block_tokens = ns->block_tokens, .hash_algorithm = ns->hash_algorithm, .scale = plan->scale,
		.granule_bytes = plan->granule_bytes, .epoch = ns->epoch,
	};
	unsigned char *at;
	size_t bytes = sizeof(open);
	char *json;
	int ret;

	ret = omnikv_layout_format(&plan->layout, &json);
	if (ret)
		return ret;
	for (uint32_t i = 0; i < 3; i++) {
		size_t len = texts[i] ? strlen(texts[i]) : 0;

		if (len > OKV_WIRE_TEXT_MAX)
			ret = -E2BIG;
		open.lengths[i] = len > OKV_WIRE_TEXT_MAX ? 0 : len;
	}
	if (ns->salt_len > OKV_WIRE_TEXT_MAX || strlen(json) > OKV_WIRE_PAYLOAD_MAX / 2)
		ret = -E2BIG;
	open.lengths[3] = ret ? 0 : ns->salt_len;
	open.lengths[4] = ret ? 0 : strlen(json);
	for (uint32_t i = 0; i < 5; i++)
		bytes += open.lengths[i];
	remote->open = ret ? NULL : malloc(bytes);
	if (!ret && !remote->open)
		ret = -ENOMEM;
	if (!ret) {
		at = remote->open;
		memcpy(at, &open, sizeof(open));
		at += sizeof(open);
		for (uint32_t i = 0; i < 5; i++) {
			const void *text = i < 3 ? texts[i] : i == 3 ? ns->salt : json;

			if (open.lengths[i])
				memcpy(at, text, open.lengths[i]);
			at += open.lengths[i];
		}
		remote->open_bytes = bytes;
	}
	free(json);
	return ret;
}

static int open_space(struct attached *at, struct remote *remote, struct omnikv_error *err)
{
	struct okv_wire_space_opened opened;
	struct okv_call req = {
		.type = OKV_WIRE_SPACE_OPEN, .req = remote->open, .req_bytes = remote->open_bytes, .reply = &opened,
		.reply_max = sizeof(opened), .err = err,
	};
	uint64_t epoch = okv_conn_epoch(at->conn);
	int ret = call(at, remote->nr_groups, &req);

	if (ret < 0)
		return ret;
	if (memcmp(opened.identity, remote->identity, sizeof(opened.identity)))
		return -EPROTO;
	/* Made anew meanwhile: the number is of the connection that answered. */
	if (okv_conn_epoch(at->conn) != epoch && epoch)
		epoch = 0;
	if (err)
		okv_error_set(err, 0, "%s", opened.notice);
	pthread_mutex_lock(&at->lock);
	remote->epoch = epoch;
	remote->space = opened.space;
	remote->root_off = opened.root_off;
	remote->flags = opened.flags;
	remote->has_reader = false;
	remote->is_untold = true;
	pthread_mutex_unlock(&at->lock);
	return 0;
}

/* The number of @remote on the connection as it is. */
static int space_of(struct attached *at, struct remote *remote, uint64_t *space)
{
	uint64_t epoch = okv_conn_epoch(at->conn);
	int ret;

	for (uint32_t i = 0; i < 3; i++) {
		pthread_mutex_lock(&at->lock);
		*space = remote->space;
		ret = remote->epoch == epoch && okv_conn_is_up(at->conn) ? 0 : -EAGAIN;
		pthread_mutex_unlock(&at->lock);
		if (!ret)
			return 0;
		ret = open_space(at, remote, NULL);
		if (ret)
			return ret;
		epoch = okv_conn_epoch(at->conn);
	}
	return -ENOTCONN;
}

static struct okv_wire_retain retain_frame(const struct omnikv_retention *how, const struct omnikv_key *key,
					   uint32_t position)
{
	struct okv_wire_retain retain = {
		.session = how->session, .flags = how->flags, .priority = how->priority, .ttl_ms = how->ttl_ms,
		.next_use_ms = how->next_use_ms, .position = position,
	};

	if (key)
		retain.key = *key;
	return retain;
}

/*
 * What @session retains is @new, or nothing. What is over by now is forgotten, and the oldest of more than one daemon
 * takes: some of those gave way there, which nobody tells. Under @retain_lock.
 */
static void keep(struct remote *remote, uint64_t session, struct kept *new)
{
	struct kept **link = &remote->kept, *kept;
	uint64_t now = okv_monotonic_ns();
	uint32_t nr = new ? 1 : 0;

	while ((kept = *link)) {
		uint64_t ttl_ms = kept->how.ttl_ms ? kept->how.ttl_ms : 2 * (uint64_t)kept->how.next_use_ms;

		if (kept->how.session == session || now - kept->since_ns > ttl_ms * UINT64_C(1000000) ||
		    nr == OKV_RETAIN_OF_OWNER) {
			*link = kept->next;
			free(kept);
			continue;
		}
		nr++;
		link = &kept->next;
	}
	if (new) {
		new->next = remote->kept;
		remote->kept = new;
	}
}

/* @ms from then on, that is from now on; at least one more. */
static uint32_t ms_left(uint32_t ms, uint64_t since_ns)
{
	uint64_t gone = (okv_monotonic_ns() - since_ns) / UINT64_C(1000000);

	return !ms ? 0 : gone < ms ? ms - gone : 1;
}

/*
 * A daemon that knows nothing of it: as far as it goes. What has left meanwhile is not brought back. Who holds the lock
 * tells of all that there is by then, so nobody waits for that.
 */
static void announce_kept(struct attached *at, struct remote *remote, bool is_locked)
{
	struct kept **link = &remote->kept, *kept;
	bool is_untold;
	uint64_t space;
	int ret = 0;

	pthread_mutex_lock(&at->lock);
	is_untold = remote->is_untold;
	pthread_mutex_unlock(&at->lock);
	if (!is_untold || (!is_locked && pthread_mutex_trylock(&at->retain_lock)))
		return;
	pthread_mutex_lock(&at->lock);
	remote->is_untold = false;
	space = remote->space;
	pthread_mutex_unlock(&at->lock);
	keep(remote, 0, NULL);
	while ((kept = *link) && ret != -ENOTCONN && ret != -ENOENT) {
		struct okv_wire_retain retain = retain_frame(&kept->how, &kept->key, kept->position);
		struct okv_call frame = { .type = OKV_WIRE_RETAIN, .req = &retain, .req_bytes = sizeof(retain) };

		(void)OKV_FAILPOINT("attach.announce");
		retain.space = space;
		retain.ttl_ms = ms_left(kept->how.ttl_ms, kept->since_ns);
		retain.next_use_ms = ms_left(kept->how.next_use_ms, kept->since_ns);
		ret = call(at, remote->nr_groups, &frame);
		if (ret != -ESTALE) {
			link = &kept->next;
			continue;
		}
		*link = kept->next;
		free(kept);
	}
	if (ret == -ENOTCONN || ret == -ENOENT) {
		pthread_mutex_lock(&at->lock);
		remote->is_untold = true;
		pthread_mutex_unlock(&at->lock);
	}
	if (!is_locked)
		pthread_mutex_unlock(&at->retain_lock);
}

/* A request about @remote, whose number on the connection goes to @space, in the request. RETAIN: under @retain_lock. */
static int call_about(struct attached *at, struct remote *remote, uint64_t *space, struct okv_call *frame)
{
	int ret = -ENOENT;

	/* A daemon that took the connection over from an earlier one knows no namespaces of it. */
	for (uint32_t i = 0; ret == -ENOENT && i < 2; i++) {
		ret = space_of(at, remote, space);
		if (ret)
			return ret;
		announce_kept(at, remote, frame->type == OKV_WIRE_RETAIN);
		ret = call(at, remote->nr_groups, frame);
		if (ret == -ENOENT) {
			pthread_mutex_lock(&at->lock);
			remote->epoch = 0;
			pthread_mutex_unlock(&at->lock);
		}
	}
	return ret == -ENOENT ? -ENOTCONN : ret;
}

/*
 * The provider's reserve grows with what is allocated, by lengths: extents of this namespace's lengths are had
 * once, so that appends find them while the daemon is away. What is not to be had now is not.
 */
static void fill_reserve(struct attached *at, const struct omnikv_plan *plan)
{
	uint64_t share = at->reserve_bytes / plan->layout.nr_groups;
	struct omnikv_extent extents[RESERVE_ROUNDS];

	for (uint32_t g = 0; g < plan->layout.nr_groups; g++) {
		uint64_t nr = share / ((uint64_t)plan->groups[g].nr_granules * plan->granule_bytes) / OKV_STOCK_STEP + 1;
		uint32_t nr_had = 0;

		while (nr_had < nr && nr_had < RESERVE_ROUNDS &&
		       !omnikv_extent_alloc(at->auth.client, plan->groups[g].nr_granules, 1, NULL, OMNIKV_ALLOC_F_NO_ZERO,
					    &extents[nr_had]))
			nr_had++;
		if (nr_had)
			omnikv_extent_free(at->auth.client, extents, nr_had);
	}
}

static int attached_space_open(struct okv_authority *auth, const struct omnikv_namespace *ns,
			       const struct omnikv_plan *plan, void **out, struct omnikv_error *notice)
{
	struct attached *at = attached_of(auth);
	struct remote *remote = calloc(1, sizeof(*remote));
	int ret;

	if (!remote)
		return -ENOMEM;
	remote->nr_groups = plan->layout.nr_groups;
	ret = omnikv_namespace_identity(ns, remote->identity);
	if (!ret)
		ret = encode_space(ns, plan, remote);
	if (!ret)
		ret = open_space(at, remote, notice);
	if (ret) {
		free(remote->open);
		free(remote);
		return ret;
	}
	if (!at->is_module)
		fill_reserve(at, plan);
	*out = remote;
	return 0;
}

/* ---- uses ----------------------------------------------------------------------------------- */

/* In one packet, where the daemon takes that; where it cannot go now it is dropped: they only say what is recent. */
static void flush_uses(struct attached *at)
{
	uint32_t max = okv_conn_features(at->conn) & OKV_WIRE_FEATURE_LONG_USES ? OKV_WIRE_USES_MAX : OKV_WIRE_USES_SHORT;
	struct {
		struct okv_wire_uses	uses;
		struct okv_wire_use	use[OKV_WIRE_USES_MAX];
	} frame;
	uint32_t nr_rounds = OKV_WIRE_USES_MAX / max, nr_left;

	do {
		pthread_mutex_lock(&at->lock);
		nr_left = at->uses.count;
		frame.uses = (struct okv_wire_uses){ .count = nr_left < max ? nr_left : max };
		memcpy(frame.use, at->use, frame.uses.count * sizeof(at->use[0]));
		nr_left -= frame.uses.count;
		memmove(at->use, at->use + frame.uses.count, nr_left * sizeof(at->use[0]));
		at->uses.count = nr_left;
		pthread_mutex_unlock(&at->lock);
		if (frame.uses.count)
			okv_conn_send(at->conn, OKV_WIRE_USE, &frame,
				      sizeof(frame.uses) + frame.uses.count * sizeof(frame.use[0]));
	} while (nr_left && --nr_rounds);
}

static void attached_space_close(struct okv_authority *auth, void *opaque)
{
	struct attached *at = attached_of(auth);
	struct remote *remote = opaque;
	struct okv_wire_space close_it = { .space = remote->space };
	struct kept *kept;

	/* They name it. */
	flush_uses(at);
	if (remote->epoch && remote->epoch == okv_conn_epoch(at->conn) && okv_conn_is_up(at->conn))
		okv_conn_send(at->conn, OKV_WIRE_SPACE_CLOSE, &close_it, sizeof(close_it));
	while ((kept = remote->kept)) {
		remote->kept = kept->next;
		free(kept);
	}
	free(remote->open);
	free(remote);
}

static void attached_use(struct okv_authority *auth, void *opaque, const struct okv_use *uses, uint32_t nr)
{
	struct attached *at = attached_of(auth);
	struct remote *remote = opaque;
	struct okv_wire_use *out;
	bool is_due = false;

	while (nr) {
		pthread_mutex_lock(&at->lock);
		/* Full, and the thread that filled it has yet to send it: these are not told. */
		if (at->uses.count == OKV_WIRE_USES_MAX) {
			is_due = true;
			nr = 0;
		}
		if (!at->uses.count)
			at->uses_since_ns = okv_monotonic_rough_ns();
		for (; nr && at->uses.count < OKV_WIRE_USES_MAX; nr--, uses++) {
			out = &at->use[at->uses.count++];
			*out = (struct okv_wire_use){
				.space = remote->space,
				.blocks_queried = uses->blocks_queried, .blocks_hit = uses->blocks_hit,
				.tokens_queried = uses->tokens_queried, .tokens_hit = uses->tokens_hit,
			};
			if (uses->last)
				out->last = *uses->last;
			is_due = at->uses.count == OKV_WIRE_USES_MAX;
		}
		is_due |= okv_monotonic_rough_ns() - at->uses_since_ns > USES_NS;
		pthread_mutex_unlock(&at->lock);
		if (is_due)
			flush_uses(at);
	}
}

static void attached_distrust(struct okv_authority *auth, void *opaque, const struct omnikv_key *key)
{
	struct okv_wire_distrust distrust = { .key = *key };
	struct attached *at = attached_of(auth);

	if (!space_of(at, opaque, &distrust.space))
		okv_conn_send(at->conn, OKV_WIRE_DISTRUST, &distrust, sizeof(distrust));
}

/* ---- lookups -------------------------------------------------------------------------------- */

/* The catalog as a reader sees it; false: it cannot be read now. */
static bool reader_of(struct attached *at, struct remote *remote, struct okv_reader *reader,
		      struct okv_reader_space *rspace)
{
	bool has;

	if (okv_is_forked(at->mark)) {
		*reader = (struct okv_reader){ 0 };
		return false;
	}
	pthread_mutex_lock(&at->lock);
	if (!remote->has_reader && remote->root_off &&
	    !okv_reader_init(&remote->reader, omnikv_pool_base(at->pool), at->pool_bytes, remote->root_off))
		remote->has_reader = !okv_reader_space(&remote->reader, remote->identity, &remote->rspace) &&
				     remote->rspace.nr_groups == remote->nr_groups;
	has = remote->has_reader;
	*reader = remote->reader;
	*rspace = remote->rspace;
	pthread_mutex_unlock(&at->lock);
	return has;
}

/* It was not what it seemed: look for it again at the next call. */
static void reader_is_stale(struct attached *at, struct remote *remote)
{
	pthread_mutex_lock(&at->lock);
	remote->has_reader = false;
	pthread_mutex_unlock(&at->lock);
}

/* All that @found has from block @from on. */
static int lease_found(struct attached *at, uint32_t nr_groups, const struct okv_found *found, uint32_t from)
{
	struct omnikv_extent leases[OKV_FOUND_BLOCKS * OMNIKV_GROUPS_MAX];
	uint32_t nr = 0;

	for (uint32_t i = from * nr_groups; i < found->nr * nr_groups; i++)
		if (found->extents[i].nr_granules)
			leases[nr++] = found->extents[i];
	return nr ? omnikv_extent_lease(at->auth.client, leases, nr) : 0;
}

/* Of a hit that was just made: what @found has room for of it, by memory of its own. */
static int read_long(const struct okv_reader *reader, const struct okv_reader_space *rspace,
		     const struct okv_reader_hit *hit, const struct okv_ask *ask, struct okv_found *found)
{
	uint64_t nr = (hit->nr_blocks - ask->first) * rspace->nr_groups, nr_kept = (uint64_t)ask->nr * rspace->nr_groups;
	struct omnikv_extent *extents = malloc(nr * sizeof(*extents));
	uint32_t *crcs = malloc(nr * sizeof(*crcs));
	int ret;

	ret = extents && crcs ? okv_reader_blocks(reader, rspace, hit, ask->first, NULL, extents, crcs) : -ENOMEM;
	if (!ret) {
		memcpy(&found->extents[ask->at * rspace->nr_groups], extents, nr_kept * sizeof(*extents));
		memcpy(&found->crcs[ask->at * rspace->nr_groups], crcs, nr_kept * sizeof(*crcs));
	}
	free(extents);
	free(crcs);
	return ret;
}

/* By the catalog, once: 0, or -ESTALE: what was found is not there any more, or may be (also where two found the same). */
static int look(struct attached *at, struct remote *remote, struct okv_ask *asks, uint32_t nr, uint32_t flags,
		struct okv_found *found)
{
	struct okv_reader_lookup lookups[OKV_ASKS_MAX];
	struct okv_reader_read reads[OKV_ASKS_MAX];
	uint32_t of[OKV_ASKS_MAX], nr_reads = 0, from = found->nr;
	struct okv_reader_space rspace;
	struct okv_reader reader;
	bool has_reader;

	has_reader = reader_of(at, remote, &reader, &rspace);
	if (flags & OKV_FIND_F_ANY)
		rspace.needed_state = 0;
	for (uint32_t i = 0; i < nr; i++)
		lookups[i].prefix = asks[i].prefix;
	if (has_reader)
		okv_reader_match_list(&reader, &rspace, lookups, nr);
	for (uint32_t i = 0; i < nr; i++) {
		const struct okv_reader_hit *hit = &lookups[i].hit;
		uint32_t max = OKV_FOUND_BLOCKS - found->nr;
		struct okv_ask *ask = &asks[i];

		ask->nr = 0;
		ask->has_more = false;
		ask->res = has_reader ? lookups[i].res : -EAGAIN;
		if (ask->res)
			continue;
		ask->nr_hit = hit->nr_blocks;
		ask->tail_tokens = hit->tail_tokens;
		if (hit->nr_blocks <= ask->first)
			continue;
		ask->at = found->nr;
		ask->has_more = hit->nr_blocks - ask->first > max;
		ask->nr = ask->has_more ? max : (uint32_t)(hit->nr_blocks - ask->first);
		found->nr += ask->nr;
		if (ask->has_more) {
			ask->res = ask->nr ? read_long(&reader, &rspace, hit, ask, found) : 0;
		} else {
			of[nr_reads] = i;
			reads[nr_reads++] = (struct okv_reader_read){
				.hit = hit, .from = ask->first,
				.extents = &found->extents[ask->at * rspace.nr_groups],
				.crc32c = &found->crcs[ask->at * rspace.nr_groups],
			};
		}
	}
	if (nr_reads)
		okv_reader_blocks_list(&reader, &rspace, reads, nr_reads);
	for (uint32_t i = 0; i < nr_reads; i++)
		asks[of[i]].res = reads[i].res;
	/* What could not be read is no extent, and what was given up between the look and the lease is looked for again. */
	for (uint32_t i = 0; i < nr; i++)
		if (asks[i].res && asks[i].nr)
			memset(&found->extents[asks[i].at * remote->nr_groups], 0,
			       (size_t)asks[i].nr * remote->nr_groups * sizeof(found->extents[0]));
	if (!lease_found(at, remote->nr_groups, found, from))
		return 0;
	found->nr = from;
	return -ESTALE;
}

/* By the catalog. @res -EAGAIN: it cannot be read now. */
static void find_shared(struct attached *at, struct remote *remote, struct okv_ask *asks, uint32_t nr, uint32_t flags,
			struct okv_found *found)
{
	bool is_leased = !look(at, remote, asks, nr, flags, found);

	for (uint32_t i = 0; i < nr; i++) {
		struct okv_ask *ask = &asks[i];

		if (!is_leased && ask->nr && !ask->res)
			ask->res = -ESTALE;
		for (uint32_t k = 1; k < FIND_TRIES && ask->res == -ESTALE; k++) {
			reader_is_stale(at, remote);
			/* Nothing of it is leased: its place is free, where it is the last. */
			if (ask->nr && ask->at + ask->nr == found->nr)
				found->nr = ask->at;
			if (look(at, remote, ask, 1, flags, found) && ask->nr && !ask->res)
				ask->res = -ESTALE;
		}
		if (ask->res == -EBADMSG || ask->res == -ESTALE)
			reader_is_stale(at, remote);
		if (!ask->res)
			continue;
		ask->res = -EAGAIN;
		ask->nr = 0;
		ask->has_more = false;
	}
}

struct find_reply {
	struct okv_wire_found	found;
	unsigned char		items[OKV_FOUND_BLOCKS * OMNIKV_GROUPS_MAX * (sizeof(struct omnikv_extent) + 4)];
};

/* By a frame; the daemon brings back what its spill store has, and leases what it finds. */
static int find_asked(struct attached *at, struct remote *remote, struct okv_ask *ask, uint32_t flags,
		      struct okv_found *found)
{
	const struct omnikv_key *keys = ask->prefix->keys, *tail = ask->prefix->tail;
	uint64_t nr_keys = ask->prefix->nr_keys, first = ask->first;
	uint32_t max = OKV_FOUND_BLOCKS - found->nr;
	struct {
		struct okv_wire_find	find;
		struct omnikv_key	keys[OKV_WIRE_KEYS_MAX + 2];
	} *req;
	struct find_reply *reply;
	struct okv_call frame = { .type = OKV_WIRE_FIND };
	/* What does not go into one frame goes from @first on, as far as one frame goes. */
	bool has_parent = nr_keys > OKV_WIRE_KEYS_MAX && first;
	uint64_t begin = has_parent ? first : 0;
	uint64_t nr_sent = nr_keys - begin < OKV_WIRE_KEYS_MAX ? nr_keys - begin : OKV_WIRE_KEYS_MAX;
	bool is_cut = begin + nr_sent < nr_keys;
	int ret;

	/* Where a hit can end is seen when all of it is here. */
	if (is_cut) {
		tail = NULL;
		flags |= OKV_FIND_F_ANY;
	}
	req = malloc(sizeof(*req));
	reply = malloc(sizeof(*reply));
	ret = req && reply ? 0 : -ENOMEM;
	if (!ret) {
		req->find = (struct okv_wire_find){
			.first = first, .flags = flags, .nr_keys = nr_sent, .has_tail = tail != NULL,
			.has_parent = has_parent,
		};
		memcpy(req->keys, keys + begin - has_parent, (nr_sent + has_parent) * sizeof(*keys));
		if (tail)
			req->keys[nr_sent + has_parent] = *tail;
	}
	if (!ret) {
		frame.req = req;
		frame.req_bytes = sizeof(req->find) + (nr_sent + has_parent + (tail != NULL)) * sizeof(*keys);
		frame.reply = reply;
		frame.reply_max = sizeof(*reply);
		ret = call_about(at, remote, &req->find.space, &frame);
	}
	if (ret >= 0) {
		uint32_t nr_all = reply->found.nr * remote->nr_groups, from = found->nr, nr;

		ask->nr_hit = reply->found.nr_hit;
		ask->tail_tokens = reply->found.tail_tokens;
		ask->at = from;
		ask->nr = reply->found.nr < max ? reply->found.nr : max;
		ask->has_more = ask->nr && (ask->nr < reply->found.nr || (is_cut && ask->nr_hit == begin + nr_sent));
		nr = ask->nr * remote->nr_groups;
		found->nr += ask->nr;
		memcpy(&found->extents[from * remote->nr_groups], reply->items, nr * sizeof(found->extents[0]));
		memcpy(&found->crcs[from * remote->nr_groups], reply->items + nr_all * sizeof(found->extents[0]),
		       nr * sizeof(found->crcs[0]));
		ret = lease_found(at, remote->nr_groups, found, from);
		if (ret) {
			found->nr = from;
			ask->nr = 0;
			ask->has_more = false;
		}
	}
	free(req);
	free(reply);
	return ret < 0 ? ret : 0;
}

static void attached_find(struct okv_authority *auth, void *opaque, struct okv_ask *asks, uint32_t nr, uint32_t flags,
			  struct okv_found *found)
{
	struct attached *at = attached_of(auth);
	struct remote *remote = opaque;
	bool is_up = okv_conn_is_up(at->conn);

	found->nr = 0;
	/* The memory is there without the daemon, but what it gives up then nobody can tell. */
	if (is_up)
		find_shared(at, remote, asks, nr, flags, found);
	for (uint32_t i = 0; i < nr; i++) {
		struct okv_ask *ask = &asks[i];
		bool is_found = is_up && !ask->res;

		if (is_found && (!(remote->flags & OKV_SPACE_OPENED_F_TIER) || (flags & OKV_FIND_F_ANY) ||
				 ask->nr_hit >= ask->prefix->nr_keys + (ask->prefix->tail != NULL)))
			continue;
		/* The begin of a path is in memory, and the rest may be on NVMe: that is asked for when this is leased and here. */
		if (is_found && ask->nr) {
			ask->has_more = true;
		} else if (found->nr == OKV_FOUND_BLOCKS) {
			ask->res = 0;
			ask->has_more = true;
		} else {
			ask->res = find_asked(at, remote, ask, flags, found);
		}
	}
}

static int64_t attached_lookup(struct okv_authority *auth, void *opaque, const struct omnikv_key *keys, size_t nr_keys)
{
	struct attached *at = attached_of(auth);
	struct okv_reader_space rspace;
	struct okv_reader_hit hit;
	struct okv_reader reader;

	if (!reader_of(at, opaque, &reader, &rspace) || okv_reader_match(&reader, &rspace, keys, nr_keys, NULL, &hit))
		return 0;
	return hit.nr_blocks;
}

/* ---- publishing ----------------------------------------------------------------------------- */

static int send_publish(struct attached *at, struct remote *remote, const struct okv_publication *pub,
			struct okv_wire_published *published)
{
	uint32_t nr_extents = pub->nr * remote->nr_groups, nr_keys = 0;
	struct {
		struct okv_wire_publish	publish;
		unsigned char		items[(OKV_AUTHORITY_BLOCKS + 1) * sizeof(struct omnikv_key) +
					      OKV_AUTHORITY_BLOCKS * OMNIKV_GROUPS_MAX * (sizeof(struct omnikv_extent) + 4)];
	} req = {
		.publish = {
			.position = pub->position, .nr = pub->nr, .tail_tokens = pub->tail_tokens, .epoch = pub->epoch,
			.has_parent = pub->parent != NULL, .nr_groups = remote->nr_groups,
		},
	};
	struct okv_call frame = { .type = OKV_WIRE_PUBLISH, .req = &req, .reply = published,
				  .reply_max = sizeof(*published) };
	unsigned char *item = req.items;
	int ret;

	if (pub->parent) {
		memcpy(item, pub->parent, sizeof(*pub->parent));
		nr_keys = 1;
	}
	memcpy(item + nr_keys * sizeof(*pub->keys), pub->keys, pub->nr * sizeof(*pub->keys));
	item += (nr_keys + pub->nr) * sizeof(*pub->keys);
	memcpy(item, pub->extents, nr_extents * sizeof(*pub->extents));
	item += nr_extents * sizeof(*pub->extents);
	memcpy(item, pub->crcs, nr_extents * sizeof(*pub->crcs));
	item += nr_extents * sizeof(*pub->crcs);
	frame.req_bytes = item - (unsigned char *)&req;
	ret = call_about(at, remote, &req.publish.space, &frame);
	if (ret < 0)
		return ret;
	return published->nr == pub->nr ? published->status : -ENOTCONN;
}

/*
 * The module has owners seal. Nothing is sealed while nobody is there to take it over: the next daemon would give it
 * up. What is sealed and not taken over goes with our lease.
 */
static int publish_sealed(struct attached *at, struct remote *remote, const struct okv_publication *all)
{
	struct okv_wire_published published = { .nr = 0 };
	struct omnikv_extent list[OMNIKV_GROUPS_MAX];
	struct okv_publication pub = *all;
	uint64_t space;
	int ret, error;

	ret = space_of(at, remote, &space);
	for (pub.nr = 0; !ret && pub.nr < all->nr; pub.nr += !ret) {
		uint32_t nr = 0;

		for (uint32_t g = 0; g < remote->nr_groups; g++)
			if (all->extents[pub.nr * remote->nr_groups + g].nr_granules)
				list[nr++] = all->extents[pub.nr * remote->nr_groups + g];
		ret = at->pool->provider->hand_over(at->auth.client, list, nr);
	}
	(void)OKV_FAILPOINT("attach.sealed");
	error = pub.nr ? send_publish(at, remote, &pub, &published) : 0;
	for (uint32_t i = 0; i < all->nr; i++) {
		if (i >= pub.nr)
			all->published[i] = OKV_PUBLISHED_NOT;
		else if (i < published.nr && published.published[i] == OKV_PUBLISHED_NEW)
			all->published[i] = OKV_PUBLISHED_NEW;
		else
			all->published[i] = OKV_PUBLISHED_ADRIFT;
	}
	return error < 0 ? error : ret;
}

static int attached_publish(struct okv_authority *auth, void *opaque, const struct okv_publication *pub)
{
	struct okv_wire_published published = { .nr = 0 };
	struct attached *at = attached_of(auth);
	struct remote *remote = opaque;
	int ret;

	flush_uses(at);
	if (at->is_module)
		return publish_sealed(at, remote, pub);
	okv_daemon_client_offer(auth->client, pub->extents, pub->nr * remote->nr_groups);
	ret = send_publish(at, remote, pub, &published);
	for (uint32_t i = 0; i < pub->nr; i++) {
		const struct omnikv_extent *extents = &pub->extents[i * remote->nr_groups];

		pub->published[i] = i < published.nr ? published.published[i] : OKV_PUBLISHED_NOT;
		if (pub->published[i] != OKV_PUBLISHED_NEW && pub->published[i] != OKV_PUBLISHED_ADRIFT)
			continue;
		for (uint32_t g = 0; g < remote->nr_groups; g++)
			if (extents[g].nr_granules)
				okv_daemon_client_sealed(auth->client, &extents[g], 1);
	}
	return ret;
}

static int attached_attach(struct okv_authority *auth, void *opaque, const struct omnikv_key *key, uint32_t group,
			   const struct omnikv_extent *extent, uint32_t crc, uint32_t epoch)
{
	struct okv_wire_state state = { .extent = *extent, .group = group, .crc = crc, .key = *key, .epoch = epoch };
	struct okv_call frame = { .type = OKV_WIRE_STATE, .req = &state, .req_bytes = sizeof(state) };
	struct attached *at = attached_of(auth);
	struct remote *remote = opaque;
	int ret;

	if (at->is_module) {
		ret = at->pool->provider->hand_over(auth->client, extent, 1);
		if (!ret && call_about(at, remote, &state.space, &frame) < 0) {
			omnikv_extent_release(auth->client, extent, 1);
			ret = -ENODATA;
		}
		return ret;
	}
	ret = omnikv_extent_io_get(auth->client, extent, 1);
	if (ret)
		return ret;
	okv_daemon_client_offer(auth->client, extent, 1);
	ret = call_about(at, remote, &state.space, &frame);
	if (ret >= 0 || ret == -ENODATA)
		okv_daemon_client_sealed(auth->client, extent, 1);
	if (ret >= 0)
		ret = omnikv_extent_lease(auth->client, extent, 1) ? -ENODATA : 0;
	omnikv_extent_io_put(auth->client, extent, 1);
	return ret;
}

/* Transfers of this process are counted here; only the daemon can seal, and nobody else stores into it. */
static bool attached_is_idle(struct okv_authority *auth, const struct omnikv_extent *extent)
{
	struct omnikv_extent_info info = { .size = sizeof(info) };
	struct okv_embedded_client *client;
	struct okv_embedded_pool *pool;
	const struct okv_hold *hold;
	bool is_idle;

	if (attached_of(auth)->is_module)
		return !omnikv_extent_query(auth->client, extent, &info) && !info.nr_refs;
	client = okv_embedded_client(auth->client);
	pool = okv_embedded_pool(auth->client->pool);
	pthread_mutex_lock(&pool->lock);
	hold = okv_holds_find(&client->holds, (uint32_t)extent->granule);
	is_idle = !hold || hold->generation != extent->generation || !hold->nr_ios;
	pthread_mutex_unlock(&pool->lock);
	return is_idle;
}

/* ---- what is only passed on ----------------------------------------------------------------- */

/* A daemon that allocates evicts as it does, so what did not fit then does not fit. For the module make_room() asks it to. */
static int attached_make_room(struct okv_authority *auth, uint64_t nr_granules)
{
	(void)auth;
	(void)nr_granules;
	return -ENOSPC;
}

static int make_room(void *opaque, uint32_t nr_granules, uint32_t count)
{
	struct okv_wire_room room = { .nr_granules = nr_granules, .count = count };
	struct okv_call frame = { .type = OKV_WIRE_ROOM, .req = &room, .req_bytes = sizeof(room) };

	return call(opaque, 0, &frame) < 0 ? -ENOSPC : 0;
}

static int attached_can_room(struct okv_authority *auth, uint64_t nr_granules)
{
	struct okv_wire_admit admit = { .nr_granules = nr_granules };
	struct okv_call frame = { .type = OKV_WIRE_ADMIT, .req = &admit, .req_bytes = sizeof(admit), .status_max = 1 };
	int ret = call(attached_of(auth), 0, &frame);

	return ret < 0 ? 0 : ret != 0;
}

static int64_t attached_reset(struct okv_authority *auth)
{
	struct okv_call frame = { .type = OKV_WIRE_RESET, .status_max = INT32_MAX };

	return call(attached_of(auth), 0, &frame);
}

/* The daemon's library may know more of them, or fewer. */
static int attached_stats(struct okv_authority *auth, struct omnikv_manager_stats *stats)
{
	union {
		struct omnikv_manager_stats	stats;
		unsigned char			room[4096];
	} theirs = { .room = { 0 } };
	struct okv_call frame = { .type = OKV_WIRE_STATS, .reply = &theirs, .reply_max = sizeof(theirs) };
	int ret;

	/* Its own lookups are among them. */
	flush_uses(attached_of(auth));
	ret = call(attached_of(auth), 0, &frame);
	if (ret < 0)
		return ret;
	theirs.stats.size = sizeof(*stats);
	*stats = theirs.stats;
	return 0;
}

static int attached_promise(struct okv_authority *auth, void *opaque, const struct omnikv_key *keys, size_t nr_keys,
			    uint32_t timeout_ms)
{
	struct okv_wire_promise promise = { .timeout_ms = timeout_ms };
	struct okv_call frame = { .type = OKV_WIRE_PROMISE, .req = &promise, .req_bytes = sizeof(promise) };
	const struct remote *remote = opaque;
	int ret = 0;

	memcpy(promise.identity, remote->identity, sizeof(promise.identity));
	while (nr_keys && ret >= 0) {
		promise.nr_keys = nr_keys < OKV_WIRE_KEYS_MAX ? nr_keys : OKV_WIRE_KEYS_MAX;
		frame.items = keys;
		frame.items_bytes = promise.nr_keys * sizeof(*keys);
		ret = call(attached_of(auth), 0, &frame);
		keys += promise.nr_keys;
		nr_keys -= promise.nr_keys;
	}
	return ret < 0 ? ret : 0;
}

static int64_t attached_prefetch(struct okv_authority *auth, void *opaque, const struct omnikv_key *keys,
				 size_t nr_keys)
{
	struct okv_wire_prefetch prefetch;
	struct okv_call frame = { .type = OKV_WIRE_PREFETCH, .req = &prefetch, .req_bytes = sizeof(prefetch) };
	uint64_t from = 0, nr;
	int64_t ret;

	/* A frame at a time, as long as all of it is there. */
	do {
		nr = nr_keys - from < OKV_WIRE_KEYS_MAX ? nr_keys - from : OKV_WIRE_KEYS_MAX;
		prefetch = (struct okv_wire_prefetch){ .nr_keys = nr, .first = from };
		frame.items = keys + from - (from != 0);
		frame.items_bytes = (nr + (from != 0)) * sizeof(*keys);
		frame.status_max = from + nr < INT32_MAX ? (int32_t)(from + nr) : INT32_MAX;
		ret = call_about(attached_of(auth), opaque, &prefetch.space, &frame);
		from += nr;
	} while (ret == (int64_t)from && from < nr_keys);
	return ret == -ESTALE && from > nr ? (int64_t)(from - nr) : ret;
}

static int attached_note_tokens(struct okv_authority *auth, void *opaque, const struct omnikv_key *keys, size_t nr_keys,
				uint32_t block_tokens, const uint32_t *tokens)
{
	struct okv_wire_tokens head = { .block_tokens = block_tokens };
	struct okv_call frame = { .type = OKV_WIRE_TOKENS, .req = &head, .req_bytes = sizeof(head) };
	const struct remote *remote = opaque;
	size_t most = OKV_WIRE_TOKENS_MAX / block_tokens;
	unsigned char *items;
	int ret = 0;

	if (!(remote->flags & OKV_SPACE_OPENED_F_TOKENS) || !most)
		return 0;
	most = most < OKV_WIRE_TOKENS_KEYS_MAX ? most : OKV_WIRE_TOKENS_KEYS_MAX;
	most = nr_keys < most ? nr_keys : most;
	items = malloc(most * (sizeof(*keys) + block_tokens * sizeof(*tokens)) + 1);
	if (!items)
		return -ENOMEM;
	frame.items = items;
	while (nr_keys && ret >= 0) {
		head.nr_keys = (uint32_t)(nr_keys < most ? nr_keys : most);
		memcpy(items, keys, head.nr_keys * sizeof(*keys));
		memcpy(items + head.nr_keys * sizeof(*keys), tokens, head.nr_keys * block_tokens * sizeof(*tokens));
		frame.items_bytes = head.nr_keys * (sizeof(*keys) + block_tokens * sizeof(*tokens));
		ret = call_about(attached_of(auth), opaque, &head.space, &frame);
		keys += head.nr_keys;
		tokens += (size_t)head.nr_keys * block_tokens;
		nr_keys -= head.nr_keys;
	}
	free(items);
	return ret < 0 ? ret : 0;
}

struct join_frame {
	struct okv_wire_join	join;
	unsigned char		items[OMNIKV_GROUPS_MAX * (sizeof(struct omnikv_extent) + 4)];
};

/*
 * The module has owners seal, and gives nothing back to them that is. So whatever leaves a part its owner's is asked for
 * before; what comes in between drops it. Ours until the daemon has answered, and then that daemon's or nobody's.
 */
static int join_sealed(struct attached *at, struct remote *remote, const struct omnikv_join *join,
		       struct join_frame *req, struct okv_call *frame)
{
	uint32_t nr = __builtin_popcount(join->groups);
	int ret;

	req->join.flags = OKV_WIRE_JOIN_F_ASK;
	ret = call_about(at, remote, &req->join.space, frame);
	if (ret == -ESTALE)
		omnikv_extent_free(at->auth.client, join->extents, nr);
	if (!ret)
		ret = at->pool->provider->hand_over(at->auth.client, join->extents, nr);
	(void)OKV_FAILPOINT("join.sealed");
	if (ret)
		return ret;
	req->join.flags = 0;
	ret = call_about(at, remote, &req->join.space, frame);
	omnikv_extent_release(at->auth.client, join->extents, nr);
	return ret;
}

static int attached_join(struct okv_authority *auth, void *opaque, const struct omnikv_join *join)
{
	uint32_t nr = __builtin_popcount(join->groups);
	struct join_frame req = {
		.join = {
			.position = join->position, .nr_tokens = join->nr_tokens, .part = join->part,
			.nr_parts = join->nr_parts, .groups = join->groups, .timeout_ms = join->timeout_ms, .key = *join->key,
			.epoch = join->epoch,
		},
	};
	struct okv_call frame = {
		.type = OKV_WIRE_JOIN, .req = &req, .status_max = 1,
		.req_bytes = sizeof(req.join) + nr * (sizeof(*join->extents) + sizeof(*join->crcs)),
	};
	struct attached *at = attached_of(auth);
	int ret;

	if (join->parent)
		req.join.parent = *join->parent;
	memcpy(req.items, join->extents, nr * sizeof(*join->extents));
	memcpy(req.items + nr * sizeof(*join->extents), join->crcs, nr * sizeof(*join->crcs));
	ret = -OKV_FAILPOINT("join.send");
	okv_daemon_client_offer(auth->client, join->extents, nr);
	if (!ret)
		ret = at->is_module ? join_sealed(at, opaque, join, &req, &frame) : call_about(at, opaque, &req.join.space, &frame);
	(void)OKV_FAILPOINT("join.sent");
	if (ret >= 0 || ret == -ECANCELED || ret == -ESTALE)
		okv_daemon_client_sealed(auth->client, join->extents, nr);
	return ret;
}

/* ---- retentions, sequences on their way ------------------------------------------------------ */

static int attached_retain(struct okv_authority *auth, void *opaque, const struct omnikv_key *key, uint32_t position,
			   const struct omnikv_retention *how)
{
	struct okv_wire_retain retain = retain_frame(how, key, position);
	struct okv_call frame = {
		.type = OKV_WIRE_RETAIN, .req = &retain, .req_bytes = sizeof(retain), .status_max = !key,
	};
	struct attached *at = attached_of(auth);
	struct remote *remote = opaque;
	struct kept *kept = NULL;
	int ret;

	if (key && how->next_use_ms != OMNIKV_NEXT_USE_NEVER) {
		kept = malloc(sizeof(*kept));
		if (!kept)
			return -ENOMEM;
		*kept = (struct kept){ .how = *how, .key = *key, .position = position, .since_ns = okv_monotonic_ns() };
	}
	flush_uses(at);
	if (okv_mutex_lock_until(&at->retain_lock, okv_monotonic_ns() + at->deadline_ms * UINT64_C(1000000))) {
		free(kept);
		return -ENOTCONN;
	}
	ret = call_about(at, remote, &retain.space, &frame);
	if (ret < 0)
		free(kept);
	else
		keep(remote, how->session, kept);
	pthread_mutex_unlock(&at->retain_lock);
	return ret;
}

static int attached_give(struct okv_authority *auth, void *opaque, const struct omnikv_key *key, uint32_t position,
			 uint32_t timeout_ms, struct omnikv_ticket *ticket)
{
	struct okv_wire_give give = { .key = *key, .position = position, .timeout_ms = timeout_ms };
	struct okv_call frame = {
		.type = OKV_WIRE_GIVE, .req = &give, .req_bytes = sizeof(give), .reply = ticket, .reply_max = sizeof(*ticket),
	};

	return call_about(attached_of(auth), opaque, &give.space, &frame);
}

static int attached_take(struct okv_authority *auth, void *opaque, const struct omnikv_ticket *ticket, uint64_t first,
			 struct okv_handed *handed)
{
	struct {
		struct okv_wire_taken	taken;
		struct omnikv_key	keys[OKV_HANDED_KEYS];
	} *reply = malloc(sizeof(*reply));
	struct okv_wire_take take = { .ticket = *ticket, .first = first };
	struct okv_call frame = {
		.type = OKV_WIRE_TAKE, .req = &take, .req_bytes = sizeof(take), .reply = reply, .reply_max = sizeof(*reply),
	};
	int ret;

	if (!reply)
		return -ENOMEM;
	ret = call_about(attached_of(auth), opaque, &take.space, &frame);
	if (!ret) {
		handed->nr_blocks = reply->taken.nr_blocks;
		handed->has_tail = reply->taken.has_tail;
		handed->nr = reply->taken.nr;
		memcpy(handed->keys, reply->keys, handed->nr * sizeof(handed->keys[0]));
	}
	free(reply);
	return ret;
}

static int attached_take_end(struct okv_authority *auth, void *opaque, const struct omnikv_ticket *ticket)
{
	struct okv_wire_take take = { .ticket = *ticket };
	struct okv_call frame = { .type = OKV_WIRE_TAKE_END, .req = &take, .req_bytes = sizeof(take) };

	return call_about(attached_of(auth), opaque, &take.space, &frame);
}

static int64_t attached_epoch(struct okv_authority *auth)
{
	struct okv_wire_epoch epoch;
	struct okv_call frame = { .type = OKV_WIRE_EPOCH, .reply = &epoch, .reply_max = sizeof(epoch) };
	int ret = call(attached_of(auth), 0, &frame);

	return ret < 0 ? ret : (int64_t)epoch.epoch;
}

/* In the pool's memory, which is there without the daemon. */
static uint64_t attached_epoch_now(struct okv_authority *auth, void *opaque, uint64_t known)
{
	struct okv_reader_space rspace;
	struct okv_reader reader;
	struct remote *remote = opaque;
	bool has;

	has = reader_of(attached_of(auth), remote, &reader, &rspace);
	return has || reader.base ? okv_reader_epoch(&reader) : known;
}

/* One waits at a time; others of this process wait for that. */
static int attached_wait(struct okv_authority *auth, void *opaque, const struct omnikv_key *key, uint32_t timeout_ms)
{
	struct okv_wire_wait wait = { .key = *key, .timeout_ms = timeout_ms };
	struct okv_call frame = {
		.type = OKV_WIRE_WAIT, .req = &wait, .req_bytes = sizeof(wait), .status_max = 1,
	};
	struct attached *at = attached_of(auth);
	const struct okv_conn_hooks hooks = { .open_ms = at->deadline_ms };
	const struct remote *remote = opaque;
	uint64_t until_ns = okv_monotonic_ns() + ((uint64_t)timeout_ms + at->deadline_ms) * 1000000, now;
	int ret;

	memcpy(wait.identity, remote->identity, sizeof(wait.identity));
	ret = okv_mutex_lock_until(&at->wait_lock, until_ns);
	if (ret)
		return ret;
	if (!at->wait_conn)
		ret = okv_conn_open(okv_conn_path(at->conn), &hooks, &at->wait_conn, NULL);
	now = okv_monotonic_ns();
	if (!ret && now >= until_ns)
		ret = -ETIME;
	if (!ret) {
		frame.timeout_ms = (uint32_t)((until_ns - now) / 1000000) + 1;
		ret = okv_conn_call(at->wait_conn, &frame);
	}
	pthread_mutex_unlock(&at->wait_lock);
	return ret == -EPIPE || ret == -EPROTO ? -ENOTCONN : ret;
}

static void attached_destroy(struct okv_authority *auth)
{
	struct attached *at = attached_of(auth);

	flush_uses(at);
	okv_conn_close(at->wait_conn);
	pthread_mutex_destroy(&at->wait_lock);
	pthread_mutex_destroy(&at->retain_lock);
	pthread_mutex_destroy(&at->lock);
	omnikv_client_close(auth->client);
	if (at->is_module)
		okv_conn_close(at->conn);
	omnikv_pool_close(at->pool);
	okv_fork_mark_free(at->mark);
	free(at);
}

static const struct okv_authority_ops attached_ops = {
	.space_open	= attached_space_open,
	.space_close	= attached_space_close,
	.lookup		= attached_lookup,
	.find		= attached_find,
	.publish	= attached_publish,
	.attach		= attached_attach,
	.is_idle	= attached_is_idle,
	.use		= attached_use,
	.distrust	= attached_distrust,
	.make_room	= attached_make_room,
	.can_room	= attached_can_room,
	.reset		= attached_reset,
	.stats		= attached_stats,
	.promise	= attached_promise,
	.wait		= attached_wait,
	.prefetch	= attached_prefetch,
	.note_tokens	= attached_note_tokens,
	.join		= attached_join,
	.retain		= attached_retain,
	.give		= attached_give,
	.take		= attached_take,
	.take_end	= attached_take_end,
	.epoch		= attached_epoch,
	.epoch_now	= attached_epoch_now,
	.destroy	= attached_destroy,
};

/* ---- attaching ------------------------------------------------------------------------------ */

/* The daemon behind the module's pool counts us among those that use it; it must be of the same pool each time. */
static int module_connected(struct okv_conn *conn, void *opaque, bool is_first, struct omnikv_error *err)
{
	const struct okv_wire_attach attach = { 0 };
	struct okv_wire_attached attached;
	struct attached *at = opaque;
	struct okv_call frame = {
		.type = OKV_WIRE_ATTACH, .req = &attach, .req_bytes = sizeof(attach), .reply = &attached,
		.reply_max = sizeof(attached), .err = err,
	};
	int ret = okv_conn_call_locked(conn, &frame);

	for (uint32_t i = 0; i < OKV_WIRE_FDS_MAX; i++)
		if (frame.fds_out[i] >= 0)
			close(frame.fds_out[i]);
	if (ret < 0)
		return ret;
	if (is_first)
		memcpy(at->pool_name, attached.name, sizeof(at->pool_name));
	if (attached.kind != OKV_WIRE_POOL_KMOD || memcmp(at->pool_name, attached.name, sizeof(at->pool_name)))
		return okv_error_set(err, -ESTALE, "the daemon has another pool than before");
	return 0;
}

static int attach_begin(const char *socket, const struct omnikv_attach_config *config, struct attached *at,
			struct omnikv_error *err)
{
	const struct omnikv_pool_config pool = { .size = sizeof(pool) };
	struct okv_pool_spec spec = { .kind = OKV_PROVIDER_DAEMON, .name = socket };
	struct omnikv_pool_info info = { .size = sizeof(info) };
	int ret;

	at->deadline_ms = config->deadline_ms ? config->deadline_ms : DEADLINE_MS;
	at->reserve_bytes = config->reserve_bytes ? config->reserve_bytes : RESERVE_BYTES;
	spec.timeout_ms = at->deadline_ms;
	ret = okv_provider_daemon.open(&spec, &pool, &at->pool, err);
	if (ret)
		return err && !err->text[0] ? okv_conn_say_why(socket, ret, 0, err) : ret;
	ret = okv_daemon_client_open(at->pool, 0, &at->auth.client, err);
	if (ret) {
		if (err && !err->text[0])
			okv_conn_say_why(socket, ret, 0, err);
		goto err_pool;
	}
	at->conn = okv_daemon_client_conn(at->auth.client);
	if (!at->conn) {
		const struct okv_conn_hooks hooks = {
			.connected = module_connected, .opaque = at, .timeout_ms = at->deadline_ms,
		};

		at->is_module = true;
		ret = okv_conn_open(socket, &hooks, &at->conn, err);
		if (ret)
			goto err_client;
		at->auth.client->make_room = make_room;
		at->auth.client->room_opaque = at;
	}
	ret = omnikv_pool_info(at->pool, &info);
	if (ret) {
		okv_conn_say_why(socket, ret, 0, err);
		goto err_conn;
	}
	at->pool_bytes = info.nr_granules * info.granule_bytes;
	return 0;

err_conn:
	if (at->is_module)
		okv_conn_close(at->conn);

err_client:
	omnikv_client_close(at->auth.client);
err_pool:
	omnikv_pool_close(at->pool);
	return ret;
}

int omnikv_manager_attach(const char *socket, const struct omnikv_attach_config *config,
			  struct omnikv_manager **manager, struct omnikv_error *err)
{
	struct omnikv_attach_config full;
	struct attached *at;
	int ret;

	if (err)
		err->text[0] = '\0';
	if (!manager)
		return -EINVAL;
	ret = okv_option_copy(&full, sizeof(full), config);
	if (ret)
		return okv_error_set(err, ret, "struct omnikv_attach_config is of another size");
	if (full.flags & ~OMNIKV_ATTACH_F_ALL)
		return okv_error_set(err, -EINVAL, "flags: 0x%x are unknown", full.flags & ~OMNIKV_ATTACH_F_ALL);
	if (full.deadline_ms > DEADLINE_MS_MAX)
		return okv_error_set(err, -EINVAL, "deadline_ms: %u; at most %u", full.deadline_ms, DEADLINE_MS_MAX);
	at = calloc(1, sizeof(*at));
	if (!at)
		return -ENOMEM;
	at->mark = okv_fork_mark_new();
	ret = at->mark ? attach_begin(socket, &full, at, err) : -ENOMEM;
	if (ret) {
		okv_fork_mark_free(at->mark);
		free(at);
		return ret;
	}
	at->auth.ops = &attached_ops;
	at->auth.holds_ios = !at->is_module;
	pthread_mutex_init(&at->lock, NULL);
	pthread_mutex_init(&at->wait_lock, NULL);
	pthread_mutex_init(&at->retain_lock, NULL);
	return okv_manager_attach_to(&at->auth, manager);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * The plain model of the prefix index; index_model.h has the idea.
 *
 * A universe of blocks is drawn first: two namespaces that share their keys, paths that branch,
 * partial tails. Each record gets a serial number as the generation of its extents, by which a
 * victim is recognised. A use of a block sets the time of its whole path, so the model's order
 * is the rule itself: of the leaves without pins the oldest, deeper first.
 */
#include "index_model.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "manager/index.h"

#define T		16u
#define GROUPS_MAX	4u
#define DEPTH_MAX	512u
#define NONE		(-1)

struct node {			/* a block that could be cached */
	int			parent;
	uint32_t		ns;
	uint32_t		position;
	uint32_t		nr_tokens;
	struct omnikv_key	key;
	int			record;		/* the cached one, or NONE */
};

struct record {			/* a block that is cached, or dropped and not yet gone */
	bool			is_used;
	bool			is_dropped;
	int			node;
	int			parent;		/* record */
	uint32_t		id;
	uint32_t		nr_children;
	uint32_t		nr_pins;
	uint64_t		time;
	uint64_t		heat;
	struct omnikv_extent	extents[GROUPS_MAX];
	uint32_t		crc32c[GROUPS_MAX];
};

struct model {
	const struct index_model_config	*config;
	struct okv_index		*ix;
	struct node			*nodes;
	struct record			*records;
	uint32_t			nr_records;	/* ever used */
	uint32_t			records_max;
	uint64_t			now;
	uint32_t			serial;
	uint64_t			rng;
	const uint8_t			*ops, *end;
	struct index_model_counts	*counts;
	char				why[200];
};

static char last_why[200];

#define DIFFER(m, ...) (snprintf((m)->why, sizeof((m)->why), __VA_ARGS__), false)

static uint64_t draw(struct model *m)
{
	m->rng ^= m->rng << 13;
	m->rng ^= m->rng >> 7;
	m->rng ^= m->rng << 17;
	return m->rng * 0x2545f4914f6cdd1dull;
}

static uint32_t below(struct model *m, uint32_t n)
{
	return (uint32_t)((draw(m) >> 32) * n >> 32);
}

static uint32_t op_byte(struct model *m)
{
	return m->ops < m->end ? *m->ops++ : 0;
}

static uint32_t op_word(struct model *m)
{
	uint32_t hi = op_byte(m);

	return hi << 8 | op_byte(m);
}

static void make_universe(struct model *m)
{
	uint32_t i, k;

	for (i = 0; i < m->config->nr_nodes; i++) {
		struct node *n = &m->nodes[i];
		int parent = NONE;

		n->ns = (i & 1) * (m->config->second_ns ? m->config->second_ns : 3);
		n->record = NONE;
		if (i >= 2 && below(m, 100) < 97)
			parent = below(m, 100) < 90 ? (int)i - 2 : (int)(below(m, i / 2) * 2 + (i & 1));
		/* A tail has nothing behind it: go to what it hangs on. */
		while (parent != NONE && m->nodes[parent].nr_tokens < T)
			parent = m->nodes[parent].parent;
		if (parent != NONE && m->nodes[parent].position + 2 >= DEPTH_MAX)
			parent = NONE;
		n->parent = parent;
		n->position = parent == NONE ? 0 : m->nodes[parent].position + 1;
		n->nr_tokens = below(m, 8) == 0 ? 1 + below(m, T - 1) : T;
		/* Block i and i + 1 have one key, in two namespaces. */
		n->key.len = (i >> 1) % 3 == 0 ? 32 : (i >> 1) % 3 == 1 ? 16 : 5;
		for (k = 0; k < n->key.len; k++)
			n->key.bytes[k] = (uint8_t)((i >> 1) >> (8 * (k % 4)) ^ (k * 37));
	}
}

static const struct node *node_of(const struct model *m, int rec)
{
	return &m->nodes[m->records[rec].node];
}

static void model_touch(struct model *m, int rec)
{
	m->now++;
	for (; rec != NONE; rec = m->records[rec].parent)
		m->records[rec].time = m->now;
}

static void place(struct model *m, int parent, struct omnikv_extent *extents, uint32_t *crc)
{
	uint32_t g;

	m->serial++;
	for (g = 0; g < m->config->nr_groups; g++) {
		extents[g].generation = m->serial;
		extents[g].nr_granules = 1 + (below(m, 8) == 0) + g;
		extents[g].granule = (uint64_t)below(m, 1u << 30) << 8;
		if (parent != NONE && m->records[parent].extents[g].nr_granules && below(m, 4))
			extents[g].granule = m->records[parent].extents[g].granule +
				m->records[parent].extents[g].nr_granules;
		if ((m->config->optional_groups & (1u << g)) && below(m, 3)) {
			memset(&extents[g], 0, sizeof(extents[g]));
			extents[g].generation = m->serial;
		}
		crc[g] = (uint32_t)draw(m);
	}
}

static int record_new(struct model *m, int node, int parent, uint32_t id, const struct omnikv_extent *extents,
		      const uint32_t *crc)
{
	uint32_t i;

	for (i = 0; i < m->records_max - 1 && m->records[i].is_used; i++)
		;
	if (i >= m->nr_records)
		m->nr_records = i + 1;
	memset(&m->records[i], 0, sizeof(m->records[i]));
	m->records[i].is_used = true;
	m->records[i].node = node;
	m->records[i].parent = parent;
	m->records[i].id = id;
	memcpy(m->records[i].extents, extents, m->config->nr_groups * sizeof(*extents));
	memcpy(m->records[i].crc32c, crc, m->config->nr_groups * sizeof(*crc));
	m->nodes[node].record = (int)i;
	if (parent != NONE)
		m->records[parent].nr_children++;
	model_touch(m, (int)i);
	m->counts->nr_inserted++;
	return (int)i;
}

static void record_gone(struct model *m, int rec)
{
	if (!m->records[rec].is_dropped)
		m->nodes[m->records[rec].node].record = NONE;
	m->records[rec].is_used = false;
	if (m->records[rec].parent != NONE)
		m->records[m->records[rec].parent].nr_children--;
}

/* The record from which all of @nr blocks of one extents array came, or NONE. */
static int record_of_extents(const struct model *m, const struct omnikv_extent *extents)
{
	uint32_t i, g;

	for (i = 0; i < m->nr_records; i++) {
		if (!m->records[i].is_used || m->records[i].extents[0].generation != extents[0].generation)
			continue;
		for (g = 0; g < m->config->nr_groups; g++) {
			if (memcmp(&m->records[i].extents[g], &extents[g], sizeof(*extents)))
				return NONE;
		}
		return (int)i;
	}
	return NONE;
}

static bool do_insert(struct model *m)
{
	int node = (int)(op_word(m) % m->config->nr_nodes);
	struct node *n = &m->nodes[node];
	int up = n->parent == NONE ? NONE : m->nodes[n->parent].record;
	struct omnikv_extent extents[GROUPS_MAX];
	uint32_t crc[GROUPS_MAX], id = 77, want_id = 77;
	struct okv_index_block block = { .ns = n->ns, .parent = OKV_ENTRY_NONE, .position = n->position,
		.nr_tokens = n->nr_tokens, .key = &n->key, .extents = extents, .crc32c = crc };
	int ret, want = 0;

	place(m, up, extents, crc);
	if (n->parent != NONE) {
		/* With its parent absent there is no id to name it by. */
		block.parent = up == NONE ? 0xfffffff0u : m->records[up].id;
		want = up == NONE ? -ESTALE : 0;
	}
	if (op_byte(m) % 16 == 0) {
		block.position++;
		if (!want)
			want = -EINVAL;
	}
	if (!want && n->record != NONE) {
		want = -EEXIST;
		want_id = m->records[n->record].id;
		if (m->records[n->record].parent != up)
			want = -EINVAL;
	}
	ret = okv_index_insert(m->ix, &block, &id);
	if (ret != want || (want && id != want_id))
		return DIFFER(m, "insert of block %d: %d, not %d", node, ret, want);
	if (!ret)
		record_new(m, node, up, id, extents, crc);
	return true;
}

static size_t path_of(const struct model *m, int node, int *path)
{
	size_t nr = 0, i;

	for (; node != NONE; node = m->nodes[node].parent)
		path[nr++] = node;
	for (i = 0; i < nr / 2; i++) {
		int swap = path[i];

		path[i] = path[nr - 1 - i];
		path[nr - 1 - i] = swap;
	}
	return nr;
}

static bool do_insert_path(struct model *m)
{
	static struct omnikv_key keys[DEPTH_MAX];
	static struct omnikv_extent extents[DEPTH_MAX * GROUPS_MAX];
	static uint32_t crc[DEPTH_MAX * GROUPS_MAX], ids[DEPTH_MAX];
	static bool is_new[DEPTH_MAX];
	int node = (int)(op_word(m) % m->config->nr_nodes), path[DEPTH_MAX], up = NONE;
	struct okv_index_block block = { .parent = OKV_ENTRY_NONE, .key = keys, .extents = extents, .crc32c = crc };
	uint32_t g = m->config->nr_groups;
	size_t nr, done, i;
	int ret;

	if (m->nodes[node].nr_tokens < T)
		node = m->nodes[node].parent;
	nr = path_of(m, node, path);
	if (nr == 0)
		return true;
	block.ns = m->nodes[node].ns;
	for (i = 0; i < nr; i++) {
		keys[i] = m->nodes[path[i]].key;
		place(m, NONE, extents + i * g, crc + i * g);
		if (i && below(m, 3))
			extents[i * g].granule = extents[(i - 1) * g].granule + extents[(i - 1) * g].nr_granules;
	}
	ret = okv_index_insert_path(m->ix, &block, nr, &done, ids, is_new);
	if (ret || done != nr)
		return DIFFER(m, "insert of a path: %d after %zu of %zu", ret, done, nr);
	for (i = 0; i < nr; i++) {
		int rec = m->nodes[path[i]].record;

		if (is_new[i] != (rec == NONE) || (rec != NONE && m->records[rec].id != ids[i]))
			return DIFFER(m, "insert of a path: block %d was there already, or was not", path[i]);
		if (rec == NONE)
			rec = record_new(m, path[i], up, ids[i], extents + i * g, crc + i * g);
		up = rec;
	}
	return true;
}

/* The cached full block of @key at @position, by looking at all. */
static int model_find_at(const struct model *m, uint32_t ns, const struct omnikv_key *key, size_t position)
{
	uint32_t i;

	for (i = 0; i < m->config->nr_nodes; i++) {
		const struct node *n = &m->nodes[i];

		if (n->record != NONE && n->ns == ns && n->position == position && n->nr_tokens == T &&
		    n->key.len == key->len && !memcmp(n->key.bytes, key->bytes, sizeof(key->bytes)))
			return n->record;
	}
	return NONE;
}

/* The two ways to list a hit's runs: the same blocks in the same places. */
static bool same_runs(struct model *m, const struct okv_index_hit *hit)
{
	static struct okv_index_run a[DEPTH_MAX], b[DEPTH_MAX];
	uint32_t group = op_byte(m) % m->config->nr_groups, from = op_byte(m) % 4 ? 0 : op_byte(m) % 32;
	int64_t na = okv_index_runs(m->ix, hit->entry, group, from, a, DEPTH_MAX), i = 0, k = 0;
	int64_t nb = okv_index_hit_runs(m->ix, hit, group, from, b, DEPTH_MAX);
	uint32_t in_a = 0, in_b = 0;

	if (na < 0 || nb < 0 || nb > na)
		return DIFFER(m, "runs of a hit: %lld, not %lld", (long long)nb, (long long)na);
	for (; i < na && k < nb; in_a++, in_b++) {
		if (a[i].position + in_a != b[k].position + in_b || a[i].nr_granules != b[k].nr_granules ||
		    a[i].granule + (uint64_t)in_a * a[i].nr_granules != b[k].granule + (uint64_t)in_b * b[k].nr_granules)
			return DIFFER(m, "runs of a hit: another extent at position %u", a[i].position + in_a);
		if (in_b + 1 == b[k].nr_blocks && (in_a + 1 != a[i].nr_blocks || a[i].entry != b[k].entry))
			return DIFFER(m, "runs of a hit: another end at position %u", a[i].position + in_a);
		if (in_a + 1 == a[i].nr_blocks) {
			i++;
			in_a = UINT32_MAX;
		}
		if (in_b + 1 == b[k].nr_blocks) {
			k++;
			in_b = UINT32_MAX;
		}
	}
	if (i != na || k != nb)
		return DIFFER(m, "runs of a hit end early");
	if (nb && okv_index_hit_runs(m->ix, hit, group, from, b, (size_t)nb - 1) != -ENOSPC)
		return DIFFER(m, "runs of a hit: room for too many");
	if (!(m->config->optional_groups & (1u << group)) && na != nb)
		return DIFFER(m, "runs of a hit: %lld, not %lld", (long long)nb, (long long)na);
	return true;
}

static bool do_match(struct model *m)
{
	static struct omnikv_key keys[DEPTH_MAX + 4];
	int node = (int)(op_word(m) % m->config->nr_nodes), path[DEPTH_MAX], prev = NONE;
	uint32_t mutate = op_byte(m), ns = m->nodes[node].ns, nr_changed = 0, groups;
	size_t nr = path_of(m, node, path), i, want = 0;
	struct okv_index_hit hit, chained;

	for (i = 0; i < nr; i++)
		keys[i] = m->nodes[path[i]].key;
	if (mutate & 1) {
		for (i = 0; i < 1 + mutate % 3; i++, nr++, nr_changed++)
			keys[nr] = m->nodes[op_word(m) % m->config->nr_nodes].key;
	}
	if (mutate & 2) {
		for (i = 0; i < 1 + mutate % 4; i++, nr_changed++)
			keys[op_word(m) % nr] = m->nodes[op_word(m) % m->config->nr_nodes].key;
	}
	if (mutate & 4) {
		size_t a = op_word(m) % nr, b = op_word(m) % nr;
		struct omnikv_key swap = keys[a];

		keys[a] = keys[b];
		keys[b] = swap;
		nr_changed++;
	}
	for (want = 0; want < nr; want++) {
		int rec = model_find_at(m, ns, &keys[want], want);

		if (rec == NONE || m->records[rec].parent != prev)
			break;
		prev = rec;
	}
	okv_index_match(m->ix, ns, keys, nr, 0, &hit);
	if (hit.nr_blocks != want || hit.entry != (prev == NONE ? OKV_ENTRY_NONE : m->records[prev].id))
		return DIFFER(m, "match: %llu blocks of %zu, not %zu", (unsigned long long)hit.nr_blocks, nr, want);
	m->counts->nr_blocks_hit += want;

	okv_index_match(m->ix, ns, keys, nr, OKV_INDEX_MATCH_F_CHAINED, &chained);
	if (!nr_changed && (chained.nr_blocks != want || chained.entry != hit.entry))
		return DIFFER(m, "match of chained keys: %llu blocks, not %zu",
			      (unsigned long long)chained.nr_blocks, want);
	if (chained.nr_blocks > nr ||
	    (chained.nr_blocks < nr && model_find_at(m, ns, &keys[chained.nr_blocks], chained.nr_blocks) != NONE))
		return DIFFER(m, "match of keys said to chain stops before a block that is there");
	if (chained.nr_blocks) {
		int rec = model_find_at(m, ns, &keys[chained.nr_blocks - 1], chained.nr_blocks - 1);

		if (rec == NONE || m->records[rec].id != chained.entry)
			return DIFFER(m, "match of keys said to chain leads to another block");
	}

	if (!same_runs(m, &hit) || !same_runs(m, &chained))
		return false;

	groups = op_byte(m) & ((1u << m->config->nr_groups) - 1);
	okv_index_usable(m->ix, groups, &hit);
	for (; prev != NONE; prev = m->records[prev].parent) {
		uint32_t have = 0, g;

		for (g = 0; g < m->config->nr_groups; g++)
			have |= m->records[prev].extents[g].nr_granules ? 1u << g : 0;
		if ((have & groups) == groups)
			break;
	}
	if (hit.entry != (prev == NONE ? OKV_ENTRY_NONE : m->records[prev].id) ||
	    hit.nr_blocks != (prev == NONE ? 0 : node_of(m, prev)->position + 1))
		return DIFFER(m, "usable: %llu blocks", (unsigned long long)hit.nr_blocks);
	return same_runs(m, &hit);
}

static int pick_record(struct model *m, bool live_only)
{
	uint32_t start = op_word(m), i;

	if (m->nr_records > 1)
		start = (uint32_t)((uint64_t)start * m->nr_records >> 16);
	for (i = 0; i < m->nr_records; i++) {
		uint32_t at = (start + i) % m->nr_records;

		if (m->records[at].is_used && !(live_only && m->records[at].is_dropped))
			return (int)at;
	}
	return NONE;
}

static bool do_path(struct model *m)
{
	static struct okv_index_run runs[DEPTH_MAX];
	static uint32_t ids[DEPTH_MAX];
	static int path[DEPTH_MAX];
	uint32_t from = op_byte(m) % 24, group = op_byte(m) % m->config->nr_groups, position, p, want = 0;
	bool is_optional = m->config->optional_groups & (1u << group);
	int rec = pick_record(m, false), r, prev;
	int64_t nr, i;

	if (rec == NONE)
		return true;
	position = node_of(m, rec)->position;
	for (r = rec, p = position;; r = m->records[r].parent, p--) {
		path[p] = r;
		if (p == 0)
			break;
	}
	okv_index_blocks(m->ix, m->records[rec].id, from, ids);
	for (p = from; p <= position; p++) {
		struct omnikv_extent extent;
		uint32_t crc;

		if (ids[p - from] != m->records[path[p]].id)
			return DIFFER(m, "blocks: wrong entry at position %u", p);
		okv_index_extent(m->ix, ids[p - from], group, &extent, &crc);
		if (memcmp(&extent, &m->records[path[p]].extents[group], sizeof(extent)) ||
		    (extent.nr_granules && crc != m->records[path[p]].crc32c[group]))
			return DIFFER(m, "blocks: wrong extent at position %u", p);
	}
	nr = okv_index_runs(m->ix, m->records[rec].id, group, from, runs, DEPTH_MAX);
	if (nr < 0 || (nr && okv_index_runs(m->ix, m->records[rec].id, group, from, runs, (size_t)nr - 1) != -ENOSPC))
		return DIFFER(m, "runs: wrong number, or one too many");
	nr = okv_index_runs(m->ix, m->records[rec].id, group, from, runs, (size_t)nr);

	/* Block by block what the runs say, and as few of them as can be. */
	for (p = from, i = 0, prev = NONE; p <= position; p++) {
		const struct omnikv_extent *e = &m->records[path[p]].extents[group];
		const struct omnikv_extent *before = prev == NONE ? NULL : &m->records[prev].extents[group];

		prev = path[p];
		if (e->nr_granules == 0)
			continue;
		if (!before || before->nr_granules != e->nr_granules || before->granule + before->nr_granules != e->granule)
			want++;
		while (i < nr && p >= runs[i].position + runs[i].nr_blocks)
			i++;
		if (i >= nr || p < runs[i].position || runs[i].nr_granules != e->nr_granules ||
		    runs[i].granule + (uint64_t)(p - runs[i].position) * e->nr_granules != e->granule)
			return DIFFER(m, "runs: wrong extent at position %u", p);
		if (p == runs[i].position + runs[i].nr_blocks - 1 && runs[i].entry != m->records[path[p]].id)
			return DIFFER(m, "runs: wrong last entry at position %u", p);
	}
	if (is_optional ? (uint64_t)nr < want : (uint64_t)nr != want)
		return DIFFER(m, "runs: %lld, not %u", (long long)nr, want);
	return true;
}

static bool do_touch_or_pin(struct model *m)
{
	uint32_t what = op_byte(m) % 4;
	int rec = pick_record(m, false), r;
	int ret;

	if (rec == NONE)
		return true;
	if (what == 0) {
		ret = okv_index_pin(m->ix, m->records[rec].id);
		if (ret)
			return DIFFER(m, "pin: %d", ret);
		m->records[rec].nr_pins++;
	} else if (what == 1) {
		for (r = rec; !m->records[r].is_used || !m->records[r].nr_pins;) {
			r = (r + 1) % (int)m->nr_records;
			if (r == rec)
				return true;
		}
		okv_index_unpin(m->ix, m->records[r].id);
		m->records[r].nr_pins--;
	} else {
		okv_index_touch(m->ix, m->records[rec].id);
		if (!m->records[rec].is_dropped)
			model_touch(m, rec);
		for (; rec != NONE; rec = m->records[rec].parent)
			m->records[rec].heat++;
	}
	return true;
}

static bool may_leave(const struct model *m, int rec)
{
	return m->records[rec].is_used && !m->records[rec].nr_pins && m->records[rec].nr_children == 0;
}

/* The next to leave; NONE when nothing may. @any_dropped: any dropped one will do. */
static int model_oldest(const struct model *m, bool *any_dropped)
{
	int best = NONE;
	uint32_t i;

	*any_dropped = false;
	for (i = 0; i < m->nr_records; i++) {
		const struct record *r = &m->records[i];

		if (!r->is_used || r->nr_pins ||
		    (best != NONE && !r->is_dropped && (r->time > m->records[best].time ||
		     (r->time == m->records[best].time && node_of(m, (int)i)->position < node_of(m, best)->position))))
			continue;
		if (!may_leave(m, (int)i))
			continue;
		if (r->is_dropped) {
			*any_dropped = true;
			return (int)i;
		}
		best = (int)i;
	}
	return best;
}

static bool do_evict(struct model *m)
{
	struct omnikv_extent extents[8 * GROUPS_MAX];
	struct okv_index_victim victims[8];
	uint32_t nr = op_byte(m) % 9, g = m->config->nr_groups;
	bool with_victims = op_byte(m) & 1, any_dropped;
	size_t done, i;

	done = okv_index_evict(m->ix, nr, extents, with_victims ? victims : NULL);
	for (i = 0; i < done; i++) {
		int want = model_oldest(m, &any_dropped), rec = record_of_extents(m, extents + i * g);
		const struct node *n;

		if (want == NONE || rec == NONE || !may_leave(m, rec) ||
		    (any_dropped ? !m->records[rec].is_dropped : rec != want))
			return DIFFER(m, "evict: victim %zu of %zu is block %d, not %d", i, done,
				      rec == NONE ? -1 : m->records[rec].node,
				      want == NONE ? -1 : m->records[want].node);
		n = node_of(m, rec);
		if (with_victims && (memcmp(&victims[i].key, &n->key, sizeof(n->key)) || victims[i].ns != n->ns ||
				     victims[i].position != n->position || victims[i].nr_tokens != n->nr_tokens))
			return DIFFER(m, "evict: a victim is described wrongly");
		record_gone(m, rec);
		m->counts->nr_evicted++;
	}
	if (done < nr && model_oldest(m, &any_dropped) != NONE)
		return DIFFER(m, "evict: %zu of %u, and more could leave", done, nr);
	return true;
}

static bool do_remove(struct model *m)
{
	struct omnikv_extent extents[GROUPS_MAX];
	int rec = pick_record(m, false), ret, want;

	if (rec == NONE)
		return true;
	want = may_leave(m, rec) ? 0 : -EBUSY;
	ret = okv_index_remove(m->ix, m->records[rec].id, extents);
	if (ret != want || (!ret && record_of_extents(m, extents) != rec))
		return DIFFER(m, "remove: %d, not %d", ret, want);
	if (!ret)
		record_gone(m, rec);
	return true;
}

static bool do_drop(struct model *m)
{
	int rec = pick_record(m, false), up;
	int64_t ret, want = 0;
	uint32_t i;

	if (rec == NONE)
		return true;
	if (m->records[rec].is_dropped) {
		want = -ESTALE;
	} else {
		for (i = 0; i < m->nr_records; i++) {
			if (!m->records[i].is_used || m->records[i].is_dropped)
				continue;
			for (up = (int)i; up != NONE && up != rec; up = m->records[up].parent)
				;
			if (up == NONE)
				continue;
			want++;
			m->nodes[m->records[i].node].record = NONE;
		}
		/* Children are marked after all were found by their parents' marks being absent. */
		for (i = 0; i < m->nr_records; i++) {
			if (m->records[i].is_used && m->nodes[m->records[i].node].record != (int)i)
				m->records[i].is_dropped = true;
		}
	}
	ret = okv_index_drop(m->ix, m->records[rec].id);
	if (ret != want)
		return DIFFER(m, "drop: %lld, not %lld", (long long)ret, (long long)want);
	return true;
}

static bool do_attach(struct model *m)
{
	uint32_t group = op_byte(m) % m->config->nr_groups;
	int rec = pick_record(m, false), ret, want;
	struct omnikv_extent extents[GROUPS_MAX];
	uint32_t crc[GROUPS_MAX], serial = m->serial;

	if (rec == NONE)
		return true;
	place(m, m->records[rec].parent, extents, crc);
	m->serial = serial;
	extents[group].generation = m->records[rec].extents[0].generation;
	want = extents[group].nr_granules == 0 ? -EINVAL : m->records[rec].is_dropped ? -ESTALE :
		m->records[rec].extents[group].nr_granules ? -EEXIST : 0;
	ret = okv_index_attach(m->ix, m->records[rec].id, group, &extents[group], crc[group]);
	if (ret != want)
		return DIFFER(m, "attach: %d, not %d", ret, want);
	if (!ret) {
		m->records[rec].extents[group] = extents[group];
		m->records[rec].crc32c[group] = crc[group];
	}
	return true;
}

static bool do_tails_and_find(struct model *m)
{
	struct okv_index_tail tails[64];
	int node = (int)(op_word(m) % m->config->nr_nodes);
	const struct node *n = &m->nodes[node];
	int rec = n->parent == NONE ? NONE : m->nodes[n->parent].record;
	uint32_t id = okv_index_find(m->ix, n->ns, &n->key), i;
	size_t nr, want = 0, j;

	if (id != (n->record == NONE ? OKV_ENTRY_NONE : m->records[n->record].id))
		return DIFFER(m, "find of block %d", node);
	if (n->parent != NONE && rec == NONE)
		return true;
	nr = okv_index_tails(m->ix, n->ns, rec == NONE ? OKV_ENTRY_NONE : m->records[rec].id, tails, 64);
	for (i = 0; i < m->config->nr_nodes; i++) {
		const struct node *t = &m->nodes[i];

		if (t->record == NONE || t->parent != n->parent || t->ns != n->ns || t->nr_tokens == T)
			continue;
		want++;
		for (j = 0; j < nr && j < 64; j++) {
			if (tails[j].entry == m->records[t->record].id && tails[j].nr_tokens == t->nr_tokens)
				break;
		}
		if (j == nr)
			return DIFFER(m, "tails: block %u is missing", i);
	}
	if (nr != want)
		return DIFFER(m, "tails: %zu, not %zu", nr, want);
	return true;
}

static bool do_compare_all(struct model *m)
{
	uint32_t i, nr = okv_index_nr_ids(m->ix);
	struct okv_index_stats stats;
	struct okv_index_info info;
	uint64_t *heat, nr_used = 0, nr_pins = 0;
	bool ok = true;

	heat = calloc(nr + 1, sizeof(*heat));
	if (!heat)
		return DIFFER(m, "no memory for the test");
	okv_index_heat(m->ix, heat);
	for (i = 0; i < m->nr_records && ok; i++) {
		const struct record *r = &m->records[i];

		if (!r->is_used)
			continue;
		nr_used++;
		nr_pins += r->nr_pins;
		if (okv_index_get(m->ix, r->id, &info))
			ok = DIFFER(m, "get: block %d is gone", r->node);
		else if (memcmp(&info.key, &m->nodes[r->node].key, sizeof(info.key)) ||
			 info.ns != m->nodes[r->node].ns || info.position != m->nodes[r->node].position ||
			 info.nr_tokens != m->nodes[r->node].nr_tokens || info.nr_pins != r->nr_pins ||
			 info.is_partial != (info.nr_tokens < T) || info.is_dropped != r->is_dropped ||
			 info.parent != (r->parent == NONE ? OKV_ENTRY_NONE : m->records[r->parent].id) ||
			 info.nr_children != r->nr_children)
			ok = DIFFER(m, "get: block %d is described wrongly", r->node);
		else if (heat[r->id] != r->heat)
			ok = DIFFER(m, "heat of block %d: %llu, not %llu", r->node,
				    (unsigned long long)heat[r->id], (unsigned long long)r->heat);
	}
	free(heat);
	okv_index_stats(m->ix, &stats);
	m->counts->nr_collisions = stats.nr_collisions;
	if (ok && (stats.nr_entries != nr_used || stats.nr_pins != nr_pins))
		ok = DIFFER(m, "stats: %llu entries, not %llu", (unsigned long long)stats.nr_entries,
			    (unsigned long long)nr_used);
	return ok;
}

static bool step(struct model *m)
{
	uint32_t op = op_byte(m);

	if (op < 70)
		return do_insert(m);
	if (op < 85)
		return do_insert_path(m);
	if (op < 125)
		return do_match(m);
	if (op < 150)
		return do_path(m);
	if (op < 190)
		return do_touch_or_pin(m);
	if (op < 215)
		return do_evict(m);
	if (op < 225)
		return do_remove(m);
	if (op < 228)
		return do_drop(m);
	if (op < 236)
		return do_attach(m);
	return do_tails_and_find(m);
}

const char *index_model_run(const struct index_model_config *config, const uint8_t *ops, size_t nr_bytes,
			    struct index_model_counts *counts)
{
	struct okv_index_config ixc = { .nr_groups = config->nr_groups, .optional_groups = config->optional_groups,
		.block_tokens = T, .hash_bits = config->hash_bits };
	struct model m = { .config = config, .rng = config->seed * 2 + 1, .ops = ops, .end = ops + nr_bytes,
		.counts = counts };
	const char *reason = NULL;
	struct okv_index_stats stats;
	bool ok = true;
	uint32_t i;

	memset(counts, 0, sizeof(*counts));
	memcpy(ixc.seed, &config->seed, sizeof(config->seed));
	/* Every block may be cached once, and dropped copies of it linger while they are pinned. */
	m.records_max = 8 * config->nr_nodes;
	m.nodes = calloc(config->nr_nodes, sizeof(*m.nodes));
	m.records = calloc(m.records_max, sizeof(*m.records));
	if (!m.nodes || !m.records || okv_index_create(&ixc, &m.ix)) {
		free(m.nodes);
		free(m.records);
		return "no memory for the test";
	}
	make_universe(&m);
	while (ok && m.ops < m.end) {
		ok = step(&m);
		counts->nr_ops++;
		okv_index_stats(m.ix, &stats);
		/* Let go of dropped blocks before they fill the model. */
		if (ok && stats.nr_dropped > config->nr_nodes * 4ull) {
			for (i = 0; i < m.nr_records; i++) {
				while (m.records[i].is_used && m.records[i].nr_pins) {
					okv_index_unpin(m.ix, m.records[i].id);
					m.records[i].nr_pins--;
				}
			}
			while (ok && m.ops < m.end && (okv_index_stats(m.ix, &stats), stats.nr_dropped))
				ok = do_evict(&m);
		}
		if (ok && (counts->nr_ops % config->check_every == 0 || m.ops >= m.end)) {
			ok = do_compare_all(&m);
			if (ok && okv_index_check(m.ix, &reason))
				ok = DIFFER(&m, "check: %s", reason ? reason : "no memory");
		}
	}
	if (ok)
		ok = do_compare_all(&m);
	okv_index_destroy(m.ix);
	free(m.nodes);
	free(m.records);
	if (ok)
		return NULL;
	snprintf(last_why, sizeof(last_why), "%.150s (operation %llu)", m.why, (unsigned long long)counts->nr_ops);
	return last_why;
}

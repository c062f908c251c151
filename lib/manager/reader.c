// SPDX-License-Identifier: MIT
/*
 * Lookups in another process's index; reader.h has the contract.
 *
 * The manner is that of sequence locks: copy, then see whether the version stood still. One check of
 * the deepest block's bucket is enough for a whole path, since no entry leaves or changes before its
 * descendants do (index_shared.h). A bucket that is odd or moved is looked at again, a bounded number
 * of times. Whatever is read of shared memory is copied once, and the copy is what is checked.
 */
#include "manager/reader.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "crc32c.h"
#include "fence.h"
#include "manager/catalog_shared.h"
#include "manager/index.h"
#include "manager/index_shared.h"
#include "prefetch.h"

#define PROBES		16u	/* of a search, in flight at once */
#define AHEAD		12u	/* ids of a path are often neighbours: entries fetched ahead of a walk up */
#define BUCKETS_MAX	1024u	/* of one key; a sound table needs a handful */

/** One look at an index: copies of what leads to entries. */
struct look {
	const struct okv_reader		*reader;
	const struct okv_index_head	*head;
	const struct okv_index_dir	*dir;
	uint32_t			nr_chunks;
	uint32_t			nr_groups;
	uint32_t			stride;
	uint32_t			tag_mask;
	uint32_t			tables;
	struct okv_table_ref		refs[2];	/* the table being left first: what moves is in one of them */
	uint32_t			ns;
	uint64_t			mix;
};

/** An entry, where a slot of the table named it. */
struct spot {
	uint32_t		id;
	uint32_t		version;
	uint64_t		bucket_off;
	struct okv_entry	entry;
};

/* @bytes at @off, or NULL where they are not all inside. */
static inline const void *reader_at(const struct okv_reader *reader, uint64_t off, uint64_t bytes)
{
	if (off % 8 || off > reader->bytes || bytes > reader->bytes - off)
		return NULL;
	return reader->base + off;
}

/* After it: what was copied before is what @version said, if that has not changed. */
static inline bool is_still(const uint32_t *version, uint32_t was)
{
	okv_fence(memory_order_acquire);
	return __atomic_load_n(version, __ATOMIC_RELAXED) == was;
}

/* ---- root and namespaces -------------------------------------------------------------------- */

static const struct okv_catalog_root *root_of(const struct okv_reader *reader)
{
	return (const struct okv_catalog_root *)(reader->base + reader->root_off);
}

int okv_reader_init(struct okv_reader *reader, const void *base, uint64_t bytes, uint64_t root_off)
{
	struct okv_reader new = { .base = base, .bytes = bytes, .root_off = root_off };
	struct okv_catalog_root root;

	if (root_off % 64 || !reader_at(&new, root_off, sizeof(root)))
		return -EINVAL;
	memcpy(&root, root_of(&new), sizeof(root));
	if (root.magic != OKV_CATALOG_MAGIC || root.version != OKV_CATALOG_VERSION || !root.granule_bytes ||
	    root.granule_bytes % 4096 || root.crc != okv_crc32c(&root, offsetof(struct okv_catalog_root, crc)) ||
	    root.granule != root_off / root.granule_bytes || root.nr_granules > bytes / root.granule_bytes)
		return -EBADMSG;
	new.granule_bytes = root.granule_bytes;
	*reader = new;
	return 0;
}

uint64_t okv_reader_epoch(const struct okv_reader *reader)
{
	return __atomic_load_n(&root_of(reader)->epoch, __ATOMIC_ACQUIRE);
}

/* The list of namespaces; the number of them is bounded by the memory. NULL: none, or nonsense. */
static const struct okv_catalog_spaces *spaces_of(const struct okv_reader *reader, uint32_t *nr)
{
	uint64_t off = __atomic_load_n(&root_of(reader)->spaces_off, __ATOMIC_ACQUIRE);
	const struct okv_catalog_spaces *spaces = off ? reader_at(reader, off, sizeof(*spaces)) : NULL;

	if (!spaces)
		return NULL;
	*nr = __atomic_load_n(&spaces->nr, __ATOMIC_RELAXED);
	if (*nr > OKV_INDEX_NS_MAX || !reader_at(reader, off, sizeof(*spaces) + (uint64_t)*nr * sizeof(spaces->spaces[0])))
		return NULL;
	return spaces;
}

static bool copy_space(const struct okv_catalog_space *from, struct okv_catalog_space *rec)
{
	if (!__atomic_load_n(&from->is_used, __ATOMIC_ACQUIRE))
		return false;
	memcpy(rec, from, sizeof(*rec));
	return is_still(&from->is_used, 1);
}

int okv_reader_space(const struct okv_reader *reader, const uint8_t identity[32], struct okv_reader_space *space)
{
	const struct okv_catalog_spaces *spaces;
	struct okv_catalog_space rec;
	struct okv_index_head head;
	const void *shared;
	uint64_t index_off;
	uint32_t nr, i;

	spaces = spaces_of(reader, &nr);
	if (!spaces)
		return -ENOENT;
	for (i = 0; i < nr; i++)
		if (copy_space(&spaces->spaces[i], &rec) && !memcmp(rec.identity, identity, sizeof(rec.identity)))
			break;
	if (i == nr)
		return -ENOENT;
	if (rec.crc != okv_crc32c(&rec, offsetof(struct okv_catalog_space, crc)) || rec.shelf >= OKV_CATALOG_SHELVES_MAX)
		return -EBADMSG;
	index_off = __atomic_load_n(&root_of(reader)->shelves[rec.shelf], __ATOMIC_ACQUIRE);
	shared = index_off ? reader_at(reader, index_off, sizeof(head)) : NULL;
	if (!shared)
		return -EBADMSG;
	memcpy(&head, shared, sizeof(head));
	if (head.magic != OKV_INDEX_MAGIC || head.version != OKV_INDEX_VERSION || head.nr_groups != rec.nr_groups ||
	    head.crc != okv_crc32c(&head, offsetof(struct okv_index_head, crc)))
		return -EBADMSG;
	memcpy(space->identity, rec.identity, sizeof(space->identity));
	space->index_off = index_off;
	space->id = i;
	space->nr_groups = rec.nr_groups;
	space->needed_state = rec.needed_state;
	space->match_flags = rec.match_flags;
	space->block_tokens = rec.block_tokens;
	return 0;
}

/* Numbers of namespaces are used again: is it still the one that was asked for? */
static bool space_is_there(const struct okv_reader *reader, const struct okv_reader_space *space)
{
	const struct okv_catalog_spaces *spaces;
	struct okv_catalog_space rec;
	uint32_t nr;

	spaces = spaces_of(reader, &nr);
	return spaces && space->id < nr && copy_space(&spaces->spaces[space->id], &rec) &&
	       !memcmp(rec.identity, space->identity, sizeof(rec.identity));
}

/* ---- entries -------------------------------------------------------------------------------- */

static int look_begin(const struct okv_reader *reader, const struct okv_reader_space *space, struct look *look)
{
	const struct okv_index_head *head = reader_at(reader, space->index_off, sizeof(*head));
	uint64_t dir_off;
	uint32_t i;

	if (!head)
		return -EBADMSG;
	look->reader = reader;
	look->head = head;
	look->tables = __atomic_load_n(&head->tables, __ATOMIC_ACQUIRE);
	if (look->tables & 1)
		return -EAGAIN;
	look->refs[0] = head->old;
	look->refs[1] = head->tab;
	dir_off = __atomic_load_n(&head->dir_off, __ATOMIC_ACQUIRE);
	look->nr_groups = head->nr_groups;
	look->stride = head->stride;
	look->tag_mask = head->tag_mask;
	if (!is_still(&head->tables, look->tables))
		return -EAGAIN;

	if (look->nr_groups != space->nr_groups || look->nr_groups == 0 || look->nr_groups > OKV_INDEX_GROUPS_MAX ||
	    look->stride != sizeof(struct okv_entry_record) + look->nr_groups * sizeof(struct okv_group))
		return -EBADMSG;
	for (i = 0; i < 2; i++) {
		if (look->refs[i].off == 0)
			continue;
		if (look->refs[i].log2_buckets < 1 || look->refs[i].log2_buckets > 31 ||
		    !reader_at(reader, look->refs[i].off, sizeof(struct okv_bucket) << look->refs[i].log2_buckets))
			return -EBADMSG;
	}
	/* No chunk yet: nothing can be found. */
	look->nr_chunks = 0;
	look->dir = dir_off ? reader_at(reader, dir_off, sizeof(*look->dir)) : NULL;
	if (look->dir) {
		look->nr_chunks = __atomic_load_n(&look->dir->nr_chunks, __ATOMIC_ACQUIRE);
		if (look->nr_chunks > OKV_CHUNKS_MAX ||
		    !reader_at(reader, dir_off, sizeof(*look->dir) + look->nr_chunks * sizeof(look->dir->chunks[0])))
			return -EBADMSG;
	}
	look->ns = space->id;
	look->mix = okv_ns_mix(space->id);
	return 0;
}

/* Where an entry lies, and (unless NULL) its record; NULL: there is no such entry. */
static inline const struct okv_entry *look_entry(const struct look *look, uint32_t id, const struct okv_entry_record **rec)
{
	uint32_t chunk = id >> OKV_CHUNK_SHIFT, at = id & (OKV_CHUNK_ENTRIES - 1);
	struct okv_chunk_ref ref;

	if (chunk >= look->nr_chunks)
		return NULL;
	memcpy(&ref, &look->dir->chunks[chunk], sizeof(ref));
	if (at >= ref.nr || ref.nr > OKV_CHUNK_ENTRIES)
		return NULL;
	if (rec) {
		*rec = reader_at(look->reader, ref.records_off + (uint64_t)at * look->stride, look->stride);
		if (!*rec)
			return NULL;
	}
	return reader_at(look->reader, ref.entries_off + (uint64_t)at * sizeof(struct okv_entry), sizeof(struct okv_entry));
}

static inline const struct okv_bucket *look_bucket(const struct look *look, const struct okv_table_ref *ref, uint32_t at,
						   uint64_t *off)
{
	*off = ref->off + (uint64_t)at * sizeof(struct okv_bucket);
	return (const struct okv_bucket *)(look->reader->base + *off);
}

static inline uint32_t look_home(const struct okv_table_ref *ref, uint32_t tag)
{
	return tag >> (32 - ref->log2_buckets);
}

static void prefetch_homes(const struct look *look, uint32_t tag)
{
	uint64_t off;
	uint32_t i;

	for (i = 0; i < 2; i++)
		if (look->refs[i].off)
			okv_prefetch(look_bucket(look, &look->refs[i], look_home(&look->refs[i], tag), &off));
}

/* @has_records: what is there is going to be read whole. */
static void prefetch_entries(const struct look *look, uint32_t tag, bool has_records)
{
	const struct okv_entry_record *rec;
	const struct okv_entry *e;
	uint64_t off;
	uint32_t i, found;

	for (i = 0; i < 2; i++) {
		const struct okv_bucket *bucket;

		if (!look->refs[i].off)
			continue;
		bucket = look_bucket(look, &look->refs[i], look_home(&look->refs[i], tag), &off);
		for (found = okv_slots_with(bucket->tags, tag); found; found &= found - 1) {
			e = look_entry(look, bucket->ids[__builtin_ctz(found)] - 1, &rec);
			if (e)
				okv_prefetch(e);
			if (e && has_records)
				okv_prefetch(rec);
		}
	}
}

/* 1: @spot has it; 0: it is not there; -EAGAIN: something changed meanwhile; -EBADMSG. */
static int table_find(const struct look *look, const struct okv_table_ref *ref, uint32_t tag,
		      const struct omnikv_key *key, struct spot *spot)
{
	uint32_t mask = (uint32_t)((1ull << ref->log2_buckets) - 1);
	uint32_t at = look_home(ref, tag), name = okv_entry_name(look->ns, key->len), nr, found;

	for (nr = 0; nr <= mask; nr++, at = (at + 1) & mask) {
		const struct okv_bucket *shared = look_bucket(look, ref, at, &spot->bucket_off);
		struct okv_bucket bucket;

		if (nr == BUCKETS_MAX)
			return -EBADMSG;
		spot->version = __atomic_load_n(&shared->version, __ATOMIC_ACQUIRE);
		if (spot->version & 1)
			return -EAGAIN;
		memcpy(&bucket, shared, sizeof(bucket));
		if (!is_still(&shared->version, spot->version))
			return -EAGAIN;
		for (found = okv_slots_with(bucket.tags, tag); found; found &= found - 1) {
			uint32_t slot = bucket.ids[__builtin_ctz(found)];
			const struct okv_entry *e;

			if (slot == 0)
				continue;
			e = look_entry(look, slot - 1, NULL);
			if (!e)
				return is_still(&shared->version, spot->version) ? -EBADMSG : -EAGAIN;
			memcpy(&spot->entry, e, sizeof(spot->entry));
			if (!is_still(&shared->version, spot->version))
				return -EAGAIN;
			if (okv_entry_is(&spot->entry, name, key)) {
				spot->id = slot - 1;
				return 1;
			}
		}
		if (bucket.nr_passed == 0)
			break;
	}
	return 0;
}

static int look_find(const struct look *look, uint32_t tag, const struct omnikv_key *key, struct spot *spot)
{
	int ret = 0;
	uint32_t i;

	for (i = 0; i < 2 && ret == 0; i++)
		if (look->refs[i].off)
			ret = table_find(look, &look->refs[i], tag, key, spot);
	return ret;
}

/* The same for the full block of @key at @position. */
static int look_find_at(const struct look *look, uint32_t tag, const struct omnikv_key *key, uint64_t position,
			struct spot *spot)
{
	int ret = look_find(look, tag, key, spot);

	if (ret == 1 && (spot->entry.position != position || (spot->entry.name & OKV_ENTRY_F_PARTIAL)))
		return 0;
	return ret;
}

static bool spot_is_current(const struct look *look, const struct spot *spot)
{
	const struct okv_bucket *bucket = (const struct okv_bucket *)(look->reader->base + spot->bucket_off);

	/* The bucket's version counts only while the bucket is one: so the tables are looked at last. */
	return is_still(&bucket->version, spot->version) && is_still(&look->head->tables, look->tables);
}

/* ---- matches -------------------------------------------------------------------------------- */

static inline uint32_t look_tag(const struct look *look, const struct omnikv_key *key)
{
	return okv_key_tag(look->head->secret, look->tag_mask, look->mix, key);
}

/* As search() of index.c: PROBES positions at once, their waits for memory side by side. */
static int search(const struct look *look, const struct omnikv_key *keys, uint64_t nr_keys, uint64_t *nr_blocks,
		  struct spot *last)
{
	uint64_t lo = 0, hi = nr_keys;

	while (lo < hi) {
		uint64_t width = hi - lo, nr = width < PROBES ? width : PROBES, i;
		uint64_t counts[PROBES];
		uint32_t tags[PROBES];

		for (i = 0; i < nr; i++) {
			counts[i] = lo + (i + 1) * width / nr;
			tags[i] = look_tag(look, &keys[counts[i] - 1]);
			prefetch_homes(look, tags[i]);
		}
		/* The last ones: the hit ends here. */
		for (i = 0; i < nr; i++)
			prefetch_entries(look, tags[i], width <= PROBES);
		for (i = 0; i < nr; i++) {
			struct spot spot;
			int ret = look_find_at(look, tags[i], &keys[counts[i] - 1], counts[i] - 1, &spot);

			if (ret < 0)
				return ret;
			if (ret == 0) {
				hi = counts[i] - 1;
				break;
			}
			lo = counts[i];
			*last = spot;
		}
	}
	*nr_blocks = lo;
	return 0;
}

static int walk_down(const struct look *look, const struct omnikv_key *keys, uint64_t nr_keys, uint64_t *nr_blocks,
		     struct spot *last)
{
	uint64_t i;

	for (i = 0; i < nr_keys; i++) {
		struct spot spot;
		int ret = look_find_at(look, look_tag(look, &keys[i]), &keys[i], i, &spot);

		if (ret < 0)
			return ret;
		if (ret == 0 || spot.entry.parent != (i ? last->id : OKV_ENTRY_NONE))
			break;
		*last = spot;
	}
	*nr_blocks = i;
	return 0;
}

/* Up from @last, block by block. 1: its path has these keys; 0: another; -EBADMSG. */
static int verify(const struct look *look, const struct omnikv_key *keys, uint64_t nr_blocks, const struct spot *last)
{
	struct okv_entry entry = last->entry;
	uint64_t position = nr_blocks - 1;

	for (;; position--) {
		const struct okv_entry *e;

		if (entry.position != position || !okv_key_equal(&entry, &keys[position]))
			return 0;
		if (position == 0)
			return entry.parent == OKV_ENTRY_NONE;
		e = look_entry(look, entry.parent, NULL);
		if (!e)
			return -EBADMSG;
		if (entry.parent >= AHEAD && (entry.parent & (OKV_CHUNK_ENTRIES - 1)) >= AHEAD)
			okv_prefetch(e - AHEAD);
		memcpy(&entry, e, sizeof(entry));
	}
}

/* The deepest block of the path, at or before @last, that has every group of @groups. */
static int usable(const struct look *look, uint32_t groups, const struct spot *last, uint32_t *id, uint64_t *nr_blocks)
{
	uint32_t at = last->id;
	uint64_t nr;

	if (!groups) {
		*id = at;
		return 0;
	}
	for (nr = *nr_blocks; nr; nr--) {
		const struct okv_entry_record *rec;
		const struct okv_entry *e = look_entry(look, at, &rec);
		uint32_t wanted = groups, i;

		if (!e)
			return -EBADMSG;
		for (i = 0; i < look->nr_groups; i++)
			if (__atomic_load_n(&rec->groups[i].nr_granules, __ATOMIC_RELAXED))
				wanted &= ~(1u << i);
		if (!wanted)
			break;
		at = __atomic_load_n(&e->parent, __ATOMIC_RELAXED);
	}
	*id = nr ? at : OKV_ENTRY_NONE;
	*nr_blocks = nr;
	return 0;
}

static bool is_tail_of(const struct spot *tail, uint32_t parent, uint64_t position)
{
	return (tail->entry.name & OKV_ENTRY_F_PARTIAL) && tail->entry.parent == parent &&
	       tail->entry.position == position && tail->entry.tail_tokens != 0;
}

/* One try. */
static int match_once(const struct look *look, const struct okv_reader_space *space, const struct omnikv_prefix *prefix,
		      struct okv_reader_hit *hit)
{
	const struct omnikv_key *keys = prefix->keys, *tail = prefix->tail;
	uint64_t nr_keys = prefix->nr_keys < UINT32_MAX ? prefix->nr_keys : UINT32_MAX;
	struct spot last = { .id = OKV_ENTRY_NONE }, end;
	struct okv_reader_hit new = { .entry = OKV_ENTRY_NONE };
	bool has_tail = false;
	int ret;

	ret = search(look, keys, nr_keys, &new.nr_blocks, &last);
	if (ret < 0)
		return ret;
	if (new.nr_blocks && !(space->match_flags & OKV_INDEX_MATCH_F_CHAINED)) {
		ret = verify(look, keys, new.nr_blocks, &last);
		if (ret == 0) {
			ret = walk_down(look, keys, nr_keys, &new.nr_blocks, &last);
			if (ret == 0 && new.nr_blocks && verify(look, keys, new.nr_blocks, &last) != 1)
				ret = -EAGAIN;
		}
		if (ret < 0)
			goto out;
	}
	end = last;
	if (tail && new.nr_blocks == nr_keys) {
		ret = look_find(look, look_tag(look, tail), tail, &end);
		has_tail = ret == 1 && is_tail_of(&end, new.nr_blocks ? last.id : OKV_ENTRY_NONE, new.nr_blocks);
		/* Its parent is the block that was found above only if that is still there. */
		if (ret < 0 || (has_tail && new.nr_blocks && !spot_is_current(look, &last)))
			return -EAGAIN;
	}
	if (has_tail) {
		uint64_t nr_blocks = new.nr_blocks + 1;

		ret = usable(look, space->needed_state, &end, &new.entry, &nr_blocks);
		has_tail = ret == 0 && new.entry == end.id;
	}
	if (has_tail) {
		last = end;
		new.nr_blocks++;
		new.tail_tokens = end.entry.tail_tokens;
	} else if (new.nr_blocks) {
		ret = usable(look, space->needed_state, &last, &new.entry, &new.nr_blocks);
	}
out:
	/* What looks broken may have been read in a change. */
	if (last.id == OKV_ENTRY_NONE) {
		if (!is_still(&look->head->tables, look->tables))
			return -EAGAIN;
	} else if (!spot_is_current(look, &last)) {
		return -EAGAIN;
	}
	if (ret < 0)
		return ret;
	new.bucket_off = last.id == OKV_ENTRY_NONE ? UINT64_MAX : last.bucket_off;
	new.version = last.version;
	new.tables = look->tables;
	*hit = new;
	return 0;
}

/* What the first rounds of these searches are going to read, with the waits for it side by side. */
static void prefetch_list(const struct look *look, const struct okv_reader_lookup *lookups, uint32_t nr)
{
	uint32_t tags[2 * PROBES], nr_tags = 0, i;

	for (i = 0; i < nr; i++) {
		const struct omnikv_prefix *prefix = lookups[i].prefix;
		uint64_t n = prefix->nr_keys < PROBES ? prefix->nr_keys : PROBES, k;

		for (k = 0; k < n && nr_tags < 2 * PROBES; k++)
			tags[nr_tags++] = look_tag(look, &prefix->keys[(k + 1) * prefix->nr_keys / n - 1]);
		if (!n && prefix->tail && nr_tags < 2 * PROBES)
			tags[nr_tags++] = look_tag(look, prefix->tail);
	}
	for (i = 0; i < nr_tags; i++)
		prefetch_homes(look, tags[i]);
	for (i = 0; i < nr_tags; i++)
		prefetch_entries(look, tags[i], true);
}

void okv_reader_match_list(const struct okv_reader *reader, const struct okv_reader_space *space,
			   struct okv_reader_lookup *lookups, uint32_t nr)
{
	struct look look;
	int begun;

	begun = look_begin(reader, space, &look);
	if (!begun && nr > 1)
		prefetch_list(&look, lookups, nr);
	for (uint32_t i = 0; i < nr; i++) {
		struct okv_reader_lookup *lookup = &lookups[i];

		lookup->res = begun ? begun : match_once(&look, space, lookup->prefix, &lookup->hit);
		for (uint32_t k = 1; k < OKV_READER_TRIES && lookup->res == -EAGAIN; k++) {
			lookup->res = look_begin(reader, space, &look);
			begun = lookup->res;
			if (!begun)
				lookup->res = match_once(&look, space, lookup->prefix, &lookup->hit);
		}
	}
	if (space_is_there(reader, space))
		return;
	for (uint32_t i = 0; i < nr; i++)
		if (!lookups[i].res)
			lookups[i].res = -ESTALE;
}

int okv_reader_match(const struct okv_reader *reader, const struct okv_reader_space *space,
		     const struct omnikv_key *keys, size_t nr_keys, const struct omnikv_key *tail,
		     struct okv_reader_hit *hit)
{
	const struct omnikv_prefix prefix = { .keys = keys, .nr_keys = nr_keys, .tail = tail };
	struct okv_reader_lookup lookup = { .prefix = &prefix };

	okv_reader_match_list(reader, space, &lookup, 1);
	if (!lookup.res)
		*hit = lookup.hit;
	return lookup.res;
}

static bool hit_is_current(const struct okv_reader *reader, const struct okv_reader_space *space,
			   const struct okv_reader_hit *hit)
{
	const struct okv_bucket *bucket = reader_at(reader, hit->bucket_off, sizeof(*bucket));
	const struct okv_index_head *head = reader_at(reader, space->index_off, sizeof(*head));

	return bucket && head && !(hit->version & 1) && is_still(&bucket->version, hit->version) &&
	       is_still(&head->tables, hit->tables);
}

bool okv_reader_is_current(const struct okv_reader *reader, const struct okv_reader_space *space,
			   const struct okv_reader_hit *hit)
{
	return hit_is_current(reader, space, hit) && space_is_there(reader, space);
}

/* Copy one block; false: it is not what a block can be. */
static bool copy_block(const struct look *look, uint32_t id, uint32_t position, uint32_t block_tokens,
		       struct okv_reader_block *block, struct omnikv_extent *extents, uint32_t *crc32c, uint32_t *parent)
{
	uint64_t nr_granules = look->reader->bytes / look->reader->granule_bytes;
	const struct okv_entry_record *rec;
	const struct okv_entry *shared = look_entry(look, id, &rec);
	struct okv_entry e;
	uint32_t g;

	if (!shared)
		return false;
	memcpy(&e, shared, sizeof(e));
	if (e.position != position || okv_entry_ns(&e) != look->ns || okv_entry_key_len(&e) == 0 ||
	    okv_entry_key_len(&e) > OMNIKV_KEY_BYTES_MAX)
		return false;
	for (g = 0; g < look->nr_groups; g++) {
		/* The length first: where it is there, so is the rest, which is added before it and without a new version. */
		uint32_t nr_there = __atomic_load_n(&rec->groups[g].nr_granules, __ATOMIC_ACQUIRE);
		struct okv_group group;

		memcpy(&group, &rec->groups[g], sizeof(group));
		group.nr_granules = nr_there;
		extents[g] = (struct omnikv_extent){ 0 };
		if (crc32c)
			crc32c[g] = group.crc32c;
		if (group.nr_granules == 0)
			continue;
		if (group.nr_granules > nr_granules || group.granule > nr_granules - group.nr_granules)
			return false;
		extents[g].granule = group.granule;
		extents[g].generation = group.generation;
		extents[g].nr_granules = group.nr_granules;
	}
	if (block) {
		memset(block, 0, sizeof(*block));
		memcpy(block->key.bytes, e.key, sizeof(e.key));
		block->key.len = okv_entry_key_len(&e);
		block->entry = id;
		block->position = position;
		block->nr_tokens = e.name & OKV_ENTRY_F_PARTIAL ? e.tail_tokens : block_tokens;
	}
	*parent = e.parent;
	return true;
}

/* 0, or -EBADMSG. */
static int copy_path(const struct look *look, const struct okv_reader_space *space, const struct okv_reader_read *read)
{
	uint32_t id = read->hit->entry;
	uint64_t at;

	for (at = read->hit->nr_blocks; at-- > read->from;) {
		uint64_t i = at - read->from;

		if (!copy_block(look, id, (uint32_t)at, space->block_tokens, read->blocks ? &read->blocks[i] : NULL,
				read->extents + i * look->nr_groups,
				read->crc32c ? read->crc32c + i * look->nr_groups : NULL, &id))
			return -EBADMSG;
		if (id >= AHEAD) {
			const struct okv_entry_record *rec;
			const struct okv_entry *ahead = look_entry(look, id - AHEAD, &rec);

			if (ahead) {
				okv_prefetch(ahead);
				okv_prefetch(rec);
			}
		}
	}
	return 0;
}

void okv_reader_blocks_list(const struct okv_reader *reader, const struct okv_reader_space *space,
			    struct okv_reader_read *reads, uint32_t nr)
{
	struct look look;
	int begun;

	begun = look_begin(reader, space, &look);
	if (begun == -EAGAIN)
		begun = -ESTALE;
	for (uint32_t i = 0; i < nr; i++) {
		struct okv_reader_read *read = &reads[i];

		if (read->from > read->hit->nr_blocks || read->hit->nr_blocks > UINT32_MAX) {
			read->res = -EINVAL;
			continue;
		}
		read->res = read->from == read->hit->nr_blocks ? 0 : begun ? begun : copy_path(&look, space, read);
		if (read->from < read->hit->nr_blocks && !begun && !hit_is_current(reader, space, read->hit))
			read->res = -ESTALE;
	}
	if (space_is_there(reader, space))
		return;
	for (uint32_t i = 0; i < nr; i++)
		if (reads[i].from < reads[i].hit->nr_blocks && (!reads[i].res || reads[i].res == -EBADMSG))
			reads[i].res = -ESTALE;
}

int okv_reader_blocks(const struct okv_reader *reader, const struct okv_reader_space *space,
		      const struct okv_reader_hit *hit, uint64_t from, struct okv_reader_block *blocks,
		      struct omnikv_extent *extents, uint32_t *crc32c)
{
	struct okv_reader_read read = { .hit = hit, .from = from, .blocks = blocks, .extents = extents, .crc32c = crc32c };

	okv_reader_blocks_list(reader, space, &read, 1);
	return read.res;
}

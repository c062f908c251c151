/* SPDX-License-Identifier: MIT */
/*
 * The prefix index; index.h has the contract and the invariants.
 *
 * Three kinds of memory, all as index_shared.h lays it out. Entries (64 bytes: key, place in the forest) and
 * their records (eviction links, then extents) lie in chunks that never move once they are full-sized. The table is
 * open addressing over 64-byte buckets of seven slots (32 bits of hash, entry id), all compared at once, with a count
 * of the entries that had to go past the bucket, so that removal leaves no tombstones. Growth doubles the table
 * and carries one old bucket over at each insertion; until that ends lookups ask both, readers of other
 * processes the old one first. What only the writer needs (pointers, counts) is in struct okv_index.
 */
#include "manager/index.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/types.h"
#include "crc32c.h"
#include "failpoint.h"
#include "fence.h"
#include "manager/index_shared.h"
#include "prefetch.h"

/* Read once: what is checked is what is used, also where others may write to it. */
#define OKV_READ_ONCE(what)	__atomic_load_n(&(what), __ATOMIC_RELAXED)

#define HUGE_BYTES	(2u << 20)

#define BUCKETS_MIN	16u
/* The table grows beyond 8/10 of its slots; one whose memory is the pool's is filled to 9/10. */
#define LOAD_NUM	8u
#define LOAD_LASTING	9u
#define LOAD_DEN	10u

#define PROBES		16u	/* probes that are in flight at once */
#define AHEAD		12u	/* entries prefetched ahead of a walk up a path: ids of a path are often neighbours */
#define LOOKAHEAD	8u	/* victims whose memory is fetched ahead */
#define RUN_BLOCKS_MAX	((1u << 24) - 1)

struct table {
	struct okv_bucket	*buckets;	/* NULL: no table */
	uint32_t	mask;
	uint32_t	shift;		/* home = hash >> shift */
	uint64_t	nr_used;
};

struct okv_index {
	/* fixed after creation */
	uint32_t			nr_groups;
	uint32_t			optional_groups;
	uint32_t			block_tokens;
	uint32_t			tag_mask;
	uint32_t			stride;		/* bytes of a record */
	struct okv_index_allocator	mem;
	bool				(*is_held)(void *opaque, const struct omnikv_extent *extent);
	void				(*changed)(void *opaque, uint32_t ns, uint32_t id, bool is_there);
	void				*opaque;
	struct okv_index_head		*head;

	struct table			tab;
	struct table			old;		/* being left */
	uint32_t			old_next;	/* its buckets below are empty */

	unsigned char			**entries;	/* [max_chunks], the first nr_chunks set */
	unsigned char			**records;
	uint32_t			*pieces;	/* chunks that share the memory beginning here; 0: it began before */
	struct okv_index_dir		*dir;
	uint32_t			dir_max;	/* chunks that @dir has room for */
	uint32_t			max_chunks;
	uint32_t			nr_chunks;
	uint32_t			nr_room;	/* entries that fit; only the last chunk may be short */
	uint32_t			nr_ids;
	uint32_t			free_ids;

	uint32_t			*ns_tails;	/* [nr_ns_tails] partial tails at position 0 */
	uint32_t			nr_ns_tails;

	struct okv_evict		order;
	uint64_t			nr_entries;
	uint64_t			nr_dropped;
	uint64_t			nr_partial;
	uint64_t			nr_pins;
	uint64_t			nr_collisions;
	uint64_t			mem_bytes;	/* from @mem */
	uint64_t			own_bytes;

	_Alignas(64) uint8_t		secret[OKV_SECRET_BYTES];
};

/* Memory ------------------------------------------------------------------------------------- */

/* Big pieces are mapped on their own, at a huge-page boundary: zero without being written, and moved by no one. */
static void *default_alloc(void *opaque, size_t bytes)
{
	char *map, *mem;
	size_t map_bytes, head;

	(void)opaque;
	if (bytes < HUGE_BYTES)
		return aligned_alloc(64, (bytes + 63) & ~(size_t)63);
	bytes = (bytes + HUGE_BYTES - 1) & ~(size_t)(HUGE_BYTES - 1);
	map_bytes = bytes + HUGE_BYTES;
	map = mmap(NULL, map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED)
		return NULL;
	mem = (char *)(((uintptr_t)map + HUGE_BYTES - 1) & ~(uintptr_t)(HUGE_BYTES - 1));
	head = (size_t)(mem - map);
	if (head)
		munmap(map, head);
	munmap(mem + bytes, map_bytes - bytes - head);
	madvise(mem, bytes, MADV_HUGEPAGE);
	return mem;
}

static void default_free(void *opaque, void *mem, size_t bytes)
{
	(void)opaque;
	if (bytes < HUGE_BYTES)
		free(mem);
	else
		munmap(mem, (bytes + HUGE_BYTES - 1) & ~(size_t)(HUGE_BYTES - 1));
}

static void *mem_alloc(struct okv_index *ix, size_t bytes)
{
	void *mem = ix->mem.alloc(ix->mem.opaque, bytes);

	if (!mem)
		return NULL;
	/* Only what the default maps is known to be zero. */
	if (ix->mem.alloc != default_alloc || bytes < HUGE_BYTES)
		memset(mem, 0, bytes);
	ix->mem_bytes += bytes;
	return mem;
}

static void mem_free(struct okv_index *ix, void *mem, size_t bytes)
{
	if (!mem)
		return;
	ix->mem.free(ix->mem.opaque, mem, bytes);
	ix->mem_bytes -= bytes;
}

static inline uint64_t mem_off(const struct okv_index *ix, const void *mem)
{
	return (uint64_t)((uintptr_t)mem - (uintptr_t)ix->mem.base);
}

/* Memory that outlives the writer is not taken in the middle of an insertion: see okv_index_reserve(). */
static inline bool mem_is_lasting(const struct okv_index *ix)
{
	return ix->mem.claim != NULL;
}

static inline struct okv_entry *entry_of(const struct okv_index *ix, uint32_t id)
{
	return (struct okv_entry *)ix->entries[id >> OKV_CHUNK_SHIFT] + (id & (OKV_CHUNK_ENTRIES - 1));
}

static inline struct okv_entry_record *record_of(const struct okv_index *ix, uint32_t id)
{
	return (struct okv_entry_record *)(ix->records[id >> OKV_CHUNK_SHIFT] +
				 (size_t)(id & (OKV_CHUNK_ENTRIES - 1)) * ix->stride);
}

static inline uint32_t entry_tokens(const struct okv_index *ix, const struct okv_entry *e)
{
	return e->name & OKV_ENTRY_F_PARTIAL ? e->tail_tokens : ix->block_tokens;
}

static uint32_t entry_heat(const struct okv_entry *e)
{
	return e->name & OKV_ENTRY_F_PARTIAL ? e->tail_heat : e->heat;
}

/* What a walk reads of it, also where that lies in two cache lines. */
static inline void prefetch_group(const struct okv_index *ix, uint32_t id, uint32_t group)
{
	const struct okv_group *g = &record_of(ix, id)->groups[group];

	okv_prefetch(g);
	okv_prefetch((const char *)&g->generation - 1);
}

/* Where others may write to the pool's memory an id that was read from there can be anything. */
static inline bool is_id(const struct okv_index *ix, uint32_t id)
{
	return id < ix->nr_ids;
}

/* OKV_ENTRY_NONE: none, or none that can be. */
static inline uint32_t parent_of(const struct okv_index *ix, const struct okv_entry *e)
{
	uint32_t parent = OKV_READ_ONCE(e->parent);

	return is_id(ix, parent) ? parent : OKV_ENTRY_NONE;
}

static bool is_live(const struct okv_index *ix, uint32_t id)
{
	return id < ix->nr_ids && entry_of(ix, id)->name != 0;
}

/* Around a change of what leads readers to tables and chunks. */
static void tables_begin(struct okv_index *ix)
{
	__atomic_store_n(&ix->head->tables, ix->head->tables + 1, __ATOMIC_RELAXED);
	okv_fence(memory_order_release);
}

static void tables_end(struct okv_index *ix)
{
	__atomic_store_n(&ix->head->tables, ix->head->tables + 1, __ATOMIC_RELEASE);
}

static size_t dir_bytes(uint32_t max_chunks)
{
	return sizeof(struct okv_index_dir) + max_chunks * sizeof(struct okv_chunk_ref);
}

/* The writer's own pointers to chunks. */
static int pointers_grow(struct okv_index *ix, uint32_t nr)
{
	unsigned char **chunks;
	uint32_t *pieces;

	chunks = calloc(2 * (size_t)nr, sizeof(*chunks));
	pieces = calloc(nr, sizeof(*pieces));
	if (!chunks || !pieces) {
		free(chunks);
		free(pieces);
		return -ENOMEM;
	}
	if (ix->nr_chunks) {
		memcpy(chunks, ix->entries, ix->nr_chunks * sizeof(*chunks));
		memcpy(chunks + nr, ix->records, ix->nr_chunks * sizeof(*chunks));
		memcpy(pieces, ix->pieces, ix->nr_chunks * sizeof(*pieces));
	}
	free(ix->entries);
	free(ix->pieces);
	ix->own_bytes += (uint64_t)(nr - ix->max_chunks) * (2 * sizeof(*chunks) + sizeof(*pieces));
	ix->entries = chunks;
	ix->records = chunks + nr;
	ix->pieces = pieces;
	ix->order.chunks = ix->records;
	ix->max_chunks = nr;
	return 0;
}

static struct okv_index_dir *dir_alloc(struct okv_index *ix, uint32_t max_chunks)
{
	struct okv_index_dir *dir = mem_alloc(ix, dir_bytes(max_chunks));

	if (dir)
		dir->max_chunks = max_chunks;
	return dir;
}

/* @dir in place of the one there is, with @last (unless NULL) in place of its last chunk. */
static void dir_replace(struct okv_index *ix, struct okv_index_dir *dir, uint32_t max_chunks,
			const struct okv_chunk_ref *last)
{
	struct okv_index_dir *old = ix->dir;
	uint32_t old_max = ix->dir_max;

	dir->nr_chunks = ix->nr_chunks;
	if (ix->nr_chunks)
		memcpy(dir->chunks, old->chunks, ix->nr_chunks * sizeof(*dir->chunks));
	if (last)
		dir->chunks[ix->nr_chunks - 1] = *last;
	(void)OKV_FAILPOINT("index.dir_filled");
	/* Readers may be in the old one until they look at the version of the tables again. */
	tables_begin(ix);
	OKV_ORDERED_STORE(&ix->head->dir_off, mem_off(ix, dir));
	(void)OKV_FAILPOINT("index.dir_switched");
	tables_end(ix);
	ix->dir = dir;
	ix->dir_max = max_chunks;
	if (old)
		mem_free(ix, old, dir_bytes(old_max));
}

static int dir_grow(struct okv_index *ix, uint32_t nr)
{
	uint32_t max = ix->max_chunks ? 2 * ix->max_chunks : 1;
	struct okv_index_dir *dir;
	int ret = 0;

	if (max < nr)
		max = nr;
	if (nr > ix->max_chunks)
		ret = pointers_grow(ix, max);
	if (ret || nr <= ix->dir_max)
		return ret;
	dir = dir_alloc(ix, max);
	if (!dir)
		return -ENOMEM;
	dir_replace(ix, dir, max, NULL);
	return 0;
}

static int chunk_alloc(struct okv_index *ix, uint32_t nr_entries, unsigned char **entries, unsigned char **records)
{
	*entries = mem_alloc(ix, (size_t)nr_entries * sizeof(struct okv_entry));
	if (!*entries)
		return -ENOMEM;
	*records = mem_alloc(ix, (size_t)nr_entries * ix->stride);
	if (!*records) {
		mem_free(ix, *entries, (size_t)nr_entries * sizeof(struct okv_entry));
		return -ENOMEM;
	}
	return 0;
}

/* The full-sized chunks that there are, then room for @nr_entries more, in one piece of memory. */
static int chunks_add(struct okv_index *ix, uint32_t nr_entries)
{
	uint32_t nr = (nr_entries + OKV_CHUNK_ENTRIES - 1) >> OKV_CHUNK_SHIFT, i;
	unsigned char *entries, *records;
	int ret;

	if (nr > OKV_CHUNKS_MAX - ix->nr_chunks)
		return -ENOMEM;
	ret = dir_grow(ix, ix->nr_chunks + nr);
	if (ret)
		return ret;
	ret = chunk_alloc(ix, nr_entries, &entries, &records);
	if (ret)
		return ret;
	(void)OKV_FAILPOINT("index.chunk_taken");
	for (i = 0; i < nr; i++) {
		uint32_t at = ix->nr_chunks + i, rest = nr_entries - (i << OKV_CHUNK_SHIFT);

		ix->entries[at] = entries + (size_t)i * OKV_CHUNK_ENTRIES * sizeof(struct okv_entry);
		ix->records[at] = records + (size_t)i * OKV_CHUNK_ENTRIES * ix->stride;
		ix->pieces[at] = i ? 0 : nr;
		ix->dir->chunks[at] = (struct okv_chunk_ref){
			.entries_off = mem_off(ix, ix->entries[at]),
			.records_off = mem_off(ix, ix->records[at]),
			.nr = rest < OKV_CHUNK_ENTRIES ? rest : OKV_CHUNK_ENTRIES,
		};
	}
	ix->nr_chunks += nr;
	ix->nr_room += nr_entries;
	OKV_ORDERED_STORE(&ix->dir->nr_chunks, ix->nr_chunks);
	(void)OKV_FAILPOINT("index.chunk_listed");
	return 0;
}

/*
 * A short last chunk, which is a piece of its own, moves to where there is room for @nr_entries. All memory is taken
 * before anything is copied: an allocation may evict entries of this very index, whose copies would live on.
 */
static int chunk_extend(struct okv_index *ix, uint32_t nr_entries)
{
	uint32_t at = ix->nr_chunks - 1, nr_old = ix->nr_room - (at << OKV_CHUNK_SHIFT);
	unsigned char *entries, *records;
	struct okv_index_dir *dir;
	struct okv_chunk_ref ref;
	int ret;

	ret = chunk_alloc(ix, nr_entries, &entries, &records);
	if (ret)
		return ret;
	dir = dir_alloc(ix, ix->dir_max);
	if (!dir) {
		mem_free(ix, entries, (size_t)nr_entries * sizeof(struct okv_entry));
		mem_free(ix, records, (size_t)nr_entries * ix->stride);
		return -ENOMEM;
	}
	memcpy(entries, ix->entries[at], (size_t)nr_old * sizeof(struct okv_entry));
	memcpy(records, ix->records[at], (size_t)nr_old * ix->stride);
	ref = (struct okv_chunk_ref){ .entries_off = mem_off(ix, entries), .records_off = mem_off(ix, records),
				      .nr = nr_entries };
	dir_replace(ix, dir, ix->dir_max, &ref);
	mem_free(ix, ix->entries[at], (size_t)nr_old * sizeof(struct okv_entry));
	mem_free(ix, ix->records[at], (size_t)nr_old * ix->stride);
	ix->entries[at] = entries;
	ix->records[at] = records;
	ix->nr_room += nr_entries - nr_old;
	return 0;
}

/* Room for at least one entry more. */
static int room_grow(struct okv_index *ix)
{
	return mem_is_lasting(ix) ? -ENOMEM : chunks_add(ix, OKV_CHUNK_ENTRIES);
}

/* The table ---------------------------------------------------------------------------------- */

static size_t table_bytes(uint32_t log2_buckets)
{
	return sizeof(struct okv_bucket) << log2_buckets;
}

static uint32_t table_log2(const struct table *tab)
{
	return 32 - tab->shift;
}

static void table_set(struct table *tab, struct okv_bucket *buckets, uint32_t log2_buckets)
{
	tab->buckets = buckets;
	tab->mask = (uint32_t)((1ull << log2_buckets) - 1);
	tab->shift = 32 - log2_buckets;
	tab->nr_used = 0;
}

static int table_init(struct okv_index *ix, struct table *tab, uint32_t log2_buckets)
{
	struct okv_bucket *buckets = mem_alloc(ix, table_bytes(log2_buckets));

	if (!buckets)
		return -ENOMEM;
	table_set(tab, buckets, log2_buckets);
	return 0;
}

static void table_fini(struct okv_index *ix, struct table *tab)
{
	mem_free(ix, tab->buckets, table_bytes(table_log2(tab)));
	tab->buckets = NULL;
}

static struct okv_table_ref table_ref(const struct okv_index *ix, const struct table *tab)
{
	struct okv_table_ref ref = { 0 };

	if (tab->buckets) {
		ref.off = mem_off(ix, tab->buckets);
		ref.log2_buckets = table_log2(tab);
	}
	return ref;
}

/* Readers are to see both tables as they are now. */
static void tables_publish(struct okv_index *ix)
{
	tables_begin(ix);
	ix->head->tab = table_ref(ix, &ix->tab);
	ix->head->old = table_ref(ix, &ix->old);
	tables_end(ix);
}

static inline uint64_t table_slots(const struct table *tab)
{
	return tab->buckets ? ((uint64_t)tab->mask + 1) * OKV_BUCKET_SLOTS : 0;
}

static inline struct okv_bucket *table_home(const struct table *tab, uint32_t tag)
{
	return &tab->buckets[tag >> tab->shift];
}

/* Around a change of a bucket's slots. Only one thread writes, so the version is not contended. */
static inline void bucket_begin(struct okv_bucket *bucket)
{
	__atomic_store_n(&bucket->version, bucket->version + 1, __ATOMIC_RELAXED);
	okv_fence(memory_order_release);
}

static inline void bucket_end(struct okv_bucket *bucket)
{
	__atomic_store_n(&bucket->version, bucket->version + 1, __ATOMIC_RELEASE);
}

static void table_add(struct table *tab, uint32_t tag, uint32_t id)
{
	uint32_t at = tag >> tab->shift, nr, empty;

	/* There is an empty one, but where others have written to the table. */
	for (nr = 0; nr <= tab->mask; nr++, at = (at + 1) & tab->mask) {
		struct okv_bucket *bucket = &tab->buckets[at];

		empty = okv_slots_with(bucket->ids, 0);
		if (empty) {
			unsigned int i = (unsigned int)__builtin_ctz(empty);

			bucket_begin(bucket);
			bucket->tags[i] = tag;
			(void)OKV_FAILPOINT("index.slot_changing");
			bucket->ids[i] = id + 1;
			bucket_end(bucket);
			tab->nr_used++;
			return;
		}
		bucket->nr_passed++;
	}
}

/* Returns false when the table does not hold it. */
static bool table_del(struct table *tab, uint32_t tag, uint32_t id)
{
	uint32_t home = tag >> tab->shift;
	uint32_t at = home, nr, found;

	for (nr = 0; nr <= tab->mask; nr++, at = (at + 1) & tab->mask) {
		struct okv_bucket *bucket = &tab->buckets[at];

		found = okv_slots_with(bucket->ids, id + 1);
		if (found) {
			bucket_begin(bucket);
			bucket->ids[__builtin_ctz(found)] = 0;
			bucket_end(bucket);
			tab->nr_used--;
			for (; home != at; home = (home + 1) & tab->mask)
				tab->buckets[home].nr_passed--;
			return true;
		}
		if (bucket->nr_passed == 0)
			break;
	}
	return false;
}

static uint32_t table_find(struct okv_index *ix, const struct table *tab, uint32_t tag, uint32_t ns,
			   const struct omnikv_key *key)
{
	uint32_t at = tag >> tab->shift, name = okv_entry_name(ns, key->len), nr, found;

	for (nr = 0; nr <= tab->mask; nr++, at = (at + 1) & tab->mask) {
		const struct okv_bucket *bucket = &tab->buckets[at];

		for (found = okv_slots_with(bucket->tags, tag); found; found &= found - 1) {
			uint32_t slot = bucket->ids[__builtin_ctz(found)];
			const struct okv_entry *e;

			if (!is_id(ix, slot - 1))
				continue;
			e = entry_of(ix, slot - 1);
			if (okv_entry_is(e, name, key))
				return slot - 1;
			ix->nr_collisions++;
		}
		if (bucket->nr_passed == 0)
			break;
	}
	return OKV_ENTRY_NONE;
}

/* Brings in the entry that a bucket points to, for a table_find() soon after. */
static inline void table_prefetch_entry(const struct okv_index *ix, const struct table *tab, uint32_t tag)
{
	const struct okv_bucket *bucket = table_home(tab, tag);
	uint32_t found;

	for (found = okv_slots_with(bucket->tags, tag); found; found &= found - 1) {
		uint32_t slot = bucket->ids[__builtin_ctz(found)];

		if (is_id(ix, slot - 1))
			okv_prefetch(entry_of(ix, slot - 1));
	}
}

/* Where the table has it: an entry that is not dropped. NULL: nowhere, since others have written to it. */
static struct okv_bucket *bucket_of(const struct okv_index *ix, uint32_t tag, uint32_t id)
{
	const struct table *tab;
	uint32_t at, nr;

	for (tab = &ix->tab; tab && tab->buckets; tab = tab == &ix->tab ? &ix->old : NULL) {
		for (at = tag >> tab->shift, nr = 0; nr <= tab->mask; nr++, at = (at + 1) & tab->mask) {
			if (okv_slots_with(tab->buckets[at].ids, id + 1))
				return &tab->buckets[at];
			if (tab->buckets[at].nr_passed == 0)
				break;
		}
	}
	return NULL;
}

/* Carry one bucket over. Its entries may be at home in earlier ones, all empty by now. */
static void table_migrate_step(struct okv_index *ix)
{
	struct okv_bucket *bucket = &ix->old.buckets[ix->old_next];
	unsigned int i;

	for (i = 0; i < OKV_BUCKET_SLOTS; i++) {
		uint32_t slot = bucket->ids[i], tag = bucket->tags[i];

		if (slot == 0)
			continue;
		table_add(&ix->tab, tag, slot - 1);
		table_del(&ix->old, tag, slot - 1);
	}
	if (ix->old_next++ == ix->old.mask) {
		struct table done = ix->old;

		ix->old.buckets = NULL;
		tables_publish(ix);
		table_fini(ix, &done);
	}
}

/* What there is moves to a table of this size, a bucket at each insertion. */
static int table_grow(struct okv_index *ix, uint32_t log2_buckets)
{
	struct table bigger;
	int ret;

	while (ix->old.buckets)
		table_migrate_step(ix);
	if (log2_buckets > 31)
		return -ENOMEM;
	ret = table_init(ix, &bigger, log2_buckets);
	if (ret)
		return ret;
	ix->old = ix->tab;
	ix->old_next = 0;
	ix->tab = bigger;
	tables_publish(ix);
	return 0;
}

static uint64_t load_of(const struct okv_index *ix)
{
	return mem_is_lasting(ix) ? LOAD_LASTING : LOAD_NUM;
}

/* Room for one more. */
static int table_reserve(struct okv_index *ix)
{
	if (ix->old.buckets)
		table_migrate_step(ix);
	if ((ix->tab.nr_used + ix->old.nr_used + 1) * LOAD_DEN <= table_slots(&ix->tab) * load_of(ix))
		return 0;
	return mem_is_lasting(ix) ? -ENOMEM : table_grow(ix, table_log2(&ix->tab) + 1);
}

/* Of a table for @nr entries. */
static uint32_t table_log2_for(const struct okv_index *ix, uint64_t nr)
{
	uint32_t log2_buckets = 0;

	while ((OKV_BUCKET_SLOTS << log2_buckets) * load_of(ix) < nr * LOAD_DEN ||
	       (1u << log2_buckets) < BUCKETS_MIN)
		log2_buckets++;
	return log2_buckets;
}

/* Hash --------------------------------------------------------------------------------------- */

static inline uint32_t key_tag(const struct okv_index *ix, uint64_t mix, const struct omnikv_key *key)
{
	return okv_key_tag(ix->secret, ix->tag_mask, mix, key);
}

static uint32_t find(struct okv_index *ix, uint32_t tag, uint32_t ns, const struct omnikv_key *key)
{
	uint32_t id = table_find(ix, &ix->tab, tag, ns, key);

	if (id == OKV_ENTRY_NONE && ix->old.buckets)
		id = table_find(ix, &ix->old, tag, ns, key);
	return id;
}

/* The same with their records. */
static void prefetch_found(const struct okv_index *ix, uint32_t tag)
{
	for (const struct table *tab = &ix->tab; tab && tab->buckets; tab = tab == &ix->tab ? &ix->old : NULL) {
		const struct okv_bucket *bucket = table_home(tab, tag);

		for (uint32_t found = okv_slots_with(bucket->tags, tag); found; found &= found - 1) {
			uint32_t slot = bucket->ids[__builtin_ctz(found)];

			if (!is_id(ix, slot - 1))
				continue;
			okv_prefetch(entry_of(ix, slot - 1));
			okv_prefetch(record_of(ix, slot - 1));
		}
	}
}

static inline void prefetch_home(const struct okv_index *ix, uint32_t tag)
{
	okv_prefetch(table_home(&ix->tab, tag));
	if (ix->old.buckets)
		okv_prefetch(table_home(&ix->old, tag));
}

static inline void prefetch_entry(const struct okv_index *ix, uint32_t tag)
{
	table_prefetch_entry(ix, &ix->tab, tag);
	if (ix->old.buckets)
		table_prefetch_entry(ix, &ix->old, tag);
}

/* Life --------------------------------------------------------------------------------------- */

static const struct okv_index_allocator default_mem = { .alloc = default_alloc, .free = default_free };

static struct okv_index *index_new(const struct okv_index_config *config)
{
	struct okv_index *ix = aligned_alloc(64, (sizeof(*ix) + 63) & ~(size_t)63);

	if (!ix)
		return NULL;
	memset(ix, 0, sizeof(*ix));
	ix->mem = config->allocator ? *config->allocator : default_mem;
	ix->is_held = config->is_held;
	ix->changed = config->changed;
	ix->opaque = config->opaque;
	ix->nr_groups = config->nr_groups;
	ix->optional_groups = config->optional_groups;
	ix->block_tokens = config->block_tokens;
	ix->stride = (uint32_t)(sizeof(struct okv_entry_record) + config->nr_groups * sizeof(struct okv_group));
	ix->free_ids = OKV_ENTRY_NONE;
	ix->own_bytes = sizeof(*ix);
	okv_evict_init(&ix->order, ix->stride);
	return ix;
}

/* The writer's own part. */
static void index_delete(struct okv_index *ix)
{
	free(ix->entries);
	free(ix->pieces);
	free(ix->ns_tails);
	free(ix);
}

static bool config_is_valid(const struct okv_index_config *config)
{
	return config->nr_groups != 0 && config->nr_groups <= OKV_INDEX_GROUPS_MAX && config->block_tokens != 0 &&
	       config->block_tokens <= OKV_INDEX_TOKENS_MAX && config->hash_bits <= 32 &&
	       config->nr_entries_hint <= (uint64_t)OKV_CHUNKS_MAX * OKV_CHUNK_ENTRIES &&
	       (config->nr_groups == 32 || !(config->optional_groups >> config->nr_groups));
}

int okv_index_create(const struct okv_index_config *config, struct okv_index **out)
{
	struct okv_index_head *head;
	struct okv_index *ix;
	int ret;

	_Static_assert(sizeof(struct omnikv_key) == OMNIKV_KEY_BYTES_MAX + 4, "hashed as one piece");
	if (!config_is_valid(config))
		return -EINVAL;
	ix = index_new(config);
	if (!ix)
		return -ENOMEM;
	ret = -ENOMEM;
	head = mem_alloc(ix, sizeof(*head));
	if (!head)
		goto err_free;
	ix->head = head;
	ix->tag_mask = config->hash_bits ? UINT32_MAX << (32 - config->hash_bits) : UINT32_MAX;
	XXH3_generateSecret(ix->secret, OKV_SECRET_BYTES, config->seed, sizeof(config->seed));
	head->magic = OKV_INDEX_MAGIC;
	head->version = OKV_INDEX_VERSION;
	head->nr_groups = ix->nr_groups;
	head->optional_groups = ix->optional_groups;
	head->block_tokens = ix->block_tokens;
	head->tag_mask = ix->tag_mask;
	head->stride = ix->stride;
	memcpy(head->secret, ix->secret, sizeof(head->secret));
	head->crc = okv_crc32c(head, offsetof(struct okv_index_head, crc));

	ret = table_init(ix, &ix->tab, table_log2_for(ix, config->nr_entries_hint));
	if (ret)
		goto err_free;
	tables_publish(ix);
	if (config->nr_entries_hint) {
		ret = okv_index_reserve(ix, config->nr_entries_hint);
		if (ret)
			goto err_free;
	}
	*out = ix;
	return 0;

err_free:
	okv_index_destroy(ix);
	return ret;
}

int okv_index_reserve(struct okv_index *ix, uint64_t nr)
{
	uint32_t log2_buckets;
	int ret;

	if (nr > (uint64_t)OKV_CHUNKS_MAX * OKV_CHUNK_ENTRIES)
		return -ENOMEM;
	if (!mem_is_lasting(ix) && nr > ix->nr_room) {
		ret = chunks_add(ix, (uint32_t)(nr - ix->nr_room + OKV_CHUNK_ENTRIES - 1) & ~(OKV_CHUNK_ENTRIES - 1));
		if (ret)
			return ret;
	}
	while (nr > ix->nr_room) {
		uint32_t nr_short = ix->nr_room % OKV_CHUNK_ENTRIES;
		uint64_t nr_more = nr - ix->nr_room + nr_short;

		if (nr_more > OKV_CHUNK_ENTRIES)
			nr_more = OKV_CHUNK_ENTRIES;
		ret = nr_short ? chunk_extend(ix, (uint32_t)nr_more) : chunks_add(ix, (uint32_t)nr_more);
		if (ret)
			return ret;
	}
	log2_buckets = table_log2_for(ix, nr);
	if (log2_buckets <= table_log2(&ix->tab))
		return 0;
	ret = table_grow(ix, log2_buckets);
	if (ret)
		return ret;
	while (ix->old.buckets)
		table_migrate_step(ix);
	return 0;
}

uint64_t okv_index_room(const struct okv_index *ix)
{
	return ix->nr_room;
}

uint64_t okv_index_spare(const struct okv_index *ix)
{
	return mem_is_lasting(ix) ? ix->nr_room - ix->nr_entries : UINT64_MAX;
}

uint64_t okv_index_off(const struct okv_index *ix)
{
	return mem_off(ix, ix->head);
}

void okv_index_destroy(struct okv_index *ix)
{
	uint32_t i;

	if (!ix)
		return;
	/* Readers look again, and find it gone. */
	if (ix->head && mem_is_lasting(ix)) {
		__atomic_store_n(&ix->head->tables, ix->head->tables | 1, __ATOMIC_RELAXED);
		okv_fence(memory_order_release);
	}
	for (i = 0; i < ix->nr_chunks; i += ix->pieces[i]) {
		uint32_t nr_before = i << OKV_CHUNK_SHIFT, nr_behind = (i + ix->pieces[i]) << OKV_CHUNK_SHIFT;
		size_t nr = (nr_behind < ix->nr_room ? nr_behind : ix->nr_room) - nr_before;

		mem_free(ix, ix->entries[i], nr * sizeof(struct okv_entry));
		mem_free(ix, ix->records[i], nr * ix->stride);
	}
	if (ix->dir)
		mem_free(ix, ix->dir, dir_bytes(ix->dir_max));
	table_fini(ix, &ix->tab);
	table_fini(ix, &ix->old);
	mem_free(ix, ix->head, sizeof(*ix->head));
	assert(ix->mem_bytes == 0);
	index_delete(ix);
}

void okv_index_leave(struct okv_index *ix)
{
	if (ix)
		index_delete(ix);
}

/* Insertion ---------------------------------------------------------------------------------- */

static int ns_tails_grow(struct okv_index *ix, uint32_t ns)
{
	uint32_t nr = ix->nr_ns_tails ? ix->nr_ns_tails : 16;
	uint32_t *tails;

	if (ns < ix->nr_ns_tails)
		return 0;
	while (nr <= ns)
		nr *= 2;
	tails = realloc(ix->ns_tails, nr * sizeof(*tails));
	if (!tails)
		return -ENOMEM;
	memset(tails + ix->nr_ns_tails, 0xff, (nr - ix->nr_ns_tails) * sizeof(*tails));
	ix->own_bytes += (nr - ix->nr_ns_tails) * sizeof(*tails);
	ix->ns_tails = tails;
	ix->nr_ns_tails = nr;
	return 0;
}

static uint32_t *tails_head(const struct okv_index *ix, uint32_t ns, uint32_t parent)
{
	return parent == OKV_ENTRY_NONE ? &ix->ns_tails[ns] : &entry_of(ix, parent)->tails;
}

/* Of a partial tail at position 0 the namespace has room in ns_tails. */
static void tail_add(struct okv_index *ix, uint32_t id, uint32_t ns, uint32_t parent)
{
	struct okv_entry *e = entry_of(ix, id);
	uint32_t *head = tails_head(ix, ns, parent), next = OKV_READ_ONCE(*head);

	e->tail_prev = OKV_ENTRY_NONE;
	e->tail_next = next;
	if (is_id(ix, next))
		entry_of(ix, next)->tail_prev = id;
	*head = id;
}

static void tail_del(struct okv_index *ix, const struct okv_entry *e)
{
	uint32_t parent = parent_of(ix, e), ns = okv_entry_ns(e);
	uint32_t prev = OKV_READ_ONCE(e->tail_prev), next = OKV_READ_ONCE(e->tail_next);

	if (is_id(ix, prev))
		entry_of(ix, prev)->tail_next = next;
	else if (parent != OKV_ENTRY_NONE || ns < ix->nr_ns_tails)
		*tails_head(ix, ns, parent) = next;
	if (is_id(ix, next))
		entry_of(ix, next)->tail_prev = prev;
}

static inline bool follows(const struct okv_group *up, const struct okv_group *g)
{
	return up->run_blocks < RUN_BLOCKS_MAX && up->nr_granules == g->nr_granules && up->granule + up->nr_granules == g->granule;
}

static void group_set(struct okv_index *ix, uint32_t parent, uint32_t group, struct okv_group *g,
		      const struct omnikv_extent *extent, uint32_t crc32c)
{
	struct okv_group new = { .granule = extent->granule, .run_blocks = 1, .generation = extent->generation,
		.nr_granules = extent->nr_granules, .crc32c = crc32c, .run_parent = parent };

	if (parent != OKV_ENTRY_NONE && new.nr_granules) {
		const struct okv_group *up = &record_of(ix, parent)->groups[group];

		if (follows(up, &new)) {
			new.run_parent = up->run_parent;
			new.run_blocks = up->run_blocks + 1;
		}
	}
	/* Whole words: nothing of the old contents is waited for. */
	*g = new;
}

/* Zero behind its length, a word at a time. */
static inline bool key_is_padded(const struct omnikv_key *key)
{
	uint64_t words[OMNIKV_KEY_BYTES_MAX / 8], rest = 0;
	uint32_t i, whole = key->len / 8;

	memcpy(words, key->bytes, sizeof(words));
	if (key->len % 8) {
		memcpy(&rest, (const char *)words + key->len, 8 - key->len % 8);
		whole++;
	}
	for (i = whole; i < OMNIKV_KEY_BYTES_MAX / 8; i++)
		rest |= words[i];
	return rest == 0;
}

static int block_check(const struct okv_index *ix, const struct okv_index_block *block)
{
	const struct omnikv_key *key = block->key;
	uint32_t i;

	if (block->ns >= OKV_INDEX_NS_MAX || key->len == 0 || key->len > OMNIKV_KEY_BYTES_MAX ||
	    block->nr_tokens == 0 || block->nr_tokens > ix->block_tokens)
		return -EINVAL;
	if (!key_is_padded(key))
		return -EINVAL;
	for (i = 0; i < ix->nr_groups; i++) {
		if (block->extents[i].nr_granules == 0 && !(ix->optional_groups & (1u << i)))
			return -EINVAL;
		if (block->extents[i].granule >= OKV_INDEX_GRANULES_MAX)
			return -EINVAL;
	}
	if (block->parent == OKV_ENTRY_NONE) {
		if (block->position != 0)
			return -EINVAL;
	} else {
		const struct okv_entry *up;

		if (!is_live(ix, block->parent))
			return -ESTALE;
		up = entry_of(ix, block->parent);
		if (up->name & OKV_ENTRY_F_DROPPED)
			return -ESTALE;
		if (okv_entry_ns(up) != block->ns || (up->name & OKV_ENTRY_F_PARTIAL) || up->position + 1 != block->position ||
		    block->position == UINT32_MAX)
			return -EINVAL;
	}
	return 0;
}

/* All but the use that an insertion counts as: the caller records it, once for all blocks of a path. */
static int insert(struct okv_index *ix, const struct okv_index_block *block, uint32_t tag, uint32_t *out)
{
	bool is_partial = block->nr_tokens < ix->block_tokens;
	struct okv_entry_record *rec;
	struct okv_entry *e;
	uint32_t id, name, i;
	int ret;

	ret = block_check(ix, block);
	if (ret)
		return ret;
	id = find(ix, tag, block->ns, block->key);
	if (id != OKV_ENTRY_NONE) {
		e = entry_of(ix, id);
		if (e->parent != block->parent || e->position != block->position || entry_tokens(ix, e) != block->nr_tokens)
			return -EINVAL;
		*out = id;
		return -EEXIST;
	}

	if (is_partial && block->parent == OKV_ENTRY_NONE) {
		ret = ns_tails_grow(ix, block->ns);
		if (ret)
			return ret;
	}
	ret = table_reserve(ix);
	if (ret)
		return ret;
	/* A list that leads to what is in use has been overwritten. */
	if (ix->free_ids != OKV_ENTRY_NONE && entry_of(ix, ix->free_ids)->name)
		ix->free_ids = OKV_ENTRY_NONE;
	if (ix->free_ids == OKV_ENTRY_NONE && ix->nr_ids == ix->nr_room) {
		ret = room_grow(ix);
		if (ret)
			return ret;
	}

	if (ix->free_ids != OKV_ENTRY_NONE) {
		id = ix->free_ids;
		e = entry_of(ix, id);
		ix->free_ids = parent_of(ix, e);
	} else {
		id = ix->nr_ids++;
		e = entry_of(ix, id);
		OKV_ORDERED_STORE(&ix->head->nr_ids, ix->nr_ids);
	}
	memcpy(e->key, block->key->bytes, sizeof(e->key));
	e->parent = block->parent;
	e->position = block->position;
	e->nr_children = 0;
	e->tails = OKV_ENTRY_NONE;
	e->heat = 0;
	if (is_partial)
		e->tail_tokens = (uint16_t)block->nr_tokens;
	e->tag = tag;
	name = okv_entry_name(block->ns, block->key->len) | (is_partial ? OKV_ENTRY_F_PARTIAL : 0);
	rec = record_of(ix, id);
	for (i = 0; i < ix->nr_groups; i++)
		group_set(ix, block->parent, i, &rec->groups[i], &block->extents[i], block->crc32c[i]);
	okv_evict_node_init(&ix->order, id);
	/* Of use to a later writer alone. */
	if (mem_is_lasting(ix))
		e->seal = okv_entry_seal(e, rec, ix->nr_groups, name);
	(void)OKV_FAILPOINT("index.insert_filled");
	/* From here on it is there, also for a writer to come. */
	OKV_ORDERED_STORE(&e->name, name);
	(void)OKV_FAILPOINT("index.insert_there");
	if (block->parent != OKV_ENTRY_NONE)
		entry_of(ix, block->parent)->nr_children++;
	if (is_partial)
		tail_add(ix, id, block->ns, block->parent);
	table_add(&ix->tab, tag, id);
	(void)OKV_FAILPOINT("index.insert_listed");
	ix->nr_entries++;
	ix->nr_partial += is_partial;
	*out = id;
	if (ix->changed)
		ix->changed(ix->opaque, block->ns, id, true);
	return 0;
}

int okv_index_insert(struct okv_index *ix, const struct okv_index_block *block, uint32_t *id)
{
	int ret = insert(ix, block, key_tag(ix, okv_ns_mix(block->ns), block->key), id);

	if (ret == 0)
		okv_evict_touch(&ix->order, *id, block->parent);
	return ret;
}

int okv_index_insert_path(struct okv_index *ix, const struct okv_index_block *first, size_t nr, size_t *nr_done,
			  uint32_t *ids, bool *is_new)
{
	struct okv_index_block block = *first;
	uint64_t mix = okv_ns_mix(first->ns);
	uint32_t tags[2 * PROBES], last = OKV_ENTRY_NONE, joint = OKV_ENTRY_NONE;
	size_t i, ahead = 0;
	int ret = 0;

	block.nr_tokens = ix->block_tokens;
	for (i = 0; i < nr; i++) {
		uint32_t id;

		/* A group of prefetches at once: one that waits for its page's translation holds up what follows it. */
		if (i % PROBES == 0) {
			size_t end = i + 2 * PROBES < nr ? i + 2 * PROBES : nr, k;

			for (k = ahead; k < end; k++)
				tags[k % (2 * PROBES)] = key_tag(ix, mix, &first->key[k]);
			for (; ahead < end; ahead++)
				prefetch_home(ix, tags[ahead % (2 * PROBES)]);
		}
		ret = insert(ix, &block, tags[i % (2 * PROBES)], &id);
		if (ret && ret != -EEXIST)
			break;
		if (ret == 0) {
			if (last == OKV_ENTRY_NONE)
				joint = block.parent;
			last = id;
		}
		if (ids)
			ids[i] = id;
		if (is_new)
			is_new[i] = ret == 0;
		block.parent = id;
		block.position++;
		block.key++;
		block.extents += ix->nr_groups;
		block.crc32c += ix->nr_groups;
		ret = 0;
	}
	/* What is new hangs on @joint, for which the deepest stands from now on, as it does for those between. */
	if (last != OKV_ENTRY_NONE)
		okv_evict_touch(&ix->order, last, joint);
	*nr_done = i;
	return ret;
}

/* Lookup ------------------------------------------------------------------------------------- */

uint32_t okv_index_find(struct okv_index *ix, uint32_t ns, const struct omnikv_key *key)
{
	return find(ix, key_tag(ix, okv_ns_mix(ns), key), ns, key);
}

/* The full block of @key at @position, or OKV_ENTRY_NONE. */
static uint32_t find_at(struct okv_index *ix, uint32_t tag, uint32_t ns, const struct omnikv_key *key,
			size_t position)
{
	uint32_t id = find(ix, tag, ns, key);

	if (id != OKV_ENTRY_NONE) {
		const struct okv_entry *e = entry_of(ix, id);

		if (e->position != position || (e->name & OKV_ENTRY_F_PARTIAL))
			id = OKV_ENTRY_NONE;
	}
	return id;
}

/*
 * Narrow [lo, hi], counts of leading blocks between which the answer lies, by PROBES probes at
 * once: the misses of one round overlap. On return keys[nr - 1] is there at its position and
 * keys[nr] is not at its own.
 */
static void search(struct okv_index *ix, uint32_t ns, const struct omnikv_key *keys, size_t nr_keys,
		   struct okv_index_hit *hit)
{
	uint64_t mix = okv_ns_mix(ns);
	size_t lo = 0, hi = nr_keys;

	hit->entry = OKV_ENTRY_NONE;
	hit->nr_anchors = 0;
	while (lo < hi) {
		size_t width = hi - lo, nr = width < PROBES ? width : PROBES, i;
		size_t counts[PROBES];
		uint32_t tags[PROBES];

		for (i = 0; i < nr; i++) {
			counts[i] = lo + (i + 1) * width / nr;
			tags[i] = key_tag(ix, mix, &keys[counts[i] - 1]);
			prefetch_home(ix, tags[i]);
		}
		for (i = 0; i < nr; i++)
			prefetch_entry(ix, tags[i]);
		for (i = 0; i < nr; i++) {
			uint32_t id = find_at(ix, tags[i], ns, &keys[counts[i] - 1], counts[i] - 1);

			if (id == OKV_ENTRY_NONE) {
				hi = counts[i] - 1;
				break;
			}
			/* Those of the first round lie evenly over the path. */
			if (lo == i * width / nr && hit->nr_anchors == i) {
				hit->positions[i] = (uint32_t)counts[i] - 1;
				hit->anchors[hit->nr_anchors++] = id;
			}
			lo = counts[i];
			hit->entry = id;
		}
	}
	hit->nr_blocks = lo;
}

/* From the start, key by key: exact for any keys. */
static void walk_down(struct okv_index *ix, uint32_t ns, const struct omnikv_key *keys, size_t nr_keys,
		      struct okv_index_hit *hit)
{
	uint64_t mix = okv_ns_mix(ns);
	uint32_t tags[2 * PROBES], prev = OKV_ENTRY_NONE;
	size_t i, home_ahead = 0, entry_ahead = 0;

	for (i = 0; i < nr_keys; i++) {
		uint32_t id;

		for (; home_ahead < nr_keys && home_ahead < i + 2 * PROBES; home_ahead++) {
			tags[home_ahead % (2 * PROBES)] = key_tag(ix, mix, &keys[home_ahead]);
			prefetch_home(ix, tags[home_ahead % (2 * PROBES)]);
		}
		for (; entry_ahead < home_ahead && entry_ahead < i + PROBES; entry_ahead++)
			prefetch_entry(ix, tags[entry_ahead % (2 * PROBES)]);
		id = find_at(ix, tags[i % (2 * PROBES)], ns, &keys[i], i);
		if (id == OKV_ENTRY_NONE || entry_of(ix, id)->parent != prev)
			break;
		prev = id;
	}
	hit->nr_blocks = i;
	hit->entry = prev;
	hit->nr_anchors = 0;
}

/*
 * The walks of a path side by side: walk k goes up from anchor k to behind anchor k - 1, the
 * first to the path's start, the last from the entry hit. Positions count from 1 here, so that
 * 0 is the start.
 */
struct walk {
	uint32_t	id;		/* where it is */
	uint32_t	position;	/* of @id, plus 1 */
	uint32_t	until;		/* and where it ends */
	uint32_t	expected;	/* the entry there */
};

static uint32_t walks_init(const struct okv_index_hit *hit, uint32_t from, struct walk walks[OKV_INDEX_ANCHORS + 1])
{
	uint32_t nr = 0, i, until = from, expected = OKV_ENTRY_NONE;

	for (i = 0; i <= hit->nr_anchors; i++) {
		bool is_last = i == hit->nr_anchors || hit->positions[i] + 1 >= hit->nr_blocks;
		struct walk *w = &walks[nr];

		w->id = is_last ? hit->entry : hit->anchors[i];
		w->position = is_last ? (uint32_t)hit->nr_blocks : hit->positions[i] + 1;
		w->until = until;
		w->expected = expected;
		if (w->position > until) {
			until = w->position;
			expected = w->id;
			nr++;
		}
		if (is_last)
			break;
	}
	return nr;
}

/* Is the stored path down to @hit the one that @keys name? */
static bool verify(const struct okv_index *ix, const struct omnikv_key *keys, const struct okv_index_hit *hit)
{
	struct walk walks[OKV_INDEX_ANCHORS + 1];
	uint32_t nr = walks_init(hit, 0, walks), i;

	while (nr) {
		for (i = 0; i < nr; i++) {
			struct walk *w = &walks[i];
			const struct okv_entry *e = entry_of(ix, w->id);

			if (!okv_key_equal(e, &keys[w->position - 1]))
				return false;
			w->id = OKV_READ_ONCE(e->parent);
			if (--w->position == w->until) {
				if (w->id != w->expected)
					return false;
				*w = walks[--nr];
				i--;
				continue;
			}
			if (!is_id(ix, w->id))
				return false;
			okv_prefetch(entry_of(ix, w->id));
			if (w->id >= AHEAD)
				okv_prefetch(entry_of(ix, w->id - AHEAD));
		}
	}
	return true;
}

void okv_index_match(struct okv_index *ix, uint32_t ns, const struct omnikv_key *keys, size_t nr_keys,
		     uint32_t flags, struct okv_index_hit *hit)
{
	struct okv_index_hit found;

	if (nr_keys > UINT32_MAX)
		nr_keys = UINT32_MAX;
	search(ix, ns, keys, nr_keys, &found);
	if (!(flags & OKV_INDEX_MATCH_F_CHAINED) && !verify(ix, keys, &found))
		walk_down(ix, ns, keys, nr_keys, &found);
	*hit = found;
}

void okv_index_prefetch(const struct okv_index *ix, uint32_t ns, const struct omnikv_prefix *prefixes, uint32_t nr)
{
	uint32_t tags[2 * PROBES], nr_tags = 0, i;
	uint64_t mix = okv_ns_mix(ns);

	for (i = 0; i < nr; i++) {
		const struct omnikv_prefix *prefix = &prefixes[i];
		size_t n = prefix->nr_keys < PROBES ? prefix->nr_keys : PROBES, k;

		for (k = 0; k < n && nr_tags < 2 * PROBES; k++)
			tags[nr_tags++] = key_tag(ix, mix, &prefix->keys[(k + 1) * prefix->nr_keys / n - 1]);
		if (!n && prefix->tail && nr_tags < 2 * PROBES)
			tags[nr_tags++] = key_tag(ix, mix, prefix->tail);
	}
	for (i = 0; i < nr_tags; i++)
		prefetch_home(ix, tags[i]);
	for (i = 0; i < nr_tags; i++)
		prefetch_found(ix, tags[i]);
}

void okv_index_usable(const struct okv_index *ix, uint32_t groups, struct okv_index_hit *hit)
{
	uint64_t nr_blocks = hit->nr_blocks;
	uint32_t id = hit->entry;

	/* No path is longer than its last block's position says. */
	for (; nr_blocks && id != OKV_ENTRY_NONE; nr_blocks--) {
		const struct okv_entry_record *rec = record_of(ix, id);
		uint32_t wanted = groups, i;

		for (i = 0; i < ix->nr_groups; i++) {
			if (rec->groups[i].nr_granules)
				wanted &= ~(1u << i);
		}
		if (!wanted)
			break;
		id = parent_of(ix, entry_of(ix, id));
	}
	hit->entry = nr_blocks ? id : OKV_ENTRY_NONE;
	hit->nr_blocks = id == OKV_ENTRY_NONE ? 0 : nr_blocks;
}

size_t okv_index_tails(const struct okv_index *ix, uint32_t ns, uint32_t parent, struct okv_index_tail *tails,
		       size_t max)
{
	uint32_t nr_steps = ix->nr_ids;	/* no list is longer */
	size_t nr = 0;
	uint32_t id;

	if (parent == OKV_ENTRY_NONE ? ns >= ix->nr_ns_tails : (entry_of(ix, parent)->name & OKV_ENTRY_F_PARTIAL) != 0)
		return 0;
	for (id = OKV_READ_ONCE(*tails_head(ix, ns, parent)); is_id(ix, id) && nr_steps--;
	     id = OKV_READ_ONCE(entry_of(ix, id)->tail_next)) {
		const struct okv_entry *e = entry_of(ix, id);

		if (e->name & OKV_ENTRY_F_DROPPED)
			continue;
		if (nr < max) {
			tails[nr].entry = id;
			tails[nr].nr_tokens = e->tail_tokens;
		}
		nr++;
	}
	return nr;
}

/*
 * One step of a walk: the run or the absent block that ends at @w, into @run when there is one.
 * Returns false when the walk's end is not where it was expected, or the walk leads out of the index.
 */
static inline bool run_step(const struct okv_index *ix, struct walk *w, uint32_t group, struct okv_index_run *run)
{
	const struct okv_group *g = &record_of(ix, w->id)->groups[group];
	uint32_t nr = g->run_blocks ? g->run_blocks : 1, up = OKV_READ_ONCE(g->run_parent);

	run->nr_blocks = 0;
	if (g->nr_granules == 0) {
		nr = 1;
		up = OKV_READ_ONCE(entry_of(ix, w->id)->parent);
	} else {
		if (nr > w->position - w->until)
			nr = w->position - w->until;
		run->position = w->position - nr;
		run->nr_blocks = nr;
		run->nr_granules = g->nr_granules;
		run->granule = g->granule - (uint64_t)(nr - 1) * g->nr_granules;
		run->entry = w->id;
	}
	w->position -= nr;
	if (w->position == w->until && w->expected != OKV_ENTRY_NONE) {
		/* A run that goes on goes through the very extent of the entry expected there. */
		const struct okv_group *there = &record_of(ix, w->expected)->groups[group];

		if (run->nr_blocks && nr < g->run_blocks)
			return there->nr_granules == g->nr_granules && there->granule + there->nr_granules == run->granule;
		return up == w->expected;
	}
	w->id = up;
	if (w->position > w->until) {
		if (!is_id(ix, up))
			return false;
		prefetch_group(ix, up, group);
	}
	return true;
}

static void runs_reverse(struct okv_index_run *runs, size_t nr)
{
	size_t i;

	for (i = 0; i < nr / 2; i++) {
		struct okv_index_run run = runs[i];

		runs[i] = runs[nr - 1 - i];
		runs[nr - 1 - i] = run;
	}
}

int64_t okv_index_runs(const struct okv_index *ix, uint32_t id, uint32_t group, uint32_t from,
		       struct okv_index_run *runs, size_t max)
{
	struct walk w = { .id = id, .until = from, .expected = OKV_ENTRY_NONE };
	struct okv_index_run run;
	size_t nr = 0;

	if (id == OKV_ENTRY_NONE)
		return 0;
	w.position = entry_of(ix, id)->position + 1;
	while (w.position > w.until) {
		bool goes_on = run_step(ix, &w, group, &run);

		if (run.nr_blocks != 0) {
			if (nr == max)
				return -ENOSPC;
			runs[nr++] = run;
		}
		if (!goes_on)
			break;
	}
	runs_reverse(runs, nr);
	return (int64_t)nr;
}

int64_t okv_index_hit_runs(const struct okv_index *ix, const struct okv_index_hit *hit, uint32_t group, uint32_t from,
			   struct okv_index_run *runs, size_t max)
{
	struct walk walks[OKV_INDEX_ANCHORS + 1];
	uint32_t nr_walks = walks_init(hit, from, walks), nr_going, i;
	uint32_t going[OKV_INDEX_ANCHORS + 1];
	size_t end[OKV_INDEX_ANCHORS + 1], at[OKV_INDEX_ANCHORS + 1], nr_all = 0;

	if (nr_walks < 2 || walks[nr_walks - 1].position - from > max)
		return okv_index_runs(ix, hit->entry, group, from, runs, max);
	/* Each walk fills its own share of @runs, as many as it has blocks, from the end: so they are in order at once. */
	for (i = 0; i < nr_walks; i++) {
		end[i] = walks[i].position - from;
		at[i] = end[i];
		going[i] = i;
		prefetch_group(ix, walks[i].id, group);
	}
	for (nr_going = nr_walks; nr_going;) {
		for (i = 0; i < nr_going; i++) {
			uint32_t n = going[i];
			struct walk *w = &walks[n];

			if (!run_step(ix, w, group, &runs[at[n] - 1]))
				return okv_index_runs(ix, hit->entry, group, from, runs, max);
			at[n] -= runs[at[n] - 1].nr_blocks != 0;
			if (w->position == w->until)
				going[i--] = going[--nr_going];
		}
	}
	for (i = 0; i < nr_walks; i++) {
		/* A run that was cut at an anchor is one run. */
		if (nr_all && at[i] < end[i]) {
			struct okv_index_run *last = &runs[nr_all - 1], *first = &runs[at[i]];

			if (last->position + last->nr_blocks == first->position && last->nr_granules == first->nr_granules &&
			    last->granule + (uint64_t)last->nr_blocks * last->nr_granules == first->granule) {
				last->nr_blocks += first->nr_blocks;
				last->entry = first->entry;
				at[i]++;
			}
		}
		if (nr_all != at[i])
			memmove(&runs[nr_all], &runs[at[i]], (end[i] - at[i]) * sizeof(*runs));
		nr_all += end[i] - at[i];
	}
	return (int64_t)nr_all;
}

void okv_index_blocks(const struct okv_index *ix, uint32_t id, uint32_t from, uint32_t *ids)
{
	uint32_t position = entry_of(ix, id)->position;

	for (;; position--) {
		if (position < from)
			return;
		ids[position - from] = id;
		if (position == 0)
			return;
		id = OKV_READ_ONCE(entry_of(ix, id)->parent);
		if (!is_id(ix, id))
			return;
		if (id >= AHEAD)
			okv_prefetch(entry_of(ix, id - AHEAD));
	}
}

int okv_index_get(const struct okv_index *ix, uint32_t id, struct okv_index_info *info)
{
	const struct okv_entry *e;

	if (!is_live(ix, id))
		return -ESTALE;
	e = entry_of(ix, id);
	memset(info, 0, sizeof(*info));
	memcpy(info->key.bytes, e->key, sizeof(e->key));
	info->key.len = okv_entry_key_len(e);
	info->ns = okv_entry_ns(e);
	info->parent = parent_of(ix, e);
	info->position = e->position;
	info->nr_tokens = entry_tokens(ix, e);
	info->is_partial = e->name & OKV_ENTRY_F_PARTIAL;
	info->is_dropped = e->name & OKV_ENTRY_F_DROPPED;
	info->nr_children = info->is_partial ? 0 : e->nr_children;
	info->nr_pins = okv_evict_node(&ix->order, id)->nr_pins;
	info->heat = entry_heat(e);
	return 0;
}

uint32_t okv_index_parent(const struct okv_index *ix, uint32_t id)
{
	return is_live(ix, id) ? parent_of(ix, entry_of(ix, id)) : OKV_ENTRY_NONE;
}

bool okv_index_is_found(const struct okv_index *ix, uint32_t id)
{
	return is_live(ix, id) && !(entry_of(ix, id)->name & OKV_ENTRY_F_DROPPED);
}

void okv_index_extent(const struct okv_index *ix, uint32_t id, uint32_t group, struct omnikv_extent *extent,
		      uint32_t *crc32c)
{
	const struct okv_group *g = &record_of(ix, id)->groups[group];

	extent->granule = g->granule;
	extent->generation = g->generation;
	extent->nr_granules = g->nr_granules;
	*crc32c = g->crc32c;
}

int okv_index_attach(struct okv_index *ix, uint32_t id, uint32_t group, const struct omnikv_extent *extent,
		     uint32_t crc32c)
{
	struct okv_bucket *bucket;
	struct okv_group *g, new;
	struct okv_entry *e;

	if (group >= ix->nr_groups || extent->nr_granules == 0 || extent->granule >= OKV_INDEX_GRANULES_MAX)
		return -EINVAL;
	if (!is_live(ix, id) || (entry_of(ix, id)->name & OKV_ENTRY_F_DROPPED))
		return -ESTALE;
	g = &record_of(ix, id)->groups[group];
	if (g->nr_granules)
		return -EEXIST;
	e = entry_of(ix, id);
	bucket = bucket_of(ix, e->tag, id);
	if (!bucket)
		return -ESTALE;
	group_set(ix, parent_of(ix, e), group, &new, extent, crc32c);
	/* Absent until its length is there; a seal that does not count it yet says that it did not get so far. */
	bucket_begin(bucket);
	g->granule = new.granule;
	g->run_blocks = new.run_blocks;
	g->run_parent = new.run_parent;
	g->generation = new.generation;
	g->crc32c = new.crc32c;
	(void)OKV_FAILPOINT("index.attach_filled");
	OKV_ORDERED_STORE(&g->nr_granules, new.nr_granules);
	(void)OKV_FAILPOINT("index.attach_there");
	OKV_ORDERED_STORE(&e->seal, okv_entry_seal(e, record_of(ix, id), ix->nr_groups, e->name));
	bucket_end(bucket);
	(void)OKV_FAILPOINT("index.attach_sealed");
	return 0;
}

/* Order -------------------------------------------------------------------------------------- */

/* Both stop at their largest value. */
static inline void heat_add(struct okv_entry *e, uint32_t more)
{
	if (e->name & OKV_ENTRY_F_PARTIAL)
		e->tail_heat = more > (uint32_t)(UINT16_MAX - e->tail_heat) ? UINT16_MAX : (uint16_t)(e->tail_heat + more);
	else
		e->heat = more > UINT32_MAX - e->heat ? UINT32_MAX : e->heat + more;
}

void okv_index_touch(struct okv_index *ix, uint32_t id)
{
	struct okv_entry *e = entry_of(ix, id);

	heat_add(e, 1);
	/* What was dropped keeps its place at the head. */
	if (!(e->name & OKV_ENTRY_F_DROPPED))
		okv_evict_touch(&ix->order, id, parent_of(ix, e));
}

int okv_index_pin(struct okv_index *ix, uint32_t id)
{
	int ret;

	if (!is_live(ix, id))
		return -ESTALE;
	ret = okv_evict_pin(&ix->order, id);
	if (ret == 0)
		ix->nr_pins++;
	return ret;
}

void okv_index_unpin(struct okv_index *ix, uint32_t id)
{
	okv_evict_unpin(&ix->order, id);
	ix->nr_pins--;
}

static inline bool is_leaf(const struct okv_entry *e)
{
	return (e->name & OKV_ENTRY_F_PARTIAL) || e->nr_children == 0;
}

void okv_index_demote(struct okv_index *ix, uint32_t id)
{
	const struct okv_evict_node *node = okv_evict_node(&ix->order, id);
	uint64_t last_use = node->tick;
	uint32_t nr = 0;

	if (!is_leaf(entry_of(ix, id)))
		return;
	/* An ancestor that was used since, or leads elsewhere too, has a use of its own. */
	for (; is_id(ix, id) && nr <= ix->nr_ids; nr++) {
		const struct okv_entry *e = entry_of(ix, id);

		node = okv_evict_node(&ix->order, id);
		if (node->nr_pins || node->tick > last_use || (nr && e->nr_children != 1))
			break;
		okv_evict_demote(&ix->order, id, is_leaf(e));
		id = parent_of(ix, e);
	}
}

/* It is in one of them, but where others have written there. */
static void unlist(struct okv_index *ix, uint32_t id)
{
	uint32_t tag = OKV_READ_ONCE(entry_of(ix, id)->tag);

	if (!table_del(&ix->tab, tag, id) && ix->old.buckets)
		table_del(&ix->old, tag, id);
	if (ix->changed)
		ix->changed(ix->opaque, okv_entry_ns(entry_of(ix, id)), id, false);
}

/* @id is a leaf without pins; its node has been taken out of the order, or will be. */
static void remove_leaf(struct okv_index *ix, uint32_t id, struct omnikv_extent *extents)
{
	struct okv_entry *e = entry_of(ix, id);
	const struct okv_entry_record *rec = record_of(ix, id);
	uint32_t i, parent = parent_of(ix, e);

	for (i = 0; i < ix->nr_groups; i++) {
		extents[i].granule = rec->groups[i].granule;
		extents[i].generation = rec->groups[i].generation;
		extents[i].nr_granules = rec->groups[i].nr_granules;
	}
	/* Counts fall to 0 at most, whatever others have made of this entry. */
	if (e->name & OKV_ENTRY_F_DROPPED)
		ix->nr_dropped -= ix->nr_dropped != 0;
	else
		unlist(ix, id);
	(void)OKV_FAILPOINT("index.remove_unlisted");
	if (e->name & OKV_ENTRY_F_PARTIAL) {
		tail_del(ix, e);
		ix->nr_partial -= ix->nr_partial != 0;
	}
	if (parent != OKV_ENTRY_NONE) {
		struct okv_entry *up = entry_of(ix, parent);

		up->nr_children--;
		heat_add(up, entry_heat(e));
	}
	/* Its extents go back to the pool after this, and its place on the free list is written after it. */
	OKV_ORDERED_STORE(&e->name, 0);
	(void)OKV_FAILPOINT("index.remove_gone");
	OKV_ORDERED_STORE(&e->parent, ix->free_ids);
	ix->free_ids = id;
	ix->nr_entries -= ix->nr_entries != 0;
}

/*
 * Fetch the memory of PROBES more of the entries that are likely to leave behind @id: a parent
 * that becomes a leaf, else the next of the order. A wrong guess costs nothing but time.
 */
static uint32_t fetch_victims(const struct okv_index *ix, uint32_t id)
{
	uint32_t tags[PROBES], nr, i;

	for (nr = 0; nr < PROBES; nr++) {
		uint32_t next = parent_of(ix, entry_of(ix, id));

		if (next == OKV_ENTRY_NONE || entry_of(ix, next)->nr_children != 1)
			next = okv_evict_oldest(&ix->order);
		if (!is_id(ix, next))
			break;
		id = next;
		tags[nr] = entry_of(ix, id)->tag;
		okv_prefetch(record_of(ix, id));
		if (id >= AHEAD) {
			okv_prefetch(entry_of(ix, id - AHEAD));
			okv_prefetch(record_of(ix, id - AHEAD));
		}
	}
	for (i = 0; i < nr; i++)
		okv_prefetch(table_home(&ix->tab, tags[i]));
	return id;
}

static void victim_set(const struct okv_index *ix, uint32_t id, struct okv_index_victim *v)
{
	const struct okv_entry *e = entry_of(ix, id);
	const struct okv_entry_record *rec = record_of(ix, id);

	memcpy(v->key.bytes, e->key, sizeof(e->key));
	v->key.len = okv_entry_key_len(e);
	v->ns = okv_entry_ns(e);
	v->position = e->position;
	v->nr_tokens = entry_tokens(ix, e);
	v->heat = entry_heat(e);
	v->is_dropped = e->name & OKV_ENTRY_F_DROPPED;
	memset(&v->parent, 0, sizeof(v->parent));
	if (parent_of(ix, e) != OKV_ENTRY_NONE) {
		const struct okv_entry *up = entry_of(ix, parent_of(ix, e));

		memcpy(v->parent.bytes, up->key, sizeof(up->key));
		v->parent.len = okv_entry_key_len(up);
	}
	for (uint32_t g = 0; g < ix->nr_groups; g++)
		v->crc32c[g] = rec->groups[g].crc32c;
}

/* Somebody whom the index knows nothing of uses an extent of this block: a lease of another process. */
static bool is_held(const struct okv_index *ix, uint32_t id)
{
	struct omnikv_extent extent;
	uint32_t crc;

	for (uint32_t g = 0; ix->is_held && g < ix->nr_groups; g++) {
		okv_index_extent(ix, id, g, &extent, &crc);
		if (extent.nr_granules && ix->is_held(ix->opaque, &extent))
			return true;
	}
	return false;
}

size_t okv_index_evict(struct okv_index *ix, size_t nr, struct omnikv_extent *extents,
		       struct okv_index_victim *victims)
{
	uint32_t ahead = OKV_ENTRY_NONE, nr_ahead = 0;
	uint64_t nr_passes = ix->order.listed.nr_nodes;
	uint64_t nr_steps = 4 * (uint64_t)ix->nr_ids + nr;	/* more than a sound order takes */
	size_t done = 0;

	while (done < nr && nr_steps--) {
		uint32_t id = okv_evict_oldest(&ix->order), parent;
		uint64_t tick;

		if (!is_id(ix, id))
			break;
		/* One that is not there is listed where others have written to the order. */
		if (!is_live(ix, id) || !is_leaf(entry_of(ix, id))) {
			okv_evict_pass_inner(&ix->order, id);
			continue;
		}
		if (okv_evict_node(&ix->order, id)->nr_pins) {
			okv_evict_pass_pinned(&ix->order, id);
			continue;
		}
		/* In use, so as recent as any; once round is enough to know that all are. */
		if (is_held(ix, id)) {
			if (!nr_passes--)
				break;
			okv_evict_touch(&ix->order, id, parent_of(ix, entry_of(ix, id)));
			continue;
		}
		/* Up the path as long as each parent is next in turn: it would take its child's place at the head. */
		tick = okv_evict_take(&ix->order, id);
		nr_ahead = 0;
		for (;;) {
			const struct okv_entry *e = entry_of(ix, id);

			if (nr_ahead <= LOOKAHEAD && nr - done > nr_ahead) {
				ahead = fetch_victims(ix, nr_ahead ? ahead : id);
				nr_ahead += PROBES;
			}
			if (victims)
				victim_set(ix, id, &victims[done]);
			parent = parent_of(ix, e);
			remove_leaf(ix, id, extents + done * ix->nr_groups);
			done++;
			nr_ahead--;
			if (done == nr || !is_live(ix, parent) || !is_leaf(entry_of(ix, parent)) ||
			    !okv_evict_is_next(&ix->order, parent, tick) || is_held(ix, parent))
				break;
			id = parent;
		}
		if (is_live(ix, parent))
			okv_evict_succeed(&ix->order, parent, tick, okv_evict_oldest(&ix->order));
	}
	return done;
}

int okv_index_remove(struct okv_index *ix, uint32_t id, struct omnikv_extent *extents)
{
	if (!is_live(ix, id))
		return -ESTALE;
	if (!is_leaf(entry_of(ix, id)) || okv_evict_node(&ix->order, id)->nr_pins)
		return -EBUSY;
	okv_evict_del(&ix->order, id, parent_of(ix, entry_of(ix, id)));
	remove_leaf(ix, id, extents);
	return 0;
}

/* Is @root on the path to @id? Runs of the first group are stepped over. */
static bool is_behind(const struct okv_index *ix, uint32_t id, uint32_t root, uint32_t position)
{
	uint32_t last = UINT32_MAX;

	for (;;) {
		const struct okv_entry *e;
		const struct okv_group *g;
		uint32_t at;

		if (!is_id(ix, id))
			return false;
		e = entry_of(ix, id);
		g = &record_of(ix, id)->groups[0];
		at = e->position;
		if (at <= position)
			return id == root;
		if (at >= last)
			return false;
		last = at;
		if (g->nr_granules && at - position >= g->run_blocks)
			id = g->run_parent;
		else
			id = e->parent;
	}
}

/* Take every leaf of one list that is behind @root, and its path up to there, out of the table. */
static int64_t drop_list(struct okv_index *ix, uint32_t head, uint32_t root, uint64_t *tick)
{
	uint32_t position = entry_of(ix, root)->position;
	uint32_t leaf, id, nr_leaves = 0, last;
	int64_t nr = 0;

	for (leaf = head; is_id(ix, leaf) && nr_leaves++ < ix->nr_ids; leaf = okv_evict_node(&ix->order, leaf)->next) {
		if (!is_leaf(entry_of(ix, leaf)) || !is_behind(ix, leaf, root, position))
			continue;
		last = UINT32_MAX;
		for (id = leaf; id != OKV_ENTRY_NONE; id = parent_of(ix, entry_of(ix, id))) {
			struct okv_entry *e = entry_of(ix, id);
			uint32_t at = e->position;

			if (at < position || at >= last)
				break;
			last = at;
			if (okv_evict_node(&ix->order, id)->tick > *tick)
				*tick = okv_evict_node(&ix->order, id)->tick;
			if (!(e->name & OKV_ENTRY_F_DROPPED)) {
				unlist(ix, id);
				e->name |= OKV_ENTRY_F_DROPPED;
				nr++;
			}
			if (id == root)
				break;
		}
	}
	return nr;
}

int64_t okv_index_drop(struct okv_index *ix, uint32_t root)
{
	uint64_t tick = 0;
	uint32_t id;
	int64_t nr;

	if (!is_live(ix, root) || (entry_of(ix, root)->name & OKV_ENTRY_F_DROPPED))
		return -ESTALE;
	/* The cause first: should the writer die before the rest is done, what is behind it goes with it. */
	unlist(ix, root);
	entry_of(ix, root)->name |= OKV_ENTRY_F_DROPPED;
	(void)OKV_FAILPOINT("index.drop_root");
	nr = 1 + drop_list(ix, ix->order.listed.head, root, &tick);
	nr += drop_list(ix, ix->order.parked.head, root, &tick);
	ix->nr_dropped += (uint64_t)nr;
	id = parent_of(ix, entry_of(ix, root));
	if (id != OKV_ENTRY_NONE)
		okv_evict_inherit(&ix->order, id, tick);

	/* Nodes that are OFF and dropped get their turn through a descendant: forget their uses too. */
	for (id = 0; id < ix->nr_ids; id++) {
		const struct okv_entry *e = entry_of(ix, id);

		if (e->name && (e->name & OKV_ENTRY_F_DROPPED) && okv_evict_node(&ix->order, id)->tick)
			okv_evict_demote(&ix->order, id, is_leaf(e));
	}
	return nr;
}

/* Recovery ----------------------------------------------------------------------------------- */

/* What is found of an entry. PENDING: its descendants wait for the verdict on it. */
enum verdict { UNKNOWN, PENDING, GOOD, BAD };

struct tick_of {
	uint64_t	tick;
	uint32_t	id;
};

/* Does the seal fit? An extent whose addition it does not count yet is absent: it did not get so far. */
static bool seal_fits(const struct okv_index *ix, const struct okv_entry *e, struct okv_entry_record *rec)
{
	uint32_t i;

	if (okv_entry_seal(e, rec, ix->nr_groups, e->name) == e->seal)
		return true;
	for (i = 0; i < ix->nr_groups; i++) {
		uint32_t nr_granules = rec->groups[i].nr_granules;

		if (!(ix->optional_groups >> i & 1) || !nr_granules)
			continue;
		rec->groups[i].nr_granules = 0;
		if (okv_entry_seal(e, rec, ix->nr_groups, e->name) == e->seal)
			return true;
		rec->groups[i].nr_granules = nr_granules;
	}
	return false;
}

/* All that an entry says by itself. */
static bool entry_is_whole(const struct okv_index *ix, uint32_t id)
{
	const struct okv_entry *e = entry_of(ix, id);
	struct okv_entry_record *rec = record_of(ix, id);
	struct omnikv_key key = { .len = okv_entry_key_len(e) };
	uint32_t i;

	if (e->name & ~(OKV_ENTRY_NAME_MASK | OKV_ENTRY_F_PARTIAL))	/* one that was dropped stays so */
		return false;
	if (key.len == 0 || key.len > OMNIKV_KEY_BYTES_MAX)
		return false;
	memcpy(key.bytes, e->key, sizeof(e->key));
	if (!key_is_padded(&key) || key_tag(ix, okv_ns_mix(okv_entry_ns(e)), &key) != e->tag)
		return false;
	if ((e->name & OKV_ENTRY_F_PARTIAL) && (e->tail_tokens == 0 || e->tail_tokens >= ix->block_tokens))
		return false;
	if ((e->parent == OKV_ENTRY_NONE) != (e->position == 0) || !seal_fits(ix, e, rec))
		return false;
	for (i = 0; i < ix->nr_groups; i++)
		if (rec->groups[i].nr_granules == 0 && !(ix->optional_groups >> i & 1))
			return false;
	return true;
}

/* Does it belong behind its parent, which is good, and are its extents its own? Its runs are made anew. */
static bool entry_fits(struct okv_index *ix, uint32_t id, struct okv_index_recovery *recovery)
{
	const struct okv_entry *e = entry_of(ix, id);
	struct okv_entry_record *rec = record_of(ix, id);
	struct omnikv_extent extents[OKV_INDEX_GROUPS_MAX];
	uint32_t i, parent = e->parent;

	if (parent != OKV_ENTRY_NONE) {
		const struct okv_entry *up;

		if (!is_id(ix, parent))
			return false;
		up = entry_of(ix, parent);
		if (okv_entry_ns(up) != okv_entry_ns(e) || up->position + 1 != e->position || (up->name & OKV_ENTRY_F_PARTIAL))
			return false;
	}
	for (i = 0; i < ix->nr_groups; i++)
		extents[i] = (struct omnikv_extent){
			.granule = rec->groups[i].nr_granules ? rec->groups[i].granule : 0,
			.generation = rec->groups[i].nr_granules ? rec->groups[i].generation : 0,
			.nr_granules = rec->groups[i].nr_granules,
		};
	if (!recovery->keep(recovery->opaque, okv_entry_ns(e), extents))
		return false;
	for (i = 0; i < ix->nr_groups; i++)
		group_set(ix, parent, i, &rec->groups[i], &extents[i], rec->groups[i].crc32c);
	return true;
}

/* Judge @id and all before it, the first one first: what is behind a bad one is bad. */
static void judge(struct okv_index *ix, uint32_t id, uint8_t *verdicts, uint32_t *path,
		  struct okv_index_recovery *recovery)
{
	bool is_good = false;
	uint32_t nr = 0;

	for (;; id = entry_of(ix, id)->parent) {
		if (id == OKV_ENTRY_NONE) {
			is_good = true;
			break;
		}
		if (id >= ix->nr_ids || entry_of(ix, id)->name == 0)
			break;
		if (verdicts[id] != UNKNOWN) {
			is_good = verdicts[id] == GOOD;
			break;
		}
		if (!entry_is_whole(ix, id)) {
			verdicts[id] = BAD;
			break;
		}
		verdicts[id] = PENDING;
		path[nr++] = id;
	}
	while (nr-- > 0) {
		is_good = is_good && entry_fits(ix, path[nr], recovery);
		verdicts[path[nr]] = is_good ? GOOD : BAD;
	}
}

static int tick_order(const void *a, const void *b)
{
	const struct tick_of *x = a, *y = b;

	return (x->tick > y->tick) - (x->tick < y->tick);
}

/* Counts, lists, table and order, from the entries that are left. */
static int relink(struct okv_index *ix)
{
	struct tick_of *ticks;
	uint32_t id, nr = 0;
	int ret = 0;

	for (id = ix->nr_ids; id-- > 0;) {
		struct okv_entry *e = entry_of(ix, id);

		if (e->name == 0) {
			e->parent = ix->free_ids;
			ix->free_ids = id;
			continue;
		}
		ix->nr_entries++;
		if (e->name & OKV_ENTRY_F_PARTIAL)
			continue;
		e->nr_children = 0;
		e->tails = OKV_ENTRY_NONE;
	}
	ticks = malloc((ix->nr_entries + 1) * sizeof(*ticks));
	if (!ticks)
		return -ENOMEM;
	for (id = 0; id < ix->nr_ids && !ret; id++) {
		struct okv_entry *e = entry_of(ix, id);
		uint32_t parent = parent_of(ix, e);

		if (e->name == 0 || nr == ix->nr_entries)
			continue;
		if (parent != OKV_ENTRY_NONE)
			entry_of(ix, parent)->nr_children++;
		if (e->name & OKV_ENTRY_F_PARTIAL) {
			uint32_t ns = okv_entry_ns(e);

			ret = parent == OKV_ENTRY_NONE ? ns_tails_grow(ix, ns) : 0;
			if (ret)
				break;
			tail_add(ix, id, ns, parent);
			ix->nr_partial++;
		}
		table_add(&ix->tab, e->tag, id);
		ticks[nr++] = (struct tick_of){ .tick = okv_evict_node(&ix->order, id)->tick, .id = id };
	}
	if (!ret) {
		/* Ticks are no part of the seal: their order counts, and their size is made anew. */
		qsort(ticks, nr, sizeof(*ticks), tick_order);
		for (uint32_t i = 0; i < nr; i++)
			okv_evict_restore(&ix->order, ticks[i].id, is_leaf(entry_of(ix, ticks[i].id)));
	}
	free(ticks);
	return ret;
}

/* The pointers of this process to chunks that are there. */
static int chunks_claim(struct okv_index *ix)
{
	const struct okv_index_allocator *mem = &ix->mem;
	uint64_t dir_off = OKV_READ_ONCE(ix->head->dir_off);
	const struct okv_index_dir *dir = mem->peek(mem->opaque, dir_off, sizeof(*dir));
	uint32_t i, max, nr;
	int ret;

	if (!dir_off)
		return 0;
	if (!dir)
		return -EBADMSG;
	max = OKV_READ_ONCE(dir->max_chunks);
	nr = OKV_READ_ONCE(dir->nr_chunks);
	if (nr > max || max > OKV_CHUNKS_MAX || !max)
		return -EBADMSG;
	ix->dir = mem->claim(mem->opaque, dir_off, dir_bytes(max));
	if (!ix->dir)
		return -EBADMSG;
	ix->dir_max = max;
	ix->mem_bytes += dir_bytes(max);
	ret = pointers_grow(ix, max);
	if (ret)
		return ret;
	for (i = 0; i < nr; i++) {
		const struct okv_chunk_ref *ref = &ix->dir->chunks[i];
		uint32_t nr_here = OKV_READ_ONCE(ref->nr);

		if (!nr_here || nr_here > OKV_CHUNK_ENTRIES || (nr_here < OKV_CHUNK_ENTRIES && i + 1 < nr))
			return -EBADMSG;
		ix->entries[i] = mem->claim(mem->opaque, OKV_READ_ONCE(ref->entries_off), nr_here * sizeof(struct okv_entry));
		if (!ix->entries[i])
			return -EBADMSG;
		ix->records[i] = mem->claim(mem->opaque, OKV_READ_ONCE(ref->records_off), (size_t)nr_here * ix->stride);
		if (!ix->records[i]) {
			mem->free(mem->opaque, ix->entries[i], nr_here * sizeof(struct okv_entry));
			return -EBADMSG;
		}
		ix->mem_bytes += nr_here * (sizeof(struct okv_entry) + ix->stride);
		ix->pieces[i] = 1;
		ix->nr_chunks++;
		ix->nr_room += nr_here;
	}
	i = OKV_READ_ONCE(ix->head->nr_ids);
	if (i > ix->nr_room)
		return -EBADMSG;
	ix->nr_ids = i;
	return 0;
}

/* An empty table, in the memory of the old one where that will do. */
static int table_renew(struct okv_index *ix)
{
	uint64_t off = OKV_READ_ONCE(ix->head->tab.off);
	uint32_t there = OKV_READ_ONCE(ix->head->tab.log2_buckets), log2_buckets = table_log2_for(ix, ix->nr_room);
	struct okv_bucket *buckets = NULL;

	if (off && there >= log2_buckets && there <= 31) {
		log2_buckets = there;
		buckets = ix->mem.claim(ix->mem.opaque, off, table_bytes(log2_buckets));
	}
	if (!buckets)
		return table_init(ix, &ix->tab, log2_buckets);
	memset(buckets, 0, table_bytes(log2_buckets));
	ix->mem_bytes += table_bytes(log2_buckets);
	table_set(&ix->tab, buckets, log2_buckets);
	return 0;
}

static int head_claim(struct okv_index *ix, const struct okv_index_config *config, uint64_t head_off)
{
	const struct okv_index_head *shared = ix->mem.peek(ix->mem.opaque, head_off, sizeof(*shared));
	struct okv_index_head copy, *head = &copy;

	if (!shared)
		return -EBADMSG;
	memcpy(head, shared, sizeof(*head));
	if (head->magic != OKV_INDEX_MAGIC || head->version != OKV_INDEX_VERSION ||
	    head->crc != okv_crc32c(head, offsetof(struct okv_index_head, crc)) || head->nr_groups != config->nr_groups ||
	    head->optional_groups != config->optional_groups || head->block_tokens != config->block_tokens ||
	    head->stride != ix->stride)
		return -EBADMSG;
	ix->head = ix->mem.claim(ix->mem.opaque, head_off, sizeof(*head));
	if (!ix->head)
		return -EBADMSG;
	ix->mem_bytes = sizeof(*head);
	ix->tag_mask = head->tag_mask;
	memcpy(ix->secret, head->secret, sizeof(ix->secret));
	return 0;
}

int okv_index_recover(const struct okv_index_config *config, uint64_t head_off, struct okv_index_recovery *recovery,
		      struct okv_index **out)
{
	uint8_t *verdicts = NULL;
	uint32_t *path = NULL;
	struct okv_index *ix;
	uint32_t id;
	int ret;

	recovery->nr_kept = 0;
	recovery->nr_dropped = 0;
	if (!config_is_valid(config) || !config->allocator || !config->allocator->claim)
		return -EINVAL;
	ix = index_new(config);
	if (!ix)
		return -ENOMEM;
	ret = head_claim(ix, config, head_off);
	if (!ret)
		ret = chunks_claim(ix);
	if (ret)
		goto err_leave;
	ret = -ENOMEM;
	verdicts = calloc((size_t)ix->nr_ids + 1, sizeof(*verdicts));
	path = malloc(((size_t)ix->nr_ids + 1) * sizeof(*path));
	if (!verdicts || !path)
		goto err_leave;
	/* Readers look again until all is in place. */
	__atomic_store_n(&ix->head->tables, ix->head->tables | 1, __ATOMIC_RELAXED);
	okv_fence(memory_order_release);
	ret = table_renew(ix);
	if (ret)
		goto err_leave;

	for (id = 0; id < ix->nr_ids; id++)
		if (entry_of(ix, id)->name && verdicts[id] == UNKNOWN)
			judge(ix, id, verdicts, path, recovery);
	(void)OKV_FAILPOINT("index.recover_judged");
	for (id = 0; id < ix->nr_ids; id++) {
		if (verdicts[id] == BAD) {
			OKV_ORDERED_STORE(&entry_of(ix, id)->name, 0);
			recovery->nr_dropped++;
		}
	}
	(void)OKV_FAILPOINT("index.recover_dropped");
	ret = relink(ix);
	if (ret)
		goto err_leave;
	recovery->nr_kept = ix->nr_entries;
	ix->head->old = (struct okv_table_ref){ 0 };
	ix->head->tab = table_ref(ix, &ix->tab);
	tables_end(ix);
	free(verdicts);
	free(path);
	*out = ix;
	return 0;

err_leave:
	free(verdicts);
	free(path);
	okv_index_destroy(ix);
	return ret;
}

/* Reports and checks ------------------------------------------------------------------------- */

uint32_t okv_index_nr_ids(const struct okv_index *ix)
{
	return ix->nr_ids;
}

void okv_index_heat(const struct okv_index *ix, uint64_t *heat)
{
	uint32_t id, up, nr;

	memset(heat, 0, ix->nr_ids * sizeof(*heat));
	for (id = 0; id < ix->nr_ids; id++) {
		const struct okv_entry *e = entry_of(ix, id);

		if (e->name == 0 || entry_heat(e) == 0)
			continue;
		/* No path is longer than there are entries. */
		nr = ix->nr_ids;
		for (up = id; up != OKV_ENTRY_NONE && nr--; up = parent_of(ix, entry_of(ix, up)))
			heat[up] += entry_heat(e);
	}
}

void okv_index_stats(const struct okv_index *ix, struct okv_index_stats *stats)
{
	stats->nr_entries = ix->nr_entries;
	stats->nr_dropped = ix->nr_dropped;
	stats->nr_partial = ix->nr_partial;
	stats->nr_pins = ix->nr_pins;
	stats->nr_collisions = ix->nr_collisions;
	stats->nr_slots = table_slots(&ix->tab) + table_slots(&ix->old);
	stats->bytes = ix->mem_bytes + ix->own_bytes;
	stats->mem_bytes = ix->mem_bytes;
}

/* Every slot is where its hash can find it, and nr_passed is what the slots say. */
static const char *table_check(const struct okv_index *ix, const struct table *tab, uint32_t empty_below)
{
	uint32_t at, home, *passed;
	const char *broken = NULL;
	uint64_t nr = 0;
	unsigned int i;

	if (!tab->buckets)
		return NULL;
	passed = calloc((size_t)tab->mask + 1, sizeof(*passed));
	if (!passed)
		return "";
	for (at = 0; at <= tab->mask && !broken; at++) {
		for (i = 0; i < OKV_BUCKET_SLOTS; i++) {
			uint32_t slot = tab->buckets[at].ids[i], tag = tab->buckets[at].tags[i];

			if (slot == 0)
				continue;
			nr++;
			if (!is_live(ix, slot - 1) || entry_of(ix, slot - 1)->tag != tag ||
			    (entry_of(ix, slot - 1)->name & OKV_ENTRY_F_DROPPED))
				broken = "a slot names an entry that is gone, dropped, or of another hash";
			for (home = tag >> tab->shift; home != at; home = (home + 1) & tab->mask)
				passed[home]++;
			if (at < empty_below)
				broken = "a bucket that was carried over is not empty";
		}
	}
	for (at = 0; at <= tab->mask && !broken; at++) {
		if (passed[at] != tab->buckets[at].nr_passed)
			broken = "a bucket's count of passing entries is wrong";
	}
	if (!broken && nr != tab->nr_used)
		broken = "the table's count of used slots is wrong";
	free(passed);
	return broken;
}

static const char *entry_check(struct okv_index *ix, uint32_t id)
{
	const struct okv_entry *e = entry_of(ix, id);
	const struct okv_entry_record *rec = record_of(ix, id);
	struct omnikv_key key = { .len = okv_entry_key_len(e) };
	uint32_t i, found;

	memcpy(key.bytes, e->key, sizeof(e->key));
	if (key_tag(ix, okv_ns_mix(okv_entry_ns(e)), &key) != e->tag)
		return "an entry's hash is not that of its key";
	if (mem_is_lasting(ix) && okv_entry_seal(e, rec, ix->nr_groups, e->name) != e->seal)
		return "an entry's seal is not that of what it holds";
	found = find(ix, e->tag, okv_entry_ns(e), &key);
	if ((e->name & OKV_ENTRY_F_DROPPED) ? found == id : found != id)
		return "a key does not lead to its entry, or leads to a dropped one";
	if ((e->name & OKV_ENTRY_F_PARTIAL) && (e->tail_tokens == 0 || e->tail_tokens >= ix->block_tokens))
		return "an entry's token count contradicts its being partial";
	if (is_leaf(e) && rec->node.state == OKV_EVICT_OFF)
		return "a leaf is not in the eviction order";
	if (e->parent == OKV_ENTRY_NONE) {
		if (e->position != 0)
			return "an entry without parent is not at position 0";
	} else {
		const struct okv_entry *up = entry_of(ix, e->parent);

		if (!is_live(ix, e->parent) || okv_entry_ns(up) != okv_entry_ns(e) || up->position + 1 != e->position ||
		    (up->name & OKV_ENTRY_F_PARTIAL))
			return "an entry's parent is gone, partial, or elsewhere";
		if ((up->name & OKV_ENTRY_F_DROPPED) && !(e->name & OKV_ENTRY_F_DROPPED))
			return "an entry behind a dropped one is found";
	}
	for (i = 0; i < ix->nr_groups; i++) {
		const struct okv_group *g = &rec->groups[i];
		const struct okv_group *up = e->parent == OKV_ENTRY_NONE ? NULL :
			&record_of(ix, e->parent)->groups[i];
		bool is_optional = ix->optional_groups & (1u << i);

		if (g->nr_granules == 0) {
			if (!is_optional)
				return "an entry lacks a group that is not optional";
		} else if (up && follows(up, g) && g->run_parent == up->run_parent &&
			   g->run_blocks == up->run_blocks + 1) {
			continue;
		} else if (g->run_parent != e->parent || g->run_blocks != 1 || (up && follows(up, g) && !is_optional)) {
			return "a run is not as long as its extents say";
		}
	}
	return NULL;
}

int okv_index_check(const struct okv_index *cix, const char **reason)
{
	struct okv_index *ix = (struct okv_index *)cix;	/* only nr_collisions changes, and is put back */
	uint64_t nr_collisions = ix->nr_collisions;
	uint64_t nr = 0, nr_dropped = 0, nr_partial = 0, nr_pins = 0, nr_free = 0, nr_tails = 0;
	const char *broken = NULL, *why;
	uint32_t id, tail, *nr_children;
	int ret = 0;

	nr_children = calloc((size_t)ix->nr_ids + 1, sizeof(*nr_children));
	if (!nr_children)
		return -ENOMEM;
	for (id = ix->free_ids; id != OKV_ENTRY_NONE && nr_free <= ix->nr_ids; id = entry_of(ix, id)->parent) {
		nr_free++;
		if (entry_of(ix, id)->name)
			broken = "a live entry is on the free list";
	}
	for (id = 0; id < ix->nr_ids && !broken; id++) {
		const struct okv_entry *e = entry_of(ix, id);

		if (e->name == 0)
			continue;
		nr++;
		nr_dropped += !!(e->name & OKV_ENTRY_F_DROPPED);
		nr_partial += !!(e->name & OKV_ENTRY_F_PARTIAL);
		nr_pins += record_of(ix, id)->node.nr_pins;
		broken = entry_check(ix, id);
		if (e->parent != OKV_ENTRY_NONE)
			nr_children[e->parent]++;
		if (e->name & OKV_ENTRY_F_PARTIAL)
			continue;
		for (tail = e->tails; tail != OKV_ENTRY_NONE && !broken; tail = entry_of(ix, tail)->tail_next) {
			if (!is_live(ix, tail) || entry_of(ix, tail)->parent != id || nr_tails++ > ix->nr_entries)
				broken = "a list of tails holds what is not a tail of this block";
		}
	}
	for (id = 0; id < ix->nr_ns_tails && !broken; id++) {
		for (tail = ix->ns_tails[id]; tail != OKV_ENTRY_NONE && !broken; tail = entry_of(ix, tail)->tail_next) {
			if (!is_live(ix, tail) || entry_of(ix, tail)->parent != OKV_ENTRY_NONE ||
			    okv_entry_ns(entry_of(ix, tail)) != id || nr_tails++ > ix->nr_entries)
				broken = "a list of first tails holds what is none";
		}
	}
	for (id = 0; id < ix->nr_ids && !broken; id++) {
		const struct okv_entry *e = entry_of(ix, id);

		if (e->name && (e->name & OKV_ENTRY_F_PARTIAL ? 0 : e->nr_children) != nr_children[id])
			broken = "a count of children is wrong";
	}
	free(nr_children);
	ix->nr_collisions = nr_collisions;

	if (!broken && (nr != ix->nr_entries || nr + nr_free != ix->nr_ids))
		broken = "entries and free ids do not add up";
	if (!broken && (nr_dropped != ix->nr_dropped || nr_partial != ix->nr_partial || nr_tails != nr_partial ||
			nr_pins != ix->nr_pins))
		broken = "counts of dropped entries, partial tails or pins do not add up";
	if (!broken && ix->tab.nr_used + ix->old.nr_used != nr - nr_dropped)
		broken = "occupied slots are not the entries";
	if (!broken) {
		broken = table_check(ix, &ix->tab, 0);
		if (!broken)
			broken = table_check(ix, &ix->old, ix->old_next);
	}
	if (!broken) {
		ret = okv_evict_check(&ix->order, &why);
		if (ret)
			broken = why;
	}
	if (!broken)
		return 0;
	*reason = broken;
	return *broken ? -EUCLEAN : -ENOMEM;
}

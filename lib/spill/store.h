/* SPDX-License-Identifier: MIT */
/*
 * The spill store: which block lies where on a disk, what is written next, what is given up.
 *
 * Owns segments, the catalogue of records in memory, reclaim, degradation and recovery. Leaves
 * bytes on the disk's side to disk.h and their format to format.h; namespaces and keys are
 * opaque. Any thread; @io_lock is held over disk requests, @lock over memory only, so that a
 * lookup never waits for the disk.
 *
 * Invariants, which okv_store_check_books() walks:
 *	each catalogue entry names a record in the table of a segment that is in use
 *	of several records with one key the one with the highest generation is found; the others wait
 *	behind it, and the next is found when it proves bad
 *	a segment's nr_live and live_bytes are the sums over its entries
 *	segments in use x segment_bytes + data_off <= capacity
 */
#ifndef OKV_SPILL_STORE_H
#define OKV_SPILL_STORE_H

#include <pthread.h>

#include <omnikv/spill.h>

#include "spill/disk.h"
#include "spill/format.h"

#define OKV_CATALOG_NONE	UINT32_MAX

/*
 * Life of a segment:
 *
 *	FREE ---> ACTIVE ---> SEALED ---> FREE
 *
 * FREE    holds nothing that is known (on the disk an earlier life may still stand)
 * ACTIVE  batches are appended; at most one
 * SEALED  nothing is appended any more; has its table on the disk, unless writing it failed
 */
enum okv_segment_state {
	OKV_SEGMENT_FREE,
	OKV_SEGMENT_ACTIVE,
	OKV_SEGMENT_SEALED,
};

/**
 * struct okv_segment
 * @append_off:  where the next batch goes
 * @table:       encoded records, as they will stand in the segment's table
 * @is_reserved: the file has room for it
 * @has_table:   and a trailer on the disk, at @table_off
 * @is_moving:   being reclaimed
 */
struct okv_segment {
	enum okv_segment_state	state;
	bool			is_reserved;
	bool			has_table;
	struct okv_spill_life	life;
	uint64_t		append_off;
	uint8_t			*table;
	uint64_t		table_bytes;
	uint64_t		table_room;
	uint64_t		table_off;
	uint32_t		nr_records;
	uint32_t		nr_live;
	uint64_t		live_bytes;
	uint64_t		hot_bytes;	/* of live records that were read since they were written */
	uint64_t		used_ns;	/* last write or read */
};

/**
 * struct okv_spill_entry - one record that can be found
 * @hash:    of namespace and key: others of the same bucket are passed over without a look at their records
 * @at:      in the segment's table, which is shorter than a segment
 * @is_read: since it was written, or since the store was opened
 */
struct okv_spill_entry {
	uint32_t	next;
	uint32_t	segment;
	uint32_t	hash;
	uint32_t	at:31, is_read:1;
};

/** struct okv_store_change - a block that can be found in the store from now on, or cannot any more */
struct okv_store_change {
	uint8_t			ns[32];
	struct omnikv_key	key;
	struct omnikv_key	parent;
	uint32_t		nr_tokens;
	bool			is_there;
};

/** Changes in their order, while somebody watches. @has_lost: there was no memory for one */
struct okv_store_changes {
	struct okv_store_change	*list;
	uint32_t		nr;
	uint32_t		room;
	bool			is_watched;
	bool			has_lost;
};

/** The records by key: chains of entries, over the tables of segments. */
struct okv_catalog {
	uint32_t		*buckets;
	uint32_t		nr_buckets;	/* a power of two */
	struct okv_spill_entry	*entries;
	uint32_t		nr_entries;	/* ever used */
	uint32_t		room;
	uint32_t		free;		/* list of unused ones */
	uint32_t		nr_live;
	uint32_t		nr_shadowed;	/* of these, older ones of their key */
};

/**
 * struct okv_store_config
 * @capacity_bytes: 0: what the disk holds
 * @is_bounded_disk: the disk is not a file: it cannot grow
 */
struct okv_store_config {
	uint64_t		capacity_bytes;
	uint64_t		floor_bytes;
	uint64_t		segment_bytes;
	uint64_t		deadline_ns;
	bool			is_read_only;
	bool			is_open_only;
	const char		*owner;
	const char		*host;
	uint32_t		pid;
	uint8_t			random[24];	/* nonce of this opening, and the store's id where it is made */
	uint64_t		time_s;
	omnikv_notice_fn	notice;
	void			*opaque;
};

struct okv_store {
	/* fixed after opening */
	struct okv_disk		*disk;
	struct okv_store_config	config;
	struct okv_spill_super	super;
	uint32_t		nr_segments;
	uint64_t		nonce;
	uint64_t		first_generation;	/* what is older was there when it was opened */

	/* under io_lock */
	pthread_mutex_t		io_lock;
	uint8_t			*header;	/* of the batch being written; also for tables */
	uint8_t			*bounce;	/* for records that are moved or checked; NULL until then */
	uint64_t		bounce_bytes;
	struct okv_disk_io	*ios;		/* [OKV_STORE_IOS] */
	struct okv_store_get	**io_gets;	/* [OKV_STORE_IOS]: of a list of reads, the first that each is for */
	uint32_t		active;		/* index, or OKV_CATALOG_NONE */
	uint64_t		next_seq;
	uint64_t		next_generation;
	uint64_t		retry_at_ns;	/* stores are refused until then */
	uint64_t		backoff_ns;
	int			last_error;
	bool			is_moving;
	uint64_t		nr_eras;	/* begun in this opening */

	/* segments, catalogue and era change under both locks, and may be read under either */
	pthread_mutex_t		lock;
	struct okv_spill_era	era;
	struct okv_segment	*segments;
	struct okv_catalog	catalog;
	struct okv_store_changes changes;
	struct omnikv_spill_stats stats;
};

/** -ENODATA: the disk holds no store and none may be made; others as omnikv_spill_open(). @disk stays the caller's. */
int okv_store_open(struct okv_disk *disk, const struct okv_store_config *config, struct okv_store **store,
		   struct omnikv_error *err);
/** Seals and syncs what can be. */
void okv_store_close(struct okv_store *store);
int okv_store_sync(struct okv_store *store);

/** The era as it is: for the names of what is stored and looked up. */
void okv_store_era(struct okv_store *store, struct okv_spill_era *era);
/**
 * okv_store_era_begin() - what has been stored is not to be found any more, also after a restart
 * @epoch: of whoever stores; kept for okv_store_era()
 *
 * Return: 0, when that is on the disk; -EROFS, -ETIME, -EIO and others: as before.
 */
int okv_store_era_begin(struct okv_store *store, uint64_t epoch);

/** Is there a record of this key? @rec may be NULL. Its payload may still prove bad when it is read. */
bool okv_store_find(struct okv_store *store, const uint8_t ns[32], const struct omnikv_key *key,
		    struct okv_record *rec);

/**
 * struct okv_store_put - one block to store
 * @rec:  ns, key, parent, nr_tokens, position and parts are the caller's; the rest is filled in
 * @bufs: [rec.nr_parts], aligned to a page; that of an empty part is not looked at
 * @res:  0 (also where it is stored already), -E2BIG (larger than a segment), -ENOSPC, -EDQUOT, -EFBIG, -EIO, -ETIME
 */
struct okv_store_put {
	struct okv_record	rec;
	const void		*bufs[OKV_SPILL_PARTS_MAX];
	int			res;
};

/**
 * okv_store_put() - store blocks, in batches
 *
 * Return: 0 with each res set, or -ETIME: memory of @puts is in use until okv_store_is_idle().
 */
int okv_store_put(struct okv_store *store, struct okv_store_put *puts, uint32_t nr);

/**
 * struct okv_store_get - one block to read
 * @rec:  as okv_store_find() gave it
 * @bufs: [rec.nr_parts], aligned to a page
 * @res:  0 with every byte as it was stored, or -ENOENT (gone meanwhile), -EBADMSG (damaged; it is not found
 *        again), -EIO, -ETIME (not now: the disk has yet to answer). Else the contents of the buffers are undefined.
 * @entry, @nr_pending, @is_good: the store's: that of its record; requests that are to come; its sum is right
 */
struct okv_store_get {
	struct okv_record	rec;
	void			*bufs[OKV_SPILL_PARTS_MAX];
	int			res;
	uint32_t		entry;
	uint32_t		nr_pending;
	bool			is_good;
};

/** Return: as okv_store_put(). */
int okv_store_get(struct okv_store *store, struct okv_store_get *gets, uint32_t nr);
/**
 * okv_store_read_other() - a block to where the store cannot look at it
 * @want: the block as its record must describe it: key, parent, position, tokens, bytes of its parts
 * @fn:   reads its payload from @off of the disk; 0 or a negative errno
 *
 * A record that was not read since the store was opened is verified in memory of the store's own first. Nothing is
 * written meanwhile.
 *
 * Return: what @fn says, or -ENOENT, -EBADMSG, -EIO, -ETIME, -ENOMEM.
 */
int okv_store_read_other(struct okv_store *store, const struct okv_record *want,
			 int (*fn)(void *opaque, const struct okv_record *rec, uint64_t off), void *opaque);
/** Is it the block that @want describes, wherever it lies? */
bool okv_record_is_same(const struct okv_record *rec, const struct okv_record *want);
/** The record of this key is not found any more (until the next opening). */
void okv_store_forget(struct okv_store *store, const uint8_t ns[32], const struct omnikv_key *key);

/*
 * For whoever tells others what can be found. Nothing here waits for the disk.
 */

/** Note from now on what changes, or no longer. */
void okv_store_watch(struct okv_store *store, bool is_watched);
/**
 * okv_store_changes() - what has changed since the last call, in order
 * @changes: [*@nr], the caller's to free(); NULL where there is nothing
 *
 * -ENOMEM: changes were lost, and those before them with them.
 */
int okv_store_changes(struct okv_store *store, struct okv_store_change **changes, uint32_t *nr);
/**
 * okv_store_list() - call @fn for each block of a namespace that can be found, parents before their children
 * @fn: under the store's lock; must call nothing of it
 *
 * What was noted of the namespace before is part of it, and not noted any more. -ENOMEM: nothing was called.
 */
int okv_store_list(struct okv_store *store, const uint8_t ns[32],
		   void (*fn)(void *opaque, const struct okv_record *rec), void *opaque);

/** Nothing that was begun is still under way. */
bool okv_store_is_idle(struct okv_store *store);
void okv_store_stats(struct okv_store *store, struct omnikv_spill_stats *stats);
int okv_store_check(struct okv_store *store, struct omnikv_spill_check *check, omnikv_progress_fn progress,
		    void *opaque);
/** Walks all invariants; 0, or -EUCLEAN with the reason. For tests. */
int okv_store_check_books(struct okv_store *store, const char **reason);

/* ---- inside, for the store's own files ------------------------------------------------------ */

#define OKV_STORE_IOS	1024u
/** Longest header of a batch. */
#define OKV_STORE_HEADER_BYTES \
	((OKV_SPILL_BATCH_HEAD + OKV_SPILL_BATCH_TAIL + \
	  OKV_SPILL_BATCH_MAX * (OKV_SPILL_RECORD_HEAD + 8 * OKV_SPILL_PARTS_MAX) + OKV_SPILL_PAGE - 1) / \
	 OKV_SPILL_PAGE * OKV_SPILL_PAGE)

static inline uint64_t okv_segment_off(const struct okv_store *store, uint32_t segment)
{
	return store->super.data_off + segment * store->super.segment_bytes;
}

int okv_catalog_init(struct okv_catalog *catalog);
void okv_catalog_fini(struct okv_catalog *catalog);
/** Room for @nr more entries. -ENOMEM. */
int okv_catalog_reserve(struct okv_catalog *catalog, uint32_t nr);
/** The youngest entry of the key. */
uint32_t okv_catalog_find(const struct okv_store *store, const uint8_t ns[32], const struct omnikv_key *key);
uint64_t okv_catalog_generation(const struct okv_store *store, uint32_t entry);
/** The entry's record. */
void okv_catalog_record(const struct okv_store *store, uint32_t entry, struct okv_record *rec);
/** The record at @at of @segment's table can be found from now on (not one in quarantine). Room was reserved. */
void okv_catalog_add(struct okv_store *store, uint32_t segment, uint32_t at, const struct okv_record *rec);
void okv_catalog_del(struct okv_store *store, uint32_t entry);
/** The entry whose record stands there, or OKV_CATALOG_NONE. */
uint32_t okv_catalog_at(const struct okv_store *store, uint32_t segment, uint32_t at);

/** Append an encoded record to the segment's table. -ENOMEM. */
int okv_segment_note(struct okv_segment *segment, const struct okv_record *rec, uint32_t *at);
/** Every record of it is forgotten, its table freed; FREE. */
void okv_segment_clear(struct okv_store *store, uint32_t segment);
/** Write table and trailer. Under io_lock. */
int okv_segment_write_table(struct okv_store *store, uint32_t segment);

/** Of a segment, how much of it reclaim may move. */
#define OKV_RECLAIM_MOVE_SHIFT	2

/** One segment as reclaim sees it. */
struct okv_reclaim_view {
	bool		is_candidate;
	uint64_t	live_bytes;
	uint64_t	hot_bytes;
	uint64_t	age_ns;		/* since it was last written or read */
};

/**
 * okv_reclaim_choose() - the segment that is cheapest to lose for what it gives
 *
 * benefit / cost = what is gained (all but the hot bytes that are moved, at most a quarter) x age, over what it
 * costs (the hot bytes, to move or as hits lost, a quarter of the live cold ones as hits lost, and one page). So what
 * was read once makes way too, when it is some five times as old as what never was.
 *
 * Return: its index, or OKV_CATALOG_NONE.
 */
uint32_t okv_reclaim_choose(const struct okv_reclaim_view *views, uint32_t nr, uint64_t segment_bytes);

/** Run @nr of store->ios. The first error, or 0. -ETIME as okv_store_put(). Under io_lock. */
int okv_store_run(struct okv_store *store, uint32_t nr);
void okv_store_notice(struct okv_store *store, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** Of a new store, before its superblocks: era 0. */
int okv_store_era_create(struct okv_store *store);
/** Read the era. -ETIME. Before anybody else enters. */
int okv_store_era_load(struct okv_store *store);
/** No segment from this one on was ever written; UINT64_MAX: not known. */
uint64_t okv_store_nr_begun(const struct okv_store *store);
/** Before the first write into segment @index; under io_lock. 0, or the disk's error: it must not be written. */
int okv_store_begins(struct okv_store *store, uint32_t index);
/** Fill segments and catalogue from the disk. */
int okv_store_recover(struct okv_store *store);
/** Read the record's payload to the bounce buffer and verify it. Under io_lock. */
int okv_store_bounce(struct okv_store *store, uint32_t segment, const struct okv_record *rec);

#endif /* OKV_SPILL_STORE_H */

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Power cuts below a file system: a store works on ext4, on xfs, or on the bare device, over
 * dm-log-writes, which notes every flush, forced write and mark in their order, and with each flush
 * the writes that it made durable. Then the disk is made again as it was at so many of these
 * moments, every second flush torn: some of its writes are there, some are not. The file system
 * recovers by its journal on a snapshot of that, and the store is opened: nothing wrong is served,
 * and all that a sync had acknowledged is there.
 *
 * Arguments: ext4|xfs|raw MARKS. Runs in a guest with five NVMe disks (tests/guest/run).
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "spill/spill.h"
#include "tests/harness/guest.h"
#include "tests/harness/spill_world.h"

#define CAPACITY	(8ull << 20)
#define SEGMENT		(1u << 20)
#define BLOCK		(32u << 10)
#define SALT		5
#define MNT		"/tmp/mnt"

/* dm-log-writes' format (Documentation/admin-guide/device-mapper/log-writes.rst), little endian. */
#define LOG_MAGIC	UINT64_C(0x6a736677736872)
#define LOG_F_FLUSH	1u
#define LOG_F_FUA	2u
#define LOG_F_DISCARD	4u
#define LOG_F_MARK	8u

struct log_super {
	uint64_t	magic;
	uint64_t	version;
	uint64_t	nr_entries;
	uint32_t	sector_bytes;
};

struct log_entry {
	uint64_t	sector;		/* all of 512 bytes */
	uint64_t	nr_sectors;
	uint64_t	flags;
	uint64_t	data_bytes;	/* of a mark */
};

/* What the marks in the log promise, in order: the blocks that were there at a sync. */
struct promise {
	uint32_t	nr_blocks;	/* ever written by then */
	uint8_t		*has;		/* [nr_blocks] */
};

struct cut {
	const char	*fs;
	bool		is_raw;
	char		data[64], log[64], replay[64], cow[64];
	struct promise	*promises;
	uint32_t	nr_promises;
	uint32_t	nr_blocks;	/* ever written */
	uint8_t		*buf;		/* [4 MiB], aligned */
	uint64_t	nr_served, nr_due, nr_missed, nr_bad;
};

static void __attribute__((noreturn)) die(const struct cut *cut, const char *what, uint64_t a, uint64_t b)
{
	printf("not ok 1 - power_cut_under_%s\n# %s (%llu, %llu)\n", cut->fs, what, (unsigned long long)a,
	       (unsigned long long)b);
	exit(1);
}

static void mount_fs(const struct cut *cut, const char *device)
{
	if (!cut->is_raw && mount(device, MNT, cut->fs, 0, NULL))
		die(cut, "the file system cannot be mounted", errno, 0);
}

static void umount_fs(const struct cut *cut)
{
	if (cut->is_raw)
		return;
	/* The kernel lets go of a ring's file in its own time. */
	for (uint32_t i = 0; umount(MNT); i++) {
		if (i == 1000)
			die(cut, "the file system cannot be unmounted", errno, 0);
		usleep(10000);
	}
}

static int open_store(const struct cut *cut, const char *device, uint32_t flags, struct omnikv_spill **spill)
{
	struct omnikv_spill_config config = {
		.size = sizeof(config), .capacity_bytes = CAPACITY, .segment_bytes = SEGMENT, .floor_bytes = 1,
		.flags = flags, .queue_depth = 16,
	};

	return omnikv_spill_open(cut->is_raw ? device : MNT, &config, spill, NULL);
}

/* ---- the work ------------------------------------------------------------------------------- */

static void promise(struct cut *cut, struct okv_store *store)
{
	struct promise *p;

	cut->promises = realloc(cut->promises, (cut->nr_promises + 1) * sizeof(*p));
	p = &cut->promises[cut->nr_promises];
	p->nr_blocks = cut->nr_blocks;
	p->has = calloc(1, cut->nr_blocks);
	for (uint32_t id = 0; id < cut->nr_blocks; id++) {
		struct okv_record rec;

		spill_block(&rec, SALT, id, OKV_SPILL_PAGE, 1);
		p->has[id] = okv_store_find(store, rec.ns, &rec.key, NULL);
	}
	if (guest_shell("dmsetup message logged 0 mark promise-%u", cut->nr_promises))
		die(cut, "a mark cannot be set", cut->nr_promises, 0);
	cut->nr_promises++;
}

static void work(struct cut *cut, uint32_t nr_steps)
{
	struct omnikv_spill *spill;
	uint64_t seed = 11;
	uint32_t id = 0;

	if (!guest_map("logged", "0 %llu log-writes %s %s", (unsigned long long)guest_sectors(cut->data), cut->data, cut->log))
		die(cut, "no dm-log-writes", 0, 0);
	if (!cut->is_raw && guest_shell("mkfs.%s /dev/mapper/logged >/dev/null",
					strcmp(cut->fs, "xfs") ? "ext4 -q -F -E nodiscard" : "xfs -q -f -K"))
		die(cut, "no file system can be made", 0, 0);
	if (guest_shell("dmsetup message logged 0 mark begin"))
		die(cut, "a mark cannot be set", 0, 0);
	mount_fs(cut, "/dev/mapper/logged");
	for (uint32_t step = 0; step < nr_steps; step++) {
		uint32_t to = id + 1 + spill_random(&seed) % 5;

		if (step % 40 == 0 && open_store(cut, "/dev/mapper/logged", 0, &spill))
			die(cut, "the store does not open", step, 0);
		cut->nr_blocks = to;
		if (spill_put_run(spill->store, SALT, id, to, step % 4 == 3 ? BLOCK / 4 : BLOCK, 1 + step % 2))
			die(cut, "a put fails", id, to);
		id = to;
		for (uint32_t k = 0; k < 3; k++)
			spill_get(spill->store, SALT, id - 1 - spill_random(&seed) % (id < 100 ? id : 100));
		if (step % 3 == 2) {
			if (omnikv_spill_sync(spill))
				die(cut, "a sync fails", step, 0);
			promise(cut, spill->store);
		}
		if (step % 40 == 39 || step == nr_steps - 1)
			omnikv_spill_close(spill);
	}
	umount_fs(cut);
	guest_unmap("logged");
}

/* ---- the replay ----------------------------------------------------------------------------- */

/* Must it be there at a cut after @nr_kept promises? Not if what came until the next one may have reclaimed it. */
static bool is_due(const struct cut *cut, uint32_t nr_kept, uint32_t id)
{
	return nr_kept && id < cut->promises[nr_kept - 1].nr_blocks && cut->promises[nr_kept - 1].has[id] &&
	       (nr_kept == cut->nr_promises || cut->promises[nr_kept].has[id]);
}

/*
 * Where the replay is. Writes are pending, which is the cache of the disk, until the flush comes that makes them
 * durable; forced ones are among them, in their order, and are never lost.
 */
struct replay {
	int			log, to;
	struct log_super	super;
	uint64_t		at;		/* byte of the log where the next entry stands */
	struct pending {
		uint64_t	log_at;		/* of its data */
		uint64_t	sector;
		uint64_t	nr_sectors;
		bool		is_forced;
	}			*pending;
	uint32_t		nr_pending, room;
	uint64_t		seed;
};

static void read_log(struct cut *cut, struct replay *r, uint64_t at, uint64_t bytes)
{
	if (pread(r->log, cut->buf, bytes, at) != (ssize_t)bytes)
		die(cut, "the log cannot be read", at, errno);
}

/* The next entry of the log, which becomes pending. */
static void next_entry(struct cut *cut, struct replay *r, struct log_entry *entry, char mark[64])
{
	read_log(cut, r, r->at, r->super.sector_bytes);
	memcpy(entry, cut->buf, sizeof(*entry));
	mark[0] = '\0';
	if (entry->flags & LOG_F_MARK)
		snprintf(mark, 64, "%.*s", (int)(entry->data_bytes < 63 ? entry->data_bytes : 63),
			 (char *)cut->buf + sizeof(*entry));
	r->at += r->super.sector_bytes;
	if ((entry->flags & LOG_F_DISCARD) || !entry->nr_sectors)
		return;
	if (r->nr_pending == r->room) {
		r->room = r->room ? 2 * r->room : 256;
		r->pending = realloc(r->pending, r->room * sizeof(*r->pending));
		if (!r->pending)
			die(cut, "no memory", r->room, 0);
	}
	r->pending[r->nr_pending++] = (struct pending){
		.log_at = r->at, .sector = entry->sector, .nr_sectors = entry->nr_sectors,
		.is_forced = entry->flags & LOG_F_FUA,
	};
	r->at += entry->nr_sectors * 512;
}

/* Write what is pending to a disk: all of it, or what is forced and by chance the rest. */
static void apply_pending(struct cut *cut, struct replay *r, const char *path, bool is_some)
{
	int fd = path ? open(path, O_WRONLY | O_DIRECT | O_CLOEXEC) : r->to;

	if (fd < 0)
		die(cut, "a disk cannot be opened", errno, 0);
	for (uint32_t i = 0; i < r->nr_pending; i++) {
		const struct pending *p = &r->pending[i];

		if (is_some && !p->is_forced && spill_random(&r->seed) % 2)
			continue;
		for (uint64_t done = 0, bytes; done < p->nr_sectors * 512; done += bytes) {
			bytes = p->nr_sectors * 512 - done < 4u << 20 ? p->nr_sectors * 512 - done : 4u << 20;
			read_log(cut, r, p->log_at + done, bytes);
			if (pwrite(fd, cut->buf, bytes, p->sector * 512 + done) != (ssize_t)bytes)
				die(cut, "a disk cannot be written", p->sector, errno);
		}
	}
	if (path)
		close(fd);
}

static void look(struct cut *cut, struct replay *r, uint64_t entry, uint32_t nr_kept, bool is_torn)
{
	const char *device = "/dev/mapper/snap";
	struct omnikv_spill *spill;
	const char *reason;
	int ret;

	if (!guest_map("snap", "0 %llu snapshot %s %s N 8", (unsigned long long)guest_sectors(cut->replay), cut->replay,
		       cut->cow))
		die(cut, "no snapshot", entry, 0);
	if (is_torn)
		apply_pending(cut, r, device, true);
	mount_fs(cut, device);
	/* Before the first sync there may be no store. */
	ret = open_store(cut, device, OMNIKV_SPILL_F_OPEN_ONLY, &spill);
	if (ret && nr_kept)
		die(cut, "the store does not open", entry, -ret);
	for (uint32_t id = 0; !ret && id < cut->nr_blocks; id++) {
		int got = spill_get(spill->store, SALT, id);

		cut->nr_due += is_due(cut, nr_kept, id);
		if (got == -EUCLEAN)
			die(cut, "a wrong byte was served", entry, id);
		if (got && is_due(cut, nr_kept, id))
			die(cut, "a block that was synced is not there", entry, id);
		if (got && got != -ENOENT && got != -EBADMSG)
			die(cut, "an error where a miss was due", entry, -got);
		cut->nr_served += !got;
		cut->nr_missed += got == -ENOENT;
		cut->nr_bad += got == -EBADMSG;
	}
	if (!ret && okv_store_check_books(spill->store, &reason))
		die(cut, reason, entry, 0);
	if (!ret)
		omnikv_spill_close(spill);
	umount_fs(cut);
	guest_unmap("snap");
}

static void open_log(struct cut *cut, struct replay *r)
{
	read_log(cut, r, 0, 512);
	memcpy(&r->super, cut->buf, sizeof(r->super));
	if (r->super.magic != LOG_MAGIC || r->super.version != 1 || r->super.sector_bytes % 512 ||
	    r->super.sector_bytes > 4096)
		die(cut, "this is no log of dm-log-writes", r->super.magic, r->super.version);
	r->at = r->super.sector_bytes;
	r->nr_pending = 0;
}

static bool is_cut(const struct log_entry *entry)
{
	return entry->flags & (LOG_F_FLUSH | LOG_F_FUA | LOG_F_MARK);
}

static void replay(struct cut *cut, uint64_t want)
{
	uint64_t nr_cuts = 0, nr_seen = 0, nr_looked = 0, nr_torn = 0;
	struct replay r = { .seed = 2026 };
	uint32_t nr_kept = 0;
	bool is_begun = false;
	struct log_entry entry;
	char mark[64];

	r.log = open(cut->log, O_RDONLY | O_DIRECT | O_CLOEXEC);
	r.to = open(cut->replay, O_WRONLY | O_DIRECT | O_CLOEXEC);
	if (r.log < 0 || r.to < 0)
		die(cut, "disks cannot be opened", errno, 0);
	open_log(cut, &r);
	for (uint64_t i = 0; i < r.super.nr_entries; i++) {
		next_entry(cut, &r, &entry, mark);
		is_begun |= !strcmp(mark, "begin");
		nr_cuts += is_begun && is_cut(&entry);
	}
	printf("# %s: %llu entries of the log, %llu flushes, forced writes and marks, %u promises, %u blocks, seed %llu\n", cut->fs,
	       (unsigned long long)r.super.nr_entries, (unsigned long long)nr_cuts, cut->nr_promises, cut->nr_blocks,
	       (unsigned long long)r.seed);
	if (nr_cuts < want)
		die(cut, "too few moments to cut at", nr_cuts, want);
	open_log(cut, &r);
	is_begun = false;
	for (uint64_t i = 0; i < r.super.nr_entries; i++) {
		bool is_wanted, is_flush;

		next_entry(cut, &r, &entry, mark);
		is_flush = entry.flags & LOG_F_FLUSH;
		is_begun |= !strcmp(mark, "begin");
		if (!strncmp(mark, "promise-", 8))
			nr_kept = atoi(mark + 8) + 1;
		nr_seen += is_begun && is_cut(&entry);
		is_wanted = is_begun && is_cut(&entry) && nr_looked * nr_cuts < nr_seen * want;
		nr_looked += is_wanted;
		if (is_wanted && is_flush && nr_looked % 2) {
			/* What the flush itself writes comes after all that it flushes. */
			uint32_t nr_own = entry.nr_sectors != 0;

			nr_torn++;
			r.nr_pending -= nr_own;
			look(cut, &r, i, nr_kept, true);
			r.nr_pending += nr_own;
			is_wanted = false;
		}
		if (is_flush) {
			apply_pending(cut, &r, NULL, false);
			r.nr_pending = 0;
		}
		/* Of what no flush has come for, the forced writes are there, and some of the rest. */
		if (is_wanted)
			look(cut, &r, i, nr_kept, !is_flush);
	}
	close(r.log);
	close(r.to);
	free(r.pending);
	if (nr_looked < want || !cut->nr_served || !cut->nr_due)
		die(cut, "too little was tried", nr_looked, cut->nr_due);
	printf("ok 1 - power_cut_under_%s\n# %llu cuts, %llu of them within a flush: %llu blocks served, %llu of them promised, %llu "
	       "missed, %llu torn and refused\n", cut->fs, (unsigned long long)nr_looked, (unsigned long long)nr_torn,
	       (unsigned long long)cut->nr_served, (unsigned long long)cut->nr_due, (unsigned long long)cut->nr_missed,
	       (unsigned long long)cut->nr_bad);
}

int main(int argc, char **argv)
{
	struct cut cut = { .fs = argc > 1 ? argv[1] : "" };
	uint64_t want = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;

	setvbuf(stdout, NULL, _IOLBF, 0);
	printf("1..1\n");
	cut.is_raw = !strcmp(cut.fs, "raw");
	if (!want || (!cut.is_raw && strcmp(cut.fs, "ext4") && strcmp(cut.fs, "xfs")) || !guest_disk(1, cut.data) ||
	    !guest_disk(2, cut.log) || !guest_disk(3, cut.replay) || !guest_disk(4, cut.cow)) {
		printf("ok 1 - power_cut_under_%s # SKIP runs in a guest, by tests/guest/run\n", cut.fs);
		return 0;
	}
	cut.buf = aligned_alloc(OKV_SPILL_PAGE, 4u << 20);
	if (!cut.buf || !guest_modules("dm-log-writes dm-snapshot") || (mkdir(MNT, 0700) && errno != EEXIST) ||
	    (!cut.is_raw && guest_shell("modprobe %s", cut.fs)))
		die(&cut, "the guest lacks what it takes", errno, 0);
	/* Nothing of an earlier run. */
	guest_shell("DM_DISABLE_UDEV=1 dmsetup remove_all 2>/dev/null; for d in %s %s; do dd if=/dev/zero of=$d bs=1M count=16 "
		    "2>/dev/null; done; sync", cut.data, cut.replay);
	/* A step in three syncs; journals add flushes of their own. */
	work(&cut, 3 * want + 60);
	replay(&cut, want);
	return 0;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * The pages of a pool: one private tmpfs file, allocated whole, in 2-MiB units, before anybody
 * can map it. Leaves who may map it to pool.c. Creation is entered by one ioctl, which spreads
 * the work over several kernel threads; afterwards nothing here changes until the end.
 *
 * A tmpfs file is the one backing that gives 2-MiB mappings, long-term pins, io_uring buffers
 * and NUMA placement on every kernel served. Nobody but page tables refers to it: no user holds
 * a descriptor, and S_IMMUTABLE with SB_RDONLY keep holders of a mapping from punching it.
 */
#include <linux/file.h>
#include <linux/fs_context.h>
#include <linux/mount.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/shmem_fs.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "compat.h"
#include "okv.h"

#define OKV_FILL_THREADS	8

/* References of a large folio of ours that nobody else has: its page cache's, and one we keep. */
#define OKV_OWN_REFS		(OKV_UNIT_PAGES + 1)

/* One creation in progress; the threads share it. */
struct okv_fill {
	struct okv_segment	*seg;
	const struct okv_backing *want;
	atomic64_t		next;
	atomic64_t		nr_small;
	atomic_t		error;		/* the first one; everybody stops */
	atomic_t		nr_running;
	struct completion	done;
};

struct okv_fill_work {
	struct work_struct	work;
	struct okv_fill		*fill;
};

static int mount_options(const struct okv_backing *want, char *buf, size_t len)
{
	static const char *const names[] = {
		[OMNIKV_NUMA_BIND]	 = "bind",
		[OMNIKV_NUMA_INTERLEAVE] = "interleave",
		[OMNIKV_NUMA_PREFER]	 = "prefer",
	};
	const char *huge = "huge=always";
	DECLARE_BITMAP(nodes, 64);

	/* Real-time kernels have none, and tmpfs there does not know the option. */
	if (!IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE)) {
		if (!(want->flags & OMNIKV_CREATE_F_ACCEPT_SMALL))
			return -EOPNOTSUPP;
		huge = "mode=0600";
	}
	if (want->numa == OMNIKV_NUMA_DEFAULT) {
		strscpy(buf, huge, len);
		return 0;
	}
	bitmap_from_arr64(nodes, &want->nodes, 64);
	if (snprintf(buf, len, "%s,mpol=%s:%*pbl", huge, names[want->numa], 64, nodes) >= len)
		return -EINVAL;
	return 0;
}

static bool is_large(struct page *page)
{
	return compound_order(page) == OKV_UNIT_ORDER;
}

/* Make room for a large page: a free order-10 block cannot hide on a per-cpu list. */
static void make_room(const struct okv_backing *want)
{
	int node = want->numa == OMNIKV_NUMA_DEFAULT || !want->nodes ? NUMA_NO_NODE : __ffs64(want->nodes);
	gfp_t gfp = GFP_KERNEL | __GFP_COMP | __GFP_RETRY_MAYFAIL | __GFP_NOWARN;
	struct page *page;

	if (want->numa == OMNIKV_NUMA_BIND)
		gfp |= __GFP_THISNODE;
	page = alloc_pages_node(node, gfp, OKV_UNIT_ORDER + 1);
	if (page)
		put_page(page);
}

static void drop_small(struct okv_unit *unit)
{
	int i;

	for (i = 0; i < OKV_UNIT_PAGES; i++)
		if (unit->small[i])
			put_page(unit->small[i]);
	kvfree(unit->small);
	unit->small = NULL;
}

/* A unit whose large page could not be had holds one small page so far; bring the others. */
static int fill_small(struct address_space *mapping, u64 index, gfp_t gfp, struct okv_unit *unit)
{
	int i;

	unit->small = kvcalloc(OKV_UNIT_PAGES, sizeof(*unit->small), GFP_KERNEL);
	if (!unit->small)
		return -ENOMEM;
	for (i = 0; i < OKV_UNIT_PAGES; i++) {
		struct page *page = shmem_read_mapping_page_gfp(mapping, index + i, gfp);

		if (IS_ERR(page)) {
			drop_small(unit);
			return PTR_ERR(page);
		}
		unit->small[i] = page;
	}
	return 0;
}

static int fill_unit(struct okv_fill *fill, u64 nr)
{
	struct okv_segment *seg = fill->seg;
	struct address_space *mapping = seg->file->f_mapping;
	/* Neither OOM killer nor splat: too little memory is an answer like any other. */
	gfp_t gfp = mapping_gfp_mask(mapping) | __GFP_NORETRY | __GFP_NOWARN;
	u64 index = nr * OKV_UNIT_PAGES;
	struct page *page;
	int try;

	for (try = 0; try < 2; try++) {
		page = shmem_read_mapping_page_gfp(mapping, index, gfp);
		if (IS_ERR(page))
			return PTR_ERR(page);
		if (is_large(page)) {
			seg->units[nr].head = page;
			return 0;
		}
		put_page(page);
		/* The small page must go, or its unit can never become large. */
		shmem_truncate_range(file_inode(seg->file), (loff_t)nr << OKV_UNIT_SHIFT,
				     (((loff_t)nr + 1) << OKV_UNIT_SHIFT) - 1);
		if (!try)
			make_room(fill->want);
	}
	if (!(fill->want->flags & OMNIKV_CREATE_F_ACCEPT_SMALL))
		return -ENOMEM;
	atomic64_inc(&fill->nr_small);
	return fill_small(mapping, index, gfp, &seg->units[nr]);
}

static void fill_loop(struct okv_fill *fill)
{
	for (;;) {
		u64 nr = atomic64_inc_return(&fill->next) - 1;
		int ret;

		if (nr >= fill->seg->nr_units || atomic_read(&fill->error))
			return;
		ret = fill_unit(fill, nr);
		if (!ret && fatal_signal_pending(current))
			ret = -EINTR;
		if (ret) {
			atomic_cmpxchg(&fill->error, 0, ret);
			return;
		}
		atomic64_inc(fill->want->ready_units);
		cond_resched();
	}
}

static void fill_work(struct work_struct *work)
{
	struct okv_fill_work *w = container_of(work, struct okv_fill_work, work);

	fill_loop(w->fill);
	if (atomic_dec_and_test(&w->fill->nr_running))
		complete(&w->fill->done);
}

static int fill(struct okv_segment *seg, const struct okv_backing *want)
{
	struct okv_fill_work works[OKV_FILL_THREADS];
	struct okv_fill fill = { .seg = seg, .want = want };
	int nr = min3(num_online_cpus(), (unsigned int)OKV_FILL_THREADS, (unsigned int)min(seg->nr_units, 64ULL));
	int i;

	init_completion(&fill.done);
	if (want->flags & OMNIKV_CREATE_F_CHARGE) {
		/* Only the caller's own thread is charged to the caller's memory cgroup. */
		fill_loop(&fill);
	} else {
		atomic_set(&fill.nr_running, nr);
		for (i = 0; i < nr; i++) {
			works[i].fill = &fill;
			INIT_WORK_ONSTACK(&works[i].work, fill_work);
			queue_work(okv_wq, &works[i].work);
		}
		if (wait_for_completion_killable(&fill.done)) {
			atomic_cmpxchg(&fill.error, 0, -EINTR);
			wait_for_completion(&fill.done);
		}
		for (i = 0; i < nr; i++) {
			flush_work(&works[i].work);
			destroy_work_on_stack(&works[i].work);
		}
	}
	seg->nr_small = atomic64_read(&fill.nr_small);
	return atomic_read(&fill.error);
}

static void count_nodes(struct okv_segment *seg)
{
	u64 i;
	int k;

	for (i = 0; i < seg->nr_units; i++) {
		struct okv_unit *unit = &seg->units[i];

		if (unit->head) {
			seg->node_bytes[page_to_nid(unit->head) & 63] += OKV_UNIT_BYTES;
			continue;
		}
		for (k = 0; k < OKV_UNIT_PAGES; k++)
			seg->node_bytes[page_to_nid(unit->small[k]) & 63] += PAGE_SIZE;
	}
}

int okv_segment_init(struct okv_segment *seg, const struct okv_backing *want)
{
	struct file_system_type *type;
	struct inode *inode;
	char options[256];
	int ret;

	memset(seg, 0, sizeof(*seg));
	ret = mount_options(want, options, sizeof(options));
	if (ret)
		return ret;
	seg->nr_units = want->bytes >> OKV_UNIT_SHIFT;
	seg->units = vzalloc(array_size(seg->nr_units, sizeof(*seg->units)));
	if (!seg->units)
		return -ENOMEM;

	type = get_fs_type("tmpfs");
	if (!type) {
		ret = -EOPNOTSUPP;
		goto err_units;
	}
	seg->mnt = vfs_kern_mount(type, SB_KERNMOUNT, "omnikv", options);
	module_put(type->owner);
	if (IS_ERR(seg->mnt)) {
		ret = PTR_ERR(seg->mnt);
		goto err_units;
	}
	seg->file = shmem_file_setup_with_mnt(seg->mnt, "omnikv-pool", want->bytes, VM_NORESERVE);
	if (IS_ERR(seg->file)) {
		ret = PTR_ERR(seg->file);
		/* What tmpfs says without memory for an inode. */
		if (ret == -ENOSPC)
			ret = -ENOMEM;
		goto err_mnt;
	}
	/* Before the first page: a movable one could not be pinned for long where it is. */
	mapping_set_gfp_mask(seg->file->f_mapping, GFP_HIGHUSER);
	mapping_set_unevictable(seg->file->f_mapping);

	ret = fill(seg, want);
	if (ret) {
		okv_segment_fini(seg);
		return ret;
	}
	/* Holders of a mapping cannot take pages out, nor undo that through map_files. */
	inode = file_inode(seg->file);
	inode_lock(inode);
	inode->i_flags |= S_IMMUTABLE;
	inode_unlock(inode);
	inode->i_sb->s_flags |= SB_RDONLY;
	count_nodes(seg);
	return 0;

err_mnt:
	mntput(seg->mnt);
err_units:
	vfree(seg->units);
	memset(seg, 0, sizeof(*seg));
	return ret;
}

void okv_segment_fini(struct okv_segment *seg)
{
	u64 i;

	if (!seg->units)
		return;
	for (i = 0; i < seg->nr_units; i++) {
		if (seg->units[i].head)
			put_page(seg->units[i].head);
		if (seg->units[i].small)
			drop_small(&seg->units[i]);
		if (!(i & 1023))
			cond_resched();
	}
	vfree(seg->units);
	seg->units = NULL;
	/*
	 * Mappings that are left keep the file, and with it their pages. A kernel thread's fput()
	 * would put the last one off to some later time; a user's is over when its call returns.
	 */
	if (current->flags & PF_KTHREAD)
		__fput_sync(seg->file);
	else
		fput(seg->file);
	mntput(seg->mnt);
}

struct page *okv_segment_page(const struct okv_segment *seg, u64 page)
{
	const struct okv_unit *unit = &seg->units[page / OKV_UNIT_PAGES];

	if (unit->head)
		return nth_page(unit->head, page % OKV_UNIT_PAGES);
	return unit->small[page % OKV_UNIT_PAGES];
}

static long foreign_refs(struct folio *folio, long own)
{
	long refs;
	int before, after;

	/*
	 * A reference is taken before a mapping is counted and dropped after it is uncounted, so a
	 * count that stands still around the reading explains no more references than it should.
	 */
	do {
		before = okv_folio_mapcount(folio);
		smp_rmb();
		refs = folio_ref_count(folio);
		smp_rmb();
		after = okv_folio_mapcount(folio);
	} while (before != after);
	return refs - own - after;
}

long okv_segment_foreign_refs(const struct okv_segment *seg, u64 first, u64 nr)
{
	long most = 0, refs;
	u64 page = first, end = first + nr;

	while (page < end) {
		const struct okv_unit *unit = &seg->units[page / OKV_UNIT_PAGES];

		if (unit->head) {
			refs = foreign_refs(page_folio(unit->head), OKV_OWN_REFS);
			page = (page / OKV_UNIT_PAGES + 1) * OKV_UNIT_PAGES;
		} else {
			refs = foreign_refs(page_folio(unit->small[page % OKV_UNIT_PAGES]), 2);
			page++;
		}
		most = max(most, refs);
	}
	return most;
}

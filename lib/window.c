// SPDX-License-Identifier: MIT
/*
 * Windows: the public calls, and windows on the embedded provider.
 *
 * A window is a reservation without access; a bind maps a part of the pool's file over a part
 * of it. @slots says for each 4-KiB page which bind covers it, so that binds can be replaced
 * and unbound in parts; a bind's reference ends with its last page. Any thread; the client's
 * windows_lock is held across the system calls, the pool's lock is not.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "embedded.h"
#include "failpoint.h"

#define PAGE_BYTES	4096ull

/* ---- the public calls ------------------------------------------------------------------- */

int omnikv_window_create(struct omnikv_client *client, uint64_t bytes, uint32_t flags,
			 struct omnikv_window **window)
{
	if (!client || !window || !bytes || bytes % PAGE_BYTES || (flags & ~OMNIKV_WINDOW_F_ALL))
		return -EINVAL;
	return client->pool->provider->window_create(client, bytes, flags, window);
}

void omnikv_window_destroy(struct omnikv_window *window)
{
	if (window)
		window->client->pool->provider->window_destroy(window);
}

void *omnikv_window_base(const struct omnikv_window *window)
{
	return window->base;
}

/* Does [@off, @off + @bytes) lie in @limit bytes, all in whole pages, and is it not empty? */
static bool is_range(uint64_t off, uint64_t bytes, uint64_t limit)
{
	return bytes && off % PAGE_BYTES == 0 && bytes % PAGE_BYTES == 0 && bytes <= limit &&
	       off <= limit - bytes;
}

int omnikv_window_bind(struct omnikv_window *window, const struct omnikv_bind *binds, uint32_t count,
		       uint32_t *nr_bound)
{
	uint32_t nr = 0, nr_good;
	int ret = 0, bad = 0;

	if (!window || (count && !binds))
		return -EINVAL;
	/* What comes before the first malformed one is bound, as it would be one by one. */
	for (nr_good = 0; nr_good < count; nr_good++) {
		const struct omnikv_bind *bind = &binds[nr_good];
		uint64_t extent_bytes = (uint64_t)bind->extent.nr_granules * window->client->pool->granule_bytes;

		if (!is_range(bind->extent_off, bind->bytes, extent_bytes) ||
		    !is_range(bind->window_off, bind->bytes, window->bytes)) {
			bad = -EINVAL;
			break;
		}
	}
	if (nr_good)
		ret = window->client->pool->provider->window_bind(window, binds, nr_good, &nr);
	if (nr_bound)
		*nr_bound = nr;
	return ret ? ret : bad;
}

int omnikv_window_unbind(struct omnikv_window *window, uint64_t off, uint64_t bytes)
{
	if (!window || !is_range(off, bytes, window->bytes))
		return -EINVAL;
	return window->client->pool->provider->window_unbind(window, off, bytes);
}

/* ---- on the embedded provider ----------------------------------------------------------- */

/* One bind. @nr_pages of its range that it still covers; 0: the record is unused, @first links. */
struct bind_rec {
	uint32_t	granule;
	uint32_t	first;		/* page of the window */
	uint32_t	range;		/* pages from there on, as it was bound */
	uint32_t	nr_pages;
	bool		is_condemned;
};

struct okv_embedded_window {
	struct omnikv_window		window;
	/* Fixed after creation. */
	void				*map_base;	/* the reservation, before alignment */
	uint64_t			map_bytes;
	uint64_t			nr_pages;
	uint32_t			*slots;		/* [nr_pages] index of a record + 1, 0: nothing bound */

	/* Guarded by the client's windows_lock. */
	struct okv_embedded_window	*next;
	struct bind_rec			*recs;
	uint32_t			nr_recs;	/* ever used */
	uint32_t			max_recs;
	uint32_t			free_rec;	/* index + 1 of an unused one below nr_recs, 0: none */
	uint32_t			nr_condemned;
};

static struct okv_embedded_window *embedded_window(struct omnikv_window *window)
{
	return (struct okv_embedded_window *)window;
}

/*
 * At the host's limit on mappings (vm.max_map_count) every mmap() fails, also the one that takes a
 * bind away. So a client with windows keeps a few mappings that serve nothing: pages of a small
 * range with another protection each. Giving them up makes room for an unbind, which makes more.
 */
#define SPARE_PAGES	8

static void spare_drop_locked(struct okv_embedded_client *client)
{
	if (client->spare)
		munmap(client->spare, SPARE_PAGES * PAGE_BYTES);
	client->spare = NULL;
}

/* 0, also where it is there already, or -ENOMEM. */
static int spare_make_locked(struct okv_embedded_client *client)
{
	unsigned char *at;
	int i;

	if (client->spare)
		return 0;
	at = mmap(NULL, SPARE_PAGES * PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (at == MAP_FAILED)
		return -ENOMEM;
	client->spare = at;
	for (i = 1; i < SPARE_PAGES; i += 2) {
		if (mprotect(at + i * PAGE_BYTES, PAGE_BYTES, PROT_READ)) {
			spare_drop_locked(client);
			return -ENOMEM;
		}
	}
	return 0;
}

void okv_windows_fini(struct okv_embedded_client *client)
{
	pthread_mutex_lock(&client->windows_lock);
	spare_drop_locked(client);
	pthread_mutex_unlock(&client->windows_lock);
}

int okv_embedded_window_create(struct omnikv_client *base, uint64_t bytes, uint32_t flags,
			       struct omnikv_window **out)
{
	struct okv_embedded_client *client = okv_embedded_client(base);
	struct okv_embedded_window *window;
	uint64_t align = bytes < OKV_HUGE_BYTES ? PAGE_BYTES : OKV_HUGE_BYTES;
	int ret;

	if (bytes / PAGE_BYTES >= UINT32_MAX)
		return -ENOMEM;
	ret = -OKV_FAILPOINT("window.create");
	if (ret)
		return ret;
	window = calloc(1, sizeof(*window));
	if (!window)
		return -ENOMEM;
	window->nr_pages = bytes / PAGE_BYTES;
	window->slots = mmap(NULL, window->nr_pages * sizeof(*window->slots), PROT_READ | PROT_WRITE,
			     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (window->slots == MAP_FAILED) {
		ret = -ENOMEM;
		goto err_free;
	}
	window->map_bytes = bytes + align - PAGE_BYTES;
	window->map_base = mmap(NULL, window->map_bytes, PROT_NONE,
				MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (window->map_base == MAP_FAILED) {
		ret = -ENOMEM;
		goto err_unmap;
	}
	window->window.client = base;
	window->window.base = (unsigned char *)(((uintptr_t)window->map_base + align - 1) & ~(uintptr_t)(align - 1));
	window->window.bytes = bytes;
	window->window.flags = flags;

	pthread_mutex_lock(&client->windows_lock);
	ret = spare_make_locked(client);
	if (!ret) {
		window->next = client->windows;
		client->windows = window;
	}
	pthread_mutex_unlock(&client->windows_lock);
	if (ret)
		goto err_unmap_base;
	*out = &window->window;
	return 0;

err_unmap_base:
	munmap(window->map_base, window->map_bytes);
err_unmap:
	munmap(window->slots, window->nr_pages * sizeof(*window->slots));
err_free:
	free(window);
	return ret;
}

/* A reference of a bind ends. */
static void put_extent_locked(struct okv_embedded_pool *pool, struct okv_embedded_client *client, uint32_t granule)
{
	struct okv_hold *hold = okv_holds_find(&client->holds, granule);

	hold->nr_binds--;
	okv_holds_drop(&client->holds, hold);
	pool->refs->bind_put(client, granule);
}

/* The bind behind a record is over: the record is free for the next. */
static void rec_free(struct okv_embedded_window *window, uint32_t idx)
{
	struct bind_rec *rec = &window->recs[idx];

	if (rec->is_condemned)
		window->nr_condemned--;
	rec->is_condemned = false;
	rec->first = window->free_rec;
	window->free_rec = idx + 1;
}

/* Pages [@first, @first + @nr) belong to record @idx + 1 from now on, or to none (0). */
static void slots_set(struct okv_embedded_window *window, uint64_t first, uint64_t nr, uint32_t value)
{
	struct okv_embedded_client *client = okv_embedded_client(window->window.client);
	struct okv_embedded_pool *pool = okv_embedded_pool(client->client.pool);
	uint64_t page;

	for (page = first; page < first + nr; page++) {
		uint32_t old = window->slots[page];

		if (old && !--window->recs[old - 1].nr_pages) {
			pthread_mutex_lock(&pool->lock);
			put_extent_locked(pool, client, window->recs[old - 1].granule);
			pthread_mutex_unlock(&pool->lock);
			rec_free(window, old - 1);
		}
		if (old != value)
			window->slots[page] = value;
	}
}

/* Give a range back to the reservation. -ENOMEM where that would need one mapping too many. */
static int unmap_pages(struct okv_embedded_window *window, uint64_t first, uint64_t nr)
{
	struct okv_embedded_client *client = okv_embedded_client(window->window.client);
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED;
	void *at = window->window.base + first * PAGE_BYTES, *done;
	int error = 0;

	if (OKV_FAILPOINT("window.unmap"))
		return -ENOMEM;
	done = mmap(at, nr * PAGE_BYTES, PROT_NONE, flags, -1, 0);
	if (done == MAP_FAILED) {
		spare_drop_locked(client);
		done = mmap(at, nr * PAGE_BYTES, PROT_NONE, flags, -1, 0);
		error = errno;
		/* Where that fails, the next bind or window makes them again. */
		spare_make_locked(client);
	}
	/* A part of a huge page cannot go. */
	if (done == MAP_FAILED)
		return error == EINVAL ? -EOPNOTSUPP : -ENOMEM;
	slots_set(window, first, nr, 0);
	return 0;
}

/* Unbind the parts of a range that bind @slot covers, or any where it is 0, and leave the rest of it alone. */
static int unbind_parts(struct okv_embedded_window *window, uint64_t first, uint64_t nr, uint32_t slot)
{
	uint64_t end = first + nr, page, stop;
	int ret = 0;

	for (page = first; page < end && !ret; page = stop + 1) {
		for (stop = page; stop < end && (slot ? window->slots[stop] == slot : window->slots[stop] != 0);)
			stop++;
		if (stop > page)
			ret = unmap_pages(window, page, stop - page);
	}
	return ret;
}

int okv_embedded_window_unbind(struct omnikv_window *base, uint64_t off, uint64_t bytes)
{
	struct okv_embedded_client *client = okv_embedded_client(base->client);
	int ret;

	pthread_mutex_lock(&client->windows_lock);
	ret = unbind_parts(embedded_window(base), off / PAGE_BYTES, bytes / PAGE_BYTES, 0);
	pthread_mutex_unlock(&client->windows_lock);
	return ret;
}

void okv_embedded_window_destroy(struct omnikv_window *base)
{
	struct okv_embedded_window *window = embedded_window(base), **link;
	struct okv_embedded_client *client = okv_embedded_client(base->client);
	struct okv_embedded_pool *pool = okv_embedded_pool(client->client.pool);
	uint32_t i;

	pthread_mutex_lock(&client->windows_lock);
	for (link = &client->windows; *link != window;)
		link = &(*link)->next;
	*link = window->next;
	munmap(window->map_base, window->map_bytes);
	pthread_mutex_lock(&pool->lock);
	for (i = 0; i < window->nr_recs; i++)
		if (window->recs[i].nr_pages)
			put_extent_locked(pool, client, window->recs[i].granule);
	pthread_mutex_unlock(&pool->lock);
	pthread_mutex_unlock(&client->windows_lock);

	munmap(window->slots, window->nr_pages * sizeof(*window->slots));
	free(window->recs);
	free(window);
}

static int recs_reserve(struct okv_embedded_window *window, uint32_t count)
{
	uint64_t need = (uint64_t)window->nr_recs + count, max = window->max_recs ? window->max_recs : 16;
	struct bind_rec *recs;

	while (max < need)
		max *= 2;
	if (max == window->max_recs)
		return 0;
	recs = max < UINT32_MAX ? realloc(window->recs, max * sizeof(*recs)) : NULL;
	if (!recs)
		return -ENOMEM;
	window->recs = recs;
	window->max_recs = (uint32_t)max;
	return 0;
}

static uint32_t rec_new(struct okv_embedded_window *window)
{
	uint32_t idx;

	if (!window->free_rec)
		return window->nr_recs++;
	idx = window->free_rec - 1;
	window->free_rec = window->recs[idx].first;
	return idx;
}

static uint64_t file_off(const struct okv_embedded_pool *pool, const struct omnikv_bind *bind)
{
	return pool->data_off + bind->extent.granule * pool->pool.granule_bytes + bind->extent_off;
}

/*
 * Take the references of the first binds of the list that lie behind one another in the file
 * and in the window: one mapping does for all of them. 0 with the error when even the first fails.
 */
static uint32_t take_run(struct okv_embedded_window *window, const struct omnikv_bind *binds, uint32_t count,
			 int *error)
{
	struct okv_embedded_client *client = okv_embedded_client(window->window.client);
	struct okv_embedded_pool *pool = okv_embedded_pool(client->client.pool);
	bool is_rw = window->window.flags & OMNIKV_WINDOW_F_RW;
	uint32_t n;

	pthread_mutex_lock(&pool->lock);
	*error = okv_holds_reserve(&client->holds, count);
	for (n = 0; !*error && n < count; n++) {
		const struct omnikv_bind *bind = &binds[n];
		struct okv_hold *hold;

		if (n && (bind->window_off != bind[-1].window_off + bind[-1].bytes ||
			  file_off(pool, bind) != file_off(pool, &bind[-1]) + bind[-1].bytes))
			break;
		*error = pool->refs->bind_get(client, &bind->extent, is_rw);
		if (*error)
			break;
		hold = okv_holds_get(&client->holds, (uint32_t)bind->extent.granule, bind->extent.generation);
		hold->nr_binds++;
	}
	pthread_mutex_unlock(&pool->lock);
	return n;
}

static void drop_run(struct okv_embedded_window *window, const struct omnikv_bind *binds, uint32_t n)
{
	struct okv_embedded_client *client = okv_embedded_client(window->window.client);
	struct okv_embedded_pool *pool = okv_embedded_pool(client->client.pool);

	pthread_mutex_lock(&pool->lock);
	while (n--)
		put_extent_locked(pool, client, (uint32_t)binds[n].extent.granule);
	pthread_mutex_unlock(&pool->lock);
}

/* Map @n binds that take_run() put together. */
static int map_run(struct okv_embedded_window *window, const struct omnikv_bind *binds, uint32_t n)
{
	struct okv_embedded_pool *pool = okv_embedded_pool(window->window.client->pool);
	bool is_rw = window->window.flags & OMNIKV_WINDOW_F_RW;
	uint64_t off = file_off(pool, binds), bytes = 0;
	unsigned char *at = window->window.base + binds->window_off;
	int fd = is_rw || pool->fd_ro < 0 ? pool->fd : pool->fd_ro;
	uint32_t i;

	for (i = 0; i < n; i++)
		bytes += binds[i].bytes;
	if (pool->page_kind == OMNIKV_PAGES_HUGETLB &&
	    (off % OKV_HUGE_BYTES || bytes % OKV_HUGE_BYTES || (uintptr_t)at % OKV_HUGE_BYTES))
		return -EOPNOTSUPP;
	if (OKV_FAILPOINT("window.map"))
		return -ENOMEM;
	if (mmap(at, bytes, is_rw ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED | MAP_FIXED, fd,
		 (off_t)off) == MAP_FAILED)
		return -ENOMEM;
	for (i = 0; i < n; i++) {
		uint32_t idx = rec_new(window);
		struct bind_rec *rec = &window->recs[idx];

		rec->granule = (uint32_t)binds[i].extent.granule;
		rec->first = (uint32_t)(binds[i].window_off / PAGE_BYTES);
		rec->range = (uint32_t)(binds[i].bytes / PAGE_BYTES);
		rec->nr_pages = rec->range;
		rec->is_condemned = false;
		slots_set(window, rec->first, rec->range, idx + 1);
	}
	return 0;
}

/* Bound ranges are not inherited by fork. Neighbours in the list are handled by one call. */
static int keep_from_children(struct okv_embedded_window *window, const struct omnikv_bind *binds, uint32_t n)
{
	uint32_t i, j;

	for (i = 0; i < n; i = j) {
		uint64_t bytes = binds[i].bytes;

		for (j = i + 1; j < n && binds[j].window_off == binds[i].window_off + bytes; j++)
			bytes += binds[j].bytes;
		if (madvise(window->window.base + binds[i].window_off, bytes, MADV_DONTFORK))
			return -ENOMEM;
	}
	return 0;
}

int okv_embedded_window_bind(struct omnikv_window *base, const struct omnikv_bind *binds, uint32_t count,
			     uint32_t *nr_bound)
{
	struct okv_embedded_window *window = embedded_window(base);
	struct okv_embedded_client *client = okv_embedded_client(base->client);
	uint32_t done = 0, n;
	int ret;

	pthread_mutex_lock(&client->windows_lock);
	ret = spare_make_locked(client);
	if (!ret)
		ret = recs_reserve(window, count);
	while (!ret && done < count) {
		n = take_run(window, binds + done, count - done, &ret);
		if (n) {
			int error = map_run(window, binds + done, n);

			if (error) {
				drop_run(window, binds + done, n);
				ret = error;
				break;
			}
			error = keep_from_children(window, binds + done, n);
			if (error) {
				/* A mapping less than before the bind is one that the limit allows. */
				unbind_parts(window, binds[done].window_off / PAGE_BYTES,
					     (binds[done + n - 1].window_off + binds[done + n - 1].bytes -
					      binds[done].window_off) / PAGE_BYTES, 0);
				ret = error;
				break;
			}
		}
		done += n;
	}
	pthread_mutex_unlock(&client->windows_lock);
	*nr_bound = done;
	return ret;
}

void okv_windows_condemn_locked(struct okv_embedded_client *client, const struct omnikv_extent *exts, uint32_t count)
{
	struct okv_embedded_window *window;
	uint32_t i;

	/* Holds of the list say so while the windows are searched for their binds. */
	okv_holds_mark(&client->holds, exts, count, true);
	for (window = client->windows; window; window = window->next) {
		if (!(window->window.flags & OMNIKV_WINDOW_F_RW))
			continue;
		for (i = 0; i < window->nr_recs; i++) {
			struct bind_rec *rec = &window->recs[i];

			if (!rec->nr_pages || !okv_holds_find(&client->holds, rec->granule)->is_marked)
				continue;
			rec->is_condemned = true;
			window->nr_condemned++;
		}
	}
	okv_holds_mark(&client->holds, exts, count, false);
}

int okv_windows_execute_locked(struct okv_embedded_client *client)
{
	struct okv_embedded_window *window;
	int ret = 0, error;
	uint32_t i;

	for (window = client->windows; window; window = window->next) {
		for (i = 0; window->nr_condemned && i < window->nr_recs; i++) {
			if (!window->recs[i].nr_pages || !window->recs[i].is_condemned)
				continue;
			error = unbind_parts(window, window->recs[i].first, window->recs[i].range, i + 1);
			if (!error)
				continue;
			window->recs[i].is_condemned = false;
			window->nr_condemned--;
			ret = error;
		}
	}
	return ret;
}

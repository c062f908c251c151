// SPDX-License-Identifier: MIT
/*
 * SPILL and FETCH: operations of a ring between the pool and a spill store.
 *
 * The store waits for the disk, which the thread that runs the ring must not. So each ring that has
 * such operations has one more thread, which takes them first come, first served. What it is done
 * with is ended by the thread that runs the ring, as everything else. On "sim", where one thread is
 * all there is, they are done as they are started.
 *
 * A request that the disk does not answer in the store's time has its result (-ETIME, F_MORE), and
 * keeps its extents until the disk has nothing under way any more. Only the end of the ring stops
 * waiting for that; then they stay referenced for good.
 */
#include "ring.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "disjoint.h"
#include "failpoint.h"
#include "spill/spill.h"

#define CHUNK		64u		/* blocks between two looks at whether they are wanted still */
#define STUCK_NS	10000000	/* between two looks at a disk that does not answer */
#define END_TRIES	100u		/* of those, at the end of the ring */

/*
 * Life of a job:
 *
 *	QUEUED ---> RUNNING ---> DONE ---> freed
 *	   \            \---> STUCK --^
 *	    `--> freed (recalled)
 */
struct spill_job {
	struct spill_job	*next;
	struct okv_op		*op;
	_Atomic bool		is_withdrawn;	/* the rest need not be done */
	bool			is_told;	/* STUCK: its result is out */
	int			ret;		/* -ETIME: memory is in use until the disk is idle */
	int			*res;		/* [blocks] */
	uint32_t		*crc;		/* [pieces] */
};

struct okv_ring_spill {
	struct omnikv_ring	*ring;
	bool			is_inline;	/* no thread */
	pthread_t		thread;
	pthread_mutex_t		lock;
	pthread_cond_t		more;
	/* under lock */
	bool			is_stopping;
	struct spill_job	*queue;
	struct spill_job	*running;
	struct spill_job	*stuck;
	struct spill_job	*done;
};

/* ---- the work ------------------------------------------------------------------------------- */

static struct okv_store *store_of(const struct spill_job *job)
{
	return job->op->sqe.spill_io->spill->store;
}

static void job_free(struct spill_job *job)
{
	free(job->res);
	free(job->crc);
	free(job);
}

static struct spill_job *job_create(struct okv_op *op)
{
	struct spill_job *job = calloc(1, sizeof(*job));

	if (!job)
		return NULL;
	job->op = op;
	job->res = malloc(op->sqe.spill_io->nr_blocks * sizeof(*job->res));
	job->crc = calloc(op->sqe.nr_pieces, sizeof(*job->crc));
	if (job->res && job->crc)
		return job;
	job_free(job);
	return NULL;
}

static void append(struct spill_job **list, struct spill_job *job)
{
	while (*list)
		list = &(*list)->next;
	job->next = NULL;
	*list = job;
}

static void describe(const struct spill_job *job, uint32_t block, uint32_t piece, struct okv_record *rec, void **bufs)
{
	const struct omnikv_sqe *sqe = &job->op->sqe;
	const struct omnikv_spill_block *b = &sqe->spill_io->blocks[block];

	memset(rec, 0, sizeof(*rec));
	memcpy(rec->ns, sqe->spill_io->ns, sizeof(rec->ns));
	rec->key = b->key;
	rec->parent = b->parent;
	rec->position = b->position;
	rec->nr_tokens = b->nr_tokens;
	rec->nr_parts = b->nr_parts;
	for (uint32_t p = 0; p < b->nr_parts; p++) {
		const struct omnikv_piece *at = &sqe->pieces[piece + p];

		rec->parts[p].bytes = at->bytes;
		bufs[p] = job->op->ring->base + at->extent.granule * job->op->ring->granule_bytes + at->extent_off;
	}
}

/* 0 where no two pieces have bytes of the pool in common: the store knows by its address what a byte is for. -EINVAL, -ENOMEM. */
static int check_disjoint(const struct spill_job *job)
{
	const struct omnikv_sqe *sqe = &job->op->sqe;
	struct okv_place *places = malloc(sqe->nr_pieces * sizeof(*places));
	int ret;

	if (!places)
		return -ENOMEM;
	for (uint32_t i = 0; i < sqe->nr_pieces; i++) {
		places[i].start = sqe->pieces[i].extent.granule * job->op->ring->granule_bytes + sqe->pieces[i].extent_off;
		places[i].end = places[i].start + sqe->pieces[i].bytes;
	}
	ret = okv_places_are_disjoint(places, sqe->nr_pieces) ? 0 : -EINVAL;
	free(places);
	return ret;
}

static bool is_held(const struct spill_job *job, uint32_t piece, uint32_t nr)
{
	for (uint32_t p = piece; p < piece + nr; p++)
		if (!okv_op_is_held(job->op, p))
			return false;
	return true;
}

/* Store blocks [first, first + nr), whose pieces begin at @piece. 0 or -ETIME. */
static int put_chunk(struct spill_job *job, uint32_t first, uint32_t nr, uint32_t piece)
{
	const struct omnikv_spill_block *blocks = job->op->sqe.spill_io->blocks;
	struct okv_store_put puts[CHUNK];
	uint32_t of[CHUNK], nr_puts = 0;
	int ret;

	for (uint32_t i = first; i < first + nr; piece += blocks[i++].nr_parts) {
		struct okv_store_put *put = &puts[nr_puts];

		job->res[i] = -ESTALE;
		if (!is_held(job, piece, blocks[i].nr_parts))
			continue;
		describe(job, i, piece, &put->rec, (void **)put->bufs);
		for (uint32_t p = 0; p < blocks[i].nr_parts; p++)
			put->rec.parts[p].crc = job->op->sqe.crc[piece + p];
		of[nr_puts++] = i;
	}
	ret = okv_store_put(store_of(job), puts, nr_puts);
	for (uint32_t i = 0; i < nr_puts; i++)
		job->res[of[i]] = ret ? ret : puts[i].res;
	return ret;
}

static int get_chunk(struct spill_job *job, uint32_t first, uint32_t nr, uint32_t piece)
{
	const struct omnikv_spill_block *blocks = job->op->sqe.spill_io->blocks;
	uint32_t of[CHUNK], piece_of[CHUNK], nr_gets = 0;
	struct okv_store_get gets[CHUNK];
	int ret;

	for (uint32_t i = first; i < first + nr; piece += blocks[i++].nr_parts) {
		struct okv_store_get *get = &gets[nr_gets];
		struct okv_record want;

		job->res[i] = -ESTALE;
		if (!is_held(job, piece, blocks[i].nr_parts))
			continue;
		describe(job, i, piece, &want, get->bufs);
		job->res[i] = -ENOENT;
		if (!okv_store_find(store_of(job), want.ns, &want.key, &get->rec) || !okv_record_is_same(&get->rec, &want))
			continue;
		piece_of[nr_gets] = piece;
		of[nr_gets++] = i;
	}
	ret = okv_store_get(store_of(job), gets, nr_gets);
	for (uint32_t i = 0; i < nr_gets; i++) {
		job->res[of[i]] = ret ? ret : gets[i].res;
		for (uint32_t p = 0; p < gets[i].rec.nr_parts; p++)
			job->crc[piece_of[i] + p] = gets[i].rec.parts[p].crc;
	}
	return ret;
}

static void job_run(struct spill_job *job)
{
	const struct omnikv_spill_io *io = job->op->sqe.spill_io;
	bool is_put = job->op->sqe.opcode == OMNIKV_OP_SPILL;
	uint32_t i, nr, piece = 0;
	int error = is_put ? 0 : check_disjoint(job);

	for (i = 0; i < io->nr_blocks && !job->ret && !error; i += nr) {
		nr = io->nr_blocks - i < CHUNK ? io->nr_blocks - i : CHUNK;
		error = -OKV_FAILPOINT("ring.spill");
		if (error || atomic_load(&job->is_withdrawn))
			break;
		job->ret = is_put ? put_chunk(job, i, nr, piece) : get_chunk(job, i, nr, piece);
		for (uint32_t k = i; k < i + nr; k++)
			piece += io->blocks[k].nr_parts;
	}
	for (; i < io->nr_blocks; i++)
		job->res[i] = job->ret ? job->ret : error ? error : -ECANCELED;
}

/* By the thread that runs the ring: no byte of it moves any more. */
static void job_end(struct spill_job *job)
{
	const struct omnikv_spill_io *io = job->op->sqe.spill_io;
	struct okv_op *op = job->op;
	uint32_t piece = 0;

	for (uint32_t i = 0; i < io->nr_blocks; piece += io->blocks[i++].nr_parts) {
		if (job->res[i] && !op->error)
			op->error = job->res[i];
		for (uint32_t p = piece; !job->res[i] && p < piece + io->blocks[i].nr_parts; p++)
			okv_op_piece_moved(op, p, job->crc[p]);
	}
	job_free(job);
	okv_op_end(op);
}

/* ---- the thread ----------------------------------------------------------------------------- */

/* Inside the lock. */
static void tell(struct okv_ring_spill *spill)
{
	struct omnikv_ring *ring = spill->ring;

	/* Pairs with the look in okv_ring_has_news() before the worker sleeps. */
	atomic_store(&ring->has_spill_news, 1);
	ring->dev->ops->ring_submitted(ring);
}

/* Inside the lock: what was stuck and is so no more is done. */
static void unstick(struct okv_ring_spill *spill)
{
	struct spill_job **link = &spill->stuck, *job;

	while ((job = *link)) {
		if (!okv_store_is_idle(store_of(job))) {
			link = &job->next;
			continue;
		}
		*link = job->next;
		append(&spill->done, job);
		if (!spill->is_inline)
			tell(spill);
	}
}

static void wait_for_more(struct okv_ring_spill *spill)
{
	struct timespec until;

	if (!spill->stuck) {
		pthread_cond_wait(&spill->more, &spill->lock);
		return;
	}
	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += STUCK_NS;
	if (until.tv_nsec >= 1000000000) {
		until.tv_nsec -= 1000000000;
		until.tv_sec++;
	}
	pthread_cond_timedwait(&spill->more, &spill->lock, &until);
}

static void *spill_thread(void *arg)
{
	struct okv_ring_spill *spill = arg;
	struct spill_job *job;
	uint32_t nr_tries = 0;

	pthread_mutex_lock(&spill->lock);
	while (!spill->is_stopping || spill->queue || (spill->stuck && nr_tries++ < END_TRIES)) {
		unstick(spill);
		job = spill->queue;
		if (!job) {
			if (!spill->is_stopping || spill->stuck)
				wait_for_more(spill);
			continue;
		}
		spill->queue = job->next;
		spill->running = job;
		pthread_mutex_unlock(&spill->lock);
		job_run(job);
		pthread_mutex_lock(&spill->lock);
		spill->running = NULL;
		append(job->ret == -ETIME ? &spill->stuck : &spill->done, job);
		tell(spill);
	}
	pthread_mutex_unlock(&spill->lock);
	return NULL;
}

/* ---- the ring's side ------------------------------------------------------------------------ */

static int spill_create(struct omnikv_ring *ring)
{
	struct okv_ring_spill *spill = calloc(1, sizeof(*spill));
	pthread_condattr_t attr;
	int ret;

	if (!spill)
		return -ENOMEM;
	spill->ring = ring;
	spill->is_inline = ring->dev->ops == &okv_device_sim;
	pthread_mutex_init(&spill->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&spill->more, &attr);
	pthread_condattr_destroy(&attr);
	ret = spill->is_inline ? 0 : pthread_create(&spill->thread, NULL, spill_thread, spill);
	if (ret) {
		pthread_cond_destroy(&spill->more);
		pthread_mutex_destroy(&spill->lock);
		free(spill);
		return -ret;
	}
	ring->spill = spill;
	return 0;
}

void okv_spill_op_start(struct okv_op *op)
{
	struct omnikv_ring *ring = op->ring;
	struct okv_ring_spill *spill;
	struct spill_job *job = NULL;
	int ret = 0;

	if (!okv_op_begin(op)) {
		okv_op_end(op);
		return;
	}
	if (!ring->spill)
		ret = spill_create(ring);
	if (!ret) {
		job = job_create(op);
		ret = job ? 0 : -ENOMEM;
	}
	if (ret) {
		op->error = ret;
		okv_op_end(op);
		return;
	}
	spill = ring->spill;
	if (!spill->is_inline) {
		pthread_mutex_lock(&spill->lock);
		append(&spill->queue, job);
		pthread_cond_signal(&spill->more);
		pthread_mutex_unlock(&spill->lock);
		return;
	}
	job_run(job);
	if (job->ret != -ETIME) {
		job_end(job);
		return;
	}
	job->is_told = true;
	append(&spill->stuck, job);
	okv_op_post_more(op, -ETIME);
}

bool okv_spill_op_recall(struct okv_op *op)
{
	struct okv_ring_spill *spill = op->ring->spill;
	struct spill_job **link, *job;

	pthread_mutex_lock(&spill->lock);
	for (link = &spill->queue; *link && (*link)->op != op; link = &(*link)->next)
		;
	job = *link;
	if (job)
		*link = job->next;
	else if (spill->running && spill->running->op == op)
		atomic_store(&spill->running->is_withdrawn, true);
	pthread_mutex_unlock(&spill->lock);
	if (!job)
		return false;
	job_free(job);
	return true;
}

bool okv_ring_spill_reap(struct omnikv_ring *ring)
{
	struct okv_ring_spill *spill = ring->spill;
	struct spill_job *done, *job;
	bool did;

	if (!spill || (!spill->is_inline && !atomic_load_explicit(&ring->has_spill_news, memory_order_acquire)))
		return false;
	pthread_mutex_lock(&spill->lock);
	atomic_store(&ring->has_spill_news, 0);
	if (spill->is_inline)
		unstick(spill);
	done = spill->done;
	spill->done = NULL;
	did = done != NULL;
	/* Only this thread takes them from the list that is told, and the other one never looks at the result. */
	for (job = spill->stuck; job; job = job->next) {
		did |= !job->is_told;
		if (!job->is_told)
			okv_op_post_more(job->op, -ETIME);
		job->is_told = true;
	}
	pthread_mutex_unlock(&spill->lock);
	while ((job = done)) {
		done = job->next;
		job_end(job);
	}
	return did;
}

void okv_ring_spill_exit(struct omnikv_ring *ring)
{
	struct okv_ring_spill *spill = ring->spill;
	struct spill_job *job;

	if (!spill)
		return;
	pthread_mutex_lock(&spill->lock);
	spill->is_stopping = true;
	pthread_cond_signal(&spill->more);
	pthread_mutex_unlock(&spill->lock);
	if (!spill->is_inline)
		pthread_join(spill->thread, NULL);
	for (uint32_t i = 0; spill->is_inline && spill->stuck && i < END_TRIES; i++) {
		struct timespec ts = { .tv_nsec = STUCK_NS };

		unstick(spill);
		if (spill->stuck)
			nanosleep(&ts, NULL);
	}
	while ((job = spill->done)) {
		spill->done = job->next;
		job_end(job);
	}
	while ((job = spill->stuck)) {
		spill->stuck = job->next;
		okv_op_abandon(job->op);
		job_free(job);
	}
	pthread_cond_destroy(&spill->more);
	pthread_mutex_destroy(&spill->lock);
	free(spill);
	ring->spill = NULL;
}

// SPDX-License-Identifier: MIT
/*
 * Fibres for the threads of a CTA. See run.h.
 *
 * A fibre runs threads one after another until one of them waits; then it belongs to that thread, and another fibre
 * goes on with those that have not begun. So a kernel without barriers needs one fibre, and one with them as many as
 * there are threads. When nothing can run, either all wait at one place, and go on, or the kernel is wrong.
 */
#include "run.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "../kernels.h"

#if defined(__SANITIZE_ADDRESS__)
#define HAS_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HAS_ASAN 1
#endif
#endif
#ifdef HAS_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

#define STACK_BYTES	((size_t)256 << 10)
#define GUARD_BYTES	((size_t)4096)
#define WARP_LANES	32u
#define CTA_THREADS_MAX	1024u

enum thread_state { NOT_BEGUN, RUNS, CAN_RUN, WAITS_FOR_CTA, WAITS_FOR_WARP, ENDED };

struct thread {
	enum thread_state	state;
	struct fibre		*fibre;		/* that it waits on */
	const char		*file;		/* where it waits */
	int			line;
	uint32_t		mask;
	uint32_t		value;		/* published, then read */
	uint32_t		from;
	uint32_t		nr_barriers;	/* met so far */
};

struct fibre {
	ucontext_t	context;
	struct fibre	*next;		/* of those that run nothing */
	struct fibre	*next_of_all;
	void		*stack;
	void		*fake_stack;	/* the address sanitizer's */
};

/* One launch; under turn. */
struct run {
	struct okv_shim	*shim;
	void		(*fn)(const void *args);
	const void	*args;
	uint32_t	nr_threads;
	uint32_t	nr_begun;
	uint32_t	current;
	uint64_t	random;
	ucontext_t	scheduler;
	void		*scheduler_fake_stack;
	const void	*scheduler_stack;
	size_t		scheduler_stack_bytes;
	struct fibre	*active;
	struct fibre	*idle;
	struct fibre	*all;
	struct thread	threads[CTA_THREADS_MAX];
	uint16_t	order[CTA_THREADS_MAX];
};

struct okv_shim_place okv_shim_place;

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static struct run *run;
/* Idle fibres of launches that went well, for the next one: at most as many as a CTA has threads. */
static struct fibre *kept, *kept_all;

/* Where cuda.h puts shared memory; absent where no kernel has any. */
extern unsigned char shared_begin[] __asm__("__start_okv_shared") __attribute__((weak, visibility("hidden")));
extern unsigned char shared_end[] __asm__("__stop_okv_shared") __attribute__((weak, visibility("hidden")));

/* ---- switching ---------------------------------------------------------------------------- */

static void to_fibre(struct fibre *fibre)
{
	run->active = fibre;
#ifdef HAS_ASAN
	__sanitizer_start_switch_fiber(&run->scheduler_fake_stack, (char *)fibre->stack + GUARD_BYTES, STACK_BYTES);
#endif
	swapcontext(&run->scheduler, &fibre->context);
#ifdef HAS_ASAN
	__sanitizer_finish_switch_fiber(run->scheduler_fake_stack, NULL, NULL);
#endif
}

static void to_scheduler(void)
{
	struct fibre *fibre = run->active;

#ifdef HAS_ASAN
	__sanitizer_start_switch_fiber(&fibre->fake_stack, run->scheduler_stack, run->scheduler_stack_bytes);
#endif
	swapcontext(&fibre->context, &run->scheduler);
#ifdef HAS_ASAN
	__sanitizer_finish_switch_fiber(fibre->fake_stack, NULL, NULL);
#endif
}

static void enter_thread(uint32_t idx)
{
	run->current = idx;
	run->threads[idx].state = RUNS;
	okv_shim_place.thread.x = idx;
}

static void fibre_main(void)
{
#ifdef HAS_ASAN
	__sanitizer_finish_switch_fiber(NULL, &run->scheduler_stack, &run->scheduler_stack_bytes);
#endif
	for (;;) {
		while (run->nr_begun < run->nr_threads) {
			enter_thread(run->order[run->nr_begun++]);
			run->fn(run->args);
			run->threads[run->current].state = ENDED;
		}
		run->active->next = run->idle;
		run->idle = run->active;
		to_scheduler();
	}
}

static struct fibre *fibre_get(void)
{
	struct fibre *fibre = run->idle;

	if (fibre) {
		run->idle = fibre->next;
		return fibre;
	}
	fibre = calloc(1, sizeof(*fibre));
	if (!fibre)
		return NULL;
	fibre->stack = mmap(NULL, GUARD_BYTES + STACK_BYTES, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (fibre->stack == MAP_FAILED) {
		free(fibre);
		return NULL;
	}
	mprotect(fibre->stack, GUARD_BYTES, PROT_NONE);
	getcontext(&fibre->context);
	fibre->context.uc_stack.ss_sp = (char *)fibre->stack + GUARD_BYTES;
	fibre->context.uc_stack.ss_size = STACK_BYTES;
	makecontext(&fibre->context, fibre_main, 0);
	fibre->next_of_all = run->all;
	run->all = fibre;
	return fibre;
}

static void fibres_free(void)
{
	while (run->all) {
		struct fibre *fibre = run->all;

		run->all = fibre->next_of_all;
		munmap(fibre->stack, GUARD_BYTES + STACK_BYTES);
		free(fibre);
	}
}

/* ---- waiting ------------------------------------------------------------------------------ */

static void wait_here(enum thread_state state, const char *file, int line)
{
	struct thread *thread = &run->threads[run->current];

	thread->state = state;
	thread->file = file;
	thread->line = line;
	thread->fibre = run->active;
	if (run->shim)
		run->shim->nr_waits++;
	to_scheduler();
}

void okv_shim_barrier(const char *file, int line)
{
	uint32_t nr = ++run->threads[run->current].nr_barriers;

	if (!run->shim || nr != run->shim->missing)
		wait_here(WAITS_FOR_CTA, file, line);
}

uint32_t okv_shim_shuffle(const char *file, int line, uint32_t mask, uint32_t value, uint32_t from)
{
	struct thread *thread = &run->threads[run->current];

	thread->mask = mask;
	thread->value = value;
	thread->from = from;
	wait_here(WAITS_FOR_WARP, file, line);
	return thread->value;
}

static bool is_at(const struct thread *thread, const struct thread *first)
{
	return thread->state == first->state && thread->line == first->line && !strcmp(thread->file, first->file);
}

/* Let a warp go on whose lanes have all come to one operation. */
static bool warp_release(uint32_t first, uint32_t end)
{
	uint32_t values[WARP_LANES] = { 0 }, mask = 0, i;
	const struct thread *lead = NULL;

	for (i = first; i < end; i++) {
		if (run->threads[i].state == WAITS_FOR_WARP) {
			lead = &run->threads[i];
			break;
		}
	}
	if (!lead)
		return false;
	for (i = first; i < end; i++) {
		struct thread *thread = &run->threads[i];

		if (!(lead->mask >> (i - first) & 1))
			continue;
		if (!is_at(thread, lead) || thread->mask != lead->mask)
			return false;
		mask |= 1u << (i - first);
		values[i - first] = thread->value;
	}
	/* Whoever calls must be one of those that it names. */
	if (!(lead->mask >> (lead - &run->threads[first]) & 1))
		return false;
	for (i = first; i < end; i++) {
		struct thread *thread = &run->threads[i];

		if (!(mask >> (i - first) & 1))
			continue;
		/* A lane that is not there gives what it likes, here what no test expects. */
		if (thread->from < WARP_LANES)
			thread->value = mask >> thread->from & 1 ? values[thread->from] : 0xa5a5a5a5u;
		thread->state = CAN_RUN;
	}
	return true;
}

static bool cta_release(void)
{
	uint32_t i;

	for (i = 0; i < run->nr_threads; i++) {
		if (run->threads[i].state != WAITS_FOR_CTA || !is_at(&run->threads[i], &run->threads[0]))
			return false;
	}
	for (i = 0; i < run->nr_threads; i++)
		run->threads[i].state = CAN_RUN;
	return true;
}

/* Returns whether anything may go on; false too when all have ended. */
static bool release(void)
{
	bool did = false;
	uint32_t first;

	for (first = 0; first < run->nr_threads; first += WARP_LANES) {
		uint32_t end = first + WARP_LANES < run->nr_threads ? first + WARP_LANES : run->nr_threads;

		did |= warp_release(first, end);
	}
	return cta_release() || did;
}

static const char *state_text(const struct thread *thread)
{
	return thread->state == ENDED ? "has ended" : thread->state == WAITS_FOR_CTA ? "waits for its CTA" :
	       "waits for its warp";
}

/* -EDEADLK where a thread has not ended. */
static int verdict(void)
{
	const struct thread *stuck = NULL, *other = NULL;
	uint32_t i;

	for (i = 0; i < run->nr_threads && !stuck; i++) {
		if (run->threads[i].state != ENDED)
			stuck = &run->threads[i];
	}
	if (!stuck)
		return 0;
	for (i = 0; i < run->nr_threads && !other; i++) {
		if (!is_at(&run->threads[i], stuck))
			other = &run->threads[i];
	}
	if (run->shim && other)
		snprintf(run->shim->divergence, sizeof(run->shim->divergence),
			 "barrier divergence: thread %d %s at line %d, thread %d %s", (int)(stuck - run->threads),
			 state_text(stuck), stuck->line, (int)(other - run->threads), state_text(other));
	return -EDEADLK;
}

/* ---- CTAs --------------------------------------------------------------------------------- */

static uint32_t random_below(uint32_t limit)
{
	run->random = run->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
	return (uint32_t)((run->random >> 33) % limit);
}

static void order_make(void)
{
	enum okv_shim_order order = run->shim ? run->shim->order : OKV_SHIM_FORWARD;
	uint32_t i;

	for (i = 0; i < run->nr_threads; i++)
		run->order[i] = (uint16_t)(order == OKV_SHIM_BACKWARD ? run->nr_threads - 1 - i : i);
	for (i = run->nr_threads; order == OKV_SHIM_RANDOM && i > 1; i--) {
		uint32_t other = random_below(i);
		uint16_t swap = run->order[i - 1];

		run->order[i - 1] = run->order[other];
		run->order[other] = swap;
	}
}

static int cta_run(void)
{
	uint32_t i;

	if (shared_begin)
		memset(shared_begin, 0xa5, (size_t)(shared_end - shared_begin));
	memset(run->threads, 0, run->nr_threads * sizeof(*run->threads));
	run->nr_begun = 0;
	order_make();
	for (;;) {
		while (run->nr_begun < run->nr_threads) {
			struct fibre *fibre = fibre_get();

			if (!fibre)
				return -ENOMEM;
			to_fibre(fibre);
		}
		for (i = 0; i < run->nr_threads; i++) {
			struct thread *thread = &run->threads[run->order[i]];

			if (thread->state == CAN_RUN) {
				enter_thread(run->order[i]);
				to_fibre(thread->fibre);
			}
		}
		if (!release())
			return verdict();
	}
}

int okv_shim_run(struct okv_shim *shim, uint32_t nr_ctas, uint32_t cta_threads, void (*fn)(const void *args),
		 const void *args)
{
	struct run *mine;
	int ret = 0;
	uint32_t i;

	if (!cta_threads || cta_threads > CTA_THREADS_MAX)
		return -EINVAL;
	mine = calloc(1, sizeof(*mine));
	if (!mine)
		return -ENOMEM;
	mine->shim = shim;
	mine->fn = fn;
	mine->args = args;
	mine->nr_threads = cta_threads;
	mine->random = shim ? shim->seed : 0;

	pthread_mutex_lock(&turn);
	run = mine;
	run->idle = kept;
	run->all = kept_all;
	kept = kept_all = NULL;
	okv_shim_place.cta_threads = (struct okv_shim_index) { cta_threads, 1, 1 };
	okv_shim_place.nr_ctas = (struct okv_shim_index) { nr_ctas, 1, 1 };
	for (i = 0; i < nr_ctas && !ret; i++) {
		okv_shim_place.cta = (struct okv_shim_index) { i, 0, 0 };
		ret = cta_run();
	}
	/* All are idle then, in whatever order. */
	if (!ret) {
		kept = run->idle;
		kept_all = run->all;
	} else {
		fibres_free();
	}
	run = NULL;
	pthread_mutex_unlock(&turn);
	free(mine);
	return ret;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Turns of several processes; see turns.h.
 *
 * The turn is a word that only ever grows by one, from the request that has it to the next, so that
 * passing it twice (by a process, and by who saw it die) passes it once.
 */
#include "turns.h"

#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "clock.h"
#include "cmd.h"

struct okv_turns *okv_turns_create(uint64_t nr_requests, uint32_t nr_clients)
{
	uint64_t bytes = sizeof(struct okv_turns) + nr_requests * sizeof(uint64_t);
	struct okv_turns *turns = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (turns == MAP_FAILED)
		return NULL;
	turns->bytes = bytes;
	turns->nr_requests = nr_requests;
	turns->nr_clients = nr_clients;
	for (uint32_t i = 0; i < nr_clients; i++)
		atomic_store(&turns->slots[i].next_request, i);
	return turns;
}

void okv_turns_destroy(struct okv_turns *turns)
{
	if (turns)
		munmap(turns, turns->bytes);
}

int okv_turns_wait(struct okv_turns *turns, uint64_t request, uint64_t timeout_ns)
{
	uint64_t deadline_ns = okv_monotonic_ns() + timeout_ns, now_ns;
	uint32_t turn;

	while ((turn = atomic_load(&turns->turn)) < request) {
		struct timespec ts;

		now_ns = okv_monotonic_ns();
		if (now_ns >= deadline_ns)
			return -ETIME;
		ts.tv_sec = (deadline_ns - now_ns) / 1000000000u;
		ts.tv_nsec = (deadline_ns - now_ns) % 1000000000u;
		syscall(SYS_futex, &turns->turn, FUTEX_WAIT, turn, &ts, NULL, 0);
	}
	return 0;
}

void okv_turns_pass(struct okv_turns *turns, uint64_t request)
{
	uint32_t turn = (uint32_t)request;

	if (atomic_compare_exchange_strong(&turns->turn, &turn, turn + 1))
		syscall(SYS_futex, &turns->turn, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

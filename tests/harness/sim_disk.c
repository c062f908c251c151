// SPDX-License-Identifier: GPL-2.0-only
/*
 * A disk in memory that can lose power and fail; see sim_disk.h.
 * One thread at a time, as any disk.
 */
#include "tests/harness/sim_disk.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct sim_disk *sim_of(struct okv_disk *disk)
{
	return (struct sim_disk *)disk;
}

static void *must(void *mem)
{
	if (!mem) {
		fputs("sim_disk: no memory\n", stderr);
		abort();
	}
	return mem;
}

static void push(struct sim_entry **list, uint32_t *nr, uint32_t *room, bool is_sync, uint64_t off, const void *data,
		 uint64_t bytes)
{
	struct sim_entry *entry;

	if (*nr == *room) {
		*room = *room ? 2 * *room : 64;
		*list = must(realloc(*list, *room * sizeof(**list)));
	}
	entry = &(*list)[(*nr)++];
	*entry = (struct sim_entry){ .is_sync = is_sync, .off = off, .bytes = bytes };
	if (bytes) {
		entry->data = must(malloc(bytes));
		memcpy(entry->data, data, bytes);
	}
}

void sim_disk_poke(struct sim_disk *sim, uint64_t off, const void *data, uint64_t bytes)
{
	if (sim->is_undoing)
		push(&sim->undo, &sim->nr_undo, &sim->undo_room, false, off, sim->base + off, bytes);
	memcpy(sim->base + off, data, bytes);
}

void sim_disk_undo(struct sim_disk *sim)
{
	while (sim->nr_undo) {
		struct sim_entry *entry = &sim->undo[--sim->nr_undo];

		memcpy(sim->base + entry->off, entry->data, entry->bytes);
		free(entry->data);
	}
}

/* The error of this call, if it is one that fails. */
static int next_error(struct sim_disk *sim)
{
	uint64_t nr = ++sim->nr_calls;

	if (!sim->fail_nth || nr < sim->fail_nth)
		return 0;
	if (sim->fail_times != UINT32_MAX && nr >= sim->fail_nth + sim->fail_times)
		return 0;
	return sim->fail_error;
}

static int sim_run(struct okv_disk *disk, struct okv_disk_io *ios, uint32_t nr, uint64_t deadline_ns)
{
	struct sim_disk *sim = sim_of(disk);

	(void)deadline_ns;
	sim->now_ns += 1000;
	if (sim->stick_nth && !--sim->stick_nth)
		sim->is_stuck = true;
	if (sim->is_stuck)
		return -ETIME;
	for (uint32_t i = 0; i < nr; i++) {
		struct okv_disk_io *io = &ios[i];
		uint64_t there;

		if (io->begin)
			io->begin(io->opaque, io);
		if (io->off % 4096 || io->bytes % 4096 || !io->bytes || (uintptr_t)io->buf % 4096) {
			fprintf(stderr, "sim_disk: a request that is not of whole pages: %llu + %llu\n",
				(unsigned long long)io->off, (unsigned long long)io->bytes);
			abort();
		}
		io->res = next_error(sim);
		if (io->res) {
			/* What a failed request has done is not known: half of it. */
			if (io->is_write && io->off + io->bytes / 2 <= sim->bytes) {
				sim_disk_poke(sim, io->off, io->buf, io->bytes / 2);
				if (sim->is_logging)
					push(&sim->journal, &sim->nr_entries, &sim->room, false, io->off, io->buf, io->bytes / 2);
			} else if (!io->is_write) {
				memset(io->buf, 0xee, io->bytes / 2);
			}
			continue;
		}
		if (io->is_write) {
			if (io->off + io->bytes > sim->bytes) {
				io->res = -ENOSPC;
				continue;
			}
			sim_disk_poke(sim, io->off, io->buf, io->bytes);
			if (sim->is_logging)
				push(&sim->journal, &sim->nr_entries, &sim->room, false, io->off, io->buf, io->bytes);
			if (io->done)
				io->done(io->opaque, io);
			continue;
		}
		there = io->off < sim->bytes ? sim->bytes - io->off : 0;
		if (there > io->bytes)
			there = io->bytes;
		memcpy(io->buf, sim->base + io->off, there);
		memset((uint8_t *)io->buf + there, 0, io->bytes - there);
		if (io->done)
			io->done(io->opaque, io);
	}
	return 0;
}

static int sim_sync(struct okv_disk *disk)
{
	struct sim_disk *sim = sim_of(disk);
	int ret = next_error(sim);

	if (!ret && sim->is_logging)
		push(&sim->journal, &sim->nr_entries, &sim->room, true, 0, NULL, 0);
	return ret;
}

static int sim_reserve(struct okv_disk *disk, uint64_t off, uint64_t bytes)
{
	struct sim_disk *sim = sim_of(disk);
	int ret = next_error(sim);

	return ret ? ret : off + bytes > sim->bytes ? -ENOSPC : 0;
}

static void sim_discard(struct okv_disk *disk, uint64_t off, uint64_t bytes)
{
	(void)disk;
	(void)off;
	(void)bytes;
}

static uint64_t sim_free_bytes(struct okv_disk *disk)
{
	return sim_of(disk)->free_bytes;
}

static uint64_t sim_bytes(struct okv_disk *disk)
{
	return sim_of(disk)->bytes;
}

static bool sim_is_idle(struct okv_disk *disk)
{
	return !sim_of(disk)->is_stuck;
}

static uint64_t sim_now_ns(struct okv_disk *disk)
{
	return sim_of(disk)->now_ns += 100;
}

static void sim_close(struct okv_disk *disk)
{
	(void)disk;
}

static const struct okv_disk_ops sim_ops = {
	.run = sim_run,
	.sync = sim_sync,
	.reserve = sim_reserve,
	.discard = sim_discard,
	.free_bytes = sim_free_bytes,
	.bytes = sim_bytes,
	.is_idle = sim_is_idle,
	.now_ns = sim_now_ns,
	.close = sim_close,
};

void sim_disk_init(struct sim_disk *sim, uint64_t bytes)
{
	memset(sim, 0, sizeof(*sim));
	sim->disk.ops = &sim_ops;
	sim->base = must(calloc(1, bytes));
	sim->bytes = bytes;
	sim->free_bytes = UINT64_MAX / 2;
}

void sim_disk_fini(struct sim_disk *sim)
{
	for (uint32_t i = 0; i < sim->nr_entries; i++)
		free(sim->journal[i].data);
	for (uint32_t i = 0; i < sim->nr_undo; i++)
		free(sim->undo[i].data);
	free(sim->journal);
	free(sim->undo);
	free(sim->base);
}

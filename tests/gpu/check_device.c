// SPDX-License-Identifier: GPL-2.0-only
/*
 * The device "cuda" under rings, streams, events and graphs, every byte compared: what the unit tests show on a driver
 * of their own, on whichever driver there is. HBM is looked at only by moving it back.
 *
 *     check_device [ROUNDS]    prints one line a check, and "ok"
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../harness/kernel_case.h"
#include "crc32c.h"
#include "device_cuda.h"
#include <omnikv.h>

#define NR_PIECES	600
#define GRANULES	17
#define EXTENT_BYTES	(GRANULES * 4096u)
#define WAIT_NS		(UINT64_C(30) * 1000000000)

struct world {
	struct omnikv_pool	*pool;
	struct omnikv_client	*client;
	struct omnikv_device	*dev;
	struct omnikv_stream	*stream;
	struct omnikv_ring	*ring;
	struct omnikv_hbm	*hbm;
	struct omnikv_extent	from[NR_PIECES], to[NR_PIECES];
	struct omnikv_piece	pieces[NR_PIECES], copies[NR_PIECES], back[NR_PIECES];
	uint32_t		crc[NR_PIECES];
	uint64_t		bytes;		/* of all pieces */
};

static void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	exit(1);
}

static void must(int ret, const char *what)
{
	if (ret)
		fail("%s: %s", what, strerror(ret < 0 ? -ret : ret));
}

static unsigned char byte_of(uint64_t seed, uint64_t off)
{
	uint64_t x = (seed + off / 8) * UINT64_C(0x9e3779b97f4a7c15);

	return (unsigned char)((x ^ x >> 29) >> off % 8 * 8);
}

static void fill(struct world *w, uint64_t seed)
{
	uint32_t i, k;

	for (i = 0; i < NR_PIECES; i++) {
		unsigned char *at = omnikv_pool_addr(w->pool, &w->from[i]);

		for (k = 0; k < EXTENT_BYTES; k++)
			at[k] = byte_of(seed + i * 1000003u, k);
		memset(omnikv_pool_addr(w->pool, &w->to[i]), 0xa5, EXTENT_BYTES);
	}
}

/* Did every piece arrive, and nothing beside it? */
static void compare(struct world *w, const char *what)
{
	uint32_t i, k;

	for (i = 0; i < NR_PIECES; i++) {
		const unsigned char *a = (unsigned char *)omnikv_pool_addr(w->pool, &w->from[i]) + w->pieces[i].extent_off;
		const unsigned char *b = omnikv_pool_addr(w->pool, &w->to[i]);

		for (k = 0; k < EXTENT_BYTES; k++) {
			uint64_t off = k - w->back[i].extent_off;
			bool is_in = k >= w->back[i].extent_off && off < w->back[i].bytes;

			if (b[k] != (is_in ? a[off] : 0xa5))
				fail("%s: piece %u of %llu bytes: byte %u is wrong", what, i, (unsigned long long)w->back[i].bytes, k);
		}
	}
}

static void pieces_make(struct world *w, uint64_t seed)
{
	uint64_t off = 0;
	uint32_t i;

	for (i = 0; i < NR_PIECES; i++) {
		uint64_t bytes = 1 + case_below(&seed, i % 7 ? 3000 : 60000);

		if (i % 3 == 0)
			bytes = (bytes + 127) / 128 * 128;
		off = (off + 15) / 16 * 16 + (i % 5 ? 0 : case_below(&seed, 16));
		w->pieces[i] = (struct omnikv_piece) { w->from[i], i % 2 ? case_below(&seed, EXTENT_BYTES - (uint32_t)bytes) : 0, off, bytes };
		off += bytes;
	}
	w->bytes = 0;
	for (i = 0; i < NR_PIECES; i++) {
		uint64_t bytes = w->pieces[i].bytes;

		w->bytes += bytes;
		w->copies[i] = (struct omnikv_piece) { { 0 }, w->pieces[i].device_off, off + w->pieces[i].device_off, bytes };
		w->back[i] = (struct omnikv_piece) { w->to[i], case_below(&seed, EXTENT_BYTES - (uint32_t)bytes), w->copies[i].device_off,
						     bytes };
	}
	if (2 * off > omnikv_hbm_bytes(w->hbm))
		fail("the case is too large");
}

static void expect(struct world *w, uint64_t user_data, int64_t res, const char *what)
{
	struct omnikv_cqe *cqe;

	must(omnikv_wait_cqe(w->ring, &cqe, WAIT_NS), what);
	if (cqe->user_data != user_data || cqe->res != res)
		fail("%s: result %lld of operation %llu, expected %lld of %llu", what, (long long)cqe->res,
		     (unsigned long long)cqe->user_data, (long long)res, (unsigned long long)user_data);
	omnikv_cqe_seen(w->ring, cqe);
}

static void submit(struct world *w)
{
	int ret = omnikv_submit(w->ring);

	if (ret < 0)
		must(ret, "omnikv_submit");
}

static void world_open(struct world *w, const char *path)
{
	struct omnikv_error err = { "" };
	int ret;

	memset(w, 0, sizeof(*w));
	if (path)
		setenv("OMNIKV_CUDA_PATH", path, 1);
	if (omnikv_pool_open("256M", NULL, &w->pool, &err))
		fail("pool: %s", err.text);
	must(omnikv_client_open(w->pool, OMNIKV_CLIENT_F_MANAGER, &w->client), "client");
	ret = omnikv_device_open("cuda", NULL, &w->dev, &err);
	unsetenv("OMNIKV_CUDA_PATH");
	if (ret) {
		printf("%s\n", err.text);
		exit(4);
	}
	must(omnikv_stream_create(w->dev, &w->stream), "stream");
	if (omnikv_ring_init(w->client, w->dev, NULL, &w->ring, &err))
		fail("ring: %s", err.text);
	must(omnikv_hbm_create(w->dev, 64 << 20, &w->hbm), "hbm");
	must(omnikv_extent_alloc(w->client, GRANULES, NR_PIECES, NULL, 0, w->from), "extents");
	must(omnikv_extent_alloc(w->client, GRANULES, NR_PIECES, NULL, 0, w->to), "extents");
}

static void world_close(struct world *w)
{
	must(omnikv_extent_free(w->client, w->from, NR_PIECES), "free");
	must(omnikv_extent_free(w->client, w->to, NR_PIECES), "free");
	omnikv_ring_exit(w->ring);
	must(omnikv_hbm_destroy(w->hbm), "hbm destroy");
	omnikv_stream_destroy(w->stream);
	omnikv_device_close(w->dev);
	omnikv_client_close(w->client);
	omnikv_pool_close(w->pool);
}

/* Pool to HBM, within HBM, and back, with sums on the way. */
static void check_path(const char *path, int rounds)
{
	struct omnikv_sqe *sqe;
	struct world w;
	int round;
	uint32_t i;

	world_open(&w, path);
	for (round = 0; round < rounds; round++) {
		fill(&w, (uint64_t)round * 77);
		pieces_make(&w, (uint64_t)round + 5);
		sqe = omnikv_get_sqe(w.ring);
		omnikv_prep_load(sqe, w.hbm, w.pieces, NR_PIECES);
		sqe->crc = w.crc;
		sqe->flags = OMNIKV_SQE_F_LINK;
		sqe->user_data = 1;
		sqe = omnikv_get_sqe(w.ring);
		omnikv_prep_copy(sqe, w.hbm, w.copies, NR_PIECES);
		sqe->flags = OMNIKV_SQE_F_LINK;
		sqe->user_data = 2;
		sqe = omnikv_get_sqe(w.ring);
		omnikv_prep_store(sqe, w.hbm, w.back, NR_PIECES);
		sqe->user_data = 3;
		submit(&w);
		expect(&w, 1, (int64_t)w.bytes, "load");
		for (i = 0; i < NR_PIECES; i++) {
			const void *at = (unsigned char *)omnikv_pool_addr(w.pool, &w.from[i]) + w.pieces[i].extent_off;

			if (w.crc[i] != okv_crc32c(at, w.pieces[i].bytes))
				fail("load: the sum of piece %u is wrong", i);
		}
		expect(&w, 2, (int64_t)w.bytes, "copy");
		expect(&w, 3, (int64_t)w.bytes, "store");
		compare(&w, path ? path : "chosen path");
	}
	world_close(&w);
	printf("# %s: %d rounds of %d pieces there, within and back\n", path ? path : "chosen path", rounds, NR_PIECES);
}

/* A load, a stream behind it, a copy behind that, a store behind all: as a layer of the pipeline. */
static void check_events(int rounds)
{
	struct omnikv_event *loaded, *computed, *copied;
	struct omnikv_sqe *sqe;
	struct world w;
	int round;

	world_open(&w, NULL);
	must(omnikv_event_create(w.dev, &loaded), "event");
	must(omnikv_event_create(w.dev, &computed), "event");
	must(omnikv_event_create(w.dev, &copied), "event");
	pieces_make(&w, 9);
	for (round = 0; round < rounds; round++) {
		omnikv_event_reset(loaded);
		omnikv_event_reset(computed);
		omnikv_event_reset(copied);
		fill(&w, (uint64_t)round * 13);
		/* Those that wait come first: order is the events'. */
		sqe = omnikv_get_sqe(w.ring);
		omnikv_prep_store(sqe, w.hbm, w.back, NR_PIECES);
		sqe->wait = copied;
		sqe->user_data = 3;
		sqe = omnikv_get_sqe(w.ring);
		omnikv_prep_copy(sqe, w.hbm, w.copies, NR_PIECES);
		sqe->wait = computed;
		sqe->signal = copied;
		sqe->user_data = 2;
		submit(&w);
		must(omnikv_stream_wait(w.stream, loaded), "stream wait");
		must(omnikv_stream_record(w.stream, computed), "stream record");
		if (omnikv_event_query(computed))
			fail("an event fired before what it is behind");
		sqe = omnikv_get_sqe(w.ring);
		omnikv_prep_load(sqe, w.hbm, w.pieces, NR_PIECES);
		sqe->signal = loaded;
		sqe->user_data = 1;
		submit(&w);
		expect(&w, 1, (int64_t)w.bytes, "load");
		expect(&w, 2, (int64_t)w.bytes, "copy");
		expect(&w, 3, (int64_t)w.bytes, "store");
		must(omnikv_stream_sync(w.stream, WAIT_NS), "sync");
		compare(&w, "behind events");
	}
	/* What never fires is withdrawn at its deadline. */
	omnikv_event_reset(loaded);
	sqe = omnikv_get_sqe(w.ring);
	omnikv_prep_load(sqe, w.hbm, w.pieces, NR_PIECES);
	sqe->wait = loaded;
	sqe->deadline_ns = 20000000;
	submit(&w);
	expect(&w, 0, -ETIME, "deadline");
	omnikv_event_destroy(loaded);
	omnikv_event_destroy(computed);
	omnikv_event_destroy(copied);
	world_close(&w);
	printf("# events: %d rounds of load, stream, copy, store\n", rounds);
}

/* One graph, replayed: each replay's copy is of its own load. */
static void check_graph(int rounds)
{
	struct omnikv_event *loaded, *computed;
	struct omnikv_graph *graph;
	struct omnikv_sqe *sqe;
	const struct okv_cuda_driver *drv;
	void *native, *captured = NULL, *exec = NULL;
	struct world w;
	int round, ret;

	world_open(&w, NULL);
	ret = omnikv_graph_create(w.dev, 10 * UINT64_C(1000000000), &graph);
	if (ret == -EOPNOTSUPP) {
		printf("# graphs: not without the kernels\n");
		world_close(&w);
		return;
	}
	must(ret, "graph");
	must(omnikv_event_create(w.dev, &loaded), "event");
	must(omnikv_event_create(w.dev, &computed), "event");
	drv = &okv_cuda_of(w.dev)->drv;
	native = omnikv_stream_native(w.stream);
	must(okv_cuda_enter(w.dev), "context");
	must(drv->cuStreamBeginCapture(native, OKV_CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), "capture");
	must(omnikv_graph_wait(graph, w.stream, loaded), "graph wait");
	must(omnikv_graph_record(graph, w.stream, computed), "graph record");
	must(drv->cuStreamEndCapture(native, &captured), "capture");
	must(drv->cuGraphInstantiateWithFlags(&exec, captured, 0), "instantiate");
	pieces_make(&w, 21);
	for (round = 0; round < rounds; round++) {
		omnikv_event_reset(loaded);
		omnikv_event_reset(computed);
		fill(&w, (uint64_t)round * 31);
		sqe = omnikv_get_sqe(w.ring);
		omnikv_prep_copy(sqe, w.hbm, w.copies, NR_PIECES);
		sqe->wait = computed;
		sqe->flags = OMNIKV_SQE_F_LINK;
		sqe->user_data = 2;
		sqe = omnikv_get_sqe(w.ring);
		omnikv_prep_store(sqe, w.hbm, w.back, NR_PIECES);
		sqe->user_data = 3;
		submit(&w);
		must(omnikv_graph_begin(graph, w.stream), "graph begin");
		must(drv->cuGraphLaunch(exec, native), "graph launch");
		if (round % 4 == 0)
			usleep(2000);
		if (omnikv_event_query(computed))
			fail("replay %d went on before its load", round);
		sqe = omnikv_get_sqe(w.ring);
		omnikv_prep_load(sqe, w.hbm, w.pieces, NR_PIECES);
		sqe->signal = loaded;
		sqe->user_data = 1;
		submit(&w);
		expect(&w, 1, (int64_t)w.bytes, "load");
		expect(&w, 2, (int64_t)w.bytes, "copy");
		expect(&w, 3, (int64_t)w.bytes, "store");
		must(omnikv_graph_status(graph), "graph status");
		compare(&w, "replayed");
	}
	must(omnikv_stream_sync(w.stream, WAIT_NS), "sync");
	must(drv->cuGraphExecDestroy(exec), "destroy");
	must(drv->cuGraphDestroy(captured), "destroy");
	okv_cuda_leave(w.dev);
	omnikv_graph_destroy(graph);
	omnikv_event_destroy(loaded);
	omnikv_event_destroy(computed);
	world_close(&w);
	printf("# graphs: %d replays\n", rounds);
}

/* The engine's memory, and a descriptor of it. */
static void check_memory(void)
{
	struct omnikv_device_info info = { .size = sizeof(info) };
	struct omnikv_hbm *attached;
	uint64_t ptr = 0;
	struct world w;
	int fd = -1, ret;

	world_open(&w, NULL);
	must(okv_cuda_enter(w.dev), "context");
	must(okv_cuda_of(w.dev)->drv.cuMemAlloc(&ptr, 8 << 20), "cuMemAlloc");
	must(omnikv_hbm_attach(w.dev, (void *)(uintptr_t)ptr, 8 << 20, &attached), "attach");
	must(omnikv_hbm_destroy(attached), "detach");
	if (omnikv_hbm_attach(w.dev, &w, sizeof(w), &attached) != -EINVAL)
		fail("memory of this process was attached as HBM");
	if (omnikv_hbm_attach(w.dev, (void *)(uintptr_t)ptr, UINT64_C(1) << 40, &attached) != -EINVAL)
		fail("memory beyond an allocation was attached");
	must(okv_cuda_of(w.dev)->drv.cuMemFree(ptr), "cuMemFree");
	okv_cuda_leave(w.dev);
	must(omnikv_device_info(w.dev, &info), "info");
	ret = omnikv_hbm_dmabuf(w.hbm, &fd);
	if (ret == 0)
		close(fd);
	printf("# %u SMs; dma-buf: %s; nvidia-peermem: %s; batches: %s; kernels: %s\n", info.nr_sms, ret ? strerror(-ret) : "yes",
	       info.features & OMNIKV_DEVICE_HAS_PEERMEM ? "yes" : "no", info.features & OMNIKV_DEVICE_HAS_BATCH ? "yes" : "no",
	       info.features & OMNIKV_DEVICE_HAS_KERNELS ? "yes" : "no");
	world_close(&w);
}

int main(int argc, char **argv)
{
	static const char *const paths[] = { NULL, "engine", "batch", "kernel" };
	int rounds = argc > 1 ? atoi(argv[1]) : 10;
	size_t i;

	setvbuf(stdout, NULL, _IOLBF, 0);
	check_memory();
	for (i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
		check_path(paths[i], rounds);
	check_events(2 * rounds);
	check_graph(10 * rounds);
	printf("ok\n");
	return 0;
}

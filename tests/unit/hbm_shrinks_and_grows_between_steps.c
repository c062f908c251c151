// SPDX-License-Identifier: GPL-2.0-only
/*
 * HBM that is given back and taken again: the range itself, and the pipe that lives in it. Steps work on a history of known
 * bytes, in as many tiles as the size of the moment makes of it, and kernels compare every row.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "failpoint.h"
#include "tests/harness/ring_fixture.h"
#include "tests/harness/toy_engine.h"

#define NR_LAYERS 3u
#define T 16u
#define MIB (UINT64_C(1) << 20)
#define HISTORY 700u

static struct omnikv_layout layout_of(void)
{
	struct omnikv_layout l = { .name = "resized", .nr_layers = NR_LAYERS, .nr_groups = 1, .block_tokens = T };
	struct omnikv_group *g = &l.groups[0];
	uint16_t i;

	*g = (struct omnikv_group){ .kind = OMNIKV_GROUP_FULL, .tokens_per_entry = 1, .residency = OMNIKV_RESIDENCY_RING,
				    .nr_layers = NR_LAYERS, .nr_planes = 2 };
	for (i = 0; i < NR_LAYERS; i++) {
		g->layers[i] = i;
		g->alias_of[i] = -1;
	}
	g->planes[0] = (struct omnikv_plane){ .role = OMNIKV_PLANE_K, .dtype = OMNIKV_DTYPE_BF16, .heads = 1, .elems = 16 };
	g->planes[1] = (struct omnikv_plane){ .role = OMNIKV_PLANE_V, .dtype = OMNIKV_DTYPE_BF16, .heads = 1, .elems = 24 };
	return l;
}

/* What the engine was told last. */
struct told {
	uint64_t	bytes;
	uint64_t	slot_tokens;
	uint32_t	nr;
};

static void note(void *arg, uint64_t bytes, uint64_t slot_tokens)
{
	struct told *told = arg;

	*told = (struct told){ bytes, slot_tokens, told->nr + 1 };
}

struct rig {
	struct omnikv_layout	layout;
	struct toy_engine	e;
	struct toy_seq		seq;
	struct omnikv_pipe_config pipe;
	struct told		told;
	struct omnikv_hbm	*hbm;		/* of the pipe */
	uint64_t		full_bytes;
};

static uint8_t byte_of(uint32_t layer, uint32_t plane, uint64_t entry, uint64_t i)
{
	uint64_t x = ((uint64_t)layer << 50 | (uint64_t)plane << 48 | entry << 10 | i) * UINT64_C(0x9e3779b97f4a7c15);

	return (uint8_t)(x >> 56);
}

struct kernel {
	struct omnikv_view	view;
	uint64_t		from;		/* history before this token is compared, what is behind is written */
	uint64_t		wrong;
	uint64_t		seen;
	uint64_t		wide;		/* most rows of a view */
};

static void run(void *arg)
{
	struct kernel *k = arg;
	const struct omnikv_group_view *gv = &k->view.groups[0];
	uint64_t r, i, entry;
	uint32_t p;

	for (r = 0; r < gv->nr_rows[0]; r++) {
		entry = gv->first[0] + r;
		for (p = 0; p < gv->nr_planes; p++) {
			uint8_t *row = (uint8_t *)gv->planes[p].rows + (gv->cu_kv[0] + r) * gv->planes[p].row_bytes;

			for (i = 0; i < gv->planes[p].row_bytes; i++) {
				if (entry >= k->from)
					row[i] = byte_of(k->view.layer, p, entry, i);
				else
					k->wrong += row[i] != byte_of(k->view.layer, p, entry, i);
			}
		}
		k->seen++;
	}
	if (gv->nr_rows[0] > k->wide)
		k->wide = gv->nr_rows[0];
}

/* One step; @resize: is another size refused within it, at each layer? Returns its tiles, or the error. */
static int step(struct rig *rig, uint64_t hist, uint64_t new_tokens, bool resize)
{
	struct omnikv_step_seq s = { .seq = rig->seq.seq, .hist_tokens = hist, .new_tokens = new_tokens };
	struct omnikv_step *st;
	struct kernel *kernels;
	uint64_t most = rig->told.slot_tokens;
	uint32_t l, nr = 0, tiles = 0, i;
	int ret;

	ret = omnikv_step_begin(rig->e.pipe, &s, 1, OMNIKV_STEP_F_TILES, &st);
	if (ret)
		return ret;
	kernels = calloc(NR_LAYERS * 64, sizeof(*kernels));
	assert_non_null(kernels);
	for (l = 0; l < NR_LAYERS; l++) {
		assert_int_equal(omnikv_layer_acquire(st, l, rig->e.stream, &kernels[nr].view), 0);
		do {
			kernels[nr].from = hist;
			assert_int_equal(omnikv_stream_launch(rig->e.stream, 1000, run, &kernels[nr]), 0);
			tiles = kernels[nr].view.nr_tiles;
			assert_true(++nr < NR_LAYERS * 64);
			if (resize) {
				assert_int_equal(omnikv_pipe_resize(rig->e.pipe, rig->full_bytes / 2), -EBUSY);
				assert_int_equal(omnikv_hbm_resize(rig->hbm, rig->full_bytes / 2), -EBUSY);
			}
			ret = omnikv_view_next_tile(st, rig->e.stream, &kernels[nr].view);
			assert_true(ret >= 0);
		} while (ret);
		assert_int_equal(omnikv_layer_release(st, l, rig->e.stream), 0);
	}
	assert_int_equal(omnikv_step_end(st, NULL), 0);
	assert_int_equal(nr, tiles * NR_LAYERS);
	for (l = 0; l < NR_LAYERS; l++) {
		uint64_t seen = 0;

		for (i = 0; i < tiles; i++) {
			seen += kernels[l * tiles + i].seen;
			assert_int_equal(kernels[l * tiles + i].wrong, 0);
			assert_true(kernels[l * tiles + i].wide <= most);
		}
		assert_int_equal(seen, hist + new_tokens);
	}
	free(kernels);
	return (int)tiles;
}

static void open_rig(struct rig *rig, const char *device, uint32_t draft_tokens)
{
	struct toy_config config = {
		.device = device, .layout = &rig->layout, .block_tokens = T, .pool_spec = "16M", .nr_slots = 2,
		.slot_tokens = 1024, .layer_ns = 1000, .verify = true, .draft_tokens = draft_tokens,
		.device_config = { .flags = OMNIKV_DEVICE_F_SHUFFLE | OMNIKV_DEVICE_F_POISON, .late_ns = 20000, .seed = 5 },
	};

	memset(rig, 0, sizeof(*rig));
	rig->layout = layout_of();
	toy_engine_open(&rig->e, &config);
	rig->pipe = (struct omnikv_pipe_config){ .size = sizeof(rig->pipe), .nr_slots = 2, .slot_tokens = 1024,
						 .draft_tokens = draft_tokens };
	rig->hbm = rig->e.hbm;
	rig->full_bytes = omnikv_hbm_bytes(rig->hbm);
	rig->told.slot_tokens = 1024;
	omnikv_pipe_on_resize(rig->e.pipe, note, &rig->told);
	toy_seq_open(&rig->e, &rig->seq, 1, HISTORY);
	assert_int_equal(omnikv_seq_append(rig->seq.seq, HISTORY), 0);
}

static void close_rig(struct rig *rig)
{
	omnikv_seq_close(rig->seq.seq);
	toy_engine_close(&rig->e);
}

static uint64_t need(const struct rig *rig, uint64_t slot_tokens)
{
	struct omnikv_pipe_config c = rig->pipe;

	c.slot_tokens = slot_tokens;
	return omnikv_pipe_hbm_bytes(&rig->e.plan, &c);
}

static uint64_t used(const struct rig *rig)
{
	struct omnikv_device_info info = { .size = sizeof(info) };

	assert_int_equal(omnikv_device_info(rig->e.dev, &info), 0);
	return info.hbm_used_bytes;
}

static void a_smaller_pipe_shows_the_same_history_in_more_tiles(void **state)
{
	struct rig rig;

	open_rig(&rig, *state, 0);
	assert_int_equal(step(&rig, 0, HISTORY, true), 1);
	assert_int_equal(rig.told.nr, 0);

	assert_int_equal(omnikv_pipe_resize(rig.e.pipe, need(&rig, 128)), 0);
	assert_int_equal(rig.told.nr, 1);
	assert_int_equal(rig.told.bytes, need(&rig, 128));
	assert_int_equal(rig.told.slot_tokens, 128);
	assert_int_equal(omnikv_hbm_bytes(rig.e.hbm), need(&rig, 128));
	assert_int_equal(used(&rig), need(&rig, 128));
	/* 699 tokens of history, 640 of them in whole tiles, and 60 with the new one. */
	assert_int_equal(step(&rig, HISTORY - 1, 1, true), 6);
	/* What no longer fits is refused by the next step. */
	assert_int_equal(step(&rig, 0, HISTORY, false), -ENOSPC);

	assert_int_equal(omnikv_pipe_resize(rig.e.pipe, rig.full_bytes), 0);
	assert_int_equal(rig.told.nr, 2);
	assert_int_equal(rig.told.slot_tokens, 1024);
	assert_int_equal(used(&rig), rig.full_bytes);
	assert_int_equal(step(&rig, HISTORY - 1, 1, false), 1);
	close_rig(&rig);
}

static void what_cannot_be_changes_nothing(void **state)
{
	struct rig rig;

	open_rig(&rig, *state, 0);
	assert_int_equal(step(&rig, 0, HISTORY, false), 1);
	assert_int_equal(omnikv_pipe_resize(rig.e.pipe, need(&rig, 64) - 1), -ENOSPC);
	assert_int_equal(omnikv_pipe_resize(rig.e.pipe, 0), -EINVAL);
	assert_int_equal(omnikv_pipe_resize(rig.e.pipe, UINT64_MAX), -EINVAL);
	assert_int_equal(omnikv_pipe_resize(rig.e.pipe, rig.full_bytes + 1), -EINVAL);
	assert_int_equal(omnikv_hbm_resize(rig.e.hbm, rig.full_bytes / 2), -EBUSY);
	assert_int_equal(rig.told.nr, 0);
	assert_int_equal(omnikv_hbm_bytes(rig.e.hbm), rig.full_bytes);
	assert_int_equal(used(&rig), rig.full_bytes);
	assert_int_equal(step(&rig, HISTORY - 1, 1, false), 1);
	assert_int_equal(omnikv_pipe_resize(rig.e.pipe, need(&rig, 64)), 0);
	assert_int_equal(rig.told.slot_tokens, 64);
	assert_int_equal(step(&rig, HISTORY - 1, 1, false), 11);
	close_rig(&rig);
}

static void memory_that_a_pipe_uses_does_not_end(void **state)
{
	struct rig rig;

	open_rig(&rig, *state, 0);
	assert_int_equal(omnikv_hbm_destroy(rig.e.hbm), -EBUSY);
	assert_int_equal(used(&rig), rig.full_bytes);
	assert_int_equal(step(&rig, 0, HISTORY, false), 1);
	assert_int_equal(omnikv_hbm_destroy(rig.e.hbm), -EBUSY);
	assert_int_equal(step(&rig, HISTORY - 1, 1, false), 1);
	/* Nor has the refusal taken anything from it: it is resized, and ends after its pipe. */
	assert_int_equal(omnikv_pipe_resize(rig.e.pipe, need(&rig, 128)), 0);
	close_rig(&rig);
	assert_int_equal(omnikv_hbm_destroy(NULL), 0);
}

static void drafts_keep_their_place(void **state)
{
	struct omnikv_step_seq s = { .hist_tokens = HISTORY - 4, .new_tokens = 4, .lane = OMNIKV_LANE_VERIFY };
	struct kernel kernels[NR_LAYERS] = { 0 };
	uint32_t accepted[3] = { 0, 1, 2 }, l;
	struct omnikv_step *st;
	struct rig rig;

	open_rig(&rig, *state, 8);
	assert_int_equal(step(&rig, 0, HISTORY - 4, false), 1);
	s.seq = rig.seq.seq;
	assert_int_equal(omnikv_step_begin(rig.e.pipe, &s, 1, 0, &st), 0);
	for (l = 0; l < NR_LAYERS; l++) {
		assert_int_equal(omnikv_layer_acquire(st, l, rig.e.stream, &kernels[l].view), 0);
		kernels[l].from = s.hist_tokens;
		assert_int_equal(omnikv_stream_launch(rig.e.stream, 1000, run, &kernels[l]), 0);
		assert_int_equal(omnikv_layer_release(st, l, rig.e.stream), 0);
	}
	assert_int_equal(omnikv_step_end(st, NULL), 0);
	assert_int_equal(omnikv_pipe_resize(rig.e.pipe, need(&rig, 128)), -EBUSY);
	assert_int_equal(omnikv_drafts_commit(rig.e.pipe, rig.seq.seq, accepted, 3), 0);
	assert_int_equal(omnikv_pipe_resize(rig.e.pipe, need(&rig, 128)), 0);
	assert_int_equal(step(&rig, HISTORY - 1, 0, false), 6);
	close_rig(&rig);
}

static void a_thousand_sizes_show_the_same_bytes(void **state)
{
	uint64_t seed = 11, tokens, bytes;
	uint32_t n, nr_refused = 0;
	struct rig rig;
	int ret;

	open_rig(&rig, *state, 0);
	assert_int_equal(step(&rig, 0, HISTORY, false), 1);
	for (n = 0; n < 1000; n++) {
		struct told before = rig.told;

		seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		bytes = (seed >> 20) % (rig.full_bytes + rig.full_bytes / 16);
		ret = omnikv_pipe_resize(rig.e.pipe, bytes);
		if (ret) {
			nr_refused++;
			assert_int_equal(ret, bytes > rig.full_bytes || !bytes ? -EINVAL : -ENOSPC);
			assert_memory_equal(&before, &rig.told, sizeof(before));
		} else {
			assert_int_equal(rig.told.nr, before.nr + 1);
			assert_int_equal(rig.told.bytes, bytes);
			assert_int_equal(omnikv_hbm_bytes(rig.e.hbm), bytes);
			assert_int_equal(used(&rig), bytes);
			/* As many as fit. */
			assert_true(need(&rig, rig.told.slot_tokens) <= bytes);
			assert_true(need(&rig, rig.told.slot_tokens + 1) > bytes);
		}
		if (n % 5)
			continue;
		/* A history and a place in it of any length; the new tokens are those that were there before. */
		tokens = 1 + (seed >> 40) % (HISTORY - 1);
		assert_true(step(&rig, tokens, tokens < HISTORY ? 1 : 0, false) >= 1);
	}
	assert_true(nr_refused > 20 && nr_refused < 500);
	close_rig(&rig);
}

static void attached_memory_gets_another_length(void **state)
{
	const char *device = *state;
	struct omnikv_hbm *own;
	struct rig rig;

	open_rig(&rig, device, 0);
	assert_int_equal(step(&rig, 0, HISTORY, false), 1);
	omnikv_pipe_destroy(rig.e.pipe);
	assert_int_equal(omnikv_hbm_attach(rig.e.dev, omnikv_hbm_ptr(rig.e.hbm), need(&rig, 128), &own), 0);
	rig.hbm = own;
	rig.pipe.slot_tokens = 128;
	assert_int_equal(omnikv_pipe_create(rig.e.space, rig.e.ring, own, &rig.pipe, &rig.e.pipe, NULL), 0);
	omnikv_pipe_on_resize(rig.e.pipe, note, &rig.told);
	rig.told.slot_tokens = 128;
	assert_int_equal(step(&rig, HISTORY - 1, 1, true), 6);
	assert_int_equal(omnikv_pipe_resize(rig.e.pipe, rig.full_bytes), 0);
	assert_int_equal(rig.told.slot_tokens, 1024);
	assert_int_equal(step(&rig, HISTORY - 1, 1, false), 1);
	/* Where the device knows its memory it finds that there is no more of it. */
	if (!strcmp(device, "cuda")) {
		assert_int_equal(omnikv_pipe_resize(rig.e.pipe, UINT64_C(1) << 40), -EINVAL);
		assert_int_equal(omnikv_hbm_bytes(own), rig.full_bytes);
	}
	omnikv_pipe_destroy(rig.e.pipe);
	assert_int_equal(omnikv_hbm_destroy(own), 0);
	rig.pipe.slot_tokens = 1024;
	assert_int_equal(omnikv_pipe_create(rig.e.space, rig.e.ring, rig.e.hbm, &rig.pipe, &rig.e.pipe, NULL), 0);
	close_rig(&rig);
}

static void graphs_are_captured_again(void **state)
{
	bool is_cuda = !strcmp(*state, "cuda"), late;
	struct toy_graph graph;
	struct toy_seq seq;
	struct rig rig;
	uint32_t l;

	open_rig(&rig, *state, 0);
	toy_seq_open(&rig.e, &seq, 2, 80);
	assert_int_equal(omnikv_seq_append(seq.seq, 80), 0);
	seq.new_tokens = 40;
	toy_graph_open(&rig.e, &graph);
	assert_int_equal(toy_graph_step(&rig.e, &graph, &seq, 1, NULL, NULL, &late), 0);
	assert_int_equal(omnikv_pipe_resize(rig.e.pipe, need(&rig, 128)), 0);
	seq.hist_tokens = 40;
	if (is_cuda)
		assert_int_equal(toy_graph_step(&rig.e, &graph, &seq, 1, NULL, NULL, &late), -ESTALE);
	toy_graph_close(&rig.e, &graph);
	toy_graph_open(&rig.e, &graph);
	for (l = 0; l < 2; l++) {
		seq.hist_tokens = 40 * l;
		assert_int_equal(toy_graph_step(&rig.e, &graph, &seq, 1, NULL, NULL, &late), 0);
		assert_false(late);
	}
	assert_int_equal(seq.wrong_bytes, 0);
	toy_graph_close(&rig.e, &graph);
	omnikv_seq_close(seq.seq);
	close_rig(&rig);
}

static void debug_views_go_along(void **state)
{
	struct rig rig;

	assert_int_equal(setenv("OMNIKV_DEBUG", "views", 1), 0);
	open_rig(&rig, *state, 0);
	assert_int_equal(step(&rig, 0, HISTORY, false), 1);
	assert_int_equal(omnikv_pipe_resize(rig.e.pipe, need(&rig, 128)), 0);
	assert_int_equal(step(&rig, HISTORY - 1, 1, false), 6);
	assert_int_equal(omnikv_pipe_resize(rig.e.pipe, rig.full_bytes), 0);
	assert_int_equal(step(&rig, HISTORY - 1, 1, false), 1);
	assert_string_equal(omnikv_pipe_report(rig.e.pipe), "");
	close_rig(&rig);
	unsetenv("OMNIKV_DEBUG");
}

/* What is behind the end can no longer be touched: in a child, which dies of it. */
static bool is_fatal(volatile uint8_t *at)
{
	int status;
	pid_t pid = fork();

	assert_true(pid >= 0);
	if (pid == 0) {
		signal(SIGSEGV, SIG_DFL);
		*at = 1;
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFSIGNALED(status);
}

static void memory_behind_the_end_is_given_back(void **state)
{
	struct omnikv_device_info info = { .size = sizeof(info) };
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	uint8_t *there;

	fixture_open(&f, *state, "16M", NULL, NULL);
	hbm = fixture_hbm(&f, 100 * MIB);
	there = omnikv_hbm_ptr(hbm);
	memset(there, 7, 100 * MIB);
	assert_int_equal(omnikv_hbm_resize(hbm, 33 * MIB), 0);
	assert_int_equal(omnikv_hbm_bytes(hbm), 33 * MIB);
	assert_ptr_equal(omnikv_hbm_ptr(hbm), there);
	assert_int_equal(there[33 * MIB - 1], 7);
	assert_int_equal(there[0], 7);
	assert_true(is_fatal(there + 64 * MIB));
	assert_true(is_fatal(there + 100 * MIB - 1));
	if (f.is_cuda)
		assert_int_equal(fixture_cuda_get("mapped"), 64 * MIB);
	assert_int_equal(omnikv_device_info(f.dev, &info), 0);
	assert_int_equal(info.hbm_used_bytes, 33 * MIB);

	assert_int_equal(omnikv_hbm_resize(hbm, 100 * MIB + 1), -EINVAL);
	assert_int_equal(omnikv_hbm_resize(hbm, 0), -EINVAL);
	assert_int_equal(omnikv_hbm_resize(hbm, 100 * MIB), 0);
	memset(there + 33 * MIB, 8, 67 * MIB);
	assert_int_equal(there[33 * MIB - 1], 7);
	assert_int_equal(omnikv_hbm_resize(hbm, 1), 0);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

static void growth_beyond_the_capacity_is_refused(void **state)
{
	struct omnikv_device_config dc = { .size = sizeof(dc), .hbm_bytes = 64 * MIB };
	struct ring_fixture f;
	struct omnikv_hbm *hbm, *other;

	fixture_open(&f, *state, "16M", &dc, NULL);
	hbm = fixture_hbm(&f, 48 * MIB);
	assert_int_equal(omnikv_hbm_resize(hbm, 16 * MIB), 0);
	other = fixture_hbm(&f, 40 * MIB);
	assert_int_equal(omnikv_hbm_resize(hbm, 25 * MIB), -ENOMEM);
	assert_int_equal(omnikv_hbm_bytes(hbm), 16 * MIB);
	assert_int_equal(omnikv_hbm_resize(hbm, 24 * MIB), 0);
	assert_int_equal(omnikv_hbm_destroy(other), 0);
	assert_int_equal(omnikv_hbm_resize(hbm, 48 * MIB), 0);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

struct making {
	struct rig		*rig;
	struct omnikv_hbm	*hbm;
	int			nr;
	int			ret;
};

/* As another thread does while the length changes. */
static int make_a_pipe(void *opaque, const char *name)
{
	struct making *making = opaque;
	struct omnikv_pipe *pipe;

	(void)name;
	making->nr++;
	making->ret = omnikv_pipe_create(making->rig->e.space, making->rig->e.ring, making->hbm, &making->rig->pipe, &pipe, NULL);
	if (!making->ret)
		omnikv_pipe_destroy(pipe);
	return 0;
}

/* Its buffers would be placed in what is being given back. */
static void a_pipe_is_not_made_while_its_memory_changes_length(void **state)
{
	struct making making;
	struct omnikv_pipe *pipe;
	struct omnikv_hbm *hbm;
	struct rig rig;

	open_rig(&rig, *state, 0);
	making = (struct making){ .rig = &rig, .hbm = rig.hbm };
	okv_failpoint_arm(&(struct okv_failpoint){ .name = "hbm.resize", .fn = make_a_pipe, .opaque = &making });
	assert_int_equal(omnikv_pipe_resize(rig.e.pipe, need(&rig, 512)), 0);
	assert_int_equal(making.nr, 1);
	assert_int_equal(making.ret, -EBUSY);
	assert_int_equal(omnikv_hbm_create(rig.e.dev, rig.full_bytes, &hbm), 0);
	making.hbm = hbm;
	assert_int_equal(omnikv_hbm_resize(hbm, rig.full_bytes / 2), 0);
	assert_int_equal(making.nr, 2);
	assert_int_equal(making.ret, -EBUSY);
	/* Behind it there is what there is, and it stays. */
	assert_int_equal(omnikv_pipe_create(rig.e.space, rig.e.ring, hbm, &rig.pipe, &pipe, NULL), -ENOSPC);
	assert_int_equal(omnikv_hbm_resize(hbm, rig.full_bytes), 0);
	assert_int_equal(omnikv_pipe_create(rig.e.space, rig.e.ring, hbm, &rig.pipe, &pipe, NULL), 0);
	assert_int_equal(omnikv_hbm_resize(hbm, rig.full_bytes / 2), -EBUSY);
	omnikv_pipe_destroy(pipe);
	assert_int_equal(omnikv_hbm_resize(hbm, rig.full_bytes / 2), 0);
	assert_int_equal(making.nr, 4);
	okv_failpoint_disarm_all();
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	close_rig(&rig);
}

static void a_transfer_under_way_keeps_the_size(void **state)
{
	struct omnikv_piece piece = { .bytes = 4096, .device_off = 8192 };
	struct omnikv_event *gate;
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	struct omnikv_sqe *sqe;

	fixture_open(&f, *state, "16M", NULL, NULL);
	hbm = fixture_hbm(&f, MIB);
	gate = fixture_event(&f);
	sqe = fixture_sqe(&f, 1);
	omnikv_prep_copy(sqe, hbm, &piece, 1);
	sqe->wait = gate;
	fixture_submit(&f);
	assert_int_equal(omnikv_hbm_resize(hbm, 4096), -EBUSY);
	assert_int_equal(omnikv_hbm_bytes(hbm), MIB);
	fixture_fire(&f, gate);
	fixture_expect(&f, 1, 4096);
	assert_int_equal(omnikv_hbm_resize(hbm, 4096), 0);
	omnikv_event_destroy(gate);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	fixture_close(&f);
}

static void a_driver_that_refuses_leaves_the_old_size(void **state)
{
	struct omnikv_device_info info = { .size = sizeof(info) };
	struct ring_fixture f;
	struct omnikv_hbm *hbm;
	uint8_t *there;
	long nth, device;

	(void)state;
	fixture_open(&f, "cuda", "16M", NULL, NULL);
	hbm = fixture_hbm(&f, 130 * MIB);
	there = omnikv_hbm_ptr(hbm);
	assert_int_equal(omnikv_hbm_resize(hbm, 20 * MIB), 0);
	memset(there, 9, 20 * MIB);
	device = fixture_cuda_get("device");
	/* 32 of 130 MiB are mapped: four units are missing, each of which may be the one that there is no memory for. */
	for (nth = 1; nth <= 4; nth++) {
		fixture_cuda_set("fail_alloc", nth);
		assert_int_equal(omnikv_hbm_resize(hbm, 130 * MIB), -ENOMEM);
		assert_int_equal(omnikv_hbm_bytes(hbm), 20 * MIB);
		assert_int_equal(fixture_cuda_get("mapped"), 32 * MIB);
		assert_int_equal(fixture_cuda_get("device"), device);
		assert_int_equal(omnikv_device_info(f.dev, &info), 0);
		assert_int_equal(info.hbm_used_bytes, 20 * MIB);
		assert_int_equal(there[20 * MIB - 1], 9);
	}
	assert_int_equal(omnikv_hbm_resize(hbm, 130 * MIB), 0);
	assert_int_equal(fixture_cuda_get("mapped"), 130 * MIB);
	for (nth = 1; nth <= 4; nth++) {
		fixture_cuda_set("fail_unmap", nth);
		assert_true(omnikv_hbm_resize(hbm, 20 * MIB) < 0);
		assert_int_equal(omnikv_hbm_bytes(hbm), 130 * MIB);
		assert_int_equal(fixture_cuda_get("mapped"), 130 * MIB);
		memset(there + 20 * MIB, 3, 110 * MIB);
	}
	assert_int_equal(there[20 * MIB - 1], 9);
	assert_int_equal(omnikv_hbm_destroy(hbm), 0);
	assert_int_equal(fixture_cuda_get("mapped"), 0);
	fixture_close(&f);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		ON_EACH_DEVICE(a_smaller_pipe_shows_the_same_history_in_more_tiles),
		ON_EACH_DEVICE(what_cannot_be_changes_nothing),
		ON_EACH_DEVICE(memory_that_a_pipe_uses_does_not_end),
		ON_EACH_DEVICE(drafts_keep_their_place),
		ON_EACH_DEVICE(a_thousand_sizes_show_the_same_bytes),
		ON_EACH_DEVICE(attached_memory_gets_another_length),
		ON_EACH_DEVICE(graphs_are_captured_again),
		{ "debug_views_go_along_on_host", debug_views_go_along, NULL, NULL, (void *)"host" },
		{ "debug_views_go_along_on_sim", debug_views_go_along, NULL, NULL, (void *)"sim" },
		ON_EACH_DEVICE(memory_behind_the_end_is_given_back),
		ON_EACH_DEVICE(growth_beyond_the_capacity_is_refused),
		ON_EACH_DEVICE(a_pipe_is_not_made_while_its_memory_changes_length),
		ON_EACH_DEVICE(a_transfer_under_way_keeps_the_size),
		cmocka_unit_test(a_driver_that_refuses_leaves_the_old_size),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

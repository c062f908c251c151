/* SPDX-License-Identifier: MIT */
/*
 * The smallest engine: its KV lives in host memory and passes through two layer buffers.
 *
 * A prompt is computed and committed; the same prompt, asked again, is found and only its last
 * token is computed. The kernel here counts; a real one attends. One thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <omnikv.h>

#define TRY(call) do { \
	err.text[0] = '\0'; \
	long long ret_ = (call); \
	if (ret_ < 0) { fprintf(stderr, "%s: %s\n", #call, err.text[0] ? err.text : strerror((int)-ret_)); exit(1); } } while (0)
#define NR_TOKENS 257

static struct omnikv_view view;	/* of the layer under way; "host" runs a kernel when it is launched */
static unsigned long rows_read, rows_written;

static void kernel(void *arg)
{
	struct omnikv_group_view *g = &view.groups[0];

	(void)arg;
	for (unsigned int p = 0; p < g->nr_planes; p++)	/* new rows, behind the history's */
		memset((char *)g->planes[p].rows + g->new_row[0] * g->planes[p].row_bytes, 1,
		       (g->cu_kv[1] - g->new_row[0]) * g->planes[p].row_bytes);
	rows_read += g->new_row[0] - g->cu_kv[0];
	rows_written += g->cu_kv[1] - g->new_row[0];
}

int main(void)
{
	struct omnikv_error err = { "" };
	struct omnikv_layout layout;
	struct omnikv_plan plan;
	struct omnikv_plan_config plan_config = { .size = sizeof(plan_config), .scale = 64 };
	struct omnikv_namespace ns = { .size = sizeof(ns), .tenant = "me", .weights = "example", .layout = &layout };
	struct omnikv_pipe_config pipe_config = { .size = sizeof(pipe_config), .nr_slots = 2, .slot_tokens = 1024 };
	struct omnikv_pool *pool;
	struct omnikv_client *client;
	struct omnikv_manager *manager;
	struct omnikv_space *space;
	struct omnikv_device *dev;
	struct omnikv_stream *stream;
	struct omnikv_ring *ring;
	struct omnikv_hbm *hbm;
	struct omnikv_pipe *pipe;
	struct omnikv_key keys[NR_TOKENS];

	TRY(omnikv_layout_preset("llama-3-8b", &layout, &err));
	TRY(omnikv_plan_make(&layout, &plan_config, &plan, &err));
	ns.block_tokens = plan.block_tokens;
	TRY(omnikv_pool_open("64M", NULL, &pool, &err));
	TRY(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &client));
	TRY(omnikv_manager_create(client, NULL, &manager, &err));
	TRY(omnikv_space_open(manager, &ns, &plan, &space, &err));
	TRY(omnikv_device_open("host", NULL, &dev, &err));
	TRY(omnikv_stream_create(dev, &stream));
	TRY(omnikv_ring_init(client, dev, NULL, &ring, &err));
	TRY(omnikv_hbm_create(dev, omnikv_pipe_hbm_bytes(&plan, &pipe_config), &hbm));
	TRY(omnikv_pipe_create(space, ring, hbm, &pipe_config, &pipe, &err));

	for (uint32_t i = 0; i < NR_TOKENS / plan.block_tokens; i++)	/* your hash of the tokens up to here */
		TRY(omnikv_key_init(&keys[i], &i, sizeof(i)));
	for (int request = 1; request <= 2; request++) {
		struct omnikv_step_seq s = { .lane = OMNIKV_LANE_PREFILL };
		struct omnikv_step *step;

		TRY(omnikv_seq_open(space, keys, NR_TOKENS / plan.block_tokens, NULL, &s.seq));
		s.hist_tokens = omnikv_seq_tokens(s.seq);
		s.new_tokens = NR_TOKENS - s.hist_tokens;
		TRY(omnikv_seq_append(s.seq, s.new_tokens));
		rows_read = rows_written = 0;
		TRY(omnikv_step_begin(pipe, &s, 1, 0, &step));
		for (uint32_t l = 0; l < layout.nr_layers; l++) {
			TRY(omnikv_layer_acquire(step, l, stream, &view));
			TRY(omnikv_stream_launch(stream, 0, kernel, NULL));
			TRY(omnikv_layer_release(step, l, stream));
		}
		TRY(omnikv_step_end(step, NULL));
		TRY(omnikv_seq_commit(s.seq, keys, NR_TOKENS / plan.block_tokens, NULL));
		printf("request %d: %llu of %d tokens cached, %lu rows read, %lu written\n", request,
		       (unsigned long long)s.hist_tokens, NR_TOKENS, rows_read, rows_written);
		omnikv_seq_close(s.seq);
	}
	printf("HBM %llu bytes, two layers of %u\n", (unsigned long long)omnikv_hbm_bytes(hbm), layout.nr_layers);

	omnikv_pipe_destroy(pipe);
	omnikv_hbm_destroy(hbm);
	omnikv_ring_exit(ring);
	omnikv_stream_destroy(stream);
	omnikv_device_close(dev);
	omnikv_space_close(space);
	omnikv_manager_destroy(manager);
	omnikv_client_close(client);
	omnikv_pool_close(pool);
	return 0;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Prefill of llama-3-70b on the simulated device's clock: how much of the transfers shows, and how long a
 * prompt a given amount of HBM takes.
 *
 * Bytes are scaled down and so is the link, so that times are those of the whole model. A layer's time
 * is that of its arithmetic on the device named (peak, share of it reached): weights and attention.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <omnikv.h>

#define SCALE 512u
#define LINK_BYTES_S 50e9

struct gpu {
	const char	*name;
	double		flops;	/* that are reached */
};

static const struct gpu gpus[] = { { "h20", 148e12 * 0.7 }, { "h100", 989e12 * 0.5 } };

struct bench {
	struct omnikv_layout	layout;
	struct omnikv_plan	plan;
	struct omnikv_pool	*pool;
	struct omnikv_client	*client;
	struct omnikv_manager	*manager;
	struct omnikv_space	*space;
	struct omnikv_device	*dev;
	struct omnikv_stream	*stream;
	struct omnikv_ring	*ring;
	struct omnikv_hbm	*hbm;
	struct omnikv_pipe	*pipe;
};

static void bench_open(struct bench *b, uint32_t nr_slots, uint64_t slot_tokens)
{
	struct omnikv_plan_config plc = { .size = sizeof(plc), .block_tokens = 256, .scale = SCALE };
	struct omnikv_pool_config poc = { .size = sizeof(poc), .flags = OMNIKV_POOL_F_NO_POPULATE };
	struct omnikv_namespace ns = { .size = sizeof(ns), .tenant = "t", .weights = "w", .layout = &b->layout };
	struct omnikv_device_config dc = { .size = sizeof(dc), .h2d_bytes_s = LINK_BYTES_S / SCALE,
					   .d2h_bytes_s = LINK_BYTES_S / SCALE };
	struct omnikv_pipe_config pc = { .size = sizeof(pc), .nr_slots = nr_slots, .slot_tokens = slot_tokens };
	struct omnikv_ring_config rc = { .size = sizeof(rc), .entries = 1024, .cq_entries = 4096 };

	memset(b, 0, sizeof(*b));
	assert_int_equal(omnikv_layout_preset("llama-3-70b", &b->layout, NULL), 0);
	assert_int_equal(omnikv_plan_make(&b->layout, &plc, &b->plan, NULL), 0);
	ns.block_tokens = b->plan.block_tokens;
	assert_int_equal(omnikv_pool_open("256M", &poc, &b->pool, NULL), 0);
	assert_int_equal(omnikv_client_open(b->pool, OMNIKV_CLIENT_F_MANAGER, &b->client), 0);
	assert_int_equal(omnikv_manager_create(b->client, NULL, &b->manager, NULL), 0);
	assert_int_equal(omnikv_space_open(b->manager, &ns, &b->plan, &b->space, NULL), 0);
	assert_int_equal(omnikv_device_open("sim", &dc, &b->dev, NULL), 0);
	assert_int_equal(omnikv_stream_create(b->dev, &b->stream), 0);
	assert_int_equal(omnikv_ring_init(b->client, b->dev, &rc, &b->ring, NULL), 0);
	assert_int_equal(omnikv_hbm_create(b->dev, omnikv_pipe_hbm_bytes(&b->plan, &pc), &b->hbm), 0);
	assert_int_equal(omnikv_pipe_create(b->space, b->ring, b->hbm, &pc, &b->pipe, NULL), 0);
}

static void bench_close(struct bench *b)
{
	omnikv_pipe_destroy(b->pipe);
	assert_int_equal(omnikv_hbm_destroy(b->hbm), 0);
	omnikv_ring_exit(b->ring);
	omnikv_stream_destroy(b->stream);
	assert_int_equal(omnikv_device_close(b->dev), 0);
	omnikv_space_close(b->space);
	assert_int_equal(omnikv_manager_destroy(b->manager), 0);
	omnikv_client_close(b->client);
	omnikv_pool_close(b->pool);
}

/* One layer's arithmetic for @n tokens behind @hist. */
static double attention_ns(const struct bench *b, const struct gpu *gpu, double hist, double n)
{
	return 4.0 * b->layout.q_heads * b->layout.head_dim * n * (hist + n / 2) / gpu->flops * 1e9;
}

static double layer_ns(const struct bench *b, const struct gpu *gpu, double hist, double n)
{
	return 2.0 * b->layout.layer_params * n / gpu->flops * 1e9 + attention_ns(b, gpu, hist, n);
}

struct times {
	double	total_ns;
	double	compute_ns;
	double	load_ns;	/* of one layer's history */
};

/* A chunk: attention tile by tile, release, the rest of the layer. */
static struct times chunk(struct bench *b, const struct gpu *gpu, struct omnikv_seq *seq, uint64_t n, uint32_t flags)
{
	struct omnikv_device_info before = { .size = sizeof(before) }, after = { .size = sizeof(after) };
	struct omnikv_step_seq s = { .seq = seq, .hist_tokens = omnikv_seq_tokens(seq), .new_tokens = n };
	double all = layer_ns(b, gpu, (double)s.hist_tokens, (double)n);
	double attention = attention_ns(b, gpu, (double)s.hist_tokens, (double)n);
	uint64_t layer_bytes = s.hist_tokens * (b->plan.groups[0].row_bytes[0] + b->plan.groups[0].row_bytes[1]);
	struct omnikv_step *step;
	struct omnikv_view view;
	uint32_t l;

	assert_int_equal(omnikv_seq_append(seq, n), 0);
	assert_int_equal(omnikv_device_info(b->dev, &before), 0);
	assert_int_equal(omnikv_step_begin(b->pipe, &s, 1, flags, &step), 0);
	for (l = 0; l < b->layout.nr_layers; l++) {
		assert_int_equal(omnikv_layer_acquire(step, l, b->stream, &view), 0);
		do
			omnikv_stream_launch(b->stream, (uint64_t)(attention / view.nr_tiles), NULL, NULL);
		while (omnikv_view_next_tile(step, b->stream, &view) == 1);
		assert_int_equal(omnikv_layer_release(step, l, b->stream), 0);
		omnikv_stream_launch(b->stream, (uint64_t)(all - attention), NULL, NULL);
	}
	assert_int_equal(omnikv_step_end(step, NULL), 0);
	assert_int_equal(omnikv_stream_sync(b->stream, 1000000000), 0);
	assert_int_equal(omnikv_device_info(b->dev, &after), 0);
	return (struct times){ (double)(after.clock_ns - before.clock_ns), (double)(after.compute_ns - before.compute_ns),
			       (double)layer_bytes * SCALE / LINK_BYTES_S * 1e9 };
}

/* Chunks of 1024 to 8192 behind 0 to 60 K tokens. */
static void what_shows_of_transfers_is_one_layers_load(void **state)
{
	static const uint64_t chunks[] = { 128, 1024, 4096 };
	struct bench b;
	uint32_t g, c, r;

	(void)state;
	for (r = 1; r <= 2; r++) {
		for (g = 0; g < 2; g++) {
			for (c = 0; c < 3; c++) {
				double worst = 0, worst_bound = 0;
				struct omnikv_seq *seq;
				uint64_t at;

				bench_open(&b, r, 65536);
				assert_int_equal(omnikv_seq_open(b.space, NULL, 0, NULL, &seq), 0);
				for (at = 0; at + chunks[c] <= 65536; at = omnikv_seq_tokens(seq)) {
					struct times t = chunk(&b, &gpus[g], seq, chunks[c], 0);
					double layer = t.compute_ns / b.layout.nr_layers;
					bool is_hidden = t.load_ns < layer;
					double bound = is_hidden ? t.compute_ns + 1.1 * t.load_ns + 0.015 * t.compute_ns :
						       1.02 * (t.load_ns * b.layout.nr_layers + layer);

					if (t.total_ns / bound > worst_bound)
						worst_bound = t.total_ns / bound;
					if (is_hidden && t.total_ns / t.compute_ns > worst)
						worst = t.total_ns / t.compute_ns;
					/* Only the ring of two is held to it: with one, attention hides nothing. */
					if (r == 2 && t.total_ns > bound)
						fail_msg("%s, chunk %llu at %llu: %.0f ns, bound %.0f", gpus[g].name,
							 (unsigned long long)chunks[c], (unsigned long long)at, t.total_ns, bound);
					if (chunks[c] == 128 && omnikv_seq_tokens(seq) == at + 128) {
						/* Rows between chunks that are measured: room, nothing stored in them. */
						assert_int_equal(omnikv_seq_append(seq, 8192 - 128), 0);
					}
				}
				print_message("# %s, %u slots, chunks of %llu: total at most %.3f of compute where loads are hidden, %.3f of the bound\n",
					      gpus[g].name, r, (unsigned long long)chunks[c], worst, worst_bound);
				omnikv_seq_close(seq);
				bench_close(&b);
			}
		}
	}
}

/* The same HBM once for all layers' KV, as usual, and once as a ring. */
static void a_prompt_may_be_twenty_times_as_long(void **state)
{
	struct omnikv_device_info info = { .size = sizeof(info) };
	uint64_t hbm_bytes = 1ull << 30, token_bytes, base_tokens, tokens;
	struct omnikv_seq *seq;
	double total, compute;
	struct bench b;
	uint32_t g, tiled;

	(void)state;
	for (tiled = 0; tiled < 2; tiled++) {
		for (g = 0; g < 2; g++) {
			bench_open(&b, 2, tiled ? 16384 : 131072);
			/* Of the model, not scaled: 80 layers of 4096 bytes. */
			token_bytes = (uint64_t)omnikv_layout_token_bytes(&b.layout);
			base_tokens = hbm_bytes / token_bytes;
			assert_int_equal(omnikv_seq_open(b.space, NULL, 0, NULL, &seq), 0);
			total = compute = 0;
			while (omnikv_seq_tokens(seq) < 24 * base_tokens) {
				struct times t = chunk(&b, &gpus[g], seq, 4096, tiled ? OMNIKV_STEP_F_TILES : 0);

				total += t.total_ns;
				compute += t.compute_ns;
			}
			tokens = omnikv_seq_tokens(seq);
			assert_int_equal(omnikv_device_info(b.dev, &info), 0);
			print_message("# %s%s: %llu tokens in %.3f GiB of HBM, %.1f times the %llu that all layers at once allow, at %.4f of the throughput\n",
				      gpus[g].name, tiled ? " in tiles" : "", (unsigned long long)tokens,
				      (double)info.hbm_peak_bytes * SCALE / (1 << 30), (double)tokens / (double)base_tokens,
				      (unsigned long long)base_tokens, compute / total);
			assert_true(info.hbm_peak_bytes * SCALE <= hbm_bytes);
			assert_true(tokens >= 20 * base_tokens);
			assert_true(compute / total >= 0.98);
			omnikv_seq_close(seq);
			bench_close(&b);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_shows_of_transfers_is_one_layers_load),
		cmocka_unit_test(a_prompt_may_be_twenty_times_as_long),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

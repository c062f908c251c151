/* SPDX-License-Identifier: MIT */
/*
 * The least that puts omnikv beneath an engine with a cache of its own: whole blocks are saved
 * from the engine's memory and loaded into it. One thread.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <omnikv.h>

#define TRY(call) do { \
	err.text[0] = '\0'; \
	long long ret_ = (call); \
	if (ret_ < 0) { fprintf(stderr, "%s: %s\n", #call, err.text[0] ? err.text : strerror((int)-ret_)); exit(1); } } while (0)
#define NR_BLOCKS 8	/* of the longest prompt */
static struct omnikv_error err;

/* Move blocks [from, to): here the engine keeps a block's pieces one after another. */
static int64_t move(struct omnikv_ring *ring, struct omnikv_seq *seq, struct omnikv_hbm *kv, uint64_t from, uint64_t to,
		    bool is_load)
{
	const struct omnikv_plan *plan = omnikv_space_plan(omnikv_seq_space(seq));
	static struct omnikv_piece pieces[4096];
	struct omnikv_sqe *sqe = omnikv_get_sqe(ring);
	struct omnikv_cqe *cqe;
	uint32_t nr = 0;

	for (uint32_t l = 0; l < plan->groups[0].nr_stored; l++)
		for (uint32_t p = 0; p < plan->layout.groups[0].nr_planes; p++) {
			TRY(omnikv_seq_pieces(seq, 0, l, p, from * plan->block_tokens, to * plan->block_tokens, 0,
					      &pieces[nr], 4096 - nr));
			for (uint64_t b = from; b < to; b++, nr++)
				pieces[nr].device_off = b * plan->groups[0].extent_bytes + pieces[nr].extent_off;
		}
	(is_load ? omnikv_prep_load : omnikv_prep_store)(sqe, kv, pieces, nr);
	TRY(omnikv_submit(ring));
	TRY(omnikv_wait_cqe(ring, &cqe, UINT64_MAX));
	int64_t res = cqe->res;	/* negative: compute the blocks of a load, do not commit those of a save */
	omnikv_cqe_seen(ring, cqe);
	return res;
}

int main(void)
{
	struct omnikv_layout layout;
	struct omnikv_plan plan;
	struct omnikv_namespace ns = { .size = sizeof(ns), .tenant = "me", .weights = "example", .layout = &layout };
	struct omnikv_key keys[NR_BLOCKS];	/* your hash of the tokens up to each block's end */
	struct omnikv_pool *pool; struct omnikv_client *client; struct omnikv_manager *manager; struct omnikv_space *space;
	struct omnikv_device *dev; struct omnikv_ring *ring; struct omnikv_hbm *kv; struct omnikv_seq *seq;

	TRY(omnikv_layout_preset("tiny", &layout, &err));
	TRY(omnikv_plan_make(&layout, NULL, &plan, &err));
	ns.block_tokens = plan.block_tokens;
	TRY(omnikv_pool_open("16M", NULL, &pool, &err));
	TRY(omnikv_client_open(pool, OMNIKV_CLIENT_F_MANAGER, &client));
	TRY(omnikv_manager_create(client, NULL, &manager, &err));
	TRY(omnikv_space_open(manager, &ns, &plan, &space, &err));
	TRY(omnikv_device_open("host", NULL, &dev, &err));
	TRY(omnikv_ring_init(client, dev, NULL, &ring, &err));
	TRY(omnikv_hbm_create(dev, NR_BLOCKS * omnikv_plan_block_bytes(&plan), &kv));	/* or omnikv_hbm_attach(): your own */

	for (uint32_t b = 0; b < NR_BLOCKS; b++)
		TRY(omnikv_key_init(&keys[b], &b, sizeof(b)));
	for (int request = 1; request <= 2; request++) {
		uint64_t prompt = request == 1 ? NR_BLOCKS - 2 : NR_BLOCKS;
		TRY(omnikv_seq_open(space, keys, prompt, NULL, &seq));
		uint64_t cached = omnikv_seq_tokens(seq) / plan.block_tokens;
		int64_t loaded = cached ? move(ring, seq, kv, 0, cached, true) : 0;
		/* Here the engine computes the blocks behind what was loaded. */
		TRY(omnikv_seq_append(seq, (prompt - cached) * plan.block_tokens));
		int64_t saved = cached < prompt ? move(ring, seq, kv, cached, prompt, false) : 0;
		if (saved >= 0)
			TRY(omnikv_seq_commit(seq, keys, prompt, NULL));
		printf("request %d: %lld bytes loaded, %lld saved\n", request, (long long)loaded, (long long)saved);
		omnikv_seq_close(seq);
	}

	/* Many prompts in one call, each as by omnikv_seq_open(). */
	struct omnikv_prefix prompts[] = { { .keys = keys, .nr_keys = 2 }, { .keys = keys, .nr_keys = NR_BLOCKS } };
	struct omnikv_seq *seqs[2];

	TRY(omnikv_seq_open_batch(space, prompts, 2, seqs));
	for (int i = 0; i < 2; i++)
		printf("prompt %d: %llu tokens cached\n", i + 1, (unsigned long long)omnikv_seq_tokens(seqs[i]));
	omnikv_seq_close_batch(seqs, 2);
	omnikv_hbm_destroy(kv); omnikv_ring_exit(ring); omnikv_device_close(dev);
	omnikv_space_close(space); omnikv_manager_destroy(manager); omnikv_client_close(client); omnikv_pool_close(pool);
	return 0;
}

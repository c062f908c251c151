// SPDX-License-Identifier: MIT
/*
 * Drafts: rows of lane VERIFY that stay in HBM until some of them are accepted.
 *
 * pipeline.c copies them out of the slots, layer by layer. Here the accepted ones are gathered into
 * the sequence's memory on the host, all layers in one operation, and the sequence is cut behind
 * them. One thread, the pipe's.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "device.h"
#include "pipeline.h"
#include "sequence.h"

void okv_pipe_drafts_note(struct omnikv_step *step, bool is_good)
{
	struct omnikv_pipe *pipe = step->pipe;
	uint32_t i;

	pipe->nr_drafts = is_good ? step->nr_seqs : 0;
	if (!is_good)
		pipe->accepted = NULL;
	for (i = 0; i < pipe->nr_drafts; i++) {
		const struct omnikv_step_seq *s = &step->seqs[i];

		pipe->drafts[i] = (struct okv_pipe_draft){ .base = step->draft_base[i] };
		if (s->seq && s->new_tokens && okv_pipe_is_kept(pipe, s)) {
			pipe->drafts[i].seq = s->seq;
			pipe->drafts[i].serial = s->seq->serial;
			pipe->drafts[i].hist_tokens = s->hist_tokens;
			pipe->drafts[i].nr_tokens = (uint32_t)s->new_tokens;
		}
	}
}

bool okv_pipe_has_drafts(const struct omnikv_pipe *pipe)
{
	uint32_t i;

	for (i = 0; i < pipe->nr_drafts; i++) {
		const struct okv_pipe_draft *draft = &pipe->drafts[i];

		if (draft->seq && okv_seq_is_open(omnikv_space_manager(pipe->space), draft->seq, draft->serial))
			return true;
	}
	return false;
}

/* Are these tokens of the draft, each once? Groups whose entries hold several tokens need a chain. */
static int accepted_check(const struct omnikv_pipe *pipe, const struct okv_pipe_draft *draft, const uint32_t *accepted,
			  uint32_t nr)
{
	bool is_chain = true, is_plain = true;
	uint32_t i, k, g;

	if (nr > draft->nr_tokens)
		return -EINVAL;
	for (i = 0; i < nr; i++) {
		if (accepted[i] >= draft->nr_tokens)
			return -EINVAL;
		for (k = 0; k < i; k++) {
			if (accepted[k] == accepted[i])
				return -EINVAL;
		}
		is_chain = is_chain && accepted[i] == i;
	}
	for (g = 0; g < pipe->plan->layout.nr_groups; g++)
		is_plain = is_plain && pipe->plan->layout.groups[g].tokens_per_entry <= 1;
	return is_chain || is_plain ? 0 : -EINVAL;
}

/* The rows of one plane of one layer: a run of neighbours at a time. */
static int plane_gather(struct omnikv_pipe *pipe, struct okv_pipe_op *op, const struct okv_pipe_draft *draft,
			const struct okv_pipe_group *lg, uint32_t plane, const uint32_t *accepted, uint32_t nr)
{
	const struct omnikv_group *group = &pipe->plan->layout.groups[lg->group];
	uint64_t row_bytes = pipe->plan->groups[lg->group].row_bytes[plane], hist = draft->hist_tokens;
	uint64_t off = lg->draft_off[plane] + draft->base * row_bytes;
	uint32_t i, n;
	int ret = 0;

	if (group->tokens_per_entry == 0)
		return okv_pipe_add(pipe, op, draft->seq, 0, lg, plane, hist, hist + nr, off + accepted[nr - 1] * row_bytes);
	if (group->tokens_per_entry > 1) {
		uint64_t per = group->tokens_per_entry;

		return hist / per == (hist + nr) / per ? 0 :
			okv_pipe_add(pipe, op, draft->seq, 0, lg, plane, hist - hist % per, (hist + nr) / per * per, off);
	}
	for (i = 0; i < nr && !ret; i += n) {
		for (n = 1; i + n < nr && accepted[i + n] == accepted[i] + n; n++)
			;
		ret = okv_pipe_add(pipe, op, draft->seq, 0, lg, plane, hist + i, hist + i + n, off + accepted[i] * row_bytes);
	}
	return ret;
}

/* All layers by one operation. */
static int drafts_store(struct omnikv_pipe *pipe, const struct okv_pipe_draft *draft, const uint32_t *accepted, uint32_t nr)
{
	size_t planes = 0, per_plane = 2 * (size_t)nr + 2;
	struct okv_pipe_op *op = &pipe->gather;
	uint32_t l, g, p;
	int ret;

	for (l = 0; l < pipe->nr_layers; l++) {
		for (g = 0; g < pipe->layers[l].nr_groups; g++)
			planes += pipe->plan->layout.groups[pipe->layers[l].groups[g].group].nr_planes;
	}
	ret = okv_pipe_reserve(pipe, planes * per_plane, planes * (nr + 1), 1);
	if (ret)
		return ret;
	okv_pipe_op_begin(pipe, op, 0, OKV_PIPE_STORE);
	for (l = 0; l < pipe->nr_layers; l++) {
		for (g = 0; g < pipe->layers[l].nr_groups; g++) {
			const struct okv_pipe_group *lg = &pipe->layers[l].groups[g];

			for (p = 0; p < pipe->plan->layout.groups[lg->group].nr_planes && !ret; p++)
				ret = plane_gather(pipe, op, draft, lg, p, accepted, nr);
		}
	}
	okv_pipe_op_finish(pipe, op);
	if (ret || op->nr_pieces == 0)
		return ret;
	pipe->step.nr_pending = 0;
	ret = okv_pipe_submit(&pipe->step, op, NULL, NULL);
	if (ret)
		return ret;
	ret = okv_pipe_reap(&pipe->step);
	if (ret) {
		/* What outlived its deadline cannot be recalled: the pipe stays busy with it. */
		pipe->step.is_open = true;
		return ret;
	}
	if (op->res < 0)
		return op->res == -ESTALE ? -ENODATA : (int)op->res;
	pipe->stats.bytes_stored += (uint64_t)op->res;
	pipe->stats.pieces_stored += op->nr_pieces;
	return 0;
}

int omnikv_drafts_commit(struct omnikv_pipe *pipe, struct omnikv_seq *seq, const uint32_t *accepted, uint32_t nr)
{
	struct okv_pipe_draft draft;
	bool is_state_whole;
	uint32_t i;
	int ret;

	if (!seq || (nr && !accepted) || pipe->step.is_open)
		return -EINVAL;
	/* The same address may be another sequence's by now. */
	for (i = 0; i < pipe->nr_drafts && (pipe->drafts[i].seq != seq || pipe->drafts[i].serial != seq->serial); i++)
		;
	if (i == pipe->nr_drafts)
		return -ENOENT;
	draft = pipe->drafts[i];
	ret = accepted_check(pipe, &draft, accepted, nr);
	if (ret)
		return ret;
	pipe->drafts[i].seq = NULL;
	/* Room for what is kept, and a state's at its end, instead of room for all. */
	is_state_whole = !seq->is_state_lo_gone;
	ret = omnikv_seq_truncate(seq, draft.hist_tokens);
	if (!ret && is_state_whole)
		okv_seq_revive_state(seq);
	if (ret || !nr)
		return ret;
	ret = omnikv_seq_append(seq, nr);
	if (ret)
		return ret;
	okv_seq_mark_lost(seq, draft.hist_tokens);
	ret = drafts_store(pipe, &draft, accepted, nr);
	if (ret) {
		omnikv_seq_truncate(seq, draft.hist_tokens);
		return ret;
	}
	okv_seq_mark_stored(seq, draft.hist_tokens, draft.hist_tokens + nr);
	return 0;
}

int omnikv_drafts_accept_on_device(struct omnikv_step *step, const uint32_t *accepted, struct omnikv_stream *stream)
{
	struct omnikv_pipe *pipe = step->pipe;
	int ret;

	if (!step->is_open || !accepted || !pipe->draft_tokens || pipe->accepted)
		return -EINVAL;
	omnikv_event_reset(pipe->accepted_event);
	if (pipe->accepted_copy) {
		ret = stream->dev == pipe->dev ?
			      pipe->dev->ops->stream_read(stream, pipe->accepted_copy, accepted, step->nr_seqs * sizeof(*accepted)) :
			      -EINVAL;
		if (ret)
			return ret;
		accepted = pipe->accepted_copy;
	}
	ret = omnikv_stream_record(stream, pipe->accepted_event);
	if (!ret)
		pipe->accepted = accepted;
	return ret;
}

int omnikv_drafts_reconcile(struct omnikv_pipe *pipe, uint32_t *accepted)
{
	const uint32_t *counts = pipe->accepted;
	uint32_t *chain, i, t;
	int ret;

	if (pipe->step.is_open || !counts)
		return -EINVAL;
	ret = okv_pipe_event_wait(pipe, pipe->accepted_event);
	if (ret)
		return ret;
	pipe->accepted = NULL;
	chain = calloc((size_t)pipe->draft_tokens + 1, sizeof(*chain));
	if (!chain)
		return -ENOMEM;
	for (t = 0; t < pipe->draft_tokens; t++)
		chain[t] = t;
	for (i = 0; i < pipe->nr_drafts; i++) {
		struct omnikv_seq *seq = pipe->drafts[i].seq;
		int one = 0;

		/* Who closed it meanwhile has dropped its drafts. */
		if (seq && !okv_seq_is_open(omnikv_space_manager(pipe->space), seq, pipe->drafts[i].serial))
			seq = NULL;
		if (seq)
			one = omnikv_drafts_commit(pipe, seq, chain, counts[i]);
		if (accepted)
			accepted[i] = seq && !one ? counts[i] : 0;
		ret = ret ? ret : one;
	}
	free(chain);
	return ret;
}

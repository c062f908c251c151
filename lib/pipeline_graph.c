// SPDX-License-Identifier: MIT
/*
 * Steps whose kernels are in a graph: captured once, replayed for each step.
 *
 * Layer l is always in slot l % R, so a graph's addresses hold for every step. Its node before a layer's kernel waits for
 * the event that the layer's load fires, its node behind that fires the event that the store and the next user of the
 * slot wait for; both mean the life that is current in the step (omnikv_graph_begin()). Everything that moves bytes is
 * queued when the step begins, and begins when those events let it.
 *
 * The pipe's thread.
 */
#include <errno.h>

#include "device.h"
#include "pipeline.h"
#include "ring.h"

/* A load, a store and a copy of drafts for each layer. */
#define OPS_A_STAGE	3

int okv_pipe_graph_check(const struct omnikv_step *step)
{
	const struct omnikv_ring *ring = step->pipe->ring;

	if (step->pipe->is_debug)
		return -EOPNOTSUPP;
	if (step->pipe->is_graph_stale)
		return -ESTALE;
	/* Events are joined on a stream, which must not be the thread that has the kernels still to launch. */
	if (step->pipe->dev->ops->has_caller_streams && (step->pipe->draft_tokens || okv_pipe_has_alias(step->pipe)))
		return -EOPNOTSUPP;
	/* All of them wait at once, so none of their slots is free before the graph has run. */
	if (step->nr_tiles != 1 || ring->sq.nr < (uint64_t)OPS_A_STAGE * step->nr_stages ||
	    ring->cq.nr < 2ull * OPS_A_STAGE * step->nr_stages)
		return -ENOSPC;
	return 0;
}

int okv_pipe_graph_queue(struct omnikv_step *step)
{
	int ret = 0;

	step->next_acquire = step->nr_stages;
	while (!ret && step->next_release < step->nr_stages)
		ret = okv_pipe_stage_release(step, NULL);
	return ret;
}

void okv_pipe_graph_cancel(struct omnikv_step *step)
{
	uint32_t s;

	/* Who waits for a kernel goes on: the bytes are nobody's. */
	for (s = 0; s < step->nr_stages; s++)
		okv_event_fire(step->pipe->stages[s].computed, -ECANCELED);
}

int omnikv_layer_capture(struct omnikv_pipe *pipe, uint32_t layer, struct omnikv_graph *graph,
			 struct omnikv_stream *stream, struct omnikv_view *view)
{
	int ret;

	if (layer >= pipe->nr_layers)
		return -EINVAL;
	ret = omnikv_graph_wait(graph, stream, pipe->stages[layer].loaded);
	if (!ret)
		okv_pipe_view_place(pipe, layer, layer % pipe->nr_slots, view);
	/* Without a capture the addresses are asked for at each replay. */
	pipe->is_captured = pipe->dev->ops->graph_add;
	if (layer + 1 == pipe->nr_layers)
		pipe->is_graph_stale = false;
	return ret;
}

int omnikv_layer_captured(struct omnikv_pipe *pipe, uint32_t layer, struct omnikv_graph *graph,
			  struct omnikv_stream *stream)
{
	if (layer >= pipe->nr_layers)
		return -EINVAL;
	return omnikv_graph_record(graph, stream, pipe->stages[layer].computed);
}

int omnikv_step_view(struct omnikv_step *step, uint32_t layer, struct omnikv_view *view)
{
	if (!step->is_open || !step->is_graph || layer >= step->nr_stages)
		return -EINVAL;
	okv_pipe_view_fill(step, &step->pipe->stages[layer], view);
	return 0;
}

int omnikv_step_cancel(struct omnikv_step *step)
{
	if (!step->is_open || !step->is_graph)
		return -EINVAL;
	okv_pipe_graph_cancel(step);
	if (!step->error)
		step->error = -ECANCELED;
	step->error_layer = 0;
	return 0;
}

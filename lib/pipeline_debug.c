// SPDX-License-Identifier: MIT
/*
 * Debug views: what kernels do with the rows that they are shown.
 *
 * A slot that is free is poisoned. Before a layer's kernel all that was not loaded must still be poison
 * and what was loaded must be as it arrived: else somebody wrote after a release. After the kernel
 * the same holds but for the new rows, which must no longer be poison: else it wrote beyond them, with a
 * wrong stride, or not at all. Runs as kernels on the engine's stream, so in its order. The memory is
 * read by the CPU.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "error.h"
#include "pipeline.h"

/* Rows shorter than this may be poison by chance. */
#define ROW_BYTES_MIN 8u

/* How far the next word of OMNIKV_DEBUG is, from @at on. */
static size_t word_bytes(const char *at)
{
	return strcspn(at, ",");
}

static bool is_views(const char *at)
{
	return word_bytes(at) == strlen("views") && !strncmp(at, "views", strlen("views"));
}

bool okv_pipe_debug_is_wanted(void)
{
	const char *at = getenv("OMNIKV_DEBUG");

	for (; at && *at; at += word_bytes(at), at += *at == ',')
		if (is_views(at))
			return true;
	return false;
}

int okv_pipe_debug_check(struct omnikv_error *err)
{
	const char *at = getenv("OMNIKV_DEBUG");

	for (; at && *at; at += word_bytes(at), at += *at == ',')
		if (!is_views(at))
			return okv_error_set(err, -EINVAL, "pipe: OMNIKV_DEBUG: \"%.*s\" is unknown; \"views\" is possible",
					     (int)(word_bytes(at) < 64 ? word_bytes(at) : 64), at);
	return 0;
}

static uint8_t *slot_of(const struct okv_pipe_stage *stage)
{
	return (uint8_t *)omnikv_hbm_ptr(stage->pipe->hbm) + stage->slot * stage->pipe->slot_bytes;
}

void okv_pipe_debug_fill(struct omnikv_pipe *pipe)
{
	memset(omnikv_hbm_ptr(pipe->hbm), OKV_POISON_BYTE, pipe->slot_bytes * pipe->nr_slots);
}

/* A part of the slot that need not be poison: a loaded piece, or new rows. */
struct span {
	uint64_t	from;
	uint64_t	to;
};

static int span_cmp(const void *a, const void *b)
{
	const struct span *x = a, *y = b;

	return x->from < y->from ? -1 : x->from > y->from;
}

/* Say where byte @off of the slot lies. The first report stays. */
static void report(const struct okv_pipe_stage *stage, uint64_t off, const char *what)
{
	struct omnikv_pipe *pipe = stage->pipe;
	const struct okv_pipe_layer *layer = &pipe->layers[stage->layer];
	const struct okv_pipe_tile *tile = &pipe->tiles[stage->tile];
	uint32_t g, p, i, n = pipe->step.nr_seqs;

	if (pipe->report.text[0])
		return;
	for (g = 0; g < layer->nr_groups; g++) {
		const struct okv_pipe_group *lg = &layer->groups[g];
		const struct okv_pipe_rows *rows = &tile->rows[lg->group];

		for (p = 0; p < pipe->plan->layout.groups[lg->group].nr_planes; p++) {
			uint64_t row = (off - lg->plane_off[p]) / pipe->plan->groups[lg->group].row_bytes[p];

			if (off < lg->plane_off[p] || off >= lg->plane_off[p] + lg->plane_bytes[p])
				continue;
			for (i = 0; i < n && !(row >= rows->cu_kv[i] && row < rows->cu_kv[i] + rows->nr_rows[i]); i++)
				;
			if (i < n)
				snprintf(pipe->report.text, sizeof(pipe->report.text),
					 "layer %u, sequence %u, group %u, plane %u, row %llu: %s", stage->layer, i, lg->group, p,
					 (unsigned long long)(row - rows->cu_kv[i] + rows->first[i]), what);
			else
				snprintf(pipe->report.text, sizeof(pipe->report.text),
					 "layer %u, behind the rows of sequence %u, group %u, plane %u, row %llu of the view: %s",
					 stage->layer, n - 1, lg->group, p, (unsigned long long)row, what);
			return;
		}
	}
	snprintf(pipe->report.text, sizeof(pipe->report.text),
		 "layer %u, sequences 0 to %u, between the planes, byte %llu of the buffer: %s", stage->layer, n - 1,
		 (unsigned long long)off, what);
}

/* First byte of [from, to) that is not poison; @to when all are. */
static uint64_t first_touched(const uint8_t *slot, uint64_t from, uint64_t to)
{
	while (from < to && slot[from] == OKV_POISON_BYTE)
		from++;
	return from;
}

/* Loaded pieces whose bytes are no longer what arrived; state rows are the kernel's to change. */
static void check_pieces(const struct okv_pipe_stage *stage, bool is_after, const char *what)
{
	const struct okv_pipe_op *load = &stage->load;
	uint64_t base = stage->slot * stage->pipe->slot_bytes;
	uint32_t r, i;

	for (r = 0; r < load->nr_runs; r++) {
		const struct okv_pipe_run *run = &load->runs[r];

		if (is_after && stage->pipe->plan->layout.groups[run->group].tokens_per_entry == 0)
			continue;
		for (i = run->first_piece; i < run->first_piece + run->nr_pieces; i++) {
			const struct omnikv_piece *piece = &load->pieces[i];
			const uint8_t *at = slot_of(stage) + (piece->device_off - base);

			if (load->valid[i / 64] >> (i % 64) & 1 && okv_crc32c(at, piece->bytes) != load->crc[i])
				report(stage, piece->device_off - base, what);
		}
	}
}

/* New rows of a sequence in a plane: @from to @to in the slot; false where there are none. */
static bool new_span(const struct okv_pipe_stage *stage, const struct okv_pipe_group *lg, uint32_t plane, uint32_t i,
		     struct span *span)
{
	const struct omnikv_pipe *pipe = stage->pipe;
	const struct okv_pipe_rows *rows = &pipe->tiles[stage->tile].rows[lg->group];
	uint64_t row_bytes = pipe->plan->groups[lg->group].row_bytes[plane];
	uint64_t end = rows->cu_kv[i] + rows->nr_rows[i];

	if (lg->alias_of >= 0 || !pipe->step.seqs[i].seq || rows->new_row[i] == OMNIKV_ROW_NONE ||
	    pipe->step.seqs[i].new_tokens == 0 || rows->new_row[i] >= end)
		return false;
	span->from = lg->plane_off[plane] + rows->new_row[i] * row_bytes;
	span->to = lg->plane_off[plane] + end * row_bytes;
	return true;
}

/* Everything but @spans is poison. */
static void check_rest(const struct okv_pipe_stage *stage, struct span *spans, size_t nr, const char *what)
{
	const uint8_t *slot = slot_of(stage);
	uint64_t at = 0, touched;
	size_t i;

	qsort(spans, nr, sizeof(*spans), span_cmp);
	for (i = 0; i <= nr; i++) {
		uint64_t to = i < nr ? spans[i].from : stage->pipe->slot_bytes;

		touched = first_touched(slot, at, to);
		if (touched < to) {
			report(stage, touched, what);
			return;
		}
		if (i < nr && spans[i].to > at)
			at = spans[i].to;
	}
}

/* Pieces and, after the kernel, new rows. Aborted sequences' rows are nobody's: what is in them does not matter. */
static size_t spans_of(const struct okv_pipe_stage *stage, bool is_after, struct span *spans)
{
	const struct omnikv_pipe *pipe = stage->pipe;
	const struct okv_pipe_layer *layer = &pipe->layers[stage->layer];
	const struct okv_pipe_tile *tile = &pipe->tiles[stage->tile];
	uint64_t base = stage->slot * pipe->slot_bytes;
	uint32_t g, p, i;
	size_t nr = 0;

	for (i = 0; i < stage->load.nr_pieces; i++)
		spans[nr++] = (struct span){ stage->load.pieces[i].device_off - base,
					     stage->load.pieces[i].device_off - base + stage->load.pieces[i].bytes };
	for (g = 0; g < layer->nr_groups; g++) {
		const struct okv_pipe_group *lg = &layer->groups[g];
		const struct okv_pipe_rows *rows = &tile->rows[lg->group];

		for (p = 0; p < pipe->plan->layout.groups[lg->group].nr_planes; p++) {
			for (i = 0; i < pipe->step.nr_seqs; i++) {
				uint64_t row_bytes = pipe->plan->groups[lg->group].row_bytes[p];

				if (!pipe->step.seqs[i].seq)
					spans[nr++] = (struct span){
						lg->plane_off[p] + rows->cu_kv[i] * row_bytes,
						lg->plane_off[p] + (rows->cu_kv[i] + rows->nr_rows[i]) * row_bytes };
				else if (is_after && new_span(stage, lg, p, i, &spans[nr]))
					nr++;
			}
		}
	}
	return nr;
}

static struct span *spans_alloc(const struct okv_pipe_stage *stage)
{
	return calloc(stage->load.nr_pieces +
		      (size_t)OMNIKV_GROUPS_MAX * OMNIKV_PLANES_MAX * stage->pipe->step.nr_seqs + 1, sizeof(struct span));
}

static void before_run(void *arg)
{
	struct okv_pipe_stage *stage = arg;
	struct span *spans = spans_alloc(stage);

	check_pieces(stage, false, "written while it was not shown (after a release?)");
	if (spans)
		check_rest(stage, spans, spans_of(stage, false, spans), "written after its release");
	free(spans);
}

/* New rows that are still poison. */
static void check_written(const struct okv_pipe_stage *stage)
{
	const struct omnikv_pipe *pipe = stage->pipe;
	const struct okv_pipe_layer *layer = &pipe->layers[stage->layer];
	const uint8_t *slot = slot_of(stage);
	uint32_t g, p, i;
	struct span span;

	for (g = 0; g < layer->nr_groups; g++) {
		const struct okv_pipe_group *lg = &layer->groups[g];

		for (p = 0; p < pipe->plan->layout.groups[lg->group].nr_planes; p++) {
			uint64_t row_bytes = pipe->plan->groups[lg->group].row_bytes[p], at;

			for (i = 0; i < pipe->step.nr_seqs && row_bytes >= ROW_BYTES_MIN; i++) {
				if (!new_span(stage, lg, p, i, &span))
					continue;
				for (at = span.from; at < span.to; at += row_bytes) {
					if (first_touched(slot, at, at + row_bytes) == at + row_bytes)
						report(stage, at, "a new row that the kernel did not write (wrong stride?)");
				}
			}
		}
	}
}

static void after_run(void *arg)
{
	struct okv_pipe_stage *stage = arg;
	struct span *spans = spans_alloc(stage);

	check_pieces(stage, true, "history that the kernel wrote");
	if (spans)
		check_rest(stage, spans, spans_of(stage, true, spans), "outside of all rows, and the kernel wrote it");
	check_written(stage);
	free(spans);
}

static void poison_run(void *arg)
{
	struct okv_pipe_stage *stage = arg;

	memset(slot_of(stage), OKV_POISON_BYTE, stage->pipe->slot_bytes);
}

int okv_pipe_debug_before(struct okv_pipe_stage *stage, struct omnikv_stream *stream)
{
	return omnikv_stream_launch(stream, 0, before_run, stage);
}

int okv_pipe_debug_after(struct okv_pipe_stage *stage, struct omnikv_stream *stream)
{
	return omnikv_stream_launch(stream, 0, after_run, stage);
}

int okv_pipe_debug_poison(struct okv_pipe_stage *stage)
{
	struct omnikv_stream *aux = stage->pipe->aux;
	int ret;

	ret = omnikv_stream_wait(aux, stage->freed);
	if (!ret)
		ret = omnikv_stream_launch(aux, 0, poison_run, stage);
	if (!ret)
		ret = omnikv_stream_record(aux, stage->poisoned);
	return ret;
}

const char *omnikv_pipe_report(const struct omnikv_pipe *pipe)
{
	return pipe->report.text;
}

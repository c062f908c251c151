// SPDX-License-Identifier: MIT
/*
 * Which segment of a spill store is given up next: the cheapest to lose for what it gives.
 * Pure; any thread.
 */
#include "spill/store.h"

uint32_t okv_reclaim_choose(const struct okv_reclaim_view *views, uint32_t nr, uint64_t segment_bytes)
{
	uint32_t best = OKV_CATALOG_NONE;
	double best_score = 0;

	for (uint32_t i = 0; i < nr; i++) {
		const struct okv_reclaim_view *v = &views[i];
		uint64_t moved = segment_bytes >> OKV_RECLAIM_MOVE_SHIFT;
		double gain, cost, score;

		if (!v->is_candidate)
			continue;
		moved = v->hot_bytes < moved ? v->hot_bytes : moved;
		gain = (double)(segment_bytes - moved);
		cost = (double)v->hot_bytes + (double)(v->live_bytes - v->hot_bytes) / 4 + OKV_SPILL_PAGE;
		score = (gain + 1) * ((double)v->age_ns + 1) / cost;
		if (best == OKV_CATALOG_NONE || score > best_score) {
			best = i;
			best_score = score;
		}
	}
	return best;
}

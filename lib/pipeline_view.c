// SPDX-License-Identifier: MIT
/*
 * What can be asked of a view: one lane of it, its pages, whether a kernel takes it for what it is.
 *
 * A view's rows are placed by pipeline.c; nothing here changes a pipe. Pure; any thread.
 */
#include <errno.h>
#include <stdio.h>

#include <omnikv/pipeline.h>

int omnikv_view_lane(const struct omnikv_view *view, enum omnikv_lane lane, struct omnikv_view *out)
{
	uint32_t first, nr = 0, i, g;

	for (first = 0; first < view->nr_seqs && view->lanes[first] != lane; first++)
		;
	while (first + nr < view->nr_seqs && view->lanes[first + nr] == lane)
		nr++;
	for (i = first + nr; i < view->nr_seqs; i++) {
		if (view->lanes[i] == lane)
			return -EINVAL;
	}
	if (nr == 0)
		return 0;
	*out = *view;
	out->first_seq += first;
	out->nr_seqs = nr;
	out->lanes += first;
	for (g = 0; g < out->nr_groups; g++) {
		out->groups[g].cu_kv += first;
		out->groups[g].nr_rows += first;
		out->groups[g].new_row += first;
		out->groups[g].first += first;
	}
	return (int)nr;
}

int64_t omnikv_view_block_table(const struct omnikv_view *view, uint32_t group_idx, uint32_t seq_idx, uint32_t *pages,
				size_t max)
{
	const struct omnikv_group_view *gv = &view->groups[group_idx];
	uint64_t first, nr, p;

	if (!view->page_rows || group_idx >= view->nr_groups || seq_idx >= view->nr_seqs ||
	    gv->cu_kv[seq_idx] % view->page_rows)
		return -EINVAL;
	first = gv->cu_kv[seq_idx] / view->page_rows;
	nr = (gv->nr_rows[seq_idx] + view->page_rows - 1) / view->page_rows;
	/* Rows of groups that are not padded would be another sequence's. */
	if (nr && gv->cu_kv[seq_idx + 1] < gv->cu_kv[seq_idx] + nr * view->page_rows)
		return -EINVAL;
	if (nr > max || first + nr > UINT32_MAX)
		return -ENOSPC;
	for (p = 0; p < nr; p++)
		pages[p] = (uint32_t)(first + p);
	return (int64_t)nr;
}

int omnikv_view_expect(const struct omnikv_plan *plan, const struct omnikv_view *view, uint32_t group_idx, uint32_t plane,
		       enum omnikv_dtype dtype, uint32_t heads, uint32_t elems, uint64_t row_stride_bytes,
		       struct omnikv_error *err)
{
	const struct omnikv_plane *is;
	char what[96] = "";

	if (group_idx >= view->nr_groups || plane >= view->groups[group_idx].nr_planes) {
		snprintf(what, sizeof(what), "there is none");
	} else {
		is = &plan->layout.groups[view->groups[group_idx].group].planes[plane];
		if (is->dtype != dtype)
			snprintf(what, sizeof(what), "elements are %s, the kernel takes %s", omnikv_dtype_name(is->dtype),
				 omnikv_dtype_name(dtype));
		else if (is->heads != heads || is->elems != elems)
			snprintf(what, sizeof(what), "rows are [%u][%u], the kernel takes [%u][%u]", is->heads, is->elems,
				 heads, elems);
		else if (view->groups[group_idx].planes[plane].row_bytes != row_stride_bytes)
			snprintf(what, sizeof(what), "rows are %llu bytes apart, the kernel takes %llu",
				 (unsigned long long)view->groups[group_idx].planes[plane].row_bytes,
				 (unsigned long long)row_stride_bytes);
	}
	if (!what[0])
		return 0;
	if (err)
		snprintf(err->text, sizeof(err->text), "layer %u, group %u of the view, plane %u: %s", view->layer, group_idx,
			 plane, what);
	return -EINVAL;
}

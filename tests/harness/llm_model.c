/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The small transformer: weights, layers in the canonical order of attention, plain arrays.
 *
 * Every token's arithmetic is the same whatever other tokens are computed with it: rows are
 * multiplied one by one and sums run from left to right. Compiled without contraction of
 * multiplications and additions, so that two compilers agree too.
 */
#include "llm_model.h"

#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static uint64_t next_random(uint64_t *seed)
{
	uint64_t z = *seed += 0x9e3779b97f4a7c15ull;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ z >> 27) * 0x94d049bb133111ebull;
	return z ^ z >> 31;
}

static void *must_alloc(size_t nr, size_t bytes)
{
	void *p = calloc(nr ? nr : 1, bytes);

	assert_non_null(p);
	return p;
}

/* ---- shape ---------------------------------------------------------------------------------- */

uint32_t llm_nr_planes(enum llm_kind kind)
{
	return kind == LLM_FULL || kind == LLM_WINDOW ? 2 : 1;
}

uint64_t llm_row_bytes(const struct llm_shape *shape, enum llm_kind kind, uint32_t plane)
{
	if (plane >= llm_nr_planes(kind))
		return 0;
	if (kind == LLM_LATENT)
		return (uint64_t)(shape->latent + shape->rope) * sizeof(float);
	if (kind == LLM_STATE)
		return (uint64_t)shape->heads * shape->head_dim * shape->head_dim * sizeof(float);
	return (uint64_t)shape->kv_heads * shape->head_dim * sizeof(float);
}

/* Elements of one head's query, and of what it sums up. */
static uint32_t query_elems(const struct llm_shape *s, enum llm_kind kind)
{
	return kind == LLM_LATENT ? s->latent + s->rope : s->head_dim;
}

static uint32_t value_elems(const struct llm_shape *s, enum llm_kind kind)
{
	return kind == LLM_LATENT ? s->latent : s->head_dim;
}

static uint32_t kind_heads(const struct llm_shape *s, enum llm_kind kind)
{
	return kind == LLM_STATE ? s->heads : s->kv_heads;
}

/* Rows of wq: latents have a rotated part behind each head's. */
static uint32_t wq_rows(const struct llm_shape *s, enum llm_kind kind)
{
	return s->heads * (s->head_dim + (kind == LLM_LATENT ? s->rope : 0));
}

uint32_t llm_group(const struct llm_model *model, uint32_t layer)
{
	bool has[4] = { false };
	uint32_t group = 0, k, l;

	for (l = 0; l < model->shape.nr_layers; l++)
		has[model->shape.kinds[l]] = true;
	for (k = 0; k < model->shape.kinds[layer]; k++)
		group += has[k];
	return group;
}

void llm_layout(const struct llm_model *model, const char *name, struct omnikv_layout *layout)
{
	static const enum omnikv_group_kind kinds[] = {
		OMNIKV_GROUP_FULL, OMNIKV_GROUP_SWA, OMNIKV_GROUP_MLA_LATENT, OMNIKV_GROUP_RECURRENT,
	};
	const struct llm_shape *s = &model->shape;
	uint32_t all, g, k, l;

	memset(layout, 0, sizeof(*layout));
	snprintf(layout->name, sizeof(layout->name), "%s", name);
	layout->nr_layers = s->nr_layers;
	for (k = 0; k < 4; k++) {
		struct omnikv_group *group = &layout->groups[layout->nr_groups];

		for (l = 0; l < s->nr_layers; l++) {
			if (s->kinds[l] != k)
				continue;
			group->layers[group->nr_layers] = (uint16_t)l;
			group->alias_of[group->nr_layers++] = -1;
		}
		if (!group->nr_layers)
			continue;
		layout->nr_groups++;
		group->kind = kinds[k];
		group->residency = OMNIKV_RESIDENCY_RING;
		group->tokens_per_entry = k != LLM_STATE;
		group->window = k == LLM_WINDOW ? s->window : 0;
		group->nr_planes = llm_nr_planes(k);
		group->planes[0] = (struct omnikv_plane){ OMNIKV_PLANE_K, OMNIKV_DTYPE_F32, s->kv_heads, s->head_dim,
							  OMNIKV_SHARD_NONE, false };
		group->planes[1] = group->planes[0];
		group->planes[1].role = OMNIKV_PLANE_V;
		if (k == LLM_LATENT)
			group->planes[0] = (struct omnikv_plane){ OMNIKV_PLANE_LATENT, OMNIKV_DTYPE_F32, 1,
								  s->latent + s->rope, OMNIKV_SHARD_NONE, true };
		if (k == LLM_STATE) {
			group->planes[0] = (struct omnikv_plane){ OMNIKV_PLANE_STATE, OMNIKV_DTYPE_F32, s->heads,
								  s->head_dim * s->head_dim, OMNIKV_SHARD_NONE, false };
			group->reuse = OMNIKV_REUSE_EXACT;
			group->rollback = OMNIKV_ROLLBACK_SNAPSHOT;
		}
		if (group->nr_planes == 1)
			memset(&group->planes[1], 0, sizeof(group->planes[1]));
	}
	all = (1u << layout->nr_groups) - 1;
	for (g = 0; g < layout->nr_groups; g++)
		layout->groups[g].atomic_with = all & ~(1u << g);
}

/* ---- weights -------------------------------------------------------------------------------- */

static const float *take(const float **at, size_t nr)
{
	const float *p = *at;

	*at += nr;
	return p;
}

/* Elements of a layer's weights, in the order of struct llm_layer. */
static void layer_sizes(const struct llm_shape *s, enum llm_kind kind, size_t sizes[10])
{
	size_t d = s->dim, hd = s->head_dim, h = s->heads;
	size_t kv = (size_t)kind_heads(s, kind) * hd * d;

	sizes[0] = d;
	sizes[1] = wq_rows(s, kind) * d;
	sizes[2] = kind == LLM_LATENT ? (size_t)(s->latent + s->rope) * d : kv;
	sizes[3] = kind == LLM_LATENT ? h * hd * s->latent : kv;
	sizes[4] = kind == LLM_LATENT ? h * hd * s->latent : 0;
	sizes[5] = h * hd * d;
	sizes[6] = d;
	sizes[7] = s->hidden * d;
	sizes[8] = s->hidden * d;
	sizes[9] = s->hidden * d;
}

void llm_model_random(struct llm_model *model, const struct llm_shape *shape, uint64_t seed)
{
	size_t sizes[10], total = (size_t)shape->vocab * shape->dim + shape->dim, i, n;
	const float *at;
	uint32_t l, k;
	float *w;

	assert_true(shape->nr_layers <= LLM_LAYERS_MAX);
	memset(model, 0, sizeof(*model));
	model->shape = *shape;
	for (l = 0; l < shape->nr_layers; l++) {
		layer_sizes(shape, shape->kinds[l], sizes);
		for (k = 0; k < 10; k++)
			total += sizes[k];
	}
	model->weights = must_alloc(total, sizeof(float));
	at = model->weights;
	model->embedding = take(&at, (size_t)shape->vocab * shape->dim);
	model->rms_final = take(&at, shape->dim);
	for (l = 0; l < shape->nr_layers; l++) {
		const float **fields = (const float **)&model->layers[l];

		layer_sizes(shape, shape->kinds[l], sizes);
		for (k = 0; k < 10; k++)
			fields[k] = take(&at, sizes[k]);
	}
	n = total;
	for (i = 0, w = model->weights; i < n; i++)
		w[i] = ((float)(next_random(&seed) >> 40) / 8388608.0f - 1.0f) * 1.7f / sqrtf((float)shape->dim);
	/* Norms near 1. */
	for (l = 0; l <= shape->nr_layers; l++) {
		const struct llm_layer *layer = &model->layers[l < shape->nr_layers ? l : 0];

		for (i = 0; i < shape->dim; i++) {
			model->weights[layer->rms_att - model->weights + (ptrdiff_t)i] += 1.0f;
			model->weights[layer->rms_ffn - model->weights + (ptrdiff_t)i] += 1.0f;
			if (l == shape->nr_layers)
				model->weights[model->rms_final - model->weights + (ptrdiff_t)i] += 1.0f;
		}
	}
}

int llm_model_load(struct llm_model *model, const char *path)
{
	struct llm_shape *s = &model->shape;
	FILE *file = fopen(path, "rb");
	int32_t head[7];
	size_t d, hd, L, l, total;
	const float *at;

	if (!file)
		return -ENOENT;
	memset(model, 0, sizeof(*model));
	if (fread(head, sizeof(head), 1, file) != 1 || head[2] > (int32_t)LLM_LAYERS_MAX || head[5] <= 0) {
		fclose(file);
		return -EBADMSG;
	}
	*s = (struct llm_shape){
		.dim = (uint32_t)head[0], .hidden = (uint32_t)head[1], .nr_layers = (uint32_t)head[2],
		.heads = (uint32_t)head[3], .kv_heads = (uint32_t)head[4], .vocab = (uint32_t)head[5],
		.head_dim = (uint32_t)(head[0] / head[3]),
	};
	d = s->dim;
	hd = s->head_dim;
	L = s->nr_layers;
	total = s->vocab * d + L * (2 * d + 2 * d * d + 2 * s->kv_heads * hd * d + 3 * s->hidden * d) + d;
	model->weights = must_alloc(total, sizeof(float));
	l = fread(model->weights, sizeof(float), total, file);
	fclose(file);
	if (l != total) {
		llm_model_free(model);
		return -EBADMSG;
	}
	/* One kind of weight after another, each of all layers. */
	at = model->weights;
	model->embedding = take(&at, s->vocab * d);
#define LLM_TAKE(field, nr) do { for (l = 0; l < L; l++) model->layers[l].field = take(&at, nr); } while (0)
	LLM_TAKE(rms_att, d);
	LLM_TAKE(wq, d * d);
	LLM_TAKE(wk, s->kv_heads * hd * d);
	LLM_TAKE(wv, s->kv_heads * hd * d);
	LLM_TAKE(wo, d * d);
	LLM_TAKE(rms_ffn, d);
	LLM_TAKE(w1, s->hidden * d);
	LLM_TAKE(w2, s->hidden * d);
	LLM_TAKE(w3, s->hidden * d);
#undef LLM_TAKE
	model->rms_final = take(&at, d);
	return 0;
}

void llm_model_cut(struct llm_model *draft, const struct llm_model *model, uint32_t nr_layers)
{
	*draft = *model;
	draft->weights = NULL;
	draft->shape.nr_layers = nr_layers;
}

void llm_model_free(struct llm_model *model)
{
	free(model->weights);
	model->weights = NULL;
}

/* ---- arithmetic ----------------------------------------------------------------------------- */

static float dot(const float *a, const float *b, uint32_t nr)
{
	float sum = 0.0f;

	for (uint32_t i = 0; i < nr; i++)
		sum += a[i] * b[i];
	return sum;
}

static void matvec(float *out, const float *w, const float *x, uint32_t rows, uint32_t cols)
{
	for (uint32_t r = 0; r < rows; r++)
		out[r] = dot(w + (size_t)r * cols, x, cols);
}

static void rmsnorm(float *out, const float *x, const float *weight, uint32_t nr)
{
	float scale = 1.0f / sqrtf(dot(x, x, nr) / (float)nr + 1e-5f);

	for (uint32_t i = 0; i < nr; i++)
		out[i] = weight[i] * (scale * x[i]);
}

static void rotate(float *v, uint32_t nr, uint64_t pos)
{
	for (uint32_t i = 0; i + 1 < nr; i += 2) {
		float angle = (float)pos * (1.0f / powf(10000.0f, (float)i / (float)nr));
		float c = cosf(angle), s = sinf(angle), a = v[i], b = v[i + 1];

		v[i] = a * c - b * s;
		v[i + 1] = a * s + b * c;
	}
}

/* Tokens from the first new one to @i, itself included, along the tree. */
static uint32_t depth_of(const struct llm_act *act, uint32_t i)
{
	uint32_t depth = 0;

	if (!act->parent)
		return i;
	while ((i = act->parent[i]) != LLM_TREE_ROOT)
		depth++;
	return depth;
}

/* path[d]: the token at depth d on the way to @i. Returns the depth of @i. */
static uint32_t path_of(const struct llm_act *act, uint32_t i, uint32_t *path)
{
	uint32_t depth = depth_of(act, i), d;

	for (d = depth; ; d--) {
		path[d] = i;
		if (d == 0)
			return depth;
		i = act->parent ? act->parent[i] : i - 1;
	}
}

/* ---- a layer -------------------------------------------------------------------------------- */

void llm_act_init(struct llm_act *act, const struct llm_model *model, uint32_t max)
{
	const struct llm_shape *s = &model->shape;
	uint32_t kv = s->heads > s->kv_heads ? s->heads : s->kv_heads;
	uint32_t elems = kv * s->head_dim;

	if (elems < s->latent + s->rope)
		elems = s->latent + s->rope;
	memset(act, 0, sizeof(*act));
	act->max = max;
	act->x = must_alloc((size_t)max * s->dim, sizeof(float));
	act->q = must_alloc((size_t)max * s->heads * (s->head_dim + s->latent + s->rope), sizeof(float));
	act->m = must_alloc((size_t)max * s->heads, sizeof(float));
	act->l = must_alloc((size_t)max * s->heads, sizeof(float));
	act->o = must_alloc((size_t)max * s->heads * (s->head_dim + s->latent), sizeof(float));
	act->rows[0] = must_alloc((size_t)max * elems, sizeof(float));
	act->rows[1] = must_alloc((size_t)max * elems, sizeof(float));
}

void llm_act_free(struct llm_act *act)
{
	free(act->x);
	free(act->q);
	free(act->m);
	free(act->l);
	free(act->o);
	free(act->rows[0]);
	free(act->rows[1]);
	memset(act, 0, sizeof(*act));
}

void llm_embed(const struct llm_model *model, struct llm_act *act, const uint32_t *tokens, uint32_t nr, uint64_t first)
{
	assert_true(nr <= act->max);
	act->nr = nr;
	act->first = first;
	for (uint32_t i = 0; i < nr; i++)
		memcpy(act->x + (size_t)i * model->shape.dim, model->embedding + (size_t)tokens[i] * model->shape.dim,
		       model->shape.dim * sizeof(float));
}

void llm_layer_begin(const struct llm_model *model, uint32_t layer, struct llm_act *act)
{
	const struct llm_shape *s = &model->shape;
	const struct llm_layer *w = &model->layers[layer];
	enum llm_kind kind = s->kinds[layer];
	uint32_t qn = query_elems(s, kind), vn = value_elems(s, kind), i, h;
	float *norm = must_alloc(s->dim, sizeof(float));
	float *raw = must_alloc(wq_rows(s, kind), sizeof(float));

	for (i = 0; i < act->nr; i++) {
		uint64_t pos = act->first + depth_of(act, i);
		float *q = act->q + (size_t)i * s->heads * qn;

		rmsnorm(norm, act->x + (size_t)i * s->dim, w->rms_att, s->dim);
		if (kind == LLM_LATENT) {
			uint32_t hn = s->head_dim + s->rope;
			float *row = act->rows[0] + (size_t)i * (s->latent + s->rope);

			matvec(raw, w->wq, norm, s->heads * hn, s->dim);
			matvec(row, w->wk, norm, s->latent + s->rope, s->dim);
			rotate(row + s->latent, s->rope, pos);
			for (h = 0; h < s->heads; h++) {
				const float *wuk = w->wuk + (size_t)h * s->head_dim * s->latent;
				float *qh = q + h * qn;

				/* The query in the space of latents, so that keys need not be made. */
				for (uint32_t c = 0; c < s->latent; c++) {
					qh[c] = 0.0f;
					for (uint32_t e = 0; e < s->head_dim; e++)
						qh[c] += wuk[(size_t)e * s->latent + c] * raw[h * hn + e];
				}
				memcpy(qh + s->latent, raw + h * hn + s->head_dim, s->rope * sizeof(float));
				rotate(qh + s->latent, s->rope, pos);
			}
		} else {
			uint32_t kvn = kind_heads(s, kind) * s->head_dim;

			matvec(q, w->wq, norm, s->heads * s->head_dim, s->dim);
			matvec(act->rows[0] + (size_t)i * kvn, w->wk, norm, kvn, s->dim);
			matvec(act->rows[1] + (size_t)i * kvn, w->wv, norm, kvn, s->dim);
			for (h = 0; h < s->heads && kind != LLM_STATE; h++)
				rotate(q + h * s->head_dim, s->head_dim, pos);
			for (h = 0; h < s->kv_heads && kind != LLM_STATE; h++)
				rotate(act->rows[0] + (size_t)i * kvn + h * s->head_dim, s->head_dim, pos);
		}
		for (h = 0; h < s->heads; h++) {
			act->m[(size_t)i * s->heads + h] = -INFINITY;
			act->l[(size_t)i * s->heads + h] = 0.0f;
			memset(act->o + ((size_t)i * s->heads + h) * vn, 0, vn * sizeof(float));
		}
	}
	free(norm);
	free(raw);
}

/* Fold @nr rows, the part of one tile that a query sees, into one head's accumulator. */
static void fold(const float *q, uint32_t qn, float scale, const uint8_t *const *keys, const uint8_t *const *values,
		 uint32_t nr, float *m, float *l, float *o, uint32_t vn)
{
	float scores[LLM_TILE_TOKENS], most = *m, keep;
	uint32_t i, e;

	for (i = 0; i < nr; i++) {
		scores[i] = dot(q, (const float *)(const void *)keys[i], qn) * scale;
		if (scores[i] > most)
			most = scores[i];
	}
	keep = expf(*m - most);
	*l *= keep;
	for (e = 0; e < vn; e++)
		o[e] *= keep;
	for (i = 0; i < nr; i++) {
		const float *v = (const float *)(const void *)values[i];
		float p = expf(scores[i] - most);

		*l += p;
		for (e = 0; e < vn; e++)
			o[e] += p * v[e];
	}
	*m = most;
}

void llm_layer_attend(const struct llm_model *model, uint32_t layer, struct llm_act *act, const void *const *planes,
		      uint64_t first, uint64_t nr)
{
	const struct llm_shape *s = &model->shape;
	enum llm_kind kind = s->kinds[layer];
	uint32_t qn = query_elems(s, kind), vn = value_elems(s, kind), i, h, r;
	uint64_t k_bytes = llm_row_bytes(s, kind, 0), v_bytes = kind == LLM_LATENT ? k_bytes : llm_row_bytes(s, kind, 1);
	const uint8_t *k = planes[0], *v = kind == LLM_LATENT ? planes[0] : planes[1];
	float scale = 1.0f / sqrtf((float)(s->head_dim + (kind == LLM_LATENT ? s->rope : 0)));
	uint32_t *path = must_alloc(act->nr, sizeof(*path));

	assert_true(first % LLM_TILE_TOKENS == 0);
	for (i = 0; i < act->nr; i++) {
		uint64_t pos = act->first + path_of(act, i, path), from = 0, end = pos + 1, t, at;

		if (kind == LLM_WINDOW && end > s->window)
			from = end - s->window;
		if (end > first + nr)
			end = first + nr;
		for (t = first; t < end; t += LLM_TILE_TOKENS) {
			const uint8_t *keys[LLM_TILE_TOKENS], *values[LLM_TILE_TOKENS];
			uint64_t tile_end = t + LLM_TILE_TOKENS < end ? t + LLM_TILE_TOKENS : end;

			r = 0;
			for (at = from > t ? from : t; at < tile_end; at++, r++) {
				uint64_t row = at < act->first ? at : act->first + path[at - act->first];

				keys[r] = k + (row - first) * k_bytes;
				values[r] = v + (row - first) * v_bytes;
			}
			for (h = 0; h < s->heads && r; h++) {
				size_t acc = (size_t)i * s->heads + h;
				const uint8_t *hk[LLM_TILE_TOKENS], *hv[LLM_TILE_TOKENS];
				uint32_t off = kind == LLM_LATENT ? 0 : h / (s->heads / s->kv_heads) * s->head_dim, j;

				for (j = 0; j < r; j++) {
					hk[j] = keys[j] + off * sizeof(float);
					hv[j] = values[j] + off * sizeof(float);
				}
				fold(act->q + acc * qn, qn, scale, hk, hv, r, &act->m[acc], &act->l[acc],
				     act->o + acc * vn, vn);
			}
		}
	}
	free(path);
}

void llm_layer_state(const struct llm_model *model, uint32_t layer, struct llm_act *act, const void *state,
		     void *const *out)
{
	const struct llm_shape *s = &model->shape;
	size_t bytes = llm_row_bytes(s, LLM_STATE, 0);
	uint32_t hd = s->head_dim, i, h, a, b;
	float *states = must_alloc(act->nr, bytes);
	float *zero = must_alloc(1, bytes);

	(void)layer;
	for (i = 0; i < act->nr; i++) {
		float *st = states + i * bytes / sizeof(float);
		uint32_t parent = act->parent ? act->parent[i] : i ? i - 1 : LLM_TREE_ROOT;

		if (parent != LLM_TREE_ROOT)
			memcpy(st, states + parent * bytes / sizeof(float), bytes);
		else
			memcpy(st, act->first ? state : zero, bytes);
		for (h = 0; h < s->heads; h++) {
			const float *k = act->rows[0] + ((size_t)i * s->heads + h) * hd;
			const float *v = act->rows[1] + ((size_t)i * s->heads + h) * hd;
			const float *q = act->q + ((size_t)i * s->heads + h) * hd;
			float *o = act->o + ((size_t)i * s->heads + h) * hd;
			float *sh = st + (size_t)h * hd * hd, decay = 1.0f - 1.0f / (float)(8u << (h % 4));

			for (a = 0; a < hd; a++) {
				for (b = 0; b < hd; b++) {
					sh[a * hd + b] = sh[a * hd + b] * decay + k[a] * v[b];
					o[b] += q[a] * sh[a * hd + b];
				}
			}
			act->l[(size_t)i * s->heads + h] = (float)hd;
		}
	}
	/* After all are computed: the last one's row may be the one that was read. */
	for (i = 0; i < act->nr; i++)
		if (out[i])
			memcpy(out[i], states + i * bytes / sizeof(float), bytes);
	free(states);
	free(zero);
}

void llm_layer_finish(const struct llm_model *model, uint32_t layer, struct llm_act *act)
{
	const struct llm_shape *s = &model->shape;
	const struct llm_layer *w = &model->layers[layer];
	enum llm_kind kind = s->kinds[layer];
	uint32_t vn = value_elems(s, kind), i, h, e;
	float *heads = must_alloc((size_t)s->heads * s->head_dim, sizeof(float));
	float *out = must_alloc(s->dim, sizeof(float)), *norm = must_alloc(s->dim, sizeof(float));
	float *h1 = must_alloc(s->hidden, sizeof(float)), *h3 = must_alloc(s->hidden, sizeof(float));

	for (i = 0; i < act->nr; i++) {
		float *x = act->x + (size_t)i * s->dim;

		for (h = 0; h < s->heads; h++) {
			size_t acc = (size_t)i * s->heads + h;
			float *o = act->o + acc * vn;

			for (e = 0; e < vn; e++)
				o[e] /= act->l[acc];
			if (kind == LLM_LATENT)
				matvec(heads + h * s->head_dim, w->wv + (size_t)h * s->head_dim * s->latent, o, s->head_dim,
				       s->latent);
			else
				memcpy(heads + h * s->head_dim, o, vn * sizeof(float));
		}
		matvec(out, w->wo, heads, s->dim, s->heads * s->head_dim);
		for (e = 0; e < s->dim; e++)
			x[e] += out[e];
		rmsnorm(norm, x, w->rms_ffn, s->dim);
		matvec(h1, w->w1, norm, s->hidden, s->dim);
		matvec(h3, w->w3, norm, s->hidden, s->dim);
		for (e = 0; e < s->hidden; e++)
			h1[e] = h1[e] * (1.0f / (1.0f + expf(-h1[e]))) * h3[e];
		matvec(out, w->w2, h1, s->dim, s->hidden);
		for (e = 0; e < s->dim; e++)
			x[e] += out[e];
	}
	free(heads);
	free(out);
	free(norm);
	free(h1);
	free(h3);
}

void llm_logits(const struct llm_model *model, const struct llm_act *act, uint32_t i, float *logits)
{
	float *norm = must_alloc(model->shape.dim, sizeof(float));

	rmsnorm(norm, act->x + (size_t)i * model->shape.dim, model->rms_final, model->shape.dim);
	matvec(logits, model->embedding, norm, model->shape.vocab, model->shape.dim);
	free(norm);
}

uint32_t llm_argmax(const float *logits, uint32_t nr)
{
	uint32_t best = 0;

	for (uint32_t i = 1; i < nr; i++)
		if (logits[i] > logits[best])
			best = i;
	return best;
}

/* ---- plain arrays --------------------------------------------------------------------------- */

void llm_plain_init(struct llm_plain *plain, const struct llm_model *model, uint64_t max)
{
	memset(plain, 0, sizeof(*plain));
	plain->model = model;
	plain->max = max;
	llm_act_init(&plain->act, model, 1);
	for (uint32_t l = 0; l < model->shape.nr_layers; l++) {
		enum llm_kind kind = model->shape.kinds[l];

		for (uint32_t p = 0; p < llm_nr_planes(kind); p++)
			plain->planes[l][p] = must_alloc(kind == LLM_STATE ? 1 : max, llm_row_bytes(&model->shape, kind, p));
	}
}

void llm_plain_free(struct llm_plain *plain)
{
	llm_act_free(&plain->act);
	for (uint32_t l = 0; l < plain->model->shape.nr_layers; l++)
		for (uint32_t p = 0; p < 2; p++)
			free(plain->planes[l][p]);
}

void llm_plain_step(struct llm_plain *plain, uint32_t token, float *logits)
{
	const struct llm_model *model = plain->model;

	assert_true(plain->nr < plain->max);
	llm_embed(model, &plain->act, &token, 1, plain->nr);
	for (uint32_t l = 0; l < model->shape.nr_layers; l++) {
		enum llm_kind kind = model->shape.kinds[l];

		llm_layer_begin(model, l, &plain->act);
		if (kind == LLM_STATE) {
			void *out[1] = { plain->planes[l][0] };

			llm_layer_state(model, l, &plain->act, plain->planes[l][0], out);
		} else {
			const void *planes[2] = { plain->planes[l][0], plain->planes[l][1] };

			for (uint32_t p = 0; p < llm_nr_planes(kind); p++) {
				uint64_t n = llm_row_bytes(&model->shape, kind, p);

				memcpy(plain->planes[l][p] + plain->nr * n, plain->act.rows[p], n);
			}
			llm_layer_attend(model, l, &plain->act, planes, 0, plain->nr + 1);
		}
		llm_layer_finish(model, l, &plain->act);
	}
	llm_logits(model, &plain->act, 0, logits);
	plain->nr++;
}

/* ---- text ----------------------------------------------------------------------------------- */

int llm_vocab_load(struct llm_vocab *vocab, const char *path, uint32_t nr)
{
	FILE *file = fopen(path, "rb");
	int32_t most, len;
	float score;

	if (!file)
		return -ENOENT;
	vocab->nr = nr;
	vocab->texts = must_alloc(nr, sizeof(*vocab->texts));
	if (fread(&most, sizeof(most), 1, file) != 1)
		goto err_bad;
	for (uint32_t i = 0; i < nr; i++) {
		if (fread(&score, sizeof(score), 1, file) != 1 || fread(&len, sizeof(len), 1, file) != 1 || len < 0 ||
		    len > 4096)
			goto err_bad;
		vocab->texts[i] = must_alloc((size_t)len + 1, 1);
		if (len && fread(vocab->texts[i], (size_t)len, 1, file) != 1)
			goto err_bad;
	}
	fclose(file);
	return 0;

err_bad:
	fclose(file);
	llm_vocab_free(vocab);
	return -EBADMSG;
}

void llm_vocab_free(struct llm_vocab *vocab)
{
	for (uint32_t i = 0; i < vocab->nr; i++)
		free(vocab->texts[i]);
	free(vocab->texts);
}

size_t llm_vocab_text(const struct llm_vocab *vocab, uint32_t before, uint32_t token, char *text, size_t max)
{
	const char *piece = vocab->texts[token];
	unsigned int byte;
	size_t len;

	/* Nothing stands before the first word; tokens such as <0x0A> are bytes. */
	if (before == 1 && piece[0] == ' ')
		piece++;
	if (sscanf(piece, "<0x%02X>", &byte) == 1) {
		text[0] = (char)byte;
		return 1;
	}
	len = strlen(piece);
	assert_true(len <= max);
	memcpy(text, piece, len);
	return len;
}

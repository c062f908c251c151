/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A small transformer in plain C, fp32: a fixture for tests, not a product.
 *
 * Layers of four kinds: grouped-query attention, the same with a sliding window, a latent
 * (one shared row from which keys and values of all heads follow), and a recurrent state.
 * Attention is folded in tiles of 64 tokens by absolute position, left to right, into one
 * (m, l, o) accumulator a query and head, so that the same rows give the same bits however
 * they are cut into chunks, batches and tiles. Pure; any thread.
 */
#ifndef LLM_MODEL_H
#define LLM_MODEL_H

#include <omnikv/layout.h>

#define LLM_LAYERS_MAX	8u
#define LLM_TILE_TOKENS	64u
#define LLM_TREE_ROOT	UINT32_MAX

enum llm_kind { LLM_FULL, LLM_WINDOW, LLM_LATENT, LLM_STATE };

/**
 * @kv_heads: of FULL and WINDOW layers
 * @window:   tokens that a WINDOW layer attends
 * @latent, @rope: elements of a LATENT layer's row: the latent itself and the rotated part behind it
 */
struct llm_shape {
	uint32_t	dim;
	uint32_t	hidden;
	uint32_t	nr_layers;
	uint32_t	heads;
	uint32_t	kv_heads;
	uint32_t	head_dim;
	uint32_t	vocab;
	uint32_t	window;
	uint32_t	latent;
	uint32_t	rope;
	enum llm_kind	kinds[LLM_LAYERS_MAX];
};

struct llm_layer {
	const float	*rms_att;
	const float	*wq;
	const float	*wk;		/* LATENT: [latent + rope][dim] */
	const float	*wv;		/* LATENT: [heads][head_dim][latent], values from latents */
	const float	*wuk;		/* LATENT: [heads][head_dim][latent], keys from latents */
	const float	*wo;
	const float	*rms_ffn;
	const float	*w1;
	const float	*w2;
	const float	*w3;
};

struct llm_model {
	struct llm_shape	shape;
	float			*weights;
	const float		*embedding;
	const float		*rms_final;
	struct llm_layer	layers[LLM_LAYERS_MAX];
};

/** Weights follow from @seed. Asserts on memory. */
void llm_model_random(struct llm_model *model, const struct llm_shape *shape, uint64_t seed);
/** A llama2.c "version 0" file. -ENOENT, -EBADMSG. */
int llm_model_load(struct llm_model *model, const char *path);
/** The first @nr_layers of @model as a model of its own, which shares its weights. */
void llm_model_cut(struct llm_model *draft, const struct llm_model *model, uint32_t nr_layers);
void llm_model_free(struct llm_model *model);
/** One group of layers for each kind. */
void llm_layout(const struct llm_model *model, const char *name, struct omnikv_layout *layout);
/** Group of @layer in that layout. */
uint32_t llm_group(const struct llm_model *model, uint32_t layer);
uint32_t llm_nr_planes(enum llm_kind kind);
/** Bytes of one row of a plane. */
uint64_t llm_row_bytes(const struct llm_shape *shape, enum llm_kind kind, uint32_t plane);

/**
 * struct llm_act - tokens of one sequence on their way through the layers
 * @first:  position of the first of them
 * @parent: [nr] index of the token before each in a tree of drafts, LLM_TREE_ROOT for the last token
 *          of the history; NULL: each follows the one before
 * @rows:   [2] new rows of the layer under way, [nr][row_bytes]
 */
struct llm_act {
	uint32_t	nr;
	uint32_t	max;
	uint64_t	first;
	const uint32_t	*parent;
	float		*x;
	float		*q;
	float		*m;
	float		*l;
	float		*o;
	float		*rows[2];
};

void llm_act_init(struct llm_act *act, const struct llm_model *model, uint32_t max);
void llm_act_free(struct llm_act *act);
/** Begin with embeddings of @tokens at positions from @first on. */
void llm_embed(const struct llm_model *model, struct llm_act *act, const uint32_t *tokens, uint32_t nr, uint64_t first);
/** Queries, and the new rows into @act. */
void llm_layer_begin(const struct llm_model *model, uint32_t layer, struct llm_act *act);
/**
 * Attend to rows [@first, @first + @nr) of the sequence; @planes point to the row of token @first, which
 * is a multiple of LLM_TILE_TOKENS. The call with the last tile has all new rows in it.
 */
void llm_layer_attend(const struct llm_model *model, uint32_t layer, struct llm_act *act, const void *const *planes,
		      uint64_t first, uint64_t nr);
/**
 * STATE layers instead of attending: @state is the row at the end of the history (ignored when that is
 * empty), @out[i] the row that gets the state after token i, or NULL.
 */
void llm_layer_state(const struct llm_model *model, uint32_t layer, struct llm_act *act, const void *state,
		     void *const *out);
/** The rest of the layer. */
void llm_layer_finish(const struct llm_model *model, uint32_t layer, struct llm_act *act);
/** Logits after token @i. */
void llm_logits(const struct llm_model *model, const struct llm_act *act, uint32_t i, float *logits);
uint32_t llm_argmax(const float *logits, uint32_t nr);

/** The reference: all KV in plain arrays. */
struct llm_plain {
	const struct llm_model	*model;
	struct llm_act		act;
	uint64_t		max;
	uint64_t		nr;
	uint8_t			*planes[LLM_LAYERS_MAX][2];
};

void llm_plain_init(struct llm_plain *plain, const struct llm_model *model, uint64_t max);
void llm_plain_free(struct llm_plain *plain);
/** @logits: [vocab] after this token. */
void llm_plain_step(struct llm_plain *plain, uint32_t token, float *logits);

/** Text of llama2.c's tokenizers: what @token prints behind @before. @path as tok512.bin. */
struct llm_vocab {
	uint32_t	nr;
	char		**texts;
};
int llm_vocab_load(struct llm_vocab *vocab, const char *path, uint32_t nr);
void llm_vocab_free(struct llm_vocab *vocab);
size_t llm_vocab_text(const struct llm_vocab *vocab, uint32_t before, uint32_t token, char *text, size_t max);

#endif /* LLM_MODEL_H */

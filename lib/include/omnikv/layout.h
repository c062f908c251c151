/* SPDX-License-Identifier: MIT */
/*
 * Layouts: what a model's KV looks like, and plans: how it is cut into blocks.
 *
 * A layout is groups of layers; a group is planes (K, V, latent, ...). A plan fixes the
 * block size T in tokens, the granule, and for each group the shape of a piece (one layer
 * of one block) and of an extent (all layers of the group, one after another).
 *
 * Pure: no I/O, no global state, any thread.
 */
#ifndef OMNIKV_LAYOUT_H
#define OMNIKV_LAYOUT_H

#include <omnikv/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OMNIKV_GROUPS_MAX	8
#define OMNIKV_PLANES_MAX	8
#define OMNIKV_LAYERS_MAX	1024
#define OMNIKV_PIECE_ALIGN	128u	/* bytes: pieces begin at multiples of this in their extent */

enum omnikv_group_kind {
	OMNIKV_GROUP_FULL,
	OMNIKV_GROUP_MLA_LATENT,
	OMNIKV_GROUP_SWA,
	OMNIKV_GROUP_COMPRESSED,
	OMNIKV_GROUP_INDEX,
	OMNIKV_GROUP_RECURRENT,
	OMNIKV_GROUP_CONV,
	OMNIKV_GROUP_DRAFT,
};

enum omnikv_plane_role {
	OMNIKV_PLANE_K, OMNIKV_PLANE_V, OMNIKV_PLANE_LATENT, OMNIKV_PLANE_ROPE, OMNIKV_PLANE_SCALE,
	OMNIKV_PLANE_INDEX, OMNIKV_PLANE_STATE, OMNIKV_PLANE_CONV,
};

enum omnikv_dtype {
	OMNIKV_DTYPE_F32, OMNIKV_DTYPE_BF16, OMNIKV_DTYPE_F16, OMNIKV_DTYPE_F8_E4M3, OMNIKV_DTYPE_F8_E5M2,
	OMNIKV_DTYPE_U8,
};

enum omnikv_shard_axis { OMNIKV_SHARD_NONE, OMNIKV_SHARD_HEADS, OMNIKV_SHARD_ELEMS };
enum omnikv_reuse { OMNIKV_REUSE_PREFIX, OMNIKV_REUSE_EXACT, OMNIKV_REUSE_NONE };
enum omnikv_rollback { OMNIKV_ROLLBACK_TRUNCATE, OMNIKV_ROLLBACK_SNAPSHOT, OMNIKV_ROLLBACK_RECOMPUTE };
enum omnikv_residency { OMNIKV_RESIDENCY_HOST, OMNIKV_RESIDENCY_RING, OMNIKV_RESIDENCY_SELECTED, OMNIKV_RESIDENCY_HBM };
enum omnikv_codec { OMNIKV_CODEC_NONE };

/**
 * struct omnikv_plane - one array of a group's entry
 * @heads:         heads (1 where the notion does not apply)
 * @elems:         elements a head
 * @shard_axis:    what tensor parallelism divides
 * @is_replicated: every rank holds the same bytes: stored once a host, no rank in the key
 *
 * An entry of this plane has heads x elems x sizeof(dtype) bytes, heads outermost.
 */
struct omnikv_plane {
	enum omnikv_plane_role	role;
	enum omnikv_dtype	dtype;
	uint32_t		heads;
	uint32_t		elems;
	enum omnikv_shard_axis	shard_axis;
	bool			is_replicated;
};

/**
 * struct omnikv_group - layers that share one shape and one rule of reuse
 * @layers:           [nr_layers] model layer numbers, ascending
 * @alias_of:         [nr_layers] the layer whose KV this one reads, or -1; an alias stores nothing
 * @tokens_per_entry: tokens that one entry stands for; 0: one entry a sequence (state)
 * @window:           SWA: tokens attended; else 0
 * @sinks:            SWA: leading tokens that are always attended
 * @atomic_with:      bit g: a hit in this group needs group g too
 * @error_bound:      largest relative error that the codec may cause; 0 is exact
 */
struct omnikv_group {
	enum omnikv_group_kind	kind;
	uint32_t		nr_layers;
	uint32_t		nr_planes;
	uint16_t		layers[OMNIKV_LAYERS_MAX];
	int16_t			alias_of[OMNIKV_LAYERS_MAX];
	struct omnikv_plane	planes[OMNIKV_PLANES_MAX];
	uint32_t		tokens_per_entry;
	uint32_t		window;
	uint32_t		sinks;
	enum omnikv_reuse	reuse;
	enum omnikv_rollback	rollback;
	enum omnikv_residency	residency;
	enum omnikv_codec	codec;
	double			error_bound;
	uint32_t		atomic_with;
};

/**
 * struct omnikv_layout - a model's KV
 * @layer_params: active weights a layer, in parameters (for compute times); 0 when unknown
 * @q_heads:      query heads (for compute times); 0 when unknown
 * @head_dim:     query head dimension (for compute times)
 * @block_tokens: the T that the planner must use, or 0 for its own choice
 */
struct omnikv_layout {
	char			name[64];
	uint32_t		nr_layers;
	uint32_t		nr_groups;
	struct omnikv_group	groups[OMNIKV_GROUPS_MAX];
	double			layer_params;
	uint32_t		q_heads;
	uint32_t		head_dim;
	uint32_t		block_tokens;
};

/** Names of the built-in presets, NULL-terminated, in the order in which they are shown. */
OMNIKV_API const char *const *omnikv_layout_presets(void);
/** Fill @layout from a preset; -ENOENT when there is none of that name (@err lists them). */
OMNIKV_API int omnikv_layout_preset(const char *name, struct omnikv_layout *layout,
				    struct omnikv_error *err);
/** Parse a JSON layout (see Documentation/users/layout.md). -EINVAL with path and reason in @err. */
OMNIKV_API int omnikv_layout_parse(const char *json, size_t len, struct omnikv_layout *layout,
				   struct omnikv_error *err);
/** Write @layout as JSON that omnikv_layout_parse() reads back; free() the result. */
OMNIKV_API int omnikv_layout_format(const struct omnikv_layout *layout, char **json);
/** Is every field in range and consistent? -EINVAL with the field in @err. */
OMNIKV_API int omnikv_layout_check(const struct omnikv_layout *layout, struct omnikv_error *err);

/** Bytes of one entry of one layer of a group, all planes. */
OMNIKV_API uint64_t omnikv_group_entry_bytes(const struct omnikv_group *group);
/** Bytes one token needs over all layers of all groups that grow with length, as published for the model. */
OMNIKV_API double omnikv_layout_token_bytes(const struct omnikv_layout *layout);
/** Bytes one sequence needs whatever its length (recurrent and convolution state). */
OMNIKV_API uint64_t omnikv_layout_sequence_bytes(const struct omnikv_layout *layout);
/** 32-byte identity of everything that gives bytes their meaning (geometry, dtypes; not the name). */
OMNIKV_API int omnikv_layout_identity(const struct omnikv_layout *layout, uint8_t identity[32]);
/** First field in which two layouts differ, as text such as "groups[0].planes[1].heads: 8 and 4"; -ENOENT if none. */
OMNIKV_API int omnikv_layout_diff(const struct omnikv_layout *a, const struct omnikv_layout *b,
				  struct omnikv_error *text);

/**
 * struct omnikv_group_plan - one group of a plan
 * @entries:      entries of one layer in a full block (T / tokens_per_entry, or 1 for state)
 * @nr_stored:    layers that store bytes (nr_layers less aliases)
 * @plane_off:    [plane] bytes from the start of a piece to that plane's first row
 * @row_bytes:    [plane] bytes of one entry
 * @piece_bytes:  needed bytes of a piece rounded up to OMNIKV_PIECE_ALIGN: the distance of pieces in an extent
 * @needed_bytes: bytes of a block of this group that hold KV
 * @extent_bytes: nr_granules x granule_bytes
 */
struct omnikv_group_plan {
	uint32_t	entries;
	uint32_t	nr_stored;
	uint64_t	plane_off[OMNIKV_PLANES_MAX];
	uint64_t	row_bytes[OMNIKV_PLANES_MAX];
	uint64_t	piece_bytes;
	uint64_t	needed_bytes;
	uint64_t	extent_bytes;
	uint32_t	nr_granules;
};

/**
 * struct omnikv_plan - a layout cut into blocks
 * @scale: bytes a row are divided by this (rows keep at least 1 byte); 1 is the real model
 */
struct omnikv_plan {
	struct omnikv_layout		layout;
	uint32_t			block_tokens;
	uint32_t			granule_bytes;
	uint32_t			scale;
	struct omnikv_group_plan	groups[OMNIKV_GROUPS_MAX];
};

/**
 * struct omnikv_plan_config - what is given
 * @block_tokens:  T, or 0 to choose
 * @granule_bytes: a multiple of 4096, or 0 to choose
 * @scale:         1 or more; 0 is 1
 */
struct omnikv_plan_config {
	size_t		size;
	uint32_t	block_tokens;
	uint32_t	granule_bytes;
	uint32_t	scale;
	uint32_t	reserved;
};

/**
 * omnikv_plan_make() - choose T, alignment and granule
 *
 * What @config leaves open is chosen so that bytes allocated over bytes needed stay at most 1.05
 * for full blocks; T is the smallest power of two from 16 to 1024 that does so. When @config fixes T and
 * the bound cannot be met the plan is made all the same; omnikv_plan_overhead() tells.
 *
 * Return: 0 or -EINVAL (layout or configuration; @err says which field and both numbers).
 */
OMNIKV_API int omnikv_plan_make(const struct omnikv_layout *layout, const struct omnikv_plan_config *config,
				struct omnikv_plan *plan, struct omnikv_error *err);
/** Bytes allocated over bytes needed for one full block, all groups that grow with length. */
OMNIKV_API double omnikv_plan_overhead(const struct omnikv_plan *plan);
/** Bytes of one full block, all groups, as allocated. */
OMNIKV_API uint64_t omnikv_plan_block_bytes(const struct omnikv_plan *plan);

#ifdef __cplusplus
}
#endif

#endif /* OMNIKV_LAYOUT_H */

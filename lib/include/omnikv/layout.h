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
#define OMNIKV_PLANE_ALIGN	16u	/* bytes: planes begin at multiples of this in their piece */
#define OMNIKV_BLOCK_TOKENS_MAX	65536u
#define OMNIKV_GRANULE_BYTES_MAX	(2u << 20)
#define OMNIKV_SCALE_MAX	(1u << 20)
#define OMNIKV_LAYOUT_JSON_MAX	(1u << 20)	/* bytes of text that omnikv_layout_parse() reads */

/*
 * The numbers of the enumerators enter identities that are stored: new ones are added at
 * the end, none is renumbered.
 */
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
	OMNIKV_PLANE_KV,	/* K and V in one row: interleaved, or the same bytes for both */
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
 * @is_replicated: every rank holds the same bytes: stored once a host, no rank in the key;
 *                 @shard_axis is then OMNIKV_SHARD_NONE
 *
 * An entry of this plane has heads x elems x sizeof(dtype) bytes, heads outermost. In a piece
 * the planes stand one after another, each as [entries][heads][elems].
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
 * @layers:           [nr_layers] model layer numbers, ascending; a layer may be in several groups
 * @alias_of:         [nr_layers] the layer whose KV this one reads, or -1; an alias stores nothing
 *                    and names an earlier layer of the same group that is no alias itself
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
 * @block_tokens: the T that the planner uses unless its caller gives one; 0 for its own choice
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
/**
 * Parse a JSON layout (see Documentation/users/layout.md). -EINVAL with one line of path, value
 * and what is allowed in @err; -ENOMEM.
 */
OMNIKV_API int omnikv_layout_parse(const char *json, size_t len, struct omnikv_layout *layout,
				   struct omnikv_error *err);
/** Write @layout as JSON that omnikv_layout_parse() reads back; free() the result. */
OMNIKV_API int omnikv_layout_format(const struct omnikv_layout *layout, char **json);
/** Is every field in range and consistent? -EINVAL with the field in @err. */
OMNIKV_API int omnikv_layout_check(const struct omnikv_layout *layout, struct omnikv_error *err);

/** Bytes of one element; 0 for a value that is no dtype. */
OMNIKV_API uint32_t omnikv_dtype_bytes(enum omnikv_dtype dtype);
/* Names of values as they stand in JSON; "?" for a value that there is not. */
OMNIKV_API const char *omnikv_group_kind_name(enum omnikv_group_kind kind);
OMNIKV_API const char *omnikv_plane_role_name(enum omnikv_plane_role role);
OMNIKV_API const char *omnikv_dtype_name(enum omnikv_dtype dtype);
OMNIKV_API const char *omnikv_shard_axis_name(enum omnikv_shard_axis axis);
OMNIKV_API const char *omnikv_reuse_name(enum omnikv_reuse reuse);
OMNIKV_API const char *omnikv_rollback_name(enum omnikv_rollback rollback);
OMNIKV_API const char *omnikv_residency_name(enum omnikv_residency residency);
OMNIKV_API const char *omnikv_codec_name(enum omnikv_codec codec);

/** Does a group hold one entry a sequence (state), rather than grow with length? */
static inline bool omnikv_group_is_state(const struct omnikv_group *group)
{
	return group->tokens_per_entry == 0;
}
/** Layers of a group that store bytes: all but the aliases. */
OMNIKV_API uint32_t omnikv_group_stored_layers(const struct omnikv_group *group);
/** Index in an extent of the piece that model layer @layer reads (an alias: its target's); -ENOENT. */
OMNIKV_API int omnikv_group_piece_idx(const struct omnikv_group *group, uint32_t layer);
/** Bytes of one entry of one layer of a group, all planes; UINT64_MAX where it overflows. */
OMNIKV_API uint64_t omnikv_group_entry_bytes(const struct omnikv_group *group);
/** Bytes one token needs over all layers of all groups that grow with length, as published for the model. */
OMNIKV_API double omnikv_layout_token_bytes(const struct omnikv_layout *layout);
/** Bytes one sequence needs whatever its length (recurrent and convolution state). */
OMNIKV_API uint64_t omnikv_layout_sequence_bytes(const struct omnikv_layout *layout);
/**
 * 32-byte identity of everything that gives bytes their meaning: model layers, groups with their kind,
 * layers, aliases, tokens per entry, window, sinks, codec and error bound, planes with all their
 * fields. Not in it: the name, compute figures, block_tokens (the namespace has it), and what only says how
 * this host treats the bytes (reuse, rollback, residency, atomic_with). -EINVAL for a layout that does not pass
 * omnikv_layout_check().
 */
OMNIKV_API int omnikv_layout_identity(const struct omnikv_layout *layout, uint8_t identity[32]);
/**
 * First field of the identity in which two layouts differ, as text such as
 * "groups[0].planes[1].heads: 8 and 4"; -ENOENT if none: the identities are then equal. -EINVAL for a layout that
 * does not pass omnikv_layout_check().
 */
OMNIKV_API int omnikv_layout_diff(const struct omnikv_layout *a, const struct omnikv_layout *b,
				  struct omnikv_error *text);

/**
 * struct omnikv_group_plan - one group of a plan
 * @entries:      entries of one layer in a full block (T / tokens_per_entry, or 1 for state)
 * @nr_stored:    layers that store bytes (nr_layers less aliases)
 * @plane_off:    [plane] bytes from the start of a piece to that plane's first row
 * @row_bytes:    [plane] bytes of one entry
 * @piece_bytes:  needed bytes of a piece rounded up to OMNIKV_PIECE_ALIGN: the distance of pieces in an extent
 * @needed_bytes: bytes of a block of this group that hold KV (a state group: of a checkpoint)
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
 * @scale: bytes a row are divided by this, rounded down (a row keeps at least 1 byte); T is chosen at
 *         scale 1, so that the number of blocks does not depend on it. 1 is the real model
 *
 * Entry e of plane p of the piece with index i (omnikv_group_piece_idx()) of group g begins at byte
 * i x piece_bytes + plane_off[p] + e x row_bytes[p] of the extent.
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
 * @block_tokens:  T, at most OMNIKV_BLOCK_TOKENS_MAX, or 0 for the layout's own or else to choose
 * @granule_bytes: a multiple of 4096, at most OMNIKV_GRANULE_BYTES_MAX, or 0 to choose
 * @scale:         1 to OMNIKV_SCALE_MAX; 0 is 1
 * @reserved:      0
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
 * @config: NULL leaves everything open
 *
 * What @config leaves open is chosen so that bytes allocated over bytes needed stay at most 1.05
 * for full blocks: T is the smallest power of two from 16 to 1024, and a multiple of every group's tokens_per_entry,
 * that does so at scale 1. Where none does, or where T is given and the bound cannot be met, the plan is made all
 * the same (with the T that comes closest); omnikv_plan_overhead() tells. The granule is 4096, or the largest power of
 * two that is no larger than any piece and keeps padding under 2 %.
 *
 * Return: 0, or
 *   -EINVAL  layout or configuration; @err says which field and both numbers
 *   -E2BIG   @config is longer than known and its tail is not zero
 */
OMNIKV_API int omnikv_plan_make(const struct omnikv_layout *layout, const struct omnikv_plan_config *config,
				struct omnikv_plan *plan, struct omnikv_error *err);
/** Bytes allocated over bytes needed for one full block, all groups that grow with length; 1 if there are none. */
OMNIKV_API double omnikv_plan_overhead(const struct omnikv_plan *plan);
/** Bytes of one full block as allocated, all groups that grow with length. */
OMNIKV_API uint64_t omnikv_plan_block_bytes(const struct omnikv_plan *plan);
/**
 * omnikv_plan_block_crc() - CRC32C of one group of a block, as struct omnikv_join wants it
 * @nr_tokens: of the block, 1 to T
 * @block:     the first byte of its extent
 *
 * Over the rows alone, in the order layer, plane, row: omnikv_seq_block_crc() tells the same once it is committed. -EINVAL.
 *
 * Context: reads @block and nothing else; any thread.
 */
OMNIKV_API int omnikv_plan_block_crc(const struct omnikv_plan *plan, uint32_t group, uint32_t nr_tokens, const void *block,
				     uint32_t *crc);
/** Bytes of one checkpoint as allocated: the state groups (recurrent, convolution); 0 if there are none. */
OMNIKV_API uint64_t omnikv_plan_checkpoint_bytes(const struct omnikv_plan *plan);

#ifdef __cplusplus
}
#endif

#endif /* OMNIKV_LAYOUT_H */

// SPDX-License-Identifier: MIT
/*
 * The built-in models: their KV as published.
 *
 * Only facts of the models stand here; what they cost in memory follows in layout.c and plan.c.
 * layer_params are active weights a layer. Pure, no global state, any thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "layout.h"

static struct omnikv_group *add_group(struct omnikv_layout *layout, enum omnikv_group_kind kind)
{
	struct omnikv_group *group = &layout->groups[layout->nr_groups++];

	okv_group_defaults(group, kind);
	return group;
}

/* Layers first, first + step, ... of the model; @skip leaves out each layer that is skip - 1 modulo skip. */
static void add_layers(const struct omnikv_layout *layout, struct omnikv_group *group, uint32_t first, uint32_t step,
		       uint32_t skip)
{
	for (uint32_t l = first; l < layout->nr_layers; l += step)
		if (!skip || l % skip != skip - 1)
			group->layers[group->nr_layers++] = (uint16_t)l;
}

static void add_plane(struct omnikv_group *group, enum omnikv_plane_role role, enum omnikv_dtype dtype,
		      uint32_t heads, uint32_t elems, enum omnikv_shard_axis axis)
{
	struct omnikv_plane *plane = &group->planes[group->nr_planes++];

	plane->role = role;
	plane->dtype = dtype;
	plane->heads = heads;
	plane->elems = elems;
	plane->shard_axis = axis;
}

/* Every rank of a tensor-parallel group computes the same bytes. */
static void add_replicated(struct omnikv_group *group, enum omnikv_plane_role role, enum omnikv_dtype dtype,
			   uint32_t elems)
{
	add_plane(group, role, dtype, 1, elems, OMNIKV_SHARD_NONE);
	group->planes[group->nr_planes - 1].is_replicated = true;
}

static void add_kv(struct omnikv_group *group, uint32_t heads, uint32_t elems)
{
	add_plane(group, OMNIKV_PLANE_K, OMNIKV_DTYPE_BF16, heads, elems, OMNIKV_SHARD_HEADS);
	add_plane(group, OMNIKV_PLANE_V, OMNIKV_DTYPE_BF16, heads, elems, OMNIKV_SHARD_HEADS);
}

/* A hit needs every group: none is of use without the others. */
static void bind_groups(struct omnikv_layout *layout)
{
	for (uint32_t g = 0; g < layout->nr_groups; g++)
		layout->groups[g].atomic_with = ((1u << layout->nr_groups) - 1u) & ~(1u << g);
}

static void dense(struct omnikv_layout *layout, uint32_t layers, uint32_t q_heads, uint32_t heads, uint32_t head_dim,
		  double layer_params)
{
	struct omnikv_group *group;

	layout->nr_layers = layers;
	layout->q_heads = q_heads;
	layout->head_dim = head_dim;
	layout->layer_params = layer_params;
	group = add_group(layout, OMNIKV_GROUP_FULL);
	add_layers(layout, group, 0, 1, 0);
	add_kv(group, heads, head_dim);
}

static void llama_3_8b(struct omnikv_layout *layout)
{
	dense(layout, 32, 32, 8, 128, 218.1e6);
}

static void llama_3_70b(struct omnikv_layout *layout)
{
	dense(layout, 80, 64, 8, 128, 855.6e6);
}

static void qwen3_32b(struct omnikv_layout *layout)
{
	dense(layout, 64, 64, 8, 128, 487.6e6);
}

/* Sliding windows on even layers, all tokens on odd ones; its sinks are learned logits, not tokens. */
static void gpt_oss_20b(struct omnikv_layout *layout)
{
	struct omnikv_group *group;

	layout->nr_layers = 24;
	layout->q_heads = 64;
	layout->head_dim = 64;
	layout->layer_params = 126e6;
	group = add_group(layout, OMNIKV_GROUP_FULL);
	add_layers(layout, group, 1, 2, 0);
	add_kv(group, 8, 64);
	group = add_group(layout, OMNIKV_GROUP_SWA);
	add_layers(layout, group, 0, 2, 0);
	add_kv(group, 8, 64);
	group->window = 128;
	bind_groups(layout);
}

static struct omnikv_group *deepseek(struct omnikv_layout *layout)
{
	struct omnikv_group *group;

	layout->nr_layers = 61;
	layout->q_heads = 128;
	layout->head_dim = 192;		/* 128 without position, 64 with it */
	layout->layer_params = 585e6;
	group = add_group(layout, OMNIKV_GROUP_MLA_LATENT);
	add_layers(layout, group, 0, 1, 0);
	return group;
}

static void deepseek_v3(struct omnikv_layout *layout)
{
	struct omnikv_group *group = deepseek(layout);

	add_replicated(group, OMNIKV_PLANE_LATENT, OMNIKV_DTYPE_BF16, 512);
	add_replicated(group, OMNIKV_PLANE_ROPE, OMNIKV_DTYPE_BF16, 64);
}

/* Latent in fp8 with a scale for each 128 elements, and the indexer's keys, which every step reads. */
static void deepseek_v3_2(struct omnikv_layout *layout)
{
	struct omnikv_group *group = deepseek(layout);

	add_replicated(group, OMNIKV_PLANE_LATENT, OMNIKV_DTYPE_F8_E4M3, 512);
	add_replicated(group, OMNIKV_PLANE_SCALE, OMNIKV_DTYPE_F32, 4);
	add_replicated(group, OMNIKV_PLANE_ROPE, OMNIKV_DTYPE_BF16, 64);
	group->residency = OMNIKV_RESIDENCY_SELECTED;
	group = add_group(layout, OMNIKV_GROUP_INDEX);
	add_layers(layout, group, 0, 1, 0);
	add_replicated(group, OMNIKV_PLANE_INDEX, OMNIKV_DTYPE_F8_E4M3, 128);
	add_replicated(group, OMNIKV_PLANE_SCALE, OMNIKV_DTYPE_F32, 1);
	bind_groups(layout);
}

/* Full attention on each fourth layer; the others keep a matrix a value head and the last 3 inputs. */
static void qwen3_next_80b_a3b(struct omnikv_layout *layout)
{
	struct omnikv_group *group;

	layout->nr_layers = 48;
	layout->q_heads = 16;
	layout->head_dim = 256;
	layout->layer_params = 62e6;
	group = add_group(layout, OMNIKV_GROUP_FULL);
	add_layers(layout, group, 3, 4, 0);
	add_kv(group, 2, 256);
	group = add_group(layout, OMNIKV_GROUP_RECURRENT);
	add_layers(layout, group, 0, 1, 4);
	add_plane(group, OMNIKV_PLANE_STATE, OMNIKV_DTYPE_F32, 32, 128 * 128, OMNIKV_SHARD_HEADS);
	group = add_group(layout, OMNIKV_GROUP_CONV);
	add_layers(layout, group, 0, 1, 4);
	add_plane(group, OMNIKV_PLANE_CONV, OMNIKV_DTYPE_BF16, 3, 8192, OMNIKV_SHARD_ELEMS);
	bind_groups(layout);
}

/* No model: one 4-KiB piece a layer and block, 16 KiB a block, for tests and replays. */
static void tiny(struct omnikv_layout *layout)
{
	dense(layout, 4, 1, 1, 2, 0);
	layout->block_tokens = 512;
}

static const char *const preset_names[] = {
	"llama-3-8b", "llama-3-70b", "qwen3-32b", "gpt-oss-20b", "deepseek-v3", "deepseek-v3.2",
	"qwen3-next-80b-a3b", "tiny", NULL,
};

static void (*const preset_makers[])(struct omnikv_layout *) = {
	llama_3_8b, llama_3_70b, qwen3_32b, gpt_oss_20b, deepseek_v3, deepseek_v3_2,
	qwen3_next_80b_a3b, tiny,
};

_Static_assert(sizeof(preset_names) / sizeof(preset_names[0]) == sizeof(preset_makers) / sizeof(preset_makers[0]) + 1,
	       "one maker a name");

const char *const *omnikv_layout_presets(void)
{
	return preset_names;
}

int omnikv_layout_preset(const char *name, struct omnikv_layout *layout, struct omnikv_error *err)
{
	char list[160] = "";

	for (uint32_t i = 0; preset_names[i]; i++) {
		if (!name || strcmp(name, preset_names[i]) != 0) {
			strcat(list, i ? ", " : "");
			strcat(list, preset_names[i]);
			continue;
		}
		memset(layout, 0, sizeof(*layout));
		strcpy(layout->name, name);
		preset_makers[i](layout);
		return 0;
	}
	okv_layout_fail(err, "no preset of the name '%.40s'; allowed: %s",
			name ? name : "", list);
	return -ENOENT;
}

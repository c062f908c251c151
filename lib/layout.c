// SPDX-License-Identifier: MIT
/*
 * Layouts: the table of their fields, whether one is consistent, its bytes, its identity, and
 * how two differ.
 *
 * JSON is layout_json.c's, the built-in models are presets.c's, blocks and granules plan.c's.
 * Pure: no I/O, no global state, any thread.
 */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "identity.h"
#include "layout.h"

#define NR(array) (sizeof(array) / sizeof((array)[0]))

static const char *const kind_names[] = {
	[OMNIKV_GROUP_FULL] = "full",
	[OMNIKV_GROUP_MLA_LATENT] = "mla_latent",
	[OMNIKV_GROUP_SWA] = "swa",
	[OMNIKV_GROUP_COMPRESSED] = "compressed",
	[OMNIKV_GROUP_INDEX] = "index",
	[OMNIKV_GROUP_RECURRENT] = "recurrent",
	[OMNIKV_GROUP_CONV] = "conv",
	[OMNIKV_GROUP_DRAFT] = "draft",
};

static const char *const role_names[] = {
	[OMNIKV_PLANE_K] = "k",
	[OMNIKV_PLANE_V] = "v",
	[OMNIKV_PLANE_LATENT] = "latent",
	[OMNIKV_PLANE_ROPE] = "rope",
	[OMNIKV_PLANE_SCALE] = "scale",
	[OMNIKV_PLANE_INDEX] = "index",
	[OMNIKV_PLANE_STATE] = "state",
	[OMNIKV_PLANE_CONV] = "conv",
	[OMNIKV_PLANE_KV] = "kv",
};

static const char *const dtype_names[] = {
	[OMNIKV_DTYPE_F32] = "f32",
	[OMNIKV_DTYPE_BF16] = "bf16",
	[OMNIKV_DTYPE_F16] = "f16",
	[OMNIKV_DTYPE_F8_E4M3] = "f8_e4m3",
	[OMNIKV_DTYPE_F8_E5M2] = "f8_e5m2",
	[OMNIKV_DTYPE_U8] = "u8",
};

static const char *const shard_names[] = {
	[OMNIKV_SHARD_NONE] = "none",
	[OMNIKV_SHARD_HEADS] = "heads",
	[OMNIKV_SHARD_ELEMS] = "elems",
};

static const char *const reuse_names[] = {
	[OMNIKV_REUSE_PREFIX] = "prefix",
	[OMNIKV_REUSE_EXACT] = "exact",
	[OMNIKV_REUSE_NONE] = "none",
};

static const char *const rollback_names[] = {
	[OMNIKV_ROLLBACK_TRUNCATE] = "truncate",
	[OMNIKV_ROLLBACK_SNAPSHOT] = "snapshot",
	[OMNIKV_ROLLBACK_RECOMPUTE] = "recompute",
};

static const char *const residency_names[] = {
	[OMNIKV_RESIDENCY_HOST] = "host",
	[OMNIKV_RESIDENCY_RING] = "ring",
	[OMNIKV_RESIDENCY_SELECTED] = "selected",
	[OMNIKV_RESIDENCY_HBM] = "hbm",
};

static const char *const codec_names[] = {
	[OMNIKV_CODEC_NONE] = "none",
};

/* Every field that get and set touch is four bytes wide, a bool or a double. */
_Static_assert(sizeof(enum omnikv_group_kind) == 4, "enums are read as 32 bits");
_Static_assert(sizeof(bool) == 1, "bools are read as one byte");

#define U32(owner, member, id, req, lo, hi) \
	{ .name = #member, .off = offsetof(struct owner, member), .type = OKV_FIELD_U32, \
	  .is_identity = id, .is_required = req, .min = lo, .max = hi }
#define F64(owner, member, id, hi) \
	{ .name = #member, .off = offsetof(struct owner, member), .type = OKV_FIELD_F64, \
	  .is_identity = id, .min = 0, .max = hi }
#define ENUM(owner, member, id, req, table) \
	{ .name = #member, .off = offsetof(struct owner, member), .type = OKV_FIELD_ENUM, \
	  .is_identity = id, .is_required = req, .names = table, .nr_names = NR(table) }
#define BOOL(owner, member, id) \
	{ .name = #member, .off = offsetof(struct owner, member), .type = OKV_FIELD_BOOL, \
	  .is_identity = id }

static const struct okv_field layout_fields[] = {
	U32(omnikv_layout, nr_layers, true, true, 1, OMNIKV_LAYERS_MAX),
	F64(omnikv_layout, layer_params, false, 1e15),
	U32(omnikv_layout, q_heads, false, false, 0, OKV_HEADS_MAX),
	U32(omnikv_layout, head_dim, false, false, 0, OKV_HEADS_MAX),
	U32(omnikv_layout, block_tokens, false, false, 0, OMNIKV_BLOCK_TOKENS_MAX),
};

static const struct okv_field group_fields[] = {
	ENUM(omnikv_group, kind, true, true, kind_names),
	U32(omnikv_group, tokens_per_entry, true, false, 0, OMNIKV_BLOCK_TOKENS_MAX),
	U32(omnikv_group, window, true, false, 0, OKV_TOKENS_MAX),
	U32(omnikv_group, sinks, true, false, 0, OKV_TOKENS_MAX),
	ENUM(omnikv_group, reuse, false, false, reuse_names),
	ENUM(omnikv_group, rollback, false, false, rollback_names),
	ENUM(omnikv_group, residency, false, false, residency_names),
	ENUM(omnikv_group, codec, true, false, codec_names),
	F64(omnikv_group, error_bound, true, 1),
};

static const struct okv_field plane_fields[] = {
	ENUM(omnikv_plane, role, true, true, role_names),
	ENUM(omnikv_plane, dtype, true, true, dtype_names),
	U32(omnikv_plane, heads, true, true, 1, OKV_HEADS_MAX),
	U32(omnikv_plane, elems, true, true, 1, OKV_ELEMS_MAX),
	ENUM(omnikv_plane, shard_axis, true, false, shard_names),
	BOOL(omnikv_plane, is_replicated, true),
};

const struct okv_field_table okv_layout_fields = { layout_fields, NR(layout_fields) };
const struct okv_field_table okv_group_fields = { group_fields, NR(group_fields) };
const struct okv_field_table okv_plane_fields = { plane_fields, NR(plane_fields) };

static const char *name_of(const char *const *names, size_t nr_names, unsigned int value)
{
	return value < nr_names ? names[value] : "?";
}

const char *omnikv_group_kind_name(enum omnikv_group_kind kind)
{
	return name_of(kind_names, NR(kind_names), kind);
}

const char *omnikv_plane_role_name(enum omnikv_plane_role role)
{
	return name_of(role_names, NR(role_names), role);
}

const char *omnikv_dtype_name(enum omnikv_dtype dtype)
{
	return name_of(dtype_names, NR(dtype_names), dtype);
}

const char *omnikv_shard_axis_name(enum omnikv_shard_axis axis)
{
	return name_of(shard_names, NR(shard_names), axis);
}

const char *omnikv_reuse_name(enum omnikv_reuse reuse)
{
	return name_of(reuse_names, NR(reuse_names), reuse);
}

const char *omnikv_rollback_name(enum omnikv_rollback rollback)
{
	return name_of(rollback_names, NR(rollback_names), rollback);
}

const char *omnikv_residency_name(enum omnikv_residency residency)
{
	return name_of(residency_names, NR(residency_names), residency);
}

const char *omnikv_codec_name(enum omnikv_codec codec)
{
	return name_of(codec_names, NR(codec_names), codec);
}

uint32_t omnikv_dtype_bytes(enum omnikv_dtype dtype)
{
	switch (dtype) {
	case OMNIKV_DTYPE_F32:
		return 4;
	case OMNIKV_DTYPE_BF16:
	case OMNIKV_DTYPE_F16:
		return 2;
	case OMNIKV_DTYPE_F8_E4M3:
	case OMNIKV_DTYPE_F8_E5M2:
	case OMNIKV_DTYPE_U8:
		return 1;
	}
	return 0;
}

double okv_field_get(const void *base, const struct okv_field *field)
{
	const char *at = (const char *)base + field->off;
	double real;
	uint32_t word;
	uint8_t byte;

	switch (field->type) {
	case OKV_FIELD_F64:
		memcpy(&real, at, sizeof(real));
		return real;
	case OKV_FIELD_BOOL:
		memcpy(&byte, at, sizeof(byte));
		return byte;
	default:
		memcpy(&word, at, sizeof(word));
		return word;
	}
}

void okv_field_set(void *base, const struct okv_field *field, double value)
{
	char *at = (char *)base + field->off;
	double real = value + 0.0;	/* -0 becomes 0 */
	bool is_set = value != 0;
	uint32_t word;

	switch (field->type) {
	case OKV_FIELD_F64:
		memcpy(at, &real, sizeof(real));
		break;
	case OKV_FIELD_BOOL:
		memcpy(at, &is_set, sizeof(is_set));
		break;
	default:
		word = (uint32_t)value;
		memcpy(at, &word, sizeof(word));
	}
}

void okv_field_text(const void *base, const struct okv_field *field, char *text, size_t bytes)
{
	double value = okv_field_get(base, field);

	if (field->type == OKV_FIELD_ENUM && value < field->nr_names)
		snprintf(text, bytes, "%s", field->names[(uint32_t)value]);
	else if (field->type == OKV_FIELD_BOOL && value <= 1)
		snprintf(text, bytes, "%s", value != 0 ? "true" : "false");
	else
		snprintf(text, bytes, "%.15g", value);
}

void okv_field_allowed(const struct okv_field *field, char *text, size_t bytes)
{
	size_t at = 0;

	switch (field->type) {
	case OKV_FIELD_ENUM:
		text[0] = '\0';
		for (uint32_t i = 0; i < field->nr_names && at < bytes; i++)
			at += (size_t)snprintf(text + at, bytes - at, "%s%s", i ? ", " : "", field->names[i]);
		break;
	case OKV_FIELD_BOOL:
		snprintf(text, bytes, "true or false");
		break;
	case OKV_FIELD_F64:
		snprintf(text, bytes, "%g to less than %g", field->min, field->max);
		break;
	default:
		snprintf(text, bytes, "%.0f to %.0f", field->min, field->max);
	}
}

int okv_layout_fail(struct omnikv_error *err, const char *fmt, ...)
{
	va_list args;

	if (err) {
		va_start(args, fmt);
		vsnprintf(err->text, sizeof(err->text), fmt, args);
		va_end(args);
	}
	return -EINVAL;
}

void okv_group_defaults(struct omnikv_group *group, enum omnikv_group_kind kind)
{
	bool is_state = okv_kind_is_state(kind);

	group->kind = kind;
	group->tokens_per_entry = is_state ? 0 : 1;
	group->reuse = is_state ? OMNIKV_REUSE_EXACT : OMNIKV_REUSE_PREFIX;
	group->rollback = is_state ? OMNIKV_ROLLBACK_SNAPSHOT : OMNIKV_ROLLBACK_TRUNCATE;
	group->residency = OMNIKV_RESIDENCY_RING;
	if (is_state || kind == OMNIKV_GROUP_SWA || kind == OMNIKV_GROUP_INDEX)
		group->residency = OMNIKV_RESIDENCY_HBM;
	for (uint32_t i = 0; i < OMNIKV_LAYERS_MAX; i++)
		group->alias_of[i] = -1;
}

/* One struct against its table: each value known and in range. */
static int check_fields(const void *base, const struct okv_field_table *table, const char *path,
			struct omnikv_error *err)
{
	for (uint32_t i = 0; i < table->nr_fields; i++) {
		const struct okv_field *field = &table->fields[i];
		double value = okv_field_get(base, field);
		char text[40], allowed[128];
		bool is_good;

		switch (field->type) {
		case OKV_FIELD_ENUM:
			is_good = value < field->nr_names;
			break;
		case OKV_FIELD_BOOL:
			is_good = value <= 1;
			break;
		case OKV_FIELD_F64:
			is_good = value >= field->min && value < field->max;	/* false for NaN */
			break;
		default:
			is_good = value >= field->min && value <= field->max;
		}
		if (is_good)
			continue;
		okv_field_text(base, field, text, sizeof(text));
		okv_field_allowed(field, allowed, sizeof(allowed));
		return okv_layout_fail(err, "%s%s%s: %s is not allowed; allowed: %s", path, *path ? "." : "",
				       field->name, text, allowed);
	}
	return 0;
}

static int check_name(const char *name, size_t bytes, struct omnikv_error *err)
{
	size_t len = strnlen(name, bytes);

	if (len == 0 || len == bytes)
		return okv_layout_fail(err, "name: %zu characters; allowed: 1 to %zu", len, bytes - 1);
	for (size_t i = 0; i < len; i++) {
		unsigned char c = (unsigned char)name[i];

		if ((c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || strchr("._/:+-", c))
			continue;
		return okv_layout_fail(err, "name: byte 0x%02x at %zu is not allowed; allowed: A-Z a-z 0-9 . _ / : + -",
				       c, i);
	}
	return 0;
}

/* Index of @layer in the sorted list of a group, or -1. */
static int layer_idx(const struct omnikv_group *group, uint32_t layer)
{
	uint32_t lo = 0, hi = group->nr_layers;

	while (lo < hi) {
		uint32_t mid = lo + (hi - lo) / 2;

		if (group->layers[mid] < layer)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < group->nr_layers && group->layers[lo] == layer ? (int)lo : -1;
}

static int check_layers(const struct omnikv_layout *layout, uint32_t g, struct omnikv_error *err)
{
	const struct omnikv_group *group = &layout->groups[g];

	if (group->nr_layers < 1 || group->nr_layers > layout->nr_layers)
		return okv_layout_fail(err, "groups[%u].layers: %u entries; allowed: 1 to %u (nr_layers)", g,
				       group->nr_layers, layout->nr_layers);
	for (uint32_t i = 0; i < group->nr_layers; i++) {
		uint32_t least = i ? group->layers[i - 1] + 1u : 0;

		if (group->layers[i] >= layout->nr_layers)
			return okv_layout_fail(err, "groups[%u].layers[%u]: %u; allowed: less than nr_layers %u", g, i,
					       group->layers[i], layout->nr_layers);
		if (group->layers[i] < least)
			return okv_layout_fail(err, "groups[%u].layers[%u]: %u follows %u; allowed: ascending", g, i,
					       group->layers[i], group->layers[i - 1]);
	}
	for (uint32_t i = 0; i < group->nr_layers; i++) {
		int target = group->alias_of[i];
		int idx;

		if (target == -1)
			continue;
		idx = target >= 0 && target < group->layers[i] ? layer_idx(group, (uint32_t)target) : -1;
		if (idx < 0 || group->alias_of[idx] != -1)
			return okv_layout_fail(err,
					       "groups[%u].alias_of[%u]: %d for layer %u; allowed: -1 or an earlier layer of the group that is no alias",
					       g, i, target, group->layers[i]);
	}
	return 0;
}

/* What the kind of a group demands of its other fields. */
static int check_kind(const struct omnikv_layout *layout, uint32_t g, struct omnikv_error *err)
{
	const struct omnikv_group *group = &layout->groups[g];
	const char *kind = kind_names[group->kind];
	bool is_state = okv_kind_is_state(group->kind);

	if (is_state != (group->tokens_per_entry == 0))
		return okv_layout_fail(err, "groups[%u].tokens_per_entry: %u with kind %s; allowed: %s", g,
				       group->tokens_per_entry, kind, is_state ? "0 (one entry a sequence)" : "1 or more");
	if (is_state && group->reuse == OMNIKV_REUSE_PREFIX)
		return okv_layout_fail(err, "groups[%u].reuse: prefix with kind %s; allowed: exact, none", g, kind);
	if (is_state && group->rollback == OMNIKV_ROLLBACK_TRUNCATE)
		return okv_layout_fail(err, "groups[%u].rollback: truncate with kind %s; allowed: snapshot, recompute",
				       g, kind);
	if ((group->kind == OMNIKV_GROUP_SWA) != (group->window != 0))
		return okv_layout_fail(err, "groups[%u].window: %u with kind %s; allowed: %s", g, group->window, kind,
				       group->window ? "0 (only swa has one)" : "1 or more");
	if (group->kind != OMNIKV_GROUP_SWA && group->sinks)
		return okv_layout_fail(err, "groups[%u].sinks: %u with kind %s; allowed: 0 (only swa has some)", g,
				       group->sinks, kind);
	if (group->codec == OMNIKV_CODEC_NONE && group->error_bound > 0)
		return okv_layout_fail(err, "groups[%u].error_bound: %g with codec none; allowed: 0 (exact)", g,
				       group->error_bound);
	if (group->atomic_with & ~((1u << layout->nr_groups) - 1u))
		return okv_layout_fail(err, "groups[%u].atomic_with: group %d; allowed: less than %u groups", g,
				       31 - __builtin_clz(group->atomic_with), layout->nr_groups);
	if (group->atomic_with & (1u << g))
		return okv_layout_fail(err, "groups[%u].atomic_with: group %u; allowed: other groups", g, g);
	return 0;
}

static int check_group(const struct omnikv_layout *layout, uint32_t g, struct omnikv_error *err)
{
	const struct omnikv_group *group = &layout->groups[g];
	char path[OKV_PATH_BYTES];
	int ret;

	snprintf(path, sizeof(path), "groups[%u]", g);
	ret = check_fields(group, &okv_group_fields, path, err);
	if (!ret)
		ret = check_layers(layout, g, err);
	if (!ret)
		ret = check_kind(layout, g, err);
	if (ret)
		return ret;
	if (group->nr_planes < 1 || group->nr_planes > OMNIKV_PLANES_MAX)
		return okv_layout_fail(err, "%s.planes: %u entries; allowed: 1 to %u", path, group->nr_planes,
				       OMNIKV_PLANES_MAX);
	for (uint32_t p = 0; p < group->nr_planes; p++) {
		const struct omnikv_plane *plane = &group->planes[p];

		snprintf(path, sizeof(path), "groups[%u].planes[%u]", g, p);
		ret = check_fields(plane, &okv_plane_fields, path, err);
		if (ret)
			return ret;
		if (plane->is_replicated && plane->shard_axis != OMNIKV_SHARD_NONE)
			return okv_layout_fail(err, "%s.shard_axis: %s with is_replicated true; allowed: none", path,
					       shard_names[plane->shard_axis]);
	}
	return 0;
}

int omnikv_layout_check(const struct omnikv_layout *layout, struct omnikv_error *err)
{
	int ret;

	if (!layout)
		return okv_layout_fail(err, "layout: none given");
	ret = check_name(layout->name, sizeof(layout->name), err);
	if (!ret)
		ret = check_fields(layout, &okv_layout_fields, "", err);
	if (ret)
		return ret;
	if (layout->nr_groups < 1 || layout->nr_groups > OMNIKV_GROUPS_MAX)
		return okv_layout_fail(err, "groups: %u entries; allowed: 1 to %u", layout->nr_groups,
				       OMNIKV_GROUPS_MAX);
	for (uint32_t g = 0; g < layout->nr_groups; g++) {
		ret = check_group(layout, g, err);
		if (ret)
			return ret;
	}
	return 0;
}

uint32_t omnikv_group_stored_layers(const struct omnikv_group *group)
{
	uint32_t nr_stored = 0;

	for (uint32_t i = 0; i < group->nr_layers && i < OMNIKV_LAYERS_MAX; i++)
		nr_stored += group->alias_of[i] == -1;
	return nr_stored;
}

int omnikv_group_piece_idx(const struct omnikv_group *group, uint32_t layer)
{
	int idx = group->nr_layers <= OMNIKV_LAYERS_MAX ? layer_idx(group, layer) : -1;
	int piece = 0;

	if (idx >= 0 && group->alias_of[idx] != -1)
		idx = layer_idx(group, (uint32_t)group->alias_of[idx]);
	if (idx < 0)
		return -ENOENT;
	for (int i = 0; i < idx; i++)
		piece += group->alias_of[i] == -1;
	return piece;
}

uint64_t omnikv_group_entry_bytes(const struct omnikv_group *group)
{
	uint64_t sum = 0;

	for (uint32_t p = 0; p < group->nr_planes && p < OMNIKV_PLANES_MAX; p++) {
		const struct omnikv_plane *plane = &group->planes[p];
		uint64_t bytes = (uint64_t)plane->heads * plane->elems;

		if (__builtin_mul_overflow(bytes, omnikv_dtype_bytes(plane->dtype), &bytes) ||
		    __builtin_add_overflow(sum, bytes, &sum))
			return UINT64_MAX;
	}
	return sum;
}

double omnikv_layout_token_bytes(const struct omnikv_layout *layout)
{
	double sum = 0;

	for (uint32_t g = 0; g < layout->nr_groups && g < OMNIKV_GROUPS_MAX; g++) {
		const struct omnikv_group *group = &layout->groups[g];

		if (!omnikv_group_is_state(group))
			sum += (double)omnikv_group_entry_bytes(group) * omnikv_group_stored_layers(group) /
			       group->tokens_per_entry;
	}
	return sum;
}

uint64_t omnikv_layout_sequence_bytes(const struct omnikv_layout *layout)
{
	uint64_t sum = 0, bytes;

	for (uint32_t g = 0; g < layout->nr_groups && g < OMNIKV_GROUPS_MAX; g++) {
		const struct omnikv_group *group = &layout->groups[g];

		if (!omnikv_group_is_state(group))
			continue;
		if (__builtin_mul_overflow(omnikv_group_entry_bytes(group), omnikv_group_stored_layers(group), &bytes) ||
		    __builtin_add_overflow(sum, bytes, &sum))
			return UINT64_MAX;
	}
	return sum;
}

/* A value as 64 bits that are the same on every machine. */
static uint64_t field_bits(const void *base, const struct okv_field *field)
{
	double value = okv_field_get(base, field) + 0.0;
	uint64_t bits;

	if (field->type != OKV_FIELD_F64)
		return (uint64_t)value;
	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static void identity_fields(struct okv_identity *id, const void *base, const struct okv_field_table *table)
{
	for (uint32_t i = 0; i < table->nr_fields; i++)
		if (table->fields[i].is_identity)
			okv_identity_u64(id, field_bits(base, &table->fields[i]));
}

int omnikv_layout_identity(const struct omnikv_layout *layout, uint8_t identity[32])
{
	struct okv_identity id;

	if (!identity || omnikv_layout_check(layout, NULL))
		return -EINVAL;
	okv_identity_init(&id, "omnikv-layout-1");
	identity_fields(&id, layout, &okv_layout_fields);
	okv_identity_u64(&id, layout->nr_groups);
	for (uint32_t g = 0; g < layout->nr_groups; g++) {
		const struct omnikv_group *group = &layout->groups[g];

		identity_fields(&id, group, &okv_group_fields);
		okv_identity_u64(&id, group->nr_layers);
		for (uint32_t i = 0; i < group->nr_layers; i++) {
			okv_identity_u64(&id, group->layers[i]);
			okv_identity_u64(&id, (uint64_t)(int64_t)group->alias_of[i]);
		}
		okv_identity_u64(&id, group->nr_planes);
		for (uint32_t p = 0; p < group->nr_planes; p++)
			identity_fields(&id, &group->planes[p], &okv_plane_fields);
	}
	return okv_identity_fini(&id, identity);
}

static void diff_text(struct omnikv_error *text, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void diff_text(struct omnikv_error *text, const char *fmt, ...)
{
	va_list args;

	if (!text)
		return;
	va_start(args, fmt);
	vsnprintf(text->text, sizeof(text->text), fmt, args);
	va_end(args);
}

/* True, with @text filled, where a field of the identity differs. */
static bool diff_fields(const void *a, const void *b, const struct okv_field_table *table, const char *path,
			struct omnikv_error *text)
{
	for (uint32_t i = 0; i < table->nr_fields; i++) {
		const struct okv_field *field = &table->fields[i];
		char in_a[40], in_b[40];

		if (!field->is_identity || field_bits(a, field) == field_bits(b, field))
			continue;
		okv_field_text(a, field, in_a, sizeof(in_a));
		okv_field_text(b, field, in_b, sizeof(in_b));
		diff_text(text, "%s%s%s: %s and %s", path, *path ? "." : "", field->name, in_a, in_b);
		return true;
	}
	return false;
}

static bool diff_groups(const struct omnikv_group *a, const struct omnikv_group *b, uint32_t g,
			struct omnikv_error *text)
{
	char path[OKV_PATH_BYTES];

	snprintf(path, sizeof(path), "groups[%u]", g);
	if (diff_fields(a, b, &okv_group_fields, path, text))
		return true;
	if (a->nr_layers != b->nr_layers) {
		diff_text(text, "%s.layers: %u and %u entries", path, a->nr_layers, b->nr_layers);
		return true;
	}
	for (uint32_t i = 0; i < a->nr_layers; i++) {
		if (a->layers[i] != b->layers[i]) {
			diff_text(text, "%s.layers[%u]: %u and %u", path, i, a->layers[i], b->layers[i]);
			return true;
		}
		if (a->alias_of[i] != b->alias_of[i]) {
			diff_text(text, "%s.alias_of[%u]: %d and %d", path, i, a->alias_of[i], b->alias_of[i]);
			return true;
		}
	}
	if (a->nr_planes != b->nr_planes) {
		diff_text(text, "%s.planes: %u and %u entries", path, a->nr_planes, b->nr_planes);
		return true;
	}
	for (uint32_t p = 0; p < a->nr_planes; p++) {
		snprintf(path, sizeof(path), "groups[%u].planes[%u]", g, p);
		if (diff_fields(&a->planes[p], &b->planes[p], &okv_plane_fields, path, text))
			return true;
	}
	return false;
}

int omnikv_layout_diff(const struct omnikv_layout *a, const struct omnikv_layout *b, struct omnikv_error *text)
{
	if (omnikv_layout_check(a, NULL) || omnikv_layout_check(b, NULL))
		return -EINVAL;
	if (diff_fields(a, b, &okv_layout_fields, "", text))
		return 0;
	if (a->nr_groups != b->nr_groups) {
		diff_text(text, "groups: %u and %u entries", a->nr_groups, b->nr_groups);
		return 0;
	}
	for (uint32_t g = 0; g < a->nr_groups; g++)
		if (diff_groups(&a->groups[g], &b->groups[g], g, text))
			return 0;
	return -ENOENT;
}

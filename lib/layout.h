/* SPDX-License-Identifier: MIT */
/*
 * What the files on layouts share: the table of fields, from which check, JSON, identity and
 * diff all work, so that a field is added in one place.
 *
 * A field has the same name in C, in JSON and in messages. Lists (layers, alias_of, planes,
 * groups, atomic_with) and the name are no table's: each walker treats them itself.
 */
#ifndef OKV_LAYOUT_H
#define OKV_LAYOUT_H

#include <omnikv/layout.h>

#define OKV_PATH_BYTES		96
#define OKV_HEADS_MAX		65536u
#define OKV_ELEMS_MAX		(1u << 24)
#define OKV_TOKENS_MAX		(1u << 24)

enum okv_field_type {
	OKV_FIELD_U32,
	OKV_FIELD_ENUM,
	OKV_FIELD_BOOL,
	OKV_FIELD_F64,
};

/**
 * struct okv_field - one field of a layout, group or plane
 * @off:         bytes from the start of the struct that it is in
 * @names:       ENUM: [nr_names] names of values, in order
 * @min:         U32, F64: least value
 * @max:         U32, F64: greatest value (F64: the first that is too great)
 * @is_identity: enters omnikv_layout_identity()
 * @is_required: must be there in JSON; others keep the kind's default
 */
struct okv_field {
	const char		*name;
	size_t			off;
	enum okv_field_type	type;
	bool			is_identity;
	bool			is_required;
	const char *const	*names;
	uint32_t		nr_names;
	double			min;
	double			max;
};

struct okv_field_table {
	const struct okv_field	*fields;
	uint32_t		nr_fields;
};

extern const struct okv_field_table okv_layout_fields;
extern const struct okv_field_table okv_group_fields;
extern const struct okv_field_table okv_plane_fields;

/* The value as a number (F64: as a double, else exact in a double too: all are 32 bits wide). */
double okv_field_get(const void *base, const struct okv_field *field);
void okv_field_set(void *base, const struct okv_field *field, double value);
/* "8", "bf16", "true", "0.5": as JSON has it, without quotes. */
void okv_field_text(const void *base, const struct okv_field *field, char *text, size_t bytes);
/* "full, swa, ..." or "1 to 65536": what a message says is allowed. */
void okv_field_allowed(const struct okv_field *field, char *text, size_t bytes);

/* Fill @err (may be NULL) and return -EINVAL. */
int okv_layout_fail(struct omnikv_error *err, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Set what the kind implies: tokens_per_entry, reuse, rollback, residency; no aliases. */
void okv_group_defaults(struct omnikv_group *group, enum omnikv_group_kind kind);

static inline bool okv_kind_is_state(enum omnikv_group_kind kind)
{
	return kind == OMNIKV_GROUP_RECURRENT || kind == OMNIKV_GROUP_CONV;
}

#endif /* OKV_LAYOUT_H */

// SPDX-License-Identifier: MIT
/*
 * Layouts as JSON: a strict reader and a writer that it reads back.
 *
 * The reader trusts nothing: size and depth are bounded before the text is parsed, each fault is
 * one line of path, value and what is allowed. What the fields are is layout.c's table, whether they
 * agree with each other is omnikv_layout_check()'s. Any thread.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "failpoint.h"
#include "layout.h"

#define DEPTH_MAX	5	/* layout { groups [ group { planes [ plane { */
#define QUOTE_BYTES	40

/* Printable ASCII of @text, cut short with "..." where it is long. */
static void quote(const char *text, size_t len, char *out, size_t bytes)
{
	size_t n = 0;

	while (n < len && n + 4 < bytes) {
		out[n] = text[n] >= 0x20 && text[n] < 0x7f ? text[n] : '?';
		n++;
	}
	out[n] = '\0';
	if (n < len)
		strcat(out, "...");
}

/* What stands at a path, for a message. */
static void describe(const json_t *value, char *text, size_t bytes)
{
	char quoted[QUOTE_BYTES];
	size_t n;

	switch (json_typeof(value)) {
	case JSON_OBJECT:
		snprintf(text, bytes, "an object");
		break;
	case JSON_ARRAY:
		snprintf(text, bytes, "an array of %zu entries", json_array_size(value));
		break;
	case JSON_STRING:
		quote(json_string_value(value), json_string_length(value), quoted, sizeof(quoted));
		snprintf(text, bytes, "\"%s\"", quoted);
		break;
	case JSON_INTEGER:
		snprintf(text, bytes, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
		break;
	case JSON_REAL:
		n = json_dumpb(value, text, bytes - 1, JSON_ENCODE_ANY);	/* 4.0, not 4 */
		text[n < bytes ? n : bytes - 1] = '\0';
		break;
	case JSON_TRUE:
		snprintf(text, bytes, "true");
		break;
	case JSON_FALSE:
		snprintf(text, bytes, "false");
		break;
	default:
		snprintf(text, bytes, "null");
	}
}

static int fail_value(struct omnikv_error *err, const char *path, const char *name, const json_t *value,
		      const char *allowed)
{
	char text[QUOTE_BYTES + 24];

	describe(value, text, sizeof(text));
	return okv_layout_fail(err, "%s%s%s: %s is not allowed; allowed: %s", path, *path ? "." : "", name, text,
			       allowed);
}

/* Where in the text we are: one level an open bracket. */
struct okv_json_place {
	struct {
		bool	is_array;
		size_t	idx;
		size_t	key_off;	/* of the last key, without its quotes */
		size_t	key_len;
	}		levels[DEPTH_MAX];
	unsigned int	depth;
	size_t		end;		/* where the walk stopped */
};

/*
 * Walk @json up to @stop. No parser: only strings and brackets count, so that it can say where it is in a text that
 * is wrong. False where brackets go deeper than DEPTH_MAX.
 */
static bool walk(const char *json, size_t stop, struct okv_json_place *place)
{
	size_t string_off = 0;
	bool in_string = false;

	memset(place, 0, sizeof(*place));
	for (size_t i = 0; i < stop; i++) {
		char c = json[i];

		place->end = i + 1;
		if (in_string) {
			if (c == '\\')
				i++;
			else if (c == '"') {
				in_string = false;
				if (place->depth && !place->levels[place->depth - 1].is_array) {
					place->levels[place->depth - 1].key_off = string_off;
					place->levels[place->depth - 1].key_len = i - string_off;
				}
			}
			continue;
		}
		switch (c) {
		case '"':
			in_string = true;
			string_off = i + 1;
			break;
		case ':':
			/* What follows is a value: skip a string, so that it does not pass for a key. */
			while (i + 1 < stop && (json[i + 1] == ' ' || json[i + 1] == '\t' || json[i + 1] == '\n' ||
						json[i + 1] == '\r'))
				i++;
			if (i + 1 < stop && json[i + 1] == '"')
				for (i += 2; i < stop && json[i] != '"'; i++)
					i += json[i] == '\\';
			break;
		case '[':
		case '{':
			if (place->depth == DEPTH_MAX)
				return false;
			memset(&place->levels[place->depth], 0, sizeof(place->levels[0]));
			place->levels[place->depth++].is_array = c == '[';
			break;
		case ']':
		case '}':
			place->depth -= place->depth > 0;
			break;
		case ',':
			if (place->depth)
				place->levels[place->depth - 1].idx++;
			break;
		}
	}
	return true;
}

static void place_text(const char *json, const struct okv_json_place *place, char *path, size_t bytes)
{
	char key[QUOTE_BYTES];
	size_t at = 0;

	snprintf(path, bytes, "layout");
	for (unsigned int d = 0; d < place->depth && at + QUOTE_BYTES < bytes; d++) {
		if (place->levels[d].is_array) {
			at += (size_t)snprintf(path + at, bytes - at, "[%zu]", place->levels[d].idx);
		} else if (place->levels[d].key_len) {
			quote(json + place->levels[d].key_off, place->levels[d].key_len, key, sizeof(key));
			at += (size_t)snprintf(path + at, bytes - at, "%s%s", at ? "." : "", key);
		}
	}
}

/* The text is no JSON: jansson's words, with the path of the place. */
static int fail_syntax(struct omnikv_error *err, const char *json, size_t len, const json_error_t *error)
{
	struct okv_json_place place;
	char path[4 * QUOTE_BYTES], words[80];
	size_t stop = error->position > 0 ? (size_t)error->position : 0;

	/* jansson has no words for it where memory was short. */
	if (!error->text[0] || json_error_code(error) == json_error_out_of_memory)
		return -ENOMEM;
	walk(json, stop < len ? stop : len, &place);
	place_text(json, &place, path, sizeof(path));
	if (json_error_code(error) == json_error_duplicate_key)
		return okv_layout_fail(err, "%.120s: given twice, at line %d; allowed: once", path, error->line);
	quote(error->text, strlen(error->text), words, sizeof(words));
	return okv_layout_fail(err, "%.120s: no JSON at line %d, column %d: %s", path, error->line, error->column,
			       words);
}

static int read_field(void *base, const struct okv_field *field, const char *path, const json_t *value,
		      struct omnikv_error *err)
{
	char allowed[128];
	double number;

	okv_field_allowed(field, allowed, sizeof(allowed));
	switch (field->type) {
	case OKV_FIELD_ENUM:
		for (uint32_t i = 0; json_is_string(value) && i < field->nr_names; i++) {
			if (strcmp(json_string_value(value), field->names[i]) != 0)
				continue;
			okv_field_set(base, field, i);
			return 0;
		}
		break;
	case OKV_FIELD_BOOL:
		if (!json_is_boolean(value))
			break;
		okv_field_set(base, field, json_is_true(value));
		return 0;
	case OKV_FIELD_F64:
		number = json_number_value(value);
		if (!json_is_number(value) || number < field->min || number >= field->max)
			break;
		okv_field_set(base, field, number);
		return 0;
	default:
		number = (double)json_integer_value(value);
		if (!json_is_integer(value) || number < field->min || number > field->max)
			break;
		okv_field_set(base, field, number);
		return 0;
	}
	return fail_value(err, path, field->name, value, allowed);
}

/* Read what is of the table; the rest must be in @others, which the caller reads. */
static int read_fields(void *base, const struct okv_field_table *table, const char *const *others, const char *path,
		       json_t *object, struct omnikv_error *err)
{
	const char *dot = *path ? "." : "";
	const char *key;
	json_t *value;
	int ret;

	json_object_foreach(object, key, value) {
		char quoted[QUOTE_BYTES];
		uint32_t i = 0;
		bool is_other = false;

		for (uint32_t o = 0; others[o]; o++)
			is_other |= strcmp(key, others[o]) == 0;
		if (is_other)
			continue;
		while (i < table->nr_fields && strcmp(key, table->fields[i].name) != 0)
			i++;
		if (i < table->nr_fields) {
			ret = read_field(base, &table->fields[i], path, value, err);
			if (ret)
				return ret;
			continue;
		}
		quote(key, strlen(key), quoted, sizeof(quoted));
		ret = okv_layout_fail(err, "%s%s%s: unknown field; allowed:", path, dot, quoted);
		for (i = 0; err && i < table->nr_fields + OMNIKV_GROUPS_MAX; i++) {
			const char *name = i < table->nr_fields ? table->fields[i].name : others[i - table->nr_fields];
			size_t at = strlen(err->text);

			if (!name)
				break;
			snprintf(err->text + at, sizeof(err->text) - at, "%s %s", i ? "," : "", name);
		}
		return ret;
	}
	for (uint32_t i = 0; i < table->nr_fields; i++) {
		const struct okv_field *field = &table->fields[i];
		char allowed[128];

		if (!field->is_required || json_object_get(object, field->name))
			continue;
		okv_field_allowed(field, allowed, sizeof(allowed));
		return okv_layout_fail(err, "%s%s%s: missing; allowed: %s", path, dot, field->name, allowed);
	}
	return 0;
}

/* Entry @idx of a list of whole numbers from @min to @max. */
static int read_entry(const json_t *list, size_t idx, const char *path, int min, int max, int *number,
		      struct omnikv_error *err)
{
	const json_t *value = json_array_get(list, idx);
	char name[OKV_PATH_BYTES], allowed[40];
	json_int_t given = json_integer_value(value);

	if (json_is_integer(value) && given >= min && given <= max) {
		*number = (int)given;
		return 0;
	}
	snprintf(name, sizeof(name), "%s[%zu]", path, idx);
	snprintf(allowed, sizeof(allowed), "%d to %d", min, max);
	return fail_value(err, "", name, value, allowed);
}

/* "all" or a list of numbers of layers; alias_of is as long as it. */
static int read_layers(struct omnikv_group *group, uint32_t nr_model_layers, const char *path, json_t *object,
		       struct omnikv_error *err)
{
	const json_t *layers = json_object_get(object, "layers");
	const json_t *aliases = json_object_get(object, "alias_of");
	char where[OKV_PATH_BYTES], allowed[80];
	int number, ret;

	if (!layers)
		return okv_layout_fail(err, "%s.layers: missing; allowed: \"all\" or a list of layer numbers", path);
	if (json_is_string(layers) && strcmp(json_string_value(layers), "all") == 0) {
		group->nr_layers = nr_model_layers;
		for (uint32_t l = 0; l < nr_model_layers; l++)
			group->layers[l] = (uint16_t)l;
	} else {
		snprintf(allowed, sizeof(allowed), "\"all\" or a list of 1 to %u layer numbers", nr_model_layers);
		if (!json_is_array(layers) || json_array_size(layers) < 1 ||
		    json_array_size(layers) > nr_model_layers)
			return fail_value(err, path, "layers", layers, allowed);
		group->nr_layers = (uint32_t)json_array_size(layers);
		snprintf(where, sizeof(where), "%.64s.layers", path);
		for (uint32_t i = 0; i < group->nr_layers; i++) {
			ret = read_entry(layers, i, where, 0, (int)nr_model_layers - 1, &number, err);
			if (ret)
				return ret;
			group->layers[i] = (uint16_t)number;
		}
	}
	if (!aliases)
		return 0;
	if (!json_is_array(aliases) || json_array_size(aliases) != group->nr_layers) {
		snprintf(allowed, sizeof(allowed), "a list of %u, one a layer", group->nr_layers);
		return fail_value(err, path, "alias_of", aliases, allowed);
	}
	snprintf(where, sizeof(where), "%.64s.alias_of", path);
	for (uint32_t i = 0; i < group->nr_layers; i++) {
		ret = read_entry(aliases, i, where, -1, (int)nr_model_layers - 1, &number, err);
		if (ret)
			return ret;
		group->alias_of[i] = (int16_t)number;
	}
	return 0;
}

/* An object in a list, or a message. */
static json_t *object_at(const json_t *list, size_t idx, const char *path, struct omnikv_error *err)
{
	json_t *value = json_array_get(list, idx);

	if (json_is_object(value))
		return value;
	fail_value(err, "", path, value, "an object");
	return NULL;
}

static int read_planes(struct omnikv_group *group, const char *path, const json_t *planes, struct omnikv_error *err)
{
	static const char *const others[] = { NULL };
	char where[OKV_PATH_BYTES], allowed[40];
	int ret;

	if (!planes)
		return okv_layout_fail(err, "%s.planes: missing; allowed: a list of objects", path);
	snprintf(allowed, sizeof(allowed), "a list of 1 to %u objects", OMNIKV_PLANES_MAX);
	if (!json_is_array(planes) || json_array_size(planes) < 1 || json_array_size(planes) > OMNIKV_PLANES_MAX)
		return fail_value(err, path, "planes", planes, allowed);
	group->nr_planes = (uint32_t)json_array_size(planes);
	for (uint32_t p = 0; p < group->nr_planes; p++) {
		json_t *object;

		snprintf(where, sizeof(where), "%.64s.planes[%u]", path, p);
		object = object_at(planes, p, where, err);
		ret = object ? read_fields(&group->planes[p], &okv_plane_fields, others, where, object, err) : -EINVAL;
		if (ret)
			return ret;
	}
	return 0;
}

static int read_group(struct omnikv_group *group, const struct omnikv_layout *layout, const char *path, json_t *object,
		      struct omnikv_error *err)
{
	static const char *const others[] = { "layers", "alias_of", "planes", "atomic_with", NULL };
	const json_t *kind = json_object_get(object, "kind");
	const json_t *atomic = json_object_get(object, "atomic_with");
	char where[OKV_PATH_BYTES];
	int ret, number;

	/* The kind first: the defaults of the other fields follow from it. */
	if (kind) {
		ret = read_field(group, &okv_group_fields.fields[0], path, kind, err);
		if (ret)
			return ret;
	}
	okv_group_defaults(group, group->kind);
	ret = read_fields(group, &okv_group_fields, others, path, object, err);
	if (!ret)
		ret = read_layers(group, layout->nr_layers, path, object, err);
	if (!ret)
		ret = read_planes(group, path, json_object_get(object, "planes"), err);
	if (ret || !atomic)
		return ret;
	if (!json_is_array(atomic) || json_array_size(atomic) > OMNIKV_GROUPS_MAX)
		return fail_value(err, path, "atomic_with", atomic, "a list of at most 8 group numbers");
	snprintf(where, sizeof(where), "%.64s.atomic_with", path);
	for (uint32_t i = 0; i < json_array_size(atomic); i++) {
		ret = read_entry(atomic, i, where, 0, (int)layout->nr_groups - 1, &number, err);
		if (ret)
			return ret;
		group->atomic_with |= 1u << number;
	}
	return 0;
}

static int read_layout(struct omnikv_layout *layout, json_t *root, struct omnikv_error *err)
{
	static const char *const others[] = { "name", "groups", NULL };
	const json_t *name = json_object_get(root, "name");
	const json_t *groups = json_object_get(root, "groups");
	char where[OKV_PATH_BYTES];
	int ret;

	ret = read_fields(layout, &okv_layout_fields, others, "", root, err);
	if (ret)
		return ret;
	if (!name)
		return okv_layout_fail(err, "name: missing; allowed: a text of 1 to 63 characters");
	if (!json_is_string(name) || json_string_length(name) >= sizeof(layout->name))
		return fail_value(err, "", "name", name, "a text of 1 to 63 characters");
	strcpy(layout->name, json_string_value(name));
	if (!groups)
		return okv_layout_fail(err, "groups: missing; allowed: a list of objects");
	if (!json_is_array(groups) || json_array_size(groups) < 1 || json_array_size(groups) > OMNIKV_GROUPS_MAX)
		return fail_value(err, "", "groups", groups, "a list of 1 to 8 objects");
	layout->nr_groups = (uint32_t)json_array_size(groups);
	for (uint32_t g = 0; g < layout->nr_groups; g++) {
		json_t *object;

		snprintf(where, sizeof(where), "groups[%u]", g);
		object = object_at(groups, g, where, err);
		ret = object ? read_group(&layout->groups[g], layout, where, object, err) : -EINVAL;
		if (ret)
			return ret;
	}
	return omnikv_layout_check(layout, err);
}

int omnikv_layout_parse(const char *json, size_t len, struct omnikv_layout *layout, struct omnikv_error *err)
{
	struct okv_json_place place;
	struct omnikv_layout *made;
	char path[4 * QUOTE_BYTES];
	json_error_t error;
	json_t *root;
	int ret;

	if (!json || !layout)
		return okv_layout_fail(err, "layout: none given");
	if (len > OMNIKV_LAYOUT_JSON_MAX)
		return okv_layout_fail(err, "layout: %zu bytes of text; allowed: at most %u", len,
				       OMNIKV_LAYOUT_JSON_MAX);
	if (!walk(json, len, &place)) {
		place_text(json, &place, path, sizeof(path));
		return okv_layout_fail(err, "%.120s: brackets %u deep, at byte %zu; allowed: at most %u", path,
				       DEPTH_MAX + 1, place.end, DEPTH_MAX);
	}
	root = json_loadb(json, len, JSON_REJECT_DUPLICATES, &error);
	if (!root)
		return fail_syntax(err, json, len, &error);
	made = OKV_FAILPOINT("layout_json.alloc") ? NULL : calloc(1, sizeof(*made));
	if (!made) {
		ret = -ENOMEM;
		goto out_decref;
	}
	if (json_is_object(root))
		ret = read_layout(made, root, err);
	else
		ret = fail_value(err, "", "layout", root, "an object");
	if (!ret)
		*layout = *made;
	free(made);
out_decref:
	json_decref(root);
	return ret;
}

/* Writers return 0, or non-zero where memory is short; jansson takes NULL for a failed object. */
static int write_fields(json_t *object, const void *base, const struct okv_field_table *table)
{
	int failed = 0;

	for (uint32_t i = 0; i < table->nr_fields; i++) {
		const struct okv_field *field = &table->fields[i];
		double value = okv_field_get(base, field);
		json_t *item;

		if (field->type == OKV_FIELD_ENUM)
			item = json_string(field->names[(uint32_t)value]);
		else if (field->type == OKV_FIELD_BOOL)
			item = json_boolean(value != 0);
		else if (field->type == OKV_FIELD_F64)
			item = json_real(value);
		else
			item = json_integer((json_int_t)value);
		failed |= json_object_set_new(object, field->name, item);
	}
	return failed;
}

static int write_group(json_t *groups, const struct omnikv_group *group)
{
	json_t *object = json_object(), *layers = json_array(), *aliases = json_array();
	json_t *planes = json_array(), *atomic = json_array();
	int failed = write_fields(object, group, &okv_group_fields);

	for (uint32_t i = 0; i < group->nr_layers; i++) {
		failed |= json_array_append_new(layers, json_integer(group->layers[i]));
		failed |= json_array_append_new(aliases, json_integer(group->alias_of[i]));
	}
	for (uint32_t p = 0; p < group->nr_planes; p++) {
		json_t *plane = json_object();

		failed |= write_fields(plane, &group->planes[p], &okv_plane_fields);
		failed |= json_array_append_new(planes, plane);
	}
	for (uint32_t g = 0; g < OMNIKV_GROUPS_MAX; g++)
		if (group->atomic_with & (1u << g))
			failed |= json_array_append_new(atomic, json_integer(g));
	failed |= json_object_set_new(object, "layers", layers);
	if (omnikv_group_stored_layers(group) < group->nr_layers)
		failed |= json_object_set_new(object, "alias_of", aliases);
	else
		json_decref(aliases);
	failed |= json_object_set_new(object, "planes", planes);
	failed |= json_object_set_new(object, "atomic_with", atomic);
	return failed | json_array_append_new(groups, object);
}

int omnikv_layout_format(const struct omnikv_layout *layout, char **json)
{
	json_t *root, *groups;
	char *text = NULL;
	int failed;

	if (!json || omnikv_layout_check(layout, NULL))
		return -EINVAL;
	root = json_object();
	groups = json_array();
	failed = json_object_set_new(root, "name", json_string(layout->name));
	failed |= write_fields(root, layout, &okv_layout_fields);
	for (uint32_t g = 0; g < layout->nr_groups; g++)
		failed |= write_group(groups, &layout->groups[g]);
	failed |= json_object_set_new(root, "groups", groups);
	if (!failed)
		text = json_dumps(root, JSON_INDENT(1));
	json_decref(root);
	if (!text)
		return -ENOMEM;
	*json = text;
	return 0;
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * The model of a command: a preset's name, or a file with a layout in JSON.
 *
 * What a layout may say is the library's business; here a file is read whole, up to the size that it takes.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model.h"

static bool is_file_name(const char *model)
{
	size_t len = strlen(model);

	return strchr(model, '/') || (len > 5 && strcmp(model + len - 5, ".json") == 0);
}

int okv_model_load(const char *model, struct omnikv_layout *layout, struct omnikv_error *err)
{
	struct omnikv_error why = { "" };
	FILE *file = NULL;
	char *text = NULL;
	size_t len;
	int ret;

	if (!is_file_name(model)) {
		ret = omnikv_layout_preset(model, layout, &why);
		if (ret)
			snprintf(err->text, sizeof(err->text), "%.230s, or a JSON file", why.text);
		return ret;
	}
	text = malloc(OMNIKV_LAYOUT_JSON_MAX + 1);
	if (!text)
		return -ENOMEM;
	errno = 0;
	file = fopen(model, "r");
	len = file ? fread(text, 1, OMNIKV_LAYOUT_JSON_MAX + 1, file) : 0;
	if (!file || ferror(file)) {
		ret = errno ? -errno : -EIO;
		snprintf(err->text, sizeof(err->text), "%.120s: %s", model, strerror(-ret));
		goto out_close;
	}
	ret = omnikv_layout_parse(text, len, layout, &why);
	if (ret)
		snprintf(err->text, sizeof(err->text), "%.60s: %.180s", model, why.text);
out_close:
	if (file)
		fclose(file);
	free(text);
	return ret;
}

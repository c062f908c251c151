/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The model of a command: a preset's name, or a file with a layout in JSON.
 *
 * What has a slash in it or ends with .json is a file. Reads one file; any thread.
 */
#ifndef OKV_MODEL_H
#define OKV_MODEL_H

#include <omnikv/layout.h>

/**
 * okv_model_load() - fill a layout from --model
 * @model: NAME or FILE
 *
 * Return: 0, or -EINVAL, -ENOENT, -ENOMEM or what reading the file gave; @err says which in one line.
 */
int okv_model_load(const char *model, struct omnikv_layout *layout, struct omnikv_error *err);

#endif /* OKV_MODEL_H */

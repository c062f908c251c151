// SPDX-License-Identifier: GPL-2.0-only
/*
 * omnikv device: what KV can be computed on here, and what GPU code this build carries.
 *
 * A machine without a GPU is no failure: the reason stands in its place.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>

#include <omnikv/device.h>

#include "cmd.h"

#define GPUS_MAX	64u

static error_t parse(int key, char *arg, struct argp_state *state)
{
	(void)arg;
	if (key != 'j')
		return ARGP_ERR_UNKNOWN;
	*(bool *)state->input = true;
	return 0;
}

static const struct argp_option options[] = {
	{ "json", 'j', NULL, 0, "Print one JSON object", 0 },
	{ 0 },
};

static const struct argp okv_device_argp = {
	.options = options, .parser = parse,
	.doc = "Show the devices that there are, and the GPU code in this library.\v"
	       "host and sim are always there; sim:kernels is sim with the GPU code moving the bytes, on the CPU.",
};

static int print_json(const struct omnikv_device_entry *gpus, uint32_t nr, const char *why)
{
	json_t *object = json_pack("{s:s,s:[s,s,s],s:[]}", "gpu_code", omnikv_device_code(), "devices", "host", "sim",
				   "sim:kernels", "gpus");
	uint32_t i;

	for (i = 0; i < nr; i++)
		json_array_append_new(json_object_get(object, "gpus"),
				      json_pack("{s:s,s:s,s:I,s:i,s:i}", "name", gpus[i].name, "model", gpus[i].model, "hbm_bytes",
						(json_int_t)gpus[i].hbm_bytes, "sms", (int)gpus[i].nr_sms, "compute",
						(int)gpus[i].compute));
	if (*why)
		json_object_set_new(object, nr ? "why_no_gpu_code" : "why_no_gpu", json_string(why));
	return okv_json_print(object, JSON_INDENT(1));
}

int okv_cmd_device(int argc, char **argv)
{
	struct omnikv_device_entry gpus[GPUS_MAX];
	struct omnikv_error why = { "" };
	bool is_json = false;
	char text[24];
	uint32_t nr, i;

	okv_cmd_parse(&okv_device_argp, argc, argv, &is_json);
	nr = (uint32_t)omnikv_device_list(gpus, GPUS_MAX, &why);
	nr = nr < GPUS_MAX ? nr : GPUS_MAX;
	if (is_json)
		return print_json(gpus, nr, why.text);
	printf("host         this machine's memory\n"
	       "sim          a simulated accelerator\n"
	       "sim:kernels  the same, its bytes moved by the GPU code, on the CPU\n");
	for (i = 0; i < nr; i++)
		printf("%-12s %s, %s, %u SMs, compute capability %u.%u\n", gpus[i].name, gpus[i].model,
		       okv_bytes_text(gpus[i].hbm_bytes, text), gpus[i].nr_sms, gpus[i].compute / 10, gpus[i].compute % 10);
	if (!nr)
		printf("no GPU: %s\n", why.text);
	printf("GPU code: %s\n", omnikv_device_code());
	if (nr && why.text[0])
		printf("note: %s\n", why.text);
	return okv_output_end(0);
}

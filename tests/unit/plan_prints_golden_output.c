// SPDX-License-Identifier: GPL-2.0-only
/*
 * What omnikv plan prints, in words and as JSON, byte for byte; and how a model is named. The figures are worked out
 * by hand: see layout_presets_match_published_sizes.c for those of a block.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tools/omnikv/model.h"
#include "tools/omnikv/plan_print.h"

static struct omnikv_layout layout;
static struct omnikv_plan plan;

static void prints(int (*print)(FILE *, const struct omnikv_plan *, uint64_t), uint64_t pool_bytes, const char *want)
{
	char *text = NULL;
	size_t len;
	FILE *out = open_memstream(&text, &len);

	assert_non_null(out);
	assert_int_equal(print(out, &plan, pool_bytes), 0);
	fclose(out);
	assert_string_equal(text, want);
	free(text);
}

static void make(const char *name, uint32_t scale)
{
	struct omnikv_plan_config config = { .size = sizeof(config), .scale = scale };

	assert_int_equal(omnikv_layout_preset(name, &layout, NULL), 0);
	assert_int_equal(omnikv_plan_make(&layout, &config, &plan, NULL), 0);
}

static void test_words(void **state)
{
	(void)state;
	/* 4 GiB / 778240 = 5518.9; 643072 / 640256 = 1.004, 135168 / 128832 = 1.049, 778240 / 769088 = 1.012 */
	make("deepseek-v3.2", 1);
	prints(okv_plan_print, 4ull << 30,
	       "model    deepseek-v3.2: 61 layers, 48068 bytes a token\n"
	       "block    16 tokens, 778240 bytes, 1.012 of what is needed; granules of 4096 bytes\n"
	       "\n"
	       "group kind       layers  bytes/token entries  piece bytes   extent bytes  granules overhead\n"
	       "0     mla_latent     61        40016      16        10496         643072       157    1.004\n"
	       "1     index          61         8052      16         2176         135168        33    1.049\n"
	       "\n"
	       "pool     4294967296 bytes hold 5518 blocks, 88288 tokens\n");
	/*
	 * State: 36 x 2 MiB and 36 x 48 KiB; 4 GiB / 77266944 = 55.6. Scaled by 2: rows of 256 B, 1 MiB, 8192 B; pieces of
	 * 2 x 16 x 256 x ... = 16384, 1 MiB, 24576: 54 granules of 16 KiB for the convolutions
	 */
	make("qwen3-next-80b-a3b", 2);
	prints(okv_plan_print, 4ull << 30,
	       "model    qwen3-next-80b-a3b: 48 layers, 24576 bytes a token, 77266944 bytes of state a sequence\n"
	       "block    16 tokens, 196608 bytes, 1.000 of what is needed; granules of 16384 bytes; rows at 1/2 of their size\n"
	       "\n"
	       "group kind       layers  bytes/token entries  piece bytes   extent bytes  granules overhead\n"
	       "0     full           12        24576      16        16384         196608        12    1.000\n"
	       "1     recurrent      36            0       1      1048576       37748736      2304    1.000\n"
	       "2     conv           36            0       1        24576         884736        54    1.000\n"
	       "\n"
	       "A checkpoint of state takes 38633472 bytes beside the blocks.\n"
	       "\n"
	       "pool     4294967296 bytes hold 21845 blocks, 349520 tokens; or 111 checkpoints\n");
	make("tiny", 1);
	prints(okv_plan_print, 0,
	       "model    tiny: 4 layers, 32 bytes a token\n"
	       "block    512 tokens, 16384 bytes, 1.000 of what is needed; granules of 4096 bytes\n"
	       "\n"
	       "group kind       layers  bytes/token entries  piece bytes   extent bytes  granules overhead\n"
	       "0     full            4           32     512         4096          16384         4    1.000\n");
}

static void test_json(void **state)
{
	(void)state;
	make("deepseek-v3.2", 1);
	prints(okv_plan_print_json, 1000000,
	       "{\n"
	       " \"model\": \"deepseek-v3.2\",\n"
	       " \"layers\": 61,\n"
	       " \"token_bytes\": 48068,\n"
	       " \"sequence_bytes\": 0,\n"
	       " \"block_tokens\": 16,\n"
	       " \"granule_bytes\": 4096,\n"
	       " \"scale\": 1,\n"
	       " \"block_bytes\": 778240,\n"
	       " \"checkpoint_bytes\": 0,\n"
	       " \"overhead\": 1.0119,\n"
	       " \"groups\": [\n"
	       "  {\n"
	       "   \"kind\": \"mla_latent\",\n"
	       "   \"layers\": 61,\n"
	       "   \"token_bytes\": 40016,\n"
	       "   \"entries\": 16,\n"
	       "   \"piece_bytes\": 10496,\n"
	       "   \"needed_bytes\": 640256,\n"
	       "   \"extent_bytes\": 643072,\n"
	       "   \"granules\": 157,\n"
	       "   \"overhead\": 1.0044\n"
	       "  },\n"
	       "  {\n"
	       "   \"kind\": \"index\",\n"
	       "   \"layers\": 61,\n"
	       "   \"token_bytes\": 8052,\n"
	       "   \"entries\": 16,\n"
	       "   \"piece_bytes\": 2176,\n"
	       "   \"needed_bytes\": 128832,\n"
	       "   \"extent_bytes\": 135168,\n"
	       "   \"granules\": 33,\n"
	       "   \"overhead\": 1.0492\n"
	       "  }\n"
	       " ],\n"
	       " \"pool\": {\n"
	       "  \"bytes\": 1000000,\n"
	       "  \"blocks\": 1,\n"
	       "  \"tokens\": 16,\n"
	       "  \"checkpoints\": 0\n"
	       " }\n"
	       "}\n");
}

static void test_fit(void **state)
{
	struct okv_plan_fit fit;

	(void)state;
	/* 16-KiB blocks: a byte short of two is one */
	make("tiny", 1);
	okv_plan_fit(&plan, 32767, &fit);
	assert_int_equal(fit.blocks, 1);
	assert_int_equal(fit.tokens, 512);
	okv_plan_fit(&plan, 32768, &fit);
	assert_int_equal(fit.blocks, 2);
	okv_plan_fit(&plan, 4095, &fit);
	assert_int_equal(fit.blocks, 0);
	assert_int_equal(fit.checkpoints, 0);
	okv_plan_fit(&plan, UINT64_MAX, &fit);
	assert_true(fit.blocks == (1ull << 50) - 1);
}

static void test_failing_stream(void **state)
{
	FILE *out = fopen("/dev/full", "w");

	(void)state;
	assert_non_null(out);
	setvbuf(out, NULL, _IONBF, 0);
	make("tiny", 1);
	assert_int_equal(okv_plan_print(out, &plan, 0), -EIO);
	assert_int_equal(okv_plan_print_json(out, &plan, 0), -EIO);
	fclose(out);
}

static void load_file(const char *text, int want, const char *message)
{
	char path[] = "/tmp/omnikv-plan-XXXXXX.json";
	struct omnikv_error err = { "" };
	int fd = mkstemps(path, 5);

	assert_true(fd >= 0);
	assert_int_equal(write(fd, text, strlen(text)), strlen(text));
	close(fd);
	assert_int_equal(okv_model_load(path, &layout, &err), want);
	if (message) {
		assert_non_null(strstr(err.text, path));
		assert_non_null(strstr(err.text, message));
	}
	unlink(path);
}

static void test_models(void **state)
{
	struct omnikv_error err = { "" };

	(void)state;
	assert_int_equal(okv_model_load("deepseek-v3.2", &layout, &err), 0);
	assert_int_equal(layout.nr_layers, 61);
	assert_int_equal(okv_model_load("json", &layout, &err), -ENOENT);
	assert_non_null(strstr(err.text, "tiny"));
	assert_int_equal(okv_model_load("no/such", &layout, &err), -ENOENT);
	assert_string_equal(err.text, "no/such: No such file or directory");
	assert_int_equal(okv_model_load("/", &layout, &err), -EISDIR);
	assert_string_equal(err.text, "/: Is a directory");
	load_file("{\"name\":\"mine\",\"nr_layers\":2,\"groups\":[{\"kind\":\"full\",\"layers\":\"all\",\"planes\":[{\"role\":\"k\","
		  "\"dtype\":\"u8\",\"heads\":1,\"elems\":8}]}]}", 0, NULL);
	assert_string_equal(layout.name, "mine");
	load_file("{\"name\":\"mine\",\"nr_layers\":0}", -EINVAL, ": nr_layers: 0 is not allowed; allowed: 1 to 1024");
	load_file("", -EINVAL, ": layout: no JSON");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_words),
		cmocka_unit_test(test_json),
		cmocka_unit_test(test_fit),
		cmocka_unit_test(test_failing_stream),
		cmocka_unit_test(test_models),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

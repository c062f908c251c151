// SPDX-License-Identifier: GPL-2.0-only
/*
 * Without a driver, with one that is none, with an old or a broken one: the reason is said in one line, in the loader's
 * or the driver's words, and everything that needs no GPU works.
 */
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "../harness/ring_fixture.h"

static void check_reason(const char *why, int ret, const char *const *words)
{
	struct omnikv_device_entry entries[2];
	struct omnikv_error err = { "" };
	struct omnikv_device *dev = NULL;

	assert_int_equal(omnikv_device_list(entries, 2, &err), 0);
	if (strncmp(err.text, "GPU unavailable: ", 17))
		print_error("%s: \"%s\"\n", why, err.text);
	assert_int_equal(strncmp(err.text, "GPU unavailable: ", 17), 0);
	memset(&err, 0, sizeof(err));
	assert_int_equal(omnikv_device_open("cuda", NULL, &dev, &err), ret);
	assert_null(dev);
	assert_null(strchr(err.text, '\n'));
	for (; *words; words++) {
		if (!strstr(err.text, *words))
			print_error("%s: \"%s\" lacks \"%s\"\n", why, err.text, *words);
		assert_non_null(strstr(err.text, *words));
	}
	/* The host and the simulated device need none of it. */
	assert_int_equal(omnikv_device_open("host", NULL, &dev, NULL), 0);
	assert_int_equal(omnikv_device_close(dev), 0);
	assert_int_equal(omnikv_device_open("sim", NULL, &dev, NULL), 0);
	assert_int_equal(omnikv_device_close(dev), 0);
}

#define REASON(why, ret, ...) check_reason(why, ret, (const char *const[]) { __VA_ARGS__, NULL })

static void a_missing_driver_is_named_by_the_loader(void **state)
{
	(void)state;
	assert_int_equal(setenv("OMNIKV_CUDA_DRIVER", "libcuda-that-is-not-there.so.1", 1), 0);
	REASON("missing", -ENODEV, "GPU unavailable: libcuda-that-is-not-there.so.1", "No such file", "host or sim");
	unsetenv("OMNIKV_CUDA_DRIVER");
}

static void a_library_that_is_no_driver_is_told_apart(void **state)
{
	(void)state;
	assert_int_equal(setenv("OMNIKV_CUDA_DRIVER", "libm.so.6", 1), 0);
	REASON("not a driver", -ENOSYS, "libm.so.6", "cuGetProcAddress", "11.7");
	unsetenv("OMNIKV_CUDA_DRIVER");
}

static void the_toolkits_stub_is_told_apart(void **state)
{
	static const char stub[] = "/usr/local/cuda/lib64/stubs/libcuda.so";

	(void)state;
	if (access(stub, R_OK)) {
		print_message("# no stub library here\n");
		skip();
	}
	assert_int_equal(setenv("OMNIKV_CUDA_DRIVER", stub, 1), 0);
	REASON("stub", -ENODEV, stub, "CUDA_ERROR_STUB_LIBRARY", "LD_LIBRARY_PATH");
	unsetenv("OMNIKV_CUDA_DRIVER");
}

static void old_and_broken_drivers_say_what_to_do(void **state)
{
	(void)state;
	fixture_device("cuda");
	fixture_cuda_set("version", 11040);
	REASON("11.4", -ENOSYS, "11.7");
	fixture_device("cuda");
	fixture_cuda_set("init_error", 100);
	REASON("no device", -ENODEV, "CUDA_ERROR_NO_DEVICE", "CUDA_VISIBLE_DEVICES");
	fixture_cuda_set("init_error", 803);
	REASON("mismatch", -ENODEV, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "reboot");
	fixture_cuda_set("init_error", 802);
	REASON("fabric", -ENODEV, "CUDA_ERROR_SYSTEM_NOT_READY", "fabricmanager");
	fixture_cuda_set("init_error", 35);
	REASON("older kernel driver", -ENODEV, "CUDA_ERROR_INSUFFICIENT_DRIVER");
	fixture_cuda_set("init_error", 2);
	REASON("memory", -ENODEV, "CUDA_ERROR_OUT_OF_MEMORY");
	fixture_device("cuda");
	fixture_cuda_set("devices", 0);
	REASON("no GPU", -ENODEV, "0 GPUs");
}

static void gpus_are_listed_and_opened_by_number(void **state)
{
	static const char *const wrong[] = { "cuda:2", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda:99999999999999999999" };
	struct omnikv_device_entry entries[4];
	struct omnikv_device_info info = { .size = sizeof(info) };
	struct omnikv_error err = { "" };
	struct omnikv_device *dev;
	size_t i;

	(void)state;
	fixture_device("cuda");
	assert_int_equal(omnikv_device_list(entries, 1, &err), 2);
	strcpy(err.text, "of before");
	assert_int_equal(omnikv_device_list(entries, 4, &err), 2);
	assert_string_equal(err.text, "");
	/* The driver serves all but the GPU code, which is of a newer CUDA. */
	fixture_cuda_set("version", 11080);
	assert_int_equal(omnikv_device_list(entries, 4, &err), 2);
	if (!strncmp(omnikv_device_code(), "nvcc 13.0", 9))
		assert_non_null(strstr(err.text, "the driver is for CUDA 11.8 and the GPU code of CUDA 13.0, which needs a driver of CUDA "
					"13.0 or newer (release 580): expect no copying kernels and no CUDA graphs"));
	fixture_cuda_set("version", 13000);
	assert_string_equal(entries[1].name, "cuda:1");
	assert_string_equal(entries[1].model, "fake GPU 1");
	assert_int_equal(entries[1].uuid[15], 1);
	assert_int_equal(entries[1].compute, 90);
	assert_int_equal(entries[1].nr_sms, 8);
	assert_int_equal(entries[1].hbm_bytes, UINT64_C(1) << 30);
	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		memset(&err, 0, sizeof(err));
		assert_true(omnikv_device_open(wrong[i], NULL, &dev, &err) < 0);
		assert_non_null(strstr(err.text, "cuda:"));
	}
	assert_int_equal(omnikv_device_open("cuda:1", NULL, &dev, &err), 0);
	assert_int_equal(omnikv_device_info(dev, &info), 0);
	assert_int_equal(info.hbm_bytes, UINT64_C(1) << 30);
	assert_true(info.features & OMNIKV_DEVICE_HAS_DMABUF);
	assert_true(info.features & OMNIKV_DEVICE_HAS_BATCH);
	assert_int_equal(omnikv_device_close(dev), 0);

	/* A GPU that cannot do what is needed says what. */
	fixture_cuda_set("no_stream_ops", 1);
	assert_int_equal(omnikv_device_open("cuda", NULL, &dev, &err), -ENODEV);
	assert_non_null(strstr(err.text, "stream memory operations"));
	assert_int_equal(fixture_cuda_get("contexts"), 0);
	/* What is only nice to have is done without. */
	fixture_device("cuda");
	fixture_cuda_set("batch", 0);
	fixture_cuda_set("kernels", 0);
	assert_int_equal(omnikv_device_open("cuda", NULL, &dev, &err), 0);
	assert_int_equal(omnikv_device_info(dev, &info), 0);
	assert_false(info.features & (OMNIKV_DEVICE_HAS_BATCH | OMNIKV_DEVICE_HAS_KERNELS));
	assert_int_equal(omnikv_device_close(dev), 0);
	/* 12.2 has no batches, and all else. */
	fixture_device("cuda");
	fixture_cuda_set("version", 12020);
	assert_int_equal(omnikv_device_open("cuda", NULL, &dev, &err), 0);
	assert_int_equal(omnikv_device_info(dev, &info), 0);
	assert_false(info.features & OMNIKV_DEVICE_HAS_BATCH);
	assert_int_equal(omnikv_device_close(dev), 0);
	assert_int_equal(fixture_cuda_get("contexts"), 0);
	assert_int_equal(fixture_cuda_get("host"), 0);
	assert_int_equal(fixture_cuda_get("device"), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_missing_driver_is_named_by_the_loader),
		cmocka_unit_test(a_library_that_is_no_driver_is_told_apart),
		cmocka_unit_test(the_toolkits_stub_is_told_apart),
		cmocka_unit_test(old_and_broken_drivers_say_what_to_do),
		cmocka_unit_test(gpus_are_listed_and_opened_by_number),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

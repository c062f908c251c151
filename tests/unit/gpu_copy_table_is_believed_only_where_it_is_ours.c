// SPDX-License-Identifier: GPL-2.0-only
/*
 * The table of a GPU's copy paths, as text and as a file of the user's cache folder: believed only where it is to the
 * byte what was written, for the same GPU, driver and paths, in a plain file of this user that nobody else may write.
 *
 * On the driver of tests/harness/cuda.
 */
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../harness/ring_fixture.h"
#include "device_cuda.h"

static void a_table_survives_as_text_and_nothing_else_does(void **state)
{
	struct okv_cuda_costs costs, back;
	char text[16384], bad[16384];
	uint64_t seed = 3;
	int len, i;
	float *ns = &costs.ns[0][0][0][0];

	(void)state;
	for (i = 0; i < (int)(sizeof(costs) / sizeof(*ns)); i++)
		ns[i] = (float)(fixture_random(&seed) % 1000000) / 10;
	len = okv_cuda_costs_print(&costs, "gpu 00 driver 1", text, sizeof(text));
	assert_true(len > 100);
	assert_int_equal(okv_cuda_costs_print(&costs, "gpu 00 driver 1", bad, (size_t)len), -ENOSPC);
	assert_int_equal(okv_cuda_costs_parse(&back, "gpu 00 driver 1", text, (size_t)len), 0);
	for (i = 0; i < (int)(sizeof(costs) / sizeof(*ns)); i++)
		assert_true((&back.ns[0][0][0][0])[i] - ns[i] < 0.06f && ns[i] - (&back.ns[0][0][0][0])[i] < 0.06f);
	assert_int_equal(okv_cuda_costs_parse(&back, "gpu 01 driver 1", text, (size_t)len), -EBADMSG);
	assert_int_equal(okv_cuda_costs_parse(&back, "gpu 00 driver 1", text, 0), -EBADMSG);
	/* Cut anywhere, and any byte changed. */
	for (i = 0; i < len; i += i % 3 + 1) {
		assert_int_equal(okv_cuda_costs_parse(&back, "gpu 00 driver 1", text, (size_t)i), -EBADMSG);
		memcpy(bad, text, (size_t)len);
		bad[i] = (char)(bad[i] ^ (1 + fixture_random(&seed) % 255));
		assert_int_equal(okv_cuda_costs_parse(&back, "gpu 00 driver 1", bad, (size_t)len), -EBADMSG);
	}
	memset(bad, '9', sizeof(bad));
	assert_int_equal(okv_cuda_costs_parse(&back, "gpu 00 driver 1", bad, sizeof(bad)), -EBADMSG);
}

/* How often opening a device copies: 0 where it believes its table. */
static long opening_copies(void)
{
	struct omnikv_device *dev;
	long copies;

	fixture_device("cuda");
	/* Measured sooner without. */
	fixture_cuda_set("kernels", 0);
	assert_int_equal(omnikv_device_open("cuda", NULL, &dev, NULL), 0);
	copies = fixture_cuda_get("copies");
	assert_int_equal(omnikv_device_close(dev), 0);
	return copies;
}

static void the_tables_file_is_believed_only_where_it_is_ours(void **state)
{
	char dir[4096], path[4096], moved[4200], *tmp = getenv("TMPDIR");
	glob_t found;
	int fd;

	(void)state;
	snprintf(dir, sizeof(dir), "%s/cuda-cache-XXXXXX", tmp ? tmp : "/tmp");
	assert_non_null(mkdtemp(dir));
	fixture_cuda_cache(dir);
	assert_true(opening_copies() > 0);
	assert_int_equal(opening_copies(), 0);
	snprintf(path, sizeof(path), "%.4000s/omnikv/*.table", dir);
	assert_int_equal(glob(path, 0, NULL, &found), 0);
	assert_int_equal(found.gl_pathc, 1);
	snprintf(path, sizeof(path), "%.4000s", found.gl_pathv[0]);
	globfree(&found);

	/* Others may write it. */
	assert_int_equal(chmod(path, 0666), 0);
	assert_true(opening_copies() > 0);
	assert_int_equal(opening_copies(), 0);
	/* It is a link to a good one, or a folder, or a pipe nobody writes. */
	snprintf(moved, sizeof(moved), "%s.moved", path);
	assert_int_equal(rename(path, moved), 0);
	assert_int_equal(symlink(moved, path), 0);
	assert_true(opening_copies() > 0);
	assert_int_equal(opening_copies(), 0);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkfifo(path, 0600), 0);
	assert_true(opening_copies() > 0);
	/* It is cut short, or has a byte too many. */
	assert_int_equal(truncate(path, 100), 0);
	assert_true(opening_copies() > 0);
	assert_int_equal(opening_copies(), 0);
	fd = open(path, O_WRONLY | O_APPEND | O_CLOEXEC);
	assert_true(fd >= 0);
	assert_int_equal(write(fd, "\n", 1), 1);
	close(fd);
	assert_true(opening_copies() > 0);
	/* One that would be too long for this process is measured each time, and ends nobody. */
	assert_int_equal(unlink(path), 0);
	for (rlim_t limit = 0; limit <= 8; limit += 8) {
		int status;
		pid_t pid = fork();

		if (!pid)
			_exit(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ limit, limit }) || !opening_copies() || !opening_copies());
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_int_equal(status, 0);
	}
	/* A folder that cannot be made is no error, only slow. */
	fixture_cuda_cache("/proc/none");
	assert_true(opening_copies() > 0);
	assert_true(opening_copies() > 0);
	snprintf(path, sizeof(path), "rm -rf '%.4000s'", dir);
	assert_int_equal(system(path), 0);
}

static void a_measurement_that_failed_is_not_kept(void **state)
{
	static const long nths[] = { 1, 500, 20000 };
	char dir[4096], command[4200], *tmp = getenv("TMPDIR");
	struct omnikv_device *dev;
	size_t i;

	(void)state;
	for (i = 0; i < sizeof(nths) / sizeof(nths[0]); i++) {
		snprintf(dir, sizeof(dir), "%s/cuda-cache-XXXXXX", tmp ? tmp : "/tmp");
		assert_non_null(mkdtemp(dir));
		fixture_cuda_cache(dir);
		fixture_device("cuda");
		fixture_cuda_set("kernels", 0);
		fixture_cuda_set("fail_copy", nths[i]);
		assert_int_equal(omnikv_device_open("cuda", NULL, &dev, NULL), 0);
		assert_true(fixture_cuda_get("copies") > nths[i]);
		assert_int_equal(omnikv_device_close(dev), 0);
		/* Measured again, and then believed. */
		assert_true(opening_copies() > 0);
		assert_int_equal(opening_copies(), 0);
		snprintf(command, sizeof(command), "rm -rf '%.4000s'", dir);
		assert_int_equal(system(command), 0);
	}
}

/* Opening one must not take long, nor much of what it has: here 1 MiB at once of 1 GiB. */
static void a_small_gpu_is_measured_with_little(void **state)
{
	long runs = 0, size, nr;

	(void)state;
	fixture_cuda_cache("/proc/none");
	/* 16, 256 and 4096 runs of each size, as far as they fit, and none of them twice. */
	for (size = 512; size <= 1 << 20; size *= size == 512 ? 8 : 4) {
		nr = (1 << 20) / size;
		runs += nr < 16 ? nr : 16;
		runs += nr <= 16 ? 0 : nr < 256 ? nr : 256;
		runs += nr <= 256 ? 0 : nr < 4096 ? nr : 4096;
	}
	/* Once and three times more, in each direction, by the engine and as one batch. */
	assert_int_equal(opening_copies(), 4 * 3 * 2 * runs);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_table_survives_as_text_and_nothing_else_does),
		cmocka_unit_test(a_measurement_that_failed_is_not_kept),
		cmocka_unit_test(a_small_gpu_is_measured_with_little),
		cmocka_unit_test(the_tables_file_is_believed_only_where_it_is_ours),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

// SPDX-License-Identifier: GPL-2.0-only
/*
 * Runs a fuzz target over files, for compilers without libFuzzer.
 *
 * Each argument is a file or a directory of files (not descended into). The target itself is
 * LLVMFuzzerTestOneInput() of the program that this is linked with. Exit status 0 when every
 * file was read and the target came back from each; one thread.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

static int replay_file(const char *path, size_t len)
{
	/* An exact allocation, so that an instrumented build sees an overrun by one byte. */
	uint8_t *data = malloc(len ? len : 1);
	FILE *file = fopen(path, "rb");
	int ret = 1;

	if (file && data && fread(data, 1, len, file) == len) {
		LLVMFuzzerTestOneInput(data, len);
		ret = 0;
	} else {
		perror(path);
	}
	if (file)
		fclose(file);
	free(data);
	return ret;
}

static int replay(const char *path, int depth)
{
	struct dirent **names;
	struct stat st;
	int nr_names, ret = 0;

	if (stat(path, &st)) {
		perror(path);
		return 1;
	}
	if (S_ISREG(st.st_mode))
		return replay_file(path, (size_t)st.st_size);
	if (!S_ISDIR(st.st_mode) || depth)
		return 0;

	nr_names = scandir(path, &names, NULL, alphasort);
	for (int i = 0; i < nr_names; i++) {
		char child[4096];

		if (names[i]->d_name[0] != '.' &&
		    snprintf(child, sizeof(child), "%s/%s", path, names[i]->d_name) < (int)sizeof(child))
			ret |= replay(child, depth + 1);
		free(names[i]);
	}
	if (nr_names >= 0)
		free(names);
	return ret;
}

int main(int argc, char **argv)
{
	int ret = 0;

	for (int i = 1; i < argc; i++)
		ret |= replay(argv[i], 0);
	return ret;
}

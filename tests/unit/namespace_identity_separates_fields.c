// SPDX-License-Identifier: GPL-2.0-only
/*
 * The identity of a namespace changes with any field and when a byte moves from one field to
 * its neighbour, and is the same in every process, whatever its environment, locale and addresses: a hash seeded
 * per process would give no hits after a restart.
 */
#include <errno.h>
#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <omnikv/key.h>

static struct omnikv_layout layout, other_layout;

/* SHA-256 of the fields of fill(), each behind its length; computed by 25 lines of Python. */
#define GOLDEN "d3c8c993be7597c880ac974adbbcce491bdb0d985114daca873b5d9e367d63f8"
/* Third key of vLLM's chain of the tokens 1..48 and seed "0", blocks of 16; by Python's hashlib. */
#define GOLDEN_KEY "7db7c8652c5c4a69d8f91e08e8decadf88d48c3339d35aad480a8718e6d0b0b5"

static void fill(struct omnikv_namespace *ns)
{
	assert_int_equal(omnikv_layout_preset("tiny", &layout, NULL), 0);
	*ns = (struct omnikv_namespace){
		.size = sizeof(*ns), .tenant = "acme", .weights = "meta/llama@1", .layout = &layout,
		.block_tokens = 16, .hash_algorithm = OMNIKV_HASH_VLLM_SHA256_CBOR, .salt = "pepper", .salt_len = 6,
		.epoch = 3,
	};
}

static void hex(const uint8_t digest[32], char text[65])
{
	for (int i = 0; i < 32; i++)
		snprintf(text + 2 * i, 3, "%02x", digest[i]);
}

static void identity_of(const struct omnikv_namespace *ns, char text[65])
{
	uint8_t identity[32];

	assert_int_equal(omnikv_namespace_identity(ns, identity), 0);
	hex(identity, text);
}

static void test_golden(void **state)
{
	struct omnikv_namespace ns;
	char text[65];

	(void)state;
	fill(&ns);
	identity_of(&ns, text);
	assert_string_equal(text, GOLDEN);
	ns.adapter = "";	/* NULL is the empty text */
	identity_of(&ns, text);
	assert_string_equal(text, GOLDEN);
}

/* Every variant differs from every other. */
static void test_every_field(void **state)
{
	enum { NR = 23 };
	static char text[NR][65];
	struct omnikv_namespace ns;
	int n = 0;

	(void)state;
#define VARIANT(...) do { fill(&ns); __VA_ARGS__; identity_of(&ns, text[n++]); } while (0)
	VARIANT();
	VARIANT(ns.tenant = "acm");
	VARIANT(ns.tenant = NULL);
	VARIANT(ns.weights = "meta/llama@2");
	VARIANT(ns.weights = NULL);
	VARIANT(ns.adapter = "lora");
	VARIANT(ns.layout = NULL);
	VARIANT(layout.groups[0].planes[0].dtype = OMNIKV_DTYPE_F16);
	VARIANT(layout.groups[0].planes[1].elems = 4);
	VARIANT(ns.block_tokens = 32);
	VARIANT(ns.hash_algorithm = OMNIKV_HASH_OPAQUE);
	VARIANT(ns.hash_algorithm = OMNIKV_HASH_SGLANG_SHA256);
	VARIANT(ns.hash_algorithm = OMNIKV_HASH_FAST);
	VARIANT(ns.salt = "peppeR");
	VARIANT(ns.salt_len = 5);
	VARIANT(ns.salt = NULL, ns.salt_len = 0);
	VARIANT(ns.epoch = 4);
	VARIANT(ns.epoch = 3 + (1ull << 32));
	/* A byte moves to the neighbour. */
	VARIANT(ns.tenant = "acmem", ns.weights = "eta/llama@1");
	VARIANT(ns.weights = "meta/llama@", ns.adapter = "1");
	VARIANT(ns.weights = NULL, ns.adapter = "meta/llama@1");
	VARIANT(ns.tenant = NULL, ns.weights = "acmemeta/llama@1");
	VARIANT(ns.block_tokens = 3, ns.epoch = 16);
	assert_int_equal(n, NR);
	for (int i = 0; i < NR; i++)
		for (int j = 0; j < i; j++)
			if (strcmp(text[i], text[j]) == 0)
				fail_msg("variants %d and %d share an identity", i, j);
}

static void test_refuses(void **state)
{
	struct {
		struct omnikv_namespace ns;
		uint64_t tail;
	} longer = { .tail = 0 };
	struct omnikv_namespace ns;
	uint8_t identity[32], before[32];
	char text[65];

	(void)state;
	memset(identity, 0x5a, 32);
	memset(before, 0x5a, 32);
	fill(&ns);
	assert_int_equal(omnikv_namespace_identity(NULL, identity), -EINVAL);
	assert_int_equal(omnikv_namespace_identity(&ns, NULL), -EINVAL);
	ns.size = 0;
	assert_int_equal(omnikv_namespace_identity(&ns, identity), -EINVAL);
	ns.size = sizeof(ns) - 1;
	assert_int_equal(omnikv_namespace_identity(&ns, identity), -EINVAL);
	fill(&ns);
	ns.hash_algorithm = 4;
	assert_int_equal(omnikv_namespace_identity(&ns, identity), -EINVAL);
	fill(&ns);
	ns.salt = NULL;
	assert_int_equal(omnikv_namespace_identity(&ns, identity), -EINVAL);
	fill(&ns);
	other_layout = layout;
	other_layout.nr_groups = 0;
	ns.layout = &other_layout;
	assert_int_equal(omnikv_namespace_identity(&ns, identity), -EINVAL);

	fill(&longer.ns);
	longer.ns.size = sizeof(longer);
	identity_of(&longer.ns, text);
	assert_string_equal(text, GOLDEN);
	longer.tail = 1ull << 63;
	assert_int_equal(omnikv_namespace_identity(&longer.ns, identity), -E2BIG);
	assert_memory_equal(identity, before, 32);
}

/* What a child prints: identity and key. */
static int child(void)
{
	struct omnikv_namespace ns;
	struct omnikv_key keys[3];
	uint32_t tokens[48];
	uint8_t identity[32];
	char text[65];

	setlocale(LC_ALL, "");
	for (uint32_t i = 0; i < 48; i++)
		tokens[i] = i + 1;
	fill(&ns);
	if (omnikv_namespace_identity(&ns, identity) ||
	    omnikv_chain_vllm("0", tokens, 48, 16, NULL, 0, keys) != 3)
		return 1;
	hex(identity, text);
	printf("%s ", text);
	hex(keys[2].bytes, text);
	printf("%s\n", text);
	return fflush(stdout) ? 1 : 0;
}

static void test_same_in_every_process(void **state)
{
	static char *const envs[][4] = {
		{ NULL },
		{ (char *)"LC_ALL=C.UTF-8", (char *)"PYTHONHASHSEED=7", (char *)"TZ=Asia/Tokyo", NULL },
		{ (char *)"LC_ALL=tr_TR.UTF-8", (char *)"LANG=de_DE.UTF-8", (char *)"MALLOC_PERTURB_=165", NULL },
		{ (char *)"LC_ALL=C.UTF-8", (char *)"PYTHONHASHSEED=7", (char *)"TZ=Asia/Tokyo", NULL },	/* restarted */
	};

	(void)state;
	for (size_t i = 0; i < sizeof(envs) / sizeof(envs[0]); i++) {
		char *const argv[] = { (char *)"child", (char *)"--print", NULL };
		char text[256] = "";
		int fds[2], status;
		size_t used = 0;
		ssize_t n;
		pid_t pid;

		assert_int_equal(pipe(fds), 0);
		pid = fork();
		assert_true(pid >= 0);
		if (pid == 0) {
			dup2(fds[1], 1);
			close(fds[0]);
			close(fds[1]);
			execve("/proc/self/exe", argv, envs[i]);
			_exit(127);
		}
		close(fds[1]);
		while ((n = read(fds[0], text + used, sizeof(text) - 1 - used)) > 0)
			used += (size_t)n;
		close(fds[0]);
		assert_int_equal(waitpid(pid, &status, 0), pid);
		assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
		assert_string_equal(text, GOLDEN " " GOLDEN_KEY "\n");
	}
}

static void test_algorithm_names(void **state)
{
	(void)state;
	assert_string_equal(omnikv_hash_algorithm_name(OMNIKV_HASH_OPAQUE), "opaque");
	assert_string_equal(omnikv_hash_algorithm_name(OMNIKV_HASH_VLLM_SHA256_CBOR), "sha256_cbor");
	assert_string_equal(omnikv_hash_algorithm_name(OMNIKV_HASH_SGLANG_SHA256), "sglang_sha256");
	assert_string_equal(omnikv_hash_algorithm_name(OMNIKV_HASH_FAST), "fast");
	assert_string_equal(omnikv_hash_algorithm_name((enum omnikv_hash_algorithm)4), "?");
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_golden),
		cmocka_unit_test(test_every_field),
		cmocka_unit_test(test_refuses),
		cmocka_unit_test(test_same_in_every_process),
		cmocka_unit_test(test_algorithm_names),
	};

	if (argc > 1 && strcmp(argv[1], "--print") == 0)
		return child();
	return cmocka_run_group_tests(tests, NULL, NULL);
}

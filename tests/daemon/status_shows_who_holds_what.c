// SPDX-License-Identifier: GPL-2.0-only
/*
 * omnikv status --socket: a daemon's clients with their process, user, memory and leases, for people and as JSON.
 *
 * Runs the real program beside a real daemon whose clients are the test and a child of it.
 */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>
#include <jansson.h>

#include <omnikv/pool.h>

#include "tests/harness/daemon_case.h"
#include "tests/harness/kv_world.h"

static struct daemon_case the_daemon;

/* What "omnikv status" prints, and its exit status. */
static int status_of(const char *options, char *text, size_t size)
{
	char command[512], exe[256];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);
	size_t got;
	FILE *pipe;
	int i, ret;

	assert_true(n > 0);
	exe[n] = '\0';
	for (i = 0; i < 3; i++)
		*strrchr(exe, '/') = '\0';
	snprintf(command, sizeof(command), "%s/bin/omnikv status --socket %s %s 2>&1", exe, the_daemon.socket, options);
	pipe = popen(command, "r");
	assert_non_null(pipe);
	got = fread(text, 1, size - 1, pipe);
	text[got] = '\0';
	ret = pclose(pipe);
	return WIFEXITED(ret) ? WEXITSTATUS(ret) : -1;
}

static json_int_t number(const json_t *object, const char *name)
{
	const json_t *value = json_object_get(object, name);

	assert_true(json_is_integer(value));
	return json_integer_value(value);
}

static void clients_are_listed(void **state)
{
	const char *const options[] = { "--pool", "16M", "--reserve", "0", NULL };
	static char text[65536];
	struct omnikv_client *client;
	struct omnikv_extent ext[3];
	struct omnikv_pool *pool;
	json_t *root, *clients, *one;
	char spec[128], line[64];

	(void)state;
	daemon_case_init(&the_daemon);
	daemon_start(&the_daemon, options);
	snprintf(spec, sizeof(spec), "daemon:%s", the_daemon.socket);
	assert_int_equal(omnikv_pool_open(spec, NULL, &pool, NULL), 0);
	assert_int_equal(omnikv_client_open(pool, 0, &client), 0);
	assert_int_equal(omnikv_extent_alloc(client, 256, 3, NULL, 0, ext), 0);
	assert_int_equal(omnikv_extent_seal(client, ext, 1), 0);
	assert_int_equal(omnikv_extent_lease(client, ext, 1), 0);
	assert_int_equal(omnikv_extent_lease(client, ext, 1), 0);

	assert_int_equal(status_of("--json", text, sizeof(text)), 0);
	root = json_loads(text, 0, NULL);
	assert_non_null(root);
	one = json_object_get(root, "daemon");
	assert_int_equal(number(one, "pid"), the_daemon.pid);
	assert_int_equal(number(one, "usable_bytes"), 16 << 20);
	assert_int_equal(number(one, "free_bytes"), 13 << 20);
	assert_int_equal(number(one, "sealed_bytes"), 1 << 20);
	clients = json_object_get(one, "clients");
	assert_int_equal(json_array_size(clients), 1);
	one = json_array_get(clients, 0);
	assert_int_equal(number(one, "pid"), getpid());
	assert_int_equal(number(one, "uid"), geteuid());
	assert_int_equal(number(one, "private_bytes"), 2 << 20);
	assert_int_equal(number(one, "leases"), 2);
	assert_string_equal(json_string_value(json_object_get(one, "command")), "status_shows_who_holds_what");
	json_decref(root);

	assert_int_equal(status_of("", text, sizeof(text)), 0);
	snprintf(line, sizeof(line), "  pid %-7d status_shows_wh", getpid());
	assert_non_null(strstr(text, line));
	assert_non_null(strstr(text, "2.00 MiB private        2 leases"));
	omnikv_client_close(client);
	assert_int_equal(status_of("", text, sizeof(text)), 0);
	assert_null(strstr(text, "leases"));
	omnikv_pool_close(pool);

	assert_int_equal(daemon_stop(&the_daemon, NULL), 0);
	assert_int_equal(status_of("", text, sizeof(text)), 1);
	assert_non_null(strstr(text, "is omnikvd running?"));
	daemon_case_fini(&the_daemon);
}

static void what_sessions_keep_is_shown(void **state)
{
	const char *const options[] = { "--pool", "16M", "--reserve", "0", "--pins", "4M", NULL };
	struct omnikv_retention how = { .size = sizeof(how), .flags = OMNIKV_RETAIN_F_PIN, .session = 5, .ttl_ms = 60000 };
	static char text[65536];
	struct omnikv_key *keys;
	struct kv_story story = { 0 };
	struct omnikv_seq *seq;
	struct kv_world world;
	json_t *root, *kept;

	(void)state;
	daemon_case_init(&the_daemon);
	daemon_start(&the_daemon, options);
	kv_world_connect(&world, KV_SHAPE_FULL, 16, the_daemon.socket, NULL);
	for (uint32_t i = 0; i < 16 * 16; i++)
		kv_story_add(&story, i);
	seq = kv_open(&world, &story, false);
	assert_int_equal(omnikv_seq_append(seq, story.nr_tokens), 0);
	kv_store(&world, seq, &story, 0, story.nr_tokens);
	assert_int_equal(kv_commit(&world, seq, &story, false), 16);
	omnikv_seq_close(seq);
	keys = kv_keys(&world, &story, 16);
	assert_int_equal(omnikv_space_retain(world.space, keys, 16, NULL, &how), 16);
	how = (struct omnikv_retention){ .size = sizeof(how), .session = 6, .next_use_ms = 60000 };
	assert_int_equal(omnikv_space_retain(world.space, keys, 8, NULL, &how), 8);

	assert_int_equal(status_of("--json", text, sizeof(text)), 0);
	root = json_loads(text, 0, NULL);
	assert_non_null(root);
	kept = json_object_get(json_object_get(root, "daemon"), "retained");
	assert_int_equal(number(kept, "sessions"), 2);
	assert_int_equal(number(kept, "pinned_bytes"), 16 * 4096);
	assert_int_equal(number(kept, "pin_limit_bytes"), 4 << 20);
	assert_int_equal(number(kept, "ranked_bytes"), 8 * 4096);
	json_decref(root);
	assert_int_equal(status_of("", text, sizeof(text)), 0);
	assert_non_null(strstr(text, "retained for 2 sessions: 64.00 KiB pinned of at most 4.00 MiB, 32.00 KiB by"));
	free(keys);
	kv_story_free(&story);
	kv_world_detach(&world);
	assert_int_equal(daemon_stop(&the_daemon, NULL), 0);
	daemon_case_fini(&the_daemon);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(clients_are_listed),
		cmocka_unit_test(what_sessions_keep_is_shown),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

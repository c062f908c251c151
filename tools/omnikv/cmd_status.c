// SPDX-License-Identifier: GPL-2.0-only
/*
 * omnikv status: who has which memory, of the kernel module's pools and of a daemon's.
 *
 * What the module has is cmd_pool.c's to show; a daemon is asked over its socket, as any client would.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"
#include "conn.h"
#include "error.h"
#include "manager/frames.h"

enum { OPT_JSON = 'j', OPT_SOCKET = 's' };

struct okv_status_args {
	const char	*socket;
	bool		is_json;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct okv_status_args *args = state->input;

	if (key == OPT_JSON)
		args->is_json = true;
	else if (key == OPT_SOCKET)
		args->socket = arg;
	else
		return ARGP_ERR_UNKNOWN;
	return 0;
}

static int ask(struct okv_conn *conn, uint32_t type, const void *req, size_t req_bytes, void *reply, size_t max)
{
	struct okv_call call = {
		.type = type, .req = req, .req_bytes = req_bytes, .reply = reply, .reply_max = max,
	};
	int ret = okv_conn_call(conn, &call), i;

	for (i = 0; i < (int)OKV_WIRE_FDS_MAX; i++)
		if (call.fds_out[i] >= 0)
			close(call.fds_out[i]);
	return ret;
}

static json_t *client_object(const struct okv_wire_client *client)
{
	return json_pack("{s:I,s:I,s:I,s:s,s:I,s:I,s:I,s:b,s:b}", "client", (json_int_t)client->client_id, "pid",
			 (json_int_t)client->pid, "uid", (json_int_t)client->uid, "command", client->name,
			 "private_bytes", (json_int_t)client->private_bytes, "leases", (json_int_t)client->nr_leases,
			 "seconds", (json_int_t)client->seconds, "manager",
			 !!(client->flags & OKV_WIRE_CLIENT_F_MANAGER), "absent",
			 !!(client->flags & OKV_WIRE_CLIENT_F_ABSENT));
}

/* Names come from other processes. */
static void make_printable(char *name)
{
	for (; *name; name++)
		if ((unsigned char)*name < ' ' || (unsigned char)*name >= 0x7f)
			*name = '?';
}

static void print_client(const struct okv_wire_client *client)
{
	char text[24];

	printf("  pid %-7u %-16.16s uid %-6u %10s private %8llu leases %6llu s%s%s\n", client->pid, client->name,
	       client->uid, okv_bytes_text(client->private_bytes, text), (unsigned long long)client->nr_leases,
	       (unsigned long long)client->seconds, client->flags & OKV_WIRE_CLIENT_F_MANAGER ? "  manager" : "",
	       client->flags & OKV_WIRE_CLIENT_F_ABSENT ? "  without a connection" : "");
}

static void print_daemon(const char *path, const struct okv_wire_clients *clients,
			 const struct okv_wire_attached *attached, const struct okv_wire_info *info)
{
	char usable[24], avail[24], sealed[24];

	printf("omnikvd at %s, pid %u, for %llu s: %s%s, %s free of %s, %s sealed\n", path, clients->daemon_pid,
	       (unsigned long long)clients->seconds,
	       attached->kind == OKV_WIRE_POOL_KMOD ? "module pool " : "pool", attached->name,
	       okv_bytes_text(info->free_bytes, avail), okv_bytes_text(info->usable_bytes, usable),
	       okv_bytes_text(info->state_bytes[OMNIKV_EXTENT_SEALED], sealed));
}

static json_t *daemon_object(const char *path, const struct okv_wire_clients *clients,
			     const struct okv_wire_attached *attached, const struct okv_wire_info *info)
{
	return json_pack("{s:s,s:I,s:I,s:s,s:I,s:I,s:I,s:I,s:I,s:[]}", "socket", path, "pid",
			 (json_int_t)clients->daemon_pid, "seconds", (json_int_t)clients->seconds, "module_pool",
			 attached->name, "usable_bytes", (json_int_t)info->usable_bytes, "free_bytes",
			 (json_int_t)info->free_bytes, "sealed_bytes",
			 (json_int_t)info->state_bytes[OMNIKV_EXTENT_SEALED], "private_bytes",
			 (json_int_t)info->state_bytes[OMNIKV_EXTENT_PRIVATE], "quarantined_bytes",
			 (json_int_t)info->state_bytes[OMNIKV_EXTENT_QUARANTINED], "clients");
}

static void show_starting(const char *path, const char *how, json_t *object)
{
	if (object)
		json_object_set_new(object, "daemon", json_pack("{s:s,s:s}", "socket", path, "starting", how));
	else
		printf("omnikvd at %s is starting: %s\n", path, how);
}

/* What sessions keep in memory; a daemon that manages no pool, or that is older, has nothing to say. */
static void show_retained(struct okv_conn *conn, json_t *daemon)
{
	union {
		struct omnikv_manager_stats	stats;
		unsigned char			room[4096];
	} theirs = { .room = { 0 } };
	char pinned[24], limit[24], retained[24];

	if (ask(conn, OKV_WIRE_STATS, NULL, 0, &theirs, sizeof(theirs)) || !theirs.stats.pin_limit_bytes)
		return;
	if (daemon)
		json_object_set_new(daemon, "retained",
				    json_pack("{s:I,s:I,s:I,s:I,s:I,s:I}", "sessions", (json_int_t)theirs.stats.nr_retentions,
					      "pinned_bytes", (json_int_t)theirs.stats.pinned_bytes, "pin_limit_bytes",
					      (json_int_t)theirs.stats.pin_limit_bytes, "ranked_bytes",
					      (json_int_t)theirs.stats.retained_bytes, "expired",
					      (json_int_t)theirs.stats.retentions_expired, "yielded",
					      (json_int_t)theirs.stats.retentions_yielded));
	else
		printf("  retained for %llu sessions: %s pinned of at most %s, %s by priority or next use\n",
		       (unsigned long long)theirs.stats.nr_retentions, okv_bytes_text(theirs.stats.pinned_bytes, pinned),
		       okv_bytes_text(theirs.stats.pin_limit_bytes, limit),
		       okv_bytes_text(theirs.stats.retained_bytes, retained));
}

/* A daemon's pool and its clients, page by page. */
static int show(struct okv_conn *conn, json_t *object)
{
	const size_t max = sizeof(struct okv_wire_clients) + OKV_WIRE_CLIENTS_MAX * sizeof(struct okv_wire_client);
	struct okv_wire_attach look = { .flags = OKV_WIRE_ATTACH_F_LOOK };
	struct okv_wire_clients *clients = malloc(max);
	struct okv_wire_attached attached;
	struct okv_wire_status page = { 0 };
	struct okv_wire_info info;
	json_t *daemon = NULL;
	uint32_t i;
	int ret;

	if (!clients)
		return -ENOMEM;
	ret = ask(conn, OKV_WIRE_ATTACH, &look, sizeof(look), &attached, sizeof(attached));
	if (!ret)
		ret = ask(conn, OKV_WIRE_INFO, NULL, 0, &info, sizeof(info));
	while (!ret) {
		ret = ask(conn, OKV_WIRE_STATUS, &page, sizeof(page), clients, max);
		if (ret)
			break;
		make_printable(attached.name);
		if (!page.from && object)
			daemon = daemon_object(okv_conn_path(conn), clients, &attached, &info);
		else if (!page.from)
			print_daemon(okv_conn_path(conn), clients, &attached, &info);
		if (!page.from)
			show_retained(conn, daemon);
		for (i = 0; i < clients->count; i++) {
			make_printable(clients->clients[i].name);
			if (daemon)
				json_array_append_new(json_object_get(daemon, "clients"),
						      client_object(&clients->clients[i]));
			else
				print_client(&clients->clients[i]);
		}
		/* Always forward, whatever the daemon says. */
		if (clients->next <= page.from)
			break;
		page.from = clients->next;
	}
	if (daemon)
		json_object_set_new(object, "daemon", daemon);
	free(clients);
	return ret;
}

static const struct argp_option options[] = {
	{ "json", OPT_JSON, NULL, 0, "Print one JSON object", 0 },
	{ "socket", OPT_SOCKET, "PATH", 0, "Show the daemon there, and nothing else", 0 },
	{ 0 },
};

static const struct argp okv_status_argp = {
	.options = options, .parser = parse,
	.doc = "Show the kernel module's limits and pools, a daemon's pool, and who holds each of them.\v"
	       "The daemon is that of the system, where one runs, or of --socket.",
};

int okv_cmd_status(int argc, char **argv)
{
	const struct okv_conn_hooks hooks = { .is_told_starts = true };
	struct okv_status_args args = { 0 };
	struct omnikv_error err = { "" };
	struct okv_conn *conn;
	json_t *object = NULL;
	int ret, module = OKV_EXIT_FAILED;

	okv_cmd_parse(&okv_status_argp, argc, argv, &args);
	if (args.is_json)
		object = json_object();
	ret = okv_conn_open(args.socket, &hooks, &conn, &err);
	if (ret == -EINVAL)
		okv_usage("--%s", err.text);
	if (ret && ret != -EAGAIN && (args.socket || (ret != -ENOENT && ret != -ECONNREFUSED))) {
		okv_fail("%s", err.text[0] ? err.text : strerror(-ret));
		/* Whom the daemon does not serve may see what the module has. */
		if (args.socket || (ret != -EACCES && ret != -EPERM) || access("/dev/omnikv", F_OK) || okv_kmod_status(object))
			json_decref(object);
		else if (object)
			okv_json_print(object, JSON_INDENT(2));
		return OKV_EXIT_FAILED;
	}
	/* Either may be what was looked for. */
	if (!args.socket && (ret == -ENOENT || ret == -ECONNREFUSED) && access("/dev/omnikv", F_OK)) {
		json_decref(object);
		return okv_fail("no daemon at " OKV_CONN_SOCKET " (--socket names another one's), and no kernel module (no /dev/omnikv)");
	}
	/* Where a daemon runs, a module is not missed. */
	if (!args.socket && (ret == -ENOENT || ret == -ECONNREFUSED || access("/dev/omnikv", F_OK) == 0))
		module = okv_kmod_status(object);
	if (ret == -EAGAIN) {
		show_starting(args.socket ? args.socket : OKV_CONN_SOCKET, err.text, object);
	} else if (!ret) {
		ret = show(conn, object);
		okv_conn_close(conn);
		if (ret) {
			okv_conn_say_why(args.socket, ret, 0, &err);
			return okv_fail("%s", err.text);
		}
	} else if (module) {
		if (object)
			okv_fail("no kernel module (/dev/omnikv), and no daemon at " OKV_CONN_SOCKET);
		json_decref(object);
		return OKV_EXIT_FAILED;
	}
	if (!object)
		return OKV_EXIT_DONE;
	return okv_json_print(object, JSON_INDENT(2));
}

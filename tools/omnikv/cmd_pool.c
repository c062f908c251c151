// SPDX-License-Identifier: GPL-2.0-only
/*
 * omnikv pool create|list|show|destroy: pools of the kernel module.
 *
 * Creating is one call that takes as long as the clearing of the memory: a thread makes it while
 * the first one draws the bar from what sysfs says. What a call's errno means here, with the
 * figures behind it, is said by explain_create().
 */
#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cmd.h"
#include "kmod_pools.h"
#include "numa_policy.h"

#define CLIENTS_MAX	4096

enum {
	OPT_JSON = 'j', OPT_FORCE = 'f',
	OPT_GRANULE = 256, OPT_NUMA, OPT_MODE, OPT_CLIENT_LIMIT, OPT_ACCEPT_SMALL, OPT_TRUSTED, OPT_CHARGE,
};

struct okv_pool_args {
	const char			*words[2];
	int				nr_words;
	int				max_words;
	struct omnikv_ioc_pool_create	create;
	bool				is_json;
	bool				is_forced;
};

/* ---- options ---------------------------------------------------------------------------------- */

static void parse_numa(struct omnikv_ioc_pool_create *req, const char *text)
{
	struct okv_numa_policy policy;
	struct omnikv_error err;

	if (okv_numa_policy_check(text, &policy, &err))
		okv_usage("--%s", err.text);
	req->numa = policy.kind;
	req->nodes = policy.nodes;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
	struct okv_pool_args *args = state->input;
	uint64_t bytes;
	char *end;

	switch (key) {
	case OPT_JSON:
		args->is_json = true;
		break;
	case OPT_FORCE:
		args->is_forced = true;
		break;
	case OPT_GRANULE:
		bytes = okv_size("--granule", arg);
		if (!bytes || bytes % 4096 || bytes > 2u << 20)
			okv_usage("--granule: %s is no multiple of 4096 bytes up to 2M", arg);
		args->create.granule_bytes = (uint32_t)bytes;
		break;
	case OPT_NUMA:
		parse_numa(&args->create, arg);
		break;
	case OPT_MODE:
		args->create.mode = (uint32_t)strtoul(arg, &end, 8);
		if (!*arg || *end || args->create.mode & ~0666u)
			okv_usage("--mode: %s is not octal read and write bits, as 0660", arg);
		break;
	case OPT_CLIENT_LIMIT:
		args->create.client_bytes = okv_size("--client-limit", arg);
		break;
	case OPT_ACCEPT_SMALL:
		args->create.flags |= OMNIKV_CREATE_F_ACCEPT_SMALL;
		break;
	case OPT_TRUSTED:
		args->create.flags |= OMNIKV_CREATE_F_TRUSTED;
		break;
	case OPT_CHARGE:
		args->create.flags |= OMNIKV_CREATE_F_CHARGE;
		break;
	case ARGP_KEY_ARG:
		if (args->nr_words == args->max_words)
			okv_usage("'%s' is one word too many; see --help", arg);
		args->words[args->nr_words++] = arg;
		break;
	default:
		return ARGP_ERR_UNKNOWN;
	}
	return 0;
}

/* ---- create ----------------------------------------------------------------------------------- */

struct okv_creation {
	int				dev;
	struct omnikv_ioc_pool_create	*req;
	int				ret;
	bool				is_done;	/* atomic */
};

static void *create_thread(void *opaque)
{
	struct okv_creation *creation = opaque;

	creation->ret = okv_kmod_call(creation->dev, OMNIKV_IOC_POOL_CREATE, creation->req);
	__atomic_store_n(&creation->is_done, true, __ATOMIC_RELEASE);
	return NULL;
}

static uint64_t available_bytes(void)
{
	unsigned long kb = 0;
	char line[128];
	FILE *file = fopen("/proc/meminfo", "re");

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "MemAvailable: %lu", &kb) == 1)
			break;
	if (file)
		fclose(file);
	return (uint64_t)kb << 10;
}

static bool is_shmem_denied(void)
{
	char line[128] = "";
	FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/shmem_enabled", "re");

	if (file) {
		if (!fgets(line, sizeof(line), file))
			line[0] = '\0';
		fclose(file);
	}
	return strstr(line, "[deny]");
}

/* "a 40.0 MiB, b 2.0 GiB": who has the memory. */
static void list_holders(char *text, size_t size)
{
	char **names = NULL, bytes[24];
	int nr = okv_kmod_pool_names(&names), i;
	size_t len = 0;

	text[0] = '\0';
	for (i = 0; i < nr && len < size; i++)
		len += (size_t)snprintf(text + len, size - len, "%s%s %s", i ? ", " : "", names[i],
					okv_bytes_text(okv_kmod_pool_value(names[i], "bytes"), bytes));
	if (nr <= 0)
		snprintf(text, size, "none");
	okv_kmod_names_free(names, nr);
}

static int explain_create(int dev, const struct omnikv_ioc_pool_create *req, int ret)
{
	struct omnikv_ioc_query query = { 0 };
	const char *name = (const char *)req->name;
	char holders[512], asked[24], left[24], limit[24];
	bool is_root = geteuid() == 0;

	okv_bytes_text(req->bytes, asked);
	okv_kmod_call(dev, OMNIKV_IOC_QUERY, &query);
	switch (-ret) {
	case EEXIST:
		return okv_fail("pool '%s' is there already; 'omnikv pool show %s' describes it", name, name);
	case EPERM:
		return okv_fail("pool '%s': only CAP_SYS_ADMIN may create pools here; an administrator can raise the module's user_bytes",
				name);
	case EDQUOT:
		list_holders(holders, sizeof(holders));
		okv_bytes_text(query.limit_bytes > query.used_bytes ? query.limit_bytes - query.used_bytes : 0, left);
		okv_bytes_text(is_root ? query.limit_bytes : query.user_bytes, limit);
		return okv_fail("no space: asked %s, free %s, limit %s (the module's %s); pools: %s", asked, left, limit,
				is_root ? "limit_bytes" : "user_bytes, for a user's pools, or limit_bytes", holders);
	case ENOMEM:
		if (is_shmem_denied())
			return okv_fail("pool '%s': no 2-MiB pages while /sys/kernel/mm/transparent_hugepage/shmem_enabled is 'deny'; set it to 'never' or 'advise', or pass --accept-small",
					name);
		return okv_fail("pool '%s': asked %s, %s of memory available, but not enough of it in 2-MiB pages on the nodes asked for; free memory, or pass --accept-small",
				name, asked, okv_bytes_text(available_bytes(), left));
	case EOPNOTSUPP:
		return okv_fail("pool '%s': this kernel has no transparent huge pages (real-time ones have none); pass --accept-small",
				name);
	case EINVAL:
		return okv_fail("pool '%s': the module refuses the request; a name is 1 to 32 of A-Z a-z 0-9 . _ - and NUMA nodes must exist",
				name);
	default:
		return okv_fail("pool '%s': %s", name, strerror(-ret));
	}
}

static int pool_create(struct okv_pool_args *args)
{
	struct omnikv_ioc_pool_create *req = &args->create;
	struct okv_creation creation = { .req = req };
	struct okv_progress progress;
	const char *name = args->words[0];
	pthread_t thread;
	char text[24];

	if (args->nr_words < 2)
		okv_usage("give a name and a size, as in 'omnikv pool create team-a 64G'");
	if (!*name || strlen(name) > OMNIKV_NAME_MAX)
		okv_usage("'%s': a name is 1 to %d of the characters A-Z a-z 0-9 . _ -", name, OMNIKV_NAME_MAX);
	memcpy(req->name, name, strlen(name));
	req->bytes = okv_size("size", args->words[1]);
	if (!req->bytes || req->bytes % (2u << 20))
		okv_usage("size: %s is no multiple of 2M", args->words[1]);

	creation.dev = okv_kmod_open(false);
	if (creation.dev < 0)
		return OKV_EXIT_FAILED;
	if (pthread_create(&thread, NULL, create_thread, &creation))
		return okv_fail("no thread");
	okv_progress_init(&progress, "populating the pool");
	while (!__atomic_load_n(&creation.is_done, __ATOMIC_ACQUIRE)) {
		okv_pause_ns(20000000);
		okv_progress_show(&progress, okv_kmod_pool_value(name, "ready_bytes"), req->bytes, NULL);
	}
	pthread_join(thread, NULL);
	okv_progress_fini(&progress);
	if (creation.ret)
		return explain_create(creation.dev, req, creation.ret);
	if (req->small_units)
		okv_note("%u of %llu units of 2 MiB have small pages: slower, and no 2-MiB mapping there", req->small_units,
			 (unsigned long long)(req->bytes >> 21));
	printf("%s: %s, granule %u bytes\n", name, okv_bytes_text(req->bytes, text),
	       req->granule_bytes ? req->granule_bytes : 4096);
	return OKV_EXIT_DONE;
}

/* ---- list and show ---------------------------------------------------------------------------- */

static const char *const state_files[] = {
	"free_bytes", "private_bytes", "sealed_bytes", "meta_bytes", "quarantined_bytes",
};

static const char *const value_files[] = {
	"bytes", "ready_bytes", "granule_bytes", "client_bytes", "uid", "gid", "epoch", "clients", "leases", "private_extents",
	"sealed_extents", "meta_extents", "quarantined_extents", "bound_pages_total", "zaps_total",
	"huge_page_misses",
};

#define NR(array)	(sizeof(array) / sizeof((array)[0]))

static json_t *pool_object(const char *name)
{
	json_t *object = json_object();
	char text[64];
	size_t i;

	json_object_set_new(object, "name", json_string(name));
	for (i = 0; i < NR(value_files); i++)
		json_object_set_new(object, value_files[i],
				    json_integer((json_int_t)okv_kmod_pool_value(name, value_files[i])));
	for (i = 0; i < NR(state_files); i++)
		json_object_set_new(object, state_files[i],
				    json_integer((json_int_t)okv_kmod_pool_value(name, state_files[i])));
	okv_kmod_pool_text(name, "mode", text, sizeof(text));
	json_object_set_new(object, "mode", json_string(text));
	okv_kmod_pool_text(name, "state", text, sizeof(text));
	json_object_set_new(object, "state", json_string(text));
	return object;
}

static json_t *clients_array(const struct omnikv_client_entry *clients, int nr)
{
	json_t *array = json_array();
	int i;

	for (i = 0; i < nr; i++)
		json_array_append_new(array,
			json_pack("{s:I,s:i,s:s#,s:I,s:I,s:I,s:I,s:b}", "id", (json_int_t)clients[i].id,
				  "pid", clients[i].pid, "command", (const char *)clients[i].comm,
				  (int)strnlen((const char *)clients[i].comm, sizeof(clients[i].comm)),
				  "uid", (json_int_t)clients[i].uid,
				  "private_bytes", (json_int_t)clients[i].private_bytes,
				  "leases", (json_int_t)clients[i].nr_leases,
				  "windows", (json_int_t)clients[i].nr_windows,
				  "is_manager", (int)clients[i].is_manager));
	return array;
}

static void print_clients(const struct omnikv_client_entry *clients, int nr, const char *indent)
{
	char text[24];
	int i;

	for (i = 0; i < nr; i++)
		printf("%spid %-7d %-16.16s uid %-6u %10s private %8llu leases %5u windows%s\n", indent, clients[i].pid,
		       clients[i].comm, clients[i].uid, okv_bytes_text(clients[i].private_bytes, text),
		       (unsigned long long)clients[i].nr_leases, clients[i].nr_windows,
		       clients[i].is_manager ? "  manager" : "");
}

static void print_pool_line(const char *name)
{
	uint64_t all = okv_kmod_pool_value(name, "bytes");
	char bytes[24], avail[24], mode[16], state[16];

	okv_kmod_pool_text(name, "state", state, sizeof(state));
	if (!strcmp(state, "creating") && all) {
		printf("%-32s %10s being made, %.0f %%\n", name, okv_bytes_text(all, bytes),
		       100.0 * (double)okv_kmod_pool_value(name, "ready_bytes") / (double)all);
		return;
	}
	okv_kmod_pool_text(name, "mode", mode, sizeof(mode));
	printf("%-32s %10s %10s free %4llu clients  uid %llu mode %s\n", name,
	       okv_bytes_text(all, bytes), okv_bytes_text(okv_kmod_pool_value(name, "free_bytes"), avail),
	       (unsigned long long)okv_kmod_pool_value(name, "clients"),
	       (unsigned long long)okv_kmod_pool_value(name, "uid"), mode);
}

static int pool_list(struct okv_pool_args *args)
{
	json_t *array = json_array();
	char **names = NULL;
	int nr, i;

	nr = okv_kmod_pool_names(&names);
	if (nr < 0) {
		json_decref(array);
		return okv_fail("the kernel module is not loaded (no %s); load it with modprobe omnikv", OKV_SYSFS_POOLS);
	}
	for (i = 0; i < nr; i++) {
		if (args->is_json)
			json_array_append_new(array, pool_object(names[i]));
		else
			print_pool_line(names[i]);
	}
	okv_kmod_names_free(names, nr);
	if (args->is_json)
		return okv_json_print(array, JSON_INDENT(2));
	json_decref(array);
	return OKV_EXIT_DONE;
}

static int pool_show(struct okv_pool_args *args)
{
	const char *name = args->words[0];
	struct omnikv_client_entry *clients;
	char text[24];
	json_t *object;
	int dev, pool, nr;
	size_t i;

	if (!args->nr_words)
		okv_usage("give the name of a pool; 'omnikv pool list' shows which there are");
	dev = okv_kmod_open(false);
	pool = dev < 0 ? -1 : okv_kmod_pool(dev, name);
	if (pool < 0)
		return OKV_EXIT_FAILED;
	clients = calloc(CLIENTS_MAX, sizeof(*clients));
	if (!clients)
		return okv_fail("no memory");
	nr = okv_kmod_clients(dev, pool, clients, CLIENTS_MAX);
	if (nr < 0)
		nr = 0;
	if (args->is_json) {
		object = pool_object(name);
		json_object_set_new(object, "holders", clients_array(clients, nr));
		free(clients);
		return okv_json_print(object, JSON_INDENT(2));
	}
	print_pool_line(name);
	for (i = 0; i < NR(state_files); i++)
		printf("  %-22s %s\n", state_files[i],
		       okv_bytes_text(okv_kmod_pool_value(name, state_files[i]), text));
	for (i = 1; i < NR(value_files); i++)
		printf("  %-22s %llu\n", value_files[i], (unsigned long long)okv_kmod_pool_value(name, value_files[i]));
	printf("holders: %d\n", nr);
	print_clients(clients, nr, "  ");
	free(clients);
	return OKV_EXIT_DONE;
}

/* ---- destroy ---------------------------------------------------------------------------------- */

static int pool_destroy(struct okv_pool_args *args)
{
	struct omnikv_ioc_pool_destroy req = { .flags = args->is_forced ? OMNIKV_DESTROY_F_FORCE : 0 };
	struct omnikv_client_entry clients[4];
	const char *name = args->words[0];
	int dev, ret, nr;

	if (!args->nr_words)
		okv_usage("give the name of a pool; 'omnikv pool list' shows which there are");
	dev = okv_kmod_open(false);
	req.pool_fd = dev < 0 ? -1 : okv_kmod_pool(dev, name);
	if (req.pool_fd < 0)
		return OKV_EXIT_FAILED;
	ret = okv_kmod_call(dev, OMNIKV_IOC_POOL_DESTROY, &req);
	if (!ret)
		return OKV_EXIT_DONE;
	if (ret == -EPERM)
		return okv_fail("pool '%s': only its owner or CAP_SYS_ADMIN may end it", name);
	if (ret != -EBUSY)
		return okv_fail("pool '%s': %s", name, strerror(-ret));
	nr = okv_kmod_clients(dev, req.pool_fd, clients, 1);
	return okv_fail("pool '%s' is in use, first by pid %d (%.16s); end its users ('omnikv pool show %s' lists them) or pass --force",
			name, nr > 0 ? clients[0].pid : 0, nr > 0 ? (char *)clients[0].comm : "?", name);
}

/* ---- words ------------------------------------------------------------------------------------ */

static const struct argp_option create_options[] = {
	{ "granule", OPT_GRANULE, "SIZE", 0, "Unit of allocation, a multiple of 4K up to 2M (default 4K)", 0 },
	{ "numa", OPT_NUMA, "POLICY", 0, "bind:NODES, interleave:NODES or prefer:NODE (default: the kernel's)", 0 },
	{ "mode", OPT_MODE, "MODE", 0, "Who may open it, as of a file (default 0600)", 0 },
	{ "client-limit", OPT_CLIENT_LIMIT, "SIZE", 0, "Most memory that one client may have private (default: no limit)", 0 },
	{ "accept-small", OPT_ACCEPT_SMALL, NULL, 0, "Take small pages where 2-MiB pages are short", 0 },
	{ "trusted", OPT_TRUSTED, NULL, 0, "Clients trust one another: they may allocate without zeroing", 0 },
	{ "charge", OPT_CHARGE, NULL, 0, "Charge the memory to the caller's memory cgroup", 0 },
	{ 0 },
};

static const struct argp_option json_options[] = {
	{ "json", OPT_JSON, NULL, 0, "Print JSON", 0 },
	{ 0 },
};

static const struct argp_option destroy_options[] = {
	{ "force", OPT_FORCE, NULL, 0, "Also while clients are attached: their windows raise SIGBUS from then on", 0 },
	{ 0 },
};

static const struct {
	const char	*word;
	int		max_words;
	int		(*run)(struct okv_pool_args *args);
	struct argp	argp;
} okv_verbs[] = {
	{ "create", 2, pool_create,
	  { create_options, parse, "NAME SIZE", "Make a pool of 2-MiB pages that outlives its users, in the kernel module.\v"
	    "SIZE is bytes, or K, M, G, T for powers of 1024, and a multiple of 2M.\n\n"
	    "  omnikv pool create team-a 64G --numa bind:0 --mode 0660", NULL, NULL, NULL } },
	{ "list", 0, pool_list, { json_options, parse, "", "List the pools of the kernel module.", NULL, NULL, NULL } },
	{ "show", 1, pool_show,
	  { json_options, parse, "NAME", "Show a pool's figures and who holds it.", NULL, NULL, NULL } },
	{ "destroy", 1, pool_destroy,
	  { destroy_options, parse, "NAME", "End a pool and give its memory back.", NULL, NULL, NULL } },
};

int okv_cmd_pool(int argc, char **argv)
{
	struct okv_pool_args args = { .create.mode = 0600 };
	static char name[64];
	size_t i;

	if (argc >= 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-?"))) {
		puts("Usage: omnikv pool create|list|show|destroy [OPTION...]\n"
		     "Pools of the kernel module.\n\n"
		     "  create NAME SIZE   make one\n"
		     "  list               all of them, one a line\n"
		     "  show NAME          figures, and who holds it\n"
		     "  destroy NAME       end one and give its memory back\n\n"
		     "'omnikv pool VERB --help' describes each. Exit status: 0 done, 1 failed, 2 wrong usage.");
		return OKV_EXIT_DONE;
	}
	for (i = 0; argc >= 2 && i < NR(okv_verbs); i++) {
		if (strcmp(argv[1], okv_verbs[i].word))
			continue;
		snprintf(name, sizeof(name), "%s %s", argv[0], argv[1]);
		argv[1] = name;
		args.max_words = okv_verbs[i].max_words;
		okv_cmd_parse(&okv_verbs[i].argp, argc - 1, argv + 1, &args);
		return okv_verbs[i].run(&args);
	}
	okv_usage("say create, list, show or destroy; see 'omnikv pool --help'");
}

/* ---- omnikv status ---------------------------------------------------------------------------- */

int okv_kmod_status(struct json_t *object)
{
	struct omnikv_ioc_query query = { 0 };
	struct omnikv_client_entry *clients;
	char **names = NULL, used[24], limit[24];
	int dev, nr, i;

	dev = okv_kmod_open(object != NULL);
	if (dev < 0)
		return OKV_EXIT_FAILED;
	clients = calloc(CLIENTS_MAX, sizeof(*clients));
	if (!clients || okv_kmod_call(dev, OMNIKV_IOC_QUERY, &query))
		return okv_fail("the module does not answer");
	nr = okv_kmod_pool_names(&names);
	if (object) {
		json_object_set_new(object, "version", json_integer((json_int_t)query.version));
		json_object_set_new(object, "limit_bytes", json_integer((json_int_t)query.limit_bytes));
		json_object_set_new(object, "used_bytes", json_integer((json_int_t)query.used_bytes));
		json_object_set_new(object, "pools", json_array());
	} else {
		printf("omnikv module, contract version %u: %s used of %s\n", query.version,
		       okv_bytes_text(query.used_bytes, used), okv_bytes_text(query.limit_bytes, limit));
	}
	for (i = 0; i < nr; i++) {
		struct omnikv_ioc_pool_open req = { 0 };
		int held = 0;
		json_t *pool;

		memcpy(req.name, names[i], strlen(names[i]));
		if (!okv_kmod_call(dev, OMNIKV_IOC_POOL_OPEN, &req)) {
			held = okv_kmod_clients(dev, req.pool_fd, clients, CLIENTS_MAX);
			close(req.pool_fd);
		}
		held = held < 0 ? 0 : held;
		if (object) {
			pool = pool_object(names[i]);
			json_object_set_new(pool, "holders", clients_array(clients, held));
			json_array_append_new(json_object_get(object, "pools"), pool);
		} else {
			print_pool_line(names[i]);
			print_clients(clients, held, "  ");
		}
	}
	okv_kmod_names_free(names, nr);
	free(clients);
	close(dev);
	return OKV_EXIT_DONE;
}

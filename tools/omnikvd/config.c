// SPDX-License-Identifier: GPL-2.0-only
/*
 * Settings of omnikvd. See config.h.
 *
 * libinih cuts lines into names and values; what it would pass over in silence (a line that is too
 * long, that continues another, that is no setting) is found while lines are handed to it, so that
 * each gets its error.
 */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <ini.h>
#include <inttypes.h>
#include <limits.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <omnikv/pool.h>

#include "conn.h"
#include "error.h"
#include "manager/retain.h"
#include "numa_policy.h"
#include "pool_file.h"
#include "provider.h"
#include "spill/spill.h"

#define FILE_BYTES_MAX	(1 << 20)
#define SOCKET_PATH_MAX	(sizeof(((struct sockaddr_un *)0)->sun_path) - 1)
/* Editors of another system begin UTF-8 with it. */
#define BYTE_ORDER_MARK	"\xef\xbb\xbf"

enum okv_setting_kind {
	OKV_SETTING_TEXT,
	OKV_SETTING_SIZE,
	OKV_SETTING_NUMBER,
	OKV_SETTING_BOOL,
};

struct okv_setting {
	const char		*name;
	enum okv_setting_kind	kind;
	bool			is_live;	/* may change by reload */
	size_t			at;
	uint64_t		min, max;
	const char		*arg;
	const char		*help;
	int			(*check)(const char *value, struct omnikv_error *err);	/* of a text; may be NULL */
};

#define AT(field)	offsetof(struct okv_daemon_config, field)

static int check_pool(const char *value, struct omnikv_error *err)
{
	struct okv_pool_spec spec;
	int ret = okv_pool_spec_parse(value, &spec, err);

	if (!ret && spec.kind != OKV_PROVIDER_EMBEDDED && spec.kind != OKV_PROVIDER_KMOD)
		ret = okv_error_set(err, -EINVAL, "pool \"%.64s\": write SIZE, embedded:SIZE[:FILE] or kmod:NAME for a daemon",
				    value);
	return ret;
}

static int check_socket(const char *value, struct omnikv_error *err)
{
	return strlen(value) <= SOCKET_PATH_MAX ? 0 :
	       okv_error_set(err, -EINVAL, "socket %.64s...: a path has at most %zu characters", value, SOCKET_PATH_MAX);
}

static int check_group(const char *value, struct omnikv_error *err)
{
	return getgrnam(value) ? 0 : okv_error_set(err, -EINVAL, "group \"%.64s\": there is none of that name", value);
}

static int check_spill(const char *value, struct omnikv_error *err)
{
	struct stat st;

	return stat(value, &st) || S_ISDIR(st.st_mode) || S_ISREG(st.st_mode) || S_ISBLK(st.st_mode) ? 0 :
	       okv_error_set(err, -EINVAL, "%.180s is neither a directory, a file nor a block device", value);
}

static int check_numa(const char *value, struct omnikv_error *err)
{
	struct okv_numa_policy policy;

	return okv_numa_policy_check(value, &policy, err);
}

/* Whether the address is one of this host's is seen when it is bound. */
static int check_endpoint(const char *value, struct omnikv_error *err)
{
	const char *where = value + strlen("tcp://"), *colon;
	unsigned long port;
	char *end;

	if (!OKV_HAS_EVENTS)
		return okv_error_set(err, -EOPNOTSUPP, "this omnikvd was built without libzmq and msgpack, which events need");
	if (!strncmp(value, "ipc://", strlen("ipc://")) && *where) {
		if (strlen(where) <= SOCKET_PATH_MAX)
			return 0;
		return okv_error_set(err, -EINVAL, "endpoint \"%.64s...\": a path has at most %zu characters", value, SOCKET_PATH_MAX);
	}
	colon = strncmp(value, "tcp://", strlen("tcp://")) ? NULL : strrchr(where, ':');
	if (!colon || colon == where)
		return okv_error_set(err, -EINVAL, "endpoint \"%.64s\": write tcp://ADDRESS:PORT or ipc://PATH", value);
	port = strtoul(colon + 1, &end, 10);
	if (!isdigit((unsigned char)colon[1]) || *end || !port || port > UINT16_MAX)
		return okv_error_set(err, -EINVAL, "endpoint \"%.64s\": a port is a number from 1 to 65535", value);
	return 0;
}

static int check_topic(const char *value, struct omnikv_error *err)
{
	return strlen(value) <= 255 ? 0 : okv_error_set(err, -EINVAL, "%zu bytes are too long; 255 are possible", strlen(value));
}

static int check_encoding(const char *value, struct omnikv_error *err)
{
	return !strcmp(value, "map") || !strcmp(value, "array") ? 0 :
	       okv_error_set(err, -EINVAL, "\"%.64s\" is neither map nor array", value);
}

static const struct okv_setting settings[] = {
	{ "pool", OKV_SETTING_TEXT, false, AT(pool), 0, 0, "POOL",
	  "SIZE, embedded:SIZE:FILE or kmod:NAME: the memory to manage", check_pool },
	{ "socket", OKV_SETTING_TEXT, false, AT(socket), 0, 0, "PATH",
	  "where clients connect (default " OKV_CONN_SOCKET ")", check_socket },
	{ "group", OKV_SETTING_TEXT, false, AT(group), 0, 0, "NAME",
	  "its members are served too, beside root and the daemon's user", check_group },
	{ "spill", OKV_SETTING_TEXT, false, AT(spill), 0, 0, "PATH",
	  "directory, file or block device that keeps blocks which leave memory", check_spill },
	{ "spill-size", OKV_SETTING_SIZE, false, AT(spill_bytes), 1 << 20, INT64_MAX, "SIZE",
	  "most that the spill store may take", NULL },
	{ "granule", OKV_SETTING_SIZE, false, AT(granule_bytes), 4096, OMNIKV_GRANULE_BYTES_MAX, "SIZE",
	  "unit of allocation, a multiple of 4096 up to 2M (default 4096)", NULL },
	{ "numa", OKV_SETTING_TEXT, false, AT(numa), 0, 0, "POLICY",
	  "bind:NODES, interleave:NODES or prefer:NODE", check_numa },
	{ "reserve", OKV_SETTING_SIZE, true, AT(reserve_bytes), 0, INT64_MAX, "SIZE",
	  "memory that each client keeps ahead of need, to go on while the daemon is away (default 64M; at most a 16th "
	  "of the pool)", NULL },
	{ "pins", OKV_SETTING_SIZE, false, AT(pin_bytes), 0, INT64_MAX, "SIZE",
	  "memory that clients can pin in sum, each at most a half of it (default a quarter of the pool)", NULL },
	{ "clients", OKV_SETTING_NUMBER, false, AT(clients_max), 1, 65536, "N",
	  "clients at once, each with up to 3 connections (default 512)", NULL },
	{ "manager", OKV_SETTING_BOOL, false, AT(with_manager), 0, 0, "yes|no",
	  "manage the pool here; no: one of the clients does (default yes)", NULL },
	{ "hugetlb", OKV_SETTING_BOOL, false, AT(with_hugetlb), 0, 0, "yes|no",
	  "take pages of the host's huge-page pool, where windows bind whole 2-MiB pages only (default no)", NULL },
	{ "tokens", OKV_SETTING_BOOL, false, AT(with_tokens), 0, 0, "yes|no",
	  "keep the token ids of blocks that clients tell, 4 bytes a token, for whoever reads events (default no)", NULL },
	{ "events", OKV_SETTING_TEXT, false, AT(events), 0, 0, "ENDPOINT",
	  "where to publish which blocks come and go, as tcp://127.0.0.1:5557 or ipc://PATH: vLLM's KV events", check_endpoint },
	{ "events-replay", OKV_SETTING_TEXT, false, AT(events_replay), 0, 0, "ENDPOINT",
	  "where subscribers ask for events that they missed", check_endpoint },
	{ "events-topic", OKV_SETTING_TEXT, false, AT(events_topic), 0, 0, "TOPIC",
	  "first frame of each event (default empty)", check_topic },
	{ "events-encoding", OKV_SETTING_TEXT, false, AT(events_encoding), 0, 0, "map|array",
	  "of events: map, or array for subscribers of before June 2026 (default map)", check_encoding },
	{ "populate", OKV_SETTING_BOOL, false, AT(is_populated), 0, 0, "yes|no",
	  "take all memory before serving (default yes)", NULL },
};

#define NR_SETTINGS	(sizeof(settings) / sizeof(settings[0]))

_Static_assert(NR_SETTINGS <= OKV_SETTINGS_MAX, "each setting has a place for where it stands");

static void *field(struct okv_daemon_config *config, const struct okv_setting *setting)
{
	return (char *)config + setting->at;
}

int okv_config_init(struct okv_daemon_config *config)
{
	*config = (struct okv_daemon_config) {
		.socket = strdup(OKV_CONN_SOCKET), .reserve_bytes = 64 << 20, .clients_max = 512, .with_manager = true,
		.is_populated = true, .pin_bytes = OKV_PINS_DEFAULT,
	};
	return config->socket ? 0 : -ENOMEM;
}

void okv_config_fini(struct okv_daemon_config *config)
{
	size_t i;

	for (i = 0; i < NR_SETTINGS; i++)
		if (settings[i].kind == OKV_SETTING_TEXT)
			free(*(char **)field(config, &settings[i]));
}

bool okv_config_describe(uint32_t index, const char **name, const char **arg, const char **help)
{
	if (index >= NR_SETTINGS)
		return false;
	*name = settings[index].name;
	*arg = settings[index].arg;
	*help = settings[index].help;
	return true;
}

/* The error of whoever looked at the value does not know whose it is. */
static int refuse_value(const char *name, int ret, const char *why, struct omnikv_error *err)
{
	bool is_named = !strncmp(why, name, strlen(name));

	return okv_error_set(err, ret, "%s%s%.200s", is_named ? "" : name, is_named ? "" : ": ", why);
}

static int set_text(const struct okv_setting *setting, char **at, const char *value, struct omnikv_error *err)
{
	struct omnikv_error why = { "" };
	char *copy;
	int ret;

	if (!*value)
		return okv_error_set(err, -EINVAL, "%s: nothing behind it", setting->name);
	ret = setting->check ? setting->check(value, &why) : 0;
	if (ret)
		return refuse_value(setting->name, ret, why.text, err);
	copy = strdup(value);
	if (!copy)
		return -ENOMEM;
	free(*at);
	*at = copy;
	return 0;
}

static int set_number(const struct okv_setting *setting, uint64_t *at, const char *value, struct omnikv_error *err)
{
	struct omnikv_error why = { "" };
	uint64_t number = 0;
	char *end;
	int ret = 0;

	if (setting->kind == OKV_SETTING_SIZE) {
		ret = omnikv_size_parse(value, &number, &why);
		/* "0" is no size of anything, but it is one of what may be left out. */
		if (ret && !strcmp(value, "0"))
			ret = 0;
		if (ret)
			return refuse_value(setting->name, ret, why.text, err);
	} else {
		errno = 0;
		number = strtoull(value, &end, 10);
		if (!isdigit((unsigned char)*value) || *end || errno)
			return okv_error_set(err, -EINVAL, "%s: \"%.64s\" is no whole number", setting->name, value);
	}
	if (number < setting->min || number > setting->max)
		return okv_error_set(err, -EINVAL, "%s: %.64s is out of range, %" PRIu64 " to %" PRIu64, setting->name,
				     value, setting->min, setting->max);
	*at = number;
	return 0;
}

static int set_bool(bool *at, const char *name, const char *value, struct omnikv_error *err)
{
	if (strcmp(value, "yes") && strcmp(value, "no"))
		return okv_error_set(err, -EINVAL, "%s: \"%.64s\" is neither yes nor no", name, value);
	*at = !strcmp(value, "yes");
	return 0;
}

static const struct okv_setting *find(const char *name)
{
	size_t i;

	for (i = 0; i < NR_SETTINGS; i++)
		if (!strcmp(settings[i].name, name))
			return &settings[i];
	return NULL;
}

bool okv_config_has(const struct okv_daemon_config *config, const char *name)
{
	return config->lines[find(name) - settings];
}

int okv_config_set(struct okv_daemon_config *config, const char *name, const char *value, struct omnikv_error *err)
{
	const struct okv_setting *setting = find(name);
	int ret;

	if (!setting)
		return okv_error_set(err, -EINVAL, "\"%.64s\" is no setting; 'omnikvd --help' lists them", name);
	config->lines[setting - settings] = OKV_LINE_OPTION;
	if (setting->kind == OKV_SETTING_TEXT)
		return set_text(setting, field(config, setting), value, err);
	if (setting->kind == OKV_SETTING_BOOL)
		return set_bool(field(config, setting), name, value, err);
	ret = set_number(setting, field(config, setting), value, err);
	if (!ret && config->granule_bytes % 4096) {
		config->granule_bytes = 0;
		ret = okv_error_set(err, -EINVAL, "granule: %.64s is no multiple of 4096", value);
	}
	return ret;
}

/* A device has its size, and so has a store that is there already; a directory may have one. */
static bool needs_spill_size(const char *spill)
{
	char path[PATH_MAX];
	struct stat st;

	if (stat(spill, &st))
		return true;
	if (S_ISDIR(st.st_mode)) {
		snprintf(path, sizeof(path), "%s/%s", spill, OKV_SPILL_FILE_NAME);
		return stat(path, &st) || !st.st_size;
	}
	return S_ISREG(st.st_mode) && !st.st_size;
}

int okv_config_refuse(const struct okv_daemon_config *config, const char *name, int ret, const char *why,
		      struct omnikv_error *err)
{
	const uint32_t line = config->lines[find(name) - settings];
	struct omnikv_error text;

	refuse_value(name, ret, why, &text);
	if (line && line != OKV_LINE_OPTION)
		return okv_error_set(err, ret, "%.100s:%u: %.150s", config->path, line, text.text);
	return okv_error_set(err, ret, "--%.250s", text.text);
}

int okv_config_check_pool(const struct okv_daemon_config *config, uint64_t nr_granules, uint64_t granule_bytes,
			  struct omnikv_error *err)
{
	struct omnikv_error why;
	int ret;

	if (config->pin_bytes == OKV_PINS_DEFAULT)
		return 0;
	ret = okv_pins_check(config->pin_bytes, nr_granules, granule_bytes, &why);
	return ret ? okv_config_refuse(config, "pins", ret, why.text, err) : 0;
}

/* What follows from the pool's size, before it is made. A file's granule is its own, and a module's pool knows both. */
static int check_sizes(const struct okv_daemon_config *config, struct omnikv_error *err)
{
	uint32_t granule_bytes = config->granule_bytes ? (uint32_t)config->granule_bytes : OKV_POOL_GRANULE_BYTES;
	struct okv_pool_header header;
	struct okv_pool_spec spec;
	struct omnikv_error why;
	int ret = okv_pool_spec_parse(config->pool, &spec, &why);

	if (!ret && (spec.kind != OKV_PROVIDER_EMBEDDED || (spec.name && !config->granule_bytes)))
		return 0;
	if (!ret)
		ret = okv_pool_header_make(spec.bytes, granule_bytes, &header, &why);
	return ret ? okv_config_refuse(config, "pool", ret, why.text, err) :
	       okv_config_check_pool(config, header.nr_granules, granule_bytes, err);
}

int okv_config_check(const struct okv_daemon_config *config, struct omnikv_error *err)
{
	bool is_module = config->pool && !strncmp(config->pool, "kmod:", 5);
	struct omnikv_error why;
	const char *of_manager;

	if (!config->pool)
		return okv_error_set(err, -EINVAL, "no pool; write --pool SIZE, or pool = SIZE in the file of --config");
	if (!config->with_manager && is_module)
		return okv_config_refuse(config, "manager", -EINVAL, "the pool is the module's, which keeps it by itself: without a manager there is "
					 "nothing to do", err);
	if (config->numa && is_module)
		return okv_config_refuse(config, "numa", -EINVAL, "a pool of the module has the NUMA policy of its creation; leave it out", err);
	of_manager = config->events ? "events" : config->with_tokens ? "tokens" : config->spill ? "spill" :
		     config->pin_bytes != OKV_PINS_DEFAULT ? "pins" : NULL;
	if (of_manager && !config->with_manager)
		return okv_config_refuse(config, of_manager, -EINVAL, "manager = no leaves the blocks to a client, and only who manages the "
					 "pool knows of them; leave one of both out", err);
	if (!config->events && (config->events_replay || config->events_topic || config->events_encoding))
		return okv_config_refuse(config, config->events_replay ? "events-replay" : config->events_topic ? "events-topic" :
					 "events-encoding", -EINVAL, "there is no events, which says where to publish", err);
	if (config->events_replay && !strcmp(config->events, config->events_replay))
		return okv_config_refuse(config, "events-replay", -EINVAL, "events are published there already; give another endpoint", err);
	if (config->spill_bytes && !config->spill)
		return okv_config_refuse(config, "spill-size", -EINVAL, "there is no spill, which says where the store is", err);
	if (config->spill && !config->spill_bytes && needs_spill_size(config->spill)) {
		okv_error_set(&why, 0, "there is no store yet at %.100s; say with spill-size how large it may be", config->spill);
		return okv_config_refuse(config, "spill", -EINVAL, why.text, err);
	}
	return check_sizes(config, err);
}

/* ---- the file --------------------------------------------------------------------------- */

struct reading {
	struct okv_daemon_config	*config;
	FILE				*file;
	uint32_t			line;
	bool				is_bad;
	bool				is_outside;	/* a setting stood before the section, and that is said */
	void				(*complain)(void *opaque, const char *line);
	void				*opaque;
};

static void bad_line(struct reading *reading, const char *what)
{
	char text[640];

	snprintf(text, sizeof(text), "%.200s:%u: %s", reading->config->path, reading->line, what);
	reading->is_bad = true;
	reading->complain(reading->opaque, text);
}

/* A section is refused where it begins, once, with settings in it or without. */
static void check_section(struct reading *reading, char *line)
{
	const char *end = strchr(line, ']');
	struct omnikv_error err;

	if (!end) {
		bad_line(reading, "the section has no end, ]");
		strcpy(line, "\n");
	} else if (strncmp(line, "[daemon]", strlen("[daemon]"))) {
		okv_error_set(&err, 0, "section %.*s is unknown; settings stand in [daemon]", (int)(end + 1 - line), line);
		bad_line(reading, err.text);
	}
}

/* One line for the parser, where it is one that it understands; else its error, and an empty line. */
static char *next_line(char *line, int size, void *stream)
{
	struct reading *reading = stream;
	char *start, *result;

	result = fgets(line, size, reading->file);
	if (!result)
		return NULL;
	reading->line++;
	if (!strchr(line, '\n') && !feof(reading->file)) {
		int c;

		do {
			c = fgetc(reading->file);
		} while (c != '\n' && c != EOF);
		bad_line(reading, "the line is too long");
		strcpy(line, "\n");
		return line;
	}
	start = line;
	if (reading->line == 1 && !strncmp(start, BYTE_ORDER_MARK, strlen(BYTE_ORDER_MARK)))
		start += strlen(BYTE_ORDER_MARK);
	/* Leading blanks would make it a part of the line before. */
	while (isblank((unsigned char)*start))
		start++;
	memmove(line, start, strlen(start) + 1);
	if (strchr("#;\r\n", *line))
		return line;
	if (*line == '[') {
		check_section(reading, line);
	} else if (!strpbrk(line, "=:")) {
		bad_line(reading, "no setting; write name = value");
		strcpy(line, "\n");
	}
	return line;
}

static int take_value(struct reading *reading, const char *name, const char *value, struct omnikv_error *err)
{
	const struct okv_setting *setting = find(name);
	uint32_t *line = setting ? &reading->config->lines[setting - settings] : NULL;
	int ret;

	if (line && *line)
		return okv_error_set(err, -EINVAL, "%s: line %u has it already", name, *line);
	if (strstr(value, " #") || strstr(value, "\t#"))
		return okv_error_set(err, -EINVAL, "%.64s: a comment with # stands on a line of its own", name);
	ret = okv_config_set(reading->config, name, value, err);
	if (line)
		*line = reading->line;
	return ret;
}

static int take_line(void *opaque, const char *section, const char *name, const char *value)
{
	struct reading *reading = opaque;
	struct omnikv_error err = { "" };

	if (!*section && !reading->is_outside) {
		bad_line(reading, "settings stand in [daemon]; write that on a line above");
		reading->is_outside = true;
	} else if (!*section) {
		return 1;	/* a file of another kind has many of them */
	} else if (strcmp(section, "daemon")) {
		return 1;	/* refused already */
	} else if (take_value(reading, name, value, &err)) {
		bad_line(reading, err.text[0] ? err.text : "no memory");
	}
	return 1;
}

/* Whatever the path names, opening it neither waits nor ends in a file without an end. */
static FILE *open_file(const char *path, struct omnikv_error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	FILE *file;

	if (fd < 0 || fstat(fd, &st)) {
		okv_error_set(err, 0, "%.200s: %s", path, strerror(errno));
	} else if (!S_ISREG(st.st_mode)) {
		okv_error_set(err, 0, "%.200s: not a regular file; settings stand in one", path);
	} else if (st.st_size > FILE_BYTES_MAX) {
		okv_error_set(err, 0, "%.200s: over %u bytes, which no settings have", path, FILE_BYTES_MAX);
	} else {
		file = fdopen(fd, "r");
		if (file)
			return file;
		okv_error_set(err, 0, "%.200s: %s", path, strerror(errno));
	}
	if (fd >= 0)
		close(fd);
	return NULL;
}

int okv_config_read(struct okv_daemon_config *config, const char *path,
		    void (*complain)(void *opaque, const char *line), void *opaque)
{
	struct reading reading = { .config = config, .complain = complain, .opaque = opaque };
	struct omnikv_error err = { "" };
	int ret;

	config->path = path;
	reading.file = open_file(path, &err);
	if (!reading.file) {
		complain(opaque, err.text);
		return -EINVAL;
	}
	ret = ini_parse_stream(next_line, &reading, take_line, &reading);
	if (ret && !reading.is_bad) {
		reading.line = ret > 0 ? (uint32_t)ret : 0;
		bad_line(&reading, "cannot be read");
	}
	if (ferror(reading.file) && !reading.is_bad)
		bad_line(&reading, "cannot be read");
	fclose(reading.file);
	return reading.is_bad ? -EINVAL : 0;
}

static bool is_same(struct okv_daemon_config *a, struct okv_daemon_config *b, const struct okv_setting *setting)
{
	const void *x = field(a, setting), *y = field(b, setting);

	if (setting->kind == OKV_SETTING_TEXT) {
		const char *s = *(char *const *)x, *t = *(char *const *)y;

		return s && t ? !strcmp(s, t) : s == t;
	}
	return !memcmp(x, y, setting->kind == OKV_SETTING_BOOL ? sizeof(bool) : sizeof(uint64_t));
}

uint32_t okv_config_reload(struct okv_daemon_config *config, struct okv_daemon_config *fresh, struct omnikv_error *fixed)
{
	const char *names[NR_SETTINGS];
	uint32_t nr = 0, i;
	size_t len = 0;

	for (i = 0; i < NR_SETTINGS; i++)
		if (!settings[i].is_live && !is_same(config, fresh, &settings[i]))
			names[nr++] = settings[i].name;
	for (i = 0; i < nr && len < sizeof(fixed->text); i++)
		len += (size_t)snprintf(fixed->text + len, sizeof(fixed->text) - len, "%s%s", !i ? "" : i + 1 == nr ? " and " : ", ",
					names[i]);
	config->reserve_bytes = fresh->reserve_bytes;
	config->lines[find("reserve") - settings] = fresh->lines[find("reserve") - settings];
	return nr;
}

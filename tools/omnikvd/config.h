/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Settings of omnikvd: the same names in the file, in the command line and in the code.
 *
 * The file has one section, [daemon], and lines "name = value"; # and ; begin comments. An option
 * "--name=value" takes the place of the line. One thread.
 */
#ifndef OKV_CONFIG_H
#define OKV_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include <omnikv/types.h>

#define OKV_PINS_DEFAULT	UINT64_MAX
#define OKV_SETTINGS_MAX	32

/** Are libzmq and msgpack there? */
#ifdef OKV_HAVE_EVENTS
#define OKV_HAS_EVENTS	true
#else
#define OKV_HAS_EVENTS	false
#endif

/**
 * struct okv_daemon_config - what the operator asked for
 * @pool:          as users type it
 * @socket:        path of the socket
 * @group:         whose members are served beside the daemon's own user and root; NULL: nobody
 * @spill:         directory or device of the spill store; NULL: none
 * @numa:          as in struct omnikv_pool_config
 * @spill_bytes:   capacity of a new store; 0: the store's own choice
 * @granule_bytes: 0: 4096, or that of an existing pool
 * @reserve_bytes: that each client may keep allocated ahead of need
 * @pin_bytes:     that clients can pin in sum, at most a half of the pool; OKV_PINS_DEFAULT: a quarter of it
 * @clients_max:   engines at once, each with a few connections
 * @with_manager:  the daemon manages the pool; else one of the clients does
 * @with_hugetlb:  pages of the host's huge-page pool may be taken
 * @is_populated:  pages are touched before clients are served
 * @with_tokens:   token ids are kept beside the blocks
 * @path, @lines:  where each setting stands, by its index: a line of the file, OKV_LINE_OPTION, or 0: it has its default
 * @events, @events_replay, @events_topic, @events_encoding: struct okv_events_config; NULL: none, or the default
 */
struct okv_daemon_config {
	char		*pool;
	char		*socket;
	char		*group;
	char		*spill;
	char		*numa;
	char		*events;
	char		*events_replay;
	char		*events_topic;
	char		*events_encoding;
	uint64_t	spill_bytes;
	uint64_t	granule_bytes;
	uint64_t	reserve_bytes;
	uint64_t	pin_bytes;
	uint64_t	clients_max;
	bool		with_manager;
	bool		with_hugetlb;
	bool		is_populated;
	bool		with_tokens;
	const char	*path;
	uint32_t	lines[OKV_SETTINGS_MAX];
};

#define OKV_LINE_OPTION		UINT32_MAX

int okv_config_init(struct okv_daemon_config *config);
void okv_config_fini(struct okv_daemon_config *config);
/** Settings, for help and options: name, what it needs, one line; false behind the last. */
bool okv_config_describe(uint32_t index, const char **name, const char **arg, const char **help);
/** Does the setting stand somewhere? Else it has its default. */
bool okv_config_has(const struct okv_daemon_config *config, const char *name);
/** One setting. -EINVAL or -ENOMEM, with the reason in @err. */
int okv_config_set(struct okv_daemon_config *config, const char *name, const char *value, struct omnikv_error *err);
/** Settings that do not go together, or are missing; looks at nothing that takes long. -EINVAL with the reason in @err. */
int okv_config_check(const struct okv_daemon_config *config, struct omnikv_error *err);
/** The same of a pool whose size is known. */
int okv_config_check_pool(const struct okv_daemon_config *config, uint64_t nr_granules, uint64_t granule_bytes,
			  struct omnikv_error *err);
/** Say in @err that @why is wrong with setting @name: "--NAME: ..." or "FILE:LINE: NAME: ...", as the user has it. Returns @ret. */
int okv_config_refuse(const struct okv_daemon_config *config, const char *name, int ret, const char *why,
		      struct omnikv_error *err);
/**
 * okv_config_read() - all lines of a file
 * @complain: called with "FILE:LINE: what is wrong" for each bad line
 *
 * A setting stands there once. A file is a regular one of at most 1 MiB.
 *
 * Return: 0, or -EINVAL: the file cannot be read (complained about too), or some lines are bad.
 */
int okv_config_read(struct okv_daemon_config *config, const char *path,
		    void (*complain)(void *opaque, const char *line), void *opaque);
/** What can change while the daemon runs takes over from @fresh; returns how many others changed, and names them in @fixed. */
uint32_t okv_config_reload(struct okv_daemon_config *config, struct okv_daemon_config *fresh, struct omnikv_error *fixed);

#endif /* OKV_CONFIG_H */

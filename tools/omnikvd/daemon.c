// SPDX-License-Identifier: GPL-2.0-only
/*
 * Starting and ending of the daemon. See daemon.h.
 *
 * Owns the socket's path with its lock, the pool, and who may enter. What clients ask for is the
 * services'. One thread.
 */
#include "daemon.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <syslog.h>
#include <unistd.h>

#include "clock.h"
#include "error.h"
#include "fd.h"
#include "manager/manager.h"
#include "process.h"
#include "share.h"

#define BACKLOG		1024
#define GROUPS_MAX	1024
#define LOCK_WAIT_MS	2000u
#define LOCK_PAUSE_US	5000u

/* Of one client: what it asks about the pool, what it holds, and what it waits for. And some for omnikv status and its like. */
#define CONNS_OF_CLIENT	3u
#define CONNS_SPARE	8u
/* Of one connection: its own, its process's, its lease table's. The daemon's own are 40, with what one frame brings. */
#define FDS_OF_CONN	3u
#define FDS_OF_CLIENT	(CONNS_OF_CLIENT * FDS_OF_CONN)
#define FDS_OWN		(40u + CONNS_SPARE * FDS_OF_CONN)

/* ---- who may enter ---------------------------------------------------------------------- */

/* Root, the daemon's own user, members of its group; the kernel says who the peer is. */
static bool may_enter(void *opaque, int fd, const struct ucred *cred, struct omnikv_error *why)
{
	const struct okv_daemon *daemon = opaque;
	gid_t groups[GROUPS_MAX];
	socklen_t len = sizeof(groups);
	uint32_t i;

	if (!cred->uid || cred->uid == geteuid())
		return true;
	if (daemon->has_gid) {
		if (cred->gid == daemon->gid)
			return true;
		if (getsockopt(fd, SOL_SOCKET, SO_PEERGROUPS, groups, &len))
			len = 0;
		for (i = 0; i < len / sizeof(groups[0]); i++)
			if (groups[i] == daemon->gid)
				return true;
		okv_error_set(why, 0, "the daemon at %.108s refuses user %u: it serves root, user %u and the group %.32s; join the group",
			      daemon->config.socket, cred->uid, geteuid(), daemon->config.group);
	} else {
		okv_error_set(why, 0, "the daemon at %.108s refuses user %u: it serves root and user %u; give omnikvd a group to serve (--group)",
			      daemon->config.socket, cred->uid, geteuid());
	}
	return false;
}

int okv_daemon_find_group(struct okv_daemon *daemon, struct omnikv_error *err)
{
	const struct group *group;

	daemon->has_gid = false;
	if (!daemon->config.group)
		return 0;
	group = getgrnam(daemon->config.group);
	if (!group)
		return okv_error_set(err, -ENOENT, "group \"%.64s\": there is none of that name", daemon->config.group);
	daemon->gid = group->gr_gid;
	daemon->has_gid = true;
	return 0;
}

/* ---- how many --------------------------------------------------------------------------- */

int okv_daemon_say_full(const struct okv_daemon *daemon, uint32_t nr, const char *what, struct omnikv_error *err)
{
	const char *path = daemon->config.socket;

	if (daemon->nr_clients < daemon->config.clients_max)
		return okv_error_set(err, -EDQUOT, "all %u %s of the daemon at %.108s are taken; end a client, or raise the daemon's limit of "
				     "open files (LimitNOFILE=, ulimit -n)", nr, what, path);
	return okv_error_set(err, -EDQUOT, "all %u %s of the daemon at %.108s are taken (clients = %u); end a client, or raise clients in "
			     "omnikvd's settings and restart it", nr, what, path, daemon->nr_clients);
}

/* What this process may have at most, from now on. */
static uint64_t raise_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return UINT64_MAX;
	if (limit.rlim_cur < limit.rlim_max) {
		rlim_t before = limit.rlim_cur;

		limit.rlim_cur = limit.rlim_max;
		if (setrlimit(RLIMIT_NOFILE, &limit))
			limit.rlim_cur = before;
	}
	return limit.rlim_cur == RLIM_INFINITY ? UINT64_MAX : limit.rlim_cur;
}

/* How many clients and connections there can be: as the settings want, or fewer, and a line, where open files are limited. */
static int find_places(struct okv_daemon *daemon, void (*log)(void *opaque, int priority, const char *line),
		       struct omnikv_error *err)
{
	uint64_t nr_wanted = daemon->config.clients_max, nr = nr_wanted, limit = raise_limit();
	uint64_t need = FDS_OWN + nr_wanted * FDS_OF_CLIENT;
	struct omnikv_error line;

	if (limit < FDS_OWN + FDS_OF_CLIENT)
		return okv_error_set(err, -EMFILE, "%llu open files are allowed, and the first client needs %u, %llu clients %llu: raise the "
				     "limit (ulimit -n, or LimitNOFILE= of the unit)", (unsigned long long)limit, FDS_OWN + FDS_OF_CLIENT,
				     (unsigned long long)nr_wanted, (unsigned long long)need);
	if (limit < need) {
		nr = (limit - FDS_OWN) / FDS_OF_CLIENT;
		okv_error_set(&line, 0, "%llu open files are allowed, which is enough for %llu of %llu clients: raise the limit to %llu "
			      "(ulimit -n, or LimitNOFILE= of the unit), or set fewer clients", (unsigned long long)limit,
			      (unsigned long long)nr, (unsigned long long)nr_wanted, (unsigned long long)need);
		if (log)
			log(daemon, LOG_NOTICE, line.text);
	}
	daemon->nr_clients = (uint32_t)nr;
	daemon->nr_conns = daemon->nr_clients * CONNS_OF_CLIENT + CONNS_SPARE;
	okv_daemon_say_full(daemon, daemon->nr_conns, "connections", &daemon->full);
	return 0;
}

/* ---- the socket ------------------------------------------------------------------------- */

/*
 * Who can rename what lies in the directory could put a socket of their own there, and clients would
 * give their KV to it. So it must be the daemon's or root's, and others must not write to it.
 */
static int check_dir(const char *path, struct omnikv_error *err)
{
	struct stat st;

	if (stat(path, &st) || !S_ISDIR(st.st_mode))
		return okv_error_set(err, -ENOTDIR, "socket directory %.100s: %s; make it with mode 0755", path,
				     errno ? strerror(errno) : "not a directory");
	if (st.st_uid && st.st_uid != geteuid())
		return okv_error_set(err, -EPERM, "socket directory %.100s belongs to user %u; it must be root's or this user's",
				     path, st.st_uid);
	/* A sticky one as well: where no socket stands yet, anybody can put one. */
	if (st.st_mode & (S_IWGRP | S_IWOTH))
		return okv_error_set(err, -EPERM, "socket directory %.100s: others may write to it (mode %04o); make one with mode 0755",
				     path, st.st_mode & 07777);
	return 0;
}

/* The lock's file says whose it is, for people. */
static void sign_lock(int fd)
{
	char text[16];
	int len = snprintf(text, sizeof(text), "%d\n", (int)getpid());

	if (ftruncate(fd, 0) || pwrite(fd, text, (size_t)len, 0) != len)
		(void)ftruncate(fd, 0);
}

static pid_t read_lock(int fd)
{
	char text[16];
	ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

	text[n > 0 ? n : 0] = '\0';
	return (pid_t)strtoul(text, NULL, 10);
}

static int refuse_lock(const struct okv_daemon *daemon, int fd, struct omnikv_error *err)
{
	const char *socket = daemon->config.socket;
	pid_t pid = read_lock(fd);

	if (!pid)
		return okv_error_set(err, -EBUSY, "socket %.108s: another omnikvd serves it; end that, or give another socket", socket);
	if (okv_process_is_leaving(pid))
		return okv_error_set(err, -EBUSY, "socket %.108s: another omnikvd serves it, process %d, which has been ending for %u s; try "
				     "again when it is gone", socket, (int)pid, LOCK_WAIT_MS / 1000);
	return okv_error_set(err, -EBUSY, "socket %.108s: another omnikvd serves it, process %d; end that, or give another socket", socket,
			     (int)pid);
}

/*
 * One daemon a socket: a lock file beside it, held while this process lives and removed by whoever holds it. One that was
 * removed between opening and locking it is nobody's any more, and the next one is looked for. A killed daemon is taken down
 * before its lock is free.
 */
static int lock_socket(struct okv_daemon *daemon, struct omnikv_error *err)
{
	uint64_t until_ns = okv_monotonic_ns() + LOCK_WAIT_MS * 1000000ull;
	const char *path = daemon->lock_path;
	struct stat st, now;
	int fd, ret;

	snprintf(daemon->lock_path, sizeof(daemon->lock_path), "%s.lock", daemon->config.socket);
	for (;;) {
		fd = okv_fd_high(open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
		if (fd < 0)
			return okv_error_set(err, -errno, "%.200s: %s", path, strerror(errno));
		if (fstat(fd, &st) || !S_ISREG(st.st_mode) || st.st_uid != geteuid()) {
			ret = okv_error_set(err, -EPERM, "%.180s belongs to user %u; remove it", path, st.st_uid);
			break;
		}
		if (!flock(fd, LOCK_EX | LOCK_NB)) {
			if (!stat(path, &now) && now.st_dev == st.st_dev && now.st_ino == st.st_ino) {
				sign_lock(fd);
				daemon->lock_fd = fd;
				return 0;
			}
		} else if (okv_monotonic_ns() < until_ns) {
			usleep(LOCK_PAUSE_US);
		} else {
			ret = refuse_lock(daemon, fd, err);
			break;
		}
		close(fd);
	}
	close(fd);
	return ret;
}

int okv_daemon_check_place(const char *path, bool is_locked, struct omnikv_error *err)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	struct stat st;
	int fd, ret;

	if (lstat(path, &st))
		return errno == ENOENT ? 0 : okv_error_set(err, -errno, "%.180s: %s", path, strerror(errno));
	if (!S_ISSOCK(st.st_mode) || (st.st_uid && st.st_uid != geteuid()))
		return okv_error_set(err, -EPERM, "%.180s is there already, and no socket of this user's; remove it, or give another path",
				     path);
	/* Its daemon is gone, or about to be: a killed one may give up the lock before its socket. */
	if (is_locked)
		return 0;
	/* What nobody listens at was left by somebody who is gone. */
	strncpy(addr.sun_path, path, sizeof(addr.sun_path) - 1);
	fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return okv_error_set(err, -errno, "socket: %s", strerror(errno));
	ret = connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) ? -errno : 0;
	close(fd);
	return ret == -ECONNREFUSED || ret == -ENOENT ? 0 :
	       okv_error_set(err, -EADDRINUSE, "%.180s: another process listens there; give another path", path);
}

static int make_socket(struct okv_daemon *daemon, struct omnikv_error *err)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	const char *path = daemon->config.socket;
	mode_t mask;
	int fd, ret;

	ret = okv_daemon_check_place(path, true, err);
	if (ret)
		return ret;
	if (unlink(path) && errno != ENOENT)
		return okv_error_set(err, -errno, "%.180s: %s", path, strerror(errno));
	memcpy(addr.sun_path, path, strlen(path));
	fd = okv_fd_high(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
	if (fd < 0)
		return okv_error_set(err, -errno, "socket: %s", strerror(errno));
	mask = umask(daemon->has_gid ? 0117 : 0177);
	ret = bind(fd, (const struct sockaddr *)&addr, sizeof(addr)) ? -errno : 0;
	umask(mask);
	if (!ret && daemon->has_gid && chown(path, (uid_t)-1, daemon->gid))
		ret = -errno;
	if (!ret && listen(fd, BACKLOG))
		ret = -errno;
	if (ret) {
		okv_error_set(err, ret, "socket %.180s: %s", path, strerror(-ret));
		close(fd);
		return ret;
	}
	daemon->listen_fd = fd;
	daemon->owns_socket = true;
	return 0;
}

static int open_socket(struct okv_daemon *daemon, struct omnikv_error *err)
{
	char dir[PATH_MAX], *slash;
	int ret;

	/* The service manager made it, and sees to it that there is one daemon. */
	if (daemon->listen_fd >= 0)
		return 0;
	snprintf(dir, sizeof(dir), "%s", daemon->config.socket);
	slash = strrchr(dir, '/');
	if (!slash)
		snprintf(dir, sizeof(dir), ".");
	else
		slash[slash == dir] = '\0';
	ret = check_dir(dir, err);
	if (!ret)
		ret = lock_socket(daemon, err);
	if (!ret)
		ret = make_socket(daemon, err);
	return ret;
}

/* ---- the pool --------------------------------------------------------------------------- */

/* A large pool takes minutes to populate: whoever asks is told that it goes on, and so is the service manager. */
static void progress(void *opaque, uint64_t done_bytes, uint64_t total_bytes)
{
	struct okv_daemon *daemon = opaque;
	uint64_t now = okv_monotonic_ns();
	char how[80];

	snprintf(how, sizeof(how), "populating the pool, %.0f %%", 100.0 * (double)done_bytes / (double)total_bytes);
	okv_server_starting(daemon->server, how);
	if (now < daemon->told_ns + 1000000000u)
		return;
	daemon->told_ns = now;
	okv_notify("EXTEND_TIMEOUT_USEC=30000000\nSTATUS=%s", how);
}

int okv_daemon_open_pool(struct okv_daemon *daemon, int kept_fd, omnikv_notice_fn notice, struct omnikv_error *err)
{
	const struct okv_daemon_config *asked = &daemon->config;
	struct omnikv_pool_config config = {
		.size = sizeof(config), .granule_bytes = (uint32_t)asked->granule_bytes, .numa = asked->numa,
		.flags = (asked->with_hugetlb ? 0 : OMNIKV_POOL_F_NO_HUGETLB) |
			 (asked->is_populated ? 0 : OMNIKV_POOL_F_NO_POPULATE),
		.notice = notice, .progress = progress, .opaque = daemon,
	};
	struct omnikv_manager_config manager = { .size = sizeof(manager) };
	struct omnikv_pool_info info = { .size = sizeof(info) };
	struct omnikv_spill_config spill = {
		.size = sizeof(spill), .capacity_bytes = asked->spill_bytes, .owner = "omnikvd", .notice = notice,
	};
	int ret;

	ret = okv_pool_spec_parse(daemon->config.pool, &daemon->spec, err);
	if (ret)
		return ret;
	if (daemon->spec.kind == OKV_PROVIDER_KMOD)
		ret = omnikv_pool_open(daemon->config.pool, &config, &daemon->pool, err);
	else
		ret = okv_share_open(&daemon->spec, &config, kept_fd, &daemon->pool, err);
	if (ret == -EINVAL)
		return okv_config_refuse(asked, "pool", ret, err->text, err);
	if (ret || !daemon->config.with_manager)
		return ret;
	ret = omnikv_pool_info(daemon->pool, &info);
	if (!ret)
		ret = okv_config_check_pool(asked, info.nr_granules, info.granule_bytes, err);
	if (ret)
		return ret;
	ret = omnikv_client_open(daemon->pool, OMNIKV_CLIENT_F_MANAGER, &daemon->client);
	if (ret)
		return okv_error_set(err, ret, "pool %.64s: %s", daemon->config.pool,
				     ret == -EBUSY ? "another process manages it" : strerror(-ret));
	if (asked->spill) {
		spill.pool = daemon->pool;
		ret = omnikv_spill_open(asked->spill, &spill, &daemon->spill, err);
		if (ret == -EINVAL)
			return okv_config_refuse(asked, asked->spill_bytes ? "spill-size" : "spill", ret, err->text, err);
		if (ret)
			return ret;
	}
	manager.spill = daemon->spill;
	if (asked->pin_bytes != OKV_PINS_DEFAULT)
		manager.pin_bytes = asked->pin_bytes ? asked->pin_bytes : OMNIKV_PIN_NONE;
	manager.flags = OMNIKV_MANAGER_F_FENCED | (asked->with_tokens ? OMNIKV_MANAGER_F_TOKENS : 0);
	ret = omnikv_manager_create(daemon->client, &manager, &daemon->manager, err);
	if (!ret && err->text[0])
		notice(daemon, err->text);
	if (!ret)
		daemon->manager->asks_victims = daemon->spec.kind == OKV_PROVIDER_KMOD;
	return ret;
}

static uint64_t events_tick(struct okv_server *server, uint64_t now_ns)
{
	return okv_events_tick(((struct okv_daemon *)okv_server_opaque(server))->events, now_ns);
}

static const struct okv_service events_service = { .tick = events_tick };

static int begin_events(struct okv_daemon *daemon, struct omnikv_error *err)
{
	const struct okv_daemon_config *asked = &daemon->config;
	const struct okv_events_config config = {
		.endpoint = asked->events, .replay = asked->events_replay, .topic = asked->events_topic,
		.encoding = asked->events_encoding && !strcmp(asked->events_encoding, "array") ? OKV_BATCH_ARRAY : OKV_BATCH_MAP,
	};
	int ret;

	if (!asked->events)
		return 0;
	ret = okv_events_create(&config, daemon->server, daemon->manager, &daemon->events, err);
	if (ret)
		return okv_config_refuse(asked, strncmp(err->text, "events-replay", 13) ? "events" : "events-replay", ret, err->text, err);
	okv_server_add(daemon->server, &events_service);
	return 0;
}

static void end_errands(struct okv_server *server)
{
	struct okv_daemon *daemon = okv_server_opaque(server);

	okv_errands_destroy(daemon->errands);
	daemon->errands = NULL;
}

static const struct okv_service errands_service = { .stop = end_errands };

int okv_daemon_listen(struct okv_daemon *daemon, void (*log)(void *opaque, int priority, const char *line),
		      struct omnikv_error *err)
{
	struct okv_server_config config = {
		.full = daemon->full.text, .path = daemon->config.socket, .may_enter = may_enter, .log = log, .opaque = daemon,
	};
	int ret;

	ret = find_places(daemon, log, err);
	if (!ret)
		ret = open_socket(daemon, err);
	if (ret)
		return ret;
	config.peers_max = daemon->nr_conns;
	ret = okv_server_create(&config, &daemon->server);
	if (ret)
		return okv_error_set(err, ret, "no memory for the server");
	ret = okv_server_listen(daemon->server, daemon->listen_fd);
	return ret ? okv_error_set(err, ret, "socket: %s", strerror(-ret)) : 0;
}

int okv_daemon_serve(struct okv_daemon *daemon, struct omnikv_error *err)
{
	int ret;

	daemon->since_ns = okv_monotonic_ns();
	ret = okv_manager_service_begin(daemon->server);
	if (ret)
		return okv_error_set(err, ret, "no memory for the server");
	daemon->pool_service = okv_server_add(daemon->server, &okv_pool_service);
	daemon->manager_service = okv_server_add(daemon->server, &okv_manager_service);
	ret = begin_events(daemon, err);
	if (ret)
		return ret;
	okv_server_add(daemon->server, &errands_service);
	okv_server_wake(daemon->server, 0);
	ret = daemon->spill ? okv_errands_create(daemon->server, &daemon->errands) : 0;
	if (ret)
		return okv_error_set(err, ret, "no thread for the spill store: %s", strerror(-ret));
	okv_server_starting(daemon->server, NULL);
	return 0;
}

void okv_daemon_unlink(const struct okv_daemon *daemon)
{
	if (daemon->owns_socket)
		unlink(daemon->config.socket);
	if (daemon->lock_fd >= 0)
		unlink(daemon->lock_path);
}

void okv_daemon_close(struct okv_daemon *daemon)
{
	okv_errands_destroy(daemon->errands);
	daemon->errands = NULL;
	okv_events_destroy(daemon->events);
	daemon->events = NULL;
	okv_server_destroy(daemon->server);
	daemon->server = NULL;
	okv_manager_service_end();
	okv_daemon_unlink(daemon);
	if (daemon->listen_fd >= 0)
		close(daemon->listen_fd);
	if (daemon->lock_fd >= 0)
		close(daemon->lock_fd);
}

void okv_daemon_close_store(struct okv_daemon *daemon, bool is_flushed)
{
	if (!daemon->spill)
		return;
	if (daemon->manager && is_flushed)
		omnikv_manager_flush(daemon->manager);
	if (daemon->manager)
		omnikv_manager_destroy(daemon->manager);
	daemon->manager = NULL;
	omnikv_spill_close(daemon->spill);
	daemon->spill = NULL;
}

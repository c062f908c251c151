// SPDX-License-Identifier: GPL-2.0-only
/*
 * KV events of the daemon's pool over ZeroMQ. See events.h.
 *
 * Events are gathered while requests are served, and sent once a turn of the loop or when a batch is full. Besides the
 * loop the thread of errands tells of changes; ZeroMQ has one of its own, which nothing of ours runs in.
 */
#include "events.h"

#include <errno.h>
#include <ifaddrs.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include "daemon.h"
#include "error.h"
#include "failpoint.h"
#include "manager/tokens.h"
#include "manager/watch.h"

#ifdef OKV_HAVE_EVENTS
#include <zmq.h>

#define ID_BYTES_MAX	255u	/* of a peer, as ZeroMQ names it */
#define REPLAY_STEP	64u	/* batches of one replay a turn, and requests read a turn */
#define REPLAY_AGAIN_NS	(20 * UINT64_C(1000000))
#define REPLAY_END_NS	(30 * UINT64_C(1000000000))

/* Held by the table of those that are kept, and by each message that ZeroMQ has yet to send: in its own thread it ends. */
struct batch {
	_Atomic uint32_t	nr_refs;
	void			*bytes;
	size_t			nr_bytes;
};

/* Somebody who asked: the batches from @next on are still to be sent. @id_len 0: nobody. */
struct replay {
	unsigned char	id[ID_BYTES_MAX];
	size_t		id_len;
	uint64_t	next;
	uint64_t	until_ns;	/* takes nothing for so long: given up */
};

struct okv_events {
	struct okv_watch	watch;
	struct omnikv_manager	*manager;
	struct okv_server	*server;
	/* Innermost: taken under the manager's, so not held while replays are sent. Guards all below but what belongs to those. */
	pthread_mutex_t		lock;
	struct okv_batch	*making;
	char			topic[256];
	void			*context;
	void			*publish;
	void			*replay;	/* NULL: none */
	int			replay_fd;
	uint64_t		first, next;	/* numbers: of the first batch that is kept, and of the one in the making */
	size_t			kept_bytes;
	struct replay		replays[OKV_REPLAYS_MAX];
	struct batch		*kept[OKV_EVENTS_KEPT_MAX];	/* by number; NULL: lost for want of memory */
};

/* ---- batches -------------------------------------------------------------------------------- */

static struct batch **kept(struct okv_events *events, uint64_t number)
{
	return &events->kept[number % OKV_EVENTS_KEPT_MAX];
}

static struct batch *batch_get(struct batch *batch)
{
	if (batch)
		atomic_fetch_add_explicit(&batch->nr_refs, 1, memory_order_relaxed);
	return batch;
}

static void batch_put(struct batch *batch)
{
	if (!batch || atomic_fetch_sub_explicit(&batch->nr_refs, 1, memory_order_acq_rel) != 1)
		return;
	free(batch->bytes);
	free(batch);
}

/* In ZeroMQ's thread, or in who closes a message that was not sent. */
static void message_is_over(void *bytes, void *batch)
{
	(void)bytes;
	batch_put(batch);
}

/* The last part of a message: the bytes are not copied. One that cannot be sent now is not. */
static void send_bytes(void *socket, struct batch *batch)
{
	zmq_msg_t msg;

	if (zmq_msg_init_data(&msg, batch->bytes, batch->nr_bytes, message_is_over, batch_get(batch))) {
		batch_put(batch);
		zmq_msg_init(&msg);
	}
	if (zmq_msg_send(&msg, socket, ZMQ_DONTWAIT) < 0)
		zmq_msg_close(&msg);
}

static void drop_first(struct okv_events *events)
{
	struct batch **batch = kept(events, events->first++);

	if (*batch)
		events->kept_bytes -= (*batch)->nr_bytes;
	batch_put(*batch);
	*batch = NULL;
}

static void put_number(unsigned char bytes[8], uint64_t number)
{
	for (int i = 0; i < 8; i++)
		bytes[i] = (unsigned char)(number >> (56 - 8 * i));
}

static uint64_t get_number(const unsigned char bytes[8])
{
	uint64_t number = 0;

	for (int i = 0; i < 8; i++)
		number = number << 8 | bytes[i];
	return number;
}

/* What is in the making, for the table; NULL: no memory. */
static struct batch *take_batch(struct okv_events *events)
{
	struct batch *batch = calloc(1, sizeof(*batch));
	struct timespec now;
	size_t nr_bytes;
	void *bytes;

	clock_gettime(CLOCK_REALTIME, &now);
	if (okv_batch_take(events->making, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec, &bytes, &nr_bytes)) {
		free(batch);
		return NULL;
	}
	if (!batch) {
		free(bytes);
		return NULL;
	}
	atomic_init(&batch->nr_refs, 1);
	batch->bytes = bytes;
	batch->nr_bytes = nr_bytes;
	return batch;
}

/* The batch in the making goes out. Where there is no memory for it, its number is missed by all who read. */
static void send_batch(struct okv_events *events)
{
	unsigned char number[8];
	struct batch *batch;

	if (!okv_batch_nr(events->making))
		return;
	batch = take_batch(events);
	if (!batch)
		okv_server_log(events->server, LOG_WARNING, "no memory for KV events: batch %llu is lost",
			       (unsigned long long)events->next);
	while (events->next - events->first >= OKV_EVENTS_KEPT_MAX ||
	       (batch && events->first < events->next && events->kept_bytes + batch->nr_bytes > OKV_EVENTS_KEPT_BYTES))
		drop_first(events);
	*kept(events, events->next) = batch;
	put_number(number, events->next++);
	if (!batch)
		return;
	events->kept_bytes += batch->nr_bytes;
	/* A publisher drops what a slow subscriber does not take; nothing here waits. */
	if (zmq_send(events->publish, events->topic, strlen(events->topic), ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
	    zmq_send(events->publish, number, sizeof(number), ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0)
		send_bytes(events->publish, batch);
}

/* One more event comes to the batch in the making. */
static void begin_event(struct okv_events *events)
{
	if (okv_batch_is_full(events->making))
		send_batch(events);
	if (!okv_batch_nr(events->making))
		okv_server_wake(events->server, 0);
}

static void tell_block(struct okv_events *events, const struct okv_batch_block *block, bool is_there)
{
	pthread_mutex_lock(&events->lock);
	begin_event(events);
	if (is_there)
		okv_batch_stored(events->making, block);
	else
		okv_batch_removed(events->making, block);
	pthread_mutex_unlock(&events->lock);
}

/* The watcher's. Tails are of no use to others: routers count in whole blocks. */
static void changed(struct okv_watch *watch, const struct omnikv_space *space, uint32_t entry, bool is_there)
{
	struct okv_events *events = (struct okv_events *)watch;
	struct okv_index *index = space->shelf->index;
	struct okv_index_info info, up;
	struct okv_batch_block block = {
		.medium = OKV_BATCH_MEMORY, .key = &info.key, .block_tokens = space->plan->plan.block_tokens,
		.namespace_id = space->identity,
	};

	if (okv_index_get(index, entry, &info) || info.is_partial)
		return;
	if (is_there && info.parent != OKV_ENTRY_NONE && !okv_index_get(index, info.parent, &up))
		block.parent = &up.key;
	if (is_there && events->manager->tokens)
		block.nr_tokens = okv_tokens_of(events->manager->tokens, space, entry, &block.tokens);
	tell_block(events, &block, is_there);
}

static void spilled(struct okv_watch *watch, const struct omnikv_space *space, const struct omnikv_key *key,
		    const struct omnikv_key *parent, uint32_t nr_tokens, bool is_there)
{
	struct okv_batch_block block = {
		.medium = OKV_BATCH_NVME, .key = key, .parent = parent->len ? parent : NULL, .block_tokens = nr_tokens,
		.namespace_id = space->identity,
	};

	if (nr_tokens == space->plan->plan.block_tokens)
		tell_block((struct okv_events *)watch, &block, is_there);
}

static void cleared(struct okv_watch *watch)
{
	struct okv_events *events = (struct okv_events *)watch;

	pthread_mutex_lock(&events->lock);
	begin_event(events);
	okv_batch_cleared(events->making);
	pthread_mutex_unlock(&events->lock);
}

/* ---- replay --------------------------------------------------------------------------------- */

/*
 * One message or nothing; the end mark, @batch NULL, has an empty topic. -EAGAIN: the peer takes nothing now;
 * -EHOSTUNREACH: it has gone.
 */
static int send_replay(struct okv_events *events, const struct replay *replay, uint64_t of, struct batch *batch)
{
	unsigned char number[8];

	put_number(number, of);
	if (zmq_send(events->replay, replay->id, replay->id_len, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
		return -zmq_errno();
	/* A message that has begun has its room. */
	zmq_send(events->replay, "", 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
	zmq_send(events->replay, events->topic, batch ? strlen(events->topic) : 0, ZMQ_SNDMORE | ZMQ_DONTWAIT);
	zmq_send(events->replay, number, 8, ZMQ_SNDMORE | ZMQ_DONTWAIT);
	if (batch)
		send_bytes(events->replay, batch);
	else
		zmq_send(events->replay, "", 0, ZMQ_DONTWAIT);
	return 0;
}

/* The next ones of a replay, each with a reference; how many. @is_all: there are no more. */
static uint32_t replay_take(struct okv_events *events, struct replay *replay, struct batch *batches[REPLAY_STEP], bool *is_all)
{
	uint32_t nr = 0;

	pthread_mutex_lock(&events->lock);
	if (replay->next < events->first)
		replay->next = events->first;
	for (; nr < REPLAY_STEP && replay->next + nr < events->next; nr++)
		batches[nr] = batch_get(*kept(events, replay->next + nr));
	*is_all = replay->next + nr >= events->next;
	pthread_mutex_unlock(&events->lock);
	return nr;
}

/* Returns whether there is something left to be sent. */
static bool replay_step(struct okv_events *events, struct replay *replay, uint64_t now_ns)
{
	struct batch *batches[REPLAY_STEP];
	bool is_all;
	uint32_t nr = replay_take(events, replay, batches, &is_all);
	int ret = 0;

	for (uint32_t i = 0; i < nr; i++) {
		(void)OKV_FAILPOINT("events.replay");
		if (!ret && batches[i])
			ret = send_replay(events, replay, replay->next, batches[i]);
		if (!ret) {
			replay->next++;
			replay->until_ns = now_ns + REPLAY_END_NS;
		}
		batch_put(batches[i]);
	}
	if (!ret && !is_all)
		return true;
	if (!ret)
		ret = send_replay(events, replay, UINT64_MAX, NULL);
	if (ret == -EAGAIN && now_ns < replay->until_ns)
		return true;
	replay->id_len = 0;
	return false;
}

/* One request: [peer, "", number]. Anything else is passed over. false: there is none. */
static bool replay_read(struct okv_events *events, uint64_t now_ns)
{
	unsigned char frames[3][ID_BYTES_MAX + 1];
	size_t lens[3] = { 0 };
	uint32_t nr = 0;
	int more = 1;

	while (more) {
		size_t size = sizeof(more);
		zmq_msg_t msg;

		zmq_msg_init(&msg);
		if (zmq_msg_recv(&msg, events->replay, ZMQ_DONTWAIT) < 0) {
			zmq_msg_close(&msg);
			return false;
		}
		if (nr < 3 && zmq_msg_size(&msg) <= ID_BYTES_MAX) {
			lens[nr] = zmq_msg_size(&msg);
			memcpy(frames[nr], zmq_msg_data(&msg), lens[nr]);
		} else {
			nr = 3;
		}
		nr++;
		zmq_msg_close(&msg);
		if (zmq_getsockopt(events->replay, ZMQ_RCVMORE, &more, &size))
			return false;
	}
	if (nr != 3 || !lens[0] || lens[1] || lens[2] != 8)
		return true;
	for (uint32_t i = 0; i < OKV_REPLAYS_MAX; i++) {
		struct replay *replay = &events->replays[i];

		if (replay->id_len)
			continue;
		memcpy(replay->id, frames[0], lens[0]);
		replay->id_len = lens[0];
		replay->next = get_number(frames[2]);
		replay->until_ns = now_ns + REPLAY_END_NS;
		break;
	}
	return true;
}

static bool has_requests(struct okv_events *events)
{
	int state = 0;
	size_t size = sizeof(state);

	return events->replay && !zmq_getsockopt(events->replay, ZMQ_EVENTS, &state, &size) && (state & ZMQ_POLLIN);
}

static void replay_ready(struct okv_server *server, int fd, void *opaque)
{
	(void)fd;
	/* The descriptor says that something may have changed, until somebody looks. */
	if (has_requests(opaque))
		okv_server_wake(server, 0);
}

uint64_t okv_events_tick(struct okv_events *events, uint64_t now_ns)
{
	uint64_t next_ns = UINT64_MAX;
	uint32_t nr = 0;

	pthread_mutex_lock(&events->lock);
	send_batch(events);
	pthread_mutex_unlock(&events->lock);
	while (events->replay && nr < REPLAY_STEP && replay_read(events, now_ns))
		nr++;
	if (nr == REPLAY_STEP)
		next_ns = now_ns;
	for (uint32_t i = 0; i < OKV_REPLAYS_MAX; i++)
		if (events->replays[i].id_len && replay_step(events, &events->replays[i], now_ns) && next_ns == UINT64_MAX)
			next_ns = now_ns + REPLAY_AGAIN_NS;
	/* Sending looks as well, and the descriptor does not tell again of what came in meanwhile. */
	if (has_requests(events))
		next_ns = now_ns;
	return next_ns;
}

/* ---- beginning and end ---------------------------------------------------------------------- */

static int set(void *socket, int option, int value)
{
	return zmq_setsockopt(socket, option, &value, sizeof(value)) ? -zmq_errno() : 0;
}

/* libzmq ends the process where it may not look at the network's interfaces, or has none to make a socket of. */
static int check_network(const char *setting, const char *endpoint, struct omnikv_error *err)
{
	struct ifaddrs *interfaces;
	int fd;

	if (strncmp(endpoint, "tcp:", 4))
		return 0;
	if (!getifaddrs(&interfaces)) {
		freeifaddrs(interfaces);
		fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		if (fd >= 0)
			return close(fd);
	}
	return okv_error_set(err, -EPERM, "%s: %.100s: no sockets of the network here: %s; a unit's RestrictAddressFamilies= "
			     "must have AF_INET, AF_INET6 and AF_NETLINK", setting, endpoint, strerror(errno));
}

/* libzmq replaces whatever stands there. A name that begins with @ is no file's. */
static int check_file(const char *setting, const char *endpoint, struct omnikv_error *err)
{
	const char *path = endpoint + strlen("ipc://");
	struct omnikv_error why = { "" };
	int ret;

	if (strncmp(endpoint, "ipc:", 4) || *path == '@')
		return 0;
	ret = okv_daemon_check_place(path, false, &why);
	return ret ? okv_error_set(err, ret, "%s: %.240s", setting, why.text) : 0;
}

/* What can be done where an endpoint cannot be had; each begins with the setting's name. */
static int refuse_endpoint(const char *setting, const char *endpoint, int ret, struct omnikv_error *err)
{
	const char *what = ret == -EADDRINUSE ? "another one listens there; give another port" :
			   ret == -EADDRNOTAVAIL || ret == -ENODEV ? "no address of this host; give one of its own, or * for all" :
			   ret == -ENOENT ? "its directory is not there; make it, or give another path" : zmq_strerror(-ret);

	return okv_error_set(err, ret, "%s: %.100s: %s", setting, endpoint, what);
}

static int open_socket(struct okv_events *events, int type, const char *endpoint, void **socket, struct omnikv_error *err)
{
	const char *setting = type == ZMQ_PUB ? "events" : "events-replay";
	int64_t most = 4096;	/* of what a peer may send: a subscription, a request */
	int ret;

	ret = check_network(setting, endpoint, err);
	if (!ret)
		ret = check_file(setting, endpoint, err);
	if (ret)
		return ret;
	*socket = zmq_socket(events->context, type);
	ret = *socket ? 0 : -zmq_errno();
	if (!ret)
		ret = set(*socket, ZMQ_SNDHWM, OKV_EVENTS_HWM);
	if (!ret)
		ret = set(*socket, ZMQ_LINGER, 1000);
	if (!ret)
		ret = set(*socket, ZMQ_IPV6, 1);
	if (!ret && zmq_setsockopt(*socket, ZMQ_MAXMSGSIZE, &most, sizeof(most)))
		ret = -zmq_errno();
	/* Whoever has gone or takes nothing is told apart, instead of losing a part of a replay. */
	if (!ret && type == ZMQ_ROUTER)
		ret = set(*socket, ZMQ_ROUTER_MANDATORY, 1);
	if (!ret && zmq_bind(*socket, endpoint))
		ret = -zmq_errno();
	return ret ? refuse_endpoint(setting, endpoint, ret, err) : 0;
}

static int open_replay(struct okv_events *events, const char *endpoint, struct omnikv_error *err)
{
	size_t size = sizeof(events->replay_fd);
	int ret;

	ret = open_socket(events, ZMQ_ROUTER, endpoint, &events->replay, err);
	if (ret)
		return ret;
	if (zmq_getsockopt(events->replay, ZMQ_FD, &events->replay_fd, &size))
		return refuse_endpoint("events-replay", endpoint, -zmq_errno(), err);
	return okv_server_watch(events->server, events->replay_fd, replay_ready, events);
}

int okv_events_create(const struct okv_events_config *config, struct okv_server *server, struct omnikv_manager *manager,
		      struct okv_events **out, struct omnikv_error *err)
{
	struct okv_events *events = calloc(1, sizeof(*events));
	int ret;

	if (!events)
		return okv_error_set(err, -ENOMEM, "no memory for events");
	events->watch = (struct okv_watch){ .changed = changed, .spilled = spilled, .cleared = cleared };
	events->manager = manager;
	events->server = server;
	events->replay_fd = -1;
	pthread_mutex_init(&events->lock, NULL);
	if (config->topic)
		strncpy(events->topic, config->topic, sizeof(events->topic) - 1);
	events->making = okv_batch_create(config->encoding);
	events->context = zmq_ctx_new();
	ret = events->making && events->context ? 0 : okv_error_set(err, -ENOMEM, "no memory for events");
	if (!ret)
		ret = open_socket(events, ZMQ_PUB, config->endpoint, &events->publish, err);
	if (!ret && config->replay)
		ret = open_replay(events, config->replay, err);
	if (!ret)
		ret = okv_batch_cleared(events->making);
	if (!ret)
		ret = okv_manager_watch(manager, &events->watch);
	if (ret) {
		okv_events_destroy(events);
		return ret;
	}
	okv_server_wake(server, 0);
	*out = events;
	return 0;
}

void okv_events_destroy(struct okv_events *events)
{
	if (!events)
		return;
	if (events->manager->watch == &events->watch)
		okv_manager_watch(events->manager, NULL);
	if (events->publish)
		send_batch(events);
	if (events->replay_fd >= 0)
		okv_server_unwatch(events->server, events->replay_fd);
	if (events->replay)
		zmq_close(events->replay);
	if (events->publish)
		zmq_close(events->publish);
	if (events->context)
		zmq_ctx_term(events->context);
	while (events->first < events->next)
		drop_first(events);
	okv_batch_destroy(events->making);
	pthread_mutex_destroy(&events->lock);
	free(events);
}

#else /* without libzmq and msgpack */

int okv_events_create(const struct okv_events_config *config, struct okv_server *server, struct omnikv_manager *manager,
		      struct okv_events **out, struct omnikv_error *err)
{
	(void)config;
	(void)server;
	(void)manager;
	(void)out;
	return okv_error_set(err, -EOPNOTSUPP, "this omnikvd was built without libzmq and msgpack, which events need");
}

void okv_events_destroy(struct okv_events *events)
{
	(void)events;
}

uint64_t okv_events_tick(struct okv_events *events, uint64_t now_ns)
{
	(void)events;
	(void)now_ns;
	return UINT64_MAX;
}
#endif

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What waits for the disk: one thread beside the daemon's loop, first come, first served.
 *
 * An errand is a part of a request that may take as long as the disk does. It is run on the thread, which touches
 * the manager alone (any thread may), and then done in the loop, where peers, promises and replies are. Neither
 * lookups nor allocations of others wait for it.
 *
 *	loop:    handler ---> okv_errands_add()          done() ---> okv_peer_reply()
 *	                              |                    ^
 *	thread:                       '-----> run() -------'
 *
 * The loop's thread enters everything here.
 */
#ifndef OKV_ERRANDS_H
#define OKV_ERRANDS_H

#include "server.h"

/** Under way at once; of one peer. */
#define OKV_ERRANDS_MAX		256u
#define OKV_ERRANDS_OF_PEER	8u
/** Bytes of those, but for one that is the only one. */
#define OKV_ERRANDS_BYTES	(64u << 20)
#define OKV_ERRANDS_BYTES_OF_PEER	(16u << 20)

struct okv_errands;

/**
 * struct okv_errand - begins the struct of each kind
 * @run:   on the thread
 * @done:  in the loop; the errand's memory is its to free. @peer: who asked; NULL: nobody is to be answered
 * @bytes: what it keeps until then, where its size is the request's to say
 */
struct okv_errand {
	/* the caller's */
	void			(*run)(struct okv_errand *errand);
	void			(*done)(struct okv_errand *errand, struct okv_peer *peer);
	uint64_t		peer;
	uint64_t		id;
	uint16_t		type;
	uint64_t		bytes;
	/* not the caller's */
	struct okv_errand	*next;
};

int okv_errands_create(struct okv_server *server, struct okv_errands **errands);
/**
 * Those that wait are answered with -ENOTCONN, and done without having been run; the one that runs is waited for, and
 * answered as ever. NULL is nothing.
 */
void okv_errands_destroy(struct okv_errands *errands);
/** -EBUSY: too many, or too large ones, are under way, of all or of this peer; -ENOTCONN: the daemon ends. */
int okv_errands_add(struct okv_errands *errands, struct okv_errand *errand);
/** What okv_errands_add() of so many bytes for @peer would return now: before they are made. */
int okv_errands_check(struct okv_errands *errands, uint64_t peer, uint64_t bytes);
/** The request that it is for. */
void okv_errand_init(struct okv_errand *errand, const struct okv_request *req);

#endif /* OKV_ERRANDS_H */

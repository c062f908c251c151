/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Is a history of operations by several processes on one cached block linearizable?
 *
 * An operation takes effect at one moment between its begin and its end. A history is linearizable if such moments can be
 * chosen so that each answer is the one that a plain flag would have given. Blocks are independent of each other, so that
 * each has a history of its own. Pure.
 */
#ifndef TESTS_HISTORY_H
#define TESTS_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#define HISTORY_OPS_MAX	48u

enum history_kind {
	HISTORY_LOOK,		/* @is_there is what it saw */
	HISTORY_PUT,		/* it is there from then on */
	HISTORY_DROP,		/* it is not there from then on */
	HISTORY_MAY_DROP,	/* one or the other: somebody may have held it */
};

struct history_op {
	enum history_kind	kind;
	bool			is_there;
	uint64_t		begin_ns;
	uint64_t		end_ns;
};

/** @ops: in any order, at most HISTORY_OPS_MAX. The block is not there before the first. */
bool history_is_linearizable(const struct history_op *ops, uint32_t nr);

#endif /* TESTS_HISTORY_H */

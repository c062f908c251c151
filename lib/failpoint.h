/* SPDX-License-Identifier: MIT */
/*
 * Fail-points: named places in the library where a test can make something go wrong.
 *
 * A place is marked with OKV_FAILPOINT("spill.after_write"), which yields the errno to inject
 * (positive) or 0. Built without OKV_FAILPOINTS it is the constant 0 and costs nothing; the
 * test builds define it. Any thread may arm, disarm and hit. Without an armed point a hit is
 * one relaxed load.
 *
 *	ret = -OKV_FAILPOINT("pool.grow");
 *	if (ret)
 *		return ret;
 */
#ifndef OKV_FAILPOINT_H
#define OKV_FAILPOINT_H

#include <stdint.h>

/**
 * typedef okv_failpoint_fn - called at a hit that fires, with no lock of the fail-points held
 *
 * Return: the errno to inject (positive), or 0 to go on.
 */
typedef int (*okv_failpoint_fn)(void *opaque, const char *name);

/** End the process with SIGKILL at the hit, as a power cut of this process would. */
#define OKV_FAILPOINT_F_KILL	(1u << 0)

/**
 * struct okv_failpoint - what happens at a point
 * @name:     of the place; the text is copied
 * @nth:      the first hit that fires, counted from 1 since arming; 0 is 1
 * @times:    how many hits fire; 0 is all from @nth on
 * @error:    errno that a firing hit yields; 0 lets the caller go on
 * @delay_ms: sleep before that
 * @flags:    OKV_FAILPOINT_F_*
 * @fn:       called after the delay; its result replaces @error; may be NULL
 * @opaque:   handed to @fn
 */
struct okv_failpoint {
	const char		*name;
	uint32_t		nth;
	uint32_t		times;
	int			error;
	uint32_t		delay_ms;
	uint32_t		flags;
	okv_failpoint_fn	fn;
	void			*opaque;
};

#ifdef OKV_FAILPOINTS

/** Mark a place. @name is a string literal, "file.place". */
#define OKV_FAILPOINT(name)	okv_failpoint_hit(name)

/** Yields the errno to inject, or 0. Context: any thread; may sleep where a test asked for a delay. */
int okv_failpoint_hit(const char *name);

/**
 * okv_failpoint_arm() - arm a point, or arm it anew with its count of hits back at 0
 *
 * Return: 0, -EINVAL (no name, or over 63 bytes), -ENOSPC (32 points are armed already).
 */
int okv_failpoint_arm(const struct okv_failpoint *point);

/**
 * okv_failpoint_arm_text() - arm points from text, as the variable OMNIKV_FAILPOINTS has it
 * @text: points separated by ";", each "name[:key=value]..." with the keys nth, times, error
 *        (a number), delay (milliseconds) and kill (1), for instance "spill.after_write:nth=3:kill=1"
 *
 * The variable itself is read at the process's first hit.
 *
 * Return: 0, or -EINVAL with nothing more armed than what stands before the mistake.
 */
int okv_failpoint_arm_text(const char *text);

/** No effect where @name is not armed. */
void okv_failpoint_disarm(const char *name);
void okv_failpoint_disarm_all(void);

/** Hits of an armed point since it was armed, fired or not; 0 where it is not armed. */
uint64_t okv_failpoint_hits(const char *name);

#else

#define OKV_FAILPOINT(name)	0

#endif /* OKV_FAILPOINTS */

#endif /* OKV_FAILPOINT_H */

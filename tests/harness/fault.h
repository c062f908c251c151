/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Failing allocations, on request, in every test program.
 *
 * Test programs are linked so that calls of malloc, calloc, realloc, strdup, strndup,
 * aligned_alloc, posix_memalign and of OpenSSL's digests from our own objects pass through here.
 * The count is the calling thread's own: other threads are never failed. To fail each in turn:
 *
 *	unsigned int nth = 0;
 *
 *	do {
 *		fault_arm(++nth);
 *		ret = call();
 *		... ret is -ENOMEM if and only if fault_disarm() is true
 *	} while (has_fired);
 */
#ifndef TESTS_HARNESS_FAULT_H
#define TESTS_HARNESS_FAULT_H

#include <stdbool.h>

/** The @nth call from now on (1 is the next) fails, once. */
void fault_arm(unsigned int nth);
/** No call fails any more. Return: whether one has failed since fault_arm(). */
bool fault_disarm(void);

#endif /* TESTS_HARNESS_FAULT_H */

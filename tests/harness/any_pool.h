/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A fresh pool of the provider under test, for programs that run over each of them.
 *
 * OMNIKV_TEST_PROVIDER=kmod makes one of the kernel module's (it needs CAP_SYS_ADMIN) that ends
 * with its process; anything else an embedded one. One thread.
 */
#ifndef TESTS_ANY_POOL_H
#define TESTS_ANY_POOL_H

#include <omnikv/pool.h>

/** As omnikv_pool_open() of @size, a multiple of 2M; flags of @config that one provider lacks are dropped. */
int any_pool_open(const char *size, const struct omnikv_pool_config *config, struct omnikv_pool **pool);
/** Is it the module's? */
bool any_pool_is_kmod(void);

#endif /* TESTS_ANY_POOL_H */

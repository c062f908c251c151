/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A fresh pool of the provider under test, for programs that run over each of them.
 *
 * OMNIKV_TEST_PROVIDER=kmod makes one of the kernel module's (it needs CAP_SYS_ADMIN) that ends
 * with its process; daemon starts an omnikvd that ends with it, and at the next call; anything else an
 * embedded one. One thread.
 */
#ifndef TESTS_ANY_POOL_H
#define TESTS_ANY_POOL_H

#include <omnikv/pool.h>

/** As omnikv_pool_open() of @size, a multiple of 2M; flags of @config that one provider lacks are dropped. */
int any_pool_open(const char *size, const struct omnikv_pool_config *config, struct omnikv_pool **pool);
/**
 * What omnikv_pool_open() takes for a program's argument: "omnikvd:SIZE" starts a daemon with a pool of this
 * size, no manager and no reserve, and names its socket; anything else is what it is. Static storage.
 */
const char *any_pool_spec(const char *arg);
/**
 * What omnikvd's --pool takes: a pool of @size, empty, that outlives its daemon and ends with this process and at the next
 * call. An embedded one is a file in @dir. Static storage.
 */
const char *any_pool_of_daemons(const char *size, const char *dir);
/** Where OMNIKV_TEST_FAIL is set, the kernel's fault injection may choose this process from here on. */
void any_pool_may_fail(void);
/** Is it the module's? */
bool any_pool_is_kmod(void);

#endif /* TESTS_ANY_POOL_H */

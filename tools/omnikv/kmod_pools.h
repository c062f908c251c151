/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What sub-commands ask of the kernel module: its limits, its pools, who is attached to them.
 *
 * Errors are said on stderr by the function that meets them, in one line. One thread.
 */
#ifndef OKV_KMOD_POOLS_H
#define OKV_KMOD_POOLS_H

#include <stdbool.h>
#include <stdint.h>

#include <linux/omnikv.h>

#define OKV_SYSFS_POOLS	"/sys/class/misc/omnikv/pools"

/** A descriptor of /dev/omnikv, or -1 after a line on stderr. @is_quiet: no line where there is no module. */
int okv_kmod_open(bool is_quiet);
/** ioctl() that returns 0 or a negative errno. */
int okv_kmod_call(int dev, unsigned long number, void *arg);
/** A descriptor of the pool, or -1 after a line on stderr. */
int okv_kmod_pool(int dev, const char *name);

/** Names of all pools, sorted; free each and the array. -1 where there is no module. */
int okv_kmod_pool_names(char ***names);
void okv_kmod_names_free(char **names, int nr);
/** A number of sysfs; 0 where it cannot be read. */
uint64_t okv_kmod_pool_value(const char *name, const char *file);
/** A text of sysfs, without its end of line. */
void okv_kmod_pool_text(const char *name, const char *file, char *text, int size);

/** Clients of a pool, up to @max; the number, or a negative errno. */
int okv_kmod_clients(int dev, int pool, struct omnikv_client_entry *entries, int max);

#endif /* OKV_KMOD_POOLS_H */

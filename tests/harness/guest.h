/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What tests inside a guest share: its NVMe disks by number, commands, device mapper.
 *
 * tests/harness/vm gives disk N the serial number "okvN"; kernels number them as they like.
 */
#ifndef OKV_TESTS_GUEST_H
#define OKV_TESTS_GUEST_H

#include <stdbool.h>
#include <stdint.h>

/** Run a command; its exit status. What it says goes to the test's output. */
int guest_shell(const char *format, ...) __attribute__((format(printf, 1, 2)));
/** Is this a guest that has disk @nr? Then @path is its block device. */
bool guest_disk(uint32_t nr, char path[64]);
/** Length of a block device in sectors of 512 bytes; 0: none. */
uint64_t guest_sectors(const char *path);
/** Load the device mapper and these modules, separated by blanks. */
bool guest_modules(const char *names);
/** Make, or change under those who have it open, the mapped device @name; @table is one line. */
bool guest_map(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool guest_remap(const char *name, const char *format, ...) __attribute__((format(printf, 2, 3)));
/** No effect where there is none. */
void guest_unmap(const char *name);

#endif /* OKV_TESTS_GUEST_H */

/* SPDX-License-Identifier: MIT */
/*
 * GPUDirect Storage: NVMe to the device's memory without the host's, by NVIDIA's libcufile where there is one.
 *
 * The library is found at run time, nothing links against it. One thread at a time is inside a file.
 */
#ifndef OKV_SPILL_GDS_H
#define OKV_SPILL_GDS_H

#include <stdint.h>

#include <omnikv/pool.h>

struct okv_gds;

/**
 * okv_gds_open() - a file that is read that way
 * @fd: stays the caller's, outlives the file; open for direct I/O
 *
 * Return: 0, or -EOPNOTSUPP (no libcufile, too old a one, or it does not serve this file) or -ENOMEM, with the reason in @err.
 */
int okv_gds_open(int fd, struct okv_gds **gds, struct omnikv_error *err);
/** NULL is ignored. */
void okv_gds_close(struct okv_gds *gds);
/** All of [@off, @off + @bytes) to @dev + @dev_off: 0 or -EIO, what is there is undefined then. */
int okv_gds_read(struct okv_gds *gds, void *dev, uint64_t dev_off, uint64_t off, uint64_t bytes);

#endif /* OKV_SPILL_GDS_H */

/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A CUDA driver without a GPU, for tests: what the library uses of the driver's interface, on this machine's memory.
 *
 * A shared object of its own, which the library loads as it loads a driver. Device memory is memory of this machine;
 * a stream is a queue with a thread; kernels are their definitions in kernels/ref. It is stricter than a real driver:
 * copies must lie within one allocation, registration or reservation, and host memory has another address on the device than in
 * the process, so that mixing them up is an error here.
 */
#ifndef TESTS_HARNESS_CUDA_FAKE_DRIVER_H
#define TESTS_HARNESS_CUDA_FAKE_DRIVER_H

/**
 * fake_cuda_set() - what the driver is like from now on, or what goes wrong
 * @key: "reset" (all as at start), "devices", "version", "max_register" (bytes of one registration),
 *       "register_us" (what one takes, a 2-MiB page), "copy_us" (what a copy takes), "batch" (0: no cuMemcpyBatchAsync()),
 *       "kernels" (0: no code for this GPU), "init_error" (of cuInit()), "no_stream_ops" (1: none of 64 bits),
 *       "fail_copy" (the nth copy from now is refused), "fault_copy" (the nth copy from now is a fault of the device,
 *       after which its context is lost), "fail_register" (the nth from now), "fail_alloc" (the nth, of any memory),
 *       "fail_write" (the nth write of a word in a stream), "fail_unmap" (the nth of a mapping)
 *
 * Return: 0, or -1 for an unknown key.
 */
int fake_cuda_set(const char *key, long value);
/**
 * @key: "registered" (bytes), "mapped" (bytes), "registrations", "host" (pinned allocations), "device" (device allocations), "streams",
 *       "contexts" (retained), "copies", "batches", "launches", "graphs", "peer_copies": now or since "reset"
 */
long fake_cuda_get(const char *key);

#endif /* TESTS_HARNESS_CUDA_FAKE_DRIVER_H */

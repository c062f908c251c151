/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the guest's test programs share: short forms of the commands of /dev/omnikv. Each
 * returns 0 (or a descriptor) or a negative errno. Include after kselftest_harness.h.
 */
#ifndef OKV_TEST_H
#define OKV_TEST_H

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <linux/omnikv.h>

/* How long a program may take is the plan's to say; a debug kernel is slow. */
#undef TEST_TIMEOUT_DEFAULT
#define TEST_TIMEOUT_DEFAULT	1200

#define MIB		(1024UL * 1024)
#define UNIT		(2 * MIB)
#define PAGE		4096UL

static inline int okv_ioctl(int fd, unsigned long cmd, void *arg)
{
	return ioctl(fd, cmd, arg) < 0 ? -errno : 0;
}

static inline int dev_open(void)
{
	int fd = open("/dev/omnikv", O_RDWR | O_CLOEXEC);

	return fd < 0 ? -errno : fd;
}

static inline struct omnikv_ioc_pool_create pool_request(const char *name, uint64_t bytes, uint32_t flags)
{
	struct omnikv_ioc_pool_create req = { .flags = flags, .bytes = bytes, .mode = 0600 };

	strncpy((char *)req.name, name, sizeof(req.name) - 1);
	return req;
}

static inline int pool_create(int dev, const char *name, uint64_t bytes, uint32_t flags)
{
	struct omnikv_ioc_pool_create req = pool_request(name, bytes, flags);
	int ret = okv_ioctl(dev, OMNIKV_IOC_POOL_CREATE, &req);

	/* Real-time kernels have small pages only. */
	if (ret == -EOPNOTSUPP) {
		req.flags |= OMNIKV_CREATE_F_ACCEPT_SMALL;
		ret = okv_ioctl(dev, OMNIKV_IOC_POOL_CREATE, &req);
	}
	return ret ? ret : req.pool_fd;
}

static inline int pool_open(int dev, const char *name, uint32_t flags)
{
	struct omnikv_ioc_pool_open req = { .flags = flags };
	int ret;

	strncpy((char *)req.name, name, sizeof(req.name) - 1);
	ret = okv_ioctl(dev, OMNIKV_IOC_POOL_OPEN, &req);
	return ret ? ret : req.pool_fd;
}

static inline int pool_destroy(int dev, int pool, uint32_t flags)
{
	struct omnikv_ioc_pool_destroy req = { .pool_fd = pool, .flags = flags };

	return okv_ioctl(dev, OMNIKV_IOC_POOL_DESTROY, &req);
}

static inline int pool_info(int dev, int pool, struct omnikv_ioc_pool_info *info)
{
	memset(info, 0, sizeof(*info));
	info->pool_fd = pool;
	return okv_ioctl(dev, OMNIKV_IOC_POOL_INFO, info);
}

static inline uint64_t pool_state_bytes(int dev, int pool, int state)
{
	struct omnikv_ioc_pool_info info;

	return pool_info(dev, pool, &info) ? ~0ULL : info.state_bytes[state];
}

/* 0 and the epoch, or a negative errno. */
static inline int pool_manage(int dev, int pool, uint32_t flags, uint32_t *epoch)
{
	struct omnikv_ioc_pool_manage req = { .pool_fd = pool, .flags = flags };
	int ret = okv_ioctl(dev, OMNIKV_IOC_POOL_MANAGE, &req);

	if (!ret && epoch)
		*epoch = req.epoch;
	return ret;
}

static inline int window_create(int dev, int pool, uint32_t kind, uint64_t bytes)
{
	struct omnikv_ioc_window_create req = { .pool_fd = pool, .kind = kind, .bytes = bytes };
	int ret = okv_ioctl(dev, OMNIKV_IOC_WINDOW_CREATE, &req);

	return ret ? ret : req.window_fd;
}

static inline void *window_map(int fd, uint64_t bytes, int prot)
{
	return mmap(NULL, bytes, prot, MAP_SHARED, fd, 0);
}

/* How many succeeded, or a negative errno of the whole. */
static inline int batch(int dev, int pool, uint32_t epoch, struct omnikv_batch_op *ops, uint32_t nr)
{
	struct omnikv_ioc_batch req = { .pool_fd = pool, .epoch = epoch, .nr_ops = nr, .ops = (uintptr_t)ops };
	int ret = okv_ioctl(dev, OMNIKV_IOC_BATCH, &req);

	return ret ? ret : (int)req.nr_done;
}

static inline int one(int dev, int pool, uint32_t epoch, struct omnikv_batch_op *op)
{
	int ret;

	op->res = 0;
	op->state = 0;
	ret = batch(dev, pool, epoch, op, 1);
	if (ret < 0)
		return ret;
	return ret == 1 ? 0 : op->res;
}

static inline int op_alloc(int dev, int pool, uint32_t nr, uint32_t flags, struct omnikv_extent *out)
{
	struct omnikv_batch_op op = { .opcode = OMNIKV_BATCH_ALLOC, .flags = flags, .extent.nr_granules = nr };
	int ret = one(dev, pool, 0, &op);

	if (!ret)
		*out = op.extent;
	return ret;
}

static inline int op_extent(int dev, int pool, uint32_t opcode, struct omnikv_extent ext)
{
	struct omnikv_batch_op op = { .opcode = opcode, .extent = ext };

	return one(dev, pool, 0, &op);
}

static inline int op_list(int dev, int pool, uint32_t opcode, struct omnikv_extent *exts, uint32_t count)
{
	struct omnikv_batch_op op = { .opcode = opcode, .addr = (uintptr_t)exts, .count = count };

	return one(dev, pool, 0, &op);
}

static inline int op_alloc_list(int dev, int pool, uint32_t nr, uint32_t flags, struct omnikv_extent *out,
				uint32_t count)
{
	struct omnikv_batch_op op = {
		.opcode = OMNIKV_BATCH_ALLOC, .flags = flags, .extent.nr_granules = nr,
		.addr = (uintptr_t)out, .count = count,
	};

	return one(dev, pool, 0, &op);
}

static inline struct omnikv_batch_op bind_op(int win, uint64_t win_off, struct omnikv_extent ext, uint64_t ext_off,
				       uint64_t bytes)
{
	return (struct omnikv_batch_op) {
		.opcode = OMNIKV_BATCH_BIND, .window_fd = win, .window_off = win_off, .extent = ext,
		.extent_off = ext_off, .bytes = bytes,
	};
}

static inline int op_bind(int dev, int pool, int win, uint64_t win_off, struct omnikv_extent ext,
			  uint64_t ext_off, uint64_t bytes)
{
	struct omnikv_batch_op op = bind_op(win, win_off, ext, ext_off, bytes);

	return one(dev, pool, 0, &op);
}

static inline int op_unbind(int dev, int pool, int win, uint64_t off, uint64_t bytes)
{
	struct omnikv_batch_op op = {
		.opcode = OMNIKV_BATCH_UNBIND, .window_fd = win, .window_off = off, .bytes = bytes,
	};

	return one(dev, pool, 0, &op);
}

/* The state word, or a negative errno. */
static inline int op_query(int dev, int pool, struct omnikv_extent ext, uint32_t *refs)
{
	struct omnikv_batch_op op = { .opcode = OMNIKV_BATCH_QUERY_EXTENT, .extent = ext };
	int ret = one(dev, pool, 0, &op);

	if (ret)
		return ret;
	if (refs)
		*refs = op.count;
	return op.state;
}

/* ---- touching memory that may not be there ---- */

static sigjmp_buf okv_jump;
static volatile sig_atomic_t okv_signal;

static inline void okv_on_fault(int sig)
{
	okv_signal = sig;
	siglongjmp(okv_jump, 1);
}

static inline void faults_catch(void)
{
	struct sigaction sa = { .sa_handler = okv_on_fault, .sa_flags = SA_NODEFER };

	sigaction(SIGBUS, &sa, NULL);
	sigaction(SIGSEGV, &sa, NULL);
}

/* The byte, or the negative number of the signal that reading it raised. */
static inline int peek(const volatile void *p)
{
	if (sigsetjmp(okv_jump, 1))
		return -okv_signal;
	return *(const volatile unsigned char *)p;
}

/* 0, or the negative number of the signal that writing it raised. */
static inline int poke(volatile void *p, int value)
{
	if (sigsetjmp(okv_jump, 1))
		return -okv_signal;
	*(volatile unsigned char *)p = value;
	return 0;
}

/* A kB figure of /proc/meminfo, or of /proc/self/smaps for the mapping at @addr. */
static inline long kb_of(const char *path, const char *key, uintptr_t addr)
{
	FILE *file = fopen(path, "r");
	char line[512];
	bool is_there = !addr;
	long kb = -1;
	size_t len = strlen(key);

	if (!file)
		return -1;
	while (fgets(line, sizeof(line), file)) {
		unsigned long from, to;

		if (addr && sscanf(line, "%lx-%lx ", &from, &to) == 2)
			is_there = from <= addr && addr < to;
		if (is_there && !strncmp(line, key, len) && line[len] == ':') {
			kb = atol(line + len + 1);
			break;
		}
	}
	fclose(file);
	return kb;
}

static inline void sleep_ms(long ms)
{
	struct timespec ts = { ms / 1000, ms % 1000 * 1000000 };

	nanosleep(&ts, NULL);
}

#endif /* OKV_TEST_H */

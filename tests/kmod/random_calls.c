// SPDX-License-Identifier: GPL-2.0-only
/*
 * 100,000 random ioctls of several processes: well-formed ones with one word changed, and noise.
 * Some of the processes are nobody, who may not even open the pool by name. Each command is also
 * called with each reserved word and unknown flag set alone.
 */
#include "kselftest_harness.h"
#include "okv_test.h"

#define PROCESSES	4
#define CALLS		25000

static const unsigned long commands[] = {
	OMNIKV_IOC_QUERY, OMNIKV_IOC_POOL_CREATE, OMNIKV_IOC_POOL_OPEN, OMNIKV_IOC_POOL_INFO,
	OMNIKV_IOC_POOL_CHOWN, OMNIKV_IOC_POOL_MANAGE, OMNIKV_IOC_WINDOW_CREATE,
	OMNIKV_IOC_BATCH, OMNIKV_IOC_BATCH, OMNIKV_IOC_BATCH, OMNIKV_IOC_BATCH, OMNIKV_IOC_EXTENT_LIST,
	OMNIKV_IOC_CLIENT_LIST, OMNIKV_IOC_CLIENT_REVOKE, OMNIKV_IOC_POOL_DESTROY,
};

static uint64_t some(unsigned int *seed, int pool, int win, void *memory)
{
	switch (rand_r(seed) % 12) {
	case 0: return pool;
	case 1: return win;
	case 2: return (uintptr_t)memory;
	case 3: return (uintptr_t)memory + rand_r(seed) % 8192;
	case 4: return ~0ULL;
	case 5: return 1ULL << rand_r(seed) % 64;
	case 6: return PAGE * (rand_r(seed) % 64);
	case 7: return rand_r(seed) % 8;
	case 8: return (uint64_t)rand_r(seed) << 32 | rand_r(seed);
	default: return 0;
	}
}

static void random_process(int nr, int shared)
{
	unsigned char *memory = mmap(NULL, 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint64_t words[128];
	unsigned int seed = nr + 1;
	int i, k, dev = dev_open(), win = -1, pool = shared;

	if (nr >= 2 && setresuid(65534, 65534, 65534))
		_exit(9);
	win = window_create(dev, pool, OMNIKV_WINDOW_RW, 64 * PAGE);
	if (win >= 0)
		window_map(win, 64 * PAGE, PROT_READ | PROT_WRITE);
	for (i = 0; i < CALLS; i++) {
		unsigned long cmd = commands[rand_r(&seed) % (sizeof(commands) / sizeof(commands[0]))];
		void *arg = words;

		memset(words, 0, sizeof(words));
		if (cmd == OMNIKV_IOC_POOL_DESTROY && rand_r(&seed) % 4000)
			continue;
		if (cmd == OMNIKV_IOC_POOL_CREATE) {
			struct omnikv_ioc_pool_create req = pool_request("rnd", UNIT * (rand_r(&seed) % 4), 1);

			if (rand_r(&seed) % 50)
				continue;
			req.name[3] = 'a' + rand_r(&seed) % 4;
			memcpy(words, &req, sizeof(req));
		} else if (cmd == OMNIKV_IOC_BATCH) {
			struct omnikv_ioc_batch req = {
				.pool_fd = pool, .nr_ops = 1 + rand_r(&seed) % 8, .ops = (uintptr_t)memory,
			};
			struct omnikv_batch_op *ops = (void *)memory;

			memset(ops, 0, 8 * sizeof(*ops));
			for (k = 0; k < 8; k++) {
				ops[k].opcode = rand_r(&seed) % 12;
				ops[k].extent.granule = rand_r(&seed) % 1024;
				ops[k].extent.generation = 1 + 4 * (rand_r(&seed) % 8);
				ops[k].extent.nr_granules = 1 + rand_r(&seed) % 16;
				if (ops[k].opcode == OMNIKV_BATCH_ALLOC)
					ops[k].extent.granule = ops[k].extent.generation = 0;
				if (ops[k].opcode == OMNIKV_BATCH_BIND || ops[k].opcode == OMNIKV_BATCH_UNBIND) {
					ops[k].window_fd = win;
					ops[k].window_off = PAGE * (rand_r(&seed) % 64);
					ops[k].bytes = PAGE * (1 + rand_r(&seed) % 16);
				}
				if (!(rand_r(&seed) % 6))
					((uint64_t *)&ops[k])[rand_r(&seed) % 10] = some(&seed, pool, win, memory + 4096);
			}
			memcpy(words, &req, sizeof(req));
		} else {
			((int *)words)[0] = pool;
			for (k = 0; k < 4; k++)
				words[rand_r(&seed) % 6] = some(&seed, pool, win, memory);
			if (rand_r(&seed) % 2)
				((int *)words)[0] = pool;
		}
		if (!(rand_r(&seed) % 8))
			words[rand_r(&seed) % 16] = some(&seed, pool, win, memory);
		if (!(rand_r(&seed) % 64))
			cmd ^= 1ul << rand_r(&seed) % 32;
		if (!(rand_r(&seed) % 64))
			arg = (void *)(uintptr_t)some(&seed, pool, win, memory);
		if (ioctl(dev, cmd, arg) == 0) {
			int fd = cmd == OMNIKV_IOC_POOL_CREATE ? ((struct omnikv_ioc_pool_create *)words)->pool_fd :
				 cmd == OMNIKV_IOC_POOL_OPEN ? ((struct omnikv_ioc_pool_open *)words)->pool_fd :
				 cmd == OMNIKV_IOC_WINDOW_CREATE ? ((struct omnikv_ioc_window_create *)words)->window_fd : -1;

			if (fd > 2 && fd != shared && fd != dev && fd != win)
				close(fd);
		}
		if (!(i % 5000)) {
			/* Revoked, perhaps: come again. */
			close(dev);
			dev = dev_open();
			close(win);
			win = window_create(dev, pool, OMNIKV_WINDOW_RW, 64 * PAGE);
		}
	}
	_exit(0);
}

TEST(random_calls_of_several_processes)
{
	struct omnikv_ioc_query query = { 0 };
	int dev = dev_open(), pool, i, status, again;
	pid_t pids[PROCESSES];

	ASSERT_GE(dev, 0);
	pool = pool_create(dev, "fuzzed", 2 * UNIT, OMNIKV_CREATE_F_TRANSIENT);
	ASSERT_GE(pool, 0);
	for (i = 0; i < PROCESSES; i++) {
		pids[i] = fork();
		if (!pids[i])
			random_process(i, pool);
	}
	for (i = 0; i < PROCESSES; i++) {
		waitpid(pids[i], &status, 0);
		EXPECT_TRUE(WIFEXITED(status));
		EXPECT_EQ(0, WEXITSTATUS(status));
	}
	close(pool);
	/* The module still works. */
	again = pool_create(dev, "again", UNIT, OMNIKV_CREATE_F_TRANSIENT);
	EXPECT_GE(again, 0);
	close(again);
	EXPECT_EQ(0, okv_ioctl(dev, OMNIKV_IOC_QUERY, &query));
	EXPECT_EQ(0, query.used_bytes);
	close(dev);
}

/* Offsets of words that must be zero, and of flag words with all known bits known. */
static const struct {
	unsigned long	cmd;
	unsigned int	offset;
	uint32_t	value;
} words[] = {
	{ OMNIKV_IOC_QUERY, offsetof(struct omnikv_ioc_query, flags), 1 },
	{ OMNIKV_IOC_POOL_CREATE, offsetof(struct omnikv_ioc_pool_create, flags), 1u << 4 },
	{ OMNIKV_IOC_POOL_CREATE, offsetof(struct omnikv_ioc_pool_create, mode), 01600 },
	{ OMNIKV_IOC_POOL_CREATE, offsetof(struct omnikv_ioc_pool_create, numa), 4 },
	{ OMNIKV_IOC_POOL_CREATE, offsetof(struct omnikv_ioc_pool_create, nodes), 1 },
	{ OMNIKV_IOC_POOL_CREATE, offsetof(struct omnikv_ioc_pool_create, pool_fd), 1 },
	{ OMNIKV_IOC_POOL_CREATE, offsetof(struct omnikv_ioc_pool_create, small_units), 1 },
	{ OMNIKV_IOC_POOL_OPEN, offsetof(struct omnikv_ioc_pool_open, flags), 2 },
	{ OMNIKV_IOC_POOL_OPEN, offsetof(struct omnikv_ioc_pool_open, pool_fd), 1 },
	{ OMNIKV_IOC_POOL_INFO, offsetof(struct omnikv_ioc_pool_info, flags), 1 },
	{ OMNIKV_IOC_POOL_CHOWN, offsetof(struct omnikv_ioc_pool_chown, flags), 1 },
	{ OMNIKV_IOC_POOL_CHOWN, offsetof(struct omnikv_ioc_pool_chown, reserved), 1 },
	{ OMNIKV_IOC_POOL_DESTROY, offsetof(struct omnikv_ioc_pool_destroy, flags), 2 },
	{ OMNIKV_IOC_POOL_MANAGE, offsetof(struct omnikv_ioc_pool_manage, flags), 4 },
	{ OMNIKV_IOC_POOL_MANAGE, offsetof(struct omnikv_ioc_pool_manage, flags), 3 },
	{ OMNIKV_IOC_POOL_MANAGE, offsetof(struct omnikv_ioc_pool_manage, epoch), 1 },
	{ OMNIKV_IOC_POOL_MANAGE, offsetof(struct omnikv_ioc_pool_manage, reserved), 1 },
	{ OMNIKV_IOC_WINDOW_CREATE, offsetof(struct omnikv_ioc_window_create, flags), 1 },
	{ OMNIKV_IOC_WINDOW_CREATE, offsetof(struct omnikv_ioc_window_create, kind), 3 },
	{ OMNIKV_IOC_WINDOW_CREATE, offsetof(struct omnikv_ioc_window_create, window_fd), 1 },
	{ OMNIKV_IOC_WINDOW_CREATE, offsetof(struct omnikv_ioc_window_create, bytes), 4097 },
	{ OMNIKV_IOC_BATCH, offsetof(struct omnikv_ioc_batch, flags), 1 },
	{ OMNIKV_IOC_BATCH, offsetof(struct omnikv_ioc_batch, nr_done), 1 },
	{ OMNIKV_IOC_BATCH, offsetof(struct omnikv_ioc_batch, reserved), 1 },
	{ OMNIKV_IOC_BATCH, offsetof(struct omnikv_ioc_batch, nr_ops), OMNIKV_BATCH_MAX + 1 },
	{ OMNIKV_IOC_EXTENT_LIST, offsetof(struct omnikv_ioc_extent_list, flags), 1 },
	{ OMNIKV_IOC_EXTENT_LIST, offsetof(struct omnikv_ioc_extent_list, states), 1 },
	{ OMNIKV_IOC_EXTENT_LIST, offsetof(struct omnikv_ioc_extent_list, states), 1u << 6 },
	{ OMNIKV_IOC_EXTENT_LIST, offsetof(struct omnikv_ioc_extent_list, count), OMNIKV_BATCH_MAX + 1 },
	{ OMNIKV_IOC_CLIENT_LIST, offsetof(struct omnikv_ioc_client_list, flags), 1 },
	{ OMNIKV_IOC_CLIENT_LIST, offsetof(struct omnikv_ioc_client_list, reserved), 1 },
	{ OMNIKV_IOC_CLIENT_REVOKE, offsetof(struct omnikv_ioc_client_revoke, flags), 1 },
};

/* A request that would be right, or would fail for another reason than its form. */
static void valid(unsigned long cmd, int pool, unsigned char *req, void *memory)
{
	static struct omnikv_batch_op nop;

	memset(req, 0, 1024);
	memset(&nop, 0, sizeof(nop));
	if (cmd == OMNIKV_IOC_POOL_CREATE) {
		struct omnikv_ioc_pool_create create = pool_request("w", UNIT, OMNIKV_CREATE_F_TRANSIENT);

		memcpy(req, &create, sizeof(create));
	} else if (cmd == OMNIKV_IOC_POOL_OPEN) {
		strcpy((char *)((struct omnikv_ioc_pool_open *)req)->name, "words");
	} else if (cmd == OMNIKV_IOC_WINDOW_CREATE) {
		*(struct omnikv_ioc_window_create *)req = (struct omnikv_ioc_window_create) { .pool_fd = pool, .bytes = PAGE };
	} else if (cmd == OMNIKV_IOC_BATCH) {
		*(struct omnikv_ioc_batch *)req = (struct omnikv_ioc_batch) { .pool_fd = pool, .nr_ops = 1, .ops = (uintptr_t)&nop };
	} else if (cmd == OMNIKV_IOC_EXTENT_LIST) {
		*(struct omnikv_ioc_extent_list *)req = (struct omnikv_ioc_extent_list) {
			.pool_fd = pool, .states = 2, .count = 1, .entries = (uintptr_t)memory };
	} else if (cmd == OMNIKV_IOC_CLIENT_LIST) {
		*(struct omnikv_ioc_client_list *)req = (struct omnikv_ioc_client_list) {
			.pool_fd = pool, .count = 1, .entries = (uintptr_t)memory };
	} else if (cmd != OMNIKV_IOC_QUERY) {
		*(int *)req = pool;
	}
}

TEST(each_unknown_flag_and_reserved_word_is_refused)
{
	static unsigned char req[1024], was[1024], memory[8192];
	int dev = dev_open(), pool = pool_create(dev, "words", UNIT, OMNIKV_CREATE_F_TRANSIENT);
	size_t i;

	ASSERT_GE(pool, 0);
	for (i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		valid(words[i].cmd, pool, req, memory);
		memcpy(req + words[i].offset, &words[i].value, 4);
		memcpy(was, req, sizeof(req));
		EXPECT_EQ(-EINVAL, okv_ioctl(dev, words[i].cmd, req)) {
			TH_LOG("command %lu, offset %u, value %u", words[i].cmd & 0xff, words[i].offset, words[i].value);
		}
		/* On an error the struct is left as it was. */
		EXPECT_EQ(0, memcmp(was, req, sizeof(req)));
	}
	close(pool);
	close(dev);
}

TEST(structs_may_be_longer_but_not_shorter)
{
	static unsigned char req[1024], memory[8192];
	int dev = dev_open(), pool = pool_create(dev, "words", UNIT, OMNIKV_CREATE_F_TRANSIENT);
	unsigned long cmd = OMNIKV_IOC_QUERY;
	size_t size = _IOC_SIZE(cmd);

	ASSERT_GE(pool, 0);
	valid(cmd, pool, req, memory);
	EXPECT_EQ(0, okv_ioctl(dev, _IOC(_IOC_READ | _IOC_WRITE, OMNIKV_IOC_TYPE, 0, size + 8), req));
	valid(cmd, pool, req, memory);
	req[size] = 1;
	EXPECT_EQ(-E2BIG, okv_ioctl(dev, _IOC(_IOC_READ | _IOC_WRITE, OMNIKV_IOC_TYPE, 0, size + 8), req));
	valid(cmd, pool, req, memory);
	EXPECT_EQ(-EINVAL, okv_ioctl(dev, _IOC(_IOC_READ | _IOC_WRITE, OMNIKV_IOC_TYPE, 0, size - 8), req));
	EXPECT_EQ(-ENOTTY, okv_ioctl(dev, _IOC(_IOC_READ | _IOC_WRITE, OMNIKV_IOC_TYPE, 6, size), req));
	EXPECT_EQ(-ENOTTY, okv_ioctl(dev, _IOC(_IOC_READ | _IOC_WRITE, OMNIKV_IOC_TYPE, 99, size), req));
	EXPECT_EQ(-ENOTTY, okv_ioctl(dev, _IOC(_IOC_READ | _IOC_WRITE, 0x12, 0, size), req));
	EXPECT_EQ(-EFAULT, okv_ioctl(dev, cmd, (void *)8));
	close(pool);
	close(dev);
}

TEST_HARNESS_MAIN

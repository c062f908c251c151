// SPDX-License-Identifier: GPL-2.0-only
/*
 * A device's long-term pin of the linear map: ibv_reg_mr() over a soft RDMA device on lo, which
 * pins pages as a GPU's driver does. What is registered stays where it is and stays mapped, is
 * not given to the next owner while its process lives, and goes back with it.
 *
 * Speaks to uverbs and to RDMA's netlink itself, so that the guest needs no library for them.
 */
#include "kselftest_harness.h"
#include "okv_test.h"

#include <linux/netlink.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/rdma_netlink.h>
#include <sys/resource.h>
#include <sys/socket.h>

#define POOL_BYTES	(16 * UNIT)
#define UVERBS		"/dev/infiniband/uverbs0"
#define ACCESS		7	/* local write, remote write, remote read */

/* ---- the device ----------------------------------------------------------------------- */

static size_t put_string(char *at, int type, const char *text)
{
	struct nlattr *attr = (struct nlattr *)at;

	attr->nla_type = type;
	attr->nla_len = NLA_HDRLEN + strlen(text) + 1;
	strcpy(at + NLA_HDRLEN, text);
	return NLA_ALIGN(attr->nla_len);
}

/* "rdma link add rxe0 type rxe netdev lo" */
static int link_add(void)
{
	struct {
		struct nlmsghdr	head;
		char		attrs[128];
	} req = { .head = {
		.nlmsg_type = RDMA_NL_GET_TYPE(RDMA_NL_NLDEV, RDMA_NLDEV_CMD_NEWLINK),
		.nlmsg_flags = NLM_F_REQUEST | NLM_F_ACK,
	} };
	char answer[512];
	struct nlmsghdr *head = (struct nlmsghdr *)answer;
	size_t len = 0;
	int fd = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_RDMA), ret = -EIO;

	if (fd < 0)
		return -errno;
	len += put_string(req.attrs + len, RDMA_NLDEV_ATTR_DEV_NAME, "rxe0");
	len += put_string(req.attrs + len, RDMA_NLDEV_ATTR_NDEV_NAME, "lo");
	len += put_string(req.attrs + len, RDMA_NLDEV_ATTR_LINK_TYPE, "rxe");
	req.head.nlmsg_len = NLMSG_HDRLEN + len;
	if (send(fd, &req, req.head.nlmsg_len, 0) < 0)
		ret = -errno;
	else if (recv(fd, answer, sizeof(answer), 0) >= (ssize_t)NLMSG_LENGTH(sizeof(struct nlmsgerr)) &&
		 head->nlmsg_type == NLMSG_ERROR)
		ret = ((struct nlmsgerr *)NLMSG_DATA(head))->error;
	close(fd);
	return ret;
}

/* NULL, or why there is no device. */
static const char *device_why(void)
{
	static char why[80];
	int ret, i;

	if (!access(UVERBS, R_OK | W_OK))
		return NULL;
	system("modprobe rdma_rxe 2>/dev/null; modprobe crc32_generic 2>/dev/null");
	ret = link_add();
	for (i = 0; !ret && i < 100; i++) {
		if (!access(UVERBS, R_OK | W_OK))
			return NULL;
		sleep_ms(10);
	}
	snprintf(why, sizeof(why), "no soft RDMA device here: %s", strerror(ret ? -ret : ENODEV));
	return why;
}

/* ---- its commands --------------------------------------------------------------------- */

static int command(int fd, int number, void *body, size_t bytes, size_t answer_bytes)
{
	char buf[256];
	struct ib_uverbs_cmd_hdr *head = (void *)buf;

	head->command = number;
	head->in_words = (sizeof(*head) + bytes) / 4;
	head->out_words = answer_bytes / 4;
	memcpy(buf + sizeof(*head), body, bytes);
	return write(fd, buf, sizeof(*head) + bytes) < 0 ? -errno : 0;
}

struct context {
	int		fd;
	uint32_t	pd;
};

static int context_open(struct context *ctx)
{
	struct ib_uverbs_get_context_resp told;
	struct ib_uverbs_get_context get = { .response = (uintptr_t)&told };
	struct ib_uverbs_alloc_pd_resp pd = { 0 };
	struct ib_uverbs_alloc_pd alloc = { .response = (uintptr_t)&pd };
	int ret;

	ctx->fd = open(UVERBS, O_RDWR | O_CLOEXEC);
	if (ctx->fd < 0)
		return -errno;
	ret = command(ctx->fd, IB_USER_VERBS_CMD_GET_CONTEXT, &get, sizeof(get), sizeof(told));
	if (!ret)
		ret = command(ctx->fd, IB_USER_VERBS_CMD_ALLOC_PD, &alloc, sizeof(alloc), sizeof(pd));
	ctx->pd = pd.pd_handle;
	return ret;
}

/* ibv_reg_mr() */
static int reg_mr(struct context *ctx, void *at, size_t bytes, uint32_t *mr)
{
	struct ib_uverbs_reg_mr_resp told = { 0 };
	struct ib_uverbs_reg_mr reg = {
		.response = (uintptr_t)&told, .start = (uintptr_t)at, .hca_va = (uintptr_t)at, .length = bytes,
		.pd_handle = ctx->pd, .access_flags = ACCESS,
	};
	int ret = command(ctx->fd, IB_USER_VERBS_CMD_REG_MR, &reg, sizeof(reg), sizeof(told));

	*mr = told.mr_handle;
	return ret;
}

static int dereg_mr(struct context *ctx, uint32_t mr)
{
	struct ib_uverbs_dereg_mr dereg = { .mr_handle = mr };

	return command(ctx->fd, IB_USER_VERBS_CMD_DEREG_MR, &dereg, sizeof(dereg), 0);
}

/* ---- tests ---------------------------------------------------------------------------- */

FIXTURE(rdma)
{
	int dev, pool;
	unsigned char *base;
	struct context ctx;
};

FIXTURE_SETUP(rdma)
{
	const char *why = device_why();

	if (why)
		SKIP(return, "%s", why);
	faults_catch();
	self->dev = dev_open();
	ASSERT_GE(self->dev, 0);
	self->pool = pool_create(self->dev, "rdma", POOL_BYTES, 0);
	ASSERT_GE(self->pool, 0);
	self->base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, self->pool, 0);
	ASSERT_NE(MAP_FAILED, (void *)self->base);
	ASSERT_EQ(0, context_open(&self->ctx));
}

FIXTURE_TEARDOWN(rdma)
{
	if (!self->base)
		return;
	close(self->ctx.fd);
	munmap(self->base, POOL_BYTES);
	pool_destroy(self->dev, self->pool, OMNIKV_DESTROY_F_FORCE);
	close(self->pool);
	close(self->dev);
}

static void fill(unsigned char *at, unsigned int seed)
{
	size_t i;

	for (i = 0; i < POOL_BYTES; i += 512)
		*(uint64_t *)(at + i) = (i + seed) * 0x9e3779b97f4a7c15ull;
}

static size_t wrong(const unsigned char *at, unsigned int seed)
{
	size_t i, nr = 0;

	for (i = 0; i < POOL_BYTES; i += 512)
		nr += *(const uint64_t *)(at + i) != (i + seed) * 0x9e3779b97f4a7c15ull;
	return nr;
}

TEST_F(rdma, whole_map_is_pinned_where_it_is)
{
	unsigned char *other = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, self->pool, 0);
	long kb = POOL_BYTES >> 10;
	uint32_t mr;
	int round;

	fill(self->base, 1);
	for (round = 0; round < 3; round++) {
		ASSERT_EQ(0, reg_mr(&self->ctx, self->base, POOL_BYTES, &mr));
		/* Nothing was copied elsewhere or split: both maps show the same bytes by 2-MiB entries. */
		EXPECT_EQ(0, wrong(self->base, round + 1));
		EXPECT_EQ(0, wrong(other, round + 1));
		fill(other, round + 2);
		EXPECT_EQ(0, wrong(self->base, round + 2));
		EXPECT_EQ(kb, kb_of("/proc/self/smaps", "ShmemPmdMapped", (uintptr_t)self->base));
		EXPECT_EQ(0, dereg_mr(&self->ctx, mr));
	}
	/* In chunks too, as a library does that serves before it has registered everything. */
	for (round = 0; round < 16; round++)
		EXPECT_EQ(0, reg_mr(&self->ctx, self->base + round * UNIT, UNIT, &mr));
	EXPECT_EQ(0, wrong(other, 4));
	munmap(other, POOL_BYTES);
}

TEST_F(rdma, registered_memory_rests_while_its_process_lives)
{
	struct omnikv_ioc_pool_info info;
	int ready[2], go[2], i, status;
	char byte;
	pid_t pid;

	ASSERT_EQ(0, pipe(ready));
	ASSERT_EQ(0, pipe(go));
	pid = fork();
	if (!pid) {
		int dev = dev_open(), pool = pool_open(dev, "rdma", 0);
		unsigned char *base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, pool, 0);
		struct omnikv_extent ext;
		struct context ctx;
		uint32_t mr;

		/* Two units: of one alone the rest would be a neighbour's. */
		if (context_open(&ctx) || op_alloc(dev, pool, 1024, 0, &ext) ||
		    reg_mr(&ctx, base, POOL_BYTES, &mr))
			_exit(1);
		/* The client ends; the process, its map and the device's pin stay. */
		close(dev);
		if (write(ready[1], "", 1) != 1 || read(go[0], &byte, 1) != 1)
			_exit(2);
		_exit(0);
	}
	ASSERT_EQ(1, read(ready[0], &byte, 1));
	/* quarantine_ms is one second, and does not begin before the process has ended. */
	for (i = 0; i < 15; i++) {
		ASSERT_EQ(0, pool_info(self->dev, self->pool, &info));
		ASSERT_EQ(1024 * PAGE, info.state_bytes[OMNIKV_EXTENT_QUARANTINED]);
		sleep_ms(100);
	}
	ASSERT_EQ(1, write(go[1], "", 1));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, status);
	for (i = 0; i < 500; i++) {
		ASSERT_EQ(0, pool_info(self->dev, self->pool, &info));
		if (info.state_bytes[OMNIKV_EXTENT_FREE] == POOL_BYTES)
			break;
		sleep_ms(10);
	}
	EXPECT_EQ(POOL_BYTES, info.state_bytes[OMNIKV_EXTENT_FREE]);
}

TEST_F(rdma, unregistered_memory_is_free_when_the_file_is_closed)
{
	int dev = dev_open(), pool = pool_open(dev, "rdma", 0);
	struct omnikv_ioc_pool_info info;
	struct omnikv_extent exts[4];
	uint32_t mr;

	ASSERT_EQ(0, op_alloc_list(dev, pool, 512, 0, exts, 4));
	memset(self->base + exts[0].granule * PAGE, 1, UNIT);
	/* Another's unit is registered by this process, these are not. */
	ASSERT_EQ(0, reg_mr(&self->ctx, self->base + 8 * UNIT, UNIT, &mr));
	close(pool);
	close(dev);
	ASSERT_EQ(0, pool_info(self->dev, self->pool, &info));
	EXPECT_EQ(0, info.state_bytes[OMNIKV_EXTENT_QUARANTINED]);
	EXPECT_EQ(POOL_BYTES, info.state_bytes[OMNIKV_EXTENT_FREE]);
}

TEST_F(rdma, pool_may_end_under_a_registration)
{
	long huge = kb_of("/proc/meminfo", "ShmemHugePages", 0);
	uint32_t mr;
	int i;

	ASSERT_EQ(0, reg_mr(&self->ctx, self->base, POOL_BYTES, &mr));
	fill(self->base, 9);
	EXPECT_EQ(0, pool_destroy(self->dev, self->pool, OMNIKV_DESTROY_F_FORCE));
	EXPECT_EQ(0, wrong(self->base, 9));
	munmap(self->base, POOL_BYTES);
	close(self->pool);
	EXPECT_EQ(0, dereg_mr(&self->ctx, mr));
	for (i = 0; i < 100 && kb_of("/proc/meminfo", "ShmemHugePages", 0) > huge - (long)(POOL_BYTES >> 10); i++)
		sleep_ms(10);
	EXPECT_EQ(huge - (long)(POOL_BYTES >> 10), kb_of("/proc/meminfo", "ShmemHugePages", 0));
}

TEST_F(rdma, memlock_limit_is_an_error_and_nothing_stays)
{
	struct omnikv_ioc_pool_info info;
	int status;
	pid_t pid = fork();

	if (!pid) {
		struct rlimit limit = { 64 << 10, 64 << 10 };
		int pool = pool_open(dev_open(), "rdma", 0);
		void *base = mmap(NULL, POOL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, pool, 0);
		struct context ctx;
		uint32_t mr;

		/* uverbs wants calls by whom opened it. */
		if (setrlimit(RLIMIT_MEMLOCK, &limit) || setresuid(65534, 65534, 65534) || context_open(&ctx))
			_exit(1);
		if (reg_mr(&ctx, base, POOL_BYTES, &mr) != -ENOMEM)
			_exit(2);
		_exit(0);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	EXPECT_EQ(0, WEXITSTATUS(status));
	ASSERT_EQ(0, pool_info(self->dev, self->pool, &info));
	EXPECT_EQ(POOL_BYTES, info.state_bytes[OMNIKV_EXTENT_FREE]);
}

TEST_HARNESS_MAIN

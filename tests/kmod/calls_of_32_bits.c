// SPDX-License-Identifier: GPL-2.0-only
/*
 * A 32-bit program calls the module: the same structs at the same offsets, pointers that travel
 * as 64-bit words, and the same numbers of commands. Has no libc, since a 64-bit machine has none
 * for it; system calls go by the 32-bit gate.
 */
#include <linux/omnikv.h>

#define PAGE		4096u
#define UNIT		(2u << 20)

#define NR_EXIT		1
#define NR_WRITE	4
#define NR_OPEN		5
#define NR_CLOSE	6
#define NR_IOCTL	54
#define NR_MMAP		90	/* by a struct of six words */
#define NR_MUNMAP	91
#define O_RDWR		2
#define PROT_RW		3
#define MAP_SHARED	1
#define ENOTTY		25

static long sys(long nr, long a, long b, long c)
{
	long ret;

	__asm__ volatile("int $0x80" : "=a"(ret) : "a"(nr), "b"(a), "c"(b), "d"(c) : "memory");
	return ret;
}

/* The compiler's own calls. */
void *memset(void *to, int byte, unsigned long n);
void *memset(void *to, int byte, unsigned long n)
{
	unsigned char *at = to;

	while (n--)
		*at++ = (unsigned char)byte;
	return to;
}

void *memcpy(void *to, const void *from, unsigned long n);
void *memcpy(void *to, const void *from, unsigned long n)
{
	unsigned char *at = to;
	const unsigned char *src = from;

	while (n--)
		*at++ = *src++;
	return to;
}

/* ---- TAP ------------------------------------------------------------------------------ */

static int nr_tests, nr_failed;

static void print(const char *text)
{
	unsigned int len = 0;

	while (text[len])
		len++;
	sys(NR_WRITE, 1, (long)text, len);
}

static void print_number(long value)
{
	char digits[16];
	int at = sizeof(digits) - 1;
	unsigned long left = value < 0 ? -(unsigned long)value : (unsigned long)value;

	digits[at] = '\0';
	do {
		digits[--at] = '0' + left % 10;
		left /= 10;
	} while (left);
	if (value < 0)
		digits[--at] = '-';
	print(&digits[at]);
}

static void is(const char *what, long got, long expected)
{
	print(got == expected ? "ok " : "not ok ");
	print_number(++nr_tests);
	print(" - ");
	print(what);
	print("\n");
	if (got == expected)
		return;
	nr_failed++;
	print("# got ");
	print_number(got);
	print(", expected ");
	print_number(expected);
	print("\n");
}

/* ---- short forms ---------------------------------------------------------------------- */

static __u64 addr(const void *at)
{
	return (unsigned long)at;
}

static long batch(int dev, int pool, struct omnikv_batch_op *ops, unsigned int nr)
{
	struct omnikv_ioc_batch req = { .pool_fd = pool, .nr_ops = nr, .ops = addr(ops) };
	long ret = sys(NR_IOCTL, dev, (long)OMNIKV_IOC_BATCH, (long)&req);

	return ret ? ret : (long)req.nr_done;
}

static unsigned char *map(int fd, unsigned int bytes)
{
	unsigned long words[6] = { 0, bytes, PROT_RW, MAP_SHARED, (unsigned long)fd, 0 };

	return (unsigned char *)sys(NR_MMAP, (long)words, 0, 0);
}

static int is_error(const void *at)
{
	return (unsigned long)at > 0xfffff000ul;
}

static void calls(void)
{
	struct omnikv_ioc_query query = { 0 };
	struct omnikv_ioc_pool_create create = {
		.flags = OMNIKV_CREATE_F_TRANSIENT | OMNIKV_CREATE_F_ACCEPT_SMALL, .bytes = 4 * UNIT, .mode = 0600, .name = "of-32-bits",
	};
	struct omnikv_ioc_pool_info info = { 0 };
	struct omnikv_ioc_window_create window = { .kind = OMNIKV_WINDOW_RW, .bytes = 16 * PAGE };
	struct omnikv_ioc_pool_manage manage = { 0 };
	struct omnikv_extent exts[3];
	struct omnikv_extent_entry entries[8];
	struct omnikv_ioc_extent_list list = { .states = 1u << OMNIKV_EXTENT_SEALED, .count = 8, .entries = addr(entries) };
	struct omnikv_batch_op ops[4] = {
		{ .opcode = OMNIKV_BATCH_ALLOC, .extent.nr_granules = 4, .addr = addr(exts), .count = 3 },
	};
	struct omnikv_client_entry client;
	struct omnikv_ioc_client_list clients = { .count = 1, .entries = addr(&client) };
	unsigned char *linear, *shown;
	int dev, pool, i;

	dev = (int)sys(NR_OPEN, (long)"/dev/omnikv", O_RDWR, 0);
	is("opens the device", dev >= 0, 1);
	is("asks for the version", sys(NR_IOCTL, dev, (long)OMNIKV_IOC_QUERY, (long)&query), 0);
	is("which is ours", (long)query.version, OMNIKV_UAPI_VERSION);
	is("an unknown command is told so", sys(NR_IOCTL, dev, 0x1234, 0), -ENOTTY);
	is("creates a pool", sys(NR_IOCTL, dev, (long)OMNIKV_IOC_POOL_CREATE, (long)&create), 0);
	pool = info.pool_fd = window.pool_fd = manage.pool_fd = list.pool_fd = clients.pool_fd = create.pool_fd;
	is("asks for its figures", sys(NR_IOCTL, dev, (long)OMNIKV_IOC_POOL_INFO, (long)&info), 0);
	is("its size is right", info.bytes == 4 * UNIT && info.state_bytes[OMNIKV_EXTENT_FREE] == 4 * UNIT, 1);
	is("its name too", info.name[0] == 'o' && info.name[9] == 's' && !info.name[10], 1);
	is("manages it", sys(NR_IOCTL, dev, (long)OMNIKV_IOC_POOL_MANAGE, (long)&manage), 0);
	is("in the first epoch", (long)manage.epoch, 1);
	linear = map(pool, 4 * UNIT);
	is("maps it", !is_error(linear), 1);
	is("allocates by a list", batch(dev, pool, ops, 1), 1);
	is("of three extents", exts[0].nr_granules == 4 && exts[2].granule != exts[1].granule, 1);
	is("creates a window", sys(NR_IOCTL, dev, (long)OMNIKV_IOC_WINDOW_CREATE, (long)&window), 0);
	shown = map(window.window_fd, 16 * PAGE);
	is("maps it too", !is_error(shown), 1);
	if (is_error(linear) || is_error(shown))
		return;

	memset(ops, 0, sizeof(ops));
	for (i = 0; i < 3; i++) {
		ops[i].opcode = OMNIKV_BATCH_BIND;
		ops[i].extent = exts[i];
		ops[i].window_fd = window.window_fd;
		ops[i].window_off = (__u64)(2 - i) * 4 * PAGE;
		ops[i].bytes = 4 * PAGE;
	}
	is("binds three", batch(dev, pool, ops, 3), 3);
	for (i = 0; i < 3; i++)
		shown[(2 - i) * 4 * PAGE + 7] = (unsigned char)(0x40 + i);
	for (i = 0; i < 3; i++)
		is("a byte written in the window is in the extent",
		   linear[(unsigned long)exts[i].granule * PAGE + 7], 0x40 + i);
	memset(ops, 0, sizeof(ops));
	ops[0].opcode = OMNIKV_BATCH_SEAL;
	ops[0].addr = addr(exts);
	ops[0].count = 3;
	ops[1].opcode = OMNIKV_BATCH_QUERY_EXTENT;
	ops[1].extent = exts[1];
	is("seals and asks", batch(dev, pool, ops, 2), 2);
	is("the state is told", (long)ops[1].state, OMNIKV_EXTENT_SEALED);
	is("lists what is sealed", sys(NR_IOCTL, dev, (long)OMNIKV_IOC_EXTENT_LIST, (long)&list), 0);
	is("all three", (long)list.count, 3);
	is("and the end of it", list.from == ~0ULL, 1);
	is("lists clients", sys(NR_IOCTL, dev, (long)OMNIKV_IOC_CLIENT_LIST, (long)&clients), 0);
	is("itself", client.is_manager == 1 && clients.count == 1, 1);
	/* The upper half of a pointer is no matter of 32 bits: it must be read. */
	memset(ops, 0, sizeof(ops));
	ops[0].opcode = OMNIKV_BATCH_FREE;
	ops[0].addr = addr(exts) | 1ULL << 40;
	ops[0].count = 3;
	is("a batch with a bad address runs", batch(dev, pool, ops, 1), 0);
	is("and its operation is EFAULT", ops[0].res, -14);
	ops[0].addr = addr(exts);
	ops[0].res = 0;
	is("the right one frees", batch(dev, pool, ops, 1), 1);
	sys(NR_MUNMAP, (long)shown, 16 * PAGE, 0);
	sys(NR_MUNMAP, (long)linear, 4 * UNIT, 0);
	is("closes", sys(NR_CLOSE, window.window_fd, 0, 0) | sys(NR_CLOSE, pool, 0, 0) | sys(NR_CLOSE, dev, 0, 0), 0);
}

void _start(void);
__attribute__((force_align_arg_pointer)) void _start(void)
{
	calls();
	print("1..");
	print_number(nr_tests);
	print("\n");
	sys(NR_EXIT, nr_failed != 0, 0, 0);
}

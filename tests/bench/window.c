// SPDX-License-Identifier: GPL-2.0-only
/*
 * Binding into a window of the kernel module against mapping a memfd, in one guest: 64-KiB
 * granules, rebound in random order, arms interleaved over several rounds. Reports medians a
 * granule, their spread, and ratios of the two arms, which are what emulation leaves of a
 * measurement; it does not pass or fail by them. Prints TAP with figures as diagnostics.
 *
 * usage: window [GRANULES [ROUNDS]]      needs /dev/omnikv and CAP_SYS_ADMIN
 */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <linux/omnikv.h>

#define GRANULE		(64ul << 10)
#define PAGE		4096ul
#define POOL_BYTES	(64ul << 20)
#define NR_SOURCES	(POOL_BYTES / GRANULE)
#define ROUNDS_MAX	16
#define MANY		1048576ul

enum arm { BATCH, SINGLE, LAZY, TOUCH, POPULATE, NR_ARMS };

static const char *const names[NR_ARMS] = {
	[BATCH] = "bind, 4096 a call", [SINGLE] = "bind, one a call", [LAZY] = "bind lazily, 4096 a call",
	[TOUCH] = "first touch of a lazy bind", [POPULATE] = "mmap(MAP_FIXED|MAP_POPULATE) of a memfd",
};

static double figures[NR_ARMS][ROUNDS_MAX];
static struct omnikv_batch_op ops[OMNIKV_BATCH_MAX];
static struct omnikv_extent sources[NR_SOURCES];
static uint32_t *order;
static int dev, pool, win, memfd;
static unsigned char *window, *region;
static unsigned long granules;

static void die(const char *what)
{
	printf("Bail out! %s: %s\n", what, strerror(errno));
	exit(1);
}

static double now_us(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1e6 + ts.tv_nsec / 1e3;
}

static void submit(unsigned int nr)
{
	struct omnikv_ioc_batch req = { .pool_fd = pool, .nr_ops = nr, .ops = (uintptr_t)ops };

	if (ioctl(dev, OMNIKV_IOC_BATCH, &req) || req.nr_done != nr)
		die("batch");
}

static void shuffle(void)
{
	unsigned long i;

	for (i = granules; i > 1; i--) {
		unsigned long k = (unsigned long)rand() % i;
		uint32_t swap = order[i - 1];

		order[i - 1] = order[k];
		order[k] = swap;
	}
}

static void bind_all(unsigned int at_once, uint32_t flags)
{
	unsigned long i;
	unsigned int nr = 0;

	for (i = 0; i < granules; i++) {
		ops[nr++] = (struct omnikv_batch_op) {
			.opcode = OMNIKV_BATCH_BIND, .flags = flags, .extent = sources[order[i] % NR_SOURCES],
			.window_fd = win, .window_off = i * GRANULE, .bytes = GRANULE,
		};
		if (nr == at_once || i + 1 == granules) {
			submit(nr);
			nr = 0;
		}
	}
}

static void touch_all(void)
{
	unsigned long i;

	for (i = 0; i < granules; i++)
		*(volatile unsigned char *)(window + i * GRANULE);
}

static void map_all(void)
{
	unsigned long i;

	for (i = 0; i < granules; i++)
		if (mmap(region + i * GRANULE, GRANULE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
			 memfd, (off_t)(order[i] % NR_SOURCES * GRANULE)) == MAP_FAILED)
			die("mmap");
}

static int compare(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(enum arm arm, int rounds)
{
	qsort(figures[arm], rounds, sizeof(figures[arm][0]), compare);
	return figures[arm][rounds / 2];
}

static void round_of_arms(int round)
{
	double from;

#define TIMED(arm, what) do { from = now_us(); what; figures[arm][round] = (now_us() - from) / granules; } while (0)
	shuffle();
	TIMED(BATCH, bind_all(OMNIKV_BATCH_MAX, 0));
	shuffle();
	TIMED(POPULATE, map_all());
	shuffle();
	TIMED(SINGLE, bind_all(1, 0));
	shuffle();
	TIMED(LAZY, bind_all(OMNIKV_BATCH_MAX, OMNIKV_BATCH_BIND_F_LAZY));
	TIMED(TOUCH, touch_all());
}

static void make_pool(void)
{
	struct omnikv_ioc_pool_create create = {
		.flags = OMNIKV_CREATE_F_TRANSIENT | OMNIKV_CREATE_F_TRUSTED, .bytes = POOL_BYTES, .mode = 0600,
		.name = "bench",
	};
	struct omnikv_ioc_window_create make = { .kind = OMNIKV_WINDOW_RW, .bytes = granules * GRANULE };

	dev = open("/dev/omnikv", O_RDWR | O_CLOEXEC);
	if (dev < 0) {
		puts("1..0 # SKIP no /dev/omnikv");
		exit(4);
	}
	if (ioctl(dev, OMNIKV_IOC_POOL_CREATE, &create))
		die("pool create");
	pool = create.pool_fd;
	ops[0] = (struct omnikv_batch_op) {
		.opcode = OMNIKV_BATCH_ALLOC, .extent.nr_granules = GRANULE / PAGE, .addr = (uintptr_t)sources,
		.count = NR_SOURCES,
	};
	submit(1);
	make.pool_fd = pool;
	if (ioctl(dev, OMNIKV_IOC_WINDOW_CREATE, &make))
		die("window create");
	win = make.window_fd;
	window = mmap(NULL, granules * GRANULE, PROT_READ | PROT_WRITE, MAP_SHARED, win, 0);
	memfd = memfd_create("bench", MFD_CLOEXEC);
	if (window == MAP_FAILED || memfd < 0 || ftruncate(memfd, POOL_BYTES))
		die("memfd");
	region = mmap(NULL, granules * GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (region == MAP_FAILED)
		die("region");
}

static void many_binds(void)
{
	struct omnikv_ioc_window_create make = { .pool_fd = pool, .kind = OMNIKV_WINDOW_RW, .bytes = MANY * PAGE };
	unsigned long i, mapped;
	unsigned int nr = 0;
	double from;
	unsigned char *area;

	if (ioctl(dev, OMNIKV_IOC_WINDOW_CREATE, &make))
		die("window of many binds");
	area = mmap(NULL, MANY * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, make.window_fd, 0);
	if (area == MAP_FAILED)
		die("map of many binds");
	from = now_us();
	for (i = 0; i < MANY; i++) {
		/* Neighbours in the window are none in the pool. */
		ops[nr++] = (struct omnikv_batch_op) {
			.opcode = OMNIKV_BATCH_BIND, .flags = OMNIKV_BATCH_BIND_F_LAZY,
			.extent = sources[i * 7 % NR_SOURCES], .extent_off = i % 16 * PAGE,
			.window_fd = make.window_fd, .window_off = i * PAGE, .bytes = PAGE,
		};
		if (nr == OMNIKV_BATCH_MAX) {
			submit(nr);
			nr = 0;
		}
	}
	printf("# %lu binds in one window, %.2f us each\n", MANY, (now_us() - from) / MANY);
	for (i = 0; i < MANY; i += 4099)
		area[i * PAGE] = (unsigned char)i;
	from = now_us();
	munmap(area, MANY * PAGE);
	close(make.window_fd);
	printf("# their end: %.2f us each\n", (now_us() - from) / MANY);

	area = mmap(NULL, MANY * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	for (mapped = 0; mapped < MANY; mapped++)
		if (mmap(area + mapped * PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, memfd,
			 (off_t)(mapped * 7 % NR_SOURCES * GRANULE)) == MAP_FAILED)
			break;
	printf("# mmap stops after %lu mappings: %s\n", mapped, mapped < MANY ? strerror(errno) : "not at all");
	munmap(area, MANY * PAGE);
	printf("ok 2 - a window of %lu binds\n", MANY);
}

int main(int argc, char **argv)
{
	double from, unmap_window, unmap_region, of[NR_ARMS];
	struct utsname name;
	unsigned long i;
	int rounds, arm;

	granules = argc > 1 ? strtoul(argv[1], NULL, 10) : 16384;
	rounds = argc > 2 ? atoi(argv[2]) : 5;
	if (!granules || rounds < 1 || rounds > ROUNDS_MAX) {
		fprintf(stderr, "usage: window [GRANULES [ROUNDS]], 1 to %d rounds\n", ROUNDS_MAX);
		return 2;
	}
	setvbuf(stdout, NULL, _IOLBF, 0);
	srand(1);
	uname(&name);
	order = calloc(granules, sizeof(*order));
	if (!order)
		die("memory");
	for (i = 0; i < granules; i++)
		order[i] = (uint32_t)i;
	make_pool();
	printf("# %s, %ld CPUs, %ld MiB; %lu granules of %lu KiB over %lu of memory, %d rounds, us a granule\n",
	       name.release, sysconf(_SC_NPROCESSORS_ONLN), sysconf(_SC_PHYS_PAGES) / 256, granules, GRANULE >> 10,
	       POOL_BYTES, rounds);
	/* Page tables and the map exist from here on: all arms rebind. */
	bind_all(OMNIKV_BATCH_MAX, 0);
	map_all();
	for (i = 0; i < (unsigned long)rounds; i++)
		round_of_arms((int)i);
	for (arm = 0; arm < NR_ARMS; arm++) {
		of[arm] = median(arm, rounds);
		printf("# %-42s %8.2f  (%.2f to %.2f)\n", names[arm], of[arm], figures[arm][0], figures[arm][rounds - 1]);
	}
	from = now_us();
	munmap(window, granules * GRANULE);
	close(win);
	unmap_window = (now_us() - from) / granules;
	from = now_us();
	munmap(region, granules * GRANULE);
	unmap_region = (now_us() - from) / granules;
	printf("# %-42s %8.2f\n# %-42s %8.2f\n", "end of the window, binds included", unmap_window,
	       "munmap of the memfd's mappings", unmap_region);
	printf("# mmap over batch %.1f (asked: 4), one a call over batch %.1f (asked: 2), mmap over lazy %.1f, ends %.1f\n",
	       of[POPULATE] / of[BATCH], of[SINGLE] / of[BATCH], of[POPULATE] / of[LAZY], unmap_region / unmap_window);
	puts("ok 1 - arms were measured");
	many_binds();
	puts("1..2");
	free(order);
	return 0;
}

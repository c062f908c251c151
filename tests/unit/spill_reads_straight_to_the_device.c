// SPDX-License-Identifier: GPL-2.0-only
/*
 * GPUDirect Storage, over a stand-in for libcufile: every byte arrives, what is not the block that is
 * asked for does not, a damaged one is found at its first read, and without the library there is one
 * line and no harm.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <omnikv/ring.h>

#include "spill/spill.h"
#include "tests/harness/ring_fixture.h"
#include "tests/harness/spill_world.h"

#define BLOCK	(64u << 10)

static char library[4096 + 64];
static void *handle;
static char path[64];
static char last_note[256];
static uint32_t nr_notes;

static void fake_set(const char *key, long value)
{
	void (*set)(const char *, long) = (void (*)(const char *, long))dlsym(handle, "fake_cufile_set");

	assert_non_null(set);
	set(key, value);
}

static long fake_get(const char *key)
{
	long (*get)(const char *) = (long (*)(const char *))dlsym(handle, "fake_cufile_get");

	assert_non_null(get);
	return get(key);
}

static void note(void *opaque, const char *line)
{
	(void)opaque;
	nr_notes++;
	snprintf(last_note, sizeof(last_note), "%s", line);
}

static int make(void **state)
{
	char self[4096];
	ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);

	(void)state;
	assert_true(len > 0);
	self[len] = '\0';
	snprintf(library, sizeof(library), "%s/../../lib/libfake-cufile.so", dirname(self));
	handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (!handle)
		print_error("%s\n", dlerror());
	assert_non_null(handle);
	assert_int_equal(setenv("OMNIKV_CUFILE", library, 1), 0);
	snprintf(path, sizeof(path), "/tmp/omnikv-gds-XXXXXX");
	assert_non_null(mkdtemp(path));
	nr_notes = 0;
	return 0;
}

static int clear(void **state)
{
	char file[128];

	(void)state;
	/* All is given back, whatever the test did. */
	assert_int_equal(fake_get("drivers"), 0);
	assert_int_equal(fake_get("handles"), 0);
	dlclose(handle);
	snprintf(file, sizeof(file), "%s/omnikv.spill", path);
	unlink(file);
	rmdir(path);
	return 0;
}

struct gds {
	struct ring_fixture		f;
	struct omnikv_hbm		*hbm;
	struct omnikv_spill		*spill;
	struct okv_record		rec;
	struct omnikv_spill_block	block;
	uint64_t			off[2];
	uint64_t			bytes[2];
};

static void open_gds(struct gds *g)
{
	struct omnikv_spill_config config = {
		.size = sizeof(config), .capacity_bytes = 16 << 20, .segment_bytes = 1 << 20, .floor_bytes = 1, .notice = note,
	};

	memset(g, 0, sizeof(*g));
	fixture_open(&g->f, "host", NULL, NULL, NULL);
	g->hbm = fixture_hbm(&g->f, 256 << 10);
	assert_int_equal(omnikv_spill_open(path, &config, &g->spill, NULL), 0);
	for (uint64_t id = 0; id < 8; id++)
		assert_int_equal(spill_put(g->spill->store, 1, id, BLOCK, 2), 0);
}

static void close_gds(struct gds *g)
{
	omnikv_spill_close(g->spill);
	omnikv_hbm_destroy(g->hbm);
	fixture_close(&g->f);
}

/* How block @id is asked for; its parts go to 4096 and behind. */
static void ask(struct gds *g, uint64_t id)
{
	spill_block(&g->rec, 1, id, BLOCK, 2);
	g->block = (struct omnikv_spill_block){
		.key = g->rec.key, .parent = g->rec.parent, .position = g->rec.position, .nr_tokens = g->rec.nr_tokens, .nr_parts = 2,
	};
	for (uint32_t p = 0; p < 2; p++) {
		g->bytes[p] = g->rec.parts[p].bytes;
		g->off[p] = p ? g->off[0] + g->bytes[0] : 4096;
	}
}

static int read_it(struct gds *g)
{
	memset(omnikv_hbm_ptr(g->hbm), 0, 256 << 10);
	return omnikv_spill_read_device(g->spill, g->rec.ns, &g->block, g->hbm, g->off, g->bytes);
}

static bool is_right(struct gds *g, uint64_t id)
{
	return !spill_wrong((uint8_t *)omnikv_hbm_ptr(g->hbm) + 4096, 1, id, BLOCK);
}

static void gds_brings_every_byte(void **state)
{
	struct gds g;

	(void)state;
	open_gds(&g);
	for (uint32_t shorten = 0; shorten < 2; shorten++) {
		fake_set("shorten", shorten ? 12288 : 0);
		for (uint64_t id = 0; id < 8; id++) {
			ask(&g, id);
			assert_int_equal(read_it(&g), 0);
			assert_true(is_right(&g, id));
			/* Nothing beside it. */
			assert_int_equal(((uint8_t *)omnikv_hbm_ptr(g.hbm))[4095], 0);
			assert_int_equal(((uint8_t *)omnikv_hbm_ptr(g.hbm))[4096 + BLOCK], 0);
		}
	}
	fake_set("shorten", 0);
	assert_null(strstr(last_note, "GPUDirect"));
	close_gds(&g);
}

static void gds_brings_no_other_block(void **state)
{
	struct gds g;

	(void)state;
	open_gds(&g);
	for (uint32_t wrong = 0; wrong < 10; wrong++) {
		int due = wrong < 6 ? -ENOENT : -EINVAL;

		ask(&g, 3);
		switch (wrong) {
		case 0: g.block.key.bytes[20] ^= 1; break;
		case 1: g.block.parent.bytes[0] ^= 1; break;
		case 2: g.block.position++; break;
		case 3: g.block.nr_tokens--; break;
		case 4: g.rec.ns[31] ^= 1; break;
		case 5: g.bytes[1] -= 4096; break;
		case 6: g.off[1] = (256 << 10) - 4096; break;
		case 7: g.bytes[0] = UINT64_MAX; break;
		case 8: g.block.key.len = 0; break;
		case 9: g.block.nr_parts = 0; break;
		}
		assert_int_equal(read_it(&g), due);
	}
	assert_int_equal(fake_get("reads"), 0);
	assert_int_equal(omnikv_spill_read_device(NULL, g.rec.ns, &g.block, g.hbm, g.off, g.bytes), -EINVAL);
	close_gds(&g);
}

static void gds_finds_damage_at_the_first_read(void **state)
{
	char file[128];
	uint8_t byte;
	uint32_t entry;
	struct gds g;
	uint64_t at;
	int fd;

	(void)state;
	open_gds(&g);
	ask(&g, 5);
	entry = okv_catalog_find(g.spill->store, g.rec.ns, &g.rec.key);
	okv_catalog_record(g.spill->store, entry, &g.rec);
	at = okv_segment_off(g.spill->store, g.spill->store->catalog.entries[entry].segment) + g.rec.off + 777;
	snprintf(file, sizeof(file), "%s/omnikv.spill", path);
	fd = open(file, O_RDWR | O_CLOEXEC);
	assert_int_equal(pread(fd, &byte, 1, at), 1);
	byte ^= 16;
	assert_int_equal(pwrite(fd, &byte, 1, at), 1);
	assert_int_equal(fsync(fd), 0);
	close(fd);
	ask(&g, 5);
	assert_int_equal(read_it(&g), -EBADMSG);
	assert_int_equal(read_it(&g), -ENOENT);
	ask(&g, 6);
	assert_int_equal(read_it(&g), 0);
	assert_true(is_right(&g, 6));
	close_gds(&g);
}

static void gds_that_fails_is_an_error_of_that_read(void **state)
{
	struct gds g;

	(void)state;
	open_gds(&g);
	ask(&g, 2);
	fake_set("fail_read", 2);
	assert_int_equal(read_it(&g), -EIO);
	assert_int_equal(read_it(&g), 0);
	assert_true(is_right(&g, 2));
	close_gds(&g);
}

static void gds_that_is_not_there_is_said_once(void **state)
{
	static const char *const texts[] = { "no-such", "does not start", "file system", "has no cuFile" };

	(void)state;
	for (uint32_t why = 0; why < 4; why++) {
		struct gds g;

		nr_notes = 0;
		if (why == 0)
			setenv("OMNIKV_CUFILE", "/no-such-library.so", 1);
		fake_set("fail_driver", why == 1);
		fake_set("fail_handle", why == 2);
		if (why == 3)
			setenv("OMNIKV_CUFILE", "libm.so.6", 1);
		open_gds(&g);
		ask(&g, 1);
		for (uint32_t i = 0; i < 3; i++)
			assert_int_equal(read_it(&g), -EOPNOTSUPP);
		assert_int_equal(nr_notes, 1);
		assert_non_null(strstr(last_note, "GPUDirect Storage unavailable"));
		assert_non_null(strstr(last_note, texts[why]));
		/* The store goes on as ever. */
		assert_int_equal(spill_get(g.spill->store, 1, 1), 0);
		close_gds(&g);
		setenv("OMNIKV_CUFILE", library, 1);
	}
	fake_set("fail_driver", 0);
	fake_set("fail_handle", 0);
}

#define TEST(f)	cmocka_unit_test_setup_teardown(f, make, clear)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(gds_brings_every_byte),
		TEST(gds_brings_no_other_block),
		TEST(gds_finds_damage_at_the_first_read),
		TEST(gds_that_fails_is_an_error_of_that_read),
		TEST(gds_that_is_not_there_is_said_once),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

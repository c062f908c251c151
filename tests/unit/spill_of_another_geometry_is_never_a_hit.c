// SPDX-License-Identifier: GPL-2.0-only
/*
 * One store, and what must match for bytes to be interchangeable: whoever differs in tenant, salt,
 * weights, adapter, epoch, dtype, order of planes, tokens a block or how keys are made hits nothing
 * of the other's, in memory, on NVMe and after a restart, and each still hits its own. Options of
 * an older and of a later caller are served, or refused once.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "spill/spill.h"
#include "tests/harness/kv_world.h"
#include "tests/harness/spill_world.h"

#define T	16u
#define NR	6u
#define SEGMENT	(1u << 20)
#define DISK	(OKV_SPILL_DATA_OFF + 12ull * SEGMENT)

struct other {
	const char		*what;
	struct omnikv_namespace	ns;
	struct omnikv_plan	plan;
};

enum { TENANT, SALT, WEIGHTS, ADAPTER, EPOCH, HASH, DTYPE, PLANES, TOKENS, NR_OTHERS };

/* @base's namespace with one thing changed. Planes in another order have the same bytes in sum. */
static void make_other(struct other *other, uint32_t i, const struct kv_world *base)
{
	static const char *const names[] = { "tenant", "salt", "weights", "adapter", "epoch", "hash", "dtype", "planes", "tokens" };
	struct omnikv_plan_config config = { .size = sizeof(config), .block_tokens = T, .granule_bytes = 4096 };
	struct omnikv_layout *layout = calloc(1, sizeof(*layout));
	struct omnikv_plane *planes, first;

	assert_non_null(layout);
	planes = layout->groups[0].planes;
	kv_layout(layout, KV_SHAPE_FULL);
	*other = (struct other){ .what = names[i], .ns = base->ns };
	switch (i) {
	case TENANT:
		other->ns.tenant = "u";
		break;
	case SALT:
		other->ns.salt = "salt";
		other->ns.salt_len = 4;
		break;
	case WEIGHTS:
		other->ns.weights = "w2";
		break;
	case ADAPTER:
		other->ns.adapter = "lora";
		break;
	case EPOCH:
		other->ns.epoch = 1;
		break;
	case HASH:
		other->ns.hash_algorithm = OMNIKV_HASH_SGLANG_SHA256;
		break;
	case DTYPE:
		planes[0].dtype = OMNIKV_DTYPE_F8_E4M3;
		break;
	case PLANES:
		first = planes[0];
		planes[0].elems = planes[1].elems;
		planes[1].elems = first.elems;
		break;
	case TOKENS:
		config.block_tokens = T / 2;
		break;
	}
	assert_int_equal(omnikv_plan_make(layout, &config, &other->plan, NULL), 0);
	other->ns.layout = &other->plan.layout;
	other->ns.block_tokens = config.block_tokens;
	free(layout);
}

static void open_tiers(struct kv_world *world, struct sim_disk *sim, struct omnikv_spill *spill)
{
	struct okv_store_config config = spill_sim_config(DISK, SEGMENT);

	*spill = (struct omnikv_spill){ .disk = &sim->disk, .is_simulated = true };
	assert_int_equal(spill_sim_open(sim, &config, &spill->store), 0);
	kv_world_open_spill(world, KV_SHAPE_FULL, T, 4 * NR, spill, OMNIKV_SPILL_ADMIT_ALL);
}

/* Blocks of @keys that @space has. */
static uint64_t hits(struct omnikv_space *space, const struct omnikv_key *keys)
{
	struct omnikv_seq *seq;
	uint64_t nr;

	assert_int_equal(omnikv_seq_open(space, keys, NR, NULL, &seq), 0);
	nr = omnikv_seq_tokens(seq);
	omnikv_seq_close(seq);
	return nr;
}

static void commit(struct omnikv_space *space, const struct omnikv_key *keys, uint32_t block_tokens)
{
	struct omnikv_seq *seq;

	assert_int_equal(omnikv_seq_open(space, NULL, 0, NULL, &seq), 0);
	assert_int_equal(omnikv_seq_append(seq, NR * block_tokens), 0);
	assert_int_equal(omnikv_seq_commit(seq, keys, NR, NULL), NR);
	omnikv_seq_close(seq);
}

static void make_keys(struct omnikv_key *keys)
{
	for (uint32_t k = 0; k < NR; k++)
		keys[k] = (struct omnikv_key){ .len = 8, .bytes = { k + 1, 7 } };
}

static void close_tiers(struct kv_world *world, struct omnikv_space *second, struct omnikv_spill *spill)
{
	omnikv_space_close(second);
	kv_world_close(world);
	okv_store_close(spill->store);
}

static void nobody_hits_what_another_geometry_has_stored(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < NR_OTHERS; i++) {
		struct omnikv_key keys[NR];
		struct omnikv_space *second;
		struct omnikv_spill spill;
		struct kv_world world;
		struct other other;
		struct sim_disk sim;

		make_keys(keys);
		sim_disk_init(&sim, DISK);
		open_tiers(&world, &sim, &spill);
		make_other(&other, i, &world);
		print_message("# another %s\n", other.what);
		assert_int_equal(omnikv_space_open(world.manager, &other.ns, &other.plan, &second, NULL), 0);

		/* In memory; on NVMe. */
		commit(world.space, keys, T);
		assert_int_equal(hits(second, keys), 0);
		assert_int_equal(omnikv_manager_flush(world.manager), NR);
		assert_int_equal(hits(second, keys), 0);
		assert_int_equal(hits(world.space, keys), NR * T);
		/* Both, each its own. */
		commit(second, keys, other.ns.block_tokens);
		assert_true(omnikv_manager_flush(world.manager) > 0);
		assert_int_equal(hits(second, keys), NR * other.ns.block_tokens);
		assert_int_equal(hits(world.space, keys), NR * T);
		close_tiers(&world, second, &spill);

		/* After a restart. */
		open_tiers(&world, &sim, &spill);
		assert_int_equal(omnikv_space_open(world.manager, &other.ns, &other.plan, &second, NULL), 0);
		assert_int_equal(hits(second, keys), NR * other.ns.block_tokens);
		assert_int_equal(hits(world.space, keys), NR * T);
		close_tiers(&world, second, &spill);
		sim_disk_fini(&sim);
	}
}

/* A store that only the other one has written to, met after a restart: nothing of it hits, and its owner finds all. */
static void store_of_another_geometry_is_kept_for_its_owner(void **state)
{
	(void)state;
	for (uint32_t i = 0; i < NR_OTHERS; i++) {
		struct omnikv_key keys[NR];
		struct omnikv_space *second;
		struct omnikv_spill spill;
		struct kv_world world;
		struct other other;
		struct sim_disk sim;

		make_keys(keys);
		sim_disk_init(&sim, DISK);
		open_tiers(&world, &sim, &spill);
		make_other(&other, i, &world);
		assert_int_equal(omnikv_space_open(world.manager, &other.ns, &other.plan, &second, NULL), 0);
		commit(second, keys, other.ns.block_tokens);
		assert_int_equal(omnikv_manager_flush(world.manager), NR);
		close_tiers(&world, second, &spill);

		open_tiers(&world, &sim, &spill);
		assert_int_equal(hits(world.space, keys), 0);
		assert_int_equal(omnikv_space_open(world.manager, &other.ns, &other.plan, &second, NULL), 0);
		assert_int_equal(hits(second, keys), NR * other.ns.block_tokens);
		close_tiers(&world, second, &spill);
		sim_disk_fini(&sim);
	}
}

static void options_of_older_and_later_callers_are_served_or_refused(void **state)
{
	struct {
		struct omnikv_spill_config	config;
		uint64_t			later;
	} longer = { .config = { .size = sizeof(longer), .capacity_bytes = 16 << 20, .segment_bytes = SEGMENT, .floor_bytes = 1 } };
	struct omnikv_spill_config config = longer.config;
	struct {
		struct omnikv_spill_stats	stats;
		uint64_t			later;
	} stats = { .stats.size = sizeof(stats) };
	char dir[] = "/tmp/omnikv-versions-XXXXXX", file[64];
	struct omnikv_spill *spill;
	struct omnikv_error err;

	(void)state;
	assert_non_null(mkdtemp(dir));
	/* The first fields alone are what an older caller has: no owner, no pool, no notice. */
	config.size = offsetof(struct omnikv_spill_config, owner);
	config.owner = (const char *)16;
	assert_int_equal(omnikv_spill_open(dir, &config, &spill, &err), 0);
	assert_int_equal(spill_put(spill->store, 1, 1, 4096, 1), 0);
	/* A later caller's longer struct gets its tail back as it was. */
	stats.later = 77;
	assert_int_equal(omnikv_spill_stats(spill, &stats.stats), -E2BIG);
	stats.later = 0;
	assert_int_equal(omnikv_spill_stats(spill, &stats.stats), 0);
	assert_int_equal(stats.stats.nr_records, 1);
	stats.stats = (struct omnikv_spill_stats){ .size = offsetof(struct omnikv_spill_stats, peak_bytes), .peak_bytes = 5 };
	assert_int_equal(omnikv_spill_stats(spill, &stats.stats), 0);
	assert_int_equal(stats.stats.peak_bytes, 5);
	omnikv_spill_close(spill);
	longer.later = 1;
	assert_int_equal(omnikv_spill_open(dir, &longer.config, &spill, &err), -E2BIG);
	longer.later = 0;
	/* Other segments than the store has: it keeps its own. */
	longer.config.segment_bytes = 2 * SEGMENT;
	assert_int_equal(omnikv_spill_open(dir, &longer.config, &spill, &err), 0);
	assert_int_equal(spill->store->super.segment_bytes, SEGMENT);
	assert_int_equal(spill_get(spill->store, 1, 1), 0);
	omnikv_spill_close(spill);
	longer.config.reserved = 1;
	assert_int_equal(omnikv_spill_open(dir, &longer.config, &spill, &err), -EINVAL);
	snprintf(file, sizeof(file), "%s/omnikv.spill", dir);
	assert_int_equal(unlink(file), 0);
	assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nobody_hits_what_another_geometry_has_stored),
		cmocka_unit_test(store_of_another_geometry_is_kept_for_its_owner),
		cmocka_unit_test(options_of_older_and_later_callers_are_served_or_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

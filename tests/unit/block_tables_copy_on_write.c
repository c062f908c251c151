// SPDX-License-Identifier: GPL-2.0-only
/*
 * Block tables against a plain model: tables are shared, grown, changed and cut at random, each
 * with an array of its own that says what must be in it. Each private block ends exactly once,
 * with its last holder. Memory shortage at any step leaves every table as it was.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "table.h"
#include "tests/harness/fault.h"

#define NR_TABLES	8u
#define NR_MOST		300u
#define NR_GROUPS	2u

/* A private block and what it must hold. */
struct made {
	struct okv_private	private;
	uint64_t		granule;
	uint32_t		nr_holders;	/* by the model: tables that have it */
	uint32_t		nr_drops;
	bool			is_over;
	struct made		*next;
};

struct modelled {
	struct okv_table	table;
	struct made		*blocks[NR_MOST];
	uint64_t		nr;
};

static struct made *all;
static uint64_t seed;
static uint64_t nr_fired;

static uint64_t draw(uint64_t below)
{
	seed = seed * 6364136223846793005ull + 1442695040888963407ull;
	return (seed >> 33) % below;
}

static void drop(void *opaque, struct okv_leaf *leaf, uint32_t slot)
{
	struct made *made = (struct made *)leaf->private[slot];

	assert_ptr_equal(opaque, &seed);
	assert_int_equal(leaf->extents[slot * NR_GROUPS].granule, made->granule);
	if (atomic_fetch_sub(&made->private.nr_refs, 1) != 1)
		return;
	assert_false(made->is_over);
	made->is_over = true;
}

static void fill(struct okv_table *table, uint64_t i, struct made *made)
{
	struct okv_leaf *leaf = okv_table_leaf(table, i);
	uint32_t slot = okv_table_slot(i);

	leaf->private[slot] = &made->private;
	leaf->extents[slot * NR_GROUPS].granule = made->granule;
	leaf->extents[slot * NR_GROUPS].nr_granules = 1;
	leaf->extents[slot * NR_GROUPS + 1].granule = ~made->granule;
	leaf->crc[slot * NR_GROUPS + 1] = made->granule;
	leaf->state_hi[slot] = made->granule;
	leaf->state_lo[slot] = ~made->granule;
}

static struct made *make(void)
{
	static uint64_t granule;
	struct made *made = calloc(1, sizeof(*made));

	assert_non_null(made);
	atomic_init(&made->private.nr_refs, 1);
	made->granule = ++granule;
	made->next = all;
	all = made;
	return made;
}

static void check(const struct modelled *m)
{
	assert_int_equal(m->table.nr_blocks, m->nr);
	for (uint64_t i = 0; i < m->nr; i++) {
		const struct okv_leaf *leaf = okv_table_leaf(&m->table, i);
		uint32_t slot = okv_table_slot(i);

		assert_ptr_equal(leaf->private[slot], &m->blocks[i]->private);
		assert_false(m->blocks[i]->is_over);
		assert_int_equal(leaf->extents[slot * NR_GROUPS].granule, m->blocks[i]->granule);
		assert_int_equal(leaf->extents[slot * NR_GROUPS + 1].granule, ~m->blocks[i]->granule);
		assert_int_equal(leaf->crc[slot * NR_GROUPS + 1], (uint32_t)m->blocks[i]->granule);
		assert_int_equal(leaf->state_hi[slot], (uint32_t)m->blocks[i]->granule);
		assert_int_equal(leaf->state_lo[slot], (uint32_t)~m->blocks[i]->granule);
	}
}

/* How many tables have each block, by the model. */
static void count(struct modelled *tables)
{
	for (struct made *made = all; made; made = made->next)
		made->nr_holders = 0;
	for (uint32_t t = 0; t < NR_TABLES; t++)
		for (uint64_t i = 0; i < tables[t].nr; i++)
			tables[t].blocks[i]->nr_holders++;
}

static void change(struct modelled *tables, bool is_short)
{
	struct modelled *m = &tables[draw(NR_TABLES)], *other = &tables[draw(NR_TABLES)];
	uint64_t from, to;
	int ret;

	if (is_short)
		fault_arm(1 + draw(3));
	switch (draw(4)) {
	case 0:	/* share */
		if (m == other || other->nr)
			break;
		okv_table_fini(&other->table, drop, &seed);
		okv_table_share(&m->table, &other->table);
		memcpy(other->blocks, m->blocks, sizeof(m->blocks));
		other->nr = m->nr;
		break;
	case 1:	/* grow */
		to = m->nr + draw(100);
		if (to > NR_MOST)
			break;
		ret = okv_table_prepare(&m->table, m->nr, to, drop, &seed);
		nr_fired += fault_disarm();
		assert_true(ret == 0 || (is_short && ret == -ENOMEM));
		if (ret)
			break;
		for (uint64_t i = m->nr; i < to; i++) {
			const struct okv_leaf *leaf = okv_table_leaf(&m->table, i);

			assert_null(leaf->private[okv_table_slot(i)]);
			assert_int_equal(leaf->extents[okv_table_slot(i) * NR_GROUPS].nr_granules, 0);
		}
		/* Sometimes prepared in vain. */
		if (draw(4) == 0)
			break;
		for (; m->nr < to; m->nr++) {
			m->blocks[m->nr] = make();
			fill(&m->table, m->nr, m->blocks[m->nr]);
		}
		m->table.nr_blocks = m->nr;
		break;
	case 2:	/* replace some */
		if (!m->nr)
			break;
		from = draw(m->nr);
		to = from + 1 + draw(m->nr - from);
		ret = okv_table_prepare(&m->table, from, to, drop, &seed);
		nr_fired += fault_disarm();
		assert_true(ret == 0 || (is_short && ret == -ENOMEM));
		for (uint64_t i = from; i < to && !ret; i++) {
			drop(&seed, okv_table_leaf(&m->table, i), okv_table_slot(i));
			m->blocks[i] = make();
			fill(&m->table, i, m->blocks[i]);
			assert_true(okv_table_is_exclusive(&m->table, i));
		}
		break;
	default: /* cut */
		to = draw(3) ? draw(m->nr + 1) : 0;
		okv_table_cut(&m->table, to, drop, &seed);
		m->nr = to;
		break;
	}
	nr_fired += fault_disarm();
}

static void play(bool is_short, uint32_t nr_moves)
{
	struct modelled *tables = calloc(NR_TABLES, sizeof(*tables));

	assert_non_null(tables);
	nr_fired = 0;
	for (uint32_t t = 0; t < NR_TABLES; t++)
		okv_table_init(&tables[t].table, NR_GROUPS);
	for (uint32_t i = 0; i < nr_moves; i++) {
		change(tables, is_short);
		for (uint32_t t = 0; t < NR_TABLES; t++)
			check(&tables[t]);
		count(tables);
		/* With memory to copy with, nothing is held longer than somebody has it. */
		for (struct made *made = all; made; made = made->next) {
			assert_true(!made->is_over || made->nr_holders == 0);
			if (!is_short)
				assert_true(made->is_over || made->nr_holders);
		}
	}
	for (uint32_t t = 0; t < NR_TABLES; t++)
		okv_table_fini(&tables[t].table, drop, &seed);
	while (all) {
		struct made *made = all;

		assert_true(made->is_over);
		all = made->next;
		free(made);
	}
	assert_true(!is_short || nr_fired > nr_moves / 20);
	free(tables);
}

static void tables_agree_with_plain_arrays(void **state)
{
	(void)state;
	seed = 1;
	play(false, 400);
}

static void memory_shortage_leaves_tables_alone(void **state)
{
	(void)state;
	seed = 2;
	play(true, 400);
}

static void exclusive_means_nobody_else(void **state)
{
	struct okv_table a, b;
	struct made *made;

	(void)state;
	okv_table_init(&a, NR_GROUPS);
	okv_table_init(&b, NR_GROUPS);
	okv_table_share(&a, &b);	/* empty: nothing to share */
	assert_int_equal(okv_table_prepare(&a, 0, 0, drop, &seed), 0);
	assert_int_equal(okv_table_prepare(&a, 0, 2, drop, &seed), 0);
	made = make();
	fill(&a, 0, made);
	a.nr_blocks = 1;
	assert_true(okv_table_is_exclusive(&a, 0));
	okv_table_share(&a, &b);
	assert_false(okv_table_is_exclusive(&a, 0));
	/* The directory is a's own again, the leaf is not; then the leaf, the block is not. */
	assert_int_equal(okv_table_prepare(&a, 64, 65, drop, &seed), 0);
	assert_false(okv_table_is_exclusive(&a, 0));
	assert_int_equal(okv_table_prepare(&a, 0, 1, drop, &seed), 0);
	assert_false(okv_table_is_exclusive(&a, 0));
	okv_table_fini(&b, drop, &seed);
	assert_true(okv_table_is_exclusive(&a, 0));
	okv_table_leaf(&a, 0)->private[0] = NULL;
	assert_false(okv_table_is_exclusive(&a, 0));
	okv_table_leaf(&a, 0)->private[0] = &made->private;
	okv_table_fini(&a, drop, &seed);
	assert_true(made->is_over);
	all = NULL;
	free(made);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tables_agree_with_plain_arrays),
		cmocka_unit_test(memory_shortage_leaves_tables_alone),
		cmocka_unit_test(exclusive_means_nobody_else),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}

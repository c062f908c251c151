// SPDX-License-Identifier: GPL-2.0-only
/*
 * The table of extent states against rules written down operation by operation, and against the
 * page that shows it to users.
 *
 * Run from the top of the tree. With OMNIKV_UPDATE=1 the page is written anew.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "core/state.h"

#define PAGE	"Documentation/uapi/states.md"

enum {
	FREE = OMNIKV_EXTENT_FREE, PRIVATE = OMNIKV_EXTENT_PRIVATE, SEALED = OMNIKV_EXTENT_SEALED,
	META = OMNIKV_EXTENT_META, QUARANTINED = OMNIKV_EXTENT_QUARANTINED, POISONED = OMNIKV_EXTENT_POISONED,
	OWNER = OKV_ACTOR_OWNER, OTHER = OKV_ACTOR_OTHER, MANAGER = OKV_ACTOR_MANAGER, POOL = OKV_ACTOR_MODULE,
};

/* Is there a name for it? What has been given up has none, and what is free never had one. */
static bool has_name(unsigned int state)
{
	return state == PRIVATE || state == SEALED || state == META;
}

static int expected(unsigned int state, unsigned int op, unsigned int actor, bool has_refs)
{
	int given_up = has_refs ? QUARANTINED : FREE;

	switch (op) {
	case OKV_OP_ALLOC:
		/* Anybody allocates what is free. It has no owner yet; the pool itself wants nothing. */
		if (state != FREE)
			return -EBUSY;
		return actor == OWNER ? -ESTALE : actor == POOL ? -EPERM : PRIVATE;
	case OKV_OP_ALLOC_META:
		if (state != FREE)
			return -EBUSY;
		return actor == OWNER ? -ESTALE : actor == MANAGER ? PRIVATE : -EPERM;
	case OKV_OP_PUBLISH_META:
		/* Only the pool, when it has zeroed what the manager allocated. */
		if (!has_name(state))
			return -ESTALE;
		if (actor != POOL)
			return -EPERM;
		return state == PRIVATE ? META : -EBUSY;
	case OKV_OP_SEAL:
		if (!has_name(state))
			return -ESTALE;
		if (state == PRIVATE)
			return actor == OWNER ? SEALED : -EPERM;
		if (state == SEALED)
			return actor == POOL ? -EPERM : -EBUSY;
		return actor == MANAGER ? -EBUSY : -EPERM;
	case OKV_OP_FREE:
		if (!has_name(state))
			return -ESTALE;
		/* The owner frees what is PRIVATE, the manager the rest. */
		return actor == (state == PRIVATE ? OWNER : MANAGER) ? given_up : -EPERM;
	case OKV_OP_LEASE:
		if (!has_name(state))
			return -ESTALE;
		if (actor == POOL)
			return -EPERM;
		if (state == SEALED)
			return SEALED;
		/* Who could seal or free it hears that it is too early; others, that it is not theirs. */
		return actor == (state == PRIVATE ? OWNER : MANAGER) ? -EBUSY : -EPERM;
	case OKV_OP_RELEASE:
		if (state == FREE)
			return -ESTALE;
		if (state == PRIVATE)
			return actor == OWNER ? -EBUSY : -EPERM;
		if (state == META)
			return actor == MANAGER ? -EBUSY : -EPERM;
		return (int)state;
	case OKV_OP_BIND_RO:
		if (!has_name(state))
			return -ESTALE;
		if (actor == POOL || state == PRIVATE || (state == META && actor != MANAGER))
			return -EPERM;
		return (int)state;
	case OKV_OP_BIND_RW:
		if (!has_name(state))
			return -ESTALE;
		if ((state == PRIVATE && actor == OWNER) || (state == META && actor == MANAGER))
			return (int)state;
		return -EPERM;
	case OKV_OP_IO_GET:
		if (!has_name(state))
			return -ESTALE;
		if (actor == POOL || (state == PRIVATE && actor != OWNER) || (state == META && actor != MANAGER))
			return -EPERM;
		return (int)state;
	case OKV_OP_UNBIND:
	case OKV_OP_IO_PUT:
		/* Whoever began it may end it, whatever became of the extent since. */
		if (state == FREE)
			return -ESTALE;
		return state == PRIVATE && actor != OWNER && actor != POOL ? -EPERM : (int)state;
	case OKV_OP_QUERY:
		return has_name(state) ? (int)state : -ESTALE;
	case OKV_OP_END:
		if (state == FREE)
			return -ESTALE;
		if (actor != POOL)
			return -EPERM;
		return state == PRIVATE ? given_up : (int)state;
	case OKV_OP_LAST_PUT:
		if (state == FREE)
			return -ESTALE;
		if (actor != POOL)
			return -EPERM;
		return state == QUARANTINED ? given_up : state == POISONED ? POISONED : -EBUSY;
	case OKV_OP_POISON:
		if (state == FREE)
			return -ESTALE;
		return actor == POOL ? POISONED : -EPERM;
	}
	return -EINVAL;
}

static void each_case_follows_its_rule(void **state)
{
	unsigned int st, op, actor, refs, nr = 0;

	(void)state;
	for (st = 0; st < OMNIKV_EXTENT_NR_STATES; st++)
		for (op = 0; op < OKV_OP_NR; op++)
			for (actor = 0; actor < OKV_ACTOR_NR; actor++)
				for (refs = 0; refs < 2; refs++, nr++)
					if (okv_state_next(st, op, actor, refs) != expected(st, op, actor, refs))
						fail_msg("%s, %s, by %s, %s references: %d, should be %d",
							 okv_state_name(st), okv_op_name(op), okv_actor_name(actor),
							 refs ? "with" : "without",
							 okv_state_next(st, op, actor, refs),
							 expected(st, op, actor, refs));
	assert_int_equal(nr, 6 * 16 * 4 * 2);
}

static void what_is_out_of_range_is_refused(void **state)
{
	(void)state;
	assert_int_equal(okv_state_next(OMNIKV_EXTENT_NR_STATES, 0, 0, false), -EINVAL);
	assert_int_equal(okv_state_next(0, OKV_OP_NR, 0, false), -EINVAL);
	assert_int_equal(okv_state_next(0, 0, OKV_ACTOR_NR, false), -EINVAL);
	assert_string_equal(okv_state_name(OMNIKV_EXTENT_NR_STATES), "?");
	assert_string_equal(okv_op_name(OKV_OP_NR), "?");
	assert_string_equal(okv_actor_name(OKV_ACTOR_NR), "?");
}

static const char *case_text(unsigned int state, unsigned int op, unsigned int actor)
{
	int with = okv_state_next(state, op, actor, true), without = okv_state_next(state, op, actor, false);

	if (with != without)
		return "given up";
	switch (without) {
	case -EPERM:
		return "EPERM";
	case -EBUSY:
		return "EBUSY";
	case -ESTALE:
		return "ESTALE";
	}
	return okv_state_name((unsigned int)without);
}

static void render(FILE *out)
{
	unsigned int state, op, actor;

	fprintf(out,
		"<!-- SPDX-License-Identifier: MIT -->\n"
		"# States of an extent\n\n"
		"What each operation does to an extent, by its state and by who asks. A cell holds the next state\n"
		"or the error. *given up* is `free` where nothing refers to the extent, else `quarantined`, which\n"
		"ends with the last lease, bind or transfer. This page is made from the table in `core/state.c`;\n"
		"a test compares them.\n\n"
		"The *owner* is the client that allocated a private extent; a sealed or META extent has none.\n"
		"*manager* is the pool's current manager where it is not the owner. Whoever ends a lease, a bind\n"
		"or a transfer must have begun it; the table says only what the state allows. In addition, SEAL is\n"
		"EBUSY while the owner's own transfers are under way, and binding read-only needs a lease.\n");
	for (state = 0; state < OMNIKV_EXTENT_NR_STATES; state++) {
		fprintf(out, "\n## %s\n\n| operation |", okv_state_name(state));
		for (actor = 0; actor < OKV_ACTOR_NR; actor++)
			fprintf(out, " %s |", okv_actor_name(actor));
		fprintf(out, "\n|---|---|---|---|---|\n");
		for (op = 0; op < OKV_OP_NR; op++) {
			fprintf(out, "| %s |", okv_op_name(op));
			for (actor = 0; actor < OKV_ACTOR_NR; actor++)
				fprintf(out, " %s |", case_text(state, op, actor));
			fprintf(out, "\n");
		}
	}
}

static void the_page_shows_the_table(void **state)
{
	char *want = NULL, have[32768];
	size_t want_len = 0, have_len;
	FILE *file;

	(void)state;
	file = open_memstream(&want, &want_len);
	assert_non_null(file);
	render(file);
	fclose(file);
	if (getenv("OMNIKV_UPDATE")) {
		file = fopen(PAGE, "w");
		assert_non_null(file);
		fputs(want, file);
		fclose(file);
	}
	file = fopen(PAGE, "r");
	if (!file)
		fail_msg("%s: cannot be read; run this from the top of the tree", PAGE);
	have_len = fread(have, 1, sizeof(have) - 1, file);
	have[have_len] = '\0';
	fclose(file);
	if (strcmp(have, want))
		fail_msg("%s differs from the table; run this test with OMNIKV_UPDATE=1", PAGE);
	free(want);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(each_case_follows_its_rule),
		cmocka_unit_test(what_is_out_of_range_is_refused),
		cmocka_unit_test(the_page_shows_the_table),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
